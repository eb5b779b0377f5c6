//! The files of a data set: one, those of a folder, or the built-in sample's, which lie in memory.
//!
//! Called by [`super::dataset`], which makes them, and by the readers of the benchmarks, which open them by name. Knows no
//! format.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::ground::text_file;

pub(super) const BUFFER: usize = 256 << 10;
const LOOKED_AT: u64 = 64 << 10;
/// Most files of a folder: beyond that it is the wrong folder.
const MOST_FILES: usize = 10_000;
/// Folders within folders that are looked into.
const DEPTH: usize = 4;

type OnBytes<'a> = Rc<RefCell<dyn FnMut(&[u8]) + 'a>>;

/// The files of a data set. A clone reads the same files.
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

/// The files below a folder, but for hidden ones; folders behind links are not entered.
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

    /// The same, with someone who hears of every piece that is read.
    pub(super) fn heard(self, on_bytes: impl FnMut(&[u8]) + 'a) -> Self {
        Files { on_bytes: Some(Rc::new(RefCell::new(on_bytes))), ..self }
    }

    /// True if they are a folder's, or a sample's of several files.
    pub fn is_folder(&self) -> bool {
        match self.source {
            Source::Memory(files) => files.len() > 1,
            Source::File(..) => false,
            Source::Folder(..) => true,
        }
    }

    /// Their names, sorted: relative to the folder with `/` between the parts; of a single file its own.
    pub fn names(&self) -> Vec<&'a str> {
        self.source.names()
    }

    /// Opens one of them, behind the byte order mark that it may begin with.
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

    /// The first 64 KiB of one of them, by which formats are known; empty where it cannot be read. What is no UTF-8 is replaced.
    pub fn beginning(&self, name: &str) -> String {
        let mut bytes = Vec::new();
        // A failure here comes again where the file is read, and is told there.
        let _ = self.source.open_file(name).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').to_owned()
    }

    /// [`Files::beginning`] of the only file, or of the first of several.
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
