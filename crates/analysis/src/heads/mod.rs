//! Detects retrieval heads: plants needles in the sessions of a sample and asks for them.
//!
//! [`plant`] builds prompts, [`score`] scores the heads on one needle, [`probing`] averages over needles, [`mod@file`] stores the scores.
//! Called by `palimpsest heads`. Scores by layer and head:
//!
//! - **retrieval** (Wu et al. 2024, arXiv 2404.15574): share of the needle that the head copies while the model answers;
//! - **qr** (QRHead, Zhang et al. 2025, arXiv 2506.09944): attention of the question to the needle's session minus that of a null question.

pub mod file;
pub mod plant;
pub mod probing;
pub mod score;

pub use file::{HeadScores, HeadsFileError, Score};
