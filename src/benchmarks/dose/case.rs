//! One row of `dose.jsonl`: every field checked, every problem listed, and a [`Case`] only if there is none.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use serde_json::json;

use super::terms::{
    ABSENT, CURRENT, EXPECTS, ITEM, NO_VALUE, PREFIX, QUESTION, ROLES, SESSION, STALE, SWEEP, TWIN, twin,
};
use crate::benchmarks::fields::{Checker, Fields, WHOLE_ROW};
use crate::benchmarks::node::{Node, quote};
use crate::benchmarks::reading::RowProblems;
use crate::data::{Case, Contrasted, Evidence, History, JudgeOnly, Notes, Probe, Segment, Turn};

const OF_ROW: [&str; 7] = ["id", ITEM, TWIN, "factors", "sessions", "query_time", "probes"];
const OF_SESSION: [&str; 3] = ["time", "turns", "role"];
const OF_TURN: [&str; 2] = ["role", "content"];
const OF_PROBE: [&str; 7] = ["id", "query", PREFIX, CURRENT, STALE, ABSENT, EXPECTS];
const TIME: &str = "%Y-%m-%d %H:%M";

/// The case of a row, or all that is wrong with it.
pub(super) fn case_of(node: Node, row: Checker<'_>) -> Result<Case, RowProblems> {
    let mut row = RowChecker { row, labels: BTreeMap::new() };
    let case = row.case(node);
    let RowChecker { row: Checker { problems, .. }, labels } = row;
    match case {
        Some(case) if problems.is_empty() => Ok(Case { labels, ..case }),
        _ => Err(RowProblems { problems, labels, ..RowProblems::default() }),
    }
}

/// Takes a row apart. A `None` from its methods always comes with a problem.
struct RowChecker<'a> {
    row: Checker<'a>,
    labels: BTreeMap<String, String>,
}

impl RowChecker<'_> {
    fn case(&mut self, node: Node) -> Option<Case> {
        let mut fields = self.object(WHOLE_ROW, node, &OF_ROW)?;
        let id = self.row.text(&mut fields, "id", "id");
        self.row.uid.clone_from(&id);
        for label in [ITEM, TWIN] {
            if let Some(text) = self.row.text(&mut fields, label, label) {
                self.labels.insert(label.to_owned(), text);
            }
        }
        if let Some(name) = self.labels.get(TWIN).filter(|name| twin(name).is_none()) {
            let remedy = "write ab or ba, a kind and an order such as no-update-ab (no-update, no-old, other, paraphrase), or blind";
            self.row.problem(TWIN, quote(name), remedy);
        }
        if let Some(factors) = self.row.required(&mut fields, "factors", "factors") {
            self.factors(factors);
        }
        let sessions = self.row.array(&mut fields, "sessions", "sessions", "session");
        let sessions = sessions.map(|sessions| self.sessions(sessions));
        let query_time = self.row.required(&mut fields, "query_time", "query_time");
        let query_time = query_time.and_then(|node| self.time("query_time", node));
        let probes = self.row.array(&mut fields, "probes", "probes", "question");
        let (probes, of_probes) = self.probes(probes?);
        let (segments, evidence) = sessions?;
        Some(Case {
            id: id?,
            history: History { segments, query_time: Some(query_time?) },
            evidence,
            probes,
            judge: JudgeOnly { notes: Notes::new(), of_probes },
            ..Case::default()
        })
    }

    fn object(&mut self, path: &str, node: Node, known: &[&str]) -> Option<Fields> {
        let remedy = |name: &str| {
            (!known.contains(&name)).then(|| format!("leave it out; there are {}", known.join(", ")))
        };
        self.row.object_of(path, node, "write an object", remedy)
    }

    /// Every factor becomes a label.
    fn factors(&mut self, node: Node) {
        let Some(Fields(factors)) = self.row.object("factors", node) else { return };
        for (name, level) in factors {
            let path = format!("factors.{name}");
            let text = match level {
                Node::String(text) if !text.trim().is_empty() => text,
                Node::Bool(value) => value.to_string(),
                Node::Number(number) => match number.as_f64() {
                    Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
                    _ => number.to_string(),
                },
                other => {
                    self.row.problem(path, other.describe(), "write a number, true or false, or a word");
                    continue;
                }
            };
            if OF_ROW.contains(&name.as_str()) || name.trim().is_empty() {
                self.row.problem(path, quote(&name), "give the factor another name");
            } else {
                self.labels.insert(name, text);
            }
        }
        if !self.labels.contains_key(SWEEP) {
            let remedy = "name the factor that is varied in this row, or base";
            self.row.problem(format!("factors.{SWEEP}"), "no such field", remedy);
        }
    }

    fn sessions(&mut self, nodes: Vec<Node>) -> (Vec<Segment>, Vec<Evidence>) {
        let (mut segments, mut evidence) = (Vec::with_capacity(nodes.len()), Vec::new());
        for (index, node) in nodes.into_iter().enumerate() {
            let path = format!("sessions[{index}]");
            let Some(mut fields) = self.object(&path, node, &OF_SESSION) else { continue };
            let time = self.row.required(&mut fields, &format!("{path}.time"), "time");
            let time = time.and_then(|node| self.time(&format!("{path}.time"), node));
            let turns = self.row.array(&mut fields, &format!("{path}.turns"), "turns", "turn");
            let turns = turns.into_iter().flatten().enumerate();
            let turns =
                turns.filter_map(|(nth, node)| self.turn(&format!("{path}.turns[{nth}]"), node)).collect();
            let role = match fields.take("role") {
                None | Some(Node::Null) => None,
                Some(Node::String(role)) if ROLES.contains(&role.as_str()) => Some(role),
                Some(other) => {
                    let remedy = format!("write {}, or leave it out", ROLES.join(", "));
                    self.row.problem(format!("{path}.role"), other.describe(), remedy);
                    None
                }
            };
            evidence.extend(role.map(|role| Evidence::segment(role, index)));
            segments.push(Segment { kind: SESSION.to_owned(), index, time, turns });
        }
        (segments, evidence)
    }

    fn turn(&mut self, path: &str, node: Node) -> Option<Turn> {
        let mut fields = self.object(path, node, &OF_TURN)?;
        let speaker = format!("{path}.role");
        let role = match self.row.required(&mut fields, &speaker, "role") {
            Some(Node::String(role)) if role == "user" || role == "assistant" => Some(role),
            Some(other) => {
                self.row.problem(speaker, other.describe(), "write \"user\" or \"assistant\"");
                None
            }
            None => None,
        };
        let content = self.row.text(&mut fields, &format!("{path}.content"), "content");
        Some(Turn { role: role?, content: content? })
    }

    fn time(&mut self, path: &str, node: Node) -> Option<DateTime> {
        let parsed = match &node {
            Node::String(text) => DateTime::strptime(TIME, text).ok(),
            _ => None,
        };
        if parsed.is_none() {
            let remedy = "write a date and time that exist, as \"YYYY-MM-DD HH:MM\"";
            self.row.problem(path, node.describe(), remedy);
        }
        parsed
    }

    fn probes(&mut self, nodes: Vec<Node>) -> (Vec<Probe>, BTreeMap<String, Notes>) {
        let (mut probes, mut notes) = (Vec::with_capacity(nodes.len()), BTreeMap::new());
        for (nth, node) in nodes.into_iter().enumerate() {
            let path = format!("probes[{nth}]");
            let Some((probe, of_probe)) = self.probe(&path, node) else { continue };
            if notes.insert(probe.id.clone(), of_probe).is_some() {
                self.row.problem(format!("{path}.id"), quote(&probe.id), "give every probe its own id");
            }
            probes.push(probe);
        }
        (probes, notes)
    }

    fn probe(&mut self, path: &str, node: Node) -> Option<(Probe, Notes)> {
        let mut fields = self.object(path, node, &OF_PROBE)?;
        let at = |name: &str| format!("{path}.{name}");
        let id = self.row.text(&mut fields, &at("id"), "id");
        let query = self.row.text(&mut fields, &at("query"), "query");
        let prefix = match self.row.required(&mut fields, &at(PREFIX), PREFIX) {
            Some(Node::String(text)) if text.trim_end() == text => Some(text),
            Some(other) => {
                let remedy = "write how the answer begins, without white space behind it, or \"\"";
                self.row.problem(at(PREFIX), other.describe(), remedy);
                None
            }
            None => None,
        };
        let current = self.row.text(&mut fields, &at(CURRENT), CURRENT);
        let stale = self.values(&mut fields, &at(STALE), STALE);
        let absent = self.values(&mut fields, &at(ABSENT), ABSENT);
        let expects = match self.row.required(&mut fields, &at(EXPECTS), EXPECTS) {
            Some(Node::String(text)) if text == CURRENT || text == NO_VALUE => Some(text),
            Some(other) => {
                self.row.problem(at(EXPECTS), other.describe(), format!("write {CURRENT} or {NO_VALUE}"));
                None
            }
            None => None,
        };
        let contrast = Contrasted { current: current?, stale: stale?, absent: absent? };
        let Contrasted { current, stale, absent } = &contrast;
        let mut seen = BTreeSet::new();
        for value in [current].into_iter().chain(stale).chain(absent) {
            if !seen.insert(value.trim()) {
                let remedy = format!("name a value once among {CURRENT}, {STALE} and {ABSENT}");
                self.row.problem(path, format!("the value {} twice", quote(value)), remedy);
            }
        }
        let (id, prefix) = (id?, prefix?);
        let notes = json!({
            CURRENT: current, STALE: stale, ABSENT: absent, EXPECTS: expects?, PREFIX: prefix,
        });
        let probe = Probe {
            id,
            form: QUESTION.to_owned(),
            query: query?,
            prefix,
            contrast: Some(contrast),
            ..Probe::default()
        };
        Some((probe, notes.as_object().cloned().unwrap_or_default()))
    }

    /// A list of values, which may be empty.
    fn values(&mut self, fields: &mut Fields, path: &str, name: &str) -> Option<Vec<String>> {
        match self.row.required(fields, path, name)? {
            Node::Array(items) => {
                let items = items.into_iter().enumerate();
                items.map(|(nth, item)| self.row.string(&format!("{path}[{nth}]"), item)).collect()
            }
            other => {
                self.row.problem(path, other.describe(), "write an array of values");
                None
            }
        }
    }
}
