//! CPU attention on slices: blocked matrix products with a streaming softmax, in safe code that [`pulp`] compiles for AVX-512, AVX2
//! or NEON.
//!
//! The cache holds keys and values in f32, bf16 or f16; half precision is widened to f32 block by block. For bf16 queries and a bf16
//! cache on a processor with bf16 instructions ([`pairs`]), scores are bf16 products and weights are rounded to bf16, as in a bf16
//! model. Accumulation is always f32.
//!
//! A task is one key/value head, a block of query positions (all heads of the group, so each key is loaded once) and, if there would be
//! few tasks, a part of the keys. It processes keys in blocks that fit the L2 cache ([`walk`]): scores, running maximum and sum per
//! row, then a [`Fold`](fold::Fold) that accumulates the output or segment sums. Keys and values are read in the cache's layout
//! ([`tile`]); fully masked blocks are skipped. Decoding has its own kernel ([`decode`]). Tasks depend on shapes only, never on the
//! number of threads, so results are bit-equal for any thread count.

use std::ops::Range;

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::kernel::{Kernel, RowSums};
use crate::attention::SPLIT_K;
use crate::attention::call::{Attended, Call};
use crate::bfloat;

mod decode;
mod fold;
mod key_weights;
mod lengths;
mod output;
mod pairs;
mod queries;
mod segment_sums;
mod sequence;
mod tasks;
#[cfg(test)]
mod tests;
mod tile;
mod total;
mod value_sums;
mod walk;

pub use key_weights::key_weights;
pub use lengths::{key_lengths, length_sums};
use output::PartialOutput;
use queries::{Queries, WideQueries};
use segment_sums::segment_sums;
use sequence::{Sequence, with_slices};
use tasks::{Shape, Task};
pub use value_sums::value_sums;

pub struct Cpu;

impl Kernel for Cpu {
    fn name(&self) -> &'static str {
        "blocked streaming softmax (CPU)"
    }

    fn takes_rows_after_prefix(&self) -> bool {
        true
    }

    /// All tails' rows attend to the prefix as one block of queries, which fills panels and loads each key as rarely as in a prefill.
    /// Each tail's own keys are processed separately, and the two results are merged. If the prefix is a multiple of [`SPLIT_K`], the
    /// summation order equals that of each sequence alone.
    fn attend(&self, call: Call<'_>) -> Result<Attended> {
        let Call { q, prefix, tails, rows, site, positions, hidden, borders } = call.relative();
        let (base, decoding) = (site.offset, rows == 1);
        let (shape, all, of_q) = (Shape::new(q, tails[0].0)?, q.dim(0)?, WideQueries::new(q)?);
        let mut tensors = vec![&of_q.wide];
        tensors.extend(prefix.iter().chain(&tails).flat_map(|&(k, v)| [k, v]));
        let (out, sums) = with_slices(&tensors, |slices| {
            let sequences = (prefix.iter().chain(&tails).zip(slices[1..].chunks_exact(2)))
                .map(|((k, v), slices)| Sequence::new(k, v, slices[0], slices[1]))
                .collect::<Result<Vec<_>>>()?;
            let (before, own) = sequences.split_at(sequences.len() - tails.len());
            // Positions and borders become relative to the first key.
            let from = |first: usize| {
                let after = |at: &usize| at.saturating_sub(first);
                let borders = borders.iter().map(|borders| borders.iter().flatten().map(after).collect());
                (positions.iter().map(after).collect(), hidden.counted_from(first), borders.collect())
            };
            let of_all = slices[0].f32()?;
            let queries = |(positions, hidden, borders)| Queries {
                q: of_all,
                half: of_q.half,
                positions,
                hidden,
                shape,
                site: &site,
                borders,
            };
            let (of_prefix, of_tails) = (queries(from(0)), queries(from(base)));
            let step = |keys: &Range<usize>| if decoding { SPLIT_K } else { keys.end.max(1) };
            let mut tasks: Vec<(&Queries, &Sequence, Task)> = Vec::new();
            for prefix in before {
                let block = if decoding { shape.positions() } else { shape.finer_positions(all) };
                for start in (0..all).step_by(block) {
                    let block = start..(start + block).min(all);
                    let keys = of_prefix.visible(&block).start.min(base)..base;
                    let split = shape.split(&block, &keys, step(&keys));
                    tasks.extend(split.map(|task| (&of_prefix, prefix, task)));
                }
            }
            let block = if own.len() == 1 { shape.finer_positions(rows) } else { shape.positions() };
            for (nth, tail) in own.iter().enumerate() {
                let split = of_tails.tasks(nth * rows..(nth + 1) * rows, block, step);
                tasks.extend(split.into_iter().map(|task| (&of_tails, tail, task)));
            }
            let weigh = |(queries, sequence, task): (&Queries, &Sequence, Task)| {
                queries.weigh(task, sequence, decoding)
            };
            let parts: Vec<PartialOutput> = tasks.into_par_iter().map(weigh).collect();
            // Partial results per row and key/value head: the prefix first, then in key order.
            let mut of_rows: Vec<Vec<usize>> = vec![Vec::new(); all * shape.kv_heads];
            for (nth, part) in parts.iter().enumerate() {
                part.task
                    .queries
                    .clone()
                    .for_each(|row| of_rows[row * shape.kv_heads + part.task.kv_head].push(nth));
            }
            let mut out = vec![0f32; all * shape.heads * shape.d];
            out.par_chunks_mut(shape.heads * shape.d).enumerate().for_each(|(row, out)| {
                for kv_head in 0..shape.kv_heads {
                    let parts = of_rows[row * shape.kv_heads + kv_head]
                        .iter()
                        .map(|&nth| (&parts[nth], (row - parts[nth].task.queries.start) * shape.group));
                    of_tails.merge(kv_head, parts, out);
                }
            });
            let sums = borders.iter().enumerate().map(|(row, borders)| {
                let borders = borders.as_deref()?;
                Some(of_tails.recorded(row, &parts, borders).tensor())
            });
            Ok((out, sums.map(Option::transpose).collect::<Result<_>>()?))
        })?;
        let out = Tensor::from_vec(out, (all, shape.heads, shape.d), q.device())?;
        Ok((bfloat::to_dtype(&out, q.dtype())?, sums))
    }

    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        segment_sums(q, k, of)?.tensor()
    }
}
