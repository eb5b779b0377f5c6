"""A reader of safetensors in a few lines, so that the page's numbers are held against another reading of the files."""

from __future__ import annotations

import json
import struct
from pathlib import Path


def tensors(path: Path) -> tuple[dict[str, list], dict[str, str]]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + length])
    metadata = head.pop("__metadata__", {})
    found = {}
    for name, entry in head.items():
        kind = {"F32": "f", "U32": "I"}[entry["dtype"]]
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = nested(struct.unpack_from(f"<{(end - start) // 4}{kind}", data, start), entry["shape"])
    return found, metadata


def nested(flat: tuple, shape: list[int]) -> list:
    if len(shape) <= 1:
        return list(flat)
    step = len(flat) // shape[0] if shape[0] else 0
    return [nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
