//! Why an answer is as it is: a label for each answer of a run, by interventions on its context.
//!
//! Called by `palimpsest why`; `table`, `report` and `export` show what it wrote. [`measure`] reads a finished run, asks the run's model for
//! readings and appends rows to `why.jsonl` ([`crate::run::why_rows`]), one an answer.
//!
//! - [`evidence`]: the newer and the older evidence of a question, and where it was lost.
//! - [`readings`]: one answer read again with sessions blocked or removed. [`controls`]: how far random sets of equal size move it.
//! - [`label`]: the readings of one answer. [`decide`]: the order of decisions. [`certificate`] and [`search`]: the smallest set that turns an answer.
//! - [`labels`]: the rows of a run. [`sheet`]: counts of labels. [`words`]: the same in sentences. [`signals`]: how well attention foretells them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use palimpsest_core::ablate::{Prompt, Said, Target, ValuePair, first_linear};
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::engine::{EngineError, LocalModel, ModelText, RequestError};

use crate::benchmarks::{Benchmark, Side, VerdictKind};
use crate::ground::jsonl::{JsonlError, RowLog};
use crate::losses::fact::Level;
use crate::losses::trace::Trace;
use crate::losses::{LossError, Losses};
use crate::progress::Steps;
use crate::run::causes::CauseError;
use crate::run::causes::case::{self, shared};
use crate::run::condition::named;
use crate::run::error::RunError;
use crate::run::judge_name::JudgeChoice;
use crate::run::judged::{Judged, UnknownJudge};
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::rows::{AnswerKey, AnswerRow};
use crate::run::store::RunFolder;
use crate::run::why_rows::{WHY, WhyRow, WhySettings};

pub mod certificate;
pub mod controls;
pub mod decide;
pub mod evidence;
pub mod label;
pub mod labels;
pub mod readings;
pub mod search;
pub mod sheet;
pub mod signals;
pub mod words;

use decide::{Facts, Presence};
use evidence::{Evidence, names_current, roles, spans};
use label::{Context, Found};
use readings::{Anew, ReadError, Reader};

/// Why answers could not be labelled.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum WhyError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Rows(#[from] JsonlError),
    #[error(transparent)]
    Cause(#[from] CauseError),
    #[error(transparent)]
    Losses(#[from] LossError),
    #[error(transparent)]
    Judge(#[from] UnknownJudge),
    /// A benchmark without the two sides.
    #[error(
        "labels tell newer evidence from the older one that it replaces, and {title} has no such sides; give a run of a benchmark that has them"
    )]
    NoSides { title: &'static str },
    #[error("{dir} has no verdicts, and a label explains one; judge it with `palimpsest judge {dir}`")]
    NoVerdicts { dir: PathBuf },
    /// A model that cannot be blocked.
    #[error(
        "layer {layer} is a linear-attention layer, which keeps no keys that could be hidden: a blocked session would still be seen; labels \
         need a model whose layers all keep keys"
    )]
    Linear { layer: usize },
    #[error("case {case}: {source}")]
    Model { case: String, source: anyhow::Error },
}

/// Progress of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    pub skipped: usize,
    pub done: usize,
    pub readings: usize,
    /// Answers without a row, since the judge of answers generated anew gave no verdict.
    pub unjudged: usize,
    /// True if a stop was asked for before the end.
    pub stopped: bool,
}

/// The answers of a run that get a label: those that are no errors, under conditions that block nothing.
pub fn asked(folder: &RunFolder) -> Vec<&AnswerRow> {
    let conditions = folder.header.identity.conditions_or_plain();
    let blocks = |name: &str| conditions.iter().any(|one| one.name == name && one.knockout.is_some());
    folder.answers.iter().filter(|row| row.error.is_none() && !blocks(&row.condition)).collect()
}

/// The newer and the older sides' roles of a benchmark.
pub fn check_sides(benchmark: &Benchmark) -> Result<(), WhyError> {
    let has = |side| !roles(benchmark, side).is_empty();
    match has(Side::Newer) && has(Side::Older) {
        true => Ok(()),
        false => Err(WhyError::NoSides { title: benchmark.title }),
    }
}

/// The verdicts that labels explain, of the judges that are meant the last.
pub fn verdicts<'a>(folder: &'a RunFolder, choice: JudgeChoice<'_>) -> Result<Judged<'a>, WhyError> {
    let (judged, _) = folder.judged_last(choice)?;
    judged.ok_or_else(|| WhyError::NoVerdicts { dir: folder.dir.clone() })
}

/// The verdict of the judge at hand on another text in the place of an answer of the run.
pub type JudgeAnew<'a> = &'a mut dyn FnMut(&AnswerRow, &str) -> anyhow::Result<bool>;

/// Labels what `folder` still lacks, and appends rows. Answers without a contrast are generated anew for `judge`, where there is one. `model` must be the run's. `stop` is looked at after each chunk and reading.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    choice: JudgeChoice<'_>,
    (settings, mut judge): (WhySettings, Option<JudgeAnew<'_>>),
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, WhyError> {
    let benchmark = folder.benchmark()?;
    check_sides(benchmark)?;
    let judged = verdicts(folder, choice)?;
    let kinds = model.engine().decoder().spec().layer_kinds();
    if let Some(layer) = first_linear(&kinds) {
        return Err(WhyError::Linear { layer });
    }
    let losses = Losses::open(folder, benchmark, choice)?;
    let mut log: RowLog<WhyRow> = RowLog::open(folder.dir.join(WHY))?;
    let label = judged.name.label.clone();
    let there: BTreeSet<AnswerKey> = (log.rows.iter())
        .filter(|row| row.judge == label && row.settings == settings)
        .map(|row| row.key().owned())
        .collect();
    let run =
        Run { folder, benchmark, judged, traces: losses.as_ref().map(traces).unwrap_or_default(), settings };
    let text = model.text().clone();
    let asked = asked(folder);
    let (mut measured, mut steps) = (Measured::default(), Steps::new("answers", asked.len(), show_progress));
    // Answers whose prompts begin alike, in the order of the first of each.
    let mut groups: Vec<Vec<&AnswerRow>> = Vec::new();
    for row in asked {
        match groups
            .iter_mut()
            .find(|group| (&group[0].case, &group[0].condition) == (&row.case, &row.condition))
        {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    for rows in groups {
        let stores: Vec<Option<AttentionStore>> =
            rows.iter().map(|row| folder.attention(row)).collect::<Result<_, _>>()?;
        let shared = shared(&stores.iter().flatten().collect::<Vec<_>>());
        for (row, store) in rows.into_iter().zip(&stores) {
            let name = format!("{} {}", row.case, named(&row.probe, &row.condition));
            if there.contains(&row.key().owned()) {
                measured.skipped += 1;
                steps.step(&name, None);
                continue;
            }
            steps.status().begin(&name, "readings");
            let asked = Asked { row, store: store.as_ref(), shared, kinds: &kinds };
            let failed = |source: anyhow::Error| WhyError::Model { case: row.case.clone(), source };
            let judge = judge.as_mut().map(|judge| &mut **judge as JudgeAnew<'_>);
            let mut unjudged = None;
            match run.label((model, &text), &asked, judge, stop) {
                Err(Halt::Read(ReadError::Model(RequestError::Engine(EngineError::Interrupted)))) => {
                    return Ok(Measured { stopped: true, ..measured });
                }
                Err(Halt::Read(ReadError::Judge(error))) => {
                    measured.unjudged += 1;
                    unjudged = Some(format!("{error:#}"));
                }
                Err(Halt::Read(error)) => return Err(failed(error.into())),
                Err(Halt::Other(error)) => return Err(error),
                Ok(None) => {}
                Ok(Some(row)) => {
                    measured.readings += row.readings;
                    measured.done += 1;
                    log.append(row)?;
                }
            }
            steps.step(&name, unjudged.as_deref());
        }
    }
    Ok(measured)
}

/// Why a label was not made.
enum Halt {
    Read(ReadError),
    Other(WhyError),
}

impl From<ReadError> for Halt {
    fn from(error: ReadError) -> Self {
        Halt::Read(error)
    }
}

impl From<CauseError> for Halt {
    fn from(error: CauseError) -> Self {
        Halt::Other(error.into())
    }
}

/// The ways of facts in memory systems, by answer.
type Traces<'a> = BTreeMap<AnswerKey<&'a str>, &'a Trace>;

fn traces(losses: &Losses) -> Traces<'_> {
    let conditions = losses.systems.iter().flat_map(|system| &system.conditions);
    let all = conditions.flat_map(|condition| {
        let traces = condition.traces.get(&Level::Source).into_iter().flatten();
        traces.map(|trace| (AnswerKey::of(&trace.case, &trace.probe, &condition.name), trace))
    });
    all.collect()
}

/// A run that is labelled.
struct Run<'a> {
    folder: &'a RunFolder,
    benchmark: &'static Benchmark,
    judged: Judged<'a>,
    traces: Traces<'a>,
    settings: WhySettings,
}

/// An answer that is labelled.
struct Asked<'a> {
    row: &'a AnswerRow,
    store: Option<&'a AttentionStore>,
    /// Tokens that the prompts of its case share.
    shared: usize,
    kinds: &'a [LayerKind],
}

impl<'a> Run<'a> {
    fn planned(&self, row: &AnswerRow) -> Option<(&'a PlannedCase, &'a PlannedProbe)> {
        let case = self.folder.plan.iter().find(|case| case.case == row.case)?;
        Some((case, case.probes.iter().find(|probe| probe.id == row.probe)?))
    }

    /// The verdict; `None` without one. Where a judge gives scores the best one is right.
    fn correct(&self, key: AnswerKey<&str>) -> Option<bool> {
        let verdict = self.judged.get(key).filter(|row| row.is_clean())?;
        let best = match self.benchmark.rubric().verdict {
            VerdictKind::Score { most, .. } => most,
            _ => 1,
        };
        Some(verdict.worth(best).is_some_and(|worth| worth >= 1.0))
    }

    /// The row of an answer; `None` of one that the plan does not hold.
    fn label(
        &self,
        (model, text): (&mut LocalModel, &ModelText),
        asked: &Asked<'_>,
        judge: Option<JudgeAnew<'_>>,
        stop: &AtomicBool,
    ) -> Result<Option<WhyRow>, Halt> {
        let Asked { row, store, shared, kinds } = *asked;
        let Some(planned) = self.planned(row) else { return Ok(None) };
        let of = |found: Found| WhyRow {
            case: row.case.clone(),
            probe: row.probe.clone(),
            condition: row.condition.clone(),
            label: found.label,
            why: found.why,
            judge: self.judged.name.label.clone(),
            plain: found.plain,
            newer: found.newer,
            older: found.older,
            search: found.search,
            certificate: found.certificate,
            readings: found.readings,
            settings: self.settings,
        };
        let evidence = Evidence { planned, row, store, trace: self.traces.get(&row.key()).copied() };
        let presence = |side| evidence.presence(self.benchmark, side);
        let sides = [presence(Side::Newer), presence(Side::Older)];
        let mut facts = Facts::new(self.correct(row.key()), names_current(row), sides);
        let pair = match (store, &row.contrast) {
            (Some(store), Some(contrast)) => Some(case::pair(store, contrast, text)?),
            _ => None,
        };
        let prompt = store.and_then(|store| readings::prompt(store, shared, kinds));
        let mut judge = judge.map(|judge| move |answer: &str| judge(row, answer));
        let anew = match (&mut judge, facts.correct, self.folder.header.identity.sampling) {
            (Some(judge), Some(right), Some(sampling)) => Some(Anew { text, sampling, right, judge }),
            _ => None,
        };
        let mut reader = match (store, prompt) {
            (Some(store), Some(prompt)) if wants_readings(&facts) => {
                Some((store, open(model, (store, prompt), (pair.as_ref(), anew), stop)?))
            }
            _ => None,
        };
        let found = match &mut reader {
            Some((store, Some(reader))) => {
                let spans = |side: Side| spans(store, &roles(self.benchmark, side));
                let context = Context { store, newer: spans(Side::Newer), older: spans(Side::Older) };
                label::investigate(reader, &context, facts, self.settings)?
            }
            _ => {
                facts.unread = Some(
                    "it cannot be read again: its attention was not recorded, or it ended in its thought"
                        .to_owned(),
                );
                Found::without_readings(&facts)
            }
        };
        Ok(Some(of(found)))
    }
}

/// True if readings tell something of an answer: it is not decided by its text or by what its context lacks.
fn wants_readings(facts: &Facts) -> bool {
    let misjudged = facts.correct == Some(false) && facts.names_current;
    !misjudged && !matches!(facts.newer, Presence::Lost(_) | Presence::Unclear(_))
}

/// A reader of the contrast where there is one, else of the model's own answer; `None` where that has no tokens behind its thought.
fn open<'a>(
    model: &'a mut LocalModel,
    (store, prompt): (&'a AttentionStore, Prompt<'a>),
    (pair, anew): (Option<&'a ValuePair>, Option<Anew<'a>>),
    stop: &'a AtomicBool,
) -> Result<Option<Reader<'a>>, ReadError> {
    let (target, anew) = match pair {
        Some(pair) => (Target::Values(pair), None),
        None if store.thought() >= store.generated.len() => return Ok(None),
        None => (Target::Answer(Said { tokens: &store.generated, thought: store.thought() }), anew),
    };
    Reader::new(model.session(), prompt, (target, anew), stop).map(Some)
}
