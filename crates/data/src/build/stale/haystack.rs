//! Places of old and new, the fillers around them, and times.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::terms::{SESSIONS, Size, by_id, evidence};
use crate::benchmarks::stale::haystack::{DURATIONS, MAX_GAP_DAYS, dates, exactly};
use crate::build::pool::PoolSession;
use crate::build::{Row, RowError, Rows, Setting};
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
pub fn place(setting: &Setting<'_>, row: &Row) -> Rows {
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
        return Err(RowError::fault(fault));
    }
    if let Some((name, share)) = positions
        .iter()
        .find(|(name, share)| !["old", "new"].contains(&name.as_str()) || !(0.0..=1.0).contains(*share))
    {
        let remedy = "write old and new as shares, such as { old = 0.1, new = 0.5 }";
        return Err(RowError::Fault(format!("the setting `positions` has {name} = {share}; {remedy}")));
    }
    // In sessions old and new take a place each, and a distance counts the one of old.
    let (unit, whole, [of_old, of_new], last, step) = match size {
        Size::Sessions(sessions) => ("sessions", sessions, [1, 1], sessions - 1, 1),
        Size::Tokens(tokens) => ("tokens", tokens, of_evidence(setting, row)?, tokens, 0),
    };
    let share = |name: &str| positions.get(name).map(|share| (share * last as f64).round() as usize);
    let scaled = |place: usize| place * whole / SESSIONS;
    let apart = match size {
        Size::Sessions(_) => (scaled(new) - scaled(old)).max(1) - 1,
        Size::Tokens(_) => scaled(new - old).saturating_sub(of_old),
    };
    let placed = || {
        let ahead = match tail {
            Some(tail) => whole.checked_sub(tail + of_new)?,
            None => share("new").unwrap_or(scaled(new).max(step)),
        };
        let between = match (distance, share("old")) {
            (Some(distance), _) => distance.checked_sub(step)?,
            (None, Some(before)) => ahead.checked_sub(before + of_old)?,
            (None, None) => apart,
        };
        let (before, after) = (ahead.checked_sub(between + of_old)?, whole.checked_sub(ahead + of_new)?);
        Some(json!({"unit": unit, "before": before, "between": between, "after": after}))
    };
    let placed = placed().ok_or_else(|| RowError::rejected("old and new do not fit into the history"))?;
    Ok(vec![row.copy().with(json!({"placement": placed}))])
}

/// Tokens of both evidence sessions.
fn of_evidence(setting: &Setting<'_>, row: &Row) -> Result<[usize; 2], RowError> {
    let [old, new] = evidence(row)?.map(|turns| tokens(setting.count, &turns).map_err(RowError::fault));
    Ok([old?, new?])
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
pub fn haystack(setting: &Setting<'_>, row: &Row) -> Rows {
    let from: String = setting.given("from")?.unwrap_or_else(|| "fillers".to_owned());
    let placement: Placement = row.read("placement")?;
    let (known, mut left) = (by_id(setting), Vec::new());
    for one in row.list(&from)? {
        let id = one.as_str().or(one["id"].as_str()).unwrap_or_default();
        let remedy = "give the distractors that the build began with";
        let fault = || RowError::Fault(format!("row {}: the pool has no session {id:?}; {remedy}", row.id));
        let session = *known.get(id).ok_or_else(fault)?;
        left.push((session, session.tokens(setting.count).map_err(RowError::fault)?));
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
    let [old, new] = of_evidence(setting, row)?;
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
    let mut made = row.copy();
    for field in ["candidates", "needed", "placement"] {
        made.fields.remove(field);
    }
    Ok(vec![made.with(json!({"fillers": ids, "layout": layout}))])
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
pub fn times(setting: &Setting<'_>, row: &Row) -> Rows {
    let ranges =
        [range(row, "gap_days", "time_gap", "months")?, range(row, "query_gap_days", "lasts", "days")?];
    let places: [usize; 2] = row.read("layout.places")?;
    let sessions = row.number("layout.sessions")?;
    let [old, new] = evidence(row)?;
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
            let times: Vec<String> = times.iter().map(ToString::to_string).collect();
            let times = json!({"times": times, "query_time": query_time.to_string()});
            return Ok(vec![row.copy().with(times)]);
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
    known.map(|(_, least, most)| (*least, *most)).ok_or_else(|| RowError::rejected("no class of durations"))
}
