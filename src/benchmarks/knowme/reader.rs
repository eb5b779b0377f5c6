//! A folder of data sets, each of which is a case: its events are the history, its questions the probes.
//!
//! Owns what a sound data set is. A data set with a problem is refused whole, with every problem of it named; oddities that change no
//! figure silently are flags of the case. Called by [`crate::benchmarks::dataset`].

use std::collections::{BTreeMap, HashMap};

use super::array::{Row, rows};
use super::events;
use super::findings::Findings;
use super::folder::{DatasetFiles, TaskFiles, Unknown, datasets};
use super::questions::{self, TaskRows};
use super::task::{TASKS, Task};
use super::terms::{DATASET, TITLE};
use crate::benchmarks::reading::{BrokenProbe, ReadError, RowProblems};
use crate::benchmarks::{Cases, Files};
use crate::data::{Case, History, JudgeOnly, Notes, Probe};

/// The three folders of a data set.
const LAYOUT: &str = "give the folder that holds input/, question/ and answer/";

/// Whether files are of this benchmark: events with these fields, or the three folders with files of its tasks.
pub(super) fn recognises(files: &Files<'_>) -> bool {
    let has_events = |name: &str| {
        let text = files.beginning(name);
        let fields = ["\"inner_thought\"", "\"environment\"", "\"timestamp\""];
        fields.iter().all(|field| text.contains(field))
    };
    let names = files.names();
    let found = datasets(&names);
    if found.is_empty() {
        return !files.is_folder() && names.iter().any(|name| has_events(name));
    }
    found.values().any(|of| !of.tasks.is_empty() || of.inputs.iter().any(|name| has_events(name)))
}

/// The data sets of a folder, by the name of the folder that each lies in.
pub(super) fn read(files: Files<'_>) -> Cases<'_> {
    let names = files.names();
    let found = datasets(&names);
    if found.is_empty() {
        let mut findings = Findings::default();
        let first = names.first().copied().unwrap_or(".");
        findings.whole(first, &format!("no data set of {TITLE}"), LAYOUT);
        return Box::new(std::iter::once(Err(ReadError::Row(findings.problems.into()))));
    }
    // id -> the data set that had it first
    let mut ids: HashMap<String, String> = HashMap::new();
    Box::new(found.into_iter().map(move |(root, of)| {
        let mut findings = Findings::default();
        let id = of.id(root);
        if let Some(first) = ids.insert(id.clone(), root.to_owned()) {
            let found = format!("the name {id:?} of the data set in {first:?} again");
            findings.whole(of.inputs.first().unwrap_or(&root), &found, "give every data set its own name");
        }
        one(&files, root, &of, id, findings)
    }))
}

/// One data set.
fn one(
    files: &Files<'_>,
    root: &str,
    of: &DatasetFiles<'_>,
    id: String,
    mut findings: Findings,
) -> Result<Case, ReadError> {
    for (file, why) in &of.unknown {
        match why {
            Unknown::Task => {
                let tasks: Vec<&str> = TASKS.iter().map(|task| task.title).collect();
                let remedy = format!("name it after its task ({}), or take it away", tasks.join(", "));
                findings.whole(file, "a file of no known task", remedy);
            }
            Unknown::Second => findings.whole(file, "a second file of this task", "keep one of them"),
        }
    }
    let events = match of.inputs.as_slice() {
        [input] => events::read(&read_rows(files, input)?, findings.of_file(input)),
        several => {
            let found = match several {
                [] => "no file of events".to_owned(),
                more => format!("{} files of events", more.len()),
            };
            findings.whole(&format!("{root}input/"), &found, "give one JSON file of events a data set");
            events::Events::default()
        }
    };
    let has_events = !events.segments.is_empty();
    let mut questions = Vec::new();
    for task in &TASKS {
        let files_of = of.tasks.get(task.id);
        let Some(names) = paired(task, files_of, root, of, &mut findings) else { continue };
        let both = TaskRows {
            task,
            questions: (names.0, read_rows(files, names.0)?),
            answers: (names.1, read_rows(files, names.1)?),
        };
        let read = questions::read(&both, &events, &mut findings);
        questions.extend(read);
    }
    if findings.problems.is_empty() && questions.is_empty() {
        findings.whole(&format!("{root}question/"), "no questions", LAYOUT);
    }
    let labels = BTreeMap::from([(DATASET.to_owned(), id.clone())]);
    if !findings.problems.is_empty() || !has_events {
        // All of its questions stay in the denominators.
        let broken = |(probe, _): (Probe, Notes)| BrokenProbe { id: probe.id, facets: probe.facets };
        let probes = questions.into_iter().map(broken).collect();
        return Err(ReadError::Row(RowProblems { problems: findings.problems, labels, probes }));
    }
    let mut of_probes = BTreeMap::new();
    let mut probes = Vec::with_capacity(questions.len());
    for (probe, notes) in questions {
        of_probes.insert(probe.id.clone(), notes);
        probes.push(probe);
    }
    Ok(Case {
        id,
        labels,
        history: History { segments: events.segments, query_time: None },
        probes,
        judge: JudgeOnly { of_probes, ..JudgeOnly::default() },
        flags: findings.flags,
        ..Case::default()
    })
}

/// The files of a task's questions and answers. A task that has neither is flagged; one of the two is a problem.
fn paired<'a>(
    task: &Task,
    files: Option<&TaskFiles<'a>>,
    root: &str,
    of: &DatasetFiles<'_>,
    findings: &mut Findings,
) -> Option<(&'a str, &'a str)> {
    let title = task.title;
    let missing = |kind: &str, folder: &str| {
        let none = !of.tasks.values().any(|files| match folder {
            "question/" => files.questions.is_some(),
            _ => files.answers.is_some(),
        });
        if none { format!("no {kind}, and no folder {root}{folder}") } else { format!("no {kind}") }
    };
    match files.map_or((None, None), |files| (files.questions, files.answers)) {
        (Some(questions), Some(answers)) => return Some((questions, answers)),
        (Some(questions), None) => {
            let found = missing("file of answers to these questions", "answer/");
            findings.whole(questions, &found, format!("add {root}answer/{title}_answers.json"));
        }
        (None, Some(answers)) => {
            let found = missing("file of questions to these answers", "question/");
            findings.whole(answers, &found, format!("add {root}question/{title}_questions.json"));
        }
        (None, None) => {
            findings.flag(&format!("{root}question/"), 1, || {
                format!("task has no questions here: {} ({title})", task.id)
            });
        }
    }
    None
}

fn read_rows(files: &Files<'_>, name: &str) -> Result<Vec<Row>, ReadError> {
    let opened = files.open(name);
    let reader = opened.map_err(|source| ReadError::Read { file: Some(name.to_owned()), row: 0, source })?;
    rows(reader, name)
}
