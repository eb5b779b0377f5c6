//! Judging by a benchmark's rubric: one call a case or a probe, with the judge-only fields and every query with its response; a
//! verdict with a short reason for each.
//!
//! Where a benchmark's answers say by themselves what they choose, its rules read them (`by_reading`) and no model is asked.
//!
//! A model whose probabilities can be read is judged with by scoring (`by_scoring`); any other one, and one that is to think before it
//! decides, is asked for JSON (`by_reply`). Called by `palimpsest judge`; it sees no history. A verdict counts for the [`Instructions`] that it was given by,
//! and for no others.

mod by_reading;
mod by_reply;
mod by_scoring;
mod instructions;
mod labels;
mod loose_json;
pub mod reply;
mod verdict;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::benchmarks::JudgeUnit;
use crate::chat::{
    CallTokens, ChatError, ChatModel, Hardware, Message, MessageRole, Sampling, ScoringModel, StopReason,
};
use crate::progress::Steps;
use crate::run::condition::named;
use crate::run::cost::{Cost, CostRow};
use crate::run::energy::{Joulemeter, Spent};
use crate::run::error::RunError;
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::rows::{ReplyRow, VerdictRow};
use crate::run::runner::Summary;
use crate::run::store::RunStore;
use crate::run::subject::PATIENCE;

pub use crate::benchmarks::Said;
pub use by_reading::{ReadSummary, read_answers, reading_digest};
pub use by_reply::judge_by_reply;
pub use by_scoring::judge_by_scoring;
pub use instructions::{Instructions, Reasons, judge_prompt, rubric_digest};
pub use labels::{check_labels, label_instructions};
pub use verdict::Verdict;

/// Who judges, and how its verdicts are got.
pub enum Judge<'a> {
    /// By weighing `true` against `false` at each decision.
    Scoring(&'a mut dyn ScoringModel),
    /// By asking for JSON: of an endpoint, or of a local model that is to think first.
    Reply {
        /// The judge.
        model: &'a mut dyn ChatModel,
        /// How its tokens are chosen.
        sampling: Sampling,
    },
}

impl Judge<'_> {
    /// The judge's name, as verdict rows carry it.
    pub fn name(&self) -> String {
        match self {
            Judge::Scoring(model) => model.name(),
            Judge::Reply { model, .. } => model.name(),
        }
    }

    /// The tokens of its calls since this was asked last.
    fn take_tokens(&mut self) -> CallTokens {
        match self {
            Judge::Scoring(model) => model.take_tokens(),
            Judge::Reply { model, .. } => model.take_tokens(),
        }
    }

    /// What of this machine it runs on; `None` where it runs elsewhere.
    fn hardware(&self) -> Option<Hardware> {
        match self {
            Judge::Scoring(model) => model.hardware(),
            Judge::Reply { model, .. } => model.hardware(),
        }
    }
}

/// A query and its response, as the judge sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// What was asked, and what only the judge may see of it.
    pub probe: PlannedProbe,
    /// The response; absent where there is none.
    pub answer: Option<String>,
    /// Whether the limit of new tokens cut it off.
    pub cut: bool,
}

/// One call of the judge.
struct Call<'a> {
    case: &'a PlannedCase,
    probes: &'a [PlannedProbe],
    condition: &'a str,
}

/// The judge's task.
#[derive(Clone, Copy)]
struct Task<'a> {
    judge: &'a str,
    digest: &'a str,
    /// The rubric's name.
    rubric: &'a str,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The judge cannot be reached or cannot take the request.
    #[error(transparent)]
    Call(#[from] ChatError),
    /// The judge said something that is no verdict.
    #[error("{0}")]
    NoVerdict(String),
    /// The template of the judge's prompt does not compile or render.
    #[error("{0}")]
    Template(String),
}

/// Judges what has no clean verdict of this judge by this rubric yet. Verdicts of other judges, and by other rubrics, stay beside
/// the new ones.
///
/// A probe without an answer gets an error row and costs no call; a call all of whose probes lack one is left out. A template
/// that fails on any call is refused before the first one.
pub fn run(
    store: &mut RunStore,
    judge: &mut Judge<'_>,
    instructions: impl Into<Instructions>,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Summary, RunError> {
    let instructions = instructions.into();
    let (name, digest) = (judge.name(), instructions.digest());
    let task = Task { judge: &name, digest: &digest, rubric: &instructions.name };
    let plan = store.plan().to_vec();
    let answers = store.answers().into_iter().filter(|row| row.error.is_none());
    let answers: HashMap<_, _> =
        answers.map(|row| ((row.case, row.probe, row.condition), (row.answer, row.stop))).collect();
    let key = |call: &Call<'_>, probe: &PlannedProbe| {
        (call.case.case.clone(), probe.id.clone(), call.condition.to_owned())
    };
    let clean = store
        .verdicts()
        .into_iter()
        .filter(|row| row.judge == name && row.rubric.as_deref() == Some(&*digest) && row.is_clean());
    let clean: HashSet<_> = clean.map(|row| (row.case, row.probe, row.condition)).collect();
    let conditions: Vec<String> =
        store.header().identity.condition_names().into_iter().map(str::to_owned).collect();
    let calls: Vec<Call<'_>> = calls(&plan, &conditions, instructions.unit);
    let planned = store.planned();
    let judged = |call: &Call<'_>| call.probes.iter().filter(|p| clean.contains(&key(call, p))).count();
    let skipped = calls.iter().map(judged).sum();
    let exchanges_of = |call: &Call<'_>| -> Vec<Exchange> {
        let exchange = |probe: &PlannedProbe| {
            let (answer, stop) = answers.get(&key(call, probe)).cloned().unwrap_or_default();
            Exchange { probe: probe.clone(), answer, cut: stop == Some(StopReason::MaxNewTokens) }
        };
        call.probes.iter().map(exchange).collect()
    };
    for call in calls.iter().filter(|call| judged(call) < call.probes.len()) {
        let exchanges = exchanges_of(call);
        // Without an answer there is no call; of a broken row there are no notes either.
        if exchanges.iter().all(|exchange| exchange.answer.is_none()) {
            continue;
        }
        let rendered = instructions.prompt(call.case, &exchanges);
        rendered.map_err(|error| RunError::GaveUp(error.to_string()))?;
    }
    // Before the first verdict that names it.
    store.append_rubric(instructions.row())?;
    let summary = Summary { planned, skipped, ..Summary::default() };
    let progress = Steps::new("verdicts", planned - skipped, show_progress);
    let mut desk = Desk { store, progress, summary };
    // Rows of failed calls wait for the next call: a judge that turns out to be gone leaves none behind.
    let mut waiting: Vec<VerdictRow> = Vec::new();
    let mut failed_in_a_row = 0;
    let mut meter = Joulemeter::of(judge.hardware().as_ref());
    for call in &calls {
        if judged(call) == call.probes.len() {
            continue;
        }
        if stop.load(Ordering::Relaxed) {
            desk.summary.stopped = true;
            break;
        }
        let exchanges = exchanges_of(call);
        let rows = |verdicts: Verdicts| {
            let rows = exchanges.iter().zip(verdicts);
            let rows = rows.map(|(exchange, verdict)| verdict_row(call, exchange, task, verdict));
            // A case is judged as a whole; what was clean before stays as it is.
            let new = |row: &VerdictRow| {
                !clean.contains(&(row.case.clone(), row.probe.clone(), row.condition.clone()))
            };
            rows.filter(new).collect::<Vec<_>>()
        };
        let same_error = |error: String| exchanges.iter().map(|_| Err(error.clone())).collect::<Verdicts>();
        if exchanges.iter().all(|exchange| exchange.answer.is_none()) {
            desk.file(rows(same_error(NO_ANSWER.to_owned())))?;
            continue;
        }
        if exchanges.iter().all(|exchange| instructions.settles(exchange)) {
            let settled =
                || Verdict { said: Said::Correct(true), probability: None, reason: Some(SETTLED.to_owned()) };
            desk.file(rows(exchanges.iter().map(|_| Ok(settled())).collect()))?;
            continue;
        }
        let begun = meter.begin();
        let outcome = judge_call(judge, &instructions, call.case, &exchanges);
        let (spent, usage) = (meter.end(&begun), judge.take_tokens());
        match outcome {
            Err(JudgeError::Call(error)) => {
                failed_in_a_row += 1;
                if failed_in_a_row >= PATIENCE {
                    return Err(RunError::GaveUp(format!(
                        "{PATIENCE} calls of the judge in a row failed, so judging stops here (the same command goes \
                         on); the last said: {error}"
                    )));
                }
                waiting.extend(rows(same_error(error.to_string())));
            }
            outcome => {
                failed_in_a_row = 0;
                desk.file(std::mem::take(&mut waiting))?;
                let verdicts = match outcome {
                    Ok(Judged { verdicts, replies }) => {
                        desk.store.append_cost(cost_row(call, task, spent, usage))?;
                        desk.store.append_reply(ReplyRow {
                            case: call.case.case.clone(),
                            probes: call.probes.iter().map(|probe| probe.id.clone()).collect(),
                            condition: call.condition.to_owned(),
                            judge: name.clone(),
                            rubric: digest.clone(),
                            replies,
                        })?;
                        verdicts
                    }
                    Err(error) => same_error(error.to_string()),
                };
                desk.file(rows(verdicts))?;
            }
        }
    }
    desk.file(waiting)?;
    if !desk.summary.stopped {
        desk.store.finish()?;
    }
    Ok(desk.summary)
}

/// What a call cost. Prefill and decoding are not told apart: all seconds count as decoding.
fn cost_row(call: &Call<'_>, task: Task<'_>, spent: Spent, usage: CallTokens) -> CostRow {
    let prefill = spent.share(0.0);
    CostRow {
        case: call.case.case.clone(),
        probes: call.probes.iter().map(|probe| probe.id.clone()).collect(),
        condition: call.condition.to_owned(),
        judge: Some(task.judge.to_owned()),
        cost: Cost {
            tokens_computed: usage.computed,
            tokens_generated: usage.generated,
            ..Cost::of(prefill, spent)
        },
    }
}

fn calls<'a>(plan: &'a [PlannedCase], conditions: &'a [String], unit: JudgeUnit) -> Vec<Call<'a>> {
    let mut calls = Vec::new();
    for case in plan {
        for condition in conditions {
            let parts = match unit {
                JudgeUnit::Case => case.probes.chunks(case.probes.len().max(1)),
                JudgeUnit::Probe => case.probes.chunks(1),
            };
            calls.extend(parts.map(|probes| Call { case, probes, condition }));
        }
    }
    calls
}

/// Where verdicts are filed and counted.
struct Desk<'a> {
    store: &'a mut RunStore,
    progress: Steps,
    summary: Summary,
}

impl Desk<'_> {
    fn file(&mut self, rows: Vec<VerdictRow>) -> Result<(), RunError> {
        for row in rows {
            let (step, error) =
                (format!("{} {}", row.case, named(&row.probe, &row.condition)), row.error.clone());
            self.store.append_verdict(row)?;
            self.progress.step(&step, error.as_deref());
            if error.is_some() {
                self.summary.errors += 1;
            } else {
                self.summary.done += 1;
            }
        }
        Ok(())
    }
}

const NO_ANSWER: &str = "there is no answer to judge; start the run again to get it, then judge again";

/// The reason of a verdict without a call.
const SETTLED: &str = "word for word an accepted answer; the judge was not asked";

fn verdict_row(
    call: &Call<'_>,
    exchange: &Exchange,
    task: Task<'_>,
    verdict: Result<Verdict, String>,
) -> VerdictRow {
    let mut row = VerdictRow {
        case: call.case.case.clone(),
        probe: exchange.probe.id.clone(),
        condition: call.condition.to_owned(),
        judge: task.judge.to_owned(),
        rubric: Some(task.digest.to_owned()),
        rubric_name: Some(task.rubric.to_owned()),
        ..VerdictRow::default()
    };
    match verdict {
        _ if exchange.answer.is_none() => row.error = Some(NO_ANSWER.to_owned()),
        Ok(Verdict { said, probability, reason }) => {
            match said {
                Said::Correct(correct) => row.correct = Some(correct),
                Said::Score(score) => row.score = Some(score),
                Said::Choice(choice) => {
                    let expected = by_reading::expected(&exchange.probe);
                    row.correct = expected.map(|expected| expected == choice);
                    row.choice = Some(choice);
                }
            }
            row.probability = probability;
            row.reason = reason;
        }
        Err(error) => row.error = Some(error),
    }
    row
}

/// One verdict, or why there is none, for each exchange in order.
type Verdicts = Vec<Result<Verdict, String>>;

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// On each exchange, in order.
    pub verdicts: Verdicts,
    /// What the judge literally said.
    pub replies: Vec<String>,
}

fn judge_call(
    judge: &mut Judge<'_>,
    instructions: &Instructions,
    case: &PlannedCase,
    exchanges: &[Exchange],
) -> Result<Judged, JudgeError> {
    let content = instructions.prompt(case, exchanges)?;
    let messages = [Message { role: MessageRole::User, content }];
    match judge {
        Judge::Scoring(model) => judge_by_scoring(*model, &messages, exchanges, instructions),
        Judge::Reply { model, sampling } => {
            judge_by_reply(*model, sampling, &messages, exchanges, instructions)
        }
    }
}
