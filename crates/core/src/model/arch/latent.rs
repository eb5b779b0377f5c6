//! Configs and tensor names of latent attention.

use super::base::{Base, head_fault};
use super::config::{Config, Key};
use super::{Names, Rows, rope};
use crate::model::{AttentionSpec, LatentSpec, LayerSpec, ModelError, RopeScaling, Sees};

pub const NAMES: Names = Names {
    hf_parts: pairs_apart,
    gguf: &[
        ("self_attn.q_a_proj", "attn_q_a"),
        ("self_attn.q_a_layernorm", "attn_q_a_norm"),
        ("self_attn.q_b_proj", "attn_q_b"),
        ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
        ("self_attn.kv_b_proj", "attn_kv_b"),
        ("self_attn.k_b_proj", "attn_k_b"),
        ("self_attn.v_b_proj", "attn_v_b"),
    ],
    gguf_rows: |part, layer, _| pairs_apart(part, layer).map(|(_, _, rows)| rows.collect()),
    ..Names::PLAIN
};

/// Rows of the projections with rotated dimensions, where the file has neighbours turn together: with each pair half a width apart.
fn pairs_apart(part: &str, layer: &LayerSpec) -> Option<(&'static str, usize, Rows)> {
    let a = layer.attention()?;
    let latent = a.latent?;
    let (rotated, indexer) = (a.rope.dims, latent.indexer().filter(|indexer| indexer.interleaved));
    // Tensor, heads, and a head's dimensions before and after those that turn.
    let (name, heads, before, after) = match (part, indexer) {
        ("self_attn.indexer.wq_b", Some(own)) => {
            ("self_attn.indexer.wq_b", own.heads, 0, own.width - rotated)
        }
        ("self_attn.indexer.wk", Some(own)) => ("self_attn.indexer.wk", 1, 0, own.width - rotated),
        _ if !latent.interleaved => return None,
        ("self_attn.q_proj", _) => ("self_attn.q_proj", a.heads, latent.plain, 0),
        ("self_attn.q_b_proj", _) => ("self_attn.q_b_proj", a.heads, latent.plain, 0),
        ("self_attn.kv_a_proj_with_mqa", _) => ("self_attn.kv_a_proj_with_mqa", 1, latent.rank, 0),
        _ => return None,
    };
    let width = before + rotated + after;
    let rows = (0..heads * width).map(move |row| match (row % width).checked_sub(before) {
        Some(i) => row - i + paired(i, rotated),
        None => row,
    });
    Some((name, heads * width, Box::new(rows)))
}

/// The place in a file in which neighbours turn together of dimension `i`, of which the first `rotated` turn in pairs half of them apart.
pub fn paired(i: usize, rotated: usize) -> usize {
    let half = rotated / 2;
    if i < rotated { 2 * (i % half) + i / half } else { i }
}

/// `query_beta`: queries are scaled by position.
pub fn attention(config: &Config, base: &Base, query_beta: bool) -> Result<AttentionSpec, ModelError> {
    const ROTATED: Key = ("qk_rope_head_dim", "rope.dimension_count");
    let rotated = config.count(ROTATED)?;
    if let Some(fault) = head_fault(rotated) {
        return Err(config.refuse(ROTATED, fault));
    }
    let (plain, value, interleaved) = match config {
        Config::Json(fields) => {
            fields.expect("attention_bias", false)?;
            fields.expect("mlp_bias", false)?;
            fields.expect("pretraining_tp", 1)?;
            fields.expect("moe_layer_freq", 1)?;
            // Of training, and of several machines.
            for unused in ["aux_loss_alpha", "seq_aux", "ep_size"] {
                fields.get(unused);
            }
            let plain = fields.count("qk_nope_head_dim")?;
            fields.expect("qk_head_dim", plain + rotated)?;
            (plain, fields.count("v_head_dim")?, fields.flag("rope_interleave", true)?)
        }
        Config::Gguf(meta) => {
            let of = |mla: &str, older: &str| match meta.optional_count(mla)? {
                Some(width) => Ok(width),
                None => meta.count(older),
            };
            let whole = of("attention.key_length_mla", "attention.key_length")?;
            let Some(plain) = whole.checked_sub(rotated).filter(|plain| *plain > 0) else {
                let problem = format!("is {whole}, not more than the {rotated} dimensions that turn");
                return Err(meta.refuse("attention.key_length_mla", problem));
            };
            (plain, of("attention.value_length_mla", "attention.value_length")?, true)
        }
    };
    let rank = config.count(("kv_lora_rank", "attention.kv_lora_rank"))?;
    let query_rank = config.optional_count(("q_lora_rank", "attention.q_lora_rank"))?;
    let mut defaults = base.rope_defaults(10_000.0);
    (defaults.head_dim, defaults.query_beta, defaults.latent) = (rotated, query_beta, true);
    if query_beta {
        (defaults.head_dim, defaults.partial) =
            (plain + rotated, Some(rotated as f64 / (plain + rotated) as f64));
    }
    let rope = rope::read(config, defaults)?;
    if rope.dims != rotated {
        let problem = format!("is {rotated}, but the rotary settings turn {} dimensions", rope.dims);
        return Err(config.refuse(ROTATED, problem));
    }
    let mut scale = ((plain + rotated) as f64).powf(-0.5);
    if let RopeScaling::Yarn(yarn) = &rope.scaling {
        scale *= (0.1 * yarn.score_scale * yarn.factor.max(1.0).ln() + 1.0).powi(2);
    }
    let latent = LatentSpec { rank, plain, value, query_rank, interleaved, sees: Sees::All };
    Ok(AttentionSpec {
        kv_heads: 1,
        head_dim: rotated + rank,
        scale: scale as f32,
        latent: Some(latent),
        ..base.attention(rope)
    })
}
