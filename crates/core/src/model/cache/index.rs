//! The keys of a layer's indexer, beside those of its attention.

use candle_core::{Result, Tensor};

use super::rows::runs;
use super::{Buffers, Cache, LayerCache};

impl Cache {
    /// Appends the indexer's keys of new tokens, (1, l, width), and returns a view of all from the cache's start on. The length grows in
    /// [`Cache::advance`].
    pub(in crate::model) fn append_index(&mut self, layer: usize, keys: &Tensor) -> Result<Tensor> {
        let (held, l) = (self.length - self.start, keys.dim(1)?);
        let index = self.index(layer)?;
        index.slice_set(&keys.contiguous()?, 1, held)?;
        index.narrow(1, 0, held + l)
    }

    /// A view of the indexer's keys before position `end`, (1, end, width).
    pub(in crate::model) fn index_before(&self, layer: usize, end: usize) -> Result<Tensor> {
        self.index(layer)?.narrow(1, 0, end - self.start)
    }

    /// Overwrites the indexer's keys at ascending `positions`; `keys`: (1, positions, width).
    pub(in crate::model) fn write_index_rows(
        &mut self,
        layer: usize,
        positions: &[usize],
        keys: &Tensor,
    ) -> Result<()> {
        let index = self.index(layer)?;
        let mut first = 0;
        for run in runs(positions) {
            index.slice_set(&keys.narrow(1, first, run.len())?.contiguous()?, 1, run.start - self.start)?;
            first += run.len();
        }
        Ok(())
    }

    fn index(&self, layer: usize) -> Result<&Tensor> {
        match self.layers.get(layer) {
            Some(LayerCache::Full(Buffers { index: Some(index), .. })) => Ok(index),
            _ => candle_core::bail!("This is a bug: layer {layer} keeps no keys of an indexer"),
        }
    }
}
