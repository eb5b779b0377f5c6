//! The ways in which a benchmark puts its probes: what `run --conditions` names.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    pub about: &'static str,
    pub context: Context,
}

/// Sessions that BM25 finds under the general `rag`: as many as SubtleMemory's `default`.
const FOUND: usize = 5;

/// The settings that every benchmark has that does not name its own so.
pub(super) const GENERAL: [Setting; 4] = [
    Setting { name: "full", about: "the whole history", context: Context::Whole },
    Setting { name: "evidence", about: "the evidence alone", context: Context::Evidence },
    Setting {
        name: "rag",
        about: "the 5 segments that BM25 finds",
        context: Context::Retrieved { by: Retriever::Bm25, most: FOUND },
    },
    Setting { name: "none", about: "the question alone", context: Context::Nothing },
];

/// The part of a history that a probe is shown. Segments stay in the order of the history and keep their original indices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Context {
    #[default]
    Whole,
    /// The segments that hold the probe's evidence, or the whole case's: what perfect retrieval would find.
    Evidence,
    Nothing,
    /// The segments that a retriever finds for the probe's query.
    Retrieved {
        by: Retriever,
        most: usize,
    },
}

impl Context {
    /// A condition's name as tables write it: where a retriever finds the context, with the retriever: `rag, BM25`.
    pub fn named(self, condition: &str) -> String {
        match self {
            Context::Retrieved { by, .. } => format!("{condition}, {}", by.name()),
            Context::Whole | Context::Evidence | Context::Nothing => condition.to_owned(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retriever {
    /// By words (Okapi BM25).
    Bm25,
    /// By embeddings of all-MiniLM-L6-v2.
    Dense,
}

impl Retriever {
    pub fn name(self) -> &'static str {
        match self {
            Retriever::Bm25 => "BM25",
            Retriever::Dense => "all-MiniLM-L6-v2",
        }
    }
}
