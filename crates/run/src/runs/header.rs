//! Header of a run folder, `run.json`.
//!
//! [`Identity`] holds exactly what changes results; runs share a folder only if their identities are equal. Machine and shard stay outside
//! the hash.

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
pub use palimpsest_data::ground::difference::Difference;
use palimpsest_data::ground::difference::differences;
use palimpsest_data::prompt::SegmentNumbers;

pub const FORMAT: &str = "palimpsest run 1";

/// Incremented only on changes of meaning: new fields are omitted at their default, so hashes stay.
pub const IDENTITY_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunHeader {
    pub format: String,
    pub identity_sha256: String,
    /// Absent for version 1, as in 0.1.0.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub identity_version: u32,
    pub identity: Identity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    pub machine: Machine,
    /// Names of the environment variables that memory systems got, outside the identity. Since version 0.3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_env: Vec<String>,
}

impl RunHeader {
    pub fn new(identity: Identity, shard: Option<Shard>, machine: Machine) -> Self {
        let identity_sha256 = identity.hash();
        let format = FORMAT.to_owned();
        RunHeader {
            format,
            identity_sha256,
            identity_version: IDENTITY_VERSION,
            identity,
            shard,
            machine,
            memory_env: Vec::new(),
        }
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

/// Lower-case hexadecimal SHA-256 of the version and the identity's canonical JSON.
pub fn hash(identity: &Value, version: u32) -> String {
    let mut canonical = identity.clone();
    canonical.sort_all_objects();
    // The prefix keeps versions from colliding.
    sha256(format!("palimpsest identity {version}\n{canonical}"))
}

/// Everything that changes the results of a run. Fields that do not apply are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Absent for the only benchmark of version 0.1.0. Since version 0.2.
    #[serde(default = "benchmarks::default_name", skip_serializing_if = "is_default")]
    pub benchmark: String,
    pub dataset: NameAndDigest,
    pub model: NameAndDigest,
    /// Commit of a model that was named by its id on the hub. Since version 0.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_commit: Option<String>,
    pub dtype: Option<String>,
    /// Dtype of the KV cache; absent if it is the model's. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_dtype: Option<String>,
    pub prompts: Option<String>,
    pub sampling: Option<Sampling>,
    pub context: ContextPolicy,
    /// Seed of all randomness except sampling (haystack assembly).
    pub seed: u64,
    pub only: Option<String>,
    pub limit: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_probes: Option<usize>,
    pub attention: bool,
    /// Attention files have `selected` and `forgone`. Since version 0.3.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub selected: bool,
    pub version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<CaseSample>,
    /// Empty for the plain condition alone. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Memory systems. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryIdentity>,
    /// Absent if the model cannot think, or an endpoint was not told. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<ThinkingPolicy>,
    /// Stop strings. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Tokenisation of data text that spells a special token; absent by default. Since version 0.2.
    #[serde(default, skip_serializing_if = "SpecialTokens::is_default")]
    pub special_tokens: SpecialTokens,
    /// Version of BM25's word splitting ([`palimpsest_data::ground::words`]); absent for 1 or without BM25. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<u32>,
    /// Assigns tokens that cross a span border; absent for the rule of version 0.1.0 (span of the first byte), and without tokenisation.
    /// Since version 0.2.
    #[serde(default, skip_serializing_if = "BorderRule::is_default")]
    pub borders: BorderRule,
}

/// Memory system of a run: everything that changes its memories.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryIdentity {
    pub name: String,
    /// Self-description: name, version, packages, unit.
    pub system: Hello,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<NameAndDigest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedder: Option<NameAndDigest>,
    #[serde(default, skip_serializing_if = "Decoding::is_as_asked")]
    pub decoding: Decoding,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinkingPolicy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ThinkingMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
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

    /// Name of a shown piece: a memory, or the benchmark's segment.
    pub fn segment_of(&self, condition: &str, benchmark: &benchmarks::Benchmark) -> &'static str {
        let of = self.conditions.iter().find(|one| one.name == condition);
        of.map_or(benchmark.segment, |one| one.segment(benchmark))
    }

    pub fn condition_names(&self) -> Vec<&str> {
        self.conditions_or_plain().iter().map(|condition| condition.name.as_str()).collect()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameAndDigest {
    pub name: String,
    /// Lower-case hexadecimal SHA-256 of the content; for an endpoint, of its address and model name.
    pub digest: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextPolicy {
    /// Maximum tokens of prompt and answer; absent without truncation.
    pub tokens: Option<usize>,
    /// Such as `evidence-preserving truncation` or `full`.
    pub policy: String,
    /// Tokeniser that counts an endpoint's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<NameAndDigest>,
    /// Alternative to a tokeniser: lower bound on characters per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chars_per_token: Option<f64>,
    /// Tokens reserved for an endpoint's chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<usize>,
    /// Numbering of shown segments; absent if consecutive, and in version 0.1.0, which kept original numbers.
    #[serde(default, rename = "session_numbers", skip_serializing_if = "SegmentNumbers::is_default")]
    pub numbers: SegmentNumbers,
    /// Prompts state the query time although the benchmark's do not.
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
    /// CUDA only. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_kernel: Option<AttentionBy>,
}

/// Attention kernels on CUDA; they change the last bits of results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionBy {
    pub chosen: String,
    /// `products`, `fused`, `flash` or `hopper`; several if layers differ.
    pub forward: Vec<String>,
    /// Kernels of the attention masses: `products` or `fused`.
    pub sums: Vec<String>,
}

impl AttentionBy {
    /// `None` if no layer has a choice of kernels.
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
    pub fn here(device: impl Into<String>, threads: usize) -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let os = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        Machine { device: device.into(), os, threads, cpu, attention_kernel: None }
    }
}

impl Identity {
    pub fn hash(&self) -> String {
        hash(&to_value(self), IDENTITY_VERSION)
    }

    /// Fields in which `self` (stored) and `asked` differ, in identity order.
    pub fn differences(&self, asked: &Identity) -> Vec<Difference> {
        differences(&to_value(self), &to_value(asked))
    }
}

fn to_value(identity: &Identity) -> Value {
    // Cannot fail: plain data with string keys.
    serde_json::to_value(identity).unwrap_or_default()
}
