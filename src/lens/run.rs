//! A run folder as the analysis sees it: [`crate::run::store`] reads it; this adds what grouping needs.

use std::collections::HashMap;
use std::path::Path;

use super::LensError;
use crate::benchmarks::{ALL, Benchmark};
use crate::ground::order::unique;
use crate::run::cost::CostRow;
use crate::run::header::Identity;
use crate::run::judge_name::{JudgeChoice, JudgeName};
use crate::run::judged::{no_result, warning};
use crate::run::plan::{PlannedCase, PlannedProbe, dimension_of};
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::run::store::{self, ShownCase};

/// A run folder, read; its attention stores and shown sessions are read one at a time, since they are large.
#[derive(Debug, Clone)]
pub struct AnalysedRun {
    benchmark: &'static Benchmark,
    store: store::RunFolder,
    header: serde_json::Value,
}

/// The verdicts of one judge by one rubric, the last of each (case, probe).
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    /// Which judge, with its rubric in brackets; `None` where the run has no verdicts.
    pub judge: Option<String>,
    name: Option<JudgeName>,
    rows: HashMap<(String, String), VerdictRow>,
}

impl Verdicts {
    /// The verdict on a probe of a case, if the judge gave one (which may be an error row).
    pub fn get(&self, case: &str, probe: &str) -> Option<&VerdictRow> {
        self.rows.get(&(case.to_owned(), probe.to_owned()))
    }

    /// Which judge by which rubric; `None` where the run has no verdicts.
    pub fn name(&self) -> Option<&JudgeName> {
        self.name.as_ref()
    }

    /// Why these verdicts are no result, where they are none ([`no_result`]).
    pub fn no_result(&self) -> Option<String> {
        no_result(&self.name.as_ref()?.judge)
    }

    /// A warning beside the numbers ([`warning`]).
    pub fn warning(&self) -> Option<String> {
        warning(&self.name.as_ref()?.judge, self.rows.values())
    }

    /// All of them, in no order.
    pub fn rows(&self) -> impl Iterator<Item = &VerdictRow> {
        self.rows.values()
    }

    /// True if the answer was judged correct; `None` where there is no verdict or only an error row.
    pub fn correct(&self, case: &str, probe: &str) -> Option<bool> {
        self.get(case, probe)?.correct
    }
}

impl AnalysedRun {
    /// Reads a run folder, of its answers and verdicts those of the condition `name`.
    ///
    /// # Errors
    /// [`LensError::Run`] where it is none, is damaged or has no such condition; [`LensError::UnknownBenchmark`] where it is of
    /// none that this version knows.
    pub fn open_condition(path: &Path, name: &str) -> Result<Self, LensError> {
        AnalysedRun::open_among(&ALL, path, name)
    }

    /// [`AnalysedRun::open_condition`] of a run of one of these benchmarks.
    ///
    /// # Errors
    /// The same.
    pub fn open_among(among: &[&'static Benchmark], path: &Path, condition: &str) -> Result<Self, LensError> {
        AnalysedRun::of(among, path, store::RunFolder::read(path)?.condition(condition)?)
    }

    /// A run of one of these benchmarks under each of its conditions, by name and in the run's order.
    ///
    /// # Errors
    /// As [`AnalysedRun::open_condition`].
    pub fn open_all(among: &[&'static Benchmark], path: &Path) -> Result<Vec<(String, Self)>, LensError> {
        let store = store::RunFolder::read(path)?;
        let names: Vec<String> =
            store.header.identity.condition_names().into_iter().map(str::to_owned).collect();
        let under = |name: String| {
            let of_name = store.clone().condition(&name)?;
            Ok((name, AnalysedRun::of(among, path, of_name)?))
        };
        names.into_iter().map(under).collect()
    }

    fn of(among: &[&'static Benchmark], path: &Path, store: store::RunFolder) -> Result<Self, LensError> {
        let name = &store.header.identity.benchmark;
        let Some(&benchmark) = among.iter().find(|benchmark| benchmark.name == name) else {
            let known: Vec<&str> = among.iter().map(|benchmark| benchmark.name).collect();
            let (path, name, known) = (path.to_owned(), name.clone(), known.join(", "));
            return Err(LensError::UnknownBenchmark { path, name, known });
        };
        // a header that was read from JSON can be written as JSON
        let header = serde_json::to_value(&store.header).unwrap_or_default();
        Ok(AnalysedRun { benchmark, store, header })
    }

    /// The cost of its answers and verdicts.
    pub fn costs(&self) -> &[CostRow] {
        &self.store.costs
    }

    /// Its benchmark.
    pub fn benchmark(&self) -> &'static Benchmark {
        self.benchmark
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.store.dir
    }

    /// `run.json`: what was run.
    pub fn header(&self) -> &serde_json::Value {
        &self.header
    }

    /// The plan, in the data's order: the source of every denominator.
    pub fn cases(&self) -> &[PlannedCase] {
        &self.store.plan
    }

    /// The answers that count, in the data's order.
    pub fn answers(&self) -> &[AnswerRow] {
        &self.store.answers
    }

    /// A case as the model was shown it; `None` where no prompt was made for it.
    ///
    /// # Errors
    /// [`LensError::Run`] for a file that cannot be read.
    pub fn shown(&self, case: &str) -> Result<Option<ShownCase>, LensError> {
        Ok(self.store.shown(case)?)
    }

    /// The verdicts of `judge`, by name or with its rubric in brackets, or of the judge that came last and said something; of several rubrics those by the
    /// one that came last.
    ///
    /// # Errors
    /// [`LensError::UnknownJudge`] where `judge` is named and has no verdict here.
    pub fn verdicts(&self, judge: Option<&str>) -> Result<Verdicts, LensError> {
        let known = self.store.judges();
        let choice = JudgeChoice::of(judge);
        let exact = known.iter().find(|name| Some(name.label.as_str()) == judge);
        let meant = |name: &&JudgeName| {
            choice.takes(&name.label) && (judge.is_some() || self.store.has_verdicts(name))
        };
        let Some(name) = exact.or_else(|| known.iter().rev().find(meant)) else {
            let Some(judge) = judge else { return Ok(Verdicts::default()) };
            let names: Vec<&str> = known.iter().map(|name| name.label.as_str()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let (path, judge) = (self.path().to_owned(), judge.to_owned());
            return Err(LensError::UnknownJudge { path, judge, known });
        };
        let rows = self.store.verdicts.iter().filter(|row| name.gave(row));
        let rows = rows.map(|row| ((row.case.clone(), row.probe.clone()), row.clone())).collect();
        Ok(Verdicts { judge: Some(name.label.clone()), name: Some(name.clone()), rows })
    }

    /// The judges, each with its rubric in brackets, in order of first appearance; also those of whose replies nothing could be read.
    pub fn judges(&self) -> Vec<String> {
        self.store.judges().iter().map(|name| name.label.clone()).collect()
    }

    /// The identity of the run.
    pub fn identity(&self) -> &Identity {
        &self.store.header.identity
    }

    /// The group of a probe ([`Benchmark::dimension`]); its id where it lacks the facet.
    pub fn dimension_of(&self, probe: &PlannedProbe) -> String {
        dimension_of(self.benchmark, probe)
    }

    /// The groups of probes, in order of first appearance in the cases.
    pub fn dimensions(&self) -> Vec<String> {
        let probes = self.cases().iter().flat_map(|case| &case.probes);
        unique(probes.map(|probe| self.dimension_of(probe)))
    }

    /// The values of the label that the benchmark is split by, sorted. Empty for data without any.
    pub fn kinds(&self) -> Vec<String> {
        let split = self.benchmark.split;
        let mut kinds: Vec<String> =
            self.cases().iter().filter_map(|case| case.labels.get(split)).cloned().collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// A text or number of the header at a JSON pointer, for example `/identity/model/name`.
    pub fn header_text(&self, pointer: &str) -> Option<String> {
        match self.header.pointer(pointer)? {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Number(number) => Some(number.to_string()),
            serde_json::Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(judge: &str, correct: &[Option<bool>]) -> Verdicts {
        let row = |(at, correct): (usize, &Option<bool>)| {
            let (case, probe) = (at.to_string(), "P".to_owned());
            let row = VerdictRow {
                case: case.clone(),
                probe: probe.clone(),
                judge: judge.to_owned(),
                correct: *correct,
                ..VerdictRow::default()
            };
            ((case, probe), row)
        };
        let judge = judge.to_owned();
        let name = JudgeName { label: judge.clone(), judge: judge.clone(), digest: None, rubric: None };
        let rows = correct.iter().enumerate().map(row).collect();
        Verdicts { judge: Some(judge), name: Some(name), rows }
    }

    #[test]
    fn a_judge_that_is_too_small_gives_no_result_and_one_that_says_the_same_of_all_a_result_with_a_warning() {
        let differing = [Some(true), Some(false), None];
        let same = [Some(false), None, Some(false)];
        for (small, millions) in [
            ("local:smollm2-135m", "135"),
            ("local:qwen3-0.6b", "600"),
            ("http://h/v1#Gemma-3-270M-it", "270"),
        ] {
            let said = verdicts(small, &differing).no_result();
            assert!(
                said.as_ref().is_some_and(|said| said.contains(&format!("about {millions} million"))),
                "{said:?}"
            );
        }
        for able in
            ["local:qwen3.5-9b", "http://h/v1#gpt-oss-120b", "http://h:8000/v1#gemini", "local:Llama-3.1-8B"]
        {
            let of_differing = verdicts(able, &differing);
            assert_eq!((of_differing.no_result(), of_differing.warning()), (None, None), "{able}");
            // All wrong is a result; of a judge of which nobody knows how able it is, with a word beside it.
            let of_same = verdicts(able, &same);
            assert_eq!(of_same.no_result(), None, "{able}");
            let said = of_same.warning();
            let known = !able.ends_with("gemini");
            assert_eq!(said.is_none(), known, "{able}: {said:?}");
            assert!(known || said.is_some_and(|said| said.contains("all 2 answers wrong")));
            // One verdict is the same as itself.
            assert_eq!(verdicts(able, &[Some(true)]).warning(), None);
        }
        assert_eq!((Verdicts::default().no_result(), Verdicts::default().warning()), (None, None));
    }
}
