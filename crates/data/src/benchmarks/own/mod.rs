//! A history of one's own: a table of messages and a table of questions, as a spreadsheet or a script writes them.
//!
//! A question may name the session with an outdated statement and the one that updates it, and the answer that a judge is to
//! expect. Without them its attention to every session is recorded all the same.

mod history;
mod questions;
mod table;
mod terms;

use history::histories;
use questions::questions;
use table::{Table, column_names, fault, is_among};
use terms::{ANSWER, EXPECTED, KIND, NEW, OLD, SESSION, TITLE};

use super::reading::{ReadError, RowProblems, unreadable};
use super::{
    Benchmark, Curve, Dimension, Files, JudgeUnit, LensSpec, QUERY, Rubric, Side, Unit, VerdictKind,
    fixed_sample,
};
use crate::case::check::Scope;
use crate::case::finding::{Check, Finding};
use crate::case::{Case, JudgeOnly};

static UNUSED_COLUMN: Check = Check::warning("unused-column", "columns that nobody reads");
static NO_QUESTIONS: Check = Check::warning("no-questions", "histories without questions");

const CURVES: [Curve; 3] = [Curve::new(NEW, OLD), Curve::new(QUERY, OLD), Curve::new(QUERY, NEW)];

const ENDINGS: [&str; 3] = ["csv", "tsv", "jsonl"];
/// Recognised as a single file, for an error that says what to do.
const SPREADSHEETS: [&str; 3] = ["xlsx", "xls", "ods"];

pub static OWN: Benchmark = Benchmark {
    name: "own",
    title: TITLE,
    segment: SESSION,
    // Cases have no split label; questions have kinds.
    split: "history",
    templates: &[
        ("system.j2", include_str!("templates/system.j2")),
        ("session.j2", include_str!("templates/session.j2")),
        ("question.j2", include_str!("templates/question.j2")),
    ],
    rubrics: &[Rubric {
        name: "expected",
        about: "the answer says what the expected answer says",
        template: include_str!("templates/judge.j2"),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Correct,
        earlier: &[],
    }],
    judge_needs: Some((EXPECTED, ANSWER)),
    lens: LensSpec {
        curves: &CURVES,
        ratio: Some((CURVES[2], CURVES[1])),
        anchors: &[OLD, NEW],
        sides: &[(OLD, Side::Older), (NEW, Side::Newer)],
        ..LensSpec::DEFAULT
    },
    recognises,
    read: |files, _| cases(&files).map_or_else(unreadable, |cases| Box::new(cases.into_iter())),
    reads: is_table,
    companion: Some("questions"),
    // The reader looks at the times of messages, too.
    scope: Scope { order: false, ..Scope::ALL },
    sample: |spec| {
        let files = [
            ("history.csv", include_bytes!("sample/history.csv").as_slice()),
            ("questions.csv", include_bytes!("sample/questions.csv")),
        ];
        fixed_sample(spec, "two tables with histories of their own", &files)
    },
    unit: Unit::Probe,
    dimension: Dimension::Facet(KIND),
    ..Benchmark::DEFAULT
};

/// In a folder by the needed columns. A single table by one of them, or by a name that is no other benchmark's: the reader names those
/// that are missing.
fn recognises(files: &Files<'_>) -> bool {
    if !files.is_folder() && files.names().iter().any(|name| has_ending(name, &SPREADSHEETS)) {
        return true;
    }
    files.names().into_iter().filter(|name| is_table(name)).any(|name| {
        let found = column_names(files, name);
        let mut needed = history::COLUMNS.iter().filter(|column| column.needed);
        match files.is_folder() {
            true => needed.all(|column| is_among(&found, column)),
            false => needed.any(|column| is_among(&found, column)) || !name.to_lowercase().ends_with("jsonl"),
        }
    })
}

fn is_table(name: &str) -> bool {
    has_ending(name, &ENDINGS)
}

fn has_ending(name: &str, endings: &[&str]) -> bool {
    name.rsplit_once('.').is_some_and(|(_, ending)| endings.contains(&&*ending.to_lowercase()))
}

fn cases(files: &Files<'_>) -> Result<Vec<Result<Case, ReadError>>, ReadError> {
    let asks = |name: &str| is_among(&column_names(files, name), &questions::QUESTION_COLUMN);
    let (of_messages, of_questions) = match files.names().as_slice() {
        &[first, second] if asks(first) && !asks(second) => (second, first),
        &[first, second] => (first, second),
        [first] if asks(first) => {
            let what =
                "it is a table of questions; give the table of messages, and this one with --questions";
            return Err(fault(first, 0, what));
        }
        [first] => {
            // Its own faults come first.
            Table::read(files, first, &history::COLUMNS)?;
            let stem = first.rsplit_once('.').map_or(*first, |(stem, _)| stem);
            let or_named = if files.is_folder() { "" } else { ", or name one with --questions" };
            let what = format!(
                "there is no table of questions: write {stem}-questions.csv (or .tsv, .jsonl) beside it{or_named}"
            );
            return Err(fault(first, 0, what));
        }
        several => {
            let first = several.first().copied().unwrap_or_default();
            let (count, names) = (several.len(), several.join(", "));
            let what = format!("{count} tables: {names}; keep one of messages and one of questions");
            return Err(fault(first, 0, what));
        }
    };
    let messages = Table::read(files, of_messages, &history::COLUMNS)?;
    let asked = Table::read(files, of_questions, &questions::COLUMNS)?;
    if messages.rows.is_empty() {
        return Err(fault(of_messages, 0, "there is no message below the header; write one a row"));
    }
    let stem = of_messages.rsplit('/').next().unwrap_or(of_messages);
    let default = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
    let (histories, checkers): (Vec<_>, Vec<_>) = histories(&messages, default).into_iter().unzip();
    let by_history = questions(&asked, &histories);
    let mut flags: Vec<Finding> = Vec::new();
    for table in [&messages, &asked] {
        let unused = table.unused();
        if !unused.is_empty() {
            let what = unused.join(", ");
            flags.push(Finding::new(&UNUSED_COLUMN, &histories[0].id, what).in_file(table.file));
        }
    }
    let silent = histories.iter().zip(&by_history).filter(|(_, asked)| asked.is_empty());
    flags.extend(silent.map(|(history, _)| Finding::new(&NO_QUESTIONS, &history.id, "it is left out")));
    let mut cases = Vec::new();
    for ((history, checker), asked) in histories.into_iter().zip(checkers).zip(by_history) {
        if asked.is_empty() {
            continue;
        }
        if !checker.problems.is_empty() {
            let probes = asked.into_iter().flat_map(|asked| match asked {
                Ok((probe, _)) => vec![probe],
                Err(RowProblems { probes, .. }) => probes,
            });
            let probes = probes.collect();
            cases.push(Err(
                RowProblems { problems: checker.problems, probes, ..RowProblems::default() }.into()
            ));
            continue;
        }
        let (mut probes, mut judge, mut broken) = (Vec::new(), JudgeOnly::default(), Vec::new());
        for one in asked {
            match one {
                Ok((probe, notes)) => {
                    judge.of_probes.insert(probe.id.clone(), notes);
                    probes.push(probe);
                }
                Err(problems) => broken.push(Err(RowProblems { of_question: true, ..problems }.into())),
            }
        }
        if !probes.is_empty() {
            let mut own = std::mem::take(&mut flags);
            own.extend(history.flags);
            let history_of = crate::case::History { segments: history.segments, query_time: None };
            cases.push(Ok(Case {
                id: history.id,
                history: history_of,
                probes,
                judge,
                flags: own,
                ..Case::default()
            }));
        }
        cases.extend(broken);
    }
    match cases.is_empty() {
        true => Err(fault(of_questions, 0, "there is no question below the header; write one a row")),
        false => Ok(cases),
    }
}
