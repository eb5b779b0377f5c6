//! Streams rows of the STALE file, a JSON array of 306 MB, and validates them (STALE, section 3, appendix D). Choices:
//!
//! - Session times may repeat (minute resolution) but not decrease; new is strictly after old. `query_time` may equal the last session's.
//! - Blank texts count as empty. Invalid JSON values ([`crate::ground::json`]) cost only their row.
//! - Sessions without turns are skipped, as in the authors' code; indices are kept. Old and new must have turns.
//! - Rows may be under `data`; other keys are ignored. `old_info` is an alias of `M_old`.
//! - Rows without `type` (construction files) get the user's. Their `time_gap` is a label.

use std::collections::BTreeMap;
use std::io::BufRead;

use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::terms::{NEW, OLD, QUESTION, REQUEST, SESSION, SPLIT, TIME_GAP, TITLE, TYPES, judge_only, probe};
use crate::benchmarks::Cases;
use crate::benchmarks::arrays::RowSplitter;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{
    Checker, Field, Node, Others, Pairs, Places, Shape, TURN, needed, needed_or, optional, quote,
};
use crate::case::{Case, Evidence, History, Segment, Turn};
use crate::ground::json;

const OLD_FIELD: &str = "M_old";
const OLD_ALSO: &str = "old_info";

/// Only in derived and construction files.
const QUERY_TIME: &str = "query_time";
const RELEVANT: &str = "relevant_session_index";

/// Labels of derived files (figure 5 counts attribute categories), copied to the case.
pub(super) const LABELS: [&str; 4] = ["category", "attribute", "topic", "domain"];

/// (field, id (section 3.3), form (appendix E.1))
pub(super) const PROBES: [(&str, &str, &str); 3] =
    [("dim1_query", "SR", QUESTION), ("dim2_query", "PR", QUESTION), ("dim3_query", "IPA", REQUEST)];

const ROW: Shape = Shape::Fields(
    &[
        needed("uid", Shape::Text),
        needed_or(
            SPLIT,
            Shape::OneOf(&TYPES, "write \"T1\" or \"T2\""),
            "add it, or give the type of all such rows with --type",
        ),
        needed(OLD_FIELD, Shape::Text),
        needed("M_new", Shape::Text),
        needed("explanation", Shape::Text),
        needed(RELEVANT, Shape::By(relevant)),
        needed("haystack_session", Shape::List("session", 1, &Shape::List("turn", 0, &TURN))),
        needed("timestamps", Shape::List("session", 1, &WHEN)),
        needed("probing_queries", Shape::Fields(&OF_QUERIES, Others::Refused)),
        optional(QUERY_TIME, WHEN),
        optional(TIME_GAP, GAP),
        optional(LABELS[0], Shape::Text),
        optional(LABELS[1], Shape::Text),
        optional(LABELS[2], Shape::Text),
        optional(LABELS[3], Shape::Text),
    ],
    Others::Refused,
);
const OF_QUERIES: [Field; 3] =
    [needed(PROBES[0].0, Shape::Text), needed(PROBES[1].0, Shape::Text), needed(PROBES[2].0, Shape::Text)];
const WHEN: Shape = Shape::Where(
    |node| node.as_str().is_some_and(|text| parse_time(text).is_some()),
    "write a date and time that exist, as \"YYYY-MM-DD HH:MM:SS\" or \"YYYY-MM-DD HH:MM\"",
);
const GAP: Shape = Shape::Where(
    |node| matches!(node, Node::Null | Node::String(_) | Node::Number(_)),
    "write a text or a number, or leave it out",
);
const INDEX: Shape = Shape::Where(
    |node| matches!(node, Node::Number(number) if number.is_u64()),
    "write a session's zero-based index, a whole number",
);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub uid: String,
    pub r#type: String,
    #[serde(rename = "M_old")]
    pub old: String,
    #[serde(rename = "M_new")]
    pub new: String,
    pub explanation: String,
    pub relevant_session_index: [usize; 2],
    pub haystack_session: Vec<Vec<Turn>>,
    pub timestamps: Vec<String>,
    /// Question per field of [`PROBES`].
    pub probing_queries: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_time: Option<String>,
    #[serde(flatten)]
    pub labels: BTreeMap<String, Value>,
}

/// Streams cases in file order; `split` is the type of rows without one. Continues after row problems, ends after any other error.
pub fn read_stale<'a>(text: impl BufRead + 'a, split: Option<&'static str>) -> Cases<'a> {
    let (mut rows, mut text, mut uids) = (RowSplitter::new(text, None, TITLE), Vec::new(), Places::new());
    let mut any = false;
    until_broken(move || {
        let Some(start) = rows.next_row(&mut text)? else {
            return if any { Ok(None) } else { Err(ReadError::NoCases { benchmark: TITLE }) };
        };
        any = true;
        let (node, faults) = json::read::<Node>(&text).map_err(|error| start.error(&error))?;
        let uid = node.text("uid");
        let mut row = Checker::new(None, start.row, uid);
        row.faults(faults);
        row.unique("uid", uid, "give every row its own uid", &mut uids);
        Ok(Some(case_from_row(node, row, split)?))
    })
}

/// `split` is the type if the row has none.
fn case_from_row(node: Node, mut row: Checker<'_>, split: Option<&'static str>) -> Result<Case, RowProblems> {
    let node = with_usual_names(node, split);
    let mut known = node.text(SPLIT).filter(|own| TYPES.contains(own)).map(str::to_owned);
    if let (Some(own), Some(given)) = (&known, split)
        && own != given
    {
        let remedy = "leave --type out where rows say their own";
        row.problem(SPLIT, format!("{} where --type is {given}", quote(own)), remedy);
        known = None;
    }
    let case = row.read(node, &ROW).and_then(|read: Row| case(&mut row, read));
    let labels = known.map(|known| (SPLIT.to_owned(), known)).into_iter().collect();
    row.outcome(case, labels, Vec::new())
}

/// Resolves the alias of the old state and the default type.
fn with_usual_names(node: Node, split: Option<&'static str>) -> Node {
    let Node::Object(Pairs(mut fields)) = node else { return node };
    let has = |fields: &[(String, Node)], name: &str| fields.iter().any(|(other, _)| other == name);
    if !has(&fields, OLD_FIELD)
        && let Some((name, _)) = fields.iter_mut().find(|(name, _)| name == OLD_ALSO)
    {
        OLD_FIELD.clone_into(name);
    }
    if !has(&fields, SPLIT)
        && let Some(split) = split
    {
        fields.push((SPLIT.to_owned(), Node::String(split.to_owned())));
    }
    Node::Object(Pairs(fields))
}

fn relevant(row: &mut Checker<'_>, path: &str, node: &Node) -> bool {
    match node {
        Node::Array(pair) if pair.len() == 2 => row.fits(path, node, &Shape::List("index", 2, &INDEX)),
        other => {
            row.problem(path, other.describe(), "write [old, new]: two zero-based session indices");
            false
        }
    }
}

fn case(row: &mut Checker<'_>, read: Row) -> Option<Case> {
    let [old_at, new_at] = read.relevant_session_index;
    if old_at >= new_at {
        let same = old_at == new_at;
        let what = if same { "the same session twice" } else { "the old session after the new one" };
        let remedy = "name the old session first, then a later one";
        row.problem(RELEVANT, format!("[{old_at}, {new_at}], {what}"), remedy);
        return None;
    }
    let count = read.haystack_session.len();
    if read.timestamps.len() != count {
        let found = format!("{} timestamps for {count} sessions", read.timestamps.len());
        row.problem("timestamps", found, "give one timestamp a session");
    }
    for (place, role, index) in [(0, OLD, old_at), (1, NEW, new_at)] {
        match read.haystack_session.get(index) {
            None => {
                let found = format!("{index} with {count} sessions");
                row.problem(format!("{RELEVANT}[{place}]"), found, format!("write an index below {count}"));
            }
            Some(turns) if turns.is_empty() => {
                let found = format!("an empty array, and it is the {role} session");
                row.problem(format!("haystack_session[{index}]"), found, "give it its turns");
            }
            Some(_) => {}
        }
    }
    let times: Vec<DateTime> = read.timestamps.iter().filter_map(|text| parse_time(text)).collect();
    let query_time = read.query_time.as_deref().and_then(parse_time);
    order_of_times(row, &times, (old_at, new_at), query_time);

    // Sessions without turns are skipped, as in the authors' formatter; indices are kept.
    let sessions = read.haystack_session.into_iter().zip(times).enumerate();
    let segment =
        |(index, (turns, time))| Segment { kind: SESSION.to_owned(), index, time: Some(time), turns };
    let segments = sessions.map(segment).filter(|segment| !segment.turns.is_empty()).collect();
    let text = |(name, value)| match value {
        Value::String(text) if text.trim().is_empty() => None,
        Value::String(text) => Some((name, text)),
        Value::Number(number) => Some((name, number.to_string())),
        _ => None,
    };
    let labels = read.labels.into_iter().filter_map(text).chain([(SPLIT.to_owned(), read.r#type)]);
    let asked = |(field, id, form): &(&str, &str, &str)| {
        Some(probe(id, form, read.probing_queries.get(*field)?.clone()))
    };
    Some(Case {
        id: read.uid,
        labels: labels.collect(),
        history: History { segments, query_time },
        evidence: vec![Evidence::segment(OLD, old_at), Evidence::segment(NEW, new_at)],
        probes: PROBES.iter().filter_map(asked).collect(),
        judge: judge_only(read.old, read.new, read.explanation),
        ..Case::default()
    })
}

/// Non-decreasing; old strictly before new; the query not before the last session.
fn order_of_times(
    row: &mut Checker<'_>,
    times: &[DateTime],
    (old, new): (usize, usize),
    query_time: Option<DateTime>,
) {
    let mut latest: Option<(usize, DateTime)> = None;
    for (i, &time) in times.iter().enumerate() {
        match latest {
            Some((before, at)) if time < at => {
                let found = format!("{} after timestamps[{before}] = {}", shown(time), shown(at));
                row.problem(format!("timestamps[{i}]"), found, "put the sessions in time order");
            }
            _ => latest = Some((i, time)),
        }
    }
    if let (Some(a), Some(b)) = (times.get(old), times.get(new))
        && a == b
    {
        let found = format!("{}, the time of the old session (timestamps[{old}])", shown(*b));
        row.problem(format!("timestamps[{new}]"), found, "date the new session after the old one");
    }
    if let (Some((last, at)), Some(query)) = (latest, query_time)
        && query < at
    {
        let found = format!("{} before timestamps[{last}] = {}", shown(query), shown(at));
        row.problem(QUERY_TIME, found, "date the query not before the last session");
    }
}

const TIME: &str = "%Y-%m-%d %H:%M:%S";

pub(super) fn shown(time: DateTime) -> String {
    time.strftime(TIME).to_string()
}

/// Exactly `YYYY-MM-DD HH:MM` or `YYYY-MM-DD HH:MM:SS`.
fn parse_time(text: &str) -> Option<DateTime> {
    ["%Y-%m-%d %H:%M", TIME].iter().find_map(|format| {
        let time = DateTime::strptime(format, text).ok()?;
        (time.strftime(format).to_string() == text).then_some(time)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_formats_of_times_that_exist_are_read() {
        for (text, time) in [
            ("2026-02-28 23:59", Some("2026-02-28 23:59:00")),
            ("2024-02-29 00:00:01", Some("2024-02-29 00:00:01")),
            ("", None),
            ("2026-02-29 10:00", None),
            ("2026-13-01 10:00", None),
            ("2026-01-01 24:00", None),
            ("2026-01-01 10:60:00", None),
            ("2026-01-01T10:00", None),
            ("2026-1-01 10:00:0", None),
            ("2026-01-01 10:00:00Z", None),
            ("+026-01-01 10:00", None),
        ] {
            assert_eq!(parse_time(text).map(shown).as_deref(), time, "{text:?}");
        }
    }
}
