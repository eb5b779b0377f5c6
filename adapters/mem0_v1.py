#!/usr/bin/env python3
"""mem0 1.x, the version that the papers' rows are about: facts are extracted, and older memories updated or deleted by a model.

  python3 -m venv mem0 && mem0/bin/pip install mem0ai==1.0.11
  --memory mem0='mem0/bin/python adapters/mem0_v1.py'

Package: mem0ai 1.0.11 (Apache-2.0), Python 3.11; Qdrant and SQLite embedded. Runs offline on one machine with the language model and the
embedder of `palimpsest serve`.
Settings (hello's `config`)
  batch   messages in one `add`; 0 (default) is the whole session. SubtleMemory's public configuration has 5 (of the hosted service)
  date    true (default): the session's time stands before its first message
  max_tokens  of an answer of the language model; 0 (default) is mem0's own limit, 2,000. A small model that writes on without end is
          ended sooner by less

What is known to differ from the hosted service, and to matter:
- An `add` is one call that extracts facts, an embedding and a search (5 neighbours) for each fact, and one call that decides ADD, UPDATE,
  DELETE or NONE. Facts are asked for from what users say.
- An UPDATE replaces a memory's metadata, and with it the session id. Source sets are therefore kept outside, united over updates.
- `add` takes no time: memories are dated today. So the session's time goes into the first message, and into the metadata.
- A reply that is no JSON is logged and dropped, and nothing is stored. Such lines become events of op `none` with mem0's reason.
- Over JSON of another shape than it asks for mem0 raises an exception: the session is lost, and the history goes on.
- The extraction prompt says today's date, so that a rerun on another day asks other questions of the model.
- Neighbours found before the decision are `looked_at`; there is no threshold, so that `gated` is absent.
- With OPENROUTER_API_KEY in the environment mem0 would ask OpenRouter: it is removed. Telemetry is off; mem0's home is in the run's folder.
- `get_all` and `search` return 100 memories unless told; the graph memory is not used.
"""

import os

from palimpsest_memory import BadInput, Failure, dimensions_of, serve, version_of

# Memories that a dump may have; mem0 wants a limit.
ALL = 1_000_000
USER = "user"


class Mem0:
    """A store of mem0's, in the scope's folder."""

    name, major = "mem0", "1"
    packages = ("mem0ai", "qdrant-client", "openai")
    options = {"batch": 0, "date": True, "max_tokens": 0}
    provenance = "derived"
    looks, state_in_folder, scopes = True, True, 4
    loggers = ("mem0",)

    @classmethod
    def prepare(cls, setup):
        llm, embedder = setup.need_llm(), setup.need_embedder()
        # Read when mem0 is imported.
        os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=str(setup.folder / "mem0-home"))
        os.environ.update(OPENAI_API_KEY=llm.key or "none", OPENAI_BASE_URL=llm.base_url)
        os.environ.pop("OPENROUTER_API_KEY", None)
        cls.version = version_of("mem0ai")
        if not cls.version.startswith(cls.major + "."):
            raise Failure(f"mem0ai is {cls.version}; this adapter is for {cls.major}.x")
        cls.dimensions = dimensions_of(embedder)

    def __init__(self, setup):
        from mem0 import Memory

        llm, embedder = setup.llm, setup.embedder
        self.batch, self.date = setup.config["batch"], setup.config["date"]
        asked = {"model": llm.model, "openai_base_url": llm.base_url, "api_key": llm.key or "none"}
        if setup.config["max_tokens"]:
            asked["max_tokens"] = setup.config["max_tokens"]
        embedded = {"model": embedder.model, "openai_base_url": embedder.base_url, "api_key": embedder.key or "none"}
        stored = {"path": str(setup.folder / "qdrant"), "on_disk": True, "collection_name": "memories"}
        self.memory = Memory.from_config(
            {
                "llm": {"provider": "openai", "config": asked},
                "embedder": {"provider": "openai", "config": {**embedded, "embedding_dims": self.dimensions}},
                # Without `on_disk` a folder that is there is emptied.
                "vector_store": {"provider": "qdrant", "config": {**stored, "embedding_model_dims": self.dimensions}},
                "history_db_path": str(setup.folder / "history.db"),
            }
        )
        self.neighbours = {}
        self.watch(self.memory.vector_store)

    def watch(self, store):
        """Notes which memories a store finds: while `add` runs, those are the older ones that a decision sees.

        Qdrant's order of equal scores, and their last bits, change when it is opened again; here they do not, so that a resumed history
        asks the model the same.
        """
        search = store.search

        def watched(*arguments, **named):
            found = search(*arguments, **named)
            found = sorted(found, key=lambda memory: (-round(memory.score, 6), str(memory.id)))
            self.neighbours.update((str(memory.id), None) for memory in found)
            return found

        store.search = watched

    def add(self, session):
        size, events = self.batch or len(session.turns), []
        for start in range(0, len(session.turns), max(1, size)):
            turns = session.turns[start : start + size]
            messages = [{"role": turn.role, "content": turn.content} for turn in turns]
            if self.date and session.time:
                messages[0]["content"] = f"[{session.time}] {messages[0]['content']}"
            source = {"session": session.id, **({"turns": [turn.id for turn in turns]} if self.batch else {})}
            self.neighbours.clear()
            try:
                told = self.memory.add(messages, user_id=USER, metadata={"session": session.id, "time": session.time})
            except (AttributeError, KeyError, TypeError) as error:
                # JSON of another shape than mem0 asks for. It costs this session, not the history.
                raise BadInput(f"mem0 cannot read its model's reply: {type(error).__name__}: {error}") from error
            looked = [{"memory": memory} for memory in self.neighbours]
            for event in told["results"]:
                written = {"op": event["event"].lower(), "memory": event["id"], "looked_at": looked}
                if event["event"] in ("ADD", "UPDATE"):
                    written.update(text=event["memory"], sources=[source])
                events.append(written)
            if looked and not told["results"]:
                events.append({"op": "none", "looked_at": looked, "reason": "older memories were found, and none was changed"})
        return events

    def row(self, memory):
        """A memory of mem0's as the protocol has it; its sources are those of the events."""
        about = memory.get("metadata") or {}
        return {"id": memory["id"], "text": memory["memory"], "score": memory.get("score"), "time": about.get("time")}

    def search(self, query, k):
        return self.ranked(self.memory.search(query, user_id=USER, limit=k))

    def ranked(self, found):
        """What a search found, without the last bits of scores."""
        rows = [self.row(memory) for memory in found["results"]]
        return [{**row, "score": round(row["score"], 6)} for row in rows]

    def dump(self):
        return [self.row(memory) for memory in self.memory.get_all(user_id=USER, limit=ALL)["results"]]

    def close(self):
        self.memory.vector_store.client.close()
        self.memory.close()


if __name__ == "__main__":
    serve(Mem0)
