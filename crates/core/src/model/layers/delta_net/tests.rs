//! The block against its definition in f64, for any chunking, in prefill and decode.

use candle_core::Device;

use super::super::delta_rule::tests::{apart, defined, flat, numbers};
use super::*;
use crate::attention::delta::norm_factor;
use crate::attention::{Hole, Holes, NoObserver};

const SPEC: DeltaNetSpec = DeltaNetSpec { key_heads: 2, value_heads: 4, key_dim: 6, value_dim: 5, conv: 4 };
const HIDDEN: usize = 9;
const EPS: f64 = 1e-6;

/// Weights in the order of the block's fields; matrices are (out, in).
fn weights() -> [Tensor; 9] {
    let some = |seed: u64, shape: &[usize], size: f32| {
        let numbers: Vec<f32> = numbers(seed, shape.iter().product()).iter().map(|x| x * size).collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()
    };
    [
        some(11, &[SPEC.channels(), HIDDEN], 0.5),
        some(12, &[SPEC.values(), HIDDEN], 0.5),
        some(13, &[SPEC.value_heads, HIDDEN], 0.9),
        some(14, &[SPEC.value_heads, HIDDEN], 0.9),
        some(15, &[SPEC.channels(), SPEC.conv], 0.7),
        some(16, &[SPEC.value_heads], 2.0).exp().unwrap(),
        some(17, &[SPEC.value_heads], 1.0),
        some(18, &[SPEC.value_dim], 1.5),
        some(19, &[HIDDEN, SPEC.values()], 0.5),
    ]
}

fn block(dtype: DType) -> DeltaNet {
    let [qkv, z, b, a, conv, decay, dt_bias, norm, out] = weights();
    let linear = |w: Tensor| Projection::dense(&w.to_dtype(dtype).unwrap(), None).unwrap();
    let conv = conv.t().unwrap().contiguous().unwrap();
    let inputs = Projections::new([linear(qkv), linear(z), linear(b), linear(a)]).unwrap();
    let factor = |scale| norm_factor(SPEC.key_dim, scale, &Device::Cpu).unwrap();
    let norms = [factor((SPEC.key_dim as f64).powf(-0.5)), factor(1.0)];
    let rate = decay.neg().unwrap();
    DeltaNet { spec: SPEC, inputs, conv, rate, norms, dt_bias, norm, eps: EPS, out: linear(out) }
}

fn start(dtype: DType) -> DeltaState {
    DeltaState {
        conv: Tensor::zeros((SPEC.conv - 1, SPEC.channels()), dtype, &Device::Cpu).unwrap(),
        state: Tensor::zeros((SPEC.value_heads, SPEC.key_dim, SPEC.value_dim), DType::F32, &Device::Cpu)
            .unwrap(),
    }
}

fn x(l: usize) -> Tensor {
    Tensor::from_vec(numbers(20, l * HIDDEN), (l, HIDDEN), &Device::Cpu).unwrap()
}

fn advance(
    block: &DeltaNet,
    site: &DeltaSite,
    x: &Tensor,
    state: &DeltaState,
    phase: Phase,
) -> (Tensor, DeltaState) {
    let (projected, z) = block.project(x, phase).unwrap();
    let (out, state) = block.read(site, &projected, state, phase, &mut NoObserver).unwrap();
    (block.out.forward(&block.close(&z, &out).unwrap(), phase).unwrap(), state)
}

/// The definition.
fn plain(x: &Tensor) -> Vec<f64> {
    let l = x.dim(0).unwrap();
    let x = flat(x);
    let [qkv, z, b, a, conv, decay, dt_bias, norm, out] = weights().each_ref().map(flat);
    let map = |w: &[f64], x: &[f64]| -> Vec<f64> {
        x.chunks(HIDDEN).flat_map(|x| w.chunks(HIDDEN).map(move |w| dot(w, x)).collect::<Vec<_>>()).collect()
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let silu = |x: f64| x * sigmoid(x);

    let (channels, keys, taps) = (SPEC.channels(), SPEC.keys(), SPEC.conv);
    let qkv = map(&qkv, &x);
    let mixed = |t: usize, c: usize| {
        let taps = (0..taps).filter(|tap| t + tap + 1 >= taps);
        silu(taps.map(|tap| conv[c * SPEC.conv + tap] * qkv[(t + tap + 1 - SPEC.conv) * channels + c]).sum())
    };
    let heads = |from: usize, heads: usize, dim: usize| -> Vec<f32> {
        (0..l).flat_map(|t| (from..from + heads * dim).map(move |c| mixed(t, c) as f32)).collect()
    };
    let unit = |x: Vec<f32>, scale: f64| -> Vec<f32> {
        x.chunks(SPEC.key_dim)
            .flat_map(|x| {
                let norm = (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(move |x| (f64::from(*x) / norm * scale) as f32).collect::<Vec<_>>()
            })
            .collect()
    };
    let tensor = |x: Vec<f32>, h: usize, d: usize| Tensor::from_vec(x, (l, h, d), &Device::Cpu).unwrap();
    let per_head = |x: Vec<f64>, f: &dyn Fn(usize, f64) -> f64| {
        let x: Vec<f32> = x.iter().enumerate().map(|(i, x)| f(i % SPEC.value_heads, *x) as f32).collect();
        Tensor::from_vec(x, (l, SPEC.value_heads), &Device::Cpu).unwrap()
    };
    let DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, .. } = SPEC;
    let inputs = Inputs {
        q: tensor(unit(heads(0, key_heads, key_dim), 1.0 / (key_dim as f64).sqrt()), key_heads, key_dim),
        k: tensor(unit(heads(keys, key_heads, key_dim), 1.0), key_heads, key_dim),
        v: tensor(heads(2 * keys, value_heads, value_dim), value_heads, value_dim),
        g: per_head(map(&a, &x), &|h, a| -decay[h] * (a + dt_bias[h]).exp().ln_1p()),
        beta: per_head(map(&b, &x), &|_, b| sigmoid(b)),
    };
    let (read, _) = defined(&inputs, &start(DType::F32).state);

    let gated: Vec<f64> = read
        .chunks(value_dim)
        .zip(map(&z, &x).chunks(value_dim))
        .flat_map(|(o, z)| {
            let size = (o.iter().map(|o| o * o).sum::<f64>() / value_dim as f64 + EPS).sqrt();
            (0..value_dim).map(|i| o[i] / size * norm[i] * silu(z[i])).collect::<Vec<_>>()
        })
        .collect();
    let values = SPEC.values();
    gated
        .chunks(values)
        .flat_map(|o| out.chunks(values).map(move |w| dot(w, o)).collect::<Vec<_>>())
        .collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Runs the block over `x`, `cut` tokens at a time, and the last `generated` in decode.
fn run(block: &DeltaNet, x: &Tensor, cut: usize, generated: usize) -> Tensor {
    let l = x.dim(0).unwrap();
    let mut state = start(x.dtype());
    let mut outputs = Vec::new();
    let mut at = 0;
    while at < l {
        let (phase, n) = if at < l - generated {
            (Phase::Prefill, cut.min(l - generated - at))
        } else {
            (Phase::Decode, 1)
        };
        let site = DeltaSite { layer: 0, offset: at, ..DeltaSite::default() };
        let (out, next) = advance(block, &site, &x.narrow(0, at, n).unwrap(), &state, phase);
        outputs.push(out);
        state = next;
        at += n;
    }
    Tensor::cat(&outputs, 0).unwrap()
}

#[test]
fn the_block_equals_its_definition_at_any_cut_read_or_generated() {
    let x = x(150);
    let expected = plain(&x);
    for (cut, generated) in [(150, 0), (1, 0), (2, 0), (37, 0), (64, 20), (3, 149)] {
        let found = run(&block(DType::F32), &x, cut, generated);
        let apart = apart(&found, &expected);
        assert!(apart < 1e-5, "cut {cut}, {generated} generated: {apart:e}");
    }
}

#[test]
fn keys_hidden_from_rows_are_refused_by_name() {
    let block = block(DType::F32);
    let (projected, _) = block.project(&x(4), Phase::Prefill).unwrap();
    let holes = Holes::new(vec![Hole { rows: 2..4, keys: 0..1 }]);
    let site = DeltaSite { layer: 5, offset: 0, holes };
    let refused = block.read(&site, &projected, &start(DType::F32), Phase::Prefill, &mut NoObserver);
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("layer 5: a linear-attention layer") && said.contains("rows 2..4"), "{said}");
}

#[test]
fn in_half_precision_the_block_stays_near_its_definition() {
    let x = x(150).to_dtype(DType::F16).unwrap();
    let found = run(&block(DType::F16), &x, 64, 10);
    assert_eq!(found.dtype(), DType::F16);
    let apart = apart(&found, &plain(&x));
    assert!(apart < 1e-2, "{apart:e}");
}
