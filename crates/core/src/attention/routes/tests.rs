//! Routes against the plain definition in f64: a full layer and one with a window and scales, read in chunks.

use candle_core::Device;

use super::*;
use crate::attention::Hole;
use crate::attention::Holes;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const D: usize = 5;
const HIDDEN: usize = 9;
const TOKENS: usize = 40;
const WINDOW: usize = 7;
const CHUNKS: [(usize, usize); 5] = [(0, 11), (11, 19), (19, 20), (20, 31), (31, TOKENS)];

/// Numbers of order 1 that no test shares by chance.
fn number(seed: usize, at: [usize; 3]) -> f64 {
    let [a, b, c] = at;
    let x = (((seed * 97 + a) * 89 + b) * 83 + c) as f64;
    let x = (x * 12.9898).sin() * 43758.5453;
    f64::from(((x - x.floor()) * 2.0 - 0.9) as f32)
}

fn tensor(seed: usize, [a, b, c]: [usize; 3]) -> Tensor {
    let at = |i: usize| number(seed, [i / (b * c), i / c % b, i % c]) as f32;
    Tensor::from_vec((0..a * b * c).map(at).collect::<Vec<_>>(), (a, b, c), &Device::Cpu).unwrap()
}

/// Seeds of a layer's queries, keys, values, residual stream before and after, output projection, and scales.
fn seeds(layer: usize) -> [usize; 7] {
    std::array::from_fn(|i| 10 * (layer + 1) + i)
}

fn is_windowed(layer: usize) -> bool {
    layer == 1
}

/// Of a row's scales: a multiple of one vector.
fn scale(layer: usize, row: usize, i: usize) -> f64 {
    let [.., seed] = seeds(layer);
    if is_windowed(layer) { f64::from((0.5 + row as f32) * number(seed, [0, 0, i]) as f32) } else { 1.0 }
}

/// Key 3 is hidden from row 22.
fn holes() -> Holes {
    Holes::new(vec![Hole { rows: 22..23, keys: 3..4 }])
}

fn sees(layer: usize, row: usize, key: usize) -> bool {
    key <= row && (!is_windowed(layer) || key + WINDOW > row) && (row, key) != (22, 3)
}

fn expected(rows: &RowWeights) -> Vec<f64> {
    let sum: f64 = rows.weights.iter().sum();
    let rows: Vec<(usize, f64)> = rows.rows().zip(rows.weights.iter().map(|w| w / sum)).collect();
    let mut shares = vec![0.0; TOKENS];
    for layer in 0..2 {
        let [q, k, v, before, after, o, _] = seeds(layer);
        let row_sum = |seed| -> Vec<f64> {
            let of = |i| rows.iter().map(|(row, w)| w * number(seed, [0, *row, i])).sum();
            (0..HIDDEN).map(of).collect()
        };
        let (x, y) = (row_sum(before), row_sum(after));
        let near = |t: &[f64]| {
            let l1 = y.iter().map(|y| y.abs()).sum::<f64>();
            (l1 - y.iter().zip(t).map(|(y, t)| (y - t).abs()).sum::<f64>()).max(0.0)
        };
        let mut found = vec![0.0; TOKENS];
        for head in 0..HEADS {
            let kv = head / (HEADS / KV_HEADS);
            let score = |row: usize, key: usize| -> f64 {
                (0..D).map(|d| number(q, [row, head, d]) * number(k, [kv, key, d])).sum::<f64>() * 0.7
            };
            let written = |key: usize, i: usize| -> f64 {
                (0..D).map(|d| number(v, [kv, key, d]) * number(o, [head, d, i])).sum()
            };
            for (key, found) in found.iter_mut().enumerate() {
                let weight = |row: usize| {
                    let e = |key: usize| if sees(layer, row, key) { score(row, key).exp() } else { 0.0 };
                    e(key) / (0..TOKENS).map(e).sum::<f64>()
                };
                let by_row: Vec<(usize, f64)> =
                    rows.iter().map(|(row, w)| (*row, w * weight(*row))).collect();
                let t = |i| {
                    by_row.iter().map(|(row, w)| w * scale(layer, *row, i)).sum::<f64>() * written(key, i)
                };
                *found += near(&(0..HIDDEN).map(t).collect::<Vec<_>>());
            }
        }
        let total = found.iter().sum::<f64>() + near(&x);
        shares.iter_mut().zip(found).for_each(|(sum, found)| *sum += found / total);
    }
    shares
}

/// Shares found by an observer that reads the layers in chunks, the windowed one over a buffer that is overwritten.
fn found(rows: &RowWeights, chunks: &[(usize, usize)]) -> Result<Vec<f64>> {
    let mut observer = RouteObserver::new(rows.clone(), TOKENS);
    let buffer = Tensor::zeros((KV_HEADS, TOKENS, D), DType::F32, &Device::Cpu)?;
    for &(from, to) in chunks {
        for layer in 0..2 {
            let [q, k, v, before, after, o, _] = seeds(layer);
            let window = is_windowed(layer).then_some(WINDOW);
            let first_key = window.map_or(0, |window| from.saturating_sub(window - 1));
            let site = Site {
                layer,
                offset: from,
                first_key,
                scale: 0.7,
                window,
                holes: holes(),
                ..Site::default()
            };
            let q = tensor(q, [TOKENS, HEADS, D]).narrow(0, from, to - from)?;
            let keys = |seed| tensor(seed, [KV_HEADS, TOKENS, D]).narrow(1, first_key, to - first_key);
            let (k, mut v) = (keys(k)?, keys(v)?.contiguous()?);
            if window.is_some() {
                buffer.slice_set(&v, 1, 0)?;
                v = buffer.narrow(1, 0, to - first_key)?;
            }
            let event = Event::Attention { site: &site, q: &q, k: &k, v: &v };
            if observer.wants(Point::Attention(&site)).inputs {
                observer.observe(event)?;
            }
            if !observer.wants(Point::Residual { offset: from, l: to - from }).residual {
                continue;
            }
            let stream = |seed| tensor(seed, [1, TOKENS, HIDDEN]).squeeze(0)?.narrow(0, from, to - from);
            let scales = (from..to).flat_map(|row| (0..HIDDEN).map(move |i| scale(layer, row, i) as f32));
            let scales = Tensor::from_vec(scales.collect(), (to - from, HIDDEN), &Device::Cpu)?;
            observer.observe(Event::Residual(Residual {
                before: &stream(before)?,
                after: &stream(after)?,
                outputs: &tensor(o, [HEADS, D, HIDDEN]),
                scales: window.map(|_| &scales),
            }))?;
        }
    }
    Ok(observer.finish())
}

#[test]
fn shares_are_those_of_the_definition_however_rows_are_cut_into_chunks() -> Result<()> {
    let weights: Vec<f64> = (0..22).map(|i| if i % 5 == 3 { 0.0 } else { 0.3 + (i % 4) as f64 }).collect();
    let rows = RowWeights { first: 14, weights };
    let expected = expected(&rows);
    for chunks in [&CHUNKS[..], &[(0, TOKENS)], &[(0, 14), (14, TOKENS)]] {
        let found = found(&rows, chunks)?;
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-6, "{chunks:?}: off by {off:e}");
    }
    // The test tells rows and keys apart.
    let other = found(&RowWeights { first: 13, ..rows }, &CHUNKS)?;
    assert!(other.iter().zip(&expected).any(|(a, b)| (a - b).abs() > 1e-3));
    assert!(expected.iter().filter(|share| **share > 1e-3).count() > 15 && expected[36..] == [0.0; 4]);
    Ok(())
}
