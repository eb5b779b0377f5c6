"""The notebooks run from a fresh kernel."""

from __future__ import annotations

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "python" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, smol, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    book = nbformat.read(path, 4)
    assert not any(cell.get("outputs") for cell in book.cells), "notebooks are kept without outputs"
    client(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.write(book, tmp_path / path.name)
