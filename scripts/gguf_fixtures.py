#!/usr/bin/env python3
"""GGUF files of tiny checkpoints, as llama.cpp's converter writes them.

For developers only. The converter is run unchanged from a checkout of llama.cpp (or from the copy that the source
distribution of llama-cpp-python carries under vendor/llama.cpp), in this process; two things are put in its place:

  the name of the pre-tokeniser  the converter knows it by a hash of the released tokenisers, which tiny ones do not match
  GLM's vocabulary               asks for the special tokens of the released tokeniser; written like every other instead

A GGUF file cannot say everything that a config.json can; what it leaves out, readers have built in as released models
have it. Most checkpoints are those of tests/fixtures/NAME-tiny, whose numbers hold for the GGUF file too. Those whose
settings it cannot express (GGUF_ONLY) are made anew with the released models' values, with numbers of their own.

Environment: `pip install -r scripts/requirements.txt sentencepiece protobuf`.

  gguf_fixtures.py LLAMA_CPP [NAME ...]    tests/fixtures/gguf-NAME/model.gguf
"""

import argparse
import importlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from hf_tiny import GEMMA3, QWEN3_MOE, TINY, Tiny, run_tiny

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"

# Name -> name of the pre-tokeniser that the released models of its architecture get.
PRE_TOKENIZERS = {
    "llama": "llama-bpe",
    "llama3-rope": "llama-bpe",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen3-moe": "qwen2",
    "qwen35-text": "qwen35",
    "gemma3": "default",
    "gpt-oss": "gpt-4o",
    "gpt-oss-mxfp4": "gpt-4o",
    "glm4-moe": "glm4",
    "glm4-moe-qk-norm": "glm4",
    "minimax-m2": "minimax-m2",
}

GGUF_ONLY: dict[str, Tiny] = {
    # Every layer is sparse and the weights of the chosen experts sum to 1.
    "qwen3-moe": Tiny("qwen3_moe", dict(QWEN3_MOE, norm_topk_prob=True), seed=6),
    # The scale is that of head_dim; of six layers the last is global. Of seven here, so that the period shows.
    "gemma3": Tiny("gemma3_text", dict(GEMMA3, hidden_size=36, intermediate_size=52, num_hidden_layers=7,
                                       query_pre_attn_scalar=20), seed=2),
    # The limit of the experts' activation is 7, and every other layer slides.
    "gpt-oss": replace(TINY["gpt-oss"], config=dict(TINY["gpt-oss"].config, swiglu_limit=7.0), seed=3),
    "gpt-oss-mxfp4": replace(TINY["gpt-oss-mxfp4"], config=dict(TINY["gpt-oss-mxfp4"].config, swiglu_limit=7.0),
                             seed=7),
}


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=2))


def predict_more(folder: Path) -> None:
    """Gives a Qwen3.5 checkpoint the layer that predicts a second token, as released ones have it. Readers skip it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    full = next(name.split(".")[2] for name in tensors if name.endswith("self_attn.q_proj.weight"))
    draw = torch.Generator().manual_seed(1)
    prefix = f"model.layers.{full}."
    extra = {f"mtp.layers.0.{name.removeprefix(prefix)}": tensor for name, tensor in tensors.items()
             if name.startswith(prefix)}
    norm = tensors["model.norm.weight"]
    for name in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"]:
        extra[f"mtp.{name}.weight"] = norm
    extra["mtp.fc.weight"] = torch.empty(len(norm), 2 * len(norm))
    for name, tensor in extra.items():
        extra[name] = torch.randn(tensor.shape, generator=draw).to(norm.dtype)
    save_file({**tensors, **extra}, path, metadata={"format": "pt"})
    edit_config(folder, mtp_num_hidden_layers=1)


# What released checkpoints have besides, and the converter asks for. It changes no number.
AS_RELEASED: dict[str, Callable[[Path], None]] = {
    "qwen35-text": predict_more,
    "minimax-m2": lambda folder: edit_config(folder, rotary_dim=10, scoring_func="sigmoid"),
}

LIMIT = 1_000_000  # bytes of a committed file


@contextmanager
def patched(owner, name: str, value):
    """`owner.name` is `value` for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def patched_entry(table: dict, key: str, value):
    """`table[key]` is `value` for a while."""
    table[key] = value
    try:
        yield
    finally:
        del table[key]


class Converter:
    """The converter of a checkout."""

    def __init__(self, checkout: Path) -> None:
        if not (checkout / "convert_hf_to_gguf.py").is_file():
            sys.exit(f"error: {checkout}: no convert_hf_to_gguf.py; give the root of a checkout of llama.cpp")
        # The checkout's own gguf package, whatever was imported before.
        for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
            del sys.modules[name]
        sys.path[:0] = [str(checkout / "gguf-py"), str(checkout)]
        self.script = importlib.import_module("convert_hf_to_gguf")
        self.base = importlib.import_module("conversion.base")
        self.glm = importlib.import_module("conversion.glm")
        logging.disable(logging.WARNING)

    def run(self, folder: Path, out: Path, pre: str, *options: str, own_vocab: bool = False) -> None:
        """Converts `folder` with the pre-tokeniser's name `pre`; `own_vocab` keeps the architecture's way with vocabularies."""
        text, glm = self.base.TextModel, self.glm.Glm4MoeModel
        argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(out), "--model-name", folder.name, *options]
        with patched(text, "get_vocab_base_pre", lambda *_: pre), patched(sys, "argv", argv), \
                patched(glm, "set_vocab", glm.set_vocab if own_vocab else text.set_vocab):
            self.script.main()


def checkpoint(name: str, scratch: Path, out: Path) -> Path:
    """A folder with the checkpoint to convert. Where its numbers are its own, they go to `out`."""
    folder = scratch / f"{name}-tiny"
    if tiny := GGUF_ONLY.get(name):
        with patched_entry(TINY, f"gguf-{name}", tiny):
            run_tiny(argparse.Namespace(arch=f"gguf-{name}", seed=None, out=folder))
        for file in ["tokens.json", "reference.safetensors"]:
            shutil.copy(folder / file, out / file)
    else:
        shutil.copytree(FIXTURES / f"{name}-tiny", folder)
    if complete := AS_RELEASED.get(name):
        complete(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=Path, help="root of a checkout of llama.cpp")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PRE_TOKENIZERS)}; all by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    converter = Converter(args.llama_cpp)
    for name in args.names or PRE_TOKENIZERS:
        out = FIXTURES / f"gguf-{name}"
        out.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder, written = checkpoint(name, Path(scratch), out), Path(scratch) / "model.gguf"
            # What the checkpoint quantises stays so; the rest is f32, as in the reference numbers.
            converter.run(folder, written, PRE_TOKENIZERS[name], "--outtype", "f32")
            content = written.read_bytes()
        if len(content) > LIMIT:
            sys.exit(f"error: {name}: {len(content)} bytes; make the checkpoint smaller")
        (out / "model.gguf").write_bytes(content)
        print(f"gguf-{name}/model.gguf: {len(content)} bytes")


if __name__ == "__main__":
    main()
