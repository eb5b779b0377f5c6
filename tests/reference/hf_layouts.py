"""What released checkpoints have that save_pretrained does not write: `hf_tiny.py` applies it to a folder.

Each function rewrites config.json and the weights of a folder in place.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

WEIGHTS = "model.safetensors"
# The sixteen values of a 4-bit float (OCP Microscaling Formats 1.0, E2M1): the sign is the top bit.
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
FP8_BLOCK = 128
FP8_MAX = 448.0  # of E4M3


def whole_class(model_type: str) -> type | None:
    """The class with all parts of a checkpoint, where AutoModelForCausalLM would make its text model alone."""
    return {"qwen3_5": transformers.Qwen3_5ForConditionalGeneration,
            "qwen3_5_moe": transformers.Qwen3_5MoeForConditionalGeneration,
            "mistral3": transformers.Mistral3ForConditionalGeneration}.get(model_type)


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
    config = read_config(folder)
    mlp = "mlp.shared_expert" if "num_experts" in config["text_config"] else "mlp"

    def change(tensors: dict) -> dict:
        hidden = tensors["model.language_model.norm.weight"].shape[0]
        more = {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,),
                "mtp.pre_fc_norm_embedding.weight": (hidden,), "mtp.pre_fc_norm_hidden.weight": (hidden,),
                "mtp.layers.0.input_layernorm.weight": (hidden,), f"mtp.layers.0.{mlp}.gate_proj.weight": (10, hidden)}
        for name, shape in more.items():
            tensors[name] = torch.randn(shape, generator=generator).to(torch.bfloat16)
        return {name: tensor.float() if name.endswith(("A_log", "linear_attn.norm.weight")) else tensor
                for name, tensor in tensors.items()}

    rewrite_weights(folder, change)
    config["text_config"] |= dict(full_attention_interval=2, mtp_num_hidden_layers=1, mamba_ssm_dtype="float32",
                                  attn_output_gate=True)
    write_config(folder, config)


def fuse_qwen35_experts(folder: Path) -> None:
    """The experts of a layer in two tensors, gates before ups, as Qwen3.5-35B-A3B has them; save_pretrained writes each expert's
    own. And what `add_qwen35_extras` adds."""
    config = read_config(folder)["text_config"]

    def change(tensors: dict) -> dict:
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.language_model.layers.{layer}.mlp.experts"
            gates, ups, downs = ([tensors.pop(f"{prefix}.{i}.{part}_proj.weight") for i in range(config["num_experts"])]
                                 for part in ("gate", "up", "down"))
            tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(both) for both in zip(gates, ups)])
            tensors[f"{prefix}.down_proj"] = torch.stack(downs)
        return tensors

    rewrite_weights(folder, change)
    add_qwen35_extras(folder)


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


def age_lfm2(folder: Path) -> None:
    """The settings as LFM2-1.2B has them."""
    config = read_config(folder)
    hidden = config["hidden_size"]
    config["block_ff_dim"] = config.pop("intermediate_size")
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["tie_embedding"] = config.pop("tie_word_embeddings")
    config["torch_dtype"] = config.pop("dtype")
    del config["layer_types"]
    config |= dict(block_dim=hidden, conv_dim=hidden, conv_dim_out=hidden, num_heads=config["num_attention_heads"],
                   block_norm_eps=config["norm_eps"], block_use_swiglu=True, use_pos_enc=True,
                   block_use_xavier_init=True, conv_use_xavier_init=True, block_mlp_init_scale=1.0,
                   block_out_init_scale=1.0)
    write_config(folder, config)


def age_granite_hybrid(folder: Path) -> None:
    """The names of layers as Granite-4.0-H has them."""
    config = read_config(folder)
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    config["layer_types"] = [names[kind] for kind in config["layer_types"]]
    write_config(folder, config)


def age_nemotron_h(folder: Path) -> None:
    """The settings as Nemotron-Nano-9B-v2 has them: a pattern of letters, and nothing of experts."""
    config = read_config(folder)
    letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-"}
    kinds = config.pop("layers_block_type")
    config |= dict(hybrid_override_pattern="".join(letters[kind] for kind in kinds), num_hidden_layers=len(kinds),
                   rms_norm_eps=config["layer_norm_epsilon"], time_step_limit=[0.0, float("inf")])
    experts = ("moe_", "mtp_", "n_group", "n_routed", "n_shared", "norm_topk", "num_experts", "num_nextn", "routed_",
               "topk_", "output_router")
    write_config(folder, {name: value for name, value in config.items()
                          if not name.startswith(experts) or name == "n_groups"})


def add_gemma4_extras(folder: Path) -> None:
    """Keys and values of the layers that share others', as gemma-4-E2B has them and nobody reads."""
    generator = torch.Generator().manual_seed(9)
    config = read_config(folder)
    kinds, shared = config["layer_types"], config["num_kv_shared_layers"]

    def change(tensors: dict) -> dict:
        for layer in range(len(kinds) - shared, len(kinds)):
            for part in ("k_proj", "v_proj", "k_norm"):
                like = tensors[f"model.layers.{kinds.index(kinds[layer])}.self_attn.{part}.weight"]
                noise = torch.randn(like.shape, generator=generator)
                tensors[f"model.layers.{layer}.self_attn.{part}.weight"] = noise.to(like.dtype)
        return tensors

    rewrite_weights(folder, change)


def age_gemma4(folder: Path) -> None:
    """The settings as gemma-4-26B-A4B has them: global layers in fields of their own."""
    config = read_config(folder)
    text = config["text_config"]
    own = text.pop("per_layer_config")
    layer = own[min(own)]
    text |= dict(global_head_dim=layer["head_dim"], num_global_key_value_heads=layer.get("num_key_value_heads"))
    config |= dict(vision_soft_tokens_per_image=1)
    write_config(folder, config)


def age_phi3(folder: Path) -> None:
    """The settings as Phi-4-mini has them."""
    age_settings(folder)
    config = read_config(folder)
    rope = config["rope_scaling"]
    rope["type"] = rope.pop("rope_type")
    rope.pop("original_max_position_embeddings", None)
    config |= dict(partial_rotary_factor=rope.pop("partial_rotary_factor"), full_attn_mod=1, interpolate_factor=1,
                   lm_head_bias=False, mlp_bias=False, attention_bias=False)
    write_config(folder, config)


def age_olmo3(folder: Path) -> None:
    """The settings as Olmo-3-7B has them."""
    config = read_config(folder)
    rope = config.pop("rope_parameters")["full_attention"]
    config |= dict(rope_theta=rope.pop("rope_theta"), rope_scaling=rope)
    write_config(folder, config)


def age_settings(folder: Path) -> None:
    """The settings as transformers 4 saved them."""
    config = read_config(folder)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.43.0"
    write_config(folder, config)


def age_first_settings(folder: Path) -> None:
    """The settings as transformers 4 first saved them, as Qwen2.5 has them: a sliding window that is not used."""
    age_settings(folder)
    config = read_config(folder)
    del config["layer_types"]
    config["sliding_window"] = 23
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    write_config(folder, config)


def add_glm4_extras(folder: Path) -> None:
    """The layer after the last one that predicts a second token, which a plain decoder skips."""
    generator = torch.Generator().manual_seed(9)

    def change(tensors: dict) -> dict:
        config = read_config(folder)
        hidden, layer = config["hidden_size"], f"model.layers.{config['num_hidden_layers']}"
        more = {"eh_proj.weight": (hidden, 2 * hidden), "enorm.weight": (hidden,), "hnorm.weight": (hidden,),
                "shared_head.norm.weight": (hidden,), "input_layernorm.weight": (hidden,),
                "self_attn.o_proj.weight": (hidden, 10)}
        for name, shape in more.items():
            tensors[f"{layer}.{name}"] = torch.randn(shape, generator=generator).to(torch.bfloat16)
        return tensors

    rewrite_weights(folder, change)
    config = read_config(folder)
    config["num_nextn_predict_layers"] = 1
    config.pop("num_mtp_layers", None)
    config["partial_rotary_factor"] = config["rope_parameters"].pop("partial_rotary_factor", 1.0)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    write_config(folder, config)


def to_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks u8 [..., inputs / 32, 16], the earlier of two values in the low half, and scales u8 [..., inputs / 32],
    the exponent of a power of two plus 127."""
    blocks = weight.float().unflatten(-1, (-1, 32))
    # The largest power of two of the elements is 4, that is 2^2.
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 2
    scaled = blocks * torch.exp2(-exponent)[..., None]
    # Nearest value; a tie goes to the even code.
    distance = (scaled.abs()[..., None] - FP4[:8]).abs()
    even_first = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    code = even_first[distance[..., even_first].argmin(-1)] + 8 * (scaled < 0)
    packed = code[..., 0::2] | code[..., 1::2] << 4
    return packed.to(torch.uint8), (exponent + 127).to(torch.uint8)


def from_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """f32 [..., inputs]."""
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).long()
    return (FP4[codes] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def quantise_gpt_oss(folder: Path) -> None:
    """Experts in MXFP4 and the settings, as gpt-oss-20b has them. save_pretrained has experts as [experts, inputs,
    outputs], the blocks lie along the inputs and are [experts, outputs, inputs / 32, 16]."""

    def change(tensors: dict) -> dict:
        for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = to_mxfp4(tensors.pop(name).transpose(1, 2))
        return tensors

    rewrite_weights(folder, change)
    age_settings(folder)
    config = read_config(folder)
    config |= {"experts_per_token": config["num_experts_per_tok"],
               "initial_context_length": config["rope_scaling"]["original_max_position_embeddings"],
               "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                   "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
    del config["swiglu_alpha"]
    write_config(folder, config)


def blown_up(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Each block's scale at each of its elements; the last block of a side may be smaller."""
    return scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)[:shape[0], :shape[1]]


def quantise_projections(folder: Path) -> dict:
    """Projections in fp8 by blocks: a weight is its e4m3 values times its block's `weight_scale_inv`. Returns the settings
    that say so."""

    def change(tensors: dict) -> dict:
        for name in [name for name, tensor in tensors.items() if tensor.dim() == 2]:
            if name.endswith((".gate.weight", "lm_head.weight", "embed_tokens.weight")):
                continue
            weight = tensors[name].float()
            padded = torch.nn.functional.pad(weight.abs(), (0, -weight.shape[1] % FP8_BLOCK,
                                                            0, -weight.shape[0] % FP8_BLOCK))
            blocks = padded.unflatten(1, (-1, FP8_BLOCK)).unflatten(0, (-1, FP8_BLOCK))
            scales = blocks.amax(dim=(1, 3)) / FP8_MAX
            tensors[name] = (weight / blown_up(scales, weight.shape)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scales
        return tensors

    rewrite_weights(folder, change)
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK]}


def quantise_minimax(folder: Path) -> None:
    """Projections in fp8 and the settings, as MiniMax-M2 has them."""
    quantisation = quantise_projections(folder) | {
        "fmt": "float8_e4m3fn", "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}
    config = read_config(folder)
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["rope_theta"], "use_qk_norm": True, "qk_norm_type": "per_layer",
               "rotary_dim": int(rope["partial_rotary_factor"] * config["head_dim"]), "scoring_func": "sigmoid",
               "use_routing_bias": True, "shared_intermediate_size": 0,
               "attn_type_list": [1] * config["num_hidden_layers"], "quantization_config": quantisation}
    write_config(folder, config)


def quantise_deepseek(folder: Path) -> None:
    """Projections in fp8 and the settings, as DeepSeek-V3 has them."""
    quantisation = quantise_projections(folder)
    age_settings(folder)
    config = read_config(folder)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    for name in ("qk_head_dim", "head_dim", "rope_interleave", "num_mtp_layers"):
        config.pop(name, None)
    config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1,
               "aux_loss_alpha": 0.001, "seq_aux": True, "num_nextn_predict_layers": 0, "quantization_config": quantisation}
    write_config(folder, config)


def from_fp8(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """f32, each value times the scale of its block of FP8_BLOCK x FP8_BLOCK. Checked against transformers, which needs
    whole blocks."""
    rows, columns = values.shape
    made = values.float() * blown_up(scales, values.shape)
    padded = torch.nn.functional.pad(values.float(), (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    theirs = Fp8Dequantize(None)._dequantize_one(padded, scales, output_dtype=torch.float32)
    if not torch.equal(theirs[:rows, :columns], made):
        raise SystemExit("error: transformers dequantises fp8 blocks in another way")
    return made


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def quantise_nvfp4(folder: Path) -> None:
    """Projections in NVFP4 and the settings, as ModelOpt writes them: codes of e2m1, times e4m3 for each 16 columns, times
    `weight_scale_2`."""
    def change(tensors: dict) -> dict:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            groups = tensors[name].float().unflatten(1, (-1, 16))
            number = groups.abs().max() / 6 / FP8_MAX
            scales = (groups.abs().amax(dim=2) / 6 / number).to(torch.float8_e4m3fn)
            factors = (scales.float() * number)[:, :, None, None]
            codes = (groups[..., None] - E2M1 * factors).abs().argmin(dim=3).flatten(1).to(torch.uint8)
            tensors[name] = codes[:, ::2] | codes[:, 1::2] << 4
            tensors |= {f"{name}_scale": scales, f"{name}_scale_2": number,
                        f"{name.removesuffix('weight')}input_scale": torch.tensor(0.5)}
        return tensors

    rewrite_weights(folder, change)
    write_config(folder, read_config(folder) | {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}})


def from_nvfp4(codes: torch.Tensor, scales: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """f32, by the definition of quantise_nvfp4."""
    values = E2M1[torch.stack([codes & 15, codes >> 4], dim=2).flatten(1).int()]
    return values * (scales.float() * number).repeat_interleave(16, dim=1)


def quantisation(folder: Path) -> str | None:
    """The method by which the weights are quantised."""
    return read_config(folder).get("quantization_config", {}).get("quant_method")


@contextmanager
def dequantised(folder: Path) -> Iterator[Path]:
    """A copy of the folder with plain f32 weights in place of quantised ones, or the folder itself."""
    if quantisation(folder) is None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch)
        shutil.copy(folder / WEIGHTS, plain)
        config = read_config(folder)
        del config["quantization_config"]
        write_config(plain, config)

        def change(tensors: dict) -> dict:
            made = {}
            for name, tensor in tensors.items():
                if name.endswith("_blocks"):
                    stem = name.removesuffix("_blocks")
                    made[stem] = from_mxfp4(tensor, tensors[f"{stem}_scales"]).transpose(1, 2)
                elif f"{name}_scale_inv" in tensors:
                    made[name] = from_fp8(tensor, tensors[f"{name}_scale_inv"])
                elif f"{name}_scale_2" in tensors:
                    made[name] = from_nvfp4(tensor, tensors[f"{name}_scale"], tensors[f"{name}_scale_2"])
                elif not name.endswith(("_scales", "_scale", "_scale_2", "_scale_inv")):
                    made[name] = tensor
            return made

        rewrite_weights(plain, change)
        yield plain
