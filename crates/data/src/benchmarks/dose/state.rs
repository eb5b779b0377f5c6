//! `data check` for this benchmark: replays the sessions in date order and compares the resulting state with the gold.
//!
//! Implied words ([`super::implied`]) count as values; values after "no longer" are denied; "as at first" is the value that held first. The gold only supplies the vocabulary.

use serde_json::Value;

use super::implied::{holds, step1, step2};
use super::terms::{
    AS_AT_FIRST, BLIND, ECHO, LURE, MID, NEW, NO_OLD, NO_UPDATE, OLD, OTHER, PARAPHRASE, UPDATE, twin,
};
use crate::benchmarks::Checks;
use crate::case::finding::{Check, Finding};
use crate::case::{Case, Contrasted, Segment};
use crate::ground::order::unique;

static REPLAYED_GOLD: Check =
    Check::error("replayed-gold", "questions whose values are not those that a replay of the sessions gives");
static TWIN_ROLES: Check = Check::error("twin-roles", "histories whose sessions are not those of their twin");
static STRAY_VALUE: Check =
    Check::error("stray-value", "sessions outside the evidence with a value that the question is about");
static PLACE_AND_DATE: Check =
    Check::error("place-and-date", "histories whose dates are not in the order that the factor `order` says");

const DENIES: &str = "no longer";
const EXPECTS: &str = "expects";
const NONE: &str = "none";
const CHAIN: &str = "chain";
const ORDER: &str = "order";
const TWIN: &str = "twin";
const CROSSED: &str = "crossed";

pub fn checks(case: &Case) -> Checks {
    let kind = case.labels.get(TWIN).and_then(|name| twin(name)).map(|(kind, _)| kind);
    let mut findings = Vec::new();
    findings.extend(kind.and_then(|kind| roles(case, kind)));
    findings.extend(dates(case));
    for probe in &case.probes {
        let Some(contrast) = &probe.contrast else { continue };
        let notes = case.judge.of_probes.get(&probe.id);
        let expects = notes.and_then(|notes| notes.get(EXPECTS)).and_then(Value::as_str);
        let replay = Replay::of(case, contrast);
        for what in replay.against(contrast, expects == Some(NONE), updates_of(case, kind)) {
            findings.push(Finding::new(&REPLAYED_GOLD, &case.id, what).of([&probe.id]));
        }
        findings.extend(stray(case, contrast).map(|(index, value)| {
            let what = format!("session {index} has no part in it and says {value:?}");
            Finding::new(&STRAY_VALUE, &case.id, what).at([index])
        }));
    }
    Checks { findings, ..Checks::default() }
}

fn updates_of(case: &Case, kind: Option<&str>) -> Option<usize> {
    let told = kind.is_some_and(|kind| [UPDATE, PARAPHRASE].contains(&kind));
    case.labels.get(CHAIN).filter(|_| told)?.parse().ok()
}

struct Replay<'a> {
    /// Values in the order held, with repetitions.
    held: Vec<&'a str>,
    holds: Option<&'a str>,
    /// Includes denials.
    changes: usize,
    unclear: Vec<usize>,
}

impl<'a> Replay<'a> {
    fn of(case: &Case, contrast: &'a Contrasted) -> Self {
        let mut evidence: Vec<&Segment> = segments(case, &[OLD, MID, NEW]).collect();
        evidence.sort_by_key(|segment| (segment.time, segment.index));
        let mut replay = Replay { held: Vec::new(), holds: None, changes: 0, unclear: Vec::new() };
        for segment in evidence {
            let (mut said, mut denied) = (Vec::new(), Vec::new());
            for turn in &segment.turns {
                for sentence in turn.content.split_inclusive(['.', '?', '!']) {
                    let end = sentence.find(DENIES).unwrap_or(sentence.len());
                    said.extend(values(contrast).filter(|value| gives(&sentence[..end], value)));
                    denied.extend(values(contrast).filter(|value| gives(&sentence[end..], value)));
                }
            }
            said.dedup();
            if said.iter().any(|value| *value != said[0]) {
                replay.unclear.push(segment.index);
            }
            let returns = segment.turns.iter().any(|turn| turn.content.contains(AS_AT_FIRST));
            let next = match (said.last(), replay.holds) {
                (Some(value), _) => Some(*value),
                (None, _) if returns => replay.held.first().copied(),
                (None, Some(held)) if denied.contains(&held) => None,
                (None, held) => held,
            };
            if next != replay.holds {
                replay.changes += usize::from(replay.holds.is_some());
                replay.held.extend(next);
                replay.holds = next;
            }
        }
        replay
    }

    fn against(&self, contrast: &Contrasted, is_none: bool, updates: Option<usize>) -> Vec<String> {
        let mut found = Vec::new();
        let named = |value: Option<&str>| value.map_or("no value".to_owned(), |value| format!("{value:?}"));
        let current = contrast.current.trim();
        for index in &self.unclear {
            found.push(format!("session {index} says more than one value"));
        }
        let wanted = (!is_none).then_some(current);
        if self.holds != wanted {
            let (holds, wanted) = (named(self.holds), named(wanted));
            found.push(format!("the sessions end with {holds}, the row expects {wanted}"));
        }
        if is_none && self.held.contains(&current) {
            found.push(format!("the row expects no value, and {current:?} is current and held before"));
        }
        let stale: Vec<&str> = unique(self.held.iter().copied().filter(|value| *value != current));
        let stated: Vec<&str> = contrast.stale.iter().map(|value| value.trim()).collect();
        if stale != stated {
            found.push(format!("the sessions gave before {stale:?}, the row says that {stated:?} are stale"));
        }
        let absent = contrast.absent.iter().map(|value| value.trim());
        for value in absent.filter(|value| self.held.contains(value)) {
            found.push(format!("{value:?} is absent in the row and held in the sessions"));
        }
        if let Some(updates) = updates.filter(|updates| *updates != self.changes) {
            found.push(format!("the sessions make {} updates, chain is {updates}", self.changes));
        }
        found
    }
}

fn values(contrast: &Contrasted) -> impl Iterator<Item = &str> {
    let all = std::iter::once(&contrast.current).chain(&contrast.stale).chain(&contrast.absent);
    all.map(|value| value.trim())
}

fn gives(text: &str, value: &str) -> bool {
    let words = [Some(value.to_owned()), step1(value), step2(value)];
    words.into_iter().flatten().any(|word| holds(text, &word))
}

fn segments<'a>(case: &'a Case, roles: &'a [&str]) -> impl Iterator<Item = &'a Segment> {
    case.history.segments.iter().filter(|segment| {
        let is_it = |index: usize| index == segment.index;
        (case.evidence.iter()).any(|e| is_it(e.place.segment) && roles.contains(&e.role.as_str()))
    })
}

/// Sessions without a role that state a value, with the first value.
fn stray<'a>(case: &'a Case, contrast: &'a Contrasted) -> impl Iterator<Item = (usize, &'a str)> {
    let free = |segment: &&Segment| case.evidence.iter().all(|e| e.place.segment != segment.index);
    case.history.segments.iter().filter(free).filter_map(|segment| {
        let said = |value: &&str| segment.turns.iter().any(|turn| gives(&turn.content, value));
        values(contrast).find(said).map(|value| (segment.index, value))
    })
}

fn roles(case: &Case, kind: &str) -> Option<Finding> {
    let has = |role: &str| case.evidence.iter().any(|evidence| evidence.role == role);
    let (wanted, unwanted): (&[&str], &[&str]) = match kind {
        UPDATE | PARAPHRASE => (&[OLD, NEW], &[]),
        NO_UPDATE => (&[OLD], &[NEW, ECHO]),
        OTHER => (&[OLD, LURE], &[NEW, ECHO]),
        NO_OLD => (&[NEW], &[OLD, ECHO]),
        BLIND => (&[], &[OLD, MID, NEW, ECHO]),
        _ => (&[], &[]),
    };
    let lacking =
        wanted.iter().find(|role| !has(role)).map(|role| format!("has no session in the role {role}"));
    let extra =
        unwanted.iter().find(|role| has(role)).map(|role| format!("has a session in the role {role}"));
    let what = lacking.or(extra)?;
    Some(Finding::new(&TWIN_ROLES, &case.id, format!("a twin of the kind {kind} {what}")))
}

fn dates(case: &Case) -> Option<Finding> {
    let crossed = case.labels.get(ORDER)? == CROSSED;
    let times: Vec<_> = case.history.segments.iter().map(|segment| segment.time).collect();
    let ascend = times.is_sorted();
    let what = match crossed {
        false if !ascend => "order is \"place\", and the dates do not ascend",
        true => {
            let pair = [OLD, NEW]
                .map(|role| segments(case, std::slice::from_ref(&role)).next().map(|s| (s.index, s.time)));
            let [Some(old), Some(new)] = pair else { return None };
            if old.0 > new.0 && old.1 < new.1 {
                return None;
            }
            "order is \"crossed\", and the old session is not placed last with the older date"
        }
        false => return None,
    };
    Some(Finding::new(&PLACE_AND_DATE, &case.id, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Evidence, History, Probe, Turn};

    fn case(twin: &str, sessions: &[(&str, &str)], current: &str, stale: &[&str], expects: &str) -> Case {
        let text = |text: &&str| format!(" {text}");
        let contrast = Contrasted {
            current: text(&current),
            stale: stale.iter().map(text).collect(),
            absent: vec![" Sunday".to_owned()],
        };
        let segments = sessions.iter().enumerate().map(|(index, (_, said))| Segment {
            kind: "session".to_owned(),
            index,
            time: Some(jiff::civil::date(2025, 1, 1 + index as i8).at(9, 0, 0, 0)),
            turns: vec![Turn::new("user", *said)],
        });
        let roles = sessions.iter().enumerate().filter(|(_, (role, _))| !role.is_empty());
        let evidence = roles.map(|(index, (role, _))| Evidence::segment(*role, index)).collect();
        let notes = serde_json::json!({ EXPECTS: expects }).as_object().cloned().unwrap();
        let labels = [(TWIN, twin), (ORDER, "place"), (CHAIN, "1")];
        let mut case = Case {
            id: "c".to_owned(),
            labels: labels.map(|(name, level)| (name.to_owned(), level.to_owned())).into(),
            history: History { segments: segments.collect(), query_time: None },
            evidence,
            probes: vec![Probe { id: "value".to_owned(), contrast: Some(contrast), ..Probe::default() }],
            ..Case::default()
        };
        case.judge.of_probes.insert("value".to_owned(), notes);
        case
    }

    fn found(case: &Case) -> Vec<String> {
        checks(case).findings.iter().map(|found| format!("{}: {}", found.check.name, found.message)).collect()
    }

    const UPDATED: [(&str, &str); 3] = [
        ("old", "The lesson is on Monday."),
        ("", "It rained."),
        ("new", "The lesson is on Friday, no longer on Monday."),
    ];
    const DENIED: [(&str, &str); 2] =
        [UPDATED[0], ("new", "The lesson is no longer on Monday, and that is all.")];
    const RETURNED: [(&str, &str); 3] =
        [UPDATED[0], UPDATED[2], ("new", "The lesson is on the same day as at first, no longer on Friday.")];
    const STRAY: [(&str, &str); 3] = [UPDATED[0], ("", "See you on Sunday."), UPDATED[2]];

    #[test]
    fn gold_that_follows_from_the_sessions_is_right_and_what_does_not_is_found() {
        type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], [&'a str; 3], &'a str);
        let table: [Row<'_>; 9] = [
            ("ab", &UPDATED, ["Friday", "Monday", "current"], ""),
            (
                "ab",
                &UPDATED,
                ["Monday", "Friday", "current"],
                "end with \"Friday\", the row expects \"Monday\"",
            ),
            ("ab", &UPDATED, ["Friday", "Monday", "none"], "the row expects no value"),
            ("ab", &DENIED, ["Friday", "Monday", "none"], ""),
            ("ab", &DENIED, ["Friday", "Monday", "current"], "replayed-gold: the sessions end with no value"),
            ("ab", &RETURNED, ["Monday", "Friday", "current"], "the sessions make 2 updates, chain is 1"),
            (
                "ab",
                &RETURNED,
                ["Friday", "Monday", "current"],
                "end with \"Monday\", the row expects \"Friday\"",
            ),
            (
                "no-update-ab",
                &UPDATED,
                ["Friday", "Monday", "current"],
                "twin-roles: a twin of the kind no-update has a session in the role new",
            ),
            (
                "ab",
                &STRAY,
                ["Friday", "Monday", "current"],
                "stray-value: session 1 has no part in it and says \"Sunday\"",
            ),
        ];
        for (twin, sessions, [current, stale, expects], expected) in table {
            let found = found(&case(twin, sessions, current, &[stale], expects));
            assert_eq!(found.is_empty(), expected.is_empty(), "{found:?}");
            assert!(expected.is_empty() || found.iter().any(|what| what.contains(expected)), "{found:?}");
        }
    }

    #[test]
    fn dates_decide_what_is_current() {
        let mut late = case("ab", &UPDATED, "Friday", &["Monday"], "current");
        let time = late.history.segments[0].time.replace(jiff::civil::date(2025, 3, 1).at(9, 0, 0, 0));
        assert!(time.is_some());
        let found = found(&late);
        assert!(
            ["place-and-date", "replayed-gold"].iter().all(|name| found.iter().any(|f| f.starts_with(name)))
        );
    }
}
