"""What released checkpoints have that save_pretrained does not write: `hf_tiny.py` applies it to a folder.

Each function rewrites config.json and the weights of a folder in place.
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def whole_class(model_type: str) -> type | None:
    """The class with all parts of a checkpoint, where AutoModelForCausalLM would make its text model alone."""
    return {"qwen3_5": transformers.Qwen3_5ForConditionalGeneration}.get(model_type)


def read_config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def write_config(folder: Path, config: dict) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def rewrite_weights(folder: Path, change) -> None:
    tensors = change(load_file(folder / WEIGHTS))
    save_file({name: tensor.contiguous() for name, tensor in sorted(tensors.items())}, folder / WEIGHTS,
              {"format": "pt"})


def settle_types(folder: Path) -> None:
    """Gives the nested configurations the type of the weights; save_pretrained changes the outer one alone."""
    config = read_config(folder)
    for part in config.values():
        if isinstance(part, dict) and "dtype" in part:
            part["dtype"] = config["dtype"]
    write_config(folder, config)


def add_qwen35_extras(folder: Path) -> None:
    """The layer that predicts a second token, which a plain decoder skips; the state's scalars in f32."""
    generator = torch.Generator().manual_seed(9)

    def change(tensors: dict) -> dict:
        hidden = tensors["model.language_model.norm.weight"].shape[0]
        more = {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,),
                "mtp.pre_fc_norm_embedding.weight": (hidden,), "mtp.pre_fc_norm_hidden.weight": (hidden,),
                "mtp.layers.0.input_layernorm.weight": (hidden,), "mtp.layers.0.mlp.gate_proj.weight": (10, hidden)}
        for name, shape in more.items():
            tensors[name] = torch.randn(shape, generator=generator).to(torch.bfloat16)
        return {name: tensor.float() if name.endswith(("A_log", "linear_attn.norm.weight")) else tensor
                for name, tensor in tensors.items()}

    rewrite_weights(folder, change)
    config = read_config(folder)
    config["text_config"] |= dict(full_attention_interval=2, mtp_num_hidden_layers=1, mamba_ssm_dtype="float32",
                                  attn_output_gate=True)
    write_config(folder, config)


def age_gemma3(folder: Path) -> None:
    """The settings and names of gemma-3-4b-it, which an earlier transformers saved."""
    config = read_config(folder)
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    layers = text.pop("layer_types")
    del text["_sliding_window_pattern"], text["use_bidirectional_attention"]
    text["sliding_window_pattern"] = layers.index("full_attention") + 1
    text["rope_theta"] = rope["full_attention"].pop("rope_theta")
    text["rope_scaling"] = rope["full_attention"]
    text["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    for part in (config, text, config["vision_config"]):
        if "dtype" in part:
            part["torch_dtype"] = part.pop("dtype")
    write_config(folder, config)
    rewrite_weights(folder, lambda tensors: {
        name.replace("vision_tower.", "vision_tower.vision_model."): tensor for name, tensor in tensors.items()})
