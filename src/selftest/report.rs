//! The outcome of the self-test: as tables, as JSON, and in plain words.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::device::{DeviceFacts, How};
use super::host::Host;
use super::kernels::KernelTimes;
use super::layers::{LayerResult, MASSES_OFF};
use super::parity::Parity;
use super::rule::{Compared, Measure};
use super::trial::Trial;
use crate::ground::table::columns;
use crate::progress::grouped;
use palimpsest_core::engine::memory_plan::gigabytes;

/// All that the self-test found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The version of this form.
    pub selftest: u32,
    /// The program and the machine.
    pub host: Host,
    /// The devices under test.
    pub devices: Vec<DeviceFacts>,
    /// Whether widths and lengths were reduced.
    pub quick: bool,
    /// Seconds that all of it took.
    pub seconds: f64,
    /// Small models beside the CPU.
    pub parity: Vec<Parity>,
    /// Single layers on the first device.
    pub layers: Vec<LayerResult>,
    /// Attention's kernels beside each other; absent where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_kernels: Option<KernelTimes>,
    /// The most memory that the process held, where the system tells.
    pub peak_resident: Option<u64>,
}

/// Whether the devices can be used, and for what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether everything was as it must be.
    pub sound: bool,
    /// Why, and what to do.
    pub text: String,
}

/// Beyond so many times the planned bytes a plan is wrong.
const OVER_PLAN: f64 = 1.1;

impl Report {
    /// The names of the devices.
    fn names(&self) -> String {
        self.devices.iter().map(|facts| facts.device.as_str()).collect::<Vec<_>>().join(",")
    }

    /// All of it, to send in.
    pub fn json(&self) -> Value {
        let mut json = json!(self);
        json["verdict"] = json!(self.verdict());
        json
    }

    /// All of it, to read.
    pub fn text(&self) -> String {
        let mut text = self.host.text();
        let mut seen = BTreeSet::new();
        for facts in self.devices.iter().filter(|facts| seen.insert(&facts.device)) {
            text += &facts.text();
        }
        text += &self.parity_text();
        text += &self.layers_text();
        text += &self.kernels_text();
        let Verdict { sound, text: verdict } = self.verdict();
        let title = if sound { "Sound." } else { "NOT SOUND." };
        text + &format!("\nVerdict on {} after {:.0} s: {title} {verdict}\n", self.names(), self.seconds)
    }

    fn parity_text(&self) -> String {
        let mut rows =
            vec![row(["ARCHITECTURE", "DTYPE", "LOGITS", "ALLOWED", "ATTENTION", "ALLOWED", "GREEDY", ""])];
        for parity in &self.parity {
            let [a, b] = cells(parity.compared.iter().find(|compared| compared.what == "logits"));
            let [c, d] = cells(worst(parity.compared.iter().filter(|compared| compared.what != "logits")));
            let greedy = match &parity.error {
                Some(_) => String::new(),
                None => format!("{} of {}", parity.greedy, parity.greedy_of),
            };
            let wrong = wrong(parity.error.as_deref(), parity.sound);
            let Parity { architecture, dtype, .. } = *parity;
            rows.push(row([architecture, dtype, &a, &b, &c, &d, &greedy, &wrong]));
        }
        format!(
            "\nSmall models of random weights on {}, read at once and in steps, beside the CPU reading at once: largest differences\nin f32, root mean squares of differences from f32 in half precision (allowed: 1.6 times the CPU's own).\n\n{}",
            self.names(),
            columns(&rows)
        )
    }

    fn layers_text(&self) -> String {
        let Some(first) = self.layers.first() else { return String::new() };
        let mut text = format!("\nSingle layers of random weights in {} on {}", first.dtype, first.device);
        if let Some(Trial { chunk, rows, spans, .. }) = first.trials.first() {
            text += &format!(
                ", {} tokens read at a time, the last {rows} rows recorded over {spans} spans",
                grouped(*chunk as u64)
            );
        }
        let mut rows = vec![row([
            "LAYER",
            "AGREES",
            "TOKENS",
            "PREFILL",
            "RECORDING",
            "A TOKEN",
            "PLANNED",
            "TAKEN",
            "",
        ])];
        for layer in &self.layers {
            let [agrees, _] = cells(worst(layer.agreement.iter()));
            let name = format!("{}, {}", layer.name, layer.of);
            let figures = layer.trials.first().map(|trial| {
                let [a, b, c] =
                    [trial.prefill_seconds, trial.recording_seconds, trial.token_seconds].map(seconds);
                let (planned, taken) = bytes(trial);
                let taken = taken.map_or_else(String::new, |(taken, _)| gigabytes(taken));
                [grouped(trial.tokens as u64), a, b, c, gigabytes(planned), taken]
            });
            let [tokens, a, b, c, planned, taken] = figures.unwrap_or_default();
            let wrong = wrong(layer.error.as_deref(), layer.sound);
            rows.push(row([&name, &agrees, &tokens, &a, &b, &c, &planned, &taken, &wrong]));
        }
        text += &format!(".\n\n{}", columns(&rows));
        for note in self.layers.iter().flat_map(|layer| &layer.notes) {
            text += &format!("{note}\n");
        }
        let mut trials = self.layers.iter().flat_map(|layer| &layer.trials);
        match (trials.find_map(|trial| bytes(trial).1), self.peak_resident) {
            (Some((_, how)), _) => text += &format!("Memory taken of the device: {}.\n", how.in_words()),
            (None, Some(peak)) => {
                text += &format!("Memory: the whole process held {} at its peak.\n", gigabytes(peak));
            }
            (None, None) => {}
        }
        text
    }

    /// Empty where there is one kernel.
    fn kernels_text(&self) -> String {
        let Some(times) = &self.attention_kernels else { return String::new() };
        let header = ["LAYER", "TOKENS", "KERNEL", "PREFILL", "RECORDING", "A TOKEN", "A RECORDED TOKEN", ""];
        let mut rows = vec![row(header)];
        for trial in &times.trials {
            for timed in &trial.kernels {
                let name = format!("{}, {}", trial.layer, trial.of);
                let [a, b, c, d] = timed.seconds().map(seconds);
                let auto = match (timed.kernel == trial.auto.forward, timed.kernel == trial.auto.sums) {
                    (true, true) => "auto",
                    (true, false) => "auto, but for sums",
                    (false, true) => "auto for sums",
                    (false, false) => "",
                };
                let tokens = grouped(trial.tokens as u64);
                rows.push(row([&name, &tokens, &timed.kernel.to_string(), &a, &b, &c, &d, auto]));
            }
        }
        let mut text = format!(
            "\nAttention alone by each kernel: keys and values at hand, no linear maps.\n\n{}",
            columns(&rows)
        );
        for note in &times.notes {
            text += &format!("{note}\n");
        }
        let card = self.devices.first().and_then(|facts| facts.card.as_deref());
        if self.quick || card.is_some_and(|card| card.contains("no GPU")) {
            text += "These times show that the kernels run. They say nothing of which is faster.\n";
        }
        text
    }

    /// Whether the devices can be used, and what to do where not.
    pub fn verdict(&self) -> Verdict {
        let names = self.names();
        let (mut said, mut usable, mut unusable) = (Vec::new(), Vec::new(), Vec::new());

        // 1. Where the CPU's numbers are missed, and where nothing could be run.
        for dtype in ["f32", "bf16", "f16"] {
            let of: Vec<&Parity> = self.parity.iter().filter(|parity| parity.dtype == dtype).collect();
            let (failed, wrong): (Vec<&Parity>, Vec<&Parity>) =
                of.iter().filter(|parity| !parity.sound).partition(|parity| parity.error.is_some());
            if !wrong.is_empty() {
                let list = listed(wrong.iter().map(|parity| parity.architecture));
                let differ = if wrong.len() == 1 { "differs" } else { "differ" };
                said.push(format!("In {dtype}, {list} {differ} from the CPU more than allowed."));
            }
            if let Some(error) = failed.first().and_then(|parity| parity.error.as_deref()) {
                let list = listed(failed.iter().map(|parity| parity.architecture));
                said.push(format!("In {dtype}, {list} could not be run: {}.", error.trim_end_matches('.')));
            }
            match (of.is_empty(), failed.is_empty() && wrong.is_empty()) {
                (true, _) => {}
                (false, true) => usable.push(dtype),
                (false, false) => unusable.push(dtype),
            }
        }
        said.push(match unusable.as_slice() {
            [] => format!(
                "All {} models agree with the CPU in {}.",
                self.parity.len() / usable.len().max(1),
                listed(usable.into_iter())
            ),
            // What is wrong in f32 is wrong in itself, and not for want of digits.
            ["f32", ..] => format!("Do not trust what {names} computes: use --device cpu."),
            _ => format!("Use --dtype {} there.", usable.join(" or ")),
        });

        // 2. Single layers.
        let wrong: Vec<&LayerResult> = self.layers.iter().filter(|layer| !layer.sound).collect();
        for layer in &wrong {
            let what = format!("The layer `{}` at the widths of {}", layer.name, layer.of);
            said.push(match &layer.error {
                Some(error) => format!("{what} could not be tried: {}.", error.trim_end_matches('.')),
                None if layer.agreement.iter().any(|c| !c.holds()) => format!(
                    "{what} differs from the CPU's f32 more than allowed: do not trust models of that kind on {names}."
                ),
                None => format!(
                    "{what} records masses that miss 1 by more than {MASSES_OFF:e}: do not trust its attention over long prompts."
                ),
            });
        }
        if wrong.is_empty() && !self.layers.is_empty() {
            let widths = if self.quick { "reduced widths" } else { "the widths of released models" };
            said.push(format!(
                "The {} kinds of layers agree with the CPU's f32 at {widths}.",
                self.layers.len()
            ));
        }
        let sound = unusable.is_empty() && wrong.is_empty();

        // 3. What is no error, but worth knowing.
        for layer in self.layers.iter().filter(|_| !self.quick) {
            let Some((planned, Some((taken, _)))) = layer.trials.first().map(bytes) else { continue };
            if taken as f64 > OVER_PLAN * planned as f64 {
                said.push(format!(
                    "`{}` took {} where {} were planned: keep that much more free than `model plan` says.",
                    layer.name,
                    gigabytes(taken),
                    gigabytes(planned)
                ));
            }
        }
        if self.quick {
            said.push(
                "This was the quick test, whose speeds say nothing: leave --quick out for real widths."
                    .into(),
            );
        }
        said.push(if sound { "It can be used.".to_owned() } else { "Please send the JSON in.".to_owned() });
        Verdict { sound, text: said.join(" ") }
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// The comparison that used most of what is allowed.
fn worst<'a>(compared: impl Iterator<Item = &'a Compared>) -> Option<&'a Compared> {
    compared.max_by(|a, b| a.used().total_cmp(&b.used()))
}

fn wrong(error: Option<&str>, sound: bool) -> String {
    match (error, sound) {
        (Some(error), _) => format!("ERROR: {error}"),
        (None, false) => "WRONG".to_owned(),
        (None, true) => String::new(),
    }
}

/// Planned bytes of a trial's device, and those taken of one with a memory of its own that tells.
fn bytes(trial: &Trial) -> (u64, Option<(u64, How)>) {
    let peak = trial.memory.first().and_then(|memory| memory.peak.as_ref());
    let taken = peak.filter(|peak| peak.how != How::Process).map(|peak| (peak.bytes, peak.how));
    (trial.memory.first().map_or(0, |memory| memory.planned), taken)
}

/// The value and what is allowed.
fn cells(compared: Option<&Compared>) -> [String; 2] {
    match compared {
        None => [String::new(), String::new()],
        Some(Compared { measure: Measure::Cosine, found, allowed, .. }) => {
            [format!("cos {found:.5}"), format!("{allowed}")]
        }
        Some(Compared { found: 0.0, allowed, .. }) => ["0".to_owned(), format!("{allowed:.1e}")],
        Some(Compared { found, allowed, .. }) => [format!("{found:.1e}"), format!("{allowed:.1e}")],
    }
}

/// Names without repetition: `a`, `a and b`, `a, b and c`.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    match unique.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn seconds(seconds: f64) -> String {
    match seconds {
        10.0.. => format!("{seconds:.0} s"),
        1.0..10.0 => format!("{seconds:.1} s"),
        0.01..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{:.2} ms", seconds * 1e3),
    }
}

#[cfg(test)]
mod tests;
