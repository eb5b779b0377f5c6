"""All of it by the keyboard alone: no pointer, visible focus, no trap."""

import pytest
from selenium.webdriver.common.keys import Keys

FOCUSED = "const node = document.activeElement; return node.id || node.className || node.tagName"


@pytest.mark.slow
def test_from_the_table_to_a_certificate_and_back_without_a_pointer(page, runs, serve):
    page.open(serve(runs("dose")))
    page.js("document.body.focus()")
    page.keys("t")
    assert page.js(FOCUSED) == "grid"
    page.keys(Keys.ARROW_DOWN)
    place = page.js("return document.querySelector('.row.here').getAttribute('aria-rowindex')")
    assert place == "3" and page.js("return document.querySelector('.grid').getAttribute('aria-activedescendant')") == "row-1"
    page.keys(Keys.ENTER)
    page.wait("return document.getElementById('part-answer') !== null")
    page.keys("2")
    assert page.js(FOCUSED) == "part-history"
    # Into the strip's canvas by Tab, a cell told, a session chosen.
    for _ in range(14):
        page.tab()
        if page.js("return document.activeElement.tagName") == "CANVAS":
            break
    assert page.js("return document.activeElement.closest('figure')?.id") == "strip"
    page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.text("#strip .told").startswith("session[2]")
    page.until(lambda: page.js("return document.getElementById('spoken').textContent").startswith("session[2]"))
    page.keys(Keys.ENTER)
    page.wait("return location.hash.includes('session=session[2]')")
    assert page.js("return document.activeElement.closest('figure')?.id") == "strip"
    page.keys("t")
    page.wait("return document.querySelector('#strip .numbers').open")
    page.keys(Keys.ESCAPE)
    page.wait("return !location.hash.includes('session=')")
    page.keys(Keys.ESCAPE)
    page.wait("return !document.getElementById('table-view').hidden")
    page.until(lambda: page.js(FOCUSED) == "grid")
    assert page.js("return document.querySelector('.row.here').getAttribute('aria-rowindex')") == place


def test_the_heads_of_a_layer_by_the_keyboard(page, runs, serve, case):
    page.open(serve(runs("stale")), **case)
    page.wait("return document.getElementById('map') !== null")
    page.js("document.querySelector('#map canvas').focus()")
    page.keys(Keys.ARROW_DOWN)
    page.keys(Keys.ENTER)
    page.wait("return document.getElementById('heads') !== null")
    assert page.js("return document.activeElement.closest('figure')?.id") == "map"


def test_keys_are_told_and_dialogs_give_the_focus_back(page, runs, serve):
    page.open(serve(runs("stale")))
    page.js("document.querySelector('.grid').focus()")
    page.keys("?")
    page.wait("return document.getElementById('keys').open")
    page.keys(Keys.ESCAPE)
    page.wait("return !document.getElementById('keys').open")
    page.keys("f")
    page.wait("return document.activeElement.matches('#filter-list input')")
    page.keys(Keys.SPACE)
    page.wait("return location.hash.includes('f.')")
    assert page.js("return document.activeElement.matches('#filter-list input')"), "a filter keeps the focus"
    page.js("[...document.querySelectorAll('#table-tools button')].find((one) => one.textContent === 'Columns').focus()")
    page.keys(Keys.ENTER)
    page.wait("return document.querySelector('dialog[open]') !== null")
    page.keys(Keys.ESCAPE)
    page.wait("return document.querySelector('dialog[open]') === null")
    assert page.js("return document.activeElement.textContent") == "Columns"


@pytest.mark.slow
def test_tab_goes_through_the_page_and_out_again_with_a_focus_that_is_seen(page, runs, serve, case):
    page.open(serve(runs("stale")), **case)
    page.wait("return document.getElementById('map') !== null")
    page.js("document.body.focus(); window.reached = []; window.bare = []; document.addEventListener('focusin', (event) => { reached.push(event.target); if (getComputedStyle(event.target).outlineStyle === 'none' && event.target.matches(':focus-visible')) bare.push(event.target.outerHTML.slice(0, 80)); })")
    for _ in range(120):
        page.tab()
        if page.js("return reached.length > 12 && (document.activeElement === document.body || reached.indexOf(document.activeElement) < reached.length - 1)"):
            break
    found = page.js("return { parts: [...new Set(reached.map((node) => node.closest('section[id]')?.id).filter(Boolean))], unseen: bare }")
    assert {"part-history", "part-layers", "part-texts", "part-take"} <= set(found["parts"])
    assert found["unseen"] == []


def test_names_and_roles_are_there_for_a_screen_reader(page, runs, serve, case):
    address = serve(runs("stale"))
    for shown in [{}, case]:
        page.open(address, **shown)
        page.wait("return document.querySelectorAll('.row, #map').length > 0")
        tree = page.command("Accessibility.getFullAXTree")["nodes"]
        nameless = [node for node in tree if node.get("role", {}).get("value") in ("button", "link", "textbox", "searchbox", "checkbox", "combobox", "application", "grid", "spinbutton") and not node.get("ignored") and not node.get("name", {}).get("value")]
        assert nameless == []
    assert page.js("return [...document.querySelectorAll('table')].every((table) => table.querySelector('caption') || table.closest('dialog'))")
