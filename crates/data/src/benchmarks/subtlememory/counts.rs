//! Counts over sets of question ids: accuracy, waterfall stages, discordant pairs.

use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    pub questions: usize,
    /// |S_O|: right in `oracle`.
    pub oracle: usize,
    /// |S_P|: also right under perfect retrieval.
    pub preserved: usize,
    /// |S_D|: also right by default.
    pub retrieved: usize,
    /// Right by default, regardless of earlier stages.
    pub default: usize,
    pub alone: usize,
}

impl Stages {
    /// Right by default outside S_P, which the product of the shares misses.
    pub fn outside(&self) -> usize {
        self.default.saturating_sub(self.retrieved)
    }
}

/// The other sets hold the questions right in each setting and may exceed `asked`.
pub fn stages<Q: Ord>(
    asked: &BTreeSet<Q>,
    oracle: &BTreeSet<Q>,
    perfect: &BTreeSet<Q>,
    default: &BTreeSet<Q>,
) -> Stages {
    let mut stages = Stages { questions: asked.len(), ..Stages::default() };
    for question in asked {
        let in_oracle = oracle.contains(question);
        let preserved = in_oracle && perfect.contains(question);
        let right = default.contains(question);
        stages.oracle += usize::from(in_oracle);
        stages.preserved += usize::from(preserved);
        stages.retrieved += usize::from(preserved && right);
        stages.default += usize::from(right);
        stages.alone += usize::from(right && !in_oracle);
    }
    stages
}

/// b and c of McNemar's test.
pub fn discordant<Q: Ord>(one: &BTreeSet<Q>, other: &BTreeSet<Q>) -> (usize, usize) {
    (one.difference(other).count(), other.difference(one).count())
}

/// Signed percentage points.
pub fn points(difference: f64) -> String {
    let points = format!("{:+.2}", 100.0 * difference);
    if points == "-0.00" { "+0.00".to_owned() } else { points }
}
