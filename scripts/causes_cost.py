#!/usr/bin/env python3
"""What `palimpsest causes` costs beside a prefill: one question over a history of so many sessions, at several lengths.

  causes_cost.py PALIMPSEST [--model NAME] [--context 8192 32768] [--sessions 50] [--controls 12 0] [--rounds 1]

A case of the sample has its sessions cut, or continued with other sessions' turns, until the history has as many tokens. One
question of it is answered and `causes` run on that. Printed are seconds and tokens of the history and of the readings (each session,
and each stretch of the pool of controls), their ratio, the median over rounds, and what the ratio would be if readings ran at the prefill's
operations a second. Nothing is kept. Timings mean something on a quiet machine only.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def ran(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr}")
    return done.stderr


def resized(case: dict, words: int, spare: list[list[dict]]) -> dict:
    """The case with about so many words in each session."""
    sessions, others = [], 0
    for session in case["haystack_session"]:
        turns, left = [], words
        pool = list(session)
        while left > 0:
            if not pool:
                pool, others = list(spare[others % len(spare)]), others + 1
            turn = pool.pop(0)
            text = turn["content"].split()[:left]
            left -= len(text)
            turns.append({**turn, "content": " ".join(text)})
        sessions.append(turns)
    return {**case, "haystack_session": sessions}


def by_arithmetic(info: str, history: int, readings: int, each: float, said: int) -> float:
    """Operations of readings of `each` tokens over those of a prefill of `history`: products of layers and of attention, and of the
    output head for the `said` tokens whose probabilities a reading asks for, of a model without windows whose embedding is its output
    head, as `palimpsest model info` describes it."""
    def numbers(pattern: str) -> list[int]:
        return [int(n.replace(",", "")) for n in re.search(pattern, info, re.MULTILINE).groups()]
    (parameters,), (layers,) = numbers(r"^parameters .*\(([\d,]+)\)"), numbers(r"^layers +(\d+)")
    (hidden,), (vocabulary,) = numbers(r"^hidden size +([\d,]+)"), numbers(r"^vocabulary +([\d,]+)")
    heads, width = numbers(r"^heads +(\d+) query.* of (\d+)")
    products = 2 * (parameters - vocabulary * hidden)
    def attention(keys: float) -> float:
        return 4 * layers * heads * width * keys
    prefill = history * (products + attention(history / 2))
    reading = each * (products + attention(history + each / 2)) + said * 2 * vocabulary * hidden
    return readings * reading / prefill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("palimpsest")
    parser.add_argument("--model", default="smollm2-135m", help="one without windows and with a tied embedding")
    parser.add_argument("--context", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--controls", nargs="+", default=["12", "0"], help="stretches of the pool")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--new", type=int, default=32, help="most tokens of the answer")
    args = parser.parse_args()
    info = subprocess.run([args.palimpsest, "model", "info", args.model], capture_output=True, text=True, check=True).stdout
    print(f"{'history':>8} {'controls':>8} {'readings':>8} {'tokens':>7} {'prefill':>9} {'readings':>9} {'ratio':>6} {'arithmetic':>10}")
    with tempfile.TemporaryDirectory() as scratch:
        sample = Path(scratch) / "sample.json"
        ran([args.palimpsest, "data", "sample", "--sessions", str(args.sessions), "--out", str(sample)])
        cases = json.loads(sample.read_text())
        spare = [session for case in cases[1:] for session in case["haystack_session"]]
        for context in args.context:
            # Words to tokens: about 1.3 of English, and a few of each turn's frame.
            words = max(8, round(context / args.sessions / 1.4))
            data = Path(scratch) / f"{context}.json"
            data.write_text(json.dumps([resized(cases[0], words, spare)]))
            for controls in args.controls:
                found = []
                for at in range(args.rounds):
                    out = str(Path(scratch) / f"{context}-{controls}-{at}")
                    ran([args.palimpsest, "run", "--data", str(data), "--limit-probes", "1", "--model", args.model,
                         "--context", str(2 * context), "--allow-longer", "--max-new-tokens", str(args.new), "--out", out])
                    said = ran([args.palimpsest, "causes", out, "--model", args.model, "--controls", controls])
                    of = {what: (int(tokens), float(seconds)) for what, tokens, seconds in
                          re.findall(r"(histories|readings) ?[^:\n]*: (\d+) tokens in ([\d.]+) s", said)}
                    rows = [json.loads(line) for line in (Path(out) / "causes.jsonl").read_text().splitlines()]
                    count = sum(row.get("kind", "control") == "control" for row in rows)
                    said = rows[0]["answer_tokens"] + rows[0].get("thought_tokens", 0)
                    found.append((*of["histories"], *of["readings"], count, said))
                tokens, _, read, _, count, said = found[0]
                prefill, seconds = (statistics.median(row[i] for row in found) for i in (1, 3))
                ratio = statistics.median(row[3] / row[1] for row in found)
                bound = by_arithmetic(info, tokens, count, read / count, said)
                print(f"{tokens:>8} {controls:>8} {count:>8} {read:>7} {prefill:>7.1f} s {seconds:>7.1f} s {ratio:>6.2f} {bound:>10.2f}",
                      flush=True)


if __name__ == "__main__":
    main()
