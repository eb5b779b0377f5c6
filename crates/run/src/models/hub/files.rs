//! Which files of a repository make a model: safetensors with the files that go with them, or one GGUF file. Duplicates for other programs
//! (`*.bin`, `*.pth`, `onnx/`, `consolidated*`) are not fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use palimpsest_core::model::FOLDER_FILES;
use palimpsest_core::model::weights::gguf::split_pattern;
use palimpsest_core::model::weights::safetensors::INDEX_FILE;
use palimpsest_core::model::weights::weight_files::{chosen, is_shard};
use serde::Deserialize;

use super::id::is_gguf_in_repository;
use crate::models::error::cannot;

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Part of a model to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(in crate::models) enum Part {
    Config,
    /// Also the tokeniser and the chat template.
    Text,
    Weights,
}

/// The files of a folder model without its weights.
pub(super) fn side_files<'a>(names: &BTreeSet<&'a str>, part: Part) -> Vec<&'a str> {
    let wanted = |name: &&&str| match part {
        Part::Config => **name == CONFIG,
        Part::Text | Part::Weights => FOLDER_FILES.contains(*name),
    };
    // The config first: it says whether the others are of use.
    let mut files: Vec<&str> = names.iter().filter(wanted).copied().collect();
    files.sort_by_key(|name| *name != CONFIG);
    files
}

/// The weights. Before the index is read (`shards` is `None`) its shards are known by their names.
pub(super) fn weights(names: &BTreeSet<&str>, shards: Option<&BTreeSet<String>>) -> Vec<String> {
    let is_beside = |name: &&&str| name.ends_with(".safetensors") && !name.contains('/');
    let all: BTreeSet<&str> = names.iter().filter(is_beside).copied().collect();
    let indexed = names.contains(INDEX_FILE).then(|| match shards {
        Some(shards) => shards.iter().map(String::as_str).collect(),
        None => all.iter().copied().filter(|name| is_shard(name)).collect(),
    });
    chosen(&all, indexed.as_ref()).into_iter().map(str::to_owned).collect()
}

/// The GGUF models, by their first parts. Projectors and importance matrices are not models.
pub(super) fn ggufs<'a>(names: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let no_model = |name: &str| {
        let file = name.rsplit('/').next().unwrap_or_default().to_lowercase();
        file.starts_with("mmproj") || file.contains("imatrix")
    };
    let mut seen = BTreeSet::new();
    let models = names.iter().copied().filter(|name| is_gguf_in_repository(name) && !no_model(name));
    models.filter(|name| split(name).is_none_or(|split| seen.insert(split))).collect()
}

/// All parts of a GGUF file, itself alone if it is not split. Empty if it is not there.
pub(super) fn parts<'a>(names: &BTreeSet<&'a str>, file: &str) -> Vec<&'a str> {
    let pattern = split(file);
    let same = |name: &&str| *name == file || (pattern.is_some() && split(name) == pattern);
    if names.contains(file) { names.iter().copied().filter(same).collect() } else { Vec::new() }
}

/// Folder, stem and count of a split file.
fn split(name: &str) -> Option<(Option<&Path>, &str, u32)> {
    let path = Path::new(name);
    split_pattern(path).map(|(stem, count)| (path.parent(), stem, count))
}

/// Files named by an index of shards.
pub(super) fn shards(index: &Path) -> anyhow::Result<BTreeSet<String>> {
    let bad = || format!("{} is not a model", index.display());
    let text = std::fs::read(index).with_context(cannot("read", index))?;
    let Index { weight_map } =
        serde_json::from_slice(&text).context("the index of shards").with_context(bad)?;
    let shards: BTreeSet<String> = weight_map.into_values().collect();
    for name in &shards {
        ensure!(
            name.ends_with(".safetensors") && !name.contains(['/', '\\']),
            "{}: the index of shards names {name:?}, which is no *.safetensors beside it",
            bad()
        );
    }
    Ok(shards)
}

/// `*.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    /// File by tensor.
    weight_map: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE_FILE: &str = "model.safetensors";

    fn weights_of(names: &[&str], shards: Option<&[&str]>) -> Vec<String> {
        let shards: Option<BTreeSet<String>> =
            shards.map(|shards| shards.iter().map(|name| (*name).to_owned()).collect());
        weights(&names.iter().copied().collect(), shards.as_ref())
    }

    #[test]
    fn the_weights_are_those_that_the_opener_takes() {
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        let all =
            ["consolidated.safetensors", SINGLE_FILE, one, two, "onnx/model.safetensors", "x.safetensors"];
        assert_eq!(weights_of(&all, None), [SINGLE_FILE]);
        let indexed = [&all[..], &[INDEX_FILE]].concat();
        assert_eq!(weights_of(&indexed, None), [one, two]);
        assert_eq!(weights_of(&indexed, Some(&["x.safetensors"])), ["x.safetensors"]);
        assert_eq!(weights_of(&indexed, Some(&["gone.safetensors"])), [SINGLE_FILE]);
        assert_eq!(weights_of(&["a.safetensors", "consolidated.safetensors"], None), ["a.safetensors"]);
        assert_eq!(weights_of(&["consolidated.safetensors"], None), ["consolidated.safetensors"]);
        assert!(weights_of(&["pytorch_model.bin", "onnx/model.safetensors"], None).is_empty());
    }

    #[test]
    fn a_split_gguf_is_one_model_and_comes_whole() {
        let names = BTreeSet::from([
            "a-Q4.gguf",
            "mmproj-F16.gguf",
            "x.imatrix.gguf",
            "q8/b-00001-of-00002.gguf",
            "q8/b-00002-of-00002.gguf",
            "b-00001-of-00002.gguf",
        ]);
        assert_eq!(ggufs(&names), ["a-Q4.gguf", "b-00001-of-00002.gguf", "q8/b-00001-of-00002.gguf"]);
        assert_eq!(parts(&names, "a-Q4.gguf"), ["a-Q4.gguf"]);
        let both = ["q8/b-00001-of-00002.gguf", "q8/b-00002-of-00002.gguf"];
        assert_eq!(parts(&names, both[1]), both);
        assert!(parts(&names, "c.gguf").is_empty());
    }
}
