//! Printed tables: aligned text, Markdown, LaTeX, CSV. A cell may have several lines, such as a number and its count.

use super::csv::cell as csv_cell;
use super::table::aligned;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns
    #[default]
    Text,
    /// A table of GitHub's Markdown
    Md,
    /// Comma-separated values, unrounded or with their counts
    Csv,
    /// Everything, unrounded
    Json,
    /// A tabular with the rules of booktabs
    Latex,
}

impl Format {
    pub fn title(self, title: &str) -> String {
        match self {
            Format::Md => format!("### {title}\n"),
            Format::Latex => format!("% {title}"),
            Format::Text | Format::Csv | Format::Json => format!("{title}\n"),
        }
    }

    pub fn remark(self, text: &str) -> String {
        match self {
            Format::Latex => format!("% {}\n", text.split_whitespace().collect::<Vec<_>>().join(" ")),
            Format::Text | Format::Md | Format::Csv | Format::Json => format!("{text}\n"),
        }
    }

    /// JSON falls back to aligned text.
    pub fn of(self, sheet: &Sheet) -> Result<String, csv::Error> {
        Ok(match self {
            Format::Text | Format::Json => sheet.text(),
            Format::Md => sheet.markdown(),
            Format::Latex => sheet.latex(),
            Format::Csv => sheet.csv()?,
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sheet {
    pub columns: Vec<Column>,
    /// `[row][column][line]`
    pub rows: Vec<Vec<Vec<String>>>,
    /// Omitted in CSV.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    pub group: String,
    pub name: String,
    pub right: bool,
}

impl Column {
    pub fn text(name: impl Into<String>) -> Self {
        Column { name: name.into(), ..Column::default() }
    }

    pub fn number(name: impl Into<String>) -> Self {
        Column { name: name.into(), right: true, ..Column::default() }
    }

    /// Adjacent columns with the same group share a heading.
    #[must_use]
    pub fn under(self, group: impl Into<String>) -> Self {
        Column { group: group.into(), ..self }
    }

    fn full_name(&self) -> String {
        format!("{} {}", self.group, self.name).trim().to_owned()
    }
}

pub fn cell(text: impl Into<String>) -> Vec<String> {
    vec![text.into()]
}

pub trait Cell {
    fn lines(self) -> Vec<String>;
}

impl Cell for Vec<String> {
    fn lines(self) -> Vec<String> {
        self
    }
}

macro_rules! cells {
    ($($of:ty),*) => {
        $(impl Cell for $of {
            fn lines(self) -> Vec<String> {
                cell(self.to_string())
            }
        })*
    };
}

// Numbers unrounded, for CSV.
cells!(String, &str, usize, f64);

impl<C: Cell> Cell for Option<C> {
    fn lines(self) -> Vec<String> {
        self.map_or_else(|| cell(""), Cell::lines)
    }
}

/// A sheet declared column by column, one row per item.
pub struct Columns<R> {
    items: Vec<R>,
    sheet: Sheet,
}

impl<R: Copy> Columns<R> {
    pub fn of(items: impl IntoIterator<Item = R>) -> Self {
        let items: Vec<R> = items.into_iter().collect();
        let rows = vec![Vec::new(); items.len()];
        Columns { items, sheet: Sheet { rows, ..Sheet::default() } }
    }

    #[must_use]
    pub fn column<C: Cell>(mut self, head: Column, of: impl Fn(R) -> C) -> Self {
        self.sheet.columns.push(head);
        for (item, row) in self.items.iter().zip(&mut self.sheet.rows) {
            row.push(of(*item).lines());
        }
        self
    }

    #[must_use]
    pub fn text<C: Cell>(self, name: impl Into<String>, of: impl Fn(R) -> C) -> Self {
        self.column(Column::text(name), of)
    }

    #[must_use]
    pub fn text_if<C: Cell>(self, wanted: bool, name: impl Into<String>, of: impl Fn(R) -> C) -> Self {
        if wanted { self.text(name, of) } else { self }
    }

    #[must_use]
    pub fn number<C: Cell>(self, name: impl Into<String>, of: impl Fn(R) -> C) -> Self {
        self.column(Column::number(name), of)
    }

    #[must_use]
    pub fn number_if<C: Cell>(self, wanted: bool, name: impl Into<String>, of: impl Fn(R) -> C) -> Self {
        if wanted { self.number(name, of) } else { self }
    }

    pub fn sheet(self, notes: Vec<String>) -> Sheet {
        Sheet { notes, ..self.sheet }
    }
}

impl Sheet {
    fn height(row: &[Vec<String>]) -> usize {
        row.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn line(row: &[Vec<String>], at: usize, write: impl Fn(&str) -> String) -> Vec<String> {
        row.iter().map(|cell| cell.get(at).map_or(String::new(), |line| write(line))).collect()
    }

    /// Adjacent columns with the same group.
    fn groups(&self) -> Vec<(&str, std::ops::Range<usize>)> {
        let mut groups: Vec<(&str, std::ops::Range<usize>)> = Vec::new();
        for (at, column) in self.columns.iter().enumerate() {
            match groups.last_mut() {
                Some((group, columns)) if *group == column.group => columns.end = at + 1,
                _ => groups.push((&column.group, at..at + 1)),
            }
        }
        groups
    }

    fn has_groups(&self) -> bool {
        self.columns.iter().any(|column| !column.group.is_empty())
    }

    pub fn text(&self) -> String {
        let mut lines: Vec<Vec<String>> = Vec::new();
        if self.has_groups() {
            let mut heads = vec![String::new(); self.columns.len()];
            for (group, columns) in self.groups() {
                if let Some(head) = heads.get_mut(columns.start) {
                    *head = group.to_owned();
                }
            }
            lines.push(heads);
        }
        lines.push(self.columns.iter().map(|column| column.name.clone()).collect());
        let high = self.rows.iter().any(|row| Self::height(row) > 1);
        for row in &self.rows {
            if high {
                lines.push(Vec::new());
            }
            lines.extend((0..Self::height(row)).map(|at| Self::line(row, at, str::to_owned)));
        }
        let right = |at: usize| self.columns.get(at).is_some_and(|column| column.right);
        let mut text = aligned(&lines, right);
        if !self.notes.is_empty() {
            text += &format!("\n{}\n", self.notes.join("\n"));
        }
        text
    }

    pub fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = row(self.columns.iter().map(|column| markdown(&column.full_name())).collect());
        let rule = |column: &Column| if column.right { "---:" } else { "---" }.to_owned();
        text += &row(self.columns.iter().map(rule).collect());
        for cells in &self.rows {
            let lines =
                |cell: &Vec<String>| cell.iter().map(|line| markdown(line)).collect::<Vec<_>>().join("<br>");
            text += &row(cells.iter().map(lines).collect());
        }
        if !self.notes.is_empty() {
            let notes: String = self.notes.iter().map(|note| format!("- {}\n", markdown(note))).collect();
            text += &format!("\n{notes}");
        }
        text
    }

    pub fn latex(&self) -> String {
        let row = |cells: Vec<String>| format!("{} \\\\\n", cells.join(" & "));
        let format: String = self.columns.iter().map(|column| if column.right { 'r' } else { 'l' }).collect();
        let mut text = format!("% \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{format}}}\n\\toprule\n");
        if self.has_groups() {
            let (mut heads, mut rules) = (Vec::new(), String::new());
            for (group, columns) in self.groups() {
                if group.is_empty() {
                    heads.extend(columns.map(|_| String::new()));
                    continue;
                }
                heads.push(format!("\\multicolumn{{{}}}{{c}}{{{}}}", columns.len(), latex(group)));
                rules += &format!("\\cmidrule(lr){{{}-{}}}", columns.start + 1, columns.end);
            }
            text += &row(heads);
            text += &(rules + "\n");
        }
        text += &row(self.columns.iter().map(|column| latex(&column.name)).collect());
        text += "\\midrule\n";
        for cells in &self.rows {
            for at in 0..Self::height(cells) {
                let write = |line: &str| match at {
                    0 => latex(line),
                    _ => format!("{{\\scriptsize {}}}", latex(line)),
                };
                text += &row(Self::line(cells, at, write));
            }
        }
        text += "\\bottomrule\n\\end{tabular}\n";
        // A line break would end the LaTeX comment.
        let note = |note: &String| format!("% {}\n", note.split_whitespace().collect::<Vec<_>>().join(" "));
        text + &self.notes.iter().map(note).collect::<String>()
    }

    /// Lines of a cell are joined by spaces.
    pub fn csv(&self) -> Result<String, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let shown = |text: String| csv_cell(&text).into_owned();
        writer.write_record(self.columns.iter().map(|column| shown(column.full_name())))?;
        for row in &self.rows {
            writer.write_record(row.iter().map(|lines| shown(lines.join(" "))))?;
        }
        let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn markdown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '#' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn latex(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => out.extend(['\\', c]),
            '\\' => out.push_str("\\textbackslash{}"),
            '~' => out.push_str("\\textasciitilde{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            '<' => out.push_str("\\textless{}"),
            '>' => out.push_str("\\textgreater{}"),
            '|' => out.push_str("\\textbar{}"),
            '±' => out.push_str("$\\pm$"),
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let of = |group: &str, name: &str| Column { group: group.to_owned(), ..Column::number(name) };
        let lines = |lines: [&str; 2]| lines.map(str::to_owned).to_vec();
        Sheet {
            columns: vec![Column::text("model"), of("T1", "a"), of("T1", "b"), Column::number("all")],
            rows: vec![
                vec![cell("x_1*"), lines(["30.0", "3/10"]), lines(["0.0", "0/10"]), cell("15.0")],
                vec![cell("a|b & {c}"), cell("-"), cell("-"), cell("1.0±2.0")],
            ],
            notes: vec!["50% of\nall".to_owned()],
        }
    }

    #[test]
    fn text_stacks_the_lines_of_cells_below_their_heads() {
        let expected = "             T1
model         a     b      all

x_1*       30.0   0.0     15.0
           3/10  0/10

a|b & {c}     -     -  1.0±2.0

50% of
all
";
        assert_eq!(sheet().text(), expected);
    }

    #[test]
    fn markdown_and_latex_escape_what_has_a_meaning_there() {
        let expected = "\
| model | T1 a | T1 b | all |
| --- | ---: | ---: | ---: |
| x\\_1\\* | 30.0<br>3/10 | 0.0<br>0/10 | 15.0 |
| a\\|b &amp; {c} | - | - | 1.0±2.0 |

- 50% of all
";
        assert_eq!(sheet().markdown(), expected);
        let expected = r"% \usepackage{booktabs}
\begin{tabular}{lrrr}
\toprule
 & \multicolumn{2}{c}{T1} &  \\
\cmidrule(lr){2-3}
model & a & b & all \\
\midrule
x\_1* & 30.0 & 0.0 & 15.0 \\
 & {\scriptsize 3/10} & {\scriptsize 0/10} &  \\
a\textbar{}b \& \{c\} & - & - & 1.0$\pm$2.0 \\
\bottomrule
\end{tabular}
% 50% of all
";
        assert_eq!(sheet().latex(), expected);
    }

    #[test]
    fn csv_quotes_and_has_no_notes() {
        let mut sheet = sheet();
        sheet.rows[1][0] = cell("a, \"b\"");
        let expected = "model,T1 a,T1 b,all\nx_1*,30.0 3/10,0.0 0/10,15.0\n\"a, \"\"b\"\"\",-,-,1.0±2.0\n";
        assert_eq!(sheet.csv().unwrap(), expected);
    }
}
