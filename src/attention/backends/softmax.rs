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
}
