//! What chosen rows pay to segments of keys.

use std::ops::Range;

use candle_core::{CudaDevice, Result, Tensor};

use super::super::super::{Sinks, Site};
use super::operands::{self, Operand, int};
use crate::fused::launch::Argument::{Float, Long};
use crate::fused::launch::{self, Argument, Grid, Module, Pointer, suffix};
use crate::transfer;

const MODULE: Module = Module { name: "palimpsest-rows", ptx: include_str!("rows.ptx") };
/// Threads of every kernel.
const THREADS: u32 = 256;
/// Keys of a piece at most.
const PIECE: usize = 1024;
/// Rows at a time: what is known of each and every piece is held.
const ROWS: usize = 512;
/// Rows of a block of the kernels for many rows and for few.
const MANY: usize = 64;
const FEW: usize = 8;

/// See [`super::super::segment_sums`]; f32, and nothing comes back from the device. Positions are counted from the first key.
pub fn segment_sums(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: Range<usize>,
    bounds: &[usize],
) -> Result<Tensor> {
    let device = q.device().as_cuda_device()?;
    let k = Operand::new(k, true, device)?;
    let mut all: Option<Tensor> = None;
    for start in rows.clone().step_by(ROWS) {
        let rows = start..(start + ROWS).min(rows.end);
        let site = Site { offset: site.offset + rows.start, ..site.clone() };
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
    let firsts = transfer::upload(firsts.map(|n| n as u32).collect(), bounds.len(), q.device());
    let firsts = if bounds.is_empty() { None } else { Some(firsts?) };
    let cuts = transfer::upload(cuts.iter().map(|cut| *cut as u32).collect(), pieces + 1, q.device())?;
    let name = format!("rows_{}_{}", if r * group <= FEW { "few" } else { "many" }, suffix(q.dtype())?);
    let of_block = if r * group <= FEW { FEW } else { MANY };
    let blocks = [pieces, (r * group).div_ceil(of_block), kv_heads];
    // SAFETY: the kernel writes each row's part of each piece.
    let ends = unsafe { launch::unwritten::<f32>(device, (heads, r, pieces, 2))? };
    let q = Operand::new(q, false, device)?;
    let mut arguments = Vec::from(q.by_both());
    arguments.extend(k.by_first());
    arguments.extend([d, group, r, site.offset, site.window.unwrap_or(0)].map(int));
    arguments.extend([Float(site.scale), Float(site.softcap.unwrap_or(0.0))]);
    arguments.push(Pointer::to::<u32>(&cuts, device)?.into());
    arguments.push(Pointer::to::<f32>(&ends, device)?.into());
    // SAFETY: all that the rows see is among the keys, there are as many cuts as pieces and one, and strides are the tensors'.
    unsafe {
        launch::launch(device, &MODULE, &name, &Grid { blocks, threads: THREADS, shared: 0 }, &arguments)?
    };
    let pieces = Pieces { ends: &ends, lie: [r * pieces, pieces, 1], heads, rows: r, pieces, unit: 1.0 };
    pieces.shares(firsts.as_ref(), site.sinks.as_ref(), device)
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

/// How rows stand with pieces of their keys.
pub struct Pieces<'a> {
    /// The greatest score and the sum of weights relative to it, beside each other, f32.
    pub ends: &'a Tensor,
    /// How far apart heads, rows and pieces lie.
    pub lie: [usize; 3],
    pub heads: usize,
    pub rows: usize,
    pub pieces: usize,
    /// What 1 of the greatest score is in powers of e.
    pub unit: f32,
}

impl Pieces<'_> {
    /// What the rows pay to the sinks and to each segment, f32 (heads, 1 + segments): segment s is the pieces
    /// `firsts[s]..firsts[s + 1]`.
    pub fn shares(
        &self,
        firsts: Option<&Tensor>,
        sinks: Option<&Sinks>,
        device: &CudaDevice,
    ) -> Result<Tensor> {
        let (rows, heads) = (self.rows, self.heads);
        let segments = firsts.map_or(1, |firsts| firsts.elem_count()).saturating_sub(1);
        let sinks: Argument = operands::sinks(sinks, device)?.into();
        let ends: Argument = Pointer::strided::<f32>(self.ends, device)?.into();
        let lie = self.lie.map(|n| Long(n as i64));
        let firsts = match firsts {
            Some(firsts) => Pointer::to::<u32>(firsts, device)?,
            None => Pointer::NOTHING,
        };
        // SAFETY: both kernels write all of their results.
        let (whole, out) = unsafe {
            (
                launch::unwritten::<f32>(device, (heads, rows, 2))?,
                launch::unwritten::<f32>(device, (heads, 1 + segments))?,
            )
        };
        let whole_at: Argument = Pointer::to::<f32>(&whole, device)?.into();
        let mut arguments = vec![ends];
        arguments.extend(lie);
        arguments.extend([int(self.pieces), Float(self.unit), sinks, whole_at]);
        let grid = Grid { blocks: [rows, heads, 1], threads: THREADS, shared: 0 };
        // SAFETY: a block a row and head, which have as many pieces.
        unsafe { launch::launch(device, &MODULE, "rows_whole", &grid, &arguments)? };
        let mut arguments = vec![ends];
        arguments.extend(lie);
        arguments.extend([int(rows), Float(self.unit), firsts.into(), whole_at, sinks]);
        arguments.push(Pointer::to::<f32>(&out, device)?.into());
        let grid = Grid { blocks: [1 + segments, heads, 1], threads: THREADS, shared: 0 };
        // SAFETY: a block a segment and head, and one more; `firsts` names pieces.
        unsafe { launch::launch(device, &MODULE, "rows_shares", &grid, &arguments)? };
        Ok(out)
    }
}
