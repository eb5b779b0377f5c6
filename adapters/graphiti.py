#!/usr/bin/env python3
"""Graphiti, the engine of Zep, over an embedded FalkorDB: sessions become episodes, entities and facts, which later facts invalidate.

  python3.12 -m venv graphiti && graphiti/bin/pip install 'graphiti-core[falkordblite]==0.31.1' httpx
  --memory graphiti='graphiti/bin/python adapters/graphiti.py'

Package: graphiti-core 0.31.1 (Apache-2.0) with falkordblite 0.11.0, Python 3.12 or later. Runs offline on one machine; the graph is in the
scope's folder.
Settings
  max_tokens   4096 (default; the package's is 16,384): most tokens of an answer. Prompt and answer must fit the server's context

What is known to differ from Zep, and to matter:
- Zep is a hosted service over this engine; the papers' rows are Zep's. Its rendering of a context, and its users' summaries, are not here.
- A memory is a fact (an edge); entities' summaries and communities are not shown. Its sources are the episodes that it names: exact to the
  session, and united by Graphiti where an episode repeats a fact.
- An invalidated fact stays and is found: its status is `stale`, its time is when it became true.
- Search is the default one: cosine, words and graph distance, fused by rank; there is no cross-encoder, so scores are absent.
- An episode is several calls with JSON schemas; a model that cannot fill them ends a session with an error, and nothing of it is stored.
  Under a server that enforces schemas SmolLM2-135M filled the first one, of entities (2,137 tokens of prompt, 112 of answer), and was otherwise
  too slow for the 600 s that the package's client gives a call.
- Whatever its client is told, the extraction of facts asks for 16,384 tokens, which a server with a context of 8,192 refuses with HTTP 400. The
  adapter cuts this to `max_tokens`: `palimpsest serve` with 8,192 took every call of three sessions.
- A session without a time is dated 1970-01-01. Telemetry is off.
"""

import asyncio
import json
import os
import signal
import time
from datetime import datetime, timezone

import servers
from palimpsest_memory import changes, dimensions_of, embed, serve, version_of

GROUP = "history"


def alive(pid):
    """Is there such a process?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Graphiti:
    """A graph in the scope's folder."""

    name = "graphiti"
    packages = ("graphiti-core", "falkordblite", "falkordb", "openai")
    files = (servers.__file__,)
    options = {"max_tokens": 4096}
    provenance, state_in_folder, scopes = "exact", True, 2
    loggers = ("graphiti_core",)

    @classmethod
    def prepare(cls, setup):
        cls.version = version_of("graphiti-core")
        llm = setup.need_llm()
        os.environ.update(GRAPHITI_TELEMETRY_ENABLED="false", OPENAI_API_KEY=llm.key or "none", OPENAI_BASE_URL=llm.base_url)
        # GraphBLAS writes its own source there.
        os.environ["HOME"] = str(setup.folder / "home")
        (setup.folder / "home").mkdir(exist_ok=True)
        os.environ["EMBEDDING_DIM"] = str(dimensions_of(setup.need_embedder()))

    def __init__(self, setup):
        self.loop = asyncio.new_event_loop()
        self.names = setup.folder / "sessions.json"
        self.sessions = json.loads(self.names.read_text()) if self.names.exists() else {}
        self.run(self.open(setup))

    def run(self, work):
        """Its calls are asynchronous; the protocol's come one at a time."""
        return self.loop.run_until_complete(work)

    async def open(self, setup):
        """Starts the database and the engine over it."""
        from graphiti_core import Graphiti as Engine
        from graphiti_core.cross_encoder.client import CrossEncoderClient
        from graphiti_core.driver.falkordb_driver import FalkorDriver
        from graphiti_core.embedder.client import EmbedderClient
        from graphiti_core.llm_client.config import LLMConfig
        from graphiti_core.llm_client.openai_generic_client import OpenAIGenericClient
        from redislite.async_falkordb_client import AsyncFalkorDB

        class Embedder(EmbedderClient):
            async def create(self, input_data):
                return (await self.create_batch([input_data] if isinstance(input_data, str) else list(input_data)))[0]

            async def create_batch(self, input_data_list):
                return await asyncio.to_thread(embed, setup.embedder, list(input_data_list))

        class Client(OpenAIGenericClient):
            async def _generate_response(self, messages, response_model=None, max_tokens=0, *rest, **named):
                # The extraction of facts asks for more than the client was told.
                return await super()._generate_response(messages, response_model, min(max_tokens, self.max_tokens), *rest, **named)

        class NoReranker(CrossEncoderClient):
            async def rank(self, query, passages):
                return [(passage, 0.0) for passage in passages]

        llm = setup.llm
        asked = LLMConfig(api_key=llm.key or "none", model=llm.model, small_model=llm.model, base_url=llm.base_url)
        self.database = AsyncFalkorDB(str(setup.folder / "graph.db"))
        servers.tie(self.database.client.pid)
        self.driver = FalkorDriver(falkor_db=self.database, database=GROUP)
        client = Client(config=asked, max_tokens=setup.config["max_tokens"])
        self.engine = Engine(graph_driver=self.driver, llm_client=client, embedder=Embedder(), cross_encoder=NoReranker())
        await self.engine.build_indices_and_constraints()

    async def facts(self):
        """All facts."""
        from graphiti_core.edges import EntityEdge
        from graphiti_core.errors import GroupsEdgesNotFoundError

        try:
            edges = await EntityEdge.get_by_group_ids(self.driver, [GROUP])
        except GroupsEdgesNotFoundError:
            edges = []
        return [self.row(edge) for edge in edges]

    def row(self, edge):
        """A fact as the protocol has it."""
        ended = edge.invalid_at is not None or edge.expired_at is not None
        sources = [{"session": self.sessions[each]} for each in edge.episodes if each in self.sessions]
        since = edge.valid_at and edge.valid_at.isoformat()
        return {"id": edge.uuid, "text": edge.fact, "sources": sources, "time": since, "status": "stale" if ended else "active"}

    def add(self, session):
        from graphiti_core.nodes import EpisodeType

        before = self.dump()
        body = "\n".join(f"{turn.role}: {turn.content}" for turn in session.turns)
        moment = datetime.fromisoformat(session.time) if session.time else datetime.fromtimestamp(0)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        told = self.run(
            self.engine.add_episode(
                name=session.id,
                episode_body=body,
                source_description="a conversation of a user and an assistant",
                reference_time=moment,
                source=EpisodeType.message,
                group_id=GROUP,
            )
        )
        self.sessions[told.episode.uuid] = session.id
        self.names.write_text(json.dumps(self.sessions))
        return changes(before, self.dump())

    def search(self, query, k):
        return [self.row(edge) for edge in self.run(self.engine.search(query, group_ids=[GROUP], num_results=k))]

    def dump(self):
        return self.run(self.facts())

    def readback(self, sessions):
        return [row for row in self.dump() if any(source["session"] in sessions for source in row["sources"])]

    def close(self):
        pid = self.database.client.pid
        try:
            # Its own close leaves the server running.
            self.run(self.database.connection.execute_command("SAVE"))
            self.run(self.engine.close())
        finally:
            self.loop.close()
            os.kill(pid, signal.SIGTERM)
            for _ in range(100):
                if not alive(pid):
                    break
                time.sleep(0.1)


if __name__ == "__main__":
    serve(Graphiti)
