//! Files of a dataset: a single file, a folder or an in-memory sample. Created by [`super::dataset`]; knows no format.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::ground::text_file;

const BUFFER: usize = 256 << 10;
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

#[derive(Debug)]
pub(super) struct Source {
    /// True for folders and multi-file samples.
    is_folder: bool,
    /// By name, in a folder relative to it with `/`.
    files: Vec<(String, Content)>,
}

#[derive(Debug)]
enum Content {
    Memory(Vec<u8>),
    File(PathBuf),
}

impl Source {
    pub(super) fn memory(files: Vec<(String, Vec<u8>)>) -> Self {
        let is_folder = files.len() > 1;
        Source {
            is_folder,
            files: files.into_iter().map(|(name, bytes)| (name, Content::Memory(bytes))).collect(),
        }
    }

    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_dir() {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            return Ok(Source { is_folder: false, files: vec![(name, Content::File(path.to_owned()))] });
        }
        let mut names = Vec::new();
        list(path, "", DEPTH, &mut names)?;
        names.sort_unstable();
        let file = |name: String| {
            let content = Content::File(path.join(&name));
            (name, content)
        };
        Ok(Source { is_folder: true, files: names.into_iter().map(file).collect() })
    }

    /// Selects files of a folder.
    pub(super) fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        let is_folder = self.is_folder;
        self.files.retain(|(name, _)| !is_folder || wanted(name));
    }

    /// Adds the second file of a pair.
    pub(super) fn add(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let is_taken = self.files.iter().any(|(other, _)| *other == name);
        let name = if is_taken { path.to_string_lossy().into_owned() } else { name };
        self.files.push((name, Content::File(path.to_owned())));
        self.is_folder = true;
    }

    fn open_file(&self, name: &str) -> io::Result<Box<dyn Read + '_>> {
        match self.files.iter().find(|(other, _)| other == name) {
            Some((_, Content::Memory(bytes))) => Ok(Box::new(bytes.as_slice())),
            Some((_, Content::File(path))) => Ok(Box::new(File::open(path)?)),
            None => Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no {name}"))),
        }
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

    pub fn is_folder(&self) -> bool {
        self.source.is_folder
    }

    /// Sorted; relative to the folder with `/`.
    pub fn names(&self) -> Vec<&'a str> {
        self.source.files.iter().map(|(name, _)| name.as_str()).collect()
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
