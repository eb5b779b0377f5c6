//! Attended and used: a memory that was shown, as the model read it.
//!
//! *Attended*: the density of the query's attention to its span is above its baseline's and among the [`HIGHEST`] of the memories shown.
//! The baseline of a memory are the memories next in rank, one on either side, that are known to carry no evidence: their mean.
//! *Used*: hiding its span from the question on costs the answer more log-probability a token than 95% of the answer's control stretches
//! do, or changes its likeliest tokens.

use std::collections::BTreeMap;

use super::fact::Known;
use palimpsest_data::ground::numbers::quantile;
use palimpsest_data::statistics::control::are_apart;
use palimpsest_run::runs::causes::rows::{CauseLine, CauseRow};
use palimpsest_run::runs::rows::AnswerKey;

/// Memories among whose densities an attended one is.
pub const HIGHEST: usize = 3;
/// The quantile of the controls that an effect must exceed.
pub const CONTROLS: f64 = 0.95;

/// Is the memory at `rank` attended, by all memories' densities and by whether each is known to carry no evidence? Unknown where its density
/// or its baseline was not measured.
pub fn attended(rank: usize, densities: &[(usize, f64)], plain: impl Fn(usize) -> bool) -> Known {
    let Some(&(_, own)) = densities.iter().find(|(at, _)| *at == rank) else { return Known::Unknown };
    let before = densities.iter().rev().find(|(at, _)| *at < rank && plain(*at));
    let after = densities.iter().find(|(at, _)| *at > rank && plain(*at));
    let baseline: Vec<f64> = before.into_iter().chain(after).map(|(_, density)| *density).collect();
    if baseline.is_empty() {
        return Known::Unknown;
    }
    let mean = baseline.iter().sum::<f64>() / baseline.len() as f64;
    let higher = densities.iter().filter(|(_, other)| *other > own).count();
    Known::of(own > mean && higher < HIGHEST)
}

/// The effects of hidden spans on the answers of a run.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    blocked: BTreeMap<AnswerKey, Vec<CauseRow>>,
    controls: BTreeMap<AnswerKey, Vec<CauseRow>>,
}

impl Effects {
    /// Effects among the lines of a run: of spans that were hidden at all layers.
    pub fn of(lines: Vec<CauseLine>) -> Self {
        let mut effects = Effects::default();
        for line in lines {
            match line {
                CauseLine::Blocked(row) if row.layers.is_none() => {
                    effects.blocked.entry(row.answer.clone()).or_default().push(row);
                }
                CauseLine::Control(row) if row.layers.is_none() => {
                    effects.controls.entry(row.answer.clone()).or_default().push(row);
                }
                _ => {}
            }
        }
        effects
    }

    /// Is the span used by an answer? Unknown where its effect was not measured, and where it changed nothing and there is no control to
    /// compare its cost with. Of several measurements the last counts.
    pub fn used(&self, answer: &AnswerKey, span: &str) -> Known {
        let rows = self.blocked.get(answer).map(Vec::as_slice).unwrap_or_default();
        let Some(row) = rows.iter().rev().find(|row| row.span == span) else { return Known::Unknown };
        if row.effect.changed {
            return Known::Yes;
        }
        let range = |tokens: [usize; 2]| tokens[0]..tokens[1];
        let apart = |control: &&CauseRow| {
            control.seed == row.seed && are_apart(&range(control.tokens), &range(row.tokens))
        };
        let controls = self.controls.get(answer).map(Vec::as_slice).unwrap_or_default().iter().filter(apart);
        let mut drops: Vec<f64> =
            controls.map(|control| control.effect.log_p_drop).filter(|drop| drop.is_finite()).collect();
        if drops.is_empty() || !row.effect.log_p_drop.is_finite() {
            return Known::Unknown;
        }
        drops.sort_by(f64::total_cmp);
        Known::of(row.effect.log_p_drop > quantile(&drops, CONTROLS))
    }
}
