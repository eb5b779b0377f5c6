//! Constrained decoding: a grammar masks tokens before one is chosen.
//!
//! A model's vocabulary becomes a tree of bytes once ([`GrammarVocabulary`]); a grammar is compiled against it ([`Constraint`]), apart
//! from the thread that owns the model; each answer follows it with a state of its own ([`Guide`]). The matching is that of the
//! crate `llguidance`, whose limits bound what compiling and each token may cost. Texts, tools and fields are the server's matter.

mod guide;
mod vocabulary;

pub(super) use guide::Guide;
pub use vocabulary::{Constraint, ConstraintError, GrammarVocabulary, Starts};
