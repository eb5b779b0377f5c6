//! Rows of the generated tokens, collected by the mass observer.
//!
//! The row of a generated token is the position that predicted it: the prompt's last position for the first token, the previous
//! token's position for each later one. The latest row may have predicted the end of the answer, so it is held back until the next
//! row arrives or the number of generated tokens is known.

use candle_core::{Result, Tensor};

/// Requested rows of generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnswerRows {
    /// Index of the row `answer` (mean over the generated tokens) among the row spans; `None` for no such row.
    pub mean: Option<usize>,
    /// One row per generated token.
    pub each: bool,
    /// A token may be selected after generation ([`super::Step`]). Keeps every row until then: one sum per token, layer, head and
    /// segment.
    pub step: bool,
}

impl AnswerRows {
    /// True if any row is requested.
    pub fn any(self) -> bool {
        self.each || self.step || self.mean.is_some()
    }

    fn held(self) -> bool {
        self.each || self.step
    }
}

/// A generated token with a row of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The row's label.
    pub label: &'static str,
    /// Index of the token in the answer, from 0.
    pub token: usize,
}

/// Sums of one layer's rows, each (heads, 1 + segments).
#[derive(Debug, Clone, Default)]
pub(super) struct Answered {
    /// All rows but the latest, if `AnswerRows::held`.
    each: Vec<Tensor>,
    /// Sum of all rows but the latest, if only the mean is needed.
    sum: Option<Tensor>,
    /// Rows without the latest.
    count: usize,
    latest: Option<Tensor>,
}

impl Answered {
    pub fn len(&self) -> usize {
        self.count + usize::from(self.latest.is_some())
    }

    pub fn push(&mut self, sums: Tensor, wanted: AnswerRows) -> Result<()> {
        let Some(before) = self.latest.replace(sums) else { return Ok(()) };
        self.count += 1;
        match (wanted.held(), &self.sum) {
            (true, _) => self.each.push(before),
            (false, None) => self.sum = Some(before),
            (false, Some(sum)) => self.sum = Some((sum + before)?),
        }
        Ok(())
    }

    /// The first `n` rows; empty unless they were kept.
    pub fn each(&self, n: usize) -> impl Iterator<Item = &Tensor> {
        self.each.iter().chain(&self.latest).take(n)
    }

    /// Sum of the first `n` rows: all, or all but the latest. `None` if `n` is 0.
    pub fn sum(&self, n: usize) -> Result<Option<Tensor>> {
        let mut rows = self.sum.iter().chain(&self.each).chain(self.latest.iter().filter(|_| n > self.count));
        let Some(first) = rows.next().filter(|_| n > 0) else { return Ok(None) };
        rows.try_fold(first.clone(), |sum, row| sum + row).map(Some)
    }

    /// Returns an error if `n` generated tokens do not fit the rows.
    pub fn check(&self, n: usize) -> Result<()> {
        if n > self.len() || n < self.count {
            candle_core::bail!("This is a bug: {n} tokens were generated and {} rows were read", self.len());
        }
        Ok(())
    }
}
