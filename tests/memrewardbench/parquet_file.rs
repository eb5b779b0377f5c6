//! Rows as Parquet files, the benchmark's published format.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Unique in its file.
    pub index: i64,
    pub task: String,
    /// Setting.
    pub subtask: String,
    /// Context length.
    pub ctx_length: String,
    /// With its long context.
    pub question: String,
    /// The better trajectory.
    pub chosen: String,
    /// The other one.
    pub rejected: String,
}

/// Rows as a Parquet file with `group` rows per row group.
pub fn write_parquet(rows: &[Row], compression: Compression, group: usize) -> Result<Vec<u8>, ParquetError> {
    const TEXTS: [&str; 6] = ["task", "subtask", "ctx_length", "question", "chosen", "rejected"];
    let index = Type::primitive_type_builder("index", Physical::INT64).with_repetition(Repetition::OPTIONAL);
    let mut fields = vec![Arc::new(index.build()?)];
    for name in TEXTS {
        let text = Type::primitive_type_builder(name, Physical::BYTE_ARRAY);
        let text = text.with_repetition(Repetition::OPTIONAL).with_logical_type(Some(LogicalType::String));
        fields.push(Arc::new(text.build()?));
    }
    let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, properties)?;
    for rows in rows.chunks(group.max(1)) {
        let mut group = writer.next_row_group()?;
        let levels = vec![1; rows.len()];
        let mut place = 0;
        while let Some(mut column) = group.next_column()? {
            if place == 0 {
                let values: Vec<i64> = rows.iter().map(|row| row.index).collect();
                column.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
            } else {
                let text = |row: &Row| {
                    match place {
                        1 => row.task.as_str(),
                        2 => row.subtask.as_str(),
                        3 => row.ctx_length.as_str(),
                        4 => row.question.as_str(),
                        5 => row.chosen.as_str(),
                        _ => row.rejected.as_str(),
                    }
                    .into()
                };
                let values: Vec<ByteArray> = rows.iter().map(text).collect();
                column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None)?;
            }
            column.close()?;
            place += 1;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(bytes)
}
