//! Opens a dataset or a built-in sample: name, digest and cases. `sample` and the output of `data sample` have the same digest.

use std::cell::RefCell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::files::{Files, Source};
use super::reading::{Problem, Report};
use super::{ALL, Benchmark, Cases, SampleError, SampleSpec};
use palimpsest_core::digest::hex;

/// The first benchmark's built-in sample; `sample:NAME` is another's.
pub const SAMPLE: &str = "sample";

#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    #[error("cannot read {}; give a benchmark's file or folder, or the word `{SAMPLE}` for the built-in sample", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is neither a file nor a folder; give a benchmark's data, or the word `{SAMPLE}` for the built-in sample", .0.display())]
    NotAFile(PathBuf),
    #[error("{} holds the data of no benchmark that is known here ({known}); give a folder as it was released or one of its files, or a folder with \
             your own tables of messages and questions (CSV, TSV, JSON Lines)", .path.display())]
    UnknownFolder { path: PathBuf, known: String },
    #[error("there is no benchmark `{name}`; there are {known}")]
    UnknownBenchmark { name: String, known: String },
    #[error("--type {value}: {why}")]
    Split { value: String, why: String },
    #[error("--questions {}: {why}", .path.display())]
    Companion { path: PathBuf, why: String },
    #[error(transparent)]
    Sample(#[from] SampleError),
}

#[derive(Debug)]
pub struct Dataset {
    benchmark: &'static Benchmark,
    name: String,
    digest: String,
    bytes: u64,
    source: Source,
    /// Split of rows without one.
    split: Option<&'static str>,
}

impl Dataset {
    /// Opens a file, a folder, `sample` (a file of that name is `./sample`) or `sample:NAME`. Streams all files once for the digest.
    pub fn open(
        which: impl AsRef<Path>,
        spec: SampleSpec,
        on_bytes: impl FnMut(&[u8]),
    ) -> Result<Self, DatasetError> {
        Self::open_with(&ALL, (which.as_ref(), None), spec, on_bytes)
    }

    /// [`Dataset::open`] with the second file of a pair ([`Benchmark::companion`]); without one, it is looked for beside the first.
    pub fn open_pair(
        (which, companion): (&Path, Option<&Path>),
        spec: SampleSpec,
        on_bytes: impl FnMut(&[u8]),
    ) -> Result<Self, DatasetError> {
        Self::open_with(&ALL, (which, companion), spec, on_bytes)
    }

    /// [`Dataset::open`] restricted to some benchmarks.
    ///
    /// # Panics
    /// If `among` is empty.
    pub fn open_among(
        among: &[&'static Benchmark],
        which: impl AsRef<Path>,
        spec: SampleSpec,
        on_bytes: impl FnMut(&[u8]),
    ) -> Result<Self, DatasetError> {
        Self::open_with(among, (which.as_ref(), None), spec, on_bytes)
    }

    fn open_with(
        among: &[&'static Benchmark],
        (path, companion): (&Path, Option<&Path>),
        spec: SampleSpec,
        on_bytes: impl FnMut(&[u8]),
    ) -> Result<Self, DatasetError> {
        let refused = |why: &str| match companion {
            Some(path) => Err(DatasetError::Companion { path: path.to_owned(), why: why.to_owned() }),
            None => Ok(()),
        };
        if let Some(benchmark) = sample_of(among, path)? {
            refused("the sample has its own questions; drop it")?;
            let source = Source::memory((benchmark.sample)(spec)?);
            let (digest, bytes) = digest(&source, |_| {}).map_err(|(_, source)| of_path(path, source))?;
            let name = path.to_string_lossy().into_owned();
            return Ok(Dataset { benchmark, name, digest, bytes, source, split: None });
        }
        let (benchmark, mut source) = find(path, among)?;
        match benchmark.companion {
            None => refused(&format!("data of {} has its own questions; drop it", benchmark.title))?,
            Some(_) if path.is_dir() => refused("the folder has its own; name the table of messages")?,
            Some(kind) => {
                let found = companion.map(Path::to_owned).or_else(|| beside(path, kind));
                if let Some(second) = &found {
                    let why = match std::fs::metadata(second) {
                        Ok(kind) if kind.is_file() => None,
                        Ok(_) => Some("it is no file".to_owned()),
                        Err(error) => Some(error.to_string()),
                    };
                    if let Some(why) = why {
                        let why = format!("{why}; give the table of questions");
                        return Err(DatasetError::Companion { path: second.clone(), why });
                    }
                    source.add(second);
                }
            }
        }
        let (digest, bytes) = digest(&source, on_bytes).map_err(|(name, source)| match name {
            Some(name) if path.is_dir() => of_path(&path.join(name), source),
            Some(name) => of_path(Path::new(&name), source),
            None => of_path(path, source),
        })?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Dataset { benchmark, name, digest, bytes, source, split: None })
    }

    pub fn with_split(self, value: Option<&str>) -> Result<Self, DatasetError> {
        let Some(value) = value else { return Ok(self) };
        let known = self.benchmark.splits;
        let split = known.iter().copied().find(|known| *known == value);
        if split.is_none() {
            let title = self.benchmark.title;
            let why = match known {
                [] => format!("the rows of {title} say themselves what they are; leave it out"),
                known => format!("give {}", known.join(" or ")),
            };
            return Err(DatasetError::Split { value: value.to_owned(), why });
        }
        Ok(Dataset { split, ..self })
    }

    pub fn benchmark(&self) -> &'static Benchmark {
        self.benchmark
    }

    /// `sample`, or the file or folder name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256, lower-case hex: of a file's bytes; of a folder's sorted lines `DIGEST  NAME` for the files that are read.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn cases(&self) -> Result<Cases<'_>, DatasetError> {
        self.cases_observed(|_| {})
    }

    pub fn cases_observed<'a>(&'a self, on_bytes: impl FnMut(&[u8]) + 'a) -> Result<Cases<'a>, DatasetError> {
        let files = Files::new(&self.source).heard(on_bytes);
        Ok((self.benchmark.read)(files, self.split))
    }

    /// `on_bytes` receives each chunk read, `on_problem` each problem as it is found.
    pub fn check(
        &self,
        on_bytes: impl FnMut(&[u8]),
        on_problem: &mut dyn FnMut(&Problem),
    ) -> Result<Report, DatasetError> {
        Ok(self.benchmark.check(self.cases_observed(on_bytes)?, on_problem))
    }
}

pub fn cases_in_memory(
    benchmark: &Benchmark,
    files: Vec<(String, Vec<u8>)>,
) -> Vec<Result<crate::case::Case, super::reading::ReadError>> {
    let source = Source::memory(files);
    (benchmark.read)(Files::new(&source), None).collect()
}

pub fn benchmark_named(among: &[&'static Benchmark], name: &str) -> Result<&'static Benchmark, DatasetError> {
    among.iter().copied().find(|benchmark| benchmark.name == name).ok_or_else(|| {
        DatasetError::UnknownBenchmark { name: name.to_owned(), known: names(among, |b| b.name) }
    })
}

fn sample_of(among: &[&'static Benchmark], which: &Path) -> Result<Option<&'static Benchmark>, DatasetError> {
    if which.as_os_str() == SAMPLE {
        return Ok(Some(among[0]));
    }
    match which.to_str().and_then(|text| text.strip_prefix(SAMPLE)?.strip_prefix(':')) {
        Some(name) => benchmark_named(among, name).map(Some),
        None => Ok(None),
    }
}

/// Unrecognised files go to the first benchmark, whose reader reports the problem.
fn find(path: &Path, among: &[&'static Benchmark]) -> Result<(&'static Benchmark, Source), DatasetError> {
    let of = |error| of_path(path, error);
    let kind = std::fs::metadata(path).map_err(of)?;
    // A pipe could be read only once.
    if !(kind.is_file() || kind.is_dir()) {
        return Err(DatasetError::NotAFile(path.to_owned()));
    }
    let mut source = Source::open(path).map_err(of)?;
    let recognised = among.iter().copied().find(|benchmark| (benchmark.recognises)(&Files::new(&source)));
    let benchmark = match recognised {
        Some(benchmark) => benchmark,
        None if kind.is_dir() => {
            let files = Files::new(&source);
            for name in files.names() {
                // Report encoding errors before recognition fails on them.
                if let Err(error) = files.open(name)
                    && error.kind() == io::ErrorKind::InvalidData
                {
                    return Err(of_path(&path.join(name), error));
                }
            }
            let (path, known) = (path.to_owned(), names(among, |benchmark| benchmark.title));
            return Err(DatasetError::UnknownFolder { path, known });
        }
        None => {
            Files::new(&source).open_first().and_then(|mut file| file.read(&mut [0])).map_err(of)?;
            among[0]
        }
    };
    source.keep(|name| (benchmark.reads)(name));
    Ok((benchmark, source))
}

/// `my-questions.csv`, or the same with another ending of tables.
fn beside(path: &Path, kind: &str) -> Option<PathBuf> {
    let stem = path.file_stem()?.to_string_lossy();
    let own = path.extension().map(|ending| ending.to_string_lossy().into_owned());
    let endings = own.into_iter().chain(["csv", "tsv", "jsonl"].map(str::to_owned));
    endings.map(|ending| path.with_file_name(format!("{stem}-{kind}.{ending}"))).find(|path| path.is_file())
}

fn names(among: &[&'static Benchmark], of: impl Fn(&Benchmark) -> &'static str) -> String {
    among.iter().map(|benchmark| of(benchmark)).collect::<Vec<_>>().join(", ")
}

fn of_path(path: &Path, source: io::Error) -> DatasetError {
    DatasetError::File { path: path.to_owned(), source }
}

fn digest(
    source: &Source,
    mut on_bytes: impl FnMut(&[u8]),
) -> Result<(String, u64), (Option<String>, io::Error)> {
    let hash = RefCell::new(Sha256::new());
    let files = Files::new(source).heard(|piece| {
        hash.borrow_mut().update(piece);
        on_bytes(piece);
    });
    let folder = files.is_folder();
    let (mut listing, mut size, mut of_file) = (Sha256::new(), 0, String::new());
    for name in files.names() {
        let read = files.open_raw(name).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
        size += read.map_err(|error| (folder.then(|| name.to_owned()), error))?;
        of_file = hex(&hash.take().finalize());
        listing.update(format!("{of_file}  {name}\n"));
    }
    Ok((if folder { hex(&listing.finalize()) } else { of_file }, size))
}
