//! Runs the stages that are not whole, in order, and writes the data.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::asking::put;
use super::folder::{BuildFolder, COSTS, DATA, Identity, PROVENANCE, YIELD, asks_of, position};
use super::life::{Life, fault, settings};
use super::models::{LazyTokens, Models, Worker, embedder};
use super::rows::{Known, Part, form};
use super::show::provenance;
use super::stage_file::{Line, Outcome, Passed, Rejected, made, outcomes, taken};
use super::yields::{Yield, csv};
use crate::chat::parallel::in_order;
use crate::chat::{ChatError, Message};
use crate::progress;
use palimpsest_core::digest::sha256;
use palimpsest_data::build::kind::{Made, Maker};
use palimpsest_data::build::pool::Pool;
use palimpsest_data::build::rating::Review;
use palimpsest_data::build::setting::Embed;
use palimpsest_data::build::spec::CheckCall;
use palimpsest_data::build::{Ask, BuildError, Role, Row, RowError, Setting, Spec, Stage, table};
use palimpsest_data::ground::folder::is_file;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog, read_rows, write_rows};
use palimpsest_data::ground::words::counted;

/// Rows in a row that end a build if the last attempt at each was an error.
const GIVE_UP_AFTER: usize = 3;

/// Rows of a stage without models that are written at once.
const AT_ONCE: usize = 256;

/// Folder of data that is being written.
const UNFINISHED: &str = ".tmp-data";

pub struct Options<'a> {
    /// The stage whose rows are discarded with all later ones.
    pub from: Option<&'a str>,
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

/// Runs the build of a folder on the rows of its tables and sources. Nothing is recorded or discarded before the models are open and are
/// those of the folder.
pub fn run(
    folder: &mut BuildFolder,
    known: Known,
    options: &Options<'_>,
) -> anyhow::Result<(Ended, Vec<Yield>)> {
    let Identity { spec, limit, shard, .. } = folder.header.identity.clone();
    let (embed, reviews) = (embedder(), folder.reviews()?);
    let mut build =
        Build { spec: &spec, part: Part { limit, shard }, known, options, embed: &embed, reviews };
    let roles = folder.roles_left(options.from, options.until)?;
    let identities = options.models.identities(&roles)?;
    folder.compare(&identities)?;
    let mut workers = options.models.open(&roles, &identities)?;
    if let Some(stage) = options.from {
        options.tokens.compare()?;
        folder.discard_from(position(&spec, stage)?)?;
    }
    folder.record(identities)?;
    let (mut yields, mut last) = (Vec::new(), Vec::new());
    for (nth, stage) in spec.stages.iter().enumerate() {
        let mut log = folder.open_stage(nth)?;
        if taken(&log.rows).is_none() {
            folder.discard_from(nth + 1)?;
            folder.write(YIELD, &csv(&yields))?;
        }
        let whole = build.stage(folder, nth, stage, &mut log, &mut workers)?;
        yields.push(Yield::of(&stage.name, &log.rows));
        folder.write(YIELD, &csv(&yields))?;
        if !whole {
            return Ok((Ended::Stopped, yields));
        }
        last = made(&log.rows).cloned().collect();
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
    embed: Embed<'a>,
    reviews: Vec<Review>,
}

/// A row that a stage took, with what it cost.
type Done = Result<(Passed, Vec<CostRow>), BuildError>;

impl Build<'_> {
    fn setting<'s>(&'s self, stage: &'s Stage) -> Setting<'s> {
        Setting {
            spec: self.spec,
            stage: &stage.name,
            with: settings(self.spec, stage),
            pool: self.options.pool,
            count: self.options.tokens,
            embed: self.embed,
            reviews: &self.reviews,
        }
    }

    /// Runs a stage that is not whole to its end, unless it is stopped; then false.
    fn stage(
        &self,
        folder: &mut BuildFolder,
        nth: usize,
        stage: &Stage,
        log: &mut RowLog<Line>,
        workers: &mut [Worker],
    ) -> anyhow::Result<bool> {
        let formed = form(stage, &self.known, if nth == 0 { self.part } else { Part::default() })?;
        let (rows, file) = (formed.len(), folder.stage_file(nth));
        let asks = asks_of(stage).next().is_some();
        let mut idle = Worker::default();
        let workers: Vec<&mut Worker> = if asks { workers.iter_mut().collect() } else { vec![&mut idle] };
        let setting = self.setting(stage);
        let maker = stage.make.as_deref().and_then(|name| table::maker(&self.spec.kind, name));
        let of_all = matches!(maker, Some(Maker::All(_)));
        let input: Vec<String> =
            formed.iter().filter(|_| of_all).map(|row| sha256(json!(row).to_string())).collect();
        if let Some(Line::End { rows: taken, outcomes: all, digest }) = log.rows.last() {
            let ids: Vec<&String> = outcomes(&log.rows).map(|outcome| &outcome.id).collect();
            let (found, name) = (ids.len(), &stage.name);
            if !of_all {
                follow(&file, stage, &log.rows, &formed.iter().map(|row| &row.id).collect::<Vec<_>>())?;
            }
            // Rows of a maker of all rows are counted, not made again.
            let all = all.unwrap_or(found);
            ensure!(
                (*taken, found) == (rows, all),
                "{file}: the stage took {taken} rows, and it takes {rows}, and {found} of {all} outcomes are there; build it again by \
                 --from {name}"
            );
            ensure!(
                digest.as_ref().is_none_or(|digest| *digest == of_rows(&input, &ids)),
                "{file}: the rows that the maker took, or its outcomes, are other ones or stand in another order; build it again by --from \
                 {name}"
            );
            return Ok(true);
        }
        let items: Vec<(Vec<String>, Made)> = match maker {
            Some(Maker::All(make)) => {
                let made = make(&setting, &formed).map_err(|error| fault(stage, error))?;
                let formed = formed.into_iter().map(|row| (row.id, row.parents)).collect();
                made.into_iter().map(|made| (parents_of(&made, &formed), made)).collect()
            }
            _ => formed.into_iter().map(|row| (row.parents.clone(), Ok(row))).collect(),
        };
        let ids: Vec<&String> = items.iter().map(|(_, Ok(Row { id, .. }) | Err((id, _)))| id).collect();
        follow(&file, stage, &log.rows, &ids)?;
        let before = outcomes(&log.rows).count();
        folder.record(self.options.tokens.identity().into_iter().collect())?;
        let mut costs: RowLog<CostRow> = RowLog::open(&folder.dir, COSTS)?;
        let bar = progress::texts(items.len() as u64, &stage.name);
        bar.set_position(before as u64);
        let (mut lines, mut spent, mut failed) = (Vec::new(), Vec::new(), false);
        let (mut errors, mut error) = (0, String::new());
        let held = |errors, error: &str| {
            let rows = counted(errors, "row");
            format!(
                "stage {}: the last attempt at {rows} in a row was an error; the same command asks again: {error}",
                stage.name
            )
        };
        // Rows whose last attempt was an error wait for the next row.
        let mut keep = |done: Done| -> anyhow::Result<()> {
            let (passed, cost) = done?;
            errors = if passed.error().is_some() { errors + 1 } else { 0 };
            error = passed.error().unwrap_or_default().to_owned();
            ensure!(errors < GIVE_UP_AFTER, held(errors, &error));
            lines.extend(passed.lines());
            spent.extend(cost);
            if errors == 0 && (asks || lines.len() >= AT_ONCE) {
                // The tokenizer is known before the rows that were counted with it are.
                folder.record(self.options.tokens.identity().into_iter().collect())?;
                append(&mut costs, &mut spent)?;
                append(log, &mut lines)?;
            }
            bar.inc(1);
            Ok(())
        };
        let rest = items.get(before..).unwrap_or_default();
        let whole = in_order(
            workers,
            rest.len(),
            &|| self.options.stop.load(Ordering::Relaxed),
            &mut |nth| rest[nth].clone(),
            &|worker, item| self.row(stage, &setting, maker, worker, item),
            &mut |_, done| {
                let kept = if failed { Ok(()) } else { keep(done) };
                failed |= kept.is_err();
                kept
            },
        )?;
        ensure!(!whole || errors == 0, held(errors, &error));
        let digest = of_all.then(|| of_rows(&input, &ids));
        lines.extend(whole.then_some(Line::End { rows, outcomes: of_all.then_some(items.len()), digest }));
        if errors == 0 {
            folder.record(self.options.tokens.identity().into_iter().collect())?;
            append(&mut costs, &mut spent)?;
            append(log, &mut lines)?;
        }
        bar.finish_and_clear();
        Ok(whole)
    }

    fn row(
        &self,
        stage: &Stage,
        setting: &Setting<'_>,
        maker: Option<Maker>,
        worker: &mut Worker,
        (parents, item): (Vec<String>, Made),
    ) -> Done {
        let fault = |error| fault(stage, error);
        let (Ok(Row { id, .. }) | Err((id, _))) = &item;
        let mut outcome = Outcome { id: id.clone(), parents, ..Outcome::default() };
        let mut reject = |id, reason, fields| {
            outcome.rejected.push(Rejected { id, reason, fields });
            Vec::new()
        };
        let rows = match (item, maker) {
            (Err((id, reason)), _) => reject(id, reason, Map::new()),
            (Ok(row), Some(Maker::Each(make))) => match make(setting, &row) {
                Err(RowError::Rejected(reason)) => reject(row.id, reason, row.fields),
                made => made.map_err(fault)?,
            },
            (Ok(row), _) => vec![row],
        };
        let (id, mut costs) = (outcome.id.clone(), Vec::new());
        let mut reply = |ask: &Ask, messages: &[Message], seed: u64| {
            let model =
                worker.of(ask.of).ok_or_else(|| ChatError::from("the model is not open".to_owned()))?;
            let begun = Instant::now();
            let (said, [prompt_tokens, completion_tokens]) = put(model, ask, messages, seed)?;
            costs.push(CostRow {
                stage: stage.name.clone(),
                row: id.clone(),
                role: ask.of,
                seconds: begun.elapsed().as_secs_f64(),
                prompt_tokens,
                completion_tokens,
            });
            Ok(said)
        };
        let mut check = |CheckCall { check: name, with }: &CheckCall, row: &Row| {
            let check = table::check(&self.spec.kind, name);
            let check = check.ok_or_else(|| RowError::Fault(format!("{name:?} is no check")))?;
            match check(setting, with, row) {
                Err(RowError::Rejected(found)) => Ok(Some(found)),
                Err(RowError::Fault(message)) => Err(RowError::Fault(format!("check {name}: {message}"))),
                found => found,
            }
        };
        let mut life = Life::new(self.spec, stage, &mut reply, &mut check);
        for row in rows {
            match life.live(&row) {
                Ok(mut made) => {
                    if stage.ask.is_some() {
                        let changed =
                            made.fields.iter().filter(|(name, value)| row.fields.get(*name) != Some(*value));
                        let before = |name: &String| row.fields.get(name).cloned().unwrap_or_default();
                        outcome.before = changed.map(|(name, _)| (name.clone(), before(name))).collect();
                    }
                    if made.parents.is_empty() {
                        made.parents.clone_from(&outcome.parents);
                    }
                    outcome.made.push(made);
                }
                Err(RowError::Rejected(reason)) => {
                    outcome.rejected.push(Rejected { id: row.id, reason, fields: row.fields });
                }
                Err(error) => return Err(fault(error)),
            }
        }
        Ok((Passed { attempts: life.attempts, outcome }, costs))
    }

    /// Writes the data of the last stage's rows, unless they are there.
    fn publish(&self, folder: &mut BuildFolder, rows: &[Row]) -> anyhow::Result<usize> {
        let Some((stage, kind)) = self.spec.stages.last().zip(table::kind(&self.spec.kind)) else {
            return Ok(0);
        };
        if is_file(&folder.dir, PROVENANCE) {
            return Ok(read_rows::<Value>(&folder.dir, PROVENANCE)?.len());
        }
        folder.remove_folder(UNFINISHED)?;
        folder.remove_folder(DATA)?;
        let (unfinished, data) = (folder.dir.join(UNFINISHED), folder.dir.join(DATA));
        std::fs::create_dir(&unfinished).map_err(BuildError::io("make", &unfinished))?;
        let published = (kind.write)(&self.setting(stage), rows, &unfinished)?;
        std::fs::rename(&unfinished, &data).map_err(BuildError::io("make", &data))?;
        folder.record(self.options.tokens.identity().into_iter().collect())?;
        write_rows(&folder.dir, PROVENANCE, &provenance(folder, &published)?)?;
        Ok(published.len())
    }
}

/// Fails unless the outcomes in a stage's file are those of its first rows, and of all if it is whole.
fn follow(file: &str, stage: &Stage, lines: &[Line], ids: &[&String]) -> anyhow::Result<()> {
    let found: Vec<&String> = outcomes(lines).map(|outcome| &outcome.id).collect();
    let all = if taken(lines).is_some() { ids.len() } else { 0 };
    if let Some(nth) = (0..found.len().max(all)).find(|nth| found.get(*nth) != ids.get(*nth)) {
        let [found, wanted] =
            [&found, ids].map(|ids| ids.get(nth).map_or("no row".into(), |id| format!("row {id:?}")));
        let (place, name) = (nth + 1, &stage.name);
        bail!(
            "{file}: outcome {place} is of {found}, and of {wanted} in the stage; build it again by --from {name}"
        );
    }
    Ok(())
}

/// Digest of the rows that a maker of all rows took, by the digest of each, and of the ids of its outcomes.
fn of_rows(input: &[String], ids: &[&String]) -> String {
    sha256(json!([input, ids]).to_string())
}

/// Appends the rows and empties the list.
fn append<T: Serialize + DeserializeOwned>(log: &mut RowLog<T>, rows: &mut Vec<T>) -> Result<(), JsonlError> {
    if rows.is_empty() { Ok(()) } else { log.append_all(std::mem::take(rows)) }
}

/// Rows of earlier stages that a row of a maker of all rows comes from.
fn parents_of(made: &Made, formed: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let named = match made {
        Ok(row) if !row.parents.is_empty() => row.parents.clone(),
        Ok(Row { id, .. }) | Err((id, _)) => vec![id.clone()],
    };
    named.into_iter().flat_map(|id| formed.get(&id).cloned().unwrap_or_else(|| vec![id])).collect()
}
