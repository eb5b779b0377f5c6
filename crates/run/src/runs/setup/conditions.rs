//! Conditions of a run from `--conditions`, `--knockout`, `--evict` and `--repeat`.

use std::collections::BTreeSet;

use super::{RunSpec, WrongUsage, sound_cases, wrong};
use crate::memory::Memory;
use crate::memory::similar::ByEmbedding;
use crate::runs::condition::Condition;
use crate::runs::plan::PlannedCase;
use palimpsest_core::attention::{Knockout, LayerKind};
use palimpsest_core::evict::Evict;
use palimpsest_core::span::Span;
use palimpsest_core::text::{CountTokens, Prompt};
use palimpsest_core::timing;
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::benchmarks::{Benchmark, Retriever, Setting};
use palimpsest_data::case::Case;
use palimpsest_data::prompt::PromptBuilder;

impl RunSpec {
    /// Conditions as stored in the identity: empty for the plain one alone. `budget`: most tokens of a prompt, if they are counted; looked at
    /// only if the benchmark's default depends on whether the longest history fits.
    pub fn choose(
        &self,
        dataset: &Dataset,
        builder: &PromptBuilder,
        budget: Option<(&dyn CountTokens, usize)>,
    ) -> anyhow::Result<Vec<Condition>> {
        let benchmark = dataset.benchmark();
        let systems = self.memory.conditions(benchmark)?;
        let mut names: Vec<&str> = self.conditions.iter().map(|name| name.trim()).collect();
        if names.is_empty() && systems.is_empty() {
            names = match (benchmark.default_settings_of_long, budget) {
                (Some(of_long), Some(budget)) if !fits(dataset, builder, budget)? => of_long.to_vec(),
                _ => benchmark.default_settings.to_vec(),
            };
        }
        let mut chosen: Vec<Setting> = Vec::new();
        for name in names {
            let Some(setting) = benchmark.all_settings().find(|setting| setting.name == name) else {
                let known: Vec<String> =
                    benchmark.all_settings().map(|one| format!("\n  {}: {}", one.name, one.about)).collect();
                return wrong(format!(
                    "--conditions names `{name}`, which {} does not have; it has{}",
                    benchmark.title,
                    known.concat()
                ));
            };
            if chosen.contains(setting) {
                return wrong(format!("--conditions names `{name}` twice; name it once"));
            }
            chosen.push(*setting);
        }
        let mut all: Vec<Condition> = chosen.iter().map(Condition::of_setting).chain(systems).collect();
        if all.is_empty() {
            all.push(Condition::PLAIN);
        }
        if let (Some(evict), Some(own)) =
            (self.evictions.first(), all.iter().find(|one| one.is_answered_by_memory()))
        {
            return wrong(format!(
                "--evict {evict} needs answers of the model, and under {} the memory system answers itself; drop one of them",
                own.name
            ));
        }
        let all = Condition::beside(&all, (&self.knockouts, &self.evictions), self.repeat);
        let mut names = BTreeSet::new();
        if let Some(double) = all.iter().find(|condition| !names.insert(&condition.name)) {
            return wrong(format!(
                "two conditions would be called `{}`; give each --knockout and --evict once, and names that differ by more than punctuation",
                double.name
            ));
        }
        Ok(if all == [Condition::PLAIN] { Vec::new() } else { all })
    }
}

/// Refuses knock-outs whose spans occur in no prompt or whose layers the model lacks. `plan` holds all cases, `first` one case's prompt.
pub(super) fn check_knockouts(
    knockouts: &[Knockout],
    plan: &[PlannedCase],
    first: Option<&Prompt>,
    layers: &[LayerKind],
) -> anyhow::Result<()> {
    let evidence = plan.iter().flat_map(|case| case.probes.iter().flat_map(|probe| case.evidence_of(probe)));
    let mut known: BTreeSet<String> = evidence.map(|evidence| evidence.role.clone()).collect();
    for span in first.into_iter().flat_map(|prompt| prompt.spans.iter().chain(&prompt.overlays)) {
        known.insert(span.label.clone());
        known.extend(span.role.clone());
    }
    for knockout in knockouts {
        let spans = |name: &String| known.contains(name) || Span::new(name.clone(), 0..0).segment().is_some();
        if let Some(name) = [&knockout.rows, &knockout.keys].into_iter().find(|name| !spans(name)) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            return wrong(format!(
                "--knockout '{knockout}': no case has a span called `{name}`, or one with that role; there are {}",
                known.join(", ")
            ));
        }
        knockout.check_layers(layers).map_err(|e| WrongUsage(e.to_string()))?;
    }
    Ok(())
}

/// Refuses evictions from a model without a layer of full attention.
pub fn check_evictions(evictions: &[Evict], model: &str, layers: &[LayerKind]) -> anyhow::Result<()> {
    let Some(evict) = evictions.first() else { return Ok(()) };
    let is_full = |kind: &LayerKind| matches!(kind, LayerKind::Softmax { .. }) && !kind.chooses();
    if layers.iter().any(is_full) {
        return Ok(());
    }
    wrong(format!(
        "--evict {evict}: {model} has no layer of full attention, and only those have keys to evict: sliding windows and \
         linear-attention layers are bounded already, and rows of sparse attention choose among all keys; drop it, or give a model \
         with such a layer"
    ))
}

/// Retrievers of `conditions`. Fetches the embedder only if needed.
pub fn retrievers(
    benchmark: &'static Benchmark,
    seed: u64,
    conditions: &[Condition],
    show: bool,
) -> anyhow::Result<Memory> {
    let memory = Memory::new(benchmark, seed);
    if !conditions.iter().any(|one| one.retrieves_by(Retriever::Dense)) {
        return Ok(memory);
    }
    Ok(memory.with_embedding(ByEmbedding::built_in(show)?))
}

/// True if the longest history with its longest question has at most `budget` tokens.
fn fits(
    dataset: &Dataset,
    builder: &PromptBuilder,
    (tokens, budget): (&dyn CountTokens, usize),
) -> anyhow::Result<bool> {
    let length = |case: &Case| -> usize {
        case.history.segments.iter().flat_map(|segment| &segment.turns).map(|turn| turn.content.len()).sum()
    };
    let mut longest: Option<Case> = None;
    for case in sound_cases(dataset)? {
        let case = case?;
        if longest.as_ref().is_none_or(|other| length(&case) > length(other)) {
            longest = Some(case);
        }
    }
    let Some(case) = longest else { return Ok(true) };
    let segments: usize = builder.segment_costs(&case.history, tokens)?.iter().sum();
    Ok(segments + builder.fixed_cost(&case.history, &case.probes, tokens)? <= budget)
}

/// Refuses templates that fail to render, before a run folder exists. Renders one case; returns its first prompt.
pub(super) fn check_templates(
    builder: &PromptBuilder,
    first: Option<&Case>,
) -> anyhow::Result<Option<Prompt>> {
    let _span = timing::tokenise();
    let probes = first.into_iter().flat_map(|case| case.probes.iter().map(move |probe| (case, probe)));
    // One probe per form: a long history may have a thousand questions.
    let mut forms = BTreeSet::new();
    let mut shown = None;
    for (case, probe) in probes.filter(|(_, probe)| forms.insert(&probe.form)) {
        let prompt = builder.build(&case.history, &case.evidence, probe)?;
        shown.get_or_insert(prompt);
    }
    Ok(shown)
}
