"""Masses are sums of TransformerLens' attention patterns, and a knock-out is its hook on the scores.

On a tiny checkpoint of SmolLM2's architecture. Left out where TransformerLens is not installed: `pip install transformer-lens`
(version 4 was used) brings PyTorch and transformers.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import FIXTURES, SPANS, TEXT

import palimpsest

torch = pytest.importorskip("torch")
bridge = pytest.importorskip("transformer_lens.model_bridge")
transformers = pytest.importorskip("transformers")

NAME = "llama-tiny"


@pytest.fixture(scope="module")
def lens():
    folder = FIXTURES / NAME
    eager = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return bridge.TransformerBridge.boot_transformers(str(folder), hf_model=eager, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def asked():
    model = palimpsest.Model.load(FIXTURES / NAME)
    return model, model.prompt(TEXT, spans=SPANS)


def masses(patterns, spans, row):
    """Layers x heads x spans: what a row span's tokens pay to each span, on average."""
    start, end = spans[row]
    paid = [[pattern[0, :, start:end, a:b].sum(-1).mean(-1) for a, b in spans.values()] for pattern in patterns]
    return np.array([[[float(x) for x in heads] for heads in layer] for layer in paid]).transpose(0, 2, 1)


def patterns(cache, layers):
    return [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(layers)]


def last_logits(model, prompt, vocabulary, **asked):
    """Logits of the last position: each is the sum of its parts."""
    parts = model.trace(prompt, rows=["query"], targets=list(range(vocabulary)), **asked)
    return parts.to_numpy("attribution").sum(axis=(1, 2, 3)) + parts.to_numpy("attribution_other").sum(axis=1)


def test_masses_are_sums_of_the_patterns(lens, asked):
    model, prompt = asked
    trace = model.trace(prompt, rows=["query"])
    with torch.inference_mode():
        logits, cache = lens.run_with_cache(torch.tensor([list(prompt.tokens)]))
    found = trace.to_numpy("mass")[:, :, 0]
    expected = masses(patterns(cache, model.layers), {label: prompt.spans[label] for label in trace.spans}, "query")
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-4
    expected = logits[0, -1].numpy()
    assert np.abs(last_logits(model, prompt, len(expected)) - expected).max() < 1e-3


def test_a_knockout_is_a_hook_on_the_scores(lens, asked):
    model, prompt = asked
    blocked = range(0, 2)
    (q, end), (a, b) = prompt.spans["query"], prompt.spans["new"]

    def hide(scores, hook):
        scores[:, :, q:end, a:b] = -torch.inf
        return scores

    hooks = [(f"blocks.{layer}.attn.hook_attn_scores", hide) for layer in blocked]
    with torch.inference_mode(), lens.hooks(fwd_hooks=hooks):
        logits, cache = lens.run_with_cache(torch.tensor([list(prompt.tokens)]))
    knockouts = [f"query->new@{blocked.start}..{blocked.stop}"]
    trace = model.trace(prompt, rows=["query"], knockouts=knockouts)
    plain = model.trace(prompt, rows=["query"])
    expected = masses(patterns(cache, model.layers), {label: prompt.spans[label] for label in trace.spans}, "query")
    found = trace.to_numpy("mass")[:, :, 0]
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(plain.to_numpy("mass")[:, :, 0] - expected).max() > 1e-2
    expected = logits[0, -1].numpy()
    assert np.abs(last_logits(model, prompt, len(expected), knockouts=knockouts) - expected).max() < 1e-3
    assert np.abs(last_logits(model, prompt, len(expected)) - expected).max() > 1e-2
