"""Run folders for the page: made by the binary with tiny models, then changed where a test needs what no model says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
MODEL = FIXTURES / "llama-tiny"
BINARY = Path(os.environ.get("PALIMPSEST", ROOT / "target" / "release" / "palimpsest"))
BENCHMARKS = {"subtlememory": [], "knowme": [], "memrewardbench": ["--context", "8192"], "dose": []}


def palimpsest(*words: object) -> str:
    """Runs the command; its output, or the words in which it failed."""
    done = subprocess.run([str(BINARY), *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"palimpsest {' '.join(map(str, words))}: {done.stderr[-2000:]}"
    return done.stdout


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def put(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def stale(out: Path) -> Path:
    """Two cases of the sample (five sessions, of which one is dropped) under two conditions, judged so that every second answer is wrong, with causes of every kind."""
    palimpsest("run", "--data", "sample", "--limit", 2, "--sessions", 5, "--model", MODEL, "--context", 4096, "--max-new-tokens", 6, "--conditions", "full,evidence", "--out", out)
    palimpsest("judge", out, "--judge", f"local:{MODEL}", "--reasons", "none")
    verdicts = lines(out / "verdicts.jsonl")
    for place, row in enumerate(verdicts):
        row["correct"] = place % 3 == 1
        row["reason"] = f"Reason {place}: the response keeps to the earlier state."
    put(out / "verdicts.jsonl", verdicts)
    palimpsest("causes", out, "--model", MODEL, "--controls", 3)
    palimpsest("causes", out, "--model", MODEL, "--controls", 0, "--windows", 2)
    palimpsest("causes", out, "--model", MODEL, "--total", "--sessions", "evidence")
    palimpsest("why", out, "--model", MODEL, "--controls", 5)
    return out


def windowed(out: Path) -> Path:
    """An answer of a model with sliding windows, with what they left out, and the effects of sessions forced into them."""
    model = FIXTURES / "gemma3-tiny"
    palimpsest("run", "--data", "sample", "--limit", 1, "--only", "SR", "--sessions", 4, "--model", model, "--context", 8192, "--max-new-tokens", 6, "--selected", "--out", out)
    palimpsest("causes", out, "--model", model, "--force")
    return out


def unable(of: Path, out: Path) -> Path:
    """The same verdicts and labels, by a judge that is too small to judge."""
    shutil.copytree(of, out)
    for name in ["verdicts.jsonl", "rubrics.jsonl", "why.jsonl"]:
        path = out / name
        path.write_text(path.read_text().replace(f"local:{MODEL.name}", "local:tiny-135m"))
    return out


def benchmark(name: str, out: Path) -> Path:
    """A few answers to the built-in sample of a benchmark."""
    extra = BENCHMARKS[name]
    context = [] if "--context" in extra else ["--context", 4096]
    palimpsest("run", "--data", f"sample:{name}", "--limit", 2, "--limit-probes", 4, "--model", MODEL, "--max-new-tokens", 6, *context, *extra, "--out", out)
    if name == "dose":
        palimpsest("judge", out)
        palimpsest("causes", out, "--contrast", "--controls", 3, "--model", MODEL)
        palimpsest("why", out, "--model", MODEL)
    return out


def memory(out: Path) -> Path:
    """The same cases through a memory system that keeps every turn and finds the nearest."""
    adapter = f"plain={sys.executable} {ROOT / 'adapters' / 'plain.py'}"
    palimpsest("run", "--data", "sample", "--limit", 2, "--sessions", 5, "--only", "SR", "--memory", adapter, "--conditions", "none", "--model", MODEL, "--context", 4096, "--max-new-tokens", 6, "--out", out)
    return out


def old(out: Path) -> Path:
    """The folder that version 0.1.0 made."""
    return Path(shutil.copytree(FIXTURES / "run-0.1.0" / "run", out))


HOSTILE = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>\"'`${window.pwned = 3} <b>bold</b> \u202e\u0000 &lt;"


def hostile(of: Path, out: Path) -> Path:
    """Sessions, answers, questions and reasons that are markup, or would be if they were taken for it."""
    shutil.copytree(of, out)
    for path in (out / "cases").iterdir():
        case = json.loads(path.read_text())
        for session in case["sessions"]:
            for turn in session["turns"]:
                turn["content"] = HOSTILE + turn["content"]
        path.write_text(json.dumps(case))
    answers = lines(out / "answers.jsonl")
    for row in answers:
        row["answer"] = HOSTILE + row.get("answer", "")
    put(out / "answers.jsonl", answers)
    verdicts = lines(out / "verdicts.jsonl")
    for row in verdicts:
        row["reason"] = HOSTILE
    put(out / "verdicts.jsonl", verdicts)
    return out


def growing(of: Path, out: Path) -> tuple[Path, list[str]]:
    """The same run with half of its answers, and the lines of the others, to be appended."""
    shutil.copytree(of, out)
    path = out / "answers.jsonl"
    written = path.read_text().splitlines(keepends=True)
    half = len(written) // 2
    path.write_text("".join(written[:half]))
    for name in ["verdicts.jsonl", "causes.jsonl"]:
        (out / name).unlink(missing_ok=True)
    return out, written[half:]


def large(of: Path, out: Path, answers: int = 10_000) -> Path:
    """The plan, answers and verdicts of one case, again and again under other names; without attention files."""
    out.mkdir()
    shutil.copytree(of / "cases", out / "cases")
    shutil.copy(of / "run.json", out)
    plan, given, verdicts = (lines(of / name) for name in ["plan.jsonl", "answers.jsonl", "verdicts.jsonl"])
    each = len([row for row in given if row["case"] == plan[0]["case"]])
    tables: dict[str, list[dict]] = {"plan.jsonl": [], "answers.jsonl": [], "verdicts.jsonl": []}
    for place in range(-(-answers // each)):
        of_case = plan[place % len(plan)]
        name = f"{of_case['case']}-{place:05d}"
        tables["plan.jsonl"].append({**of_case, "position": place, "case": name})
        for key, rows in [("answers.jsonl", given), ("verdicts.jsonl", verdicts)]:
            for row in rows:
                if row["case"] == of_case["case"]:
                    copy = {**row, "case": name}
                    copy.pop("attention", None)
                    if "correct" in copy:
                        copy["correct"] = (place + len(copy["probe"])) % 3 == 0
                    tables[key].append(copy)
    for key, rows in tables.items():
        put(out / key, rows)
    return out
