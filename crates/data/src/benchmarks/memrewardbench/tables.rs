//! The paper's tables: percentages of pairs with the paper's decimals, ties rounded up, pair counts below. Means over settings pool pairs.
//! The paper's tables contradict each other in places; tests keep the printed numbers.
use std::collections::{BTreeMap, BTreeSet};

use super::counts::{Compared, Consistency, Counted};
use super::orders::{Order, Variant};
use super::terms::{Length, Setting, Source, Task};
use crate::benchmarks::{CutCount, Graded, Share, Table};
use crate::ground::numbers::p_value;
use crate::ground::sheet::{Column, cell};
use crate::statistics::mcnemar::mcnemar;

const FINE: u32 = 2;
const COARSE: u32 = 1;

const CONDITION: &str = "condition";
const VARIANT: &str = "variant";
const ORDER: &str = "order";
const PAIRS_OF: &str = "pairs of";
const OVERLONG: &str = "does not fit";
const REPEATS: &str = "each repetition has rows of its own; `palimpsest table --repeats` gives their mean and standard deviation";

type Row = Vec<Vec<String>>;

pub(super) fn all(graded: &[Graded<'_>], counted: &[Counted<'_>]) -> Vec<Table> {
    let tables = [
        accuracy,
        lengths,
        accuracy_by_length,
        consistency_by_length,
        patterns,
        consistency,
        orders,
        criteria,
        tags,
        density,
    ];
    let mut tables: Vec<Table> = tables.into_iter().map(|table| table(counted)).collect();
    tables.retain(|table| !table.sheet.rows.is_empty());
    mark_cuts(&mut tables, graded);
    if counted.iter().any(|counted| counted.repetition > 0) {
        tables.iter_mut().for_each(|table| table.sheet.notes.push(REPEATS.to_owned()));
    }
    tables
}

fn mark_cuts(tables: &mut [Table], graded: &[Graded<'_>]) {
    let mut cuts: BTreeMap<(&str, String), CutCount> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for row in graded.iter().filter(|row| row.answered) {
        // Count each answer once, not once per judge.
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

fn table(
    (key, title): (&str, &str),
    texts: &[&str],
    numbers: impl IntoIterator<Item = Column>,
    rows: Vec<Row>,
    notes: &[&str],
) -> Table {
    let texts = ["run", "judge"].iter().chain(texts).copied().map(Column::text);
    let columns = texts.chain(numbers).collect();
    Table::new(key, title, columns, rows, notes.iter().map(|&note| note.to_owned()).collect())
}

fn row(counted: &Counted<'_>, texts: &[&str], numbers: impl IntoIterator<Item = Vec<String>>) -> Row {
    let mut row = vec![cell(counted.run), cell(counted.judge.unwrap_or("none"))];
    let names = texts.iter().enumerate().map(|(at, text)| match at {
        0 => repeated(text, counted.repetition),
        _ => (*text).to_owned(),
    });
    row.extend(names.map(cell));
    row.extend(numbers);
    row
}

/// `random`, then `random-repeat-2`, like run conditions.
fn repeated(name: &str, repetition: u32) -> String {
    if repetition == 0 { name.to_owned() } else { format!("{name}-repeat-{}", repetition + 1) }
}

fn number(share: Share, decimals: u32) -> Vec<String> {
    match share.of {
        0 => cell("-"),
        _ => vec![share.percent(decimals), format!("{}/{}", share.count, share.of)],
    }
}

fn count(count: usize) -> Vec<String> {
    cell(count.to_string())
}

fn in_group(group: &str, name: &str) -> Column {
    Column { group: group.to_owned(), ..Column::number(name) }
}

fn numbers<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = Column> {
    names.into_iter().map(Column::number).collect::<Vec<_>>().into_iter()
}

pub(super) type Wanted = Box<dyn Fn(&Compared<'_>) -> bool>;

pub(super) fn of_setting(setting: Setting) -> Wanted {
    Box::new(move |pair| pair.setting == Some(setting))
}

pub(super) fn of_task(task: Task) -> Wanted {
    Box::new(move |pair| pair.task == Some(task))
}

fn of_settings(settings: &'static [Setting]) -> Wanted {
    Box::new(move |pair| pair.setting.is_some_and(|setting| settings.contains(&setting)))
}

fn every() -> Wanted {
    Box::new(|_| true)
}

pub(super) fn settings() -> Vec<(&'static str, Wanted)> {
    Setting::ALL.map(|setting| (setting.short(), of_setting(setting))).into()
}

pub(super) fn tasks() -> Vec<(&'static str, Wanted)> {
    let tasks = Task::ALL.map(|task| (task.short(), of_task(task)));
    tasks.into_iter().chain([("all", every())]).collect()
}

pub(super) fn at(length: Length, wanted: &Wanted) -> impl Fn(&Compared<'_>) -> bool {
    move |pair| pair.length == Some(length) && wanted(pair)
}

pub(super) fn each_asked<'a>(
    counted: &'a [Counted<'a>],
) -> impl Iterator<Item = (&'a Counted<'a>, (Order, Variant), String)> {
    counted.iter().flat_map(|counted| {
        let name = |(order, variant): (Order, Variant)| format!("{}{}", order.name(), variant.name());
        counted.asked().into_iter().map(move |asked| (counted, asked, name(asked)))
    })
}

pub(super) fn both_orders<'a>(
    counted: &'a [Counted<'a>],
) -> impl Iterator<Item = (&'a Counted<'a>, Variant, &'static str)> {
    counted.iter().flat_map(|counted| {
        let asked = |&(variant, _): &(Variant, _)| counted.consistency(variant, |_| true).is_some();
        let variants = Variant::ALL.into_iter().filter(asked);
        variants.map(move |(variant, name)| (counted, variant, name.strip_prefix('-').unwrap_or("plain")))
    })
}

/// Columns of tables 3 and 7: settings and mean per task, then the overall mean.
fn by_setting() -> Vec<(Column, Wanted)> {
    let mut columns: Vec<(Column, Wanted)> = Vec::new();
    for task in Task::ALL {
        for setting in Setting::ALL.into_iter().filter(|setting| setting.task() == task) {
            columns.push((in_group(task.short(), setting.short()), of_setting(setting)));
        }
        columns.push((in_group(task.short(), "avg"), of_task(task)));
    }
    columns.push((Column::number("Avg"), every()));
    columns
}

/// Accuracy per column and overlong prompts, one row per order and variant.
fn accuracies(
    names: (&str, &str),
    columns: Vec<(Column, Wanted)>,
    decimals: u32,
    counted: &[Counted<'_>],
    notes: &[&str],
) -> Table {
    let (heads, wanted): (Vec<Column>, Vec<Wanted>) = columns.into_iter().unzip();
    let any = |pair: &Compared<'_>| wanted.iter().any(|wanted| wanted(pair));
    let rows = each_asked(counted).map(|(counted, asked, name)| {
        let numbers = wanted.iter().map(|wanted| number(counted.accuracy(asked, wanted), decimals));
        row(counted, &[&name], numbers.chain([count(counted.overlong(asked, any))]))
    });
    table(names, &[CONDITION], heads.into_iter().chain(numbers([OVERLONG])), rows.collect(), notes)
}

fn accuracy(counted: &[Counted<'_>]) -> Table {
    let note =
        "an unreadable verdict counts as wrong, and so does a pair whose prompt does not fit the context";
    accuracies(("accuracy", "Accuracy by setting (table 3)"), by_setting(), FINE, counted, &[note])
}

fn lengths(counted: &[Counted<'_>]) -> Table {
    let of_length = |length: Length| -> (Column, Wanted) {
        (Column::number(length.name()), Box::new(move |pair| pair.length == Some(length)))
    };
    let columns = Length::ALL.map(of_length).into_iter().chain([(Column::number("Avg"), every())]);
    accuracies(("lengths", "Accuracy by length (table 6)"), columns.collect(), COARSE, counted, &[])
}

fn patterns(counted: &[Counted<'_>]) -> Table {
    const PATTERNS: [(&str, &[Setting]); 2] = [
        ("sequential", &[Setting::SequentialNoise, Setting::Sequential]),
        ("parallel", &[Setting::MixedNoise, Setting::Parallel]),
    ];
    let mut columns = Vec::new();
    for (pattern, settings) in PATTERNS {
        columns.push((in_group(pattern, "LR"), of_setting(settings[0])));
        columns.push((in_group(pattern, "LG"), of_setting(settings[1])));
        columns.push((in_group(pattern, "avg"), of_settings(settings)));
    }
    let title = "Accuracy by pattern of memory management (table 5)";
    let note = "LR is the Noise setting alone, as in the paper; avg weighs pairs";
    accuracies(("patterns", title), columns, COARSE, counted, &[note])
}

fn length_columns() -> impl Iterator<Item = Column> {
    numbers(Length::ALL.map(Length::name).into_iter().chain(["Avg", OVERLONG]))
}

fn accuracy_by_length(counted: &[Counted<'_>]) -> Table {
    let mut rows = Vec::new();
    for (counted, asked, name) in each_asked(counted).filter(|(_, asked, _)| asked.1 == Variant::Plain) {
        for (part, wanted) in settings().into_iter().chain(tasks()) {
            let all = counted.accuracy(asked, &wanted);
            if all.of > 0 {
                let lengths = Length::ALL.map(|length| counted.accuracy(asked, at(length, &wanted)));
                let numbers = lengths.into_iter().chain([all]).map(|share| number(share, COARSE));
                let overlong = count(counted.overlong(asked, &wanted));
                rows.push(row(counted, &[&name, part], numbers.chain([overlong])));
            }
        }
    }
    let names = ("accuracy-lengths", "Accuracy by setting and length (figures 6 and 19)");
    table(names, &[CONDITION, PAIRS_OF], length_columns(), rows, &[])
}

fn consistency_by_length(counted: &[Counted<'_>]) -> Table {
    const KINDS: [(&str, OfBoth); 2] =
        [("stable", |found| found.stable), ("stable_right", |found| found.stable_right)];
    let mut rows = Vec::new();
    for (counted, variant, name) in both_orders(counted).filter(|(_, variant, _)| *variant == Variant::Plain)
    {
        for (part, wanted) in settings().into_iter().chain(tasks()) {
            let Some(all) = counted.consistency(variant, &wanted) else { continue };
            let lengths = Length::ALL
                .map(|length| counted.consistency(variant, at(length, &wanted)).unwrap_or_default());
            for (kind, of) in KINDS {
                let numbers = lengths.iter().chain([&all]).map(|found| number(of(found), COARSE));
                rows.push(row(counted, &[name, part, kind], numbers.chain([count(all.overlong)])));
            }
        }
    }
    let names = ("consistency-lengths", "Consistency by setting and length (figures 6 and 19)");
    let note = "stable: the same trajectory preferred in both orders; stable_right: the chosen one in both, the paper's table 7";
    table(names, &[VARIANT, PAIRS_OF, "measure"], length_columns(), rows, &[note])
}

type OfBoth = fn(&Consistency) -> Share;

/// Shares per column and overlong pairs, one row per variant with both orders.
fn of_both_orders(
    names: (&str, &str),
    columns: Vec<(Column, Wanted, OfBoth)>,
    decimals: u32,
    counted: &[Counted<'_>],
    note: &str,
) -> Table {
    let any = |pair: &Compared<'_>| columns.iter().any(|(_, wanted, _)| wanted(pair));
    let rows = both_orders(counted).map(|(counted, variant, name)| {
        let found =
            |wanted: &dyn Fn(&Compared<'_>) -> bool| counted.consistency(variant, wanted).unwrap_or_default();
        let numbers = columns.iter().map(|(_, wanted, of)| number(of(&found(wanted)), decimals));
        row(counted, &[name], numbers.chain([count(found(&any).overlong)]))
    });
    let rows = rows.collect();
    let heads = columns.iter().map(|(column, ..)| column.clone()).chain(numbers([OVERLONG]));
    table(names, &[VARIANT], heads, rows, &[note])
}

fn consistency(counted: &[Counted<'_>]) -> Table {
    let columns = by_setting().into_iter();
    let columns = columns.map(|(column, wanted)| (column, wanted, (|found| found.stable_right) as OfBoth));
    let note = "the chosen trajectory preferred in both orders";
    of_both_orders(("consistency", "Stable and right (table 7)"), columns.collect(), FINE, counted, note)
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
    let columns = CRITERIA.into_iter().flat_map(|(criterion, settings)| {
        SHARES.map(|(name, of)| (in_group(criterion, name), of_settings(settings), of))
    });
    let title = "Pairs that differ in process and in outcome (figure 4)";
    let note = "process: both results are right (Noise, Mem); outcome: the chosen one alone is (Drop, Out; appendix B.1)";
    of_both_orders(("criteria", title), columns.collect(), COARSE, counted, note)
}

fn orders(counted: &[Counted<'_>]) -> Table {
    const SHARES: [(&str, OfBoth); 7] = [
        ("acc_random", |found| found.random),
        ("acc_chosen_first", |found| found.chosen_first),
        ("acc_rejected_first", |found| found.rejected_first),
        ("stable", |found| found.stable),
        ("stable_right", |found| found.stable_right),
        ("first_position", |found| found.first_position),
        ("unparsed", |found| found.unparsed),
    ];
    let mut rows = Vec::new();
    for (counted, variant, name) in both_orders(counted) {
        for (task, wanted) in tasks() {
            let Some(found) = counted.consistency(variant, wanted) else { continue };
            let numbers = SHARES.iter().map(|(_, of)| number(of(&found), COARSE));
            let p = cell(p_value(mcnemar(found.only_chosen_first, found.only_rejected_first)));
            let holds = cell(if found.holds() { "yes" } else { "NO" });
            rows.push(row(counted, &[name, task], numbers.chain([count(found.overlong), p, holds])));
        }
    }
    let heads = numbers(SHARES.map(|(name, _)| name).into_iter().chain([OVERLONG, "p"]));
    let notes = [
        "stable: the same trajectory preferred in both orders; first_position: the first one preferred, of what could be read; does not \
         fit: pairs whose prompt is longer than the context in either order; p: exact McNemar test of both orders",
        "holds: stable_right is at most the lesser accuracy, and stable at most what the difference of both leaves",
    ];
    let names = ("orders", "Both orders of each pair (table 9, figure 4)");
    table(names, &[VARIANT, PAIRS_OF], heads.chain([Column::text("holds")]), rows, &notes)
}

fn tags(counted: &[Counted<'_>]) -> Table {
    let mut rows = Vec::new();
    for counted in counted {
        for order in Order::ALL {
            let tagged = |pair: &Compared<'_>| pair.setting.is_some_and(Setting::has_tags);
            let both = [(order, Variant::Plain), (order, Variant::Untagged)];
            let [with, without] = both.map(|asked| counted.accuracy(asked, tagged));
            if with.of == 0 || without.of == 0 {
                continue;
            }
            // Unweighted mean, as in the paper.
            let (sum, of) = (with.count * without.of + without.count * with.of, 2 * with.of * without.of);
            let mean = cell(Share { count: sum, of }.percent(FINE));
            let overlong = both.iter().map(|asked| counted.overlong(*asked, tagged)).sum();
            let numbers = [number(with, FINE), number(without, FINE), mean, count(overlong)];
            rows.push(row(counted, &[order.name()], numbers));
        }
    }
    let heads = numbers(["with", "without", "avg", OVERLONG]);
    let note = "pairs of A-Mem alone, with and without the tags of their notes";
    table(("tags", "Accuracy with and without tags (table 8)"), &[ORDER], heads, rows, &[note])
}

fn density(counted: &[Counted<'_>]) -> Table {
    let mut rows = Vec::new();
    for counted in counted {
        for order in Order::ALL {
            for (name, wanted) in of_generation() {
                let each = DENSITIES.map(|percent| (order, Variant::Density(percent)));
                let shares = each.map(|asked| counted.accuracy(asked, &wanted));
                if shares.iter().any(|share| share.of > 0) {
                    let overlong = each.map(|asked| counted.overlong(asked, &wanted)).iter().sum();
                    let numbers = shares.into_iter().map(|share| number(share, COARSE));
                    rows.push(row(counted, &[order.name(), name], numbers.chain([count(overlong)])));
                }
            }
        }
    }
    let heads = DENSITIES.map(|percent| in_group("constraints", &format!("{percent}%")));
    let note = "pairs of long-form generation alone, whose questions keep so much of their constraints: by pattern of memory, by the data \
                set that the question comes from, and all of them (LG)";
    let names = ("density", "Accuracy by density of constraints (figures 5, 20 and 21)");
    table(names, &[ORDER, PAIRS_OF], heads.into_iter().chain(numbers([OVERLONG])), rows, &[note])
}

pub(super) const DENSITIES: [u32; 5] = [0, 25, 50, 75, 100];

pub(super) fn of_generation() -> Vec<(&'static str, Wanted)> {
    let settings = [Setting::Sequential, Setting::Parallel];
    let mut parts = Vec::from(settings.map(|setting| (setting.short(), of_setting(setting))));
    for source in Source::ALL {
        let is =
            move |pair: &Compared<'_>| pair.task == Some(Task::Generation) && pair.source == Some(source);
        parts.push((source.name(), Box::new(is)));
    }
    parts.push((Task::Generation.short(), of_task(Task::Generation)));
    parts
}
