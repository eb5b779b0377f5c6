//! Evidence settings (SubtleMemory, appendix C.1.5), each with strong and soft wording.

use crate::benchmarks::{Context, Retriever, Setting};

pub(super) const ORACLE: &str = "oracle";
pub(super) const PERFECT: &str = "perfect";
pub(super) const DEFAULT: &str = "default";
pub(super) const FULL: &str = "full";
pub(super) const SOFT: &str = "-soft";

/// Our choice: more than twice the mean number of target sessions per set (2.17).
const FOUND: usize = 5;
const BM25: Context = Context::Retrieved { by: Retriever::Bm25, most: FOUND };

/// BM25 over sessions is the first memory system; it stores whole sessions, so its `perfect` equals `oracle`.
pub(super) const SETTINGS: [Setting; 8] = [
    Setting { name: ORACLE, about: "the target sessions alone", context: Context::Evidence },
    Setting {
        name: PERFECT,
        about: "the memories stored from the target sessions; with BM25, which stores sessions, the same as oracle",
        context: Context::Evidence,
    },
    Setting { name: DEFAULT, about: "the 5 sessions that BM25 finds", context: BM25 },
    Setting { name: FULL, about: "the whole history; not in the paper", context: Context::Whole },
    Setting { name: "oracle-soft", about: "oracle, with general guidance alone", context: Context::Evidence },
    Setting {
        name: "perfect-soft",
        about: "perfect, with general guidance alone",
        context: Context::Evidence,
    },
    Setting { name: "default-soft", about: "default, with general guidance alone", context: BM25 },
    Setting { name: "full-soft", about: "full, with general guidance alone", context: Context::Whole },
];
