"""The notebooks are kept as they were executed, and run from a fresh kernel.

    PALIMPSEST_NOTEBOOKS=write python -m pytest tests/test_notebooks.py    # executes them and puts the outputs into the repository
"""

from __future__ import annotations

import json
import os
import re

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "python" / "notebooks").glob("*.ipynb"))
WRITES = os.environ.get("PALIMPSEST_NOTEBOOKS") == "write"
MOST_BYTES = 500_000
# Folders of the machine that executed a notebook.
MACHINE = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|Users|work|var|opt|usr)/|site-packages")


def code(book):
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def kinds(cell):
    """What a cell's outputs are, without their numbers."""
    outputs = cell["outputs"]
    return [(output["output_type"], sorted(output.get("data", {})), output.get("name")) for output in outputs]


@pytest.mark.skipif(WRITES, reason="the notebooks are being executed")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_was_executed(path):
    text = path.read_text(encoding="utf-8")
    cells = code(json.loads(text))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run from first to last"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs), "it has a figure"
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert (found := MACHINE.search(text)) is None, text[max(0, found.start() - 80) : found.end() + 80]
    assert len(text.encode()) <= MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, smol, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    kept = nbformat.read(path, 4)
    book = nbformat.read(path, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client(book, timeout=600, kernel_name="python3", record_timing=False, resources=resources).execute()
    if WRITES:
        book.metadata = kept.metadata
        for cell in code(book):
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(book, path)
    else:
        assert [kinds(cell) for cell in code(book)] == [kinds(cell) for cell in code(kept)]
