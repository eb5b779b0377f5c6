#!/usr/bin/env python3
"""MetaClaw's memory: rules pick facts out of pairs of turns into SQLite, and what is found stands before the agent's prompt.

  --memory metaclaw='python3 adapters/metaclaw.py --source MetaClaw'

DIR of `--source` is a copy of github.com/aiming-lab/MetaClaw (MIT), tried at commit f20581e of 2026-05-23 (0.4.1), Python 3.11; `metaclaw` on PyPI
is a placeholder. Its memory needs no package, no model and no embedder; `answer` needs a language model. Runs offline on one machine.
Settings
  mode     "hybrid" (default), "embedding" or "keyword"; the program's own default is keyword
  units    8 (default) memories and `tokens` 2400 (default) words before a prompt, as in SubtleMemory's public configuration; the program has 6 and 800

What is known to differ from the papers' configuration, and to matter:
- The memory is called as its server calls it; its proxy, skills, training and the agent in front of it (OpenClaw) are not run. `answer` is one
  request at temperature 0 with the memories as the system message, as the proxy writes them; SubtleMemory's public runner keeps the histories
  of a call in one store, here each has its own.
- Facts are found by English patterns ("I prefer", "remember that", "always"): a pair without one is kept whole, up to 4,000 characters, a pair
  with one only as that fact. No reply of a model is read.
- After each session near repetitions are superseded, and of the summaries of sessions all but the newest: events of op `stale`. Times are the
  clock's, in seconds: of summaries written within a second either may stay.
- Embeddings are 64 hashed words. Search sees the newest 500 memories, without scores here, since they change with the clock.
- Its own retrieval raises the importance of what it finds; here a search changes nothing. More than `units` can be asked for.
- Sources are the pairs that it names: exact; a summary's are those of its session.
Cost: nothing but for `answer`, which is one call.
"""

import argparse
import json
import sqlite3
import sys
import types
import urllib.request
from pathlib import Path

from palimpsest_memory import changes, serve

SCOPE = "history"


class MetaClaw:
    """A store in the scope's folder."""

    name, version = "metaclaw", "f20581e"
    options = {"mode": "hybrid", "units": 8, "tokens": 2400}
    provenance, state_in_folder, scopes, source = "exact", True, 16, None

    @classmethod
    def prepare(cls, setup):
        package = types.ModuleType("metaclaw")
        # Its own beginning imports the server and the trainer.
        package.__path__ = [str(cls.source / "metaclaw")]
        sys.modules["metaclaw"] = package
        cls.files = [cls.source / "metaclaw" / "memory"]

    def __init__(self, setup):
        from metaclaw.memory.manager import MemoryManager
        from metaclaw.memory.policy import MemoryPolicy
        from metaclaw.memory.store import MemoryStore

        self.config, self.setup, self.file = setup.config, setup, setup.folder / "memory.db"
        policy = MemoryPolicy(max_injected_units=self.config["units"], max_injected_tokens=self.config["tokens"])
        told = {"scope_id": SCOPE, "retrieval_mode": self.config["mode"], "use_embeddings": True, "policy": policy}
        self.manager = MemoryManager(MemoryStore(str(self.file)), **told)
        self.told = setup.folder / "sessions.json"
        self.sessions = json.loads(self.told.read_text()) if self.told.exists() else {}

    def add(self, session):
        before = self.dump()
        pairs = session.split("pair")
        turns = [{"prompt_text": said["user"], "response_text": said["assistant"]} for said in session.exchanges()]
        self.sessions[session.id] = {"time": session.time, "pairs": [[turn.id for turn in pair.turns] for pair in pairs]}
        self.told.write_text(json.dumps(self.sessions))
        self.manager.ingest_session_turns(session.id, turns)
        return changes(before, self.dump())

    def row(self, key, text, session, first, last, status="active"):
        """A memory as the protocol has it; it counts pairs from 1."""
        about = self.sessions.get(session) or {"time": None, "pairs": []}
        turns = [turn for pair in about["pairs"][max(0, first - 1) : last] for turn in pair]
        row = {"id": key, "text": text, "time": about["time"], "sources": [{"session": session, "turns": turns}]}
        return {**row, "status": "active" if status == "active" else "stale"}

    def dump(self):
        asked = "SELECT memory_id, content, source_session_id, source_turn_start, source_turn_end, status FROM memories ORDER BY rowid"
        with sqlite3.connect(self.file) as database:
            return [self.row(*found) for found in database.execute(asked)]

    def found(self, query, k):
        """Its units, without what its own retrieval notes of them."""
        from metaclaw.memory.models import MemoryQuery

        policy, usual = self.manager.retriever.policy, self.config["units"]
        policy.max_injected_units = k
        try:
            hits = self.manager.retriever.retrieve(MemoryQuery(scope_id=SCOPE, query_text=query, top_k=k))
        finally:
            policy.max_injected_units = usual
        return [hit.unit for hit in hits]

    def rows(self, units):
        return [self.row(unit.memory_id, unit.content, unit.source_session_id, unit.source_turn_start, unit.source_turn_end) for unit in units]

    def prompt(self, query):
        """What its proxy puts before a prompt, and the memories in it."""
        units = self.manager._fit_token_budget(self.found(query, self.config["units"]), self.config["tokens"])
        return self.manager.render_for_prompt(units), self.rows(units)

    def search(self, query, k):
        text, shown = self.prompt(query)
        parts = []
        for row in sorted(shown, key=lambda row: text.find(row["text"].strip())):
            before, _, text = text.partition(row["text"].strip())
            parts += [{"text": before}, {"text": row["text"].strip(), "memory": row["id"]}]
        return {"memories": self.rows(self.found(query, k)), "parts": parts + [{"text": text}]}

    def answer(self, query):
        llm, (text, shown) = self.setup.need_llm(), self.prompt(query)
        messages = ([{"role": "system", "content": text}] if text else []) + [{"role": "user", "content": query}]
        body = json.dumps({"model": llm.model, "messages": messages, "temperature": 0}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.key}"}
        request = urllib.request.Request(llm.base_url.rstrip("/") + "/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=3600) as reply:
            return json.load(reply)["choices"][0]["message"]["content"], shown

    def close(self):
        self.manager.store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    MetaClaw.source = parser.parse_args().source.resolve()
    serve(MetaClaw)
