//! The access log: one line a request on standard error, when its answer has ended. No text of any request is in it.
//!
//! A request's [`Record`] is filled by the frame around it, the stream of its answer, and the model's thread, which times tokens where
//! they are made and not where a client reads them. The line is written when the last one who serves the request lets go of its
//! [`Line`]; where nobody said how it ended, its client went.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::error::ApiError;
use super::metrics::Metrics;
use palimpsest_run::progress::note;

/// The header of a request's name.
pub const REQUEST_ID: &str = "x-request-id";

/// Most characters of a name that a client gives its request.
const LONGEST_ID: usize = 128;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
    /// Not at all.
    Off,
}

/// What is known of a request so far.
#[derive(Debug)]
pub struct Record {
    pub id: String,
    path: &'static str,
    begun: Instant,
    metrics: Arc<Metrics>,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    model: Option<String>,
    prompt: usize,
    cached: usize,
    generated: usize,
    queue: Option<Duration>,
    first: Option<Duration>,
    status: Option<u16>,
    /// True if the answer goes on after its head.
    streams: bool,
    /// `ok`, `refused:CODE` or `error`; the first one counts.
    outcome: Option<String>,
}

impl Record {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        // Numbers alone: half of an addition is none.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn model(&self, name: &str) {
        self.noted().model = Some(name.to_owned());
    }

    /// It has a prompt, or an input, of so many tokens.
    pub fn prompt(&self, tokens: usize) {
        self.noted().prompt += tokens;
    }

    /// A prompt begins to be read, from so many tokens that were in the cache.
    pub fn begun(&self, cached: usize) {
        let mut noted = self.noted();
        noted.cached += cached;
        if noted.queue.is_none() {
            let waited = self.begun.elapsed();
            noted.queue = Some(waited);
            self.metrics.with(|counts| counts.queue.add(waited));
        }
    }

    /// A token was generated, and so long ago the one before it of the same answer.
    pub fn token(&self, since: Option<Duration>) {
        let mut noted = self.noted();
        noted.generated += 1;
        let first = noted.first.is_none().then(|| *noted.first.insert(self.begun.elapsed()));
        self.metrics.with(|counts| {
            counts.generated += 1;
            first.into_iter().for_each(|first| counts.first_token.add(first));
            since.into_iter().for_each(|since| counts.between.add(since));
        });
    }

    /// Its answer is a stream, which says how it ended.
    pub fn streams(&self) {
        self.noted().streams = true;
    }

    /// Its stream has ended, unless by an error.
    pub fn ended(&self, error: Option<&ApiError>) {
        let outcome = error.map_or_else(|| "ok".to_owned(), |error| outcome_of(error.status, error.code));
        self.noted().outcome.get_or_insert(outcome);
    }

    /// It was replied to.
    pub fn reply(&self, status: StatusCode, code: Option<&str>) {
        let mut noted = self.noted();
        noted.status = Some(status.as_u16());
        if !noted.streams {
            noted.outcome.get_or_insert_with(|| outcome_of(status, code));
        }
    }
}

/// The outcome of a reply with this status, and the code of its error.
fn outcome_of(status: StatusCode, code: Option<&str>) -> String {
    match status.as_u16() {
        ..400 => "ok".to_owned(),
        number @ (400..500 | 503) => {
            format!("refused:{}", code.map_or_else(|| number.to_string(), str::to_owned))
        }
        _ => "error".to_owned(),
    }
}

/// The line that is written at the end of a request.
#[derive(Debug)]
pub struct Line {
    pub record: Arc<Record>,
    format: LogFormat,
    slow: Duration,
}

impl Line {
    /// Of a request that has come; it is marked where it takes `slow` or longer.
    pub fn new(
        format: LogFormat,
        slow: Duration,
        metrics: &Arc<Metrics>,
        headers: &HeaderMap,
        path: &'static str,
    ) -> Self {
        let (id, metrics) = (request_id(headers), Arc::clone(metrics));
        let record = Record { id, path, begun: Instant::now(), metrics, noted: Mutex::default() };
        Line { record: Arc::new(record), format, slow }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Record { id, path, begun, metrics, .. } = &*self.record;
        let took = begun.elapsed();
        let noted = self.record.noted();
        let outcome = noted.outcome.as_deref().unwrap_or("cancelled");
        let slow = took >= self.slow;
        metrics.with(|counts| {
            counts.cancelled += u64::from(noted.outcome.is_none());
            counts.slow += u64::from(slow);
        });
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        let seconds = |time: Duration| (time.as_secs_f64() * 1e4).round() / 1e4;
        let (queue, first) = (noted.queue.map(seconds), noted.first.map(seconds));
        let Noted { model, prompt, cached, generated, status, .. } = &*noted;
        match self.format {
            LogFormat::Off => {}
            LogFormat::Json => note(json!({
                "time": time, "id": id, "path": path, "model": model, "prompt_tokens": prompt, "cached_tokens": cached,
                "generated_tokens": generated, "queue_seconds": queue, "first_token_seconds": first,
                "seconds": seconds(took), "status": status, "outcome": outcome, "slow": slow
            })),
            LogFormat::Text => {
                let mut line = format!("{time} {id} {path} {outcome}");
                if let Some(model) = model {
                    // A folder's name may hold anything.
                    let model = match model.contains(char::is_whitespace) {
                        true => Value::from(&**model).to_string(),
                        false => model.clone(),
                    };
                    let _ =
                        write!(line, " model={model} prompt={prompt} cached={cached} generated={generated}");
                }
                for (name, time) in [("queue", queue), ("first", first), ("seconds", Some(seconds(took)))] {
                    let _ = time.map(|time| write!(line, " {name}={time:.4}"));
                }
                if slow {
                    line.push_str(" slow");
                }
                note(line);
            }
        }
    }
}

/// The name that a client gave its request, where it is one, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let fits = |id: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@".contains(c);
        (1..=LONGEST_ID).contains(&id.len()) && id.chars().all(plain)
    };
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(fits);
    given.map_or_else(|| identifier("req"), str::to_owned)
}

/// An identifier: `chatcmpl-` and 24 hexadecimal digits.
pub fn identifier(kind: &str) -> String {
    let number: u128 = rand::random();
    format!("{kind}-{:024x}", number >> 32)
}
