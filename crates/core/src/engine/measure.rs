//! Measurements of a prompt and its answer: attention masses, largest keys, norms and attributions of selected rows.
//!
//! [`Measurement`] is the engine's observer. Prompts with a common prefix share its measurement ([`Measurement::shared`],
//! [`Measurement::after`]). On the CPU answers are bit-equal with and without measurement.
//!
//! Rows are prompt spans; `last`, the last prompt position; `each` generated token; and `answer`, their mean. Thoughts count in neither.
//! The row of a generated token is the position that predicted it, so the first is `last`. Key spans lie in the prompt only.

use super::request_error::RequestError;
use super::{Engine, EngineError};
use crate::attention::{
    AnswerRows, Attribution, Attributions, EachMasses, Event, LargestKeys, LengthObserver, MassObserver,
    Masses, Norms, Observer, Point, RouteObserver, RowWeights, Selected, SelectedObserver, SpanError, Step,
    Target, TopKeys, Wanted,
};
use crate::model::{LayerSpec, OutputGate};
use crate::span::Span;

/// Row names that spans must not have.
pub const RESERVED: [&str; 3] = ["last", "answer", "each"];

/// Rows whose attention is measured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    /// Prompt spans, and the last position as span `last`, in axis order.
    pub spans: Vec<Span>,
    /// Rows of generated tokens.
    pub answer: AnswerRows,
}

impl Rows {
    /// Parses row names: span labels, `last`, `answer` or `each`, which has its own output instead of an entry on the row axis. Rejects
    /// spans with reserved labels, unknown names, and repeated `answer` or `each`.
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

/// Row of the last prompt position.
pub fn last(tokens: usize) -> Span {
    Span::new("last", tokens.saturating_sub(1)..tokens)
}

/// Measurements of a branch. Positions count from the start of the prompt.
#[derive(Debug, Clone, Default)]
pub struct Observe {
    /// Rows to measure.
    pub rows: Rows,
    /// Key spans to sum attention over.
    pub keys: Vec<Span>,
    /// Also the mass on the prompt's first token by itself ([`Masses::first_token`]).
    pub first_token: bool,
    /// Also the rows' largest single keys.
    pub top_keys: Option<TopRequest>,
    /// Also what the layers' choices of keys left to the rows ([`Selected`]).
    pub selected: bool,
    /// Also the rows' [`Norms`].
    pub norms: bool,
    /// Positions whose logits are attributed to heads and key spans.
    pub targets: Vec<Target>,
    /// Rows from which information-flow routes are followed to the keys ([`RouteObserver`]).
    pub routes: Option<RowWeights>,
    /// Skips linear-attention layers, whose keys are not cached, so a cached prefix can be reused.
    pub softmax_only: bool,
    /// Trailing prompt positions whose logits are returned; at least one.
    pub logits: usize,
    /// Likelihood of each prompt token but the first, with this many top tokens.
    pub likeliest: Option<usize>,
}

impl Observe {
    /// True if anything is measured.
    pub fn any(&self) -> bool {
        !self.rows.spans.is_empty() || self.rows.answer.any() || self.norms || self.attributes()
    }

    /// True if contributions to the residual stream are measured.
    pub(super) fn attributes(&self) -> bool {
        !self.targets.is_empty() || self.routes.is_some()
    }

    /// First position that must be read.
    pub(super) fn first_row(&self) -> Option<usize> {
        let rows = self.rows.spans.iter().map(|row| row.start);
        let targets = self.targets.iter().map(|target| target.position);
        rows.chain(targets).chain(self.routes.iter().map(|rows| rows.first)).min()
    }
}

/// An ongoing measurement of a prompt.
#[derive(Debug, Clone, Default)]
pub struct Measurement {
    observer: MassObserver,
    top_keys: Option<TopKeys>,
    selected: Option<Box<SelectedObserver>>,
    norms: Option<Box<LengthObserver>>,
    attribution: Option<Box<Attribution>>,
    routes: Option<Box<RouteObserver>>,
    softmax_only: bool,
}

/// Request for the largest single keys of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopRequest {
    /// Number of keys.
    pub k: usize,
    /// Rank by the mean over heads instead of per head.
    pub mean: bool,
}

impl Measurement {
    /// Measures `observe` on a prompt of `tokens` tokens with an answer of at most `most`. Fails if rows, keys or targets are outside it.
    pub fn new(observe: &Observe, tokens: usize, most: usize, engine: &Engine) -> Result<Self, RequestError> {
        let Observe { rows, keys, top_keys, selected, norms, targets, routes, softmax_only, .. } = observe;
        let mut observer =
            MassObserver::new(rows.spans.clone(), keys.clone(), tokens)?.answering(rows.answer);
        if observe.first_token {
            observer = observer.with_first_token();
        }
        let selected = selected
            .then(|| Box::new(SelectedObserver::new(rows.spans.clone(), keys.clone(), tokens, rows.answer)));
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
        let mut attentions = decoder.spec().layers.iter().filter_map(LayerSpec::attention);
        let routes = match routes {
            None => None,
            Some(rows) if rows.rows().end > tokens || rows.rows().is_empty() => {
                let rows = rows.rows();
                let why = format!(
                    "routes from rows {rows:?} of a prompt of {tokens} tokens; name some that it has"
                );
                return Err(RequestError::Refused(why));
            }
            Some(_) if attentions.any(|a| a.gate != OutputGate::None) => {
                let why = "routes are not followed through gated attention; measure norms instead";
                return Err(RequestError::Refused(why.to_owned()));
            }
            Some(rows) => Some(Box::new(RouteObserver::new(rows.clone(), tokens))),
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
        let softmax_only = *softmax_only;
        Ok(Measurement { observer, top_keys, selected, norms, attribution, routes, softmax_only })
    }

    /// Records the answer only.
    pub fn nothing(tokens: usize) -> Self {
        Measurement { observer: MassObserver::nothing(tokens), ..Measurement::default() }
    }

    /// Masses of the first `shared` tokens, for prompts that start with them; no row may extend beyond.
    pub fn shared(rows: Vec<Span>, keys: Vec<Span>, tokens: usize, shared: usize) -> Result<Self, SpanError> {
        let observer = MassObserver::new(rows, keys, tokens)?.keeping(shared);
        Ok(Measurement { observer, ..Measurement::nothing(tokens) })
    }

    /// [`Measurement::shared`] with what the layers' choices of keys left, too.
    #[must_use]
    pub fn selecting(self, tokens: usize, shared: usize) -> Self {
        let (rows, keys) = (self.observer.rows().to_vec(), self.observer.keys().to_vec());
        let selected = SelectedObserver::new(rows, keys, tokens, AnswerRows::default()).keeping(shared);
        Measurement { selected: Some(Box::new(selected)), ..self }
    }

    /// Continues `before` after its first `shared` tokens; `None` if they differ there ([`MassObserver::fork`]) or measure more than
    /// masses.
    #[must_use]
    pub fn after(self, before: &Measurement, shared: usize) -> Option<Self> {
        let observer = before.observer.fork(&self.observer, shared)?;
        let selected = match (&self.selected, &before.selected) {
            (Some(own), Some(before)) => Some(Box::new(before.fork(own, shared)?)),
            (Some(_), None) => return None,
            (None, _) => None,
        };
        Some(Measurement { observer, selected, ..self })
    }

    /// Masses after `generated` tokens: thought and answer, without the stop token. Fails if the number is not what was generated.
    pub fn finish(&self, generated: usize) -> Result<Masses, EngineError> {
        Ok(self.observer.finish_after(generated)?)
    }

    /// [`Measurement::finish`] with one generated token's row ([`MassObserver::finish_with`]).
    pub fn finish_with(&self, generated: usize, step: Option<Step>) -> Result<Masses, EngineError> {
        Ok(self.observer.finish_with(generated, step)?)
    }

    /// Largest keys after `generated` tokens; `None` if not requested.
    pub fn finish_top_keys(&self, generated: usize) -> Result<Option<LargestKeys>, EngineError> {
        Ok(self.top_keys.as_ref().map(|top_keys| top_keys.finish_after(generated)).transpose()?)
    }

    /// Shares that the layers' choices of keys left to the rows of `masses`; `None` if not requested.
    pub fn finish_selected(&self, masses: &Masses) -> Result<Option<Selected>, EngineError> {
        let finish = |selected: &SelectedObserver| selected.finish(&masses.layers, &masses.rows);
        Ok(self.selected.as_deref().map(finish).transpose()?)
    }

    /// Norms of the prompt rows; `None` if not requested.
    pub(super) fn finish_norms(&self) -> Result<Option<Norms>, EngineError> {
        Ok(self.norms.as_ref().map(|norms| norms.finish()).transpose()?)
    }

    /// Attributions of the targets; `None` without targets.
    pub(super) fn finish_attributions(&self, engine: &Engine) -> Result<Option<Attributions>, EngineError> {
        let decoder = engine.decoder();
        let finish = |attribution: &Attribution| {
            let rows = |ids: &[u32]| decoder.head_rows(ids);
            attribution.finish(|layer| decoder.head_outputs(layer), rows, decoder.spec().logit_cap)
        };
        Ok(self.attribution.as_deref().map(finish).transpose()?)
    }

    /// Each position's share of the routes, summed over layers; `None` if not requested.
    pub(super) fn finish_routes(&self) -> Option<Vec<f64>> {
        self.routes.as_ref().map(|routes| routes.finish())
    }

    /// Rows of generated tokens so far, without thoughts.
    pub fn generated_rows(&self) -> usize {
        self.observer.generated_rows()
    }

    /// Row of the `nth` generated token, before the answer is complete ([`MassObserver::generated_row`]).
    pub fn generated_row(&self, nth: usize) -> Result<Option<EachMasses>, EngineError> {
        Ok(self.observer.generated_row(nth)?)
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        self.observer.keys()
    }

    fn observers(&self) -> impl Iterator<Item = &dyn Observer> {
        let top_keys = self.top_keys.as_ref().map(|top_keys| top_keys as &dyn Observer);
        let selected = self.selected.as_deref().map(|selected| selected as &dyn Observer);
        let norms = self.norms.as_deref().map(|norms| norms as &dyn Observer);
        let attribution = self.attribution.as_deref().map(|attribution| attribution as &dyn Observer);
        let routes = self.routes.as_deref().map(|routes| routes as &dyn Observer);
        let masses = top_keys.into_iter().chain([&self.observer as &dyn Observer]);
        masses.chain(selected).chain(norms).chain(attribution).chain(routes)
    }

    fn observers_mut(&mut self) -> impl Iterator<Item = &mut dyn Observer> {
        let top_keys = self.top_keys.as_mut().map(|top_keys| top_keys as &mut dyn Observer);
        let selected = self.selected.as_deref_mut().map(|selected| selected as &mut dyn Observer);
        let norms = self.norms.as_deref_mut().map(|norms| norms as &mut dyn Observer);
        let attribution = self.attribution.as_deref_mut().map(|attribution| attribution as &mut dyn Observer);
        let routes = self.routes.as_deref_mut().map(|routes| routes as &mut dyn Observer);
        let masses = top_keys.into_iter().chain([&mut self.observer as &mut dyn Observer]);
        masses.chain(selected).chain(norms).chain(attribution).chain(routes)
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
            // Segments of single keys also serve the masses, which sum them.
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
