//! Merges the shards of a run into one folder.
//!
//! Checks first (equal identities, every shard once, no gaps or duplicates among cases, all rows present), then builds a temporary folder
//! beside the destination and renames it. Causes, session measures, answer labels and label checks are merged too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::causes::contrast_rows::{CONTRAST_CAUSES, ContrastCauseRow, read_contrast_causes};
use super::causes::rows::{CAUSES, CauseLine, read_lines};
use super::causes::session_measures::{CONTRAST_MEASURES, MEASURES};
use super::condition::Condition;
use super::cost::CostRow;
use super::error::RunError;
use super::exchange::shorten;
use super::header::RunHeader;
use super::labels::{LABELS, label_rows};
use super::plan::PlannedCase;
use super::rows::{AnswerRow, ReplyRow, VerdictRow};
use super::store::{
    ANSWERS, COSTS, FOLDERS, MEMORY, OWN_FOLDER, PLAN, REPLIES, RUBRICS, RunFolder, RunStore, VERDICTS,
    write_header,
};
use super::why_rows::{WHY, read_why};
use palimpsest_data::ground::jsonl::{JsonlError, read_rows, write_rows};
use palimpsest_data::ground::order::unique;

#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error(transparent)]
    Rows(#[from] JsonlError),
    #[error("{0} exists already; merge into a new folder")]
    Occupied(PathBuf),
    #[error("{0} is not one shard of several (it was run without --shard); it needs no merging")]
    NotAShard(PathBuf),
    #[error("{first} and {other} are not shards of one run: they differ in {difference}")]
    Different { first: PathBuf, other: PathBuf, difference: String },
    #[error("shard {shard} is {what}; give every shard's folder once")]
    Shards { shard: String, what: &'static str },
    #[error(
        "the shards do not tile the cases: position {position} is {what}; were they run on the same dataset?"
    )]
    Positions { position: usize, what: &'static str },
    #[error(
        "{dir} lacks {missing} of its answers ({list}); start its command again until it ends, then merge"
    )]
    Unfinished { dir: PathBuf, missing: usize, list: String },
    #[error(transparent)]
    Run(#[from] RunError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    pub cases: usize,
    pub answers: usize,
    pub errors: usize,
    pub verdicts: usize,
    pub causes: usize,
    /// Shards from another machine or device than the first, which the merged header names.
    pub other_machines: Vec<PathBuf>,
    /// Shards that lack a kind of cause measurement that others have.
    pub uneven: Vec<PathBuf>,
}

/// Merges `dirs` into the new folder `out`. Error rows are kept, and retried on resume.
pub fn merge(out: &Path, dirs: &[PathBuf]) -> Result<Merged, MergeError> {
    if out.exists() {
        return Err(MergeError::Occupied(out.to_owned()));
    }
    // Locks the shards, so that none is being written.
    let mut locks = Vec::with_capacity(dirs.len());
    let mut shards = Vec::with_capacity(dirs.len());
    for dir in dirs {
        locks.push(RunStore::open(dir)?);
        shards.push(RunFolder::read(dir)?);
    }
    let header = check_shards(&shards)?;
    let plan = check_positions(&shards)?;
    for shard in &shards {
        let missing = shard.missing(&shard.chosen_conditions(&[])?);
        if !missing.is_empty() {
            let (dir, list) = (shard.dir.clone(), shorten(&missing));
            return Err(MergeError::Unfinished { dir, missing: missing.len(), list });
        }
    }
    let answers: Vec<AnswerRow> = shards.iter().flat_map(|shard| shard.answers.clone()).collect();
    let verdicts: Vec<VerdictRow> = shards.iter().flat_map(|shard| shard.verdicts.clone()).collect();
    let costs: Vec<CostRow> = shards.iter().flat_map(|shard| shard.costs.clone()).collect();
    let replies: Vec<Vec<ReplyRow>> = of_each(&shards, |dir| read_rows(&dir.join(REPLIES)))?;
    let rubrics = unique(shards.iter().flat_map(|shard| shard.rubrics.iter().cloned()));

    let place = |case: &str| plan.iter().position(|planned| planned.case == case);
    let causes = of_each(&shards, read_lines)?;
    let contrast_causes = of_each(&shards, read_contrast_causes)?;
    let mut lack = lacking(&shards, &causes, CauseLine::way);
    lack.extend(lacking(&shards, &contrast_causes, ContrastCauseRow::way));
    let uneven = dirs.iter().filter(|dir| lack.contains(dir)).cloned().collect();
    let (mut causes, mut contrast_causes) = (causes.concat(), contrast_causes.concat());
    causes.sort_by_cached_key(|line| place(&line.answer().case));
    contrast_causes.sort_by_cached_key(|row| place(&row.answer.case));
    let mut why = of_each(&shards, read_why)?.concat();
    why.sort_by_cached_key(|row| place(&row.case));
    let labels = of_each(&shards, label_rows)?.concat();

    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(RunError::io("create", parent))?;
    let mut builder = tempfile::Builder::new();
    // Default permissions; temporary folders are private.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let building = builder.tempdir_in(parent).map_err(RunError::io("create a folder in", parent))?;
    for folder in FOLDERS {
        let to = building.path().join(folder);
        std::fs::create_dir(&to).map_err(RunError::io("create", &to))?;
        for shard in &shards {
            copy_files(&shard.dir.join(folder), &to)?;
        }
    }
    for folder in [MEASURES, CONTRAST_MEASURES] {
        let measures = building.path().join(folder);
        for from in shards.iter().map(|shard| shard.dir.join(folder)).filter(|from| from.is_dir()) {
            std::fs::create_dir_all(&measures).map_err(RunError::io("create", &measures))?;
            copy_files(&from, &measures)?;
        }
    }
    for shard in &shards {
        copy_systems(&shard.dir.join(MEMORY), &building.path().join(MEMORY))?;
    }
    write_rows(&building.path().join(PLAN), &plan)?;
    write_rows(&building.path().join(ANSWERS), &answers)?;
    write_rows(&building.path().join(VERDICTS), &verdicts)?;
    write_any(&building.path().join(REPLIES), &replies.concat())?;
    write_any(&building.path().join(CAUSES), &causes)?;
    write_any(&building.path().join(CONTRAST_CAUSES), &contrast_causes)?;
    write_any(&building.path().join(WHY), &why)?;
    write_any(&building.path().join(LABELS), &labels)?;
    write_any(&building.path().join(RUBRICS), &rubrics)?;
    write_any(&building.path().join(COSTS), &costs)?;
    write_header(building.path(), &header)?;
    RunStore::open(building.path())?.finish()?;
    let building = building.keep();
    if let Err(source) = std::fs::rename(&building, out) {
        let _ = std::fs::remove_dir_all(&building);
        return Err(RunError::io("create", out)(source).into());
    }
    Ok(Merged {
        cases: plan.len(),
        answers: answers.len(),
        errors: answers.iter().filter(|row| row.error.is_some()).count(),
        verdicts: verdicts.len(),
        causes: causes.len() + contrast_causes.len(),
        other_machines: (shards.iter().filter(|shard| shard.header.machine != header.machine))
            .map(|shard| shard.dir.clone())
            .collect(),
        uneven,
    })
}

/// Copies memory records, one folder per system and case. A system's own folder and log stay in the shard.
fn copy_systems(from: &Path, to: &Path) -> Result<(), RunError> {
    for system in folders(from)? {
        for case in folders(&from.join(&system))?.into_iter().filter(|name| name != OWN_FOLDER) {
            let to = to.join(&system).join(&case);
            let from = from.join(&system).join(&case);
            copy_tree(&from, &to)?;
        }
    }
    Ok(())
}

/// Copies, since rows may be appended to these files.
fn copy_tree(from: &Path, to: &Path) -> Result<(), RunError> {
    std::fs::create_dir_all(to).map_err(RunError::io("create", to))?;
    for entry in std::fs::read_dir(from).map_err(RunError::io("read", from))? {
        let source = entry.map_err(RunError::io("read", from))?;
        let target = to.join(source.file_name());
        match source.path().is_dir() {
            true => copy_tree(&source.path(), &target)?,
            false => drop(std::fs::copy(source.path(), &target).map_err(RunError::io("copy to", &target))?),
        }
    }
    Ok(())
}

fn folders(dir: &Path) -> Result<Vec<std::ffi::OsString>, RunError> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let failed = RunError::io("read", dir);
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(dir).and_then(Iterator::collect);
    let is_folder = |entry: &std::fs::DirEntry| entry.path().is_dir();
    Ok(entries.map_err(failed)?.into_iter().filter(is_folder).map(|entry| entry.file_name()).collect())
}

fn write_any<T: Serialize>(path: &Path, rows: &[T]) -> Result<(), JsonlError> {
    if rows.is_empty() { Ok(()) } else { write_rows(path, rows) }
}

fn of_each<T, E>(shards: &[RunFolder], read: impl Fn(&Path) -> Result<Vec<T>, E>) -> Result<Vec<Vec<T>>, E> {
    shards.iter().map(|shard| read(&shard.dir)).collect()
}

fn lacking<T, W: Ord>(shards: &[RunFolder], rows: &[Vec<T>], way: impl Fn(&T) -> W) -> Vec<PathBuf> {
    let ways = |rows: &[T]| rows.iter().map(&way).collect::<BTreeSet<W>>();
    let all: BTreeSet<W> = rows.iter().flatten().map(&way).collect();
    let lacking = shards.iter().zip(rows).filter(|(shard, rows)| !shard.plan.is_empty() && ways(rows) != all);
    lacking.map(|(shard, _)| shard.dir.clone()).collect()
}

const CONDITIONS: &str = "conditions";

fn conditions_apart(first: &RunFolder, other: &RunFolder) -> Option<String> {
    let all = |folder: &'_ RunFolder| folder.header.identity.conditions_or_plain().to_vec();
    let (ours, theirs) = (all(first), all(other));
    if ours == theirs {
        return None;
    }
    let names = |of: &[Condition], besides: &[Condition]| -> String {
        let alone = of.iter().filter(|one| !besides.contains(one)).map(Condition::label).collect::<Vec<_>>();
        if alone.is_empty() { "none".to_owned() } else { alone.join(", ") }
    };
    Some(match (names(&ours, &theirs), names(&theirs, &ours)) {
        (one, another) if one == "none" && another == "none" => "the order of their conditions".to_owned(),
        (one, another) => format!(
            "conditions (in the first alone: {one}; in the other alone: {another}); `palimpsest table` shows both folders side by side"
        ),
    })
}

fn check_shards(shards: &[RunFolder]) -> Result<RunHeader, MergeError> {
    let missing = |shard: String| MergeError::Shards { shard, what: "missing" };
    let first = shards.first().ok_or_else(|| missing("0/n".to_owned()))?;
    let split = first.header.shard.ok_or_else(|| MergeError::NotAShard(first.dir.clone()))?;
    let mut seen = vec![false; split.count];
    for shard in shards {
        let own = shard.header.shard.ok_or_else(|| MergeError::NotAShard(shard.dir.clone()))?;
        let mut difference: Vec<String> = first
            .header
            .identity
            .differences(&shard.header.identity)
            .iter()
            .filter(|d| !d.field.starts_with(CONDITIONS))
            .map(|d| format!("{} ({} and {})", d.field, d.stored, d.asked))
            .collect();
        difference.extend(conditions_apart(first, shard));
        if own.count != split.count {
            difference.push(format!("number of shards ({} and {})", split.count, own.count));
        }
        if !difference.is_empty() {
            let (first, other) = (first.dir.clone(), shard.dir.clone());
            return Err(MergeError::Different { first, other, difference: difference.join(", ") });
        }
        match seen.get_mut(own.index) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(MergeError::Shards { shard: own.to_string(), what: "given twice" }),
        }
    }
    if let Some(index) = seen.iter().position(|seen| !seen) {
        return Err(missing(format!("{index}/{}", split.count)));
    }
    Ok(RunHeader::new(first.header.identity.clone(), None, first.header.machine.clone()))
}

fn check_positions(shards: &[RunFolder]) -> Result<Vec<PlannedCase>, MergeError> {
    let mut plan: Vec<PlannedCase> = shards.iter().flat_map(|shard| shard.plan.iter().cloned()).collect();
    plan.sort_by_key(|case| case.position);
    for (position, case) in plan.iter().enumerate() {
        if case.position > position {
            return Err(MergeError::Positions { position, what: "missing" });
        }
        if case.position < position {
            return Err(MergeError::Positions { position: case.position, what: "in two shards" });
        }
    }
    Ok(plan)
}

fn copy_files(from: &Path, to: &Path) -> Result<(), RunError> {
    for entry in std::fs::read_dir(from).map_err(RunError::io("read", from))? {
        let source = entry.map_err(RunError::io("read", from))?.path();
        let Some(name) = source.file_name() else { continue };
        let target = to.join(name);
        // Hard links are safe: run folders replace files and never overwrite in place.
        if std::fs::hard_link(&source, &target).is_err() {
            std::fs::copy(&source, &target).map_err(RunError::io("copy to", &target))?;
        }
    }
    Ok(())
}
