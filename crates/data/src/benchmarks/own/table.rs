//! Tables as spreadsheets and scripts write them: CSV with commas, semicolons or tabs, or JSON Lines; UTF-8 or UTF-16.
//!
//! Rows have the numbers that a spreadsheet shows: the header is row 1, and a cell of several lines is in one row. In JSON Lines a row is a
//! line. Line breaks are read as `\n`.

use std::io::Read;

use crate::benchmarks::Files;
use crate::benchmarks::reading::ReadError;
use crate::benchmarks::shape::{Node, ONE_OBJECT, Pairs, lines, quote};
use crate::ground::{json, text_file};

/// First bytes of .xlsx and .ods (ZIP), and of .xls.
const SPREADSHEETS: [&[u8]; 2] = [b"PK\x03\x04", b"\xD0\xCF\x11\xE0"];

/// A known column. Letter case, spaces, `-` and `_` of its names do not count.
pub(super) struct Column {
    pub name: &'static str,
    pub also: &'static [&'static str],
    pub needed: bool,
}

pub(super) struct Table<'a> {
    pub file: &'a str,
    /// As written, with the known column that each is.
    names: Vec<(String, Option<&'static str>)>,
    pub rows: Vec<Row>,
}

pub(super) struct Row {
    pub number: usize,
    cells: Vec<String>,
}

impl<'a> Table<'a> {
    /// Rows without text are left out.
    pub fn read(files: &Files<'_>, file: &'a str, known: &'static [Column]) -> Result<Self, ReadError> {
        let failed = |source| ReadError::Read { file: Some(file.to_owned()), row: 0, source };
        let mut bytes = Vec::new();
        files.open_raw(file).and_then(|mut reader| reader.read_to_end(&mut bytes)).map_err(failed)?;
        if SPREADSHEETS.iter().any(|signature| bytes.starts_with(signature)) {
            let what = "it is a spreadsheet or another packed file; save the sheet as CSV (Excel: \"CSV UTF-8\") and give that file";
            return Err(fault(file, 0, what));
        }
        let text = text_file::decoded(bytes).map_err(|error| fault(file, 0, error.to_string()))?;
        let (header, names, rows) = if is_json(&text) {
            json_table(file, &text)?
        } else {
            csv_table(file, &with_plain_breaks(&text))?
        };
        let names = with_columns((file, header), names, known)?;
        let rows = rows.into_iter().filter(|row| row.cells.iter().any(|cell| !cell.trim().is_empty()));
        Ok(Table { file, names, rows: rows.collect() })
    }

    pub fn has(&self, column: &str) -> bool {
        self.names.iter().any(|(_, known)| *known == Some(column))
    }

    /// Columns that are not read.
    pub fn unused(&self) -> Vec<&str> {
        self.names.iter().filter(|(_, known)| known.is_none()).map(|(name, _)| name.as_str()).collect()
    }

    /// Empty if the row or the table lacks it.
    pub fn cell<'r>(&self, row: &'r Row, column: &str) -> &'r str {
        let place = self.names.iter().position(|(_, known)| *known == Some(column));
        place.and_then(|place| row.cells.get(place)).map_or("", String::as_str)
    }
}

/// Names of the columns, for detection; empty if the file cannot be read.
pub(super) fn column_names(files: &Files<'_>, file: &str) -> Vec<String> {
    const LOOKED_AT: u64 = 64 << 10;
    let mut bytes = Vec::new();
    if files.open_raw(file).and_then(|reader| reader.take(LOOKED_AT).read_to_end(&mut bytes)).is_err() {
        return Vec::new();
    }
    let text = text_file::decoded_lossy(&bytes);
    let names = match is_json(&text) {
        true => text.lines().next().and_then(|line| Some(json_table(file, line).ok()?.1)),
        false => {
            csv_rows(&with_plain_breaks(&text)).ok().and_then(|rows| Some(rows.into_iter().next()?.cells))
        }
    };
    names.unwrap_or_default().iter().map(|name| folded(name)).collect()
}

pub(super) fn is_among(names: &[String], column: &Column) -> bool {
    names.iter().any(|name| names_it(column, name))
}

fn names_it(Column { name, also, .. }: &Column, folded: &str) -> bool {
    folded == *name || also.contains(&folded)
}

fn folded(name: &str) -> String {
    name.trim().to_lowercase().replace([' ', '-'], "_")
}

fn with_columns(
    (file, header): (&str, usize),
    names: Vec<String>,
    known: &'static [Column],
) -> Result<Vec<(String, Option<&'static str>)>, ReadError> {
    let column = |name: &String| known.iter().find(|one| names_it(one, &folded(name))).map(|one| one.name);
    let found: Vec<_> = names.iter().map(column).collect();
    for Column { name, needed, .. } in known {
        let of: Vec<String> = names
            .iter()
            .zip(&found)
            .filter(|(_, is)| **is == Some(name))
            .map(|(own, _)| quote(own))
            .collect();
        if of.is_empty() && *needed {
            let all = known.iter().map(|one| match one.also {
                [] => one.name.to_owned(),
                also => format!("{} (or {})", one.name, also.join(", ")),
            });
            let (wanted, optional): (Vec<_>, Vec<_>) = known.iter().zip(all).partition(|(one, _)| one.needed);
            let listed = |of: Vec<(&Column, String)>| {
                of.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; ")
            };
            let (wanted, optional) = (listed(wanted), listed(optional));
            let columns: Vec<String> = names.iter().map(|name| quote(name)).collect();
            let columns = if columns.is_empty() { "nothing".to_owned() } else { columns.join(", ") };
            return Err(fault(
                file,
                header,
                format!(
                    "no column `{name}`; the header has {columns}; rename the column that holds it, or write a header if this row is data. \
                     Needed: {wanted}; optional: {optional}"
                ),
            ));
        }
        if of.len() > 1 {
            let of = of.join(" and ");
            return Err(fault(
                file,
                header,
                format!("{of} are both the column `{name}`; rename one of them"),
            ));
        }
    }
    Ok(names.into_iter().zip(found).collect())
}

pub(super) fn fault(file: &str, row: usize, what: impl Into<String>) -> ReadError {
    ReadError::Table { file: file.to_owned(), row, what: what.into() }
}

/// JSON Lines, or an array, which is refused.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

fn with_plain_breaks(text: &str) -> String {
    // The line of a record is counted by `\n`.
    text.replace("\r\n", "\n").replace('\r', "\n") + "\n"
}

/// Row of the header, names of the columns, rows.
type Cells = (usize, Vec<String>, Vec<Row>);

fn csv_table(file: &str, text: &str) -> Result<Cells, ReadError> {
    let rows = csv_rows(text).map_err(|error| fault(file, 0, format!("it is no CSV: {error}")))?;
    let mut rows = rows.into_iter();
    let Some(Row { number: header, cells: mut names }) = rows.next() else {
        return Err(fault(file, 0, "the file is empty; write a header that names the columns, and rows"));
    };
    while names.last().is_some_and(|name| name.trim().is_empty()) {
        names.pop();
    }
    let rows: Vec<Row> = rows.collect();
    for Row { number, cells } in &rows {
        if let Some(text) = cells.iter().skip(names.len()).find(|cell| !cell.trim().is_empty()) {
            return Err(fault(
                file,
                *number,
                format!(
                    "the row has {} cells and the header {}: {} is in no column; put texts that hold the separator in quotation marks",
                    cells.len(),
                    names.len(),
                    quote(text)
                ),
            ));
        }
    }
    // A quote that is never closed takes all that follows into one cell.
    if let Some(Row { number, cells }) = rows.last()
        && text.matches('"').count() % 2 == 1
        && let Some(open) = cells.iter().find(|cell| cell.contains('\n'))
    {
        let begins = quote(open.lines().next().unwrap_or_default());
        let what =
            format!("the quotation mark before {begins} is not closed; close it, or double it inside a text");
        // The line break that ends a row is in the cell here.
        return Err(fault(file, *number + 1, what));
    }
    Ok((header, names, rows))
}

fn csv_rows(text: &str) -> Result<Vec<Row>, csv::Error> {
    // Excel's own first line.
    let (skipped, text) = match text.strip_prefix("sep=").and_then(|rest| rest.split_once('\n')) {
        Some((_, rest)) => (1, rest),
        None => (0, text),
    };
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter(text))
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let (mut rows, mut record, mut breaks) = (Vec::new(), csv::StringRecord::new(), 0);
    while reader.read_record(&mut record)? {
        let cells: Vec<String> = record.iter().map(str::to_owned).collect();
        breaks += cells.iter().map(|cell| cell.matches('\n').count() as u64).sum::<u64>();
        // Behind the record's own line break.
        let number = (reader.position().line() - 1).saturating_sub(breaks);
        rows.push(Row { number: number as usize + skipped, cells });
    }
    Ok(rows)
}

/// The separator that the header has most of outside quotes.
fn delimiter(text: &str) -> u8 {
    let (mut counts, mut in_quotes) = ([0; 3], false);
    const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];
    for byte in text.trim_start_matches('\n').bytes() {
        match byte {
            b'\n' if !in_quotes => break,
            b'"' => in_quotes = !in_quotes,
            _ => {
                if let Some(at) = SEPARATORS.iter().position(|one| *one == byte).filter(|_| !in_quotes) {
                    counts[at] += 1;
                }
            }
        }
    }
    let most = (0..3).rev().max_by_key(|at| counts[*at]).unwrap_or(0);
    SEPARATORS[most]
}

fn json_table(file: &str, text: &str) -> Result<Cells, ReadError> {
    let (mut names, mut rows): (Vec<String>, Vec<Row>) = Default::default();
    for line in lines(text.as_bytes()) {
        let (number, line) =
            line.map_err(|source| ReadError::Read { file: Some(file.to_owned()), row: 0, source })?;
        let (node, faults): (Node, _) = json::read(&line)
            .map_err(|error| fault(file, number, format!("the line is no JSON ({error}); {ONE_OBJECT}")))?;
        if let Some(one) = faults.first() {
            return Err(fault(file, number, format!("{}: found {}; {}", one.field, one.found, one.remedy)));
        }
        let Node::Object(Pairs(fields)) = node else {
            return Err(fault(file, number, format!("found {}; {ONE_OBJECT}", node.describe())));
        };
        let mut cells = vec![String::new(); names.len()];
        for (name, value) in fields {
            let cell = match value {
                Node::Null => String::new(),
                Node::String(text) => text,
                Node::Bool(_) | Node::Number(_) => value.describe(),
                Node::Array(_) | Node::Object(_) => {
                    let found = value.describe();
                    return Err(fault(
                        file,
                        number,
                        format!("{name}: found {found}; write a text or a number"),
                    ));
                }
            };
            match names.iter().position(|known| *known == name) {
                Some(place) => cells[place] = cell,
                None => {
                    names.push(name);
                    cells.push(cell);
                }
            }
        }
        rows.push(Row { number, cells });
    }
    Ok((rows.first().map_or(0, |row| row.number), names, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<(usize, Vec<String>)> {
        csv_rows(&with_plain_breaks(text)).unwrap().into_iter().map(|row| (row.number, row.cells)).collect()
    }

    #[test]
    fn rows_have_the_numbers_of_a_spreadsheet_whatever_their_line_breaks() {
        let text = "a,b\n\n1,\"x\ny\n\"\n\n\n2,z";
        for breaks in ["\n", "\r\n", "\r"] {
            let found = rows(&text.replace('\n', breaks));
            let expected: [(usize, [&str; 2]); 3] = [(1, ["a", "b"]), (3, ["1", "x\ny\n"]), (6, ["2", "z"])];
            assert_eq!(
                found,
                expected.map(|(n, cells)| (n, cells.map(str::to_owned).to_vec())),
                "{breaks:?}"
            );
        }
        assert_eq!(rows("sep=;\na;b\n1;2")[1].0, 3);
    }

    #[test]
    fn the_separator_is_the_headers_own() {
        for (text, cells) in [
            ("a,b\n1;2,3", ["1;2", "3"]),
            ("a;b\n1,2;3", ["1,2", "3"]),
            ("a\tb\n1,2\t3", ["1,2", "3"]),
            ("\"a,c,d\";b\n\"say \"\"so\"\"\";3", ["say \"so\"", "3"]),
        ] {
            assert_eq!(rows(text)[1].1, cells, "{text}");
        }
        assert_eq!(delimiter("text"), b',');
    }
}
