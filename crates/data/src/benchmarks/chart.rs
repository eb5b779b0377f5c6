//! Pictures that only one benchmark has, as plain data: bars of counts that add up to a whole, and shares along an axis.

use crate::statistics::{Interval, LEVEL, wilson};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chart {
    Bars(BarChart),
    Trends(TrendChart),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarChart {
    /// One word, for files: `waterfall`.
    pub key: String,
    pub title: String,
    pub caption: String,
    /// Names of the parts of every bar, from the left.
    pub parts: Vec<String>,
    pub bars: Vec<Bar>,
}

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
    pub title: String,
    pub caption: String,
    pub axis: String,
    pub places: Vec<String>,
    /// By row; the panels of a row stand beside each other.
    pub rows: Vec<Vec<TrendPanel>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendPanel {
    pub title: String,
    /// Lines of one name have one look in all panels.
    pub lines: Vec<TrendLine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendLine {
    pub name: String,
    /// By place; of none there is no point.
    pub points: Vec<Share>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    pub count: usize,
    pub of: usize,
}

impl Share {
    pub fn of(holds: impl IntoIterator<Item = bool>) -> Self {
        let mut share = Share::default();
        holds.into_iter().for_each(|holds| share.add(holds));
        share
    }

    pub fn add(&mut self, holds: bool) {
        self.count += usize::from(holds);
        self.of += 1;
    }

    pub fn share(self) -> Option<f64> {
        (self.of > 0).then(|| self.count as f64 / self.of as f64)
    }

    pub fn interval(self) -> Option<Interval> {
        wilson(self.count, self.of, LEVEL)
    }

    /// In percent with so many decimals, ties rounded up; `-` of none. Whole-number arithmetic, so that no tie is missed.
    pub fn percent(self, decimals: u32) -> String {
        if self.of == 0 {
            return "-".to_owned();
        }
        let (count, of, scale) = (self.count as u128, self.of as u128, 10u128.pow(decimals));
        let scaled = (200 * scale * count + of) / (2 * of);
        match decimals {
            0 => scaled.to_string(),
            _ => format!("{}.{:0width$}", scaled / scale, scaled % scale, width = decimals as usize),
        }
    }
}
