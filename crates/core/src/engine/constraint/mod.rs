//! Constrained decoding: a grammar masks tokens before sampling.
//!
//! A vocabulary is converted to a byte trie once ([`GrammarVocabulary`]); grammars are compiled against it off the engine thread
//! ([`Constraint`]); each answer has its own state ([`Guide`]). Matching and its limits are `llguidance`'s.

mod guide;
mod vocabulary;

pub(super) use guide::Guide;
pub use vocabulary::{Constraint, ConstraintError, GrammarVocabulary, Starts};
