//! Truncates a case's prompts to a context budget by the run's [`Truncation`].
//!
//! Truncation uses estimated segment costs; prompts are then built and measured, and the estimate is raised until the longest fits. Local
//! prompts are measured in tokens; for endpoints the messages are counted and [`TEMPLATE_RESERVE`] is kept free for the chat template.
//!
//! Probes of a case share one history, so that they share its prefill. Evidence-preserving truncation splits neighbouring probes in halves
//! while their joint evidence does not fit. In phases each probe has its own cut. Retrieved histories keep the top-ranked segments,
//! evidence or not.

use std::collections::BTreeSet;
use std::ops::Range;

use palimpsest_core::engine::ModelText;
use palimpsest_core::text::{CountTokens, Message, Prompt, TextError};
use palimpsest_core::text::{TokenizedPrompt, Tokenizer};
use palimpsest_core::timing;
use palimpsest_data::case::truncate::{
    Middle, Phases, TruncateError, Truncated, Truncation, truncate, truncate_phases, truncate_plain,
    truncate_ranked,
};
use palimpsest_data::case::{Case, History, Keep, Probe};
use palimpsest_data::prompt::{BORDER_TOKENS, PromptBuilder, PromptError};

/// Tokens reserved for an endpoint's unknown chat template; the longest known (gpt-oss) takes less than 100.
pub const TEMPLATE_RESERVE: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Maximum prompt tokens ([`Truncation::budget`]).
    pub budget: usize,
    pub by: Truncation,
    pub seed: u64,
}

impl Cut {
    /// For a local model that generates at most `max_new_tokens` after a thought.
    pub fn of_model(by: Truncation, seed: u64, text: &ModelText, max_new_tokens: usize) -> Self {
        let budget = by.budget(text.context, text.max_thinking + max_new_tokens);
        Cut { budget, by, seed }
    }

    pub fn keeping_evidence(budget: usize, seed: u64) -> Self {
        Cut { budget, by: Truncation::Evidence, seed }
    }

    /// Tokens reserved for an endpoint's chat template, less those that the truncation reserves anyway.
    pub fn template_reserve(self) -> usize {
        TEMPLATE_RESERVE.saturating_sub(self.by.reserved())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Original indices of fully dropped segments, ascending.
    pub segments: Vec<usize>,
    /// Dropped immediate neighbours of evidence, if the truncation considers evidence.
    pub neighbours: Vec<usize>,
    /// Dropped tokens, including those of partly dropped segments.
    pub tokens: usize,
    /// Tokens of the full history, summed over segments; 0 if nothing was dropped.
    pub of: usize,
}

/// A truncated case, as shown to a range of its probes.
pub struct BudgetedCase<P = TokenizedPrompt> {
    pub probes: Range<usize>,
    /// Remaining history; partly dropped segments are stored whole.
    pub history: History,
    pub dropped: Dropped,
    pub prompts: Vec<P>,
}

impl<P> BudgetedCase<P> {
    pub fn whole(case: &Case, prompts: Vec<P>) -> Self {
        let (probes, history) = (0..case.probes.len(), case.history.clone());
        BudgetedCase { probes, history, dropped: Dropped::default(), prompts }
    }

    pub fn map<Q, E>(self, of: impl Fn(P) -> Result<Q, E>) -> Result<BudgetedCase<Q>, E> {
        let BudgetedCase { probes, history, dropped, prompts } = self;
        let prompts = prompts.into_iter().map(of).collect::<Result<_, E>>()?;
        Ok(BudgetedCase { probes, history, dropped, prompts })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    #[error(transparent)]
    Truncate(#[from] TruncateError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(
        "the history does not fit: with its middle cut out nothing of it is left, as the rest of the prompt takes {tokens} of the {budget} tokens \
         that there is room for; raise --context"
    )]
    NothingLeft { tokens: usize, budget: usize },
}

impl BudgetError {
    pub fn is_too_long(&self) -> bool {
        use TruncateError::{DoesNotFit, NothingFits, StillTooLong};
        matches!(
            self,
            BudgetError::NothingLeft { .. }
                | BudgetError::Truncate(DoesNotFit { .. } | NothingFits { .. } | StillTooLong { .. })
        )
    }
}

/// The part that contains probe number `probe`, and the probe's prompt.
pub fn part_of<P>(parts: &[BudgetedCase<P>], probe: usize) -> Option<(&BudgetedCase<P>, &P)> {
    let part = parts.iter().find(|part| part.probes.contains(&probe))?;
    Some((part, part.prompts.get(probe - part.probes.start)?))
}

/// Truncates `case` so that its longest prompt fits the budget. Parts are in probe order.
pub fn cut_to_budget(
    builder: &PromptBuilder,
    tokenizer: &Tokenizer,
    case: &Case,
    cut: Cut,
) -> Result<Vec<BudgetedCase>, BudgetError> {
    let encode = |prompt: Prompt| {
        let encoded = prompt.encode(tokenizer)?;
        Ok((encoded.tokens.len(), encoded))
    };
    let count = |prompt: &Prompt| Ok(prompt.encode_text(tokenizer)?.ids.len());
    fit(builder, tokenizer, case, cut, (&count, encode))
}

/// Endpoint variant: message contents, counted by `tokens`, plus [`TEMPLATE_RESERVE`] must fit.
pub fn cut_messages(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    cut: Cut,
) -> Result<Vec<BudgetedCase<Vec<Message>>>, BudgetError> {
    let parts = cut_prompts(builder, tokens, case, cut)?;
    parts.into_iter().map(|part| part.map(|prompt| Ok(prompt.messages))).collect()
}

pub fn cut_prompts(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    cut: Cut,
) -> Result<Vec<BudgetedCase<Prompt>>, BudgetError> {
    let count = |prompt: &Prompt| {
        let mut length = cut.template_reserve();
        for message in &prompt.messages {
            length += tokens.count(&message.content)?;
        }
        Ok(length)
    };
    fit(builder, tokens, case, cut, (&count, |prompt: Prompt| Ok((count(&prompt)?, prompt))))
}

fn fit<P>(
    builder: &PromptBuilder,
    tokens: &dyn CountTokens,
    case: &Case,
    cut: Cut,
    (count, measured): (
        impl Fn(&Prompt) -> Result<usize, PromptError>,
        impl Fn(Prompt) -> Result<(usize, P), PromptError>,
    ),
) -> Result<Vec<BudgetedCase<P>>, BudgetError> {
    let _span = timing::tokenise();
    let job = Fit { builder, costs: builder.segment_costs(&case.history, tokens)?, tokens, case, cut };
    let all = 0..case.probes.len();
    match (&case.keep, cut.by) {
        (Keep::Chosen, Truncation::Phases(_)) if all.len() > 1 => {
            if let Ok(whole) = job.part(all.clone(), &measured)
                && whole.dropped.segments.is_empty()
            {
                return Ok(vec![whole]);
            }
            return all.map(|probe| job.part(probe..probe + 1, &measured)).collect();
        }
        (Keep::Chosen, Truncation::Middle(middle)) => return job.middles(middle, &count, &measured),
        _ => {}
    }
    let mut parts = Vec::new();
    let mut waiting: Vec<Range<usize>> = vec![all];
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

struct Fit<'a> {
    builder: &'a PromptBuilder,
    tokens: &'a dyn CountTokens,
    case: &'a Case,
    costs: Vec<usize>,
    cut: Cut,
}

impl Fit<'_> {
    /// True if the probes have evidence of their own, so that a subset may need less.
    fn differ(&self, probes: &Range<usize>) -> bool {
        if !self.keeps_evidence() {
            return false;
        }
        let own = |probe: &Probe| -> BTreeSet<usize> {
            probe.evidence.iter().map(|evidence| evidence.place.segment).collect()
        };
        let mut all = self.case.probes[probes.clone()].iter().map(own);
        let first = all.next();
        all.any(|other| Some(other) != first)
    }

    fn keeps_evidence(&self) -> bool {
        match self.case.keep {
            Keep::Chosen => self.cut.by == Truncation::Evidence,
            Keep::Evidence => true,
            Keep::Ranked(_) => false,
        }
    }

    /// Truncates the history for some probes, given `fixed` tokens for the rest of the prompt.
    fn cut(&self, probes: &[Probe], fixed: usize) -> Result<Truncated, TruncateError> {
        let Fit { case, costs, cut: Cut { budget, by, seed }, .. } = self;
        let history = &case.history;
        match (&case.keep, by) {
            (Keep::Ranked(order), _) => truncate_ranked(history, order, costs, fixed, *budget),
            (Keep::Chosen, Truncation::Plain) => truncate_plain(history, costs, fixed, *budget),
            (Keep::Chosen, Truncation::Phases(phases)) => {
                let Phases { first, last, ends, .. } = phases;
                let of = |role: &str| {
                    let mut evidence = case.evidence.iter().chain(probes.iter().flat_map(|p| &p.evidence));
                    evidence.find(|evidence| evidence.role == role).map(|evidence| evidence.place.segment)
                };
                let name = match probes {
                    [probe] => format!("{} {}", case.id, probe.id),
                    _ => case.id.clone(),
                };
                let ends = (of(first), of(last), *ends);
                truncate_phases(history, ends, costs, (fixed, *budget), (*seed, &name))
            }
            _ => {
                let evidence = case.evidence.iter().chain(probes.iter().flat_map(|probe| &probe.evidence));
                let evidence: BTreeSet<usize> = evidence.map(|evidence| evidence.place.segment).collect();
                let evidence: Vec<usize> = evidence.into_iter().collect();
                truncate(history, &evidence, costs, fixed, *budget, *seed)
            }
        }
    }

    fn part<P>(
        &self,
        probes: Range<usize>,
        measured: impl Fn(Prompt) -> Result<(usize, P), PromptError>,
    ) -> Result<BudgetedCase<P>, BudgetError> {
        let Fit { builder, tokens, case, cut: Cut { budget, .. }, .. } = self;
        let of_probes = || case.probes[probes.clone()].to_vec();
        let mut shown = Case { probes: of_probes(), ..case_without_history(case) };
        // Starts without a safety margin, so that no fitting segment is dropped.
        let fixed = builder.fixed_cost(&case.history, &shown.probes, *tokens)?;
        let mut fixed = fixed.saturating_sub(BORDER_TOKENS);
        loop {
            let Truncated { history, dropped, dropped_neighbours, .. } = self.cut(&shown.probes, fixed)?;
            shown = Case { history, ..shown };
            if !self.keeps_evidence() {
                shown.forget_hidden_evidence();
            }
            let prompts = builder.build_all(&shown, &shown.history)?;
            let prompts: Vec<(usize, P)> = prompts.into_iter().map(&measured).collect::<Result<_, _>>()?;
            let longest = prompts.iter().map(|(length, _)| *length).max().unwrap_or(0);
            if longest <= *budget {
                let prompts = prompts.into_iter().map(|(_, prompt)| prompt).collect();
                let dropped = self.dropped(dropped, dropped_neighbours);
                return Ok(BudgetedCase { probes, history: shown.history, dropped, prompts });
            }
            // The estimate was short by this much. It grows each turn; truncation fails when nothing is left to drop.
            fixed += longest - budget;
        }
    }

    fn dropped(&self, segments: Vec<usize>, neighbours: Vec<usize>) -> Dropped {
        if segments.is_empty() {
            return Dropped::default();
        }
        let costs = self.case.history.segments.iter().zip(&self.costs);
        let gone = costs.filter(|(segment, _)| segments.contains(&segment.index));
        let tokens = gone.map(|(_, cost)| cost).sum();
        Dropped { segments, neighbours, tokens, of: self.costs.iter().sum() }
    }

    /// Cuts the middle of prompts that are too long. Neighbouring probes with whole prompts form one part.
    fn middles<P>(
        &self,
        middle: Middle,
        count: impl Fn(&Prompt) -> Result<usize, PromptError>,
        measured: impl Fn(Prompt) -> Result<(usize, P), PromptError>,
    ) -> Result<Vec<BudgetedCase<P>>, BudgetError> {
        let mut parts: Vec<BudgetedCase<P>> = Vec::new();
        for (at, prompt) in self.builder.build_all(self.case, &self.case.history)?.into_iter().enumerate() {
            let (prompt, dropped) = self.middle(middle, prompt, &count)?;
            let (_, prompt) = measured(prompt)?;
            let gone = &dropped.segments;
            let history = self.case.history.select(|_, segment| !gone.contains(&segment.index));
            match parts.last_mut() {
                Some(part) if dropped == Dropped::default() && part.dropped == dropped => {
                    part.probes.end = at + 1;
                    part.prompts.push(prompt);
                }
                _ => parts.push(BudgetedCase { probes: at..at + 1, history, dropped, prompts: vec![prompt] }),
            }
        }
        Ok(parts)
    }

    /// Cuts the middle of one prompt, if too long.
    fn middle(
        &self,
        middle: Middle,
        prompt: Prompt,
        count: impl Fn(&Prompt) -> Result<usize, PromptError>,
    ) -> Result<(Prompt, Dropped), BudgetError> {
        let budget = self.cut.budget;
        let whole = count(&prompt)?;
        let mut room = budget;
        loop {
            let Some((first, last)) = middle.ends(whole, room) else {
                return Ok((prompt, Dropped::default()));
            };
            let bytes = self.tokens.between(&prompt.text, first, last)?;
            let cut = prompt.without(bytes);
            let tokens = count(&cut)?;
            let is_left = |index| cut.spans.iter().any(|span| span.segment() == Some(index));
            let indices = self.case.history.segments.iter().map(|segment| segment.index);
            let segments: Vec<usize> = indices.filter(|&index| !is_left(index)).collect();
            if segments.len() == self.costs.len() {
                return Err(BudgetError::NothingLeft { tokens, budget });
            }
            if tokens <= budget {
                let of = self.costs.iter().sum();
                let tokens = whole.saturating_sub(tokens).min(of);
                return Ok((cut, Dropped { segments, neighbours: Vec::new(), tokens, of }));
            }
            // Retokenising the two ends can add a token; at most the history is cut.
            room = (first + last).saturating_sub(tokens - budget);
        }
    }
}

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
