//! Finds data sets by file names: folders with `input/`, `question/` and `answer/`. Opens no file.

use std::collections::BTreeMap;

use super::task::Task;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Input,
    Question,
    Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataFile<'a> {
    pub name: &'a str,
    pub kind: Kind,
    pub task: Option<&'static Task>,
}

/// By containing folder (empty, or with a trailing slash), in name order.
pub(super) fn datasets<'a>(names: &[&'a str]) -> BTreeMap<&'a str, Vec<DataFile<'a>>> {
    let mut found: BTreeMap<&str, Vec<DataFile<'_>>> = BTreeMap::new();
    for name in names {
        if let Some((root, kind)) = place(name) {
            found.entry(root).or_default().push(DataFile { name, kind, task: Task::of_file(name) });
        }
    }
    found
}

/// Stem of the event file, else the folder name.
pub(super) fn id(root: &str, files: &[DataFile<'_>]) -> String {
    let input = files.iter().find(|file| file.kind == Kind::Input);
    let name =
        input.map_or(root, |file| file.name).trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let id = name.strip_suffix(".json").unwrap_or(name);
    if id.is_empty() { "dataset".to_owned() } else { id.to_owned() }
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
