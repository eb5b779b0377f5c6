//! Figure 3: of the questions right under oracle, how many survive storage and retrieval.

use std::collections::BTreeSet;

use super::super::counts::{Stages, stages};
use super::super::settings::{ORACLE, PERFECT};
use super::super::terms::{COMPLEMENTARY, CONTRADICTORY, NUANCED};
use super::columns::{Column, DECIMALS, headed};
use super::systems::{Question, System};
use crate::benchmarks::{Bar, BarChart, Chart, Share, Table};
use crate::ground::sheet;
use crate::ground::words::counted;

const ROWS: [Column; 4] = [
    Column::All,
    Column::Relation(COMPLEMENTARY),
    Column::Relation(NUANCED),
    Column::Relation(CONTRADICTORY),
];

struct Traced<'s, 'a> {
    system: &'s System<'a>,
    stages: [Stages; 4],
    /// Unexplained losses of oracle to perfect, and perfect to the setting.
    losses: [[Loss; 2]; 4],
}

/// Losses that the memory cannot explain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Loss {
    /// Same answer before and after: judge noise.
    same_answer: usize,
    /// Different answers to the same prompt: sampling and judge noise.
    same_context: usize,
}

fn percent(count: usize, of: usize) -> String {
    Share { count, of }.percent(DECIMALS)
}

type Lost = fn(&Stages) -> usize;

const STEPS: [(&str, Lost); 2] = [
    ("O to P", |stages| stages.oracle - stages.preserved),
    ("P to D", |stages| stages.preserved - stages.retrieved),
];

type NumberOf = fn(&Stages) -> String;

const NUMBERS: [(&str, NumberOf); 8] = [
    ("of", |stages| stages.questions.to_string()),
    ("S_O", |stages| stages.oracle.to_string()),
    ("S_P", |stages| stages.preserved.to_string()),
    ("S_D", |stages| stages.retrieved.to_string()),
    ("P_preserve", |stages| percent(stages.preserved, stages.oracle)),
    ("P_retrieve", |stages| percent(stages.retrieved, stages.preserved)),
    ("right", |stages| stages.default.to_string()),
    ("outside S_P", |stages| stages.outside().to_string()),
];

/// Systems with both diagnoses, best first, four rows each.
pub(super) fn figure_3(systems: &[System<'_>]) -> Option<Table> {
    let (traced, mut notes) = traced(systems);
    let rows = traced.iter().flat_map(|one| (0..ROWS.len()).map(move |at| (one, at)));
    let mut table = headed(rows.collect(), |(one, _): (&Traced<'_, '_>, usize)| one.system)?
        .text("questions", |(_, at)| ROWS[at].name());
    for (name, number) in NUMBERS {
        table = table.number(name, |(one, at)| number(&one.stages[at]));
    }
    for (step, (name, lost)) in STEPS.into_iter().enumerate() {
        let head = |of: &str| sheet::Column::number(of).under(name);
        table = table
            .column(head("lost"), |(one, at)| lost(&one.stages[at]))
            .column(head("same answer"), |(one, at)| one.losses[at][step].same_answer)
            .column(head("same context"), |(one, at)| one.losses[at][step].same_context);
    }
    notes.insert(
        0,
        "S_O: right under oracle; S_P: of these, right under perfect retrieval; S_D: of these, right in the row's setting. \
         P_preserve = S_P / S_O and P_retrieve = S_D / S_P in percent; their product is no accuracy: questions right in the setting but \
         outside S_P have a column of their own"
            .to_owned(),
    );
    notes.insert(
        1,
        "of the questions that a step loses, those that it cannot have lost: same answer: the answers before and after are the same \
         word for word, so that the judge alone differs; same context: other answers, but by one run to the same sessions with the same \
         prompt, so that sampling and the judge alone differ"
            .to_owned(),
    );
    let title = "the waterfall of diagnosis (figure 3)".to_owned();
    Some(Table { key: "waterfall".to_owned(), title, sheet: table.sheet(notes) })
}

/// Also returns notes on the systems left out.
fn traced<'s, 'a>(systems: &'s [System<'a>]) -> (Vec<Traced<'s, 'a>>, Vec<String>) {
    let mut notes = Vec::new();
    let mut traced: Vec<Traced<'_, '_>> =
        systems.iter().filter(|s| s.is_system()).filter_map(|s| trace(s, systems, &mut notes)).collect();
    // Stable sort keeps ties in order.
    let accuracy = |one: &Traced<'_, '_>| {
        let [all, ..] = &one.stages;
        (all.default * 1_000_000).checked_div(all.questions)
    };
    traced.sort_by_key(|one| std::cmp::Reverse(accuracy(one)));
    (traced, notes)
}

/// Stacked bars: kept, lost per step, wrong under oracle.
pub(in super::super) fn chart(systems: &[System<'_>]) -> Option<Chart> {
    let (traced, _) = traced(systems);
    let heads =
        headed(traced.iter().map(|one| one.system).collect(), |system| system)?.sheet(Vec::new()).rows;
    let mut bars = Vec::new();
    for (Traced { stages, losses, .. }, heads) in traced.iter().zip(heads) {
        let group = heads.concat().join(", ");
        for ((column, stages), losses) in ROWS.iter().zip(stages).zip(losses) {
            let Stages { questions, oracle, preserved, retrieved, alone, .. } = *stages;
            let [by_memory, by_retrieval] = losses.map(|loss| loss.same_answer + loss.same_context);
            let wrong = questions - oracle - alone;
            bars.push(Bar {
                group: group.clone(),
                label: column.name().to_owned(),
                counts: vec![retrieved, preserved - retrieved, oracle - preserved, alone, wrong],
                note: format!(
                    "P_preserve {}, P_retrieve {}; noise {by_memory}+{by_retrieval}",
                    percent(preserved, oracle),
                    percent(retrieved, preserved)
                ),
            });
        }
    }
    let parts = ["kept", "lost in retrieval", "lost in memory", "right by the system alone", "wrong"];
    let caption = "Of all questions and of each relation: right under oracle, under perfect retrieval and in the setting (kept); right under \
                   oracle and perfect retrieval, wrong in the setting (lost in retrieval); right under oracle, wrong under perfect retrieval \
                   (lost in memory); wrong under oracle, right in the setting (right by the system alone). P_preserve = |S_P| / |S_O| and \
                   P_retrieve = |S_D| / |S_P| in percent. noise: questions lost in memory + lost in retrieval although the answer, or the \
                   sessions shown by the run and so its prompt, are the same before and after: the judge and sampling alone differ. Systems by accuracy.";
    Some(Chart::Bars(BarChart {
        key: "waterfall".to_owned(),
        title: "The waterfall of diagnosis".to_owned(),
        caption: caption.to_owned(),
        parts: parts.map(str::to_owned).to_vec(),
        bars,
    }))
}

/// `None` and a note if a diagnosis is missing or covers other questions. `oracle` may come from another run of the model.
fn trace<'s, 'a>(
    system: &'s System<'a>,
    all: &[System<'a>],
    notes: &mut Vec<String>,
) -> Option<Traced<'s, 'a>> {
    let fits = |other: &&System<'a>| other.group == system.group && other.repetition == system.repetition;
    let of = |setting: &'static str| all.iter().filter(fits).filter(move |other| other.setting == setting);
    let same = |other: &&System<'a>| (other.run, other.memory) == (system.run, system.memory);
    let perfect = of(PERFECT).find(same)?;
    let oracle = of(ORACLE).find(|other| other.run == system.run).or_else(|| of(ORACLE).next())?;
    for other in [oracle, perfect] {
        let unpaired = system.unpaired(other);
        if let Some((case, probe)) = unpaired.first() {
            let have = if unpaired.len() == 1 { "has" } else { "have" };
            notes.push(format!(
                "{} {}: no waterfall, since {} {have} a row here or under {} only, the first of them {case} {probe}",
                system.run,
                system.setting(),
                counted(unpaired.len(), "question"),
                other.setting()
            ));
            return None;
        }
    }
    let (in_oracle, in_perfect, by_default) = (oracle.right(), perfect.right(), system.right());
    let asked = ROWS.map(|column| system.questions(|outcome| column.holds(outcome)));
    let stages = asked.each_ref().map(|asked| stages(asked, &in_oracle, &in_perfect, &by_default));
    let losses = asked.each_ref().map(|asked| {
        let preserved: BTreeSet<Question<'_>> = in_oracle.intersection(&in_perfect).copied().collect();
        [
            loss((oracle, perfect), asked.iter().filter(|one| in_oracle.contains(*one))),
            loss((perfect, system), asked.iter().filter(|one| preserved.contains(*one))),
        ]
    });
    Some(Traced { system, stages, losses })
}

fn loss<'q, 'a: 'q>(
    (before, after): (&System<'a>, &System<'a>),
    held: impl Iterator<Item = &'q Question<'a>>,
) -> Loss {
    let mut loss = Loss::default();
    for question in held {
        let (Some(then), Some(now)) = (before.outcomes.get(question), after.outcomes.get(question)) else {
            continue;
        };
        match now.answer.zip(then.answer) {
            Some(_) if now.is_right() => {}
            Some((now, then)) if now == then => loss.same_answer += 1,
            Some(_) => {
                loss.same_context += usize::from(before.run == after.run && now.shown.same(then.shown));
            }
            None => {}
        }
    }
    loss
}
