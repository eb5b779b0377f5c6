#!/usr/bin/env python3
"""Plain retrieval: stores what was said, ranks it by BM25 or by cosine, changes nothing. To be copied from, and to be compared with.

  --memory plain='python3 adapters/plain.py'

Package: none; Python 3.9 or later. Version: below.
Settings (hello's `config`)
  unit   "turn" (default) or "session": what a memory is
  rank   "bm25", "cosine", or "auto" (default): cosine where an embedder's address is given, else BM25
Sources are exact: a memory is a turn, or a session with all of its turns.

BM25 is Okapi's with k1 = 1.2, b = 0.75, idf = ln(1 + (N - n + 0.5) / (n + 0.5)); words are those of palimpsest's own `rag`: runs of
letters, digits and their marks, in NFKC and with case folded; of scripts without spaces every two neighbouring characters. Who speaks is part of a memory's text and no word of its index. A memory without a word of the query is
not found, so that a search may find fewer than k. Memories of equal score stay in the order of the history. Cosine embeds a memory's text whole: an embedder that cuts long inputs sees only the beginning of a session.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from itertools import groupby

from palimpsest_memory import BadInput, embed, serve

K1, B = 1.2, 0.75
# Scripts that are written without spaces between words: Thai, Lao, Myanmar, Hangul, Khmer, Tai Le, New Tai Lue, Tai Tham, Balinese; Han,
# Kana, Bopomofo, Yi; Hangul, Javanese, Myanmar, Tai Viet; Hangul; Han; Ahom; Tangut, Khitan, Kana, Nushu; Han.
SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\u2e80-\ua4cf\ua960-\ua9ff\uaa60-\uaadf"
    "\uac00-\ud7ff\uf900-\ufaff\U00011700-\U0001174f\U00016fe0-\U0001b2ff\U00020000-\U0003ffff]"
)
# Choices of a letter's form, which make no other letter.
SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")


def kind(c):
    """The part of a word that a character can be: "letter", "spaceless", "mark", "ignored", or None."""
    category = unicodedata.category(c)
    if category in ("Cf", "Me") and c != "\u200b" or SELECTORS.match(c):
        return "ignored"
    if category[0] == "M":
        return "mark"
    if category[0] == "L" or category == "Nl":
        return "spaceless" if SPACELESS.match(c) else "letter"
    return "letter" if category[0] == "N" else None


def words(text):
    """The words of a text, by the same rule as palimpsest's own (docs/memory.md); tests/fixtures/words.json holds both to it."""
    found, run = [], ""
    for c in text + " ":
        of = kind(c)
        if of in ("letter", "spaceless") or of == "mark" and run:
            run += c
        elif of != "ignored":
            found += words_of_run(run) if run else []
            run = ""
    return found


def words_of_run(run):
    """Several where scripts meet, or where a compatibility form stands for several."""
    if run.isascii():
        return [run.lower()]
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", run).casefold())
    characters = []
    for c in folded:
        of = kind(c)
        if of == "mark" and characters:
            characters[-1][1] += c
        else:
            characters.append([of, c])
    found = []
    for of, group in groupby(characters, key=lambda one: one[0]):
        texts = [text for _, text in group]
        if of == "letter":
            found.append("".join(texts))
        elif of == "spaceless":
            found += [a + b for a, b in zip(texts, texts[1:])] or texts
    return found


class Plain:
    """Turns or sessions, as they were said."""

    name, version = "plain", "2"
    provenance = "exact"
    options = {"unit": "turn", "rank": "auto"}
    scopes = 16

    @classmethod
    def prepare(cls, setup):
        for setting, allowed in (("unit", ("turn", "session")), ("rank", ("auto", "bm25", "cosine"))):
            if setup.config[setting] not in allowed:
                raise BadInput(f"{setting} is {setup.config[setting]!r}; it is one of {', '.join(allowed)}")
        cls.unit = setup.config["unit"]
        if setup.config["rank"] == "cosine":
            setup.need_embedder()

    def __init__(self, setup):
        self.embedder = None if setup.config["rank"] == "bm25" else setup.embedder
        # Of each memory: what is told of it, the words of its index, and its vector where there is an embedder.
        self.rows = []

    def add(self, session):
        memory = {
            "id": session.id if self.unit == "session" else f"{session.id}.{session.turns[0].id}",
            "text": "\n".join(f"{turn.role}: {turn.content}" for turn in session.turns),
            "sources": [session.source()],
            "time": session.time,
        }
        said = " ".join(turn.content for turn in session.turns)
        vector = embed(self.embedder, [memory["text"]])[0] if self.embedder else None
        self.rows.append({"memory": memory, "words": words(said), "vector": vector})
        return [{"op": "add", "memory": memory["id"], "text": memory["text"], "sources": memory["sources"]}]

    def search(self, query, k):
        scores = self.cosine(query) if self.embedder else self.bm25(query)
        found = [at for at in range(len(scores)) if self.embedder or scores[at] > 0]
        best = sorted(found, key=lambda at: -scores[at])[:k]
        return [{**self.rows[at]["memory"], "score": scores[at]} for at in best]

    def bm25(self, query):
        """The score of each memory; 0 without a word in common."""
        counts = [Counter(row["words"]) for row in self.rows]
        mean = sum(len(row["words"]) for row in self.rows) / max(1, len(self.rows)) or 1
        scores = [0.0] * len(self.rows)
        for word in words(query):
            holding = sum(word in count for count in counts)
            idf = math.log(1 + (len(counts) - holding + 0.5) / (holding + 0.5))
            for at, count in enumerate(counts):
                if count[word]:
                    length = K1 * (1 - B + B * len(self.rows[at]["words"]) / mean)
                    scores[at] += idf * count[word] * (K1 + 1) / (count[word] + length)
        return scores

    def cosine(self, query):
        """The cosine of each memory and the query."""
        asked = embed(self.embedder, [query])[0] if self.rows else []
        norm = lambda vector: math.sqrt(sum(x * x for x in vector)) or 1
        dot = lambda vector: sum(x * y for x, y in zip(vector, asked))
        return [dot(row["vector"]) / (norm(row["vector"]) * norm(asked)) for row in self.rows]

    def readback(self, sessions):
        return [memory for memory in self.dump() if memory["sources"][0]["session"] in sessions]

    def dump(self):
        return [row["memory"] for row in self.rows]

    def save(self, folder):
        (folder / "rows.json").write_text(json.dumps(self.rows), encoding="utf-8")

    def load(self, folder):
        self.rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    serve(Plain)
