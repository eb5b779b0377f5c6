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
            // No branch is planned with more than a context, and one context is the plan's own.
            let count = count.max(tokens.div_ceil(request.context.max(1)));
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

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::attention::AttentionKernel;
    use crate::engine::device::DeviceName;
    use crate::engine::memory_plan::ObservedSpans;

    /// SmolLM2-135M: layers, keys and values, key/value heads, head width, bytes of an f32.
    const BYTES_A_TOKEN: u64 = 30 * 2 * 3 * 64 * 4;

    fn fitted(serving: Serving, free: u64) -> (Limits, MemoryPlan) {
        let Some(Ok(description)) = ModelDescription::released("smollm2-135m") else {
            panic!("no such model")
        };
        let request = MemoryRequest {
            context: 8192,
            chunk: 256,
            logits: 256,
            dtype: DType::F32,
            kernel: AttentionKernel::Auto,
            devices: vec![DeviceName::Cpu],
            branches: Branches::default(),
            observed: ObservedSpans::default(),
            kept: None,
        };
        let (limits, branches) = serving.fitted(&description, &request, &[Some(free)]);
        let request = MemoryRequest { branches, ..request };
        (limits, MemoryPlan::new(&description, &request, &[Some(free)]))
    }

    #[test]
    fn every_token_that_a_server_may_hold_is_in_the_plan_and_the_most_that_fits_is_taken() {
        let mut before = usize::MAX;
        for (free, parallel) in [(64 << 30, 16), (4 << 30, 8), (2560 << 20, 2)] {
            let (limits, plan) = fitted(Serving::default(), free);
            assert_eq!(limits.parallel, parallel, "{free} bytes");
            assert!(limits.tokens < before && limits.tokens >= 8192 + Limits::BESIDE, "{free} bytes");
            before = limits.tokens;
            let held = limits.tokens as u64 * BYTES_A_TOKEN;
            assert!(plan.cache() >= held && plan.cache() < held + (held >> 6), "{} of {held}", plan.cache());
            assert!(plan.total() <= free / 4 * 3, "{} of {free}", plan.total());
        }
    }

    #[test]
    fn what_is_asked_for_is_planned_whether_or_not_it_fits() {
        let asked = Serving { parallel: Some(3), tokens: Some(100_000) };
        let (limits, plan) = fitted(asked, 1 << 30);
        assert_eq!((limits.parallel, limits.tokens), (3, 100_000));
        assert_eq!(plan.fits(&[Some(1 << 30)]), Some(false));
        let least = Serving { parallel: Some(1), tokens: Some(1) };
        assert_eq!(fitted(least, 64 << 30).0.tokens, 8192 + Limits::BESIDE);
    }
}
