//! Several projections of one input.

use candle_core::{Result, Tensor};

use super::{Phase, Projection};

/// Computed together where that is faster: the CPU kernels read the input once, other devices use one product for single tokens, where
/// launch time dominates.
#[derive(Debug)]
pub(in crate::model) struct Projections<const N: usize> {
    maps: [Projection; N],
    /// The fused projection, whose weight the single ones are views of. Not on the CPU.
    whole: Option<Projection>,
}

pub(in crate::model) struct Outputs<const N: usize> {
    /// (l, out) each.
    pub parts: [Tensor; N],
    /// The concatenated outputs, (1, sum of outs), of a fused product; `parts` are views of it.
    pub whole: Option<Tensor>,
}

impl<const N: usize> Projections<N> {
    pub fn new(maps: [Projection; N]) -> Result<Self> {
        match Projection::joined(&maps)? {
            Some((whole, maps)) => Ok(Projections { maps, whole: Some(whole) }),
            None => Ok(Projections { maps, whole: None }),
        }
    }

    /// The fused projection, which [`Projection::joined`] makes on devices other than the CPU.
    pub fn whole(&self) -> Option<&Projection> {
        self.whole.as_ref()
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
