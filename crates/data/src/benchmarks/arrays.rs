//! Splits a JSON array, alone or under `data` of an object, into element texts, one in memory at a time. Unlike a serde visitor, it can
//! continue after an element of the wrong shape. Elements are validated by the JSON parser.

use std::io::{self, BufRead};

use serde::de::DeserializeOwned;

use super::reading::ReadError;
use crate::ground::json::{self, Fault};

/// Limit against runaway input; published rows have 0.8 MB.
const MAX_ROW_BYTES: usize = 64 << 20;

/// All rows of a file, with the faults of their JSON.
pub(super) fn rows<T: DeserializeOwned>(
    reader: impl BufRead,
    file: Option<&str>,
    title: &str,
) -> Result<Vec<(T, Vec<Fault>)>, ReadError> {
    let (mut rows, mut text, mut found) = (RowSplitter::new(reader, file, title), Vec::new(), Vec::new());
    while let Some(start) = rows.next_row(&mut text)? {
        found.push(json::read(&text).map_err(|error| start.error(&error))?);
    }
    Ok(found)
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RowStart<'a> {
    file: Option<&'a str>,
    pub(super) row: usize,
    line: usize,
    column: usize,
}

impl RowStart<'_> {
    /// Maps the parser's position from the row to the file.
    pub(super) fn error(self, error: &serde_json::Error) -> ReadError {
        let (line, column) = match error.line() {
            0 | 1 => (self.line, self.column + error.column().saturating_sub(1)),
            line => (self.line + line - 1, error.column()),
        };
        // Strips serde's trailing ` at line ...`.
        let what = error.to_string();
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        RowStart { line, column, ..self }.syntax(format!("not valid JSON: {what}"))
    }

    fn syntax(self, what: String) -> ReadError {
        let RowStart { file, row, line, column } = self;
        ReadError::Syntax { file: file.map(str::to_owned), row, line, column, what }
    }
}

#[derive(Debug)]
pub(crate) struct RowSplitter<'a, R> {
    reader: R,
    /// `None` for single-file datasets.
    file: Option<&'a str>,
    /// Title of the benchmark.
    title: &'a str,
    begun: bool,
    ended: bool,
    in_object: bool,
    rows: usize,
    line: usize,
    column: usize,
}

impl<'a, R: BufRead> RowSplitter<'a, R> {
    pub(crate) fn new(reader: R, file: Option<&'a str>, title: &'a str) -> Self {
        let (begun, ended, in_object) = (false, false, false);
        RowSplitter { reader, file, title, begun, ended, in_object, rows: 0, line: 1, column: 1 }
    }

    fn here(&self) -> RowStart<'a> {
        RowStart { file: self.file, row: self.rows, line: self.line, column: self.column }
    }

    /// Reads the next element into `text`; `None` at the end.
    pub(crate) fn next_row(&mut self, text: &mut Vec<u8>) -> Result<Option<RowStart<'a>>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        if !self.begun {
            self.begin(text)?;
        }
        match self.peek_after_space()? {
            Some(b']') => {
                self.end(text)?;
                return Ok(None);
            }
            _ if self.rows == 0 => {}
            Some(b',') => {
                self.bump();
                if self.peek_after_space()? == Some(b']') {
                    return Err(self.unexpected(Some(b']'), "remove the comma behind the last row"));
                }
            }
            other => return Err(self.unexpected(other, "a `,` or the closing `]` must follow a row")),
        }
        let start = self.here();
        self.copy_element(start, text)?;
        self.rows += 1;
        Ok(Some(start))
    }

    /// Consumes all up to the first row.
    fn begin(&mut self, text: &mut Vec<u8>) -> Result<(), ReadError> {
        self.begun = true;
        match self.peek_after_space()? {
            Some(b'[') => self.bump(),
            Some(b'{') => {
                self.in_object = true;
                self.bump();
                self.members(text, false)?;
            }
            other => {
                let title = self.title;
                let remedy = format!(
                    "a {title} file is one JSON array of rows, so it begins with `[`, or an object whose `data` is one"
                );
                return Err(self.unexpected(other, &remedy));
            }
        }
        Ok(())
    }

    /// Consumes `]`, the rest of the object, and checks for trailing data.
    fn end(&mut self, text: &mut Vec<u8>) -> Result<(), ReadError> {
        self.ended = true;
        self.bump();
        if self.in_object {
            self.members(text, true)?;
        }
        match self.peek_after_space()? {
            None => Ok(()),
            other => Err(self.unexpected(other, "nothing may follow the array")),
        }
    }

    /// Skips members of the object up to the `[` of `data`, or from `behind` its `]` to the end; `text` is scratch.
    fn members(&mut self, text: &mut Vec<u8>, behind: bool) -> Result<(), ReadError> {
        let title = self.title;
        let remedy = |behind_it: &str| match behind {
            true => behind_it.to_owned(),
            false => {
                format!("the object that a {title} file may be has the array of rows under the key `data`")
            }
        };
        let mut first = !behind;
        loop {
            match self.peek_after_space()? {
                _ if first => first = false,
                Some(b',') => self.bump(),
                Some(b'}') if behind => {
                    self.bump();
                    return Ok(());
                }
                other => {
                    let remedy = remedy("a `,` or the closing `}` must follow a value");
                    return Err(self.unexpected(other, &remedy));
                }
            }
            let key = self.peek_after_space()?;
            if key != Some(b'"') {
                return Err(self.unexpected(key, &remedy("a key must stand here")));
            }
            self.copy_element(self.here(), text)?;
            match self.peek_after_space()? {
                Some(b':') => self.bump(),
                other => return Err(self.unexpected(other, "a `:` must follow a key")),
            }
            let is_data = text.as_slice() == b"\"data\"";
            match self.peek_after_space()? {
                Some(b'[') if is_data && !behind => {
                    self.bump();
                    return Ok(());
                }
                other if is_data => {
                    return Err(self.unexpected(other, &remedy("this is a second `data`; keep one of them")));
                }
                _ => self.copy_element(self.here(), text)?,
            }
        }
    }

    /// Up to the closing bracket or quote, or the end of a bare word.
    fn copy_element(&mut self, start: RowStart<'_>, text: &mut Vec<u8>) -> Result<(), ReadError> {
        text.clear();
        if let found @ (Some(b'}' | b']' | b',' | b':') | None) = self.peek()? {
            return Err(self.unexpected(found, "a row must stand here"));
        }
        let mut scan = Scan::default();
        loop {
            let chunk = fill(&mut self.reader).map_err(failed(self.file, self.rows))?;
            if chunk.is_empty() {
                if scan.bare() {
                    return Ok(());
                }
                let RowStart { line, column, .. } = start;
                return Err(self.here().syntax(format!(
                    "the file ends inside the row that begins at line {line}, column {column}; it is cut off, fetch it again"
                )));
            }
            let (used, done) = scan.advance(chunk);
            for &byte in &chunk[..used] {
                step(&mut self.line, &mut self.column, byte);
            }
            text.extend_from_slice(&chunk[..used]);
            self.reader.consume(used);
            if done {
                return Ok(());
            }
            if text.len() > MAX_ROW_BYTES {
                return Err(start.syntax(format!(
                    "the row that begins here has not ended after {} MiB; a quote or bracket is probably missing",
                    MAX_ROW_BYTES >> 20
                )));
            }
        }
    }

    fn peek_after_space(&mut self) -> Result<Option<u8>, ReadError> {
        loop {
            match self.peek()? {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.bump(),
                other => return Ok(other),
            }
        }
    }

    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        let chunk = fill(&mut self.reader).map_err(failed(self.file, self.rows))?;
        Ok(chunk.first().copied())
    }

    fn bump(&mut self) {
        if let Ok(&[byte, ..]) = self.reader.fill_buf() {
            step(&mut self.line, &mut self.column, byte);
            self.reader.consume(1);
        }
    }

    fn unexpected(&self, found: Option<u8>, remedy: &str) -> ReadError {
        let found = match found {
            None => "the end of the file".to_owned(),
            Some(byte) if byte.is_ascii_graphic() => format!("`{}`", char::from(byte)),
            Some(byte) => format!("byte 0x{byte:02X}"),
        };
        self.here().syntax(format!("found {found}; {remedy}"))
    }
}

fn failed(file: Option<&str>, row: usize) -> impl FnOnce(io::Error) -> ReadError + use<> {
    let file = file.map(str::to_owned);
    move |source| ReadError::Read { file, row, source }
}

/// Retries on EINTR.
fn fill<R: BufRead>(reader: &mut R) -> io::Result<&[u8]> {
    while reader.fill_buf().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
    reader.fill_buf()
}

fn step(line: &mut usize, column: &mut usize, byte: u8) {
    if byte == b'\n' {
        *line += 1;
        *column = 1;
    } else {
        *column += 1;
    }
}

#[derive(Debug, Default)]
struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

impl Scan {
    fn bare(&self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }

    /// (bytes of `chunk` in the element, whether it ends there)
    fn advance(&mut self, chunk: &[u8]) -> (usize, bool) {
        for (i, &byte) in chunk.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return (i + 1, true);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n' if self.bare() => return (i, true),
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (i + 1, true);
                    }
                }
                _ => {}
            }
            self.begun = true;
        }
        (chunk.len(), false)
    }
}
