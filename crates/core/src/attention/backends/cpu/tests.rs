//! Results are equal for every vector width, and for branches and whole sequences.

use candle_core::{DType, Device, Tensor};
use pulp::{Scalar, Simd};

use super::super::super::{Sinks, Site};
use super::fold::{Fold, Segments, WeightedValues};
use super::sequence::Stored;
use super::walk::{Walk, Walked};
use super::*;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn site(window: Option<usize>) -> Site {
    Site { scale: 0.3, window, ..Site::default() }
}

fn walked<F: Fold, S: Simd>(simd: S, data: &Data, rows: usize, site: &Site, fold: F) -> Walked<F> {
    simd.vectorize(Walk {
        queries: data.q.chunks_exact(data.d).take(rows).collect(),
        positions: (0..rows).map(|r| 300 - rows.div_ceil(2) + r / 2).collect(),
        hidden: Vec::new(),
        keys: Stored::F32(&data.k),
        range: 3..300,
        site,
        in_pairs: false,
        fold,
    })
}

struct Data {
    d: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn numbers<S: Simd>(simd: S, data: &Data, rows: usize, site: &Site) -> Vec<f64> {
    let bounds = [0, 5, 130, 131, 290, 300];
    let values = WeightedValues::new(Stored::F32(&data.v), data.d, false);
    let Walked { max, sum, fold } = walked(simd, data, rows, site, values);
    let segments = walked(simd, data, rows, site, Segments::new(&bounds)).fold;
    let sums = (0..rows).flat_map(|r| (0..bounds.len() - 1).map(move |s| (r, s)));
    let sums = sums.map(|(r, s)| segments.sum(r, s));
    let floats = max.into_iter().chain(sum).chain(fold.rows(rows)).map(f64::from);
    floats.chain(sums).collect()
}

#[test]
fn vectors_of_every_width_give_the_plain_loops_numbers() {
    // d with full and partial blocks of dimensions; few rows, just over one panel, several panels.
    for (d, rows) in [(64, 3), (12, 5), (80, 50), (33, 131)] {
        let data = Data { d, q: noise(rows * d, 1), k: noise(300 * d, 2), v: noise(300 * d, 3) };
        for window in [None, Some(1), Some(40)] {
            let site = site(window);
            let expected = numbers(Scalar, &data, rows, &site);
            let check = |name: &str, found: Vec<f64>| {
                assert_eq!(found.len(), expected.len());
                for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                    let off = (a - b).abs() / b.abs().max(1.0);
                    assert!(off < 1e-5, "{name}, d {d}, {rows} rows, {window:?}: number {i} is {a}, not {b}");
                }
            };
            #[cfg(target_arch = "x86_64")]
            {
                if let Some(simd) = pulp::x86::V3::try_new() {
                    check("AVX2", numbers(simd, &data, rows, &site));
                }
                if let Some(simd) = pulp::x86::V4::try_new() {
                    check("AVX-512", numbers(simd, &data, rows, &site));
                }
            }
            #[cfg(target_arch = "aarch64")]
            if let Some(simd) = pulp::aarch64::Neon::try_new() {
                check("NEON", numbers(simd, &data, rows, &site));
            }
            check("what is dispatched to", {
                struct Dispatched<'a>(&'a Data, usize, &'a Site);
                impl pulp::WithSimd for Dispatched<'_> {
                    type Output = Vec<f64>;
                    #[inline(always)]
                    fn with_simd<S: Simd>(self, simd: S) -> Vec<f64> {
                        numbers(simd, self.0, self.1, self.2)
                    }
                }
                pulp::Arch::new().dispatch(Dispatched(&data, rows, &site))
            });
        }
    }
}

/// Outputs of rows, (rows, heads, d).
fn attended(
    q: &Tensor,
    prefix: Option<(&Tensor, &Tensor)>,
    tails: Vec<(&Tensor, &Tensor)>,
    rows: usize,
    site: &Site,
) -> Result<Vec<Vec<Vec<f32>>>> {
    let holes = vec![&site.holes; tails.len()];
    let out = Cpu.attend(Call::new(q, prefix, tails, rows, site, &holes)?)?.0;
    assert_eq!(out.dtype(), q.dtype());
    out.to_dtype(DType::F32)?.to_vec3()
}

fn alone(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site) -> Result<Vec<Vec<Vec<f32>>>> {
    attended(q, None, vec![(k, v)], q.dim(0)?, &Site { offset: 0, ..site.clone() })
}

#[test]
fn branches_are_bit_equal_to_the_sequences_that_they_continue() -> Result<()> {
    let heads = [(9, 3, 64), (4, 1, 20), (10, 1, 16), (4, 1, 96)];
    let bases = [(0, vec![1, 40]), (256, vec![1, 300, 256]), (1280, vec![5, 255, 700])];
    for (dtype, (heads, kv_heads, d)) in
        [DType::F32, DType::BF16].into_iter().flat_map(|dtype| heads.map(|sizes| (dtype, sizes)))
    {
        let tensor = |shape: (usize, usize, usize), seed| {
            Tensor::from_vec(noise(shape.0 * shape.1 * shape.2, seed), shape, &Device::Cpu)?.to_dtype(dtype)
        };
        let keys = |n: usize, seed| tensor((kv_heads, n, d), seed);
        for (base, lengths) in &bases {
            let before = |seed| keys(base.max(&1).to_owned(), seed)?.narrow(1, 0, *base);
            let (k, v) = (before(1)?, before(2)?);
            let q = (tensor((lengths.len(), heads, d), 3)? * 3.0)?;
            let tails = lengths.iter().map(|&n| Ok((keys(n, n as u64)?, keys(n, n as u64 + 9)?)));
            let tails = tails.collect::<Result<Vec<_>>>()?;
            for (window, sinks) in [(None, false), (Some(30), false), (Some(601), true)] {
                let sinks = sinks.then(|| Sinks::new(vec![0.5; heads], &Device::Cpu).unwrap());
                let site = Site { offset: *base, sinks, ..site(window) };
                let own = tails.iter().map(|(k, v)| (k, v)).collect();
                let found = attended(&q, Some((&k, &v)), own, 1, &site)?;
                for (branch, (own_k, own_v)) in tails.iter().enumerate() {
                    let site = Site { offset: base + lengths[branch] - 1, ..site.clone() };
                    let whole = |a: &Tensor, b: &Tensor| match base {
                        0 => Ok(b.clone()),
                        _ => Tensor::cat(&[a, b], 1),
                    };
                    let (k, v) = (whole(&k, own_k)?, whole(&v, own_v)?);
                    let alone = alone(&q.narrow(0, branch, 1)?, &k, &v, &site)?;
                    assert_eq!(
                        found[branch], alone[0],
                        "{dtype:?}, {heads} heads, branch {branch}, {site:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Softmax weights of a row's scores.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
    scores.iter().map(|s| (s - max).exp() / sum).collect()
}

fn dot(scale: f32, a: &[f64], b: &[f64]) -> f64 {
    f64::from(scale) * a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>()
}

fn plain(t: &Tensor) -> Result<Vec<f64>> {
    t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Queries (l, heads, d), keys and values (kv_heads, n, d), with bf16-representable values.
fn bf16_numbers(l: usize, [heads, kv_heads, n, d]: [usize; 4]) -> Result<[Tensor; 3]> {
    let tensor = |shape: (usize, usize, usize), seed| {
        let numbers = noise(shape.0 * shape.1 * shape.2, seed);
        Tensor::from_vec(numbers, shape, &Device::Cpu)?.to_dtype(DType::BF16)
    };
    // Larger scores make the weights differ.
    let q = (tensor((l, heads, d), 7)? * 4.0)?;
    Ok([q, tensor((kv_heads, n, d), 8)?, tensor((kv_heads, n, d), 9)?])
}

const SHAPES: [(usize, [usize; 4]); 9] = [
    (1, [6, 2, 331, 96]),
    (1, [4, 2, 300, 64]),
    (1, [2, 2, 141, 32]),
    (1, [5, 1, 321, 160]),
    (1, [8, 1, 260, 128]),
    (5, [4, 4, 131, 20]),
    (70, [9, 3, 400, 64]),
    (200, [3, 1, 200, 34]),
    (64, [2, 1, 700, 128]),
];

#[test]
fn a_cache_of_fewer_bits_is_attended_to_as_its_numbers_in_f32_would_be_bit_by_bit() -> Result<()> {
    for (l, shape) in SHAPES {
        for dtype in [DType::BF16, DType::F16] {
            let [q, k, v] = bf16_numbers(l, shape)?;
            let (q, k, v) = (q.to_dtype(DType::F32)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?);
            for window in [None, Some(50)] {
                let site = Site { offset: shape[2] - l, ..site(window) };
                let (wide_k, wide_v) = (k.to_dtype(DType::F32)?, v.to_dtype(DType::F32)?);
                assert_eq!(
                    alone(&q, &k, &v, &site)?,
                    alone(&q, &wide_k, &wide_v, &site)?,
                    "{dtype:?} {shape:?}"
                );
                let bounds = [0, 7, 90, shape[2]];
                let of = RowSums { site: &site, rows: l / 2..l, bounds: &bounds };
                let sums = |k: &Tensor| Cpu.segment_sums(&q, k, &of)?.to_vec2::<f64>();
                assert_eq!(sums(&k)?, sums(&wide_k)?);
                let read =
                    |k: &Tensor, v: &Tensor| value_sums([&q, k, v], &of)?.flatten_all()?.to_vec1::<f32>();
                assert_eq!(read(&k, &v)?, read(&wide_k, &wide_v)?);
            }
        }
    }
    Ok(())
}

#[test]
fn products_of_bf16_numbers_are_those_of_the_plain_definition() -> Result<()> {
    for (l, shape) in SHAPES {
        let [heads, kv_heads, n, d] = shape;
        let [q, k, v] = bf16_numbers(l, shape)?;
        let (plain_q, plain_k, plain_v) = (plain(&q)?, plain(&k)?, plain(&v)?);
        for window in [None, Some(33)] {
            let site = Site { offset: n - l, ..site(window) };
            let found = alone(&q, &k, &v, &site)?;
            // An f32 cache does not use paired products.
            let wide = alone(&q, &k.to_dtype(DType::F32)?, &v.to_dtype(DType::F32)?, &site)?;
            for (row, head) in (0..l).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let seen = site.visible(n - l + row);
                let at = |key: usize| ((head * kv_heads / heads) * n + key) * d;
                let query = &plain_q[(row * heads + head) * d..][..d];
                let scores = seen.clone().map(|key| dot(site.scale, query, &plain_k[at(key)..][..d]));
                let weights = softmax(&scores.collect::<Vec<_>>());
                for i in 0..d {
                    let terms = weights.iter().zip(seen.clone());
                    let expected: f64 = terms.map(|(weight, key)| weight * plain_v[at(key) + i]).sum();
                    // Weights and outputs are each rounded to 8 bits; magnitudes are at most 1.
                    for (found, within) in [(found[row][head][i], 6e-3), (wide[row][head][i], 4e-3)] {
                        let off = (f64::from(found) - expected).abs();
                        assert!(off < within, "{shape:?} {window:?}: {found}, not {expected}");
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn masses_of_bf16_queries_are_sums_of_the_weights_that_the_products_give() -> Result<()> {
    for (l, shape) in SHAPES {
        let [heads, kv_heads, n, d] = shape;
        let [q, k, _] = bf16_numbers(l, shape)?;
        let site = Site { offset: n - l, ..site(None) };
        let bounds = [0, 3, 64, 129, n];
        let of = RowSums { site: &site, rows: 0..l, bounds: &bounds };
        let found = Cpu.segment_sums(&q, &k, &of)?.to_vec2::<f64>()?;
        let (q, k) = (plain(&q)?, plain(&k)?);
        for (head, found) in found.iter().enumerate() {
            let mut expected = vec![0.0; bounds.len() - 1];
            for row in 0..l {
                let query = &q[(row * heads + head) * d..][..d];
                let keys = k[(head * kv_heads / heads) * n * d..].chunks_exact(d).take(n - l + row + 1);
                let weights = softmax(&keys.map(|key| dot(site.scale, query, key)).collect::<Vec<_>>());
                for (sum, ends) in expected.iter_mut().zip(bounds.windows(2)) {
                    *sum += weights.iter().take(ends[1]).skip(ends[0]).sum::<f64>();
                }
            }
            for (found, expected) in found[1..].iter().zip(expected) {
                let off = (found - expected).abs();
                assert!(off < 1e-5 * expected.max(1.0), "{shape:?}: {found}, not {expected}");
            }
        }
    }
    Ok(())
}
