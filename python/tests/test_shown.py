"""Results show themselves, with every text escaped, and draw themselves."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import palimpsest

HOSTILE = "<script>alert('&')</script>"


class Balanced(HTMLParser):
    """Fails on tags that do not close, and gathers those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in ("br", "rect") or tag == "rect":
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open[-1] == "rect" and tag != "rect":
            self.open.pop()
        assert self.open and self.open.pop() == tag, tag


def page(shown: str) -> Balanced:
    parser = Balanced()
    parser.feed(shown)
    return parser


def test_texts_and_labels_are_escaped(tiny):
    text = f"the {HOSTILE} cat. where is it?"
    prompt = tiny.prompt(text, spans={HOSTILE: HOSTILE, "query": "where is it?"})
    trace = tiny.trace(prompt)
    answer = palimpsest.Answer(HOSTILE, None, "end_of_turn", [1], 0, trace)
    causes = tiny.causes(prompt, answer="cat")
    for shown in (prompt, trace, answer, causes):
        found = page(shown._repr_html_())
        assert "script" not in found.seen
        assert "&lt;script&gt;" in shown._repr_html_()


def test_a_trace_shows_text_strip_and_map(tiny, prompt):
    shown = tiny.trace(prompt)._repr_html_()
    assert shown.count("<svg") == 3 and "query to " in shown
    text = "".join(part for part in shown.split("</div>")[0])
    assert "rgba(" in text


def test_a_long_text_is_shortened(tiny):
    text = "the cat sat. " * 900
    prompt = tiny.prompt(text, spans={"query": (0, 12)})
    assert len(prompt._repr_html_()) < 4000


def test_pictures_are_drawn(tiny, prompt, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    trace = tiny.trace(prompt)
    for number, ax in enumerate(
        [
            trace.plot(),
            trace.plot("last", span="old"),
            tiny.causes(prompt, answer="the mat").plot(),
            tiny.causes(prompt, answer="the mat", windows=1).plot(),
            tiny.generate(prompt, max_tokens=3).plot(),
        ]
    ):
        ax.figure.savefig(tmp_path / f"{number}.png")
        pyplot.close(ax.figure)
        assert (tmp_path / f"{number}.png").stat().st_size > 1000


def test_a_missing_package_is_named_with_its_extra(tiny, prompt, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'palimpsest\[arrays\]'"):
        tiny.trace(prompt).to_xarray()


def test_tables_are_written(tiny, prompt, tmp_path):
    import json

    causes = tiny.causes(prompt, answer="the mat")
    causes.save(tmp_path / "causes.csv")
    causes.save(tmp_path / "causes.jsonl")
    lines = (tmp_path / "causes.csv").read_text().splitlines()
    assert lines[0].startswith("span,start,end,drop") and len(lines) == 3
    row = json.loads((tmp_path / "causes.jsonl").read_text().splitlines()[0])
    assert row["span"] == "old" and row["drop"] == causes.to_numpy("drop")[0]
    with pytest.raises(ValueError, match="name the file so"):
        causes.save(tmp_path / "causes.xlsx")
