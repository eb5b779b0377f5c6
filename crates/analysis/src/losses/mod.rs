//! Losses of facts between a memory system's store and the answer: written, kept, retrieved, shown, selected, attended,
//! used, right.
//!
//! Counts a run's memory events, dumps, searches, answers, verdicts, attention and causal effects. Reads files only. Used by `table
//! --memory`, `figures` and `report`.

use std::collections::{BTreeMap, BTreeSet};

use crate::lens::roles::{memory_densities, memory_selected};
use crate::records::Record;
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::ground::jsonl::JsonlError;
use palimpsest_data::ground::order::unique;
use palimpsest_run::memory::system::MemoryContext;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::memory::system::rows::Provenance;
use palimpsest_run::runs::causes::rows::read_lines;
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName};
use palimpsest_run::runs::judged::{Judged, UnknownJudge};

use palimpsest_core::attention::StoreError;
use palimpsest_run::runs::plan::dimension_of;
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::RunFolder;

pub mod count;
pub mod fact;
pub mod reading;
pub mod records;
pub mod retrieval;
pub mod tables;
pub mod trace;
pub mod words;
pub mod writing;

use count::Count;
use fact::{Carrier, Known, Level, Stated, facts};
use reading::Effects;
use trace::{Evidence, Named, Trace};
use writing::Extraction;

#[derive(Debug, thiserror::Error)]
pub enum LossError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Rows(#[from] JsonlError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Judge(#[from] UnknownJudge),
}

#[derive(Debug, Clone)]
pub struct Losses {
    pub benchmark: &'static Benchmark,
    pub run: String,
    pub judge: Option<String>,
    pub no_result: Option<String>,
    pub systems: Vec<SystemLosses>,
}

#[derive(Debug, Clone)]
pub struct SystemLosses {
    pub name: String,
    pub extraction: Extraction,
    pub provenance: BTreeSet<Provenance>,
    pub failed_searches: usize,
    /// Searches that changed the store; unknown for systems without a fingerprint.
    pub changed_searches: Count,
    pub missing: usize,
    pub conditions: Vec<ConditionLosses>,
}

impl SystemLosses {
    pub fn levels(&self) -> Vec<Level> {
        self.conditions.first().map(|one| one.traces.keys().copied().collect()).unwrap_or_default()
    }
}

#[derive(Debug, Clone)]
pub struct ConditionLosses {
    pub name: String,
    pub shown: MemoryContext,
    pub traces: BTreeMap<Level, Vec<Trace>>,
}

impl Losses {
    /// Returns `None` for a run without a memory system. The latest judge with verdicts counts.
    pub fn open(
        run: &RunFolder,
        benchmark: &'static Benchmark,
        choice: JudgeChoice<'_>,
    ) -> Result<Option<Self>, LossError> {
        let conditions = run.header.identity.conditions_or_plain().iter();
        let of_memory = conditions.filter(|one| one.repetition == 0 && one.is_open());
        let of_memory: Vec<(&Condition, &MemoryContext)> =
            of_memory.filter_map(|one| Some((one, one.memory.as_ref()?))).collect();
        if of_memory.is_empty() {
            return Ok(None);
        }
        let (judged, _) = run.judged_last(choice)?;
        let no_result = judged.as_ref().and_then(Judged::no_result);
        let judge = judged.filter(|_| no_result.is_none()).map(|judged| judged.name);
        let reader = Reader { run, benchmark, judge, effects: Effects::of(read_lines(&run.dir)?) };
        let of_system = |name: &str| {
            let own: Vec<_> = of_memory.iter().filter(|(_, shown)| shown.system == name).copied().collect();
            reader.system(name, &own)
        };
        let names = unique(of_memory.iter().map(|(_, shown)| shown.system.as_str()));
        let systems = names.into_iter().map(of_system).collect::<Result<_, _>>()?;
        let judge = judge.map(|name| name.label.clone());
        Ok(Some(Losses { benchmark, run: run.dir.display().to_string(), judge, no_result, systems }))
    }
}

/// Of an answer's memories by rank: densities, and which of them some layer's choice had.
type Read = (Vec<(usize, f64)>, Vec<(usize, bool)>);

struct Reader<'a> {
    run: &'a RunFolder,
    benchmark: &'static Benchmark,
    judge: Option<&'a JudgeName>,
    effects: Effects,
}

impl Reader<'_> {
    fn system(
        &self,
        name: &str,
        conditions: &[(&Condition, &MemoryContext)],
    ) -> Result<SystemLosses, LossError> {
        let conditions = conditions.iter().map(|(condition, shown)| ConditionLosses {
            name: condition.name.clone(),
            shown: (*shown).clone(),
            traces: BTreeMap::from([(Level::Source, Vec::new())]),
        });
        let mut system = SystemLosses {
            name: name.to_owned(),
            extraction: Extraction::default(),
            provenance: BTreeSet::new(),
            failed_searches: 0,
            changed_searches: Count::default(),
            missing: 0,
            conditions: conditions.collect(),
        };
        let records: Vec<Vec<Record<'_>>> =
            system.conditions.iter().map(|one| crate::records::of(self.run, &one.name)).collect();
        for case in &self.run.plan {
            let rows = MemoryRows::read(&self.run.dir, name, &case.case)?;
            match &rows {
                None => system.missing += 1,
                Some(rows) => {
                    system.extraction.add(rows);
                    system.provenance.extend(rows.searches.iter().map(|row| row.provenance));
                    system.failed_searches += rows.searches.iter().filter(|row| row.failed.is_some()).count();
                    let changed = rows.searches.iter().map(|row| Known::maybe(row.changed));
                    system.changed_searches += Count::of(changed);
                }
            }
            let judgements = rows.as_ref().and_then(|rows| rows.stated.as_deref()).map(Stated::of);
            for (condition, records) in system.conditions.iter_mut().zip(&records) {
                let name = condition.name.clone();
                let own = records.iter().filter(|record| std::ptr::eq(record.case, case));
                for record in own.filter(|record| record.probe.is_asked_under(&name)) {
                    self.probe(record, rows.as_ref(), judgements.as_ref(), condition)?;
                }
            }
        }
        Ok(system)
    }

    fn probe(
        &self,
        record: &Record<'_>,
        rows: Option<&MemoryRows>,
        judgements: Option<&Stated<'_>>,
        condition: &mut ConditionLosses,
    ) -> Result<(), LossError> {
        let Record { case, probe, row: answer, .. } = *record;
        let (densities, selected) = answer.map_or(Ok(Read::default()), |row| self.read(row))?;
        let evidence = Evidence {
            rows,
            k: condition.shown.k,
            show: condition.shown.show,
            answer,
            densities: &densities,
            selected: &selected,
            effects: &self.effects,
            right: self.right(record),
        };
        let facts = facts(self.benchmark, case, probe);
        let named = || Named {
            case: case.case.clone(),
            probe: probe.id.clone(),
            kind: case.labels.get(self.benchmark.split).cloned(),
            dimension: dimension_of(self.benchmark, probe),
        };
        let of = |stated| Trace::of(named(), &facts, &evidence, Carrier { stated });
        condition.traces.entry(Level::Source).or_default().push(of(None));
        if let Some(judgements) = judgements {
            condition.traces.entry(Level::Stated).or_default().push(of(Some(judgements)));
        }
        Ok(())
    }

    fn read(&self, row: &AnswerRow) -> Result<Read, LossError> {
        let Some(store) = self.run.attention(row)? else { return Ok(Read::default()) };
        let path = self.run.dir.join(row.attention.as_deref().unwrap_or_default());
        Ok((memory_densities(&path, &store)?, memory_selected(&store)))
    }

    /// Answers without a verdict are wrong; with scores, only the best one is right.
    fn right(&self, record: &Record<'_>) -> Known {
        let Some(judge) = self.judge else { return Known::Unknown };
        let verdict = record.judged_by(judge).filter(|row| row.is_clean());
        let best = self.benchmark.rubric().verdict.most().unwrap_or(1);
        let worth = verdict.and_then(|row| row.worth(best));
        Known::of(worth.is_some_and(|worth| worth >= 1.0))
    }
}
