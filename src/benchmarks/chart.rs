//! Pictures that only one benchmark has, as plain data: bars of counts that add up to a whole, and shares along an axis.

use crate::statistics::{Interval, LEVEL, wilson};

/// A picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chart {
    /// Bars below each other, each parted the same way.
    Bars(BarChart),
    /// Panels of lines over an axis that they share.
    Trends(TrendChart),
}

/// Bars below each other, each parted the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarChart {
    /// One word, for files: `waterfall`.
    pub key: String,
    /// For people, with the figure of the paper that it is.
    pub title: String,
    pub caption: String,
    /// Names of the parts of every bar, from the left.
    pub parts: Vec<String>,
    pub bars: Vec<Bar>,
}

/// One bar: its parts fill it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// The heading that it shares with its neighbours: written once above them.
    pub group: String,
    pub label: String,
    pub counts: Vec<usize>,
    pub note: String,
}

/// Panels of lines over an axis that they share; every value is a share of counted pairs, from 0 to 100%.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendChart {
    /// One word, for files: `lengths`.
    pub key: String,
    /// For people, with the figure of the paper that it is.
    pub title: String,
    pub caption: String,
    pub axis: String,
    pub places: Vec<String>,
    /// By row; the panels of a row stand beside each other.
    pub rows: Vec<Vec<TrendPanel>>,
}

/// One panel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendPanel {
    pub title: String,
    /// Lines of one name have one look in all panels.
    pub lines: Vec<TrendLine>,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendLine {
    pub name: String,
    /// By place; of none there is no point.
    pub points: Vec<TrendPoint>,
}

/// A share at a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrendPoint {
    pub count: usize,
    pub of: usize,
}

impl TrendPoint {
    /// From 0 to 1; absent of none.
    pub fn share(self) -> Option<f64> {
        (self.of > 0).then(|| self.count as f64 / self.of as f64)
    }

    /// Its 95% interval (Wilson).
    pub fn interval(self) -> Option<Interval> {
        wilson(self.count, self.of, LEVEL)
    }
}
