//! Caches that take over what another one of the same model holds.
//!
//! For callers that keep several histories and let a prompt begin where one of them leaves it: a fork copies the tokens that both
//! share, a cache that has become too small is enlarged. Made of rows that are copied from buffer to buffer; nothing is computed.

use candle_core::{Result, Tensor};

use super::{Cache, LayerCache, Mark, Saved, WINDOW_ROOM, Windowed, window_rows};

impl Cache {
    /// An empty cache for up to `capacity` tokens whose layers remember in the same way as this one's: it gives the same bits.
    pub fn empty_like(&self, capacity: usize) -> Result<Cache> {
        let capacity = capacity.max(1);
        let layers = self.layers.iter().map(|layer| match layer {
            LayerCache::Full { k, v } => {
                Ok(LayerCache::Full { k: of_rows(k, capacity)?, v: of_rows(v, capacity)? })
            }
            LayerCache::Windowed(windowed) => windowed.empty_like(capacity).map(LayerCache::Windowed),
            LayerCache::Delta(state) => {
                let mut layer = LayerCache::Delta(state.clone());
                layer.reset()?;
                Ok(layer)
            }
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Cache { start: 0, layers, length: 0, capacity, dtype: self.dtype, marks: Vec::new(), torn: false })
    }

    /// The length that [`Cache::truncate`] would leave of the first `tokens` tokens.
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

    /// A cache for up to `capacity` tokens that holds the first [`Cache::back_to`] of `tokens` of this one's.
    ///
    /// # Errors
    /// No memory, or less room than that takes.
    pub fn fork(&self, tokens: usize, capacity: usize) -> Result<Cache> {
        let mut fork = self.empty_like(capacity)?;
        let held = self.back_to(tokens);
        if held == 0 {
            return Ok(fork);
        }
        for (to, from) in fork.layers.iter_mut().zip(&self.layers) {
            if let (LayerCache::Full { k, v }, LayerCache::Full { k: from_k, v: from_v }) = (to, from) {
                copy_rows(from_k, 0..held, k, 0)?;
                copy_rows(from_v, 0..held, v, 0)?;
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

    /// Makes room for `capacity` tokens in all.
    pub fn enlarge(&mut self, capacity: usize) -> Result<()> {
        if capacity <= self.capacity {
            return Ok(());
        }
        let held = self.length - self.start;
        for layer in &mut self.layers {
            if let LayerCache::Full { k, v } = layer {
                for buffer in [k, v] {
                    let larger = of_rows(buffer, capacity - self.start)?;
                    copy_rows(buffer, 0..held, &larger, 0)?;
                    *buffer = larger;
                }
            }
        }
        self.capacity = capacity;
        Ok(())
    }

    /// True if every layer keeps the keys of the whole context, so that the cache can go back to any length.
    pub fn sees_all(&self) -> bool {
        self.layers.iter().all(|layer| matches!(layer, LayerCache::Full { .. }))
    }

    /// The current state.
    pub(super) fn now(&self) -> Result<Mark> {
        let saved = self.layers.iter().map(|layer| match layer {
            LayerCache::Full { .. } => Ok(Saved::InPlace),
            LayerCache::Windowed(windowed) => windowed.save(),
            LayerCache::Delta(state) => Ok(Saved::Delta(state.clone())),
        });
        Ok(Mark { length: self.length, saved: saved.collect::<Result<_>>()? })
    }
}

impl Windowed {
    fn empty_like(&self, capacity: usize) -> Result<Windowed> {
        let rows = window_rows(self.window, WINDOW_ROOM, capacity, self.grid);
        let (k, v) = (of_rows(&self.k, rows)?, of_rows(&self.v, rows)?);
        Ok(Windowed { window: self.window, grid: self.grid, k, v, first: 0, held: 0 })
    }
}

/// A buffer of zeros like `buffer` (heads, rows, d), with other rows.
pub(super) fn of_rows(buffer: &Tensor, rows: usize) -> Result<Tensor> {
    let (heads, _, d) = buffer.dims3()?;
    Tensor::zeros((heads, rows, d), buffer.dtype(), buffer.device())
}

/// Copies rows of one buffer (heads, rows, d) into another one, from row `to` on, head by head, each of which lies in one piece.
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
