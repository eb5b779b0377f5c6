"""What the tests share: tiny models of the repository's fixtures, the command of this installation, SmolLM2 where it is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import palimpsest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
TEXT = "the cat sat on the mat, and then the dog sat on the cat. where is the cat?"
SPANS = {"old": "the cat sat on the mat", "new": "the dog sat on the cat", "query": "where is the cat?"}


def command(*args: object) -> subprocess.CompletedProcess[str]:
    """Runs the command of this installation."""
    script = Path(sys.executable).with_name("palimpsest")
    return subprocess.run([script, *map(str, args)], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="session")
def tiny() -> palimpsest.Model:
    return palimpsest.Model.load(FIXTURES / "llama-tiny")


@pytest.fixture()
def prompt(tiny: palimpsest.Model) -> palimpsest.Prompt:
    return tiny.prompt(TEXT, spans=SPANS)


@pytest.fixture(scope="session")
def smol() -> palimpsest.Model:
    """SmolLM2-135M, as the Rust tests of released models have it: where it is cached, or where all tests are asked for."""
    home = Path(os.environ.get("PALIMPSEST_HOME") or Path.home() / ".cache" / "palimpsest")
    if not (home / "models" / "smollm2-135m").exists() and os.environ.get("PALIMPSEST_TESTS") != "all":
        pytest.skip("smollm2-135m is not cached; PALIMPSEST_TESTS=all fetches it")
    return palimpsest.Model.load("smollm2-135m")
