//! Percentile bootstrap over examples: a band around a curve, drawn with one resampling for all layers at once.
//!
//! A resampling of n examples is a matrix of weights, one row a resample, how often each example was drawn over n; the
//! resampled means of every layer are then one matrix product. Statistics that combine several means (a ratio of means)
//! use the same weights for each, so that the whole statistic is resampled over examples, not its parts on their own.

use ndarray::{Array2, Axis};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Layer;
use crate::ground::numbers::quantile;

/// Fewest cases that have a band: a bootstrap of fewer draws the same few values again and again, and its percentiles are
/// much too narrow.
pub const LEAST: usize = 5;

/// One point of a curve: an estimate at a layer with its band.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The decoder layer.
    pub layer: Layer,
    /// Cases whose value is defined here.
    pub n: usize,
    /// Examples left out here because a ratio's denominator was 0.
    pub undefined: usize,
    /// The estimate; `None` where it is not defined.
    pub value: Option<f64>,
    /// The 2.5th and 97.5th percentile of the resampled statistic; `None` for fewer than [`LEAST`] cases.
    pub band: Option<(f64, f64)>,
    /// Each case's own value, where they are too few for a band.
    pub cases: Vec<f64>,
    /// At a linear layer, for the mean of a curve as mass: the mean over cases of the signed sums of the weights.
    pub signed: Option<f64>,
}

/// Seeded draws with replacement from n examples.
#[derive(Debug, Clone)]
pub struct Resampling {
    weights: Array2<f64>, // (resamples, n): how often each was drawn
}

impl Resampling {
    /// `resamples` draws of `n` from `n`, with replacement; the same for the same arguments.
    pub fn new(n: usize, resamples: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut weights = Array2::zeros((resamples, n));
        for mut row in weights.rows_mut() {
            for _ in 0..n {
                row[rng.random_range(0..n)] += 1.0;
            }
        }
        Resampling { weights }
    }

    /// The mean of each column with its band; NaN marks a value that is absent. `values` is (n, layers).
    pub fn means(&self, values: &Array2<f64>) -> Vec<Estimate> {
        let (sums, counts) = split(values);
        let whole = sums.sum_axis(Axis(0)) / counts.sum_axis(Axis(0));
        let resampled = self.weights.dot(&sums) / self.weights.dot(&counts);
        estimates(values, &counts, &whole, &resampled)
    }

    /// The ratio of the columns' means with its band, over the examples that have both. Both are (n, layers); NaN marks a value
    /// that is absent.
    pub fn ratios(&self, numerator: &Array2<f64>, denominator: &Array2<f64>) -> Vec<Estimate> {
        // absent in one is absent in both
        let with = |values: &Array2<f64>, other: &Array2<f64>| {
            let mut values = values.clone();
            values.zip_mut_with(other, |value, other| {
                if !other.is_finite() {
                    *value = f64::NAN;
                }
            });
            split(&values)
        };
        let (numerator, counts) = with(numerator, denominator);
        let (denominator, _) =
            with(denominator, &counts.mapv(|count| if count > 0.0 { 1.0 } else { f64::NAN }));
        let whole = numerator.sum_axis(Axis(0)) / denominator.sum_axis(Axis(0));
        let resampled = self.weights.dot(&numerator) / self.weights.dot(&denominator);
        estimates(&(&numerator / &denominator), &counts, &whole, &resampled)
    }
}

/// An estimate, how many examples it rests on, and its band.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Examples with a value.
    pub n: usize,
    /// `None` where it is not finite: no values, or a denominator of 0.
    pub value: Option<f64>,
    /// `None` for fewer than [`LEAST`] examples or an undefined estimate.
    pub band: Option<(f64, f64)>,
    /// The examples' own values, in their order, where there are fewer than [`LEAST`]; of a ratio those that are finite.
    pub each: Vec<f64>,
}

fn split(values: &Array2<f64>) -> (Array2<f64>, Array2<f64>) {
    (
        values.mapv(|v| if v.is_finite() { v } else { 0.0 }),
        values.mapv(|v| if v.is_finite() { 1.0 } else { 0.0 }),
    )
}

fn estimates(
    values: &Array2<f64>,
    counts: &Array2<f64>,
    whole: &ndarray::Array1<f64>,
    resampled: &Array2<f64>,
) -> Vec<Estimate> {
    (0..counts.ncols())
        .map(|layer| {
            let n = counts.column(layer).sum() as usize;
            let value = Some(whole[layer]).filter(|v| v.is_finite());
            if n < LEAST {
                let each = values.column(layer).iter().copied().filter(|v| v.is_finite()).collect();
                return Estimate { n, value, band: None, each };
            }
            // resamples in which the statistic is undefined say nothing about where it lies
            let mut draws: Vec<f64> =
                resampled.column(layer).iter().copied().filter(|v| v.is_finite()).collect();
            draws.sort_unstable_by(f64::total_cmp);
            let band = value
                .filter(|_| !draws.is_empty())
                .map(|_| (quantile(&draws, 0.025), quantile(&draws, 0.975)));
            Estimate { n, value, band, each: Vec::new() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn the_band_of_equal_values_is_that_value_and_below_five_examples_there_is_none() {
        let equal = Resampling::new(5, 200, 1).means(&Array2::from_elem((5, 2), 0.25));
        let band = Some((0.25, 0.25));
        assert_eq!(equal[1], Estimate { n: 5, value: Some(0.25), band, each: Vec::new() });
        let four = &Resampling::new(4, 200, 1).means(&array![[0.1], [0.2], [0.3], [0.6]])[0];
        assert_eq!((four.n, four.band, &four.each[..]), (4, None, &[0.1, 0.2, 0.3, 0.6][..]));
    }

    #[test]
    fn absent_values_are_counted_out() {
        let estimates =
            Resampling::new(3, 200, 1).means(&array![[1.0, f64::NAN], [f64::NAN, f64::NAN], [3.0, f64::NAN]]);
        assert_eq!((estimates[0].n, estimates[0].value), (2, Some(2.0)));
        assert_eq!(estimates[0].each, [1.0, 3.0]);
        assert_eq!(estimates[1], Estimate { n: 0, value: None, band: None, each: Vec::new() });
    }

    #[test]
    fn a_ratio_of_means_is_resampled_whole() {
        // the ratio is 2 in every example, so its band has no width although the means vary
        let old = array![[0.1], [0.4], [0.9], [0.3], [0.2]];
        let ratios = Resampling::new(5, 500, 7).ratios(&(&old * 2.0), &old);
        let (low, high) = ratios[0].band.unwrap();
        assert!((low - 2.0).abs() < 1e-12 && (high - 2.0).abs() < 1e-12);
        // of two examples the ratio of means, and the ratio of each that has one
        let few = &Resampling::new(2, 500, 7).ratios(&array![[0.5], [0.3]], &array![[0.1], [0.0]])[0];
        assert_eq!((few.n, few.band, &few.each[..]), (2, None, &[5.0][..]));
        assert!((few.value.unwrap() - 8.0).abs() < 1e-12);
    }
}
