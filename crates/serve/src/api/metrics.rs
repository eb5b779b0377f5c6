//! Prometheus metrics in text format. Contain no request text.
//!
//! Written by hand: most series are read from engine and memory plan at scrape time, so a registry crate would hold few of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use palimpsest_core::engine::thread::Load;

const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// Resident set size, if the system reports it.
    pub resident: Option<u64>,
    pub planned: u64,
    /// Accounted bytes: weights, KV caches, requests.
    pub kept: u64,
    pub requests: u64,
    pub room: u64,
}

#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Debug, Default)]
pub struct Counts {
    pub requests: BTreeMap<(&'static str, u16), u64>,
    pub by_key: BTreeMap<String, u64>,
    pub cancelled: u64,
    pub slow: u64,
    pub generated: u64,
    pub embeddings: u64,
    pub embedded: u64,
    /// Seconds from arrival to prefill, first token and end of the answer.
    pub queue: Histogram,
    pub first_token: Histogram,
    pub whole: Histogram,
    /// Seconds between tokens of an answer.
    pub between: Histogram,
}

#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [u64; BOUNDS.len()],
    sum: f64,
    count: u64,
}

impl Histogram {
    pub fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.sum += seconds;
        self.count += 1;
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        let name = begin(text, "histogram", name, help);
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {bucket}");
        }
        let Histogram { sum, count, .. } = self;
        let _ =
            writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}");
    }
}

impl Metrics {
    pub fn with<T>(&self, what: impl FnOnce(&mut Counts) -> T) -> T {
        // Plain numbers stay valid after a panic.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn text(&self, model: &str, under_way: usize, load: &Load, memory: &Resident) -> String {
        let mut text = String::new();
        let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let help = "The version that runs, and the model that it serves.";
        let name = begin(&mut text, "gauge", "build_info", help);
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(text, "{name}{{version=\"{version}\",model=\"{model}\"}} 1");
        self.with(|counts| {
            let name = begin(&mut text, "counter", "requests_total", "Requests answered.");
            for ((path, status), count) in &counts.requests {
                let _ = writeln!(text, "{name}{{path=\"{path}\",status=\"{status}\"}} {count}");
            }
            if !counts.by_key.is_empty() {
                let help = "Requests answered, by the name of their key.";
                let name = begin(&mut text, "counter", "requests_by_key_total", help);
                for (key, count) in &counts.by_key {
                    let _ = writeln!(text, "{name}{{key=\"{key}\"}} {count}");
                }
            }
            for (kind, name, value, help) in series(counts, under_way as u64, load, memory) {
                let name = begin(&mut text, kind, name, help);
                let _ = writeln!(text, "{name} {value}");
            }
            for (histogram, name, help) in [
                (&counts.queue, "queue_seconds", "From the request to the reading of its prompt."),
                (
                    &counts.between,
                    "time_between_tokens_seconds",
                    "From a token to the next one of the same answer.",
                ),
                (
                    &counts.first_token,
                    "time_to_first_token_seconds",
                    "From the request to its first token, waiting included.",
                ),
                (
                    &counts.whole,
                    "completion_seconds",
                    "From the request to the end of its answer, waiting included.",
                ),
            ] {
                histogram.write(&mut text, name, help);
            }
        });
        text
    }
}

/// Kind, name, value, help text.
type Series = (&'static str, &'static str, u64, &'static str);

#[rustfmt::skip] // One series per line.
fn series(counts: &Counts, under_way: u64, load: &Load, memory: &Resident) -> Vec<Series> {
    let n = |number: usize| number as u64;
    let mut all = vec![
        ("counter", "requests_cancelled_total", counts.cancelled, "Requests whose client went before their end."),
        ("counter", "requests_slow_total", counts.slow, "Requests that took longer than the threshold of slow ones."),
        ("counter", "prompt_tokens_total", load.found + load.read, "Tokens of prompts that were found in the cache or read."),
        ("counter", "generated_tokens_total", counts.generated, "Tokens generated."),
        ("counter", "embeddings_total", counts.embeddings, "Texts that were embedded."),
        ("counter", "embedding_tokens_total", counts.embedded, "Tokens of these texts."),
        ("gauge", "requests_under_way", under_way, "Completions that are being served or wait."),
        ("gauge", "sequences_running", n(load.running), "Answers that are being generated, or whose prompt is read."),
        ("gauge", "sequences_waiting", n(load.waiting), "Answers that wait."),
        ("gauge", "cache_tokens", n(load.cached), "Tokens of prompts that are kept."),
        ("gauge", "cache_tokens_room", n(load.room), "Tokens that there is room for, of prompts and answers."),
        ("gauge", "cache_prompts", n(load.prompts), "Prompts that are kept."),
        ("counter", "cache_hit_tokens_total", load.found, "Tokens of prompts that were found in the cache."),
        ("counter", "cache_miss_tokens_total", load.read, "Tokens of prompts that were read."),
        ("counter", "cache_evictions_total", load.evicted, "Prompts that made room for others."),
        ("counter", "decode_steps_total", load.steps, "Forward passes of decoding."),
        ("counter", "decode_step_tokens_total", load.stepped, "Tokens read by forward passes of decoding."),
    ];
    all.extend(memory.resident.map(|resident| {
        ("gauge", "memory_resident_bytes", resident, "Bytes that the process holds in memory.")
    }));
    all.extend([
        ("gauge", "memory_planned_bytes", memory.planned, "Bytes that the plan has for the server: model, caches and requests."),
        ("gauge", "memory_kept_bytes", memory.kept, "Bytes that are meant to be held now: weights, prompts and answers, requests."),
        ("gauge", "memory_requests_bytes", memory.requests, "Of these what requests hold: bodies, recordings, replies."),
        ("gauge", "memory_requests_room_bytes", memory.room, "Bytes that the plan has for requests."),
    ]);
    all
}

/// Writes the header of a series; returns its full name.
fn begin(text: &mut String, kind: &str, name: &str, help: &str) -> String {
    let name = format!("palimpsest_{name}");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    name
}
