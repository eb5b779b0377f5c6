//! Settings of one attention call: position, scale, window, soft cap, sinks, holes.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use super::unchosen::unchosen;
use super::{AttentionKernel, Kept, Unchosen};
use crate::transfer;

/// Split-K block size of decode. Keys are split at multiples of it, counted from the first key, and the partial sums are merged. A prefix
/// that is a multiple of it keeps branches bit-equal to the full sequence.
pub const SPLIT_K: usize = 256;

/// Settings of one attention call.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the first query row.
    pub offset: usize,
    /// Position of the first key; above 0 where a sliding-window layer has dropped older keys.
    pub first_key: usize,
    /// Score scale.
    pub scale: f32,
    /// Sliding window: a query at position p sees keys p - window + 1 ..= p.
    pub window: Option<usize>,
    /// Soft cap c: a scaled score s becomes c * tanh(s / c).
    pub softcap: Option<f32>,
    /// Attention sinks, if the layer has them.
    pub sinks: Option<Sinks>,
    /// Keys hidden in addition to the causal and window masks.
    pub holes: Holes,
    /// CUDA kernel choice.
    pub kernel: AttentionKernel,
}

/// Keys hidden from rows by interventions; usually none. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holes {
    holes: Arc<[Hole]>,
    /// Keys that rows of a layer that chooses keys see in addition to its choice.
    shown: Arc<[Hole]>,
    kept: Option<Arc<Kept>>,
    unchosen: Option<Arc<Unchosen>>,
}

/// Keys hidden from some rows, as positions in the sequence. An end of `usize::MAX` is open and includes tokens yet to be generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// Query rows.
    pub rows: Range<usize>,
    /// Hidden keys.
    pub keys: Range<usize>,
}

impl Holes {
    /// Wraps a list of holes.
    pub fn new(holes: Vec<Hole>) -> Self {
        Holes { holes: holes.into(), ..Holes::default() }
    }

    /// The inverse: shows rows of a layer that chooses keys some outside their choice. The cache of a windowed layer must keep all keys
    /// ([`crate::model::Decoder::whole_cache`]).
    pub fn of_shown(shown: Vec<Hole>) -> Self {
        Holes { shown: shown.into(), ..Holes::default() }
    }

    /// Hides what an eviction did not keep.
    pub fn of_kept(kept: Arc<Kept>) -> Self {
        Holes { kept: Some(kept), ..Holes::default() }
    }

    /// The keys that an eviction kept, if there was one. [`super::run`] alone heeds them: kernels see the kept keys only.
    pub fn kept(&self) -> Option<&Arc<Kept>> {
        self.kept.as_ref()
    }

    /// Also hides the keys that an indexer did not choose.
    #[must_use]
    pub fn choosing(self, unchosen: Arc<Unchosen>) -> Self {
        Holes { unchosen: Some(unchosen), ..self }
    }

    /// The keys that an indexer did not choose, where the layer has a choice.
    pub fn unchosen(&self) -> Option<&Unchosen> {
        self.unchosen.as_deref()
    }

    /// The keys that an indexer does not choose for the row at `position`, which chooses the `count` largest of `scores` (one for each key
    /// from position 0 on) among the keys that are not hidden from it, and in addition all that are shown to it.
    pub(crate) fn unchosen_by(&self, scores: &[f32], position: usize, count: usize) -> Vec<Range<usize>> {
        let hidden = merged(keys_of(&self.holes, position).collect());
        unchosen(scores, count, &hidden, keys_of(&self.shown, position))
    }

    /// True if nothing is hidden, nor shown outside a choice.
    pub fn is_empty(&self) -> bool {
        let chooses = self.unchosen().is_some_and(|unchosen| !unchosen.is_empty());
        self.holes.is_empty() && !self.shows() && self.kept.is_none() && !chooses
    }

    /// True if rows see keys outside their window or choice.
    pub(super) fn shows(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Both together.
    pub(super) fn joined(&self, other: &Holes) -> Self {
        let both = |one: &Arc<[Hole]>, other: &Arc<[Hole]>| one.iter().chain(&**other).cloned().collect();
        Holes {
            holes: both(&self.holes, &other.holes),
            shown: both(&self.shown, &other.shown),
            kept: self.kept.clone().or_else(|| other.kept.clone()),
            unchosen: self.unchosen.clone().or_else(|| other.unchosen.clone()),
        }
    }

    /// Iterates over the holes.
    pub fn iter(&self) -> impl Iterator<Item = &Hole> {
        self.holes.iter()
    }

    /// The first row that sees other keys for them.
    pub fn first_row(&self) -> Option<usize> {
        self.iter()
            .chain(&*self.shown)
            .map(|hole| hole.rows.start)
            .chain(self.kept.iter().map(|kept| kept.from))
            .min()
    }

    /// Restricted to rows before `end`.
    pub(super) fn before_row(&self, end: usize) -> Self {
        let before = |holes: &[Hole]| {
            let before = holes.iter().filter(|hole| hole.rows.start < end);
            before
                .map(|hole| Hole { rows: hole.rows.start..hole.rows.end.min(end), ..hole.clone() })
                .collect()
        };
        let (holes, shown) = (before(&self.holes), before(&self.shown));
        let kept = self.kept.clone().filter(|kept| kept.from < end);
        Holes { holes, shown, kept, unchosen: self.unchosen.clone() }
    }

    /// Keys hidden from the row at `position`: ascending, disjoint, non-adjacent ranges.
    pub fn from_row(&self, position: usize) -> Vec<Range<usize>> {
        let unchosen = self.unchosen().map_or(&[][..], |unchosen| unchosen.row(position));
        match self.holes.is_empty() {
            true => unchosen.to_vec(),
            false => merged(keys_of(&self.holes, position).chain(unchosen.iter().cloned()).collect()),
        }
    }

    /// As `from_row`, for a layer of this window that is lifted: without what is shown, the keys before it are hidden, too.
    fn outside(&self, position: usize, window: usize) -> Vec<Range<usize>> {
        let first = (position + 1).saturating_sub(window);
        let mut hidden: Vec<Range<usize>> = keys_of(&self.holes, position).collect();
        let mut from = 0;
        for shown in merged(keys_of(&self.shown, position).collect()) {
            hidden.push(from..shown.start.min(first).max(from));
            from = from.max(shown.end);
        }
        hidden.push(from..first.max(from));
        hidden.retain(|keys| !keys.is_empty());
        merged(hidden)
    }

    /// Relative to `first`; earlier positions are dropped.
    fn counted_from(&self, first: usize) -> Self {
        let counted =
            |range: &Range<usize>| range.start.saturating_sub(first)..range.end.saturating_sub(first);
        match first {
            0 => self.clone(),
            _ => Holes::new(
                self.iter().map(|h| Hole { rows: counted(&h.rows), keys: counted(&h.keys) }).collect(),
            ),
        }
    }
}

fn keys_of(holes: &[Hole], position: usize) -> impl Iterator<Item = Range<usize>> {
    let of_row = holes.iter().filter(move |hole| hole.rows.contains(&position) && !hole.keys.is_empty());
    of_row.map(|hole| hole.keys.clone())
}

/// Ascending, disjoint, non-adjacent ranges.
fn merged(mut keys: Vec<Range<usize>>) -> Vec<Range<usize>> {
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

/// Hidden keys per row of a call; empty if nothing is hidden.
#[derive(Debug, Clone, Default)]
pub(super) struct Hidden(Vec<Vec<Range<usize>>>);

impl Hidden {
    fn new(rows: Vec<Vec<Range<usize>>>) -> Self {
        if rows.iter().all(Vec::is_empty) { Hidden::default() } else { Hidden(rows) }
    }

    /// `lifted`: the window of the layer if holes take its place.
    pub fn of<'a>(rows: impl Iterator<Item = (&'a Holes, usize)>, lifted: Option<usize>) -> Self {
        let of_row = |(holes, position): (&Holes, usize)| match lifted {
            Some(window) => holes.outside(position, window),
            None => holes.from_row(position),
        };
        Hidden::new(rows.map(of_row).collect())
    }

    pub fn at(site: &Site, positions: &[usize]) -> Self {
        match site.holes.is_empty() {
            true => Hidden::default(),
            false => Hidden::of(positions.iter().map(|&position| (&site.holes, position)), None),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ascending, disjoint, non-adjacent ranges.
    pub fn row(&self, r: usize) -> &[Range<usize>] {
        self.0.get(r).map_or(&[], Vec::as_slice)
    }

    pub fn rows(&self) -> &[Vec<Range<usize>>] {
        &self.0
    }

    pub fn of_rows(&self, rows: Range<usize>) -> Self {
        Hidden::new(self.0.get(rows).unwrap_or_default().to_vec())
    }

    /// Relative to `first`; earlier keys are dropped.
    pub fn counted_from(&self, first: usize) -> Self {
        let of_row = |ranges: &Vec<Range<usize>>| {
            let later = ranges.iter().filter(|range| range.end > first);
            later.map(|range| range.start.saturating_sub(first)..range.end - first).collect()
        };
        Hidden::new(self.0.iter().map(of_row).collect())
    }
}

/// True if ascending, non-adjacent ranges hide all of `keys`.
pub(super) fn hides_all(hidden: &[Range<usize>], keys: &Range<usize>) -> bool {
    hidden.iter().any(|range| range.start <= keys.start && keys.end <= range.end)
}

pub(super) fn hides_some(hidden: &[Range<usize>], keys: &Range<usize>) -> bool {
    hidden.iter().any(|range| range.start < keys.end && keys.start < range.end)
}

/// Attention sinks: one logit per head in the softmax denominator, without a value. Kept on the host and on the layer's device, to avoid
/// transfers; clones share both.
#[derive(Debug, Clone)]
pub struct Sinks {
    logits: Arc<[f32]>,
    /// (heads, 1), f32.
    tensor: Tensor,
}

impl Sinks {
    /// Sinks on `device`, one logit per head.
    pub fn new(logits: Vec<f32>, device: &Device) -> Result<Self> {
        let tensor = transfer::upload(logits.clone(), (logits.len(), 1), device)?;
        Ok(Sinks { logits: logits.into(), tensor })
    }

    /// The logits, one per head.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// f32 (heads, 1), on the device.
    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Site {
    /// Key positions visible to the query at `position`.
    pub fn visible(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Segment borders relative to the first key. Earlier borders move onto it: keys before it are outside every window.
    pub(super) fn borders(&self, borders: &[usize]) -> Vec<usize> {
        borders.iter().map(|border| border.saturating_sub(self.first_key)).collect()
    }

    /// Makes positions relative to the first key; causality and windows depend on distances alone.
    pub(super) fn relative(&self) -> Self {
        let holes = self.holes.counted_from(self.first_key);
        Site { offset: self.offset - self.first_key, first_key: 0, holes, ..self.clone() }
    }

    /// Returns an error if `hidden` covers all keys visible at `position` and there is no sink: the softmax would be empty.
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
