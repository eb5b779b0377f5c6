//! Which data sets lie in a folder, by the names of its files.
//!
//! A data set is a folder with `input/`, `question/` and `answer/` in it; several may lie beside each other. Nothing is opened here.

use std::collections::BTreeMap;

use super::task::Task;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TaskFiles<'a> {
    pub questions: Option<&'a str>,
    pub answers: Option<&'a str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DatasetFiles<'a> {
    /// Files of events; there must be one.
    pub inputs: Vec<&'a str>,
    pub tasks: BTreeMap<&'static str, TaskFiles<'a>>,
    /// Files of questions or answers whose task is not known, and second ones of a task.
    pub unknown: Vec<(&'a str, Unknown)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    Task,
    Second,
}

impl DatasetFiles<'_> {
    /// The data set's id: the name of its file of events, or of its folder where that has none.
    pub(super) fn id(&self, root: &str) -> String {
        let stem = |path: &str| {
            let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            name.strip_suffix(".json").unwrap_or(name).to_owned()
        };
        let id = self.inputs.first().map_or_else(|| stem(root), |input| stem(input));
        if id.is_empty() { "dataset".to_owned() } else { id }
    }
}

/// The data sets among `names` by the folder that holds them (`` for the top, else with a slash behind), in the order of names.
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

/// The content of a file, by its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Input,
    Question,
    Answer,
}

/// The folder of the data set that a file belongs to, and what the file holds; absent for files that are none of its.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_are_folders_that_hold_the_three_others() {
        let names = [
            "README.md",
            "dataset1/answer/Information Extraction_answers.json",
            "dataset1/input/dataset1.json",
            "dataset1/question/Information Extraction_questions.json",
            "dataset2/answer/Information Extraction_answer.json",
            "dataset2/input/dataset2.json",
            "dataset2/question/Information Extraction_question.json",
            "dataset2/question/Information extraction.json",
            "dataset2/question/Notes.json",
            "other.json",
        ];
        let found = datasets(&names);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["dataset1/", "dataset2/"]);
        let second = &found["dataset2/"];
        assert_eq!(second.id("dataset2/"), "dataset2");
        assert_eq!(second.tasks["T1"].answers, Some("dataset2/answer/Information Extraction_answer.json"));
        assert_eq!(
            second.unknown,
            [
                ("dataset2/question/Information extraction.json", Unknown::Second),
                ("dataset2/question/Notes.json", Unknown::Task)
            ]
        );
        let top = ["input/dataset9.json"];
        assert_eq!(datasets(&top)[""].id(""), "dataset9");
    }
}
