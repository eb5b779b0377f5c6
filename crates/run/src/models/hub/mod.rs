//! Models of the Hugging Face hub: by manifests, verified and kept in the model home ([`fetch`]), and by id in the hub's own cache, which
//! transformers, vLLM and `hf download` share ([`Hub`]).
//!
//! A revision is resolved to a commit once. The cache has its usual layout: `models--OWNER--NAME/snapshots/COMMIT/` with links to
//! `blobs/`, and `refs/REVISION`, which is written last. An interrupted fetch goes on where it ended.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use indicatif::{DecimalBytes, ProgressBar};
use palimpsest_core::model::weights::safetensors::INDEX_FILE;
use palimpsest_core::model::{ModelDescription, ModelFiles, ModelKind, arch};

mod client;
mod files;
mod id;
mod layout;

use super::digest::{Digests, git_sha1};
use super::error::{cannot, check_sha256};
use super::lock::lock;
use crate::models::manifest::HubSource;
use crate::progress;
use client::{Bar, Client, Listed, Listing, variable};
pub(super) use files::Part;
use files::{CONFIG, TOKENIZER};
pub(super) use id::HubId;
use layout::{Layout, is_commit};
use palimpsest_data::ground::folder;

/// Name prefix of folders with finished files; new pulls keep them.
pub(super) const KEPT_PREFIX: &str = "hub-";
/// Files named where a repository has no model.
const NAMED: usize = 6;

/// Complete but unverified files in one folder.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) dir: PathBuf,
    pub(super) commit: String,
    pub(super) names: Vec<String>,
}

/// Fetches the files of a manifest. Finished files stay in a folder named after the commit.
pub(super) fn fetch(source: &HubSource, partial: &Path) -> anyhow::Result<Fetched> {
    let repo = &source.repo;
    let client = Client::from_env(&hugging_face()?)?;
    let Listing { commit, files, .. } = client.look_up(repo, &source.revision)?;
    let dir = partial.join(format!("{KEPT_PREFIX}{commit}"));
    let unfinished = dir.join(".unfinished");
    let mut waiting: Vec<String> = source.files.iter().rev().map(|file| file.path.clone()).collect();
    let mut names = BTreeSet::new();
    let layout = Layout::new(&unfinished, repo);
    while let Some(file) = waiting.pop() {
        if !names.insert(file.clone()) {
            continue;
        }
        let target = dir.join(&file);
        if !target.is_file() {
            let at = cannot("write", &target);
            let bar = progress::bytes(0, &file);
            let listed = files.get(&file).cloned().unwrap_or_default();
            let fetched = client.download(&layout, (repo, &commit, &file), &listed, &Bar::new(&bar, &file));
            bar.finish_and_clear();
            let fetched = fetched?;
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder).with_context(&at)?;
            }
            std::fs::rename(&fetched, &target).with_context(&at)?;
        }
        if file.ends_with(".safetensors.index.json") {
            waiting.extend(files::shards(&target)?.into_iter().rev());
        }
    }
    let _ = std::fs::remove_dir_all(&unfinished);
    Ok(Fetched { dir, commit, names: names.into_iter().collect() })
}

/// Commit of a model that was named by its id.
pub(super) fn commit(files: &ModelFiles) -> Option<String> {
    HubId::parse(&files.name)?;
    let names: Vec<_> = files.path().iter().filter_map(|name| name.to_str()).collect();
    let snapshots = names.iter().rposition(|name| *name == "snapshots")?;
    names.get(snapshots + 1).map(|commit| (*commit).to_owned())
}

/// Use the cache if it can answer, or ask the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    IfAbsent,
    Always,
    /// All is fetched again.
    Anew,
}

#[derive(Debug)]
pub(super) struct Hub {
    client: Client,
    cache: PathBuf,
    /// Variable that forbids requests.
    offline: Option<&'static str>,
    digests: Digests,
}

impl Hub {
    pub(super) fn from_env(digests: Digests) -> anyhow::Result<Self> {
        let home = hugging_face()?;
        let cache = variable("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
        // Like huggingface_hub: the first that is set.
        let set = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
            .into_iter()
            .find_map(|name| Some((name, variable(name)?.to_ascii_uppercase())));
        let offline = set.filter(|(_, value)| ["1", "ON", "YES", "TRUE"].contains(&value.as_str()));
        let offline = offline.map(|(name, _)| name);
        Ok(Hub { client: Client::from_env(&home)?, cache, offline, digests })
    }

    /// The files of a model in the cache, unchanged. `Err` within says what is missing.
    pub(super) fn cached(&self, id: &HubId, part: Part) -> anyhow::Result<Result<ModelFiles, String>> {
        let layout = Layout::new(&self.cache, &id.repo);
        layout.check_folders(None)?;
        let commit = if is_commit(&id.revision) {
            id.revision.clone()
        } else {
            match layout.read_reference(&id.revision) {
                Ok(commit) => commit,
                Err(missing) => return Ok(Err(missing)),
            }
        };
        layout.check_folders(Some(&commit))?;
        let found = model_in(&layout.snapshot(&commit), id, part);
        if let Ok(files) = &found {
            self.check(files, id, part)?;
        }
        Ok(found)
    }

    /// Links must end within the cache. Files of the hub's large storage are named by their SHA-256.
    fn check(&self, files: &ModelFiles, id: &HubId, part: Part) -> anyhow::Result<()> {
        let cache = self.cache.canonicalize().with_context(cannot("read", &self.cache))?;
        for path in files.deciding()? {
            let blob = path.canonicalize().with_context(cannot("read", &path))?;
            ensure!(
                blob.starts_with(&cache),
                "{} leads to {}, outside the hub's cache; mend it with `palimpsest model pull {}`",
                path.display(),
                blob.display(),
                id.at(&id.revision)
            );
            if part != Part::Weights {
                continue;
            }
            let expected = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if expected.len() == 64 && expected.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let found = self.digests.sha256(&blob).with_context(cannot("read", &blob))?;
                ensure!(
                    found == expected,
                    "{} is damaged: its SHA-256 is {found}, the hub's {expected}; fetch it again with `palimpsest model pull {}`",
                    path.display(),
                    id.at(&id.revision)
                );
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, id: &HubId, part: Part, ask: Ask) -> anyhow::Result<ModelFiles> {
        if ask == Ask::IfAbsent || self.offline.is_some() {
            match self.cached(id, part)? {
                Ok(files) => return Ok(files),
                Err(missing) => {
                    if let Some(variable) = self.offline {
                        bail!(
                            "{id} is neither a file or folder here nor whole in the cache of the hub ({missing}), and {variable} forbids to \
                             fetch it; unset that, or name another cache in HF_HOME"
                        )
                    }
                }
            }
        }
        let listing = self.client.look_up(&id.repo, &id.revision);
        let listing = listing
            .with_context(|| format!("{id} is no file or folder here, and cannot be had from the hub"))?;
        let layout = Layout::new(&self.cache, &id.repo);
        Fetch { hub: self, id, listing, layout, anew: ask == Ask::Anew }.all(part)
    }
}

/// A fetch into the cache.
struct Fetch<'a> {
    hub: &'a Hub,
    id: &'a HubId,
    listing: Listing,
    layout: Layout,
    anew: bool,
}

/// Files that are here already, verified.
type Whole = BTreeSet<String>;

impl Fetch<'_> {
    fn all(&self, part: Part) -> anyhow::Result<ModelFiles> {
        let Fetch { hub, id, listing, layout, .. } = self;
        let repo = &id.repo;
        let snapshot = layout.snapshot(&listing.commit);
        let mut wanted = self.wanted(part)?;
        let locks = folder::make(&hub.cache, ".locks").with_context(|| {
            let locks = hub.cache.join(".locks");
            format!("cannot create {}; name a folder that you can write to in HF_HOME", locks.display())
        })?;
        let _lock = lock(&locks, &format!("{}.palimpsest.lock", layout.folder_name()), repo)?;
        layout.check_folders(Some(&listing.commit))?;

        let mut whole = self.whole(&wanted)?;
        let bar = self.announce(&wanted, &whole, &snapshot);
        let mut next = 0;
        while let Some(file) = wanted.get(next).cloned() {
            next += 1;
            if whole.contains(&file) {
                bar.inc(self.size(&file));
            } else {
                self.file(&file, &bar)?;
            }
            if file == CONFIG && part == Part::Weights {
                ModelDescription::from_config_file(&snapshot.join(CONFIG))
                    .with_context(|| format!("{id} cannot be run, and its weights were not fetched"))?;
            }
            if file == INDEX_FILE && part == Part::Weights {
                let shards = files::shards(&snapshot.join(INDEX_FILE))?;
                let named = files::weights(&self.names(), Some(&shards));
                if let Some(absent) = named.iter().find(|name| !listing.files.contains_key(*name)) {
                    bail!("{INDEX_FILE} of {id} names {absent}, which the repository does not have");
                }
                // The names said otherwise.
                if !named.iter().all(|name| wanted.contains(name)) {
                    progress::note(format_args!("the index of {id} names other files: {}", named.join(", ")));
                }
                whole.extend(self.whole(&named)?);
                wanted.retain(|name| !name.ends_with(".safetensors"));
                wanted.extend(named);
            }
        }
        bar.finish_and_clear();
        // A server may give two files one ETag, and thus one blob.
        if let Some(other) = wanted.iter().find(|file| !has_size(&snapshot.join(file), &self.listed(file))) {
            bail!("{other} of {id} has not the size that {} lists; fetch it again", hub.client.endpoint);
        }
        if !is_commit(&id.revision) {
            // Last, since it makes the snapshot found.
            let at = cannot("write", &snapshot);
            layout.write_reference(&id.revision, &listing.commit).with_context(at)?;
        }
        let files = model_in(&snapshot, id, part);
        files.map_err(|missing| anyhow!("{id} was fetched and is not whole: {missing}"))
    }

    fn names(&self) -> BTreeSet<&str> {
        self.listing.files.keys().map(String::as_str).collect()
    }

    /// The files of the model, the small ones first; an error if there is none.
    fn wanted(&self, part: Part) -> anyhow::Result<Vec<String>> {
        let (id, listing, names) = (self.id, &self.listing, self.names());
        let weights = files::weights(&names, None);
        let ggufs = files::ggufs(&names);
        let is_folder =
            names.contains(CONFIG) && (!weights.is_empty() || part < Part::Weights && ggufs.is_empty());
        if id.file.is_none() && is_folder {
            ensure!(
                part == Part::Config || names.contains(TOKENIZER),
                "{id} has no {TOKENIZER}, the only form of a tokeniser that is read; nothing was fetched"
            );
            let weights = if part == Part::Weights { weights } else { Vec::new() };
            return Ok(files::side_files(&names, part)
                .into_iter()
                .map(str::to_owned)
                .chain(weights)
                .collect());
        }
        if id.file.is_none() && ggufs.is_empty() {
            let some: Vec<&str> = names.iter().copied().take(NAMED).collect();
            let more = if names.len() > NAMED { ", ..." } else { "" };
            bail!(
                "{id} has neither {CONFIG} with *.safetensors nor a *.gguf file, and other weights are not read; it has {}{more}; nothing was \
                 fetched",
                some.join(", ")
            );
        }
        ensure!(
            part != Part::Config,
            "{id} is a GGUF file, which is read whole; fetch it with `palimpsest model pull {id}` first"
        );
        let chosen = match (&id.file, ggufs.as_slice()) {
            (Some(file), _) => files::parts(&names, file),
            (None, [one]) => files::parts(&names, one),
            (None, _) => Vec::new(),
        };
        if chosen.is_empty() {
            let rows: String = ggufs.iter().map(|file| self.row(file)).collect();
            let fault = match &id.file {
                Some(file) => format!("{} has no file {file}", id.repo),
                None => format!("{id} has {} GGUF files", ggufs.len()),
            };
            bail!("{fault}; choose one as {}:FILE. Nothing was fetched. It has{rows}", id.repo);
        }
        if let Some(architecture) = &listing.gguf {
            arch::check_known(architecture)
                .with_context(|| format!("{id} cannot be run; nothing was fetched"))?;
        }
        Ok(chosen.into_iter().map(str::to_owned).collect())
    }

    fn row(&self, file: &str) -> String {
        let parts = files::parts(&self.names(), file);
        let of = if parts.len() > 1 { format!(" in {} parts", parts.len()) } else { String::new() };
        format!("\n  {file}  {}{of}", DecimalBytes(parts.into_iter().map(|part| self.size(part)).sum()))
    }

    fn size(&self, file: &str) -> u64 {
        self.listing.files.get(file).and_then(|listed| listed.size).unwrap_or(0)
    }

    /// Links what another revision fetched.
    fn whole(&self, wanted: &[String]) -> anyhow::Result<Whole> {
        let snapshot = self.layout.snapshot(&self.listing.commit);
        let mut whole = Whole::new();
        for file in wanted.iter().filter(|_| !self.anew) {
            let (pointer, listed) = (snapshot.join(file), self.listed(file));
            if !self.holds(&pointer, &listed)? {
                let blob = listed.blob.as_ref().map(|blob| self.layout.blob(blob));
                let Some(blob) = blob.filter(|blob| blob.exists()) else { continue };
                if !self.holds(&blob, &listed)? {
                    continue;
                }
                let linked = self.layout.link(&self.listing.commit, file, &blob);
                linked.with_context(cannot("write", &pointer))?;
            }
            whole.insert(file.clone());
        }
        Ok(whole)
    }

    fn listed(&self, file: &str) -> Listed {
        self.listing.files.get(file).cloned().unwrap_or_default()
    }

    /// Bytes of an interrupted download.
    fn begun(&self, file: &str) -> u64 {
        self.listed(file).blob.map_or(0, |blob| self.layout.begun(&blob))
    }

    /// Says what will be fetched, before anything is, and returns the bar over all of it.
    fn announce(&self, wanted: &[String], whole: &Whole, snapshot: &Path) -> ProgressBar {
        let HubId { repo, revision, .. } = self.id;
        let total: u64 = wanted.iter().map(|file| self.size(file)).sum();
        let here = |file: &String| if whole.contains(file) { self.size(file) } else { self.begun(file) };
        let here: u64 = wanted.iter().map(here).sum();
        let commit = &self.listing.commit;
        let at = if revision == commit { String::new() } else { format!("{revision} = ") };
        if whole.len() < wanted.len() {
            let absent = wanted.len() - whole.len();
            let plural = if absent == 1 { "" } else { "s" };
            let kept = match here {
                0 => String::new(),
                _ => format!(" ({} of {} are here)", DecimalBytes(here), DecimalBytes(total)),
            };
            progress::note(format_args!(
                "fetching {repo} ({at}commit {commit}) from {}: {absent} file{plural}, {}{kept}, into {}",
                self.hub.client.endpoint,
                DecimalBytes(total.saturating_sub(here)),
                snapshot.display()
            ));
        }
        progress::bytes(total, repo)
    }

    fn holds(&self, path: &Path, listed: &Listed) -> anyhow::Result<bool> {
        let (cache, end) = (self.hub.cache.canonicalize(), path.canonicalize());
        let is_inside = cache.is_ok_and(|cache| end.is_ok_and(|end| end.starts_with(cache)));
        if !is_inside || !has_size(path, listed) {
            return Ok(false);
        }
        if let Some(expected) = &listed.sha256 {
            return Ok(self.hub.digests.sha256(path).with_context(cannot("read", path))? == *expected);
        }
        let Some(expected) = listed.git_sha1() else { return Ok(true) };
        Ok(git_sha1(path).with_context(cannot("read", path))? == expected)
    }

    /// Fetches one file and verifies it.
    fn file(&self, file: &str, bar: &ProgressBar) -> anyhow::Result<()> {
        let Fetch { hub, id, listing, layout, .. } = self;
        let pointer = layout.snapshot(&listing.commit).join(file);
        let listed = self.listed(file);
        let at = cannot("write", &pointer);
        layout.unlink(&listing.commit, file).with_context(&at)?;
        if let Some(damaged) = &listed.blob {
            layout.remove_blob(damaged).with_context(&at)?;
        }
        let of = (&*id.repo, &*listing.commit, file);
        let blob = hub.client.download(layout, of, &listed, &Bar::new(bar, file))?;
        let verified = self.verify(&blob, &listed, file);
        if verified.is_err() {
            let _ = std::fs::remove_file(&blob);
            return verified;
        }
        layout.link(&listing.commit, file, &blob).with_context(&at)
    }

    fn verify(&self, blob: &Path, listed: &Listed, file: &str) -> anyhow::Result<()> {
        let found = std::fs::metadata(blob).with_context(cannot("read", blob))?.len();
        if let Some(size) = listed.size {
            ensure!(
                found == size,
                "{file} from {} has {found} bytes, the hub says {size}; nothing of it was kept, try again",
                self.id.repo
            );
        }
        if let Some(expected) = &listed.sha256 {
            let found = self.hub.digests.sha256(blob).with_context(cannot("read", blob))?;
            return check_sha256(file, &self.id.repo, expected, &found);
        }
        let Some(expected) = listed.git_sha1() else { return Ok(()) };
        let found = git_sha1(blob).with_context(cannot("read", blob))?;
        ensure!(
            found == expected,
            "{file} from {} has the wrong checksum: git's SHA-1 is {found}, expected {expected}; nothing of it was kept",
            self.id.repo
        );
        Ok(())
    }
}

/// True for a regular file of the size in the listing.
fn has_size(path: &Path, listed: &Listed) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| found.is_file() && listed.size.is_none_or(|size| size == found.len()))
}

/// The model of a snapshot, or what it lacks.
fn model_in(snapshot: &Path, id: &HubId, part: Part) -> Result<ModelFiles, String> {
    let lacks = |file: &str| Err(format!("{} is not there", snapshot.join(file).display()));
    let present = present(snapshot, Path::new(""));
    let names: BTreeSet<&str> = present.iter().map(String::as_str).collect();
    let gguf = |file: &str| {
        let path = snapshot.join(file);
        if !path.is_file() {
            return lacks(file);
        }
        let name = HubId { file: Some(file.to_owned()), ..id.clone() }.to_string();
        Ok(ModelFiles { name, ..ModelFiles::at(&path).map_err(|error| error.to_string())? })
    };
    if let Some(file) = &id.file {
        return gguf(file);
    }
    let is_indexed = names.contains(INDEX_FILE);
    let shards = if is_indexed { files::shards(&snapshot.join(INDEX_FILE)).ok() } else { None };
    let weights = files::weights(&names, shards.as_ref());
    if let ([one], true) = (files::ggufs(&names).as_slice(), weights.is_empty()) {
        return gguf(one);
    }
    let needed = match part {
        Part::Config => &[CONFIG][..],
        Part::Text | Part::Weights => &[CONFIG, TOKENIZER],
    };
    if let Some(absent) = needed.iter().find(|file| !names.contains(**file)) {
        return lacks(absent);
    }
    if part == Part::Weights {
        if weights.is_empty() {
            return lacks("*.safetensors");
        }
        if let Some(absent) = weights.iter().find(|file| !names.contains(file.as_str())) {
            return lacks(absent);
        }
    }
    Ok(ModelFiles { name: id.to_string(), kind: ModelKind::Folder(snapshot.to_owned()) })
}

/// Names of the files in a snapshot; a link counts if its blob is there.
fn present(snapshot: &Path, within: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(snapshot.join(within)) else { return Vec::new() };
    let mut names = Vec::new();
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), within.join(entry.file_name()));
        // A link to a folder is not entered: it may lead to another place, or in a circle.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(present(snapshot, &name));
        } else if path.is_file() {
            names.extend(name.to_str().map(|name| name.replace('\\', "/")));
        }
    }
    names
}

/// `HF_HOME`, else `huggingface` in the user's cache folder.
fn hugging_face() -> anyhow::Result<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Ok(PathBuf::from(home));
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(etcetera::home_dir().ok()?.join(".cache")));
    Ok(cache
        .context("no home directory is set; name a folder for the hub's files in HF_HOME")?
        .join("huggingface"))
}
