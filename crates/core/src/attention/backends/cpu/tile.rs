//! Register-level products of attention.
//!
//! Vector lanes are query rows: a panel holds `V` vectors of rows. Queries and weights are (dimension or key, row); keys and values are
//! broadcast from the cache, (key, dimension), without copies. All operations are elementwise over lanes, so a row's result does not
//! depend on its lane, the vector width or the other rows.

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

/// Adds weighted values: `out[i] += sum over j of weights[j] * values[j][first + i]` for i in 0..D.
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
