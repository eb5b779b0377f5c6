//! One of several continuations of a shared prefix (the trunk) that decode together.
//!
//! Built by the engine from a cache with the trunk and one continuation; the trunk is then rolled back for the next one. A branch reads
//! the trunk and writes only its own keys.

use candle_core::{Result, Tensor};

use super::fork::{copy_rows, of_rows};
use super::{Cache, LayerCache, Saved, Windowed, cache_bytes};
use crate::attention::SPLIT_K;
use crate::model::{Formats, MixerSpec};

/// The state of every layer after one continuation.
///
/// Full-attention layers keep keys and values from the trunk's last multiple of [`SPLIT_K`] on, so that sums are split as in one sequence;
/// other layers keep their own window or state.
#[derive(Debug)]
pub struct Branch(Cache);

impl Branch {
    /// Tokens of trunk and branch together.
    pub fn tokens(&self) -> usize {
        self.0.len()
    }

    /// Position of the branch's first own key in full-attention layers; earlier keys are read from the trunk.
    pub fn start(&self) -> usize {
        self.0.start
    }

    /// Key capacity of the branch, in tokens.
    pub fn rows(&self) -> usize {
        self.0.capacity - self.0.start
    }

    /// A copy with room for `room` more tokens.
    pub fn fork(&self, room: usize) -> Result<Branch> {
        self.0.check_whole()?;
        self.0.continued(None, self.0.start, self.0.length + room)
    }

    /// Copies what the branch reads of `trunk` after the first `tokens` tokens, so only those must stay in the trunk.
    pub fn rebase(&mut self, trunk: &Cache, tokens: usize) -> Result<()> {
        let start = tokens - tokens % SPLIT_K;
        if start < self.0.start {
            self.0.check_whole()?;
            *self = self.0.continued(Some(trunk), start, self.0.capacity)?;
        }
        Ok(())
    }

    /// The layers' own state: a cache without the keys before [`Branch::start`].
    pub(in crate::model) fn own(&mut self) -> &mut Cache {
        &mut self.0
    }
}

/// Tokens whose keys a branch holds, with `own` tokens after a trunk of `trunk`.
pub fn branch_rows(trunk: usize, own: usize) -> usize {
    trunk % SPLIT_K + own
}

impl Cache {
    /// Copies everything after the first `shared` tokens into a branch with room for `room` more, even if the cache has less. This cache,
    /// which may then be rolled back to `shared`, is the branch's trunk: the shared tokens must stay.
    pub fn branch(&self, shared: usize, room: usize) -> Result<Branch> {
        self.check_whole()?;
        if shared > self.length {
            candle_core::bail!(
                "This is a bug: a branch after {shared} tokens of a cache that holds {}",
                self.length
            );
        }
        self.continued(None, shared - shared % SPLIT_K, self.length + room)
    }

    /// A branch with room for `capacity` tokens in all and keys from `start` on; those before this cache's start come from `trunk`.
    fn continued(&self, trunk: Option<&Cache>, start: usize, capacity: usize) -> Result<Branch> {
        let (old, length) = (self.start, self.length);
        let layers = self.layers.iter().enumerate().map(|(i, layer)| match layer {
            LayerCache::Full(all) => {
                let above: Vec<&Tensor> = match trunk.map(|trunk| &trunk.layers[i]) {
                    Some(LayerCache::Full(above)) => above.all().collect(),
                    _ => Vec::new(),
                };
                let mut above = above.into_iter();
                let tails = all.map(|own| {
                    // Devices have no empty allocations.
                    let tail = of_rows(own, (capacity - start).max(1))?;
                    if let Some(above) = above.next() {
                        copy_rows(above, start..old, &tail, 0)?;
                    }
                    let first = start.max(old);
                    copy_rows(own, first - old..length - old, &tail, first - start)?;
                    Ok(tail)
                });
                Ok(LayerCache::Full(tails?))
            }
            LayerCache::Windowed(windowed) => windowed.branch(length, capacity),
            LayerCache::State(state) => Ok(LayerCache::State(state.clone())),
            LayerCache::Nothing => Ok(LayerCache::Nothing),
            LayerCache::Shared(source) => Ok(LayerCache::Shared(*source)),
        });
        let layers = layers.collect::<Result<_>>()?;
        let (dtype, marks) = (self.dtype, Vec::new());
        Ok(Branch(Cache { start, layers, length, capacity, dtype, marks, torn: false }))
    }

    /// Views of a layer's keys and values before position `end`, both (kv_heads, end, head_dim), if it keeps all.
    pub(crate) fn before(&self, layer: usize, end: usize) -> Result<Option<(Tensor, Tensor)>> {
        match &self.layers[self.holder(layer)] {
            LayerCache::Full(all) => all.views(end).map(Some),
            _ => Ok(None),
        }
    }
}

impl Windowed {
    /// A copy of the window for the token after the first `length`.
    fn branch(&self, length: usize, capacity: usize) -> Result<LayerCache> {
        let mut own = self.empty_like(capacity)?;
        if let Saved::Window(saved) = self.save()? {
            own.restore(saved.as_ref(), length)?;
        }
        Ok(LayerCache::Windowed(own))
    }
}

/// Bytes of a branch's layer beside a trunk for `capacity` tokens, with `rows` tokens' own keys (see [`branch_rows`]); `None` on
/// overflow.
pub fn branch_bytes(mixer: &MixerSpec, capacity: usize, rows: usize, formats: &Formats) -> Option<usize> {
    match mixer {
        MixerSpec::Attention(a) if a.window.is_none() => cache_bytes(mixer, rows.min(capacity), 1, formats),
        _ => cache_bytes(mixer, capacity, 1, formats),
    }
}
