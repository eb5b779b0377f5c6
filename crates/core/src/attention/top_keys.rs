//! The keys that rows pay most to, one by one: what a mass, which is a sum over a span, does not tell.
//!
//! An observer of its own beside the one of masses, on demand. Of a prompt it recomputes the softmax of its rows in f32, one row at
//! a time, and keeps of each row and head the k largest weights. Of a token that is generated it asks the kernel for the sums over
//! segments of one key each. The whole row crosses from the device, so it is for rows by the hundred.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::backends::row_weights;
use super::site::hides_all;
use super::{Event, Observer, Point, Site, Wanted, same_heads};
use crate::timing;
use crate::transfer;

/// Stands for a key where a row sees fewer than k.
pub const NO_KEY: u32 = u32::MAX;

/// Keeps the largest weights of rows.
#[derive(Debug, Clone)]
pub struct TopKeys {
    k: usize,
    /// Positions in the prompt, in the order of the result.
    rows: Vec<usize>,
    /// Ranks the mean over heads, in the place of each head.
    mean: bool,
    answers: Option<Answers>,
    layers: BTreeMap<usize, OfLayer>,
}

/// The rows of generated tokens.
#[derive(Debug, Clone)]
struct Answers {
    tokens: usize,
    /// Tokens of a thought, in no row.
    thought: usize,
    /// 0, 1, 2 and so on: a segment a key.
    borders: Vec<usize>,
}

/// The rows of a layer so far.
#[derive(Debug, Clone)]
struct OfLayer {
    heads: usize,
    rows: Vec<OfRow>,
    answered: Vec<OfRow>,
}

/// A row's largest weights, (heads, k).
#[derive(Debug, Clone)]
struct OfRow {
    keys: Vec<u32>,
    weights: Vec<f32>,
}

/// The k keys with the largest weight, by layer, head and row.
#[derive(Debug, Clone, PartialEq)]
pub struct LargestKeys {
    /// The softmax layers seen, ascending.
    pub layers: Vec<usize>,
    /// The rows' positions: those of the prompt as they were asked for, then those of generated tokens.
    pub rows: Vec<usize>,
    /// Layers, heads (1 where their mean was ranked), rows, k.
    pub shape: [usize; 4],
    /// Positions, the largest weight first, of equal ones the earlier key; [`NO_KEY`] behind the last key that a row sees.
    pub keys: Vec<u32>,
    /// Their weights, 0 where there is no key.
    pub weights: Vec<f32>,
}

impl TopKeys {
    /// Of the rows at these positions of a prompt, the `k` largest weights.
    pub fn new(k: usize, rows: Vec<usize>) -> Self {
        TopKeys { k, rows, mean: false, answers: None, layers: BTreeMap::new() }
    }

    /// Ranks keys by the mean of their weights over the heads.
    #[must_use]
    pub fn of_mean(self) -> Self {
        TopKeys { mean: true, ..self }
    }

    /// Also of the rows of at most `most` tokens that are generated after a prompt of `tokens`: decoding must be shown to the observer
    /// too, and [`TopKeys::finish_after`] must be told how many they are.
    #[must_use]
    pub fn answering(self, tokens: usize, most: usize) -> Self {
        let borders = (0..=tokens.saturating_add(most)).collect();
        TopKeys { answers: Some(Answers { tokens, thought: 0, borders }), ..self }
    }

    /// The largest weights of the prompt's rows.
    ///
    /// # Errors
    /// Layers with different numbers of heads, which one array cannot hold.
    pub fn finish(&self) -> Result<LargestKeys> {
        self.finish_after(0)
    }

    /// The largest weights, after `generated` tokens, those of a thought among them and in no row.
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
        Ok(LargestKeys {
            layers: self.layers.keys().copied().collect(),
            rows: positions,
            shape,
            keys,
            weights,
        })
    }

    fn layer(&mut self, number: usize, heads: usize) -> &mut OfLayer {
        let heads = if self.mean { 1 } else { heads };
        let nothing = OfRow::nothing(heads * self.k);
        let rows = self.rows.len();
        let new = || OfLayer { heads, rows: vec![nothing; rows], answered: Vec::new() };
        self.layers.entry(number).or_insert_with(new)
    }

    /// The largest weights of a row that sees `seen`, from each head's weights of all keys from position `first` on.
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

/// The keys that the row at `position` sees.
fn seen(site: &Site, position: usize) -> Vec<usize> {
    let hidden = site.holes.from_row(position);
    site.visible(position).filter(|key| !hides_all(&hidden, &(*key..*key + 1))).collect()
}

impl Observer for TopKeys {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        let Point::Attention(site) = point else { return Wanted::default() };
        match &self.answers {
            _ if self.k == 0 => Wanted::default(),
            None => Wanted::inputs(!self.rows.is_empty()),
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
    /// Ranks the keys of a prompt's rows.
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

    /// Ranks the keys of the row that predicts a generated token, from sums over segments of one key each.
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
