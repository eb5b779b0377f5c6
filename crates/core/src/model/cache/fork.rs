//! Forking and enlarging caches by copying rows; nothing is recomputed. For callers that keep several histories and start a prompt from
//! the prefix that it shares with one.

use candle_core::{Result, Tensor};

use super::{Cache, LayerCache, Mark, Saved, WINDOW_ROOM, Windowed, window_rows};

impl Cache {
    /// An empty cache for up to `capacity` tokens with the same layout: results are bit-equal.
    pub fn empty_like(&self, capacity: usize) -> Result<Cache> {
        let capacity = capacity.max(1);
        let layers = self.layers.iter().map(|layer| match layer {
            LayerCache::Full(all) => all.map(|buffer| of_rows(buffer, capacity)).map(LayerCache::Full),
            LayerCache::Windowed(windowed) => windowed.empty_like(capacity).map(LayerCache::Windowed),
            LayerCache::State(state) => {
                let mut layer = LayerCache::State(state.clone());
                layer.reset()?;
                Ok(layer)
            }
            LayerCache::Nothing => Ok(LayerCache::Nothing),
            LayerCache::Shared(source) => Ok(LayerCache::Shared(*source)),
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Cache { start: 0, layers, length: 0, capacity, dtype: self.dtype, marks: Vec::new(), torn: false })
    }

    /// The length that [`Cache::truncate`] would leave for `tokens`.
    pub fn back_to(&self, tokens: usize) -> usize {
        if tokens >= self.length && !self.torn {
            return self.length;
        }
        let tokens = tokens.min(self.length);
        if self.sees_all() {
            return tokens;
        }
        self.marks.iter().map(Mark::tokens).filter(|length| *length <= tokens).max().unwrap_or(0)
    }

    /// Copies the first [`Cache::back_to`] of `tokens` tokens into a cache for up to `capacity` tokens; an error if they do not fit.
    pub fn fork(&self, tokens: usize, capacity: usize) -> Result<Cache> {
        let mut fork = self.empty_like(capacity)?;
        let held = self.back_to(tokens);
        if held == 0 {
            return Ok(fork);
        }
        for (to, from) in fork.layers.iter().zip(&self.layers) {
            if let (LayerCache::Full(to), LayerCache::Full(from)) = (to, from) {
                for (to, from) in to.all().zip(from.all()) {
                    copy_rows(from, 0..held, to, 0)?;
                }
            }
        }
        fork.length = held;
        match self.marks.iter().find(|mark| mark.length == held) {
            Some(mark) => fork.roll_back(mark)?,
            None if held == self.length => fork.roll_back(&self.now()?)?,
            None => {}
        }
        fork.marks = self.marks.iter().filter(|mark| mark.length <= held).cloned().collect();
        Ok(fork)
    }

    /// Grows the capacity to `capacity` tokens.
    pub fn enlarge(&mut self, capacity: usize) -> Result<()> {
        if capacity <= self.capacity {
            return Ok(());
        }
        let held = self.length - self.start;
        for layer in &mut self.layers {
            if let LayerCache::Full(all) = layer {
                *all = all.map(|buffer| {
                    let larger = of_rows(buffer, capacity - self.start)?;
                    copy_rows(buffer, 0..held, &larger, 0)?;
                    Ok(larger)
                })?;
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// True if every layer keeps all keys, so that the cache can roll back to any length.
    pub fn sees_all(&self) -> bool {
        let keeps = |layer: &LayerCache| {
            matches!(layer, LayerCache::Full(_) | LayerCache::Nothing | LayerCache::Shared(_))
        };
        self.layers.iter().all(keeps)
    }

    pub(super) fn now(&self) -> Result<Mark> {
        let saved = self.layers.iter().map(|layer| match layer {
            LayerCache::Full(_) | LayerCache::Nothing | LayerCache::Shared(_) => Ok(Saved::InPlace),
            LayerCache::Windowed(windowed) => windowed.save(),
            LayerCache::State(state) => Ok(Saved::State(state.clone())),
        });
        Ok(Mark { length: self.length, saved: saved.collect::<Result<_>>()? })
    }
}

impl Windowed {
    pub(super) fn empty_like(&self, capacity: usize) -> Result<Windowed> {
        let rows = window_rows(self.window, WINDOW_ROOM, capacity, self.grid);
        let (k, v) = (of_rows(&self.k, rows)?, of_rows(&self.v, rows)?);
        Ok(Windowed { window: self.window, grid: self.grid, k, v, first: 0, held: 0 })
    }
}

/// Zeros like `buffer` (heads, rows, d), with `rows` rows.
pub(super) fn of_rows(buffer: &Tensor, rows: usize) -> Result<Tensor> {
    let (heads, _, d) = buffer.dims3()?;
    Tensor::zeros((heads, rows, d), buffer.dtype(), buffer.device())
}

/// Copies rows between buffers (heads, rows, d), to row `to` on; each head's rows are contiguous.
pub(super) fn copy_rows(from: &Tensor, rows: std::ops::Range<usize>, into: &Tensor, to: usize) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    for head in 0..from.dim(0)? {
        let part = from.narrow(0, head, 1)?.narrow(1, rows.start, rows.len())?;
        into.narrow(0, head, 1)?.slice_set(&part, 1, to)?;
    }
    Ok(())
}
