//! The events of a data set: rows of its input file become the segments of a history.
//!
//! File order is kept: it is the order of the narrative, which is not that of time.

use std::collections::HashMap;

use jiff::civil::DateTime;

use super::array::Row;
use super::findings::{FileFindings, examples, quote};
use super::terms::{EVENT, FIELDS, TIMESTAMP};
use crate::data::{Segment, Turn};

/// What an event's row may hold.
const KNOWN: [&str; 8] =
    ["id", TIMESTAMP, "location", "action", "dialogue", "environment", "background", "inner_thought"];
/// How the format writes a time.
const FORMATS: [&str; 2] = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"];

/// The events of one data set.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// In file order; the index of each is its place.
    pub segments: Vec<Segment>,
    /// The place of each id.
    pub by_id: HashMap<String, usize>,
}

/// Reads the rows of an input file. Everything odd that leaves the events usable is flagged.
pub(super) fn read(rows: &[Row], mut to: FileFindings<'_>) -> Events {
    let mut events = Events::default();
    let (mut undated, mut unread, mut bare) = (0, Vec::new(), 0);
    for (at, row) in rows.iter().enumerate() {
        let id = to.id(at, row, &KNOWN);
        let uid = id.as_deref();
        let text = to.text(at, uid, row, TIMESTAMP);
        let mut turns = Vec::new();
        let time = match &text {
            None => {
                undated += 1;
                None
            }
            Some(text) => {
                let time = time(text);
                if time.is_none() {
                    unread.push(format!("row {at} {}", quote(text)));
                    turns.push(Turn::new(TIMESTAMP, text.as_str()));
                }
                time
            }
        };
        for field in FIELDS {
            turns.extend(to.text(at, uid, row, field).map(|text| Turn::new(field, text)));
        }
        bare += usize::from(turns.is_empty());
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
    to.flag(undated, || "events have no timestamp; they are shown without one".to_owned());
    to.flag(unread.len(), || {
        format!("timestamps are no date; they are shown as they are: {}", examples(&unread))
    });
    let (by_date, by_none) = inversions(&events.segments);
    to.flag(by_date + by_none, || {
        format!(
            "inversions of time, where an event's timestamp sorts before that of the event above it ({by_date} by date, {by_none} \
             because it has none); file order is kept"
        )
    });
    to.flag(bare, || "events say nothing: all of their fields are empty".to_owned());
    to.done();
    events
}

/// How many events come before the event above them: by date, and because they have no timestamp, which sorts first.
fn inversions(segments: &[Segment]) -> (usize, usize) {
    let mut counts = (0, 0);
    for (before, event) in segments.iter().zip(segments.iter().skip(1)) {
        match (before.time, event.time) {
            (Some(before), Some(time)) if time < before => counts.0 += 1,
            (Some(_), None) => counts.1 += 1,
            _ => {}
        }
    }
    counts
}

/// A time that exists, with seconds or without.
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
