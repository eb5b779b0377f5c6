"""How results show themselves in a notebook: text shaded by mass, strips and maps. All text is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

# One hue whose strength is a number, so that it reads on light and on dark pages.
_HUE = "31,119,180"
_SPAN_HUES = ("31,119,180", "214,39,40", "44,160,44", "148,103,189", "255,127,14", "23,190,207")
_WHOLE = 6000
_ENDS = 280


def escaped(text: str) -> str:
    """A text that a page shows as it is."""
    return html.escape(text, quote=True)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return escaped(text)
    half = most // 2
    return f"{escaped(text[:half])}<i title='{len(text) - 2 * half} characters'> … </i>{escaped(text[-half:])}"


def _pieces(
    tokens: int, spans: Sequence[tuple[str, int, int]], characters: Sequence[tuple[int, int]], length: int
) -> list[tuple[int | None, int, int]]:
    """The text cut where the innermost span changes: number of the span, first character, one past the last."""
    inner: list[int | None] = [None] * tokens
    # The longest first, so that shorter ones lie over it.
    for span in sorted(range(len(spans)), key=lambda k: spans[k][1] - spans[k][2]):
        inner[spans[span][1] : spans[span][2]] = [span] * (spans[span][2] - spans[span][1])
    pieces: list[tuple[int | None, int, int]] = []
    at = 0
    for token, (start, _) in enumerate(characters):
        number = inner[token]
        if not pieces or pieces[-1][0] != number:
            if pieces:
                pieces[-1] = (pieces[-1][0], pieces[-1][1], max(start, at))
            pieces.append((number, max(start, at) if pieces else 0, length))
            at = max(start, at)
    return pieces or [(None, 0, length)]


def shaded_text(
    text: str,
    characters: Sequence[tuple[int, int]],
    spans: Sequence[tuple[str, int, int]],
    masses: Sequence[float] | None,
) -> str:
    """The text, each span as dark as its mass; without masses each span in a colour of its own."""
    most = max(masses, default=0.0) if masses is not None else 0.0
    room = len(text) if len(text) <= _WHOLE else _ENDS
    out = []
    for inner, start, end in _pieces(len(characters), spans, characters, len(text)):
        shown = _shortened(text[start:end], max(room, _ENDS))
        if inner is None:
            out.append(shown)
            continue
        number, label = inner, spans[inner][0]
        if masses is None:
            style, told = f"rgba({_SPAN_HUES[number % len(_SPAN_HUES)]},0.28)", label
        else:
            mass = masses[number]
            strength = 0.75 * (mass / most) ** 0.5 if most > 0 else 0.0
            style, told = f"rgba({_HUE},{strength:.3f})", f"{label}: {100 * mass:.2f}%"
        out.append(f"<span style='background:{style};border-radius:2px' title='{escaped(told)}'>{shown}</span>")
    return f"<div style='white-space:pre-wrap;max-width:60em;line-height:1.5'>{''.join(out)}</div>"


def grid(
    values: Floats, row_labels: Sequence[str], column_labels: Sequence[str], what: str, unit: str = "%"
) -> str:
    """A map of values (rows, columns) as SVG; darker is more. The first row is below, as layers are drawn."""
    rows, columns = values.shape
    if rows == 0 or columns == 0:
        return ""
    wide, high = max(6, min(40, 720 // columns)), max(4, min(14, 360 // rows))
    left, below = 44, 14 + 6 * max((min(len(label), 24) for label in column_labels), default=0)
    most = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    cells = []
    scale = 100.0 if unit == "%" else 1.0
    for r in range(rows):
        y = (rows - 1 - r) * high
        for c in range(columns):
            value = float(values[r, c])
            strength = max(value, 0.0) / most if most > 0 and np.isfinite(value) else 0.0
            title = escaped(f"{row_labels[r]}, {column_labels[c]}: {scale * value:.3g}{unit}")
            cells.append(
                f"<rect x='{left + c * wide}' y='{y}' width='{wide}' height='{high}' fill='rgba({_HUE},{strength:.3f})'>"
                f"<title>{title}</title></rect>"
            )
    step = max(1, rows // 6)
    for r in range(0, rows, step):
        y = (rows - r) * high - 2
        cells.append(f"<text x='{left - 4}' y='{y}' text-anchor='end'>{escaped(row_labels[r])}</text>")
    step = max(1, -(-columns * 12 // (columns * wide)))
    for c in range(0, columns, step):
        x, y = left + c * wide + wide / 2 + 3, rows * high + 4
        label = column_labels[c] if len(column_labels[c]) <= 24 else column_labels[c][:23] + "…"
        cells.append(
            f"<text x='{x}' y='{y}' text-anchor='end' transform='rotate(-60 {x} {y})'>{escaped(label)}</text>"
        )
    frame = f"<rect x='{left}' y='0' width='{columns * wide}' height='{rows * high}' fill='none' stroke='currentColor' stroke-width='0.5'/>"
    width, height = left + columns * wide + 10, rows * high + below
    drawn = f"<svg width='{width}' height='{height}' style='overflow:visible' font-size='9' fill='currentColor'>{''.join(cells)}{frame}</svg>"
    return f"<figure style='display:inline-block;margin:0 2em 0.5em 0;vertical-align:top'><figcaption>{escaped(what)}</figcaption>{drawn}</figure>"


def table(columns: dict[str, Sequence[object]], most: int = 12) -> str:
    """The first rows of columns."""
    names = list(columns)
    count = len(next(iter(columns.values()), []))
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    lines = []
    for r in range(min(count, most)):
        cells = []
        for name in names:
            value = columns[name][r]
            shown = f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
            shown = shown if len(shown) <= 60 else shown[:59] + "…"
            cells.append(f"<td>{escaped(shown)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = f"<p>{count - most} rows more</p>" if count > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>{more}"
