//! NVFP4 weights: blocks with a number for all their scales, which is a tensor of its own.

use std::borrow::Cow;
use std::collections::HashSet;

use candle_core::{DType, Device, Tensor};

use super::{Checkpoint, Loader};
use crate::model::ModelError;
use crate::model::weights::{BlockType, GgufFile, gguf};

impl Loader {
    /// The NVFP4 weight `stored` of a Hugging Face folder, of shape (rows, columns), in the weights' dtype; `None` if it is stored in another format.
    pub(super) fn nvfp4(&mut self, stored: &str, shape: [usize; 2]) -> Result<Option<Tensor>, ModelError> {
        let Checkpoint::Safetensors { folder, .. } = &self.checkpoint else { return Ok(None) };
        let Some(parts) = folder.nvfp4_parts(stored) else { return Ok(None) };
        let tensor = folder.nvfp4_tensor(&parts, &self.device, self.formats.dtype)?;
        if tensor.dims() != shape {
            return Err(self.wrong_shape(stored, tensor.dims(), &shape));
        }
        self.used.extend(parts);
        Ok(Some(tensor))
    }
}

/// Blocks of the weight `stored` of a GGUF file, or of its entry `index`, with their type. NVFP4 becomes f32.
pub(super) fn blocks<'a>(
    file: &'a GgufFile,
    stored: &str,
    index: Option<usize>,
    used: &mut HashSet<String>,
) -> Result<(Cow<'a, [u8]>, BlockType), ModelError> {
    let bytes = match index {
        Some(index) => file.part_bytes(stored, index)?,
        None => file.tensor_bytes(stored)?,
    };
    let dtype = file.tensor_info(stored).map_or(BlockType::F32, |info| info.dtype);
    if dtype != BlockType::NVFP4 {
        return Ok((Cow::Borrowed(bytes), dtype));
    }
    let place = || file.path().display().to_string();
    let values =
        gguf::dequantise(dtype, bytes).map_err(|source| ModelError::Blocks { place: place(), source })?;
    let name = stored.replace(".weight", ".scale");
    let number = if file.contains(&name) {
        let numbers = file.tensor(&name, &Device::Cpu, DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let (found, expected) = (vec![numbers.len()], vec![index.map_or(1, |index| index + 1)]);
        let Some(&number) = numbers.get(index.unwrap_or(0)) else {
            return Err(ModelError::Shape { place: place(), name, found, expected });
        };
        used.insert(name);
        number
    } else {
        1.0
    };
    let scaled = values.into_iter().flat_map(|value| (value * number).to_le_bytes());
    Ok((Cow::Owned(scaled.collect()), BlockType::F32))
}
