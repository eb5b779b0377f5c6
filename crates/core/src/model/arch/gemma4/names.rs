//! Names of its tensors.

use crate::model::arch::Names;

pub const NAMES: Names = Names {
    hf: &[
        ("mlp.gate.weight", "router.proj.weight"),
        ("mlp.gate.scale", "router.scale"),
        ("mlp.experts.scale", "router.per_expert_scale"),
        ("mlp.experts.", "experts."),
        ("mlp.shared_experts.", "mlp."),
    ],
    gguf: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
        ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
        ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
        ("mlp.shared_experts.gate_proj", "ffn_gate"),
        ("mlp.shared_experts.up_proj", "ffn_up"),
        ("mlp.shared_experts.down_proj", "ffn_down"),
        ("mlp.experts.gate_up_proj", "ffn_gate_up_exps"),
        ("mlp.gate.scale", "ffn_gate_inp.scale"),
        ("mlp.experts.scale", "ffn_down_exps.scale"),
        ("embed_tokens_per_layer", "per_layer_token_embd"),
        ("per_layer_model_projection", "per_layer_model_proj"),
        ("per_layer_projection_norm", "per_layer_proj_norm"),
        ("per_layer_input_gate", "inp_gate"),
        ("per_layer_projection", "proj"),
        ("post_per_layer_input_norm", "post_norm"),
        ("layer_scalar", "layer_output_scale.weight"),
    ],
    ..Names::PLAIN
};
