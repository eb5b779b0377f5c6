"""`--html`: one file that works without a server."""

import pytest

import folders
import pages


@pytest.fixture(scope="module")
def file(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("html") / "view.html"
    folders.palimpsest("view", runs("stale"), "--html", out)
    return out


def test_the_file_has_table_search_answer_maps_and_comparison(page, file, case):
    address = f"file://{file}"
    page.open(address)
    assert page.rows() == 12 and "a saved file" in page.text("#fresh")
    page.keys("/")
    page.keys("thin air")
    page.until(lambda: 0 < page.rows() < 12)
    page.open(address, **case)
    page.wait("return document.getElementById('map') !== null")
    head, rows = page.table("History")
    assert len(rows) == 5 and "mass.query" in head
    assert "asks no model" in page.text("#part-again")
    # Masses by layer are of 8 bits: within 1/255 of the largest of their layer.
    layers = page.table("Layers by")
    mean = [sum(line[i] for line in layers[1]) / len(layers[1]) for i in range(1, len(layers[0]))]
    top = max(max(line[1:]) for line in layers[1])
    for label, value in zip(layers[0][1:], mean):
        exact = next(row for row in rows if row[0] == label)[head.index("mass.query")]
        assert value == pytest.approx(exact, abs=top / 255)
    page.js("go({ layer: 0 })")
    page.until(lambda: "Heads of layer 0" in page.text("#part-layers"))
    assert "not in this file" in page.text("#part-layers")
    page.open(address, view="compare", **{key: value for key, value in case.items() if key != "view"}, **{f"with.{key}": value for key, value in {**case, "condition": "evidence"}.items() if key != "view"})
    page.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2")


def test_the_file_holds_pictures_for_a_phone_beside_those_for_a_screen(page, file):
    page.resize(pages.PHONE)
    page.open(f"file://{file}", view="overview")
    narrow = "return [...document.querySelectorAll('#overview-view .by-linear svg')].map((svg) => svg.getAttribute('width').endsWith('mm'))"
    page.until(lambda: page.js(narrow) == [True])
    assert page.js("const holder = document.querySelector('#overview-view .by-linear .drawn'); return holder.scrollWidth <= holder.clientWidth + 1")
    page.resize(pages.DESKTOP)
    page.until(lambda: page.js(narrow) == [False])


def test_the_overview_needs_neither_server_nor_script(page, file):
    page.driver.get("about:blank")
    page.driver.get(f"file://{file}")
    page.wait("return document.querySelectorAll('#overview-view svg').length > 4")
    shown = "return ['.by-linear', '.by-log'].map((name) => document.querySelector(name).getClientRects().length > 0)"
    assert page.js(shown) == [True, False]
    page.click("#axis-log")
    assert page.js(shown) == [False, True]
    # Switched and read with scripts off.
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.driver.get(f"file://{file}?plain")
        tree = page.command("DOM.getDocument", depth=-1)["root"]["nodeId"]
        view = page.command("DOM.querySelector", nodeId=tree, selector="#overview-view:not([hidden]) .accuracy")
        assert view["nodeId"] > 0
        assert page.command("DOM.querySelectorAll", nodeId=tree, selector="#overview-view svg")["nodeIds"]
    finally:
        page.command("Emulation.setScriptExecutionDisabled", value=False)


def test_hostile_texts_stay_text_in_the_file(page, runs, tmp_path):
    out = tmp_path / "hostile.html"
    folders.palimpsest("view", runs("hostile"), "--html", out)
    page.open(f"file://{out}")
    page.click(".row .c-case a")
    page.wait("return document.querySelectorAll('#part-texts article').length > 0")
    assert page.js("return window.pwned === undefined && document.querySelectorAll('main img, main script').length === 0")


def test_the_overview_prints_without_the_page_around_it(page, file):
    page.open(f"file://{file}", view="overview")
    page.wait("return document.querySelectorAll('#overview-view svg').length > 4")
    page.resize((700, 900))
    page.command("Emulation.setEmulatedMedia", media="print")
    try:
        seen = "return [...document.querySelectorAll(arguments[0])].filter((node) => node.getClientRects().length).length"
        assert page.js(seen, "header, #table-view, .switch > .line, dialog, button") == 0
        assert page.js(seen, "#overview-view .finding") >= 1 and page.js(seen, "#overview-view .by-linear svg") == 1
        wide = page.js("return [...document.querySelectorAll('#overview-view figure, #overview-view .drawn > svg, #overview-view table')].filter((node) => node.getBoundingClientRect().right > 701).map((node) => node.outerHTML.slice(0, 80))")
        assert wide == []
    finally:
        page.command("Emulation.setEmulatedMedia", media="")
