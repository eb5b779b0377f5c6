"""At phone width nothing of the page is wider than the screen, and all of it is there."""

import pytest

import pages


@pytest.fixture(params=[pytest.param(False, id="light"), pytest.param(True, id="dark", marks=pytest.mark.slow)])
def phone(page, request):
    page.resize(pages.PHONE)
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if request.param else "light"}])
    yield page
    page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])


def test_table_answer_and_comparison_fit_the_width(phone, runs, serve, case):
    address = serve(runs("stale"))
    for shown, ready in [({"view": "overview"}, "#overview-view svg"), ({}, ".row"), (case, "#map"), ({"view": "compare"}, "#sides")]:
        phone.open(address, **shown)
        phone.wait("return document.querySelector(arguments[0]) !== null", ready)
        assert phone.js("return document.documentElement.scrollWidth") <= 390, shown
        wide = phone.js("""return [...document.querySelectorAll('main *, header *')].filter((node) => node.getBoundingClientRect().right > 391 && !node.closest('.grid, .wide, .scroll, .stage, pre, .away')).map((node) => node.outerHTML.slice(0, 90))""")
        assert wide == [], shown
    assert phone.js("return getComputedStyle(document.body).backgroundColor") in ("rgb(250, 248, 243)", "rgb(23, 21, 17)")


def test_pictures_of_the_overview_fit_the_width_and_can_be_read(phone, runs, serve):
    phone.open(serve(runs("stale")), view="overview")
    phone.wait("return document.querySelectorAll('#overview-view figure svg').length > 4", seconds=60)
    phone.js("for (const fold of document.querySelectorAll('#overview-view details')) fold.open = true")
    pictures = phone.js("""return [...document.querySelectorAll('#overview-view figure svg')].filter((svg) => svg.getClientRects().length).map((svg) => {
      const [box, holder] = [svg.getBoundingClientRect(), svg.parentElement];
      const sizes = [...svg.querySelectorAll('text')].map((text) => Number.parseFloat(text.getAttribute('font-size')) * box.width / svg.viewBox.baseVal.width);
      return [holder.getAttribute('aria-label'), box.right, holder.scrollWidth - holder.clientWidth, Math.min(...sizes)]; })""")
    assert len(pictures) > 4
    for name, right, hidden, least in pictures:
        assert right <= 390 and hidden <= 1 and least >= 8, (name, right, hidden, least)
    # On a wide screen they are laid out for that.
    phone.resize(pages.DESKTOP)
    phone.wait("return Math.max(...[...document.querySelectorAll('#overview-view figure svg')].map((svg) => svg.getBoundingClientRect().width)) > 500", seconds=60)


def test_the_head_of_the_table_fits_the_width(phone, runs, serve):
    phone.open(serve(runs("stale")))
    phone.wait("return document.querySelector('.row') !== null")
    assert phone.js("return [...document.querySelectorAll('.heads button')].every((head) => head.getBoundingClientRect().right <= 390)")
    assert phone.js("const heads = document.querySelector('.heads'); return heads.scrollWidth <= heads.clientWidth + 1")


def test_the_table_of_why_has_a_line_a_value(phone, runs, serve, case):
    address = serve(runs("stale"))
    phone.open(address)
    labelled = phone.js("const why = store.byKey.get('why'); return Array.from({ length: store.count }, (_, row) => row).filter((row) => why.names[why.codes[row]] !== 'right' && nameOf(row)[3] === 'full').map(nameOf)")
    seen = 0
    for run, name, probe, condition in labelled:
        phone.open(address, **{**case, "run": run, "case": name, "probe": probe, "condition": condition})
        phone.wait("return document.getElementById('part-answer') !== null")
        cells = phone.js("return [...document.querySelectorAll('.stack td, .stack tbody th')].map((node) => { const box = node.getBoundingClientRect(); return [box.width / Number.parseFloat(getComputedStyle(node).fontSize), box.right, box.height, node.innerText]; })")
        for width, right, height, text in cells:
            assert width >= 6 and right <= 390 and height < 60, (width, right, height, text)
        seen += len(cells)
        assert phone.js("return document.documentElement.scrollWidth") <= 390
    assert seen >= 6


def test_a_tap_opens_an_answer_and_filters_unfold(phone, runs, serve):
    phone.open(serve(runs("stale")))
    assert not phone.js("return document.getElementById('filters').open")
    phone.click("#filters > summary")
    phone.click("#filter-list input[data-name='verdict=wrong']")
    phone.wait("return location.hash.includes('f.verdict=wrong')")
    phone.click("#filters > summary")
    phone.click(".row")
    phone.wait("return document.getElementById('part-answer') !== null")


def test_both_sides_of_a_comparison_are_in_sight(phone, runs, serve, case):
    names = {key: value for key, value in case.items() if key != "view"}
    phone.open(serve(runs("stale")), view="compare", **names, **{f"with.{key}": value for key, value in {**names, "condition": "evidence"}.items()})
    phone.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2")
    assert phone.js("return [...document.querySelectorAll('#compare-view .wide td')].every((cell) => cell.getBoundingClientRect().right <= 390)")


def test_sizes_of_what_is_pressed(phone, runs, serve, case):
    phone.open(serve(runs("stale")), **case)
    phone.wait("return document.getElementById('map') !== null")
    small = phone.js("return [...document.querySelectorAll('button, select, input, summary')].filter((node) => node.getClientRects().length).map((node) => [node.getBoundingClientRect().height, node.outerHTML.slice(0, 60)]).filter(([height]) => height > 0 && height < 12)")
    assert small == []


def test_a_tap_on_the_heads_map_says_what_is_there(phone, runs, serve, case):
    phone.open(serve(runs("stale")), **case, layer=1)
    phone.wait("return document.getElementById('heads') !== null")
    x, y = phone.js("""const picture = current.pictures.find((one) => one.spec.id === 'heads'); picture.canvas.scrollIntoView({ block: 'center', behavior: 'instant' });
      const [box, canvas] = [picture.drawn.cells.box(0, 0), picture.canvas.getBoundingClientRect()]; return [canvas.left + box[0] + box[2] / 2, canvas.top + box[1] + box[3] / 2];""")
    for kind in ["touchStart", "touchEnd"]:
        phone.command("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}] if kind == "touchStart" else [])
    phone.until(lambda: "L1 H5" in phone.text("#heads .told"))
    # Labels are as large as all others, cells large enough to hit.
    assert phone.js("return current.pictures.find((one) => one.spec.id === 'heads').drawn.scene.items.filter((item) => /^L1 H/.test(item.text ?? '')).every((item) => item.size >= 11)")
    assert phone.js("return current.pictures.find((one) => one.spec.id === 'heads').drawn.cells.box(0, 0).slice(2)") >= [20, 20]
