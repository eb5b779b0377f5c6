//! Heads that retrieve, found by a probing set of our own: needles planted in the sessions of a sample, and questions for them.
//!
//! [`plant`] makes prompts of needles, [`score`] reads one of them and says what each head did, [`probing`] reads all, and [`mod@file`]
//! keeps the scores. Called by `palimpsest heads`; the lens takes masses by the weights of a file. Two scores, both by layer and
//! head:
//!
//! - **retrieval** (Wu et al. 2024, arXiv 2404.15574): which share of a needle the head copies while the model answers;
//! - **qr** (QRHead, Zhang et al. 2025, arXiv 2506.09944): how much more the question looks at the session with the needle than a
//!   null question does.

pub mod file;
pub mod plant;
pub mod probing;
pub mod score;

pub use file::{HeadScores, HeadsFileError, Score};
