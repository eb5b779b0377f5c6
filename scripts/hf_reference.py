#!/usr/bin/env python3
"""Reference numbers from Hugging Face transformers, in f32 with eager attention.

For developers only: palimpsest never needs it. It makes the parity fixtures under tests/fixtures and checks a
`palimpsest trace` against them. The environment: `pip install -r scripts/requirements.txt` (Python 3.11 or newer).

  tiny           a tiny random checkpoint of an architecture, with its tokeniser, and the numbers it must give
  masses         the same numbers for any local model: a folder, or a GGUF file dequantised to f32
  trace-compare  max-abs differences between two traces; exit code 1 above the tolerances

A trace request (tokens.json) is
  {"tokens": [u32, ...], "spans": {"old": [a, b], ...}, "rows": ["new", "query"], "logits": n}
with half-open ranges. The mass of (row span X, key span Y) at a layer and head is the mean over the tokens i of X of
the sum over the tokens j of Y of A[i, j], where A are the post-softmax weights: causal, so a key after i counts 0.
A trace or reference is a safetensors file with
  logits  f32 [last n positions, vocab]
  mass    f32 [layers, heads, row spans, key spans], in the order of the request
  tokens  u32 [tokens]
  greedy  u32 [new tokens]       references only: the plain argmax continuation, which no end token stops
  top     u32 [last n positions, 10]  references only: the ids of the ten largest logits, largest first
and metadata strings `layers` (indices), `rows` and `spans` (labels), each a JSON array.
"""

import argparse
import hashlib
import json
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

PROMPT_TOKENS = 151  # prime: a multiple of no chunk size
GREEDY_TOKENS = 64
LOGIT_POSITIONS = 16
TOP_IDS = 10
FIXTURE_BYTES = 1_000_000
# A greedy step whose two best logits are closer than this could flip between implementations that agree in every
# number to the tolerance of the parity tests (1e-3), so a seed that gives one is refused.
LEAST_MARGIN = 1e-2

# ---------------------------------------------------------------------------------------------------------------
# tiny: the checkpoints
# ---------------------------------------------------------------------------------------------------------------

# What every architecture shares. Sizes are odd on purpose: none is a multiple of a SIMD width or a block size, so a
# kernel that forgets its remainder cannot pass. The norm's epsilon is large on purpose: with a usual one, an engine
# that has the value built in instead of reading it would differ by less than the tolerance. `vocab_size` is the
# tokeniser's.
SHARED = dict(
    hidden_size=72,
    intermediate_size=100,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    rms_norm_eps=1e-3,
)


@dataclass(frozen=True)
class Tiny:
    """A tiny checkpoint: transformers' model type, what differs from SHARED, and where the chat template is kept."""

    model_type: str
    config: dict = field(default_factory=dict)
    # Released checkpoints keep the template in tokenizer_config.json (older) or chat_template.jinja (newer).
    template_in_own_file: bool = False
    seed: int = 1


# One entry an architecture or variant.
TINY = {
    "llama": Tiny("llama", dict(head_dim=12, tie_word_embeddings=False,
                                rope_parameters=dict(rope_type="default", rope_theta=10000.0)), seed=2),
    # head_dim is not hidden_size / heads. With these numbers the ten rotary wavelengths fall in all three of the
    # llama3 ranges (kept, blended, slowed down), and the slowed ones matter within the prompt.
    "llama3": Tiny("llama", dict(head_dim=20, tie_word_embeddings=True,
                                      rope_parameters=dict(rope_type="llama3", rope_theta=50000.0, factor=8.0,
                                                           low_freq_factor=1.0, high_freq_factor=4.0,
                                                           original_max_position_embeddings=512)),
                        template_in_own_file=True, seed=4),
}

# The request of the tiny fixtures. Spans overlap (`overlap`, `tail`), leave a gap (tokens 1..17), start and end off
# every block, lie wholly after a row span (`query` seen from `new`), or cover all (its mass is 1).
TINY_SPANS = {
    "bos": [0, 1],
    "old": [17, 54],
    "neighbour": [54, 83],
    "one": [64, 65],
    "overlap": [40, 97],
    "new": [83, 120],
    "tail": [101, 151],
    "query": [139, 151],
    "all": [0, 151],
}
TINY_ROWS = ["new", "query"]

# A few merges, so that a token can lie across a border: a content that starts with a line break merges with the one
# that the chat template puts before it (`ĊĊ`).
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "Ċ Ċ", "in g", "Ġ Ġ"]
SPECIAL_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
CHAT_TEMPLATE = (
    "{%- for turn in messages -%}"
    "{{- '<|im_start|>' ~ turn['role'] ~ '\\n' ~ turn['content'] ~ '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, MERGES and the three ChatML tokens."""
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(merge) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   clean_up_tokenization_spaces=False,
                                   model_max_length=SHARED["max_position_embeddings"])
    fast.chat_template = CHAT_TEMPLATE
    return fast


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights under which parity is hard to reach by accident: attention far from uniform, heads unlike each other.

    A fresh initialisation (std 0.02, norms 1) gives nearly uniform attention, which hides mistakes in rotation, scale
    and grouping. Here scores have a standard deviation of about 1 to 5 from the first head to the last.
    """
    generator = torch.Generator().manual_seed(seed)
    head_dim = model.config.head_dim
    tied = model.config.tie_word_embeddings
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            # Norms lie around 1, biases around 0.
            weight.copy_(1 + 0.25 * noise if "norm" in name else 0.1 * noise)
        elif "embed" in name:
            weight.copy_((0.35 if tied else 1.0) * noise)
        else:
            gain = 1.0
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                heads = weight.shape[0] // head_dim
                gain = torch.linspace(1.0, 2.2, heads).repeat_interleave(head_dim)[:, None]
            elif name.startswith("lm_head"):
                gain = 2.5
            weight.copy_(gain * noise * weight.shape[1] ** -0.5)


def run_tiny(args: argparse.Namespace) -> None:
    tiny = TINY[args.arch]
    seed = tiny.seed if args.seed is None else args.seed
    tokenizer = tiny_tokenizer()
    vocab = len(tokenizer)
    config = AutoConfig.for_model(tiny.model_type, **{
        **SHARED, **tiny.config, "vocab_size": vocab, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    randomise(model, seed)
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out, save_jinja_files=tiny.template_in_own_file)
    # What a reader of the folder gets is what the numbers are made from.
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()

    draw = torch.Generator().manual_seed(seed + 1)
    request = {
        "tokens": torch.randint(0, vocab, (PROMPT_TOKENS,), generator=draw).tolist(),
        "spans": TINY_SPANS, "rows": TINY_ROWS, "logits": LOGIT_POSITIONS,
    }
    write_request(out / "tokens.json", request)
    tensors = reference(model, request, chunk=None)
    tensors["greedy"], margin = greedy(model, request["tokens"], GREEDY_TOKENS)
    if margin < LEAST_MARGIN:
        sys.exit(f"error: with seed {seed} two logits of a greedy step are only {margin:.2g} apart (at least "
                 f"{LEAST_MARGIN} is needed for a stable test); choose another --seed")
    whole = tensors["mass"][..., list(TINY_SPANS).index("all")]
    if np.abs(whole - 1).max() > 1e-5:
        sys.exit(f"error: the masses of the whole prompt are not 1 but {whole.min()}..{whole.max()}")
    write_reference(out / "reference.safetensors", tensors, request, model, {
        "command": f"hf_reference.py tiny {args.arch} --seed {seed}", "seed": str(seed), "arch": args.arch})
    size = sum(path.stat().st_size for path in out.iterdir())
    if size >= FIXTURE_BYTES:
        sys.exit(f"error: {out} holds {size} bytes; a fixture stays under {FIXTURE_BYTES}: make the model smaller")
    describe(tensors, request)
    print(f"greedy margin {margin:.3g}, {len(set(tensors['greedy'].tolist()))} different tokens; {size} bytes in {out}")


# ---------------------------------------------------------------------------------------------------------------
# the numbers
# ---------------------------------------------------------------------------------------------------------------

class MassHooks:
    """Reduces each layer's attention weights to span masses as they are made, and drops them.

    `offset` is the position of the first query of the current forward. Keys may be fewer than the tokens so far (the
    cache of a sliding-window layer keeps only its window); they are always the last ones.
    """

    def __init__(self, model: torch.nn.Module, request: dict):
        self.spans = list(request["spans"].values())
        self.rows = [request["spans"][label] for label in request["rows"]]
        self.offset = 0
        self.sums = {}
        self.handles = []
        for name, module in model.named_modules():
            if name.endswith(".self_attn"):
                layer = int(name.split(".")[-2])
                self.handles.append(module.register_forward_hook(self.hook(layer)))
        if not self.handles:
            raise SystemExit(f"error: {type(model).__name__} has no module named self_attn; add its name to MassHooks")

    def hook(self, layer: int):
        def reduce(_module, _inputs, output):
            weights = output[1]
            if weights is None:
                raise SystemExit(f"error: layer {layer} returned no attention weights; is its attention eager?")
            weights = weights[0]  # (heads, queries, keys)
            heads, queries, keys = weights.shape
            first_query, first_key = self.offset, self.offset + queries - keys
            sums = self.sums.setdefault(layer, torch.zeros(heads, len(self.rows), len(self.spans), dtype=torch.float64))
            for r, (a, b) in enumerate(self.rows):
                a, b = max(a - first_query, 0), min(b - first_query, queries)
                if a >= b:
                    continue
                part = weights[:, a:b]
                for s, (c, d) in enumerate(self.spans):
                    c, d = max(c - first_key, 0), min(d - first_key, keys)
                    if c < d:
                        sums[:, r, s] += part[:, :, c:d].sum(dim=(1, 2), dtype=torch.float64)
        return reduce

    def masses(self) -> tuple[list[int], np.ndarray]:
        """Layer indices and f32 masses [layers, heads, rows, spans]."""
        layers = sorted(self.sums)
        rows = torch.tensor([b - a for a, b in self.rows], dtype=torch.float64)[:, None]
        return layers, torch.stack([self.sums[layer] / rows for layer in layers]).float().numpy()

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


@torch.inference_mode()
def reference(model: torch.nn.Module, request: dict, chunk: int | None) -> dict[str, np.ndarray]:
    """Logits and masses of a request. With `chunk`, queries go through in chunks over a key/value cache, so that at
    most heads x chunk x tokens weights live at a time."""
    tokens = torch.tensor([request["tokens"]])
    n = tokens.shape[1]
    wanted = request["logits"]
    hooks = MassHooks(model, request)
    cache, logits = None, []
    try:
        for start in range(0, n, chunk or n):
            end = min(start + (chunk or n), n)
            hooks.offset = start
            keep = min(end - start, max(end - (n - wanted), 0))
            # logits_to_keep=0 would mean all of them.
            out = model(tokens[:, start:end], past_key_values=cache, use_cache=chunk is not None,
                        logits_to_keep=max(keep, 1))
            cache = out.past_key_values
            if keep:
                logits.append(out.logits[0, -keep:])
            if chunk:
                print(f"\r{end}/{n} tokens", end="", file=sys.stderr, flush=True)
    finally:
        hooks.remove()
    if chunk:
        print(file=sys.stderr)
    logits = torch.cat(logits).float()
    layers, mass = hooks.masses()
    return {
        "logits": logits.numpy(), "mass": mass, "layers": np.array(layers),
        "tokens": np.array(request["tokens"], dtype=np.uint32),
        "top": logits.topk(min(TOP_IDS, logits.shape[1])).indices.numpy().astype(np.uint32),
    }


@torch.inference_mode()
def greedy(model: torch.nn.Module, tokens: list[int], count: int) -> tuple[np.ndarray, float]:
    """`count` argmax tokens after `tokens`, and the smallest distance between the two best logits on the way."""
    step, cache, made, margin = torch.tensor([tokens]), None, [], float("inf")
    for _ in range(count):
        out = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best = out.logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        made.append(int(best.indices[0]))
        step, cache = best.indices[:1][None], out.past_key_values
    return np.array(made, dtype=np.uint32), margin


def write_request(path: Path, request: dict) -> None:
    path.write_text(json.dumps(request) + "\n")


def read_request(path: Path) -> dict:
    """A trace request, checked: what it names exists and lies within the tokens."""
    request = json.loads(path.read_text())
    if missing := [key for key in ("tokens", "spans", "rows") if key not in request]:
        sys.exit(f"error: {path} is no trace request: it lacks {', '.join(missing)}")
    n = len(request["tokens"])
    for label, (a, b) in request["spans"].items():
        if not 0 <= a < b <= n:
            sys.exit(f"error: {path}: span {label!r} is [{a}, {b}), which is empty or outside the {n} tokens")
    for label in request["rows"]:
        if label not in request["spans"]:
            sys.exit(f"error: {path}: row {label!r} is not among the spans {list(request['spans'])}")
    request.setdefault("logits", 1)
    if not 1 <= request["logits"] <= n:
        sys.exit(f"error: {path}: logits is {request['logits']}; it must be 1 to {n}")
    return request


def write_reference(path: Path, tensors: dict, request: dict, model: torch.nn.Module, more: dict) -> None:
    tensors = dict(tensors)
    layers = tensors.pop("layers").tolist()
    metadata = {
        "layers": json.dumps(layers),
        "rows": json.dumps(request["rows"]),
        "spans": json.dumps(list(request["spans"])),
        "architecture": model.config.architectures[0] if model.config.architectures else type(model).__name__,
        "attention": "eager", "dtype": "f32",
        "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
        "python": platform.python_version(), **more,
    }
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path, metadata)


def describe(tensors: dict, request: dict) -> None:
    """Prints the masses averaged over heads at the first, middle and last layer."""
    mass = tensors["mass"]
    print(f"mass {list(mass.shape)}, logits {list(tensors['logits'].shape)}, heads averaged:")
    for layer in sorted({0, len(mass) // 2, len(mass) - 1}):
        for r, row in enumerate(request["rows"]):
            cells = "  ".join(f"{label} {mass[layer, :, r, s].mean():.4f}" for s, label in enumerate(request["spans"]))
            print(f"  layer {tensors['layers'][layer]:2} {row:>6} -> {cells}")


# ---------------------------------------------------------------------------------------------------------------
# masses: any local model
# ---------------------------------------------------------------------------------------------------------------

def load_model(folder: Path, gguf: str | None) -> torch.nn.Module:
    """A model in f32 with eager attention, from a folder or a GGUF file in it."""
    more = {"gguf_file": gguf} if gguf else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **more).eval()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_masses(args: argparse.Namespace) -> None:
    request = read_request(args.tokens)
    model = load_model(args.model, args.gguf)
    tensors = reference(model, request, args.chunk)
    command = f"hf_reference.py masses MODEL --tokens {args.tokens.name}"
    more = {}
    if args.gguf:
        command += f" --gguf {args.gguf}"
        more = {"file": args.gguf, "sha256": digest(args.model / args.gguf)}
    if args.chunk:
        command += f" --chunk {args.chunk}"
    if args.greedy:
        command += f" --greedy {args.greedy}"
        tensors["greedy"], margin = greedy(model, request["tokens"], args.greedy)
        print(f"greedy margin {margin:.3g}: {tensors['greedy'].tolist()}")
    write_reference(args.out, tensors, request, model, {"command": command, **more})
    describe(tensors, request)


# ---------------------------------------------------------------------------------------------------------------
# trace-compare
# ---------------------------------------------------------------------------------------------------------------

def read_trace(path: Path) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """The tensors of a trace, and its labels. Labels may be plain strings or span objects with a `label`."""
    with safe_open(path, "numpy") as file:
        metadata = file.metadata() or {}
        missing = [key for key in ("layers", "rows", "spans") if key not in metadata]
        missing += [key for key in ("logits", "mass") if key not in file.keys()]
        if missing:
            sys.exit(f"error: {path} is no trace: it lacks {', '.join(missing)}")
        labels = {key: [entry["label"] if isinstance(entry, dict) else entry for entry in json.loads(metadata[key])]
                  for key in ("layers", "rows", "spans")}
        return {key: file.get_tensor(key) for key in file.keys()}, labels


def run_compare(args: argparse.Namespace) -> None:
    (ours, our_labels), (theirs, their_labels) = read_trace(args.ours), read_trace(args.reference)
    for key, labels in their_labels.items():
        if our_labels[key] != labels:
            sys.exit(f"error: {key} differ: ours {our_labels[key]}, reference {labels}")
    if "tokens" in ours and "tokens" in theirs and not np.array_equal(ours["tokens"], theirs["tokens"]):
        sys.exit("error: the two traces are of different tokens")
    failed = False
    for key, tolerance in (("logits", args.logits_tol), ("mass", args.mass_tol)):
        if ours[key].shape != theirs[key].shape:
            sys.exit(f"error: {key} has shape {ours[key].shape}, the reference {theirs[key].shape}")
        a, b = ours[key].astype(np.float64), theirs[key].astype(np.float64)
        difference = np.abs(a - b)
        # A NaN compares false with everything: it must not pass as a small difference.
        worst = np.unravel_index(np.argmax(np.where(np.isnan(difference), np.inf, difference)), difference.shape)
        cosine = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
        good = bool(difference[worst] <= tolerance)
        failed |= not good
        print(f"{key:6} {'ok' if good else 'FAILED':6} max-abs {difference[worst]:.3g} (tolerance {tolerance:g}) at "
              f"{[int(i) for i in worst]}: ours {a[worst]:.6g}, reference {b[worst]:.6g}; mean-abs "
              f"{difference.mean():.3g}, cosine {cosine:.9f}")
    same = (ours["logits"].argmax(-1) == theirs["logits"].argmax(-1)).sum()
    print(f"argmax {same} of {len(theirs['logits'])} positions agree")
    sys.exit(1 if failed else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; 1, the default, makes sums repeatable")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    tiny = commands.add_parser("tiny", help="a tiny random checkpoint and its reference numbers",
                               description="Writes a checkpoint as save_pretrained does, a byte-level ChatML "
                               "tokeniser, tokens.json and reference.safetensors, under 1 MB together.")
    tiny.add_argument("arch", choices=TINY, help="an entry of the table TINY in this file")
    tiny.add_argument("--out", type=Path, required=True, metavar="DIR", help="made if missing, files are replaced")
    tiny.add_argument("--seed", type=int, help="of weights and prompt; by default the table's")
    tiny.set_defaults(run=run_tiny)

    masses = commands.add_parser("masses", help="reference numbers of a local model",
                                 description="Runs a trace request through a local model; nothing is downloaded. "
                                 "2,164 tokens on a 135M model take 1.9 GB with --chunk 256.")
    masses.add_argument("model", type=Path, metavar="MODEL", help="the model's folder (the file's folder with --gguf)")
    masses.add_argument("--tokens", type=Path, required=True, help="the trace request, tokens.json")
    masses.add_argument("--out", type=Path, required=True, help="the reference to write, *.safetensors")
    masses.add_argument("--gguf", metavar="FILE", help="name of a GGUF file in MODEL, dequantised to f32")
    masses.add_argument("--chunk", type=int, metavar="N", help="queries at a time, to bound memory; all by default")
    masses.add_argument("--greedy", type=int, default=0, metavar="N", help="also N tokens of greedy continuation")
    masses.set_defaults(run=run_masses)

    compare = commands.add_parser("trace-compare", help="compare a trace with a reference",
                                  description="Prints max-abs differences; exit code 1 above a tolerance or where "
                                  "labels or shapes differ.")
    compare.add_argument("ours", type=Path, metavar="OURS", help="out.safetensors of `palimpsest trace`")
    compare.add_argument("reference", type=Path, metavar="REFERENCE", help="reference.safetensors")
    compare.add_argument("--logits-tol", type=float, default=1e-3, help="default %(default)s")
    compare.add_argument("--mass-tol", type=float, default=1e-4, help="default %(default)s")
    compare.set_defaults(run=run_compare)

    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    try:
        args.run(args)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
