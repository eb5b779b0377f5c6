#!/usr/bin/env python3
"""What `value_norm` and `output_norm` cost beside a prefill: `palimpsest trace` on made-up tokens, alone, with masses, and with norms.

  norms_cost.py PALIMPSEST [--model NAME] [--tokens 8192] [--rows 400] [--spans 50] [--rounds 3]

The rows are the last tokens; the spans divide what is before them. Printed are the seconds of the prefill that `trace` tells (medians over
rounds, taken in turn) and their ratios to the one without rows. Timings mean something on a quiet machine only.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = {"nothing": None, "mass": ["mass", "share"], "norms": ["value_norm", "output_norm"], "all": ["mass", "share", "value_norm", "output_norm"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("palimpsest")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--spans", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    before = args.tokens - args.rows
    edges = [before * i // args.spans for i in range(args.spans + 1)]
    spans = {f"s{i}": [edges[i], edges[i + 1]] for i in range(args.spans)}
    spans["rows"] = [before, args.tokens]
    tokens = [(i * 7919) % 40_000 + 100 for i in range(args.tokens)]
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.rounds):
            for name, measures in WAYS.items():
                given = {"tokens": tokens, "spans": spans, "rows": ["rows"] if measures else [], "logits": 1}
                if measures:
                    given["measures"] = measures
                file = Path(scratch) / "tokens.json"
                file.write_text(json.dumps(given))
                command = [args.palimpsest, "trace", "--allow-longer", "--model", args.model, "--tokens", str(file),
                           "--out", str(Path(scratch) / "out.safetensors")]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"error: {' '.join(command)}: {done.stderr}")
                told = re.search(r"tokens in ([\d.]+) s", done.stderr + done.stdout)
                if told is None:
                    sys.exit(f"error: no seconds in: {done.stderr}{done.stdout}")
                seconds[name].append(float(told.group(1)))
    plain = statistics.median(seconds["nothing"])
    for name, found in seconds.items():
        print(f"{name:>16} {statistics.median(found):>7.2f} s {statistics.median(found) / plain:>6.2f}   {found}")


if __name__ == "__main__":
    main()
