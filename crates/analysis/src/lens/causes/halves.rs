//! Split-half selection: choose on one half of the units, measure on the other, both ways.
//!
//! Choosing the largest of several means and estimating it on the same units is biased upwards.

use std::collections::{BTreeMap, BTreeSet};

use super::UnitName;
use crate::lens::band::Estimate;
use palimpsest_data::case::draw::Draws;

pub const LEAST_UNITS: usize = 4;

#[derive(Debug, Clone, PartialEq)]
pub struct HeldOut<T> {
    pub chosen: [T; 2],
    pub estimate: Estimate,
}

pub(super) fn halves(units: BTreeSet<UnitName>, seed: u64) -> Option<[BTreeSet<UnitName>; 2]> {
    let mut units: Vec<UnitName> = units.into_iter().collect();
    if units.len() < 2 * LEAST_UNITS {
        return None;
    }
    Draws::new("halves", seed, "").shuffle(&mut units);
    let other = units.split_off(units.len() / 2);
    Some([units.into_iter().collect(), other.into_iter().collect()])
}

/// Chooses the candidate with the largest mean in each half, and returns for each unit the value of the other half's candidate. `tried`
/// (for choosing) and `measured` have one value per unit and candidate, NaN if missing. `None` if a half has no values.
pub(super) fn choose(
    halves: &[BTreeSet<UnitName>; 2],
    tried: &BTreeMap<UnitName, Vec<f64>>,
    measured: &BTreeMap<UnitName, Vec<f64>>,
) -> Option<([usize; 2], Vec<f64>)> {
    let best = |half: &BTreeSet<UnitName>| {
        let rows: Vec<&Vec<f64>> =
            tried.iter().filter(|(unit, _)| half.contains(*unit)).map(|(_, row)| row).collect();
        let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mean = |at: usize| super::mean(rows.iter().filter_map(|row| row.get(at).copied()));
        let means = (0..width).filter_map(|at| Some((at, mean(at)?)));
        means.fold(None, |best: Option<(usize, f64)>, (at, mean)| match best {
            Some((_, most)) if most >= mean => best,
            _ => Some((at, mean)),
        })
    };
    let chosen = [best(&halves[0])?.0, best(&halves[1])?.0];
    let value = |(unit, row): (&UnitName, &Vec<f64>)| {
        let by = if halves[0].contains(unit) { chosen[1] } else { chosen[0] };
        row.get(by).copied().unwrap_or(f64::NAN)
    };
    Some((chosen, measured.iter().map(value).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(at: usize) -> UnitName {
        (format!("{at:03}"), String::new())
    }

    #[test]
    fn the_best_of_many_candidates_that_are_noise_is_measured_near_nothing() {
        const CANDIDATES: usize = 20;
        let (mut held, mut largest) = (0.0, 0.0);
        for seed in 0..40 {
            let mut draws = Draws::new("noise", seed, "");
            let mut number = || draws.index(2001) as f64 / 1000.0 - 1.0;
            let values: BTreeMap<UnitName, Vec<f64>> =
                (0..16).map(|at| (unit(at), (0..CANDIDATES).map(|_| number()).collect())).collect();
            let halves = halves(values.keys().cloned().collect(), seed).unwrap();
            let (_, measured) = choose(&halves, &values, &values).unwrap();
            held += measured.iter().sum::<f64>() / 16.0 / 40.0;
            let mean = |at: usize| values.values().map(|row| row[at]).sum::<f64>() / 16.0;
            largest += (0..CANDIDATES).map(mean).fold(f64::NEG_INFINITY, f64::max) / 40.0;
        }
        // SD of a mean over 16 is 0.144; over 40 seeds 0.023.
        assert!(held.abs() < 0.09, "{held}");
        assert!(largest > 0.2, "the maximum of the same numbers: {largest}");
    }

    #[test]
    fn each_half_is_measured_by_the_choice_of_the_other() {
        let all: BTreeSet<UnitName> = (0..8).map(unit).collect();
        let halves = halves(all.clone(), 0).unwrap();
        // Half 0 does best with candidate 0, half 1 with candidate 2; candidate 1 has no values.
        let row = |at: &UnitName| match halves[0].contains(at) {
            true => vec![5.0, f64::NAN, 1.0],
            false => vec![2.0, f64::NAN, 7.0],
        };
        let values: BTreeMap<UnitName, Vec<f64>> = all.iter().map(|at| (at.clone(), row(at))).collect();
        let (chosen, measured) = choose(&halves, &values, &values).unwrap();
        assert_eq!(chosen, [0, 2]);
        for (at, found) in all.iter().zip(measured) {
            assert_eq!(found, if halves[0].contains(at) { 1.0 } else { 2.0 });
        }
        assert_eq!(super::halves((0..7).map(unit).collect(), 0), None);
    }
}
