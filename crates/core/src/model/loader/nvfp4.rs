//! NVFP4 projections of Hugging Face folders.

use candle_core::Tensor;

use super::{Checkpoint, Loader};
use crate::model::ModelError;

impl Loader {
    /// The NVFP4 weight `stored` of shape (rows, columns), in the weights' dtype; `None` if it is stored in another format.
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
