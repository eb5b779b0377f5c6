//! Groups of examples and their statistics by layer.
//!
//! Means and bands are over the benchmark's units ([`Benchmark::unit`]), usually cases: probes of a case share its history and are not
//! independent, so they are averaged first. A case with mixed verdicts contributes its right probes to `correct` and its wrong ones to
//! `wrong`. Layer kinds are never mixed; [`Series::mean_over`] averages over one kind. A group over all probes holds the pooled ones
//! ([`LensSpec::pooled`](palimpsest_data::benchmarks::LensSpec::pooled)).
//!
//! - **Mean**: over cases (STALE, figures 6 and 7). A curve and its noise baseline use the same cases at each layer (appendix E.4);
//!   examples without a baseline are excluded ([`Lens::without_baseline`]), unless no example has one.
//! - **Ratio of means**: over cases with both curves (STALE, figure 8; [`LensSpec::ratio`](palimpsest_data::benchmarks::LensSpec::ratio)).
//! - **Mean of ratios**: over each example's own ratio (STALE, figure 3). Examples with denominator 0 at a layer are excluded there and
//!   counted as undefined.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::band::{Estimate, Numbers, Point};
use super::layers::mean_by_layer;
use super::{
    AnalysedRun, Baseline, ByHeads, Curve, Drawn, Example, Layer, LayerKind, LensError, PerGroup, Scale,
    Target,
};
use crate::records::join;
use palimpsest_data::benchmarks::{Benchmark, GENERATION, QUERY, Unit};
use palimpsest_data::ground::order::{sorted_unique, unique};
use palimpsest_data::ground::words::{counted, plural};
use palimpsest_data::statistics;
use palimpsest_run::progress::over;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::store::read_attention;

/// (case, probe); the probe is empty unless probes are units.
pub(super) type UnitKey<'a> = (&'a str, &'a str);

pub(super) fn unit_of(unit: Unit, example: &Example) -> UnitKey<'_> {
    match unit {
        Unit::Case => (&example.case, ""),
        Unit::Probe => (&example.case, &example.probe),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Correctness {
    All,
    Correct,
    Wrong,
}

impl Correctness {
    pub fn key(self) -> &'static str {
        match self {
            Correctness::All => "all",
            Correctness::Correct => "correct",
            Correctness::Wrong => "wrong",
        }
    }

    pub(super) fn holds(self, verdict: Option<bool>) -> bool {
        match self {
            Correctness::All => true,
            Correctness::Correct => verdict == Some(true),
            Correctness::Wrong => verdict == Some(false),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// A probe or probe group ([`Benchmark::dimension`]), or all pooled probes.
    pub probe: Option<String>,
    /// A value of the split label, or all.
    pub kind: Option<String>,
    pub correctness: Correctness,
}

impl Group {
    pub fn all() -> Self {
        Group { probe: None, kind: None, correctness: Correctness::All }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Statistic {
    Mean(Curve, Target),
    RatioOfMeans,
    MeanOfRatios,
    Measure(&'static str),
}

impl Statistic {
    pub fn key(self) -> String {
        match self {
            Statistic::Mean(curve, Target::Signal) => curve.key().to_owned(),
            Statistic::Mean(curve, Target::Noise) => format!("{}_noise", curve.key()),
            Statistic::RatioOfMeans => "ratio_of_means".to_owned(),
            Statistic::MeanOfRatios => "mean_of_ratios".to_owned(),
            Statistic::Measure(key) => key.to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub group: Group,
    /// Probes in tables: `SR`, `SR+IPA`, `all`.
    pub probes: String,
    pub statistic: Statistic,
    pub scale: Scale,
    pub n: usize,
    pub points: Vec<Point>,
}

impl Series {
    /// Means over `rows`: (units, layers); non-finite values are missing.
    pub(super) fn of_rows(
        (group, probes): (Group, String),
        (statistic, scale): (Statistic, Scale),
        layers: &[Layer],
        (rows, numbers): (&[Vec<f64>], Numbers),
    ) -> Self {
        let points = layers.iter().enumerate().map(|(at, &layer)| {
            let estimate = Estimate::mean(rows.iter().map(|row| row[at]), numbers);
            let undefined = rows.len() - estimate.n;
            estimate.at(layer, undefined)
        });
        Series::of_points((group, probes), (statistic, scale), points.collect())
    }

    fn of_points(
        (group, probes): (Group, String),
        (statistic, scale): (Statistic, Scale),
        points: Vec<Point>,
    ) -> Self {
        let n = points.iter().map(|point| point.n).max().unwrap_or(0);
        Series { group, probes, statistic, scale, n, points }
    }

    /// Mean over layers of one kind where the statistic is defined; `None` if nowhere.
    pub fn mean_over(&self, kind: LayerKind) -> Option<f64> {
        let of_kind = self.points.iter().filter(|point| point.layer.kind == kind);
        let values: Vec<f64> = of_kind.filter_map(|point| point.value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Most units with a value at a layer of one kind.
    pub fn units_over(&self, kind: LayerKind) -> usize {
        let of_kind = self.points.iter().filter(|point| point.layer.kind == kind);
        of_kind.map(|point| point.n).max().unwrap_or(0)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Judge whose verdicts split the examples; `None` for the latest.
    pub judge: Option<String>,
    /// Seed of the split halves for model selection.
    pub halves_seed: u64,
    pub baseline: Baseline,
    pub per_group: Option<PerGroup>,
    /// Head scores to weight masses by; `None` for the plain mean.
    pub heads: Option<ByHeads>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub case: String,
    pub probe: String,
    pub reason: String,
}

#[derive(Debug, Clone)]
pub struct Lens {
    pub layers: Vec<Layer>,
    pub benchmark: &'static Benchmark,
    /// Term for history segments, from the benchmark or the memory system.
    pub segment: &'static str,
    /// Curves that some example has, in the benchmark's order; separate spans replace their sum.
    pub curves: Vec<Curve>,
    pub ratio: Option<(Curve, Curve)>,
    pub probes: Vec<String>,
    pub pooled: Vec<String>,
    /// Sorted split values; empty if the data has none.
    pub kinds: Vec<String>,
    /// Judge whose verdicts split the examples; `None` without valid verdicts.
    pub judge: Option<String>,
    /// Why existing verdicts are not used ([`Judged::no_result`]).
    pub no_result: Option<String>,
    pub drawn: Option<Drawn>,
    pub examples: Vec<Example>,
    pub skipped: Vec<Skipped>,
    options: Options,
}

impl Lens {
    pub(super) fn of(
        run: &AnalysedRun,
        options: &Options,
        verdicts: Option<&Judged<'_>>,
        no_result: Option<String>,
    ) -> Result<Self, LensError> {
        let benchmark = run.benchmark();
        let verdicts = verdicts.filter(|_| no_result.is_none());
        let rows = verdicts.into_iter().flat_map(Judged::rows);
        let (mut answered, mut skipped) = (Vec::new(), Vec::new());
        for record in join(run.cases(), run.condition(), run.answers(), rows) {
            let Some(answer) = record.row else { continue };
            let reason = match (&answer.error, &answer.attention) {
                (Some(error), _) => error.clone(),
                (None, None) => "no attention was recorded".to_owned(),
                (None, Some(file)) => {
                    let correct = record.verdicts.last().and_then(|row| row.correct);
                    let group = (
                        dimension_of(benchmark, record.probe),
                        answer.labels.get(benchmark.split).cloned(),
                        correct,
                    );
                    answered.push((answer, file, group));
                    continue;
                }
            };
            skipped.push(Skipped { case: answer.case.clone(), probe: answer.probe.clone(), reason });
        }
        let drawn = options.per_group.map(|by| {
            let of = answered.len();
            let named = answered
                .iter()
                .map(|(answer, _, group)| (group.clone(), format!("{}/{}", answer.case, answer.probe)));
            answered = by.draw(named).into_iter().map(|place| answered[place].clone()).collect();
            Drawn { by, kept: answered.len(), of }
        });
        let heads = options.heads.as_ref().map(|heads| heads.of(run)).transpose()?;
        let mut examples = Vec::<Example>::new();
        for (answer, file, group) in over(answered.into_iter(), "reading attention") {
            let path: PathBuf = run.path().join(file);
            let store = read_attention(run.path(), file)?;
            if let (Some(heads), Some(by)) = (&heads, &options.heads) {
                by.check(heads, &path, (&store.layers, store.mass.dim().1))?;
            }
            let mut example = Example::measure(&path, &store, benchmark, options.baseline, heads.as_ref())?;
            if let Some(first) = examples.first()
                && first.layers != example.layers
            {
                return Err(LensError::Layers {
                    store: path,
                    found: example.layers,
                    expected: first.layers.clone(),
                });
            }
            // the answer row is authoritative
            example.case.clone_from(&answer.case);
            example.probe.clone_from(&answer.probe);
            example.condition.clone_from(&answer.condition);
            (example.dimension, example.kind, example.correct) = group;
            example.dropped.clone_from(&answer.dropped_sessions);
            example.dropped.sort_unstable();
            examples.push(example);
        }
        let Some(first) = examples.first() else {
            let reason = match skipped.first() {
                None => "it has no answers".to_owned(),
                Some(one) => format!("{}; the first: {}", counted(skipped.len(), "question"), one.reason),
            };
            return Err(LensError::NoAttention { path: run.path().to_owned(), reason });
        };
        let probes = run.cases().iter().flat_map(|case| &case.probes);
        let probes = unique(probes.map(|probe| dimension_of(benchmark, probe)));
        let kinds = run.cases().iter().filter_map(|case| case.labels.get(benchmark.split));
        Ok(Lens {
            layers: first.layers.clone(),
            segment: run.identity().segment_of(&first.condition, benchmark),
            benchmark,
            curves: benchmark.lens.drawn_curves().collect(),
            ratio: benchmark.lens.ratio,
            pooled: pooled(benchmark, &probes),
            probes,
            kinds: sorted_unique(kinds.cloned()),
            judge: verdicts.map(|all| all.name.label.clone()),
            no_result,
            drawn,
            examples,
            skipped,
            options: options.clone(),
        })
    }

    pub fn condition(&self) -> &str {
        self.examples.first().map_or("", |example| &example.condition)
    }

    /// Measured layer kinds with their counts, in the order of [`LayerKind::ALL`].
    pub fn layer_kinds(&self) -> Vec<(LayerKind, usize)> {
        let count = |kind| self.layers.iter().filter(|layer| layer.kind == kind).count();
        LayerKind::ALL.map(|kind| (kind, count(kind))).into_iter().filter(|(_, count)| *count > 0).collect()
    }

    pub fn has_linear_layers(&self) -> bool {
        self.layers.iter().any(|layer| layer.is_linear())
    }

    pub fn has_kinds(&self) -> bool {
        self.layers.iter().any(|layer| layer.kind != LayerKind::Softmax)
    }

    /// Layer count with kinds, if mixed: `8 layers (2 softmax, 6 linear)`.
    pub fn layers_in_words(&self) -> String {
        let count = self.layers.len();
        if !self.has_kinds() {
            return format!("{count} layers");
        }
        let kinds = self.layer_kinds().into_iter().map(|(kind, count)| format!("{count} {}", kind.key()));
        format!("{count} layers ({})", kinds.collect::<Vec<_>>().join(", "))
    }

    /// Splits by verdict; only `all` without verdicts or with scores.
    pub fn splits(&self) -> &'static [Correctness] {
        match self.examples.iter().any(|example| example.correct.is_some()) {
            true => &[Correctness::Correct, Correctness::Wrong],
            false => &[Correctness::All],
        }
    }

    /// Cross product of probes, types and verdicts, each with its total.
    pub fn groups(&self) -> Vec<Group> {
        let with_all = |values: &[String]| -> Vec<Option<String>> {
            std::iter::once(None).chain(values.iter().cloned().map(Some)).collect()
        };
        let mut splits = vec![Correctness::All];
        splits.extend(self.splits().iter().filter(|split| **split != Correctness::All));
        let mut groups = Vec::new();
        for probe in with_all(&self.probes) {
            for kind in with_all(&self.kinds) {
                for &correctness in &splits {
                    groups.push(Group { probe: probe.clone(), kind: kind.clone(), correctness });
                }
            }
        }
        groups
    }

    /// Caption, for example `T1 SR wrong`.
    pub fn label(&self, group: &Group) -> String {
        let all = || (!self.kinds.is_empty()).then(|| format!("all {}s", self.benchmark.split));
        let kind = group.kind.as_ref().map(|kind| kind.replace('_', " ")).or_else(all);
        let probe = group.probe.clone().unwrap_or_else(|| self.pooled_in_words());
        let verdict = (group.correctness != Correctness::All).then(|| group.correctness.key().to_owned());
        kind.into_iter().chain([probe]).chain(verdict).collect::<Vec<_>>().join(" ")
    }

    /// Row whose attention is shown, in words: `question`, `last token`.
    pub fn viewer(&self) -> &'static str {
        match self.benchmark.lens.viewer() {
            QUERY => "question",
            "last" => "last token",
            GENERATION => "generation prompt",
            role => role,
        }
    }

    /// Caption of the pooled probes: `SR and IPA`, `all probes`.
    pub fn pooled_in_words(&self) -> String {
        match self.pooled.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) if self.pooled != self.probes => format!("{} and {last}", others.join(", ")),
            _ => format!("all {}", plural(self.benchmark.dimension.in_words())),
        }
    }

    pub(super) fn probes_of(&self, group: &Group) -> String {
        match &group.probe {
            Some(probe) => probe.clone(),
            None if self.pooled == self.probes => "all".to_owned(),
            None => self.pooled.join("+"),
        }
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn far_baselines(&self) -> impl Iterator<Item = &Example> {
        self.examples
            .iter()
            .filter(|example| example.baseline_distance().is_some_and(|distance| distance > 1))
    }

    pub fn has_noise(&self, curve: Curve, scale: Scale) -> bool {
        self.examples.iter().any(|example| example.curve(curve, Target::Noise, scale).is_some())
    }

    /// Examples excluded from a curve's means because they lack a baseline while others have one.
    pub fn without_baseline(&self) -> Vec<(Curve, Vec<&Example>)> {
        let of_curve = |curve: &Curve| {
            let has = |example: &&Example, target| example.curve(*curve, target, Scale::Mass).is_some();
            let lacks = |e: &&Example| has(e, Target::Signal) && !has(e, Target::Noise);
            let lacking: Vec<&Example> = self.examples.iter().filter(lacks).collect();
            (self.has_noise(*curve, Scale::Mass) && !lacking.is_empty()).then_some((*curve, lacking))
        };
        self.curves.iter().filter_map(of_curve).collect()
    }

    pub fn left_out_in_words(&self) -> String {
        const NAMED: usize = 5;
        let named = |(curve, examples): (Curve, Vec<&Example>)| {
            let names: Vec<String> =
                examples.iter().take(NAMED).map(|e| format!("{} {}", e.case, e.probe)).collect();
            let more = examples.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(", {more} more") } else { String::new() };
            format!("{}: {}{more}", curve.label(), names.join(", "))
        };
        let all: Vec<String> = self.without_baseline().into_iter().map(named).collect();
        if all.is_empty() {
            return String::new();
        }
        format!(
            "left out of a curve and its noise baseline, for lack of a {} beside the evidence: {} (examples.csv names all)",
            self.segment,
            all.join("; ")
        )
    }

    pub fn unit(&self) -> Unit {
        self.benchmark.unit
    }

    pub fn units(&self, group: &Group) -> usize {
        self.by_unit(group).len()
    }

    pub fn series(&self, group: &Group, statistic: Statistic, scale: Scale) -> Series {
        let (units, layers) = (self.by_unit(group), self.layers.len());
        let ratio = |e: &Example| e.ratio(self.ratio?, scale);
        let by_unit = |of: &dyn Fn(&Example) -> Option<Vec<f64>>| -> Vec<Vec<f64>> {
            let mean =
                |examples: &Vec<&Example>| mean_by_layer(examples.iter().filter_map(|e| of(e)), layers);
            units.values().filter_map(mean).collect()
        };
        let means = |numbers: Numbers, of: &dyn Fn(&Example) -> Option<Vec<f64>>| -> Vec<Estimate> {
            let rows = by_unit(of);
            (0..layers).map(|layer| Estimate::mean(rows.iter().map(|row| row[layer]), numbers)).collect()
        };
        let mut undefined = vec![0; layers];
        let estimates = match statistic {
            Statistic::Mean(curve, target) => {
                let has_noise = self.has_noise(curve, scale);
                means(Numbers::of_curve(scale), &|e| match has_noise {
                    true => e.beside_noise(curve, target, scale),
                    false => e.curve(curve, target, scale).map(<[f64]>::to_vec),
                })
            }
            Statistic::Measure(key) => {
                let measure = self.benchmark.lens.measures.iter().find(|measure| measure.key == key);
                let numbers = measure.map_or(Numbers::Signed, |measure| Numbers::of_measure(measure, scale));
                means(numbers, &|e| e.measure_of(key, scale).map(<[f64]>::to_vec))
            }
            Statistic::MeanOfRatios => {
                for ratios in units.values().flatten().filter_map(|e| ratio(e)) {
                    let places = undefined.iter_mut().zip(&ratios);
                    places.for_each(|(count, ratio)| *count += usize::from(ratio.is_none()));
                }
                let known = |ratio: Option<f64>| ratio.unwrap_or(f64::NAN);
                means(Numbers::Positive, &|e| Some(ratio(e)?.into_iter().map(known).collect()))
            }
            Statistic::RatioOfMeans => {
                let side = |curve: Curve| {
                    by_unit(&|e| ratio(e).and(e.curve(curve, Target::Signal, scale).map(<[f64]>::to_vec)))
                };
                let (over, under) =
                    self.ratio.map(|(over, under)| (side(over), side(under))).unwrap_or_default();
                let pairs = |layer: usize| over.iter().zip(&under).map(move |(a, b)| (a[layer], b[layer]));
                (0..layers).map(|layer| Estimate::ratio(pairs(layer), statistics::means::ratio)).collect()
            }
        };
        // Over the same examples as the mean. Cancelling weights have no density and no ratio.
        let signed = match (statistic, scale) {
            (Statistic::Mean(curve, target), Scale::Mass) => {
                let paired = self.has_noise(curve, Scale::Mass);
                let sums = by_unit(&|e| {
                    let sums = e.signed(curve, target)?.iter().map(|sum| sum.unwrap_or(f64::NAN)).collect();
                    (!paired || e.signed(curve, Target::Noise).is_some()).then_some(sums)
                });
                mean_by_layer(sums.iter(), layers)
            }
            _ => None,
        };
        let signed = signed.unwrap_or_else(|| vec![f64::NAN; layers]);
        let points = estimates.into_iter().zip(&self.layers).zip(undefined).zip(signed);
        let points = points.map(|(((estimate, &layer), undefined), signed)| Point {
            signed: Some(signed).filter(|signed| signed.is_finite()),
            ..estimate.at(layer, undefined)
        });
        let whose = (group.clone(), self.probes_of(group));
        Series::of_points(whose, (statistic, scale), points.collect())
    }

    /// Units in the means of a curve, and those left out because they lack a baseline while others have one.
    pub(crate) fn units_of(&self, group: &Group, curve: Curve) -> [BTreeSet<(&str, &str)>; 2] {
        let has_noise = self.has_noise(curve, Scale::Mass);
        let has = |e: &Example, target| e.curve(curve, target, Scale::Mass).is_some();
        let counts = |e: &Example| has(e, Target::Signal) && (!has_noise || has(e, Target::Noise));
        let mut units = self.by_unit(group);
        units.retain(|_, examples| examples.iter().any(|e| has(e, Target::Signal)));
        let counted = |examples: &[&Example]| examples.iter().any(|e| counts(e));
        [true, false].map(|kept| {
            let units = units.iter().filter(|(_, examples)| counted(examples) == kept);
            units.map(|(unit, _)| *unit).collect()
        })
    }

    pub(super) fn by_unit(&self, group: &Group) -> BTreeMap<UnitKey<'_>, Vec<&Example>> {
        let mut units: BTreeMap<UnitKey<'_>, Vec<&Example>> = BTreeMap::new();
        let probes = group.probe.as_ref().map_or(&self.pooled[..], std::slice::from_ref);
        let holds = |example: &&Example| {
            probes.contains(&example.dimension)
                && group.kind.as_ref().is_none_or(|kind| example.kind.as_ref() == Some(kind))
                && group.correctness.holds(example.correct)
        };
        for example in self.examples.iter().filter(holds) {
            units.entry(unit_of(self.unit(), example)).or_default().push(example);
        }
        units
    }
}

/// The benchmark's pooled probes that the run has; all if it has none of them.
fn pooled(benchmark: &Benchmark, probes: &[String]) -> Vec<String> {
    let wanted =
        |probe: &&String| benchmark.lens.pooled.is_none_or(|pooled| pooled.contains(&probe.as_str()));
    let pooled: Vec<String> = probes.iter().filter(wanted).cloned().collect();
    if pooled.is_empty() { probes.to_vec() } else { pooled }
}
