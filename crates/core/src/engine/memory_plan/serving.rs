//! Memory plan of a server: concurrent answers, cached prompts, and request buffers.

use super::{Branches, MemoryPlan, MemoryRequest};
use crate::engine::thread::Limits;
use crate::model::{ModelDescription, cache_bytes};

/// Requested server limits; `None` is chosen by available memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Serving {
    /// Maximum concurrent answers.
    pub parallel: Option<usize>,
    /// Maximum cached tokens of prompts and answers together.
    pub tokens: Option<usize>,
    /// Total bytes, model included; default three quarters of free memory.
    pub memory: Option<u64>,
}

/// Server bytes besides model, caches and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerMemory {
    /// All requests: bodies, parsed data, queues, recordings and replies.
    pub requests: u64,
    /// Tokenisation of texts.
    pub tokenising: u64,
    /// Total of the plan.
    pub planned: u64,
    /// Share of it that is independent of load: weights and process.
    pub fixed: u64,
    /// Bytes per cached token.
    pub token: u64,
    /// Activations of a forward pass.
    pub activations: u64,
}

/// (concurrent answers, cached contexts, MiB of requests): the first that fits is the default.
const USUAL: [(usize, usize, u64); 5] = [(16, 8, 2048), (8, 8, 1024), (8, 4, 512), (4, 4, 256), (2, 2, 128)];

/// Minimum: one request body of maximum size, parsed.
const LEAST: (usize, usize, u64) = (1, 1, 96);

/// Copies of windows and states: one per answer and three per cached prompt (latest and two marks).
const STATES: usize = 4;

/// Cached prompts if all layers see the whole context: then only tokens take memory.
const MANY_PROMPTS: usize = 256;

/// Embedder batch, grammar tables, threads, and 16 MiB of cached masses (`serve::SCORE_CACHE_BYTES`). Measured, rounded up.
const BESIDE: u64 = 368 << 20;

/// Tokenisation bytes per token. Measured (95 to 115), rounded up.
pub const TOKENISING: u64 = 160;

/// Bounds of tokenisation memory; enough for the longest text that fits.
const TOKENISED: std::ops::RangeInclusive<u64> = 64 << 20..=512 << 20;

/// Assumed bytes of text per token if the tokeniser does not tell.
const USUAL_TOKEN: usize = 16;

/// For models opened without a server plan.
impl Default for ServerMemory {
    fn default() -> Self {
        let (requests, tokenising) = (USUAL[0].2 << 20, *TOKENISED.end());
        ServerMemory { requests, tokenising, planned: 0, fixed: 0, token: 0, activations: 0 }
    }
}

impl ServerMemory {
    /// Request, tokenisation and fixed server bytes.
    pub fn beside(&self) -> u64 {
        self.requests + self.tokenising + BESIDE
    }
}

impl Serving {
    /// Fits a server plan into free device memory, with contexts of `request.context` tokens of at most `longest` bytes each. Defaults use
    /// at most three quarters of free memory. If nothing fits, the plan serves one answer at a time.
    pub fn fitted(
        self,
        description: &ModelDescription,
        request: &MemoryRequest,
        longest: Option<usize>,
        free: &[Option<u64>],
    ) -> (Limits, Branches, ServerMemory) {
        let Serving { parallel, tokens, .. } = self;
        let context = request.context.saturating_add(Limits::BESIDE);
        let free = self.within(free);
        let states = description.spec.layers.iter().any(|layer| {
            layer.mixer.state().is_some() || layer.attention().is_some_and(|a| a.window.is_some())
        });
        let longest = longest.unwrap_or(USUAL_TOKEN).saturating_mul(request.context) as u64;
        let tokenising = longest.saturating_mul(TOKENISING).clamp(*TOKENISED.start(), *TOKENISED.end());
        let planned = |usual: (usize, usize, u64)| {
            let parallel = parallel.unwrap_or(usual.0).max(1);
            let tokens = tokens.unwrap_or(context.saturating_mul(usual.1)).max(context);
            let prompts = if states { parallel } else { MANY_PROMPTS };
            let count = if states { parallel * STATES } else { 1 };
            // A branch is at most one context; the plan already has one.
            let count = count.max(tokens.div_ceil(request.context.max(1)));
            let each = (tokens - request.context).div_ceil(count);
            let limits = Limits { parallel, tokens, prompts };
            let memory = ServerMemory { requests: usual.2 << 20, tokenising, ..ServerMemory::default() };
            (limits, Branches { count, tokens: each }, memory)
        };
        let with = |(limits, branches, memory): (Limits, Branches, ServerMemory)| {
            let beside = memory.beside();
            let request = MemoryRequest { branches, beside, ..request.clone() };
            let plan = MemoryPlan::new(description, &request, &free);
            let layers = description.spec.layers.iter();
            let token = layers.filter(|layer| layer.attention().is_some_and(|a| a.window.is_none()));
            let token =
                token.filter_map(|layer| cache_bytes(&layer.mixer, 1, 1, &request.formats())).sum::<usize>();
            let process = plan.shares.iter().map(|share| share.process).sum::<u64>();
            let memory = ServerMemory {
                planned: plan.total(),
                fixed: plan.weights() + process - memory.requests - memory.tokenising,
                token: token as u64,
                activations: plan.activations(),
                ..memory
            };
            (plan.fits(&free) != Some(false), (limits, branches, memory))
        };
        let found = USUAL.into_iter().map(|usual| with(planned(usual))).find(|(fits, _)| *fits);
        found.unwrap_or_else(|| with(planned(LEAST))).1
    }

    /// Free memory to plan with, per device: the requested amount, at most what is free; default three quarters.
    pub fn within(self, free: &[Option<u64>]) -> Vec<Option<u64>> {
        let of = |free: &Option<u64>| match self.memory {
            Some(memory) => Some(free.map_or(memory, |free| free.min(memory))),
            None => free.map(|free| free / 4 * 3),
        };
        free.iter().map(of).collect()
    }

    /// Hard memory limit per device: the requested amount, or all free memory.
    pub fn bounded(self, free: &[Option<u64>]) -> Vec<Option<u64>> {
        if self.memory.is_some() { self.within(free) } else { free.to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::engine::device::DeviceName;

    /// SmolLM2-135M: layers, k and v, kv_heads, head_dim, bytes of f32.
    const BYTES_A_TOKEN: u64 = 30 * 2 * 3 * 64 * 4;

    fn fitted(serving: Serving, free: u64) -> (Limits, MemoryPlan) {
        let description = ModelDescription::released("smollm2-135m").unwrap().unwrap();
        let request = MemoryRequest::new(8192, DType::F32, vec![DeviceName::Cpu]);
        let request = MemoryRequest { chunk: 256, logits: 256, ..request };
        let (limits, branches, memory) = serving.fitted(&description, &request, Some(16), &[Some(free)]);
        let beside = memory.beside();
        let request = MemoryRequest { branches, beside, ..request };
        let plan = MemoryPlan::new(&description, &request, &[Some(free)]);
        assert_eq!(memory.planned, plan.total());
        (limits, plan)
    }

    #[test]
    fn every_token_that_a_server_may_hold_is_in_the_plan_and_the_most_that_fits_is_taken() {
        let mut before = usize::MAX;
        for (free, parallel) in [(64 << 30, 16), (5 << 30, 8), (3 << 30, 2)] {
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
        let asked = Serving { parallel: Some(3), tokens: Some(100_000), memory: None };
        let (limits, plan) = fitted(asked, 1 << 30);
        assert_eq!((limits.parallel, limits.tokens), (3, 100_000));
        assert_eq!(plan.fits(&[Some(1 << 30)]), Some(false));
        let least = Serving { parallel: Some(1), tokens: Some(1), memory: None };
        assert_eq!(fitted(least, 64 << 30).0.tokens, 8192 + Limits::BESIDE);
    }

    #[test]
    fn what_memory_was_said_is_what_is_planned_within_whatever_is_free() {
        let said = |memory| Serving { memory: Some(memory), ..Serving::default() };
        let [less, more] = [3_u64, 8].map(|gib| {
            let (limits, plan) = fitted(said(gib << 30), 64 << 30);
            assert!(plan.total() <= gib << 30, "{} of {gib} GiB", plan.total());
            limits.tokens
        });
        assert!(less < more);
        let (_, plan) = fitted(said(512 << 20), 64 << 30);
        assert_eq!(plan.fits(&said(512 << 20).bounded(&[Some(64 << 30)])), Some(false));
        assert_eq!(said(64 << 30).bounded(&[Some(4 << 30)]), vec![Some(4 << 30)]);
        assert_eq!(Serving::default().bounded(&[Some(4 << 30)]), vec![Some(4 << 30)]);
    }
}
