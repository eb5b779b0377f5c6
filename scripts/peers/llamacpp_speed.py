#!/usr/bin/env python3
"""llama.cpp reads the tokens of a trace file and goes on greedily. Prints one JSON line.

usage: llamacpp_speed.py MODEL.gguf TOKENS.json {fa-on|fa-off} STEPS
  STEPS   new tokens that are read one by one after the prompt
"""
import json
import os
import sys
import time

import llama_cpp
import numpy as np

# Tokens that llama.cpp computes at once: its default.
BATCH = 512


def main():
    path, tokens_file, flash, steps = sys.argv[1:]
    with open(tokens_file) as file:
        tokens = json.load(file)["tokens"]
    steps = int(steps)
    threads = os.cpu_count()
    llm = llama_cpp.Llama(
        path,
        n_ctx=len(tokens) + steps,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=BATCH,
        n_ubatch=BATCH,
        flash_attn={"fa-on": True, "fa-off": False}[flash],
        verbose=False,
    )

    def best():
        logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(llm.n_vocab(),))))

    start = time.perf_counter()
    llm.eval(tokens)
    token = best()
    read = time.perf_counter()
    for _ in range(steps):
        llm.eval([token])
        token = best()
    end = time.perf_counter()
    result = {"prefill_seconds": read - start}
    if steps > 0:
        result |= {"decode_seconds": end - read, "decode_tokens_per_second": steps / (end - read)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
