//! Agreement of two raters: on yes and no (the figures of STALE's table 7), and on scores.

use super::kappa::{Weights, confusion, kappa};

/// Counts of a reference rater (a person) against another (the judge); "positive" is the verdict *correct*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Agreement {
    pub true_positive: usize,
    /// The reference says incorrect, the other correct.
    pub false_positive: usize,
    /// The reference says correct, the other incorrect.
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

    /// Share of pairs that agree, in [0, 1]; absent without pairs.
    pub fn agreement(&self) -> Option<f64> {
        ratio(self.true_positive + self.true_negative, self.n())
    }

    /// Cohen's kappa; absent without pairs, and where chance alone makes the raters agree always.
    pub fn kappa(&self) -> Option<f64> {
        let positive = [self.true_positive, self.false_negative];
        kappa(&[positive, [self.false_positive, self.true_negative]], Weights::Plain)
    }

    /// Share of the other's *correct* that the reference shares.
    pub fn precision(&self) -> Option<f64> {
        ratio(self.true_positive, self.true_positive + self.false_positive)
    }

    /// Share of the reference's *correct* that the other found.
    pub fn recall(&self) -> Option<f64> {
        ratio(self.true_positive, self.true_positive + self.false_negative)
    }

    /// Harmonic mean of precision and recall.
    pub fn f1(&self) -> Option<f64> {
        let errors = self.false_positive + self.false_negative;
        ratio(2 * self.true_positive, 2 * self.true_positive + errors)
    }

    /// Share of the reference's *incorrect* that the other calls correct.
    pub fn false_positive_rate(&self) -> Option<f64> {
        ratio(self.false_positive, self.false_positive + self.true_negative)
    }

    /// Share of the reference's *correct* that the other calls incorrect.
    pub fn false_negative_rate(&self) -> Option<f64> {
        ratio(self.false_negative, self.false_negative + self.true_positive)
    }
}

/// Two raters' scores, from 0 to a best one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ScoreAgreement {
    /// `table[i][j]` items have i by the reference and j by the other.
    pub table: Vec<Vec<usize>>,
}

impl ScoreAgreement {
    /// Counts pairs of (reference, other), each from 0 to `most`; a pair with another score is left out.
    pub fn count(pairs: impl IntoIterator<Item = (usize, usize)>, most: usize) -> Self {
        ScoreAgreement { table: confusion(pairs, most + 1) }
    }

    /// Every cell: the two scores and how many items have them.
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

    /// Share of pairs with one and the same score, in [0, 1]; absent without pairs.
    pub fn agreement(&self) -> Option<f64> {
        self.within(0)
    }

    /// Share of pairs whose scores are at most `steps` apart; absent without pairs.
    pub fn within(&self, steps: usize) -> Option<f64> {
        ratio(self.sum(|i, j| usize::from(i.abs_diff(j) <= steps)), self.n())
    }

    /// Cohen's kappa; absent where [`kappa`] is.
    pub fn kappa(&self, weights: Weights) -> Option<f64> {
        kappa(&self.table, weights)
    }

    /// The mean scores of the reference and of the other; absent without pairs.
    pub fn means(&self) -> Option<(f64, f64)> {
        let n = self.n();
        Some((ratio(self.sum(|i, _| i), n)?, ratio(self.sum(|_, j| j), n)?))
    }
}

fn ratio(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
