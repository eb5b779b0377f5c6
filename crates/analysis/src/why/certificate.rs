//! Certificate of an answer: the smallest set of sessions, then the narrowest layer window, whose blocking flips the answer.
//!
//! Sessions that support the target side are never blocked (without newer evidence, a right answer rests on the older one). The other
//! side's sessions are tried first, then the rest by the question's attention, to need few forward passes ([`super::search`]).

use std::ops::Range;

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use super::evidence::mass;
use super::readings::{ReadError, Reader, Turned};
use super::search::{smallest, window};
use palimpsest_data::benchmarks::QUERY;
use palimpsest_data::statistics::control::{equal_sets, extent};
use palimpsest_run::runs::causes::case::taken;
use palimpsest_run::runs::causes::session_measures::sessions;
use palimpsest_run::runs::why_rows::{Certificate, ControlFlips, SearchRow, WhySettings};

/// Maximum control sets whose answers are generated and judged.
const VERDICTS: usize = 5;

/// Candidates in search order: `first`, then the others by the question's attention mass, without `never`.
pub fn candidates<'a>(store: &'a AttentionStore, first: &[&Span], never: &[&Span]) -> Vec<&'a Span> {
    let is_in = |all: &[&Span], span: &Span| all.iter().any(|other| other.label == span.label);
    let mut order: Vec<&Span> = sessions(store).filter(|span| !is_in(never, span)).collect();
    let mass = |span: &Span| mass(store, QUERY, span).unwrap_or(0.0);
    order.sort_by(|a, b| {
        let rank = |span: &Span| !is_in(first, span);
        rank(a).cmp(&rank(b)).then(mass(b).total_cmp(&mass(a)))
    });
    order
}

pub fn search(
    reader: &mut Reader<'_>,
    store: &AttentionStore,
    candidates: &[&Span],
    settings: WhySettings,
) -> Result<(SearchRow, Option<Certificate>), ReadError> {
    let ranges = |set: &[usize]| set.iter().map(|at| candidates[*at].range()).collect::<Vec<Range<usize>>>();
    let mut last: Option<(Vec<usize>, Turned)> = None;
    let found = smallest(candidates.len(), settings.readings, &mut |set| {
        let read = reader.turn_blocked(&ranges(set), None)?;
        let turned = read.turned;
        if turned {
            let mut set = set.to_vec();
            set.sort_unstable();
            last = Some((set, read));
        }
        Ok::<bool, ReadError>(turned)
    })?;
    let mut row =
        SearchRow { candidates: candidates.len(), sessions: found.readings, layers: 0, spent: found.spent };
    let Some(set) = found.set else { return Ok((row, None)) };
    let keys = ranges(&set);
    let after = match last {
        Some((of, read)) if of == set => read,
        _ => reader.turn_blocked(&keys, None)?,
    };
    let count = reader.layers();
    let (layers, made) = window(count, settings.readings.saturating_sub(found.readings), &mut |layers| {
        reader.turn_blocked(&keys, Some(&layers)).map(|read| read.turned)
    })?;
    row.layers = made;

    // Random spans of equal lengths, disjoint from all evidence and from the certificate.
    let mut away = taken(&store.keys);
    away.extend(keys.iter().cloned());
    let lengths: Vec<usize> = keys.iter().map(Range::len).collect();
    let count = if after.answer.is_some() { settings.controls.min(VERDICTS) } else { settings.controls };
    let sets = equal_sets((count, settings.seed), &store.case, &lengths, &history(store), &away);
    let mut flips = 0;
    if after.answer.is_none() {
        let read = reader.blocked(&sets)?;
        flips = read.iter().filter(|changed| reader.flipped(**changed)).count();
    } else {
        for set in &sets {
            flips += usize::from(reader.turn_blocked(set, None)?.turned);
        }
    }
    let certificate = Certificate {
        sessions: set.into_iter().map(|at| candidates[at].label.clone()).collect(),
        layers,
        irreducible: found.irreducible,
        before: reader.plain().value,
        after: after.value,
        answer: after.answer,
        controls: ControlFlips { sets: sets.len(), flips },
    };
    Ok((row, Some(certificate)))
}

pub fn history(store: &AttentionStore) -> Range<usize> {
    extent(&sessions(store).map(Span::range).collect::<Vec<_>>())
}
