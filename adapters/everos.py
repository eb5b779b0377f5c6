#!/usr/bin/env python3
"""EverOS (the successor of EverMemOS), as a server of its own for each history: conversations become episodes and atomic facts.

  python3.12 -m venv everos && everos/bin/pip install everos==1.5.1
  --memory everos='everos/bin/python adapters/everos.py'

Package: everos 1.5.1 (Apache-2.0), Python 3.12; markdown, SQLite and LanceDB in the run's folder. Runs offline on one machine.
Settings
  method   "hybrid" (default), "keyword", "vector", "agentic" or "llm_multiround", as its search has them
  settle   seconds without work pending after which its indexing counts as done (default 5)

What is known to differ, and to matter:
- The rows of the papers are of hosted services and of EverMemOS with MongoDB and others; this is the local version.
- Memories are episodes, whose sources are the session id that they keep: exact to the session. Their facts rank them and are not shown;
  profiles and agents' memories are not asked for.
- A session is added whole and flushed. A turn's time is the session's and a second for each turn; without one it is 1970.
- Facts and the index are made in the background: `finish` waits until nothing is pending twice in a row. There is no list of open
  extractions, so that a slow model may still be at work then: raise `settle`. (With 2 on a busy machine, and with 5 on a very busy one, facts came
  after the first search and changed the scores of the next; with 60 they did not.)
- Its words are those of jieba, which cuts letters that are neither ASCII nor Chinese into single ones, and single ones are dropped. "Γιώργος",
  "Барсик" and "שלום" have no word left, "Zürich" has "rich": "keyword" finds nothing by them, "hybrid" and "vector" find them by vectors alone.
- A search gives at most 100.
- Its limits count tokens with tiktoken, which would download a table. Where TIKTOKEN_CACHE_DIR names a folder that has it, it is used; else
  tokens are counted as a quarter of the bytes.
"""

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import servers
from palimpsest_memory import dimensions_of, serve, version_of

USER = "user"
# The server's own limits.
MOST, PAGE = 100, 100


class EverOs:
    """A server over the scope's folder."""

    name = "everos"
    packages = ("everos", "everalgo-user-memory", "everalgo-boundary", "lancedb", "openai")
    files = (servers.__file__,)
    options = {"method": "hybrid", "settle": 5}
    provenance, state_in_folder, scopes = "exact", True, 2

    @classmethod
    def prepare(cls, setup):
        cls.version = version_of("everos")
        llm, embedder = setup.need_llm(), setup.need_embedder()
        cls.environment = {
            **os.environ,
            "HOME": str(setup.folder / "home"),
            "EVEROS_LLM__MODEL": llm.model, "EVEROS_LLM__API_KEY": llm.key or "none", "EVEROS_LLM__BASE_URL": llm.base_url,
            "EVEROS_EMBEDDING__MODEL": embedder.model, "EVEROS_EMBEDDING__API_KEY": embedder.key or "none",
            "EVEROS_EMBEDDING__BASE_URL": embedder.base_url, "EVEROS_EMBEDDING__DIM": str(dimensions_of(embedder)),
            "EVEROS_MEMORIZE__MODE": "chat", "PYTHONPATH": servers.path_of_quarters(setup.folder),
        }

    def __init__(self, setup):
        self.config, self.names = setup.config, setup.folder / "sessions.json"
        self.sessions = json.loads(self.names.read_text()) if self.names.exists() else {}
        port = servers.free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [str(Path(sys.executable).parent / "everos"), "server", "start", "--root", str(setup.folder / "root"), "--port", str(port)]
        # Writes the files of settings that the server asks for.
        subprocess.run([command[0], "init", "--root", str(setup.folder / "root")], env=self.environment, stdout=sys.stderr, check=False)
        self.server = servers.Server(command, self.health, env=self.environment)

    def health(self):
        """What /health says."""
        return servers.ask_json(self.url + "/health", seconds=60)

    def post(self, path, body):
        """The `data` of a reply."""
        body = {"app_id": "default", "project_id": "default", **body}
        return servers.ask_json(f"{self.url}/api/v2{path}", body, seconds=3600).get("data")

    def add(self, session):
        # Its ids become names of files.
        name = re.sub(r"[^A-Za-z0-9-]+", "-", session.id).strip("-")
        self.sessions[name] = {"id": session.id, "time": session.time}
        self.names.write_text(json.dumps(self.sessions))
        start = datetime.fromisoformat(session.time) if session.time else datetime.fromtimestamp(0, timezone.utc)
        start = start if start.tzinfo else start.replace(tzinfo=timezone.utc)
        messages = []
        for turn in session.turns:
            role = turn.role if turn.role in ("user", "assistant") else "user"
            moment = int(start.timestamp() * 1000) + 1000 * (turn.id + 1)
            messages.append({"sender_id": USER if role == "user" else "assistant", "role": role, "timestamp": moment, "content": turn.content})
        self.post("/memory/add", {"session_id": name, "messages": messages})
        self.post("/memory/flush", {"session_id": name})

    def finish(self):
        quiet = 0.0
        while quiet < self.config["settle"]:
            time.sleep(0.5)
            pending = (self.health().get("cascade") or {}).get("pending")
            quiet = 0.0 if pending else quiet + 0.5

    def row(self, episode):
        """An episode as the protocol has it."""
        session = self.sessions.get(episode.get("session_id"))
        sources = [{"session": session["id"]}] if session else None
        return {"id": episode["id"], "text": episode["episode"], "sources": sources, "time": session and session["time"]}

    def search(self, query, k):
        asked = {"user_id": USER, "query": query, "method": self.config["method"], "top_k": min(k, MOST)}
        found = self.post("/memory/search", asked)
        return [{**self.row(episode), "score": episode["score"]} for episode in found["episodes"]]

    def dump(self):
        rows, page = [], 1
        while True:
            got = self.post("/memory/get", {"user_id": USER, "memory_type": "episode", "page": page, "page_size": PAGE, "sort_order": "asc"})
            rows += [self.row(episode) for episode in got["episodes"]]
            if len(got["episodes"]) < PAGE:
                return rows
            page += 1

    def readback(self, sessions):
        return [row for row in self.dump() if row["sources"] and row["sources"][0]["session"] in sessions]

    def close(self):
        self.server.close()


if __name__ == "__main__":
    serve(EverOs)
