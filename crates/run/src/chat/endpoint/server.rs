//! A palimpsest server as an engine, over `/v1/completions` with the attention extension.
//!
//! Sends prompts as tokens, spans as token ranges, knock-outs by span names; receives masses as safetensors. Not on the wire, and refused
//! as [`RequestError::NotServed`]: [`Task::Force`], norms, targets, largest keys, penalties, thoughts and implicit attention.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ndarray::{Array2, ArrayD, Axis, Dimension, IxDyn};
use palimpsest_core::attention::{Hole, LayerHoles, LayerKind, Masses, Uniform};
use palimpsest_core::engine::{
    self, Backend, Branch, Chosen, EngineError, Event, Generate, Generated, Measured, Measurement, Observe,
    OnEvent, Request, RequestError, StopReason, Task,
};
use palimpsest_core::span::Span;
use palimpsest_core::text::{BorderRule, ChatTemplate, TextError, Tokenizer};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Endpoint, Failure, says_too_long};
use crate::chat::ChatError;
use crate::chat::parallel::in_order;

/// Model description from `/v1/models` and `/tokenizer_info`.
#[derive(Deserialize)]
pub struct ServerCard {
    pub context: usize,
    pub dtype: String,
    /// KV-cache dtype if different; absent from earlier servers.
    pub cache_dtype: Option<String>,
    pub attention: AttentionCard,
    #[serde(default)]
    pub delta_layers: Vec<usize>,
    #[serde(skip)]
    pub text: TokenizerInfo,
}

#[derive(Deserialize)]
pub struct AttentionCard {
    /// Sliding window of each softmax-attention layer, in tokens; `None` for full attention.
    pub windows: Vec<Option<usize>>,
    /// Assigns tokens that cross a span border; absent from earlier servers.
    #[serde(default)]
    pub borders: BorderRule,
}

#[derive(Default, Deserialize)]
pub struct TokenizerInfo {
    pub chat_template: String,
    /// Beginning-of-sequence token as the template writes it.
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
}

impl ServerCard {
    pub fn template(&self, model: &str) -> Result<ChatTemplate, TextError> {
        let TokenizerInfo { chat_template, bos_token, eos_token } = &self.text;
        ChatTemplate::new(model, chat_template, bos_token.as_deref(), eos_token.as_deref())
    }
}

impl Endpoint {
    pub fn model(&self) -> &str {
        &self.model
    }

    /// `None` for other servers and for servers that do not reply.
    pub fn server_card(&self) -> Result<Option<ServerCard>, ChatError> {
        let models = self.exchange(&format!("{}/models", self.base), None);
        let models = models.ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let is_it = |card: &&Value| card["id"] == *self.model;
        let card = models.as_ref().and_then(|models| models["data"].as_array()?.iter().find(is_it));
        let card = card.and_then(|card| ServerCard::deserialize(&card["palimpsest"]).ok());
        let Some(ServerCard { cache_dtype, dtype, .. }) = &card else { return Ok(None) };
        let cache_dtype = cache_dtype.clone().filter(|cache| cache != dtype);
        let text = self.root_file("tokenizer_info", |bytes| serde_json::from_slice(bytes))?;
        Ok(card.map(|card| ServerCard { cache_dtype, text, ..card }))
    }

    pub fn tokenizer(&self) -> Result<Tokenizer, ChatError> {
        self.root_file("tokenizer.json", |bytes| Tokenizer::from_bytes(bytes, &self.model))
    }

    fn root_file<T, E: Display>(
        &self,
        name: &str,
        parse: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Result<T, ChatError> {
        let root = self.base.strip_suffix("/v1").unwrap_or(&self.base);
        let file = self.retrying(|| {
            let bytes = self.exchange(&format!("{root}/{name}"), None)?;
            parse(&bytes).map_err(|error| unreadable(&error.to_string()))
        });
        file.map_err(|failure| self.failed(&failure))
    }

    fn completion(&self, prompt: &[u32], fields: Map<String, Value>) -> Result<Completion, RequestError> {
        let mut body = named([("model", json!(self.model)), ("prompt", json!(prompt))]);
        body.extend(fields);
        let (url, body) = (format!("{}/completions", self.base), Value::Object(body).to_string());
        let reply = self.retrying(|| {
            let bytes = self.exchange(&url, Some(body.as_bytes()))?;
            serde_json::from_slice(&bytes).map_err(|error| unreadable(&error.to_string()))
        });
        reply.map_err(|failure| {
            let error = self.explain(&failure);
            match failure {
                _ if says_too_long(&error) => RequestError::RefusedTooLong(error),
                Failure::Status { status: 400 | 413 | 422, .. } | Failure::Unreadable { .. } => {
                    RequestError::Refused(error)
                }
                _ => RequestError::Unreachable(error),
            }
        })
    }
}

fn unreadable(reason: &str) -> Failure {
    Failure::Unreadable { reason: reason.to_owned(), body: String::new() }
}

pub struct ServerModel {
    endpoint: Endpoint,
    card: ServerCard,
    parallel: usize,
}

struct Call {
    branch: usize,
    task: usize,
    prompt: Arc<[u32]>,
    wire: Result<Wire, &'static str>,
}

enum Wire {
    Measure { fields: Map<String, Value>, rows: Vec<Span>, keys: usize },
    Score(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<String>,
    palimpsest: Option<AttentionReply>,
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    /// For the prompt (none for its first token) and one generated token.
    token_logprobs: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct AttentionReply {
    spans: Vec<Span>,
    rows: Vec<String>,
    layers: Vec<usize>,
    data: String,
    token_ids: Vec<u32>,
}

impl ServerModel {
    pub fn new(endpoint: Endpoint, card: ServerCard, parallel: usize) -> Self {
        ServerModel { endpoint, card, parallel: parallel.max(1) }
    }

    fn has_delta(&self) -> bool {
        !self.card.delta_layers.is_empty()
    }

    fn calls(&self, request: Request) -> Vec<Call> {
        let Request { prefix, branches, .. } = request;
        let mut calls = Vec::new();
        for (branch, Branch { tokens, knockouts, observe, tasks, .. }) in branches.into_iter().enumerate() {
            let prompt: Arc<[u32]> = [&*prefix, &tokens].concat().into();
            for (nth, task) in tasks.into_iter().enumerate() {
                let wire = self.wire(&prompt, &observe, (&knockouts, task));
                calls.push(Call { branch, task: nth, prompt: Arc::clone(&prompt), wire });
            }
        }
        calls
    }

    fn wire(
        &self,
        prompt: &[u32],
        observe: &Observe,
        (knockouts, task): (&LayerHoles, Task),
    ) -> Result<Wire, &'static str> {
        let mut fields = match task {
            Task::Force(_) => return Err("the logits of a given answer"),
            Task::Score(_) if !knockouts.is_empty() => return Err("likelihoods with something blocked"),
            Task::Score(texts) => return Ok(Wire::Score(texts)),
            Task::Read => named([("max_tokens", json!(0))]),
            Task::Generate(of) if of.thinker.is_some() => return Err("thoughts before the answer"),
            Task::Generate(of) if !of.rules.is_empty() || of.likeliest.is_some() || of.tell_rows => {
                return Err("penalties, formats and likelihoods of the answer");
            }
            Task::Generate(generate) => generated(&generate),
        };
        let rows = &observe.rows;
        match observe {
            Observe { norms: true, .. } => return Err("norms"),
            Observe { selected: true, .. } => return Err("what windows left to rows"),
            Observe { top_keys: Some(_), .. } => return Err("largest keys"),
            Observe { targets, .. } if !targets.is_empty() => return Err("attributions"),
            Observe { routes: Some(_), .. } => return Err("information-flow routes"),
            Observe { likeliest: Some(_), .. } => return Err("likelihoods of the prompt"),
            Observe { logits: 1.., .. } => return Err("logits"),
            _ if rows.answer.each || rows.answer.step => return Err("rows of single tokens"),
            _ if self.has_delta() && observe.any() && !observe.softmax_only => {
                return Err("implicit attention");
            }
            _ => {}
        }
        // Spans are numbered on the wire, since labels may have a meaning for the server. Rows that are no key follow the keys.
        let last = engine::last(prompt.len());
        let mut spans: Vec<&Span> = observe.keys.iter().collect();
        let mut names = Vec::new();
        for row in &rows.spans {
            let same = |key: &&Span| key.range() == row.range();
            names.push(match spans.iter().position(same) {
                _ if *row == last => last.label.clone(),
                Some(nth) => name(nth),
                None => {
                    spans.push(row);
                    name(spans.len() - 1)
                }
            });
        }
        let mut rows_told = rows.spans.clone();
        if let Some(at) = rows.answer.mean {
            names.insert(at.min(names.len()), "answer".to_owned());
            rows_told.insert(at.min(rows_told.len()), Span::new("answer", 0..0));
        }
        if names.is_empty() {
            // The server returns answer tokens only with attention.
            names.push(last.label);
        }
        let range =
            |(nth, span): (usize, &&Span)| json!({"label": name(nth), "start": span.start, "end": span.end});
        let mut spans: Vec<Value> = spans.iter().enumerate().map(range).collect();
        let mut asked = json!({"rows": names, "units": "tokens", "heads": "all", "encoding": "safetensors", "token_ids": true});
        if !knockouts.is_empty() {
            let (ranges, knockouts) = self.on_wire(knockouts, prompt.len())?;
            spans.extend(ranges);
            asked["knockouts"] = json!(knockouts);
        }
        asked["spans"] = json!(spans);
        fields.insert("palimpsest".to_owned(), asked);
        Ok(Wire::Measure { fields, rows: rows_told, keys: observe.keys.len() })
    }

    fn on_wire(&self, holes: &LayerHoles, prompt: usize) -> Result<(Vec<Value>, Vec<String>), &'static str> {
        if self.has_delta() {
            return Err("knock-outs in a model with linear-attention layers");
        }
        let layers = self.card.attention.windows.len();
        let mut found: BTreeMap<[usize; 4], Vec<usize>> = BTreeMap::new();
        for layer in 0..layers {
            for Hole { rows, keys } in holes.of(layer).iter() {
                // Rows that reach the prompt's end include the answer.
                let key = [rows.start, rows.end.min(prompt), keys.start, keys.end];
                found.entry(key).or_default().push(layer);
            }
        }
        let (mut spans, mut knockouts) = (Vec::new(), Vec::new());
        for (nth, ([first, end, from, to], at)) in found.into_iter().enumerate() {
            spans.push(json!({"label": format!("rows{nth}"), "start": first, "end": end}));
            spans.push(json!({"label": format!("keys{nth}"), "start": from, "end": to}));
            // `only` limits the knock-out to these rows; without it, later rows are included.
            let only = if end < prompt { "only " } else { "" };
            let path = format!("{only}rows{nth}->keys{nth}");
            if at.len() == layers {
                knockouts.push(path);
                continue;
            }
            for run in at.chunk_by(|a, b| a + 1 == *b) {
                if let (Some(start), Some(last)) = (run.first(), run.last()) {
                    knockouts.push(format!("{path}@{start}..{}", last + 1));
                }
            }
        }
        Ok((spans, knockouts))
    }

    fn ask(&self, call: &Call) -> Result<Measured, RequestError> {
        let begun = Instant::now();
        let measured = match &call.wire {
            Err(what) => return Err(RequestError::NotServed { what }),
            Ok(Wire::Score(texts)) => {
                let fields = [("max_tokens", json!(0)), ("echo", json!(true)), ("logprobs", json!(0))];
                let score = |text: &Vec<u32>| {
                    let prompt = [&*call.prompt, text].concat();
                    let reply = self.endpoint.completion(&prompt, named(fields.clone()))?;
                    let logprobs = reply.choices.into_iter().next().and_then(|choice| choice.logprobs);
                    let logprobs = logprobs.map(|logprobs| logprobs.token_logprobs).unwrap_or_default();
                    let own = logprobs.get(call.prompt.len()..prompt.len());
                    own.ok_or_else(|| self.unusable("it has no log-probabilities"))
                        .map(|own| own.iter().copied().sum())
                };
                let scores = texts.iter().map(score).collect::<Result<_, _>>()?;
                Measured { scores, ..unmeasured(call.prompt.len()) }
            }
            Ok(Wire::Measure { fields, rows, keys }) => {
                let reply = self.endpoint.completion(&call.prompt, fields.clone())?;
                self.measured(call.prompt.len(), (rows, *keys), reply)?
            }
        };
        Ok(Measured { call_seconds: Some(begun.elapsed().as_secs_f64()), ..measured })
    }

    fn unusable(&self, why: impl Display) -> RequestError {
        let model = self.endpoint.model();
        RequestError::Refused(format!("{model}: the server's reply cannot be used: {why}"))
    }

    fn measured(
        &self,
        prompt: usize,
        (rows, keys): (&[Span], usize),
        reply: Completion,
    ) -> Result<Measured, RequestError> {
        let cached = reply.usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        let choice = reply.choices.into_iter().next();
        let Some(Choice { finish_reason, palimpsest: Some(told), .. }) = choice else {
            return Err(self.unusable("it has no attention"));
        };
        let stop = match finish_reason.as_deref() {
            Some("length") => StopReason::MaxNewTokens,
            _ => StopReason::EndOfTurn,
        };
        let generated = Generated { tokens: told.token_ids.clone(), thought: 0, stop };
        let masses = self.masses(prompt, (rows, keys), &told)?;
        let reused = usize::try_from(cached).unwrap_or(0).min(prompt);
        Ok(Measured { generated, masses, reused, ..unmeasured(prompt) })
    }

    fn masses(
        &self,
        prompt: usize,
        (rows, keys): (&[Span], usize),
        told: &AttentionReply,
    ) -> Result<Masses, RequestError> {
        let first = prompt.saturating_sub(1);
        let has_answer = told.rows.iter().any(|row| row == "answer");
        let named = |row: &Span| match row.label == "answer" && row.is_empty() {
            true => has_answer.then(|| Span::new("answer", first..first + told.token_ids.len())),
            false => Some(row.clone()),
        };
        let rows: Vec<Span> = rows.iter().filter_map(named).collect();
        let (layers, windows) = (told.layers.clone(), self.card.attention.windows.clone());
        if (!rows.is_empty() && rows.len() != told.rows.len()) || windows.len() != layers.len() {
            return Err(self.unusable(format_args!(
                "it has {} rows and {} layers where {} and {} were asked for",
                told.rows.len(),
                layers.len(),
                rows.len(),
                windows.len()
            )));
        }
        let column = |nth| {
            let of_key = |span: &Span| span.overlay && span.label == name(nth);
            let found = told.spans.iter().position(of_key);
            found.ok_or_else(|| self.unusable(format_args!("it has no span {nth}")))
        };
        let columns = (0..keys).map(column).collect::<Result<Vec<_>, _>>()?;
        let bytes = STANDARD.decode(&told.data).map_err(|error| self.unusable(error))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| self.unusable(error))?;
        let tensor = |name: &str| -> Result<ArrayD<f32>, RequestError> {
            let view = file.tensor(name).map_err(|error| self.unusable(error))?;
            let numbers = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            ArrayD::from_shape_vec(IxDyn(view.shape()), numbers).map_err(|error| self.unusable(error))
        };
        let of_rows = |x: ArrayD<f32>, axis: usize| match x.shape().get(axis) {
            Some(&count) if count >= rows.len() => {
                Ok(x.select(Axis(axis), &(0..rows.len()).collect::<Vec<_>>()))
            }
            _ => {
                Err(self.unusable(format_args!("a tensor of shape {:?} for {} rows", x.shape(), rows.len())))
            }
        };
        let of_keys = |x: ArrayD<f32>| match x.shape().split_last() {
            Some((&count, _)) if count == told.spans.len() => Ok(x.select(Axis(x.ndim() - 1), &columns)),
            _ => Err(self.unusable(format_args!(
                "a tensor of shape {:?} for {} spans",
                x.shape(),
                told.spans.len()
            ))),
        };
        let mass = of_rows(of_keys(tensor("mass")?)?, 2)?;
        let share = of_rows(of_keys(tensor("share")?)?, 1)?;
        let sink = file.names().contains(&"sink").then(|| of_rows(tensor("sink")?, 2)).transpose()?;
        Ok(Masses {
            mass: self.shaped(mass)?,
            uniform: Uniform { windows, share: self.shaped(share)? },
            sink: sink.map(|sink| self.shaped(sink)).transpose()?,
            layers,
            rows,
            ..Masses::default()
        })
    }

    fn shaped<D: Dimension>(&self, x: ArrayD<f32>) -> Result<ndarray::Array<f32, D>, RequestError> {
        x.into_dimensionality().map_err(|error| self.unusable(error))
    }
}

fn name(span: usize) -> String {
    format!("span {span}")
}

fn named<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The server knows its own end tokens.
fn generated(generate: &Generate) -> Map<String, Value> {
    let engine::Sampling { temperature, top_p, seed, .. } = generate.sampling;
    let mut fields = named([
        ("max_tokens", json!(generate.room())),
        ("temperature", json!(temperature)),
        ("top_p", json!(top_p)),
        ("seed", json!(seed)),
    ]);
    fields.extend(generate.watch.iter().map(|watch| ("stop".to_owned(), json!(watch.strings()))));
    fields
}

fn unmeasured(prompt: usize) -> Measured {
    Measured {
        logits: Array2::zeros((0, 0)),
        generated: Generated { tokens: Vec::new(), thought: 0, stop: StopReason::MaxNewTokens },
        masses: Masses::default(),
        measurement: Measurement::nothing(prompt),
        top_keys: None,
        norms: None,
        attributions: None,
        routes: None,
        kept: None,
        reused: 0,
        call_seconds: None,
        prompt: Vec::new(),
        end: None,
        scores: Vec::new(),
    }
}

impl Backend for ServerModel {
    fn run(&mut self, request: Request, on_event: OnEvent<'_>) {
        let calls = self.calls(request);
        let (on_event, stopped, ended) = (RefCell::new(on_event), Cell::new(false), Cell::new(0));
        let tell = |call: &Call, event| {
            if !(on_event.borrow_mut())(call.branch, call.task, event) {
                stopped.set(true);
            }
        };
        let server = &*self;
        let Ok(_) = in_order(
            vec![(); server.parallel],
            calls.len(),
            &|| stopped.get(),
            &mut |nth| {
                tell(&calls[nth], Event::Begun(0));
                nth
            },
            &|(), nth| server.ask(&calls[nth]),
            &mut |nth, output| {
                ended.set(nth + 1);
                match output {
                    Err(error) => tell(&calls[nth], Event::Failed(error)),
                    Ok(measured) => {
                        tell(&calls[nth], Event::Prompt);
                        for &token in &measured.generated.tokens {
                            let chosen = Chosen { token, likelihood: None, rows: Vec::new() };
                            tell(&calls[nth], Event::Token(chosen));
                        }
                        tell(&calls[nth], Event::Done(Box::new(measured)));
                    }
                }
                Ok::<(), Infallible>(())
            },
        );
        for call in &calls[ended.get()..] {
            tell(call, Event::Failed(EngineError::Interrupted.into()));
        }
    }

    fn first_phase(&self) -> &'static str {
        "waiting for the reply"
    }

    fn dtype(&self) -> String {
        match &self.card.cache_dtype {
            None => self.card.dtype.clone(),
            Some(cache) => format!("{} with a cache in {cache}", self.card.dtype),
        }
    }

    fn layer_kinds(&self) -> Vec<LayerKind> {
        self.card
            .attention
            .windows
            .iter()
            .map(|&window| LayerKind::Softmax { window, sinks: false, indexed: false })
            .collect()
    }
}
