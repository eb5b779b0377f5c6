//! The header of a run folder, `run.json`: what was run, and what it was run on.
//!
//! [`Identity`] holds everything that changes results and nothing else; two runs may share a folder only when theirs
//! are equal. Machine facts and the shard stand beside it, outside the hash. Written once by the run store; read by
//! everything that comes after the run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::condition::Condition;
use super::plan::{CaseSample, Shard};
use crate::memory::system::protocol::Hello;
use crate::memory::system::proxy::Decoding;
use palimpsest_core::attention::{AttentionKernel, Settled};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::Sampling;
use palimpsest_core::text::{BorderRule, ReasoningEffort, SpecialTokens, ThinkingMode};
use palimpsest_data::benchmarks;
use palimpsest_data::prompt::SegmentNumbers;

/// The value of [`RunHeader::format`] that this version writes and reads.
pub const FORMAT: &str = "palimpsest run 1";

/// A field that is added later is absent where it has its default, so that hashes stay; only a change of meaning counts up.
pub const IDENTITY_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunHeader {
    pub format: String,
    /// [`hash`] of `identity` as it is stored.
    pub identity_sha256: String,
    /// The version of `identity`; absent where it is 1, as it was in 0.1.0.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub identity_version: u32,
    pub identity: Identity,
    /// Which part of the cases this folder holds; absent where it holds all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    pub machine: Machine,
}

impl RunHeader {
    pub fn new(identity: Identity, shard: Option<Shard>, machine: Machine) -> Self {
        let identity_sha256 = identity.hash();
        let format = FORMAT.to_owned();
        RunHeader { format, identity_sha256, identity_version: IDENTITY_VERSION, identity, shard, machine }
    }
}

fn is_default(benchmark: &String) -> bool {
    *benchmark == benchmarks::default_name()
}

fn first() -> u32 {
    1
}

fn is_first(version: &u32) -> bool {
    *version == 1
}

/// Lower-case hexadecimal SHA-256 over an identity's version and its JSON as stored: keys sorted, no whitespace.
pub fn hash(identity: &Value, version: u32) -> String {
    // The name comes first, so that no two versions can collide.
    sha256(format!("palimpsest identity {version}\n{}", canonical(identity)))
}

/// Everything that changes the results of a run. What does not apply (an endpoint's dtype, the sampling behind imported
/// answers) is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The benchmark, by name; absent for the one that runs of version 0.1.0 are of. Since version 0.2.
    #[serde(default = "benchmarks::default_name", skip_serializing_if = "is_default")]
    pub benchmark: String,
    pub dataset: NameAndDigest,
    pub model: NameAndDigest,
    pub dtype: Option<String>,
    /// The dtype of keys and values in its cache; absent where that is the model's. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_dtype: Option<String>,
    pub prompts: Option<String>,
    pub sampling: Option<Sampling>,
    pub context: ContextPolicy,
    /// Seed of everything random that is not the sampler (haystack assembly).
    pub seed: u64,
    /// The `--only` filter, as typed.
    pub only: Option<String>,
    pub limit: Option<usize>,
    /// The `--limit-probes`; absent where there was none. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_probes: Option<usize>,
    pub attention: bool,
    pub version: String,
    /// The `--sample`; absent where all cases were taken. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<CaseSample>,
    /// Conditions of every probe; empty where that is the plain one alone. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The memory systems whose memories were shown; empty where none were. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryIdentity>,
    /// True if the model thought before it answered; absent where it could not or, of an endpoint, was not told. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<ThinkingPolicy>,
    /// Strings that ended an answer, which is what came before them; empty where only tokens did. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Reading of text of the data that spells a special token; absent where it is that token. Since version 0.2.
    #[serde(default, skip_serializing_if = "SpecialTokens::is_default")]
    pub special_tokens: SpecialTokens,
    /// The version of the rule by which BM25 splits words ([`palimpsest_data::ground::words`]); absent where it is 1, or where no condition takes
    /// segments by BM25. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<u32>,
    /// To which span a token across a border belongs; absent where it is that of its first byte, as in runs of version 0.1.0, and
    /// where nothing was cut into tokens. Since version 0.2.
    #[serde(default, skip_serializing_if = "BorderRule::is_default")]
    pub borders: BorderRule,
}

/// A memory system of a run: everything that changes its memories.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryIdentity {
    pub name: String,
    /// Its own words: name, version, packages, unit.
    pub system: Hello,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, Value>,
    /// Its language model; absent where it was given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<NameAndDigest>,
    /// Its embedder; absent where it was given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedder: Option<NameAndDigest>,
    /// Are its model's replies sampled as it asks, or greedily?
    #[serde(default, skip_serializing_if = "Decoding::is_as_asked")]
    pub decoding: Decoding,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinkingPolicy {
    /// `on` or `off`; absent where an endpoint was not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ThinkingMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// The word that the chat template or the endpoint read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<Value>,
}

impl Identity {
    pub fn conditions_or_plain(&self) -> &[Condition] {
        const PLAIN: &[Condition] = &[Condition::PLAIN];
        if self.conditions.is_empty() { PLAIN } else { &self.conditions }
    }

    /// The word for the pieces that a condition shows: the benchmark's, or that of a memory system's.
    pub fn segment_of(&self, condition: &str, benchmark: &benchmarks::Benchmark) -> &'static str {
        let of = self.conditions.iter().find(|one| one.name == condition);
        of.map_or(benchmark.segment, |one| one.segment(benchmark))
    }

    pub fn condition_names(&self) -> Vec<&str> {
        self.conditions_or_plain().iter().map(|condition| condition.name.as_str()).collect()
    }
}

/// A name and the SHA-256 of what it stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameAndDigest {
    pub name: String,
    /// Lower-case hexadecimal SHA-256 of the content; for an endpoint of its address and model name.
    pub digest: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextPolicy {
    /// Most tokens of prompt and answer together; absent where nothing is cut.
    pub tokens: Option<usize>,
    /// For example `evidence-preserving truncation` or `full`.
    pub policy: String,
    /// Tokeniser that counts an endpoint's tokens; absent for a local model, whose own does, and where nothing is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<NameAndDigest>,
    /// In the place of a tokeniser, a stated bound: at least so many characters a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chars_per_token: Option<f64>,
    /// Tokens kept free for an endpoint's chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<usize>,
    /// Numbers of segments that are shown; absent where consecutive, and in runs of version 0.1.0, which kept the original ones.
    #[serde(default, rename = "session_numbers", skip_serializing_if = "SegmentNumbers::is_default")]
    pub numbers: SegmentNumbers,
    /// True if prompts told when the question is put, although the benchmark's own do not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub query_time: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// `cpu`, `cuda:0`, ... or an endpoint's address.
    pub device: String,
    pub os: String,
    pub threads: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Attention kernel; absent where there is no choice, which is everywhere but on CUDA, and in earlier runs. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_kernel: Option<AttentionBy>,
}

/// Attention kernels on CUDA. They change the last bits of results, as the device does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionBy {
    pub chosen: String,
    /// Forward kernels: `products`, `fused` or `flash`; several where layers differ.
    pub forward: Vec<String>,
    /// Kernels that summed the weights of rows over spans: `products` or `fused`.
    pub sums: Vec<String>,
}

impl AttentionBy {
    /// Of the layers for which there was a choice; `None` where there are none.
    pub fn of(chosen: AttentionKernel, layers: impl Iterator<Item = Settled>) -> Option<Self> {
        let layers: Vec<Settled> = layers.collect();
        let names = |of: fn(&Settled) -> AttentionKernel| {
            let kernels: BTreeSet<AttentionKernel> = layers.iter().map(of).collect();
            kernels.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (forward, sums) = (names(|layer| layer.forward), names(|layer| layer.sums));
        (!layers.is_empty()).then(|| AttentionBy { chosen: chosen.to_string(), forward, sums })
    }
}

impl Machine {
    /// This machine, with the device that the model runs on and the worker threads it uses.
    pub fn here(device: impl Into<String>, threads: usize) -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let os = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        Machine { device: device.into(), os, threads, cpu, attention_kernel: None }
    }

    pub fn attending_by(self, attention_kernel: Option<AttentionBy>) -> Self {
        Machine { attention_kernel, ..self }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Dotted path, for example `model.digest`.
    pub field: String,
    pub stored: String,
    pub asked: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} in the folder, {} asked for", self.field, self.stored, self.asked)
    }
}

impl Identity {
    pub fn hash(&self) -> String {
        hash(&to_value(self), IDENTITY_VERSION)
    }

    /// The fields in which `self` (stored) and `asked` differ, in the order of the identity's fields.
    pub fn differences(&self, asked: &Identity) -> Vec<Difference> {
        let mut found = Vec::new();
        compare("", &to_value(self), &to_value(asked), &mut found);
        found
    }
}

fn to_value(identity: &Identity) -> Value {
    // The identity is plain data with string keys; serde_json fails only on maps with other keys.
    serde_json::to_value(identity).unwrap_or_default()
}

/// JSON with sorted keys and no whitespace.
fn canonical(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}

fn compare(path: &str, stored: &Value, asked: &Value, found: &mut Vec<Difference>) {
    if let (Value::Object(a), Value::Object(b)) = (stored, asked) {
        // What is absent on either side has its default there, which is written as nothing.
        for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
            compare(&path, &of(a), &of(b), found);
        }
    } else if stored != asked {
        found.push(Difference {
            field: path.to_owned(),
            stored: stored.to_string(),
            asked: asked.to_string(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_json_sorts_keys_at_every_depth_and_writes_no_whitespace() {
        let value = serde_json::json!({"b": [1, {"z": null, "a": "é\""}], "a": 0.5});
        assert_eq!(canonical(&value), r#"{"a":0.5,"b":[1,{"a":"é\"","z":null}]}"#);
    }
}
