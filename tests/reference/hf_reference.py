#!/usr/bin/env python3
"""Reference numbers from Hugging Face transformers, in f32 with eager attention.

For developers only: palimpsest never needs it. It makes the parity fixtures under tests/fixtures and checks a
`palimpsest trace` against them. The environment: `pip install -r tests/reference/requirements.txt` (Python 3.11 or newer).

  tiny           a tiny random checkpoint of an architecture (hf_tiny.py), and the numbers it must give
  narrow         puts the numbers of one narrow type into references of tiny checkpoints, and leaves the others alone
  each           what each generated token of a tiny checkpoint pays, in ../each/NAME.safetensors
  knockout       the numbers of a tiny checkpoint some of whose paths are blocked, in ../knockout/NAME.safetensors
  measures       what the attention of a tiny checkpoint carries, in ../measures/NAME.safetensors
  prompts        rounding errors of a tiny checkpoint over eight prompts, in ../prompts/NAME.safetensors
  masses         the same numbers for any local model: a folder, or a GGUF file dequantised to f32
  trace-compare  max-abs differences between two traces; exit code 1 above the tolerances

A trace request (tokens.json) is
  {"tokens": [u32, ...], "spans": {"old": [a, b], ...}, "rows": ["new", "query"], "logits": n}
with half-open ranges. It may ask for paths to be blocked, {"knockouts": [{"rows": "query", "keys": "old", "layers": [a, b]}, ...]}
(absent layers: all), and for the largest weights of each token of the rows, {"top_keys": k}. The mass of (row span X, key span Y) at a layer and head is the mean over the tokens i of X of
the sum over the tokens j of Y of A[i, j], where A are the post-softmax weights: causal, so a key after i counts 0.
A trace or reference is a safetensors file with
  logits  f32 [last n positions, vocab]
  mass    f32 [layers, heads, row spans, key spans], in the order of the request; softmax-attention layers only
  sink    f32 [layers, heads, row spans]  where the softmax has a sink: its share, so that with `all` it gives 1
  delta_signed, delta_share  f32 [delta layers, value heads, row spans, key spans]  where layers follow the gated delta
          rule (Qwen3.5): their output is a signed sum of the values, o_t = sum over s of a[t, s] v_s (DeltaHooks in
          hf_numbers.py). Means over the row span of the sum of a[t, s] over the key span, and of that span's part of
          the sum of |a[t, s]| over all tokens
  top_keys u32, top_weights f32  [layers, heads, row tokens, k]  where they are asked for; row spans one after the other
  value_norm, output_norm  f32 [layers, heads, row spans, key spans]  with {"measures": true} (LengthHooks in hf_numbers.py)
  tokens  u32 [tokens]
  greedy  u32 [new tokens]       references only: the plain argmax continuation, which no end token stops
  top     u32 [last n positions, 10]  references only: the ids of the ten largest logits, largest first
  logit_ids  u32 [kept]          references with --every only: then `logits` is f32 [last n positions, kept], of these
          token ids, ascending, and the other logits are left out
  NAME_bf16, NAME_f16  as NAME   references only: what transformers gives with the model in bf16 and in f16; left out
          where it overflows
and metadata strings `layers` and `delta_layers` (indices), `rows` and `spans` (labels), each a JSON array.

each/NAME.safetensors has `generated` u32 [n], the first tokens of `greedy`; `mass_each` f32 [layers, heads, n, key spans] and, as
above, `sink_each` [layers, heads, n], `delta_signed_each` and `delta_share_each` [delta layers, value heads, n, key spans]: of
a pass over prompt and continuation, in which the row of a generated token is the position that predicts it.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from hf_numbers import describe, greedy, read_request, reference, write_reference
from hf_tiny import EACH_TOKENS, NARROW, TINY, run_each, run_knockout, run_measures, run_narrow, run_prompts, run_tiny

# ---------------------------------------------------------------------------------------------------------------
# masses: any local model
# ---------------------------------------------------------------------------------------------------------------

def load_model(folder: Path, gguf: str | None, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A model with eager attention, from a folder or a GGUF file in it."""
    more = {"gguf_file": gguf} if gguf else {}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **more).eval()


def run_masses_in_bf16(args: argparse.Namespace) -> None:
    """Adds `logits_bf16` and `mass_bf16` to a reference that is there."""
    with safe_open(args.out, "np") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()
    made = reference(load_model(args.model, args.gguf, torch.bfloat16), read_request(args.tokens), args.chunk, check=False)
    kept = tensors.get("logit_ids")
    logits = made["logits"] if kept is None else made["logits"][:, kept]
    tensors |= {"logits_bf16": np.ascontiguousarray(logits), "mass_bf16": made["mass"]}
    for name in ("logits", "mass"):
        apart = np.abs(tensors[f"{name}_bf16"].astype(np.float64) - tensors[name])
        print(f"{name}_bf16 differs by {np.sqrt((apart ** 2).mean()):.3g}, at most {apart.max():.3g}")
    save_file(tensors, args.out, metadata)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_masses(args: argparse.Namespace) -> None:
    if args.bf16:
        return run_masses_in_bf16(args)
    request = read_request(args.tokens)
    model = load_model(args.model, args.gguf)
    tensors = reference(model, request, args.chunk)
    if args.every:
        vocab = tensors["logits"].shape[1]
        kept = np.union1d(np.arange(0, vocab, args.every), tensors["top"]).astype(np.uint32)
        tensors |= {"logits": tensors["logits"][:, kept], "logit_ids": kept}
    command = f"hf_reference.py masses MODEL --tokens {args.tokens.name}"
    more = {}
    if args.gguf:
        command += f" --gguf {args.gguf}"
        more = {"file": args.gguf, "sha256": digest(args.model / args.gguf)}
    if args.chunk:
        command += f" --chunk {args.chunk}"
    if args.every:
        command += f" --every {args.every}"
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
                  for key in ("layers", "delta_layers", "rows", "spans") if key in metadata}
        return {key: file.get_tensor(key) for key in file.keys()}, labels


def run_compare(args: argparse.Namespace) -> None:
    (ours, our_labels), (theirs, their_labels) = read_trace(args.ours), read_trace(args.reference)
    for key, labels in their_labels.items():
        if our_labels.get(key) != labels:
            sys.exit(f"error: {key} differ: ours {our_labels.get(key)}, reference {labels}")
    if "tokens" in ours and "tokens" in theirs and not np.array_equal(ours["tokens"], theirs["tokens"]):
        sys.exit("error: the two traces are of different tokens")
    # Of a reference with --every, the index of the largest logit kept is no token id.
    best, their_best = (trace["top"][:, 0] if "top" in trace else trace["logits"].argmax(-1) for trace in (ours, theirs))
    if "logit_ids" in theirs:
        kept, vocab = theirs["logit_ids"], ours["logits"].shape[1]
        if "logit_ids" not in ours and kept.max() < vocab:
            ours |= {"logit_ids": kept, "logits": ours["logits"][:, kept]}
        if not np.array_equal(ours.get("logit_ids"), kept):
            sys.exit(f"error: {args.ours} has not the logits of the {len(kept)} ids that the reference has")
    failed = False
    for key in ("logits", "mass", "sink", "delta_signed", "delta_share", "value_norm", "output_norm", "top_weights"):
        if key not in theirs:
            continue
        if key not in ours:
            sys.exit(f"error: {args.ours} lacks {key}, which the reference has")
        tolerance = args.logits_tol if key == "logits" else args.mass_tol
        if key.endswith("_norm"):
            # Lengths have a scale of their own: relative to the largest.
            tolerance *= float(np.abs(theirs[key]).max())
        if ours[key].shape != theirs[key].shape:
            sys.exit(f"error: {key} has shape {ours[key].shape}, the reference {theirs[key].shape}")
        a, b = ours[key].astype(np.float64), theirs[key].astype(np.float64)
        difference = np.abs(a - b)
        # A NaN compares false with everything: it must not pass as a small difference.
        worst = np.unravel_index(np.argmax(np.where(np.isnan(difference), np.inf, difference)), difference.shape)
        cosine = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
        good = bool(difference[worst] <= tolerance)
        failed |= not good
        print(f"{key:12} {'ok' if good else 'FAILED':6} max-abs {difference[worst]:.3g} (tolerance {tolerance:g}) at "
              f"{[int(i) for i in worst]}: ours {a[worst]:.6g}, reference {b[worst]:.6g}; mean-abs "
              f"{difference.mean():.3g}, cosine {cosine:.9f}")
    print(f"argmax {(best == their_best).sum()} of {len(their_best)} positions agree")
    sys.exit(1 if failed else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; 1, the default, makes sums repeatable")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    tiny = commands.add_parser("tiny", help="a tiny random checkpoint and its reference numbers",
                               description="Writes a checkpoint as save_pretrained does, a byte-level ChatML "
                               "tokeniser, tokens.json and reference.safetensors, under 1 MB together.")
    tiny.add_argument("arch", choices=TINY, help="an entry of the table TINY in hf_tiny.py")
    tiny.add_argument("--out", type=Path, required=True, metavar="DIR", help="made if missing, files are replaced")
    tiny.add_argument("--seed", type=int, help="of weights and prompt; by default the table's")
    tiny.set_defaults(run=run_tiny)

    narrow = commands.add_parser("narrow", help="the numbers of a tiny checkpoint in one more type",
                                 description="Puts NAME_bf16 or NAME_f16 into DIR/reference.safetensors in place of "
                                 "those it has. Every other tensor stays as it is, and so does the checkpoint.")
    narrow.add_argument("dtype", choices=NARROW)
    narrow.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a tiny checkpoint, or of its GGUF file")
    narrow.set_defaults(run=run_narrow)

    each = commands.add_parser("each", help="what generated tokens of a tiny checkpoint pay",
                               description=f"Writes DIR/../each/NAME.safetensors: the attention of each of the first "
                               f"{EACH_TOKENS} greedy tokens of DIR/reference.safetensors. Nothing else is changed.")
    each.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a tiny checkpoint")
    each.set_defaults(run=run_each)

    knockout = commands.add_parser("knockout", help="the numbers of a tiny checkpoint some of whose paths are blocked",
                                   description="Writes DIR/../knockout/NAME.safetensors: logits, masses and largest weights of the "
                                   "prompt of DIR/tokens.json with the knock-outs that its metadata has. Nothing else is changed.")
    knockout.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a tiny checkpoint")
    knockout.set_defaults(run=run_knockout)

    measures = commands.add_parser("measures", help="what the attention of a tiny checkpoint carries",
                                   description="Writes DIR/../measures/NAME.safetensors: value_norm and output_norm of the prompt of "
                                   "DIR/tokens.json, plain and with a path blocked. Nothing else is changed.")
    measures.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a tiny checkpoint")
    measures.set_defaults(run=run_measures)
    prompts = commands.add_parser("prompts", help="rounding errors of a tiny checkpoint over eight prompts")
    prompts.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a tiny checkpoint with Mamba-2 layers or an indexer")
    prompts.set_defaults(run=run_prompts)

    masses = commands.add_parser("masses", help="reference numbers of a local model",
                                 description="Runs a trace request through a local model; nothing is downloaded. "
                                 "2,164 tokens on a 135M model take 1.9 GB with --chunk 256.")
    masses.add_argument("model", type=Path, metavar="MODEL", help="the model's folder (the file's folder with --gguf)")
    masses.add_argument("--tokens", type=Path, required=True, help="the trace request, tokens.json")
    masses.add_argument("--out", type=Path, required=True, help="the reference to write, *.safetensors")
    masses.add_argument("--gguf", metavar="FILE", help="name of a GGUF file in MODEL, dequantised to f32")
    masses.add_argument("--chunk", type=int, metavar="N", help="queries at a time, to bound memory; all by default")
    masses.add_argument("--every", type=int, metavar="N", help="keep the logits of every N-th id and of `top` only")
    masses.add_argument("--greedy", type=int, default=0, metavar="N", help="also N tokens of greedy continuation")
    masses.add_argument("--bf16", action="store_true", help="add the numbers of the model in bf16 to a reference that is there")
    masses.set_defaults(run=run_masses)

    compare = commands.add_parser("trace-compare", help="compare a trace with a reference",
                                  description="Prints max-abs differences; exit code 1 above a tolerance or where "
                                  "labels or shapes differ.")
    compare.add_argument("ours", type=Path, metavar="OURS", help="out.safetensors of `palimpsest trace`")
    compare.add_argument("reference", type=Path, metavar="REFERENCE", help="reference.safetensors")
    compare.add_argument("--logits-tol", type=float, default=1e-3, help="default %(default)s")
    compare.add_argument("--mass-tol", type=float, default=1e-4, help="of all but logits; default %(default)s")
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
