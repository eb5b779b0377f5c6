//! The tables of the paper, of graded pairs of any number of runs.
//!
//! Numbers are percentages of pairs, ties rounded up, with as many decimals as the paper's table has; below a number stand the pairs.
//! The mean of several settings is the share of all their pairs, as the paper's is. Nothing here corrects what the paper prints: its
//! tables contradict each other in places, which the tests keep as printed.

use std::collections::{BTreeMap, BTreeSet};

use super::counts::{Compared, Consistency, Counted, Share};
use super::orders::{Order, Variant};
use super::terms::{Length, Setting, Source, Task};
use crate::benchmarks::{CutCount, Graded, Table};
use crate::ground::numbers::p_value;
use crate::ground::sheet::{Column, cell};
use crate::statistics::mcnemar::mcnemar;

/// Decimals of tables 3, 7 and 8.
pub(super) const FINE: u32 = 2;
/// Decimals of the others.
pub(super) const COARSE: u32 = 1;

/// The column that names a condition.
pub(super) const CONDITION: &str = "condition";

/// All tables that the runs have rows for, with those `by_length` behind that of table 6.
pub(super) fn all(graded: &[Graded<'_>], counted: &[Counted<'_>], by_length: Vec<Table>) -> Vec<Table> {
    let mut tables = vec![accuracy(counted), lengths(counted)];
    tables.extend(by_length);
    tables.extend([
        patterns(counted),
        consistency(counted),
        orders(counted),
        criteria(counted),
        tags(counted),
        density(counted),
    ]);
    tables.retain(|table| !table.sheet.rows.is_empty());
    mark_cuts(&mut tables, graded);
    if counted.iter().any(|counted| counted.repetition > 0) {
        tables.iter_mut().for_each(|table| table.sheet.notes.push(REPEATS.to_owned()));
    }
    tables
}

/// Marks the conditions in which prompts were cut, and says below each table how many and by how much.
fn mark_cuts(tables: &mut [Table], graded: &[Graded<'_>]) {
    let mut cuts: BTreeMap<(&str, String), CutCount> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for row in graded.iter().filter(|row| row.answered) {
        // An answer stands there once a judge.
        if seen.insert((row.run, row.condition, row.repetition, row.case)) {
            let condition = repeated(row.condition, row.repetition);
            cuts.entry((row.run, condition)).or_default().add(row.history_cut);
        }
    }
    cuts.retain(|_, cuts| !cuts.mark().is_empty());
    for table in tables {
        let runs: BTreeSet<String> =
            table.sheet.rows.iter().filter_map(|row| row.first()?.first().cloned()).collect();
        let condition = table.sheet.columns.iter().position(|column| column.name == CONDITION);
        for row in &mut table.sheet.rows {
            let run = row.first().and_then(|run| run.first()).cloned().unwrap_or_default();
            let name = condition.and_then(|at| row.get_mut(at)?.first_mut());
            if let Some(name) = name
                && let Some(cuts) = cuts.get(&(&*run, name.clone()))
            {
                name.push_str(cuts.mark());
            }
        }
        let of_runs = cuts.iter().filter(|((run, _), _)| runs.contains(*run));
        let notes = of_runs.filter_map(|((run, condition), cuts)| cuts.note(&format!("{run} {condition}")));
        table.sheet.notes.extend(notes.collect::<Vec<_>>());
    }
}

const REPEATS: &str = "each repetition has rows of its own; `palimpsest table --repeats` gives their mean and standard deviation";

/// Prompts that did not fit: the last column of every table.
pub(super) const OVERLONG: &str = "does not fit";

pub(super) fn table(
    key: &str,
    title: &str,
    columns: Vec<Column>,
    rows: Vec<Vec<Vec<String>>>,
    notes: &[&str],
) -> Table {
    Table::new(key, title, columns, rows, notes.iter().map(|&note| note.to_owned()).collect())
}

/// The columns that every table begins with.
pub(super) fn heads(what: &str) -> Vec<Column> {
    ["run", "judge", what].map(Column::text).into()
}

pub(super) fn starts(counted: &Counted<'_>, what: &str) -> Vec<Vec<String>> {
    let what = repeated(what, counted.repetition);
    vec![cell(counted.run), cell(counted.judge.unwrap_or("none")), cell(what)]
}

/// The name of a condition, an order or a variant under one repetition: `random`, then `random-repeat-2`, as runs name conditions.
fn repeated(name: &str, repetition: u32) -> String {
    if repetition == 0 { name.to_owned() } else { format!("{name}-repeat-{}", repetition + 1) }
}

/// A share and its pairs.
pub(super) fn number(share: Share, decimals: u32) -> Vec<String> {
    match share.of {
        0 => cell("-"),
        _ => vec![share.percent(decimals), format!("{}/{}", share.count, share.of)],
    }
}

/// A number of pairs or prompts.
pub(super) fn count(count: usize) -> Vec<String> {
    cell(count.to_string())
}

fn in_group(group: &str, name: &str) -> Column {
    Column { group: group.to_owned(), ..Column::number(name) }
}

/// A choice of pairs.
pub(super) type Wanted = Box<dyn Fn(&Compared) -> bool>;

pub(super) fn of_setting(setting: Setting) -> Wanted {
    Box::new(move |pair| pair.setting == Some(setting))
}

pub(super) fn of_task(task: Task) -> Wanted {
    Box::new(move |pair| pair.task == Some(task))
}

/// The columns of table 3: the settings of each task and their mean, and the mean of all.
fn by_setting() -> Vec<(Column, Wanted)> {
    let mut columns: Vec<(Column, Wanted)> = Vec::new();
    for task in Task::ALL {
        for setting in Setting::ALL.into_iter().filter(|setting| setting.task() == task) {
            columns.push((in_group(task.short(), setting.short()), of_setting(setting)));
        }
        columns.push((in_group(task.short(), "avg"), of_task(task)));
    }
    columns.push((Column::number("Avg"), Box::new(|_| true)));
    columns
}

/// Rows for every order and variant that was asked.
pub(super) fn each_asked<'a>(
    counted: &'a [Counted<'a>],
) -> impl Iterator<Item = (&'a Counted<'a>, (Order, Variant), String)> {
    counted.iter().flat_map(|counted| {
        let name = |(order, variant): (Order, Variant)| format!("{}{}", order.name(), variant.name());
        counted.asked().into_iter().map(move |asked| (counted, asked, name(asked)))
    })
}

/// A row an order and variant: the accuracy of each column's pairs, and the prompts of any of them that did not fit.
fn accuracies(
    (key, title): (&str, &str),
    columns: &[(Column, Wanted)],
    decimals: u32,
    counted: &[Counted<'_>],
    notes: &[&str],
) -> Table {
    let any = |pair: &Compared| columns.iter().any(|(_, wanted)| wanted(pair));
    let row = |(counted, asked, name): (&Counted<'_>, (Order, Variant), String)| {
        let numbers = columns.iter().map(|(_, wanted)| number(counted.accuracy(asked, wanted), decimals));
        let overlong = count(counted.overlong(asked, any));
        starts(counted, &name).into_iter().chain(numbers).chain([overlong]).collect()
    };
    let heads = heads(CONDITION).into_iter().chain(columns.iter().map(|(column, _)| column.clone()));
    let heads = heads.chain([Column::number(OVERLONG)]).collect();
    table(key, title, heads, each_asked(counted).map(row).collect(), notes)
}

fn accuracy(counted: &[Counted<'_>]) -> Table {
    let note =
        "what cannot be read counts as wrong, and so does a pair whose prompt does not fit the context";
    accuracies(("accuracy", "Accuracy by setting (table 3)"), &by_setting(), FINE, counted, &[note])
}

fn lengths(counted: &[Counted<'_>]) -> Table {
    let of_length = |length: Length| -> (Column, Wanted) {
        (Column::number(length.name()), Box::new(move |pair| pair.length == Some(length)))
    };
    let mut columns = Vec::from(Length::ALL.map(of_length));
    columns.push((Column::number("Avg"), Box::new(|_| true)));
    accuracies(("lengths", "Accuracy by length (table 6)"), &columns, COARSE, counted, &[])
}

fn patterns(counted: &[Counted<'_>]) -> Table {
    const PATTERNS: [(&str, [Setting; 2]); 2] = [
        ("sequential", [Setting::SequentialNoise, Setting::Sequential]),
        ("parallel", [Setting::MixedNoise, Setting::Parallel]),
    ];
    let mut columns: Vec<(Column, Wanted)> = Vec::new();
    for (pattern, settings) in PATTERNS {
        let [reasoning, generation] = settings.map(of_setting);
        let both = move |pair: &Compared| pair.setting.is_some_and(|setting| settings.contains(&setting));
        columns.push((in_group(pattern, "LR"), reasoning));
        columns.push((in_group(pattern, "LG"), generation));
        columns.push((in_group(pattern, "avg"), Box::new(both)));
    }
    let title = "Accuracy by pattern of memory management (table 5)";
    let note = "LR is the Noise setting alone, as in the paper; avg weighs pairs";
    accuracies(("patterns", title), &columns, COARSE, counted, &[note])
}

/// Variants of which both orders were asked.
pub(super) fn both_orders<'a>(
    counted: &'a [Counted<'a>],
) -> impl Iterator<Item = (&'a Counted<'a>, Variant)> {
    counted.iter().flat_map(|counted| {
        let variants =
            Variant::ALL.into_iter().filter(|&variant| counted.consistency(variant, |_| true).is_some());
        variants.map(move |variant| (counted, variant))
    })
}

pub(super) fn variant_name(variant: Variant) -> &'static str {
    match variant.name().strip_prefix('-') {
        Some(name) => name,
        None => "plain",
    }
}

/// A share of pairs that were put in both orders.
pub(super) type OfBoth = fn(&Consistency) -> Share;

/// A row a variant of which both orders were asked: a share of each column's pairs, and those of any of them that did not fit.
fn of_both_orders(
    (key, title): (&str, &str),
    columns: &[(Column, Wanted, OfBoth)],
    decimals: u32,
    counted: &[Counted<'_>],
    note: &str,
) -> Table {
    let any = |pair: &Compared| columns.iter().any(|(_, wanted, _)| wanted(pair));
    let row = |(counted, variant): (&Counted<'_>, Variant)| {
        let numbers = columns.iter().map(|(_, wanted, of)| {
            number(of(&counted.consistency(variant, wanted).unwrap_or_default()), decimals)
        });
        let overlong = counted.consistency(variant, any).unwrap_or_default().overlong;
        starts(counted, variant_name(variant)).into_iter().chain(numbers).chain([count(overlong)]).collect()
    };
    let heads = heads("variant").into_iter().chain(columns.iter().map(|(column, ..)| column.clone()));
    let heads = heads.chain([Column::number(OVERLONG)]).collect();
    table(key, title, heads, both_orders(counted).map(row).collect(), &[note])
}

fn consistency(counted: &[Counted<'_>]) -> Table {
    let columns = by_setting().into_iter();
    let columns: Vec<(Column, Wanted, OfBoth)> =
        columns.map(|(column, wanted)| (column, wanted, (|found| found.stable_right) as OfBoth)).collect();
    let note = "the chosen trajectory preferred in both orders";
    of_both_orders(("consistency", "Stable and right (table 7)"), &columns, FINE, counted, note)
}

fn orders(counted: &[Counted<'_>]) -> Table {
    let mut columns = heads("variant");
    columns.push(Column::text("pairs of"));
    let names = [
        "acc_random",
        "acc_chosen_first",
        "acc_rejected_first",
        "stable",
        "stable_right",
        "first_position",
        "unparsed",
        OVERLONG,
        "p",
    ];
    columns.extend(names.map(Column::number));
    columns.push(Column::text("holds"));
    let mut rows = Vec::new();
    for (counted, variant) in both_orders(counted) {
        let tasks = Task::ALL.map(Some).into_iter().chain([None]);
        for task in tasks {
            let wanted = |pair: &Compared| task.is_none() || pair.task == task;
            let Some(found) = counted.consistency(variant, wanted) else { continue };
            let mut row = starts(counted, variant_name(variant));
            row.push(cell(task.map_or("all", Task::short)));
            let Consistency {
                random,
                chosen_first,
                rejected_first,
                stable,
                stable_right,
                first_position,
                unparsed,
                overlong,
                ..
            } = found;
            let shares =
                [random, chosen_first, rejected_first, stable, stable_right, first_position, unparsed];
            row.extend(shares.map(|share| number(share, COARSE)));
            row.push(count(overlong));
            row.push(cell(p_value(mcnemar(found.only_chosen_first, found.only_rejected_first))));
            row.push(cell(if found.holds() { "yes" } else { "NO" }));
            rows.push(row);
        }
    }
    let notes = [
        "stable: the same trajectory preferred in both orders; first_position: the first one preferred, of what could be read; does not \
         fit: pairs whose prompt is longer than the context in either order; p: exact McNemar test of both orders",
        "holds: stable_right is at most the lesser accuracy, and stable at most what the difference of both leaves",
    ];
    table("orders", "Both orders of each pair (table 9, figure 4)", columns, rows, &notes)
}

fn criteria(counted: &[Counted<'_>]) -> Table {
    use Setting::{
        AMemMem, AMemOut, Mem0Mem, Mem0Out, MixedDrop, MixedNoise, SequentialDrop, SequentialNoise,
    };
    const CRITERIA: [(&str, &[Setting]); 2] = [
        ("process", &[SequentialNoise, MixedNoise, Mem0Mem, AMemMem]),
        ("outcome", &[SequentialDrop, MixedDrop, Mem0Out, AMemOut]),
    ];
    const SHARES: [(&str, OfBoth); 3] = [
        ("chosen first", |found| found.chosen_first),
        ("rejected first", |found| found.rejected_first),
        ("stable", |found| found.stable),
    ];
    let mut columns: Vec<(Column, Wanted, OfBoth)> = Vec::new();
    for (criterion, settings) in CRITERIA {
        for (name, of) in SHARES {
            let is = |pair: &Compared| pair.setting.is_some_and(|setting| settings.contains(&setting));
            columns.push((in_group(criterion, name), Box::new(is), of));
        }
    }
    let title = "Pairs that differ in process and in outcome (figure 4)";
    let note = "process: both results are right (Noise, Mem); outcome: the chosen one alone is (Drop, Out; appendix B.1)";
    of_both_orders(("criteria", title), &columns, COARSE, counted, note)
}

fn tags(counted: &[Counted<'_>]) -> Table {
    let mut columns = heads("order");
    columns.extend(["with", "without", "avg", OVERLONG].map(Column::number));
    let mut rows = Vec::new();
    for counted in counted {
        for order in Order::ALL {
            let tagged = |pair: &Compared| pair.setting.is_some_and(Setting::has_tags);
            let of = |variant| counted.accuracy((order, variant), tagged);
            let (with, without) = (of(Variant::Plain), of(Variant::Untagged));
            if with.of == 0 || without.of == 0 {
                continue;
            }
            let mut row = starts(counted, order.name());
            row.extend([with, without].map(|share| number(share, FINE)));
            // The plain mean of both, as the paper's.
            let mean = Share {
                count: with.count * without.of + without.count * with.of,
                of: 2 * with.of * without.of,
            };
            row.push(cell(mean.percent(FINE)));
            let overlong = |variant| counted.overlong((order, variant), tagged);
            row.push(count(overlong(Variant::Plain) + overlong(Variant::Untagged)));
            rows.push(row);
        }
    }
    let note = "pairs of A-Mem alone, with and without the tags of their notes";
    table("tags", "Accuracy with and without tags (table 8)", columns, rows, &[note])
}

fn density(counted: &[Counted<'_>]) -> Table {
    let mut columns = heads("order");
    columns.push(Column::text("pairs of"));
    columns.extend(DENSITIES.map(|percent| in_group("constraints", &format!("{percent}%"))));
    columns.push(Column::number(OVERLONG));
    let mut rows = Vec::new();
    for counted in counted {
        for order in Order::ALL {
            for (name, wanted) in of_generation() {
                let each = DENSITIES.map(|percent| (order, Variant::Density(percent)));
                let shares = each.map(|asked| counted.accuracy(asked, &wanted));
                if shares.iter().all(|share| share.of == 0) {
                    continue;
                }
                let mut row = starts(counted, order.name());
                row.push(cell(name));
                row.extend(shares.map(|share| number(share, COARSE)));
                row.push(count(each.map(|asked| counted.overlong(asked, &wanted)).iter().sum()));
                rows.push(row);
            }
        }
    }
    let notes = [
        "pairs of long-form generation alone, whose questions keep so much of their constraints: by pattern of memory, by the data set that \
         the question comes from, and all of them (LG)",
    ];
    table("density", "Accuracy by density of constraints (figures 5, 20 and 21)", columns, rows, &notes)
}

/// In percent.
pub(super) const DENSITIES: [u32; 5] = [0, 25, 50, 75, 100];

/// The parts of long-form generation by name: its settings, its sources, and all.
pub(super) fn of_generation() -> Vec<(&'static str, Wanted)> {
    let mut parts: Vec<(&'static str, Wanted)> = Vec::new();
    for setting in [Setting::Sequential, Setting::Parallel] {
        parts.push((setting.short(), of_setting(setting)));
    }
    for source in Source::ALL {
        let is = move |pair: &Compared| pair.task == Some(Task::Generation) && pair.source == Some(source);
        parts.push((source.name(), Box::new(is)));
    }
    parts.push((Task::Generation.short(), of_task(Task::Generation)));
    parts
}
