//! The commands as clients: `run` answers over the server as it does with the model itself.

use palimpsest::run::store::RunFolder;

use super::{Setting, fixture, serve_path};
use crate::cli::palimpsest;

#[test]
fn a_run_over_the_server_has_the_answers_of_a_run_with_the_model() {
    let setting = Setting { context: 8192, ..Setting::default() };
    let served = serve_path(&fixture("llama-tiny"), setting);
    let root = tempfile::tempdir().unwrap();
    let model = fixture("llama-tiny").display().to_string();
    let answers = |model: &str, dir: &str| {
        let out = root.path().join(dir);
        let shown = out.display().to_string();
        let done = palimpsest([
            "run",
            "--data",
            "sample",
            "--sessions",
            "2",
            "--limit",
            "2",
            "--max-new-tokens",
            "12",
            "--no-attention",
            "--model",
            model,
            "--out",
            &shown,
        ]);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let answers = RunFolder::read(&out).unwrap().answers;
        answers.into_iter().map(|row| (row.case, row.probe, row.answer)).collect::<Vec<_>>()
    };
    let local = answers(&model, "local");
    assert_eq!(local.len(), 6);
    assert_eq!(answers(&format!("{}#llama-tiny", served.url("/v1")), "served"), local);
}

#[test]
fn the_command_refuses_what_it_cannot_serve_before_it_opens_a_model() {
    for (args, said) in [
        (&["serve", "a", "b"][..], "one model"),
        (&["serve", "a", "--host", "0.0.0.0", "--port", "0"], "--api-key-file"),
    ] {
        let refused = palimpsest(args.iter().copied());
        assert!(refused.code == Some(2) && refused.err.contains(said), "{args:?}: {}", refused.err);
    }
    let refused = palimpsest(["serve", "a", "--port", "0", "--api-key-file", "no/such/file"]);
    assert!(refused.code == Some(1) && refused.err.contains("no/such/file"), "{}", refused.err);
}
