//! Table 1: scores in percent by task, and differences to the base (KnowMe-Bench, section 5.2).
//!
//! Table 1(a) pools data sets; 1(b) to 1(d) are per data set. A note maps the paper's headings, which denote other tasks
//! ([`super::task::Task::printed`]). The leading mean counts unscored answers as 0; the authors' mean skips them.

use std::collections::{BTreeMap, BTreeSet};

use super::task::TASKS;
use super::terms::{BEST, DATASET, FULL, TASK, TITLE, WITHOUT_GOLD};
use crate::benchmarks::{Context, CutCount, Graded, Retriever, Table};
use crate::ground::order::{entry, unique};
use crate::ground::sheet::{Column, Sheet, cell};
use crate::ground::words::of_counted;

/// Marks numbers that are not compared with the base.
const OTHER_QUESTIONS: &str = "*";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mean {
    OfAll,
    OfScored,
}

#[derive(Debug, Default)]
struct Scores<'a> {
    sum: f64,
    scored: usize,
    /// (data set, case, probe, repetition)
    questions: BTreeSet<Question<'a>>,
    cuts: CutCount,
}

type Question<'a> = (&'a str, &'a str, &'a str, u32);

impl Scores<'_> {
    fn percent(&self, mean: Mean) -> Option<f64> {
        let n = match mean {
            Mean::OfAll => self.questions.len(),
            Mean::OfScored => self.scored,
        };
        (n > 0).then(|| 100.0 * self.sum / (f64::from(BEST) * n as f64))
    }

    fn errors(&self) -> usize {
        self.questions.len() - self.scored
    }
}

/// Rows of one backbone are adjacent, the base first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Backbone<'a> {
    model: &'a str,
    judge: Option<&'a str>,
    /// Set only if runs of the same name asked the same questions.
    run: Option<&'a str>,
}

struct System<'a> {
    backbone: Backbone<'a>,
    condition: &'a str,
    context: Context,
    scores: BTreeMap<&'a str, Scores<'a>>,
}

pub(super) fn tables(graded: &[Graded<'_>]) -> Vec<Table> {
    let datasets: BTreeSet<&str> = graded.iter().map(dataset_of).collect();
    let mut tables = Vec::new();
    if datasets.len() > 1 {
        let title = format!("{TITLE}, table 1(a): all data sets, questions pooled");
        tables.extend(both("pooled", &title, graded, None));
    }
    for dataset in datasets {
        let title = format!("{TITLE}, table 1(b)-(d): {dataset}");
        tables.extend(both(&key(dataset), &title, graded, Some(dataset)));
    }
    tables
}

/// With errors as 0, and without errors if there are any.
fn both(key: &str, title: &str, graded: &[Graded<'_>], dataset: Option<&str>) -> Vec<Table> {
    let systems = systems(graded, dataset);
    let unscored = without_gold(graded, dataset);
    let of = |key: String, title: String, mean: Mean| {
        let mut sheet = sheet(&systems, mean);
        sheet.notes.extend(unscored.iter().cloned());
        Table { key, title, sheet }
    };
    let mut tables = vec![of(key.to_owned(), title.to_owned(), Mean::OfAll)];
    if systems.iter().flat_map(|system| system.scores.values()).any(|scores| scores.errors() > 0) {
        let title = format!("{title}; answers without a score left out");
        tables.push(of(format!("{key}-scored"), title, Mean::OfScored));
    }
    tables
}

fn without_gold(graded: &[Graded<'_>], dataset: Option<&str>) -> Vec<String> {
    let rows = graded.iter().filter(|row| dataset.is_none_or(|name| dataset_of(row) == name));
    let of: BTreeMap<&str, &String> =
        rows.filter_map(|row| Some((dataset_of(row), row.labels.get(WITHOUT_GOLD)?))).collect();
    let line = |(name, ids): (&str, &String)| {
        let ids: Vec<&str> = ids.split_whitespace().collect();
        format!(
            "{name}: questions without a gold, which are neither asked nor scored: {} ({})",
            ids.len(),
            ids.join(", ")
        )
    };
    of.into_iter().map(line).collect()
}

fn key(dataset: &str) -> String {
    let word = |c: char| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    dataset.chars().map(word).collect()
}

fn dataset_of<'a>(row: &Graded<'a>) -> &'a str {
    row.labels.get(DATASET).map_or(row.dataset, String::as_str)
}

fn systems<'a>(graded: &[Graded<'a>], dataset: Option<&str>) -> Vec<System<'a>> {
    let rows = || graded.iter().filter(|row| dataset.is_none_or(|name| dataset_of(row) == name));
    // Runs of a model on different data sets merge; a repeated question means separate runs.
    let mut asked: BTreeMap<_, &str> = BTreeMap::new();
    let mut twice: BTreeSet<(&str, Option<&str>)> = BTreeSet::new();
    for row in rows() {
        let question = (row.model, row.judge, row.condition, question_of(row));
        if asked.insert(question, row.run).is_some_and(|run| run != row.run) {
            twice.insert((row.model, row.judge));
        }
    }
    let mut found: Vec<System<'a>> = Vec::new();
    for row in rows() {
        let run = twice.contains(&(row.model, row.judge)).then_some(row.run);
        let backbone = Backbone { model: row.model, judge: row.judge, run };
        let is_same = |system: &System<'_>| system.backbone == backbone && system.condition == row.condition;
        let (condition, context) = (row.condition, row.context);
        let new = || System { backbone, condition, context, scores: BTreeMap::new() };
        let system = entry(&mut found, is_same, new);
        let task = row.facets.get(TASK).map_or("", String::as_str);
        let scores = system.scores.entry(task).or_default();
        scores.questions.insert(question_of(row));
        if row.answered {
            scores.cuts.add(row.history_cut);
        }
        if let Some(score) = row.score {
            scores.sum += score;
            scores.scored += 1;
        }
    }
    let order = unique(found.iter().map(|system| system.backbone));
    // Stable sort: keeps the order of other conditions.
    found.sort_by_key(|system| {
        (order.iter().position(|of| *of == system.backbone), !is_base(system.condition))
    });
    found
}

fn question_of<'a>(row: &Graded<'a>) -> Question<'a> {
    (dataset_of(row), row.case, row.probe, row.repetition)
}

fn is_base(condition: &str) -> bool {
    condition == FULL || condition.is_empty()
}

fn sheet(systems: &[System<'_>], mean: Mean) -> Sheet {
    let has_runs = systems.iter().any(|system| system.backbone.run.is_some());
    let mut columns = vec![Column::text("model"), Column::text("judge"), Column::text("setting")];
    if has_runs {
        columns.insert(1, Column::text("run"));
    }
    columns
        .extend(TASKS.iter().map(|task| Column { group: task.level.to_owned(), ..Column::number(task.id) }));
    let mut starred = false;
    let mut rows = Vec::with_capacity(systems.len());
    for system in systems {
        let Backbone { model, judge, run } = system.backbone;
        let base = systems
            .iter()
            .find(|other| other.backbone == system.backbone && is_base(other.condition))
            .filter(|_| !is_base(system.condition));
        let setting = system.context.named(system.condition);
        let mut row = vec![cell(model), cell(judge.unwrap_or("-")), cell(setting)];
        if has_runs {
            row.insert(1, cell(run.unwrap_or("-")));
        }
        for task in &TASKS {
            let own = system.scores.get(task.id);
            let of_base = base.and_then(|base| base.scores.get(task.id));
            let mut lines = score_cell(own, of_base, mean);
            starred |= lines.iter().any(|line| line.ends_with(OTHER_QUESTIONS));
            // A difference also depends on the base's cuts.
            let compared = of_base.filter(|_| lines.len() > 1);
            let numbered = own.filter(|own| own.percent(mean).is_some());
            let mut marks = numbered.into_iter().chain(compared).map(|scores| scores.cuts.mark());
            if let (Some(first), Some(mark)) = (lines.first_mut(), marks.find(|mark| !mark.is_empty())) {
                first.push_str(mark);
            }
            row.push(lines);
        }
        rows.push(row);
    }
    Sheet { columns, rows, notes: notes(systems, mean, starred) }
}

/// Score in percent; with a base on the same questions, the difference and the score below it.
fn score_cell(own: Option<&Scores<'_>>, base: Option<&Scores<'_>>, mean: Mean) -> Vec<String> {
    let Some((own, percent)) = own.and_then(|own| Some((own, own.percent(mean)?))) else { return cell("-") };
    match base.and_then(|base| Some((base, base.percent(mean)?))) {
        Some((base, of_base)) if base.questions == own.questions => {
            vec![format!("{:+.1}", percent - of_base), format!("{percent:.1}")]
        }
        Some(_) => cell(format!("{percent:.1}{OTHER_QUESTIONS}")),
        None => cell(format!("{percent:.1}")),
    }
}

fn notes(systems: &[System<'_>], mean: Mean, starred: bool) -> Vec<String> {
    let mut notes = vec![format!(
        "100 * mean score / {BEST}; `{FULL}` as it is, other settings as what they add to it, with the score itself below"
    )];
    let printed = TASKS.iter().filter(|task| !task.printed.starts_with(task.id));
    let printed: Vec<String> = printed.map(|task| format!("{} under {}", task.id, task.printed)).collect();
    notes.push(format!(
        "columns are tasks; by the released counts the paper's table 1 prints {}",
        printed.join(", ")
    ));
    if starred {
        notes.push(format!(
            "{OTHER_QUESTIONS} other questions than those of `{FULL}`: the score, not a difference"
        ));
    }
    if systems.iter().any(|system| matches!(system.context, Context::Retrieved { by: Retriever::Bm25, .. })) {
        notes.push(
            "the paper's RAG is dense: it compares with retrieval by embeddings, not with BM25".to_owned(),
        );
    }
    notes.extend(systems.iter().filter_map(|system| {
        let mut cuts = CutCount::default();
        system.scores.values().for_each(|scores| cuts.extend(&scores.cuts));
        cuts.note(&format!("{} {}", system.backbone.model, system.condition))
    }));
    let (mut counts, mut repeats) = (BTreeMap::<&str, BTreeSet<_>>::new(), 0);
    for (task, scores) in systems.iter().flat_map(|system| &system.scores) {
        let questions = scores.questions.iter();
        let asked = questions.inspect(|(.., repetition)| repeats = repeats.max(*repetition));
        counts.entry(task).or_default().extend(asked.map(|(set, case, probe, _)| (set, case, probe)));
    }
    let counts: Vec<String> = counts.iter().map(|(task, of)| format!("{task} {}", of.len())).collect();
    notes.push(format!("questions: {}", counts.join(", ")));
    if repeats > 0 {
        notes.push(format!(
            "each number is the mean over {} repetitions; `palimpsest table --repeats` gives their standard deviation",
            repeats + 1
        ));
    }
    let all = || systems.iter().flat_map(|system| system.scores.values());
    let (errors, asked) =
        (all().map(Scores::errors).sum::<usize>(), all().map(|scores| scores.questions.len()).sum::<usize>());
    let verbs = match mean {
        Mean::OfAll => ["has no score and counts as 0", "have no score and count as 0"],
        Mean::OfScored => ["has no score and is left out", "have no score and are left out"],
    };
    notes.push(match errors {
        0 => "every answer has a score, so that the mean without errors is the same".to_owned(),
        _ => of_counted(errors, asked, "answer", verbs),
    });
    notes
}
