//! A picture that only one benchmark has, as plain data: bars of counts that add up to a whole.

/// Bars below each other, each parted the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// One word, for files: `waterfall`.
    pub key: String,
    /// For people, with the figure of the paper that it is.
    pub title: String,
    /// How to read it.
    pub caption: String,
    /// What the parts of every bar are, from the left.
    pub parts: Vec<String>,
    /// From the top.
    pub bars: Vec<Bar>,
}

/// One bar: its parts fill it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// What it has in common with its neighbours: written once above them.
    pub group: String,
    /// What it is of.
    pub label: String,
    /// How many of each part.
    pub counts: Vec<usize>,
    /// Behind it.
    pub note: String,
}
