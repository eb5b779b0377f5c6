//! Runs shown by the page, refreshed on request.
//!
//! One lock for all: reading appended rows takes milliseconds. A separate thread computes evidence ranks and locks only to fetch jobs and
//! store results.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::folder::Folder;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::judge_name::JudgeChoice;
use palimpsest_run::runs::store::HEADER;

const LOOK: Duration = Duration::from_millis(400);
const IDLE: Duration = Duration::from_millis(500);
/// New ranks between updates of the page.
const TOLD: usize = 250;
const DEPTH: usize = 3;

#[derive(Debug, thiserror::Error)]
#[error("{} holds no run: no folder there has a {HEADER}; give the folder that `palimpsest run --out` named", dir.display())]
pub struct NoRun {
    dir: PathBuf,
}

#[derive(Debug)]
pub enum Entry {
    Run(Box<Folder>),
    Broken { id: String, dir: PathBuf, error: String },
}

impl Entry {
    fn id(&self) -> &str {
        match self {
            Entry::Run(folder) => &folder.id,
            Entry::Broken { id, .. } => id,
        }
    }

    pub fn dir(&self) -> &Path {
        match self {
            Entry::Run(folder) => folder.dir(),
            Entry::Broken { dir, .. } => dir,
        }
    }

    pub fn run(&self) -> Option<&Folder> {
        match self {
            Entry::Run(folder) => Some(folder),
            Entry::Broken { .. } => None,
        }
    }
}

#[derive(Debug)]
pub struct Runs {
    given: Vec<PathBuf>,
    judge: Option<String>,
    pub entries: Vec<Entry>,
    headers: Vec<Option<(u64, SystemTime)>>,
    looked: Instant,
}

impl Runs {
    /// Finds runs in the given folders and their subfolders.
    pub fn open(given: &[PathBuf], judge: Option<String>) -> Result<Self, NoRun> {
        for dir in given {
            if runs_in(dir, DEPTH).is_empty() {
                return Err(NoRun { dir: dir.clone() });
            }
        }
        let (entries, headers) = (Vec::new(), Vec::new());
        let mut runs = Runs { given: given.to_vec(), judge, entries, headers, looked: Instant::now() };
        runs.look();
        Ok(runs)
    }

    /// Rereads rows and runs, unless done within `LOOK`.
    pub fn refresh(&mut self) {
        if self.looked.elapsed() >= LOOK {
            self.look();
        }
    }

    fn look(&mut self) {
        let found = unique(self.given.iter().flat_map(|dir| runs_in(dir, DEPTH)));
        let judge = self.judge.clone();
        let choice = JudgeChoice::of(judge.as_deref());
        for dir in found {
            let header = signature(&dir.join(HEADER));
            match self.entries.iter().position(|entry| entry.dir() == dir) {
                None => {
                    let id = self.name_of(&dir);
                    self.entries.push(opened(id, &dir, choice));
                    self.headers.push(header);
                }
                Some(at) => {
                    let is_same = self.headers.get(at) == Some(&header);
                    let refreshed = match &mut self.entries[at] {
                        Entry::Run(folder) if is_same => {
                            folder.refresh(choice).map_err(|error| error.to_string())
                        }
                        Entry::Run(_) => Err(String::new()),
                        Entry::Broken { .. } if is_same => Ok(()),
                        Entry::Broken { .. } => Err(String::new()),
                    };
                    if refreshed.is_err() {
                        self.entries[at] = opened(self.entries[at].id().to_owned(), &dir, choice);
                        self.headers[at] = header;
                    }
                }
            }
        }
        self.looked = Instant::now();
    }

    fn name_of(&self, dir: &Path) -> String {
        let parts: Vec<String> = dir
            .canonicalize()
            .unwrap_or_else(|_| dir.to_owned())
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        let is_taken = |name: &String| self.entries.iter().any(|entry| entry.id() == name);
        let names = (1..=parts.len()).map(|count| parts[parts.len() - count..].join("/"));
        names.into_iter().find(|name| !is_taken(name)).unwrap_or_else(|| dir.display().to_string())
    }

    /// Readable runs: run number, page number of its first row, folder.
    pub fn readable(&self) -> impl Iterator<Item = (usize, usize, &Folder)> {
        let mut first = 0;
        self.entries.iter().enumerate().filter_map(move |(at, entry)| {
            let folder = entry.run()?;
            let from = first;
            first += folder.rows.len();
            Some((at, from, folder))
        })
    }

    /// Resolves a page row: run number, folder, row in the run.
    pub fn located(&self, row: usize) -> Option<(usize, &Folder, usize)> {
        let mut all = self.readable();
        let (at, from, folder) =
            all.find(|(_, from, folder)| (*from..from + folder.rows.len()).contains(&row))?;
        Some((at, folder, row - from))
    }

    pub fn count(&self) -> usize {
        self.readable().map(|(.., folder)| folder.rows.len()).sum()
    }

    /// (computed, total) rows with ranks.
    pub fn ranked(&self) -> (usize, usize) {
        let all = self.readable().map(|(.., folder)| folder.ranked());
        all.fold((0, 0), |(done, of), (one, all)| (done + one, of + all))
    }

    /// Changes whenever the state changes.
    pub fn stamp(&self) -> String {
        let mut hasher = DefaultHasher::new();
        for (entry, header) in self.entries.iter().zip(&self.headers) {
            header.hash(&mut hasher);
            match entry {
                Entry::Run(folder) => (&folder.id, folder.changes()).hash(&mut hasher),
                Entry::Broken { id, error, .. } => (id, error).hash(&mut hasher),
            }
        }
        let (done, of) = self.ranked();
        (done / TOLD, done == of).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

fn opened(id: String, dir: &Path, choice: JudgeChoice<'_>) -> Entry {
    match Folder::open(id.clone(), dir, choice) {
        Ok(folder) => Entry::Run(Box::new(folder)),
        Err(error) => Entry::Broken { id, dir: dir.to_owned(), error: error.to_string() },
    }
}

fn signature(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = path.metadata().ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// `dir` if it is a run, else the runs in its subfolders.
fn runs_in(dir: &Path, depth: usize) -> Vec<PathBuf> {
    if dir.join(HEADER).is_file() {
        return vec![dir.to_owned()];
    }
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().flat_map(|folder| runs_in(folder, depth)).collect()
}

#[derive(Debug, Clone)]
pub struct Shared(Arc<Mutex<Runs>>);

impl Shared {
    pub fn new(runs: Runs) -> Self {
        Shared(Arc::new(Mutex::new(runs)))
    }

    /// Current state. Poisoning is ignored: only refreshes modify it.
    pub fn held(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> MutexGuard<'_, Runs> {
        let mut runs = self.held();
        runs.refresh();
        runs
    }

    /// Computes ranks until `stop` is set; with `once`, until none are left.
    pub fn read_ranks(&self, stop: &AtomicBool, once: bool) {
        let mut from = 0;
        while !stop.load(Ordering::Relaxed) {
            let next = {
                let runs = self.held();
                let mut all = runs.entries.iter().enumerate().skip(from);
                all.find_map(|(at, entry)| Some((at, entry.run()?.next_rank_job(0)?)))
            };
            let Some((at, (row, job))) = next else {
                if once && from == 0 {
                    return;
                }
                from = 0;
                if !once {
                    thread::sleep(IDLE);
                }
                continue;
            };
            from = at;
            let ranked = job.ranked();
            if let Some(Entry::Run(folder)) = self.held().entries.get_mut(at)
                && folder.dir() == job.dir
            {
                folder.keep_ranks(row, ranked);
            }
        }
    }
}
