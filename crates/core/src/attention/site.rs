//! The settings of one call to attention: position, scale, window, soft cap, sinks, holes.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use super::AttentionKernel;
use crate::transfer;

/// Keys of a split-K block in decoding: the keys of few queries are cut into blocks at multiples of this many, counted from the
/// first key, each block is summed by itself, and the blocks are joined. What is copied out of a sequence at such a border is
/// summed as in the sequence.
pub const SPLIT_K: usize = 256;

/// Everything about one call to attention, other than its tensors.
#[derive(Debug, Clone)]
pub struct Site {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the first query row.
    pub offset: usize,
    /// Position of the first key: above 0 where a layer with a window keeps only what can still be seen.
    pub first_key: usize,
    /// The factor of the scores before the softmax.
    pub scale: f32,
    /// Sliding window: a query at position p sees keys p - window + 1 ..= p.
    pub window: Option<usize>,
    /// Soft cap c: a scaled score s becomes c * tanh(s / c).
    pub softcap: Option<f32>,
    /// Attention sinks, where a layer has them.
    pub sinks: Option<Sinks>,
    /// Keys that rows are kept from seeing although causality and window would show them.
    pub holes: Holes,
    /// The choice of kernels on CUDA.
    pub kernel: AttentionKernel,
}

/// Keys hidden from rows: none, unless an intervention asks for some. A clone shares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holes(Arc<[Hole]>);

/// Keys hidden from some rows, both as positions in the sequence. An end of `usize::MAX` is none: tokens still to be generated are
/// among the rows too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// From whom.
    pub rows: Range<usize>,
    /// Which.
    pub keys: Range<usize>,
}

impl Holes {
    /// These.
    pub fn new(holes: Vec<Hole>) -> Self {
        Holes(holes.into())
    }

    /// True if nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = &Hole> {
        self.0.iter()
    }

    /// The first row from which anything is hidden.
    pub fn first_row(&self) -> Option<usize> {
        self.0.iter().map(|hole| hole.rows.start).min()
    }

    /// The keys hidden from rows before `end`.
    pub(super) fn before_row(&self, end: usize) -> Self {
        let before = self.0.iter().filter(|hole| hole.rows.start < end);
        Holes(
            before
                .map(|hole| Hole { rows: hole.rows.start..hole.rows.end.min(end), ..hole.clone() })
                .collect(),
        )
    }

    /// The keys that are hidden from the row at `position`: ascending ranges with keys between them.
    pub fn from_row(&self, position: usize) -> Vec<Range<usize>> {
        let of_row = self.0.iter().filter(|hole| hole.rows.contains(&position) && !hole.keys.is_empty());
        let mut keys: Vec<Range<usize>> = of_row.map(|hole| hole.keys.clone()).collect();
        keys.sort_unstable_by_key(|keys| keys.start);
        keys.dedup_by(|next, last| {
            let joined = next.start <= last.end;
            if joined {
                last.end = last.end.max(next.end);
            }
            joined
        });
        keys
    }

    /// The same with positions counted from `first`: what lies before it is gone.
    fn counted_from(&self, first: usize) -> Self {
        let counted =
            |range: &Range<usize>| range.start.saturating_sub(first)..range.end.saturating_sub(first);
        match first {
            0 => self.clone(),
            _ => Holes(
                self.0.iter().map(|h| Hole { rows: counted(&h.rows), keys: counted(&h.keys) }).collect(),
            ),
        }
    }

    /// Refuses any, for `layer`: what has no way to leave keys out must not be asked to, rather than show them.
    pub(crate) fn refuse(&self, layer: usize, why: &str) -> Result<()> {
        match &*self.0 {
            [] => Ok(()),
            [Hole { rows, keys }, ..] => candle_core::bail!(
                "attention: keys {}..{} cannot be hidden from rows {}..{} at layer {layer}: {why}",
                keys.start,
                keys.end,
                rows.start,
                rows.end
            ),
        }
    }
}

/// The keys hidden from each row of a call: no row at all where nothing is hidden from any, which is all that calls without an
/// intervention ask.
#[derive(Debug, Clone, Default)]
pub(super) struct Hidden(Vec<Vec<Range<usize>>>);

impl Hidden {
    /// Of rows at these positions, each with what is hidden.
    pub fn of<'a>(rows: impl Iterator<Item = (&'a Holes, usize)>) -> Self {
        let rows: Vec<_> = rows.map(|(holes, position)| holes.from_row(position)).collect();
        if rows.iter().all(Vec::is_empty) { Hidden::default() } else { Hidden(rows) }
    }

    /// Of the rows at `positions` of one site.
    pub fn at(site: &Site, positions: &[usize]) -> Self {
        match site.holes.is_empty() {
            true => Hidden::default(),
            false => Hidden::of(positions.iter().map(|&position| (&site.holes, position))),
        }
    }

    /// True if nothing is hidden from any row.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys hidden from row `r`: ascending ranges with keys between them.
    pub fn row(&self, r: usize) -> &[Range<usize>] {
        self.0.get(r).map_or(&[], Vec::as_slice)
    }

    /// By row; no row where nothing is hidden.
    pub fn rows(&self) -> &[Vec<Range<usize>>] {
        &self.0
    }

    /// Some rows by themselves.
    pub fn of_rows(&self, rows: Range<usize>) -> Self {
        let rows = self.0.get(rows).unwrap_or_default();
        if rows.iter().all(Vec::is_empty) { Hidden::default() } else { Hidden(rows.to_vec()) }
    }

    /// The same keys counted from `first`; those before it are left out.
    pub fn counted_from(&self, first: usize) -> Self {
        let of_row = |ranges: &Vec<Range<usize>>| -> Vec<_> {
            let later = ranges.iter().filter(|range| range.end > first);
            later.map(|range| range.start.saturating_sub(first)..range.end - first).collect()
        };
        let rows: Vec<_> = self.0.iter().map(of_row).collect();
        if rows.iter().all(Vec::is_empty) { Hidden::default() } else { Hidden(rows) }
    }
}

/// True if ascending ranges with keys between them hide all of `keys`.
pub(super) fn hides_all(hidden: &[Range<usize>], keys: &Range<usize>) -> bool {
    hidden.iter().any(|range| range.start <= keys.start && keys.end <= range.end)
}

/// True if they hide any of `keys`.
pub(super) fn hides_some(hidden: &[Range<usize>], keys: &Range<usize>) -> bool {
    hidden.iter().any(|range| range.start < keys.end && keys.start < range.end)
}

/// Attention sinks: one logit a head that joins the softmax's denominator and has no value. Held on the host and on the layer's
/// device, so that nothing is sent when they are asked for; a clone shares both.
#[derive(Debug, Clone)]
pub struct Sinks {
    logits: Arc<[f32]>,
    /// (heads, 1), f32.
    tensor: Tensor,
}

impl Sinks {
    /// Sinks for tensors on `device`, a logit a head.
    pub fn new(logits: Vec<f32>, device: &Device) -> Result<Self> {
        let tensor = transfer::upload(logits.clone(), (logits.len(), 1), device)?;
        Ok(Sinks { logits: logits.into(), tensor })
    }

    /// The logits, one a head.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The logits on the device, f32 (heads, 1).
    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Site {
    /// The half-open range of key positions that the query at `position` sees.
    pub fn visible(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Borders of segments counted from the first key. Those before it move onto it: what lies there is outside every window,
    /// and gets nothing.
    pub(super) fn borders(&self, borders: &[usize]) -> Vec<usize> {
        borders.iter().map(|border| border.saturating_sub(self.first_key)).collect()
    }

    /// The same site with positions counted from the first key: causality and windows depend on distances alone.
    pub(super) fn relative(&self) -> Self {
        let holes = self.holes.counted_from(self.first_key);
        Site { offset: self.offset - self.first_key, first_key: 0, holes, ..self.clone() }
    }

    /// Refuses the row at `position` if all that it sees is hidden from it, which `hidden` is, and there is no sink: a softmax of
    /// nothing.
    pub(super) fn check_row(&self, position: usize, hidden: &[Range<usize>]) -> Result<()> {
        let sees = self.visible(position);
        if self.sinks.is_some() || !hides_all(hidden, &sees) {
            return Ok(());
        }
        candle_core::bail!(
            "attention: all keys that row {position} sees at layer {} ({}..{}) are hidden from it; leave it some, or leave the \
             row or the layer out",
            self.layer,
            sees.start,
            sees.end
        )
    }
}
