#!/usr/bin/env python3
"""mem0 2.x: one extraction call an `add`; memories are only added, never updated or deleted.

  python3 -m venv mem0-2 && mem0-2/bin/pip install mem0ai==2.2.1
  palimpsest serve MODEL --context 16384
  --memory mem0-2='mem0-2/bin/python adapters/mem0_v2.py'

Package: mem0ai 2.2.1 (Apache-2.0), Python 3.11; Qdrant and SQLite embedded. Runs offline on one machine. The settings and what is said in
mem0_v1.py hold here too, but for what follows.
Settings
  threshold   0.0 (default): `search` drops memories below this score; mem0's own default is 0.1

What is known to differ from 1.x, and to matter:
- Its system prompt has 33,653 characters: the server's usual context of 8,192 tokens cannot hold it. Serve 16,384 or more. (8,710 tokens
  of SmolLM2's for a session of four short turns.)
- A small model copies the prompt's examples into the store (SmolLM2-135M: 25 memories from 48 sessions, in 862 s). An answer may have 2,000
  tokens; the client gives up after 600 s and tries again, so that on a slow machine an `add` outlives the protocol's 600 s for a session.
  `max_tokens` bounds that.
- Rows of the papers need 1.x: here nothing is updated or deleted, so that an outdated memory stays as it was.
- The extraction sees the last 10 messages and the 10 nearest memories; the latter are `looked_at`, although it can change none.
- BM25 and entities work only with extras (`mem0ai[nlp]`, fastembed, a spaCy model) and are silently off without: the versions in `packages`
  say which are there.
- `add(timestamp=...)` works only hosted. `get_all` returns 20 memories unless told.
"""

from mem0_v1 import ALL, USER, Mem0
from palimpsest_memory import serve


class Mem0V2(Mem0):
    """A store of mem0's, in the scope's folder."""

    major = "2"
    packages = ("mem0ai", "qdrant-client", "openai", "spacy", "fastembed")
    options = {**Mem0.options, "threshold": 0.0}

    def __init__(self, setup):
        super().__init__(setup)
        self.threshold = setup.config["threshold"]

    def search(self, query, k):
        return self.ranked(self.memory.search(query, filters={"user_id": USER}, top_k=k, threshold=self.threshold))

    def dump(self):
        return [self.row(memory) for memory in self.memory.get_all(filters={"user_id": USER}, top_k=ALL)["results"]]


if __name__ == "__main__":
    serve(Mem0V2)
