//! Tolerances between a model's numbers and a reference's, for `palimpsest selftest` (device against CPU) and the parity tests (engine
//! against transformers).

use std::collections::BTreeMap;

use serde::Serialize;

/// Maximum absolute difference of a logit in f32.
pub const LOGITS: f64 = 1e-3;
/// Maximum absolute difference of masses, sink shares and the weights and shares of linear layers in f32; of weights above 1, as Mamba-2
/// has them, relative to the largest.
pub const MASSES: f64 = 1e-4;
/// In half precision: maximum ratio of the RMS difference from f32 to the reference's own in that dtype. Rounding errors of two
/// implementations are independent.
pub const OVER: f64 = 1.6;

/// Compared values by name: `logits`, `mass`, and if present `sink`, `delta_signed` and `delta_share`.
pub type Numbers = BTreeMap<&'static str, Vec<f32>>;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    pub what: &'static str,
    /// `largest` difference or `root_mean_square`.
    pub measure: &'static str,
    /// Not finite if numbers are missing or NaN.
    pub found: f64,
    pub allowed: f64,
}

impl Compared {
    pub fn holds(&self) -> bool {
        self.found <= self.allowed
    }

    pub fn used(&self) -> f64 {
        let used = self.found / self.allowed;
        if used.is_nan() { f64::INFINITY } else { used }
    }
}

pub fn in_f32(found: &Numbers, reference: &Numbers) -> Vec<Compared> {
    let each = |(&what, reference): (&&'static str, &Vec<f32>)| Compared {
        what,
        measure: "largest",
        found: found.get(what).map_or(f64::INFINITY, |found| largest(found, reference)),
        allowed: match what {
            "logits" => LOGITS,
            "delta_signed" => reference.iter().fold(1.0, |most, x| f64::from(x.abs()).max(most)) * MASSES,
            _ => MASSES,
        },
    };
    reference.iter().map(each).collect()
}

/// Half-precision numbers against the f32 reference; `theirs` is the reference in half precision.
pub fn in_half(found: &Numbers, exact: &Numbers, theirs: &Numbers) -> Vec<Compared> {
    let each = |(&what, exact): (&&'static str, &Vec<f32>)| Compared {
        what,
        measure: "root_mean_square",
        found: found.get(what).map_or(f64::INFINITY, |found| root_mean_square(found, exact)),
        // Without reference numbers nothing is allowed.
        allowed: theirs.get(what).map_or(0.0, |theirs| OVER * root_mean_square(theirs, exact)),
    };
    exact.iter().map(each).collect()
}

/// Infinite if lengths differ or a number is NaN.
pub fn largest(a: &[f32], b: &[f32]) -> f64 {
    differences(a, b).fold(0.0, f64::max)
}

/// Infinite if lengths differ or a number is NaN.
pub fn root_mean_square(a: &[f32], b: &[f32]) -> f64 {
    (differences(a, b).map(|x| x * x).sum::<f64>() / a.len().max(1) as f64).sqrt()
}

fn differences(a: &[f32], b: &[f32]) -> impl Iterator<Item = f64> {
    let pairs = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
    let unequal = (a.len() != b.len()).then_some(f64::INFINITY);
    pairs.chain(unequal).map(|x| if x.is_nan() { f64::INFINITY } else { x.abs() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(logits: &[f32], mass: &[f32]) -> Numbers {
        Numbers::from([("logits", logits.to_vec()), ("mass", mass.to_vec())])
    }

    fn broken(compared: &[Compared]) -> Vec<&'static str> {
        compared.iter().filter(|c| !c.holds()).map(|c| c.what).collect()
    }

    #[test]
    fn in_f32_a_planted_difference_beyond_the_bound_is_found_and_named() {
        let reference = numbers(&[3.0, -1.0, 0.5], &[0.25, 0.75]);
        let with = |logit: f32, mass: f32| numbers(&[3.0, -1.0 + logit, 0.5], &[0.25 + mass, 0.75]);
        let verdict = |found: &Numbers| broken(&in_f32(found, &reference));
        assert!(verdict(&with(0.9e-3, 0.9e-4)).is_empty());
        assert_eq!(verdict(&with(1.1e-3, 0.0)), ["logits"]);
        assert_eq!(verdict(&with(0.0, -1.1e-4)), ["mass"]);
        assert_eq!(verdict(&with(f32::NAN, f32::NAN)), ["logits", "mass"]);
        // Missing or extra numbers must fail.
        let mut less = with(0.0, 0.0);
        less.remove("mass");
        assert_eq!(verdict(&less), ["mass"]);
        assert_eq!(verdict(&numbers(&[3.0, -1.0], &[0.25, 0.75, 0.0])), ["logits", "mass"]);
    }

    #[test]
    fn in_half_precision_the_bound_is_the_reference_s_own_error_and_a_little_more() {
        let exact = numbers(&[1.0, 2.0, 3.0, 4.0], &[0.5, 0.5]);
        let off = |by: f32, mass: f32| {
            numbers(&[1.0 + by, 2.0 - by, 3.0 + by, 4.0 - by], &[0.5 + mass, 0.5 - mass])
        };
        let theirs = off(0.01, 0.001);
        let verdict = |found: &Numbers| broken(&in_half(found, &exact, &theirs));
        assert!(verdict(&off(0.0159, 0.00159)).is_empty());
        assert_eq!(verdict(&off(0.0161, 0.001)), ["logits"]);
        assert_eq!(verdict(&off(0.01, 0.0017)), ["mass"]);
        // Without numbers of theirs, or of ours, nothing is allowed.
        assert_eq!(broken(&in_half(&off(0.01, 0.0), &exact, &Numbers::new())), ["logits"]);
        assert_eq!(verdict(&Numbers::new()), ["logits", "mass"]);
    }
}
