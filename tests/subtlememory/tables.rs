//! The tables, from graded rows.

use std::collections::BTreeMap;

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::subtlememory::counts::points;
use palimpsest::benchmarks::{BarChart, Chart, Graded, ShownSegments, Table};
use palimpsest::figures::draw_chart;
use palimpsest::statistics::holm::holm;
use palimpsest::statistics::mcnemar::mcnemar;
use serde_json::Value;

use super::percent;
use crate::tables::answered;

/// One graded question.
#[derive(Clone)]
struct Row {
    run: String,
    model: String,
    condition: String,
    probe: String,
    facets: BTreeMap<String, String>,
    correct: Option<bool>,
    judge: &'static str,
    answer: Option<String>,
    /// The shown segments; `None` for the whole history.
    shown: Option<Vec<usize>>,
}

fn facets(relation: &str, subtype: &str) -> BTreeMap<String, String> {
    let of = [("relation", relation), ("subtype", subtype)];
    of.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Calls `make` with the graded rows.
fn with_graded<T>(rows: &[Row], make: impl FnOnce(&[Graded<'_>]) -> T) -> T {
    let labels = BTreeMap::new();
    let graded = rows.iter().map(|row| Graded {
        run: &row.run,
        model: &row.model,
        judge: Some(row.judge),
        condition: &row.condition,
        case: "persona_0",
        probe: &row.probe,
        answer: row.answer.as_deref(),
        shown: ShownSegments { context: row.shown.as_deref(), dropped: &[], memories: None },
        correct: row.correct,
        ..answered(&labels, &row.facets)
    });
    make(&graded.collect::<Vec<Graded<'_>>>())
}

/// Tables of these rows.
fn tables_of(rows: &[Row]) -> Vec<Table> {
    with_graded(rows, |graded| (SUBTLEMEMORY.counts)(graded).tables)
}

fn table<'a>(tables: &'a [Table], key: &str) -> &'a Table {
    tables.iter().find(|table| table.key == key).unwrap_or_else(|| panic!("no table {key}"))
}

/// A table row by the texts of its first columns; each cell's lines by column name.
fn cells(table: &Table, first: &[&str]) -> BTreeMap<String, Vec<String>> {
    let row = table.sheet.rows.iter().find(|row| first.iter().zip(*row).all(|(text, cell)| cell[0] == *text));
    let row = row.unwrap_or_else(|| panic!("no row {first:?} in {}", table.sheet.text()));
    let names = table.sheet.columns.iter().map(|column| column.name.clone());
    names.zip(row.iter().cloned()).collect()
}

/// Questions in the paper's sizes, of which the first `right` of each kind are correct.
fn published(run: &str, condition: &str, right: [usize; 5]) -> Vec<Row> {
    let kinds = [
        ("complementary", "multi_evidence", 211),
        ("complementary", "any_one", 150),
        ("nuanced", "temporal", 396),
        ("nuanced", "contextual", 388),
        ("contradictory", "contradictory", 377),
    ];
    let mut rows = Vec::new();
    for ((relation, subtype, count), right) in kinds.into_iter().zip(right) {
        rows.extend((0..count).map(|at| Row {
            run: run.to_owned(),
            model: "gpt-5.4".to_owned(),
            condition: condition.to_owned(),
            probe: format!("{subtype}-{at}"),
            facets: facets(relation, subtype),
            correct: Some(at < right),
            judge: "judge",
            answer: None,
            shown: None,
        }));
    }
    rows
}

#[test]
fn table_1_of_the_published_counts_is_as_printed() {
    let rows = published("gpt-5.4", "oracle", [168, 131, 378, 364, 259]);
    let tables = tables_of(&rows);
    let row = cells(table(&tables, "accuracy"), &["gpt-5.4", "gpt-5.4", "oracle"]);
    let of = |name: &str| row[name].join(" ");
    assert_eq!(of("all"), "85.41 1300/1522");
    assert_eq!(of("complementary"), "82.83 299/361");
    assert_eq!(of("multi_evidence"), "79.62 168/211");
    assert_eq!(of("any_one"), "87.33 131/150");
    assert_eq!(of("nuanced"), "94.64 742/784");
    assert_eq!(of("temporal"), "95.45 378/396");
    assert_eq!(of("contextual"), "93.81 364/388");
    assert_eq!(of("contradictory"), "68.70 259/377");
}

#[test]
fn the_interval_of_all_questions_is_stratified_by_relation() {
    let rows = published("gpt-5.4", "oracle", [168, 131, 378, 364, 259]);
    let tables = tables_of(&rows);
    let intervals = table(&tables, "intervals");
    let row = cells(intervals, &["gpt-5.4"]);
    let half = |name: &str| {
        let ends: Vec<f64> =
            row[name][1].trim_matches(['[', ']']).split(", ").map(|end| end.parse().unwrap()).collect();
        (ends[1] - ends[0]) / 2.0
    };
    // The normal approximation, by definition.
    let of = |right: f64, n: f64| (n, right / n);
    let strata = [of(299.0, 361.0), of(742.0, 784.0), of(259.0, 377.0)];
    let variance: f64 = strata.iter().map(|(n, p)| n * p * (1.0 - p)).sum::<f64>() / 1522.0f64.powi(2);
    let stratified = 100.0 * 1.959964 * variance.sqrt();
    let (_, p) = of(1300.0, 1522.0);
    let unstratified = 100.0 * 1.959964 * (p * (1.0 - p) / 1522.0).sqrt();
    assert_eq!(
        (format!("{stratified:.2}"), format!("{unstratified:.2}")),
        ("1.69".to_owned(), "1.77".to_owned())
    );
    assert!((half("all") - stratified).abs() < 0.035, "{} against {stratified}", half("all"));
    // Within the subset.
    let p: f64 = 259.0 / 377.0;
    let contradictory = 100.0 * 1.959964 * (p * (1.0 - p) / 377.0).sqrt();
    assert!(
        (half("contradictory") - contradictory).abs() < 0.15,
        "{} {contradictory}",
        half("contradictory")
    );
    assert!(intervals.sheet.notes[0].contains("within the relations"));
}

/// Table 1's temporal and contextual accuracies, as printed, with gpt-5.4 and with gpt-oss-120b.
const TEMPORAL_CONTEXTUAL: [[(f64, f64); 11]; 2] = [
    [
        (81.31, 85.82),
        (70.20, 77.84),
        (81.82, 87.37),
        (51.77, 69.33),
        (83.08, 85.31),
        (33.33, 44.59),
        (80.30, 82.99),
        (17.68, 26.80),
        (86.36, 85.31),
        (67.68, 80.15),
        (85.35, 89.69),
    ],
    [
        (80.05, 79.38),
        (66.92, 69.85),
        (75.51, 81.70),
        (42.68, 61.34),
        (80.30, 80.41),
        (27.78, 37.37),
        (71.46, 69.85),
        (13.64, 21.13),
        (72.22, 80.41),
        (57.83, 70.62),
        (74.24, 82.73),
    ],
];

#[test]
fn contextual_is_above_temporal_in_ten_and_in_nine_of_eleven_systems() {
    for (systems, above) in TEMPORAL_CONTEXTUAL.into_iter().zip([10, 9]) {
        let mut rows = Vec::new();
        for (at, (temporal, contextual)) in systems.into_iter().enumerate() {
            // Counts that print like this.
            let count = |share: f64, of: usize| (share * of as f64 / 100.0).round() as usize;
            let (right_temporal, right_contextual) = (count(temporal, 396), count(contextual, 388));
            assert_eq!(percent(right_temporal, 396), format!("{temporal:.2}"));
            assert_eq!(percent(right_contextual, 388), format!("{contextual:.2}"));
            let right = [0, 0, right_temporal, right_contextual, 0];
            rows.extend(published(&format!("system-{at}"), "default", right));
        }
        rows.extend(published("oracle", "oracle", [0, 0, 0, 388, 0]));
        let tables = tables_of(&rows);
        let note = format!("contextual is above temporal in {above} of 11 systems");
        assert!(
            table(&tables, "accuracy").sheet.notes.contains(&note),
            "{:?}",
            table(&tables, "accuracy").sheet.notes
        );
    }
}

/// Made by tests/reference/subtlememory_reference.py, which records the versions.
fn reference() -> Value {
    serde_json::from_str(include_str!("../fixtures/subtlememory.json")).unwrap()
}

fn rows_of(reference: &Value) -> Vec<Row> {
    let questions = reference["questions"].as_array().unwrap();
    let mut rows = Vec::new();
    for (key, flags) in reference["right"].as_object().unwrap() {
        let (model, condition) = key.split_once(' ').unwrap();
        for (question, right) in questions.iter().zip(flags.as_str().unwrap().chars()) {
            rows.push(Row {
                run: format!("run-{model}"),
                model: model.to_owned(),
                condition: condition.to_owned(),
                probe: question[0].as_str().unwrap().to_owned(),
                facets: facets(question[1].as_str().unwrap(), question[2].as_str().unwrap()),
                correct: Some(right == '1'),
                judge: "judge",
                answer: None,
                shown: None,
            });
        }
    }
    rows
}

#[test]
fn all_tables_of_made_up_outcomes_equal_numpy_scipy_and_statsmodels() {
    let reference = reference();
    let rows = rows_of(&reference);
    let tables = tables_of(&rows);
    let of_paper = with_graded(&rows, |graded| (SUBTLEMEMORY.paper_counts.unwrap())(graded).tables);
    for (model, expected) in reference["models"].as_object().unwrap() {
        let run = format!("run-{model}");
        for (setting, columns) in expected["accuracy"].as_object().unwrap() {
            let shown = if setting == "full" { "full (ours)" } else { setting };
            let key = if setting == "perfect" { "perfect" } else { "accuracy" };
            let row = cells(table(&tables, key), &[&run, model, shown]);
            for (column, numbers) in columns.as_object().unwrap() {
                let (right, of) = (numbers[0].as_u64().unwrap(), numbers[1].as_u64().unwrap());
                assert_eq!(row[column][1], format!("{right}/{of}"));
                assert!(
                    (row[column][0].parse::<f64>().unwrap() - numbers[2].as_f64().unwrap()).abs() < 0.00501
                );
            }
        }
        for (setting, of_relations) in expected["stages"].as_object().unwrap() {
            let shown = if setting == "full" { "full (ours)" } else { setting };
            for (relation, stages) in of_relations.as_object().unwrap() {
                let row = cells(table(&tables, "waterfall"), &[&run, model, shown, relation]);
                let counts: Vec<u64> =
                    stages["counts"].as_array().unwrap().iter().map(|c| c.as_u64().unwrap()).collect();
                let names = ["of", "S_O", "S_P", "S_D", "right"];
                assert_eq!(names.map(|name| row[name][0].parse::<u64>().unwrap()).to_vec(), counts);
                assert_eq!(row["outside S_P"][0], (counts[4] - counts[3]).to_string());
                for (name, share) in [("P_preserve", "preserve"), ("P_retrieve", "retrieve")] {
                    let shown: f64 = row[name][0].parse().unwrap();
                    assert!((shown - 100.0 * stages[share].as_f64().unwrap()).abs() < 0.00501);
                }
            }
        }
    }
    let tests = reference["tests"].as_array().unwrap();
    let of = |name: &str| -> Vec<f64> { tests.iter().map(|test| test[name].as_f64().unwrap()).collect() };
    let p: Vec<f64> = tests
        .iter()
        .map(|t| mcnemar(t["b"].as_u64().unwrap() as usize, t["c"].as_u64().unwrap() as usize))
        .collect();
    for (ours, theirs) in p.iter().zip(of("p")).chain(holm(&p).iter().zip(of("holm"))) {
        assert!((ours - theirs).abs() < 1e-9, "{ours} {theirs}");
    }
    for test in tests {
        let model = test["model"].as_str().unwrap();
        let gap = table(&tables, "oracle-gap");
        let row = cells(gap, &[model]);
        let best = test["best"].as_str().unwrap();
        assert_eq!(row["setting"][0], if best == "full" { "full (ours)" } else { best });
        assert_eq!(
            (row["b"][0].as_str(), row["c"][0].as_str()),
            (&*test["b"].to_string(), &*test["c"].to_string())
        );
        assert_eq!(row["difference"][0], points(test["difference"].as_f64().unwrap()));
        // A bootstrap gives the same up to its sampling noise and one question's worth.
        let close = |text: &str, expected: &Value| {
            let ends: Vec<f64> =
                text.trim_matches(['[', ']']).split(", ").map(|end| end.parse().unwrap()).collect();
            for (end, expected) in ends.iter().zip(expected.as_array().unwrap()) {
                assert!((end - 100.0 * expected.as_f64().unwrap()).abs() < 0.34, "{text} {expected}");
            }
        };
        close(&row["difference"][1], &test["difference_interval"]);
        let intervals = cells(table(&tables, "intervals"), &[&format!("run-{model}"), model, "oracle"]);
        close(&intervals["all"][1], &test["oracle_interval"]);
        // The paper's values by binomial and trinomial distributions, computed independently. NumPy's draws end one question lower in one
        // place, which holds 2.46% of all resamples.
        let (of_oracle, of_difference) = match model {
            "model-a" => ("[81.97, 89.51]", "[+11.48, +22.62]"),
            _ => ("[71.48, 80.00]", "[+2.30, +13.44]"),
        };
        let row = cells(table(&of_paper, "oracle-gap"), &[model]);
        assert_eq!(row["difference"][1], of_difference);
        close(&row["difference"][1], &test["difference_interval"]);
        let intervals = cells(table(&of_paper, "intervals"), &[&format!("run-{model}"), model, "oracle"]);
        assert_eq!(intervals["all"][1], of_oracle);
        close(&intervals["all"][1], &test["oracle_interval"]);
    }
}

/// The paper's intervals of its own counts, by the resampling distributions of 299 of 361, 742 of 784 and 259 of 377.
#[test]
fn the_papers_intervals_are_percentiles_of_resamples_within_the_relations() {
    let rows = published("gpt-5.4", "oracle", [168, 131, 378, 364, 259]);
    let of_paper = SUBTLEMEMORY.paper_counts.unwrap();
    let tables = with_graded(&rows, |graded| of_paper(graded).tables);
    let row = cells(table(&tables, "intervals"), &["gpt-5.4"]);
    // Computed independently: the convolution of three binomial distributions, and the last of them.
    assert_eq!(row["all"], ["85.41", "[83.71, 87.06]"]);
    assert_eq!(row["contradictory"], ["68.70", "[63.93, 73.21]"]);
}

#[test]
fn sets_of_single_evidence_have_a_column_of_their_own_where_there_are_any() {
    let mut rows = published("a", "oracle", [211, 150, 396, 388, 377]);
    let without = tables_of(&rows);
    assert!(table(&without, "accuracy").sheet.columns.iter().all(|column| column.name != "single_evidence"));
    for row in rows.iter_mut().filter(|row| row.facets["subtype"] == "multi_evidence").take(11) {
        row.facets = facets("complementary", "single_evidence");
        row.correct = Some(false);
    }
    let tables = tables_of(&rows);
    for key in ["accuracy", "intervals"] {
        let row = cells(table(&tables, key), &["a"]);
        assert_eq!(row["single_evidence"][0], "0.00");
    }
    let row = cells(table(&tables, "accuracy"), &["a"]);
    let of = |name: &str| row[name][1].as_str();
    assert_eq!(
        (of("multi_evidence"), of("single_evidence"), of("complementary")),
        ("200/200", "0/11", "350/361")
    );
}

#[test]
fn perfect_retrieval_says_that_it_is_the_oracle_for_bm25() {
    let mut rows = published("a", "oracle", [168, 131, 378, 364, 259]);
    rows.extend(published("a", "perfect", [168, 131, 378, 364, 259]));
    rows.extend(published("a", "default", [100, 100, 200, 200, 100]));
    let tables = tables_of(&rows);
    let perfect = table(&tables, "perfect");
    assert!(perfect.sheet.notes.iter().any(|note| note.contains("BM25 stores the sessions themselves")));
    let oracle = cells(table(&tables, "accuracy"), &["a", "gpt-5.4", "oracle"]);
    assert_eq!(cells(perfect, &["a"])["all"], oracle["all"]);
    let row = cells(table(&tables, "waterfall"), &["a", "gpt-5.4", "default", "all"]);
    assert_eq!((row["P_preserve"][0].as_str(), row["P_retrieve"][0].as_str()), ("100.00", "53.85"));
}

/// Charts of the graded rows.
fn charts_of(rows: &[Row]) -> Vec<Chart> {
    with_graded(rows, |graded| (SUBTLEMEMORY.counts)(graded).charts)
}

#[test]
fn the_waterfall_is_drawn_with_parts_that_fill_every_bar() {
    let reference = reference();
    let charts = charts_of(&rows_of(&reference));
    let [Chart::Bars(BarChart { key, parts, bars, .. })] = &charts[..] else { panic!("{charts:?}") };
    assert_eq!((key.as_str(), parts.len(), bars.len()), ("waterfall", 5, 16));
    for bar in bars {
        let model = bar.group.split(", ").nth(1).unwrap();
        let setting = if bar.group.contains("full") { "full" } else { "default" };
        let stages = &reference["models"][model]["stages"][setting][&bar.label];
        let of = |at: usize| stages["counts"][at].as_u64().unwrap() as usize;
        assert_eq!(bar.counts.iter().sum::<usize>(), of(0));
        assert_eq!(bar.counts[..3], [of(3), of(2) - of(3), of(1) - of(2)]);
        assert!(bar.counts[3] <= of(4) - of(3), "right by the system alone is outside S_P");
    }
    let figure = draw_chart(&charts[0], "origin");
    assert!(figure.svg.starts_with("<svg") && figure.svg.contains("lost in retrieval"));
    assert_eq!(String::from_utf8(figure.csv).unwrap().lines().count(), 1 + 16 * 5);
    // Nothing to draw without both diagnoses.
    assert_eq!(charts_of(&published("a", "oracle", [1; 5])), []);
}

#[test]
fn integration_is_told_by_names_or_else_plain_differences_are_given() {
    let mut rows = published("mem0", "default", [100, 50, 300, 300, 150]);
    rows.extend(published("mem0-openclaw", "default", [110, 50, 280, 300, 150]));
    rows.extend(published("other", "default", [0; 5]));
    let told = tables_of(&rows);
    let integration = table(&told, "integration");
    assert_eq!(integration.sheet.rows.len(), 1);
    let row = cells(integration, &["mem0-openclaw"]);
    assert_eq!((row["less"][0].as_str(), row["all"][0].as_str()), ("mem0", "-0.66"));
    assert_eq!((row["multi_evidence"][0].as_str(), row["temporal"][0].as_str()), ("+4.74", "-5.05"));
    rows.iter_mut().filter(|row| row.run == "mem0-openclaw").for_each(|row| "b".clone_into(&mut row.run));
    let plain = tables_of(&rows);
    let integration = table(&plain, "integration");
    assert!(integration.sheet.notes[0].contains("no run's name tells a plugin"));
    assert_eq!(integration.sheet.rows.len(), 2);
    assert_eq!(cells(integration, &["b"])["all"][0], "-0.66");
    assert!(tables_of(&published("a", "oracle", [1; 5])).iter().all(|table| table.key != "integration"));
}

#[test]
fn what_has_no_verdict_counts_as_wrong_and_is_named() {
    let mut rows = published("a", "oracle", [211, 150, 396, 388, 377]);
    rows[0].correct = None;
    rows[1].facets.clear();
    rows[1].correct = None;
    let tables = tables_of(&rows);
    let accuracy = table(&tables, "accuracy");
    let row = cells(accuracy, &["a"]);
    assert_eq!((row["all"][1].as_str(), row["multi_evidence"][1].as_str()), ("1520/1522", "209/210"));
    let notes = accuracy.sheet.notes.join("\n");
    assert!(notes.contains("a oracle: 2 of 1522 questions have no verdict and count as wrong"), "{notes}");
    assert!(
        notes.contains("a oracle: 1 question of broken rows has no relation and stands under `all` alone"),
        "{notes}"
    );
}

#[test]
fn questions_of_one_side_alone_are_no_pair_and_no_waterfall() {
    let mut rows = published("a", "oracle", [168, 131, 378, 364, 259]);
    rows.extend(published("a", "perfect", [168, 131, 378, 364, 259]));
    rows.extend(published("a", "default", [100; 5]));
    rows.pop();
    let tables = tables_of(&rows);
    let gap = table(&tables, "oracle-gap");
    assert!(gap.sheet.rows.is_empty());
    assert!(
        gap.sheet
            .notes
            .iter()
            .any(|note| note.contains("no test, since 1 question has a row on one side only"))
    );
    assert!(tables.iter().all(|table| table.key != "waterfall"), "{tables:?}");
}

#[test]
fn soft_and_strong_wordings_are_never_compared() {
    let mut rows = published("a", "oracle-soft", [168, 131, 378, 364, 259]);
    rows.extend(published("a", "default", [100; 5]));
    rows.extend(published("a", "default-soft", [90; 5]));
    let tables = tables_of(&rows);
    let gap = table(&tables, "oracle-gap");
    assert_eq!(gap.sheet.rows.len(), 1);
    let row = cells(gap, &["gpt-5.4"]);
    assert_eq!(row["setting"][0], "default, soft");
    let accuracy = table(&tables, "accuracy");
    let settings: Vec<&str> = accuracy.sheet.rows.iter().map(|row| row[2][0].as_str()).collect();
    assert_eq!(settings, ["oracle, soft", "default", "default, soft"]);
}

/// Neither the full history nor the two diagnoses are systems of the paper.
#[test]
fn the_best_system_is_a_memory_and_the_full_history_is_counted_nowhere() {
    let mut rows = published("a", "oracle", [168, 131, 378, 364, 259]);
    rows.extend(published("a", "perfect", [168, 131, 378, 364, 259]));
    rows.extend(published("a", "full", [200, 140, 300, 390, 300]));
    rows.extend(published("a", "default", [100, 100, 200, 150, 100]));
    rows.extend(published("b", "default", [100, 100, 200, 250, 150]));
    let tables = tables_of(&rows);
    let row = cells(table(&tables, "oracle-gap"), &["gpt-5.4", "a"]);
    assert_eq!((row["best system"][0].as_str(), row["setting"][0].as_str()), ("b", "default"));
    assert_eq!(row["best"][0], percent(800, 1522));
    let notes = &table(&tables, "accuracy").sheet.notes;
    assert!(notes.contains(&"contextual is above temporal in 1 of 2 systems".to_owned()), "{notes:?}");
    // With one memory beside the full history there is nothing to count, and without memories there is no best one.
    rows.retain(|row| row.run == "a");
    let one = tables_of(&rows);
    assert!(table(&one, "accuracy").sheet.notes.iter().all(|note| !note.contains("systems")));
    rows.retain(|row| row.condition != "default");
    assert!(tables_of(&rows).iter().all(|table| table.key != "oracle-gap"));
}

/// Holm's correction covers the answer models of one wording and judge only.
#[test]
fn holm_corrects_within_one_wording_and_judge() {
    let mut rows = Vec::new();
    // Only the oracle is correct in 9, 7 and 8 questions, only the memory in one.
    for (model, judge, wording, alone) in
        [("m1", "j1", "", 9), ("m2", "j1", "", 7), ("m1", "j2", "", 8), ("m1", "j1", "-soft", 6)]
    {
        for (condition, from, to) in [("oracle", 1, alone + 1), ("default", 0, 1)] {
            let own = published("run", &format!("{condition}{wording}"), [0; 5]).into_iter().enumerate();
            rows.extend(own.map(|(at, row)| Row {
                run: format!("run-{model}"),
                model: model.to_owned(),
                judge,
                correct: Some((from..to).contains(&at)),
                ..row
            }));
        }
    }
    let tables = tables_of(&rows);
    let gap = table(&tables, "oracle-gap");
    assert_eq!(gap.sheet.rows.len(), 4);
    let found: Vec<[String; 5]> = (gap.sheet.rows.iter())
        .map(|row| {
            let of = |name: &str| {
                let at = gap.sheet.columns.iter().position(|column| column.name == name).unwrap();
                row[at][0].clone()
            };
            ["model", "judge", "setting", "p", "p (Holm)"].map(of)
        })
        .collect();
    let p = |b: usize| mcnemar(b, 1);
    let shown = |p: f64| format!("{p:.4}");
    let family = holm(&[p(9), p(7)]);
    let expected = |model: &str, judge: &str, setting: &str, p: f64, holm: f64| {
        [model.to_owned(), judge.to_owned(), setting.to_owned(), shown(p), shown(holm)]
    };
    for row in [
        expected("m1", "j1", "default", p(9), family[0]),
        expected("m2", "j1", "default", p(7), family[1]),
        expected("m1", "j2", "default", p(8), p(8)),
        expected("m1", "j1", "default, soft", p(6), p(6)),
    ] {
        assert!(found.contains(&row), "{row:?} of {found:?}");
    }
    assert_ne!(shown(family[0]), shown(p(9)), "a family of two corrects");
}

#[test]
fn the_waterfall_says_which_losses_can_only_be_noise() {
    // By question: correct under oracle, perfect and default; the answers and sessions at either step.
    let questions = [
        // Lost in memory: the judge alone; the same sessions; neither.
        ([true, false, false], ["a", "a", "b"], [1, 2, 3]),
        ([true, false, false], ["a", "b", "b"], [1, 1, 1]),
        ([true, false, true], ["a", "b", "b"], [1, 2, 2]),
        // Lost in retrieval: the judge alone, whatever was shown; the same sessions; neither, twice.
        ([true, true, false], ["a", "b", "b"], [1, 1, 2]),
        ([true, true, false], ["a", "a", "b"], [1, 1, 1]),
        ([true, true, false], ["a", "a", "b"], [1, 1, 2]),
        ([true, true, false], ["a", "a", "c"], [1, 1, 3]),
        // Never held, and kept.
        ([false, true, false], ["a", "a", "a"], [1, 1, 1]),
        ([true, true, true], ["a", "b", "c"], [1, 2, 3]),
    ];
    let rows = |oracle_run: &str| -> Vec<Row> {
        let mut rows = Vec::new();
        for (at, (right, answers, shown)) in questions.iter().enumerate() {
            for (step, condition) in ["oracle", "perfect", "default"].into_iter().enumerate() {
                rows.push(Row {
                    run: if step == 0 { oracle_run.to_owned() } else { "run".to_owned() },
                    model: "m".to_owned(),
                    condition: condition.to_owned(),
                    probe: at.to_string(),
                    facets: facets("nuanced", "temporal"),
                    correct: Some(right[step]),
                    judge: "judge",
                    answer: Some(answers[step].to_owned()),
                    shown: Some(vec![shown[step]]),
                });
            }
        }
        rows
    };
    let steps = |rows: &[Row]| -> Vec<String> {
        let tables = tables_of(rows);
        let sheet = &table(&tables, "waterfall").sheet;
        let of_steps = sheet.columns.iter().position(|column| column.group == "O to P").unwrap();
        let names: Vec<&str> = sheet.columns[of_steps..].iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["lost", "same answer", "same context", "lost", "same answer", "same context"]);
        sheet.rows[0][of_steps..].iter().map(|cell| cell[0].clone()).collect()
    };
    assert_eq!(steps(&rows("run")), ["3", "1", "1", "4", "1", "1"]);
    // Another run may have other prompts: then equal sessions are uninformative, an equal answer is not.
    assert_eq!(steps(&rows("other")), ["3", "1", "0", "4", "1", "1"]);
    let charts = charts_of(&rows("run"));
    let [Chart::Bars(BarChart { bars, caption, .. })] = &charts[..] else { panic!("{charts:?}") };
    assert_eq!(bars[0].note, "P_preserve 62.50, P_retrieve 20.00; noise 2+2");
    assert!(caption.contains("noise: questions lost"));
    // A missing answer equals no other.
    let without: Vec<Row> = rows("run").into_iter().map(|row| Row { answer: None, ..row }).collect();
    assert_eq!(steps(&without), ["3", "0", "0", "4", "0", "0"]);
}
