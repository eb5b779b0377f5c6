//! Runs with blocked paths, and the effects of blocking on a run's answers.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use palimpsest::runs::causes::rows::{CAUSES, CauseLine, CauseRows, read_lines};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use serde_json::{Value as Json, json};

use super::resume::{interrupt, signal};
use super::*;
use crate::left_out::few_or_all;

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A copy of a tiny model, with one text of its config.json replaced by another.
pub(super) fn edited(name: &str, out: &Path, (old, new): (&str, &str)) -> PathBuf {
    std::fs::create_dir(out).unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, out.join(path.file_name().unwrap())).unwrap();
    }
    let config = out.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains(old), "{text}");
    std::fs::write(&config, text.replace(old, new)).unwrap();
    out.to_owned()
}

/// A run of one sample case by a tiny model.
pub fn run_of(name: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = command(["run", "--data", "sample", "--limit", "1", "--context", "8192"]);
    command.args(["--max-new-tokens", "6", "--allow-longer", "--model"]).arg(fixture(name));
    command.arg("--out").arg(out).args(more);
    if !more.contains(&"--sessions") {
        command.args(["--sessions", "3"]);
    }
    command
}

pub fn stores(dir: &Path, condition: &str) -> Vec<AttentionStore> {
    let folder = RunFolder::read(dir).unwrap().condition(condition).unwrap();
    let rows = folder.answers.iter().filter(|row| row.error.is_none());
    rows.map(|row| folder.attention(row).unwrap().unwrap()).collect()
}

/// Mass from `row` to all spans of role `role`, per layer, over all heads.
fn paid(store: &AttentionStore, row: &str, role: &str) -> Vec<f32> {
    let row = store.rows.iter().position(|span| span.label == row || span.is(row)).unwrap();
    let keys: Vec<usize> = (0..store.keys.len()).filter(|&k| store.keys[k].is(role)).collect();
    assert!(!keys.is_empty(), "{role}");
    let of_layer = |l: usize| {
        (0..store.mass.dim().1)
            .flat_map(|h| keys.iter().map(move |&k| (h, k)))
            .map(|(h, k)| store.mass[[l, h, row, k]])
            .sum()
    };
    (0..store.layers.len()).map(of_layer).collect()
}

type Traced = (Vec<Vec<f32>>, candle_core::Tensor);

/// Output of `palimpsest trace` for a prompt and its answer with these knock-outs: the logits that predict the answer, and the masses.
pub fn traced(name: &str, store: &AttentionStore, knockouts: Json) -> Traced {
    // Caches passes: many rows compare with the plain pass or with one blocked session.
    static KNOWN: Mutex<BTreeMap<String, Traced>> = Mutex::new(BTreeMap::new());
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    let n = store.generated.len();
    let all = [&store.tokens[..], &store.generated[..n - 1]].concat();
    let mut spans = serde_json::Map::new();
    for span in &store.keys {
        spans.insert(span.label.clone(), json!([span.start, span.end]));
    }
    let from = |role: &str| store.keys.iter().find(|span| span.is(role)).unwrap();
    spans.insert("blocked".to_owned(), json!([from("query").start, all.len()]));
    spans.insert("from new".to_owned(), json!([from("new").start, all.len()]));
    for (i, knockout) in knockouts.as_array().unwrap().iter().enumerate() {
        if let Some(range) = knockout.get("range") {
            spans.insert(format!("range {i}"), range.clone());
        }
        if let Some(range) = knockout.get("row_range") {
            spans.insert(format!("rows {i}"), range.clone());
        }
    }
    let knockouts: Vec<Json> = (knockouts.as_array().unwrap().iter().enumerate())
        .map(|(i, knockout)| {
            let mut knockout = knockout.clone();
            if knockout.as_object_mut().unwrap().remove("range").is_some() {
                knockout["keys"] = json!(format!("range {i}"));
            }
            if knockout.as_object_mut().unwrap().remove("row_range").is_some() {
                knockout["rows"] = json!(format!("rows {i}"));
            }
            knockout
        })
        .collect();
    let query = &from("query").label;
    let file = json!({"tokens": all, "spans": spans, "rows": [query], "logits": n, "knockouts": knockouts});
    let key = format!("{name} {file}");
    if let Some(known) = KNOWN.lock().unwrap().get(&key) {
        return known.clone();
    }
    std::fs::write(&tokens, file.to_string()).unwrap();
    let mut command = command(["trace", "--allow-longer", "--model"]);
    command.arg(fixture(name)).arg("--tokens").arg(&tokens).arg("--out").arg(&out);
    let done = ended(command);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let mut tensors = candle_core::safetensors::load(&out, &candle_core::Device::Cpu).unwrap();
    let traced = (tensors.remove("logits").unwrap().to_vec2().unwrap(), tensors.remove("mass").unwrap());
    KNOWN.lock().unwrap().insert(key, traced.clone());
    traced
}

#[test]
fn each_knockout_is_a_condition_whose_rows_pay_nothing_to_what_is_hidden_and_the_plain_one_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    // Full attention, sliding windows, and linear layers beside one softmax layer.
    let models = [("llama-tiny", 0..1), ("gemma3-tiny", 2..3), ("qwen35-text-tiny", 2..3)];
    for &(name, ref layers) in few_or_all(&models[1..2], &models) {
        let at = |part: &str| root.path().join(format!("{name}-{part}"));
        let (plain, dir, single) = (at("plain"), at("run"), at("single"));
        assert_eq!(ended(run_of(name, &plain, &[])).code, Some(0));
        let range = format!("{}..{}", layers.start, layers.end);
        let query = format!("query->old@{range}");
        let new = format!("new->old@{range}");
        let only = format!("only new->old@{range}");
        let flags = ["--knockout", &query, "--knockout", &new, "--knockout", &only];
        let done = ended(run_of(name, &dir, &flags));
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        let done = ended(run_of(name, &single, &[&flags[..], &["--batch-size", "1"]].concat()));
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);

        let part = format!("old-{}-{}", layers.start, layers.end);
        let names = [
            format!("knockout-query-{part}"),
            format!("knockout-new-{part}"),
            format!("knockout-only-new-{part}"),
        ];
        let header = RunFolder::read(&dir).unwrap().header;
        assert_eq!(header.identity.condition_names(), ["", &names[0], &names[1], &names[2]]);
        let without = stores(&plain, "");
        assert_eq!(without.len(), 3);
        for (plain, beside) in without.iter().zip(stores(&dir, "")) {
            assert_eq!((&plain.mass, &plain.generated), (&beside.mass, &beside.generated), "{name}");
        }
        // Masses are indexed by softmax layer.
        let hit = without[0].layers.iter().position(|&layer| layer == layers.start).unwrap();
        for (nth, condition) in names.iter().enumerate() {
            let (together, alone) = (stores(&dir, condition), stores(&single, condition));
            assert_eq!(together.len(), 3, "{name}, {condition}");
            for ((store, alone), plain) in together.iter().zip(&alone).zip(&without) {
                assert_eq!(
                    (&store.mass, &store.generated),
                    (&alone.mass, &alone.generated),
                    "{name}, {condition}"
                );
                // An empty answer has no such row.
                let said = if store.generated.is_empty() { "last" } else { "answer" };
                for (row, hidden) in
                    [("query", nth < 2), ("last", nth < 2), (said, nth < 2), ("new", nth > 0)]
                {
                    let (found, before) = (paid(store, row, "old"), paid(plain, row, "old"));
                    assert!(before[hit] > 0.0, "{name}: {row} pays nothing as it is");
                    assert_eq!(
                        found[hit] == 0.0,
                        hidden,
                        "{name}, {condition}: {row} pays {found:?}, before {before:?}"
                    );
                }
                let rows = store.rows.iter().filter(|row| row.label != "answer").count();
                if nth == 0 {
                    // Rows before the question are bit-identical.
                    let row = store.rows.iter().position(|span| span.is("new")).unwrap();
                    let of = |store: &AttentionStore| store.mass.index_axis(ndarray::Axis(2), row).to_owned();
                    assert_eq!(of(store), of(plain), "{name}");
                }
                assert!(rows >= 3);
            }
        }
        // The same from `trace`.
        for (condition, rows) in [(&names[0], "blocked"), (&names[1], "from new")] {
            for store in stores(&dir, condition).iter().filter(|store| !store.generated.is_empty()) {
                let old: Vec<&Span> = store.keys.iter().filter(|span| span.is("old")).collect();
                let knockout = |span: &&Span| json!({"rows": rows, "keys": span.label, "layers": [layers.start, layers.end]});
                let knockouts: Vec<Json> = old.iter().map(knockout).collect();
                let (logits, mass) = traced(name, store, json!(knockouts));
                let best = logits.iter().map(|row| {
                    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
                    best.unwrap() as u32
                });
                assert_eq!(best.collect::<Vec<_>>(), store.generated, "{name}, {condition}");
                let row = store.rows.iter().position(|span| span.is("query")).unwrap();
                // (layers, heads, 1, spans); the trace has two more spans.
                let (layers, heads, _, spans) = mass.dims4().unwrap();
                let mass: Vec<f32> = mass.flatten_all().unwrap().to_vec1().unwrap();
                assert_eq!(
                    (layers, heads, spans),
                    (store.mass.dim().0, store.mass.dim().1, store.keys.len() + 2)
                );
                for (at, paid) in store.mass.index_axis(ndarray::Axis(2), row).indexed_iter() {
                    let expected = mass[(at.0 * heads + at.1) * spans + at.2];
                    assert!(
                        (paid - expected).abs() < 1e-4,
                        "{name}, {condition}: {paid} at {at:?}, not {expected}"
                    );
                }
            }
        }
        let mut table = command(["table"]);
        table.arg(&dir);
        let table = ended(table);
        assert!(names.iter().all(|name| table.out.contains(name.as_str())), "{}{}", table.out, table.err);
    }
}

#[test]
#[cfg(unix)]
fn a_run_with_knockouts_killed_and_started_again_ends_with_the_same_files() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("run"));
    let flags =
        ["--knockout", "query->old", "--knockout", "new->old@1..2", "--repeat", "2", "--temperature", "0.7"];
    let done = ended(run_of("llama-tiny", &whole, &flags));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let answers = dir.join("answers.jsonl");
    let lines = || std::fs::read(&answers).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count());
    assert_eq!(RunFolder::read(&whole).unwrap().answers.len(), 3 * 3 * 2);
    for reached in [1, 9] {
        let _ = std::fs::remove_dir_all(&dir);
        interrupt(run_of("llama-tiny", &dir, &flags), || lines() >= reached, signal("-KILL"));
        let resumed = ended(run_of("llama-tiny", &dir, &flags));
        assert_eq!(resumed.code, Some(0), "{}", resumed.err);
        // Rows are in answer order, which a kill may change.
        let sorted = |dir: &Path| {
            let mut rows: Vec<String> = std::fs::read_to_string(dir.join("answers.jsonl"))
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect();
            rows.sort();
            rows
        };
        assert_eq!(sorted(&whole), sorted(&dir));
        let stores = |dir: &Path| files(&dir.join("attention"));
        assert_eq!(stores(&whole), stores(&dir));
    }
}

#[test]
fn knockouts_that_cannot_be_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let refused = |name: &str, knockouts: &[&str], parts: &[&str]| {
        let out = root.path().join("refused");
        let flags: Vec<&str> = knockouts.iter().flat_map(|knockout| ["--knockout", knockout]).collect();
        let run = ended(run_of(name, &out, &flags));
        assert_eq!(run.code, Some(2), "{knockouts:?}: {}", run.err);
        assert!(parts.iter().all(|part| run.err.contains(part)), "{knockouts:?}: {}", run.err);
        assert!(!out.exists(), "nothing was begun");
    };
    refused("llama-tiny", &["query->older"], &["`older`", "old", "query"]);
    refused("llama-tiny", &["query old"], &["->"]);
    refused("llama-tiny", &["query->old@2..9"], &["2..9", "0..3"]);
    refused("llama-tiny", &["query->old", "query->old"], &["knockout-query-old"]);
    refused("qwen35-text-tiny", &["query->old"], &["layer 0", "linear", "@2..3"]);
    let mut endpoint = command([
        "run",
        "--data",
        "sample",
        "--model",
        "http://127.0.0.1:9/v1#m",
        "--knockout",
        "query->old",
    ]);
    endpoint.arg("--out").arg(root.path().join("endpoint"));
    let endpoint = ended(endpoint);
    assert!(endpoint.code == Some(2) && endpoint.err.contains("endpoint"), "{}", endpoint.err);
    // A case-dependent failure is an error row of its questions.
    let out = root.path().join("blind");
    let run = ended(run_of("llama-tiny", &out, &["--knockout", "template[0]->template[0]"]));
    assert_eq!(run.code, Some(3), "{}", run.err);
    let rows = RunFolder::read(&out).unwrap().answers;
    for row in &rows {
        let error = row.error.as_deref().unwrap_or_default();
        assert_eq!(
            error.contains("row 0 would see nothing at layer 0"),
            row.condition == "knockout-template-0-template-0",
            "{error}"
        );
    }
    assert_eq!(rows.len(), 6);
}

/// A run of one case with enough sessions for controls.
fn run_for_causes(name: &str, out: &Path, more: &[&str]) -> Command {
    run_of(name, out, &[more, &["--sessions", "7"]].concat())
}

/// Marks the first generated tokens as a thought in the attention files: the row `answer` starts after them.
pub fn think(dir: &Path, thought: usize) {
    if thought == 0 {
        return;
    }
    let folder = RunFolder::read(dir).unwrap();
    for row in &folder.answers {
        let Some(mut store) = folder.attention(row).unwrap().filter(|store| !store.generated.is_empty())
        else {
            continue;
        };
        assert!(store.generated.len() > thought, "{:?}", store.generated);
        let answer = store.rows.iter_mut().find(|row| row.label == "answer").unwrap();
        answer.start += thought;
        store.save(&dir.join(row.attention.as_deref().unwrap())).unwrap();
    }
}

pub fn causes(name: &str, dir: &Path, more: &[&str]) -> Command {
    let mut command = command(["causes"]);
    command.arg(dir).arg("--model").arg(fixture(name)).args(more);
    command
}

/// Mean log-probability of the answer, log-probabilities of its first token, and the argmax flags.
pub fn told(logits: &[Vec<f32>], generated: &[u32]) -> (f64, Vec<f64>, Vec<bool>) {
    let all: Vec<Vec<f64>> = logits
        .iter()
        .map(|row| {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            row.iter().map(|&x| f64::from(x) - sum.ln()).collect()
        })
        .collect();
    let mean =
        all.iter().zip(generated).map(|(row, &token)| row[token as usize]).sum::<f64>() / all.len() as f64;
    let best = |(row, &token): (&Vec<f64>, &u32)| row.iter().all(|x| *x <= row[token as usize]);
    (mean, all[0].clone(), all.iter().zip(generated).map(best).collect())
}

#[test]
fn causes_are_what_whole_passes_with_the_same_knockouts_give() {
    let root = tempfile::tempdir().unwrap();
    let models = [
        ("qwen35-text-tiny", &["--softmax-only"][..], vec![None]),
        ("llama-tiny", &["--windows", "2", "--seed", "5"], vec![Some([0, 2]), Some([2, 3])]),
        ("llama-tiny", &[], vec![None]),
        ("gemma3-tiny", &[], vec![None]),
    ];
    for &(name, more, ref windows) in few_or_all(&models[..2], &models) {
        let dir = root.path().join(format!("{name}-{}", more.len()));
        assert_eq!(ended(run_for_causes(name, &dir, &[])).code, Some(0));
        let done = ended(causes(name, &dir, more));
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        let rows = CauseRows::read(&dir).unwrap().blocked;
        let stores: Vec<AttentionStore> =
            stores(&dir, "").into_iter().filter(|s| !s.generated.is_empty()).collect();
        assert_eq!(rows.len(), stores.len() * 7 * windows.len(), "{name}");
        assert!(
            done.out.contains("old") && done.out.contains("new") && done.out.contains("control"),
            "{}",
            done.out
        );
        let open = done.out.contains("75% of the layers");
        assert_eq!(open, name == "qwen35-text-tiny", "{}", done.out);
        let controls = CauseRows::read(&dir).unwrap().controls;
        assert_eq!(controls.len(), stores.len() * 12 * windows.len(), "{name}");
        for row in &rows {
            let store = stores.iter().find(|store| store.probe == row.answer.probe).unwrap();
            let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
            assert_eq!((row.tokens, &row.role), ([span.start, span.end], &span.role));
            assert_eq!((row.answer_tokens, row.thought_tokens), (store.generated.len(), 0));
            // Rows record the share of layers left open.
            let hybrid = name == "qwen35-text-tiny";
            assert_eq!((row.softmax_only, row.layers_open), (hybrid, hybrid.then_some(0.75)));
        }
        // One pool per case: shared by its probes and windows, within the history, without evidence.
        let pool: BTreeSet<(Option<usize>, [usize; 2])> =
            controls.iter().map(|row| (row.stretch, row.tokens)).collect();
        assert_eq!(pool.len(), 12, "{name}: {pool:?}");
        let store = &stores[0];
        for (_, [start, end]) in &pool {
            for other in store.keys.iter().filter(|span| span.role.is_some() && !span.is("query")) {
                assert!(
                    other.end <= *start || *end <= other.start,
                    "{name}: {start}..{end} touches {other:?}"
                );
            }
            assert!(
                *start >= rows[0].tokens[0] && *end <= rows.iter().map(|row| row.tokens[1]).max().unwrap()
            );
        }
        let blocked =
            rows.iter().map(|row| (&row.answer.probe, row.tokens, row.layers, row.log_p, row.effect));
        let stretches =
            controls.iter().map(|row| (&row.answer.probe, row.tokens, row.layers, row.log_p, row.effect));
        let mut plains = BTreeMap::new();
        for (i, row) in blocked.chain(stretches).enumerate() {
            let (probe, tokens, at, log_p, effect) = row;
            let store = stores.iter().find(|store| store.probe == *probe).unwrap();
            assert!(windows.contains(&at), "{name}");
            // Every thirteenth only: each is a full pass.
            if i % 13 > 0 {
                continue;
            }
            let blocked = |range: [usize; 2]| {
                // Hybrid models: softmax layers only; this one has a single one.
                let layers = if name == "qwen35-text-tiny" { Some([2, 3]) } else { at };
                let mut knockout = json!({"rows": "blocked", "range": range});
                if let Some(layers) = layers {
                    knockout["layers"] = json!(layers);
                }
                told(&traced(name, store, json!([knockout])).0, &store.generated)
            };
            let whole = || told(&traced(name, store, json!([])).0, &store.generated);
            let (plain, first, likeliest) = plains.entry(probe).or_insert_with(whole).clone();
            assert!((plain - log_p).abs() < 1e-4, "{name}: {plain}, not {log_p}");
            let (mean, other, now) = blocked(tokens);
            let kl: f64 = first.iter().zip(&other).map(|(p, q)| p.exp() * (p - q)).sum();
            assert!((effect.log_p_drop - (plain - mean)).abs() < 1e-4, "{name} {row:?}: {}", plain - mean);
            assert!((effect.kl - kl).abs() < 1e-4, "{name} {row:?}: {kl}");
            assert_eq!((effect.changed, effect.thought), (now != likeliest, None), "{name} {row:?}");
        }
        // Different paths have different effects, and some are nonzero.
        let effects: BTreeSet<String> =
            rows.iter().map(|row| format!("{:.9}", row.effect.log_p_drop)).collect();
        assert!(effects.len() > rows.len() / 2, "{effects:?}");
        // A rerun does nothing and prints the same.
        let again = ended(causes(name, &dir, more));
        assert_eq!((again.code, again.out), (Some(0), done.out));
        assert_eq!(CauseRows::read(&dir).unwrap().blocked.len(), rows.len());
    }
}

#[test]
#[cfg(unix)]
fn causes_killed_and_started_again_end_with_the_same_rows() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("killed"));
    for dir in [&whole, &dir] {
        assert_eq!(ended(run_for_causes("llama-tiny", dir, &[])).code, Some(0));
    }
    assert_eq!(ended(causes("llama-tiny", &whole, &[])).code, Some(0));
    let file = dir.join(CAUSES);
    let lines = || std::fs::read(&file).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count());
    interrupt(causes("llama-tiny", &dir, &[]), || lines() >= 2, signal("-KILL"));
    // A truncated last line is removed.
    let kept = std::fs::read(&file).unwrap();
    std::fs::write(&file, [&kept[..], b"{\"case\":"].concat()).unwrap();
    let resumed = ended(causes("llama-tiny", &dir, &[]));
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    let key = |line: &CauseLine| match line {
        CauseLine::Blocked(row) => (row.answer.probe.clone(), row.span.clone(), row.tokens, row.effect),
        CauseLine::Control(row) => {
            (row.answer.probe.clone(), row.stretch.unwrap().to_string(), row.tokens, row.effect)
        }
        other => panic!("{other:?}"),
    };
    let keys = |dir: &Path| read_lines(dir).unwrap().iter().map(key).collect::<Vec<_>>();
    let (a, b) = (keys(&whole), keys(&dir));
    assert_eq!(a.len(), 3 * (7 + 12));
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(&b) {
        assert_eq!((&a.0, &a.1, a.2), (&b.0, &b.1, b.2));
        assert!((a.3.log_p_drop - b.3.log_p_drop).abs() < 1e-6);
    }
}

#[test]
fn causes_need_attention_the_runs_model_and_softmax_layers() {
    let root = tempfile::tempdir().unwrap();
    let (bare, dir) = (root.path().join("bare"), root.path().join("hybrid"));
    assert_eq!(ended(run_of("llama-tiny", &bare, &["--no-attention"])).code, Some(0));
    let refused = |command: Command, part: &str| {
        let done = ended(command);
        assert!(done.code == Some(1) && done.err.contains(part), "{:?}: {}", done.code, done.err);
    };
    refused(causes("llama-tiny", &bare, &[]), "--no-attention");
    assert_eq!(ended(run_of("qwen35-text-tiny", &dir, &[])).code, Some(0));
    refused(causes("qwen35-text-tiny", &dir, &[]), "--softmax-only");
    refused(causes("llama-tiny", &dir, &[]), "digest");
}

#[test]
fn cases_that_lack_a_span_of_a_knock_out_are_told_by_name_and_left_out_and_one_that_all_lack_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let long = |out: &Path, more: &[&str]| {
        let mut command =
            command(["run", "--data", "sample", "--sessions", "12", "--limit", "4", "--context", "3072"]);
        command
            .args(["--max-new-tokens", "4", "--no-attention", "--allow-longer", "--model"])
            .arg(fixture("llama-tiny"));
        command.arg("--out").arg(out).args(more);
        ended(command)
    };
    let none = long(&root.path().join("none"), &["--knockout", "query->session[400]"]);
    assert_eq!(none.code, Some(2), "{}", none.err);
    assert!(none.err.contains("no prompt has a span called `session[400]`"), "{}", none.err);
    assert!(!root.path().join("none").exists(), "before there is a run");

    // Truncation keeps different sessions in each case.
    let plain = root.path().join("plain");
    assert_eq!(long(&plain, &[]).code, Some(0));
    let answers = RunFolder::read(&plain).unwrap().answers;
    let lacking = |session: usize| -> BTreeSet<&str> {
        answers.iter().filter(|row| !row.shows(session)).map(|row| row.case.as_str()).collect()
    };
    let session = (0..12).find(|&session| (1..4).contains(&lacking(session).len())).unwrap();
    let (cases, knockout) = (lacking(session), format!("query->session[{session}]"));
    let name = format!("knockout-query-session-{session}");

    let dir = root.path().join("some");
    let done = long(&dir, &["--knockout", &knockout]);
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let (out, n) = (&done.out, 3 * cases.len());
    let listed = cases.iter().copied().collect::<Vec<_>>().join(", ");
    let told =
        format!("{n} of 12 questions have no session[{session}] in their prompts and are left out under it");
    assert!(done.err.contains(&told) && done.err.contains(&listed), "{}", done.err);
    assert!(out.contains(&format!("{} of {} answers", 24 - n, 24 - n)) && out.contains("0 errors"), "{out}");
    assert!(out.contains(&format!("{n} more are left out")), "{out}");

    let folder = RunFolder::read(&dir).unwrap();
    assert!(folder.answers.iter().all(|row| row.error.is_none()));
    let blocked = folder.clone().condition(&name).unwrap();
    assert_eq!((blocked.plan.len(), blocked.answers.len()), (4 - cases.len(), 12 - n));
    assert!(blocked.plan.iter().all(|case| !cases.contains(case.case.as_str())));
    assert_eq!(folder.plan.len(), 4, "the plain condition asks all");
    // Nothing left to do.
    let again = long(&dir, &["--knockout", &knockout]);
    assert!(again.code == Some(0) && again.out.contains("0 new, 0 errors"), "{}{}", again.out, again.err);
}
