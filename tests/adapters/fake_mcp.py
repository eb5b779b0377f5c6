#!/usr/bin/env python3
"""A memory server of the Model Context Protocol, for tests: notes in a file of the folder that it is started in.

Tools: `remember` (text; gives {"id"}), `recall` (query, limit; gives {"results": [{"id", "note": {"text"}, "score"}]}), `recall_text`
(the same as one text, a note a paragraph), `list_notes`, `forget_all`. It pings its client, says a line that is no JSON, and prints to stderr.
"""

import json
import os
import sys
from pathlib import Path

STORE = Path("notes.json")
TOOLS = ["remember", "recall", "recall_text", "list_notes", "forget_all"]


def call(name, given):
    notes = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else []
    if name == "remember":
        notes.append(given["text"])
        STORE.write_text(json.dumps(notes), encoding="utf-8")
        return {"id": f"note-{len(notes) - 1}"}
    if name == "forget_all":
        STORE.unlink(missing_ok=True)
        return {}
    if name == "list_notes":
        return {"results": [{"id": f"note-{at}", "note": {"text": text}} for at, text in enumerate(notes)]}
    wanted = set(given["query"].lower().split())
    scored = [(len(wanted & set(text.lower().split())), at) for at, text in enumerate(notes)]
    best = sorted((row for row in scored if row[0]), key=lambda row: (-row[0], row[1]))[: int(given["limit"])]
    if name == "recall_text":
        return "\n\n".join(notes[at] for _, at in best)
    return {"results": [{"id": f"note-{at}", "note": {"text": notes[at]}, "score": score} for score, at in best]}


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


print("starting", file=sys.stderr)
print("a line that is no JSON", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message or "id" not in message:
        continue
    if message["method"] == "initialize":
        reply = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}}
    elif message["method"] == "tools/list":
        send({"id": "ping-1", "method": "ping"})
        reply = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    elif message["params"]["arguments"].get("text") == "die":
        os._exit(3)
    else:
        try:
            value = call(message["params"]["name"], message["params"]["arguments"])
            text = value if isinstance(value, str) else json.dumps(value)
            reply = {"content": [{"type": "text", "text": text}]}
        except KeyError as error:
            reply = {"content": [{"type": "text", "text": f"no argument {error}"}], "isError": True}
    send({"id": message["id"], "result": reply})
