//! The paper's tables from rows: every printed number that can be recomputed, to the printed digit, contradictions included.

use std::collections::BTreeMap;

use palimpsest::benchmarks::memrewardbench::Setting;
use palimpsest::benchmarks::memrewardbench::counts::{Consistency, Share, counted};
use palimpsest::benchmarks::{Chart, Graded, Table, TrendChart};
use palimpsest::case::draw::Draws;

use super::{BENCHMARK, published};

/// A graded probe that owns its parts.
#[derive(Clone)]
struct Owned {
    judge: &'static str,
    condition: String,
    case: String,
    labels: BTreeMap<String, String>,
    correct: Option<bool>,
    choice: Option<&'static str>,
    repetition: u32,
    fits: bool,
    source: Option<&'static str>,
}

fn labels(setting: Setting, length: &str) -> BTreeMap<String, String> {
    let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    BTreeMap::from([
        of("task", setting.task().name()),
        of("subtask", setting.name()),
        of("ctx_length", length),
    ])
}

/// `right` of `of` pairs of a setting under a condition.
fn pairs(condition: &str, setting: Setting, right: usize, of: usize) -> Vec<Owned> {
    let one = |i: usize| Owned {
        judge: "lenient",
        condition: condition.to_owned(),
        case: format!("{setting}-{i}"),
        labels: labels(setting, "8k"),
        correct: Some(i < right),
        choice: Some(if (i < right) == condition.starts_with("chosen") { "A" } else { "B" }),
        repetition: 0,
        fits: true,
        source: None,
    };
    (0..of).map(one).collect()
}

fn with_graded<T>(rows: &[Owned], make: impl FnOnce(&[Graded<'_>]) -> T) -> T {
    let facets: Vec<BTreeMap<String, String>> = rows
        .iter()
        .map(|row| row.source.map(|name| ("source".to_owned(), name.to_owned())).into_iter().collect())
        .collect();
    let graded: Vec<Graded<'_>> = rows.iter().zip(&facets).map(|(row, facets)| graded(row, facets)).collect();
    make(&graded)
}

fn tables(rows: &[Owned]) -> Vec<Table> {
    with_graded(rows, |graded| (BENCHMARK.counts)(graded).tables)
}

fn graded<'a>(row: &'a Owned, facets: &'a BTreeMap<String, String>) -> Graded<'a> {
    Graded {
        judge: Some(row.judge),
        condition: &row.condition,
        repetition: row.repetition,
        case: &row.case,
        probe: "verdict",
        fits: row.fits,
        correct: row.correct,
        choice: row.choice,
        ..answered(&row.labels, facets)
    }
}

/// First lines of a row's cells by full column name; the row is selected by its leading cells.
fn cells(tables: &[Table], key: &str, leads: &[&str]) -> BTreeMap<String, String> {
    let table = tables.iter().find(|table| table.key == key).unwrap_or_else(|| panic!("no table {key}"));
    let leads_with =
        |row: &&Vec<Vec<String>>| leads.iter().zip(row.iter().skip(2)).all(|(lead, cell)| cell[0] == *lead);
    let row = table.sheet.rows.iter().find(leads_with).unwrap_or_else(|| panic!("{key}: no row {leads:?}"));
    let columns = table.sheet.columns.iter();
    columns
        .zip(row)
        .map(|(column, cell)| {
            (format!("{} {}", column.group, column.name).trim().to_owned(), cell[0].clone())
        })
        .collect()
}

fn size(setting: Setting) -> usize {
    published(setting).iter().sum()
}

/// Mean of percentages, weighted by row count.
fn micro(cells: &[(f64, usize)]) -> f64 {
    let rows: usize = cells.iter().map(|(_, rows)| rows).sum();
    cells.iter().map(|&(value, rows)| value * rows as f64).sum::<f64>() / rows as f64
}

use Setting::{
    AMemMem, AMemOut, Mem0Mem, Mem0Out, MixedDrop, MixedNoise, Parallel, Sequential, SequentialDrop,
    SequentialNoise,
};

use crate::tables::answered;

#[test]
fn table_3_is_counted_again_to_the_printed_digit() {
    // GLM: Noise.
    let rows = [pairs("random", SequentialNoise, 140, 255), pairs("random", MixedNoise, 91, 184)].concat();
    let row = cells(&tables(&rows), "accuracy", &["random"]);
    assert_eq!((&*row["LR S-Noise"], &*row["LR M-Noise"]), ("54.90", "49.46"));
    assert_eq!(row["MD MO"], "-");

    // Claude. The paper swaps AO and AM: its fractions fit 245 and 229 pairs, table 2 has 229 and 245.
    assert_eq!((size(AMemOut), size(AMemMem)), (229, 245));
    let rows = [
        pairs("random", SequentialNoise, 122, 255),
        pairs("random", SequentialDrop, 122, 134),
        pairs("random", MixedNoise, 97, 184),
        pairs("random", MixedDrop, 210, 227),
        pairs("random", Mem0Out, 107, 167),
        pairs("random", Mem0Mem, 73, 159),
        pairs("random", AMemOut, 173, 245),
        pairs("random", AMemMem, 193, 229),
        pairs("random", Sequential, 409, 457),
        pairs("random", Parallel, 288, 343),
    ]
    .concat();
    let row = cells(&tables(&rows), "accuracy", &["random"]);
    let printed = [
        ("LR S-Noise", "47.84"),
        ("LR S-Drop", "91.04"),
        ("LR M-Noise", "52.72"),
        ("LR M-Drop", "92.51"),
        ("LR avg", "68.88"),
        ("MD MO", "64.07"),
        ("MD MM", "45.91"),
        ("MD AO", "70.61"),
        ("MD AM", "84.28"),
        ("MD avg", "68.25"),
        ("LG S", "89.50"),
        ("LG P", "83.97"),
        ("LG avg", "87.13"),
        ("Avg", "74.75"),
    ];
    for (column, value) in printed {
        assert_eq!(row[column], value, "{column}");
    }
    // With table 2's sizes the two cells differ; the task's mean does not.
    let share = |count, of| Share { count, of }.percent(2);
    assert_eq!(
        (share(173, size(AMemOut)), share(193, size(AMemMem))),
        ("75.55".to_owned(), "78.78".to_owned())
    );
    // All tasks have 800 pairs, so the mean over pairs equals the mean over tasks.
    assert_eq!(format!("{:.2}", micro(&[(68.88, 800), (68.25, 800), (87.13, 800)])), "74.75");
}

#[test]
fn table_6_weighs_lengths_by_their_pairs() {
    let sizes = [419, 503, 566, 563, 349];
    let claude = [70.9, 79.7, 78.3, 73.4, 68.8];
    let weighted = micro(&claude.into_iter().zip(sizes).collect::<Vec<_>>());
    assert_eq!(format!("{weighted:.2}"), "74.77");
    let plain = claude.iter().sum::<f64>() / 5.0;
    assert_eq!(format!("{plain:.2}"), "74.22");
    let lengths = ["8k", "16k", "32k", "64k", "128k"];
    let mut rows = Vec::new();
    for ((length, of), percent) in lengths.into_iter().zip(sizes).zip(claude) {
        let right = (percent * of as f64 / 100.0_f64).round() as usize;
        for mut row in pairs("random", Sequential, right, of) {
            row.labels.insert("ctx_length".to_owned(), length.to_owned());
            row.case = format!("{length} {}", row.case);
            rows.push(row);
        }
    }
    let row = cells(&tables(&rows), "lengths", &["random"]);
    assert_eq!(lengths.map(|length| row[length].clone()), claude.map(|value| format!("{value:.1}")));
    assert_eq!(row["Avg"], "74.8");
}

#[test]
fn table_5_takes_the_noise_setting_alone_and_weighs_pairs() {
    let rows = [
        pairs("random", SequentialNoise, 140, 255),
        pairs("random", SequentialDrop, 0, 134),
        pairs("random", Sequential, 364, 457),
        pairs("random", MixedNoise, 91, 184),
        pairs("random", MixedDrop, 227, 227),
        pairs("random", Parallel, 266, 343),
    ]
    .concat();
    let row = cells(&tables(&rows), "patterns", &["random"]);
    let of = |pattern: &str| ["LR", "LG", "avg"].map(|name| row[&format!("{pattern} {name}")].clone());
    assert_eq!(of("sequential"), ["54.9", "79.6", "70.8"]);
    assert_eq!(of("parallel"), ["49.5", "77.6", "67.7"]);
    // The paper prints 79.7 for 79.65, which is 364 of 457.
    assert_eq!(Share { count: 364, of: 457 }.percent(2), "79.65");
    assert_eq!(Share { count: 140 + 364, of: 712 }.percent(2), "70.79");
}

/// Both orders of pairs; `stable_right` are correct in both, the rest only in the first.
fn both(setting: Setting, stable_right: usize, of: usize) -> Vec<Owned> {
    [pairs("chosen-first", setting, of, of), pairs("rejected-first", setting, stable_right, of)].concat()
}

#[test]
fn table_7_counts_pairs_that_are_right_in_both_orders() {
    let rows =
        [both(Mem0Out, 116, 167), both(Mem0Mem, 114, 159), both(AMemOut, 135, 245), both(AMemMem, 151, 229)]
            .concat();
    let tables = tables(&rows);
    let row = cells(&tables, "consistency", &["plain"]);
    let found = ["MD MO", "MD MM", "MD AO", "MD AM", "MD avg"].map(|column| row[column].clone());
    assert_eq!(found, ["69.46", "71.70", "55.10", "65.94", "64.50"]);
    let row = cells(&tables, "orders", &["plain", "MD"]);
    let of = |column: &str| row[column].clone();
    assert_eq!((of("acc_chosen_first"), of("acc_rejected_first")), ("100.0".to_owned(), "64.5".to_owned()));
    // The rest prefers the first trajectory in both orders.
    assert_eq!(
        (of("stable"), of("stable_right"), of("first_position")),
        ("64.5".to_owned(), "64.5".to_owned(), "67.8".to_owned())
    );
    assert_eq!(
        (of("unparsed"), of("holds"), of("acc_random")),
        ("0.0".to_owned(), "yes".to_owned(), "-".to_owned())
    );
    // GLM's printed values are not of the same runs as tables 3 and 9: no pair can be correct in both orders and wrong in one.
    let percent = |count| Share { count, of: 10_000 };
    let printed = Consistency {
        chosen_first: percent(5240),
        rejected_first: percent(6340),
        stable: percent(6450),
        stable_right: percent(6450),
        ..Consistency::default()
    };
    assert!(!printed.holds());
}

#[test]
fn table_8_is_the_mean_of_both_and_keeps_what_the_paper_prints_otherwise() {
    let tagged = |with, without| {
        let rows =
            [pairs("random", AMemOut, with, 1000), pairs("random-untagged", AMemOut, without, 1000)].concat();
        let row = cells(&tables(&rows), "tags", &["random"]);
        ["with", "without", "avg"].map(|column| row[column].clone())
    };
    assert_eq!(tagged(759, 620), ["75.90", "62.00", "68.95"]);
    // Rows 2 to 4 print .603, .567 and .585.
    let means = [(690, 540), (621, 500), (655, 510)].map(|(with, without)| tagged(with, without)[2].clone());
    assert_eq!(means, ["61.50", "56.05", "58.25"]);
    // Other settings have no tags.
    let rows = [pairs("random", Mem0Out, 1, 2), pairs("random-untagged", Mem0Out, 1, 2)].concat();
    assert!(tables(&rows).iter().all(|table| table.key != "tags"));
}

#[test]
fn densities_and_criteria_have_tables_of_the_settings_that_they_are_of() {
    let mut rows = Vec::new();
    for (density, right) in [(0, 3), (25, 8), (50, 6), (75, 6), (100, 5)] {
        rows.extend(pairs(&format!("random-density-{density}"), Sequential, right, 10));
        rows.extend(pairs(&format!("random-density-{density}"), Mem0Out, 1, 2));
    }
    let found = tables(&rows);
    let row = cells(&found, "density", &["random", "LG"]);
    let of = |percent: u32| row[&format!("constraints {percent}%")].clone();
    assert_eq!([0, 25, 50, 75, 100].map(of), ["30.0", "80.0", "60.0", "60.0", "50.0"]);
    let rows = [both(SequentialNoise, 1, 4), both(Mem0Mem, 2, 4), both(AMemOut, 3, 4), both(MixedDrop, 4, 4)]
        .concat();
    let row = cells(&tables(&rows), "criteria", &["plain"]);
    let stable = ["process", "outcome"].map(|name| row[&format!("{name} stable")].clone());
    assert_eq!(stable, ["37.5", "87.5"]);
}

/// Appendix B.1: Drop's removals guarantee a wrong outcome, and chosen texts are filtered for the right one. With table 2's sizes that is
/// 134 + 227 + 167 + 229 pairs with one right outcome, and 255 + 184 + 159 + 245 with two.
#[test]
fn drop_differs_in_outcome_so_that_figure_4_has_757_pairs_of_it_and_843_of_process() {
    let rows: Vec<Owned> =
        Setting::ALL.into_iter().flat_map(|setting| both(setting, 100, size(setting))).collect();
    let found = tables(&rows);
    let sheet = &found.iter().find(|table| table.key == "criteria").unwrap().sheet;
    let cells = sheet.columns.iter().zip(&sheet.rows[0]);
    let stable: Vec<(&str, &str)> = cells
        .filter(|(column, _)| column.name == "stable")
        .map(|(column, cell)| (column.group.as_str(), cell[1].as_str()))
        .collect();
    assert_eq!(stable, [("process", "400/843"), ("outcome", "400/757")]);
}

#[test]
fn repetitions_have_rows_of_their_own_in_every_table_and_one_line_in_a_picture() {
    let mut rows = Vec::new();
    for repetition in 0..3 {
        let right = 2 + repetition as usize;
        let own = [
            pairs("chosen-first", Mem0Out, 4, 4),
            pairs("rejected-first", Mem0Out, right - 1, 4),
            pairs("random", AMemOut, right, 5),
            pairs("random-untagged", AMemOut, 1, 5),
            pairs("random-density-50", Sequential, right, 5),
        ];
        rows.extend(own.concat().into_iter().map(|row| Owned { repetition, ..row }));
    }
    let found = tables(&rows);
    for table in &found {
        let repeated = |nth: u32| {
            let end = format!("-repeat-{nth}");
            table.sheet.rows.iter().filter(|row| row[2][0].ends_with(&end)).count()
        };
        assert_eq!(
            (repeated(2), repeated(3)),
            (table.sheet.rows.len() / 3, table.sheet.rows.len() / 3),
            "{}",
            table.key
        );
        let notes = &table.sheet.notes;
        assert!(notes.iter().any(|note| note.contains("each repetition has rows of its own")), "{notes:?}");
    }
    let of = |lead: &str| cells(&found, "accuracy", &[lead])["MD AO"].clone();
    assert_eq!(["random", "random-repeat-2", "random-repeat-3"].map(of), ["40.00", "60.00", "80.00"]);
    let stable = |lead: &str| cells(&found, "consistency", &[lead])["MD MO"].clone();
    assert_eq!(["plain", "plain-repeat-2", "plain-repeat-3"].map(stable), ["25.00", "50.00", "75.00"]);
    let chart = trends(&rows, "length");
    assert!(chart.caption.contains("Of repetitions the first is drawn."), "{}", chart.caption);
    let names: Vec<&str> = chart.rows[0][0].lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names, ["lenient, chosen-first", "lenient, rejected-first", "lenient, random"]);
}

#[test]
fn what_cannot_be_read_is_wrong_and_shown_apart_and_judges_stand_side_by_side() {
    let mut rows = [pairs("chosen-first", Mem0Out, 4, 4), pairs("rejected-first", Mem0Out, 4, 4)].concat();
    (rows[0].correct, rows[0].choice) = (None, None);
    for mut row in [pairs("chosen-first", Mem0Out, 2, 4), pairs("rejected-first", Mem0Out, 2, 4)].concat() {
        row.judge = "strict";
        rows.push(row);
    }
    // A repetition has its own row.
    rows.extend(pairs("chosen-first", Mem0Out, 0, 4).into_iter().map(|row| Owned { repetition: 1, ..row }));
    // Broken rows of an unknown setting stay in the overall mean.
    for condition in ["chosen-first", "rejected-first"] {
        let broken = Owned {
            labels: BTreeMap::new(),
            correct: None,
            choice: None,
            ..pairs(condition, Mem0Out, 0, 1).remove(0)
        };
        rows.push(Owned { case: "row-9".to_owned(), ..broken });
    }
    let tables = tables(&rows);
    let accuracy = tables.iter().find(|table| table.key == "accuracy").unwrap();
    let firsts: Vec<[&str; 4]> = (accuracy.sheet.rows.iter())
        .map(|row| [&*row[1][0], &*row[2][0], &*row[8][0], &*row[row.len() - 2][1]])
        .collect();
    assert_eq!(
        firsts,
        [
            ["lenient", "chosen-first", "75.00", "3/5"],
            ["lenient", "rejected-first", "100.00", "4/5"],
            ["strict", "chosen-first", "50.00", "2/4"],
            ["strict", "rejected-first", "50.00", "2/4"],
            ["lenient", "chosen-first-repeat-2", "0.00", "0/4"],
        ]
    );
    let row = cells(&tables, "orders", &["plain", "all"]);
    assert_eq!((&*row["unparsed"], &*row["stable_right"]), ("30.0", "60.0"));
}

/// Plain definitions and the two inequalities, on random verdicts.
#[test]
fn consistency_is_what_its_definition_says_and_holds_for_any_verdicts() {
    let mut draws = Draws::new("consistency", 3, "verdicts");
    for round in 0..200 {
        let n = 1 + draws.index(12);
        let mut rows = Vec::new();
        let mut plain = (0, 0, 0, 0, 0);
        for i in 0..n {
            // A, B or nothing, in each order.
            let said = [(); 2].map(|()| [Some("A"), Some("B"), None][draws.index(3)]);
            for (condition, right, said) in [("chosen-first", "A", said[0]), ("rejected-first", "B", said[1])]
            {
                let [mut row] = <[Owned; 1]>::try_from(pairs(condition, Parallel, 1, 1)).ok().unwrap();
                (row.case, row.correct, row.choice) = (i.to_string(), said.map(|said| said == right), said);
                rows.push(row);
            }
            plain.0 += usize::from(said[0] == Some("A"));
            plain.1 += usize::from(said[1] == Some("B"));
            plain.2 += usize::from(said == [Some("A"), Some("B")]);
            plain.3 += usize::from(said == [Some("A"), Some("B")] || said == [Some("B"), Some("A")]);
            plain.4 += said.iter().filter(|said| said.is_none()).count();
        }
        let facets = BTreeMap::new();
        let all: Vec<Graded<'_>> = rows.iter().map(|row| graded(row, &facets)).collect();
        let counted = counted(&all);
        let found =
            counted[0].consistency(palimpsest::benchmarks::memrewardbench::Variant::Plain, |_| true).unwrap();
        let of = (
            found.chosen_first.count,
            found.rejected_first.count,
            found.stable_right.count,
            found.stable.count,
            found.unparsed.count,
        );
        assert_eq!(of, plain, "{round}");
        assert!(found.holds() && found.unparsed.of == 2 * n && found.first_position.of == 2 * n - plain.4);
    }
}

/// Pairs of all lengths: none correct at the first length, one at the next, and so on.
fn of_lengths(condition: &str, setting: Setting, of: usize) -> Vec<Owned> {
    let lengths = ["8k", "16k", "32k", "64k", "128k"].into_iter().enumerate();
    let rows = lengths.flat_map(|(right, length)| {
        pairs(condition, setting, right, of).into_iter().map(move |row| Owned {
            labels: labels(setting, length),
            case: format!("{length} {}", row.case),
            ..row
        })
    });
    rows.collect()
}

#[test]
fn what_does_not_fit_is_wrong_and_has_a_column_of_its_own_in_every_table() {
    let mut rows = Vec::new();
    for condition in ["chosen-first", "rejected-first"] {
        for setting in [SequentialNoise, Mem0Mem, Sequential, AMemOut] {
            rows.extend(pairs(condition, setting, 4, 4));
        }
        rows.extend(pairs(&format!("{condition}-untagged"), AMemOut, 4, 4));
        rows.extend(pairs(&format!("{condition}-density-50"), Sequential, 4, 4));
    }
    // One pair of each setting is too long in both orders, another was unreadable in the first.
    for row in &mut rows {
        let (long, unread) = (row.case.ends_with("-0"), row.case.ends_with("-1"));
        if long || unread && row.condition.starts_with("chosen") {
            (row.correct, row.choice, row.fits) = (None, None, !long);
        }
    }
    let tables = tables(&rows);
    for table in &tables {
        let columns = &table.sheet.columns;
        let at = columns.iter().position(|column| column.name == "does not fit");
        let at = at.unwrap_or_else(|| panic!("{}", table.key));
        let counts: Vec<usize> = table.sheet.rows.iter().map(|row| row[at][0].parse().unwrap()).collect();
        assert!(counts.iter().any(|count| *count > 0), "{}", table.key);
    }
    let row = cells(&tables, "accuracy", &["chosen-first"]);
    assert_eq!((&*row["does not fit"], &*row["LR S-Noise"], &*row["Avg"]), ("4", "50.00", "50.00"));
    let row = cells(&tables, "orders", &["plain", "all"]);
    // Of the 32 verdicts of both orders, 8 are of prompts that did not fit and 4 were unreadable.
    assert_eq!((&*row["unparsed"], &*row["does not fit"], &*row["stable_right"]), ("12.5", "4", "50.0"));
    let row = cells(&tables, "tags", &["chosen-first"]);
    assert_eq!((&*row["with"], &*row["does not fit"]), ("50.00", "2"));
    assert_eq!(cells(&tables, "density", &["rejected-first", "S"])["does not fit"], "1");
    assert_eq!(cells(&tables, "patterns", &["rejected-first"])["does not fit"], "2");
    assert_eq!(cells(&tables, "criteria", &["plain"])["does not fit"], "3");
    assert_eq!(cells(&tables, "lengths", &["rejected-first"])["does not fit"], "4");
    assert_eq!(cells(&tables, "consistency", &["plain"])["does not fit"], "4");
}

#[test]
fn accuracy_and_consistency_have_tables_by_setting_and_length() {
    let mut rows = Vec::new();
    for condition in ["chosen-first", "rejected-first"] {
        rows.extend(of_lengths(condition, SequentialNoise, 4));
        rows.extend(of_lengths(condition, SequentialDrop, 5));
    }
    // Of the longest Noise pairs, the first is wrong in one order.
    let at = rows
        .iter()
        .position(|row| row.condition == "rejected-first" && row.case.starts_with("128k"))
        .unwrap();
    (rows[at].correct, rows[at].choice) = (Some(false), Some("A"));
    let tables = tables(&rows);
    let lengths = ["8k", "16k", "32k", "64k", "128k", "Avg"];
    let of = |key: &str, leads: &[&str]| {
        let row = cells(&tables, key, leads);
        lengths.map(|length| row[length].clone())
    };
    assert_eq!(
        of("accuracy-lengths", &["chosen-first", "S-Noise"]),
        ["0.0", "25.0", "50.0", "75.0", "100.0", "50.0"]
    );
    assert_eq!(of("accuracy-lengths", &["rejected-first", "S-Noise"])[4..], ["75.0", "45.0"]);
    assert_eq!(
        of("accuracy-lengths", &["chosen-first", "S-Drop"]),
        ["0.0", "20.0", "40.0", "60.0", "80.0", "40.0"]
    );
    // Pairs weigh equally: 20 of 45, and of the longest 8 of 9.
    assert_eq!(of("accuracy-lengths", &["chosen-first", "LR"])[4..], ["88.9", "44.4"]);
    let stable = of("consistency-lengths", &["plain", "S-Noise", "stable"]);
    assert_eq!(stable, ["100.0", "100.0", "100.0", "100.0", "75.0", "95.0"]);
    let right = of("consistency-lengths", &["plain", "S-Noise", "stable_right"]);
    assert_eq!(right, ["0.0", "25.0", "50.0", "75.0", "75.0", "45.0"]);
    assert_eq!(of("consistency-lengths", &["plain", "all", "stable_right"])[5], "42.2");
    // Without both orders there is no consistency, and settings without pairs have no row.
    assert!(
        self::tables(&of_lengths("random", SequentialNoise, 4))
            .iter()
            .all(|table| table.key != "consistency-lengths")
    );
    let accuracy = tables.iter().find(|table| table.key == "accuracy-lengths").unwrap();
    assert_eq!(accuracy.sheet.rows.len(), 2 * 4);
}

/// Long-form pairs of a source at two densities.
fn of_source(source: &'static str, setting: Setting, right: [usize; 2], of: usize) -> Vec<Owned> {
    let densities = [0, 100].into_iter().zip(right);
    let rows = densities
        .flat_map(|(density, right)| pairs(&format!("random-density-{density}"), setting, right, of));
    rows.map(|row| Owned { source: Some(source), case: format!("{source} {}", row.case), ..row }).collect()
}

#[test]
fn density_has_rows_by_the_source_of_the_question() {
    let rows = [
        of_source("LongProc", Sequential, [1, 4], 4),
        of_source("LongGenBench", Sequential, [2, 3], 4),
        of_source("LongEval", Parallel, [0, 1], 2),
    ]
    .concat();
    let tables = tables(&rows);
    let of = |part: &str| {
        let row = cells(&tables, "density", &["random", part]);
        [&row["constraints 0%"], &row["constraints 100%"]].map(Clone::clone)
    };
    assert_eq!(of("LongProc"), ["25.0", "100.0"]);
    assert_eq!(of("LongGenBench"), ["50.0", "75.0"]);
    assert_eq!(of("LongEval"), ["0.0", "50.0"]);
    assert_eq!(of("S"), ["37.5", "87.5"]);
    assert_eq!(of("LG"), ["30.0", "80.0"]);
}

/// Trends of rows, by key.
fn trends(rows: &[Owned], key: &str) -> TrendChart {
    let charts = with_graded(rows, |graded| (BENCHMARK.counts)(graded).charts);
    let of_key = |chart: Chart| match chart {
        Chart::Trends(chart) if chart.key == key => Some(chart),
        _ => None,
    };
    charts.into_iter().find_map(of_key).unwrap_or_else(|| panic!("no chart {key}"))
}

#[test]
fn lengths_and_densities_are_drawn_as_lines_of_the_tables_numbers() {
    let mut rows = of_lengths("random", SequentialNoise, 4);
    for condition in ["chosen-first", "rejected-first"] {
        rows.extend(of_lengths(condition, SequentialDrop, 5));
    }
    let chart = trends(&rows, "length-by-setting");
    let titles: Vec<&str> = chart.rows.iter().flatten().map(|panel| panel.title.as_str()).collect();
    assert_eq!(titles, ["S-Noise: accuracy", "S-Drop: accuracy", "S-Drop: consistency"]);
    let noise = &chart.rows[0][0].lines;
    assert_eq!((noise.len(), noise[0].name.as_str()), (1, "lenient, random"));
    let counts: Vec<(usize, usize)> = noise[0].points.iter().map(|point| (point.count, point.of)).collect();
    assert_eq!(counts, [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]);
    assert_eq!(chart.rows[0][1].lines.len(), 2, "a line an order");
    let interval = noise[0].points[1].interval().unwrap();
    // Wilson's interval of 1 of 4, by its definition.
    let (n, p, z) = (4.0, 0.25, 1.959_963_984_540_054_f64);
    let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    assert!((interval.low - (middle - half)).abs() < 1e-9 && (interval.high - (middle + half)).abs() < 1e-9);

    let by_task = trends(&rows, "length");
    let titles: Vec<&str> = by_task.rows.iter().flatten().map(|panel| panel.title.as_str()).collect();
    assert_eq!(titles, ["LR: accuracy", "all: accuracy", "LR: consistency", "all: consistency"]);

    let figure = palimpsest::figures::draw_chart(&Chart::Trends(chart), "origin");
    assert!(figure.svg.starts_with("<svg") && figure.svg.contains("S-Drop: consistency"));
    let csv = String::from_utf8(figure.csv).unwrap();
    // Two accuracies of Drop, one of Noise, one consistency, at five lengths.
    assert_eq!(csv.lines().count(), 1 + 4 * 5);
    assert!(csv.contains("\nS-Noise: accuracy,\"lenient, random\",16k,1,4,0.045587,0.699358"), "{csv}");

    let density = trends(&of_source("LongProc", Sequential, [1, 4], 4), "density");
    let titles: Vec<&str> = density.rows.iter().flatten().map(|panel| panel.title.as_str()).collect();
    assert_eq!(titles, ["LG", "S", "LongProc"]);
    assert_eq!(density.places, ["0%", "25%", "50%", "75%", "100%"]);
    // Nothing to draw without pairs.
    assert!(with_graded(&[], |graded| (BENCHMARK.counts)(graded).charts).is_empty());
}
