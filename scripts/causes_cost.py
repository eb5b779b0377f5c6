#!/usr/bin/env python3
"""What `palimpsest causes` costs beside a prefill: one question of the built-in sample over 50 sessions, at several lengths.

  causes_cost.py PALIMPSEST [--model NAME] [--context 8192 32768] [--sessions 50]

Runs one question of the sample cut to each length, then `causes` on it, and prints seconds and tokens of the history, of the
readings (each session and its control), and their ratio. Nothing is kept. Timings mean something on a quiet machine only.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def ran(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr}")
    return done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("palimpsest")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--new", type=int, default=32, help="most tokens of the answer")
    args = parser.parse_args()
    print(f"{'context':>8} {'history':>16} {'readings':>16} {'ratio':>6}")
    for context in args.context:
        with tempfile.TemporaryDirectory() as scratch:
            out = str(Path(scratch) / "run")
            ran([args.palimpsest, "run", "--data", "sample", "--sessions", str(args.sessions), "--limit-probes", "1", "--model",
                 args.model, "--context", str(context), "--allow-longer", "--max-new-tokens", str(args.new), "--out", out])
            said = ran([args.palimpsest, "causes", out, "--model", args.model])
        of = {what: (int(tokens), float(seconds)) for what, tokens, seconds in
              re.findall(r"(histories|readings) ?[^:\n]*: (\d+) tokens in ([\d.]+) s", said)}
        (history, first), (readings, then) = of["histories"], of["readings"]
        print(f"{context:>8} {history:>7} {first:>6.1f} s {readings:>7} {then:>6.1f} s {then / first:>6.2f}")


if __name__ == "__main__":
    main()
