//! Plans: sizes of the released configs, the generated table of docs/models.md, and splits that change no bit.

use std::path::Path;
use std::process::Command;

use palimpsest::models::manifest::built_in;
use palimpsest_core::model::ModelDescription;
use serde_json::{Value as Json, json};

use super::what_fits as table;
use crate::parity::fixture;

/// One of each layer kind: full attention, windowed, linear, with experts.
const SPLIT: [&str; 4] = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny", "gpt-oss-tiny"];

pub fn palimpsest(home: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_palimpsest"))
        .env("PALIMPSEST_HOME", home)
        .env_remove("RUST_BACKTRACE")
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

pub fn planned(home: &Path, args: &[&str]) -> Json {
    let (code, out, err) = palimpsest(home, &[&["model", "plan", "--json"], args].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn every_released_config_implies_the_parameters_that_its_model_is_published_with() {
    // Billions of parameters as the model cards state them; from the name where Qwen's and the others' cards give no more digits.
    let published = [
        ("smollm2-135m", 0.1345, 0.001),
        ("smollm3-3b", 3.08, 0.002),
        ("gemma3-270m", 0.268, 0.005),
        ("llama-3.1-8b-instruct", 8.03, 0.002),
        ("llama-3.3-70b-instruct", 70.6, 0.002),
        ("qwen2.5-7b-instruct", 7.61, 0.005),
        ("qwen2.5-14b-instruct", 14.7, 0.006),
        ("qwen2.5-72b-instruct", 72.7, 0.002),
        ("qwen3-4b", 4.0, 0.01),
        ("qwen3-8b", 8.2, 0.005),
        ("qwen3-14b", 14.8, 0.005),
        ("qwen3-32b", 32.8, 0.005),
        ("qwen3-235b-a22b", 235.0, 0.002),
        ("qwen3.5-9b", 9.0, 0.03),
        ("qwen3.5-27b", 27.0, 0.03),
        ("qwen3.5-35b-a3b", 35.0, 0.01),
        ("qwen3.6-35b-a3b", 35.0, 0.01),
        ("qwen3-next-80b-a3b-instruct", 80.0, 0.005),
        ("gpt-oss-20b", 20.9, 0.005),
        ("gpt-oss-120b", 116.8, 0.005),
        // Without the multi-token-prediction layer, which is not run.
        ("glm-4.5-air", 106.0, 0.03),
        ("minimax-m2.5", 229.0, 0.01),
        // Of its 8.8 billion 0.4 are a vision encoder.
        ("ministral-3-8b-base", 8.5, 0.01),
        ("phi-4", 14.7, 0.005),
        ("granite-3.3-8b-instruct", 8.17, 0.002),
        ("olmo-3-7b-instruct", 7.3, 0.005),
        ("exaone-4.0-1.2b", 1.28, 0.002),
        ("lfm2.5-1.2b-instruct", 1.17, 0.005),
        ("lfm2-8b-a1b", 8.3, 0.01),
        ("lfm3-1.7b", 1.73, 0.002),
        ("granite-4.0-h-tiny", 7.0, 0.01),
        ("nemotron-3-nano-30b-a3b", 31.6, 0.005),
        ("deepseek-v2-lite-chat", 15.7, 0.002),
        // Likewise.
        ("deepseek-v3", 671.0, 0.001),
        ("deepseek-v3.2", 671.9, 0.001),
        ("glm-4.7-flash", 30.0, 0.005),
        ("glm-5", 744.0, 0.005),
        ("mistral-small-4-119b", 119.0, 0.005),
        // Of its 8 billion some 0.5 are vision and audio encoders; of the other's 25.2 billion 0.55 are a vision encoder.
        ("gemma4-e4b", 7.5, 0.01),
        // Likewise; its text model has 11,907,350,576.
        ("gemma4-12b", 11.907, 0.0001),
        ("gemma4-26b-a4b", 25.2, 0.01),
    ];
    let names: Vec<&str> = ModelDescription::released_names().collect();
    assert_eq!(names, published.map(|(name, _, _)| name));
    for (name, billions, tolerance) in published {
        let spec = ModelDescription::released(name).unwrap().unwrap().spec;
        let found = spec.parameters() as f64 / 1e9;
        assert!((found / billions - 1.0).abs() <= tolerance, "{name}: {found} for {billions}");
    }
}

#[test]
fn every_manifest_has_a_config_of_its_architecture_and_context() {
    for manifest in built_in().unwrap() {
        let spec = ModelDescription::released(&manifest.name).unwrap().unwrap().spec;
        assert_eq!(spec.max_positions, manifest.context_length, "{}", manifest.name);
        // GGUF manifests use llama.cpp's name, nested checkpoints the outer one.
        let same = |name: &str| name.split(['_', '3']).next().unwrap().to_owned();
        assert_eq!(same(spec.architecture), same(&manifest.architecture), "{}", manifest.name);
    }
}

#[test]
fn a_config_with_pythons_infinity_is_described_and_planned() {
    let home = tempfile::tempdir().unwrap();
    let folder = fixture("nemotron-h-tiny");
    let config = std::fs::read(folder.join("config.json")).unwrap();
    assert!(serde_json::from_slice::<Json>(&config).is_err(), "it is no JSON");
    for command in ["info", "plan"] {
        let (code, out, err) = palimpsest(home.path(), &["model", command, folder.to_str().unwrap()]);
        assert_eq!(code, 0, "{command}: {err}");
        assert!(out.contains("nemotron_h"), "{command}: {out}");
    }
}

/// Rewrites the table if PALIMPSEST_BLESS is set; compares it otherwise.
#[test]
fn the_table_of_what_fits_in_the_docs_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- begin: what fits -->\n", "<!-- end: what fits -->");
    let start = page.find(begin).expect("docs/models.md has the marker") + begin.len();
    let stop = page.find(end).expect("docs/models.md has the marker");
    let expected = table::what_fits().unwrap();
    if std::env::var_os("PALIMPSEST_BLESS").is_some() {
        let blessed = format!("{}{expected}{}", &page[..start], &page[stop..]);
        std::fs::write(&path, blessed).unwrap();
        return;
    }
    assert_eq!(
        &page[start..stop],
        expected,
        "docs/models.md is out of date; PALIMPSEST_BLESS=1 cargo test --release what_fits rewrites it"
    );
}

#[test]
fn a_model_that_fits_some_cards_fits_more_of_them_and_shorter_contexts() {
    for name in ModelDescription::released_names() {
        let description = ModelDescription::released(name).unwrap().unwrap();
        let fits = |context, cards| table::on_cards(&description, context, cards).1;
        for (_, context) in table::CONTEXTS {
            assert!(fits(context, 2) || !fits(context, 1), "{name} at {context}");
            assert!(fits(context, 4) || !fits(context, 2), "{name} at {context}");
            for cards in table::CARDS {
                assert!(fits(context / 2, cards) || !fits(context, cards), "{name} at {context} on {cards}");
            }
        }
    }
}

#[test]
fn a_plan_is_made_from_a_name_a_config_and_a_folder_without_weights_alike() {
    let home = tempfile::tempdir().unwrap();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/core/configs");
    let folder = home.path().join("qwen");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(configs.join("qwen3.5-9b.json"), folder.join("config.json")).unwrap();
    let settings = ["--context", "131072", "--device", "cuda:0,cuda:1", "--memory", "78"];
    let plan = |model: &str| planned(home.path(), &[&[model], &settings[..]].concat());
    let by_name = plan("qwen3.5-9b");
    for path in [configs.join("qwen3.5-9b.json"), folder.join("config.json"), folder] {
        let mut by_path = plan(path.to_str().unwrap());
        by_path["model"] = by_name["model"].clone();
        assert_eq!(by_path, by_name);
    }
    assert_eq!(by_name["fits"], json!(true));
    assert_eq!(by_name["dtype"], "bf16");
    assert_eq!(by_name["devices"].as_array().unwrap().len(), 2);
    let parts = ["weights", "cache", "activations", "observer"];
    let sum: u64 = parts.iter().map(|part| by_name[part].as_u64().unwrap()).sum();
    assert_eq!(by_name["total"], json!(sum));

    let (code, out, err) =
        palimpsest(home.path(), &[&["model", "plan", "qwen3.5-9b"], &settings[..]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    for part in ["24 with linear attention", "cuda:1", "78.00 GB", "It fits."] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn a_plan_says_what_is_not_known_does_not_fit_or_is_longer_than_the_model() {
    let home = tempfile::tempdir().unwrap();
    let plan = |args: &[&str]| palimpsest(home.path(), &[&["model", "plan"], args].concat());
    let (code, out, _) = plan(&["qwen3-8b", "--device", "cuda:7"]);
    assert!(code == 0 && out.contains("not known") && out.contains("--memory GB"), "{out}");
    let (code, out, err) = plan(&["qwen3-8b", "--context", "50000", "--device", "cuda:0", "--memory", "16"]);
    assert!(code == 0 && out.contains("It does not fit."), "{out}");
    assert!(err.contains("50,000 tokens are more than the 40,960"), "{err}");
    for (args, part) in [
        (&["qwen3-8"][..], "qwen3-8b"),
        (&["no-such/config.json"], "no-such/config.json"),
        (&["qwen3-8b", "--device", "tpu"], "`tpu` is no device"),
        (&["qwen3-8b", "--device", "cuda:0,cuda:0"], "names cuda:0 twice"),
        (&["qwen3-8b", "--dtype", "int4"], "`int4` is no dtype"),
        (&["qwen3-8b", "--memory", "0"], "above 0"),
        (&["qwen3-8b", "--context", "0"], "above 0"),
    ] {
        let (code, _, err) = plan(args);
        assert!(code != 0 && err.contains(part), "{args:?}: {err}");
    }
}

#[test]
fn a_plan_of_a_quantised_file_says_what_is_kept_and_keeps_less_where_memory_is_short() {
    let home = tempfile::tempdir().unwrap();
    let file = fixture("gguf-gpt-oss-mxfp4").join("model.gguf");
    let plan = |args: &[&str]| planned(home.path(), &[&[file.to_str().unwrap()], args].concat());
    let gigabytes = |plan: &Json| format!("{}", plan["total"].as_f64().unwrap() / 1e9);
    let (dense, quantised) = (plan(&["--weights", "dense"]), plan(&["--weights", "quantised"]));
    assert_eq!((&dense["kept"], &quantised["kept"]), (&json!("dense"), &json!("quantised")));
    assert!(dense["weights"].as_u64() > quantised["weights"].as_u64(), "{dense} {quantised}");
    assert_eq!(plan(&["--memory", &gigabytes(&dense)])["kept"], "dense");
    let short = plan(&["--memory", &gigabytes(&quantised)]);
    assert_eq!((&short["kept"], &short["fits"]), (&json!("quantised"), &json!(true)));
    // In bf16 the dequantised weights are half as large; f16 has one weight format only.
    let half = plan(&["--dtype", "bf16"]);
    assert_eq!((&half["kept"], &half["cache_dtype"]), (&json!("dense"), &json!("bf16")));
    assert!(half["weights"].as_u64() < dense["weights"].as_u64(), "{half} {dense}");
    assert_eq!(plan(&["--dtype", "f16"])["kept"], Json::Null);
    // Only the KV cache in bf16: half its size.
    let cache = plan(&["--cache-dtype", "bf16"]);
    assert_eq!(2 * cache["cache"].as_u64().unwrap(), dense["cache"].as_u64().unwrap());
    assert_eq!((&cache["dtype"], &cache["cache_dtype"]), (&json!("f32"), &json!("bf16")));
    let args = ["model", "plan", file.to_str().unwrap(), "--memory", &gigabytes(&quantised)];
    let (_, out, _) = palimpsest(home.path(), &args);
    assert!(out.contains("quantised weights are kept packed alone"), "{out}");
}

#[test]
fn a_trace_with_the_layers_split_between_two_devices_is_bit_equal_to_one_without() {
    let home = tempfile::tempdir().unwrap();
    for name in SPLIT {
        let folder = fixture(name);
        let tokens = folder.join("tokens.json");
        let traced = |device: &str| {
            let out = home.path().join("out.safetensors");
            let paths = [&folder, &tokens, &out].map(|path| path.to_str().unwrap().to_owned());
            let args = ["trace", "--model", &paths[0], "--tokens", &paths[1], "--out", &paths[2]];
            let (code, _, err) = palimpsest(home.path(), &[&args[..], &["--device", device]].concat());
            assert_eq!(code, 0, "{name} on {device}: {err}");
            std::fs::read(out).unwrap()
        };
        assert!(traced("cpu") == traced("cpu,cpu"), "{name}");
        // The plan does split them.
        let plan = planned(home.path(), &[folder.to_str().unwrap(), "--device", "cpu,cpu"]);
        let layers: Vec<u64> =
            plan["devices"].as_array().unwrap().iter().map(|d| d["layers"].as_u64().unwrap()).collect();
        assert!(layers.len() == 2 && layers.iter().all(|&n| n > 0), "{name}: {layers:?}");
    }
}

/// With attention recorded over 4,096 and 8,192 tokens of the small real models, which are fetched once into the model home.
#[test]
fn the_peak_memory_of_the_real_models_is_the_planned_one_within_a_tenth() {
    let need = "SmolLM2-135M and Gemma 3 270M, and Linux to tell the peak";
    if crate::left_out::unless_all(need) || !cfg!(target_os = "linux") {
        return;
    }
    for model in ["smollm2-135m", "gemma3-270m"] {
        for tokens in [4096, 8192] {
            peak_is_planned(model, tokens, "dense");
        }
        peak_is_planned(model, 4096, "quantised");
    }
}

fn peak_is_planned(model: &str, length: usize, weights: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (tokens, out, stats) = (path("tokens.json"), path("out.safetensors"), path("stats.json"));
    let file = json!({
        "tokens": (0..length).map(|i| 100 + i * 7919 % 48_000).collect::<Vec<_>>(),
        "spans": { "history": [0, length - 240], "new": [length - 240, length - 40], "query": [length - 40, length] },
        "rows": ["new", "query"],
        "logits": 1,
    });
    std::fs::write(&tokens, file.to_string()).unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_palimpsest")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(&[
        "trace",
        "--model",
        model,
        "--tokens",
        &tokens,
        "--out",
        &out,
        "--stats",
        &stats,
        "--weights",
        weights,
    ]);
    // After the trace, which fetches a missing file: the plan then uses the file.
    let length = length.to_string();
    let plan = run(&[
        "model",
        "plan",
        model,
        "--context",
        &length,
        "--batch-size",
        "1",
        "--weights",
        weights,
        "--json",
    ]);
    let plan: Json = serde_json::from_slice(&plan).unwrap();
    let stats: Json = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    let (planned, measured) = (&plan["peak_resident"], &stats["peak_resident_bytes"]);
    let (planned, measured) = (planned.as_f64().unwrap(), measured.as_f64().unwrap());
    assert!(
        (planned / measured - 1.0).abs() < 0.1,
        "{model}, {length} tokens, {weights}: planned {planned}, measured {measured}"
    );
    println!("{model}, {length} tokens, {weights}: planned {planned}, measured {measured}");
}
