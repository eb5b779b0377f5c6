//! Planted faults: the verdict must name each, and say what to do.

use super::*;
use crate::selftest::kernels::{KernelTrial, Timed};
use crate::selftest::memory::Peak;
use crate::selftest::trial::Memory;
use palimpsest_core::attention::{AttentionKernel, Settled};

fn compared(what: &'static str, found: f64) -> Compared {
    Compared { what, measure: Measure::Largest, found, allowed: 1e-3 }
}

fn parity(architecture: &'static str, dtype: &'static str) -> Parity {
    Parity {
        checkpoint: "a-tiny",
        architecture,
        layout: "bf16",
        dtype,
        compared: vec![compared("logits", 1e-5), compared("mass", 1e-6)],
        greedy: 64,
        greedy_of: 64,
        error: None,
        sound: true,
    }
}

fn layer(name: &'static str) -> LayerResult {
    LayerResult {
        name,
        of: "Qwen3.5-9B",
        parts: String::new(),
        parameters: 200_000_000,
        dtype: "bf16",
        device: "cuda:0".to_owned(),
        agreement: vec![Compared { what: "logits", measure: Measure::Cosine, found: 0.9999, allowed: 0.999 }],
        trials: vec![Trial {
            tokens: 8192,
            chunk: 1024,
            rows: 500,
            spans: 500,
            generated: 16,
            loading_seconds: 0.1,
            prefill_seconds: 0.02,
            recording_seconds: 0.01,
            token_seconds: 0.0004,
            prefill: Work { products: 3e12, products_f32: 0.0, bytes: 1e9 },
            recording: Work::default(),
            token: Work { bytes: 4e8, ..Work::default() },
            masses_off: 1e-6,
            memory: vec![Memory {
                device: "cuda:0".to_owned(),
                planned: 1_000_000_000,
                peak: Some(Peak { device: "cuda:0".to_owned(), bytes: 950_000_000, how: How::Pool }),
            }],
        }],
        notes: Vec::new(),
        error: None,
        sound: true,
    }
}

/// A card on which all is well.
fn fine() -> Report {
    let devices = vec![DeviceFacts {
        device: "cuda:0".to_owned(),
        card: Some("NVIDIA A100-SXM4-80GB".to_owned()),
        memory: Some(85_000_000_000),
        memory_free: Some(84_000_000_000),
        compute_capability: Some((8, 0)),
        driver: Some("550.54.15".to_owned()),
        cuda: Some((12, 4)),
        pool: Some(true),
    }];
    Report {
        selftest: 1,
        host: Host::here(),
        devices,
        quick: false,
        seconds: 60.0,
        parity: ["f32", "bf16"]
            .into_iter()
            .flat_map(|d| ["llama", "qwen3_5"].map(|a| parity(a, d)))
            .collect(),
        yardsticks: None,
        layers: vec![layer("delta net"), layer("attention")],
        attention_kernels: None,
        peak_resident: None,
    }
}

/// What the verdict says after a fault has been planted.
fn after(plant: impl FnOnce(&mut Report)) -> (bool, String) {
    let mut report = fine();
    plant(&mut report);
    let Verdict { sound, text } = report.verdict();
    assert_eq!(report.json()["verdict"]["sound"], sound);
    assert!(report.text().contains(if sound { "Sound. " } else { "NOT SOUND. " }), "{}", report.text());
    (sound, text)
}

#[test]
fn a_card_on_which_all_is_well_is_sound_and_every_figure_is_shown() {
    let (sound, text) = after(|_| {});
    assert!(sound && text.ends_with("It can be used.") && text.contains("f32 and bf16"), "{text}");
    let text = fine().text();
    for part in [
        "compute capability 8.0",
        "driver 550.54.15 for CUDA up to 12.4",
        "312 TFLOP/s in half precision",
        "OF PEAK",
        "RECKONED",
        "1.00 GB",
        "0.95 GB",
        "high-water mark",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn half_precision_that_is_off_leaves_f32_and_f32_that_is_off_leaves_nothing() {
    let (sound, text) = after(|report| {
        let wrong = &mut report.parity[3];
        (wrong.compared[0].found, wrong.sound) = (2.1e-3, false);
    });
    assert!(!sound && text.contains("In bf16, qwen3_5 differs"), "{text}");
    assert!(
        text.contains("logits of qwen3_5, 2.1 times") && text.contains("Use --dtype f32 there."),
        "{text}"
    );
    assert!(text.ends_with("Please send the JSON in."), "{text}");

    let (sound, text) = after(|report| (report.parity[0].greedy, report.parity[0].sound) = (3, false));
    assert!(!sound && text.contains("greedy tokens of llama, far beyond"), "{text}");
    assert!(text.contains("use --device cpu") && !text.contains("Use --dtype"), "{text}");
}

#[test]
fn a_dtype_that_cannot_be_run_is_named_with_its_error() {
    let (sound, text) = after(|report| {
        for parity in report.parity.iter_mut().filter(|p| p.dtype == "bf16") {
            (parity.sound, parity.error) = (false, Some("no kernel for bf16".to_owned()));
        }
    });
    assert!(
        !sound && text.contains("In bf16, llama and qwen3_5 could not be run: no kernel for bf16."),
        "{text}"
    );
    assert!(text.contains("Use --dtype f32 there."), "{text}");
}

#[test]
fn a_layer_that_disagrees_loses_mass_or_cannot_be_tried_is_named() {
    let of = |plant: &dyn Fn(&mut LayerResult)| {
        after(|report| {
            plant(&mut report.layers[0]);
            report.layers[0].sound = false;
        })
    };
    let (sound, text) = of(&|layer| layer.agreement[0].found = 0.5);
    assert!(!sound && text.contains("`delta net`") && text.contains("differs from the CPU's f32"), "{text}");
    let (sound, text) = of(&|layer| layer.trials[0].masses_off = 0.5);
    assert!(!sound && text.contains("masses that miss 1"), "{text}");
    let (sound, text) = of(&|layer| layer.error = Some("out of memory".to_owned()));
    assert!(!sound && text.contains("could not be tried: out of memory."), "{text}");
}

#[test]
fn slowness_and_plans_that_are_exceeded_are_remarked_on_and_no_fault() {
    let (sound, text) = after(|report| report.layers[1].trials[0].prefill_seconds = 1.0);
    assert!(sound && text.contains("Slower than reckoned: attention ("), "{text}");
    let (sound, text) = after(|report| {
        if let Some(peak) = &mut report.layers[1].trials[0].memory[0].peak {
            peak.bytes = 1_200_000_000;
        }
    });
    assert!(sound && text.contains("took 1.20 GB where 1.00 GB were planned"), "{text}");
}

/// Products and our own kernels at one layer; the seconds of the latter.
fn kernel_trial(tokens: usize, [prefill, recording, token, recorded]: [f64; 4]) -> KernelTrial {
    let timed = |kernel, [prefill, recording, token, recorded]: [f64; 4]| Timed {
        kernel,
        prefill_seconds: prefill,
        recording_seconds: recording,
        token_seconds: token,
        recorded_token_seconds: recorded,
    };
    let (products, fused) = (AttentionKernel::Products, AttentionKernel::Fused);
    KernelTrial {
        layer: "attention",
        of: "Llama-3.1-8B",
        dtype: "bf16",
        tokens,
        auto: Settled { forward: fused, sums: fused },
        kernels: vec![
            timed(products, [0.5, 0.5, 0.5, 0.5]),
            timed(fused, [prefill, recording, token, recorded]),
        ],
    }
}

fn with_kernels(trials: Vec<KernelTrial>) -> Report {
    let notes = vec!["flash at attention of Llama-3.1-8B over 8,192 tokens: out of memory".to_owned()];
    Report { attention_kernels: Some(KernelTimes { trials, notes }), ..fine() }
}

#[test]
fn kernels_are_shown_side_by_side_and_the_fastest_of_the_longest_prompt_is_named_with_what_auto_takes() {
    let trials = |longest| vec![kernel_trial(8192, [0.9; 4]), kernel_trial(32_768, longest)];
    let report = with_kernels(trials([0.2, 0.01, 0.004, 0.3]));
    let text = report.text();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let row =
        ["attention,", "Llama-3.1-8B", "32,768", "fused", "200", "ms", "10", "ms", "4.00", "ms", "300", "ms"];
    assert!(lines.iter().any(|line| *line == row), "{text}");
    assert_eq!(lines.iter().filter(|line| line.contains(&"products")).count(), 2, "{text}");
    let said =
        "attention, Llama-3.1-8B: auto takes fused. Over 32,768 tokens fused is the fastest in everything.\n";
    assert!(text.contains(said) && text.contains("out of memory\n"), "{text}");
    assert!(!text.contains("say nothing of"), "{text}");
    let json = report.json();
    let first = &json["attention_kernels"]["trials"][0];
    assert_eq!((&first["auto"]["forward"], &first["tokens"]), (&json!("fused"), &json!(8192)));
    assert_eq!(first["kernels"][0]["kernel"], "products");
    assert_eq!(first["kernels"][1]["recorded_token_seconds"], 0.9);

    let mixed = with_kernels(trials([0.9, 0.1, 0.1, 0.9])).text();
    let said = "products is the fastest for prefill and a recorded token; fused is the fastest for recording and a token. \
                --attention-kernel products is the faster choice for its prefill.\n";
    assert!(mixed.contains(said), "{mixed}");
}

#[test]
fn no_kernel_is_called_the_fastest_where_times_mean_nothing_and_nothing_is_said_of_a_single_kernel() {
    let trials = || vec![kernel_trial(256, [0.1; 4])];
    let quick = Report { quick: true, ..with_kernels(trials()) };
    let mut pretended = with_kernels(trials());
    pretended.devices[0].card = Some("Rehearsal (no GPU)".to_owned());
    for report in [quick, pretended] {
        let text = report.text();
        assert!(text.contains("They say nothing of which is faster."), "{text}");
        assert!(text.contains("auto takes fused.\n") && !text.contains("is the fastest"), "{text}");
    }
    let alone = fine();
    assert!(!alone.text().contains("by each kernel"), "{}", alone.text());
    assert!(alone.json().get("attention_kernels").is_none());
}
