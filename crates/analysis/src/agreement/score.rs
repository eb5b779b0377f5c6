//! Compares ratings with verdicts: STALE's table 7 for right/wrong answers; for scores exact agreement, agreement within one, and plain and
//! quadratic-weighted kappa.
//!
//! As in the paper, shares are percentages with two decimals and kappa has four. An undefined number prints as a dash.

use anyhow::{bail, ensure};
use serde_json::{Value, json};

use super::key::{FORMAT_1, Key, KeyItem};
use super::ratings::Ratings;
use palimpsest_core::digest::sha256;
use palimpsest_data::benchmarks::{Table, named};
use palimpsest_data::ground::order::sorted_unique;
use palimpsest_data::ground::sheet::{Columns, Format, Sheet};
use palimpsest_data::statistics::agreement::{Agreement, ScoreAgreement};
use palimpsest_data::statistics::kappa::Weights;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName};
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::rows::AnswerKey;
use palimpsest_run::runs::store::RunFolder;

#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    pub judge: String,
    pub judge_short: String,
    pub condition: String,
    /// Other judges of the first run with the same rubric; not counted here.
    pub other_judges: Vec<String>,
    pub items: usize,
    /// Items without a verdict; excluded from every count.
    pub without_verdict: usize,
    /// Items with a fractional score, which raters cannot give; excluded from every count.
    pub between: usize,
    pub raters: Vec<RaterScore>,
    pub pairs: Vec<Compared>,
    scores: bool,
    caveats: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RaterScore {
    pub rater: String,
    /// Items rated unsure; excluded from the counts.
    pub unsure: usize,
    pub missing: usize,
    pub subsets: Vec<Compared>,
}

/// Group and value of a subset, with the rater as the reference; or two raters.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    pub names: [String; 2],
    pub counts: Counts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts {
    RightOrWrong(Agreement),
    Scores(ScoreAgreement),
}

impl Counts {
    /// Counts (reference, other) pairs: scores up to `most`, or 1 for right and 0 for wrong.
    fn of(pairs: impl IntoIterator<Item = (usize, usize)>, most: Option<u32>) -> Self {
        let pairs = pairs.into_iter();
        match most {
            Some(most) => Counts::Scores(ScoreAgreement::count(pairs, most as usize)),
            None => Counts::RightOrWrong(Agreement::count(pairs.map(|(a, b)| (a == 1, b == 1)))),
        }
    }

    /// Column of the table, field of the JSON, number unrounded and as shown.
    fn numbers(&self) -> Vec<(&'static str, &'static str, (Value, String))> {
        let rounded = |number: Option<f64>, factor: f64, digits: usize| {
            let shown = number.map(|number| format!("{:.digits$}", factor * number));
            (json!(number), shown.unwrap_or_else(|| "-".to_owned()))
        };
        let count = |count: usize| (json!(count), count.to_string());
        let share = |share| rounded(share, 100.0, 2);
        let kappa = |kappa| rounded(kappa, 1.0, 4);
        let mean = |mean| rounded(mean, 1.0, 2);
        match self {
            Counts::RightOrWrong(counts) => vec![
                ("N", "n", count(counts.n())),
                ("agree.", "agreement", share(counts.agreement())),
                ("kappa", "kappa", kappa(counts.kappa())),
                ("prec.", "precision", share(counts.precision())),
                ("recall", "recall", share(counts.recall())),
                ("F1", "f1", share(counts.f1())),
                ("FPR", "false_positive_rate", share(counts.false_positive_rate())),
                ("FNR", "false_negative_rate", share(counts.false_negative_rate())),
            ],
            Counts::Scores(counts) => vec![
                ("N", "n", count(counts.n())),
                ("agree.", "agreement", share(counts.agreement())),
                ("within 1", "within_1", share(counts.within(1))),
                ("kappa", "kappa", kappa(counts.kappa(Weights::Plain))),
                ("quadr. kappa", "kappa_quadratic", kappa(counts.kappa(Weights::Quadratic))),
                ("mean rater", "mean_rater", mean(counts.means().map(|means| means.0))),
                ("mean judge", "mean_judge", mean(counts.means().map(|means| means.1))),
            ],
        }
    }

    fn confusion(&self) -> Vec<(&'static str, usize)> {
        let Counts::RightOrWrong(counts) = self else { return Vec::new() };
        vec![
            ("true_positive", counts.true_positive),
            ("false_positive", counts.false_positive),
            ("false_negative", counts.false_negative),
            ("true_negative", counts.true_negative),
        ]
    }

    /// Unrounded, after what names them.
    fn json(&self, keys: [&str; 2], names: &[String; 2]) -> Value {
        let named = keys.into_iter().zip(names).map(|(key, name)| (key.to_owned(), json!(name)));
        let numbers = self.numbers().into_iter().map(|(_, key, (number, _))| (key.to_owned(), number));
        let confusion = self.confusion().into_iter().map(|(key, count)| (key.to_owned(), json!(count)));
        let table = match self {
            Counts::RightOrWrong(_) => None,
            Counts::Scores(counts) => Some(("table".to_owned(), json!(counts.table))),
        };
        Value::Object(named.chain(numbers).chain(confusion).chain(table).collect())
    }
}

/// Scores `raters` against the requested judge, or the latest, with the raters' rubric. `runs` are the key's runs, in order, restricted to
/// their condition.
pub fn score(
    key: &Key,
    runs: &[RunFolder],
    judge: JudgeChoice<'_>,
    raters: &[Ratings],
) -> anyhow::Result<Scored> {
    let judged = judges(key, runs, judge)?;
    let verdict = |item: &KeyItem| -> anyhow::Result<Option<f64>> {
        check_answer(&runs[item.run], item)?;
        let row = judged[item.run].0.get(AnswerKey::of(&item.case, &item.probe, &key.condition));
        Ok(row.filter(|row| row.error.is_none()).and_then(|row| match key.most {
            Some(_) => row.score,
            None => row.correct.map(|correct| f64::from(u8::from(correct))),
        }))
    };
    let verdicts = key.items.iter().map(verdict).collect::<anyhow::Result<Vec<_>>>()?;
    let without_verdict = verdicts.iter().filter(|verdict| verdict.is_none()).count();
    let whole = |verdict: Option<f64>| Some(verdict.filter(|score| score.fract() == 0.0)? as usize);
    let verdicts: Vec<Option<usize>> = verdicts.into_iter().map(whole).collect();
    let between = verdicts.iter().filter(|verdict| verdict.is_none()).count() - without_verdict;
    let rater = |ratings: &Ratings| {
        let given: Vec<_> = key.items.iter().map(|item| ratings.get(&item.item)).collect();
        let rated: Vec<(&KeyItem, (usize, usize))> = key
            .items
            .iter()
            .zip(given.iter().zip(&verdicts))
            .filter_map(|(item, (rating, verdict))| Some((item, (rating.as_ref()?.given()?, (*verdict)?))))
            .collect();
        RaterScore {
            rater: ratings.rater.clone(),
            unsure: given.iter().flatten().filter(|rating| rating.given().is_none()).count(),
            missing: given.iter().filter(|rating| rating.is_none()).count(),
            subsets: subsets(key, &rated),
        }
    };
    let mut pairs = Vec::new();
    for (at, first) in raters.iter().enumerate() {
        for second in &raters[at + 1..] {
            let both =
                |item: &KeyItem| Some((first.get(&item.item)?.given()?, second.get(&item.item)?.given()?));
            let counts = Counts::of(key.items.iter().filter_map(both), key.most);
            pairs.push(Compared { names: [first.rater.clone(), second.rater.clone()], counts });
        }
    }
    let shown = judged.first().map(|(judged, _)| judged.name);
    let others = runs.iter().take(1).flat_map(|run| {
        run.judges().iter().filter(|name| Some(*name) != shown && shared(key, run, name).is_some())
    });
    let is_shared = |how: Shared| judged.iter().any(|(_, shared)| *shared == how);
    let alike = judged.windows(2).all(|two| two[0].0.name.digest == two[1].0.name.digest);
    let caveats = [
        (
            is_shared(Shared::Unknown),
            "verdicts of version 0.1.0 do not name their rubric; it may differ from the raters'",
        ),
        (is_shared(Shared::Earlier), "the judge used an earlier wording of the raters' rubric"),
        (!alike, "the judge was not asked in one way for all runs: the place of reasons or thoughts differs"),
    ];
    Ok(Scored {
        judge: shown.map_or_else(String::new, |name| name.label.clone()),
        judge_short: shown.map_or_else(String::new, JudgeName::short_label),
        condition: label(&key.condition).to_owned(),
        other_judges: others.map(|name| name.label.clone()).collect(),
        items: key.items.len(),
        without_verdict,
        between,
        raters: raters.iter().map(rater).collect(),
        pairs,
        scores: key.most.is_some(),
        caveats: caveats.into_iter().filter(|(holds, _)| *holds).map(|(_, caveat)| caveat).collect(),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Same,
    /// Same name, earlier wording.
    Earlier,
    /// Not recorded: version 0.1.0.
    Unknown,
}

/// Returns `None` if the judge used another rubric.
fn shared(key: &Key, run: &RunFolder, judge: &JudgeName) -> Option<Shared> {
    let Some(digest) = &judge.digest else { return Some(Shared::Unknown) };
    if key.format == FORMAT_1 {
        // Digest of the judge's full prompt; the same text with reasons elsewhere has another digest.
        let benchmark = named(&key.benchmark);
        let mut texts =
            benchmark.into_iter().flat_map(|benchmark| benchmark.rubrics).map(|rubric| rubric.earlier);
        let both = |text: &[&str]| text.contains(&digest.as_str()) && text.contains(&key.rubric.as_str());
        return (*digest == key.rubric || texts.any(both)).then_some(Shared::Same);
    }
    match run.rubrics.iter().find(|row| row.rubric == *digest) {
        Some(row) => (row.criteria == key.rubric).then_some(Shared::Same),
        None => (judge.rubric.is_some() && judge.rubric == key.rubric_name).then_some(Shared::Earlier),
    }
}

/// Verdicts of one judge with the raters' rubric, for each run.
fn judges<'a>(
    key: &Key,
    runs: &'a [RunFolder],
    judge: JudgeChoice<'_>,
) -> anyhow::Result<Vec<(Judged<'a>, Shared)>> {
    let mut found: Vec<(Judged<'a>, Shared)> = Vec::new();
    for (index, (run, expected)) in runs.iter().zip(&key.runs).enumerate() {
        let dir = run.dir.display();
        ensure!(
            run.header.identity_sha256 == expected.identity_sha256,
            "{dir} is not the run that the sheet was drawn from; give `runs[{index}].dir` in key.json its place"
        );
        let all = run.judged_by(judge)?;
        ensure!(!all.is_empty(), "{dir} has no verdicts; judge it with `palimpsest judge`");
        let known: Vec<&str> = all.iter().map(|judged| judged.name.label.as_str()).collect();
        let known = known.join(", ");
        // The latest judge; judges with verdicts come first.
        let (said, silent): (Vec<_>, Vec<_>) = all.into_iter().rev().partition(Judged::said_something);
        let by_it = said.into_iter().chain(silent).find_map(|judged| {
            let shared = shared(key, run, judged.name)?;
            Some((judged, shared))
        });
        let Some((judged, shared)) = by_it else {
            let wanted = key.rubric_name.as_deref().unwrap_or("of the sheet");
            bail!(
                "{dir} has no verdicts by the rubric {wanted} that the raters read; it has verdicts of: {known}; judge it by that rubric \
                 (`palimpsest judge --rubric NAME`, or --prompts with the same judge.j2), or draw anew with `agree draw --judge NAME`"
            );
        };
        if let Some((other, _)) = found.first().filter(|(other, _)| other.name.judge != judged.name.judge) {
            bail!(
                "{} was last judged by {} and {dir} by {}; choose one with --judge NAME",
                runs[0].dir.display(),
                other.name.label,
                judged.name.label
            );
        }
        found.push((judged, shared));
    }
    Ok(found)
}

fn check_answer(run: &RunFolder, item: &KeyItem) -> anyhow::Result<()> {
    let row = run.answers.iter().find(|row| row.case == item.case && row.probe == item.probe);
    let answer = row.and_then(|row| row.answer.as_deref()).map(sha256);
    ensure!(
        answer.as_ref() == Some(&item.answer_sha256),
        "{}: the answer of {} {} is not the one that was rated; it was answered again after the draw, so draw anew",
        run.dir.display(),
        item.case,
        item.probe
    );
    Ok(())
}

/// Table rows in order of the cases' probes, the split's values and the runs.
fn subsets(key: &Key, rated: &[(&KeyItem, (usize, usize))]) -> Vec<Compared> {
    let row = |group: &str, name: &str, takes: &dyn Fn(&KeyItem) -> bool| Compared {
        names: [group.to_owned(), name.to_owned()],
        counts: Counts::of(rated.iter().filter(|(item, _)| takes(item)).map(|(_, pair)| *pair), key.most),
    };
    let mut rows = vec![row("all", "Overall", &|_| true)];
    for dimension in &key.groups.dimensions {
        rows.push(row(&key.groups.dimension, dimension, &|item| item.dimension == *dimension));
    }
    for split in sorted_unique(key.items.iter().map(|item| &item.split)) {
        rows.push(row(&key.groups.split, split, &|item| item.split == *split));
    }
    for (index, run) in key.runs.iter().enumerate() {
        rows.push(row("model", &run.model, &|item| item.run == index));
    }
    rows
}

impl Scored {
    /// The tables, one per rater; with a trailing newline.
    pub fn written(&self, format: Format) -> Result<String, csv::Error> {
        if format == Format::Json {
            return Ok(format!("{:#}\n", self.json()));
        }
        if format == Format::Csv {
            return self.records().csv();
        }
        let about = [format!("judge: {}", self.judge_short), format!("condition: {}", self.condition)];
        let mut text: String = about.iter().chain(&self.notes()).map(|line| format.remark(line)).collect();
        let units = if self.scores { "shares in %" } else { "in %, but for kappa" };
        for rater in &self.raters {
            let left_out = match (rater.unsure, rater.missing) {
                (0, 0) => String::new(),
                (unsure, missing) => format!(" ({unsure} unsure and {missing} not rated are left out)"),
            };
            let title = format!("{} against the judge{left_out}; {units}", rater.rater);
            let table = Table { key: rater.rater.clone(), title, sheet: sheet(rater) };
            text += &format!("\n{}", table.written(format)?);
        }
        Ok(text)
    }

    fn records(&self) -> Sheet {
        let rows = || self.raters.iter().flat_map(|rater| rater.subsets.iter().map(move |one| (rater, one)));
        let mut table = Columns::of(rows())
            .text("judge", |_| &*self.judge)
            .text("condition", |_| &*self.condition)
            .text("rater", |(rater, _)| &*rater.rater)
            .text("group", |(_, subset)| &*subset.names[0])
            .text("subset", |(_, subset)| &*subset.names[1]);
        let Some((_, first)) = rows().next() else { return table.sheet(Vec::new()) };
        for (at, (name, ..)) in first.counts.numbers().into_iter().enumerate() {
            table = table.text(name, |(_, subset)| subset.counts.numbers().swap_remove(at).2.1);
        }
        for (at, (name, _)) in first.counts.confusion().into_iter().enumerate() {
            table = table.text(name, |(_, subset)| subset.counts.confusion()[at].1);
        }
        table.sheet(Vec::new())
    }

    fn json(&self) -> Value {
        let compared = |all: &[Compared], keys: [&str; 2]| -> Vec<Value> {
            all.iter().map(|one| one.counts.json(keys, &one.names)).collect()
        };
        let rater = |rater: &RaterScore| {
            let subsets = compared(&rater.subsets, ["group", "subset"]);
            json!({ "rater": rater.rater, "unsure": rater.unsure, "missing": rater.missing, "subsets": subsets })
        };
        json!({
            "judge": self.judge,
            "other_judges": self.other_judges,
            "condition": self.condition,
            "items": self.items,
            "without_verdict": self.without_verdict,
            "between_scores": self.between,
            "raters": self.raters.iter().map(rater).collect::<Vec<_>>(),
            "between_raters": compared(&self.pairs, ["first", "second"]),
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let items = self.items;
        if !self.other_judges.is_empty() {
            let others = self.other_judges.join(", ");
            notes.push(format!("the run was also judged by {others}: name one with --judge"));
        }
        if self.without_verdict > 0 {
            let without = self.without_verdict;
            notes.push(format!("{without} of {items} items have no verdict of this judge and are left out"));
        }
        if self.between > 0 {
            notes.push(format!(
                "the judge gave {} of {items} items a fractional score, which raters cannot give; they are left out",
                self.between
            ));
        }
        notes.extend(self.caveats.iter().map(|caveat| (*caveat).to_owned()));
        for Compared { names: [first, second], counts } in &self.pairs {
            let numbers = counts.numbers();
            let shown = |key: &str| {
                numbers.iter().find(|(_, known, _)| *known == key).map(|(.., (_, shown))| shown.as_str())
            };
            let quadratic = shown("kappa_quadratic").map(|kappa| format!(" (quadratic {kappa})"));
            notes.push(format!(
                "{first} and {second}: agreement {}%, kappa {}{}, on {} items that both rated",
                shown("agreement").unwrap_or_default(),
                shown("kappa").unwrap_or_default(),
                quadratic.unwrap_or_default(),
                shown("n").unwrap_or_default()
            ));
        }
        notes
    }
}

fn sheet(rater: &RaterScore) -> Sheet {
    let mut table = Columns::of(&rater.subsets).text("subset", |subset| &*subset.names[1]);
    let shown = rater.subsets.first().map(|subset| subset.counts.numbers()).unwrap_or_default();
    for (at, (name, ..)) in shown.into_iter().enumerate() {
        table = table.number(name, |subset| subset.counts.numbers().swap_remove(at).2.1);
    }
    table.sheet(Vec::new())
}
