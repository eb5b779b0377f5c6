"""What the page's words and numbers mean: sessions from 0, the glossary, verdicts that are withheld, addresses that name odd things."""

import re
import shutil

import pytest

import folders


def opened(page, address, **shown):
    page.open(address, **shown)
    page.wait("return document.getElementById('map') !== null")


def texts_of(page, picture):
    return page.js("return current.pictures.find((one) => one.spec.id === arguments[0]).drawn.scene.items.filter((item) => item.what === 'text').map((item) => item.text)", picture)


def test_sessions_have_one_number_from_0_and_dropped_ones_are_gaps(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    sessions = page.js("return current.held.sessions")
    assert [one["label"] for one in sessions] == [f"session[{place}]" for place in range(5)]
    dropped = [one["index"] for one in sessions if one["dropped"]]
    assert len(dropped) == 1
    for picture in ["strip", "map"]:
        shown = texts_of(page, picture)
        assert set("01234") <= set(shown), shown
        assert any(text.startswith("session, numbered from 0; grey: dropped") for text in shown)
        assert page.js("return current.pictures.find((one) => one.spec.id === arguments[0]).drawn.cells.columns", picture) == 5
    # The map has no number of it, and its table no column.
    assert f"session[{dropped[0]}]" not in page.table("Layers by")[0]
    assert "dropped, not shown" in page.js("return current.pictures.find((one) => one.spec.id === 'map').spec.words(arguments[0], 0)", dropped[0])
    # The prompt counts those that it shows from 1, which is said once and beside each text.
    headings = [one.get("heading") for one in sessions if not one["dropped"]]
    assert headings == [1, 2, 3, 4]
    label = next(one["label"] for one in sessions if one.get("heading") == 1)
    assert f"count from 1: {label} stands there under “Session 1”" in page.text("#numbering")
    assert all("in the prompt" in text for text in page.texts("#part-texts .two article > .line") if f"session[{dropped[0]}]" not in text)


def test_heads_are_named_by_layer_and_head(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case, layer=1)
    page.wait("return document.getElementById('heads') !== null")
    shown = texts_of(page, "heads")
    heads = page.js("return current.held.heads")
    assert {f"L1 H{head}" for head in range(heads)} <= set(shown)
    assert re.search(r"session\[0\].*, L1 H\d+: mass [\d.]+ %", page.js("return current.pictures.find((one) => one.spec.id === 'heads').spec.words(0, 0)"))
    page.click("#heads .numbers summary")
    assert page.wait("return document.querySelector('#heads tbody th')?.textContent") == "L1 H0"


def test_the_glossary_is_the_tutorial_s(page, runs, serve, tmp_path):
    tutorial = (folders.ROOT / "docs" / "tutorial.md").read_text().split("## Fourteen words")[1]
    words = re.findall(r"^### (.+)$", tutorial, re.M)
    assert len(words) == 14
    page.open(serve(runs("stale")))
    address = page.js("return location.href")
    page.click("#words-open")
    assert page.texts("#words[open] dt") == words
    assert page.js("return location.href") == address
    page.click("#words .close")
    assert page.js("return document.querySelector('dialog[open]')") is None
    # Without scripts it stands at the end of a file.
    out = tmp_path / "view.html"
    folders.palimpsest("view", runs("stale"), "--html", out)
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.visit(f"file://{out}")
        tree = page.command("DOM.getDocument", depth=-1)["root"]["nodeId"]
        node = page.command("DOM.querySelector", nodeId=tree, selector="#words dt")["nodeId"]
        assert page.command("DOM.getBoxModel", nodeId=node)["model"]["height"] > 0
    finally:
        page.command("Emulation.setScriptExecutionDisabled", value=False)


def test_verdicts_of_a_judge_that_cannot_judge_are_withheld_everywhere(page, runs, serve, case):
    why = "Verdicts are withheld: local:tiny-135m has about 135 million parameters by its name."
    badges = "return document.querySelectorAll('.pill.right, .pill.wrong').length"
    address = serve(runs("unable"))
    page.open(address, col=["case", "verdict", "why", "note", "correct"])
    assert page.rows() == 12 and page.text("#withheld").startswith(why)
    columns = page.js("return store.columns.map((column) => column.key)")
    assert not {"verdict", "correct", "note", "worth", "why"} & set(columns)
    assert not [text for text in page.texts("#filter-list legend") if text in ("verdict", "why", "right")]
    assert page.js(badges) == 0
    opened(page, address, **case)
    assert page.js(badges) == 0
    text = page.text("#case-view")
    assert text.count(why) == 1 and "Reason" not in text
    assert "The label rests on verdicts that are withheld" in page.text("#part-answer")
    page.open(address, view="compare")
    page.wait("return document.querySelector('#compare-view .card') !== null")
    assert page.text("#compare-view").count(why) == 1
    assert page.js("return document.getElementById('sides')") is None
    page.open(address, view="overview")
    page.wait("return document.querySelectorAll('#overview-view svg').length > 4", seconds=60)
    text = page.text("#overview-view")
    said = re.findall(r"Labels are withheld: (\S*tiny-135m.*? has about 135 million parameters by its name)\.", text)
    assert len(said) == text.count("Labels are withheld: ") == 1, text
    assert "cannot judge" in text and not re.search(r"\d+ (are )?(right|wrong|correct)|(right|wrong) \d", text)


def test_no_label_is_offered_for_verdicts_that_are_withheld(page, runs, serve, case, tmp_path):
    for name in ["unable", "stale"]:
        out = shutil.copytree(runs(name), tmp_path / name)
        (out / "why.jsonl").unlink()
        opened(page, serve(out), **{**case, "run": name})
        offered = "palimpsest why" in page.text("#case-view")
        assert offered == (name == "stale"), page.text("#part-answer")
        assert ("No label: it would explain a verdict that is withheld." in page.text("#part-answer")) != offered


def test_labels_of_another_judge_say_so(page, runs, serve, case, tmp_path):
    said = "Labels of why explain the verdicts of rules; the verdicts shown are by local:llama-tiny"
    page.open(serve(runs("stale")))
    assert "Labels of why" not in page.text("#withheld")
    out = shutil.copytree(runs("stale"), tmp_path / "other")
    folders.put(out / "why.jsonl", [{**row, "judge": "rules"} for row in folders.lines(out / "why.jsonl")])
    address = serve(out)
    page.open(address)
    assert page.text("#withheld").startswith(said)
    opened(page, address, **{**case, "run": "other"})
    assert said in page.text("#part-answer")
    page.open(address, view="overview")
    page.wait("return document.querySelector('#overview-view [aria-labelledby=why]') !== null", seconds=60)
    assert "The labels explain the verdicts of rules; the accuracies are by local:llama-tiny" in page.text("#overview-view [aria-labelledby=why]")


def test_the_words_of_a_maps_scale_fit_beside_it(page, runs, serve):
    page.open(serve(runs("stale")))
    assert page.js("""const scene = new Scene(1000, 300); legend(scene, { most: 0.281, least: 0.00023 }, false, percent, scene.width, MAP.right, 20, 200);
      const to = document.createElement('canvas').getContext('2d'); const texts = scene.items.filter((item) => item.what === 'text');
      return texts.some((item) => item.text === '≤ 0.023 %') && texts.every((item) => { to.font = `${item.size}px ${FONT}`; return item.x + to.measureText(item.text).width <= scene.width; })""")


@pytest.mark.parametrize("shown", ["__proto__=1", "__proto__=1&view=table&f.__proto__=x", "view=constructor", "view=__proto__", "constructor=1&hasOwnProperty=2", "view=table&sort=__proto__&col=toString"])
def test_an_address_may_name_anything(page, runs, serve, shown):
    page.visit(f"{serve(runs('stale'))}#{shown}")
    page.wait("return store.count === 12 && (!document.getElementById('overview-view').hidden || !document.getElementById('table-view').hidden)")
    assert page.js("return document.getElementById('error').hidden && Object.keys(Object.prototype).length === 0 && ({})[1] === undefined")
    # Steps go on from there.
    page.js("go({ view: 'table' })")
    page.wait("return !document.getElementById('table-view').hidden && document.querySelector('.row') !== null")


def test_a_measure_of_that_kind_is_none(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case, measure="constructor", of="__proto__")
    assert page.text("#map h3").startswith("Layers by sessions: mass")
