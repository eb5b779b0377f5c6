//! Tables of text.

/// Left-aligned columns, two spaces apart, a line a row.
pub fn columns(rows: &[impl AsRef<[String]>]) -> String {
    aligned(rows, |_| false)
}

/// Columns two spaces apart, those that `right` says aligned to the right.
pub fn aligned(rows: &[impl AsRef<[String]>], right: impl Fn(usize) -> bool) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows.iter().map(AsRef::as_ref) {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows.iter().map(AsRef::as_ref) {
        let cell = |(column, (cell, width)): (usize, (&String, &usize))| {
            if right(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_without_spaces() {
        let rows = [["a", "12", ""].map(str::to_owned), ["long", "3", "é"].map(str::to_owned)];
        assert_eq!(columns(&rows), "a     12\nlong  3   é\n");
        assert_eq!(aligned(&rows, |column| column == 1), "a     12\nlong   3  é\n");
        assert_eq!(columns(&[] as &[[String; 1]]), "");
    }
}
