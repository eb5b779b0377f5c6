//! Paired difference of a curve between two conditions.
//!
//! Pairs questions measured under both conditions, per layer where both have a value, and averages them within a unit
//! ([`palimpsest_data::benchmarks::Benchmark::unit`]). The difference is the mean over units of second minus first; the interval is over
//! the units' differences, so that difficulty of a question cancels.

use std::collections::BTreeMap;

use super::band::Numbers;
use super::layers::mean_by_layer;
use super::selection::joined;
use super::{Curve, Example, Group, Lens, Scale, Series, Statistic, Study, Target};
use palimpsest_data::ground::csv::{CsvTable, list};
use palimpsest_run::runs::condition::label;

#[derive(Debug, Clone)]
pub struct Difference {
    pub curve: Curve,
    pub scale: Scale,
    pub conditions: [String; 2],
    pub questions: usize,
    /// Means under each condition, over the paired questions.
    pub sides: [Series; 2],
    pub difference: Series,
}

impl Study {
    /// Condition pairs: plain, or the first if plain is absent, with every other.
    pub fn pairs(&self) -> Vec<[&Lens; 2]> {
        let all: Vec<(&str, &Lens)> = self.measured().map(|(one, lens)| (one.name.as_str(), lens)).collect();
        let base = all.iter().find(|(name, _)| name.is_empty()).or(all.first()).map(|(name, _)| *name);
        let first = all.iter().find(|(name, _)| Some(*name) == base);
        let others = all.iter().filter(|(name, _)| Some(*name) != base);
        others.filter_map(|(_, lens)| Some([first?.1, *lens])).collect()
    }

    /// Differences of each pair and curve, over all pooled questions. Curves without paired questions are omitted.
    pub fn differences(&self, scale: Scale) -> Vec<Difference> {
        let mut all = Vec::new();
        for pair in self.pairs() {
            all.extend(pair[0].curves.iter().filter_map(|curve| difference(pair, *curve, scale)));
        }
        all
    }
}

/// Returns `None` without paired questions.
fn difference(pair: [&Lens; 2], curve: Curve, scale: Scale) -> Option<Difference> {
    let [first, second] = pair;
    if first.layers != second.layers {
        return None;
    }
    let layers = &first.layers;
    let group = Group::all();
    let [ours, theirs] = pair.map(|lens| lens.by_unit(&group));
    let (mut rows, mut questions) = ([const { Vec::<Vec<f64>>::new() }; 3], 0);
    for (unit, examples) in &ours {
        let Some(others) = theirs.get(unit) else { continue };
        let others: BTreeMap<&str, &Example> = others.iter().map(|e| (e.probe.as_str(), *e)).collect();
        let values = |example: &Example| example.curve(curve, Target::Signal, scale).map(<[f64]>::to_vec);
        let pairs: Vec<[Vec<f64>; 2]> = (examples.iter())
            .filter_map(|example| Some([values(example)?, values(others.get(example.probe.as_str())?)?]))
            .collect();
        questions += pairs.len();
        let mean = |of: fn(f64, f64) -> f64| {
            let both = |(a, b): (&f64, &f64)| if (a + b).is_finite() { of(*a, *b) } else { f64::NAN };
            let of_pair = |[a, b]: &[Vec<f64>; 2]| a.iter().zip(b).map(both).collect::<Vec<f64>>();
            mean_by_layer(pairs.iter().map(of_pair), layers.len())
        };
        rows[0].extend(mean(|a, _| a));
        rows[1].extend(mean(|_, b| b));
        rows[2].extend(mean(|a, b| b - a));
    }
    let of = |rows: &Vec<Vec<f64>>, numbers: Numbers| {
        let whose = (group.clone(), first.probes_of(&group));
        Series::of_rows(whose, (Statistic::Mean(curve, Target::Signal), scale), layers, (rows, numbers))
    };
    let curve_of = Numbers::of_curve(scale);
    let (a, b, apart) = (of(&rows[0], curve_of), of(&rows[1], curve_of), of(&rows[2], Numbers::Signed));
    let conditions = pair.map(|lens| lens.condition().to_owned());
    (apart.n > 0).then_some(Difference {
        curve,
        scale,
        conditions,
        questions,
        sides: [a, b],
        difference: apart,
    })
}

/// One row per curve, condition pair and layer. `n` counts units, `questions` paired questions; `difference` is `b` minus `a`; `cases`
/// lists single differences if there are too few for an interval.
pub fn differences_csv(differences: &[Difference]) -> Vec<u8> {
    let rows = differences.iter().flat_map(|one| {
        let [a, b] = &one.sides;
        let points = one.difference.points.iter().zip(&a.points).zip(&b.points);
        points.map(move |((point, a), b)| (one, point, a, b))
    });
    CsvTable::of(rows)
        .column("curve", |(one, ..)| one.curve.key())
        .column("scale", |(one, ..)| one.scale.key())
        .column("layer", |(_, point, ..)| point.layer.index)
        .column("layer_kind", |(_, point, ..)| point.layer.kind.key())
        .column("condition_a", |(one, ..)| label(&one.conditions[0]))
        .column("condition_b", |(one, ..)| label(&one.conditions[1]))
        .column("n", |(_, point, ..)| point.n)
        .column("questions", |(one, ..)| one.questions)
        .optional("mean_a", |(.., a, _)| a.value)
        .optional("mean_b", |(.., b)| b.value)
        .optional("difference", |(_, point, ..)| point.value)
        .optional("low", |(_, point, ..)| point.low())
        .optional("high", |(_, point, ..)| point.high())
        .column("cases", |(_, point, ..)| list(&point.cases))
        .column("condition", |(one, ..)| joined(&one.conditions))
        .bytes()
}
