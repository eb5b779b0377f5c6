"""The numbers of a reference: logits, span masses, sinks, delta-rule attributions and greedy tokens of a transformers
model. `hf_reference.py` and `hf_tiny.py` call it; its layout of tensors is described there. It makes no checkpoint.
"""

import json
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

TOP_IDS = 10
# Parts of a checkpoint that read no text, whose attention is not measured.
OTHER_TOWERS = ("vision", "audio")
# What a delta-rule layer's output may differ from the plain definition, times its largest value where that is over 1.
DELTA_TOLERANCE = 2e-6


def attention_modules(model: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """The softmax attention of each text layer that has one. Nemotron-H calls every layer's only part its mixer."""
    return {int(name.split(".")[-2]): module for name, module in model.named_modules()
            if not any(tower in name for tower in OTHER_TOWERS)
            and (name.endswith(".self_attn") or type(module).__name__ == "NemotronHAttention")}


class MassHooks:
    """Reduces each layer's attention weights to span masses as they are made, and drops them.

    `offset` is the position of the first query of the current forward. Keys may be fewer than the tokens so far (the
    cache of a sliding-window layer keeps only its window); they are always the last ones. Layers without softmax
    attention have no `self_attn` and no masses. Where the softmax has a sink (gpt_oss), what the keys lack to 1 is its
    share: transformers appends the sink's column, takes the softmax and drops the column.
    """

    def __init__(self, model: torch.nn.Module, request: dict):
        self.spans = list(request["spans"].values())
        self.rows = [request["spans"][label] for label in request["rows"]]
        self.offset = 0
        self.sums, self.sinks = {}, {}
        self.handles = []
        for layer, module in attention_modules(model).items():
            self.handles.append(module.register_forward_hook(self.hook(layer)))
        if not self.handles:
            raise SystemExit(f"error: {type(model).__name__} has no module named self_attn; add it to attention_modules")

    def hook(self, layer: int):
        def reduce(module, _inputs, output):
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
                if hasattr(module, "sinks"):
                    sinks = self.sinks.setdefault(layer, torch.zeros(heads, len(self.rows), dtype=torch.float64))
                    sinks[:, r] += (1 - part.sum(dim=2, dtype=torch.float64)).sum(dim=1)
                for s, (c, d) in enumerate(self.spans):
                    c, d = max(c - first_key, 0), min(d - first_key, keys)
                    if c < d:
                        sums[:, r, s] += part[:, :, c:d].sum(dim=(1, 2), dtype=torch.float64)
        return reduce

    def numbers(self) -> dict[str, np.ndarray]:
        """`layers` (indices), f32 `mass` [layers, heads, rows, spans] and, with sinks, `sink` [layers, heads, rows]."""
        layers = sorted(self.sums)
        rows = torch.tensor([b - a for a, b in self.rows], dtype=torch.float64)
        mass = torch.stack([self.sums[layer] / rows[:, None] for layer in layers])
        made = {"layers": np.array(layers), "mass": mass.float().numpy()}
        if self.sinks:
            made["sink"] = torch.stack([self.sinks[layer] / rows for layer in layers]).float().numpy()
        return made

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


class Knockouts:
    """Adds minus infinity to the masks of attention layers where a request's `knockouts` hide keys from rows, so that the softmax leaves
    those keys out. The layers' masks are (1, 1, queries, keys); keys are the last ones, as in MassHooks. A layer that shares the choice
    of an indexer before it (glm_moe_dsa) gets what that indexer chooses under the layer's own mask."""

    def __init__(self, model: torch.nn.Module, request: dict):
        self.offset = 0
        self.stack = ExitStack()
        holes = {}
        modules = attention_modules(model)
        for knockout in request.get("knockouts", []):
            layers = range(*knockout["layers"]) if "layers" in knockout else range(len(list(modules)))
            for layer in layers:
                if layer not in modules:
                    raise SystemExit(f"error: a knock-out names layer {layer}, which has no softmax attention")
                holes.setdefault(layer, []).append([request["spans"][knockout[key]] for key in ("rows", "keys")])
        for layer, of_layer in holes.items():
            handle = modules[layer].register_forward_pre_hook(self.hook(of_layer), with_kwargs=True)
            self.stack.callback(handle.remove)
        self.indexed = None
        for module in modules.values() if holes else []:
            if getattr(module, "indexer", None) is not None:
                handle = module.indexer.register_forward_pre_hook(self.keep, with_kwargs=True)
            elif getattr(module, "skip_topk", False):
                handle = module.register_forward_pre_hook(self.choose, with_kwargs=True)
            else:
                continue
            self.stack.callback(handle.remove)

    def keep(self, indexer, inputs, more) -> None:
        self.indexed = indexer, inputs, more

    def choose(self, _module, inputs, more):
        indexer, (hidden, normed, positions, _mask, ids), named = self.indexed
        if named["past_key_values"] is not None:
            raise SystemExit("error: a shared choice needs the whole prompt in one pass; leave --chunk out")
        chosen = indexer.forward(hidden, normed, positions, more["attention_mask"][:, 0], ids, **named)
        return inputs, {**more, "prev_topk_indices": chosen}

    def hook(self, holes: list):
        def hide(_module, inputs, more):
            mask = more["attention_mask"].clone()
            queries, keys = mask.shape[-2:]
            first_query, first_key = self.offset, self.offset + queries - keys
            for (a, b), (c, d) in holes:
                a, b = max(a - first_query, 0), min(b - first_query, queries)
                c, d = max(c - first_key, 0), min(d - first_key, keys)
                if a < b and c < d:
                    mask[..., a:b, c:d] = float("-inf")
            return inputs, {**more, "attention_mask": mask}
        return hide

    def close(self) -> None:
        self.stack.close()


class TopHooks:
    """Keeps the `top_keys` largest weights of each token of the row spans, and of the layer's heads: of equal ones the earlier key.
    A key that a row does not see counts as 4294967295 with weight 0."""

    def __init__(self, model: torch.nn.Module, request: dict):
        self.count = request.get("top_keys", 0)
        self.rows = [row for label in request["rows"] for row in range(*request["spans"][label])]
        self.offset, self.kept, self.handles = 0, {}, []
        for layer, module in attention_modules(model).items():
            if self.count:
                self.handles.append(module.register_forward_hook(self.hook(layer)))

    def hook(self, layer: int):
        def keep(_module, _inputs, output):
            weights = output[1][0]  # (heads, queries, keys)
            heads, queries, keys = weights.shape
            first_key = self.offset + queries - keys
            for row in self.rows:
                if self.offset <= row < self.offset + queries:
                    of_row = weights[:, row - self.offset]
                    order = of_row.sort(dim=-1, descending=True, stable=True)
                    top, places = order.values[:, :self.count], order.indices[:, :self.count] + first_key
                    self.kept[layer, row] = (torch.where(top > 0, places, 4294967295), top)
        return keep

    def numbers(self) -> dict[str, np.ndarray]:
        """`top_keys` u32 and `top_weights` f32 [layers, heads, row tokens, k]."""
        if not self.count:
            return {}
        layers = sorted({layer for layer, _ in self.kept})
        parts = [torch.stack([torch.stack([self.kept[layer, row][i] for row in self.rows], dim=1) for layer in layers])
                 for i in range(2)]
        return {"top_keys": parts[0].numpy().astype(np.uint32), "top_weights": parts[1].float().numpy()}

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


class LengthHooks:
    """Weighs each layer's attention by what it carries, where a request asks for `measures`.

    With A the weights of a head, v its values, W its part of the output projection and g the gate of a row, if any: `value_norm` is
    the mean over the tokens i of X of the sum over the tokens j of Y of A[i, j] |W v_j|, `output_norm` the mean over i of
    |W (g_i * sum over j of A[i, j] v_j)|. In f64.
    """

    def __init__(self, model: torch.nn.Module, request: dict):
        self.spans = list(request["spans"].values())
        self.rows = [request["spans"][label] for label in request["rows"]]
        self.offset, self.made, self.seen, self.handles = 0, {}, {}, []
        for layer, module in attention_modules(model).items() if request.get("measures") else []:
            parts = ("q_proj", "v_proj") if hasattr(module, "v_proj") else ("qkv_proj", "kv_b_proj")
            if hasattr(module, "v_norm"):
                parts = ("v_norm",)
            for part in (*parts, "g_proj") if not getattr(module, "is_kv_shared_layer", False) else ():
                if getattr(module, part, None) is not None:
                    self.handles.append(getattr(module, part).register_forward_hook(self.keep(layer, part)))
            self.handles.append(module.register_forward_hook(self.hook(layer)))

    def keep(self, layer: int, part: str):
        def keep(_module, _inputs, output):
            self.seen[layer, part] = output[0].double()  # (tokens, features)
        return keep

    def hook(self, layer: int):
        def measure(module, _inputs, output):
            if self.offset:
                raise SystemExit("error: `measures` need the whole prompt in one pass; leave --chunk out")
            weights = output[1][0].double()  # (heads, queries, keys)
            heads, tokens = weights.shape[:2]
            if (latent := self.seen.get((layer, "kv_b_proj"))) is not None:
                v = latent[0].unflatten(1, (heads, -1))[..., -module.v_head_dim:].transpose(0, 1)
            else:
                v = self.seen.get((layer, "v_proj"))
                if (layer, "qkv_proj") in self.seen:
                    v = self.seen[layer, "qkv_proj"][:, -module.num_key_value_heads * module.head_dim:]
                if v is None:
                    # Normed values of the layer, or of the last earlier one of its width, whose keys it shares.
                    v = [seen for (_, part), seen in self.seen.items() if part == "v_norm"
                         and seen.shape[-1] == module.head_dim][-1].flatten(1)
                v = v.unflatten(1, (-1, module.head_dim)).transpose(0, 1)
            v = v.repeat_interleave(heads // len(v), dim=0)  # (heads, keys, head_dim)
            output = module.o_proj if hasattr(module, "o_proj") else module.out_proj
            outputs = output.weight.double().T.unflatten(0, (heads, v.shape[-1]))  # (heads, head_dim, hidden)
            lengths = (v @ outputs).norm(dim=-1)
            gate = torch.ones(())
            if type(module).__name__.startswith(("Qwen3_5", "Qwen3Next")):
                both = self.seen[layer, "q_proj"].view(tokens, heads, 2 * module.head_dim)
                gate = both[..., module.head_dim:].sigmoid().transpose(0, 1)
            if (of_heads := self.seen.get((layer, "g_proj"))) is not None:
                gate = of_heads.sigmoid().T[..., None]  # (heads, queries, 1)
            made = torch.zeros(2, heads, len(self.rows), len(self.spans), dtype=torch.float64)
            for s, (c, d) in enumerate(self.spans):
                paid = (weights[:, :, c:d] * lengths[:, None, c:d]).sum(-1)  # (heads, queries)
                written = ((gate * (weights[:, :, c:d] @ v[:, c:d])) @ outputs).norm(dim=-1)
                for r, (a, b) in enumerate(self.rows):
                    made[0, :, r, s], made[1, :, r, s] = paid[:, a:b].mean(1), written[:, a:b].mean(1)
            self.made[layer] = made
        return measure

    def numbers(self) -> dict[str, np.ndarray]:
        """f32 `value_norm` and `output_norm` [layers, heads, rows, spans]."""
        if not self.made:
            return {}
        both = torch.stack([self.made[layer] for layer in sorted(self.made)]).float().numpy()
        return {"value_norm": both[:, 0], "output_norm": both[:, 1]}

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


class DeltaHooks:
    """Keeps what enters each gated delta rule (Qwen3.5's linear layers) or Mamba-2's scan, and attributes its output to the tokens.

    With S the state [key dim, value dim], k and q of length 1, q scaled by key_dim^-1/2, b the write strength and e^g
    the decay, a layer computes S_t = e^g_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T and o_t = S_t^T q_t. So
    o_t = sum over s of a[t, s] v_s, and a row of a, which may be negative and need not sum to 1, is found by carrying
    w = q_t backwards from s = t: a[t, s] = b_s (k_s . w), then w <- e^g_s (w - b_s k_s (k_s . w)). All in f64.

    Mamba-2, with B as keys, C as queries, time steps as strengths and -e^A_log times these as g, writes values as they are:
    a[t, s] = b_s (k_s . q_t) e^(sum of g over s + 1..=t), without normalisation. Its skip is no part of it.
    """

    def __init__(self, model: torch.nn.Module, request: dict):
        self.spans = list(request["spans"].values())
        self.rows = [request["spans"][label] for label in request["rows"]]
        self.layer, self.seen = None, {}
        self.stack = ExitStack()
        modules = [(name, module) for name, module in model.named_modules() if name.endswith(".linear_attn")]
        for name, module in modules:
            def enter(_module, _inputs, layer=int(name.split(".")[-2])):
                self.layer = layer
            self.stack.callback(module.register_forward_pre_hook(enter).remove)
        # The layers of a model share the functions of their module: one for prompts, one for single tokens.
        self.mamba = not modules
        scans = [(name, module) for name, module in model.named_modules() if hasattr(module, "A_log") and self.mamba]
        for name, module in scans:
            def enter_scan(_module, _inputs, layer=int(name.split(".")[-2])):
                self.layer = layer
            self.stack.callback(module.register_forward_pre_hook(enter_scan).remove)
        for source in {type(module).__module__ for _, module in scans}:
            scan = getattr(sys.modules[source], "mamba2_chunk_scan")
            self.stack.enter_context(mock.patch.object(sys.modules[source], "mamba2_chunk_scan", self.keep_scan(scan)))
        for source in {type(module).__module__ for _, module in modules}:
            for rule in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
                original = getattr(sys.modules[source], rule)
                self.stack.enter_context(mock.patch.object(sys.modules[source], rule, self.keep(original)))

    def keep(self, rule):
        def spy(query, key, value, *, g, beta, **more):
            out, state = rule(query, key, value, g=g, beta=beta, **more)
            if not more["use_qk_l2norm_in_kernel"]:
                raise SystemExit("error: a delta rule that does not normalise its keys; DeltaHooks assumes it does")
            kept = [x[0].detach().double() for x in (query, key, value, g, beta, out)]  # (tokens, heads, ...)
            self.seen.setdefault(self.layer, []).append(kept)
            return out, state
        return spy

    def keep_scan(self, scan):
        def spy(x, dt, A, B, C, *positional, D, dt_bias, dt_limit, **more):
            made = scan(x, dt, A, B, C, *positional, D=D, dt_bias=dt_bias, dt_limit=dt_limit, **more)
            out = made[0] if isinstance(made, tuple) else made
            step = torch.nn.functional.softplus(dt.double() + dt_bias.double()).clamp(*dt_limit)
            read = out.double() - D.double()[:, None] * x.double()
            kept = [y[0].detach().double() for y in (C, B, x, A.double() * step, step, read)]
            self.seen.setdefault(self.layer, []).append(kept)
            return made
        return spy

    def attribution(self, layer: int, check: bool) -> torch.Tensor:
        """a [row tokens, value heads, tokens] of the tokens of the row spans, one span after the other."""
        q, k, v, g, beta, out = (torch.cat(parts) for parts in zip(*self.seen[layer]))
        tokens, heads = beta.shape
        # Value head h reads key head h // (value heads / key heads).
        q, k = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
        if not self.mamba:
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
            q = q * q.shape[-1] ** -0.5
        wanted = torch.cat([torch.arange(a, b) for a, b in self.rows])
        w = torch.zeros(len(wanted), *q.shape[1:], dtype=torch.float64)  # (row tokens, heads, key dim)
        a = torch.zeros(len(wanted), heads, tokens, dtype=torch.float64)
        for s in reversed(range(tokens)):
            w[wanted == s] = q[s]
            share = beta[s] * (w * k[s]).sum(-1)
            a[:, :, s] = share
            w = g[s].exp()[:, None] * (w - (0 if self.mamba else share[..., None] * k[s]))
        if check:
            theirs = out[wanted]
            worst = (torch.einsum("rhs,shv->rhv", a, v) - theirs).abs().max()
            # Rounding errors of the layer's own recurrence, in f32, add up over the tokens.
            tolerance = DELTA_TOLERANCE * max(1.0, k.shape[0] / 512) ** 0.5
            if not worst <= tolerance * max(1.0, theirs.abs().max()):
                raise SystemExit(f"error: layer {layer}: the attribution gives the layer's output only to {worst:.2g}")
        return a

    def numbers(self, check: bool) -> dict[str, np.ndarray]:
        """`delta_layers` (indices) and f32 `delta_signed` and `delta_share` [layers, value heads, rows, spans]."""
        if not self.seen:
            return {}
        signed, shares = [], []
        for layer in sorted(self.seen):
            a = self.attribution(layer, check)
            for made, part in ((signed, a), (shares, a.abs() / a.abs().sum(-1, keepdim=True))):
                rows = part.split([end - start for start, end in self.rows])
                made.append(torch.stack([torch.stack([row[..., c:d].sum(-1).mean(0) for c, d in self.spans], dim=-1)
                                         for row in rows], dim=1))
        return {"delta_layers": np.array(sorted(self.seen)), "delta_signed": torch.stack(signed).float().numpy(),
                "delta_share": torch.stack(shares).float().numpy()}

    def close(self) -> None:
        self.stack.close()


class RouterMargin:
    """The least distance between the last expert chosen and the first one not, over all tokens while it is open.

    Measured on what the choice is made by: the logits, or where a correction bias is added the biased sigmoids; with
    expert groups also between the groups.
    """

    def __init__(self, model: torch.nn.Module):
        self.least = float("inf")
        self.handles = [module.register_forward_hook(self.measure) for module in model.modules()
                        if type(module).__name__.lower().endswith(("topkrouter", "gemma4textrouter"))]

    def measure(self, module, inputs, output):
        scores = output[0].double()  # (tokens, experts)
        if not hasattr(module, "top_k"):
            scores = scores.log()  # gemma4 gives probabilities
        bias = getattr(module, "e_score_correction_bias", inputs[1] if len(inputs) > 1 else None)
        if bias is not None:
            scores = scores.sigmoid() + bias
        # Groups count by their best expert without a bias, and not at all if the choice is plainly greedy.
        groups = 1 if getattr(module, "topk_method", None) == "greedy" else getattr(module, "num_group", 1)
        if groups > 1:
            grouped = scores.unflatten(1, (groups, -1))
            best = grouped.topk(1 if bias is None else 2).values.sum(-1)
            self.narrow(best, module.topk_group)
            kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, best.topk(module.topk_group).indices, True)
            scores = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1)
        self.narrow(scores, module.top_k if hasattr(module, "top_k") else module.config.top_k_experts)

    def narrow(self, scores: torch.Tensor, k: int) -> None:
        if k < scores.shape[1]:
            best = scores.topk(k + 1).values
            self.least = min(self.least, float((best[:, k - 1] - best[:, k]).min()))

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


class IndexMargin:
    """The least distance between the last key that a row's indexer chooses and the first one that it does not, while it is
    open."""

    def __init__(self, model: torch.nn.Module):
        self.least, count = float("inf"), getattr(model.config.get_text_config(), "index_topk", None)
        topk = torch.Tensor.topk

        def spy(scores, k, *more, **named):
            if k == count and scores.dim() == 3 and scores.shape[-1] > k:
                best = topk(scores, k + 1).values
                apart = (best[..., k - 1] - best[..., k])[best[..., k] > -1e30]
                self.least = min(self.least, float(apart.min()) if len(apart) else self.least)
            return topk(scores, k, *more, **named)

        self.patch = mock.patch.object(torch.Tensor, "topk", spy)
        self.patch.start()

    def close(self) -> None:
        self.patch.stop()


@torch.inference_mode()
def reference(model: torch.nn.Module, request: dict, chunk: int | None, check: bool = True) -> dict[str, np.ndarray]:
    """The tensors of a request, with the layer indices as `layers` and `delta_layers`. With `chunk`, queries go through
    in chunks over a key/value cache, so that at most heads x chunk x tokens weights live at a time. `check` compares
    delta rules with their definition, which holds in f32 only."""
    tokens = torch.tensor([request["tokens"]])
    n = tokens.shape[1]
    wanted = request["logits"]
    with ExitStack() as stack:
        hooks, deltas = MassHooks(model, request), DeltaHooks(model, request)
        knockouts, top = Knockouts(model, request), TopHooks(model, request)
        stack.callback(hooks.close)
        stack.callback(knockouts.close)
        stack.callback(top.close)
        stack.callback(deltas.close)
        lengths = LengthHooks(model, request)
        stack.callback(lengths.close)
        cache, logits = None, []
        for start in range(0, n, chunk or n):
            end = min(start + (chunk or n), n)
            hooks.offset = knockouts.offset = top.offset = lengths.offset = start
            keep = min(end - start, max(end - (n - wanted), 0))
            # logits_to_keep=0 would mean all of them, which layers that share keys need: they leave out rows without logits.
            shares = getattr(model.config.get_text_config(), "num_kv_shared_layers", 0) > 0
            out = model(tokens[:, start:end], past_key_values=cache, use_cache=chunk is not None,
                        logits_to_keep=0 if shares else max(keep, 1))
            cache = out.past_key_values
            if keep:
                logits.append(out.logits[0, -keep:])
            if chunk:
                print(f"\r{end}/{n} tokens", end="", file=sys.stderr, flush=True)
    if chunk:
        print(file=sys.stderr)
    logits = torch.cat(logits).float()
    return {
        "logits": logits.numpy(), **hooks.numbers(), **top.numbers(), **lengths.numbers(), **deltas.numbers(check),
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


def each(model: torch.nn.Module, request: dict, generated: np.ndarray) -> dict[str, np.ndarray]:
    """What each of `generated`, the greedy continuation of the request's prompt, pays to the request's spans: a pass over
    prompt and continuation, of which the row of a token is the position that predicts it."""
    prompt, spans = request["tokens"], request["spans"]
    rows = {f"each {i}": [len(prompt) - 1 + i, len(prompt) + i] for i in range(len(generated))}
    whole = {"tokens": prompt + generated[:-1].tolist(), "spans": {**spans, **rows}, "rows": list(rows),
             "logits": len(generated)}
    made = reference(model, whole, chunk=None)
    if not np.array_equal(made["top"][:, 0], generated):
        raise SystemExit("error: the model does not continue the prompt by the tokens that it is said to")
    tensors = {"generated": generated}
    for name in ("mass", "delta_signed", "delta_share"):
        if name in made:
            tensors[f"{name}_each"] = made[name][..., :len(spans)]
    if "sink" in made:
        tensors["sink_each"] = made["sink"]
    return tensors


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
    for knockout in request.get("knockouts", []):
        if unknown := [knockout[key] for key in ("rows", "keys") if knockout[key] not in request["spans"]]:
            sys.exit(f"error: {path}: knock-out {knockout} names {unknown[0]!r}, which is not among the spans")
    request.setdefault("logits", 1)
    if not 1 <= request["logits"] <= n:
        sys.exit(f"error: {path}: logits is {request['logits']}; it must be 1 to {n}")
    return request


def write_reference(path: Path, tensors: dict, request: dict, model: torch.nn.Module, more: dict) -> None:
    tensors = dict(tensors)
    layers = {key: json.dumps(tensors.pop(key).tolist()) for key in ("layers", "delta_layers") if key in tensors}
    metadata = {
        **layers,
        "rows": json.dumps(request["rows"]),
        "spans": json.dumps(list(request["spans"])),
        "architecture": model.config.architectures[0] if model.config.architectures else type(model).__name__,
        "attention": "eager", "dtype": "f32",
        "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
        "python": platform.python_version(), **more,
    }
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path, metadata)


def describe(tensors: dict, request: dict) -> None:
    """Prints the masses, sinks and delta shares averaged over heads at the first, middle and last layer of a kind."""
    print(f"mass {list(tensors['mass'].shape)}, logits {list(tensors['logits'].shape)}, heads averaged:")
    for name, layers in (("mass", "layers"), ("sink", "layers"), ("delta_share", "delta_layers"),
                         ("delta_signed", "delta_layers")):
        if name not in tensors:
            continue
        table = tensors[name].mean(axis=1)
        for layer in sorted({0, len(table) // 2, len(table) - 1}):
            for r, row in enumerate(request["rows"]):
                cells = np.atleast_1d(table[layer, r])
                labels = request["spans"] if len(cells) > 1 else [""]
                line = "  ".join(f"{label} {cell:.4f}" for label, cell in zip(labels, cells))
                print(f"  {name} layer {tensors[layers][layer]:2} {row:>6} -> {line}")
