//! The waterfall of figure 3: of what is right with the target sessions alone, what survives storing and finding.

use std::collections::BTreeSet;

use super::super::counts::{Stages, stages};
use super::super::settings::{ORACLE, PERFECT};
use super::super::terms::{COMPLEMENTARY, CONTRADICTORY, NUANCED};
use super::columns::{Column, DECIMALS, Heads};
use super::systems::{Question, System};
use crate::benchmarks::{Bar, BarChart, Chart, Share, Table};
use crate::ground::sheet::{self, cell};

const ROWS: [Column; 4] = [
    Column::All,
    Column::Relation(COMPLEMENTARY),
    Column::Relation(NUANCED),
    Column::Relation(CONTRADICTORY),
];

/// A system with the settings that its stages are told by.
struct Traced<'s, 'a> {
    system: &'s System<'a>,
    stages: [Stages; 4],
    /// The same, of the steps from oracle to perfect and from there to the system's setting.
    losses: [[Loss; 2]; 4],
}

/// Questions that one step loses although it changed nothing that a memory could answer for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Loss {
    /// The answer is the same word for word before and after: the judge alone differs.
    same_answer: usize,
    /// The answers differ, but the same model was shown the same segments with the same prompt: sampling and the judge differ.
    same_context: usize,
}

fn percent(count: usize, of: usize) -> String {
    Share { count, of }.percent(DECIMALS)
}

type Lost = fn(&Stages) -> usize;

/// The steps by name, with how many questions each loses.
const STEPS: [(&str, Lost); 2] = [
    ("O to P", |stages| stages.oracle - stages.preserved),
    ("P to D", |stages| stages.preserved - stages.retrieved),
];

/// The systems that have both diagnoses, the best first, four rows each.
pub(super) fn figure_3(systems: &[System<'_>]) -> Option<Table> {
    let (traced, mut notes) = traced(systems);
    let rows: Vec<&System<'_>> = traced.iter().map(|one| one.system).collect();
    let heads = Heads::of(&rows)?;
    let mut columns = heads.columns();
    columns.push(sheet::Column::text("questions"));
    let numbers = ["of", "S_O", "S_P", "S_D", "P_preserve", "P_retrieve", "right", "outside S_P"];
    columns.extend(numbers.map(sheet::Column::number));
    for (step, _) in STEPS {
        let of_step = |name: &str| sheet::Column { group: step.to_owned(), ..sheet::Column::number(name) };
        columns.extend(["lost", "same answer", "same context"].map(of_step));
    }
    let mut sheet_rows = Vec::new();
    for Traced { system, stages, losses } in &traced {
        for ((column, stages), losses) in ROWS.iter().zip(stages).zip(losses) {
            let Stages { questions, oracle, preserved, retrieved, default, .. } = *stages;
            let mut cells = heads.cells(system);
            cells.push(cell(column.name()));
            let counts = [questions, oracle, preserved, retrieved].map(|count| cell(count.to_string()));
            cells.extend(counts);
            cells.extend([cell(percent(preserved, oracle)), cell(percent(retrieved, preserved))]);
            cells.extend([default, stages.outside()].map(|count| cell(count.to_string())));
            for (loss, (_, lost)) in losses.iter().zip(STEPS) {
                let counts = [lost(stages), loss.same_answer, loss.same_context];
                cells.extend(counts.map(|count| cell(count.to_string())));
            }
            sheet_rows.push(cells);
        }
    }
    notes.insert(
        0,
        "S_O: right under oracle; S_P: of these, right under perfect retrieval; S_D: of these, right in the row's setting. \
         P_preserve = S_P / S_O and P_retrieve = S_D / S_P in percent; their product is no accuracy: what is right in the setting but \
         outside S_P has a column of its own"
            .to_owned(),
    );
    notes.insert(
        1,
        "of the questions that a step loses, those that it cannot have lost: same answer: the answers before and after are the same \
         word for word, so that the judge alone differs; same context: other answers, but by one run to the same sessions with the same \
         prompt, so that sampling and the judge alone differ"
            .to_owned(),
    );
    Some(Table::new("waterfall", "the waterfall of diagnosis (figure 3)", columns, sheet_rows, notes))
}

/// The systems that have both diagnoses, the best first, and why others have not.
fn traced<'s, 'a>(systems: &'s [System<'a>]) -> (Vec<Traced<'s, 'a>>, Vec<String>) {
    let mut notes = Vec::new();
    let mut traced: Vec<Traced<'_, '_>> =
        systems.iter().filter(|s| s.is_system()).filter_map(|s| trace(s, systems, &mut notes)).collect();
    // The sort is stable: equally good ones stay in their order.
    let accuracy = |one: &Traced<'_, '_>| {
        let [all, ..] = &one.stages;
        (all.default * 1_000_000).checked_div(all.questions)
    };
    traced.sort_by_key(|one| std::cmp::Reverse(accuracy(one)));
    (traced, notes)
}

/// The same as a picture: of each bar what is kept, where the rest of S_O is lost, and what was wrong under oracle.
pub(in super::super) fn chart(systems: &[System<'_>]) -> Option<Chart> {
    let (traced, _) = traced(systems);
    let rows: Vec<&System<'_>> = traced.iter().map(|one| one.system).collect();
    let heads = Heads::of(&rows)?;
    let mut bars = Vec::new();
    for Traced { system, stages, losses } in &traced {
        let group = heads.cells(system).into_iter().flatten().collect::<Vec<_>>().join(", ");
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

/// The stages of a system; absent, with a note, where a diagnosis is missing or on other questions.
///
/// Perfect retrieval is the run's own: it is the memory's. The oracle knows no memory: where the run has none, any run of the same model
/// will do.
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
            notes.push(format!(
                "{} {}: no waterfall, since {} questions have a row here or under {} only, the first of them {case} {probe}",
                system.run,
                system.setting(),
                unpaired.len(),
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

/// Of the questions `held` before a step, those that it loses without having changed what a memory decides.
fn loss<'q, 'a: 'q>(
    (before, after): (&System<'a>, &System<'a>),
    held: impl Iterator<Item = &'q Question<'a>>,
) -> Loss {
    let mut loss = Loss::default();
    for question in held {
        let (Some(then), Some(now)) = (before.outcomes.get(question), after.outcomes.get(question)) else {
            continue;
        };
        if now.right {
            continue;
        }
        if now.same_answer(then) {
            loss.same_answer += 1;
        } else if before.run == after.run && now.same_context(then) {
            loss.same_context += 1;
        }
    }
    loss
}
