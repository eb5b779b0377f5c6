//! The implicit attention of Gated DeltaNet layers.

mod block;

pub(crate) use block::{Blocks, block_length, blocked, normalised};
