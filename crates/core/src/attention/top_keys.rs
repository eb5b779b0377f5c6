//! The top-k keys of rows, an optional observer beside the mass observer.
//!
//! In prefill it recomputes the softmax of one row at a time in f32 and keeps the k largest weights per head. In decode it requests
//! sums over single-key segments from the kernel. Each row is copied to the host, so use it for at most hundreds of rows.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::backends::row_weights;
use super::site::hides_all;
use super::{Event, Observer, Point, Site, Wanted, same_heads};
use crate::timing;
use crate::transfer;

/// Padding where a row sees fewer than k keys.
pub const NO_KEY: u32 = u32::MAX;

/// Collects the k largest weights of rows.
#[derive(Debug, Clone)]
pub struct TopKeys {
    k: usize,
    /// Prompt positions, in result order.
    rows: Vec<usize>,
    /// Rank the mean over heads instead of each head.
    mean: bool,
    answers: Option<Answers>,
    layers: BTreeMap<usize, OfLayer>,
}

#[derive(Debug, Clone)]
struct Answers {
    tokens: usize,
    /// Reasoning tokens, which are in no row.
    thought: usize,
    /// 0, 1, 2, ...: one segment per key.
    borders: Vec<usize>,
}

#[derive(Debug, Clone)]
struct OfLayer {
    heads: usize,
    rows: Vec<OfRow>,
    answered: Vec<OfRow>,
}

/// Largest weights of a row, (heads, k).
#[derive(Debug, Clone)]
struct OfRow {
    keys: Vec<u32>,
    weights: Vec<f32>,
}

/// The k keys with the largest weight, by layer, head and row.
#[derive(Debug, Clone, PartialEq)]
pub struct LargestKeys {
    /// Softmax layers, ascending.
    pub layers: Vec<usize>,
    /// Row positions: requested prompt rows, then generated tokens.
    pub rows: Vec<usize>,
    /// Layers, heads (1 if the mean was ranked), rows, k.
    pub shape: [usize; 4],
    /// Positions by descending weight, ties by position; padded with [`NO_KEY`].
    pub keys: Vec<u32>,
    /// Weights, 0 for padding.
    pub weights: Vec<f32>,
}

impl TopKeys {
    /// Collects the `k` largest weights of the rows at these prompt positions.
    pub fn new(k: usize, rows: Vec<usize>) -> Self {
        TopKeys { k, rows, mean: false, answers: None, layers: BTreeMap::new() }
    }

    /// Ranks keys by their mean weight over heads.
    #[must_use]
    pub fn of_mean(self) -> Self {
        TopKeys { mean: true, ..self }
    }

    /// Also collects up to `most` generated tokens after a prompt of `tokens`: pass the observer to decode steps too, and call
    /// [`TopKeys::finish_after`] with their number.
    #[must_use]
    pub fn answering(self, tokens: usize, most: usize) -> Self {
        let borders = (0..=tokens.saturating_add(most)).collect();
        TopKeys { answers: Some(Answers { tokens, thought: 0, borders }), ..self }
    }

    /// The largest weights of the prompt's rows, or an error if layers have different numbers of heads.
    pub fn finish(&self) -> Result<LargestKeys> {
        self.finish_after(0)
    }

    /// The largest weights after `generated` tokens; reasoning tokens count but are in no row.
    pub fn finish_after(&self, generated: usize) -> Result<LargestKeys> {
        let heads = same_heads(self.layers.iter().map(|(number, layer)| (*number, layer.heads)), "heads")?;
        let (mut positions, mut told) = (self.rows.clone(), 0);
        if let Some(Answers { tokens, thought, .. }) = self.answers {
            told = generated.saturating_sub(thought);
            let first = tokens.saturating_sub(1) + thought;
            positions.extend(first..first + told);
        }
        let shape = [self.layers.len(), heads, positions.len(), self.k];
        let (mut keys, mut weights) = (Vec::new(), Vec::new());
        for layer in self.layers.values() {
            let Some(answered) = layer.answered.get(..told) else {
                candle_core::bail!(
                    "This is a bug: {told} tokens were generated and {} rows were read",
                    layer.answered.len()
                );
            };
            for head in 0..heads {
                let part = head * self.k..(head + 1) * self.k;
                for row in layer.rows.iter().chain(answered) {
                    keys.extend_from_slice(&row.keys[part.clone()]);
                    weights.extend_from_slice(&row.weights[part.clone()]);
                }
            }
        }
        let layers = self.layers.keys().copied().collect();
        Ok(LargestKeys { layers, rows: positions, shape, keys, weights })
    }

    fn layer(&mut self, number: usize, heads: usize) -> &mut OfLayer {
        let heads = if self.mean { 1 } else { heads };
        let nothing = OfRow::nothing(heads * self.k);
        let rows = self.rows.len();
        let new = || OfLayer { heads, rows: vec![nothing; rows], answered: Vec::new() };
        self.layers.entry(number).or_insert_with(new)
    }

    /// Top k of a row that sees `seen`, from each head's weights of all keys from position `first` on.
    fn largest(&self, by_head: &[Vec<f32>], seen: &[usize], first: usize) -> OfRow {
        let mean: Vec<Vec<f32>>;
        let ranked = match self.mean {
            false => by_head,
            true => {
                let heads = by_head.len().max(1) as f64;
                let keys = by_head.first().map_or(0, Vec::len);
                let of_key = |key: usize| by_head.iter().map(|head| f64::from(head[key])).sum::<f64>();
                mean = vec![(0..keys).map(|key| (of_key(key) / heads) as f32).collect()];
                &mean
            }
        };
        let mut row = OfRow::nothing(ranked.len() * self.k);
        for (head, of_head) in ranked.iter().enumerate() {
            let weight = |key: usize| of_head.get(key - first).copied().unwrap_or_default();
            let order = |a: &usize, b: &usize| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b));
            let mut keys = seen.to_vec();
            if keys.len() > self.k {
                keys.select_nth_unstable_by(self.k - 1, order);
                keys.truncate(self.k);
            }
            keys.sort_unstable_by(order);
            for (i, key) in keys.into_iter().enumerate() {
                let at = head * self.k + i;
                (row.keys[at], row.weights[at]) = (key as u32, weight(key));
            }
        }
        row
    }
}

impl OfRow {
    fn nothing(n: usize) -> Self {
        OfRow { keys: vec![NO_KEY; n], weights: vec![0.0; n] }
    }
}

fn seen(site: &Site, position: usize) -> Vec<usize> {
    let hidden = site.holes.from_row(position);
    site.visible(position).filter(|key| !hides_all(&hidden, &(*key..*key + 1))).collect()
}

impl Observer for TopKeys {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        let Point::Attention(site) = point else { return Wanted::default() };
        match &self.answers {
            _ if self.k == 0 => Wanted::default(),
            None => Wanted::inputs(self.rows.iter().any(|row| *row >= site.offset)),
            Some(answers) if site.offset < answers.tokens => Wanted::inputs(true),
            Some(answers) => Wanted { segments: answers.borders.get(..site.offset + 2), ..Wanted::default() },
        }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Attention { site, q, k, .. } if self.wants(Point::Attention(site)).inputs => {
                self.add_rows(site, q, k)
            }
            Event::Weights { site, sums } => self.add_generated(site, sums),
            Event::Thought(tokens) => {
                if let Some(answers) = &mut self.answers {
                    answers.thought = tokens;
                }
                self.layers.values_mut().for_each(|layer| layer.answered.clear());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl TopKeys {
    fn add_rows(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        let _span = timing::observer();
        let (l, heads, _) = q.dims3()?;
        self.layer(site.layer, heads);
        // The prompt's last position is the row of the first generated token.
        let first = self.answers.as_ref().map(|answers| (answers.tokens.saturating_sub(1), None));
        let rows = self.rows.iter().enumerate().map(|(nth, &position)| (position, Some(nth)));
        let rows: Vec<(usize, Option<usize>)> = rows.chain(first).collect();
        for (position, nth) in rows {
            if !(site.offset..site.offset + l).contains(&position) {
                continue;
            }
            // (heads, keys), from the first key held.
            let of_row = row_weights(q, k, &site.relative(), position - site.offset)?;
            let row = self.largest(&of_row, &seen(site, position), site.first_key);
            let layer = self.layer(site.layer, heads);
            match nth {
                Some(nth) => layer.rows[nth] = row,
                None => layer.answered.push(row),
            }
        }
        Ok(())
    }

    fn add_generated(&mut self, site: &Site, sums: &Tensor) -> Result<()> {
        let (heads, columns) = sums.dims2()?;
        let weights = transfer::fetch_all(&[sums])?;
        let of_key = |head: &[f64]| head.iter().skip(1).map(|&weight| weight as f32).collect();
        let by_head: Vec<Vec<f32>> =
            weights.iter().flat_map(|all| all.chunks_exact(columns)).map(of_key).collect();
        let row = self.largest(&by_head, &seen(site, site.offset), 0);
        self.layer(site.layer, heads).answered.push(row);
        Ok(())
    }
}
