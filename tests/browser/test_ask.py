"""Ask again: with a model at hand sessions are hidden, removed, replaced; trials are listed, kept and taken away."""

import shutil

import pytest

import folders

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    """A copy, since trials are kept in the folder."""
    return shutil.copytree(runs("dose"), tmp_path_factory.mktemp("ask") / "asked")


def open_answer(page, address):
    page.open(address)
    page.click(".row .c-case a")
    page.wait("return document.getElementById('part-again') !== null && current.held !== null")


def test_hiding_a_session_shows_the_answer_and_the_contrast_beside_the_old_ones(page, folder, serve):
    open_answer(page, serve(folder, "--model", folders.MODEL))
    page.wait("return document.getElementById('ask')?.disabled === false", seconds=60)
    label = page.js("const input = document.querySelector('#part-again .pickers input'); if (!input.checked) input.click(); return input.value")
    page.js("for (const input of document.querySelectorAll('#part-again .pickers input')) input.checked = input.value === arguments[0]", label)
    page.click("#ask")
    page.wait("return document.querySelector('#part-again tbody tr') !== null", seconds=60)
    text = page.text("#part-again")
    assert f"hidden: {label}" in text and "Trials (1)" in text
    before = page.js("return current.held.contrast.value")
    assert page.js("return signed(arguments[0])", before) in text
    trial = folders.lines(next(folder.rglob("trials.jsonl")))[0]
    assert page.js("return signed(arguments[0])", trial["after"]["contrast"]) in text
    for change in ["remove", "replace"]:
        page.js("const kind = document.querySelector('#part-again select'); kind.value = arguments[0]; kind.dispatchEvent(new Event('change'))", change)
        page.js("for (const input of document.querySelectorAll('#part-again .pickers input')) input.checked = input.value === arguments[0]", label)
        before_count = len(page.texts("#part-again tbody tr"))
        page.click("#ask")
        page.until(lambda: len(page.texts("#part-again tbody tr")) == before_count + 1, seconds=60)
    assert "removed:" in page.text("#part-again") and "replaced:" in page.text("#part-again")
    page.js("window.saved = []; window.download = (...given) => saved.push(given)")
    page.click("#part-again .tools button", "CSV")
    assert len(page.js("return saved[0][2]").strip().splitlines()) == 4


def test_trials_are_there_when_the_page_is_opened_again(page, folder, serve):
    open_answer(page, serve(folder))
    page.wait("return document.querySelectorAll('#part-again tbody tr').length === 3")
    assert "No model is at hand" in page.text("#part-again")
    assert "palimpsest view" in page.text("#part-again")


def test_nothing_chosen_is_said_and_not_asked(page, folder, serve):
    open_answer(page, serve(folder, "--model", folders.MODEL))
    page.wait("return document.getElementById('ask')?.disabled === false", seconds=60)
    page.js("for (const input of document.querySelectorAll('#part-again .pickers input')) input.checked = false")
    page.click("#ask")
    assert page.wait("return document.querySelector('#part-again [role=status]').textContent") == "choose a session or a path first"


def test_a_token_of_the_answer_shades_the_texts_by_what_it_read(page, folder, serve):
    open_answer(page, serve(folder, "--model", folders.MODEL))
    page.wait("return document.querySelectorAll('#part-answer .tokens [role=button]').length > 1", seconds=60)
    page.click("#part-answer .tokens [role=button]")
    page.wait("return document.querySelector('#part-texts .two .shaded[title]') !== null", seconds=60)
    depths = page.js("return [...document.querySelectorAll('#part-texts .two .turn .shaded')].map((node) => Number(node.style.getPropertyValue('--depth')))")
    assert len(set(depths)) > 3 and "by the attention of" in page.text("#part-texts")
    first = page.js("return [...looks.keys()]")
    page.js("document.querySelectorAll('#part-answer .tokens [role=button]')[1].dispatchEvent(new MouseEvent('click', { bubbles: true, shiftKey: true }))")
    page.wait("return location.hash.includes('token=0&token=1') && looks.size > arguments[0]", len(first), seconds=60)
    page.until(lambda: "the mean of them" in page.text("#part-texts"), seconds=60)
    page.js("const by = document.querySelector('#part-texts select'); by.value = 'question'; by.dispatchEvent(new Event('change'))")
    page.until(lambda: "by the attention of the question" in page.text("#part-texts"), seconds=60)
    # The headings of the prompt are those that the page names.
    headings = page.js("return current.held.sessions.filter((one) => one.heading).map((one) => [current.held.sessions.indexOf(one), one.heading])")
    tokens = page.driver.execute_async_script("const done = arguments[0]; [...looks.values()].at(-1).then((look) => done(look.tokens.filter((token) => token.session !== undefined)))")
    for place, heading in headings:
        text = "".join(token["text"] for token in tokens if token["session"] == place)
        assert text.lstrip().startswith(f"Session {heading} "), text[:60]
    assert headings


def test_line_breaks_of_tokens_are_shown(page, folder, serve):
    open_answer(page, serve(folder, "--model", folders.MODEL))
    page.wait("return document.querySelectorAll('#part-answer .tokens [role=button]').length > 1", seconds=60)
    tops = page.driver.execute_async_script("""const done = arguments[0]; const tokens = ['one', '.\\n\\n', 'two', ' three'].map((text) => ({ text })); api.tokens = async () => ({ generated: { tokens } });
      const holder = document.querySelector('#part-answer .tokens'); holder.replaceChildren();
      tokensInto(holder, current.held).then(() => done([...holder.children].map((child) => child.getClientRects()[0].top)));""")
    assert tops[0] == tops[1] and tops[2] == tops[3]
    line = page.js("return Number.parseFloat(getComputedStyle(document.querySelector('#part-answer .tokens')).lineHeight)")
    assert abs(tops[2] - tops[0] - 2 * line) < 2
    assert page.js("return document.querySelectorAll('#part-answer .tokens .break').length") == 2


def test_progress_is_shown_and_a_trial_can_be_cancelled(page, folder, serve):
    open_answer(page, serve(folder, "--model", folders.MODEL))
    page.wait("return document.getElementById('ask')?.disabled === false", seconds=60)
    # A model that takes its time, in the place of the tiny one.
    page.js("window.cancelled = null; api.ask = async () => ({ id: 'slow' }); api.asked = async () => (cancelled ? { state: 'cancelled' } : { state: 'running', what: 'reading', done: 3, of: 9 }); api.cancel = async (id) => { cancelled = id; }")
    page.js("document.querySelector('#part-again .pickers input').checked = true")
    page.click("#ask")
    page.until(lambda: "reading, 3 of 9" in page.text("#part-again"))
    assert page.js("const bar = document.querySelector('#part-again progress'); return [bar.hidden, bar.value, bar.max]") == [False, 3, 9]
    page.click("#part-again button", "Cancel")
    page.until(lambda: "cancelled" in page.text("#part-again"))
    assert page.js("return cancelled") == "slow" and page.js("return document.getElementById('ask').disabled") is False
