"""What scripts/rehearsal_table.py runs and compares: the program on cards or on the pretend device, and the numbers of its files."""
import array
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Half-precision positions whose logits point the same way as the reference's.
COSINE = 0.99


class Program:
    """The build under test, on the pretend device or, with `card`, on real ones."""

    def __init__(self, card, kernel, models, limit):
        self.card = card
        self.cards = cards() if card else 2
        self.ends = time.monotonic() + limit
        self.files = itertools.count()
        self.kernel = kernel
        self.models = models
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rehearsal-"))
        self.environment = dict(os.environ, NO_COLOR="1")
        self.environment.pop("RUST_BACKTRACE", None)
        if card:
            self.program = ROOT / "target" / "release" / "palimpsest"
            return
        place = subprocess.run([ROOT / "scripts" / "rehearsal.sh", "--build"], check=True, text=True, stdout=subprocess.PIPE).stdout
        found = dict(line.split(": ", 1) for line in place.splitlines())
        self.program = found["program"]
        self.environment["LD_LIBRARY_PATH"] = found["library"]
        self.environment["REHEARSAL_CACHE"] = str(pathlib.Path(found["library"]).parent / "kernels")

    def settings(self, devices=1, memory=None, late=False, report=None, **more):
        added = {"REHEARSAL_DEVICES": str(devices)}
        if memory:
            added["REHEARSAL_MEMORY"] = str(memory)
        if late:
            added["REHEARSAL_ASYNC"] = "1"
        if report:
            added["REHEARSAL_REPORT"] = str(report)
        return dict(self.environment, **added, **{key: str(value) for key, value in more.items()})

    def run(self, *args, timeout=1800, **settings):
        """Exit code, output, and what was said on stderr."""
        done = subprocess.run([self.program, *map(str, args)], env=self.settings(**settings), text=True, timeout=min(timeout, self.left()),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def left(self):
        """Seconds until the time limit; past it an error."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise Failure("the time of --limit is over")
        return left

    def reported(self, *args, **settings):
        """What the pretend device counted; an error is raised."""
        report = self.folder / "report.json"
        code, _, err = self.run(*args, report=report, **settings)
        if code != 0:
            raise Failure(f"exit {code}: {last_line(err)}")
        return json.loads(report.read_text())


class Failure(Exception):
    """A check that did not come out as it must."""


def cards():
    """How many there are, by the driver."""
    try:
        told = subprocess.run(["nvidia-smi", "-L"], text=True, stdout=subprocess.PIPE, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as why:
        sys.exit(f"--card: nvidia-smi does not list cards ({why}); it comes with the driver")
    return sum(line.startswith("GPU ") for line in told.splitlines())


def possible(program, setups):
    """Those whose devices are there."""
    return [setup for setup in setups if setup[1].count("cuda") <= program.cards]


def last_line(text):
    return (text.strip().splitlines() or ["nothing was said"])[-1][:200]


def tensors(path):
    """The f32 and u32 tensors of a safetensors file, flat."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    found = {}
    for name, info in header.items():
        if name == "__metadata__" or info["dtype"] not in ("F32", "U32"):
            continue
        start, end = (8 + length + at for at in info["data_offsets"])
        found[name] = array.array("f" if info["dtype"] == "F32" else "I", data[start:end])
    return found


def apart(a, b):
    if len(a) != len(b):
        return math.inf
    most = 0.0
    for x, y in zip(a, b):
        difference = abs(x - y)
        if not difference <= most:
            most = math.inf if math.isnan(difference) else difference
    return most


def rms(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / max(1, len(a)))


def cosine(a, b):
    dot = lambda x, y: sum(p * q for p, q in zip(x, y))
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def sound_positions(ours, theirs, positions=16):
    """Of so many positions, those whose logits point the same way. A rounding error can send a token to another expert, in
    transformers as here, and then that position's logits are others."""
    vocab = len(theirs) // positions
    parts = [slice(i * vocab, (i + 1) * vocab) for i in range(positions)]
    return sum(cosine(ours[part], theirs[part]) > COSINE for part in parts), positions
