//! A row's way through the stages: its attempts, with the prompts rendered again, and its provenance.

use std::collections::{BTreeSet, HashMap};

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::asking::Said;
use super::data_files;
use super::folder::{BuildFolder, DATA, PROVENANCE};
use super::life::{Life, digest};
use super::stage_file::{ACCEPTED, Asked, Line, Passed};
use crate::chat::Message;
use palimpsest_data::build::kind::Published;
use palimpsest_data::build::spec::CheckCall;
use palimpsest_data::build::{Ask, Row, Spec, Stage};
use palimpsest_data::ground::jsonl::read_rows;

/// A row's way through the stages.
#[derive(Debug, Default)]
pub struct Way {
    /// With the names of the stages.
    pub passed: Vec<(String, Passed)>,
    /// Messages of the questions by their digest; what cannot be rendered as it was is missing.
    pub prompts: HashMap<String, Vec<Message>>,
}

/// Rows that a stage took.
#[derive(Default)]
struct Stored {
    rows: Vec<Passed>,
    /// Positions of the rows by the ids of what was made of them.
    made: HashMap<String, usize>,
}

fn all_stored(folder: &BuildFolder) -> anyhow::Result<Vec<Stored>> {
    let stored = |nth| {
        let (mut stored, mut attempts) = (Stored::default(), Vec::new());
        for line in folder.lines(nth)? {
            match line {
                Line::Attempt(attempt) => attempts.push(*attempt),
                Line::Row(outcome) => {
                    let position = stored.rows.len();
                    stored.made.extend(outcome.made.iter().map(|row| (row.id.clone(), position)));
                    stored.rows.push(Passed { attempts: std::mem::take(&mut attempts), outcome: *outcome });
                }
                Line::End { .. } => {}
            }
        }
        Ok(stored)
    };
    (0..folder.spec().stages.len()).map(stored).collect()
}

/// The rows by stage that the row at a position of stage `nth` comes from, itself included.
fn traced<'s>(
    spec: &'s Spec,
    stored: &'s [Stored],
    nth: usize,
    position: usize,
) -> Vec<(&'s Stage, Vec<&'s Passed>)> {
    let mut positions = vec![BTreeSet::new(); stored.len()];
    positions[nth].insert(position);
    let mut way = Vec::new();
    for (at, (stage, here)) in spec.stages.iter().zip(stored).enumerate().rev() {
        let rows: Vec<&Passed> = positions[at].iter().filter_map(|row| here.rows.get(*row)).collect();
        for (before, earlier) in spec.stages.iter().enumerate().take(at) {
            if stage.rows.contains(&earlier.name) {
                let parents = rows.iter().flat_map(|passed| &passed.outcome.parents);
                positions[before].extend(parents.filter_map(|id| stored[before].made.get(id)));
            }
        }
        if !rows.is_empty() {
            way.insert(0, (stage, rows));
        }
    }
    way
}

/// Lines of `provenance.jsonl`: uid, row and its digest, the digest of the data's files, seed, the rows of each stage, what judges said of
/// them, and the kind's details. The data are written already.
pub fn provenance(folder: &BuildFolder, published: &[Published]) -> anyhow::Result<Vec<Value>> {
    let (spec, stored) = (folder.spec(), all_stored(folder)?);
    let data = data_files::digest(&folder.dir, DATA)?;
    let last = spec.stages.len().saturating_sub(1);
    let line = |one: &Published| {
        let position = stored.get(last).and_then(|stored| stored.made.get(&one.row).copied());
        let way = position.map(|position| traced(spec, &stored, last, position)).unwrap_or_default();
        let (mut stages, mut judged) = (Map::new(), Vec::new());
        for (stage, rows) in &way {
            stages.insert(stage.name.clone(), rows.iter().map(|row| row.outcome.id.clone()).collect());
            let attempts = rows.iter().flat_map(|row| &row.attempts);
            for attempt in attempts.filter(|attempt| attempt.verdict == ACCEPTED) {
                judged.extend(attempt.judges.iter().map(|judge| {
                    let said = judge.asked.parsed.clone().unwrap_or_else(|| judge.asked.reply.clone().into());
                    json!({"stage": stage.name, "row": attempt.row, "judge": judge.name, "said": said})
                }));
            }
        }
        let mut line = json!({
            "uid": one.uid, "row": one.row, "digest": one.digest, "seed": spec.seed, "stages": stages, "judged": judged
        });
        let mut made = way.last().into_iter().flat_map(|(_, rows)| rows).flat_map(|row| &row.outcome.made);
        let review = made.find(|row| row.id == one.row).and_then(|row| row.fields.get("review"));
        if let Value::Object(line) = &mut line {
            line.extend(review.map(|review| ("review".to_owned(), review.clone())));
            line.extend(one.details.clone());
            line.insert("data_digest".to_owned(), data.clone().into());
        }
        line
    };
    Ok(published.iter().map(line).collect())
}

/// The way of a row, by its id or the uid of its data, from the first stage to the last that knows it.
pub fn way_of(folder: &BuildFolder, id: &str) -> anyhow::Result<Way> {
    let published: Vec<Value> = read_rows(&folder.dir, PROVENANCE)?;
    let of_uid = published.iter().find(|line| line["uid"] == id).and_then(|line| line["row"].as_str());
    let id = of_uid.unwrap_or(id);
    let (spec, stored) = (folder.spec(), all_stored(folder)?);
    let names = |Passed { outcome, .. }: &Passed| {
        outcome.id == id || outcome.rejected.iter().any(|rejected| rejected.id == id)
    };
    let position =
        |stored: &Stored| stored.made.get(id).copied().or_else(|| stored.rows.iter().position(names));
    let found = stored.iter().enumerate().rev().find_map(|(nth, stored)| Some((nth, position(stored)?)));
    let (nth, position) = found.with_context(|| {
        let dir = folder.dir.display();
        format!("{dir} has no row {id:?}; provenance.jsonl and the files in stages/ name its rows")
    })?;
    let mut way = Way::default();
    for (stage, rows) in traced(spec, &stored, nth, position) {
        for passed in rows {
            render(spec, stage, passed, &mut way.prompts);
            way.passed.push((stage.name.clone(), passed.clone()));
        }
    }
    Ok(way)
}

/// Lives rows again on the recorded replies and checks, to get the prompts.
fn render(
    spec: &Spec,
    stage: &Stage,
    Passed { attempts, outcome }: &Passed,
    prompts: &mut HashMap<String, Vec<Message>>,
) {
    let mut rows: Vec<Row> = outcome.made.clone();
    for row in &mut rows {
        row.fields.extend(outcome.before.clone());
        row.fields.retain(|name, value| !(value.is_null() && outcome.before.contains_key(name)));
    }
    rows.extend(outcome.rejected.iter().map(|rejected| Row {
        id: rejected.id.clone(),
        parents: Vec::new(),
        fields: rejected.fields.clone(),
    }));
    for row in rows {
        let of_row = || attempts.iter().filter(|attempt| attempt.row == row.id);
        let mut asked = of_row().flat_map(|attempt| attempt.asked());
        let mut checks = of_row().flat_map(|attempt| &attempt.checks);
        let mut reply = |_: &Ask, messages: &[Message], _: u64| {
            prompts.insert(digest(messages), messages.to_vec());
            match asked.next() {
                Some(Asked { error: None, reply, ending, .. }) => {
                    Ok(Said { text: reply.clone(), ending: *ending })
                }
                other => Err(other.and_then(|asked| asked.error.clone()).unwrap_or_default().into()),
            }
        };
        let mut check = |_: &CheckCall, _: &Row| Ok(checks.next().and_then(|check| check.found.clone()));
        // A template that fails now has no prompts to show.
        let _ = Life::new(spec, stage, &mut reply, &mut check).live(&row);
    }
}
