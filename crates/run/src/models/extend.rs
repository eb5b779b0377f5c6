//! Creates a model folder for longer contexts: linked files and a config.json with YaRN scaling. All commands accept it like any model, and
//! its config's digest is in a run's identity. Called by `model extend`.

use std::io;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use super::error::cannot;
use palimpsest_core::model::{ModelDescription, arch};

/// Written `yarn:4:32768`: factor and trained context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YarnScaling {
    pub factor: f64,
    pub original: usize,
}

impl FromStr for YarnScaling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (factor, original) = text.strip_prefix("yarn:")?.split_once(':')?;
            Some(YarnScaling { factor: factor.parse().ok()?, original: original.parse().ok()? })
        };
        let fits = |yarn: &YarnScaling| {
            yarn.factor > 1.0 && yarn.factor <= 1024.0 && (1..1 << 24).contains(&yarn.original)
        };
        parsed().filter(fits).ok_or_else(|| {
            format!(
                "`{text}` is no rope scaling; write yarn:FACTOR:TOKENS, the factor above 1, as yarn:4:32768"
            )
        })
    }
}

/// Creates `out` with the scaled `config.json` of `folder` and links to its other files.
pub fn extend(folder: &Path, out: &Path, scaling: YarnScaling) -> anyhow::Result<()> {
    let place = folder.join("config.json");
    let text = std::fs::read(&place).with_context(cannot("read", &place))?;
    let shown = place.display().to_string();
    let invalid = || format!("{shown} is not valid JSON; fetch the model again");
    let mut config = arch::parse(&text).with_context(invalid)?;
    scale(&mut config, scaling, &shown)?;
    let text = format!("{config:#}\n");
    // Validate the text: rejects architectures with other frequency settings.
    ModelDescription::from_config_text(text.as_bytes(), &shown)?;
    ensure!(!out.exists(), "{} is there already; give the name of a folder that is not", out.display());
    std::fs::create_dir_all(out).with_context(cannot("make", out))?;
    let filled = || -> anyhow::Result<()> {
        for entry in std::fs::read_dir(folder).with_context(cannot("read", folder))? {
            let path = entry.with_context(cannot("read", folder))?.path();
            let Some(name) = path.file_name().filter(|name| *name != "config.json") else { continue };
            if path.is_file() {
                let real = path.canonicalize().with_context(cannot("read", &path))?;
                link(&real, &out.join(name)).with_context(cannot("link", &path))?;
            }
        }
        let config = out.join("config.json");
        std::fs::write(&config, &text).with_context(cannot("write", &config))
    };
    filled().inspect_err(|_| {
        let _ = std::fs::remove_dir_all(out);
    })
}

fn scale(config: &mut Value, scaling: YarnScaling, place: &str) -> anyhow::Result<()> {
    let nested = config.get("text_config").is_some_and(Value::is_object);
    let config = if nested { config.get_mut("text_config") } else { Some(config) };
    let config = config.and_then(Value::as_object_mut);
    let config = config.with_context(|| format!("{place}: `(all)` is no object"))?;
    let kind = |settings: &Map<String, Value>| {
        let named = settings.get("rope_type").or_else(|| settings.get("type")).and_then(Value::as_str);
        named.filter(|kind| *kind != "default").map(str::to_owned)
    };
    for field in ["rope_scaling", "rope_parameters"] {
        if let Some(kind) = config.get(field).and_then(Value::as_object).and_then(kind) {
            bail!(
                "{place} scales its rotary frequencies already ({kind}); extend the model as its makers released it"
            );
        }
    }
    let yarn = json!({
        "rope_type": "yarn",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original,
    });
    // transformers 5 keeps the base beside the scaling; a second object would hide it.
    match (config.get_mut("rope_parameters").and_then(Value::as_object_mut), yarn) {
        (Some(parameters), Value::Object(yarn)) => parameters.extend(yarn),
        (_, yarn) => {
            config.insert("rope_scaling".to_owned(), yarn);
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> io::Result<()> {
    // Symbolic links need a privilege on Windows; hard links work within a volume.
    std::fs::hard_link(from, to).or_else(|_| std::fs::copy(from, to).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_core::model::RopeSpec;

    const QWEN3_8B: &str = include_str!("../../../core/configs/qwen3-8b.json");

    fn rope(text: &str) -> (RopeSpec, usize) {
        let description = ModelDescription::from_config_text(text.as_bytes(), "config").unwrap();
        (description.spec.layers[0].attention().unwrap().rope.clone(), description.spec.max_positions)
    }

    fn extended(config: &str, scaling: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::write(from.join("config.json"), config).unwrap();
        std::fs::write(from.join("tokenizer.json"), "{}").unwrap();
        extend(&from, &to, scaling.parse().unwrap()).unwrap();
        assert_eq!(std::fs::read_to_string(to.join("tokenizer.json")).unwrap(), "{}");
        assert!(
            extend(&from, &to, scaling.parse().unwrap()).unwrap_err().to_string().contains("there already")
        );
        std::fs::read_to_string(to.join("config.json")).unwrap()
    }

    #[test]
    fn qwen3_8b_gets_the_frequencies_and_the_factor_of_yarn_s_definition_and_its_makers_131_072_tokens() {
        let (plain, before) = rope(QWEN3_8B);
        let (scaled, after) = rope(&extended(QWEN3_8B, "yarn:4:32768"));
        assert_eq!((before, after), (40_960, 131_072));
        // A dimension with at least 32 turns in 32,768 tokens is kept, one with at most one turn is divided by 4; between the nearest whole
        // dimensions the factor is linear (Peng et al. 2023, section 3.2, and transformers).
        let turns = |i: f64| 32_768.0 / (std::f64::consts::TAU * 1e6f64.powf(2.0 * i / 128.0));
        let low = (0..64).rev().find(|&i| turns(f64::from(i)) >= 32.0).unwrap();
        let high = (0..64).find(|&i| turns(f64::from(i)) <= 1.0).unwrap();
        assert_eq!((low, high), (23, 40));
        for (i, (plain, scaled)) in plain.frequencies().iter().zip(scaled.frequencies()).enumerate() {
            let divided = ((i as f64 - f64::from(low)) / f64::from(high - low)).clamp(0.0, 1.0);
            let expected = f64::from(*plain) * (1.0 - divided + divided / 4.0);
            assert!((f64::from(scaled) / expected - 1.0).abs() < 1e-6, "{i}: {scaled} {expected}");
        }
        assert!((scaled.attention_factor() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    }

    #[test]
    fn a_config_of_transformers_5_keeps_its_base() {
        let newer = QWEN3_8B.replace(
            "\"rope_theta\": 1000000.0",
            "\"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}",
        );
        let of = |config: &str| rope(&extended(config, "yarn:4:32768"));
        assert_eq!(of(&newer), of(QWEN3_8B));
    }

    #[test]
    fn what_is_typed_is_a_factor_above_one_and_tokens() {
        let yarn: YarnScaling = "yarn:4:32768".parse().unwrap();
        assert_eq!(yarn, YarnScaling { factor: 4.0, original: 32_768 });
        for wrong in
            ["yarn", "yarn:4", "yarn:1:32768", "yarn:x:32768", "yarn:4:0", "linear:4:32768", "yarn:inf:8"]
        {
            assert!(wrong.parse::<YarnScaling>().unwrap_err().contains("yarn:4:32768"), "{wrong}");
        }
    }
}
