#!/usr/bin/env python3
"""Is the score's first document the one that an answer needs? Asked of a running `palimpsest serve`.

  which_document.py [--url http://127.0.0.1:8080] [--set test|development] [--heads retrieval|all|'[[8, 3], ...]'] [--drops FILE]

Each question of scripts/which_document/SET.json is asked over all documents of the set at once, greedily. Three things name a
document: the score (`"palimpsest": {"score": ...}`) and the mean mass over layers and heads, each by the row `question` and by the
row `answer`, and leaving out: each document in turn is left out and the same answer's log-probability taken again; the document
whose absence costs most is the one that the answer needs. Prints, as a table in Markdown, how often they agree, with 95% Wilson
intervals, and how often each names the document that holds the right answer; for questions of which two documents disagree
(`updates`, an older and a newer statement) and for the others. --drops keeps the log-probabilities, the slow half, and takes them
from there where the answers are the same. Needs Python 3.10 and nothing else.
"""

import argparse
import json
import math
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SETS = Path(__file__).resolve().parent / "which_document"
SYSTEM = "Answer from the documents, in a few words. Where two of them disagree, the newer one is right."
# A sentence is enough.
STOP = [".", "\n"]
# Requests at once: given answers to the same documents are read together.
AT_ONCE = 8
# Seconds to wait for a reply.
PATIENCE = 3600
MEASURES = ["score, question", "score, answer", "mean mass, question", "mean mass, answer"]


class Server:
    """The first model of a server."""

    def __init__(self, url, most_tokens):
        self.url, self.most_tokens = url.rstrip("/"), most_tokens
        self.model = self.send("/v1/models")["data"][0]["id"]
        hello = {"model": self.model, "messages": [{"role": "user", "content": "Hello."}], "palimpsest": {"answer": "Hello."}}
        self.reads_answers = self.reply("/v1/chat/completions", hello)[0] == 200

    def send(self, path, body=None):
        status, reply = self.reply(path, body)
        if status != 200:
            raise SystemExit(f"{path}: {status}: {json.dumps(reply)}")
        return reply

    def reply(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def answer(self, messages, palimpsest):
        """A greedy answer, and what is told of its attention."""
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_completion_tokens": self.most_tokens, "stop": STOP}
        choice = self.send("/v1/chat/completions", body | {"palimpsest": palimpsest})["choices"][0]
        return choice["message"]["content"], choice["palimpsest"]

    def tokens(self, messages):
        return self.send("/tokenize", {"model": self.model, "messages": messages})["tokens"]

    def log_p(self, messages, answer):
        """The log-probability of these tokens as the answer to a conversation."""
        if self.reads_answers:
            body = {"model": self.model, "messages": messages, "palimpsest": {"answer": answer}}
            told = self.send("/v1/chat/completions", body)["choices"][0]["logprobs"]["content"]
            assert len(told) == len(answer), (len(told), len(answer))
            return sum(token["logprob"] for token in told)
        # Slower: nothing that is kept of the documents is used.
        body = {"model": self.model, "prompt": self.tokens(messages) + answer, "max_tokens": 0, "echo": True, "logprobs": 0}
        told = self.send("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
        return sum(told[len(told) - len(answer):])


def messages_of(documents, question, left_out=None):
    """The conversation. Documents keep their names when one is left out."""
    parts = [
        {"type": "text", "text": document["text"] + "\n\n", "span": f"document {i}"}
        for i, document in enumerate(documents, 1) if i != left_out
    ]
    parts.append({"type": "text", "text": question, "span": "question"})
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": parts}]


def number(label):
    return int(label.removeprefix("document "))


def first_by_score(entries):
    return number(next(entry for entry in entries if entry["rank"] == 1)["label"])


def first_by_mass(told, row):
    """The document with most mass, as the mean over layers and heads."""
    at = told["rows"].index(row)
    masses = {
        number(span["label"]): sum(layer[at][i] for layer in told["mass"])
        for i, span in enumerate(told["spans"]) if span["label"].startswith("document ")
    }
    return max(masses, key=masses.get)


def measure(server, data, heads):
    """Each question's answer and the documents that the measures name."""
    rows = []
    for asked in data["questions"]:
        messages = messages_of(data["documents"], asked["question"])
        text, told = server.answer(messages, {"rows": ["question", "answer"], "token_ids": True})
        named = {f"mean mass, {row}": first_by_mass(told, row) for row in ("question", "answer")}
        if heads != "none":
            _, scored = server.answer(messages, {"score": {"heads": heads}})
            heads_used = scored["score"]["heads"]
            for row in ("question", "answer"):
                named[f"score, {row}"] = first_by_score(scored["score"][row])
        else:
            heads_used = None
        right = any(word.lower() in text.lower() for word in asked["answer"])
        rows.append(asked | {"said": text, "tokens": told["token_ids"], "right": right, "named": named, "heads": heads_used})
        print(f"{asked['question']} {text!r}{'' if right else ' (wrong)'} {named}", file=sys.stderr, flush=True)
    return rows


def leave_out(server, data, rows, path):
    """What each document's absence costs each answer, in nats. A document is left out for all questions, one after the other; what
    was found is kept in the file after each."""
    kept = json.loads(path.read_text()) if path and path.exists() else {}
    documents = data["documents"]

    def ask(row, left_out):
        messages = messages_of(documents, row["question"], left_out)
        return server.log_p(messages, row["tokens"]) if row["tokens"] else 0.0

    def key(row, left_out):
        return json.dumps([server.model, row["question"], row["tokens"], left_out])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for left_out in [None, *range(1, len(documents) + 1)]:
            missing = [row for row in rows if key(row, left_out) not in kept]
            print(f"without document {left_out or '(none)'}: {len(missing)} answers", file=sys.stderr, flush=True)
            found = pool.map(ask, missing, [left_out] * len(missing))
            kept |= {key(row, left_out): log_p for row, log_p in zip(missing, found)}
            if path:
                path.write_text(json.dumps(kept, indent=1))
    return [[kept[key(row, None)] - kept[key(row, d)] for d in range(1, len(documents) + 1)] for row in rows]


def wilson(hits, n):
    """The share and its 95% interval."""
    if n == 0:
        return "-"
    z, p = 1.959964, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    return f"{hits}/{n} {p:.2f} [{low:.2f}, {high:.2f}]"


def table(rows, drops, documents):
    """How often measures agree with leaving out, and how often each names the document that holds the right answer."""
    needed = [1 + max(range(documents), key=drop.__getitem__) for drop in drops]
    groups = {
        "all": rows, "updates": [row for row in rows if row["outdated"]], "others": [row for row in rows if not row["outdated"]],
    }
    place = {id(row): i for i, row in enumerate(rows)}

    def line(name, hit):
        return f"| {name} | " + " | ".join(wilson(sum(map(hit, group)), len(group)) for group in groups.values()) + " |"

    head = "| " + " | ".join(["{}", *(f"{name} ({len(group)})" for name, group in groups.items())]) + " |\n|" + " --- |" * 4
    chance = "| chance | " + " | ".join([f"{1 / documents:.2f}"] * 3) + " |"
    measures = [name for name in MEASURES if name in rows[0]["named"]]
    lines = [head.format("the first document is the one that leaving out names")]
    lines += [line(name, lambda row: row["named"][name] == needed[place[id(row)]]) for name in measures]
    lines += [chance, "", head.format("the first document is the one with the right answer")]
    lines += [line("leaving out", lambda row: needed[place[id(row)]] == row["document"])]
    lines += [line(name, lambda row: row["named"][name] == row["document"]) for name in measures]
    lines += [chance, line("the model's answer is right", lambda row: row["right"])]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--set", default="test", help="test, development, or a file of that form")
    parser.add_argument("--heads", default="retrieval", help="the heads of the score; none to leave the score out")
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of an answer")
    parser.add_argument("--limit", type=int, help="the first questions alone")
    parser.add_argument("--drops", type=Path, help="JSON file that keeps the log-probabilities of leaving out")
    arguments = parser.parse_args()
    path = SETS / f"{arguments.set}.json"
    data = json.loads((path if path.exists() else Path(arguments.set)).read_text())
    data["questions"] = data["questions"][: arguments.limit]
    heads = json.loads(arguments.heads) if arguments.heads.startswith("[") else arguments.heads

    server = Server(arguments.url, arguments.tokens)
    rows = measure(server, data, heads)
    drops = leave_out(server, data, rows, arguments.drops)
    print(f"{server.model}, {len(data['documents'])} documents, heads of the score: {arguments.heads}\n")
    print(table(rows, drops, len(data["documents"])))


if __name__ == "__main__":
    main()
