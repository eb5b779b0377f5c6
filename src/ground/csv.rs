//! Tables of comma-separated values, made in memory: a row an item, declared column by column.

use csv::ByteRecord;

/// Items, and the columns that are written of each.
pub struct CsvTable<R> {
    items: Vec<R>,
    head: ByteRecord,
    rows: Vec<ByteRecord>,
}

impl<R: Copy> CsvTable<R> {
    /// A table without columns.
    pub fn of(items: impl IntoIterator<Item = R>) -> Self {
        let items: Vec<R> = items.into_iter().collect();
        let rows = vec![ByteRecord::new(); items.len()];
        CsvTable { items, head: ByteRecord::new(), rows }
    }

    /// One more column at the right.
    #[must_use]
    pub fn column<T: ToString>(mut self, name: impl AsRef<str>, cell: impl Fn(R) -> T) -> Self {
        self.head.push_field(name.as_ref().as_bytes());
        for (item, row) in self.items.iter().zip(&mut self.rows) {
            row.push_field(cell(*item).to_string().as_bytes());
        }
        self
    }

    /// [`CsvTable::column`] where it is `wanted`.
    #[must_use]
    pub fn column_if<T: ToString>(self, wanted: bool, name: &str, cell: impl Fn(R) -> T) -> Self {
        if wanted { self.column(name, cell) } else { self }
    }

    /// A column of values that may be absent: an empty cell where one is.
    #[must_use]
    pub fn optional<T: ToString>(self, name: impl AsRef<str>, cell: impl Fn(R) -> Option<T>) -> Self {
        self.column(name, |item| cell(item).map(|value| value.to_string()).unwrap_or_default())
    }

    /// The text.
    pub fn bytes(self) -> Vec<u8> {
        write([self.head].into_iter().chain(self.rows))
    }
}

/// Records as text.
pub fn write(records: impl IntoIterator<Item = ByteRecord>) -> Vec<u8> {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for record in records {
        // A flexible writer into memory has no way to fail.
        let _ = writer.write_byte_record(&record);
    }
    writer.into_inner().unwrap_or_default()
}

/// Values in one cell, with semicolons between.
pub fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(";")
}
