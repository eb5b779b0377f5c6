//! The mass of every row on some spans, summed over layers and heads.
//!
//! It is attention with one-hot values: the value of key j is 1 in column s if span s holds j. So one more attention of each chunk gives the
//! masses of all its rows, by the kernels of the forward pass, and nothing is kept but a number per row and span.

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};

use super::{Event, NoObserver, Observer, Point, Wanted, run};
use crate::transfer;

/// Sums attention masses of all prompt rows on spans. Softmax layers only.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowMasses {
    spans: Vec<Range<usize>>,
    /// By span and position.
    sums: Vec<Vec<f64>>,
}

impl RowMasses {
    /// Measures the rows of a prompt of `tokens` tokens.
    pub fn new(spans: Vec<Range<usize>>, tokens: usize) -> Self {
        let sums = vec![vec![0.0; tokens]; spans.len()];
        RowMasses { spans, sums }
    }

    /// The masses on a span by position; 0 for rows that were not read.
    pub fn of(&self, span: usize) -> &[f64] {
        self.sums.get(span).map_or(&[], Vec::as_slice)
    }

    /// Values of `k`'s shape and dtype, of spans `first..`: as many as there are columns.
    fn indicator(&self, k: &Tensor, first_key: usize, first: usize) -> Result<Tensor> {
        let (kv_heads, keys, d) = k.dims3()?;
        let mut values = vec![0f32; keys * d];
        for (column, span) in self.spans.iter().skip(first).take(d).enumerate() {
            let end = span.end.saturating_sub(first_key).min(keys);
            (span.start.saturating_sub(first_key)..end).for_each(|key| values[key * d + column] = 1.0);
        }
        let values = transfer::upload(values, (1, keys, d), k.device())?.to_dtype(k.dtype())?;
        values.broadcast_as((kv_heads, keys, d))?.contiguous()
    }
}

impl Observer for RowMasses {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        let Point::Attention(site) = point else { return Wanted::default() };
        let before = self.sums.first().is_some_and(|rows| site.offset < rows.len());
        Wanted::inputs(before)
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        let Event::Attention { site, q, k, .. } = event else { return Ok(()) };
        let d = k.dim(2)?;
        for first in (0..self.spans.len()).step_by(d.max(1)) {
            let values = self.indicator(k, site.first_key, first)?;
            let masses = run(q, k, &values, site, &mut NoObserver)?.to_dtype(DType::F32)?;
            // (l, heads, d) -> (l, d)
            let masses: Vec<f32> = transfer::fetch(&masses.sum(D::Minus2)?)?;
            for (row, masses) in masses.chunks_exact(d).enumerate() {
                for (rows, mass) in self.sums.iter_mut().skip(first).zip(masses) {
                    if let Some(sum) = rows.get_mut(site.offset + row) {
                        *sum += f64::from(*mass);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::{Site, backends::row_weights};
    use super::*;

    #[test]
    fn masses_are_the_sums_of_the_rows_weights_on_each_span() {
        let some = |seed: f32, shape: (usize, usize, usize)| {
            let n = shape.0 * shape.1 * shape.2;
            let values: Vec<f32> = (0..n).map(|i| ((i as f32 + seed) * 12.9898).sin()).collect();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        // Heads of 4: six spans take two passes. Rows 3..8 of two layers, which a chunk of 5 reads.
        let spans = vec![0..2, 2..3, 1..6, 5..5, 4..8, 7..9];
        let mut masses = RowMasses::new(spans.clone(), 8);
        let mut expected = vec![vec![0.0; 8]; spans.len()];
        for layer in 0..2 {
            let (q, k) = (some(layer as f32, (5, 4, 4)), some(9.0 + layer as f32, (2, 8, 4)));
            let site = Site { layer, offset: 3, scale: 0.7, ..Site::default() };
            assert!(masses.wants(Point::Attention(&site)).inputs);
            masses.observe(Event::Attention { site: &site, q: &q, k: &k, v: &k }).unwrap();
            for row in 0..5 {
                for head in row_weights(&q, &k, &site, row).unwrap() {
                    for (sums, span) in expected.iter_mut().zip(&spans) {
                        let inside = span.clone().filter(|key| *key < 8);
                        sums[3 + row] += inside.map(|key| f64::from(head[key])).sum::<f64>();
                    }
                }
            }
        }
        for (span, expected) in expected.iter().enumerate() {
            for (row, (found, expected)) in masses.of(span).iter().zip(expected).enumerate() {
                assert!((found - expected).abs() < 1e-5, "span {span}, row {row}: {found}, not {expected}");
            }
        }
        assert!(masses.of(2)[3..].iter().all(|mass| *mass > 0.0));
        assert!(!masses.wants(Point::Attention(&Site { offset: 8, ..Site::default() })).inputs);
    }
}
