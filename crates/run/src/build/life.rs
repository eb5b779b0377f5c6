//! What becomes of one row in a stage: attempts at it or at its steps, with checks and judges, up to acceptance or the last try.

use serde_json::{Map, Value, json};

use super::asking::{Said, messages, read};
use super::stage_file::{ACCEPTED, Asked, Attempt, Checked, ERROR, Judged};
use crate::chat::{ChatError, Message};
use palimpsest_core::digest::sha256;
use palimpsest_data::build::expression::holds;
use palimpsest_data::build::setting::draws;
use palimpsest_data::build::spec::{CheckCall, Steps};
use palimpsest_data::build::{Ask, BuildError, Row, RowError, Spec, Stage};
use palimpsest_data::case::draw::Draws;

/// Seeds of samplers; some servers take no larger ones.
const SEEDS: u64 = 1 << 31;

/// Answers and checks: of models and functions, or recorded ones.
pub trait Outside {
    fn reply(&mut self, ask: &Ask, messages: &[Message], seed: u64) -> Result<Said, ChatError>;

    /// What a check found, if the row does not pass.
    fn check(&mut self, call: &CheckCall, row: &Row) -> Result<Option<String>, BuildError>;
}

pub struct Life<'a> {
    pub seed: u64,
    pub stage: &'a Stage,
    /// The spec's settings and the stage's own, for templates.
    pub settings: &'a Map<String, Value>,
    pub outside: &'a mut dyn Outside,
    pub attempts: Vec<Attempt>,
}

/// The row that was made, or the reason why there is none.
type Lived = Result<Row, String>;

/// A verdict, and what is told of it.
type Refused = (String, String);

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

impl Life<'_> {
    /// Fails if the spec is wrong: a template or a check that cannot be evaluated.
    pub fn live(&mut self, row: &Row) -> Result<Lived, BuildError> {
        match (&self.stage.ask, &self.stage.steps) {
            (None, _) if self.stage.checks.is_empty() && self.stage.judges.is_empty() => Ok(Ok(row.clone())),
            (None, _) => self.attempt(None, row, &Map::new(), &[]).map(|made| made.map(|(row, _)| row)),
            (Some(ask), None) => self.tried(ask, row, &Map::new()).map(|made| made.map(|(row, _)| row)),
            (Some(ask), Some(steps)) => self.stepped(ask, steps, row),
        }
    }

    fn stepped(&mut self, ask: &Ask, steps: &Steps, row: &Row) -> Result<Lived, BuildError> {
        let list = |path: &String| row.list(path).map_err(|error| fault(self.stage, error));
        let items = steps.over.as_ref().map(list).transpose()?;
        let most = items.map_or(usize::MAX, <[Value]>::len).min(steps.most.unwrap_or(usize::MAX));
        let (mut kept, mut failed): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for step in 0..most {
            let before = self.attempts.len();
            let mut extra = Map::new();
            extra.insert(steps.into.clone(), kept.clone().into());
            extra.insert("step".to_owned(), step.into());
            let item = items.and_then(|items| items.get(step));
            extra.extend(item.map(|item| ("item".to_owned(), item.clone())));
            if let Some(until) = &steps.until {
                let mut fields = row.fields.clone();
                fields.extend(extra.clone());
                if holds(until, &fields).map_err(|why| self.wrong(row, &format!("steps.until: {why}")))? {
                    break;
                }
            }
            match (self.tried(ask, row, &extra)?, item) {
                (Ok(_), Some(item)) if steps.keep_item => kept.push(item.clone()),
                (Ok((_, value)), _) => kept.push(value),
                (Err(_), _) if steps.skip => continue,
                (Err(reason), _) => return Ok(Err(reason)),
            }
            failed.push(self.attempts.iter().skip(before).filter_map(refused).collect());
        }
        if kept.len() < steps.least {
            return Ok(Err("steps".to_owned()));
        }
        let mut made = row.clone();
        made.fields.insert(steps.into.clone(), kept.into());
        made.fields.extend(steps.failed.clone().map(|failures| (failures, failed.into())));
        Ok(Ok(made))
    }

    /// Attempts until one is accepted. `extra`: fields of the step.
    fn tried(
        &mut self,
        ask: &Ask,
        row: &Row,
        extra: &Map<String, Value>,
    ) -> Result<Result<(Row, Value), String>, BuildError> {
        let (mut failures, mut last) = (Vec::new(), String::new());
        for _ in 0..self.stage.tries {
            match self.attempt(Some(ask), row, extra, &failures)? {
                Ok(made) => return Ok(Ok(made)),
                Err(reason) => last = reason,
            }
            let failed = self.attempts.last().map(|attempt| {
                let reply = attempt.asked.as_ref().map_or("", |asked| &asked.reply);
                json!({"reply": reply, "why": attempt.why})
            });
            failures.extend(failed);
        }
        Ok(Err(last))
    }

    /// One attempt: the row with the reply, and the reply's value.
    fn attempt(
        &mut self,
        ask: Option<&Ask>,
        row: &Row,
        extra: &Map<String, Value>,
        failures: &[Value],
    ) -> Result<Result<(Row, Value), String>, BuildError> {
        let number = self.attempts.iter().filter(|attempt| attempt.row == row.id).count();
        let step = extra.get("step").and_then(Value::as_u64).and_then(|step| usize::try_from(step).ok());
        let mut attempt = Attempt { row: row.id.clone(), attempt: number, step, ..Attempt::default() };
        let mut draws = draws(self.seed, &self.stage.name, &row.id, number);
        let made = self.made(ask, row, (extra, failures), &mut draws, &mut attempt)?;
        (attempt.verdict, attempt.why) = match &made {
            Ok(_) => (ACCEPTED.to_owned(), String::new()),
            Err(reason) => reason.clone(),
        };
        self.attempts.push(attempt);
        Ok(made.map_err(|(verdict, _)| verdict))
    }

    fn made(
        &mut self,
        ask: Option<&Ask>,
        row: &Row,
        (extra, failures): (&Map<String, Value>, &[Value]),
        draws: &mut Draws,
        attempt: &mut Attempt,
    ) -> Result<Result<(Row, Value), Refused>, BuildError> {
        let mut seen = row.clone();
        seen.fields.extend(extra.clone());
        let (mut made, mut value) = (row.clone(), Value::Null);
        if let Some(ask) = ask {
            let mut fields = seen.fields.clone();
            fields.insert("failures".to_owned(), failures.into());
            let (asked, said) = self.asked(ask, row, fields, draws)?;
            attempt.asked = Some(asked);
            match said {
                Ok(said) => value = said,
                Err(reason) => return Ok(Err(reason)),
            }
            made.fields.extend(fields_of(ask, &value));
            seen.fields.extend(fields_of(ask, &value));
        }
        for call in &self.stage.checks {
            let found = self.outside.check(call, &seen)?;
            let name = call.check.clone();
            attempt.checks.push(Checked { name: name.clone(), pass: found.is_none(), found: found.clone() });
            if let Some(found) = found {
                return Ok(Err((format!("check {name}"), found)));
            }
        }
        for judge in &self.stage.judges {
            let (asked, said) = self.asked(&judge.ask, row, seen.fields.clone(), draws)?;
            // No decision is a rejection.
            let accepts = |said: &Value| holds(&judge.accept, &fields_of(&judge.ask, said)) == Ok(true);
            let pass = said.as_ref().is_ok_and(accepts);
            let reason = match said {
                Err((verdict, why)) if verdict == ERROR => (verdict, why),
                _ => (
                    format!("judge {}", judge.name),
                    format!("the judge {} said: {}", judge.name, asked.reply),
                ),
            };
            attempt.judges.push(Judged { name: judge.name.clone(), pass, asked });
            if !pass {
                return Ok(Err(reason));
            }
        }
        Ok(Ok((made, value)))
    }

    fn asked(
        &mut self,
        ask: &Ask,
        row: &Row,
        mut fields: Map<String, Value>,
        draws: &mut Draws,
    ) -> Result<(Asked, Result<Value, Refused>), BuildError> {
        fields.insert("settings".to_owned(), self.settings.clone().into());
        let messages = messages(ask, &fields).map_err(|why| self.wrong(row, &why))?;
        let seed = draws.below(SEEDS);
        let mut asked = Asked { prompt: digest(&messages), seed, ..Asked::default() };
        let said = match self.outside.reply(ask, &messages, seed) {
            Ok(said) => said,
            Err(error) => {
                asked.error = Some(error.message.clone());
                return Ok((asked, Err((ERROR.to_owned(), error.message))));
            }
        };
        let value = read(ask, &said).map_err(|(verdict, why)| (verdict.to_owned(), why));
        asked.parsed = value.as_ref().ok().filter(|value| !value.is_string()).cloned();
        (asked.reply, asked.ending) = (said.text, said.ending);
        Ok((asked, value))
    }

    fn wrong(&self, row: &Row, why: &str) -> BuildError {
        BuildError::stage(&self.stage.name, format!("row {}: {why}", row.id))
    }
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
        (Some(into), value) => Map::from_iter([(into.clone(), value.clone())]),
        (None, Value::Object(fields)) => fields.clone(),
        (None, other) => Map::from_iter([("reply".to_owned(), other.clone())]),
    }
}
