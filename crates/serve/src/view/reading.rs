//! Asks a run's answer again with changes.
//!
//! Ablations and metrics of [`palimpsest_core::ablate`]: the old answer is scored by teacher forcing before and after the change, and a new
//! one is generated.

use std::ops::Range;

use anyhow::{Context, bail, ensure};
use palimpsest_core::ablate::{EffectRow, History, Metric, Prompt, Said, Target, hide, put, without};
use palimpsest_core::attention::{AttentionStore, LayerHoles, LayerKind};
use palimpsest_core::engine::{
    Backend, Branch, Event, Generate, Measured, ModelText, Observe, Request, RequestError, Reuse, Rows,
    Sampling, Session, StopWatch, Task,
};
use palimpsest_core::span::Span;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::case::{parts, value_json};
use super::fields::Fields;
use palimpsest_data::benchmarks::QUERY;
use palimpsest_run::chat::endpoint::ServerModel;
use palimpsest_run::runs::causes::case::pair;
use palimpsest_run::runs::causes::neutral;
use palimpsest_run::runs::rows::{AnswerRow, ValueLogP};

/// A request about a row of the page: an answer under changes, or a look at it as it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    #[serde(skip_serializing)]
    pub row: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    block: Vec<Block>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    paths: Vec<PathBlock>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    remove: Vec<String>,
    /// Sessions to replace by neutral text of equal length.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replace: Vec<String>,
    #[serde(skip_serializing)]
    pub note: Option<String>,
    #[serde(skip_serializing)]
    pub look: Option<Look>,
}

impl Asked {
    pub fn changes(&self) -> bool {
        let Asked { block, paths, remove, replace, .. } = self;
        !(block.is_empty() && paths.is_empty() && remove.is_empty() && replace.is_empty())
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    pub from: LookFrom,
}

/// Half-open layer windows; all layers if absent.
type Windows = Option<Vec<[usize; 2]>>;

/// Sessions hidden from the question on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    sessions: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layers: Windows,
}

/// Keys hidden from the rows of a span.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathBlock {
    /// Span name; `question`: everything from the question on; `answer`: positions that predict the answer.
    from: String,
    to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layers: Windows,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LookFrom {
    Question,
    /// Positions that predict the answer after its thought.
    Answer,
    /// Positions that predict a half-open range of generated tokens.
    Generated([usize; 2]),
}

/// Progress callback: phase, further and total tokens, and the answer so far. Returns whether to continue.
pub type Told<'a> = &'a mut dyn FnMut(&'static str, usize, usize, Option<&str>) -> bool;

pub enum Engine {
    Local(Box<Session>),
    Server(Box<ServerModel>),
}

pub struct Reading {
    pub store: AttentionStore,
    pub row: AnswerRow,
    pub sampling: Sampling,
    pub stops: Vec<String>,
}

pub type Known<'a> = (&'a ModelText, &'a [LayerKind]);

fn windows(layers: &Windows, count: usize) -> anyhow::Result<Vec<Range<usize>>> {
    let Some(layers) = layers else { return Ok(std::iter::once(0..count).collect()) };
    let window = |&[from, to]: &[usize; 2]| {
        ensure!(
            from < to && to <= count,
            "layers {from}..{to} are none of a model of {count} layers; give from..to with from < to <= {count}"
        );
        Ok(from..to)
    };
    layers.iter().map(window).collect()
}

impl Reading {
    fn query(&self) -> anyhow::Result<&Span> {
        let query = self.store.keys.iter().find(|span| span.is(QUERY));
        query.context("its attention file names no question, before which sessions could be changed")
    }

    /// Tokens of a session before the question.
    fn session(&self, label: &str) -> anyhow::Result<Range<usize>> {
        let question = self.query()?.start;
        match self.store.keys.iter().find(|span| span.label == label && !span.is_empty()) {
            Some(span) if span.end <= question => Ok(span.range()),
            Some(_) => bail!("`{label}` is not before the question"),
            None => bail!("`{label}` is no part of this prompt"),
        }
    }

    /// Changed prompt tokens, the index of the question's first token, and hidden keys.
    fn changed(
        &self,
        (text, kinds): Known<'_>,
        asked: &Asked,
    ) -> anyhow::Result<(Vec<u32>, usize, LayerHoles)> {
        let mut tokens = self.store.tokens.clone();
        let question = self.query()?.start;
        if !asked.replace.is_empty() {
            let neutral = neutral(text)?;
            for label in &asked.replace {
                put(&neutral, &self.session(label)?, &mut tokens);
            }
        }
        let removed: Vec<Range<usize>> =
            asked.remove.iter().map(|label| self.session(label)).collect::<Result<_, _>>()?;
        let is_removed = |at: &usize| removed.iter().any(|range| range.contains(at));
        // New index of a token; of a removed one, that of the next token.
        let moved = |at: usize| (0..at.min(tokens.len())).filter(|before| !is_removed(before)).count();
        let there = |range: Range<usize>| moved(range.start)..moved(range.end);
        let blocked = asked.block.iter().flat_map(|Block { sessions, layers }| {
            sessions.iter().map(move |session| ("question", session, layers))
        });
        let paths = asked.paths.iter().map(|PathBlock { from, to, layers }| (from.as_str(), to, layers));
        let mut holes = LayerHoles::default();
        for (from, to, layers) in blocked.chain(paths) {
            let keys = self.session(to)?;
            let rows = match from {
                "question" => moved(question)..usize::MAX,
                "answer" => moved(self.store.tokens.len()) - 1..usize::MAX,
                label => {
                    let rows = self.session(label)?;
                    let why = "comes before what it is kept from, and sees it in any case";
                    ensure!(rows.start >= keys.end, "`{label}` {why}");
                    there(rows)
                }
            };
            let keys = [there(keys)];
            for window in windows(layers, kinds.len())? {
                holes = holes.joined(&hide(rows.clone(), &keys, Some(&window), kinds));
            }
        }
        Ok((without(&tokens, &removed), moved(question), holes))
    }

    /// Scores the old answer before and after the change and generates a new one.
    pub fn trial(
        &self,
        engine: &mut Engine,
        known: Known<'_>,
        asked: &Asked,
        told: Told<'_>,
    ) -> anyhow::Result<[Value; 2]> {
        ensure!(asked.changes(), "nothing is changed; block, remove or replace something");
        let (question, (tokens, moved, holes)) = (self.query()?.start, self.changed(known, asked)?);
        let before = Prompt { tokens: &self.store.tokens, cut: question, question, kinds: known.1 }.history();
        let after = Prompt { tokens: &tokens, cut: moved, question: moved, kinds: known.1 }.history();
        let mut then = json!({"answer": self.row.answer});
        let mut now = json!({});
        let model: &mut dyn Backend = match engine {
            Engine::Local(session) => {
                let both = [&mut then, &mut now];
                self.old_answer(session, known.0, [&before, &after], &holes, told, both)?;
                session.as_mut()
            }
            Engine::Server(server) => server.as_mut(),
        };
        let (answer, stop, thought) = self.answer(model, known.0, &after, &holes, told)?;
        (now["answer"], now["stop"]) = (json!(answer), stop);
        Ok([then, now.with("thought", thought)])
    }

    fn old_answer(
        &self,
        session: &mut Session,
        text: &ModelText,
        [before, after]: [&History<'_>; 2],
        holes: &LayerHoles,
        told: Told<'_>,
        [then, now]: [&mut Value; 2],
    ) -> anyhow::Result<()> {
        let said = Said { tokens: &self.store.generated, thought: self.store.thought() };
        let answer = (said.thought < said.tokens.len()).then_some(Target::Answer(said));
        let contrast = self.row.contrast.as_ref();
        let values = contrast.map(|contrast| pair(&self.store, contrast, text)).transpose()?;
        let targets = answer.into_iter().chain(values.as_ref().map(Target::Values));
        let of = self.store.tokens.len();
        let mut go_on = |tokens| told("prefill of the prompt", tokens, of, None);
        let read = targets.map(|target| Metric::read(session, before, target, &mut go_on));
        let metrics: Vec<Metric> = read.collect::<Result<_, _>>()?;
        let of = after.tokens.len() + after.rest.len();
        let mut go_on = |tokens| told("prefill with the change", tokens, of, None);
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
                    for (side, read) in [(&mut *then, plain), (&mut *now, changed)] {
                        let both = [&contrast.current].into_iter().chain(contrast.against());
                        let log_p = [read.current, read.against];
                        let named = |(value, log_p): (&ValueLogP, f64)| {
                            let (part, _) = parts(contrast).find(|(_, other)| *other == value)?;
                            Some(value_json(&part, value, log_p))
                        };
                        side["contrast"] = json!(read.contrast());
                        side["values"] = both.zip(log_p).filter_map(named).collect();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Generates an answer with the run's settings: text, stop reason, thought.
    fn answer(
        &self,
        model: &mut dyn Backend,
        text: &ModelText,
        history: &History<'_>,
        holes: &LayerHoles,
        told: Told<'_>,
    ) -> anyhow::Result<(String, Value, Option<String>)> {
        let generate = Generate {
            thinker: text.thinker(),
            watch: StopWatch::new(&text.tokenizer, &self.stops),
            ..Generate::new(self.sampling, text.stop.clone())
        };
        let branch = Branch {
            tokens: history.rest.to_vec(),
            knockouts: holes.clone(),
            tasks: vec![Task::Generate(Box::new(generate))],
            ..Branch::default()
        };
        let request =
            Request { prefix: history.tokens.clone(), reuse: Reuse::Longest, branches: vec![branch] };
        let mut tokens: Vec<u32> = Vec::new();
        let mut output: Result<Measured, RequestError> = Err(RequestError::Gone);
        model.run(request, &mut |_, _, event| {
            let more = usize::from(matches!(event, Event::Token(_)));
            match event {
                Event::Done(measured) => output = Ok(*measured),
                Event::Failed(error) => output = Err(error),
                Event::Token(chosen) => tokens.push(chosen.token),
                _ => {}
            }
            // Undecodable text is shown later.
            let text = text.tokenizer.decode(&tokens, true).ok();
            told("answering", more, self.sampling.max_new_tokens, text.as_deref())
        });
        let (split, stop) = text.split(&output?.generated)?;
        Ok((split.answer.unwrap_or_default(), json!(stop), split.thought))
    }

    /// Attention of the rows to each earlier prompt token, averaged over heads and full-attention softmax layers.
    pub fn look(
        &self,
        session: &mut Session,
        kinds: &[LayerKind],
        from: &LookFrom,
        told: Told<'_>,
    ) -> anyhow::Result<Vec<f64>> {
        let n = self.store.tokens.len();
        let (query, generated) = (self.query()?, self.store.generated.len());
        let of = format!("of a prompt of {n} tokens and an answer of {generated}");
        let rows = match *from {
            LookFrom::Question => query.range(),
            LookFrom::Answer => n - 1 + self.store.thought()..(n + generated).saturating_sub(1),
            LookFrom::Generated([from, to]) if from < to && to <= generated => n - 1 + from..n - 1 + to,
            LookFrom::Generated([from, to]) => bail!("there are no generated tokens {from}..{to} {of}"),
        };
        ensure!(!rows.is_empty(), "there is nothing to look from {of}");
        let whole: Vec<u32> =
            self.store.tokens.iter().chain(&self.store.generated).take(rows.end.max(n)).copied().collect();
        let shared = rows.start.min(query.start);
        let count = rows.end.min(n);
        let observe = Observe {
            rows: Rows { spans: vec![Span::new("look", rows)], ..Rows::default() },
            keys: (0..count).map(|at| Span::new(format!("token {at}"), at..at + 1)).collect(),
            softmax_only: true,
            ..Observe::default()
        };
        let (tokens, tasks) = (whole[shared..].to_vec(), vec![Task::Read]);
        let branch = Branch { tokens, observe, tasks, ..Branch::default() };
        let request =
            Request { prefix: whole[..shared].into(), reuse: Reuse::Prefix, branches: vec![branch] };
        let measured = session.answer(request, &mut |event| {
            let read = if let Event::Prefilled(tokens) = event { *tokens } else { 0 };
            told("prefill", read, whole.len(), None)
        })?;
        let mass = &measured.masses.mass; // (layers, heads, 1, keys)
        let sees_all =
            |layer: usize| matches!(kinds.get(layer), Some(LayerKind::Softmax { window: None, .. }));
        let layers = &measured.masses.layers;
        let mut chosen: Vec<usize> = (0..layers.len()).filter(|at| sees_all(layers[*at])).collect();
        if chosen.is_empty() {
            chosen = (0..layers.len()).collect();
        }
        let heads = mass.dim().1;
        let mean = |key: usize| {
            let all = chosen.iter().flat_map(|&layer| (0..heads).map(move |head| (layer, head)));
            let sum: f64 = all.map(|(layer, head)| f64::from(mass[[layer, head, 0, key]])).sum();
            sum / (chosen.len() * heads).max(1) as f64
        };
        Ok((0..count).map(mean).collect())
    }
}
