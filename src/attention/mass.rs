//! The observer that measures attention masses (STALE, appendix E.4).
//!
//! For every layer and head, and for each row span X and key span Y: the mean over the tokens i of X of the sum over
//! the tokens j of Y of the post-softmax weight A[i, j]. The weights of the rows asked for are recomputed in f32 from
//! queries and keys, in blocks, and summed at once: memory grows with spans, not with the context. The sums stay on the
//! device of their layer until all of them are asked for.
//!
//! Layers with a gated delta rule have no softmax; of those it measures the implicit attention ([`super::delta`]), whose
//! weights are signed: their sum over Y, and the share of their sizes that falls on Y. No cache holds those layers' keys, so
//! the observer keeps them until the last row span has been read.

use std::collections::BTreeMap;

use candle_core::{D, Result, Tensor};
use ndarray::{Array3, Array4};

use super::backends::segment_sums;
use super::delta::{self, History};
use super::{DeltaSite, Observer, Site};
use crate::prompt::Span;
use crate::stats;
use crate::transfer;

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
    /// The implicit attention of linear-attention layers, if the model has any.
    pub delta: Option<DeltaMasses>,
}

/// The implicit attention of layers with a gated delta rule, whose output is o_t = sum over s <= t of a_ts v_s.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaMasses {
    /// The decoder layers, ascending.
    pub layers: Vec<usize>,
    /// f32 `[layers, value heads, row spans, key spans]`: mean over the row span's tokens t of the sum of a_ts over the key
    /// span's tokens s. Weights are signed, so this may be below 0.
    pub signed: Array4<f32>,
    /// The same, of the sum of |a_ts| over the key span divided by that over all s <= t: the shares of key spans that tile
    /// the prompt sum to 1. A token all of whose weights are 0 has share 0 everywhere.
    pub share: Array4<f32>,
}

/// Sums attention into spans as the prompt streams by.
#[derive(Debug, Clone)]
pub struct MassObserver {
    rows: Vec<Span>,
    keys: Vec<Span>,
    /// Ascending borders of the elementary segments that the key spans are made of.
    bounds: Vec<usize>,
    /// What a layer's rows have paid.
    layers: BTreeMap<usize, LayerSums>,
    /// What is known of a linear-attention layer.
    deltas: BTreeMap<usize, DeltaLayer>,
    /// Linear-attention layers' keys of this many first tokens are kept for forks.
    keep: usize,
}

/// What a layer's rows have paid so far.
#[derive(Debug, Clone)]
struct LayerSums {
    heads: usize,
    /// By row span: what it paid to the sinks and to each segment, (heads, 1 + segments).
    rows: BTreeMap<usize, Tensor>,
    has_sinks: bool,
}

/// What is known of a linear-attention layer so far.
#[derive(Debug, Clone)]
struct DeltaLayer {
    heads: usize,
    /// Keys, while rows that see them are still to come.
    history: History,
    /// Row spans that have begun but not ended, with their queries: (l, key_heads, key_dim) a chunk.
    waiting: BTreeMap<usize, Vec<Tensor>>,
    /// By row span: the sums of the weights and of the shares, (2, heads, segments).
    rows: BTreeMap<usize, Tensor>,
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
        Ok(MassObserver { rows, keys, bounds, layers: BTreeMap::new(), deltas: BTreeMap::new(), keep: 0 })
    }

    /// Keeps what forks at token `tokens` need to measure rows after it: linear-attention layers' keys up to there.
    #[must_use]
    pub fn keeping(self, tokens: usize) -> Self {
        MassObserver { keep: tokens, ..self }
    }

    /// An observer of another prompt that shares its first `shared` tokens with this one's, and takes over what was
    /// measured there. None of `rows` may begin before `shared` and end after it, and key spans that begin before
    /// `shared` must be the same in both; returns `None` where that does not hold. Where a model has linear-attention
    /// layers, this observer must have been made with [`MassObserver::keeping`] for the fork to have rows after `shared`.
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
        // The rows that were measured, under the numbers that they have in the fork.
        let rows_before = |rows: &BTreeMap<usize, Tensor>, columns: usize| {
            let ended = fork.rows.iter().enumerate().filter(|(_, s)| s.end <= shared);
            let mut taken = BTreeMap::new();
            for (to, row) in ended {
                if let Some(sums) = rows.get(&self.rows.iter().position(|s| s == row)?) {
                    taken.insert(to, with_columns(sums, columns).ok()?);
                }
            }
            Some(taken)
        };
        let (mut layers, mut deltas) = (BTreeMap::new(), BTreeMap::new());
        for (&layer, LayerSums { heads, rows, has_sinks }) in &self.layers {
            let rows = rows_before(rows, 1 + fork.segments())?;
            layers.insert(layer, LayerSums { heads: *heads, rows, has_sinks: *has_sinks });
        }
        let needed = fork.delta_end();
        for (&layer, seen) in &self.deltas {
            let history = if needed > shared { seen.history.up_to(shared).ok()? } else { History::default() };
            if needed > shared && history.len() < shared {
                return None;
            }
            let rows = rows_before(&seen.rows, fork.segments())?;
            let waiting = BTreeMap::new();
            deltas.insert(layer, DeltaLayer { heads: seen.heads, history, waiting, rows });
        }
        (fork.layers, fork.deltas) = (layers, deltas);
        Some(fork)
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
        let shape = (self.layers.len(), heads, self.rows.len(), self.keys.len());
        let mut mass = Array4::zeros(shape);
        let mut sink = Array3::zeros((shape.0, shape.1, shape.2));
        for ((l, r), sums) in fetched(self.layers.values().map(|sums| &sums.rows))? {
            for (head, sums) in sums.chunks_exact(1 + self.segments()).enumerate() {
                sink[[l, head, r]] = (sums[0] / self.rows[r].len() as f64) as f32;
                for s in 0..self.keys.len() {
                    mass[[l, head, r, s]] = self.mean(&sums[1..], r, s);
                }
            }
        }
        let has_sinks = self.layers.values().any(|sums| sums.has_sinks);
        Ok(Masses {
            layers: self.layers.keys().copied().collect(),
            mass,
            sink: has_sinks.then_some(sink),
            delta: self.finish_delta()?,
        })
    }

    fn finish_delta(&self) -> Result<Option<DeltaMasses>> {
        let Some(heads) = self.deltas.values().next().map(|seen| seen.heads) else { return Ok(None) };
        if let Some((layer, seen)) = self.deltas.iter().find(|(_, seen)| seen.heads != heads) {
            candle_core::bail!(
                "layer {layer} has {} value heads where others have {heads}: one array cannot hold both",
                seen.heads
            );
        }
        let shape = (self.deltas.len(), heads, self.rows.len(), self.keys.len());
        let (mut signed, mut share) = (Array4::zeros(shape), Array4::zeros(shape));
        for ((l, r), sums) in fetched(self.deltas.values().map(|seen| &seen.rows))? {
            let (signed_sums, share_sums) = sums.split_at(sums.len() / 2);
            for (masses, sums) in [(&mut signed, signed_sums), (&mut share, share_sums)] {
                for (head, sums) in sums.chunks_exact(self.segments()).enumerate() {
                    for s in 0..self.keys.len() {
                        masses[[l, head, r, s]] = self.mean(sums, r, s);
                    }
                }
            }
        }
        Ok(Some(DeltaMasses { layers: self.deltas.keys().copied().collect(), signed, share }))
    }

    /// The mean over a row span of what it pays to a key span, from its sums by segment.
    fn mean(&self, sums: &[f64], row: usize, key: usize) -> f32 {
        let at = |border: usize| self.bounds.partition_point(|&b| b < border).min(sums.len());
        let key = &self.keys[key];
        let sum: f64 = sums[at(key.start)..at(key.end)].iter().sum();
        // The sum of nothing is -0.
        ((sum + 0.0) / self.rows[row].len() as f64) as f32
    }

    fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    fn layer(&mut self, layer: usize, heads: usize, has_sinks: bool) -> &mut LayerSums {
        self.layers.entry(layer).or_insert_with(|| LayerSums { heads, rows: BTreeMap::new(), has_sinks })
    }

    fn delta_layer(&mut self, layer: usize, heads: usize) -> &mut DeltaLayer {
        self.deltas.entry(layer).or_insert_with(|| DeltaLayer {
            heads,
            history: History::default(),
            waiting: BTreeMap::new(),
            rows: BTreeMap::new(),
        })
    }

    /// Measures a row span of a linear-attention layer, all of whose queries have come: one walk back over the keys serves
    /// them all, however they were cut into chunks.
    fn end_row_span(&mut self, layer: usize, r: usize) -> Result<()> {
        let (first_row, segments) = (self.rows[r].start, self.segments());
        let Some(seen) = self.deltas.get_mut(&layer) else { return Ok(()) };
        let Some(queries) = seen.waiting.remove(&r) else { return Ok(()) };
        let q = Tensor::cat(&queries, 0)?;
        if segments > 0 {
            seen.rows.insert(r, delta::segment_sums(&q, first_row, &seen.history, &self.bounds)?);
        }
        Ok(())
    }

    /// One past the last token whose linear-attention keys are needed.
    fn delta_end(&self) -> usize {
        self.rows.iter().map(|s| s.end).max().unwrap_or(0).max(self.keep)
    }
}

/// Sums by segment of rows before a border, (..., segments), for an observer with `columns` of them: rows see no key after
/// the border, and up to there both observers' segments are the same.
fn with_columns(sums: &Tensor, columns: usize) -> Result<Tensor> {
    let held = sums.dim(D::Minus1)?;
    sums.narrow(D::Minus1, 0, held.min(columns))?.pad_with_zeros(D::Minus1, 0, columns.saturating_sub(held))
}

/// The sums of layers on the host, with the place of their layer and their row span: one copy a device.
fn fetched<'a>(
    layers: impl Iterator<Item = &'a BTreeMap<usize, Tensor>>,
) -> Result<impl Iterator<Item = ((usize, usize), Vec<f64>)>> {
    let rows =
        |(l, rows): (usize, &'a BTreeMap<usize, Tensor>)| rows.iter().map(move |(&r, sums)| ((l, r), sums));
    let (places, sums): (Vec<_>, Vec<_>) = layers.enumerate().flat_map(rows).unzip();
    Ok(places.into_iter().zip(transfer::fetch_all(&sums)?))
}

impl Observer for MassObserver {
    fn wants(&self, _site: &Site) -> bool {
        !self.rows.is_empty()
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        let _span = stats::observer();
        let (l, heads, _) = q.dims3()?;
        self.layer(site.layer, heads, site.sinks.is_some());
        // Borders before the first key move onto it: what lies before is outside every window, and gets nothing.
        let bounds: Vec<usize> = self.bounds.iter().map(|b| b.saturating_sub(site.first_key)).collect();
        let local = site.relative();
        for r in 0..self.rows.len() {
            let from = self.rows[r].start.clamp(site.offset, site.offset + l) - site.offset;
            let to = self.rows[r].end.clamp(site.offset, site.offset + l) - site.offset;
            if from >= to {
                continue;
            }
            let part = segment_sums(q, k, &local, from..to, &bounds)?;
            let sums = &mut self.layer(site.layer, heads, site.sinks.is_some()).rows;
            let sum = match sums.get(&r) {
                Some(before) => (before + part)?,
                None => part,
            };
            sums.insert(r, sum);
        }
        Ok(())
    }

    fn wants_delta(&self, site: &DeltaSite) -> bool {
        site.offset < self.delta_end()
    }

    fn observe_delta(
        &mut self,
        site: &DeltaSite,
        q: &Tensor,
        k: &Tensor,
        g: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        let _span = stats::observer();
        let (l, heads) = g.dims2()?;
        let chunk = site.offset..site.offset + l;
        let kept = self.delta_end().clamp(chunk.start, chunk.end) - chunk.start;
        let seen = self.delta_layer(site.layer, heads);
        if seen.history.len() != site.offset {
            candle_core::bail!(
                "This is a bug: layer {} is at token {} but {} of its keys were kept",
                site.layer,
                site.offset,
                seen.history.len()
            );
        }
        seen.history.push(k, g, beta, kept)?;
        for r in 0..self.rows.len() {
            let row = self.rows[r].range();
            let (from, to) = (row.start.max(chunk.start), row.end.min(chunk.end));
            if from >= to {
                continue;
            }
            let q = q.narrow(0, from - chunk.start, to - from)?.force_contiguous()?;
            self.delta_layer(site.layer, heads).waiting.entry(r).or_default().push(q);
            if row.end <= chunk.end {
                self.end_row_span(site.layer, r)?;
            }
        }
        if self.keep == 0 && self.delta_end() <= chunk.end {
            self.delta_layer(site.layer, heads).history = History::default();
        }
        Ok(())
    }
}
