#!/usr/bin/env python3
"""The weights of a GGUF file in another form, by llama.cpp's own quantiser.

usage: requantise.py FROM.gguf TO.gguf {q4_0|f32}
"""
import os
import sys

import llama_cpp

FORMS = {"f32": llama_cpp.LLAMA_FTYPE_ALL_F32, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}


def main():
    source, target, form = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMS[form]
    params.allow_requantize = True
    params.nthread = os.cpu_count()
    # An interrupted run leaves no file that looks whole.
    part = target + ".part"
    code = llama_cpp.llama_model_quantize(source.encode(), part.encode(), params)
    if code != 0:
        sys.exit(f"llama.cpp could not turn the file into {form} (code {code}); see its lines above")
    os.replace(part, target)


if __name__ == "__main__":
    main()
