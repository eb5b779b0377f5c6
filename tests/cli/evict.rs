//! Runs that also answer from caches with evicted keys.

use std::collections::{BTreeMap, BTreeSet};

use palimpsest::runs::rows::AnswerRow;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

use super::knockouts::{edited, fixture, run_of, stores};
use super::*;
use crate::left_out::few_or_all;

/// Answers of a condition with their attention, in the run's order.
fn answered(dir: &Path, condition: &str) -> Vec<(AnswerRow, AttentionStore)> {
    let folder = RunFolder::read(dir).unwrap().condition(condition).unwrap();
    let rows = folder.answers.iter().filter(|row| row.error.is_none());
    let found: Vec<_> = rows.map(|row| (row.clone(), folder.attention(row).unwrap().unwrap())).collect();
    assert_eq!(found.len(), 3, "{condition}: {:?}", folder.answers);
    found
}

/// The question's first token.
fn question(store: &AttentionStore) -> usize {
    store.keys.iter().find(|span| span.is("query")).unwrap().start
}

#[test]
fn each_eviction_is_a_condition_and_one_that_keeps_all_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    // Full attention, sliding windows, linear layers beside one softmax layer, and sinks.
    let models = ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny", "gpt-oss-tiny"];
    for name in few_or_all(&models[..2], &models) {
        let (plain, dir) = (root.path().join(format!("{name}-plain")), root.path().join(*name));
        done(ended(run_of(name, &plain, &[])));
        let flags =
            ["--evict", "knorm:1.0", "--evict", "streaming:1000000", "--evict", "snapkv:1.0@question"];
        done(ended(run_of(name, &dir, &flags)));
        let names = ["evict-knorm-1-0", "evict-streaming-1000000-tokens", "evict-snapkv-1-0-question"];
        let header = RunFolder::read(&dir).unwrap().header;
        let expected: Vec<&str> = std::iter::once("").chain(names).collect();
        assert_eq!(header.identity.condition_names(), expected, "{name}");
        let evictions = header.identity.conditions.iter().filter_map(|one| one.evict.as_ref());
        let evictions: Vec<String> = evictions.map(ToString::to_string).collect();
        assert_eq!(evictions, ["knorm:1.0", "streaming:1000000", "snapkv:1.0@question"], "{name}");

        let bare = answered(&plain, "");
        assert!(bare.iter().all(|(row, store)| row.kept.is_empty() && store.kept.is_none()));
        assert_eq!(bare, answered(&dir, ""), "{name}: the plain condition is as it was without the others");
        for condition in names {
            for ((row, store), (of_plain, plain)) in answered(&dir, condition).into_iter().zip(&bare) {
                let kept = store.kept.as_ref().unwrap();
                for ((_, _, span), share) in kept.shares.indexed_iter() {
                    let is_before = store.keys[span].start < question(&store) && !store.keys[span].is_empty();
                    assert!(
                        if is_before { *share == 1.0 } else { share.is_nan() },
                        "{name} {condition} {share}"
                    );
                }
                assert!(row.kept["all"] == 1.0 && row.kept.values().all(|share| *share == 1.0), "{row:?}");
                let alike = AttentionStore { kept: None, condition: String::new(), ..store };
                assert_eq!(alike, *plain, "{name} {condition}");
                let same = AnswerRow {
                    kept: BTreeMap::new(),
                    condition: String::new(),
                    attention: of_plain.attention.clone(),
                    ..row
                };
                assert_eq!(same, *of_plain, "{name} {condition}");
            }
        }
        let table = done(palimpsest([OsStr::new("table"), dir.as_os_str()]));
        assert!(names.iter().all(|name| table.out.contains(name)), "{}", table.out);
    }
}

/// Share of the keys of chosen spans that were kept, token by token.
fn kept_of(store: &AttentionStore, is_of: impl Fn(&Span) -> bool) -> Option<f64> {
    let shares = &store.kept.as_ref().unwrap().shares;
    let at = question(store);
    let (mut keys, mut all) = (0.0, 0.0);
    for (k, span) in store.keys.iter().enumerate().filter(|(_, span)| span.start < at && is_of(span)) {
        let tokens = (span.end.min(at) - span.start) as f64;
        for share in shares.index_axis(ndarray::Axis(2), k) {
            (keys, all) = (keys + f64::from(*share) * tokens, all + tokens);
        }
    }
    (all > 0.0).then_some(keys / all)
}

#[test]
fn evicted_keys_get_nothing_the_rest_sums_to_one_and_the_budget_is_kept() {
    let root = tempfile::tempdir().unwrap();
    // Three layers of full attention, and one beside three with windows.
    let models = [("llama-tiny", vec![0, 1, 2]), ("gemma3-tiny", vec![2])];
    for (name, evicting) in &models {
        let dir = root.path().join(name);
        let flags = [
            "--evict",
            "oldest:0.3",
            "--evict",
            "knorm:0.5",
            "--evict",
            "streaming:40",
            "--evict",
            "random:0.25",
        ];
        done(ended(run_of(name, &dir, &flags)));
        let plain = stores(&dir, "");
        for (condition, exact, budget) in [
            ("evict-oldest-0-3", false, 0.3),
            ("evict-knorm-0-5", true, 0.5),
            ("evict-streaming-40-tokens", true, 40.0),
            ("evict-random-0-25", true, 0.25),
        ] {
            for ((row, store), plain) in answered(&dir, condition).iter().zip(&plain) {
                let (kept, at) = (store.kept.as_ref().unwrap(), question(store));
                assert_eq!(kept.layers, *evicting, "{name} {condition}");
                // A number of keys, or a share rounded down to whole keys.
                let keys = if budget > 1.0 { budget } else { (budget * at as f64).floor() };
                let (all, most) = (row.kept["all"], keys / at as f64);
                // Keys in no session stay.
                let outside = store.keys.iter().filter(|span| !span.overlay && span.segment().is_none());
                let outside: usize = outside.map(|span| span.end.min(at) - span.start.min(at)).sum();
                let most = if exact { most } else { most.max(outside as f64 / at as f64) };
                assert!(all < most + 1e-9 && all > 0.0, "{name} {condition}: {all} of {most}");
                assert!(!exact || (all - most).abs() < 1e-9, "{name} {condition}: {all}, not {most}");
                let tiling = kept_of(store, |span| !span.overlay).unwrap();
                assert!((all - tiling).abs() < 1e-6, "{name} {condition}: {all}, not {tiling}");
                let session = kept_of(store, |span| span.segment().is_some()).unwrap();
                assert!((row.kept["session"] - session).abs() < 1e-6, "{name} {condition}");
                // The sample's evidence is of whole sessions.
                for role in ["old", "new"] {
                    let share = kept_of(store, |span| span.is(role)).unwrap();
                    assert!((row.kept[role] - share).abs() < 1e-6, "{name} {condition}: {role} {share}");
                }
                assert!(!row.kept.contains_key("query"), "the question evicts nothing of itself");

                let heads = store.mass.dim().1 / kept.shares.dim().1;
                let rows = store.rows.iter().enumerate();
                for (r, span) in rows.filter(|(_, span)| span.end <= store.tokens.len()) {
                    for l in 0..store.layers.len() {
                        for h in 0..store.mass.dim().1 {
                            let own = store.keys.iter().enumerate().filter(|(_, key)| !key.overlay);
                            let sum: f32 = own.map(|(k, _)| store.mass[[l, h, r, k]]).sum();
                            assert!((sum - 1.0).abs() < 1e-4, "{name} {condition}: {span:?} sums to {sum}");
                        }
                    }
                    if span.end <= at {
                        let of =
                            |store: &AttentionStore| store.mass.index_axis(ndarray::Axis(2), r).to_owned();
                        assert_eq!(
                            of(store),
                            of(plain),
                            "{name} {condition}: rows before the question see all"
                        );
                    }
                }
                let mut gone = BTreeSet::new();
                for ((nth, head, k), share) in kept.shares.indexed_iter() {
                    let layer = store.layers.iter().position(|layer| *layer == kept.layers[nth]).unwrap();
                    for h in head * heads..(head + 1) * heads {
                        for (r, _) in store.rows.iter().enumerate().filter(|(_, span)| span.start >= at) {
                            let (mass, before) = (store.mass[[layer, h, r, k]], plain.mass[[layer, h, r, k]]);
                            if *share == 0.0 {
                                assert!(mass == 0.0 && before > 0.0, "{name} {condition}: {mass}, {before}");
                                gone.insert(&store.keys[k].label);
                            } else if *share > 0.0 {
                                assert!(mass > 0.0, "{name} {condition}: {share} of {:?}", store.keys[k]);
                            }
                        }
                    }
                }
                if condition == "evict-oldest-0-3" {
                    assert!(gone.iter().any(|label| label.as_str() == "session[0]"), "{name}: {gone:?}");
                }
            }
        }
    }
}

fn sorted_rows(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("answers.jsonl")).unwrap();
    let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
    rows.sort();
    rows
}

#[test]
fn an_evicting_run_resumes_to_the_same_rows_whatever_was_answered_before_and_together() {
    let root = tempfile::tempdir().unwrap();
    let (dir, alone) = (root.path().join("run"), root.path().join("alone"));
    let flags = ["--evict", "random:0.5", "--evict", "snapkv:0.3@question", "--evict", "h2o:60"];
    done(ended(run_of("llama-tiny", &dir, &flags)));
    let rows = sorted_rows(&dir);
    assert_eq!(rows.len(), 3 * 4);
    done(ended(run_of("llama-tiny", &alone, &[&flags[..], &["--batch-size", "1"]].concat())));
    assert_eq!(sorted_rows(&alone), rows);
    let attention = |dir: &Path| files(&dir.join("attention"));
    assert_eq!(attention(&alone), attention(&dir));

    let again = done(ended(run_of("llama-tiny", &dir, &flags)));
    assert!(again.out.contains("12 of 12 answers (12 from before, 0 new, 0 errors)"), "{}", again.out);
    let before = attention(&dir);
    let text = std::fs::read_to_string(dir.join("answers.jsonl")).unwrap();
    let left: String = text.split_inclusive('\n').step_by(3).collect();
    std::fs::write(dir.join("answers.jsonl"), left).unwrap();
    let resumed = done(ended(run_of("llama-tiny", &dir, &flags)));
    assert!(resumed.out.contains("(4 from before, 8 new, 0 errors)"), "{}", resumed.out);
    assert_eq!(sorted_rows(&dir), rows);
    assert!(attention(&dir) == before, "the same attention files");
    // Another budget is another run.
    let other = ended(run_of("llama-tiny", &dir, &["--evict", "random:0.6"]));
    assert!(other.code == Some(1) && other.err.contains("conditions"), "{:?} {}", other.code, other.err);
}

#[test]
fn evictions_that_cannot_be_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("refused");
    let check = |run: Ended, parts: &[&str]| {
        assert_eq!(run.code, Some(2), "{parts:?}: {}", run.err);
        assert!(parts.iter().all(|part| run.err.contains(part)), "{parts:?}: {}", run.err);
        assert!(!out.exists(), "nothing was begun");
    };
    let refused = |evictions: &[&str], more: &[&str], parts: &[&str]| {
        let flags = evictions.iter().flat_map(|eviction| ["--evict", eviction]);
        let flags: Vec<&str> = flags.chain(more.iter().copied()).collect();
        check(ended(run_of("llama-tiny", &out, &flags)), parts);
    };
    refused(&["snapkv"], &[], &["eviction `snapkv`: it has no `:`", "write POLICY:KEEP"]);
    refused(&["snap:0.5"], &[], &["`snap` is no policy", "snapkv", "oldest"]);
    for keep in ["0", "0.0", "1.5", "-3", "half"] {
        refused(&[&format!("knorm:{keep}")], &[], &[&format!("`{keep}` is neither a share")]);
    }
    refused(&["snapkv:0.5@answer"], &[], &["`@answer` is not `@question`"]);
    refused(&["snapkv:0.5", "snapkv:0.50"], &[], &["`evict-snapkv-0-5`", "--evict once"]);
    let memory = ["--memory", "kept=true", "--memory-show", "answer"];
    refused(&["knorm:0.5"], &memory, &["--evict knorm:0.5", "memory-kept-answer", "answers itself"]);

    let mut endpoint =
        command(["run", "--data", "sample", "--model", "http://127.0.0.1:9/v1#m", "--evict", "knorm:0.5"]);
    endpoint.arg("--out").arg(&out);
    check(ended(endpoint), &["--evict knorm:0.5", "endpoint"]);

    let layers = ("    \"full_attention\",", "    \"sliding_attention\",");
    let windowed = edited("gemma3-tiny", &root.path().join("windowed"), layers);
    let mut run =
        command(["run", "--data", "sample", "--limit", "1", "--sessions", "3", "--context", "8192"]);
    run.args(["--evict", "knorm:0.5", "--model"]).arg(&windowed).arg("--out").arg(&out);
    check(ended(run), &["--evict knorm:0.5", "windowed", "no layer of full attention"]);
}

#[test]
fn an_estimate_counts_evicting_conditions() {
    let estimate = |flags: &[&str]| {
        let mut command = command(["run", "--data", "sample", "--limit", "2", "--sessions", "3"]);
        command.args(["--context", "8192", "--max-new-tokens", "6", "--allow-longer"]);
        command.args(["--estimate", "--card", "a100-80", "--model"]).arg(fixture("llama-tiny")).args(flags);
        done(ended(command)).out
    };
    let plain = estimate(&[]);
    assert!(plain.starts_with("6 answers on 2 cases"), "{plain}");
    let evicting = estimate(&["--evict", "snapkv:0.5", "--evict", "knorm:100", "--knockout", "query->old"]);
    assert!(evicting.starts_with("24 answers on 2 cases"), "{evicting}");
}
