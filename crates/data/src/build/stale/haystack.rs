//! Places of old and new, the fillers around them, and times.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::error::RowError;
use super::super::makers::copy;
use super::super::pool::PoolSession;
use super::super::row::Row;
use super::super::setting::Setting;
use super::terms::{SESSIONS, SIDES, Size, pool};
use crate::benchmarks::stale::haystack::{DURATIONS, MAX_GAP_DAYS, dates, exactly};
use crate::case::Turn;
use crate::case::check::calendar::misfits;
use crate::case::draw::Draws;
use crate::construct::session::tokens;

/// Of STALE's sessions, those that old and new are drawn from.
const OF_OLD: (usize, usize) = (0, 15);
const OF_NEW: (usize, usize) = (30, 40);
/// Draws of dates that are tried for a row whose texts name days or months.
const DRAWS: usize = 10_000;

/// A number, or several to draw from.
#[derive(Deserialize)]
#[serde(untagged)]
enum Drawn {
    One(usize),
    OneOf(Vec<usize>),
}

impl Drawn {
    fn draw(self, draws: &mut Draws) -> usize {
        match self {
            Drawn::One(number) => number,
            Drawn::OneOf(several) => several.get(draws.index(several.len())).copied().unwrap_or_default(),
        }
    }
}

/// Adds `placement`: fillers before old, between old and new, and after new, in `sessions` or `tokens`. Settings: `positions`, shares of the
/// history before old and before new; or `distance` from old to new and `tail` behind new, each a number or a list to draw from. What is not
/// set is drawn as in STALE: of 50 sessions old at 0 to 14 and new at 30 to 39. A distance of sessions is the difference of both places, one
/// of tokens what stands between them.
pub fn place(setting: &Setting<'_>, row: &Row) -> Result<Vec<Row>, RowError> {
    let size = Size::of(setting)?;
    let mut draws = setting.draws(&row.id, 0);
    let mut drawn = |(from, to): (usize, usize)| from + draws.index(to - from);
    // Always drawn, so that one setting moves nothing but what it names.
    let (old, new) = (drawn(OF_OLD), drawn(OF_NEW));
    let [mut distance, mut tail] = [None, None];
    for (name, into) in [("distance", &mut distance), ("tail", &mut tail)] {
        // A stream of its own for each.
        let mut draws = setting.draws(&format!("{}/{name}", row.id), 0);
        *into = setting.given::<Drawn>(name)?.map(|drawn| drawn.draw(&mut draws));
    }
    let positions: BTreeMap<String, f64> = setting.given("positions")?.unwrap_or_default();
    if !positions.is_empty() && (distance.is_some() || tail.is_some()) {
        let fault = "the setting `positions` is given beside `distance` or `tail`; keep one of both ways";
        return Err(RowError::Fault(fault.to_owned()));
    }
    if let Some((name, share)) = positions
        .iter()
        .find(|(name, share)| !["old", "new"].contains(&name.as_str()) || !(0.0..=1.0).contains(*share))
    {
        let fault = format!(
            "the setting `positions` has {name} = {share}; write old and new as shares, such as {{ old = 0.1, new = 0.5 }}"
        );
        return Err(RowError::Fault(fault));
    }
    let share = |name: &str, of: usize| positions.get(name).map(|share| (share * of as f64).round() as usize);
    let does_not_fit = || RowError::Rejected("old and new do not fit into the history".to_owned());
    let placement = match size {
        Size::Sessions(sessions) => {
            let last = sessions - 1;
            let scaled = |place: usize| place * sessions / SESSIONS;
            let apart = (scaled(new) - scaled(old)).max(1);
            let new = tail
                .map(|tail| last.checked_sub(tail))
                .unwrap_or_else(|| Some(share("new", last).unwrap_or(scaled(new).max(1))));
            let new = new.filter(|new| *new > 0).ok_or_else(does_not_fit)?;
            let old = match distance {
                Some(distance) => new.checked_sub(distance),
                None => share("old", last).or_else(|| new.checked_sub(apart)),
            };
            let old = old.filter(|old| *old < new).ok_or_else(does_not_fit)?;
            json!({"unit": "sessions", "before": old, "between": new - old - 1, "after": last - new})
        }
        Size::Tokens(whole) => {
            let [of_old, of_new] = evidence(setting, row)?;
            let scaled = |place: usize| place * whole / SESSIONS;
            let apart = scaled(new - old).saturating_sub(of_old);
            let ahead = match tail {
                Some(tail) => whole.checked_sub(tail + of_new),
                None => Some(share("new", whole).unwrap_or(scaled(new))),
            };
            let ahead = ahead.ok_or_else(does_not_fit)?;
            let before = match distance {
                Some(distance) => ahead.checked_sub(distance + of_old),
                None => share("old", whole).or_else(|| ahead.checked_sub(apart + of_old)),
            };
            let parts = before.and_then(|before| {
                let between = ahead.checked_sub(before + of_old)?;
                Some((before, between, whole.checked_sub(ahead + of_new)?))
            });
            let (before, between, after) = parts.ok_or_else(does_not_fit)?;
            json!({"unit": "tokens", "before": before, "between": between, "after": after})
        }
    };
    let mut made = copy(row);
    made.fields.insert("placement".to_owned(), placement);
    Ok(vec![made])
}

/// Tokens of both evidence sessions.
fn evidence(setting: &Setting<'_>, row: &Row) -> Result<[usize; 2], RowError> {
    let [old, new] = SIDES.map(|side| counted(setting, &row.read::<Vec<Turn>>(side)?));
    Ok([old?, new?])
}

fn counted(setting: &Setting<'_>, turns: &[Turn]) -> Result<usize, RowError> {
    tokens(setting.count, turns).map_err(|error| RowError::Fault(error.to_string()))
}

#[derive(Deserialize)]
struct Placement {
    unit: String,
    before: usize,
    between: usize,
    after: usize,
}

/// Puts the sessions of the field that `from` names (`fillers`; ids, or objects with an `id`) into the places of `placement`. Adds `fillers`,
/// their ids in the order of the history, and `layout`: places, depths, distance, tail, and errors where tokens were aimed at. A row whose
/// tokens are off by more than 64 and by more than 1% is rejected. The lists that were chosen from are dropped.
pub fn haystack(setting: &Setting<'_>, row: &Row) -> Result<Vec<Row>, RowError> {
    let from: String = setting.given("from")?.unwrap_or_else(|| "fillers".to_owned());
    let placement: Placement = row.read("placement")?;
    let known: BTreeMap<&str, &PoolSession> =
        pool(setting).sessions.iter().map(|session| (session.id.as_str(), session)).collect();
    let mut left: Vec<(&PoolSession, usize)> = Vec::new();
    for one in row.list(&from)? {
        let id = one.as_str().or_else(|| one.get("id").and_then(Value::as_str)).unwrap_or_default();
        let Some(&session) = known.get(id) else {
            return Err(RowError::Fault(format!(
                "row {}: the pool has no session {id:?}; give the distractors that the build began with",
                row.id
            )));
        };
        let tokens = session.tokens(setting.count).map_err(|error| RowError::Fault(error.to_string()))?;
        left.push((session, tokens));
    }
    let aims = [placement.before, placement.between, placement.after];
    let is_packed = placement.unit == "tokens";
    let mut parts: Vec<Vec<(&PoolSession, usize)>> = Vec::new();
    for aim in aims {
        let part = match is_packed {
            true => packed(&mut left, aim),
            false if left.len() < aim => return Err(RowError::Rejected("too few fillers".to_owned())),
            false => left.drain(..aim).collect(),
        };
        parts.push(part);
    }
    let sizes: Vec<usize> = parts.iter().map(|part| part.iter().map(|(_, tokens)| tokens).sum()).collect();
    let [old, new] = evidence(setting, row)?;
    let whole = sizes.iter().sum::<usize>() + old + new;
    let errors: Vec<i64> = aims.iter().zip(&sizes).map(|(aim, size)| *size as i64 - *aim as i64).collect();
    let most = (whole as i64 / 100).max(64);
    if is_packed && (errors.iter().any(|error| error.abs() > most) || errors.iter().sum::<i64>().abs() > most)
    {
        return Err(RowError::Rejected("the fillers miss the tokens by more than 64 and 1%".to_owned()));
    }
    let [before, between, after] = [0, 1, 2].map(|at| parts[at].len());
    let mut layout = json!({
        "places": [before, before + 1 + between],
        "sessions": before + between + after + 2,
        "tokens": whole,
        "depth": {"old": {"sessions": before, "tokens": sizes[0]},
                  "new": {"sessions": before + 1 + between, "tokens": sizes[0] + old + sizes[1]}},
        "distance": {"sessions": between + 1, "tokens": sizes[1]},
        "tail": {"sessions": after, "tokens": sizes[2]},
    });
    if is_packed {
        layout["errors"] = json!({"before": errors[0], "between": errors[1], "after": errors[2]});
    }
    let ids: Vec<&str> = parts.iter().flatten().map(|(session, _)| session.id.as_str()).collect();
    let mut made = copy(row);
    for field in ["candidates", "needed", "placement"] {
        made.fields.remove(field);
    }
    made.fields.insert("fillers".to_owned(), json!(ids));
    made.fields.insert("layout".to_owned(), layout);
    Ok(vec![made])
}

/// Takes sessions of `aim` tokens in all: each that fits, in order, and then the one that comes nearest in place of the last.
fn packed<'a>(left: &mut Vec<(&'a PoolSession, usize)>, aim: usize) -> Vec<(&'a PoolSession, usize)> {
    let (mut taken, mut others, mut room) = (Vec::new(), Vec::new(), aim);
    for one in left.drain(..) {
        let fits = one.1 <= room;
        room -= if fits { one.1 } else { 0 };
        if fits { taken.push(one) } else { others.push(one) }
    }
    if let Some(last) = taken.pop() {
        room += last.1;
        others.push(last);
    }
    let nearest = (0..others.len()).min_by_key(|at| others[*at].1.abs_diff(room));
    if let Some(at) = nearest.filter(|at| others[*at].1.abs_diff(room) < room) {
        taken.push(others.remove(at));
    }
    *left = others;
    taken
}

/// Adds `times` and `query_time`. From old to new it is `gap_days`, or a duration of the class `time_gap`; from new to the query
/// `query_gap_days`, or one of the class `lasts`, in which the new state holds: minutes, hours, days, weeks, months, years or permanent.
/// Without either it is months, and days. The day is one on which the words for days and months in both sessions and the queries are right.
pub fn times(setting: &Setting<'_>, row: &Row) -> Result<Vec<Row>, RowError> {
    let ranges =
        [range(row, "gap_days", "time_gap", "months")?, range(row, "query_gap_days", "lasts", "days")?];
    let places: [usize; 2] = row.read("layout.places")?;
    let sessions = row.number("layout.sessions")?;
    let [old, new] = SIDES.map(|side| row.read::<Vec<Turn>>(side));
    let (old, new) = (old?, new?);
    let queries: BTreeMap<String, String> = row.read("probing_queries")?;
    for attempt in 0..DRAWS {
        let (times, query_time) = dates(&mut setting.draws(&row.id, attempt), ranges, places, sessions)
            .map_err(|error| RowError::Fault(format!("row {}: {error}", row.id)))?;
        let fits = |turns: &[Turn], place: usize| {
            turns.iter().all(|turn| misfits(&turn.content, times.get(place).copied()).is_empty())
        };
        if fits(&old, places[0])
            && fits(&new, places[1])
            && queries.values().all(|query| misfits(query, Some(query_time)).is_empty())
        {
            let mut made = copy(row);
            made.fields.insert("times".to_owned(), times.iter().map(ToString::to_string).collect());
            made.fields.insert("query_time".to_owned(), query_time.to_string().into());
            return Ok(vec![made]);
        }
    }
    Err(RowError::Rejected("no day fits the words for days and months".to_owned()))
}

fn range(row: &Row, days: &str, class: &str, usual: &str) -> Result<(i64, i64), RowError> {
    if let Some(days) = row.get(days).and_then(Value::as_u64).and_then(|days| u32::try_from(days).ok()) {
        return match (1..=MAX_GAP_DAYS).contains(&days) {
            true => Ok(exactly(days)),
            false => Err(RowError::Fault(format!("row {}: {days} days; write 1 to {MAX_GAP_DAYS}", row.id))),
        };
    }
    let class = row.get(class).and_then(Value::as_str).unwrap_or(usual);
    let known = DURATIONS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(class.trim()));
    known
        .map(|(_, least, most)| (*least, *most))
        .ok_or_else(|| RowError::Rejected("no class of durations".to_owned()))
}
