//! Splits a JSON array, alone or under `data` of an object, into element texts, one in memory at a time. Unlike a serde visitor, it can
//! continue after an element of the wrong shape. Elements are validated by the JSON parser.

use std::io::{self, BufRead};

use crate::benchmarks::arrays::without_place;
use crate::benchmarks::reading::ReadError;

/// Limit against runaway input; published rows have 0.8 MB.
const MAX_ROW_BYTES: usize = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    BeforeArray,
    BeforeFirst,
    BetweenRows,
    AfterArray,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RowStart {
    pub(super) row: usize,
    line: usize,
    column: usize,
}

impl RowStart {
    /// Maps the parser's position from the row to the file.
    pub(super) fn error(self, error: &serde_json::Error) -> ReadError {
        let (line, column) = match error.line() {
            0 | 1 => (self.line, self.column + error.column().saturating_sub(1)),
            line => (self.line + line - 1, error.column()),
        };
        RowStart { line, column, ..self }.syntax(format!("not valid JSON: {}", without_place(error)))
    }

    fn syntax(self, what: String) -> ReadError {
        let RowStart { row, line, column } = self;
        ReadError::Syntax { file: None, row, line, column, what }
    }
}

#[derive(Debug)]
pub(super) struct RowSplitter<R> {
    reader: R,
    state: State,
    in_object: bool,
    rows: usize,
    line: usize,
    column: usize,
}

impl<R: BufRead> RowSplitter<R> {
    pub(super) fn new(reader: R) -> Self {
        RowSplitter { reader, state: State::BeforeArray, in_object: false, rows: 0, line: 1, column: 1 }
    }

    fn here(&self) -> RowStart {
        RowStart { row: self.rows, line: self.line, column: self.column }
    }

    /// Reads the next element into `text`; `None` at the end.
    pub(super) fn next_row(&mut self, text: &mut Vec<u8>) -> Result<Option<RowStart>, ReadError> {
        text.clear();
        if self.state == State::BeforeArray {
            match self.peek_after_space()? {
                Some(b'[') => self.bump(),
                Some(b'{') => {
                    self.in_object = true;
                    self.bump();
                    self.enter_data(text)?;
                }
                other => {
                    let remedy = "a STALE file is one JSON array of rows, so it begins with `[`, or an object whose `data` is one";
                    return Err(self.unexpected(other, remedy));
                }
            }
            text.clear();
            self.state = State::BeforeFirst;
        }
        match (self.state, self.peek_after_space()?) {
            (State::BeforeFirst, Some(b']')) => {
                self.end_of_array(text)?;
                return Err(ReadError::NoCases { benchmark: super::TITLE });
            }
            (State::BetweenRows, Some(b']')) => {
                self.end_of_array(text)?;
                return Ok(None);
            }
            (State::BetweenRows, Some(b',')) => {
                self.bump();
                if self.peek_after_space()? == Some(b']') {
                    return Err(self.unexpected(Some(b']'), "remove the comma behind the last row"));
                }
            }
            (State::BetweenRows, other) => {
                return Err(self.unexpected(other, "a `,` or the closing `]` must follow a row"));
            }
            (State::AfterArray, _) => return Ok(None),
            (State::BeforeArray | State::BeforeFirst, _) => {}
        }
        let start = self.here();
        self.copy_element(start, text)?;
        self.rows += 1;
        self.state = State::BetweenRows;
        Ok(Some(start))
    }

    /// Skips other keys up to the `[` of `data`; `text` is scratch.
    fn enter_data(&mut self, text: &mut Vec<u8>) -> Result<(), ReadError> {
        const REMEDY: &str = "the object that a STALE file may be has the array of rows under the key `data`";
        loop {
            let key_follows = self.peek_after_space()?;
            if key_follows != Some(b'"') {
                return Err(self.unexpected(key_follows, REMEDY));
            }
            let is_data = self.key(text)?;
            match self.peek_after_space()? {
                Some(b'[') if is_data => {
                    self.bump();
                    return Ok(());
                }
                other if is_data => return Err(self.unexpected(other, REMEDY)),
                _ => self.skip_value(text)?,
            }
            match self.peek_after_space()? {
                Some(b',') => self.bump(),
                other => return Err(self.unexpected(other, REMEDY)),
            }
        }
    }

    fn leave_object(&mut self, text: &mut Vec<u8>) -> Result<(), ReadError> {
        loop {
            match self.peek_after_space()? {
                Some(b'}') => {
                    self.bump();
                    return Ok(());
                }
                Some(b',') => self.bump(),
                other => return Err(self.unexpected(other, "a `,` or the closing `}` must follow a value")),
            }
            match self.peek_after_space()? {
                Some(b'"') => {}
                other => return Err(self.unexpected(other, "a key must stand here")),
            }
            if self.key(text)? {
                let found = self.peek_after_space()?;
                return Err(self.unexpected(found, "this is a second `data`; keep one of them"));
            }
            self.peek_after_space()?;
            self.skip_value(text)?;
        }
    }

    fn key(&mut self, text: &mut Vec<u8>) -> Result<bool, ReadError> {
        self.skip_value(text)?;
        match self.peek_after_space()? {
            Some(b':') => self.bump(),
            other => return Err(self.unexpected(other, "a `:` must follow a key")),
        }
        Ok(text.as_slice() == b"\"data\"")
    }

    fn skip_value(&mut self, text: &mut Vec<u8>) -> Result<(), ReadError> {
        text.clear();
        self.copy_element(self.here(), text)
    }

    /// Consumes `]`, the rest of the object, and checks for trailing data.
    fn end_of_array(&mut self, text: &mut Vec<u8>) -> Result<(), ReadError> {
        self.bump();
        self.state = State::AfterArray;
        if self.in_object {
            self.leave_object(text)?;
            text.clear();
        }
        match self.peek_after_space()? {
            None => Ok(()),
            other => Err(self.unexpected(other, "nothing may follow the array")),
        }
    }

    /// Up to the closing bracket or quote, or the end of a bare word.
    fn copy_element(&mut self, start: RowStart, text: &mut Vec<u8>) -> Result<(), ReadError> {
        if let found @ (Some(b'}' | b']' | b',' | b':') | None) = self.peek()? {
            return Err(self.unexpected(found, "a row must stand here"));
        }
        let mut scan = Scan::default();
        loop {
            let failed = |source| ReadError::Read { file: None, row: self.rows, source };
            let chunk = fill(&mut self.reader).map_err(failed)?;
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
        let failed = |source| ReadError::Read { file: None, row: self.rows, source };
        Ok(fill(&mut self.reader).map_err(failed)?.first().copied())
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

/// Retries on EINTR.
fn fill<R: BufRead>(reader: &mut R) -> io::Result<&[u8]> {
    loop {
        match reader.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Returns the same bytes; the borrow checker rejects returning from inside the loop.
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
