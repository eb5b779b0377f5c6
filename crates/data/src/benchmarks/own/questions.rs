//! Questions become probes. `old` and `new` are found in the history by text, as `trace` finds spans: exactly once.

use super::history::{CASE_COLUMN, History};
use super::table::{Column, Row, Table};
use super::terms::{ANSWER, CASE, EXPECTED, ID, KIND, NEW, OLD, QUESTION, SESSION};
use crate::benchmarks::reading::RowProblems;
use crate::benchmarks::shape::{Checker, Places, quote};
use crate::case::{Evidence, Notes, Probe};
use crate::ground::words::occurrences;

pub(super) const COLUMNS: [Column; 7] = [
    QUESTION_COLUMN,
    Column { name: ANSWER, also: &["expected", "expected_answer", "gold", "reference"], needed: false },
    Column { name: OLD, also: &["outdated"], needed: false },
    Column { name: NEW, also: &["updated"], needed: false },
    Column { name: ID, also: &["question_id"], needed: false },
    Column { name: KIND, also: &["type", "category"], needed: false },
    CASE_COLUMN,
];
pub(super) const QUESTION_COLUMN: Column = Column { name: QUESTION, also: &["query"], needed: true };

/// Least similarity (Sorensen-Dice of letter pairs) of a text that is named as nearest.
const LIKE: f64 = 0.3;

pub(super) type Asked = Result<(Probe, Notes), RowProblems>;

/// Questions by history, in file order. Those of no history are with the first one, as problems.
pub(super) fn questions(table: &Table<'_>, histories: &[History]) -> Vec<Vec<Asked>> {
    let mut asked: Vec<Vec<Asked>> = histories.iter().map(|_| Vec::new()).collect();
    let mut ids = Places::new();
    for (nth, row) in table.rows.iter().enumerate() {
        let given = Some(table.cell(row, ID).trim()).filter(|id| !id.is_empty());
        let id = given.map_or_else(|| format!("q{}", nth + 1), str::to_owned);
        let mut checker = Checker::new(Some(table.file), row.number, Some(&id));
        checker.unique(ID, Some(&id), "give every question its own id", &mut ids);
        let place = history_of(&mut checker, table, row, histories);
        let place_or_first = place.unwrap_or(0);
        let history = place.and_then(|place| histories.get(place));
        if let Some(asked) = asked.get_mut(place_or_first) {
            asked.push(question(checker, table, row, id, history));
        }
    }
    asked
}

fn history_of(
    checker: &mut Checker<'_>,
    table: &Table<'_>,
    row: &Row,
    histories: &[History],
) -> Option<usize> {
    let named = table.cell(row, CASE).trim();
    if named.is_empty() && histories.len() == 1 {
        return Some(0);
    }
    let place = histories.iter().position(|history| history.id == named);
    if place.is_none() {
        let known: Vec<String> = histories.iter().take(5).map(|history| quote(&history.id)).collect();
        let more = if histories.len() > 5 { ", ..." } else { "" };
        let remedy = format!("name the history: {}{more}", known.join(", "));
        let found = if named.is_empty() { "no history".to_owned() } else { quote(named) };
        checker.problem(CASE, found, remedy);
    }
    place
}

fn question(
    mut checker: Checker<'_>,
    table: &Table<'_>,
    row: &Row,
    id: String,
    history: Option<&History>,
) -> Asked {
    let cell = |column| Some(table.cell(row, column).trim()).filter(|cell| !cell.is_empty());
    let query = cell(QUESTION).unwrap_or_default().to_owned();
    if query.is_empty() {
        checker.problem(QUESTION, "an empty cell", "write the question, or remove the row");
    }
    let (mut notes, mut evidence) = (Notes::new(), Vec::new());
    notes.extend(cell(ANSWER).map(|answer| (EXPECTED.to_owned(), answer.into())));
    for role in [OLD, NEW] {
        let (Some(named), Some(history)) = (cell(role), history) else { continue };
        match place(named, history) {
            Ok(Place { session, is_text }) => {
                evidence.push(Evidence::segment(role, session));
                notes.extend(is_text.then(|| (role.to_owned(), named.into())));
            }
            Err((found, remedy)) => checker.problem(role, found, remedy),
        }
    }
    if let [old, new] = evidence.as_slice()
        && old.place.segment >= new.place.segment
    {
        let [old, new] = [old, new].map(|evidence| evidence.place.segment);
        let (what, remedy) = match old == new {
            true => {
                ("the session of `old` as well", "attention is compared between sessions: give them as two")
            }
            false => ("before the session of `old`", "`old` is the earlier one, which `new` updates"),
        };
        checker.problem(NEW, format!("session {new}, {what} (session {old})"), remedy);
    }
    let kind = cell(KIND).unwrap_or(match (cell(OLD), cell(NEW)) {
        (Some(_), Some(_)) => "update",
        (Some(_), None) => "old only",
        (None, Some(_)) => "new only",
        (None, None) => "no update",
    });
    let facets = [(KIND.to_owned(), kind.to_owned())].into();
    let probe = Probe { id, form: QUESTION.to_owned(), query, facets, ..Probe::default() };
    let known = vec![probe.clone()];
    checker.outcome(Some((Probe { evidence, ..probe }, notes)), Default::default(), known)
}

struct Place {
    session: usize,
    is_text: bool,
}

/// A session by its name in the file or as `session[N]`, or the one message that holds the text.
fn place(named: &str, history: &History) -> Result<Place, (String, String)> {
    let sessions = history.segments.len();
    let by_index = named.strip_prefix("session[").and_then(|rest| rest.strip_suffix(']'));
    let number = |text: &str| text.parse::<usize>().ok();
    if let Some(index) = by_index.and_then(number) {
        return match index < sessions {
            true => Ok(Place { session: index, is_text: false }),
            false => Err((quote(named), format!("give one of session[0] to session[{}]", sessions - 1))),
        };
    }
    if let Some(session) = history.names.iter().position(|name| name == named) {
        return Ok(Place { session, is_text: false });
    }
    if number(named).is_some() {
        let remedy = format!("give {}, or session[N] from 0", named_by(history));
        return Err((format!("{}, the name of no session", quote(named)), remedy));
    }
    let turns = history.segments.iter().flat_map(|segment| {
        segment.turns.iter().enumerate().map(move |(turn, of)| (segment.index, turn, of.content.as_str()))
    });
    let row =
        |session: usize, turn: usize| history.rows.get(session).and_then(|rows| rows.get(turn)).copied();
    let turns: Vec<(usize, usize, &str)> =
        turns.map(|(session, turn, text)| (session, row(session, turn).unwrap_or_default(), text)).collect();
    let found: Vec<(usize, usize)> = (turns.iter())
        .flat_map(|(session, row, text)| occurrences(text, named).into_iter().map(|_| (*session, *row)))
        .collect();
    match found.as_slice() {
        [(session, _)] => Ok(Place { session: *session, is_text: true }),
        [] => {
            let nearest = nearest(named, &turns).map_or_else(
                || "no message is like it".to_owned(),
                |(row, text)| format!("row {row} has {}", quote(text)),
            );
            let remedy = format!(
                "{nearest}; copy the text from its message (capitals, spaces and line breaks count), or give {}",
                named_by(history)
            );
            Err((format!("{}, which is in no message", quote(named)), remedy))
        }
        several => {
            let rows: Vec<String> = several.iter().take(4).map(|(_, row)| row.to_string()).collect();
            let more = if several.len() > 4 { ", ..." } else { "" };
            let count = several.len();
            let found =
                format!("{}, which occurs {count} times (rows {}{more})", quote(named), rows.join(", "));
            let remedy =
                format!("give more of the text around the one that is meant, or {}", named_by(history));
            Err((found, remedy))
        }
    }
}

fn named_by(history: &History) -> String {
    let names: Vec<String> = history.names.iter().take(5).map(|name| quote(name)).collect();
    let more = if history.names.len() > 5 { ", ..." } else { "" };
    format!("a session's name from the column `{SESSION}` ({}{more})", names.join(", "))
}

/// The sentence or line that shares most letter pairs with `sought`, and its row.
fn nearest<'a>(sought: &str, turns: &[(usize, usize, &'a str)]) -> Option<(usize, &'a str)> {
    let sought = sought.to_lowercase();
    let sentences = turns.iter().flat_map(|(_, row, text)| {
        let sentences = text.split_inclusive(['.', '?', '!', '\n', '。', '？', '！']);
        sentences.map(|sentence| (*row, sentence.trim()))
    });
    let scored = sentences.map(|one| (strsim::sorensen_dice(&sought, &one.1.to_lowercase()), one));
    let best = scored.filter(|(score, _)| *score >= LIKE).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map(|(_, one)| one)
}
