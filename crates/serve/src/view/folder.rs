//! A run folder as the page knows it: planned answers, their facts, and positions of rows in files.
//!
//! Texts stay on disk and are read on demand, so memory does not grow with them. [`super::state`] refreshes it. Never writes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::follow::{Followed, Place, Step};
use super::ranks::{RankJob, Ranked};
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::causes::contrast_rows::CONTRAST_CAUSES;
use palimpsest_run::runs::causes::rows::CAUSES;
use palimpsest_run::runs::condition::Condition;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName};
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow, Contrast, RubricRow, VerdictRow};
use palimpsest_run::runs::store::{
    ANSWERS, PLAN, REPLIES, RUBRICS, RunFolder, TRIALS, VERDICTS, read_header,
};
use palimpsest_run::runs::why_rows::{Label, WHY, WhyRow};

const NOTE: usize = 140;
const ERROR: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowName {
    pub case: usize,
    pub probe: usize,
    pub condition: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Hidden from the question on, at all layers.
    Direct,
    /// Hidden from the question on, at a window of layers.
    Window,
    Control,
    Total,
    Replaced,
    Carrier,
    Subset,
    Surrogate,
    /// Contrast, hidden from the question on, at all layers.
    ContrastDirect,
    ContrastOther,
}

#[derive(Debug, Clone, Copy)]
pub struct CauseAt {
    pub place: Place,
    pub way: Way,
    pub seed: u64,
    /// Index into the folder's roles.
    role: Option<u8>,
    /// Drop in nats; NaN if absent.
    drop: f64,
}

/// Rows, effects and ranks of a planned answer.
#[derive(Debug, Default)]
pub struct RowFacts {
    pub answer: Option<AnswerRow>,
    pub place: Option<Place>,
    pub verdicts: Vec<Place>,
    pub replies: Vec<Place>,
    pub causes: Vec<CauseAt>,
    /// Label, certificate size in sessions, row position.
    pub why: Option<(Label, Option<usize>, Place)>,
    pub trials: Vec<Place>,
    /// `None` until computed from the files.
    pub ranked: Option<Ranked>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoleEffect {
    pub drop: f64,
    /// Rank among the answer's sessions; 1 is the largest.
    pub rank: usize,
}

#[derive(Debug)]
pub struct Folder {
    pub id: String,
    /// Header, plan (without queries and notes) and verdicts (with truncated reasons).
    pub thin: RunFolder,
    pub benchmark: &'static Benchmark,
    pub rows: Vec<RowName>,
    pub facts: Vec<RowFacts>,
    pub roles: Vec<String>,
    /// Latest control seed; only its rows count.
    pub seed: Option<u64>,
    pub judge: Option<JudgeName>,
    by_key: HashMap<AnswerKey, usize>,
    plan_places: Vec<Place>,
    verdicts: Vec<VerdictRow>,
    rubrics: Vec<RubricRow>,
    files: [Followed; 8],
    broken: BTreeMap<String, (usize, String)>,
    changes: u64,
}

/// Followed files, in the order of [`Folder::files`].
const FILES: [&str; 8] = [ANSWERS, VERDICTS, RUBRICS, REPLIES, CAUSES, CONTRAST_CAUSES, WHY, TRIALS];

#[derive(Deserialize)]
struct KeyHead {
    case: String,
    probe: String,
    #[serde(default)]
    condition: String,
}

#[derive(Deserialize)]
struct ReplyHead {
    case: String,
    probes: Vec<String>,
    #[serde(default)]
    condition: String,
}

#[derive(Deserialize)]
struct CauseHead {
    #[serde(default)]
    kind: Option<String>,
    case: String,
    probe: String,
    #[serde(default)]
    condition: String,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    layers: Option<[usize; 2]>,
    #[serde(default)]
    seed: u64,
    #[serde(default, alias = "total", alias = "replaced")]
    effect: Option<DropHead>,
    #[serde(default)]
    ablation: Option<String>,
    #[serde(default)]
    drop: Option<f64>,
}

#[derive(Deserialize)]
struct DropHead {
    log_p_drop: f64,
}

impl Folder {
    pub fn open(id: String, dir: &Path, judge: JudgeChoice<'_>) -> Result<Self, RunError> {
        let header = read_header(dir)?;
        let (plan, plan_places) = read_plan(&dir.join(PLAN))?;
        let thin = RunFolder::of_rows(dir, header, plan, &[], (&[], Vec::new()));
        let benchmark = thin.benchmark()?;
        let conditions = thin.header.identity.conditions_or_plain();
        let mut rows = Vec::new();
        let mut by_key = HashMap::new();
        for (case, planned) in thin.plan.iter().enumerate() {
            for (probe, of_probe) in planned.probes.iter().enumerate() {
                for (condition, of_condition) in conditions.iter().enumerate() {
                    if of_probe.is_asked_under(&of_condition.name) {
                        let key = AnswerKey::of(&planned.case, &of_probe.id, &of_condition.name);
                        by_key.insert(key.owned(), rows.len());
                        rows.push(RowName { case, probe, condition });
                    }
                }
            }
        }
        let evidence = thin.plan.iter().flat_map(|case| {
            case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence))
        });
        let mut roles: Vec<String> = unique(evidence.map(|one| one.role.clone()));
        let anchors = benchmark.lens.anchors;
        roles.sort_by_key(|role| anchors.iter().position(|anchor| anchor == role).unwrap_or(usize::MAX));
        // Effects store roles in a byte.
        roles.truncate(usize::from(u8::MAX));
        let facts = rows.iter().map(|_| RowFacts::default()).collect();
        let files = FILES.map(|name| Followed::new(dir.join(name)));
        let mut folder = Folder {
            id,
            thin,
            benchmark,
            rows,
            facts,
            roles,
            seed: None,
            judge: None,
            by_key,
            plan_places,
            verdicts: Vec::new(),
            rubrics: Vec::new(),
            files,
            broken: BTreeMap::new(),
            changes: 0,
        };
        folder.refresh(judge)?;
        Ok(folder)
    }

    pub fn dir(&self) -> &Path {
        &self.thin.dir
    }

    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn row_of(&self, key: &AnswerKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub fn named(&self, row: usize) -> Option<(&PlannedCase, &PlannedProbe, &Condition)> {
        let name = self.rows.get(row)?;
        let case = self.thin.plan.get(name.case)?;
        let condition = self.thin.header.identity.conditions_or_plain().get(name.condition)?;
        Some((case, case.probes.get(name.probe)?, condition))
    }

    pub fn whole_case(&self, case: usize) -> Option<PlannedCase> {
        self.read(PLAN, *self.plan_places.get(case)?)
    }

    pub fn read<T: serde::de::DeserializeOwned>(&self, file: &str, place: Place) -> Option<T> {
        place.read(&self.dir().join(file)).ok().flatten()
    }

    /// Reads rows by position; skips those no longer present.
    pub fn read_all<T: serde::de::DeserializeOwned>(
        &self,
        file: &str,
        places: impl IntoIterator<Item = Place>,
    ) -> Vec<T> {
        Place::read_all(&self.dir().join(file), places).unwrap_or_default()
    }

    pub fn answer(&self, row: usize) -> Option<AnswerRow> {
        self.read(ANSWERS, self.facts.get(row)?.place?)
    }

    pub fn attention(&self, row: usize) -> Option<PathBuf> {
        let name = self.facts.get(row)?.answer.as_ref()?.attention.as_ref()?;
        Some(self.dir().join(name))
    }

    pub fn shown_verdicts(&self) -> HashMap<usize, &VerdictRow> {
        let Some(judge) = &self.judge else { return HashMap::new() };
        let own = self.thin.verdicts.iter().filter(|row| judge.gave(row));
        own.filter_map(|row| Some((self.row_of(&row.key().owned())?, row))).collect()
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

    /// Effects of one kind on a row, for the current seed.
    pub fn effects(&self, row: usize, way: Way) -> impl Iterator<Item = &CauseAt> {
        let seeded = matches!(way, Way::Direct | Way::Window);
        let all = self.facts.get(row).map(|facts| facts.causes.as_slice()).unwrap_or_default();
        let counts = move |one: &&CauseAt| one.way == way && (!seeded || Some(one.seed) == self.seed);
        all.iter().filter(counts)
    }

    pub fn effect_of(&self, row: usize, way: Way, role: usize) -> Option<RoleEffect> {
        let all: Vec<&CauseAt> = self.effects(row, way).filter(|one| one.drop.is_finite()).collect();
        let own = all.iter().filter(|one| one.role.map(usize::from) == Some(role));
        let drop = own.map(|one| one.drop + 0.0).max_by(f64::total_cmp)?;
        Some(RoleEffect { drop, rank: 1 + all.iter().filter(|one| one.drop > drop).count() })
    }

    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        for (file, (count, first)) in &self.broken {
            let rows = if *count == 1 { "a row".to_owned() } else { format!("{count} rows") };
            let mut text = format!("{rows} of {file} cannot be read and are left out: {first}");
            if [CAUSES, CONTRAST_CAUSES].contains(&file.as_str()) {
                text += "; rows of an earlier format are measured anew by `palimpsest causes`";
            }
            warnings.push(text);
        }
        let version = &self.thin.header.identity.version;
        if version.starts_with("0.1.") {
            warnings.push(format!(
                "made by palimpsest {version}: it holds no windows of layers, costs or contrasts, and a token across the border of two sessions \
                 counts to the first"
            ));
        }
        warnings.extend(
            self.judge.as_ref().and_then(|judge| palimpsest_run::runs::judged::no_result(&judge.judge)),
        );
        warnings
    }

    /// (computed, total) rows with ranks.
    pub fn ranked(&self) -> (usize, usize) {
        let wanted = (0..self.rows.len()).filter(|row| self.wants_ranks(*row));
        wanted.fold((0, 0), |(done, of), row| (done + usize::from(self.facts[row].ranked.is_some()), of + 1))
    }

    /// The next row without ranks, from `from` on.
    pub fn next_rank_job(&self, from: usize) -> Option<(usize, RankJob)> {
        let row = (from..self.rows.len())
            .find(|row| self.wants_ranks(*row) && self.facts[*row].ranked.is_none())?;
        Some((row, self.rank_job(row)?))
    }

    pub fn rank_job(&self, row: usize) -> Option<RankJob> {
        let name = self.rows.get(row)?;
        let (case, _, condition) = self.named(row)?;
        Some(RankJob {
            dir: self.dir().to_owned(),
            benchmark: self.benchmark,
            case: case.clone(),
            probe: name.probe,
            memory: condition.memory.clone(),
            answer: self.answer(row),
            roles: self.roles.clone(),
        })
    }

    fn wants_ranks(&self, row: usize) -> bool {
        let answer = self.facts.get(row).and_then(|facts| facts.answer.as_ref());
        let memory = || self.named(row).is_some_and(|(.., condition)| condition.memory.is_some());
        answer.is_some_and(|answer| answer.attention.is_some() || memory())
    }

    pub fn refresh(&mut self, choice: JudgeChoice<'_>) -> Result<(), RunError> {
        let before = self.changes;
        for (at, name) in FILES.into_iter().enumerate() {
            let mut file = std::mem::take(&mut self.files[at]);
            let read = file.read(&mut |step| {
                self.changes += 1;
                match step {
                    Step::Restart => self.forget(name),
                    Step::Line(line, place, number) => {
                        if let Err(fault) = self.take(name, line, place) {
                            let entry = self.broken.entry(name.to_owned()).or_default();
                            if entry.0 == 0 {
                                entry.1 = format!("line {number}: {fault}");
                            }
                            entry.0 += 1;
                        }
                    }
                }
            });
            self.files[at] = file;
            read.map_err(|source: io::Error| RunError::Io {
                action: "read",
                path: self.dir().join(name),
                source,
            })?;
        }
        if self.changes != before {
            let (header, plan) = (self.thin.header.clone(), std::mem::take(&mut self.thin.plan));
            let judged = (self.verdicts.as_slice(), self.rubrics.clone());
            self.thin = RunFolder::of_rows(&self.thin.dir.clone(), header, plan, &[], judged);
            let chosen = self.thin.judged_last(choice).ok().and_then(|(shown, _)| shown);
            self.judge = chosen.map(|judged| judged.name.clone());
        }
        Ok(())
    }

    pub fn keep_ranks(&mut self, row: usize, ranked: Ranked) {
        if let Some(facts) = self.facts.get_mut(row) {
            facts.ranked = Some(ranked);
        }
    }

    fn forget(&mut self, file: &str) {
        self.broken.remove(file);
        for facts in &mut self.facts {
            match file {
                ANSWERS => (facts.answer, facts.place) = (None, None),
                VERDICTS => facts.verdicts.clear(),
                REPLIES => facts.replies.clear(),
                CAUSES => facts.causes.retain(|one| one.way.is_of_contrasts()),
                CONTRAST_CAUSES => facts.causes.retain(|one| !one.way.is_of_contrasts()),
                WHY => facts.why = None,
                TRIALS => facts.trials.clear(),
                _ => {}
            }
        }
        match file {
            VERDICTS => self.verdicts.clear(),
            RUBRICS => self.rubrics.clear(),
            CAUSES => self.seed = None,
            _ => {}
        }
    }

    fn facts_of(&mut self, case: &str, probe: &str, condition: &str) -> Option<&mut RowFacts> {
        let row = self.by_key.get(&AnswerKey::of(case, probe, condition).owned())?;
        self.facts.get_mut(*row)
    }

    fn take(&mut self, file: &str, line: &[u8], place: Place) -> serde_json::Result<()> {
        match file {
            ANSWERS => {
                let row: AnswerRow = serde_json::from_slice(line)?;
                let AnswerKey { case, probe, condition } = row.key().owned();
                if let Some(facts) = self.facts_of(&case, &probe, &condition) {
                    // A new answer invalidates the ranks.
                    if facts.answer.as_ref().is_none_or(|before| before.attention != row.attention) {
                        facts.ranked = None;
                    }
                    (facts.answer, facts.place) = (Some(thin_answer(row)), Some(place));
                }
            }
            VERDICTS => {
                let row: VerdictRow = serde_json::from_slice(line)?;
                if let Some(facts) = self.facts_of(&row.case, &row.probe, &row.condition) {
                    facts.verdicts.push(place);
                    self.verdicts.push(thin_verdict(row));
                }
            }
            RUBRICS => self.rubrics.push(serde_json::from_slice(line)?),
            REPLIES => {
                let ReplyHead { case, probes, condition } = serde_json::from_slice(line)?;
                for probe in probes {
                    if let Some(facts) = self.facts_of(&case, &probe, &condition) {
                        facts.replies.push(place);
                    }
                }
            }
            CAUSES | CONTRAST_CAUSES => {
                let head: CauseHead = serde_json::from_slice(line)?;
                let role = head.role.as_ref().and_then(|role| self.roles.iter().position(|one| one == role));
                let role = role.and_then(|role| u8::try_from(role).ok());
                let way = head.way(file);
                let drop = head.drop.or(head.effect.map(|effect| effect.log_p_drop)).unwrap_or(f64::NAN);
                if matches!(way, Way::Direct | Way::Window) {
                    self.seed = Some(head.seed);
                }
                if let Some(facts) = self.facts_of(&head.case, &head.probe, &head.condition) {
                    facts.causes.push(CauseAt { place, way, seed: head.seed, role, drop });
                }
            }
            WHY => {
                let row: WhyRow = serde_json::from_slice(line)?;
                if let Some(facts) = self.facts_of(&row.case, &row.probe, &row.condition) {
                    let sessions = row.certificate.as_ref().map(|certificate| certificate.sessions.len());
                    facts.why = Some((row.label, sessions, place));
                }
            }
            _ => {
                let KeyHead { case, probe, condition } = serde_json::from_slice(line)?;
                if let Some(facts) = self.facts_of(&case, &probe, &condition) {
                    facts.trials.push(place);
                }
            }
        }
        Ok(())
    }
}

impl Way {
    fn is_of_contrasts(self) -> bool {
        matches!(self, Way::ContrastDirect | Way::ContrastOther)
    }
}

impl CauseHead {
    fn way(&self, file: &str) -> Way {
        if file == CONTRAST_CAUSES {
            let direct = self.ablation.as_deref() == Some("blocked") && self.layers.is_none();
            return if direct { Way::ContrastDirect } else { Way::ContrastOther };
        }
        match self.kind.as_deref() {
            None if self.layers.is_some() => Way::Window,
            None => Way::Direct,
            Some("control") => Way::Control,
            Some("total") => Way::Total,
            Some("replaced") => Way::Replaced,
            Some("carrier") => Way::Carrier,
            Some("subset") => Way::Subset,
            Some(_) => Way::Surrogate,
        }
    }
}

pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default().trim_end()),
    }
}

/// The plan without texts, and the positions of its cases.
fn read_plan(path: &Path) -> Result<(Vec<PlannedCase>, Vec<Place>), RunError> {
    let (mut plan, mut places, mut broken) = (Vec::new(), Vec::new(), None);
    let read = Followed::new(path.to_owned()).read(&mut |step| {
        if let Step::Line(line, place, number) = step {
            match serde_json::from_slice(line) {
                Ok(case) => plan.push(without_texts(case)),
                Err(fault) => _ = broken.get_or_insert(format!("line {number}: {fault}")),
            }
            places.push(place);
        }
    });
    read.map_err(|source| RunError::Io { action: "read", path: path.to_owned(), source })?;
    match broken {
        Some(reason) => Err(RunError::Broken { path: path.to_owned(), reason }),
        None => Ok((plan, places)),
    }
}

fn without_texts(mut case: PlannedCase) -> PlannedCase {
    case.judge.clear();
    for probe in &mut case.probes {
        probe.judge.clear();
        probe.query = String::new();
    }
    case
}

fn thin_answer(row: AnswerRow) -> AnswerRow {
    AnswerRow {
        labels: BTreeMap::new(),
        query: String::new(),
        answer: row.answer.map(|_| String::new()),
        thought: row.thought.map(|_| String::new()),
        scores: BTreeMap::new(),
        contrast: row.contrast.map(|contrast| Contrast { value: contrast.value, ..Contrast::default() }),
        memories: row.memories.map(|_| Vec::new()),
        error: row.error.map(|error| cut(&error, ERROR)),
        ..row
    }
}

fn thin_verdict(row: VerdictRow) -> VerdictRow {
    VerdictRow {
        reason: row.reason.map(|reason| cut(&reason, NOTE)),
        error: row.error.map(|error| cut(&error, ERROR)),
        ..row
    }
}
