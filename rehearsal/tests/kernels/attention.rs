//! palimpsest's attention kernels (`crates/core/src/attention/backends/cuda`), from their PTX, against the definition of attention.

use half::{bf16, f16};

use crate::Candle;
use crate::card::Param;
use crate::element::Element;

pub fn check(candle: &mut Candle) {
    candle.load("rows", &["rows_shares"]);
    rows(candle);
    candle.load("masses", &["masses_join", "masses_sums"]);
    masses::<f16>(candle);
    masses::<bf16>(candle);
    of_half::<f16>(candle);
    of_half::<bf16>(candle);
}

fn of_half<T: Element>(candle: &mut Candle) {
    let widths = PREFILLS.map(|kernel| Launched::prefill::<T>(kernel).name);
    let split = [64, 128, 256].map(|width| format!("attention_split_{}_{width}", T::NAME));
    let join = [format!("attention_join_{}", T::NAME)];
    let names: Vec<&str> = widths.iter().chain(&split).chain(&join).map(String::as_str).collect();
    candle.load("attention", &names);
    alone::<T>(candle);
    for case in cases() {
        for kernel in prefills(case.d) {
            prefill::<T>(candle, &case, &Launched::prefill::<T>(kernel));
        }
    }
    for case in decodes() {
        decode::<T>(candle, &case);
    }
}

/// Prefill kernels: maximum head dim, kind, threads, queries per block, queries kept in shared memory.
type Prefill = (usize, &'static str, usize, usize, usize);
const PREFILLS: [Prefill; 7] = [
    (64, "", 256, 128, 0),
    (80, "", 256, 128, 0),
    (96, "", 128, 128, 128),
    (128, "", 256, 256, 256),
    (128, "_small", 256, 128, 0),
    (256, "", 256, 128, 128),
    (256, "_small", 128, 64, 64),
];

/// A prefill kernel and how it is launched.
#[derive(Debug)]
pub struct Launched {
    pub name: String,
    pub threads: usize,
    /// Per block.
    pub queries: usize,
    pub shared: u32,
}

impl Launched {
    fn prefill<T: Element>((width, kind, threads, queries, kept): Prefill) -> Self {
        let name = format!("attention_prefill_{}_{width}{kind}", T::NAME);
        Launched { name, threads, queries, shared: shared(width, if width > 128 { 32 } else { 64 }, kept) }
    }
}

/// Kernels of the smallest width that fits head dim `d`.
fn prefills(d: usize) -> impl Iterator<Item = Prefill> {
    let width = PREFILLS.iter().map(|kernel| kernel.0).find(|width| d <= *width);
    PREFILLS.into_iter().filter(move |kernel| Some(kernel.0) == width)
}

/// Queries from `offset` on, head dim `d`, over keys from `first_key` to the last query.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    heads: usize,
    kv_heads: usize,
    pub d: usize,
    l: usize,
    offset: usize,
    first_key: usize,
    window: usize,
    cap: f64,
    sinks: bool,
}

impl Case {
    pub const fn new(heads: usize, kv_heads: usize, d: usize, l: usize, offset: usize) -> Self {
        Case { heads, kv_heads, d, l, offset, first_key: 0, window: 0, cap: 0.0, sinks: false }
    }

    pub const fn windowed(self, window: usize, first_key: usize) -> Self {
        Case { window, first_key, ..self }
    }

    pub const fn capped(self, cap: f64) -> Self {
        Case { cap, ..self }
    }

    pub const fn with_sinks(self) -> Self {
        Case { sinks: true, ..self }
    }

    fn keys(&self) -> usize {
        self.offset + self.l - self.first_key
    }

    fn scale(&self) -> f64 {
        1.0 / (self.d as f64).sqrt()
    }

    /// Mask and scale parameters: unit or scale, inner, cap, window.
    fn rule(&self) -> [Param; 4] {
        let log2e = std::f64::consts::LOG2_E;
        let (unit, inner) = match self.cap > 0.0 {
            true => (log2e, 2.0 * log2e * self.scale() / self.cap),
            false => (log2e * self.scale(), 0.0),
        };
        [(unit as f32).into(), (inner as f32).into(), (self.cap as f32).into(), (self.window as i32).into()]
    }
}

pub fn cases() -> Vec<Case> {
    vec![
        Case::new(1, 1, 64, 1, 0),
        Case::new(2, 1, 64, 150, 0),
        Case::new(3, 1, 20, 33, 100).with_sinks(),
        Case::new(4, 2, 80, 70, 61).capped(3.0),
        Case::new(2, 2, 96, 130, 7).windowed(50, 0),
        Case::new(2, 1, 128, 140, 65).with_sinks().windowed(64, 1),
        Case::new(2, 1, 128, 17, 300),
        Case::new(1, 1, 128, 300, 20),
        Case::new(2, 1, 256, 70, 40).capped(5.0).with_sinks(),
        Case::new(1, 1, 100, 5, 200).windowed(1, 190),
    ]
}

struct Operand {
    at: u64,
    values: Vec<f64>,
}

/// Rows of `d` values: `inner` consecutive ones for each of `outer`, followed by padding of NaN.
fn rows_of<T: Element>(
    candle: &Candle,
    outer: usize,
    inner: usize,
    room: usize,
    d: usize,
    seed: usize,
) -> Operand {
    let memory: Vec<T> = (0..outer * (inner + room) * d)
        .map(|i| match i / d % (inner + room) < inner {
            true => T::sample(seed + i),
            false => T::of(f64::NAN),
        })
        .collect();
    let values = memory.iter().enumerate().filter(|(i, _)| i / d % (inner + room) < inner);
    let values = values.map(|(_, x)| x.value()).collect();
    Operand { at: candle.upload(&memory, 0), values }
}

/// Reference weights of a row over all keys, with the sink's share first.
fn weights(case: &Case, q: &[f64], k: &[f64], sinks: &[f64], row: usize, head: usize) -> Vec<f64> {
    let Case { heads, kv_heads, d, .. } = *case;
    let position = case.offset + row;
    let q = &q[(row * heads + head) * d..][..d];
    let of_head = &k[head / (heads / kv_heads) * case.keys() * d..][..case.keys() * d];
    let score = |(j, k): (usize, &[f64])| {
        let key = case.first_key + j;
        if key > position || (case.window > 0 && key + case.window <= position) {
            return f64::NEG_INFINITY;
        }
        let score = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * case.scale();
        if case.cap > 0.0 { case.cap * (score / case.cap).tanh() } else { score }
    };
    let sink = if case.sinks { sinks[head] } else { f64::NEG_INFINITY };
    let scores: Vec<f64> =
        std::iter::once(sink).chain(of_head.chunks_exact(d).enumerate().map(score)).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
    scores.iter().map(|s| (s - most).exp() / total).collect()
}

/// Reference attention of all rows, (l, heads, d).
fn defined(case: &Case, q: &[f64], k: &[f64], v: &[f64], sinks: &[f64]) -> Vec<f64> {
    let Case { heads, kv_heads, d, l, .. } = *case;
    let mut out = vec![0.0; l * heads * d];
    for row in 0..l {
        for head in 0..heads {
            let weights = weights(case, q, k, sinks, row, head);
            let v = &v[head / (heads / kv_heads) * case.keys() * d..];
            let to = &mut out[(row * heads + head) * d..][..d];
            for (weight, v) in weights[1..].iter().zip(v.chunks_exact(d)) {
                to.iter_mut().zip(v).for_each(|(to, v)| *to += weight * v);
            }
        }
    }
    out
}

/// Shared memory of thread blocks that loop over key blocks of `keys` and keep `kept` queries there.
fn shared(width: usize, keys: usize, kept: usize) -> u32 {
    ((kept + 4 * keys) * 2 * (width + 8)) as u32
}

fn width_of(d: usize, widths: &[usize]) -> usize {
    widths.iter().copied().find(|width| d <= *width).expect("no head is wider")
}

fn allowed<T: Element>() -> f64 {
    // Weights and the result are rounded.
    2.0 * T::UNIT
}

/// Returns the largest difference.
#[track_caller]
fn agrees<T: Element>(what: &str, found: &[f64], expected: &[f64], allowed: f64) -> f64 {
    let mut most = 0.0_f64;
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let by = (a - b).abs();
        most = most.max(by);
        assert!(by <= allowed, "{what}, {} at {i}: {} for {}", T::NAME, found[i], expected[i]);
    }
    most
}

fn launch(
    candle: &Candle,
    name: &str,
    grid: [usize; 3],
    threads: usize,
    shared: u32,
    mut params: Vec<Param>,
) {
    if shared > 0 {
        assert_eq!(candle.card.try_shared(name, shared as i32), 0, "{name}");
        params.push(Param::shared(shared));
    }
    candle.launch_as(name, grid.map(|n| n as u32), [threads as u32, 1, 1], &params);
}

/// The largest difference from the definition.
pub fn prefill<T: Element>(candle: &Candle, case: &Case, kernel: &Launched) -> f64 {
    let Case { heads, kv_heads, d, l, .. } = *case;
    let q = rows_of::<T>(candle, l, heads, 1, d, 1);
    let (k, v) = (
        rows_of::<T>(candle, kv_heads, case.keys(), 3, d, 20_000),
        rows_of::<T>(candle, kv_heads, case.keys(), 5, d, 70_000),
    );
    let sinks: Vec<f32> = (0..heads).map(|h| h as f32 - 0.5).collect();
    let sinks_at = candle.upload(&sinks, 0);
    let sinks_param = if case.sinks { sinks_at } else { 0 };
    let found = prefilled::<T>(candle, case, kernel, [q.at, k.at, v.at], sinks_param);
    let found: Vec<f64> = found.iter().map(|x| x.value()).collect();
    let sinks: Vec<f64> = sinks.iter().map(|x| f64::from(*x)).collect();
    let expected = defined(case, &q.values, &k.values, &v.values, &sinks);
    agrees::<T>(&format!("{kernel:?}, {case:?}"), &found, &expected, allowed::<T>())
}

/// Kernel output for queries padded by one head, and keys and values padded by 3 and 5 rows.
fn prefilled<T: Element>(
    candle: &Candle,
    case: &Case,
    kernel: &Launched,
    [q, k, v]: [u64; 3],
    sinks: u64,
) -> Vec<T> {
    let Case { heads, kv_heads, d, l, offset, first_key, .. } = *case;
    let out = candle.empty::<T>(l * heads * d);
    let (q_row, q_head) = ((heads + 1) * d, d);
    let (k_head, v_head) = ((case.keys() + 3) * d, (case.keys() + 5) * d);
    let mut params = vec![Param::from(q), (q_row as i64).into(), (q_head as i64).into()];
    params.extend([Param::from(k), (k_head as i64).into(), Param::from(v), (v_head as i64).into()]);
    params.extend([d, heads / kv_heads, l, offset, first_key, case.keys()].map(|n| Param::from(n as i32)));
    params.extend(case.rule());
    params.push(Param::from(i32::from(d % 8 == 0)));
    params.extend([Param::from(sinks), Param::from(out)]);
    let grid = [l.div_ceil(kernel.queries), heads, 1];
    launch(candle, &kernel.name, grid, kernel.threads, kernel.shared, params);
    candle.download::<T>(out, l * heads * d)
}

/// A query's bits do not depend on earlier queries in its launch.
pub fn prefills_alone<T: Element>(candle: &Candle, kernel: &Launched) {
    let case = Case::new(4, 2, 64, 150, 30).windowed(90, 0);
    let (skipped, row) = (67, (case.heads + 1) * case.d * size_of::<T>());
    let q = rows_of::<T>(candle, case.l, case.heads, 1, case.d, 1).at;
    let k = rows_of::<T>(candle, case.kv_heads, case.keys(), 3, case.d, 20_000).at;
    let v = rows_of::<T>(candle, case.kv_heads, case.keys(), 5, case.d, 70_000).at;
    let all = prefilled::<T>(candle, &case, kernel, [q, k, v], 0);
    let later = Case { l: case.l - skipped, offset: case.offset + skipped, ..case };
    let some = prefilled::<T>(candle, &later, kernel, [q + (skipped * row) as u64, k, v], 0);
    assert!(all[skipped * case.heads * case.d..] == some, "{} rows of a later chunk", T::NAME);
}

/// A query's bits do not depend on earlier queries in its launch or on other branches.
fn alone<T: Element>(candle: &Candle) {
    prefills_alone::<T>(candle, &Launched::prefill::<T>(PREFILLS[0]));
    let row = 5 * 64 * size_of::<T>();
    let q = rows_of::<T>(candle, 150, 4, 1, 64, 1).at;
    let case = Case::new(4, 2, 64, 1, 600);
    let k = rows_of::<T>(candle, case.kv_heads, case.keys(), 3, case.d, 20_000).at;
    let v = rows_of::<T>(candle, case.kv_heads, case.keys(), 5, case.d, 70_000).at;
    let together = branches::<T>(candle, &case, 20, [q, k, v]);
    for branch in [0, 7, 19] {
        let own = branches::<T>(candle, &case, 1, [q + (branch * row) as u64, k, v]);
        let width = case.heads * case.d;
        assert!(together[branch * width..][..width] == own, "{} branch {branch}", T::NAME);
    }
}

/// One query for each of several branches with the same keys.
fn branches<T: Element>(candle: &Candle, case: &Case, rows: usize, [q, k, v]: [u64; 3]) -> Vec<T> {
    let Case { heads, kv_heads, d, offset, .. } = *case;
    let (group, parts) = (heads / kv_heads, (offset + 1).div_ceil(256));
    let warps = (rows * group).div_ceil(16).next_power_of_two().min(4);
    let (sums, ends) =
        (candle.empty::<f32>(parts * rows * heads * d), candle.empty::<f32>(parts * rows * heads * 2));
    let mut params = vec![Param::from(q), (((heads + 1) * d) as i64).into(), (d as i64).into()];
    params.extend([Param::from(k), (((case.keys() + 3) * d) as i64).into()]);
    params.extend([Param::from(v), (((case.keys() + 5) * d) as i64).into()]);
    params.extend([d, group, rows].map(|n| Param::from(n as i32)));
    params.push(Param::from(0_u64));
    params.extend([offset, 0, case.keys(), 0].map(|n| Param::from(n as i32)));
    params.extend(case.rule());
    params.extend([1, 0, 0, rows as i32].map(Param::from));
    params.extend([sums, ends, 0_u64].map(Param::from));
    params.extend([0_i32, 0].map(Param::from));
    params.push(Param::from(0_u64));
    let grid = [parts, (rows * group).div_ceil(16 * warps), kv_heads];
    launch(candle, &format!("attention_split_{}_64", T::NAME), grid, 32 * warps, shared(64, 64, 0), params);
    let out = candle.empty::<T>(rows * heads * d);
    let mut params = vec![Param::from(sums), Param::from(ends)];
    params.extend([parts, 0, d, heads].map(|n| Param::from(n as i32)));
    params.extend([0_u64, out].map(Param::from));
    launch(candle, &format!("attention_join_{}", T::NAME), [rows * heads, 1, 1], 256, 0, params);
    candle.download::<T>(out, rows * heads * d)
}

/// One query per case, at `offset`.
fn decodes() -> Vec<Case> {
    vec![
        Case::new(1, 1, 64, 1, 0),
        Case::new(8, 2, 20, 1, 700).with_sinks(),
        Case::new(4, 1, 80, 1, 255).capped(3.0),
        Case::new(20, 1, 128, 1, 600).windowed(300, 290).with_sinks(),
        Case::new(2, 2, 256, 1, 300).windowed(7, 294),
    ]
}

fn decode<T: Element>(candle: &Candle, case: &Case) {
    const PART: usize = 256;
    let Case { heads, kv_heads, d, offset, first_key, .. } = *case;
    let group = heads / kv_heads;
    let q = rows_of::<T>(candle, 1, heads, 0, d, 3);
    let (k, v) = (
        rows_of::<T>(candle, kv_heads, case.keys(), 3, d, 20_000),
        rows_of::<T>(candle, kv_heads, case.keys(), 5, d, 70_000),
    );
    let sinks: Vec<f32> = (0..heads).map(|h| h as f32 - 0.5).collect();
    let sinks_at = candle.upload(&sinks, 0);
    let (q_row, q_head) = (heads * d, d);
    let (k_head, v_head) = ((case.keys() + 3) * d, (case.keys() + 5) * d);
    let width = width_of(d, &[64, 128, 256]);
    let block = if width > 64 { 32 } else { 64 };
    let warps = group.div_ceil(16).next_power_of_two().min(4);
    let first_seen = if case.window > 0 { (offset + 1).saturating_sub(case.window) } else { 0 };
    let first_part = first_seen / PART;
    let parts = (offset + 1).div_ceil(PART) - first_part;
    // Borders between and within key blocks, and an empty segment.
    let start = (first_part * PART).max(first_key);
    let first_block = start / block;
    let borders: Vec<usize> =
        [first_seen, first_seen + 3, offset / 128 * 64, offset / 2, offset.saturating_sub(2)].into();
    let mut borders: Vec<usize> = borders.into_iter().filter(|b| *b > start && *b <= offset).collect();
    borders.sort_unstable();
    borders.dedup();
    let borders_at = candle.upload(&borders.iter().map(|b| *b as u32).collect::<Vec<_>>(), 0);
    let number = |x: usize| x / block - first_block + borders.partition_point(|b| *b <= x);
    let pieces = number(offset) + 1;
    let [sums, ends, of_pieces] =
        [parts * heads * d, parts * heads * 2, pieces * heads * 2].map(|n| candle.empty::<f32>(n));
    let mut params = vec![Param::from(q.at), (q_row as i64).into(), (q_head as i64).into()];
    params.extend([Param::from(k.at), (k_head as i64).into(), Param::from(v.at), (v_head as i64).into()]);
    params.extend([d, group, 1].map(|n| Param::from(n as i32)));
    params.push(Param::from(0_u64));
    params.extend([offset, first_key, case.keys(), first_part].map(|n| Param::from(n as i32)));
    params.extend(case.rule());
    params.extend([i32::from(d % 8 == 0), 0, 0, 1].map(Param::from));
    params.extend([sums, ends, borders_at].map(Param::from));
    params.extend([borders.len(), first_block].map(|n| Param::from(n as i32)));
    params.push(Param::from(of_pieces));
    let name = format!("attention_split_{}_{width}", T::NAME);
    let grid = [parts, group.div_ceil(16 * warps), kv_heads];
    launch(
        candle,
        &name,
        grid,
        32 * warps,
        shared(width, block, if width > 128 { 16 * warps } else { 0 }),
        params,
    );

    let out = candle.empty::<T>(heads * d);
    let sinks_param = if case.sinks { sinks_at } else { 0 };
    let mut params = vec![Param::from(sums), Param::from(ends)];
    params.extend([parts, first_part, d, heads].map(|n| Param::from(n as i32)));
    params.extend([sinks_param, out].map(Param::from));
    launch(candle, &format!("attention_join_{}", T::NAME), [heads, 1, 1], 256, 0, params);
    let found: Vec<f64> = candle.download::<T>(out, heads * d).iter().map(|x| x.value()).collect();
    let sinks: Vec<f64> = sinks.iter().map(|x| f64::from(*x)).collect();
    let expected = defined(case, &q.values, &k.values, &v.values, &sinks);
    agrees::<T>(&format!("decode {case:?}"), &found, &expected, allowed::<T>());

    // Segments between the borders, from the first key on.
    let edges: Vec<usize> = [start].into_iter().chain(borders.iter().copied()).chain([offset + 1]).collect();
    let firsts: Vec<u32> =
        edges.iter().map(|x| if *x <= offset { number(*x) } else { pieces } as u32).collect();
    let found = shares(candle, of_pieces, (heads, pieces), &firsts, sinks_param);
    let expected = of_segments(case, &q.values, &k.values, &sinks, &edges);
    agrees::<f32>(&format!("weights of {case:?}"), &found, &expected, 1e-5);
}

/// Output of `rows_shares` for piece ends whose scores are powers of two.
fn shares(
    candle: &Candle,
    ends: u64,
    (heads, pieces): (usize, usize),
    firsts: &[u32],
    sinks: u64,
) -> Vec<f64> {
    let out = candle.empty::<f32>(heads * firsts.len());
    let mut params = vec![Param::from(ends), Param::from(1_i64), Param::from(heads as i64)];
    params.extend([Param::from(pieces as i32), Param::from(std::f32::consts::LN_2), Param::from(sinks)]);
    params.extend([Param::from(candle.upload(firsts, 0)), Param::from(firsts.len() as i32 - 1)]);
    params.push(Param::from(out));
    launch(candle, "rows_shares", [heads, 1, 1], 256, 0, params);
    candle.download::<f32>(out, heads * firsts.len()).iter().map(|x| f64::from(*x)).collect()
}

/// Masses of all rows on the sinks and each segment between `edges`, by head.
fn of_segments(case: &Case, q: &[f64], k: &[f64], sinks: &[f64], edges: &[usize]) -> Vec<f64> {
    let mut expected = Vec::new();
    for head in 0..case.heads {
        let mut sums = vec![0.0; edges.len()];
        for row in 0..case.l {
            let weights = weights(case, q, k, sinks, row, head);
            sums[0] += weights[0];
            for (segment, edges) in edges.windows(2).enumerate() {
                let within =
                    |x: usize| x.clamp(case.first_key, case.first_key + case.keys()) - case.first_key;
                sums[1 + segment] += weights[1..][within(edges[0])..within(edges[1])].iter().sum::<f64>();
            }
        }
        expected.extend(sums);
    }
    expected
}

fn sums() -> Vec<Case> {
    vec![
        Case::new(1, 1, 64, 1, 0),
        Case::new(6, 2, 20, 1, 1500).with_sinks(),
        Case::new(3, 1, 64, 30, 100).capped(2.0),
        Case::new(2, 2, 80, 70, 61).windowed(50, 0).with_sinks(),
        Case::new(4, 2, 100, 40, 300).windowed(1, 0),
    ]
}

fn rows(candle: &mut Candle) {
    let names = ["rows_many", "rows_few"];
    candle.load("rows", &names);
    for case in sums() {
        for name in &names {
            rows_by(candle, &case, name);
        }
    }
}

fn masses<T: Element>(candle: &mut Candle) {
    let names =
        ["ends", "columns"].map(|kind| [64, 128, 256].map(|d| format!("masses_{kind}_{}_{d}", T::NAME)));
    candle.load("masses", &names.iter().flatten().map(String::as_str).collect::<Vec<_>>());
    // More queries than a thread block, more keys than a piece, and windows that begin within a block of either.
    let more = [
        Case::new(2, 1, 128, 140, 1000).with_sinks(),
        Case::new(4, 2, 128, 150, 900).windowed(333, 0),
        Case::new(2, 2, 256, 70, 40).capped(5.0).with_sinks(),
        Case::new(1, 1, 256, 130, 7).windowed(70, 0),
    ];
    for case in sums().into_iter().chain(more) {
        masses_of::<T>(candle, &case);
    }
}

/// The four kernels, as `masses.rs` launches them.
fn masses_of<T: Element>(candle: &Candle, case: &Case) {
    let Case { heads, kv_heads, d, l, offset, .. } = *case;
    let width = width_of(d, &[64, 128, 256]);
    let of_block = if width > 128 { 64 } else { 128 };
    let (q, k) =
        (rows_of::<T>(candle, l, heads, 1, d, 1), rows_of::<T>(candle, kv_heads, case.keys(), 3, d, 20_000));
    let sinks: Vec<f32> = (0..heads).map(|h| h as f32 - 0.5).collect();
    let sinks_at = if case.sinks { candle.upload(&sinks, 0) } else { 0 };
    let mut edges: Vec<usize> = [0, 1, offset / 2, offset / 2 + 3, offset.max(1), offset + l].into();
    edges.retain(|x| *x <= offset + l);
    edges.sort_unstable();
    edges.dedup();
    let first = if case.window > 0 { (offset + 1).saturating_sub(case.window) } else { 0 };
    let end = offset + l;
    let (pieces, blocks) = (first / 1024..end.div_ceil(1024), first / of_block..end.div_ceil(of_block));
    let (padded, columns) = (l.next_multiple_of(64), blocks.len() * of_block);
    let ends = candle.empty::<f32>(pieces.len() * heads * padded * 2);
    let (wholes, by_key) = (candle.empty::<f32>(heads * padded * 2), candle.empty::<f32>(heads * columns));
    let out = candle.empty::<f32>(heads * edges.len());
    let mut operands = vec![Param::from(q.at), (((heads + 1) * d) as i64).into(), (d as i64).into()];
    operands.extend([Param::from(k.at), (((case.keys() + 3) * d) as i64).into()]);
    operands.extend([d, heads / kv_heads, l, offset].map(|n| Param::from(n as i32)));
    operands.extend(case.rule());
    operands.push(Param::from(i32::from(d % 8 == 0)));
    let shared = (2 * 64 * 2 * (width + 8)) as u32;
    let int = |n: usize| Param::from(n as i32);
    let with = |more: Vec<Param>| operands.iter().cloned().chain(more).collect::<Vec<_>>();

    let name = format!("masses_ends_{}_{width}", T::NAME);
    let params = with(vec![int(pieces.start), int(padded), Param::from(ends)]);
    launch(candle, &name, [pieces.len(), l.div_ceil(of_block), heads], 128, shared, params);
    let params =
        vec![Param::from(ends), int(pieces.len()), int(l), int(padded), sinks_at.into(), wholes.into()];
    launch(candle, "masses_join", [padded.div_ceil(128), heads, 1], 128, 0, params);
    let name = format!("masses_columns_{}_{width}", T::NAME);
    let more = vec![int(blocks.start), int(end), int(padded), wholes.into(), by_key.into()];
    let more = more.into_iter().chain([Param::from(columns as i64)]).collect();
    launch(candle, &name, [blocks.len(), kv_heads, 1], 128, shared, with(more));
    let borders = candle.upload(&edges.iter().map(|x| *x as u32).collect::<Vec<_>>(), 0);
    let mut params =
        vec![Param::from(by_key), Param::from(columns as i64), int(blocks.start * of_block), int(end)];
    params.extend([borders, sinks_at, wholes].map(Param::from));
    params.extend([int(l), int(padded), out.into()]);
    launch(candle, "masses_sums", [edges.len(), heads, 1], 128, 0, params);

    let found: Vec<f64> =
        candle.download::<f32>(out, heads * edges.len()).iter().map(|x| f64::from(*x)).collect();
    let sinks: Vec<f64> = sinks.iter().map(|x| f64::from(*x)).collect();
    let expected = of_segments(case, &q.values, &k.values, &sinks, &edges);
    agrees::<T>(&format!("masses of {case:?}"), &found, &expected, 1e-5 * l as f64);
}

/// Several thread blocks of queries; the last one sums the results of several pieces.
pub fn rows_in_one_launch(candle: &mut Candle) {
    candle.load("rows", &["rows_few"]);
    rows_by(candle, &Case::new(6, 2, 20, 7, 300).with_sinks(), "rows_few");
}

fn rows_by(candle: &Candle, case: &Case, name: &str) {
    let Case { heads, kv_heads, d, l, offset, .. } = *case;
    let group = heads / kv_heads;
    let q = rows_of::<f32>(candle, l, heads, 1, d, 1);
    let k = rows_of::<f32>(candle, kv_heads, case.keys(), 3, d, 20_000);
    let sinks: Vec<f32> = (0..heads).map(|h| h as f32 - 0.5).collect();
    let sinks_at = if case.sinks { candle.upload(&sinks, 0) } else { 0 };
    let mut cuts: Vec<usize> = [0, 1, offset / 2, offset / 2 + 3, offset.max(1), offset + l].into();
    cuts.retain(|x| *x <= offset + l);
    cuts.sort_unstable();
    cuts.dedup();
    let cuts_at = candle.upload(&cuts.iter().map(|x| *x as u32).collect::<Vec<_>>(), 0);
    let pieces = cuts.len() - 1;
    let ends = candle.empty::<f32>(heads * l * pieces * 2);
    let mut params = vec![Param::from(q.at), (((heads + 1) * d) as i64).into(), (d as i64).into()];
    params.extend([Param::from(k.at), (((case.keys() + 3) * d) as i64).into()]);
    params.extend([d, group, l, offset, case.window].map(|n| Param::from(n as i32)));
    params.extend([Param::from(case.scale() as f32), Param::from(case.cap as f32)]);
    params.extend([cuts_at, ends].map(Param::from));
    let of_block = if name.contains("many") { 64 } else { 8 };
    let row_blocks = (l * group).div_ceil(of_block);
    let firsts: Vec<u32> = (0..cuts.len() as u32).collect();
    let parts = candle.empty::<f32>(heads * cuts.len() * row_blocks);
    let counters = candle.upload(&vec![0_u32; kv_heads * (row_blocks + 1)], 0);
    params.extend([sinks_at, candle.upload(&firsts, 0)].map(Param::from));
    params.push(Param::from(pieces as i32));
    let out = candle.empty::<f32>(heads * cuts.len());
    params.extend([parts, counters, out].map(Param::from));
    launch(candle, name, [pieces, row_blocks, kv_heads], 256, 0, params);
    // Reset for the next launch.
    assert_eq!(
        candle.download::<u32>(counters, kv_heads * (row_blocks + 1)),
        vec![0; kv_heads * (row_blocks + 1)]
    );
    let found: Vec<f64> =
        candle.download::<f32>(out, heads * cuts.len()).iter().map(|x| f64::from(*x)).collect();
    let sinks: Vec<f64> = sinks.iter().map(|x| f64::from(*x)).collect();
    let expected = of_segments(case, &q.values, &k.values, &sinks, &cuts);
    agrees::<f32>(&format!("{name}, {case:?}"), &found, &expected, 1e-5 * l as f64);
}
