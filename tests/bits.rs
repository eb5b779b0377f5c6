//! Answers, attention files and causes keep their bits on processors with AVX-512, for which the digests hold: they were made by the
//! version before the engine had one kind of request. Elsewhere the last bits differ; the parity tests still hold.

use std::path::Path;

use palimpsest_core::digest::sha256;
use serde_json::Value;

use crate::cli;
use crate::parity::fixture;

/// Same for runs over the sample, of each layer kind, plain and with paths blocked.
const RUNS: [(&str, &[&str], &str, &str); 5] = [
    (
        "llama-tiny",
        &[],
        "2f2c115dd5a55d40bbfe783c6f8cc4fe7d346978031b1c38ac0de69232ad0bb0",
        "5bb9470c8f2e82386e2908a34fbd5422339e648ca346ad4b6c2ea835d2407960",
    ),
    (
        "gemma3-tiny",
        &[],
        "08e2e4d63124e5e17cc8751d3d81f282670ddf0951f10adbb44773b9bbe61af0",
        "2ad6f479dd441dd7943f248f07471e4fe790ece16fd0a6e1f8649501916d39f2",
    ),
    (
        "qwen35-text-tiny",
        &[],
        "2734350867b8ba6ed67fae2cc628eb7c3f1dfd756fc0e7cd427fa393bcea5bf4",
        "341e4af90b51293fa18f25febea5537e7f673a208573ae168f6d77da96b37742",
    ),
    (
        "gpt-oss-tiny",
        &[],
        "fa351eae457d9b9b004f05137cda14c68fe5d11e334625fd04f30b7d81db16d6",
        "21caddb7b8b05d02f07390f1b99274d48ecd4099f10b47c0e576a1773b8eb6d4",
    ),
    (
        "llama-tiny",
        &["--knockout", "query->old", "--knockout", "new->old"],
        "604b96f4df0facb6873301366919c5676413c17cc4d8ac5dd46f539371bb61f5",
        "97c7a9e44dd76063bf2fb9f222ff2ac9b9c71cdd186c8f185fb084f535daeb29",
    ),
];
const CAUSES: &str = "95e22086789d10f632b7cf6b63a1e26ab9c545e59f9c9fe7871147381194a387";

fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

fn palimpsest(folder: &Path, args: &[&str]) {
    let mut command = cli::command(args);
    command.current_dir(folder);
    cli::done(cli::ended(command));
}

/// Digest of the answers without their costs.
fn answers(run: &Path) -> String {
    let rows = std::fs::read_to_string(run.join("answers.jsonl")).unwrap();
    let fields = ["case", "probe", "condition", "answer", "stop", "prompt_tokens", "completion_tokens"];
    let of = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        fields.map(|field| row[field].to_string()).join("\t")
    };
    sha256(rows.lines().map(of).collect::<Vec<_>>().join("\n"))
}

/// Digest of all attention files.
fn attention(run: &Path) -> String {
    let files = std::fs::read_dir(run.join("attention")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let of = |file: &std::path::PathBuf| {
        format!("{} {}", file.file_name().unwrap().to_str().unwrap(), sha256(std::fs::read(file).unwrap()))
    };
    sha256(files.iter().map(of).collect::<Vec<_>>().join("\n"))
}

#[test]
fn answers_attention_files_and_causes_have_the_bits_that_they_had() {
    if !has_avx512() {
        println!("skipped: no AVX-512");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mut found = Vec::new();
    let mut expected = Vec::new();
    for (nth, (model, more, of_answers, of_attention)) in RUNS.into_iter().enumerate() {
        let (path, out) = (fixture(model), format!("run-{nth}"));
        let args =
            ["run", "--data", "sample", "--model", path.to_str().unwrap(), "--out", &out, "--limit", "2"];
        let sizes =
            ["--context", "4096", "--allow-longer", "--max-new-tokens", "12", "--seed", "3", "--query-time"];
        palimpsest(home.path(), &[&args[..], &sizes, more].concat());
        let run = home.path().join(&out);
        found.extend([(model, answers(&run)), (model, attention(&run))]);
        expected.extend([(model, of_answers.to_owned()), (model, of_attention.to_owned())]);
    }
    let model = fixture("llama-tiny");
    palimpsest(home.path(), &["causes", "run-0", "--model", model.to_str().unwrap(), "--controls", "3"]);
    found.push(("causes", sha256(std::fs::read(home.path().join("run-0/causes.jsonl")).unwrap())));
    expected.push(("causes", CAUSES.to_owned()));
    assert_eq!(found, expected);
}
