//! bf16 dot products by AVX512-BF16, the counterpart of [`super::tile`].
//!
//! Lanes are query rows; each product takes a pair of bf16: two adjacent dimensions for scores, two adjacent keys for outputs, whose
//! values are interleaved once per block ([`pair_rows`]). Accumulation is f32. Pairs of keys begin at even positions, so a row's result
//! is bit-equal for any chunk length.

use std::ops::Range;

use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::bfloat;

/// f32 lanes per vector.
pub const LANES: usize = 16;

/// Interleaves the values of pairs of keys, (pairs, d), from the pair of the first key of `keys` on. `values`: (keys, d) from key 0 on.
/// Keys outside `keys` count as zeros.
#[inline(always)]
pub fn pair_rows(values: &[bf16], d: usize, keys: &Range<usize>, out: &mut Vec<u32>) {
    out.clear();
    let rows = values.reinterpret_cast();
    let row = |key: usize| keys.contains(&key).then(|| &rows[key * d..][..d]);
    for pair in keys.start / 2..keys.end.div_ceil(2) {
        let start = out.len();
        out.resize(start + d, 0);
        let to = &mut out[start..];
        match (row(2 * pair), row(2 * pair + 1)) {
            (Some(first), Some(second)) => {
                for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
                    *to = bfloat::pair(*first, *second);
                }
            }
            (Some(first), None) => to.iter_mut().zip(first).for_each(|(to, x)| *to = bfloat::pair(*x, 0)),
            (None, Some(second)) => to.iter_mut().zip(second).for_each(|(to, x)| *to = bfloat::pair(0, *x)),
            (None, None) => {}
        }
    }
}

/// Scores of keys with a panel of `V` vectors of rows, times `scale`: `out` (keys, panel). `queries`: pairs (d / 2, panel); `keys`:
/// (keys, d). Panics if the processor lacks AVX512-BF16 or sizes do not match, as do the functions below.
pub fn scores<const V: usize>(queries: &[u32], keys: &[bf16], scale: f32, out: &mut [f32]) {
    let (width, d) = (V * LANES, queries.len() / (V * LANES) * 2);
    let n = out.len() / width;
    assert!(
        bfloat::multiplies() && d > 0 && queries.len() == d / 2 * width,
        "This is a bug: pairs of queries"
    );
    assert!(keys.len() == n * d && out.len() == n * width, "This is a bug: pairs of keys");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has the instructions, and the slices hold what is read and written (both asserted above).
    unsafe {
        let keys = keys.reinterpret_cast();
        const K: usize = 8;
        let whole = n / K * K;
        for first in (0..whole).step_by(K) {
            x86::scores::<V, K>(queries, &keys[first * d..], d, scale, &mut out[first * width..]);
        }
        for key in whole..n {
            x86::scores::<V, 1>(queries, &keys[key * d..], d, scale, &mut out[key * width..]);
        }
    }
}

/// Adds the weighted values of `keys` to `out`, (d, panel of `V` vectors). `weights`: (keys, panel), rounded to bf16; `values`:
/// (pairs, d) from the pair of the first key on.
pub fn add_values<const V: usize>(
    weights: &[f32],
    keys: &Range<usize>,
    values: &[u32],
    rounded: &mut Vec<u32>,
    out: &mut [f32],
) {
    let (width, d) = (V * LANES, out.len() / (V * LANES));
    let pairs = keys.end.div_ceil(2) - keys.start / 2;
    assert!(bfloat::multiplies() && weights.len() == keys.len() * width, "This is a bug: weights of pairs");
    assert!(values.len() == pairs * d && out.len() == d * width, "This is a bug: pairs of values");
    rounded.resize(pairs * width, 0);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has the instructions, and the slices hold what is read and written (both asserted above).
    unsafe {
        x86::pair_weights(weights, width, keys.start % 2, rounded);
        const D: usize = 8;
        let whole = d / D * D;
        for first in (0..whole).step_by(D) {
            x86::weighted::<V, D>(rounded, values, (first, d), &mut out[first * width..]);
        }
        for first in whole..d {
            x86::weighted::<V, 1>(rounded, values, (first, d), &mut out[first * width..]);
        }
    }
}

/// True if [`few_scores`] and [`add_few_values`] support `d` dimensions.
pub fn serves_few(d: usize) -> bool {
    d.is_multiple_of(DIMENSIONS)
}

const DIMENSIONS: usize = 2 * LANES;

/// Scores of a few rows, times `scale`: `scores` (rows, keys). `queries`: pairs (rows, d / 2); `keys`: (keys, d). Lanes are pairs of
/// dimensions; 16 keys are reduced together. Prefetches `ahead`.
pub fn few_scores(queries: &[u32], keys: &[bf16], d: usize, scale: f32, scores: &mut [f32], ahead: &[bf16]) {
    let (rows, n) = (queries.len() / (d / 2), keys.len() / d);
    assert!(
        bf16_rows(d) && queries.len() == rows * d / 2 && keys.len() == n * d,
        "This is a bug: pairs of rows"
    );
    assert!(scores.len() == rows * n, "This is a bug: scores of pairs");
    #[cfg(target_arch = "x86_64")]
    for first in (0..n).step_by(LANES) {
        x86::fetch(ahead, first * d..(first + LANES) * d);
        for (r, query) in queries.chunks_exact(d / 2).enumerate() {
            let scores = &mut scores[r * n..][first..n.min(first + LANES)];
            // SAFETY: the processor has the instructions, and the slices hold what is read and written (asserted above).
            unsafe { x86::few_scores(query, &keys.reinterpret_cast()[first * d..], d, scale, scores) };
        }
    }
}

/// Adds the weighted values of `keys` to `out`, (rows, d). `weights`: (rows, keys), rounded to bf16; `values`: (keys, d).
/// Prefetches `ahead`.
pub fn add_few_values(
    weights: &[f32],
    keys: &Range<usize>,
    values: &[bf16],
    d: usize,
    rounded: &mut Vec<u32>,
    out: &mut [f32],
    ahead: &[bf16],
) {
    let (rows, n) = (out.len() / d, keys.len());
    assert!(bf16_rows(d) && values.len() == n * d && out.len() == rows * d, "This is a bug: pairs of rows");
    assert!(weights.len() == rows * n, "This is a bug: weights of rows");
    // Pairs begin at even keys; missing keys weigh 0.
    let before = keys.start % 2;
    let pairs = (n + before).div_ceil(2);
    rounded.clear();
    rounded.resize(rows * pairs, 0);
    for (weights, rounded) in weights.chunks_exact(n.max(1)).zip(rounded.chunks_exact_mut(pairs.max(1))) {
        let numbers = &mut pulp::bytemuck::cast_slice_mut::<_, u16>(rounded)[before..];
        numbers.iter_mut().zip(weights).for_each(|(to, weight)| *to = bfloat::round(*weight));
    }
    #[cfg(target_arch = "x86_64")]
    if n > 0 {
        const ROWS: usize = 4;
        let values = values.reinterpret_cast();
        let tiles = rounded.chunks(ROWS * pairs).zip(out.chunks_mut(ROWS * d));
        for (nth, (weights, out)) in tiles.enumerate() {
            let ahead = if nth == 0 { ahead } else { &[] };
            // SAFETY: the processor has the instructions, and the slices hold what is read and written (asserted above).
            unsafe {
                match out.len() / d {
                    1 => x86::add_few_values::<1>(weights, before, values, d, out, ahead),
                    2 => x86::add_few_values::<2>(weights, before, values, d, out, ahead),
                    3 => x86::add_few_values::<3>(weights, before, values, d, out, ahead),
                    _ => x86::add_few_values::<ROWS>(weights, before, values, d, out, ahead),
                }
            }
        }
    }
}

fn bf16_rows(d: usize) -> bool {
    bfloat::multiplies() && d > 0 && serves_few(d)
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop, reason = "iterators may leave the sums in memory")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use half::bf16;

    use super::{DIMENSIONS, LANES};
    use crate::bfloat::bf16s;

    /// Scores of `K` keys.
    ///
    /// # Safety
    /// `queries`: (d / 2, V vectors); `keys`: at least (K, d); `out`: at least (K, V vectors).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn scores<const V: usize, const K: usize>(
        queries: &[u32],
        keys: &[u16],
        d: usize,
        scale: f32,
        out: &mut [f32],
    ) {
        debug_assert!(
            queries.len() == d / 2 * V * LANES && keys.len() >= K * d && out.len() >= K * V * LANES
        );
        // Index loops: iterators may keep the sums in memory.
        let mut sums = [[_mm512_setzero_ps(); V]; K];
        // SAFETY: by the caller, as every read and write below; pairs need not be aligned.
        unsafe {
            for i in 0..d / 2 {
                let mut query = [_mm512_setzero_si512(); V];
                for v in 0..V {
                    query[v] = _mm512_loadu_si512(queries.as_ptr().add((i * V + v) * LANES).cast());
                }
                for k in 0..K {
                    let key = keys.as_ptr().add(k * d + 2 * i).cast::<i32>().read_unaligned();
                    let key = bf16s!(_mm512_set1_epi32(key));
                    for v in 0..V {
                        sums[k][v] = _mm512_dpbf16_ps(sums[k][v], bf16s!(query[v]), key);
                    }
                }
            }
            let scale = _mm512_set1_ps(scale);
            for k in 0..K {
                for v in 0..V {
                    let score = _mm512_mul_ps(sums[k][v], scale);
                    _mm512_storeu_ps(out.as_mut_ptr().add((k * V + v) * LANES), score);
                }
            }
        }
    }

    /// Rounds weights (keys, width) to bf16 pairs (pairs, width); the first pair begins `before` keys earlier.
    ///
    /// # Safety
    /// `pairs` has ceil((keys + before) / 2) rows; `width` is a multiple of the lanes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn pair_weights(weights: &[f32], width: usize, before: usize, pairs: &mut [u32]) {
        let keys = weights.len() / width;
        debug_assert!(pairs.len() == (keys + before).div_ceil(2) * width);
        // Interleaves the elements of two vectors.
        let mut turns = [0u16; 32];
        for lane in 0..LANES {
            (turns[2 * lane], turns[2 * lane + 1]) = (lane as u16, (lane + LANES) as u16);
        }
        // SAFETY: by the caller.
        unsafe {
            let turns = _mm512_loadu_si512(turns.as_ptr().cast());
            let zero = _mm512_setzero_ps();
            for (nth, pairs) in pairs.chunks_exact_mut(width).enumerate() {
                let row = |key: usize| {
                    key.checked_sub(before)
                        .filter(|&key| key < keys)
                        .map(|key| weights.as_ptr().add(key * width))
                };
                let (first, second) = (row(2 * nth), row(2 * nth + 1));
                for at in (0..width).step_by(LANES) {
                    let of = |row: Option<*const f32>| match row {
                        Some(row) => _mm512_loadu_ps(row.add(at)),
                        None => zero,
                    };
                    let both = _mm512_cvtne2ps_pbh(of(second), of(first));
                    let both: __m512i = std::mem::transmute(both);
                    let both = _mm512_permutexvar_epi16(turns, both);
                    _mm512_storeu_si512(pairs.as_mut_ptr().add(at).cast(), both);
                }
            }
        }
    }

    /// Adds `D` dimensions of the weighted values from `first` on.
    ///
    /// # Safety
    /// `weights`: (pairs, V vectors); `values`: (pairs, d); `out`: at least (D, V vectors); first + D <= d.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn weighted<const V: usize, const D: usize>(
        weights: &[u32],
        values: &[u32],
        (first, d): (usize, usize),
        out: &mut [f32],
    ) {
        let pairs = weights.len() / (V * LANES);
        debug_assert!(values.len() == pairs * d && first + D <= d && out.len() >= D * V * LANES);
        // SAFETY: by the caller.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); V]; D];
            for i in 0..D {
                for v in 0..V {
                    sums[i][v] = _mm512_loadu_ps(out.as_ptr().add((i * V + v) * LANES));
                }
            }
            for pair in 0..pairs {
                let mut weight = [_mm512_setzero_si512(); V];
                for v in 0..V {
                    weight[v] = _mm512_loadu_si512(weights.as_ptr().add((pair * V + v) * LANES).cast());
                }
                for i in 0..D {
                    let value = *values.get_unchecked(pair * d + first + i);
                    let value = bf16s!(_mm512_set1_epi32(value as i32));
                    for v in 0..V {
                        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], bf16s!(weight[v]), value);
                    }
                }
            }
            for i in 0..D {
                for v in 0..V {
                    _mm512_storeu_ps(out.as_mut_ptr().add((i * V + v) * LANES), sums[i][v]);
                }
            }
        }
    }

    /// Prefetches part of `numbers`, clamped to its end: with few rows, memory latency dominates.
    #[inline(always)]
    pub fn fetch(numbers: &[bf16], part: Range<usize>) {
        let part = part.start.min(numbers.len())..part.end.min(numbers.len());
        for line in numbers[part].chunks(LINE) {
            // SAFETY: a prefetch reads nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }

    /// bf16 elements per cache line.
    const LINE: usize = 32;

    /// One row's scores of up to 16 keys.
    ///
    /// # Safety
    /// `query`: d / 2 pairs, d a multiple of 32; `scores`: 1 to 16; `keys`: at least (scores, d).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn few_scores(query: &[u32], keys: &[u16], d: usize, scale: f32, scores: &mut [f32]) {
        let n = scores.len();
        debug_assert!(query.len() == d / 2 && d.is_multiple_of(DIMENSIONS) && keys.len() >= n * d);
        debug_assert!((1..=LANES).contains(&n));
        let factor = _mm512_set1_ps(scale);
        let mut sums = [_mm512_setzero_ps(); LANES];
        // SAFETY: by the caller; past the end, the last key is repeated and its scores are not written.
        unsafe {
            for at in 0..query.len() / LANES {
                let query = bf16s!(_mm512_loadu_si512(query.as_ptr().add(at * LANES).cast()));
                for k in 0..LANES {
                    let key = keys.as_ptr().add(k.min(n - 1) * d + at * DIMENSIONS);
                    let key = bf16s!(_mm512_loadu_si512(key.cast()));
                    sums[k] = _mm512_dpbf16_ps(sums[k], query, key);
                }
            }
            // Pairwise reduction across lanes until one vector holds one sum per lane.
            let mut pairs = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let (a, b) = (sums[2 * i], sums[2 * i + 1]);
                pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            }
            let mut fours = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let (a, b) = (_mm512_castps_pd(pairs[2 * i]), _mm512_castps_pd(pairs[2 * i + 1]));
                let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                fours[i] = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
            }
            let quarters = |a, b| {
                let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                _mm512_add_ps(even, odd)
            };
            let all = quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3]));
            let kept = ((1u32 << n) - 1) as u16;
            _mm512_mask_storeu_ps(scores.as_mut_ptr(), kept, _mm512_mul_ps(all, factor));
        }
    }

    /// Adds the weighted values of `R` rows.
    ///
    /// # Safety
    /// `weights`: (R, pairs of keys), the first pair beginning `before` keys before `values`; `values`: (keys, d), at least one key, d
    /// a multiple of 32; `out`: (R, d).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn add_few_values<const R: usize>(
        weights: &[u32],
        before: usize,
        values: &[u16],
        d: usize,
        out: &mut [f32],
        ahead: &[bf16],
    ) {
        let whole = d / (2 * DIMENSIONS) * 2 * DIMENSIONS;
        // SAFETY: by the caller.
        unsafe {
            for at in (0..whole).step_by(2 * DIMENSIONS) {
                let ahead = if at == 0 { ahead } else { &[] };
                add_dimensions::<R, 2>(weights, before, values, (at, d), out, ahead);
            }
            if whole < d {
                let ahead = if whole == 0 { ahead } else { &[] };
                add_dimensions::<R, 1>(weights, before, values, (whole, d), out, ahead);
            }
        }
    }

    /// Adds `S` * 32 dimensions from `at` on.
    ///
    /// # Safety
    /// See [`add_few_values`]; also `at + S * 32 <= d`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    #[inline]
    unsafe fn add_dimensions<const R: usize, const S: usize>(
        weights: &[u32],
        before: usize,
        values: &[u16],
        (at, d): (usize, usize),
        out: &mut [f32],
        ahead: &[bf16],
    ) {
        let (n, pairs) = (values.len() / d, weights.len() / R);
        debug_assert!(pairs == (n + before).div_ceil(2) && out.len() == R * d && at + S * DIMENSIONS <= d);
        // Interleaves the low and high halves of each quarter.
        let (mut first, mut second) = ([0i32; 16], [0i32; 16]);
        for lane in 0..16 {
            let from =
                |quarter: i32, lane: i32| (quarter * 4 + lane % 4) + if lane / 4 % 2 == 0 { 0 } else { 16 };
            first[lane] = from(lane as i32 / 8, lane as i32);
            second[lane] = from(2 + lane as i32 / 8, lane as i32);
        }
        // Per row and 32 dimensions: the low and high halves of the quarters.
        let mut sums = [[[_mm512_setzero_ps(); 2]; S]; R];
        // SAFETY: by the caller; a missing key repeats its neighbour with weight 0.
        unsafe {
            for pair in 0..pairs {
                fetch(ahead, 2 * pair * d..2 * (pair + 1) * d);
                let key = |key: usize| values.as_ptr().add(key.saturating_sub(before).min(n - 1) * d + at);
                let (a, b) = (key(2 * pair), key(2 * pair + 1));
                let mut halves = [[_mm512_setzero_si512(); 2]; S];
                for s in 0..S {
                    let a = _mm512_loadu_si512(a.add(s * DIMENSIONS).cast());
                    let b = _mm512_loadu_si512(b.add(s * DIMENSIONS).cast());
                    halves[s] = [_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)];
                }
                for r in 0..R {
                    let weight = _mm512_set1_epi32(*weights.get_unchecked(r * pairs + pair) as i32);
                    for s in 0..S {
                        for half in 0..2 {
                            sums[r][s][half] =
                                _mm512_dpbf16_ps(sums[r][s][half], bf16s!(halves[s][half]), bf16s!(weight));
                        }
                    }
                }
            }
            let first = _mm512_loadu_si512(first.as_ptr().cast());
            let second = _mm512_loadu_si512(second.as_ptr().cast());
            for r in 0..R {
                for s in 0..S {
                    for (half, turns) in [first, second].into_iter().enumerate() {
                        let to = out.as_mut_ptr().add(r * d + at + s * DIMENSIONS + half * LANES);
                        let sum = _mm512_permutex2var_ps(sums[r][s][0], turns, sums[r][s][1]);
                        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum));
                    }
                }
            }
        }
    }
}
