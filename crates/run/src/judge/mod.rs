//! Judging by a benchmark's rubric: one call per case or probe, with judge-only fields, queries and responses; a verdict and a short reason
//! for each.
//!
//! Answers that name their choice are parsed by rules (`by_reading`), without a model. Models with readable probabilities judge by scoring
//! (`by_scoring`), unless they should think first; others return JSON (`by_reply`). A verdict is valid only for its [`Instructions`]. The
//! judge sees no history. Called by `palimpsest judge`.

mod anew;
mod by_reading;
mod by_reply;
mod by_scoring;
mod calls;
mod instructions;
mod memories;
mod open;
mod questions;
pub mod reply;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::chat::{CallTokens, ChatError, Message, MessageRole, StopReason};
use crate::progress::{StepSeconds, Steps};
use crate::runs::condition::named;
use crate::runs::cost::{Cost, CostRow};
use crate::runs::error::RunError;
use crate::runs::plan::{PlannedCase, PlannedProbe};
use crate::runs::rows::{AnswerKey, ReplyRow, VerdictRow};
use crate::runs::runner::Summary;
use crate::runs::store::RunStore;
use palimpsest_data::benchmarks::JudgeUnit;

pub use anew::{AnewJudge, anew_instructions};
pub use by_reading::{ReadSummary, read_answers, reading_digest};
pub use by_reply::{REPLY_TOKENS, judge_by_reply};
pub use by_scoring::judge_by_scoring;
pub use calls::{Conduct, Judge};
pub use instructions::{Instructions, Reasons};
pub use memories::{judge_memories, memory_instructions};
pub use open::{JudgeOptions, JudgeSource, OpenJudge};
pub use palimpsest_data::benchmarks::Said;
pub use questions::{check_labels, label_instructions};

use by_reading::with_said;
use calls::{Failures, make_calls};

#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    pub probe: PlannedProbe,
    pub answer: Option<String>,
    pub cut: bool,
}

/// One judge call: answers to probes of a case under one condition.
struct Call<'a> {
    case: &'a PlannedCase,
    condition: &'a str,
    exchanges: Vec<Exchange>,
}

impl Call<'_> {
    fn probes(&self) -> Vec<String> {
        self.exchanges.iter().map(|exchange| exchange.probe.id.clone()).collect()
    }

    fn is_answered(&self) -> bool {
        self.exchanges.iter().any(|exchange| exchange.answer.is_some())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    #[error(transparent)]
    Call(#[from] ChatError),
    #[error(transparent)]
    NoVerdict(#[from] NoVerdict),
    #[error("{0}")]
    Template(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub said: Said,
    /// By scoring: probability of the verdict; of `true` for right/wrong verdicts.
    pub probability: Option<f64>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoVerdict {
    #[error("there is no answer to judge; start the run again to get it, then judge again")]
    NoAnswer,
    #[error("two different verdicts in one reply of the judge: {0} and {1}")]
    Differing(Said, Said),
    #[error("the judge refused: {began}")]
    Refused { began: String },
    #[error(
        "the judge's reply was cut at {tokens} tokens before the verdict, twice; allow it more tokens; it began: {began}"
    )]
    Cut { tokens: usize, began: String },
    #[error("the judge gave no verdict: {}", .0.without_answer(None).unwrap_or_default())]
    Thought(StopReason),
    #[error(
        "the judge's reply has no \"{key}\" that the rubric gives ({values}), twice; the last one said {said}"
    )]
    OffScale { key: &'static str, values: String, said: String },
    #[error("no verdict in the judge's reply, twice (does it decline?); the last one began: {began}")]
    Unreadable { began: String },
    #[error("the judge gave {scores} scores for {words} words")]
    Scores { scores: usize, words: usize },
    #[error("the judge's log-probabilities are {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "))]
    NotFinite(Vec<f64>),
    #[error("the judge said nothing")]
    Nothing,
}

struct Asked {
    outcome: Result<Judged, JudgeError>,
    seconds: f64,
    usage: CallTokens,
    refused: Vec<String>,
}

/// Judges everything without a clean verdict of this judge and rubric. Other verdicts are kept. Rows are written in plan order, also with
/// parallel calls.
///
/// A probe without an answer gets an error row; a call with no answers is skipped. Templates are rendered for all calls before the first.
pub fn run(
    store: &mut RunStore,
    judge: &mut Judge<'_>,
    instructions: impl Into<Instructions>,
    stop: &AtomicBool,
    conduct: impl Into<Conduct>,
) -> Result<Summary, RunError> {
    let (instructions, conduct) = (instructions.into(), conduct.into());
    let (name, digest) = (judge.name(), instructions.digest());
    let plan = store.plan().to_vec();
    let conditions: Vec<String> =
        store.header().identity.condition_names().into_iter().map(str::to_owned).collect();
    let mut calls = calls(store, &plan, &conditions, instructions.unit);
    let verdicts = store.verdicts().into_iter();
    let own = verdicts.filter(|row| row.judge == name && row.rubric.as_deref() == Some(&*digest));
    let clean: HashSet<_> = own.filter(VerdictRow::is_clean).map(|row| row.key().owned()).collect();
    let is_clean = |call: &Call<'_>, exchange: &Exchange| {
        clean.contains(&AnswerKey::of(&call.case.case, &exchange.probe.id, call.condition).owned())
    };
    let judged = |call: &Call<'_>| call.exchanges.iter().filter(|one| is_clean(call, one)).count();
    let (planned, skipped) = (store.planned(), calls.iter().map(judged).sum());
    calls.retain(|call| judged(call) < call.exchanges.len());
    // Unanswered calls are skipped; broken rows have no notes.
    for call in calls.iter().filter(|call| call.is_answered()) {
        let rendered = instructions.prompt(call.case, &call.exchanges);
        rendered.map_err(|error| RunError::GaveUp(error.to_string()))?;
    }
    store.append_rubric(instructions.row())?;
    let left_out = plan.iter().flat_map(|case| &case.probes).map(|probe| probe.left_out.len()).sum();
    let summary = Summary { planned, skipped, left_out, ..Summary::default() };
    let progress = Steps::new("verdicts", planned - skipped, conduct.show_progress).brief(!conduct.verbose);
    let mut desk = Desk { store, progress, summary };
    // Rows of failed calls are held back, so that an unreachable judge leaves none.
    let mut waiting: Vec<VerdictRow> = Vec::new();
    let mut failures = Failures::new(&conduct);
    let settled_of = |call: &Call<'_>| -> Option<Vec<bool>> {
        call.exchanges.iter().map(|exchange| instructions.settled(exchange)).collect()
    };
    let stopped = make_calls(
        judge,
        calls.len(),
        stop,
        &|judge, nth| {
            let call = &calls[nth];
            if !call.is_answered() || settled_of(call).is_some() {
                return None;
            }
            let begun = Instant::now();
            let outcome = judge_call(judge, &instructions, call.case, &call.exchanges);
            let seconds = begun.elapsed().as_secs_f64();
            let refused = judge.refused_parameters();
            Some(Asked { outcome, seconds, usage: judge.take_tokens(), refused })
        },
        &mut |nth, asked| {
            let call = &calls[nth];
            let rows = |verdicts: Vec<Result<Verdict, String>>, refused: &[String]| {
                let row = |(exchange, verdict): (&Exchange, _)| {
                    let row = VerdictRow {
                        case: call.case.case.clone(),
                        probe: exchange.probe.id.clone(),
                        condition: call.condition.to_owned(),
                        judge: name.clone(),
                        rubric: Some(digest.clone()),
                        rubric_name: Some(instructions.name.clone().into_owned()),
                        refused_parameters: refused.to_vec(),
                        ..VerdictRow::default()
                    };
                    match verdict {
                        _ if exchange.answer.is_none() => {
                            VerdictRow { error: Some(NoVerdict::NoAnswer.to_string()), ..row }
                        }
                        Ok(Verdict { said, probability, reason }) => {
                            VerdictRow { probability, reason, ..with_said(row, said, None, &exchange.probe) }
                        }
                        Err(error) => VerdictRow { error: Some(error), ..row },
                    }
                };
                // A case is judged as a whole; clean verdicts are kept.
                let open = call.exchanges.iter().zip(verdicts).filter(|(one, _)| !is_clean(call, one));
                open.map(row).collect::<Vec<_>>()
            };
            let same_error = |error: &str| vec![Err(error.to_owned()); call.exchanges.len()];
            let Some(Asked { outcome, seconds, usage, refused }) = asked else {
                let Some(right) = settled_of(call) else {
                    return desk.file(rows(same_error("no answer"), &[]), None);
                };
                let mut rows = rows(right.into_iter().map(|right| Ok(by_reference(right))).collect(), &[]);
                rows.iter_mut().for_each(|row| row.settled = true);
                desk.summary.settled += rows.len();
                return desk.file(rows, None);
            };
            if let Err(error @ JudgeError::Call(_)) = outcome {
                let error = error.to_string();
                waiting.extend(rows(same_error(&error), &[]));
                return failures.call_failed(&error).inspect_err(|_| waiting.clear());
            }
            failures.call_came();
            desk.file(std::mem::take(&mut waiting), None)?;
            let verdicts: Vec<Result<Verdict, String>> = match outcome {
                Ok(Judged { verdicts, replies }) => {
                    let (case, condition) = (call.case.case.clone(), call.condition.to_owned());
                    // Prefill and decode are not timed separately; reuse is not known.
                    let cost = Cost {
                        tokens_computed: usage.computed,
                        tokens_generated: usage.generated,
                        ..Cost::of_call(seconds)
                    };
                    desk.store.append_cost(CostRow {
                        case: case.clone(),
                        probes: call.probes(),
                        condition: condition.clone(),
                        judge: Some(name.clone()),
                        cost,
                    })?;
                    let (judge, rubric) = (name.clone(), digest.clone());
                    let probes = call.probes();
                    desk.store.append_reply(ReplyRow { case, probes, condition, judge, rubric, replies })?;
                    verdicts.into_iter().map(|verdict| verdict.map_err(|error| error.to_string())).collect()
                }
                Err(error) => same_error(&error.to_string()),
            };
            let why = why_none(&call.exchanges, &verdicts);
            desk.file(rows(verdicts, &refused), Some(seconds))?;
            let probes = named(&call.probes().join(", "), call.condition);
            failures.count(&name, &format!("case `{}` ({probes})", call.case.case), why.as_deref())
        },
    )?;
    desk.file(waiting, None)?;
    desk.summary.stopped = stopped;
    if !stopped {
        desk.store.finish()?;
    }
    Ok(desk.summary)
}

/// Why a call brought no verdict at all; `None` if it brought one.
fn why_none(exchanges: &[Exchange], verdicts: &[Result<Verdict, String>]) -> Option<String> {
    let mut asked =
        exchanges.iter().zip(verdicts).filter(|(exchange, _)| exchange.answer.is_some()).peekable();
    let first = asked.peek().and_then(|(_, verdict)| verdict.as_ref().err().cloned());
    first.filter(|_| asked.all(|(_, verdict)| verdict.is_err()))
}

fn calls<'a>(
    store: &RunStore,
    plan: &'a [PlannedCase],
    conditions: &'a [String],
    unit: JudgeUnit,
) -> Vec<Call<'a>> {
    let answers = store.answers().into_iter().filter(|row| row.error.is_none());
    let answers: HashMap<_, _> = answers.map(|row| (row.key().owned(), (row.answer, row.stop))).collect();
    let mut calls = Vec::new();
    for case in plan {
        for condition in conditions {
            let exchange = |probe: &PlannedProbe| {
                let key = AnswerKey::of(&case.case, &probe.id, condition).owned();
                let (answer, stop) = answers.get(&key).cloned().unwrap_or_default();
                Exchange { probe: probe.clone(), answer, cut: stop == Some(StopReason::MaxNewTokens) }
            };
            let asked = case.probes.iter().filter(|probe| probe.is_asked_under(condition));
            let asked: Vec<Exchange> = asked.map(exchange).collect();
            let size = match unit {
                JudgeUnit::Case => asked.len().max(1),
                JudgeUnit::Probe => 1,
            };
            calls.extend(asked.chunks(size).map(|some| Call { case, condition, exchanges: some.to_vec() }));
        }
    }
    calls
}

struct Desk<'a> {
    store: &'a mut RunStore,
    progress: Steps,
    summary: Summary,
}

impl Desk<'_> {
    fn file(&mut self, rows: Vec<VerdictRow>, seconds: Option<f64>) -> Result<(), RunError> {
        let mut before = seconds;
        if !rows.is_empty() {
            self.progress.begin_group(rows.len());
        }
        for row in rows {
            let step = format!("{} {}", row.case, named(&row.probe, &row.condition));
            let took = seconds.map(|_| StepSeconds { before: before.take().unwrap_or(0.0), own: 0.0 });
            let counter = if row.error.is_some() { &mut self.summary.errors } else { &mut self.summary.done };
            *counter += 1;
            let error = row.error.clone();
            self.store.append_verdict(row)?;
            self.progress.measured_step(&step, error.as_deref(), took);
        }
        Ok(())
    }
}

fn by_reference(right: bool) -> Verdict {
    let which = if right { "right" } else { "known wrong" };
    let reason = format!("equals a {which} reference answer; the judge was not asked");
    Verdict { said: Said::Correct(right), probability: None, reason: Some(reason) }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    pub verdicts: Vec<Result<Verdict, NoVerdict>>,
    pub replies: Vec<String>,
}

fn judge_call(
    judge: &mut Judge<'_>,
    instructions: &Instructions,
    case: &PlannedCase,
    exchanges: &[Exchange],
) -> Result<Judged, JudgeError> {
    ask_judge(judge, instructions.prompt(case, exchanges)?, exchanges, instructions)
}

/// Asks for verdicts on some of the prompt's exchanges; a reply covers all.
fn ask_judge(
    judge: &mut Judge<'_>,
    content: String,
    exchanges: &[Exchange],
    instructions: &Instructions,
) -> Result<Judged, JudgeError> {
    let messages = [Message { role: MessageRole::User, content }];
    match judge {
        Judge::Scoring(model) => judge_by_scoring(*model, &messages, exchanges, instructions),
        Judge::Reply { models, sampling } => match models.first_mut() {
            Some(model) => judge_by_reply(&mut **model, sampling, &messages, exchanges, instructions),
            None => Err(ChatError::from("This is a bug: a judge without a model".to_owned()).into()),
        },
    }
}
