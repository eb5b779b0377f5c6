#!/usr/bin/env python3
"""A-Mem of its authors' evaluation (the robust layer): a note a message, with keywords, context and tags by a model, which later notes change.

  python3 -m venv amem && amem/bin/pip install openai==3.54.0 numpy==2.4.6
  --memory amem='amem/bin/python adapters/amem.py --source A-mem'

Package: none by the authors. DIR of `--source` is a copy of github.com/WujiangXu/A-mem (MIT), tried at commit 0c8039f of 2026-03-05, Python
3.11. (`a-mem` on PyPI is another author's MCP server; agiresearch/A-mem is the library, whose `add_note` never asks for keywords.) Of the
packages that its files import, those that it does not use here are stood in for; the embedder is ours, in the place of SentenceTransformer.
Settings
  keywords   true (default): a query is rewritten to keywords by the model, as in the authors' evaluation (the prompt is ours)

What is known to differ, and to matter:
- A note is one call, and from the second note on one to three more (evolution, with 5 neighbours): 2 to 4 calls a message.
- A reply that does not parse becomes the words of the message; only some of these are logged (then they are events of op `none`).
- A note keeps its message word for word: that is a memory's text, and its source is exact. Evolution changes context, tags and links of notes
  and no text; it is told as an `update` with a reason. The authors' own rendering, with context, keywords and tags, is in `parts`.
- Neighbours of a new note are `looked_at`; there is no threshold.
- The embedder sees content, context, keywords and tags as they were when the note was written.
- Without an embedder A-Mem falls back to the overlap of words, silently; this adapter asks for one.
- A note without a time gets today's.
- Temperature is A-Mem's 0.7, with no seed.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

from palimpsest_memory import BadInput, embed, serve, text_id

NEEDED = ("memory_layer_robust.py", "memory_layer.py", "llm_text_parsers.py")
# Imported by memory_layer.py, and used by parts of it that do not run here.
UNUSED = {
    "rank_bm25": ["BM25Okapi"], "transformers": ["AutoModel", "AutoTokenizer"], "nltk": [], "nltk.tokenize": ["word_tokenize"],
    "litellm": ["completion"], "requests": [], "sklearn": [], "sklearn.metrics": [], "sklearn.metrics.pairwise": ["cosine_similarity"],
}


def cosine_similarity(rows, others):
    """scikit-learn's."""
    import numpy as np

    normed = [np.asarray(each) / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in (rows, others)]
    return normed[0] @ normed[1].T


def stand_in(embedder):
    """Modules in the place of packages: the embedder's always, the others' where they are not installed."""
    import numpy as np

    class SentenceTransformer:
        def __init__(self, *_):
            pass

        def encode(self, texts):
            return np.array(embed(embedder, list(texts)))

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer
    sys.modules["sentence_transformers"] = module
    for name, wanted in UNUSED.items():
        if name.split(".")[0] in sys.modules or importlib.util.find_spec(name.split(".")[0]) is None:
            # With a spec, without which transformers, where it is installed, fails at looking for such a package.
            spec = importlib.machinery.ModuleSpec(name, None)
            module = sys.modules.setdefault(name, importlib.util.module_from_spec(spec))
            for each in wanted:
                vars(module).setdefault(each, cosine_similarity if each == "cosine_similarity" else None)


class AMem:
    """An agentic memory system, in memory."""

    name, version = "a-mem", "source"
    unit, provenance = "turn", "exact"
    options = {"keywords": True}
    packages = ("openai", "numpy")
    looks, scopes = True, 8
    loggers = ("amem_robust",)

    @classmethod
    def prepare(cls, setup):
        llm, source = setup.need_llm(), Path(cls.files[0])
        missing = [name for name in NEEDED if not (source / name).exists()]
        if missing:
            raise BadInput(f"{source} has no {missing[0]}; --source takes a copy of github.com/WujiangXu/A-mem")
        cls.files = tuple(source / name for name in NEEDED)
        os.environ.update(OPENAI_API_KEY=llm.key or "none", OPENAI_BASE_URL=llm.base_url)
        stand_in(setup.need_embedder())
        sys.path.insert(0, str(source))

    def __init__(self, setup):
        from memory_layer_robust import RobustAgenticMemorySystem

        self.keywords, self.neighbours, self.about = setup.config["keywords"], [], {}
        self.system = RobustAgenticMemorySystem(llm_backend="openai", llm_model=setup.llm.model, api_key=setup.llm.key or "none")
        find = self.system.find_related_memories

        def watched(*arguments, **named):
            text, places = find(*arguments, **named)
            notes = list(self.system.memories)
            self.neighbours = [notes[place] for place in places]
            return text, places

        self.system.find_related_memories = watched

    def state(self):
        """What evolution changes of notes."""
        return {key: (note.context, list(note.tags), list(map(str, note.links))) for key, note in self.system.memories.items()}

    def add(self, session):
        turn, before = session.turns[0], self.state()
        self.neighbours = []
        # The wording is that of the authors' evaluation.
        key = self.system.add_note(f"Speaker {turn.role}says : {turn.content}", time=session.time)
        looked = [{"memory": each} for each in self.neighbours]
        self.about[key] = {"sources": [session.source()], "time": session.time}
        events = [{"op": "add", "memory": key, "text": self.text(key), "sources": self.about[key]["sources"], "looked_at": looked}]
        after = self.state()
        for each, was in before.items():
            if after[each] != was:
                # No text of a neighbour is changed, so that it has no new source.
                events.append({"op": "update", "memory": each, "text": self.text(each), "sources": [], "reason": "evolution: context or tags"})
        return events

    def text(self, key):
        """The message, as it was said."""
        return self.system.memories[key].content.replace("Speaker ", "", 1).replace("says : ", ": ", 1)

    def row(self, key):
        return {"id": key, "text": self.text(key), **self.about[key]}

    def search(self, query, k):
        from llm_text_parsers import parse_keywords_response

        if self.keywords and self.system.memories:
            prompt = f"Name the keywords by which the answer to this question can be searched, separated by commas.\n\nQuestion: {query}\n\nKeywords:"
            query = parse_keywords_response(self.system.llm_controller.llm.get_completion(prompt)) or query
        notes = list(self.system.memories)
        found = [notes[place] for place in self.system.retriever.search(query, k)]
        return {"memories": [self.row(key) for key in found], "parts": [{"text": self.rendered(key), "memory": key} for key in found]}

    def rendered(self, key):
        """A note as A-Mem shows it to a model."""
        note = self.system.memories[key]
        shown = f"memory content: {note.content}memory context: {note.context}memory keywords: {note.keywords}memory tags: {note.tags}"
        return f"talk start time:{note.timestamp}{shown}\n"

    def dump(self):
        return [self.row(key) for key in self.system.memories]

    def readback(self, sessions):
        return [row for row in self.dump() if row["sources"][0]["session"] in sessions]

    def fingerprint(self):
        return text_id(json.dumps([self.dump(), self.state()], sort_keys=True))

    def save(self, folder):
        notes = [vars(note) for note in self.system.memories.values()]
        state = {"notes": notes, "about": self.about, "evolutions": self.system.evo_cnt}
        (folder / "notes.json").write_text(json.dumps(state), encoding="utf-8")
        self.system.retriever.save(str(folder / "corpus.pickle"), str(folder / "vectors.npy"))

    def load(self, folder):
        from memory_layer_robust import RobustMemoryNote

        state = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        for fields in state["notes"]:
            note = RobustMemoryNote(fields["content"])
            vars(note).update(fields)
            self.system.memories[note.id] = note
        self.about, self.system.evo_cnt = state["about"], state["evolutions"]
        self.system.retriever.load(str(folder / "corpus.pickle"), str(folder / "vectors.npy"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="a copy of github.com/WujiangXu/A-mem")
    AMem.files = (parser.parse_args().source,)
    serve(AMem)
