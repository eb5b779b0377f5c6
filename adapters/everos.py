#!/usr/bin/env python3
"""EverOS (the successor of EverMemOS), as a server of its own for each history: conversations become episodes and atomic facts.

  python3.12 -m venv everos && everos/bin/pip install everos==1.5.1
  --memory everos='everos/bin/python adapters/everos.py'

Package: everos 1.5.1 (Apache-2.0), Python 3.12; markdown, SQLite and LanceDB in the run's folder. Runs offline on one machine.
Settings
  method   "hybrid" (default), "keyword", "vector", "agentic" or "llm_multiround", as its search has them
  wait     most seconds to wait for work that goes on after a session (default 540)

What is known to differ, and to matter:
- The rows of the papers are of hosted services and of EverMemOS with MongoDB and others; this is the local version.
- Memories are episodes, whose sources are the session id that they keep: exact to the session. Their facts rank them and are not shown;
  profiles and agents' memories are not asked for.
- A session is added whole and flushed. A turn's time is the session's and a second for each turn; without one it is 1970.
- Facts and the index are made in the background. Each session waits for them (not for profiles, which nothing here reads): until the server's
  tables of runs and the queue of its index are empty. `finish` merges the index and freezes it, by the server's own call for that: without
  the merge, scores change later. A session that comes after `finish` restarts the server.
- Its words are those of jieba, which cuts letters that are neither ASCII nor Chinese into single ones, and single ones are dropped. "Γιώργος",
  "Барсик" and "שלום" have no word left, "Zürich" has "rich": "keyword" finds nothing by them, "hybrid" and "vector" find them by vectors alone.
- A search gives at most 100.
- Its limits count tokens with tiktoken, which would download a table. Where TIKTOKEN_CACHE_DIR names a folder that has it, it is used; else
  tokens are counted as a quarter of the bytes.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import servers
from palimpsest_memory import Transient, dimensions_of, serve, version_of

USER = "user"
# The server's own limits.
MOST, PAGE = 100, 100
# Background work, by the database that has it: jobs that wait (not those of a clock), and runs whose last try goes on or will be repeated.
OPEN = {
    "ome.aps.db": "SELECT count(*) FROM apscheduler_jobs WHERE id NOT LIKE '%::%'",
    "ome.db": """SELECT count(*) FROM run_record AS run WHERE status IN ('running', 'failed') AND strategy_name <> 'extract_user_profile' AND NOT EXISTS
        (SELECT 1 FROM run_record AS later WHERE later.event_id = run.event_id AND later.strategy_name = run.strategy_name AND later.attempt > run.attempt)""",
}


class EverOs:
    """A server over the scope's folder."""

    name = "everos"
    packages = ("everos", "everalgo-user-memory", "everalgo-boundary", "lancedb", "openai")
    files = (servers.__file__,)
    options = {"method": "hybrid", "wait": 540}
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
        self.root, self.server = setup.folder / "root", None
        self.start()

    def start(self):
        """Starts the server, or starts it again."""
        self.close()
        port, self.frozen = servers.free_port(), False
        self.url = f"http://127.0.0.1:{port}"
        command = [str(Path(sys.executable).parent / "everos"), "server", "start", "--root", str(self.root), "--port", str(port)]
        # Writes the files of settings that the server asks for.
        subprocess.run([command[0], "init", "--root", str(self.root)], env=self.environment, stdout=sys.stderr, check=False)
        self.server = servers.Server(command, self.health, env=self.environment)

    def health(self):
        """What /health says."""
        return servers.ask_json(self.url + "/health", seconds=60)

    def post(self, path, body):
        """The `data` of a reply."""
        body = {"app_id": "default", "project_id": "default", **body}
        return servers.ask_json(f"{self.url}/api/v2{path}", body, seconds=3600).get("data")

    def add(self, session):
        if self.frozen:
            self.start()
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
        self.settle()

    def open_work(self):
        """Jobs and runs that are open, and files to be indexed."""
        found = (self.health().get("cascade") or {}).get("pending") or 0
        for name, query in OPEN.items():
            with closing(sqlite3.connect(f"{(self.root / '.index' / 'sqlite' / name).as_uri()}?mode=ro", uri=True, timeout=60)) as database:
                found += database.execute(query).fetchone()[0]
        return found

    def settle(self):
        """Waits until no work is open twice in a row: for a moment a file is written and not yet in the queue."""
        until, idle = time.monotonic() + self.config["wait"], 0
        while idle < 2:
            time.sleep(0.5)
            found = self.open_work()
            idle = 0 if found else idle + 1
            if found and time.monotonic() > until:
                raise Transient(f"{found} pieces of work are open after {self.config['wait']} s: raise `wait`, and `session` of --memory-timeout")

    def finish(self):
        self.settle()
        left = servers.ask_json(f"{self.url}/api/v2/cascade/quiesce", {}, seconds=3600)["pending_after"]
        if left:
            raise Transient(f"{left} files are not in the index")
        self.frozen = True

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
        if self.server:
            self.server.close()
            self.server = None


if __name__ == "__main__":
    serve(EverOs)
