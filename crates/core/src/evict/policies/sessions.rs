//! Whole sessions, the same for all layers and heads: they go one by one until the kept keys are at most the budget. Tokens outside
//! sessions always stay, also where they alone are more.
//!
//! - least-attended: by the attention that a session gets from the last 64 rows, over layers that evict and heads; the least goes first.
//! - oldest: by position.
//! - oracle: knows the evidence. Sessions without any go first, the oldest first, then those with evidence, the oldest first: what updates
//!   another goes last.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use super::super::collector::{Collector, Sums, evicting};
use super::super::policy::{LayerKeys, Policy};
use crate::model::DecoderSpec;
use crate::span::Span;
use crate::transfer;

/// Rows whose attention `least-attended` reads.
pub const ROWS: usize = 64;

pub struct Sessions {
    /// By key.
    stays: Vec<bool>,
}

impl Sessions {
    /// Evicts sessions in this order until at most `budget` of the first `at` keys stay.
    fn evicted(order: &[Range<usize>], at: usize, budget: usize) -> Self {
        let (mut stays, mut kept) = (vec![true; at], at);
        for session in order {
            if kept <= budget {
                break;
            }
            let keys = &mut stays[session.clone()];
            // Sessions may overlap.
            kept -= keys.iter().filter(|stays| **stays).count();
            keys.fill(false);
        }
        Sessions { stays }
    }

    pub fn oldest(spans: &[Span], at: usize, budget: usize) -> Self {
        Self::evicted(&sessions(spans, at), at, budget)
    }

    pub fn oracle(spans: &[Span], at: usize, budget: usize) -> Self {
        let mut order = sessions(spans, at);
        let is_evidence = |session: &Range<usize>| {
            let inside = |span: &&Span| span.start < session.end && session.start < span.end;
            spans.iter().filter(inside).any(|span| span.role.is_some())
        };
        order.sort_by_key(is_evidence);
        Self::evicted(&order, at, budget)
    }

    pub fn least_attended(
        spans: &[Span],
        at: usize,
        budget: usize,
        collector: &Collector,
        spec: &DecoderSpec,
    ) -> Result<Self> {
        let mut by_key = vec![0f64; at];
        for (layer, _) in evicting(spec) {
            if let Some(Sums::Weights(weights)) = collector.of(layer)? {
                let weights = transfer::fetch(&weights.sum(0)?)?;
                by_key.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += f64::from(weight));
            }
        }
        let mass = |session: &Range<usize>| by_key[session.clone()].iter().sum::<f64>();
        let mut order = sessions(spans, at);
        order.sort_by(|a, b| mass(a).total_cmp(&mass(b)));
        Ok(Self::evicted(&order, at, budget))
    }
}

/// The sessions' tokens before `at`, in order.
fn sessions(spans: &[Span], at: usize) -> Vec<Range<usize>> {
    let segments = spans.iter().filter(|span| span.segment().is_some());
    let before = segments.map(|span| span.start.min(at)..span.end.min(at));
    let mut sessions: Vec<Range<usize>> = before.filter(|session| !session.is_empty()).collect();
    sessions.sort_by_key(|session| session.start);
    sessions
}

impl Policy for Sessions {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let scores: Vec<f32> = self.stays.iter().map(|&stays| f32::from(u8::from(stays))).collect();
        Tensor::from_vec(scores, (1, self.stays.len()), &Device::Cpu)?.repeat((layer.spec.kv_heads, 1))
    }

    fn kept(&self, _budget: usize) -> usize {
        self.stays.iter().filter(|stays| **stays).count()
    }
}
