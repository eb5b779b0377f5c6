//! palimpsest's own kernels (`crates/core/src/fused/cuda/fused.cu`), from their PTX.

use half::{bf16, f16};

use crate::Candle;
use crate::card::Param;
use crate::element::Element;
use crate::layout::Layout;
use crate::params_of;

const HIDDEN: f64 = -1e30;

pub fn check(candle: &mut Candle) {
    candle.load("fused", &["softmax_ends"]);
    ends(candle);
    all::<f32>(candle);
    all::<f16>(candle);
    all::<bf16>(candle);
}

fn all<T: Element>(candle: &mut Candle) {
    let names = ["softmax_weights", "softmax_close", "rms_norm", "gated", "gated_norm", "decay"];
    let names = names.map(|name| format!("{name}_{}", T::NAME));
    candle.load("fused", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let [weights_of, close_of, norm_of, gated_of, gated_norm_of, decay_of] = &names;
    weights::<T>(candle, weights_of);
    close::<T>(candle, close_of);
    norm::<T>(candle, norm_of);
    gated::<T>(candle, gated_of);
    gated_norm::<T>(candle, gated_norm_of);
    decay::<T>(candle, decay_of);
    let turned = format!("norm_rope_{}", T::NAME);
    candle.load("fused", &[&turned]);
    norm_rope::<T>(candle, &turned);
}

/// `count` values, unaligned for vector instructions.
pub fn operand<T: Element>(candle: &Candle, count: usize, seed: usize) -> (u64, Vec<f64>) {
    Layout { offset: 1, ..Layout::contiguous(&[count]) }.operand::<T>(candle, seed)
}

/// A block of scores: `queries` rows per head, keys from `first` on.
struct Scores {
    rows: usize,
    queries: usize,
    first: usize,
    n: usize,
    cap: f64,
    /// Visible keys by query; `None` if all see all.
    seen: Option<Vec<(usize, usize)>>,
}

impl Scores {
    /// Cases for every loop: below and above a warp and a block; and a query that sees nothing.
    fn all() -> Vec<Self> {
        let new = |rows, queries, first, n, cap, seen: Option<&[(usize, usize)]>| {
            let seen = seen.map(<[_]>::to_vec);
            Scores { rows, queries, first, n, cap, seen }
        };
        vec![
            new(1, 1, 0, 1, 0.0, None),
            new(4, 2, 0, 33, 0.0, None),
            new(3, 1, 100, 1000, 2.0, Some(&[(150, 1051)])),
            new(6, 3, 40, 70, 0.0, Some(&[(0, 50), (60, 200), (0, 40)])),
            new(2, 2, 7, 2500, 3.0, Some(&[(0, 2507), (2500, 2501)])),
            new(2, 1, 0, 9000, 0.0, None),
        ]
    }

    /// Masked scores of a row; `None` where not visible.
    fn of_row(&self, row: usize, values: &[f64]) -> Vec<Option<f64>> {
        let (start, end) = self.seen.as_ref().map_or((0, usize::MAX), |seen| seen[row % self.queries]);
        let counts = |score: f64| if self.cap > 0.0 { self.cap * (score / self.cap).tanh() } else { score };
        let sees = |i: usize| (start..end).contains(&(self.first + i));
        let row = values[row * self.n..(row + 1) * self.n].iter().enumerate();
        row.map(|(i, &score)| sees(i).then(|| counts(score))).collect()
    }

    fn params(&self, candle: &Candle, scores: u64) -> Vec<Param> {
        let seen = self.seen.as_ref().map_or(0, |seen| {
            let ends = seen.iter().map(|range| range.0).chain(seen.iter().map(|range| range.1));
            candle.card.upload(&ends.map(|at| at as u32).collect::<Vec<_>>(), 0)
        });
        let head = [Param::from(scores), Param::from(seen), Param::from(self.queries as u32)];
        let tail = [Param::from(self.first as i64), Param::from(self.n as i64), Param::from(self.cap as f32)];
        head.into_iter().chain(tail).collect()
    }
}

fn ends(candle: &Candle) {
    for (seed, block) in Scores::all().into_iter().enumerate() {
        let (at, values) = operand::<f32>(candle, block.rows * block.n, seed);
        let rows = block.rows;
        for before in [false, true] {
            let (max_at, max) = operand::<f32>(candle, rows, 5);
            let (sum_at, sum) = operand::<f32>(candle, rows, 6);
            let [max_param, sum_param] = [max_at, sum_at].map(|at| Param::from(if before { at } else { 0 }));
            let kinds = if before { 3 } else { 2 };
            let to = candle.empty::<f32>(kinds * rows);
            let mut params = block.params(candle, at);
            params.extend([max_param, sum_param, Param::from(to)]);
            let threads = block.n.next_multiple_of(32).min(1024) as u32;
            candle.launch_as("softmax_ends", [rows as u32, 1, 1], [threads, 1, 1], &params);
            let mut expected = vec![0.0; kinds * rows];
            for row in 0..rows {
                let scores: Vec<f64> = block.of_row(row, &values).into_iter().flatten().collect();
                let start = if before { max[row] } else { HIDDEN };
                let most = scores.iter().copied().fold(start, f64::max);
                expected[row] = most;
                expected[rows + row] = scores.iter().map(|score| (score - most).exp()).sum();
                if before {
                    let factor = (max[row] - most).exp();
                    expected[rows + row] += sum[row] * factor;
                    expected[2 * rows + row] = factor;
                }
            }
            // -1e30 is rounded too.
            candle.expect::<f32>("softmax_ends", to, &expected, 16.0);
        }
    }
}

fn weights<T: Element>(candle: &Candle, name: &str) {
    for (seed, block) in Scores::all().into_iter().enumerate() {
        let (at, values) = operand::<f32>(candle, block.rows * block.n, seed);
        // No score exceeds 2.
        let max: Vec<f32> = (0..block.rows).map(|row| 2.0 + row as f32).collect();
        let max_at = candle.upload(&max, 0);
        for parts in [1, 3] {
            let to = candle.empty::<T>(block.rows * block.n);
            let mut params = block.params(candle, at);
            params.extend([Param::from(max_at), Param::from(to)]);
            candle.launch_as(name, [block.rows as u32, parts, 1], [64, 1, 1], &params);
            let of_row = |row: usize| {
                let max = f64::from(max[row]);
                let weight = move |score: Option<f64>| score.map_or(0.0, |score| (score - max).exp());
                block.of_row(row, &values).into_iter().map(weight).collect::<Vec<_>>()
            };
            let expected: Vec<f64> = (0..block.rows).flat_map(of_row).collect();
            candle.expect::<T>(name, to, &expected, 8.0);
        }
    }
}

fn close<T: Element>(candle: &Candle, name: &str) {
    for (heads, queries, d) in [(1, 1, 1), (3, 5, 12), (4, 2, 100)] {
        let rows = heads * queries;
        let (at, values) = operand::<f32>(candle, rows * d, 1);
        let (max_at, max) = operand::<f32>(candle, rows, 2);
        let sum: Vec<f32> = (0..rows).map(|row| 1.0 + row as f32 / 3.0).collect();
        let sum_at = candle.upload(&sum, 1);
        let (sinks_at, sinks) = operand::<f32>(candle, heads, 3);
        for with_sinks in [false, true] {
            let to = candle.empty::<T>(rows * d);
            let sinks_at = if with_sinks { sinks_at } else { 0 };
            let pointers = [at, max_at, sum_at, sinks_at].map(Param::from);
            let sizes = [Param::from(queries as u32), Param::from(d as u32), Param::from(to)];
            let params: Vec<_> = pointers.into_iter().chain(sizes).collect();
            candle.launch_as(name, [rows as u32, 1, 1], [32, 1, 1], &params);
            let mut expected = vec![0.0; rows * d];
            for row in 0..rows {
                let (head, query) = (row / queries, row % queries);
                let sink = if with_sinks { (sinks[head] - max[row]).exp() } else { 0.0 };
                for i in 0..d {
                    expected[(query * heads + head) * d + i] =
                        values[row * d + i] / (f64::from(sum[row]) + sink);
                }
            }
            candle.expect::<T>(name, to, &expected, 4.0);
        }
    }
}

/// Row counts and lengths for all of a norm's loops.
const ROWS: [(usize, usize); 5] = [(1, 1), (3, 33), (2, 64), (2, 1000), (3, 1536)];

fn threads(width: usize) -> [u32; 3] {
    [width.next_multiple_of(32).min(1024) as u32, 1, 1]
}

fn scale(row: &[f64], eps: f32) -> f64 {
    let squares: f64 = row.iter().map(|x| x * x).sum();
    1.0 / (squares / row.len() as f64 + f64::from(eps)).sqrt()
}

fn norm<T: Element>(candle: &Candle, name: &str) {
    for (rows, width) in ROWS {
        let (at, x) = operand::<T>(candle, rows * width, 4);
        let (factor_at, factor) = operand::<f32>(candle, width, 70);
        let to = candle.empty::<T>(rows * width);
        let eps = 1e-3_f32;
        let params = params_of![at, factor_at, width as u32, eps, to];
        candle.launch_as(name, [rows as u32, 1, 1], threads(width), params);
        let of_row = |row: &[f64]| {
            let scale = scale(row, eps);
            row.iter().zip(&factor).map(|(x, by)| x * scale * by).collect::<Vec<_>>()
        };
        let expected: Vec<f64> = x.chunks(width).flat_map(of_row).collect();
        candle.expect::<T>(name, to, &expected, 8.0);
    }
}

fn gated_norm<T: Element>(candle: &Candle, name: &str) {
    for (rows, width) in ROWS {
        let (at, x) = operand::<f32>(candle, rows * width, 8);
        let (factor_at, factor) = operand::<f32>(candle, width, 9);
        let (z_at, z) = operand::<T>(candle, rows * width, 10);
        let to = candle.empty::<T>(rows * width);
        let eps = 1e-3_f32;
        let params = params_of![at, factor_at, z_at, width as u32, eps, to];
        candle.launch_as(name, [rows as u32, 1, 1], threads(width), params);
        let expected: Vec<f64> = (0..rows * width)
            .map(|i| {
                let row = &x[i / width * width..][..width];
                x[i] * scale(row, eps) * factor[i % width] * z[i] / (1.0 + (-z[i]).exp())
            })
            .collect();
        candle.expect::<T>(name, to, &expected, 8.0);
    }
}

fn gated<T: Element>(candle: &Candle, name: &str) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (alpha, limit) = (1.702_f32, 1.25_f32);
    let (a, most) = (f64::from(alpha), f64::from(limit));
    let tanh = |g: f64| (0.797_884_560_802_865_4 * (g + 0.044_715 * g.powi(3))).tanh();
    let silu = |g: f64, u: f64| g * sigmoid(g) * u;
    let gelu = |g: f64, u: f64| 0.5 * g * (1.0 + tanh(g)) * u;
    let clamped = |g: f64, u: f64| {
        let g = g.min(most);
        g * sigmoid(a * g) * (u.clamp(-most, most) + 1.0)
    };
    let kinds: [&dyn Fn(f64, f64) -> f64; 3] = [&silu, &gelu, &clamped];
    for (rows, columns, apart) in [(1_usize, 1_usize, 0_usize), (1, 255, 0), (5, 300, 0), (5, 300, 37)] {
        // Rows begin `stride` elements apart.
        let (n, stride) = (rows * columns, columns + apart);
        let layout = || Layout { dims: vec![rows, columns], strides: vec![stride, 1], offset: 1 };
        let (gate_at, gate) = layout().operand::<T>(candle, 12);
        let (up_at, up) = layout().operand::<T>(candle, 13);
        for (kind, define) in kinds.into_iter().enumerate() {
            let to = candle.empty::<T>(n);
            let sizes = params_of![gate_at, up_at, columns as u32, rows as u32, stride as i64];
            let rest = params_of![kind as i32, alpha, limit, to];
            // Fewer thread blocks than rows, to test the loop over them.
            let grid = [columns.div_ceil(128) as u32, 2, 1];
            candle.launch_as(name, grid, [128, 1, 1], &[sizes.as_slice(), rest].concat());
            let expected: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| define(*g, *u)).collect();
            candle.expect::<T>(name, to, &expected, 8.0);
        }
    }
}

/// Heads that lie apart, as those of queries with gates do; heads that turn wholly, in part, and of odd widths.
fn norm_rope<T: Element>(candle: &Candle, name: &str) {
    for (l, heads, kv_heads, width, dims, apart) in [
        (1_usize, 1_usize, 1_usize, 2_usize, 2_usize, 0_usize),
        (3, 4, 2, 33, 16, 0),
        (2, 3, 1, 128, 128, 128),
        (5, 1, 1, 70, 6, 3),
    ] {
        let half = dims / 2;
        let (cos_at, cos) = operand::<T>(candle, l * half, 21);
        let (sin_at, sin) = operand::<T>(candle, l * half, 22);
        let eps = [1e-3_f32, 1e-2];
        let mut params = Vec::new();
        let mut checked = Vec::new();
        for (heads, eps, seed) in [(heads, eps[0], 31), (kv_heads, eps[1], 41)] {
            let (head, token) = (width + apart, heads * (width + apart) + 5);
            let layout = Layout { dims: vec![l, heads, width], strides: vec![token, head, 1], offset: 1 };
            let (at, x) = layout.operand::<T>(candle, seed);
            let (factor_at, factor) = operand::<f32>(candle, width, seed + 1);
            let to = candle.empty::<T>(x.len());
            params.extend_from_slice(params_of![at, token as i64, head as i64, factor_at, eps, to]);
            let of_row = |(row, x): (usize, &[f64])| {
                let (scale, angles) = (scale(x, eps), row / heads * half);
                let normed: Vec<f64> = x.iter().zip(&factor).map(|(x, by)| x * scale * by).collect();
                let turned = |i: usize| match i {
                    _ if i < half => normed[i] * cos[angles + i] - normed[i + half] * sin[angles + i],
                    _ if i < dims => {
                        normed[i - half] * sin[angles + i - half] + normed[i] * cos[angles + i - half]
                    }
                    _ => normed[i],
                };
                (0..width).map(turned).collect::<Vec<_>>()
            };
            checked.push((to, x.chunks(width).enumerate().flat_map(of_row).collect::<Vec<_>>()));
        }
        params.extend_from_slice(params_of![cos_at, sin_at, heads as u32, width as u32, dims as u32]);
        let grid = [l as u32, (heads + kv_heads) as u32, 1];
        candle.launch_as(name, grid, threads(width), &params);
        for (to, expected) in checked {
            candle.expect_of_size::<T>(name, to, &expected, 2.0, 8.0);
        }
    }
}

fn decay<T: Element>(candle: &Candle, name: &str) {
    for (rows, columns) in [(1_usize, 1_usize), (1, 32), (7, 43)] {
        let n = rows * columns;
        // Also far below and far above zero.
        let wide: Vec<T> = (0..n).map(|i| T::of(T::sample(i).value() * 40.0)).collect();
        let at = candle.upload(&wide, 1);
        let (bias_at, bias) = operand::<f32>(candle, columns, 2);
        let (rate_at, rate) = operand::<f32>(candle, columns, 3);
        let to = candle.empty::<f32>(n);
        let params = params_of![at, bias_at, rate_at, columns as u32, n as i64, to];
        candle.launch_as(name, [n.div_ceil(256) as u32, 1, 1], [256, 1, 1], params);
        let expected = wide.iter().enumerate().map(|(i, x)| {
            let x = x.value() + bias[i % columns];
            rate[i % columns] * (x.max(0.0) + (-x.abs()).exp().ln_1p())
        });
        // Near zero, below `LEAST`, the error is bounded in ulps of the value.
        for (i, (got, expected)) in candle.download::<f32>(to, n).into_iter().zip(expected).enumerate() {
            let allowed = 16.0 * f64::from(f32::EPSILON) * expected.abs().max(1e-30);
            // x + bias is rounded before the exponential, which amplifies the error.
            let allowed = allowed * 4.0;
            assert!((f64::from(got) - expected).abs() <= allowed, "{name}, {i}: {got:e} for {expected:e}");
        }
    }
}
