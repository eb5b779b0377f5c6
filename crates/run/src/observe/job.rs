//! One pass over a prompt of tokens with named spans: its rows, measures and knock-outs, checked.
//!
//! Everything that can be refused without a model is refused when a [`TraceJob`] is made.

use anyhow::{Context, bail, ensure};
use palimpsest_core::attention::{Knockout, KnockoutError, LayerHoles, LayerKind, Target};
use palimpsest_core::engine::memory_plan::ObservedSpans;
use palimpsest_core::engine::{Engine, Observe, Rows, TopRequest};
use palimpsest_core::span::Span;

use super::request::{Measure, ObserveRequest};
use super::text::{NamedPrompt, NamedSpan, Source, TextTools, prompt};

/// A prompt with all that is asked of it, checked.
pub struct TraceJob {
    /// The file, or the job: what errors begin with.
    pub place: String,
    pub tokens: Vec<u32>,
    pub observe: Observe,
    /// As it was asked for, with its rows.
    pub request: ObserveRequest,
    /// Tokens to generate.
    pub generate: usize,
    /// Tokens that end what is generated; none where all of it is wanted whatever comes.
    pub stop: Vec<u32>,
    /// Spans that rows and knock-outs may name.
    names: Vec<Span>,
    rows: usize,
    /// Knock-outs block all rows behind the first one that they name, as `ROWS->KEYS` does; else those that they name, and generated ones
    /// behind rows at the prompt's end.
    reaches_behind: bool,
}

impl ObserveRequest {
    /// Its tokens and spans, checked. `more` are spans that are named beside those of `spans`; `place` is the file or the job, for
    /// errors.
    pub fn checked(
        self,
        more: Vec<NamedSpan>,
        side: TextTools<'_>,
        place: &str,
    ) -> anyhow::Result<(TraceJob, NamedPrompt)> {
        let source = match (&self.text, &self.messages) {
            (Some(text), None) => Source::Text(text.clone()),
            (None, Some(messages)) => Source::messages(messages.clone()).with_context(|| place.to_owned())?,
            (Some(_), Some(_)) => bail!("{place} has both `text` and `messages`; give one of them"),
            (None, None) => bail!("{place} has neither `text` nor `messages`; give one of them"),
        };
        let mut named = NamedSpan::from_json(self.spans.clone()).with_context(|| place.to_owned())?;
        named.extend(more);
        let prompt = prompt(&source, &named, side, place)?;
        ensure!(
            !prompt.keys.is_empty(),
            "{place}: no span is named; name parts of the text with --spans LABEL=TEXT"
        );
        Ok((self.of_prompt(&prompt, side, place)?, prompt))
    }

    pub fn of_prompt(
        self,
        prompt: &NamedPrompt,
        side: TextTools<'_>,
        place: &str,
    ) -> anyhow::Result<TraceJob> {
        let tokens = prompt.encoded.ids.clone();
        ensure!(!tokens.is_empty(), "{place}: the text is empty; give at least one token");
        TraceJob::new(self, tokens, prompt.keys.clone(), prompt.names.clone(), Some(side), place)
    }
}

impl TraceJob {
    /// Checks all but what only a model can tell. `keys` are the spans on the axis of the file, `names` those that rows and knock-outs may
    /// name; `side` is absent where the prompt was given as tokens.
    pub fn new(
        request: ObserveRequest,
        tokens: Vec<u32>,
        keys: Vec<Span>,
        names: Vec<Span>,
        side: Option<TextTools<'_>>,
        place: &str,
    ) -> anyhow::Result<Self> {
        ensure!(!tokens.is_empty(), "{place}: `tokens` is empty; give at least one token");
        let n = tokens.len();
        let generate = request.generate.unwrap_or(0);
        let usual = if generate > 0 { &["last", "answer"][..] } else { &["last"] };
        let usual = || usual.iter().map(|&row| row.to_owned()).collect::<Vec<_>>();
        let row_names = request.rows.clone().unwrap_or_else(usual);
        let rows = Rows::named(&row_names, &names, n).with_context(|| place.to_owned())?;
        let named = row_names.iter().chain(request.knockouts.iter().map(|knockout| &knockout.rows));
        if let Some(row) = named.into_iter().find(|row| ["answer", "each"].contains(&row.as_str())) {
            ensure!(
                generate > 0,
                "{place}: row `{row}` is of generated tokens, and none are asked for; add --generate N, or leave the row out"
            );
        }
        let (logits, top_keys) = (request.logits, request.top_keys);
        ensure!(logits <= n, "{place}: `logits` asks for {logits} positions of {n} tokens");
        let norms = request.measures.iter().flatten().any(|measure| measure.is_length());
        ensure!(
            !(norms && rows.answer.any()),
            "{place}: value_norm and output_norm are of the prompt's rows; leave the rows `answer` and `each` out"
        );
        ensure!(top_keys <= n, "{place}: `top_keys` asks for {top_keys} keys of {n}");
        let targets = request.targets.iter().map(|target| target.resolved(n, side, place));
        let observe = Observe {
            rows,
            keys,
            top_keys: (top_keys > 0).then_some(TopRequest { k: top_keys, mean: false }),
            norms,
            targets: targets.collect::<Result<_, _>>()?,
            logits,
            ..Observe::default()
        };
        Ok(TraceJob {
            place: place.to_owned(),
            tokens,
            observe,
            request,
            generate,
            stop: side.map(|side| side.stop.to_vec()).unwrap_or_default(),
            names,
            rows: row_names.len(),
            reaches_behind: side.is_some(),
        })
    }

    /// True if the file has this measure.
    pub fn wants(&self, measure: Measure) -> bool {
        self.request.wants(measure)
    }

    pub fn knockouts(&self) -> &[Knockout] {
        &self.request.knockouts
    }

    /// Tokens of prompt and answer.
    pub fn room(&self) -> usize {
        self.tokens.len().saturating_add(self.generate)
    }

    pub fn keys(&self) -> &[Span] {
        &self.observe.keys
    }

    pub fn generates(&self) -> bool {
        self.generate > 0
    }

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
        if !self.reaches_behind {
            return LayerHoles::exact(self.knockouts(), &self.names, n, kinds);
        }
        let position = n.saturating_sub(1)..n;
        let positions = ["last", "answer", "each"].map(|name| Span::new(name, position.clone()));
        let names: Vec<Span> = self.names.iter().cloned().chain(positions).collect();
        // The rows of generated tokens are all that there are behind the prompt.
        let of_answer = |knockout: &Knockout| ["answer", "each"].contains(&knockout.rows.as_str());
        let whole = |knockout: &Knockout| Knockout {
            only: knockout.only && !of_answer(knockout),
            ..knockout.clone()
        };
        let knockouts: Vec<Knockout> = self.knockouts().iter().map(whole).collect();
        LayerHoles::new(&knockouts, &names, n, kinds)
    }
}
