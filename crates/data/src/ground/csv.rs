//! In-memory CSV tables, declared column by column, one row per item.
//!
//! Text cells that look like a formula get an apostrophe: [CSV injection](https://owasp.org/www-community/attacks/CSV_Injection).

use std::borrow::Cow;

use csv::ByteRecord;

pub struct CsvTable<R> {
    items: Vec<R>,
    head: ByteRecord,
    rows: Vec<ByteRecord>,
}

impl<R: Copy> CsvTable<R> {
    pub fn of(items: impl IntoIterator<Item = R>) -> Self {
        let items: Vec<R> = items.into_iter().collect();
        let rows = vec![ByteRecord::new(); items.len()];
        CsvTable { items, head: ByteRecord::new(), rows }
    }

    #[must_use]
    pub fn column<T: ToString>(mut self, name: impl AsRef<str>, cell: impl Fn(R) -> T) -> Self {
        self.head.push_field(name.as_ref().as_bytes());
        for (item, row) in self.items.iter().zip(&mut self.rows) {
            row.push_field(cell(*item).to_string().as_bytes());
        }
        self
    }

    #[must_use]
    pub fn column_if<T: ToString>(self, wanted: bool, name: &str, cell: impl Fn(R) -> T) -> Self {
        if wanted { self.column(name, cell) } else { self }
    }

    /// An absent value is an empty cell.
    #[must_use]
    pub fn optional<T: ToString>(self, name: impl AsRef<str>, cell: impl Fn(R) -> Option<T>) -> Self {
        self.column(name, |item| cell(item).map(|value| value.to_string()).unwrap_or_default())
    }

    pub fn bytes(self) -> Vec<u8> {
        write([self.head].into_iter().chain(self.rows))
    }
}

/// Escapes a text that a spreadsheet would evaluate as a formula.
pub fn shown_as_text(text: &str) -> Cow<'_, str> {
    // Some spreadsheets skip invisible characters before the sign.
    let seen = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '\u{200B}'..='\u{200D}'));
    match text.starts_with(['\t', '\r', '\n'])
        || seen.starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
    {
        true => Cow::Owned(format!("'{text}")),
        false => Cow::Borrowed(text),
    }
}

/// Like [`shown_as_text`], but leaves numbers alone: single, joined by [`list`], with an interval or a count; also a lone sign.
pub fn cell(text: &str) -> Cow<'_, str> {
    let is_number = |text: &str| text.strip_suffix('%').unwrap_or(text).parse::<f64>().is_ok();
    let (numbers, rest) = text.split_once(' ').unwrap_or((text, ""));
    match numbers.split(';').all(is_number) && (rest.is_empty() || rest.starts_with(['(', '[']))
        || text.len() == 1
    {
        true => Cow::Borrowed(text),
        false => shown_as_text(text),
    }
}

pub fn write(records: impl IntoIterator<Item = ByteRecord>) -> Vec<u8> {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for record in records {
        // Writing to memory cannot fail, and a flexible writer accepts rows of any length.
        let _ = writer.write_record(record.iter().map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Owned(cell(text).into_owned().into_bytes()),
            Err(_) => Cow::Borrowed(bytes),
        }));
    }
    writer.into_inner().unwrap_or_default()
}

pub fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_that_begin_like_formulas_are_text_and_numbers_are_numbers() {
        for text in [
            "=1+1",
            "=cmd|' /C calc'!A0",
            "+49 170 1234",
            "-2+3+cmd|' /C calc'!A0",
            "@SUM(A1)",
            "\tx",
            "\rx",
            "-1+1",
            "- a list",
            "--",
            " =1+1",
            "\u{200b}=1+1",
            "＝1+1",
            "-0.5.1",
            "-0.5;=1+1",
        ] {
            let guarded = cell(text);
            assert_eq!(guarded, format!("'{text}"));
            assert_eq!(cell(&guarded), guarded, "once is enough");
        }
        for number in [
            "-0.5",
            "+1",
            "-1e-9",
            "-inf",
            "NaN",
            "-3.5%",
            "-",
            "-0.5 [-0.7, -0.3]",
            "-0.5;0.25;-1e-9",
            "+2 (14)",
            "",
            "a=b",
            "'=x",
        ] {
            assert_eq!(cell(number), number);
        }
        let table = CsvTable::of([("=A1", -0.5)])
            .column("-name", |(name, _)| name)
            .column("value", |(_, value)| value);
        assert_eq!(String::from_utf8(table.bytes()).unwrap(), "'-name,value\n'=A1,-0.5\n");
    }
}
