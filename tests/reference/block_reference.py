#!/usr/bin/env python3
"""What the block formats of weights mean, by the implementations that define them: torch, transformers, gguf and
compressed-tensors.

    python tests/reference/block_reference.py > tests/fixtures/blocks.json
    python tests/reference/block_reference.py grids > crates/core/src/model/weights/gguf/grids.bin

with the versions pinned in tests/reference/requirements.txt. Bytes are hexadecimal; values are the little-endian bytes of f32.
For developers; never needed to use the tool.
"""

import json
import sys

import gguf
import numpy as np
import torch
from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# The places of f16 numbers in a block of each type; random bytes there would be infinities and worse.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "MXFP4": [],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}

# The same of i-quants and ternary types; the four of IQ1_M have a quarter of its scale each, above 12 other bits.
MORE_HALVES = {
    "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "NVFP4": [],
}
# In the order of grids.bin; IQ1_M has that of IQ1_S.
GRIDS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"]


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
    if name == "NVFP4":
        blocks[:, :4] &= 127
        blocks[0, :4] = [0, 1, 8, 127]
    if name == "IQ1_M":
        for number, block in zip(rng.normal(size=len(blocks)).astype("<f2").view(np.uint16), blocks):
            for quarter in range(4):
                at = 49 + 2 * quarter
                block[at] = block[at] & 15 | (number >> 4 * quarter & 15) << 4
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


def nvfp4(rng):
    rows, cols = 4, 64
    blocks = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    blocks[0, :8] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    scales = rng.integers(1, 127, (rows, cols // 16), dtype=np.uint8)
    number = torch.tensor([37.3])
    values = dequantize(
        unpack_fp4_from_uint8(torch.from_numpy(blocks), rows, cols, dtype=torch.float32),
        torch.from_numpy(scales).view(torch.float8_e4m3fn).float(), global_scale=number, dtype=torch.float32,
        args=QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True))
    return {
        "rows": rows, "cols": cols, "blocks": blocks.tobytes().hex(), "scales": scales.tobytes().hex(),
        "number": floats(number.numpy()), "values": floats(values.numpy()),
    }


def grids():
    """Runs of 8 or 4 numbers of values in 16 bits."""
    for name in GRIDS:
        of_type = getattr(gguf.quants, name)
        of_type.init_grid()
        numbers = np.searchsorted(of_type.grid_map, of_type.grid.reshape(of_type.grid_shape)).astype(np.uint16)
        bits = 16 // numbers.shape[1]
        shifted = numbers << (bits * np.arange(numbers.shape[1], dtype=np.uint16))
        sys.stdout.buffer.write(np.bitwise_or.reduce(shifted, axis=1).astype("<u2").tobytes())


def main():
    rng, other = np.random.default_rng(20260), np.random.default_rng(20261)
    codes = torch.arange(256, dtype=torch.uint8)
    print(json.dumps({
        "made_with": {"torch": torch.__version__.split("+")[0], "gguf": "0.19.0", "transformers": "5.23.0",
                      "compressed-tensors": "0.20.0"},
        "e4m3": floats(codes.view(torch.float8_e4m3fn).to(torch.float32).numpy()),
        "ggml": {name: ggml(rng, name, halves) for name, halves in HALVES.items()}
        | {name: dense(rng, name) for name in ("F32", "F16", "BF16")}
        | {name: ggml(other, name, halves) for name, halves in MORE_HALVES.items()},
        "fp8": fp8(rng),
        "mxfp4": mxfp4(rng),
        "nvfp4": nvfp4(other),
    }, indent=1))


if __name__ == "__main__":
    grids() if sys.argv[1:] == ["grids"] else main()
