//! One row: every field checked, every problem listed, and a [`Case`] only if there is none.

use std::collections::BTreeMap;

use jiff::civil::DateTime;

use super::terms::{NEW, OLD, QUESTION, REQUEST, SESSION, SPLIT, TIME_GAP, TYPES, judge_only, probe};
use crate::benchmarks::fields::{self, Fields, WHOLE_ROW};
use crate::benchmarks::node::{Node, quote};
use crate::benchmarks::reading::RowProblems;
use crate::data::{Case, Evidence, History, Probe, Segment, Turn};

/// The fields that every row has.
const ROW_FIELDS: [&str; 9] = [
    "uid",
    "type",
    "M_old",
    "M_new",
    "explanation",
    "relevant_session_index",
    "haystack_session",
    "timestamps",
    "probing_queries",
];

/// The field of the old state, and another name for it.
const OLD_FIELD: &str = "M_old";
const OLD_ALSO: &str = "old_info";

/// The field that some derived files and the construction's own add.
const QUERY_TIME: &str = "query_time";

/// The fields by which derived files label what changes (the paper's figure 5 counts categories of attributes). Each is a label
/// of the case by the same name.
pub(super) const LABELS: [&str; 4] = ["category", "attribute", "topic", "domain"];

/// The three probes: field, id (section 3.3 of the paper), framing (appendix E.1).
pub(super) const PROBES: [(&str, &str, &str); 3] =
    [("dim1_query", "SR", QUESTION), ("dim2_query", "PR", QUESTION), ("dim3_query", "IPA", REQUEST)];

/// The row's uid where it is readable, and the case or all that is wrong with the row.
/// `split` is its type where it does not say it.
pub(super) fn case_from_row(
    node: Node,
    row: usize,
    split: Option<&'static str>,
) -> (Option<String>, Result<Case, RowProblems>) {
    let mut checker = Checker { row: fields::Checker::new(None, row), split, labels: BTreeMap::new() };
    let case = checker.case(node);
    let Checker { row: fields::Checker { uid, problems, .. }, labels, .. } = checker;
    let outcome = match case {
        Some(case) if problems.is_empty() => Ok(case),
        _ => Err(RowProblems { problems, labels, ..RowProblems::default() }),
    };
    (uid, outcome)
}

/// Collects problems while the row is taken apart. A `None` from its methods always comes with a problem.
struct Checker {
    row: fields::Checker<'static>,
    /// The type that is given for rows that do not say it.
    split: Option<&'static str>,
    /// The case's labels, as far as they could be read.
    labels: BTreeMap<String, String>,
}

impl Checker {
    fn case(&mut self, node: Node) -> Option<Case> {
        // The uid first, so that every other problem of the row can name it.
        if let Node::Object(fields) = &node
            && let Some((_, Node::String(uid))) = fields.iter().find(|(name, _)| name == "uid")
            && !uid.trim().is_empty()
        {
            self.row.uid = Some(uid.clone());
        }
        let optional: Vec<&str> = [QUERY_TIME, TIME_GAP].into_iter().chain(LABELS).collect();
        let mut fields = self.object(WHOLE_ROW, self.with_usual_names(node), &ROW_FIELDS, &optional)?;

        let id = self.text(&mut fields, "uid");
        let split = self.split(&mut fields);
        self.labels.extend(split.clone().map(|split| (SPLIT.to_owned(), split)));
        let old = self.text(&mut fields, OLD_FIELD);
        let new = self.text(&mut fields, "M_new");
        let explanation = self.text(&mut fields, "explanation");
        let sessions = fields.take("haystack_session").and_then(|node| self.sessions(node));
        let times = fields.take("timestamps").and_then(|node| self.times(node));
        let relevant = fields.take("relevant_session_index").and_then(|node| self.relevant(node));
        let probes = fields.take("probing_queries").and_then(|node| self.probes(node));
        let query_time = fields.take(QUERY_TIME).map(|node| self.time(QUERY_TIME, node));

        let mut labels = BTreeMap::new();
        let time_gap = fields.take(TIME_GAP).and_then(|node| self.time_gap(node));
        labels.extend(time_gap.map(|gap| (TIME_GAP.to_owned(), gap)));
        for name in LABELS {
            if let Some(text) = self.text(&mut fields, name) {
                labels.insert(name.to_owned(), text);
            }
        }

        if let (Some(sessions), Some(times)) = (&sessions, &times)
            && sessions.len() != times.len()
        {
            let found = format!("{} timestamps for {} sessions", times.len(), sessions.len());
            self.row.problem("timestamps", found, "give one timestamp a session");
        }
        if let (Some(sessions), Some((old, new))) = (&sessions, relevant) {
            for (place, role, index) in [(0, OLD, old), (1, NEW, new)] {
                self.in_range(&format!("relevant_session_index[{place}]"), index, sessions.len());
                if let Some(None) = sessions.get(index) {
                    let found = format!("an empty array, and it is the {role} session");
                    self.row.problem(format!("haystack_session[{index}]"), found, "give it its turns");
                }
            }
        }
        if let Some(times) = &times {
            self.order_of_times(times, relevant, query_time.flatten());
        }

        let (sessions, times, (old_index, new_index)) = (sessions?, times?, relevant?);
        let times: Vec<DateTime> = times.into_iter().collect::<Option<_>>()?;
        let query_time = match query_time {
            Some(time) => Some(time?),
            None => None,
        };
        labels.insert(SPLIT.to_owned(), split?);
        Some(Case {
            id: id?,
            labels,
            history: History {
                segments: sessions
                    .into_iter()
                    .zip(times)
                    .enumerate()
                    .filter_map(|(index, (turns, time))| {
                        Some(Segment { kind: SESSION.to_owned(), index, time: Some(time), turns: turns? })
                    })
                    .collect(),
                query_time,
            },
            evidence: vec![Evidence::segment(OLD, old_index), Evidence::segment(NEW, new_index)],
            probes: probes?,
            judge: judge_only(old?, new?, explanation?),
            ..Case::default()
        })
    }

    /// The row under the names that the published file has: the other name of the old state, and the type that is given.
    fn with_usual_names(&self, node: Node) -> Node {
        let Node::Object(mut fields) = node else { return node };
        let has = |fields: &[(String, Node)], name: &str| fields.iter().any(|(other, _)| other == name);
        if !has(&fields, OLD_FIELD)
            && let Some((name, _)) = fields.iter_mut().find(|(name, _)| name == OLD_ALSO)
        {
            OLD_FIELD.clone_into(name);
        }
        if !has(&fields, SPLIT)
            && let Some(split) = self.split
        {
            fields.push((SPLIT.to_owned(), Node::String(split.to_owned())));
        }
        Node::Object(fields)
    }

    /// The time between the two statements, in words or as a number.
    fn time_gap(&mut self, node: Node) -> Option<String> {
        match node {
            Node::Null => None,
            Node::String(text) if text.trim().is_empty() => None,
            Node::String(text) => Some(text),
            Node::Number(number) => Some(number.to_string()),
            other => {
                self.row.problem(TIME_GAP, other.describe(), "write a text or a number, or leave it out");
                None
            }
        }
    }

    /// The fields of an object at `path`, with unknown, repeated and missing ones reported.
    fn object(&mut self, path: &str, node: Node, required: &[&str], optional: &[&str]) -> Option<Fields> {
        let mut all = required.join(", ");
        if !optional.is_empty() {
            all += &format!(" and, where wanted, {}", optional.join(", "));
        }
        let unknown = |name: &str| {
            let known = required.contains(&name) || optional.contains(&name);
            (!known).then(|| format!("remove it: the fields here are {all}"))
        };
        let wanted = format!("write an object with the fields {all}");
        let fields = self.row.object_of(path, node, &wanted, unknown)?;
        let prefix = fields::prefix(path);
        for name in required {
            if !fields.0.iter().any(|(seen, _)| seen == name) {
                let remedy = match *name {
                    SPLIT if path == WHOLE_ROW => "add it, or give the type of all such rows with --type",
                    _ => "add it",
                };
                self.row.problem(format!("{prefix}{name}"), "no such field", remedy);
            }
        }
        Some(fields)
    }

    /// A top-level field that must be a string with something in it. A missing one is already reported, or may be missing.
    fn text(&mut self, fields: &mut Fields, name: &str) -> Option<String> {
        let node = fields.take(name)?;
        self.row.string(name, node)
    }

    fn split(&mut self, fields: &mut Fields) -> Option<String> {
        let split = self.text(fields, SPLIT)?;
        if !TYPES.contains(&split.as_str()) {
            self.row.problem(SPLIT, quote(&split), "write \"T1\" or \"T2\"");
            return None;
        }
        if let Some(given) = self.split.filter(|given| *given != split) {
            let remedy = "leave --type out where rows say their own";
            self.row.problem(SPLIT, format!("{} where --type is {given}", quote(&split)), remedy);
            return None;
        }
        Some(split)
    }

    /// One entry a session; `None` for an empty one, which is skipped, as the authors' formatter does.
    fn sessions(&mut self, node: Node) -> Option<Vec<Option<Vec<Turn>>>> {
        let is_empty = |item: &Node| matches!(item, Node::Array(turns) if turns.is_empty());
        let items = self.row.items("haystack_session", node, "session")?;
        // Those with problems stay in, so that the count, and with it the indices, remain right.
        let turns = |(i, item): (usize, Node)| if is_empty(&item) { None } else { Some(self.turns(i, item)) };
        Some(items.into_iter().enumerate().map(turns).collect())
    }

    fn turns(&mut self, session: usize, node: Node) -> Vec<Turn> {
        let path = format!("haystack_session[{session}]");
        let Some(items) = self.row.items(&path, node, "turn") else {
            return Vec::new();
        };
        items
            .into_iter()
            .enumerate()
            .filter_map(|(i, item)| self.turn(&format!("{path}[{i}]"), item))
            .collect()
    }

    fn turn(&mut self, path: &str, node: Node) -> Option<Turn> {
        let mut fields = self.object(path, node, &["role", "content"], &[])?;
        let role = fields.take("role").and_then(|node| match node {
            Node::String(role) if role == "user" || role == "assistant" => Some(role),
            other => {
                self.row.problem(format!("{path}.role"), other.describe(), "write \"user\" or \"assistant\"");
                None
            }
        });
        let content =
            fields.take("content").and_then(|node| self.row.string(&format!("{path}.content"), node));
        Some(Turn { role: role?, content: content? })
    }

    /// One entry a timestamp; `None` for the ones that cannot be read, which are reported.
    fn times(&mut self, node: Node) -> Option<Vec<Option<DateTime>>> {
        let items = self.row.items("timestamps", node, "session")?;
        Some(
            items
                .into_iter()
                .enumerate()
                .map(|(i, item)| self.time(&format!("timestamps[{i}]"), item))
                .collect(),
        )
    }

    fn time(&mut self, path: &str, node: Node) -> Option<DateTime> {
        let parsed = match &node {
            Node::String(text) => parse_time(text),
            _ => None,
        };
        if parsed.is_none() {
            let remedy =
                "write a date and time that exist, as \"YYYY-MM-DD HH:MM:SS\" or \"YYYY-MM-DD HH:MM\"";
            self.row.problem(path, node.describe(), remedy);
        }
        parsed
    }

    fn relevant(&mut self, node: Node) -> Option<(usize, usize)> {
        const PATH: &str = "relevant_session_index";
        let remedy = "write [old, new]: two zero-based session indices";
        let items = match node {
            Node::Array(items) => items,
            other => {
                self.row.problem(PATH, other.describe(), remedy);
                return None;
            }
        };
        let Ok([old, new]) = <[Node; 2]>::try_from(items).map_err(|items| {
            self.row.problem(PATH, format!("an array of {}", items.len()), remedy);
        }) else {
            return None;
        };
        let old = self.index(&format!("{PATH}[0]"), &old);
        let new = self.index(&format!("{PATH}[1]"), &new);
        let (old, new) = (old?, new?);
        if old >= new {
            let what =
                if old == new { "the same session twice" } else { "the old session after the new one" };
            self.row.problem(
                PATH,
                format!("[{old}, {new}], {what}"),
                "name the old session first, then a later one",
            );
            return None;
        }
        Some((old, new))
    }

    fn index(&mut self, path: &str, node: &Node) -> Option<usize> {
        let index = match node {
            Node::Number(number) => number.as_u64().and_then(|n| usize::try_from(n).ok()),
            _ => None,
        };
        if index.is_none() {
            self.row.problem(path, node.describe(), "write a session's zero-based index, a whole number");
        }
        index
    }

    fn in_range(&mut self, path: &str, index: usize, sessions: usize) {
        if index >= sessions {
            let found = format!("{index} with {sessions} sessions");
            self.row.problem(path, found, format!("write an index below {sessions}"));
        }
    }

    fn probes(&mut self, node: Node) -> Option<Vec<Probe>> {
        const PATH: &str = "probing_queries";
        let mut fields = self.object(PATH, node, &PROBES.map(|(field, _, _)| field), &[])?;
        let mut probes = Vec::with_capacity(PROBES.len());
        for (field, id, form) in PROBES {
            let query = fields.take(field).and_then(|node| self.row.string(&format!("{PATH}.{field}"), node));
            probes.extend(query.map(|query| probe(id, form, query)));
        }
        Some(probes)
    }

    /// Never decreasing; old strictly before new; the query not before the last session.
    fn order_of_times(
        &mut self,
        times: &[Option<DateTime>],
        relevant: Option<(usize, usize)>,
        query_time: Option<DateTime>,
    ) {
        let mut latest: Option<(usize, DateTime)> = None;
        for (i, time) in times.iter().enumerate() {
            let Some(time) = *time else { continue };
            match latest {
                Some((before, at)) if time < at => {
                    let found = format!("{} after timestamps[{before}] = {}", shown(time), shown(at));
                    self.row.problem(format!("timestamps[{i}]"), found, "put the sessions in time order");
                }
                _ => latest = Some((i, time)),
            }
        }
        if let Some((old, new)) = relevant
            && let (Some(Some(a)), Some(Some(b))) = (times.get(old), times.get(new))
            && a == b
        {
            let found = format!("{}, the time of the old session (timestamps[{old}])", shown(*b));
            self.row.problem(format!("timestamps[{new}]"), found, "date the new session after the old one");
        }
        if let (Some((last, at)), Some(query)) = (latest, query_time)
            && query < at
        {
            let found = format!("{} before timestamps[{last}] = {}", shown(query), shown(at));
            self.row.problem(QUERY_TIME, found, "date the query not before the last session");
        }
    }
}

/// The format's longer form of a time.
const TIME: &str = "%Y-%m-%d %H:%M:%S";

/// A time in that form.
pub(super) fn shown(time: DateTime) -> String {
    time.strftime(TIME).to_string()
}

/// Exactly `YYYY-MM-DD HH:MM` or `YYYY-MM-DD HH:MM:SS`, and a time that exists.
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
        assert_eq!(parse_time("2026-02-28 23:59").map(shown).as_deref(), Some("2026-02-28 23:59:00"));
        assert_eq!(parse_time("2024-02-29 00:00:01").map(shown).as_deref(), Some("2024-02-29 00:00:01"));
        for bad in [
            "",
            "2026-02-29 10:00",
            "2026-13-01 10:00",
            "2026-01-01 24:00",
            "2026-01-01 10:60:00",
            "2026-01-01T10:00",
            "2026-1-01 10:00:0",
            "2026-01-01 10:00:00Z",
            "+026-01-01 10:00",
            "2026-01-01 1\u{e9}:00",
        ] {
            assert_eq!(parse_time(bad), None, "{bad:?}");
        }
    }
}
