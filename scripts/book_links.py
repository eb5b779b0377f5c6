#!/usr/bin/env python3
"""A preprocessor of mdBook (book.toml): links from docs/ to other folders of the repository become links to the
`git-repository-url` of [output.html] where it is set, else their text with the path in brackets.

    mdbook build    # in the repository's root
"""

import json
import re
import sys

OUTSIDE = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\.\./([^)\s]+)\)")


def rewritten(text, repository):
    def one(link):
        label, path = link.groups()
        if repository:
            return f"[{label}]({repository}/blob/HEAD/{path})"
        named = path.split("#")[0]
        return f"`{named}`" if label.strip("`") == named else f"{label} (`{named}`)"

    parts = re.split(r"(?ms)(^```.*?^```$)", text)
    return "".join(part if at % 2 else OUTSIDE.sub(one, part) for at, part in enumerate(parts))


def walk(items, repository):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            chapter["content"] = rewritten(chapter["content"], repository)
            walk(chapter["sub_items"], repository)


def main():
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    context, book = json.load(sys.stdin)
    html = context["config"].get("output", {}).get("html", {})
    walk(book.get("items") or book.get("sections") or [], html.get("git-repository-url", "").rstrip("/"))
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
