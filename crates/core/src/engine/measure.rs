//! Measurements of a prompt and its answer: masses, largest keys, norms and attributions of the rows that are asked for.
//!
//! A [`Measurement`] is the one observer of the engine. Prompts that share their beginning share its measurement
//! ([`Measurement::shared`], [`Measurement::after`]). Answers are the same, to the last bit on the CPU, whatever rows are asked for.
//!
//! Rows are spans of the prompt; its last position, `last`, which decides the first word; each token that is generated, `each`;
//! and their mean, `answer`. Tokens of a thought before the answer are in neither. The row of a generated token is the position that
//! predicted it, so that the first one's is `last`. Key spans are those of the prompt: what is paid to generated tokens is in none.

use super::request_error::RequestError;
use super::{Engine, EngineError};
use crate::attention::{
    AnswerRows, Attribution, Attributions, EachMasses, Event, LargestKeys, LengthObserver, MassObserver,
    Masses, Norms, Observer, Point, SpanError, Step, Target, TopKeys, Wanted,
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

/// The measurements of a branch. Positions count from the start of the prompt: prefix and tokens.
#[derive(Debug, Clone, Default)]
pub struct Observe {
    /// The rows whose masses are measured.
    pub rows: Rows,
    /// The key spans over which their attention is summed.
    pub keys: Vec<Span>,
    /// Single keys of the rows with the largest weights.
    pub top_keys: Option<TopRequest>,
    /// Also [`Norms`] of the rows.
    pub norms: bool,
    /// Positions whose logits are attributed to heads and key spans.
    pub targets: Vec<Target>,
    /// Leaves out linear-attention layers, whose keys are in no cache: then a prompt can go on behind one that was read.
    pub softmax_only: bool,
    /// Positions at the end of the prompt whose logits are returned; at least one is.
    pub logits: usize,
    /// The likelihood of each token of the prompt but the first, with so many of the likeliest ones.
    pub likeliest: Option<usize>,
}

impl Observe {
    /// True if any row is measured.
    pub fn any(&self) -> bool {
        !self.rows.spans.is_empty() || self.rows.answer.any() || self.norms || !self.targets.is_empty()
    }

    /// The first position that must be read for what is measured.
    pub(super) fn first_row(&self) -> Option<usize> {
        let rows = self.rows.spans.iter().map(|row| row.start);
        rows.chain(self.targets.iter().map(|target| target.position)).min()
    }
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
        Ok(Measurement { observer, top_keys, norms, attribution, softmax_only: *softmax_only })
    }

    /// Of a prompt none of whose rows are wanted: the answer alone.
    pub fn nothing(tokens: usize) -> Self {
        Measurement {
            observer: MassObserver::nothing(tokens),
            top_keys: None,
            norms: None,
            attribution: None,
            softmax_only: false,
        }
    }

    /// The masses of the first `shared` tokens, for prompts that begin with them; none of `rows` may reach beyond.
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
    pub fn finish_with(&self, generated: usize, step: Option<Step>) -> Result<Masses, EngineError> {
        Ok(self.observer.finish_with(generated, step)?)
    }

    /// The keys that the rows pay most to, after `generated` tokens; `None` where they were not asked for.
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
    pub fn generated_row(&self, nth: usize) -> Result<Option<EachMasses>, EngineError> {
        Ok(self.observer.generated_row(nth)?)
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        self.observer.keys()
    }

    fn observers(&self) -> impl Iterator<Item = &dyn Observer> {
        let top_keys = self.top_keys.as_ref().map(|top_keys| top_keys as &dyn Observer);
        let norms = self.norms.as_deref().map(|norms| norms as &dyn Observer);
        let attribution = self.attribution.as_deref().map(|attribution| attribution as &dyn Observer);
        top_keys.into_iter().chain([&self.observer as &dyn Observer]).chain(norms).chain(attribution)
    }

    fn observers_mut(&mut self) -> impl Iterator<Item = &mut dyn Observer> {
        let top_keys = self.top_keys.as_mut().map(|top_keys| top_keys as &mut dyn Observer);
        let norms = self.norms.as_deref_mut().map(|norms| norms as &mut dyn Observer);
        let attribution = self.attribution.as_deref_mut().map(|attribution| attribution as &mut dyn Observer);
        top_keys.into_iter().chain([&mut self.observer as &mut dyn Observer]).chain(norms).chain(attribution)
    }
}

impl Observer for Measurement {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        match point {
            Point::LinearAttention(_) if self.softmax_only => Wanted::default(),
            point => self.observers().fold(Wanted::default(), |all, one| all.and(one.wants(point))),
        }
    }

    fn observe(&mut self, event: Event<'_>) -> candle_core::Result<()> {
        match (event, &mut self.top_keys) {
            // The largest keys' segments are one key each; the masses' are joined from them.
            (Event::Weights { site, sums }, Some(top_keys)) => {
                if top_keys.wants(Point::Attention(site)).segments.is_none() {
                    return self.observer.observe(event);
                }
                let joined = self.observer.joined(sums)?;
                self.observer.observe(Event::Weights { site, sums: &joined })?;
                top_keys.observe(event)
            }
            (Event::LinearAttention { .. }, _) if self.softmax_only => Ok(()),
            (event, _) => self.observers_mut().try_for_each(|one| one.observe(event)),
        }
    }
}
