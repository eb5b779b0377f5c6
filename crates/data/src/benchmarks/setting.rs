//! Settings of `run --conditions`.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    pub name: &'static str,
    pub about: &'static str,
    pub context: Context,
}

/// Sessions retrieved by the general `rag`, as in SubtleMemory's `default`.
const FOUND: usize = 5;

/// Available to all benchmarks unless they define the name themselves.
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

/// Part of the history that is shown, in order and with original indices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Context {
    #[default]
    Whole,
    /// Segments with the probe's or the case's evidence: perfect retrieval.
    Evidence,
    Nothing,
    Retrieved {
        by: Retriever,
        most: usize,
    },
}

impl Context {
    /// Name for tables, with the retriever: `rag, BM25`.
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
    Bm25,
    /// all-MiniLM-L6-v2 embeddings.
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
