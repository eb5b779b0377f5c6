//! Keys, decays and strengths from which a layer's implicit attention is computed.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::block::{BLOCK, Blocks, Rule};

pub(super) const PANEL: usize = 16 * BLOCK;

/// One layer's keys, decays and strengths from the first token on, by chunk. Clones share them.
#[derive(Debug, Clone, Default)]
pub(in crate::attention) struct History {
    pub rule: Rule,
    pub(super) pieces: Vec<Piece>,
    length: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Piece {
    start: usize,
    /// (l, key_heads, key_dim) in the model's dtype, unnormalised: as exact as normalised f32, and smaller.
    k: Tensor,
    /// (l, value_heads), f32.
    pub(super) g: Tensor,
    beta: Tensor,
}

impl History {
    pub fn len(&self) -> usize {
        self.length
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let of = |x: &Tensor| x.elem_count() * x.dtype().size_in_bytes();
        self.pieces.iter().map(|piece| of(&piece.k) + of(&piece.g) + of(&piece.beta)).sum()
    }

    pub fn push(&mut self, k: &Tensor, g: &Tensor, beta: &Tensor, l: usize) -> Result<()> {
        // A view would keep the whole chunk's activations in memory.
        let copy = |x: &Tensor| x.narrow(0, 0, l)?.force_contiguous();
        self.pieces.push(Piece { start: self.length, k: copy(k)?, g: copy(g)?, beta: copy(beta)? });
        self.length += l;
        Ok(())
    }

    pub fn up_to(&self, length: usize) -> Result<History> {
        let mut kept = History { rule: self.rule, ..History::default() };
        for piece in self.pieces.iter().filter(|p| p.start < length) {
            let l = piece.k.dim(0)?;
            if piece.start + l <= length {
                kept.pieces.push(piece.clone());
                kept.length += l;
            } else {
                kept.push(&piece.k, &piece.g, &piece.beta, length - piece.start)?;
            }
        }
        Ok(kept)
    }

    /// Tokens `range`: keys as the rule reads them, (l, key_heads, key_dim), log decays and strengths (l, value_heads), f32.
    pub(super) fn part(&self, range: Range<usize>) -> Result<[Tensor; 3]> {
        let first = self.pieces.partition_point(|p| p.start <= range.start).saturating_sub(1);
        let (mut k, mut g, mut beta) = (Vec::new(), Vec::new(), Vec::new());
        for piece in self.pieces[first..].iter().take_while(|p| p.start < range.end) {
            let from = range.start.saturating_sub(piece.start);
            let l = piece.k.dim(0)?.min(range.end - piece.start) - from;
            k.push(piece.k.narrow(0, from, l)?);
            g.push(piece.g.narrow(0, from, l)?);
            beta.push(piece.beta.narrow(0, from, l)?);
        }
        let k = self.rule.read(&Tensor::cat(&k, 0)?, 1.0)?;
        Ok([k, Tensor::cat(&g, 0)?.contiguous()?, Tensor::cat(&beta, 0)?.contiguous()?])
    }

    /// Always full-length blocks, so that results do not depend on chunk boundaries.
    pub(super) fn blocks(&self, range: Range<usize>) -> Result<Blocks> {
        let [k, g, beta] = self.part(range)?;
        Blocks::new(self.rule, &k, &g, &beta, BLOCK)
    }
}
