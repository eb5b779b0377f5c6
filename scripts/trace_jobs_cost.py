#!/usr/bin/env python3
"""Seconds of `trace --jobs` against a call of `trace` for each job: 30 variants of a conversation, 4 passes over each.

    python3 scripts/trace_jobs_cost.py --palimpsest target/release/palimpsest --model smollm2-135m

The variants tell the same twelve days and differ in a sentence near the end and the question; the passes are one as it is and one with
each of three parts hidden from the question. The files of both ways must be equal byte by byte (on the CPU in f32).
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

DAYS = [
    f"On day {day} it rained until noon. We repaired the fence behind the barn, counted the sheep twice, and wrote down {100 + 7 * day} of "
    f"them. In the evening Ana read aloud from the book about the lighthouse, and nobody wanted to go to bed before the chapter ended. "
    for day in range(1, 13)
]
NAMES = ["Ana", "Ben", "Chloe", "Dan", "Eve", "Finn", "Gil", "Hana", "Ivo", "June"]
OLD = "The market is on Thursday. "


def variant(name, day):
    new = f"{name} said that from May on the market is on {day}. "
    question = f"{name} asks: when is the market in June? It is on"
    return "".join(DAYS) + OLD + new + question, {"old": OLD, "new": new, "days": "".join(DAYS), "question": question}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--palimpsest", default="target/release/palimpsest")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--singles", type=int, default=120, help="single calls that are made; the rest is reckoned")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        jobs = []
        for name in NAMES:
            for day in ["Monday", "Saturday", "Sunday"]:
                text, spans = variant(name, day)
                for hidden in [None, "old", "new", "days"]:
                    job = {"text": text, "spans": spans, "rows": ["question", "last"], "out": str(folder / f"{len(jobs)}.jobs")}
                    if hidden:
                        job["knockouts"] = [f"question->{hidden}"]
                    jobs.append(job)
        (folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)))
        call = [args.palimpsest, "trace", "--model", args.model]
        begun = time.monotonic()
        print(subprocess.run([*call, "--jobs", folder / "jobs.jsonl", "--out", folder / "rows.jsonl"], check=True, text=True, capture_output=True).stdout.strip())
        together = time.monotonic() - begun
        begun, differ = time.monotonic(), 0
        for i, job in enumerate(jobs[: args.singles]):
            (folder / "text.txt").write_text(job["text"])
            (folder / "spans.json").write_text(json.dumps(job["spans"]))
            single = [*call, "--text", folder / "text.txt", "--spans", folder / "spans.json", "--rows", "question,last"]
            single += [word for path in job.get("knockouts", []) for word in ("--knockout", path)]
            subprocess.run([*single, "--out", folder / "single"], check=True, capture_output=True)
            differ += (folder / "single").read_bytes() != Path(job["out"]).read_bytes()
        apart = (time.monotonic() - begun) * len(jobs) / args.singles
        tokens = [json.loads(line)["tokens"] for line in (folder / "rows.jsonl").read_text().splitlines()]
        print(f"{len(jobs)} jobs of {min(tokens)} to {max(tokens)} tokens: {together:.1f} s together, {apart:.1f} s one by one; {differ} files differ")


main()
