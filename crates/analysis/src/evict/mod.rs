//! Changes by an eviction of keys from the cache, by policy and budget: accuracy, update effect and contrast beside the same questions
//! with nothing evicted, and the share of keys that stayed, by role. Reads files only. Used by `table --evict`, `figures` and `report`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::dose::cell::Cell;
use crate::dose::contrasts_of;
use crate::dose::estimate::Estimate;
use crate::records::{self, Record};
use crate::results::compare::compare;
use crate::results::metrics::AccuracyTable;
use crate::results::outcomes::Outcomes;
use palimpsest_core::evict::Evict;
use palimpsest_data::benchmarks::{Benchmark, Side, side_of};
use palimpsest_data::ground::order::{entry, sorted_unique, unique};
use palimpsest_data::statistics::spread::mean;
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName};
use palimpsest_run::runs::judged::{Judged, UnknownJudge};
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::rows::{AnswerRow, VerdictRow};
use palimpsest_run::runs::store::RunFolder;

pub mod tables;

pub const ACCURACY: &str = "accuracy";
/// The update effect: half the sum of the contrasts of two twins with the values swapped.
pub const EFFECT: &str = "u";
pub const CONTRAST: &str = "contrast";
/// Share of questions of which a smaller share of the newer evidence's keys stayed than of the older evidence's.
pub const OUTLIVED: &str = "older outlives newer";
/// Share of questions of which this holds, and the replaced value is likelier than the current one.
pub const AND_LEADS: &str = "and the older value leads";
/// For answers without contrasts: share of questions of which this holds, and the answer is judged wrong.
pub const AND_WRONG: &str = "and the answer is wrong";

#[derive(Debug, thiserror::Error)]
pub enum EvictionsError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Judge(#[from] UnknownJudge),
}

/// The evicting conditions of a run, each after the condition that it is held against.
#[derive(Debug, Clone)]
pub struct Evictions {
    pub dir: PathBuf,
    pub model: String,
    pub dataset: String,
    pub judge: Option<String>,
    /// Why the judge's verdicts do not count.
    pub no_result: Option<String>,
    pub rows: Vec<EvictionRow>,
}

#[derive(Debug, Clone)]
pub struct EvictionRow {
    /// Label of the condition.
    pub condition: String,
    /// Label of the same condition with nothing evicted.
    pub base: String,
    pub evict: Option<Evict>,
    /// Questions with an answer.
    pub questions: usize,
    pub numbers: Vec<Number>,
}

#[derive(Debug, Clone)]
pub struct Number {
    /// One of this module's names, [`ACCURACY`] and a probe or facet, or `kept` and a role.
    pub name: String,
    /// Over units: questions of accuracies, otherwise cases, or items of data made of twins.
    pub value: Estimate,
    /// Of shares of questions: how many, of how many.
    pub count: Option<[usize; 2]>,
    /// The value less that of the same questions with nothing evicted.
    pub difference: Option<Estimate>,
}

impl EvictionRow {
    pub fn number(&self, name: &str) -> Option<&Number> {
        self.numbers.iter().find(|number| number.name == name)
    }
}

/// Name of the number of a role's kept keys.
pub fn kept(role: &str) -> String {
    format!("kept {role}")
}

impl Evictions {
    /// `None` for a run without evictions. The latest readable judge of the chosen ones counts.
    pub fn open(
        run: &RunFolder,
        benchmark: &'static Benchmark,
        choice: JudgeChoice<'_>,
    ) -> Result<Option<Self>, EvictionsError> {
        let identity = &run.header.identity;
        let all = identity.conditions_or_plain();
        if all.iter().all(|condition| condition.evict.is_none()) {
            return Ok(None);
        }
        let (judged, _) = run.judged_last(choice)?;
        let no_result = judged.as_ref().and_then(Judged::no_result);
        let judge = judged.filter(|_| no_result.is_none()).map(|judged| judged.name);
        let mut rows = Vec::new();
        // `run --evict` asks each condition without an eviction, too.
        for base in all.iter().filter(|one| one.evict.is_none() && one.knockout.is_none()) {
            let of_base = |one: &&Condition| {
                one.evict.is_some() && one.repetition == base.repetition && one.shows_as(base)
            };
            let evicting: Vec<&Condition> = all.iter().filter(of_base).collect();
            if evicting.is_empty() {
                continue;
            }
            let folder = run.clone().condition(&base.name)?;
            let plain = Asked::of(&folder, benchmark, base, judge);
            rows.push(plain.row(base.label(), None));
            for condition in evicting {
                let folder = run.clone().condition(&condition.name)?;
                rows.push(Asked::of(&folder, benchmark, condition, judge).row(base.label(), Some(&plain)));
            }
        }
        Ok(Some(Evictions {
            dir: run.dir.clone(),
            model: identity.model.name.clone(),
            dataset: identity.dataset.name.clone(),
            judge: judge.map(|name| name.label.clone()),
            no_result,
            rows,
        }))
    }

    pub fn bases(&self) -> Vec<&str> {
        unique(self.rows.iter().map(|row| row.base.as_str()))
    }
}

/// A number of each question or pair of twins: its unit, what pairs it with the same of another condition, and the number.
type Values<'a, K> = Vec<(&'a str, K, f64)>;

/// The questions of a condition.
struct Asked<'a> {
    benchmark: &'static Benchmark,
    condition: &'a Condition,
    judge: Option<&'a JudgeName>,
    /// With the judge's verdicts alone.
    records: Vec<Record<'a>>,
    cells: Vec<Cell>,
}

impl<'a> Asked<'a> {
    fn of(
        run: &'a RunFolder,
        benchmark: &'static Benchmark,
        condition: &'a Condition,
        judge: Option<&'a JudgeName>,
    ) -> Self {
        let verdicts = run.verdicts.iter().filter(|row| judge.is_some_and(|judge| judge.gave(row)));
        Asked {
            benchmark,
            condition,
            judge,
            records: records::join(&run.plan, &condition.name, &run.answers, verdicts),
            cells: contrasts_of(run, &condition.name),
        }
    }

    fn rows(&self) -> impl Iterator<Item = (&Record<'a>, &'a AnswerRow)> {
        self.records
            .iter()
            .filter_map(|record| Some((record, record.row?)))
            .filter(|(_, row)| row.error.is_none())
    }

    /// The unit of intervals: an item's twins are not independent.
    fn unit(&self, row: &'a AnswerRow) -> &'a str {
        let item = (!self.cells.is_empty()).then(|| row.labels.get("item")).flatten();
        item.unwrap_or(&row.case)
    }

    fn row(&self, base: &str, plain: Option<&Asked<'_>>) -> EvictionRow {
        let dimensions = unique(self.records.iter().map(|record| dimension_of(self.benchmark, record.probe)));
        let several = dimensions.iter().filter(|_| dimensions.len() > 1).map(|one| Some(one.as_str()));
        let accuracies = [None].into_iter().chain(several);
        let mut numbers: Vec<Number> = accuracies.filter_map(|of| self.accuracy(of, plain)).collect();
        numbers.extend(number(EFFECT, &self.effects(), plain.map(|plain| plain.effects())));
        numbers.extend(number(CONTRAST, &self.contrasts(), plain.map(|plain| plain.contrasts())));
        numbers.extend(self.kept());
        numbers.extend(self.outlived());
        EvictionRow {
            condition: self.condition.label().to_owned(),
            base: base.to_owned(),
            evict: self.condition.evict.clone(),
            questions: self.rows().count(),
            numbers,
        }
    }

    /// As `table` counts it, of all questions or of those of one dimension.
    fn accuracy(&self, dimension: Option<&str>, plain: Option<&Asked<'_>>) -> Option<Number> {
        let judge = self.judge?;
        let (ours, theirs) =
            (self.outcomes(judge, dimension), plain.map(|plain| plain.outcomes(judge, dimension)));
        let overall = AccuracyTable::of(&ours, &judge.label).overall;
        let estimate = |n, mean, interval| Estimate { n, mean, interval, sd: None };
        // The questions are the same, so that only an empty plan has no comparison.
        let difference = theirs.and_then(|theirs| compare(&ours, &theirs, ("", ""), true).ok());
        Some(Number {
            name: dimension.map_or(ACCURACY.to_owned(), |dimension| format!("{ACCURACY} {dimension}")),
            value: estimate(overall.expected, overall.accuracy?, overall.interval),
            count: Some([overall.correct, overall.expected]),
            difference: difference
                .map(|of| estimate(of.overall.pairs, of.overall.difference, of.overall.interval)),
        })
    }

    fn outcomes(&self, judge: &JudgeName, dimension: Option<&str>) -> Outcomes<'a> {
        let is_meant = |record: &&Record<'a>| {
            dimension.is_none_or(|dimension| dimension_of(self.benchmark, record.probe) == dimension)
        };
        let records: Vec<Record<'a>> = self.records.iter().filter(is_meant).cloned().collect();
        Outcomes::of(self.benchmark, &records, &judge.judge)
    }

    fn effects(&self) -> Values<'_, (&str, &BTreeMap<String, String>)> {
        let known = self.cells.iter().filter_map(|cell| Some((cell, cell.u()?)));
        known.map(|(cell, u)| (&*cell.item, (&*cell.probe, &cell.labels), u)).collect()
    }

    fn contrasts(&self) -> Values<'_, (&str, &str)> {
        let of = |(_, row): (&Record<'a>, &'a AnswerRow)| {
            Some((self.unit(row), (&*row.case, &*row.probe), updated(row)?))
        };
        self.rows().filter_map(of).collect()
    }

    /// Kept shares: of all keys, of all sessions, of the older and the newer evidence, of other roles.
    fn kept(&self) -> Vec<Number> {
        let mut roles = sorted_unique(self.rows().flat_map(|(_, row)| row.kept.keys().map(String::as_str)));
        roles.sort_by_key(|role| match (*role, side_of(role)) {
            ("all", _) => 0,
            ("session", _) => 1,
            (_, Some(Side::Older)) => 2,
            (_, Some(Side::Newer)) => 3,
            _ => 4,
        });
        let of = |role: &str| {
            let shares = self.rows().filter_map(|(_, row)| Some((self.unit(row), (), *row.kept.get(role)?)));
            let value = estimate(&shares.collect::<Vec<_>>(), Estimate::of)?;
            Some(Number { name: kept(role), value, count: None, difference: None })
        };
        roles.into_iter().filter_map(of).collect()
    }

    /// [`OUTLIVED`], and how often the answer then follows the older evidence.
    fn outlived(&self) -> Vec<Number> {
        let side = |row: &AnswerRow, side: Side| {
            let roles = self.benchmark.lens.sides.iter().filter(|(_, known)| *known == side);
            mean(&roles.filter_map(|(role, _)| row.kept.get(*role).copied()).collect::<Vec<_>>())
        };
        let both = self.rows().filter_map(|(record, row)| {
            let (older, newer) = (side(row, Side::Older)?, side(row, Side::Newer)?);
            Some((record, row, newer < older))
        });
        let both: Vec<(&Record<'a>, &'a AnswerRow, bool)> = both.collect();
        let by_contrast = both.iter().any(|(_, row, _)| updated(row).is_some());
        let share = |name: &str, holds: &dyn Fn(&Record<'a>, &AnswerRow, bool) -> Option<bool>| {
            let held = both.iter().filter_map(|(record, row, outlives)| {
                Some((self.unit(row), (), f64::from(u8::from(holds(record, row, *outlives)?))))
            });
            let held: Vec<_> = held.collect();
            let count = [held.iter().filter(|(.., one)| *one == 1.0).count(), held.len()];
            let value = estimate(&held, Estimate::share)?;
            Some(Number { name: name.to_owned(), value, count: Some(count), difference: None })
        };
        let leads = |_: &Record<'a>, row: &AnswerRow, outlives| Some(outlives && updated(row)? < 0.0);
        let wrong = |record: &Record<'a>, _: &AnswerRow, outlives| {
            let verdict = record.verdict(self.judge?)?;
            Some(outlives && worth(self.benchmark, verdict)? < 1.0)
        };
        let then = match by_contrast {
            true => share(AND_LEADS, &leads),
            false => share(AND_WRONG, &wrong),
        };
        share(OUTLIVED, &|_, _, outlives| Some(outlives)).into_iter().chain(then).collect()
    }
}

/// The contrast of the current value against the one that it replaced; `None` if none was replaced.
fn updated(row: &AnswerRow) -> Option<f64> {
    row.contrast.as_ref().filter(|contrast| contrast.stale.is_some()).map(|contrast| contrast.value)
}

fn worth(benchmark: &Benchmark, verdict: &VerdictRow) -> Option<f64> {
    verdict.worth(benchmark.rubric().verdict.most().unwrap_or(1))
}

/// A mean of any sign over units, and its paired difference.
fn number<K: Ord>(name: &str, ours: &Values<'_, K>, theirs: Option<Values<'_, K>>) -> Option<Number> {
    let difference = theirs.and_then(|theirs| {
        let theirs: BTreeMap<&K, f64> = theirs.iter().map(|(_, key, value)| (key, *value)).collect();
        let paired = ours.iter().filter_map(|(unit, key, value)| Some((*unit, (), value - theirs.get(key)?)));
        estimate(&paired.collect::<Vec<_>>(), Estimate::of)
    });
    Some(Number { name: name.to_owned(), value: estimate(ours, Estimate::of)?, count: None, difference })
}

/// Of the units' means.
fn estimate<K>(values: &Values<'_, K>, of: impl Fn(&[f64]) -> Option<Estimate>) -> Option<Estimate> {
    let mut units: Vec<(&str, Vec<f64>)> = Vec::new();
    for (unit, _, value) in values {
        entry(&mut units, |(known, _)| known == unit, || (*unit, Vec::new())).1.push(*value);
    }
    of(&units.iter().filter_map(|(_, values)| mean(values)).collect::<Vec<_>>())
}
