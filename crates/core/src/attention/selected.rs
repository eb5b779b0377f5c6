//! The share of each span that a layer's choice of keys leaves to rows, and the dense mass that rows forgo on the rest of it.
//!
//! A layer chooses where a row does not see all keys at or before it: by a sliding window, an indexer, or an eviction. The mass forgone on a span is
//! the softmax weight on its tokens outside the choice if the softmax ran over all keys at or before the row, with the same query and
//! keys. Caches of windowed layers drop such keys, so the observer keeps them as they pass. Rows are computed one at a time, with
//! f32 weights that are summed in f64 on the host.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{Result, Tensor};
use ndarray::Array3;

use super::answer::AnswerRows;
use super::backends::row_weights;
use super::{Event, Holes, Kept, Observer, Point, Site, Wanted};
use crate::span::Span;
use crate::timing;

/// Shares of spans that the layers' choices of keys left to the rows, and mass forgone on the rest, over all heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Selected {
    /// f32 `[layers, row spans, key spans]`: share of the span's tokens at or before a row that the layer's choice has, mean over key/value
    /// heads and over the rows that have such a token; NaN without one. 1 at layers that see all keys.
    pub selected: Array3<f32>,
    /// f32 `[layers, row spans, key spans]`: dense mass on the span's tokens outside the choice, mean over heads and rows.
    pub forgone: Array3<f32>,
}

/// Measures [`Selected`] during prefill and decode.
#[derive(Debug, Clone, Default)]
pub struct SelectedObserver {
    rows: Vec<Span>,
    keys: Vec<Span>,
    tokens: usize,
    answer: AnswerRows,
    /// Keeps the keys of this many first tokens for forks.
    keep: usize,
    layers: BTreeMap<usize, OfLayer>,
}

/// A layer that chooses.
#[derive(Debug, Clone, Default)]
struct OfLayer {
    /// Every row chooses; else rows before an eviction see all keys.
    every_row: bool,
    /// Keys from the first token on, each (kv_heads, n, head_dim), and their number.
    pieces: Vec<Tensor>,
    held: usize,
    /// By row span.
    rows: BTreeMap<usize, Sums>,
    /// From the row of the first generated token on.
    generated: Vec<Sums>,
}

/// Sums over rows by key span.
#[derive(Debug, Clone)]
struct Sums(Vec<OfSpan>);

#[derive(Debug, Clone, Copy, Default)]
struct OfSpan {
    selected: f64,
    /// Rows with a token of the span at or before them.
    counted: usize,
    forgone: f64,
}

/// The keys that a layer leaves to a row.
enum Choice<'a> {
    /// All from this position on.
    From(usize),
    Kept(&'a Kept),
    /// All but those in these ascending ranges.
    Without(&'a [Range<usize>]),
}

impl Choice<'_> {
    fn of(site: &Site, position: usize) -> Choice<'_> {
        match (site.holes.kept(), site.holes.unchosen()) {
            (Some(kept), _) if position >= kept.from => Choice::Kept(kept),
            (_, Some(unchosen)) => Choice::Without(unchosen.row(position)),
            _ => Choice::From(site.visible(position).start),
        }
    }

    fn takes_all(&self) -> bool {
        matches!(self, Choice::From(0) | Choice::Without([]))
    }

    fn takes(&self, kv_head: usize, key: usize) -> bool {
        match self {
            Choice::From(first) => key >= *first,
            Choice::Kept(kept) => {
                let of_head = |head: &super::KeptHead| head.positions.binary_search(&(key as u32)).is_ok();
                key >= kept.from || kept.heads.get(kv_head).is_some_and(of_head)
            }
            Choice::Without(unchosen) => {
                let before = unchosen.partition_point(|keys| keys.end <= key);
                unchosen.get(before).is_none_or(|keys| key < keys.start)
            }
        }
    }
}

impl Sums {
    fn none(spans: usize) -> Self {
        Sums(vec![OfSpan::default(); spans])
    }

    /// Of rows that see all keys.
    fn of_all(rows: &Span, keys: &[Span]) -> Self {
        let of_span = |key: &Span| {
            let counted = if key.is_empty() { 0 } else { rows.end.saturating_sub(rows.start.max(key.start)) };
            OfSpan { selected: counted as f64, counted, forgone: 0.0 }
        };
        Sums(keys.iter().map(of_span).collect())
    }

    /// Of the row at `position` with its dense weights by head and key; none are needed where the choice takes all.
    fn of_row(
        position: usize,
        keys: &[Span],
        kv_heads: usize,
        choice: &Choice<'_>,
        dense: &[Vec<f32>],
    ) -> Self {
        let group = (dense.len() / kv_heads.max(1)).max(1);
        let of_span = |key: &Span| {
            let seen = key.start..key.end.min(position + 1);
            if seen.is_empty() {
                return OfSpan::default();
            }
            let taken = |kv_head: usize| seen.clone().filter(|key| choice.takes(kv_head, *key)).count();
            let taken: usize = (0..kv_heads).map(taken).sum();
            let forgone = |(head, weights): (usize, &Vec<f32>)| -> f64 {
                let outside = seen.clone().filter(|key| !choice.takes(head / group, *key));
                outside.filter_map(|key| weights.get(key)).map(|weight| f64::from(*weight)).sum()
            };
            let forgone: f64 = dense.iter().enumerate().map(forgone).sum();
            OfSpan {
                selected: taken as f64 / (seen.len() * kv_heads) as f64,
                counted: 1,
                forgone: forgone / dense.len().max(1) as f64,
            }
        };
        Sums(keys.iter().map(of_span).collect())
    }

    fn add(&mut self, other: &Sums) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.selected += more.selected;
            sum.counted += more.counted;
            sum.forgone += more.forgone;
        }
    }
}

impl OfLayer {
    /// Keeps a windowed layer's new keys; the layer's `k` begins at the site's first key.
    fn keep(&mut self, site: &Site, k: &Tensor) -> Result<()> {
        let end = site.first_key + k.dim(1)?;
        if self.held < site.first_key {
            candle_core::bail!(
                "This is a bug: layer {} shows keys from {} on, but {} were kept",
                site.layer,
                site.first_key,
                self.held
            );
        }
        if end > self.held {
            // A view would keep the cache's buffer, which is written again.
            let new = k.narrow(1, self.held - site.first_key, end - self.held)?;
            self.pieces.push(new.force_contiguous()?);
            self.held = end;
        }
        Ok(())
    }

    /// The first `length` keys that were kept.
    fn up_to(&self, length: usize) -> Result<Self> {
        let (mut pieces, mut held) = (Vec::new(), 0);
        for piece in &self.pieces {
            let n = piece.dim(1)?.min(length - held);
            if n > 0 {
                pieces.push(piece.narrow(1, 0, n)?);
                held += n;
            }
        }
        Ok(OfLayer { every_row: self.every_row, pieces, held, ..OfLayer::default() })
    }
}

impl SelectedObserver {
    /// Measures the row spans `rows`, and with `answer` generated tokens, over the key spans `keys` of a prompt of `tokens` tokens.
    pub fn new(rows: Vec<Span>, keys: Vec<Span>, tokens: usize, answer: AnswerRows) -> Self {
        SelectedObserver { rows, keys, tokens, answer, ..SelectedObserver::default() }
    }

    /// Keeps the keys of the first `tokens` tokens, for forks there that measure later rows.
    #[must_use]
    pub fn keeping(self, tokens: usize) -> Self {
        SelectedObserver { keep: tokens, ..self }
    }

    /// `other`, of a prompt that shares the first `shared` tokens, with what was measured of them. `None` unless the other's rows and key
    /// spans that begin there are among this one's.
    #[must_use]
    pub fn fork(&self, other: &SelectedObserver, shared: usize) -> Option<SelectedObserver> {
        let mut fork = other.clone();
        let among = |spans: &[Span], one: &Span| spans.iter().position(|span| span.range() == one.range());
        let ended = other.rows.iter().enumerate().filter(|(_, row)| row.start < shared);
        let rows = ended.map(|(r, row)| Some((r, among(&self.rows, row).filter(|_| row.end <= shared)?)));
        let rows = rows.collect::<Option<Vec<_>>>()?;
        // No row before `shared` sees a later span.
        let keys = other.keys.iter().map(|key| match among(&self.keys, key) {
            None if key.start < shared && !rows.is_empty() => None,
            place => Some(place),
        });
        let keys = keys.collect::<Option<Vec<_>>>()?;
        for (&layer, seen) in &self.layers {
            let mut of_layer = seen.up_to(shared).ok()?;
            for (to, from) in &rows {
                let Some(sums) = seen.rows.get(from) else { continue };
                let of_span = |place: &Option<usize>| place.and_then(|key| sums.0.get(key).copied());
                let sums = keys.iter().map(|place| of_span(place).unwrap_or_default()).collect();
                of_layer.rows.insert(*to, Sums(sums));
            }
            fork.layers.insert(layer, of_layer);
        }
        Some(fork)
    }

    /// The measures of softmax `layers` for `rows`: the observer's own, or rows of generated tokens.
    pub fn finish(&self, layers: &[usize], rows: &[Span]) -> Result<Selected> {
        let shape = (layers.len(), rows.len(), self.keys.len());
        let (mut selected, mut forgone) = (Array3::zeros(shape), Array3::zeros(shape));
        for (l, layer) in layers.iter().enumerate() {
            for (r, row) in rows.iter().enumerate() {
                for (k, sums) in self.of_row(*layer, row)?.0.into_iter().enumerate() {
                    selected[[l, r, k]] = (sums.selected / sums.counted as f64) as f32;
                    forgone[[l, r, k]] = (sums.forgone / row.len() as f64) as f32;
                }
            }
        }
        Ok(Selected { selected, forgone })
    }

    fn of_row(&self, layer: usize, row: &Span) -> Result<Sums> {
        let Some(seen) = self.layers.get(&layer) else { return Ok(Sums::of_all(row, &self.keys)) };
        match self.rows.iter().position(|own| own == row) {
            Some(r) => match seen.rows.get(&r) {
                Some(sums) => Ok(sums.clone()),
                None if !seen.every_row => Ok(Sums::of_all(row, &self.keys)),
                None => {
                    candle_core::bail!("This is a bug: row `{}` was not read at layer {layer}", row.label)
                }
            },
            None => {
                let first = (row.start + 1).checked_sub(self.tokens);
                let sums = first.and_then(|first| seen.generated.get(first..first + row.len()));
                let Some(sums) = sums else {
                    candle_core::bail!(
                        "This is a bug: {} generated rows at layer {layer}, and `{}` is {}..{}",
                        seen.generated.len(),
                        row.label,
                        row.start,
                        row.end
                    )
                };
                let mut all = Sums::none(self.keys.len());
                sums.iter().for_each(|sums| all.add(sums));
                Ok(all)
            }
        }
    }

    /// First position after which no row is measured.
    fn end(&self) -> usize {
        match self.answer.any() {
            true => usize::MAX,
            false => self.rows.iter().map(|row| row.end).max().unwrap_or(0).max(self.keep),
        }
    }

    fn add(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        let _span = timing::observer();
        let (end, last) = (site.offset + q.dim(0)?, self.tokens.saturating_sub(1));
        let kv_heads = k.dim(0)?;
        let seen = self.layers.entry(site.layer).or_default();
        seen.every_row |= site.window.is_some() || site.holes.unchosen().is_some();
        if site.window.is_some() {
            seen.keep(site, k)?;
        }
        // The windowed layer's keys are joined once a chunk, if a row needs them.
        let mut all: Option<Tensor> = None;
        for position in site.offset..end {
            let generated = self.answer.any() && position >= last;
            let within = |(_, row): &(usize, &Span)| row.range().contains(&position);
            let rows: Vec<usize> = self.rows.iter().enumerate().filter(within).map(|(r, _)| r).collect();
            if rows.is_empty() && !generated {
                continue;
            }
            let choice = Choice::of(site, position);
            let dense = match choice.takes_all() {
                true => Vec::new(),
                false => {
                    if all.is_none() && site.first_key > 0 {
                        all = Some(Tensor::cat(&seen.pieces, 1)?);
                    }
                    let k = all.as_ref().unwrap_or(k);
                    let holes = Holes::new(site.holes.iter().cloned().collect());
                    let dense = Site { first_key: 0, window: None, holes, ..site.clone() };
                    row_weights(q, k, &dense, position - site.offset)?
                }
            };
            let sums = Sums::of_row(position, &self.keys, kv_heads, &choice, &dense);
            for r in rows {
                seen.rows.entry(r).or_insert_with(|| Sums::none(self.keys.len())).add(&sums);
            }
            if generated {
                seen.generated.push(sums);
            }
        }
        // Forks take the keys of the first `keep` tokens.
        if self.keep == 0 && end >= self.end() {
            self.layers.entry(site.layer).or_default().pieces = Vec::new();
        }
        Ok(())
    }
}

impl Observer for SelectedObserver {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        let Point::Attention(site) = point else { return Wanted::default() };
        let holes = &site.holes;
        let chooses = site.window.is_some() || holes.kept().is_some() || holes.unchosen().is_some();
        Wanted::inputs(chooses && site.offset < self.end())
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Attention { site, q, k, .. } if self.wants(Point::Attention(site)).inputs => {
                self.add(site, q, k)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device};

    use super::super::{KeptHead, Sinks};
    use super::*;

    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const D: usize = 8;
    const TOKENS: usize = 30;
    const FROM: usize = 22;

    fn numbers(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).and_then(|x| x.flatten_all()?.to_vec1()).unwrap()
    }

    fn spans() -> Vec<Span> {
        let of = |(start, end)| Span::new(format!("{start}"), start..end);
        [(0, 5), (5, 14), (14, 14), (12, 27), (27, 30)].map(of).to_vec()
    }

    fn rows() -> Vec<Span> {
        vec![Span::new("new", 3..9), Span::new("query", 21..26), Span::new("last", 27..28)]
    }

    /// By row and span, by the definition. `takes`: key/value head, row, key.
    fn plain(
        [q, k]: [&Tensor; 2],
        site: &Site,
        rows: &[std::ops::Range<usize>],
        takes: &dyn Fn(usize, usize, usize) -> bool,
    ) -> (Vec<f64>, Vec<f64>) {
        let [q, k] = [q, k].map(numbers);
        let (mut selected, mut forgone) = (Vec::new(), Vec::new());
        for rows in rows {
            for span in spans() {
                let (mut shares, mut mass) = (Vec::new(), 0.0);
                for row in rows.clone() {
                    let inside: Vec<usize> = span.range().filter(|key| *key <= row).collect();
                    let taken = |kv: usize| inside.iter().filter(|key| takes(kv, row, **key)).count();
                    if !inside.is_empty() {
                        let all: usize = (0..KV_HEADS).map(taken).sum();
                        shares.push(all as f64 / (KV_HEADS * inside.len()) as f64);
                    }
                    for head in 0..HEADS {
                        let kv = head * KV_HEADS / HEADS;
                        let score = |key: usize| -> f64 {
                            let q = &q[(row * HEADS + head) * D..][..D];
                            let pairs = q.iter().zip(&k[(kv * TOKENS + key) * D..]);
                            (f64::from(site.scale) * pairs.map(|(a, b)| a * b).sum::<f64>()).exp()
                        };
                        let sink =
                            site.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks.logits()[head]).exp());
                        let total: f64 = sink + (0..=row).map(score).sum::<f64>();
                        let outside = inside.iter().filter(|key| !takes(kv, row, **key));
                        mass += outside.map(|key| score(*key) / total).sum::<f64>() / HEADS as f64;
                    }
                }
                selected.push(shares.iter().sum::<f64>() / shares.len() as f64);
                forgone.push(mass / rows.len() as f64);
            }
        }
        (selected, forgone)
    }

    fn agree(found: &Array3<f32>, expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let apart = (f64::from(*found) - expected).abs();
            assert!(apart < 1e-5 || (found.is_nan() && expected.is_nan()), "{found}, not {expected}");
        }
    }

    #[test]
    fn shares_and_masses_follow_the_definition_for_windows_and_evictions() -> Result<()> {
        let device = &Device::Cpu;
        let random = |shape: (usize, usize, usize)| Tensor::randn(0f32, 1.0, shape, device);
        let (q, k) = (random((TOKENS, HEADS, D))?, random((KV_HEADS, TOKENS, D))?);
        let sinks = Sinks::new(vec![0.5, -1.0, 2.0, 0.0], device)?;
        let heads = (0..KV_HEADS).map(|nth| {
            let positions: Vec<u32> =
                (0..FROM as u32).filter(|p| (p * 5 + nth as u32).is_multiple_of(3)).collect();
            KeptHead { positions, k: k.clone(), v: k.clone() }
        });
        let kept = Arc::new(Kept { from: FROM, heads: heads.collect() });
        let windowed = Site { scale: 0.4, window: Some(7), sinks: Some(sinks), ..Site::default() };
        let evicted = Site { scale: 0.4, holes: Holes::of_kept(Arc::clone(&kept)), ..Site::default() };
        let in_window = |_, row: usize, key: usize| row - key < 7;
        let in_cache = |kv: usize, row: usize, key: usize| {
            row < FROM || key >= FROM || kept.heads[kv].positions.contains(&(key as u32))
        };
        // The prompt has 28 tokens; an answer of two follows, whose first row is `last`.
        let answer = AnswerRows { mean: Some(3), ..AnswerRows::default() };
        let mut all_rows = rows();
        all_rows.push(Span::new("answer", 27..29));
        let ranges: Vec<_> = all_rows.iter().map(Span::range).collect();
        for (site, takes) in
            [(&windowed, &in_window as &dyn Fn(usize, usize, usize) -> bool), (&evicted, &in_cache)]
        {
            let (selected, forgone) = plain([&q, &k], site, &ranges, takes);
            assert!(forgone.iter().any(|mass| *mass > 0.1));
            for (cuts, fork) in [(&[12, 28, 29][..], None), (&[16, 22, 28, 29], Some(16)), (&[28, 29], None)]
            {
                let own = || SelectedObserver::new(rows(), spans(), 28, answer);
                let mut observer = match fork {
                    // The shared prefix measures more rows and spans, in another order.
                    Some(shared) => {
                        let keys = spans().into_iter().rev().chain([Span::new("else", 1..2)]).collect();
                        let before = vec![Span::new("other", 2..4), Span::new("n", 3..9)];
                        let shared =
                            SelectedObserver::new(before, keys, 28, AnswerRows::default()).keeping(shared);
                        assert!(shared.fork(&own(), 5).is_none(), "a row crosses the border");
                        shared
                    }
                    None => own(),
                };
                let mut offset = 0;
                for &end in cuts {
                    if fork == Some(offset) {
                        observer = observer.fork(&own(), offset).unwrap();
                    }
                    let first_key = site.window.map_or(0, |window| (offset + 1).saturating_sub(window));
                    let site = Site { offset, first_key, layer: 3, ..site.clone() };
                    let seen = k.narrow(1, first_key, end - first_key)?;
                    let part = q.narrow(0, offset, end - offset)?;
                    observer.observe(Event::Attention { site: &site, q: &part, k: &seen, v: &seen })?;
                    offset = end;
                }
                let found = observer.finish(&[3], &all_rows)?;
                agree(&found.selected, &selected);
                agree(&found.forgone, &forgone);
                // Layer 5 chooses nothing.
                let found = observer.finish(&[5], &all_rows)?;
                assert!(found.forgone.iter().all(|mass| *mass == 0.0));
                let known = found.selected.iter().zip(&selected);
                assert!(known.into_iter().all(|(all, some)| *all == 1.0 || (all.is_nan() && some.is_nan())));
            }
        }
        Ok(())
    }
}
