"""Spans are what they name, or are refused with the number of times that their text was found."""

from __future__ import annotations

import pytest
from conftest import TEXT

import palimpsest


def test_spans_hold_the_tokens_of_their_text(tiny):
    prompt = tiny.prompt(TEXT, spans={"cat": "the mat", "range": (4, 11)})
    for label, part in (("cat", "the mat"), ("range", TEXT[4:11])):
        start, end = prompt.spans[label]
        first, last = prompt.characters[start][0], prompt.characters[end - 1][1]
        assert prompt.text[first:last].strip() == part.strip()
    assert "".join(tiny.decode(prompt.tokens)).endswith(TEXT[-10:])
    assert len(prompt) == len(prompt.tokens) == len(prompt.characters)


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ({"a": "the cat"}, "span `a`: its text \"the cat\" occurs 3 times"),
        ({"a": "the horse"}, "occurs 0 times"),
        ({"a": ""}, "names no text"),
        ({"a": (5, 5)}, "characters 5..5"),
        ({"a": (9, 4)}, "characters 9..4"),
        ({"a": (0, 10_000)}, "the text has"),
        ({"a": (-1, 4)}, "give its text, or"),
        ({"a": 7}, "give its text, or"),
        ({"last": "the mat"}, "names a row"),
        ({"": "the mat"}, "a span has no name"),
        ({"a": (3, 0, 4)}, "lies in message 3"),
    ],
)
def test_spans_that_are_not_what_they_name_are_refused(tiny, spans, said):
    with pytest.raises(palimpsest.Error) as raised:
        tiny.prompt(TEXT, spans=spans)
    assert said in str(raised.value)


def test_characters_are_not_bytes(tiny):
    text = "Gijón, Ñandú: the ärger 🙂 is gone."
    prompt = tiny.prompt(text, spans={"word": (14, 23)})
    assert text[14:23] == "the ärger"
    start, end = prompt.spans["word"]
    assert text[prompt.characters[start][0] : prompt.characters[end - 1][1]].strip() == "the ärger"


def test_wrong_types_are_type_errors(tiny):
    with pytest.raises(TypeError):
        tiny.prompt(5)
    with pytest.raises((TypeError, ValueError)):
        tiny.prompt(["not a message"])
    with pytest.raises(palimpsest.Error, match="role"):
        tiny.prompt([{"content": "no role"}])
    with pytest.raises(palimpsest.Error, match="no message"):
        tiny.prompt([])


def test_a_prompt_of_another_model_is_refused(prompt):
    from conftest import FIXTURES

    other = palimpsest.Model.load(FIXTURES / "gemma3-tiny")
    with pytest.raises(palimpsest.Error, match="another model"):
        other.trace(prompt)


def test_messages_are_spans_where_none_is_named(smol):
    prompt = smol.prompt([{"role": "user", "content": "I live in Gijón."}, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "Where do I live?"}])
    assert list(prompt.spans) == ["messages[0]", "messages[1]", "messages[2]"]
    named = smol.prompt([{"role": "user", "content": "I live in Gijón. Where?"}], spans={"fact": "I live in Gijón."})
    assert list(named.spans) == ["fact"] and "messages[0]" in named.names
    assert "<|im_start|>" in named.text
