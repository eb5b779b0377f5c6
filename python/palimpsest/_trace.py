"""The measurements of one pass."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import _html, _native
from ._extras import extra

if TYPE_CHECKING:
    from ._prompt import Prompt

Array = npt.NDArray[Any]

# Axes of the tensors, in order.
AXES: dict[str, tuple[str, ...]] = {
    "mass": ("layer", "head", "row", "span"),
    "value_norm": ("layer", "head", "row", "span"),
    "output_norm": ("layer", "head", "row", "span"),
    "share": ("layer", "row", "span"),
    "sink": ("layer", "head", "row"),
    "first_token": ("layer", "head", "row"),
    "delta_signed": ("delta_layer", "value_head", "row", "span"),
    "delta_share": ("delta_layer", "value_head", "row", "span"),
    "top_keys": ("layer", "head", "position", "k"),
    "top_weights": ("layer", "head", "position", "k"),
    "attribution": ("target", "layer", "head", "attribution_span"),
    "attribution_other": ("target", "part"),
    "mass_each": ("layer", "head", "generated", "span"),
    "sink_each": ("layer", "head", "generated"),
    "delta_signed_each": ("delta_layer", "value_head", "generated", "span"),
    "delta_share_each": ("delta_layer", "value_head", "generated", "span"),
    "generated": ("generated",),
    "kept": ("kept_layer", "kv_head", "span"),
    "selected": ("layer", "row", "span"),
    "forgone": ("layer", "row", "span"),
}
_BY_ROW = ("mass", "share", "density", "value_norm", "output_norm", "sink", "selected", "forgone")


class Trace:
    """What was measured in one pass: arrays by name, with the labels of their axes.

    | array | shape | content |
    | --- | --- | --- |
    | `mass` | float32 [layers, heads, rows, spans] | post-softmax attention, summed over the span's tokens, mean over the row's: 0 to 1 |
    | `share` | float32 [layers, rows, spans] | the mass that uniform attention would give; `mass / share` is a density |
    | `value_norm`, `output_norm` | float32 [layers, heads, rows, spans] | lengths of what heads read and write, in units of the residual stream |
    | `top_keys`, `top_weights` | uint32, float32 [layers, heads, positions, k] | largest keys of each row position, largest first |
    | `attribution` | float32 [targets, layers, heads, spans + 1] | parts of a logit; the last span is what is in none |
    | `attribution_other` | float32 [targets, parts] | the rest of it: feed-forwards and the embedding |
    | `mass_each` | float32 [layers, heads, generated, spans] | the same of each generated token |
    | `kept` | float32 [layers that evict, KV heads, spans] | with `evict`, the share of each span's keys that was kept; NaN behind the question's begin |
    | `selected`, `forgone` | float32 [layers, rows, spans] | share of the span that the layers' choices left to the row, and dense mass on the rest |
    | `first_token` | float32 [layers, heads, rows] | mass on the prompt's first token, an attention sink; its spans' masses include it |
    | `sink`, `delta_signed`, `delta_share`, `generated` | | as in the file of `palimpsest trace` |

    `model.trace` makes one, `Run.trace` reads one.

    >>> trace = model.trace(prompt, rows=["query"])
    >>> trace.rows, trace.spans
    (['query'], ['old', 'new', 'query'])
    >>> bool(trace.to_numpy("mass").sum(axis=-1).max() <= 1.0001)
    True
    """

    def __init__(
        self,
        arrays: dict[str, Array],
        metadata: dict[str, str],
        prompt: Prompt | None = None,
        tokens: Sequence[int] = (),
    ) -> None:
        self.arrays = arrays
        self.metadata = metadata
        self.prompt = prompt
        self.tokens = list(prompt.tokens if prompt is not None else tokens)
        self.layers: list[int] = json.loads(metadata["layers"])
        self._rows = [_named(row) for row in json.loads(metadata["rows"])]
        self._spans = [_named(span) for span in json.loads(metadata["spans"])]

    @property
    def rows(self) -> list[str]:
        """The labels of the rows, which attend."""
        return [row["label"] for row in self._rows]

    @property
    def spans(self) -> list[str]:
        """The labels of the spans, which are attended to."""
        return [span["label"] for span in self._spans]

    @property
    def roles(self) -> list[str | None]:
        """The roles of the spans, of a run's answers."""
        return [span.get("role") for span in self._spans]

    @property
    def heads(self) -> list[int | str]:
        """The heads of the second axis: their numbers, or `mean`."""
        if "heads" in self.metadata:
            return list(json.loads(self.metadata["heads"]))
        return list(range(self.arrays["mass"].shape[1])) if "mass" in self.arrays else []

    @property
    def kept(self) -> dict[str, float]:
        """With `evict`: the share of each span's keys before the question that was kept, mean over layers and KV heads; empty without.

        `to_numpy("kept")` has the layers and heads.

        >>> model.trace(prompt, evict="knorm:8").kept.keys()
        dict_keys(['old', 'new'])
        """
        if "kept" not in self.arrays:
            return {}
        shares = self.arrays["kept"].mean(axis=(0, 1), dtype=np.float64)
        return {span: float(share) for span, share in zip(self.spans, shares) if not np.isnan(share)}

    def to_numpy(self, name: str = "mass") -> Array:
        """The array called `name`, without a copy: float32 [layers, heads, rows, spans] of `mass`.

        >>> model.trace(prompt).to_numpy("share").shape
        (30, 2, 3)
        """
        if name not in self.arrays:
            raise KeyError(f"the trace has no `{name}`; it has {', '.join(self.arrays)}")
        return self.arrays[name]

    def _labels(self, axis: str, length: int) -> list[Any]:
        known: dict[str, list[Any]] = {
            "layer": self.layers,
            "head": self.heads,
            "row": self.rows,
            "span": self.spans,
            "delta_layer": json.loads(self.metadata.get("delta_layers", "[]")),
            "kept_layer": json.loads(self.metadata.get("kept_layers", "[]")),
            "position": json.loads(self.metadata.get("top_positions", "[]")),
            "attribution_span": json.loads(self.metadata.get("attribution_spans", "[]")),
            "part": json.loads(self.metadata.get("parts", "[]")),
        }
        labels = known.get(axis, [])
        return labels if len(labels) == length else list(range(length))

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` of all arrays, with labelled axes (layer, head, row, span). Needs xarray.

        >>> model.trace(prompt).to_xarray()["mass"].sel(row="query", span="old").shape
        (30, 9)
        """
        xarray = extra("xarray")
        data, coordinates = {}, {}
        for name, array in self.arrays.items():
            axes = AXES.get(name)
            if axes is None or len(axes) != array.ndim:
                continue
            data[name] = (axes, array)
            for axis, length in zip(axes, array.shape):
                coordinates[axis] = self._labels(axis, length)
        return xarray.Dataset(data, coords=coordinates, attrs=dict(self.metadata))

    @property
    def columns(self) -> dict[str, Array]:
        """Plain columns, a line for each layer, head, row and span: what pandas, polars and others take.

        >>> list(model.trace(prompt).columns)
        ['layer', 'head', 'row', 'span', 'mass', 'share']
        """
        shape = (len(self.layers), len(self.heads), len(self._rows), len(self._spans))
        labels = [np.array(of) for of in (self.layers, self.heads, self.rows, self.spans)]
        columns: dict[str, Array] = {}
        for axis, (name, of) in enumerate(zip(("layer", "head", "row", "span"), labels)):
            line = [1] * 4
            line[axis] = -1
            columns[name] = np.broadcast_to(of.reshape(line), shape).ravel()
        for name in _BY_ROW:
            if name not in self.arrays:
                continue
            array = self.arrays[name]
            if "head" not in AXES.get(name, ("head",)):
                array = array[:, None, :, :]
            elif name == "sink":
                array = array[:, :, :, None]
            columns[name] = np.broadcast_to(array, shape).ravel()
        return columns

    def to_frame(self) -> Any:
        """`columns` as a `pandas.DataFrame`; `polars.DataFrame(trace.columns)` is the other. Needs pandas.

        >>> model.trace(prompt).to_frame().groupby(["row", "span"])["mass"].mean().size
        6
        """
        return extra("pandas").DataFrame(self.columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file that `palimpsest trace` writes (safetensors), to the bit.

        >>> model.trace(prompt).save(folder / "trace.safetensors")
        """
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        _native.write(os.fspath(path), arrays, self.metadata)

    def _mean(self, row: str | int) -> Array:
        """(layers, spans): mean over heads of the masses of a row."""
        mean: Array = self.to_numpy("mass")[:, :, self._row(row), :].mean(axis=1)
        return mean

    def _row(self, row: str | int) -> int:
        if isinstance(row, int):
            return row
        if row not in self.rows:
            raise KeyError(f"the trace has no row `{row}`; it has {', '.join(self.rows)}")
        return self.rows.index(row)

    def plot(self, row: str | int = 0, span: str | None = None, ax: Any = None) -> Any:
        """Draws the masses of a row: layers by spans, mean over heads; of one `span`, layers by heads. Needs matplotlib; returns its axes.

        >>> axes = model.trace(prompt).plot("query", span="old")
        """
        pyplot = extra("matplotlib.pyplot")
        if span is None:
            values, columns, what = self._mean(row), self.spans, "span"
        else:
            if span not in self.spans:
                raise KeyError(f"the trace has no span `{span}`; it has {', '.join(self.spans)}")
            values = self.to_numpy("mass")[:, :, self._row(row), self.spans.index(span)]
            columns, what = [str(head) for head in self.heads], "head"
        if ax is None:
            _, ax = pyplot.subplots(figsize=(min(12, 2.5 + 0.35 * len(columns)), 5), layout="constrained")
        image = ax.imshow(100 * values, aspect="auto", origin="lower", cmap="Blues", vmin=0)
        ax.figure.colorbar(image, ax=ax, label="attention mass in %")
        rotation = 90 if what == "span" else 0
        step = max(1, len(columns) // 24)
        ax.set_xticks(range(0, len(columns), step), columns[::step], rotation=rotation)
        step = max(1, len(self.layers) // 10)
        ax.set_yticks(range(0, len(self.layers), step), [str(layer) for layer in self.layers[::step]])
        name = self.rows[self._row(row)]
        ax.set(xlabel=what, ylabel="layer", title=f"{name} to {span}" if span else f"{name}, mean over heads")
        return ax

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {list(array.shape)}" for name, array in self.arrays.items())
        return f"Trace(rows={self.rows}, {len(self.spans)} spans, {len(self.layers)} layers: {held})"

    def _repr_html_(self) -> str:
        if "mass" not in self.arrays or not self._rows or not self._spans:
            return f"<pre>{_html.escaped(repr(self))}</pre>"
        mean = self._mean(0)
        by_span = mean.mean(axis=0)
        hidden = json.loads(self.metadata.get("hidden", "[]"))
        parts = [f"<p>knocked out: {_html.escaped(path['text'])}</p>" for path in hidden]
        if "evict" in self.metadata:
            parts.append(f"<p>evicted: {_html.escaped(self.metadata['evict'])}</p>")
        parts.append(f"<p>attention of <b>{_html.escaped(self.rows[0])}</b>, mean over layers and heads</p>")
        if self.prompt is not None:
            ranges = [(label, start, end) for label, (start, end) in self.prompt.spans.items()]
            parts.append(_html.shaded_text(self.prompt.text, self.prompt.characters, ranges, by_span.tolist()))
        layers = [f"L{layer}" for layer in self.layers]
        for row in range(min(len(self._rows), 3)):
            values = mean if row == 0 else self._mean(row)
            shown = list(np.argsort(-values.mean(axis=0))[:64])
            shown.sort()
            columns = [self.spans[k] for k in shown]
            parts.append(_html.grid(values[:, shown], layers, columns, f"{self.rows[row]}: layers by spans"))
        top = int(by_span.argmax())
        values = self.to_numpy("mass")[:, :, 0, top]
        heads = ["mean" if head == "mean" else f"H{head}" for head in self.heads]
        parts.append(_html.grid(values, layers, heads, f"{self.rows[0]} to {self.spans[top]}: layers by heads"))
        return "".join(parts)

    def _sliced(self, layers: Sequence[int] | None, heads: str | Sequence[int]) -> Trace:
        """The same of some layers and heads."""
        arrays, metadata = dict(self.arrays), dict(self.metadata)
        if layers is not None:
            wanted = [int(layer) for layer in layers]
            delta = json.loads(metadata.get("delta_layers", "[]"))
            unknown = [layer for layer in wanted if layer not in self.layers and layer not in delta]
            if unknown or not wanted:
                raise ValueError(
                    f"layers are {wanted}, and the model has {min(self.layers + delta)} to {max(self.layers + delta)}; name some of these"
                )
            kept = [n for n, layer in enumerate(self.layers) if layer in wanted]
            kept_delta = [n for n, layer in enumerate(delta) if layer in wanted]
            for name, array in arrays.items():
                axes = AXES.get(name, ())
                if "layer" in axes:
                    arrays[name] = array.take(kept, axis=axes.index("layer"))
                elif "delta_layer" in axes:
                    arrays[name] = array.take(kept_delta, axis=axes.index("delta_layer"))
            metadata["layers"] = json.dumps([self.layers[n] for n in kept])
            windows = json.loads(metadata.get("windows", "[]"))
            if windows:
                metadata["windows"] = json.dumps([windows[n] for n in kept])
            if delta:
                metadata["delta_layers"] = json.dumps([delta[n] for n in kept_delta])
        count = next((a.shape[AXES[n].index("head")] for n, a in arrays.items() if "head" in AXES.get(n, ())), 0)
        if isinstance(heads, str):
            if heads == "mean":
                for name in ("top_keys", "attribution"):
                    if name in arrays:
                        raise ValueError(f'heads="mean" has no {name}; ask for heads="all", or leave it out')
                for name, array in arrays.items():
                    if "head" in AXES.get(name, ()):
                        axis = AXES[name].index("head")
                        mean = array.mean(axis=axis, keepdims=True, dtype=np.float64)
                        arrays[name] = mean.astype(np.float32)
                metadata["heads"] = '["mean"]'
            elif heads != "all":
                raise ValueError(f'heads is "{heads}"; give "all", "mean" or numbers of heads')
        else:
            numbers = [int(head) for head in heads]
            if not numbers or min(numbers) < 0 or max(numbers) >= count:
                raise ValueError(f"heads are {numbers}, and a layer has 0 to {count - 1}; name some of these")
            for name, array in arrays.items():
                if "head" in AXES.get(name, ()):
                    arrays[name] = array.take(numbers, axis=AXES[name].index("head"))
            metadata["heads"] = json.dumps(numbers)
        return Trace(arrays, metadata, self.prompt, self.tokens)


def _named(span: str | dict[str, Any]) -> dict[str, Any]:
    return {"label": span} if isinstance(span, str) else span
