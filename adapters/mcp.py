#!/usr/bin/env python3
"""A memory server of the Model Context Protocol, over stdio, by a mapping file that names its tools.

  --memory NAME='python3 adapters/mcp.py mapping.json'

Package: none; Python 3.9 or later. adapters/mcp-basic-memory.json is a mapping of a real server, with what was seen of it.
A scope has a process of its own, in a folder of its own: MCP has no scopes and no reset. The mapping file, JSON:

  name, version     of the system; "packages": [names] of installed Python packages whose versions are part of the identity
  command           the server's words; environment: {name: value} beside this process's
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
TOOL_KEYS = {"tool", "arguments", "id", "memories", "text", "score", "time", "session", "split"}
KEYS = {"name", "version", "packages", "command", "environment", "unit", "options", "state_in_folder", "verbatim", "seconds", "settle"}
TOOLS = {"add", "search", "finish", "dump", "clear"}
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


def result_of(reply):
    """The value of a tool's result."""
    if reply.get("structuredContent") is not None:
        return reply["structuredContent"]
    texts = [part["text"] for part in reply.get("content", []) if part.get("type") == "text"]
    try:
        values = [json.loads(text) for text in texts]
    except ValueError:
        values = texts
    # Some servers give a list as a text for each element.
    return values[0] if len(values) == 1 else values


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
        self.tools = {tool["name"] for tool in self.ask("tools/list", {})["tools"]}

    def read(self):
        for line in self.process.stdout:
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
                raise Transient(f"{method}: no answer within {self.seconds} s") from None
            if line is None:
                raise Transient(f"{method}: the server ended, with {self.process.wait()}")
            try:
                message = json.loads(line)
            except ValueError:
                print("no JSON from the server:", line[:200], file=sys.stderr)
                continue
            if "method" in message and "id" in message:
                # The server asks its client: only a ping is answered.
                refusal = {"error": {"code": -32601, "message": "not offered"}}
                self.send({"id": message["id"], **({"result": {}} if message["method"] == "ping" else refusal)})
            elif message.get("id") == self.number and "method" not in message:
                if "error" in message:
                    raise Failure(f"{method}: {message['error'].get('message')}")
                return message["result"]

    def call(self, tool, values):
        """The value of a tool's result."""
        if tool["tool"] not in self.tools:
            raise BadInput(f"the server has no tool {tool['tool']!r}; it has {', '.join(sorted(self.tools))}")
        reply = self.ask("tools/call", {"name": tool["tool"], "arguments": filled(tool.get("arguments", {}), values)})
        if reply.get("isError"):
            raise Failure(f"{tool['tool']}: {result_of(reply)}")
        return result_of(reply)

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
        made = self.server.call(tool, {**self.values, **given})
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
        found = self.server.call(tool, {**self.values, **asked})
        items = at_path(found, tool.get("memories", ""))
        if isinstance(items, str):
            items = [part for part in items.split(tool["split"]) if part.strip()] if "split" in tool else [items]
        memories = []
        for item in items or []:
            text = at_path(item, tool.get("text", ""))
            if not isinstance(text, str):
                raise Failure(f"{tool['tool']}: no text at {tool.get('text', '')!r} of {json.dumps(item)[:300]}")
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
