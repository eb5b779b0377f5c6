"""The numbers of docs/view.md: first paint, opening the largest case, memory, scrolling, filters; in Chromium, over a folder of the size that STALE's published file gives.

    python tests/browser/measure.py FOLDER     # FOLDER is made where it is missing: 400 cases of 150,000 tokens, 1,200 answers, 54 spans, 36 layers, 32 heads, 2.2 GB
"""

from __future__ import annotations

import array
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

import folders
import pages

CASES, SESSIONS, LAYERS, HEADS, ROWS = 400, 50, 36, 32, 4
PROBES = ["SR", "PR", "IPA"]
WORDS = "the market is on Thursday and from May on it rains more than in the years before so that we take the train to the coast and read a letter of hers".split()


def one_case(out: Path) -> None:
    """A run of one case by a tiny model, judged."""
    folders.palimpsest("run", "--data", "sample", "--limit", 1, "--sessions", 5, "--model", folders.MODEL, "--context", 4096, "--max-new-tokens", 6, "--out", out)
    folders.palimpsest("judge", out, "--judge", f"local:{folders.MODEL}", "--reasons", "none")


def make(out: Path) -> None:
    """A run of the size of the published file: texts of 600 kB a case, all heads of every answer. Its numbers are drawn, not measured."""
    base = out.with_name(out.name + "-base")
    shutil.rmtree(base, ignore_errors=True)
    one_case(base)
    plan, answers, verdicts = (folders.lines(base / name)[0] for name in ["plan.jsonl", "answers.jsonl", "verdicts.jsonl"])
    draw = random.Random(0)
    (out / "cases").mkdir(parents=True)
    (out / "attention").mkdir()
    shutil.copy(base / "run.json", out)
    spans = [{"label": name, "start": i, "end": i + 1} for i, name in enumerate(["bos", "system"])]
    spans += [{"label": f"session[{i}]", "start": 2 + i * 3000, "end": 2 + (i + 1) * 3000, **({"role": "old"} if i == 11 else {"role": "new"} if i == 37 else {})} for i in range(SESSIONS)]
    end = spans[-1]["end"]
    spans += [{"label": "query", "role": "query", "start": end, "end": end + 30}, {"label": "template[0]", "start": end + 30, "end": end + 36}]
    rows = [{"label": "session[37]", "role": "new", "start": spans[39]["start"], "end": spans[39]["end"]}, {"label": "query", "role": "query", "start": end, "end": end + 30}, {"label": "last", "start": end + 35, "end": end + 36}, {"label": "answer", "start": end + 35, "end": end + 60}]
    one = [draw.random() ** 4 for _ in range(len(spans))]
    mass = array.array("f")
    for _ in range(LAYERS * HEADS * ROWS):
        draw.shuffle(one)
        whole = sum(one)
        mass.extend(x / whole for x in one)
    share = array.array("f", [(span["end"] - span["start"]) / (end + 36) for span in spans] * (LAYERS * ROWS))
    tokens = array.array("I", [draw.randrange(49_000) for _ in range(end + 36)])
    generated = array.array("I", range(24))
    blob, offsets = b"", []
    for part in [mass, share, tokens, generated]:
        offsets.append([len(blob), len(blob) + 4 * len(part)])
        blob += part.tobytes()
    table: dict[str, list[dict]] = {"plan.jsonl": [], "answers.jsonl": [], "verdicts.jsonl": []}
    for number in range(CASES):
        case = f"case-{number:03d}"
        table["plan.jsonl"].append({**plan, "position": number, "case": case, "labels": {"type": f"T{1 + number % 2}"}, "evidence": [{"role": "old", "session": 11}, {"role": "new", "session": 37}]})
        sessions = [{"index": i, "time": f"2025-{1 + i // 28:02d}-{1 + i % 28:02d}T08:00:00", "turns": [{"role": ["user", "assistant"][turn % 2], "content": " ".join(draw.choices(WORDS, k=210))} for turn in range(12)]} for i in range(SESSIONS)]
        (out / "cases" / f"{case}.json").write_text(json.dumps({"case": case, "query_time": "2025-06-01T08:00:00", "sessions": sessions}))
        for probe in PROBES:
            name = f"attention/{case}-{probe}.safetensors"
            metadata = {"case": case, "probe": probe, "model": "drawn", "dtype": "f32", "format": "palimpsest attention store 2", "layers": json.dumps(list(range(LAYERS))), "windows": json.dumps([None] * LAYERS), "rows": json.dumps(rows), "spans": json.dumps(spans)}
            shapes = {"mass": [LAYERS, HEADS, ROWS, len(spans)], "share": [LAYERS, ROWS, len(spans)], "tokens": [len(tokens)], "generated": [len(generated)]}
            entries = {key: {"dtype": "F32" if key in ("mass", "share") else "U32", "shape": shape, "data_offsets": part} for (key, shape), part in zip(shapes.items(), offsets)}
            head = json.dumps({"__metadata__": metadata, **entries}).encode()
            head += b" " * (-len(head) % 8)
            (out / name).write_bytes(struct.pack("<Q", len(head)) + head + blob)
            answer = {key: value for key, value in answers.items() if key not in ("dropped_sessions", "dropped_tokens", "history_tokens", "dropped_neighbours")}
            table["answers.jsonl"].append({**answer, "case": case, "probe": probe, "prompt_tokens": end + 36, "dropped_sessions": [], "attention": name})
            table["verdicts.jsonl"].append({**verdicts, "case": case, "probe": probe, "correct": draw.random() < 0.3})
    for name, lines in table.items():
        folders.put(out / name, lines)
    shutil.rmtree(base)


def megabytes(page: pages.Page) -> float:
    page.command("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in page.command("Performance.getMetrics")["metrics"]}
    return found["JSHeapUsedSize"] / 1e6


def resident(server: pages.Server) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1e3


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


SCROLL = """
const done = arguments[0]; const scroller = document.querySelector('.grid'); const frames = []; const work = []; let last = performance.now(); let n = 0;
const step = (now) => {
  frames.push(now - last); last = now; scroller.scrollTop = (scroller.scrollTop + 1200) % (scroller.scrollHeight - 900);
  const since = performance.now(); grid.lay(); work.push(performance.now() - since); n += 1;
  if (n < 180) requestAnimationFrame(step); else done([frames.slice(1), work]);
};
requestAnimationFrame(step);"""
TABLE_SHOWN = "return performance.getEntriesByName('palimpsest: shown')[0]?.startTime"


def ten_thousand() -> None:
    """Scrolling, filters and order of a table of 10,000 rows."""
    with tempfile.TemporaryDirectory() as folder:
        one_case(Path(folder) / "one")
        server = pages.Server(folders.large(Path(folder) / "one", Path(folder) / "large"))
        page = pages.Page()
        page.command("Performance.enable")
        page.open(server.address)
        shown = page.wait(TABLE_SHOWN)
        frames, work = page.driver.execute_async_script(SCROLL)
        print(f"{page.rows()} rows: shown after {shown:.0f} ms; scrolling by 33 rows a frame: a frame {median(frames):.1f} ms in the median, {sorted(frames)[-9]:.1f} at the 95th percentile, of it the page's own work {median(work):.1f} and {sorted(work)[-9]:.1f}")
        for name, change in [("a filter", "shown = changed({ 'f.verdict': 'wrong' })"), ("an order", "shown = changed({ sort: '-prompt_tokens' })")]:
            took = page.js(f"{change}; const since = performance.now(); sift(); layFilters(); grid.fill(store.order); return performance.now() - since")
            print(f"{name}: {took:.0f} ms")
        print(f"heap {megabytes(page):.1f} MB, server {resident(server):.0f} MB")
        page.close()
        server.stop()


def main() -> None:
    folder = Path(sys.argv[1])
    if not folder.exists():
        make(folder)
    since = time.monotonic()
    server = pages.Server(folder)
    print(f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e9:.2f} GB, {CASES * len(PROBES)} answers")
    print(f"server listens after {time.monotonic() - since:.2f} s")
    page = pages.Page()
    page.command("Performance.enable")
    for turn in ["first", "again"]:
        page.open(server.address)
        page.wait("return performance.getEntriesByName('palimpsest: shown').length > 0")
        print(f"{turn}: first paint {page.js('''return performance.getEntriesByName('first-contentful-paint')[0]?.startTime''')} ms, table shown {page.js('''return performance.getEntriesByName('palimpsest: shown')[0].startTime'''):.0f} ms; heap {megabytes(page):.1f} MB, server {resident(server):.0f} MB")
    shown = {"view": "case", "case": "case-007", "probe": "SR"}
    page.open(server.address, **shown)
    page.wait("return document.getElementById('map') !== null")
    print(f"opened by its address: strip {page.js('return current.took'):.0f} ms")
    took = []
    for _ in range(50):
        since = page.js("const since = performance.now(); window.before = current.row; document.getElementById('step-on').click(); return since")
        page.wait("return current.row !== before && document.getElementById('map') !== null && current.pictures.length >= 2")
        took.append(page.js("return current.took"))
    print(f"next answer, 50 times: text and strip {median(took):.0f} ms in the median, {max(took):.0f} at most; heap {megabytes(page):.1f} MB, server {resident(server):.0f} MB")
    found = page.driver.execute_async_script("const done = arguments[0]; const since = performance.now(); api.layers(current.row + 30).then(() => done(performance.now() - since))")
    print(f"layers of an answer not read before: {found:.0f} ms; heads of a layer: {page.driver.execute_async_script('const done = arguments[0]; const since = performance.now(); api.heads(current.row + 30, 7).then(() => done(performance.now() - since))'):.0f} ms")
    print(f"search in all texts: {page.driver.execute_async_script('''const done = arguments[0]; const since = performance.now(); api.search('Thursday and from').then((rows) => done((performance.now() - since) + ' ms, ' + rows.length + ' rows'))''')}")
    page.close()
    server.stop()
    ten_thousand()


if __name__ == "__main__":
    main()
