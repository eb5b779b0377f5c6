//! A run under one or more conditions, and its measures over cases.
//!
//! Each condition has its own [`Lens`]. A measure ([`LensSpec::measures`](palimpsest_data::benchmarks::LensSpec::measures)) is taken per
//! condition, or, if it pairs conditions, as the mean over them for probes measured under all. The benchmark groups examples
//! ([`LensSpec::groupings`](palimpsest_data::benchmarks::LensSpec::groupings)) by a probe's verdicts under every condition. Units are those
//! of [`super::group`].

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use ndarray::Array2;

use super::band::Numbers;
use super::group::{UnitKey, unit_of};
use super::layers::mean_by_layer;
use super::measured::LIFT;
use super::{AnalysedRun, Example, Group, Layer, Lens, LensError, Options, Selection, Series, Statistic};
use crate::records::join;
use palimpsest_data::benchmarks::{ALL, Benchmark, Grouping, Judged, Measure, Scale, Seen};
use palimpsest_data::ground::order::sorted_unique;
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::judged;
use palimpsest_run::runs::store::RunFolder;

/// Lift of the evidence, comparable across benchmarks ([`LensSpec::evidence_lift`](palimpsest_data::benchmarks::LensSpec::evidence_lift)).
pub const EVIDENCE_LIFT: Measure = Measure {
    key: LIFT,
    label: "evidence lift",
    about: "attention to the evidence over attention to its noise baselines",
    ..Measure::LIFT
};

const BY_VERDICT: Grouping = Grouping {
    key: "verdict",
    label: "verdict",
    of: |seen| Some((String::new(), seen.verdict().to_owned())),
};

#[derive(Debug, Clone)]
pub struct Condition {
    pub name: String,
    pub run: AnalysedRun,
    /// Judge label, even if its verdicts are no result; `None` without verdicts.
    pub judge: Option<String>,
    pub lens: Option<Lens>,
    pub without: Option<String>,
}

impl Condition {
    pub fn verdicts(&self) -> Option<judged::Judged<'_>> {
        self.run.verdicts_as(self.judge.as_deref()?)
    }
}

#[derive(Debug, Clone)]
pub struct Study {
    pub folder: RunFolder,
    pub benchmark: &'static Benchmark,
    pub conditions: Vec<Condition>,
    /// Judge whose verdicts group the examples; `None` without valid verdicts.
    pub judge: Option<String>,
    pub no_result: Option<String>,
    pub selection: Selection,
    probes: HashMap<(String, String), Known>,
    options: Options,
}

#[derive(Debug, Clone, Default)]
struct Known {
    labels: BTreeMap<String, String>,
    facets: BTreeMap<String, String>,
    judged: BTreeMap<String, Judged>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MeasureRow {
    /// Row label ([`Grouping::of`]); empty if there is only one.
    pub row: String,
    /// Stored condition name; `None` for a measure that pairs conditions.
    pub condition: Option<String>,
    pub lines: Vec<MeasureLine>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MeasureLine {
    /// Line label ([`Grouping::of`]).
    pub word: String,
    /// Number of examples: one per probe of a case; a pair counts once.
    pub examples: usize,
    pub series: Series,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HeadMap {
    pub key: &'static str,
    pub condition: Option<String>,
    pub n: usize,
    pub layers: Vec<usize>,
    /// (layers, heads); NaN where no case has a value.
    pub mean: Array2<f64>,
}

impl Study {
    /// Term for history segments: the benchmark's, or the memory systems' if all conditions show memories.
    pub fn segment(&self) -> &'static str {
        let mut words =
            self.conditions.iter().map(|one| one.run.identity().segment_of(&one.name, self.benchmark));
        match words.next() {
            Some(first) if words.all(|word| word == first) => first,
            _ => self.benchmark.segment,
        }
    }

    /// Opens a run under the named conditions; without names, under all that repeat no other.
    pub fn open(path: &Path, conditions: &[String], options: &Options) -> Result<Self, LensError> {
        Study::open_among(&ALL, path, conditions, options)
    }

    /// [`Study::open`], restricted to these benchmarks.
    pub fn open_among(
        among: &[&'static Benchmark],
        path: &Path,
        conditions: &[String],
        options: &Options,
    ) -> Result<Self, LensError> {
        let study = Study::read(among, path, conditions, options)?;
        if study.measured().next().is_some() {
            return Ok(study);
        }
        let reasons = study.conditions.iter().filter_map(|condition| condition.without.clone());
        let reason = sorted_unique(reasons).join("; ");
        Err(LensError::NoAttention { path: path.to_owned(), reason })
    }

    /// [`Study::open_among`], also for runs without attention.
    pub fn read(
        among: &[&'static Benchmark],
        path: &Path,
        conditions: &[String],
        options: &Options,
    ) -> Result<Self, LensError> {
        let folder = RunFolder::read(path)?;
        let selection = Selection::of(&folder.header.identity, path, conditions)?;
        Study::of(among, folder, selection, options)
    }

    /// Opens all conditions, also without attention. Conditions that repeat another have answers and verdicts only.
    pub fn whole(among: &[&'static Benchmark], path: &Path, options: &Options) -> Result<Self, LensError> {
        let folder = RunFolder::read(path)?;
        let selection = Selection::all(&folder.header.identity, path)?;
        Study::of(among, folder, selection, options)
    }

    fn of(
        among: &[&'static Benchmark],
        folder: RunFolder,
        selection: Selection,
        options: &Options,
    ) -> Result<Self, LensError> {
        let all = AnalysedRun::of_all(among, &folder)?;
        let verdicts = verdicts_of(&all, options.judge.as_deref())?;
        let no_result = verdicts.iter().flatten().find_map(judged::Judged::no_result);
        let mut probes: HashMap<(String, String), Known> = HashMap::new();
        for ((name, run), verdicts) in all.iter().zip(&verdicts) {
            let rows = verdicts.iter().flat_map(judged::Judged::rows);
            for record in join(run.cases(), run.condition(), run.answers(), rows) {
                let key = (record.case.case.clone(), record.probe.id.clone());
                let known = probes.entry(key).or_default();
                known.labels.clone_from(&record.case.labels);
                known.facets.clone_from(&record.probe.facets);
                let Some(answer) = record.row else { continue };
                let verdict = record.verdicts.last();
                let verdict = verdict.filter(|row| row.is_clean() && no_result.is_none());
                let judged = Judged {
                    answer: answer.answer.clone(),
                    correct: verdict.and_then(|row| row.correct),
                    score: verdict.and_then(|row| row.score),
                    choice: verdict.and_then(|row| row.choice.clone()),
                };
                known.judged.insert(name.clone(), judged);
            }
        }
        let label =
            |verdicts: &Option<judged::Judged<'_>>| verdicts.as_ref().map(|all| all.name.label.clone());
        let judges: Vec<Option<String>> = verdicts.iter().map(label).collect();
        let study_judge = judges.iter().flatten().next().cloned();
        let mut parts = Vec::new();
        for ((name, run), judge) in all.into_iter().zip(judges) {
            if !selection.names.contains(&name) {
                continue;
            }
            if selection.unmeasured.contains(&name) {
                let same =
                    "it puts the same questions again, which are attended to in the same way".to_owned();
                parts.push(Condition { name, run, judge, lens: None, without: Some(same) });
                continue;
            }
            let verdicts = judge.as_deref().and_then(|judge| run.verdicts_as(judge));
            let (lens, without) = match Lens::of(&run, options, verdicts.as_ref(), no_result.clone()) {
                Ok(lens) => (Some(lens), None),
                Err(LensError::NoAttention { reason, .. }) => (None, Some(reason)),
                Err(error) => return Err(error),
            };
            parts.push(Condition { name, run, judge, lens, without });
        }
        let Some(first) = parts.first() else {
            return Err(LensError::NoAttention {
                path: folder.dir,
                reason: "it has no conditions".to_owned(),
            });
        };
        Ok(Study {
            folder,
            benchmark: first.run.benchmark(),
            conditions: parts,
            judge: study_judge.filter(|_| no_result.is_none()),
            no_result,
            selection,
            probes,
            options: options.clone(),
        })
    }

    pub fn measured(&self) -> impl Iterator<Item = (&Condition, &Lens)> {
        self.conditions.iter().filter_map(|condition| Some((condition, condition.lens.as_ref()?)))
    }

    pub fn condition_in_words(&self, name: &str) -> String {
        let mut all = self.folder.header.identity.conditions_or_plain().iter();
        let condition = all.find(|condition| condition.name == name);
        condition.map(|condition| condition.in_words(self.benchmark)).unwrap_or_default()
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn layers(&self) -> &[Layer] {
        self.measured().next().map(|(_, lens)| lens.layers.as_slice()).unwrap_or_default()
    }

    pub fn measures(&self) -> Vec<&'static Measure> {
        let some = |measure: &&Measure| {
            let mut examples = self.measured().flat_map(|(_, lens)| &lens.examples);
            examples.any(|e| Scale::ALL.iter().any(|scale| e.measure_of(measure.key, *scale).is_some()))
        };
        self.benchmark.lens.measures.iter().filter(some).collect()
    }

    pub fn groupings(&self) -> &'static [Grouping] {
        match self.benchmark.lens.groupings {
            [] => &[BY_VERDICT],
            some => some,
        }
    }

    /// A measure over layers: one row per group and condition, one line per word, in the run's and the grouping's order. Empty ones are
    /// omitted.
    pub fn rows(&self, measure: &Measure, grouping: &Grouping, scale: Scale) -> Vec<MeasureRow> {
        type Lines<'a> = BTreeMap<String, BTreeMap<UnitKey<'a>, Vec<Vec<f64>>>>;
        let mut rows: BTreeMap<(String, usize), Lines<'_>> = BTreeMap::new();
        for (place, example, values) in self.values(measure, scale) {
            let condition = (!measure.is_paired()).then_some(example.condition.as_str());
            let Some((row, line)) = self.seen(example, condition).and_then(|seen| (grouping.of)(&seen))
            else {
                continue;
            };
            let lines = rows.entry((row, place)).or_default();
            lines.entry(line).or_default().entry(self.unit_of(example)).or_default().push(values);
        }
        let rows = rows.into_iter().map(|((row, place), lines)| {
            let lines = lines.into_iter().map(|(word, cases)| MeasureLine {
                examples: cases.values().map(Vec::len).sum(),
                series: self.series(measure, scale, &word, &cases),
                word,
            });
            let condition = (!measure.is_paired()).then(|| self.conditions[place].name.clone());
            MeasureRow { row, condition, lines: lines.filter(|line| line.series.n > 0).collect() }
        });
        rows.filter(|row| !row.lines.is_empty()).collect()
    }

    pub fn overall(&self, measure: &Measure, scale: Scale) -> Vec<MeasureRow> {
        let all = Grouping { key: "all", label: "all", of: |_| Some((String::new(), "all".to_owned())) };
        self.rows(measure, &all, scale)
    }

    /// A per-head measure: mean over cases, by condition unless paired.
    pub fn heads(&self, measure: &'static Measure) -> Vec<HeadMap> {
        let mut places: BTreeMap<usize, BTreeMap<UnitKey<'_>, Vec<Array2<f64>>>> = BTreeMap::new();
        let mut layers = Vec::new();
        for (place, example, maps) in self.of_examples(measure, |example| {
            let (of, map) = example.by_head(measure.key)?;
            Some((of.to_vec(), map.clone()))
        }) {
            layers.clone_from(&maps[0].0);
            let sum = maps.iter().skip(1).fold(maps[0].1.clone(), |sum, (_, map)| sum + map);
            let mean = sum / maps.len() as f64;
            places.entry(place).or_default().entry(self.unit_of(example)).or_default().push(mean);
        }
        let maps = places.into_iter().map(|(place, cases)| {
            let of_case: Vec<Array2<f64>> = cases.values().map(|maps| mean_of_maps(maps)).collect();
            HeadMap {
                key: measure.key,
                condition: (!measure.is_paired()).then(|| self.conditions[place].name.clone()),
                n: of_case.len(),
                layers: layers.clone(),
                mean: mean_of_maps(&of_case),
            }
        });
        maps.collect()
    }

    /// A measure's values with their condition index; a paired measure has one per probe, the mean over its conditions at layers defined in
    /// all.
    fn values(&self, measure: &Measure, scale: Scale) -> Vec<(usize, &Example, Vec<f64>)> {
        let of = |example: &Example| example.measure_of(measure.key, scale).map(<[f64]>::to_vec);
        let found = self.of_examples(measure, of).into_iter().map(|(place, example, all)| {
            let layers = self.layers().len();
            let mean = |layer: usize| {
                all.iter().map(|values| values.get(layer).copied().unwrap_or(f64::NAN)).sum::<f64>()
                    / all.len() as f64
            };
            (place, example, (0..layers).map(mean).collect())
        });
        found.collect()
    }

    /// Examples grouped for a measure: one probe under each paired condition, or single examples.
    fn of_examples<'a, T>(
        &'a self,
        measure: &Measure,
        of: impl Fn(&Example) -> Option<T>,
    ) -> Vec<(usize, &'a Example, Vec<T>)> {
        let conditions = self.conditions.iter().enumerate();
        let lenses = conditions.filter_map(|(place, condition)| Some((place, condition.lens.as_ref()?)));
        let all = lenses.flat_map(|(place, lens)| lens.examples.iter().map(move |example| (place, example)));
        let wanted =
            all.filter(|(_, e)| measure.paired.is_empty() || measure.paired.contains(&e.condition.as_str()));
        if !measure.is_paired() {
            return wanted.filter_map(|(place, e)| Some((place, e, vec![of(e)?]))).collect();
        }
        let mut pairs: BTreeMap<(&str, &str), (&'a Example, Vec<T>)> = BTreeMap::new();
        for (_, example) in wanted {
            if let Some(value) = of(example) {
                let key = (example.case.as_str(), example.probe.as_str());
                pairs.entry(key).or_insert_with(|| (example, Vec::new())).1.push(value);
            }
        }
        let whole = pairs.into_values().filter(|(_, values)| values.len() == measure.paired.len());
        whole.map(|(example, values)| (0, example, values)).collect()
    }

    fn unit_of<'a>(&self, example: &'a Example) -> UnitKey<'a> {
        unit_of(self.benchmark.unit, example)
    }

    fn seen<'a>(&'a self, example: &Example, condition: Option<&'a str>) -> Option<Seen<'a>> {
        let known = self.probes.get(&(example.case.clone(), example.probe.clone()))?;
        Some(Seen { labels: &known.labels, facets: &known.facets, condition, judged: &known.judged })
    }

    fn series(
        &self,
        measure: &Measure,
        scale: Scale,
        line: &str,
        cases: &BTreeMap<UnitKey<'_>, Vec<Vec<f64>>>,
    ) -> Series {
        let layers = self.layers();
        let of_case = |values: &Vec<Vec<f64>>| mean_by_layer(values.iter().map(Vec::as_slice), layers.len());
        let rows: Vec<Vec<f64>> = cases.values().filter_map(of_case).collect();
        let what = (Statistic::Measure(measure.key), scale);
        let numbers = Numbers::of_measure(measure, scale);
        Series::of_rows((Group::all(), line.to_owned()), what, layers, (&rows, numbers))
    }
}

/// Verdicts under each condition by one judge: the named one, or the latest of the first condition with verdicts. Conditions may lack that
/// judge.
fn verdicts_of<'a>(
    all: &'a [(String, AnalysedRun)],
    judge: Option<&str>,
) -> Result<Vec<Option<judged::Judged<'a>>>, LensError> {
    let mut chosen = judge.map(str::to_owned);
    let mut found = Vec::new();
    for (_, run) in all {
        let of_run = verdicts_by(run, chosen.as_deref());
        // Use one rubric for all if the name is ambiguous.
        chosen = of_run.as_ref().map(|judged| judged.name.label.clone()).or(chosen);
        found.push(of_run);
    }
    if let (Some(judge), Some((_, first)), true) = (judge, all.first(), found.iter().all(Option::is_none)) {
        let known = if first.judges().is_empty() { "none".to_owned() } else { first.judges().join(", ") };
        return Err(LensError::UnknownJudge {
            path: first.path().to_owned(),
            judge: judge.to_owned(),
            known,
        });
    }
    Ok(found)
}

/// Verdicts of a judge (a name, or with its rubric in brackets), or of the latest judge with verdicts; of several rubrics, the latest.
fn verdicts_by<'a>(run: &'a AnalysedRun, judge: Option<&str>) -> Option<judged::Judged<'a>> {
    let mut all = run.judged();
    let choice = JudgeChoice::of(judge);
    let exact = all.iter().position(|judged| Some(judged.name.label.as_str()) == judge);
    let meant = |judged: &judged::Judged<'_>| {
        choice.takes(&judged.name.label) && (judge.is_some() || judged.said_something())
    };
    let at = exact.or_else(|| all.iter().rposition(meant))?;
    Some(all.swap_remove(at))
}

fn mean_of_maps(maps: &[Array2<f64>]) -> Array2<f64> {
    let shape = maps.first().map_or((0, 0), Array2::dim);
    let mean =
        mean_by_layer(maps.iter().map(|map| map.iter().copied().collect::<Vec<_>>()), shape.0 * shape.1);
    mean.and_then(|mean| Array2::from_shape_vec(shape, mean).ok()).unwrap_or_default()
}
