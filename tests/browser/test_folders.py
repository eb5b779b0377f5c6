"""Folders of every kind: each benchmark, version 0.1.0, hostile texts, one that grows."""

import pytest

import folders


def visit(page, address):
    """The table, and every part of the first answer that has one."""
    page.open(address)
    assert page.rows() > 0
    page.click(".row .c-case a")
    page.wait("return document.getElementById('part-take') !== null")
    page.wait("return !document.getElementById('part-layers') || document.getElementById('map') !== null")
    return page.text("#case-view")


@pytest.mark.parametrize("name", ["stale", "subtlememory", *(pytest.param(name, marks=pytest.mark.slow) for name in folders.BENCHMARKS if name != "subtlememory")])
def test_a_folder_of_each_benchmark(page, runs, serve, name):
    text = visit(page, serve(runs(name)))
    assert "Asked and answered" in text
    answers = [row for row in folders.lines(runs(name) / "answers.jsonl") if "error" not in row]
    assert page.js("return current.held.query")
    assert len(answers) >= 2
    assert page.js("return current.pictures.some((picture) => picture.spec.title === 'History')")
    assert page.text("#error-text") == ""


def test_a_folder_of_version_0_1_0(page, runs, serve):
    text = visit(page, serve(runs("old")))
    assert "Asked and answered" in text
    given = {row["answer"] for row in folders.lines(runs("old") / "answers.jsonl") if row.get("answer")}
    assert page.js("return current.held.answer") in given


@pytest.mark.slow
def test_what_a_memory_system_wrote_kept_and_returned(page, runs, serve):
    page.open(serve(runs("memory")), view="case", case="sample-t1-01-suitcase", condition="memory-plain")
    page.wait("return document.getElementById('part-memory') !== null")
    text = page.text("#part-memory")
    store = page.js("return current.held.memory")
    for title, entries in [("Returned to this question", store["returned"]), ("Kept at the end", store["kept"]), ("Written, in order", store["written"])]:
        assert f"{title} ({len(entries)})" in text and len(entries) > 0
    assert page.js("return document.querySelectorAll('#part-memory ol')[0].children.length") == len(store["returned"])
    assert page.texts("#part-memory thead th") == ["fact", "from", "written", "kept", "retrieved", "shown"]
    page.keys("t")
    page.wait("return !document.getElementById('table-view').hidden")
    assert page.js("return document.querySelector(`.heads [data-key='lost']`) !== null")


def test_texts_are_never_markup(page, runs, serve):
    page.open(serve(runs("hostile")))
    page.click(".row .c-case a")
    page.wait("return document.querySelectorAll('#part-texts article').length > 0")
    for summary in range(3):
        page.js("document.querySelectorAll('#part-texts .others-list summary')[arguments[0]]?.click()", summary)
    page.wait("return document.querySelectorAll('#part-texts .others-list article').length > 0")
    assert page.js("return window.pwned === undefined")
    assert page.js("return document.querySelectorAll('main img, main script, main b').length") == 0
    assert "<img src=x onerror=" in page.text("#part-texts") and "</script><script>" in page.text("#part-answer")
    page.js("window.saved = []; window.download = (...given) => saved.push(given)")
    page.click("#strip .take button", "SVG")
    assert page.js("const parsed = new DOMParser().parseFromString(saved[0][2], 'image/svg+xml'); return parsed.querySelector('parsererror') === null && parsed.querySelector('script, img, foreignObject') === null")
    page.click("a", "‹ Table")
    assert page.js("return window.pwned === undefined && document.querySelectorAll('.grid img, .grid script').length === 0")


@pytest.mark.slow
def test_a_folder_that_grows_keeps_the_place_and_what_is_chosen(page, runs, serve, tmp_path):
    folder, rest = folders.growing(runs("stale"), tmp_path / "grows")
    page.open(serve(folder))
    page.wait("return store.count === 12")
    answered = "return store.byKey.get('state').codes.reduce((sum, code) => sum + (store.byKey.get('state').names[code] === 'not yet' ? 0 : 1), 0)"
    before = page.js(answered)
    assert before == 6
    page.js("document.querySelector('.grid').focus()")
    page.keys("j", "j")
    here = page.js("return grid.order[grid.at]")
    with (folder / "answers.jsonl").open("a") as file:
        file.write("".join(rest[:3]))
    page.until(lambda: page.js(answered) == 9)
    assert page.js("return grid.order[grid.at]") == here
    assert page.js("return document.activeElement.className") == "grid"
    # An answer that is open: chosen session, scroll and unfolded parts stay.
    page.keys("k", "k", "\ue007")
    page.wait("return document.getElementById('strip') !== null")
    page.js("document.querySelector('#strip .numbers summary').click()")
    page.js("chooseSession(current.held.sessions[1].label, false)")
    page.js("scrollTo({ top: 600, behavior: 'instant' })")
    stamp = page.js("return data.stamp")
    with (folder / "answers.jsonl").open("a") as file:
        file.write("".join(rest[3:]))
    page.until(lambda: page.js("return data.stamp") != stamp)
    page.until(lambda: page.js(answered) == 12)
    assert abs(page.js("return scrollY") - 600) < 5
    assert page.js("return all('session').length === 1 && document.querySelector('#strip .numbers').open")
    # Half a line, as a writer leaves it: it is waited for, and nothing is lost.
    with (folder / "answers.jsonl").open("a") as file:
        file.write('{"case":"sample-t1')
    page.wait("return document.getElementById('error').hidden")
