//! Counters in Prometheus' text format. No text of any request is in them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use palimpsest_core::engine::thread::Load;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Writes series of one number each: their kinds, names, numbers and what they count.
macro_rules! series {
    ($text:ident; $($kind:ident $name:ident $value:expr, $help:literal;)*) => {$(
        let name = begin(&mut $text, stringify!($kind), stringify!($name), $help);
        let _ = writeln!($text, "{name} {}", $value);
    )*};
}

/// Bytes in memory as `/metrics` has them.
#[derive(Debug, Clone, Copy)]
pub struct Resident {
    /// Of the process, where the system tells.
    pub resident: Option<u64>,
    pub planned: u64,
    /// That are meant to be there: weights, prompts and answers, requests.
    pub kept: u64,
    pub requests: u64,
    pub room: u64,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: BTreeMap<(&'static str, u16), u64>,
    cancelled: u64,
    slow: u64,
    generated: u64,
    embeddings: u64,
    embedded: u64,
    queue: Histogram,
    first_token: Histogram,
    between: Histogram,
    whole: Histogram,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    sum: f64,
    count: u64,
}

impl Histogram {
    fn add(&mut self, seconds: f64) {
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.sum += seconds;
        self.count += 1;
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
    fn with<T>(&self, what: impl FnOnce(&mut Counts) -> T) -> T {
        // Numbers alone: half of an addition is none.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A request was answered.
    pub fn request(&self, path: &'static str, status: u16) {
        self.with(|counts| *counts.requests.entry((path, status)).or_default() += 1);
    }

    /// A request has ended.
    pub fn ended(&self, cancelled: bool, slow: bool) {
        self.with(|counts| {
            counts.cancelled += u64::from(cancelled);
            counts.slow += u64::from(slow);
        });
    }

    /// A token was generated, and so long ago the one before it of the same answer.
    pub fn token(&self, since: Option<Duration>) {
        self.with(|counts| {
            counts.generated += 1;
            if let Some(since) = since {
                counts.between.add(since.as_secs_f64());
            }
        });
    }

    /// So many texts of so many tokens were embedded.
    pub fn embeddings(&self, texts: usize, tokens: usize) {
        self.with(|counts| {
            counts.embeddings += texts as u64;
            counts.embedded += tokens as u64;
        });
    }

    /// The first prompt of a request began to be read after this time.
    pub fn queue(&self, after: Duration) {
        self.with(|counts| counts.queue.add(after.as_secs_f64()));
    }

    /// The first token came after this time.
    pub fn first_token(&self, after: Duration) {
        self.with(|counts| counts.first_token.add(after.as_secs_f64()));
    }

    /// A completion was whole after this time.
    pub fn whole(&self, after: Duration) {
        self.with(|counts| counts.whole.add(after.as_secs_f64()));
    }

    /// Mean seconds of a completion; 1 before the first.
    pub fn mean_seconds(&self) -> f64 {
        self.with(|counts| match counts.whole.count {
            0 => 1.0,
            count => counts.whole.sum / count as f64,
        })
    }

    /// All of it, with the model's name, the number of requests that are being served or wait, what the model's thread has to do, and
    /// how memory stands.
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
            let Resident { resident, planned, kept, requests, room } = *memory;
            series! { text;
                counter requests_cancelled_total counts.cancelled, "Requests whose client went before their end.";
                counter requests_slow_total counts.slow, "Requests that took longer than the threshold of slow ones.";
                counter prompt_tokens_total load.found + load.read, "Tokens of prompts that were found in the cache or read.";
                counter generated_tokens_total counts.generated, "Tokens generated.";
                counter embeddings_total counts.embeddings, "Texts that were embedded.";
                counter embedding_tokens_total counts.embedded, "Tokens of these texts.";
                gauge requests_under_way under_way, "Completions that are being served or wait.";
                gauge sequences_running load.running, "Answers that are being generated, or whose prompt is read.";
                gauge sequences_waiting load.waiting, "Answers that wait.";
                gauge cache_tokens load.cached, "Tokens of prompts that are kept.";
                gauge cache_tokens_room load.room, "Tokens that there is room for, of prompts and answers.";
                gauge cache_prompts load.prompts, "Prompts that are kept.";
                counter cache_hit_tokens_total load.found, "Tokens of prompts that were found in the cache.";
                counter cache_miss_tokens_total load.read, "Tokens of prompts that were read.";
                counter cache_evictions_total load.evicted, "Prompts that made room for others.";
                counter decode_steps_total load.steps, "Forward passes of decoding.";
                counter decode_step_tokens_total load.stepped, "Tokens read by forward passes of decoding.";
            }
            // Where the system tells it.
            if let Some(resident) = resident {
                series! { text; gauge memory_resident_bytes resident, "Bytes that the process holds in memory."; }
            }
            series! { text;
                gauge memory_planned_bytes planned, "Bytes that the plan has for the server: model, caches and requests.";
                gauge memory_kept_bytes kept, "Bytes that are meant to be held now: weights, prompts and answers, requests.";
                gauge memory_requests_bytes requests, "Of these what requests hold: bodies, recordings, replies.";
                gauge memory_requests_room_bytes room, "Bytes that the plan has for requests.";
            }
            let Counts { queue, between, first_token, whole, .. } = counts;
            queue.write(&mut text, "queue_seconds", "From the request to the reading of its prompt.");
            let help = "From a token to the next one of the same answer.";
            between.write(&mut text, "time_between_tokens_seconds", help);
            let help = "From the request to its first token, waiting included.";
            first_token.write(&mut text, "time_to_first_token_seconds", help);
            let help = "From the request to the end of its answer, waiting included.";
            whole.write(&mut text, "completion_seconds", help);
        });
        text
    }
}

/// Begins a series, whose whole name it returns.
fn begin(text: &mut String, kind: &str, name: &str, help: &str) -> String {
    let name = format!("palimpsest_{name}");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    name
}
