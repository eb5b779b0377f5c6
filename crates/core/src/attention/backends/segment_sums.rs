//! Sums of softmax weights by segment, as the CPU's kernel makes them.

use candle_core::{Device, Result, Tensor};

/// What the CPU's kernel sums for a set of rows.
#[derive(Debug)]
pub(in crate::attention) struct SegmentSums {
    /// `[heads][segments]`, row-major.
    pub mass: Vec<f64>,
    /// `[heads]`: what went to the sinks.
    pub sink: Vec<f64>,
}

impl SegmentSums {
    /// f64 (heads, 1 + segments), the sinks' first.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        let heads = self.sink.len();
        let segments = self.mass.len() / heads.max(1);
        let rows = self.sink.iter().enumerate().flat_map(|(head, &sink)| {
            std::iter::once(sink).chain(self.mass[head * segments..][..segments].iter().copied())
        });
        Tensor::from_vec(rows.collect(), (heads, 1 + segments), &Device::Cpu)
    }
}
