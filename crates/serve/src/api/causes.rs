//! Effects of prompt spans on the answer: each is hidden in turn, and the answer scored again.
//!
//! Same definition as `palimpsest causes`: keys are hidden from a position on in all softmax layers; the effect is the drop of the answer's
//! mean log-probability per token. Random stretches of the prompt are hidden as controls ([`palimpsest_data::statistics::control`]).

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::attention_request::CausesOptions;
use super::engine::ServedEngine;
use super::error::{ApiError, ensure};
use super::prompt::TokenPrompt;
use palimpsest_core::ablate::{Position, collect, forcing, hide, lost};
use palimpsest_core::attention::{LayerHoles, LayerKind};
use palimpsest_core::engine::thread::Scope;
use palimpsest_core::engine::{Event, Generated, Request, Reuse};
use palimpsest_core::span::Span;
use palimpsest_data::statistics::control::{are_apart, control_of, stretches_of_prompt};

/// Default number of controls.
const CONTROLS: usize = 4;

const SEED: u64 = 0;

#[derive(Debug, Clone)]
pub struct Causes {
    pub spans: Vec<Span>,
    pub from: usize,
    pub controls: Vec<Range<usize>>,
    /// Keys hidden in every reading, as during generation.
    blocked: LayerHoles,
    softmax_only: bool,
    /// Predictions of the answer's tokens after the thought: unchanged, per hidden span, per hidden control.
    readings: Vec<Vec<Position>>,
}

#[derive(Debug, Clone)]
pub struct Effects {
    /// Unchanged mean log-probability per token, in nats.
    pub log_p: f64,
    /// Per span: drop of the mean log-probability per token, and whether some token is the argmax in only one of the two readings.
    pub spans: Vec<(f64, bool)>,
    /// Per control: the drop.
    pub controls: Vec<f64>,
}

impl Causes {
    /// `blocked`: knock-outs used during generation. `field`: path of the options, for errors.
    pub fn new(
        options: &CausesOptions,
        prompt: &TokenPrompt,
        blocked: LayerHoles,
        field: &str,
    ) -> Result<Self, ApiError> {
        let field = format!("palimpsest.{field}.spans");
        let field = field.as_str();
        let find = |label: &String| {
            let found = prompt.spans().find(|span| span.label == *label && !span.is_empty());
            let reason = || format!("names {label:?}, and no span of that name holds a token");
            found.cloned().ok_or_else(|| ApiError::at(field, reason()))
        };
        let from = options.from.as_ref().map(find).transpose()?.map(|span| span.start);
        let spans: Vec<Span> = match options.spans.as_slice() {
            labels @ [_, ..] => labels.iter().map(find).collect::<Result<_, _>>()?,
            [] => {
                let is_own = |label: &str| {
                    ["template[", "messages["].iter().any(|own| label.starts_with(own)) || label == "prompt"
                };
                let before = |span: &Span| from.is_none_or(|from| span.end <= from);
                let named = prompt.spans().filter(|span| !is_own(&span.label) && !span.is_empty());
                named.filter(|span| before(span)).cloned().collect()
            }
        };
        let Some(last) = spans.iter().map(|span| span.end).max() else {
            let reason = "finds no documents and no named spans; send `documents`, name parts with `span`, or name spans here";
            return Err(ApiError::at(field, reason));
        };
        let from = from.unwrap_or(last);
        if let Some(Span { label, end, .. }) = spans.iter().find(|span| span.end > from) {
            let reason = format!(
                "names {label:?}, which ends at token {end}, after the position {from} from which on it would be hidden"
            );
            return Err(ApiError::at(field, reason));
        }
        let reason = "leaves no token of the prompt behind the spans; give `from`, a span behind them";
        ensure(from < prompt.tokens.len(), field, reason)?;
        let ranges: Vec<Range<usize>> = spans.iter().map(Span::range).collect();
        let counted = (options.controls.unwrap_or(CONTROLS), SEED);
        let controls = stretches_of_prompt(counted, &ranges, from, &[]);
        Ok(Causes { spans, from, controls, blocked, softmax_only: false, readings: Vec::new() })
    }

    pub fn readings(&self) -> usize {
        1 + self.spans.len() + self.controls.len()
    }

    /// Scores the answer to the prompt of `tokens` in every reading.
    pub async fn settle(
        &mut self,
        (engine, scope): (&ServedEngine, Scope),
        kinds: &[LayerKind],
        tokens: &[u32],
        generated: &Generated,
    ) -> Result<(), ApiError> {
        self.readings.clear();
        self.softmax_only = kinds.contains(&LayerKind::Linear);
        let answer: Arc<[u32]> = generated.tokens.as_slice().into();
        if answer.len() <= generated.thought {
            return Ok(());
        }
        let ranges = self.spans.iter().map(Span::range).chain(self.controls.iter().cloned());
        let hidden =
            ranges.map(|range| self.blocked.joined(&hide(self.from..usize::MAX, &[range], None, kinds)));
        let holes = std::iter::once(self.blocked.clone()).chain(hidden);
        let branches = holes.map(|holes| forcing(&tokens[self.from..], &answer, &holes)).collect();
        let request = Request { prefix: tokens[..self.from].into(), reuse: Reuse::Longest, branches };
        let reading = || {
            let answer = Arc::clone(&answer);
            let mut reading: Vec<Position> = Vec::with_capacity(answer.len());
            move |event: Event| match event {
                Event::Logits(at, logits) => {
                    let of = |at: usize, logits: &[f32]| Position::of(answer[at], logits);
                    collect(&logits, at, of, &mut reading).err().map(|error| Err(ApiError::internal(error)))
                }
                Event::Done(_) => Some(Ok(std::mem::take(&mut reading))),
                _ => None,
            }
        };
        self.readings = engine.results(scope, request, reading).await?;
        for reading in &mut self.readings {
            reading.drain(..generated.thought.min(reading.len()));
        }
        Ok(())
    }

    /// Answer tokens after the thought; 0 before reading.
    pub fn tokens(&self) -> usize {
        self.readings.first().map_or(0, Vec::len)
    }

    /// Effects on answer tokens counted after the thought; `None` for an empty range.
    pub fn effects(&self, tokens: Range<usize>) -> Option<Effects> {
        let (plain, others) = self.readings.split_first()?;
        let plain = plain.get(tokens.clone()).filter(|plain| !plain.is_empty())?;
        let effect = |reading: &Vec<Position>| lost(plain, reading.get(tokens.clone()).unwrap_or_default());
        let (spans, controls) = others.split_at(self.spans.len().min(others.len()));
        Some(Effects {
            log_p: plain.iter().map(|position| position.log_p).sum::<f64>() / plain.len() as f64,
            spans: spans.iter().map(effect).collect(),
            controls: controls.iter().map(|reading| effect(reading).0).collect(),
        })
    }

    /// Values of the controls disjoint from `span`.
    pub fn apart(&self, span: &Span, of_controls: &[f64]) -> Vec<f64> {
        let pairs = self.controls.iter().zip(of_controls);
        pairs.filter(|(stretch, _)| are_apart(stretch, &span.range())).map(|(_, number)| *number).collect()
    }

    pub fn control(&self, span: &Span, of_controls: &[f64]) -> Option<f64> {
        control_of(&span.range(), self.controls.iter().zip(of_controls.iter().copied()))
    }

    /// Effects on the whole answer; null if it is empty after the thought.
    pub fn json(&self) -> Value {
        let Some(effects) = self.effects(0..self.tokens()) else { return Value::Null };
        let span = |(span, (log_p_drop, changed)): (&Span, &(f64, bool))| {
            let control = self.control(span, &effects.controls);
            json!({"label": span.label, "log_p_drop": log_p_drop, "changed": changed, "control": control})
        };
        let control = |(stretch, drop): (&Range<usize>, &f64)| json!({"start": stretch.start, "end": stretch.end, "log_p_drop": drop});
        let mut json = json!({
            "from": self.from,
            "answer_tokens": self.tokens(),
            "log_p": effects.log_p,
            "spans": self.spans.iter().zip(&effects.spans).map(span).collect::<Vec<_>>(),
            "controls": self.controls.iter().zip(&effects.controls).map(control).collect::<Vec<_>>()
        });
        if self.softmax_only {
            json["softmax_only"] = true.into();
        }
        json
    }
}
