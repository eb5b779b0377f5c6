//! Decides if a shown memory was attended and used.
//!
//! *Attended*: the density of the query's attention to its span exceeds its baseline's and is among the [`HIGHEST`] of the shown memories.
//! The baseline is the mean of the next-ranked memory on either side that is known to carry no evidence. *Used*: blocking its span from the
//! question on costs more log-probability per token than 95% of the answer's controls, or changes its most likely tokens.

use std::collections::BTreeMap;

use super::fact::Known;
use palimpsest_data::ground::numbers::quantile;
use palimpsest_data::statistics::control::are_apart;
use palimpsest_run::runs::causes::rows::{CauseLine, CauseRow};
use palimpsest_run::runs::rows::AnswerKey;

pub const HIGHEST: usize = 3;
pub const CONTROLS: f64 = 0.95;

/// `plain` tells which memories are known to carry no evidence. Unknown if the density or its baseline was not measured.
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

#[derive(Debug, Clone, Default)]
pub struct Effects {
    blocked: BTreeMap<AnswerKey, Vec<CauseRow>>,
    controls: BTreeMap<AnswerKey, Vec<CauseRow>>,
}

impl Effects {
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

    /// Unknown if not measured, or if nothing changed and there is no control. The last measurement counts.
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
