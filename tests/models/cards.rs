//! Hours and numbers of cards by published rates: from a config alone, with nothing fetched.

use std::path::Path;

use palimpsest::selftest::cards::NAMED;
use serde_json::json;

use super::plan::{palimpsest, planned};

#[test]
fn the_page_on_models_lists_every_card_with_its_rates() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md")).unwrap();
    for card in NAMED {
        let row = format!(
            "| `{}` | {} GB | {} | {} | {} | {} |",
            card.name,
            card.memory / 1_000_000_000,
            (card.peaks.half / 1e11).round() / 10.0,
            (card.peaks.f32 / 1e11).round() / 10.0,
            (card.peaks.bandwidth / 1e9).round(),
            card.source
        );
        assert!(page.contains(&row), "docs/models.md lacks {row}");
    }
}

#[test]
fn hours_on_a_card_come_from_a_config_and_are_parted_by_the_number_of_shards() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("config-only");
    std::fs::create_dir(&folder).unwrap();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/configs");
    std::fs::copy(configs.join("llama-3.1-8b-instruct.json"), folder.join("config.json")).unwrap();
    let asked = |card: &str, cases: &str| {
        let folder = folder.to_str().unwrap();
        planned(home.path(), &[folder, "--context", "131072", "--card", card, "--cases", cases])
    };
    let (hundred, all) = (asked("a100-80", "100"), asked("a100-80", "400"));
    let seconds = |plan: &serde_json::Value, part: &str| plan["estimate"][part].as_f64().unwrap();
    assert!((seconds(&all, "seconds") / seconds(&hundred, "seconds") - 4.0).abs() < 1e-9);
    let parts = ["prefill_seconds", "recording_seconds", "decoding_seconds"];
    assert!(
        (parts.map(|part| seconds(&all, part)).iter().sum::<f64>() / seconds(&all, "seconds") - 1.0).abs()
            < 1e-9
    );
    // By hand: 129,984 shared tokens, 2 x 6.98e9 operations each and half the square of pairs in 32 layers, at 156 TFLOP/s.
    let shared = 131_072.0 - 1024.0 - 64.0;
    let products = 2.0 * 6.98e9 * shared + 4.0 * 128.0 * 32.0 * 32.0 * shared * shared / 2.0;
    let prefill = seconds(&hundred, "prefill_seconds") / 100.0;
    assert!((prefill / (products / 156e12) - 1.0).abs() < 0.02, "{prefill}");
    assert_eq!(
        (&all["fits"], &all["estimate"]["cards"], &all["estimate"]["measured"]),
        (&json!(true), &json!(1), &json!(false))
    );
    // Faster products; then faster memory alone.
    let (h100, h200) = (asked("h100", "400"), asked("h200", "400"));
    assert!(seconds(&h100, "prefill_seconds") < 0.4 * seconds(&all, "prefill_seconds"));
    let prefills = [&h200, &h100].map(|plan| seconds(plan, "prefill_seconds"));
    assert!((prefills[0] / prefills[1] - 1.0).abs() < 0.01, "{prefills:?}");
    assert!(seconds(&h200, "decoding_seconds") < 0.75 * seconds(&h100, "decoding_seconds"));
    // 34 GB are more than a 4090 holds, and less than two.
    assert_eq!(asked("rtx-4090", "1")["estimate"]["cards"], json!(2));

    let args = ["model", "plan", folder.to_str().unwrap(), "--context", "131072", "--card", "a100-80"];
    let (code, out, err) = palimpsest(home.path(), &args);
    assert_eq!((code, err.as_str()), (0, ""));
    for part in [
        "It fits.",
        "nothing was measured",
        "400 cases x 3 questions at 131,072 tokens, answers of 1024: ",
        "on one A100 80 GB",
        "8 parts with --shard 0/8 to 7/8: ",
        "50% of 312 TFLOP/s",
        "75% of 2040 GB/s",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (code, _, err) = palimpsest(home.path(), &["model", "plan", "qwen3-8b", "--card", "b200"]);
    assert!(code == 2 && NAMED.iter().all(|card| err.contains(card.name)), "{err}");
}

#[test]
fn a_run_is_estimated_for_a_card_from_a_config_and_the_data_alone() {
    let home = tempfile::tempdir().unwrap();
    let estimate = |model: &str, more: &[&str]| {
        let args = [
            "run",
            "--data",
            "sample",
            "--model",
            model,
            "--context",
            "30000",
            "--estimate",
            "--card",
            "h100",
        ];
        palimpsest(home.path(), &[&args[..], more].concat())
    };
    // A released name, of which nothing is here and nothing is fetched.
    let (code, out, err) = estimate("qwen3-8b", &[]);
    assert_eq!(code, 0, "{err}");
    for part in [
        "60 answers on 20 cases by qwen3-8b (H100 80 GB, bf16)",
        "tokens of o200k_base, since the tokenizer of qwen3-8b is not here",
        "tokens out  61,440 at most (1024 an answer)",
        "one card holds it",
        "nothing was measured",
        "2 parts with --shard 0/2",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!home.path().join("models").exists(), "nothing is fetched");
    // Without attention less is asked for.
    let (_, without, _) = estimate("qwen3-8b", &["--no-attention"]);
    assert!(
        without.contains("recording attention 0.0 s") && !without.contains("of attention files"),
        "{without}"
    );
    // With a tokenizer the tokens are the model's, as the measured estimate counts them.
    let tiny = crate::parity::fixture("llama-tiny");
    let tiny = tiny.to_str().unwrap();
    let flags = ["--limit", "3", "--allow-longer"];
    let (code, own, err) = estimate(tiny, &flags);
    assert_eq!(code, 0, "{err}");
    assert!(!own.contains("o200k_base"), "{own}");
    let measured = [
        "run",
        "--data",
        "sample",
        "--model",
        tiny,
        "--context",
        "30000",
        "--estimate",
        "--estimate-seconds",
        "1",
    ];
    let (_, measured, _) = palimpsest(home.path(), &[&measured[..], &flags].concat());
    let counts = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("tokens in")).unwrap().to_owned();
        line.split(" tokens").next().unwrap().to_owned()
    };
    assert_eq!(counts(&own), counts(&measured));
    // An estimate without a card measures, for which the model has to be here.
    let args = ["run", "--data", "sample", "--model", "qwen3-8b", "--estimate"];
    let (code, _, err) = palimpsest(home.path(), &args);
    assert!(code == 1 && err.contains("fetches nothing") && err.contains("--card a100-80"), "{err}");
}
