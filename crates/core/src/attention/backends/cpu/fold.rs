//! Accumulators of the streamed attention weights: outputs or segment sums.

use std::ops::Range;

use pulp::Simd;

use super::sequence::Stored;
use super::{pairs, tile};
use crate::simd::lanes;

/// Receives the weights e^(s - running max) block by block.
pub trait Fold {
    fn begin(&mut self, panels: usize, width: usize);

    /// Loads the next block of keys, shared by all panels.
    #[inline(always)]
    fn load(&mut self, _block: &Range<usize>) {}

    /// Accumulates a panel's `weights` (n, panel) over the keys from `start` on; invisible keys weigh 0. First multiplies the panel's
    /// earlier sums by `factor`, since the running maximum may have grown.
    ///
    /// `D`: dimensions of a value held in registers at once.
    fn block<S: Simd, const V: usize, const D: usize>(
        &mut self,
        simd: S,
        panel: usize,
        factor: &[S::f32s; V],
        weights: &[[S::f32s; V]],
        start: usize,
    );
}

struct Values<'a> {
    /// (keys, d)
    all: Stored<'a>,
    d: usize,
    start: usize,
    /// The block's values if the cache is not f32.
    wide: Vec<f32>,
}

impl<'a> Values<'a> {
    fn new(all: Stored<'a>, d: usize) -> Self {
        Values { all, d, start: 0, wide: Vec::new() }
    }

    #[inline(always)]
    fn load(&mut self, block: &Range<usize>) {
        self.start = block.start;
        self.all.part(block.start * self.d..block.end * self.d).wide(&mut self.wide);
    }

    #[inline(always)]
    fn of(&self, keys: Range<usize>) -> &[f32] {
        let d = self.d;
        match self.all {
            Stored::F32(all) => &all[keys.start * d..keys.end * d],
            _ => &self.wide[(keys.start - self.start) * d..(keys.end - self.start) * d],
        }
    }
}

pub struct WeightedValues<'a> {
    values: Values<'a>,
    in_pairs: Option<Paired>,
    d: usize,
    width: usize,
    /// (panel, d, row)
    out: Vec<f32>,
}

#[derive(Default)]
struct Paired {
    /// (pairs, d)
    values: Vec<u32>,
    /// Weights of a panel, (pairs, panel).
    weights: Vec<u32>,
}

impl<'a> WeightedValues<'a> {
    /// `values`: (keys, d).
    pub fn new(values: Stored<'a>, d: usize, in_pairs: bool) -> Self {
        let in_pairs = in_pairs.then(Paired::default);
        WeightedValues { values: Values::new(values, d), in_pairs, d, width: 1, out: Vec::new() }
    }

    /// (rows, d)
    pub fn rows(&self, rows: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows * self.d);
        for r in 0..rows {
            let panel = &self.out[r / self.width * self.d * self.width..][..self.d * self.width];
            out.extend(panel[r % self.width..].iter().step_by(self.width));
        }
        out
    }
}

impl Fold for WeightedValues<'_> {
    fn begin(&mut self, panels: usize, width: usize) {
        self.width = width;
        self.out = vec![0.0; panels * self.d * width];
    }

    #[inline(always)]
    fn load(&mut self, block: &Range<usize>) {
        match (&mut self.in_pairs, self.values.all) {
            (Some(paired), Stored::Bf16(all)) => {
                self.values.start = block.start;
                pairs::pair_rows(all, self.d, block, &mut paired.values);
            }
            _ => self.values.load(block),
        }
    }

    // Inlined, as everything below `Walk::with_simd`, so that loops are compiled with the features that pulp detected.
    #[inline(always)]
    fn block<S: Simd, const V: usize, const D: usize>(
        &mut self,
        simd: S,
        panel: usize,
        factor: &[S::f32s; V],
        weights: &[[S::f32s; V]],
        start: usize,
    ) {
        let d = self.d;
        let (out, _) = S::as_mut_simd_f32s(&mut self.out);
        let (out, _) = out.as_chunks_mut::<V>();
        let out = &mut out[panel * d..(panel + 1) * d];
        for x in out.iter_mut() {
            for v in 0..V {
                x[v] = simd.mul_f32s(x[v], factor[v]);
            }
        }
        let keys = start..start + weights.len();
        match &mut self.in_pairs {
            Some(Paired { values, weights: rounded }) => {
                let first = keys.start / 2 - self.values.start / 2;
                let of_keys = first * d..(first + keys.end.div_ceil(2) - keys.start / 2) * d;
                let weights = pulp::bytemuck::cast_slice(weights.as_flattened());
                let out = pulp::bytemuck::cast_slice_mut(out.as_flattened_mut());
                pairs::add_values::<V>(weights, &keys, &values[of_keys], rounded, out);
            }
            None => add_values::<S, V, D>(simd, weights, self.values.of(keys), out),
        }
    }
}

/// Adds the weighted values (n, d) to `out` (d, panel), which has d elements.
#[inline(always)]
pub fn add_values<S: Simd, const V: usize, const D: usize>(
    simd: S,
    weights: &[[S::f32s; V]],
    values: &[f32],
    out: &mut [[S::f32s; V]],
) {
    let d = out.len();
    let whole = d / D * D;
    for (i, out) in out.chunks_exact_mut(D).enumerate() {
        tile::weighted_values::<S, V, D>(simd, weights, values, (i * D, d), out);
    }
    for i in whole..d {
        tile::weighted_values::<S, V, 1>(simd, weights, values, (i, d), &mut out[i..]);
    }
}

/// Segments between ascending `bounds` that overlap `keys`, with the overlapping keys.
pub fn within(bounds: &[usize], keys: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let Range { start, end } = keys;
    let first = bounds.partition_point(|&bound| bound <= start).saturating_sub(1);
    let pairs = bounds.windows(2).enumerate().skip(first).take_while(move |(_, pair)| pair[0] < end);
    let held = move |(segment, pair): (usize, &[usize])| (segment, pair[0].max(start)..pair[1].min(end));
    pairs.map(held).filter(|(_, held)| !held.is_empty())
}

/// Sums the weights per segment: segment s is `bounds[s]..bounds[s + 1]`.
pub struct Segments<'a> {
    bounds: &'a [usize],
    width: usize,
    /// (panel, segment, row)
    sums: Vec<f64>,
}

impl<'a> Segments<'a> {
    pub fn new(bounds: &'a [usize]) -> Self {
        Segments { bounds, width: 1, sums: Vec::new() }
    }

    fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    pub fn sum(&self, row: usize, segment: usize) -> f64 {
        self.sums[(row / self.width * self.segments() + segment) * self.width + row % self.width]
    }
}

impl Fold for Segments<'_> {
    fn begin(&mut self, panels: usize, width: usize) {
        self.width = width;
        self.sums = vec![0.0; panels * self.segments() * width];
    }

    #[inline(always)]
    fn block<S: Simd, const V: usize, const D: usize>(
        &mut self,
        simd: S,
        panel: usize,
        factor: &[S::f32s; V],
        weights: &[[S::f32s; V]],
        start: usize,
    ) {
        let (segments, width) = (self.segments(), self.width);
        let end = start + weights.len();
        let begun = self.bounds.partition_point(|&b| b < end).min(segments);
        let sums = &mut self.sums[panel * segments * width..][..begun * width];
        let factors = lanes::<S>(factor);
        if factors.iter().any(|&f| f != 1.0) {
            for sums in sums.chunks_exact_mut(width) {
                for (sum, &factor) in sums.iter_mut().zip(factors) {
                    *sum *= f64::from(factor);
                }
            }
        }
        for (s, keys) in within(self.bounds, start..end) {
            let mut part = [simd.splat_f32s(0.0); V];
            for weight in &weights[keys.start - start..keys.end - start] {
                for v in 0..V {
                    part[v] = simd.add_f32s(part[v], weight[v]);
                }
            }
            for (sum, &part) in sums[s * width..(s + 1) * width].iter_mut().zip(lanes::<S>(&part)) {
                *sum += f64::from(part);
            }
        }
    }
}

/// Sums w_j v_j, and w_j times the length of key j, per segment: segment s is `bounds[s]..bounds[s + 1]`.
pub struct ValuesBySegment<'a> {
    values: Values<'a>,
    d: usize,
    lengths: Option<&'a [f32]>,
    bounds: &'a [usize],
    width: usize,
    /// (panel, segment, d or d + 1, row)
    sums: Vec<f32>,
}

impl<'a> ValuesBySegment<'a> {
    pub fn new(values: Stored<'a>, d: usize, lengths: Option<&'a [f32]>, bounds: &'a [usize]) -> Self {
        ValuesBySegment { values: Values::new(values, d), d, lengths, bounds, width: 1, sums: Vec::new() }
    }

    fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Sums per row and segment: d values, then the length if requested.
    fn each(&self) -> usize {
        self.d + usize::from(self.lengths.is_some())
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Sums of a panel's rows over a segment, (d or d + 1, row).
    pub fn of_panel(&self, panel: usize, segment: usize) -> &[f32] {
        let size = self.each() * self.width;
        &self.sums[(panel * self.segments() + segment) * size..][..size]
    }

    /// Writes row `row`'s sum of values over segment `segment`, times `scale`: d elements.
    pub fn read(&self, row: usize, segment: usize, scale: f32, out: &mut [f32]) {
        let of_row = self.of_panel(row / self.width, segment)[row % self.width..].iter().step_by(self.width);
        for (x, sum) in out.iter_mut().zip(of_row) {
            *x = scale * sum;
        }
    }
}

impl Fold for ValuesBySegment<'_> {
    fn begin(&mut self, panels: usize, width: usize) {
        self.width = width;
        self.sums = vec![0.0; panels * self.segments() * self.each() * width];
    }

    #[inline(always)]
    fn load(&mut self, block: &Range<usize>) {
        self.values.load(block);
    }

    #[inline(always)]
    fn block<S: Simd, const V: usize, const D: usize>(
        &mut self,
        simd: S,
        panel: usize,
        factor: &[S::f32s; V],
        weights: &[[S::f32s; V]],
        start: usize,
    ) {
        let (segments, each, d) = (self.segments(), self.each(), self.d);
        let end = start + weights.len();
        let begun = self.bounds.partition_point(|&b| b < end).min(segments);
        let (sums, _) = S::as_mut_simd_f32s(&mut self.sums);
        let (sums, _) = sums.as_chunks_mut::<V>();
        let sums = &mut sums[panel * segments * each..][..begun * each];
        if lanes::<S>(factor).iter().any(|&f| f != 1.0) {
            for x in sums.iter_mut() {
                for v in 0..V {
                    x[v] = simd.mul_f32s(x[v], factor[v]);
                }
            }
        }
        for (s, keys) in within(self.bounds, start..end) {
            let weights = &weights[keys.start - start..keys.end - start];
            let (read, long) = sums[s * each..(s + 1) * each].split_at_mut(d);
            add_values::<S, V, D>(simd, weights, self.values.of(keys.clone()), read);
            if let Some(lengths) = self.lengths {
                tile::weighted_values::<S, V, 1>(simd, weights, &lengths[keys], (0, 1), long);
            }
        }
    }
}
