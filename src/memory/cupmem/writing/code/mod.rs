//! W5 to W8 of the code's variant, as the public code decides them; W9 ([`super::links`]) is its alone.
//!
//! A session's decisions stand in the order of its updates, then of its verdicts, and are applied in that order: what a session writes comes before
//! what it ends.

pub mod adjudicate;
pub mod apply;
pub mod arbitrate;
pub mod proposals;
