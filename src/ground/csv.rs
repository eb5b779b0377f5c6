//! Tables of comma-separated values, made in memory.

/// A head and rows.
pub struct CsvTable(csv::Writer<Vec<u8>>);

impl CsvTable {
    /// A table of these columns.
    pub fn new(columns: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut table = CsvTable(csv::WriterBuilder::new().flexible(true).from_writer(Vec::new()));
        table.row(columns);
        table
    }

    /// One more row, with a cell a column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl AsRef<[u8]>>) {
        // A flexible writer into memory has no way to fail.
        let _ = self.0.write_record(cells);
    }

    /// The text.
    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap_or_default()
    }
}

/// A cell of a number that may be absent: empty where it is.
pub fn number(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
