//! The words of this benchmark that stand in cases, runs and tables.

pub(super) const TITLE: &str = "KnowMe-Bench";
/// The label that cases are split by, and the facets of probes.
pub const DATASET: &str = "dataset";
/// The label that lists the questions that have no gold, and so are neither asked nor scored.
pub const WITHOUT_GOLD: &str = "without_gold";
pub const TASK: &str = "task";
pub const TYPE: &str = "type";
pub const STRATEGY: &str = "strategy";
pub const ENTITY_TYPE: &str = "entity_type";
/// The kind of reference of a trap (T2) that does not abstain: `order` or `fact`.
pub const EXPECTS: &str = "expects";

pub const EVENT: &str = "event";

/// The fields of an event, in the order in which they are shown.
pub const FIELDS: [&str; 6] = ["location", "action", "dialogue", "environment", "background", THOUGHT];
pub const THOUGHT: &str = "inner_thought";
/// The fields that somebody else could have witnessed. What is known of the past (`background`) is neither this nor a thought.
pub const OUTER_FIELDS: [&str; 4] = ["location", "action", "dialogue", "environment"];
/// A timestamp that is no date is shown in its own words, as a field.
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
