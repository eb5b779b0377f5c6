//! Self-test of the kernels against matrix products, once per process, shape and device.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, DType, Device, Result, Tensor};

use super::super::chunked::{BLOCKS, Chunked};
use super::super::kernel::{Kernel, RowSums};
use super::{decode, masses, prefill};
use crate::attention::call::Call;
use crate::attention::{AttentionKernel, AttentionShape, Holes, Sinks, Site};
use crate::transfer;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    card: DeviceId,
    dtype: DType,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: bool,
    softcap: bool,
    sinks: bool,
    hopper: bool,
}

impl Key {
    fn of(card: &CudaDevice, shape: &AttentionShape, hopper: bool) -> Self {
        let AttentionShape { dtype, heads, kv_heads, head_dim, sinks, .. } = *shape;
        let (window, softcap) = (shape.window.is_some(), shape.softcap.is_some());
        Key { card: card.id(), dtype, heads, kv_heads, head_dim, window, softcap, sinks, hopper }
    }
}

static TRIED: Mutex<Option<HashMap<Key, bool>>> = Mutex::new(None);

/// The offset is larger than a block of keys and not aligned to one.
const ROWS: usize = 21;
const OFFSET: usize = 303;
const WINDOW: usize = 100;
/// Of the kernel for Hopper: two thread blocks of two warpgroups, the last one not whole.
const ROWS_OF_GROUPS: usize = 150;

/// True if attention of this shape agrees with matrix products on the device. Runs a small synthetic problem; the result is cached.
pub fn holds(card: &CudaDevice, shape: &AttentionShape) -> Result<bool> {
    held(Key::of(card, shape, false), shape, "attention kernels", "products", || try_on(card, shape))
}

/// As [`holds`], of the prefill kernel for Hopper.
pub fn hopper_holds(card: &CudaDevice, shape: &AttentionShape) -> Result<bool> {
    let trial = || {
        if !prefill::is_hopper(card) {
            candle_core::bail!("it is for compute capability 9.0 alone")
        }
        try_hopper(card, shape)
    };
    held(Key::of(card, shape, true), shape, "the attention kernel for Hopper", "the fused kernels", trial)
}

/// Cached result of a trial, which is logged: `what` was tried, and what is used `instead` of it.
fn held(
    key: Key,
    shape: &AttentionShape,
    what: &str,
    instead: &str,
    trial: impl Fn() -> Result<f32>,
) -> Result<bool> {
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let tried = tried.get_or_insert_default();
    if let Some(held) = tried.get(&key) {
        return Ok(*held);
    }
    let started = Instant::now();
    let apart = trial();
    let milliseconds = started.elapsed().as_secs_f64() * 1e3;
    let held = matches!(apart, Ok(apart) if apart <= allowed(shape.dtype));
    match &apart {
        Ok(apart) if held => {
            tracing::info!(?shape, apart, milliseconds, "{what}: agreement with products");
        }
        Ok(apart) => {
            tracing::warn!(
                ?shape,
                apart,
                milliseconds,
                "{what}: no agreement with products; {instead} are used"
            );
        }
        Err(error) => tracing::warn!(?shape, %error, "{what} cannot be used; {instead} are"),
    }
    tried.insert(key, held);
    Ok(held)
}

/// Values have magnitude 1. Half precision rounds weights and results on both sides; f32 sums differ only in order.
fn allowed(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 4.0 / 256.0,
        DType::F16 => 4.0 / 2048.0,
        _ => 1e-4,
    }
}

/// Maximum absolute difference between kernels and products; infinite for NaN.
fn try_on(card: &CudaDevice, shape: &AttentionShape) -> Result<f32> {
    let device = &Device::Cuda(card.clone());
    let end = OFFSET + ROWS;
    let ([q, k, v], site) = problem(shape, ROWS, device)?;
    let bounds = [0, 1, OFFSET / 2, OFFSET, end];
    let products = Chunked(BLOCKS);
    let mut most = 0f32;
    // Covers the many-row and the few-row kernel.
    for rows in [0..ROWS, ROWS - 1..ROWS] {
        let count = rows.len() as f32;
        let of = RowSums { site: &site, rows, bounds: &bounds };
        let (found, expected) = (masses::segment_sums(&q, &k, &of)?, products.segment_sums(&q, &k, &of)?);
        most = most.max(apart(&found, &expected)? / count);
    }
    // Layers that the other kernels do not support only need the sums.
    if !shape.fused_serves() {
        return Ok(most);
    }
    let found = prefill::attention(&q, &k, &v, &site, false)?;
    let of_sequence = |q, site: &Site| of_sequence([q, &k, &v], site);
    let (expected, _) = products.attend(of_sequence(&q, &site)?)?;
    most = most.max(apart(&found, &expected)?);
    let last = Site { offset: end - 1, ..site };
    let q = q.narrow(0, ROWS - 1, 1)?;
    let (found, found_sums) = decode::decode(&q, &k, &v, &last, Some(&bounds))?;
    let (expected, sums) =
        products.attend(Call { borders: vec![Some(bounds.to_vec())], ..of_sequence(&q, &last)? })?;
    most = most.max(apart(&found, &expected)?);
    if let (Some(found), Some(expected)) = (found_sums, sums.into_iter().flatten().next()) {
        most = most.max(apart(&found, &expected)?);
    }
    Ok(most)
}

/// [`try_on`] for the prefill kernel for Hopper.
fn try_hopper(card: &CudaDevice, shape: &AttentionShape) -> Result<f32> {
    let ([q, k, v], site) = problem(shape, ROWS_OF_GROUPS, &Device::Cuda(card.clone()))?;
    let found = prefill::attention(&q, &k, &v, &site, true)?;
    let (expected, _) = Chunked(BLOCKS).attend(of_sequence([&q, &k, &v], &site)?)?;
    apart(&found, &expected)
}

/// Queries of `rows` rows from [`OFFSET`] on, keys and values up to the last of them, and the site.
fn problem(shape: &AttentionShape, rows: usize, device: &Device) -> Result<([Tensor; 3], Site)> {
    let (heads, kv_heads, d) = (shape.heads, shape.kv_heads, shape.head_dim);
    let end = OFFSET + rows;
    let q = made_up(1, (rows, heads, d), shape.dtype, device)?;
    let k = made_up(2, (kv_heads, end, d), shape.dtype, device)?;
    let v = made_up(3, (kv_heads, end, d), shape.dtype, device)?;
    // Sink logits from negligible to larger than all keys together.
    let sinks = || Sinks::new((0..heads).map(|head| (head % 3) as f32 * 3.0).collect(), device);
    let site = Site {
        layer: 0,
        offset: OFFSET,
        first_key: 0,
        scale: shape.scale,
        window: shape.window.map(|_| WINDOW),
        softcap: shape.softcap,
        sinks: shape.sinks.then(sinks).transpose()?,
        holes: Holes::default(),
        kernel: AttentionKernel::Auto,
    };
    Ok(([q, k, v], site))
}

/// The same attention as a call: rows from the site's offset to the last key.
fn of_sequence<'a>([q, k, v]: [&'a Tensor; 3], site: &Site) -> Result<Call<'a>> {
    let start = Site { offset: 0, ..site.clone() };
    Call::new(q, None, vec![(k, v)], k.dim(1)? - site.offset, &start, &[&site.holes])
}

/// Deterministic numbers from -1 to 1.
fn made_up(seed: u64, shape: (usize, usize, usize), dtype: DType, device: &Device) -> Result<Tensor> {
    let count = shape.0 * shape.1 * shape.2;
    let number = |i: usize| {
        let mixed = (i as u64 + (seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    transfer::upload((0..count).map(number).collect(), shape, device)?.to_dtype(dtype)
}

fn apart(a: &Tensor, b: &Tensor) -> Result<f32> {
    let numbers = |x: &Tensor| transfer::fetch(&x.to_dtype(DType::F32)?);
    let (a, b) = (numbers(a)?, numbers(b)?);
    let worst = |most: f32, (a, b): (&f32, &f32)| {
        let by = (a - b).abs();
        if by.is_nan() { f32::INFINITY } else { most.max(by) }
    };
    Ok(a.iter().zip(&b).fold(0.0, worst))
}
