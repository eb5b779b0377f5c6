"""The overview: first view, made in the background, beside the answers, of several runs one at a time."""

import shutil

import folders
import pages


def at_first(page, address):
    page.visit(address)
    page.wait("return document.querySelectorAll('#overview-view svg').length > 4", seconds=60)


def test_it_comes_first_and_leads_to_the_answers_and_back(page, runs, serve):
    at_first(page, serve(runs("stale")))
    assert page.js("return document.getElementById('to-overview').hasAttribute('aria-current')")
    # Nothing inserted has a style or a handler of its own.
    assert page.js("return document.querySelectorAll('#overview-view [style], #overview-view style, #overview-view script').length") == 0
    page.click("#overview-view a[href='#view=table']")
    page.until(lambda: page.rows() == 12)
    assert {"question", "answer"} <= set(page.texts(".heads [data-key]"))
    page.keys("o")
    page.wait("return !document.getElementById('overview-view').hidden")


def test_answers_cut_at_the_limit_are_told_beside_the_finding(page, runs, serve):
    at_first(page, serve(runs("stale")))
    finding = page.texts("#overview-view p.finding")
    assert any("6 of 6 answers were cut at the limit of 6 new tokens." in text for text in finding), finding
    # Attention is of some questions, verdicts of all: no sentence has both.
    assert not any("attention" in text and "right" in text for text in finding), finding
    assert not any("cut at the limit" in text for text in page.texts("#overview-view p.quiet"))
    # Their number leads to them.
    cut = [row for row in folders.lines(runs("stale") / "answers.jsonl") if row["stop"] == "max_new_tokens"]
    page.click("#overview-view a[href='#f.state=cut']", f"{len(cut)} cut answers")
    page.until(lambda: page.text("#found"))
    assert page.rows() == len(cut) > 0
    assert page.js("return Array.from(store.order).every((row) => textOf('state', row) === 'cut')")


def test_one_chart_alone_has_its_caption_beside_it(page, runs, serve, tmp_path):
    alone = shutil.copytree(runs("stale"), tmp_path / "alone")
    for path in alone.glob("*causes.jsonl"):
        path.unlink()
    page.resize((1280, 800))
    at_first(page, serve(alone))
    boxes = """return ['.charts', '.by-linear svg', '.by-linear figcaption'].map((name) => { const box = document.querySelector(`#overview-view ${name}`).getBoundingClientRect(); return [box.left, box.right, box.top]; })"""
    (left, right, _), (of_left, of_right, top), (beside, end, begins) = page.js(boxes)
    assert page.js("return document.querySelectorAll('#overview-view .charts > *').length") == 1
    assert of_left == left and of_right - of_left > (right - left) / 2
    assert of_right < beside < end <= right + 1 and abs(begins - top) < 20
    page.resize(pages.PHONE)
    page.wait("const [chart, words] = ['svg', 'figcaption'].map((name) => document.querySelector(`#overview-view .by-linear ${name}`)?.getBoundingClientRect()); return chart && words && chart.right <= 390 && words.top >= chart.bottom", seconds=60)


def test_of_several_runs_each_has_its_own(page, runs, serve):
    address = serve(runs("stale"), runs("dose"))
    page.open(address, view="overview")
    page.wait("return document.querySelectorAll('#overview-view .charts svg').length > 2", seconds=60)
    # All of them: a row each, with its finding and its charts, under one switch.
    assert [text.split()[0] for text in page.texts("#overview-view section h2")] == ["stale", "dose"]
    assert page.js("return [...document.querySelectorAll('#overview-view section')].map((row) => row.querySelectorAll('.finding').length > 0 && row.querySelectorAll('.charts svg').length > 0)") == [True, True]
    shown = "return ['.by-linear', '.by-log'].map((name) => [...document.querySelectorAll(`#overview-view ${name}`)].filter((one) => one.getClientRects().length).length)"
    assert page.js(shown) == [2, 0] and page.js("return document.querySelectorAll('#overview-view input[name=axis]').length") == 2
    page.click("#axis-log")
    assert page.js(shown) == [0, 2]
    assert page.js("return document.querySelector('.overview-bar select').options.length") == 3
    page.click("#overview-view h2 a", "stale")
    page.wait("return document.querySelectorAll('#overview-view svg').length > 4", seconds=60)
    first = page.text("#overview-view")
    page.js("const choice = document.querySelector('.overview-bar select'); choice.selectedIndex = 2; choice.dispatchEvent(new Event('change'))")
    page.wait("return document.getElementById('overview-view').textContent.includes('What moves the update effect')", seconds=60)
    assert page.text("#overview-view") != first
