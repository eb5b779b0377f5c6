//! Runs one row through a stage: attempts at it or at its steps, with checks and judges, up to acceptance or the last try.

use serde_json::{Map, Value, json};

use super::asking::{Read, Said, messages, read};
use super::stage_file::{ACCEPTED, Asked, Attempt, Checked, ERROR, Judged};
use crate::chat::{ChatError, Message};
use palimpsest_core::digest::sha256;
use palimpsest_data::build::expression::holds;
use palimpsest_data::build::setting::draws;
use palimpsest_data::build::spec::{CheckCall, Judge, Steps};
use palimpsest_data::build::{Ask, BuildError, Row, RowError, Spec, Stage};
use palimpsest_data::case::draw::Draws;

/// Seeds of samplers; some servers take no larger ones.
const SEEDS: u64 = 1 << 31;

/// Asks a model with a seed, or tells a recorded reply.
pub type Reply<'a> = &'a mut dyn FnMut(&Ask, &[Message], u64) -> Result<Said, ChatError>;

/// Tells what a check found, if the row does not pass, or what it found before.
pub type Found<'a> = &'a mut dyn FnMut(&CheckCall, &Row) -> Result<Option<String>, RowError>;

pub struct Life<'a> {
    spec: &'a Spec,
    stage: &'a Stage,
    /// The spec's settings and the stage's own, for templates.
    settings: Map<String, Value>,
    reply: Reply<'a>,
    check: Found<'a>,
    pub attempts: Vec<Attempt>,
}

/// The spec's settings, and the stage's own over them.
pub fn settings(spec: &Spec, stage: &Stage) -> Map<String, Value> {
    let mut with = spec.settings.clone();
    with.extend(stage.with.clone());
    with
}

/// A fault of a row as an error of its stage.
pub fn fault(stage: &Stage, error: RowError) -> BuildError {
    let (RowError::Fault(message) | RowError::Rejected(message)) = error;
    BuildError::stage(&stage.name, message)
}

impl<'a> Life<'a> {
    pub fn new(spec: &'a Spec, stage: &'a Stage, reply: Reply<'a>, check: Found<'a>) -> Self {
        Life { spec, stage, settings: settings(spec, stage), reply, check, attempts: Vec::new() }
    }

    /// A fault if the spec is wrong: a template or a check that cannot be evaluated.
    pub fn live(&mut self, row: &Row) -> Result<Row, RowError> {
        match (&self.stage.ask, &self.stage.steps) {
            (None, _) if self.stage.checks.is_empty() && self.stage.judges.is_empty() => Ok(row.clone()),
            (Some(ask), Some(steps)) => self.stepped(ask, steps, row),
            (ask, _) => Ok(self.tried(ask.as_ref(), row, &Map::new())?.0),
        }
    }

    fn stepped(&mut self, ask: &Ask, steps: &Steps, row: &Row) -> Result<Row, RowError> {
        let items = steps.over.as_ref().map(|path| row.list(path)).transpose()?;
        let most = items.map_or(usize::MAX, <[Value]>::len).min(steps.most.unwrap_or(usize::MAX));
        let (mut kept, mut failed): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for step in 0..most {
            let before = self.attempts.len();
            let item = items.and_then(|items| items.get(step));
            let mut extra = Map::new();
            extra.insert(steps.into.clone(), kept.clone().into());
            extra.insert("step".to_owned(), step.into());
            extra.extend(item.map(|item| ("item".to_owned(), item.clone())));
            if let Some(until) = &steps.until {
                let mut fields = row.fields.clone();
                fields.extend(extra.clone());
                if holds(until, &fields).map_err(|why| wrong(row, &format!("steps.until: {why}")))? {
                    break;
                }
            }
            match (self.tried(Some(ask), row, &extra), item) {
                (Ok(_), Some(item)) if steps.keep_item => kept.push(item.clone()),
                (Ok((_, value)), _) => kept.push(value),
                (Err(RowError::Rejected(_)), _) if steps.skip => continue,
                (Err(error), _) => return Err(error),
            }
            failed.push(self.attempts.iter().skip(before).filter_map(refused).collect());
        }
        if kept.len() < steps.least {
            return Err(RowError::Rejected("steps".to_owned()));
        }
        let mut made = row.clone();
        made.fields.insert(steps.into.clone(), kept.into());
        made.fields.extend(steps.failed.clone().map(|failures| (failures, failed.into())));
        Ok(made)
    }

    /// Attempts until one is accepted: the row with the reply, and the reply's value. `extra`: fields of the step.
    fn tried(
        &mut self,
        ask: Option<&Ask>,
        row: &Row,
        extra: &Map<String, Value>,
    ) -> Result<(Row, Value), RowError> {
        let (before, mut last) = (self.attempts.len(), String::new());
        // Without an ask, another attempt would be the same.
        for _ in 0..ask.map_or(1, |_| self.stage.tries) {
            let mut attempt = Attempt {
                row: row.id.clone(),
                attempt: self.attempts.iter().filter(|attempt| attempt.row == row.id).count(),
                step: extra.get("step").and_then(|step| usize::try_from(step.as_u64()?).ok()),
                verdict: ACCEPTED.to_owned(),
                ..Attempt::default()
            };
            let failures = self.attempts.iter().skip(before).map(|attempt| {
                let reply = attempt.asked.as_ref().map_or("", |asked| &asked.reply);
                json!({"reply": reply, "why": attempt.why})
            });
            let made = self.attempt(ask, row, (extra, failures.collect()), &mut attempt);
            self.attempts.push(attempt);
            match made {
                Err(RowError::Rejected(verdict)) => last = verdict,
                made => return made,
            }
        }
        Err(RowError::Rejected(last))
    }

    fn attempt(
        &mut self,
        ask: Option<&Ask>,
        row: &Row,
        (extra, failures): (&Map<String, Value>, Value),
        attempt: &mut Attempt,
    ) -> Result<(Row, Value), RowError> {
        let mut draws = draws(self.spec.seed, &self.stage.name, &row.id, attempt.attempt);
        let (mut made, mut seen, mut value) = (row.clone(), row.clone(), Value::Null);
        seen.fields.extend(extra.clone());
        if let Some(ask) = ask {
            let mut fields = seen.fields.clone();
            fields.insert("failures".to_owned(), failures);
            let (asked, said) = self.asked(ask, row, fields, &mut draws)?;
            attempt.asked = Some(asked);
            value = said.map_err(|(verdict, why)| rejected(attempt, verdict.to_owned(), why))?;
            made.fields.extend(fields_of(ask, &value));
            seen.fields.extend(fields_of(ask, &value));
        }
        for call in &self.stage.checks {
            let found = (self.check)(call, &seen)?;
            let name = call.check.clone();
            attempt.checks.push(Checked { name, pass: found.is_none(), found: found.clone() });
            if let Some(found) = found {
                return Err(rejected(attempt, format!("check {}", call.check), found));
            }
        }
        for Judge { name, ask, accept } in &self.stage.judges {
            let (asked, said) = self.asked(ask, row, seen.fields.clone(), &mut draws)?;
            // No decision is a rejection.
            let pass = said.as_ref().is_ok_and(|said| holds(accept, &fields_of(ask, said)) == Ok(true));
            let (verdict, why) = match said {
                Err((ERROR, why)) => (ERROR.to_owned(), why),
                _ => (format!("judge {name}"), format!("the judge {name} said: {}", asked.reply)),
            };
            attempt.judges.push(Judged { name: name.clone(), pass, asked });
            if !pass {
                return Err(rejected(attempt, verdict, why));
            }
        }
        Ok((made, value))
    }

    /// Asks. The value of the reply, or the verdict on it and what is wrong.
    fn asked(
        &mut self,
        ask: &Ask,
        row: &Row,
        mut fields: Map<String, Value>,
        draws: &mut Draws,
    ) -> Result<(Asked, Read), RowError> {
        fields.insert("settings".to_owned(), self.settings.clone().into());
        let messages = messages(ask, &fields).map_err(|why| wrong(row, &why))?;
        let mut asked = Asked { prompt: digest(&messages), seed: draws.below(SEEDS), ..Asked::default() };
        let value = match (self.reply)(ask, &messages, asked.seed) {
            Ok(said) => {
                let value = read(ask, &said);
                (asked.reply, asked.ending) = (said.text, said.ending);
                value
            }
            Err(error) => {
                asked.error = Some(error.message.clone());
                Err((ERROR, error.message))
            }
        };
        asked.parsed = value.as_ref().ok().filter(|value| !value.is_string()).cloned();
        Ok((asked, value))
    }
}

fn wrong(row: &Row, why: &str) -> RowError {
    RowError::Fault(format!("row {}: {why}", row.id))
}

fn rejected(attempt: &mut Attempt, verdict: String, why: String) -> RowError {
    (attempt.verdict, attempt.why) = (verdict.clone(), why);
    RowError::Rejected(verdict)
}

/// The reply of an attempt that a check or a judge refused.
fn refused(attempt: &Attempt) -> Option<Value> {
    let is_refused = ["check ", "judge "].iter().any(|kind| attempt.verdict.starts_with(kind));
    let asked = attempt.asked.as_ref().filter(|_| is_refused)?;
    Some(asked.parsed.clone().unwrap_or_else(|| asked.reply.trim().into()))
}

pub fn digest(messages: &[Message]) -> String {
    sha256(serde_json::to_string(messages).unwrap_or_default())
}

/// Fields that a reply gives the row: the field that it becomes, an object's own, or `reply` for the text of a step.
fn fields_of(ask: &Ask, value: &Value) -> Map<String, Value> {
    match (&ask.into, value) {
        (None, Value::Object(fields)) => fields.clone(),
        (into, value) => {
            Map::from_iter([(into.clone().unwrap_or_else(|| "reply".to_owned()), value.clone())])
        }
    }
}
