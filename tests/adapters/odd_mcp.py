#!/usr/bin/env python3
"""A server of the Model Context Protocol that says what a file of a test tells it to: `odd_mcp.py SCRIPT.json`.

noise     lines that it says before every reply; a list of numbers is a line of bytes
pages     [[tools], cursor] for each page of its tools; the last is repeated
message   the reply's message beside jsonrpc and id, in the place of the tool's result
add, search   a result, or its text; where `search` is absent the notes that share a word with the query, a paragraph each
ids       "text" for ids as text
"""

import json
import sys
from pathlib import Path

script = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
pages, notes, page = script.get("pages", [[["add", "search"], None]]), [], 0


def write(line):
    line = bytes(line) if isinstance(line, list) else line.encode()
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def text(said):
    return {"content": [{"type": "text", "text": said}]} if isinstance(said, str) else said


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    message = None
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
    elif asked["method"] == "tools/list":
        names, cursor = pages[min(page, len(pages) - 1)]
        page += 1
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names], "nextCursor": cursor}
    else:
        name, given, message = asked["params"]["name"], asked["params"]["arguments"], script.get("message")
        if name == "add":
            notes.append(given["text"])
            result = text(script.get("add", "stored"))
        else:
            words = set(given["query"].split())
            result = text(script.get("search", "\n\n".join(note for note in notes if words & set(note.split()))))
    for noise in script.get("noise", []):
        write(noise)
    number = str(asked["id"]) if script.get("ids") == "text" else asked["id"]
    write(json.dumps({"jsonrpc": "2.0", "id": number, **(message or {"result": result})}))
