//! A run folder prepared for analysis: [`palimpsest_run::runs::store`] plus grouping.

use std::path::Path;

use super::LensError;
use palimpsest_data::benchmarks::{ALL, Benchmark};
use palimpsest_run::runs::cost::CostRow;
use palimpsest_run::runs::header::Identity;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::plan::PlannedCase;
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::{self, ShownCase};

#[derive(Debug, Clone)]
pub struct AnalysedRun {
    benchmark: &'static Benchmark,
    condition: String,
    store: store::RunFolder,
    header: serde_json::Value,
}

impl AnalysedRun {
    pub fn open_condition(path: &Path, name: &str) -> Result<Self, LensError> {
        AnalysedRun::of_condition(&store::RunFolder::read(path)?, name)
    }

    pub fn of_condition(folder: &store::RunFolder, name: &str) -> Result<Self, LensError> {
        AnalysedRun::of(&ALL, folder, name)
    }

    /// One run per condition, in the run's order, if it is of one of these benchmarks.
    pub fn of_all(
        among: &[&'static Benchmark],
        folder: &store::RunFolder,
    ) -> Result<Vec<(String, Self)>, LensError> {
        let names = folder.header.identity.condition_names();
        let under = |name: &str| Ok((name.to_owned(), AnalysedRun::of(among, folder, name)?));
        names.into_iter().map(under).collect()
    }

    fn of(
        among: &[&'static Benchmark],
        folder: &store::RunFolder,
        condition: &str,
    ) -> Result<Self, LensError> {
        let store = folder.clone().condition(condition)?;
        let benchmark = store::benchmark_of(among, &store.dir, &store.header)?;
        // Without a plain condition, the first one replaces it.
        let names = store.header.identity.condition_names();
        let condition = names.iter().find(|name| **name == condition).or(names.first());
        let condition = condition.map(|name| (*name).to_owned()).unwrap_or_default();
        let header = serde_json::to_value(&store.header).unwrap_or_default();
        Ok(AnalysedRun { benchmark, condition, store, header })
    }

    pub fn condition(&self) -> &str {
        &self.condition
    }

    pub fn costs(&self) -> &[CostRow] {
        &self.store.costs
    }

    pub fn benchmark(&self) -> &'static Benchmark {
        self.benchmark
    }

    pub fn path(&self) -> &Path {
        &self.store.dir
    }

    pub fn header(&self) -> &serde_json::Value {
        &self.header
    }

    /// The plan, in data order: the source of every denominator.
    pub fn cases(&self) -> &[PlannedCase] {
        &self.store.plan
    }

    pub fn answers(&self) -> &[AnswerRow] {
        &self.store.answers
    }

    /// The case as shown to the model; `None` if it has no prompt.
    pub fn shown(&self, case: &str) -> Result<Option<ShownCase>, LensError> {
        Ok(self.store.shown(case)?)
    }

    /// By judge and rubric, in first-seen order.
    pub fn judged(&self) -> Vec<Judged<'_>> {
        self.store.judged()
    }

    pub fn verdicts_as(&self, judge: &str) -> Option<Judged<'_>> {
        let name = self.store.judges().iter().find(|name| name.label == judge)?;
        Some(self.store.judged_as(name))
    }

    /// Judges with rubrics in brackets, in first-seen order; includes judges whose replies could not be parsed.
    pub fn judges(&self) -> Vec<String> {
        self.store.judges().iter().map(|name| name.label.clone()).collect()
    }

    pub fn identity(&self) -> &Identity {
        &self.store.header.identity
    }

    /// Header value at a JSON pointer, for example `/identity/model/name`.
    pub fn header_text(&self, pointer: &str) -> Option<String> {
        match self.header.pointer(pointer)? {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            serde_json::Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }
}
