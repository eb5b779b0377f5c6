//! Tensor names in checkpoints: llama.cpp's names, prefixes, and parts that do not affect text.

/// Hugging Face to llama.cpp names; entries with a suffix replace the whole name.
pub const GGUF_NAMES: [(&str, &str); 40] = [
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("mamba.in_proj", "ssm_in"),
    ("mamba.conv1d", "ssm_conv1d"),
    ("mamba.A_log", "ssm_a"),
    ("mamba.D", "ssm_d"),
    ("mamba.dt_bias", "ssm_dt.bias"),
    ("mamba.norm", "ssm_norm"),
    ("mamba.out_proj", "ssm_out"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Weights of latent attention that the loader parts by heads.
pub const BY_HEAD: [&str; 3] = ["self_attn.kv_b_proj", "self_attn.k_b_proj", "self_attn.v_b_proj"];

/// Prefixes of the language model in Hugging Face checkpoints.
pub const PREFIXES: [&str; 5] = ["model.", "model.language_model.", "language_model.model.", "backbone.", ""];

/// Checkpoint parts that do not affect text: vision and audio towers, projectors, multi-token prediction.
pub const SKIPPED: [&str; 12] = [
    "model.visual.",
    "visual.",
    "mtp.",
    "vision_tower.",
    "model.vision_tower.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.vision_embedder.",
    "model.embed_audio.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "v.",
];

/// Name parts specific to multi-token prediction layers, in Hugging Face and llama.cpp checkpoints.
pub const PREDICTION: [&str; 5] = [".eh_proj.", ".enorm.", ".hnorm.", ".shared_head.", ".nextn."];

/// Scales by which servers round activations and the cache, which are not rounded here.
const ROUNDING: [&str; 4] = [".input_scale", ".input_global_scale", ".k_scale", ".v_scale"];

/// Name parts of keys and values, which some checkpoints hold for layers that share another layer's, and nothing reads.
pub const UNSHARED: [&str; 6] = [".k_proj.", ".v_proj.", ".k_norm.", ".attn_k.", ".attn_v.", ".attn_k_norm."];

/// True for tensors that no number depends on: derived tables, which the config implies or the spec reads itself, and [`ROUNDING`].
pub fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name == "rope_freqs.weight"
        || ROUNDING.iter().any(|end| name.ends_with(end))
}
