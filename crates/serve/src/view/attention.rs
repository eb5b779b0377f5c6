//! Attention of an answer: the sessions of its prompt, and their roles.

use std::path::{Path, PathBuf};

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use palimpsest_analysis::lens::ByLayer;
use palimpsest_data::benchmarks::{Benchmark, QUERY};
use palimpsest_run::runs::store::read_attention;

#[derive(Debug)]
pub struct Attention {
    pub path: PathBuf,
    pub store: AttentionStore,
    pub by_layer: ByLayer,
    /// Row displayed first.
    pub viewer: Option<usize>,
}

impl Attention {
    /// Reads the file `name` of the run `dir`.
    pub fn read(dir: &Path, name: &str, benchmark: &Benchmark) -> anyhow::Result<Self> {
        let (store, path) = (read_attention(dir, name)?, dir.join(name));
        let by_layer = ByLayer::of(&path, &store, None)?;
        let viewer = viewer(&store, benchmark);
        Ok(Attention { path, store, by_layer, viewer })
    }
}

/// The query's row, else that of the benchmark's viewer.
fn viewer(store: &AttentionStore, benchmark: &Benchmark) -> Option<usize> {
    let row = |name: &str| {
        let is =
            |span: &Span| !span.is_empty() && (span.is(name) || span.role.is_none() && span.label == name);
        store.rows.iter().position(is)
    };
    row(QUERY).or_else(|| row(benchmark.lens.viewer()))
}

/// Indices of session, event or memory keys, in file order.
pub fn session_spans(store: &AttentionStore) -> impl Iterator<Item = usize> {
    let is = |(_, span): &(usize, &Span)| span.segment().is_some() && !span.overlay && !span.is_empty();
    store.keys.iter().enumerate().filter(is).map(|(key, _)| key)
}

/// True if the session has the role, or contains a span that has.
pub fn holds(store: &AttentionStore, key: usize, role: &str) -> bool {
    let Some(session) = store.keys.get(key) else { return false };
    let inside =
        |span: &Span| span.overlay && span.is(role) && session.start <= span.start && span.end <= session.end;
    session.is(role) || store.keys.iter().any(inside)
}
