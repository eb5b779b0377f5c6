"""What an answer owes to a span: held against the command's numbers, and against passes of one's own."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pytest
from conftest import FIXTURES, TEXT, command
from safetensors.numpy import load_file

import palimpsest

SPANS = {"old": "the cat sat on the mat", "query": "where is the cat?"}


@pytest.fixture()
def short(tiny):
    return tiny.prompt(TEXT, spans=SPANS)


def test_blocking_a_span_that_the_answer_does_not_see_changes_nothing(tiny, short):
    causes = tiny.causes(short, answer="the mat")
    assert causes.to_numpy("span").tolist() == ["old"]
    assert np.isfinite(causes.to_numpy("drop")).all() and causes.log_p < 0
    # There is text without a name before the question, in which stretches lie.
    assert np.isfinite(causes.to_numpy("control")).all()
    assert not np.isfinite(tiny.causes(short, answer="the mat", controls=None).to_numpy("control").astype(float)).any()


def test_removal_is_the_prompt_without_the_span(tiny, short):
    removed = tiny.causes(short, answer="the mat", how="remove")
    plain = removed.log_p
    start, end = short.spans["old"]
    tokens = short.tokens[:start] + short.tokens[end:]
    # The same tokens as a prompt of their own.
    text = "".join(tiny.decode(tokens))
    again = tiny.prompt(text, spans={"rest": (0, 4)})
    if again.tokens == tokens:
        other = tiny.causes(again, answer="the mat", how="remove").log_p
        assert np.isclose(plain - removed.to_numpy("drop")[0], other, atol=1e-5)


def test_every_way_and_answer_gives_a_line_a_span(tiny, prompt):
    answer = tiny.generate(prompt, max_tokens=4)
    for how in ("block", "remove", "replace", "contextcite"):
        causes = tiny.causes(prompt, answer=answer, how=how, controls="anywhere" if how == "block" else "evidence")
        assert causes.to_numpy("span").tolist() == ["old", "new"], how
        assert causes.answer_tokens == len(answer.tokens)
    windows = tiny.causes(prompt, answer=answer.tokens, windows=1)
    assert len(windows) == 2 * tiny.layers and windows.to_numpy("layer_start").tolist()[0] == 0
    assert len(tiny.causes(prompt)) == 2


@pytest.mark.parametrize(("how", "readings"), [("block", 2), ("remove", 2), ("replace", 2), ("contextcite", 32)])
def test_progress_counts_the_readings_with_something_left_out(tiny, prompt, monkeypatch, how, readings):
    told = []

    @contextmanager
    def counted(total, what, unit):
        yield told.append

    monkeypatch.setattr("palimpsest._model.progress", counted)
    tiny.causes(prompt, answer="the mat", how=how, controls=None)
    assert told[-1] == readings and told == sorted(told)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"how": "hide"}, "how is `hide`"),
        ({"windows": 0}, "windows is 0"),
        ({"how": "remove", "windows": 2}, "windows are of"),
        ({"controls": "many"}, "controls is `many`"),
        ({"answer": []}, "no tokens"),
        ({"answer": [10**6]}, "vocabulary"),
    ],
)
def test_wrong_settings_are_refused(tiny, prompt, settings, said):
    with pytest.raises(palimpsest.Error) as raised:
        tiny.causes(prompt, **{"answer": "the mat", **settings})
    assert said in str(raised.value)


def test_a_prompt_without_evidence_is_refused(tiny):
    with pytest.raises(palimpsest.Error, match="no span that ends before"):
        tiny.causes(tiny.prompt(TEXT, spans={"query": "where is the cat?"}), answer="the mat")


def turns(*said):
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]


# The case is called `prompt` since subsets are drawn by the case's name, and Python's case has that one.
CASE = {
    "uid": "prompt",
    "type": "T1",
    "M_old": "the cat sits on the mat",
    "M_new": "the cat sits on the bed",
    "explanation": "the cat has moved",
    "relevant_session_index": [0, 3],
    "haystack_session": [
        turns("the cat sat on the mat.", "so it did."),
        turns("the dog ran to the park.", "and back."),
        turns("the hat is red.", "a red hat."),
        turns("the cat now sits on the bed.", "good cat."),
        turns("the sun is up.", "so get up."),
    ],
    "timestamps": [f"2026-01-0{day} 10:00:00" for day in range(1, 6)],
    "probing_queries": {
        "dim1_query": "where is the cat?",
        "dim2_query": "why is the cat on the mat?",
        "dim3_query": "find the cat.",
    },
}
MODEL = FIXTURES / "llama-tiny"


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """The folder of a run by the command with one answer, whose causes the command has measured in every way."""
    folder = tmp_path_factory.mktemp("answered")
    (folder / "data.json").write_text(json.dumps([CASE]))
    run = folder / "run"
    ended = command("run", "--data", folder / "data.json", "--model", MODEL, "--out", run, "--only", "SR", "--max-new-tokens", 6)
    assert ended.returncode == 0, ended.stderr
    for flags in (
        ["--controls", 12],
        ["--windows", 2, "--controls", 0],
        ["--total", "--sessions", "all"],
        ["--replace", "--sessions", "all"],
        ["--contextcite", 32],
    ):
        ended = command("causes", run, "--model", MODEL, *flags)
        assert ended.returncode == 0, ended.stderr
    return run


@pytest.fixture(scope="module")
def asked(answered, tiny):
    """Makes Python's prompt of the run's tokens with spans at these tokens; and the answer's tokens."""
    (file,) = (answered / "attention").iterdir()
    stored = load_file(file)
    tokens = stored["tokens"].tolist()
    pieces = tiny.decode(tokens)
    starts = [0, *accumulate(map(len, pieces))]

    def prompt(spans):
        made = tiny.prompt("".join(pieces), spans={label: (starts[a], starts[b]) for label, (a, b) in spans.items()})
        assert list(made.tokens) == tokens and made.spans == spans
        return made

    return prompt, stored["generated"].tolist()


def lines(answered, kind=None):
    rows = [json.loads(line) for line in (answered / "causes.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("kind") == kind]


def sessions(answered, asked):
    """The sessions and the question of the run's answer."""
    blocked = {row["span"]: tuple(row["tokens"]) for row in lines(answered)}
    trace = palimpsest.Run.open(answered).trace("prompt", "SR")
    (query,) = ((row["start"], row["end"]) for row in trace._rows if row["label"] == "query")
    assert len(blocked) == len(CASE["haystack_session"])
    return {**blocked, "query": query}


def check(causes, rows, of="effect"):
    """All numbers of each line, to the bit."""
    by_path = {(row["span"], *(row.get("layers") or ())): row for row in rows}
    assert len(by_path) == len(rows) == len(causes)
    for line in causes._rows():
        layers = (line["layer_start"], line["layer_end"]) if "layer_start" in line else ()
        row = by_path[(line["span"], *layers)]
        assert [line["start"], line["end"]] == row["tokens"]
        assert (causes.log_p, causes.answer_tokens) == (row["log_p"], row["answer_tokens"])
        found = {"log_p_drop": line["drop"], **{name: line[name] for name in ("kl", "kl_answer", "changed")}}
        assert found == row[of], line["span"]


@pytest.mark.parametrize(("how", "windows", "kind", "of"), [
    ("block", None, None, "effect"),
    ("block", 2, None, "effect"),
    ("remove", None, "total", "total"),
    ("replace", None, "replaced", "replaced"),
])
def test_effects_are_those_of_the_command_to_the_bit(tiny, answered, asked, how, windows, kind, of):
    prompt, answer = asked
    causes = tiny.causes(prompt(sessions(answered, asked)), answer=answer, how=how, windows=windows, controls=None)
    rows = [row for row in lines(answered, kind) if ("layers" in row) == (windows is not None)]
    check(causes, rows, of)
    assert max(abs(causes.to_numpy("drop"))) > 1e-3


def test_weights_of_contextcite_are_those_of_the_command_to_the_bit(tiny, answered, asked):
    prompt, answer = asked
    causes = tiny.causes(prompt(sessions(answered, asked)), answer=answer, how="contextcite")
    (row,) = lines(answered, "contextcite")
    found = [{"span": line["span"], "tokens": [line["start"], line["end"]], "weight": line["drop"]} for line in causes._rows()]
    assert found == [{name: weight[name] for name in ("span", "tokens", "weight")} for weight in row["weights"]]
    assert (causes.r2, causes.intercept, causes.answer_tokens) == (row["r2"], row["intercept"], row["answer_tokens"])
    assert any(weight["weight"] for weight in row["weights"])


def test_the_stretches_of_the_commands_controls_have_the_same_effects_as_spans(tiny, answered, asked):
    # The command draws stretches among the sessions, Python anywhere before the question: each is held against a span at its place.
    prompt, answer = asked
    rows = [{**row, "span": f"stretch {row['stretch']}"} for row in lines(answered, "control")]
    assert len(rows) > 3
    spans = {row["span"]: tuple(row["tokens"]) for row in rows}
    query = sessions(answered, asked)["query"]
    check(tiny.causes(prompt({**spans, "query": query}), answer=answer, controls=None), rows)
