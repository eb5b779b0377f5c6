//! Reads the rows of a history (or question) that a policy scores keys by.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{Result, Tensor};

use super::rotation::unrotated;
use crate::attention::{Event, Observer, OverRows, Point, Site, Wanted, key_weights};
use crate::model::{AttentionSpec, DecoderSpec, KeyValues, LayerSpec};

/// Rows that a policy reads before an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Nothing: it looks at keys, values and positions alone.
    Nothing,
    /// Each key's weight from the last rows.
    LastRows(usize),
    /// Each key's weight from all rows.
    AllRows,
    /// Mean and covariance of the queries before rotation, without those of the first rows.
    Queries { but: usize },
}

impl Reads {
    /// Rows of the first `end` that it reads.
    pub fn rows(self, end: usize) -> Range<usize> {
        let first = match self {
            Reads::Nothing => end,
            Reads::LastRows(rows) => end.saturating_sub(rows),
            Reads::AllRows => 0,
            Reads::Queries { but } => but.min(end),
        };
        first..end
    }
}

/// Reads the rows of a history (or question) that a policy scores keys by: sums over rows, which do not grow with them.
#[derive(Debug, Clone)]
pub struct Collector {
    reads: Reads,
    /// Keys from here on are not scored.
    at: usize,
    pub(super) rows: Range<usize>,
    /// The layers that evict.
    specs: BTreeMap<usize, AttentionSpec>,
    layers: BTreeMap<usize, Read>,
}

/// Sums over the rows of one layer.
#[derive(Debug, Clone)]
pub(super) struct Read {
    rows: usize,
    pub sums: Sums,
}

#[derive(Debug, Clone)]
pub(super) enum Sums {
    /// Softmax weights summed over rows, f32 (heads, keys before the eviction).
    Weights(Tensor),
    Queries(QuerySums),
}

/// Sums of queries less `origin`, which keeps the sums of squares small: f32.
#[derive(Debug, Clone)]
pub(super) struct QuerySums {
    /// Mean of the first rows read, (heads, 1, head_dim).
    origin: Tensor,
    /// (heads, 1, head_dim)
    sum: Tensor,
    /// (heads, head_dim, head_dim)
    products: Tensor,
    rows: usize,
}

impl QuerySums {
    /// Of queries (heads, rows, head_dim).
    fn of(q: &Tensor, origin: Tensor) -> Result<Self> {
        let q = q.broadcast_sub(&origin)?;
        let (heads, rows, _) = q.dims3()?;
        // As a product, the sum over a middle dimension takes a twentieth of the time.
        let sum = Tensor::ones((heads, 1, rows), q.dtype(), q.device())?.matmul(&q)?;
        Ok(QuerySums { origin, sum, products: q.transpose(1, 2)?.matmul(&q)?, rows })
    }

    fn plus(&self, q: &Tensor) -> Result<Self> {
        let more = QuerySums::of(q, self.origin.clone())?;
        Ok(QuerySums {
            origin: more.origin,
            sum: (&self.sum + more.sum)?,
            products: (&self.products + more.products)?,
            rows: self.rows + more.rows,
        })
    }

    /// Mean (heads, head_dim) and covariance (heads, head_dim, head_dim).
    pub fn mean_and_covariance(&self) -> Result<(Tensor, Tensor)> {
        let rows = self.rows as f64;
        let mean = (&self.sum / rows)?;
        let covariance = ((&self.products / rows)? - mean.transpose(1, 2)?.matmul(&mean)?)?;
        Ok(((&self.origin + mean)?.squeeze(1)?, covariance))
    }
}

/// Full-attention softmax layers with keys of their own: those whose keys are evicted.
pub(super) fn evicting(spec: &DecoderSpec) -> impl Iterator<Item = (usize, &AttentionSpec)> {
    let keeps = |a: &AttentionSpec| {
        a.window.is_none() && !a.is_indexed() && !matches!(a.key_values, KeyValues::Of(_))
    };
    let full = move |layer: &LayerSpec| layer.attention().is_some_and(keeps);
    let full = spec.layers.iter().enumerate().filter(move |(_, layer)| full(layer));
    full.filter_map(|(layer, spec)| Some((layer, spec.attention()?)))
}

impl Collector {
    /// Reads for keys before `at`, from the rows before `end`.
    pub(super) fn new(reads: Reads, at: usize, end: usize, spec: &DecoderSpec) -> Self {
        let specs = evicting(spec).map(|(layer, spec)| (layer, spec.clone())).collect();
        Collector { reads, at, rows: reads.rows(end), specs, layers: BTreeMap::new() }
    }

    /// The sums of `layer`; an error if rows are missing.
    pub(super) fn of(&self, layer: usize) -> Result<Option<&Sums>> {
        let read = self.layers.get(&layer);
        let rows = read.map_or(0, |read| read.rows);
        if rows != self.rows.len() {
            candle_core::bail!(
                "This is a bug: {rows} of the {} rows that an eviction needs were read at layer {layer}",
                self.rows.len()
            );
        }
        Ok(read.map(|read| &read.sums))
    }
}

impl Observer for Collector {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        let wanted = |site: &Site| site.offset < self.rows.end && self.specs.contains_key(&site.layer);
        Wanted::inputs(matches!(point, Point::Attention(site) if wanted(site)))
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        let Event::Attention { site, q, k, .. } = event else { return Ok(()) };
        let Some(spec) = self.specs.get(&site.layer) else { return Ok(()) };
        let first = self.rows.start.max(site.offset);
        let end = self.rows.end.min(site.offset + q.dim(0)?);
        if first >= end {
            return Ok(());
        }
        let earlier = self.layers.get(&site.layer);
        let rows = first - site.offset..end - site.offset;
        let sums = match self.reads {
            Reads::Queries { .. } => {
                let q = unrotated(&q.narrow(0, rows.start, rows.len())?, first, &spec.rope)?;
                let q = q.transpose(0, 1)?.contiguous()?;
                Sums::Queries(match earlier {
                    Some(Read { sums: Sums::Queries(sums), .. }) => sums.plus(&q)?,
                    _ => QuerySums::of(&q, q.mean_keepdim(1)?)?,
                })
            }
            _ => {
                // Kernels convert all queries that they are given, and here may need one.
                let (own, site) =
                    (q.narrow(0, rows.start, rows.len())?, Site { offset: first, ..site.clone() });
                let k = k.narrow(1, 0, end - site.first_key)?;
                let weights = key_weights(&own, &k, &site, 0..rows.len(), OverRows::Sum)?;
                let keys = weights.dim(1)?.min(self.at);
                let weights = weights.narrow(1, 0, keys)?.pad_with_zeros(1, 0, self.at - keys)?;
                Sums::Weights(match earlier {
                    Some(Read { sums: Sums::Weights(sums), .. }) => (sums + weights)?,
                    _ => weights.contiguous()?,
                })
            }
        };
        let rows = earlier.map_or(0, |read| read.rows) + end - first;
        self.layers.insert(site.layer, Read { rows, sums });
        Ok(())
    }
}
