//! Table 1: percentages, differences, pooling; and the paper's own numbers by them.

use std::collections::BTreeMap;

use palimpsest::benchmarks::{Context, Graded, Retriever, Table};

use super::*;

use crate::tables::answered;

/// One system's questions of one task of one data set: so many, of so many points, the last ones without a score.
struct Answers {
    model: &'static str,
    run: &'static str,
    dataset: &'static str,
    task: &'static str,
    condition: &'static str,
    questions: usize,
    points: usize,
    errors: usize,
}

fn answers(
    dataset: &'static str,
    task: &'static str,
    condition: &'static str,
    questions: usize,
    points: usize,
) -> Answers {
    Answers { model: "m", run: "r", dataset, task, condition, questions, points, errors: 0 }
}

fn tables(all: &[Answers]) -> Vec<Table> {
    let of = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let labels: Vec<_> = all.iter().map(|a| of("dataset", a.dataset)).collect();
    let facets: Vec<_> = all.iter().map(|a| of("task", a.task)).collect();
    let ids: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let mut rows = Vec::new();
    for ((a, labels), facets) in all.iter().zip(&labels).zip(&facets) {
        let scored = a.questions - a.errors;
        assert!(a.points <= 5 * scored && a.questions <= ids.len());
        for (at, id) in ids.iter().enumerate().take(a.questions) {
            // As even as whole scores can be.
            let score = (at < scored).then(|| (a.points * (at + 1) / scored - a.points * at / scored) as u32);
            rows.push(Graded {
                run: a.run,
                model: a.model,
                dataset: "folder",
                condition: a.condition,
                context: context(a.condition),
                case: a.dataset,
                probe: id,
                answer: Some("an answer"),
                score,
                ..answered(labels, facets)
            });
        }
    }
    (KNOWME.counts)(&rows).tables
}

/// What the settings of these names show.
fn context(condition: &str) -> Context {
    KNOWME.settings.iter().find(|setting| setting.name == condition).map_or(Context::Whole, |one| one.context)
}

/// A cell's lines, by the row's setting and the task.
fn cell(table: &Table, setting: &str, task: &str) -> Vec<String> {
    let column = |name: &str| table.sheet.columns.iter().position(|c| c.name == name).unwrap();
    let row = table.sheet.rows.iter().find(|row| row[column("setting")] == [setting]).unwrap();
    row[column(task)].clone()
}

fn named<'a>(tables: &'a [Table], key: &str) -> &'a Table {
    tables.iter().find(|table| table.key == key).unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn a_setting_is_printed_as_what_it_adds_to_the_base() {
    // T1 of table 1(a): 59.9 and what Mem0 adds, 10.5, are the 70.4 of section 5.3.
    let found = tables(&[answers("d1", "T1", "full", 200, 599), answers("d1", "T1", "mem0", 200, 704)]);
    assert_eq!(found.len(), 1);
    assert_eq!(cell(&found[0], "full", "T1"), ["59.9"]);
    assert_eq!(cell(&found[0], "mem0", "T1"), ["+10.5", "70.4"]);
    assert_eq!(cell(&found[0], "mem0", "T7"), ["-"]);
}

#[test]
fn differences_of_two_settings_follow_from_the_table() {
    // Table 1(c), T2: Mem0 +11.8 and RAG +4.5 are the 7.3 points of section 5.3.
    let found = tables(&[
        answers("d2", "T2", "rag", 200, 757),
        answers("d2", "T2", "full", 200, 712),
        answers("d2", "T2", "mem0", 200, 830),
    ]);
    let first = |setting: &str| cell(&found[0], setting, "T2")[0].parse::<f64>().unwrap();
    assert_eq!((first("full"), first("mem0"), first("rag, BM25")), (71.2, 11.8, 4.5));
    assert_eq!(format!("{:.1}", first("mem0") - first("rag, BM25")), "7.3");
    // The base stands first, wherever it comes.
    let settings: Vec<&str> = found[0].sheet.rows.iter().map(|row| row[2][0].as_str()).collect();
    assert_eq!(settings, ["full", "rag, BM25", "mem0"]);
}

/// The paper's RAG is dense: words in its place are named.
#[test]
fn retrieval_is_named_by_what_finds_the_events() {
    let found = tables(&[
        answers("d1", "T1", "full", 10, 20),
        answers("d1", "T1", "rag", 10, 30),
        answers("d1", "T1", "rag-dense", 10, 40),
    ]);
    let settings: Vec<&str> = found[0].sheet.rows.iter().map(|row| row[2][0].as_str()).collect();
    assert_eq!(settings, ["full", "rag, BM25", "rag-dense, all-MiniLM-L6-v2"]);
    let notes = found[0].sheet.notes.join("\n");
    assert!(notes.contains("the paper's RAG is dense"), "{notes}");
    // A system of that name whose answers were brought in is called what it calls itself.
    assert_eq!(Context::Whole.named("rag"), "rag");
    assert_eq!(Context::Retrieved { by: Retriever::Bm25, most: 5 }.named("default"), "default, BM25");
    let dense = tables(&[answers("d1", "T1", "rag-dense", 10, 40)]);
    assert!(!dense[0].sheet.notes.join("\n").contains("BM25"));
}

#[test]
fn the_pooled_table_pools_questions_and_not_data_sets() {
    // T5 of the base: 34.3, 42.3 and 35.2 in table 1(b)-(d), of .60, .205 and .195 of the questions.
    let found = tables(&[
        answers("d1", "T5", "full", 600, 1029),
        answers("d2", "T5", "full", 205, 434),
        answers("d3", "T5", "full", 195, 343),
    ]);
    let of = |key: &str| cell(named(&found, key), "full", "T5")[0].clone();
    assert_eq!((of("d1"), of("d2"), of("d3")), ("34.3".into(), "42.3".into(), "35.2".into()));
    assert_eq!(of("pooled"), "36.1");
    assert_eq!(format!("{:.1}", (34.3 + 42.3 + 35.2) / 3.0), "37.3");
    assert_eq!(found.len(), 4);
}

#[test]
fn the_printed_sum_refutes_the_cap_that_the_text_claims() {
    // Table 1(c), T7: 22.3 is the base of GPT-5-mini; with MemOS it is 24.5, above the 22.3 "cap" of section 5.3. Both are kept.
    let found = tables(&[answers("d2", "T7", "full", 200, 223), answers("d2", "T7", "memos", 200, 245)]);
    assert_eq!(cell(&found[0], "full", "T7"), ["22.3"]);
    assert_eq!(cell(&found[0], "memos", "T7"), ["+2.2", "24.5"]);
}

#[test]
fn errors_count_as_0_and_the_mean_without_them_stands_beside_it() {
    let found = tables(&[Answers { errors: 20, ..answers("d1", "T6", "full", 100, 200) }]);
    assert_eq!(found.iter().map(|table| table.key.as_str()).collect::<Vec<_>>(), ["d1", "d1-scored"]);
    assert_eq!(
        (cell(&found[0], "full", "T6"), cell(&found[1], "full", "T6")),
        (vec!["40.0".into()], vec!["50.0".into()])
    );
    let notes = |at: usize| found[at].sheet.notes.join("\n");
    assert!(notes(0).contains("20 of 100 answers have no score and count as 0"), "{}", notes(0));
    assert!(notes(1).contains("20 of 100 answers have no score and are left out"), "{}", notes(1));
    assert!(notes(0).contains("questions: T6 100"), "{}", notes(0));
}

#[test]
fn a_setting_that_was_asked_other_questions_is_not_set_against_the_base() {
    let found = tables(&[answers("d1", "T1", "full", 20, 50), answers("d1", "T1", "rag", 10, 30)]);
    assert_eq!(cell(&found[0], "rag, BM25", "T1"), ["60.0*"]);
    assert!(found[0].sheet.notes.iter().any(|note| note.starts_with("* other questions")));
}

#[test]
fn runs_of_one_model_on_several_data_sets_are_one_row_and_two_runs_of_the_same_are_two() {
    let of = |run, dataset, points| Answers { run, ..answers(dataset, "T1", "full", 10, points) };
    let found = tables(&[of("a", "d1", 10), of("b", "d2", 30)]);
    assert_eq!(cell(named(&found, "pooled"), "full", "T1"), ["40.0"]);
    let found = tables(&[of("a", "d1", 10), of("b", "d1", 30)]);
    let rows: Vec<(&str, &str)> =
        found[0].sheet.rows.iter().map(|row| (row[1][0].as_str(), row[4][0].as_str())).collect();
    assert_eq!(rows, [("a", "20.0"), ("b", "60.0")]);
}

#[test]
fn a_repeated_question_is_counted_once_and_its_scores_are_averaged() {
    let of = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let (labels, facets) = (of("dataset", "d1"), of("task", "T1"));
    let ids: Vec<String> = (0..8).map(|n| n.to_string()).collect();
    let asked = (0..2).flat_map(|repetition| ids.iter().map(move |id| (repetition, id)));
    let rows: Vec<Graded<'_>> = asked
        .map(|(repetition, id)| Graded {
            condition: "full",
            case: "d1",
            probe: id,
            repetition,
            score: Some(if repetition == 0 { 5_u8 } else { 2_u8 }.into()),
            ..answered(&labels, &facets)
        })
        .collect();
    let found = (KNOWME.counts)(&rows).tables;
    assert_eq!(cell(&found[0], "full", "T1"), ["70.0"]);
    let notes = &found[0].sheet.notes;
    assert!(notes.contains(&"questions: T1 8".to_owned()), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("mean over 2 repetitions")), "{notes:?}");
}
