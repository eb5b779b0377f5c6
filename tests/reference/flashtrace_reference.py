#!/usr/bin/env python3
"""Scores of FlashTrace's own code on tiny checkpoints, in f32 with eager attention.

For developers only: palimpsest never needs it. It makes tests/fixtures/flashtrace.safetensors, against which tests/parity/routes.rs
holds information-flow routes and their hops:

  git clone https://github.com/wbopan/flashtrace && git -C flashtrace checkout 13865e9
  pip install torch==2.15.0 transformers==5.23.0
  python tests/reference/flashtrace_reference.py flashtrace tests/fixtures

Tensors, for each MODEL:
  MODEL.tokens         u32 [tokens]: prompt, thought and answer
  MODEL.left_out       u8 [tokens]: 1 for what counts as a stop word
  MODEL.hops           f32 [2, tokens]: what each token gets in hop 0 and hop 1, without stop words
  MODEL.scores         f32 [prompt]: what a trace of one hop gives to the prompt's tokens
  MODEL.span           f32 [tokens]: what the answer's rows give to each token, unweighted (`ifr-span`)
Metadata `prompt` and `thought` are numbers of tokens.

Two things of the code are set: its norms look for an attribute `eps`, which transformers calls `variance_epsilon`, and packages for
drawings and sentences are left out.
"""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

MODELS = ("llama-tiny", "qwen3-tiny", "qwen3-moe-tiny")
PROMPT, THOUGHT, ANSWER = 64, 23, 9
UNUSED = ("matplotlib", "matplotlib.cm", "matplotlib.patches", "seaborn", "wordfreq", "spacy", "spacy.language", "spacy.tokens")


def traced(engine_class, model, tokens: list[int], left_out: list[bool]):
    class Engine(engine_class):
        def _ensure_generation(self, prompt, target):
            ids = torch.tensor([tokens])
            words = ["," if out else "word" for out in left_out]
            self.prompt_ids, self.generation_ids = ids[:, :PROMPT], ids[:, PROMPT:]
            self.prompt_tokens = self.user_prompt_tokens = words[:PROMPT]
            self.user_prompt_indices, self.generation_tokens = list(range(PROMPT)), words[PROMPT:]
            return ids, torch.ones_like(ids), PROMPT, THOUGHT + ANSWER

    return Engine(model, SimpleNamespace(eos_token_id=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("fixtures", type=Path)
    args = parser.parse_args()
    sys.path.insert(0, str(args.clone))
    sys.modules.update({name: MagicMock() for name in UNUSED})
    from flashtrace.attribution import LLMIFRAttribution
    from flashtrace.improved import LLMIFRAttributionBoth

    out = {}
    for name in MODELS:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            args.fixtures / name, dtype=torch.float32, attn_implementation="eager"
        )
        for module in model.modules():
            if hasattr(module, "variance_epsilon"):
                module.eps = module.variance_epsilon
        generator = np.random.default_rng(len(name))
        tokens = generator.integers(3, 260, PROMPT + THOUGHT + ANSWER).tolist()
        left_out = (generator.random(len(tokens)) < 0.15).tolist()
        # The last generated token is an answer's, not the end token.
        left_out[-1] = False
        answer = (THOUGHT, THOUGHT + ANSWER - 1)
        both = traced(LLMIFRAttributionBoth, model, tokens, left_out).calculate_ifr_multi_hop_both(
            "", "", sink_span=answer, thinking_span=(0, THOUGHT - 1), n_hops=1
        )
        found = both.metadata["ifr"]
        hops = [hop.token_importance_total for hop in found["raw"].raw_attributions]
        span = traced(LLMIFRAttribution, model, tokens, left_out).calculate_ifr_span("", "", span=answer)
        out[f"{name}.tokens"] = np.array(tokens, np.uint32)
        out[f"{name}.left_out"] = np.array(left_out, np.uint8)
        out[f"{name}.hops"] = torch.stack(hops).numpy()
        out[f"{name}.scores"] = found["observation_projected"]["sum"][:PROMPT].numpy()
        out[f"{name}.span"] = span.metadata["ifr"]["aggregate"].token_importance_total.numpy()
        print(name, "thinking ratio", found["thinking_ratios"], "largest", out[f"{name}.scores"].max())
    save_file(out, args.fixtures / "flashtrace.safetensors", {"prompt": str(PROMPT), "thought": str(THOUGHT)})


if __name__ == "__main__":
    main()
