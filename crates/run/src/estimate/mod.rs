//! Estimates a run before it starts: `palimpsest run --estimate`, and `palimpsest model plan` (`plan`) for a model alone.
//!
//! Tokenises a sample of the cases. `local` measures a short run and extrapolates ([`crate::runs::forecast`]); `card` uses published rates
//! ([`crate::cards`]); `endpoint` counts tokens and price; `memory` covers memory systems. Writes nothing.

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

/// The estimate as text: memory systems first, then the rest.
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
