#!/usr/bin/env python3
"""llama.cpp reads the tokens of a trace file and goes on greedily. Prints one JSON line.

usage: llamacpp_speed.py MODEL.gguf TOKENS.json {fa-on|fa-off} STEPS {f16|q8_0}
  STEPS   new tokens that are read one by one after the prompt
  f16     keys and values in its usual dtype; q8_0 needs flash attention
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
    path, tokens_file, flash, steps, cache = sys.argv[1:]
    with open(tokens_file) as file:
        tokens = json.load(file)["tokens"]
    steps = int(steps)
    threads = os.cpu_count()
    kept = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}[cache]
    llm = llama_cpp.Llama(
        path,
        n_ctx=len(tokens) + steps,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=BATCH,
        n_ubatch=BATCH,
        type_k=kept,
        type_v=kept,
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
