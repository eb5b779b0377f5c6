//! Segment sums of chosen rows' weights: half precision on tensor cores, f32 by [`super::rows`].

use candle_core::{DType, Device, Result, Tensor};

use super::super::super::Site;
use super::super::kernel::RowSums;
use super::operands::{self, Operand, int, rule};
use crate::fused::launch::Argument::Long;
use crate::fused::launch::{self, Argument, Grid, Module, Pointer, suffix};
use crate::transfer;

const MODULE: Module =
    Module { name: "palimpsest-masses", image: include_bytes!(concat!(env!("OUT_DIR"), "/masses.image")) };
const THREADS: u32 = 128;
/// Keys per piece, for which each query's maximum and sum are stored: `PIECE` in `masses.cu`.
const PIECE: usize = 1024;
/// Queries are padded to a multiple of this: `BN` in `masses.cu`.
const PASSING: usize = 64;
/// Head widths of the compiled kernels; narrower heads use the next wider.
const WIDTHS: [usize; 3] = [64, 128, 256];

/// See [`super::super::Kernel::segment_sums`]. No device-to-host transfer. Positions are relative to the first key.
pub fn segment_sums(q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
    if q.dtype() == DType::F32 {
        return super::rows::segment_sums(q, k, of);
    }
    let RowSums { site, rows, bounds } = of;
    let device = q.device().as_cuda_device()?;
    let q = q.narrow(0, rows.start, rows.len())?;
    let site = Site { offset: site.offset + rows.start, ..(*site).clone() };
    let ((r, heads, d), dtype) = (q.dims3()?, suffix(q.dtype())?);
    let (q, k) = (Operand::new(&q, false, device)?, Operand::new(k, true, device)?);
    let width = operands::width(d, &WIDTHS)?;
    // Vectors kept in a thread block's registers.
    let of_block = if width > 128 { 64 } else { 128 };
    let wide = d.is_multiple_of(8) && q.is_wide() && k.is_wide();
    let (kv_heads, padded) = (k.heads(), r.next_multiple_of(PASSING));
    let seen = site.visible(site.offset).start..site.offset + r;
    let pieces = seen.start / PIECE..seen.end.div_ceil(PIECE);
    let blocks = seen.start / of_block..seen.end.div_ceil(of_block);
    let (first, columns) = (blocks.start * of_block, blocks.len() * of_block);
    let segments = bounds.len().saturating_sub(1);
    // SAFETY: the kernels write all that is read: each piece's and query's softmax state and totals, every key's column, each sum.
    let (ends, wholes, by_key, out) = unsafe {
        (
            launch::unwritten::<f32>(device, (pieces.len(), heads, padded, 2))?,
            launch::unwritten::<f32>(device, (heads, padded, 2))?,
            launch::unwritten::<f32>(device, (heads, columns))?,
            launch::unwritten::<f32>(device, (heads, 1 + segments))?,
        )
    };
    let borders: Vec<u32> = bounds.iter().map(|border| u32::try_from(*border).unwrap_or(u32::MAX)).collect();
    let borders = match borders.len() {
        0 => None,
        n => Some(transfer::upload(borders, n, &Device::Cuda(device.clone()))?),
    };
    let floats = |x: &Tensor| Ok::<Argument, candle_core::Error>(Pointer::to::<f32>(x, device)?.into());
    let sinks: Argument = operands::sinks(site.sinks.as_ref(), device)?.into();
    let whole = floats(&wholes)?;

    let mut operands = Vec::from(q.by_both());
    operands.extend(k.by_first());
    operands.extend([d, heads / kv_heads, r, site.offset].map(int));
    operands.extend(rule(&site));
    operands.push(int(wide.into()));
    let shared = (2 * PASSING * 2 * (width + 8)) as u32;
    // SAFETY (all four): the keys reach the last visible one, the strides are the tensors', and the outputs are large enough.
    let run = |name: &str, blocks: [usize; 3], shared: u32, arguments: &[Argument]| unsafe {
        launch::launch(device, &MODULE, name, &Grid { blocks, threads: THREADS, shared }, arguments)
    };
    let with = |more: &[Argument]| [operands.as_slice(), more].concat();

    let name = format!("masses_ends_{dtype}_{width}");
    let grid = [pieces.len(), r.div_ceil(of_block), heads];
    run(&name, grid, shared, &with(&[int(pieces.start), int(padded), floats(&ends)?]))?;
    let arguments = [floats(&ends)?, int(pieces.len()), int(r), int(padded), sinks, whole];
    run("masses_join", [padded.div_ceil(THREADS as usize), heads, 1], 0, &arguments)?;
    let name = format!("masses_columns_{dtype}_{width}");
    let more = [int(blocks.start), int(seen.end), int(padded), whole, floats(&by_key)?, Long(columns as i64)];
    run(&name, [blocks.len(), kv_heads, 1], shared, &with(&more))?;
    let borders = borders.as_ref().map_or(Ok(Pointer::NOTHING), |x| Pointer::to::<u32>(x, device))?.into();
    let arguments = [
        floats(&by_key)?,
        Long(columns as i64),
        int(first),
        int(seen.end),
        borders,
        sinks,
        whole,
        int(r),
        int(padded),
        floats(&out)?,
    ];
    run("masses_sums", [1 + segments, heads, 1], 0, &arguments)?;
    Ok(out)
}
