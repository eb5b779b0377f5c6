//! Readings of one answer, made lazily for its label, and its certificate.

use std::ops::Range;

use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use super::certificate::{self, history};
use super::controls::threshold;
use super::decide::{Facts, decide};
use super::readings::{ReadError, Reader};
use palimpsest_data::statistics::control::equal_sets;
use palimpsest_run::runs::causes::case::taken;
use palimpsest_run::runs::why_rows::{Compared, Label, SideReadings, WhyRow, WhySettings, by_chance};

/// An answer's context and its evidence of either side.
pub struct Context<'a> {
    pub store: &'a AttentionStore,
    pub newer: Vec<&'a Span>,
    pub older: Vec<&'a Span>,
    pub settings: WhySettings,
}

pub fn labelled(facts: &Facts) -> (Label, String) {
    decide(facts).unwrap_or_else(|| (Label::Undecided, "a span of its evidence cannot be hidden".to_owned()))
}

/// Labels one answer; names of answer and judge are left empty. Always blocks both sides and searches a certificate, since rows record
/// them; removals need a new prefill and are made only on demand.
pub fn investigate(
    reader: &mut Reader<'_>,
    context: &Context<'_>,
    mut facts: Facts,
) -> Result<WhyRow, ReadError> {
    let &Context { store, ref newer, ref older, settings } = context;
    let mut row = WhyRow { plain: Some(reader.plain()), settings, ..WhyRow::default() };

    facts.controls = settings.controls;
    facts.tokens = [newer, older].map(|spans| spans.iter().map(|span| span.range().len()).sum());
    row.newer = context.blocked(reader, newer)?;
    row.older = context.blocked(reader, older)?;
    facts.blocked_newer = row.newer.as_ref().map(|side| side.blocked);
    facts.cannot_turn = cannot_turn(reader).map(str::to_owned);

    // 2. Certificate, over the same KV cache.
    if reader.can_turn() {
        // Without newer evidence, the current state rests on the older one.
        let none = Vec::new();
        let (first, never) = match (reader.holds_current(), newer.is_empty()) {
            (true, false) => (newer, older),
            (true, true) => (older, &none),
            (false, _) => (older, newer),
        };
        let candidates = certificate::candidates(store, first, never);
        let (search, certificate) = certificate::search(reader, store, &candidates, settings)?;
        facts.certified = certificate.as_ref().is_some_and(|certificate| {
            let is_older = |label: &String| older.iter().any(|span| span.label == *label);
            certificate.sessions.iter().all(is_older)
                && !by_chance(certificate.controls.flips, certificate.controls.sets)
        });
        (row.search, row.certificate) = (Some(search), certificate);
    }

    // 3. Flips without the older evidence, as far as needed.
    let is_open = |facts: &Facts| facts.blocked_newer.is_some() && decide(facts).is_none();
    if let Some(side) = &mut row.older {
        if is_open(&facts) {
            facts.blocked_older = Some((side.blocked, context.turns(reader, older, side.blocked)?));
        }
        if is_open(&facts) {
            let removed = context.removed(reader, older)?;
            side.removed = Some(removed.0);
            facts.removed_older = Some(removed);
        }
    }
    (row.label, row.why) = labelled(&facts);
    row.readings = reader.readings;
    Ok(row)
}

/// Why a flip to the current state cannot be detected.
fn cannot_turn(reader: &Reader<'_>) -> Option<&'static str> {
    match reader.can_turn() {
        false => Some(
            "its question names no values to compare, and no judge was asked about a new answer (--anew)",
        ),
        true if reader.holds_current() => {
            Some("the current value is already the likelier one, so the contrast cannot turn to it")
        }
        true => None,
    }
}

fn ranges(spans: &[&Span]) -> Vec<Range<usize>> {
    spans.iter().map(|span| span.range()).collect()
}

impl Context<'_> {
    fn sets(&self, keys: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
        let lengths: Vec<usize> = keys.iter().map(Range::len).collect();
        let WhySettings { controls, seed, .. } = self.settings;
        let (history, away) = (history(self.store), taken(&self.store.keys));
        equal_sets((controls, seed), &self.store.case, &lengths, &history, &away)
    }

    fn blocked(&self, reader: &mut Reader<'_>, spans: &[&Span]) -> Result<Option<SideReadings>, ReadError> {
        if spans.is_empty() {
            return Ok(None);
        }
        let keys = ranges(spans);
        let sets: Vec<_> = std::iter::once(keys.clone()).chain(self.sets(&keys)).collect();
        let read = reader.blocked(&sets)?;
        let (changed, controls) = read.split_at(read.len().min(1));
        let changed = changed.first().copied().unwrap_or(f64::NAN);
        let sessions = spans.iter().map(|span| span.label.clone()).collect();
        Ok(Some(SideReadings { sessions, blocked: compared(reader, changed, controls), removed: None }))
    }

    /// True if blocking these spans flips the answer; their effect is known.
    fn turns(&self, reader: &mut Reader<'_>, spans: &[&Span], known: Compared) -> Result<bool, ReadError> {
        match reader.plain().measure {
            Measure::Contrast => Ok(reader.flipped(reader.plain().value - known.drop)),
            Measure::LogP => Ok(reader.turn_blocked(&ranges(spans), None)?.turned),
        }
    }

    /// Effect of removal, and whether the answer flipped; if so, controls are read too.
    fn removed(&self, reader: &mut Reader<'_>, spans: &[&Span]) -> Result<(Compared, bool), ReadError> {
        let keys = ranges(spans);
        let changed = reader.turn_removed(&keys)?;
        let sets = if changed.turned { self.sets(&keys) } else { Vec::new() };
        let controls: Vec<f64> = sets.iter().map(|set| reader.removed(set)).collect::<Result<_, _>>()?;
        Ok((compared(reader, changed.value, &controls), changed.turned))
    }
}

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
