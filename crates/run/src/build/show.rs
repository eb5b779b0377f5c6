//! A row's way through the stages: its attempts, with the prompts rendered again, and its provenance.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use anyhow::ensure;
use serde_json::{Map, Value, json};

use super::asking::Said;
use super::folder::{BuildFolder, PROVENANCE};
use super::life::{Life, Outside, digest, settings};
use super::stage_file::{ACCEPTED, Asked, Attempt, Checked, Line, Outcome};
use crate::chat::{ChatError, Message};
use palimpsest_data::build::kind::Published;
use palimpsest_data::build::spec::CheckCall;
use palimpsest_data::build::{Ask, BuildError, Row, Spec, Stage};
use palimpsest_data::ground::jsonl::read_rows;

/// A row at a stage.
pub struct Passed {
    pub stage: String,
    pub outcome: Outcome,
    /// Each with the messages of its question and of its judges' questions; `None` where they cannot be rendered as they were.
    pub attempts: Vec<(Attempt, Vec<Option<Vec<Message>>>)>,
}

/// Outcomes of a stage, with their attempts.
struct Stored {
    rows: Vec<(Vec<Attempt>, Outcome)>,
    /// Positions of the outcomes that made a row, by its id.
    made: HashMap<String, usize>,
}

impl Stored {
    fn of(lines: Vec<Line>) -> Self {
        let (mut rows, mut attempts) = (Vec::new(), Vec::new());
        let mut made = HashMap::new();
        for line in lines {
            match line {
                Line::Attempt(attempt) => attempts.push(*attempt),
                Line::Row(outcome) => {
                    made.extend(outcome.made.iter().map(|row| (row.id.clone(), rows.len())));
                    rows.push((std::mem::take(&mut attempts), *outcome));
                }
                Line::End { .. } => {}
            }
        }
        Stored { rows, made }
    }

    /// The outcome that took, made or rejected a row.
    fn position(&self, id: &str) -> Option<usize> {
        let has = |(_, outcome): &(Vec<Attempt>, Outcome)| {
            outcome.id == id || outcome.rejected.iter().any(|rejected| rejected.id == id)
        };
        self.made.get(id).copied().or_else(|| self.rows.iter().position(has))
    }
}

fn stored(folder: &BuildFolder) -> anyhow::Result<Vec<Stored>> {
    (0..folder.spec().stages.len()).map(|nth| Ok(Stored::of(folder.lines(nth)?))).collect()
}

/// Positions of the outcomes by stage that an outcome of stage `nth` comes from, itself included.
fn traced(spec: &Spec, stored: &[Stored], nth: usize, position: usize) -> BTreeMap<usize, BTreeSet<usize>> {
    let mut found = BTreeMap::from([(nth, BTreeSet::from([position]))]);
    for at in (0..=nth).rev() {
        let (Some(stage), Some(here)) = (spec.stages.get(at), stored.get(at)) else { continue };
        let positions = found.get(&at).cloned().unwrap_or_default();
        let parents: Vec<&String> = positions
            .iter()
            .filter_map(|at| here.rows.get(*at))
            .flat_map(|(_, outcome)| &outcome.parents)
            .collect();
        for (before, earlier) in stored.iter().enumerate().take(at) {
            if spec.stages.get(before).is_some_and(|earlier| stage.rows.contains(&earlier.name)) {
                let positions = parents.iter().filter_map(|id| earlier.made.get(*id).copied());
                found.entry(before).or_default().extend(positions);
            }
        }
    }
    found.retain(|_, positions| !positions.is_empty());
    found
}

/// Lines of `provenance.jsonl`: uid, row and its digest, seed, the rows of each stage, what judges said of them, and the kind's details.
pub fn provenance(folder: &BuildFolder, published: &[Published]) -> anyhow::Result<Vec<Value>> {
    let (spec, stored) = (folder.spec(), stored(folder)?);
    let last = spec.stages.len().saturating_sub(1);
    let line = |one: &Published| {
        let position = stored.get(last).and_then(|stored| stored.made.get(&one.row).copied());
        let trace = position.map(|position| traced(spec, &stored, last, position)).unwrap_or_default();
        let (mut stages, mut judged) = (Map::new(), Vec::new());
        for (nth, positions) in &trace {
            let (Some(stage), Some(here)) = (spec.stages.get(*nth), stored.get(*nth)) else { continue };
            let rows: Vec<&(Vec<Attempt>, Outcome)> =
                positions.iter().filter_map(|at| here.rows.get(*at)).collect();
            stages.insert(stage.name.clone(), rows.iter().map(|(_, outcome)| outcome.id.clone()).collect());
            let accepted =
                rows.iter().flat_map(|(attempts, _)| attempts).filter(|attempt| attempt.verdict == ACCEPTED);
            for attempt in accepted {
                judged.extend(attempt.judges.iter().map(|judge| {
                    let said = judge.asked.parsed.clone().unwrap_or_else(|| judge.asked.reply.clone().into());
                    json!({"stage": stage.name, "row": attempt.row, "judge": judge.name, "said": said})
                }));
            }
        }
        let mut line = json!({
            "uid": one.uid, "row": one.row, "digest": one.digest, "seed": spec.seed, "stages": stages, "judged": judged
        });
        let rows = position.and_then(|at| stored.get(last)?.rows.get(at)).map(|(_, outcome)| &outcome.made);
        let row = rows.into_iter().flatten().find(|row| row.id == one.row);
        if let Value::Object(line) = &mut line {
            let review = row.and_then(|row| row.fields.get("review"));
            line.extend(review.map(|review| ("review".to_owned(), review.clone())));
            line.extend(one.details.clone());
        }
        line
    };
    Ok(published.iter().map(line).collect())
}

/// The way of a row, by its id or the uid of its data, from the first stage to the last that knows it.
pub fn life_of(folder: &BuildFolder, id: &str) -> anyhow::Result<Vec<Passed>> {
    let published: Vec<Value> = read_rows(&folder.dir, PROVENANCE)?;
    let of_uid = published.iter().find(|line| line["uid"] == id).and_then(|line| line["row"].as_str());
    let id = of_uid.unwrap_or(id);
    let (spec, stored) = (folder.spec(), stored(folder)?);
    let found = stored.iter().enumerate().rev().find_map(|(nth, stored)| Some((nth, stored.position(id)?)));
    ensure!(
        found.is_some(),
        "{} has no row {id:?}; provenance.jsonl and the files in stages/ name its rows",
        folder.dir.display()
    );
    let mut way = Vec::new();
    for (nth, positions) in
        found.map(|(nth, position)| traced(spec, &stored, nth, position)).unwrap_or_default()
    {
        let (Some(stage), Some(here)) = (spec.stages.get(nth), stored.get(nth)) else { continue };
        for (attempts, outcome) in positions.iter().filter_map(|at| here.rows.get(*at)) {
            let attempts = with_prompts(spec, stage, attempts, outcome);
            way.push(Passed { stage: stage.name.clone(), outcome: outcome.clone(), attempts });
        }
    }
    Ok(way)
}

/// Lives the rows of an outcome again on the recorded replies and checks, to get the prompts.
fn with_prompts(
    spec: &Spec,
    stage: &Stage,
    attempts: &[Attempt],
    outcome: &Outcome,
) -> Vec<(Attempt, Vec<Option<Vec<Message>>>)> {
    let mut rows: Vec<Row> = outcome.made.clone();
    for row in &mut rows {
        for (name, value) in &outcome.before {
            match value {
                Value::Null => row.fields.shift_remove(name),
                value => row.fields.insert(name.clone(), value.clone()),
            };
        }
    }
    let rejected = outcome.rejected.iter().map(|one| (one.id.clone(), one.fields.clone()));
    rows.extend(rejected.map(|(id, fields)| Row { id, parents: Vec::new(), fields }));
    let mut prompts: HashMap<String, VecDeque<Option<Vec<Message>>>> = HashMap::new();
    for row in rows {
        let of_row: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.row == row.id).collect();
        let mut recorded = Recorded::of(&of_row);
        let settings = settings(spec, stage);
        let mut life = Life {
            seed: spec.seed,
            stage,
            settings: &settings,
            outside: &mut recorded,
            attempts: Vec::new(),
        };
        // A template that fails now has no prompts to show.
        let _ = life.live(&row);
        let count = of_row.iter().map(|attempt| asked(attempt).count()).sum();
        let rendered = recorded.prompts.into_iter().map(Some).chain(std::iter::repeat(None)).take(count);
        prompts.insert(row.id.clone(), rendered.collect());
    }
    let shown = |attempt: &Attempt| {
        let same = |asked: &Asked| {
            let messages = prompts.get_mut(&attempt.row).and_then(VecDeque::pop_front).flatten();
            messages.filter(|messages| digest(messages) == asked.prompt)
        };
        (attempt.clone(), asked(attempt).map(same).collect())
    };
    attempts.iter().map(shown).collect()
}

fn asked(attempt: &Attempt) -> impl Iterator<Item = &Asked> {
    attempt.asked.iter().chain(attempt.judges.iter().map(|judge| &judge.asked))
}

/// What was said and found before.
struct Recorded {
    asked: VecDeque<Asked>,
    checks: VecDeque<Checked>,
    prompts: Vec<Vec<Message>>,
}

impl Recorded {
    fn of(attempts: &[&Attempt]) -> Self {
        let asked = attempts.iter().flat_map(|attempt| asked(attempt).cloned()).collect();
        let checks = attempts.iter().flat_map(|attempt| attempt.checks.iter().cloned()).collect();
        Recorded { asked, checks, prompts: Vec::new() }
    }
}

impl Outside for Recorded {
    fn reply(&mut self, _: &Ask, messages: &[Message], _: u64) -> Result<Said, ChatError> {
        self.prompts.push(messages.to_vec());
        match self.asked.pop_front() {
            Some(Asked { error: None, reply, ending, .. }) => Ok(Said { text: reply, ending }),
            other => Err(ChatError::from(other.and_then(|asked| asked.error).unwrap_or_default())),
        }
    }

    fn check(&mut self, _: &CheckCall, _: &Row) -> Result<Option<String>, BuildError> {
        Ok(self.checks.pop_front().and_then(|check| check.found))
    }
}
