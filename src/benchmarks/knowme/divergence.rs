//! How far a text that was made of another one strays from it (KnowMe-Bench, appendix A.1, equation 2).
//!
//! `d = 0.4 * |F(S) \ F(T)| / |F(S)| + 0.6 * |F(T) \ F(S)| / |F(T)|`, where F(S) and F(T) are the atomic facts of the source and of what
//! was made of it. A model extracts the facts and says which of them are the same; here they are counted, with exact rationals, because
//! thresholds are met exactly: 19 facts kept and one added give 3/100, which a threshold of 0.03 lets pass.
//!
//! A share of no facts is 0: nothing to leave out, nothing made up.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// A fraction that is not negative.
#[derive(Debug, Clone, Copy)]
pub struct Fraction {
    numerator: u128,
    denominator: u128,
}

impl Fraction {
    /// A fraction of two counts; 0 where both are 0.
    pub const fn new(numerator: u32, denominator: u32) -> Option<Self> {
        match (numerator, denominator) {
            (0, 0) => Some(Fraction { numerator: 0, denominator: 1 }),
            (_, 0) => None,
            _ => Some(Fraction { numerator: numerator as u128, denominator: denominator as u128 }),
        }
    }

    /// Its value, rounded once.
    pub fn value(self) -> f64 {
        let divisor = greatest_common_divisor(self.numerator, self.denominator);
        (self.numerator / divisor) as f64 / (self.denominator / divisor) as f64
    }
}

impl PartialEq for Fraction {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Fraction {}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    /// By whole parts and then the reciprocals of what is left, so that no product can overflow.
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut a, mut b) = ((self.numerator, self.denominator), (other.numerator, other.denominator));
        let mut reversed = false;
        loop {
            let order = (a.0 / a.1).cmp(&(b.0 / b.1));
            let order = if reversed { order.reverse() } else { order };
            let (rest_a, rest_b) = (a.0 % a.1, b.0 % b.1);
            match (order, rest_a, rest_b) {
                (Ordering::Equal, 0, 0) => return Ordering::Equal,
                (Ordering::Equal, 0, _) => return if reversed { Ordering::Greater } else { Ordering::Less },
                (Ordering::Equal, _, 0) => return if reversed { Ordering::Less } else { Ordering::Greater },
                (Ordering::Equal, ..) => {}
                (order, ..) => return order,
            }
            (a, b, reversed) = ((a.1, rest_a), (b.1, rest_b), !reversed);
        }
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// The facts of a source and of what was made of it, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Facts of the source, |F(S)|.
    pub source: u32,
    /// Facts of both.
    pub common: u32,
    /// Facts of the output, |F(T)|.
    pub output: u32,
}

impl Facts {
    /// Counts two sets in which the same fact has the same name.
    pub fn of<T: Ord>(source: &BTreeSet<T>, output: &BTreeSet<T>) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Facts {
            source: count(source.len()),
            common: count(source.intersection(output).count()),
            output: count(output.len()),
        }
    }

    /// The share of the source's facts that the output lacks; absent where more are common than there are.
    pub fn omitted(self) -> Option<Fraction> {
        Fraction::new(self.source.checked_sub(self.common)?, self.source)
    }

    /// The share of the output's facts that the source lacks; absent where more are common than there are.
    pub fn invented(self) -> Option<Fraction> {
        Fraction::new(self.output.checked_sub(self.common)?, self.output)
    }

    /// The divergence, in [0, 1]; absent where more facts are common than there are.
    pub fn divergence(self) -> Option<Fraction> {
        let (omitted, invented) = (self.omitted()?, self.invented()?);
        // 2/5 of the one and 3/5 of the other over one denominator; the counts have 32 bits each.
        Some(Fraction {
            numerator: 2 * omitted.numerator * invented.denominator
                + 3 * invented.numerator * omitted.denominator,
            denominator: 5 * omitted.denominator * invented.denominator,
        })
    }
}

/// A step of the construction, with the divergence that it may have (table 3).
///
/// The paper's card of step B, and its appendix B, say 0.03 where table 3 says 0.05; its auditor rejects any invention whatever the
/// divergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// B, extraction of units.
    Extraction,
    /// C, realignment to time.
    Realignment,
    /// D, the first-person narrative.
    Instantiation,
}

impl Step {
    /// The greatest divergence that passes.
    pub const fn threshold(self) -> Fraction {
        let (numerator, denominator) = match self {
            Step::Extraction => (5, 100),
            Step::Realignment => (0, 1),
            Step::Instantiation => (3, 100),
        };
        Fraction { numerator, denominator }
    }

    /// Whether an output must be made again: its divergence is greater than the threshold. Absent where `facts` is no count.
    pub fn revises(self, facts: Facts) -> Option<bool> {
        Some(facts.divergence()? > self.threshold())
    }
}
