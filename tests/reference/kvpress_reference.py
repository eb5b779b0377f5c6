#!/usr/bin/env python3
"""Keys that KVPress keeps of tiny checkpoints, in f32 with eager attention.

For developers only: palimpsest never needs it. It makes tests/fixtures/kvpress.safetensors, against which tests/parity/evict.rs
holds the policies of `run --evict`:

  pip install torch==2.15.0 kvpress==0.5.5     (which wants transformers below 5.3; made with 5.2.0)
  python tests/reference/kvpress_reference.py tests/fixtures

Tensors, for each MODEL and POLICY:
  MODEL.tokens                 u32 [tokens]: a prompt of random tokens, all of them history
  MODEL.POLICY.SHARE.kept      u16 [layers that evict, kv_heads, kept]: positions, ascending
  MODEL.POLICY.scores          f32 [layers that evict, kv_heads, tokens]: what they were ranked by; not for streaming, whose are 0 and 1
Metadata `layers` has the layers that evict by model.

Positions are found by comparing the compressed cache's keys to those before, so they are what KVPress does, not what it scores.
"""

import argparse
import json
from pathlib import Path

import kvpress
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

MODELS = {
    "llama-tiny": transformers.AutoModelForCausalLM,
    "qwen3-tiny": transformers.AutoModelForCausalLM,
    # KVPress skips sliding-window layers of this class alone.
    "gemma3-nested-tiny": transformers.Gemma3ForConditionalGeneration,
}
POLICIES = {
    "streaming": kvpress.StreamingLLMPress,
    "knorm": kvpress.KnormPress,
    "snapkv": kvpress.SnapKVPress,
    "h2o": kvpress.ObservedAttentionPress,
    "tova": kvpress.TOVAPress,
    "expected-attention": kvpress.ExpectedAttentionPress,
}
# More than SnapKV's window of 64 stays of either share.
TOKENS = 264
SHARES = (0.25, 0.5)


def record(press: kvpress.ScorerPress) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Makes the press note each layer's scores and kept positions."""
    seen, scores = {}, {}
    compress, score = press.compress, press.score

    def noted_score(module, *args):
        scores[module.layer_idx] = score(module, *args)
        return scores[module.layer_idx]

    def noted_compress(module, hidden_states, keys, *rest):
        kept, values = compress(module, hidden_states, keys, *rest)
        same = (kept[0, :, :, None] == keys[0, :, None]).all(-1)  # (kv_heads, kept, tokens)
        if not (same.sum(-1) == 1).all():
            raise SystemExit(f"error: layer {module.layer_idx} has equal keys at several positions; choose other tokens")
        seen[module.layer_idx] = (scores[module.layer_idx][0], same.int().argmax(-1).sort(-1).values)
        return kept, values

    press.score, press.compress = noted_score, noted_compress
    return seen


def with_layer_type(model: torch.nn.Module) -> None:
    """Expected attention does not tell Gemma 3's rotary embedding the layer's type, which transformers 5 wants: full attention."""
    rotary = model.model.language_model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids, layer_type="full_attention": forward(x, position_ids, layer_type)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixtures", type=Path)
    args = parser.parse_args()
    tensors, layers = {}, {}
    for seed, (name, kind) in enumerate(MODELS.items()):
        folder = args.fixtures / name
        model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        if kind is transformers.Gemma3ForConditionalGeneration:
            with_layer_type(model)
        # Each token once: in the first layer, the keys of a repeated token differ by rotation alone and their norms not at all.
        tokens = np.random.default_rng(seed).permutation(TOKENS).astype(np.uint32)
        tensors[f"{name}.tokens"] = tokens
        for policy, press_of in POLICIES.items():
            for share in SHARES:
                press = press_of(compression_ratio=1 - share)
                seen = record(press)
                with torch.no_grad(), press(model):
                    ids = torch.tensor(tokens.astype(np.int64))[None]
                    model(input_ids=ids, past_key_values=transformers.DynamicCache(config=model.config))
                layers[name] = sorted(seen)
                scores, kept = (torch.stack([seen[layer][i] for layer in sorted(seen)]).numpy() for i in (0, 1))
                tensors[f"{name}.{policy}.{share}.kept"] = kept.astype(np.uint16)
                if policy != "streaming":
                    tensors[f"{name}.{policy}.scores"] = scores.astype(np.float32)
                    ranked = -np.sort(-scores, -1)
                    n = kept.shape[-1]
                    border = (ranked[..., n - 1] - ranked[..., n]).min()
                    print(f"{name} {policy} {share}: layers {sorted(seen)}, {n} keys, border {border:.2e}")
    versions = {"kvpress": "0.5.5", "transformers": transformers.__version__, "torch": torch.__version__}
    save_file(tensors, args.fixtures / "kvpress.safetensors", {"layers": json.dumps(layers), "versions": json.dumps(versions)})


if __name__ == "__main__":
    main()
