"""A client of the Model Context Protocol over stdio: JSON-RPC 2.0, a message a line. adapters/mcp.py uses it; it knows no mapping and no memory."""

import json
import os
import queue
import subprocess
import sys
import threading
import time

from palimpsest_memory import BadInput, Failure, Transient

PROTOCOL_VERSION = "2025-06-18"
# No server has so many pages of tools: one that always names a further page must not be asked without end.
MOST_PAGES = 1000


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


class Client:
    """A server's process, asked one thing at a time."""

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

    def call(self, tool, arguments):
        """The value of a tool's result, and its text."""
        if tool not in self.tools:
            raise BadInput(f"the server has no tool {tool!r}; it has {', '.join(sorted(self.tools))}")
        reply = self.ask("tools/call", {"name": tool, "arguments": arguments})
        value, said = result_of(reply)
        if reply.get("isError"):
            raise Failure(f"{tool}: {said}")
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
