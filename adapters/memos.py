#!/usr/bin/env python3
"""MemOS's general text memory over an embedded Qdrant: a model extracts memories from a conversation, which are found by cosine.

  python3 -m venv memos && memos/bin/pip install MemoryOS==2.0.33 qdrant-client
  --memory memos='memos/bin/python adapters/memos.py'

Package: MemoryOS 2.0.33 (Apache-2.0), Python 3.11; no server. Runs offline on one machine.
Settings
  batch        messages in one extraction; 0 (default) is the whole session. SubtleMemory's public configuration has 10
  date         true (default): the session's time stands before its first message
  max_tokens   2048 (default; the package's is 8,192): most tokens of an extraction. Prompt and answer must fit the server's context
  temperature  0 (default; the package's is 0.7), with `top_p` 1

What is known to differ from the papers' rows, and to matter:
- SubtleMemory's row is the hosted service (batches of 10, 180 s of waiting, top 20, preferences beside memories). KnowMe-Bench does not say
  what ran. memos_tree.py drives the tree memory, memos_hosted.py the service; preferences need Milvus and are not here.
- This memory only adds. Nothing is merged, updated or removed: an older statement stays beside the newer one.
- Memories are dated by the clock when they were written; here their time is that of the session, which their metadata keeps.
- Of JSON of another shape MemOS makes an exception and stores nothing, and its three tries never happen, since it catches the error that
  they wait for: an event of op `none` says so, and the history goes on. (SmolLM2-135M: neither of two sessions could be read.)
Cost: one call of about 1,700 tokens and the messages for each batch, and one request for embeddings; a search is one embedding.
"""

import os

from palimpsest_memory import dimensions_of, embed, serve, version_of


class MemOs:
    """A collection of Qdrant's in the scope's folder."""

    name = "memos"
    packages = ("MemoryOS", "qdrant-client", "openai")
    options = {"batch": 0, "date": True, "max_tokens": 2048, "temperature": 0}
    provenance, state_in_folder, scopes = "derived", True, 4
    loggers = ("memos.memories.textual.general",)

    @classmethod
    def prepare(cls, setup):
        cls.version = version_of("MemoryOS")
        setup.need_llm()
        # Read when it is imported: its files of logs go there.
        os.environ["MEMOS_BASE_PATH"] = str(setup.folder)
        cls.dimensions = dimensions_of(setup.need_embedder())

    def __init__(self, setup):
        from memos.configs.memory import GeneralTextMemoryConfig
        from memos.memories.textual.general import GeneralTextMemory

        llm, embedder, config = setup.llm, setup.embedder, setup.config
        self.batch, self.date = config["batch"], config["date"]
        asked = {"model_name_or_path": llm.model, "api_key": llm.key or "none", "api_base": llm.base_url}
        sampled = {"temperature": config["temperature"], "top_p": 1.0, "max_tokens": config["max_tokens"]}
        embedded = {"provider": "openai", "model_name_or_path": embedder.model, "api_key": embedder.key or "none", "base_url": embedder.base_url}
        stored = {"collection_name": "memories", "path": str(setup.folder / "qdrant"), "distance_metric": "cosine"}
        settings = {
            "extractor_llm": {"backend": "openai", "config": {**asked, **sampled}},
            "vector_db": {"backend": "qdrant", "config": {**stored, "vector_dimension": self.dimensions}},
            "embedder": {"backend": "universal_api", "config": embedded},
        }
        self.memory = GeneralTextMemory(GeneralTextMemoryConfig(**settings))
        # Its own client gives up after 5 seconds, and sends all texts at once.
        self.memory.embedder.embed = lambda texts: embed(embedder, list(texts))

    def add(self, session):
        size, events = self.batch or len(session.turns), []
        for start in range(0, len(session.turns), max(1, size)):
            turns = session.turns[start : start + size]
            messages = [{"role": turn.role, "content": turn.content} for turn in turns]
            if self.date and session.time:
                messages[0]["content"] = f"[{session.time}] {messages[0]['content']}"
            try:
                items = self.memory.extract(messages)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                events.append({"op": "none", "reason": f"its model's reply cannot be read: {type(error).__name__}: {error}"})
                continue
            source = {"session": session.id, **({"turns": [turn.id for turn in turns]} if self.batch else {})}
            for item in items:
                item.metadata.session_id = session.id
                item.metadata.info = {"time": session.time}
                events.append({"op": "add", "memory": item.id, "text": item.memory, "sources": [source]})
            if items:
                self.memory.add(items)
        return events

    def row(self, payload, score=None):
        """A memory of MemOS's as the protocol has it; its sources are those of the events."""
        about = payload["metadata"]
        known = {"session": about["session_id"]} if about.get("session_id") else {}
        time = (about.get("info") or {}).get("time")
        active = about.get("status") in (None, "activated")
        row = {"id": payload["id"], "text": payload["memory"], "score": score, "time": time}
        return {**row, "status": "active" if active else about["status"], "metadata": known}

    def search(self, query, k):
        # As its own `search`, which drops the scores.
        found = self.memory.vector_db.search(self.memory._embed_one_sentence(query), k)
        rows = [self.row(each.payload, round(each.score, 6)) for each in found]
        return sorted(rows, key=lambda row: (-row["score"], row["id"]))

    def dump(self):
        return [self.row(each.payload) for each in self.memory.vector_db.get_all()]

    def close(self):
        self.memory.vector_db.client.close()


if __name__ == "__main__":
    serve(MemOs)
