"""The examples of the docstrings run, the stubs are those of the module, and the types hold."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import palimpsest

MODULES = [importlib.import_module(f"palimpsest{name}") for name in ("", "._model", "._trace", "._results", "._run")]
TESTS = [test for module in MODULES for test in doctest.DocTestFinder().find(module) if test.examples]


@pytest.fixture(scope="module")
def names(smol, tmp_path_factory):
    pytest.importorskip("matplotlib").use("agg")
    folder = tmp_path_factory.mktemp("docs")
    old, new, query = "The market is on Thursday.", "From May on it is on Sunday.", "When is it in June?"
    prompt = smol.prompt([{"role": "user", "content": f"{old} {new} {query}"}], spans={"old": old, "new": new, "query": query})
    run = palimpsest.run("sample", "smollm2-135m", folder / "run", limit=1, only="SR", context=4096, max_new_tokens=16)
    return {"model": smol, "prompt": prompt, "folder": folder, "run": run, "palimpsest": palimpsest, "Model": palimpsest.Model, "Run": palimpsest.Run}


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_examples_run(test, names):
    test.globs.update(names)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=flags).run(test, clear_globs=False)
    assert result.failed == 0


def test_every_public_name_has_a_docstring_with_an_example():
    for name in palimpsest.__all__:
        if name in ("Error", "__version__"):
            continue
        entry = getattr(palimpsest, name)
        text = entry.__doc__ + "".join(str(getattr(entry, m).__doc__) for m in vars(entry) if not m.startswith("_"))
        assert ">>> " in text, name
    assert len(palimpsest.__all__) <= 12


def mypy(module: str, *args: str) -> None:
    pytest.importorskip("mypy")
    ended = subprocess.run([sys.executable, "-m", module, *args], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_the_stubs_are_those_of_the_module():
    mypy("mypy.stubtest", "palimpsest._native", "--ignore-missing-stub")


@pytest.mark.slow
def test_types_hold(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\nimport palimpsest\n"
        "model = palimpsest.Model.load('x')\n"
        "prompt = model.prompt('text', spans={'a': 'text', 'b': (0, 2)})\n"
        "trace = model.trace(prompt, rows=['a'], layers=[1])\n"
        "mass = np.asarray(trace.to_numpy())\n"
        "text: str = model.generate(prompt, max_tokens=3, temperature=0.5).text\n"
        "drop = model.causes(prompt, answer=text, how='remove').columns['drop']\n"
        "run: palimpsest.Run = palimpsest.run('sample', model, 'out', limit=1)\n"
    )
    assert (Path(palimpsest.__file__).parent / "py.typed").exists()
    mypy("mypy", "--strict", "--no-incremental", str(program))
    mypy("mypy", "--strict", "--no-incremental", "--ignore-missing-imports", "-p", "palimpsest")
