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
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::stage_file::{self, Line, made, taken};
use palimpsest_data::build::rating::{self, Review};
use palimpsest_data::build::{Ask, BuildError, Role, Row, Spec, Stage};
use palimpsest_data::ground::difference::differences;
use palimpsest_data::ground::folder::{self, Lock};
use palimpsest_data::ground::jsonl::{RowLog, read_rows};

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
        let stages = self.spec.stages.iter().map(|stage| (stage.name.clone(), json!(stage)));
        value["spec"]["stage"] = Map::from_iter(stages).into();
        value
    }
}

/// Models by what they are to a build: `generator`, `checker` or `tokenizer`, with name and digest.
pub type Identities = Vec<(&'static str, Value)>;

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

    /// Opens a folder to resume its build, or one for a new build, of which [`Self::record`] makes it the folder. Fails with all differing
    /// fields if it holds a different build.
    pub fn open_or_create(dir: &Path, identity: Identity) -> anyhow::Result<Self> {
        let is_build = folder::is_file(dir, HEADER);
        for (name, _) in folder::entries(dir, ".").map_err(BuildError::io("open", dir))? {
            ensure!(
                is_build || name == LOCK || name.starts_with(folder::TEMPORARY),
                "{} holds `{name}` but no {HEADER}; give the folder of a build, or a new one",
                dir.display()
            );
        }
        std::fs::create_dir_all(dir).map_err(BuildError::io("create", dir))?;
        let lock = Lock::take(dir, LOCK).map_err(BuildError::io("lock", dir))?.with_context(|| {
            format!("{} is being written by another process; wait for it to end", dir.display())
        })?;
        for name in [".", "stages"] {
            folder::remove_temporary(dir, name).map_err(BuildError::io("clean", dir))?;
        }
        let new = Header { format: FORMAT.to_owned(), identity, models: BTreeMap::new() };
        let header = if is_build { read_header(dir)? } else { new.clone() };
        refuse_differences(dir, &header.identity.by_stage(), &new.identity.by_stage())?;
        Ok(BuildFolder { dir: dir.to_owned(), header, _lock: Some(lock) })
    }

    /// Fails if the folder's rows are of other models.
    pub fn compare(&self, models: &Identities) -> anyhow::Result<()> {
        let (mut known, mut asked) = (Map::new(), Map::new());
        for (name, model) in models {
            if let Some(stored) = self.header.models.get(*name) {
                known.insert((*name).to_owned(), stored.clone());
                asked.insert((*name).to_owned(), model.clone());
            }
        }
        refuse_differences(&self.dir, &known.into(), &asked.into())
    }

    /// Records the build, if it is new, and models when they are first needed. Fails if the folder's rows are of other ones.
    pub fn record(&mut self, models: Identities) -> anyhow::Result<()> {
        self.compare(&models)?;
        let before = self.header.models.len();
        self.header.models.extend(models.into_iter().map(|(name, model)| (name.to_owned(), model)));
        if self.header.models.len() > before || !folder::is_file(&self.dir, HEADER) {
            let text = format!("{:#}\n", serde_json::to_value(&self.header)?);
            self.write(HEADER, text.as_bytes())?;
        }
        Ok(())
    }

    pub fn spec(&self) -> &Spec {
        &self.header.identity.spec
    }

    pub fn stage_file(&self, nth: usize) -> String {
        let name = self.spec().stages.get(nth).map_or("", |stage| &stage.name);
        format!("stages/{:02}-{name}.jsonl", nth + 1)
    }

    pub fn open_stage(&self, nth: usize) -> anyhow::Result<RowLog<Line>> {
        folder::make(&self.dir, "stages")
            .with_context(|| format!("cannot make stages in {}", self.dir.display()))?;
        Ok(stage_file::open(&self.dir, &self.stage_file(nth))?)
    }

    /// Lines of a stage so far; none if it did not begin.
    pub fn lines(&self, nth: usize) -> anyhow::Result<Vec<Line>> {
        Ok(stage_file::read(&self.dir, &self.stage_file(nth))?)
    }

    /// Rows that a stage takes, of the folder's earlier stages.
    pub fn rows_of(&self, stage: &Stage) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for name in &stage.rows {
            let lines = self.lines(position(self.spec(), name)?)?;
            ensure!(taken(&lines).is_some(), "stage {name} is not whole; go on with the build up to it");
            rows.extend(made(&lines).cloned());
        }
        Ok(rows)
    }

    pub fn reviews(&self) -> anyhow::Result<Vec<Review>> {
        Ok(read_rows(&self.dir, rating::FILE)?)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(folder::write(&self.dir, name, bytes).map_err(BuildError::io("write", &self.dir.join(name)))?)
    }

    /// Discards the stages from the position `first` on, and the data.
    pub fn discard_from(&self, first: usize) -> anyhow::Result<()> {
        let stages = (first..self.spec().stages.len()).rev().map(|nth| self.stage_file(nth));
        // The provenance goes first, with which the data would count as whole, and the last stage before those that it comes from.
        for name in [PROVENANCE.to_owned(), YIELD.to_owned()].into_iter().chain(stages) {
            folder::remove(&self.dir, &name).map_err(BuildError::io("remove", &self.dir.join(&name)))?;
        }
        self.remove_folder(DATA)
    }

    pub(super) fn remove_folder(&self, name: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        let gone = std::fs::remove_dir_all(&path);
        let gone =
            gone.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) });
        Ok(gone.map_err(BuildError::io("remove", &path))?)
    }

    /// Roles that the first stage which is not whole, or `from`, and the later ones ask, up to `until`.
    pub fn roles_left(&self, from: Option<&str>, until: Option<&str>) -> anyhow::Result<BTreeSet<Role>> {
        let (mut roles, mut is_left) = (BTreeSet::new(), false);
        for (nth, stage) in self.spec().stages.iter().enumerate() {
            is_left = is_left || from == Some(&stage.name) || taken(&self.lines(nth)?).is_none();
            if is_left {
                roles.extend(asks_of(stage).map(|ask| ask.of));
            }
            if until == Some(&stage.name) {
                break;
            }
        }
        Ok(roles)
    }
}

/// The questions of a stage.
pub fn asks_of(stage: &Stage) -> impl Iterator<Item = &Ask> {
    stage.judges.iter().map(|judge| &judge.ask).chain(&stage.ask)
}

/// Position of a stage by name.
pub fn position(spec: &Spec, stage: &str) -> anyhow::Result<usize> {
    let names: Vec<&str> = spec.stages.iter().map(|stage| stage.name.as_str()).collect();
    let unknown = || format!("{stage:?} is no stage of the spec; its stages are {}", names.join(", "));
    names.iter().position(|name| *name == stage).with_context(unknown)
}

fn read_header(dir: &Path) -> anyhow::Result<Header> {
    let path = dir.join(HEADER);
    let text = folder::read(dir, HEADER).map_err(BuildError::io("read", &path))?.with_context(|| {
        format!("{} is no build folder: it holds no {HEADER}; give the folder of a build", dir.display())
    })?;
    let name = path.display().to_string();
    let value: Value = serde_json::from_slice(&text).with_context(|| name.clone())?;
    let format = &value["format"];
    ensure!(*format == FORMAT, "{name}: its format is {format}, and this version reads \"{FORMAT}\"");
    serde_json::from_value(value).context(name)
}

pub(super) fn refuse_differences(dir: &Path, stored: &Value, asked: &Value) -> anyhow::Result<()> {
    let list = differences(stored, asked).into_iter().map(|mut difference| {
        for text in [&mut difference.stored, &mut difference.asked] {
            if let Some((end, _)) = text.char_indices().nth(SHOWN) {
                text.replace_range(end.., "...");
            }
        }
        difference.to_string()
    });
    let list = list.collect::<Vec<_>>().join("; ");
    let dir = dir.display();
    ensure!(list.is_empty(), "{dir} holds a different build; use another --out. It differs in {list}");
    Ok(())
}
