//! Cuts a case's prompts to a context budget by evidence-preserving truncation (STALE, section 4.1).
//!
//! Truncation weighs segments by estimated costs; what counts is the true length of every prompt, so the prompts are
//! built and measured, and the estimate is raised until the longest fits. A local model's prompts are measured as its
//! tokens; of an endpoint's, whose chat template is the server's, the messages are counted and [`TEMPLATE_RESERVE`] is kept free.

use std::collections::BTreeSet;

use crate::data::truncate::{TruncateError, Truncated, truncate};
use crate::data::{Case, History};
use crate::prompt::{BORDER_TOKENS, CountTokens, Message, Prompt, PromptBuilder, PromptError};
use crate::prompt::{TokenizedPrompt, Tokenizer};
use crate::stats;

/// Tokens kept free for the chat template of an endpoint, which cannot be seen: role headers, and the lines that some templates
/// put before the system message. Our choice: the longest known of these (gpt-oss) take less than a hundred.
pub const TEMPLATE_RESERVE: usize = 256;

/// A case cut to a context budget, as it will be shown.
pub struct BudgetedCase<P = TokenizedPrompt> {
    /// What is left of the history.
    pub history: History,
    /// Original indices of the segments that were dropped, ascending.
    pub dropped: Vec<usize>,
    /// Those of them that are immediate neighbours of evidence.
    pub dropped_neighbours: Vec<usize>,
    /// One prompt for each of the case's probes, in their order.
    pub prompts: Vec<P>,
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
    let encode = |prompt: Prompt| {
        let encoded = prompt.encode(tokenizer)?;
        Ok((encoded.tokens.len(), encoded))
    };
    fit(builder, tokenizer, case, (budget, seed), encode)
}

/// The same for an endpoint: the contents of a prompt's messages and [`TEMPLATE_RESERVE`] have at most `budget` tokens by `tokens`.
pub fn cut_messages(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    budget: usize,
    seed: u64,
) -> Result<BudgetedCase<Vec<Message>>, BudgetError> {
    let count = |prompt: Prompt| {
        let mut length = TEMPLATE_RESERVE;
        for message in &prompt.messages {
            length += tokens.count(&message.content)?;
        }
        Ok((length, prompt.messages))
    };
    fit(builder, tokens, case, (budget, seed), count)
}

fn fit<P>(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    (budget, seed): (usize, u64),
    measured: impl Fn(Prompt) -> Result<(usize, P), PromptError>,
) -> Result<BudgetedCase<P>, BudgetError> {
    let _span = stats::tokenise();
    let costs = builder.segment_costs(&case.history, tokens)?;
    // Begun without the bound's margin, so that nothing goes that would have fitted.
    let fixed = builder.fixed_cost(&case.history, &case.probes, tokens)?;
    let mut fixed = fixed.saturating_sub(BORDER_TOKENS);
    let evidence = case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence));
    let evidence: BTreeSet<usize> = evidence.map(|evidence| evidence.place.segment).collect();
    let evidence: Vec<usize> = evidence.into_iter().collect();
    loop {
        let cut = truncate(&case.history, &evidence, &costs, fixed, budget, seed)?;
        let Truncated { history, dropped, dropped_neighbours, .. } = cut;
        let prompts = builder.build_all(case, &history)?;
        let prompts: Vec<(usize, P)> = prompts.into_iter().map(&measured).collect::<Result<_, _>>()?;
        let longest = prompts.iter().map(|(length, _)| *length).max().unwrap_or(0);
        if longest <= budget {
            let prompts = prompts.into_iter().map(|(_, prompt)| prompt).collect();
            return Ok(BudgetedCase { history, dropped, dropped_neighbours, prompts });
        }
        // The estimate was short by this much. It grows at every turn, and truncation errs when nothing is left to drop.
        fixed += longest - budget;
    }
}
