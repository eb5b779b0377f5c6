#!/usr/bin/env python3
"""GGUF files of tiny checkpoints, as llama.cpp's converter writes them.

For developers only. The converter is run unchanged from a checkout of llama.cpp (or from the copy that the source
distribution of llama-cpp-python carries under vendor/llama.cpp), in this process; two things are put in its place:

  the name of the pre-tokeniser  the converter knows it by a hash of the released tokenisers, which tiny ones do not match
  GLM's vocabulary               asks for the special tokens of the released tokeniser; written like every other instead
  Gemma 4's vocabulary           has merges of whole characters; written like every other instead

A GGUF file cannot say everything that a config.json can; what it leaves out, readers have built in as released models
have it. Most checkpoints are those of tests/fixtures/NAME-tiny, whose numbers hold for the GGUF file too. Those whose
settings it cannot express (`gguf-NAME` in TINY) are made anew with the released models' values, with numbers of their own.

Environment: `pip install -r tests/reference/requirements.txt sentencepiece protobuf`.

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
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from hf_tiny import TINY, run_tiny

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

# Name -> name of the pre-tokeniser that the released models of its architecture get.
PRE_TOKENIZERS = {
    "llama": "llama-bpe",
    "llama3-rope": "llama-bpe",
    "smollm3": "llama-bpe",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
    "qwen3-moe": "qwen2",
    "qwen3-nvfp4": "qwen2",
    "qwen35-text": "qwen35",
    "qwen35-moe-nested": "qwen35",
    "qwen3-next": "qwen2",
    "gemma3": "default",
    "gpt-oss": "gpt-4o",
    "gpt-oss-mxfp4": "gpt-4o",
    "glm4-moe": "glm4",
    "glm4-moe-qk-norm": "glm4",
    "minimax-m2": "minimax-m2",
    "mistral3-nested": "tekken",
    "granite": "refact",
    "olmo3": "dbrx",
    "exaone4": "exaone4",
    "exaone4-global": "exaone4",
    "lfm2": "lfm2",
    "lfm2-moe": "lfm2",
    "granite-hybrid": "refact",
    "deepseek-v2": "deepseek-llm",
    "glm4-moe-lite": "glm4",
    "gemma4": "default",
    "gemma4-moe-nested": "default",
}


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}, indent=2))


def predict_more(folder: Path) -> None:
    """Gives a Qwen3.5 or Qwen3-Next checkpoint the layer that predicts a second token, as released ones have it. Readers skip it."""
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
    "qwen3-next": predict_more,
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
        self.gemma = importlib.import_module("conversion.gemma")
        logging.disable(logging.WARNING)

    def run(self, folder: Path, out: Path, pre: str, *options: str, own_vocab: bool = False) -> None:
        """Converts `folder` with the pre-tokeniser's name `pre`; `own_vocab` keeps the architecture's way with vocabularies."""
        text, glm, lite, gemma = self.base.TextModel, self.glm.Glm4MoeModel, self.glm.Glm4MoeLiteModel, self.gemma.Gemma4Model
        argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(out), "--model-name", folder.name, *options]
        with patched(text, "get_vocab_base_pre", lambda *_: pre), patched(sys, "argv", argv), \
                patched(lite, "set_vocab", lite.set_vocab if own_vocab else text.set_vocab), \
                patched(glm, "set_vocab", glm.set_vocab if own_vocab else text.set_vocab), \
                patched(gemma, "set_vocab", gemma.set_vocab if own_vocab else text.set_vocab):
            self.script.main()


def checkpoint(name: str, scratch: Path, out: Path) -> Path:
    """A folder with the checkpoint to convert. Where its numbers are its own, they go to `out`."""
    folder = scratch / f"{name}-tiny"
    if f"gguf-{name}" in TINY:
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
            # Matrices as the checkpoint has them, so that numbers are the same. The converter writes norms and biases in f32.
            tensors = [tensor for file in folder.glob("*.safetensors") if file.name != "reference.safetensors" for tensor in load_file(file).values()]
            plain = "f32" if any(tensor.dtype == torch.float32 and tensor.ndim == 2 for tensor in tensors) else "bf16"
            converter.run(folder, written, PRE_TOKENIZERS[name], "--outtype", plain)
            content = written.read_bytes()
        if len(content) > LIMIT:
            sys.exit(f"error: {name}: {len(content)} bytes; make the checkpoint smaller")
        (out / "model.gguf").write_bytes(content)
        print(f"gguf-{name}/model.gguf: {len(content)} bytes")


if __name__ == "__main__":
    main()
