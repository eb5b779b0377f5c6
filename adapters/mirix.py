#!/usr/bin/env python3
"""MIRIX: its server over SQLite for each history; a meta agent hands a conversation to agents that keep six kinds of memory.

  python3.12 -m venv mirix && mirix/bin/pip install -r MIRIX/requirements.txt
  --memory mirix='mirix/bin/python adapters/mirix.py --source MIRIX'

DIR of `--source` is a copy of github.com/Mirix-AI/MIRIX (Apache-2.0), tried at commit 51f3342 of 2026-06-20, Python 3.12; `mirix` on PyPI is its
client alone. 1.3 GB of packages (its tests' and linters' can be left out). Runs offline on one machine, without Postgres and Redis.
Settings
  batch          messages in one `add`; 0 (default) is the whole session
  search         "embedding" (default, as its own evaluation's agent) or "bm25"
  chaining       false (default, as its own evaluation)
  context        16384 (default): the window of the language model that MIRIX is told of
  timeout        3000 (default): seconds for the writing of a session

What is known to differ from the papers' configuration, and to matter:
- SubtleMemory's MIRIX "answers itself", with gpt-4o-mini. This commit's server returns no answers (its route for messages to an agent queues them
  and is marked unfinished). `answer` is the agent of its own evaluation, evals/task_agent.py, which calls itself MIRIX's chat agent: the newest
  memories in its prompt, at most five rounds of searches by a tool, answers of at most 128 tokens. A raw input cannot be asked for, since its
  client has no such call.
- A search gives k of each kind (events, resources, procedures, secrets, facts), in that order, without scores; k cuts the list. So what comes
  first is by kind. Core blocks are read in `dump` and not searched.
- Its `retrieve/conversation` never hands over the words of a question at this commit (it adds a string to a dictionary, and gives the newest
  events): `search` is used.
- The time of a session is `occurred_at`, which dates events; sources are what changed between two sessions: exact to the session, united over
  updates.
- Its embedder ignores the name that it is given and asks for text-embedding-ada-002: here it asks for the given one. Tokens are counted as
  bytes over four, since tiktoken would download its table, unless TIKTOKEN_CACHE_DIR is set.
- A model that calls no tools stores nothing. Calls ask for tools with `tool_choice` "required".
Cost: a call for topics, one of the meta agent, one and more of each agent that it triggers, and one to end: four and more a session, with prompts
of 3,000 tokens beside the session, at temperature 0.7. A server takes 12 s to start, where a history is loaded twice. A search is one embedding,
`answer` one to six calls.
"""

import argparse
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from urllib.parse import urlencode

import servers
from palimpsest_memory import Failure, changes, dimensions_of, serve

USER = "user"
KINDS = ("core", "resource", "semantic", "episodic", "procedural", "knowledge_vault")
# Fields of a memory's text, whichever it has.
FIELDS = ("name", "title", "label", "caption", "summary", "details", "steps", "content", "value", "secret_value")
LAUNCH = """
import sys
import llama_index.embeddings.openai as module
import uvicorn

make = module.OpenAIEmbedding
module.OpenAIEmbedding = lambda **named: make(model_name=sys.argv[2], **named)
uvicorn.run("mirix.server.rest_api:app", host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


class Client:
    """In place of MIRIX's client, with its defaults, for the agent that answers; keeps what searches found."""

    def __init__(self, ask):
        self.ask, self.found = ask, {}

    async def retrieve_with_conversation(self, **asked):
        return self.ask("/memory/retrieve/conversation", {"limit": 10, **asked})

    async def search(self, **asked):
        told = self.ask("/memory/search", **{"memory_type": "all", "search_method": "embedding", **asked})
        # The agent takes the ids away.
        self.found.update({item["id"]: dict(item) for item in told.get("results") or []})
        return told

    def check_raw_item(self, _):
        return {"success": False, "error": "MIRIX's client has no such call."}


class Mirix:
    """A server over the scope's folder."""

    name, version = "mirix", "51f3342"
    packages = ("openai", "llama-index-core", "sqlalchemy", "rank-bm25")
    options = {"batch": 0, "search": "embedding", "chaining": False, "context": 16384, "timeout": 3000}
    scopes, source = 2, None

    @classmethod
    def prepare(cls, setup):
        setup.need_llm()
        cls.dimensions = dimensions_of(setup.need_embedder())
        cls.files = [cls.source / "mirix", servers.__file__]
        cls.path = os.pathsep.join([servers.path_of_quarters(setup.folder), str(cls.source)])

    def __init__(self, setup):
        self.config, self.setup, self.database = setup.config, setup, setup.folder / ".mirix" / "sqlite.db"
        self.start()

    def start(self):
        """Starts the server, and in an empty store makes the user and the agents."""
        setup, llm, embedder = self.setup, self.setup.llm, self.setup.embedder
        port = servers.free_port()
        self.url = f"http://127.0.0.1:{port}"
        # All that it keeps is in `.mirix` of the home folder.
        environment = {**os.environ, "HOME": str(setup.folder), "PYTHONPATH": self.path, "OPENAI_API_KEY": llm.key or "none"}
        command = [sys.executable, "-c", LAUNCH, port, embedder.model]
        self.server = servers.Server(command, lambda: servers.ask_json(self.url + "/health", seconds=5), env=environment, cwd=setup.folder)
        self.ask("/organizations/create_or_get", {"org_id": "org-p", "name": "org-p"})
        scope = {"write_scope": "read_write", "read_scopes": ["read_write"], "status": "active"}
        self.ask("/clients/create_or_get", {"client_id": "client-p", "name": "client-p", "org_id": "org-p", **scope})
        self.ask("/users/create_or_get", {"user_id": USER, "name": USER, "org_id": "org-p"})
        endpoint = {"model": llm.model, "model_endpoint_type": "openai", "model_endpoint": llm.base_url, "api_key": llm.key or "none"}
        vectors = {"embedding_model": embedder.model, "embedding_endpoint": embedder.base_url, "api_key": embedder.key or "none"}
        agents = {"agents": [f"{kind}_memory_agent" for kind in KINDS]}
        agents["memory"] = {"core": [{"label": "human", "value": ""}, {"label": "persona", "value": "I am a helpful assistant."}]}
        config = {
            "llm_config": {**endpoint, "context_window": self.config["context"]},
            "embedding_config": {**vectors, "embedding_endpoint_type": "openai", "embedding_dim": self.dimensions},
            "build_embeddings_for_memory": True,
            "meta_agent_config": agents,
        }
        self.agent = self.ask("/agents/meta/initialize", {"config": config, "update_agents": False})["id"]

    def ask(self, path, body=None, **query):
        """The reply to a POST of `body`, or to a GET."""
        url = self.url + path + ("?" + urlencode(query) if query else "")
        return servers.ask_json(url, body, {"X-Client-ID": "client-p", "X-Org-ID": "org-p"}, self.config["timeout"])

    def row(self, item):
        """An item as the protocol has it: its fields in lines, each once."""
        lines = [json.dumps(item[field]) if isinstance(item[field], list) else str(item[field]) for field in FIELDS if item.get(field)]
        return {"id": item["id"], "text": "\n".join(dict.fromkeys(lines)), "time": item.get("occurred_at")}

    def dump(self):
        rows = []
        for kind, found in self.ask("/memory/components", user_id=USER, limit=1000)["memories"].items():
            items = found.get("items") or [item for scope in found.get("scopes", {}).values() for item in scope["items"]]
            rows += [self.row(item) for item in items if kind != "core" or item["label"] == "human" and item["value"]]
        return rows

    def add(self, session):
        before, size = self.dump(), self.config["batch"] or len(session.turns)
        for start in range(0, len(session.turns), max(1, size)):
            turns = session.turns[start : start + size]
            body = {"user_id": USER, "meta_agent_id": self.agent, "chaining": self.config["chaining"]}
            body["filter_tags"] = {"kind": "conversation_session"}
            body["messages"] = [{"role": turn.role, "content": turn.content} for turn in turns]
            self.ask("/memory/add_sync", {**body, **({"occurred_at": session.time} if session.time else {})})
        return changes(before, self.dump())

    def search(self, query, k):
        asked = {"user_id": USER, "query": query, "memory_type": "all", "search_method": self.config["search"], "limit": k}
        found = self.ask("/memory/search", **asked)
        if not found.get("success"):
            raise Failure(f"mirix /memory/search: {found.get('error')}")
        rows = [self.row(item) for item in found["results"]][:k]
        return {"memories": rows, "parts": [{"text": f"{row['text']}\n", "memory": row["id"]} for row in rows]}

    def answer(self, query):
        sys.path[:0] = [str(self.source / "evals"), str(self.source)]
        from mirix_memory_system import MirixMemorySystem
        from openai import OpenAI
        from task_agent import TaskAgent

        # Without their constructors, which would ask for a server at a port of their own.
        agent, memory = TaskAgent.__new__(TaskAgent), MirixMemorySystem.__new__(MirixMemorySystem)
        llm, client = self.setup.llm, Client(self.ask)
        agent.client, agent.model, agent.max_tool_rounds = OpenAI(api_key=llm.key or "none", base_url=llm.base_url), llm.model, 5
        agent.mirix_client, agent.user_id, memory.client, memory.user_id = client, USER, client, USER
        said = agent.answer(memory.wrap_user_prompt(query), user_id=USER)["answer"]
        return said, [self.row(item) for item in client.found.values()]

    def save(self, folder):
        # Of the database as it is; starting the server anew would take longer than a session.
        with sqlite3.connect(self.database) as one, sqlite3.connect(folder / "sqlite.db") as other:
            one.backup(other)

    def load(self, folder):
        self.close()
        shutil.rmtree(self.database.parent)
        self.database.parent.mkdir()
        shutil.copy(folder / "sqlite.db", self.database)
        self.start()

    def close(self):
        self.server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    Mirix.source = parser.parse_args().source.resolve()
    serve(Mirix)
