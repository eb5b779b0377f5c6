//! The evidence settings (SubtleMemory, appendix C.1.5), each under the strong and the soft wording.

use crate::benchmarks::{Context, Retriever, Setting};

/// The target sessions in the order of the history, and nothing else.
pub(super) const ORACLE: &str = "oracle";
/// The target sessions as the memory system stored them.
pub(super) const PERFECT: &str = "perfect";
/// The sessions that the memory system finds by itself.
pub(super) const DEFAULT: &str = "default";
/// The whole history. The paper has no such setting.
pub(super) const FULL: &str = "full";
/// The suffix of a setting under the soft wording.
pub(super) const SOFT: &str = "-soft";

/// Sessions that BM25 may find. Our choice: rather more than twice the mean number of target sessions of a set (2.17).
const FOUND: usize = 5;
const BM25: Context = Context::Retrieved { by: Retriever::Bm25, most: FOUND };

/// BM25 over sessions is the first memory system. It stores the sessions themselves, so its `perfect` shows what `oracle` does.
pub(super) const SETTINGS: [Setting; 8] = [
    Setting { name: ORACLE, about: "the target sessions alone", context: Context::Evidence },
    Setting {
        name: PERFECT,
        about: "what the memory stored of the target sessions; of BM25, which stores sessions, the same as oracle",
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
