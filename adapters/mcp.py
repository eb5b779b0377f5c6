#!/usr/bin/env python3
"""A memory server of the Model Context Protocol, over stdio, by a mapping file that names its tools.

  --memory NAME='python3 adapters/mcp.py mapping.json'

Package: none; Python 3.9 or later. adapters/mcp-basic-memory.json is a mapping of a real server (basic-memory 0.22.1), with what was seen of it.
A scope has a process of its own, in a folder of its own: MCP has no scopes and no reset. The mapping file, JSON:

  name, version     of the system; "packages": [names] of installed Python packages whose versions are part of the identity
  command           the server's words, where a file beside the mapping may be named; environment: {name: value} beside this process's
  unit              "session" (default), "pair" or "turn": what one call of `add` is given
  options           {name: default}: settings of hello's `config`, usable as placeholders
  state_in_folder   true where all that the server keeps lies in {folder}: it can then be saved and loaded
  verbatim          true where a search returns what was added word for word: sources are then exact, by the text
  seconds           of the longest call (default 600)
  add, search       tools; finish, dump, clear: further ones. `clear` is called before a history, for a server whose store is not in {folder}

A tool: {"tool": NAME, "arguments": {...}} and, for what comes back,
  id        add: path to the new memory's id, by which its sources are known later
  memories  search, dump: path to the list of memories; paths in one of them: text, id, score, time, session
  split     search, dump: where the result is one text, the characters between two memories
  none      search, dump: a regular expression, with which the text begins where nothing was found ("No memories found")
  failed    any tool: a regular expression, found in the text of a call that failed, for servers that say so in words alone

`palimpsest memory check` shows where `none` or `failed` is missing: an empty store has memories, or a written one has none.

Placeholders in arguments, command and environment: {text} (the unit's lines, `role: content`), {messages}, {content} (without roles),
{session}, {time}, {turn}, {role}, {query}, {k}, {as_of}, {scope}, {folder}, {llm.base_url}, {llm.key}, {llm.model}, the same of {embedder},
and the options. An argument that is a placeholder alone has the value's type, and is left out where there is none.
Paths: names with dots; `[]` goes through a list; "" is the whole. They are taken in the tool's structured content, else in its text as
JSON, else in its text.

What is known to differ: a server does not say when its indexing is done (name a `finish` tool, or raise `settle`, seconds to wait after the
last session, default 0), and most return neither times nor sources.
"""

import json
import re
import sys
import time

import mcp_client
import mcp_mapping
from mcp_mapping import at_path, filled, words_at
from palimpsest_memory import Failure, serve, text_id


class Mcp:
    """A store behind a server's tools."""

    mapping = {}

    @classmethod
    def configure(cls, path):
        """Takes a mapping file."""
        cls.mapping = mapping = mcp_mapping.read(path)
        cls.files = (path, mcp_client.__file__, mcp_mapping.__file__)
        cls.name, cls.version = mapping["name"], mapping.get("version", "")
        cls.packages, cls.options = tuple(mapping.get("packages", ())), mapping.get("options", {})
        cls.unit, cls.state_in_folder = mapping.get("unit", "session"), mapping.get("state_in_folder", False)
        # A store outside of the scope's folder is one for all.
        cls.scopes = 1 if "clear" in mapping else 4
        known = mapping.get("verbatim") or "id" in mapping["add"] or "session" in mapping["search"]
        cls.provenance = "exact" if mapping.get("verbatim") else "derived" if known else "none"
        if "dump" in mapping:
            cls.dump = lambda self: self.memories("dump")

    def __init__(self, setup):
        self.values = {"scope": setup.scope, "folder": str(setup.folder), "python": sys.executable, **setup.config}
        for name in ("llm", "embedder"):
            for field in ("base_url", "key", "model"):
                self.values[f"{name}.{field}"] = getattr(getattr(setup, name), field, None)
        command, environment = filled(self.mapping["command"], self.values), filled(self.mapping.get("environment", {}), self.values)
        self.server = mcp_client.Client(command, environment, setup.folder, self.mapping.get("seconds", 600))
        if "clear" in self.mapping:
            self.call("clear")

    def call(self, name, **asked):
        """The value of a tool's result, and its text."""
        tool = self.mapping[name]
        value, said = self.server.call(tool["tool"], filled(tool.get("arguments", {}), {**self.values, **asked}))
        if "failed" in tool and re.search(tool["failed"], said):
            raise Failure(f"{tool['tool']}: {said}")
        return value, said

    def add(self, session):
        tool, verbatim = self.mapping["add"], self.mapping.get("verbatim")
        first = session.turns[0] if session.turns else None
        text = "\n".join(f"{turn.role}: {turn.content}" for turn in session.turns)
        content = "\n".join(turn.content for turn in session.turns)
        given = {"text": text, "content": content, "messages": session.messages(), "session": session.id, "time": session.time}
        given.update(turn=first and first.id, role=first and first.role)
        made, _ = self.call("add", **given)
        key = at_path(made, tool["id"]) if "id" in tool else text_id(self.stored(given)) if verbatim else None
        if key is None:
            return None
        return [{"op": "add", "memory": str(key), "text": self.stored(given)}]

    def stored(self, given):
        """What `add` gave the server to store: the argument that has the text, or the content, in it."""
        arguments = self.mapping["add"].get("arguments", {}).values()
        holding = [each for each in arguments if isinstance(each, str) and re.search(r"\{(text|content)\}", each)]
        return filled(holding[0], {**self.values, **given}) if holding else given["text"]

    def finish(self):
        if "finish" in self.mapping:
            self.call("finish")
        time.sleep(self.mapping.get("settle", 0))
        # Waiting changes nothing; a tool may, and a dump shows what changed.
        return None if "finish" in self.mapping or "dump" in self.mapping else []

    def memories(self, name, **asked):
        """The memories of a tool's result."""
        tool = self.mapping[name]
        path, of_text = tool.get("memories", ""), tool.get("text", "")
        found, said = self.call(name, **asked)
        items, words = at_path(found, path), words_at(found, path)
        if isinstance(items, str):
            parts = items.split(tool["split"]) if "split" in tool else [items]
            items = [part for part in parts if part.strip()]
        items = [items] if isinstance(items, dict) else items or []
        alone = at_path(items[0], of_text) if len(items) == 1 else None
        texts = [each.strip() for each in (said, found, at_path(found, path), words, alone) if isinstance(each, str)]
        if "none" in tool and any(re.match(tool["none"], each) for each in texts):
            return []
        if words and words.strip():
            # Only the mapping knows whether this means empty or broken.
            raise Failure(
                f"{tool['tool']}: it says {words[:300]!r}, and has no {path!r}; if that means that nothing was found, describe it by `none` of {name} in the mapping"
            )
        memories = []
        for item in items:
            text = at_path(item, of_text)
            if not isinstance(text, str):
                raise Failure(f"{tool['tool']}: no text at {of_text!r} of {json.dumps(item)[:300]}")
            memory = {"text": text, "id": at_path(item, tool["id"]) if "id" in tool else None}
            memory.update({key: at_path(item, tool[key]) for key in ("score", "time") if key in tool})
            session = at_path(item, tool["session"]) if "session" in tool else None
            memories.append({**memory, **({"metadata": {"session": session}} if session else {})})
        return memories

    def search(self, query, k, as_of):
        return self.memories("search", query=query, k=k, as_of=as_of)

    def close(self):
        self.server.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) == 2 else 2)
    Mcp.configure(sys.argv[1])
    serve(Mcp)
