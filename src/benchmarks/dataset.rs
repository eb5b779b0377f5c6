//! A benchmark file or the built-in sample, opened the same way: a name, a digest for the run's identity, and cases.
//!
//! Called by the commands. The sample goes through the same text and the same reader as a file, so `sample` and a file that
//! `data sample` wrote with the same settings have the same digest and give the same cases.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::reading::{Problem, Report};
use super::{ALL, Benchmark, Cases, SampleError, SampleSpec, recognise};
use crate::ground::digest::{hex, sha256};

/// The word that stands for the built-in sample wherever a file is expected.
pub const SAMPLE: &str = "sample";

/// Bytes read at a time.
const BUFFER: usize = 256 << 10;

/// Why a data set could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The file could not be opened or read.
    #[error("cannot read {}; give a benchmark's file, or the word `{SAMPLE}` for the built-in sample", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The path names something else than a file.
    #[error("{} is not a regular file; give a benchmark's file, or the word `{SAMPLE}` for the built-in sample", .0.display())]
    NotAFile(PathBuf),
    /// The sample could not be made as asked.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

/// A benchmark file or the built-in sample.
#[derive(Debug)]
pub struct Dataset {
    benchmark: &'static dyn Benchmark,
    name: String,
    digest: String,
    bytes: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Sample(Vec<u8>),
    File(PathBuf),
}

impl Dataset {
    /// Opens a file, or the built-in sample where `which` is the word `sample` (a file of that name is `./sample`).
    ///
    /// A file is read once here for its digest, without keeping it; `on_bytes` hears of every piece read.
    pub fn open(
        which: impl AsRef<Path>,
        spec: SampleSpec,
        on_bytes: impl FnMut(&[u8]),
    ) -> Result<Self, DatasetError> {
        Self::open_among(&ALL, which, spec, on_bytes)
    }

    /// [`Dataset::open`] of one of these benchmarks; the sample is the first one's.
    ///
    /// # Panics
    /// Where `among` is empty.
    pub fn open_among(
        among: &[&'static dyn Benchmark],
        which: impl AsRef<Path>,
        spec: SampleSpec,
        mut on_bytes: impl FnMut(&[u8]),
    ) -> Result<Self, DatasetError> {
        let path = which.as_ref();
        if path.as_os_str() == SAMPLE {
            let benchmark = among[0];
            let text = benchmark.sample(spec)?;
            let digest = sha256(&text);
            let bytes = text.len() as u64;
            let name = SAMPLE.to_owned();
            return Ok(Dataset { benchmark, name, digest, bytes, source: Source::Sample(text) });
        }
        let benchmark = recognise(&beginning(path)?, among);
        let mut hash = Sha256::new();
        let mut bytes = 0;
        let mut reader = Tap::new(open(path)?, |piece: &[u8]| {
            hash.update(piece);
            bytes += piece.len() as u64;
            on_bytes(piece);
        });
        let mut buffer = vec![0; BUFFER];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(DatasetError::File { path: path.to_owned(), source }),
            }
        }
        drop(reader);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Dataset {
            benchmark,
            name,
            digest: hex(&hash.finalize()),
            bytes,
            source: Source::File(path.to_owned()),
        })
    }

    /// Whose it is.
    pub fn benchmark(&self) -> &'static dyn Benchmark {
        self.benchmark
    }

    /// `sample`, or the file's name without its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the file's bytes (the sample: of the file that it would be), lower-case hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The cases, from the first one on.
    pub fn cases(&self) -> Result<Cases<'_>, DatasetError> {
        self.cases_observed(|_| {})
    }

    /// The cases, from the first one on; `on_bytes` hears of every piece of the file that is read.
    pub fn cases_observed<'a>(&'a self, on_bytes: impl FnMut(&[u8]) + 'a) -> Result<Cases<'a>, DatasetError> {
        let reader: Box<dyn Read + 'a> = match &self.source {
            Source::Sample(text) => Box::new(Tap::new(Cursor::new(text), on_bytes)),
            Source::File(path) => Box::new(Tap::new(open(path)?, on_bytes)),
        };
        Ok(self.benchmark.read(Box::new(BufReader::with_capacity(BUFFER, reader))))
    }
}

/// What a check of a file found.
#[derive(Debug)]
pub struct Checked {
    /// Whose file it was taken for.
    pub benchmark: &'static dyn Benchmark,
    /// What is wrong with it.
    pub report: Report,
    /// Its SHA-256, lower-case hexadecimal.
    pub digest: String,
}

/// Reads a file once: its digest, and what [`Benchmark::check`] says. `on_bytes` hears of every piece read, `on_problem` of every
/// problem when it is found.
pub fn check_file(
    path: &Path,
    mut on_bytes: impl FnMut(&[u8]),
    on_problem: &mut dyn FnMut(&Problem),
) -> Result<Checked, DatasetError> {
    let benchmark = recognise(&beginning(path)?, &ALL);
    let mut hash = Sha256::new();
    let reader = Tap::new(open(path)?, |piece: &[u8]| {
        hash.update(piece);
        on_bytes(piece);
    });
    let report = benchmark.check(Box::new(BufReader::with_capacity(BUFFER, reader)), on_problem);
    Ok(Checked { benchmark, report, digest: hex(&hash.finalize()) })
}

/// The first bytes of a file, by which its benchmark is known.
fn beginning(path: &Path) -> Result<String, DatasetError> {
    const LOOKED_AT: u64 = 64 << 10;
    let mut bytes = Vec::new();
    let read = open(path)?.take(LOOKED_AT).read_to_end(&mut bytes);
    read.map_err(|source| DatasetError::File { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a regular file. A folder would open, too, and fail at the first read with a message that helps nobody.
fn open(path: &Path) -> Result<File, DatasetError> {
    let of = |source| DatasetError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(of)?;
    if !file.metadata().map_err(of)?.is_file() {
        return Err(DatasetError::NotAFile(path.to_owned()));
    }
    Ok(file)
}

/// A reader that shows every piece read to a closure.
struct Tap<R, F> {
    reader: R,
    on_bytes: F,
}

impl<R: Read, F: FnMut(&[u8])> Tap<R, F> {
    fn new(reader: R, on_bytes: F) -> Self {
        Tap { reader, on_bytes }
    }
}

impl<R: Read, F: FnMut(&[u8])> Read for Tap<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        if let Some(piece) = buffer.get(..n) {
            (self.on_bytes)(piece);
        }
        Ok(n)
    }
}
