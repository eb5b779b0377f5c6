"""The compile time of every unit of a `cargo build --timings` as CSV, longest first.

    cargo build --release --timings && python3 scripts/unit_times.py target/cargo-timings/cargo-timing.html > units.csv

Seconds are of the wall clock, of a unit beside whatever else is compiled.
"""

import csv
import json
import re
import sys


def units(page):
    """Those of a page of cargo's, longest first."""
    found = re.search(r"UNIT_DATA = (\[.*?\]);", page, re.S)
    if not found:
        sys.exit("the page has no UNIT_DATA: is it of `cargo build --timings`?")
    return sorted(json.loads(found.group(1)), key=lambda unit: -unit["duration"])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        found = units(file.read())
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["crate", "version", "target", "start_seconds", "seconds"])
    for unit in found:
        out.writerow([unit["name"], unit["version"], unit["target"].strip() or "lib", unit["start"], unit["duration"]])


main()
