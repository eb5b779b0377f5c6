//! Fits a case's prompts into a token budget by evidence-preserving truncation (STALE, section 4.1).
//!
//! Truncation weighs sessions by estimated costs; what counts is the true length of every prompt, so the prompts are
//! built and measured, and the estimate is raised until the longest fits.

use crate::data::truncate::{TruncateError, truncate};
use crate::data::{Case, History};
use crate::prompt::{Prompt, PromptBuilder, PromptError, TokenizedPrompt, Tokenizer};
use crate::stats;

/// A case as it will be shown.
pub struct Fitted {
    /// What is left of the history.
    pub history: History,
    /// Original indices of the sessions that were dropped, ascending.
    pub dropped: Vec<usize>,
    /// One prompt for each of the case's probes, in their order.
    pub prompts: Vec<(Prompt, TokenizedPrompt)>,
}

/// Why a case could not be fitted.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The evidence alone is too long, or its sessions are not there.
    #[error(transparent)]
    Truncate(#[from] TruncateError),
    /// A prompt could not be built.
    #[error(transparent)]
    Prompt(#[from] PromptError),
}

/// Fits `case` so that the longest of its prompts has at most `budget` tokens. The same sessions are dropped for all
/// probes, so that they share their history; `seed` breaks ties.
pub fn fit(
    builder: &PromptBuilder,
    tokenizer: &Tokenizer,
    case: &Case,
    budget: usize,
    seed: u64,
) -> Result<Fitted, FitError> {
    let _span = stats::tokenise();
    let costs = builder.session_costs(&case.history, tokenizer)?;
    let mut fixed = builder.fixed_cost(&case.history, &case.probes, tokenizer)?;
    loop {
        let cut = truncate(&case.history, &case.evidence, &costs, fixed, budget, seed)?;
        let prompts = case
            .probes
            .iter()
            .map(|probe| {
                let prompt = builder.build(&cut.history, &case.evidence, probe)?;
                let tokens = prompt.encode(tokenizer)?;
                Ok((prompt, tokens))
            })
            .collect::<Result<Vec<_>, PromptError>>()?;
        let longest = prompts.iter().map(|(_, t)| t.tokens.len()).max().unwrap_or(0);
        if longest <= budget {
            return Ok(Fitted { history: cut.history, dropped: cut.dropped, prompts });
        }
        // The estimate was short by this much. It grows at every turn, and truncation errs when nothing is left to drop.
        fixed += longest - budget;
    }
}
