//! Context extension by the makers' scaling, from the command that makes the folder to answers at that length.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::plan::{palimpsest, planned};
use crate::parity::fixture;

/// The tiny Qwen3 as released: without scaling, for 512 tokens.
fn unscaled(at: &Path) {
    std::fs::create_dir(at).unwrap();
    for entry in std::fs::read_dir(fixture("qwen3-tiny")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, at.join(path.file_name().unwrap())).unwrap();
    }
    let path = at.join("config.json");
    let mut config: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["rope_parameters"] = json!({"rope_theta": 10000.0, "rope_type": "default"});
    config["max_position_embeddings"] = json!(512);
    std::fs::write(&path, config.to_string()).unwrap();
}

#[test]
fn the_recipe_of_the_docs_makes_a_folder_that_every_command_takes_at_its_length() {
    let root = tempfile::tempdir().unwrap();
    let (plain, long) = (root.path().join("qwen3"), root.path().join("qwen3-long"));
    unscaled(&plain);
    let (plain, long) = (plain.to_str().unwrap(), long.to_str().unwrap());
    let command = |args: &[&str]| palimpsest(root.path(), args);
    let (code, out, err) =
        command(&["model", "extend", plain, "--rope-scaling", "yarn:64:512", "--out", long]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("takes 32,768 tokens"), "{out}");
    // The scaling is visible.
    let (_, info, err) = command(&["model", "info", long]);
    assert!(
        info.contains("yarn, factor 64, over 512 tokens") && info.contains("32,768 tokens"),
        "{info} {err}"
    );
    assert!(info.contains("(265, tokenizer_config.json, generation_config.json, config.json)"), "{info}");
    assert_eq!(planned(root.path(), &[long])["model_context"], json!(32768));
    // Prompts too long for the original fit the new folder; the two are different models.
    let run = |model: &str, out: &str| {
        let out = root.path().join(out);
        let flags = [
            "--sessions",
            "3",
            "--limit",
            "1",
            "--context",
            "32768",
            "--max-new-tokens",
            "4",
            "--out",
            out.to_str().unwrap(),
        ];
        let ran = command(&[&["run", "--data", "sample", "--model", model], &flags[..]].concat());
        (ran, out.join("run.json"))
    };
    let ((code, _, err), _) = run(plain, "short");
    assert!(code != 0 && err.contains("512"), "{err}");
    let ((code, _, err), header) = run(long, "long");
    assert_eq!(code, 0, "{err}");
    let digest = |path: &Path| {
        let header: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        header["identity"]["model"]["digest"].as_str().unwrap().to_owned()
    };
    let longer = root.path().join("qwen3-longer");
    let args = ["model", "extend", plain, "--rope-scaling", "yarn:65:512", "--out", longer.to_str().unwrap()];
    assert_eq!(command(&args).0, 0);
    let ((code, _, err), other) = run(longer.to_str().unwrap(), "longer");
    assert_eq!(code, 0, "{err}");
    assert_ne!(digest(&header), digest(&other));
    // A model that is not local, a GGUF file, another kind of scaling.
    let out = root.path().join("none");
    let out = out.to_str().unwrap();
    let gguf = fixture("gguf-qwen3").join("model.gguf");
    for (model, scaling, part) in [
        ("qwen3-8b", "yarn:4:32768", "model pull qwen3-8b"),
        (gguf.to_str().unwrap(), "yarn:4:32768", "is a GGUF file"),
        (long, "yarn:4:32768", "already (yarn)"),
        (plain, "linear:4", "yarn:4:32768"),
    ] {
        let (code, _, err) = command(&["model", "extend", model, "--rope-scaling", scaling, "--out", out]);
        assert!(code != 0 && err.contains(part) && !Path::new(out).exists(), "{model}: {err}");
    }
}
