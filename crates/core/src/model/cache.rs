//! KV cache and recurrent state of one sequence: allocated once, written in place, marked and rolled back.
//!
//! Owned by the caller and lent to the decoder, so that several questions share one history: prefill, mark, then append, decode and roll
//! back for each question. Full-attention layers keep all keys and values, and rollback only changes a length. Sliding-window layers
//! keep what the next tokens can see, recurrent layers a fixed-size state; a mark copies these.

use candle_core::{DType, Device, Result, Tensor};

use super::{AttentionSpec, DecoderSpec, Formats, KeyValues, MixerSpec, StateSpec};
use crate::attention::SPLIT_K;

mod branch;
mod fork;
mod index;
mod rows;

pub use branch::{Branch, branch_bytes, branch_rows};
pub use rows::SavedRows;
pub(super) use rows::runs;

/// The state of every layer after one sequence.
#[derive(Debug)]
pub struct Cache {
    /// First key position of full-attention buffers: above 0 only in a [`Branch`].
    start: usize,
    layers: Vec<LayerCache>,
    length: usize,
    capacity: usize,
    dtype: DType,
    /// The latest marks, for [`Cache::truncate`].
    marks: Vec<Mark>,
    /// A forward pass failed half-way: only some layers have its tokens.
    torn: bool,
}

const REMEMBERED: usize = 2;
/// Minimum spare rows of a sliding-window buffer, so that decode rarely moves it.
const WINDOW_ROOM: usize = 256;

/// A state to roll back to.
#[derive(Debug, Clone)]
pub struct Mark {
    length: usize,
    saved: Vec<Saved>,
}

impl Mark {
    /// Tokens in the cache at the mark.
    pub fn tokens(&self) -> usize {
        self.length
    }
}

#[derive(Debug, Clone)]
enum Saved {
    /// Keys and values are still in place.
    InPlace,
    /// Keys and values in the window before the next token, if any.
    Window(Option<(Tensor, Tensor)>),
    State(LayerState),
}

#[derive(Debug)]
enum LayerCache {
    Full(Buffers),
    Windowed(Windowed),
    State(LayerState),
    /// The layer is a feed-forward block alone.
    Nothing,
    /// Keys and values are those of this earlier layer.
    Shared(usize),
}

/// A layer's keys and values from the cache's start on.
#[derive(Debug)]
struct Buffers {
    /// (kv_heads, capacity - start, head_dim)
    k: Tensor,
    /// As `k`; `None` in latent attention, whose keys are the values.
    v: Option<Tensor>,
    /// An indexer's keys, if the layer has one: (1, capacity - start, width).
    index: Option<Tensor>,
}

/// Keys and values of a sliding window: positions `first..first + held` at the start of buffers that are compacted when full.
#[derive(Debug)]
struct Windowed {
    window: usize,
    /// See [`grid`].
    grid: usize,
    /// (kv_heads, rows, head_dim)
    k: Tensor,
    v: Tensor,
    first: usize,
    held: usize,
}

/// State of a recurrent layer, of the sizes of its [`StateSpec`]. Tensors are replaced, never written in place, so a clone is a snapshot.
#[derive(Debug, Clone)]
pub(super) struct LayerState {
    pub conv: Tensor,
    pub memory: Option<Tensor>,
}

/// Keys and values visible to a layer's new tokens.
#[derive(Debug)]
pub(super) struct Seen {
    /// (kv_heads, keys, head_dim)
    pub k: Tensor,
    pub v: Tensor,
    pub first: usize,
}

impl LayerCache {
    fn new(mixer: &MixerSpec, capacity: usize, formats: &Formats, device: &Device) -> Result<Self> {
        Ok(match mixer {
            &MixerSpec::Attention(AttentionSpec { key_values: KeyValues::Of(source), .. }) => {
                LayerCache::Shared(source)
            }
            MixerSpec::Attention(a @ AttentionSpec { kv_heads, head_dim, .. }) => {
                let buffer = |heads, rows, width| Tensor::zeros((heads, rows, width), formats.cache, device);
                let zeros = |rows| buffer(*kv_heads, rows, *head_dim);
                let grid = grid(formats);
                match a.window {
                    Some(window) if window_rows(window, WINDOW_ROOM, capacity, grid) < capacity => {
                        let rows = window_rows(window, WINDOW_ROOM, capacity, grid);
                        LayerCache::Windowed(Windowed {
                            window,
                            grid,
                            k: zeros(rows)?,
                            v: zeros(rows)?,
                            first: 0,
                            held: 0,
                        })
                    }
                    _ => LayerCache::Full(Buffers {
                        k: zeros(capacity)?,
                        v: a.latent.is_none().then(|| zeros(capacity)).transpose()?,
                        index: a.indexer().map(|spec| buffer(1, capacity, spec.width)).transpose()?,
                    }),
                }
            }
            MixerSpec::DeltaNet(d) => LayerCache::State(LayerState::zero(&d.state(), formats, device)?),
            MixerSpec::ShortConv(c) => LayerCache::State(LayerState::zero(&c.state(), formats, device)?),
            MixerSpec::Mamba2(m) => LayerCache::State(LayerState::zero(&m.heads.state(), formats, device)?),
            MixerSpec::None => LayerCache::Nothing,
        })
    }

    fn reset(&mut self) -> Result<()> {
        match self {
            LayerCache::Full(_) | LayerCache::Nothing | LayerCache::Shared(_) => {}
            LayerCache::Windowed(windowed) => (windowed.first, windowed.held) = (0, 0),
            LayerCache::State(LayerState { conv, memory }) => {
                *conv = conv.zeros_like()?;
                *memory = memory.as_ref().map(Tensor::zeros_like).transpose()?;
            }
        }
        Ok(())
    }
}

impl LayerState {
    fn zero(spec: &StateSpec, formats: &Formats, device: &Device) -> Result<Self> {
        let memory = spec.memory.map(|sizes| Tensor::zeros(sizes, DType::F32, device));
        Ok(LayerState {
            conv: Tensor::zeros(spec.conv, formats.activations, device)?,
            memory: memory.transpose()?,
        })
    }
}

/// Rows of a sliding-window buffer that takes `l` tokens at a time.
fn window_rows(window: usize, l: usize, capacity: usize, grid: usize) -> usize {
    (window - 1 + grid - 1 + l.max(WINDOW_ROOM)).min(capacity)
}

/// Alignment of a window's first key. With f32 activations it is the CPU kernel's split size, so a row's summation order does not
/// depend on chunking or capacity.
fn grid(formats: &Formats) -> usize {
    if formats.activations == DType::F32 { SPLIT_K } else { 1 }
}

impl Buffers {
    /// The first `rows` rows of keys and values.
    fn views(&self, rows: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.k.narrow(1, 0, rows)?, self.v.as_ref().unwrap_or(&self.k).narrow(1, 0, rows)?))
    }

    fn all(&self) -> impl Iterator<Item = &Tensor> {
        [Some(&self.k), self.v.as_ref(), self.index.as_ref()].into_iter().flatten()
    }

    /// Other buffers, made of each of these.
    fn map(&self, mut made: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Buffers {
            k: made(&self.k)?,
            v: self.v.as_ref().map(&mut made).transpose()?,
            index: self.index.as_ref().map(&mut made).transpose()?,
        })
    }
}

/// Copies `rows` rows of a buffer (heads, rows, d), for writing back into it. `None` for 0 rows: devices have no empty allocations.
fn copied(buffer: &Tensor, first: usize, rows: usize) -> Result<Option<Tensor>> {
    match rows {
        0 => Ok(None),
        rows => buffer.narrow(1, first, rows)?.force_contiguous().map(Some),
    }
}

impl Windowed {
    /// First key kept for a token at `position`: the start of its window, aligned down ([`grid`]).
    fn kept_from(&self, position: usize) -> usize {
        let first = position.saturating_sub(self.window - 1);
        (first - first % self.grid).max(self.first)
    }

    /// Appends l tokens at `position`.
    fn append(&mut self, k: &Tensor, v: &Tensor, position: usize, capacity: usize) -> Result<()> {
        let l = k.dim(1)?;
        debug_assert_eq!(self.first + self.held, position);
        let rows = self.k.dim(1)?;
        if self.held + l > rows {
            // Moves the visible keys to the start of the buffer, enlarged if needed.
            let keep = position - self.kept_from(position);
            let needed = window_rows(self.window, l, capacity, self.grid);
            for buffer in [&mut self.k, &mut self.v] {
                let kept = copied(buffer, self.held - keep, keep)?;
                if needed > rows {
                    let (heads, _, d) = buffer.dims3()?;
                    *buffer = Tensor::zeros((heads, needed, d), buffer.dtype(), buffer.device())?;
                }
                if let Some(kept) = kept {
                    buffer.slice_set(&kept, 1, 0)?;
                }
            }
            self.first += self.held - keep;
            self.held = keep;
        }
        self.k.slice_set(k, 1, self.held)?;
        self.v.slice_set(v, 1, self.held)?;
        self.held += l;
        Ok(())
    }

    /// Keys and values that the tokens from `position` on see.
    fn seen(&self, position: usize) -> Result<Seen> {
        let unseen = self.kept_from(position) - self.first;
        let seen = self.held - unseen;
        Ok(Seen {
            k: self.k.narrow(1, unseen, seen)?,
            v: self.v.narrow(1, unseen, seen)?,
            first: self.first + unseen,
        })
    }

    fn save(&self) -> Result<Saved> {
        let position = self.first + self.held;
        let keep = position - self.kept_from(position);
        let copy = |buffer| copied(buffer, self.held - keep, keep);
        Ok(Saved::Window(copy(&self.k)?.zip(copy(&self.v)?)))
    }

    fn restore(&mut self, saved: Option<&(Tensor, Tensor)>, length: usize) -> Result<()> {
        let keep = match saved {
            Some((k, v)) => {
                self.k.slice_set(k, 1, 0)?;
                self.v.slice_set(v, 1, 0)?;
                k.dim(1)?
            }
            None => 0,
        };
        (self.first, self.held) = (length - keep, keep);
        Ok(())
    }
}

impl Cache {
    /// An empty cache for up to `capacity` tokens, allocated at once; system memory pages are touched only when written. Returns an error
    /// if it does not fit. `devices`: one per layer.
    pub(super) fn new(
        spec: &DecoderSpec,
        capacity: usize,
        formats: &Formats,
        devices: &[Device],
    ) -> Result<Self> {
        let bytes = spec
            .layers
            .iter()
            .zip(devices)
            .filter(|(_, device)| device.is_cpu())
            .try_fold(0usize, |sum, (layer, _)| {
                sum.checked_add(bytes_at_first(&layer.mixer, capacity, formats)?)
            });
        // The allocator aborts on failure; this probe returns an error instead.
        let granted = |bytes| {
            let mut probe = Vec::<u8>::new();
            let granted = probe.try_reserve_exact(bytes).is_ok();
            // Prevents the compiler from removing the allocation.
            std::hint::black_box(&probe);
            granted
        };
        if !bytes.is_some_and(granted) {
            candle_core::bail!(
                "a key/value cache for {capacity} tokens needs {}, more than this machine gives; ask for a shorter context",
                bytes.map_or("an impossible amount of memory".to_owned(), |b| format!("{} MiB", b >> 20))
            );
        }
        let layers = spec
            .layers
            .iter()
            .zip(devices)
            .map(|(layer, device)| LayerCache::new(&layer.mixer, capacity, formats, device))
            .collect::<Result<_>>()?;
        let dtype = formats.cache;
        Ok(Cache { start: 0, layers, length: 0, capacity, dtype, marks: Vec::new(), torn: false })
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if the cache holds no token.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Dtype of keys and values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Maximum number of tokens.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Marks the current state. The cache also keeps the latest marks, for [`Cache::truncate`].
    pub fn mark(&mut self) -> Result<Mark> {
        self.check_whole()?;
        let mark = self.now()?;
        self.marks.retain(|m| m.length != mark.length);
        if self.marks.len() == REMEMBERED {
            // Keep the first mark, where other sequences may branch off, and the latest one.
            self.marks.truncate(REMEMBERED - 1);
        }
        self.marks.push(mark.clone());
        Ok(mark)
    }

    /// Removes every token after the mark, which must be of this cache and not yet removed.
    pub fn roll_back(&mut self, mark: &Mark) -> Result<()> {
        if mark.saved.len() != self.layers.len() || mark.length > self.length {
            candle_core::bail!(
                "This is a bug: a mark of {} tokens for a cache that holds {}",
                mark.length,
                self.length
            );
        }
        for (layer, saved) in self.layers.iter_mut().zip(&mark.saved) {
            match (layer, saved) {
                (LayerCache::Windowed(windowed), Saved::Window(saved)) => {
                    windowed.restore(saved.as_ref(), mark.length)?;
                }
                (LayerCache::State(state), Saved::State(saved)) => *state = saved.clone(),
                _ => {}
            }
        }
        self.length = mark.length;
        self.torn = false;
        self.marks.retain(|m| m.length <= self.length);
        Ok(())
    }

    /// Keeps at most the first `tokens` tokens and returns how many are left. With only full-attention layers that is `tokens`; otherwise
    /// the length of the latest kept mark at or before it, or 0.
    pub fn truncate(&mut self, tokens: usize) -> Result<usize> {
        if tokens >= self.length && !self.torn {
            return Ok(self.length);
        }
        let tokens = tokens.min(self.length);
        if self.sees_all() {
            self.length = tokens;
            self.torn = false;
            self.marks.retain(|m| m.length <= tokens);
            return Ok(tokens);
        }
        match self.marks.iter().filter(|m| m.length <= tokens).max_by_key(|m| m.length).cloned() {
            Some(mark) => self.roll_back(&mark)?,
            None => {
                self.layers.iter_mut().try_for_each(LayerCache::reset)?;
                self.length = 0;
                self.torn = false;
                self.marks.clear();
            }
        }
        Ok(self.length)
    }

    /// Begins a forward pass: every layer takes its tokens once, and [`Cache::advance`] ends it.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.check_whole()?;
        self.torn = true;
        Ok(())
    }

    /// Returns an error after a forward pass that failed half-way.
    fn check_whole(&self) -> Result<()> {
        if self.torn {
            candle_core::bail!(
                "This is a bug: a cache is used after a failed forward and was not rolled back"
            );
        }
        Ok(())
    }

    /// The layer whose keys and values `layer` reads: itself, or an earlier one that it shares them with.
    fn holder(&self, layer: usize) -> usize {
        match self.layers[layer] {
            LayerCache::Shared(source) => source,
            _ => layer,
        }
    }

    /// Appends a layer's new keys and values, both (kv_heads, l, head_dim), and returns views of those that the new tokens see. The length
    /// grows in [`Cache::advance`]. A layer that shares those of an earlier one appends nothing.
    pub(super) fn append(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<Seen> {
        let l = k.dim(1)?;
        let end = self.length + l;
        if end > self.capacity {
            candle_core::bail!(
                "the cache holds {} of {} tokens: {l} more do not fit",
                self.length,
                self.capacity
            );
        }
        match &mut self.layers[layer] {
            LayerCache::Full(all) => {
                all.k.slice_set(&k.contiguous()?, 1, self.length - self.start)?;
                if let Some(all_v) = &all.v {
                    all_v.slice_set(&v.contiguous()?, 1, self.length - self.start)?;
                }
            }
            LayerCache::Windowed(windowed) => {
                windowed.append(&k.contiguous()?, &v.contiguous()?, self.length, self.capacity)?;
            }
            LayerCache::Shared(_) => {}
            LayerCache::State(_) | LayerCache::Nothing => {
                candle_core::bail!("This is a bug: layer {layer} keeps no keys")
            }
        }
        match &self.layers[self.holder(layer)] {
            LayerCache::Full(all) => {
                let (k, v) = all.views(end - self.start)?;
                Ok(Seen { k, v, first: self.start })
            }
            LayerCache::Windowed(windowed) => windowed.seen(self.length),
            _ => candle_core::bail!("This is a bug: layer {layer} shares the keys of one that keeps none"),
        }
    }

    /// [`Cache::append`] for the duration of `read`, then removes the tokens again.
    pub(super) fn append_for<T>(
        &mut self,
        layer: usize,
        k: &Tensor,
        v: &Tensor,
        read: impl FnOnce(Seen) -> Result<T>,
    ) -> Result<T> {
        let layer = self.holder(layer);
        // Full-attention buffers are only written past the length.
        let saved = match &self.layers[layer] {
            LayerCache::Windowed(windowed) => Some(windowed.save()?),
            _ => None,
        };
        let made = read(self.append(layer, k, v)?)?;
        if let (LayerCache::Windowed(windowed), Some(Saved::Window(saved))) = (&mut self.layers[layer], saved)
        {
            windowed.restore(saved.as_ref(), self.length)?;
        }
        Ok(made)
    }

    pub(super) fn state(&self, layer: usize) -> Result<LayerState> {
        match &self.layers[layer] {
            LayerCache::State(state) => Ok(state.clone()),
            _ => candle_core::bail!("This is a bug: layer {layer} keeps no state"),
        }
    }

    pub(super) fn set_state(&mut self, layer: usize, state: LayerState) -> Result<()> {
        match &mut self.layers[layer] {
            LayerCache::State(old) => *old = state,
            _ => candle_core::bail!("This is a bug: layer {layer} keeps no state"),
        }
        Ok(())
    }

    pub(super) fn advance(&mut self, l: usize) {
        self.length += l;
        self.torn = false;
    }
}

/// Bytes of a layer's cache for `capacity` tokens read `l` at a time; `None` on overflow.
pub fn cache_bytes(mixer: &MixerSpec, capacity: usize, l: usize, formats: &Formats) -> Option<usize> {
    match mixer {
        MixerSpec::Attention(AttentionSpec { key_values: KeyValues::Of(_), .. }) => Some(0),
        MixerSpec::Attention(a) => {
            let rows = match a.window {
                Some(window) => window_rows(window, l, capacity, grid(formats)),
                None => capacity,
            };
            product(&[a.cached(), rows, formats.cache.size_in_bytes()])
        }
        MixerSpec::DeltaNet(d) => d.state().bytes(formats),
        MixerSpec::ShortConv(c) => c.state().bytes(formats),
        MixerSpec::Mamba2(m) => m.heads.state().bytes(formats),
        MixerSpec::None => Some(0),
    }
}

/// The product of these sizes; `None` on overflow.
fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, &m| n.checked_mul(m))
}

impl StateSpec {
    fn bytes(&self, formats: &Formats) -> Option<usize> {
        let conv = product(&[self.conv.0, self.conv.1, formats.activations.size_in_bytes()])?;
        let memory =
            self.memory.map_or(Some(0), |(heads, keys, values)| product(&[heads, keys, values, 4]))?;
        conv.checked_add(memory)
    }
}

fn bytes_at_first(mixer: &MixerSpec, capacity: usize, formats: &Formats) -> Option<usize> {
    cache_bytes(mixer, capacity, WINDOW_ROOM, formats)
}
