//! Decode attention: one row of a sequence, or one row per branch.

use std::ops::Range;

use candle_core::{CudaDevice, Result, Tensor};

use super::operands::{self, MODULE, Operand, int, pointer, rule, shared_bytes};
use super::rows::Pieces;
use crate::attention::call::{Attended, Call};
use crate::attention::{SPLIT_K, Site};
use crate::fused::launch::{self, Argument, Grid, Pointer, suffix, typed};
use crate::transfer;

/// Head widths of the compiled kernels; narrower heads use the next wider.
const WIDTHS: [usize; 3] = [64, 128, 256];

/// Keys per block for a width. Small blocks give more thread blocks concurrent memory reads.
fn block_keys(width: usize) -> usize {
    if width > 64 { 32 } else { 64 }
}

const JOINING: u32 = 256;

struct Stretch<'a> {
    k: &'a Tensor,
    v: &'a Tensor,
    first: usize,
    rows: Range<usize>,
    position: Position,
    /// Split-K parts: index of the first in the sequence, count, and output index.
    parts: (usize, usize, usize),
}

enum Position {
    /// The same for all rows, or so far ahead that all see the same keys.
    One(usize),
    /// One per row, u32.
    Each(Tensor),
}

pub fn decode(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    site: &Site,
    borders: Option<&[usize]>,
) -> Result<(Tensor, Option<Tensor>)> {
    let first_part = site.visible(site.offset).start / SPLIT_K;
    let parts = (site.offset + 1).div_ceil(SPLIT_K) - first_part;
    let (first, position) = (site.first_key, Position::One(site.offset));
    let stretch = Stretch { k, v, first, rows: 0..1, position, parts: (first_part, parts, 0) };
    let rows = DecodeRows {
        q,
        site,
        positions: &[site.offset],
        first_key: first,
        first_part,
        parts,
        width: width(q)?,
    };
    let (out, mut sums) = rows.attend(&[stretch], &[borders], None)?;
    Ok((out, sums.pop().flatten()))
}

/// Attention of one row per tail behind a prefix, without hidden keys.
pub fn branches(
    q: &Tensor,
    (k, v): (&Tensor, &Tensor),
    tails: &[(&Tensor, &Tensor)],
    Call { site, positions, borders, .. }: &Call<'_>,
) -> Result<Attended> {
    let base = site.offset;
    let first_seen = positions.iter().map(|&position| site.visible(position).start).min().unwrap_or(0);
    let last = positions.iter().copied().max().unwrap_or(0);
    let mut stretches = Vec::with_capacity(1 + tails.len());
    let mut before = 0;
    if first_seen < base {
        let first_part = first_seen / SPLIT_K;
        before = base.div_ceil(SPLIT_K) - first_part;
        let position = match site.window {
            None => Position::One(last),
            Some(_) => {
                let positions: Vec<u32> = positions.iter().map(|position| *position as u32).collect();
                Position::Each(transfer::upload(positions, tails.len(), q.device())?)
            }
        };
        let (first, rows) = (site.first_key, 0..tails.len());
        stretches.push(Stretch { k, v, first, rows, position, parts: (first_part, before, 0) });
    }
    // The same number of parts per tail, so that all are written.
    let own_part = base / SPLIT_K;
    let own = last / SPLIT_K + 1 - own_part;
    for (row, &(k, v)) in tails.iter().enumerate() {
        let position = Position::One(positions[row]);
        let parts = (own_part, own, before);
        stretches.push(Stretch { k, v, first: base, rows: row..row + 1, position, parts });
    }
    let (first_part, first_key) =
        if before > 0 { (first_seen / SPLIT_K, site.first_key) } else { (own_part, base) };
    let parts = before + own;
    let rows = DecodeRows { q, site, positions, first_key, first_part, parts, width: width(q)? };
    let asked: Vec<Option<&[usize]>> = match borders.as_slice() {
        [] => vec![None; tails.len()],
        borders => borders.iter().map(Option::as_deref).collect(),
    };
    rows.attend(&stretches, &asked, Some(base))
}

fn width(q: &Tensor) -> Result<usize> {
    operands::width(q.dim(2)?, &WIDTHS)
}

struct DecodeRows<'a> {
    /// (rows, heads, d)
    q: &'a Tensor,
    site: &'a Site,
    positions: &'a [usize],
    /// Position of the first key held.
    first_key: usize,
    first_part: usize,
    parts: usize,
    width: usize,
}

/// Kernel outputs in f32, per part or piece, row and head.
struct Written {
    /// (parts, rows, heads, d)
    sums: Tensor,
    /// (parts, rows, heads, 2)
    ends: Tensor,
    /// (pieces, rows, heads, 2), if requested.
    pieces: Option<Tensor>,
}

impl DecodeRows<'_> {
    /// Attention output, and segment sums of the rows in `asked`. `apart`: the border between two runs of keys.
    fn attend(
        &self,
        stretches: &[Stretch<'_>],
        asked: &[Option<&[usize]>],
        apart: Option<usize>,
    ) -> Result<(Tensor, Vec<Option<Tensor>>)> {
        let device = self.q.device().as_cuda_device()?;
        let (rows, heads, d) = self.q.dims3()?;
        let cuts = asked.iter().any(Option::is_some).then(|| Cuts::of(self, asked, apart));
        // SAFETY: the stretches together write every part of every row and every piece that the row sees.
        let written = unsafe {
            Written {
                sums: launch::unwritten::<f32>(device, (self.parts, rows, heads, d))?,
                ends: launch::unwritten::<f32>(device, (self.parts, rows, heads, 2))?,
                pieces: match &cuts {
                    Some(cuts) => Some(launch::unwritten::<f32>(device, (cuts.pieces(), rows, heads, 2))?),
                    None => None,
                },
            }
        };
        // Tensors cannot be empty, and the kernels take a pointer as the request.
        let borders = match &cuts {
            Some(cuts) => {
                let borders =
                    cuts.borders.iter().chain([&usize::MAX]).map(|b| u32::try_from(*b).unwrap_or(u32::MAX));
                Some(transfer::upload(borders.collect::<Vec<_>>(), cuts.borders.len() + 1, self.q.device())?)
            }
            None => None,
        };
        for stretch in stretches {
            self.split(stretch, &written, borders.as_ref().zip(cuts.as_ref()), device)?;
        }
        let out = self.join(&written, device)?;
        let sums = asked.iter().enumerate().map(|(row, borders)| match (borders, &cuts, &written.pieces) {
            (Some(borders), Some(cuts), Some(pieces)) => self.recorded(row, borders, cuts, pieces).map(Some),
            _ => Ok(None),
        });
        Ok((out, sums.collect::<Result<_>>()?))
    }

    fn split(
        &self,
        stretch: &Stretch<'_>,
        written: &Written,
        borders: Option<(&Tensor, &Cuts)>,
        device: &CudaDevice,
    ) -> Result<()> {
        let (rows, heads, d) = self.q.dims3()?;
        let (kv_heads, keys, _) = stretch.k.dims3()?;
        let (group, own) = (heads / kv_heads, stretch.rows.len());
        let q = Operand::new(&self.q.narrow(0, stretch.rows.start, own)?, false, device)?;
        let (k, v) = (Operand::new(stretch.k, true, device)?, Operand::new(stretch.v, true, device)?);
        let wide = d.is_multiple_of(8) && [&q, &k, &v].iter().all(|x| x.is_wide());
        let (positions, position) = match &stretch.position {
            Position::One(position) => (Pointer::NOTHING, *position),
            Position::Each(positions) => (Pointer::to::<u32>(positions, device)?, 0),
        };
        let mut arguments = Vec::from(q.by_both());
        arguments.extend(k.by_first());
        arguments.extend(v.by_first());
        arguments.extend([d, group, own].map(int));
        arguments.push(positions.into());
        let (first_part, parts, slot) = stretch.parts;
        arguments.extend([position, stretch.first, keys, first_part].map(int));
        arguments.extend(rule(self.site));
        arguments.extend([wide.into(), slot, stretch.rows.start, rows].map(int));
        let written_to = [&written.sums, &written.ends].map(|x| Pointer::to::<f32>(x, device));
        for pointer in written_to {
            arguments.push(pointer?.into());
        }
        let (at, count, first_block) = match borders {
            Some((at, cuts)) => (Pointer::to::<u32>(at, device)?, cuts.borders.len(), cuts.first_block),
            None => (Pointer::NOTHING, 0, 0),
        };
        arguments.push(at.into());
        arguments.extend([count, first_block].map(int));
        let pieces =
            written.pieces.as_ref().map_or(Ok(Pointer::NOTHING), |x| Pointer::to::<f32>(x, device))?;
        arguments.push(pieces.into());
        let warps = (own * group).div_ceil(16).next_power_of_two().min(4);
        let blocks = [parts, (own * group).div_ceil(16 * warps), kv_heads];
        let threads = 32 * warps as u32;
        let name = format!("attention_split_{}_{}", suffix(self.q.dtype())?, self.width);
        let queries = if self.width > 128 { 16 * warps } else { 0 };
        let grid =
            Grid { blocks, threads, shared: shared_bytes(self.width, block_keys(self.width), queries) };
        // SAFETY: rows and parts are within the outputs, there are as many pieces as cuts make, and the strides are the tensors'.
        unsafe { launch::launch(device, &MODULE, &name, &grid, &arguments) }
    }

    fn join(&self, written: &Written, device: &CudaDevice) -> Result<Tensor> {
        let (rows, heads, d) = self.q.dims3()?;
        // SAFETY: the kernel writes every row.
        let out = typed!(self.q.dtype(), T => unsafe { launch::unwritten::<T>(device, (rows, heads, d))? });
        let from = [Pointer::to::<f32>(&written.sums, device)?, Pointer::to::<f32>(&written.ends, device)?];
        let mut arguments: Vec<Argument> = from.map(Into::into).into();
        arguments.extend([self.parts, self.first_part, d, heads].map(int));
        arguments.push(operands::sinks(self.site.sinks.as_ref(), device)?.into());
        arguments.push(pointer(&out, device)?.into());
        let name = format!("attention_join_{}", suffix(self.q.dtype())?);
        let grid = Grid { blocks: [rows * heads, 1, 1], threads: JOINING, shared: 0 };
        // SAFETY: one block per row and head; the part count matches.
        unsafe { launch::launch(device, &MODULE, &name, &grid, &arguments)? };
        Ok(out)
    }

    /// Sums of a row's weights over the sinks and segments, f32 (heads, 1 + segments).
    fn recorded(&self, row: usize, borders: &[usize], cuts: &Cuts, pieces: &Tensor) -> Result<Tensor> {
        let (rows, heads, _) = self.q.dims3()?;
        let end = self.positions[row] + 1;
        let firsts = borders.iter().map(|border| cuts.number((*border).min(end), end) as u32).collect();
        let pieces = Pieces {
            ends: &pieces.narrow(1, row, 1)?,
            lie: [1, rows * heads],
            heads,
            pieces: cuts.number(end, end),
            // Scores are exponents of base 2.
            unit: std::f32::consts::LN_2,
        };
        pieces.shares(firsts, self.site.sinks.as_ref())
    }
}

/// Piece boundaries: kernel block starts and segment borders.
struct Cuts {
    /// Ascending, after the first key and before the end.
    borders: Vec<usize>,
    start: usize,
    first_block: usize,
    end: usize,
    block: usize,
}

impl Cuts {
    fn of(rows: &DecodeRows<'_>, asked: &[Option<&[usize]>], apart: Option<usize>) -> Self {
        let block = block_keys(rows.width);
        let start = (rows.first_part * SPLIT_K).max(rows.first_key);
        let end = rows.positions.iter().copied().max().unwrap_or(0) + 1;
        let within = |border: &usize| start < *border && *border < end;
        let all = asked.iter().flatten().flat_map(|borders| borders.iter().copied()).chain(apart);
        let mut borders: Vec<usize> = all.filter(within).collect();
        borders.sort_unstable();
        borders.dedup();
        Cuts { borders, start, first_block: start / block, end, block }
    }

    /// Index of the piece starting at `border`; for `end`, one past the last. Must match `attention.cu`.
    fn number(&self, border: usize, end: usize) -> usize {
        if border >= end {
            return self.begun(end - 1) + 1;
        }
        if border <= self.start { 0 } else { self.begun(border) }
    }

    /// Index of the last piece starting at or before a key.
    fn begun(&self, key: usize) -> usize {
        key / self.block - self.first_block + self.borders.partition_point(|border| *border <= key)
    }

    fn pieces(&self) -> usize {
        self.number(self.end, self.end)
    }
}
