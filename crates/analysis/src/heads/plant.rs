//! Prompts with a needle: a sentence in one session, and a question that only it answers.

use std::ops::Range;

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;

use super::score::Planted;
use palimpsest_core::text::{TokenizedPrompt, Tokenizer};
use palimpsest_data::benchmarks::dataset::{Dataset, DatasetError};
use palimpsest_data::benchmarks::{QUERY, SampleSpec};
use palimpsest_data::case::draw::Draws;
use palimpsest_data::case::{Case, Evidence, Keep, Location, Probe};
use palimpsest_data::prompt::PromptBuilder;
use palimpsest_run::runs::context_budget::{BudgetedCase, Cut, cut_to_budget};

pub const NULL_QUERY: &str = "N/A";

const GOLD: &str = "gold";
const ANSWER: &str = "needle";
/// Lower bound of a sample session's length in tokens, to request enough sessions for a context.
const SESSION_TOKENS: usize = 150;
const FEWEST_SESSIONS: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needle {
    pub sentence: String,
    pub answer: String,
    pub question: String,
}

pub fn needles() -> serde_json::Result<Vec<Needle>> {
    serde_json::from_str(include_str!("needles.json"))
}

#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    pub case: String,
    pub session: usize,
    pub planted: Planted,
}

pub struct Planter<'a> {
    builder: &'a PromptBuilder,
    tokenizer: &'a Tokenizer,
    cases: Vec<Case>,
    budget: usize,
    seed: u64,
}

pub fn sample(budget: usize, seed: u64) -> Result<Dataset, DatasetError> {
    let segments = (budget / SESSION_TOKENS).max(FEWEST_SESSIONS);
    Dataset::open("sample", SampleSpec { segments: Some(segments), seed }, |_| {})
}

impl<'a> Planter<'a> {
    /// Prompts have at most `budget` tokens. `seed` draws depths and truncation.
    pub fn new(
        (builder, tokenizer): (&'a PromptBuilder, &'a Tokenizer),
        sample: &Dataset,
        (budget, seed): (usize, u64),
    ) -> anyhow::Result<Self> {
        let cases: Vec<Case> = sample.cases()?.collect::<Result<_, _>>()?;
        Ok(Planter { builder, tokenizer, cases, budget, seed })
    }

    /// Prompt of needle `nth` of `count`. Depths are stratified: each needle gets a random stretch of its own.
    pub fn plant(&self, needle: &Needle, nth: usize, count: usize) -> anyhow::Result<Site> {
        let no_session = "the sample has no case with a session in which somebody speaks";
        let case = self.cases.get(nth % self.cases.len().max(1)).context(no_session)?;
        let mut order: Vec<usize> = (0..count).collect();
        Draws::new("needle depths", self.seed, "").shuffle(&mut order);
        let stretch = order.get(nth).copied().unwrap_or_default();
        let sessions = case.history.segments.len();
        let place = (2 * stretch + 1) * sessions / (2 * count.max(1));
        let (case, session) = planted(case, place, needle).context(no_session)?;
        let cut = Cut::keeping_evidence(self.budget, self.seed);
        let parts = cut_to_budget(self.builder, self.tokenizer, &case, cut)
            .map_err(|error| anyhow!("no needle fits: {error}"))?;
        let [BudgetedCase { prompts, .. }] = &parts[..] else { bail!("needle {nth}: its case was split") };
        let [asked, null] = &prompts[..] else { bail!("needle {nth}: its case has no two prompts") };
        let of = |prompt: &TokenizedPrompt, role: &str| -> anyhow::Result<Range<usize>> {
            let span = prompt.spans.iter().chain(&prompt.overlays).find(|span| span.is(role));
            Ok(span
                .with_context(|| format!("needle {nth}: its prompt has no span `{role}`; this is a bug"))?
                .range())
        };
        let planted = Planted {
            query: of(asked, QUERY)?,
            gold: of(asked, GOLD)?,
            answer: of(asked, ANSWER)?,
            null_query: of(null, QUERY)?,
            tokens: asked.tokens.clone(),
            null_tokens: null.tokens.clone(),
        };
        Ok(Site { case: case.id, session, planted })
    }
}

/// Adds the needle to the end of the first turn of the session at `place`. Returns the case, with question and null question, and the
/// session index.
fn planted(case: &Case, place: usize, needle: &Needle) -> Option<(Case, usize)> {
    let mut case = case.clone();
    let probe = case.probes.first()?.clone();
    let segment = case.history.segments.get_mut(place)?;
    let index = segment.index;
    let turn = segment.turns.first_mut()?;
    let said = turn.content.trim_end().len();
    turn.content.truncate(said);
    turn.content.push(' ');
    let start = turn.content.len() + needle.sentence.find(&needle.answer)?;
    turn.content.push_str(&needle.sentence);
    let bytes = Some(start..start + needle.answer.len());
    let place = Location { segment: index, turn: Some(0), bytes };
    let evidence = vec![Evidence::segment(GOLD, index), Evidence { role: ANSWER.to_owned(), place }];
    let ask = |id: &str, query: &str| Probe {
        id: id.to_owned(),
        form: probe.form.clone(),
        query: query.to_owned(),
        ..Probe::default()
    };
    case.probes = vec![ask("needle", &needle.question), ask("null", NULL_QUERY)];
    Some((Case { evidence, stretches: Vec::new(), keep: Keep::Chosen, ..case }, index))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn needles_are_distinct_and_hold_their_answers() {
        let needles = needles().unwrap();
        assert_eq!(needles.len(), 20);
        let distinct: BTreeSet<&str> = needles.iter().map(|needle| needle.answer.as_str()).collect();
        assert_eq!(distinct.len(), needles.len());
        for needle in &needles {
            assert_eq!(needle.sentence.matches(&needle.answer).count(), 1, "{needle:?}");
            assert!(!needle.question.contains(&needle.answer), "{needle:?}");
        }
    }
}
