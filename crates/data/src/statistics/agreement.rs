//! Agreement of two raters on binary labels (STALE, table 7) and on scores.

use super::kappa::{Weights, confusion, kappa};

/// Confusion matrix of a reference rater (human) and another (judge); positive is *correct*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Agreement {
    pub true_positive: usize,
    pub false_positive: usize,
    pub false_negative: usize,
    pub true_negative: usize,
}

impl Agreement {
    pub fn count(pairs: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let mut counts = Agreement::default();
        for pair in pairs {
            match pair {
                (true, true) => counts.true_positive += 1,
                (false, true) => counts.false_positive += 1,
                (true, false) => counts.false_negative += 1,
                (false, false) => counts.true_negative += 1,
            }
        }
        counts
    }

    pub fn n(&self) -> usize {
        self.true_positive + self.false_positive + self.false_negative + self.true_negative
    }

    /// In [0, 1]; `None` without pairs.
    pub fn agreement(&self) -> Option<f64> {
        ratio(self.true_positive + self.true_negative, self.n())
    }

    /// `None` without pairs or if expected agreement is 1.
    pub fn kappa(&self) -> Option<f64> {
        let positive = [self.true_positive, self.false_negative];
        kappa(&[positive, [self.false_positive, self.true_negative]], Weights::Plain)
    }

    pub fn precision(&self) -> Option<f64> {
        ratio(self.true_positive, self.true_positive + self.false_positive)
    }

    pub fn recall(&self) -> Option<f64> {
        ratio(self.true_positive, self.true_positive + self.false_negative)
    }

    pub fn f1(&self) -> Option<f64> {
        let errors = self.false_positive + self.false_negative;
        ratio(2 * self.true_positive, 2 * self.true_positive + errors)
    }

    pub fn false_positive_rate(&self) -> Option<f64> {
        ratio(self.false_positive, self.false_positive + self.true_negative)
    }

    pub fn false_negative_rate(&self) -> Option<f64> {
        ratio(self.false_negative, self.false_negative + self.true_positive)
    }
}

/// Confusion matrix of scores, which start at 0.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ScoreAgreement {
    /// `table[reference][other]`: number of items.
    pub table: Vec<Vec<usize>>,
}

impl ScoreAgreement {
    /// Counts (reference, other) pairs; scores above `most` are skipped.
    pub fn count(pairs: impl IntoIterator<Item = (usize, usize)>, most: usize) -> Self {
        ScoreAgreement { table: confusion(pairs, most + 1) }
    }

    /// (reference, other, count)
    fn cells(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let row = |(i, row): (usize, &Vec<usize>)| {
            row.iter().enumerate().map(|(j, count)| (i, j, *count)).collect::<Vec<_>>()
        };
        self.table.iter().enumerate().flat_map(row)
    }

    fn sum(&self, of: impl Fn(usize, usize) -> usize) -> usize {
        self.cells().map(|(i, j, count)| of(i, j) * count).sum()
    }

    pub fn n(&self) -> usize {
        self.sum(|_, _| 1)
    }

    pub fn agreement(&self) -> Option<f64> {
        self.within(0)
    }

    /// Share of pairs whose scores differ by at most `steps`.
    pub fn within(&self, steps: usize) -> Option<f64> {
        ratio(self.sum(|i, j| usize::from(i.abs_diff(j) <= steps)), self.n())
    }

    pub fn kappa(&self, weights: Weights) -> Option<f64> {
        kappa(&self.table, weights)
    }

    /// (reference, other)
    pub fn means(&self) -> Option<(f64, f64)> {
        let n = self.n();
        Some((ratio(self.sum(|i, _| i), n)?, ratio(self.sum(|_, j| j), n)?))
    }
}

fn ratio(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
