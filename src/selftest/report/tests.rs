//! Planted faults: the verdict must name each, and say what to do.

use super::*;
use crate::cards::Work;
use crate::selftest::device::Peak;
use crate::selftest::trial::Memory;
use palimpsest_core::attention::AttentionKernel;

fn compared(what: &'static str, found: f64) -> Compared {
    Compared { what, measure: "largest", found, allowed: 1e-3 }
}

fn parity(architecture: &'static str, dtype: &'static str) -> Parity {
    Parity {
        checkpoint: "a-tiny",
        architecture,
        dtype,
        compared: vec![compared("logits", 1e-5), compared("mass", 1e-6)],
        greedy: 32,
        greedy_of: 32,
        error: None,
        sound: true,
    }
}

fn layer(name: &'static str) -> LayerResult {
    let peak = Peak { device: "cuda:0".to_owned(), bytes: 950_000_000, how: How::Pool };
    let trial = Trial {
        kernel: Some(AttentionKernel::Fused),
        tokens: 32_768,
        chunk: 1024,
        rows: 500,
        spans: 500,
        generated: 16,
        loading_seconds: 0.1,
        prefill_seconds: 0.02,
        recording_seconds: 0.01,
        token_seconds: 0.0004,
        prefill: Work::default(),
        recording: Work::default(),
        token: Work::default(),
        masses_off: 1e-6,
        memory: vec![Memory { device: "cuda:0".to_owned(), planned: 1_000_000_000, peak: Some(peak) }],
    };
    LayerResult {
        name,
        of: "Qwen3.5-9B",
        parameters: 200_000_000,
        dtype: "bf16",
        device: "cuda:0".to_owned(),
        agreement: vec![compared("logits", 1e-4)],
        trials: vec![trial],
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
    let parity = ["f32", "bf16"].into_iter().flat_map(|d| ["llama", "qwen3_5"].map(|a| parity(a, d)));
    Report {
        selftest: 1,
        host: Host::here(),
        devices,
        quick: false,
        seconds: 60.0,
        parity: parity.collect(),
        layers: vec![layer("delta net"), layer("attention")],
        peak_resident: None,
    }
}

/// The verdict after a fault has been planted.
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
    assert!(sound && text.ends_with("It can be used.") && text.contains("All 2 models"), "{text}");
    assert!(text.contains("f32 and bf16"), "{text}");
    let text = fine().text();
    for part in [
        "compute capability 8.0",
        "driver 550.54.15 for CUDA up to 12.4",
        "1.0e-4",
        "1.00 GB",
        "0.95 GB",
        "high-water mark",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn half_precision_that_is_off_leaves_f32_and_f32_that_is_off_leaves_nothing() {
    let (sound, text) = after(|report| report.parity[3].sound = false);
    assert!(!sound && text.contains("In bf16, qwen3_5 differs from the CPU"), "{text}");
    assert!(text.contains("Use --dtype f32 there."), "{text}");
    assert!(text.ends_with("Please send the JSON in."), "{text}");

    let (sound, text) = after(|report| report.parity[0].sound = false);
    assert!(!sound && text.contains("use --device cpu") && !text.contains("Use --dtype"), "{text}");
}

#[test]
fn a_dtype_that_cannot_be_run_is_named_with_its_error() {
    let (sound, text) = after(|report| {
        for parity in report.parity.iter_mut().filter(|p| p.dtype == "bf16") {
            (parity.sound, parity.error) = (false, Some("no kernel for bf16".to_owned()));
        }
    });
    let said = "In bf16, llama and qwen3_5 could not be run: no kernel for bf16.";
    assert!(!sound && text.contains(said) && text.contains("Use --dtype f32 there."), "{text}");
}

#[test]
fn a_layer_that_disagrees_loses_mass_or_cannot_be_tried_is_named_and_an_exceeded_plan_is_no_fault() {
    let of = |plant: &dyn Fn(&mut LayerResult)| {
        after(|report| {
            plant(&mut report.layers[0]);
            report.layers[0].sound = false;
        })
    };
    let (sound, text) = of(&|layer| layer.agreement[0].found = 2e-3);
    assert!(!sound && text.contains("`delta net`") && text.contains("differs from the CPU's f32"), "{text}");
    let (sound, text) = of(&|layer| layer.trials[0].masses_off = 0.5);
    assert!(!sound && text.contains("masses that miss 1"), "{text}");
    let (sound, text) = of(&|layer| layer.error = Some("out of memory".to_owned()));
    assert!(!sound && text.contains("could not be tried: out of memory."), "{text}");
    let (sound, text) = after(|report| report.layers[1].trials[0].memory[0].planned = 790_000_000);
    assert!(sound && text.contains("took 0.95 GB where 0.79 GB were planned"), "{text}");
}

#[test]
fn kernels_are_shown_side_by_side_and_no_times_are_trusted_of_a_device_that_only_pretends_to_be_a_card() {
    let mut report = fine();
    let mut products = report.layers[1].trials[0].clone();
    products.kernel = Some(AttentionKernel::Products);
    products.prefill_seconds = 0.5;
    report.layers[1].trials.push(products);
    report.layers[1].notes.push("attention of Qwen3.5-9B, by flash: out of memory".to_owned());
    let text = report.text();
    let line = |kernel: &str| {
        let line = text.lines().rfind(|line| line.contains(kernel)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let row = |kernel: &str, prefill: &str| {
        format!(
            "attention, Qwen3.5-9B 1.0e-4 1.0e-3 {kernel} 32,768 {prefill} ms 10 ms 0.40 ms 1.00 GB 0.95 GB"
        )
    };
    assert_eq!((line("fused "), line("products ")), (row("fused", "20"), row("products", "500")));
    assert!(text.contains("by flash: out of memory\n") && !text.contains("say nothing of"), "{text}");
    let trials = &report.json()["layers"][1]["trials"];
    assert_eq!((&trials[1]["kernel"], &trials[1]["tokens"]), (&json!("products"), &json!(32_768)));
    report.devices[0].card = Some("Rehearsal (no GPU)".to_owned());
    assert!(report.text().contains("They say nothing of which is faster."));
}
