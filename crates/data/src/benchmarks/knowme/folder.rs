//! Finds data sets by file names: folders with `input/`, `question/` and `answer/`. Opens no file.

use std::collections::BTreeMap;

use super::task::Task;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TaskFiles<'a> {
    pub questions: Option<&'a str>,
    pub answers: Option<&'a str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DatasetFiles<'a> {
    /// Exactly one is valid.
    pub inputs: Vec<&'a str>,
    pub tasks: BTreeMap<&'static str, TaskFiles<'a>>,
    /// Unknown task, or a second file of a task.
    pub unknown: Vec<(&'a str, Unknown)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    Task,
    Second,
}

impl DatasetFiles<'_> {
    /// Stem of the event file, else the folder name.
    pub(super) fn id(&self, root: &str) -> String {
        let stem = |path: &str| {
            let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            name.strip_suffix(".json").unwrap_or(name).to_owned()
        };
        let id = self.inputs.first().map_or_else(|| stem(root), |input| stem(input));
        if id.is_empty() { "dataset".to_owned() } else { id }
    }
}

/// By containing folder (empty, or with a trailing slash), in name order.
pub(super) fn datasets<'a>(names: &[&'a str]) -> BTreeMap<&'a str, DatasetFiles<'a>> {
    let mut found: BTreeMap<&str, DatasetFiles<'_>> = BTreeMap::new();
    for name in names {
        let Some((root, kind)) = place(name) else { continue };
        let dataset = found.entry(root).or_default();
        if kind == Kind::Input {
            dataset.inputs.push(name);
            continue;
        }
        let Some(task) = Task::of_file(name) else {
            dataset.unknown.push((name, Unknown::Task));
            continue;
        };
        let files = dataset.tasks.entry(task.id).or_default();
        let place = if kind == Kind::Question { &mut files.questions } else { &mut files.answers };
        match place {
            None => *place = Some(name),
            Some(_) => dataset.unknown.push((name, Unknown::Second)),
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Input,
    Question,
    Answer,
}

/// (data set folder, kind); `None` for other files.
pub(super) fn place(name: &str) -> Option<(&str, Kind)> {
    let (folders, file) = name.rsplit_once('/')?;
    let start = folders.rfind('/').map_or(0, |slash| slash + 1);
    let (root, kind) = folders.split_at(start);
    let kind = match kind.to_lowercase().trim_end_matches('s') {
        "input" => Kind::Input,
        "question" => Kind::Question,
        "answer" => Kind::Answer,
        _ => return None,
    };
    file.ends_with(".json").then_some((root, kind))
}
