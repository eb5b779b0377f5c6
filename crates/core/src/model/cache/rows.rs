//! Rows inside a cache: written anew in place, saved, and put back. Only for caches whose layers keep all keys.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::{Buffers, Cache, LayerCache, copied};

/// Keys and values of some positions in every layer.
#[derive(Debug)]
pub struct SavedRows {
    runs: Vec<Range<usize>>,
    /// By layer, buffer and run, each (kv_heads, run, head_dim) or of an indexer (1, run, width).
    layers: Vec<Vec<Vec<Tensor>>>,
}

/// Runs of consecutive positions; `positions` ascend.
pub(in crate::model) fn runs(positions: &[usize]) -> Vec<Range<usize>> {
    let consecutive = positions.chunk_by(|a, b| a + 1 == *b);
    consecutive.filter_map(|run| Some(*run.first()?..run.last()? + 1)).collect()
}

impl Cache {
    /// Copies the keys and values at ascending `positions`.
    pub fn save_rows(&self, positions: &[usize]) -> Result<SavedRows> {
        let runs = runs(positions);
        let layers = (0..self.layers.len()).map(|layer| {
            if self.holder(layer) != layer {
                return Ok(Vec::new());
            }
            let saved = self.buffers(layer)?.all().map(|buffer| {
                runs.iter().filter_map(|run| copied(buffer, run.start, run.len()).transpose()).collect()
            });
            saved.collect::<Result<Vec<_>>>()
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(SavedRows { runs, layers })
    }

    /// Writes saved rows back, also after a forward pass that failed over them: the cache is as it was.
    pub fn put_back(&mut self, saved: &SavedRows) -> Result<()> {
        for (layer, buffers) in saved.layers.iter().enumerate() {
            for (buffer, rows) in self.buffers(layer)?.all().zip(buffers) {
                for (run, saved) in saved.runs.iter().zip(rows) {
                    buffer.slice_set(saved, 1, run.start)?;
                }
            }
        }
        self.torn = false;
        Ok(())
    }

    /// Overwrites a layer's keys and values at ascending `positions`; `k` and `v`: (kv_heads, positions, head_dim).
    pub(in crate::model) fn write_rows(
        &mut self,
        layer: usize,
        positions: &[usize],
        k: &Tensor,
        v: &Tensor,
    ) -> Result<()> {
        let all = self.buffers(layer)?;
        let mut first = 0;
        for run in runs(positions) {
            for (buffer, new) in [(Some(&all.k), k), (all.v.as_ref(), v)] {
                let Some(buffer) = buffer else { continue };
                buffer.slice_set(&new.narrow(1, first, run.len())?.contiguous()?, 1, run.start)?;
            }
            first += run.len();
        }
        Ok(())
    }

    fn buffers(&self, layer: usize) -> Result<&Buffers> {
        match self.layers.get(self.holder(layer)) {
            Some(LayerCache::Full(all)) if self.start == 0 => Ok(all),
            _ => candle_core::bail!("This is a bug: layer {layer} does not keep the keys of all tokens"),
        }
    }
}
