//! Rotary settings from config.json and GGUF metadata.

use std::sync::Arc;

use candle_core::{DType, Device};

use super::{Config, Fields, Meta};
use crate::model::{ModelError, RopeScaling, RopeSpec, Yarn};

#[derive(Debug, Clone, Copy)]
pub struct RopeDefaults {
    pub head_dim: usize,
    pub theta: f64,
    /// Rotated fraction of a head, for architectures with that setting. `None`: the full head, and any other value in the file is an error,
    /// since transformers would ignore it.
    pub partial: Option<f64>,
    /// Maximum context of the model.
    pub max_positions: usize,
    /// See [`Yarn`]; for GGUF, which does not store it.
    pub truncate: bool,
    /// For architectures with LongRoPE: `original_max_position_embeddings` beside `rope_scaling`, which wins over the one in it.
    pub original: Option<f64>,
    /// Queries are scaled by position: `llama_4_scaling_beta` is required.
    pub query_beta: bool,
    /// Of latent attention, whose GGUF files hold a tenth of `mscale_all_dim`, which is `mscale` in all released models.
    pub latent: bool,
}

pub fn read(config: &Config, defaults: RopeDefaults) -> Result<RopeSpec, ModelError> {
    match config {
        Config::Json(fields) => from_hf(fields, defaults),
        Config::Gguf(meta) => from_gguf(meta, defaults),
    }
}

/// From `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (earlier).
fn from_hf(config: &Fields, defaults: RopeDefaults) -> Result<RopeSpec, ModelError> {
    let theta = config.optional_positive("rope_theta")?.unwrap_or(defaults.theta);
    let defaults = RopeDefaults { theta, partial: partial(config, defaults)?, ..defaults };
    let parameters = config.object("rope_parameters")?;
    // As in transformers, the legacy field wins if both are present.
    match config.object("rope_scaling")?.filter(|older| !older.is_empty()).or(parameters) {
        None => spec(config, defaults, RopeScaling::None),
        Some(parameters) => {
            let spec = from_parameters(&parameters, defaults)?;
            parameters.finish()?;
            Ok(spec)
        }
    }
}

/// From one parameters object.
pub fn from_parameters(p: &Fields, defaults: RopeDefaults) -> Result<RopeSpec, ModelError> {
    let theta = p.optional_positive("rope_theta")?.unwrap_or(defaults.theta);
    // Legacy name; some files have both.
    let older = p.optional_text("type")?;
    let kind = p.optional_text("rope_type")?.or(older).unwrap_or("default");
    if kind == "proportional" {
        return proportional(p, defaults);
    }
    let partial = partial(p, defaults)?;
    // Multi-axis rotation: text has equal positions on all axes.
    for harmless in ["mrope_section", "mrope_interleaved"] {
        p.get(harmless);
    }
    let original = |field: &str| -> Result<f64, ModelError> {
        let inner = p.optional_positive(field)?;
        Ok(defaults.original.or(inner).unwrap_or(defaults.max_positions as f64))
    };
    let scaling = match kind {
        "default" | "mrope" => RopeScaling::None,
        "linear" => RopeScaling::Projection { factor: p.positive("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: p.positive("factor")?,
            low: p.positive("low_freq_factor")?,
            high: p.positive("high_freq_factor")?,
            original: original("original_max_position_embeddings")?,
        },
        "yarn" => {
            let stated = p.optional_positive("factor")?;
            if defaults.query_beta {
                p.get("max_position_embeddings"); // A copy of the config's.
            }
            let original = original("original_max_position_embeddings")?;
            let factor = stated.unwrap_or(defaults.max_positions as f64 / original);
            let (mscale, all) = (p.optional_positive("mscale")?, p.optional_positive("mscale_all_dim")?);
            let inferred = match (mscale, all) {
                (Some(mscale), Some(all)) if factor > 1.0 => {
                    (0.1 * mscale * factor.ln() + 1.0) / (0.1 * all * factor.ln() + 1.0)
                }
                _ => Yarn::default_attention_factor(factor),
            };
            RopeScaling::Yarn(Yarn {
                factor,
                original,
                beta_fast: p.optional_positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: p.optional_positive("beta_slow")?.unwrap_or(1.0),
                truncate: p.flag("truncate", true)?,
                attention_factor: p.optional_positive("attention_factor")?.unwrap_or(inferred),
                score_scale: all.unwrap_or(0.0),
                query_beta: if defaults.query_beta { p.positive("llama_4_scaling_beta")? } else { 0.0 },
            })
        }
        "longrope" | "su" if defaults.original.is_some() => {
            let original = original("original_max_position_embeddings")?;
            let stated = p.optional_positive("factor")?;
            let factor = stated.unwrap_or(defaults.max_positions as f64 / original);
            let inferred = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
            p.get("long_factor"); // For longer contexts, which are refused.
            RopeScaling::LongRope {
                short: factors(p, "short_factor", rotated(defaults.head_dim, partial) / 2)?,
                original: original as usize,
                attention_factor: p.optional_positive("attention_factor")?.unwrap_or(inferred),
            }
        }
        other => {
            let problem = format!("is `{other}`; this build knows `default`, `linear`, `llama3` and `yarn`");
            return Err(p.refuse("rope_type", problem));
        }
    };
    spec(p, RopeDefaults { theta, partial, ..defaults }, scaling)
}

/// Of a head's `pairs` the first ones turn, at the frequencies that they have where all do (transformers,
/// `_compute_proportional_rope_parameters`).
pub fn proportional(p: &Fields, defaults: RopeDefaults) -> Result<RopeSpec, ModelError> {
    let theta = p.optional_positive("rope_theta")?.unwrap_or(defaults.theta);
    let part = p.optional_positive("partial_rotary_factor")?.unwrap_or(1.0);
    let factor = p.optional_positive("factor")?.unwrap_or(1.0) as f32;
    let pairs = defaults.head_dim / 2;
    let turning = (pairs as f64 * part) as usize;
    let divisor = |i: usize| if i < turning { factor } else { f32::INFINITY };
    let scaling = RopeScaling::Divisors((0..pairs).map(divisor).collect());
    spec(p, RopeDefaults { theta, partial: None, ..defaults }, scaling)
}

/// A list of `count` numbers above 0.
fn factors(p: &Fields, field: &str, count: usize) -> Result<Arc<[f32]>, ModelError> {
    let list = p.optional_list(field)?.ok_or_else(|| p.refuse(field, "is missing"))?;
    let numbers = list.iter().map(|x| x.as_f64().map(|x| x as f32).filter(|x| *x > 0.0 && x.is_finite()));
    match numbers.collect::<Option<Arc<[f32]>>>() {
        Some(numbers) if numbers.len() == count => Ok(numbers),
        _ => {
            let problem = format!("is no list of {count} numbers above 0, one for each pair that turns");
            Err(p.refuse(field, problem))
        }
    }
}

fn rotated(head_dim: usize, partial: Option<f64>) -> usize {
    (head_dim as f64 * partial.unwrap_or(1.0)) as usize
}

fn partial(place: &Fields, defaults: RopeDefaults) -> Result<Option<f64>, ModelError> {
    match (place.optional_positive("partial_rotary_factor")?, defaults.partial) {
        (Some(stated), None) if stated != 1.0 => Err(place
            .refuse("partial_rotary_factor", format!("is {stated}; in this architecture whole heads turn"))),
        (Some(stated), Some(_)) => Ok(Some(stated)),
        (_, default) => Ok(default),
    }
}

/// Validates the number of rotated dimensions and the frequencies.
fn spec(place: &Fields, defaults: RopeDefaults, scaling: RopeScaling) -> Result<RopeSpec, ModelError> {
    let part = defaults.partial.unwrap_or(1.0);
    let dims = rotated(defaults.head_dim, defaults.partial);
    if dims == 0 || !dims.is_multiple_of(2) || dims > defaults.head_dim {
        return Err(place.refuse(
            "partial_rotary_factor",
            format!(
                "is {}, so that {dims} of {} dimensions would turn; that must be an even number of them",
                part, defaults.head_dim
            ),
        ));
    }
    let spec = RopeSpec { theta: defaults.theta, dims, scaling };
    match spec.frequencies().iter().find(|f| !f.is_finite()) {
        None => Ok(spec),
        Some(f) => Err(place.refuse(
            "rope_theta",
            format!("is {}, which with its scaling gives a frequency of {f}", spec.theta),
        )),
    }
}

/// From GGUF metadata and, for precomputed scalings, `rope_freqs.weight`.
fn from_gguf(meta: &Meta, defaults: RopeDefaults) -> Result<RopeSpec, ModelError> {
    let theta = meta.optional_positive("rope.freq_base")?.unwrap_or(defaults.theta);
    let whole = rotated(defaults.head_dim, defaults.partial);
    let dims = meta.optional_count("rope.dimension_count")?.unwrap_or(whole);
    if !dims.is_multiple_of(2) || dims > defaults.head_dim {
        let problem = format!("is {dims}; it must be even and at most the head's {}", defaults.head_dim);
        return Err(meta.refuse("rope.dimension_count", problem));
    }
    if let Some(divisors) = divisors(meta, dims)? {
        return Ok(RopeSpec { theta, dims, scaling: RopeScaling::Divisors(divisors) });
    }
    let factor = meta.optional_positive("rope.scaling.factor")?;
    let original = meta.optional_positive("rope.scaling.original_context_length")?;
    let attention_factor = meta.optional_positive("rope.scaling.yarn_attn_factor")?;
    match meta.optional_positive("rope.scaling.yarn_ext_factor")? {
        None | Some(1.0) => {}
        Some(x) => {
            let problem = format!("is {x}; only 1, a whole blend, is built");
            return Err(meta.refuse("rope.scaling.yarn_ext_factor", problem));
        }
    }
    let (fast, slow) = (
        meta.optional_positive("rope.scaling.yarn_beta_fast")?,
        meta.optional_positive("rope.scaling.yarn_beta_slow")?,
    );
    let needed = |field: &str, found: Option<f64>| {
        found.ok_or_else(|| meta.refuse(field, "is missing, and the scaling type needs it".to_owned()))
    };
    // A factor without a type is linear scaling in older files.
    let unsaid = if factor.is_some() { "linear" } else { "none" };
    // Stated where `mscale` is `mscale_all_dim`, so that cosines and sines are not scaled.
    let multiplier = meta.optional_positive("rope.scaling.yarn_log_multiplier")?;
    let multiplied = match multiplier {
        Some(_) if defaults.latent => Some(1.0),
        Some(1.0) if defaults.query_beta => Some(1.0),
        None => None,
        Some(x) => {
            let problem = format!("is {x}; this architecture is built for {}", u8::from(defaults.query_beta));
            return Err(meta.refuse("rope.scaling.yarn_log_multiplier", problem));
        }
    };
    let query_beta = match defaults.query_beta {
        true => meta.optional_positive("attention.temperature_scale")?.unwrap_or(0.0),
        false => 0.0,
    };
    let scaling = match meta.optional_text("rope.scaling.type")?.unwrap_or(unsaid) {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Projection { factor: needed("rope.scaling.factor", factor)? },
        "yarn" => {
            let factor = needed("rope.scaling.factor", factor)?;
            RopeScaling::Yarn(Yarn {
                factor,
                original: original.unwrap_or(defaults.max_positions as f64),
                beta_fast: fast.unwrap_or(32.0),
                beta_slow: slow.unwrap_or(1.0),
                truncate: defaults.truncate,
                // The config's value, as in transformers; llama.cpp always uses the default.
                attention_factor: (attention_factor.or(multiplied))
                    .unwrap_or(Yarn::default_attention_factor(factor)),
                score_scale: multiplier.filter(|_| defaults.latent).map_or(0.0, |tenth| 10.0 * tenth),
                query_beta,
            })
        }
        other => {
            let problem = format!("is `{other}`; this build knows `none`, `linear` and `yarn`");
            return Err(meta.refuse("rope.scaling.type", problem));
        }
    };
    Ok(RopeSpec { theta, dims, scaling })
}

fn divisors(meta: &Meta, dims: usize) -> Result<Option<Arc<[f32]>>, ModelError> {
    const NAME: &str = "rope_freqs.weight";
    match meta.file().tensor_info(NAME) {
        None => Ok(None),
        Some(info) if info.elements() == dims / 2 => {
            let divisors = meta.file().tensor(NAME, &Device::Cpu, DType::F32)?;
            Ok(Some(divisors.flatten_all()?.to_vec1::<f32>()?.into()))
        }
        Some(info) => Err(ModelError::Shape {
            place: meta.place().to_owned(),
            name: NAME.to_owned(),
            found: info.shape.clone(),
            expected: vec![dims / 2],
        }),
    }
}
