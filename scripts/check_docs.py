#!/usr/bin/env python3
"""Checks the documentation: links and anchors, lengths, and the book's table of contents.

    python3 scripts/check_docs.py                       # exit 1 with each fault named
    python3 scripts/check_docs.py --book target/book    # of the built book: links, anchors and pictures of its pages

- Every relative link and anchor of README.md, CONTRIBUTING.md, SECURITY.md, docs/, python/*/README.md and adapters/README.md exists.
- docs/ has at most 22 pages of at most 2,500 words, but for generated ones, and each begins with a paragraph that says for whom it is.
- Prose in docs/ has lines of at most 100 characters; tables, code and lines of one word are exempt.
- docs/SUMMARY.md lists every page once.
- README.md has at most 150 lines of at most 120 characters.
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"
GENERATED = {"serve-reference.md"}
MOST_PAGES, MOST_WORDS, MOST_COLUMNS = 22, 2500, 100
README_LINES, README_COLUMNS = 150, 120
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s>]*(?:\([^()\s]*\)[^()\s>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")


def checked():
    """The pages whose links are checked."""
    outside = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "adapters/README.md", "benches/speed.md"]
    pages = [ROOT / page for page in outside]
    pages += sorted(DOCS.glob("*.md")) + sorted((ROOT / "python").glob("*/README.md")) + sorted(ROOT.glob("rehearsal/*.md"))
    return [page for page in pages if page.is_file()]


def without_code(text):
    """The text with fenced and inline code blanked, line by line."""
    lines, fence = [], None
    for line in text.split("\n"):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark.group(1)[:3]
            lines.append("")
        elif fence is not None:
            if line.strip().startswith(fence):
                fence = None
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines)


def slug(heading):
    """A heading's anchor, as GitHub makes it; mdBook's is the same for the headings here."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def anchors(page, known={}):
    if page not in known:
        text = without_code(page.read_text(encoding="utf-8"))
        seen, found = {}, set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
        for heading in re.findall(r"(?m)^#{1,6} +(.*?)(?: +#+)?$", text):
            name = slug(heading)
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(name if count == 0 else f"{name}-{count}")
        known[page] = found
    return known[page]


def links(faults):
    for page in checked():
        text = re.sub(r"`[^`\n]*`", lambda code: " " * len(code.group()), without_code(page.read_text(encoding="utf-8")))
        for found in LINK.finditer(text):
            target = found.group(1)
            if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            file = (page.parent / path).resolve() if path else page
            at = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
            if not file.exists():
                faults.append(f"{at}: {target}: there is no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                faults.append(f"{at}: {target}: {file.name} has no heading of that name")


def pages(faults):
    found = sorted(page for page in DOCS.glob("*.md") if page != SUMMARY)
    written = [page for page in found if page.name not in GENERATED]
    if len(written) > MOST_PAGES:
        faults.append(f"docs: {len(written)} pages, at most {MOST_PAGES}")
    for page in found:
        name, text = f"docs/{page.name}", page.read_text(encoding="utf-8")
        count = len(text.split())
        if page in written and count > MOST_WORDS:
            faults.append(f"{name}: {count} words, at most {MOST_WORDS}")
        if not re.match(r"# .+\n\n(For|If) ", text):
            faults.append(f"{name}: does not begin with a title and a paragraph `For those who ...`")
        if page not in written:
            continue
        for at, line in enumerate(without_code(text).split("\n"), 1):
            prose = not re.match(r"\||    |<!--|#|!\[", line) and len(line.split()) > 1
            if prose and len(line) > MOST_COLUMNS and not generated(text, at):
                faults.append(f"{name}:{at}: {len(line)} characters, at most {MOST_COLUMNS}")
    return found


def generated(text, at):
    """Whether a line lies between the markers of a generated part."""
    before = "\n".join(text.split("\n")[:at])
    return before.count("<!-- begin:") > before.count("<!-- end:")


def summary(found, faults):
    listed = [target for target in LINK.findall(SUMMARY.read_text(encoding="utf-8"))]
    for name in sorted({target for target in listed if listed.count(target) > 1}):
        faults.append(f"docs/SUMMARY.md: lists {name} more than once")
    for page in found:
        if page.name not in listed:
            faults.append(f"docs/SUMMARY.md: does not list {page.name}")


def readme(faults):
    lines = (ROOT / "README.md").read_text(encoding="utf-8").rstrip("\n").split("\n")
    if len(lines) > README_LINES:
        faults.append(f"README.md: {len(lines)} lines, at most {README_LINES}")
    for at, line in enumerate(lines, 1):
        if len(line) > README_COLUMNS:
            faults.append(f"README.md:{at}: {len(line)} characters, at most {README_COLUMNS}")


def book(faults, folder):
    """Every relative address of a page of the built book exists, with its anchor; returns the pages."""
    found = sorted(page for page in folder.glob("*.html") if page.name not in {"404.html", "toc.html"})
    texts = {page.resolve(): page.read_text(encoding="utf-8") for page in found}
    named = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    for page, text in texts.items():
        for target in sorted(set(re.findall(r'\b(?:href|src)="([^"]+)"', text))):
            if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                faults.append(f"{page.name}: {target}: there is no such file")
            elif anchor and anchor not in named.get(file, {anchor}):
                faults.append(f"{page.name}: {target}: {file.name} has no such anchor")
    pages = {f"{page.stem}.html" for page in DOCS.glob("*.md") if page != SUMMARY}
    faults += [f"{name}: not in the book" for name in sorted(pages - {page.name for page in found})]
    return found


def main():
    faults = []
    if sys.argv[1:2] == ["--book"]:
        done = f"{len(book(faults, Path(sys.argv[2])))} pages of the book: links, anchors and pictures hold"
    else:
        links(faults)
        found = pages(faults)
        summary(found, faults)
        readme(faults)
        done = f"{len(checked())} pages, {len(found)} of them in docs/: links, lengths and the table of contents hold"
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    print(done)


if __name__ == "__main__":
    main()
