//! Per-layer estimates over units with 95% intervals.
//!
//! Intervals use [`palimpsest_data::statistics::means`]. The formula depends on the kind of number ([`Numbers`]), not on the values, so a
//! curve has one kind of band at all layers.

use super::{Layer, Scale};
use palimpsest_data::benchmarks::{Axis, Measure};
use palimpsest_data::statistics::{Interval, bounded, means};

/// Minimum number of cases for a band; with fewer, every case is shown.
pub const LEAST: usize = 5;

#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub layer: Layer,
    pub n: usize,
    pub undefined: usize,
    pub value: Option<f64>,
    pub band: Option<(f64, f64)>,
    pub cases: Vec<f64>,
    /// Linear layers, mean mass only: mean over cases of the signed sums of the weights.
    pub signed: Option<f64>,
}

impl Point {
    pub fn low(&self) -> Option<f64> {
        self.band.map(|(low, _)| low)
    }

    pub fn high(&self) -> Option<f64> {
        self.band.map(|(_, high)| high)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// 0 or above, unbounded: densities, ratios, lifts.
    Positive,
    /// From 0 to 1: masses and their shares.
    Part,
    /// Any sign: losses of log-probability.
    Signed,
    /// From -1 to 1.
    Correlation,
    /// 0 or 1, or a mean of these.
    Found,
}

impl Numbers {
    pub fn of_curve(scale: Scale) -> Self {
        match scale {
            Scale::Mass => Numbers::Part,
            Scale::Density => Numbers::Positive,
        }
    }

    pub fn of_measure(measure: &Measure, scale: Scale) -> Self {
        match measure.axis {
            Axis::Logarithmic => Numbers::Positive,
            Axis::Linear(from, _) if from < 0.0 => Numbers::Signed,
            Axis::Linear(..) if measure.reference.is_none() => Numbers::of_curve(scale),
            Axis::Linear(..) => Numbers::Part,
        }
    }

    fn interval(self, values: &[f64]) -> Option<Interval> {
        match self {
            Numbers::Positive => means::positive(values),
            Numbers::Part => means::parts(values),
            Numbers::Signed => means::signed(values),
            Numbers::Correlation => means::signed(values)
                .map(|Interval { low, high }| Interval { low: low.max(-1.0), high: high.min(1.0) }),
            Numbers::Found => bounded::of_shares(values),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    pub n: usize,
    /// `None` if not finite: no values, or denominator 0.
    pub value: Option<f64>,
    /// `None` for fewer than [`LEAST`] examples, equal values, or an undefined estimate.
    pub band: Option<(f64, f64)>,
    /// The examples' values, in order, if fewer than [`LEAST`]; for ratios, the finite ones.
    pub each: Vec<f64>,
}

impl Estimate {
    /// Mean and band; non-finite values are missing.
    pub fn mean(values: impl IntoIterator<Item = f64>, numbers: Numbers) -> Self {
        let known: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let value = known.iter().sum::<f64>() / known.len() as f64;
        let band = (known.len() >= LEAST).then(|| numbers.interval(&known)).flatten();
        Estimate::of(known.len(), value, band, known)
    }

    /// Ratio of means, over examples that have both numbers, and its band by `interval`.
    pub fn ratio(
        pairs: impl IntoIterator<Item = (f64, f64)>,
        interval: fn(&[f64], &[f64]) -> Option<Interval>,
    ) -> Self {
        let both = pairs.into_iter().filter(|(a, b)| a.is_finite() && b.is_finite());
        let (over, under): (Vec<f64>, Vec<f64>) = both.unzip();
        let value = over.iter().sum::<f64>() / under.iter().sum::<f64>();
        let band = (over.len() >= LEAST).then(|| interval(&over, &under)).flatten();
        let ratios = over.iter().zip(&under).map(|(a, b)| a / b).filter(|ratio| ratio.is_finite());
        Estimate::of(over.len(), value, band, ratios.collect())
    }

    fn of(n: usize, value: f64, band: Option<Interval>, each: Vec<f64>) -> Self {
        let value = Some(value).filter(|value| value.is_finite());
        let band = band.map(|Interval { low, high }| (low, high));
        Estimate { n, value, band, each: if n < LEAST { each } else { Vec::new() } }
    }

    pub(super) fn at(self, layer: Layer, undefined: usize) -> Point {
        let Estimate { n, value, band, each: cases } = self;
        Point { layer, n, undefined, value, band, cases, signed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_no_band_and_below_five_examples_there_is_none() {
        let equal = Estimate::mean([0.25; 5], Numbers::Part);
        assert_eq!(equal, Estimate { n: 5, value: Some(0.25), band: None, each: Vec::new() });
        let four = Estimate::mean([0.1, 0.2, 0.3, 0.6], Numbers::Part);
        assert_eq!((four.n, four.band, &four.each[..]), (4, None, &[0.1, 0.2, 0.3, 0.6][..]));
    }

    #[test]
    fn what_is_always_found_still_has_a_band() {
        let (low, high) = Estimate::mean([1.0; 6], Numbers::Found).band.unwrap();
        assert!((0.5..0.7).contains(&low) && high == 1.0, "{low} to {high}");
    }

    #[test]
    fn bands_stay_where_the_numbers_can_lie() {
        let high = [0.99, 0.97, 1.0, 0.6, 0.98, 0.99];
        let band = |numbers| Estimate::mean(high, numbers).band.unwrap();
        assert!(band(Numbers::Part).1 < 1.0 && band(Numbers::Correlation).1 <= 1.0);
        assert!(band(Numbers::Positive).1 > 1.0);
        let mirrored = Estimate::mean(high.map(|x| 1.0 - x), Numbers::Part).band.unwrap();
        let plain = band(Numbers::Part);
        assert!((mirrored.0 - (1.0 - plain.1)).abs() < 1e-12 && (mirrored.1 - (1.0 - plain.0)).abs() < 1e-12);
    }

    #[test]
    fn a_ratio_of_means_is_taken_whole() {
        // The ratio is 2 in every example: the means vary, but the ratio has no spread.
        let old = [0.1, 0.4, 0.9, 0.3, 0.2];
        let ratio = |new: [f64; 5]| Estimate::ratio(new.into_iter().zip(old), means::ratio);
        let same = ratio(old.map(|x| 2.0 * x));
        assert!((same.value.unwrap() - 2.0).abs() < 1e-12 && same.band.is_none());
        // Shared noise cancels: the band is narrower than for unrelated numbers.
        let (low, high) = ratio([0.21, 0.79, 1.83, 0.6, 0.39]).band.unwrap();
        assert!(low < 2.0 && 2.0 < high && high - low < 0.2, "{low} to {high}");
        let few = Estimate::ratio([(0.5, 0.1), (0.3, 0.0)], means::ratio);
        assert_eq!((few.n, few.band, &few.each[..]), (2, None, &[5.0][..]));
        assert!((few.value.unwrap() - 8.0).abs() < 1e-12);
    }
}
