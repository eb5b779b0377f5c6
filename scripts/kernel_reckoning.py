#!/usr/bin/env python3
"""What can be said of our CUDA kernels without a card: registers, shared memory, spills and occupancy by NVIDIA's assembler,
and how many cycles tensor cores and shared memory are busy with a block of keys.

    eval "$(scripts/cuda_env.sh DIR)"                # nvcc and ptxas, from PyPI
    python3 scripts/kernel_reckoning.py              # prints the tables
    python3 scripts/kernel_reckoning.py --write      # into benches/kernels/reckoning.md

No figure is a measurement.
"""
import argparse
import collections
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = ROOT / "crates" / "core"
TABLES = ROOT / "benches" / "kernels" / "reckoning.md"

# "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide: warps, thread blocks, registers and bytes of
# shared memory of a multiprocessor, and the most of these bytes that a block may have.
Card = collections.namedtuple("Card", "warps blocks registers shared shared_most tensor")
# `tensor`: cycles of a quarter of a multiprocessor for one product of 16 x 8 x 16. An A100's 312 TFLOP/s of 108 multiprocessors at
# 1.41 GHz are 256 products and sums a cycle and quarter; an H100's 989 of 132 at 1.83 GHz are 512.
CARDS = {80: Card(64, 32, 65536, 164 << 10, 163 << 10, 8), 90: Card(64, 32, 65536, 228 << 10, 227 << 10, 4)}
QUARTERS = 4
# Registers are handed out to warps in this unit, and each thread block takes so much shared memory for itself.
REGISTER_UNIT, SHARED_RESERVED = 256, 1 << 10
# Shared memory moves 128 bytes a cycle and multiprocessor.
SHARED_BYTES = 128 // QUARTERS
# Exponentials of a multiprocessor a cycle ("Arithmetic Instructions" of the same guide).
EXPONENTIALS = 16
# Bytes that one instruction of a warp reads from shared memory.
LOADED = {".x4": 512, ".x2": 256, ".x1": 128}


class Problem(Exception):
    """What is wrong, and what helps."""


def run(*command):
    if not shutil.which(command[0]):
        raise Problem(f'{command[0]} is not on the PATH: eval "$(scripts/cuda_env.sh DIR)" brings it')
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True)
    if done.returncode:
        raise Problem(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout + done.stderr


# --- the sources --------------------------------------------------------------------------------------------------------------

def sources():
    """The sources and the architecture that each is compiled for, as crates/core/build.rs lists them."""
    found = re.findall(r'\("(src/[\w/]+\.cu)", "(\d+a?)"\)', (CORE / "build.rs").read_text())
    if not found:
        raise Problem("crates/core/build.rs names no sources as this script expects them; adapt sources()")
    return [(CORE / path, f"compute_{capability}") for path, capability in found]


# `queries` of a warp, or keys where these stay in registers; `blocks` of keys and values in shared memory; `kept` queries beside them.
Shape = collections.namedtuple("Shape", "width keys threads queries blocks kept")


def shapes():
    """The kernels on tensor cores, by the lines that make them in attention.cu and masses.cu."""
    folder = CORE / "src" / "attention" / "backends" / "cuda"
    text, found = (folder / "attention.cu").read_text(), {}
    for kind, *numbers in re.findall(r"^ +PREFILL\(T, NAME, (\w*), (\d+), (\d+), (\d+), (\d+), \d+\)", text, re.M):
        width, keys, threads, tiles = map(int, numbers)
        kept = threads // 2 * tiles if width > 128 or tiles > 1 else 0
        found[f"attention_prefill_f16_{width}{kind}"] = Shape(width, keys, threads, 16 * tiles, 4, kept)
    for width, keys in re.findall(r"^ +SPLIT\(T, NAME, (\d+), (\d+), \d+\)", text, re.M):
        found[f"attention_split_f16_{width}"] = Shape(int(width), int(keys), 128, 16, 4, 64 if int(width) > 128 else 0)
    text = (folder / "masses.cu").read_text()
    passing = re.search(r"^constexpr int BN = (\d+);", text, re.M)
    for width, tiles in re.findall(r"MASSES\(T, NAME, (\d+), (\d+)\)", text):
        for step in ("ends", "columns"):
            found[f"masses_{step}_f16_{width}"] = Shape(int(width), int(passing[1]), 128, 16 * int(tiles), 2, 0)
    if len(found) < 3:
        raise Problem("attention.cu and masses.cu have no lines as this script expects them; adapt shapes()")
    return found


# Warpgroups of a thread block, with 64 queries each.
Groups = collections.namedtuple("Groups", "width keys groups")


def by_groups():
    """The kernels by warpgroup products, by the lines that make them in hopper.cu."""
    text = (CORE / "src" / "attention" / "backends" / "cuda" / "hopper.cu").read_text()
    found = re.findall(r"^ +HOPPER\(T, NAME, (\d+), (\d+), (\d+)\)", text, re.M)
    if not found:
        raise Problem("hopper.cu has no lines as this script expects them; adapt by_groups()")
    return {f"attention_hopper_f16_{numbers[0]}": Groups(*map(int, numbers)) for numbers in found}


def dynamic_shared(name, shape):
    """As in prefill.rs, as `shared_bytes` in operands.rs and masses.rs, and delta.rs for keys 128 wide."""
    if isinstance(shape, Groups):
        return 1024 + 2 * shape.width * (64 * shape.groups + 4 * shape.keys)
    if shape:
        return (shape.kept + shape.blocks * shape.keys) * 2 * (shape.width + 8)
    return 4 * {"delta_rule": 128 * 32 + 64 * (68 + 32), "delta_rows": 32 * 132 + 96 * 68}.get(name, 0)


# --- what the compiler and the assembler say -------------------------------------------------------------------------------------

Used = collections.namedtuple("Used", "registers spills shared")


def assembled(ptx, card, to):
    used = {}
    said = run("ptxas", "-v", "--gpu-name", f"sm_{card}", "-o", to, ptx)
    if "serialized" in said:
        raise Problem(f"{ptx.name}: ptxas lets warpgroup products wait for each other: {said}")
    for piece in said.split("Compiling entry function '")[1:]:
        count = lambda pattern: sum(int(n) for n in re.findall(pattern, piece))
        used[piece[:piece.index("'")]] = Used(
            count(r"Used (\d+) registers"), count(r"(\d+) bytes spill"), count(r"(\d+) bytes smem"))
    return used


def entries(ptx):
    """Each kernel's instructions."""
    return dict(re.findall(r"\.entry (\w+)\((.*?)\n}\n", ptx.read_text(), re.S))


def blocks(card, threads, registers, shared):
    """How many thread blocks a multiprocessor holds at once."""
    card, warps = CARDS[card], threads // 32
    if shared > card.shared_most:
        return 0
    of_a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = card.registers // QUARTERS // of_a_warp * QUARTERS // warps
    return min(card.blocks, card.warps // warps, by_registers, card.shared // (shared + SHARED_RESERVED))


def loop_of(name, code, shape):
    """The instructions of the loop over blocks of keys: the shortest that has all products of a block."""
    # Of 16 x 8 x 16 each, for scores and, in attention, for values.
    needed = shape.keys * shape.width // 128 * (shape.blocks // 2) * shape.queries // 16
    holding = [loop for loop in loops_of(code) if sum("mma.sync" in line for line in loop) == needed]
    if not holding:
        raise Problem(f"no loop of {name} has {needed} products")
    return needed, min(holding, key=len)


def loops_of(code):
    lines = code.splitlines()
    places = {line[:-1]: i for i, line in enumerate(lines) if line.startswith("$L__") and line.endswith(":")}
    ends = [(places[jump[1]], i) for i, line in enumerate(lines) if (jump := re.search(r"bra(?:\.uni)?\s+(\$L__\w+);", line))]
    return [lines[start:end] for start, end in ends if start < end]


def busy_groups(name, code, shape):
    """Of a warpgroup for a block of keys: the columns of its products, and bytes of shared memory that these read."""
    needed = [shape.keys] * (shape.width // 16) + [min(shape.width, 128)] * (shape.keys // 16 * max(1, shape.width // 128))
    for loop in sorted(loops_of(code), key=len):
        # A's 64 rows are in shared memory where a descriptor follows the sums, not registers; 16 of the inner dimension, 2 bytes.
        products = [(int(product[1]), "{" not in product[2])
                    for line in loop if (product := re.search(r"wgmma\.mma_async\S*m64n(\d+)k16\S* *\{[^}]*\}, *(.)", line))]
        if [columns for columns, _ in products] == needed:
            return needed, sum((columns + 64 * in_shared) * 32 for columns, in_shared in products)
    raise Problem(f"no loop of {name} has the products {needed}")


def busy(name, code, shape):
    """Products of a warp for a block of keys, bytes of shared memory that it reads, and those that it copies there."""
    products, loop = loop_of(name, code, shape)
    read = sum(bytes_ for line in loop for kind, bytes_ in LOADED.items() if "ldmatrix" in line and kind in line)
    copied = shape.keys * shape.width * 2 * (shape.blocks // 2) * 32 // shape.threads
    return products, read, copied


# --- the tables ------------------------------------------------------------------------------------------------------------------

def table(header, rows):
    lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]
    return "\n".join(lines) + "\n"


def by_number(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def resources(used, codes, known):
    """A row a kernel; types that agree share one."""
    rows = {}
    for name, code in codes.items():
        plain = re.sub(r"_(bf16|f16|f32)\b|_(bf16|f16|f32)(?=_)", "", name, count=1)
        of_type = re.search(r"_(bf16|f16|f32)(?:_|$)", name)
        limit = re.search(r"\.maxntid (\d+)", code)
        threads = int(limit[1]) if limit else 0
        shape = known.get(re.sub(r"_bf16", "_f16", name))
        dynamic = dynamic_shared(name, shape)
        cells = [str(threads or "any"), f"{(dynamic + used[90][name].shared) / 1024:.1f}"]
        for card in CARDS:
            if name not in used[card]:
                cells += ["", ""]
                continue
            here = used[card][name]
            count = blocks(card, threads, here.registers, dynamic + here.shared) if threads else None
            held = "" if count is None else ": too large" if count == 0 else f": {count} ({count * threads // 32 / CARDS[card].warps:.0%})"
            cells += [f"{here.registers}{held}", str(here.spills)]
        rows.setdefault((plain, tuple(cells)), []).append(of_type[1] if of_type else "")
    header = ["kernel", "types", "threads", "shared KiB", *(cell for card in CARDS for cell in (f"sm_{card}", "spilled bytes"))]
    order = sorted(rows.items(), key=lambda row: by_number(row[0][0]))
    return table(header, [[plain, ", ".join(sorted(types)), *cells] for (plain, cells), types in order])


def cycles(codes, known):
    rows = []
    for name, shape in sorted(known.items(), key=lambda item: by_number(item[0])):
        products, read, copied = busy(name, codes[name], shape)
        shared = (read + copied) / SHARED_BYTES
        cells = [name.replace("_f16", ""), f"{shape.queries} x {shape.keys}", str(products), str(read), str(copied), f"{shared:.0f}"]
        for card in CARDS.values():
            cells += [str(products * card.tensor), f"{products * card.tensor / shared:.2f}"]
        rows.append(cells)
    header = ["kernel", "a warp's block", "products", "bytes read", "bytes copied", "cycles of shared memory"]
    return table([*header, *(cell for card in CARDS for cell in (f"of tensor cores, sm_{card}", "ratio"))], rows)


def cycles_of_groups(codes, known):
    rows = []
    for name, shape in sorted(known.items(), key=lambda item: by_number(item[0])):
        columns, read = busy_groups(name, codes[name], shape)
        copied = shape.keys * shape.width * 2 * 2
        # A product of 64 rows is one of 16 rows for each quarter of the multiprocessor.
        tensor = shape.groups * sum(columns) // 8 * CARDS[90].tensor
        shared = (shape.groups * read + copied) / (SHARED_BYTES * QUARTERS)
        exponentials = shape.groups * 64 * shape.keys / EXPONENTIALS
        counts = collections.Counter(columns)
        products = " + ".join(f"{count} of {n}" for n, count in sorted(counts.items()))
        share = tensor / max(tensor, shared, exponentials)
        rows.append([name.replace("_f16", ""), f"{64 * shape.groups} x {shape.keys}", products, str(shape.groups * read), str(copied),
                     str(tensor), f"{shared:.0f}", f"{exponentials:.0f}", f"{share:.0%}", f"{tensor / (tensor + exponentials):.0%}"])
    header = ["kernel", "a thread block's block", "a warpgroup's products, by columns", "bytes read", "bytes copied", "cycles of tensor cores",
              "of shared memory", "of exponentials", "share of the peak, all at once", "exponentials by themselves"]
    return table(header, rows)


TEXT = """# Reckoning of the CUDA kernels

Written by `python3 scripts/kernel_reckoning.py --write` with {version}. Nothing here was measured; what was is in
[runs/2026-11-26-h100](../runs/2026-11-26-h100/README.md). Sources, by the first 12 digits of their sha256: {sources}.

## Registers, shared memory, spills, occupancy

`ptxas -v` of the PTX that the build embeds. Under each architecture: registers of a thread, then thread blocks that a multiprocessor
holds at once and their share of its warps, where the number of threads is fixed. Shared memory is that of a thread block, with what a
launch adds (for `delta_*`: with keys 128 wide).

{resources}
## Tensor cores beside shared memory

Of the loop over the keys, for one block of keys: products of 16 x 8 x 16 of a warp (`mma.sync` in the loop's PTX, which must be as many
as the shape says), bytes that it reads from shared memory (`ldmatrix`), and its part of the bytes that are copied there (`cp.async`;
keys and values, or queries for `masses_*`). Cycles are those of a quarter of a multiprocessor: 32 bytes of shared memory each; a product
takes 8 at an A100's data-sheet rate and 4 at an H100's, which `mma.sync` does not reach there. A ratio below 1 says that shared
memory is busy longer than the tensor cores, which then cannot be busy for more than that share of the time.

{cycles}
## Warpgroup products

Of `attention_hopper_*`, for Hopper alone: the loop over the keys, for one block of keys of a thread block. `wgmma` multiplies 64 rows of a
warpgroup by so many columns, 16 of the inner dimension at a time, and reads its factors from shared memory: those of scores both, those
of values one. Cycles are those of a multiprocessor at an H100's data-sheet rate: 128 bytes of shared memory and {exponentials} exponentials each. In
the loop the scores of the next block and the values of this one are multiplied while weights are computed; the last columns say what
share of the peak that leaves if everything overlaps, and if exponentials overlap with nothing. Neither counts the other instructions of
a softmax, causal blocks that are computed and hidden, or barriers. `ptxas` lets no product wait for another one (it would say so).

{cycles_of_groups}"""


def reckon():
    known, groups, used, codes, named = shapes(), by_groups(), {card: {} for card in CARDS}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        for source, architecture in sources():
            ptx, cubin = pathlib.Path(folder) / f"{source.stem}.ptx", pathlib.Path(folder) / "cubin"
            run("nvcc", "--ptx", "-O3", "-std=c++17", "-arch", architecture, "-o", ptx, source)
            codes |= entries(ptx)
            # Instructions of one architecture are for its cards alone.
            own = "a" if architecture.endswith("a") else ""
            for card in CARDS if not own else [int(architecture.removeprefix("compute_").removesuffix("a"))]:
                used[card] |= assembled(ptx, f"{card}{own}", cubin)
            named.append(source)
    named += sorted(CORE.glob("src/**/*.cuh"))
    digests = ", ".join(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" for path in named)
    version = re.search(r"release [\d.]+, V[\d.]+", run("nvcc", "--version"))[0]
    return TEXT.format(version=f"nvcc {version}", sources=digests, resources=resources(used, codes, known | groups),
                       cycles=cycles(codes, known), exponentials=EXPONENTIALS, cycles_of_groups=cycles_of_groups(codes, groups))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TABLES.relative_to(ROOT)}")
    given = parser.parse_args()
    try:
        text = reckon()
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    print(text, end="")
    if given.write:
        TABLES.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
