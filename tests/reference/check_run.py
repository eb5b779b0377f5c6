#!/usr/bin/env python3
"""Recomputes the attention files of a run with transformers, from the tokens and spans that they hold.

For developers only (`pip install -r tests/reference/requirements.txt`). Prints for each file, row and tensor the largest
difference, and fails above the tolerance:

  check_run.py RUN MODEL [--file GGUF] [--limit N] [--tolerance 1e-4]

RUN is a run folder, MODEL a Hugging Face folder, or with --file the folder of a GGUF file. Eager attention in f32; the
whole sequence, prompt and answer, in chunks. A row of the answer is over the generated tokens from its start on.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from hf_numbers import MassHooks

CHUNK = 256


def load(folder: str, file: str | None):
    how = {"attn_implementation": "eager", "dtype": torch.float32}
    if file:
        how["gguf_file"] = file
    return AutoModelForCausalLM.from_pretrained(folder, **how).eval()


@torch.no_grad()
def recompute(model, tokens: list[int], rows: list, keys: list) -> np.ndarray:
    """f64 masses [layers, heads, rows, keys]."""
    spans = {f"{at}": [span["start"], span["end"]] for at, span in enumerate(rows + keys)}
    request = {"spans": spans, "rows": [f"{at}" for at in range(len(rows))]}
    hooks = MassHooks(model, request)
    cache = None
    for start in range(0, len(tokens), CHUNK):
        hooks.offset = start
        out = model(torch.tensor([tokens[start:start + CHUNK]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
    numbers = hooks.numbers()
    hooks.close()
    return numbers["mass"][:, :, :, len(rows):]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("model")
    parser.add_argument("--file")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", default="", help="only files whose name holds this")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    files = [file for file in sorted((args.run / "attention").glob("*.safetensors")) if args.only in file.name]
    files = files[:args.limit]
    if not files:
        sys.exit(f"error: {args.run} holds no attention file")
    model = load(args.model, args.file)
    worst = 0.0
    for file in files:
        store = safe_open(file, "np")
        rows, keys = (json.loads(store.metadata()[axis]) for axis in ["rows", "spans"])
        names = store.keys()
        tokens = store.get_tensor("tokens").tolist()
        if "generated" in names:
            tokens += store.get_tensor("generated").tolist()
        ours = store.get_tensor("mass")
        theirs = recompute(model, tokens, rows, keys)
        for at, row in enumerate(rows):
            apart = float(np.abs(ours[:, :, at] - theirs[:, :, at]).max())
            worst = max(worst, apart)
            print(f"{file.name}  {row['label']:<16} [{row['start']}, {row['end']})  {len(tokens)} tokens  {apart:.2e}")
    print(f"largest difference {worst:.2e} of {len(files)} files; tolerance {args.tolerance:.0e}")
    sys.exit(worst > args.tolerance)


if __name__ == "__main__":
    main()
