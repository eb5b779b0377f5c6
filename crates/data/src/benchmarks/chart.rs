//! Benchmark-specific charts as plain data: stacked bars of counts, and lines of shares.

use crate::statistics::{Interval, LEVEL, wilson};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chart {
    Bars(BarChart),
    Trends(TrendChart),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BarChart {
    /// File stem: `waterfall`.
    pub key: String,
    pub title: String,
    pub caption: String,
    pub parts: Vec<String>,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    pub group: String,
    pub label: String,
    pub counts: Vec<usize>,
    pub note: String,
}

/// Line panels over a shared axis; all values are shares in 0 to 100%.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendChart {
    /// File stem: `lengths`.
    pub key: String,
    pub title: String,
    pub caption: String,
    pub axis: String,
    pub places: Vec<String>,
    /// `[row][column]`
    pub rows: Vec<Vec<TrendPanel>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendPanel {
    pub title: String,
    /// Equal names share a style across panels.
    pub lines: Vec<TrendLine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrendLine {
    pub name: String,
    /// One per place; no point where `of` is 0.
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

    /// Percent, ties rounded up; `-` if `of` is 0. Integer arithmetic, so that ties are exact.
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
