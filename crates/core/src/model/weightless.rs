//! Made-up weights: a decoder of any description without a checkpoint.
//!
//! For what depends on shapes alone: the memory that a model takes, its speed, and a device's arithmetic at the widths of
//! released models. [`super::OpenModel::weightless`] is the way in, and the loader asks here for each tensor. What such a
//! model says means nothing. Random weights are made so that nothing overflows or vanishes: products keep the size of their
//! inputs, norms are near 1, linear attention remembers tens of tokens.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::DecoderSpec;

/// The values of made-up weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Random numbers from a seed: the same in f32, bf16 and f16 to the last bit, and on every device.
    Random {
        /// The seed.
        seed: u64,
    },
    /// Zeros: the quickest to make, for memory alone. Routers then send every token to the same experts.
    Zeros,
}

/// Random numbers that all tensors are cut from: a prime, so that no row of a matrix lies over another one's numbers.
const BLOCK: usize = 1_048_573;

/// Random numbers are whole multiples of 1 / 16 up to this many: of variance 0.98, and exact in every dtype.
const LEVELS: i32 = 27;

/// Hands out made-up tensors.
#[derive(Debug)]
pub struct Weightless {
    fill: Fill,
    block: Vec<f32>,
    /// The same on a device, times a factor and with a mean, for the tensors that want them so.
    made: RefCell<Vec<Made>>,
}

/// A block on a device, and how it was made.
type Made = (Device, DType, Distribution, Tensor);

/// The spread of a tensor's numbers. Both are such that their sums and products are exact in bf16 and f16.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Distribution {
    mean: f64,
    deviation: f64,
}

impl Distribution {
    /// Of the tensor with a canonical name, so that activations keep their size.
    fn of(name: &str, shape: &[usize], spec: &DecoderSpec) -> Self {
        let around = |mean, deviation| Distribution { mean, deviation };
        if name.ends_with("norm.weight") {
            // The norm of linear attention is without the 1 that others may add.
            let plus_one = spec.norm.plus_one && !name.ends_with("linear_attn.norm.weight");
            return around(if plus_one { 0.0 } else { 1.0 }, 0.125);
        }
        if name.starts_with("embed_tokens") {
            return around(0.0, power_of_two(spec.embedding_scale.unwrap_or(1.0)));
        }
        match shape {
            // Decay rates of about 1 in 20.
            _ if name.ends_with("A_log") => around(-3.0, 0.5),
            _ if name.ends_with("dt_bias") || name.ends_with("sinks") => around(0.0, 1.0),
            [.., inputs] if shape.len() > 1 => around(0.0, power_of_two((*inputs as f64).sqrt())),
            // Biases and corrections.
            _ => around(0.0, 0.0625),
        }
    }
}

/// The power of two nearest to 1 / x.
fn power_of_two(x: f64) -> f64 {
    (-x.log2()).round().exp2()
}

impl Weightless {
    /// Weights of the kind `fill`.
    pub(super) fn new(fill: Fill) -> Self {
        let block = match fill {
            Fill::Zeros => Vec::new(),
            Fill::Random { seed } => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                (0..BLOCK).map(|_| rng.random_range(-LEVELS..=LEVELS) as f32 / 16.0).collect()
            }
        };
        Weightless { fill, block, made: RefCell::default() }
    }

    /// The tensor with the canonical name `name` of a decoder of `spec`.
    pub(super) fn tensor(
        &self,
        name: &str,
        shape: &[usize],
        dtype: DType,
        device: &Device,
        spec: &DecoderSpec,
    ) -> Result<Tensor> {
        if self.fill == Fill::Zeros {
            return Tensor::zeros(shape, dtype, device);
        }
        let block = self.block(Distribution::of(name, shape, spec), dtype, device)?;
        // Tensors begin at different places of the block and go round it.
        let elements: usize = shape.iter().product();
        let mut parts = Vec::with_capacity(elements / BLOCK + 2);
        let (mut start, mut left) = (place(name), elements);
        while left > 0 {
            let part = left.min(BLOCK - start);
            parts.push(block.narrow(0, start, part)?);
            (start, left) = (0, left - part);
        }
        match parts.as_slice() {
            // A tensor of its own, rather than a view that keeps the whole block alive.
            [part] => part.copy()?.reshape(shape),
            parts => Tensor::cat(parts, 0)?.reshape(shape),
        }
    }

    /// The random numbers on a device in a distribution.
    fn block(&self, distribution: Distribution, dtype: DType, device: &Device) -> Result<Tensor> {
        let same =
            |(on, of, spread, _): &&Made| on.same_device(device) && *of == dtype && *spread == distribution;
        if let Some((.., made)) = self.made.borrow().iter().find(same) {
            return Ok(made.clone());
        }
        let Distribution { mean, deviation } = distribution;
        let (mean_f32, deviation_f32) = (mean as f32, deviation as f32);
        let values: Vec<f32> = self.block.iter().map(|x| x * deviation_f32 + mean_f32).collect();
        let made = Tensor::from_vec(values, BLOCK, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
        self.made.borrow_mut().push((device.clone(), dtype, distribution, made.clone()));
        Ok(made)
    }
}

/// Where in the block the tensor called `name` begins (FNV-1a).
fn place(name: &str) -> usize {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash % BLOCK as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::super::{ModelDescription, OpenModel, Phase};
    use super::*;
    use crate::attention::NoObserver;

    /// One of each kind of layer: plain, tied, windowed, linear, with experts of every routing.
    const TINY: [&str; 7] = [
        "llama-tiny",
        "qwen2-tiny",
        "gemma3-tiny",
        "qwen35-text-tiny",
        "gpt-oss-mxfp4-tiny",
        "glm4-moe-tiny",
        "minimax-m2-fp8-tiny",
    ];

    type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

    fn description(name: &str) -> std::result::Result<ModelDescription, super::super::ModelError> {
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        ModelDescription::from_config_file(&fixtures.join(name).join("config.json"))
    }

    fn logits(
        name: &str,
        fill: Fill,
        dtype: DType,
    ) -> std::result::Result<Vec<f32>, Box<dyn std::error::Error>> {
        let decoder = OpenModel::weightless(description(name)?.spec, fill).load(&Device::Cpu, dtype)?;
        let tokens: Vec<u32> = (0..70).map(|i| i * 37 % 250).collect();
        let mut cache = decoder.cache(tokens.len())?;
        let hidden = decoder.forward(&tokens, 3, &mut cache, Phase::Prefill, &mut NoObserver)?;
        Ok(decoder.logits(&hidden, Phase::Prefill)?.flatten_all()?.to_vec1()?)
    }

    #[test]
    fn a_decoder_of_every_architecture_is_made_without_weights_and_gives_numbers_of_a_sensible_size()
    -> Outcome {
        for name in TINY {
            let one = logits(name, Fill::Random { seed: 1 }, DType::F32)?;
            let size = (one.iter().map(|x| x * x).sum::<f32>() / one.len() as f32).sqrt();
            assert!((0.1..20.0).contains(&size), "{name}: logits of size {size}");
            assert_eq!(one, logits(name, Fill::Random { seed: 1 }, DType::F32)?, "{name}: same seed");
            assert_ne!(one, logits(name, Fill::Random { seed: 2 }, DType::F32)?, "{name}: another seed");
            assert!(logits(name, Fill::Zeros, DType::F32)?.iter().all(|x| *x == 0.0), "{name}");
        }
        Ok(())
    }

    #[test]
    fn weights_are_the_same_numbers_in_every_dtype_and_fill_tensors_of_any_size() -> Outcome {
        let spec = description("qwen35-text-tiny")?.spec;
        let names = ["norm.weight", "embed_tokens.weight", "layers.0.linear_attn.A_log", "lm_head.weight"];
        for name in names.into_iter().chain(["layers.0.linear_attn.norm.weight", "some.bias"]) {
            for shape in [&[5][..], &[3, 700], &[1700, 1300]] {
                let made = |dtype| -> Result<Vec<f32>> {
                    let tensor = Weightless::new(Fill::Random { seed: 7 }).tensor(
                        name,
                        shape,
                        dtype,
                        &Device::Cpu,
                        &spec,
                    )?;
                    assert_eq!((tensor.dims(), tensor.dtype()), (shape, dtype));
                    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
                };
                let exact = made(DType::F32)?;
                assert!(exact == made(DType::BF16)? && exact == made(DType::F16)?, "{name} {shape:?}");
                if exact.len() > BLOCK {
                    assert_eq!(exact[..9], exact[BLOCK..][..9]);
                    assert_ne!(exact[..1300], exact[1300..2600], "rows differ");
                }
            }
        }
        Ok(())
    }
}
