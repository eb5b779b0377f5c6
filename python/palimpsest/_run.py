"""Runs: a benchmark answered, judged and measured, in a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import _html, _native
from ._extras import progress
from ._model import Model
from ._results import Heads, Table
from ._trace import Trace

_KEYS = ("case", "probe", "condition")


class Run:
    """A run folder, made by `palimpsest.run` or by the command `palimpsest run`. `Run.open` opens one; its files are read when asked for.

    >>> run = Run.open(folder / "run")
    >>> run.answers.to_numpy("probe").tolist()
    ['SR']
    """

    def __init__(self, dir: str | os.PathLike[str]) -> None:
        self.dir = Path(dir)
        self.header: dict[str, Any] = json.loads(_native.rows(os.fspath(self.dir), "header"))
        """What was run (run.json)."""

    @classmethod
    def open(cls, dir: str | os.PathLike[str]) -> Run:
        """Opens a run folder; `FileNotFoundError` or `Error` where it is none.

        >>> Run.open(folder / "run").header["identity"]["model"]["name"]
        'smollm2-135m'
        """
        return cls(dir)

    def _table(self, of: str) -> Table:
        rows = json.loads(_native.rows(os.fspath(self.dir), of))
        return Table._of_rows([{"condition": "", **_flat(row)} for row in rows], _KEYS)

    @property
    def answers(self) -> Table:
        """The answers that count, a line each: case, probe, condition, answer, prompt_tokens, ... as in answers.jsonl; nested fields as `contrast.value`."""
        return self._table("answers")

    @property
    def verdicts(self) -> Table:
        """The verdicts that count, a line each, as in verdicts.jsonl; none before `palimpsest judge`."""
        return self._table("verdicts")

    @property
    def causes(self) -> Table:
        """What `palimpsest causes` measured, a line each, as in causes.jsonl; nested numbers as `effect.log_p_drop`."""
        return self._table("causes")

    @property
    def why(self) -> Table:
        """The labels of `palimpsest why`, a line an answer, as in why.jsonl."""
        return self._table("why")

    def trace(self, case: str, probe: str, condition: str = "") -> Trace:
        """The attention of an answer, float32 [layers, heads, rows, spans]; rows and spans have roles (`trace.roles`).

        >>> case = run.answers.to_numpy("case")[0]
        >>> run.trace(case, "SR").to_numpy().ndim
        4
        """
        (arrays, metadata), tokens = _native.attention(os.fspath(self.dir), case, probe, condition)
        return Trace(arrays, metadata, None, tokens)

    def masses(self, row: str, role: str, heads: str | os.PathLike[str] | Sequence[tuple[int, int]] | None = None) -> Table:
        """The attention of the rows called `row` (or in that role) to the spans in a role, a line an answer and layer: mass and share, 0 to 1.

        Heads count alike; with the file of `palimpsest heads` or `Heads.save` by their retrieval scores; a list of (layer, head) keeps
        those alone.

        >>> run.masses("query", "old").columns["mass"].shape
        (30,)
        """
        if heads is None or isinstance(heads, (str, os.PathLike)):
            path = None if heads is None else os.fspath(heads)
            rows = json.loads(_native.masses(os.fspath(self.dir), row, role, path))
            return Table._of_rows(rows, (*_KEYS, "layer", "kind", "mass", "share"))
        if isinstance(heads, Heads):
            raise TypeError("heads are scores; save them and give the file, or give (layer, head) pairs")
        wanted = [(int(layer), int(head)) for layer, head in heads]
        plain = json.loads(_native.masses(os.fspath(self.dir), row, role, None))
        layers = {layer for layer, _ in wanted}
        rows = []
        traces: dict[tuple[str, str, str], Trace] = {}
        for line in plain:
            key = (line["case"], line["probe"], line["condition"])
            if line["layer"] not in layers:
                continue
            trace = traces[key] if key in traces else traces.setdefault(key, self.trace(*key))
            if line["layer"] not in trace.layers:
                continue
            of = [head for layer, head in wanted if layer == line["layer"]]
            if max(of) >= len(trace.heads) or min(of) < 0:
                raise ValueError(f"heads name head {max(of)} of layer {line['layer']}, which has {len(trace.heads)}")
            mass = trace.to_numpy()[trace.layers.index(line["layer"])][of].mean(axis=0, dtype=np.float64)
            at = [r for r, one in enumerate(trace._rows) if row in (one.get("role"), one["label"])]
            to = [s for s, one in enumerate(trace._spans) if one.get("role") == role or (not one.get("role") and one["label"] == role)]
            size = np.array([trace._rows[r]["end"] - trace._rows[r]["start"] for r in at], dtype=float)
            rows.append({**line, "mass": float((mass[at][:, to].sum(axis=1) * size).sum() / size.sum())})
        return Table._of_rows(rows, (*_KEYS, "layer", "kind", "mass", "share"))

    def __repr__(self) -> str:
        identity = self.header["identity"]
        return f"Run({os.fspath(self.dir)!r}: {identity.get('benchmark', 'stale')}, {identity['model']['name']}, {len(self.answers)} answers)"

    def _repr_html_(self) -> str:
        answers = self.answers
        shown: list[str] = [name for name in ("case", "probe", "condition", "answer", "error") if name in answers.columns]
        columns: dict[str, Sequence[object]] = {name: list(answers.columns[name]) for name in shown}
        return f"<p>{_html.escaped(repr(self))}</p>{_html.table(columns)}"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{name}.{inner}": of for inner, of in value.items()})
        else:
            flat[name] = value
    return flat


def run(data: str | os.PathLike[str], model: str | Model, out: str | os.PathLike[str], **flags: Any) -> Run:
    """Answers a benchmark in the folder `out` and records attention, as `palimpsest run` does; returns the `Run`.

    `flags` are those of the command with underscores: `limit=2`, `context=4096`, `conditions=["full", "rag"]`, `attention=False` is
    `no_attention=True`. A `Model` stands for its name, device and dtype; its weights are opened anew. Ctrl-C finishes the step under
    way; the same call goes on from there.

    >>> run = palimpsest.run("sample", "smollm2-135m", folder / "run", limit=1, only="SR", context=4096, max_new_tokens=16)
    >>> len(run.answers)
    1
    """
    if isinstance(model, Model):
        flags = {"device": model.device, "dtype": model.dtype, **flags}
        model = model.source
    typed = ["--data", os.fspath(data), "--model", model]
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            typed.append(flag)
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            typed += [f"{flag}={one}"]
    folder = Path(out)

    def answered() -> int:
        try:
            with open(folder / "answers.jsonl", "rb") as file:
                return sum(1 for _ in file)
        except OSError:
            return 0

    with progress(None, "run", "answers") as told:
        tick = None if told is None else lambda _: told(answered())
        _native.run(typed, os.fspath(folder), tick)
    return Run(folder)
