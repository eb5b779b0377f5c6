//! The checks of every benchmark's cases, put to a case at a time.

use super::{copies, golds, questions, times, turns};
use crate::data::Case;
use crate::data::finding::{Check, Finding, Gold};

/// Settings of the checks for a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// True if queries are texts of the data. Otherwise they are a benchmark's own instruction, the same for every case.
    pub queries: bool,
    /// True if segments that are alike are copies. Otherwise they are alike by design.
    pub copies: bool,
    /// True if segments are to stand in the order of their times.
    pub order: bool,
}

impl Scope {
    /// All of them.
    pub const ALL: Self = Scope { queries: true, copies: true, order: true };
}

/// Every check of this module, in the order in which findings are told.
pub static CHECKS: [&Check; 13] = [
    &turns::STRAY_TEXT,
    &times::TIME_ORDER,
    &times::NO_TIME,
    &times::DAY_WORDS,
    &questions::NO_OPTIONS,
    &questions::TWO_GOLDS,
    &questions::SAME_QUESTION,
    &questions::LIKE_QUESTION,
    &golds::GOLD_NOT_IN_EVIDENCE,
    &copies::SAME_SEGMENT,
    &copies::LIKE_SEGMENT,
    &copies::SAME_EVIDENCE,
    &copies::SAME_HISTORY,
];

/// The checks of every benchmark's cases, a case at a time. Keeps hashes of questions and evidence, never the cases.
#[derive(Debug)]
pub struct Checker {
    scope: Scope,
    findings: Vec<Finding>,
    asked: questions::Asked,
    evidence: copies::Seen,
}

impl Checker {
    /// A checker of no case yet.
    pub fn new(scope: Scope) -> Self {
        Checker {
            scope,
            findings: Vec::new(),
            asked: questions::Asked::default(),
            evidence: copies::Seen::default(),
        }
    }

    /// Looks at a case. `golds` has what is known of the right answer to each of its probes, in their order.
    pub fn case(&mut self, case: &Case, golds: &[Gold]) {
        self.findings.extend(turns::stray(case));
        self.findings.extend(times::all(case, golds, self.scope.order));
        if self.scope.queries {
            self.findings.extend(questions::without_options(case, golds));
            self.findings.extend(questions::repeated(case, golds));
            self.asked.add(case);
        }
        self.findings.extend(golds::all(case, golds));
        let said = copies::said(case);
        if self.scope.copies {
            self.findings.extend(copies::within(case, &said));
        }
        self.evidence.add(case, &said, self.scope.copies);
    }

    /// All that was found, and what only shows when all cases have been seen.
    pub fn finish(self) -> Vec<Finding> {
        let Checker { mut findings, asked, evidence, .. } = self;
        findings.extend(asked.alike());
        findings.extend(evidence.across());
        findings
    }
}
