#!/usr/bin/env python3
"""The table of a run folder (default: the latest of each kind), as table.md there, and in benches/speed.md between its markers: one
of everything in f32, and one of fewer bits, whose folder's name ends with -bf16.

usage: table.py [FOLDER]     FOLDER: one of benches/runs/
"""
import json
import statistics
import sys
from pathlib import Path

from plan import FEWER_BITS, HERE, ROWS, ROWS_OF_FEWER_BITS, Missing

ROOT = HERE.parent.parent
RUNS = ROOT / "benches" / "runs"
SPEED, BITS = "speed", "fewer bits"  # markers of benches/speed.md


def is_of_fewer_bits(folder: Path) -> bool:
    return folder.name.endswith(FEWER_BITS)


def read_runs(folder: Path) -> list[dict]:
    path = folder / "runs.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def that_count(runs: list[dict], measurement: str) -> list[dict]:
    """The runs of a measurement's latest version: earlier ones are kept in the file and not counted."""
    of = [run for run in runs if run["measurement"] == measurement]
    return [run for run in of if run["version"] == of[-1]["version"]]


def medians(runs: list[dict]):
    """A function (measurement, key...) -> median."""

    def of(measurement, *key):
        values = []
        for run in that_count(runs, measurement):
            value = run
            for part in key:
                value = value[part]
            values.append(value)
        if not values:
            raise Missing(measurement)
        return statistics.median(values)

    return of


def show(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e9:.2f} GB"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def line(row, of) -> list[str]:
    bound = f"{row.sense} {row.target:.2f}" if row.sense else ""
    try:
        ours, theirs = row.ours.value(of), row.theirs.value(of)
    except Missing as missing:
        return [row.what, row.against, "", "", f"not measured ({missing})", bound, ""]
    ratio = ours / theirs
    shown = f"{ratio:.2f}"
    reached = ""
    if row.sense:
        holds = {"at least": lambda x: x >= row.target, "at most": lambda x: x <= row.target}[row.sense]
        reached = "yes" if holds(ratio) else "**no**"
        # Rounding moves no ratio across its bound.
        shown = shown if holds(float(shown)) == holds(ratio) else f"{ratio:.4f}"
    return [row.what, row.against, show(ours, row.unit), show(theirs, row.unit), shown, bound, reached]


def make(folder: Path) -> str:
    """The table, and what it was measured with."""
    runs = read_runs(folder)
    of = medians(runs)
    machine = json.loads((folder / "machine.json").read_text())
    head = ["what", "against", "palimpsest", "the other", "ratio", "to reach", "reached"]
    table = [head, ["---"] * len(head), *(line(row, of) for row in (ROWS_OF_FEWER_BITS if is_of_fewer_bits(folder) else ROWS))]
    counts = sorted({len(that_count(runs, run["measurement"])) for run in runs})
    vector = "AVX-512" if "avx512f" in machine["flags"] else "AVX2" if "avx2" in machine["flags"] else "no AVX2"
    versions = ", ".join(dict.fromkeys(", ".join(machine["versions"].values()).split(", ")))
    text = "".join("| " + " | ".join(cells) + " |\n" for cells in table)
    text += (
        f"\nMeasured on {machine['date']} on {machine['cores']} cores of {machine['cpu']} ({vector}), each tool in turn, medians of "
        f"{' or '.join(map(str, counts)) or 'no'} runs; SmolLM2-135M Q4_1 unless said; {versions}. "
        f"Every single run: [benches/runs/{folder.name}](../benches/runs/{folder.name}).\n"
    )
    return text


def write(folder: Path):
    """table.md, and the machine's peak into machine.json."""
    (folder / "table.md").write_text(make(folder))
    machine = json.loads((folder / "machine.json").read_text())
    of = medians(read_runs(folder))
    for name, key in (("torch peak", ("gflops",)), ("kernels", ("gflops", "peak/2048 cubed"))):
        try:
            machine.setdefault("peak_f32_gflops", {})[name] = round(of(name, *key), 1)
        except Missing:
            pass
    (folder / "machine.json").write_text(json.dumps(machine, indent=2) + "\n")


def write_page(folder: Path):
    page = ROOT / "benches" / "speed.md"
    text = page.read_text()
    name = BITS if is_of_fewer_bits(folder) else SPEED
    begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
    if begin not in text or end not in text:
        sys.exit(f"benches/speed.md has no lines {begin.strip()} and {end}; put them where the table belongs")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    page.write_text(before + begin + (folder / "table.md").read_text() + end + after)


def main():
    folders = [Path(a) for a in sys.argv[1:]] or sorted(p for p in RUNS.glob("*") if (p / "runs.jsonl").exists())
    if not folders:
        sys.exit("benches/runs holds no run yet; make one with scripts/peers/measure.py")
    kinds = {is_of_fewer_bits(folder): folder.resolve() for folder in folders}
    for folder in kinds.values():
        write(folder)
        write_page(folder)
        print(f"wrote table.md of {folder.name} and benches/speed.md")


if __name__ == "__main__":
    main()
