//! Token lengths of a data set's cases in the model's layout, for `palimpsest data stats`.

use std::collections::BTreeSet;

use anyhow::Context;

use crate::models::ModelStore;
use crate::runs::setup::{WrongUsage, sound_cases, wrong};
use palimpsest_core::engine::TextSide;
use palimpsest_core::text::{ChatTemplate, CountTokens};
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::case::Case;
use palimpsest_data::case::length_table::BY_CASE;
use palimpsest_data::case::lengths::GroupBy;
use palimpsest_data::prompt::{BytePairEncoding, PromptBuilder, Templates};

/// The groups to count; by default the benchmark's own label, otherwise one group. Rejects unknown labels and lists the existing ones.
pub fn group_by<'a>(dataset: &Dataset, by: Option<&'a str>) -> anyhow::Result<GroupBy<'a>> {
    if by == Some(BY_CASE) {
        return Ok(GroupBy::Case);
    }
    let label = by.unwrap_or_else(|| dataset.benchmark().split);
    let mut known = BTreeSet::new();
    for case in sound_cases(dataset)? {
        known.extend(case?.labels.into_keys());
        if known.contains(label) {
            return Ok(GroupBy::Label(label));
        }
    }
    if by.is_none() {
        return Ok(GroupBy::All);
    }
    let known: Vec<String> = std::iter::once(BY_CASE.to_owned()).chain(known).collect();
    let known = known.join(", ");
    wrong(format!("--by {label}: cases have no such label; there are {known}"))
}

pub struct LengthCounter {
    pub name: String,
    builder: PromptBuilder,
    tokens: Box<dyn CountTokens + Send + Sync>,
}

impl LengthCounter {
    pub fn of_encoding(name: &str, benchmark: &Benchmark) -> anyhow::Result<Self> {
        let tokens = BytePairEncoding::named(name).map_err(|error| WrongUsage(error.to_string()))?;
        let builder = PromptBuilder::new(Templates::load(benchmark, None)?, ChatTemplate::plain(None)?);
        Ok(LengthCounter { name: tokens.name().to_owned(), builder, tokens: Box::new(tokens) })
    }

    pub fn of_model(name: &str, benchmark: &Benchmark) -> anyhow::Result<Self> {
        let files = ModelStore::open()?.resolve_text(name)?;
        let TextSide { tokenizer, template, .. } = TextSide::open(&files)?;
        let builder = PromptBuilder::new(Templates::load(benchmark, None)?, template);
        Ok(LengthCounter { name: name.to_owned(), builder, tokens: Box::new(tokenizer) })
    }

    pub fn format(&self, case: &Case) -> anyhow::Result<String> {
        let probe = case.probes.first().with_context(|| format!("case `{}` has no question", case.id))?;
        Ok(self.builder.build(&case.history, &case.evidence, probe)?.text)
    }

    pub fn count(&self, text: &str) -> anyhow::Result<usize> {
        Ok(self.tokens.count(text)?)
    }
}
