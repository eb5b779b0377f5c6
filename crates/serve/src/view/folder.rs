//! A run folder as the page knows it: planned answers, their facts, and positions of rows in files.
//!
//! Plan, answers and verdicts are in memory, as tables have them. Histories, effects, replies and trials stay on disk and are read on
//! demand. [`super::state`] refreshes it. Never writes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::attention::Attention;
use super::fields::Fields;
use super::follow::{Followed, Place};
use super::ranks::{RankJob, Ranked, RoleRank};
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::ground::jsonl::read_rows;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::causes::contrast_rows::CONTRAST_CAUSES;
use palimpsest_run::runs::causes::rows::CAUSES;
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName};
use palimpsest_run::runs::judged::no_result;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow, VerdictRow};
use palimpsest_run::runs::store::{
    ANSWERS, PLAN, REPLIES, RUBRICS, RunFolder, TRIALS, VERDICTS, read_header,
};
use palimpsest_run::runs::why_rows::{Label, WHY, WhyRow};

/// Effects that the table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Hidden from the question on, at all layers.
    Direct,
    Total,
    Other,
}

#[derive(Debug, Clone, Copy)]
pub struct CauseAt {
    pub place: Place,
    way: Way,
    /// Seed of the controls of blocked spans.
    seed: Option<u64>,
    /// Index into the folder's roles.
    role: Option<usize>,
    /// Drop in nats; NaN if absent.
    drop: f64,
}

/// A planned answer, by its places in the plan, with its rows, effects and ranks.
#[derive(Debug, Default)]
pub struct RowFacts {
    pub case: usize,
    pub probe: usize,
    pub condition: usize,
    pub answer: Option<AnswerRow>,
    pub replies: Vec<Place>,
    pub causes: Vec<CauseAt>,
    pub contrasts: Vec<CauseAt>,
    /// Label unless withheld with the verdict that it explains, certificate size in sessions, row position.
    pub why: Option<(Option<Label>, Option<usize>, Place)>,
    pub trials: Vec<Place>,
    /// `None` until computed from the files.
    pub ranked: Option<Ranked>,
}

#[derive(Debug)]
pub struct Folder {
    pub id: String,
    /// Header, plan and verdicts; answers are in `rows`.
    pub run: RunFolder,
    pub benchmark: &'static Benchmark,
    pub rows: Vec<RowFacts>,
    pub roles: Vec<String>,
    /// Latest control seed; only its rows count.
    pub seed: Option<u64>,
    /// `None` also where its verdicts are no result.
    pub judge: Option<JudgeName>,
    /// Judges whose verdicts the labels of `why` explain, without those withheld.
    pub why_judges: Vec<String>,
    /// Why the verdicts are withheld.
    pub no_result: Option<String>,
    by_key: HashMap<AnswerKey, usize>,
    files: [Followed; 8],
    /// Rows that cannot be read by file: their number, and the first one's fault.
    broken: BTreeMap<&'static str, (usize, String)>,
    pub changes: u64,
}

/// Followed files, in the order of [`Folder::files`].
const FILES: [&str; 8] = [ANSWERS, VERDICTS, RUBRICS, REPLIES, CAUSES, CONTRAST_CAUSES, WHY, TRIALS];

#[derive(Deserialize)]
struct ReplyHead {
    case: String,
    probes: Vec<String>,
    #[serde(default)]
    condition: String,
}

#[derive(Deserialize)]
struct CauseHead {
    kind: Option<String>,
    case: String,
    probe: String,
    #[serde(default)]
    condition: String,
    role: Option<String>,
    layers: Option<[usize; 2]>,
    seed: Option<u64>,
    #[serde(alias = "total", alias = "replaced", alias = "repaired")]
    effect: Option<DropHead>,
    ablation: Option<String>,
    drop: Option<f64>,
}

#[derive(Deserialize)]
struct DropHead {
    log_p_drop: f64,
}

impl Folder {
    pub fn open(id: String, dir: &Path, judge: JudgeChoice<'_>) -> Result<Self, RunError> {
        let (header, plan) = (read_header(dir)?, read_rows(dir, PLAN)?);
        let run = RunFolder::of_rows(dir, header, plan, &[], (&[], Vec::new()));
        let benchmark = run.benchmark()?;
        let conditions = run.header.identity.conditions_or_plain();
        let mut rows = Vec::new();
        let mut by_key = HashMap::new();
        for (case, planned) in run.plan.iter().enumerate() {
            for (probe, of_probe) in planned.probes.iter().enumerate() {
                for (condition, of_condition) in conditions.iter().enumerate() {
                    if of_probe.is_asked_under(&of_condition.name) {
                        let key = AnswerKey::of(&planned.case, &of_probe.id, &of_condition.name);
                        by_key.insert(key.owned(), rows.len());
                        rows.push(RowFacts { case, probe, condition, ..RowFacts::default() });
                    }
                }
            }
        }
        let evidence = run.plan.iter().flat_map(|case| {
            case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence))
        });
        let mut roles: Vec<String> = unique(evidence.map(|one| one.role.clone()));
        let anchors = benchmark.lens.anchors;
        roles.sort_by_key(|role| anchors.iter().position(|anchor| anchor == role).unwrap_or(usize::MAX));
        let files = FILES.map(|name| Followed::new(dir, name));
        let mut folder = Folder {
            id,
            run,
            benchmark,
            rows,
            roles,
            seed: None,
            judge: None,
            why_judges: Vec::new(),
            no_result: None,
            by_key,
            files,
            broken: BTreeMap::new(),
            changes: 0,
        };
        folder.refresh(judge)?;
        Ok(folder)
    }

    pub fn dir(&self) -> &Path {
        &self.run.dir
    }

    pub fn named(&self, row: usize) -> (&PlannedCase, &PlannedProbe, &Condition) {
        let RowFacts { case, probe, condition, .. } = self.rows[row];
        let case = &self.run.plan[case];
        (case, &case.probes[probe], &self.run.header.identity.conditions_or_plain()[condition])
    }

    pub fn key(&self, row: usize) -> AnswerKey<&str> {
        let (case, probe, condition) = self.named(row);
        AnswerKey::of(&case.case, &probe.id, &condition.name)
    }

    /// Reads rows by position; skips those no longer present.
    pub fn read_all<T: serde::de::DeserializeOwned>(
        &self,
        file: &str,
        places: impl IntoIterator<Item = Place>,
    ) -> Vec<T> {
        Place::read_all(self.dir(), file, places).unwrap_or_default()
    }

    /// Answers asked again with changes, each with its row on the page.
    pub fn trials(&self, row: usize, on_page: usize) -> Vec<Value> {
        let trials: Vec<Value> = self.read_all(TRIALS, self.rows[row].trials.iter().copied());
        trials.into_iter().map(|trial| trial.with("row", Some(on_page))).collect()
    }

    pub fn answer(&self, row: usize) -> Option<&AnswerRow> {
        self.rows[row].answer.as_ref()
    }

    /// Number of answers with recorded attention.
    pub fn attention_files(&self) -> usize {
        let answers = self.rows.iter().filter_map(|facts| facts.answer.as_ref());
        answers.filter(|answer| answer.attention.is_some()).count()
    }

    /// `None` if no attention was recorded.
    pub fn attention(&self, row: usize) -> anyhow::Result<Option<Attention>> {
        let name = self.answer(row).and_then(|answer| answer.attention.as_ref());
        name.map(|name| Attention::read(self.dir(), name, self.benchmark)).transpose()
    }

    pub fn shown_verdicts(&self) -> HashMap<usize, &VerdictRow> {
        let Some(judge) = &self.judge else { return HashMap::new() };
        let own = self.run.verdicts.iter().filter(|row| judge.gave(row));
        own.filter_map(|row| Some((*self.by_key.get(&row.key().owned())?, row))).collect()
    }

    /// Scores count as right if maximal; `None` if undecided.
    pub fn is_right(&self, verdict: &VerdictRow) -> Option<bool> {
        let clean = Some(verdict).filter(|row| row.is_clean())?;
        Some(clean.worth(self.best_score())? >= 1.0)
    }

    /// Maximum score of the benchmark's rubric; 1 without scores.
    pub fn best_score(&self) -> u32 {
        self.benchmark.rubric().verdict.most().unwrap_or(1)
    }

    /// Effects of blocked spans count for the current seed alone.
    pub fn effect_of(&self, all: &[CauseAt], way: Way, role: usize) -> Option<RoleRank> {
        let counts = |one: &&CauseAt| {
            one.way == way && one.drop.is_finite() && (one.seed.is_none() || one.seed == self.seed)
        };
        let all = all.iter().filter(counts).map(|one| (one.role == Some(role), one.drop + 0.0));
        RoleRank::of(&all.collect::<Vec<_>>())
    }

    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        for (file, (count, first)) in &self.broken {
            let rows = if *count == 1 { "a row".to_owned() } else { format!("{count} rows") };
            let mut text = format!("{rows} of {file} cannot be read and are left out: {first}");
            if [CAUSES, CONTRAST_CAUSES].contains(file) {
                text += "; rows of an earlier format are measured anew by `palimpsest causes`";
            }
            warnings.push(text);
        }
        let version = &self.run.header.identity.version;
        if version.starts_with("0.1.") {
            warnings.push(format!(
                "made by palimpsest {version}: it holds no windows of layers, costs or contrasts, and a token across the border of two sessions \
                 counts to the first"
            ));
        }
        warnings
    }

    /// (computed, total) rows with ranks.
    pub fn ranked(&self) -> (usize, usize) {
        let wanted = (0..self.rows.len()).filter(|row| self.wants_ranks(*row));
        wanted.fold((0, 0), |(done, of), row| (done + usize::from(self.rows[row].ranked.is_some()), of + 1))
    }

    /// The first row without ranks.
    pub fn next_rank_job(&self) -> Option<(usize, RankJob)> {
        let mut rows = 0..self.rows.len();
        let row = rows.find(|row| self.wants_ranks(*row) && self.rows[*row].ranked.is_none())?;
        Some((row, self.rank_job(row)))
    }

    pub fn rank_job(&self, row: usize) -> RankJob {
        let (case, _, condition) = self.named(row);
        RankJob {
            dir: self.dir().to_owned(),
            benchmark: self.benchmark,
            case: case.clone(),
            probe: self.rows[row].probe,
            memory: condition.memory.clone(),
            answer: self.answer(row).cloned(),
            roles: self.roles.clone(),
        }
    }

    fn wants_ranks(&self, row: usize) -> bool {
        let memory = || self.named(row).2.memory.is_some();
        self.answer(row).is_some_and(|answer| answer.attention.is_some() || memory())
    }

    /// Reads new rows. Fails if a file was replaced: the folder has to be opened anew.
    pub fn refresh(&mut self, choice: JudgeChoice<'_>) -> Result<(), RunError> {
        let before = self.changes;
        for (at, name) in FILES.into_iter().enumerate() {
            let path = self.dir().join(name);
            let anew = Followed::new(self.dir(), name);
            let mut file = std::mem::replace(&mut self.files[at], anew);
            let read = file.read(|line, place, number| {
                self.changes += 1;
                if let Err(fault) = self.take(name, line, place) {
                    let first = || (0, format!("line {number}: {fault}"));
                    self.broken.entry(name).or_insert_with(first).0 += 1;
                }
            });
            self.files[at] = file;
            read.map_err(|source| RunError::Io { action: "read", path, source })?;
        }
        if self.changes != before {
            let run = &mut self.run;
            let (plan, rubrics) = (std::mem::take(&mut run.plan), std::mem::take(&mut run.rubrics));
            *run = RunFolder::of_rows(&run.dir, run.header.clone(), plan, &[], (&run.verdicts, rubrics));
            let chosen = self.run.judged_last(choice).ok().and_then(|(shown, _)| shown);
            let judge = chosen.map(|judged| judged.name.clone());
            self.no_result = judge.as_ref().and_then(|judge| no_result(&judge.judge));
            self.judge = judge.filter(|_| self.no_result.is_none());
        }
        Ok(())
    }

    pub fn keep_ranks(&mut self, row: usize, ranked: Ranked) {
        if let Some(facts) = self.rows.get_mut(row) {
            facts.ranked = Some(ranked);
        }
    }

    /// Continues the count of changes, and the ranks of answers whose attention is the same.
    pub fn continues(&mut self, before: Folder) {
        self.changes += before.changes;
        let attention = |facts: &RowFacts| facts.answer.as_ref().map(|answer| answer.attention.clone());
        for (facts, before) in self.rows.iter_mut().zip(before.rows) {
            if attention(facts) == attention(&before) {
                facts.ranked = before.ranked;
            }
        }
    }

    fn facts_of(&mut self, key: AnswerKey<&str>) -> Option<&mut RowFacts> {
        self.rows.get_mut(*self.by_key.get(&key.owned())?)
    }

    /// Keeps a line. Rows of answers that are not planned are left out.
    fn take(&mut self, file: &'static str, line: &[u8], place: Place) -> serde_json::Result<()> {
        match file {
            ANSWERS => {
                let row: AnswerRow = serde_json::from_slice(line)?;
                if let Some(facts) = self.facts_of(row.key()) {
                    // A new answer invalidates the ranks.
                    if facts.answer.as_ref().is_none_or(|before| before.attention != row.attention) {
                        facts.ranked = None;
                    }
                    facts.answer = Some(row);
                }
            }
            VERDICTS => self.run.verdicts.push(serde_json::from_slice(line)?),
            RUBRICS => self.run.rubrics.push(serde_json::from_slice(line)?),
            REPLIES => {
                let ReplyHead { case, probes, condition } = serde_json::from_slice(line)?;
                for probe in probes {
                    let facts = self.facts_of(AnswerKey::of(&case, &probe, &condition));
                    facts.into_iter().for_each(|facts| facts.replies.push(place));
                }
            }
            CAUSES | CONTRAST_CAUSES => {
                let head: CauseHead = serde_json::from_slice(line)?;
                let way = match (head.kind.as_deref().or(head.ablation.as_deref()), head.layers) {
                    (None | Some("blocked"), None) => Way::Direct,
                    (Some("total"), _) => Way::Total,
                    _ => Way::Other,
                };
                let seed = head.seed.filter(|_| file == CAUSES && head.kind.is_none());
                self.seed = seed.or(self.seed);
                let role = self.roles.iter().position(|role| head.role.as_ref() == Some(role));
                let drop = head.drop.or(head.effect.map(|effect| effect.log_p_drop)).unwrap_or(f64::NAN);
                let cause = CauseAt { place, way, seed, role, drop };
                if let Some(facts) = self.facts_of(AnswerKey::of(&head.case, &head.probe, &head.condition)) {
                    if file == CAUSES { &mut facts.causes } else { &mut facts.contrasts }.push(cause);
                }
            }
            WHY => {
                let row: WhyRow = serde_json::from_slice(line)?;
                let label = Some(row.label).filter(|_| no_result(&row.judge).is_none());
                let sessions = row.certificate.as_ref().map(|certificate| certificate.sessions.len());
                let facts = self.facts_of(AnswerKey::of(&row.case, &row.probe, &row.condition));
                if let Some(facts) = facts {
                    facts.why = Some((label, sessions, place));
                    if label.is_some() && !self.why_judges.contains(&row.judge) {
                        self.why_judges.push(row.judge);
                    }
                }
            }
            _ => {
                let key: AnswerKey = serde_json::from_slice(line)?;
                self.facts_of(key.by_ref()).into_iter().for_each(|facts| facts.trials.push(place));
            }
        }
        Ok(())
    }
}
