//! The CPU kernel and the chunked kernel, which serves other devices, agree.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::super::call::{Attended, Call};
use super::super::{AttentionKernel, AttentionShape, Hole, Holes, Sinks, Site, Tail, run_after};
use super::chunked::Blocks;
use super::{BLOCKS, Chunked, Cpu, Kernel, OverRows, RowSums, chunked, cpu, lengths};

/// Values are of order 1, so this allows a few f32 roundings.
const TOLERANCE: f64 = 1e-5;

/// Blocks so small that a row spans many, and the default, which holds all of these inputs at once.
const SIZES: [Blocks; 3] =
    [Blocks { rows: 3, scores: 200, keys: 1000 }, Blocks { rows: 64, scores: 1 << 16, keys: 7 }, BLOCKS];

struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    site: Site,
}

fn calls() -> Result<Vec<Inputs>> {
    let device = &Device::Cpu;
    let mut calls = Vec::new();
    for (heads, kv_heads, d) in [(1, 1, 8), (3, 1, 64), (9, 3, 12), (8, 2, 80)] {
        for (l, offset) in [(1, 0), (2, 0), (5, 40), (64, 0), (193, 60), (1, 1300)] {
            for (window, softcap, with_sinks) in [
                (None, None, false),
                (Some(1), None, true),
                (Some(7), Some(2.0), false),
                (Some(512), None, true),
            ] {
                let keys = (kv_heads, offset + l, d);
                calls.push(Inputs {
                    q: Tensor::randn(0f32, 2.0, (l, heads, d), device)?,
                    k: Tensor::randn(0f32, 1.0, keys, device)?,
                    v: Tensor::randn(0f32, 1.0, keys, device)?,
                    site: Site {
                        window,
                        softcap,
                        sinks: with_sinks.then(|| sinks_of(heads)),
                        holes: if with_sinks { some_holes(offset, l) } else { Default::default() },
                        ..site(offset, d)
                    },
                });
            }
        }
    }
    Ok(calls)
}

fn some_holes(offset: usize, l: usize) -> Holes {
    let end = offset + l;
    Holes::new(vec![
        Hole { rows: offset + l / 3..usize::MAX, keys: end / 5..end / 2 },
        Hole { rows: 0..end, keys: end / 3..end / 3 + 3 },
        Hole { rows: end - 1..end, keys: 0..end },
    ])
}

fn apart(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>) -> f64 {
    let worst = |most: f64, (a, b): (f64, f64)| {
        let by = (a - b).abs();
        if by.is_nan() { f64::INFINITY } else { most.max(by) }
    };
    a.into_iter().zip(b).fold(0.0, worst)
}

fn numbers(tensor: &Tensor) -> Result<impl Iterator<Item = f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?.into_iter())
}

/// Fails unless both have one shape and are within the tolerance of each other.
fn agree(found: &Tensor, expected: &Tensor, about: impl std::fmt::Debug) -> Result<()> {
    assert_eq!(found.dims(), expected.dims());
    let difference = apart(numbers(found)?, numbers(expected)?);
    assert!(difference < TOLERANCE, "{about:?}: off by {difference:e}");
    Ok(())
}

fn site(offset: usize, d: usize) -> Site {
    Site { offset, scale: 1.0 / (d as f32).sqrt(), ..Site::default() }
}

fn sinks_of(heads: usize) -> Sinks {
    Sinks::new((0..heads).map(|h| h as f32 - 2.0).collect(), &Device::Cpu).unwrap()
}

fn of<'a>(site: &'a Site, rows: Range<usize>, bounds: &'a [usize]) -> RowSums<'a> {
    RowSums { site, rows, bounds }
}

fn attended(
    kernel: &dyn Kernel,
    [q, k, v]: [&Tensor; 3],
    site: &Site,
    borders: Option<&[usize]>,
) -> Result<(Tensor, Option<Tensor>)> {
    let start = Site { offset: site.first_key, ..site.clone() };
    let call = Call::new(q, None, vec![(k, v)], q.dim(0)?, &start, &[&site.holes])?;
    let borders = borders.map(|borders| Some(borders.to_vec())).into_iter().collect();
    let (out, sums) = kernel.attend(Call { borders, ..call })?;
    Ok((out, sums.into_iter().flatten().next()))
}

fn branched(
    kernel: &dyn Kernel,
    [q, k, v]: [&Tensor; 3],
    own: &[(Tensor, Tensor)],
    site: &Site,
    borders: &[Option<Vec<usize>>],
) -> Result<Attended> {
    let tails = own.iter().map(|(k, v)| (k, v)).collect();
    let call = Call::new(q, Some((k, v)), tails, 1, site, &vec![&site.holes; own.len()])?;
    kernel.attend(Call { borders: borders.to_vec(), ..call })
}

#[test]
fn the_chunked_kernel_equals_the_cpu_kernel_at_every_block_size() -> Result<()> {
    for Inputs { q, k, v, site } in calls()? {
        let expected = attended(&Cpu, [&q, &k, &v], &site, None)?.0;
        for size in SIZES {
            let found = attended(&Chunked(size), [&q, &k, &v], &site, None)?.0;
            agree(&found, &expected, (q.dims(), &site, size))?;
        }
    }
    Ok(())
}

#[test]
fn branches_get_what_each_would_get_as_a_sequence_of_its_own_at_every_block_size() -> Result<()> {
    let device = &Device::Cpu;
    for (heads, kv_heads, d) in [(3, 1, 64), (8, 2, 16)] {
        for (base, tails) in
            [(0, vec![1, 5]), (256, vec![70, 1, 300]), (1024, vec![255]), (512, vec![9, 9, 9])]
        {
            for (window, softcap, with_sinks) in [
                (None, None, false),
                (Some(7), Some(2.0), true),
                (Some(290), None, false),
                (None, Some(3.0), true),
            ] {
                let some = |l: usize| Tensor::randn(0f32, 1.0, (kv_heads, l, d), device);
                let (k, v) = (some(base)?, some(base)?);
                let own = tails.iter().map(|&l| Ok((some(l)?, some(l)?))).collect::<Result<Vec<_>>>()?;
                let q = Tensor::randn(0f32, 2.0, (tails.len(), heads, d), device)?;
                let sinks = with_sinks.then(|| sinks_of(heads));
                let site = Site { window, softcap, sinks, ..site(base, d) };
                let asked: Vec<Option<Vec<usize>>> = (tails.iter().enumerate())
                    .map(|(row, l)| (row != 1).then(|| borders(base + l - row.min(*l))))
                    .collect();
                let (with, of_cpu) = branched(&Cpu, [&q, &k, &v], &own, &site, &asked)?;
                let (without, _) = branched(&Cpu, [&q, &k, &v], &own, &site, &[])?;
                assert!(numbers(&with)?.eq(numbers(&without)?), "{site:?}");
                for size in SIZES {
                    let (found, sums) = branched(&Chunked(size), [&q, &k, &v], &own, &site, &asked)?;
                    assert_eq!(found.dims(), q.dims());
                    for (row, (own_k, own_v)) in own.iter().enumerate() {
                        let (k, v) = (Tensor::cat(&[&k, own_k], 1)?, Tensor::cat(&[&v, own_v], 1)?);
                        let site = Site { offset: base + tails[row] - 1, ..site.clone() };
                        let expected = attended(&Cpu, [&q.narrow(0, row, 1)?, &k, &v], &site, None)?.0;
                        agree(&found.narrow(0, row, 1)?, &expected, (base, &tails, row, &site))?;
                        let Some(borders) = &asked[row] else {
                            assert!(sums[row].is_none() && of_cpu[row].is_none());
                            continue;
                        };
                        let alone = Cpu.segment_sums(&q.narrow(0, row, 1)?, &k, &of(&site, 0..1, borders))?;
                        for sums in [&sums[row], &of_cpu[row]] {
                            agree(sums.as_ref().unwrap(), &alone, (base, &tails, row))?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn both_kernels_measure_the_same_segments_at_every_block_size() -> Result<()> {
    for Inputs { q, k, site, .. } in calls()? {
        let l = q.dim(0)?;
        let keys = site.offset + l;
        // Segments that start after the first key, one of them a single key, and end at the last.
        let bounds = [keys / 7, keys / 3, keys / 3 + 1, keys / 2 + 1, keys];
        let bounds: Vec<usize> = bounds.into_iter().filter(|&b| b <= keys).collect();
        for rows in [0..l, l / 3..l, 0..l.div_ceil(2)] {
            let n = rows.len() as f64;
            let expected = Cpu.segment_sums(&q, &k, &of(&site, rows.clone(), &bounds))?;
            for size in SIZES {
                let found = Chunked(size).segment_sums(&q, &k, &of(&site, rows.clone(), &bounds))?;
                assert_eq!(found.dims(), expected.dims());
                let difference = apart(numbers(&found)?, numbers(&expected)?) / n;
                assert!(difference < TOLERANCE, "{site:?} {size:?}: off by {difference:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn readings_together_get_what_each_gets_alone() -> Result<()> {
    let device = &Device::Cpu;
    for (heads, kv_heads, d) in [(3, 1, 64), (8, 2, 16), (4, 4, 20)] {
        for (base, l, readings) in [(1, 1, 2), (130, 70, 3), (700, 5, 9), (64, 129, 1)] {
            for (window, softcap, with_sinks) in [
                (None, None, false),
                (Some(7), Some(2.0), true),
                (Some(150), None, false),
                (None, Some(3.0), true),
            ] {
                let some = |n: usize| Tensor::randn(0f32, 1.0, (kv_heads, n, d), device);
                let (k, v, own_k, own_v) =
                    (some(base)?, some(base)?, some(readings * l)?, some(readings * l)?);
                let q = Tensor::randn(0f32, 2.0, (readings * l, heads, d), device)?;
                let sinks = with_sinks.then(|| sinks_of(heads));
                let site = Site { window, softcap, sinks, ..site(base, d) };
                // Each reading hides other keys: the first none, the last some of its own.
                let mut holes: Vec<Holes> = (0..readings)
                    .map(|nth| match nth {
                        0 => Holes::default(),
                        _ => Holes::new(vec![Hole {
                            rows: base + nth % l..usize::MAX,
                            keys: base * nth / (2 * readings)..base * (nth + 1) / (2 * readings),
                        }]),
                    })
                    .collect();
                if l > 10 {
                    let more = Hole { rows: base + 9..base + l, keys: base..base + 4 };
                    holes[readings - 1] = Holes::new(vec![more]);
                }
                let part = |x: &Tensor, nth: usize| x.narrow(1, nth * l, l);
                let own = (0..readings).map(|nth| Ok((part(&own_k, nth)?, part(&own_v, nth)?)));
                let own = own.collect::<Result<Vec<_>>>()?;
                let tail = |((k, v), holes): (_, &Holes)| Tail { k, v, holes: holes.clone(), observer: None };
                let mut tails: Vec<Tail> = own.iter().map(|(k, v)| (k, v)).zip(&holes).map(tail).collect();
                let together = run_after(&q, (&k, &v), &mut tails, l, &site)?;
                for (nth, holes) in holes.iter().enumerate() {
                    let k = Tensor::cat(&[&k, &own[nth].0], 1)?;
                    let v = Tensor::cat(&[&v, &own[nth].1], 1)?;
                    let q = q.narrow(0, nth * l, l)?;
                    let site = Site { holes: holes.clone(), ..site.clone() };
                    let expected = attended(&Chunked(BLOCKS), [&q, &k, &v], &site, None)?.0;
                    let found = together.narrow(0, nth * l, l)?;
                    agree(&found, &expected, (base, l, nth, &site))?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn both_kernels_read_the_same_values_of_segments_at_every_block_size() -> Result<()> {
    for Inputs { q, k, v, site } in calls()? {
        let (l, keys) = (q.dim(0)?, k.dim(1)?);
        let bounds = [borders(keys), vec![0, keys], vec![keys / 3, keys / 3 + 1, keys / 2 + 1]];
        for ((bounds, rows), size) in bounds.into_iter().zip([0..l, l - 1..l, l / 3..l]).zip(SIZES) {
            let found = cpu::value_sums([&q, &k, &v], &of(&site, rows.clone(), &bounds))?;
            let expected =
                Chunked(size).values_and_lengths([&q, &k, &v], None, &of(&site, rows.clone(), &bounds))?.read;
            agree(&found, &expected, (rows, bounds, &site, size))?;
        }
    }
    Ok(())
}

/// The reference is the tensor path, which the parity tests compare with transformers. Spans overlap, and some are empty.
#[test]
fn both_kernels_measure_the_same_lengths_with_gates_and_without() -> Result<()> {
    for (nth, Inputs { q, k, v, site }) in calls()?.into_iter().enumerate() {
        let ((l, heads, d), keys) = (q.dims3()?, k.dim(1)?);
        let outputs = Tensor::randn(0f32, 0.3, (heads, d, 2 * d + 1), &Device::Cpu)?;
        let gram = &outputs.matmul(&outputs.transpose(1, 2)?)?;
        let lengths = &cpu::key_lengths(&v, gram)?;
        let expected = lengths::key_lengths(&v, gram)?;
        let difference = apart(numbers(lengths)?, numbers(&expected)?);
        assert!(difference < 1e-4, "{:?}: off by {difference:e}", v.dims());
        let gate = Tensor::rand(0f32, 1.0, (l, heads, d), &Device::Cpu)?;
        let gate = nth.is_multiple_of(2).then_some(&gate);
        let carried = super::Carried { lengths, gram, gate };
        let bounds = borders(keys);
        let segments = bounds.len() - 1;
        let spans = [0..segments, 0..1, segments / 2..segments, 1.min(segments)..1.min(segments)];
        for rows in [0..l, l - 1..l] {
            let of = of(&site, rows.clone(), &bounds);
            let found = cpu::length_sums([&q, &k, &v], &carried, &of, &spans)?;
            let expected = lengths::length_sums([&q, &k, &v], &carried, &of, &spans)?;
            let pairs = [(found.values, expected.values), (found.outputs, expected.outputs)];
            for (found, expected) in pairs {
                assert_eq!(found.len(), heads * spans.len());
                let most = expected.iter().copied().fold(1.0, f64::max);
                let difference = apart(found, expected) / most;
                assert!(difference < TOLERANCE, "{rows:?} {site:?}: off by {difference:e}");
            }
        }
    }
    Ok(())
}

/// One segment is a single key, and some lie past the last key.
fn borders(keys: usize) -> Vec<usize> {
    vec![keys / 7, keys / 3, keys / 3 + 1, keys / 2 + 1, keys + 2, keys + 9]
}

#[test]
fn both_kernels_sum_a_decoded_rows_weights_as_a_pass_of_its_own_does_and_change_no_bit_by_it() -> Result<()> {
    for Inputs { q, k, v, site } in calls()?.into_iter().filter(|call| call.q.dim(0).is_ok_and(|l| l == 1)) {
        let all = borders(site.offset + 1);
        for borders in [&all[..], &all[..2], &[]] {
            let expected = Cpu.segment_sums(&q, &k, &of(&site, 0..1, borders))?;
            let (plain, none) = attended(&Cpu, [&q, &k, &v], &site, None)?;
            assert!(none.is_none());
            let (out, sums) = attended(&Cpu, [&q, &k, &v], &site, Some(borders))?;
            assert!(numbers(&out)?.eq(numbers(&plain)?), "{site:?}");
            let difference = apart(numbers(&sums.unwrap())?, numbers(&expected)?);
            assert!(difference < 1e-6, "{site:?} {borders:?}: off by {difference:e}");
            for size in SIZES {
                let (plain, _) = attended(&Chunked(size), [&q, &k, &v], &site, None)?;
                let (out, sums) = attended(&Chunked(size), [&q, &k, &v], &site, Some(borders))?;
                assert!(numbers(&out)?.eq(numbers(&plain)?), "{site:?}");
                agree(&sums.unwrap(), &expected, (&site, size, borders))?;
            }
        }
    }
    Ok(())
}

#[test]
fn nan_in_keys_reaches_the_output_of_the_chunked_kernel() -> Result<()> {
    for at in [0, 30, 49] {
        let device = &Device::Cpu;
        let mut keys = vec![0.5f32; 50 * 8];
        keys[at * 8] = f32::NAN;
        let q = Tensor::ones((10, 2, 8), DType::F32, device)?;
        let k = Tensor::from_vec(keys, (1, 50, 8), device)?;
        let v = Tensor::ones((1, 50, 8), DType::F32, device)?;
        let site = Site { scale: 1.0, ..site(40, 1) };
        for size in SIZES {
            let out = attended(&Chunked(size), [&q, &k, &v], &site, None)?.0;
            assert!(numbers(&out.narrow(0, 9, 1)?)?.all(f64::is_nan), "key {at}, {size:?}");
        }
    }
    Ok(())
}

fn shape(dtype: DType, head_dim: usize) -> AttentionShape {
    let (window, softcap) = (None, None);
    AttentionShape { dtype, heads: 8, kv_heads: 2, head_dim, scale: 1.0, window, softcap, sinks: false }
}

#[test]
fn flash_attention_serves_half_precision_without_sinks_or_caps_and_no_wider_heads_than_it_has() {
    let plain = shape(DType::BF16, 64);
    for (shape, served) in [
        (shape(DType::BF16, 128), true),
        (shape(DType::F16, 64), true),
        (AttentionShape { window: Some(128), ..shape(DType::BF16, 256) }, true),
        (shape(DType::BF16, 8), true),
        (shape(DType::F32, 128), false),
        (shape(DType::BF16, 264), false),
        (shape(DType::BF16, 100), false),
        (AttentionShape { softcap: Some(50.0), ..plain }, false),
        (AttentionShape { sinks: true, ..plain }, false),
    ] {
        let taken = if served { AttentionKernel::Flash } else { AttentionKernel::Products };
        assert_eq!(AttentionKernel::Flash.of_layer(&shape), taken, "{shape:?}");
        assert_eq!(AttentionKernel::Flash.of_branches(&shape), AttentionKernel::Products);
        assert_eq!(AttentionKernel::Flash.of_sums(&shape), AttentionKernel::Products);
    }
}

#[test]
fn our_kernels_are_given_what_they_serve_and_products_the_rest() {
    use AttentionKernel::{Auto, Fused, Hopper, Products};
    let all =
        |dtype, d| AttentionShape { window: Some(3), softcap: Some(1.0), sinks: true, ..shape(dtype, d) };
    for choice in [Auto, Fused] {
        for d in [4, 20, 64, 80, 128, 256] {
            assert_eq!(choice.of_layer(&all(DType::BF16, d)), Fused, "{d}");
            assert_eq!(choice.of_branches(&all(DType::F16, d)), Fused, "{d}");
        }
        for d in [6, 257, 260] {
            assert_eq!(choice.of_layer(&all(DType::F16, d)), Products, "{d}");
        }
        assert_eq!(choice.of_layer(&all(DType::F32, 64)), Products);
        assert_eq!(choice.of_layer(&AttentionShape { scale: -1.0, ..all(DType::F16, 64) }), Products);
        assert_eq!(choice.of_sums(&all(DType::F32, 6)), Fused);
        for dtype in [DType::F16, DType::BF16] {
            assert_eq!(choice.of_sums(&all(dtype, 64)), Fused, "{dtype:?}");
            assert_eq!(choice.of_sums(&all(dtype, 6)), Products, "{dtype:?}");
        }
        assert_eq!(choice.of_sums(&all(DType::F64, 64)), Products);
    }
    // The kernel for Hopper takes the prefill that the fused kernels serve.
    for (d, taken) in [(64, Hopper), (20, Hopper), (256, Hopper), (6, Products), (260, Products)] {
        assert_eq!(Hopper.of_layer(&all(DType::BF16, d)), taken, "{d}");
    }
    assert_eq!(Hopper.of_layer(&all(DType::F32, 64)), Products);
    assert_eq!(Hopper.of_branches(&all(DType::F16, 64)), Fused);
    assert_eq!(Hopper.of_sums(&all(DType::F16, 64)), Fused);
    assert!(!Hopper.runs_on(&Device::Cpu) && Fused.runs_on(&Device::Cpu));
    for of in [AttentionKernel::of_layer, AttentionKernel::of_branches, AttentionKernel::of_sums] {
        assert_eq!(of(Products, &all(DType::F16, 64)), Products);
    }
}

#[test]
fn a_device_without_a_choice_of_kernels_settles_nothing() -> Result<()> {
    assert_eq!(super::settle(AttentionKernel::Auto, &Device::Cpu, &shape(DType::BF16, 64))?, None);
    Ok(())
}

#[test]
fn each_keys_weight_over_rows_is_that_of_the_rows_one_by_one() -> Result<()> {
    for Inputs { q, k, site, .. } in calls()? {
        let (l, keys) = (q.dim(0)?, k.dim(1)?);
        let rows = l / 3..l;
        let one_by_one: Vec<Vec<Vec<f32>>> =
            rows.clone().map(|row| super::row_weights(&q, &k, &site, row)).collect::<Result<_>>()?;
        for over in [OverRows::Sum, OverRows::Largest] {
            let of = |head: usize, key: usize| {
                let weights = one_by_one.iter().map(|row| f64::from(row[head][key]));
                match over {
                    OverRows::Sum => weights.sum::<f64>(),
                    OverRows::Largest => weights.fold(0.0, f64::max),
                }
            };
            let expected: Vec<f64> = (0..q.dim(1)?)
                .flat_map(|head| (0..keys).map(move |key| (head, key)))
                .map(|(h, k)| of(h, k))
                .collect();
            let expected = Tensor::from_vec(expected, (q.dim(1)?, keys), &Device::Cpu)?;
            let about = (q.dims(), &site, over);
            agree(&cpu::key_weights(&q, &k, &site, rows.clone(), over)?, &expected, about)?;
            agree(&chunked::key_weights(&q, &k, &site, rows.clone(), over)?, &expected, about)?;
        }
    }
    Ok(())
}
