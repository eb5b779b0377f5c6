#!/usr/bin/env python3
"""LightMem, from its source: facts are extracted from buffered turns, and after the history older ones are updated or deleted by newer ones.

  python3.11 -m venv lightmem
  lightmem/bin/pip install openai==2.3.0 qdrant-client==1.15.1 pydantic==2.12.0 numpy==2.2.6 httpx==0.28.1 tiktoken==0.12.0 tqdm PyYAML
  --memory lightmem='lightmem/bin/python adapters/lightmem.py --source LightMem'

Package: none (`lightmem` 0.0.0 on PyPI is a placeholder). DIR of `--source` is a copy of github.com/zjunlp/LightMem (MIT), tried at commit
8fc9a91 of 2026-08-03, Python 3.11. Without torch: compressor and topic segmenter, which need models of their own, are off, and two classes
of transformers are stood in for. Runs offline on one machine; Qdrant in the scope's folder.
Settings
  threshold   0.9 (default, the method's): similarity from which the update call sees a pair; the authors' LongMemEval script has 0.8
  flush       "session" (default): what is buffered is extracted when 512 tokens are full and after each session; "history", as in the
              authors' script: at the end of the history alone
  messages    "user_only" (default) or "hybrid": whose words facts are extracted from
  compressor  none (default, as the code's): a folder with llmlingua-2-bert-base-multilingual-cased-meetingbank, whose name must have these words.
              Then messages are shortened to 0.8 of their tokens and topics are cut by that model's attention, as in the authors' scripts.
              It needs `llmlingua==0.2.2`, torch and transformers (5 would do, tried)

What is known to differ from the papers' rows, and to matter:
- Without a compressor a buffer is full at 512 tokens, which are counted as a quarter of the bytes unless TIKTOKEN_CACHE_DIR names a folder with
  tiktoken's o200k_base.
- `compressor` was run with untrained weights of that architecture (12 layers): no package holds the real ones, and no hub was within reach. So
  that the code runs is seen, and nothing of the quality. Facts are worded from what is left of a message.
- With it, what LightMem cuts in the call that ends a session or history is lost where that call also fills its first buffer (its second
  assignment of the segments replaces the first).
- Sources are sessions. With "session" they are certain: a buffer holds one. With "history" a buffer spans sessions, and an entry is from
  the session of the message that the model names, by the model's word for it: a wrong or missing number names a wrong session.
- A number out of range is put right for the topic alone: such an entry has no time, with "history" no session, and the update skips it
  (with a model of 135M parameters most entries were of this kind).
- Messages are numbered by pairs: a turn without its counterpart is given an empty one. Sessions without a time get 1970-01-01.
- The update (`finish`) takes each entry's 10 nearest older ones of 20 neighbours; a pair below the threshold is never shown to the model.
  Both are told: `looked_at` of an event of op `none`, `gated` true where the pair passed.
- Its `online` update does nothing. The update call sees no dates. An update changes a text and leaves its vector.
- Failures in its threads are swallowed; what it logs as warnings and errors becomes events of op `none`.
"""

import argparse
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

from palimpsest_memory import BadInput, dimensions_of, serve

# As in the authors' method: neighbours of an entry, and those kept as candidates.
NEIGHBOURS, KEPT = 20, 10


class Quarters:
    """A count of tokens where tiktoken's table is not at hand."""

    def encode(self, text, **_):
        return list(text.encode("utf-8")[::4])


def stand_in():
    """Names that LightMem imports and does not use with the settings above; and tiktoken without its table."""
    for name, classes in (
        ("transformers", ["PreTrainedTokenizerBase", "AutoTokenizer", "AutoModel", "AutoModelForCausalLM"]),
        ("transformers.tokenization_utils_fast", ["PreTrainedTokenizerFast"]),
        ("transformers.tokenization_utils", ["PreTrainedTokenizer"]),
    ):
        if "transformers" in sys.modules or importlib.util.find_spec("transformers") is None:
            module = sys.modules.setdefault(name, types.ModuleType(name))
            for each in classes:
                vars(module).setdefault(each, type(each, (), {}))
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        import tiktoken

        tiktoken.get_encoding = tiktoken.encoding_for_model = lambda *_, **__: Quarters()


class LightMem:
    """A store of LightMem's, in the scope's folder."""

    name, version = "lightmem", "source"
    packages = ("openai", "qdrant-client", "tiktoken", "torch", "transformers", "llmlingua")
    options = {"threshold": 0.9, "flush": "session", "messages": "user_only", "compressor": None}
    provenance, looks, scopes = "derived", True, 4
    loggers = ("LightMemory",)

    @classmethod
    def prepare(cls, setup):
        setup.need_llm()
        if setup.config["flush"] not in ("history", "session"):
            raise BadInput(f"flush is {setup.config['flush']!r}; it is 'history' or 'session'")
        if not (Path(cls.source) / "src" / "lightmem").is_dir():
            raise BadInput(f"{cls.source} has no src/lightmem; --source takes a copy of github.com/zjunlp/LightMem")
        cls.files = tuple(Path(cls.source) / "src" / "lightmem" / each for each in ("configs", "factory", "memory"))
        # With it LightMem would ask OpenRouter.
        os.environ.pop("OPENROUTER_API_KEY", None)
        cls.dimensions = dimensions_of(setup.need_embedder())
        # It may write files where it stands.
        os.chdir(setup.folder)
        stand_in()
        sys.path.insert(0, str(Path(cls.source) / "src"))

    def __init__(self, setup):
        from lightmem.memory.lightmem import LightMemory

        llm, embedder, self.config = setup.llm, setup.embedder, setup.config
        asked = {"model": llm.model, "api_key": llm.key or "none", "openai_base_url": llm.base_url}
        embedded = {"model": embedder.model, "api_key": embedder.key or "none", "openai_base_url": embedder.base_url}
        stored = {"collection_name": "memories", "embedding_model_dims": self.dimensions, "path": str(setup.folder / "qdrant"), "on_disk": True}
        self.system = LightMemory.from_config(
            {
                **self.compressing(self.config["compressor"]),
                "messages_use": self.config["messages"],
                "metadata_generate": True,
                "text_summary": True,
                "memory_manager": {"model_name": "openai", "configs": asked},
                "index_strategy": "embedding",
                "text_embedder": {"model_name": "openai", "configs": {**embedded, "embedding_dims": self.dimensions}},
                "retrieve_strategy": "embedding",
                "embedding_retriever": {"model_name": "qdrant", "configs": stored},
                "update": "offline",
            }
        )
        if self.config["compressor"]:
            # Its segmenter reads attentions, which the faster kernels do not return.
            self.system.compressor.inner_compressor.model.set_attn_implementation("eager")
        self.last, self.held, self.extractions = None, {}, 0

    @staticmethod
    def compressing(folder):
        """Settings of the compressor and the segmenter, as the authors' scripts have them; off without a folder."""
        if not folder:
            return {"pre_compress": False, "topic_segment": False}
        model = {"model_name": folder, "device_map": "cpu", "use_llmlingua2": True}
        compressor = {"model_name": "llmlingua-2", "configs": {"llmlingua_config": model}}
        shared = {"topic_segment": True, "precomp_topic_shared": True, "topic_segmenter": {"model_name": "llmlingua-2"}}
        return {"pre_compress": True, "pre_compressor": compressor, "extract_threshold": 0.1, **shared}

    def sensory(self):
        """The segmenter's buffer, where there is one."""
        return getattr(self.system, "senmem_buffer_manager", None)

    def pairs(self, session):
        """Messages by twos, a user's and an assistant's; what is missing is empty."""
        pairs = []
        for piece in session.split("pair"):
            said = {"user": "", "assistant": ""}
            for turn in piece.turns:
                said["assistant" if turn.role == "assistant" else "user"] += turn.content
            time = session.time or "1970-01-01T00:00:00"
            # Entries keep the speaker's id, which no prompt shows: it carries the session.
            pairs.append([{"role": role, "content": text, "time_stamp": time, "speaker_id": session.id} for role, text in said.items()])
        return pairs

    def entries(self):
        """All entries: payloads by id."""
        return {str(entry["id"]): entry["payload"] for entry in self.system.embedding_retriever.get_all(with_vectors=False)}

    def sources(self, payload):
        """Of an entry: those of the event that added it; with "history" the session that its speaker's id carries."""
        if self.config["flush"] == "session":
            return {}
        known = payload.get("speaker_id") not in (None, "", "unknown")
        return {"sources": [{"session": payload["speaker_id"]}] if known else None}

    def changes(self, **more):
        """Events by comparing the store with what it was."""
        before, self.held = self.held, self.entries()
        events = []
        for key, payload in self.held.items():
            if key not in before or before[key]["memory"] != payload["memory"]:
                op = "update" if key in before else "add"
                # An update is made from entries of other sessions, which the decision does not name.
                sources = self.sources(payload) if op == "add" else {"sources": []}
                events.append({"op": op, "memory": key, "text": payload["memory"], **sources, **more})
        if self.extractions and not events:
            # What is no JSON is dropped, and printed only.
            events.append({"op": "none", "reason": f"{self.extractions} extractions gave no entry"})
        self.extractions = 0
        return events + [{"op": "delete", "memory": key, **more} for key in before if key not in self.held]

    def extract(self, pair, force):
        told = self.system.add_memory(messages=[dict(message) for message in pair], force_segment=force, force_extract=force)
        self.extractions += told["api_call_nums"]

    def add(self, session):
        pairs = self.pairs(session)
        # The last pair is extracted by force: with "history" that of the history, which is known at the end.
        for pair in ([self.last] if self.last else []) + pairs[:-1]:
            self.extract(pair, False)
        self.last = pairs[-1] if pairs else None
        if self.config["flush"] == "session" and self.last:
            self.extract(self.last, True)
            self.last = None
        return self.changes()

    def finish(self):
        if self.last:
            self.extract(self.last, True)
            self.last = None
        events = self.changes()
        self.system.construct_update_queue_all_entries(top_k=NEIGHBOURS, keep_top_n=KEPT)
        for key, payload in self.entries().items():
            queue = payload.get("update_queue") or []
            looked = [{"memory": str(each["id"]), "gated": each["score"] >= self.config["threshold"]} for each in queue]
            events.append({"op": "none", "memory": key, "looked_at": looked, "reason": "candidates of the update"})
        self.system.offline_update_all_entries(score_threshold=self.config["threshold"])
        return events + self.changes(reason="offline update")

    def row(self, key, payload):
        """An entry as the protocol has it."""
        return {"id": key, "text": payload["memory"], "time": payload["time_stamp"], **self.sources(payload)}

    def search(self, query, k):
        vector = self.system.text_embedder.embed(query)
        found = self.system.embedding_retriever.search(query_vector=vector, limit=k, return_full=True)
        memories = [{**self.row(str(hit["id"]), hit["payload"]), "score": hit.get("score")} for hit in found]
        shown = [f"{hit['payload']['time_stamp']} {hit['payload']['weekday']} {hit['payload']['memory']}\n" for hit in found]
        return {"memories": memories, "parts": [{"text": text, "memory": memory["id"]} for text, memory in zip(shown, memories)]}

    def dump(self):
        return [self.row(key, payload) for key, payload in self.entries().items()]

    def save(self, folder):
        buffer = self.system.shortmem_buffer_manager
        stored = self.system.embedding_retriever.get_all()
        state = {"entries": stored, "buffer": buffer.buffer, "tokens": buffer.token_count, "last": self.last, "held": self.held}
        if self.sensory():
            state["sensory"] = [self.sensory().buffer, self.sensory().big_buffer, self.sensory().token_count]
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder):
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for entry in state["entries"]:
            self.system.embedding_retriever.insert([entry["vector"]], [entry["payload"]], [entry["id"]])
        buffer = self.system.shortmem_buffer_manager
        buffer.buffer, buffer.token_count = state["buffer"], state["tokens"]
        self.last, self.held = state["last"], state["held"]
        if self.sensory():
            self.sensory().buffer, self.sensory().big_buffer, self.sensory().token_count = state["sensory"]

    def close(self):
        self.system.embedding_retriever.client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="a copy of github.com/zjunlp/LightMem")
    LightMem.source = os.path.abspath(parser.parse_args().source)
    serve(LightMem)
