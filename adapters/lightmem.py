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

import servers
from palimpsest_memory import BadInput, changes, dimensions_of, serve

# As in the authors' method: neighbours of an entry, and those kept as candidates.
NEIGHBOURS, KEPT = 20, 10
# Modules, and their classes, that LightMem imports and does not use without a compressor.
UNUSED = ("transformers", "transformers.tokenization_utils_fast", "transformers.tokenization_utils")
CLASSES = ("AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "PreTrainedTokenizer", "PreTrainedTokenizerBase", "PreTrainedTokenizerFast")
# Its buffers, of messages that are not yet cut into topics and of those that are; the first is there with a compressor alone.
BUFFERS = {"senmem_buffer_manager": ("buffer", "big_buffer", "token_count"), "shortmem_buffer_manager": ("buffer", "token_count")}


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
        package = cls.source / "src" / "lightmem"
        if not package.is_dir():
            raise BadInput(f"{cls.source} has no src/lightmem; --source takes a copy of github.com/zjunlp/LightMem")
        cls.files = [*(package / each for each in ("configs", "factory", "memory")), servers.__file__]
        # With it LightMem would ask OpenRouter.
        os.environ.pop("OPENROUTER_API_KEY", None)
        cls.dimensions = dimensions_of(setup.need_embedder())
        # It may write files where it stands.
        os.chdir(setup.folder)
        servers.count_quarters()
        if importlib.util.find_spec("transformers") is None:
            sys.modules.update({name: types.SimpleNamespace(**{each: type(each, (), {}) for each in CLASSES}) for name in UNUSED})
        sys.path.insert(0, str(package.parent))

    def __init__(self, setup):
        from lightmem.memory.lightmem import LightMemory

        self.config, self.waiting = setup.config, []
        address = lambda at: {"model": at.model, "api_key": at.key or "none", "openai_base_url": at.base_url}
        stored = {"collection_name": "memories", "embedding_model_dims": self.dimensions, "path": str(setup.folder / "qdrant"), "on_disk": True}
        settings = {
            "pre_compress": False, "topic_segment": False, "metadata_generate": True, "text_summary": True,
            "messages_use": self.config["messages"], "update": "offline", "index_strategy": "embedding", "retrieve_strategy": "embedding",
            "memory_manager": {"model_name": "openai", "configs": address(setup.llm)},
            "text_embedder": {"model_name": "openai", "configs": {**address(setup.embedder), "embedding_dims": self.dimensions}},
            "embedding_retriever": {"model_name": "qdrant", "configs": stored},
        }
        if self.config["compressor"]:
            # As in the authors' scripts.
            model = {"model_name": self.config["compressor"], "device_map": "cpu", "use_llmlingua2": True}
            settings["pre_compressor"] = {"model_name": "llmlingua-2", "configs": {"llmlingua_config": model}}
            settings["topic_segmenter"] = {"model_name": "llmlingua-2"}
            settings.update(pre_compress=True, extract_threshold=0.1, topic_segment=True, precomp_topic_shared=True)
        self.system = LightMemory.from_config(settings)
        if self.config["compressor"]:
            # Its segmenter reads attentions, which the faster kernels do not return.
            self.system.compressor.inner_compressor.model.set_attn_implementation("eager")

    def pairs(self, session):
        """Messages by twos. Entries keep the speaker's id, which no prompt shows: it carries the session."""
        about = {"time_stamp": session.time or "1970-01-01T00:00:00", "speaker_id": session.id}
        return [[{"role": role, "content": text, **about} for role, text in said.items()] for said in session.exchanges()]

    def entries(self):
        """All entries: payloads by id."""
        return {str(entry["id"]): entry["payload"] for entry in self.system.embedding_retriever.get_all(with_vectors=False)}

    def row(self, key, payload):
        """An entry as the protocol has it. Its sources are those of the event that added it, unless a buffer spans sessions."""
        row = {"id": key, "text": payload["memory"], "time": payload["time_stamp"]}
        if self.config["flush"] == "history":
            known = payload.get("speaker_id") not in (None, "", "unknown")
            row["sources"] = [{"session": payload["speaker_id"]}] if known else None
        return row

    def dump(self):
        return [self.row(key, payload) for key, payload in self.entries().items()]

    def write(self, pairs, ends):
        """Adds pairs; the last one of a session or a history is extracted by force. Returns what changed."""
        before, extractions = self.dump(), 0
        for pair in pairs:
            force = ends and pair is pairs[-1]
            told = self.system.add_memory(messages=pair, force_segment=force, force_extract=force)
            extractions += told["api_call_nums"]
        # What is no JSON is dropped, and printed only.
        nothing = [{"op": "none", "reason": f"{extractions} extractions gave no entry"}] if extractions else []
        return changes(before, self.dump()) or nothing

    def add(self, session):
        pairs = self.waiting + self.pairs(session)
        if self.config["flush"] == "session":
            return self.write(pairs, True)
        # It is known at the end which pair is the last of a history.
        events, self.waiting = self.write(pairs[:-1], False), pairs[-1:]
        return events

    def finish(self):
        events, self.waiting = self.write(self.waiting, True), []
        self.system.construct_update_queue_all_entries(top_k=NEIGHBOURS, keep_top_n=KEPT)
        for key, payload in self.entries().items():
            queue = payload.get("update_queue") or []
            looked = [{"memory": str(each["id"]), "gated": each["score"] >= self.config["threshold"]} for each in queue]
            events.append({"op": "none", "memory": key, "looked_at": looked, "reason": "candidates of the update"})
        before = self.dump()
        self.system.offline_update_all_entries(score_threshold=self.config["threshold"])
        for event in changes(before, self.dump()):
            # An update is made from entries of other sessions, which the decision does not name.
            sources = {"sources": []} if event["op"] == "update" else {}
            events.append({**event, **sources, "reason": "offline update"})
        return events

    def search(self, query, k):
        vector = self.system.text_embedder.embed(query)
        found = self.system.embedding_retriever.search(query_vector=vector, limit=k, return_full=True)
        memories = [{**self.row(str(hit["id"]), hit["payload"]), "score": hit.get("score")} for hit in found]
        shown = [f"{hit['payload']['time_stamp']} {hit['payload']['weekday']} {hit['payload']['memory']}\n" for hit in found]
        return {"memories": memories, "parts": [{"text": text, "memory": memory["id"]} for text, memory in zip(shown, memories)]}

    def save(self, folder):
        state = {"entries": self.system.embedding_retriever.get_all(), "waiting": self.waiting, "buffers": {}}
        for name, fields in BUFFERS.items():
            if hasattr(self.system, name):
                state["buffers"][name] = {field: getattr(getattr(self.system, name), field) for field in fields}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder):
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for entry in state["entries"]:
            self.system.embedding_retriever.insert([entry["vector"]], [entry["payload"]], [entry["id"]])
        for name, fields in state["buffers"].items():
            vars(getattr(self.system, name)).update(fields)
        self.waiting = state["waiting"]

    def close(self):
        self.system.embedding_retriever.client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, required=True)
    LightMem.source = parser.parse_args().source.resolve()
    serve(LightMem)
