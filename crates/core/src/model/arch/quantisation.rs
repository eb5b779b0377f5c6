//! Quantisation of a released checkpoint, from `quantization_config`.

use super::Fields;
use crate::model::ModelError;

/// Rows and columns per scale of FP8 (e4m3) weights; `None` for other checkpoints. An unsupported method is an error that names it.
/// Activations are not rounded to FP8: products use the dequantised weights.
pub fn fp8_block(config: &Fields) -> Result<Option<(usize, usize)>, ModelError> {
    let Some(q) = config.object("quantization_config")? else { return Ok(None) };
    match q.text("quant_method")? {
        "fp8" => {
            q.expect_text("fmt", &["e4m3", "float8_e4m3fn"])?;
            q.expect_text("weight_dtype", &["float8_e4m3fn"])?;
            let Some(sizes) = q.optional_list("weight_block_size")? else { return Ok(Some((128, 128))) };
            let sizes: Option<Vec<usize>> = sizes
                .iter()
                .map(|size| size.as_u64().filter(|n| (1..=1 << 16).contains(n)).map(|n| n as usize))
                .collect();
            match sizes.as_deref() {
                Some(&[rows, columns]) => Ok(Some((rows, columns))),
                _ => Err(q.refuse("weight_block_size", "is no pair of sizes")),
            }
        }
        // Told by the tensors.
        "mxfp4" => Ok(None),
        "modelopt" => nvfp4(&q, "quant_algo", &["NVFP4", "W4A16_NVFP4"]),
        "compressed-tensors" => {
            if q.object("transform_config")?.is_some_and(|transforms| !transforms.is_empty()) {
                return Err(q.refuse("transform_config", "has transforms of weights, which are not undone"));
            }
            nvfp4(&q, "format", &["nvfp4-pack-quantized"])
        }
        other => {
            let problem = format!(
                "is `{other}`; `fp8`, `mxfp4` and NVFP4 are read, so use such a checkpoint, an unquantised one, or a GGUF file"
            );
            Err(q.refuse("quant_method", problem))
        }
    }
}

/// Rejects a format other than NVFP4; its weights are told by the tensors.
fn nvfp4(q: &Fields, field: &str, wanted: &[&str]) -> Result<Option<(usize, usize)>, ModelError> {
    match q.text(field)? {
        found if wanted.contains(&found) => Ok(None),
        found => {
            let problem = format!(
                "is `{found}`; of this method `{}` is read, so use such a checkpoint, an unquantised one, or a GGUF file",
                wanted[0]
            );
            Err(q.refuse(field, problem))
        }
    }
}
