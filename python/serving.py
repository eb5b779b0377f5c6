"""Fixtures for the tests of both packages: a real `palimpsest serve` on a free port.

`PALIMPSEST` names the command (default: target/release/palimpsest of this clone). With `PALIMPSEST_TESTS=all` the tests run with
SmolLM2-135M, too, which is fetched once.
"""

import contextlib
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = os.environ.get("PALIMPSEST", str(ROOT / "target/release/palimpsest"))
MODELS = {"tiny": str(ROOT / "tests/fixtures/llama-tiny")}
if os.environ.get("PALIMPSEST_TESTS") == "all":
    MODELS["smollm2-135m"] = "smollm2-135m"


@contextlib.contextmanager
def served(model):
    """The address of a server of the model, and the name that it goes by."""
    args = [COMMAND, "serve", model, "--port", "0"]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        for line in process.stdout:
            said += line
            found = re.search(r"(\S+) is served at (http\S+?/v1)", line)
            if found:
                yield found[2], found[1]
                return
        raise RuntimeError(f"{' '.join(args)} ended: {said}")
    finally:
        process.terminate()
        process.wait()
