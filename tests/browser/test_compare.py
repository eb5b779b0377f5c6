"""Compare: two conditions on the same case, and what flipped over all of them."""

from selenium.webdriver.common.keys import Keys


def test_two_selected_rows_stand_side_by_side(page, runs, serve):
    page.open(serve(runs("stale")), **{"f.case": "sample-t1-01-suitcase", "f.probe": "SR"})
    assert page.rows() == 2
    page.js("document.querySelector('.grid').focus()")
    page.keys(Keys.SPACE, Keys.ARROW_DOWN, Keys.SPACE)
    page.keys("c")
    page.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2")
    text = page.text("#compare-view")
    assert "full" in text and "evidence" in text and page.text("#flip")
    differing = page.texts("#compare-view tr.flip")
    assert any("condition" in line for line in differing)
    page.wait("return current.pictures.length === 1 && current.pictures[0].drawn")
    head, rows = page.table("Both histories")
    assert len([name for name in head if name.startswith("mass.query")]) == 2
    full, evidence = (next(i for i, name in enumerate(head) if name.startswith("mass.query") and side in name) for side in ["full", "evidence"])
    # Without the distractors only the evidence is there.
    assert sum(row[full] is not None for row in rows) == 4 and sum(row[evidence] is not None for row in rows) == 2

    # Lanes that are held against each other have one scale.
    assert page.js("return current.pictures[0].drawn.scene.items.filter((item) => item.what === 'text' && item.size === 10.5).slice(0, 2).map((item) => item.text)")[0] == page.js("return current.pictures[0].drawn.scene.items.filter((item) => item.what === 'text' && item.size === 10.5)[1].text")


def test_sides_are_counted_over_all_questions_and_flips_are_linked(page, runs, serve):
    page.open(serve(runs("stale")), view="compare")
    page.wait("return document.getElementById('sides') !== null")
    cells = page.js("return [...document.querySelectorAll('#sides td')].map((cell) => Number(cell.textContent))")
    assert sum(cells) == 6
    flips = page.js("return document.querySelectorAll('.flips tr').length")
    assert flips == cells[1] + cells[2] > 0
    page.click(".flips a")
    page.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2")
    assert "It flips" in page.text("#flip")


def test_an_answer_is_compared_with_another_to_its_question(page, runs, serve, case):
    page.open(serve(runs("stale")), **case)
    page.wait("return document.getElementById('part-answer') !== null")
    page.keys("c")
    page.wait("return document.querySelector('#compare-view select') !== null")
    page.js("const choose = document.querySelector('#compare-view select'); choose.value = choose.options[1].value; choose.dispatchEvent(new Event('change'))")
    page.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2")
    address = page.js("return location.href")
    page.driver.get("about:blank")
    page.driver.get(address)
    page.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2")


def test_two_runs_are_two_sides(page, runs, serve, tmp_path):
    import shutil

    other = shutil.copytree(runs("stale"), tmp_path / "other")
    page.open(serve(runs("stale"), other), view="compare")
    page.wait("return document.querySelectorAll('#compare-view select')[0]?.options.length === 4")
