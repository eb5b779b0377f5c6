//! The observer that measures attention masses (STALE, appendix E.4).
//!
//! For every layer and head, and for each row span X and key span Y: the mean over the tokens i of X of the sum over
//! the tokens j of Y of the post-softmax weight A[i, j]. The weights of the rows asked for are recomputed in f32 from
//! queries and keys, in blocks, and summed at once: memory grows with spans, not with the context.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor};
use ndarray::{Array3, Array4};

use super::backends::segment_sums;
use super::{Observer, Site};
use crate::prompt::Span;

/// Why spans cannot be observed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpanError {
    /// A span reaches past the tokens, or ends before it begins.
    #[error("span `{label}` [{start}, {end}) is not within the {tokens} tokens")]
    OutOfRange {
        /// The span.
        label: String,
        /// Its first token.
        start: usize,
        /// One past its last token.
        end: usize,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A row span holds no token, so that a mean over its rows means nothing.
    #[error("row span `{label}` is empty; a mass is a mean over its tokens, so give it at least one")]
    EmptyRows {
        /// The span.
        label: String,
    },
}

/// What a [`MassObserver`] measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Masses {
    /// The decoder layers seen, ascending.
    pub layers: Vec<usize>,
    /// f32 `[layers, heads, row spans, key spans]`.
    pub mass: Array4<f32>,
    /// f32 `[layers, heads, row spans]`: the sinks' share, if any layer has sinks.
    pub sink: Option<Array3<f32>>,
}

/// Sums attention into spans as the prompt streams by.
#[derive(Debug, Clone)]
pub struct MassObserver {
    rows: Vec<Span>,
    keys: Vec<Span>,
    /// Ascending borders of the elementary segments that the key spans are made of.
    bounds: Vec<usize>,
    /// A layer's sums.
    layers: BTreeMap<usize, LayerSums>,
    time: Duration,
}

/// What a layer's rows have paid so far.
#[derive(Debug, Clone)]
struct LayerSums {
    heads: usize,
    /// `[row span][head][segment]`
    mass: Vec<f64>,
    /// `[row span][head]`
    sink: Vec<f64>,
    has_sinks: bool,
}

impl MassObserver {
    /// An observer of the row spans `rows` over the key spans `keys` of a prompt of `tokens` tokens. Spans may leave gaps
    /// and may overlap; a row sees the causal part of a key span only.
    pub fn new(rows: Vec<Span>, keys: Vec<Span>, tokens: usize) -> std::result::Result<Self, SpanError> {
        for span in rows.iter().chain(&keys) {
            if span.start > span.end || span.end > tokens {
                let Span { label, start, end, .. } = span.clone();
                return Err(SpanError::OutOfRange { label, start, end, tokens });
            }
        }
        if let Some(span) = rows.iter().find(|span| span.is_empty()) {
            return Err(SpanError::EmptyRows { label: span.label.clone() });
        }
        let mut bounds: Vec<usize> = keys.iter().flat_map(|span| [span.start, span.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        Ok(MassObserver { rows, keys, bounds, layers: BTreeMap::new(), time: Duration::ZERO })
    }

    /// An observer of another prompt that shares its first `shared` tokens with this one's, and takes over what was
    /// measured there. None of `rows` may begin before `shared` and end after it, and key spans that begin before
    /// `shared` must be the same in both; returns `None` where that does not hold.
    #[must_use]
    pub fn fork(&self, other: &MassObserver, shared: usize) -> Option<MassObserver> {
        let mut fork = other.clone();
        let measured = |rows: &[Span]| rows.iter().filter(|s| s.start < shared).cloned().collect::<Vec<_>>();
        // What begins after the border may differ, in number too: no row before it sees that far.
        let before = |keys: &[Span]| {
            let begun = keys.iter().filter(|s| s.start < shared);
            begun.map(|s| (s.start, s.end.min(shared))).collect::<Vec<_>>()
        };
        let straddles = fork.rows.iter().any(|s| s.start < shared && s.end > shared);
        if straddles
            || measured(&self.rows) != measured(&fork.rows)
            || before(&self.keys) != before(&fork.keys)
        {
            return None;
        }
        for (&layer, sums) in &self.layers {
            let target = fork.layer(layer, sums.heads, sums.has_sinks);
            target.sink.fill(0.0);
            let (from_segments, to_segments) = (self.segments(), fork.segments());
            for (to_row, row) in fork.rows.iter().enumerate().filter(|(_, s)| s.end <= shared) {
                let from_row = self.rows.iter().position(|s| s == row)?;
                let target = fork.layers.get_mut(&layer)?;
                for head in 0..sums.heads {
                    target.sink[to_row * sums.heads + head] = sums.sink[from_row * sums.heads + head];
                    // Rows before `shared` see no key after it, and up to there the segments are the same.
                    let from = &sums.mass[(from_row * sums.heads + head) * from_segments..][..from_segments];
                    let to = &mut target.mass[(to_row * sums.heads + head) * to_segments..][..to_segments];
                    for (x, y) in to.iter_mut().zip(from) {
                        *x = *y;
                    }
                }
            }
        }
        fork.time = self.time;
        Some(fork)
    }

    /// Time spent observing.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// The row spans.
    pub fn rows(&self) -> &[Span] {
        &self.rows
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        &self.keys
    }

    /// What was measured. Every layer must have the same number of heads.
    pub fn finish(&self) -> Result<Masses> {
        let heads = self.layers.values().next().map_or(0, |sums| sums.heads);
        if let Some((layer, sums)) = self.layers.iter().find(|(_, sums)| sums.heads != heads) {
            candle_core::bail!(
                "layer {layer} has {} heads where others have {heads}: one array cannot hold both",
                sums.heads
            );
        }
        let segments = self.segments();
        let mut mass = Array4::zeros((self.layers.len(), heads, self.rows.len(), self.keys.len()));
        let mut sink = Array3::zeros((self.layers.len(), heads, self.rows.len()));
        for (l, sums) in self.layers.values().enumerate() {
            for (r, row) in self.rows.iter().enumerate() {
                for head in 0..heads {
                    let of_row = &sums.mass[(r * heads + head) * segments..][..segments];
                    for (s, key) in self.keys.iter().enumerate() {
                        let first = self.bounds.partition_point(|&b| b < key.start);
                        let last = self.bounds.partition_point(|&b| b < key.end);
                        let sum: f64 = of_row[first.min(segments)..last.min(segments)].iter().sum();
                        mass[[l, head, r, s]] = (sum / row.len() as f64) as f32;
                    }
                    sink[[l, head, r]] = (sums.sink[r * heads + head] / row.len() as f64) as f32;
                }
            }
        }
        let has_sinks = self.layers.values().any(|sums| sums.has_sinks);
        Ok(Masses { layers: self.layers.keys().copied().collect(), mass, sink: has_sinks.then_some(sink) })
    }

    fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    fn layer(&mut self, layer: usize, heads: usize, has_sinks: bool) -> &mut LayerSums {
        let (rows, segments) = (self.rows.len(), self.segments());
        self.layers.entry(layer).or_insert_with(|| LayerSums {
            heads,
            mass: vec![0.0; rows * heads * segments],
            sink: vec![0.0; rows * heads],
            has_sinks,
        })
    }
}

impl Observer for MassObserver {
    fn wants(&self, _site: &Site) -> bool {
        !self.rows.is_empty()
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        let start = Instant::now();
        let (l, heads, _) = q.dims3()?;
        let segments = self.segments();
        self.layer(site.layer, heads, site.sinks.is_some());
        // Borders before the first key move onto it: what lies before is outside every window, and gets nothing.
        let bounds: Vec<usize> = self.bounds.iter().map(|b| b.saturating_sub(site.first_key)).collect();
        let local = site.from_first_key();
        for r in 0..self.rows.len() {
            let from = self.rows[r].start.clamp(site.offset, site.offset + l) - site.offset;
            let to = self.rows[r].end.clamp(site.offset, site.offset + l) - site.offset;
            if from >= to {
                continue;
            }
            let part = segment_sums(q, k, &local, from..to, &bounds)?;
            let sums = self.layer(site.layer, heads, site.sinks.is_some());
            for (sum, x) in sums.mass[r * heads * segments..].iter_mut().zip(&part.mass) {
                *sum += x;
            }
            for (sum, x) in sums.sink[r * heads..].iter_mut().zip(&part.sink) {
                *sum += x;
            }
        }
        self.time += start.elapsed();
        Ok(())
    }
}
