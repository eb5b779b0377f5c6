//! Messages become histories: sessions in the order of their first rows, numbered from 0.

use std::collections::{BTreeMap, HashMap};

use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;

use super::table::{Column, Row, Table};
use super::terms::{CASE, ROLE, SESSION, TEXT, TIME};
use crate::benchmarks::reading::Problem;
use crate::benchmarks::shape::{Checker, quote};
use crate::case::finding::{Check, Finding};
use crate::case::{Segment, Turn};

pub(super) const COLUMNS: [Column; 5] = [
    Column {
        name: SESSION,
        also: &["session_id", "conversation", "conversation_id", "chat", "thread"],
        needed: true,
    },
    Column { name: ROLE, also: &["speaker", "author", "sender"], needed: true },
    Column { name: TEXT, also: &["content", "message", "utterance"], needed: true },
    Column { name: TIME, also: &["timestamp", "date", "datetime", "created_at"], needed: false },
    CASE_COLUMN,
];
pub(super) const CASE_COLUMN: Column =
    Column { name: CASE, also: &["user", "user_id", "history"], needed: false };

const ROLES: [(&str, &[&str]); 3] =
    [("user", &["user", "human"]), ("assistant", &["assistant", "ai", "bot"]), ("system", &["system"])];

static TIME_ORDER: Check = Check::warning(
    "time-order",
    "sessions and messages dated before the one above them, or without a date in a history that has dates",
);
static SPLIT_SESSION: Check = Check::warning("split-session", "sessions whose rows do not follow each other");

/// A history and where its messages stand in the file.
pub(super) struct History {
    pub id: String,
    /// By index: the name in the file.
    pub names: Vec<String>,
    pub segments: Vec<Segment>,
    /// By session and turn.
    pub rows: Vec<Vec<usize>>,
    pub flags: Vec<Finding>,
}

/// Sessions and messages collected from the rows of one history.
struct Open<'a> {
    history: History,
    places: HashMap<String, usize>,
    /// Per session: the time of its latest dated message.
    latest: Vec<Option<DateTime>>,
    last: Option<usize>,
    checker: Checker<'a>,
}

/// In the order of their first rows, each with the problems of its rows. `default` is the id without a column.
pub(super) fn histories<'a>(table: &Table<'a>, default: &str) -> Vec<(History, Checker<'a>)> {
    let (mut open, mut places): (Vec<Open<'a>>, HashMap<String, usize>) = Default::default();
    for row in &table.rows {
        let id = if table.has(CASE) { table.cell(row, CASE).trim() } else { default };
        let place = *places.entry(id.to_owned()).or_insert_with(|| {
            open.push(Open::new(table.file, id, row.number));
            open.len() - 1
        });
        let Some(of) = open.get_mut(place) else { continue };
        of.checker.row = row.number;
        if id.is_empty() {
            of.checker.problem(CASE, "an empty cell", "name the history that the message belongs to");
        }
        of.add(table, row);
    }
    open.into_iter().map(Open::finish).collect()
}

impl<'a> Open<'a> {
    fn new(file: &'a str, id: &str, row: usize) -> Self {
        let history = History {
            id: id.to_owned(),
            names: Vec::new(),
            segments: Vec::new(),
            rows: Vec::new(),
            flags: Vec::new(),
        };
        let checker = Checker::new(Some(file), row, Some(id).filter(|id| !id.is_empty()));
        Open { history, places: HashMap::new(), latest: Vec::new(), last: None, checker }
    }

    fn add(&mut self, table: &Table<'_>, row: &Row) {
        let (name, said) = (table.cell(row, SESSION).trim(), table.cell(row, ROLE).trim());
        let (text, time) = (table.cell(row, TEXT), table.cell(row, TIME).trim());
        if name.is_empty() {
            self.checker.problem(SESSION, "an empty cell", "write the session's name or number");
        }
        let role =
            ROLES.iter().find(|(_, also)| also.contains(&&*said.to_lowercase())).map(|(role, _)| *role);
        if role.is_none() {
            let found = if said.is_empty() { "an empty cell".to_owned() } else { quote(said) };
            self.checker.problem(ROLE, found, "write user (human), assistant (ai, bot) or system");
        }
        if text.trim().is_empty() {
            self.checker.problem(TEXT, "an empty cell", "write what was said, or remove the row");
        }
        let at = parse_time(time);
        if at.is_none() && !time.is_empty() {
            let remedy = "write a date and time that exist, as \"YYYY-MM-DD HH:MM\", or leave the cell empty";
            self.checker.problem(TIME, quote(time), remedy);
        }
        let index = *self.places.entry(name.to_owned()).or_insert(self.history.segments.len());
        let History { id, names, segments, rows, flags } = &mut self.history;
        if index == segments.len() {
            segments.push(Segment { kind: SESSION.to_owned(), index, time: None, turns: Vec::new() });
            names.push(name.to_owned());
            rows.push(Vec::new());
            self.latest.push(None);
        } else if self.last != Some(index) {
            let what = format!("session {name:?} goes on in row {} behind another one", row.number);
            flags.push(Finding::new(&SPLIT_SESSION, id, what).at([index]));
        }
        self.last = Some(index);
        let (Some(segment), Some(rows), Some(latest)) =
            (segments.get_mut(index), rows.get_mut(index), self.latest.get_mut(index))
        else {
            return;
        };
        if let (Some(at), Some(before)) = (at, *latest)
            && at < before
        {
            let what = format!("row {} is of {at}, below a message of {before}", row.number);
            flags.push(Finding::new(&TIME_ORDER, id, what).at([index]));
        }
        *latest = at.or(*latest);
        segment.time = segment.time.or(at);
        segment.turns.push(Turn::new(role.unwrap_or(said), text));
        rows.push(row.number);
    }

    fn finish(mut self) -> (History, Checker<'a>) {
        let History { id, segments, flags, .. } = &mut self.history;
        let dated = segments.iter().any(|segment| segment.time.is_some());
        let mut above: Option<(usize, DateTime)> = None;
        for Segment { index, time, .. } in segments.iter().filter(|_| dated) {
            let what = match (time, above) {
                (None, _) => "it has no date, and others have".to_owned(),
                (Some(time), Some((other, before))) if *time < before => {
                    format!(
                        "it is of {time}, below session {other} of {before}; sessions keep the order of the file"
                    )
                }
                _ => String::new(),
            };
            if !what.is_empty() {
                flags.push(Finding::new(&TIME_ORDER, id, what).at([*index]));
            }
            above = time.map(|time| (*index, time)).or(above);
        }
        self.checker.problems = said_once(std::mem::take(&mut self.checker.problems));
        (self.history, self.checker)
    }
}

/// Rows with one fault in one column that are told each by itself.
const EACH: usize = 3;

/// A fault of a column in more than [`EACH`] rows becomes one problem, at the first row.
fn said_once(problems: Vec<Problem>) -> Vec<Problem> {
    let mut kinds: BTreeMap<(String, String), Vec<Problem>> = BTreeMap::new();
    for problem in problems {
        kinds.entry((problem.field.clone(), problem.remedy.clone())).or_default().push(problem);
    }
    let mut all: Vec<Problem> = Vec::new();
    for mut of in kinds.into_values() {
        let count = of.len();
        if count > EACH {
            let rows: Vec<String> = of.iter().take(EACH).map(|problem| problem.row.to_string()).collect();
            let is_same = of.iter().all(|problem| problem.found == of[0].found);
            let others = if is_same { "" } else { " and others like it" };
            of.truncate(1);
            of[0].found += &format!("{others} in {count} rows ({}, ...)", rows.join(", "));
        }
        all.extend(of);
    }
    all.sort_by_key(|problem| problem.row);
    all
}

/// ISO 8601 with or without time, seconds and offset (which is dropped), `/` in the date's places, or seconds or milliseconds since 1970.
fn parse_time(text: &str) -> Option<DateTime> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && [10, 13].contains(&text.len()) {
        let number: i64 = text.parse().ok()?;
        let at = if text.len() == 10 {
            jiff::Timestamp::from_second(number)
        } else {
            jiff::Timestamp::from_millisecond(number)
        };
        return Some(at.ok()?.to_zoned(jiff::tz::TimeZone::UTC).datetime());
    }
    let date_first = text.get(4..5).is_some_and(|sign| ["-", "/"].contains(&sign));
    let text = text.replacen('/', "-", 2);
    let pieces = Pieces::parse(&text).ok().filter(|_| date_first)?;
    Some(pieces.date().to_datetime(pieces.time().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_where_day_and_month_cannot_be_mistaken() {
        for (text, time) in [
            ("2025-03-01 10:00", Some("2025-03-01T10:00:00")),
            ("2025-03-01T10:00:59.5Z", Some("2025-03-01T10:00:59.5")),
            ("2025-03-01T10:00:00+09:00", Some("2025-03-01T10:00:00")),
            ("2025/03/01 10:00", Some("2025-03-01T10:00:00")),
            ("2025-03-01", Some("2025-03-01T00:00:00")),
            ("1740823200", Some("2025-03-01T10:00:00")),
            ("1740823200000", Some("2025-03-01T10:00:00")),
            ("3/1/2025 10:00", None),
            ("01.03.2025", None),
            ("2025-02-30", None),
            ("10:00", None),
            ("", None),
            ("yesterday", None),
        ] {
            assert_eq!(parse_time(text).map(|time| time.to_string()).as_deref(), time, "{text}");
        }
    }
}
