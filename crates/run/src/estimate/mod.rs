//! What a run will take, before it starts: `palimpsest run --estimate`, and of a model alone `palimpsest model plan` (`plan`).
//!
//! Opens the data as the run would, and cuts and tokenises a sample of its cases. Of a model that is here, `local` measures a short run
//! and extends it to the whole ([`crate::runs::forecast`]); of one on a card that is not here, `card` reckons with published rates
//! ([`crate::cards`]); of an endpoint, `endpoint` counts tokens and their price; `memory` tells what can be told of memory systems.
//! Writes nothing.

mod args;
mod card;
mod endpoint;
mod lengths;
mod local;
mod memory;
mod plan;
mod sample;

pub use args::EstimateArgs;
pub use lengths::{LengthCounter, group_by};
pub use plan::{PlanArgs, plan_text};

use crate::runs::setup::RunSpec;

/// Tells, in texts, what a run will take: its memory systems, as far as that can be told, then all else.
pub fn estimate(
    mut job: RunSpec,
    args: &EstimateArgs,
    tell: &dyn Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    args.check()?;
    job.checked()?;
    if let Some(systems) = memory::taken_out(&mut job)? {
        tell(&systems)?;
        if job.conditions.is_empty() {
            return Ok(());
        }
    }
    tell(&match args.card {
        Some(card) => card::text(&job, card)?,
        None if job.is_endpoint() => endpoint::text(args, &job)?,
        None => local::text(args, &job)?,
    })
}
