//! Parses events to history segments, in file order: the order of the narrative, not of time.

use std::collections::HashMap;

use jiff::civil::DateTime;

use super::array::Row;
use super::findings::{FileFindings, quote};
use super::terms::{EVENT, FIELDS, TIMESTAMP};
use crate::case::finding::Check;
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

pub(super) fn read(rows: &[Row], mut to: FileFindings<'_>) -> Events {
    let mut events = Events::default();
    for (at, row) in rows.iter().enumerate() {
        let id = to.id(at, row, &KNOWN);
        let uid = id.as_deref();
        let text = to.text(at, uid, row, TIMESTAMP);
        let mut turns = Vec::new();
        let time = match &text {
            None => None,
            Some(text) => {
                let time = time(text);
                if time.is_none() {
                    let finding = to.finding(&NO_DATE, quote(text)).at([at]);
                    to.flag(finding);
                    turns.push(Turn::new(TIMESTAMP, text.as_str()));
                }
                time
            }
        };
        for field in FIELDS {
            turns.extend(to.text(at, uid, row, field).map(|text| Turn::new(field, text)));
        }
        if turns.is_empty() {
            let finding = to.finding(&EMPTY_EVENT, "an event without a text").at([at]);
            to.flag(finding);
        }
        events.segments.push(Segment { kind: EVENT.to_owned(), index: at, time, turns });
        let Some(id) = id else { continue };
        match events.by_id.get(&id) {
            Some(first) => {
                let found = format!("the id of row {first} again");
                to.problem(at, Some(&id), "id", found, "give every event its own id");
            }
            None => {
                events.by_id.insert(id, at);
            }
        }
    }
    if rows.is_empty() {
        to.problem(0, None, "(file)", "no events", "give the events of the data set");
    }
    to.refuse_unknown(&KNOWN);
    to.done();
    events
}

fn time(text: &str) -> Option<DateTime> {
    let text = text.trim();
    FORMATS.iter().find_map(|format| DateTime::strptime(format, text).ok())
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_have_seconds_or_none_and_exist() {
        let shown = |text: &str| time(text).map(|time| time.to_string());
        assert_eq!(shown("1969-08-15 14:01:20").as_deref(), Some("1969-08-15T14:01:20"));
        assert_eq!(shown("1969-08-15 14:01").as_deref(), Some("1969-08-15T14:01:00"));
        for bad in ["", "1969", "1969-08-15", "1969-02-30 10:00:00", "1969-08-15 25:00:00", "summer 1969"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
