//! Table 1: percentages, differences, pooling; and the paper's numbers.

use std::collections::BTreeMap;

use palimpsest::benchmarks::knowme::task::TASKS;
use palimpsest::benchmarks::{Context, Graded, Retriever, Table};

use super::*;

use crate::tables::answered;

/// One system's questions of a task and data set: `of` questions with `points` in total, the last ones unscored.
struct Answers {
    model: &'static str,
    run: &'static str,
    dataset: &'static str,
    task: &'static str,
    condition: &'static str,
    questions: usize,
    points: usize,
    errors: usize,
    /// Score of every answer in percent, instead of points.
    percent: Option<f64>,
}

fn answers(
    dataset: &'static str,
    task: &'static str,
    condition: &'static str,
    questions: usize,
    points: usize,
) -> Answers {
    Answers { model: "m", run: "r", dataset, task, condition, questions, points, errors: 0, percent: None }
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
            // As even as integer scores allow.
            let even = || (a.points * (at + 1) / scored - a.points * at / scored) as f64;
            let score = (at < scored).then(|| a.percent.map_or_else(even, |percent| percent / 20.0));
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

/// Context of the named condition.
fn context(condition: &str) -> Context {
    KNOWME.settings.iter().find(|setting| setting.name == condition).map_or(Context::Whole, |one| one.context)
}

/// Lines of a cell, by the row's setting and the task.
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
    // T1 of table 1(a): 59.9 plus Mem0's 10.5 is the 70.4 of section 5.3.
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
    // The base comes first, whatever the input order.
    let settings: Vec<&str> = found[0].sheet.rows.iter().map(|row| row[2][0].as_str()).collect();
    assert_eq!(settings, ["full", "rag, BM25", "mem0"]);
}

/// The paper's RAG is dense: a lexical retriever is named.
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
    // An imported system of that name keeps its own name.
    assert_eq!(Context::Whole.named("rag"), "rag");
    assert_eq!(Context::Retrieved { by: Retriever::Bm25, most: 5 }.named("default"), "default, BM25");
    let dense = tables(&[answers("d1", "T1", "rag-dense", 10, 40)]);
    assert!(!dense[0].sheet.notes.join("\n").contains("BM25"));
}

/// Questions of data sets 1 to 3, as released, by task.
const RELEASED: [[usize; 7]; 3] =
    [[130, 100, 131, 52, 240, 295, 62], [100, 100, 230, 47, 141, 100, 80], [100, 100, 200, 26, 200, 100, 46]];

/// Table 1 of the paper, (a) to (d): Qwen3-32B alone, with RAG, Mem0 and MemOS, then GPT-5-mini.
const PRINTED: [[[f64; 7]; 8]; 4] = [
    [
        [59.9, 66.0, 44.4, 40.5, 36.1, 14.3, 16.3],
        [8.8, 4.8, 3.9, 1.8, 2.7, 2.8, 1.7],
        [10.5, 9.2, -3.1, 1.9, -0.2, 2.6, 1.2],
        [4.5, 6.4, 8.3, 6.6, 5.0, 3.9, 3.0],
        [65.4, 71.5, 54.1, 47.3, 42.3, 18.6, 19.6],
        [6.8, 4.0, 3.2, 1.5, 2.0, 2.7, 1.3],
        [7.8, 7.2, -2.5, 1.4, 0.3, 2.1, 1.2],
        [4.2, 5.1, 6.7, 5.6, 5.2, 2.9, 3.0],
    ],
    [
        [58.1, 64.2, 38.5, 35.6, 34.3, 13.8, 15.1],
        [9.2, 4.7, 5.3, 2.5, 3.1, 6.2, 1.8],
        [10.5, 8.6, -3.5, 1.2, -0.2, 0.9, 1.6],
        [10.7, 9.7, 10.4, 10.8, 4.2, 3.4, 4.1],
        [62.3, 70.8, 48.2, 41.4, 40.4, 17.7, 17.6],
        [7.5, 3.8, 4.5, 2.3, 2.3, 5.5, 1.4],
        [8.0, 7.9, -2.6, 1.0, 0.4, 0.5, 1.3],
        [10.7, 8.1, 8.2, 9.0, 5.6, 3.1, 3.9],
    ],
    [
        [66.8, 71.2, 52.2, 45.0, 42.3, 15.6, 18.7],
        [7.9, 4.5, 2.4, 1.1, 1.3, 2.0, 1.3],
        [12.9, 11.8, -2.3, 3.5, 0.8, 1.2, 1.1],
        [2.3, 4.6, 7.6, 5.1, 6.2, 3.1, 2.3],
        [72.3, 75.4, 62.5, 52.6, 48.1, 20.4, 22.3],
        [5.8, 3.5, 1.9, 1.1, 1.2, 2.1, 1.0],
        [9.2, 8.4, -1.8, 2.5, 0.5, 1.0, 1.2],
        [-0.6, 3.9, 5.5, 4.8, 4.5, 2.0, 2.2],
    ],
    [
        [55.4, 62.7, 45.9, 38.5, 35.2, 12.7, 14.6],
        [9.2, 5.1, 3.4, 2.2, 2.8, -0.5, 2.2],
        [8.0, 7.3, -3.2, 0.5, -1.1, 7.4, 0.8],
        [-1.2, 4.8, 6.3, 5.5, 6.2, 5.8, 2.0],
        [62.5, 68.3, 55.3, 45.2, 42.1, 16.5, 18.5],
        [7.0, 4.8, 2.6, 1.4, 2.1, -0.2, 1.8],
        [6.2, 5.2, -2.9, 0.3, -0.4, 6.2, 1.0],
        [0.5, 3.4, 5.7, 4.2, 4.8, 4.1, 2.7],
    ],
];
const COLUMNS: [&str; 7] =
    ["T1 (Det.)", "T2 (Ent.)", "T3 (Time)", "T4 (Rel.)", "T5 (Con.)", "T6 (Abs.)", "T7 (Sum.)"];

/// Table 1(a) is 1(b) to 1(d) pooled by the released question counts if its columns are other tasks than their headers say.
#[test]
fn each_printed_column_pools_to_that_of_table_1a_for_one_task_alone() {
    let [all, sets @ ..] = &PRINTED;
    let apart = |task: usize, column: usize| {
        let questions: Vec<f64> = RELEASED.iter().map(|of| of[task] as f64).collect();
        let of_row = |row: usize| {
            let sum: f64 = sets.iter().zip(&questions).map(|(set, n)| set[row][column] * n).sum();
            (sum / questions.iter().sum::<f64>() - all[row][column]).abs()
        };
        (0..8).map(of_row).fold(0.0, f64::max)
    };
    for (column, head) in COLUMNS.into_iter().enumerate() {
        let fitting = (0..7).filter(|&task| apart(task, column) < 0.0501).map(|task| TASKS[task].printed);
        assert_eq!(fitting.collect::<Vec<_>>(), [head]);
    }
    // In our table: the printed values of each data set, pooled.
    let conditions = ["full", "rag-dense", "mem0", "memos"];
    for (backbone, model) in [(0, "Qwen3-32B"), (4, "GPT-5-mini")] {
        let mut asked = Vec::new();
        for (at, task) in TASKS.iter().enumerate() {
            let column = COLUMNS.iter().position(|head| *head == task.printed).unwrap();
            for (set, dataset) in ["d1", "d2", "d3"].into_iter().enumerate() {
                for (row, condition) in conditions.into_iter().enumerate() {
                    let printed = |row: usize| sets[set][backbone + row][column];
                    let percent = if row == 0 { printed(0) } else { printed(0) + printed(row) };
                    let of = answers(dataset, task.id, condition, RELEASED[set][at], 0);
                    asked.push(Answers { model, percent: Some(percent), ..of });
                }
            }
        }
        let found = tables(&asked);
        let pooled = named(&found, "pooled");
        for task in &TASKS {
            let column = COLUMNS.iter().position(|head| *head == task.printed).unwrap();
            for (row, setting) in ["full", "rag-dense, all-MiniLM-L6-v2", "mem0", "memos"].iter().enumerate()
            {
                let ours: f64 = cell(pooled, setting, task.id)[0].parse().unwrap();
                let theirs = all[backbone + row][column];
                assert!((ours - theirs).abs() < 0.1001, "{model} {setting} {}: {ours} {theirs}", task.id);
            }
        }
        let notes = pooled.sheet.notes.join("\n");
        assert!(notes.contains("T3 under T4 (Rel.), T4 under T7 (Sum.), T5 under T3 (Time)"), "{notes}");
    }
}

/// Data set 3 has 25 abstentions, 51 orders and 24 questions without a gold under T2. Counting the last as abstentions gave 49.0 to a
/// system that always abstains, and 80.8 to a perfect one.
#[test]
fn traps_without_a_gold_are_listed_and_not_scored() {
    let gold = |at: usize| match at {
        0..25 => "The text does not mention it.",
        25..76 => "B -> A -> C",
        _ => "",
    };
    let rows: Vec<Value> =
        (0..100).map(|at| json!({"id": at, "question": format!("{at}?"), "answer": gold(at)})).collect();
    let case = case(small("dataset3", &[("Adversarial Abstention", json!(rows))]));
    assert_eq!(case.probes.len(), 76);
    let percent = |score: &dyn Fn(&Probe) -> f64| {
        let rows = case.probes.iter().map(|probe| Graded {
            case: &case.id,
            probe: &probe.id,
            score: Some(score(probe)),
            ..answered(&case.labels, &probe.facets)
        });
        let rows: Vec<Graded<'_>> = rows.collect();
        let found = (KNOWME.counts)(&rows).tables;
        (found[0].sheet.rows[0][4][0].clone(), found[0].sheet.notes.join("\n"))
    };
    let abstains = |probe: &Probe| if probe.facets.contains_key("expects") { 0.0 } else { 5.0 };
    let (of_abstainer, notes) = percent(&abstains);
    assert_eq!((of_abstainer.as_str(), percent(&|_| 5.0).0.as_str()), ("32.9", "100.0"));
    assert!(
        notes.contains(
            "dataset3: questions without a gold, which are neither asked nor scored: 24 (T2-76, T2-77,"
        ),
        "{notes}"
    );
    assert!(notes.contains("questions: T2 76"), "{notes}");
}

/// `run_eval.py` averages whatever numbers the judge gives: 4.5 and 3 give 3.75 of 5.
#[test]
fn scores_between_whole_ones_count_as_they_are() {
    let labels = BTreeMap::from([("dataset".to_owned(), "d".to_owned())]);
    let facets = BTreeMap::from([("task".to_owned(), "T1".to_owned())]);
    let of = |(probe, score)| Graded { probe, score: Some(score), ..answered(&labels, &facets) };
    let rows = [("a", 4.5), ("b", 3.0)].map(of);
    assert_eq!((KNOWME.counts)(&rows).tables[0].sheet.rows[0][3], ["75.0"]);
}

#[test]
fn the_printed_sum_refutes_the_cap_that_the_text_claims() {
    // Table 1(c), T7: 22.3 is GPT-5-mini's base; with MemOS it is 24.5, above the 22.3 "cap" of section 5.3. Both are kept.
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
