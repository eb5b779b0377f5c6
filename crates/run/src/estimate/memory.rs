//! Estimates of memory systems; only CUPMem's calls can be predicted.

use super::sample::{count_of_cases, sample};
use crate::memory::cupmem::cost::{CHARS_A_TOKEN, Rates, estimate};
use crate::memory::cupmem::{self, Settings};
use crate::progress::grouped;
use crate::runs::setup::{RunSpec, WrongUsage, sound_cases};

/// Removes the memory systems from a job and describes their cost as far as known.
pub(super) fn taken_out(job: &mut RunSpec) -> anyhow::Result<Option<String>> {
    let systems = std::mem::take(&mut job.memory).memory;
    if systems.is_empty() {
        return Ok(None);
    }
    let mut data = job.open()?;
    let all = std::mem::take(&mut data.all);
    let plan = job.plan(&data.dataset, all)?;
    let wanted = sample(&plan);
    let (mut sessions, mut chars, mut cases) = (0, 0, 0u32);
    for case in sound_cases(&data.dataset)? {
        let case = case?;
        if !wanted.iter().any(|planned| planned.case == case.id) {
            continue;
        }
        sessions += case.history.segments.len();
        let turns = case.history.segments.iter().flat_map(|segment| &segment.turns);
        chars += turns.map(|turn| turn.content.chars().count()).sum::<usize>();
        cases += 1;
    }
    let of_all = plan.len() as f64 / f64::from(cases.max(1));
    let probes: usize = plan.iter().map(|case| case.probes.len()).sum();
    let all_sessions = sessions as f64 * of_all;
    let mut lines = vec![format!(
        "memory systems: {} of about {} sessions in all, of {} tokens each (at {CHARS_A_TOKEN} characters a token)",
        count_of_cases(&plan),
        grouped(all_sessions.round() as u64),
        grouped((chars as f64 / CHARS_A_TOKEN / (sessions.max(1)) as f64).round() as u64)
    )];
    for system in &systems {
        let name = &system.name;
        let Some(words) = cupmem::words(&system.value) else {
            lines.push(format!(
                "{name}: its calls depend on its extractions; run one case with --limit 1, and calls.jsonl in memory/{name}/ counts them"
            ));
            continue;
        };
        let settings = Settings::parse(words).map_err(WrongUsage)?;
        let a_case = (sessions as f64 / f64::from(cases.max(1))).round() as usize;
        let a_session = chars as f64 / CHARS_A_TOKEN / sessions.max(1) as f64;
        let a_plan = (probes as f64 / plan.len().max(1) as f64).round() as usize;
        let one =
            estimate(&settings, a_case, a_session, a_plan, &Rates::default()).map_err(anyhow::Error::msg)?;
        let whole = |count: f64| grouped((count * plan.len() as f64).round() as u64);
        lines.push(format!(
            "{name}: about {} calls of {} prompt tokens in all, by assumed rates of extraction (docs/memory.md)",
            whole(one.total()),
            whole(one.prompt_tokens)
        ));
    }
    lines.push("The numbers below leave out the conditions of memory systems.".to_owned());
    Ok(Some(lines.join("\n")))
}
