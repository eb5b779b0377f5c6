//! Norms of head contributions by tensor operations, for any device.

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};

use super::chunked::{self, Blocks, Chunked};
use super::kernel::RowSums;
use crate::transfer;

const ROWS: usize = 64;
const KEYS: usize = 4096;
/// 16 Mi scores are 64 MiB.
pub const BLOCKS: Blocks = Blocks { scores: 16 << 20, ..chunked::BLOCKS };

#[derive(Clone, Copy)]
pub struct Carried<'a> {
    /// Norm of each head's output per key, f32 (heads, keys).
    pub lengths: &'a Tensor,
    /// Gram matrix of each head's output weights, f32 (heads, head_dim, head_dim).
    pub gram: &'a Tensor,
    /// Gate of the chunk's rows, f32 (l, heads, head_dim), in gated layers.
    pub gate: Option<&'a Tensor>,
}

/// Sums over rows, each (heads, spans).
#[derive(Debug, Clone, PartialEq)]
pub struct LengthSums {
    /// Sum over a span's keys j of A_ij * length of key j.
    pub values: Vec<f64>,
    /// Norm of a row's output from a span.
    pub outputs: Vec<f64>,
}

pub fn key_lengths(v: &Tensor, gram: &Tensor) -> Result<Tensor> {
    let (kv_heads, keys, d) = v.dims3()?;
    let heads = gram.dim(0)?;
    let gram = gram.reshape((kv_heads, heads / kv_heads, d, d))?;
    let blocks = (0..keys).step_by(KEYS).map(|start| {
        let v =
            v.narrow(1, start, KEYS.min(keys - start))?.to_dtype(DType::F32)?.contiguous()?.unsqueeze(1)?;
        let squares = v.broadcast_matmul(&gram)?.broadcast_mul(&v)?.sum(D::Minus1)?;
        // Clamps negative rounding errors.
        squares.relu()?.sqrt()?.reshape((heads, ()))
    });
    Tensor::cat(&blocks.collect::<Result<Vec<_>>>()?, 1)
}

pub fn length_sums(
    qkv: [&Tensor; 3],
    &Carried { lengths, gram, gate }: &Carried<'_>,
    of: &RowSums<'_>,
    spans: &[Range<usize>],
) -> Result<LengthSums> {
    let rows = &of.rows;
    let (_, heads, d) = qkv[0].dims3()?;
    let size = heads * spans.len();
    let mut all = LengthSums { values: vec![0.0; size], outputs: vec![0.0; size] };
    for start in rows.clone().step_by(ROWS) {
        let rows = start..(start + ROWS).min(rows.end);
        let of = RowSums { rows: rows.clone(), ..*of };
        let sums = Chunked(BLOCKS).values_and_lengths(qkv, Some(lengths), &of)?;
        let read = of_spans(&sums.read, spans)?;
        let read = match gate {
            Some(gate) => {
                let gate = gate.narrow(0, rows.start, rows.len())?.transpose(0, 1)?.contiguous()?;
                read.broadcast_mul(&gate.unsqueeze(1)?)?
            }
            None => read,
        };
        let read = read.reshape((heads, spans.len() * rows.len(), d))?;
        let squares = (read.matmul(gram)? * &read)?.sum(D::Minus1)?;
        let written = squares.relu()?.sqrt()?.reshape((heads, spans.len(), rows.len()))?.sum(2)?;
        let long = of_spans(&sums.long, spans)?.sum(2)?;
        let both = transfer::fetch(&Tensor::cat(&[long, written], 0)?)?;
        let (long, written) = both.split_at(size);
        all.values.iter_mut().zip(long).for_each(|(sum, x)| *sum += f64::from(*x));
        all.outputs.iter_mut().zip(written).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    Ok(all)
}

/// Sums segments into spans: (heads, segments, ..) -> (heads, spans, ..).
fn of_spans(sums: &Tensor, spans: &[Range<usize>]) -> Result<Tensor> {
    let each_its_own = |(at, span): (usize, &Range<usize>)| *span == (at..at + 1);
    if spans.len() == sums.dim(1)? && spans.iter().enumerate().all(each_its_own) {
        return Ok(sums.clone());
    }
    let mut nothing = sums.dims().to_vec();
    nothing[1] = 1;
    let of_span = |span: &Range<usize>| match span.len() {
        0 => Tensor::zeros(nothing.as_slice(), sums.dtype(), sums.device()),
        1 => sums.narrow(1, span.start, 1),
        n => sums.narrow(1, span.start, n)?.sum_keepdim(1),
    };
    let spans = spans.iter().map(of_span).collect::<Result<Vec<_>>>()?;
    if spans.is_empty() { sums.narrow(1, 0, 0) } else { Tensor::cat(&spans, 1) }
}
