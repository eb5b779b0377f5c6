//! The folder of a build.
//!
//! ```text
//! build.json           identity (spec, pools, sources, limits) and the models asked so far
//! stages/NN-name.jsonl attempts and outcomes (see `stage_file`)
//! yield.csv            counts by stage      costs.jsonl  tokens and seconds; the only file that differs between equal builds
//! data/                the released format  provenance.jsonl  one line a published row
//! ```
//!
//! Survives a kill at any point: a row's lines are written at once, other files atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::stage_file::{Line, StageLog, made, read, taken};
use palimpsest_data::build::rating::{self, Review};
use palimpsest_data::build::{Role, Row, Spec, Stage};
use palimpsest_data::ground::difference::{Difference, differences};
use palimpsest_data::ground::folder::{self, Lock};
use palimpsest_data::ground::jsonl::read_rows;

pub const HEADER: &str = "build.json";
pub const DATA: &str = "data";
pub const PROVENANCE: &str = "provenance.jsonl";
pub const YIELD: &str = "yield.csv";
pub const COSTS: &str = "costs.jsonl";
const LOCK: &str = "build.lock";
const FORMAT: &str = "palimpsest build 1";

/// Maximum characters of a differing value in an error.
const SHOWN: usize = 60;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub format: String,
    pub identity: Identity,
    /// Name and digest of the generator, the checker and the tokenizer, from when they were first needed.
    #[serde(default)]
    pub models: BTreeMap<String, Value>,
}

/// Everything that changes what is made, models apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub version: String,
    pub spec: Spec,
    /// SHA-256 of the sources' files, by name.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// SHA-256 of files of filler sessions, in order.
    #[serde(default)]
    pub pools: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `i/n`: positions p of the first stage's rows with p mod n = i.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<(usize, usize)>,
}

impl Identity {
    pub fn new(spec: Spec) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Identity { version, spec, sources: BTreeMap::new(), pools: Vec::new(), limit: None, shard: None }
    }

    /// Stages by name, so that a difference names its stage.
    fn by_stage(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(Value::Array(stages)) = value["spec"]["stage"].as_array().cloned().map(Value::from) {
            let named = stages
                .into_iter()
                .map(|stage| (stage["name"].as_str().unwrap_or_default().to_owned(), stage));
            value["spec"]["stage"] = Value::Object(named.collect());
        }
        value
    }
}

#[derive(Debug)]
pub struct BuildFolder {
    pub dir: PathBuf,
    pub header: Header,
    _lock: Option<Lock>,
}

impl BuildFolder {
    /// Reads without a lock, also during a build.
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        Ok(BuildFolder { dir: dir.to_owned(), header: read_header(dir)?, _lock: None })
    }

    /// Opens a folder to resume its build, or begins one. Fails with all differing fields if it holds a different build.
    pub fn open_or_create(dir: &Path, identity: Identity) -> anyhow::Result<Self> {
        let is_build = folder::is_file(dir, HEADER);
        if !is_build && dir.exists() {
            for (name, _) in
                folder::entries(dir, ".").with_context(|| format!("cannot open {}", dir.display()))?
            {
                let is_left = name == LOCK || name.starts_with(folder::TEMPORARY);
                ensure!(
                    is_left,
                    "{} holds `{name}` but no {HEADER}; give the folder of a build, or a new one",
                    dir.display()
                );
            }
        }
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let lock = Lock::take(dir, LOCK).with_context(|| format!("cannot lock {}", dir.display()))?;
        let lock = lock.with_context(|| {
            format!("{} is being written by another process; wait for it to end", dir.display())
        })?;
        let header = if is_build {
            let header = read_header(dir)?;
            refuse_differences(dir, &differences(&header.identity.by_stage(), &identity.by_stage()))?;
            header
        } else {
            Header { format: FORMAT.to_owned(), identity, models: BTreeMap::new() }
        };
        let folder = BuildFolder { dir: dir.to_owned(), header, _lock: Some(lock) };
        if !is_build {
            folder.write_header()?;
        }
        Ok(folder)
    }

    fn write_header(&self) -> anyhow::Result<()> {
        let text = format!("{:#}\n", serde_json::to_value(&self.header)?);
        self.write(HEADER, text.as_bytes())
    }

    /// Records a model when it is first needed. Fails if the folder's rows are of another one.
    pub fn record(&mut self, name: &str, model: Value) -> anyhow::Result<()> {
        match self.header.models.get(name) {
            Some(stored) => {
                let stored = serde_json::json!({ name: stored });
                refuse_differences(&self.dir, &differences(&stored, &serde_json::json!({ name: model })))
            }
            None => {
                self.header.models.insert(name.to_owned(), model);
                self.write_header()
            }
        }
    }

    pub fn spec(&self) -> &Spec {
        &self.header.identity.spec
    }

    pub fn stage_file(&self, nth: usize) -> String {
        let name = self.spec().stages.get(nth).map_or("", |stage| &stage.name);
        format!("stages/{:02}-{name}.jsonl", nth + 1)
    }

    pub fn open_stage(&self, nth: usize) -> anyhow::Result<StageLog> {
        folder::make(&self.dir, "stages")
            .with_context(|| format!("cannot make stages in {}", self.dir.display()))?;
        Ok(StageLog::open(&self.dir, &self.stage_file(nth))?)
    }

    /// Lines of a stage so far; none if it did not begin.
    pub fn lines(&self, nth: usize) -> anyhow::Result<Vec<Line>> {
        Ok(read(&self.dir, &self.stage_file(nth))?)
    }

    /// Rows that a stage takes, of the folder's earlier stages.
    pub fn rows_of(&self, stage: &Stage) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for name in &stage.rows {
            let lines = self.lines(position(self.spec(), name)?)?;
            ensure!(taken(&lines).is_some(), "stage {name} is not whole; go on with the build up to it");
            rows.extend(made(&lines));
        }
        Ok(rows)
    }

    pub fn reviews(&self) -> anyhow::Result<Vec<Review>> {
        Ok(read_rows(&self.dir, rating::FILE)?)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        folder::write(&self.dir, name, bytes)
            .with_context(|| format!("cannot write {}", self.dir.join(name).display()))
    }

    /// Discards a stage, all after it, and the data.
    pub fn discard_from(&self, stage: &str) -> anyhow::Result<()> {
        let first = position(self.spec(), stage)?;
        let stages = (first..self.spec().stages.len()).map(|nth| self.stage_file(nth));
        // The provenance goes first: with it the data would count as whole.
        for name in [PROVENANCE.to_owned(), YIELD.to_owned()].into_iter().chain(stages) {
            folder::remove(&self.dir, &name)
                .with_context(|| format!("cannot remove {}", self.dir.join(&name).display()))?;
        }
        self.remove_folder(DATA)
    }

    pub(super) fn remove_folder(&self, name: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Roles that stages which are not whole ask, up to `until`.
    pub fn roles_left(&self, until: Option<&str>) -> anyhow::Result<BTreeSet<Role>> {
        let mut roles = BTreeSet::new();
        for (nth, stage) in self.spec().stages.iter().enumerate() {
            if taken(&self.lines(nth)?).is_none() {
                roles.extend(roles_of(stage));
            }
            if until == Some(&stage.name) {
                break;
            }
        }
        Ok(roles)
    }
}

pub fn roles_of(stage: &Stage) -> BTreeSet<Role> {
    stage.judges.iter().map(|judge| &judge.ask).chain(&stage.ask).map(|ask| ask.of).collect()
}

/// Position of a stage by name.
pub fn position(spec: &Spec, stage: &str) -> anyhow::Result<usize> {
    let found = spec.stages.iter().position(|known| known.name == stage);
    found.with_context(|| {
        let names: Vec<&str> = spec.stages.iter().map(|stage| stage.name.as_str()).collect();
        format!("{stage:?} is no stage of the spec; its stages are {}", names.join(", "))
    })
}

fn read_header(dir: &Path) -> anyhow::Result<Header> {
    let path = dir.join(HEADER);
    let text = folder::read(dir, HEADER).with_context(|| format!("cannot read {}", path.display()))?;
    let Some(text) = text else {
        bail!("{} is no build folder: it holds no {HEADER}; give the folder of a build", dir.display())
    };
    let value: Value = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    ensure!(
        value["format"] == FORMAT,
        "{}: its format is {}, and this version reads \"{FORMAT}\"",
        path.display(),
        value["format"]
    );
    serde_json::from_value(value).with_context(|| path.display().to_string())
}

fn refuse_differences(dir: &Path, found: &[Difference]) -> anyhow::Result<()> {
    let short = |text: &str| match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    };
    let one = |of: &Difference| Difference {
        field: of.field.clone(),
        stored: short(&of.stored),
        asked: short(&of.asked),
    };
    let list: Vec<String> = found.iter().map(|difference| one(difference).to_string()).collect();
    ensure!(
        list.is_empty(),
        "{} holds a different build; use another --out. It differs in {}",
        dir.display(),
        list.join("; ")
    );
    Ok(())
}
