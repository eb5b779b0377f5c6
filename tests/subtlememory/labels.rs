//! The check of the relation labels: prompts, stored rows, agreement.

use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling};
use palimpsest::ground::jsonl::RowLog;
use palimpsest::judge::{Judge, Reasons, check_labels, label_instructions};
use palimpsest::results::labels::{label_agreement, label_table};
use palimpsest::runs::labels::{LABELS, LabelRow, label_rows, units};
use palimpsest::runs::plan::PlannedCase;

use super::sample_case;
use crate::judge::said;

const SAMPLING: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };

/// Says "complementary" for everything, except a fact about the seat, for which it gives no word.
struct Judging(Vec<String>);

impl ChatModel for Judging {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        let prompt = messages[0].content.clone();
        let id = prompt.split("Its key is \"").nth(1).unwrap().split('"').next().unwrap();
        let text = match prompt.contains("Ilse sits at the window") {
            true => "I cannot say.".to_owned(),
            false if prompt.contains("metres") => {
                format!("{{\"{id}\": {{\"choice\": \"contradictory\", \"reason\": \"two lengths\"}}}}")
            }
            false => format!("{{\"{id}\": {{\"choice\": \"complementary\"}}}}"),
        };
        self.0.push(prompt);
        Ok(said(text))
    }

    fn refused_parameters(&self) -> Vec<String> {
        vec!["seed".to_owned()]
    }
}

fn check(log: &mut RowLog<LabelRow>, plan: &[PlannedCase]) -> (Vec<String>, [usize; 4]) {
    let check = SUBTLEMEMORY.label_check.unwrap();
    let mut model = Judging(Vec::new());
    let mut judge = Judge::Reply { models: vec![&mut model], sampling: SAMPLING };
    let instructions = label_instructions(&check, Reasons::Last);
    let stop = AtomicBool::new(false);
    let summary = check_labels(log, plan, &check, &mut judge, &instructions, &stop, false).unwrap();
    (model.0, [summary.planned, summary.done, summary.errors, summary.skipped])
}

#[test]
fn each_set_is_asked_about_once_and_without_its_label() {
    let plan = [PlannedCase::of(&sample_case())];
    let all = units(&SUBTLEMEMORY.label_check.unwrap(), &plan);
    assert_eq!(all.len(), 11, "15 questions on 11 sets");
    let root = tempfile::tempdir().unwrap();
    let mut log = RowLog::open(root.path(), LABELS).unwrap();
    let (prompts, summary) = check(&mut log, &plan);
    // The set without a word is retried once, as for judges.
    assert_eq!((prompts.len(), summary), (12, [11, 10, 1, 0]));
    for (prompt, (case, at)) in prompts.iter().zip(&all) {
        let probe = &case.probes[*at];
        for fact in probe.judge["facts"].as_array().unwrap() {
            assert!(prompt.contains(fact.as_str().unwrap()), "{prompt}");
        }
        assert!(!prompt.contains(probe.judge["case"].as_str().unwrap()) && !prompt.contains(&probe.query));
        // All three words appear equally.
        for relation in ["complementary", "nuanced", "contradictory"] {
            assert_eq!(prompt.matches(relation).count(), 2, "{prompt}");
        }
        if probe.facets["instance"] == "related-seat" {
            break;
        }
    }
    let rows = label_rows(root.path()).unwrap();
    assert_eq!(rows.len(), 11);
    assert!(rows.iter().all(|row| row.refused_parameters == ["seed"]), "errors too");
    let seat = rows.iter().find(|row| row.unit == "related-seat").unwrap();
    assert!(seat.said.is_none() && seat.error.as_ref().unwrap().contains("no verdict"));
    // Again: only sets without a word.
    let (prompts, summary) = check(&mut log, &plan);
    assert_eq!((prompts.len(), summary), (2, [11, 0, 1, 10]));
}

#[test]
fn the_agreement_is_cohens_kappa_over_the_words_that_there_are() {
    let plan = [PlannedCase::of(&sample_case())];
    let root = tempfile::tempdir().unwrap();
    let mut log = RowLog::open(root.path(), LABELS).unwrap();
    check(&mut log, &plan);
    let check = SUBTLEMEMORY.label_check.unwrap();
    let agreements = label_agreement(&check, &plan, &log.rows);
    let one = &agreements[0];
    assert_eq!((agreements.len(), one.units, one.said, one.agreed), (1, 11, 10, 5));
    assert_eq!(one.table, [[4, 0, 0], [4, 0, 0], [1, 0, 1]]);
    // By definition: po = .5, pe = (4 * 9 + 2 * 1) / 100.
    let (po, pe) = (0.5, 0.38);
    assert!((one.kappa.unwrap() - (po - pe) / (1.0 - pe)).abs() < 1e-12);
    assert_eq!(one.line(), "kappa 0.194, 5 of 10 agree (left out without a label: 1)");
    let table = label_table(&check, "runs/a", &agreements).unwrap();
    assert_eq!(table.key, "relation-check");
    assert_eq!(table.sheet.rows.len(), 3);
    assert!(table.sheet.notes[0].starts_with("scripted: kappa 0.194"));
    assert_eq!(label_table(&check, "runs/a", &[]), None);
}

#[test]
fn kappa_of_the_relations_equals_statsmodels() {
    let reference: serde_json::Value =
        serde_json::from_str(include_str!("../fixtures/subtlememory.json")).unwrap();
    let check = SUBTLEMEMORY.label_check.unwrap();
    // A plan of sets, and rows with the reference's confusions.
    let mut case = PlannedCase { case: "c".to_owned(), ..PlannedCase::default() };
    let mut rows = Vec::new();
    for (label, words) in check.values.iter().zip(reference["relations"]["table"].as_array().unwrap()) {
        for (said, count) in check.values.iter().zip(words.as_array().unwrap()) {
            for _ in 0..count.as_u64().unwrap() {
                let unit = format!("set-{}", rows.len());
                let facets = [("instance", unit.as_str()), ("relation", *label)];
                let probe = palimpsest::runs::plan::PlannedProbe {
                    id: format!("{unit}-q1"),
                    facets: facets.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
                    ..Default::default()
                };
                case.probes.push(probe);
                rows.push(LabelRow {
                    case: "c".to_owned(),
                    unit,
                    label: (*label).to_owned(),
                    judge: "j".to_owned(),
                    said: Some((*said).to_owned()),
                    ..LabelRow::default()
                });
            }
        }
    }
    let agreement = label_agreement(&check, &[case], &rows).remove(0);
    assert_eq!((agreement.units, agreement.said), (90, 90));
    assert!((agreement.kappa.unwrap() - reference["relations"]["kappa"].as_f64().unwrap()).abs() < 1e-9);
}

#[test]
fn the_last_row_of_a_set_counts_and_rows_of_other_runs_do_not() {
    let plan = [PlannedCase::of(&sample_case())];
    let check = SUBTLEMEMORY.label_check.unwrap();
    let row = |unit: &str, label: &str, said: Option<&str>, rubric: &str| LabelRow {
        case: "persona_0".to_owned(),
        unit: unit.to_owned(),
        label: label.to_owned(),
        judge: "j".to_owned(),
        rubric: rubric.to_owned(),
        said: said.map(str::to_owned),
        ..LabelRow::default()
    };
    let rows = [
        row("related-tea", "complementary", Some("nuanced"), "old"),
        row("related-tea", "complementary", None, "new"),
        row("related-tea", "complementary", Some("complementary"), "new"),
        row("not-in-the-plan", "nuanced", Some("nuanced"), "new"),
    ];
    let agreement = label_agreement(&check, &plan, &rows).remove(0);
    assert_eq!((agreement.said, agreement.agreed, agreement.kappa), (1, 1, None));
}
