//! The bootstrap of a difference between two systems that answered the same questions.

use super::{Interval, stratified_bootstrap};

/// A 95% percentile-bootstrap interval of `statistic` of the first members less `statistic` of the second ones.
///
/// `strata` is `[strata][units]`, a unit a pair: what the first and the second system came to on it. Units are drawn whole
/// within each stratum, so that what makes a question hard for both cancels. Draws and absences are those of
/// [`stratified_bootstrap`].
pub fn paired_bootstrap<U>(
    strata: &[Vec<(U, U)>],
    statistic: impl Fn(&[Vec<&U>]) -> Option<f64>,
    resamples: usize,
    seed: u64,
) -> Option<Interval> {
    let difference = |sample: &[Vec<&(U, U)>]| {
        let side = |of: fn(&(U, U)) -> &U| -> Vec<Vec<&U>> {
            sample.iter().map(|units| units.iter().map(|pair| of(pair)).collect()).collect()
        };
        Some(statistic(&side(|pair| &pair.0))? - statistic(&side(|pair| &pair.1))?)
    };
    stratified_bootstrap(strata, difference, resamples, seed)
}
