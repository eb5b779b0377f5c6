//! The forms in which tables are written.

use anyhow::bail;

use crate::ground::sheet::Sheet;

/// A form of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(super) enum Format {
    /// Aligned columns
    #[default]
    Text,
    /// A table of GitHub's Markdown
    Md,
    /// A line a number, unrounded; with --compare the differences alone
    Csv,
    /// Everything, unrounded
    Json,
    /// A tabular with the rules of booktabs
    Latex,
}

impl Format {
    /// What stands above a table.
    pub(super) fn title(self, title: &str) -> String {
        match self {
            Format::Md => format!("### {title}\n"),
            Format::Latex => format!("% {title}"),
            Format::Text | Format::Csv | Format::Json => format!("{title}\n"),
        }
    }

    /// A sentence beside tables.
    pub(super) fn remark(self, text: &str) -> String {
        match self {
            Format::Latex => format!("% {}\n", text.split_whitespace().collect::<Vec<_>>().join(" ")),
            Format::Text | Format::Md | Format::Csv | Format::Json => format!("{text}\n"),
        }
    }

    pub(super) fn write(self, sheet: &Sheet) -> anyhow::Result<String> {
        Ok(match self {
            Format::Text => sheet.text(),
            Format::Md => sheet.markdown(),
            Format::Latex => sheet.latex(),
            Format::Csv => sheet.csv()?,
            Format::Json => bail!("a sheet is not written as JSON"),
        })
    }
}
