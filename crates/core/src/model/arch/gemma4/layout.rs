//! Sizes and kinds of the layers, which config.json and GGUF state differently.

use crate::model::ModelError;
use crate::model::arch::base::{Base, INTERMEDIATE, head_fault};
use crate::model::arch::{Config, Fields, Meta};

/// Properties that differ between layers or formats.
pub struct Layout {
    /// Per layer: it has a sliding window.
    pub slides: Vec<bool>,
    /// Heads of sliding and of global layers.
    pub heads: [Heads; 2],
    /// Layers at the end that share the keys of earlier ones.
    pub shared: usize,
    /// Per layer: values are the projected keys.
    pub tied: Vec<bool>,
    /// Per layer: width of the dense feed-forward block.
    pub widths: Vec<usize>,
    /// Width of the per-layer embeddings, if there are any.
    pub inputs: Option<usize>,
    /// Layers have scalars.
    pub scalars: bool,
    /// Every layer has experts beside the dense block.
    pub sparse: bool,
}

/// Heads of a kind of layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heads {
    pub head_dim: usize,
    pub kv_heads: usize,
}

impl Layout {
    pub fn read(config: &Config, base: &Base) -> Result<Self, ModelError> {
        let layout = match config {
            Config::Json(fields) => Self::of_json(config, fields, base)?,
            Config::Gguf(meta) => Self::of_gguf(meta, base)?,
        };
        for Heads { head_dim, kv_heads } in layout.heads {
            if let Some(problem) = head_fault(head_dim) {
                return Err(config.refuse(("global_head_dim", "attention.key_length"), problem));
            }
            if kv_heads == 0 || !base.heads.is_multiple_of(kv_heads) {
                let key = ("num_global_key_value_heads", "attention.head_count_kv");
                let problem =
                    format!("is {kv_heads}, which does not divide the {} attention heads", base.heads);
                return Err(config.refuse(key, problem));
            }
        }
        Ok(layout)
    }

    fn of_json(config: &Config, fields: &Fields, base: &Base) -> Result<Self, ModelError> {
        /// The last of every `PATTERN` layers is global, where nothing is said.
        const PATTERN: usize = 6;
        const VOCAB: &str = "vocab_size_per_layer_input";
        let layers = base.layers;
        let slides = config.layers_of("sliding_attention", layers)?;
        let mut slides =
            slides.unwrap_or_else(|| (0..layers).map(|i| !(i + 1).is_multiple_of(PATTERN)).collect());
        // The last layer is global, whatever the config says.
        slides.iter_mut().next_back().into_iter().for_each(|last| *last = false);
        let tied = fields.flag("attention_k_eq_v", false)?;
        let mut global = Heads {
            head_dim: fields.optional_count("global_head_dim")?.unwrap_or(512),
            kv_heads: fields
                .optional_count("num_global_key_value_heads")?
                .filter(|_| tied)
                .unwrap_or(base.kv_heads),
        };
        if let Some(own) = fields.object("per_layer_config")? {
            global = of_global_layers(&own, base, &slides)?;
            own.finish()?;
        }
        // `gemma4_unified_text` has none.
        let unified =
            fields.optional_text("model_type")?.is_some_and(|name| name.starts_with("gemma4_unified"));
        let unsaid = if unified || fields.states("hidden_size_per_layer_input") { 0 } else { 256 };
        let inputs = fields.optional_number("hidden_size_per_layer_input")?.unwrap_or(unsaid);
        let rows = fields.optional_count(VOCAB)?.unwrap_or(262_144);
        if inputs > 0 && rows != base.vocab {
            let problem =
                format!("is {rows}, and the vocabulary has {}; only equal ones are built", base.vocab);
            return Err(fields.refuse(VOCAB, problem));
        }
        let shared = fields.optional_number("num_kv_shared_layers")?.unwrap_or(0);
        let wide = fields.flag("use_double_wide_mlp", false)?;
        let width = fields.count(INTERMEDIATE.0)?;
        Ok(Layout {
            heads: [Heads { head_dim: base.head_dim, kv_heads: base.kv_heads }, global],
            shared,
            tied: slides.iter().map(|slides| tied && !slides).collect(),
            widths: (0..layers)
                .map(|i| if wide && i + shared >= layers { 2 * width } else { width })
                .collect(),
            inputs: Some(inputs).filter(|width| *width > 0),
            scalars: true,
            sparse: fields.flag("enable_moe_block", false)?,
            slides,
        })
    }

    /// Lists by layer are read off the tensors' shapes.
    fn of_gguf(meta: &Meta, base: &Base) -> Result<Self, ModelError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let slides = meta.optional_flags(PATTERN)?.unwrap_or_default();
        if slides.len() != base.layers {
            let problem = format!("lists {} layers where there are {}", slides.len(), base.layers);
            return Err(meta.refuse(PATTERN, problem));
        }
        let local = meta.count("attention.key_length_swa")?;
        for key in ["attention.value_length_swa", "rope.dimension_count_swa"] {
            if let Some(other) = meta.optional_count(key)?.filter(|other| *other != local) {
                let problem = format!(
                    "is {other}, but heads with a window are {local} wide; only equal widths are read"
                );
                return Err(meta.refuse(key, problem));
            }
        }
        let heads = |kind: bool, head_dim: usize| {
            let layer = slides.iter().position(|slides| *slides == kind);
            let rows = layer.and_then(|i| meta.rows(&format!("blk.{i}.attn_k.weight")));
            Heads { head_dim, kv_heads: rows.map_or(base.kv_heads, |rows| rows / head_dim) }
        };
        let width = meta.count(INTERMEDIATE.1)?;
        let of = |i: usize| meta.rows(&format!("blk.{i}.ffn_gate.weight")).unwrap_or(width);
        Ok(Layout {
            heads: [heads(true, local), heads(false, base.head_dim)],
            shared: meta.optional_count("attention.shared_kv_layers")?.unwrap_or(0),
            tied: (0..base.layers).map(|i| !meta.has(&format!("blk.{i}.attn_v.weight"))).collect(),
            widths: (0..base.layers).map(of).collect(),
            inputs: meta.optional_count("embedding_length_per_layer_input")?,
            scalars: meta.has("blk.0.layer_output_scale.weight"),
            sparse: meta.has("blk.0.ffn_gate_inp.weight"),
            slides,
        })
    }
}

/// From `per_layer_config`, which names the global layers and what is theirs alone.
fn of_global_layers(own: &Fields, base: &Base, slides: &[bool]) -> Result<Heads, ModelError> {
    let mut found: Option<Heads> = None;
    for name in own.names() {
        // Some writers pad the numbers.
        let global = name.parse().ok().and_then(|i: usize| slides.get(i)).is_some_and(|slides| !slides);
        let of =
            own.object(name)?.filter(|_| global).ok_or_else(|| own.refuse(name, "is no global layer"))?;
        let head_dim = of.optional_count("head_dim")?.unwrap_or(base.head_dim);
        let kv_heads = of.optional_count("num_key_value_heads")?.unwrap_or(base.kv_heads);
        of.finish()?;
        let first = *found.get_or_insert(Heads { head_dim, kv_heads });
        if first != (Heads { head_dim, kv_heads }) {
            let problem =
                format!("has {kv_heads} key/value heads of {head_dim}, unlike an earlier global layer");
            return Err(own.refuse(name, problem));
        }
    }
    let listed = own.names().count();
    let global = slides.iter().filter(|slides| !**slides).count();
    let wrong = || own.refuse("per_layer_config", format!("names {listed} layers, and {global} are global"));
    found.filter(|_| listed == global).ok_or_else(wrong)
}
