#!/usr/bin/env python3
"""transformers reads the tokens of a trace file and hands out attention weights through another package, with a GGUF file's weights
dequantised to f32. Prints one JSON line.

usage: weights_prefill.py MODEL.gguf TOKENS.json {attnread|keys_values}
  attnread      all heads of the middle layer: whole matrices, recovered by passes with other values, out of which the masses of the
                trace's rows are then taken
  keys_values   all layers, by the attention of keys_values that adds up every key's weights over all queries, averaged over the heads
                that share the key. What runs on the CPU are its blocks of PyTorch operations: its fused kernels want a CUDA card
"""
import json
import os
import sys
import time

import torch
from transformers import AutoModelForCausalLM

from transformers_prefill import LOOKS_BACK


def read_by_attnread(load, tokens, spans):
    from attnread import extract_attention

    model = load("sdpa").requires_grad_(False)
    config = model.config
    layer = config.num_hidden_layers // 2
    start = time.perf_counter()
    weights = extract_attention(model, {"input_ids": tokens}, heads=[(layer, head) for head in range(config.num_attention_heads)])
    heads = torch.cat(list(weights.values()))  # (heads, n, n)
    kept = [
        heads[:, slice(*spans[row]), slice(*spans[key])].sum(-1).mean(0)
        for row, keys in LOOKS_BACK.items()
        for key in keys
    ]
    seconds = time.perf_counter() - start
    assert len(kept) == 3
    return {"prefill_seconds": seconds, "layers": 1}


def read_by_keys_values(load, tokens, _spans):
    from keys_values.attention.base import DefaultKeysAndValues, eager_scaled_dot_product_attention
    from transformers import AttentionInterface

    sums = []

    def attend(_module, query, key, value, _mask, scaling=None, **_):
        out, of_layer = eager_scaled_dot_product_attention(
            query=query,
            k_and_v=DefaultKeysAndValues(key, value),
            scale_factor=scaling,
            use_blocking=True,
            return_attn_weights=True,
            input_pos=0,
            token_positions=None,
            sliding_window_size=None,
        )
        sums.append(of_layer)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("keys_values", attend)
    model = load("keys_values")
    start = time.perf_counter()
    with torch.inference_mode():
        model(tokens, logits_to_keep=1)
    seconds = time.perf_counter() - start
    # Every query's weights add up to one.
    assert all(torch.allclose(of_layer.sum(-1), torch.tensor(float(tokens.shape[1])), rtol=1e-4) for of_layer in sums)
    return {"prefill_seconds": seconds, "layers": len(sums)}


def main():
    path, tokens_file, way = sys.argv[1:]
    with open(tokens_file) as file:
        trace = json.load(file)
    torch.set_num_threads(os.cpu_count())
    folder, name = os.path.split(path)

    def load(attention):
        return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation=attention).eval()

    read = {"attnread": read_by_attnread, "keys_values": read_by_keys_values}[way]
    print(json.dumps(read(load, torch.tensor([trace["tokens"]]), trace["spans"])))


if __name__ == "__main__":
    main()
