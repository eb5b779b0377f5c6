//! Reads a folder of data sets, one case each: events are the history, questions the probes. A broken question costs only itself, as a
//! broken row after the case; a problem in the events or a file rejects the data set. Harmless oddities become flags.

use std::collections::{BTreeMap, HashMap};

use super::events;
use super::folder::{self, DataFile, Kind, datasets};
use super::questions::{self, Broken};
use super::rows::{self, Findings};
use super::task::{TASKS, Task};
use super::terms::{DATASET, TITLE, WITHOUT_GOLD};
use crate::benchmarks::reading::{ReadError, RowProblems, unreadable};
use crate::benchmarks::{Cases, Files};
use crate::case::finding::Check;
use crate::case::{Case, History, JudgeOnly, Probe};

static NO_QUESTIONS: Check = Check::warning("no-questions", "tasks without questions");

const LAYOUT: &str = "give the folder that holds input/, question/ and answer/";

/// Events with the known fields, or the three folders with task files.
pub(super) fn recognises(files: &Files<'_>) -> bool {
    let has_events = |name: &str| {
        let text = files.beginning(name).to_lowercase();
        let thought = ["\"inner_thought\"", "\"mind\""].iter().any(|field| text.contains(field));
        thought && ["\"environment\"", "\"timestamp\""].iter().all(|field| text.contains(field))
    };
    let names = files.names();
    let found = datasets(&names);
    if found.is_empty() {
        return !files.is_folder() && names.iter().any(|name| has_events(name));
    }
    found.values().flatten().any(|file| match file.kind {
        Kind::Input => has_events(file.name),
        Kind::Question | Kind::Answer => file.task.is_some(),
    })
}

pub(super) fn read(files: Files<'_>) -> Cases<'_> {
    let names = files.names();
    let found = datasets(&names);
    if found.is_empty() {
        let mut findings = Findings::default();
        let first = names.first().copied().unwrap_or(".");
        findings.whole(first, &format!("no data set of {TITLE}"), LAYOUT);
        return unreadable(ReadError::Row(findings.problems.into()));
    }
    // id -> first data set
    let mut ids: HashMap<String, String> = HashMap::new();
    Box::new(found.into_iter().flat_map(move |(root, of)| {
        let id = folder::id(root, &of);
        let mut findings = Findings { case: id.clone(), ..Findings::default() };
        if let Some(first) = ids.insert(id.clone(), root.to_owned()) {
            let found = format!("the name {id:?} of the data set in {first:?} again");
            let input = of.iter().find(|file| file.kind == Kind::Input).map_or(root, |file| file.name);
            findings.whole(input, &found, "give every data set its own name");
        }
        one(&files, root, &of, id, findings).unwrap_or_else(|error| vec![Err(error)])
    }))
}

/// The case, if it can be asked, then its broken questions.
fn one(
    files: &Files<'_>,
    root: &str,
    of: &[DataFile<'_>],
    id: String,
    mut findings: Findings,
) -> Result<Vec<Result<Case, ReadError>>, ReadError> {
    for (at, file) in of.iter().enumerate().filter(|(_, file)| file.kind != Kind::Input) {
        let same = |other: &DataFile<'_>| (other.kind, other.task) == (file.kind, file.task);
        if file.task.is_none() {
            let tasks: Vec<&str> = TASKS.iter().map(|task| task.title).collect();
            let remedy = format!("name it after its task ({}), or take it away", tasks.join(", "));
            findings.whole(file.name, "a file of no known task", remedy);
        } else if of[..at].iter().any(same) {
            findings.whole(file.name, "a second file of this task", "keep one of them");
        }
    }
    let inputs: Vec<&str> = of.iter().filter(|file| file.kind == Kind::Input).map(|file| file.name).collect();
    let events = match inputs.as_slice() {
        [input] => events::read(input, rows::read(files, input, "")?, &mut findings),
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
    let (mut questions, mut broken, mut without_gold) = (Vec::new(), Vec::new(), Vec::new());
    for task in &TASKS {
        let Some((asked, told)) = paired(task, root, of, &mut findings) else { continue };
        let of_questions = (asked, rows::read(files, asked, task.prefix)?);
        let of_answers = (told, rows::read(files, told, task.prefix)?);
        let read = questions::read(task, of_questions, of_answers, &events, &mut findings);
        questions.extend(read.sound);
        broken.extend(read.broken);
        without_gold.extend(read.without_gold);
    }
    if findings.problems.is_empty() && questions.is_empty() && broken.is_empty() {
        let found = if without_gold.is_empty() { "no questions" } else { "no question that has a gold" };
        findings.whole(&format!("{root}question/"), found, LAYOUT);
    }
    let mut labels = BTreeMap::from([(DATASET.to_owned(), id.clone())]);
    if !without_gold.is_empty() {
        labels.insert(WITHOUT_GOLD.to_owned(), without_gold.join(" "));
    }
    if !findings.problems.is_empty() || !has_events {
        // All questions stay in the denominators.
        let mut probes: Vec<Probe> = questions.into_iter().map(|(probe, _)| probe).collect();
        let mut problems = findings.problems;
        for of in broken {
            problems.extend(of.problems);
            probes.push(of.probe);
        }
        return Err(ReadError::Row(RowProblems { problems, labels, probes, ..RowProblems::default() }));
    }
    let mut rows = Vec::new();
    if !questions.is_empty() {
        let mut of_probes = BTreeMap::new();
        let mut probes = Vec::with_capacity(questions.len());
        for (probe, notes) in questions {
            of_probes.insert(probe.id.clone(), notes);
            probes.push(probe);
        }
        rows.push(Ok(Case {
            id,
            labels: labels.clone(),
            history: History { segments: events.segments, query_time: None },
            probes,
            judge: JudgeOnly { of_probes, ..JudgeOnly::default() },
            flags: findings.flags,
            ..Case::default()
        }));
    }
    rows.extend(broken.into_iter().map(|Broken { probe, problems, .. }| {
        Err(ReadError::Row(RowProblems {
            problems,
            labels: labels.clone(),
            probes: vec![probe],
            ..RowProblems::default()
        }))
    }));
    Ok(rows)
}

/// A task without both files is flagged; with only one of them it is a problem.
fn paired<'a>(
    task: &Task,
    root: &str,
    of: &[DataFile<'a>],
    findings: &mut Findings,
) -> Option<(&'a str, &'a str)> {
    let title = task.title;
    let file =
        |kind| of.iter().find(|file| file.kind == kind && file.task == Some(task)).map(|file| file.name);
    let missing = |what: &str, kind: Kind, folder: &str| {
        let any = of.iter().any(|file| file.kind == kind && file.task.is_some());
        if any { format!("no {what}") } else { format!("no {what}, and no folder {root}{folder}") }
    };
    match (file(Kind::Question), file(Kind::Answer)) {
        (Some(questions), Some(answers)) => return Some((questions, answers)),
        (Some(questions), None) => {
            let found = missing("file of answers to these questions", Kind::Answer, "answer/");
            findings.whole(questions, &found, format!("add {root}answer/{title}_answers.json"));
        }
        (None, Some(answers)) => {
            let found = missing("file of questions to these answers", Kind::Question, "question/");
            findings.whole(answers, &found, format!("add {root}question/{title}_questions.json"));
        }
        (None, None) => {
            let what = format!("{} ({title})", task.id);
            findings.flags.push(findings.finding(&NO_QUESTIONS, &format!("{root}question/"), what));
        }
    }
    None
}
