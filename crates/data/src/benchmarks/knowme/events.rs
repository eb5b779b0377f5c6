//! Parses events to history segments, in file order: the order of the narrative, not of time.

use std::collections::HashMap;

use jiff::civil::DateTime;

use super::rows::{Findings, Row, refuse_unknown};
use super::terms::{EVENT, FIELDS, TIMESTAMP};
use crate::benchmarks::shape::Places;
use crate::case::finding::{Check, quote};
use crate::case::{Segment, Turn};

static NO_DATE: Check = Check::warning("no-date", "timestamps that are no date; they are shown as they are");
static EMPTY_EVENT: Check =
    Check::warning("empty-event", "events that say nothing: all of their fields are empty");

/// Known event fields. `category` (data set 3) only lists the non-empty fields.
const KNOWN: [&str; 9] = [
    "id",
    TIMESTAMP,
    "location",
    "action",
    "dialogue",
    "environment",
    "background",
    "inner_thought",
    "category",
];
const FORMATS: [&str; 2] = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"];

#[derive(Debug, Default)]
pub(super) struct Events {
    pub segments: Vec<Segment>,
    pub by_id: HashMap<String, usize>,
}

pub(super) fn read(file: &str, mut rows: Vec<Row<'_>>, findings: &mut Findings) -> Events {
    let (mut events, mut ids) = (Events::default(), Places::new());
    if rows.is_empty() {
        findings.whole(file, "no events", "give the events of the data set");
    }
    refuse_unknown(&mut rows, &KNOWN);
    for (at, mut row) in rows.into_iter().enumerate() {
        let text = row.text(TIMESTAMP);
        let time = text.as_deref().and_then(time);
        let mut turns = Vec::new();
        if let Some(text) = text.filter(|_| time.is_none()) {
            findings.flags.push(findings.finding(&NO_DATE, file, quote(&text)).at([at]));
            turns.push(Turn::new(TIMESTAMP, text));
        }
        turns.extend(FIELDS.into_iter().filter_map(|field| Some(Turn::new(field, row.text(field)?))));
        if turns.is_empty() {
            findings.flags.push(findings.finding(&EMPTY_EVENT, file, "an event without a text").at([at]));
        }
        events.segments.push(Segment { kind: EVENT.to_owned(), index: at, time, turns });
        row.check.unique("id", row.id.as_deref(), "give every event its own id", &mut ids);
        if let Some(id) = row.id {
            events.by_id.entry(id).or_insert(at);
        }
        findings.problems.append(&mut row.check.problems);
    }
    events
}

fn time(text: &str) -> Option<DateTime> {
    let text = text.trim();
    FORMATS.iter().find_map(|format| DateTime::strptime(format, text).ok())
}
