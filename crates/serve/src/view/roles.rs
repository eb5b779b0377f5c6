//! Sessions of a prompt and the parts that they play.

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::{Benchmark, QUERY};

/// The row whose attention over the history is looked at first: the query's, else that of the benchmark's viewer.
pub fn viewer(store: &AttentionStore, benchmark: &Benchmark) -> Option<usize> {
    let row = |name: &str| {
        let is =
            |span: &Span| !span.is_empty() && (span.is(name) || span.role.is_none() && span.label == name);
        store.rows.iter().position(is)
    };
    row(QUERY).or_else(|| row(benchmark.lens.viewer()))
}

/// The keys that are sessions, events, memories, in the order of the file.
pub fn session_spans(store: &AttentionStore) -> impl Iterator<Item = usize> {
    let is = |(_, span): &(usize, &Span)| span.segment().is_some() && !span.overlay && !span.is_empty();
    store.keys.iter().enumerate().filter(is).map(|(key, _)| key)
}

/// True if a session plays a part, or holds a span that does.
pub fn holds(store: &AttentionStore, key: usize, role: &str) -> bool {
    let Some(session) = store.keys.get(key) else { return false };
    let inside =
        |span: &Span| span.overlay && span.is(role) && session.start <= span.start && span.end <= session.end;
    session.is(role) || store.keys.iter().any(inside)
}
