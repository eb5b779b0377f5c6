//! A server of palimpsest as a [`Subject`]: answers with attention, recorded as a run with the model itself records it.
//!
//! The server says its chat template, so that the text of a prompt is made here, as for a local model, and goes out whole, to be
//! continued; its spans go with it as ranges of characters. What comes back are the spans as tokens, the tokens, and the masses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ndarray::{Array3, Array4, ArrayD, Axis, IxDyn};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};

use super::condition::Question;
use super::context_budget::{BudgetedCase, Dropped, part_of};
use super::cost::Cost;
use super::error::RunError;
use super::local::{row_spans, stream_seed};
use super::rows::NoAnswer;
use super::runner::{ProbeOutcome, Sink, Subject};
use super::subject::count_failure;
use crate::benchmarks::QUERY;
use crate::chat::endpoint::{Endpoint, NotContinued, OwnServer};
use crate::chat::parallel::in_order;
use crate::chat::{Sampling, StopReason};
use crate::data::Case;
use crate::progress::Status;
use palimpsest_core::attention::{AttentionStore, Uniform};
use palimpsest_core::engine;
use palimpsest_core::span::Span;
use palimpsest_core::text::{CharSpan, Prompt, TokenizedPrompt};

/// Makes the prompts of a case's probes, or says why there are none.
pub type Prompts<'a> = dyn FnMut(&Case) -> Result<Vec<BudgetedCase<Prompt>>, NoAnswer> + 'a;

/// A model behind a server of palimpsest, whose attention is recorded.
pub struct ServedSubject<'a> {
    asker: Asker<'a>,
    prompts: Box<Prompts<'a>>,
    /// Calls at once.
    parallel: usize,
    failed_in_a_row: usize,
}

/// Puts one probe to the server.
struct Asker<'a> {
    endpoint: &'a Endpoint,
    server: OwnServer,
    sampling: Sampling,
    /// Strings that end an answer.
    stops: Vec<String>,
    /// Roles whose spans are rows, beside the query.
    row_roles: Vec<&'static str>,
}

/// Why a probe has no answer.
enum Failed {
    /// The server did not answer: it may be gone.
    Call(NoAnswer),
    /// It refuses this request, or its answer cannot be used.
    Reply(NoAnswer),
}

/// The choice of a completion.
#[derive(Deserialize)]
struct Choice {
    text: String,
    finish_reason: Option<String>,
    palimpsest: Told,
}

/// Its attention.
#[derive(Deserialize)]
struct Told {
    spans: Vec<Span>,
    rows: Vec<String>,
    layers: Vec<usize>,
    data: String,
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
}

/// What a span is called in a request.
fn name(span: usize) -> String {
    format!("span {span}")
}

impl<'a> ServedSubject<'a> {
    /// `endpoint` answers what `prompts` makes of a case, by the chat template that `server` says.
    pub fn new(
        endpoint: &'a Endpoint,
        server: OwnServer,
        sampling: Sampling,
        row_roles: Vec<&'static str>,
        prompts: Box<Prompts<'a>>,
    ) -> Self {
        let asker = Asker { endpoint, server, sampling, stops: Vec::new(), row_roles };
        ServedSubject { asker, prompts, parallel: 1, failed_in_a_row: 0 }
    }

    /// Ends an answer at the first of these strings, as [`super::local::LocalSubject::stopping_at`] does.
    #[must_use]
    pub fn stopping_at(mut self, stops: Vec<String>) -> Self {
        self.asker.stops = stops;
        self
    }

    /// Asks up to `calls` questions of a case at once.
    #[must_use]
    pub fn at_once(self, calls: usize) -> Self {
        ServedSubject { parallel: calls.max(1), ..self }
    }
}

impl Asker<'_> {
    fn ask(&self, case: &Case, question: Question<'_>, prompt: &Prompt) -> Result<ProbeOutcome, Failed> {
        let begun = Instant::now();
        let spans: Vec<&CharSpan> = prompt.spans.iter().chain(&prompt.overlays).collect();
        let of = |role: &'static str| {
            spans.iter().enumerate().filter(move |(_, s)| s.role.as_deref() == Some(role)).map(|(i, _)| i)
        };
        let mut rows: Vec<String> =
            self.row_roles.iter().copied().chain([QUERY]).flat_map(of).map(name).collect();
        rows.extend(["last".to_owned(), "answer".to_owned()]);
        let Sampling { temperature, top_p, seed, max_new_tokens } = self.sampling;
        let Question { probe, condition } = question;
        let mut body = json!({
            "model": self.endpoint.model(), "prompt": prompt.text, "max_tokens": max_new_tokens,
            "temperature": temperature, "top_p": top_p,
            "seed": stream_seed(seed, &case.id, &probe.id, condition.repetition),
            "palimpsest": {"rows": rows, "heads": "all", "encoding": "safetensors", "token_ids": true}
        });
        if !self.stops.is_empty() {
            body["stop"] = json!(self.stops);
        }
        let places = characters(&prompt.text, &spans);
        // A span whose whole text went into its predecessor's last token is left out, as it is of a local model's prompts.
        let mut sent: Vec<usize> = (0..spans.len()).collect();
        let reply = loop {
            let range = |&i: &usize| {
                let (start, end) = (places.get(&spans[i].start), places.get(&spans[i].end));
                json!({"label": name(i), "start": start, "end": end})
            };
            body["palimpsest"]["spans"] = sent.iter().map(range).collect();
            match self.endpoint.continued(&body) {
                Ok(reply) => break reply,
                Err(NotContinued { field, refused, error }) => {
                    let nth = field.as_deref().and_then(|field| {
                        field.strip_prefix("palimpsest.spans[")?.strip_suffix(']')?.parse::<usize>().ok()
                    });
                    let fixed = |i: &usize| {
                        let span = spans[*i];
                        *i < prompt.spans.len()
                            && span.role.is_none()
                            && Span::new(span.label.clone(), 0..0).segment().is_none()
                    };
                    match nth.filter(|&nth| sent.get(nth).is_some_and(fixed)) {
                        Some(nth) => drop(sent.remove(nth)),
                        None if refused => return Err(Failed::Reply(error.into())),
                        None => return Err(Failed::Call(error.into())),
                    }
                }
            }
        };
        let unusable = |why: String| Failed::Reply(format!("{}: {why}", self.endpoint.model()).into());
        let usage = reply["usage"].clone();
        let choice = reply["choices"].get(0).cloned().unwrap_or_default();
        let Choice { text, finish_reason, palimpsest: told } =
            serde_json::from_value(choice).map_err(|error| {
                unusable(format!("the server's reply is not what this version of palimpsest reads ({error})"))
            })?;
        let (prompt_tokens, generated) = (told.prompt_token_ids.len(), told.token_ids.len());
        let store = self.store(prompt, told).map_err(unusable)?;
        let count = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let reused = count(&usage["prompt_tokens_details"]["cached_tokens"]).min(prompt_tokens);
        let cost = Cost {
            tokens_computed: Some(prompt_tokens - reused),
            tokens_reused: reused,
            tokens_generated: Some(generated),
            // What it takes elsewhere is not this machine's to tell.
            decode_seconds: begun.elapsed().as_secs_f64(),
            ..Cost::default()
        };
        Ok(ProbeOutcome {
            answer: text.trim().to_owned(),
            thought: None,
            max_thinking: None,
            stop: match finish_reason.as_deref() {
                Some("length") => StopReason::MaxNewTokens,
                _ => StopReason::EndOfTurn,
            },
            prompt_tokens: Some(prompt_tokens),
            completion_tokens: Some(generated),
            dropped: Dropped::default(),
            scores: BTreeMap::new(),
            attention: Some(AttentionStore {
                case: case.id.clone(),
                probe: probe.id.clone(),
                condition: condition.name.clone(),
                ..store
            }),
            cost: Some(cost),
        })
    }

    /// The attention file that a local run would have written, without the names of case, probe and condition.
    fn store(&self, prompt: &Prompt, told: Told) -> Result<AttentionStore, String> {
        let Told { spans, rows: labels, layers, data, prompt_token_ids: tokens, token_ids: generated } = told;
        // 1. The spans as tokens, with their places among the reply's columns.
        let mut columns = Vec::new();
        let mut tokenized = TokenizedPrompt { tokens, spans: Vec::new(), overlays: Vec::new() };
        for (i, span) in prompt.spans.iter().chain(&prompt.overlays).enumerate() {
            let Some(column) = spans.iter().position(|told| told.overlay && told.label == name(i)) else {
                continue;
            };
            let range = spans[column].range();
            let own = Span { role: span.role.clone(), ..Span::new(span.label.clone(), range) };
            columns.push(column);
            match i < prompt.spans.len() {
                true => tokenized.spans.push(own),
                false => tokenized.overlays.push(own.as_overlay()),
            }
        }
        // 2. The rows, in the order in which they were asked for.
        let n = tokenized.tokens.len();
        let mut rows = row_spans(&tokenized, &self.row_roles);
        rows.push(engine::last(n));
        if labels.iter().any(|label| label == "answer") {
            let first = n.saturating_sub(1);
            rows.push(Span::new("answer", first..first + generated.len()));
        }
        if rows.len() != labels.len() || self.server.windows.len() != layers.len() {
            return Err(format!(
                "the server tells {} rows and {} layers where {} and {} were asked for",
                labels.len(),
                layers.len(),
                rows.len(),
                self.server.windows.len()
            ));
        }
        // 3. The numbers.
        let broken = |error: &dyn std::fmt::Display| format!("the server's tensors cannot be read: {error}");
        let bytes = STANDARD.decode(data).map_err(|error| broken(&error))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| broken(&error))?;
        let tensor = |name: &str| -> Result<ArrayD<f32>, String> {
            let view = file.tensor(name).map_err(|error| broken(&error))?;
            let numbers = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            ArrayD::from_shape_vec(IxDyn(view.shape()), numbers).map_err(|error| broken(&error))
        };
        let picked = |x: ArrayD<f32>| -> Result<ArrayD<f32>, String> {
            let last = x.ndim().checked_sub(1).filter(|&last| x.len_of(Axis(last)) == spans.len());
            let last =
                last.ok_or_else(|| format!("a tensor of shape {:?} for {} spans", x.shape(), spans.len()))?;
            Ok(x.select(Axis(last), &columns))
        };
        let of_shape = |error: ndarray::ShapeError| broken(&error);
        let mass: Array4<f32> = picked(tensor("mass")?)?.into_dimensionality().map_err(of_shape)?;
        let share: Array3<f32> = picked(tensor("share")?)?.into_dimensionality().map_err(of_shape)?;
        let sink: Option<Array3<f32>> = match file.names().contains(&"sink") {
            true => Some(tensor("sink")?.into_dimensionality().map_err(of_shape)?),
            false => None,
        };
        if (mass.dim().0, mass.dim().2) != (layers.len(), rows.len()) {
            return Err(format!("masses of shape {:?} for {} rows", mass.shape(), rows.len()));
        }
        let TokenizedPrompt { tokens, spans, overlays } = tokenized;
        Ok(AttentionStore {
            mass,
            sink,
            uniform: Some(Uniform { windows: self.server.windows.clone(), share }),
            delta: None,
            layers,
            rows,
            keys: spans.into_iter().chain(overlays).collect(),
            tokens,
            generated,
            case: String::new(),
            probe: String::new(),
            condition: String::new(),
            model: self.endpoint.model().to_owned(),
            dtype: self.server.dtype.clone(),
        })
    }
}

/// The borders of spans in characters, by their bytes.
fn characters(text: &str, spans: &[&CharSpan]) -> BTreeMap<usize, usize> {
    let borders: BTreeSet<usize> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
    let (mut at, mut count) = (0, 0);
    let place = |border: usize| {
        count += text.get(at..border).unwrap_or_default().chars().count();
        at = border;
        (border, count)
    };
    borders.into_iter().map(place).collect()
}

impl Subject for ServedSubject<'_> {
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let parts = match (self.prompts)(case) {
            Ok(parts) => parts,
            Err(reason) => {
                return questions.iter().try_for_each(|&question| sink(question, Err(reason.clone())));
            }
        };
        let ServedSubject { asker, parallel, failed_in_a_row, .. } = self;
        let asker = &*asker;
        let prompt_of = |question: Question<'_>| {
            let at = case.probes.iter().position(|probe| probe.id == question.probe.id)?;
            part_of(&parts, at)
        };
        in_order(
            vec![(); *parallel],
            questions.len(),
            &|| false,
            &mut |nth| {
                status.begin(&format!("{} {}", case.id, questions[nth]), "waiting for the reply");
                nth
            },
            &|(), nth| {
                let question = questions[nth];
                let Some((part, prompt)) = prompt_of(question) else {
                    let why = format!(
                        "This is a bug: case `{}` has no prompt for probe `{}`",
                        case.id, question.probe.id
                    );
                    return Err(Failed::Reply(why.into()));
                };
                let outcome = asker.ask(case, question, prompt)?;
                Ok(ProbeOutcome { dropped: part.dropped.clone(), ..outcome })
            },
            &mut |nth, outcome| {
                let question = questions[nth];
                match outcome {
                    Ok(outcome) => {
                        *failed_in_a_row = 0;
                        sink(question, Ok(outcome))
                    }
                    Err(Failed::Reply(error)) => sink(question, Err(error)),
                    Err(Failed::Call(error)) => {
                        sink(question, Err(error.clone()))?;
                        count_failure(failed_in_a_row, &error)
                    }
                }
            },
        )
        .map(drop)
    }
}
