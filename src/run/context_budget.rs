//! Cuts a case's prompts to a context budget by evidence-preserving truncation (STALE, section 4.1).
//!
//! Truncation weighs segments by estimated costs; what counts is the true length of every prompt, so the prompts are
//! built and measured, and the estimate is raised until the longest fits.

use std::collections::BTreeSet;

use crate::data::truncate::{TruncateError, truncate};
use crate::data::{Case, History};
use crate::prompt::{PromptBuilder, PromptError, TokenizedPrompt, Tokenizer};
use crate::stats;

/// A case cut to a context budget, as it will be shown.
pub struct BudgetedCase {
    /// What is left of the history.
    pub history: History,
    /// Original indices of the segments that were dropped, ascending.
    pub dropped: Vec<usize>,
    /// One prompt for each of the case's probes, in their order.
    pub prompts: Vec<TokenizedPrompt>,
}

/// Why a case could not be cut to its budget.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    /// The evidence alone is too long, or its segments are not there.
    #[error(transparent)]
    Truncate(#[from] TruncateError),
    /// A prompt could not be built.
    #[error(transparent)]
    Prompt(#[from] PromptError),
}

/// Fits `case` so that the longest of its prompts has at most `budget` tokens. The same segments are dropped for all
/// probes, so that they share their history; `seed` breaks ties.
pub fn cut_to_budget(
    builder: &PromptBuilder,
    tokenizer: &Tokenizer,
    case: &Case,
    budget: usize,
    seed: u64,
) -> Result<BudgetedCase, BudgetError> {
    let _span = stats::tokenise();
    let costs = builder.segment_costs(&case.history, tokenizer)?;
    let mut fixed = builder.fixed_cost(&case.history, &case.probes, tokenizer)?;
    let evidence = case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence));
    let evidence: BTreeSet<usize> = evidence.map(|evidence| evidence.place.segment).collect();
    let evidence: Vec<usize> = evidence.into_iter().collect();
    loop {
        let cut = truncate(&case.history, &evidence, &costs, fixed, budget, seed)?;
        let prompts = builder.build_all(case, &cut.history)?;
        let prompts: Vec<_> =
            prompts.iter().map(|prompt| prompt.encode(tokenizer)).collect::<Result<_, _>>()?;
        let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        if longest <= budget {
            return Ok(BudgetedCase { history: cut.history, dropped: cut.dropped, prompts });
        }
        // The estimate was short by this much. It grows at every turn, and truncation errs when nothing is left to drop.
        fixed += longest - budget;
    }
}
