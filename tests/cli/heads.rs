//! Head scores, and a run's masses weighted by them.
use ndarray::Array2;
use palimpsest::heads::{HeadScores, Score};
use palimpsest_core::attention::AttentionStore;
use serde_json::{Value as Json, json};

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn heads(name: &str, out: &Path, more: &[&str]) -> Ended {
    let mut command = command(["heads", "--needles", "2", "--max-new-tokens", "4"]);
    command.arg(fixture(name)).arg("--out").arg(out).args(more);
    if !more.contains(&"--context") {
        command.args(["--context", "5000"]);
    }
    ended(command)
}

fn lens(dir: &Path, file: &Path, more: &[&str]) -> Ended {
    let mut command = command(["lens"]);
    command.arg(dir).arg("--heads").arg(file).args(more);
    ended(command)
}

/// A column of a table, for rows with the `wanted` values.
fn column(csv: &Path, wanted: &[(&str, &str)], name: &str) -> Vec<f64> {
    let mut reader = csv::Reader::from_path(csv).unwrap();
    let head = reader.headers().unwrap().clone();
    let at = |name: &str| head.iter().position(|h| h == name).unwrap_or_else(|| panic!("{name}: {head:?}"));
    let records = reader.records().map(|row| row.unwrap());
    let fits = |row: &csv::StringRecord| wanted.iter().all(|(name, value)| &row[at(name)] == *value);
    records.filter(fits).map(|row| row[at(name)].parse().unwrap()).collect()
}

#[test]
fn heads_are_scored_and_the_same_again_with_the_same_seed() {
    let root = tempfile::tempdir().unwrap();
    let (one, two, csv) = (root.path().join("a.json"), root.path().join("b.json"), root.path().join("h.csv"));
    for (name, layers, linear) in
        [("llama-tiny", vec![0, 1, 2], vec![]), ("qwen35-text-tiny", vec![2], vec![0, 1, 3])]
    {
        let done = heads(name, &one, &["--csv", csv.to_str().unwrap(), "--top", "3"]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(done.out.contains("2 needles") && done.out.contains("wrote"), "{}", done.out);
        assert_eq!(done.out.contains("linear-attention"), !linear.is_empty(), "{}", done.out);
        let scores = HeadScores::load(&one).unwrap();
        assert_eq!((&scores.layers, &scores.linear_layers, scores.heads), (&layers, &linear, 6));
        assert_eq!(scores.qr.len(), layers.len());
        assert!(scores.qr.iter().flatten().any(|x| *x != 0.0));
        // A random model answers nothing.
        assert_eq!((scores.answered, &scores.retrieval), (0, &None));
        assert!(done.out.contains("answered no needle"), "{}", done.out);
        assert!(scores.needles.iter().all(|row| row.prompt_tokens <= 4996 && row.prompt_tokens > 2000));
        assert_ne!(scores.needles[0].session, scores.needles[1].session);
        let rows = column(&csv, &[("layer", &layers[0].to_string())], "qr");
        // Values as in the file: serde_json parses numbers to within the last bit.
        let text = std::fs::read_to_string(&one).unwrap();
        let first = text.split_once("\"qr\"").unwrap().1.split_once(']').unwrap().0;
        let numbers =
            first.trim_start_matches(|c: char| c == ':' || c == '[' || c.is_whitespace()).split(',');
        assert_eq!(rows, numbers.map(|number| number.trim().parse().unwrap()).collect::<Vec<f64>>());
        let again = heads(name, &two, &["--json"]);
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
        assert_eq!(again.out.as_bytes(), std::fs::read(&one).unwrap());
    }
    let missing = heads("llama-tiny", &root.path().join("no/heads.json"), &[]);
    assert!(missing.code == Some(1) && missing.err.contains("no/heads.json"), "{}", missing.err);
    let tight = heads("llama-tiny", &one, &["--context", "700"]);
    assert!(tight.code == Some(1) && tight.err.contains("--context"), "{}", tight.err);
}

#[test]
fn a_run_is_taken_by_the_weights_of_heads_and_files_of_other_models_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let (dir, file) = (root.path().join("run"), root.path().join("heads.json"));
    assert_eq!(run(&dir, &["--limit", "1", "--context", "8192"]).code, Some(0));
    let made = heads("llama-tiny", &file, &[]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let changed = |change: &dyn Fn(&mut Json)| {
        let mut json: Json = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        change(&mut json);
        let path = root.path().join("changed.json");
        std::fs::write(&path, json.to_string()).unwrap();
        path
    };

    // 1. Layer 0 has one head, layer 1 two, layer 2 none.
    let weights = json!([[0, 0, 0.5, 0, -1, 0], [0.1, 0, 0, 0.3, 0, 0], [0, -0.1, 0, 0, 0, 0]]);
    let path = changed(&|json| json["retrieval"] = weights.clone());
    assert_eq!(HeadScores::load(&path).unwrap().ranked(Score::Retrieval)[0], (0, 2, 0.5));
    let done = lens(&dir, &path, &[]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.out.contains("retrieval scores of") && done.out.contains("2 layers"), "{}", done.out);
    let folder = RunFolder::read(&dir).unwrap();
    let stores: Vec<AttentionStore> =
        folder.answers.iter().map(|row| folder.attention(row).unwrap().unwrap()).collect();
    let weight = Array2::from_shape_fn((2, 6), |(l, h)| weights[l][h].as_f64().unwrap().max(0.0));
    let wanted = [
        ("probe", "SR"),
        ("type", "all"),
        ("correctness", "all"),
        ("statistic", "query_to_old"),
        ("scale", "mass"),
    ];
    let curves = dir.join("lens-retrieval/curves.csv");
    let found = column(&curves, &wanted, "mean");
    let store = stores.iter().find(|store| store.probe == "SR").unwrap();
    let row = store.rows.iter().position(|span| span.is("query")).unwrap();
    let key = store.keys.iter().position(|span| span.is("old")).unwrap();
    for (layer, found) in found.iter().enumerate() {
        let mean: f64 =
            (0..6).map(|h| weight[[layer, h]] * f64::from(store.mass[[layer, h, row, key]])).sum::<f64>()
                / weight.row(layer).sum();
        assert!((mean - found).abs() < 1e-6, "layer {layer}: {found} is not {mean}");
    }

    // 2. Equal weights give the plain mean.
    let path = changed(&|json| json["qr"] = json!(vec![vec![0.2; 6]; 3]));
    assert_eq!(lens(&dir, &path, &["--head-score", "qr"]).code, Some(0));
    let mut plain = command(["lens"]);
    plain.arg(&dir);
    assert_eq!(ended(plain).code, Some(0));
    let of = |folder: &str| column(&dir.join(folder).join("curves.csv"), &wanted, "mean");
    let (a, b) = (of("lens-qr"), of("lens"));
    assert!(a.len() == 3 && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-9), "{a:?} {b:?}");

    // 3. Invalid scores are rejected by name.
    let refused = |path: &Path, more: &[&str], parts: &[&str]| {
        let done = lens(&dir, path, more);
        assert!(done.code == Some(1) && parts.iter().all(|p| done.err.contains(p)), "{}", done.err);
    };
    refused(&file, &[], &["answered none", "--head-score qr"]);
    let other = changed(&|json| json["digest"] = json!("00ff"));
    refused(&other, &["--head-score", "qr"], &["changed.json", "00ff", "llama-tiny"]);
    let other = changed(&|json| {
        json["heads"] = json!(5);
        json["qr"] = json!(vec![vec![0.2; 5]; 3]);
    });
    refused(&other, &["--head-score", "qr"], &["5 heads", "6"]);
    let other = changed(&|json| json["qr"] = json!(vec![vec![0.2; 5]; 3]));
    refused(&other, &["--head-score", "qr"], &["`qr` is not 3 layers of 6"]);
    let other = changed(&|json| json["qr"] = json!(vec![vec![-0.2; 6]; 3]));
    refused(&other, &["--head-score", "qr"], &["no head has a qr score above 0"]);
    let other = changed(&|json| json["format"] = json!("heads 0"));
    refused(&other, &["--head-score", "qr"], &["heads 0"]);
    refused(&root.path().join("none.json"), &[], &["none.json"]);
    let alone = palimpsest([Path::new("lens"), &dir, Path::new("--head-score"), Path::new("qr")]);
    assert!(alone.code == Some(2) && alone.err.contains("--heads"), "{}", alone.err);
}

#[test]
fn scores_are_kept_with_the_model_and_a_server_takes_no_other_models() {
    let root = tempfile::tempdir().unwrap();
    let (home, out) = (root.path().join("home"), root.path().join("heads.json"));
    let probe = |more: &[&str]| {
        let mut command = command(["heads", "--max-new-tokens", "2", "--context", "1500"]);
        command.arg(fixture("llama-tiny")).arg("--out").arg(&out).args(more).env("PALIMPSEST_HOME", &home);
        ended(command)
    };
    // Neither a subset of the needles nor an unsaved result.
    for more in [["--needles", "2"].as_slice(), &["--no-keep"]] {
        assert_eq!(probe(more).code, Some(0));
        assert!(!home.join("heads").exists(), "{more:?}");
    }
    let kept = probe(&[]);
    assert_eq!(kept.code, Some(0), "{}", kept.err);
    let scores = HeadScores::load(&out).unwrap();
    let file = HeadScores::kept_at(&home, &scores.digest);
    assert!(kept.err.contains(file.to_str().unwrap()), "{}", kept.err);
    assert_eq!(std::fs::read(file).unwrap(), std::fs::read(&out).unwrap());

    // Scores of another model are rejected.
    let mut command = command(["serve", "--port", "0", "--context", "64"]);
    command.arg(fixture("gpt-oss-tiny")).arg("--heads").arg(&out).env("PALIMPSEST_HOME", &home);
    let refused = ended(command);
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    for word in ["heads.json", "llama-tiny", "gpt-oss-tiny", "palimpsest heads"] {
        assert!(refused.err.contains(word), "{word}: {}", refused.err);
    }
}
