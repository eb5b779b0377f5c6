#!/usr/bin/env python3
"""What can be said about our attention kernels without a card, from what NVIDIA's assembler makes of their PTX.

    python3 scripts/kernel_reckoning.py PTX             # prints the tables; PTX: a folder with attention.ptx, masses.ptx and rows.ptx
    python3 scripts/kernel_reckoning.py PTX --write     # and into docs/gpu.md

A build with the feature `cuda` makes the PTX; `scripts/rehearsal.sh --build` says where it is.


Registers, spills and occupancy for cards from Ampere to Hopper; of the loop over the keys, the instructions that a warp issues for
a block of keys, and which part of an A100 they would keep busy for how long. No figure is a measurement: a share is what the
busiest part allows if all else hides behind it.

Needs ptxas (of scripts/cuda_env.sh) and nvdisasm (`pip install nvidia-cuda-nvdisasm`), both on the PATH or named.
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
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "crates" / "core" / "src" / "attention" / "backends" / "cuda"
SOURCES = ("attention.cu", "masses.cu", "rows.cu")
# Included by the first two.
HEADER = "tensor_cores.cuh"
MARKS = ("<!-- begin: reckoned -->\n", "<!-- end: reckoned -->")

# "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide: warps, blocks, registers and bytes of shared
# memory of a multiprocessor, and the most of these bytes that a block may have.
Card = collections.namedtuple("Card", "warps blocks registers shared shared_most")
CARDS = {
    80: Card(64, 32, 65536, 164 << 10, 163 << 10),
    86: Card(48, 16, 65536, 100 << 10, 99 << 10),
    89: Card(48, 24, 65536, 100 << 10, 99 << 10),
    90: Card(64, 32, 65536, 228 << 10, 227 << 10),
}
# Registers are handed out to warps in this unit, and each block takes so much shared memory for itself.
REGISTER_UNIT, SHARED_RESERVED = 256, 1 << 10

# A quarter of an A100's multiprocessor issues one instruction of a warp a cycle. 312 TFLOP/s of 108 multiprocessors at 1.41 GHz are
# 256 products and sums a cycle and quarter, so the 16 x 8 x 16 of an HMMA take 8 cycles. From the guide's "Throughput of Native
# Arithmetic Instructions": 16 special functions and 64 operations of f32 a cycle and multiprocessor. Shared memory moves 128 bytes
# a cycle and multiprocessor: 16 cycles of a quarter for the 512 bytes of an ldmatrix of four, or of a warp's copies of 16.
TENSOR, SPECIAL, FLOAT, SHARED = 8, 8, 2, 16
QUARTERS = 4

FLOATS = ("FFMA", "FADD", "FMUL", "FMNMX", "FSETP", "FSEL")
KINDS = ("HMMA", "LDSM", "LDGSTS", "MUFU", "f32", "rest")


class Problem(Exception):
    """What is wrong, and what helps."""


def program(name, given, remedy):
    found = given or shutil.which(name)
    if not found:
        raise Problem(f"{name} is not on the PATH: {remedy}")
    return found


# --- what the source says -----------------------------------------------------------------------------------------------------

# `queries` of a warp, or keys where these stay in registers; `kept` of a block's queries in shared memory.
Shape = collections.namedtuple("Shape", "kind width keys threads queries kept name", defaults=(16, 0, ""))


def shapes():
    """The head widths, keys a block and threads that the sources make their kernels for, by kernel without its type."""
    path = FOLDER / "attention.cu"
    text = path.read_text()
    found = {}
    for kind, *numbers in re.findall(r"^ +PREFILL\(T, NAME, (\w*), (\d+), (\d+), (\d+), (\d+), \d+\)", text, re.M):
        width, keys, threads, tiles = map(int, numbers)
        kept = threads // 2 * tiles if width > 128 or tiles > 1 else 0
        name = f"prefill_{width}{kind}"
        found[name] = Shape("prefill", width, keys, threads, 16 * tiles, kept, f"attention_prefill_f16_{width}{kind}")
    for width, keys in re.findall(r"^ +SPLIT\(T, NAME, (\d+), (\d+), \d+\)", text, re.M):
        kept = 64 if int(width) > 128 else 0
        found[f"split_{width}"] = Shape("split", int(width), int(keys), 128, 16, kept, f"attention_split_f16_{width}")
    text = (FOLDER / "masses.cu").read_text()
    passing = int(re.search(r"^constexpr int BN = (\d+);", text, re.M)[1])
    for width, tiles in re.findall(r"MASSES\(T, NAME, (\d+), (\d+)\)", text):
        for step in ("ends", "columns"):
            found[f"masses_{step}_{width}"] = Shape("masses", int(width), passing, 128, 16 * int(tiles), 0, f"masses_{step}_f16_{width}")
    if not found:
        raise Problem(f"{path} has no PREFILL and SPLIT lines; adapt shapes() to how it makes its kernels")
    return found


def dynamic_shared(shape):
    """As `shared_bytes` in operands.rs and masses.rs: two blocks of keys and, for attention, of values, and the queries that are kept."""
    blocks = 2 if shape.kind == "masses" else 4
    return (shape.kept + blocks * shape.keys) * 2 * (shape.width + 8)


# --- what the assembler says ----------------------------------------------------------------------------------------------------

Used = collections.namedtuple("Used", "registers spills shared")


def assembled(ptxas, ptx, card, to):
    """What each kernel uses on a card."""
    done = subprocess.run([ptxas, "-v", "--gpu-name", f"sm_{card}", "-o", to, ptx], text=True, capture_output=True)
    if done.returncode:
        raise Problem(f"ptxas refuses {ptx} for sm_{card}: {done.stderr.strip()}")
    used = {}
    for piece in done.stderr.split("Compiling entry function '")[1:]:
        count = lambda pattern: sum(int(n) for n in re.findall(pattern, piece))
        used[piece[:piece.index("'")]] = Used(
            count(r"Used (\d+) registers"), count(r"(\d+) bytes spill"), count(r"(\d+) bytes smem"))
    return used


def threads_of(ptx):
    text = pathlib.Path(ptx).read_text()
    return {name: int(x) for name, x in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+)", text)}


def blocks(card, threads, registers, shared):
    """How many thread blocks a multiprocessor holds at once."""
    card, warps = CARDS[card], threads // 32
    if shared > card.shared_most:
        return 0
    of_a_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = card.registers // QUARTERS // of_a_warp * QUARTERS // warps
    return min(card.blocks, card.warps // warps, by_registers, card.shared // (shared + SHARED_RESERVED))


# --- what the instructions say --------------------------------------------------------------------------------------------------

class Code:
    """A kernel's instructions in basic blocks. `blocks[i]` are opcodes, `after[i]` the blocks that may follow."""

    def __init__(self, lines):
        labels, self.blocks, jumps = {}, [[]], []
        for line in lines:
            if label := re.match(r"(\.L\w+):", line):
                if self.blocks[-1]:
                    self.blocks.append([])
                labels[label[1]] = len(self.blocks) - 1
            elif found := re.match(r"\s+/\*\w+\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)(.*)", line):
                guard, opcode, rest = found.groups()
                self.blocks[-1].append(opcode)
                name = opcode.split(".")[0]
                if name in ("BRA", "EXIT", "RET"):
                    target = re.search(r"`\((\.L\w+)\)", rest) if name == "BRA" else None
                    # A second predicate stands before the target.
                    always = not guard and not re.match(r" +(U?!?U?P\d|!?U?P\d|~)", rest) and ".DIV" not in opcode
                    jumps.append((len(self.blocks) - 1, target and target[1], always))
                    self.blocks.append([])
        self.after = [{i + 1} if i + 1 < len(self.blocks) else set() for i in range(len(self.blocks))]
        for block, target, always in jumps:
            if always:
                self.after[block] = set()
            if target:
                self.after[block].add(labels[target])

    def loops(self):
        """The natural loops: header and blocks."""
        count = len(self.blocks)
        before = [set() for _ in range(count)]
        for block, after in enumerate(self.after):
            for other in after:
                before[other].add(block)
        dominators = [{0}] + [set(range(count)) for _ in range(count - 1)]
        changed = True
        while changed:
            changed = False
            for block in range(1, count):
                of_all = [dominators[other] for other in before[block]]
                new = {block} | (set.intersection(*of_all) if of_all else set())
                changed |= new != dominators[block]
                dominators[block] = new
        found = collections.defaultdict(set)
        for block, after in enumerate(self.after):
            for header in after & dominators[block]:
                body, left = {header}, [block]
                while left:
                    one = left.pop()
                    if one not in body:
                        body.add(one)
                        left.extend(before[one])
                found[header] |= body
        return dict(found)

    def path(self, header, body, worth):
        """The blocks of the way through a loop's body, once around, whose sum of `worth` is greatest."""
        best = {header: (worth(header), [header])}
        order, seen = [], set()

        def visit(block):
            # Iterative: the blocks of a kernel may be many.
            stack = [(block, iter(self.after[block]))]
            seen.add(block)
            while stack:
                top, rest = stack[-1]
                following = next((x for x in rest if x in body and x not in seen), None)
                if following is None:
                    order.append(top)
                    stack.pop()
                else:
                    seen.add(following)
                    stack.append((following, iter(self.after[following])))

        visit(header)
        place = {block: i for i, block in enumerate(reversed(order))}
        for block in reversed(order):
            for other in self.after[block]:
                # Edges back belong to inner loops, which are looked at by themselves.
                if other not in place or place[other] <= place[block]:
                    continue
                sum_here, way = best[block]
                if other not in best or best[other][0] < sum_here + worth(other):
                    best[other] = (sum_here + worth(other), way + [other])
        ends = [best[block] for block in best if header in self.after[block]]
        return max(ends)[1]

    def count(self, way):
        counted = collections.Counter()
        for block in way:
            for opcode in self.blocks[block]:
                name = opcode.split(".")[0]
                kind = name if name in KINDS else "f32" if name in FLOATS else "rest"
                counted[kind] += 1
        return counted


def loop_of(code, shape):
    """What a warp issues for one block of keys that all its queries see: of the loop with the products, the shortest way that has
    all of them and begins the next block's copies; and the loops of these copies, as often as the threads need them."""
    loops = code.loops()
    products = lambda blocks: sum(code.blocks[b][i].startswith("HMMA") for b in blocks for i in range(len(code.blocks[b])))
    # Of 16 x 8 x 16 each, for scores and, in attention, for values.
    needed = shape.keys * shape.width // (128 if shape.kind == "masses" else 64) * shape.queries // 16
    holding = [header for header, body in loops.items() if products(body) >= needed]
    if not holding:
        raise Problem(f"no loop of {shape.kind} {shape.width} has {needed} products")
    header = min(holding, key=lambda h: len(loops[h]))
    body = loops[header]
    # Of the two widths of a copy a launch has one; the other is passed by.
    is_wide = lambda opcode: opcode.startswith("LDGSTS") and opcode.endswith("128")
    inner = {h: b for h, b in loops.items() if h != header and b < body and not products(b)}
    copying = set().union(*inner.values()) if inner else set()

    def worth(block):
        opcodes = code.blocks[block]
        begun = sum(opcode.startswith("LDGDEPBAR") or is_wide(opcode) for opcode in opcodes)
        cost = 0 if block in copying else len(opcodes)
        return products([block]) * 10**6 + begun * 10**4 - cost

    way = [block for block in code.path(header, body, worth) if block not in copying]
    counted = code.count(way)
    if counted["HMMA"] != needed:
        raise Problem(f"the loop of {shape.kind} {shape.width} has {counted['HMMA']} products on its way, not {needed}")
    # Rows of keys exist, so the copies' longest way is the usual one.
    bodies = [code.count(code.path(h, b, lambda block: len(code.blocks[block]))) for h, b in inner.items()]
    wide = [sum(is_wide(op) for b in blocks for op in code.blocks[b]) for blocks in inner.values()]
    each = [(body, n) for body, n in zip(bodies, wide) if n]
    unrolled = sum(is_wide(op) for b in way for op in code.blocks[b])
    copies = shape.keys * shape.width // 8 * (1 if shape.kind == "masses" else 2) / shape.threads - unrolled
    if copies > 0 and not each:
        raise Problem(f"the copies of {shape.kind} {shape.width} were not found")
    if copies > 0:
        for body, n in each:
            for kind, count in body.items():
                # Of the two widths of a copy a thread does one; the other is issued and does nothing.
                useful = n if kind == "LDGSTS" else count
                counted[kind] += copies / len(each) * useful / n
                counted["rest"] += copies / len(each) * (count - useful) / n
    return counted


def disassembled(nvdisasm, cubin):
    text = subprocess.run([nvdisasm, "-c", cubin], check=True, text=True, capture_output=True).stdout
    found, name = collections.defaultdict(list), None
    for line in text.splitlines():
        if section := re.match(r"\.text\.(\w+):", line):
            name = section[1]
        elif name:
            found[name].append(line)
    return found


# --- the tables -----------------------------------------------------------------------------------------------------------------

def table(header, rows):
    lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]
    return "\n".join(lines) + "\n"


def resources(used, threads, known):
    """Registers and occupancy, a row a kernel; types that agree share one."""
    rows = collections.OrderedDict()
    for name in used[80]:
        plain = re.sub(r"^attention_|_(bf16|f16|f32)\b|_(bf16|f16|f32)(?=_)", "", name)
        of_type = re.search(r"_(bf16|f16|f32)(?:_|$)", name)
        shape = known.get(plain)
        dynamic = dynamic_shared(shape) if shape else 0
        spills = [f"{used[card][name].spills} (sm_{card})" for card in CARDS if used[card][name].spills]
        cells = [str(threads[name]), f"{(dynamic + used[80][name].shared) / 1024:.1f}", ", ".join(spills) or "none"]
        for card in CARDS:
            here = used[card][name]
            count = blocks(card, threads[name], here.registers, dynamic + here.shared)
            share = count * threads[name] // 32 / CARDS[card].warps
            cells.append(f"{here.registers}: {count} ({share:.0%})" if count else f"{here.registers}: too large")
        rows.setdefault((plain, tuple(cells)), []).append(of_type[1] if of_type else "all")
    header = ["kernel", "types", "threads", "shared KiB", "spilled bytes", *(f"sm_{card}" for card in CARDS)]
    order = lambda row: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row[0][0])]
    return table(header, [[plain, ", ".join(sorted(types)), *cells] for (plain, cells), types in sorted(rows.items(), key=order)])


def busy(counted):
    """Cycles of a quarter of a multiprocessor that a warp keeps each part busy for one block of keys."""
    return {
        "tensor cores": counted["HMMA"] * TENSOR,
        "issue": sum(counted.values()),
        "shared memory": (counted["LDSM"] + counted["LDGSTS"]) * SHARED,
        "special functions": counted["MUFU"] * SPECIAL,
        "f32": counted["f32"] * FLOAT,
    }


def mix(codes, known):
    rows = []
    for plain, shape in known.items():
        counted = loop_of(codes[shape.name], shape)
        cycles = busy(counted)
        tensor, most = cycles["tensor cores"], max(cycles, key=cycles.get)
        rows.append([
            plain, f"{shape.queries} x {shape.keys}", *(f"{counted[kind]:.0f}" for kind in KINDS), f"{sum(counted.values()):.0f}",
            *(f"{cycles[part]:.0f}" for part in cycles), f"{min(1, tensor / cycles['issue']):.0%}",
            f"{tensor / cycles[most]:.0%} ({most})",
        ])
    header = ["kernel", "a warp's block", *KINDS, "all", *(f"cycles: {part}" for part in busy(collections.Counter())),
              "tensor rate by issue slots", "by the busiest part"]
    return table(header, rows)


def short_chunk(known, cycles):
    """What few queries over many keys cost, which are as many thread blocks as there are heads."""
    heads, chunk, context, keys = 32, 64, 131072, known["prefill_128"].keys
    busiest = max(cycles.values())
    least = context // keys * busiest / 1.41e9
    return textwrap.fill(
        f"Short chunks over long contexts do not fill a card: {chunk} queries of {heads} heads are {heads} thread blocks on 108 multiprocessors, each of "
        f"which walks over all keys. Of 131,072 keys that is {context // keys:,} blocks of at least {busiest:,.0f} cycles each, {least * 1e3:.1f} ms a "
        f"layer or more, where the products alone would be {4 * chunk * context * heads * 128 / 312e12 * 1e3:.2f} ms on all of an A100. Splitting the keys, as "
        f"single rows do, would need a pass that joins the parts, and is not done.", 150) + "\n"


def bytes_moved(known):
    """What a chunk of prefill moves, for a shape like Qwen3 8B's: 32 heads, 8 of keys, width 128, in half precision."""
    heads, kv_heads, chunk, context = 32, 8, 1024, 131072
    shape = known["prefill_128"]
    tile = shape.threads // 32 * shape.queries
    row = 2 * shape.width
    once = 2 * kv_heads * context * row
    again = chunk // tile * heads * 2 * context * row
    ends = 2 * chunk * heads * row
    scores = chunk * context * heads
    flops = 4 * scores * shape.width
    return textwrap.fill(
        f"A chunk of {chunk:,} queries over {context:,} keys (32 heads of width 128, 8 of keys and values, half precision) is "
        f"{flops / 1e12:.1f} TFLOP, {flops / 312e12 * 1e3:.1f} ms at an A100's 312 TFLOP/s. Its thread blocks of {tile} queries ask for "
        f"{again / 1e9:.1f} GB of keys and values, which come from the second-level cache where several blocks read the same at once; from "
        f"memory at least {(once + ends) / 1e9:.2f} GB must come ({(once + ends) / 1.555e12 * 1e3:.2f} ms at the 1,555 GB/s of the card with "
        f"40 GB). Scores in memory would be {2 * scores / 1e9:.1f} GB in half precision, each time they are written or read.", 190) + "\n"


NOTES = """`python3 scripts/kernel_reckoning.py PTX --write` prints this from `ptxas` {version} and `nvdisasm`. None of it was measured. It is of
{made}.

Registers of a thread, then thread blocks that a multiprocessor holds at once and the share of its warps that they are:

{resources}
Of the loop over the keys, what a warp issues for one block of keys that all its queries see (no mask, no soft cap), on sm_80, and how
many cycles each part of a quarter of an A100's multiprocessor is busy with it: 8 for a product of tensor cores (HMMA), 1 to issue any
instruction, 16 for 512 bytes of shared memory (LDSM, LDGSTS), 8 for a special function (MUFU), 2 for a sum or product in f32. The
share is the tensor cores' part of the cycles of what is busiest, if everything else hides behind it, which no program reaches:

{mix}
{bytes}
{short}
"""


def reckon(ptx_folder, ptxas, nvdisasm):
    known, used, threads, made = shapes(), {card: {} for card in CARDS}, {}, []
    version = re.search(r"V([\d.]+)", subprocess.run([ptxas, "--version"], check=True, text=True, capture_output=True).stdout)[1]
    codes = {}
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder) / "cubin"
        for source in (FOLDER / name for name in SOURCES):
            ptx = ptx_folder / source.with_suffix(".ptx").name
            if not ptx.exists():
                raise Problem(f"{ptx} is not there; scripts/rehearsal.sh --build says in which folder it is")
            threads |= threads_of(ptx)
            made.append(f"{source.name} with sha256 {hashlib.sha256(source.read_bytes()).hexdigest()}")
            for card in CARDS:
                used[card] |= assembled(ptxas, ptx, card, cubin)
                if card == 80 and ptx.stem != "rows":
                    codes |= {name: Code(lines) for name, lines in disassembled(nvdisasm, cubin).items()}
    made.append(f"{HEADER} with sha256 {hashlib.sha256((FOLDER / HEADER).read_bytes()).hexdigest()}")
    cycles = busy(loop_of(codes["attention_prefill_f16_128"], known["prefill_128"]))
    return NOTES.format(
        version=version, made=",\n".join(made), resources=resources(used, threads, known), mix=mix(codes, known),
        bytes=bytes_moved(known), short=short_chunk(known, cycles))


def write(text):
    path = ROOT / "docs" / "gpu.md"
    before, found, rest = path.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (found and end):
        raise Problem(f"{path} has no lines {MARKS[0].strip()} and {MARKS[1]}; put them where the tables belong")
    path.write_text(before + MARKS[0] + text + MARKS[1] + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ptx", type=pathlib.Path, metavar="PTX", help="the folder of our kernels' PTX")
    parser.add_argument("--ptxas", help="NVIDIA's assembler (from the PATH)")
    parser.add_argument("--nvdisasm", help="NVIDIA's disassembler (from the PATH)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/gpu.md too")
    given = parser.parse_args()
    try:
        ptxas = program("ptxas", given.ptxas, 'eval "$(scripts/cuda_env.sh DIR)" brings it')
        nvdisasm = program("nvdisasm", given.nvdisasm, "pip install nvidia-cuda-nvdisasm brings it, in nvidia/cu13/bin")
        text = reckon(given.ptx, ptxas, nvdisasm)
        print(text, end="")
        if given.write:
            write(text)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
