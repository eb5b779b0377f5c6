//! Attention by kernels of our own on CUDA. Built with the feature `cuda` only.
//!
//! The kernels are in `attention.cu` and `rows.cu`. `build.rs` compiles them to PTX, which the driver compiles for its card. A
//! prompt's rows are FlashAttention-2's scheme on tensor cores; single rows split the keys into parts that are
//! joined; and what chosen rows pay to segments is summed in f32 without a weight being written.

mod check;
mod decode;
mod operands;
mod prefill;
mod rows;

pub use check::holds;
pub use decode::{branches, decode};
pub use prefill::attention;
pub use rows::segment_sums;
