#!/usr/bin/env python3
"""EverOS Cloud (once EverMemOS's), by its public client: episodes of conversations, found by words and vectors.

  python3.12 -m venv everos && everos/bin/pip install everos-cloud==1.2.0
  --memory everos='everos/bin/python adapters/everos_hosted.py' --memory-env EVEROS_API_KEY

Package: everos-cloud 1.2.0 (Apache-2.0), Python 3.12; 1.0.0 goes with 3.11. Untried on the service. hosted.py has the settings and what holds for
every hosted service.
Settings, with SubtleMemory's public ones as defaults
  batch     1: messages in one request, not queued
  interval  0.2
  wait      60: the service has no list of what it still has to do
  method    "hybrid", or as its search has them
SubtleMemory takes the first 10: `--memory-k 10`.

What is known to differ, and to matter:
- SubtleMemory asked version 1 of the service; this client asks version 2. (`evermemos` 0.3.13 is the client of version 0.)
- A session is flushed at its end; its episodes are made later.
- Memories are episodes alone. Sources are the session that an episode keeps: exact to the session.
- A turn's time is the session's and a second for each turn; a session without one is an hour after the one before, the first of 2020.
- A search gives at most 100. The service revises episodes by itself, so that a saved state may be refused.
"""

from datetime import timedelta

from hosted import Hosted, utc
from palimpsest_memory import serve

# The service's own limits.
MOST, PAGE = 100, 100
# Before the first session of a history without times.
FIRST = "2020-01-01T00:00:00"


class EverOsHosted(Hosted):
    """A user of EverOS Cloud."""

    name, secret, packages = "everos-hosted", "EVEROS_API_KEY", ("everos-cloud",)
    options = {**Hosted.options, "batch": 1, "interval": 0.2, "wait": 60, "method": "hybrid"}

    @classmethod
    def connect(cls, key, setup):
        from everos_cloud import EverOS

        return EverOS(api_key=key, host=setup.config["base_url"] or None)

    def add(self, session):
        if session.id not in self.sessions:
            before = [known["begun"] for known in self.sessions.values()][-1:] or [FIRST]
            begun = utc(session.time) if session.time else utc(before[0]) + timedelta(hours=1)
            self.sessions[session.id] = {"begun": begun.isoformat()}
        events = super().add(session)
        self.call(self.client.flush, self.named(session))
        return events

    def named(self, session):
        """A session's name at the service, whose sessions are not of one user alone; in letters and digits that any name may have."""
        return f"{self.user}-{session.id.encode().hex()}"

    def send(self, session, turns):
        messages, begun = [], utc(self.sessions[session.id]["begun"])
        for turn in turns:
            role = turn.role if turn.role in ("user", "assistant") else "user"
            moment = int(begun.timestamp() * 1000) + 1000 * (turn.id + 1)
            messages.append({"sender_id": self.user if role == "user" else "assistant", "role": role, "timestamp": moment, "content": turn.content})
        self.client.add(self.named(session), messages, async_mode=False)

    def row(self, episode, score=None):
        """An episode as the protocol has it."""
        user, _, session = (episode.session_id or "").rpartition("-")
        sources = [{"session": bytes.fromhex(session).decode()}] if user == self.user else None
        return {"id": episode.id, "text": episode.episode, "score": score, "sources": sources, "time": episode.timestamp.isoformat()}

    def find(self, query, k):
        found = self.client.search(query, user_id=self.user, method=self.config["method"], top_k=min(k, MOST))
        return [self.row(episode, episode.score) for episode in found.episodes or []]

    def look(self):
        rows, page = [], 1
        while True:
            got = self.client.get("episode", user_id=self.user, page=page, page_size=PAGE, sort_order="asc").episodes or []
            rows += [self.row(episode) for episode in got]
            if len(got) < PAGE:
                return rows
            page += 1


if __name__ == "__main__":
    serve(EverOsHosted)
