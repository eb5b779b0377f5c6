//! Merging: the shards of a run become one folder, as if it had never been split.
//!
//! Checked first (one identity, every shard once, no gap and no double in the cases, every row there), then built in a
//! folder beside the destination and renamed, so that the destination is whole or absent.

use std::path::{Path, PathBuf};

use super::cost::CostRow;
use super::error::RunError;
use super::header::RunHeader;
use super::jsonl::{read_rows, write_rows};
use super::plan::PlannedCase;
use super::rows::{AnswerRow, ReplyRow, VerdictRow};
use super::store::{ANSWERS, COSTS, FOLDERS, HEADER, PLAN, REPLIES, RunFolder, RunStore, VERDICTS};
use crate::ground::files::write_atomically;

/// Why shards could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The destination exists.
    #[error("{0} exists already; merge into a new folder")]
    Occupied(PathBuf),
    /// A folder is no shard.
    #[error("{0} is not one shard of several (it was run without --shard); it needs no merging")]
    NotAShard(PathBuf),
    /// The folders belong to different runs, or to different splits of it.
    #[error("{first} and {other} are not shards of one run: they differ in {difference}")]
    Different {
        /// The first folder.
        first: PathBuf,
        /// The one that differs.
        other: PathBuf,
        /// In which fields.
        difference: String,
    },
    /// A shard is missing or given twice.
    #[error("shard {shard} is {what}; give every shard's folder once")]
    Shards {
        /// `i/n`.
        shard: String,
        /// `missing` or `given twice`.
        what: &'static str,
    },
    /// The positions of the cases have a gap or a double.
    #[error(
        "the shards do not tile the cases: position {position} is {what}; were they run on the same dataset?"
    )]
    Positions {
        /// Zero-based.
        position: usize,
        /// `missing` or `in two shards`.
        what: &'static str,
    },
    /// A shard is not finished.
    #[error("{dir} lacks {missing} of its answers; start its command again until it ends, then merge")]
    Unfinished {
        /// The shard's folder.
        dir: PathBuf,
        /// Number of planned rows without an answer or error row.
        missing: usize,
    },
    /// A run folder refused.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// What was merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// Cases.
    pub cases: usize,
    /// Answer rows, errors included.
    pub answers: usize,
    /// Of these, errors.
    pub errors: usize,
    /// Verdict rows.
    pub verdicts: usize,
}

/// Merges the shards in `dirs` into the new folder `out`. Files are linked where the file system can, else copied; the
/// shards stay as they are. Error rows are taken over: the merged run, started again, retries them.
pub fn merge(out: &Path, dirs: &[PathBuf]) -> Result<Merged, MergeError> {
    if out.exists() {
        return Err(MergeError::Occupied(out.to_owned()));
    }
    // Locked while they are read: a shard that is being written is not finished.
    let mut locks = Vec::with_capacity(dirs.len());
    let mut shards = Vec::with_capacity(dirs.len());
    for dir in dirs {
        locks.push(RunStore::open(dir)?);
        shards.push(RunFolder::read(dir)?);
    }
    let header = check_shards(&shards)?;
    let plan = check_positions(&shards)?;
    for shard in &shards {
        let probes: usize = shard.plan.iter().map(|case| case.probes.len()).sum();
        let planned = probes * shard.header.identity.condition_names().len();
        if shard.answers.len() < planned {
            return Err(MergeError::Unfinished {
                dir: shard.dir.clone(),
                missing: planned - shard.answers.len(),
            });
        }
    }
    let mut answers: Vec<AnswerRow> = Vec::new();
    let mut verdicts: Vec<VerdictRow> = Vec::new();
    let mut replies: Vec<ReplyRow> = Vec::new();
    for shard in &shards {
        answers.extend(shard.answers.iter().cloned());
        verdicts.extend(shard.verdicts.iter().cloned());
        replies.extend(read_rows::<ReplyRow>(&shard.dir.join(REPLIES))?);
    }

    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(RunError::io("create", parent))?;
    let mut builder = tempfile::Builder::new();
    // As an ordinary new folder; temporary ones are private otherwise.
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
    write_rows(&building.path().join(PLAN), &plan)?;
    write_rows(&building.path().join(ANSWERS), &answers)?;
    write_rows(&building.path().join(VERDICTS), &verdicts)?;
    if !replies.is_empty() {
        write_rows(&building.path().join(REPLIES), &replies)?;
    }
    let costs: Vec<CostRow> = shards.iter().flat_map(|shard| shard.costs.iter().cloned()).collect();
    if !costs.is_empty() {
        write_rows(&building.path().join(COSTS), &costs)?;
    }
    let path = building.path().join(HEADER);
    let text = serde_json::to_string_pretty(&header)
        .map_err(|e| RunError::Broken { path: path.clone(), reason: format!("it cannot be written: {e}") })?;
    write_atomically(&path, (text + "\n").as_bytes()).map_err(RunError::io("write", &path))?;
    // Rows into dataset order.
    RunStore::open(building.path())?.finish()?;
    let building = building.keep();
    if let Err(source) = std::fs::rename(&building, out) {
        // The error that counts is the rename's.
        let _ = std::fs::remove_dir_all(&building);
        return Err(RunError::io("create", out)(source).into());
    }
    Ok(Merged {
        cases: plan.len(),
        answers: answers.len(),
        errors: answers.iter().filter(|row| row.error.is_some()).count(),
        verdicts: verdicts.len(),
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
            .map(|d| format!("{} ({} and {})", d.field, d.stored, d.asked))
            .collect();
        if own.count != split.count {
            difference.push(format!("number of shards ({} and {})", split.count, own.count));
        }
        if !difference.is_empty() {
            let difference = difference.join(", ");
            return Err(MergeError::Different {
                first: first.dir.clone(),
                other: shard.dir.clone(),
                difference,
            });
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
        // A link is safe: run folders replace files and never write into them.
        if std::fs::hard_link(&source, &target).is_err() {
            std::fs::copy(&source, &target).map_err(RunError::io("copy to", &target))?;
        }
    }
    Ok(())
}
