//! The kernels of the gated delta rule (`crates/core/src/fused/cuda/delta.cuh`) against the rule token by token, in f64.

use half::{bf16, f16};

use crate::Candle;
use crate::card::Param;
use crate::element::Element;
use crate::layout::Layout;
use crate::own::operand;
use crate::params_of;

const TOKENS: usize = 64;
const COLUMNS: usize = 32;
const ROWS: usize = 32;
const PITCH: usize = TOKENS + 4;
const THREADS: [u32; 3] = [256, 1, 1];
/// Allowed difference, in the largest value: f32 sums of some thousand terms.
const APART: f64 = 2e-6;

pub fn check(candle: &mut Candle) {
    candle.load("fused", &["delta_blocks", "delta_rule", "delta_step", "delta_rows"]);
    // Keys wider than the shared memory that needs no leave.
    for (name, bytes) in [("delta_rule", 60 << 10), ("delta_rows", 62 << 10)] {
        assert_eq!(candle.card.try_shared(name, bytes), 0);
    }
    for case in CASES {
        case.rule(candle);
        case.step(candle);
        case.rows(candle);
    }
    convolution::<f32>(candle);
    convolution::<f16>(candle);
    convolution::<bf16>(candle);
}

#[derive(Debug, Clone, Copy)]
struct Case {
    l: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// Log decays from 0 to minus this.
    decay: f64,
    /// Three of four tokens share a key, at full strength.
    repeated: bool,
    /// Rows of implicit attention, the last of the tokens, and the borders of its segments.
    rows: usize,
    bounds: &'static [u32],
}

const CASES: [Case; 5] = [
    Case {
        l: 1,
        key_heads: 1,
        value_heads: 1,
        key_dim: 1,
        value_dim: 1,
        decay: 0.5,
        repeated: false,
        rows: 1,
        bounds: &[0, 1],
    },
    Case {
        l: 70,
        key_heads: 2,
        value_heads: 4,
        key_dim: 12,
        value_dim: 10,
        decay: 0.6,
        repeated: false,
        rows: 40,
        bounds: &[3, 9, 9, 66, 69],
    },
    Case {
        l: 64,
        key_heads: 1,
        value_heads: 2,
        key_dim: 70,
        value_dim: 33,
        decay: 30.0,
        repeated: false,
        rows: 64,
        bounds: &[0],
    },
    Case {
        l: 200,
        key_heads: 1,
        value_heads: 1,
        key_dim: 130,
        value_dim: 40,
        decay: 0.0,
        repeated: true,
        rows: 33,
        bounds: &[0, 64, 65, 199, 400],
    },
    Case {
        l: 130,
        key_heads: 1,
        value_heads: 3,
        key_dim: 256,
        value_dim: 64,
        decay: 0.1,
        repeated: false,
        rows: 100,
        bounds: &[10, 120],
    },
];

/// Inputs on the card and as they are there.
struct Inputs {
    at: [u64; 5],
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: Vec<f64>,
    beta: Vec<f64>,
}

impl Case {
    fn inputs(&self, candle: &Candle) -> Inputs {
        let uploaded = |values: Vec<f64>| {
            let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
            (candle.upload(&values, 1), values.into_iter().map(f64::from).collect::<Vec<_>>())
        };
        let sample = |seed: usize| f64::from(f32::sample(seed));
        let unit = |seed: usize| (sample(seed) + 2.0) / 4.0;
        // Normalised heads.
        let heads = |seed: usize, scale: f64| {
            let width = self.key_heads * self.key_dim;
            let value = |i: usize| match self.repeated && i / width % 4 != 3 {
                true => sample(seed + i % width),
                false => sample(seed + i),
            };
            let all: Vec<f64> = (0..self.l * width).map(value).collect();
            let normed = |head: &[f64]| {
                let norm = head.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
                head.iter().map(|x| x / norm * scale).collect::<Vec<_>>()
            };
            uploaded(all.chunks(self.key_dim).flat_map(normed).collect())
        };
        let n = self.l * self.value_heads;
        let (q_at, q) = heads(1000, 1.0);
        let (k_at, k) = heads(90_000, 1.0);
        let (v_at, v) = uploaded((0..n * self.value_dim).map(|i| sample(200_000 + i)).collect());
        let (g_at, g) = uploaded((0..n).map(|i| -self.decay * unit(300_000 + i)).collect());
        let strength = |i| if self.repeated { 1.0 } else { unit(400_000 + i) };
        let (beta_at, beta) = uploaded((0..n).map(strength).collect());
        Inputs { at: [q_at, k_at, v_at, g_at, beta_at], q, k, v, g, beta }
    }

    fn key_head(&self, head: usize) -> usize {
        head / (self.value_heads / self.key_heads)
    }

    /// Queries or keys of a token and value head.
    fn of<'a>(&self, x: &'a [f64], token: usize, head: usize) -> &'a [f64] {
        &x[(token * self.key_heads + self.key_head(head)) * self.key_dim..][..self.key_dim]
    }

    /// Outputs (l, value_heads, value_dim) of the first `l` tokens, and the state after them.
    fn defined(&self, x: &Inputs, state: &[f64], l: usize) -> (Vec<f64>, Vec<f64>) {
        let (dk, dv) = (self.key_dim, self.value_dim);
        let (mut all, mut out) = (state.to_vec(), Vec::new());
        for t in 0..l {
            for h in 0..self.value_heads {
                let (q, k, n) = (self.of(&x.q, t, h), self.of(&x.k, t, h), t * self.value_heads + h);
                let s = &mut all[h * dk * dv..][..dk * dv];
                s.iter_mut().for_each(|s| *s *= x.g[n].exp());
                for j in 0..dv {
                    let held: f64 = (0..dk).map(|i| k[i] * s[i * dv + j]).sum();
                    let written = x.beta[n] * (x.v[n * dv + j] - held);
                    (0..dk).for_each(|i| s[i * dv + j] += k[i] * written);
                    out.push((0..dk).map(|i| q[i] * s[i * dv + j]).sum());
                }
            }
        }
        (out, all)
    }

    /// Weight of each key for the query of token `row`, by the recurrence from the row back.
    fn weights(&self, x: &Inputs, row: usize, head: usize) -> Vec<f64> {
        let mut w = self.of(&x.q, row, head).to_vec();
        let mut weights = vec![0.0; self.l];
        for s in (0..=row).rev() {
            let (k, n) = (self.of(&x.k, s, head), s * self.value_heads + head);
            let read: f64 = k.iter().zip(&w).map(|(k, w)| k * w).sum();
            weights[s] = x.beta[n] * read;
            w.iter_mut().zip(k).for_each(|(w, k)| *w = x.g[n].exp() * (*w - weights[s] * k));
        }
        weights
    }

    /// Launches `delta_blocks` for tokens from `first` on; the addresses of what it finds.
    fn blocks(
        &self,
        candle: &Candle,
        x: &Inputs,
        (first, l): (usize, usize),
        with_queries: bool,
    ) -> [u64; 3] {
        let n = l.div_ceil(TOKENS) * self.value_heads;
        let found = [2 * TOKENS, TOKENS * TOKENS, TOKENS * TOKENS].map(|each| candle.empty::<f32>(n * each));
        let [q, k, _, g, beta] = self.from(x, first);
        let q = if with_queries { q } else { 0 };
        let [ends, transform, pairwise] = found;
        let sizes = [l, self.key_heads, self.key_dim].map(|n| Param::from(n as u32));
        let params =
            [params_of![q, k, g, beta].as_slice(), &sizes, params_of![ends, transform, pairwise]].concat();
        let grid = [l.div_ceil(TOKENS) as u32, self.value_heads as u32, 1];
        candle.launch_as("delta_blocks", grid, THREADS, &params);
        found
    }

    /// Addresses of token `first`'s inputs.
    fn from(&self, x: &Inputs, first: usize) -> [u64; 5] {
        let keys = self.key_heads * self.key_dim;
        let each = [keys, keys, self.value_heads * self.value_dim, self.value_heads, self.value_heads];
        std::array::from_fn(|i| x.at[i] + (4 * first * each[i]) as u64)
    }

    fn state(&self, candle: &Candle) -> (u64, Vec<f64>) {
        operand::<f32>(candle, self.value_heads * self.key_dim * self.value_dim, 7)
    }

    fn rule(&self, candle: &Candle) {
        let x = self.inputs(candle);
        let (before, state) = self.state(candle);
        let [ends, transform, pairwise] = self.blocks(candle, &x, (0, self.l), true);
        let (after, out) = (candle.empty::<f32>(state.len()), candle.empty::<f32>(x.v.len()));
        let sizes = [self.l, self.key_heads, self.key_dim, self.value_dim].map(|n| Param::from(n as u32));
        let shared = 4 * (self.key_dim.next_multiple_of(TOKENS) * COLUMNS + TOKENS * (PITCH + COLUMNS));
        let inputs = params_of![x.at[0], x.at[1], x.at[2], ends, transform, pairwise, before];
        let rest = [Param::from(after), Param::from(out), Param::shared(shared as u32)];
        let params = [inputs.as_slice(), &sizes, &rest].concat();
        let grid = [self.value_dim.div_ceil(COLUMNS) as u32, self.value_heads as u32, 1];
        candle.launch_as("delta_rule", grid, THREADS, &params);
        let (expected, state) = self.defined(&x, &state, self.l);
        self.near(candle, "outputs of the rule", out, &expected);
        self.near(candle, "the state after the rule", after, &state);
    }

    fn step(&self, candle: &Candle) {
        let x = self.inputs(candle);
        let (before, state) = self.state(candle);
        let (after, out) =
            (candle.empty::<f32>(state.len()), candle.empty::<f32>(self.value_heads * self.value_dim));
        let sizes = [self.key_heads, self.key_dim, self.value_dim].map(|n| Param::from(n as u32));
        let params =
            [x.at.map(Param::from).as_slice(), params_of![before], &sizes, params_of![after, out]].concat();
        let grid = [self.value_dim.div_ceil(COLUMNS) as u32, self.value_heads as u32, 1];
        candle.launch_as("delta_step", grid, THREADS, &params);
        let (expected, state) = self.defined(&x, &state, 1);
        self.near(candle, "outputs of a step", out, &expected);
        self.near(candle, "the state after a step", after, &state);
    }

    /// The rows' sums by segment, over panels of one block from the last back.
    fn rows(&self, candle: &Candle) {
        let x = self.inputs(candle);
        let (first_row, places, heads) = (self.l - self.rows, self.bounds.len(), self.value_heads);
        let q: Vec<f32> = (0..heads)
            .flat_map(|head| (first_row..self.l).map(move |row| (head, row)))
            .flat_map(|(head, row)| self.of(&x.q, row, head).iter().map(|x| *x as f32).collect::<Vec<_>>())
            .collect();
        let (w, borders) = (candle.upload(&q, 0), candle.upload(self.bounds, 0));
        let sums = candle.upload(&vec![0_f32; 2 * places * heads * self.rows], 0);
        let padded = self.key_dim.next_multiple_of(TOKENS);
        let shared = 4 * (ROWS * (padded + 4) + (TOKENS + ROWS) * PITCH);
        // The last panel is of two blocks, ragged; the others are of one.
        let mut panels: Vec<(usize, usize)> =
            (0..self.l).step_by(TOKENS).map(|at| (at, TOKENS.min(self.l - at))).collect();
        if panels.len() > 1 {
            let (_, l) = panels.pop().unwrap_or_default();
            if let Some(last) = panels.last_mut() {
                last.1 += l;
            }
        }
        for (first, l) in panels.into_iter().rev() {
            let [ends, transform, pairwise] = self.blocks(candle, &x, (first, l), false);
            let k = self.from(&x, first)[1];
            let sizes = [places, first, l, first_row, self.rows, self.key_heads, self.key_dim];
            let sizes = sizes.map(|n| Param::from(n as u32));
            let rest = [Param::from(w), Param::from(sums), Param::shared(shared as u32)];
            let params =
                [params_of![k, ends, transform, pairwise, borders].as_slice(), &sizes, &rest].concat();
            let grid = [self.rows.div_ceil(ROWS) as u32, heads as u32, 1];
            candle.launch_as("delta_rows", grid, THREADS, &params);
        }
        let mut expected = vec![0.0; 2 * places * heads * self.rows];
        for head in 0..heads {
            for row in 0..self.rows {
                for (key, weight) in self.weights(&x, first_row + row, head).into_iter().enumerate() {
                    let holds =
                        |place: &usize| (self.bounds[*place]..self.bounds[place + 1]).contains(&(key as u32));
                    let place = (0..places - 1).find(holds).unwrap_or(places - 1);
                    let to = (place * heads + head) * self.rows + row;
                    expected[to] += weight;
                    expected[places * heads * self.rows + to] += weight.abs();
                }
            }
        }
        self.near(candle, "implicit attention", sums, &expected);
    }

    fn near(&self, candle: &Candle, what: &str, at: u64, expected: &[f64]) {
        let size = expected.iter().fold(0_f64, |most, x| most.max(x.abs()));
        let found = candle.download::<f32>(at, expected.len());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let apart = (f64::from(*found) - expected).abs();
            assert!(
                apart <= APART * size,
                "{what}, {self:?}, {i}: {found} for {expected}, of at most {size}"
            );
        }
    }
}

fn convolution<T: Element>(candle: &mut Candle) {
    let name = format!("delta_conv_{}", T::NAME);
    candle.load("fused", &[&name]);
    for (l, channels, taps, apart) in
        [(1_usize, 1_usize, 4_usize, 0_usize), (2, 300, 4, 7), (9, 257, 3, 0), (3, 5, 1, 0)]
    {
        let (before_at, before) = operand::<T>(candle, ((taps - 1) * channels).max(1), 1);
        let layout = Layout { dims: vec![l, channels], strides: vec![channels + apart, 1], offset: 1 };
        let (x_at, x) = layout.operand::<T>(candle, 2);
        let (weights_at, weights) = operand::<f32>(candle, taps * channels, 3);
        let to = candle.empty::<T>(l * channels);
        let params = params_of![
            before_at,
            x_at,
            (channels + apart) as i64,
            weights_at,
            channels as u32,
            taps as u32,
            to
        ];
        candle.launch_as(&name, [l as u32, channels.div_ceil(256) as u32, 1], [256, 1, 1], params);
        let of = |i: usize| {
            let (token, channel) = (i / channels, i % channels);
            let value = |at: usize| match at.checked_sub(taps - 1) {
                Some(at) => x[at * channels + channel],
                None => before[at * channels + channel],
            };
            let sum: f64 = (0..taps).map(|tap| value(token + tap) * weights[tap * channels + channel]).sum();
            sum / (1.0 + (-sum).exp())
        };
        let expected: Vec<f64> = (0..l * channels).map(of).collect();
        candle.expect_of_size::<T>(&name, to, &expected, 8.0, 4.0);
    }
}
