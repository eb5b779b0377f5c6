//! Validates a row and builds its [`Case`]. Unknown fields are ignored: published files may add provenance.

use std::collections::BTreeMap;

use super::constraints;
use super::orders::{Order, Pair};
use super::terms::{
    CTX_LENGTH, GENERATION, LENGTH, Length, SETTING, SOURCE, SUBTASK, Setting, TASK, Task, UNDERSTANDING,
    VERDICT, names,
};
use crate::benchmarks::reading::RowProblems;
use crate::benchmarks::shape::{Checker, Node, Others, Shape, WHOLE_ROW, needed, optional};
use crate::case::{Case, Probe};

const QUERY: &str = "Which agent managed its memory better? Begin your reply with the verdict alone, [[A]] if agent A did or [[B]] if \
                     agent B did, and then give your reasons.";

pub(super) const OPTIONS: [&str; 2] = ["[[A]]", "[[B]]"];

const INDEX: &str = "index";
const ROW: Shape = Shape::Fields(
    &[
        optional(
            INDEX,
            Shape::Where(
                |node| *node == Node::Null || own_id(node).is_some(),
                "give a whole number or a text, or leave it out",
            ),
        ),
        needed(
            SUBTASK,
            Shape::By(|row, path, node| {
                known(row, path, node, Setting::parse, names(Setting::ALL, Setting::name))
            }),
        ),
        needed(
            TASK,
            Shape::By(|row, path, node| known(row, path, node, Task::parse, names(Task::ALL, Task::name))),
        ),
        needed(
            CTX_LENGTH,
            Shape::By(|row, path, node| {
                known(row, path, node, Length::parse, names(Length::ALL, Length::name))
            }),
        ),
        needed("question", Shape::Text),
        needed("chosen", Shape::Text),
        needed("rejected", Shape::Text),
    ],
    Others::Ignored,
);

fn known<T>(
    row: &mut Checker<'_>,
    path: &str,
    node: &Node,
    parse: fn(&str) -> Option<T>,
    names: String,
) -> bool {
    let known = parse(&shown(node)).is_some();
    if !known {
        row.problem(path, node.describe(), format!("it is one of {names}"));
    }
    known
}

fn shown(node: &Node) -> String {
    match node {
        Node::String(text) => text.clone(),
        Node::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

fn own_id(node: &Node) -> Option<String> {
    match node {
        Node::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Node::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    }
}

/// `index` or the row number, prefixed by the file name in folders; `None` if the index is no id.
pub(super) fn id(node: &Node, file: Option<&str>, row: usize) -> Option<String> {
    let own = match node.get(INDEX) {
        None | Some(Node::Null) => format!("row-{row}"),
        Some(index) => own_id(index)?,
    };
    let stem = file.map(|file| file.rsplit_once('.').map_or(file, |(stem, _)| stem).replace('/', "-"));
    Some(stem.map_or(own.clone(), |stem| format!("{stem}-{own}")))
}

pub(super) fn case_of(node: &Node, mut row: Checker<'_>) -> Result<Case, RowProblems> {
    row.fits(WHOLE_ROW, node, &ROW);
    let term = |name: &str| node.get(name).map(shown).unwrap_or_default();
    let (setting, task) = (Setting::parse(&term(SUBTASK)), Task::parse(&term(TASK)));
    let length = Length::parse(&term(CTX_LENGTH));
    if let (Some(setting), Some(task)) = (setting, task)
        && setting.task() != task
    {
        let remedy = format!("{setting} is a setting of {}; put the two right", setting.task().name());
        row.problem(TASK, task.name(), remedy);
    }
    let [question, chosen, rejected] = ["question", "chosen", "rejected"].map(|name| node.text(name));
    if chosen.is_some() && chosen == rejected {
        let remedy = "give two trajectories that differ, or drop the row";
        row.problem("rejected", "the chosen trajectory again", remedy);
    }
    let named = [
        (TASK, setting.map(Setting::task).or(task).map(Task::name)),
        (SUBTASK, setting.map(Setting::name)),
        (CTX_LENGTH, length.map(Length::name)),
    ];
    let labels: BTreeMap<String, String> =
        named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    let case = || {
        let (setting, length) = (setting?, length?);
        let pair = Pair {
            question: question?.to_owned(),
            chosen: chosen?.to_owned(),
            rejected: rejected?.to_owned(),
        };
        let id = row.uid.clone()?;
        let is_generation = setting.task() == Task::Generation;
        let source = constraints::source(&pair.question).filter(|_| is_generation);
        let (history, evidence) = pair.shown(Order::ChosenFirst.chosen_first(&id, 0));
        let mut facets =
            vec![(TASK, setting.task().name()), (SETTING, setting.name()), (LENGTH, length.name())];
        facets.extend(source.map(|source| (SOURCE, source.name())));
        let probe = Probe {
            id: VERDICT.to_owned(),
            form: if is_generation { GENERATION } else { UNDERSTANDING }.to_owned(),
            query: QUERY.to_owned(),
            facets: facets.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            options: OPTIONS.map(str::to_owned).to_vec(),
            ..Probe::default()
        };
        Some(Case { id, labels: labels.clone(), history, evidence, probes: vec![probe], ..Case::default() })
    };
    let case = case();
    row.outcome(case, labels, Vec::new())
}
