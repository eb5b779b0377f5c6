//! Value axes (logarithmic and linear), layer axes, their ticks, and stretches of linear layers.

use palimpsest_analysis::lens::{Layer, Point, Series};

#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    pub low: f64,
    pub high: f64,
    pub ticks: Vec<f64>,
    /// Linear if true, else logarithmic.
    pub linear: bool,
    /// Position below `low` for exact zeros on a logarithmic axis, if there are any.
    pub zero: Option<f64>,
}

impl Range {
    /// Logarithmic axis of `series` and `reference`. `reach`: maximum factor by which linear layers may extend it beyond the softmax layers.
    pub fn of(series: &[&Series], reference: Option<f64>, reach: f64) -> Self {
        let positive = |v: &f64| *v > 0.0 && v.is_finite();
        // softmax layers set the axis, linear ones only if there are no others
        let softmax =
            points(series).any(|(_, p)| !p.layer.is_linear() && p.value.is_some_and(|v| positive(&v)));
        let layers =
            |linear: bool| points(series).filter(move |(_, p)| (softmax && p.layer.is_linear()) == linear);
        let values = |linear: bool| layers(linear).filter_map(|(_, p)| p.value).filter(positive);
        let means = || values(false).chain(reference);
        let bands = || layers(false).filter_map(|(_, p)| extent(p));
        let most = means().chain(bands().map(|b| b.1)).filter(positive).fold(f64::MIN_POSITIVE, f64::max);
        let least = means().fold(f64::INFINITY, f64::min);
        if !least.is_finite() {
            let (low, high) = (0.1, 10.0);
            return Range { low, high, ticks: vec![low, 1.0, high], linear: false, zero: None }
                .with_zero(series);
        }
        // bands may approach 0: cut half a decade below the curves
        let lowest_band = bands().map(|b| b.0).filter(positive).fold(f64::INFINITY, f64::min);
        let low = least.min(lowest_band.max(least / 3.0)).max(most * 1e-6);
        let most = most.min(means().fold(f64::MIN_POSITIVE, f64::max) * 10.0);
        let least = values(true).fold(low, f64::min).max(low / reach);
        let most = values(true).fold(most, f64::max).min(most * reach);
        let room = (most / least).powf(0.05).max(1.05);
        let (low, high) = (least / room, most * room);
        Range { low, high, ticks: value_ticks(low, high), linear: false, zero: None }.with_zero(series)
    }

    /// Linear axis over `ends` and the curves; bands and single cases extend it by at most the curves' height. Without curves, the ends
    /// are those of the axis.
    pub fn linear(series: &[&Series], ends: (f64, f64)) -> Self {
        if series.is_empty() {
            return Range::over(ends.0, ends.1);
        }
        let curves = spanning(ends, points(series).filter_map(|(_, point)| point.value));
        let room = curves.1 - curves.0;
        let bands = points(series).flat_map(|(_, point)| point.low().into_iter().chain(point.high()));
        let cases = points(series).flat_map(|(_, point)| single_cases(point).iter().copied());
        let most = spanning(curves, bands.chain(cases));
        let (low, high) = (most.0.max(curves.0 - room), most.1.min(curves.1 + room));
        let pad = (high - low).max(1e-9) * 0.04;
        Range::over(low - pad, high + pad)
    }

    /// Linear axis with these very ends.
    pub fn over(low: f64, high: f64) -> Self {
        Range { low, high, ticks: round_ticks(low, high), linear: true, zero: None }
    }

    /// Adds a position for 0 if any value or single case is 0.
    fn with_zero(mut self, series: &[&Series]) -> Self {
        let zero =
            |(_, point): (&Series, &Point)| point.value == Some(0.0) || single_cases(point).contains(&0.0);
        if points(series).any(zero) {
            self.zero = Some(self.low / (self.high / self.low).powf(0.10));
        }
        self
    }

    pub fn foot(&self) -> f64 {
        self.zero.map_or(self.low, |zero| zero / (self.high / self.low).powf(0.05))
    }

    /// Clamps to the axis; 0 goes to its own position.
    pub fn clamp(&self, value: f64) -> f64 {
        match self.zero {
            Some(zero) if value == 0.0 => self.place(zero),
            _ => self.place(value.clamp(self.low, self.high)),
        }
    }

    /// True if 0 is marked separately.
    pub fn is_zero(&self, value: f64) -> bool {
        self.zero.is_some() && value == 0.0
    }

    /// Axis coordinate: the value or its logarithm.
    pub fn place(&self, value: f64) -> f64 {
        if self.linear { value } else { value.log10() }
    }

    /// True if the value can be drawn; 0 cannot on a logarithmic axis.
    pub fn shows(&self, value: f64) -> bool {
        self.linear || value > 0.0
    }

    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

fn points<'a>(series: &[&'a Series]) -> impl Iterator<Item = (&'a Series, &'a Point)> {
    series.iter().copied().flat_map(|one| one.points.iter().map(move |point| (one, point)))
}

/// The ends, extended to hold all finite values.
pub(super) fn spanning(ends: (f64, f64), values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(ends, |(low, high), value| (low.min(value), high.max(value)))
}

/// Ends with some room around them.
pub(super) fn padded((low, high): (f64, f64)) -> (f64, f64) {
    let pad = (high - low).max(1e-9) * 0.05;
    (low - pad, high + pad)
}

/// Lowest and highest value drawn besides the estimate: band or single cases.
fn extent(point: &Point) -> Option<(f64, f64)> {
    let cases = || single_cases(point).iter().copied().filter(|value| *value > 0.0);
    let of_cases = || Some((cases().reduce(f64::min)?, cases().reduce(f64::max)?));
    point.band.or_else(of_cases)
}

/// Cases drawn one by one; none for a single case, which equals the curve.
pub(super) fn single_cases(point: &Point) -> &[f64] {
    if point.cases.len() < 2 { &[] } else { &point.cases }
}

pub(super) fn write_value(value: f64, percent: bool) -> String {
    let value = if percent { value * 100.0 } else { value };
    // even steps reach 0 only approximately
    let value = if value.abs() < 1e-12 { 0.0 } else { value };
    if value == 0.0 {
        return if percent { "0%".to_owned() } else { "0".to_owned() };
    }
    // rounds off the error of the logarithm
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    signed(if percent { format!("{text}%") } else { text.to_owned() })
}

/// With a minus sign, as wide as a digit, in place of the hyphen.
pub(super) fn signed(number: String) -> String {
    number.replace('-', "−")
}

/// Ticks of a logarithmic axis: decades, or finer steps if too few.
pub(super) fn value_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let series: [&[f64]; 4] = [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]];
    for steps in series {
        let all = decades.clone().flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
        let ticks: Vec<f64> = all.filter(|t| (low..=high).contains(t)).collect();
        if ticks.len() >= 4 {
            let every = ticks.len().div_ceil(7);
            return ticks.into_iter().step_by(every).collect();
        }
    }
    even_ticks(low, high)
}

fn even_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 4.0;
    let scale = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * scale).find(|s| *s >= rough).unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    (first..first + 8).map(|i| i as f64 * step).filter(|t| (low..=high).contains(t)).collect()
}

/// Ticks of a linear axis: the widest round steps that give at least three.
pub(super) fn round_ticks(low: f64, high: f64) -> Vec<f64> {
    let decade = 10f64.powf((high - low).max(1e-12).log10().ceil());
    let steps = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02].map(|part| part * decade);
    let ticks = |step: f64| -> Vec<f64> {
        let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
        (first..=last).map(|i| i as f64 * step).collect()
    };
    steps.into_iter().map(ticks).find(|ticks| ticks.len() >= 3).unwrap_or_default()
}

/// Layer ticks: all of few layers, round numbers of many, always the last.
pub(super) fn layer_ticks(layers: &[usize]) -> Vec<usize> {
    let (Some(&first), Some(&last)) = (layers.first(), layers.last()) else { return Vec::new() };
    if layers.len() <= 4 {
        return layers.to_vec();
    }
    let step = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 100].into_iter().find(|step| (last - first) / step < 8);
    let step = step.unwrap_or(last - first).max(1);
    // drop a round number whose label would touch the last one
    let round = (first.div_ceil(step) * step..last).step_by(step).filter(|tick| (last - tick) * 2 > step);
    round.chain([last]).collect()
}

/// Ranges of adjacent linear layers, extended by half a layer on either side.
pub(super) fn linear_stretches(layers: &[Layer]) -> Vec<(f64, f64)> {
    let together = |a: &Layer, b: &Layer| a.kind == b.kind && a.index + 1 == b.index;
    let stretch = |run: &[Layer]| match run {
        [first, ..] if !first.is_linear() => None,
        [first, .., last] => Some((first.index as f64 - 0.5, last.index as f64 + 0.5)),
        [one] => Some((one.index as f64 - 0.5, one.index as f64 + 0.5)),
        [] => None,
    };
    layers.chunk_by(together).filter_map(stretch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_analysis::lens::{Group, LayerKind, Scale, Statistic};

    fn point(index: usize, kind: LayerKind, value: f64) -> Point {
        let layer = Layer { index, kind };
        Point { layer, n: 1, undefined: 0, value: Some(value), band: None, cases: vec![value], signed: None }
    }

    fn series(points: Vec<Point>) -> Series {
        let (statistic, scale, probes) = (Statistic::RatioOfMeans, Scale::Mass, "all".to_owned());
        Series { group: Group::all(), probes, statistic, scale, n: 1, points }
    }

    #[test]
    fn bands_lie_behind_linear_layers_only() {
        let stretches = |layers: &[(usize, bool)]| {
            let kind = |linear| if linear { LayerKind::Linear } else { LayerKind::Softmax };
            let layer = |(index, linear): &(usize, bool)| Layer { index: *index, kind: kind(*linear) };
            linear_stretches(&layers.iter().map(layer).collect::<Vec<_>>())
        };
        let hybrid: Vec<(usize, bool)> = (0..8).map(|i| (i, i % 4 != 3)).collect();
        assert_eq!(stretches(&hybrid), [(-0.5, 2.5), (3.5, 6.5)]);
        assert_eq!(stretches(&[(1, true), (4, true), (5, true)]), [(0.5, 1.5), (3.5, 5.5)]);
        assert!(stretches(&[(0, false), (1, false)]).is_empty());
    }

    #[test]
    fn a_logarithmic_axis_holds_softmax_layers_single_cases_and_zeros() {
        let range = |points| Range::of(&[&series(points)], Some(1.0), 10.0);
        let (softmax, linear) = (LayerKind::Softmax, LayerKind::Linear);
        let far = range(vec![point(0, linear, 1e8), point(1, linear, 1e-8), point(2, softmax, 2.0)]);
        assert!((0.05..0.1).contains(&far.low) && (20.0..40.0).contains(&far.high), "{far:?}");
        let near = range(vec![point(0, linear, 5.0), point(1, softmax, 2.0)]);
        assert!(near.holds(5.0) && near.high < 7.0, "{near:?}");
        assert!(range(vec![point(0, linear, 1e3)]).holds(1e3), "theirs where there are no others");
        // Single cases extend the axis by at most half a decade.
        let few =
            |cases: [f64; 2]| range(vec![Point { n: 2, cases: cases.into(), ..point(0, softmax, 2.0) }]);
        assert!(few([0.5, 3.5]).holds(0.5) && few([0.5, 3.5]).holds(3.5) && !few([0.01, 3.99]).holds(0.01));
        let some = range(vec![point(0, softmax, 0.0), point(1, softmax, 2.0)]);
        assert!(some.zero.is_some_and(|zero| zero < some.low) && some.foot() < some.zero.unwrap());
        assert!(some.is_zero(0.0) && some.clamp(0.0) < some.clamp(1e-30) && !some.holds(0.0));
    }

    #[test]
    fn a_linear_axis_holds_its_ends_and_what_goes_beyond_them() {
        let softmax = LayerKind::Softmax;
        let curve = series(vec![point(0, softmax, 0.4), point(1, softmax, -0.2)]);
        let axis = Range::linear(&[&curve], (0.0, 1.0));
        assert!([-0.2, 0.0, 1.0].into_iter().all(|value| axis.holds(value)) && axis.high < 1.1, "{axis:?}");
        assert!(axis.shows(-0.1) && axis.place(0.5) == 0.5);
        let plain = Range::linear(&[], (0.0, 1.0));
        assert_eq!((plain.low, plain.high), (0.0, 1.0));
    }

    #[test]
    fn ticks_are_few_and_within_the_axis_at_any_span() {
        type Ticks = fn(f64, f64) -> Vec<f64>;
        let linear = [(0.0, 1.0), (0.05, 0.92), (0.28, 0.72), (-0.05, 0.05), (-0.41, 0.11), (3.0, 3.001)];
        let log = [(1e-6, 0.5), (0.01, 0.2), (0.5, 2.0), (0.9, 1.1), (0.98, 1.01), (3.0, 4.0), (1e-4, 2e-4)];
        let linear = linear.map(|ends| (ends, round_ticks as Ticks, 3));
        let log = log.map(|ends| (ends, value_ticks as Ticks, 2));
        for ((low, high), ticks, least) in linear.into_iter().chain(log) {
            let ticks = ticks(low, high);
            assert!((least..=8).contains(&ticks.len()), "[{low}, {high}]: {ticks:?}");
            assert!(ticks.iter().all(|t| (low..=high + 1e-9).contains(t)), "[{low}, {high}]: {ticks:?}");
        }
        assert_eq!([0.0, -0.05].map(|value| write_value(value, false)), ["0", "−0.05"]);
        for (count, ticks) in [
            (3, vec![0, 1, 2]),
            (64, vec![0, 8, 16, 24, 32, 40, 48, 56, 63]),
            (30, vec![0, 4, 8, 12, 16, 20, 24, 29]),
            (18, vec![0, 4, 8, 12, 17]),
            (0, vec![]),
        ] {
            assert_eq!(layer_ticks(&(0..count).collect::<Vec<_>>()), ticks);
        }
        assert_eq!(layer_ticks(&[5, 11, 17]), [5, 11, 17], "a tick stands at a layer");
    }
}
