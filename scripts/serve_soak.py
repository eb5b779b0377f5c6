#!/usr/bin/env python3
"""Many clients at once, for minutes: good ones, ones that go away, slow readers, half-sent requests. Plain Python, nothing installed.

    cargo build --release
    python3 scripts/serve_soak.py target/release/palimpsest tests/fixtures/llama-tiny --minutes 5

Checks that every answer that was finished is the one that its request got alone, that memory does not grow after a warm-up, that no
place stays taken, and that SIGTERM in the middle ends the server in time. Exits with 1 where something does not hold.
"""
import argparse
import json
import os
import random
import signal
import socket
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

# Growth of memory from the warm-up to the end that is none: allocators keep some.
GROWTH = 1.10


def body(model, history, question):
    text = " ".join(f"The {word} of house {history} stands by the well." for word in ["fig", "oak", "elm", "ash"] * (1 + history))
    messages = [{"role": "system", "content": text}, {"role": "user", "content": f"Question {question}: where is it?"}]
    request = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 4 + 6 * question}
    if question % 4 == 1:
        request["palimpsest"] = {"rows": ["last", "answer"]}
    return request


class Connection:
    """A request on a connection of its own."""

    def __init__(self, port, request, stream=False):
        data = json.dumps(request | ({"stream": True} if stream else {})).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
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


class Soak:
    def __init__(self, port, model, alone):
        self.port, self.model, self.alone = port, model, alone
        self.counts, self.wrong = {}, []
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
                self.once(draw)
            except (ConnectionError, socket.timeout, OSError) as error:
                if not self.stop.is_set():
                    self.fail(f"connection: {error!r}")
            time.sleep(draw.random() * 0.2)

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
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


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
    args = parser.parse_args()
    command = [args.palimpsest, "serve", args.model, "--port", "0", "--queue", "128", "--context", "2048"]
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

    # 2. Everything at once.
    soak = Soak(port, model, alone)
    threads = [threading.Thread(target=soak.client, args=(nth,), daemon=True) for nth in range(args.clients)]
    [thread.start() for thread in threads]
    seconds, sizes = args.minutes * 60, []
    begun = time.time()
    while time.time() - begun < seconds:
        time.sleep(min(5, seconds / 12))
        sizes.append(resident(process.pid))
        print(f"{time.time() - begun:4.0f} s, {sizes[-1]:.0f} MiB, {soak.counts}", file=sys.stderr)
    soak.stop.set()
    [thread.join(PATIENCE) for thread in threads]
    wrong += soak.wrong[:20]

    # 3. Nothing stays taken, and memory is flat: the last third against what it was after the first.
    gauges = ("palimpsest_requests_under_way", "palimpsest_sequences_running", "palimpsest_sequences_waiting")
    until = time.time() + 30
    while any(metrics(port)[name] for name in gauges) and time.time() < until:
        time.sleep(0.2)
    left = {name: metrics(port)[name] for name in gauges if metrics(port)[name]}
    if left:
        wrong.append(f"somebody is still served after everybody went: {left}")
    third = len(sizes) // 3
    before, after = max(sizes[:third]), max(sizes[-third:])
    print(f"memory: {before:.0f} MiB in the first third, {after:.0f} MiB in the last")
    if after > before * GROWTH:
        wrong.append("memory grows")
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
    for what in wrong:
        print(f"WRONG: {what}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
