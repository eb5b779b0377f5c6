//! The run folder: a header and append-only rows.
//!
//! ```text
//! run.json               header (see `header`)        plan.jsonl      cases and probes (see `plan`)
//! answers.jsonl          one answer or error per row  verdicts.jsonl  one verdict or error per row
//! attention/             one safetensors per probe    cases/          the shown segments, one JSON per case
//! replies.jsonl          judges' verbatim replies     rubrics.jsonl   judges' instructions
//! labels.jsonl           checks of the data's labels (see `labels`)
//! causes.jsonl           effects of sessions, with causes/ (see `session_measures`)
//! contrast-causes.jsonl  the same for contrasts, with causes-contrast/ (see `contrast_rows`)
//! thought-scores.jsonl   scores of sessions by way of thoughts (see `two_hop`, `flash_trace`)
//! trials.jsonl           answers asked again with changes (see docs/view.md)
//! costs.jsonl            tokens and seconds; the only file that differs between identical runs (see `cost`)
//! ```
//!
//! [`RunStore`] writes under a lock and survives a kill at any point: each row is on disk before the next starts, other files are
//! written atomically, and a row follows the files it names. [`RunFolder`] reads without a lock, also during a run. The last row of a
//! key counts.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::condition::{label, named};
use super::cost::CostRow;
use super::error::{RunError, if_there};
use super::header::{Difference, FORMAT, IDENTITY_VERSION, Identity, RunHeader, hash};
use super::judge_name::{JudgeName, judge_names};
use super::plan::{PlannedCase, attention_file, case_file, check_distinct};
use super::rows::{AnswerKey, AnswerRow, ReplyRow, RubricRow, VerdictRow};
use palimpsest_core::attention::{AttentionStore, StoreError};
use palimpsest_core::timing;
use palimpsest_data::benchmarks::{self, Benchmark};
use palimpsest_data::case::Turn;
use palimpsest_data::ground::folder::{self, Lock};
use palimpsest_data::ground::jsonl::{RowLog, read_rows, write_rows};
use palimpsest_data::ground::order::unique;

pub const HEADER: &str = "run.json";
pub const PLAN: &str = "plan.jsonl";
pub const ANSWERS: &str = "answers.jsonl";
pub const VERDICTS: &str = "verdicts.jsonl";
pub const REPLIES: &str = "replies.jsonl";
pub const RUBRICS: &str = "rubrics.jsonl";
/// Appended by the page of `palimpsest view`.
pub const TRIALS: &str = "trials.jsonl";
pub(super) const COSTS: &str = "costs.jsonl";
const LOCK: &str = "run.lock";
pub(super) const ATTENTION: &str = "attention";
pub(super) const CASES: &str = "cases";
/// Memory systems' folder. Created before the header, which includes their self-description.
pub(super) const MEMORY: &str = "memory";
/// A memory system's own subfolder, beside those of the cases.
pub(super) const OWN_FOLDER: &str = ".system";

/// `cases/<case>.json`: the shown segments, for reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShownCase {
    pub case: String,
    pub query_time: Option<DateTime>,
    #[serde(rename = "sessions")]
    pub segments: Vec<ShownSegment>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShownSegment {
    /// Absent for `session`, the only kind in version 0.1.0.
    #[serde(default = "session", skip_serializing_if = "is_session")]
    pub kind: String,
    pub index: usize,
    /// Displayed number; absent if it is index + 1, or if none was displayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<DateTime>,
    pub turns: Vec<Turn>,
}

fn session() -> String {
    "session".to_owned()
}

fn is_session(kind: &String) -> bool {
    kind == "session"
}

#[derive(Debug, Clone)]
pub struct RunFolder {
    pub dir: PathBuf,
    pub header: RunHeader,
    pub plan: Vec<PlannedCase>,
    /// Current rows, in dataset order.
    pub answers: Vec<AnswerRow>,
    /// Current rows: by judge in order of first appearance, then dataset order.
    pub verdicts: Vec<VerdictRow>,
    /// Empty if judged before rubrics had names.
    pub rubrics: Vec<RubricRow>,
    /// In order of time; empty in version 0.1.0.
    pub costs: Vec<CostRow>,
    judges: Vec<JudgeName>,
}

impl RunFolder {
    /// Reads the folder, ignoring an incomplete last line.
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        let (header, plan) = (read_header(dir)?, read_rows(dir, PLAN)?);
        let answers: Vec<AnswerRow> = read_rows(dir, ANSWERS)?;
        let verdicts: Vec<VerdictRow> = read_rows(dir, VERDICTS)?;
        let rubrics = read_rows(dir, RUBRICS)?;
        let costs = read_rows(dir, COSTS)?;
        Ok(RunFolder { costs, ..RunFolder::of_rows(dir, header, plan, &answers, (&verdicts, rubrics)) })
    }

    /// Keeps the last row of each key. No costs.
    pub fn of_rows(
        dir: &Path,
        header: RunHeader,
        plan: Vec<PlannedCase>,
        answers: &[AnswerRow],
        (verdicts, rubrics): (&[VerdictRow], Vec<RubricRow>),
    ) -> Self {
        let keys = keys(&plan, &header.identity);
        let answers = in_order(&keys, answers, AnswerRow::key);
        let verdicts = verdicts_in_order(&keys, verdicts);
        let judges = judge_names(&verdicts, &rubrics, &header.identity.benchmark);
        let costs = Vec::new();
        RunFolder { dir: dir.to_owned(), header, plan, answers, verdicts, rubrics, costs, judges }
    }

    /// Restricts the run to one condition. An empty name is the plain one or, without one, the first.
    pub fn condition(mut self, name: &str) -> Result<Self, RunError> {
        let known = self.header.identity.condition_names();
        let first = known.first().filter(|_| name.is_empty() && !known.contains(&""));
        let name = (*first.unwrap_or(&name)).to_owned();
        self.chosen_conditions(&[label(&name).to_owned()])?;
        let asked = |mut case: PlannedCase| {
            let all = case.probes.len();
            case.probes.retain(|probe| probe.is_asked_under(&name));
            (case.probes.len() == all || !case.probes.is_empty()).then_some(case)
        };
        self.plan = self.plan.into_iter().filter_map(asked).collect();
        self.answers.retain(|row| row.condition == name);
        self.verdicts.retain(|row| row.condition == name);
        self.costs.retain(|row| row.condition == name);
        let verdicts = &self.verdicts;
        self.judges.retain(|judge| verdicts.iter().any(|row| judge.gave(row)));
        Ok(self)
    }

    pub fn shown(&self, case: &str) -> Result<Option<ShownCase>, RunError> {
        read_shown(&self.dir, case)
    }

    pub fn attention(&self, row: &AnswerRow) -> Result<Option<AttentionStore>, RunError> {
        let Some(name) = &row.attention else { return Ok(None) };
        Ok(Some(read_attention(&self.dir, name)?))
    }

    pub fn benchmark(&self) -> Result<&'static Benchmark, RunError> {
        benchmark_of(&benchmarks::ALL, &self.dir, &self.header)
    }

    /// Judges by rubric and mode, in order of first appearance.
    pub fn judges(&self) -> &[JudgeName] {
        &self.judges
    }
}

#[derive(Debug)]
pub struct RunStore {
    dir: PathBuf,
    header: RunHeader,
    plan: Vec<PlannedCase>,
    answers: RowLog<AnswerRow>,
    verdicts: RowLog<VerdictRow>,
    replies: Option<RowLog<ReplyRow>>,
    costs: Option<RowLog<CostRow>>,
    retry_cut: bool,
    _lock: Lock,
}

impl RunStore {
    /// Refuses a folder that is neither empty nor a run's.
    pub fn check_folder(dir: &Path) -> Result<(), RunError> {
        if dir.join(HEADER).exists() { Ok(()) } else { refuse_foreign(dir) }
    }

    /// Opens `dir` to resume its run, or creates a new one.
    ///
    /// Fails with all differing fields if the identity differs, and with [`RunError::Locked`] if another process holds it.
    pub fn open_or_create(
        dir: &Path,
        header: &RunHeader,
        mut plan: Vec<PlannedCase>,
    ) -> Result<Self, RunError> {
        let _span = timing::io();
        check_distinct(&plan)?;
        RunStore::check_folder(dir)?;
        let is_run = dir.join(HEADER).exists();
        std::fs::create_dir_all(dir).map_err(RunError::io("create", dir))?;
        let lock = lock(dir)?;
        if is_run {
            let stored = read_header(dir)?;
            let mut differences = stored.identity.differences(&header.identity);
            if stored.shard != header.shard {
                let text =
                    |shard: Option<super::plan::Shard>| shard.map_or("none".to_owned(), |s| s.to_string());
                differences.push(Difference {
                    field: "shard".to_owned(),
                    stored: text(stored.shard),
                    asked: text(header.shard),
                });
            }
            if !differences.is_empty() {
                return Err(RunError::DifferentRun { dir: dir.to_owned(), differences });
            }
            if stored.machine != header.machine {
                tracing::warn!(
                    "{} was begun on another machine or device, or with another attention kernel; answers may differ in the last bits: {:?} then, {:?} now",
                    dir.display(),
                    stored.machine,
                    header.machine
                );
            }
        } else {
            write_rows(dir, PLAN, &plan)?;
            write_header(dir, header)?;
        }
        let store = RunStore::open_locked(dir, lock)?;
        // A run leaves out further questions ([`RunStore::leave_out`]).
        let stored = store.plan.iter().flat_map(|case| &case.probes);
        for (probe, stored) in plan.iter_mut().flat_map(|case| &mut case.probes).zip(stored) {
            probe.left_out.clone_from(&stored.left_out);
        }
        if store.plan != plan {
            return Err(RunError::Broken {
                path: dir.join(PLAN),
                reason: "it plans other cases than the dataset of the same digest gives".to_owned(),
            });
        }
        Ok(store)
    }

    pub fn open(dir: &Path) -> Result<Self, RunError> {
        read_header(dir)?;
        RunStore::open_locked(dir, lock(dir)?)
    }

    fn open_locked(dir: &Path, lock: Lock) -> Result<Self, RunError> {
        let header = read_header(dir)?;
        let plan: Vec<PlannedCase> = read_rows(dir, PLAN)?;
        let answers: RowLog<AnswerRow> = RowLog::open(dir, ANSWERS)?;
        let verdicts: RowLog<VerdictRow> = RowLog::open(dir, VERDICTS)?;
        let replies = dir.join(REPLIES).exists().then(|| RowLog::open(dir, REPLIES)).transpose()?;
        let planned: BTreeSet<Key> = keys(&plan, &header.identity).into_iter().collect();
        let stranger = answers.rows.iter().map(AnswerRow::key).find(|key| !planned.contains(key));
        if let Some(AnswerKey { case, probe, condition }) = stranger {
            let probe = named(probe, condition);
            let reason = format!("it holds case `{case}` probe `{probe}`, which {PLAN} does not name");
            return Err(RunError::Broken { path: dir.join(ANSWERS), reason });
        }
        // Temporary files are of a killed process: this one has the lock.
        for name in [ATTENTION, CASES] {
            folder::make(dir, name).map_err(RunError::io("create", &dir.join(name)))?;
        }
        for name in [".", ATTENTION, CASES] {
            folder::remove_temporary(dir, name).map_err(RunError::io("clean", &dir.join(name)))?;
        }
        Ok(RunStore {
            dir: dir.to_owned(),
            header,
            plan,
            answers,
            verdicts,
            replies,
            costs: None,
            retry_cut: false,
            _lock: lock,
        })
    }

    pub fn benchmark(&self) -> Result<&'static Benchmark, RunError> {
        benchmark_of(&benchmarks::ALL, &self.dir, &self.header)
    }

    pub fn header(&self) -> &RunHeader {
        &self.header
    }

    pub fn plan(&self) -> &[PlannedCase] {
        &self.plan
    }

    /// Current rows, in dataset order.
    pub fn answers(&self) -> Vec<AnswerRow> {
        in_order(&self.keys(), &self.answers.rows, AnswerRow::key)
    }

    fn keys(&self) -> Vec<Key<'_>> {
        keys(&self.plan, &self.header.identity)
    }

    pub fn planned(&self) -> usize {
        self.keys().len()
    }

    /// Current rows: by judge, then dataset order.
    pub fn verdicts(&self) -> Vec<VerdictRow> {
        verdicts_in_order(&self.keys(), &self.verdicts.rows)
    }

    /// Answered without error, with the attention file present.
    pub fn clean_answers(&self) -> BTreeSet<AnswerKey> {
        self.answers()
            .into_iter()
            .filter(|row| row.error.is_none() && row.answer.is_some())
            .filter(|row| row.attention.as_ref().is_none_or(|name| folder::is_file(&self.dir, name)))
            .map(|row| row.key().owned())
            .collect()
    }

    /// Retries answers cut inside a thought ([`AnswerRow::cut`]).
    pub fn retry_cut(&mut self) {
        self.retry_cut = true;
    }

    /// Answers cut inside a thought that are not retried.
    pub fn cut_answers(&self) -> BTreeSet<AnswerKey> {
        let rows = self.answers().into_iter().filter(|row| row.cut && row.error.is_some() && !self.retry_cut);
        rows.map(|row| row.key().owned()).collect()
    }

    /// Saves the attention store, if any, then appends the row that names it.
    pub fn append_answer(
        &mut self,
        mut row: AnswerRow,
        attention: Option<&AttentionStore>,
    ) -> Result<(), RunError> {
        let _span = timing::io();
        row.attention = None;
        if let Some(attention) = attention {
            let name = attention_file(&row.case, &row.probe, &row.condition);
            let path = self.dir.join(&name);
            let broken =
                |e: safetensors::SafeTensorError| RunError::GaveUp(format!("{}: {e}", path.display()));
            let bytes = attention.to_bytes().map_err(broken)?;
            folder::write(&self.dir, &name, &bytes).map_err(RunError::io("write", &path))?;
            row.attention = Some(name);
        }
        Ok(self.answers.append(row)?)
    }

    pub(super) fn replace_answers(&mut self, rows: Vec<AnswerRow>) -> Result<(), RunError> {
        Ok(self.answers.rewrite(rows)?)
    }

    pub fn append_reply(&mut self, row: ReplyRow) -> Result<(), RunError> {
        append_to(&mut self.replies, (&self.dir, REPLIES), row)
    }

    /// Appends the rubric if it is new.
    pub fn append_rubric(&mut self, row: RubricRow) -> Result<(), RunError> {
        let mut log: RowLog<RubricRow> = RowLog::open(&self.dir, RUBRICS)?;
        if !log.rows.contains(&row) {
            log.append(row)?;
        }
        Ok(())
    }

    pub fn append_cost(&mut self, row: CostRow) -> Result<(), RunError> {
        append_to(&mut self.costs, (&self.dir, COSTS), row)
    }

    pub fn append_verdict(&mut self, row: VerdictRow) -> Result<(), RunError> {
        Ok(self.verdicts.append(row)?)
    }

    pub fn write_shown(&self, shown: &ShownCase) -> Result<(), RunError> {
        let _span = timing::io();
        let text = serde_json::to_string(shown);
        write_json(&self.dir, &case_file(&shown.case), text, "it")
    }

    pub fn shown(&self, case: &str) -> Result<Option<ShownCase>, RunError> {
        read_shown(&self.dir, case)
    }

    pub fn remove_shown(&self, case: &str) -> Result<(), RunError> {
        let _span = timing::io();
        let name = case_file(case);
        folder::remove(&self.dir, &name).map_err(RunError::io("remove", &self.dir.join(name)))
    }

    pub fn has_shown(&self, case: &str) -> bool {
        folder::is_file(&self.dir, &case_file(case))
    }

    /// Takes questions out of the plan ([`PlannedProbe::left_out`](super::plan::PlannedProbe::left_out)), with earlier error rows of them.
    pub fn leave_out(&mut self, lacking: &BTreeSet<AnswerKey>) -> Result<(), RunError> {
        if lacking.is_empty() {
            return Ok(());
        }
        for PlannedCase { case, probes, .. } in &mut self.plan {
            for probe in probes {
                let own = lacking.iter().filter(|key| key.case == *case && key.probe == probe.id);
                probe.left_out.extend(own.map(|key| key.condition.clone()));
            }
        }
        // First the answers: a row that the plan does not name makes a broken folder.
        self.answers.rewrite(self.answers())?;
        Ok(write_rows(&self.dir, PLAN, &self.plan)?)
    }

    /// Drops superseded rows and sorts the rest, so that interrupted and uninterrupted runs end byte-identical.
    pub fn finish(&mut self) -> Result<(), RunError> {
        let _span = timing::io();
        let answers = self.answers();
        let verdicts = self.verdicts();
        let replies = self.replies.as_ref().map(|replies| replies_in_order(&self.keys(), &replies.rows));
        self.answers.rewrite(answers)?;
        self.verdicts.rewrite(verdicts)?;
        match (&mut self.replies, replies) {
            (Some(log), Some(rows)) => Ok(log.rewrite(rows)?),
            _ => Ok(()),
        }
    }
}

/// The benchmark of a run, if it is among these.
pub fn benchmark_of(
    among: &[&'static Benchmark],
    dir: &Path,
    header: &RunHeader,
) -> Result<&'static Benchmark, RunError> {
    let name = &header.identity.benchmark;
    among.iter().copied().find(|benchmark| benchmark.name == name).ok_or_else(|| {
        let known: Vec<&str> = among.iter().map(|benchmark| benchmark.name).collect();
        RunError::GaveUp(format!(
            "{} is a run of the benchmark `{name}`, which this version does not know; it knows {}",
            dir.display(),
            known.join(", ")
        ))
    })
}

/// Reads the attention file `name` of a run, as its rows give it.
pub fn read_attention(dir: &Path, name: &str) -> Result<AttentionStore, StoreError> {
    let path = dir.join(name);
    let io = |source| StoreError::Io { path: path.clone(), source };
    let gone = || io(std::io::ErrorKind::NotFound.into());
    AttentionStore::from_bytes(&folder::read(dir, name).map_err(io)?.ok_or_else(gone)?, &path)
}

fn read_shown(dir: &Path, case: &str) -> Result<Option<ShownCase>, RunError> {
    let name = case_file(case);
    let path = dir.join(&name);
    folder::read(dir, &name)
        .map_err(RunError::io("read", &path))?
        .map(|bytes| serde_json::from_slice(&bytes))
        .transpose()
        .map_err(|e| RunError::Broken { path, reason: format!("it does not parse: {e}") })
}

type Key<'a> = AnswerKey<&'a str>;

fn keys<'a>(plan: &'a [PlannedCase], identity: &'a Identity) -> Vec<Key<'a>> {
    let conditions = identity.condition_names();
    let probes = plan.iter().flat_map(|c| c.probes.iter().map(|p| (c.case.as_str(), p)));
    let asked = probes.flat_map(|(case, probe)| conditions.iter().map(move |name| (case, probe, *name)));
    let asked = asked.filter(|(_, probe, name)| probe.is_asked_under(name));
    asked.map(|(case, probe, name)| AnswerKey::of(case, &probe.id, name)).collect()
}

/// Last row of each key, in key order.
fn in_order<R: Clone>(keys: &[Key<'_>], rows: &[R], key: impl Fn(&R) -> Key<'_>) -> Vec<R> {
    let last: HashMap<Key<'_>, &R> = rows.iter().map(|row| (key(row), row)).collect();
    keys.iter().filter_map(|key| last.get(key).map(|row| (*row).clone())).collect()
}

fn verdicts_in_order(keys: &[Key<'_>], rows: &[VerdictRow]) -> Vec<VerdictRow> {
    by_judge(keys, rows, |row| (&row.judge, row.rubric.as_deref()), VerdictRow::key)
}

fn replies_in_order(keys: &[Key<'_>], rows: &[ReplyRow]) -> Vec<ReplyRow> {
    // A call's key is its first probe.
    fn key(row: &ReplyRow) -> Key<'_> {
        AnswerKey::of(&row.case, row.probes.first().map_or("", String::as_str), &row.condition)
    }
    by_judge(keys, rows, |row| (&row.judge, Some(&row.rubric)), key)
}

/// By judge and rubric in order of first appearance; the last row of each key.
fn by_judge<R: Clone>(
    keys: &[Key<'_>],
    rows: &[R],
    judge: impl Fn(&R) -> (&str, Option<&str>),
    key: impl Fn(&R) -> Key<'_>,
) -> Vec<R> {
    let of = |one: (&str, Option<&str>)| {
        let own: Vec<R> = rows.iter().filter(|row| judge(row) == one).cloned().collect();
        in_order(keys, &own, &key)
    };
    unique(rows.iter().map(&judge)).into_iter().flat_map(of).collect()
}

/// The header makes the folder a run.
pub(super) fn write_header(dir: &Path, header: &RunHeader) -> Result<(), RunError> {
    let text = serde_json::to_string_pretty(header).map(|text| text + "\n");
    write_json(dir, HEADER, text, "the header")
}

fn write_json(dir: &Path, name: &str, text: serde_json::Result<String>, what: &str) -> Result<(), RunError> {
    let path = dir.join(name);
    let broken =
        |e| RunError::Broken { path: path.clone(), reason: format!("{what} cannot be written: {e}") };
    let text = text.map_err(broken)?;
    folder::write(dir, name, text.as_bytes()).map_err(RunError::io("write", &path))
}

fn append_to<T: Serialize + DeserializeOwned>(
    log: &mut Option<RowLog<T>>,
    (dir, name): (&Path, &str),
    row: T,
) -> Result<(), RunError> {
    let open = match log.take() {
        Some(open) => open,
        None => RowLog::open(dir, name)?,
    };
    Ok(log.insert(open).append(row)?)
}

pub fn read_header(dir: &Path) -> Result<RunHeader, RunError> {
    let path = dir.join(HEADER);
    let text = folder::read(dir, HEADER).map_err(RunError::io("read", &path))?;
    let not_a_run = || RunError::NotARun { dir: dir.to_owned(), reason: format!("it has no {HEADER}") };
    let text = text.ok_or_else(not_a_run)?;
    let broken = |reason: String| RunError::Broken { path: path.clone(), reason };
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| broken(format!("it does not parse: {e}")))?;
    if value["format"] != FORMAT {
        let found = value.get("format").map_or("none".to_owned(), serde_json::Value::to_string);
        return Err(broken(format!("its format is {found}, and this version reads \"{FORMAT}\"")));
    }
    // The hash covers the stored JSON: fields unknown to this version are no change.
    let version = value.get("identity_version").map_or(Some(1), serde_json::Value::as_u64);
    let version = version.and_then(|version| u32::try_from(version).ok()).filter(|v| *v <= IDENTITY_VERSION);
    let Some(version) = version else {
        let reason = "its identity is of a later version of palimpsest, which has to read it";
        return Err(broken(reason.to_owned()));
    };
    if value["identity_sha256"] != hash(&value["identity"], version) {
        let reason = "its identity was changed after the run began: the hash does not match";
        return Err(broken(reason.to_owned()));
    }
    serde_json::from_value(value).map_err(|e| broken(format!("it does not parse: {e}")))
}

/// Refuses folders with files other than the leftovers of a killed start.
fn refuse_foreign(dir: &Path) -> Result<(), RunError> {
    let entries = if_there(std::fs::read_dir(dir)).map_err(RunError::io("open", dir))?;
    for entry in entries.into_iter().flatten() {
        let name = entry.map_err(RunError::io("read", dir))?.file_name();
        let name = name.to_string_lossy();
        if name != LOCK && name != PLAN && name != MEMORY && !name.starts_with(folder::TEMPORARY) {
            let reason = format!("it holds `{name}` but no {HEADER}");
            return Err(RunError::NotARun { dir: dir.to_owned(), reason });
        }
    }
    Ok(())
}

/// Locks the run against other writers.
pub(super) fn lock(dir: &Path) -> Result<Lock, RunError> {
    let locked = Lock::take(dir, LOCK).map_err(RunError::io("lock", &dir.join(LOCK)))?;
    locked.ok_or_else(|| RunError::Locked { dir: dir.to_owned() })
}
