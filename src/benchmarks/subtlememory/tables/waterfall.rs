//! The waterfall of figure 3: of what is right with the target sessions alone, what survives storing and finding.

use super::super::counts::{Stages, percent, stages};
use super::super::settings::{ORACLE, PERFECT};
use super::super::terms::{COMPLEMENTARY, CONTRADICTORY, NUANCED};
use super::columns::Column;
use super::heads::Heads;
use super::systems::System;
use crate::benchmarks::{Bar, Chart, Table};
use crate::ground::sheet::{self, Sheet, cell};

/// All questions, and the relations.
const ROWS: [Column; 4] = [
    Column::All,
    Column::Relation(COMPLEMENTARY),
    Column::Relation(NUANCED),
    Column::Relation(CONTRADICTORY),
];

/// A system with the settings that its stages are told by.
struct Traced<'s, 'a> {
    system: &'s System<'a>,
    /// One for each of [`ROWS`].
    stages: [Stages; 4],
}

/// The systems that have both diagnoses, the best first, four rows each.
pub(super) fn figure_3(systems: &[System<'_>]) -> Option<Table> {
    let (traced, mut notes) = traced(systems);
    let rows: Vec<&System<'_>> = traced.iter().map(|one| one.system).collect();
    let heads = Heads::of(&rows)?;
    let mut columns = heads.columns();
    columns.push(sheet::Column::text("questions"));
    let numbers = ["of", "S_O", "S_P", "S_D", "P_preserve", "P_retrieve", "right", "outside S_P"];
    columns.extend(numbers.map(sheet::Column::number));
    let mut sheet_rows = Vec::new();
    for Traced { system, stages } in &traced {
        for (column, stages) in ROWS.iter().zip(stages) {
            let Stages { questions, oracle, preserved, retrieved, default, .. } = *stages;
            let mut cells = heads.cells(system);
            cells.push(cell(column.name()));
            let counts = [questions, oracle, preserved, retrieved].map(|count| cell(count.to_string()));
            cells.extend(counts);
            cells.extend([cell(percent(preserved, oracle)), cell(percent(retrieved, preserved))]);
            cells.extend([default, stages.outside()].map(|count| cell(count.to_string())));
            sheet_rows.push(cells);
        }
    }
    notes.insert(
        0,
        "S_O: right under oracle; S_P: of these, right under perfect retrieval; S_D: of these, right in the row's setting. \
         P_preserve = S_P / S_O and P_retrieve = S_D / S_P in percent; their product is no accuracy: what is right in the setting but \
         outside S_P stands in the last column"
            .to_owned(),
    );
    let title = "the waterfall of diagnosis (figure 3)".to_owned();
    Some(Table { key: "waterfall".to_owned(), title, sheet: Sheet { columns, rows: sheet_rows, notes } })
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
    for Traced { system, stages } in &traced {
        let group = heads.cells(system).into_iter().flatten().collect::<Vec<_>>().join(", ");
        for (column, stages) in ROWS.iter().zip(stages) {
            let Stages { questions, oracle, preserved, retrieved, alone, .. } = *stages;
            let wrong = questions - oracle - alone;
            bars.push(Bar {
                group: group.clone(),
                label: column.name().to_owned(),
                counts: vec![retrieved, preserved - retrieved, oracle - preserved, alone, wrong],
                note: format!(
                    "P_preserve {}, P_retrieve {}",
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
                   P_retrieve = |S_D| / |S_P| in percent. Systems by accuracy.";
    Some(Chart {
        key: "waterfall".to_owned(),
        title: "The waterfall of diagnosis".to_owned(),
        caption: caption.to_owned(),
        parts: parts.map(str::to_owned).to_vec(),
        bars,
    })
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
    let perfect = of(PERFECT).find(|other| other.run == system.run)?;
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
    let stages = ROWS
        .map(|column| stages(&super::paired::asked(system, column), &in_oracle, &in_perfect, &by_default));
    Some(Traced { system, stages })
}
