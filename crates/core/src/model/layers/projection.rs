//! Projections, dense or quantised.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use rayon::prelude::*;

use super::half_weight::{HalfInput, HalfWeight};
use super::packed::{PANEL, PackedWeight};
use super::{Phase, packed_matmul};
use crate::bfloat;
use crate::fused::products::{Own, rounds_sums};
use crate::timing;
use crate::transfer::cpu_kernels;

/// Weights dequantised at a time when no copy is kept; bounds the buffer.
const SLICE: usize = 1 << 24;

/// y = x W^T (+ b).
///
/// On the CPU a quantised weight is packed for decode, which is bound by reading it, and also kept dequantised for prefill, which is bound
/// by multiplying; if memory is short, it is dequantised for every prefill chunk. Both give the same numbers.
#[derive(Debug)]
pub struct Projection {
    weight: Weight,
    /// (out)
    bias: Option<Tensor>,
}

#[derive(Debug)]
enum Weight {
    Dense(Dense),
    Quantised { packed: PackedWeight, kept: Dequantised },
}

/// A dense weight.
#[derive(Debug, Clone)]
enum Dense {
    /// (in, out), in f32 contiguous on the CPU: up to 1.4 times as fast as a view of (out, in), whose power-of-two strides share few cache
    /// sets.
    Full(Tensor),
    /// bf16, for bf16 products on the CPU.
    Half(Arc<HalfWeight>),
}

/// Prefill form of a packed weight.
#[derive(Debug)]
enum Dequantised {
    Kept(Dense),
    /// Dequantised for every chunk, to bf16 if `half`.
    Made {
        half: bool,
    },
}

impl Projection {
    /// A dense projection with `weight` (out, in) and `bias` (out).
    pub fn dense(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        let turned = cpu_kernels(weight.device()) && weight.dtype() == DType::F32;
        let weight = if turned { transposed(weight)? } else { weight.t()? };
        Ok(Projection { weight: Weight::Dense(Dense::Full(weight)), bias })
    }

    /// A bf16 projection with an f32 `bias` (out).
    pub fn half(weight: Arc<HalfWeight>, bias: Option<Tensor>) -> Self {
        Projection { weight: Weight::Dense(Dense::Half(weight)), bias }
    }

    /// A projection that shares a dense `weight` (out, in), for a tied head.
    pub fn shared(weight: &Tensor, bias: Option<Tensor>) -> Result<Self> {
        Ok(Projection { weight: Weight::Dense(Dense::Full(weight.t()?)), bias })
    }

    /// A quantised projection. `keep`: also keep a dequantised copy for prefill; `half`: dequantise to bf16.
    pub fn quantised(packed: PackedWeight, bias: Option<Tensor>, keep: bool, half: bool) -> Result<Self> {
        let kept = match (keep, half) {
            (true, false) => Dequantised::Kept(Dense::Full(values(&packed, 0..packed.rows())?)),
            (true, true) => Dequantised::Kept(Dense::Half(Arc::new(packed.halved(0..packed.rows())))),
            (false, half) => Dequantised::Made { half },
        };
        Ok(Projection { weight: Weight::Quantised { packed, kept }, bias })
    }

    /// Adds `packed`, the packed form of the dense weight, for decode.
    pub fn decoding_with(self, packed: PackedWeight) -> Self {
        let Projection { weight: Weight::Dense(dense), bias } = self else { return self };
        Projection { weight: Weight::Quantised { packed, kept: Dequantised::Kept(dense) }, bias }
    }

    /// (l, in) -> (l, out)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let [y] = Self::forward_all([self], x, phase)?;
        Ok(y)
    }

    /// [`Projection::forward`] of several projections of one input; a single pass in decode.
    pub fn forward_all<const N: usize>(maps: [&Self; N], x: &Tensor, phase: Phase) -> Result<[Tensor; N]> {
        let _span = timing::linear();
        let packed: Vec<&PackedWeight> = maps.iter().filter_map(|map| map.packed()).collect();
        let products = match phase {
            Phase::Decode if !packed.is_empty() => {
                packed_matmul::products(&packed, &bfloat::to_dtype(x, DType::F32)?)?
            }
            _ => Vec::new(),
        };
        let mut products = products.into_iter();
        let mut rounded = None;
        let mut out = Vec::with_capacity(N);
        for map in maps {
            let y = match map.packed().and_then(|_| products.next()) {
                Some(y) => y,
                None => map.dense_product(x, &mut rounded, phase, SLICE)?,
            };
            out.push(match &map.bias {
                Some(bias) => y.broadcast_add(bias)?,
                None => y,
            });
        }
        out.try_into().map_err(|_| candle_core::Error::msg("This is a bug: an output is missing"))
    }

    /// `sum` + x W^T (+ b): (l, in) -> (l, out), in one call if the device supports it.
    pub(in crate::model) fn add_to(&self, sum: Own, x: &Tensor, phase: Phase) -> Result<Own> {
        match (&self.weight, &self.bias) {
            (Weight::Dense(Dense::Full(weight)), None) if !cpu_kernels(x.device()) => {
                let _span = timing::linear();
                sum.plus_product(x, weight)
            }
            _ => sum.plus(&self.forward(x, phase)?),
        }
    }

    /// Fuses projections into one and returns views for each. `None` on the CPU, whose kernels read a shared input once anyway, and if
    /// only some have a bias.
    pub(in crate::model) fn joined<const N: usize>(maps: &[Self; N]) -> Result<Option<(Self, [Self; N])>> {
        let mut rows = Vec::with_capacity(N);
        for map in maps {
            match &map.weight {
                Weight::Dense(Dense::Full(weight)) if !cpu_kernels(weight.device()) => rows.push(weight.t()?),
                _ => return Ok(None),
            }
        }
        let biases: Vec<&Tensor> = maps.iter().filter_map(|map| map.bias.as_ref()).collect();
        let bias = match biases.len() {
            0 => None,
            n if n == N => Some(Tensor::cat(&biases, 0)?),
            _ => return Ok(None),
        };
        let all = Tensor::cat(&rows, 0)?; // (sum of outs, in)
        let mut start = 0;
        let mut parts = Vec::with_capacity(N);
        for (map, rows) in maps.iter().zip(&rows) {
            let part = all.narrow(0, start, rows.dim(0)?)?;
            start += rows.dim(0)?;
            let weight = Weight::Dense(Dense::Full(part.t()?));
            parts.push(Projection { weight, bias: map.bias.clone() });
        }
        let parts =
            parts.try_into().map_err(|_| candle_core::Error::msg("This is a bug: a map is missing"))?;
        Ok(Some((Projection { weight: Weight::Dense(Dense::Full(all.t()?)), bias }, parts)))
    }

    pub(in crate::model) fn outputs(&self) -> Result<usize> {
        match &self.weight {
            Weight::Dense(Dense::Full(weight)) => weight.dim(1),
            Weight::Dense(Dense::Half(weight)) => Ok(weight.rows()),
            Weight::Quantised { packed, .. } => Ok(packed.rows()),
        }
    }

    /// The dequantised weight: f32 (in, out).
    pub(in crate::model) fn weight(&self) -> Result<Tensor> {
        match self.at_hand() {
            Ok(Dense::Full(weight)) => weight.to_dtype(DType::F32)?.contiguous(),
            Ok(Dense::Half(weight)) => {
                let all: Vec<u32> = (0..weight.rows() as u32).collect();
                weight.of_rows(&all)?.t()?.contiguous()
            }
            Err(packed) => values(packed, 0..packed.rows()),
        }
    }

    /// Weights of some outputs: f32 (outputs, in). Returns an error if an output is out of range.
    pub(in crate::model) fn weights_of(&self, outputs: &[u32]) -> Result<Tensor> {
        let rows = outputs.iter().map(|&output| match self.at_hand() {
            Ok(Dense::Full(weight)) => {
                weight.narrow(1, output as usize, 1)?.t()?.to_dtype(DType::F32)?.contiguous()
            }
            Ok(Dense::Half(weight)) => weight.of_rows(&[output]),
            Err(packed) => values(packed, output as usize..output as usize + 1)?.t()?.contiguous(),
        });
        Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
    }

    pub(in crate::model) fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The dense weight (in, out) and the bias (out), where products take them as they are.
    pub(in crate::model) fn dense_parts(&self) -> Option<(&Tensor, Option<&Tensor>)> {
        match &self.weight {
            Weight::Dense(Dense::Full(weight)) => Some((weight, self.bias())),
            _ => None,
        }
    }

    /// The dense weight, else the packed one.
    fn at_hand(&self) -> std::result::Result<&Dense, &PackedWeight> {
        match &self.weight {
            Weight::Dense(dense) | Weight::Quantised { kept: Dequantised::Kept(dense), .. } => Ok(dense),
            Weight::Quantised { packed, kept: Dequantised::Made { .. } } => Err(packed),
        }
    }

    fn packed(&self) -> Option<&PackedWeight> {
        match &self.weight {
            Weight::Dense(_) => None,
            Weight::Quantised { packed, .. } => Some(packed),
        }
    }

    /// x W^T by dense products. Without a dequantised copy, `slice` weights at a time; wide weights are split the same way with one, for
    /// equal bits. `rounded` caches x in bf16 for the next projection.
    fn dense_product(
        &self,
        x: &Tensor,
        rounded: &mut Option<HalfInput>,
        phase: Phase,
        slice: usize,
    ) -> Result<Tensor> {
        let mut halved = |weight: &HalfWeight| match rounded {
            Some(input) => input.product(weight),
            None => rounded.insert(HalfInput::new(x)?).product(weight),
        };
        let (packed, kept) = match &self.weight {
            Weight::Dense(Dense::Full(dense)) => return dense_product(x, dense, phase),
            Weight::Dense(Dense::Half(weight))
            | Weight::Quantised { kept: Dequantised::Kept(Dense::Half(weight)), .. } => {
                return halved(weight);
            }
            Weight::Quantised { packed, kept } => (packed, kept),
        };
        let step = (slice / packed.cols()).next_multiple_of(PANEL).max(PANEL);
        let mut parts = Vec::new();
        for start in (0..packed.rows()).step_by(step) {
            let rows = start..packed.rows().min(start + step);
            parts.push(match kept {
                Dequantised::Kept(Dense::Full(dense)) => {
                    steady_product(x, &dense.narrow(1, start, rows.len())?)?
                }
                Dequantised::Kept(Dense::Half(weight)) => halved(weight)?,
                Dequantised::Made { half: true } => halved(&packed.halved(rows))?,
                Dequantised::Made { half: false } => steady_product(x, &values(packed, rows)?)?,
            });
        }
        match parts.as_slice() {
            [whole] => Ok(whole.clone()),
            parts => Tensor::cat(parts, 1),
        }
    }

    /// Bytes dequantised at a time for a weight (rows, cols).
    pub(in crate::model) fn scratch(rows: u64, cols: u64) -> u64 {
        rows.saturating_mul(cols).min((SLICE as u64).saturating_add(PANEL as u64 * cols)) * 4
    }
}

/// x W^T with a dense transposed `weight` (in, out): (l, in) -> (l, out).
///
/// On the CPU, decode multiplies rows one by one: Candle has a fast path for one row, but for a few rows it is several times slower per row
/// and sums in another order, so a row's bits would depend on the number of rows.
pub(super) fn dense_product(x: &Tensor, weight: &Tensor, phase: Phase) -> Result<Tensor> {
    let l = x.dim(0)?;
    if phase == Phase::Prefill {
        return steady_product(x, weight);
    }
    if l == 1 || !x.device().is_cpu() {
        return x.matmul(weight);
    }
    let rows = (0..l).map(|row| x.narrow(0, row, 1)?.matmul(weight));
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}

/// x (l, in) times `weight` (in, out). In f32 on the CPU a row's bits do not depend on the number of rows, so chunking does not matter.
/// The underlying product sums in another order for a single row, for up to 256 outputs in total, and if neither rows nor outputs exceed
/// 64; such inputs are padded with zero rows. f16 is multiplied in f32 there.
fn steady_product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (l, out) = (x.dim(0)?, weight.dim(1)?);
    if rounds_sums(x) {
        let (wide, rows) = (x.to_dtype(DType::F32)?, weight.t()?);
        let step = (SLICE / x.dim(1)?.max(1)).max(1);
        let part = |start: usize| {
            let rows = rows.narrow(0, start, step.min(out - start))?.to_dtype(DType::F32)?;
            steady_product(&wide, &rows.t()?)?.to_dtype(x.dtype())
        };
        return Tensor::cat(&(0..out).step_by(step).map(part).collect::<Result<Vec<_>>>()?, 1);
    }
    let least = if out <= 64 { 65 } else { 2 }.max(256 / out.max(1) + 1);
    if l >= least || x.dtype() != DType::F32 || !cpu_kernels(x.device()) {
        return x.matmul(weight);
    }
    x.pad_with_zeros(0, 0, least - l)?.matmul(weight)?.narrow(0, 0, l)
}

/// (in, rows)
fn values(packed: &PackedWeight, rows: std::ops::Range<usize>) -> Result<Tensor> {
    let shape = (packed.cols(), rows.len());
    Tensor::from_vec(packed.dequantise(rows), shape, &Device::Cpu)
}

fn transposed(weight: &Tensor) -> Result<Tensor> {
    let weight = weight.contiguous()?;
    let (rows, cols) = weight.dims2()?;
    let (storage, layout) = weight.storage_and_layout();
    let (Storage::Cpu(CpuStorage::F32(data)), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        candle_core::bail!("This is a bug: a contiguous f32 tensor of the CPU is none");
    };
    let data = &data[start..end];
    let mut out = vec![0f32; data.len()];
    // Columns per cache line.
    const BLOCK: usize = 16;
    out.par_chunks_mut((BLOCK * rows).max(1)).enumerate().for_each(|(block, out)| {
        for (row, values) in data.chunks_exact(cols).enumerate() {
            let values = &values[block * BLOCK..cols.min((block + 1) * BLOCK)];
            for (to, value) in out.chunks_exact_mut(rows).zip(values) {
                to[row] = *value;
            }
        }
    });
    Tensor::from_vec(out, (cols, rows), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::super::packed::tests::{TYPES, blocks, packed, random};
    use super::*;

    fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
        Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    }

    #[test]
    fn prefill_has_the_same_bits_whether_values_are_kept_or_made_each_time_and_in_slices() -> Result<()> {
        for dtype in TYPES {
            let (rows, cols) = (200, 512);
            let (bytes, values) = blocks(dtype, rows, cols);
            let kept = Projection::quantised(packed(dtype, &bytes, rows, cols), None, true, false)?;
            let made = Projection::quantised(packed(dtype, &bytes, rows, cols), None, false, false)?;
            for l in [1, 7, 300] {
                let x = Tensor::randn(0f32, 1.0, (l, cols), &Device::Cpu)?;
                let y = kept.forward(&x, Phase::Prefill)?;
                assert_eq!(bits(&y)?, bits(&made.forward(&x, Phase::Prefill)?)?, "{dtype:?}, {l} rows");
                let difference = (y - x.matmul(&values.t()?)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < 1e-2, "{dtype:?}, {l} rows: {difference}");
                // 64 outputs, then 64, 64 and the last 8.
                let (kept, made) = (
                    kept.dense_product(&x, &mut None, Phase::Prefill, 1)?,
                    made.dense_product(&x, &mut None, Phase::Prefill, 1)?,
                );
                assert_eq!(kept.dims(), [l, rows]);
                assert_eq!(bits(&kept)?, bits(&made)?, "{dtype:?}, {l} rows in slices");
            }
        }
        Ok(())
    }

    #[test]
    fn a_row_of_a_prompt_has_the_same_bits_in_chunks_of_every_length() -> Result<()> {
        // Widths of real models; outputs of routers, of few heads, and of embeddings.
        for (cols, out) in
            [(64, 40), (576, 192), (576, 1536), (1536, 576), (1024, 16), (2048, 64), (640, 300)]
        {
            let weight = Tensor::randn(0f32, 1.0, (out, cols), &Device::Cpu)?;
            let x = Tensor::randn(0f32, 1.0, (400, cols), &Device::Cpu)?;
            for map in [Projection::dense(&weight, None)?, Projection::shared(&weight, None)?] {
                let whole = bits(&map.forward(&x, Phase::Prefill)?)?;
                let mut start = 0;
                for l in [1, 2, 3, 5, 8, 13, 24, 37, 64, 65, 70, 96] {
                    let part = bits(&map.forward(&x.narrow(0, start, l)?, Phase::Prefill)?)?;
                    assert_eq!(part, whole[start * out..(start + l) * out], "{l} rows, ({cols}, {out})");
                    start += l;
                }
            }
        }
        Ok(())
    }

    #[test]
    fn sums_of_f16_are_rounded_once() -> Result<()> {
        let apart = |a: &Tensor, b: &Tensor| -> Result<f64> {
            (a.to_dtype(DType::F64)? - b.to_dtype(DType::F64)?)?.sqr()?.mean_all()?.to_scalar::<f64>()
        };
        for (l, cols, out) in [(1, 48, 278), (1, 2048, 70), (3, 2048, 64), (37, 4096, 70)] {
            let halves =
                |rows, cols| Tensor::randn(0f32, 1.0, (rows, cols), &Device::Cpu)?.to_dtype(DType::F16);
            let (x, weight) = (halves(l, cols)?, halves(out, cols)?);
            let exact = x.to_dtype(DType::F64)?.matmul(&weight.to_dtype(DType::F64)?.t()?)?;
            let once = apart(&exact.to_dtype(DType::F16)?, &exact)?;
            for map in [Projection::dense(&weight, None)?, Projection::shared(&weight, None)?] {
                for phase in [Phase::Prefill, Phase::Decode] {
                    let y = map.forward(&x, phase)?;
                    assert_eq!((y.dims(), y.dtype()), (&[l, out][..], DType::F16));
                    let ratio = apart(&y, &exact)? / once;
                    assert!(ratio < 1.1, "{l} rows of {cols} in {phase:?}: {ratio} of one rounding's square");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn maps_of_one_input_give_together_what_each_gives_alone_dense_ones_too() -> Result<()> {
        let cols = 256;
        let bias = Tensor::randn(0f32, 1.0, 70, &Device::Cpu)?;
        let weight = Tensor::randn(0f32, 1.0, (33, cols), &Device::Cpu)?;
        let made = |dtype, rows, bias| Projection::quantised(random(dtype, rows, cols), bias, true, false);
        let maps = [
            &made(TYPES[1], 70, Some(bias))?,
            &Projection::dense(&weight, None)?,
            &made(TYPES[9], 128, None)?,
            &Projection::shared(&weight, None)?,
        ];
        let x = Tensor::randn(0f32, 1.0, (2, cols), &Device::Cpu)?;
        for phase in [Phase::Prefill, Phase::Decode] {
            let together = Projection::forward_all(maps, &x, phase)?;
            for (map, y) in maps.iter().zip(&together) {
                assert_eq!(bits(y)?, bits(&map.forward(&x, phase)?)?);
            }
            let expected = x.matmul(&weight.t()?)?;
            for y in [&together[1], &together[3]] {
                let difference = (y - &expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < 1e-4, "{difference}");
            }
        }
        Ok(())
    }

    #[test]
    fn quantised_weights_in_bf16_are_multiplied_as_their_rounded_values_kept_or_made() -> Result<()> {
        for dtype in TYPES {
            let (rows, cols) = (200, 512);
            let (bytes, values) = blocks(dtype, rows, cols);
            let kept = Projection::quantised(packed(dtype, &bytes, rows, cols), None, true, true)?;
            let made = Projection::quantised(packed(dtype, &bytes, rows, cols), None, false, true)?;
            let rounded = Projection::half(Arc::new(HalfWeight::new(&values)?), None);
            let x = Tensor::randn(0f32, 1.0, (70, cols), &Device::Cpu)?;
            let y = kept.forward(&x, Phase::Prefill)?;
            assert_eq!(bits(&y)?, bits(&made.forward(&x, Phase::Prefill)?)?, "{dtype:?}");
            assert_eq!(bits(&y)?, bits(&rounded.forward(&x, Phase::Prefill)?)?, "{dtype:?}");
            let sliced = made.dense_product(&x, &mut None, Phase::Prefill, 64 * cols)?;
            assert_eq!(bits(&y)?, bits(&sliced)?, "{dtype:?} in slices");
        }
        Ok(())
    }
}
