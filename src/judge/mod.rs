//! Judging: one call a case with the judge-only fields and every query with its response; a boolean with a short reason
//! for each (STALE, appendices E.1 and E.3).
//!
//! A model whose probabilities can be read is judged with by scoring: the JSON is written for it up to each decision,
//! and `true` is weighed against `false` there, so that none of its verdicts can be unparseable. Any other model is asked
//! for the JSON, and its reply is read leniently (see `reply`). Called by `palimpsest judge`; it sees no history.

pub mod agreement;
pub mod reply;
mod verdict;

use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::{Environment, context};

use crate::chat::{ChatError, ChatModel, Message, MessageRole, Sampling, ScoringModel};
use crate::progress::Steps;
use crate::run::condition::named;
use crate::run::error::RunError;
use crate::run::plan::PlannedCase;
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::run::runner::Summary;
use crate::run::store::RunStore;
use crate::run::subject::PATIENCE;
use reply::parse_verdicts;

pub use verdict::Verdict;

const TEMPLATE: &str = include_str!("templates/judge.j2");

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// The probe's id.
    pub id: String,
    /// The query.
    pub query: String,
    /// The response; absent where there is none.
    pub answer: Option<String>,
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

/// Judges what has no clean verdict of this judge yet. Verdicts of other judges stay beside the new ones.
///
/// A probe without an answer gets an error row and costs no call; a case all of whose probes lack one costs none.
pub fn run(
    store: &mut RunStore,
    judge: &mut Judge<'_>,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Summary, RunError> {
    let name = judge.name();
    let plan = store.plan().to_vec();
    let answers = store.answers();
    let verdicts = store.verdicts();
    let answer = |case: &str, probe: &str, condition: &str| {
        let of = |row: &&AnswerRow| row.case == case && row.probe == probe && row.condition == condition;
        answers.iter().find(of).filter(|row| row.error.is_none())
    };
    let is_clean = |case: &str, probe: &str, condition: &str| {
        verdicts.iter().any(|row| {
            row.judge == name
                && row.case == case
                && row.probe == probe
                && row.condition == condition
                && row.error.is_none()
                && row.correct.is_some()
        })
    };
    let conditions = store.header().identity.condition_names().into_iter().map(str::to_owned);
    let conditions: Vec<String> = conditions.collect();
    let calls = || plan.iter().flat_map(|case| conditions.iter().map(move |condition| (case, condition)));
    let planned = store.planned();
    let skipped =
        calls().flat_map(|(c, condition)| c.probes.iter().map(move |p| (&c.case, &p.id, condition)));
    let skipped = skipped.filter(|(case, probe, condition)| is_clean(case, probe, condition)).count();
    let summary = Summary { planned, skipped, done: 0, errors: 0, stopped: false };
    let progress = Steps::new("verdicts", planned - skipped, show_progress);
    let mut desk = Desk { store, progress, summary };
    // Rows of failed calls wait for the next call: a judge that turns out to be gone leaves none behind.
    let mut waiting: Vec<VerdictRow> = Vec::new();
    let mut failed_in_a_row = 0;
    for (case, condition) in calls() {
        if case.probes.iter().all(|probe| is_clean(&case.case, &probe.id, condition)) {
            continue;
        }
        if stop.load(Ordering::Relaxed) {
            desk.summary.stopped = true;
            break;
        }
        let exchanges = exchanges(case, |case, probe| answer(case, probe, condition));
        let rows = |verdicts: Verdicts| {
            let rows = exchanges.iter().zip(verdicts);
            let rows = rows.map(|(e, verdict)| verdict_row((case, condition), e, &name, verdict));
            // A case is judged as a whole; what was clean before stays as it is.
            rows.filter(|row| !is_clean(&row.case, &row.probe, &row.condition)).collect::<Vec<_>>()
        };
        let same_error = |error: String| exchanges.iter().map(|_| Err(error.clone())).collect::<Verdicts>();
        if exchanges.iter().all(|exchange| exchange.answer.is_none()) {
            desk.file(rows(same_error(NO_ANSWER.to_owned())))?;
            continue;
        }
        match judge_case(judge, case, &exchanges) {
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
                desk.file(rows(outcome.unwrap_or_else(|error| same_error(error.to_string()))))?;
            }
        }
    }
    desk.file(waiting)?;
    if !desk.summary.stopped {
        desk.store.finish()?;
    }
    Ok(desk.summary)
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

fn exchanges<'a>(case: &PlannedCase, answer: impl Fn(&str, &str) -> Option<&'a AnswerRow>) -> Vec<Exchange> {
    case.probes
        .iter()
        .map(|probe| Exchange {
            id: probe.id.clone(),
            query: probe.query.clone(),
            answer: answer(&case.case, &probe.id).and_then(|row| row.answer.clone()),
        })
        .collect()
}

fn verdict_row(
    (case, condition): (&PlannedCase, &str),
    exchange: &Exchange,
    judge: &str,
    verdict: Result<Verdict, String>,
) -> VerdictRow {
    let mut row = VerdictRow {
        case: case.case.clone(),
        probe: exchange.id.clone(),
        condition: condition.to_owned(),
        judge: judge.to_owned(),
        correct: None,
        probability: None,
        reason: None,
        error: None,
    };
    match verdict {
        _ if exchange.answer.is_none() => row.error = Some(NO_ANSWER.to_owned()),
        Ok(verdict) => {
            row.correct = Some(verdict.correct);
            row.probability = verdict.probability;
            row.reason = verdict.reason;
        }
        Err(error) => row.error = Some(error),
    }
    row
}

/// One verdict, or why there is none, for each exchange in order.
type Verdicts = Vec<Result<Verdict, String>>;

fn judge_case(
    judge: &mut Judge<'_>,
    case: &PlannedCase,
    exchanges: &[Exchange],
) -> Result<Verdicts, JudgeError> {
    let messages = vec![Message { role: MessageRole::User, content: judge_prompt(case, exchanges)? }];
    match judge {
        Judge::Scoring(model) => {
            let verdicts = judge_by_scoring(*model, &messages, exchanges)?;
            Ok(verdicts.into_iter().map(Ok).collect())
        }
        Judge::Reply { model, sampling } => judge_by_reply(*model, sampling, &messages, exchanges),
    }
}

/// The judge's instructions for one case, with everything that it may see.
pub fn judge_prompt(case: &PlannedCase, exchanges: &[Exchange]) -> Result<String, JudgeError> {
    let failed = |e: minijinja::Error| JudgeError::NoVerdict(format!("the judge's template failed: {e}"));
    let probes: Vec<minijinja::Value> = exchanges
        .iter()
        .map(|e| {
            context! { id => e.id.as_str(), query => e.query.as_str(), answer => e.answer.as_deref().unwrap_or("") }
        })
        .collect();
    let mut environment = Environment::new();
    environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    environment
        .render_str(
            TEMPLATE,
            context! {
                old => case.judge.old.as_str(),
                new => case.judge.new.as_str(),
                explanation => case.judge.explanation.as_str(),
                probes => probes,
            },
        )
        .map_err(failed)
}

/// Reads a judge by scoring: writes the JSON for it and weighs ` true` against ` false` at each decision.
///
/// The words are scored with the space before them, because that is how tokenisers see them in JSON; p is the softmax of
/// the two, and a tie counts as not correct.
pub fn judge_by_scoring(
    model: &mut dyn ScoringModel,
    messages: &[Message],
    exchanges: &[Exchange],
) -> Result<Vec<Verdict>, JudgeError> {
    let mut text = "{".to_owned();
    let mut verdicts = Vec::with_capacity(exchanges.len());
    for (i, exchange) in exchanges.iter().enumerate() {
        if i > 0 {
            text.push_str(", ");
        }
        text.push_str(&json_string(&exchange.id));
        text.push_str(": {\"correct\":");
        let scores = model.score(messages, &text, &[" true", " false"])?;
        let &[yes, no] = scores.as_slice() else {
            return Err(JudgeError::NoVerdict(format!(
                "the judge gave {} scores for two words",
                scores.len()
            )));
        };
        let probability = 1.0 / (1.0 + (no - yes).exp());
        if !probability.is_finite() {
            return Err(JudgeError::NoVerdict(format!("the judge's log-probabilities are {yes} and {no}")));
        }
        let correct = probability > 0.5;
        text.push_str(if correct { " true" } else { " false" });
        text.push_str(", \"reason\": \"");
        let reason = clean_reason(&model.continue_from(messages, &text, "\"", REASON_TOKENS)?);
        // The opening quote is there already.
        text.push_str(json_string(&reason).get(1..).unwrap_or("\""));
        text.push('}');
        verdicts.push(Verdict {
            correct,
            probability: Some(probability),
            reason: (!reason.is_empty()).then_some(reason),
        });
    }
    Ok(verdicts)
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
) -> Result<Vec<Result<Verdict, String>>, JudgeError> {
    let ids: Vec<&str> = exchanges.iter().map(|exchange| exchange.id.as_str()).collect();
    let first = model.reply(messages, sampling)?.text;
    let mut found = parse_verdicts(&first, &ids);
    let mut last = first.clone();
    if found.iter().any(Option::is_none) {
        let mut again = messages.to_vec();
        again.push(Message { role: MessageRole::Assistant, content: first });
        again.push(Message {
            role: MessageRole::User,
            content: format!(
                "That could not be read. Reply with the JSON object alone, with the keys {}, each holding \
                 \"correct\" (true or false) and \"reason\".",
                ids.join(", ")
            ),
        });
        last = model.reply(&again, sampling)?.text;
        for (verdict, second) in found.iter_mut().zip(parse_verdicts(&last, &ids)) {
            if verdict.is_none() {
                *verdict = second;
            }
        }
    }
    let begun: String = last.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
    Ok(found
        .into_iter()
        .map(|verdict| {
            verdict.ok_or_else(|| format!("no verdict in the judge's reply, twice; it began: {begun}"))
        })
        .collect())
}
