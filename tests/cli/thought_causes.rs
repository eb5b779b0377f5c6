//! Causes of answers after a thought, by paths through it too, and of outputs that are only a thought.
use std::ops::Range;

use palimpsest::lens::causes::residue::Residues;
use palimpsest::runs::causes::flash_trace::FLASH_TRACE;
use palimpsest::runs::causes::rows::{
    CAUSES, CauseLine, CauseRows, Effect, SubsetRow, ThoughtPath, ThoughtRow, read_lines,
};
use palimpsest::runs::causes::session_measures::measures_file;
use palimpsest::runs::causes::two_hop::{ONE_HOP, ScoreRow, THOUGHT_SCORES, TWO_HOPS};
use palimpsest::runs::rows::{AnswerKey, AnswerRow};
use palimpsest_core::ablate::Measure;
use palimpsest_core::attention::{AttentionStore, RowWeights};
use palimpsest_core::text::Tokenizer;
use serde_json::{Value, json};

use super::knockouts::{causes, fixture, run_of, stores, think, traced};
use super::removals::without;
use super::resume::{interrupt, signal};
use super::*;
use crate::left_out::few_or_all;
use crate::parity::{engine, routes::routes};

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
fn mean_of(all: &[Vec<f64>], store: &AttentionStore, part: Range<usize>) -> f64 {
    let n = part.len() as f64;
    part.map(|at| all[at][store.generated[at] as usize]).sum::<f64>() / n
}

fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Checks an effect against full passes: plain and changed log-probabilities by position.
fn check(effect: &Effect, store: &AttentionStore, plain: &[Vec<f64>], changed: &[Vec<f64>]) {
    let n = store.generated.len();
    let drop = |part: Range<usize>| mean_of(plain, store, part.clone()) - mean_of(changed, store, part);
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
    let of = |line: &CauseLine| line.answer().probe.clone();
    let probes: std::collections::BTreeSet<String> = read_lines(&dir).unwrap().iter().map(of).collect();
    assert_eq!(probes, rows[1..].iter().map(|row| row.probe.clone()).collect());
    assert!(!dir.join(measures_file(Measure::LogP, AnswerKey::of_store(&store))).exists());
}

/// A run whose model thought these sentences before it answered "Oslo.". The last token of the thought is the line's end.
fn run_with_thought(name: &str, dir: &Path) {
    assert_eq!(ended(run_of(name, dir, &[])).code, Some(0));
    let tokenizer = Tokenizer::from_file(&fixture(name).join("tokenizer.json")).unwrap();
    let thought = tokenizer.encode("It is old. Is it so? It is new.\n").unwrap();
    let generated = [&thought[..], &tokenizer.encode("Oslo.").unwrap()].concat();
    let folder = RunFolder::read(dir).unwrap();
    for row in &folder.answers {
        let mut store = folder.attention(row).unwrap().unwrap();
        let Some(answer) = store.rows.iter_mut().find(|row| row.label == "answer") else { continue };
        let last = store.tokens.len() - 1;
        (answer.start, answer.end) = (last + thought.len(), last + generated.len());
        store.generated.clone_from(&generated);
        assert_eq!(store.thought(), thought.len());
        store.save(&dir.join(row.attention.as_deref().unwrap())).unwrap();
    }
    // The model is opened for answers of the lengths in the rows.
    let file = dir.join("answers.jsonl");
    let lines = std::fs::read_to_string(&file).unwrap();
    let line = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        row["completion_tokens"] = json!(generated.len());
        row.to_string() + "\n"
    };
    std::fs::write(&file, lines.lines().map(line).collect::<String>()).unwrap();
}

fn with_thoughts(dir: &Path) -> Vec<AttentionStore> {
    stores(dir, "").into_iter().filter(|store| !store.generated.is_empty()).collect()
}

fn scores(dir: &Path) -> Vec<ScoreRow> {
    let rows = std::fs::read_to_string(dir.join(THOUGHT_SCORES)).unwrap();
    rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A mean of attention weights from row spans to key spans, over all layers and heads, by `trace`.
fn attention(name: &str, store: &AttentionStore, spans: &[(String, Range<usize>)]) -> Vec<Vec<f64>> {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    let all = [&store.tokens[..], &store.generated[..store.generated.len() - 1]].concat();
    let ranges: serde_json::Map<String, Value> =
        spans.iter().map(|(name, range)| (name.clone(), json!([range.start, range.end]))).collect();
    let names: Vec<&String> = spans.iter().map(|(name, _)| name).collect();
    let file = json!({"tokens": all, "spans": ranges, "rows": names, "logits": 1});
    std::fs::write(&tokens, file.to_string()).unwrap();
    let mut command = command(["trace", "--allow-longer", "--model"]);
    command.arg(fixture(name)).arg("--tokens").arg(&tokens).arg("--out").arg(&out);
    let done = ended(command);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let bytes = std::fs::read(&out).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let keys: Vec<String> = serde_json::from_str(&header.metadata().as_ref().unwrap()["spans"]).unwrap();
    let mut tensors = candle_core::safetensors::load(&out, &candle_core::Device::Cpu).unwrap();
    let mass = tensors.remove("mass").unwrap().mean((0, 1)).unwrap().to_vec2::<f32>().unwrap();
    let place = |name: &String| keys.iter().position(|key| key == name).unwrap();
    mass.iter().map(|row| names.iter().map(|name| f64::from(row[place(name)])).collect()).collect()
}

/// The knock-outs of a path, from its definition.
fn knocked_out(row: &ThoughtRow, store: &AttentionStore) -> Value {
    let (prompt, end) = (store.tokens.len(), store.tokens.len() + store.generated.len() - 1);
    let question = store.keys.iter().find(|span| span.is("query")).unwrap().start;
    let answer = [prompt + store.thought() - 1, end];
    let rows = match row.path {
        ThoughtPath::Whole => vec![[question, end]],
        ThoughtPath::Direct => vec![[question, prompt], answer],
        ThoughtPath::Carried => vec![[question, prompt], row.sentence_tokens.unwrap(), answer],
        ThoughtPath::Rows => vec![row.sentence_tokens.unwrap()],
        ThoughtPath::Used => vec![answer],
    };
    let rows = rows.into_iter();
    rows.map(|[start, end]| json!({"row_range": [start, end], "range": row.tokens, "only": true})).collect()
}

#[test]
fn paths_through_thoughts_are_what_whole_passes_with_the_same_knockouts_give() {
    let root = tempfile::tempdir().unwrap();
    for &name in few_or_all(&["llama-tiny"][..], &["llama-tiny", "gemma3-tiny"]) {
        let dir = root.path().join(name);
        run_with_thought(name, &dir);
        let flags = ["--thoughts", "--least", "0"];
        let done = ended(causes(name, &dir, &flags));
        assert_eq!(done.code, Some(0), "{name}: {}", done.err);
        assert!(done.err.contains("forward passes at most"), "{}", done.err);
        let stores = with_thoughts(&dir);
        let evidence = |store: &AttentionStore| {
            let segments = store.keys.iter().filter(|span| span.segment().is_some());
            segments.filter(|span| span.role.is_some()).cloned().collect::<Vec<_>>()
        };
        let rows = CauseRows::read(&dir).unwrap().thoughts;
        let expected: usize = stores.iter().map(|store| 3 + evidence(store).len() * (2 + 2 * 3)).sum();
        assert_eq!(rows.len(), expected, "{name}");
        let store = &stores[0];
        let own: Vec<&ThoughtRow> = rows.iter().filter(|row| row.answer.probe == store.probe).collect();

        // The sentences tile the thought's rows but the last, which predicts the answer.
        let (prompt, thought, n) = (store.tokens.len(), store.thought(), store.generated.len());
        let used = || own.iter().filter(|row| row.path == ThoughtPath::Used);
        let texts: Vec<&str> = used().map(|row| row.text.as_str()).collect();
        assert_eq!(texts, ["It is old.", "Is it so?", "It is new."]);
        let mut from = prompt;
        for (nth, row) in used().enumerate() {
            let [start, end] = row.sentence_tokens.unwrap();
            assert_eq!((row.sentence, row.sentences, start, row.tokens), (Some(nth), 3, from, [start, end]));
            assert!(end > start);
            from = end;
        }
        assert_eq!(from, prompt + thought - 1);

        let pass = |knockouts| log_probabilities(&traced(name, store, knockouts).0);
        let plain = pass(json!([]));
        for row in &own {
            assert_eq!((row.answer_tokens, row.thought_tokens), (n - thought, thought));
            assert!((row.log_p - mean_of(&plain, store, thought..n)).abs() < 1e-4);
            let changed = pass(knocked_out(row, store));
            let drop = mean_of(&plain, store, thought..n) - mean_of(&changed, store, thought..n);
            assert!((row.effect.log_p_drop - drop).abs() < 1e-4, "{name} {row:?}: {drop}");
        }
        // Hidden from the question on is the same with a thought and without the flag.
        assert_eq!(ended(causes(name, &dir, &["--controls", "0"])).code, Some(0));
        let blocked = CauseRows::read(&dir).unwrap().blocked;
        for row in own.iter().filter(|row| row.path == ThoughtPath::Whole) {
            let same =
                blocked.iter().find(|one| (&one.answer, &one.span) == (&row.answer, &row.span)).unwrap();
            assert!((same.effect.log_p_drop - row.effect.log_p_drop).abs() < 1e-5);
        }

        // Through is whole less direct, and the thirds are the three sentences.
        let residues = Residues::of_answers(&dir).unwrap();
        let of = |span: &str, path, sentence: Option<usize>| {
            let row = own.iter().find(|row| (&*row.span, row.path, row.sentence) == (span, path, sentence));
            row.unwrap().effect.log_p_drop
        };
        for span in evidence(store) {
            let mut with_probe = residues.sessions.iter().filter(|one| one.span == span.label);
            let (whole, direct) =
                (of(&span.label, ThoughtPath::Whole, None), of(&span.label, ThoughtPath::Direct, None));
            let found = with_probe.find(|one| one.thought.whole == Some(whole)).unwrap();
            assert!((found.thought.through().unwrap() - (whole - direct)).abs() < 1e-12);
            for third in 0..3 {
                let carried = of(&span.label, ThoughtPath::Carried, Some(third)) - direct;
                assert!((found.thought.carried(third).unwrap() - carried).abs() < 1e-12);
            }
        }
        assert!(done.out.contains("through the thought"), "{}", done.out);
        assert!(done.out.contains("Through the thought's rows goes"), "{}", done.out);

        let again = ended(causes(name, &dir, &flags));
        assert_eq!(again.code, Some(0), "{}", again.err);
        assert_eq!(CauseRows::read(&dir).unwrap().thoughts, rows);
        assert_eq!(scores(&dir).len(), 3 * stores.len());
        // Single sentences are read only where the thought passes something on.
        let few = root.path().join(format!("{name}-few"));
        run_with_thought(name, &few);
        let most = ["--thoughts", "--least", "1000", "--sessions", "all"];
        assert_eq!(ended(causes(name, &few, &most)).code, Some(0));
        let rows = CauseRows::read(&few).unwrap().thoughts;
        let sessions =
            |store: &AttentionStore| store.keys.iter().filter(|span| span.segment().is_some()).count();
        assert_eq!(rows.len(), stores.iter().map(|store| 3 + 2 * sessions(store)).sum::<usize>());
    }
}

#[test]
fn two_hop_attention_is_the_product_of_what_the_answer_and_its_thought_attend_to() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    run_with_thought(NAME, &dir);
    assert_eq!(ended(causes(NAME, &dir, &["--thoughts", "--least", "1000"])).code, Some(0));
    let store = &with_thoughts(&dir)[0];
    let rows = CauseRows::read(&dir).unwrap().thoughts;
    let used = rows.iter().filter(|row| row.path == ThoughtPath::Used && row.answer.probe == store.probe);
    let sentences: Vec<Range<usize>> = used.map(|row| row.tokens[0]..row.tokens[1]).collect();
    assert_eq!(sentences.len(), 3);
    let end = store.tokens.len() + store.generated.len() - 1;
    let mut spans = vec![("said".to_owned(), store.tokens.len() + store.thought() - 1..end)];
    spans.extend(sentences.into_iter().enumerate().map(|(nth, range)| (format!("part {nth}"), range)));
    let of_history = store.keys.iter().filter(|span| span.segment().is_some());
    spans.extend(of_history.map(|span| (span.label.clone(), span.range())));
    let attention = attention(NAME, store, &spans);
    let scores = scores(&dir);
    let of = |method: &str| {
        let row = scores.iter().find(|row| (&*row.answer.probe, &*row.method) == (&*store.probe, method));
        &row.unwrap().scores
    };
    assert_eq!(of(TWO_HOPS).len(), spans.len() - 4);
    for (at, (label, _)) in spans.iter().enumerate().skip(4) {
        let one = attention[0][at];
        let two = one + (1..4).map(|part| attention[0][part] * attention[part][at]).sum::<f64>();
        assert!(one > 0.0 && two > one);
        assert!((of(ONE_HOP)[label] - one).abs() < 1e-6, "{label}: {one}");
        assert!((of(TWO_HOPS)[label] - two).abs() < 1e-6, "{label}: {two}");
    }
    let refused = ended(causes(NAME, &dir, &["--thoughts", "--contrast"]));
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    let plain = root.path().join("plain");
    assert_eq!(ended(run_of(NAME, &plain, &[])).code, Some(0));
    let none = ended(causes(NAME, &plain, &["--thoughts"]));
    assert!(none.code == Some(1) && none.err.contains("no answer of"), "{}", none.err);
}

#[test]
fn flashtrace_is_two_hops_of_routes_and_the_same_with_and_without_thoughts_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let [dir, plain] = ["thoughts", "plain"].map(|name| root.path().join(name));
    for (dir, flags) in [(&dir, &["--thoughts", "--least", "1000"][..]), (&plain, &["--controls", "0"][..])] {
        run_with_thought(NAME, dir);
        assert_eq!(ended(causes(NAME, dir, flags)).code, Some(0));
    }
    let of = |dir: &Path, store: &AttentionStore| {
        let mut rows = scores(dir).into_iter();
        rows.find(|row| (&*row.answer.probe, &*row.method) == (&*store.probe, FLASH_TRACE)).unwrap().scores
    };
    let tokenizer = Tokenizer::from_file(&fixture(NAME).join("tokenizer.json")).unwrap();
    for store in with_thoughts(&dir) {
        // The answer ends without an end token, and by a full stop.
        let tokens = [&store.tokens[..], &store.generated].concat();
        let text = |token: &u32| tokenizer.decode(&[*token], false).unwrap();
        let counts = tokens.iter().map(|token| !["", ",", "."].contains(&text(token).trim()));
        let counts: Vec<f64> = counts.map(|counts| f64::from(u8::from(counts))).collect();
        assert_eq!(counts.last(), Some(&0.0));
        let hop = |first: usize, weights: &[f64]| -> Vec<f64> {
            let rows = RowWeights { first, weights: weights.to_vec() };
            let shares = routes(&engine(&fixture(NAME), 64), &tokens, 0, rows).unwrap();
            shares.iter().zip(&counts).map(|(share, counts)| share * counts).collect()
        };
        let prompt = store.tokens.len();
        let answer = prompt + store.thought();
        let direct = hop(answer, &counts[answer..]);
        let through = hop(prompt, &direct[prompt..]);
        let passed = direct[prompt..].iter().sum::<f64>() / direct.iter().sum::<f64>();
        let (found, again) = (of(&dir, &store), of(&plain, &store));
        let all = found.values().sum::<f64>();
        assert!(all > 0.0 && passed > 0.0, "{all} of the sessions, {passed} through the thought");
        let sessions = store.keys.iter().filter(|span| span.segment().is_some());
        for (count, span) in sessions.enumerate() {
            let score: f64 = span.range().map(|at| direct[at] + passed * through[at]).sum();
            assert!(found.len() > count);
            assert!((found[&span.label] - score).abs() < 1e-6, "{}: {score}", span.label);
            assert!((again[&span.label] - score).abs() < 1e-6, "{}: {score}", span.label);
        }
    }
}

#[test]
#[cfg(unix)]
fn paths_through_thoughts_killed_and_started_again_end_with_the_same_rows() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("killed"));
    let flags = ["--thoughts", "--least", "0"];
    for dir in [&whole, &dir] {
        run_with_thought(NAME, dir);
    }
    assert_eq!(ended(causes(NAME, &whole, &flags)).code, Some(0));
    let file = dir.join(CAUSES);
    let lines = || std::fs::read(&file).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count());
    interrupt(causes(NAME, &dir, &flags), || lines() >= 6, signal("-KILL"));
    let resumed = ended(causes(NAME, &dir, &flags));
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    let sorted = |dir: &Path| {
        let mut rows = CauseRows::read(dir).unwrap().thoughts;
        rows.sort_by_key(|row| (row.answer.clone(), row.path, row.tokens, row.sentence));
        rows
    };
    let (a, b) = (sorted(&whole), sorted(&dir));
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(&b) {
        assert!((a.effect.log_p_drop - b.effect.log_p_drop).abs() < 1e-6, "{a:?} {b:?}");
        assert_eq!(ThoughtRow { effect: b.effect, log_p: b.log_p, ..a.clone() }, *b);
    }
    assert_eq!(scores(&whole), scores(&dir));
}
