//! The token embedding, which may be the output head's weight too.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use super::Projection;
use super::half_weight::HalfWeight;
use crate::transfer;

/// A row of numbers a token.
#[derive(Debug, Clone)]
pub enum Embedding {
    /// (vocab, hidden), in the dtype of the weights.
    Rows(Tensor),
    /// In bf16 as products of bf16 numbers read it: it is the output head's weight too, and is there once.
    Tied(Arc<HalfWeight>),
}

impl Embedding {
    /// Of `rows` (vocab, hidden), which are the output head's weight too if `tied`; `half` asks for products of bf16 numbers.
    pub fn new(rows: Tensor, tied: bool, half: bool) -> Result<Self> {
        Ok(match tied && half {
            true => Embedding::Tied(Arc::new(HalfWeight::new(&rows)?)),
            false => Embedding::Rows(rows),
        })
    }

    /// The same where `device` is.
    pub fn moved(&self, device: &candle_core::Device) -> Result<Self> {
        Ok(match self {
            Embedding::Rows(rows) => Embedding::Rows(transfer::moved(rows, device)?),
            Embedding::Tied(weight) => Embedding::Tied(Arc::clone(weight)),
        })
    }

    /// The tokens' rows in `dtype`, (l, hidden), which nothing else has a view of.
    ///
    /// # Errors
    /// A token outside the vocabulary, or no memory.
    pub fn of(&self, tokens: &[u32], dtype: DType) -> Result<Tensor> {
        match (self, tokens) {
            (Embedding::Tied(weight), _) => weight.of_rows(tokens)?.to_dtype(dtype),
            // A copy of a row: neither a number to send nor an index to follow.
            (Embedding::Rows(rows), [token]) => {
                rows.narrow(0, *token as usize, 1)?.force_contiguous()?.to_dtype(dtype)
            }
            (Embedding::Rows(rows), tokens) => {
                let ids = transfer::upload(tokens.to_vec(), tokens.len(), rows.device())?;
                rows.index_select(&ids, 0)?.to_dtype(dtype)
            }
        }
    }

    /// The output head by the same weight, with a bias (vocab).
    pub fn head(&self, bias: Option<Tensor>) -> Result<Projection> {
        match self {
            Embedding::Rows(rows) => Projection::shared(rows, bias),
            Embedding::Tied(weight) => Ok(Projection::half(Arc::clone(weight), bias)),
        }
    }
}
