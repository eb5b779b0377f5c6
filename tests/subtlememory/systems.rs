//! Memory systems in the tables: SubtleMemory's tables 1, 13 and figure 3, as printed for eleven systems by gpt-5.4.

use std::collections::{BTreeMap, BTreeSet};

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::subtlememory::counts::{Stages, stages};
use palimpsest::benchmarks::{Graded, GradedMemory, Table};

use super::percent;
use crate::tables::answered;

/// Questions: all, complementary, nuanced, contradictory.
const QUESTIONS: [usize; 4] = [1522, 361, 784, 377];
/// Correct under oracle.
const ORACLE: [usize; 4] = [1300, 299, 742, 259];

/// A system; accuracy, accuracy under perfect retrieval, P_preserve and P_retrieve, each for all, complementary, nuanced, contradictory.
type Printed = (&'static str, [&'static str; 4], [&'static str; 4], [&'static str; 4], [&'static str; 4]);

#[rustfmt::skip]
const PRINTED: [Printed; 11] = [
    ("mem0", ["68.99", "61.22", "83.55", "46.15"], ["77.86", "78.39", "90.18", "51.72"], ["87.38", "86.96", "94.07", "68.73"], ["83.27", "74.23", "89.11", "73.60"]),
    ("memos", ["56.83", "54.02", "73.98", "23.87"], ["67.15", "71.19", "82.40", "31.56"], ["75.23", "79.26", "84.91", "42.86"], ["80.27", "74.68", "86.67", "55.86"]),
    ("evermemos", ["68.13", "64.82", "84.57", "37.14"], ["76.41", "78.39", "90.94", "44.30"], ["85.23", "86.62", "93.26", "60.62"], ["86.19", "78.76", "92.20", "71.97"]),
    ("mirix", ["46.52", "49.58", "60.46", "14.59"], ["59.99", "70.08", "76.53", "15.92"], ["66.54", "77.26", "78.84", "18.92"], ["70.17", "64.50", "74.87", "40.82"]),
    ("a-mem", ["69.97", "59.56", "84.18", "50.40"], ["82.39", "81.16", "92.98", "61.54"], ["93.46", "91.64", "97.57", "83.78"], ["80.82", "70.44", "87.43", "71.89"]),
    ("memobase", ["32.13", "33.52", "38.90", "16.71"], ["36.66", "42.38", "42.60", "18.83"], ["39.08", "44.48", "42.99", "21.62"], ["75.59", "65.41", "81.82", "64.29"]),
    ("openclaw", ["62.48", "59.56", "81.63", "25.46"], ["81.21", "81.99", "95.28", "51.19"], ["91.46", "92.98", "97.98", "71.04"], ["73.51", "69.78", "84.87", "34.24"]),
    ("metaclaw", ["20.30", "17.45", "22.19", "19.10"], ["36.47", "40.17", "49.74", "5.31"], ["40.23", "45.15", "50.67", "4.63"], ["29.25", "34.07", "26.60", "58.33"]),
    ("mem0-openclaw", ["71.29", "66.48", "85.84", "45.62"], ["71.55", "83.10", "91.20", "19.63"], ["80.38", "92.31", "94.07", "27.41"], ["84.88", "75.72", "89.83", "71.83"]),
    ("memos-openclaw", ["56.50", "61.22", "73.85", "15.92"], ["64.06", "75.90", "81.51", "16.45"], ["71.38", "84.62", "83.83", "20.46"], ["82.33", "77.47", "86.66", "54.72"]),
    ("evermemos-openclaw", ["69.05", "67.04", "87.50", "32.63"], ["76.94", "81.44", "90.18", "45.09"], ["85.69", "89.30", "93.13", "60.23"], ["86.89", "78.65", "94.36", "67.95"]),
];

/// The unique count of `of` that prints like this.
fn counted(printed: &str, of: usize) -> usize {
    let all: Vec<usize> = (0..=of).filter(|count| percent(*count, of) == printed).collect();
    assert_eq!(all.len(), 1, "{printed} of {of}");
    all[0]
}

/// Questions of a relation that are correct under oracle, under perfect retrieval and by default, from the printed numbers.
fn sets(system: &Printed, column: usize) -> [BTreeSet<usize>; 3] {
    let (_, default, perfect, preserve, retrieve) = system;
    let (questions, oracle) = (QUESTIONS[column], ORACLE[column]);
    let preserved = counted(preserve[column], oracle);
    let retrieved = counted(retrieve[column], preserved);
    let outside = counted(perfect[column], questions) - preserved;
    let alone = counted(default[column], questions) - retrieved;
    [
        (0..oracle).collect(),
        (0..preserved).chain(oracle..oracle + outside).collect(),
        (0..retrieved).chain(preserved..preserved + alone).collect(),
    ]
}

#[test]
fn what_is_preserved_and_retrieved_is_as_printed_of_every_system_and_adds_up() {
    for system in &PRINTED {
        let stages_of = |column: usize| {
            let [oracle, perfect, default] = sets(system, column);
            stages(&(0..QUESTIONS[column]).collect(), &oracle, &perfect, &default)
        };
        let shares = |of: &Stages| [percent(of.preserved, of.oracle), percent(of.retrieved, of.preserved)];
        let relations = [1, 2, 3].map(stages_of);
        for (stages, column) in relations.iter().zip(1..) {
            assert_eq!(shares(stages), [system.3[column], system.4[column]], "{}", system.0);
        }
        // All questions are those of the relations: the printed overall shares follow.
        let sum = |of: fn(&Stages) -> usize| relations.iter().map(of).sum::<usize>();
        let all = Stages {
            questions: sum(|s| s.questions),
            oracle: sum(|s| s.oracle),
            preserved: sum(|s| s.preserved),
            retrieved: sum(|s| s.retrieved),
            default: sum(|s| s.default),
            alone: sum(|s| s.alone),
        };
        assert_eq!((all.questions, all.oracle), (QUESTIONS[0], ORACLE[0]));
        assert_eq!(shares(&all), [system.3[0], system.4[0]], "{}", system.0);
        assert_eq!(percent(all.default, all.questions), system.1[0], "{}", system.0);
    }
}

/// First line of a row's cells, by column name.
fn row(table: &Table, setting: &str, part: Option<&str>) -> BTreeMap<String, String> {
    let sheet = &table.sheet;
    let is = |row: &&Vec<Vec<String>>| {
        row.iter().any(|cell| cell[0] == setting)
            && part.is_none_or(|part| row.iter().any(|cell| cell[0] == part))
    };
    let row = sheet.rows.iter().find(is).unwrap_or_else(|| panic!("no {setting} in {}", sheet.text()));
    sheet
        .columns
        .iter()
        .map(|column| column.name.clone())
        .zip(row.iter().map(|cell| cell[0].clone()))
        .collect()
}

#[test]
fn the_tables_take_memory_systems_of_one_run_as_they_are_printed() {
    let relations = ["complementary", "nuanced", "contradictory"];
    let labels = BTreeMap::new();
    let facets: Vec<BTreeMap<String, String>> = relations
        .iter()
        .map(|relation| BTreeMap::from([("relation".to_owned(), (*relation).to_owned())]))
        .collect();
    let probes: Vec<Vec<String>> = (0..3)
        .map(|at| (0..QUESTIONS[at + 1]).map(|nth| format!("{}-{nth}", relations[at])).collect())
        .collect();
    let mut graded: Vec<Graded<'_>> = Vec::new();
    let mut push =
        |condition, memory: Option<GradedMemory<'static>>, right: &dyn Fn(usize) -> BTreeSet<usize>| {
            for (at, (facets, probes)) in facets.iter().zip(&probes).enumerate() {
                let right = right(at + 1);
                graded.extend(probes.iter().enumerate().map(|(nth, probe)| Graded {
                    model: "gpt-5.4",
                    condition,
                    memory,
                    case: "persona_0",
                    probe,
                    correct: Some(right.contains(&nth)),
                    ..answered(&labels, facets)
                }));
            }
        };
    push("oracle", None, &|column| (0..ORACLE[column]).collect());
    for system in &PRINTED {
        let of = |shown| Some(GradedMemory { system: system.0, shown });
        push("memory-x", of(""), &|column| sets(system, column)[2].clone());
        push("memory-x-perfect", of("perfect"), &|column| sets(system, column)[1].clone());
    }
    let tables = (SUBTLEMEMORY.counts)(&graded).tables;
    let table = |key: &str| tables.iter().find(|table| table.key == key).unwrap();
    for (name, default, perfect, preserve, retrieve) in &PRINTED {
        let table_1 = row(table("accuracy"), name, None);
        let table_13 = row(table("perfect"), &format!("{name} perfect"), None);
        for (at, column) in ["all"].into_iter().chain(relations).enumerate() {
            assert_eq!(table_1[column], default[at], "{name} {column}");
            assert_eq!(table_13[column], perfect[at], "{name} {column}");
            let figure_3 = row(table("waterfall"), name, Some(column));
            assert_eq!(
                [&figure_3["P_preserve"], &figure_3["P_retrieve"]],
                [preserve[at], retrieve[at]],
                "{name} {column}"
            );
        }
    }
    // Each plugged-in memory minus the same memory alone: Mem0 with OpenClaw is 71.29 - 68.99.
    let integration = row(table("integration"), "mem0-openclaw", Some("mem0"));
    assert_eq!(integration["all"], "+2.30");
    // The oracle against the best of them.
    let gap = row(table("oracle-gap"), "mem0-openclaw", None);
    assert_eq!((gap["oracle"].as_str(), gap["best"].as_str()), ("85.41", "71.29"));
}
