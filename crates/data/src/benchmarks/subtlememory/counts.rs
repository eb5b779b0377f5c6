//! Counts on sets of question ids: accuracy, the stages of the waterfall, and questions that one of two systems gets right alone.
//!
//! Pure functions, called by the tables of this benchmark.

use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    pub questions: usize,
    /// |S_O|: right in the setting `oracle`.
    pub oracle: usize,
    /// |S_P|: of these, right under perfect retrieval too.
    pub preserved: usize,
    /// |S_D|: of these, right by default too.
    pub retrieved: usize,
    /// Right by default, whatever they were before.
    pub default: usize,
    pub alone: usize,
}

impl Stages {
    /// Right by default outside S_P: what the two shares, whose product is no accuracy, leave out.
    pub fn outside(&self) -> usize {
        self.default.saturating_sub(self.retrieved)
    }
}

/// The stages of the questions `asked`; each of the other sets holds those that are right in a setting, and may hold others too.
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

/// Number of questions that only the first system gets right, and that only the second does: b and c of McNemar's test.
pub fn discordant<Q: Ord>(one: &BTreeSet<Q>, other: &BTreeSet<Q>) -> (usize, usize) {
    (one.difference(other).count(), other.difference(one).count())
}

/// A difference of shares in percentage points with its sign.
pub fn points(difference: f64) -> String {
    let points = format!("{:+.2}", 100.0 * difference);
    if points == "-0.00" { "+0.00".to_owned() } else { points }
}
