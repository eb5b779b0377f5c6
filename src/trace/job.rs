//! The arguments of one pass: a prompt of tokens with named spans, rows, measures and knock-outs, checked.
//!
//! Everything that can be refused without a model is refused when a [`TraceJob`] is made.

use anyhow::{Context, ensure};
use palimpsest_core::attention::{Knockout, KnockoutError, LayerHoles, LayerKind, Target};
use palimpsest_core::engine::memory_plan::ObservedSpans;
use palimpsest_core::engine::{Engine, Observe, Rows, TopRequest};
use palimpsest_core::span::Span;

/// The measures that a pass may have.
const MEASURES: [&str; 5] = ["mass", "share", "value_norm", "output_norm", "density"];

/// The arguments of a trace, as they were given.
pub struct Asked {
    /// The file, or the job: what errors begin with.
    pub place: String,
    pub tokens: Vec<u32>,
    /// The spans on the axis of the file.
    pub keys: Vec<Span>,
    /// Spans that rows and knock-outs may name.
    pub names: Vec<Span>,
    /// The rows' names: spans of `names`, `last`, `answer` or `each`.
    pub rows: Vec<String>,
    /// Positions at the end whose logits are wanted.
    pub logits: usize,
    pub knockouts: Vec<Knockout>,
    pub reach: Reach,
    /// Largest keys of each row position and head; 0 for none.
    pub top_keys: usize,
    /// The measures' names; mass and share where absent.
    pub measures: Option<Vec<String>>,
    /// Logits to take apart.
    pub targets: Vec<Target>,
    pub generate: usize,
    /// Tokens that end what is generated; none where all of it is wanted whatever comes.
    pub stop: Vec<u32>,
}

/// The rows that a knock-out blocks beside those that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// None, but for generated ones behind rows at the prompt's end.
    Named,
    /// All behind the first one that it names, as knock-outs that are written `ROWS->KEYS` do.
    Behind,
}

/// A prompt with all that is asked of it, checked.
pub struct TraceJob {
    /// The file, or the job: what errors begin with.
    pub place: String,
    pub tokens: Vec<u32>,
    pub observe: Observe,
    pub knockouts: Vec<Knockout>,
    pub generate: usize,
    pub stop: Vec<u32>,
    names: Vec<Span>,
    rows: usize,
    measures: Option<Vec<String>>,
    reach: Reach,
}

impl TraceJob {
    /// Checks all but what only a model can tell.
    pub fn new(asked: Asked) -> anyhow::Result<Self> {
        let Asked { place, tokens, keys, names, rows: row_names, logits, knockouts, reach, .. } = asked;
        let Asked { top_keys, measures, targets, generate, stop, .. } = asked;
        ensure!(!tokens.is_empty(), "{place}: `tokens` is empty; give at least one token");
        let n = tokens.len();
        let rows = Rows::named(&row_names, &names, n).with_context(|| place.clone())?;
        let named = row_names.iter().chain(knockouts.iter().map(|knockout| &knockout.rows));
        if let Some(row) = named.into_iter().find(|row| ["answer", "each"].contains(&row.as_str())) {
            ensure!(
                generate > 0,
                "{place}: row `{row}` is of generated tokens, and none are asked for; add --generate N, or leave the row out"
            );
        }
        ensure!(logits <= n, "{place}: `logits` asks for {logits} positions of {n} tokens");
        if let Some(unknown) = measures.iter().flatten().find(|name| !MEASURES.contains(&name.as_str())) {
            anyhow::bail!("{place}: `measures` names `{unknown}`, and knows {}", MEASURES.join(", "));
        }
        let norms = measures.iter().flatten().any(|name| name.ends_with("_norm"));
        ensure!(
            !(norms && rows.answer.any()),
            "{place}: value_norm and output_norm are of the prompt's rows; leave the rows `answer` and `each` out"
        );
        ensure!(top_keys <= n, "{place}: `top_keys` asks for {top_keys} keys of {n}");
        let observe = Observe {
            rows,
            keys,
            top_keys: (top_keys > 0).then_some(TopRequest { k: top_keys, mean: false }),
            norms,
            targets,
            logits,
            ..Observe::default()
        };
        let rows = row_names.len();
        Ok(TraceJob { place, tokens, observe, names, rows, measures, knockouts, reach, generate, stop })
    }

    /// True if the file has this measure.
    pub fn wants(&self, name: &str) -> bool {
        match &self.measures {
            Some(named) => named.iter().any(|other| other == name),
            None => ["mass", "share"].contains(&name),
        }
    }

    /// Tokens of prompt and answer.
    pub fn room(&self) -> usize {
        self.tokens.len().saturating_add(self.generate)
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        &self.observe.keys
    }

    /// True if something is generated.
    pub fn generates(&self) -> bool {
        self.generate > 0
    }

    /// The targets whose logits are attributed.
    pub fn targets(&self) -> &[Target] {
        &self.observe.targets
    }

    /// The spans that the attention observer sums over.
    pub fn observed(&self) -> ObservedSpans {
        let each = if self.observe.rows.answer.each { self.generate } else { 0 };
        ObservedSpans {
            rows: self.rows.saturating_add(each),
            keys: self.observe.keys.len(),
            generated: self.generate,
        }
    }

    /// Tokens at the beginning that the cache is to keep for the next pass where keys are hidden: those before the first row that is
    /// blocked or measured. Where none are hidden, all are kept anyhow.
    pub fn shared(&self, holes: &LayerHoles, engine: &Engine) -> usize {
        let Some(blocked) = holes.first_row() else { return 0 };
        let Observe { rows, targets, logits, .. } = &self.observe;
        let measured = rows.spans.iter().map(|row| row.start);
        let first = measured.chain(targets.iter().map(|target| target.position)).chain([blocked]).min();
        // A token by itself would be summed in the order of decoding.
        let most = self.tokens.len().saturating_sub((*logits).max(2));
        match engine.border(first.unwrap_or(0).min(most)) {
            1 => 0,
            shared => shared,
        }
    }

    /// The keys that its knock-outs hide in a model with these layers.
    pub fn holes(&self, kinds: &[LayerKind]) -> Result<LayerHoles, KnockoutError> {
        let n = self.tokens.len();
        match self.reach {
            Reach::Named => LayerHoles::exact(&self.knockouts, &self.names, n, kinds),
            Reach::Behind => {
                let position = n.saturating_sub(1)..n;
                let positions = ["last", "answer", "each"].map(|name| Span::new(name, position.clone()));
                let names: Vec<Span> = self.names.iter().cloned().chain(positions).collect();
                // The rows of generated tokens are all that there are behind the prompt.
                let whole = |knockout: &Knockout| match ["answer", "each"].contains(&knockout.rows.as_str()) {
                    true => Knockout { only: false, ..knockout.clone() },
                    false => knockout.clone(),
                };
                let knockouts: Vec<Knockout> = self.knockouts.iter().map(whole).collect();
                LayerHoles::new(&knockouts, &names, n, kinds)
            }
        }
    }
}
