"""A trace by Python is the command's, to the bit, and is what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import FIXTURES, SPANS, TEXT, command
from safetensors import safe_open
from safetensors.numpy import load_file

import palimpsest


def metadata(path) -> dict[str, str]:
    with safe_open(path, "numpy") as file:
        return file.metadata()


@pytest.mark.parametrize("name", ["llama-tiny", "gemma3-tiny", "gpt-oss-tiny", "qwen35-text-tiny"])
def test_tensors_are_those_of_the_command_to_the_bit(name, tmp_path):
    model = palimpsest.Model.load(FIXTURES / name)
    prompt = model.prompt(TEXT, spans=SPANS)
    is_hybrid = "qwen35" in name
    more = {} if is_hybrid else {"top_keys": 3, "measures": ["mass", "share", "value_norm", "output_norm"]}
    more["selected"] = True
    knockouts = [] if is_hybrid else ["query->new@0..2"]
    trace = model.trace(prompt, knockouts=knockouts, **more)
    job = {
        "id": "one",
        "text": TEXT,
        "spans": SPANS,
        "rows": ["query", "last"],
        "knockouts": knockouts,
        "out": str(tmp_path / "command.safetensors"),
        **more,
    }
    (tmp_path / "jobs.jsonl").write_text(json.dumps(job))
    ended = command("trace", "--model", FIXTURES / name, "--jobs", tmp_path / "jobs.jsonl", "--out", tmp_path / "rows.jsonl")
    assert ended.returncode == 0, ended.stderr
    trace.save(tmp_path / "python.safetensors")
    assert (tmp_path / "python.safetensors").read_bytes() == (tmp_path / "command.safetensors").read_bytes()
    expected = load_file(tmp_path / "command.safetensors")
    assert set(expected) == set(trace.arrays)
    for tensor, array in expected.items():
        assert trace.to_numpy(tensor).tobytes() == array.tobytes(), tensor
    assert metadata(tmp_path / "python.safetensors") == metadata(tmp_path / "command.safetensors") == trace.metadata


def test_answers_are_those_of_the_command_to_the_bit(tiny, prompt, tmp_path):
    answer = tiny.generate(prompt, max_tokens=6, rows=["answer", "each", "query"], selected=True)
    job = {"text": TEXT, "spans": SPANS, "rows": ["answer", "each", "query"], "generate": 6, "selected": True, "out": str(tmp_path / "c.safetensors")}
    (tmp_path / "jobs.jsonl").write_text(json.dumps(job))
    ended = command("trace", "--model", FIXTURES / "llama-tiny", "--jobs", tmp_path / "jobs.jsonl", "--out", tmp_path / "rows.jsonl")
    assert ended.returncode == 0, ended.stderr
    expected = load_file(tmp_path / "c.safetensors")
    assert answer.tokens == expected["generated"].tolist()
    for tensor in ("mass", "share", "mass_each", "selected", "forgone"):
        assert answer.to_numpy(tensor).tobytes() == expected[tensor].tobytes(), tensor
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert answer.text == row["answer"].strip() if "answer" in row else True


def test_windows_leave_to_rows_the_share_of_the_spans_tokens_that_they_hold():
    model = palimpsest.Model.load(FIXTURES / "gemma3-tiny")
    prompt = model.prompt(TEXT, spans=SPANS)
    trace = model.trace(prompt, rows=["query", "last"], selected=True)
    selected, forgone = trace.to_numpy("selected"), trace.to_numpy("forgone")
    assert selected.shape == forgone.shape == (4, 2, 3) and selected.dtype == forgone.dtype == np.float32
    ranges, n = prompt.spans, len(prompt)
    expected = np.zeros((4, 2, 3))
    for layer, window in enumerate(json.loads(trace.metadata["windows"])):
        for r, rows in enumerate([range(*ranges["query"]), range(n - 1, n)]):
            for k, (start, end) in enumerate(ranges[name] for name in trace.spans):
                keys = [[key for key in range(start, end) if key <= row] for row in rows]
                shares = [sum(window is None or row - key < window for key in of) / len(of) for row, of in zip(rows, keys) if of]
                expected[layer, r, k] = np.mean(shares)
    assert np.allclose(selected, expected, atol=1e-6) and (expected < 1).any()
    assert np.array_equal(forgone > 0, selected < 1)
    # Of single layers, in columns, and none without asking.
    some = model.trace(prompt, rows=["query", "last"], layers=[2, 3], heads="mean", selected=True)
    assert np.array_equal(some.to_numpy("selected"), selected[2:])
    assert some.columns["forgone"].tolist() == forgone[2:].ravel().tolist()
    assert "selected" not in model.trace(prompt).arrays
    with pytest.raises(palimpsest.Error, match="`selected` is of rows"):
        model.generate(prompt, max_tokens=2, rows=["each"], selected=True)


@pytest.mark.slow
def test_masses_are_those_of_transformers(smol):
    """SmolLM2 over 512 tokens: the fixture has what transformers gives with eager attention and a hook that sums the weights."""
    folder = FIXTURES / "smollm2-512"
    given = json.loads((folder / "tokens.json").read_text())
    expected = load_file(folder / "reference.safetensors")["mass"]
    named = metadata(folder / "reference.safetensors")
    text = "".join(smol.decode(given["tokens"]))
    whole = smol.prompt(text)
    assert whole.tokens == given["tokens"]
    places = {
        label: (whole.characters[start][0], whole.characters[end - 1][1]) for label, (start, end) in given["spans"].items()
    }
    prompt = smol.prompt(text, spans=places)
    assert {label: list(span) for label, span in prompt.spans.items()} == given["spans"]
    trace = smol.trace(prompt, rows=json.loads(named["rows"]))
    assert trace.spans == json.loads(named["spans"])
    assert np.abs(trace.to_numpy() - expected).max() < 1e-4


def test_arrays_own_the_buffers_that_rust_made(tiny, prompt):
    mass = tiny.trace(prompt).to_numpy()
    assert mass.dtype == np.float32 and mass.flags.c_contiguous and mass.flags.writeable
    # Not NumPy's own memory: what holds it is Rust's.
    assert not mass.flags.owndata and type(mass.base).__name__ == "PySliceContainer"
    copy = mass.copy()
    del prompt
    assert (mass == copy).all()


def test_masses_of_spans_that_tile_the_prompt_sum_to_one(tiny):
    prompt = tiny.prompt("one two three", spans={"all": "one two three"})
    assert np.allclose(tiny.trace(prompt).to_numpy().sum(axis=-1), 1, atol=1e-5)


def test_layers_and_heads_are_parts_of_the_whole(tiny, prompt):
    whole = tiny.trace(prompt, top_keys=2)
    part = tiny.trace(prompt, layers=[1], heads=[1, 0], top_keys=2)
    assert part.layers == [1] and part.heads == [1, 0]
    assert (part.to_numpy() == whole.to_numpy()[[1]][:, [1, 0]]).all()
    assert (part.to_numpy("top_keys") == whole.to_numpy("top_keys")[[1]][:, [1, 0]]).all()
    mean = tiny.trace(prompt, heads="mean")
    assert np.allclose(mean.to_numpy()[:, 0], whole.to_numpy().mean(axis=1)) and mean.heads == ["mean"]
    with pytest.raises(ValueError, match="layers are \\[9\\]"):
        tiny.trace(prompt, layers=[9])
    with pytest.raises(ValueError, match="heads are \\[77\\]"):
        tiny.trace(prompt, heads=[77])


def test_a_knock_out_hides_the_span(tiny, prompt):
    assert tiny.trace(prompt, knockouts=["query->old"]).to_numpy()[:, :, :, 0].max() == 0
    with pytest.raises(palimpsest.Error, match="no span is called `oldd`"):
        tiny.trace(prompt, knockouts=["query->oldd"])


def test_a_notebook_says_what_is_hidden(tiny, prompt):
    said = json.loads(tiny.trace(prompt, knockouts=["query->old"]).metadata["hidden"])[0]["text"]
    assert said.startswith("`old` (") and "is hidden from `query` and every later position" in said
    assert f"knocked out: {said}" in tiny.trace(prompt, knockouts=["query->old"])._repr_html_()
    assert "knocked out" not in tiny.trace(prompt)._repr_html_()


def test_the_first_tokens_mass_is_that_of_a_span_of_its_own(tiny):
    text = "one two three"
    prompt = tiny.prompt(text, spans={"all": text})
    start, end = prompt.characters[0]
    first = tiny.trace(tiny.prompt(text, spans={"first": (start, end), "rest": (end, len(text))}))
    assert (first.to_numpy("first_token") == first.to_numpy()[..., 0]).all()
    assert np.allclose(tiny.trace(prompt).to_numpy("first_token"), first.to_numpy("first_token"), atol=1e-6)


def test_the_parts_of_a_target_sum_to_its_logit(tiny, prompt):
    trace = tiny.trace(prompt, targets=[5, (5, 6)])
    whole = trace.to_numpy("attribution").sum(axis=(1, 2, 3)) + trace.to_numpy("attribution_other").sum(axis=1)
    alone = tiny.trace(prompt, targets=[6])
    other = alone.to_numpy("attribution").sum() + alone.to_numpy("attribution_other").sum()
    assert np.isclose(whole[0] - whole[1], other, atol=1e-3)


def test_frames_are_taken_by_pandas_polars_and_xarray(tiny, prompt):
    polars = pytest.importorskip("polars")
    trace = tiny.trace(prompt)
    frame = trace.to_frame()
    mass = trace.to_numpy()
    assert len(frame) == mass.size and list(frame.columns) == ["layer", "head", "row", "span", "mass", "share"]
    line = frame[(frame.layer == 1) & (frame["head"] == 1) & (frame.row == "query") & (frame.span == "new")]
    assert line.mass.item() == mass[1, 1, 0, 1]
    assert polars.DataFrame(trace.columns).shape == (mass.size, 6)
    data = trace.to_xarray()
    assert data["mass"].sel(layer=1, head=1, row="query", span="new").item() == mass[1, 1, 0, 1]
    assert data["share"].dims == ("layer", "row", "span")


def test_rows_that_are_not_there_are_refused_by_name(tiny, prompt):
    with pytest.raises(palimpsest.Error, match="row `qerry` is none of the spans"):
        tiny.trace(prompt, rows=["qerry"])
    with pytest.raises(TypeError, match="give a list of labels"):
        tiny.trace(prompt, rows="query")
    with pytest.raises(palimpsest.Error, match="`measures` names `masses`"):
        tiny.trace(prompt, measures=["masses"])
    with pytest.raises(palimpsest.Error, match="top_keys"):
        tiny.trace(prompt, top_keys=10**6)
    with pytest.raises(palimpsest.Error, match="names token 999999"):
        tiny.trace(prompt, targets=[999999])
    with pytest.raises(palimpsest.Error, match="no span is named"):
        tiny.trace(tiny.prompt("nothing here has a name"))
    with pytest.raises(KeyError, match="has no `masss`"):
        tiny.trace(prompt).to_numpy("masss")


def test_the_default_rows_are_those_that_the_prompt_has(tiny, prompt):
    assert tiny.trace(prompt).rows == ["query", "last"]
    assert tiny.trace(tiny.prompt("one two", spans={"a": "one"})).rows == ["last"]


@pytest.mark.parametrize("name", ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"])
def test_a_policy_that_keeps_all_has_the_bits_of_none(name):
    model = palimpsest.Model.load(FIXTURES / name)
    prompt = model.prompt(TEXT, spans=SPANS)
    plain = model.generate(prompt, max_tokens=6, rows=["query", "answer"])
    evicting = model.generate(prompt, max_tokens=6, rows=["query", "answer"], evict="snapkv:1.0")
    assert evicting.tokens == plain.tokens
    assert evicting.to_numpy().tobytes() == plain.to_numpy().tobytes()
    assert plain.trace.kept == {} and "evict" not in plain.trace.metadata
    assert all(share == 1 for share in evicting.trace.kept.values())


def test_evicted_keys_are_not_seen_and_shares_say_which(tiny, prompt):
    trace = tiny.trace(prompt, evict="streaming:0.5")
    shares, start = trace.to_numpy("kept"), prompt.spans["query"][0]
    assert shares.shape[::2] == (tiny.layers, 3) and shares.dtype == np.float32
    assert np.isnan(shares[..., 2]).all() and trace.spans == ["old", "new", "query"]
    # The first four keys and the latest stay, by all heads alike.
    assert 0 < trace.kept["old"] < 1 and (shares == shares[:1, :1]).all(where=~np.isnan(shares))
    old, new = prompt.spans["old"], prompt.spans["new"]
    recent = range(start - (start // 2 - 4), start)
    expected = [sum(at < 4 or at in recent for at in range(*span)) / (span[1] - span[0]) for span in (old, new)]
    assert np.allclose(list(trace.kept.values()), expected, atol=1e-6)
    assert trace.metadata["evict"] == "streaming:0.5" and "evicted: streaming:0.5" in trace._repr_html_()
    data = trace.to_xarray()["kept"]
    assert data.dims == ("kept_layer", "kv_head", "span") and data["span"].values.tolist() == trace.spans
    # Whole spans: what is evicted gets nothing, and the plain trace afterwards is the one before.
    before = tiny.trace(prompt).to_numpy()
    session = tiny.trace(prompt, rows=["query"], evict=f"oldest:{start - old[1]}")
    assert session.kept["old"] == 0 and session.to_numpy()[..., 0].max() == 0 < before[:, :, 0, 0].min()
    assert tiny.trace(prompt).to_numpy().tobytes() == before.tobytes()


def test_evictions_that_cannot_be_are_refused_by_name(tiny, prompt):
    with pytest.raises(palimpsest.Error, match="it has no `:`"):
        tiny.trace(prompt, evict="snapkv")
    with pytest.raises(palimpsest.Error, match="marks as evidence"):
        tiny.trace(prompt, evict="oracle:0.5")
    for more in ({"knockouts": ["query->old"]}, {"top_keys": 2}, {"targets": [5]}, {"measures": ["mass", "value_norm"]}):
        with pytest.raises(palimpsest.Error, match="evict is not measured together with"):
            tiny.trace(prompt, evict="snapkv:0.5", **more)
    whole = tiny.prompt("where is it?", spans={"query": "where is it?"})
    with pytest.raises(palimpsest.Error, match="evict needs tokens before the question"):
        tiny.trace(whole, evict="snapkv:0.5")
