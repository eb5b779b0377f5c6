//! Parquet: one row per answer with its verdict, for `datasets.load_dataset("parquet", data_files=...)`.
//!
//! Columns are named like the JSON rows and exist in every file, so files of several runs concatenate; missing values are null. Order:
//! `model`, answer fields, verdict fields (its `error` is `verdict_error`), then `why`, `why_reason` and `certificate`. `labels` is a
//! struct, `dropped_sessions` a list. Unknown fields are appended as text. File metadata: `palimpsest.run` (`run.json`),
//! `palimpsest.no_result` and `palimpsest.warning`.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};

use crate::records::{Labelled, labelled};
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::WhyRow;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Text,
    Bool,
    Whole,
    Real,
    List,
    Texts(Vec<String>),
}

/// Answer columns; `labels` is added if the benchmark has any.
const ANSWER: [(&str, Kind); 12] = [
    ("model", Kind::Text),
    ("case", Kind::Text),
    ("probe", Kind::Text),
    ("condition", Kind::Text),
    ("query", Kind::Text),
    ("answer", Kind::Text),
    ("stop", Kind::Text),
    ("prompt_tokens", Kind::Whole),
    ("completion_tokens", Kind::Whole),
    ("dropped_sessions", Kind::List),
    ("attention", Kind::Text),
    ("error", Kind::Text),
];

const VERDICT: [(&str, Kind); 10] = [
    ("judge", Kind::Text),
    ("rubric", Kind::Text),
    ("rubric_name", Kind::Text),
    ("correct", Kind::Bool),
    ("score", Kind::Real),
    ("choice", Kind::Text),
    ("probability", Kind::Real),
    ("reason", Kind::Text),
    ("settled", Kind::Bool),
    ("verdict_error", Kind::Text),
];

const WHY: [(&str, Kind); 3] = [("why", Kind::Text), ("why_reason", Kind::Text), ("certificate", Kind::Text)];

pub const RUN: &str = "palimpsest.run";
pub const NO_RESULT: &str = "palimpsest.no_result";
pub const WARNING: &str = "palimpsest.warning";

/// Writes the rows of these conditions; returns their number.
pub fn write(
    out: impl Write + Send,
    folder: &RunFolder,
    conditions: &[String],
    judged: Option<&Judged<'_>>,
) -> anyhow::Result<usize> {
    let model = folder.header.identity.model.name.as_str();
    let mut rows: Vec<Map<String, Value>> = Vec::new();
    for answered in labelled(folder, conditions)? {
        rows.push(row(&answered, model, judged)?);
    }
    let columns = columns(&rows);
    let schema = Type::group_type_builder("answers").with_fields(schema(&columns)?).build()?;
    let header = serde_json::to_string(&folder.header)?;
    let mut metadata = vec![KeyValue::new(RUN.to_owned(), header)];
    metadata.extend(judged.and_then(Judged::no_result).map(|why| KeyValue::new(NO_RESULT.to_owned(), why)));
    metadata
        .extend(judged.and_then(Judged::warning).map(|warning| KeyValue::new(WARNING.to_owned(), warning)));
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_key_value_metadata(Some(metadata))
        .build();
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for (name, kind) in &columns {
        let values: Vec<&Value> = rows.iter().map(|row| row.get(name).unwrap_or(&Value::Null)).collect();
        write_column(&mut group, kind, &values)?;
    }
    group.close()?;
    writer.close()?;
    Ok(rows.len())
}

fn row(
    answered: &Labelled<'_>,
    model: &str,
    judged: Option<&Judged<'_>>,
) -> anyhow::Result<Map<String, Value>> {
    let mut row = Map::from_iter([("model".to_owned(), model.into())]);
    let answer = answered.row;
    let fields = |value: Value| value.as_object().cloned().unwrap_or_default();
    row.extend(fields(serde_json::to_value(answer)?));
    // JSON omits the plain condition.
    row.insert("condition".to_owned(), label(&answer.condition).into());
    if let Some(verdict) = judged.and_then(|j| j.get(answer.key())) {
        let known = ["case", "probe", "condition"];
        for (name, value) in fields(serde_json::to_value(verdict)?) {
            match name.as_str() {
                "error" => row.insert("verdict_error".to_owned(), value),
                name if known.contains(&name) => None,
                _ => row.insert(name, value),
            };
        }
        // JSON omits false.
        row.entry("settled").or_insert(verdict.settled.into());
        // Rows of earlier versions have no rubric name.
        let rubric = judged.and_then(|judged| judged.name.rubric.as_deref());
        row.extend(rubric.map(|rubric| ("rubric_name".to_owned(), rubric.into())));
    }
    if let Some(label) = &answered.label {
        row.extend(why(label)?);
    }
    Ok(row)
}

fn why(row: &WhyRow) -> anyhow::Result<[(String, Value); 3]> {
    let certificate = row.certificate.as_ref().map(|certificate| certificate.sessions.join(", "));
    let values = [serde_json::to_value(row.label)?, row.why.as_str().into(), certificate.into()];
    Ok(std::array::from_fn(|at| (WHY[at].0.to_owned(), values[at].clone())))
}

/// The fixed columns, then unknown fields as text.
fn columns(rows: &[Map<String, Value>]) -> Vec<(String, Kind)> {
    let named = |(name, kind): (&str, Kind)| (name.to_owned(), kind);
    let mut columns: Vec<(String, Kind)> = ANSWER.into_iter().chain(VERDICT).chain(WHY).map(named).collect();
    let of_rows = rows.iter().filter_map(|row| row.get("labels").and_then(Value::as_object));
    let labels: BTreeSet<String> = of_rows.flat_map(Map::keys).cloned().collect();
    // Parquet has no empty struct.
    if !labels.is_empty() {
        let at = columns.iter().position(|(name, _)| name == "query").unwrap_or_default();
        columns.insert(at, ("labels".to_owned(), Kind::Texts(labels.into_iter().collect())));
    }
    for name in rows.iter().flat_map(Map::keys) {
        if name != "labels" && !columns.iter().any(|(known, _)| known == name) {
            columns.push((name.clone(), Kind::Text));
        }
    }
    columns
}

fn schema(columns: &[(String, Kind)]) -> anyhow::Result<Vec<TypePtr>> {
    let primitive = |name: &str, physical: Physical, repetition: Repetition| {
        let text = (physical == Physical::BYTE_ARRAY).then_some(LogicalType::String);
        let builder = Type::primitive_type_builder(name, physical).with_repetition(repetition);
        builder.with_logical_type(text).build().map(Arc::new)
    };
    let optional = |name: &str, physical: Physical| primitive(name, physical, Repetition::OPTIONAL);
    let mut fields = Vec::with_capacity(columns.len());
    for (name, kind) in columns {
        fields.push(match kind {
            Kind::Text => optional(name, Physical::BYTE_ARRAY)?,
            Kind::Bool => optional(name, Physical::BOOLEAN)?,
            Kind::Whole => optional(name, Physical::INT64)?,
            Kind::Real => optional(name, Physical::DOUBLE)?,
            // The specification's three-level list.
            Kind::List => {
                let element = primitive("element", Physical::INT64, Repetition::REQUIRED)?;
                let list = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
                let list = Arc::new(list.with_fields(vec![element]).build()?);
                let outer = Type::group_type_builder(name).with_repetition(Repetition::REQUIRED);
                let outer = outer.with_logical_type(Some(LogicalType::List));
                Arc::new(outer.with_fields(vec![list]).build()?)
            }
            Kind::Texts(names) => {
                let texts: Result<_, _> =
                    names.iter().map(|name| optional(name, Physical::BYTE_ARRAY)).collect();
                let group = Type::group_type_builder(name).with_repetition(Repetition::REQUIRED);
                Arc::new(group.with_fields(texts?).build()?)
            }
        });
    }
    Ok(fields)
}

fn write_column<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    kind: &Kind,
    values: &[&Value],
) -> anyhow::Result<()> {
    match kind {
        Kind::Text => optional::<ByteArrayType, W>(group, values.iter().map(|v| text(v))),
        Kind::Bool => optional::<BoolType, W>(group, values.iter().map(|v| v.as_bool())),
        Kind::Whole => optional::<Int64Type, W>(group, values.iter().map(|v| v.as_i64())),
        Kind::Real => optional::<DoubleType, W>(group, values.iter().map(|v| v.as_f64())),
        Kind::Texts(names) => {
            for name in names {
                optional::<ByteArrayType, W>(group, values.iter().map(|v| v.get(name).and_then(text)))?;
            }
            Ok(())
        }
        Kind::List => {
            let (mut numbers, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
            for value in values {
                let own: Vec<i64> =
                    value.as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
                // An empty list is one entry without a value; repetition level 0 starts a row.
                definition.extend(std::iter::repeat_n(i16::from(!own.is_empty()), own.len().max(1)));
                repetition.extend((0..own.len().max(1)).map(|at| i16::from(at > 0)));
                numbers.extend(own);
            }
            leaf::<Int64Type, W>(group, &numbers, &definition, Some(&repetition))
        }
    }
}

/// Strings verbatim, other non-null values as JSON.
fn text(value: &Value) -> Option<ByteArray> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(ByteArray::from(text.as_str())),
        other => Some(ByteArray::from(other.to_string().as_str())),
    }
}

fn optional<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = Option<T::T>>,
) -> anyhow::Result<()> {
    let (mut present, mut definition) = (Vec::new(), Vec::new());
    for value in values {
        definition.push(i16::from(value.is_some()));
        present.extend(value);
    }
    leaf::<T, W>(group, &present, &definition, None)
}

fn leaf<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    definition: &[i16],
    repetition: Option<&[i16]>,
) -> anyhow::Result<()> {
    if let Some(mut column) = group.next_column()? {
        column.typed::<T>().write_batch(values, Some(definition), repetition)?;
        column.close()?;
    }
    Ok(())
}
