//! Queue of trials on the loaded model, with progress and cancellation.
//!
//! One thread runs the model. Trials are appended to the run's `trials.jsonl`; lookups of single tokens are not stored.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::http::StatusCode;
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::{Backend, LocalModel, ModelText, Sampling};
use palimpsest_core::text::ThinkingMode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::case::{Attention, Case};
use super::fields::Fields;
use super::folder::Folder;
use super::reading::{Asked, Block, Engine, LookFrom, PathBlock, Reading, TrialError};
use super::state::Runs;
use crate::api::error::ApiError;
use palimpsest_data::ground::jsonl::RowLog;
use palimpsest_run::chat::endpoint::{Endpoint, Patience, ServerModel};
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::TRIALS;

/// Finished trials kept in memory for the page.
const KEPT: usize = 200;
const WAITING: usize = 32;
const LOOK: Duration = Duration::from_millis(100);
const NEW_TOKENS: usize = 512;
/// The run was replanned without the row.
const GONE: &str = "this row is no longer in its run's plan";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Posted {
    row: usize,
    #[serde(default)]
    block: Vec<Block>,
    #[serde(default)]
    paths: Vec<PathBlock>,
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    replace: Vec<String>,
    note: Option<String>,
    look: Option<Look>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Look {
    from: LookFrom,
}

enum Wanted {
    Trial(Asked, Option<String>),
    Look(LookFrom),
}

struct Job {
    id: String,
    row: usize,
    dir: PathBuf,
    same: bool,
    /// Session numbers of the case, and their tokens.
    sessions: Vec<(usize, Range<usize>)>,
    wanted: Wanted,
    reading: Reading,
}

#[derive(Debug, Default, Serialize)]
struct Status {
    id: String,
    state: &'static str,
    what: &'static str,
    done: usize,
    of: usize,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<Value>,
    #[serde(skip)]
    cancel: Arc<AtomicBool>,
}

type Statuses = Arc<Mutex<BTreeMap<String, Status>>>;

fn held(statuses: &Statuses) -> MutexGuard<'_, BTreeMap<String, Status>> {
    statuses.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wrong(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, None, message.into())
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| wrong(format!("the request cannot be read: {error}")))
}

pub struct Asker {
    jobs: Sender<Job>,
    statuses: Statuses,
    model: Arc<AtHand>,
    count: AtomicU64,
}

struct AtHand {
    text: ModelText,
    kinds: Vec<LayerKind>,
    vocabulary: usize,
    digest: String,
    address: Option<String>,
}

impl AtHand {
    fn token(&self, token: u32) -> String {
        self.text.tokenizer.decode(&[token], false).unwrap_or_default()
    }
}

impl Asker {
    /// Returns the worker, whose thread must belong to the compute pool (as a process's first thread does), or be one that the pool never
    /// waits for.
    pub fn new(model: LocalModel, digest: String) -> (Self, Worker) {
        let max_thinking = model.max_thinking();
        let kinds = model.engine().decoder().spec().layer_kinds();
        let vocabulary = model.engine().decoder().spec().vocab;
        let (session, text) = model.into_parts(max_thinking);
        let model = AtHand { text, kinds, vocabulary, digest, address: None };
        Self::of(model, Engine::Local(Box::new(session)))
    }

    fn of(model: AtHand, engine: Engine) -> (Self, Worker) {
        let (jobs, waiting) = channel();
        let (model, statuses) = (Arc::new(model), Statuses::default());
        let worker = Worker { engine, model: Arc::clone(&model), statuses: Arc::clone(&statuses), waiting };
        (Asker { jobs, statuses, model, count: AtomicU64::new(0) }, worker)
    }

    /// Model of a palimpsest server, `http://host/v1#MODEL`. It generates answers; scoring given answers and single-token masses are
    /// unsupported.
    pub fn of_server(address: &str) -> anyhow::Result<(Self, Worker)> {
        let endpoint = Endpoint::from_address(address, Patience::default())?;
        let card = endpoint.server_card()?;
        let card = card.with_context(|| {
            format!("{address} is no palimpsest server, or serves no such model; give http://host/v1#MODEL")
        })?;
        let template = card.template(endpoint.model())?;
        let (template, thoughts) = template.with_thinking(ThinkingMode::Off, None)?;
        let name = endpoint.model().to_owned();
        let digest = sha256(format!("{address}\n{name}"));
        let text = ModelText {
            name,
            tokenizer: Arc::new(endpoint.tokenizer()?),
            template,
            thoughts,
            max_thinking: 0,
            stop: Vec::new(),
            context: card.context,
        };
        let server = ServerModel::new(endpoint, card, 1);
        let kinds = server.layer_kinds();
        let address = Some(address.to_owned());
        let model = AtHand { text, kinds, vocabulary: usize::MAX, digest, address };
        Ok(Self::of(model, Engine::Server(Box::new(server))))
    }

    pub fn card(&self) -> Value {
        let AtHand { text, digest, address, .. } = &*self.model;
        match address {
            None => {
                json!({"kind": "local", "name": text.name, "digest": digest, "tokens": true, "ready": true})
            }
            Some(address) => {
                json!({"kind": "server", "name": text.name, "address": address, "tokens": false, "ready": true})
            }
        }
    }

    /// Queues a trial; returns its id.
    pub fn ask(&self, runs: &Runs, body: &[u8]) -> Result<Value, ApiError> {
        let Posted { row, block, paths, remove, replace, note, look } = parsed(body)?;
        let asked = Asked { block, paths, remove, replace };
        let wanted = match look {
            Some(Look { from }) if asked == Asked::default() => Wanted::Look(from),
            Some(_) => {
                return Err(wrong("`look` looks at the answer as it is; leave what changes it out"));
            }
            None => Wanted::Trial(asked, note),
        };
        let is_open = |status: &&Status| ["waiting", "running"].contains(&status.state);
        let waiting = held(&self.statuses).values().filter(is_open).count();
        if waiting >= WAITING {
            let message = format!("{waiting} trials wait already; cancel some or wait");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message));
        }
        let (_, folder, at) = runs.located(row).ok_or_else(|| wrong(format!("there is no row {row}")))?;
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{count}", jiff::Timestamp::now().as_millisecond());
        let job = self.job(id.clone(), (row, folder, at), wanted).map_err(wrong)?;
        let cancel = Arc::clone(&job.reading.cancel);
        let status =
            Status { id: id.clone(), state: "waiting", what: "waiting", cancel, ..Status::default() };
        let mut statuses = held(&self.statuses);
        while statuses.len() >= KEPT {
            statuses.pop_first();
        }
        statuses.insert(id.clone(), status);
        drop(statuses);
        self.jobs.send(job).map_err(|_| ApiError::internal("the model's thread has ended"))?;
        Ok(json!({"id": id}))
    }

    fn job(
        &self,
        id: String,
        (row, folder, at): (usize, &Folder, usize),
        wanted: Wanted,
    ) -> Result<Job, String> {
        let answer = folder.answer(at).filter(|answer| answer.error.is_none());
        let answer = answer.ok_or("this question has no answer yet")?;
        let (_, _, condition) = folder.named(at).ok_or(GONE)?;
        if condition.knockout.is_some() {
            let why =
                "its condition blocks a path already; ask the same question of the condition without it";
            return Err(why.to_owned());
        }
        let Attention { store, .. } = Attention::of(folder, at)?.ok_or(
            "no attention was recorded for this answer, and with it not which tokens its sessions are",
        )?;
        let identity = &folder.thin.header.identity;
        let same = identity.model.digest == self.model.digest;
        if !same {
            self.check_tokens(&store, &answer)?;
        }
        let greedy = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: NEW_TOKENS };
        let mut sampling = identity.sampling.unwrap_or(greedy);
        let room = self.model.text.context.saturating_sub(store.tokens.len());
        if room == 0 {
            return Err(format!(
                "its prompt of {} tokens does not fit the model's context of {}; start the page with a longer --context",
                store.tokens.len(),
                self.model.text.context
            ));
        }
        sampling.max_new_tokens = sampling.max_new_tokens.min(room);
        let case = Case::open(folder, at).ok_or(GONE)?;
        let sessions = case.sessions.iter().enumerate();
        let sessions =
            sessions.filter_map(|(nth, session)| session.tokens.map(|[start, end]| (nth, start..end)));
        let (sessions, stops) = (sessions.collect(), identity.stop.clone());
        let reading = Reading { store, row: answer, sampling, stops, cancel: Arc::default() };
        Ok(Job { id, row, dir: folder.dir().to_owned(), same, sessions, wanted, reading })
    }

    /// Stored tokens are valid for another model only if both tokenise alike.
    fn check_tokens(&self, store: &AttentionStore, answer: &AnswerRow) -> Result<(), String> {
        let known = store.tokens.iter().all(|token| (*token as usize) < self.model.vocabulary);
        let text = self.model.text.tokenizer.decode(&store.tokens, true).unwrap_or_default();
        match known && text.contains(answer.query.trim()) {
            true => Ok(()),
            false => Err(format!(
                "{} cuts texts into other tokens than the run's model {}; give the run's own model with --model",
                self.model.text.name, store.model
            )),
        }
    }

    pub fn status(&self, id: &str) -> Result<Value, ApiError> {
        Ok(json!(held(&self.statuses).get(id).ok_or_else(|| unknown(id))?))
    }

    pub fn cancel(&self, body: &[u8]) -> Result<Value, ApiError> {
        #[derive(Deserialize)]
        struct Cancel {
            id: String,
        }
        let Cancel { id } = parsed(body)?;
        let mut statuses = held(&self.statuses);
        let status = statuses.get_mut(&id).ok_or_else(|| unknown(&id))?;
        status.cancel.store(true, Ordering::Relaxed);
        if status.state == "waiting" {
            status.state = "cancelled";
        }
        Ok(json!({"id": id, "state": status.state}))
    }

    pub fn end(&self) {
        held(&self.statuses).values().for_each(|status| status.cancel.store(true, Ordering::Relaxed));
    }

    /// Token texts of an answer, for single-token lookups: of the prompt (with session numbers) and of the answer.
    pub fn tokens(&self, case: &Case<'_>) -> Option<Value> {
        self.model.address.is_none().then_some(())?;
        let store = &case.attention.as_ref()?.store;
        let session = |at: usize| {
            let inside = |[start, end]: [usize; 2]| (start..end).contains(&at);
            case.sessions.iter().position(|session| session.tokens.is_some_and(inside))
        };
        let text = |token: &u32| self.model.token(*token);
        let prompt = store.tokens.iter().map(text).enumerate();
        let prompt = prompt.map(|(at, text)| json!({"at": at, "text": text}).with("session", session(at)));
        let generated = store.generated.iter().map(|token| json!({"text": text(token)}));
        Some(json!({
            "level": "token",
            "about": format!("cut by {}; what single tokens attend to is read anew", self.model.text.name),
            "prompt": prompt.collect::<Vec<_>>(),
            "generated": {"tokens": generated.collect::<Vec<_>>(), "thought": store.thought()},
        }))
    }
}

fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(60).collect();
    ApiError::new(StatusCode::NOT_FOUND, Some("not_found"), format!("there is no trial {shown:?}"))
}

pub struct Worker {
    engine: Engine,
    model: Arc<AtHand>,
    statuses: Statuses,
    waiting: Receiver<Job>,
}

type Change<'a> = dyn Fn(&mut dyn FnMut(&mut Status)) + 'a;

impl Worker {
    pub fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let job = match self.waiting.recv_timeout(LOOK) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let statuses = Arc::clone(&self.statuses);
            let change = |change: &mut dyn FnMut(&mut Status)| {
                held(&statuses).get_mut(&job.id).into_iter().for_each(change);
            };
            if job.reading.cancel.load(Ordering::Relaxed) {
                change(&mut |status| status.state = "cancelled");
                continue;
            }
            change(&mut |status| status.state = "running");
            let mut came = Some(self.answered(&job, &change));
            change(&mut |status| match came.take() {
                Some(Ok(trial)) => (status.state, status.what, status.trial) = ("done", "done", Some(trial)),
                Some(Err(error)) if error.is_cancelled() => status.state = "cancelled",
                Some(Err(error)) => (status.state, status.error) = ("failed", Some(error.to_string())),
                None => {}
            });
        }
    }

    fn answered(&mut self, job: &Job, change: &Change<'_>) -> Result<Value, TrialError> {
        let begun = Instant::now();
        let (reading, model) = (&job.reading, Arc::clone(&self.model));
        let mut told = |what: &'static str, done: usize, of: usize| {
            change(&mut |status| (status.what, status.done, status.of) = (what, done, of));
        };
        let (asked, note) = match &job.wanted {
            Wanted::Trial(asked, note) => (asked, note),
            Wanted::Look(from) => {
                let Engine::Local(session) = &mut self.engine else {
                    let why =
                        "a server tells no attention to single tokens; give the model itself with --model";
                    return Err(TrialError::Asked(why.to_owned()));
                };
                let masses = reading.look(session, &model.kinds, from, &mut told)?;
                return Ok(self.look_json(job, from, &masses));
            }
        };
        let mut heard = |text: &str| change(&mut |status| text.clone_into(&mut status.text));
        let known = (&model.text, model.kinds.as_slice());
        let [before, after] = reading.trial(&mut self.engine, known, asked, &mut told, &mut heard)?;
        let of_model = json!({"name": model.text.name, "digest": model.digest, "same": job.same});
        let AnswerRow { case, probe, condition, .. } = &reading.row;
        let trial = json!({
            "id": job.id, "case": case, "probe": probe, "condition": condition,
            "time": jiff::Timestamp::now().to_string(), "version": env!("CARGO_PKG_VERSION"),
            "model": of_model.with("address", model.address.as_ref()),
            "asked": asked, "before": before, "after": after,
            "seconds": (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        });
        let note = note.as_ref().map(|note| note.trim()).filter(|note| !note.is_empty());
        let mut trial = trial.with("note", note);
        let kept = RowLog::<Value>::open(job.dir.join(TRIALS)).and_then(|mut log| log.append(trial.clone()));
        kept.map_err(|error| TrialError::Asked(format!("the trial cannot be kept: {error}")))?;
        trial["row"] = json!(job.row);
        Ok(trial)
    }

    fn look_json(&self, job: &Job, from: &LookFrom, masses: &[f64]) -> Value {
        let session =
            |at: usize| job.sessions.iter().find(|(_, range)| range.contains(&at)).map(|(nth, _)| *nth);
        let tokens = masses.iter().zip(&job.reading.store.tokens).enumerate().map(|(at, (mass, token))| {
            json!({"at": at, "text": self.model.token(*token), "mass": *mass as f32})
                .with("session", session(at))
        });
        json!({
            "row": job.row,
            "look": {
                "from": from, "tokens": tokens.collect::<Vec<_>>(), "model": self.model.text.name, "same": job.same,
                "about": "attention mass of each token, mean over heads and softmax layers that see the whole prompt",
            },
        })
    }
}
