"""An answer's page: the strip, the maps, the texts, what is summed, what is taken away; its numbers are the files'."""

import csv
import json

import pytest
from safetensors_file import tensors
from selenium.webdriver.common.keys import Keys

import folders

SESSIONS = 5
SHOWN = 4


def opened(page, address, **shown):
    page.open(address, **shown)
    page.wait("return current.held !== null && document.getElementById('part-answer') !== null")
    page.wait("return !document.getElementById('part-layers') || document.getElementById('map') !== null")


def test_from_the_table_to_an_answer_and_back(page, runs, serve):
    page.open(serve(runs("stale")), **{"f.verdict": "wrong"})
    page.click(".row .c-case a")
    page.wait("return document.getElementById('part-history') !== null")
    heading = page.text("#case-title")
    assert "sample-t" in heading and "Asked and answered" in page.text("#part-answer")
    assert "Reason" in page.text("#part-answer")
    first = page.js("return location.hash")
    page.click("#step-on")
    page.until(lambda: page.text("#case-title") != heading)
    page.js("history.back()")
    page.until(lambda: page.js("return location.hash") == first)
    page.until(lambda: page.text("#case-title") == heading)
    page.keys(Keys.ESCAPE)
    page.until(lambda: page.js("return !document.getElementById('table-view').hidden"))
    assert "f.verdict=wrong" in page.js("return location.hash")


def test_the_strip_equals_the_attention_file_and_causes(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    head, rows = page.table("History")
    by_session = {row[0]: dict(zip(head, row)) for row in rows}
    answer = next(row for row in folders.lines(runs("stale") / "answers.jsonl") if row["case"] == case["case"] and row["probe"] == "SR" and row["condition"] == "full")
    arrays, metadata = tensors(runs("stale") / answer["attention"])
    row_labels, spans = (json.loads(metadata[name]) for name in ["rows", "spans"])
    mass, query = arrays["mass"], [row["label"] for row in row_labels].index("query")
    compared = 0
    for place, span in enumerate(spans):
        if span["label"] in by_session and not span.get("overlay"):
            values = [mass[layer][one][query][place] for layer in range(len(mass)) for one in range(len(mass[0]))]
            assert by_session[span["label"]]["mass.query"] == pytest.approx(sum(values) / len(values), abs=1e-6)
            compared += 1
    assert compared == SHOWN and len(rows) == SESSIONS
    causes = [row for row in folders.lines(runs("stale") / "causes.jsonl") if row["case"] == case["case"] and row["probe"] == "SR" and row["condition"] == "full"]
    direct = {row["span"]: row["effect"]["log_p_drop"] for row in causes if "kind" not in row and "layers" not in row}
    total = {row["span"]: row["total"]["log_p_drop"] for row in causes if row.get("kind") == "total"}
    assert len(direct) == SHOWN and len(total) == 2
    for label, drop in direct.items():
        assert by_session[label]["direct"] == pytest.approx(drop, abs=1e-6)
    for label, drop in total.items():
        assert by_session[label]["total"] == pytest.approx(drop, abs=1e-6)


def test_what_windows_left_and_forced_sessions_are_lanes_where_they_were_measured(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    assert not {"selected.query", "forgone.query", "forced"} & set(page.table("History")[0])
    page.open(serve(runs("windowed")))
    page.click(".row .c-case a")
    page.wait("return current.held !== null && document.getElementById('strip') !== null")
    head, rows = page.table("History")
    by_session = {row[0]: dict(zip(head, row)) for row in rows}
    answer = folders.lines(runs("windowed") / "answers.jsonl")[0]
    arrays, metadata = tensors(runs("windowed") / answer["attention"])
    query = [row["label"] for row in json.loads(metadata["rows"])].index("query")
    drops = {row["span"]: row["forced"]["log_p_drop"] for row in folders.lines(runs("windowed") / "causes.jsonl")}
    compared = 0
    for place, span in enumerate(json.loads(metadata["spans"])):
        if span["label"] in by_session and not span.get("overlay"):
            for name in ["selected", "forgone"]:
                values = [of_layer[query][place] for of_layer in arrays[name]]
                assert by_session[span["label"]][f"{name}.query"] == pytest.approx(sum(values) / len(values), abs=1e-6)
            assert by_session[span["label"]]["forced"] == pytest.approx(drops[span["label"]], abs=1e-6)
            compared += 1
    assert compared == len(drops) == len(rows) == 4
    # In the picture without being asked for.
    shown = page.js("return shownLanes(current.held).map((lane) => lane.key)")
    assert shown == ["mass.query", "density.query", "selected.query", "forgone.query", "forced"]


def test_maps_of_layers_and_heads_equal_the_attention_file(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case, layer=1)
    page.wait("return document.getElementById('heads') !== null")
    answer = next(row for row in folders.lines(runs("stale") / "answers.jsonl") if row["case"] == case["case"] and row["probe"] == "SR" and row["condition"] == "full")
    arrays, metadata = tensors(runs("stale") / answer["attention"])
    labels = [span["label"] for span in json.loads(metadata["spans"])]
    query = [row["label"] for row in json.loads(metadata["rows"])].index("query")
    mass = arrays["mass"]
    head, rows = page.table("Layers by")
    assert [row[0] for row in rows] == list(range(len(mass)))
    for row in rows:
        for label, value in zip(head[1:], row[1:]):
            of_heads = [mass[row[0]][one][query][labels.index(label)] for one in range(len(mass[0]))]
            assert value == pytest.approx(sum(of_heads) / len(of_heads), abs=1e-6)
    head, rows = page.table("Heads of layer 1")
    assert len(rows) == len(mass[1])
    for row in rows:
        for label, value in zip(head[1:], row[1:]):
            assert value == pytest.approx(mass[1][row[0]][query][labels.index(label)], abs=1e-6)


def test_maps_of_effects_and_of_norms_equal_their_files(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case, measure="effect")
    rows = [row for row in folders.lines(runs("stale") / "causes.jsonl") if row["case"] == case["case"] and row["probe"] == "SR" and row["condition"] == "full" and "kind" not in row and "layers" in row]
    drops = {(row["span"], f"{row['layers'][0]}–{row['layers'][1] - 1}"): row["effect"]["log_p_drop"] for row in rows}
    head, shown = page.table("Layers by sessions: effect by window")
    assert len(shown) * len(head[1:]) == len(drops) == 2 * SHOWN
    for line in shown:
        for label, value in zip(head[1:], line[1:]):
            assert value == pytest.approx(drops[(label, line[0])], abs=1e-6)
    opened(page, serve(runs("stale")), **case, measure="value_norm")
    arrays, metadata = tensors(next((runs("stale") / "causes").glob("sample-t1-01-suitcase-SR--full*")))
    labels, query = json.loads(metadata["spans"]), json.loads(metadata["rows"]).index("query")
    head, shown = page.table("Layers by sessions: value norm")
    assert len(shown) == len(arrays["value_norm"])
    for place, line in enumerate(shown):
        of_layer = arrays["value_norm"][place]
        for label, value in zip(head[1:], line[1:]):
            numbers = [one[query][labels.index(label)] for one in of_layer]
            assert value == pytest.approx(sum(numbers) / len(numbers), abs=1e-6)


@pytest.mark.slow
def test_contrasts_and_their_effects_equal_the_files(page, runs, serve):
    page.open(serve(runs("dose")))
    page.click(".row .c-case a")
    page.wait("return current.held !== null && document.getElementById('strip') !== null")
    name = page.js("return current.held.case")
    answer = next(row for row in folders.lines(runs("dose") / "answers.jsonl") if row["case"] == name)
    assert page.js("return current.held.contrast.value") == pytest.approx(answer["contrast"]["value"], abs=1e-6)
    head, rows = page.table("History")
    causes = {row["span"]: row["drop"] for row in folders.lines(runs("dose") / "contrast-causes.jsonl") if row["case"] == name and row["ablation"] == "blocked" and "layers" not in row}
    assert len(causes) > 2
    for row in rows:
        assert row[head.index("contrast.direct")] == pytest.approx(causes[row[0]], abs=1e-6)


def test_curves_of_the_page_are_those_of_lens(page, runs, serve, case):
    """What the page's tables say of each answer, averaged over answers, is the CSV of `palimpsest lens`."""
    folder = runs("stale")
    folders.palimpsest("lens", folder, "--condition", "full")
    with (folder / "lens" / "full-curves.csv").open() as file:
        lens = [row for row in csv.DictReader(file) if (row["probe"], row["type"], row["correctness"], row["scale"]) == ("SR", "all", "all", "mass")]
    cases = ["sample-t1-01-suitcase", "sample-t2-02-thin-air"]
    shown = {}
    for name in cases:
        opened(page, serve(folder), **{**case, "case": name})
        head, rows = page.table("By layer")
        for row in rows[:-1]:
            for key, value in zip(head[1:], row[1:]):
                shown[(name, row[0], key.replace("_to_", "_"))] = value
    for row in lens:
        statistic = row["statistic"].replace("_to_", "_")
        column = f"{statistic.removesuffix('_noise')} noise mass" if statistic.endswith("_noise") else f"{statistic} mass"
        # A case whose evidence has no neighbours has no baseline.
        values = [value for name in cases if (value := shown[(name, int(row["layer"]), column)]) is not None]
        assert int(row["n"]) == len(values) > 0
        assert float(row["mean"]) == pytest.approx(sum(values) / len(values), abs=1e-6), row
    assert len(lens) == 6 * 3


def test_sessions_are_chosen_and_summed_and_rows_averaged(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    page.js("document.querySelector('#strip canvas').focus()")
    page.keys(Keys.HOME)
    page.keys(Keys.ENTER)
    page.keys(Keys.ARROW_RIGHT)
    page.keys(Keys.SPACE)
    page.wait("return new URLSearchParams(location.hash.slice(1)).getAll('session').length === 2")
    head, rows = page.table("History")
    both = rows[0][head.index("mass.query")] + rows[1][head.index("mass.query")]
    assert page.js("return percent(arguments[0])", both) in page.text("#part-history .chosen")
    before = page.table("Layers by")[1]
    page.click("#part-layers input[value='last']")
    page.until(lambda: "query + last" in page.text("#map h3"))
    after = page.table("Layers by")[1]
    assert before != after
    page.keys(Keys.ESCAPE)
    page.wait("return new URLSearchParams(location.hash.slice(1)).getAll('session').length === 0")


def test_what_is_pointed_at_is_told_in_numbers(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    page.js("""const canvas = document.querySelector('#strip canvas'); canvas.scrollIntoView({ block: 'center', behavior: 'instant' }); const box = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.right - 20, clientY: box.top + 60, bubbles: true }));""")
    told = page.text("#strip .told")
    assert told.startswith("session[") and "mass" in told and "%" in told
    page.click("#strip .numbers summary")
    assert page.wait("return document.querySelectorAll('#strip .numbers tbody tr').length") == SESSIONS


def test_texts_of_the_evidence_stand_side_by_side_and_the_others_unfold(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    page.wait("return document.querySelectorAll('#part-texts .two article').length === 2")
    labels = page.texts("#part-texts .two article .pill")
    assert "old" in labels and "new" in labels
    depths = page.js("return [...document.querySelectorAll('#part-texts .two .body')].map((node) => Number(node.style.getPropertyValue('--depth')))")
    assert max(depths) > 0
    page.click("#part-texts .others-list summary")
    assert len(page.wait("return document.querySelector('#part-texts .others-list article')?.innerText")) > 40


def test_a_figure_is_taken_away_as_svg_csv_python_and_command(page, runs, serve, case):
    opened(page, serve(runs("stale")), **case)
    page.js("window.saved = []; window.download = (...given) => saved.push(given); window.copied = []; window.copy = (text) => copied.push(text)")
    for name in ["SVG", "CSV", "Python", "Command"]:
        page.click("#strip .take button", name)
    (svg_name, _, svg), (csv_name, _, text) = page.js("return saved")
    assert svg_name.endswith(".svg") and csv_name.endswith(".csv")
    assert page.js("const parsed = new DOMParser().parseFromString(arguments[0], 'image/svg+xml'); return parsed.querySelector('parsererror') === null && parsed.querySelectorAll('rect').length > 10", svg)
    head, *rows = list(csv.reader(text.splitlines()))
    shown_head, shown = page.table("History")
    assert head == shown_head and len(rows) == len(shown)
    assert float(rows[0][head.index("mass.query")]) == shown[0][shown_head.index("mass.query")]
    python, command = page.js("return copied")
    compile(python, "copied", "exec")
    assert "palimpsest.Run.open" in python and case["case"] in python
    assert command.startswith("palimpsest ")


def test_empty_states_name_the_command_that_brings_what_is_missing(page, runs, serve):
    page.open(serve(runs("subtlememory")))
    page.click(".row .c-case a")
    page.wait("return document.getElementById('part-take') !== null")
    text = page.text("#case-view")
    assert "palimpsest causes" in text and "palimpsest judge" in text
