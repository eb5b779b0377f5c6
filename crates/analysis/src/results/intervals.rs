//! Intervals of a share or mean score, and of a paired difference.
//!
//! Tables average probes or cells, but the independent units may be whole cases. A unit's value is its contribution to the mean.

use std::collections::BTreeMap;

use palimpsest_data::statistics::Interval;
use palimpsest_data::statistics::bounded::{Intervals, Stratum, adjusted_mean, of_units};

pub(super) type Worths = Vec<(usize, f64)>;

/// Interval of the mean worth, or of a difference, within `bounds`. `strata` is `[kinds][units]`; probes weigh the same, or cells do with
/// `of_cells`. Uses Wilson's interval for one kind of equally weighted single-probe units; `None` if the units' variance is unknown.
pub(super) fn interval(
    strata: &[Vec<Worths>],
    of_cells: bool,
    bounds: (f64, f64),
    how: Intervals,
) -> Option<Interval> {
    let weights = Weights::of(strata, of_cells);
    let single = strata.iter().flatten().all(|unit| unit.len() == 1);
    if !(single && weights.are_equal()) {
        let adjusted = || adjusted_mean(&weights.strata(strata), bounds);
        return (how == Intervals::Adjusted).then(adjusted).flatten();
    }
    let filled = strata.iter().filter(|units| !units.is_empty());
    let n = strata.iter().map(Vec::len).sum::<usize>() as f64;
    let stratum = |units: &Vec<Worths>| Stratum {
        weight: units.len() as f64 / n,
        units: units.iter().flatten().map(|(_, worth)| *worth).collect(),
    };
    of_units(&filled.map(stratum).collect::<Vec<_>>(), bounds, how)
}

#[derive(Default)]
struct WeightClass {
    probes: f64,
    sum: f64,
    weight: f64,
}

/// Weight of each stratum, by cell, or one under 0.
struct Weights {
    parts: Vec<BTreeMap<usize, WeightClass>>,
    of_cells: bool,
}

impl Weights {
    fn of(strata: &[Vec<Worths>], of_cells: bool) -> Self {
        let mut parts: Vec<BTreeMap<usize, WeightClass>> = Vec::new();
        for stratum in strata {
            let mut own: BTreeMap<usize, WeightClass> = BTreeMap::new();
            for (cell, worth) in stratum.iter().flatten() {
                let part = own.entry(if of_cells { *cell } else { 0 }).or_default();
                part.probes += 1.0;
                part.sum += worth;
            }
            parts.push(own);
        }
        let all = || parts.iter().flat_map(BTreeMap::values);
        let (cells, probes) = (all().count() as f64, all().map(|part| part.probes).sum::<f64>());
        for part in parts.iter_mut().flat_map(BTreeMap::values_mut) {
            part.weight = if of_cells { 1.0 / cells } else { part.probes / probes };
        }
        Weights { parts, of_cells }
    }

    fn are_equal(&self) -> bool {
        let mut each = self.parts.iter().flat_map(BTreeMap::values).map(|part| part.weight / part.probes);
        let first = each.next().unwrap_or_default();
        each.all(|weight| (weight - first).abs() < 1e-12)
    }

    /// Units' values: the stratum's mean plus the unit's contribution. Their mean is the stratum's, and their variance that of the mean to
    /// first order, even if units lack probes of some cells.
    fn strata(&self, strata: &[Vec<Worths>]) -> Vec<Stratum> {
        let of_stratum = |(units, parts): (&Vec<Worths>, &BTreeMap<usize, WeightClass>)| {
            let weight: f64 = parts.values().map(|part| part.weight).sum();
            let mean: f64 =
                parts.values().map(|part| part.weight * part.sum / part.probes).sum::<f64>() / weight;
            let added = |(cell, worth): &(usize, f64)| {
                let part = parts.get(if self.of_cells { cell } else { &0 });
                part.map_or(0.0, |part| part.weight * (worth - part.sum / part.probes) / part.probes)
            };
            let scale = units.len() as f64 / weight;
            let units = units.iter().map(|unit| mean + scale * unit.iter().map(added).sum::<f64>()).collect();
            Stratum { weight, units }
        };
        strata.iter().zip(&self.parts).filter(|(units, _)| !units.is_empty()).map(of_stratum).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_every_cell_counts_with_the_mean_of_its_cells() {
        let strata = vec![
            vec![vec![(0, 1.0), (1, 0.0)], vec![(0, 1.0), (1, 1.0)], vec![(0, 0.0), (1, 0.0)]],
            vec![vec![(2, 0.5)], vec![(2, 1.0)]],
        ];
        let found = Weights::of(&strata, true).strata(&strata);
        assert_eq!(found.len(), 2);
        for (unit, expected) in found[0].units.iter().chain(&found[1].units).zip([0.5, 1.0, 0.0, 0.5, 1.0]) {
            assert!((unit - expected).abs() < 1e-12, "{unit} is not {expected}");
        }
        assert!((found[0].weight - 2.0 / 3.0).abs() < 1e-12 && (found[1].weight - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn the_mean_of_the_units_is_that_of_the_table_where_units_lack_cells() {
        let strata = vec![vec![
            vec![(0, 1.0), (1, 1.0), (1, 0.0)],
            vec![(0, 0.0)],
            vec![(1, 1.0), (1, 1.0)],
            vec![(0, 1.0), (1, 0.0)],
        ]];
        for (of_cells, expected) in [(true, (2.0 / 3.0 + 3.0 / 5.0) / 2.0), (false, 5.0 / 8.0)] {
            let found = Weights::of(&strata, of_cells).strata(&strata);
            let mean = found[0].units.iter().sum::<f64>() / 4.0;
            assert!((mean - expected).abs() < 1e-12, "{mean} is not {expected}");
        }
    }

    #[test]
    fn single_questions_of_one_weight_have_wilsons_interval_and_others_are_adjusted() {
        let one = |worths: &[f64]| worths.iter().map(|worth| vec![(0, *worth)]).collect::<Vec<Worths>>();
        let wilson = palimpsest_data::statistics::wilson(3, 4, 0.95);
        let adjusted =
            |strata: &[Vec<Worths>], of_cells| interval(strata, of_cells, (0.0, 1.0), Intervals::Adjusted);
        assert_eq!(adjusted(&[one(&[1.0, 1.0, 0.0, 1.0]), Vec::new()], false), wilson);
        assert_ne!(adjusted(&[one(&[1.0, 1.0, 0.0]), one(&[1.0])], false), wilson);
        // All right and all wrong have a width; a single case of three probes has no interval.
        for worth in [0.0, 1.0] {
            let case = vec![(0, worth), (1, worth), (2, worth)];
            let Interval { low, high } = adjusted(&[vec![case.clone(), case.clone()]], true).unwrap();
            assert!(high - low > 0.2 && low <= worth && worth <= high);
            assert_eq!(adjusted(&[vec![case]], true), None);
        }
        let none = [one(&[0.0, 0.0, 0.0, 0.0])];
        let differences = interval(&none, false, (-1.0, 1.0), Intervals::Adjusted).unwrap();
        assert!((differences.low + differences.high).abs() < 1e-12 && differences.high > 0.3);
        let resampled = interval(&none, false, (-1.0, 1.0), Intervals::Paper).unwrap();
        assert_eq!((resampled.low, resampled.high), (0.0, 0.0));
    }
}
