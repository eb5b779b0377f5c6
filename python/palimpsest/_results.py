"""Results that are tables, and an answer."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _html
from ._extras import extra

if TYPE_CHECKING:
    from ._prompt import Prompt
    from ._trace import Trace

Array = npt.NDArray[Any]


def _column(values: Sequence[Any]) -> Array:
    """Numbers with NaN for what is missing, or objects as they are."""
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, bool) for value in there) and len(there) == len(values):
        return np.array(values, dtype=bool)
    if there and all(isinstance(value, int) and not isinstance(value, bool) for value in there):
        if len(there) == len(values):
            return np.array(values, dtype=np.int64)
    if there and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in there):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> dict[str, Array]:
    found = dict.fromkeys(names)
    for row in rows:
        found.update(dict.fromkeys(row))
    return {name: _column([row.get(name) for row in rows]) for name in found}


class Table:
    """Rows of a run, or of a measurement, as plain columns: a dict of NumPy arrays that pandas and polars take.

    >>> table = model.causes(prompt, answer="On Sunday.")
    >>> table.columns["span"].tolist()
    ['old', 'new']
    >>> len(table)
    2
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self.columns = dict(columns)

    @classmethod
    def _of_rows(cls, rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Table:
        return Table(_columns(rows, names))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def to_numpy(self, name: str | None = None) -> Array:
        """The column called `name`; without a name all of them, as a structured array [rows].

        >>> model.causes(prompt, answer="On Sunday.").to_numpy("drop").dtype
        dtype('float64')
        """
        if name is not None:
            if name not in self.columns:
                raise KeyError(f"the table has no column `{name}`; it has {', '.join(self.columns)}")
            return self.columns[name]
        table = np.empty(len(self), dtype=[(name, column.dtype) for name, column in self.columns.items()])
        for name, column in self.columns.items():
            table[name] = column
        return table

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` with one axis, `line`. Needs xarray."""
        return extra("xarray").Dataset({name: ("line", column) for name, column in self.columns.items()})

    def to_frame(self) -> Any:
        """The columns as a `pandas.DataFrame`; `polars.DataFrame(table.columns)` is the other. Needs pandas."""
        return extra("pandas").DataFrame(self.columns)

    def _rows(self) -> list[dict[str, Any]]:
        def plain(value: Any) -> Any:
            value = value.item() if isinstance(value, np.generic) else value
            return None if isinstance(value, float) and np.isnan(value) else value

        return [{name: plain(column[r]) for name, column in self.columns.items()} for r in range(len(self))]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows to a file: by its ending `.csv` or `.jsonl`.

        >>> model.causes(prompt, answer="On Sunday.").save(folder / "causes.csv")
        """
        path = Path(path)
        if path.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(self.columns)
                for row in self._rows():
                    nested = (json.dumps(v, ensure_ascii=False) if isinstance(v, (dict, list)) else v for v in row.values())
                    writer.writerow(["" if value is None else value for value in nested])
        elif path.suffix in (".jsonl", ".json"):
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in self._rows()]
            path.write_text("".join(lines), encoding="utf-8")
        else:
            raise ValueError(f"{path}: a table is written as .csv or .jsonl; name the file so")

    def plot(self, ax: Any = None) -> Any:
        """Draws masses by layer, mean over answers (`Run.masses`). Needs matplotlib; returns its axes."""
        if not {"layer", "mass", "share"} <= self.columns.keys():
            raise TypeError("only a table of masses by layer can be drawn; take `to_frame()` for others")
        pyplot = extra("matplotlib.pyplot")
        if ax is None:
            _, ax = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
        layer = self.columns["layer"]
        layers = np.unique(layer)
        for name, style in (("mass", "o-"), ("share", ":")):
            mean = [100 * float(self.columns[name][layer == one].mean()) for one in layers]
            ax.plot(layers, mean, style, markersize=3, label="mass" if name == "mass" else "uniform attention")
        ax.set(xlabel="layer", ylabel="attention in %", ylim=(0, None))
        ax.legend(frameon=False)
        return ax

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows: {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        return _html.table({name: list(column) for name, column in self.columns.items()})


class Causes(Table):
    """The effect of each span on an answer: the answer is scored again with the span hidden, removed or replaced.

    Columns, a line for each span (and window of layers):

    - `span`, `start`, `end`: the label, and its tokens;
    - `layer_start`, `layer_end`: the window, with `windows`;
    - `drop`: of the answer's log-probability, nats per token: above 0 the answer needs the span; of `contextcite` the span's weight in the
      logit of the whole answer's probability;
    - `kl`, `kl_answer`: divergence of the first token's distribution, and the mean over all tokens, nats;
    - `changed`: some token is no longer, or now is, the likeliest;
    - `control`: the median drop of random stretches of about the span's length that do not touch it.

    >>> causes = model.causes(prompt, answer="On Sunday.", controls=None)
    >>> causes.log_p < 0, causes.answer_tokens
    (True, 3)
    """

    def __init__(self, found: Mapping[str, Any], how: str, prompt: Prompt | None = None) -> None:
        rows = []
        for effect in found["effects"]:
            start, end = effect["layers"] or (None, None)
            row = {"span": effect["span"], "start": effect["start"], "end": effect["end"]}
            if effect["layers"]:
                row.update(layer_start=start, layer_end=end)
            row.update({name: effect[name] for name in ("drop", "kl", "kl_answer", "changed", "control")})
            rows.append(row)
        super().__init__(_columns(rows))
        self.how = how
        self.prompt = prompt
        self.log_p: float = found["log_p"]
        self.answer_tokens: int = found["answer_tokens"]
        self.r2: float | None = found["r2"]
        self.intercept: float | None = found["intercept"]

    def plot(self, ax: Any = None) -> Any:
        """Draws the drop of each span with its control; of windows, layers by spans. Needs matplotlib; returns its axes.

        >>> axes = model.causes(prompt, answer="On Sunday.").plot()
        """
        pyplot = extra("matplotlib.pyplot")
        spans = list(dict.fromkeys(self.columns["span"].tolist()))
        if ax is None:
            _, ax = pyplot.subplots(figsize=(6, 1.2 + 0.35 * len(spans)), layout="constrained")
        if "layer_start" in self.columns:
            windows = sorted(set(self.columns["layer_start"].tolist()))
            values = np.full((len(spans), len(windows)), np.nan)
            for span, start, drop in zip(*(self.columns[name] for name in ("span", "layer_start", "drop"))):
                values[spans.index(span), windows.index(start)] = drop
            most = float(np.nanmax(np.abs(values))) or 1.0
            image = ax.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most)
            ax.figure.colorbar(image, ax=ax, label="drop, nats per token")
            ax.set_xticks(range(len(windows)), [str(start) for start in windows])
            ax.set_yticks(range(len(spans)), spans)
            ax.set(xlabel="first layer of the window")
            return ax
        ax.barh(range(len(spans)), self.columns["drop"], color="#1f77b4")
        control = self.columns["control"].astype(float)
        there = np.isfinite(control)
        if there.any():
            places = np.arange(len(spans))[there]
            ax.plot(control[there], places, "|", color="black", markersize=14, label="control")
            ax.legend(frameon=False)
        ax.axvline(0, color="black", linewidth=0.5)
        ax.set_yticks(range(len(spans)), spans)
        ax.invert_yaxis()
        unit = "weight in the answer's logit" if self.how == "contextcite" else "drop of log p, nats per token"
        ax.set(xlabel=unit)
        return ax

    def _repr_html_(self) -> str:
        head = f"<p>{_html.escaped(self.how)}: answer of {self.answer_tokens} tokens, log p {self.log_p:.3f} per token</p>"
        return head + super()._repr_html_()


class Heads:
    """Scores of heads that retrieve: float64 [layers, heads] each, means over needles.

    `retrieval` is the share of a needle that the head copies while the model answers (Wu et al. 2024; `None` where no needle was
    answered), `qr` the mass of the question on the needle's session less that of a null question (QRHead, 2025).

    >>> heads = model.heads(needles=1)
    >>> heads.qr.shape
    (30, 9)
    >>> heads.top(3).to_numpy("qr").size
    3
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.scores: dict[str, Any] = json.loads(text)
        self.layers: list[int] = self.scores["layers"]
        self.qr: Array = np.array(self.scores["qr"], dtype=np.float64)
        found = self.scores["retrieval"]
        self.retrieval: Array | None = None if found is None else np.array(found, dtype=np.float64)

    @property
    def columns(self) -> dict[str, Array]:
        """A line for each head: layer, head, retrieval, qr."""
        layers, heads = self.qr.shape
        retrieval = np.full(self.qr.shape, np.nan) if self.retrieval is None else self.retrieval
        return {
            "layer": np.repeat(np.array(self.layers), heads),
            "head": np.tile(np.arange(heads), layers),
            "retrieval": retrieval.ravel(),
            "qr": self.qr.ravel(),
        }

    def top(self, count: int = 10, by: str = "qr") -> Table:
        """The heads with the highest scores."""
        columns = self.columns
        order = np.argsort(-columns[by], kind="stable")[:count]
        return Table({name: column[order] for name, column in columns.items()})

    def to_numpy(self, name: str = "retrieval") -> Array:
        """float64 [layers, heads] of `retrieval` or `qr`; NaN where no needle was answered."""
        if name not in ("retrieval", "qr"):
            raise KeyError(f"heads have no `{name}`; they have retrieval, qr")
        return self.columns[name].reshape(self.qr.shape)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` over (layer, head). Needs xarray."""
        axes = ("layer", "head")
        data = {name: (axes, self.to_numpy(name)) for name in ("retrieval", "qr")}
        return extra("xarray").Dataset(data, coords={"layer": self.layers, "head": range(self.qr.shape[1])})

    def to_frame(self) -> Any:
        """`columns` as a `pandas.DataFrame`. Needs pandas."""
        return extra("pandas").DataFrame(self.columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file that `palimpsest heads` writes (JSON), for `lens --heads` and `Run.masses`."""
        Path(path).write_text(self._text, encoding="utf-8")

    def plot(self, score: str = "qr", ax: Any = None) -> Any:
        """Draws a score, layers by heads. Needs matplotlib; returns its axes."""
        pyplot = extra("matplotlib.pyplot")
        values = self.to_numpy(score)
        if ax is None:
            _, ax = pyplot.subplots(figsize=(min(12, 2.5 + 0.3 * values.shape[1]), 5), layout="constrained")
        image = ax.imshow(values, aspect="auto", origin="lower", cmap="Blues")
        ax.figure.colorbar(image, ax=ax, label=score)
        step = max(1, len(self.layers) // 10)
        ax.set_yticks(range(0, len(self.layers), step), [str(layer) for layer in self.layers[::step]])
        ax.set(xlabel="head", ylabel="layer")
        return ax

    def __repr__(self) -> str:
        needles, answered = len(self.scores["needles"]), self.scores["answered"]
        return f"Heads({self.qr.shape[0]} layers, {self.qr.shape[1]} heads; {needles} needles, {answered} answered)"

    def _repr_html_(self) -> str:
        layers = [f"L{layer}" for layer in self.layers]
        heads = [f"H{head}" for head in range(self.qr.shape[1])]
        maps = [
            _html.grid(self.to_numpy(name), layers, heads, f"{name}: layers by heads", unit="")
            for name in ("retrieval", "qr")
            if name == "qr" or self.retrieval is not None
        ]
        return f"<p>{_html.escaped(repr(self))}</p>{''.join(maps)}"


class Answer:
    """A generated answer: its `text` without a thought, its `tokens` (a thought among them), and the `trace` of its rows.

    >>> answer = model.generate(prompt, max_tokens=4)
    >>> len(answer.tokens) <= 4, answer.trace.rows
    (True, ['answer'])
    """

    def __init__(
        self, text: str, thought: str | None, stop: str, tokens: list[int], thought_tokens: int, trace: Trace
    ) -> None:
        self.text = text
        self.thought = thought
        self.stop = stop
        self.tokens = tokens
        self.thought_tokens = thought_tokens
        self.trace = trace

    def to_numpy(self, name: str = "mass") -> Array:
        """As `Trace.to_numpy`."""
        return self.trace.to_numpy(name)

    def to_xarray(self) -> Any:
        """As `Trace.to_xarray`."""
        return self.trace.to_xarray()

    def to_frame(self) -> Any:
        """As `Trace.to_frame`."""
        return self.trace.to_frame()

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `Trace.save`; the file has the answer's tokens, too (`generated`)."""
        self.trace.save(path)

    def plot(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trace.plot`."""
        return self.trace.plot(*args, **kwargs)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, {len(self.tokens)} tokens, {self.stop})"

    def _repr_html_(self) -> str:
        answer = f"<blockquote style='white-space:pre-wrap'>{_html.escaped(self.text)}</blockquote>"
        return answer + (self.trace._repr_html_() if self.trace.rows and self.trace.spans else "")
