#!/usr/bin/env python3
"""Zep, by its public client: a user's knowledge graph, whose facts are found by words and vectors. STALE's row of Zep, whose settings are not told.

  python3 -m venv zep && zep/bin/pip install zep-cloud==4.0.1
  --memory zep='zep/bin/python adapters/zep_hosted.py' --memory-env ZEP_API_KEY

Package: zep-cloud 4.0.1 (Apache-2.0), Python 3.10. Untried on the service. hosted.py has the settings and what holds for every hosted service.
Settings
  batch     30 (default): messages in one request
  reranker  "rrf" (default, the service's own), "cross_encoder" or "episode_mentions"
  context   true (default): a search also asks for Zep's own block of context, which is the one piece of `parts`

What is known to differ, and to matter:
- STALE says neither version nor settings. This client speaks version 4 of the API, which is newer than the paper.
- A session is a thread of the user. Memories are facts (edges). Sources are the messages from which a fact was made, by the session and the turn
  in their metadata: exact to the turn (where it is lost, by their thread: to the session).
- A fact that a later one has ended (`invalid_at`, `expired_at`) is stale; `search` finds it all the same.
- The time of a session is the `reference_time` of its messages, in UTC. Zep's block of context has no sources.
"""

from hosted import Hosted, utc
from palimpsest_memory import Failure, serve

# Facts and messages in a page of the list; the service gives no more.
PAGE = 100


class ZepHosted(Hosted):
    """A user of Zep."""

    name, secret, packages = "zep-hosted", "ZEP_API_KEY", ("zep-cloud",)
    options = {**Hosted.options, "batch": 30, "reranker": "rrf", "context": True}

    @classmethod
    def connect(cls, key, setup):
        from zep_cloud import Zep

        return Zep(api_key=key, base_url=setup.config["base_url"] or None)

    def __init__(self):
        super().__init__()
        self.origins = {}

    def begin(self):
        return self.client.user.create(user_id=super().begin()).uuid_

    def send(self, session, turns):
        from zep_cloud import AddMessage

        known = self.sessions[session.id]
        if "thread" not in known:
            known["thread"] = self.client.thread.create(user_uuid=self.user).uuid_
        dated = {"reference_time": utc(session.time).isoformat()} if session.time else {}
        about = lambda turn: {"session": session.id, "turn": turn.id}
        messages = [AddMessage(content=turn.content, role=turn.role, metadata=about(turn), **dated) for turn in turns]
        self.pending.append(self.client.thread.add_messages(known["thread"], messages=messages).task.uuid_)

    def done(self, task):
        told = self.client.task.get(task)
        if told.status in ("failed", "partial"):
            raise Failure(f"zep's task {task} is {told.status}: {told.error}")
        return told.status == "succeeded"

    def rows(self, edges):
        """Facts as the protocol has them. Messages are listed anew where one is not known."""
        edges = list(edges)
        if any(each not in self.origins for edge in edges for each in edge.episode_uuids or []):
            threads = {known.get("thread"): session for session, known in self.sessions.items()}
            for message in self.client.graph.episode.list(self.user, page_size=PAGE):
                about = message.metadata or {}
                self.origins[message.uuid_] = about.get("session") or threads.get(message.thread_uuid), about.get("turn")
        return [self.row(edge) for edge in edges]

    def row(self, edge):
        """A fact as the protocol has it. Sources are unknown where one of its messages is."""
        turns, origins = {}, [self.origins.get(each, (None, None)) for each in edge.episode_uuids or []]
        for session, turn in origins:
            turns.setdefault(session, []).extend([] if turn is None else [int(turn)])
        known = turns and None not in turns
        sources = [{"session": session, "turns": sorted(set(at))} for session, at in turns.items()] if known else None
        ended = edge.invalid_at or edge.expired_at
        row = {"id": edge.uuid_, "text": edge.fact, "score": edge.score, "sources": sources, "time": edge.valid_at}
        return {**row, "status": "stale" if ended else "active"}

    def find(self, query, k):
        # A pager goes on to further pages; its first has the k best.
        found = self.client.graph.search_edges(self.user, query=query, page_size=k, reranker=self.config["reranker"])
        rows = self.rows(found.items or [])
        if not self.config["context"]:
            return rows
        return {"memories": rows, "parts": [{"text": self.client.graph.get_context(self.user, query=query).context or ""}]}

    def look(self):
        return self.rows(self.client.graph.edge.list(self.user, page_size=PAGE))


if __name__ == "__main__":
    serve(ZepHosted)
