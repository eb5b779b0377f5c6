//! Names used in cases, runs and tables.

pub(super) const TITLE: &str = "KnowMe-Bench";
pub const DATASET: &str = "dataset";
/// Label listing questions without gold, which are neither asked nor scored.
pub const WITHOUT_GOLD: &str = "without_gold";
pub const TASK: &str = "task";
pub const TYPE: &str = "type";
pub const STRATEGY: &str = "strategy";
pub const ENTITY_TYPE: &str = "entity_type";
/// Facet of non-abstaining traps (T2): `order` or `fact`.
pub const EXPECTS: &str = "expects";

pub const EVENT: &str = "event";

pub const FIELDS: [&str; 6] = ["location", "action", "dialogue", "environment", "background", THOUGHT];
pub const THOUGHT: &str = "inner_thought";
/// Fields observable by others; excludes thoughts and `background`.
pub const OUTER_FIELDS: [&str; 4] = ["location", "action", "dialogue", "environment"];
/// A timestamp that is no date is shown verbatim as a field.
pub const TIMESTAMP: &str = "timestamp";

pub const EVIDENCE: &str = "evidence";
pub const ANCHOR_START: &str = "anchor_start";
pub const ANCHOR_END: &str = "anchor_end";
pub const INNER: &str = "inner";
pub const OUTER: &str = "outer";

pub const REFERENCE: &str = "reference";
pub const REASONING: &str = "reasoning";

pub const FULL: &str = "full";
pub const RAG: &str = "rag";
pub const RAG_DENSE: &str = "rag-dense";

pub const BEST: u32 = 5;
