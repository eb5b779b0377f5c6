//! The settings of one call to attention: position, scale, window, soft cap, sinks, holes.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use crate::transfer;

/// Everything about one call to attention, other than its tensors.
#[derive(Debug, Clone)]
pub struct Site {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the first query row.
    pub offset: usize,
    /// Position of the first key: above 0 where a layer with a window keeps only what can still be seen.
    pub first_key: usize,
    /// What the scores are multiplied by before the softmax.
    pub scale: f32,
    /// Sliding window: a query at position p sees keys p - window + 1 ..= p.
    pub window: Option<usize>,
    /// Soft cap c: a scaled score s becomes c * tanh(s / c).
    pub softcap: Option<f32>,
    /// Attention sinks, where a layer has them.
    pub sinks: Option<Sinks>,
    /// What rows are kept from seeing although causality and window would show it.
    pub holes: Holes,
}

/// Keys hidden from rows: none, unless an intervention asks for some. A clone shares them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holes(Arc<[Hole]>);

/// Keys hidden from some rows, both as positions in the sequence.
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
    ///
    /// # Errors
    /// Those of Candle: no memory.
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
        Site { offset: self.offset - self.first_key, first_key: 0, ..self.clone() }
    }
}
