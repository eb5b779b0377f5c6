#!/usr/bin/env python3
"""LangMem: a manager reads each session beside the memories that are nearest to it, and inserts, patches or deletes by calls of tools.

  python3 -m venv langmem && langmem/bin/pip install langmem==0.0.30 langchain-openai==1.7.3 numpy
  --memory langmem='langmem/bin/python adapters/langmem.py'

Package: langmem 0.0.30 (MIT), with langchain-openai 1.7.3 and langgraph 1.2.22, Python 3.11. The store is langgraph's InMemoryStore with an
index by the embedder; saving writes it to a file, loading embeds it anew. Runs offline on one machine.
Settings
  deletes   false (default, as in the package): may the manager delete memories
  date      true (default): the session's time stands before its first message
  neighbours  5 (default): memories that the manager sees beside a session

What is known to differ, and to matter:
- Its model must answer by calls of tools. A model that answers in words stores nothing, and nothing is logged: the event is of op `none`.
- The text of a memory is its content; of a schema of your own it would be JSON.
- What changed is found by comparing the store before and after. Memories shown to the manager are `looked_at`; there is no threshold.
- Prompts hold an id drawn for each session, which palimpsest_memory.py makes the same in every run.
"""

import json
import os

from palimpsest_memory import dimensions_of, embed, serve, version_of

PLACE = ("memories",)
# Memories that a dump may have; the store wants a limit.
ALL = 1_000_000


class LangMem:
    """A store of langgraph's, and LangMem's manager over it."""

    name = "langmem"
    packages = ("langmem", "langgraph", "langchain-core", "langchain-openai", "trustcall")
    options = {"deletes": False, "date": True, "neighbours": 5}
    provenance, looks, scopes = "derived", True, 4
    # trustcall logs as "extraction".
    loggers = ("langmem", "extraction")

    @classmethod
    def prepare(cls, setup):
        cls.version = version_of("langmem")
        os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false", OPENAI_API_KEY=setup.need_llm().key or "none")
        cls.dimensions = dimensions_of(setup.need_embedder())

    def __init__(self, setup):
        from langchain_openai import ChatOpenAI
        from langgraph.store.memory import InMemoryStore
        from langmem import create_memory_store_manager

        shown = self.shown = {}

        class Watched(InMemoryStore):
            """Notes what a search finds: while the manager runs, the memories that it considers."""

            def search(self, *arguments, **named):
                found = super().search(*arguments, **named)
                shown.update((item.key, None) for item in found)
                return found

        llm, self.date = setup.llm, setup.config["date"]
        index = {"dims": self.dimensions, "embed": lambda texts: embed(setup.embedder, list(texts)), "fields": ["content"]}
        self.store = Watched(index=index)
        self.manager = create_memory_store_manager(
            ChatOpenAI(model=llm.model, base_url=llm.base_url, api_key=llm.key or "none"),
            namespace=PLACE,
            store=self.store,
            enable_deletes=setup.config["deletes"],
            query_limit=setup.config["neighbours"],
        )

    def values(self):
        """All memories: values by key."""
        return {item.key: item.value for item in self.store.search(PLACE, limit=ALL)}

    def add(self, session):
        messages = session.messages()
        if self.date and session.time and messages:
            messages[0]["content"] = f"[{session.time}] {messages[0]['content']}"
        before = self.values()
        self.shown.clear()
        self.manager.invoke({"messages": messages})
        looked = [{"memory": key} for key in self.shown if key in before]
        after, events = self.values(), []
        for key, value in after.items():
            if value.get("kind") != before.get(key, {}).get("kind") or text_of(value) != text_of(before.get(key, {})):
                # The time is the store's to keep, and a put replaces a value whole.
                self.store.put(PLACE, key, {**value, "time": session.time})
                events.append({"op": "update" if key in before else "add", "memory": key, "text": text_of(value), "looked_at": looked})
        events += [{"op": "delete", "memory": key, "looked_at": looked} for key in before if key not in after]
        if not events:
            # Also where the model answered in words: the package does not say which.
            events.append({"op": "none", "looked_at": looked, "reason": "no call of a tool changed anything"})
        return events

    def search(self, query, k):
        return [{**self.row(item.key, item.value), "score": item.score} for item in self.store.search(PLACE, query=query, limit=k)]

    def row(self, key, value):
        """A memory as the protocol has it; its sources are those of the events."""
        return {"id": key, "text": text_of(value), "time": value.get("time")}

    def dump(self):
        return [self.row(key, value) for key, value in self.values().items()]

    def save(self, folder):
        (folder / "store.json").write_text(json.dumps(self.values()), encoding="utf-8")

    def load(self, folder):
        for key, value in json.loads((folder / "store.json").read_text(encoding="utf-8")).items():
            self.store.put(PLACE, key, value)


def text_of(value):
    """What a memory says."""
    content = value.get("content")
    if isinstance(content, dict) and isinstance(content.get("content"), str) and len(content) == 1:
        return content["content"]
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


if __name__ == "__main__":
    serve(LangMem)
