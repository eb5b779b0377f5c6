//! The innermost products of attention, on registers, and the exponential.
//!
//! Vector lanes are query rows: a panel holds `V` vectors of rows, queries and weights are laid out (dimension or key, row),
//! and keys and values are broadcast from where they lie in the cache, (key, dimension), without being copied or
//! rearranged. Everything is elementwise over lanes, so a row's result depends neither on its lane, nor on the width of
//! the vectors, nor on the rows beside it.

use pulp::Simd;

/// Scores of `K` keys with one panel of rows: `out[k] = sum over i of queries[i] * keys[k][i]`.
///
/// `queries`: (d, panel); `keys`: (K, d), row-major; `out`: (K, panel).
#[inline(always)]
pub fn scores<S: Simd, const V: usize, const K: usize>(
    simd: S,
    queries: &[[S::f32s; V]],
    keys: &[f32],
    out: &mut [[S::f32s; V]],
) {
    let d = queries.len();
    let keys: [&[f32]; K] = std::array::from_fn(|k| &keys[k * d..(k + 1) * d]);
    let mut sums = [[simd.splat_f32s(0.0); V]; K];
    for (i, query) in queries.iter().enumerate() {
        for k in 0..K {
            let key = simd.splat_f32s(keys[k][i]);
            for v in 0..V {
                sums[k][v] = simd.mul_add_e_f32s(query[v], key, sums[k][v]);
            }
        }
    }
    out[..K].copy_from_slice(&sums);
}

/// Adds the values of some keys, weighted: `out[i] += sum over j of weights[j] * values[j][first + i]` for i in 0..D.
///
/// `weights`: (n, panel); `values`: (n, d), row-major; `out`: (D, panel).
#[inline(always)]
pub fn weighted_values<S: Simd, const V: usize, const D: usize>(
    simd: S,
    weights: &[[S::f32s; V]],
    values: &[f32],
    (first, d): (usize, usize),
    out: &mut [[S::f32s; V]],
) {
    let mut sums: [[S::f32s; V]; D] = std::array::from_fn(|i| out[i]);
    for (weight, value) in weights.iter().zip(values.chunks_exact(d)) {
        let value = &value[first..first + D];
        for i in 0..D {
            let value = simd.splat_f32s(value[i]);
            for v in 0..V {
                sums[i][v] = simd.mul_add_e_f32s(weight[v], value, sums[i][v]);
            }
        }
    }
    out[..D].copy_from_slice(&sums);
}

/// e^x for x <= 0 (and -inf), within 2 ulp: 2^n by exponent bits times a degree-6 polynomial of the remainder. Below -87.3,
/// where it is under the smallest normal f32, 0. NaN stays NaN.
#[inline(always)]
pub fn exp_nonpositive<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |c: f32| simd.splat_f32s(c);
    let floor = splat(-87.3);
    let below = simd.less_than_f32s(x, floor);
    let clamped = simd.select_f32s(below, floor, x);
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    let round = splat(12_582_912.0);
    let shifted = simd.mul_add_e_f32s(clamped, splat(std::f32::consts::LOG2_E), round);
    let n = simd.sub_f32s(shifted, round);
    // ln 2 in two parts, so that n times the first is exact.
    let r = simd.mul_add_e_f32s(n, splat(-0.693_359_4), clamped);
    let r = simd.mul_add_e_f32s(n, splat(2.121_944_4e-4), r);
    let mut p = splat(1.388_889e-3);
    for c in [8.333_334e-3, 4.166_666_7e-2, 1.666_666_7e-1, 0.5, 1.0, 1.0] {
        p = simd.mul_add_e_f32s(p, r, splat(c));
    }
    let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let power = simd.transmute_f32s_u32s(simd.add_u32s(exponent, simd.splat_u32s(0x3f80_0000)));
    simd.select_f32s(below, splat(0.0), simd.mul_f32s(p, power))
}

/// The lanes of vectors, in order.
#[inline(always)]
pub fn lanes<S: Simd>(vectors: &[S::f32s]) -> &[f32] {
    pulp::bytemuck::cast_slice(vectors)
}
