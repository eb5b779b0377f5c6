"""Tiny random checkpoints, saved as released ones are, and the numbers that they must give: `hf_reference.py tiny`, and
`narrow` for numbers of one more type beside those that are there, `each` for those of generated tokens.

An architecture is an entry of TINY. Where released checkpoints have another layout than save_pretrained writes, the
entry names a function of hf_layouts.py that rewrites the folder; the numbers are made from what a reader of the folder
gets, after a check that it gives what the model in memory gave.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config, PreTrainedTokenizerFast

import hf_layouts
from hf_numbers import (IndexMargin, RouterMargin, attention_modules, describe, each, greedy, read_request, reference,
                        write_reference, write_request)

PROMPT_TOKENS = 151  # prime: a multiple of no chunk size
GREEDY_TOKENS = 64
# Of them, how many get rows of their own.
# Largest weights of a row in the references of knock-outs.
KNOCKOUT_TOP = 3
EACH_TOKENS = 12
LOGIT_POSITIONS = 16
FIXTURE_BYTES = 1_000_000
# A greedy step whose two best logits are closer than this could flip between implementations that agree in every
# number to the tolerance of the parity tests (1e-3), so a seed that gives one is refused. Likewise a token that all
# but chooses another expert.
LEAST_MARGIN = 1e-2
LEAST_ROUTER_MARGIN = 1e-3
# Scores of keys are rounded by a tenth of this.
LEAST_INDEX_MARGIN = 1e-5
# Another processor gives other rounding errors, a hundredth of this in f32 logits; another checkpoint gives others by 1.
SAME_LOGITS = 1e-3
# The types that large models are run in.
NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}
# Which of the numbers are stated in them too.
NUMBERS = ("logits", "mass", "sink", "delta_signed", "delta_share")
# The buffer that a router adds to its sigmoids to choose by.
CORRECTION = ("e_score_correction_bias", "expert_bias")

# What every architecture shares. Sizes are odd on purpose: none is a multiple of a SIMD width or a block size, so a
# kernel that forgets its remainder cannot pass. The norm's epsilon is large on purpose: with a usual one, an engine
# that has the value built in instead of reading it would differ by less than the tolerance. `vocab_size` is the
# tokeniser's.
SHARED = dict(
    hidden_size=72,
    intermediate_size=100,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    rms_norm_eps=1e-3,
)


@dataclass(frozen=True)
class Tiny:
    """A tiny checkpoint: transformers' model type, what differs from SHARED, and how it is saved."""

    model_type: str
    config: dict = field(default_factory=dict)
    # For a model type that holds the text model's settings as `text_config`: what lies beside them.
    around: dict | None = None
    # Standard deviation of a tied embedding. It is small because the last hidden state would otherwise be most like the
    # embedding of the token that was read, and greedy decoding would repeat one token for ever.
    embedding: float = 0.12
    # The type on disk, to which the weights are rounded. Released checkpoints are bfloat16.
    dtype: torch.dtype = torch.bfloat16
    # Released checkpoints keep the template in tokenizer_config.json (older) or chat_template.jinja (newer).
    template_in_own_file: bool = True
    # The largest size of a shard, where there are several.
    shard: str | None = None
    # Rewrites the folder that save_pretrained wrote to the layout of released checkpoints.
    release: Callable[[Path], None] | None = None
    seed: int = 1


# With these numbers the rotary wavelengths of 10 pairs (head_dim 20) fall in all three of YaRN's ranges: kept, blended
# and slowed down, and the slowed ones matter within the prompt.
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=512)

# Two linear key heads serve six value heads. A rotary quarter of head_dim 24 is three pairs, one for each of the
# sections that images would use.
QWEN35 = dict(hidden_size=60, intermediate_size=68, head_dim=24, num_hidden_layers=4, linear_num_key_heads=2,
              linear_num_value_heads=6, linear_key_head_dim=30, linear_value_head_dim=10, linear_conv_kernel_dim=4,
              rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.25,
                                   mrope_section=[1, 1, 1], mrope_interleaved=True))
QWEN35_VISION = dict(depth=1, hidden_size=12, intermediate_size=20, num_heads=2, out_hidden_size=60, patch_size=4,
                     num_position_embeddings=4)

# Three of seven experts a token, and a gated shared one.
QWEN35_MOE = dict({name: value for name, value in QWEN35.items() if name != "intermediate_size"}, num_hidden_layers=3,
                  num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28, shared_expert_intermediate_size=36,
                  tie_word_embeddings=False)

# query_pre_attn_scalar is not head_dim. The sliding layers rotate faster than the global ones.
GEMMA3 = dict(head_dim=20, num_hidden_layers=4, sliding_window=23, query_pre_attn_scalar=13,
              rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=20000.0, factor=8.0),
                                   sliding_attention=dict(rope_type="default", rope_theta=300.0)))

# Global layers have wider heads, of which two fifths turn. The cap bends the logits.
GEMMA4 = dict(hidden_size=48, head_dim=20, global_head_dim=28, sliding_window=23, final_logit_softcapping=20.0,
              rope_parameters=dict(
                  full_attention=dict(rope_type="proportional", rope_theta=2000.0, partial_rotary_factor=0.4),
                  sliding_attention=dict(rope_type="default", rope_theta=300.0)))

# Three of seven experts a token, none of a usual size.
QWEN3_MOE = dict(hidden_size=60, head_dim=20, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=28,
                 tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0))

# The limit of the experts' activation is low enough to clip.
GPT_OSS = dict(head_dim=20, sliding_window=23, num_local_experts=5, num_experts_per_tok=2, swiglu_limit=2.5,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"],
               max_position_embeddings=2048, tie_word_embeddings=False,
               rope_parameters=dict(YARN, factor=8.0, original_max_position_embeddings=256, beta_fast=16.0,
                                    beta_slow=1.0, truncate=False))

# Five rotary pairs of ten; a dense first layer.
GLM4_MOE = dict(hidden_size=60, head_dim=20, attention_bias=True, first_k_dense_replace=1, n_routed_experts=9,
                num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=2, routed_scaling_factor=1.7,
                tie_word_embeddings=False,
                rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))

MINIMAX_M2 = dict(hidden_size=60, head_dim=20, intermediate_size=28, num_local_experts=7, num_experts_per_tok=3,
                  tie_word_embeddings=False,
                  rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))

LFM2 = dict(hidden_size=48, intermediate_size=120, block_multiple_of=16, conv_L_cache=4, norm_eps=1e-3, rms_norm_eps=None, tie_word_embeddings=True,
            max_position_embeddings=2048, rope_parameters=dict(rope_type="default", rope_theta=10000.0))

# More taps than LFM2's. Of ten rotary pairs of the global layer four turn.
LFM3 = dict(hidden_size=48, intermediate_size=60, head_dim=20, conv_L_cache=5, sliding_window=23, norm_eps=1e-3,
            rms_norm_eps=None, max_position_embeddings=2048, rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=2000.0, partial_rotary_factor=0.4),
                sliding_attention=dict(rope_type="default", rope_theta=300.0)))

# Two groups serve six heads, whose width is no multiple of the state's.
GRANITE_HYBRID = dict(
    hidden_size=48, num_local_experts=0, shared_intermediate_size=60, embedding_multiplier=7.0, attention_multiplier=0.25,
    residual_multiplier=0.6, logits_scaling=0.8, mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=20,
    mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=64, tie_word_embeddings=True,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0))
NEMOTRON_H = dict(
    hidden_size=48, head_dim=12, intermediate_size=60, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=20,
    conv_kernel=4, chunk_size=64, layer_norm_epsilon=1e-3, rms_norm_eps=None, time_step_min=0.05, tie_word_embeddings=False)
PIXTRAL = dict(model_type="pixtral", hidden_size=12, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2,
               head_dim=6, image_size=8, patch_size=4)

# Latent attention: no two of its widths are equal. The norm of the latent vector has its own epsilon in every model.
LATENT = dict(hidden_size=50, num_attention_heads=5, num_key_value_heads=5, kv_lora_rank=22, qk_nope_head_dim=14,
              qk_rope_head_dim=10, v_head_dim=18, intermediate_size=52, moe_intermediate_size=14, n_routed_experts=9,
              num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.7,
              tie_word_embeddings=False, max_position_embeddings=2048)

# One entry an architecture or variant.
TINY = {
    "llama": Tiny("llama", dict(head_dim=12, tie_word_embeddings=False,
                                rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
                  dtype=torch.float32, template_in_own_file=False, seed=2),
    # head_dim is not hidden_size / heads. With these numbers the ten rotary wavelengths fall in all three of the
    # llama3 ranges (kept, blended, slowed down), and the slowed ones matter within the prompt.
    "llama3": Tiny("llama", dict(head_dim=20, tie_word_embeddings=True,
                                 rope_parameters=dict(rope_type="llama3", rope_theta=50000.0, factor=8.0,
                                                      low_freq_factor=1.0, high_freq_factor=4.0,
                                                      original_max_position_embeddings=512)),
                   embedding=0.35, dtype=torch.float32, seed=4),
    # The layer without rotation, which no interval of four would give, has a window.
    "smollm3": Tiny("smollm3", dict(tie_word_embeddings=True, no_rope_layers=[1, 0, 1], use_sliding_window=True,
                                    sliding_window=23,
                                    rope_parameters=dict(rope_type="default", rope_theta=10000.0)), seed=1),
    # head_dim is hidden_size / heads = 12: six rotary pairs.
    "qwen2": Tiny("qwen2", dict(tie_word_embeddings=True, max_position_embeddings=2048, rope_parameters=YARN), seed=2),
    "qwen3": Tiny("qwen3", dict(
        head_dim=20, tie_word_embeddings=False, max_position_embeddings=2048,
        rope_parameters=dict(YARN, attention_factor=1.3, beta_fast=8.0, beta_slow=3.0)), seed=2),
    "qwen35-text": Tiny("qwen3_5_text", dict(
        QWEN35, tie_word_embeddings=False,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"]), seed=1),
    "qwen35-nested": Tiny("qwen3_5", dict(
        QWEN35, tie_word_embeddings=True,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"]),
        around=dict(tie_word_embeddings=True, vision_config=QWEN35_VISION),
        release=hf_layouts.add_qwen35_extras, seed=2),
    "qwen35-moe-text": Tiny("qwen3_5_moe_text", dict(QWEN35_MOE, layer_types=[
        "linear_attention", "full_attention", "linear_attention"]), seed=11),
    "qwen35-moe-nested": Tiny("qwen3_5_moe", dict(
        QWEN35_MOE, layer_types=["linear_attention", "full_attention"], num_hidden_layers=2),
        around=dict(tie_word_embeddings=False, vision_config=QWEN35_VISION),
        release=hf_layouts.fuse_qwen35_experts, seed=13),
    "qwen3-next": Tiny("qwen3_next", dict(
        QWEN35_MOE, intermediate_size=44, norm_topk_prob=False, mlp_only_layers=[2], layer_types=[
            "linear_attention", "full_attention", "linear_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.25)), seed=6),
    "mistral": Tiny("mistral", dict(head_dim=20, sliding_window=23, tie_word_embeddings=False,
                                    rope_parameters=dict(rope_type="default", rope_theta=10000.0)), seed=2),
    # As Ministral 3: queries grow twice within the prompt.
    "mistral3-nested": Tiny("mistral3", dict(
        model_type="ministral3", head_dim=20, tie_word_embeddings=False, max_position_embeddings=2048,
        rope_parameters=dict(YARN, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0,
                             llama_4_scaling_beta=0.3)),
        around=dict(tie_word_embeddings=False, spatial_merge_size=1, vision_config=PIXTRAL), seed=1),
    # As Phi-4: no scaling.
    "phi3": Tiny("phi3", dict(tie_word_embeddings=False, original_max_position_embeddings=8192,
                              rope_parameters=dict(rope_type="default", rope_theta=10000.0)), seed=1),
    # As Phi-4-mini: three of four rotary pairs turn, by factors of their own.
    "phi3-longrope": Tiny("phi3", dict(
        hidden_size=96, tie_word_embeddings=True, sliding_window=23, original_max_position_embeddings=2048,
        rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                             short_factor=[1.0, 1.1, 1.3, 2.0, 3.5, 5.0], long_factor=[1.0, 2.0, 4.0, 8.0, 16.0, 32.0])),
        release=hf_layouts.age_phi3, seed=4),
    "granite": Tiny("granite", dict(
        tie_word_embeddings=True, embedding_multiplier=7.0, attention_multiplier=0.17, residual_multiplier=0.6,
        logits_scaling=3.0, rope_parameters=dict(rope_type="default", rope_theta=10000.0)), embedding=0.02, seed=3),
    # The global layer's frequencies alone are scaled. The released base is 500,000 for all.
    "olmo3": Tiny("olmo3", dict(num_hidden_layers=4, sliding_window=23, tie_word_embeddings=False, layer_types=[
        "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"], rope_parameters=dict(
            full_attention=dict(YARN, original_max_position_embeddings=128, attention_factor=1.2),
            sliding_attention=dict(rope_type="default", rope_theta=300.0))), seed=1),
    # The settings as Olmo-3-7B has them: `rope_theta`, and a `rope_scaling` that holds for the global layer.
    "olmo3-old-config": Tiny("olmo3", dict(num_hidden_layers=4, hidden_size=48, intermediate_size=60,
                                           sliding_window=23, tie_word_embeddings=False, rope_parameters=dict(
            full_attention=dict(YARN, rope_theta=500000.0, original_max_position_embeddings=128),
            sliding_attention=dict(rope_type="default", rope_theta=500000.0))), release=hf_layouts.age_olmo3, seed=2),
    # As EXAONE 4.0 32B: the global layer does not rotate. It is not the one that the pattern gives, which the list overrides.
    "exaone4": Tiny("exaone4", dict(head_dim=20, num_hidden_layers=4, sliding_window=23, sliding_window_pattern="LLLG",
                                    tie_word_embeddings=False, layer_types=[
                                        "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
                                    rope_parameters=dict(rope_type="llama3", rope_theta=50000.0, factor=8.0,
                                                         low_freq_factor=1.0, high_freq_factor=4.0,
                                                         original_max_position_embeddings=512)), seed=1),
    # As EXAONE 4.0 1.2B: no windows, so that all layers rotate; settings of transformers 4.
    "exaone4-global": Tiny("exaone4", dict(hidden_size=48, intermediate_size=60, head_dim=20, num_hidden_layers=2,
                                           sliding_window=None, tie_word_embeddings=True,
                                           layer_types=["full_attention", "full_attention"],
                                           rope_parameters=dict(rope_type="llama3", rope_theta=50000.0, factor=8.0,
                                                                low_freq_factor=1.0, high_freq_factor=4.0,
                                                                original_max_position_embeddings=512)),
                           release=hf_layouts.age_settings, seed=1),
    "gemma3": Tiny("gemma3_text", dict(GEMMA3, layer_types=[
        "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]), seed=2),
    # The settings as gemma-3-4b-it has them: a pattern instead of a list of layers, rope_theta and its local sibling.
    "gemma3-nested": Tiny("gemma3", dict(GEMMA3, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
        around=dict(mm_tokens_per_image=1, vision_config=dict(
            model_type="siglip_vision_model", hidden_size=12, intermediate_size=20, num_hidden_layers=1,
            num_attention_heads=2, image_size=8, patch_size=4)),
        release=hf_layouts.age_gemma3, seed=1),
    # As Gemma 4 E2B: per-layer embeddings; the last two layers read the keys of the third and second, and are twice as wide.
    "gemma4": Tiny("gemma4_text", dict(
        GEMMA4, num_hidden_layers=5, intermediate_size=36, hidden_size_per_layer_input=10, num_kv_shared_layers=2,
        use_double_wide_mlp=True, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
        release=hf_layouts.add_gemma4_extras, seed=1),
    # As Gemma 4 26B-A4B, with an audio tower beside it: keys of global layers are values, experts beside the dense block.
    "gemma4-moe-nested": Tiny("gemma4", dict(
        GEMMA4, num_hidden_layers=3, intermediate_size=36, hidden_size_per_layer_input=0, attention_k_eq_v=True,
        num_global_key_value_heads=1, enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=20,
        use_bidirectional_attention="vision", layer_types=["full_attention", "sliding_attention", "full_attention"]),
        around=dict(vision_config=dict(
            hidden_size=12, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
            head_dim=8, patch_size=4, position_embedding_size=4), audio_config=dict(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, subsampling_conv_channels=[4, 4],
            output_proj_dims=12)),
        release=hf_layouts.age_gemma4, seed=3),
    # As Gemma 4 12B: images and sounds are embedded without towers.
    "gemma4-unified-nested": Tiny("gemma4_unified", dict(
        GEMMA4, num_hidden_layers=3, intermediate_size=36, attention_k_eq_v=True, num_global_key_value_heads=1,
        layer_types=["full_attention", "sliding_attention", "full_attention"]),
        around=dict(vision_config=dict(patch_size=2, pooling_kernel_size=1, mm_embed_dim=12, mm_posemb_size=4,
                                       output_proj_dims=48), audio_config=dict(audio_embed_dim=8)),
        release=hf_layouts.age_gemma4, seed=5),
    "qwen3-moe": Tiny("qwen3_moe", dict(QWEN3_MOE, norm_topk_prob=True, mlp_only_layers=[1]), seed=2),
    # Sparse where (layer + 1) % 2 is 0: layers 1 and 3.
    "qwen3-moe-unnormalised": Tiny("qwen3_moe", dict(
        QWEN3_MOE, num_hidden_layers=4, norm_topk_prob=False, decoder_sparse_step=2, num_experts=5,
        num_experts_per_tok=2), seed=1),
    "gpt-oss": Tiny("gpt_oss", dict(GPT_OSS, hidden_size=60, intermediate_size=36), seed=9),
    "gpt-oss-mxfp4": Tiny("gpt_oss", dict(GPT_OSS, hidden_size=96, intermediate_size=64),
                          release=hf_layouts.quantise_gpt_oss, seed=2),
    # As GLM-4.5-Air, but for the groups of experts (two of three).
    "glm4-moe": Tiny("glm4_moe", dict(GLM4_MOE, use_qk_norm=False, n_group=3, topk_group=2, norm_topk_prob=True),
                     release=hf_layouts.add_glm4_extras, seed=7),
    # As GLM-4.5 and 4.6: norms of queries and keys, one group.
    "glm4-moe-qk-norm": Tiny("glm4_moe", dict(GLM4_MOE, use_qk_norm=True, n_group=1, topk_group=1,
                                              norm_topk_prob=True), seed=36),
    "minimax-m2": Tiny("minimax_m2", MINIMAX_M2, seed=90),
    # Blocks of 128 x 128 with remainders on both sides: 140 = 128 + 12, 144 = 128 + 16, 36 < 128.
    "minimax-m2-fp8": Tiny("minimax_m2", dict(
        MINIMAX_M2, hidden_size=140, head_dim=24, intermediate_size=36, num_hidden_layers=2, num_local_experts=5,
        num_experts_per_tok=2), release=hf_layouts.quantise_minimax, seed=1),
    # Four taps; the width of the feed-forward blocks is 80, two thirds of 120, rounded up by nothing to a multiple of 16.
    "lfm2": Tiny("lfm2", dict(LFM2, num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "full_attention"]), seed=1),
    # As LFM2-1.2B: a list of the layers with attention, and the settings of its first authors beside.
    "lfm2-old-config": Tiny("lfm2", dict(LFM2, conv_L_cache=3, block_auto_adjust_ff_dim=False,
                                         intermediate_size=60, full_attn_idxs=[1]), release=hf_layouts.age_lfm2, seed=3),
    "lfm2-moe": Tiny("lfm2_moe", dict(
        {name: value for name, value in LFM2.items() if not name.startswith("block")}, intermediate_size=52,
        tie_word_embeddings=False, conv_bias=True, num_hidden_layers=3, moe_intermediate_size=20, num_experts=5,
        num_experts_per_tok=2, num_dense_layers=1, layer_types=["conv", "full_attention", "conv"]), seed=3),
    # As LFM3-1.7B.
    "lfm3": Tiny("lfm3", dict(LFM3, tie_word_embeddings=True, num_hidden_layers=4, layer_types=[
        "conv", "full_attention", "sliding_attention", "conv"]), seed=1),
    # No gates; biases, and an untied output.
    "lfm3-ungated": Tiny("lfm3", dict(
        LFM3, tie_word_embeddings=False, num_hidden_layers=3, use_attention_gate=False, attention_bias=True, conv_bias=True,
        layer_types=["sliding_attention", "conv", "full_attention"]), seed=3),
    # As Granite-4.0-H-Micro: no experts, no positions.
    "granite-hybrid": Tiny("granitemoehybrid", dict(GRANITE_HYBRID, num_hidden_layers=4, layer_types=[
        "linear_attention", "linear_attention", "full_attention", "linear_attention"]),
        embedding=0.02, release=hf_layouts.age_granite_hybrid, seed=2),
    "granite-hybrid-moe": Tiny("granitemoehybrid", dict(
        GRANITE_HYBRID, num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, shared_intermediate_size=28,
        mamba_proj_bias=True, position_embedding_type="rope", num_hidden_layers=3, tie_word_embeddings=False, layer_types=[
            "linear_attention", "full_attention", "linear_attention"]), seed=3),
    # As Granite-4.0-Micro: attention alone.
    "granite-hybrid-dense": Tiny("granitemoehybrid", dict(
        GRANITE_HYBRID, position_embedding_type="rope", num_hidden_layers=2,
        layer_types=["full_attention", "full_attention"]), embedding=0.02, seed=2),
    "nemotron-h": Tiny("nemotron_h", dict(NEMOTRON_H, layers_block_type=[
        "linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention"]),
        release=hf_layouts.age_nemotron_h, seed=1),
    # As Nemotron 3 Nano.
    "nemotron-h-moe": Tiny("nemotron_h", dict(
        NEMOTRON_H, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=20, routed_scaling_factor=1.5,
        moe_shared_expert_intermediate_size=28, layers_block_type=[
            "linear_attention", "moe", "linear_attention", "full_attention", "moe", "linear_attention"]), seed=9),
    # One projection of the queries, as DeepSeek-V2-Lite; the groups of DeepSeek-V2 (two of three).
    "deepseek-v2": Tiny("deepseek_v2", dict(
        LATENT, q_lora_rank=None, n_group=3, topk_group=2, topk_method="group_limited_greedy",
        rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707)), seed=2),
    # Weights in FP8, and two factors of YaRN that differ.
    "deepseek-v3": Tiny("deepseek_v3", dict(
        LATENT, q_lora_rank=26, n_group=3, topk_group=2, norm_topk_prob=True,
        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.6)), release=hf_layouts.quantise_deepseek, seed=18),
    # As GLM-4.7-Flash: one group, no YaRN, and values wider than keys.
    "glm4-moe-lite": Tiny("glm4_moe_lite", dict(
        LATENT, q_lora_rank=26, v_head_dim=30, norm_topk_prob=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0)), release=hf_layouts.add_glm4_extras, seed=81),
    # Every row sees 24 keys, which an indexer of 13 heads chooses.
    "deepseek-v32": Tiny("deepseek_v32", dict(
        LATENT, q_lora_rank=26, n_group=3, topk_group=2, norm_topk_prob=True, index_topk=24, index_n_heads=13,
        index_head_dim=16, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)), seed=37),
    # As GLM-5: the third layer sees what the second chose, and neighbours turn together in indexers too.
    "glm-moe-dsa": Tiny("glm_moe_dsa", dict(
        LATENT, q_lora_rank=26, norm_topk_prob=True, index_topk=24, index_n_heads=13, index_head_dim=16,
        indexer_types=["full", "full", "shared"], rope_parameters=dict(rope_type="default", rope_theta=10000.0)), seed=75),
    # As Mistral Small 4, but for pairs of halves: queries grow twice within the prompt.
    "mistral4-nested": Tiny("mistral3", dict(
        LATENT, model_type="mistral4", q_lora_rank=26, rope_interleave=False, norm_topk_prob=True, first_k_dense_replace=0,
        rope_parameters=dict(YARN, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0,
                             llama_4_scaling_beta=0.3)),
        around=dict(tie_word_embeddings=False, spatial_merge_size=1, vision_config=PIXTRAL), seed=1),
    # Settings as before transformers 5: rope_theta and rope_scaling instead of rope_parameters.
    "llama-old-config": Tiny("llama", dict(
        hidden_size=60, head_dim=20, tie_word_embeddings=False, rope_parameters=dict(
            rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=512)), release=hf_layouts.age_settings, seed=4),
    # The same with `type`, which was the first name of `rope_type`, and two shards.
    "qwen2-sharded": Tiny("qwen2", dict(hidden_size=60, tie_word_embeddings=False, max_position_embeddings=2048,
                                        rope_parameters=YARN),
                          shard="150KB", release=hf_layouts.age_first_settings, seed=4),
}
# For gguf_fixtures.py, with the released models' values of what a GGUF file cannot say.
TINY |= {
    # Every layer is sparse and the weights of the chosen experts sum to 1.
    "gguf-qwen3-moe": Tiny("qwen3_moe", dict(QWEN3_MOE, norm_topk_prob=True), seed=6),
    # Weights of experts are normalised, and no layer is dense.
    "gguf-qwen3-next": Tiny("qwen3_next", dict(
        QWEN35_MOE, hidden_size=36, head_dim=16, intermediate_size=44, num_experts=5, moe_intermediate_size=10,
        shared_expert_intermediate_size=12, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        norm_topk_prob=True, rope_parameters=dict(
            rope_type="default", rope_theta=500.0, partial_rotary_factor=0.25)), seed=2),
    "gguf-qwen3-nvfp4": Tiny("qwen3", dict(
        hidden_size=64, intermediate_size=128, head_dim=16, num_attention_heads=4, num_hidden_layers=2,
        tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        release=hf_layouts.quantise_nvfp4, seed=1),
    # The fourth layer of five does not rotate.
    "gguf-smollm3": Tiny("smollm3", dict(hidden_size=36, intermediate_size=52, num_hidden_layers=5,
                                         tie_word_embeddings=True,
                                         rope_parameters=dict(rope_type="default", rope_theta=10000.0)), seed=1),
    # The scale is that of head_dim; of six layers the last is global. Of seven here, so that the period shows.
    "gguf-gemma3": Tiny("gemma3_text", dict(GEMMA3, hidden_size=36, intermediate_size=52, num_hidden_layers=7,
                                            query_pre_attn_scalar=20), seed=2),
    # The limit of the experts' activation is 7, and every other layer slides.
    "gguf-gpt-oss": replace(TINY["gpt-oss"], config=dict(TINY["gpt-oss"].config, swiglu_limit=7.0), seed=3),
    # The converter has no output head apart from the embedding.
    "gguf-lfm2-moe": replace(TINY["lfm2-moe"], config=dict(TINY["lfm2-moe"].config, tie_word_embeddings=True,
                                                           conv_bias=False), seed=58),
    "gguf-gpt-oss-mxfp4": replace(TINY["gpt-oss-mxfp4"], config=dict(TINY["gpt-oss-mxfp4"].config, swiglu_limit=7.0),
                                  seed=7),
}

# The request of the tiny fixtures. Spans overlap (`overlap`, `tail`), leave a gap (tokens 1..17), start and end off
# every block, lie wholly after a row span (`query` seen from `new`), or cover all (its mass is 1).
TINY_SPANS = {
    "bos": [0, 1],
    "old": [17, 54],
    "neighbour": [54, 83],
    "one": [64, 65],
    "overlap": [40, 97],
    "new": [83, 120],
    "tail": [101, 151],
    "query": [139, 151],
    "all": [0, 151],
}
TINY_ROWS = ["new", "query"]

# A few merges, so that a token can lie across a border: a content that starts with a line break merges with the one
# that the chat template puts before it (`ĊĊ`).
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "Ċ Ċ", "in g", "Ġ Ġ"]
SPECIAL_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
CHAT_TEMPLATE = (
    "{%- for turn in messages -%}"
    "{{- '<|im_start|>' ~ turn['role'] ~ '\\n' ~ turn['content'] ~ '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, MERGES and the three ChatML tokens."""
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(merge) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                   clean_up_tokenization_spaces=False,
                                   model_max_length=SHARED["max_position_embeddings"])
    fast.chat_template = CHAT_TEMPLATE
    return fast


SHARP_NORMS = ("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight")


def random_vector(name: str, initial: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """One value for a tensor of one dimension, by its kind."""
    last = name.rsplit(".", 1)[-1]
    if "norm" in name:
        # Norms start at 1, or at 0 where the model multiplies by 1 + weight. A norm of queries or keys sets how sharp
        # attention is, whatever the projection's scale.
        return initial + (0.5 if name.endswith(SHARP_NORMS) else 0) + 0.25 * noise
    if last == "A_log":
        # From heads that keep a token through the whole prompt to heads that forget it at once.
        return torch.linspace(-6.0, 0.5, len(noise)) + 0.3 * noise
    if last == "D":
        return 1 + 0.5 * noise
    if last == "dt_bias":
        return noise
    if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")):
        return 0.5 * noise
    if last == "sinks":
        # From a sink that takes little to one that takes most of what its head has to give.
        return torch.linspace(1.0, 7.0, len(noise)) + noise
    if name.endswith("router.bias"):
        return 0.5 * noise
    if name.endswith("scale"):
        return initial + 0.25 * noise
    return 0.1 * noise


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int, embedding: float) -> None:
    """Weights under which parity is hard to reach by accident: attention far from uniform, heads unlike each other.

    A fresh initialisation (std 0.02, norms 1) gives nearly uniform attention, which hides mistakes in rotation, scale
    and grouping. Here scores have a standard deviation of about 1 to 5 from the first head to the last.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config.get_text_config()
    head_dim = getattr(config, "qk_head_dim", None)
    if "gemma4" not in config.model_type:  # whose layers differ in it
        head_dim = head_dim or getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    # Gemma multiplies by the root of hidden_size what it reads, not what it predicts from.
    embedding /= getattr(model.get_input_embeddings(), "scalar_embed_scale", 1.0) ** 0.5
    tied = config.tie_word_embeddings
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            weight.copy_(random_vector(name, weight, noise))
            if "gemma4" in config.model_type and name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.mul_(0.55)  # its scores have no scale
            if tied and name.endswith(("model.norm.weight", "language_model.norm.weight", "embedding_norm.weight")):
                weight.add_(0.35 / embedding - 1)  # logits of the same size whatever the embedding's
        elif "per_layer.weight" in name:
            weight.copy_(noise * config.hidden_size_per_layer_input ** -0.5)
        elif "embed" in name:
            weight.copy_((embedding if tied else 1.0) * noise)
        elif name.endswith("proj_bias"):
            weight.copy_(0.3 * noise)
        else:
            gain, inputs = 1.0, weight[0].numel()
            if ".experts." in name:
                # [experts, outputs, inputs], but for gpt_oss, which also clips large values.
                inputs = weight.shape[1 if config.model_type == "gpt_oss" else 2]
                gain = 1.8 if config.model_type == "gpt_oss" else 1.0
            elif name.endswith(("mlp.gate.weight", "mlp.router.weight", "feed_forward.gate.weight",
                                "mixer.gate.weight", "router.weight")):
                # Decisive, but for sigmoids not so much that they saturate.
                gain = 2.5 if config.model_type in ("qwen3_moe", "gpt_oss", "deepseek_v2", "mistral4") else 1.5
            elif name.endswith("router.proj.weight"):
                gain = 2.5 * inputs ** 0.5  # of an input that is scaled down
            elif name.endswith(("q_proj.weight", "q_b_proj.weight", "k_proj.weight")) and "vision" not in name and "audio" not in name:
                if "gemma4" in config.model_type:
                    head_dim = model.get_submodule(name.rsplit(".", 2)[0]).head_dim
                heads = weight.shape[0] // head_dim
                gain = torch.linspace(1.0, 2.2, heads).repeat_interleave(head_dim)[:, None]
            elif name.endswith("qkv_proj.weight"):
                heads = [config.num_attention_heads, config.num_key_value_heads]
                gain = torch.cat([*(torch.linspace(1.0, 2.2, n) for n in heads), torch.ones(heads[1])])
                head_dim = model.get_submodule(name.rsplit(".", 2)[0]).head_dim
                gain = gain.repeat_interleave(head_dim)[:, None]
            elif name.endswith("in_proj_b.weight"):
                gain = torch.linspace(1.0, 3.0, weight.shape[0])[:, None]
            elif name.endswith("conv1d.weight") and "audio" not in name:
                # From nearly linear in the activation that follows to well bent by it. Keys that are all bent point
                # the same way, and the state forgets what it was told before. Values are large, so that the epsilon of
                # the norm after them does not swamp them.
                gain = torch.tensor([0.1, 0.2, 0.4, 0.8, 1.5]).repeat(len(weight))[:len(weight), None, None]
                if hasattr(config, "linear_num_key_heads"):
                    gain[2 * config.linear_num_key_heads * config.linear_key_head_dim:] = 4.0
            elif name.endswith(("conv.in_proj.weight", "g_proj.weight")):
                gain = 1.5
            elif name.startswith("lm_head"):
                gain = 2.5
            weight.copy_(gain * noise * inputs ** -0.5)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("layer_scalar"):
            buffer.copy_((buffer + 0.25 * torch.randn(buffer.shape, generator=generator)).to(torch.bfloat16))
        if name.endswith(CORRECTION):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))


def load(folder: Path, dtype: torch.dtype, **more) -> torch.nn.Module:
    """What a reader of the folder gets, with the plainest implementation of everything. Quantised weights are
    dequantised here, by their format's definition."""
    # AutoModelForCausalLM knows no Mistral 3.
    mistral = hf_layouts.read_config(folder)["model_type"] == "mistral3"
    auto = hf_layouts.whole_class("mistral3") if mistral else AutoModelForCausalLM
    with hf_layouts.dequantised(folder) if not more else nullcontext(folder) as plain:
        return auto.from_pretrained(plain, dtype=dtype, attn_implementation="eager",
                                                    experts_implementation="eager", **more).eval()


def make(tiny: Tiny, seed: int, out: Path) -> None:
    """Writes the checkpoint and its tokeniser."""
    tokenizer = tiny_tokenizer()
    settings = {**SHARED, **tiny.config, "vocab_size": len(tokenizer), "bos_token_id": None,
                "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    # A shared setting that a config has under another name is left out; null is a value of the others.
    settings = {name: value for name, value in settings.items() if value is not None or name not in SHARED}
    if tiny.model_type in ("gemma4", "gemma4_text"):
        settings["vocab_size_per_layer_input"] = len(tokenizer)
    if tiny.around is not None:
        settings = {**tiny.around, "text_config": settings}
    config = AutoConfig.for_model(tiny.model_type, **settings)
    auto = hf_layouts.whole_class(tiny.model_type) or AutoModelForCausalLM
    build = getattr(auto, "from_config", None) or auto._from_config
    model = build(config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    randomise(model, seed, tiny.embedding)
    probe = torch.arange(1, 40)[None]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(tiny.dtype))
        memory = model(probe).logits
    # A router's correction is kept in f32, whatever the type of the rest.
    corrections = {name: buffer.clone() for name, buffer in model.named_buffers() if name.endswith(CORRECTION)}
    model.to(tiny.dtype)
    for name, buffer in corrections.items():
        module, _, last = name.rpartition(".")
        model.get_submodule(module)._buffers[last] = buffer
    out.mkdir(parents=True, exist_ok=True)
    for stale in [*out.glob("*.safetensors"), *out.glob("*.json"), *out.glob("*.jinja")]:
        stale.unlink()
    model.save_pretrained(out, **({"max_shard_size": tiny.shard} if tiny.shard else {}))
    tokenizer.save_pretrained(out, save_jinja_files=tiny.template_in_own_file)
    hf_layouts.settle_types(out)
    if tiny.release:
        tiny.release(out)
    check_layout(out, model.float(), memory, probe)


@torch.inference_mode()
def check_layout(out: Path, model: torch.nn.Module, logits: torch.Tensor, probe: torch.Tensor) -> None:
    """Exits where a reader of the folder does not get `model`, whose answer to `probe` is `logits`."""
    read = load(out, torch.float32)
    if method := hf_layouts.quantisation(out):
        # Not the model, but near it (a 4-bit float that is clipped loses a quarter) ...
        kept = dict(model.named_parameters())
        for name, parameter in read.named_parameters():
            if (parameter - kept[name]).abs().max() > 0.26 * kept[name].abs().max():
                sys.exit(f"error: {out} reads back with another {name}")
        # ... and transformers' own dequantisation gives what ours does. It takes the size of fp8 blocks from the number
        # of scales, which is wrong with remainders; hf_layouts.py compares padded weights instead. It has none for NVFP4.
        if method in ("fp8", "modelopt"):
            return
        logits = load(out, torch.float32, quantization_config=Mxfp4Config(dequantize=True))(probe).logits
    difference = (logits - read(probe).logits).abs().max()
    if difference != 0:
        sys.exit(f"error: {out} reads back as another model: logits differ by {difference}")


def narrow_numbers(folder: Path, request: dict, suffix: str) -> dict[str, np.ndarray]:
    """The numbers of the model in a narrow type, to state a bound for others' by transformers' own: `NAME_suffix`. Where
    one is infinite or NaN there is nothing to state, and nothing is given."""
    made = reference(load(folder, NARROW[suffix]), request, chunk=None, check=False)
    made = {f"{name}_{suffix}": made[name] for name in NUMBERS if name in made}
    if overflown := [name for name, tensor in made.items() if not np.isfinite(tensor).all()]:
        print(f"transformers overflows: {', '.join(overflown)} not finite, so nothing is kept of {suffix}")
        return {}
    return made


def describe_narrow(tensors: dict[str, np.ndarray]) -> None:
    """Prints the root mean square and the largest of the differences to f32."""
    for suffix in NARROW:
        for name in NUMBERS:
            if f"{name}_{suffix}" in tensors:
                apart = np.abs(tensors[f"{name}_{suffix}"].astype(np.float64) - tensors[name])
                print(f"  {name}_{suffix} differs by {np.sqrt((apart ** 2).mean()):.3g}, at most {apart.max():.3g}")


def run_tiny(args: argparse.Namespace) -> None:
    tiny, out = TINY[args.arch], args.out
    seed = tiny.seed if args.seed is None else args.seed
    make(tiny, seed, out)
    model = load(out, torch.float32)
    draw = torch.Generator().manual_seed(seed + 1)
    vocab = model.config.get_text_config().vocab_size
    request = {
        "tokens": torch.randint(0, vocab, (PROMPT_TOKENS,), generator=draw).tolist(),
        "spans": TINY_SPANS, "rows": TINY_ROWS, "logits": LOGIT_POSITIONS,
    }
    write_request(out / "tokens.json", request)
    router, indexer = RouterMargin(model), IndexMargin(model)
    tensors = reference(model, request, chunk=None)
    tensors["greedy"], margin = greedy(model, request["tokens"], GREEDY_TOKENS)
    router.close()
    indexer.close()
    if margin < LEAST_MARGIN:
        sys.exit(f"error: with seed {seed} two logits of a greedy step are only {margin:.2g} apart (at least "
                 f"{LEAST_MARGIN} is needed for a stable test); choose another --seed")
    if router.least < LEAST_ROUTER_MARGIN:
        sys.exit(f"error: with seed {seed} a token's last expert is only {router.least:.2g} ahead of the next one (at "
                 f"least {LEAST_ROUTER_MARGIN} is needed for a stable test); choose another --seed")
    if indexer.least < LEAST_INDEX_MARGIN:
        sys.exit(f"error: with seed {seed} a row's last key is only {indexer.least:.2g} ahead of the next one (at least "
                 f"{LEAST_INDEX_MARGIN} is needed for a stable test); choose another --seed")
    whole = tensors["mass"][..., list(TINY_SPANS).index("all")] + tensors.get("sink", 0)
    if np.abs(whole - 1).max() > 1e-5:
        sys.exit(f"error: the masses of the whole prompt are not 1 but {whole.min()}..{whole.max()}")
    for suffix in NARROW:
        tensors |= narrow_numbers(out, request, suffix)
    write_reference(out / "reference.safetensors", tensors, request, model, {
        "command": f"hf_reference.py tiny {args.arch} --seed {seed}", "seed": str(seed), "arch": args.arch})
    size = sum(path.stat().st_size for path in out.iterdir())
    if size >= FIXTURE_BYTES:
        sys.exit(f"error: {out} holds {size} bytes; a fixture stays under {FIXTURE_BYTES}: make the model smaller")
    describe(tensors, request)
    describe_narrow(tensors)
    print(f"greedy margin {margin:.3g}, router margin {router.least:.3g}, "
          f"{len(set(tensors['greedy'].tolist()))} different tokens; {size} bytes in {out}")


def run_each(args: argparse.Namespace) -> None:
    for out in args.folders:
        add_each(out)


def add_each(out: Path) -> None:
    """Writes ../each/NAME.safetensors: what each of the first greedy tokens of a reference pays to the prompt's spans."""
    with safe_open(out / "reference.safetensors", "numpy") as file:
        metadata, generated = file.metadata(), file.get_tensor("greedy")[:EACH_TOKENS]
    request = read_request(out / "tokens.json")
    tensors = each(load(out, torch.float32), request, generated)
    kept = {key: metadata[key] for key in ("layers", "delta_layers", "spans") if key in metadata}
    made = {"command": "hf_reference.py each", "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__, "python": platform.python_version()}
    # Not among the checkpoint's own files, which are all that its folder may hold of that kind beside the reference.
    path = out.resolve().parent / "each" / f"{out.resolve().name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path, {**kept, **made})
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
    print(f"{path}: {shapes}; {path.stat().st_size} bytes")


def run_knockout(args: argparse.Namespace) -> None:
    for out in args.folders:
        add_knockout(out)


def add_knockout(out: Path) -> None:
    """Writes ../knockout/NAME.safetensors: the numbers of a pass in which rows are kept from seeing keys at two layers, one of them
    from two spans that overlap, with the largest weights of each row."""
    request = read_request(out / "tokens.json")
    model = load(out, torch.float32)
    layers = sorted(attention_modules(model))
    first, last = ([layer, layer + 1] for layer in (layers[0], layers[-1]))
    request["knockouts"] = [{"rows": "query", "keys": "new", "layers": first},
                            {"rows": "new", "keys": "neighbour", "layers": last},
                            {"rows": "new", "keys": "one", "layers": last}]
    request["top_keys"] = KNOCKOUT_TOP
    tensors = reference(model, request, chunk=None, check=False)
    del tensors["tokens"], tensors["top"]
    path = out.resolve().parent / "knockout" / f"{out.resolve().name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    more = {"command": "hf_reference.py knockout", "knockouts": json.dumps(request["knockouts"]),
            "top_keys": json.dumps(request["top_keys"])}
    write_reference(path, tensors, request, model, more)
    print(f"{path}: {path.stat().st_size} bytes")


def run_measures(args: argparse.Namespace) -> None:
    for out in args.folders:
        add_measures(out)


def add_measures(out: Path) -> None:
    """Writes ../measures/NAME.safetensors: what attention carries by its lengths, plain and with a path blocked."""
    request = read_request(out / "tokens.json") | {"measures": True}
    model = load(out, torch.float32)
    layers = sorted(attention_modules(model))
    blocked = [{"rows": "query", "keys": "new", "layers": [layers[-1], layers[-1] + 1]}]
    tensors = {}
    for suffix, knockouts in (("", []), ("_blocked", blocked)):
        made = reference(model, request | {"knockouts": knockouts}, chunk=None, check=False)
        tensors |= {name + suffix: made[name] for name in ("value_norm", "output_norm")}
        tensors["layers"] = made["layers"]
    path = out.resolve().parent / "measures" / f"{out.resolve().name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    more = {"command": "hf_reference.py measures", "knockouts": json.dumps(blocked)}
    write_reference(path, tensors, request, model, more)
    print(f"{path}: {path.stat().st_size} bytes")


def run_narrow(args: argparse.Namespace) -> None:
    for out in args.folders:
        add_narrow(out, args.dtype)


def add_narrow(out: Path, suffix: str) -> None:
    """Puts the numbers of a narrow type into a reference. Every other tensor and the metadata stay as they are."""
    path = out / "reference.safetensors"
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    request = read_request(out / "tokens.json")
    with tempfile.TemporaryDirectory() as scratch:
        folder = out
        if not (out / "config.json").exists():
            # Only the GGUF file of it is kept.
            folder = Path(scratch)
            make(TINY[metadata["arch"]], int(metadata["seed"]), folder)
        exact = reference(load(folder, torch.float32), request, chunk=None)["logits"]
        if (worst := np.abs(exact - tensors["logits"]).max()) > SAME_LOGITS:
            sys.exit(f"error: {path}: its logits differ by {worst:.2g} from those of the checkpoint; make both again")
        made = narrow_numbers(folder, request, suffix)
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(f"_{suffix}")}
    save_file({**kept, **made}, path, metadata)
    print(f"{path}: {len(made)} tensors, {path.stat().st_size} bytes")
    describe_narrow({**kept, **made})


def run_prompts(args: argparse.Namespace) -> None:
    for out in args.folders:
        add_prompts(out)


def add_prompts(out: Path) -> None:
    """Writes `../prompts/NAME.safetensors`: numbers of eight random prompts in f32, and each one's root mean square error in narrow types."""
    request, draw = read_request(out / "tokens.json"), np.random.default_rng(1)
    prompts = draw.integers(3, 255, (8, len(request["tokens"])), dtype=np.uint32)
    made = {}
    for suffix, dtype in {"": torch.float32, **{f"_{suffix}": NARROW[suffix] for suffix in NARROW}}.items():
        model = load(out, dtype)
        rows = [reference(model, request | {"tokens": tokens.tolist()}, chunk=None, check=False) for tokens in prompts]
        for name in (name for name in NUMBERS if name in rows[0]):
            made[name + suffix] = np.stack([row[name] for row in rows])
    tensors = {"tokens": prompts}
    for name, exact in made.items():
        if name.endswith(tuple(f"_{suffix}" for suffix in NARROW)):
            error = exact.astype(np.float64) - made[name.rpartition("_")[0]]
            tensors[f"{name}_error"] = np.sqrt((error.reshape(len(prompts), -1) ** 2).mean(axis=1)).astype(np.float32)
        else:
            tensors[name] = exact
    path = out.parent / "prompts" / f"{out.name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    print(f"{path}: {path.stat().st_size} bytes")
