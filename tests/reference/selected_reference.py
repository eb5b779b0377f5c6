#!/usr/bin/env python3
"""What sliding windows and indexers of tiny checkpoints leave to rows, and answers with a span forced into them, by transformers.

  python tests/reference/selected_reference.py tests/fixtures/gemma3-tiny ...

writes ../selected/NAME.safetensors for each folder, of the prompt and rows of its tokens.json, `last`, and `answer`, the mean over the
first tokens of `greedy` of its reference.safetensors:

  selected, forgone  f32 [layers, rows, spans]: share of the span's tokens at or before a row that the layer's mask or indexer leaves
                     to it, and softmax weight on the others if the same attention runs with a causal mask alone, mean over heads
  forced             f32 [last positions, vocab]: logits if the rows from `query` on of layers that choose also see the span `old`
  forced_all         the same if they see all spans
  choices            u8 [layers, prompt, prompt]: 1 where a row sees a key; of models with indexers
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

ANSWER = 6


def attentions(model: torch.nn.Module) -> list:
    return [module for name, module in model.named_modules() if name.endswith(".self_attn")]


def indexers(model: torch.nn.Module) -> list:
    return [module for name, module in model.named_modules() if name.endswith(".indexer")]


def causal(n: int) -> torch.Tensor:
    return torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]


class Choices:
    """Reads each layer's mask, or what its indexer chose, and its attention over all keys at or before each row."""

    def __init__(self, model: torch.nn.Module):
        self.allowed, self.dense, self.chosen, self.open = [], [], None, False
        self.handles = [module.register_forward_hook(self.keep, with_kwargs=True) for module in attentions(model)]
        self.handles += [module.register_forward_hook(self.choose) for module in indexers(model)]

    def choose(self, _module, _inputs, output):
        if self.open:
            return torch.arange(output.shape[1]).expand(1, output.shape[1], -1)
        self.chosen = output
        return output

    def keep(self, module, inputs, more, _output):
        mask = more["attention_mask"]
        allowed = mask[0, 0] > -1
        if self.chosen is not None:
            allowed &= torch.zeros_like(allowed).scatter(-1, self.chosen[0].long(), True)
        self.allowed.append(allowed)
        # The same queries and keys under another mask; `forward` itself runs no hooks, but an indexer's are run.
        n, self.open = mask.shape[-1], True
        everything = torch.arange(n).expand(1, n, -1)
        more = {**more, "attention_mask": causal(n)} | ({"prev_topk_indices": everything} if "prev_topk_indices" in more else {})
        whole = module.forward(*inputs, **more)
        self.open = False
        self.dense.append(whole[1][0].double())


def numbers(model: torch.nn.Module, tokens: list[int], rows: list, spans: list) -> dict[str, np.ndarray]:
    choices = Choices(model)
    model(torch.tensor([tokens]), use_cache=False)
    for handle in choices.handles:
        handle.remove()
    shape = (len(choices.allowed), len(rows), len(spans))
    selected, forgone = np.full(shape, np.nan, np.float32), np.zeros(shape, np.float32)
    for layer, (allowed, dense) in enumerate(zip(choices.allowed, choices.dense, strict=True)):
        for r, (first, end) in enumerate(rows):
            for s, (a, b) in enumerate(spans):
                shares, masses = [], []
                for i in range(first, end):
                    keys = range(a, min(b, i + 1))
                    outside = [j for j in keys if not allowed[i, j]]
                    masses.append(float(dense[:, i, outside].sum(dim=-1).mean()))
                    if len(keys) > 0:
                        shares.append(1 - len(outside) / len(keys))
                if shares:
                    selected[layer, r, s] = np.mean(shares)
                forgone[layer, r, s] = np.mean(masses)
    made = {"selected": selected, "forgone": forgone}
    return made | ({"choices": torch.stack(choices.allowed).byte().numpy()} if indexers(model) else {})


def forced(model: torch.nn.Module, request: dict, shown: list) -> np.ndarray:
    query = request["spans"]["query"][0]

    def show(_module, inputs, more):
        mask = more["attention_mask"].clone()
        for a, b in shown:
            mask[..., query:, a:b] = causal(mask.shape[-1])[..., query:, a:b]
        return inputs, {**more, "attention_mask": mask}

    def add(_module, _inputs, chosen):
        more = torch.tensor([key for a, b in shown for key in range(a, b)], dtype=chosen.dtype).expand(1, chosen.shape[1], -1)
        # Rows before the query choose one of their own keys again.
        more = torch.where(torch.arange(chosen.shape[1])[None, :, None] < query, chosen[..., :1], more)
        return torch.cat([chosen, more], -1)

    handles = [module.register_forward_hook(add) for module in indexers(model)]
    if not handles:
        handles = [module.register_forward_pre_hook(show, with_kwargs=True) for module in attentions(model)]
    logits = model(torch.tensor([request["tokens"]]), use_cache=False).logits[0, -request["logits"]:]
    for handle in handles:
        handle.remove()
    return logits.numpy()


def main() -> None:
    torch.set_grad_enabled(False)
    for folder in map(Path, sys.argv[1:]):
        request = json.loads((folder / "tokens.json").read_text())
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                  experts_implementation="eager").eval()
        with safe_open(folder / "reference.safetensors", "numpy") as file:
            answer = file.get_tensor("greedy")[:ANSWER].tolist()
        n = len(request["tokens"])
        rows = [request["spans"][label] for label in request["rows"]] + [[n - 1, n], [n - 1, n - 1 + len(answer)]]
        made = numbers(model, request["tokens"] + answer, rows, list(request["spans"].values()))
        spans = request["spans"]
        if "choices" in made:
            made["choices"] = np.ascontiguousarray(made["choices"][:, :n, :n])
        made["forced"] = forced(model, request, [spans["old"]])
        made["forced_all"] = forced(model, request, [spans["all"]])
        plain = forced(model, request, [])
        print(f"{folder}: forcing moves logits by at most {np.abs(made['forced'] - plain).max():.3g}, forgone at most "
              f"{made['forgone'].max():.3g}")
        path = folder.resolve().parent / "selected" / f"{folder.resolve().name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file(made, path, {"command": "selected_reference.py", "transformers": transformers.__version__})


main()
