#!/usr/bin/env python3
"""mem0's platform, by its public client: what the rows of the papers that say mem0 are of, as far as their settings are known.

  python3 -m venv hosted && hosted/bin/pip install mem0ai==2.2.1
  --memory mem0='hosted/bin/python adapters/mem0_hosted.py' --memory-env MEM0_API_KEY

Package: mem0ai 2.2.1 (Apache-2.0), Python 3.11. Untried on the service. hosted.py has the settings and what holds for every hosted service.
Settings, with SubtleMemory's public ones as defaults
  batch      5: messages in one `add`
  interval   0.5
  threshold  null (default): the service's own; `search` drops memories below it

What is known to differ, and to matter:
- Its third version only adds: an outdated memory stays beside the newer one. What ran for the papers may have been an older one.
- Sources are the session in a memory's metadata, exact to the session. (SubtleMemory names sessions as runs, which narrows what is found.)
- The time of a session is sent as the `timestamp` of its memories, in UTC, and kept in their metadata.
- An `add` answers with an event, which is asked for until it has succeeded; the client has no method for it, so that its own connection is used.
"""

import os

from hosted import Hosted, utc
from palimpsest_memory import Failure, serve

# Memories in a page of the list.
PAGE = 100


class Mem0Hosted(Hosted):
    """A user of mem0's platform."""

    name, secret, packages = "mem0-hosted", "MEM0_API_KEY", ("mem0ai",)
    options = {**Hosted.options, "batch": 5, "interval": 0.5, "threshold": None}

    @classmethod
    def connect(cls, key, setup):
        # Read when mem0 is imported.
        os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=str(setup.folder / "mem0-home"))
        from mem0 import MemoryClient

        return MemoryClient(api_key=key, host=setup.config["base_url"] or None)

    def send(self, session, turns):
        about = {"user_id": self.user, "metadata": {"session": session.id, "time": session.time}}
        if session.time:
            about["timestamp"] = int(utc(session.time).timestamp())
        told = self.client.add([{"role": turn.role, "content": turn.content} for turn in turns], **about)
        self.pending.append(told["event_id"])

    def done(self, task):
        reply = self.client.client.get(f"/v1/event/{task}/")
        reply.raise_for_status()
        if reply.json()["status"] == "FAILED":
            raise Failure(f"mem0's event {task} failed: {reply.text[:500]}")
        return reply.json()["status"] == "SUCCEEDED"

    def row(self, memory):
        """A memory as the protocol has it."""
        about = memory.get("metadata") or {}
        sources = [{"session": about["session"]}] if about.get("session") else None
        return {"id": memory["id"], "text": memory["memory"], "score": memory.get("score"), "sources": sources, "time": about.get("time")}

    def find(self, query, k):
        asked = {"filters": {"user_id": self.user}, "top_k": k, "threshold": self.config["threshold"]}
        return [self.row(memory) for memory in self.client.search(query, **asked)["results"]]

    def look(self):
        rows, page = [], 1
        while True:
            got = self.client.get_all(filters={"user_id": self.user}, page=page, page_size=PAGE)
            rows += [self.row(memory) for memory in got["results"]]
            if not got.get("next"):
                return rows
            page += 1


if __name__ == "__main__":
    serve(Mem0Hosted)
