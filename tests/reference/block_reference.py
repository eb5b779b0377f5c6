#!/usr/bin/env python3
"""What the block formats of weights mean, by the implementations that define them: torch, transformers and gguf.

    python tests/reference/block_reference.py > tests/fixtures/blocks.json

with the versions pinned in tests/reference/requirements.txt. Bytes are hexadecimal; values are the little-endian bytes of f32.
For developers; never needed to use the tool.
"""

import json

import gguf
import numpy as np
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# The places of f16 numbers in a block of each type; random bytes there would be infinities and worse.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "MXFP4": [],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}


def floats(values):
    return np.ascontiguousarray(values, dtype="<f4").tobytes().hex()


def ggml(rng, name, halves):
    kind = gguf.GGMLQuantizationType[name]
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (2 if columns == 256 else 8, size), dtype=np.uint8)
    for at in halves:
        number = rng.normal(size=len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = number.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:4, 0] = [0, 1, 2, 255]
    values = gguf.quants.dequantize(blocks, kind)
    return {"blocks": blocks.tobytes().hex(), "values": floats(values)}


def dense(rng, name):
    kind = gguf.GGMLQuantizationType[name]
    stored = gguf.quants.quantize(rng.normal(size=(1, 32)).astype(np.float32), kind)
    return {"blocks": stored.tobytes().hex(), "values": floats(gguf.quants.dequantize(stored, kind))}


def fp8(rng):
    codes = rng.integers(0, 256, (6, 8), dtype=np.uint8)
    codes[(codes & 127) == 127] = 0  # not a number
    scales = np.exp(rng.normal(size=(3, 2))).astype(np.float32)
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    values = Fp8Dequantize(None)._dequantize_one(weight, torch.from_numpy(scales), torch.float32)
    return {
        "rows": 6, "cols": 8, "block": [2, 4], "codes": codes.tobytes().hex(), "scales": floats(scales),
        "values": floats(values.numpy()),
    }


def mxfp4(rng):
    experts, rows, groups = 2, 3, 4
    blocks = rng.integers(0, 256, (experts, rows, groups, 16), dtype=np.uint8)
    blocks[0, 0, 0, :8] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    scales = rng.integers(100, 150, (experts, rows, groups), dtype=np.uint8)
    scales[1, 2] = [2, 127, 251, 252]
    values = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    # transformers transposes to (experts, in, out).
    values = values.transpose(1, 2).contiguous().numpy()
    assert np.isfinite(values).all()
    return {
        "shape": [experts, rows, groups], "blocks": blocks.tobytes().hex(), "scales": scales.tobytes().hex(),
        "values": floats(values),
    }


def main():
    rng = np.random.default_rng(20260)
    codes = torch.arange(256, dtype=torch.uint8)
    print(json.dumps({
        "made_with": {"torch": torch.__version__.split("+")[0], "gguf": "0.19.0", "transformers": "5.23.0"},
        "e4m3": floats(codes.view(torch.float8_e4m3fn).to(torch.float32).numpy()),
        "ggml": {name: ggml(rng, name, halves) for name, halves in HALVES.items()}
        | {name: dense(rng, name) for name in ("F32", "F16", "BF16")},
        "fp8": fp8(rng),
        "mxfp4": mxfp4(rng),
    }, indent=1))


if __name__ == "__main__":
    main()
