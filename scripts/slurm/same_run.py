#!/usr/bin/env python3
"""Compares run folders with the first, byte by byte: same_run.py SINGLE OTHER ...

Rows of answers are compared sorted: they may have ended in another order.
"""

import sys
from pathlib import Path


def files(folder, pattern):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob(pattern) if path.is_file()}


def rows(folder):
    return sorted((folder / "answers.jsonl").read_bytes().splitlines())


single, *others = map(Path, sys.argv[1:])
wrong = []
for other in others:
    if rows(single) != rows(other):
        wrong.append(f"{other}: answers differ")
    for pattern in ("attention/*", "cases/*", "plan.jsonl"):
        ours, theirs = files(single, pattern), files(other, pattern)
        if ours.keys() != theirs.keys():
            wrong.append(f"{other}: other files in {pattern}: {sorted(ours.keys() ^ theirs.keys())[:4]}")
        wrong += [f"{other}: {name} differs" for name in ours if name in theirs and ours[name] != theirs[name]]
    print(f"{other}: {len(rows(other))} answers, {len(files(other, 'attention/*'))} attention files, compared with {single}")
print("\n".join(wrong) if wrong else "all the same")
sys.exit(bool(wrong))
