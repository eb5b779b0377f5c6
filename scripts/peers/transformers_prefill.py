#!/usr/bin/env python3
"""transformers reads the tokens of a trace file, with a GGUF file's weights dequantised to f32. Prints one JSON line.

usage: transformers_prefill.py MODEL.gguf TOKENS.json {sdpa|hook}
  sdpa   its fastest way, which yields no attention weights
  hook   eager attention; a hook on every layer takes the masses of the trace's rows out of the weights, which are then
         dropped, so that one layer's weights are in memory at a time
"""
import json
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM

# Key spans that each row span can look back at.
LOOKS_BACK = {"query": ("new", "old"), "new": ("old",)}


def reducing_hook(spans, kept):
    """A forward hook that keeps the masses of `spans` and hands no weights on."""

    def hook(_module, _inputs, output):
        weights = output[1][0]  # (heads, n, n)
        for row, keys in LOOKS_BACK.items():
            for key in keys:
                part = weights[:, slice(*spans[row]), slice(*spans[key])]
                kept.append(part.sum(-1).mean(-1))
        return (output[0], None)

    return hook


def main():
    path, tokens_file, way = sys.argv[1:]
    with open(tokens_file) as file:
        trace = json.load(file)
    torch.set_num_threads(os.cpu_count())
    folder, name = os.path.split(path)
    eager_or_sdpa = {"sdpa": "sdpa", "hook": "eager"}[way]
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation=eager_or_sdpa
    ).eval()
    kept = []
    if way == "hook":
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(reducing_hook(trace["spans"], kept))
    tokens = torch.tensor([trace["tokens"]])
    start = time.perf_counter()
    with torch.inference_mode():
        model(tokens, logits_to_keep=1)
    seconds = time.perf_counter() - start
    assert len(kept) == (3 * len(model.model.layers) if way == "hook" else 0)
    print(json.dumps({"prefill_seconds": seconds}))


if __name__ == "__main__":
    main()
