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
use super::ranks::RankJob;
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

/// Length and time of a header, which change when its folder is made anew.
type Signature = Option<(u64, SystemTime)>;

#[derive(Debug)]
pub struct Entry {
    pub id: String,
    pub dir: PathBuf,
    header: Signature,
    /// Its error, if it cannot be read.
    pub run: Result<Box<Folder>, String>,
}

impl Entry {
    fn open(id: String, dir: PathBuf, header: Signature, choice: JudgeChoice<'_>) -> Self {
        let run = Folder::open(id.clone(), &dir, choice);
        Entry { id, dir, header, run: run.map(Box::new).map_err(|error| error.to_string()) }
    }

    /// Changes whenever the run does.
    pub fn stamp(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.id, self.header, self.run.as_ref().map(|folder| folder.changes)).hash(&mut hasher);
        hasher.finish()
    }
}

#[derive(Debug)]
pub struct Runs {
    given: Vec<PathBuf>,
    judge: Option<String>,
    pub entries: Vec<Entry>,
    looked: Instant,
}

impl Runs {
    /// Finds runs in the given folders and their subfolders.
    pub fn open(given: &[PathBuf], judge: Option<String>) -> Result<Self, NoRun> {
        if let Some(dir) = given.iter().find(|dir| runs_in(dir, DEPTH).is_empty()) {
            return Err(NoRun { dir: dir.clone() });
        }
        let mut runs = Runs { given: given.to_vec(), judge, entries: Vec::new(), looked: Instant::now() };
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
        let judge = self.judge.clone();
        let choice = JudgeChoice::of(judge.as_deref());
        for dir in unique(self.given.iter().flat_map(|dir| runs_in(dir, DEPTH))) {
            let header = dir.join(HEADER).metadata();
            let header = header.and_then(|header| Ok((header.len(), header.modified()?))).ok();
            let Some(entry) = self.entries.iter_mut().find(|entry| entry.dir == dir) else {
                let id = self.name_of(&dir);
                self.entries.push(Entry::open(id, dir, header, choice));
                continue;
            };
            let mut refresh = || entry.run.as_mut().map_or(Ok(()), |folder| folder.refresh(choice));
            let is_same = entry.header == header;
            if !is_same || refresh().is_err() {
                let new = Entry::open(std::mem::take(&mut entry.id), dir, header, choice);
                let old = std::mem::replace(entry, new);
                if let (true, Ok(folder), Ok(old)) = (is_same, &mut entry.run, old.run) {
                    folder.continues(*old);
                }
            }
        }
        self.looked = Instant::now();
    }

    /// The fewest last parts of the path that name no other run.
    fn name_of(&self, dir: &Path) -> String {
        let path = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let is_free = |name: &String| self.entries.iter().all(|entry| entry.id != *name);
        let mut names = (0..parts.len()).rev().map(|from| parts[from..].join("/"));
        names.find(is_free).unwrap_or_else(|| dir.display().to_string())
    }

    /// Readable runs: run number, page number of its first row, folder.
    pub fn readable(&self) -> impl Iterator<Item = (usize, usize, &Folder)> {
        let mut first = 0;
        self.entries.iter().enumerate().filter_map(move |(at, entry)| {
            let folder = entry.run.as_deref().ok()?;
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
        self.entries.iter().for_each(|entry| entry.stamp().hash(&mut hasher));
        let (done, of) = self.ranked();
        (done / TOLD, done == of).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
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
        while !stop.load(Ordering::Relaxed) {
            let job = |(at, _, folder): (usize, usize, &Folder)| Some((at, folder.next_rank_job()?));
            let next = self.held().readable().find_map(job);
            match next {
                Some((at, (row, job))) => self.rank(at, row, &job),
                None if once => return,
                None => thread::sleep(IDLE),
            }
        }
    }

    /// Computes the ranks of a run's row without holding the lock.
    pub fn rank(&self, run: usize, row: usize, job: &RankJob) {
        let ranked = job.ranked();
        if let Some(Entry { run: Ok(folder), .. }) = self.held().entries.get_mut(run) {
            folder.keep_ranks(row, ranked);
        }
    }
}
