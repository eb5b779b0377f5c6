//! Plain-text tables and line wrapping.

pub fn columns(rows: &[impl AsRef<[String]>]) -> String {
    aligned(rows, |_| false)
}

/// Columns two spaces apart; `right` selects right-aligned ones.
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

/// [`aligned`], but wide tables are split into blocks of columns that repeat the first `kept` columns and have at least one more.
pub fn within(
    rows: &[impl AsRef<[String]>],
    right: impl Fn(usize) -> bool,
    kept: usize,
    width: usize,
) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let of_kept = (0..kept).map(|column| widest(column) + 2).sum::<usize>();
    let mut blocks: Vec<Vec<usize>> = Vec::new();
    let mut used = 0;
    for column in kept.min(columns)..columns {
        let wide = widest(column) + 2;
        match blocks.last_mut() {
            Some(block) if used + wide <= width + 2 => block.push(column),
            _ => {
                blocks.push((0..kept).chain([column]).collect());
                used = of_kept;
            }
        }
        used += wide;
    }
    if blocks.is_empty() {
        return aligned(rows, right);
    }
    let of_block = |block: &Vec<usize>| {
        let cells = |row: &[String]| -> Vec<String> {
            block.iter().map(|column| row.get(*column).cloned().unwrap_or_default()).collect()
        };
        let rows: Vec<Vec<String>> = rows.iter().map(|row| cells(row.as_ref())).collect();
        aligned(&rows, |place| block.get(place).is_some_and(|column| right(*column)))
    };
    blocks.iter().map(of_block).collect::<Vec<_>>().join("\n")
}

/// Word wrap at `width` characters; longer words are not split.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
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

    #[test]
    fn a_table_that_is_too_wide_goes_on_below_with_its_first_columns() {
        let rows =
            [["name", "one", "two", "three"], ["a", "1", "22", "333"]].map(|row| row.map(str::to_owned));
        let number = |column| column > 0;
        assert_eq!(within(&rows, number, 1, 22), "name  one  two  three\na       1   22    333\n");
        assert_eq!(
            within(&rows, number, 1, 20),
            "name  one  two\na       1   22\n\nname  three\na       333\n"
        );
        assert_eq!(within(&rows, number, 1, 3).matches("name").count(), 3);
        assert_eq!(within(&rows, number, 4, 3), aligned(&rows, number));
    }

    #[test]
    fn texts_are_broken_between_words() {
        assert_eq!(wrapped("one two  three", 7), "one two\nthree");
        assert_eq!(wrapped("incomprehensible a b", 4), "incomprehensible\na b");
        assert_eq!(wrapped("", 4), "");
    }
}
