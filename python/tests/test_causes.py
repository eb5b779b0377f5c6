"""What an answer owes to a span: held against passes of one's own."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import TEXT

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
