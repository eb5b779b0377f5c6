//! FlashAttention on CUDA against the definition: on a GPU, or on the rehearsal with `scripts/flash_check.sh --run`, where a plain
//! implementation replaces the C function, so that only the call is tested.

use candle_core::{DType, Device, Result, Tensor};
use palimpsest_core::attention::{NoObserver, Site, run};

use super::{Inputs, apart, bits, numbers, site};

/// Head dims of the released models, and 80 and 96, which the kernels pad.
const WIDTHS: [usize; 5] = [64, 80, 96, 128, 256];

/// Largest relative rounding error.
fn rounding(dtype: DType) -> f64 {
    if dtype == DType::BF16 { 2f64.powi(-9) } else { 2f64.powi(-12) }
}

/// Weights and results are rounded once each, relative to values of at most 1.7; sums are in f32. Weights below 6e-5 are subnormal in f16,
/// where 1,000 of them round by 3e-5 together.
fn tolerance(dtype: DType) -> f64 {
    2.0 * 1.7 * rounding(dtype) + 1e-4
}

/// Inputs rounded to `dtype`, also as tensors on the device.
fn on_device(inputs: &mut Inputs, dtype: DType) -> Result<[Tensor; 3]> {
    // Opens the device as the program does: with a non-blocking stream.
    let device = &Device::new_cuda_with_stream(0)?;
    let [q, k, v] = inputs.tensors().map(|tensor| tensor.to_dtype(dtype).unwrap());
    let rounded = |tensor: &Tensor| numbers(&tensor.to_dtype(DType::F32).unwrap());
    (inputs.q, inputs.k, inputs.v) = (rounded(&q), rounded(&k), rounded(&v));
    Ok([q.to_device(device)?, k.to_device(device)?, v.to_device(device)?])
}

fn on_host(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)
}

fn check(l: usize, offset: usize, heads: (usize, usize), d: usize, change: impl Fn(&mut Site)) -> Result<()> {
    for dtype in [DType::BF16, DType::F16] {
        let mut inputs = Inputs::new(l, offset, heads, d);
        let [q, k, v] = on_device(&mut inputs, dtype)?;
        let mut site = site(offset, d);
        change(&mut site);
        let out = run(&q, &k, &v, &site, &mut NoObserver)?;
        assert_eq!((out.dims(), out.dtype()), (q.dims(), dtype));
        let difference = apart(&numbers(&on_host(&out)?), &inputs.output(&site));
        let tolerance = tolerance(dtype);
        assert!(
            difference < tolerance,
            "{dtype:?}, l {l}, heads {heads:?}, {d} wide, {site:?}: off by {difference:e}"
        );
    }
    Ok(())
}

#[test]
fn every_width_offset_and_grouping_equals_the_definition() -> Result<()> {
    for d in WIDTHS {
        for (l, offset) in [(1, 0), (1, 40), (2, 0), (5, 130), (64, 0), (150, 60)] {
            for heads in [(1, 1), (6, 1), (9, 3), (4, 4)] {
                check(l, offset, heads, d, |_| {})?;
            }
        }
    }
    Ok(())
}

#[test]
fn windows_end_at_the_same_key_as_the_definition() -> Result<()> {
    for window in [1, 2, 7, 63, 64, 65, 200, 100_000] {
        for (l, offset) in [(1, 0), (1, 199), (1, 300), (64, 0), (70, 64), (5, 700)] {
            check(l, offset, (6, 2), 80, |site| site.window = Some(window))?;
        }
    }
    Ok(())
}

#[test]
fn the_scale_is_the_sites_own() -> Result<()> {
    check(20, 30, (4, 2), 128, |site| site.scale = 0.3)
}

/// `tensor` (kv_heads, n, d) as rows `from..` of a cache with `capacity` rows per head; the rest is NaN.
fn in_cache(tensor: &Tensor, capacity: usize, from: usize) -> Result<Tensor> {
    let (kv_heads, n, d) = tensor.dims3()?;
    let cache = (Tensor::ones((kv_heads, capacity, d), tensor.dtype(), tensor.device())? * f64::NAN)?;
    cache.slice_set(tensor, 1, from)?;
    cache.narrow(1, from, n)
}

#[test]
fn views_of_a_cache_give_the_bits_of_tensors_of_their_own() -> Result<()> {
    for (l, offset, d) in [(1, 90, 64), (33, 90, 80), (40, 0, 256)] {
        let [q, k, v] = on_device(&mut Inputs::new(l, offset, (6, 2), d), DType::BF16)?;
        let site = site(offset, d);
        let own = run(&q, &k, &v, &site, &mut NoObserver)?;
        let viewed = run(&q, &in_cache(&k, 200, 3)?, &in_cache(&v, 160, 8)?, &site, &mut NoObserver)?;
        assert_eq!(bits(&on_host(&viewed)?), bits(&on_host(&own)?), "l {l}, offset {offset}, {d} wide");
    }
    Ok(())
}

#[test]
fn a_layer_that_dropped_the_keys_outside_its_window_gives_the_same() -> Result<()> {
    let (l, offset, window, d) = (9, 120, 32, 96);
    let [q, k, v] = on_device(&mut Inputs::new(l, offset, (6, 2), d), DType::F16)?;
    let mut site = site(offset, d);
    site.window = Some(window);
    let all = run(&q, &k, &v, &site, &mut NoObserver)?;
    site.first_key = offset + 1 - window;
    let kept = |tensor: &Tensor| tensor.narrow(1, site.first_key, l + window - 1);
    let some = run(&q, &kept(&k)?, &kept(&v)?, &site, &mut NoObserver)?;
    // The kernels block keys from the first one, so the summation order may differ.
    let difference = apart(
        &numbers(&on_host(&some)?),
        &numbers(&on_host(&all)?).into_iter().map(f64::from).collect::<Vec<_>>(),
    );
    assert!(difference < tolerance(DType::F16), "off by {difference:e}");
    Ok(())
}

#[test]
fn queries_may_be_views_too() -> Result<()> {
    let (l, offset, heads, d) = (12, 20, 4, 64);
    let [q, k, v] = on_device(&mut Inputs::new(l, offset, (heads, 2), d), DType::F16)?;
    let site = site(offset, d);
    let own = bits(&on_host(&run(&q, &k, &v, &site, &mut NoObserver)?)?);
    // Strided inputs: rows of a wider projection, heads before rows, and a non-contiguous head dim.
    let wide = Tensor::cat(&[&q, &q, &q], 1)?.narrow(1, heads, heads)?;
    let heads_first = q.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
    let apart = q.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
    for view in [wide, heads_first, apart] {
        assert!(!view.is_contiguous());
        let viewed = bits(&on_host(&run(&view, &k, &v, &site, &mut NoObserver)?)?);
        assert_eq!(viewed, own, "strides {:?}", view.stride());
    }
    Ok(())
}
