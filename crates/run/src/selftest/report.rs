//! The self-test's report: tables, JSON and a verdict.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::ceilings::Ceilings;
use super::machine::{DeviceFacts, Host, How};
use super::parity::{LayerResult, MASSES_OFF, Parity};
use super::rule::Compared;
use super::trial::Trial;
use crate::progress::grouped;
use palimpsest_core::engine::memory_plan::gigabytes;
use palimpsest_data::ground::table::columns;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub selftest: u32,
    /// False while parts are to come.
    pub finished: bool,
    pub host: Host,
    pub devices: Vec<DeviceFacts>,
    /// Of the first device.
    pub ceilings: Option<Ceilings>,
    pub quick: bool,
    pub seconds: f64,
    pub parity: Vec<Parity>,
    pub layers: Vec<LayerResult>,
    /// Peak resident memory of the process, if known.
    pub peak_resident: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub sound: bool,
    pub text: String,
}

/// Maximum ratio of measured to planned bytes.
const OVER_PLAN: f64 = 1.1;

impl Report {
    fn names(&self) -> String {
        self.devices.iter().map(|facts| facts.device.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Without a verdict while unfinished.
    pub fn json(&self) -> Value {
        let mut json = json!(self);
        json["verdict"] = json!(self.finished.then(|| self.verdict()));
        json
    }

    pub fn text(&self) -> String {
        let mut text = self.host.text();
        let mut seen = BTreeSet::new();
        for facts in self.devices.iter().filter(|facts| seen.insert(&facts.device)) {
            text += &facts.text();
        }
        text += &self.parity_text();
        text += &self.layers_text();
        let Verdict { sound, text: verdict } = self.verdict();
        let title = if sound { "Sound." } else { "NOT SOUND." };
        text + &format!("\nVerdict on {} after {:.0} s: {title} {verdict}\n", self.names(), self.seconds)
    }

    fn parity_text(&self) -> String {
        let header = ["ARCHITECTURE", "DTYPE", "LOGITS", "ALLOWED", "ATTENTION", "ALLOWED", "GREEDY", ""];
        let mut rows = vec![header.map(str::to_owned)];
        for parity in &self.parity {
            let is_logits = |compared: &&Compared| compared.what == "logits";
            let [logits, allowed] = cells(parity.compared.iter().filter(is_logits));
            let [attention, also] = cells(parity.compared.iter().filter(|compared| !is_logits(compared)));
            let (name, dtype) = (parity.architecture.to_owned(), parity.dtype.to_owned());
            let greedy = format!("{} of {}", parity.greedy, parity.greedy_of);
            let wrong = wrong(parity.error.as_deref(), parity.sound);
            rows.push([name, dtype, logits, allowed, attention, also, greedy, wrong]);
        }
        format!(
            "\nSmall models of random weights on {}, prompts in one step and in several, compared with the CPU in one step: largest\ndifferences in f32, root mean squares of differences from f32 in half precision (allowed: 1.6 times the CPU's own).\n\n{}",
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
        let figures = ["KERNEL", "TOKENS", "PREFILL", "RECORDING", "A TOKEN", "PLANNED", "TAKEN"];
        let header = [&["LAYER", "OFF", "ALLOWED"][..], &figures, &[""]].concat();
        let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        for layer in &self.layers {
            let [off, allowed] = cells(layer.agreement.iter());
            let start = [format!("{}, {}", layer.name, layer.of), off, allowed];
            let wrong = wrong(layer.error.as_deref(), layer.sound);
            let figures = layer.trials.iter().map(|trial| {
                let kernel = trial.kernel.map_or_else(String::new, |kernel| kernel.to_string());
                let times = [trial.prefill_seconds, trial.recording_seconds, trial.token_seconds];
                let [prefill, recording, token] = times.map(seconds);
                let (planned, taken) = bytes(trial);
                let taken = taken.map_or_else(String::new, |(taken, _)| gigabytes(taken));
                let tokens = grouped(trial.tokens as u64);
                [kernel, tokens, prefill, recording, token, gigabytes(planned), taken]
            });
            let none = layer.trials.is_empty().then(<[String; 7]>::default);
            let row = |figures: [String; 7]| [&start[..], &figures, std::slice::from_ref(&wrong)].concat();
            rows.extend(figures.chain(none).map(row));
        }
        text += &format!(".\n\n{}", columns(&rows));
        for note in self.layers.iter().flat_map(|layer| &layer.notes) {
            text += &format!("{note}\n");
        }
        if self.layers.iter().any(|layer| layer.trials.len() > 1) {
            text += "Of a layer's kernels of attention the first is the one that --attention-kernel takes.\n";
            if self.quick || self.devices.first().is_some_and(DeviceFacts::pretends) {
                text += "These times show only that the kernels run, not that one is faster.\n";
            }
        }
        text += &self.rates_text();
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

    /// Operations and bytes per second by kernel, and their shares of what the device reaches.
    fn rates_text(&self) -> String {
        let Some(Ceilings { dtype, product, copy }) = self.ceilings else { return String::new() };
        let header =
            ["LAYER", "KERNEL", "PREFILL", "OF PRODUCT", "RECORDING", "OF PRODUCT", "A TOKEN", "OF COPY"];
        let mut rows = vec![header.map(str::to_owned)];
        for (layer, trial) in
            self.layers.iter().flat_map(|layer| layer.trials.iter().map(move |t| (layer, t)))
        {
            let tera = |work: f64, seconds: f64| {
                let rate = work / seconds;
                [format!("{:.2} TFLOP/s", rate / 1e12), format!("{:.0}%", 100.0 * rate / product)]
            };
            let [prefill, of_product] = tera(trial.prefill.operations(), trial.prefill_seconds);
            let [recording, its_share] = tera(trial.recording.operations(), trial.recording_seconds);
            let read = trial.token.bytes / trial.token_seconds;
            rows.push([
                format!("{}, {}", layer.name, layer.of),
                trial.kernel.map_or_else(String::new, |kernel| kernel.to_string()),
                prefill,
                of_product,
                recording,
                its_share,
                format!("{:.0} GB/s", read / 1e9),
                format!("{:.0}%", 100.0 * read / copy),
            ]);
        }
        format!(
            "\nOperations and bytes that were counted, by those seconds, and their shares of what the device reaches: {:.1} TFLOP/s in a\nlarge \
             product in {dtype}, {:.0} GB/s in a copy, read and written.\n\n{}",
            product / 1e12,
            copy / 1e9,
            columns(&rows)
        )
    }

    pub fn verdict(&self) -> Verdict {
        let names = self.names();
        let (mut said, mut usable, mut unusable) = (Vec::new(), Vec::new(), Vec::new());

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
            match failed.is_empty() && wrong.is_empty() {
                _ if of.is_empty() => {}
                true => usable.push(dtype),
                false => unusable.push(dtype),
            }
        }
        said.push(match unusable.as_slice() {
            [] => format!(
                "All {} models agree with the CPU in {}.",
                self.parity.len() / usable.len().max(1),
                listed(usable.into_iter())
            ),
            ["f32", ..] => format!("Do not trust what {names} computes: use --device cpu."),
            _ => format!("Use --dtype {} there.", usable.join(" or ")),
        });

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
            let (kinds, quick) = (self.layers.len(), self.quick);
            let widths = if quick { "reduced widths" } else { "the widths of released models" };
            said.push(format!("The {kinds} kinds of layers agree with the CPU's f32 at {widths}."));
        }
        let sound = unusable.is_empty() && wrong.is_empty();

        for layer in self.layers.iter().filter(|_| !self.quick) {
            for (planned, taken) in layer.trials.iter().map(bytes) {
                let taken = taken.map_or(0, |(taken, _)| taken);
                if taken as f64 > OVER_PLAN * planned as f64 {
                    let [taken, planned] = [taken, planned].map(gigabytes);
                    said.push(format!(
                        "`{}` took {taken} where {planned} were planned: keep that much more free than `model plan` says.",
                        layer.name
                    ));
                }
            }
        }
        if self.quick {
            let quick =
                "This was the quick test, whose speeds say nothing: leave --quick out for real widths.";
            said.push(quick.to_owned());
        }
        said.push(if sound { "It can be used.".to_owned() } else { "Please send the JSON in.".to_owned() });
        Verdict { sound, text: said.join(" ") }
    }
}

fn wrong(error: Option<&str>, sound: bool) -> String {
    match (error, sound) {
        (Some(error), _) => format!("ERROR: {error}"),
        (None, false) => "WRONG".to_owned(),
        (None, true) => String::new(),
    }
}

/// (planned, measured) bytes of the trial's device.
fn bytes(trial: &Trial) -> (u64, Option<(u64, How)>) {
    let peak = trial.memory.first().and_then(|memory| memory.peak.as_ref());
    let taken = peak.filter(|peak| peak.how != How::Process).map(|peak| (peak.bytes, peak.how));
    (trial.memory.first().map_or(0, |memory| memory.planned), taken)
}

fn cells<'a>(compared: impl Iterator<Item = &'a Compared>) -> [String; 2] {
    match compared.max_by(|a, b| a.used().total_cmp(&b.used())) {
        None => [String::new(), String::new()],
        Some(Compared { found: 0.0, allowed, .. }) => ["0".to_owned(), format!("{allowed:.1e}")],
        Some(Compared { found, allowed, .. }) => [format!("{found:.1e}"), format!("{allowed:.1e}")],
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut unique: Vec<&str> = names.collect();
    unique.dedup();
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
mod tests {
    //! Injected faults: the verdict must name each with its remedy.

    use super::*;
    use crate::selftest::machine::Peak;
    use crate::selftest::trial::Memory;
    use palimpsest_core::attention::AttentionKernel;

    fn compared(found: f64) -> Vec<Compared> {
        vec![Compared { what: "logits", measure: "largest", found, allowed: 1e-3 }]
    }

    fn layer(name: &'static str) -> LayerResult {
        let peak = Peak { device: "cuda:0".to_owned(), bytes: 950_000_000, how: How::Pool };
        let memory = Memory { device: "cuda:0".to_owned(), planned: 1_000_000_000, peak: Some(peak) };
        let trial = Trial {
            kernel: Some(AttentionKernel::Fused),
            tokens: 32_768,
            prefill_seconds: 0.02,
            recording_seconds: 0.01,
            token_seconds: 0.0004,
            memory: vec![memory],
            ..Trial::default()
        };
        let (of, agreement, trials) = ("Qwen3.5-9B", compared(1e-4), vec![trial]);
        LayerResult { name, of, agreement, trials, sound: true, ..LayerResult::default() }
    }

    fn fine() -> Report {
        let facts = DeviceFacts {
            device: "cuda:0".to_owned(),
            card: Some("NVIDIA A100-SXM4-80GB".to_owned()),
            compute_capability: Some((8, 0)),
            driver: Some("550.54.15".to_owned()),
            cuda: Some((12, 4)),
            ..DeviceFacts::default()
        };
        let parity = |dtype, architecture| Parity {
            architecture,
            dtype,
            compared: compared(1e-5),
            sound: true,
            ..Parity::default()
        };
        Report {
            selftest: 1,
            finished: true,
            host: Host::here(),
            ceilings: None,
            devices: vec![facts],
            quick: false,
            seconds: 60.0,
            parity: ["f32", "bf16"]
                .into_iter()
                .flat_map(|d| ["llama", "qwen3_5"].map(|a| parity(d, a)))
                .collect(),
            layers: vec![layer("delta net"), layer("attention")],
            peak_resident: None,
        }
    }

    #[test]
    fn every_fault_is_named_with_its_remedy_and_an_exceeded_plan_is_none() {
        type Plant = fn(&mut Report);
        let cases: [(Plant, bool, &[&str], &str); 8] = [
            (|_| {}, true, &["All 2 models", "f32 and bf16", "It can be used."], "NOT SOUND"),
            (
                |report| report.parity[3].sound = false,
                false,
                &[
                    "In bf16, qwen3_5 differs from the CPU",
                    "Use --dtype f32 there.",
                    "Please send the JSON in.",
                ],
                "--device cpu",
            ),
            (|report| report.parity[0].sound = false, false, &["use --device cpu"], "Use --dtype"),
            (
                |report| {
                    for parity in report.parity.iter_mut().filter(|p| p.dtype == "bf16") {
                        (parity.sound, parity.error) = (false, Some("no kernel for bf16".to_owned()));
                    }
                },
                false,
                &[
                    "In bf16, llama and qwen3_5 could not be run: no kernel for bf16.",
                    "Use --dtype f32 there.",
                ],
                "differ from",
            ),
            (
                |report| {
                    report.layers[0].agreement[0].found = 2e-3;
                    report.layers[0].sound = false;
                },
                false,
                &["`delta net`", "differs from the CPU's f32"],
                "masses that miss",
            ),
            (
                |report| {
                    report.layers[0].trials[0].masses_off = 0.5;
                    report.layers[0].sound = false;
                },
                false,
                &["masses that miss 1"],
                "differs from",
            ),
            (
                |report| {
                    (report.layers[0].sound, report.layers[0].error) =
                        (false, Some("out of memory".to_owned()));
                },
                false,
                &["could not be tried: out of memory."],
                "differs from",
            ),
            (
                |report| report.layers[1].trials[0].memory[0].planned = 790_000_000,
                true,
                &["took 0.95 GB where 0.79 GB were planned"],
                "NOT SOUND",
            ),
        ];
        for (plant, expected, parts, absent) in cases {
            let mut report = fine();
            plant(&mut report);
            let Verdict { sound, text } = report.verdict();
            assert_eq!((sound, &report.json()["verdict"]["sound"]), (expected, &json!(expected)), "{text}");
            assert!(report.text().contains(if sound { "Sound. " } else { "NOT SOUND. " }), "{text}");
            assert!(parts.iter().all(|part| text.contains(part)) && !text.contains(absent), "{text}");
        }
    }

    #[test]
    fn every_figure_is_shown_kernels_side_by_side_and_no_times_are_trusted_of_a_device_that_only_pretends() {
        let mut report = fine();
        let mut products = report.layers[1].trials[0].clone();
        products.kernel = Some(AttentionKernel::Products);
        products.prefill_seconds = 0.5;
        report.layers[1].trials.push(products);
        report.layers[1].notes.push("attention of Qwen3.5-9B, by flash: out of memory".to_owned());
        let text = report.text();
        for part in [
            "compute capability 8.0; driver 550.54.15 for CUDA up to 12.4",
            "high-water mark",
            "by flash: out of memory\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for (kernel, prefill) in [("fused", "20"), ("products", "500")] {
            let line = text.lines().rfind(|line| line.contains(&format!("{kernel} "))).unwrap_or_default();
            assert_eq!(
                line.split_whitespace().collect::<Vec<_>>().join(" "),
                format!(
                    "attention, Qwen3.5-9B 1.0e-4 1.0e-3 {kernel} 32,768 {prefill} ms 10 ms 0.40 ms 1.00 GB 0.95 GB"
                )
            );
        }
        let trials = &report.json()["layers"][1]["trials"];
        assert_eq!((&trials[1]["kernel"], &trials[1]["tokens"]), (&json!("products"), &json!(32_768)));
        assert!(!text.contains("say nothing of"), "{text}");
        report.devices[0].card = Some("Rehearsal (no GPU)".to_owned());
        assert!(report.text().contains("only that the kernels run"));
    }
}
