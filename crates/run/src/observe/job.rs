//! A validated request for one pass over a tokenised prompt with named spans: rows, measures and knock-outs. Everything that can be
//! rejected without a model is rejected when a [`TraceJob`] is created.

use anyhow::{Context, bail, ensure};
use palimpsest_core::attention::{Knockout, KnockoutError, LayerHoles, LayerKind};
use palimpsest_core::engine::memory_plan::ObservedSpans;
use palimpsest_core::engine::{Engine, Observe, Rows, TopRequest};
use palimpsest_core::evict::{Evict, Eviction, PolicyName};
use palimpsest_core::span::Span;

use super::request::ObserveRequest;
use super::text::{NamedPrompt, NamedSpan, Source, TextTools, prompt};

pub struct TraceJob {
    /// File or job, the prefix of errors.
    pub place: String,
    pub tokens: Vec<u32>,
    pub observe: Observe,
    /// With default rows filled in.
    pub request: ObserveRequest,
    pub generate: usize,
    pub evict: Option<Eviction>,
    pub stop: Vec<u32>,
    /// Spans that rows and knock-outs may refer to.
    names: Vec<Span>,
    rows: usize,
    /// If true, a knock-out `ROWS->KEYS` also blocks all later rows; otherwise only the named rows, and generated rows if these reach the
    /// prompt's end.
    pub(super) reaches_behind: bool,
}

impl ObserveRequest {
    /// `more` adds spans to those of the request; `place` is the file or job, for errors.
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
    /// `keys` are the exported spans, `names` those that rows and knock-outs may refer to; `side` is absent for prompts given as tokens.
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
        ensure!(
            !request.selected || !rows.spans.is_empty() || rows.answer.mean.is_some(),
            "{place}: `selected` is of rows, and none is named beside `each`; name a span, `last` or `answer`"
        );
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
            first_token: true,
            selected: request.selected,
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
            evict: None,
            stop: side.map(|side| side.stop.to_vec()).unwrap_or_default(),
            names,
            rows: row_names.len(),
            reaches_behind: side.is_some(),
        })
    }

    /// Evicts keys before the question: the span of this label, else what follows the last span. The spans before it are sessions to
    /// policies.
    pub fn evicting(mut self, evict: Evict, question: &str, seed: u64) -> anyhow::Result<Self> {
        let Observe { keys, top_keys, norms, targets, .. } = &self.observe;
        let apart = self.request.knockouts.is_empty() && top_keys.is_none() && !norms && targets.is_empty();
        ensure!(
            apart,
            "{}: evict is not measured together with knockouts, top_keys, targets, value_norm and output_norm; leave them out",
            self.place
        );
        ensure!(
            evict.policy != PolicyName::Oracle,
            "{}: evict `{evict}` keeps the sessions that a benchmark marks as evidence, and a prompt marks none; give another policy",
            self.place
        );
        let named = keys.iter().find(|span| span.label == question).map(|span| span.start);
        let at = named.or_else(|| keys.iter().map(|span| span.end).max()).unwrap_or(0);
        ensure!(
            at > 0 && at < self.tokens.len(),
            "{}: evict needs tokens before the question and in it, which is the span `{question}` or else the text after the last span",
            self.place
        );
        let named = |(i, span): (usize, &Span)| match span.end <= at {
            true => Span::new(format!("session[{i}]"), span.range()),
            false => span.clone(),
        };
        let spans = keys.iter().enumerate().map(named).collect();
        self.evict = Some(Eviction { evict, at, spans, seed });
        Ok(self)
    }

    pub fn room(&self) -> usize {
        self.tokens.len().saturating_add(self.generate)
    }

    pub fn observed(&self) -> ObservedSpans {
        let each = if self.observe.rows.answer.each { self.generate } else { 0 };
        ObservedSpans {
            rows: self.rows.saturating_add(each),
            keys: self.observe.keys.len(),
            generated: self.generate,
            selected: self.observe.selected,
            norms: self.observe.norms,
            attributed: !self.observe.targets.is_empty(),
        }
    }

    /// Prefix length to keep cached for the next pass despite masked or evicted keys: the tokens before the first blocked, scored or
    /// measured row. Without these everything is kept anyway.
    pub fn shared(&self, holes: &LayerHoles, engine: &Engine) -> usize {
        let evicted = self.evict.as_ref().map(|eviction| eviction.first_row().unwrap_or(eviction.at));
        let Some(blocked) = holes.first_row().or(evicted) else { return 0 };
        let Observe { rows, targets, logits, .. } = &self.observe;
        let measured = rows.spans.iter().map(|row| row.start);
        let first = measured.chain(targets.iter().map(|target| target.position)).chain([blocked]).min();
        // A single row would be summed in decode order.
        let most = self.tokens.len().saturating_sub((*logits).max(2));
        match engine.border(first.unwrap_or(0).min(most)) {
            1 => 0,
            shared => shared,
        }
    }

    /// Masked keys for a model with these layers.
    pub fn holes(&self, kinds: &[LayerKind]) -> Result<LayerHoles, KnockoutError> {
        self.holes_of(&self.request.knockouts, kinds)
    }

    pub(super) fn holes_of(
        &self,
        knockouts: &[Knockout],
        kinds: &[LayerKind],
    ) -> Result<LayerHoles, KnockoutError> {
        let n = self.tokens.len();
        if !self.reaches_behind {
            return LayerHoles::exact(knockouts, &self.names, n, kinds);
        }
        let position = n.saturating_sub(1)..n;
        let positions = ["last", "answer", "each"].map(|name| Span::new(name, position.clone()));
        let names: Vec<Span> = self.names.iter().cloned().chain(positions).collect();
        // After the prompt there are only generated rows.
        let of_answer = |knockout: &Knockout| ["answer", "each"].contains(&knockout.rows.as_str());
        let whole = |knockout: &Knockout| Knockout {
            only: knockout.only && !of_answer(knockout),
            ..knockout.clone()
        };
        let knockouts: Vec<Knockout> = knockouts.iter().map(whole).collect();
        LayerHoles::new(&knockouts, &names, n, kinds)
    }
}
