//! What is allowed between a model's numbers here and transformers' on the same checkpoint.
//!
//! The parity tests and `palimpsest selftest` hold every number to the same rule, which is stated here once.

use std::collections::BTreeMap;

use serde::Serialize;

/// Largest difference of a logit in f32.
pub const LOGITS: f64 = 1e-3;
/// Largest difference of a mass, a sink's share or a delta net's weights and shares in f32.
pub const MASSES: f64 = 1e-4;
/// In half precision the root mean square of differences from f32 may be so many times transformers' own in that dtype: the
/// rounding errors of two implementations are two draws.
pub const OVER: f64 = 1.6;
/// A rounding error can send a token to another expert, in either implementation, and then its logits are others. So with
/// experts only directions are bounded in half precision: at every position but one the logits keep this cosine with f32's.
pub const COSINE: f64 = 0.99;

/// Everything that a prompt read here and a reference have in common, by the reference's names: `logits`, `mass`, and where
/// the model has them `sink`, `delta_signed` and `delta_share`.
pub type Numbers = BTreeMap<&'static str, Vec<f32>>;

/// The names that [`Numbers`] may have.
pub const NAMES: [&str; 5] = ["logits", "mass", "sink", "delta_signed", "delta_share"];

/// How two lists of numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The largest difference.
    Largest,
    /// The root mean square of the differences.
    RootMeanSquare,
    /// The cosine of the angle between them.
    Cosine,
    /// The share of positions whose logits keep [`COSINE`].
    Positions,
}

/// One comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Compared {
    /// Of what: one of [`NAMES`].
    pub what: &'static str,
    /// By what.
    pub measure: Measure,
    /// What was found; not finite where numbers are missing or are none.
    pub found: f64,
    /// The most that is allowed; of a cosine and of a share of positions the least.
    pub allowed: f64,
}

impl Compared {
    /// Whether it is allowed.
    pub fn holds(&self) -> bool {
        match self.measure {
            Measure::Largest | Measure::RootMeanSquare => self.found <= self.allowed,
            Measure::Cosine | Measure::Positions => self.found >= self.allowed,
        }
    }

    /// How much of what is allowed was used: above 1 where it does not hold.
    pub fn used(&self) -> f64 {
        let used = match self.measure {
            Measure::Largest | Measure::RootMeanSquare => self.found / self.allowed,
            Measure::Cosine | Measure::Positions => (1.0 - self.found) / (1.0 - self.allowed),
        };
        if used.is_nan() { f64::INFINITY } else { used }
    }
}

/// Compares numbers in f32 with the reference's.
pub fn in_f32(found: &Numbers, reference: &Numbers) -> Vec<Compared> {
    let each = |(&what, reference): (&&'static str, &Vec<f32>)| Compared {
        what,
        measure: Measure::Largest,
        found: found.get(what).map_or(f64::INFINITY, |found| largest(found, reference)),
        allowed: if what == "logits" { LOGITS } else { MASSES },
    };
    reference.iter().map(each).collect()
}

/// Compares numbers in half precision with the reference's in f32, `theirs` being the reference's in that half precision.
/// `positions` is the number of positions whose logits there are, of a model with experts, else `None`.
pub fn in_half(
    found: &Numbers,
    exact: &Numbers,
    theirs: &Numbers,
    positions: Option<usize>,
) -> Vec<Compared> {
    if let Some(positions) = positions {
        let logits = found.get("logits").zip(exact.get("logits"));
        let sound = logits.map_or(0, |(found, exact)| sound_positions(found, exact, positions));
        let share = |number: usize| number as f64 / positions as f64;
        let (found, allowed) = (share(sound), share(positions - 1));
        return vec![Compared { what: "logits", measure: Measure::Positions, found, allowed }];
    }
    let each = |(&what, exact): (&&'static str, &Vec<f32>)| Compared {
        what,
        measure: Measure::RootMeanSquare,
        found: found.get(what).map_or(f64::INFINITY, |found| root_mean_square(found, exact)),
        // Without numbers of theirs there is nothing to allow.
        allowed: theirs.get(what).map_or(0.0, |theirs| OVER * root_mean_square(theirs, exact)),
    };
    exact.iter().map(each).collect()
}

/// The largest difference; infinite where lengths differ or a number is none.
pub fn largest(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let differences = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    differences.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { x.max(most) })
}

/// The root mean square of the differences; infinite where lengths differ or a number is none.
pub fn root_mean_square(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let root = (squares / a.len().max(1) as f64).sqrt();
    if root.is_nan() { f64::INFINITY } else { root }
}

/// The cosine of the angle between two lists; minus infinity where lengths differ or a number is none.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::NEG_INFINITY;
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    if cosine.is_nan() { f64::NEG_INFINITY } else { cosine }
}

/// Of so many positions, those whose logits keep [`COSINE`]; none where lengths differ.
fn sound_positions(found: &[f32], exact: &[f32], positions: usize) -> usize {
    let vocab = exact.len() / positions;
    if found.len() != exact.len() || vocab * positions != exact.len() || vocab == 0 {
        return 0;
    }
    let pairs = found.chunks(vocab).zip(exact.chunks(vocab));
    pairs.filter(|(found, exact)| cosine(found, exact) >= COSINE).count()
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
        // What is missing, too short or too long is no agreement.
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
        let verdict = |found: &Numbers| broken(&in_half(found, &exact, &theirs, None));
        assert!(verdict(&off(0.0159, 0.00159)).is_empty());
        assert_eq!(verdict(&off(0.0161, 0.001)), ["logits"]);
        assert_eq!(verdict(&off(0.01, 0.0017)), ["mass"]);
        // Without numbers of theirs, or of ours, nothing is allowed.
        assert_eq!(broken(&in_half(&off(0.01, 0.0), &exact, &Numbers::new(), None)), ["logits"]);
        assert_eq!(verdict(&Numbers::new()), ["logits", "mass"]);
    }

    #[test]
    fn with_experts_the_direction_of_the_logits_decides_at_all_positions_but_one() {
        let exact = numbers(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0], &[0.5, 0.5]);
        let verdict = |positions: [[f32; 3]; 3]| {
            let found = numbers(&positions.concat(), &[9.0, 9.0]);
            broken(&in_half(&found, &exact, &Numbers::new(), Some(3)))
        };
        let [x, y, z] = [[2.0, 0.1, 0.0], [0.1, 2.0, 0.0], [0.0, 0.1, 2.0]];
        let nowhere: [&str; 0] = [];
        assert_eq!(verdict([x, y, z]), nowhere);
        assert_eq!(verdict([x, [2.0, 0.3, 0.0], z]), nowhere, "one position may be another");
        // A cosine of 0.9889.
        assert_eq!(verdict([[2.0, 0.3, 0.0], [2.0, 0.0, 0.0], z]), ["logits"]);
        assert_eq!(verdict([[-1.0, 0.0, 0.0], [f32::NAN, 0.0, 0.0], z]), ["logits"]);
        assert_eq!(verdict([[0.0; 3]; 3]), ["logits"]);
        // What is missing or of another length agrees nowhere.
        let without = |found: &Numbers| broken(&in_half(found, &exact, &Numbers::new(), Some(3)));
        assert_eq!(without(&Numbers::new()), ["logits"]);
        assert_eq!(without(&numbers(&[1.0, 0.0, 0.0], &[])), ["logits"]);
    }

    #[test]
    fn what_is_used_of_a_bound_is_above_1_exactly_where_it_does_not_hold() {
        for (measure, found, allowed) in [
            (Measure::Largest, 0.5e-3, 1e-3),
            (Measure::Largest, 2e-3, 1e-3),
            (Measure::RootMeanSquare, f64::INFINITY, 1e-3),
            (Measure::RootMeanSquare, 0.1, 0.0),
            (Measure::Cosine, 0.999, 0.99),
            (Measure::Cosine, 0.98, 0.99),
            (Measure::Cosine, f64::NEG_INFINITY, 0.99),
            (Measure::Positions, 15.0 / 16.0, 15.0 / 16.0),
            (Measure::Positions, 14.0 / 16.0, 15.0 / 16.0),
        ] {
            let compared = Compared { what: "logits", measure, found, allowed };
            assert_eq!(compared.used() <= 1.0, compared.holds(), "{compared:?}: {}", compared.used());
        }
    }
}
