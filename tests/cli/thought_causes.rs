//! Causes of answers after a thought, and of outputs that are only a thought.
use palimpsest::runs::causes::rows::{CauseLine, CauseRows, Effect, SubsetRow, read_lines};
use palimpsest::runs::causes::session_measures::measures_file;
use palimpsest::runs::rows::{AnswerKey, AnswerRow};
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::AttentionStore;
use serde_json::json;

use super::knockouts::{causes, run_of, stores, think, traced};
use super::removals::without;
use super::*;

const NAME: &str = "llama-tiny";

/// Number of tokens marked as a thought.
const THOUGHT: usize = 2;

/// Natural-log probabilities by position.
fn log_probabilities(logits: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let of = |row: &Vec<f32>| {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        row.iter().map(|&x| f64::from(x) - sum.ln()).collect()
    };
    logits.iter().map(of).collect()
}

/// Mean log-probability of a range of the generated tokens.
fn mean_of(all: &[Vec<f64>], store: &AttentionStore, part: std::ops::Range<usize>) -> f64 {
    let n = part.len() as f64;
    part.map(|at| all[at][store.generated[at] as usize]).sum::<f64>() / n
}

fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Checks an effect against full passes: plain and changed log-probabilities by position.
fn check(effect: &Effect, store: &AttentionStore, plain: &[Vec<f64>], changed: &[Vec<f64>]) {
    let n = store.generated.len();
    let drop =
        |part: std::ops::Range<usize>| mean_of(plain, store, part.clone()) - mean_of(changed, store, part);
    let kl = |at: usize| divergence(&plain[at], &changed[at]);
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-4, "{a} is not {b}: {effect:?}");
    close(effect.log_p_drop, drop(THOUGHT..n));
    close(effect.kl, kl(THOUGHT));
    close(effect.kl_answer, (THOUGHT..n).map(kl).sum::<f64>() / (n - THOUGHT) as f64);
    let thought = effect.thought.unwrap();
    close(thought.log_p_drop, drop(0..THOUGHT));
    close(thought.kl, kl(0));
    let best = |row: &[f64], token: u32| row.iter().all(|x| *x <= row[token as usize]);
    let moved = |at: usize| best(&plain[at], store.generated[at]) != best(&changed[at], store.generated[at]);
    assert_eq!(effect.changed, (THOUGHT..n).any(moved));
    assert_eq!(thought.changed, (0..THOUGHT).any(moved));
}

#[test]
fn behind_a_thought_the_answer_alone_is_measured_and_the_thought_has_its_own_numbers() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    assert_eq!(ended(run_of(NAME, &dir, &["--sessions", "4"])).code, Some(0));
    think(&dir, THOUGHT);
    let out = ended(causes(NAME, &dir, &["--controls", "3"]));
    assert_eq!(out.code, Some(0), "{}", out.err);
    assert!(out.out.contains("thoughts before the answers"), "{}", out.out);
    for more in [&["--total"][..], &["--contextcite", "4"]] {
        assert_eq!(ended(causes(NAME, &dir, more)).code, Some(0));
    }
    let stores = stores(&dir, "");
    let store = stores.iter().find(|store| store.generated.len() > THOUGHT).unwrap();
    let n = store.generated.len();
    let pass = |store: &AttentionStore, knockouts| log_probabilities(&traced(NAME, store, knockouts).0);
    let plain = pass(store, json!([]));
    let rows: Vec<_> = CauseRows::read(&dir)
        .unwrap()
        .blocked
        .into_iter()
        .filter(|row| row.answer.probe == store.probe)
        .collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!((row.answer_tokens, row.thought_tokens), (n - THOUGHT, THOUGHT));
        assert!((row.log_p - mean_of(&plain, store, THOUGHT..n)).abs() < 1e-4);
        let changed = pass(store, json!([{"rows": "blocked", "range": row.tokens}]));
        check(&row.effect, store, &plain, &changed);
    }
    let row = CauseRows::read(&dir)
        .unwrap()
        .controls
        .into_iter()
        .find(|row| row.answer.probe == store.probe)
        .unwrap();
    assert_eq!(row.answer_tokens, n - THOUGHT);
    check(&row.effect, store, &plain, &pass(store, json!([{"rows": "blocked", "range": row.tokens}])));

    // Removed sessions and ContextCite: the same answer, the same sign.
    let row = CauseRows::read(&dir)
        .unwrap()
        .removed
        .into_iter()
        .find(|row| row.answer.probe == store.probe)
        .unwrap();
    assert_eq!((row.answer_tokens, row.thought_tokens), (n - THOUGHT, THOUGHT));
    let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
    check(&row.effect, store, &plain, &pass(&without(store, &[span]), json!([])));
    let of = |line| if let CauseLine::Subset(row) = line { Some(row) } else { None };
    let subsets = read_lines(&dir).unwrap().into_iter().filter_map(of);
    let subset: SubsetRow = subsets.into_iter().find(|row| row.answer.probe == store.probe).unwrap();
    let out =
        store.keys.iter().filter(|span| span.segment().is_some() && !subset.sessions.contains(&span.label));
    let left = pass(&without(store, &out.collect::<Vec<_>>()), json!([]));
    let sum = mean_of(&left, store, THOUGHT..n) * (n - THOUGHT) as f64;
    assert!((subset.answer_log_p - sum).abs() < 1e-3, "{subset:?}: {sum}");
    assert_eq!((subset.answer_tokens, subset.thought_tokens), (n - THOUGHT, THOUGHT));
    let fits = CauseRows::read(&dir).unwrap().surrogates;
    assert!(fits.iter().any(|fit| (fit.answer_tokens, fit.thought_tokens) == (n - THOUGHT, THOUGHT)));
}

#[test]
fn what_is_nothing_but_a_thought_is_no_answer_and_is_left_out() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    assert_eq!(ended(run_of(NAME, &dir, &["--sessions", "4"])).code, Some(0));
    let folder = RunFolder::read(&dir).unwrap();
    let answered = |row: &&AnswerRow| folder.attention(row).unwrap().is_some_and(|s| !s.generated.is_empty());
    let rows: Vec<_> = folder.answers.iter().filter(answered).collect();
    assert!(rows.len() > 1);
    // The model ended its turn in its thought: no attention row belongs to an answer.
    let mut store = folder.attention(rows[0]).unwrap().unwrap();
    let kept: Vec<usize> = (0..store.rows.len()).filter(|&row| store.rows[row].label != "answer").collect();
    assert_eq!(kept.len() + 1, store.rows.len());
    store.mass = store.mass.select(ndarray::Axis(2), &kept);
    store.rows = kept.iter().map(|&row| store.rows[row].clone()).collect();
    store.uniform = None;
    store.save(&dir.join(rows[0].attention.as_deref().unwrap())).unwrap();
    assert_eq!(store.thought(), store.generated.len());
    // A one-token answer counts: its row is the prompt's last position.
    let mut short = folder.attention(rows[1]).unwrap().unwrap();
    let last = short.tokens.len() - 1;
    short.generated.truncate(1);
    let row = short.rows.iter_mut().find(|row| row.label == "answer").unwrap();
    (row.start, row.end) = (last, last + 1);
    assert_eq!(short.thought(), 0);
    short.save(&dir.join(rows[1].attention.as_deref().unwrap())).unwrap();
    for more in [&["--controls", "2"][..], &["--total"], &["--contextcite", "3"]] {
        let done = ended(causes(NAME, &dir, more));
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    let of = |line: &CauseLine| match line {
        CauseLine::Blocked(row) => row.answer.probe.clone(),
        CauseLine::Control(row) => row.answer.probe.clone(),
        CauseLine::Total(row) => row.answer.probe.clone(),
        CauseLine::Replaced(row) => row.answer.probe.clone(),
        CauseLine::Repaired(row) => row.answer.probe.clone(),
        CauseLine::Carrier(row) => row.answer.probe.clone(),
        CauseLine::Subset(row) => row.answer.probe.clone(),
        CauseLine::Surrogate(row) => row.answer.probe.clone(),
    };
    let probes: std::collections::BTreeSet<String> = read_lines(&dir).unwrap().iter().map(of).collect();
    assert_eq!(probes, rows[1..].iter().map(|row| row.probe.clone()).collect());
    assert!(!dir.join(measures_file(Measure::LogP, AnswerKey::of_store(&store))).exists());
}
