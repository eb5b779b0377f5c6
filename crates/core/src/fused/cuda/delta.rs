//! The gated delta rule and its implicit attention, by the kernels of `delta.cuh` (feature `cuda`). All tensors are f32.

use candle_core::{CudaDevice, DType, Device, Result, Tensor};

use super::{MODULE, launch};
use crate::fused::launch::Argument::{self, Unsigned};
use crate::fused::launch::{self as card, Grid, Pointer};
use crate::transfer;

/// Tokens per block, columns of the state per thread block, and rows of implicit attention per thread block: as in `delta.cuh`.
const TOKENS: usize = 64;
const COLUMNS: usize = 32;
const ROWS: usize = 32;
const PITCH: usize = TOKENS + 4;
const THREADS: u32 = 256;
/// Keys up to this width fit the 64 KiB of shared memory that every card has.
const WIDEST: usize = 256;

/// True if the kernels serve heads with keys of this width on `device`.
pub(crate) fn serves(device: &Device, key_dim: usize) -> bool {
    device.is_cuda() && key_dim <= WIDEST
}

/// Normalised keys (l, key_heads, key_dim), log decays and write strengths, both (l, value_heads).
#[derive(Clone, Copy)]
pub(crate) struct Written<'a> {
    pub k: &'a Tensor,
    pub g: &'a Tensor,
    pub beta: &'a Tensor,
}

/// Sizes of [`Written`], which were checked.
struct Sizes {
    l: usize,
    key_heads: usize,
    key_dim: usize,
    value_heads: usize,
}

impl Written<'_> {
    fn sizes(&self) -> Result<Sizes> {
        let (l, key_heads, key_dim) = self.k.dims3()?;
        let value_heads = self.g.dim(1)?;
        if self.g.dims() != [l, value_heads]
            || self.beta.dims() != [l, value_heads]
            || key_heads == 0
            || !value_heads.is_multiple_of(key_heads)
            || !(1..=WIDEST).contains(&key_dim)
            || l == 0
        {
            candle_core::bail!(
                "the delta rule: keys of shape {:?} with decays of shape {:?} and strengths of shape {:?}",
                self.k.dims(),
                self.g.dims(),
                self.beta.dims()
            );
        }
        Ok(Sizes { l, key_heads, key_dim, value_heads })
    }
}

fn at(x: &Tensor, device: &CudaDevice) -> Result<Argument> {
    Ok(Pointer::to::<f32>(x, device)?.into())
}

/// `numbers` as arguments; an error if one is too large for the kernels.
fn counts<const N: usize>(numbers: [usize; N]) -> Result<[Argument; N]> {
    if numbers.iter().any(|n| i32::try_from(*n).is_err()) {
        candle_core::bail!("the delta rule over sizes {numbers:?}, of which one is too large for a card");
    }
    Ok(numbers.map(|n| Unsigned(n as u32)))
}

fn bytes(floats: usize) -> u32 {
    (4 * floats) as u32
}

/// Results of `delta_blocks` for each block of tokens and value head; see the kernel.
struct Blocks([Tensor; 3]);

impl Blocks {
    /// With `q`, of the shape of the keys, for the rule; without, for implicit attention.
    fn new(q: Option<&Tensor>, written: &Written<'_>) -> Result<Self> {
        let device = written.k.device().as_cuda_device()?;
        let Sizes { l, key_heads, key_dim, value_heads } = written.sizes()?;
        if q.is_some_and(|q| q.dims() != written.k.dims()) {
            candle_core::bail!(
                "the delta rule: queries of another shape than the keys, {:?}",
                written.k.dims()
            );
        }
        let (n, c) = (l.div_ceil(TOKENS), TOKENS);
        // SAFETY: the kernel writes all of them.
        let [ends, transform, pairwise] = unsafe {
            [
                card::unwritten::<f32>(device, (n, value_heads, 2, c))?,
                card::unwritten::<f32>(device, (n, value_heads, c, c))?,
                card::unwritten::<f32>(device, (n, value_heads, c, c))?,
            ]
        };
        let mut arguments = vec![match q {
            Some(q) => at(q, device)?,
            None => Pointer::NOTHING.into(),
        }];
        for x in [written.k, written.g, written.beta] {
            arguments.push(at(x, device)?);
        }
        arguments.extend(counts([l, key_heads, key_dim])?);
        for x in [&ends, &transform, &pairwise] {
            arguments.push(at(x, device)?);
        }
        let grid = Grid { blocks: [n, value_heads, 1], threads: THREADS, shared: 0 };
        // SAFETY: one thread block per block of tokens and value head; the shapes were checked.
        unsafe { card::launch(device, &MODULE, "delta_blocks", &grid, &arguments)? };
        Ok(Blocks([ends, transform, pairwise]))
    }

    fn arguments(&self, device: &CudaDevice) -> Result<Vec<Argument>> {
        self.0.iter().map(|x| at(x, device)).collect()
    }
}

/// Checks the rule's values and state; returns their width.
fn value_dim(q: &Tensor, v: &Tensor, state: &Tensor, sizes: &Sizes) -> Result<usize> {
    let Sizes { l, key_heads, key_dim, value_heads } = *sizes;
    let (_, _, value_dim) = v.dims3()?;
    if v.dims() != [l, value_heads, value_dim]
        || q.dims() != [l, key_heads, key_dim]
        || state.dims() != [value_heads, key_dim, value_dim]
        || value_dim == 0
    {
        candle_core::bail!(
            "the delta rule: queries of shape {:?} and values of shape {:?} for a state of shape {:?}",
            q.dims(),
            v.dims(),
            state.dims()
        );
    }
    Ok(value_dim)
}

/// The rule over l tokens with normalised queries `q` (l, key_heads, key_dim) and values `v` (l, value_heads, value_dim), from `state`
/// (value_heads, key_dim, value_dim): outputs (l, value_heads, value_dim) and the new state. Two launches.
pub(crate) fn rule(
    q: &Tensor,
    v: &Tensor,
    written: &Written<'_>,
    state: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let device = state.device().as_cuda_device()?;
    let sizes = written.sizes()?;
    let value_dim = value_dim(q, v, state, &sizes)?;
    let Sizes { l, key_heads, key_dim, value_heads } = sizes;
    let blocks = Blocks::new(Some(q), written)?;
    // SAFETY: the kernel writes all of it.
    let after = unsafe { card::unwritten::<f32>(device, state.shape())? };
    let mut arguments = vec![at(q, device)?, at(written.k, device)?, at(v, device)?];
    arguments.extend(blocks.arguments(device)?);
    arguments.push(at(state, device)?);
    arguments.extend(counts([l, key_heads, key_dim, value_dim])?);
    arguments.push(at(&after, device)?);
    let shared = bytes(key_dim.next_multiple_of(TOKENS) * COLUMNS + TOKENS * (PITCH + COLUMNS));
    // SAFETY: one thread block per columns of the state and value head; the shapes were checked.
    let out = unsafe {
        let out = card::unwritten::<f32>(device, v.shape())?;
        arguments.push(at(&out, device)?);
        let grid = Grid { blocks: [value_dim.div_ceil(COLUMNS), value_heads, 1], threads: THREADS, shared };
        card::launch(device, &MODULE, "delta_rule", &grid, &arguments)?;
        out
    };
    Ok((out, after))
}

/// [`rule`] for one token, in one launch.
pub(crate) fn step(
    q: &Tensor,
    v: &Tensor,
    written: &Written<'_>,
    state: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let device = state.device().as_cuda_device()?;
    let sizes = written.sizes()?;
    let value_dim = value_dim(q, v, state, &sizes)?;
    let Sizes { l, key_heads, key_dim, value_heads } = sizes;
    if l != 1 {
        candle_core::bail!("This is a bug: a step of the delta rule over {l} tokens");
    }
    // SAFETY: the kernel writes all of it.
    let after = unsafe { card::unwritten::<f32>(device, state.shape())? };
    let mut arguments = Vec::new();
    for x in [q, written.k, v, written.g, written.beta, state] {
        arguments.push(at(x, device)?);
    }
    arguments.extend(counts([key_heads, key_dim, value_dim])?);
    arguments.push(at(&after, device)?);
    let grid = ((value_dim.div_ceil(COLUMNS), value_heads), THREADS);
    // SAFETY: as above.
    let out = unsafe { launch::<f32>(device, "delta_step", grid, v.shape(), arguments)? };
    Ok((out, after))
}

/// The causal convolution of `x` (l, channels), whose rows may lie apart, after the inputs `before` (taps - 1, channels), by `weights`
/// (taps, channels), f32, then silu; (l, channels) in the dtype of `x`.
pub(crate) fn convolution(x: &Tensor, before: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let device = x.device().as_cuda_device()?;
    let ((l, channels), taps) = (x.dims2()?, weights.dim(0)?);
    if before.dims() != [taps - 1, channels]
        || weights.dims() != [taps, channels]
        || before.dtype() != x.dtype()
        || x.stride()[1] != 1
    {
        candle_core::bail!(
            "a convolution of shape {:?} over inputs of shape {:?} after some of shape {:?}",
            weights.dims(),
            x.dims(),
            before.dims()
        );
    }
    let name = format!("delta_conv_{}", card::suffix(x.dtype())?);
    let stride = Argument::Long(x.stride()[0] as i64);
    card::typed!(x.dtype(), T => {
        let (x_at, before) = (Pointer::strided::<T>(x, device)?, Pointer::to::<T>(before, device)?);
        let mut arguments = vec![before.into(), x_at.into(), stride, at(weights, device)?];
        arguments.extend(counts([channels, taps])?);
        let grid = ((l, channels.div_ceil(256)), 256);
        // SAFETY: one thread per token and channel; the shapes were checked.
        unsafe { launch::<T>(device, &name, grid, (l, channels), arguments) }
    })
}

/// Rows on their way back through the keys, summed by segment.
pub(crate) struct Rows {
    /// The queries after the blocks walked so far, (value_heads, r, key_dim).
    left: Tensor,
    /// (2, places, value_heads, r): weights and their sizes per segment; the last place is for keys outside all segments.
    sums: Tensor,
    /// u32
    borders: Tensor,
    first_row: usize,
}

impl Rows {
    /// `q`: normalised queries per value head, (value_heads, r, key_dim), at positions from `first_row` on. `bounds`: ascending borders of
    /// segments, at least one border.
    pub fn new(q: Tensor, first_row: usize, bounds: &[usize]) -> Result<Self> {
        let (heads, r, _) = q.dims3()?;
        let sums = Tensor::zeros((2, bounds.len(), heads, r), DType::F32, q.device())?;
        let borders = bounds.iter().map(|border| u32::try_from(*border).unwrap_or(u32::MAX)).collect();
        let borders = transfer::upload(borders, bounds.len(), q.device())?;
        // The rows are written in place.
        Ok(Rows { left: q.force_contiguous()?, sums, borders, first_row })
    }

    /// Goes back through tokens from position `first` on, in two launches; panels come last to first, and all but the last are of whole
    /// blocks.
    pub fn back(&mut self, first: usize, written: &Written<'_>) -> Result<()> {
        let device = self.left.device().as_cuda_device()?;
        let Sizes { l, key_heads, key_dim, value_heads } = written.sizes()?;
        let (heads, r, width) = self.left.dims3()?;
        if (heads, width) != (value_heads, key_dim) {
            candle_core::bail!(
                "implicit attention: rows of shape {:?} over keys of shape {:?}",
                self.left.dims(),
                written.k.dims()
            );
        }
        let blocks = Blocks::new(None, written)?;
        let mut arguments = vec![at(written.k, device)?];
        arguments.extend(blocks.arguments(device)?);
        arguments.push(Pointer::to::<u32>(&self.borders, device)?.into());
        let places = self.sums.dim(1)?;
        arguments.extend(counts([places, first, l, self.first_row, r, key_heads, key_dim])?);
        arguments.extend([at(&self.left, device)?, at(&self.sums, device)?]);
        let pitch = key_dim.next_multiple_of(TOKENS) + 4;
        let shared = bytes(ROWS * pitch + (TOKENS + ROWS) * PITCH);
        let grid = Grid { blocks: [r.div_ceil(ROWS), heads, 1], threads: THREADS, shared };
        // SAFETY: one thread block per rows and value head, which alone writes what is left of them and their sums.
        unsafe { card::launch(device, &MODULE, "delta_rows", &grid, &arguments) }
    }

    /// Summed weights, and summed sizes of weights: (places, value_heads, r) each.
    pub fn sums(&self) -> Result<[Tensor; 2]> {
        Ok([self.sums.get(0)?, self.sums.get(1)?])
    }
}
