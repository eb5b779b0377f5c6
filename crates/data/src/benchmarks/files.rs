//! Files of a dataset: a single file, a folder or an in-memory sample. Created by [`super::dataset`]; knows no format.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::ground::text_file;

pub(super) const BUFFER: usize = 256 << 10;
const LOOKED_AT: u64 = 64 << 10;
/// More files suggest the wrong folder.
const MOST_FILES: usize = 10_000;
const DEPTH: usize = 4;

type OnBytes<'a> = Rc<RefCell<dyn FnMut(&[u8]) + 'a>>;

#[derive(Clone)]
pub struct Files<'a> {
    source: &'a Source,
    on_bytes: Option<OnBytes<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    Memory(Vec<(String, Vec<u8>)>),
    File(PathBuf, [String; 1]),
    Folder(PathBuf, Vec<String>),
}

impl Source {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_dir() {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            return Ok(Source::File(path.to_owned(), [name]));
        }
        let mut names = Vec::new();
        list(path, "", DEPTH, &mut names)?;
        names.sort_unstable();
        Ok(Source::Folder(path.to_owned(), names))
    }

    pub(super) fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        if let Source::Folder(_, names) = self {
            names.retain(|name| wanted(name));
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Source::Memory(files) => files.iter().map(|(name, _)| name.as_str()).collect(),
            Source::File(_, names) => names.iter().map(String::as_str).collect(),
            Source::Folder(_, names) => names.iter().map(String::as_str).collect(),
        }
    }

    fn open_file(&self, name: &str) -> io::Result<Box<dyn Read + '_>> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no {name}"));
        if !self.names().contains(&name) {
            return Err(missing());
        }
        Ok(match self {
            Source::Memory(files) => {
                let file = files.iter().find(|(other, _)| other == name).ok_or_else(missing)?;
                Box::new(Cursor::new(file.1.as_slice()))
            }
            Source::File(path, _) => Box::new(File::open(path)?),
            Source::Folder(path, _) => Box::new(File::open(path.join(name))?),
        })
    }
}

/// Lists files recursively; skips hidden files and symlinked folders.
fn list(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let (path, kind) = (entry.path(), entry.file_type()?);
        let relative = format!("{prefix}{name}");
        if kind.is_dir() {
            if depth > 1 {
                list(&path, &format!("{relative}/"), depth - 1, names)?;
            }
        } else if std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            names.push(relative);
            if names.len() > MOST_FILES {
                return Err(io::Error::other(format!("it holds more than {MOST_FILES} files")));
            }
        }
    }
    Ok(())
}

impl<'a> Files<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Files { source, on_bytes: None }
    }

    pub(super) fn heard(self, on_bytes: impl FnMut(&[u8]) + 'a) -> Self {
        Files { on_bytes: Some(Rc::new(RefCell::new(on_bytes))), ..self }
    }

    /// True for folders and multi-file samples.
    pub fn is_folder(&self) -> bool {
        match self.source {
            Source::Memory(files) => files.len() > 1,
            Source::File(..) => false,
            Source::Folder(..) => true,
        }
    }

    /// Sorted; relative to the folder with `/`.
    pub fn names(&self) -> Vec<&'a str> {
        self.source.names()
    }

    pub fn open(&self, name: &str) -> io::Result<Box<dyn BufRead + 'a>> {
        let mut reader = self.open_raw(name)?;
        text_file::skip_mark(&mut reader)?;
        Ok(reader)
    }

    pub(super) fn open_raw(&self, name: &str) -> io::Result<Box<dyn BufRead + 'a>> {
        let reader = self.source.open_file(name)?;
        let reader: Box<dyn Read + 'a> = match &self.on_bytes {
            None => reader,
            Some(on_bytes) => Box::new(Tap { reader, on_bytes: Rc::clone(on_bytes) }),
        };
        Ok(Box::new(BufReader::with_capacity(BUFFER, reader)))
    }

    pub fn open_first(&self) -> io::Result<Box<dyn BufRead + 'a>> {
        self.open(self.names().first().copied().unwrap_or_default())
    }

    pub fn bytes(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// First 64 KiB for format detection, lossy UTF-8; empty if unreadable.
    pub fn beginning(&self, name: &str) -> String {
        let mut bytes = Vec::new();
        // The error will recur when the file is read.
        let _ = self.source.open_file(name).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').to_owned()
    }

    pub fn first_beginning(&self) -> String {
        self.beginning(self.names().first().copied().unwrap_or_default())
    }
}

impl fmt::Debug for Files<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Files").field(&self.names()).finish()
    }
}

struct Tap<'a> {
    reader: Box<dyn Read + 'a>,
    on_bytes: OnBytes<'a>,
}

impl Read for Tap<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        if let (Some(piece), Ok(mut on_bytes)) = (buffer.get(..n), self.on_bytes.try_borrow_mut()) {
            on_bytes(piece);
        }
        Ok(n)
    }
}
