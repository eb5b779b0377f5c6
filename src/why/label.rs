//! The readings of one answer, made as its label needs them, and its certificate.

use std::ops::Range;

use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use super::certificate;
use super::controls::threshold;
use super::decide::{Decision, Facts, Lacking, decide};
use super::readings::{ReadError, Reader};
use crate::run::causes::case::taken;
use crate::run::why_rows::{
    Certificate, Compared, ControlFlips, Label, Plain, SearchRow, SideReadings, WhySettings, by_chance,
};
use crate::statistics::control::equal_sets;

/// Context of an answer: its attention file and the spans of both sides' evidence.
pub struct Context<'a> {
    pub store: &'a AttentionStore,
    pub newer: Vec<&'a Span>,
    pub older: Vec<&'a Span>,
}

/// The label of an answer and what it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub label: Label,
    pub why: String,
    pub plain: Option<Plain>,
    pub newer: Option<SideReadings>,
    pub older: Option<SideReadings>,
    pub search: Option<SearchRow>,
    pub certificate: Option<Certificate>,
    pub readings: usize,
}

impl Default for Found {
    fn default() -> Self {
        Found {
            label: Label::Undecided,
            why: String::new(),
            plain: None,
            newer: None,
            older: None,
            search: None,
            certificate: None,
            readings: 0,
        }
    }
}

impl Found {
    /// The label that follows without a reading.
    pub fn without_readings(facts: &Facts) -> Self {
        let (label, why) = labelled(decide(facts));
        Found { label, why, ..Found::default() }
    }
}

fn labelled(decision: Decision) -> (Label, String) {
    match decision {
        Decision::Label(label, why) => (label, why),
        Decision::Read(_) => (Label::Undecided, "a span of its evidence cannot be read".to_owned()),
    }
}

/// Reads an answer. Both sides are blocked and a certificate is searched whatever the label needs, since rows tell both; removals, which
/// read the history anew, are made where the decision asks for them.
pub fn investigate(
    reader: &mut Reader<'_>,
    context: &Context<'_>,
    mut facts: Facts,
    settings: WhySettings,
) -> Result<Found, ReadError> {
    let sides = Sides { store: context.store, settings };
    let plain = reader.plain();
    let mut found = Found { plain: Some(plain), ..Found::default() };

    // 1. Both sides blocked.
    found.newer = sides.blocked(reader, &context.newer)?;
    found.older = sides.blocked(reader, &context.older)?;
    facts.blocked_newer = found.newer.as_ref().map(|side| side.blocked);
    facts.cannot_turn = cannot_turn(reader).map(str::to_owned);

    // 2. The certificate, over the same cached history.
    if reader.can_turn() {
        // Without newer evidence the older one is what the current state rests on.
        let none = Vec::new();
        let (first, never) = match (reader.holds_current(), context.newer.is_empty()) {
            (true, false) => (&context.newer, &context.older),
            (true, true) => (&context.older, &none),
            (false, _) => (&context.older, &context.newer),
        };
        let candidates = certificate::candidates(context.store, first, never);
        let (search, certificate) = certificate::search(reader, context.store, &candidates, settings)?;
        (found.search, found.certificate) = (Some(search), certificate);
        let older: Vec<&str> = context.older.iter().map(|span| span.label.as_str()).collect();
        facts.certified = found.certificate.as_ref().is_some_and(|certificate| {
            let ControlFlips { sets, flips } = certificate.controls;
            certificate.sessions.iter().all(|label| older.contains(&label.as_str()))
                && !by_chance(flips, sets)
        });
    }

    // 3. Whether it turns without the older evidence, as far as the decision asks.
    let decision = loop {
        match (decide(&facts), &mut found.older) {
            (Decision::Read(Lacking::BlockedOlder), Some(side)) => {
                let turned = sides.turns(reader, &context.older, side.blocked)?;
                facts.blocked_older = Some((side.blocked, turned));
            }
            (Decision::Read(Lacking::RemovedOlder), Some(side)) => {
                let removed = sides.removed(reader, &context.older)?;
                side.removed = Some(removed.0);
                facts.removed_older = Some(removed);
            }
            (decision, _) => break decision,
        }
    };
    (found.label, found.why) = labelled(decision);
    found.readings = reader.readings();
    Ok(found)
}

/// Why an answer cannot be seen to turn to the current state.
fn cannot_turn(reader: &Reader<'_>) -> Option<&'static str> {
    match reader.can_turn() {
        false => Some(
            "its question names no values to hold against each other, and no judge was asked about an answer generated anew",
        ),
        true if reader.holds_current() => {
            Some("the current value is the likelier one already, so that the contrast cannot turn to it")
        }
        true => None,
    }
}

/// Comparisons of evidence with random text of equal size.
struct Sides<'a> {
    store: &'a AttentionStore,
    settings: WhySettings,
}

impl Sides<'_> {
    fn sets(&self, keys: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
        let lengths: Vec<usize> = keys.iter().map(Range::len).collect();
        let WhySettings { controls, seed, .. } = self.settings;
        let (history, away) = (certificate::history(self.store), taken(&self.store.keys));
        equal_sets((controls, seed), &self.store.case, &lengths, &history, &away)
    }

    fn blocked(&self, reader: &mut Reader<'_>, spans: &[&Span]) -> Result<Option<SideReadings>, ReadError> {
        if spans.is_empty() {
            return Ok(None);
        }
        let keys: Vec<Range<usize>> = spans.iter().map(|span| span.range()).collect();
        let mut sets = vec![keys.clone()];
        sets.extend(self.sets(&keys));
        let read = reader.blocked(&sets)?;
        let sessions = spans.iter().map(|span| span.label.clone()).collect();
        let (changed, controls) = read.split_at(read.len().min(1));
        let changed = changed.first().copied().unwrap_or(f64::NAN);
        Ok(Some(SideReadings { sessions, blocked: compared(reader, changed, controls), removed: None }))
    }

    /// True if the answer turns with spans blocked whose effect is known.
    fn turns(&self, reader: &mut Reader<'_>, spans: &[&Span], known: Compared) -> Result<bool, ReadError> {
        match reader.plain().measure {
            Measure::Contrast => Ok(reader.flipped(reader.plain().value - known.drop)),
            Measure::LogP => {
                let keys: Vec<Range<usize>> = spans.iter().map(|span| span.range()).collect();
                Ok(reader.turn_blocked(&keys, None)?.turned)
            }
        }
    }

    /// The effect of removal and whether the answer turned; controls are read where it did.
    fn removed(&self, reader: &mut Reader<'_>, spans: &[&Span]) -> Result<(Compared, bool), ReadError> {
        let keys: Vec<Range<usize>> = spans.iter().map(|span| span.range()).collect();
        let changed = reader.turn_removed(&keys)?;
        let mut controls = Vec::new();
        if changed.turned {
            for set in self.sets(&keys) {
                controls.push(reader.removed(&set)?);
            }
        }
        Ok((compared(reader, changed.value, &controls), changed.turned))
    }
}

/// Of the number after a change, and after the same of each control.
fn compared(reader: &Reader<'_>, changed: f64, controls: &[f64]) -> Compared {
    let plain = reader.plain().value;
    let drops: Vec<f64> = controls.iter().map(|control| plain - control).collect();
    Compared {
        drop: plain - changed,
        threshold: threshold(&drops),
        controls: drops.len(),
        flips: controls.iter().filter(|control| reader.flipped(**control)).count(),
    }
}
