"""The overview: first view, made in the background, beside the answers, of several runs one at a time."""


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
