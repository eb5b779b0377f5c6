//! Token embedding, possibly tied to the output head.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use super::Projection;
use super::half_weight::HalfWeight;
use crate::transfer;

#[derive(Debug, Clone)]
pub enum Embedding {
    /// (vocab, hidden), in the dtype of the weights.
    Rows(Tensor),
    /// bf16 in the kernels' layout, shared with the output head.
    Tied(Arc<HalfWeight>),
}

impl Embedding {
    /// `rows`: (vocab, hidden). `tied`: also the output head's weight. `half`: bf16 products.
    pub fn new(rows: Tensor, tied: bool, half: bool) -> Result<Self> {
        Ok(match tied && half {
            true => Embedding::Tied(Arc::new(HalfWeight::new(&rows)?)),
            false => Embedding::Rows(rows),
        })
    }

    pub fn moved(&self, device: &candle_core::Device) -> Result<Self> {
        Ok(match self {
            Embedding::Rows(rows) => Embedding::Rows(transfer::moved(rows, device)?),
            Embedding::Tied(weight) => Embedding::Tied(Arc::clone(weight)),
        })
    }

    /// Rows of the tokens in `dtype`, (l, hidden), unshared. A token outside the vocabulary is an error.
    pub fn of(&self, tokens: &[u32], dtype: DType) -> Result<Tensor> {
        match (self, tokens) {
            (Embedding::Tied(weight), _) => weight.of_rows(tokens)?.to_dtype(dtype),
            // A row copy avoids uploading the index.
            (Embedding::Rows(rows), [token]) => {
                rows.narrow(0, *token as usize, 1)?.force_contiguous()?.to_dtype(dtype)
            }
            (Embedding::Rows(rows), tokens) => {
                let ids = transfer::upload(tokens.to_vec(), tokens.len(), rows.device())?;
                rows.index_select(&ids, 0)?.to_dtype(dtype)
            }
        }
    }

    /// The tied output head, with a bias (vocab).
    pub fn head(&self, bias: Option<Tensor>) -> Result<Projection> {
        match self {
            Embedding::Rows(rows) => Projection::shared(rows, bias),
            Embedding::Tied(weight) => Ok(Projection::half(Arc::clone(weight), bias)),
        }
    }
}
