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
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from palimpsest_memory import BadInput, Failure, Transient, serve, text_id

PROTOCOL_VERSION = "2025-06-18"
TOOL_KEYS = {"tool", "arguments", "id", "memories", "text", "score", "time", "session", "split", "none", "failed"}
KEYS = {"name", "version", "packages", "command", "environment", "unit", "options", "state_in_folder", "verbatim", "seconds", "settle"}
TOOLS = {"add", "search", "finish", "dump", "clear"}
# No server has so many pages of tools: one that always names a further page must not be asked without end.
MOST_PAGES = 1000
PLACEHOLDER = re.compile(r"\{([A-Za-z_.]+)\}")


def filled(template, values):
    """A template with its placeholders filled in; None where it is a placeholder alone and there is no value."""
    if isinstance(template, dict):
        pairs = ((key, filled(value, values)) for key, value in template.items())
        return {key: value for key, value in pairs if value is not None}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    alone = PLACEHOLDER.fullmatch(template)
    if alone and alone[1] in values:
        return values[alone[1]]
    put = lambda found: str("" if values[found[1]] is None else values[found[1]]) if found[1] in values else found[0]
    return PLACEHOLDER.sub(put, template)


def at_path(value, path):
    """What a path leads to; None where there is nothing. After `[]` a list of what is found in each element."""
    for name in filter(None, re.split(r"\.|(\[\])", path)):
        if name == "[]":
            rest = path.split("[]", 1)[1].lstrip(".")
            return [at_path(each, rest) for each in value] if isinstance(value, list) else None
        value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return None
    return value


def words_at(value, path):
    """The text that stands in the way of a path, before its end."""
    for name in filter(None, re.split(r"\.|\[\]", path)):
        if isinstance(value, str):
            return value
        value = value.get(name) if isinstance(value, dict) else None
    return None


def result_of(reply):
    """The value of a tool's result, and its text."""
    texts = [part["text"] for part in reply.get("content") or [] if part.get("type") == "text"]
    value = reply.get("structuredContent")
    if value is None:
        try:
            values = [json.loads(text) for text in texts]
            # A note may read as a number.
            values = [text if isinstance(value, (int, float)) else value for value, text in zip(values, texts)]
        except ValueError:
            values = texts
        # Some servers give a list as a text for each element.
        value = values[0] if len(values) == 1 else values
    return value, "\n".join(texts) if texts or not value else json.dumps(value, ensure_ascii=False)


class Server:
    """A server's process: JSON-RPC 2.0, a message a line."""

    def __init__(self, command, environment, folder, seconds):
        self.seconds, self.number, self.lines = seconds, 0, queue.Queue()
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, cwd=folder, env={**os.environ, **environment}
            )
        except OSError as error:
            raise Failure(f"{command[0]} does not start: {error}; `command` in the mapping names the server") from error
        threading.Thread(target=self.read, daemon=True).start()
        about = {"name": "palimpsest", "version": "1"}
        self.ask("initialize", {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": about})
        self.send({"method": "notifications/initialized"})
        self.tools = self.listed()

    def read(self):
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line)
        self.lines.put(None)

    def send(self, message):
        try:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Transient(f"the server ended, with {self.process.poll()}") from error

    def ask(self, method, params):
        """A request's result."""
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        until = time.monotonic() + self.seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise Transient(f"{method}: no answer within {self.seconds} s, the `seconds` of the mapping") from None
            if line is None:
                raise Transient(f"{method}: the server ended, with {self.process.wait()}")
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                print("no message from the server:", line[:200], file=sys.stderr)
            elif "method" in message and "id" in message:
                # The server asks its client: only a ping is answered.
                refusal = {"error": {"code": -32601, "message": "not offered"}}
                self.send({"id": message["id"], **({"result": {}} if message["method"] == "ping" else refusal)})
            elif message.get("id") in (self.number, str(self.number)) and ("result" in message or "error" in message):
                error, result = message.get("error"), message.get("result")
                if error is not None or not isinstance(result, dict):
                    raise Failure(f"{method}: {error.get('message') if isinstance(error, dict) else error or f'the result is {result!r}, no object'}")
                return result

    def listed(self):
        """The names of all tools, page by page."""
        names, seen, cursor = set(), set(), None
        # A server that names a page again has no further ones.
        while cursor not in seen and len(seen) < MOST_PAGES:
            seen.add(cursor)
            page = self.ask("tools/list", {} if cursor is None else {"cursor": cursor})
            names.update(tool["name"] for tool in page["tools"])
            cursor = page.get("nextCursor") or None
        return names

    def call(self, tool, values):
        """The value of a tool's result, and its text."""
        if tool["tool"] not in self.tools:
            raise BadInput(f"the server has no tool {tool['tool']!r}; it has {', '.join(sorted(self.tools))}")
        reply = self.ask("tools/call", {"name": tool["tool"], "arguments": filled(tool.get("arguments", {}), values)})
        value, said = result_of(reply)
        if reply.get("isError") or ("failed" in tool and re.search(tool["failed"], said)):
            raise Failure(f"{tool['tool']}: {said}")
        return value, said

    def close(self):
        """Its stdin closed, it should end; else it is made to."""
        try:
            self.process.stdin.close()
        except OSError:
            pass  # It ended before.
        for end in (lambda: None, self.process.terminate, self.process.kill):
            end()
            try:
                self.process.wait(timeout=5)
                break
            except subprocess.TimeoutExpired:
                continue


class Mcp:
    """A store behind a server's tools."""

    mapping = {}

    @classmethod
    def configure(cls, path):
        """Takes a mapping file."""
        mapping = json.loads(Path(path).read_text(encoding="utf-8"))
        unknown = sorted(set(mapping) - KEYS - TOOLS - {"about"})
        unknown += [f"{name}.{key}" for name in sorted(TOOLS & set(mapping)) for key in sorted(set(mapping[name]) - TOOL_KEYS)]
        if unknown:
            raise SystemExit(f"{path}: there is no {unknown[0]!r}; the keys: {', '.join(sorted(KEYS | TOOLS))}; of a tool: {', '.join(sorted(TOOL_KEYS))}")
        for name in ("name", "command", "add", "search"):
            if name not in mapping:
                raise SystemExit(f"{path}: {name!r} is missing; `python3 {__file__} --help` has the keys")
        for name, key in ((name, key) for name in sorted(TOOLS & set(mapping)) for key in ("none", "failed") if key in mapping[name]):
            if key == "none" and name not in ("search", "dump"):
                raise SystemExit(f"{path}: {name} has `none`, which is of search and dump; a call of {name} that failed is described by `failed`")
            try:
                re.compile(mapping[name][key])
            except (re.error, TypeError) as error:
                raise SystemExit(f"{path}: {name}.{key} {mapping[name][key]!r} is no regular expression: {error}") from error
        # The server runs in its scope's folder, where a file beside the mapping has no relative name.
        beside = lambda word: Path(path).resolve().parent / word
        words = [mapping["command"]] if isinstance(mapping["command"], str) else mapping["command"]
        mapping["command"] = [str(beside(word)) if re.search(r"[./]", word) and beside(word).is_file() else word for word in words]
        cls.mapping, cls.files = mapping, (path,)
        cls.name, cls.version = mapping["name"], mapping.get("version", "")
        cls.packages, cls.options = tuple(mapping.get("packages", ())), mapping.get("options", {})
        cls.unit, cls.state_in_folder = mapping.get("unit", "session"), mapping.get("state_in_folder", False)
        # A store outside of the scope's folder is one for all.
        cls.scopes = 1 if "clear" in mapping else 4
        known = mapping.get("verbatim") or "id" in mapping["add"] or "session" in mapping["search"]
        cls.provenance = "exact" if mapping.get("verbatim") else "derived" if known else "none"
        if "dump" in mapping:
            cls.dump = lambda self: self.memories("dump", {})

    def __init__(self, setup):
        self.values = {"scope": setup.scope, "folder": str(setup.folder), "python": sys.executable, **setup.config}
        for name in ("llm", "embedder"):
            for field in ("base_url", "key", "model"):
                self.values[f"{name}.{field}"] = getattr(getattr(setup, name), field, None)
        command, environment = filled(self.mapping["command"], self.values), filled(self.mapping.get("environment", {}), self.values)
        self.server = Server(command, environment, setup.folder, self.mapping.get("seconds", 600))
        if "clear" in self.mapping:
            self.server.call(self.mapping["clear"], self.values)

    def add(self, session):
        tool, verbatim = self.mapping["add"], self.mapping.get("verbatim")
        first = session.turns[0] if session.turns else None
        text = "\n".join(f"{turn.role}: {turn.content}" for turn in session.turns)
        content = "\n".join(turn.content for turn in session.turns)
        given = {"text": text, "content": content, "messages": session.messages(), "session": session.id, "time": session.time}
        given.update(turn=first and first.id, role=first and first.role)
        made, _ = self.server.call(tool, {**self.values, **given})
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
            self.server.call(self.mapping["finish"], self.values)
        time.sleep(self.mapping.get("settle", 0))
        # Waiting changes nothing; a tool may, and a dump shows what changed.
        return None if "finish" in self.mapping or "dump" in self.mapping else []

    def memories(self, name, asked):
        """The memories of a tool's result."""
        tool = self.mapping[name]
        path, of_text = tool.get("memories", ""), tool.get("text", "")
        found, said = self.server.call(tool, {**self.values, **asked})
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
        return self.memories("search", {"query": query, "k": k, "as_of": as_of})

    def close(self):
        self.server.close()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) == 2 else 2)
    Mcp.configure(sys.argv[1])
    serve(Mcp)
