//! Counters in Prometheus' text format. No text of any request is in them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::resident::Resident;
use palimpsest_core::engine::thread::Load;

/// Upper bounds of the histograms' buckets, in seconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// What was served since the start.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By path and status.
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
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
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
        self.with(|counts| {
            let mut text = String::new();
            let (name, version) = ("palimpsest_build_info", env!("CARGO_PKG_VERSION"));
            let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let help = "The version that runs, and the model that it serves.";
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
            let _ = writeln!(text, "{name}{{version=\"{version}\",model=\"{model}\"}} 1");
            let name = "palimpsest_requests_total";
            let _ = writeln!(text, "# HELP {name} Requests answered.\n# TYPE {name} counter");
            for ((path, status), count) in &counts.requests {
                let _ = writeln!(text, "{name}{{path=\"{path}\",status=\"{status}\"}} {count}");
            }
            for (name, help, count) in [
                ("requests_cancelled", "Requests whose client went before their end.", counts.cancelled),
                ("requests_slow", "Requests that took longer than the threshold of slow ones.", counts.slow),
                (
                    "prompt_tokens",
                    "Tokens of prompts that were found in the cache or read.",
                    load.found + load.read,
                ),
                ("generated_tokens", "Tokens generated.", counts.generated),
                ("embeddings", "Texts that were embedded.", counts.embeddings),
                ("embedding_tokens", "Tokens of these texts.", counts.embedded),
            ] {
                let name = format!("palimpsest_{name}_total");
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}");
            }
            let name = "palimpsest_requests_under_way";
            let help = "Completions that are being served or wait.";
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {under_way}");
            for (name, help, value) in [
                (
                    "sequences_running",
                    "Answers that are being generated, or whose prompt is read.",
                    load.running,
                ),
                ("sequences_waiting", "Answers that wait.", load.waiting),
                ("cache_tokens", "Tokens of prompts that are kept.", load.cached),
                ("cache_tokens_room", "Tokens that there is room for, of prompts and answers.", load.room),
                ("cache_prompts", "Prompts that are kept.", load.prompts),
            ] {
                let name = format!("palimpsest_{name}");
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
            }
            for (name, help, value) in [
                ("cache_hit_tokens", "Tokens of prompts that were found in the cache.", load.found),
                ("cache_miss_tokens", "Tokens of prompts that were read.", load.read),
                ("cache_evictions", "Prompts that made room for others.", load.evicted),
                ("decode_steps", "Forward passes of decoding.", load.steps),
                ("decode_step_tokens", "Tokens read by forward passes of decoding.", load.stepped),
            ] {
                let name = format!("palimpsest_{name}_total");
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
            }
            write_memory(&mut text, memory);
            let name = "palimpsest_queue_seconds";
            counts.queue.write(&mut text, name, "From the request to the reading of its prompt.");
            let name = "palimpsest_time_between_tokens_seconds";
            counts.between.write(&mut text, name, "From a token to the next one of the same answer.");
            let name = "palimpsest_time_to_first_token_seconds";
            counts.first_token.write(
                &mut text,
                name,
                "From the request to its first token, waiting included.",
            );
            let name = "palimpsest_completion_seconds";
            counts.whole.write(
                &mut text,
                name,
                "From the request to the end of its answer, waiting included.",
            );
            text
        })
    }
}

fn write_memory(text: &mut String, memory: &Resident) {
    let Resident { resident, planned, kept, requests, room } = *memory;
    for (name, help, value) in [
        ("resident", "Bytes that the process holds in memory.", resident),
        ("planned", "Bytes that the plan has for the server: model, caches and requests.", Some(planned)),
        ("kept", "Bytes that are meant to be held now: weights, prompts and answers, requests.", Some(kept)),
        ("requests", "Of these what requests hold: bodies, recordings, replies.", Some(requests)),
        ("requests_room", "Bytes that the plan has for requests.", Some(room)),
    ] {
        let Some(value) = value else { continue };
        let name = format!("palimpsest_memory_{name}_bytes");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
}
