//! Gold answers, and durations recomputed from event times.

use std::collections::BTreeSet;

use jiff::Unit;
use jiff::civil::{DateTime, Time};
use serde_json::Value;

use super::expected::Expected;
use super::task::{TIMES, TRAP, Task};
use super::terms::{REASONING, REFERENCE, TASK};
use crate::benchmarks::Checks;
use crate::case::finding::{Check, Finding, Gold, quote};
use crate::case::{Case, Probe};

static GOLD_RECOMPUTED: Check = Check::error(
    "gold-recomputed",
    "durations that are not the time between the events, or the times, that their gold cites",
);
static NO_ANCHOR: Check = Check::warning(
    "no-anchor",
    "durations that cannot be worked out: an event that they cite is missing or has no time",
);
static GOLD_FORM: Check = Check::error(
    "gold-form",
    "golds that do not fit their task: traps that do not abstain, and abstentions elsewhere",
);
static NO_EVIDENCE: Check = Check::warning("no-evidence", "questions without evidence in tasks that name it");

/// Answers are near quotations.
const QUOTED: &str = "T1";
const CITING: [&str; 5] = ["T1", TRAP, TIMES, "T5", "T6"];

pub(super) fn checks(case: &Case) -> Checks {
    let golds = case.probes.iter().map(|probe| gold(case, probe)).collect();
    Checks { golds, findings: findings(case) }
}

fn gold(case: &Case, probe: &Probe) -> Gold {
    let is = |task: &str| probe.facets.get(TASK).is_some_and(|of| of == task);
    match note(case, probe, REFERENCE) {
        Some(Value::String(text)) => {
            let quoted = is(QUOTED) && Expected::of(text) == Expected::Fact;
            Gold { texts: vec![text.clone()], quoted }
        }
        Some(Value::Array(items)) => {
            let events = items.iter().filter_map(|item| item.get("event").and_then(Value::as_str));
            Gold { texts: vec![events.collect::<Vec<_>>().join("\n")], ..Gold::default() }
        }
        _ => Gold::default(),
    }
}

fn note<'a>(case: &'a Case, probe: &Probe, name: &str) -> Option<&'a Value> {
    case.judge.of_probes.get(&probe.id)?.get(name)
}

fn findings(case: &Case) -> Vec<Finding> {
    // Skip questions already flagged for missing evidence.
    let told: BTreeSet<&str> = case.flags.iter().flat_map(|flag| &flag.probes).map(String::as_str).collect();
    let mut found = Vec::new();
    for probe in &case.probes {
        let Some(task) = probe.facets.get(TASK).and_then(|id| Task::named(id)) else { continue };
        let mut find = |check: &'static Check, what: String| {
            found.push(Finding::new(check, &case.id, what).of([probe.id.as_str()]));
        };
        let named = !probe.evidence.is_empty() || told.contains(probe.id.as_str());
        if !named && CITING.contains(&task.id) {
            find(&NO_EVIDENCE, format!("{} names no event", quote(&probe.query)));
        }
        let Some(Value::String(reference)) = note(case, probe, REFERENCE) else { continue };
        let abstains = Expected::of(reference) == Expected::Abstention;
        match (task.id == TRAP, abstains) {
            (true, false) => find(&GOLD_FORM, format!("a trap whose gold is {}", quote(reference))),
            (false, true) if is_short(reference) && !is_unknown(reference) => {
                find(&GOLD_FORM, format!("an abstention under {}: {}", task.id, quote(reference)));
            }
            _ => {}
        }
        let dangling = told.contains(probe.id.as_str());
        let both = duration(reference).filter(|_| task.id == TIMES);
        match both.and_then(|seconds| Some((seconds, apart(case, probe, reference, dangling)?))) {
            Some((_, None)) => find(&NO_ANCHOR, format!("the gold is {}", quote(reference))),
            Some((seconds, Some(other))) if other != seconds => {
                let what = format!("the gold is {}; cited are {}", quote(reference), shown(other));
                find(&GOLD_RECOMPUTED, what);
            }
            _ => {}
        }
    }
    found
}

/// Short enough to be a bare abstention.
fn is_short(text: &str) -> bool {
    const WORDS: usize = 20;
    text.split_whitespace().count() <= WORDS
}

/// `unknown` is also part of data set 3's pseudonyms.
fn is_unknown(text: &str) -> bool {
    text.to_lowercase().contains("unknown")
}

/// Seconds between the cited events, or between two times of day in the gold; `Some(None)` if an event or its time is missing.
fn apart(case: &Case, probe: &Probe, reference: &str, dangling: bool) -> Option<Option<i64>> {
    if dangling {
        return Some(None);
    }
    if probe.evidence.is_empty() {
        let reasoning = note(case, probe, REASONING).and_then(Value::as_str).unwrap_or_default();
        let stated = [reference, reasoning].into_iter().map(times_of_day).find(|times| times.len() == 2)?;
        let seconds = stated[0].until(stated[1]).and_then(|span| span.total(Unit::Second));
        return Some(Some((seconds.unwrap_or_default() as i64).rem_euclid(24 * 60 * 60)));
    }
    let segment = |at: usize| case.history.segments.iter().find(|segment| segment.index == at);
    let times = probe.evidence.iter().map(|evidence| segment(evidence.place.segment)?.time);
    let times: Option<Vec<DateTime>> = times.collect();
    let times = times.filter(|times| times.len() > 1);
    Some(times.and_then(|times| {
        let (first, last) = (times.iter().min()?, times.iter().max()?);
        Some(last.duration_since(*first).as_secs())
    }))
}

/// Distinct `14:01:20` or `14:01`, in order.
fn times_of_day(text: &str) -> Vec<Time> {
    let mut found: Vec<Time> = Vec::new();
    for piece in text.split(|c: char| !(c.is_ascii_digit() || c == ':')) {
        let time = ["%H:%M:%S", "%H:%M"].iter().find_map(|format| Time::strptime(format, piece).ok());
        found.extend(time.filter(|time| !found.contains(time)));
    }
    found
}

/// Seconds of a pure duration such as `1 hour 25 minutes`, ignoring brackets.
fn duration(text: &str) -> Option<i64> {
    let head = text.split(['(', ';']).next().unwrap_or_default().to_lowercase();
    let words = head.split(|c: char| !(c.is_alphanumeric() || c == '.')).map(|word| word.trim_matches('.'));
    let mut words = words.filter(|word| !word.is_empty() && *word != "and").peekable();
    words.peek()?;
    let mut seconds = 0;
    while let Some(number) = words.next() {
        let number: i64 = number.parse().ok()?;
        let unit = match words.next()?.trim_end_matches('s') {
            "second" | "sec" => 1,
            "minute" | "min" => 60,
            "hour" | "hr" => 60 * 60,
            "day" => 24 * 60 * 60,
            "week" => 7 * 24 * 60 * 60,
            // Months and years vary in length.
            _ => return None,
        };
        seconds += number.checked_mul(unit)?;
    }
    Some(seconds)
}

fn shown(seconds: i64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let parts = [(hours, "h"), (minutes, "min"), (seconds, "s")];
    let parts: Vec<String> =
        parts.iter().filter(|(n, _)| *n != 0).map(|(n, unit)| format!("{n} {unit}")).collect();
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}
