//! Merges the shards of a run into one folder.
//!
//! Checks first (equal identities, every shard once, no gaps or duplicates among cases, all rows present), then builds a temporary folder
//! beside the destination and renames it. Causes, session measures, answer labels and label checks are merged too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use serde_json::Value;

use super::causes::contrast_rows::{CONTRAST_CAUSES, ContrastCauseRow, read_contrast_causes};
use super::causes::rows::{CAUSES, CauseLine, read_lines};
use super::causes::session_measures::{CONTRAST_MEASURES, MEASURES};
use super::causes::two_hop::THOUGHT_SCORES;
use super::condition::Condition;
use super::cost::CostRow;
use super::error::RunError;
use super::exchange::shorten;
use super::header::RunHeader;
use super::labels::{LABELS, label_rows};
use super::plan::PlannedCase;
use super::rows::{ReplyRow, RubricRow};
use super::store::{
    ANSWERS, ATTENTION, CASES, COSTS, MEMORY, OWN_FOLDER, PLAN, REPLIES, RUBRICS, RunFolder, RunStore,
    VERDICTS, lock, read_header, write_header,
};
use super::why_rows::{WHY, read_why};
use crate::progress::over;
use palimpsest_data::ground::folder;
use palimpsest_data::ground::jsonl::{read_rows, write_rows};
use palimpsest_data::ground::order::unique;

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

/// Order of the rows of all shards in the merged file.
#[derive(Clone, Copy)]
enum Order {
    Shards,
    Cases,
    /// As [`Order::Shards`], each row once.
    Distinct,
}

/// Files of rows, besides the plan. Answers, verdicts and replies are then sorted by [`RunStore::finish`].
const ROWS: [(&str, Order); 10] = [
    (ANSWERS, Order::Shards),
    (VERDICTS, Order::Shards),
    (REPLIES, Order::Shards),
    (RUBRICS, Order::Distinct),
    (CAUSES, Order::Cases),
    (CONTRAST_CAUSES, Order::Cases),
    (THOUGHT_SCORES, Order::Cases),
    (WHY, Order::Cases),
    (LABELS, Order::Shards),
    (COSTS, Order::Shards),
];

/// Merges `dirs` into the new folder `out`. Error rows are kept, and retried on resume.
pub fn merge(out: &Path, dirs: &[PathBuf]) -> anyhow::Result<Merged> {
    ensure!(!out.exists(), "{} exists already; merge into a new folder", out.display());
    let mut locks = Vec::with_capacity(dirs.len());
    let mut shards = Vec::with_capacity(dirs.len());
    for dir in over(dirs.iter(), "reading shards") {
        read_header(dir)?;
        // So that no shard is being written.
        locks.push(lock(dir)?);
        shards.push(RunFolder::read(dir)?);
    }
    let header = check_shards(&shards)?;
    let plan = check_positions(&shards)?;
    for shard in &shards {
        let missing = shard.missing(&shard.chosen_conditions(&[])?);
        ensure!(
            missing.is_empty(),
            "{} lacks {} of its answers ({}); start its command again until it ends, then merge",
            shard.dir.display(),
            missing.len(),
            shorten(&missing)
        );
    }
    // Rows are copied as they stand, so a row of another form is refused here.
    for dir in dirs {
        read_why(dir)?;
        label_rows(dir)?;
        read_rows::<CostRow>(dir, COSTS)?;
        read_rows::<ReplyRow>(dir, REPLIES)?;
        read_rows::<RubricRow>(dir, RUBRICS)?;
    }
    let (causes, contrasts) = (of_each(&shards, read_lines)?, of_each(&shards, read_contrast_causes)?);
    let mut lack = lacking(&shards, &causes, CauseLine::way);
    lack.extend(lacking(&shards, &contrasts, ContrastCauseRow::way));
    let uneven = dirs.iter().filter(|dir| lack.contains(dir)).cloned().collect();

    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(RunError::io("create", parent))?;
    let mut builder = tempfile::Builder::new();
    // Default permissions; temporary folders are private.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let prefix = format!(".{}.merging-", out.file_name().unwrap_or_default().display());
    remove_abandoned(parent, &prefix)?;
    builder.prefix(&prefix);
    let building = builder.tempdir_in(parent).map_err(RunError::io("create a folder in", parent))?;
    let merging = lock(building.path())?;
    for shard in over(shards.iter(), "copying shards") {
        for name in [ATTENTION, CASES, MEASURES, CONTRAST_MEASURES] {
            copy_tree(&shard.dir, name, building.path(), true)?;
        }
        copy_systems(&shard.dir, building.path())?;
    }
    write_rows(building.path(), PLAN, &plan)?;
    let position = |row: &Value| plan.iter().position(|planned| planned.case == row["case"]);
    for (file, order) in ROWS {
        let mut rows: Vec<Value> = of_each(&shards, |dir| read_rows(dir, file))?.concat();
        match order {
            Order::Shards => {}
            Order::Cases => rows.sort_by_cached_key(&position),
            Order::Distinct => rows = unique(rows),
        }
        if !rows.is_empty() {
            write_rows(building.path(), file, &rows)?;
        }
    }
    write_header(building.path(), &header)?;
    drop(merging);
    RunStore::open(building.path())?.finish()?;
    let building = building.keep();
    if let Err(source) = std::fs::rename(&building, out) {
        let _ = std::fs::remove_dir_all(&building);
        return Err(RunError::io("create", out)(source).into());
    }
    let answers = || shards.iter().flat_map(|shard| &shard.answers);
    Ok(Merged {
        cases: plan.len(),
        answers: answers().count(),
        errors: answers().filter(|row| row.error.is_some()).count(),
        verdicts: shards.iter().map(|shard| shard.verdicts.len()).sum(),
        causes: causes.concat().len() + contrasts.concat().len(),
        other_machines: (shards.iter().filter(|shard| shard.header.machine != header.machine))
            .map(|shard| shard.dir.clone())
            .collect(),
        uneven,
    })
}

/// Removes the folders of killed merges to the same place: those with this prefix that no process has locked.
fn remove_abandoned(parent: &Path, prefix: &str) -> Result<(), RunError> {
    for name in folder::entries(parent, ".").map_err(RunError::io("read", parent))? {
        let path = parent.join(&name.0);
        if name.0.starts_with(prefix) && name.1.is_dir() && lock(&path).is_ok() {
            std::fs::remove_dir_all(&path).map_err(RunError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Copies memory records, one folder per system and case. A system's own folder and log stay in the shard.
fn copy_systems(shard: &Path, to: &Path) -> Result<(), RunError> {
    for system in folders(shard, MEMORY)? {
        let system = format!("{MEMORY}/{system}");
        for case in folders(shard, &system)?.into_iter().filter(|name| name != OWN_FOLDER) {
            copy_tree(shard, &format!("{system}/{case}"), to, false)?;
        }
    }
    Ok(())
}

/// Copies the folder `name` of `from` into `to`. `link`: as hard links, which are safe for files that are replaced and never overwritten
/// in place. Links and other special files are refused.
fn copy_tree(from: &Path, name: &str, to: &Path, link: bool) -> Result<(), RunError> {
    let failed = |name: &str, source| RunError::Io { action: "copy", path: from.join(name), source };
    let entries = folder::entries(from, name).map_err(|error| failed(name, error))?;
    if !entries.is_empty() {
        std::fs::create_dir_all(to.join(name)).map_err(RunError::io("create", &to.join(name)))?;
    }
    for (entry, kind) in entries {
        let name = format!("{name}/{entry}");
        let (source, target) = (from.join(&name), to.join(&name));
        if kind.is_dir() {
            copy_tree(from, &name, to, link)?;
        } else if !(link && kind.is_file() && std::fs::hard_link(&source, &target).is_ok()) {
            let gone = || std::io::ErrorKind::NotFound.into();
            let opened = folder::open(from, &name).and_then(|file| file.ok_or_else(gone));
            let copied =
                opened.and_then(|mut file| std::io::copy(&mut file, &mut std::fs::File::create(&target)?));
            copied.map_err(|error| failed(&name, error))?;
        }
    }
    Ok(())
}

fn folders(dir: &Path, name: &str) -> Result<Vec<String>, RunError> {
    folder::folders(dir, name).map_err(RunError::io("read", &dir.join(name)))
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

fn check_shards(shards: &[RunFolder]) -> anyhow::Result<RunHeader> {
    let wrong =
        |shard: String, what: &str| anyhow!("shard {shard} is {what}; give every shard's folder once");
    let split = |shard: &RunFolder| {
        shard.header.shard.with_context(|| {
            format!(
                "{} is not one shard of several (it was run without --shard); it needs no merging",
                shard.dir.display()
            )
        })
    };
    let first = shards.first().ok_or_else(|| wrong("0/n".to_owned(), "missing"))?;
    let count = split(first)?.count;
    let mut seen = vec![false; count];
    for shard in shards {
        let own = split(shard)?;
        let mut difference: Vec<String> = first
            .header
            .identity
            .differences(&shard.header.identity)
            .iter()
            .filter(|d| !d.field.starts_with(CONDITIONS))
            .map(|d| format!("{} ({} and {})", d.field, d.stored, d.asked))
            .collect();
        difference.extend(conditions_apart(first, shard));
        if own.count != count {
            difference.push(format!("number of shards ({count} and {})", own.count));
        }
        ensure!(
            difference.is_empty(),
            "{} and {} are not shards of one run: they differ in {}",
            first.dir.display(),
            shard.dir.display(),
            difference.join(", ")
        );
        match seen.get_mut(own.index) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(wrong(own.to_string(), "given twice")),
        }
    }
    if let Some(index) = seen.iter().position(|seen| !seen) {
        return Err(wrong(format!("{index}/{count}"), "missing"));
    }
    let RunHeader { identity, machine, memory_env, .. } = first.header.clone();
    Ok(RunHeader { memory_env, ..RunHeader::new(identity, None, machine) })
}

fn check_positions(shards: &[RunFolder]) -> anyhow::Result<Vec<PlannedCase>> {
    let mut plan: Vec<PlannedCase> = shards.iter().flat_map(|shard| shard.plan.iter().cloned()).collect();
    plan.sort_by_key(|case| case.position);
    for (position, case) in plan.iter().enumerate() {
        let what = if case.position > position { "missing" } else { "in two shards" };
        ensure!(
            case.position == position,
            "the shards do not tile the cases: position {} is {what}; were they run on the same dataset?",
            position.min(case.position)
        );
    }
    Ok(plan)
}
