//! Cuts a case's prompts to a context budget by evidence-preserving truncation (STALE, section 4.1).
//!
//! Truncation weighs segments by estimated costs; what counts is the true length of every prompt, so the prompts are
//! built and measured, and the estimate is raised until the longest fits. A local model's prompts are measured as its
//! tokens; of an endpoint's, whose chat template is the server's, the messages are counted and [`TEMPLATE_RESERVE`] is kept free.
//!
//! The probes of a case are shown one history, so that they share its prefill, as long as the evidence of all of them fits.
//! Where it does not, neighbouring probes are parted in halves until it does. A history that was retrieved keeps what was ranked
//! best, evidence or not.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::data::truncate::{TruncateError, Truncated, truncate, truncate_ranked};
use crate::data::{Case, History, Probe};
use crate::prompt::{BORDER_TOKENS, CountTokens, Message, Prompt, PromptBuilder, PromptError};
use crate::prompt::{TokenizedPrompt, Tokenizer};
use crate::stats;

/// Tokens kept free for the chat template of an endpoint, which cannot be seen: role headers, and the lines that some templates
/// put before the system message. Our choice: the longest known of these (gpt-oss) take less than a hundred.
pub const TEMPLATE_RESERVE: usize = 256;

/// A case cut to a context budget, as it will be shown to some of its probes.
pub struct BudgetedCase<P = TokenizedPrompt> {
    /// To which, by their places in the case.
    pub probes: Range<usize>,
    /// What is left of the history.
    pub history: History,
    /// Original indices of the segments that were dropped, ascending.
    pub dropped: Vec<usize>,
    /// Those of them that are immediate neighbours of evidence.
    pub dropped_neighbours: Vec<usize>,
    /// One prompt for each of these probes, in their order.
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

/// The part of a cut case that the probe at a place of the case is shown, and which of its prompts is the probe's.
pub fn part_of<P>(parts: &[BudgetedCase<P>], probe: usize) -> Option<(&BudgetedCase<P>, &P)> {
    let part = parts.iter().find(|part| part.probes.contains(&probe))?;
    Some((part, part.prompts.get(probe - part.probes.start)?))
}

/// Fits `case` so that the longest of its prompts has at most `budget` tokens. The same segments are dropped for all
/// probes as long as their evidence fits together; `seed` breaks ties. Parts are in the order of the probes.
pub fn cut_to_budget(
    builder: &PromptBuilder,
    tokenizer: &Tokenizer,
    case: &Case,
    budget: usize,
    seed: u64,
) -> Result<Vec<BudgetedCase>, BudgetError> {
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
) -> Result<Vec<BudgetedCase<Vec<Message>>>, BudgetError> {
    let parts = cut_prompts(builder, tokens, case, budget, seed)?;
    let messages = |part: BudgetedCase<Prompt>| BudgetedCase {
        probes: part.probes,
        history: part.history,
        dropped: part.dropped,
        dropped_neighbours: part.dropped_neighbours,
        prompts: part.prompts.into_iter().map(|prompt| prompt.messages).collect(),
    };
    Ok(parts.into_iter().map(messages).collect())
}

/// [`cut_messages`] with whole prompts.
pub fn cut_prompts(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    budget: usize,
    seed: u64,
) -> Result<Vec<BudgetedCase<Prompt>>, BudgetError> {
    let count = |prompt: Prompt| {
        let mut length = TEMPLATE_RESERVE;
        for message in &prompt.messages {
            length += tokens.count(&message.content)?;
        }
        Ok((length, prompt))
    };
    fit(builder, tokens, case, (budget, seed), count)
}

fn fit<P>(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    (budget, seed): (usize, u64),
    measured: impl Fn(Prompt) -> Result<(usize, P), PromptError>,
) -> Result<Vec<BudgetedCase<P>>, BudgetError> {
    let _span = stats::tokenise();
    let job =
        Fit { builder, costs: builder.segment_costs(&case.history, tokens)?, tokens, case, budget, seed };
    let mut parts = Vec::new();
    let mut waiting: Vec<Range<usize>> = std::iter::once(0..case.probes.len()).collect();
    while let Some(probes) = waiting.pop() {
        match job.part(probes.clone(), &measured) {
            Err(BudgetError::Truncate(TruncateError::DoesNotFit { .. }))
                if probes.len() > 1 && job.differ(&probes) =>
            {
                let middle = probes.start + probes.len() / 2;
                waiting.extend([middle..probes.end, probes.start..middle]);
            }
            part => parts.push(part?),
        }
    }
    Ok(parts)
}

/// A case that is to be cut.
struct Fit<'a> {
    builder: &'a PromptBuilder,
    tokens: &'a dyn CountTokens,
    case: &'a Case,
    /// Tokens of each segment.
    costs: Vec<usize>,
    budget: usize,
    seed: u64,
}

impl Fit<'_> {
    /// Whether the probes have evidence of their own, so that fewer of them can need less.
    fn differ(&self, probes: &Range<usize>) -> bool {
        let own = |probe: &Probe| -> BTreeSet<usize> {
            probe.evidence.iter().map(|evidence| evidence.place.segment).collect()
        };
        let mut all = self.case.probes[probes.clone()].iter().map(own);
        let first = all.next();
        all.any(|other| Some(other) != first)
    }

    /// The history as some of the probes are shown it.
    fn part<P>(
        &self,
        probes: Range<usize>,
        measured: impl Fn(Prompt) -> Result<(usize, P), PromptError>,
    ) -> Result<BudgetedCase<P>, BudgetError> {
        let Fit { builder, tokens, case, costs, budget, seed } = self;
        let mut shown = Case { probes: case.probes[probes.clone()].to_vec(), ..case_without_history(case) };
        // Begun without the bound's margin, so that nothing goes that would have fitted.
        let fixed = builder.fixed_cost(&case.history, &shown.probes, *tokens)?;
        let mut fixed = fixed.saturating_sub(BORDER_TOKENS);
        let evidence = shown.evidence.iter().chain(shown.probes.iter().flat_map(|probe| &probe.evidence));
        let evidence: BTreeSet<usize> = evidence.map(|evidence| evidence.place.segment).collect();
        let evidence: Vec<usize> = evidence.into_iter().collect();
        loop {
            let cut = match &case.keep {
                Some(order) => truncate_ranked(&case.history, order, costs, fixed, *budget)?,
                None => truncate(&case.history, &evidence, costs, fixed, *budget, *seed)?,
            };
            let Truncated { history, dropped, dropped_neighbours, .. } = cut;
            if case.keep.is_some() {
                shown = Case { history, ..shown };
                shown.forget_hidden_evidence();
            } else {
                shown.history = history;
            }
            let prompts = builder.build_all(&shown, &shown.history)?;
            let prompts: Vec<(usize, P)> = prompts.into_iter().map(&measured).collect::<Result<_, _>>()?;
            let longest = prompts.iter().map(|(length, _)| *length).max().unwrap_or(0);
            if longest <= *budget {
                let prompts = prompts.into_iter().map(|(_, prompt)| prompt).collect();
                return Ok(BudgetedCase {
                    probes,
                    history: shown.history,
                    dropped,
                    dropped_neighbours,
                    prompts,
                });
            }
            // The estimate was short by this much. It grows at every turn, and truncation errs when nothing is left to drop.
            fixed += longest - budget;
        }
    }
}

/// A case's labels and what they say of its history, which is long and comes later.
fn case_without_history(case: &Case) -> Case {
    Case {
        id: case.id.clone(),
        labels: case.labels.clone(),
        evidence: case.evidence.clone(),
        stretches: case.stretches.clone(),
        judge: case.judge.clone(),
        keep: case.keep.clone(),
        ..Case::default()
    }
}
