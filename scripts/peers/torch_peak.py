#!/usr/bin/env python3
"""How fast PyTorch multiplies two dense matrices with all threads. Prints one JSON line.

usage: torch_peak.py SIDE {f32|bf16}
"""
import json
import os
import statistics
import sys
import time

import torch

RUNS = 20


def main():
    side = int(sys.argv[1])
    torch.set_num_threads(os.cpu_count())
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[sys.argv[2]]
    a, b = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
    a @ b
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"gflops": 2 * side**3 / statistics.median(seconds) / 1e9}))


if __name__ == "__main__":
    main()
