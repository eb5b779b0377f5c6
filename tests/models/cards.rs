//! GPU hours and GPU counts from published rates and the shares of them that an H100 reached: from a config alone, without fetching
//! anything.

use std::path::Path;

use palimpsest::cards::{
    CaseShape, Forecast, GAP, Kernel, LAUNCH, LayerWork, NAMED, NamedCard, Recording, Work, duration,
};
use palimpsest_core::model::{DecoderSpec, ModelDescription};
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
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/core/configs");
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
    // By hand: 129,984 shared tokens, 2 x 6.98e9 operations each at 44% of 312 TFLOP/s, and half the square of pairs in 32 layers at 27%.
    let shared = 131_072.0 - 1024.0 - 64.0;
    let (maps, pairs) = (2.0 * 6.98e9 * shared, 4.0 * 128.0 * 32.0 * 32.0 * shared * shared / 2.0);
    let prefill = seconds(&hundred, "prefill_seconds") / 100.0;
    assert!((prefill / (maps / 137.28e12 + pairs / 84.24e12) - 1.0).abs() < 0.02, "{prefill}");
    assert_eq!(
        (&all["fits"], &all["estimate"]["cards"], &all["estimate"]["measured"]),
        (&json!(true), &json!(1), &json!(false))
    );
    // Faster compute; then only faster memory.
    let (h100, h200) = (asked("h100", "400"), asked("h200", "400"));
    assert!(seconds(&h100, "prefill_seconds") < 0.4 * seconds(&all, "prefill_seconds"));
    let prefills = [&h200, &h100].map(|plan| seconds(plan, "prefill_seconds"));
    assert!((prefills[0] / prefills[1] - 1.0).abs() < 0.01, "{prefills:?}");
    assert!(seconds(&h200, "decoding_seconds") < 0.75 * seconds(&h100, "decoding_seconds"));
    // 34 GB exceed one 4090 but fit two.
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
        "of 312 TFLOP/s: 44% for linear maps, 27% for attention, 15% for recorded rows",
        "of 2040 GB/s: 66% for decoding",
        "As measured on one H100 80 GB on 2026-11-26; assumed of this card, which was not measured",
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
    // A released name: nothing is local and nothing is fetched.
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
    // Less is needed without attention.
    let (_, without, _) = estimate("qwen3-8b", &["--no-attention"]);
    assert!(
        without.contains("recording attention 0.0 s") && !without.contains("of attention files"),
        "{without}"
    );
    // With a tokenizer the token counts are the model's, as in the measured estimate.
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
    // An estimate without a GPU name measures, so the model must be local.
    let args = ["run", "--data", "sample", "--model", "qwen3-8b", "--estimate"];
    let (code, _, err) = palimpsest(home.path(), &args);
    assert!(code == 1 && err.contains("fetches nothing") && err.contains("--card a100-80"), "{err}");
}

fn released(name: &str) -> DecoderSpec {
    ModelDescription::released(name).unwrap().unwrap().spec
}

fn a100() -> NamedCard {
    "a100-80".parse().unwrap()
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
}

#[test]
fn a_wrong_name_lists_the_cards_and_titles_have_their_memory() {
    for card in NAMED {
        assert_eq!(card.name.to_uppercase().parse(), Ok(card));
        assert!(card.title.contains(&format!("{} GB", card.memory / 1_000_000_000)), "{}", card.name);
    }
    let unknown = "b200".parse::<NamedCard>().unwrap_err().to_string();
    assert!(NAMED.iter().all(|card| unknown.contains(card.name)) && unknown.contains("`b200`"), "{unknown}");
}

#[test]
fn seconds_add_up_over_products_and_bytes() {
    // A second each: 44% of 312 TFLOP/s, 27% and 15%; 30% of 19.5; 66% of 2.04 TB/s, and 11 and half an operation a byte of it.
    let [maps, attention, rows] = [137.28e12, 84.24e12, 46.8e12];
    let (experts, rule, f32, bytes) = (22.44e12, 1.02e12, 5.85e12, 1.3464e12);
    let products = maps + experts + attention + rows;
    let work = Work { products, experts, attention, rows, products_f32: f32 + rule, rule, bytes };
    near(a100().peaks.seconds(&work, true), 7.0);
    near(a100().peaks.seconds(&work, false), (products - experts) / 5.85e12 + 4.0);
}

#[test]
fn operations_are_those_of_every_product_of_every_token_counted_one_by_one() {
    // Three layers of width 8 with 2 heads of 4 and 1 KV head, a window of 3 in all but the last.
    let config = br#"{"model_type": "gemma3_text", "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32,
        "max_position_embeddings": 64, "sliding_window": 3, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 4, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "tie_word_embeddings": true}"#;
    let spec = ModelDescription::from_config_text(config, "config").unwrap().spec;
    let (hidden, inner, heads, kv, width, tokens) = (8, 16, 2, 1, 4, 20usize);
    let (mut maps, mut pairs) = (0usize, 0usize);
    for window in [Some(3), Some(3), None] {
        for query in 0..tokens {
            // Shapes of q, k, v, o, gate, up, down; one multiplication and one addition each.
            let shapes = [
                (hidden, heads * width),
                (hidden, kv * width),
                (hidden, kv * width),
                (heads * width, hidden),
                (hidden, inner),
                (hidden, inner),
                (inner, hidden),
            ];
            maps += shapes.map(|(rows, columns)| 2 * rows * columns).iter().sum::<usize>();
            let keys = (0..=query).filter(|key| window.is_none_or(|window| key + window > query)).count();
            // Scores and the weighted sum of values.
            pairs += 2 * (2 * heads * width * keys);
        }
    }
    let found: Work = LayerWork::all(&spec, 2).map(|layer| layer.prefill(tokens, Kernel::Fused)).sum();
    let norms: f64 = spec.layers.iter().map(|layer| layer.parameters(hidden) as f64).sum::<f64>()
        - maps as f64 / (2.0 * tokens as f64);
    // The slack: norm weights count as products, and half a key per query.
    let slack = 2.0 * norms * tokens as f64 + (3 * 4 * heads * width * tokens) as f64 / 2.0;
    assert!((found.products - (maps + pairs) as f64).abs() <= slack, "{found:?}: {maps} {pairs}");
    assert!(norms < 250.0, "{norms}");
    assert_eq!((found.products_f32, found.bytes), (0.0, 0.0));
}

#[test]
fn experts_cost_what_a_token_is_sent_to_and_windows_bound_what_decoding_reads() {
    let moe = released("gpt-oss-20b");
    let layers: Vec<LayerWork> = LayerWork::all(&moe, 2).take(2).collect();
    let expert = f64::from(3 * 2880 * 2880 + 2 * 2880 + 2880);
    let all = moe.layers[0].parameters(moe.hidden) as f64;
    assert_eq!(layers[0].weights(1), all - 28.0 * expert);
    assert_eq!(layers[0].weights(100), all, "no more experts than there are");
    // Keys and values, and 16 bytes per score.
    let a_token = 2.0 * 2.0 * 8.0 * 64.0 + 16.0 * 64.0;
    let cache = |layer: &LayerWork, kernel| layer.step(10_000, 0, 1, kernel).bytes - 2.0 * layer.weights(1);
    assert_eq!(cache(&layers[0], Kernel::Blocks), 128.0 * a_token);
    assert_eq!(cache(&layers[1], Kernel::Blocks), 10_000.0 * a_token);
    assert_eq!(cache(&layers[1], Kernel::Fused), 10_000.0 * 2.0 * 2.0 * 8.0 * 64.0);
    // A window of 128 for each of three answers, and 4 experts each.
    let read = 2.0 * (all - 20.0 * expert) + 3.0 * 128.0 * 2.0 * 2.0 * 8.0 * 64.0;
    assert_eq!(layers[0].step(900, 100, 3, Kernel::Fused).bytes, read);
}

#[test]
fn rows_cost_their_products_with_keys_and_a_step_reads_weights_and_shared_keys_once() {
    let llama = released("llama-3.1-8b-instruct");
    let layer = LayerWork::all(&llama, 2).next().unwrap();
    let recording = Recording { rows: 3, spans: 7 };
    let scores = 3.0 * 1000.0 * 32.0;
    // Half precision on tensor cores, computed twice.
    let fused = layer.recorded(1000, recording, Kernel::Fused);
    assert_eq!((fused.products_f32, fused.products, fused.bytes), (0.0, 4.0 * 128.0 * scores, 0.0));
    let wide = LayerWork::all(&llama, 4).next().unwrap().recorded(1000, recording, Kernel::Fused);
    assert_eq!((wide.products_f32, wide.products), (2.0 * 128.0 * scores, 0.0));
    let blocks = layer.recorded(1000, recording, Kernel::Blocks);
    assert_eq!((blocks.products_f32, blocks.bytes), (2.0 * 135.0 * scores, 20.0 * scores));

    let (weights, a_token) = (2.0 * layer.weights(1), 2.0 * 2.0 * 8.0 * 128.0);
    assert_eq!(layer.step(900, 100, 1, Kernel::Fused).bytes, weights + 1000.0 * a_token);
    assert_eq!(layer.step(900, 100, 3, Kernel::Fused).bytes, weights + (900.0 + 300.0) * a_token);
}

#[test]
fn a_model_s_prefill_is_near_twice_its_weights_for_each_token_where_prompts_are_short() {
    for name in ["llama-3.1-8b-instruct", "qwen3.5-9b"] {
        let spec = released(name);
        let work: Work = LayerWork::all(&spec, 2).map(|layer| layer.prefill(512, Kernel::Fused)).sum();
        let weights = spec.parameters() as f64 - 2.0 * (spec.vocab * spec.hidden) as f64;
        let ratio = work.operations() / (2.0 * weights * 512.0);
        assert!((1.0..1.06).contains(&ratio), "{name}: {ratio}");
        assert_eq!(work.bytes, 0.0, "{name}");
    }
}

#[test]
fn hours_are_operations_and_bytes_by_the_part_of_the_rates_that_is_assumed() {
    let (llama, small) = (released("llama-3.1-8b-instruct"), released("smollm2-135m"));
    let forecast = Forecast { spec: &llama, peaks: a100().peaks, size: 2, kernel: Kernel::Fused, batch: 3 };
    // 100,000 tokens: 2 x 6.98e9 operations per token at 137.28 TFLOP/s, and 4 x 128 x 32 heads x half the square in 32 layers at 84.24.
    let (maps, pairs) = (2.0 * 6.98e9 * 1e5, 4.0 * 128.0 * 32.0 * 32.0 * 5e9);
    near(forecast.prefill(0, 100_000), maps / 137.28e12 + pairs / 84.24e12);
    // A step of three reads 7.5e9 weights with the head and 131,072 bytes per key, at 1.3464 TB/s, between 32 x 20 launches.
    let bytes = 2.0 * (6.98e9 + 128_256.0 * 4096.0) + 131_072.0 * (100_000.0 + 3.0 * 612.0);
    let step = bytes / 1.3464e12 + 640.0 * GAP;
    near(forecast.step(100_000, 612, 3), step);
    let recording = Recording { rows: 0, spans: 0 };
    let case = CaseShape { shared: 100_000, own: vec![100; 3], answer: 1024, recording };
    let expected = forecast.case(&case);
    near(expected.decoding, 1024.0 * step);
    let alone = Forecast { batch: 1, ..forecast }.case(&case);
    assert!(alone.decoding > 2.5 * expected.decoding, "{alone:?} {expected:?}");
    assert!(expected.prefill > forecast.prefill(0, 100_000) && expected.recording == 0.0);
    // A hundred more tokens take at least one read of the weights.
    assert!(forecast.prefill(1000, 1) >= 2.0 * 6.98e9 / 1.6e12);
    // Kernel launches bound a model that is read faster than they start.
    let small = Forecast { spec: &small, batch: 1, ..forecast };
    assert_eq!(small.step(100, 0, 1), 30.0 * 20.0 * LAUNCH);
    assert_eq!([3.21, 59.6, 600.0, 36_000.0].map(duration), ["3.2 s", "60 s", "10 min", "10.0 h"]);
}

/// Qwen3-8B's shape on the H100 of benches/runs/2026-11-26-h100 by the whole program (`later/`): tokens, and seconds of a prefill, of recording
/// 500 rows over 500 spans, and of a token after it, in the mean of its runs.
const FOUND: [(usize, [f64; 3]); 3] = [
    (8192, [0.3637, 0.0864, 8.59e-3]),
    (32_768, [2.1035, 0.1452, 10.63e-3]),
    (131_072, [22.619, 0.3270, 18.64e-3]),
];

#[test]
fn a_forecast_is_within_15_percent_of_what_was_measured_on_an_h100() {
    let spec = released("qwen3-8b");
    let card: NamedCard = "h100".parse().unwrap();
    let forecast = Forecast { spec: &spec, peaks: card.peaks, size: 2, kernel: Kernel::Fused, batch: 1 };
    let recording = Recording { rows: 500, spans: 500 };
    let later = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/runs/2026-11-26-h100/later");
    let runs = ["try-8k-1", "try-8k-2", "try-8k-3", "try-32k-1", "try-32k-2", "try-131k"].map(|name| {
        let text = std::fs::read_to_string(later.join(format!("{name}.json"))).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["trial"].clone()
    });
    for (tokens, found) in FOUND {
        let forecast = [
            forecast.prefill(0, tokens),
            forecast.recording(tokens, recording),
            forecast.step(tokens, 32, 1),
        ];
        for ((what, expected), found) in
            ["prefill_seconds", "recording_seconds", "token_seconds"].into_iter().zip(forecast).zip(found)
        {
            let of = runs.iter().filter(|run| run["tokens"] == tokens);
            let each: Vec<f64> = of.map(|run| run[what].as_f64().unwrap()).collect();
            near(each.iter().sum::<f64>() / each.len() as f64, found);
            let off = expected / found - 1.0;
            assert!(off.abs() < 0.15, "{what} of {tokens}: {expected} where {found} was measured");
        }
    }
}

#[test]
fn delta_nets_and_experts_take_about_what_single_layers_took_on_an_h100() {
    let card: NamedCard = "h100".parse().unwrap();
    let recording = Recording { rows: 500, spans: 500 };
    // Milliseconds of a prefill of 32,768 tokens and of recording, of the table of layers in the same folder.
    for (name, layer, prefill, recorded) in
        [("qwen3.5-9b", 0, 138.0, Some(202.0)), ("gpt-oss-20b", 1, 221.0, None)]
    {
        let spec = released(name);
        let layer = LayerWork::all(&spec, 2).nth(layer).unwrap();
        let milliseconds = |work: Work| 1e3 * card.peaks.seconds(&work, true);
        let found = milliseconds(layer.prefill(32_768, Kernel::Fused));
        assert!((found / prefill - 1.0).abs() < 0.15, "{name}: {found}");
        if let Some(recorded) = recorded {
            let found = milliseconds(layer.recorded(32_768, recording, Kernel::Fused));
            assert!((found / recorded - 1.0).abs() < 0.15, "{name}: {found}");
        }
    }
}
