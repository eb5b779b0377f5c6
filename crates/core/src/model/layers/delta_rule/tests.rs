//! The blocked, recurrent and slice implementations against the definition in f64.

use candle_core::{DType, Device};

use super::*;
use crate::attention::{DeltaSite, Event, MassObserver, Observer};
use crate::span::Span;

/// Key heads, value heads, key_dim, value_dim.
type Sizes = (usize, usize, usize, usize);

type Rule = fn(&Inputs, &Tensor) -> Result<(Tensor, Tensor)>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Typical decays and strengths.
    Plain,
    /// No decay, full strength, and three of four tokens share a key.
    RepeatedKeys,
    /// Log decays of -30, -1e-6 and in between, strengths near 0 and 1.
    Extreme,
    /// As `Plain`, by Mamba-2's rule.
    Mamba2,
}

/// Deterministic numbers in -1..1.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut number = || {
        // SplitMix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..n).map(|_| number()).collect()
}

fn inputs(kind: Kind, l: usize, sizes: Sizes) -> Inputs {
    let raw = raw(kind, l, sizes);
    let scale = (sizes.2 as f64).powf(-0.5);
    Inputs { q: raw.rule.read(&raw.q, scale).unwrap(), k: raw.rule.read(&raw.k, 1.0).unwrap(), ..raw }
}

/// Inputs with unnormalised queries and keys.
fn raw(kind: Kind, l: usize, (key_heads, value_heads, key_dim, value_dim): Sizes) -> Inputs {
    let device = &Device::Cpu;
    let mut k = numbers(1, l * key_heads * key_dim);
    if kind == Kind::RepeatedKeys {
        let width = key_heads * key_dim;
        let first = k[..width].to_vec();
        for (_, key) in k.chunks_exact_mut(width).enumerate().filter(|(t, _)| t % 4 != 3) {
            key.copy_from_slice(&first);
        }
    }
    let heads = |seed: u64| numbers(seed, l * value_heads).into_iter();
    let (g, beta): (Vec<f32>, Vec<f32>) = match kind {
        Kind::Plain | Kind::Mamba2 => {
            (heads(2).map(|x| -0.3 * (x + 1.0)).collect(), heads(3).map(|x| 0.5 + 0.5 * x).collect())
        }
        Kind::RepeatedKeys => (vec![0.0; l * value_heads], vec![1.0; l * value_heads]),
        Kind::Extreme => (
            heads(4)
                .map(|x| match () {
                    () if x > 0.5 => -30.0,
                    () if x > -0.7 => -1e-6,
                    () => -3.0 * (x + 1.0),
                })
                .collect(),
            heads(5).map(|x| if x > 0.0 { 1.0 - 1e-6 } else { 1e-6 }).collect(),
        ),
    };
    let q = Tensor::from_vec(numbers(6, l * key_heads * key_dim), (l, key_heads, key_dim), device).unwrap();
    let k = Tensor::from_vec(k, (l, key_heads, key_dim), device).unwrap();
    let v = numbers(7, l * value_heads * value_dim);
    Inputs {
        rule: if kind == Kind::Mamba2 { delta::Rule::Mamba2 } else { delta::Rule::Delta },
        q,
        k,
        v: Tensor::from_vec(v, (l, value_heads, value_dim), device).unwrap(),
        g: Tensor::from_vec(g, (l, value_heads), device).unwrap(),
        beta: Tensor::from_vec(beta, (l, value_heads), device).unwrap(),
    }
}

fn state((_, value_heads, key_dim, value_dim): Sizes) -> Tensor {
    let numbers = numbers(8, value_heads * key_dim * value_dim);
    Tensor::from_vec(numbers, (value_heads, key_dim, value_dim), &Device::Cpu).unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Scalar definition: outputs and state.
fn defined(inputs: &Inputs, state: &Tensor) -> (Vec<f64>, Vec<f64>) {
    let (l, key_heads, dk) = inputs.q.dims3().unwrap();
    let (_, value_heads, dv) = inputs.v.dims3().unwrap();
    let [q, k, v, g, beta] = [&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.beta].map(flat);
    let mut s = flat(state);
    let mut out = Vec::new();
    for t in 0..l {
        for h in 0..value_heads {
            let kh = h / (value_heads / key_heads);
            let (q, k) = (&q[(t * key_heads + kh) * dk..][..dk], &k[(t * key_heads + kh) * dk..][..dk]);
            let v = &v[(t * value_heads + h) * dv..][..dv];
            let s = &mut s[h * dk * dv..][..dk * dv];
            let decay = g[t * value_heads + h].exp();
            s.iter_mut().for_each(|x| *x *= decay);
            for (j, v) in v.iter().enumerate() {
                let held: f64 = match inputs.rule {
                    delta::Rule::Delta => (0..dk).map(|i| k[i] * s[i * dv + j]).sum(),
                    delta::Rule::Mamba2 => 0.0,
                };
                let written = beta[t * value_heads + h] * (v - held);
                (0..dk).for_each(|i| s[i * dv + j] += k[i] * written);
                out.push((0..dk).map(|i| q[i] * s[i * dv + j]).sum());
            }
        }
    }
    (out, s)
}

/// Largest difference relative to the largest value.
fn apart(found: &Tensor, expected: &[f64]) -> f64 {
    let found = flat(found);
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0f64, |m, x| m.max(x.abs()));
    let most = found.iter().zip(expected).fold(0f64, |m, (a, b)| {
        let d = (a - b).abs();
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    most / size
}

const SIZES: [Sizes; 3] = [(2, 6, 12, 10), (3, 3, 16, 16), (1, 2, 5, 7)];
const KINDS: [Kind; 4] = [Kind::Plain, Kind::RepeatedKeys, Kind::Extreme, Kind::Mamba2];

#[test]
fn every_form_of_the_rule_equals_the_definition_at_any_length() {
    for kind in KINDS {
        for sizes in SIZES {
            for l in [1, 2, 3, 17, 63, 64, 65, 200] {
                let (inputs, state) = (inputs(kind, l, sizes), state(sizes));
                let (out, after) = defined(&inputs, &state);
                for (name, rule) in
                    [("chunked", chunked as Rule), ("recurrent", recurrent), ("slices", on_slices)]
                {
                    let (found, state) = rule(&inputs, &state).unwrap();
                    assert_eq!(found.dims(), [l, sizes.1, sizes.3]);
                    let (out, after) = (apart(&found, &out), apart(&state, &after));
                    assert!(
                        out < 1e-5 && after < 1e-5,
                        "{name}, {kind:?}, {sizes:?}, {l} tokens: {out:e}, {after:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_carried_state_makes_any_cut_equal_to_the_whole() {
    let sizes = SIZES[0];
    // Exceeds [`TOGETHER`].
    let l = TOGETHER + 150;
    for kind in KINDS {
        let (inputs, start) = (inputs(kind, l, sizes), state(sizes));
        let (out, after) = defined(&inputs, &start);
        for (cut, rule) in
            [37, 64, 100, 500, l].into_iter().flat_map(|cut| [(cut, chunked as Rule), (cut, on_slices)])
        {
            let mut state = start.clone();
            let mut outputs = Vec::new();
            for at in (0..l).step_by(cut) {
                let part = inputs.narrow(at, cut.min(l - at)).unwrap();
                let (out, next) = rule(&part, &state).unwrap();
                outputs.push(out);
                state = next;
            }
            let (out, after) = (apart(&Tensor::cat(&outputs, 0).unwrap(), &out), apart(&state, &after));
            assert!(out < 1e-5 && after < 1e-5, "{kind:?}, cut {cut}: {out:e}, {after:e}");
        }
        // Prefill most tokens, decode the rest.
        let (_, state) = chunked(&inputs.narrow(0, l - 9).unwrap(), &start).unwrap();
        let (found, state) = recurrent(&inputs.narrow(l - 9, 9).unwrap(), &state).unwrap();
        assert!(apart(&state, &after) < 1e-5);
        assert!(apart(&found, &out[out.len() - 9 * sizes.1 * sizes.3..]) < 1e-5);
    }
}

#[test]
fn a_state_is_never_written_to() {
    let sizes = SIZES[0];
    let start = state(sizes);
    let before = flat(&start);
    let inputs = inputs(Kind::Plain, 70, sizes);
    for rule in [chunked as Rule, recurrent, on_slices] {
        let (_, after) = rule(&inputs, &start).unwrap();
        assert_eq!(flat(&start), before);
        assert_ne!(flat(&after), before);
    }
}

#[test]
fn outputs_are_the_sums_of_values_under_the_observed_implicit_attention() {
    let (l, sizes) = (150, SIZES[0]);
    let (_, value_heads, _, value_dim) = sizes;
    for kind in KINDS {
        // One span per token, so that the observer reports single weights.
        let tokens: Vec<Span> = (0..l).map(|t| Span::new(format!("{t}"), t..t + 1)).collect();
        let mut observer = MassObserver::new(tokens.clone(), tokens, l).unwrap();
        let Inputs { rule, q, k, g, beta, v } = raw(kind, l, sizes);
        let (site, [q, k, g, beta]) = (&DeltaSite::default(), [&q, &k, &g, &beta]);
        observer.observe(Event::LinearAttention { site, rule, q, k, g, beta }).unwrap();
        let weights = observer.finish().unwrap().delta.unwrap().signed;
        let v = flat(&v);
        let summed: Vec<f64> = (0..l * value_heads * value_dim)
            .map(|i| {
                let (t, h, j) = (i / value_dim / value_heads, i / value_dim % value_heads, i % value_dim);
                (0..=t)
                    .map(|s| f64::from(weights[[0, h, t, s]]) * v[(s * value_heads + h) * value_dim + j])
                    .sum()
            })
            .collect();
        let zero = state(sizes).zeros_like().unwrap();
        let (out, _) = chunked(&inputs(kind, l, sizes), &zero).unwrap();
        let apart = apart(&out, &summed);
        assert!(apart < 1e-5, "{kind:?}: {apart:e}");
    }
}

#[test]
fn what_is_not_a_number_reaches_the_outputs_after_it_and_the_state() {
    let (l, sizes) = (100, SIZES[0]);
    for rule in [chunked as Rule, recurrent, on_slices] {
        for which in 0..5 {
            let mut inputs = inputs(Kind::Plain, l, sizes);
            let Inputs { q, k, v, g, beta, .. } = &mut inputs;
            let x = [q, k, v, g, beta].into_iter().nth(which).unwrap();
            let mut damaged: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
            let at_token_70 = 70 * damaged.len() / l;
            damaged[at_token_70] = f32::NAN;
            *x = Tensor::from_vec(damaged, x.shape(), &Device::Cpu).unwrap();
            let (out, after) = rule(&inputs, &state(sizes)).unwrap();
            let nan = |x: &Tensor| flat(x).iter().any(|x| x.is_nan());
            assert!(nan(&out.narrow(0, 70, 1).unwrap()), "input {which}");
            assert_eq!(nan(&after), which > 0, "input {which}: only queries leave the state alone");
        }
    }
}
