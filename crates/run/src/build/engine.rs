//! Runs the stages that are not whole, in order, and writes the data.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::asking::{Said, put};
use super::folder::{BuildFolder, COSTS, DATA, Identity, PROVENANCE, YIELD, roles_of};
use super::life::{Life, Outside, fault, settings};
use super::models::{LazyEmbedder, LazyTokens, Models, Worker};
use super::rows::{Known, Part, form};
use super::show::provenance;
use super::stage_file::{ERROR, Line, Outcome, Rejected, StageLog, made, outcomes, taken};
use super::yields::{Yield, csv};
use crate::chat::parallel::in_order;
use crate::chat::{ChatError, Message};
use crate::progress;
use palimpsest_data::build::kind::{Made, Maker};
use palimpsest_data::build::pool::Pool;
use palimpsest_data::build::rating::Review;
use palimpsest_data::build::setting::Embed;
use palimpsest_data::build::spec::CheckCall;
use palimpsest_data::build::{Ask, BuildError, Role, Row, RowError, Setting, Spec, Stage, table};
use palimpsest_data::ground::folder::is_file;
use palimpsest_data::ground::jsonl::{RowLog, read_rows, write_rows};

/// Rows in a row that end a build if every attempt at them was an error.
const GIVE_UP_AFTER: usize = 3;

/// Rows of a stage without models that are written at once.
const AT_ONCE: usize = 256;

/// Folder of data that is being written.
const UNFINISHED: &str = ".tmp-data";

pub struct Options<'a> {
    /// The last stage to run.
    pub until: Option<&'a str>,
    pub pool: &'a Pool,
    pub tokens: &'a LazyTokens,
    pub models: &'a Models,
    /// Ends the build after the rows under way.
    pub stop: &'a AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The data are written; so many rows.
    Published(usize),
    /// At the stage of [`Options::until`].
    AtStage,
    Stopped,
}

/// A line of `costs.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CostRow {
    pub stage: String,
    pub row: String,
    pub role: Role,
    pub seconds: f64,
    pub prompt_tokens: Option<usize>,
    pub completion_tokens: Option<usize>,
}

/// Runs the build of a folder on the rows of its tables and sources.
pub fn run(
    folder: &mut BuildFolder,
    known: Known,
    options: &Options<'_>,
) -> anyhow::Result<(Ended, Vec<Yield>)> {
    let embedder = LazyEmbedder::default();
    let Identity { spec, limit, shard, .. } = folder.header.identity.clone();
    let reviews = folder.reviews()?;
    let mut build =
        Build { spec: &spec, part: Part { limit, shard }, known, options, embedder: &embedder, reviews };
    let (mut workers, mut yields, mut last) = (None, Vec::new(), Vec::new());
    for (nth, stage) in spec.stages.iter().enumerate() {
        let mut log = folder.open_stage(nth)?;
        let whole = taken(log.lines()).is_some() || build.stage(folder, nth, &mut log, &mut workers)?;
        yields.push(Yield::of(&stage.name, log.lines()));
        folder.write(YIELD, &csv(&yields))?;
        if let Some(tokenizer) = options.tokens.identity() {
            folder.record("tokenizer", tokenizer)?;
        }
        if !whole {
            return Ok((Ended::Stopped, yields));
        }
        last = made(log.lines());
        build.known.insert(stage.name.clone(), last.clone());
        if options.until == Some(&stage.name) && nth + 1 < spec.stages.len() {
            return Ok((Ended::AtStage, yields));
        }
    }
    let published = build.publish(folder, &last)?;
    Ok((Ended::Published(published), yields))
}

struct Build<'a> {
    spec: &'a Spec,
    part: Part,
    known: Known,
    options: &'a Options<'a>,
    embedder: &'a LazyEmbedder,
    reviews: Vec<Review>,
}

/// A row that was processed.
struct Done {
    lines: Vec<Line>,
    costs: Vec<CostRow>,
    /// The last error, if every attempt was one.
    error: Option<String>,
}

impl Build<'_> {
    fn setting<'s>(&'s self, stage: &'s Stage, embed: Embed<'s>) -> Setting<'s> {
        let Options { pool, tokens, .. } = self.options;
        Setting {
            spec: self.spec,
            stage: &stage.name,
            with: settings(self.spec, stage),
            pool,
            count: *tokens,
            embed,
            reviews: &self.reviews,
        }
    }

    /// Runs a stage to its end, unless it is stopped; then false.
    fn stage(
        &self,
        folder: &mut BuildFolder,
        nth: usize,
        log: &mut StageLog,
        workers: &mut Option<Vec<Worker>>,
    ) -> anyhow::Result<bool> {
        let Some(stage) = self.spec.stages.get(nth) else { return Ok(true) };
        let part = if nth == 0 { self.part } else { Part::default() };
        let formed = form(stage, &self.known, part)?;
        let taken = formed.len();
        let asks = !roles_of(stage).is_empty();
        if asks && workers.is_none() && outcomes(log.lines()).count() < taken {
            let roles = folder.roles_left(self.options.until)?;
            for (name, model) in self.options.models.identities(&roles)? {
                folder.record(name, model)?;
            }
            *workers = Some(self.options.models.open(&roles)?);
        }
        let workers = workers.as_deref_mut().filter(|_| asks).unwrap_or_default();
        let whole = self.rows(folder, stage, formed, log, workers)?;
        if whole {
            log.append(vec![Line::End { rows: taken }])?;
        }
        Ok(whole)
    }

    fn rows(
        &self,
        folder: &BuildFolder,
        stage: &Stage,
        formed: Vec<Row>,
        log: &mut StageLog,
        workers: &mut [Worker],
    ) -> anyhow::Result<bool> {
        let embed = |texts: &[&str]| self.embedder.embed(texts);
        let setting = self.setting(stage, &embed);
        let maker = stage.make.as_deref().and_then(|name| table::maker(&self.spec.kind, name));
        let items: Vec<(Vec<String>, Made)> = match maker {
            Some(Maker::All(make)) => {
                let made = make(&setting, &formed).map_err(|error| fault(stage, error))?;
                let formed = formed.into_iter().map(|row| (row.id, row.parents)).collect();
                made.into_iter().map(|made| (parents_of(&made, &formed), made)).collect()
            }
            _ => formed.into_iter().map(|row| (row.parents.clone(), Ok(row))).collect(),
        };
        let before = outcomes(log.lines()).count();
        let asks = !workers.is_empty();
        let mut idle = Worker::default();
        let workers: Vec<&mut Worker> = if asks { workers.iter_mut().collect() } else { vec![&mut idle] };
        let mut costs: RowLog<CostRow> = RowLog::open(&folder.dir, COSTS)?;
        let bar = progress::texts(items.len() as u64, &stage.name);
        bar.set_position(before as u64);
        let (mut held, mut buffer, mut failed) = (Vec::new(), Vec::new(), false);
        let mut take = |_: usize, done: Result<Done, BuildError>| -> anyhow::Result<()> {
            if failed {
                return Ok(());
            }
            failed = true;
            let done = done?;
            let error = done.error.clone();
            held.push(done);
            match error {
                Some(error) if held.len() >= GIVE_UP_AFTER => bail!(
                    "stage {}: every attempt at {GIVE_UP_AFTER} rows was an error, and these rows stay to be asked again: {error}",
                    stage.name
                ),
                Some(_) => {}
                None => write(&mut held, &mut buffer, log, &mut costs, if asks { 1 } else { AT_ONCE })?,
            }
            failed = false;
            bar.inc(1);
            Ok(())
        };
        let part = items.get(before..).unwrap_or_default();
        let whole = in_order(
            workers,
            part.len(),
            &|| self.options.stop.load(Ordering::Relaxed),
            &mut |nth| part.get(nth).cloned(),
            &|worker, item| self.row(stage, &setting, maker, worker, item),
            &mut take,
        )?;
        if whole {
            write(&mut held, &mut buffer, log, &mut costs, 1)?;
        }
        log.append(buffer)?;
        bar.finish_and_clear();
        Ok(whole)
    }

    fn row(
        &self,
        stage: &Stage,
        setting: &Setting<'_>,
        maker: Option<Maker>,
        worker: &mut Worker,
        item: Option<(Vec<String>, Made)>,
    ) -> Result<Done, BuildError> {
        let Some((parents, item)) = item else {
            return Err(BuildError::stage(&stage.name, "a row is missing"));
        };
        let mut outcome = Outcome { parents, ..Outcome::default() };
        let reject = |id: &str, reason: String, fields: Map<String, Value>| Rejected {
            id: id.to_owned(),
            reason,
            fields,
        };
        let row = match item {
            Ok(row) => row,
            Err((id, reason)) => {
                outcome.rejected.push(reject(&id, reason, Map::new()));
                outcome.id = id;
                return Ok(Done {
                    lines: vec![Line::Row(Box::new(outcome))],
                    costs: Vec::new(),
                    error: None,
                });
            }
        };
        outcome.id.clone_from(&row.id);
        let rows = match maker {
            Some(Maker::Each(make)) => match make(setting, &row) {
                Ok(made) => made,
                Err(RowError::Rejected(reason)) => {
                    outcome.rejected.push(reject(&row.id, reason, row.fields.clone()));
                    Vec::new()
                }
                Err(error) => return Err(fault(stage, error)),
            },
            _ => vec![row.clone()],
        };
        let mut live = Live { setting, worker, costs: Vec::new(), row: &row.id };
        let attempts = Vec::new();
        let mut life =
            Life { seed: self.spec.seed, stage, settings: &setting.with, outside: &mut live, attempts };
        for made in rows {
            match life.live(&made)? {
                Ok(mut lived) => {
                    if stage.ask.is_some() {
                        let changed = lived
                            .fields
                            .iter()
                            .filter(|(name, value)| made.fields.get(*name) != Some(*value));
                        let before = |name: &String| made.fields.get(name).cloned().unwrap_or_default();
                        outcome.before = changed.map(|(name, _)| (name.clone(), before(name))).collect();
                    }
                    if lived.parents.is_empty() {
                        lived.parents.clone_from(&outcome.parents);
                    }
                    outcome.made.push(lived);
                }
                Err(reason) => outcome.rejected.push(reject(&made.id, reason, made.fields)),
            }
        }
        let attempts = life.attempts;
        let is_error = !attempts.is_empty() && attempts.iter().all(|attempt| attempt.verdict == ERROR);
        let error = attempts.last().filter(|_| is_error).map(|attempt| attempt.why.clone());
        let lines = attempts.into_iter().map(|attempt| Line::Attempt(Box::new(attempt)));
        let lines = lines.chain([Line::Row(Box::new(outcome))]).collect();
        Ok(Done { lines, costs: live.costs, error })
    }

    /// Writes the data of the last stage's rows, unless they are there.
    fn publish(&self, folder: &mut BuildFolder, rows: &[Row]) -> anyhow::Result<usize> {
        let Some((stage, kind)) = self.spec.stages.last().zip(table::kind(&self.spec.kind)) else {
            return Ok(0);
        };
        if is_file(&folder.dir, PROVENANCE) {
            return Ok(read_rows::<Value>(&folder.dir, PROVENANCE)?.len());
        }
        let embed = |texts: &[&str]| self.embedder.embed(texts);
        let setting = self.setting(stage, &embed);
        folder.remove_folder(UNFINISHED)?;
        folder.remove_folder(DATA)?;
        let (unfinished, data) = (folder.dir.join(UNFINISHED), folder.dir.join(DATA));
        std::fs::create_dir(&unfinished).with_context(|| format!("cannot make {}", unfinished.display()))?;
        let published = (kind.write)(&setting, rows, &unfinished)?;
        std::fs::rename(&unfinished, &data).with_context(|| format!("cannot make {}", data.display()))?;
        if let Some(tokenizer) = self.options.tokens.identity() {
            folder.record("tokenizer", tokenizer)?;
        }
        write_rows(&folder.dir, PROVENANCE, &provenance(folder, &published)?)?;
        Ok(published.len())
    }
}

/// Writes what is held, once that is worth a write.
fn write(
    held: &mut Vec<Done>,
    buffer: &mut Vec<Line>,
    log: &mut StageLog,
    costs: &mut RowLog<CostRow>,
    at_least: usize,
) -> anyhow::Result<()> {
    let mut spent = Vec::new();
    for done in held.drain(..) {
        buffer.extend(done.lines);
        spent.extend(done.costs);
    }
    if !spent.is_empty() {
        costs.append_all(spent)?;
    }
    if buffer.len() >= at_least {
        log.append(std::mem::take(buffer))?;
    }
    Ok(())
}

/// Rows of earlier stages that a row of a maker of all rows comes from.
fn parents_of(made: &Made, formed: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let named: Vec<&str> = match made {
        Ok(row) if !row.parents.is_empty() => row.parents.iter().map(String::as_str).collect(),
        Ok(row) => vec![&row.id],
        Err((id, _)) => vec![id],
    };
    let parents = |id: &str| formed.get(id).cloned().unwrap_or_else(|| vec![id.to_owned()]);
    named.into_iter().flat_map(parents).collect()
}

/// Models and checks of a build under way.
struct Live<'a> {
    setting: &'a Setting<'a>,
    worker: &'a mut Worker,
    costs: Vec<CostRow>,
    row: &'a str,
}

impl Outside for Live<'_> {
    fn reply(&mut self, ask: &Ask, messages: &[Message], seed: u64) -> Result<Said, ChatError> {
        let Some(model) = self.worker.of(ask.of) else {
            return Err(ChatError::from("the model is not open".to_owned()));
        };
        let begun = Instant::now();
        let (said, tokens) = put(model, ask, messages, seed)?;
        self.costs.push(CostRow {
            stage: self.setting.stage.to_owned(),
            row: self.row.to_owned(),
            role: ask.of,
            seconds: begun.elapsed().as_secs_f64(),
            prompt_tokens: tokens.prompt,
            completion_tokens: tokens.completion,
        });
        Ok(said)
    }

    fn check(&mut self, call: &CheckCall, row: &Row) -> Result<Option<String>, BuildError> {
        let wrong = |message: String| BuildError::stage(self.setting.stage, message);
        let Some(check) = table::check(&self.setting.spec.kind, &call.check) else {
            return Err(wrong(format!("{:?} is no check", call.check)));
        };
        match check(self.setting, &call.with, row) {
            Ok(found) => Ok(found),
            Err(RowError::Rejected(found)) => Ok(Some(found)),
            Err(RowError::Fault(message)) => Err(wrong(format!("check {}: {message}", call.check))),
        }
    }
}
