//! Access log: one line per request on stderr, written after the response ends. Contains no request text. If stderr is not read, lines are
//! dropped, and the server goes on.
//!
//! The middleware, the response stream and the engine thread (which times tokens at generation) fill a [`Record`]. The line is written when
//! the last holder drops its [`Line`]; a request without an outcome was abandoned by its client.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::error::ApiError;
use super::keys::Key;
use super::metrics::Metrics;
use palimpsest_run::progress::note_later;

pub const REQUEST_ID: &str = "x-request-id";

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

#[derive(Debug)]
pub struct Record {
    pub id: String,
    path: &'static str,
    /// The client's key, if the server has keys.
    pub key: Option<Arc<Key>>,
    peer: Option<String>,
    begun: Instant,
    metrics: Arc<Metrics>,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
pub struct Noted {
    pub model: Option<String>,
    pub prompt: usize,
    cached: usize,
    generated: usize,
    queue: Option<Duration>,
    first: Option<Duration>,
    status: Option<u16>,
    pub streams: bool,
    /// `ok`, `refused:CODE` or `error`; the first outcome counts.
    outcome: Option<String>,
}

impl Record {
    pub fn noted(&self) -> MutexGuard<'_, Noted> {
        // Plain numbers stay valid after a panic.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prefill starts; `cached` tokens are reused.
    pub fn begun(&self, cached: usize) {
        let mut noted = self.noted();
        noted.cached += cached;
        if noted.queue.is_none() {
            let waited = self.begun.elapsed();
            noted.queue = Some(waited);
            self.metrics.with(|counts| counts.queue.add(waited));
        }
    }

    /// A token was generated, `since` after the previous one of the same answer.
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

    pub fn ended(&self, error: Option<&ApiError>) {
        let outcome = error.map_or_else(|| "ok".to_owned(), |error| outcome_of(error.status, error.code));
        self.noted().outcome.get_or_insert(outcome);
    }

    pub fn reply(&self, status: StatusCode, code: Option<&str>) {
        let mut noted = self.noted();
        noted.status = Some(status.as_u16());
        if !noted.streams {
            noted.outcome.get_or_insert_with(|| outcome_of(status, code));
        }
    }
}

fn outcome_of(status: StatusCode, code: Option<&str>) -> String {
    match status.as_u16() {
        ..400 => "ok".to_owned(),
        number @ (400..500 | 503) => {
            format!("refused:{}", code.map_or_else(|| number.to_string(), str::to_owned))
        }
        _ => "error".to_owned(),
    }
}

/// Writes the log line on drop.
#[derive(Debug)]
pub struct Line {
    pub record: Arc<Record>,
    format: LogFormat,
    slow: Duration,
    /// Reserved by the request's key, if its places are limited.
    _place: Option<OwnedSemaphorePermit>,
}

/// Who sent a request, and the place that its key has for it.
#[derive(Debug, Default)]
pub struct Client {
    pub key: Option<Arc<Key>>,
    pub peer: Option<String>,
    pub place: Option<OwnedSemaphorePermit>,
}

impl Line {
    /// Requests of at least `slow` are marked.
    pub fn new(
        format: LogFormat,
        slow: Duration,
        metrics: &Arc<Metrics>,
        client: Client,
        headers: &HeaderMap,
        path: &'static str,
    ) -> Self {
        let Client { key, peer, place } = client;
        let (id, metrics) = (request_id(headers), Arc::clone(metrics));
        let record = Record { id, path, key, peer, begun: Instant::now(), metrics, noted: Mutex::default() };
        Line { record: Arc::new(record), format, slow, _place: place }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Record { id, path, key, peer, begun, metrics, .. } = &*self.record;
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
        let key = key.as_ref().map(|key| key.name.as_str());
        let Noted { model, prompt, cached, generated, status, .. } = &*noted;
        match self.format {
            LogFormat::Off => {}
            LogFormat::Json => note_later(json!({
                "time": time, "id": id, "path": path, "key": key, "peer": peer, "model": model, "prompt_tokens": prompt, "cached_tokens": cached,
                "generated_tokens": generated, "queue_seconds": queue, "first_token_seconds": first,
                "seconds": seconds(took), "status": status, "outcome": outcome, "slow": slow
            })),
            LogFormat::Text => {
                let mut line = format!("{time} {id} {path} {outcome}");
                if let Some(model) = model {
                    let model = one_word(model);
                    let _ =
                        write!(line, " model={model} prompt={prompt} cached={cached} generated={generated}");
                }
                let peer = peer.as_deref().map_or_else(|| "-".to_owned(), one_word);
                let _ = write!(line, " key={} peer={peer}", key.unwrap_or("-"));
                for (name, time) in [("queue", queue), ("first", first), ("seconds", Some(seconds(took)))] {
                    let _ = time.map(|time| write!(line, " {name}={time:.4}"));
                }
                if slow {
                    line.push_str(" slow");
                }
                note_later(line);
            }
        }
    }
}

/// In quotes and escaped unless it can be mistaken for nothing else.
fn one_word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || (c.is_ascii_punctuation() && !"\"\\=".contains(c));
    if text.chars().all(plain) { text.to_owned() } else { format!("{text:?}") }
}

/// The client's request id if valid, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let fits = |id: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@".contains(c);
        (1..=LONGEST_ID).contains(&id.len()) && id.chars().all(plain)
    };
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(fits);
    given.map_or_else(|| identifier("req"), str::to_owned)
}

/// `KIND-` and 24 hexadecimal digits.
pub fn identifier(kind: &str) -> String {
    let number: u128 = rand::random();
    format!("{kind}-{:024x}", number >> 32)
}

#[cfg(test)]
mod tests {
    use super::one_word;

    #[test]
    fn a_word_of_a_line_is_quoted_if_it_could_be_more_than_one() {
        for plain in ["qwen3-8b", "Qwen3.5_9B:Q4_K_M.gguf", "[::1]:52114", "modèle"] {
            assert_eq!(one_word(plain), plain);
        }
        for (text, quoted) in [
            ("a b", "\"a b\""),
            ("a\nb", "\"a\\nb\""),
            ("a\u{1b}[31m", "\"a\\u{1b}[31m\""),
            ("a\u{202e}b", "\"a\\u{202e}b\""),
            ("key=admin", "\"key=admin\""),
            ("a\"b", "\"a\\\"b\""),
        ] {
            assert_eq!(one_word(text), quoted);
        }
    }
}
