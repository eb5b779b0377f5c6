//! Measurements of a prompt and its answer: masses, largest keys, norms and attributions of the rows that are asked for.
//!
//! A [`Measurement`] is the one observer of the engine. Prompts that share their beginning share its measurement
//! ([`Measurement::shared`], [`Measurement::after`]). Answers are the same, to the last bit on the CPU, whatever rows are asked for.
//!
//! Rows are spans of the prompt; its last position, `last`, which decides the first word; each token that is generated, `each`;
//! and their mean, `answer`. Tokens of a thought before the answer are in neither. The row of a generated token is the position that
//! predicted it, so that the first one's is `last`. Key spans are those of the prompt: what is paid to generated tokens is in none.

use candle_core::Tensor;

use super::request::{Observe, RequestError};
use super::{Engine, EngineError};
use crate::attention::{
    AnswerRows, Attribution, Attributions, DeltaSite, EachMasses, LargestKeys, LengthObserver, MassObserver,
    Masses, Norms, Observer, Site, SpanError, Step, Term, TopKeys,
};
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
    norms: Option<Box<LengthObserver>>,
    attribution: Option<Box<Attribution>>,
    softmax_only: bool,
    tokens: usize,
}

/// Single keys of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopRequest {
    /// So many with the largest weights.
    pub k: usize,
    /// Of the mean over heads, in the place of each head.
    pub mean: bool,
}

impl Measurement {
    /// What `observe` asks for of a prompt of `tokens` tokens whose answer has at most `most`. Without rows nothing is recorded.
    ///
    /// # Errors
    /// Rows, keys or targets that are not in the prompt, or no memory.
    pub fn new(observe: &Observe, tokens: usize, most: usize, engine: &Engine) -> Result<Self, RequestError> {
        let Observe { rows, keys, top_keys, norms, targets, softmax_only, .. } = observe;
        let observer = MassObserver::new(rows.spans.clone(), keys.clone(), tokens)?.answering(rows.answer);
        let decoder = engine.decoder();
        let norms = match norms {
            false => None,
            true => {
                let layers = decoder.spec().layers.len();
                let outputs = |layer: usize| decoder.head_outputs(layer);
                Some(Box::new(LengthObserver::new(rows.spans.clone(), keys.clone(), layers, outputs)?))
            }
        };
        let attribution = match targets.is_empty() {
            true => None,
            false => Some(Box::new(Attribution::new(targets.clone(), keys.clone(), tokens)?)),
        };
        let top_keys = top_keys.map(|TopRequest { k, mean }| {
            let positions = observer.rows().iter().flat_map(Span::range).collect();
            let mut top_keys = TopKeys::new(k, positions);
            if mean {
                top_keys = top_keys.of_mean();
            }
            match observer.answers().any() {
                true => top_keys.answering(tokens, most),
                false => top_keys,
            }
        });
        Ok(Measurement { observer, top_keys, norms, attribution, softmax_only: *softmax_only, tokens })
    }

    /// Of a prompt none of whose rows are wanted: the answer alone.
    pub fn nothing(tokens: usize) -> Self {
        Measurement {
            observer: MassObserver::nothing(tokens),
            top_keys: None,
            norms: None,
            attribution: None,
            softmax_only: false,
            tokens,
        }
    }

    /// The masses of the first `shared` tokens, for prompts that begin with them; none of `rows` may reach beyond.
    ///
    /// # Errors
    /// Those of [`MassObserver::new`].
    pub fn shared(rows: Vec<Span>, keys: Vec<Span>, tokens: usize, shared: usize) -> Result<Self, SpanError> {
        let observer = MassObserver::new(rows, keys, tokens)?.keeping(shared);
        Ok(Measurement { observer, ..Measurement::nothing(tokens) })
    }

    /// This measurement with what was measured of its first `shared` tokens in another one; `None` where the two differ there
    /// ([`MassObserver::fork`]), and where more than masses is asked for of these tokens.
    #[must_use]
    pub fn after(self, before: &Measurement, shared: usize) -> Option<Self> {
        let observer = before.observer.fork(&self.observer, shared)?;
        Some(Measurement { observer, ..self })
    }

    /// The masses after `generated` tokens, thought and answer together, not counting one that ended the answer.
    ///
    /// # Errors
    /// A tensor operation failed, or the number is not what was generated.
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

    /// The norms of the prompt's rows; `None` where they were not asked for.
    ///
    /// # Errors
    /// Layers with different numbers of heads.
    pub fn finish_norms(&self) -> Result<Option<Norms>, EngineError> {
        Ok(self.norms.as_ref().map(|norms| norms.finish()).transpose()?)
    }

    /// The attributions of the prompt's targets; `None` where there are none.
    ///
    /// # Errors
    /// Layers with different numbers of heads, or a tensor operation failed.
    pub fn finish_attributions(&self, engine: &Engine) -> Result<Option<Attributions>, EngineError> {
        let decoder = engine.decoder();
        let finish = |attribution: &Attribution| {
            attribution.finish(|layer| decoder.head_outputs(layer), |ids| decoder.head_rows(ids))
        };
        Ok(self.attribution.as_deref().map(finish).transpose()?)
    }

    /// Generated tokens whose rows have been read so far, those of a thought left out.
    pub fn generated_rows(&self) -> usize {
        self.observer.generated_rows()
    }

    /// The row of the `nth` generated token while others are still to come ([`MassObserver::generated_row`]).
    ///
    /// # Errors
    /// A tensor operation failed.
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

    fn others(&mut self) -> impl Iterator<Item = &mut dyn Observer> {
        let norms = self.norms.as_mut().map(|norms| &mut **norms as &mut dyn Observer);
        let attribution =
            self.attribution.as_mut().map(|attribution| &mut **attribution as &mut dyn Observer);
        norms.into_iter().chain(attribution)
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

    fn wants_values(&self, site: &Site) -> bool {
        self.norms.as_ref().is_some_and(|norms| norms.wants_values(site))
            || self.attribution.as_ref().is_some_and(|attribution| attribution.wants_values(site))
    }

    fn observe_values(&mut self, site: &Site, q: &Tensor, k: &Tensor, v: &Tensor) -> candle_core::Result<()> {
        self.others()
            .filter(|one| one.wants_values(site))
            .try_for_each(|one| one.observe_values(site, q, k, v))
    }

    fn observe_gate(&mut self, layer: usize, gate: &Tensor) -> candle_core::Result<()> {
        self.others().try_for_each(|one| one.observe_gate(layer, gate))
    }

    fn targets(&self, offset: usize, l: usize) -> Vec<usize> {
        self.attribution.as_ref().map(|attribution| attribution.targets(offset, l)).unwrap_or_default()
    }

    fn observe_term(&mut self, offset: usize, term: Term<'_>) -> candle_core::Result<()> {
        match &mut self.attribution {
            Some(attribution) => attribution.observe_term(offset, term),
            None => Ok(()),
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
        !self.softmax_only && self.observer.wants_delta(site)
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
