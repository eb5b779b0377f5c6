//! Vector functions shared by CPU kernels. Always inlined, to be compiled with the features of the surrounding [`pulp`] dispatch.

use pulp::Simd;

/// e^x for x <= 0 (and -inf), within 2 ulp: 2^n by exponent bits times a degree-6 polynomial of the remainder. 0 below -87.3, where the
/// result would be subnormal. NaN propagates.
#[inline(always)]
pub(crate) fn exp_nonpositive<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |c: f32| simd.splat_f32s(c);
    let floor = splat(-87.3);
    let below = simd.less_than_f32s(x, floor);
    let clamped = simd.select_f32s(below, floor, x);
    // Adding 1.5 * 2^23 rounds to the nearest integer, in the low bits.
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

#[inline(always)]
pub(crate) fn exp_nonpositive_all<S: Simd>(simd: S, values: &mut [f32]) {
    let (vectors, rest) = S::as_mut_simd_f32s(values);
    for x in vectors {
        *x = exp_nonpositive(simd, *x);
    }
    if !rest.is_empty() {
        let last = exp_nonpositive(simd, simd.partial_load_f32s(rest));
        simd.partial_store_f32s(rest, last);
    }
}

/// 1 / (1 + e^-x), from e^-|x|, which cannot overflow. NaN propagates.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let e = exp_nonpositive(simd, simd.neg_f32s(simd.abs_f32s(x)));
    let negative = simd.less_than_f32s(x, simd.splat_f32s(0.0));
    simd.div_f32s(simd.select_f32s(negative, e, one), simd.add_f32s(one, e))
}

#[inline(always)]
pub(crate) fn lanes<S: Simd>(vectors: &[S::f32s]) -> &[f32] {
    pulp::bytemuck::cast_slice(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies a vector function to a slice whose length is a multiple of every vector width.
    macro_rules! over {
        ($values:expr, $f:ident) => {{
            struct Op<'a>(&'a mut [f32]);
            impl pulp::WithSimd for Op<'_> {
                type Output = ();
                #[inline(always)]
                fn with_simd<S: Simd>(self, simd: S) {
                    for x in S::as_mut_simd_f32s(self.0).0 {
                        *x = $f(simd, *x);
                    }
                }
            }
            pulp::Arch::new().dispatch(Op($values));
        }};
    }

    /// Compares a function with its definition in f64, in units of f32 rounding, and at its limits.
    macro_rules! check {
        ($f:ident, $exact:expr, $ulps:expr, $inputs:expr, $limits:expr) => {{
            let inputs: Vec<f32> = $inputs.collect();
            let mut found = inputs.clone();
            over!(&mut found, $f);
            for (x, y) in inputs.iter().zip(&found) {
                let exact: f64 = $exact(f64::from(*x));
                let relative = (f64::from(*y) - exact).abs() / exact;
                let name = stringify!($f);
                assert!(relative < $ulps * f64::from(f32::EPSILON), "{name}({x}) is off by {relative:e}");
            }
            let mut limits = $limits.repeat(4);
            over!(&mut limits, $f);
            assert_eq!(limits[..3], [1.0, 0.0, 0.0]);
            assert!(limits[3].is_nan());
        }};
    }

    #[test]
    fn exp_is_within_2_ulp_and_sigmoid_within_4_of_f64_and_of_their_limits() {
        const HIGH: f32 = f32::INFINITY;
        check!(
            exp_nonpositive,
            f64::exp,
            2.0,
            (0..869_888).map(|i| -(i as f32) * 1e-4),
            [0.0, -HIGH, -1e9, f32::NAN]
        );
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        check!(
            sigmoid,
            logistic,
            4.0,
            (-400_000..400_000).map(|i| i as f32 * 2e-4),
            [HIGH, -HIGH, -1e9, f32::NAN]
        );
    }
}
