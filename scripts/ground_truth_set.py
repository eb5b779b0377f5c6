#!/usr/bin/env python3
"""Makes the published set of exact effects and scores: histories, answers, effects, files and their data card.

    python3 scripts/ground_truth_set.py --out set                                       # everything: days on a laptop
    python3 scripts/ground_truth_set.py --out set --lengths 4096 smollm2-135m           # a part
    python3 scripts/ground_truth_set.py --out set --lengths 4096,32768 --device cuda smollm2-135m gemma3-270m

For each length in tokens: `dose` histories and histories of the STALE sample; for each model: a run, exact effects of hidden sessions with
their controls, for dose on the contrast too, and random subsets. All steps resume: the same command goes on after a stop, and more lengths
or models are added to what is there. Work lies in OUT/work; OUT itself has what is published: effects.jsonl.gz, scores.jsonl.gz (numbers
with 6 significant digits), ground-truth.csv computed from these files, the same in OUT/contrast, and README.md. Fails beyond 2 MB.
"""

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

MOST = 2_000_000
# Tokens beside the sessions: instructions, question, template.
BESIDE = 500
# Of a session of the STALE sample, with SmolLM2's tokenizer.
SESSION = 170
SUBSETS = 16
SPEC = """family = "slots"
items = {items}
seed = {seed}
orders = ["ab", "ba"]
[base]
depth_old = {quarter}
distance = {half}
tail = {quarter}
"""


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", default="4096,32768,150000", help="tokens, with commas")
    parser.add_argument("--items", type=int, help="dose items and STALE cases of each length (default: 8, 4 from 16K on, 2 from 64K on)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", default="palimpsest")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


class Maker:
    def __init__(self, args):
        self.args, self.work = args, args.out / "work"
        (self.work / "data").mkdir(parents=True, exist_ok=True)

    def do(self, *words):
        words = [self.args.program, *map(str, words)]
        print("+", " ".join(words), file=sys.stderr, flush=True)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def items(self, length):
        return self.args.items or (8 if length < 16384 else 4 if length < 65536 else 2)

    def data(self, kind, length):
        """A file or folder of histories, made at once or not at all."""
        place = self.work / "data" / f"{kind}-{length}-{self.items(length)}"
        place = place.with_suffix(".json") if kind == "stale" else place
        if place.exists():
            return place
        new = place.with_name(f"new-{place.name}")
        shutil.rmtree(new, ignore_errors=True)
        room = length - BESIDE
        if kind == "stale":
            self.do("data", "sample", "--sessions", max(room // SESSION, 2), "--seed", self.args.seed, "--out", new)
        else:
            spec = new.with_suffix(".toml")
            spec.write_text(SPEC.format(items=self.items(length), seed=self.args.seed, quarter=room // 4, half=room // 2))
            self.do("build", "dose", spec, "--out", new)
        return new.rename(place)

    def run(self, kind, length, model):
        dir = self.work / "runs" / f"{kind}-{length}-{Path(model).name}"
        on = ["--model", model, "--device", self.args.device]
        cases = ["--limit", self.items(length)] if kind == "stale" else []
        self.do(
            "run", "--data", self.data(kind, length), *cases, "--context", length, "--allow-longer", "--max-new-tokens", 32, "--out", dir, *on
        )
        self.do("causes", dir, *on)
        self.do("causes", dir, "--contextcite", SUBSETS, "--ablate", "block", *on)
        if kind == "dose":
            self.do("causes", dir, "--contrast", *on)
        return dir

    def publish(self, runs, out, more):
        """Files of all runs, rounded, and the table that follows from the rounded files."""
        exact, again = self.work / "exact", self.work / "again"
        self.do("ground-truth", *runs, *more, "--out", exact)
        out.mkdir(parents=True, exist_ok=True)
        for name in ("effects.jsonl", "scores.jsonl"):
            lines = (exact / name).read_text().splitlines()
            text = "".join(json.dumps(rounded(json.loads(line)), separators=(",", ":")) + "\n" for line in lines)
            (exact / name).write_text(text)
            # Without a time, so that the same numbers are the same bytes.
            (out / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        self.do("ground-truth", exact / "effects.jsonl", "--scores", exact / "scores.jsonl", *more, "--out", again)
        shutil.copy(again / "ground-truth.csv", out)
        return (exact / "effects.jsonl").read_text().splitlines()


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return {key: rounded(one) for key, one in value.items()} if isinstance(value, dict) else value


def card(args, runs, effects):
    rows = []
    for run in runs:
        answers = [answer for answer in effects if answer["run"] == run.name]
        sessions = [len(answer["sessions"]) for answer in answers]
        identity = json.loads((run / "run.json").read_text())["identity"]
        cells = [
            run.name, identity["model"]["name"], identity["model"]["digest"][:12], identity["context"]["tokens"], len(answers),
            f"{min(sessions)} to {max(sessions)}", identity["dataset"]["digest"][:12],
        ]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    version = subprocess.run([args.program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    files = sorted(path for path in args.out.rglob("*") if path.is_file() and args.out / "work" not in path.parents and path.name != "README.md")
    sums = [f"    {hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(args.out)}" for path in files]
    models = [Path(model).name for model in args.models]
    return f"""# Exact effects of sessions, and scores held against them

What each session of a long history does to a model's answer, measured by hiding the session and scoring the answer again, and the scores that
cheaper methods give to the same sessions. For those who test methods of attribution. No texts are in these files: spans, places, roles, numbers.

## How it was made

    python3 scripts/ground_truth_set.py --out OUT --lengths {args.lengths} --seed {args.seed} {" ".join(models)}

by {version}, on `--device {args.device}`. The histories follow from the seed (`palimpsest build dose`, `palimpsest data sample`); answers are greedy, of at
most 32 tokens. Context lengths beyond a model's own were allowed: SmolLM2 was trained on 8,192 tokens, Gemma 3 270M on 32,768, and beyond that
their answers are poor. What effects they have is measured all the same.

| run | model | digest | context | answers | sessions | digest of the data |
| --- | --- | --- | ---: | ---: | --- | --- |
{chr(10).join(rows)}

Lengths, models and data that are not in this table were not run.

## Files

- `effects.jsonl.gz`: a line an answer: `run`, `model`, `data`, `effects` (what was measured), `case`, `probe`, `condition`, `unit` (what intervals
  are over), `sessions` (`span`, `role`, `tokens` in the prompt, `effect` in nats per answer token, `control`: the effect of random text of its
  length), `subsets` (`sessions` that stayed, `logit` of the answer).
- `scores.jsonl.gz`: a line an answer and method: `method`, `readings` (forward passes), `fitted` (subsets it was fitted to), `scores` by span.
- `ground-truth.csv`: agreement by run, method and measure, computed from these two files.
- `contrast/`: the same for effects on the contrast of the current and the stale value, in nats, of the dose runs.

Definitions are in docs/ground-truth.md of palimpsest. Numbers have 6 significant digits. To hold a method of your own against the effects:

    gunzip -k effects.jsonl.gz
    palimpsest ground-truth effects.jsonl --scores mine.jsonl

## Licence

The histories are palimpsest's own, under its licence. Numbers of SmolLM2 come from an Apache-2.0 model, those of Gemma 3 from a model under the
Gemma Terms of Use.

## Checksums

{chr(10).join(sums)}
"""


def main():
    args = parsed()
    maker = Maker(args)
    for length in map(int, args.lengths.split(",")):
        for model in args.models:
            for kind in ("dose", "stale"):
                maker.run(kind, length, model)
    # Runs of former calls too.
    runs = sorted((maker.work / "runs").iterdir())
    effects = [json.loads(line) for line in maker.publish(runs, args.out, [])]
    maker.publish([run for run in runs if run.name.startswith("dose-")], args.out / "contrast", ["--contrast"])
    (args.out / "README.md").write_text(card(args, runs, effects))
    files = [path for path in args.out.rglob("*") if path.is_file() and args.out / "work" not in path.parents]
    size = sum(path.stat().st_size for path in files)
    print(f"{args.out}: {size / 1e6:.2f} MB in {len(files)} files, of {len(runs)} runs and {len(effects)} answers")
    if size > MOST:
        sys.exit(f"more than {MOST / 1e6:.0f} MB: take fewer --items, or fewer lengths")


if __name__ == "__main__":
    main()
