//! Experts of a layer, as checkpoints store them: one by one, stacked, or gate and up as one.

use candle_core::{DType, Tensor};

use super::{Checkpoint, Loader};
use crate::model::layers::Mlp;
use crate::model::{MlpSpec, ModelError};

impl Loader {
    /// The `count` experts below `name`, stored separately or fused.
    pub(in crate::model) fn experts(
        &mut self,
        name: &str,
        count: usize,
        hidden: usize,
        spec: &MlpSpec,
    ) -> Result<Vec<Mlp>, ModelError> {
        let fused = |part: &str| self.stored_name(&format!("{name}.{part}"));
        let (gate_up, down) = (fused("gate_up_proj"), fused("down_proj"));
        let is_fused = match &self.checkpoint {
            Checkpoint::Safetensors { folder, .. } => {
                ["", "_blocks", "_scales"].iter().any(|end| folder.contains(&format!("{gate_up}{end}")))
            }
            Checkpoint::Gguf(_) | Checkpoint::Weightless(_) => false,
        };
        let one = |expert| match self.checkpoint {
            Checkpoint::Gguf(_) => self.stacked_expert(name, expert, count, hidden, spec),
            _ if is_fused => self.fused_expert(&gate_up, &down, expert, count, hidden, spec),
            _ => self.mlp(&format!("{name}.{expert}"), hidden, spec),
        };
        (0..count).map(one).collect()
    }

    /// Entry `index` along the first dimension of a stored tensor of this shape.
    fn entry(
        &mut self,
        stored: String,
        index: usize,
        shape: &[usize],
        dtype: DType,
    ) -> Result<Tensor, ModelError> {
        self.expect_shape(&stored, shape)?;
        let tensor = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensor_part(&stored, index, &self.device, dtype)?,
            Checkpoint::Safetensors { folder, .. } => {
                folder.tensor_part(&stored, index, &self.device, dtype)?
            }
            Checkpoint::Weightless(_) => return Err(ModelError::NoFile),
        };
        self.used.insert(stored);
        Ok(tensor)
    }

    /// One expert of llama.cpp's stacked tensors, (experts, out, in) and (experts, out).
    fn stacked_expert(
        &mut self,
        name: &str,
        expert: usize,
        count: usize,
        hidden: usize,
        spec: &MlpSpec,
    ) -> Result<Mlp, ModelError> {
        // Gate and up may be one tensor, gates first.
        let both = self.stored_name(&format!("{name}.gate_up_proj.weight"));
        let fused = matches!(&self.checkpoint, Checkpoint::Gguf(file) if file.contains(&both));
        let [gate, up] = match fused {
            true => [("gate_up_proj", Some(0)), ("gate_up_proj", Some(1))],
            false => [("gate_proj", None), ("up_proj", None)],
        };
        let mut part = |(part, half): (&str, Option<usize>), outputs: usize, inputs: usize| {
            let weight = self.stored_name(&format!("{name}.{part}.weight"));
            let parts = if half.is_some() { 2 } else { 1 };
            self.expect_shape(&weight, &[count, parts * outputs, inputs])?;
            let bias = self.stored_name(&format!("{name}.{part}.bias"));
            let bias = || self.entry(bias, expert, &[count, outputs], self.formats.activations);
            let bias = spec.bias.then(bias).transpose()?;
            let Checkpoint::Gguf(file) = &self.checkpoint else { return Err(ModelError::NoFile) };
            let (bytes, dtype) = file.blocks(&weight, Some(expert))?;
            self.used.extend(file.scale_of(&weight));
            // Rows are whole blocks.
            let size = bytes.len() / parts;
            let bytes = &bytes[half.unwrap_or(0) * size..][..size];
            let linear = self.blocks(bytes, dtype, [outputs, inputs], (None, None), None, bias)?;
            self.used.insert(weight);
            Ok(linear)
        };
        let gated = spec.activation.is_gated();
        let gate = gated.then(|| part(gate, spec.intermediate, hidden)).transpose()?;
        let up = part(up, spec.intermediate, hidden)?;
        let down = part(("down_proj", None), hidden, spec.intermediate)?;
        Ok(Mlp::new(gate, up, down, spec.activation)?)
    }

    /// One expert of a Hugging Face checkpoint with fused gate and up: MXFP4 blocks of (experts, out, in), or dense. Dense tensors are
    /// (experts, in, out) with [`Names::interleaved_experts`] (gpt-oss), else (experts, out, in), gates first.
    fn fused_expert(
        &mut self,
        gate_up: &str,
        down: &str,
        expert: usize,
        count: usize,
        hidden: usize,
        spec: &MlpSpec,
    ) -> Result<Mlp, ModelError> {
        let interleaved = self.names.interleaved_experts;
        let width = spec.intermediate;
        let mut matrix = |stored: &str, outputs: usize, inputs: usize| -> Result<Tensor, ModelError> {
            let blocks = [format!("{stored}_blocks"), format!("{stored}_scales")];
            let Checkpoint::Safetensors { folder, .. } = &self.checkpoint else {
                return Err(ModelError::NoFile);
            };
            // Either one suffices, so that the error names the missing one.
            if blocks.iter().any(|name| folder.contains(name)) {
                let columns = inputs.next_multiple_of(32);
                if columns != inputs {
                    let (found, expected) = ([count, outputs, columns], [count, outputs, inputs]);
                    return Err(self.wrong_shape(&blocks[0], &found, &expected));
                }
                self.expect_shape(&blocks[0], &[count, outputs, inputs / 32, 16])?;
                self.expect_shape(&blocks[1], &[count, outputs, inputs / 32])?;
                let tensor = folder.mxfp4_tensor(stored, expert, &self.device, self.formats.dtype)?;
                self.used.extend(blocks);
                return Ok(tensor);
            }
            let shape = if interleaved { [count, inputs, outputs] } else { [count, outputs, inputs] };
            let tensor = self.entry(stored.to_owned(), expert, &shape, self.formats.dtype)?;
            Ok(if interleaved { tensor.t()?.contiguous()? } else { tensor })
        };
        let (both, down_weight) = (matrix(gate_up, 2 * width, hidden)?, matrix(down, hidden, width)?);
        let mut bias = |stored: &str, outputs: usize| -> Result<Option<Tensor>, ModelError> {
            let (name, activations) = (format!("{stored}_bias"), self.formats.activations);
            let bias = || self.entry(name, expert, &[count, outputs], activations);
            spec.bias.then(bias).transpose()
        };
        let (both_bias, down_bias) = (bias(gate_up, 2 * width)?, bias(down, hidden)?);
        // Gate rows (0) or up rows (1) of (2 * width, ..).
        let (shape, axis) = if interleaved { ([width, 2], 1) } else { ([2, width], 0) };
        let half = |both: &Tensor, nth: usize| -> candle_core::Result<Tensor> {
            let both = both.reshape([&shape[..], &both.dims()[1..]].concat())?;
            both.narrow(axis, nth, 1)?.squeeze(axis)?.contiguous()
        };
        let dense = |nth: usize| {
            self.dense(&half(&both, nth)?, both_bias.as_ref().map(|bias| half(bias, nth)).transpose()?)
        };
        Ok(Mlp::new(Some(dense(0)?), dense(1)?, self.dense(&down_weight, down_bias)?, spec.activation)?)
    }
}
