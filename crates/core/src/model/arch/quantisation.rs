//! Quantisation of a released checkpoint, from `quantization_config`.

use super::Fields;
use crate::model::ModelError;

/// Supported formats of quantised safetensors, other than those given by a tensor's dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantisation {
    /// Not quantised.
    None,
    /// FP8 (e4m3) weights with one scale per block. Activations are not rounded to FP8: products use the dequantised weights.
    Fp8 {
        /// (rows, columns) per scale.
        block: (usize, usize),
    },
    /// MXFP4 experts.
    Mxfp4,
}

impl Quantisation {
    /// Block size of FP8 weights.
    pub fn fp8_block(&self) -> Option<(usize, usize)> {
        match self {
            Quantisation::Fp8 { block } => Some(*block),
            _ => None,
        }
    }

    /// Parses `quantization_config`; an unsupported method is an error that names it.
    pub fn from_hf(config: &Fields) -> Result<Self, ModelError> {
        let Some(q) = config.object("quantization_config")? else { return Ok(Quantisation::None) };
        match q.text("quant_method")? {
            "fp8" => {
                q.expect_text("fmt", &["e4m3", "float8_e4m3fn"])?;
                q.expect_text("weight_dtype", &["float8_e4m3fn"])?;
                let block = match q.optional_list("weight_block_size")?.map(Vec::as_slice) {
                    None => (128, 128),
                    Some([rows, columns]) => {
                        let size = |v: &serde_json::Value| v.as_u64().filter(|n| (1..=1 << 16).contains(n));
                        match (size(rows), size(columns)) {
                            (Some(rows), Some(columns)) => (rows as usize, columns as usize),
                            _ => return Err(q.refuse("weight_block_size", "is no pair of sizes")),
                        }
                    }
                    Some(_) => return Err(q.refuse("weight_block_size", "is no pair of sizes")),
                };
                Ok(Quantisation::Fp8 { block })
            }
            "mxfp4" => Ok(Quantisation::Mxfp4),
            other => {
                let problem = format!(
                    "is `{other}`; `fp8` and `mxfp4` are read, so use such a checkpoint, an unquantised one, or a GGUF file"
                );
                Err(q.refuse("quant_method", problem))
            }
        }
    }
}
