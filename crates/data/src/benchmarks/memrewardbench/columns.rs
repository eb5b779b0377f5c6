//! Streams rows of a Parquet file (plain or Snappy pages; others are errors). Damaged files are errors, not panics.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use bytes::Bytes;
use parquet::basic::{Compression, Type};
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use serde_json::Value;

use super::row::RawRow;

#[derive(Debug, thiserror::Error)]
pub(super) enum ColumnsError {
    #[error("the Parquet file is cut off or damaged ({0}); fetch or write it again")]
    Open(ParquetError),
    #[error("the Parquet file is damaged ({0}); fetch or write it again")]
    Damaged(ParquetError),
    #[error("the Parquet file is damaged (a page does not hold what it announces); fetch or write it again")]
    Page,
    #[error("the Parquet file has no column `{0}`; write it with one")]
    Missing(&'static str),
    #[error("column `{name}` of the Parquet file is {found}; write it as text")]
    Type { name: &'static str, found: String },
    #[error(
        "column `{name}` of the Parquet file is compressed with {found}, which this build does not read; write it with Snappy or without \
         compression, or as JSONL"
    )]
    Compression { name: &'static str, found: String },
    #[error("column `{name}` of the Parquet file is damaged ({problem}); fetch or write it again")]
    Column { name: &'static str, problem: String },
}

pub(super) const MAGIC: &str = "PAR1";
const BATCH: usize = 8;
/// (name, required)
const COLUMNS: [(&str, bool); 7] = [
    ("index", false),
    ("task", true),
    ("subtask", true),
    ("ctx_length", true),
    ("question", true),
    ("chosen", true),
    ("rejected", true),
];

#[derive(Debug, Clone, Copy)]
struct Column {
    place: usize,
    optional: bool,
}

pub(super) struct ParquetRows {
    file: SerializedFileReader<Bytes>,
    columns: [Option<Column>; COLUMNS.len()],
    group: usize,
    open: Option<(Vec<Option<ColumnReader>>, usize)>,
    /// Decoded rows in reverse order.
    ready: Vec<RawRow>,
}

impl ParquetRows {
    /// Reads the footer.
    pub fn open(bytes: Vec<u8>) -> Result<Self, ColumnsError> {
        guarded(|| ParquetRows::opened(bytes))
    }

    fn opened(bytes: Vec<u8>) -> Result<Self, ColumnsError> {
        let file = SerializedFileReader::new(Bytes::from(bytes)).map_err(ColumnsError::Open)?;
        let schema = file.metadata().file_metadata().schema_descr_ptr();
        let mut columns = [None; COLUMNS.len()];
        for (column, (name, needed)) in columns.iter_mut().zip(COLUMNS) {
            let of_name = |path: &[String]| path.first().is_some_and(|first| first == name);
            let place = (0..schema.num_columns()).find(|&at| of_name(schema.column(at).path().parts()));
            let Some(place) = place else {
                if needed {
                    return Err(ColumnsError::Missing(name));
                }
                continue;
            };
            let found = schema.column(place);
            let nested = found.path().parts().len() > 1 || found.max_rep_level() > 0;
            let kind = found.physical_type();
            let whole = matches!(kind, Type::INT32 | Type::INT64);
            if nested || !(kind == Type::BYTE_ARRAY || whole && ["index", "ctx_length"].contains(&name)) {
                let found = if nested { "a list or a struct".to_owned() } else { kind.to_string() };
                return Err(ColumnsError::Type { name, found });
            }
            *column = Some(Column { place, optional: found.max_def_level() > 0 });
        }
        let rows = ParquetRows { file, columns, group: 0, open: None, ready: Vec::new() };
        rows.check_compression()?;
        Ok(rows)
    }

    fn check_compression(&self) -> Result<(), ColumnsError> {
        for group in self.file.metadata().row_groups() {
            for (column, (name, _)) in self.columns.iter().zip(COLUMNS) {
                let Some(chunk) = column.and_then(|column| group.columns().get(column.place)) else {
                    continue;
                };
                let compression = chunk.compression();
                // Strips the level of `ZSTD(ZstdLevel(1))`, which files do not record.
                let named = compression.to_string();
                let named = named.split('(').next().unwrap_or_default();
                if !matches!(compression, Compression::UNCOMPRESSED | Compression::SNAPPY) {
                    return Err(ColumnsError::Compression { name, found: named.to_owned() });
                }
            }
        }
        Ok(())
    }

    pub fn next_row(&mut self) -> Result<Option<RawRow>, ColumnsError> {
        let damaged = ColumnsError::Damaged;
        loop {
            if let Some(row) = self.ready.pop() {
                return Ok(Some(row));
            }
            match &mut self.open {
                Some((readers, left)) if *left > 0 => {
                    let most = BATCH.min(*left);
                    *left -= most;
                    let mut columns = Vec::with_capacity(COLUMNS.len());
                    for ((reader, column), (name, _)) in readers.iter_mut().zip(self.columns).zip(COLUMNS) {
                        columns.push(match (reader, column) {
                            (Some(reader), Some(column)) => {
                                guarded(|| values(reader, column.optional, most, name))?
                            }
                            _ => vec![None; most],
                        });
                    }
                    self.ready = rows(columns);
                    self.ready.reverse();
                }
                _ if self.group >= self.file.num_row_groups() => return Ok(None),
                _ => {
                    let (file, at, columns) = (&self.file, self.group, &self.columns);
                    self.open = Some(guarded(|| {
                        let group = file.get_row_group(at).map_err(damaged)?;
                        let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
                        Ok((readers(&*group, columns).map_err(damaged)?, count))
                    })?);
                    self.group += 1;
                }
            }
        }
    }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Turns panics of the parquet library on damaged pages into errors, without printing them.
fn guarded<T>(read: impl FnOnce() -> Result<T, ColumnsError>) -> Result<T, ColumnsError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                told(panic);
            }
        }));
    });
    GUARDED.set(true);
    // Unwind-safe: the reader is dropped on error.
    let outcome = panic::catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(false);
    outcome.unwrap_or(Err(ColumnsError::Page))
}

fn readers(
    group: &dyn RowGroupReader,
    columns: &[Option<Column>],
) -> Result<Vec<Option<ColumnReader>>, ParquetError> {
    columns
        .iter()
        .map(|column| column.map(|column| group.get_column_reader(column.place)).transpose())
        .collect()
}

fn values(
    reader: &mut ColumnReader,
    optional: bool,
    count: usize,
    name: &'static str,
) -> Result<Vec<Option<Value>>, ColumnsError> {
    let damaged = |problem: String| ColumnsError::Column { name, problem };
    let mut levels: Vec<i16> = Vec::new();
    // Reads the whole batch, possibly over several pages.
    macro_rules! read {
        ($reader:expr) => {{
            let mut values = Vec::new();
            let mut records = 0;
            while records < count {
                let levels = optional.then_some(&mut levels);
                let (read, _, _) = $reader
                    .read_records(count - records, levels, None, &mut values)
                    .map_err(|error| damaged(error.to_string()))?;
                if read == 0 {
                    return Err(damaged(format!("it ends {} rows early", count - records)));
                }
                records += read;
            }
            values
        }};
    }
    let texts = |values: Vec<ByteArray>| -> Result<Vec<Value>, ColumnsError> {
        let text = |value: ByteArray| match std::str::from_utf8(value.data()) {
            Ok(text) => Ok(Value::from(text)),
            Err(error) => Err(damaged(format!("a text that is no UTF-8: {error}"))),
        };
        values.into_iter().map(text).collect()
    };
    let present: Vec<Value> = match reader {
        ColumnReader::ByteArrayColumnReader(reader) => texts(read!(reader))?,
        ColumnReader::Int32ColumnReader(reader) => read!(reader).into_iter().map(Value::from).collect(),
        ColumnReader::Int64ColumnReader(reader) => read!(reader).into_iter().map(Value::from).collect(),
        _ => return Err(damaged("its type is not the one that the file announces".to_owned())),
    };
    if !optional {
        return Ok(present.into_iter().map(Some).collect());
    }
    let mut present = present.into_iter();
    Ok(levels.into_iter().map(|level| if level > 0 { present.next() } else { None }).collect())
}

fn rows(columns: Vec<Vec<Option<Value>>>) -> Vec<RawRow> {
    let count = columns.iter().map(Vec::len).min().unwrap_or(0);
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let mut next = |column: usize| columns.get_mut(column).and_then(Iterator::next).flatten();
    let row = |_| RawRow {
        index: next(0),
        task: next(1),
        subtask: next(2),
        ctx_length: next(3),
        question: next(4),
        chosen: next(5),
        rejected: next(6),
    };
    (0..count).map(row).collect()
}
