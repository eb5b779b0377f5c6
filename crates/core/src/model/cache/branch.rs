//! One of several continuations of the same tokens, which decode together.
//!
//! Made by the engine's callers from a cache that holds the shared tokens, the trunk, and what one continuation has added
//! to them; then the trunk is rolled back for the next one. A branch reads the trunk and writes only what is its own.

use candle_core::{Result, Tensor};

use super::fork::{copy_rows, of_rows};
use super::{Cache, LayerCache, Saved, WINDOW_ROOM, Windowed, cache_bytes, window_rows};
use crate::attention::SPLIT_K;
use crate::model::{Formats, MixerSpec};

/// The state of every layer after one continuation, beside its trunk.
///
/// Layers that see the whole context keep the keys and values after the last multiple of [`SPLIT_K`] in the trunk, so that
/// attention sums them up as it would in one sequence; layers with a window or a state keep one of their own.
#[derive(Debug)]
pub struct Branch(Cache);

impl Branch {
    /// Tokens of the trunk and the branch together.
    pub fn tokens(&self) -> usize {
        self.0.len()
    }

    /// Where the branch's own keys begin in layers that see the whole context: it reads what its trunk holds before.
    pub fn start(&self) -> usize {
        self.0.start
    }

    /// Tokens whose keys the branch has room for.
    pub fn rows(&self) -> usize {
        self.0.capacity - self.0.start
    }

    /// The same continuation once more, with room for up to `room` tokens after those that it holds.
    pub fn fork(&self, room: usize) -> Result<Branch> {
        self.0.check_whole()?;
        self.0.continued(None, self.0.start, self.0.length + room)
    }

    /// Copies what the branch reads of its `trunk` after the first `tokens` tokens, so that these alone must stay there.
    pub fn rebase(&mut self, trunk: &Cache, tokens: usize) -> Result<()> {
        let start = tokens - tokens % SPLIT_K;
        if start < self.0.start {
            self.0.check_whole()?;
            *self = self.0.continued(Some(trunk), start, self.0.capacity)?;
        }
        Ok(())
    }

    /// The layers' own state, as of a sequence whose first [`Branch::start`] tokens are elsewhere.
    pub(in crate::model) fn own(&mut self) -> &mut Cache {
        &mut self.0
    }
}

/// Tokens whose keys a branch holds that has `own` tokens of its own after a trunk of `trunk`.
pub fn branch_rows(trunk: usize, own: usize) -> usize {
    trunk % SPLIT_K + own
}

impl Cache {
    /// Copies what the cache holds after the first `shared` tokens into a branch with room for up to `room` more. The cache,
    /// which can then be rolled back to there, is the branch's trunk: the shared tokens must stay.
    pub fn branch(&self, shared: usize, room: usize) -> Result<Branch> {
        if shared > self.length {
            candle_core::bail!(
                "This is a bug: a branch after {shared} tokens of a cache that holds {}",
                self.length
            );
        }
        self.branch_within(shared, self.capacity.min(self.length + room))
    }

    /// The same with that room whether or not the cache has it.
    pub fn branch_after(&self, shared: usize, room: usize) -> Result<Branch> {
        self.branch_within(shared.min(self.length), self.length + room)
    }

    /// A branch after all that the cache holds, with room for up to `room` more tokens whether or not the cache has it.
    pub fn continuation(&self, room: usize) -> Result<Branch> {
        self.branch_within(self.length, self.length + room)
    }

    fn branch_within(&self, shared: usize, capacity: usize) -> Result<Branch> {
        self.check_whole()?;
        self.continued(None, shared - shared % SPLIT_K, capacity)
    }

    /// A branch with room for `capacity` tokens in all, whose keys begin at `start`; those before this cache's come from the trunk.
    fn continued(&self, trunk: Option<&Cache>, start: usize, capacity: usize) -> Result<Branch> {
        let (old, length) = (self.start, self.length);
        let layers = self.layers.iter().enumerate().map(|(i, layer)| match layer {
            LayerCache::Full { k, v } => {
                let above = match trunk.map(|trunk| &trunk.layers[i]) {
                    Some(LayerCache::Full { k, v }) => [Some(k), Some(v)],
                    _ => [None, None],
                };
                let tail = |own: &Tensor, above: Option<&Tensor>| {
                    // A device has no empty memory: room for one more token is the least.
                    let tail = of_rows(own, (capacity - start).max(1))?;
                    if let Some(above) = above {
                        copy_rows(above, start..old, &tail, 0)?;
                    }
                    let first = start.max(old);
                    copy_rows(own, first - old..length - old, &tail, first - start)?;
                    Ok::<_, candle_core::Error>(tail)
                };
                Ok(LayerCache::Full { k: tail(k, above[0])?, v: tail(v, above[1])? })
            }
            LayerCache::Windowed(windowed) => windowed.branch(length, capacity),
            LayerCache::Delta(state) => Ok(LayerCache::Delta(state.clone())),
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Branch(Cache {
            start,
            layers,
            length,
            capacity,
            dtype: self.dtype,
            marks: Vec::new(),
            torn: false,
        }))
    }

    /// Views of a layer's keys and values before position `end`, both (kv_heads, end, head_dim), where it keeps all of them.
    pub(in crate::model) fn before(&self, layer: usize, end: usize) -> Result<Option<(Tensor, Tensor)>> {
        match &self.layers[layer] {
            LayerCache::Full { k, v } => Ok(Some((k.narrow(1, 0, end)?, v.narrow(1, 0, end)?))),
            _ => Ok(None),
        }
    }
}

impl Windowed {
    /// A window of its own with what the next of `length` tokens can see.
    fn branch(&self, length: usize, capacity: usize) -> Result<LayerCache> {
        let (heads, _, d) = self.k.dims3()?;
        let rows = window_rows(self.window, WINDOW_ROOM, capacity, self.grid);
        let zeros = || Tensor::zeros((heads, rows, d), self.k.dtype(), self.k.device());
        let mut own =
            Windowed { window: self.window, grid: self.grid, k: zeros()?, v: zeros()?, first: 0, held: 0 };
        if let Saved::Window(saved) = self.save()? {
            own.restore(saved.as_ref(), length)?;
        }
        Ok(LayerCache::Windowed(own))
    }
}

/// Bytes that a layer of one branch takes beside a trunk for `capacity` tokens, where the branch has `rows` tokens' keys of
/// its own (see [`branch_rows`]), or `None` where no number holds them.
pub fn branch_bytes(mixer: &MixerSpec, capacity: usize, rows: usize, formats: &Formats) -> Option<usize> {
    match mixer {
        MixerSpec::Attention(a) if a.window.is_none() => cache_bytes(mixer, rows.min(capacity), 1, formats),
        _ => cache_bytes(mixer, capacity, 1, formats),
    }
}
