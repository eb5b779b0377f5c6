//! How many requests a server takes at once and how much it keeps of prompts: what fits.

use super::{Branches, MemoryPlan, MemoryRequest};
use crate::engine::thread::Limits;
use crate::model::ModelDescription;

/// What is asked of a server; what is not said is what fits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Serving {
    /// Most answers that are generated together.
    pub parallel: Option<usize>,
    /// Most tokens whose keys are held, of prompts and answers together.
    pub tokens: Option<usize>,
}

/// Answers that are generated together, and contexts whose keys are held: the first of these that fits, unless told otherwise.
const USUAL: [(usize, usize); 5] = [(16, 8), (8, 8), (8, 4), (4, 4), (2, 2)];

/// What windows and states there are for each answer: its own; and of a prompt that is kept its latest and two marks.
const STATES: usize = 4;

/// Prompts that are kept of models whose layers all see the whole context: their number takes no memory, only their tokens do.
const MANY_PROMPTS: usize = 256;

impl Serving {
    /// What is planned for a server of `request.context` tokens, on devices of so many free bytes, and how that enters the plan.
    /// Nobody else's memory is taken unasked: what is not said takes no more than three quarters of what is free. Where nothing
    /// fits, what is left is one answer after the other.
    pub fn fitted(
        self,
        description: &ModelDescription,
        request: &MemoryRequest,
        free: &[Option<u64>],
    ) -> (Limits, Branches) {
        let Serving { parallel, tokens } = self;
        let context = request.context.saturating_add(Limits::BESIDE);
        let free: Vec<Option<u64>> = free.iter().map(|free| free.map(|free| free / 4 * 3)).collect();
        let states = description.spec.layers.iter().any(|layer| {
            layer.delta_net().is_some() || layer.attention().is_some_and(|a| a.window.is_some())
        });
        let planned = |usual: (usize, usize)| {
            let parallel = parallel.unwrap_or(usual.0).max(1);
            let tokens = tokens.unwrap_or(context.saturating_mul(usual.1)).max(context);
            let prompts = if states { parallel } else { MANY_PROMPTS };
            let count = if states { parallel * STATES } else { 1 };
            // One context is the plan's own.
            let each = (tokens - request.context).div_ceil(count);
            (Limits { parallel, tokens, prompts }, Branches { count, tokens: each })
        };
        let fits = |(_, branches): &(Limits, Branches)| {
            let request = MemoryRequest { branches: *branches, ..request.clone() };
            MemoryPlan::new(description, &request, &free).fits(&free) != Some(false)
        };
        USUAL.into_iter().map(planned).find(fits).unwrap_or_else(|| planned((1, 1)))
    }
}
