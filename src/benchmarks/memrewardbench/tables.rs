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
use crate::ground::sheet::{Column, Sheet, cell};
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
    tables
}

/// Marks the conditions in which prompts were cut, and says below each table how many and by how much.
fn mark_cuts(tables: &mut [Table], graded: &[Graded<'_>]) {
    let mut cuts: BTreeMap<(&str, &str), CutCount> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for row in graded.iter().filter(|row| row.answered && row.repetition == 0) {
        // An answer stands there once a judge.
        if seen.insert((row.run, row.condition, row.case)) {
            cuts.entry((row.run, row.condition)).or_default().add(row.history_cut);
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
                && let Some(cuts) = cuts.get(&(&*run, &**name))
            {
                name.push_str(cuts.mark());
            }
        }
        let of_runs = cuts.iter().filter(|((run, _), _)| runs.contains(*run));
        let notes = of_runs.filter_map(|((run, condition), cuts)| cuts.note(&format!("{run} {condition}")));
        table.sheet.notes.extend(notes.collect::<Vec<_>>());
    }
}

/// Prompts that did not fit: the last column of every table.
pub(super) const OVERLONG: &str = "does not fit";

pub(super) fn table(
    key: &str,
    title: &str,
    columns: Vec<Column>,
    rows: Vec<Vec<Vec<String>>>,
    notes: &[&str],
) -> Table {
    let notes = notes.iter().map(|&note| note.to_owned()).collect();
    Table { key: key.to_owned(), title: title.to_owned(), sheet: Sheet { columns, rows, notes } }
}

/// The columns that every table begins with.
pub(super) fn heads(what: &str) -> Vec<Column> {
    let mut heads = vec![Column::text("run"), Column::text("judge")];
    if !what.is_empty() {
        heads.push(Column::text(what));
    }
    heads
}

pub(super) fn starts(counted: &Counted<'_>, what: &str) -> Vec<Vec<String>> {
    let mut starts = vec![cell(counted.run), cell(counted.judge.unwrap_or("none"))];
    if !what.is_empty() {
        starts.push(cell(what));
    }
    starts
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

/// The columns of table 3: the settings of each task and their mean, and the mean of all.
fn by_setting() -> Vec<Column> {
    let mut columns = Vec::new();
    for task in Task::ALL {
        let of_task = Setting::ALL.into_iter().filter(|setting| setting.task() == task);
        columns.extend(of_task.map(|setting| in_group(task.short(), setting.short())));
        columns.push(in_group(task.short(), "avg"));
    }
    columns.push(Column::number("Avg"));
    columns
}

/// Which pairs a number is of.
pub(super) type Wanted = Box<dyn Fn(&Compared) -> bool>;

/// Which pairs each of those columns stands for.
fn of_settings() -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for task in Task::ALL {
        for setting in Setting::ALL.into_iter().filter(|setting| setting.task() == task) {
            wanted.push(Box::new(move |pair: &Compared| pair.setting == Some(setting)));
        }
        wanted.push(Box::new(move |pair: &Compared| pair.task == Some(task)));
    }
    wanted.push(Box::new(|_: &Compared| true));
    wanted
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

fn accuracy(counted: &[Counted<'_>]) -> Table {
    let columns = [heads(CONDITION), by_setting(), vec![Column::number(OVERLONG)]].concat();
    let row = |(counted, asked, name): (&Counted<'_>, (Order, Variant), String)| {
        let numbers = of_settings().into_iter().map(|wanted| number(counted.accuracy(asked, wanted), FINE));
        let overlong = count(counted.overlong(asked, |_| true));
        starts(counted, &name).into_iter().chain(numbers).chain([overlong]).collect()
    };
    let rows = each_asked(counted).map(row).collect();
    table(
        "accuracy",
        "Accuracy by setting (table 3)",
        columns,
        rows,
        &["what cannot be read counts as wrong, and so does a pair whose prompt does not fit the context"],
    )
}

fn lengths(counted: &[Counted<'_>]) -> Table {
    let mut columns = heads(CONDITION);
    columns.extend(Length::ALL.map(|length| Column::number(length.name())));
    columns.extend(["Avg", OVERLONG].map(Column::number));
    let row = |(counted, asked, name): (&Counted<'_>, (Order, Variant), String)| {
        let of = |length| number(counted.accuracy(asked, |pair| pair.length == Some(length)), COARSE);
        let all = number(counted.accuracy(asked, |_| true), COARSE);
        let overlong = count(counted.overlong(asked, |_| true));
        starts(counted, &name).into_iter().chain(Length::ALL.map(of)).chain([all, overlong]).collect()
    };
    let rows = each_asked(counted).map(row).collect();
    table("lengths", "Accuracy by length (table 6)", columns, rows, &[])
}

fn patterns(counted: &[Counted<'_>]) -> Table {
    const PATTERNS: [(&str, [Setting; 2]); 2] = [
        ("sequential", [Setting::SequentialNoise, Setting::Sequential]),
        ("parallel", [Setting::MixedNoise, Setting::Parallel]),
    ];
    let mut columns = heads(CONDITION);
    for (pattern, _) in PATTERNS {
        columns.extend(["LR", "LG", "avg"].map(|name| in_group(pattern, name)));
    }
    columns.push(Column::number(OVERLONG));
    let row = |(counted, asked, name): (&Counted<'_>, (Order, Variant), String)| {
        let mut row = starts(counted, &name);
        for (_, settings) in PATTERNS {
            let each = settings.map(|setting| counted.accuracy(asked, |pair| pair.setting == Some(setting)));
            row.extend(each.into_iter().chain([each.into_iter().sum()]).map(|share| number(share, COARSE)));
        }
        let wanted = |pair: &Compared| {
            PATTERNS.iter().flat_map(|(_, settings)| settings).any(|setting| pair.setting == Some(*setting))
        };
        row.push(count(counted.overlong(asked, wanted)));
        row
    };
    let rows = each_asked(counted).map(row).collect();
    let note = "LR is the Noise setting alone, as in the paper; avg weighs pairs";
    table("patterns", "Accuracy by pattern of memory management (table 5)", columns, rows, &[note])
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

fn consistency(counted: &[Counted<'_>]) -> Table {
    let columns = [heads("variant"), by_setting(), vec![Column::number(OVERLONG)]].concat();
    let row = |(counted, variant): (&Counted<'_>, Variant)| {
        let of = |wanted| counted.consistency(variant, wanted).unwrap_or_default().stable_right;
        let numbers = of_settings().into_iter().map(|wanted| number(of(wanted), FINE));
        let all = counted.consistency(variant, |_| true).unwrap_or_default();
        let starts = starts(counted, variant_name(variant)).into_iter();
        starts.chain(numbers).chain([count(all.overlong)]).collect()
    };
    let rows = both_orders(counted).map(row).collect();
    let note = "the chosen trajectory preferred in both orders";
    table("consistency", "Stable and right (table 7)", columns, rows, &[note])
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
    type Of = fn(&Compared) -> bool;
    const NOISE: [Setting; 2] = [Setting::SequentialNoise, Setting::MixedNoise];
    const MEM: [Setting; 2] = [Setting::Mem0Mem, Setting::AMemMem];
    const OUT: [Setting; 2] = [Setting::Mem0Out, Setting::AMemOut];
    const DROP: [Setting; 2] = [Setting::SequentialDrop, Setting::MixedDrop];
    fn is(pair: &Compared, settings: &[Setting]) -> bool {
        pair.setting.is_some_and(|setting| settings.contains(&setting))
    }
    const CRITERIA: [(&str, Of); 3] = [
        ("process", |pair| is(pair, &NOISE) || is(pair, &MEM)),
        ("outcome", |pair| is(pair, &OUT)),
        ("not given", |pair| is(pair, &DROP)),
    ];
    let mut columns = heads("variant");
    for (name, _) in CRITERIA {
        columns.extend(["chosen first", "rejected first", "stable"].map(|column| in_group(name, column)));
    }
    columns.push(Column::number(OVERLONG));
    let row = |(counted, variant): (&Counted<'_>, Variant)| {
        let mut row = starts(counted, variant_name(variant));
        for (_, wanted) in CRITERIA {
            let found = counted.consistency(variant, wanted).unwrap_or_default();
            let shares = [found.chosen_first, found.rejected_first, found.stable];
            row.extend(shares.map(|share| number(share, COARSE)));
        }
        let of_any = |pair: &Compared| CRITERIA.iter().any(|(_, wanted)| wanted(pair));
        row.push(count(counted.consistency(variant, of_any).unwrap_or_default().overlong));
        row
    };
    let rows = both_orders(counted).map(row).collect();
    let note = "process: both results are right (Noise, Mem); outcome: one is (Out); of Drop the paper does not say which";
    table("criteria", "Pairs that differ in process and in outcome (figure 4)", columns, rows, &[note])
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
        parts.push((setting.short(), Box::new(move |pair| pair.setting == Some(setting))));
    }
    for source in Source::ALL {
        let is = move |pair: &Compared| pair.task == Some(Task::Generation) && pair.source == Some(source);
        parts.push((source.name(), Box::new(is)));
    }
    parts.push((Task::Generation.short(), Box::new(|pair| pair.task == Some(Task::Generation))));
    parts
}
