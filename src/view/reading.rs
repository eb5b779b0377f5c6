//! One answer of a run asked again with something changed, beside what was.
//!
//! It is asked as the causes of a run ask: keys hidden from rows, sessions removed, neutral text in their place; the old answer is read
//! under teacher forcing before and after ([`crate::run::causes::metric`]), and a new one is generated. Nothing here is another way of doing it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_core::ablate::{
    EffectRow, History, Metric, PairLogP, Prompt, Said, Target, hide, neutral, put, without,
};
use palimpsest_core::attention::{AttentionStore, LayerHoles, LayerKind};
use palimpsest_core::engine::{
    Backend, Branch, EngineError, Event, Generate, Measured, ModelText, Observe, Request, RequestError,
    Reuse, Rows, Sampling, Session, StopWatch, Task,
};
use palimpsest_core::span::Span;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::fields::Fields;
use crate::benchmarks::QUERY;
use crate::chat::endpoint::ServerModel;
use crate::run::causes::CauseError;
use crate::run::causes::case::pair;
use crate::run::rows::{AnswerRow, Contrast, ValueLogP};

/// Why there is no trial.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error("{0}")]
    Asked(String),
    #[error(transparent)]
    Cause(#[from] CauseError),
    #[error(transparent)]
    Model(#[from] RequestError),
}

impl TrialError {
    /// True if somebody asked for its end.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, TrialError::Model(RequestError::Engine(EngineError::Interrupted)))
    }
}

/// The changes of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// Sessions hidden from everything from the question on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<Block>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathBlock>,
    /// Sessions that are taken out, all behind them read again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Sessions in whose place neutral text of equal length stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<String>,
}

/// Sessions hidden from everything from the question on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    pub sessions: Vec<String>,
    /// Windows of layers, half-open; all where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<[usize; 2]>>,
}

/// Keys hidden from the rows of a span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathBlock {
    /// A span, `question` for everything from the question on, `answer` for the positions that predict the answer.
    pub from: String,
    /// The span that these do not see.
    pub to: String,
    /// Windows of layers, half-open; all where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<[usize; 2]>>,
}

/// Rows whose attention to single tokens is looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LookFrom {
    Question,
    /// The positions that predict the answer behind its thought.
    Answer,
    /// The positions that predict some generated tokens, half-open.
    Generated([usize; 2]),
    Tokens([usize; 2]),
}

impl Asked {
    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Asked::default()
    }
}

/// Word of a trial's progress: what is done, and how many of how many tokens.
pub type Told<'a> = &'a mut dyn FnMut(&'static str, usize, usize);

/// An answer that is asked again.
pub struct Reading<'a> {
    /// Its attention store, which holds its tokens.
    pub store: &'a AttentionStore,
    pub row: &'a AnswerRow,
    pub sampling: Sampling,
    pub stops: &'a [String],
    pub text: &'a ModelText,
    pub kinds: &'a [LayerKind],
    /// Set where the trial is to end.
    pub cancel: &'a AtomicBool,
}

/// The model that is asked.
pub enum Model<'a> {
    Local(&'a mut Session),
    /// Behind a palimpsest server, which generates and tells no log-probability of an answer that is given.
    Server(&'a mut ServerModel),
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Came {
    /// With nothing changed: as the run has it, and the log-probability read again.
    pub before: Value,
    pub after: Value,
}

impl Reading<'_> {
    fn question(&self) -> Result<usize, TrialError> {
        let query = self.store.keys.iter().find(|span| span.is(QUERY));
        let none = "its attention file names no question, before which sessions could be changed";
        query.map(|span| span.start).ok_or_else(|| TrialError::Asked(none.to_owned()))
    }

    /// The tokens of a session before the question.
    fn session(&self, label: &str) -> Result<Range<usize>, TrialError> {
        let question = self.question()?;
        let found = self.store.keys.iter().find(|span| span.label == label && !span.is_empty());
        match found {
            Some(span) if span.end <= question => Ok(span.range()),
            Some(_) => Err(TrialError::Asked(format!("`{label}` is not before the question"))),
            None => Err(TrialError::Asked(format!("`{label}` is no part of this prompt"))),
        }
    }

    fn windows(&self, layers: Option<&[[usize; 2]]>) -> Result<Vec<Range<usize>>, TrialError> {
        let count = self.kinds.len();
        let Some(layers) = layers else { return Ok(std::iter::once(0..count).collect()) };
        let window = |[from, to]: &[usize; 2]| match from < to && *to <= count {
            true => Ok(*from..*to),
            false => Err(TrialError::Asked(format!(
                "layers {from}..{to} are none of a model of {count} layers; give from..to with from < to <= {count}"
            ))),
        };
        layers.iter().map(window).collect()
    }

    /// The prompt's tokens after a change, the first of its question among them, and the keys that are hidden.
    fn changed(&self, asked: &Asked) -> Result<(Vec<u32>, usize, LayerHoles), TrialError> {
        let mut tokens = self.store.tokens.clone();
        let question = self.question()?;
        if !asked.replace.is_empty() {
            let neutral = neutral(self.text).map_err(CauseError::Neutral)?;
            for label in &asked.replace {
                put(&neutral, &self.session(label)?, &mut tokens);
            }
        }
        let removed: Vec<Range<usize>> =
            asked.remove.iter().map(|label| self.session(label)).collect::<Result<_, _>>()?;
        let is_removed = |at: &usize| removed.iter().any(|range| range.contains(at));
        // Place of a token in what is left; of one that is gone that of the next.
        let moved = |at: usize| (0..at.min(tokens.len())).filter(|before| !is_removed(before)).count();
        let there = |range: Range<usize>| moved(range.start)..moved(range.end);
        let end = usize::MAX;
        let mut holes = LayerHoles::default();
        let mut hide_at = |rows: Range<usize>, keys: Range<usize>, layers: &[Range<usize>]| {
            for window in layers {
                holes = holes.joined(&hide(rows.clone(), &[keys.clone()], Some(window), self.kinds));
            }
        };
        for block in &asked.block {
            let layers = self.windows(block.layers.as_deref())?;
            for label in &block.sessions {
                hide_at(moved(question)..end, there(self.session(label)?), &layers);
            }
        }
        for path in &asked.paths {
            let keys = self.session(&path.to)?;
            let rows = match path.from.as_str() {
                "question" => moved(question)..end,
                "answer" => moved(self.store.tokens.len()) - 1..end,
                label => {
                    let rows = self.session(label)?;
                    if rows.start < keys.end {
                        let why = "comes before what it is kept from, and sees it in any case";
                        return Err(TrialError::Asked(format!("`{label}` {why}")));
                    }
                    there(rows)
                }
            };
            hide_at(rows, there(keys), &self.windows(path.layers.as_deref())?);
        }
        Ok((without(&tokens, &removed), moved(question), holes))
    }

    /// Reads the old answer before and after the change, and generates a new one. `told` hears of progress, `said` of the new answer so far.
    pub fn trial(
        &self,
        model: Model<'_>,
        asked: &Asked,
        told: Told<'_>,
        heard: &mut dyn FnMut(&str),
    ) -> Result<Came, TrialError> {
        if asked.is_empty() {
            return Err(TrialError::Asked(
                "nothing is changed; block, remove or replace something".to_owned(),
            ));
        }
        let (question, (tokens, moved, holes)) = (self.question()?, self.changed(asked)?);
        let prompt = |tokens, question| Prompt { tokens, cut: question, question, kinds: self.kinds };
        let before = prompt(&self.store.tokens, question).history();
        let after = prompt(&tokens, moved).history();
        let mut then = json!({"answer": self.row.answer});
        let mut now = json!({});
        let new = match model {
            Model::Local(session) => {
                self.old_answer(session, [&before, &after], &holes, told, [&mut then, &mut now])?;
                self.answer(session, &after, &holes, told, heard)?
            }
            Model::Server(server) => self.answer(server, &after, &holes, told, heard)?,
        };
        (now["answer"], now["stop"]) = (json!(new.0), new.1);
        Ok(Came { before: then, after: now.with("thought", new.2) })
    }

    /// Reads the old answer and the question's values before and after the change.
    fn old_answer(
        &self,
        session: &mut Session,
        [before, after]: [&History<'_>; 2],
        holes: &LayerHoles,
        told: Told<'_>,
        [then, now]: [&mut Value; 2],
    ) -> Result<(), TrialError> {
        // 1. As it was.
        let (mut done, of) = (0, self.store.tokens.len());
        let mut go_on = |tokens: usize| {
            done += tokens;
            told("reading the prompt as it was", done, of);
            !self.cancel.load(Ordering::Relaxed)
        };
        let said = Said { tokens: &self.store.generated, thought: self.store.thought() };
        let has_answer = said.thought < said.tokens.len();
        let contrast = self.row.contrast.as_ref();
        let values = contrast.map(|contrast| pair(self.store, contrast, self.text)).transpose()?;
        let targets = [has_answer.then_some(Target::Answer(said)), values.as_ref().map(Target::Values)];
        let read =
            targets.into_iter().flatten().map(|target| Metric::read(session, before, target, &mut go_on));
        let metrics: Vec<Metric> = read.collect::<Result<_, _>>()?;

        // 2. After the change.
        let (mut done, of) = (0, after.tokens.len() + after.rest.len());
        let mut go_on = |tokens: usize| {
            done += tokens;
            told("reading it with the change", done, of);
            !self.cancel.load(Ordering::Relaxed)
        };
        for metric in &metrics {
            let mut found = None;
            metric.effects(session, after, std::slice::from_ref(holes), &mut go_on, &mut |_, row| {
                found = Some(row);
                true
            })?;
            match (found, metric.pair(), contrast) {
                (Some(EffectRow::Answer(effect)), ..) => {
                    then["log_p"] = json!(metric.value());
                    now["log_p"] = json!(metric.value() - effect.log_p_drop);
                    now["drop"] = json!(effect.log_p_drop + 0.0);
                    now["kl"] = json!(effect.kl);
                    now["changed"] = json!(effect.changed);
                }
                (Some(EffectRow::Contrast(changed)), Some(plain), Some(contrast)) => {
                    then["contrast"] = json!(plain.contrast());
                    then["values"] = values_json(contrast, plain);
                    now["contrast"] = json!(changed.contrast());
                    now["values"] = values_json(contrast, changed);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Generates an answer as the run did: its text, why it ended, its thought.
    fn answer(
        &self,
        model: &mut dyn Backend,
        history: &History<'_>,
        holes: &LayerHoles,
        told: Told<'_>,
        heard: &mut dyn FnMut(&str),
    ) -> Result<(String, Value, Option<String>), TrialError> {
        let generate = Generate {
            thinker: self.text.thinker(),
            watch: StopWatch::new(&self.text.tokenizer, self.stops),
            ..Generate::new(self.sampling, self.text.stop.clone())
        };
        let branch = Branch {
            tokens: history.rest.to_vec(),
            knockouts: holes.clone(),
            tasks: vec![Task::Generate(Box::new(generate))],
            ..Branch::default()
        };
        let request =
            Request { prefix: history.tokens.clone(), reuse: Reuse::Longest, branches: vec![branch] };
        let most = self.sampling.max_new_tokens;
        let mut tokens: Vec<u32> = Vec::new();
        let measured = answered(model, request, &mut |event| {
            if let Event::Token(chosen) = event {
                tokens.push(chosen.token);
                told("answering", tokens.len(), most);
                // A text that cannot be shown yet is shown later.
                if let Ok(text) = self.text.tokenizer.decode(&tokens, true) {
                    heard(&text);
                }
            }
            !self.cancel.load(Ordering::Relaxed)
        })?;
        let split = self.text.split(&measured.generated);
        let (split, stop) = split.map_err(|error| TrialError::Asked(error.to_string()))?;
        Ok((split.answer.unwrap_or_default(), json!(stop), split.thought))
    }

    /// The attention of some rows to every token of the prompt before them, mean over heads and softmax layers that see all of it.
    pub fn look(
        &self,
        session: &mut Session,
        from: &LookFrom,
        told: Told<'_>,
    ) -> Result<Vec<f64>, TrialError> {
        let n = self.store.tokens.len();
        let question = self.question()?;
        let generated = self.store.generated.len();
        let wrong = |what: &str| {
            TrialError::Asked(format!("{what} of a prompt of {n} tokens and an answer of {generated}"))
        };
        let rows = match from {
            LookFrom::Question => {
                let query = self.store.keys.iter().find(|span| span.is(QUERY));
                query.map(Span::range).unwrap_or(question..n)
            }
            LookFrom::Answer => n - 1 + self.store.thought()..(n + generated).saturating_sub(1),
            LookFrom::Generated([from, to]) if from < to && *to <= generated => n - 1 + from..n - 1 + to,
            LookFrom::Tokens([from, to]) if from < to && *to <= n => *from..*to,
            LookFrom::Generated([from, to]) => {
                return Err(wrong(&format!("there are no generated tokens {from}..{to}")));
            }
            LookFrom::Tokens([from, to]) => return Err(wrong(&format!("there are no tokens {from}..{to}"))),
        };
        if rows.is_empty() {
            return Err(wrong("there is nothing to look from"));
        }
        let whole: Vec<u32> =
            self.store.tokens.iter().chain(&self.store.generated).take(rows.end.max(n)).copied().collect();
        let shared = rows.start.min(question);
        let keys: Vec<Span> =
            (0..rows.end.min(n)).map(|at| Span::new(format!("token {at}"), at..at + 1)).collect();
        let count = keys.len();
        let observe = Observe {
            rows: Rows { spans: vec![Span::new("look", rows.clone())], ..Rows::default() },
            keys,
            softmax_only: true,
            ..Observe::default()
        };
        let branch = Branch {
            tokens: whole[shared..].to_vec(),
            observe,
            tasks: vec![Task::Read],
            ..Branch::default()
        };
        let request =
            Request { prefix: whole[..shared].into(), reuse: Reuse::Prefix, branches: vec![branch] };
        let (mut done, of) = (0, whole.len());
        let measured = session.answer(request, &mut |event| {
            if let Event::Prefilled(tokens) = event {
                done += tokens;
                told("reading the prompt", done, of);
            }
            !self.cancel.load(Ordering::Relaxed)
        })?;
        let mass = &measured.masses.mass; // (layers, heads, 1, keys)
        let whole_prompt =
            |layer: &usize| matches!(self.kinds.get(*layer), Some(LayerKind::Softmax { window: None, .. }));
        let places = measured.masses.layers.iter().enumerate();
        let wide: Vec<usize> =
            places.clone().filter(|(_, layer)| whole_prompt(layer)).map(|(at, _)| at).collect();
        let chosen = if wide.is_empty() { places.map(|(at, _)| at).collect() } else { wide };
        let heads = mass.dim().1;
        let mean = |key: usize| {
            let all = chosen.iter().flat_map(|&layer| (0..heads).map(move |head| (layer, head)));
            let sum: f64 = all.map(|(layer, head)| f64::from(mass[[layer, head, 0, key]])).sum();
            sum / (chosen.len() * heads).max(1) as f64
        };
        Ok((0..count).map(mean).collect())
    }
}

/// The output of a request of one task.
fn answered(
    model: &mut dyn Backend,
    request: Request,
    on_event: &mut dyn FnMut(&Event) -> bool,
) -> Result<Measured, RequestError> {
    let mut output = Err(RequestError::Gone);
    model.run(request, &mut |_, _, event| match event {
        Event::Done(measured) => {
            output = Ok(*measured);
            true
        }
        Event::Failed(error) => {
            output = Err(error);
            true
        }
        other => on_event(&other),
    });
    output
}

/// The two values that were read, with the names of their parts in the file.
fn values_json(contrast: &Contrast, read: PairLogP) -> Value {
    let of = |value: &ValueLogP, log_p: f64| {
        let parts = serde_json::to_value(contrast).unwrap_or_default();
        let is = |(_, part): &(&String, &Value)| part["text"] == value.text && part["token"] == value.token;
        let part = parts.as_object().into_iter().flatten().find(is).map(|(part, _)| part.clone());
        json!({"part": part, "text": value.text, "log_p": log_p})
    };
    let against = contrast.against().map(|value| of(value, read.against));
    std::iter::once(of(&contrast.current, read.current)).chain(against).collect()
}
