//! Profiling: tracing spans around parts of a command, and a layer that sums their time.
//!
//! Parts open a span (`let _span = timing::linear();`); `--stats` installs a [`Recorder`]. Otherwise a span costs one level check. Time is
//! wall time on the recorder's thread, which waits for all others. A nested span's time counts for the inner span only. The recorder
//! synchronises its devices at every border, so GPU work is attributed correctly but the total is somewhat slower.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use candle_core::Device;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, EnteredSpan, Id};
use tracing::{Level, Subscriber, trace_span};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

const TARGET: &str = "palimpsest_core::time";
const ALONE: [&str; 4] = ["load", "tokenise", "sampling", "io"];
const PHASES: [&str; 2] = ["prefill", "decode"];
/// Parts of a phase; the last is the remainder: norms, rotary embedding, cache, activations.
const WITHIN: [&str; 4] = ["linear", "attention", "observer", "other"];
const OTHER: usize = WITHIN.len() - 1;

/// Starts a prefill of `tokens` tokens. All spans end when their guard is dropped.
pub fn prefill(tokens: usize) -> EnteredSpan {
    trace_span!(target: TARGET, "prefill", tokens).entered()
}

/// Starts a decode pass of `generated` tokens, one per sequence.
pub fn decode(generated: usize) -> EnteredSpan {
    trace_span!(target: TARGET, "decode", generated).entered()
}

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])* pub fn $name() -> EnteredSpan {
            trace_span!(target: TARGET, stringify!($name)).entered()
        })*
    };
}

parts! {
    /// Begins a linear map.
    linear
    /// Begins attention itself, softmax or linear.
    attention
    /// Begins reading attention for the masses.
    observer
    /// Begins opening a model, up to weights and cache in memory.
    load
    /// Begins building and tokenising prompts.
    tokenise
    /// Begins choosing a token.
    sampling
    /// Begins reading or writing files other than models.
    io
}

/// Sums span time by part. Clones share their sums.
#[derive(Debug, Clone)]
pub struct Recorder {
    thread: ThreadId,
    start: Instant,
    state: Arc<Mutex<State>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// A recorder of this thread; wall time starts now.
    pub fn new() -> Self {
        let start = Instant::now();
        let state = State { sums: Sums::default(), open: Vec::new(), since: start, devices: Vec::new() };
        Recorder { thread: thread::current().id(), start, state: Arc::new(Mutex::new(state)) }
    }

    /// The tracing layer; enables only the spans of this module.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        self.clone().with_filter(Targets::new().with_target(TARGET, Level::TRACE))
    }

    /// Synchronises these devices at every border from now on.
    pub fn wait_for(&self, devices: &[Device]) {
        self.state().devices = devices.iter().filter(|device| !device.is_cpu()).cloned().collect();
    }

    /// The devices of [`Recorder::wait_for`].
    pub fn devices(&self) -> Vec<Device> {
        self.state().devices.clone()
    }

    /// Counts so far. Open parts count up to their last border.
    pub fn report(&self) -> Report {
        Report { wall: self.start.elapsed(), sums: self.state().sums }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_here(&self) -> bool {
        thread::current().id() == self.thread
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, _id: &Id, _context: Context<'_, S>) {
        if !attributes.is_empty() && self.is_here() {
            attributes.record(&mut Tokens(&mut self.state().sums));
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(metadata) = context.metadata(id)
            && self.is_here()
        {
            let mut state = self.state();
            let now = state.settled();
            state.enter(metadata.name(), now);
        }
    }

    fn on_exit(&self, _id: &Id, _context: Context<'_, S>) {
        if self.is_here() {
            let mut state = self.state();
            let now = state.settled();
            state.exit(now);
        }
    }
}

/// Sums the fields of [`prefill`] and [`decode`].
struct Tokens<'a>(&'a mut Sums);

impl Visit for Tokens<'_> {
    fn record_u64(&mut self, field: &Field, tokens: u64) {
        match field.name() {
            "generated" => self.0.generated += tokens,
            _ => self.0.tokens += tokens,
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

/// Index into [`Sums`].
#[derive(Debug, Clone, Copy)]
enum Section {
    /// Index into [`ALONE`].
    Alone(usize),
    /// Indices into [`PHASES`] and [`WITHIN`].
    Within(usize, usize),
}

/// Exclusive time and number of calls.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    time: Duration,
    calls: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    alone: [Sum; ALONE.len()],
    within: [[Sum; WITHIN.len()]; PHASES.len()],
    tokens: u64,
    generated: u64,
}

impl Sums {
    fn of(&mut self, part: Section) -> &mut Sum {
        match part {
            Section::Alone(part) => &mut self.alone[part],
            Section::Within(phase, part) => &mut self.within[phase][part],
        }
    }
}

/// Stack of open parts, innermost last, and the time of the last border.
#[derive(Debug)]
struct State {
    sums: Sums,
    open: Vec<Option<Section>>,
    since: Instant,
    devices: Vec<Device>,
}

impl State {
    /// The time after all devices are idle. Device errors are reported by the next operation.
    fn settled(&self) -> Instant {
        for device in &self.devices {
            let _ = device.synchronize();
        }
        Instant::now()
    }

    fn enter(&mut self, name: &str, now: Instant) {
        self.count(now);
        let at = |names: &[&str]| names.iter().position(|n| *n == name);
        let part = at(&WITHIN)
            .zip(self.phase())
            .map(|(part, phase)| Section::Within(phase, part))
            .or_else(|| at(&PHASES).map(|phase| Section::Within(phase, OTHER)))
            .or_else(|| at(&ALONE).map(Section::Alone));
        if let Some(part) = part {
            self.sums.of(part).calls += 1;
        }
        self.open.push(part);
    }

    fn exit(&mut self, now: Instant) {
        self.count(now);
        self.open.pop();
    }

    /// Current phase. Parts of a phase outside any phase are not counted.
    fn phase(&self) -> Option<usize> {
        match self.open.last()? {
            Some(Section::Within(phase, _)) => Some(*phase),
            _ => None,
        }
    }

    /// Adds the time since the last border to the innermost part.
    fn count(&mut self, now: Instant) {
        if let Some(Some(part)) = self.open.last() {
            self.sums.of(*part).time += now.saturating_duration_since(self.since);
        }
        self.since = now;
    }
}

/// A timing report.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    wall: Duration,
    sums: Sums,
}

impl Report {
    /// `tokens` (prefilled; shared prefixes count once), `prefill_seconds`, `tokens_per_second`, `observer_seconds`, `decode_tokens`,
    /// `decode_seconds`, `decode_tokens_per_second`, wall time by part under `seconds`, and calls by part under `calls`. Undefined rates
    /// are null.
    pub fn json(&self) -> Map<String, Value> {
        let Sums { within, tokens, generated, .. } = self.sums;
        let [prefill, decode] =
            within.map(|parts| parts.iter().map(|sum| sum.time.as_secs_f64()).sum::<f64>());
        let observer: f64 = within.iter().map(|parts| parts[OTHER - 1].time.as_secs_f64()).sum();
        let mut seconds = self.tree(|sum| json!(sum.time.as_secs_f64()));
        seconds.insert("unaccounted".to_owned(), json!(self.unaccounted()));
        seconds.insert("wall".to_owned(), json!(self.wall.as_secs_f64()));
        let fields = [
            ("tokens", json!(tokens)),
            ("prefill_seconds", json!(prefill)),
            ("tokens_per_second", json!(tokens as f64 / prefill)),
            ("observer_seconds", json!(observer)),
            ("decode_tokens", json!(generated)),
            ("decode_seconds", json!(decode)),
            ("decode_tokens_per_second", json!(generated as f64 / decode)),
            ("seconds", seconds.into()),
            ("calls", self.tree(|sum| json!(sum.calls)).into()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// One line per part with calls, with its share of the wall time.
    pub fn table(&self) -> String {
        let Sums { alone, within, .. } = self.sums;
        let mut rows: Vec<(String, Sum)> = Vec::new();
        for (phase, parts) in PHASES.iter().zip(within) {
            rows.extend(WITHIN.iter().zip(parts).map(|(name, sum)| (format!("{phase} {name}"), sum)));
        }
        rows.extend(ALONE.iter().zip(alone).map(|(name, sum)| ((*name).to_owned(), sum)));
        rows.retain(|(_, sum)| sum.calls > 0);
        let wall = self.wall.as_secs_f64();
        let mut text = format!("{:<18}{:>12}{:>9}{:>12}", "part", "seconds", "share", "calls");
        let mut line = |name: &str, seconds: f64, calls: &str| {
            let share = 100.0 * seconds / wall;
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{name:<18}{seconds:>12.3}{share:>7.1} %{calls:>12}");
        };
        for (name, sum) in rows {
            line(&name, sum.time.as_secs_f64(), &sum.calls.to_string());
        }
        line("unaccounted", self.unaccounted(), "");
        line("wall", wall, "");
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    /// Time outside all parts, in seconds.
    fn unaccounted(&self) -> f64 {
        let Sums { alone, within, .. } = &self.sums;
        let parts: f64 = alone.iter().chain(within.as_flattened()).map(|sum| sum.time.as_secs_f64()).sum();
        self.wall.as_secs_f64() - parts
    }

    /// `{"load": _, ..., "prefill": {"linear": _, ...}, "decode": {...}}`
    fn tree(&self, value: impl Fn(&Sum) -> Value) -> Map<String, Value> {
        let branch = |names: &[&str], sums: &[Sum]| -> Map<String, Value> {
            names.iter().zip(sums).map(|(name, sum)| ((*name).to_owned(), value(sum))).collect()
        };
        let mut tree = branch(&ALONE, &self.sums.alone);
        for (phase, parts) in PHASES.iter().zip(&self.sums.within) {
            tree.insert((*phase).to_owned(), branch(&WITHIN, parts).into());
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_for_the_innermost_part_in_its_phase() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut state = State { sums: Sums::default(), open: Vec::new(), since: start, devices: Vec::new() };
        // One entry per border: a part that starts, or "" for the end of the innermost.
        for (ms, name) in [
            (5, "io"),
            (7, ""),
            (10, "prefill"),
            (11, "linear"),
            (14, ""),
            (16, "attention"),
            (17, "observer"),
            (21, ""),
            (26, ""),
            (32, ""),
            (40, "attention"),
            (47, ""),
            (50, "decode"),
            (58, "linear"),
            (67, ""),
            (70, ""),
        ] {
            if name.is_empty() {
                state.exit(at(ms));
            } else {
                state.enter(name, at(ms));
            }
        }
        let report = Report { wall: Duration::from_millis(100), sums: state.sums };
        let json = Value::from(report.json());
        let ms = |value: &Value| (value.as_f64().unwrap() * 1e3).round();
        let [prefill, decode] = PHASES.map(|phase| WITHIN.map(|part| ms(&json["seconds"][phase][part])));
        assert_eq!(prefill, [3.0, 6.0, 4.0, 9.0]);
        assert_eq!(decode, [9.0, 0.0, 0.0, 11.0]);
        assert_eq!(ALONE.map(|part| ms(&json["seconds"][part])), [0.0, 0.0, 0.0, 2.0]);
        assert_eq!(ms(&json["seconds"]["unaccounted"]), 56.0);
        assert_eq!((ms(&json["prefill_seconds"]), ms(&json["decode_seconds"])), (22.0, 20.0));
        assert_eq!((ms(&json["observer_seconds"]), ms(&json["seconds"]["wall"])), (4.0, 100.0));
        assert_eq!(PHASES.map(|phase| &json["calls"][phase]["other"]), [&json!(1), &json!(1)]);
        let table = report.table();
        assert!(table.contains("prefill attention        0.006    6.0 %           1\n"), "{table}");
        assert!(!table.contains("decode attention") && table.ends_with("0.100  100.0 %"), "{table}");
    }
}
