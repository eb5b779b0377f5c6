//! Paired differences: plugin versus standalone (table 3), oracle versus the best system (table 12).

use super::super::counts::{discordant, points};
use super::super::settings::ORACLE;
use super::columns::{Column, DECIMALS, columns_of, grouped, headed};
use super::systems::{Group, System};
use crate::benchmarks::{Graded, Table};
use crate::ground::numbers::p_value;
use crate::ground::sheet::Columns;
use crate::ground::words::counted;
use crate::statistics::Interval;
use crate::statistics::bounded::{Intervals, of_units};
use crate::statistics::holm::holm;
use crate::statistics::mcnemar::mcnemar;

/// Words in run names that mark a plugged-in memory.
const PLUGIN: [&str; 3] = ["plugin", "openclaw", "metaclaw"];
const STANDALONE: &str = "standalone";

/// Table 3: effect of integration. Without plugin runs, differences to the first run.
pub(super) fn table_3(systems: &[System<'_>]) -> Option<Table> {
    let own: Vec<&System<'_>> = systems.iter().filter(|s| s.is_system() && s.repetition == 0).collect();
    let comparable = |a: &System<'_>, b: &System<'_>| {
        a.group == b.group
            && a.setting == b.setting
            && (a.run, a.memory) != (b.run, b.memory)
            && a.unpaired(b).is_empty()
    };
    let mut pairs: Vec<(&System<'_>, &System<'_>)> = Vec::new();
    for &plugin in &own {
        let Some(memory) = memory_of_plugin(plugin.named()) else { continue };
        let standalone =
            own.iter().find(|s| comparable(plugin, s) && memory_alone(s.named()) == Some(memory.clone()));
        pairs.extend(standalone.map(|standalone| (plugin, *standalone)));
    }
    let told = !pairs.is_empty();
    if !told {
        for (at, &system) in own.iter().enumerate() {
            let first = own.iter().take(at).find(|first| comparable(system, first));
            pairs.extend(first.map(|first| (system, *first)));
        }
    }
    let rows: Vec<&System<'_>> = pairs.iter().map(|(system, _)| *system).collect();
    let mut table = headed(pairs, |(system, _)| system)?.text("less", |(_, other)| other.named());
    for column in columns_of(&rows) {
        table = table.number(column.name(), |(system, other)| {
            let both = column.share(system).share().zip(column.share(other).share());
            both.map_or_else(|| "-".to_owned(), |(a, b)| points(a - b))
        });
    }
    let note = if told {
        "percentage points: the memory plugged into an agent less the same memory standing alone, as the runs' names tell"
    } else {
        "percentage points between runs; no run's name tells a plugin (`NAME-openclaw`, `NAME-plugin`) from its standalone system \
         (`NAME`, `NAME-standalone`)"
    };
    let notes = [note.to_owned()].into_iter().chain(first_alone(systems)).collect();
    let title = "integration delta (table 3)".to_owned();
    Some(Table { key: "integration".to_owned(), title, sheet: table.sheet(notes) })
}

fn first_alone(systems: &[System<'_>]) -> Option<String> {
    let repeated = systems.iter().any(|system| system.repetition > 0);
    repeated.then(|| "the first repetition of each setting is compared; the others are left out".to_owned())
}

fn words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

fn memory_of_plugin(run: &str) -> Option<Vec<String>> {
    let all = words(run);
    let memory: Vec<String> = all.iter().filter(|word| !PLUGIN.contains(&word.as_str())).cloned().collect();
    (memory.len() < all.len() && !memory.is_empty()).then_some(memory)
}

fn memory_alone(run: &str) -> Option<Vec<String>> {
    let all = words(run);
    let plugged = all.iter().any(|word| PLUGIN.contains(&word.as_str()));
    (!plugged).then(|| all.into_iter().filter(|word| word != STANDALONE).collect())
}

/// Table 12: oracle versus the best memory system per answer model. Holm families: answer models with the same wording, judge and data.
pub(super) fn table_12(systems: &[System<'_>], intervals: Intervals) -> Option<Table> {
    let mut pairs: Vec<(&System<'_>, &System<'_>)> = Vec::new();
    let mut notes = Vec::new();
    for oracle in systems.iter().filter(|s| s.setting == ORACLE && s.repetition == 0) {
        if pairs.iter().any(|(before, _)| before.group == oracle.group) {
            continue;
        }
        let of_group =
            systems.iter().filter(|s| s.group == oracle.group && s.is_memory() && s.repetition == 0);
        let right = |system: &System<'_>| Column::All.share(system).share().unwrap_or(0.0);
        // Ties go to the first.
        let best = of_group.reduce(|best, other| if right(other) > right(best) { other } else { best });
        let Some(best) = best else { continue };
        let unpaired = oracle.unpaired(best);
        if let Some((case, probe)) = unpaired.first() {
            let have = if unpaired.len() == 1 { "has" } else { "have" };
            notes.push(format!(
                "{} {} against {} {}: no test, since {} {have} a row on one side only, the first of them {case} {probe}; \
                 run both on the same questions",
                oracle.run,
                oracle.setting(),
                best.run,
                best.setting(),
                counted(unpaired.len(), "question")
            ));
            continue;
        }
        pairs.push((oracle, best));
    }
    if pairs.is_empty() && notes.is_empty() {
        return None;
    }
    let tests: Vec<Test> = pairs.iter().map(|(oracle, best)| Test::of(oracle, best, intervals)).collect();
    let of_pairs: Vec<Group<'_>> = pairs.iter().map(|(oracle, _)| oracle.group).collect();
    let p_values: Vec<f64> = tests.iter().map(|test| test.p).collect();
    let adjusted = within_families(&of_pairs, &p_values);
    let oracles: Vec<&System<'_>> = pairs.iter().map(|(oracle, _)| *oracle).collect();
    let rows = pairs.iter().zip(&tests).zip(adjusted).map(|((pair, test), holm)| (pair, test, holm));
    let table = Columns::of(rows)
        .text("model", |((oracle, _), ..)| oracle.group.model)
        .text("oracle of", |((oracle, _), ..)| oracle.run)
        .text("best system", |((_, best), ..)| best.run)
        .text("setting", |((_, best), ..)| best.setting());
    let share = |system: &System<'_>| Column::All.share(system).percent(DECIMALS);
    let interval = |test: &Test| {
        let shown = |Interval { low, high }: Interval| format!("[{}, {}]", points(low), points(high));
        test.interval.map_or_else(String::new, shown)
    };
    let table = grouped(table, &oracles, |((oracle, _), ..)| oracle)
        .number("questions", |(_, test, _)| test.n)
        .number("oracle", |((oracle, _), ..)| share(oracle))
        .number("best", |((_, best), ..)| share(best))
        .number("b", |(_, test, _)| test.b)
        .number("c", |(_, test, _)| test.c)
        .number("difference", |(_, test, _)| vec![points(test.difference), interval(test)])
        .number("p", |(_, test, _)| p_value(test.p))
        .number("p (Holm)", |(.., holm)| p_value(holm));
    let method = match intervals {
        Intervals::Adjusted => "",
        Intervals::Paper => " (the paper's paired percentile bootstrap)",
    };
    notes.insert(
        0,
        format!(
            "b: only the oracle is right, c: only the system; exact McNemar test, two-sided, with Holm's correction over the answer \
             models of one wording and judge; difference (b - c) / questions in points with its 95% interval within the relations{method}; \
             the best system is a memory: neither oracle nor perfect nor a full history"
        ),
    );
    notes.extend(first_alone(systems));
    let title = "oracle against the best memory system of each answer model (table 12)".to_owned();
    Some(Table { key: "oracle-gap".to_owned(), title, sheet: table.sheet(notes) })
}

/// Holm's correction within groups that differ only in the answer model.
fn within_families(groups: &[Group<'_>], p_values: &[f64]) -> Vec<f64> {
    let family = |at: &usize| groups.get(*at).map(|group| Group { model: "", ..*group });
    let mut adjusted = p_values.to_vec();
    for at in 0..p_values.len() {
        let own: Vec<usize> = (0..p_values.len()).filter(|other| family(other) == family(&at)).collect();
        let of_family: Vec<f64> = own.iter().filter_map(|other| p_values.get(*other).copied()).collect();
        let place = own.iter().position(|other| *other == at);
        if let (Some(place), Some(p)) = (place, adjusted.get_mut(at)) {
            *p = holm(&of_family).get(place).copied().unwrap_or(*p);
        }
    }
    adjusted
}

struct Test {
    n: usize,
    b: usize,
    c: usize,
    difference: f64,
    interval: Option<Interval>,
    p: f64,
}

impl Test {
    fn of(oracle: &System<'_>, best: &System<'_>, intervals: Intervals) -> Self {
        let (b, c) = discordant(&oracle.right(), &best.right());
        let n = oracle.outcomes.len();
        let number = |right: bool| f64::from(u8::from(right));
        let differences = oracle.outcomes.iter().map(|(question, outcome)| {
            let other = best.outcomes.get(question).is_some_and(Graded::is_right);
            (outcome, number(outcome.is_right()) - number(other))
        });
        let strata = Column::All.strata(differences);
        let interval = of_units(&strata, (-1.0, 1.0), intervals);
        let difference = (b as f64 - c as f64) / n.max(1) as f64;
        Test { n, b, c, difference, interval, p: mcnemar(b, c) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_runs_tell_a_plugin_from_its_standalone_system() {
        let of = |name: &str| memory_of_plugin(name).map(|words| words.join(" "));
        let alone = |name: &str| memory_alone(name).map(|words| words.join(" "));
        assert_eq!(of("Mem0+OpenClaw").as_deref(), Some("mem0"));
        assert_eq!(of("mem0-plugin-gpt-5.4").as_deref(), Some("mem0 gpt 5.4"));
        assert_eq!(alone("mem0-standalone-gpt-5.4").as_deref(), Some("mem0 gpt 5.4"));
        assert_eq!(alone("mem0").as_deref(), Some("mem0"));
        assert_eq!((of("mem0"), of("openclaw"), alone("mem0_openclaw")), (None, None, None));
    }
}
