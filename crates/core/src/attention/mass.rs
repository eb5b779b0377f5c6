//! The attention mass observer (STALE, appendix E.4).
//!
//! For every layer and head, row span X and key span Y: the mean over the tokens i of X of the sum over the tokens j of Y of the
//! post-softmax weight A[i, j]. The weights of requested rows are recomputed in f32, in blocks, and summed immediately: memory grows
//! with spans, not with the context. Sums stay on their layer's device until they are finished.
//!
//! Gated delta rule and Mamba-2 layers have no softmax. There it measures the implicit attention ([`super::delta`]): the signed sum over
//! Y, and the share of absolute weight on Y. No cache holds those layers' keys, so the observer keeps them until the last row span is read.
//!
//! Rows may also be generated tokens, each and their mean ([`AnswerRows`]), over the prompt's key spans. Weight on earlier generated
//! tokens is in no span; if the spans tile the prompt, it equals 1 - sum of masses - sink. The decode kernels sum their own weights,
//! so this needs no second pass; linear layers need one pass for all rows when the masses are finished.

use std::collections::BTreeMap;

use candle_core::{D, Result, Tensor};
use ndarray::{Array3, Array4, s};

use super::answer::{AnswerRows, Answered, Step};
use super::backends::RowSums;
use super::delta::{self, History};
use super::evicted::segment_sums;
use super::masses::{DeltaMasses, EachMasses, Masses, SpanError};
use super::{DeltaSite, Event, Observer, Point, Site, Uniform, Wanted, same_heads};
use crate::span::{Span, borders, segments_of};
use crate::timing;
use crate::transfer;

/// Sums attention over spans during prefill and decode.
#[derive(Debug, Clone, Default)]
pub struct MassObserver {
    rows: Vec<Span>,
    keys: Vec<Span>,
    /// Ascending segment borders of the key spans.
    bounds: Vec<usize>,
    /// Also measures the prompt's first token by itself.
    first_token: bool,
    layers: BTreeMap<usize, LayerSums>,
    deltas: BTreeMap<usize, DeltaLayer>,
    /// Keeps the linear-attention keys of this many first tokens for forks.
    keep: usize,
    tokens: usize,
    answer: AnswerRows,
    /// Reasoning tokens before the answer rows.
    thought: usize,
}

#[derive(Debug, Clone, Default)]
struct LayerSums {
    heads: usize,
    /// By row span: weights on the sinks and on each segment, (heads, 1 + segments).
    rows: BTreeMap<usize, Tensor>,
    has_sinks: bool,
    window: Option<usize>,
    answered: Answered,
}

#[derive(Debug, Clone, Default)]
struct DeltaLayer {
    heads: usize,
    history: History,
    /// Open row spans with their queries, (l, key_heads, key_dim) per chunk.
    waiting: BTreeMap<usize, Vec<Tensor>>,
    /// Sums of the weights and of the shares, (2, heads, segments).
    rows: BTreeMap<usize, Tensor>,
    /// Queries of the rows of generated tokens, each (1, key_heads, key_dim).
    answered: Vec<Tensor>,
}

/// Means of softmax layers, f32: masses (layers, heads, rows, key spans), and as in [`Masses`] (layers, heads, rows).
struct Means {
    mass: Array4<f32>,
    sink: Option<Array3<f32>>,
    first_token: Option<Array3<f32>>,
}

impl MassObserver {
    /// Observes the row spans `rows` over the key spans `keys` of a prompt of `tokens` tokens. Spans may leave gaps and overlap; a row sees
    /// only the causal part of a key span.
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

    /// Also measures the first token by itself: it draws attention whatever its text (an attention sink).
    #[must_use]
    pub fn with_first_token(mut self) -> Self {
        self.first_token = true;
        self.bounds.extend([0, 1]);
        self.bounds.sort_unstable();
        self.bounds.dedup();
        self
    }

    /// An observer that requests nothing.
    pub fn nothing(tokens: usize) -> Self {
        MassObserver { tokens, ..MassObserver::default() }
    }

    /// Also measures generated tokens: pass the observer to decode steps too, and call [`MassObserver::finish_after`] with their number.
    #[must_use]
    pub fn answering(self, answer: AnswerRows) -> Self {
        MassObserver { answer, ..self }
    }

    /// Keeps the linear-attention keys of the first `tokens` tokens, for forks there that measure later rows.
    #[must_use]
    pub fn keeping(self, tokens: usize) -> Self {
        MassObserver { keep: tokens, ..self }
    }

    /// An observer of another prompt that shares its first `shared` tokens, with the masses measured so far. Returns `None` unless the
    /// other's rows that begin before `shared` also end there and are among this one's, and its key borders before `shared` are among
    /// this one's. For models with linear-attention layers, a fork with rows after `shared` needs [`MassObserver::keeping`].
    #[must_use]
    pub fn fork(&self, other: &MassObserver, shared: usize) -> Option<MassObserver> {
        let mut fork = other.clone();
        let place = |row: &Span| self.rows.iter().position(|s| s.range() == row.range());
        let measured = |row: &Span| row.start >= shared || (row.end <= shared && place(row).is_some());
        // Key spans after `shared` may differ: no earlier row sees that far.
        let known = |border: &usize| *border >= shared || self.bounds.binary_search(border).is_ok();
        if !fork.rows.iter().all(measured) || !fork.bounds.iter().all(known) {
            return None;
        }
        // Both observers need the same segments before `shared`.
        fork.bounds.extend(self.bounds.iter().filter(|border| **border < shared));
        fork.bounds.sort_unstable();
        fork.bounds.dedup();
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
            layers.insert(layer, LayerSums { rows, answered: Answered::default(), ..*sums });
        }
        let needed = fork.delta_end();
        for (&layer, seen) in &self.deltas {
            let history = if needed > shared { seen.history.up_to(shared).ok()? } else { History::default() };
            if needed > shared && history.len() < shared {
                return None;
            }
            let rows = rows_before(&seen.rows, fork.segments())?;
            deltas.insert(layer, DeltaLayer { heads: seen.heads, history, rows, ..DeltaLayer::default() });
        }
        (fork.layers, fork.deltas) = (layers, deltas);
        Some(fork)
    }

    /// Merges sums per key from position 0 on, (heads, 1 + keys), into the requested segments ([`Wanted::segments`]).
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

    /// The requested rows of generated tokens.
    pub fn answers(&self) -> AnswerRows {
        self.answer
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        &self.keys
    }

    /// The masses of the prompt's rows. All layers must have the same number of heads.
    pub fn finish(&self) -> Result<Masses> {
        self.finish_after(0)
    }

    /// The masses after `generated` tokens, not counting an end token. Reasoning tokens count but are in no row. There is no mean row over
    /// zero tokens.
    pub fn finish_after(&self, generated: usize) -> Result<Masses> {
        self.finish_with(generated, None)
    }

    /// [`MassObserver::finish_after`] with one generated token's row appended; needs [`AnswerRows::step`]. A step outside the answer adds
    /// no row.
    pub fn finish_with(&self, generated: usize, step: Option<Step>) -> Result<Masses> {
        let generated = generated.saturating_sub(self.thought);
        let heads = same_heads(self.layers.iter().map(|(layer, sums)| (*layer, sums.heads)), "heads")?;
        let named = self.named(generated, step);
        let ResultRows { ref rows, answer, each, step } = named;
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
        let Means { mass, sink, first_token } =
            self.means(&by_layer.collect::<Result<Vec<_>>>()?, heads, rows, each)?;
        let of_rows = |by_row: Array3<f32>| by_row.slice(s![.., .., ..rows.len()]).to_owned();
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
            sink: sink.map(of_rows),
            first_token: first_token.map(of_rows),
            delta,
            each,
            rows: rows.clone(),
        })
    }

    /// Generated tokens whose rows have been read, without reasoning tokens.
    pub fn generated_rows(&self) -> usize {
        self.layers.values().map(|sums| sums.answered.len()).min().unwrap_or(0)
    }

    /// The row of the `nth` generated token during generation: as in [`Masses::each`], for one token and softmax attention only. `None` if
    /// it was not read or rows are not kept.
    pub fn generated_row(&self, nth: usize) -> Result<Option<EachMasses>> {
        let row = |sums: &LayerSums| sums.answered.each(nth + 1).nth(nth).cloned();
        let rows: Option<Vec<Tensor>> = self.layers.values().map(row).collect();
        let (Some(rows), Some(first)) = (rows.filter(|_| self.answer.each), self.layers.values().next())
        else {
            return Ok(None);
        };
        let by_layer: Vec<BTreeMap<usize, Tensor>> =
            rows.into_iter().map(|row| BTreeMap::from([(0, row)])).collect();
        let Means { mass, sink, .. } = self.means(&by_layer, first.heads, &[], 1)?;
        Ok(Some(EachMasses { mass, sink, delta: None }))
    }

    /// Input: sums by layer and row of `rows`, followed by `each` single rows.
    fn means(
        &self,
        by_layer: &[BTreeMap<usize, Tensor>],
        heads: usize,
        rows: &[Span],
        each: usize,
    ) -> Result<Means> {
        let shape = (by_layer.len(), heads, rows.len() + each, self.keys.len());
        let (mut mass, mut sink) = (Array4::zeros(shape), Array3::zeros((shape.0, shape.1, shape.2)));
        let mut first_token = sink.clone();
        let segments = self.segments_of_keys();
        let first = match self.first_token {
            true => segments_of(&Span::new("", 0..1), &self.bounds),
            false => 0..0,
        };
        for ((l, r), sums) in fetched(by_layer)? {
            let count = rows.get(r).map_or(1, Span::len);
            for (head, sums) in sums.chunks_exact(1 + self.segments()).enumerate() {
                sink[[l, head, r]] = (sums[0] / count as f64) as f32;
                first_token[[l, head, r]] = mean(&sums[1..][first.clone()], count);
                for (mass, segments) in mass.slice_mut(s![l, head, r, ..]).iter_mut().zip(&segments) {
                    *mass = mean(&sums[1..][segments.clone()], count);
                }
            }
        }
        let has_sinks = self.layers.values().any(|sums| sums.has_sinks);
        Ok(Means {
            mass,
            sink: has_sinks.then_some(sink),
            first_token: self.first_token.then_some(first_token),
        })
    }

    fn finish_delta(
        &self,
        generated: usize,
        &ResultRows { ref rows, answer, each, step }: &ResultRows,
    ) -> Result<(Option<DeltaMasses>, Option<DeltaMasses>)> {
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

    /// Output rows after `generated` tokens.
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

    fn placed(&self, rows: &BTreeMap<usize, Tensor>, answer: Option<usize>) -> BTreeMap<usize, Tensor> {
        let place = |r: usize| r + usize::from(answer.is_some_and(|answer| r >= answer));
        rows.iter().map(|(&r, sums)| (place(r), sums.clone())).collect()
    }

    fn segments_of_keys(&self) -> Vec<std::ops::Range<usize>> {
        self.keys.iter().map(|key| segments_of(key, &self.bounds)).collect()
    }

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
            has_sinks: site.sinks.is_some(),
            window: site.window,
            ..LayerSums::default()
        })
    }

    fn delta_layer(&mut self, layer: usize, heads: usize) -> &mut DeltaLayer {
        self.deltas.entry(layer).or_insert_with(|| DeltaLayer { heads, ..DeltaLayer::default() })
    }

    /// Measures a row span of a linear-attention layer once all its queries have arrived: a single backward pass, independent of chunking.
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

    fn delta_end(&self) -> usize {
        if self.answer.any() {
            return usize::MAX;
        }
        self.rows.iter().map(|s| s.end).max().unwrap_or(0).max(self.keep)
    }
}

/// Mean mass over `rows` rows from the segment sums of a key span.
fn mean(sums: &[f64], rows: usize) -> f32 {
    // Turns the empty sum, -0, into 0.
    ((sums.iter().sum::<f64>() + 0.0) / rows as f64) as f32
}

/// Adapts segment sums (..., segments) of rows before a border to an observer with `columns` segments: up to the border both have the
/// same segments, and no row sees past it.
fn with_columns(sums: &Tensor, columns: usize) -> Result<Tensor> {
    let held = sums.dim(D::Minus1)?;
    sums.narrow(D::Minus1, 0, held.min(columns))?.pad_with_zeros(D::Minus1, 0, columns.saturating_sub(held))
}

struct ResultRows {
    /// With `answer`, then the row of one step.
    rows: Vec<Span>,
    answer: Option<usize>,
    /// Number of generated tokens with their own row.
    each: usize,
    /// The generated token of the last row of `rows`.
    step: Option<usize>,
}

/// Copies sums to the host, once per device; keyed by layer and row.
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
            Event::LinearAttention { site, rule, q, k, g, beta }
                if self.wants(Point::LinearAttention(site)).inputs =>
            {
                self.delta_layer(site.layer, g.dim(1)?).history.rule = rule;
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
