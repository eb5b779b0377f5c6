#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers/openai.json: the ids of tests/fixtures/tokenizers/texts.json by OpenAI's own package.

    pip install tiktoken==0.14.0
    python3 tests/reference/openai_encodings.py TABLES > tests/fixtures/tokenizers/openai.json

TABLES is a folder with o200k_base.tiktoken and cl100k_base.tiktoken, such as the folder `assets` of the crate tiktoken-rs in cargo's
registry. tiktoken checks them against the SHA-256 that it pins, so they need not be trusted; no network is used.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
NAMES = ["o200k_base", "cl100k_base"]

tables = Path(sys.argv[1])
with tempfile.TemporaryDirectory() as cache:
    for name in NAMES:
        # tiktoken names a cached table by the SHA-1 of its address.
        shutil.copy(tables / f"{name}.tiktoken", Path(cache) / hashlib.sha1(ADDRESS.format(name).encode()).hexdigest())
    os.environ["TIKTOKEN_CACHE_DIR"] = cache
    import tiktoken

    texts = json.loads((Path(__file__).parent.parent / "fixtures/tokenizers/texts.json").read_text())
    ids = {name: [tiktoken.get_encoding(name).encode_ordinary(text) for text in texts] for name in NAMES}
    print(json.dumps({"tiktoken": tiktoken.__version__, **ids}, separators=(",", ":")))
