//! Keys that sliding windows left out: `run --selected`, `trace --selected` and `causes --force`, against windows that are made of
//! knock-outs in the same model without windows.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::{Device, Tensor};
use palimpsest::runs::causes::rows::{CAUSES, CauseRow, CauseRows};
use palimpsest_core::attention::{AttentionStore, Selected};
use palimpsest_core::span::Span;
use serde_json::{Value, json};

use super::causes_figures::rows;
use super::knockouts::{causes, edited, fixture, stores, told};
#[cfg(unix)]
use super::resume::{interrupt, signal};
use super::*;

/// Three of its four layers see the last `WINDOW` tokens.
const MODEL: &str = "gemma3-tiny";
const WINDOW: usize = 23;
const WINDOWED: [[usize; 2]; 2] = [[0, 2], [3, 4]];

/// Two short histories, the first with two questions.
fn data(root: &Path) -> PathBuf {
    let table = "case,session,role,text\na,1,user,Lisa lives in Rome.\na,2,user,I like green tea.\na,3,user,She moved to Oslo.\n\
                 b,1,user,The bus is late.\nb,2,user,The tram is faster.\n";
    let questions = "case,question,old,new\na,Where is Lisa?,lives in Rome,moved to Oslo\na,Is Lisa in Rome?,lives in Rome,moved to Oslo\n\
                     b,How do I travel?,The bus is late,The tram is faster\n";
    let path = root.join("history.csv");
    std::fs::write(&path, table).unwrap();
    std::fs::write(root.join("questions.csv"), questions).unwrap();
    path
}

fn run(data: &Path, model: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = command(["run", "--context", "8192", "--allow-longer", "--max-new-tokens", "6"]);
    command.arg("--data").arg(data).arg("--questions").arg(data.with_file_name("questions.csv"));
    command.arg("--model").arg(model).arg("--out").arg(out).args(more);
    command
}

/// `trace` of the model without windows over prompt and answer, with the windows of `layers` made of knock-outs. From the question on
/// rows see `shown` too. The largest keys of `rows` are all their keys.
fn of_knockouts(
    wide: &Path,
    store: &AttentionStore,
    layers: &[[usize; 2]],
    shown: Option<Range<usize>>,
    rows: &[Span],
) -> HashMap<String, Tensor> {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    let said = store.generated.len();
    let all = [&store.tokens[..], &store.generated[..said - 1]].concat();
    let question = store.keys.iter().find(|span| span.is("query")).unwrap().start;
    let (mut spans, mut knockouts) = (serde_json::Map::new(), Vec::new());
    // `last` and `answer` are no names of spans.
    let labels: Vec<String> = rows.iter().map(|row| format!("as {}", row.label)).collect();
    for (label, row) in labels.iter().zip(rows) {
        spans.insert(label.clone(), json!([row.start, row.end]));
    }
    for row in 0..all.len() {
        let end = (row + 1).saturating_sub(WINDOW);
        let hidden = match &shown {
            Some(shown) if row >= question => [0..shown.start.min(end), shown.end.min(end)..end],
            _ => [0..end, end..end],
        };
        let name = format!("row {row}");
        for keys in hidden.into_iter().filter(|keys| !keys.is_empty()) {
            let of =
                |layers| json!({"rows": name, "keys": format!("{keys:?}"), "layers": layers, "only": true});
            knockouts.extend(layers.iter().map(of));
            spans.insert(format!("{keys:?}"), json!([keys.start, keys.end]));
        }
        spans.insert(name, json!([row, row + 1]));
    }
    let top_keys = if rows.is_empty() { 0 } else { all.len() };
    let file = json!({
        "tokens": all, "spans": spans, "rows": labels, "knockouts": knockouts, "top_keys": top_keys, "logits": said
    });
    std::fs::write(&tokens, file.to_string()).unwrap();
    let mut command = command(["trace", "--allow-longer", "--model"]);
    command.arg(wide).arg("--tokens").arg(&tokens).arg("--out").arg(&out);
    done(ended(command));
    candle_core::safetensors::load(&out, &Device::Cpu).unwrap()
}

/// By row and span: the share of a windowed layer's keys, and the mass outside the window of a layer whose softmax runs over all keys.
fn plain(store: &AttentionStore, dense: &HashMap<String, Tensor>, layer: usize) -> Vec<(f64, f64)> {
    let (_, heads, positions, k) = dense["top_keys"].dims4().unwrap();
    let keys = dense["top_keys"].flatten_all().unwrap().to_vec1::<u32>().unwrap();
    let weights = dense["top_weights"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (mut found, mut before) = (Vec::new(), 0);
    for row in &store.rows {
        for span in &store.keys {
            let (mut shares, mut mass) = (Vec::new(), 0.0);
            for (nth, position) in row.range().enumerate() {
                let first = (position + 1).saturating_sub(WINDOW);
                let seen = span.start..span.end.min(position + 1);
                if !seen.is_empty() {
                    let inside = seen.clone().filter(|key| *key >= first).count();
                    shares.push(inside as f64 / seen.len() as f64);
                }
                for head in 0..heads {
                    let from = ((layer * heads + head) * positions + before + nth) * k;
                    let of_span = (from..from + k).filter(|at| {
                        let key = keys[*at] as usize;
                        seen.contains(&key) && key < first
                    });
                    mass += of_span.map(|at| f64::from(weights[at])).sum::<f64>();
                }
            }
            let share = shares.iter().sum::<f64>() / shares.len() as f64;
            found.push((share, mass / (heads * row.len()) as f64));
        }
        before += row.len();
    }
    found
}

fn near(found: f32, expected: f64, what: &str) {
    let apart = (f64::from(found) - expected).abs();
    assert!(apart < 1e-6 || (found.is_nan() && expected.is_nan()), "{what}: {found}, not {expected}");
}

/// Attention files of a run, with the content of each.
fn attention(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(&dir.join("attention"))
}

#[test]
fn runs_record_what_windows_left_as_the_definition_says_and_end_with_the_same_files_however_they_are_run() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, model) = (data(root.path()), fixture(MODEL));
    done(ended(run(&data, &model, &at("plain"), &[])));
    done(ended(run(&data, &model, &at("run"), &["--selected"])));
    let (without, with) = (stores(&at("plain"), ""), stores(&at("run"), ""));
    assert_eq!(with.len(), 3);
    let wide = edited(MODEL, &at("wide"), ("\"sliding_window\": 23", "\"sliding_window\": 8192"));
    for (nth, (store, bare)) in with.iter().zip(&without).enumerate() {
        assert!(bare.selected.is_none());
        assert_eq!(AttentionStore { selected: None, ..store.clone() }, *bare, "nothing else changes");
        let Selected { selected, forgone } = store.selected.as_ref().unwrap();
        assert_eq!(selected.dim(), (4, store.rows.len(), store.keys.len()));
        // Layer 2 sees all keys.
        for ((layer, row, key), share) in selected.indexed_iter().filter(|((layer, ..), _)| *layer == 2) {
            let unseen = store.keys[key].start >= store.rows[row].end || store.keys[key].is_empty();
            assert!(if unseen { share.is_nan() } else { *share == 1.0 });
            assert_eq!(forgone[[layer, row, key]], 0.0);
        }
        if nth > 0 {
            continue;
        }
        assert!(store.rows.iter().any(|row| row.label == "answer" && row.end > store.tokens.len()));
        // The queries of a layer come from layers below with their windows, and its own softmax runs over all keys.
        for (below, layer) in [(vec![], 0), (vec![[0, 1]], 1), (vec![[0, 2]], 3)] {
            let dense = of_knockouts(&wide, store, &below, None, &store.rows);
            for (at, (share, mass)) in plain(store, &dense, layer).into_iter().enumerate() {
                let (row, key) = (at / store.keys.len(), at % store.keys.len());
                let what = format!("layer {layer}, {} to {}", store.rows[row].label, store.keys[key].label);
                near(selected[[layer, row, key]], share, &what);
                near(forgone[[layer, row, key]], mass, &what);
            }
            assert!(forgone.index_axis(ndarray::Axis(0), layer).iter().any(|mass| *mass > 0.1));
        }
    }
    // Killed after an answer, and in shards.
    #[cfg(unix)]
    {
        let answers = at("killed").join("answers.jsonl");
        let lines = || std::fs::read(&answers).map_or(0, |b| b.iter().filter(|b| **b == b'\n').count());
        interrupt(run(&data, &model, &at("killed"), &["--selected"]), || lines() >= 1, signal("-KILL"));
        done(ended(run(&data, &model, &at("killed"), &["--selected"])));
        assert_eq!(attention(&at("killed")), attention(&at("run")));
    }
    for (shard, out, selected) in [("0/2", "half", true), ("1/2", "other", true), ("1/2", "bare", false)] {
        let more: &[&str] = if selected { &["--selected"] } else { &[] };
        done(ended(run(&data, &model, &at(out), &[&["--shard", shard][..], more].concat())));
    }
    let merge = |out: &str, of: [&str; 2]| {
        palimpsest(["merge", shown(&at(out)), shown(&at(of[0])), shown(&at(of[1]))])
    };
    done(merge("merged", ["half", "other"]));
    assert_eq!(attention(&at("merged")), attention(&at("run")));
    let refused = merge("mixed", ["half", "bare"]);
    assert!(refused.code == Some(1) && refused.err.contains("selected"), "{}", refused.err);
    let refused = ended(run(&data, &model, &at("run"), &[]));
    assert!(refused.code == Some(1) && refused.err.contains("differs in selected"), "{}", refused.err);

    // What an eviction leaves a layer of full attention is what it kept.
    done(ended(run(&data, &model, &at("evicted"), &["--selected", "--evict", "knorm:0.5"])));
    for store in stores(&at("evicted"), "evict-knorm-0-5") {
        let (found, kept) = (store.selected.as_ref().unwrap(), store.kept.as_ref().unwrap());
        assert_eq!(kept.layers, [2]);
        let row = store.rows.iter().position(|row| row.is("query")).unwrap();
        for (key, span) in store.keys.iter().enumerate().filter(|(_, span)| span.end <= store.rows[row].start)
        {
            let share = kept.shares.slice(ndarray::s![0, .., key]).mean().unwrap();
            near(found.selected[[2, row, key]], f64::from(share), &span.label);
            assert_eq!(found.forgone[[2, row, key]] > 0.0, share < 1.0, "{}", span.label);
        }
    }
    // A model without windows: all of each span, and nothing forgone.
    done(ended(run(&data, &fixture("llama-tiny"), &at("llama"), &["--selected"])));
    for store in stores(&at("llama"), "") {
        let found = store.selected.unwrap();
        assert!(found.selected.iter().all(|share| share.is_nan() || *share == 1.0));
        assert!(found.selected.iter().any(|share| *share == 1.0) && found.forgone.iter().all(|x| *x == 0.0));
    }
    for (more, part) in [
        (&["--no-attention"][..], "--no-attention"),
        (&["--model", "http://127.0.0.1:9/v1#m"], "is an endpoint"),
    ] {
        let mut command = command(["run", "--data", "sample", "--selected", "--out", shown(&at("refused"))]);
        if more[0] != "--model" {
            command.arg("--model").arg(&model);
        }
        command.args(more);
        let refused = ended(command);
        assert!(refused.code == Some(2) && refused.err.contains(part), "{:?}: {}", refused.code, refused.err);
        assert!(refused.err.contains("--selected") && !at("refused").exists(), "{}", refused.err);
    }
}

#[test]
fn sessions_forced_into_windows_have_the_effects_that_wider_windows_have() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let (data, model) = (data(root.path()), fixture(MODEL));
    let dir = at("run");
    done(ended(run(&data, &model, &dir, &[])));
    let wide = edited(MODEL, &at("wide"), ("\"sliding_window\": 23", "\"sliding_window\": 8192"));
    let force = |dir: &Path, more: &[&str]| causes(MODEL, dir, &[&["--force"][..], more].concat());
    let (killed, out) = (at("killed"), done(ended(run(&data, &model, &at("killed"), &[]))));
    assert!(out.out.contains("3 of 3 answers"), "{}", out.out);
    let told_by = done(ended(force(&dir, &[])));
    let found = CauseRows::read(&dir).unwrap();
    assert!(found.blocked.is_empty() && found.removed.is_empty());
    let forced = found.forced;
    assert_eq!(forced.len(), 3 + 3 + 2);
    let stores = stores(&dir, "");
    let of = |row: &CauseRow| {
        stores.iter().find(|store| store.probe == row.answer.probe && store.case == row.answer.case)
    };
    let mut known = HashMap::new();
    for row in forced.iter().filter(|row| row.answer.case == "a") {
        let store = of(row).unwrap();
        let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
        assert_eq!((row.tokens, &row.role), ([span.start, span.end], &span.role));
        assert_eq!((row.layers, row.seed, row.answer_tokens), (None, None, store.generated.len()));
        let logits = |shown: Option<Range<usize>>| {
            let found = of_knockouts(&wide, store, &WINDOWED, shown, &[]);
            told(&found["logits"].to_vec2::<f32>().unwrap(), &store.generated)
        };
        let (plain, first, likeliest) =
            known.entry(store.probe.clone()).or_insert_with(|| logits(None)).clone();
        let (with, other, now) = logits(Some(span.range()));
        let kl: f64 = first.iter().zip(&other).map(|(p, q)| p.exp() * (p - q)).sum();
        assert!((row.log_p - plain).abs() < 1e-4, "{row:?}: {plain}");
        assert!((row.effect.log_p_drop - (plain - with)).abs() < 1e-4, "{row:?}: {}", plain - with);
        assert!((row.effect.kl - kl).abs() < 1e-4, "{row:?}: {kl}");
        assert_eq!(row.effect.changed, now != likeliest, "{row:?}");
        assert!(row.effect.log_p_drop.abs() > 1e-2, "{row:?}: nothing was forced");
    }
    // Printed by role: means over sessions.
    let of_role = |role: &str| {
        let drops = forced.iter().filter(|row| row.role.as_deref() == Some(role));
        let drops: Vec<f64> = drops.map(|row| row.effect.log_p_drop).collect();
        (drops.len(), format!("{:+.4}", drops.iter().sum::<f64>() / drops.len() as f64))
    };
    for role in ["old", "new"] {
        let (count, mean) = of_role(role);
        let line = told_by.out.lines().find(|line| line.starts_with(role)).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[2]), (&*count.to_string(), &*mean), "{}", told_by.out);
    }
    // Killed after a row, and started again.
    #[cfg(unix)]
    {
        let file = killed.join(CAUSES);
        let lines = || std::fs::read(&file).map_or(0, |b| b.iter().filter(|b| **b == b'\n').count());
        interrupt(force(&killed, &[]), || lines() >= 2, signal("-KILL"));
    }
    done(ended(force(&killed, &["--sessions", "evidence"])));
    done(ended(force(&killed, &[])));
    let again = done(ended(force(&killed, &[])));
    assert!(again.err.contains("0 rows added") && again.out == told_by.out, "{}", again.err);
    let key = |row: &CauseRow| (row.answer.clone(), row.span.clone());
    let mut resumed = CauseRows::read(&killed).unwrap().forced;
    resumed.sort_by_key(key);
    let mut whole = forced.clone();
    whole.sort_by_key(key);
    assert_eq!(resumed.len(), whole.len());
    for (a, b) in resumed.iter().zip(&whole) {
        assert_eq!((key(a), a.tokens), (key(b), b.tokens));
        assert!((a.effect.log_p_drop - b.effect.log_p_drop).abs() < 1e-6);
    }
    // In windows that hold the whole prompt there is nothing to force.
    done(ended(run(&data, &wide, &at("of-wide"), &[])));
    let mut all_held = command(["causes", "--force", "--model", shown(&wide)]);
    all_held.arg(at("of-wide"));
    done(ended(all_held));
    let rows_of_wide = CauseRows::read(&at("of-wide")).unwrap().forced;
    assert_eq!(rows_of_wide.len(), forced.len());
    assert!(rows_of_wide.iter().all(|row| row.effect.log_p_drop == 0.0 && !row.effect.changed));

    // In a figure of their own and in the report; the direct effects' axis is for what was hidden.
    done(ended(causes(MODEL, &dir, &["--controls", "0"])));
    done(palimpsest(["figures", shown(&dir)]));
    done(palimpsest(["report", shown(&dir)]));
    assert!(rows(&dir, "causes-effects").iter().all(|row| !row["line"].contains("forced")));
    let drawn = rows(&dir, "causes-forced");
    let line = drawn.iter().find(|row| row["line"] == "old").unwrap();
    let old = forced.iter().filter(|row| row.role.as_deref() == Some("old"));
    let old: Vec<f64> = old.map(|row| row.effect.log_p_drop).collect();
    let mean = old.iter().sum::<f64>() / old.len() as f64;
    assert!((line["value"].parse::<f64>().unwrap() - mean).abs() < 1e-9, "{line:?}, not {mean}");
    assert!(rows(&dir, "causes-points").iter().all(|point| !point["forced_effect"].is_empty()));
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("layers with a sliding window or an indexer see the session too"), "{page}");

    // Models without windows, and flags that say something else.
    done(ended(run(&data, &fixture("llama-tiny"), &at("llama"), &[])));
    let refused = ended(causes("llama-tiny", &at("llama"), &["--force"]));
    assert!(
        refused.code == Some(1) && refused.err.contains("there is no sliding window or choice that --force"),
        "{}",
        refused.err
    );
    assert!(!at("llama").join(CAUSES).exists());
    for more in
        [&["--windows", "2"][..], &["--controls", "2"], &["--total"], &["--carriers"], &["--softmax-only"]]
    {
        let refused = ended(force(&dir, more));
        assert!(refused.code == Some(2) && refused.err.contains(more[0]), "{}", refused.err);
    }
}

#[test]
fn traces_tell_what_windows_left_in_files_jobs_and_tables() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let put = |name: &str, text: String| {
        std::fs::write(at(name), text).unwrap();
        at(name)
    };
    let words = "The key is red. It lies on the table. No, it lies in the drawer below. Where is the key?";
    let job = json!({
        "id": "a", "text": words, "spans": {"old": "on the table", "new": "in the drawer", "late": "the key?"},
        "rows": ["new", "last", "answer"], "generate": 2, "selected": true
    });
    let (text, jobs) = (put("text", words.to_owned()), put("jobs.jsonl", format!("{job}\n")));
    let trace = |model: &str, more: &[&str]| {
        let mut command = command(["trace", "--model", shown(&fixture(model)), "--out", shown(&at("out"))]);
        command.args(more);
        ended(command)
    };
    let flags = [
        "--text",
        shown(&text),
        "--spans",
        "old=on the table",
        "--spans",
        "new=in the drawer",
        "--spans",
        "late=the key?",
        "--rows",
        "new,last,answer",
        "--generate",
        "2",
    ];
    let with = [&flags[..], &["--selected"]].concat();
    let table = done(trace(MODEL, &with)).out;
    let tensors = || candle_core::safetensors::load(at("out"), &Device::Cpu).unwrap();
    let file = tensors();
    let of = |name: &str| file[name].to_vec3::<f32>().unwrap();
    let (selected, forgone) = (of("selected"), of("forgone"));
    assert_eq!(file["selected"].dims(), [4, 3, 3]);
    // The new span and the last are behind each other.
    assert!(selected.iter().all(|layer| layer[0][2].is_nan() && layer[1][2] == 1.0));
    assert!([0, 1, 3].iter().all(|&layer| selected[layer][1][0] == 0.0 && forgone[layer][1][0] > 0.0));
    assert!(selected[2][1][0] == 1.0 && forgone[2][1][0] == 0.0);
    let mean = |of: &[Vec<Vec<f32>>], row: usize, span: usize| {
        let known: Vec<f64> = of.iter().map(|of| f64::from(of[row][span])).filter(|x| !x.is_nan()).collect();
        known.iter().sum::<f64>() / known.len() as f64
    };
    let last = table.split("attention of `last`").nth(1).unwrap();
    let old = last.lines().find(|line| line.starts_with("old ")).unwrap();
    let ends = format!("{:.2}  {:>7.2}", 100.0 * mean(&selected, 1, 0), 100.0 * mean(&forgone, 1, 0));
    assert!(old.ends_with(&ends), "{old} and {ends}");
    let first = table.lines().find(|line| line.starts_with("late ")).unwrap();
    assert!(first.split_whitespace().rev().nth(1) == Some("-"), "nothing to choose from: {first}");

    // Read after a plain one of the same words, whose keys a model with windows has not kept.
    let mut plain = job.clone();
    plain["selected"] = false.into();
    put("jobs.jsonl", format!("{plain}\n{job}\n"));
    done(trace(MODEL, &["--jobs", shown(&jobs)]));
    let lines = std::fs::read_to_string(at("out")).unwrap();
    let [plain, told]: [Value; 2] = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert!(plain.get("selected").is_none() && plain["mass"] == told["mass"]);
    for (name, values) in [("selected", &selected), ("forgone", &forgone)] {
        for (r, row) in ["new", "last", "answer"].iter().enumerate() {
            for (s, span) in ["old", "new", "late"].iter().enumerate() {
                let (found, expected) = (&told[name][row][span], mean(values, r, s));
                assert!(
                    found.as_f64().map_or(expected.is_nan(), |found| (found - expected).abs() < 1e-9),
                    "{name} {row} {span}: {found}, not {expected}"
                );
            }
        }
    }
    // Of both passes, and none without the flag.
    let knocked = [&with[..], &["--knockout", "last->old", "--compare"]].concat();
    done(trace(MODEL, &knocked));
    let both = tensors();
    assert_eq!(both["plain.forgone"].to_vec3::<f32>().unwrap(), forgone);
    assert!(
        both["forgone"].to_vec3::<f32>().unwrap().iter().all(|layer| layer[1][0] == 0.0),
        "hidden keys stay hidden"
    );
    done(trace(MODEL, &flags));
    assert!(!tensors().contains_key("selected"));

    let refused = |more: &[&str], code: i32, parts: &[&str]| {
        let refused = trace(MODEL, more);
        assert!(
            refused.code == Some(code) && parts.iter().all(|part| refused.err.contains(part)),
            "{}",
            refused.err
        );
    };
    refused(&["--jobs", shown(&jobs), "--selected"], 2, &["--selected", "--jobs"]);
    // Rows of single generated tokens are on no axis.
    let each = [&flags[..8], &["--rows", "each", "--generate", "2", "--selected"]].concat();
    refused(&each, 1, &["`selected` is of rows", "each"]);
    let tokens =
        put("tokens.json", json!({"tokens": [1, 2, 3], "spans": {"a": [0, 2]}, "rows": []}).to_string());
    refused(&["--tokens", shown(&tokens), "--selected"], 1, &["`selected` is of rows"]);
}
