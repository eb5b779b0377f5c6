//! Segment sums of chosen rows' weights, in f32.

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
    Module { name: "palimpsest-rows", image: include_bytes!(concat!(env!("OUT_DIR"), "/rows.image")) };
const THREADS: u32 = 256;
/// Maximum keys per piece.
const PIECE: usize = 1024;
/// Rows per launch; bounds the memory of per-row, per-piece state.
const ROWS: usize = 512;
/// Rows per block of the many-row and the few-row kernels.
const MANY: usize = 64;
const FEW: usize = 8;

/// See [`super::super::Kernel::segment_sums`]. No device-to-host transfer. Positions are relative to the first key.
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

/// Queries: (r, heads, d).
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
    // SAFETY: the kernel writes each row's state per piece, each block's partial sums, and each sum.
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
    // SAFETY: the keys include all visible ones, there is one more cut than pieces, strides are the tensors', and the counters are 0:
    // a device has one stream, and each launch resets them.
    unsafe { launch::launch(device, &MODULE, &name, &grid, &arguments)? };
    Ok(out)
}

/// At least `count` counters that are 0 before and after a launch. Cached per device, so that no launch has to clear them.
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

/// Pieces per segment: segment s is `firsts[s]..firsts[s + 1]`.
struct Segments {
    /// `None` without segments, since tensors cannot be empty.
    firsts: Option<Tensor>,
    count: usize,
}

impl Segments {
    fn of(firsts: Vec<u32>, like: &Tensor) -> Result<Self> {
        let count = firsts.len().saturating_sub(1);
        let firsts = match firsts.len() {
            0 => None,
            n => Some(transfer::upload(firsts, n, like.device())?),
        };
        Ok(Segments { firsts, count })
    }

    fn arguments(&self, device: &CudaDevice) -> Result<[Argument; 2]> {
        let firsts = match &self.firsts {
            Some(firsts) => Pointer::to::<u32>(firsts, device)?,
            None => Pointer::NOTHING,
        };
        Ok([firsts.into(), int(self.count)])
    }
}

fn cuts(seen: &Range<usize>, bounds: &[usize]) -> Vec<usize> {
    let within = |border: &usize| seen.start < *border && *border < seen.end;
    let even = (seen.start / PIECE + 1..).map(|n| n * PIECE).take_while(|border| *border < seen.end);
    let mut cuts: Vec<usize> = bounds.iter().copied().filter(within).chain(even).collect();
    cuts.extend([seen.start, seen.end]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// Softmax state of one row per head over pieces of its keys, from another kernel.
pub struct Pieces<'a> {
    /// Interleaved maximum and sum of weights relative to it, f32.
    pub ends: &'a Tensor,
    /// Strides of heads and pieces.
    pub lie: [usize; 2],
    pub heads: usize,
    pub pieces: usize,
    /// Natural-log units per unit of score.
    pub unit: f32,
}

impl Pieces<'_> {
    /// Weight on the sinks and on each segment, f32 (heads, 1 + segments): segment s is the pieces `firsts[s]..firsts[s + 1]`.
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
        // SAFETY: one block per head with `pieces` pieces; `firsts` indexes pieces.
        unsafe { launch::launch(device, &MODULE, "rows_shares", &grid, &arguments)? };
        Ok(out)
    }
}
