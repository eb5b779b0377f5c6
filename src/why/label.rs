//! The readings of one answer, made as its label needs them, and its certificate.

use std::ops::Range;

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::RequestError;
use palimpsest_core::span::Span;

use super::certificate;
use super::controls::{equal_sets, threshold};
use super::decide::{Decision, Facts, Lacking, decide};
use super::readings::Reader;
use crate::run::causes::taken;
use crate::run::why_rows::{
    Certificate, Compared, Label, Measure, Plain, SearchRow, SideReadings, WhySettings,
};

/// Context of an answer: its attention file and the spans of both sides' evidence.
pub struct Context<'a> {
    /// The attention file.
    pub store: &'a AttentionStore,
    /// Spans that hold newer evidence.
    pub newer: Vec<&'a Span>,
    /// Spans that hold older evidence.
    pub older: Vec<&'a Span>,
}

/// The label of an answer and what it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The label.
    pub label: Label,
    /// The reason in a sentence.
    pub why: String,
    /// The number with nothing changed.
    pub plain: Option<Plain>,
    /// Readings of the newer evidence.
    pub newer: Option<SideReadings>,
    /// Readings of the older evidence.
    pub older: Option<SideReadings>,
    /// The search for a certificate.
    pub search: Option<SearchRow>,
    /// Its result.
    pub certificate: Option<Certificate>,
    /// All readings.
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
///
/// # Errors
/// The model failed, or it was interrupted.
pub fn investigate(
    reader: &mut Reader<'_>,
    context: &Context<'_>,
    mut facts: Facts,
    settings: WhySettings,
) -> Result<Found, RequestError> {
    let sides = Sides { store: context.store, settings };
    let plain = reader.plain();
    let mut found = Found { plain: Some(plain), ..Found::default() };

    // 1. Both sides blocked.
    found.newer = sides.blocked(reader, &context.newer)?;
    found.older = sides.blocked(reader, &context.older)?;
    facts.blocked_newer = found.newer.as_ref().map(|side| side.blocked);
    facts.cannot_turn = cannot_turn(plain).map(str::to_owned);
    let turned = |side: &SideReadings| (side.blocked, reader.turned(plain.value - side.blocked.drop));
    facts.blocked_older = found.older.as_ref().map(turned);

    // 2. The certificate, over the same cached history.
    if plain.measure == Measure::Contrast {
        let (first, never) = match plain.value > 0.0 {
            true => (&context.newer, &context.older),
            false => (&context.older, &context.newer),
        };
        let candidates = certificate::candidates(context.store, first, never);
        let (search, certificate) = certificate::search(reader, context.store, &candidates, settings)?;
        (found.search, found.certificate) = (Some(search), certificate);
    }

    // 3. Removals.
    let mut decision = decide(&facts);
    if decision == Decision::Read(Lacking::RemovedOlder) {
        facts.removed_older = sides.removed(reader, &context.older)?;
        if let (Some(side), Some((compared, _))) = (&mut found.older, facts.removed_older) {
            side.removed = Some(compared);
        }
        decision = decide(&facts);
    }
    (found.label, found.why) = labelled(decision);
    found.readings = reader.readings();
    Ok(found)
}

/// Why an answer cannot be seen to turn to the current value.
fn cannot_turn(plain: Plain) -> Option<&'static str> {
    match plain.measure {
        Measure::LogP => Some(
            "whether it turns is told by contrasts alone, and its question names no values to hold against each other",
        ),
        Measure::Contrast if plain.value > 0.0 => {
            Some("the current value is the likelier one already, so that the contrast cannot turn to it")
        }
        Measure::Contrast => None,
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

    fn blocked(
        &self,
        reader: &mut Reader<'_>,
        spans: &[&Span],
    ) -> Result<Option<SideReadings>, RequestError> {
        if spans.is_empty() {
            return Ok(None);
        }
        let keys: Vec<Range<usize>> = spans.iter().map(|span| span.range()).collect();
        let mut sets = vec![keys.clone()];
        sets.extend(self.sets(&keys));
        let read = reader.blocked(&sets, None)?;
        let sessions = spans.iter().map(|span| span.label.clone()).collect();
        Ok(compared(reader, &read).map(|blocked| SideReadings { sessions, blocked, removed: None }))
    }

    /// The effect of removal and whether the answer turned; controls are read where it did.
    fn removed(
        &self,
        reader: &mut Reader<'_>,
        spans: &[&Span],
    ) -> Result<Option<(Compared, bool)>, RequestError> {
        let keys: Vec<Range<usize>> = spans.iter().map(|span| span.range()).collect();
        let mut read = vec![reader.removed(&keys)?];
        let turned = reader.turned(read[0]);
        if turned {
            for set in self.sets(&keys) {
                read.push(reader.removed(&set)?);
            }
        }
        Ok(compared(reader, &read).map(|compared| (compared, turned)))
    }
}

/// Of the number after a change, and after the same of each control.
fn compared(reader: &Reader<'_>, read: &[f64]) -> Option<Compared> {
    let plain = reader.plain().value;
    let (changed, controls) = read.split_first()?;
    let drops: Vec<f64> = controls.iter().map(|control| plain - control).collect();
    Some(Compared {
        drop: plain - changed,
        threshold: threshold(&drops),
        controls: drops.len(),
        flips: controls.iter().filter(|control| reader.turned(**control)).count(),
    })
}
