//! Judges what memories say: does a memory whose sources hold a piece of evidence state it (level 2 of table 3)?
//!
//! Each distinct text of a memory, as known from the events, is judged once per fact. Rows go to `stated.jsonl` of the system and case. The
//! judge sees only the text and the case's note on the evidence.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::questions::{Question, ask};
use super::{Conduct, Instructions, Judge, Reasons};
use crate::memory::system::case_rows::{MemoryRows, STATED};
use crate::memory::system::protocol::{Op, Source};
use crate::memory::system::record::case_folder;
use crate::memory::system::rows::StatedRow;
use crate::runs::error::RunError;
use crate::runs::plan::{PlannedCase, PlannedProbe};
use crate::runs::runner::Summary;
use palimpsest_data::benchmarks::{Benchmark, Said};
use palimpsest_data::case::Notes;
use palimpsest_data::ground::folder;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog};

const WORDS: [&str; 2] = ["states", "other"];

type Asked = (String, StatedRow);

pub fn memory_instructions(reasons: Reasons) -> Instructions {
    Instructions::of_choice("memories", include_str!("memory.j2"), &WORDS, reasons)
}

pub fn judge_memories(
    dir: &Path,
    (plan, benchmark): (&[PlannedCase], &Benchmark),
    judge: &mut Judge<'_>,
    instructions: &Instructions,
    stop: &AtomicBool,
    conduct: impl Into<Conduct>,
) -> Result<Summary, RunError> {
    let conduct = conduct.into();
    let name = judge.name();
    let mut summary = Summary::default();
    let mut wanted = Vec::new();
    for system in systems(dir)? {
        for case in plan {
            let Some(rows) = MemoryRows::read(dir, &system, &case.case)? else { continue };
            let folder = case_folder(&system, &case.case);
            let questions = questions((&system, &folder), case, benchmark, &rows, &name);
            summary.planned += questions.len();
            let there = |row: &StatedRow| {
                let asked = |row: &StatedRow| StatedRow {
                    states: false,
                    refused_parameters: Vec::new(),
                    ..row.clone()
                };
                let same = |other: &StatedRow| asked(other) == asked(row);
                rows.stated.iter().flatten().any(same)
            };
            wanted.extend(questions.into_iter().filter(|question| !there(&question.row.1)));
        }
    }
    summary.skipped = summary.planned - wanted.len();
    let mut logs: HashMap<String, RowLog<StatedRow>> = HashMap::new();
    let asked = (instructions, &conduct, stop);
    ask(
        judge,
        asked,
        ("memories", &wanted),
        &mut summary,
        &mut |(folder, row), verdict, refused_parameters| {
            // Missing verdicts are requested again by a rerun.
            let Ok(verdict) = verdict else { return Ok(()) };
            let states = verdict.said == Said::Choice(WORDS[0].to_owned());
            let log = match logs.entry(folder.clone()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(RowLog::open(dir, &format!("{folder}/{STATED}"))?),
            };
            Ok(log.append(StatedRow { states, refused_parameters, ..row.clone() })?)
        },
    )?;
    Ok(summary)
}

fn systems(dir: &Path) -> Result<Vec<String>, JsonlError> {
    folder::folders(dir, "memory").map_err(JsonlError::io("read", &dir.join("memory")))
}

/// Each text of a case's memories, with each piece of evidence among the sources it had. All texts of a rewritten memory are judged, since
/// the last does not show earlier states.
fn questions(
    (system, folder): (&str, &str),
    case: &PlannedCase,
    benchmark: &Benchmark,
    rows: &MemoryRows,
    judge: &str,
) -> Vec<Question<Asked>> {
    let evidence = case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence));
    let pieces: BTreeSet<(&str, String)> =
        evidence.map(|one| (one.role.as_str(), format!("{}[{}]", benchmark.segment, one.segment))).collect();
    let mut questions = Vec::new();
    for ((id, text), sessions) in texts(rows) {
        for (role, session) in &pieces {
            let fact = benchmark.stated.contains(role).then(|| case.judge.get(*role)?.as_str()).flatten();
            let Some(fact) = fact.filter(|_| sessions.contains(session.as_str())) else { continue };
            let notes = [("memory", text), ("fact", fact)].into_iter();
            let notes: Notes = notes.map(|(note, text)| (note.to_owned(), text.into())).collect();
            let row = StatedRow {
                memory: id.to_owned(),
                text: text.to_owned(),
                role: (*role).to_owned(),
                session: session.clone(),
                states: false,
                judge: judge.to_owned(),
                refused_parameters: Vec::new(),
            };
            questions.push(Question {
                // Omit the case's notes, which reveal more than this fact.
                case: PlannedCase::default(),
                probe: PlannedProbe { id: "note".to_owned(), judge: notes, ..PlannedProbe::default() },
                what: format!("{} {system} memory {id} ({role})", case.case),
                row: (folder.to_owned(), row),
            });
        }
    }
    questions
}

/// Distinct texts per memory, with all sessions that were its sources while it had the text.
fn texts(rows: &MemoryRows) -> BTreeMap<(&str, &str), BTreeSet<&str>> {
    let told = rows.events().into_iter().filter_map(|(row, text)| {
        let changes = !matches!(row.event.op, Op::None | Op::Delete);
        let id = row.event.memory.as_deref().filter(|_| changes)?;
        Some((id, text, row.event.sources.as_deref()))
    });
    let shown = rows.memories().map(|one| (one.id.as_str(), Some(one.text.as_str()), one.sources.as_deref()));
    let mut sources: BTreeMap<&str, &[Source]> = BTreeMap::new();
    let mut texts: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (id, text, own) in told.chain(shown) {
        if let Some(own) = own {
            sources.insert(id, own);
        }
        let Some(text) = text else { continue };
        let now = sources.get(id).copied().unwrap_or_default();
        texts.entry((id, text)).or_default().extend(now.iter().map(|source| source.session.as_str()));
    }
    texts
}
