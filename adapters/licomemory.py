#!/usr/bin/env python3
"""LiCoMemory: a graph of entities over pairs of turns, with a summary for each session, built from the whole history at its end.

  python3 -m venv lico && lico/bin/pip install networkx==3.6.1 numpy==2.4.6 openai==3.54.0 pydantic pyyaml tqdm
  --memory licomemory='lico/bin/python adapters/licomemory.py --source LiCoMemory'

Package: none. DIR of `--source` is a copy of github.com/EverM0re/LiCoMemory, tried at commit a844d99 of 2026-01-06, Python 3.11. It has **no
licence file**: its use is for you to clear, and nothing of it is here. Its embeddings by torch and its plots are stood in for; the embedder
is ours. Runs offline on one machine.
Settings, with the defaults of its public config/Memory.yaml
  entities 5, triples 20, summaries 1, summary_weight 0.2, cognirank false (the rerank by time that its paper describes)

What is known to differ from the papers' configuration, and to matter:
- STALE does not say which settings it used; its embedder was a Hugging Face model. k is how many pairs are shown (15 there).
- As in its command with `force`, nothing is written before the end of a history. Its mode `add` numbers the pairs of each session from 0 again
  and so overwrites the earlier ones: it is not used.
- A memory is a pair of turns, word for word with the session's time, to which a triple leads: a pair without one is never found, and counts as
  not written. Sources are exact. Triples and summaries are in `parts`, the native condition, and in its own answer.
- The first pair of a history is shown only where a later pair repeats its triple: its code takes the id 0 for none.
- It parses sessions with a pattern that a quotation mark breaks: they become apostrophes. White space becomes single spaces.
- Failures of the model are logged and swallowed (events of op `none`); what does not parse is dropped silently. Calls ask for temperature 0.1 and
  1,000 tokens, whatever its settings say. Prompts hold the turns with Unicode escaped.
Cost: a call a pair and a call a session, and one for a question (two where it answers itself); embeddings of all entities and triples.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import types
from pathlib import Path

from palimpsest_memory import embed, serve, text_id

INDEX = "graph"


def stand_in(embedder):
    """Modules in the place of its embeddings by torch, and of the plots that it does not draw here."""
    import numpy as np

    class EmbeddingManager:
        def __init__(self, _=None):
            pass

        async def get_embeddings(self, texts, need_tensor=False):
            vectors = await asyncio.to_thread(embed, embedder, list(texts)) if texts else []
            return np.array(vectors) if need_tensor else vectors

        def cosine_similarity_tensor(self, one, other):
            unit = [np.asarray(rows) / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-8) for rows in (one, other)]
            # Without the last bits, which depend on the number of rows.
            return np.round(unit[0] @ unit[1].T, 6)

        def cosine_similarity(self, one, other):
            return float(self.cosine_similarity_tensor([one], [other])[0][0])

        def batch_cosine_similarity(self, one, others):
            return self.cosine_similarity_tensor([one], others)[0].tolist()

        def transfer_to_tensor(self, rows):
            return np.array(rows)

    for name, members in {"base.embeddings": {"EmbeddingManager": EmbeddingManager}, "query.visualizer": {"QueryResultVisualizer": None}}.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)


class LiCoMemory:
    """A graph and its pairs of turns, in the scope's folder."""

    name, version = "licomemory", "a844d99"
    packages = ("networkx", "numpy", "openai")
    options = {"entities": 5, "triples": 20, "summaries": 1, "summary_weight": 0.2, "cognirank": False}
    provenance, state_in_folder, scopes, source = "exact", True, 4, None
    loggers = ("DynamicMemory",)

    @classmethod
    def prepare(cls, setup):
        setup.need_llm()
        stand_in(setup.need_embedder())
        cls.files = [cls.source / folder for folder in ("base", "chunking", "coregraph", "init", "prompt", "query", "utils")]
        sys.path.insert(0, str(cls.source))
        # Its logger writes into `results` of the working directory.
        os.chdir(setup.folder)
        from init import logger

        logger.logger.setLevel(logging.WARNING)
        from utils.token_counter import TOKEN_COSTS

        # A model without a price is a warning at each call.
        TOKEN_COSTS[setup.llm.model] = {"prompt": 0, "completion": 0}

    def __init__(self, setup):
        from coregraph.graph_rag_core import GraphRAGCore
        from init.config import Config

        given, llm, config = setup.config, setup.llm, Config()
        config.index_name, config.graph.force, config.chunk.dialogue_input = INDEX, True, True
        config.graph.relationship_merge_threshold = 1
        config.llm.api_key, config.llm.base_url, config.llm.model = llm.key or "none", llm.base_url, llm.model
        shown = {"top_k": given["entities"], "top_k_triples": given["triples"], "top_summary": given["summaries"], "rerank_k": 0.1}
        shown.update(enable_summary=True, enable_sessiontime=True, summary_weight=given["summary_weight"], enable_CogniRank=given["cognirank"])
        vars(config.retriever).update(shown)
        self.config, self.loop, self.folder = config, asyncio.new_event_loop(), setup.folder
        self.core = GraphRAGCore(config, str(setup.folder))
        self.told = setup.folder / "sessions.json"
        self.sessions = json.loads(self.told.read_text()) if self.told.exists() else []
        if (setup.folder / f"{INDEX}.pkl").exists():
            self.core.graph.load_graph(str(setup.folder / f"{INDEX}.pkl"))

    def add(self, session):
        pairs = []
        for pair in session.split("pair"):
            said = [(turn.id, "assistant" if turn.role == "assistant" else "user", " ".join(turn.content.split())) for turn in pair.turns]
            pairs += [[turn for turn in said if turn[2]]] if any(turn[2] for turn in said) else []
        self.sessions.append({"id": session.id, "time": session.time, "pairs": pairs})
        self.told.write_text(json.dumps(self.sessions))
        return []

    def finish(self):
        corpus = []
        for session in self.sessions:
            turns = [f'"{role}": "' + text.replace('"', "'") + '"' for pair in session["pairs"] for _, role, text in pair]
            # A date as its reranking by time reads it.
            when = (session["time"] or "unknown")[:10].replace("-", "/")
            corpus.append({"session_id": session["id"], "session_time": when, "context": "".join(turns)})
        self.loop.run_until_complete(self.core.insert(corpus))
        return [{"op": "add", "memory": row["id"], "text": row["text"], "sources": row["sources"]} for row in self.dump()]

    def rows(self):
        """All pairs, by their ids in its store, which counts them over the history."""
        pairs = [(session, pair) for session in self.sessions for pair in session["pairs"]]
        rows = {}
        for key, chunk in self.core.graph.chunk_storage.items():
            session, pair = pairs[int(key)]
            text = f"{chunk['session_time']} {chunk['text']}"
            rows[key] = {"id": f"{key}-{text_id(text)[:6]}", "text": text, "time": session["time"]}
            rows[key]["sources"] = [{"session": session["id"], "turns": [turn for turn, _, _ in pair]}]
        return rows

    def dump(self):
        rows, named = self.rows(), set()
        for _, _, edge in self.core.graph.graph_builder.graph.edges(data=True):
            named.update(map(str, [edge.get("chunk_id", ""), *edge.get("chunk_ids", [])]))
        return [row for key, row in rows.items() if key in named]

    def asked(self, query, as_of, k, answers):
        """What it does for a question, with its answer or without."""
        from query.query_processor import QueryProcessor

        self.config.retriever.top_chunks = k
        processor = QueryProcessor(self.config, self.core.llm_manager, self.core.graph)
        if not answers:
            processor._generate_answer = lambda *_: asyncio.sleep(0, "")
        said = self.loop.run_until_complete(processor.process_query(query, question_time=(as_of or "")[:10].replace("-", "/")))
        by_text = {row["text"]: row for row in self.rows().values()}
        said["memories"] = [by_text[text] for text in said["chunks"] if text in by_text]
        said["shown"] = processor.summary_retriever.format_summaries_for_prompt(said["summaries"])
        return said

    def search(self, query, k, as_of=None):
        said = self.asked(query, as_of, k, False)
        triples = "; ".join(f"({each['src']}, {each['relation']}, {each['tgt']})" for each in said["triples"])
        parts = [{"text": f"Session summaries: {said['shown']}\nTriples: {triples}\nText chunks:\n"}]
        parts += [{"text": f"Chunk {at + 1}: {row['text']}\n", "memory": row["id"]} for at, row in enumerate(said["memories"])]
        return {"memories": said["memories"], "parts": parts}

    def answer(self, query, as_of=None):
        said = self.asked(query, as_of, 15, True)
        return said["answer"], said["memories"]

    def close(self):
        self.loop.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    LiCoMemory.source = parser.parse_args().source.resolve()
    serve(LiCoMemory)
