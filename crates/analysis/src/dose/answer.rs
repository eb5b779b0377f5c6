//! One answer of a dose run: its twin and the log-probabilities of values after the prompt.

use std::collections::BTreeMap;

use super::attention::Measured;
use crate::records::Record;
use palimpsest_data::benchmarks::dose::terms::{BLIND, CURRENT, EXPECTS, ITEM, SWEEP, TWIN, UPDATE, twin};
use palimpsest_run::runs::rows::{AnswerRow, ValueLogP};

/// `sweep` label of rows at the base level of every factor.
pub const BASE: &str = "base";

const FAMILY: &str = "family";

const EXACT: &str = "exact";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chosen {
    Current,
    First,
    Old,
    Absent,
}

impl Chosen {
    pub const ALL: [Chosen; 4] = [Chosen::Current, Chosen::First, Chosen::Old, Chosen::Absent];

    pub fn in_words(self) -> &'static str {
        match self {
            Chosen::Current => "the current value",
            Chosen::First => "the first",
            Chosen::Old => "another old one",
            Chosen::Absent => "one never given",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub item: String,
    pub family: String,
    pub probe: String,
    pub twin: (&'static str, &'static str),
    pub sweep: String,
    pub labels: BTreeMap<String, String>,
    /// log p(current value) - log p(contrasted value).
    pub contrast: f64,
    /// log p of all values over time, oldest first; the current value is last.
    pub chain: Vec<f64>,
    /// log p of values not in the history.
    pub absent: Vec<f64>,
    /// True if the correct answer names the current value.
    pub has_value: bool,
    /// True if the free answer names only the expected value; `None` without such a reading.
    pub exact: Option<bool>,
    pub attention: Measured,
    pub effects: BTreeMap<String, f64>,
}

impl Answer {
    /// Returns `None` without a contrast or a twin.
    pub(super) fn of(record: &Record<'_>, row: &AnswerRow) -> Option<Self> {
        let contrast = row.contrast.as_ref()?;
        let label = |name: &str| row.labels.get(name).cloned().unwrap_or_default();
        let old = contrast.earlier.iter().chain(&contrast.stale);
        let log_p = |value: &ValueLogP| value.log_p;
        Some(Answer {
            item: label(ITEM),
            family: label(FAMILY),
            probe: row.probe.clone(),
            twin: twin(&label(TWIN))?,
            sweep: Some(label(SWEEP)).filter(|sweep| !sweep.is_empty()).unwrap_or_else(|| BASE.to_owned()),
            labels: row.labels.clone(),
            contrast: contrast.value,
            chain: old.chain([&contrast.current]).map(log_p).collect(),
            absent: contrast.absent.iter().chain(&contrast.others).map(log_p).collect(),
            has_value: record.probe.judge.get(EXPECTS).is_none_or(|expects| expects == CURRENT),
            exact: record.verdicts.iter().rev().filter(|row| row.judge == EXACT).find_map(|row| row.correct),
            attention: Measured::default(),
            effects: BTreeMap::new(),
        })
    }

    pub fn is_update(&self) -> bool {
        self.twin.0 == UPDATE
    }

    /// True for a twin without the update and the value that it replaces.
    pub fn is_blind(&self) -> bool {
        self.twin.0 == BLIND
    }

    /// Most likely value; ties go to the first in [`Chosen::ALL`].
    pub fn chosen(&self) -> Chosen {
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let Some((current, old)) = self.chain.split_last() else { return Chosen::Absent };
        let (first, others) = old.split_at(old.len().min(1));
        let of = [*current, most(first), most(others), most(&self.absent)];
        let best = most(&of);
        let place = of.iter().position(|value| *value == best).unwrap_or(0);
        Chosen::ALL[place]
    }

    pub fn right(&self) -> f64 {
        f64::from(u8::from(self.chosen() == Chosen::Current))
    }

    pub fn chance(&self) -> f64 {
        1.0 / (self.chain.len() + self.absent.len()).max(1) as f64
    }

    pub fn updates(&self) -> usize {
        self.chain.len().saturating_sub(1)
    }
}
