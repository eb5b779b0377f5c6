//! Assembles a scenario and distractors into a dated history for the built-in sample. Stable across machines and releases. Draw order:
//!
//! 1. **Positions**: old < new, not adjacent, a distractor on either side (five or more sessions). With fewer they may be at an end.
//! 2. **Distractors**: a shuffled pool without replacement, reshuffled when exhausted, never the same twice in a row.
//! 3. **Times**: 08:00 to 22:00, strictly increasing. `gap_days` and `query_gap_days` with up to an hour of jitter; sessions between evenly
//!    spaced with jitter; earlier ones half a day to two and a half days apart.

use std::collections::BTreeMap;

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, date};
use serde::{Deserialize, Serialize};

use super::row::PROBES;
use super::terms::TYPES;
use super::write::Pair;
use crate::case::draw::Draws;
use crate::case::{Case, Turn};

pub const MAX_SESSIONS: usize = 10_000;

/// A hundred years; limits both gaps.
pub const MAX_GAP_DAYS: u32 = 36_525;

/// Waking seconds of a day.
const DAY: i64 = 14 * HOUR;

const HOUR: i64 = 3600;

const WAKING: i64 = 8 * HOUR;

/// First day and range of days for the new observation.
const FIRST_DAY: Date = date(2025, 3, 1);
const DAYS: u64 = 180;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub uid: String,
    /// `T1` (same attribute changes) or `T2` (an upstream one does).
    pub r#type: String,
    pub category: String,
    pub attribute: String,
    #[serde(rename = "M_old")]
    pub old: String,
    #[serde(rename = "M_new")]
    pub new: String,
    pub explanation: String,
    /// Old to new, at least 1.
    pub gap_days: u32,
    /// New to query, at least 1.
    pub query_gap_days: u32,
    pub old_session: Vec<Turn>,
    pub new_session: Vec<Turn>,
    pub probing_queries: BTreeMap<String, String>,
}

/// An everyday session that updates no scenario's attribute.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distractor {
    /// Unique in the pool; never shown to a model.
    pub topic: String,
    pub turns: Vec<Turn>,
}

#[derive(Debug, thiserror::Error)]
pub enum HaystackError {
    #[error("a history of {0} sessions cannot be assembled; ask for 2 to {MAX_SESSIONS}")]
    Sessions(usize),
    #[error("{needed} distractor sessions are needed and the pool holds {pool}; fill it with at least 2")]
    Pool { needed: usize, pool: usize },
    #[error("scenario {uid:?}: {field} is {days}; give 1 to {MAX_GAP_DAYS} days")]
    Gap { uid: String, field: &'static str, days: u32 },
    #[error("scenario {uid:?}: a session falls outside the calendar")]
    Calendar { uid: String, source: jiff::Error },
}

/// `sessions` is 2 to [`MAX_SESSIONS`]. The id is the scenario's uid; the only label is `type`.
pub fn assemble(
    scenario: &Scenario,
    pool: &[Distractor],
    seed: u64,
    sessions: usize,
) -> Result<Case, HaystackError> {
    if !(2..=MAX_SESSIONS).contains(&sessions) {
        return Err(HaystackError::Sessions(sessions));
    }
    for (field, days) in [("gap_days", scenario.gap_days), ("query_gap_days", scenario.query_gap_days)] {
        if !(1..=MAX_GAP_DAYS).contains(&days) {
            return Err(HaystackError::Gap { uid: scenario.uid.clone(), field, days });
        }
    }
    let needed = sessions - 2;
    if pool.len() < 2 && pool.len() < needed {
        return Err(HaystackError::Pool { needed, pool: pool.len() });
    }

    let mut draws = Draws::new("palimpsest haystack 1", seed, &scenario.uid);
    let (old, new) = positions(&mut draws, sessions);
    let order = distractor_order(&mut draws, pool.len(), needed);
    let (seconds, query) = waking_seconds(&mut draws, scenario, sessions, old, new);
    let time = |seconds| {
        civil_time(seconds).map_err(|source| HaystackError::Calendar { uid: scenario.uid.clone(), source })
    };

    let fillers = order.into_iter().filter_map(|place| Some(pool.get(place)?.turns.as_slice()));
    let ends = [(old, scenario.old_session.as_slice()), (new, scenario.new_session.as_slice())];
    let turns = woven(ends, sessions, fillers).ok_or(HaystackError::Pool { needed, pool: pool.len() })?;
    let dated = seconds.into_iter().zip(turns).map(|(at, turns)| Ok((time(at)?, turns.to_vec())));
    let dated = dated.collect::<Result<_, HaystackError>>()?;
    let question = |field: &str| scenario.probing_queries.get(field).cloned().unwrap_or_default();
    let pair = Pair {
        id: scenario.uid.clone(),
        is_upstream: scenario.r#type == TYPES[1],
        old: scenario.old.clone(),
        new: scenario.new.clone(),
        explanation: scenario.explanation.clone(),
        sessions: dated,
        places: [old, new],
        questions: PROBES.map(|(field, ..)| question(field)),
        query_time: time(query)?,
    };
    Ok(pair.case())
}

/// Step 1.
fn positions(draws: &mut Draws, sessions: usize) -> (usize, usize) {
    if sessions == 2 {
        return (0, 1);
    }
    // Non-adjacent pairs of `places` map one to one to distinct pairs of `places - 1`: shift the later one by one.
    let (first, places) = if sessions >= 5 { (1, sessions - 2) } else { (0, sessions) };
    let a = draws.index(places - 1);
    let b = draws.index(places - 2);
    let b = if b >= a { b + 1 } else { b };
    (first + a.min(b), first + a.max(b) + 1)
}

/// Step 2: `needed` indices into the pool.
fn distractor_order(draws: &mut Draws, pool: usize, needed: usize) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::with_capacity(needed + pool);
    while order.len() < needed {
        let mut round: Vec<usize> = (0..pool).collect();
        draws.shuffle(&mut round);
        if order.last().is_some() && order.last() == round.first() && pool > 1 {
            let other = 1 + draws.index(pool - 1);
            round.swap(0, other);
        }
        order.extend(round);
    }
    order.truncate(needed);
    order
}

/// Step 3: waking seconds since [`FIRST_DAY`].
fn waking_seconds(
    draws: &mut Draws,
    scenario: &Scenario,
    sessions: usize,
    old: usize,
    new: usize,
) -> (Vec<i64>, i64) {
    // Leaves an hour on both sides for jitter, so that days match the scenario.
    let day = draws.below(DAYS) as i64;
    let hour = HOUR + draws.below((DAY - 2 * HOUR) as u64) as i64;
    let mut jittered = |day: i64| day * DAY + hour - HOUR + draws.below(2 * HOUR as u64) as i64;
    let old_at = jittered(day - i64::from(scenario.gap_days));
    let new_at = jittered(day);
    let query_at = jittered(day + i64::from(scenario.query_gap_days));
    (around(draws, [old_at, new_at, query_at], [old, new], sessions, even), query_at)
}

/// Waking seconds of `sessions` sessions around those of old, new and the query.
fn around(
    draws: &mut Draws,
    [old_at, new_at, query_at]: [i64; 3],
    [old, new]: [usize; 2],
    sessions: usize,
    spread: fn(&mut Draws, &mut [i64], i64, i64),
) -> Vec<i64> {
    let mut seconds = vec![0; sessions];
    let mut at = old_at;
    for slot in seconds.iter_mut().take(old).rev() {
        at -= DAY / 2 + draws.below(2 * DAY as u64) as i64;
        *slot = at;
    }
    if let Some(between) = seconds.get_mut(old + 1..new) {
        spread(draws, between, old_at, new_at);
    }
    if let Some(after) = seconds.get_mut(new + 1..) {
        spread(draws, after, new_at, query_at);
    }
    for (place, at) in [(old, old_at), (new, new_at)] {
        if let Some(slot) = seconds.get_mut(place) {
            *slot = at;
        }
    }
    seconds
}

/// Each at the centre of its share, jittered by up to a quarter of it.
fn even(draws: &mut Draws, slots: &mut [i64], from: i64, to: i64) {
    let share = (to - from) / (slots.len() as i64 + 1);
    for (i, slot) in slots.iter_mut().enumerate() {
        *slot = from + share * (i as i64 + 1) - share / 4 + draws.below((share / 2) as u64 + 1) as i64;
    }
}

/// With gaps of which one may be a hundred times another, so that nothing marks what comes after new.
fn uneven(draws: &mut Draws, slots: &mut [i64], from: i64, to: i64) {
    let weights: Vec<i64> = (0..=slots.len()).map(|_| 1 + draws.below(100) as i64).collect();
    let whole: i64 = weights.iter().sum();
    let mut done = 0;
    for (slot, weight) in slots.iter_mut().zip(weights) {
        done += weight;
        *slot = from + (to - from) * done / whole;
    }
}

/// Classes of duration: name, least and most waking seconds.
pub const DURATIONS: [(&str, i64, i64); 7] = [
    ("minutes", HOUR / 2, HOUR - 60),
    ("hours", 2 * HOUR, 6 * HOUR),
    ("days", DAY, 6 * DAY),
    ("weeks", 7 * DAY, 27 * DAY),
    ("months", 30 * DAY, 300 * DAY),
    ("years", 366 * DAY, 1_000 * DAY),
    ("permanent", 30 * DAY, 300 * DAY),
];

/// Range of waking seconds of a number of days.
pub fn exactly(days: u32) -> (i64, i64) {
    (i64::from(days) * DAY, i64::from(days) * DAY)
}

/// Times of sessions and of the query: `ranges` from old to new and from new to the query, `places` of both. Sessions are unevenly spaced.
/// Ranges of days keep days, and end at another time of the day; shorter ones stay within a day.
pub fn dates(
    draws: &mut Draws,
    ranges: [(i64, i64); 2],
    places: [usize; 2],
    sessions: usize,
) -> Result<(Vec<DateTime>, DateTime), jiff::Error> {
    let mut drawn = |(least, most): (i64, i64)| {
        let unit = if least < DAY { 1 } else { DAY };
        least + unit * draws.below(((most - least) / unit) as u64 + 1) as i64
    };
    let [gap, query] = ranges.map(&mut drawn);
    let within = |span: i64| if span < DAY { span } else { HOUR };
    let day = draws.below(DAYS) as i64;
    let new_at = day * DAY + within(gap) + draws.below((DAY - within(gap) - within(query)) as u64) as i64;
    let mut jitter = |span: i64| match span < DAY {
        true => 0,
        false => draws.below(2 * HOUR as u64) as i64 - HOUR,
    };
    let old_at = new_at - gap + jitter(gap);
    let query_at = new_at + query + jitter(query);
    let seconds = around(draws, [old_at, new_at, query_at], places, sessions, uneven);
    let times: Result<Vec<DateTime>, _> = seconds.into_iter().map(civil_time).collect();
    Ok((times?, civil_time(query_at)?))
}

/// Sessions in order, with old and new at their places among fillers; `None` if there are not enough.
pub fn woven<'a>(
    [old, new]: [(usize, &'a [Turn]); 2],
    sessions: usize,
    mut fillers: impl Iterator<Item = &'a [Turn]>,
) -> Option<Vec<&'a [Turn]>> {
    let at = |index: usize| match index {
        _ if index == old.0 => Some(old.1),
        _ if index == new.0 => Some(new.1),
        _ => fillers.next(),
    };
    (0..sessions).map(at).collect()
}

fn civil_time(seconds: i64) -> Result<DateTime, jiff::Error> {
    let days = i32::try_from(seconds.div_euclid(DAY)).unwrap_or(i32::MAX);
    let clock = WAKING + seconds.rem_euclid(DAY);
    FIRST_DAY.at(0, 0, 0, 0).checked_add(clock.seconds())?.checked_add(days.days())
}
