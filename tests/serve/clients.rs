//! Commands as clients: `run` over the server equals `run` with the local model.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use ndarray::Array4;
use palimpsest::chat::endpoint::{Endpoint, Keys, Patience, ServerModel};
use palimpsest::runs::rows::AnswerRow;
use palimpsest::runs::store::RunFolder;
use palimpsest_core::attention::{AnswerRows, AttentionStore, Knockout, LayerHoles};
use palimpsest_core::engine::{
    self, Backend, Branch, Event, Generate, Observe, Request, Rows, Sampling, Task, ThinkingOptions,
};
use palimpsest_core::span::Span;

use super::{Setting, fixture, open, serve_path};
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

/// Attention files of a run, by name.
fn attention(out: &Path) -> BTreeMap<OsString, AttentionStore> {
    let files = std::fs::read_dir(out.join("attention")).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name(), AttentionStore::load(&file.path()).unwrap())).collect()
}

fn apart<'a>(a: impl IntoIterator<Item = &'a f32>, b: impl IntoIterator<Item = &'a f32>) -> f32 {
    a.into_iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_run_over_the_server_has_the_attention_of_a_run_with_the_model() {
    // Without and with windows.
    for name in ["llama-tiny", "gemma3-tiny"] {
        let served = serve_path(&fixture(name), Setting { context: 8192, ..Setting::default() });
        let root = tempfile::tempdir().unwrap();
        let run = |model: &str, dir: &str| {
            let out = root.path().join(dir);
            let shown = out.display().to_string();
            let args =
                ["run", "--data", "sample", "--sessions", "2", "--limit", "2", "--max-new-tokens", "9"];
            let done = palimpsest([&args[..], &["--model", model, "--out", &shown]].concat());
            assert_eq!(done.code, Some(0), "{}", done.err);
            out
        };
        let local = run(&fixture(name).display().to_string(), "local");
        let over = run(&format!("{}#{name}", served.url("/v1")), "served");
        let answers = |out: &Path| {
            let answers = RunFolder::read(out).unwrap().answers;
            let row = |row: AnswerRow| (row.case, row.probe, row.answer, row.prompt_tokens);
            answers.into_iter().map(row).collect::<Vec<_>>()
        };
        assert_eq!(answers(&over), answers(&local), "{name}");
        // The run's header.
        let header = RunFolder::read(&over).unwrap().header;
        assert!(header.identity.attention && header.identity.dtype.as_deref() == Some("f32"));
        let (local, over) = (attention(&local), attention(&over));
        assert_eq!(local.len(), 6, "{name}");
        assert_eq!(over.keys().collect::<Vec<_>>(), local.keys().collect::<Vec<_>>());
        for (file, own) in &local {
            let other = &over[file];
            let (share, others) = (own.uniform.as_ref().unwrap(), other.uniform.as_ref().unwrap());
            assert!(own.mass.dim() == other.mass.dim() && apart(&own.mass, &other.mass) < 5e-6, "{file:?}");
            assert!(share.share.dim() == others.share.dim() && apart(&share.share, &others.share) < 1e-6);
            assert_eq!(share.windows, others.windows);
            // Everything else is identical: rows, spans, layers, tokens, names.
            let bare = |store: &AttentionStore| AttentionStore {
                mass: Array4::zeros((0, 0, 0, 0)),
                uniform: None,
                ..store.clone()
            };
            assert_eq!(bare(own), bare(other), "{name} {file:?}");
            assert!(own.rows.iter().any(|row| row.label == "answer") && !own.generated.is_empty());
        }
    }
}

#[test]
fn a_server_answers_requests_as_the_model_does_and_names_what_it_cannot_be_asked_for() {
    let served = serve_path(&fixture("llama-tiny"), Setting::default());
    let address = format!("{}#llama-tiny", served.url("/v1"));
    let endpoint = Endpoint::from_address(&address, &Keys::default(), Patience::default()).unwrap();
    let card = endpoint.server_card().unwrap().unwrap();
    let mut there = ServerModel::new(endpoint, card, 2);
    let mut local = open(&fixture("llama-tiny"), 2048, ThinkingOptions::default());
    let stop = local.stop_tokens().to_vec();
    let here = local.session();
    assert_eq!((there.dtype(), there.layer_kinds()), (here.dtype(), here.layer_kinds()));

    let prefix: Arc<[u32]> = (0..60).map(|i| 3 + i * 7919 % 61).collect();
    let keys = vec![Span::new("last", 0..20), Span::new("b", 20..64)];
    let rows = Rows {
        spans: vec![Span::new("c", 50..60), engine::last(64)],
        answer: AnswerRows { mean: Some(1), ..AnswerRows::default() },
    };
    let request = || {
        let generate = Generate::new(Sampling::greedy(7), stop.clone());
        let texts = vec![vec![9, 10, 11], vec![12]];
        let branch = |tokens: [u32; 4], tasks| Branch {
            tokens: tokens.to_vec(),
            observe: Observe { rows: rows.clone(), keys: keys.clone(), ..Observe::default() },
            tasks,
            ..Branch::default()
        };
        let branches = vec![
            branch([5, 6, 7, 8], vec![Task::Generate(Box::new(generate)), Task::Score(texts)]),
            branch([8, 7, 6, 5], vec![Task::Read]),
        ];
        Request { prefix: Arc::clone(&prefix), branches, ..Request::default() }
    };
    let outputs = |model: &mut dyn Backend, request: Request| {
        let mut outputs = BTreeMap::new();
        model.run(request, &mut |branch, task, event| {
            match event {
                Event::Done(measured) => drop(outputs.insert((branch, task), Ok(measured))),
                Event::Failed(error) => drop(outputs.insert((branch, task), Err(error.to_string()))),
                _ => {}
            }
            true
        });
        outputs
    };
    let (found, expected) = (outputs(&mut there, request()), outputs(here, request()));
    assert_eq!(found.len(), 3);
    for (task, expected) in &expected {
        let (found, expected) = (found[task].as_ref().unwrap(), expected.as_ref().unwrap());
        assert_eq!(found.generated.tokens, expected.generated.tokens);
        assert_eq!(found.scores.len(), expected.scores.len());
        for (found, expected) in found.scores.iter().zip(&expected.scores) {
            assert!((found.unwrap() - expected.unwrap()).abs() < 1e-4, "{found:?} is not {expected:?}");
        }
        // The server gives no masses beside scores.
        if *task != (0, 1) {
            let (found, expected) = (&found.masses, &expected.masses);
            assert_eq!((&found.layers, &found.rows), (&expected.layers, &expected.rows));
            assert!(apart(&found.mass, &expected.mass) < 5e-6);
        }
    }

    let asked = |observe: Observe, knockouts: LayerHoles, task: Task| {
        let branch =
            Branch { tokens: vec![3, 4, 5], observe, knockouts, tasks: vec![task], ..Branch::default() };
        Request { branches: vec![branch], ..Request::default() }
    };
    let layers = there.layer_kinds();
    let hidden: Knockout = "query->a".parse().unwrap();
    let spans = [Span::new("a", 0..1), Span::new("query", 1..3)];
    let holes = LayerHoles::new(&[hidden], &spans, 3, &layers).unwrap();
    for (request, what) in [
        (
            asked(Observe::default(), LayerHoles::default(), Task::Force([4].into())),
            "the logits of a given answer",
        ),
        (asked(Observe { norms: true, ..Observe::default() }, LayerHoles::default(), Task::Read), "norms"),
        (asked(Observe::default(), holes, Task::Score(vec![vec![4]])), "likelihoods with something blocked"),
    ] {
        let outputs = outputs(&mut there, request);
        let error = outputs[&(0, 0)].as_ref().unwrap_err();
        assert!(error.contains(what) && error.contains("run the model itself"), "{error}");
    }
}

#[test]
fn the_command_refuses_what_it_cannot_serve_before_it_opens_a_model() {
    for (args, said) in [
        (&["serve", "a", "b"][..], "one model answers, and a and b are two"),
        (&["serve", "all-minilm-l6-v2"], "name a model that answers"),
        (&["serve", "a", "all-minilm-l6-v2", "b"], "a and b are two"),
        (&["serve", "a", "--host", "0.0.0.0", "--port", "0"], "--api-key-file"),
    ] {
        let refused = palimpsest(args.iter().copied());
        assert!(refused.code == Some(2) && refused.err.contains(said), "{args:?}: {}", refused.err);
    }
    let refused = palimpsest(["serve", "a", "--port", "0", "--api-key-file", "no/such/file"]);
    assert!(refused.code == Some(1) && refused.err.contains("no/such/file"), "{}", refused.err);
}
