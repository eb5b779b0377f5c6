//! The rows of generated tokens, as an observer of masses keeps them.
//!
//! The row of a generated token is the position that predicted it: that of the first is the prompt's last position, and that
//! of each later one is its predecessor's. A position is read before it is known whether what it predicts is a token of the
//! answer or the end of it, so the latest row waits until another one comes, or until it is known how many tokens there are.

use candle_core::{Result, Tensor};

/// Which rows of generated tokens are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnswerRows {
    /// The place among the row spans of a row `answer`, the mean over the generated tokens; `None` for no such row.
    pub mean: Option<usize>,
    /// Each generated token is a row of its own.
    pub each: bool,
    /// One of them may be asked for when all are generated ([`super::Step`]). All are held until then: for every layer and
    /// head as many sums a token as there are segments.
    pub step: bool,
}

impl AnswerRows {
    /// True if any row is wanted.
    pub fn any(self) -> bool {
        self.each || self.step || self.mean.is_some()
    }

    /// True if every row has to be held.
    fn held(self) -> bool {
        self.each || self.step
    }
}

/// A generated token whose row is wanted by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its row's label.
    pub label: &'static str,
    /// Its place among the tokens of the answer, from 0.
    pub token: usize,
}

/// The sums of one layer's rows, (heads, 1 + segments) each.
#[derive(Debug, Clone, Default)]
pub(super) struct Answered {
    /// Every row but the latest, where each is wanted or one of them.
    each: Vec<Tensor>,
    /// The sum of them, where only their mean is.
    sum: Option<Tensor>,
    /// Rows but the latest.
    count: usize,
    latest: Option<Tensor>,
}

impl Answered {
    /// Rows so far.
    pub fn len(&self) -> usize {
        self.count + usize::from(self.latest.is_some())
    }

    /// Takes the next row.
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

    /// The first `n` rows, where all were held.
    pub fn each(&self, n: usize) -> impl Iterator<Item = &Tensor> {
        self.each.iter().chain(&self.latest).take(n)
    }

    /// The sum of the first `n` rows, which are all or all but the latest; `None` of none.
    pub fn sum(&self, n: usize) -> Result<Option<Tensor>> {
        let mut rows = self.sum.iter().chain(&self.each).chain(self.latest.iter().filter(|_| n > self.count));
        let Some(first) = rows.next().filter(|_| n > 0) else { return Ok(None) };
        rows.try_fold(first.clone(), |sum, row| sum + row).map(Some)
    }

    /// Refuses a number of generated tokens that does not fit the rows.
    pub fn check(&self, n: usize) -> Result<()> {
        if n > self.len() || n < self.count {
            candle_core::bail!("This is a bug: {n} tokens were generated and {} rows were read", self.len());
        }
        Ok(())
    }
}
