//! Synthetic weights: a decoder without a checkpoint ([`super::OpenModel::weightless`]).
//!
//! For properties that depend only on shapes: memory, speed, and a device's arithmetic at real widths; the output is meaningless. Random
//! weights avoid overflow and underflow: products keep the size of their inputs, norms are near 1, and linear attention decays over tens of
//! tokens.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::DecoderSpec;

/// Values of synthetic weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Random numbers from a seed, bit-equal in f32, bf16 and f16 and on every device.
    Random {
        /// The seed.
        seed: u64,
    },
    /// Zeros: fastest to create, for memory only. Routers then send all tokens to the same experts.
    Zeros,
}

/// Random numbers that all tensors are cut from; a prime, so that rows of a matrix do not repeat.
const BLOCK: usize = 1_048_573;

/// Random numbers are multiples of 1 / 16 up to `LEVELS` / 16: variance 0.98, exact in every dtype.
const LEVELS: i32 = 27;

/// Source of synthetic tensors.
#[derive(Debug)]
pub struct Weightless {
    fill: Fill,
    block: Vec<f32>,
    /// Scaled and shifted copies of the block, by device, dtype and distribution.
    made: RefCell<Vec<Made>>,
}

type Made = (Device, DType, Distribution, Tensor);

/// Mean and deviation are such that sums and products are exact in bf16 and f16.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Distribution {
    mean: f64,
    deviation: f64,
}

impl Distribution {
    /// Chosen by tensor name so that activations keep their size.
    fn of(name: &str, shape: &[usize], spec: &DecoderSpec) -> Self {
        let around = |mean, deviation| Distribution { mean, deviation };
        if name.ends_with("scalar") || name.ends_with(".scale") {
            return around(1.0, 0.125);
        }
        if name.contains("norm") {
            // The norm of linear attention does not add 1.
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
            _ => around(0.0, 0.0625),
        }
    }
}

/// The power of two nearest to 1 / x.
fn power_of_two(x: f64) -> f64 {
    (-x.log2()).round().exp2()
}

impl Weightless {
    /// Weights filled by `fill`.
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
        // Tensors start at different offsets of the block and wrap around.
        let elements: usize = shape.iter().product();
        let mut parts = Vec::with_capacity(elements / BLOCK + 2);
        let (mut start, mut left) = (place(name), elements);
        while left > 0 {
            let part = left.min(BLOCK - start);
            parts.push(block.narrow(0, start, part)?);
            (start, left) = (0, left - part);
        }
        match parts.as_slice() {
            // A copy, since a view would keep the whole block alive.
            [part] => part.copy()?.reshape(shape),
            parts => Tensor::cat(parts, 0)?.reshape(shape),
        }
    }

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

/// Offset in the block of the tensor `name` (FNV-1a).
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

    /// One fixture per kind of layer: plain, without positions, tied, windowed, linear, experts with every routing, latent, and with indexers.
    const TINY: [&str; 21] = [
        "llama-tiny",
        "smollm3-tiny",
        "qwen2-tiny",
        "gemma3-tiny",
        "qwen35-text-tiny",
        "qwen3-next-tiny",
        "gpt-oss-mxfp4-tiny",
        "glm4-moe-tiny",
        "minimax-m2-fp8-tiny",
        "granite-tiny",
        "olmo3-tiny",
        "lfm2-moe-tiny",
        "lfm3-tiny",
        "granite-hybrid-moe-tiny",
        "nemotron-h-moe-tiny",
        "deepseek-v2-tiny",
        "deepseek-v32-tiny",
        "glm-moe-dsa-tiny",
        "mistral4-nested-tiny",
        "gemma4-tiny",
        "gemma4-moe-nested-tiny",
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
