//! Judging by a benchmark's rubric: one call a case or a probe, with the judge-only fields and every query with its response; a
//! verdict with a short reason for each.
//!
//! A model whose probabilities can be read is judged with by scoring: the JSON is written for it up to each decision,
//! and the words that it may say are weighed against each other there, so that none of its verdicts can be unparseable. Any
//! other model is asked for the JSON, and its reply is read leniently (see `reply`). Called by `palimpsest judge`; it sees no
//! history. A verdict counts for the rubric that it was given by, and for no other.

pub mod agreement;
pub mod reply;
mod verdict;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::Serde;
use minijinja::{Environment, context};

use crate::benchmarks::{JudgeUnit, Rubric, VerdictKind};
use crate::chat::{ChatError, ChatModel, Message, MessageRole, Sampling, ScoringModel};
use crate::ground::digest::sha256;
use crate::progress::Steps;
use crate::run::condition::named;
use crate::run::error::RunError;
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::rows::{ReplyRow, VerdictRow};
use crate::run::runner::Summary;
use crate::run::store::RunStore;
use crate::run::subject::PATIENCE;
use reply::parse_verdicts;

pub use verdict::{Said, Verdict};

/// Most tokens of a reason that a judge by scoring writes.
const REASON_TOKENS: usize = 40;

/// Who judges, and how its verdicts are got.
pub enum Judge<'a> {
    /// By weighing `true` against `false` at each decision.
    Scoring(&'a mut dyn ScoringModel),
    /// By asking for JSON.
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
}

/// A query and its response, as the judge sees them.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// What was asked, and what only the judge may see of it.
    pub probe: PlannedProbe,
    /// The response; absent where there is none.
    pub answer: Option<String>,
}

/// SHA-256 (lower-case hexadecimal) of everything in a rubric that decides a verdict.
pub fn rubric_digest(rubric: &Rubric) -> String {
    let Rubric { template, unit, verdict } = rubric;
    sha256(format!("palimpsest rubric 1\n{unit:?}\n{verdict:?}\n{template}"))
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
}

/// Judges what has no clean verdict of this judge by this rubric yet. Verdicts of other judges, and by other rubrics, stay beside
/// the new ones.
///
/// A probe without an answer gets an error row and costs no call; a call all of whose probes lack one is left out.
pub fn run(
    store: &mut RunStore,
    judge: &mut Judge<'_>,
    rubric: &Rubric,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Summary, RunError> {
    let (name, digest) = (judge.name(), rubric_digest(rubric));
    let task = Task { judge: &name, digest: &digest };
    let plan = store.plan().to_vec();
    let answers = store.answers().into_iter().filter(|row| row.error.is_none());
    let answers: HashMap<_, _> =
        answers.map(|row| ((row.case, row.probe, row.condition), row.answer)).collect();
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
    let calls: Vec<Call<'_>> = calls(&plan, &conditions, rubric.unit);
    let planned = store.planned();
    let judged = |call: &Call<'_>| call.probes.iter().filter(|p| clean.contains(&key(call, p))).count();
    let skipped = calls.iter().map(judged).sum();
    let summary = Summary { planned, skipped, ..Summary::default() };
    let progress = Steps::new("verdicts", planned - skipped, show_progress);
    let mut desk = Desk { store, progress, summary };
    // Rows of failed calls wait for the next call: a judge that turns out to be gone leaves none behind.
    let mut waiting: Vec<VerdictRow> = Vec::new();
    let mut failed_in_a_row = 0;
    for call in &calls {
        if judged(call) == call.probes.len() {
            continue;
        }
        if stop.load(Ordering::Relaxed) {
            desk.summary.stopped = true;
            break;
        }
        let exchange = |probe: &PlannedProbe| Exchange {
            probe: probe.clone(),
            answer: answers.get(&key(call, probe)).cloned().flatten(),
        };
        let exchanges: Vec<Exchange> = call.probes.iter().map(exchange).collect();
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
        match judge_call(judge, rubric, call.case, &exchanges) {
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
        ..VerdictRow::default()
    };
    match verdict {
        _ if exchange.answer.is_none() => row.error = Some(NO_ANSWER.to_owned()),
        Ok(Verdict { said, probability, reason }) => {
            match said {
                Said::Correct(correct) => row.correct = Some(correct),
                Said::Score(score) => row.score = Some(score),
                Said::Choice(choice) => {
                    let expected = exchange.probe.judge.get(EXPECTED).and_then(serde_json::Value::as_str);
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

/// The note of a probe that says which choice is right.
const EXPECTED: &str = "expected";

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
    rubric: &Rubric,
    case: &PlannedCase,
    exchanges: &[Exchange],
) -> Result<Judged, JudgeError> {
    let content = judge_prompt(rubric, case, exchanges)?;
    let messages = vec![Message { role: MessageRole::User, content }];
    match judge {
        Judge::Scoring(model) => judge_by_scoring(*model, &messages, exchanges, rubric.verdict),
        Judge::Reply { model, sampling } => {
            judge_by_reply(*model, sampling, &messages, exchanges, rubric.verdict)
        }
    }
}

/// The judge's instructions for one call, with everything that it may see.
pub fn judge_prompt(
    rubric: &Rubric,
    case: &PlannedCase,
    exchanges: &[Exchange],
) -> Result<String, JudgeError> {
    let failed = |e: minijinja::Error| JudgeError::NoVerdict(format!("the judge's template failed: {e}"));
    let probe = |Exchange { probe, answer }: &Exchange| {
        context! {
            id => probe.id.as_str(),
            query => probe.query.as_str(),
            answer => answer.as_deref().unwrap_or(""),
            facets => &probe.facets,
            ..minijinja::Value::from(Serde(&probe.judge))
        }
    };
    let probes: Vec<minijinja::Value> = exchanges.iter().map(probe).collect();
    let mut environment = Environment::new();
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    let context = context! {
        probes => probes,
        labels => &case.labels,
        ..minijinja::Value::from(Serde(&case.judge))
    };
    environment.render_str(rubric.template, context).map_err(failed)
}

/// Reads a judge by scoring: writes the JSON for it and weighs the words that it may say at each decision.
///
/// The words are scored with the space before them, because that is how tokenisers see them in JSON; p is their softmax. A tie of
/// `true` and `false` counts as not correct, and one of others as the first of them.
pub fn judge_by_scoring(
    model: &mut dyn ScoringModel,
    messages: &[Message],
    exchanges: &[Exchange],
    kind: VerdictKind,
) -> Result<Judged, JudgeError> {
    let mut text = "{".to_owned();
    let mut verdicts = Vec::with_capacity(exchanges.len());
    let (words, says) = words(kind);
    let asked: Vec<&str> = words.iter().map(String::as_str).collect();
    for (i, exchange) in exchanges.iter().enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        text.push_str(&json_string(&exchange.probe.id));
        text.push_str(&format!(": {{\"{}\":", kind.key()));
        let scores = model.score(messages, &text, &asked)?;
        if scores.len() != words.len() {
            return Err(JudgeError::NoVerdict(format!(
                "the judge gave {} scores for {} words",
                scores.len(),
                words.len()
            )));
        }
        // One over one and the others' odds against it.
        let against = |at: usize| {
            let others = scores.iter().enumerate().filter(|(other, _)| *other != at);
            others.map(|(_, other)| (other - scores[at]).exp()).sum::<f64>()
        };
        let probabilities: Vec<f64> = (0..scores.len()).map(|at| 1.0 / (1.0 + against(at))).collect();
        if probabilities.iter().any(|p| !p.is_finite()) {
            let scores: Vec<String> = scores.iter().map(ToString::to_string).collect();
            return Err(JudgeError::NoVerdict(format!(
                "the judge's log-probabilities are {}",
                scores.join(" and ")
            )));
        }
        let (chosen, probability) = match kind {
            // The probability is that of `true`, whichever is said.
            VerdictKind::Correct => (usize::from(probabilities[0] <= 0.5), probabilities[0]),
            _ => {
                let at = (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
                let at = at.unwrap_or_default();
                (at, probabilities[at])
            }
        };
        text.push_str(&words[chosen]);
        text.push_str(", \"reason\": \"");
        let reason = clean_reason(&model.continue_from(messages, &text, "\"", REASON_TOKENS)?);
        // The opening quote is there already.
        text.push_str(json_string(&reason).get(1..).unwrap_or("\""));
        text.push('}');
        verdicts.push(Ok(Verdict {
            said: says[chosen].clone(),
            probability: Some(probability),
            reason: (!reason.is_empty()).then_some(reason),
        }));
    }
    text.push('}');
    Ok(Judged { verdicts, replies: vec![text] })
}

/// The words of a kind of verdict as JSON, each with the space before it, and what each says.
fn words(kind: VerdictKind) -> (Vec<String>, Vec<Said>) {
    let of = |said: Said| {
        let word = match &said {
            Said::Correct(correct) => format!(" {correct}"),
            Said::Score(score) => format!(" {score}"),
            Said::Choice(choice) => format!(" {}", json_string(choice)),
        };
        (word, said)
    };
    match kind {
        VerdictKind::Correct => [true, false].map(|correct| of(Said::Correct(correct))).into_iter().unzip(),
        VerdictKind::Score { most } => (0..=most).map(|score| of(Said::Score(score))).unzip(),
        VerdictKind::Choice { of: words } => words.iter().map(|w| of(Said::Choice((*w).to_owned()))).unzip(),
    }
}

/// A reason on one line, without the control characters and stray backslashes that would break the JSON around it.
fn clean_reason(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() || c == '\\' { ' ' } else { c }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Asks a judge for JSON and reads its reply leniently. A reply that lacks a verdict is sent back once with the request
/// for JSON alone; what is still missing then is an error for the exchanges concerned.
pub fn judge_by_reply(
    model: &mut dyn ChatModel,
    sampling: &Sampling,
    messages: &[Message],
    exchanges: &[Exchange],
    kind: VerdictKind,
) -> Result<Judged, JudgeError> {
    let ids: Vec<&str> = exchanges.iter().map(|exchange| exchange.probe.id.as_str()).collect();
    let first = model.reply(messages, sampling)?;
    let first = first.answer().map_err(JudgeError::NoVerdict)?.to_owned();
    let mut found = parse_verdicts(&first, &ids, kind);
    let mut replies = vec![first.clone()];
    if found.iter().any(Option::is_none) {
        let mut again = messages.to_vec();
        again.push(Message { role: MessageRole::Assistant, content: first });
        again.push(Message {
            role: MessageRole::User,
            content: format!(
                "That could not be read. Reply with the JSON object alone, with the keys {}, each holding \
                 \"{}\" ({}) and \"reason\".",
                ids.join(", "),
                kind.key(),
                kind.values()
            ),
        });
        let second = model.reply(&again, sampling)?.text;
        for (verdict, second) in found.iter_mut().zip(parse_verdicts(&second, &ids, kind)) {
            if verdict.is_none() {
                *verdict = second;
            }
        }
        replies.push(second);
    }
    let last = replies.last().map(String::as_str).unwrap_or_default();
    let begun: String = last.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
    let missing = || format!("no verdict in the judge's reply, twice; it began: {begun}");
    let verdicts = found.into_iter().map(|verdict| verdict.ok_or_else(missing)).collect();
    Ok(Judged { verdicts, replies })
}
