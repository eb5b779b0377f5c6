//! What the self-test found: as tables, as JSON, and in plain words.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::arithmetic::Work;
use super::cards::{Peaks, peaks};
use super::embedded::CHECKPOINTS;
use super::facts::{DeviceFacts, Host};
use super::kernels::KernelTimes;
use super::layers::{LayerResult, MASSES_OFF};
use super::memory::How;
use super::parity::Parity;
use super::rule::{Compared, Measure};
use super::trial::Trial;
use super::yardsticks::Yardsticks;
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
    /// Tiny checkpoints beside transformers.
    pub parity: Vec<Parity>,
    /// What the first device can do, where that could be measured.
    pub yardsticks: Option<Yardsticks>,
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

/// Beyond so many times the reckoned seconds a layer is worth a look.
const SLOW: f64 = 2.0;
/// Beyond so many times the planned bytes a plan is wrong.
const OVER_PLAN: f64 = 1.1;

impl Report {
    /// The names of the devices.
    fn names(&self) -> String {
        self.devices.iter().map(|facts| facts.device.as_str()).collect::<Vec<_>>().join(",")
    }

    /// What the first device can do by its maker's data sheet, where it is a card of the table.
    pub fn peaks(&self) -> Option<Peaks> {
        peaks(self.devices.first()?.card.as_deref()?)
    }

    /// All of it, to send in.
    pub fn json(&self) -> Value {
        let mut json = json!(self);
        json["peaks"] = json!(self.peaks());
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
        text += "\n";
        text += &self.parity_text();
        text += "\n";
        text += &self.layers_text();
        text += &self.kernels_text();
        let Verdict { sound, text: verdict } = self.verdict();
        let title = if sound { "Sound." } else { "NOT SOUND." };
        text + &format!("\nVerdict on {} after {:.0} s: {title} {verdict}\n", self.names(), self.seconds)
    }

    fn parity_text(&self) -> String {
        let mut text = format!(
            "Tiny random models beside transformers, on {}, 151 tokens read at once and 64 at a time: largest differences in f32,\nroot mean squares in half precision (allowed: 1.6 times transformers' own), with experts the share of\npositions whose logits have a cosine of 0.99 with those in f32 (allowed: all but one).\n\n",
            self.names()
        );
        let header =
            ["ARCHITECTURE", "WEIGHTS", "DTYPE", "LOGITS", "ALLOWED", "ATTENTION", "ALLOWED", "GREEDY", ""];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for parity in &self.parity {
            let [logits, attention] = [parity.logits(), parity.attention()].map(cells);
            let [a, b] = logits;
            let [c, d] = attention;
            let greedy = match &parity.error {
                Some(_) => String::new(),
                None => format!("{} of {}", parity.greedy, parity.greedy_of),
            };
            let wrong = match (&parity.error, parity.sound) {
                (Some(error), _) => format!("ERROR: {error}"),
                (None, false) => "WRONG".to_owned(),
                (None, true) => String::new(),
            };
            let (name, layout, dtype) =
                (parity.architecture.to_owned(), parity.layout.to_owned(), parity.dtype.to_owned());
            rows.push(vec![name, layout, dtype, a, b, c, d, greedy, wrong]);
        }
        text += &columns(&rows);
        text
    }

    fn layers_text(&self) -> String {
        let Some(first) = self.layers.first() else { return String::new() };
        let mut text = format!("Single layers of random weights in {} on {}", first.dtype, first.device);
        if let Some(Trial { chunk, rows, spans, .. }) = first.trials.first() {
            text += &format!(
                ", {} tokens read at a time, the last {rows} rows recorded over {spans} spans",
                grouped(*chunk as u64)
            );
        }
        text += ".\n";
        if let Some(y) = &self.yardsticks {
            text += &format!(
                "Yardsticks: a product of {} cubed reaches {}/s in {}{}; a matrix of {} is read at {}/s.\n",
                grouped(y.side as u64),
                operations(y.products),
                y.dtype,
                if y.dtype == "f32" {
                    String::new()
                } else {
                    format!(" and {}/s in f32", operations(y.products_f32))
                },
                gigabytes(y.matrix_bytes),
                gigabytes(y.reading as u64)
            );
        }
        if let (Some(p), Some(card)) = (self.peaks(), self.devices.first().and_then(|d| d.card.as_ref())) {
            text += &format!(
                "{card} by its data sheet: {:.0} TFLOP/s in half precision, {:.0} in f32, {:.0} GB/s.\n",
                p.half / 1e12,
                p.f32 / 1e12,
                p.bandwidth / 1e9
            );
        }
        text += "\n";
        text += &columns(&self.layer_rows());
        for note in self.layers.iter().flat_map(|layer| &layer.notes) {
            text += &format!("{note}\n");
        }
        text += &self.memory_text();
        text
    }

    fn layer_rows(&self) -> Vec<Vec<String>> {
        let peaks = self.peaks();
        let mut header = vec!["LAYER", "AGREES", "TOKENS", "PREFILL", "COUNTED", "A SECOND", "OF PRODUCT"];
        if peaks.is_some() {
            header.extend(["OF PEAK", "RECKONED"]);
        }
        header.extend(["RECORDING", "A TOKEN", "COUNTED", "A SECOND", "OF READING"]);
        if peaks.is_some() {
            header.extend(["OF PEAK", "RECKONED"]);
        }
        let memory = self.layers.iter().flat_map(|l| &l.trials).any(|trial| device_bytes(trial).is_some());
        if memory {
            header.extend(["PLANNED", "TAKEN"]);
        }
        header.push("");
        let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for layer in &self.layers {
            let half = layer.dtype != "f32";
            let agrees = layer.agreement.iter().max_by(|a, b| a.used().total_cmp(&b.used()));
            let [found, _] = cells(agrees);
            let name = format!("{}, {}", layer.name, layer.of);
            let wrong = match (&layer.error, layer.sound) {
                (Some(error), _) => format!("ERROR: {error}"),
                (None, false) => "WRONG".to_owned(),
                (None, true) => String::new(),
            };
            if layer.trials.is_empty() {
                let mut row = vec![name, found];
                row.resize(rows[0].len() - 1, String::new());
                row.push(wrong);
                rows.push(row);
                continue;
            }
            for trial in &layer.trials {
                let speed = trial.prefill.operations() / trial.prefill_seconds;
                let product = self.yardsticks.as_ref().map(|y| speed / y.products);
                let mut row = vec![
                    name.clone(),
                    found.clone(),
                    grouped(trial.tokens as u64),
                    seconds(trial.prefill_seconds),
                    operations(trial.prefill.operations()),
                    operations(speed),
                    product.map_or_else(String::new, percent),
                ];
                if let Some(peaks) = &peaks {
                    row.push(percent(speed / peaks.products(half)));
                    row.push(seconds(peaks.seconds(&trial.prefill, half)));
                }
                let speed = trial.token.bytes / trial.token_seconds;
                let reading = self.yardsticks.as_ref().map(|y| speed / y.reading);
                row.push(seconds(trial.recording_seconds));
                row.push(seconds(trial.token_seconds));
                row.push(gigabytes(trial.token.bytes as u64));
                row.push(gigabytes(speed as u64));
                row.push(reading.map_or_else(String::new, percent));
                if let Some(peaks) = &peaks {
                    row.push(percent(speed / peaks.bandwidth));
                    row.push(seconds(peaks.seconds(&trial.token, half)));
                }
                if memory {
                    let (planned, taken) = device_bytes(trial)
                        .map_or((String::new(), String::new()), |(p, t, _)| (gigabytes(p), gigabytes(t)));
                    row.extend([planned, taken]);
                }
                row.push(wrong.clone());
                rows.push(row);
            }
        }
        rows
    }

    /// How memory was measured, and on the CPU what the process held.
    fn memory_text(&self) -> String {
        let trials = || self.layers.iter().flat_map(|layer| &layer.trials);
        if let Some((.., how)) = trials().find_map(device_bytes) {
            return format!("Memory taken of the device: {}.\n", how.in_words());
        }
        let planned = trials().flat_map(|trial| &trial.memory).map(|memory| memory.planned).max();
        match (self.peak_resident, planned) {
            (Some(peak), Some(planned)) => format!(
                "Memory: {} for the largest of these by the plan; the whole process held {} at its peak.\n",
                gigabytes(planned),
                gigabytes(peak)
            ),
            _ => String::new(),
        }
    }

    /// Whether the devices can be used, and what to do where not.
    pub fn verdict(&self) -> Verdict {
        let mut said = Vec::new();
        let names = self.names();
        let dtypes = || {
            let mut dtypes: Vec<&str> = self.parity.iter().map(|p| p.dtype).collect();
            dtypes.sort_by_key(|dtype| ["f32", "bf16", "f16"].iter().position(|known| known == dtype));
            dtypes.dedup();
            dtypes
        };

        // 1. Where transformers' numbers are missed, and where nothing could be run.
        let mut unusable = Vec::new();
        for dtype in dtypes() {
            let of: Vec<&Parity> = self.parity.iter().filter(|p| p.dtype == dtype).collect();
            let wrong: Vec<&&Parity> = of.iter().filter(|p| !p.sound && p.error.is_none()).collect();
            let failed: Vec<&&Parity> = of.iter().filter(|p| p.error.is_some()).collect();
            if let Some(worst) = wrong.iter().max_by(|a, b| worst(a).1.total_cmp(&worst(b).1)) {
                let (what, times) = self::worst(worst);
                let list = listed(wrong.iter().map(|p| p.architecture));
                said.push(format!(
                    "In {dtype}, {list} differ{} from transformers more than allowed (at worst {what} of {}, {} what is allowed).",
                    if wrong.len() == 1 { "s" } else { "" },
                    worst.architecture,
                    if times.is_finite() { format!("{times:.1} times") } else { "far beyond".to_owned() }
                ));
                if dtype != "f32"
                    && wrong.iter().all(|p| p.compared.iter().any(|c| c.measure == Measure::Positions))
                {
                    said.push(
                        "With experts a few tokens that rounding sends elsewhere can do this.".to_owned(),
                    );
                }
            }
            if let Some(first) = failed.first() {
                let list = listed(failed.iter().map(|p| p.architecture));
                let error = first.error.as_deref().unwrap_or_default();
                said.push(format!("In {dtype}, {list} could not be run: {}.", error.trim_end_matches('.')));
            }
            if !wrong.is_empty() || !failed.is_empty() {
                unusable.push(dtype);
            }
        }
        let usable: Vec<&str> = dtypes().into_iter().filter(|dtype| !unusable.contains(dtype)).collect();
        if !unusable.is_empty() {
            said.push(match usable.as_slice() {
                [] => format!("Do not trust what {names} computes: use --device cpu."),
                // What is wrong in f32 is wrong in itself, and not for want of digits.
                _ if unusable.contains(&"f32") => {
                    format!("Do not trust what {names} computes: use --device cpu.")
                }
                some => format!("Use --dtype {} there.", some.join(" or ")),
            });
        } else {
            said.push(format!(
                "All {} checkpoints agree with transformers in {}.",
                CHECKPOINTS.len(),
                listed(usable.iter().copied())
            ));
        }

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
            let (widths, against) = match self.quick {
                true => ("reduced widths", "the CPU's f32"),
                false => ("the widths of released models", "the CPU's f32"),
            };
            said.push(format!("The {} kinds of layers agree with {against} at {widths}.", self.layers.len()));
        }
        let sound = unusable.is_empty() && wrong.is_empty();

        // 3. What is no error, but worth knowing.
        said.extend(self.remarks());
        if self.quick {
            said.push(
                "This was the quick test, whose speeds say nothing: leave --quick out for real widths."
                    .into(),
            );
        }
        said.push(if sound { "It can be used.".to_owned() } else { "Please send the JSON in.".to_owned() });
        Verdict { sound, text: said.join(" ") }
    }

    /// Layers that are much slower than reckoned, and plans that are exceeded.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let (Some(peaks), false) = (self.peaks(), self.quick) {
            let times = |trial: &Trial, half: bool| {
                let over = |seconds: f64, work: &Work| seconds / peaks.seconds(work, half);
                over(trial.prefill_seconds, &trial.prefill).max(over(trial.token_seconds, &trial.token))
            };
            let slow = self.layers.iter().filter_map(|layer| {
                let times = layer.trials.iter().map(|trial| times(trial, layer.dtype != "f32"));
                times.max_by(f64::total_cmp).filter(|times| *times > SLOW).map(|times| (layer.name, times))
            });
            let slow: Vec<String> = slow.map(|(name, times)| format!("{name} ({times:.1} times)")).collect();
            if !slow.is_empty() {
                remarks.push(format!(
                    "Slower than reckoned: {}; a profiler would tell why, and the JSON is worth sending in.",
                    slow.join(", ")
                ));
            }
        }
        let over = self.layers.iter().flat_map(|layer| layer.trials.iter().map(move |trial| (layer, trial)));
        for (layer, trial) in over {
            if let Some((planned, taken, _)) = device_bytes(trial).filter(|_| !self.quick)
                && taken as f64 > OVER_PLAN * planned as f64
            {
                remarks.push(format!(
                    "`{}` over {} tokens took {} where {} were planned: keep that much more free than `model plan` says.",
                    layer.name,
                    grouped(trial.tokens as u64),
                    gigabytes(taken),
                    gigabytes(planned)
                ));
            }
        }
        remarks
    }
}

/// What used most of what is allowed, and how many times that; of a wrong greedy token alone, that.
fn worst(parity: &Parity) -> (&'static str, f64) {
    let worst = parity.compared.iter().max_by(|a, b| a.used().total_cmp(&b.used()));
    match worst {
        Some(compared) if !compared.holds() => (compared.what, compared.used()),
        _ => ("greedy tokens", f64::INFINITY),
    }
}

/// Planned and taken bytes of a trial's first device, where it is one with a memory of its own that tells.
fn device_bytes(trial: &Trial) -> Option<(u64, u64, How)> {
    let memory = trial.memory.first()?;
    let peak = memory.peak.as_ref().filter(|peak| peak.how != How::Process)?;
    Some((memory.planned, peak.bytes, peak.how))
}

/// What was found and what is allowed.
fn cells(compared: Option<&Compared>) -> [String; 2] {
    match compared {
        None => [String::new(), String::new()],
        Some(Compared { measure: Measure::Cosine, found, allowed, .. }) => {
            [format!("cos {found:.5}"), format!("{allowed}")]
        }
        Some(Compared { measure: Measure::Positions, found, allowed, .. }) => {
            [percent(*found), percent(*allowed)]
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

/// Operations in the unit that suits them, with three digits.
fn operations(number: f64) -> String {
    let (scaled, unit) = match number {
        1e15.. => (number / 1e15, "PFLOP"),
        1e12..1e15 => (number / 1e12, "TFLOP"),
        _ => (number / 1e9, "GFLOP"),
    };
    match scaled {
        100.0.. => format!("{scaled:.0} {unit}"),
        10.0..100.0 => format!("{scaled:.1} {unit}"),
        _ => format!("{scaled:.2} {unit}"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

mod kernels;
#[cfg(test)]
mod tests;
