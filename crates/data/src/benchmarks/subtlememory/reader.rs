//! Reads SubtleMemory folders: a history file and a questions file make one case. Choices:
//!
//! - Folder names are case ids (`persona_0`); a single history's id is in its session ids (`related-persona_0-...`) or `persona_id`.
//! - A broken set becomes a broken row named by `instance_id`, with its questions and relation, and stays in all denominators.
//! - A broken session rejects the history: one broken row with all questions.
//! - A missing file, or one that is not a JSON array, ends reading: the number of questions is unknown.

use std::collections::VecDeque;
use std::io;

use super::instances::{instance, questions_of};
use super::sessions::sessions;
use super::terms::TITLE;
use crate::benchmarks::arrays::rows;
use crate::benchmarks::reading::{ReadError, RowProblems, unreadable};
use crate::benchmarks::shape::{Checker, Node, Places};
use crate::benchmarks::{Cases, Files};
use crate::case::{Case, History, JudgeOnly};
use crate::ground::json::Fault;

pub(super) const HISTORY_FILE: &str = "history_sessions.json";
pub(super) const INSTANCES_FILE: &str = "bench_instances.json";

pub(super) fn read(files: Files<'_>) -> Cases<'_> {
    let folders = folders(&files);
    if folders.is_empty() {
        return unreadable(ReadError::NoCases { benchmark: TITLE });
    }
    let mut folders = VecDeque::from(folders);
    let mut waiting: VecDeque<Result<Case, ReadError>> = VecDeque::new();
    Box::new(std::iter::from_fn(move || {
        while waiting.is_empty() {
            let folder = folders.pop_front()?;
            match cases(&files, &folder) {
                Ok(found) => waiting.extend(found),
                Err(error) => {
                    folders.clear();
                    waiting.push_back(Err(error));
                }
            }
        }
        waiting.pop_front()
    }))
}

/// Folders with either file, with a trailing `/` (empty for the root), in natural order.
fn folders(files: &Files<'_>) -> Vec<String> {
    let folder = |name: &str| {
        let folder = name.strip_suffix(HISTORY_FILE).or_else(|| name.strip_suffix(INSTANCES_FILE))?;
        (folder.is_empty() || folder.ends_with('/')).then(|| folder.to_owned())
    };
    let mut folders: Vec<String> = files.names().into_iter().filter_map(folder).collect();
    folders.sort_by_key(|folder| natural(folder));
    folders.dedup();
    folders
}

/// Natural sort key: `persona_10` after `persona_9`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut pieces: Vec<(String, String)> = vec![Default::default()];
    for c in name.chars() {
        match pieces.last_mut() {
            Some((_, digits)) if c.is_ascii_digit() => digits.push(c),
            Some((text, digits)) if digits.is_empty() => text.push(c),
            _ => pieces.push((c.to_string(), String::new())),
        }
    }
    pieces.into_iter().map(|(text, digits)| (text, digits.parse().unwrap_or(0))).collect()
}

/// The case, if any question is valid, then broken rows.
fn cases(files: &Files<'_>, folder: &str) -> Result<Vec<Result<Case, ReadError>>, ReadError> {
    let [history_file, instances_file] = [HISTORY_FILE, INSTANCES_FILE].map(|name| format!("{folder}{name}"));
    let read = |file: &str| {
        let reader = if files.names().contains(&file) {
            files.open(file)
        } else {
            let what = "no such file: every history has both history_sessions.json and bench_instances.json";
            Err(io::Error::new(io::ErrorKind::NotFound, what))
        };
        let failed = |source| ReadError::Read { file: Some(file.to_owned()), row: 0, source };
        rows::<Node>(reader.map_err(failed)?, Some(file), TITLE)
    };
    let (of_history, instances) = (read(&history_file)?, read(&instances_file)?);
    let name = folder.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let case = if name.is_empty() { own_name(&of_history) } else { name.to_owned() };
    let history = match sessions(&history_file, &case, of_history) {
        Ok(history) => history,
        Err(problems) => {
            let probes = instances.iter().enumerate().flat_map(|(row, (node, _))| questions_of(node, row));
            let probes = probes.collect();
            return Ok(vec![Err(RowProblems { problems, probes, ..RowProblems::default() }.into())]);
        }
    };
    if instances.is_empty() {
        let row = Checker::new(Some(&instances_file), 0, Some(&case));
        let none = row.refused("no instance at all", "give the questions on the history");
        return Ok(vec![Err(none.into())]);
    }
    let (mut probes, mut judge, mut broken) = (Vec::new(), JudgeOnly::default(), Vec::new());
    let mut ids = Places::new();
    for (row, (node, faults)) in instances.into_iter().enumerate() {
        let id = node.text("instance_id");
        let mut checker = Checker::new(Some(&instances_file), row, id);
        checker.faults(faults);
        checker.unique("instance_id", id, "give every instance its own id", &mut ids);
        match instance(checker, &node, &history) {
            Ok(questions) => {
                for (probe, notes) in questions {
                    judge.of_probes.insert(probe.id.clone(), notes);
                    probes.push(probe);
                }
            }
            Err(problems) => broken.push(Err(problems.into())),
        }
    }
    let mut cases = Vec::new();
    if !probes.is_empty() {
        let history = History { segments: history.segments, query_time: None };
        cases.push(Ok(Case { id: case, history, probes, judge, ..Case::default() }));
    }
    cases.extend(broken);
    Ok(cases)
}

fn own_name(sessions: &[(Node, Vec<Fault>)]) -> String {
    let in_id = |(node, _): &(Node, Vec<Fault>)| {
        let id = node.text("session_id")?;
        let at = id.find("persona_")?;
        let number: String =
            id.get(at + "persona_".len()..)?.chars().take_while(char::is_ascii_digit).collect();
        (!number.is_empty()).then(|| format!("persona_{number}"))
    };
    let mut names = sessions.iter().map(in_id);
    let first = names.next().flatten();
    let name = first.filter(|name| names.all(|other| other.as_deref() == Some(name)));
    let by_field = || {
        let id = sessions.iter().find_map(|(node, _)| node.text("persona_id"))?;
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let id = id.strip_prefix("persona_").unwrap_or(id);
        (id.len() <= 60 && id.chars().all(word)).then(|| format!("persona_{id}"))
    };
    name.or_else(by_field).unwrap_or_else(|| "persona".to_owned())
}
