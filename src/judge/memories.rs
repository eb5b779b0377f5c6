//! Judging what memories say: does a memory whose sources hold a piece of evidence state it (level 2 of table 3)?
//!
//! A memory and a fact are asked about once; rows go to the `stated.jsonl` of the system and case. The judge sees the memory's text and the
//! case's note on the evidence, and nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::calls::{Unreadable, make_calls};
use super::{Conduct, Exchange, Instructions, Judge, JudgeError, Judged, NoVerdict, Reasons, judge_call};
use crate::benchmarks::{Benchmark, JudgeUnit, Said, VerdictKind};
use crate::data::Notes;
use crate::ground::jsonl::{JsonlError, RowLog};
use crate::memory::system::case_rows::{MemoryRows, STATED};
use crate::memory::system::protocol::Source;
use crate::memory::system::record::case_folder;
use crate::memory::system::rows::{HistoryRow, StatedRow};
use crate::progress::{StepSeconds, Steps};
use crate::run::error::RunError;
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::runner::Summary;
use crate::run::subject::PATIENCE;

/// The words that the judge chooses from: the memory states the fact, or something else.
const WORDS: [&str; 2] = ["states", "other"];

/// A memory that carries evidence by its sources, and what the evidence says.
struct Question<'p> {
    system: String,
    case: &'p PlannedCase,
    text: String,
    fact: String,
    row: StatedRow,
}

/// The instructions.
pub fn memory_instructions(reasons: Reasons) -> Instructions {
    Instructions {
        name: "memories".into(),
        template: include_str!("memory.j2").into(),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Choice { of: &WORDS },
        reasons,
        thinking: None,
        accepted: None,
    }
}

/// Asks about every memory of every system of the run in `dir` that has no row of this judge yet.
///
/// # Errors
/// [`RunError::GaveUp`] where the judge cannot be reached any more, says nothing that can be read, or the template fails.
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
            let questions = questions(&system, case, benchmark, &rows, &name);
            summary.planned += questions.len();
            let there = |row: &StatedRow| {
                let same = |other: &StatedRow| StatedRow { states: row.states, ..other.clone() } == *row;
                rows.stated.iter().flatten().any(same)
            };
            wanted.extend(questions.into_iter().filter(|question| !there(&question.row)));
        }
    }
    summary.skipped = summary.planned - wanted.len();
    let mut progress = Steps::new("memories", wanted.len(), conduct.show_progress).brief(!conduct.verbose);
    let mut failed_in_a_row = 0;
    let mut unreadable = Unreadable::new(&conduct);
    let mut logs: HashMap<(&str, &str), RowLog<StatedRow>> = HashMap::new();
    summary.stopped = make_calls(
        judge,
        wanted.len(),
        stop,
        &|judge, meter, nth| {
            let Question { text, fact, .. } = &wanted[nth];
            let notes = [("memory", text), ("fact", fact)].into_iter();
            let notes: Notes = notes.map(|(note, text)| (note.to_owned(), text.as_str().into())).collect();
            let probe = PlannedProbe { id: "note".to_owned(), judge: notes, ..PlannedProbe::default() };
            let exchange = Exchange { probe, answer: Some(String::new()), cut: false };
            let begun = meter.begin();
            // Without the case's own notes, which say more than the one fact.
            let outcome = judge_call(judge, instructions, &PlannedCase::default(), &[exchange]);
            (outcome, meter.end(&begun).seconds)
        },
        &mut |nth, (outcome, seconds)| {
            let Question { system, case, row, .. } = &wanted[nth];
            let failed = matches!(outcome, Err(JudgeError::Call(_)));
            let told = outcome.and_then(|Judged { verdicts, .. }| {
                let first = verdicts.into_iter().next();
                Ok(first.unwrap_or(Err(NoVerdict::Nothing))?)
            });
            let error = match told {
                Ok(verdict) => {
                    let states = verdict.said == Said::Choice(WORDS[0].to_owned());
                    let log = match logs.entry((system, &case.case)) {
                        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                        std::collections::hash_map::Entry::Vacant(entry) => {
                            entry.insert(RowLog::open(case_folder(dir, system, &case.case).join(STATED))?)
                        }
                    };
                    log.append(StatedRow { states, ..row.clone() })?;
                    None
                }
                Err(JudgeError::Template(error)) => return Err(RunError::GaveUp(error)),
                Err(error) => Some(error.to_string()),
            };
            failed_in_a_row = if failed { failed_in_a_row + 1 } else { 0 };
            if failed_in_a_row >= PATIENCE {
                return Err(RunError::GaveUp(format!(
                    "{PATIENCE} calls of the judge in a row failed, so judging stops here (the same command goes on); the last said: {}",
                    error.unwrap_or_default()
                )));
            }
            let what = format!("{} {system} memory {} ({})", case.case, row.memory, row.role);
            let took = Some(StepSeconds { before: 0.0, own: seconds });
            progress.measured_step(&what, error.as_deref(), took);
            match error {
                Some(_) => summary.errors += 1,
                None => summary.done += 1,
            }
            if failed { Ok(()) } else { unreadable.count(&name, &what, error.as_deref()) }
        },
    )?;
    Ok(summary)
}

/// The memory systems that a run keeps files of, by their folders' names.
fn systems(dir: &Path) -> Result<Vec<String>, JsonlError> {
    let folder = dir.join("memory");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let failed = JsonlError::io("read", &folder);
    let entries: Result<Vec<_>, _> = std::fs::read_dir(&folder).and_then(Iterator::collect);
    let names = entries.map_err(failed)?.into_iter().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// The memories of a case that carry evidence by their sources, each with each piece; a memory's text is the last that is known of it.
fn questions<'p>(
    system: &str,
    case: &'p PlannedCase,
    benchmark: &Benchmark,
    rows: &MemoryRows,
    judge: &str,
) -> Vec<Question<'p>> {
    let mut known: BTreeMap<&str, (&str, &[Source])> = BTreeMap::new();
    for row in &rows.history {
        let HistoryRow::Event(row) = row else { continue };
        let (Some(id), Some(text)) = (&row.event.memory, &row.event.text) else { continue };
        let before = known.get(id.as_str()).map(|(_, sources)| *sources).unwrap_or_default();
        known.insert(id, (text, row.event.sources.as_deref().unwrap_or(before)));
    }
    let found = rows.searches.iter().flat_map(|row| row.memories.iter().chain(row.readback.iter().flatten()));
    for memory in found.chain(rows.dump.iter().flatten()) {
        let before = known.get(memory.id.as_str()).map(|(_, sources)| *sources).unwrap_or_default();
        known.insert(&memory.id, (&memory.text, memory.sources.as_deref().unwrap_or(before)));
    }
    let evidence = case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence));
    let pieces: BTreeSet<(&str, String)> =
        evidence.map(|one| (one.role.as_str(), format!("{}[{}]", benchmark.segment, one.segment))).collect();
    let mut questions = Vec::new();
    for (id, (text, sources)) in known {
        for (role, session) in &pieces {
            let fact = benchmark.stated.contains(role).then(|| case.judge.get(*role)?.as_str()).flatten();
            let Some(fact) = fact.filter(|_| sources.iter().any(|source| source.session == *session)) else {
                continue;
            };
            questions.push(Question {
                system: system.to_owned(),
                case,
                text: text.to_owned(),
                fact: fact.to_owned(),
                row: StatedRow {
                    memory: id.to_owned(),
                    role: (*role).to_owned(),
                    session: session.clone(),
                    states: false,
                    judge: judge.to_owned(),
                },
            });
        }
    }
    questions
}
