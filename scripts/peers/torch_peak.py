#!/usr/bin/env python3
"""How fast PyTorch multiplies two dense f32 matrices with all threads. Prints one JSON line.

usage: torch_peak.py SIDE
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
    a, b = torch.randn(side, side), torch.randn(side, side)
    a @ b
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"gflops": 2 * side**3 / statistics.median(seconds) / 1e9}))


if __name__ == "__main__":
    main()
