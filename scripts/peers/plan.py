"""What is measured, how, and which figure is held against which: two tables, MEASUREMENTS and ROWS.

A measurement is one command, run a few times in a process of its own. A row of the table in benches/speed.md is the ratio of two sides,
each made of medians. Called by measure.py, which runs, and table.py, which writes.
"""
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

HERE = Path(__file__).resolve().parent

SMOLLM2, GEMMA = "smollm2-135m", "gemma3-270m"

# New tokens that are read one by one after a prompt.
STEPS = 32

# Most tokens of an answer of `palimpsest run`.
ANSWER = 64

# The side of the dense product that stands for the machine's peak; the bench has the same.
PEAK = 2048

# What a rehearsal divides lengths by.
REHEARSAL = 32

# SmolLM2's cache: layers, keys and values, key/value heads, head width, bytes of an f32.
SMOLLM2_CACHE_BYTES_A_TOKEN = 30 * 2 * 3 * 64 * 4

# The kernels' benches that rows need.
BENCH_PEAK = f"peak/{PEAK} cubed"
BENCH_LINEAR = "linear/smollm2/whole layer, 1024 tokens"
BENCH_ATTENTION = "attention/smollm2/1024 of 8192"
BENCH_LINEAR_BF16 = "linear in bf16/smollm2/whole layer, 1024 tokens"
BENCH_ATTENTION_BF16 = "attention in bf16/smollm2/1024 of 8192"
BENCHES = (BENCH_PEAK, BENCH_LINEAR, BENCH_ATTENTION, BENCH_LINEAR_BF16, BENCH_ATTENTION_BF16)


@dataclass
class Place:
    """Where things are on this machine. Nothing of it is written into results."""

    work: Path
    palimpsest: Path
    bench: Path | None
    rehearsal: bool
    # The Python that has what a tool needs.
    pythons: dict[str, Path] = field(default_factory=dict)
    ggufs: dict[str, Path] = field(default_factory=dict)

    def length(self, tokens: int) -> int:
        return tokens // REHEARSAL if self.rehearsal else tokens

    def tokens_file(self, tokens: int, new_rows: int | None) -> Path:
        """Random tokens with the spans old, new and query. `new_rows` is how long new is (0: no rows are recorded; None: as
        long as old)."""
        n = self.length(tokens)
        width = min(200, n // 8)
        new = width if not new_rows else min(new_rows, n // 4)
        query = min(40, n // 16)
        draw = random.Random(tokens)
        trace = {
            "tokens": [1] + [draw.randrange(100, 40000) for _ in range(n - 1)],
            "spans": {
                "old": [n // 4, n // 4 + width],
                "new": [n // 2, n // 2 + new],
                "query": [n - query, n],
            },
            "rows": [] if new_rows == 0 else ["new", "query"],
            "logits": 1,
        }
        path = self.work / f"tokens-{n}-{'' if new_rows is None else new_rows}.json"
        path.write_text(json.dumps(trace))
        return path

    def gguf(self, model: str, form: str = "") -> Path:
        path = self.ggufs[model]
        return self.work / f"{path.stem}.{form}.gguf" if form else path


@dataclass(frozen=True)
class Measurement:
    """One command. Those of a group are run in turn."""

    name: str
    group: str
    tool: str  # palimpsest, kernels, or one of measure.py's PEERS
    model: str
    tokens: int
    # Seconds that one run takes, roughly, on two cores with AVX-512: for what --list prints.
    estimate: float
    # The command, given the place and an empty folder for what it writes.
    command: Callable[[Place, Path], list]
    # What the command measured itself, given what it printed and that folder.
    read: Callable[[str, Path], dict]
    # The most repetitions, where they are fewer than asked for.
    most: int = 5
    # Another form of the model's file that has to be there: q4_0 or f32.
    form: str = ""


def last_line(printed: str, _out: Path) -> dict:
    return json.loads(printed.strip().splitlines()[-1])


def trace_stats(_printed: str, out: Path) -> dict:
    stats = json.loads((out / "stats.json").read_text())
    result = {"prefill_seconds": stats["prefill_seconds"], "stats": stats}
    if stats["decode_tokens"]:
        # The peers' time holds the choice of the token too.
        seconds = stats["decode_seconds"] + stats["seconds"]["sampling"]
        result |= {"decode_seconds": seconds, "decode_tokens_per_second": stats["decode_tokens"] / seconds}
    return result


def run_stats(_printed: str, out: Path) -> dict:
    stats = json.loads((out / "stats.json").read_text())
    answers = [json.loads(line) for line in (out / "run" / "answers.jsonl").read_text().splitlines()]
    failed = [a["error"] for a in answers if a.get("error")]
    if failed:
        raise ValueError(f"a probe was not answered: {failed[0]}")
    return {
        "prefill_seconds": stats["prefill_seconds"],
        "decode_seconds": stats["decode_seconds"],
        "answers": len(answers),
        "answer_tokens": sum(a["completion_tokens"] for a in answers),
        "prompt_tokens": max(a["prompt_tokens"] for a in answers),
        "tokens_read": stats["tokens"],
        "stats": stats,
    }


def criterion(_printed: str, out: Path) -> dict:
    gflops = {}
    for estimates in sorted(out.glob("criterion/**/new/estimates.json")):
        bench = json.loads(estimates.with_name("benchmark.json").read_text())
        nanoseconds = json.loads(estimates.read_text())["median"]["point_estimate"]
        gflops[bench["full_id"]] = bench["throughput"]["Elements"] / nanoseconds
    return {"gflops": gflops}


def trace(name, group, model, tokens, estimate, new_rows=None, generate=0, more=()):
    """`palimpsest trace`, with its attention recorded unless `new_rows` is 0."""

    def command(place, out):
        argv = [place.palimpsest, "trace", "--model", model, "--tokens", place.tokens_file(tokens, new_rows)]
        argv += ["--out", out / "trace.safetensors", "--stats", out / "stats.json", "--allow-longer", *more]
        return argv + (["--generate", generate] if generate else [])

    return Measurement(name, group, "palimpsest", model, tokens, estimate, command, trace_stats)


def run(name, group, model, tokens, estimate, only, sessions, most=5, more=()):
    """`palimpsest run` on one case of the built-in sample, whose history is cut to `tokens`."""

    def command(place, out):
        # A case's evidence and a question need about a thousand tokens.
        context = max(place.length(tokens), 2000) + ANSWER
        argv = [place.palimpsest, "run", "--data", "sample", "--sessions", sessions, "--only", only, "--limit", 1]
        argv += ["--model", model, "--context", context, "--max-new-tokens", ANSWER, "--allow-longer", *more]
        return argv + ["--out", out / "run", "--stats", out / "stats.json"]

    return Measurement(name, group, "palimpsest", model, tokens, estimate, command, run_stats, most)


def transformers(name, group, model, tokens, estimate, way):
    def command(place, _out):
        script = HERE / "transformers_prefill.py"
        return [place.pythons["transformers"], script, place.gguf(model), place.tokens_file(tokens, None), way]

    return Measurement(name, group, "transformers", model, tokens, estimate, command, last_line)


def weights(name, group, model, tokens, estimate, tool, most=5):
    def command(place, _out):
        script = HERE / "weights_prefill.py"
        return [place.pythons[tool], script, place.gguf(model), place.tokens_file(tokens, None), tool]

    return Measurement(name, group, tool, model, tokens, estimate, command, last_line, most)


def llama(name, group, model, tokens, estimate, form="", flash="fa-on", steps=0, cache="f16"):
    def command(place, _out):
        script = HERE / "llamacpp_speed.py"
        return [place.pythons["llama.cpp"], script, place.gguf(model, form), place.tokens_file(tokens, None), flash, steps, cache]

    return Measurement(name, group, "llama.cpp", model, tokens, estimate, command, last_line, form=form)


def kernels(name, group, estimate):
    def command(place, _out):
        return [place.bench, "--bench", f"^({'|'.join(BENCHES)})$"]

    return Measurement(name, group, "kernels", "", 0, estimate, command, criterion)


def torch_peak(name, group, estimate, dtype="f32"):
    def command(place, _out):
        return [place.pythons["torch"], HERE / "torch_peak.py", PEAK, dtype]

    return Measurement(name, group, "torch", "", 0, estimate, command, last_line)


def quickstart(name, group, estimate, most):
    def command(place, out):
        return [place.palimpsest, "quickstart", "--out", out / "run", "--limit", 1 if place.rehearsal else 8]

    return Measurement(name, group, "palimpsest", SMOLLM2, 0, estimate, command, lambda _printed, _out: {}, most)


# Flags of products of bf16 numbers, and of a cache in bf16 alone.
BF16, BF16_CACHE = ("--dtype", "bf16"), ("--cache-dtype", "bf16")

MEASUREMENTS = [
    torch_peak("torch peak", "kernels", 5),
    torch_peak("torch peak bf16", "kernels", 5, dtype="bf16"),
    kernels("kernels", "kernels", 10),
    trace("ours 2048", "2048", SMOLLM2, 2048, 6, generate=STEPS),
    transformers("sdpa 2048", "2048", SMOLLM2, 2048, 18, "sdpa"),
    weights("keys_values 2048", "2048", SMOLLM2, 2048, 25, "keys_values"),
    weights("attnread 2048", "2048", SMOLLM2, 2048, 170, "attnread", most=1),
    llama("llama q4_0 2048", "2048", SMOLLM2, 2048, 4, form="q4_0"),
    llama("llama f32 2048", "2048", SMOLLM2, 2048, 5, form="f32"),
    llama("llama fa-on 2048", "2048", SMOLLM2, 2048, 8, steps=STEPS),
    llama("llama fa-off 2048", "2048", SMOLLM2, 2048, 8, flash="fa-off", steps=STEPS),
    trace("ours 8192", "8192", SMOLLM2, 8192, 30, generate=STEPS),
    trace("bf16 8192", "8192", SMOLLM2, 8192, 20, generate=STEPS, more=BF16),
    trace("bf16 rows 8192", "8192", SMOLLM2, 8192, 18, new_rows=360, more=BF16),
    trace("bf16 no rows 8192", "8192", SMOLLM2, 8192, 18, new_rows=0, more=BF16),
    trace("bf16 cache 8192", "8192", SMOLLM2, 8192, 30, generate=STEPS, more=BF16_CACHE),
    llama("llama q8_0 cache 8192", "8192", SMOLLM2, 8192, 40, steps=STEPS, cache="q8_0"),
    llama("llama q4_0 q8_0 cache 8192", "8192", SMOLLM2, 8192, 30, form="q4_0", steps=STEPS, cache="q8_0"),
    trace("rows 8192", "8192", SMOLLM2, 8192, 28, new_rows=360),
    trace("no rows 8192", "8192", SMOLLM2, 8192, 27, new_rows=0),
    transformers("sdpa 8192", "8192", SMOLLM2, 8192, 38, "sdpa"),
    transformers("hook 8192", "8192", SMOLLM2, 8192, 200, "hook"),
    llama("llama q4_0 8192", "8192", SMOLLM2, 8192, 27, form="q4_0"),
    llama("llama f32 8192", "8192", SMOLLM2, 8192, 34, form="f32"),
    llama("llama fa-on 8192", "8192", SMOLLM2, 8192, 62, steps=STEPS),
    llama("llama fa-off 8192", "8192", SMOLLM2, 8192, 53, flash="fa-off", steps=STEPS),
    # Two sides that differ by a few per cent need more runs on a machine that drifts by more.
    run("one probe 8192", "probes", SMOLLM2, 8192, 40, "T1/SR", 36, most=9),
    run("three probes 8192", "probes", SMOLLM2, 8192, 45, "T1", 36, most=9),
    run("three probes apart 8192", "probes", SMOLLM2, 8192, 50, "T1", 36, more=("--batch-size", 1)),
    trace("ours 32768", "32768", SMOLLM2, 32768, 180),
    trace("bf16 32768", "32768", SMOLLM2, 32768, 110, more=BF16),
    trace("bf16 cache 32768", "32768", SMOLLM2, 32768, 180, more=BF16_CACHE),
    transformers("sdpa 32768", "32768", SMOLLM2, 32768, 290, "sdpa"),
    trace("gemma 8192", "gemma", GEMMA, 8192, 15),
    llama("llama gemma 8192", "gemma", GEMMA, 8192, 25),
    quickstart("quickstart", "quickstart", 70, most=3),
    run("gemma 150000", "long", GEMMA, 150_000, 900, "T1/SR", 750, most=1),
    run("gemma bf16 150000", "long", GEMMA, 150_000, 550, "T1/SR", 750, most=1, more=BF16),
]


@dataclass(frozen=True)
class Side:
    """One side of a ratio: the measurements that it needs, and how their medians make it."""

    needs: tuple
    # Given a function (measurement, key) -> median, which raises Missing.
    value: Callable


class Missing(Exception):
    """A measurement that has no run yet."""


def median(name: str, *key: str) -> Side:
    return Side((name,), lambda of: of(name, *key))


def best(*sides: Side) -> Side:
    """The largest. All must have been measured: the best of what happens to be there is a claim too many."""
    needs = tuple(name for side in sides for name in side.needs)
    return Side(needs, lambda of: max(side.value(of) for side in sides))


def growth(small: str, large: str, *key: str) -> Side:
    return Side((small, large), lambda of: of(large, *key) - of(small, *key))


def constant(number: float) -> Side:
    return Side((), lambda _of: number)


@dataclass(frozen=True)
class Row:
    """A line of the table: `ours` over `theirs` is to be `sense` (`at least`, `at most`, or nothing) `target`."""

    name: str
    what: str
    against: str
    unit: str  # tok/s, s, bytes or GFLOP/s
    ours: Side
    theirs: Side
    sense: str
    target: float


SPEED, DECODE, PEAK_BYTES = "tokens_per_second", "decode_tokens_per_second", "peak_bytes"
RECORDED = "prefill, attention recorded"


def rows():
    for tokens, target in ((2048, 1.0), (8192, 1.0), (32768, 1.3)):
        yield Row("sdpa", f"{RECORDED}, {tokens:,} tokens", "transformers, SDPA, nothing recorded", "tok/s",
                  median(f"ours {tokens}", SPEED), median(f"sdpa {tokens}", SPEED), "at least", target)
    against = "transformers, eager with a reducing hook"
    yield Row("hook", f"{RECORDED}, 8,192 tokens", against, "tok/s",
              median("ours 8192", SPEED), median("hook 8192", SPEED), "at least", 7)
    yield Row("hook-memory", "its peak memory", against, "bytes",
              median("ours 8192", PEAK_BYTES), median("hook 8192", PEAK_BYTES), "at most", 0.25)
    yield Row("keys_values", f"{RECORDED}, 2,048 tokens", "transformers, attention of keys_values 0.2.0: sums over all queries", "tok/s",
              median("ours 2048", SPEED), median("keys_values 2048", SPEED), "", 0)
    yield Row("attnread", "prefill of 2,048 tokens, attention of 30 layers recorded", "attnread 0.1.2, weights of one layer", "s",
              median("ours 2048", "prefill_seconds"), median("attnread 2048", "prefill_seconds"), "", 0)
    for tokens, target in ((2048, 1.3), (8192, 1.8)):
        forms = [median(f"llama {form} {tokens}", SPEED) for form in ("q4_0", "f32", "fa-on")]
        yield Row("llama", f"{RECORDED}, {tokens:,} tokens", "llama.cpp, the fastest of Q4_0, F32 and Q4_1, flash attention",
                  "tok/s", median(f"ours {tokens}", SPEED), best(*forms), "at least", target)
    for tokens in (2048, 8192):
        settings = [median(f"llama {flash} {tokens}", DECODE) for flash in ("fa-on", "fa-off")]
        yield Row("decode", f"decode after {tokens:,} tokens", "llama.cpp, the better of flash attention on and off", "tok/s",
                  median(f"ours {tokens}", DECODE), best(*settings), "at least", 1.0)
    yield Row("recording", "prefill of 8,192 tokens, 400 rows recorded", "the same, nothing recorded", "s",
              median("rows 8192", "prefill_seconds"), median("no rows 8192", "prefill_seconds"), "at most", 1.03)
    yield Row("probes", "prefill of three probes on one history of 8,192 tokens", "of one probe", "s",
              median("three probes 8192", "prefill_seconds"), median("one probe 8192", "prefill_seconds"), "at most", 1.05)
    yield Row("together", "decode of their three answers, together", "one after the other", "s",
              median("three probes 8192", "decode_seconds"), median("three probes apart 8192", "decode_seconds"), "", 0)
    yield Row("memory", "peak memory, from 8,192 to 32,768 tokens", "growth of the cache", "bytes",
              growth("ours 8192", "ours 32768", PEAK_BYTES),
              constant((32768 - 8192) * SMOLLM2_CACHE_BYTES_A_TOKEN), "at most", 1.05)
    yield Row("gemma", f"Gemma 3 270M, {RECORDED}, 8,192 tokens", "llama.cpp, flash attention", "tok/s",
              median("gemma 8192", SPEED), median("llama gemma 8192", SPEED), "at least", 1.5)
    yield Row("long", "Gemma 3 270M, 150,000 tokens of text, recorded, one probe answered: whole run", "20 minutes", "s",
              median("gemma 150000", "wall_seconds"), constant(1200), "at most", 1.0)
    yield Row("long", "its peak memory", "4 GB", "bytes",
              median("gemma 150000", PEAK_BYTES), constant(4e9), "at most", 1.0)
    yield Row("quickstart", "the whole of `quickstart`, the model at hand", "2 minutes", "s",
              median("quickstart", "wall_seconds"), constant(120), "at most", 1.0)
    peak = best(median("torch peak", "gflops"), median("kernels", "gflops", BENCH_PEAK))
    against = f"a dense f32 product, {PEAK} cubed, the better of PyTorch's and ours"
    yield Row("linear", "linear layers, 1,024 tokens at a time", against, "GFLOP/s",
              median("kernels", "gflops", BENCH_LINEAR), peak, "at least", 0.75)
    yield Row("attention", "attention, 1,024 queries of 8,192 keys", against, "GFLOP/s",
              median("kernels", "gflops", BENCH_ATTENTION), peak, "at least", 0.6)


def rows_of_fewer_bits():
    yield Row("bf16", "in bf16: prefill, attention recorded, 8,192 tokens", "ours in f32", "tok/s",
              median("bf16 8192", SPEED), median("ours 8192", SPEED), "at least", 1.6)
    yield Row("bf16", "in bf16: decode after 8,192 tokens", "ours in f32", "tok/s",
              median("bf16 8192", DECODE), median("ours 8192", DECODE), "at least", 1.3)
    yield Row("bf16", "in bf16: prefill of 8,192 tokens, 400 rows recorded", "the same, nothing recorded", "s",
              median("bf16 rows 8192", "prefill_seconds"), median("bf16 no rows 8192", "prefill_seconds"), "at most", 1.04)
    yield Row("bf16", "a cache in bf16 alone: decode after 8,192 tokens", "ours in f32", "tok/s",
              median("bf16 cache 8192", DECODE), median("ours 8192", DECODE), "", 0)
    for name, what in (("bf16", "in bf16"), ("bf16 cache", "a cache in bf16 alone")):
        yield Row("bf16", f"{what}: growth of peak memory, from 8,192 to 32,768 tokens", "ours in f32", "bytes",
                  growth(f"{name} 8192", f"{name} 32768", PEAK_BYTES),
                  growth("ours 8192", "ours 32768", PEAK_BYTES), "at most", 0.52)
    forms = [median(f"llama {form} 8192", SPEED)
             for form in ("q4_0", "f32", "fa-on", "fa-off", "q8_0 cache", "q4_0 q8_0 cache")]
    yield Row("bf16", "in bf16: prefill, attention recorded, 8,192 tokens", "llama.cpp, the fastest of all weights and caches", "tok/s",
              median("bf16 8192", SPEED), best(*forms), "at least", 1.0)
    forms = [median(f"llama {form} 8192", DECODE) for form in ("fa-on", "fa-off", "q8_0 cache", "q4_0 q8_0 cache")]
    yield Row("bf16", "in bf16: decode after 8,192 tokens", "llama.cpp, the fastest of all weights and caches", "tok/s",
              median("bf16 8192", DECODE), best(*forms), "", 0)
    against = f"a dense bf16 product of PyTorch's, {PEAK} cubed"
    yield Row("bf16", "linear layers in bf16, 1,024 tokens at a time", against, "GFLOP/s",
              median("kernels", "gflops", BENCH_LINEAR_BF16), median("torch peak bf16", "gflops"), "at least", 0.8)
    yield Row("bf16", "attention in bf16, 1,024 queries of 8,192 keys", against, "GFLOP/s",
              median("kernels", "gflops", BENCH_ATTENTION_BF16), median("torch peak bf16", "gflops"), "", 0)
    yield Row("bf16", "Gemma 3 270M in bf16, 150,000 tokens of text, recorded, one probe answered: whole run", "ours in f32", "s",
              median("gemma bf16 150000", "wall_seconds"), median("gemma 150000", "wall_seconds"), "", 0)
    yield Row("bf16", "its peak memory", "ours in f32", "bytes",
              median("gemma bf16 150000", PEAK_BYTES), median("gemma 150000", PEAK_BYTES), "", 0)


# The rows of a run folder, and those of one whose name ends with FEWER_BITS.
FEWER_BITS = "-bf16"
ROWS, ROWS_OF_FEWER_BITS = list(rows()), list(rows_of_fewer_bits())
