//! Order and dates of the sessions of a history.

use std::collections::BTreeSet;

use jiff::Span;
use jiff::civil::Date;
use serde_json::{Value, json};

use crate::build::{Made, Row, RowError, Setting};
use crate::case::draw::Draws;
use crate::ground::order::entry;

/// Sessions are between 8:00 and 23:00.
const FROM_HOUR: i8 = 8;
const SECONDS_A_DAY: u64 = 15 * 60 * 60;

/// Order of the sessions of sets with `sizes`: the set of each place. A set of n has one session at a drawn place of each nth of the history;
/// sessions then move back as far as needed so that no two of a set stand side by side, which is so for all sizes that allow it.
pub fn order(sizes: &[usize], draws: &mut Draws) -> Vec<usize> {
    const ALL: u64 = 1 << 32;
    let mut waiting = Vec::new();
    for (set, size) in sizes.iter().enumerate() {
        let places = (0..*size as u64).map(|nth| (nth * ALL + draws.below(ALL)) / *size as u64);
        waiting.extend(places.map(|place| (place, set)));
    }
    waiting.sort_unstable();
    let mut left = sizes.to_vec();
    let mut placed: Vec<usize> = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let last = placed.last().copied();
        // A set with more than half of what would be left has to come now, or two of its sessions meet later.
        let half = waiting.len() / 2;
        let is_other = |(_, set): &(u64, usize)| Some(*set) != last;
        let is_due = |waits: &(u64, usize)| is_other(waits) && left[waits.1] > half;
        let at = waiting.iter().position(is_due).or_else(|| waiting.iter().position(is_other)).unwrap_or(0);
        let (_, set) = waiting.remove(at);
        left[set] -= 1;
        placed.push(set);
    }
    placed
}

/// Gives the sessions of each set their places in the history of its persona ([`order`]) and times within `days` days `from` a date, in
/// `offset` from UTC: the field `placed`, one object a session.
pub(super) fn spread(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let mut placed: Vec<Vec<Value>> = vec![Vec::new(); rows.len()];
    for (persona, sets) in histories(rows)? {
        let sizes = sets.iter().map(|set| Ok(rows[*set].list("sessions")?.len()));
        let sizes: Vec<usize> = sizes.collect::<Result<_, RowError>>()?;
        let mut draws = setting.draws(persona, 0);
        let order = order(&sizes, &mut draws);
        let times = times(setting, order.len(), &mut draws)?;
        for (place, (set, time)) in order.into_iter().zip(times).enumerate() {
            let at = sets[set];
            let id = format!("{}-s{}", rows[at].text("case_id")?, placed[at].len() + 1);
            placed[at].push(json!({"session_id": id, "order": place, "timestamp": time}));
        }
    }
    let placed = rows.iter().zip(placed).map(|(row, placed)| row.copy().with(json!({"placed": placed})));
    Ok(placed.map(Ok).collect())
}

/// Personas in order of first appearance, with the places of their rows.
pub(super) fn histories(rows: &[Row]) -> Result<Vec<(&str, Vec<usize>)>, RowError> {
    let mut found: Vec<(&str, Vec<usize>)> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let persona = row.text("persona")?;
        entry(&mut found, |known| known.0 == persona, || (persona, Vec::new())).1.push(at);
    }
    Ok(found)
}

/// `n` different times, ascending.
fn times(setting: &Setting<'_>, n: usize, draws: &mut Draws) -> Result<Vec<String>, RowError> {
    let (from, days): (Date, u32) = (setting.needed("from")?, setting.needed("days")?);
    let offset: String = setting.needed("offset")?;
    let all = u64::from(days) * SECONDS_A_DAY;
    if all < n as u64 {
        return Err(RowError::Fault(format!("{n} sessions do not fit into {days} days; raise `days`")));
    }
    let mut seconds = BTreeSet::new();
    while seconds.len() < n {
        seconds.insert(draws.below(all));
    }
    let time = |second: u64| {
        let span = Span::new().days((second / SECONDS_A_DAY) as i64).seconds((second % SECONDS_A_DAY) as i64);
        let time = from.at(FROM_HOUR, 0, 0, 0).checked_add(span);
        let time = time.map_err(|error| RowError::Fault(format!("`days` after `from`: {error}")))?;
        Ok(format!("{}{offset}", time.strftime("%Y-%m-%dT%H:%M:%S")))
    };
    seconds.into_iter().map(time).collect()
}
