//! Questions that a knock-out skips because their prompts lack one of its spans. Found and reported before the run.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::reading::sound_cases;
use super::usage::wrong;
use crate::memory::Memory;
use crate::progress::{note, texts};
use crate::runs::condition::Condition;
use crate::runs::context_budget::{BudgetError, BudgetedCase};
use crate::runs::plan::PlannedCase;
use palimpsest_core::attention::Knockout;
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::Retriever;
use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::case::Case;

/// Maximum number of cases listed by name.
const NAMED: usize = 10;

type SpansOf = HashMap<String, Vec<Span>>;

#[derive(Default)]
struct Lacking {
    looked_at: usize,
    lacking: usize,
    cases: BTreeSet<String>,
    names: BTreeSet<String>,
    known: Option<String>,
}

/// Marks questions of `plan` whose prompts lack a span of a condition's knock-out, and reports them. `prompts` truncates as the run does.
/// Embedding retrieval and memory systems are not run twice: the run itself finds such questions ([`tell_of_run`]).
pub(super) fn leave_out(
    plan: &mut [PlannedCase],
    conditions: &[Condition],
    (dataset, seed, is_part): (&Dataset, u64, bool),
    prompts: impl Fn(&Case) -> Result<Vec<BudgetedCase>, BudgetError>,
) -> anyhow::Result<()> {
    let blocked: Vec<(&Condition, &Knockout)> = (conditions.iter())
        .filter(|one| is_known_before(one))
        .filter_map(|one| Some((one, one.knockout.as_ref()?)))
        .collect();
    if blocked.is_empty() {
        return Ok(());
    }
    let mut memory = Memory::new(dataset.benchmark(), seed);
    let bar = texts(plan.len() as u64, "looking for the spans of knock-outs");
    let places: HashMap<String, usize> =
        plan.iter().enumerate().map(|(at, case)| (case.case.clone(), at)).collect();
    let mut found: BTreeMap<String, Lacking> = BTreeMap::new();
    for case in sound_cases(dataset)? {
        let case = case?;
        let Some(planned) = places.get(&case.id).and_then(|&at| plan.get_mut(at)) else { continue };
        bar.inc(1);
        // Conditions with the same view share the truncation.
        let mut shown: Option<(&Condition, SpansOf)> = None;
        for &(condition, knockout) in &blocked {
            let spans = match shown.take() {
                Some((other, spans)) if other.shows_as(condition) => spans,
                _ => spans_of(&mut memory, &case, condition, &prompts),
            };
            let all = found.entry(knockout.to_string()).or_default();
            for probe in &mut planned.probes {
                let Some(spans) = spans.get(&probe.id) else { continue };
                all.looked_at += 1;
                let missing = knockout.missing(spans);
                if !missing.is_empty() {
                    all.lacking += 1;
                    all.cases.insert(case.id.clone());
                    all.names.extend(missing.into_iter().cloned());
                    all.known.get_or_insert_with(|| labels(spans));
                    probe.left_out.push(condition.name.clone());
                }
            }
            shown = Some((condition, spans));
        }
    }
    bar.finish_and_clear();
    for (knockout, all) in found.into_iter().filter(|(_, all)| all.lacking > 0) {
        tell(&knockout, &all, is_part)?;
    }
    Ok(())
}

fn is_known_before(condition: &Condition) -> bool {
    !condition.retrieves_by(Retriever::Dense) && condition.memory.is_none()
}

/// Reports the questions of `plan` that the run itself left out.
pub(super) fn tell_of_run(plan: &[PlannedCase], conditions: &[Condition]) -> anyhow::Result<()> {
    let mut found: BTreeMap<String, Lacking> = BTreeMap::new();
    for condition in conditions.iter().filter(|one| !is_known_before(one)) {
        let Some(knockout) = &condition.knockout else { continue };
        let all = found.entry(knockout.to_string()).or_default();
        all.names.insert("span that it names".to_owned());
        for case in plan {
            let lacking = case.probes.iter().filter(|probe| !probe.is_asked_under(&condition.name)).count();
            all.looked_at += case.probes.len();
            all.lacking += lacking;
            all.cases.extend((lacking > 0).then(|| case.case.clone()));
        }
    }
    found.iter().filter(|(_, all)| all.lacking > 0).try_for_each(|(knockout, all)| tell(knockout, all, true))
}

/// Reports skipped questions; fails if none is left under the knock-out.
fn tell(knockout: &str, all: &Lacking, is_part: bool) -> anyhow::Result<()> {
    let Lacking { looked_at, lacking, cases, names, known } = all;
    let list = |names: &BTreeSet<String>| {
        let first: Vec<String> = names.iter().take(NAMED).cloned().collect();
        let more = names.len().saturating_sub(NAMED);
        let more =
            if more > 0 { format!(" and {more} more (left_out in plan.jsonl)") } else { String::new() };
        format!("{}{more}", first.join(", "))
    };
    let spans = list(names);
    if lacking == looked_at && !is_part {
        return wrong(format!(
            "--knockout '{knockout}': no prompt has a span called `{spans}`, or one with that role; one has {}",
            known.as_deref().unwrap_or_default()
        ));
    }
    let (n, of) = (cases.len(), list(cases));
    let cases = if n == 1 { "case" } else { "cases" };
    note(format_args!(
        "note: --knockout '{knockout}': {lacking} of {looked_at} questions have no {spans} in their prompts and are left out under it \
         ({n} {cases}: {of})"
    ));
    Ok(())
}

fn spans_of(
    memory: &mut Memory,
    case: &Case,
    condition: &Condition,
    prompts: &impl Fn(&Case) -> Result<Vec<BudgetedCase>, BudgetError>,
) -> SpansOf {
    let mut spans = SpansOf::new();
    for view in condition.views(memory, case) {
        if view.refused.is_some() {
            continue;
        }
        for part in prompts(&view.case).unwrap_or_default() {
            let probes = view.case.probes.get(part.probes).unwrap_or_default();
            for (probe, prompt) in probes.iter().zip(part.prompts) {
                spans.insert(probe.id.clone(), prompt.spans.into_iter().chain(prompt.overlays).collect());
            }
        }
    }
    spans
}

fn labels(spans: &[Span]) -> String {
    let numbered: Vec<&Span> = spans.iter().filter(|span| span.segment().is_some()).collect();
    let mut names: BTreeSet<String> =
        spans.iter().filter(|span| span.segment().is_none()).map(|span| span.label.clone()).collect();
    names.extend(spans.iter().filter_map(|span| span.role.clone()));
    let mut names: Vec<String> = names.into_iter().collect();
    if let (Some(first), Some(last)) = (numbered.first(), numbered.last()) {
        names.push(format!("{} to {}", first.label, last.label));
    }
    names.join(", ")
}
