//! Projections of one input.

use candle_core::{Result, Tensor};

use super::{Phase, Projection};

/// Maps of the same input, which are computed together where that pays: on the CPU by kernels that read the input once, on
/// other devices as one product for a single token, whose launch takes longer than its arithmetic.
#[derive(Debug)]
pub(in crate::model) struct Projections<const N: usize> {
    maps: [Projection; N],
    /// All of them as one map; their weights are parts of its weight. Not on the CPU.
    whole: Option<Projection>,
}

/// The maps' outputs.
pub(in crate::model) struct Outputs<const N: usize> {
    /// (l, out) each.
    pub parts: [Tensor; N],
    /// The parts beside each other, (1, sum of outs), where they were computed as one: each is a view of it.
    pub whole: Option<Tensor>,
}

impl<const N: usize> Projections<N> {
    /// Takes the maps over.
    pub fn new(maps: [Projection; N]) -> Result<Self> {
        match Projection::joined(&maps)? {
            Some((whole, maps)) => Ok(Projections { maps, whole: Some(whole) }),
            None => Ok(Projections { maps, whole: None }),
        }
    }

    /// (l, in) -> (l, out) each.
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Outputs<N>> {
        let Some(whole) = self.whole.as_ref().filter(|_| x.dims().first() == Some(&1)) else {
            return Ok(Outputs {
                parts: Projection::forward_all(self.maps.each_ref(), x, phase)?,
                whole: None,
            });
        };
        let all = whole.forward(x, phase)?;
        let mut start = 0;
        let mut parts = Vec::with_capacity(N);
        for map in &self.maps {
            let out = map.outputs()?;
            parts.push(all.narrow(1, start, out)?);
            start += out;
        }
        let parts =
            parts.try_into().map_err(|_| candle_core::Error::msg("This is a bug: an output is missing"))?;
        Ok(Outputs { parts, whole: Some(all) })
    }
}
