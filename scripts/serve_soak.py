#!/usr/bin/env python3
"""Many clients at once, for minutes: good ones, ones that go away, slow readers, half-sent requests; long prompts, bodies of 20 MB that
are refused, recordings of single keys, embeddings, schemas. Plain Python, nothing installed.

    cargo build --release
    python3 scripts/serve_soak.py target/release/palimpsest tests/fixtures/llama-tiny --minutes 5
    python3 scripts/serve_soak.py target/release/palimpsest smollm2-135m --minutes 60 --clients 12 --memory 6GiB \\
        --csv memory.csv --svg figures/serve-memory.svg
    python3 scripts/serve_soak.py target/release/palimpsest smollm2-135m --minutes 10 --clients 4 --attackers

Checks that every answer that was finished is the one that its request got alone, that the process never holds more than a tenth over
what was planned, that no place and no memory of a request stays taken, and that SIGTERM in the middle ends the server in time. Exits
with 1 where something does not hold.

With --attackers only short conversations are asked, in turn alone and beside a process that holds half-sent heads, half-sent bodies and
unread replies and opens each again that is closed. Prints the clients' time to an answer of both; it must be at most twice as long.
"""
import argparse
import csv
import json
import os
import random
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

# Conversations of the clients: few, so that each can be asked alone before.
HISTORIES, QUESTIONS = 6, 8

# Seconds in which a server must end after SIGTERM: what is under way has ten, then it is told so.
ENDING = 25

# Seconds that a client waits: for a place, and on a machine that has other things to do.
PATIENCE = 600

# What the process may hold over the plan.
OVER = 1.10

# Bytes of a body that is refused, and tokens of a long prompt, about.
HUGE, LONG = 20_000_000, 1500

# Of how many clients one sends what is not a conversation.
MIXED = 4

# What the attackers hold: half heads, half bodies, replies that they do not read.
HALF_HEADS, HALF_BODIES, UNREAD = 2000, 600, 100

# New connections of the attackers a second.
ATTEMPTS = 500

# Seconds with and without attackers, in turn, and those after a change that do not count.
PHASE, CHANGE = 30, 5

# The time to an answer with attackers, at most, over that without.
SLOWER = 2.0


def body(model, history, question):
    text = " ".join(f"The {word} of house {history} stands by the well." for word in ["fig", "oak", "elm", "ash"] * (1 + history))
    messages = [{"role": "system", "content": text}, {"role": "user", "content": f"Question {question}: where is it?"}]
    request = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 4 + 6 * question}
    if question % 4 == 1:
        request["palimpsest"] = {"rows": ["last", "answer"]}
    return request


class Connection:
    """A request on a connection of its own."""

    def __init__(self, port, request, stream=False, path="/v1/chat/completions"):
        data = json.dumps(request | ({"stream": True} if stream else {})).encode()
        head = (f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                f"content-length: {len(data)}\r\nconnection: close\r\n\r\n").encode()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.sendall(head + data)

    def read(self, pause=0.0, piece=65536):
        """Status and body, the body's chunks joined."""
        received = bytearray()
        while data := self.socket.recv(piece):
            received += data
            if pause:
                time.sleep(pause)
        self.socket.close()
        if not received:
            raise ConnectionError("closed without an answer")
        head, _, rest = bytes(received).partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            joined = b""
            while rest:
                size, _, rest = rest.partition(b"\r\n")
                if int(size, 16) == 0:
                    break
                joined, rest = joined + rest[:int(size, 16)], rest[int(size, 16) + 2:]
            rest = joined
        return int(head.split(b" ", 2)[1]), rest


def streamed(data):
    """The content of a stream; None where it did not come to its end."""
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    if not lines or lines[-1] != "[DONE]":
        return None
    frames = [json.loads(line) for line in lines[:-1]]
    return "".join(choice["delta"].get("content") or "" for frame in frames for choice in frame["choices"])


def words(draw, count):
    return " ".join(draw.choice(["fig", "oak", "elm", "ash", "well", "house"]) + str(draw.randrange(1000)) for _ in range(count))


def other(kind, model, draw):
    """The path, body and possible statuses of a request of this kind."""
    chat, said = "/v1/chat/completions", [{"role": "user", "content": "Which tree stands by the well?"}]
    request = {"model": model, "temperature": 0, "max_tokens": 16}
    documents = [{"type": "text", "text": f"The {tree} stands by house {i}. ", "span": f"document {i}"}
                 for i, tree in enumerate(["fig", "oak", "elm", "ash"])]
    asked = [{"role": "user", "content": documents + [{"type": "text", "text": "Which tree is it?", "span": "question"}]}]
    if kind == "long":
        return chat, request | {"messages": [{"role": "user", "content": words(draw, LONG // 5)}]}, [200]
    if kind == "refused":
        text = (words(draw, 1000) * (HUGE // 5000 + 1))[:HUGE]
        return draw.choice([(chat, request | {"messages": [{"role": "user", "content": text}]}, [400]),
                            ("/v1/completions", request | {"prompt": text}, [400]),
                            ("/v1/embeddings", {"model": model, "input": text}, [400]),
                            ("/tokenize", {"model": model, "prompt": text}, [400])])
    if kind == "top_keys":
        rows = {"rows": ["messages[0]", "answer"], "heads": "all", "top_keys": 64}
        messages = [{"role": "user", "content": words(draw, 60)}]
        return chat, request | {"messages": messages, "palimpsest": rows}, [200]
    if kind == "each":
        return chat, request | {"messages": asked, "palimpsest": {"rows": ["each"], "heads": "all"}}, [200]
    if kind == "embeddings":
        inputs = [words(draw, 40) for _ in range(draw.randrange(1, 16))]
        return "/v1/embeddings", {"model": model, "input": inputs}, [200]
    if kind == "schema":
        schema = {"type": "object", "properties": {f"field{i}": {"type": "integer"} for i in range(draw.randrange(1, 5))}}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return chat, request | {"messages": said, "response_format": form}, [200]
    if kind == "tokenize":
        return "/tokenize", {"model": model, "prompt": words(draw, 300), "return_token_strs": True}, [200]
    # What the server lists in its OpenAPI document beside these.
    fields = {"score": {"score": True}, "some heads": {"rows": ["question"], "heads": [[0, 0], [1, 1]]},
              "answer": {"rows": ["answer"], "answer": "It is the oak."}}[kind]
    return chat, request | {"messages": asked, "palimpsest": fields}, [200]


def kinds(port):
    """The kinds of requests that this server knows."""
    kinds = ["long", "refused", "top_keys", "each", "embeddings", "schema", "tokenize"]
    known = set()

    def look(value):
        if isinstance(value, dict):
            properties = value.get("properties")
            if isinstance(properties, dict) and "top_keys" in properties and "rows" in properties:
                known.update(properties)
                known.update(["some heads"] if "array" in json.dumps(properties.get("heads")) else [])
            [look(inner) for inner in value.values()]
        elif isinstance(value, list):
            [look(inner) for inner in value]

    look(json.loads(get(port, "/openapi.json")))
    return kinds + [kind for kind in ("score", "some heads", "answer") if kind in known]


class Soak:
    def __init__(self, port, model, alone):
        self.port, self.model, self.alone = port, model, alone
        self.counts, self.wrong, self.refusals = {}, [], []
        self.kinds = kinds(port)
        self.lock, self.stop = threading.Lock(), threading.Event()

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what):
        with self.lock:
            self.wrong.append(what)

    def client(self, nth):
        draw = random.Random(nth)
        while not self.stop.is_set():
            try:
                if nth % MIXED == 0:
                    self.mixed(draw)
                else:
                    self.once(draw)
            except (ConnectionError, socket.timeout, OSError) as error:
                if not self.stop.is_set():
                    self.fail(f"connection: {error!r}")
            time.sleep(draw.random() * 0.2)

    def mixed(self, draw):
        """Something other than a short conversation: its status must be one that it may have."""
        name = draw.choice(self.kinds)
        path, request, statuses = other(name, self.model, draw)
        begun = time.time()
        status, data = Connection(self.port, request, path=path).read()
        if name == "refused" and status == 400:
            self.refusals.append(time.time() - begun)
        if status == 429:
            self.count(f"{name}: told to come again")
            return time.sleep(1)
        if status not in statuses and not self.stop.is_set():
            return self.fail(f"{name}: status {status}: {data[:300]!r}")
        if name == "schema" and status == 200:
            choice = json.loads(data)["choices"][0]
            if choice["finish_reason"] == "stop":
                json.loads(choice["message"]["content"])
        return self.count(f"{name}: {status}")

    def once(self, draw):
        history, question = draw.randrange(HISTORIES), draw.randrange(QUESTIONS)
        request = body(self.model, history, question)
        kind = draw.random()
        if kind < 0.04:
            # Half a body, or half a head.
            half = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
            half.sendall(draw.choice([b"POST /v1/chat", b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
                                      b"content-length: 500\r\n\r\n{\"model\": "]))
            time.sleep(draw.random())
            half.close()
            return self.count("half-sent")
        stream = draw.random() < 0.5
        connection = Connection(self.port, request, stream)
        if kind < 0.37:
            time.sleep(draw.random() * 0.5)
            connection.socket.close()
            return self.count("cancelled")
        slow = kind < 0.45
        status, data = connection.read(0.05 if slow else 0.0, 256 if slow else 65536)
        if status == 429:
            self.count("told to come again")
            return time.sleep(1)
        if self.stop.is_set() and status != 200:
            return None
        if status != 200:
            return self.fail(f"status {status}: {data[:200]!r}")
        said = streamed(data) if stream else json.loads(data)["choices"][0]["message"]["content"]
        if said is None:
            return None if self.stop.is_set() else self.fail("a stream was cut")
        if said != self.alone[history, question]:
            return self.fail(f"history {history}, question {question}: {said!r}, alone {self.alone[history, question]!r}")
        return self.count("finished, slowly" if slow else "finished")


def get(port, path):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    return received.partition(b"\r\n\r\n")[2].decode()


def metrics(port):
    lines = [line.split() for line in get(port, "/metrics").splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


MEMORY = ("planned", "kept", "requests")


def sample(port, pid):
    """Bytes as the system and the server tell them."""
    told = metrics(port)
    return {"resident": resident(pid)} | {name: int(told[f"palimpsest_memory_{name}_bytes"]) for name in MEMORY}


def drawn(samples):
    """Resident, planned and kept over time, as SVG."""
    width, height, left, top, right, bottom = 860, 320, 56, 16, 92, 36
    last = max(samples[-1]["seconds"], 1)
    most = max(max(sample["resident"], sample["planned"]) for sample in samples) * 1.08
    x = lambda seconds: left + (width - left - right) * seconds / last
    y = lambda size: height - bottom - (height - top - bottom) * size / most
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    gib, minutes = 2 ** 30, last / 60
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if most / gib / step <= 8)
    for i in range(int(most / gib / step) + 1):
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y(i * step * gib):.1f}" y2="{y(i * step * gib):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y(i * step * gib) + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    tick = next(tick for tick in (0.5, 1, 2, 5, 10, 20, 60) if minutes / tick <= 10)
    for i in range(int(minutes / tick) + 1):
        out.append(f'<text x="{x(i * tick * 60):.1f}" y="{height - bottom + 16}" text-anchor="middle">{i * tick:g}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 6}" text-anchor="middle">minutes</text>')
    out.append(f'<text x="14" y="{height / 2}" text-anchor="middle" transform="rotate(-90 14 {height / 2})">GiB</text>')
    labels = []
    for name, colour in (("planned", "#888888"), ("resident", "#b2182b"), ("kept", "#2166ac")):
        points = " ".join(f"{x(sample['seconds']):.1f},{y(sample[name]):.1f}" for sample in samples)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        labels.append([y(samples[-1][name]) + 4, name, colour])
    labels.sort()
    for before, after in zip(labels, labels[1:]):
        after[0] = max(after[0], before[0] + 14)
    for at, name, colour in labels:
        out.append(f'<text x="{width - right + 6}" y="{at:.1f}" fill="{colour}">{name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def attack(port):
    """Holds connections until it is killed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    wanted = [(HALF_HEADS, head), (HALF_BODIES, head + b"content-length: 500\r\n\r\n{\"model\": "),
              (UNREAD, b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)]
    missing = [text for count, text in wanted for _ in range(count)]
    random.shuffle(missing)
    held, poll = {}, select.poll()
    while True:
        until = time.time() + 0.1
        for _ in range(min(len(missing), ATTEMPTS // 10)):
            text = missing.pop()
            try:
                client = socket.create_connection(("127.0.0.1", port), timeout=1)
                client.setblocking(False)
                client.send(text)
            except OSError:
                missing.insert(0, text)
                continue
            held[client.fileno()] = client, text
            # Replies stay unread; only the end of the connection counts.
            poll.register(client, select.POLLRDHUP)
        for number, _ in poll.poll(0):
            client, text = held.pop(number)
            poll.unregister(number)
            client.close()
            missing.insert(0, text)
        time.sleep(max(0, until - time.time()))


def attacked(port, model, alone, clients, minutes):
    """Times to an answer without and with attackers; what was wrong."""
    times, wrong, now, stop = {False: [], True: []}, [], [None], threading.Event()

    def client(nth):
        draw = random.Random(nth)
        while not stop.is_set():
            history, question, phase, begun = draw.randrange(HISTORIES), draw.randrange(QUESTIONS), now[0], time.time()
            try:
                status, data = Connection(port, body(model, history, question)).read()
                said = json.loads(data)["choices"][0]["message"]["content"] if status == 200 else None
                if said != alone[history, question]:
                    wrong.append(f"status {status}: {data[:200]!r}")
            except (OSError, ValueError) as error:
                wrong.append(f"connection: {error!r}, attackers: {phase}")
            if phase is not None and phase == now[0]:
                times[phase].append(time.time() - begun)
            time.sleep(draw.random() * 0.2)

    threads = [threading.Thread(target=client, args=(nth,), daemon=True) for nth in range(clients)]
    [thread.start() for thread in threads]
    for turn in range(2 * max(1, round(minutes * 60 / (2 * PHASE)))):
        attackers = subprocess.Popen([sys.executable, __file__, "attack", str(port)]) if turn % 2 else None
        time.sleep(CHANGE)
        now[0] = turn % 2 == 1
        time.sleep(PHASE - CHANGE)
        now[0] = None
        if attackers:
            if attackers.poll() is not None:
                wrong.append("the attackers ended")
            attackers.kill()
            attackers.wait()
        print(f"{turn + 1}: {'with' if attackers else 'without'} attackers, {[len(times[kind]) for kind in times]} answers", file=sys.stderr)
    stop.set()
    [thread.join(PATIENCE) for thread in threads]
    if not all(times.values()):
        return wrong + ["too little was asked to tell anything"]
    middle = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    for kind, seconds in times.items():
        print(f"{'with' if kind else 'without'} attackers: {len(seconds)} answers, p50 {middle[kind]:.3f} s, longest {max(seconds):.3f} s")
    ratio = middle[True] / middle[False]
    print(f"{HALF_HEADS} half heads, {HALF_BODIES} half bodies, {UNREAD} unread, {ATTEMPTS} new a second: {ratio:.2f} times as long")
    return wrong + ([f"honest clients wait {ratio:.2f} times as long"] if ratio > SLOWER else [])


def finish(wrong):
    for what in wrong[:20]:
        print(f"WRONG: {what}")
    sys.exit(1 if wrong else 0)


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if "http://" not in line:
        sys.exit(f"the server does not start: {line}")
    return process, int(line.split("http://", 1)[1].split("/")[0].rsplit(":", 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("palimpsest")
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--memory", default="4GiB", help="what the server may take")
    parser.add_argument("--attackers", action="store_true", help="compare honest clients with and without attackers, and nothing else")
    parser.add_argument("--csv", help="where the samples go")
    parser.add_argument("--svg", help="where the figure goes")
    args = parser.parse_args()
    command = [args.palimpsest, "serve", args.model, "--port", "0", "--queue", "128", "--context", "2048", "--memory", args.memory]
    process, port = start(command)
    model = json.loads(get(port, "/v1/models"))["data"][0]["id"]
    wrong = []

    # 1. Everything alone.
    alone = {}
    for history in range(HISTORIES):
        for question in range(QUESTIONS):
            status, data = Connection(port, body(model, history, question)).read()
            if status != 200:
                sys.exit(f"status {status}: {data!r}")
            alone[history, question] = json.loads(data)["choices"][0]["message"]["content"]
    if len(set(alone.values())) < QUESTIONS:
        wrong.append("answers hardly differ: nothing would be noticed")

    if args.attackers:
        wrong += attacked(port, model, alone, args.clients, args.minutes)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=ENDING)
        finish(wrong)

    # 2. Everything at once.
    soak = Soak(port, model, alone)
    threads = [threading.Thread(target=soak.client, args=(nth,), daemon=True) for nth in range(args.clients)]
    [thread.start() for thread in threads]
    seconds, samples = args.minutes * 60, []
    begun = time.time()

    def look():
        samples.append({"seconds": round(time.time() - begun, 1)} | sample(port, process.pid))
        return " ".join(f"{name} {value / 2 ** 20:.0f}" for name, value in samples[-1].items() if name != "seconds")

    shown = 0
    while time.time() - begun < seconds:
        time.sleep(min(1, seconds / 12))
        line = look()
        if time.time() - shown > min(10, seconds / 12):
            shown = time.time()
            print(f"{shown - begun:4.0f} s, MiB: {line}, {soak.counts}", file=sys.stderr)
    soak.stop.set()
    [thread.join(PATIENCE) for thread in threads]
    wrong += soak.wrong[:20]

    # 3. Nothing stays taken, and the process holds what was planned.
    gauges = ("palimpsest_requests_under_way", "palimpsest_sequences_running", "palimpsest_sequences_waiting",
              "palimpsest_memory_requests_bytes")
    until = time.time() + 30
    while any(metrics(port)[name] for name in gauges) and time.time() < until:
        time.sleep(0.2)
    left = {name: metrics(port)[name] for name in gauges if metrics(port)[name]}
    if left:
        wrong.append(f"somebody is still served after everybody went: {left}")
    time.sleep(5)
    print(f"at the end, MiB: {look()}")
    most = max(samples, key=lambda sample: sample["resident"])
    print(f"at its most: {most['resident'] / most['planned']:.2f} of what was planned, after {most['seconds']:.0f} s; "
          f"at the end {samples[-1]['resident'] / samples[-1]['planned']:.2f}")
    if any(sample["resident"] > sample["planned"] * OVER for sample in samples):
        wrong.append("the process held more than was planned")
    if soak.refusals:
        ordered = sorted(soak.refusals)
        print(f"20 MB refused {len(ordered)} times: median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.3f} s")
    if args.csv:
        with open(args.csv, "w", newline="") as out:
            table = csv.DictWriter(out, samples[0].keys())
            table.writeheader()
            table.writerows(samples)
    if args.svg:
        with open(args.svg, "w") as out:
            out.write(drawn(samples))
    print(f"answers: {soak.counts}")
    print(f"cache: { {name: value for name, value in metrics(port).items() if 'cache' in name or 'decode' in name} }")
    if soak.counts.get("finished", 0) < args.clients or not soak.counts.get("cancelled"):
        wrong.append("too little was asked to tell anything")

    # 4. SIGTERM in the middle.
    soak = Soak(port, model, alone)
    threads = [threading.Thread(target=soak.client, args=(nth,), daemon=True) for nth in range(args.clients)]
    [thread.start() for thread in threads]
    time.sleep(3)
    soak.stop.set()
    begun = time.time()
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(timeout=ENDING)
        print(f"SIGTERM: ended with {code} after {time.time() - begun:.1f} s")
        if code != 0:
            wrong.append(f"it ended with {code}")
    except subprocess.TimeoutExpired:
        process.kill()
        wrong.append(f"it did not end within {ENDING} s of SIGTERM")
    wrong += soak.wrong[:20]
    finish(wrong)


if __name__ == "__main__":
    if sys.argv[1:2] == ["attack"]:
        attack(int(sys.argv[2]))
    else:
        main()
