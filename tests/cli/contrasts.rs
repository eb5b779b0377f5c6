//! Contrasts of a run and their causes against full passes of `trace`.
use palimpsest::case::Contrasted;
use palimpsest::runs::causes::contrast_rows::{
    AblationKind, CONTRAST_CAUSES, ContrastCauseRow, read_contrast_causes,
};
use palimpsest::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest::runs::contrast::ContrastTokens;
use palimpsest::runs::rows::{AnswerKey, AnswerRow, Contrast};
use palimpsest_core::ablate::Measure;
use palimpsest_core::ablate::NEUTRAL;
use palimpsest_core::ablate::Target;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::log_sum_exp;
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::model::ModelFiles;
use serde_json::{Value as Json, json};

use super::knockouts::{causes, fixture, traced};
use super::removals::{replaced, without};
use super::*;

pub(super) fn run_of(name: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = command(["run", "--data", "sample:dose", "--context", "4096", "--max-new-tokens", "4"]);
    command.arg("--allow-longer").arg("--model").arg(fixture(name)).arg("--out").arg(out).args(more);
    command
}

fn opened(name: &str, context: usize) -> LocalModel {
    let context = ContextLength::Exactly(context);
    let options = LocalOptions { context, allow_longer: true, ..LocalOptions::default() };
    LocalModel::open(&ModelFiles::at(&fixture(name)).unwrap(), &options).unwrap()
}

/// Tokens of a contrast's values after the prompt, the current value first.
fn tokens_of(name: &str, contrast: &Contrast, prefix: &str) -> Vec<(String, Vec<u32>)> {
    let model = opened(name, 256);
    let texts: Vec<String> = contrast.values().map(|value| value.text.clone()).collect();
    let tokens = model.text().option_tokens(prefix, &texts).unwrap().unwrap();
    texts.into_iter().zip(tokens).collect()
}

/// Log-probability of `token` after the stored tokens and `before`, from a full pass.
fn log_p(name: &str, store: &AttentionStore, before: &[u32], token: u32, knockouts: Json) -> f64 {
    let store = AttentionStore { generated: [before, &[token]].concat(), ..store.clone() };
    let logits = traced(name, &store, knockouts).0.pop().unwrap();
    f64::from(logits[token as usize]) - log_sum_exp(&logits)
}

/// The shared tokens before the one where a value differs from the current one, and that token.
fn split<'a>(tokens: &'a [(String, Vec<u32>)], text: &str) -> (&'a [u32], u32) {
    let own = &tokens[0].1;
    let other = &tokens.iter().find(|(other, _)| other == text).unwrap().1;
    let at = own.iter().zip(other).take_while(|(a, b)| a == b).count();
    (&own[..at], other[at])
}

fn updated(folder: &RunFolder) -> Vec<&AnswerRow> {
    folder.answers.iter().filter(|row| ["ab", "ba"].contains(&row.labels["twin"].as_str())).collect()
}

const PREFIXES: [(&str, &str); 2] =
    [("sample-day", "Your choir rehearses on"), ("sample-colour", "The door of your workshop is")];

#[test]
fn contrasts_and_what_ablations_take_from_them_are_what_traces_of_the_stored_tokens_give() {
    let root = tempfile::tempdir().unwrap();
    for &name in crate::left_out::few_or_all(&["gemma3-tiny"][..], &["llama-tiny", "gemma3-tiny"]) {
        let dir = root.path().join(name);
        let done = ended(run_of(name, &dir, &[]));
        assert_eq!(done.code, Some(0), "{}", done.err);
        let folder = RunFolder::read(&dir).unwrap();
        assert_eq!(folder.answers.len(), 8);
        assert!(folder.answers.iter().all(|row| row.contrast.is_some()), "{name}");
        let close = |found: f64, expected: f64, what: &str| {
            assert!((found - expected).abs() < 1e-4, "{name}, {what}: {found} is not {expected}");
        };

        // 1. Every value of every answer with an update.
        for row in updated(&folder).into_iter().step_by(2) {
            let (contrast, store) = (row.contrast.as_ref().unwrap(), folder.attention(row).unwrap().unwrap());
            let prefix = PREFIXES.iter().find(|(item, _)| *item == row.labels["item"]).unwrap().1;
            let span = store.keys.iter().find(|span| span.label == "prefix").unwrap();
            assert_eq!((span.end, &span.role), (store.tokens.len(), &None));
            assert!(
                store.rows.iter().any(|row| row.label == "last")
                    && store.rows.iter().any(|row| row.is("new"))
            );
            let tokens = tokens_of(name, contrast, prefix);
            let stale = contrast.stale.as_ref().unwrap();
            for value in contrast.values().skip(1) {
                let (before, token) = split(&tokens, &value.text);
                assert_eq!(token, value.token);
                close(value.log_p, log_p(name, &store, before, token, json!([])), &value.text);
            }
            let (before, _) = split(&tokens, &stale.text);
            assert_eq!(contrast.current.token, tokens[0].1[before.len()]);
            close(
                contrast.current.log_p,
                log_p(name, &store, before, contrast.current.token, json!([])),
                "current",
            );
            close(contrast.value, contrast.current.log_p - stale.log_p, "contrast");
        }

        // 2. Causes: blocked, removed, resumed.
        let ways = [
            &["--contrast", "--controls", "2"][..],
            &["--contrast", "--total"],
            &["--contrast", "--replace"],
            &["--contrast", "--carriers", "--least", "0"],
        ];
        for more in ways {
            let done = ended(causes(name, &dir, more));
            assert_eq!(done.code, Some(0), "{name}: {}", done.err);
            let carriers = more.contains(&"--carriers");
            assert!(done.out.contains(if carriers { "carried by" } else { "contrast lost" }), "{}", done.out);
        }
        let rows = read_contrast_causes(&dir).unwrap();
        let count = |kind| rows.iter().filter(|row| row.ablation == kind).count();
        assert_eq!((count(AblationKind::Blocked), count(AblationKind::Removed)), (40, 40));
        assert!(count(AblationKind::Control) > 0);
        let of_roles = rows.iter().filter(|row| row.ablation == AblationKind::Blocked && row.role.is_some());
        assert_eq!(count(AblationKind::Replaced), of_roles.count());
        assert!(count(AblationKind::Carried) > count(AblationKind::Replaced));
        let row = updated(&folder)[0];
        let (contrast, store) = (row.contrast.as_ref().unwrap(), folder.attention(row).unwrap().unwrap());
        let stale = contrast.stale.as_ref().unwrap();
        let tokens = tokens_of(name, contrast, PREFIXES[0].1);
        let before = split(&tokens, &stale.text).0;
        let of_case = |row: &&ContrastCauseRow| row.answer.case == store.case;
        for row in rows.iter().filter(of_case) {
            close(row.contrast, contrast.value, "plain contrast");
            close(row.drop, row.contrast - (row.current - row.stale), "drop");
            let (store, knockouts) = match row.ablation {
                AblationKind::Removed => {
                    let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
                    if span.is("new") {
                        // `traced` needs the span `new`.
                        continue;
                    }
                    (without(&store, &[span]), json!([]))
                }
                AblationKind::Replaced => {
                    let span = store.keys.iter().find(|span| span.label == row.span).unwrap();
                    assert_eq!(row.neutral.as_deref(), Some(NEUTRAL));
                    (replaced(name, &store, span), json!([]))
                }
                AblationKind::Carried => {
                    let carrier = row.carrier.as_deref().unwrap();
                    let mut knockouts = vec![json!({"rows": "blocked", "range": row.tokens})];
                    match store.keys.iter().find(|span| span.label == carrier) {
                        Some(_) => knockouts.push(json!({"rows": carrier, "range": row.tokens})),
                        // The others are checked against traces of answers.
                        None => continue,
                    }
                    (store.clone(), json!(knockouts))
                }
                _ => (store.clone(), json!([{"rows": "blocked", "range": row.tokens}])),
            };
            for (token, found) in [(contrast.current.token, row.current), (stale.token, row.stale)] {
                let expected = log_p(name, &store, before, token, knockouts.clone());
                close(found, expected, &format!("{:?} {}", row.ablation, row.span));
            }
        }
        let file = dir.join(CONTRAST_CAUSES);
        let text = std::fs::read_to_string(&file).unwrap();
        let half: String = text.lines().take(rows.len() / 3).map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, half + "{\"case\": \"torn").unwrap();
        for more in ways {
            assert_eq!(ended(causes(name, &dir, more)).code, Some(0));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), rows.len());

        // 3. Rows that predict the values: with a single differing token, the prompt's last row.
        let file = measures_file(Measure::Contrast, AnswerKey::of_store(&store));
        let measures = SessionMeasures::open(&dir, &file).unwrap();
        assert_eq!(
            (measures.spans.len(), &measures.rows[..]),
            (5, &["query".to_owned(), "answer".to_owned()][..])
        );
        let query = store.rows.iter().position(|row| row.label == "query").unwrap();
        let session = store.keys.iter().position(|span| span.label == measures.spans[1]).unwrap();
        let layer = store.layers.iter().position(|layer| *layer == measures.layers[0]).unwrap();
        let apart = (measures.mass[[0, 0, 0, 1]] - store.mass[[layer, 0, query, session]]).abs();
        assert!(apart < 1e-5, "{name}: {apart}");

        // 4. Attribution of the current value against the other: swapping them flips the sign.
        let values = Contrasted {
            current: stale.text.clone(),
            stale: vec![contrast.current.text.clone()],
            absent: Vec::new(),
        };
        let of = |text: &str| tokens.iter().find(|(other, _)| other == text).unwrap().1.clone();
        let swapped = ContrastTokens::of(&values, &[of(&stale.text), of(&contrast.current.text)]).unwrap();
        let pair = swapped.unwrap().pair().unwrap();
        let mut model = opened(name, 4096);
        let other =
            SessionMeasures::read(model.session(), &store, 0, Target::Values(&pair), &mut |_| true).unwrap();
        let both = || measures.attribution.iter().zip(&other.attribution);
        assert!(both().all(|(a, b)| (a + b).abs() < 1e-5) && both().any(|(a, _)| a.abs() > 1e-4), "{name}");
    }
}

#[test]
fn a_run_of_dose_is_read_by_rules_and_can_leave_its_history_out() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let done = ended(run_of("llama-tiny", &dir, &["--conditions", "full,none", "--limit", "2"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let text = dir.to_str().unwrap();
    let judged = palimpsest(["judge", text]);
    assert_eq!(judged.code, Some(0), "{}", judged.err);
    assert!(judged.out.contains("exact:") && judged.out.contains("choice: 4 of 4"), "{}", judged.out);
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!(folder.verdicts.len(), 8);
    for row in folder.verdicts.iter().filter(|row| row.judge == "choice") {
        let answer = folder.answers.iter().find(|answer| answer.key() == row.key()).unwrap();
        let contrast = answer.contrast.as_ref().unwrap();
        let likeliest = contrast.values().max_by(|a, b| a.log_p.total_cmp(&b.log_p)).unwrap();
        assert_eq!(row.correct, Some(likeliest.text == contrast.current.text));
    }
    for command in [&["table", text][..], &["report", text]] {
        let done = palimpsest(command);
        assert_eq!(done.code, Some(0), "{command:?}: {}", done.err);
    }
    // Without contrasts there is nothing to measure.
    let other = root.path().join("other");
    assert_eq!(run(&other, &["--limit", "1"]).code, Some(0));
    let refused = palimpsest(["causes", other.to_str().unwrap(), "--contrast"]);
    assert!(refused.code != Some(0) && refused.err.contains("has no contrasts"), "{}", refused.err);
}
