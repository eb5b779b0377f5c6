"""Exact attention between named spans of long prompts, and the effect of each span on an answer.

The package is the command `palimpsest` as a library: the same engine, numbers and words of errors. A first map:

>>> import palimpsest
>>> model = palimpsest.Model.load("smollm2-135m")
>>> old, new = "The market is on Thursday.", "From May on it is on Sunday."
>>> prompt = model.prompt(f"{old} {new} When is it in June?", spans={"old": old, "new": new, "query": "When is it in June?"})
>>> trace = model.trace(prompt)
>>> trace.to_numpy().shape  # layers, heads, rows, spans
(30, 9, 2, 3)
"""

from __future__ import annotations

from ._model import Model
from ._prompt import Prompt
from ._native import Error, __version__
from ._results import Answer, Causes, Heads, Table
from ._run import Run, run
from ._trace import Trace

__all__ = ["Answer", "Causes", "Error", "Heads", "Model", "Prompt", "Run", "Table", "Trace", "__version__", "run"]
