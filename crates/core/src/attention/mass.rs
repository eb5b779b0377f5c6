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
//!
//! Rows may also be the tokens that are generated after the prompt, each of them and their mean ([`AnswerRows`]). Their key
//! spans are those of the prompt: what a row pays to tokens generated before it is in no span, so with spans that tile the
//! prompt it is what the row's masses and the sink's share lack to 1. The kernels of decoding sum their own weights, so that
//! this takes no second pass; the implicit attention of linear layers takes one for all rows together, when the masses are
//! asked for.

use std::collections::BTreeMap;

use candle_core::{D, Result, Tensor};
use ndarray::{Array3, Array4, s};

use super::answer::{AnswerRows, Answered, Step};
use super::backends::{RowSums, segment_sums};
use super::delta::{self, History};
use super::{DeltaSite, Event, Observer, Point, Site, Uniform, Wanted, same_heads};
use crate::span::{Span, borders};
use crate::timing;
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
        /// The tokens that there are.
        tokens: usize,
    },
    /// A span has a name that means something else.
    #[error(
        "span `{label}`: `last`, `answer` and `each` name rows (the prompt's last position and the generated tokens); call it something else"
    )]
    Reserved {
        /// The span.
        label: String,
    },
    /// A row has a name that no span has.
    #[error("row `{label}` is none of the spans; add it to `spans`")]
    UnknownRow {
        /// The row.
        label: String,
    },
    /// The generated tokens are asked for twice.
    #[error("row `{label}` comes twice; name it once")]
    RowTwice {
        /// The row.
        label: String,
    },
    /// A row span holds no token, so that a mean over its rows means nothing.
    #[error("row span `{label}` is empty; a mass is a mean over its tokens, so give it at least one")]
    EmptyRows {
        /// The span.
        label: String,
    },
}

/// The measurements of a [`MassObserver`].
#[derive(Debug, Clone, PartialEq)]
pub struct Masses {
    /// The decoder layers seen, ascending.
    pub layers: Vec<usize>,
    /// The row spans: those asked for, and `answer` where it was and something was generated.
    pub rows: Vec<Span>,
    /// f32 `[layers, heads, row spans, key spans]`.
    pub mass: Array4<f32>,
    /// The layers' windows, and what uniform attention would pay at each of them.
    pub uniform: Uniform,
    /// f32 `[layers, heads, row spans]`: the sinks' share, if any layer has sinks.
    pub sink: Option<Array3<f32>>,
    /// The implicit attention of linear-attention layers, if the model has any.
    pub delta: Option<DeltaMasses>,
    /// Each generated token as a row, where that was asked for.
    pub each: Option<EachMasses>,
}

/// The masses of each of n generated tokens over the key spans of the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct EachMasses {
    /// f32 `[layers, heads, n, key spans]`.
    pub mass: Array4<f32>,
    /// f32 `[layers, heads, n]`: the sinks' share, if any layer has sinks.
    pub sink: Option<Array3<f32>>,
    /// f32 `[layers, value heads, n, key spans]`, of linear-attention layers, if the model has any.
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
    layers: BTreeMap<usize, LayerSums>,
    deltas: BTreeMap<usize, DeltaLayer>,
    /// Linear-attention layers' keys of this many first tokens are kept for forks.
    keep: usize,
    tokens: usize,
    answer: AnswerRows,
    /// Generated tokens before those of the rows: a thought.
    thought: usize,
}

/// The sums of a softmax layer's rows so far.
#[derive(Debug, Clone)]
struct LayerSums {
    heads: usize,
    /// By row span: what it paid to the sinks and to each segment, (heads, 1 + segments).
    rows: BTreeMap<usize, Tensor>,
    has_sinks: bool,
    window: Option<usize>,
    answered: Answered,
}

/// The keys, queries and sums of a linear-attention layer so far.
#[derive(Debug, Clone)]
struct DeltaLayer {
    heads: usize,
    /// Keys, while rows that see them are still to come.
    history: History,
    /// Row spans that have begun but not ended, with their queries: (l, key_heads, key_dim) a chunk.
    waiting: BTreeMap<usize, Vec<Tensor>>,
    /// By row span: the sums of the weights and of the shares, (2, heads, segments).
    rows: BTreeMap<usize, Tensor>,
    /// Queries of the rows of generated tokens, (1, key_heads, key_dim) each.
    answered: Vec<Tensor>,
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
        let bounds = borders(&keys);
        Ok(MassObserver { rows, keys, bounds, ..MassObserver::nothing(tokens) })
    }

    /// An observer of no rows and no keys, which wants nothing.
    pub fn nothing(tokens: usize) -> Self {
        MassObserver {
            rows: Vec::new(),
            keys: Vec::new(),
            bounds: Vec::new(),
            layers: BTreeMap::new(),
            deltas: BTreeMap::new(),
            keep: 0,
            tokens,
            answer: AnswerRows::default(),
            thought: 0,
        }
    }

    /// Also measures the tokens that are generated after the prompt: decoding must be shown to the observer too, and
    /// [`MassObserver::finish_after`] must be told how many they are.
    #[must_use]
    pub fn answering(self, answer: AnswerRows) -> Self {
        MassObserver { answer, ..self }
    }

    /// Keeps what forks at token `tokens` need to measure rows after it: linear-attention layers' keys up to there.
    #[must_use]
    pub fn keeping(self, tokens: usize) -> Self {
        MassObserver { keep: tokens, ..self }
    }

    /// An observer of another prompt that shares its first `shared` tokens with this one's, and takes over what was
    /// measured there. The other's rows that begin before `shared` must end there and be among this one's, and the borders of its
    /// key spans before `shared` must be among this one's borders; returns `None` where that does not hold. Where a model has
    /// linear-attention layers, this observer must have been made with [`MassObserver::keeping`] for the fork to have rows after
    /// `shared`.
    #[must_use]
    pub fn fork(&self, other: &MassObserver, shared: usize) -> Option<MassObserver> {
        let mut fork = other.clone();
        let place = |row: &Span| self.rows.iter().position(|s| s.range() == row.range());
        let measured = |row: &Span| row.start >= shared || (row.end <= shared && place(row).is_some());
        // Spans after the border may differ, in number too: no row before it sees that far.
        let known = |border: &usize| *border >= shared || self.bounds.binary_search(border).is_ok();
        if !fork.rows.iter().all(measured) || !fork.bounds.iter().all(known) {
            return None;
        }
        // Sums are by segment, so both count the same segments up to there.
        fork.bounds.extend(self.bounds.iter().filter(|border| **border < shared));
        fork.bounds.sort_unstable();
        fork.bounds.dedup();
        // The rows that were measured, under the numbers that they have in the fork.
        let rows_before = |rows: &BTreeMap<usize, Tensor>, columns: usize| {
            let ended = fork.rows.iter().enumerate().filter(|(_, s)| s.end <= shared);
            let mut taken = BTreeMap::new();
            for (to, row) in ended {
                if let Some(sums) = rows.get(&place(row)?) {
                    taken.insert(to, with_columns(sums, columns).ok()?);
                }
            }
            Some(taken)
        };
        let (mut layers, mut deltas) = (BTreeMap::new(), BTreeMap::new());
        for (&layer, sums) in &self.layers {
            let rows = rows_before(&sums.rows, 1 + fork.segments())?;
            let answered = Answered::default();
            layers.insert(layer, LayerSums { rows, answered, ..*sums });
        }
        let needed = fork.delta_end();
        for (&layer, seen) in &self.deltas {
            let history = if needed > shared { seen.history.up_to(shared).ok()? } else { History::default() };
            if needed > shared && history.len() < shared {
                return None;
            }
            let rows = rows_before(&seen.rows, fork.segments())?;
            let (waiting, answered) = (BTreeMap::new(), Vec::new());
            deltas.insert(layer, DeltaLayer { heads: seen.heads, history, waiting, rows, answered });
        }
        (fork.layers, fork.deltas) = (layers, deltas);
        Some(fork)
    }

    /// Sums over segments of one key each from position 0 on, (heads, 1 + keys), as sums over the segments that are asked for
    /// ([`Wanted::segments`]).
    pub fn joined(&self, by_key: &Tensor) -> Result<Tensor> {
        let keys = by_key.dim(1)?.saturating_sub(1);
        let mut parts = vec![by_key.narrow(1, 0, 1)?];
        for pair in self.bounds.windows(2) {
            let (start, end) = (pair[0].min(keys), pair[1].min(keys));
            parts.push(by_key.narrow(1, 1 + start, end - start)?.sum_keepdim(1)?);
        }
        Tensor::cat(&parts, 1)
    }

    /// The row spans.
    pub fn rows(&self) -> &[Span] {
        &self.rows
    }

    /// Which rows of generated tokens are measured.
    pub fn answers(&self) -> AnswerRows {
        self.answer
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        &self.keys
    }

    /// The masses of the prompt's rows. Every layer must have the same number of heads.
    pub fn finish(&self) -> Result<Masses> {
        self.finish_after(0)
    }

    /// The masses after `generated` tokens were generated, not counting one that ended the answer. Those of a thought are
    /// among them and in no row. A mean over no tokens is no row.
    pub fn finish_after(&self, generated: usize) -> Result<Masses> {
        self.finish_with(generated, None)
    }

    /// [`MassObserver::finish_after`], with a row of one generated token behind the others; [`AnswerRows::step`] must have been asked for.
    /// A step that is not among the answer's tokens is no row.
    pub fn finish_with(&self, generated: usize, step: Option<Step>) -> Result<Masses> {
        let generated = generated.saturating_sub(self.thought);
        let heads = same_heads(self.layers.iter().map(|(layer, sums)| (*layer, sums.heads)), "heads")?;
        let named = self.named(generated, step);
        let ResultRows { rows, answer, each, step } = &named;
        let (answer, each, step) = (*answer, *each, *step);
        let by_layer = self.layers.values().map(|sums| {
            let mut by_row = self.placed(&sums.rows, answer);
            if self.answer.any() {
                sums.answered.check(generated)?;
            }
            if let Some(answer) = answer {
                by_row.extend(sums.answered.sum(generated)?.map(|sums| (answer, sums)));
            }
            if let Some(step) = step {
                by_row.extend(sums.answered.each(generated).nth(step).map(|s| (rows.len() - 1, s.clone())));
            }
            by_row.extend(sums.answered.each(each).cloned().enumerate().map(|(i, s)| (rows.len() + i, s)));
            Ok(by_row)
        });
        let (mass, sink) = self.means(&by_layer.collect::<Result<Vec<_>>>()?, heads, rows, each)?;
        let (delta, delta_each) = self.finish_delta(generated, &named)?;
        let each = self.answer.each.then(|| EachMasses {
            mass: mass.slice(s![.., .., rows.len().., ..]).to_owned(),
            sink: sink.as_ref().map(|sink| sink.slice(s![.., .., rows.len()..]).to_owned()),
            delta: delta_each,
        });
        let windows = self.layers.values().map(|sums| sums.window).collect();
        Ok(Masses {
            layers: self.layers.keys().copied().collect(),
            mass: mass.slice(s![.., .., ..rows.len(), ..]).to_owned(),
            uniform: Uniform::new(windows, rows, &self.keys),
            sink: sink.map(|sink| sink.slice(s![.., .., ..rows.len()]).to_owned()),
            delta,
            each,
            rows: rows.clone(),
        })
    }

    /// Generated tokens whose rows have been read so far, those of a thought left out.
    pub fn generated_rows(&self) -> usize {
        self.layers.values().map(|sums| sums.answered.len()).min().unwrap_or(0)
    }

    /// The row of one generated token, the `nth`, while others are still to come: as in [`Masses::each`], with one token and
    /// softmax attention alone. `None` where that row was not read, or rows of generated tokens are not kept.
    pub fn generated_row(&self, nth: usize) -> Result<Option<EachMasses>> {
        let row = |sums: &LayerSums| sums.answered.each(nth + 1).nth(nth).cloned();
        let rows: Option<Vec<Tensor>> = self.layers.values().map(row).collect();
        let (Some(rows), Some(first)) = (rows.filter(|_| self.answer.each), self.layers.values().next())
        else {
            return Ok(None);
        };
        let by_layer: Vec<BTreeMap<usize, Tensor>> =
            rows.into_iter().map(|row| BTreeMap::from([(0, row)])).collect();
        let (mass, sink) = self.means(&by_layer, first.heads, &[], 1)?;
        Ok(Some(EachMasses { mass, sink, delta: None }))
    }

    /// The masses of softmax layers, (layers, heads, rows, key spans), and the sinks' shares, (layers, heads, rows), if any layer has
    /// sinks: from the sums by layer and row of `rows` and of `each` single ones behind them.
    fn means(
        &self,
        by_layer: &[BTreeMap<usize, Tensor>],
        heads: usize,
        rows: &[Span],
        each: usize,
    ) -> Result<(Array4<f32>, Option<Array3<f32>>)> {
        let shape = (by_layer.len(), heads, rows.len() + each, self.keys.len());
        let (mut mass, mut sink) = (Array4::zeros(shape), Array3::zeros((shape.0, shape.1, shape.2)));
        let segments = self.segments_of_keys();
        for ((l, r), sums) in fetched(by_layer)? {
            let count = rows.get(r).map_or(1, Span::len);
            for (head, sums) in sums.chunks_exact(1 + self.segments()).enumerate() {
                sink[[l, head, r]] = (sums[0] / count as f64) as f32;
                for (mass, segments) in mass.slice_mut(s![l, head, r, ..]).iter_mut().zip(&segments) {
                    *mass = mean(&sums[1..][segments.clone()], count);
                }
            }
        }
        let has_sinks = self.layers.values().any(|sums| sums.has_sinks);
        Ok((mass, has_sinks.then_some(sink)))
    }

    /// [`MassObserver::finish_after`] of linear-attention layers: the row spans, and each generated token.
    fn finish_delta(
        &self,
        generated: usize,
        ResultRows { rows, answer, each, step }: &ResultRows,
    ) -> Result<(Option<DeltaMasses>, Option<DeltaMasses>)> {
        let (answer, each, step) = (*answer, *each, *step);
        if self.deltas.is_empty() {
            return Ok((None, None));
        }
        let heads = self.deltas.iter().map(|(layer, seen)| (*layer, seen.heads));
        let heads = same_heads(heads, "value heads")?;
        let shape = (self.deltas.len(), heads, rows.len() + each, self.keys.len());
        let (mut signed, mut share) = (Array4::zeros(shape), Array4::zeros(shape));
        let by_layer = self.deltas.values().map(|seen| {
            let mut by_row = self.placed(&seen.rows, answer);
            if (answer.is_none() && each == 0 && step.is_none()) || self.segments() == 0 {
                return Ok(by_row);
            }
            if seen.answered.len() < generated {
                candle_core::bail!(
                    "This is a bug: {generated} tokens were generated and {} rows were read",
                    seen.answered.len()
                );
            }
            let _span = timing::observer();
            let q = Tensor::cat(&seen.answered[..generated], 0)?;
            let first = self.tokens - 1 + self.thought;
            if let Some(step) = step {
                let q = q.narrow(0, step, 1)?;
                let sums = delta::segment_sums(&q, first + step, &seen.history, &self.bounds)?;
                by_row.insert(rows.len() - 1, sums);
            }
            if each == 0 {
                let sums = delta::segment_sums(&q, first, &seen.history, &self.bounds)?;
                by_row.extend(answer.map(|answer| (answer, sums)));
                return Ok(by_row);
            }
            let sums = delta::segment_sums_by_row(&q, first, &seen.history, &self.bounds)?;
            if let Some(answer) = answer {
                by_row.insert(answer, sums.sum(3)?);
            }
            for i in 0..each {
                by_row.insert(rows.len() + i, sums.narrow(3, i, 1)?.squeeze(3)?.contiguous()?);
            }
            Ok(by_row)
        });
        let segments = self.segments_of_keys();
        for ((l, r), sums) in fetched(&by_layer.collect::<Result<Vec<_>>>()?)? {
            let count = rows.get(r).map_or(1, Span::len);
            let (signed_sums, share_sums) = sums.split_at(sums.len() / 2);
            for (masses, sums) in [(&mut signed, signed_sums), (&mut share, share_sums)] {
                for (head, sums) in sums.chunks_exact(self.segments()).enumerate() {
                    for (mass, segments) in masses.slice_mut(s![l, head, r, ..]).iter_mut().zip(&segments) {
                        *mass = mean(&sums[segments.clone()], count);
                    }
                }
            }
        }
        let layers: Vec<usize> = self.deltas.keys().copied().collect();
        let part = |rows: std::ops::Range<usize>| DeltaMasses {
            layers: layers.clone(),
            signed: signed.slice(s![.., .., rows.clone(), ..]).to_owned(),
            share: share.slice(s![.., .., rows, ..]).to_owned(),
        };
        let each = self.answer.each.then(|| part(rows.len()..rows.len() + each));
        Ok((Some(part(0..rows.len())), each))
    }

    /// The rows of the answer to be given: after so many generated tokens.
    fn named(&self, generated: usize, step: Option<Step>) -> ResultRows {
        let mut rows = self.rows.clone();
        let answer = self.answer.mean.filter(|_| generated > 0).map(|place| place.min(rows.len()));
        let first = self.tokens.saturating_sub(1) + self.thought;
        if let Some(place) = answer {
            rows.insert(place, Span::new("answer", first..first + generated));
        }
        let step = step.filter(|step| self.answer.step && step.token < generated);
        rows.extend(step.map(|step| {
            let at = first + step.token;
            Span::new(step.label, at..at + 1)
        }));
        let each = if self.answer.each { generated } else { 0 };
        ResultRows { rows, answer, each, step: step.map(|step| step.token) }
    }

    /// The sums of row spans under their places beside the row `answer`.
    fn placed(&self, rows: &BTreeMap<usize, Tensor>, answer: Option<usize>) -> BTreeMap<usize, Tensor> {
        let place = |r: usize| r + usize::from(answer.is_some_and(|answer| r >= answer));
        rows.iter().map(|(&r, sums)| (place(r), sums.clone())).collect()
    }

    /// The segments of each key span.
    fn segments_of_keys(&self) -> Vec<std::ops::Range<usize>> {
        let at = |border: usize| self.bounds.partition_point(|&b| b < border).min(self.segments());
        self.keys.iter().map(|key| at(key.start)..at(key.end)).collect()
    }

    /// Bytes of what is kept of linear-attention layers.
    #[cfg(test)]
    pub(crate) fn delta_bytes(&self) -> usize {
        let bytes = |x: &Tensor| x.elem_count() * x.dtype().size_in_bytes();
        let of_layer = |seen: &DeltaLayer| {
            let queries = seen.answered.iter().chain(seen.waiting.values().flatten());
            seen.history.bytes() + queries.map(bytes).sum::<usize>()
        };
        self.deltas.values().map(of_layer).sum()
    }

    fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    fn layer(&mut self, site: &Site, heads: usize) -> &mut LayerSums {
        self.layers.entry(site.layer).or_insert_with(|| LayerSums {
            heads,
            rows: BTreeMap::new(),
            has_sinks: site.sinks.is_some(),
            window: site.window,
            answered: Answered::default(),
        })
    }

    fn delta_layer(&mut self, layer: usize, heads: usize) -> &mut DeltaLayer {
        self.deltas.entry(layer).or_insert_with(|| DeltaLayer {
            heads,
            history: History::default(),
            waiting: BTreeMap::new(),
            rows: BTreeMap::new(),
            answered: Vec::new(),
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
        if self.answer.any() {
            return usize::MAX;
        }
        self.rows.iter().map(|s| s.end).max().unwrap_or(0).max(self.keep)
    }
}

/// The mean over `rows` rows of what they pay to a key span, from their sums by its segments.
fn mean(sums: &[f64], rows: usize) -> f32 {
    // The sum of nothing is -0.
    ((sums.iter().sum::<f64>() + 0.0) / rows as f64) as f32
}

/// Sums by segment of rows before a border, (..., segments), for an observer with `columns` of them: rows see no key after
/// the border, and up to there both observers' segments are the same.
fn with_columns(sums: &Tensor, columns: usize) -> Result<Tensor> {
    let held = sums.dim(D::Minus1)?;
    sums.narrow(D::Minus1, 0, held.min(columns))?.pad_with_zeros(D::Minus1, 0, columns.saturating_sub(held))
}

/// The rows of a result.
struct ResultRows {
    /// With `answer`, and behind them that of one step.
    rows: Vec<Span>,
    /// Its place among them, if it is there.
    answer: Option<usize>,
    /// Generated tokens that are rows of their own.
    each: usize,
    /// The one among them whose row is the last of `rows`.
    step: Option<usize>,
}

/// The sums of layers on the host, with the place of their layer and their row: one copy a device.
fn fetched(layers: &[BTreeMap<usize, Tensor>]) -> Result<impl Iterator<Item = ((usize, usize), Vec<f64>)>> {
    let rows = |(l, rows): (usize, &'_ BTreeMap<usize, Tensor>)| {
        rows.iter().map(|(&r, sums)| ((l, r), sums.clone())).collect::<Vec<_>>()
    };
    let (places, sums): (Vec<_>, Vec<_>) = layers.iter().enumerate().flat_map(rows).unzip();
    let sums: Vec<&Tensor> = sums.iter().collect();
    Ok(places.into_iter().zip(transfer::fetch_all(&sums)?))
}

impl Observer for MassObserver {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        match point {
            Point::Attention(site) if site.offset < self.tokens => {
                Wanted::inputs(!self.rows.is_empty() || self.answer.any())
            }
            Point::Attention(_) => {
                Wanted { segments: self.answer.any().then_some(&self.bounds), ..Wanted::default() }
            }
            Point::LinearAttention(site) => Wanted::inputs(site.offset < self.delta_end()),
            Point::Residual { .. } => Wanted::default(),
        }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Attention { site, q, k, .. } if self.wants(Point::Attention(site)).inputs => {
                self.add_rows(site, q, k)
            }
            Event::Weights { site, sums } if self.answer.any() => self.add_generated(site, sums.clone()),
            Event::LinearAttention { site, q, k, g, beta }
                if self.wants(Point::LinearAttention(site)).inputs =>
            {
                self.add_linear(site, (q, k), g, beta)
            }
            Event::Thought(tokens) => {
                self.thought = tokens;
                self.layers.values_mut().for_each(|sums| sums.answered = Answered::default());
                self.deltas.values_mut().for_each(|seen| seen.answered.clear());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl MassObserver {
    /// Adds the rows of a prompt's chunk.
    fn add_rows(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        let _span = timing::observer();
        let (l, heads, _) = q.dims3()?;
        self.layer(site, heads);
        let bounds = site.borders(&self.bounds);
        let local = site.relative();
        for r in 0..self.rows.len() {
            let from = self.rows[r].start.clamp(site.offset, site.offset + l) - site.offset;
            let to = self.rows[r].end.clamp(site.offset, site.offset + l) - site.offset;
            if from >= to {
                continue;
            }
            let part = segment_sums(q, k, &RowSums { site: &local, rows: from..to, bounds: &bounds })?;
            let sums = &mut self.layer(site, heads).rows;
            let sum = match sums.get(&r) {
                Some(before) => (before + part)?,
                None => part,
            };
            sums.insert(r, sum);
        }
        // The prompt's last position is the row of the first generated token.
        if self.answer.any() && (site.offset..site.offset + l).contains(&(self.tokens - 1)) {
            let row = self.tokens - 1 - site.offset;
            let sums = segment_sums(q, k, &RowSums { site: &local, rows: row..row + 1, bounds: &bounds })?;
            self.add_generated(&Site { offset: self.tokens - 1, ..site.clone() }, sums)?;
        }
        Ok(())
    }

    /// Adds the row that predicts a generated token, whose sums the kernel made.
    fn add_generated(&mut self, site: &Site, sums: Tensor) -> Result<()> {
        let (wanted, tokens, thought) = (self.answer, self.tokens, self.thought);
        let heads = sums.dim(0)?;
        let answered = &mut self.layer(site, heads).answered;
        if site.offset + 1 != tokens + thought + answered.len() {
            candle_core::bail!(
                "This is a bug: the row at {} comes after {} rows of a prompt of {tokens} tokens",
                site.offset,
                thought + answered.len()
            );
        }
        answered.push(sums, wanted)
    }

    /// Keeps the keys of a linear-attention layer's chunk, and adds the row spans that end in it.
    fn add_linear(
        &mut self,
        site: &DeltaSite,
        (q, k): (&Tensor, &Tensor),
        g: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        let _span = timing::observer();
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
        let first = (self.tokens.max(1) - 1).clamp(chunk.start, chunk.end);
        if self.answer.any() && first < chunk.end {
            let seen = self.delta_layer(site.layer, heads);
            for row in first..chunk.end {
                seen.answered.push(q.narrow(0, row - chunk.start, 1)?.force_contiguous()?);
            }
        }
        if self.keep == 0 && self.delta_end() <= chunk.end {
            self.delta_layer(site.layer, heads).history = History::default();
        }
        Ok(())
    }
}
