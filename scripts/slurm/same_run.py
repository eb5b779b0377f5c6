#!/usr/bin/env python3
"""Compares run folders with the first: same_run.py SINGLE OTHER ...

Attention files, plans and cases byte by byte; rows of answers without the times that they took and the number of their try.
"""

import json
import sys
from pathlib import Path

# Times, and what depends on which rows were read together.
LEFT_OUT = {"seconds", "prefill_seconds", "decode_seconds", "peak_resident_bytes", "started", "ended", "machine"}


def stripped(value):
    if isinstance(value, dict):
        return {key: stripped(one) for key, one in value.items() if key not in LEFT_OUT}
    return [stripped(one) for one in value] if isinstance(value, list) else value


def rows(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(json.dumps(stripped(row), sort_keys=True) for row in lines)


def files(folder, pattern):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob(pattern) if path.is_file()}


single, *others = map(Path, sys.argv[1:])
wrong = []
for other in others:
    if rows(single / "answers.jsonl") != rows(other / "answers.jsonl"):
        wrong.append(f"{other}: answers differ")
    for pattern in ("attention/*", "cases/*", "plan.jsonl"):
        ours, theirs = files(single, pattern), files(other, pattern)
        if ours.keys() != theirs.keys():
            wrong.append(f"{other}: other files in {pattern}: {sorted(ours.keys() ^ theirs.keys())[:4]}")
        wrong += [f"{other}: {name} differs" for name in ours if name in theirs and ours[name] != theirs[name]]
    count = len(rows(other / "answers.jsonl"))
    print(f"{other}: {count} answers, {len(files(other, 'attention/*'))} attention files, compared with {single}")
print("\n".join(wrong) if wrong else "all the same")
sys.exit(bool(wrong))
