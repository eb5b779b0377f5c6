//! The element-wise parts of the streaming softmax on f32 slices, compiled for the widest SIMD that the processor has.
//!
//! The loops keep 16 independent lanes, which the compiler turns into vector registers inside [`pulp`]'s dispatch; no
//! intrinsics and no `unsafe` are needed.

const LANES: usize = 16;

/// e^x for x <= 0 (and -inf), within 2 ulp: 2^n by exponent bits times a degree-6 polynomial of the remainder.
#[inline(always)]
fn exp_nonpositive(x: f32) -> f32 {
    // Below this e^x is under the smallest normal f32; the result is flushed to zero at the end.
    const FLOOR: f32 = -87.3;
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that n * LN2_HI is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > FLOOR { x } else { FLOOR };
    let shifted = clamped.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, clamped));
    let mut p = 1.388_889e-3_f32;
    p = p.mul_add(r, 8.333_334e-3);
    p = p.mul_add(r, 4.166_666_7e-2);
    p = p.mul_add(r, 1.666_666_7e-1);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x > FLOOR { p * scale } else { 0.0 }
}

/// The largest element; -inf for an empty slice. A NaN anywhere gives NaN, so that it is not hidden.
#[inline(always)]
pub(super) fn max(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut unordered = 0u32;
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            unordered |= u32::from(chunk[i].is_nan());
        }
    }
    let mut best = f32::NEG_INFINITY;
    for &x in lanes.iter().chain(rest) {
        best = if x > best { x } else { best };
        unordered |= u32::from(x.is_nan());
    }
    if unordered != 0 { f32::NAN } else { best }
}

/// Replaces every s by e^(s - max) and returns the sum.
#[inline(always)]
pub(in crate::attention) fn exp_sum(values: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            let e = exp_nonpositive(chunk[i] - max);
            chunk[i] = e;
            lanes[i] += e;
        }
    }
    let mut sum = lanes.iter().sum::<f32>();
    for x in rest {
        *x = exp_nonpositive(*x - max);
        sum += *x;
    }
    sum
}

/// The sum of a slice, in 16 lanes.
#[inline(always)]
pub(super) fn sum(values: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += chunk[i];
        }
    }
    lanes.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_2_ulp_of_f64_exp_over_its_whole_range() {
        for i in 0..=870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let relative = (f64::from(exp_nonpositive(x)) - exact).abs() / exact;
            assert!(relative < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {relative:e}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-1e9), 0.0);
    }

    #[test]
    fn max_sees_every_element_and_does_not_hide_nan() {
        for n in [0, 1, 15, 16, 17, 40] {
            for at in 0..n {
                let mut values = vec![-3.0; n];
                values[at] = 2.0;
                assert_eq!(max(&values), 2.0);
                values[at] = f32::NAN;
                assert!(max(&values).is_nan());
            }
        }
        assert_eq!(max(&[]), f32::NEG_INFINITY);
    }
}
