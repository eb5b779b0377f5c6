//! The certificate of an answer: the smallest set of sessions, then the narrowest window of layers, whose blocking turns it.
//!
//! Sessions that speak for the side that the answer is to turn to are never blocked. Those of the other side come first, then the others by
//! the question's attention to them, so that likely sets are found in few readings ([`super::search`]).

use std::collections::BTreeSet;
use std::ops::Range;

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::RequestError;
use palimpsest_core::span::Span;

use super::controls::equal_sets;
use super::readings::Reader;
use super::search::{smallest, window};
use crate::benchmarks::QUERY;
use crate::run::causes::taken;
use crate::run::session_measures::sessions;
use crate::run::why_rows::{Certificate, ControlFlips, SearchRow, WhySettings};

/// Candidates in the order in which they are tried: those in `first`, then the others by the question's attention mass, those in `never` left
/// out.
pub fn candidates<'a>(store: &'a AttentionStore, first: &[&Span], never: &[&Span]) -> Vec<&'a Span> {
    let is_in = |all: &[&Span], span: &Span| all.iter().any(|other| other.label == span.label);
    let mut order: Vec<&Span> = sessions(store).filter(|span| !is_in(never, span)).collect();
    let mass = |span: &Span| mass(store, span).unwrap_or(0.0);
    order.sort_by(|a, b| {
        let rank = |span: &Span| !is_in(first, span);
        rank(a).cmp(&rank(b)).then(mass(b).total_cmp(&mass(a)))
    });
    order
}

/// The question's attention mass to a span, mean over layers and heads.
fn mass(store: &AttentionStore, span: &Span) -> Option<f64> {
    let row = store.rows.iter().position(|row| row.is(QUERY))?;
    let key = store.keys.iter().position(|key| key.label == span.label)?;
    let of_pair = store.mass.slice(ndarray::s![.., .., row, key]);
    of_pair.mean().map(f64::from)
}

/// Searches the certificate of an answer among `candidates`.
///
/// # Errors
/// The model failed, or it was interrupted.
pub fn search(
    reader: &mut Reader<'_>,
    store: &AttentionStore,
    candidates: &[&Span],
    settings: WhySettings,
) -> Result<(SearchRow, Option<Certificate>), RequestError> {
    let ranges = |set: &[usize]| set.iter().map(|at| candidates[*at].range()).collect::<Vec<Range<usize>>>();
    let one = |reader: &mut Reader<'_>, keys: Vec<Range<usize>>, layers: Option<Range<usize>>| {
        let changed = reader.blocked(&[keys], layers)?.first().copied().unwrap_or(f64::NAN);
        Ok::<(f64, bool), RequestError>((changed, reader.turned(changed)))
    };
    let found = smallest(candidates.len(), settings.readings, &mut |set| {
        one(reader, ranges(set), None).map(|(_, turned)| turned)
    })?;
    let mut row =
        SearchRow { candidates: candidates.len(), sessions: found.readings, layers: 0, spent: found.spent };
    let Some(set) = found.set else { return Ok((row, None)) };
    let keys = ranges(&set);
    let (after, _) = one(reader, keys.clone(), None)?;
    let count = reader.layers();
    let (layers, made) = window(count, settings.readings.saturating_sub(found.readings), &mut |layers| {
        one(reader, keys.clone(), Some(layers)).map(|(_, turned)| turned)
    })?;
    row.layers = made;

    // Random stretches of the same lengths, away from all evidence and from the certificate itself.
    let mut away = taken(&store.keys);
    away.extend(keys.iter().cloned());
    let lengths: Vec<usize> = keys.iter().map(Range::len).collect();
    let sets = equal_sets((settings.controls, settings.seed), &store.case, &lengths, &history(store), &away);
    let read = reader.blocked(&sets, None)?;
    let flips = read.iter().filter(|changed| reader.turned(**changed)).count();
    let labels: BTreeSet<usize> = set.into_iter().collect();
    let certificate = Certificate {
        sessions: labels.into_iter().map(|at| candidates[at].label.clone()).collect(),
        layers,
        irreducible: found.irreducible,
        before: reader.plain().value,
        after,
        controls: ControlFlips { sets: sets.len(), flips },
    };
    Ok((row, Some(certificate)))
}

/// The tokens from the first session to the last.
pub fn history(store: &AttentionStore) -> Range<usize> {
    let start = sessions(store).map(|span| span.start).min().unwrap_or(0);
    let end = sessions(store).map(|span| span.end).max().unwrap_or(0);
    start..end
}
