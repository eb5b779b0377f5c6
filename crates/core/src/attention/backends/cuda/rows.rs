//! Sums of chosen rows' weights over segments of keys, in f32.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, DType, Device, Result, Tensor};

use super::super::super::{Sinks, Site};
use super::super::kernel::RowSums;
use super::operands::{self, Operand, int};
use crate::fused::launch::Argument::{Float, Long};
use crate::fused::launch::{self, Argument, Grid, Module, Pointer};
use crate::transfer;

const MODULE: Module =
    Module { name: "palimpsest-rows", ptx: include_str!(concat!(env!("OUT_DIR"), "/rows.ptx")) };
/// Threads of every kernel.
const THREADS: u32 = 256;
/// Keys of a piece at most.
const PIECE: usize = 1024;
/// Rows at a time: what is known of each and every piece is held.
const ROWS: usize = 512;
/// Rows of a block of the kernels for many rows and for few.
const MANY: usize = 64;
const FEW: usize = 8;

/// See [`super::super::Kernel::segment_sums`]; nothing comes back from the device. Positions are counted from the first key.
pub fn segment_sums(q: &Tensor, k: &Tensor, RowSums { site, rows, bounds }: &RowSums<'_>) -> Result<Tensor> {
    let device = q.device().as_cuda_device()?;
    let k = Operand::new(k, true, device)?;
    let mut all: Option<Tensor> = None;
    for start in rows.clone().step_by(ROWS) {
        let rows = start..(start + ROWS).min(rows.end);
        let site = Site { offset: site.offset + rows.start, ..(*site).clone() };
        let part = of_rows(&q.narrow(0, rows.start, rows.len())?, &k, &site, bounds)?;
        all = Some(match all {
            Some(all) => (all + part)?,
            None => part,
        });
    }
    all.ok_or_else(|| candle_core::Error::Msg("sums over no rows".to_owned()))
}

/// Of queries (r, heads, d) at `site`.
fn of_rows(q: &Tensor, k: &Operand, site: &Site, bounds: &[usize]) -> Result<Tensor> {
    let device = q.device().as_cuda_device()?;
    let (r, heads, d) = q.dims3()?;
    let kv_heads = k.heads();
    let group = heads / kv_heads;
    let seen = site.visible(site.offset).start..site.offset + r;
    let cuts = cuts(&seen, bounds);
    let pieces = cuts.len() - 1;
    let firsts = bounds.iter().map(|border| cuts.partition_point(|cut| cut < border).min(pieces));
    let segments = Segments::of(firsts.map(|n| n as u32).collect(), q)?;
    let cuts = transfer::upload(cuts.iter().map(|cut| *cut as u32).collect(), pieces + 1, q.device())?;
    let (kind, of_block) = if r * group <= FEW { ("few", FEW) } else { ("many", MANY) };
    let row_blocks = (r * group).div_ceil(of_block);
    // SAFETY: the kernel writes each row's part of each piece, each block's of each sum, and each sum.
    let (ends, parts, out) = unsafe {
        (
            launch::unwritten::<f32>(device, (heads, r, pieces, 2))?,
            launch::unwritten::<f32>(device, (heads, 1 + segments.count, row_blocks))?,
            launch::unwritten::<f32>(device, (heads, 1 + segments.count))?,
        )
    };
    let counters = counters(kv_heads * (row_blocks + 1), device)?;
    let q = Operand::new(q, false, device)?;
    let mut arguments = Vec::from(q.by_both());
    arguments.extend(k.by_first());
    arguments.extend([d, group, r, site.offset, site.window.unwrap_or(0)].map(int));
    arguments.extend([Float(site.scale), Float(site.softcap.unwrap_or(0.0))]);
    arguments.push(Pointer::to::<u32>(&cuts, device)?.into());
    arguments.push(Pointer::to::<f32>(&ends, device)?.into());
    arguments.push(operands::sinks(site.sinks.as_ref(), device)?.into());
    arguments.extend(segments.arguments(device)?);
    arguments.push(Pointer::to::<f32>(&parts, device)?.into());
    arguments.push(Pointer::to::<u32>(&counters, device)?.into());
    arguments.push(Pointer::to::<f32>(&out, device)?.into());
    let name = format!("rows_{kind}");
    let grid = Grid { blocks: [pieces, row_blocks, kv_heads], threads: THREADS, shared: 0 };
    // SAFETY: all that the rows see is among the keys, there are as many cuts as pieces and one, strides are the tensors', and
    // the counters are 0: whatever used them before is over, since a card has one stream, and left them so.
    unsafe { launch::launch(device, &MODULE, &name, &grid, &arguments)? };
    Ok(out)
}

/// At least so many counters, which are 0 before a launch and after it. Kept for the process, so that nothing need be filled for
/// a launch.
fn counters(count: usize, device: &CudaDevice) -> Result<Tensor> {
    static KEPT: Mutex<Option<HashMap<DeviceId, Tensor>>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(counters) = kept.get(&device.id()).filter(|counters| counters.elem_count() >= count) {
        return Ok(counters.clone());
    }
    let counters = Tensor::zeros(count.next_power_of_two(), DType::U32, &Device::Cuda(device.clone()))?;
    kept.insert(device.id(), counters.clone());
    Ok(counters)
}

/// Which pieces each segment is: segment s is `firsts[s]..firsts[s + 1]`.
struct Segments {
    /// None where there are no segments, since a tensor has no place for nothing.
    firsts: Option<Tensor>,
    count: usize,
}

impl Segments {
    /// On the device of a tensor.
    fn of(firsts: Vec<u32>, like: &Tensor) -> Result<Self> {
        let count = firsts.len().saturating_sub(1);
        let firsts = match firsts.len() {
            0 => None,
            n => Some(transfer::upload(firsts, n, like.device())?),
        };
        Ok(Segments { firsts, count })
    }

    /// As kernels are told.
    fn arguments(&self, device: &CudaDevice) -> Result<[Argument; 2]> {
        let firsts = match &self.firsts {
            Some(firsts) => Pointer::to::<u32>(firsts, device)?,
            None => Pointer::NOTHING,
        };
        Ok([firsts.into(), int(self.count)])
    }
}

/// The borders of pieces of keys that rows see.
fn cuts(seen: &Range<usize>, bounds: &[usize]) -> Vec<usize> {
    let within = |border: &usize| seen.start < *border && *border < seen.end;
    let even = (seen.start / PIECE + 1..).map(|n| n * PIECE).take_while(|border| *border < seen.end);
    let mut cuts: Vec<usize> = bounds.iter().copied().filter(within).chain(even).collect();
    cuts.extend([seen.start, seen.end]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The softmax of one row of each head over pieces of its keys, from another kernel.
pub struct Pieces<'a> {
    /// The greatest score and the sum of weights relative to it, beside each other, f32.
    pub ends: &'a Tensor,
    /// The strides of heads and pieces.
    pub lie: [usize; 2],
    pub heads: usize,
    pub pieces: usize,
    /// 1 of the greatest score in powers of e.
    pub unit: f32,
}

impl Pieces<'_> {
    /// The weight that the row pays to the sinks and to each segment, f32 (heads, 1 + segments): segment s is the pieces
    /// `firsts[s]..firsts[s + 1]`.
    pub fn shares(&self, firsts: Vec<u32>, sinks: Option<&Sinks>) -> Result<Tensor> {
        let device = self.ends.device().as_cuda_device()?;
        let segments = Segments::of(firsts, self.ends)?;
        // SAFETY: the kernel writes all of it.
        let out = unsafe { launch::unwritten::<f32>(device, (self.heads, 1 + segments.count))? };
        let mut arguments: Vec<Argument> = vec![Pointer::strided::<f32>(self.ends, device)?.into()];
        arguments.extend(self.lie.map(|n| Long(n as i64)));
        arguments.extend([int(self.pieces), Float(self.unit)]);
        arguments.push(operands::sinks(sinks, device)?.into());
        arguments.extend(segments.arguments(device)?);
        arguments.push(Pointer::to::<f32>(&out, device)?.into());
        let grid = Grid { blocks: [self.heads, 1, 1], threads: THREADS, shared: 0 };
        // SAFETY: a block a head, which has as many pieces; `firsts` names pieces.
        unsafe { launch::launch(device, &MODULE, "rows_shares", &grid, &arguments)? };
        Ok(out)
    }
}
