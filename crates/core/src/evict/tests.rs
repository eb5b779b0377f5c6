//! Policies against plain definitions in f64.

use candle_core::{DType, Device, Result, Tensor};

use super::policies::kvzap;
use super::rotation::unrotated;
use super::*;
use crate::attention::{Event, Observer, Site};
use crate::model::{
    Activation, AttentionBias, DecoderSpec, FeedForwardSpec, KeyValues, LayerNorms, LayerSpec, MixerSpec,
    MlpSpec, NormSpec, OutputGate, QkNorm, RopeScaling, RopeSpec, Yarn,
};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const D: usize = 10;
const AT: usize = 90;
const END: usize = 100;

/// Rotates the first 6 dimensions, scaled by 1.3.
fn rope() -> RopeSpec {
    let yarn = Yarn {
        factor: 4.0,
        original: 64.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: 1.3,
        score_scale: 0.0,
        query_beta: 0.0,
    };
    RopeSpec { theta: 1000.0, dims: 6, scaling: RopeScaling::Yarn(yarn) }
}

fn spec() -> DecoderSpec {
    let layer = |window| LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: D,
            scale: 0.4,
            window,
            sinks: false,
            gate: OutputGate::None,
            qk_norm: QkNorm::None,
            value_norm: false,
            key_values: KeyValues::Projected,
            bias: AttentionBias::None,
            rope: rope(),
            latent: None,
        }),
        feed_forward: FeedForwardSpec::Dense(MlpSpec {
            intermediate: 8,
            bias: false,
            activation: Activation::Silu,
        }),
        norms: LayerNorms::Inputs,
    };
    DecoderSpec {
        architecture: "llama",
        vocab: 9,
        hidden: 8,
        norm: NormSpec { eps: 1e-5, plus_one: false },
        embedding_scale: None,
        residual_scale: None,
        logit_divisor: None,
        logit_cap: None,
        layer_inputs: None,
        layer_scalars: false,
        tied: true,
        max_positions: 512,
        layers: vec![layer(Some(8)), layer(None)],
    }
}

/// Rotated queries (END, HEADS, D), keys and values (KV_HEADS, END, D), and the queries before rotation.
struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plain: Vec<Vec<Vec<f64>>>,
}

/// Numbers of order 1 that no test shares by chance.
fn numbers(shape: (usize, usize, usize), seed: f64) -> Vec<Vec<Vec<f64>>> {
    let (a, b, c) = shape;
    let number = |i: usize| ((i as f64 + seed) * 12.9898).sin() * 43758.5453;
    let of = |i: usize| (number(i) - number(i).floor()) * 2.0 - 0.8;
    (0..a).map(|i| (0..b).map(|j| (0..c).map(|l| of((i * b + j) * c + l)).collect()).collect()).collect()
}

fn tensor(of: &[Vec<Vec<f64>>]) -> Tensor {
    let flat: Vec<f32> = of.iter().flatten().flatten().map(|&x| x as f32).collect();
    Tensor::from_vec(flat, (of.len(), of[0].len(), of[0][0].len()), &Device::Cpu).unwrap()
}

/// A rotation by the definition.
fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let (rope, mut out) = (rope(), x.to_vec());
    for (i, frequency) in rope.frequencies().into_iter().enumerate() {
        let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
        let half = rope.dims / 2;
        out[i] = 1.3 * (x[i] * cos - x[i + half] * sin);
        out[i + half] = 1.3 * (x[i + half] * cos + x[i] * sin);
    }
    out
}

fn inputs() -> Inputs {
    let plain = numbers((END, HEADS, D), 0.5);
    let q: Vec<Vec<Vec<f64>>> =
        plain.iter().enumerate().map(|(p, heads)| heads.iter().map(|q| rotated(q, p)).collect()).collect();
    let (k, v) = (numbers((KV_HEADS, END, D), 7e4), numbers((KV_HEADS, END, D), 9e5));
    Inputs { q: tensor(&q), k: tensor(&k), v: tensor(&v), plain }
}

fn eviction(evict: &str) -> Eviction {
    let span = |label: &str, range| Span::new(label, range);
    let spans = vec![
        span("bos", 0..1),
        span("session[2]", 1..30).with_role("old"),
        span("session[0]", 30..50),
        span("session[1]", 50..85),
        span("session[1].turn[0]", 60..65).with_role("new").as_overlay(),
        span("query", 90..95).with_role("query"),
    ];
    Eviction { evict: evict.parse().unwrap(), at: AT, spans, seed: 3 }
}

/// A collector that has read the inputs in chunks.
fn collected(eviction: &Eviction, inputs: &Inputs) -> Collector {
    let end = if eviction.evict.question { END } else { AT };
    let mut collector = Collector::new(eviction.reads(), AT, end, &spec());
    for (from, to) in [(0, 33), (33, 34), (34, 72), (72, END)] {
        for layer in [0, 1] {
            let site = Site { layer, offset: from, scale: 0.4, ..Site::default() };
            let q = inputs.q.narrow(0, from, to - from).unwrap();
            let (k, v) = (inputs.k.narrow(1, 0, to).unwrap(), inputs.v.narrow(1, 0, to).unwrap());
            collector.observe(Event::Attention { site: &site, q: &q, k: &k, v: &v }).unwrap();
        }
    }
    collector
}

/// Scores of layer 1, (KV_HEADS, AT).
fn scores(policy: &dyn Policy, collector: &Collector, inputs: &Inputs) -> Vec<Vec<f32>> {
    let spec = spec();
    let (k, v) = (inputs.k.narrow(1, 0, AT).unwrap(), inputs.v.narrow(1, 0, AT).unwrap());
    let read = collector.of(1).unwrap();
    let rows = collector.rows.clone();
    let layer = LayerKeys { layer: 1, spec: spec.layers[1].attention().unwrap(), k, v, read, rows };
    policy.scores(&layer).unwrap().to_vec2().unwrap()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Rows of a tensor in f64.
fn wide(of: &Tensor) -> Vec<Vec<Vec<f64>>> {
    of.to_dtype(DType::F64).unwrap().to_vec3().unwrap()
}

/// Softmax weights by head, row and key.
fn weights(inputs: &Inputs) -> Vec<Vec<Vec<f64>>> {
    let (q, k) = (wide(&inputs.q), wide(&inputs.k));
    let row = |head: usize, row: usize| {
        let keys = &k[head / (HEADS / KV_HEADS)][..=row];
        let e: Vec<f64> = keys.iter().map(|k| (f64::from(0.4f32) * dot(&q[row][head], k)).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).chain(std::iter::repeat_n(0.0, END - row - 1)).collect()
    };
    (0..HEADS).map(|head| (0..END).map(|r| row(head, r)).collect()).collect()
}

fn close(found: &[Vec<f32>], expected: impl Fn(usize, usize) -> f64, keys: std::ops::Range<usize>) {
    for (head, found) in found.iter().enumerate() {
        assert_eq!(found.len(), AT);
        for key in keys.clone() {
            let expected = expected(head, key);
            let off = (f64::from(found[key]) - expected).abs();
            assert!(
                off <= 1e-5 * expected.abs().max(0.01),
                "head {head}, key {key}: {} {expected}",
                found[key]
            );
        }
    }
}

const GROUP: usize = HEADS / KV_HEADS;

fn group_mean(of: impl Fn(usize) -> f64, kv_head: usize) -> f64 {
    (kv_head * GROUP..(kv_head + 1) * GROUP).map(of).sum::<f64>() / GROUP as f64
}

#[test]
fn policies_of_attention_score_by_their_definitions_with_and_without_the_question() {
    let inputs = inputs();
    let weights = weights(&inputs);
    for (question, end) in [("", AT), ("@question", END)] {
        let of = |policy: &str| collected(&eviction(&format!("{policy}:0.5{question}")), &inputs);
        let collector = of("snapkv");
        let start = end - snapkv::WINDOW;
        assert_eq!(collector.rows, start..end);
        let snap = scores(&SnapKv, &collector, &inputs);
        let mean =
            |head: usize, key: usize| (start..end).map(|row| weights[head][row][key]).sum::<f64>() / 64.0;
        let pooled = |head: usize, key: usize| {
            let keys = key.saturating_sub(2)..(key + 3).min(start);
            keys.map(|key| mean(head, key)).sum::<f64>() / 5.0
        };
        close(&snap, |kv, key| group_mean(|head| pooled(head, key), kv), 0..start);
        let best = snap.iter().flat_map(|head| &head[..start]).copied().fold(0.0, f32::max);
        assert!(snap.iter().all(|head| head[start] > best && head[start..].is_sorted()));

        let tova = scores(&Tova, &of("tova"), &inputs);
        let all = |key: usize| weights.iter().map(|head| head[end - 1][key]).sum::<f64>() / HEADS as f64;
        close(&tova, |_, key| all(key), 0..AT.min(end - 1));
        if question.is_empty() {
            assert!(tova.iter().all(|head| head[..AT - 1].iter().all(|score| *score < head[AT - 1])));
        }

        let h2o = scores(&H2o, &of("h2o"), &inputs);
        let seen = |head: usize, key: usize| {
            (key..end).map(|row| weights[head][row][key]).sum::<f64>() / (end - key) as f64
        };
        close(&h2o, |kv, key| group_mean(|head| seen(head, key), kv), 0..AT);
    }
}

#[test]
fn expected_attention_is_that_of_gaussian_queries_before_rotation() {
    let inputs = inputs();
    let (k, v) = (wide(&inputs.k), wide(&inputs.v));
    let rows = 4..AT;
    let n = rows.len() as f64;
    // The mean rotation, column by column.
    let unit = |i: usize| (0..D).map(|j| f64::from(u8::from(i == j))).collect::<Vec<f64>>();
    let mean_rotated = |x: &[f64]| {
        let mut sum = vec![0.0; D];
        for position in AT..AT + 512 {
            sum.iter_mut().zip(rotated(x, position)).for_each(|(sum, x)| *sum += x / 512.0);
        }
        sum
    };
    let columns: Vec<Vec<f64>> = (0..D).map(|i| mean_rotated(&unit(i))).collect();
    let by_head: Vec<Vec<f64>> = (0..HEADS)
        .map(|head| {
            let mean: Vec<f64> =
                (0..D).map(|i| rows.clone().map(|row| inputs.plain[row][head][i]).sum::<f64>() / n).collect();
            let covariance = |i: usize, j: usize| {
                let of = |row: usize| {
                    let q = &inputs.plain[row][head];
                    (q[i] - mean[i]) * (q[j] - mean[j])
                };
                rows.clone().map(of).sum::<f64>() / n
            };
            let score = |key: usize| {
                let k = &k[head / GROUP][key];
                // The key, turned back by the mean rotation.
                let turned: Vec<f64> = columns.iter().map(|column| dot(column, k)).collect();
                let square = (0..D)
                    .flat_map(|i| (0..D).map(move |j| (i, j)))
                    .map(|(i, j)| turned[i] * covariance(i, j) * turned[j])
                    .sum::<f64>();
                (dot(&turned, &mean) / (D as f64).sqrt() + square / D as f64 / 2.0).exp()
            };
            let e: Vec<f64> = (4..AT).map(score).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(|e| e / sum).collect()
        })
        .collect();
    let collector = collected(&eviction("expected-attention:0.5"), &inputs);
    let found = scores(&ExpectedAttention, &collector, &inputs);
    let norm = |kv: usize, key: usize| dot(&v[kv][key], &v[kv][key]).sqrt();
    close(&found, |kv, key| group_mean(|head| by_head[head][key - 4], kv) * norm(kv, key), 4..AT);
    assert!(found.iter().all(|head| head[..4].iter().all(|score| *score == f32::INFINITY)));
}

#[test]
fn policies_without_attention_keep_what_they_say() {
    let inputs = inputs();
    let none = collected(&eviction("knorm:0.5"), &inputs);
    let k = wide(&inputs.k);
    close(&scores(&Knorm, &none, &inputs), |kv, key| -dot(&k[kv][key], &k[kv][key]).sqrt(), 0..AT);
    for (budget, expected) in [
        (3, vec![0, 1, 2]),
        (4, vec![0, 1, 2, 3]),
        (7, vec![0, 1, 2, 3, 87, 88, 89]),
        (AT - 1, (0..AT as u32).filter(|key| *key != 4).collect()),
    ] {
        for head in scores(&Streaming { budget }, &none, &inputs) {
            assert_eq!(largest(&head, budget), expected);
        }
    }
    let drawn =
        |seed| scores(&Random { seed }, &none, &inputs).iter().map(|s| largest(s, 45)).collect::<Vec<_>>();
    assert_eq!(drawn(1), drawn(1));
    assert!(drawn(1) != drawn(2) && drawn(1)[0] != drawn(1)[1]);
    assert_eq!(largest(&[1.0, 3.0, 3.0, 3.0, 2.0], 2), [1, 2]);
}

#[test]
fn sessions_go_whole_in_the_order_of_their_policy_until_the_budget_holds_the_rest() {
    let inputs = inputs();
    let attended = eviction("least-attended:0.5");
    let collector = collected(&attended, &inputs);
    let weights = weights(&inputs);
    let mass = |range: std::ops::Range<usize>| -> f64 {
        weights
            .iter()
            .flat_map(|head| &head[AT - 64..AT])
            .map(|row| row[range.clone()].iter().sum::<f64>())
            .sum()
    };
    let mut least = [1..30, 30..50, 50..85];
    least.sort_by(|a, b| mass(a.clone()).total_cmp(&mass(b.clone())));
    let spans = &attended.spans;
    type Make<'a> = Box<dyn Fn(usize) -> Sessions + 'a>;
    let orders: [(&str, [std::ops::Range<usize>; 3], Make<'_>); 3] = [
        ("oldest", [1..30, 30..50, 50..85], Box::new(|budget| Sessions::oldest(spans, AT, budget))),
        // Without evidence, then with it, the oldest first.
        ("oracle", [30..50, 1..30, 50..85], Box::new(|budget| Sessions::oracle(spans, AT, budget))),
        (
            "least-attended",
            least,
            Box::new(|budget| Sessions::least_attended(spans, AT, budget, &collector, &spec()).unwrap()),
        ),
    ];
    for (what, order, policy) in orders {
        for budget in [89, 61, 60, 41, 20, 1] {
            let (mut gone, mut kept) = (Vec::new(), AT);
            for session in &order {
                if kept > budget {
                    kept -= session.len();
                    gone.push(session.clone());
                }
            }
            let policy = policy(budget);
            assert_eq!(policy.kept(budget), kept, "{what}:{budget}");
            for head in scores(&policy, &collector, &inputs) {
                let stays: Vec<u32> = largest(&head, policy.kept(budget));
                let expected = (0..AT).filter(|key| !gone.iter().any(|session| session.contains(key)));
                assert_eq!(stays, expected.map(|key| key as u32).collect::<Vec<_>>(), "{what}:{budget}");
            }
        }
    }
}

#[test]
fn a_rotation_undone_gives_what_was_rotated_and_a_layer_with_rows_missing_is_an_error() -> Result<()> {
    let inputs = inputs();
    let found = wide(&unrotated(&inputs.q.narrow(0, 20, 30)?, 20, &rope())?);
    for (found, expected) in
        found.iter().flatten().flatten().zip(inputs.plain[20..50].iter().flatten().flatten())
    {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    let collector = Collector::new(Reads::AllRows, AT, AT, &spec());
    let message = collector.of(1).unwrap_err().to_string();
    assert!(message.contains("0 of the 90 rows"), "{message}");
    Ok(())
}

#[test]
fn the_regression_minimises_squares_and_penalty() -> Result<()> {
    // Features of different sizes, one that does not vary, fewer rows than needed without a penalty.
    let (n, p) = (12, 9);
    let x: Vec<Vec<f64>> = numbers((1, n, p), 3e3).remove(0);
    let size = |j: usize| if j == 8 { 0.0 } else { 10f64.powi(j as i32 % 4 - 1) };
    let x: Vec<Vec<f64>> =
        x.iter().map(|row| row.iter().enumerate().map(|(j, x)| x * size(j)).collect()).collect();
    let y: Vec<f64> = numbers((1, 1, n), 5e3).remove(0).remove(0);
    let column = |j: usize| x.iter().map(|row| row[j]).collect::<Vec<f64>>();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let deviation = |of: &[f64]| (of.iter().map(|x| (x - mean(of)).powi(2)).sum::<f64>() / n as f64).sqrt();
    let found = kvzap::fit(
        &tensor(std::slice::from_ref(&x)),
        &Tensor::from_vec(y.iter().map(|&y| y as f32).collect(), (1, n), &Device::Cpu)?,
    )?;
    let w: Vec<f64> = found.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
    assert_eq!(w.len(), p);
    // Its gradient: 0 = mean (x_j - mean) (residual) / deviation_j - penalty w_j deviation_j.
    let predicted = |row: &[f64]| (0..p).map(|j| w[j] * (row[j] - mean(&column(j)))).sum::<f64>();
    for (j, weight) in w.iter().enumerate().take(p - 1) {
        let (of, m) = (column(j), mean(&column(j)));
        let part = |i: usize| (of[i] - m) / deviation(&of) * (y[i] - mean(&y) - predicted(&x[i]));
        let gradient = (0..n).map(part).sum::<f64>() / n as f64 - 0.1 * weight * deviation(&of);
        assert!(gradient.abs() < 1e-5, "feature {j}: {gradient}");
    }
    assert_eq!(w[8], 0.0);
    Ok(())
}
