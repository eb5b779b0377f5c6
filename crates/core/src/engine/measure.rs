//! The one way to measure: tokens, spans and rows in, an answer and attention masses out.
//!
//! Called by `trace`, by the runner's local subject and by the local chat model, which wants no rows. [`Measurement::read`]
//! reads a prompt, [`Measurement::answer`] continues it, [`Measurement::finish`] gives the masses. Prompts that share their
//! beginning share its measurement ([`Measurement::shared`], [`Measurement::after`]), and their answers may be generated together
//! ([`Engine::decode_batch`] takes the measurements as observers). Answers are the same, to the last bit on the CPU,
//! whatever rows are asked for.
//!
//! Rows are spans of the prompt; its last position, `last`, which decides the first word; each token that is generated, `each`;
//! and their mean, `answer`. Tokens of a thought before the answer are in neither. The row of a generated token is the position that predicted it, so that the first one's is
//! `last`. Key spans are those of the prompt: what is paid to generated tokens is in none.

use candle_core::Tensor;

use super::sampling::Sampling;
use super::{Engine, EngineError, Generated, How, Progress};
use crate::attention::{
    AnswerRows, DeltaSite, EachMasses, LargestKeys, MassObserver, Masses, Observer, Site, SpanError, Step,
    TopKeys,
};
use crate::model::Cache;
use crate::span::Span;

/// Names of rows that are no spans of the prompt: a span cannot have them.
pub const RESERVED: [&str; 3] = ["last", "answer", "each"];

/// Whose attention is measured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    /// Spans of the prompt, and its last position as a span `last`, in the order of the masses' axis.
    pub spans: Vec<Span>,
    /// The generated tokens.
    pub answer: AnswerRows,
}

impl Rows {
    /// The rows of these names, in order: a span's label each, or `last`, `answer` or `each`. `each` is not on the axis of rows:
    /// its masses have one of their own.
    ///
    /// # Errors
    /// [`SpanError::Reserved`] where a span has such a name; [`SpanError::UnknownRow`] for a name that is none of these;
    /// [`SpanError::RowTwice`] where `answer` or `each` comes twice.
    pub fn named<S: AsRef<str>>(names: &[S], keys: &[Span], tokens: usize) -> Result<Self, SpanError> {
        if let Some(span) = keys.iter().find(|span| RESERVED.contains(&span.label.as_str())) {
            return Err(SpanError::Reserved { label: span.label.clone() });
        }
        let mut rows = Rows::default();
        for name in names {
            let twice = || SpanError::RowTwice { label: name.as_ref().to_owned() };
            match name.as_ref() {
                "last" => rows.spans.push(last(tokens)),
                "answer" if rows.answer.mean.is_some() => return Err(twice()),
                "answer" => rows.answer.mean = Some(rows.spans.len()),
                "each" if rows.answer.each => return Err(twice()),
                "each" => rows.answer.each = true,
                name => match keys.iter().find(|span| span.label == name) {
                    Some(span) => rows.spans.push(span.clone()),
                    None => return Err(SpanError::UnknownRow { label: name.to_owned() }),
                },
            }
        }
        Ok(rows)
    }
}

/// The row of a prompt's last position.
pub fn last(tokens: usize) -> Span {
    Span::new("last", tokens.saturating_sub(1)..tokens)
}

/// A prompt that is being measured.
#[derive(Debug, Clone)]
pub struct Measurement {
    observer: MassObserver,
    /// The largest weights of the same rows, where they are asked for.
    top_keys: Option<TopKeys>,
    tokens: usize,
}

/// Which keys of each row are wanted one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopRequest {
    /// So many with the largest weights.
    pub k: usize,
    /// Of the mean over heads, in the place of each head.
    pub mean: bool,
    /// Most tokens that are generated.
    pub most: usize,
}

impl Measurement {
    /// Of a prompt of `tokens` tokens: what `rows` pay to the spans `keys`. Without rows nothing is recorded.
    ///
    /// # Errors
    /// Those of [`MassObserver::new`].
    pub fn new(rows: Rows, keys: Vec<Span>, tokens: usize) -> Result<Self, SpanError> {
        let observer = MassObserver::new(rows.spans, keys, tokens)?.answering(rows.answer);
        Ok(Measurement { observer, top_keys: None, tokens })
    }

    /// Also keeps which keys the rows pay most to: of each position of the prompt's row spans, one span after the other, then of each
    /// generated token, where they are rows.
    #[must_use]
    pub fn with_top_keys(self, wanted: TopRequest) -> Self {
        let rows = self.observer.rows().iter().flat_map(Span::range).collect();
        let mut top_keys = TopKeys::new(wanted.k, rows);
        if wanted.mean {
            top_keys = top_keys.of_mean();
        }
        if self.observer.answers().any() {
            top_keys = top_keys.answering(self.tokens, wanted.most);
        }
        Measurement { top_keys: Some(top_keys), ..self }
    }

    /// Of a prompt none of whose rows are wanted: the answer alone.
    pub fn nothing(tokens: usize) -> Self {
        Measurement { observer: MassObserver::nothing(tokens), top_keys: None, tokens }
    }

    /// The measurement of the first `shared` tokens, for prompts that begin with them; none of `rows` may reach beyond.
    ///
    /// # Errors
    /// Those of [`MassObserver::new`].
    pub fn shared(rows: Vec<Span>, keys: Vec<Span>, tokens: usize, shared: usize) -> Result<Self, SpanError> {
        let observer = MassObserver::new(rows, keys, tokens)?.keeping(shared);
        Ok(Measurement { observer, top_keys: None, tokens })
    }

    /// This measurement with what was measured of its first `shared` tokens in another one; `None` where the two differ there
    /// ([`MassObserver::fork`]).
    #[must_use]
    pub fn after(self, before: &Measurement, shared: usize) -> Option<Self> {
        let observer = before.observer.fork(&self.observer, shared)?;
        Some(Measurement { observer, ..self })
    }

    /// Prefills tokens after those in the cache, and returns the logits of the last `keep`, f32 (keep, vocab): see
    /// [`Engine::prefill`].
    ///
    /// # Errors
    /// Those of the engine.
    pub fn prefill(
        &mut self,
        engine: &Engine,
        cache: &mut Cache,
        tokens: &[u32],
        keep: usize,
        progress: Progress<'_>,
    ) -> Result<Tensor, EngineError> {
        engine.prefill(cache, tokens, keep, self, progress)
    }

    /// Decodes after the prompt, whose last token gave `logits` f32 (vocab): see [`Engine::decode`].
    ///
    /// # Errors
    /// Those of the engine.
    pub fn decode(
        &mut self,
        engine: &Engine,
        cache: &mut Cache,
        logits: &Tensor,
        (sampling, stop): (&Sampling, &[u32]),
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Generated, EngineError> {
        engine.decode_observed(cache, logits, (sampling, stop, None, None), self, on_token)
    }

    /// [`Measurement::decode`] with a thought before the answer, where there is a thinker, and up to a string, where there is a watch.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn decode_thinking(
        &mut self,
        engine: &Engine,
        cache: &mut Cache,
        logits: &Tensor,
        how: How<'_>,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Generated, EngineError> {
        engine.decode_observed(cache, logits, how, self, on_token)
    }

    /// What was measured, after `generated` tokens, thought and answer together, not counting one that ended the answer.
    ///
    /// # Errors
    /// Those of Candle, and of a number that is not what was generated.
    pub fn finish(&self, generated: usize) -> Result<Masses, EngineError> {
        Ok(self.observer.finish_after(generated)?)
    }

    /// [`Measurement::finish`], with a row of one generated token ([`MassObserver::finish_with`]).
    ///
    /// # Errors
    /// As [`Measurement::finish`].
    pub fn finish_with(&self, generated: usize, step: Option<Step>) -> Result<Masses, EngineError> {
        Ok(self.observer.finish_with(generated, step)?)
    }

    /// The keys that the rows pay most to, after `generated` tokens; `None` where they were not asked for.
    ///
    /// # Errors
    /// As [`Measurement::finish`].
    pub fn finish_top_keys(&self, generated: usize) -> Result<Option<LargestKeys>, EngineError> {
        Ok(self.top_keys.as_ref().map(|top_keys| top_keys.finish_after(generated)).transpose()?)
    }

    /// Generated tokens whose rows have been read so far, those of a thought left out.
    pub fn generated_rows(&self) -> usize {
        self.observer.generated_rows()
    }

    /// The row of the `nth` generated token while others are still to come ([`MassObserver::generated_row`]).
    ///
    /// # Errors
    /// Those of Candle.
    pub fn generated_row(&self, nth: usize) -> Result<Option<EachMasses>, EngineError> {
        Ok(self.observer.generated_row(nth)?)
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        self.observer.keys()
    }

    /// Tokens of the prompt.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Observer for Measurement {
    fn skip_generated(&mut self, thought: usize) {
        self.observer.skip_generated(thought);
        if let Some(top_keys) = &mut self.top_keys {
            top_keys.skip_generated(thought);
        }
    }

    fn wants(&self, site: &Site) -> bool {
        self.observer.wants(site) || self.top_keys.as_ref().is_some_and(|top_keys| top_keys.wants(site))
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> candle_core::Result<()> {
        if self.observer.wants(site) {
            self.observer.observe(site, q, k)?;
        }
        match &mut self.top_keys {
            Some(top_keys) if top_keys.wants(site) => top_keys.observe(site, q, k),
            _ => Ok(()),
        }
    }

    fn segments(&self, site: &Site) -> Option<&[usize]> {
        let by_key = self.top_keys.as_ref().and_then(|top_keys| top_keys.segments(site));
        by_key.or_else(|| self.observer.segments(site))
    }

    fn take(&mut self, site: &Site, sums: Tensor) -> candle_core::Result<()> {
        match &mut self.top_keys {
            Some(top_keys) if top_keys.segments(site).is_some() => {
                self.observer.take(site, self.observer.joined(&sums)?)?;
                top_keys.take(site, sums)
            }
            _ => self.observer.take(site, sums),
        }
    }

    fn wants_delta(&self, site: &DeltaSite) -> bool {
        self.observer.wants_delta(site)
    }

    fn observe_delta(
        &mut self,
        site: &DeltaSite,
        q: &Tensor,
        k: &Tensor,
        g: &Tensor,
        beta: &Tensor,
    ) -> candle_core::Result<()> {
        self.observer.observe_delta(site, q, k, g, beta)
    }
}
