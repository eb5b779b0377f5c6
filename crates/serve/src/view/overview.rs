//! Overviews of runs as HTML, each made in a thread of its own, once per state of the run.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fields::Fields;
use super::replies::{Query, not_found};
use super::state::Runs;
use crate::api::error::ApiError;

/// Makes the overview of a run folder for a screen: HTML without inline style or script, with the texts of the run escaped.
pub type MakeOverview = Arc<dyn Fn(&Path, Screen) -> anyhow::Result<String> + Send + Sync>;

/// Screen that figures are laid out for: scaled down to a phone, their words would be too small to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Screen {
    #[default]
    Wide,
    Phone,
}

impl Screen {
    /// Value of `screen` in the address of a phone's overview.
    pub const PHONE: &str = "phone";
}

/// An overview of a growing run is made again after a rest of this many times as long as the last took.
const REST: u32 = 5;

#[derive(Clone)]
pub struct Overviews {
    make: MakeOverview,
    made: Arc<Mutex<HashMap<(PathBuf, Screen), Made>>>,
}

#[derive(Default)]
struct Made {
    /// Stamp of the run when the last overview was begun.
    stamp: Option<u64>,
    html: Option<Result<String, String>>,
    is_reading: bool,
    rests_until: Option<Instant>,
}

impl Overviews {
    pub fn new(make: MakeOverview) -> Self {
        Overviews { make, made: Arc::default() }
    }

    /// `/api/overview`: the last overview of a run (the first without `run`) for a wide screen, or with `screen=phone` for a phone, and the
    /// number of attention files being read for the next. `grown`: the run has grown since.
    pub fn reply(&self, runs: &Runs, query: &Query) -> Result<Value, ApiError> {
        let name = query.get("run");
        let entry = runs.entries.iter().find(|entry| name.is_none_or(|name| entry.id == name));
        let entry =
            entry.ok_or_else(|| not_found(format!("there is no run {}", name.unwrap_or_default())))?;
        let is_phone = query.get("screen") == Some(Screen::PHONE);
        let screen = if is_phone { Screen::Phone } else { Screen::Wide };
        let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = all.entry((entry.dir.clone(), screen)).or_default();
        let has_grown = !made.is_reading && made.stamp != Some(entry.stamp());
        let is_rested = made.rests_until.is_none_or(|end| Instant::now() >= end);
        if has_grown && is_rested {
            (made.stamp, made.is_reading) = (Some(entry.stamp()), true);
            self.begin(entry.dir.clone(), screen);
        }
        let (html, error) = match &made.html {
            Some(Ok(html)) => (Some(html), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let files = entry.run.as_ref().map_or(0, |folder| folder.attention_files());
        let reading = made.is_reading.then_some(files);
        let has_grown = has_grown && !made.is_reading;
        Ok(json!({"run": entry.id, "grown": has_grown})
            .with("html", html)
            .with("error", error)
            .with("reading", reading))
    }

    fn begin(&self, dir: PathBuf, screen: Screen) {
        let Overviews { make, made } = self.clone();
        thread::spawn(move || {
            let since = Instant::now();
            let html = html(&make, &dir, screen);
            let mut all = made.lock().unwrap_or_else(PoisonError::into_inner);
            let rest: Duration = since.elapsed() * REST;
            let key = (dir, screen);
            let stamp = all.get(&key).and_then(|made| made.stamp);
            let rests_until = Some(Instant::now() + rest);
            all.insert(key, Made { stamp, html: Some(html), is_reading: false, rests_until });
        });
    }
}

/// The overview, or why there is none.
pub fn html(make: &MakeOverview, dir: &Path, screen: Screen) -> Result<String, String> {
    match std::panic::catch_unwind(AssertUnwindSafe(|| make(dir, screen))) {
        Ok(made) => made.map_err(|error| format!("{error:#}")),
        Err(_) => Err("This is a bug: the overview's thread panicked".to_owned()),
    }
}
