//! Streams rows of a Parquet file (plain or Snappy pages; others are errors). Damaged files are errors, not panics.

use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use bytes::Bytes;
use parquet::basic::{Compression, Repetition, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use crate::benchmarks::shape::{Node, Pairs};

pub(super) const MAGIC: &str = "PAR1";
/// Texts are long: rows decoded at once.
const BATCH: usize = 8;
/// (name, whether numbers are read, too); all but `index` are required.
const COLUMNS: [(&str, bool); 7] = [
    ("index", true),
    ("task", false),
    ("subtask", false),
    ("ctx_length", true),
    ("question", false),
    ("chosen", false),
    ("rejected", false),
];

pub(super) fn rows(bytes: Vec<u8>) -> io::Result<impl Iterator<Item = io::Result<Node>>> {
    let mut rows = guarded(|| {
        let file = SerializedFileReader::new(Bytes::from(bytes)).map_err(damaged)?;
        let wanted = wanted(&file)?;
        RowIter::from_file_into(Box::new(file)).project(Some(wanted)).map_err(damaged)
    })?
    .with_batch_size(BATCH);
    Ok(std::iter::from_fn(move || {
        guarded(|| rows.next().map(|row| node(row.map_err(damaged)?)).transpose()).transpose()
    }))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn damaged(error: ParquetError) -> io::Error {
    invalid(format!("the Parquet file is cut off or damaged ({error}); fetch or write it again"))
}

/// Schema of the known columns.
fn wanted(file: &SerializedFileReader<Bytes>) -> io::Result<Type> {
    let root = file.metadata().file_metadata().schema();
    let mut fields = Vec::new();
    for (name, numbers) in COLUMNS {
        let Some(field) = root.get_fields().iter().find(|field| field.name() == name) else {
            if name == "index" {
                continue;
            }
            return Err(invalid(format!("the Parquet file has no column `{name}`; write it with one")));
        };
        let nested = !field.is_primitive() || field.get_basic_info().repetition() == Repetition::REPEATED;
        let found = match nested {
            true => "a list or a struct".to_owned(),
            false => match field.get_physical_type() {
                Physical::BYTE_ARRAY => String::new(),
                Physical::INT32 | Physical::INT64 if numbers => String::new(),
                other => other.to_string(),
            },
        };
        if !found.is_empty() {
            return Err(invalid(format!("column `{name}` of the Parquet file is {found}; write it as text")));
        }
        fields.push(field.clone());
    }
    for group in file.metadata().row_groups() {
        for chunk in group.columns() {
            let name = chunk.column_path().string();
            let known = COLUMNS.iter().any(|(column, _)| *column == name);
            if known && !matches!(chunk.compression(), Compression::UNCOMPRESSED | Compression::SNAPPY) {
                // Strips the level of `ZSTD(ZstdLevel(1))`, which files do not record.
                let found = chunk.compression().to_string();
                let found = found.split('(').next().unwrap_or_default();
                return Err(invalid(format!(
                    "column `{name}` of the Parquet file is compressed with {found}, which this build does not read; write it with \
                     Snappy or without compression, or as JSONL"
                )));
            }
        }
    }
    Type::group_type_builder(root.name()).with_fields(fields).build().map_err(damaged)
}

fn node(row: Row) -> io::Result<Node> {
    let mut fields = Vec::new();
    for (name, field) in row.into_columns() {
        let text = match field {
            Field::Null => continue,
            Field::Str(text) => text,
            Field::Bytes(bytes) => String::from_utf8(bytes.data().to_vec()).map_err(|error| {
                invalid(format!("column `{name}` of the Parquet file has a text that is no UTF-8: {error}"))
            })?,
            number => number.to_string(),
        };
        fields.push((name, Node::String(text)));
    }
    Ok(Node::Object(Pairs(fields)))
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Turns panics of the parquet library on damaged pages into errors, without printing them.
fn guarded<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
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
    // Unwind-safe: reading ends with the error.
    let outcome = panic::catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(false);
    outcome
        .unwrap_or_else(|_| Err(damaged(ParquetError::General("a page is not what it announces".to_owned()))))
}
