#!/usr/bin/env python3
"""Measures palimpsest and its peers in turn, each run in a process of its own, into benches/runs/<date>-<machine>/.

    cargo build --release
    python3 -m venv peers && peers/bin/pip install -r tests/reference/requirements.txt   # llama-cpp-python: see there
    python3 scripts/peers/measure.py --python peers/bin/python --python attnread/bin/python ... --work /somewhere/with/2/GB

benches/README.md has the environments of all peers. Started again, it goes on where it was. `--list` shows what is measured and
how long it takes, `--only decode` measures one row's two sides, `--rehearse` runs everything once on tiny lengths and keeps nothing.
"""
import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date, datetime, timezone
from pathlib import Path

import table
from plan import HERE, MEASUREMENTS, ROWS, ROWS_OF_FEWER_BITS, Measurement, Place
from table import ROOT, RUNS

ALL_ROWS = [*ROWS, *ROWS_OF_FEWER_BITS]

# A run that takes longer than this is repeated only LONG_REPETITIONS times.
LONG_SECONDS, LONG_REPETITIONS = 60, 3

# What the peers' environment must hold for each tool.
PEERS = {
    "torch": ("torch",),
    "transformers": ("transformers", "torch", "gguf"),
    "llama.cpp": ("llama-cpp-python", "gguf"),
    "attnread": ("attnread", "transformers", "torch", "gguf"),
    "keys_values": ("keys-vals", "transformers", "torch", "gguf"),
}

# Processor time of others, as a part of a run's time, that is warned of.
DISTURBED = 0.05

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile", "neon", "asimd")


class Failed(Exception):
    """Something that cannot go on, with its remedy."""


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = arguments()
    chosen = selection(args.only)
    try:
        if args.list:
            return show_list(chosen, args)
        with tempfile.TemporaryDirectory(prefix="rehearsal-", dir=args.work) as rehearsal:
            folder = Path(rehearsal) if args.rehearse else args.out or RUNS / f"{date.today()}-{slug(cpu())}"
            measure(chosen, folder, args)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from here")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="a row or a regular expression on measurements")
    parser.add_argument("--repetitions", type=int, default=5, help="runs of a measurement; at most 3 of those over a minute")
    parser.add_argument("--python", type=Path, action="append", default=[],
                        help="a Python that has peers (benches/README.md says which); repeat it where one cannot have all")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/palimpsest")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "palimpsest-peers",
                        help="folder for token files and requantised weights, kept between calls")
    parser.add_argument("--out", type=Path, help="the run folder [default: benches/runs/<date>-<machine>]")
    parser.add_argument("--list", action="store_true", help="print rows, measurements and minutes; measure nothing")
    parser.add_argument("--rehearse", action="store_true", help="one run of each on tiny lengths; nothing is kept")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error(f"--repetitions {args.repetitions} measures nothing; give at least 1")
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def selection(only) -> list[Measurement]:
    """The measurements of the rows, or with the names, that were asked for."""
    if not only:
        return MEASUREMENTS
    wanted = set()
    for name in only:
        of_rows = {need for row in ALL_ROWS if row.name == name for need in row.ours.needs + row.theirs.needs}
        found = of_rows or {m.name for m in MEASUREMENTS if re.search(name, m.name)}
        if not found:
            names = ", ".join(dict.fromkeys(row.name for row in ALL_ROWS))
            sys.exit(f"error: --only {name} is no row ({names}) and matches no measurement; see --list")
        wanted |= found
    return [m for m in MEASUREMENTS if m.name in wanted]


def needed(measurement: Measurement, seconds: float, repetitions: int) -> int:
    """How many runs a measurement gets whose run takes so long."""
    most = min(repetitions, measurement.most)
    return min(most, LONG_REPETITIONS) if seconds > LONG_SECONDS else most


def show_list(chosen, args):
    """Rows with what they need; measurements with runs and minutes."""
    for name in dict.fromkeys(row.name for row in ALL_ROWS):
        needs = dict.fromkeys(n for r in ALL_ROWS if r.name == name for n in r.ours.needs + r.theirs.needs)
        print(f"{name:12} {', '.join(needs)}")
    print()
    total = 0
    for m in chosen:
        runs = needed(m, m.estimate, args.repetitions)
        total += runs * m.estimate
        print(f"{m.name:22} {m.tool:13} {runs} runs of about {m.estimate:.0f} s")
    print(f"about {total / 60:.0f} minutes on two quiet cores with AVX-512")


def measure(chosen, folder: Path, args):
    place, versions = prepare(chosen, args)
    folder.mkdir(parents=True, exist_ok=True)
    write_machine(folder, versions)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the machine is busy (load {load:.1f}); figures want a quiet one", file=sys.stderr)
    failures = []
    repetitions = 1 if args.rehearse else args.repetitions
    for group in dict.fromkeys(m.group for m in chosen):
        members = [m for m in chosen if m.group == group]
        for repetition in range(repetitions):
            for m in members:
                runs = [r for r in table.read_runs(folder)
                        if r["measurement"] == m.name and r["version"] == versions[m.tool]]
                typical = statistics.median(r["wall_seconds"] for r in runs) if runs else 0
                if m.name in failures or len(runs) > repetition or len(runs) >= needed(m, typical, repetitions):
                    continue
                try:
                    result = run_once(m, place, args.work)
                except Failed as failed:
                    failures.append(m.name)
                    print(f"{m.name}: {failed}", file=sys.stderr)
                    continue
                row = {
                    "measurement": m.name, "tool": m.tool, "version": versions[m.tool], "model": m.model,
                    "tokens": place.length(m.tokens), "repetition": len(runs) + 1, **result,
                }
                with open(folder / "runs.jsonl", "a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{m.name} {len(runs) + 1}: {said(row)}", flush=True)
    table.write(folder)
    if failures:
        raise Failed(f"not measured: {', '.join(failures)} (see above); the same command tries them again")
    if args.rehearse:
        print("the rehearsal went through; lengths were tiny, so its figures mean nothing")
        return
    print((folder / "table.md").read_text())
    if folder.parent == RUNS:
        print("next: python3 scripts/peers/table.py writes this table into benches/speed.md")


def said(row: dict) -> str:
    """A run's figures in a line."""
    figures = [f"{row['wall_seconds']:.1f} s", f"{row['peak_bytes'] / 1e9:.2f} GB"]
    for key, unit in (("tokens_per_second", "tok/s"), ("decode_tokens_per_second", "tok/s decoding")):
        figures += [f"{row[key]:.1f} {unit}"] if row.get(key) else []
    return ", ".join(figures)


def run_once(m: Measurement, place: Place, work: Path) -> dict:
    """One run in a process of its own: its time, its peak memory, and what it measured itself."""
    out = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    try:
        argv = [str(part) for part in m.command(place, out)]
        # The bench leaves its figures where it is told to.
        env = os.environ | {"CRITERION_HOME": str(out / "criterion")}
        load, busy, began = os.getloadavg()[0], busy_seconds(), datetime.now(timezone.utc)
        with open(out / "stdout", "wb") as stdout, open(out / "stderr", "wb") as stderr:
            start = time.perf_counter()
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env)
            try:
                # Unlike subprocess's own wait, this one tells what the child used.
                _, status, usage = os.wait4(child.pid, 0)
            except BaseException:
                child.kill()
                raise
            wall = time.perf_counter() - start
        others = max(0.0, busy_seconds() - busy - usage.ru_utime - usage.ru_stime)
        if others > DISTURBED * wall:
            print(f"warning: {m.name}: other processes took {others:.1f} s of processor time; the machine is not quiet",
                  file=sys.stderr)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            tail = (out / "stderr").read_text(errors="replace").strip().splitlines()[-15:]
            reason = "out of memory, or ended by someone" if child.returncode == -9 else f"exit code {child.returncode}"
            raise Failed(f"failed ({reason}) in: {' '.join(argv)}\n  " + "\n  ".join(tail))
        try:
            measured = m.read((out / "stdout").read_text(), out)
        except (OSError, KeyError, ValueError, IndexError) as error:
            raise Failed(f"its result cannot be read ({error!r}); is --binary built from this tree? {' '.join(argv)}")
        if "prefill_seconds" in measured and m.tokens:
            tokens = measured.get("tokens_read", place.length(m.tokens))
            measured["tokens_per_second"] = tokens / measured["prefill_seconds"]
        in_bytes = 1 if sys.platform == "darwin" else 1024
        return {
            "began": began.isoformat(timespec="seconds"), "load_before": round(load, 2),
            "others_seconds": round(others, 2), "wall_seconds": wall, "user_seconds": usage.ru_utime,
            "system_seconds": usage.ru_stime, "peak_bytes": usage.ru_maxrss * in_bytes,
            **measured,
        }
    finally:
        shutil.rmtree(out)


def prepare(chosen, args) -> tuple[Place, dict]:
    """What the chosen measurements need, made where it is missing, and the version of each tool."""
    tools = {m.tool for m in chosen}
    binary = args.binary.resolve()
    if not binary.is_file():
        raise Failed(f"{binary} is not there; build it with `cargo build --release`, or name another with --binary")
    place = Place(args.work.resolve(), binary, None, args.rehearse)
    versions = {}
    if "palimpsest" in tools:
        versions["palimpsest"] = f"{output([binary, '--version']).strip()}, binary {digest(binary)}"
    if "kernels" in tools:
        place.bench = built_bench()
        versions["kernels"] = f"bench {digest(place.bench)}"
    environments = [(python.absolute(), installed(python)) for python in args.python]
    for tool in sorted(tools & PEERS.keys()):
        having = [(python, peers) for python, peers in environments if not set(PEERS[tool]) - peers.keys()]
        if not having:
            raise Failed(f"no --python has {', '.join(PEERS[tool])} for {tool}; benches/README.md says how to install them; or choose "
                         "rows without them with --only")
        place.pythons[tool], peers = having[0]
        # gguf reads the file, and counts for nothing in the speed.
        versions[tool] = ", ".join(f"{name} {peers[name]}" for name in PEERS[tool] if name != "gguf")
    for model in {m.model for m in chosen if m.model}:
        # `pull` fetches what is not there, verifies it, and says where it is.
        place.ggufs[model] = Path(output([binary, "model", "pull", model]).rsplit("verified: ", 1)[1].strip())
    for m in chosen:
        if m.form and not place.gguf(m.model, m.form).exists():
            print(f"requantising {m.model} to {m.form}", flush=True)
            output([place.pythons[m.tool], HERE / "requantise.py", place.gguf(m.model), place.gguf(m.model, m.form), m.form])
    return place, versions


def installed(python: Path) -> dict[str, str]:
    """The packages of a Python, with their versions."""
    code = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    # Not resolved: a virtual environment's python is a link out of it.
    found = json.loads(output([python.absolute(), "-c", code]))
    return {name.lower().replace("_", "-"): version for name, version in found.items()}


def busy_seconds() -> float:
    """Processor time that all processes and, on a shared host, other guests have taken since the start (Linux; else 0)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def output(argv) -> str:
    """What a command prints."""
    try:
        done = subprocess.run([str(part) for part in argv], capture_output=True, text=True)
    except OSError as error:
        raise Failed(f"{argv[0]} does not run: {error}")
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, argv))} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def built_bench() -> Path:
    """The bench of the kernels, compiled."""
    print("building the bench of the kernels", flush=True)
    built = output(["cargo", "bench", "--manifest-path", ROOT / "Cargo.toml", "--bench", "kernels", "--no-run",
                    "--message-format", "json"])
    messages = [json.loads(line) for line in built.splitlines()]
    return next(Path(m["executable"]) for m in messages if m.get("target", {}).get("name") == "kernels")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def cpu() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        return re.search(r"model name\s*:\s*(.+)", text).group(1)
    except (OSError, AttributeError):
        return platform.processor() or platform.machine()


def slug(name: str) -> str:
    """`AMD EPYC` on two cores: amd-epyc-2c."""
    plain = re.sub(r"\((R|TM)\)|CPU|Processor|@.*", " ", name, flags=re.IGNORECASE)
    return "-".join(re.findall(r"[a-z0-9]+", plain.lower())) + f"-{os.cpu_count()}c"


def write_machine(folder: Path, versions: dict):
    """machine.json: nothing that names this computer or its folders. Another machine's folder is refused."""
    path = folder / "machine.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
        system = re.search(r'PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text()).group(1)
    except (OSError, AttributeError):
        flags, system = set(), platform.system()
    git = ["git", "-C", ROOT]
    now = {
        "date": str(date.today()),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}, {system}",
        "rustc": output(["rustc", "--version"]).strip(),
        "commit": output([*git, "rev-parse", "HEAD"]).strip(),
        "uncommitted_changes": bool(output([*git, "status", "--porcelain", "--", "src", "Cargo.toml", "Cargo.lock"]).strip()),
    }
    for key in ("cpu", "cores", "memory_bytes"):
        if before and before[key] != now[key]:
            raise Failed(f"{folder} was measured with {key} {before[key]}, this is {now[key]}; name another folder with --out")
    peers = {k: v for k, v in versions.items() if k not in ("palimpsest", "kernels")}
    now["versions"] = before.get("versions", {}) | peers
    path.write_text(json.dumps(before | now, indent=2) + "\n")


if __name__ == "__main__":
    main()
