//! Queue of trials on the loaded model, with progress and cancellation.
//!
//! One thread runs the model. Trials are appended to the run's `trials.jsonl`; lookups of single tokens are not stored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use axum::http::StatusCode;
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::{Backend, EngineError, LocalModel, ModelText, RequestError, Sampling};
use palimpsest_core::text::ThinkingMode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attention::Attention;
use super::case::Case;
use super::fields::Fields;
use super::folder::Folder;
use super::reading::{Asked, Engine, Look, Reading};
use super::replies::{not_found, wrong};
use super::sessions::Session;
use super::state::Runs;
use crate::api::error::ApiError;
use palimpsest_data::ground::jsonl::RowLog;
use palimpsest_run::chat::endpoint::{Endpoint, Keys, Patience, ServerModel};
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::TRIALS;

/// Finished trials kept in memory for the page.
const KEPT: usize = 200;
const WAITING: usize = 32;
const LOOK: Duration = Duration::from_millis(100);
const NEW_TOKENS: usize = 512;

struct Job {
    trial: Arc<Trial>,
    dir: PathBuf,
    same: bool,
    sessions: Vec<Session>,
    asked: Asked,
    reading: Reading,
}

/// State of a job, for the page.
#[derive(Default)]
struct Trial {
    cancel: AtomicBool,
    status: Mutex<Status>,
}

#[derive(Default, Serialize)]
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
}

impl Trial {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| wrong(format!("the request cannot be read: {error}")))
}

pub struct Asker {
    jobs: Sender<Job>,
    trials: Mutex<BTreeMap<String, Arc<Trial>>>,
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
        let model = Arc::new(model);
        let worker = Worker { engine, model: Arc::clone(&model), waiting };
        (Asker { jobs, trials: Mutex::default(), model, count: AtomicU64::new(0) }, worker)
    }

    fn trials(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Trial>>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, id: &str) -> Result<Arc<Trial>, ApiError> {
        let shown: String = id.chars().take(60).collect();
        self.trials().get(id).cloned().ok_or_else(|| not_found(format!("there is no trial {shown:?}")))
    }

    /// Model of a palimpsest server, `http://host/v1#MODEL`. It generates answers; scoring given answers and single-token masses are
    /// unsupported.
    pub fn of_server(address: &str, keys: &Keys) -> anyhow::Result<(Self, Worker)> {
        let endpoint = Endpoint::from_address(address, keys, Patience::default())?;
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

    /// The model as the page knows it; `tokens`: it tells attention to single tokens.
    pub fn card(&self) -> Value {
        let AtHand { text, address, .. } = &*self.model;
        json!({"name": text.name, "tokens": address.is_none(), "ready": true})
    }

    /// Queues a trial; returns its id.
    pub fn ask(&self, runs: &Runs, body: &[u8]) -> Result<Value, ApiError> {
        let asked: Asked = parsed(body)?;
        if asked.look.is_some() && asked.changes() {
            return Err(wrong("`look` looks at the answer as it is; leave what changes it out"));
        }
        let is_open = |trial: &&Arc<Trial>| ["waiting", "running"].contains(&trial.status().state);
        let waiting = self.trials().values().filter(is_open).count();
        if waiting >= WAITING {
            let message = format!("{waiting} trials wait already; cancel some or wait");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message));
        }
        let row = asked.row;
        let (_, folder, at) = runs.located(row).ok_or_else(|| wrong(format!("there is no row {row}")))?;
        let job = self.job((folder, at), asked).map_err(wrong)?;
        let id = job.trial.status().id.clone();
        let mut trials = self.trials();
        while trials.len() >= KEPT {
            trials.pop_first();
        }
        trials.insert(id.clone(), Arc::clone(&job.trial));
        self.jobs.send(job).map_err(|_| ApiError::internal("the model's thread has ended"))?;
        Ok(json!({"id": id}))
    }

    fn job(&self, (folder, at): (&Folder, usize), asked: Asked) -> anyhow::Result<Job> {
        let answer = folder.answer(at).filter(|answer| answer.error.is_none());
        let answer = answer.context("this question has no answer yet")?;
        ensure!(
            folder.named(at).2.is_open(),
            "its condition blocks a path or evicts keys already; ask the same question of the condition without it"
        );
        let Attention { store, .. } = folder.attention(at)?.context(
            "no attention was recorded for this answer, and with it not which tokens its sessions are",
        )?;
        let identity = &folder.run.header.identity;
        let same = identity.model.digest == self.model.digest;
        ensure!(
            same || self.cuts_alike(&store, answer),
            "{} cuts texts into other tokens than the run's model {}; give the run's own model with --model",
            self.model.text.name,
            store.model
        );
        let greedy = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: NEW_TOKENS };
        let mut sampling = identity.sampling.unwrap_or(greedy);
        let room = self.model.text.context.saturating_sub(store.tokens.len());
        ensure!(
            room > 0,
            "its prompt of {} tokens does not fit the model's context of {}; start the page with a longer --context",
            store.tokens.len(),
            self.model.text.context
        );
        sampling.max_new_tokens = sampling.max_new_tokens.min(room);
        let (row, stops) = (answer.clone(), identity.stop.clone());
        let reading = Reading { store, row, sampling, stops };
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{count}", jiff::Timestamp::now().as_millisecond());
        let status = Status { id, state: "waiting", what: "waiting", ..Status::default() };
        let trial = Arc::new(Trial { status: Mutex::new(status), ..Trial::default() });
        let (dir, sessions) = (folder.dir().to_owned(), Case::open(folder, at).sessions);
        Ok(Job { trial, dir, same, sessions, asked, reading })
    }

    /// Stored tokens are valid for another model only if both tokenise alike.
    fn cuts_alike(&self, store: &AttentionStore, answer: &AnswerRow) -> bool {
        let known = store.tokens.iter().all(|token| (*token as usize) < self.model.vocabulary);
        let text = self.model.text.tokenizer.decode(&store.tokens, true).unwrap_or_default();
        known && text.contains(answer.query.trim())
    }

    pub fn status(&self, id: &str) -> Result<Value, ApiError> {
        Ok(json!(*self.named(id)?.status()))
    }

    pub fn cancel(&self, body: &[u8]) -> Result<Value, ApiError> {
        #[derive(Deserialize)]
        struct Cancel {
            id: String,
        }
        let Cancel { id } = parsed(body)?;
        let trial = self.named(&id)?;
        trial.cancel.store(true, Ordering::Relaxed);
        let mut status = trial.status();
        if status.state == "waiting" {
            status.state = "cancelled";
        }
        Ok(json!({"id": id, "state": status.state}))
    }

    pub fn end(&self) {
        self.trials().values().for_each(|trial| trial.cancel.store(true, Ordering::Relaxed));
    }

    /// Texts of an answer's tokens, each of which can be looked from.
    pub fn tokens(&self, store: &AttentionStore) -> Value {
        let tokens = store.generated.iter().map(|token| json!({"text": self.model.token(*token)}));
        json!({"generated": {"tokens": tokens.collect::<Vec<_>>()}})
    }
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(RequestError::Engine(EngineError::Interrupted)))
}

pub struct Worker {
    engine: Engine,
    model: Arc<AtHand>,
    waiting: Receiver<Job>,
}

impl Worker {
    pub fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let job = match self.waiting.recv_timeout(LOOK) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if job.trial.is_cancelled() {
                job.trial.status().state = "cancelled";
                continue;
            }
            job.trial.status().state = "running";
            let came = self.answered(&job);
            let mut status = job.trial.status();
            match came {
                Ok(trial) => (status.state, status.what, status.trial) = ("done", "done", Some(trial)),
                Err(error) if is_cancelled(&error) => status.state = "cancelled",
                Err(error) => (status.state, status.error) = ("failed", Some(error.to_string())),
            }
        }
    }

    fn answered(&mut self, job: &Job) -> anyhow::Result<Value> {
        let begun = Instant::now();
        let (Job { asked, reading, .. }, model) = (job, Arc::clone(&self.model));
        let mut told = |what: &'static str, more: usize, of: usize, text: Option<&str>| {
            let mut status = job.trial.status();
            let before = if status.what == what { status.done } else { 0 };
            (status.what, status.done, status.of) = (what, before + more, of);
            text.into_iter().for_each(|text| text.clone_into(&mut status.text));
            !job.trial.is_cancelled()
        };
        if let Some(Look { from }) = &asked.look {
            let Engine::Local(session) = &mut self.engine else {
                bail!("a server tells no attention to single tokens; give the model itself with --model");
            };
            let masses = reading.look(session, &model.kinds, from, &mut told)?;
            return Ok(self.look_json(job, &masses));
        }
        let known = (&model.text, model.kinds.as_slice());
        let [before, after] = reading.trial(&mut self.engine, known, asked, &mut told)?;
        let of_model = json!({"name": model.text.name, "digest": model.digest, "same": job.same});
        let AnswerRow { case, probe, condition, .. } = &reading.row;
        let trial = json!({
            "id": job.trial.status().id, "case": case, "probe": probe, "condition": condition,
            "time": jiff::Timestamp::now().to_string(), "version": env!("CARGO_PKG_VERSION"),
            "model": of_model.with("address", model.address.as_ref()),
            "asked": asked, "before": before, "after": after,
            "seconds": (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        });
        let note = asked.note.as_ref().map(|note| note.trim()).filter(|note| !note.is_empty());
        let mut trial = trial.with("note", note);
        let kept = RowLog::<Value>::open(&job.dir, TRIALS).and_then(|mut log| log.append(trial.clone()));
        kept.map_err(|error| anyhow!("the trial cannot be kept: {error}"))?;
        trial["row"] = json!(asked.row);
        Ok(trial)
    }

    /// Attention mass of each token, with the number of its session.
    fn look_json(&self, job: &Job, masses: &[f64]) -> Value {
        let session = |at: usize| {
            let holds = |[start, end]: [usize; 2]| (start..end).contains(&at);
            job.sessions.iter().position(|session| session.tokens.is_some_and(holds))
        };
        let tokens = masses.iter().zip(&job.reading.store.tokens).enumerate().map(|(at, (mass, token))| {
            json!({"at": at, "text": self.model.token(*token), "mass": *mass as f32})
                .with("session", session(at))
        });
        json!({"look": {"tokens": tokens.collect::<Vec<_>>()}})
    }
}
