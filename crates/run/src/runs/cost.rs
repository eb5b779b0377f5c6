//! Costs of answers and verdicts: tokens and seconds (STALE, appendix C).
//!
//! Owns `costs.jsonl`, whose rows differ from run to run. Everything else in a run folder is the same for the same identity, so
//! costs have a file of their own, which is no part of the identity and is only ever appended to. Rows of older versions also
//! have the energy, which is ignored. Written by the runner and the judge through the run store; read by the commands and the report.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One line of `costs.jsonl`: what one answer, or one call of a judge, cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CostRow {
    pub case: String,
    /// The ids of the probes that it was spent on: one of an answer, all that a judge's call covers.
    pub probes: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    #[serde(flatten)]
    pub cost: Cost,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Tokens of the prompt that were computed; of an endpoint, all of them, where it says.
    pub tokens_computed: Option<usize>,
    /// Tokens of the prompt that were in the KV cache, from a prompt that begins with the same ones; null where it is not told.
    pub tokens_reused: Option<usize>,
    pub tokens_generated: Option<usize>,
    /// Seconds of the prefill, recording attention included; null where it is not told apart, and the whole call is in `decode_seconds`.
    pub prefill_seconds: Option<f64>,
    /// Seconds of decoding. Of a batch, in proportion to the tokens of each answer.
    pub decode_seconds: f64,
}

impl Cost {
    /// A cost in seconds; tokens are the caller's to fill in.
    pub fn of(prefill_seconds: f64, decode_seconds: f64) -> Self {
        Cost { prefill_seconds: Some(prefill_seconds), ..Cost::of_call(decode_seconds) }
    }

    /// A cost of a call in which prefill and decoding are not told apart.
    pub fn of_call(seconds: f64) -> Self {
        Cost { decode_seconds: seconds, ..Cost::default() }
    }
}

/// An amount a case, of which rows may not tell their part: the least that it is, unless all tell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    /// The sum of what rows tell, over all cases.
    pub told: f64,
    pub rows: usize,
    pub untold: usize,
}

impl Amount {
    fn of(parts: impl Iterator<Item = Option<f64>>, cases: usize) -> Self {
        let mut amount = Amount { told: 0.0, rows: 0, untold: 0 };
        for part in parts {
            amount.told += part.unwrap_or(0.0) / cases as f64;
            amount.rows += usize::from(part.is_some());
            amount.untold += usize::from(part.is_none());
        }
        amount
    }

    pub fn known(self) -> Option<f64> {
        (self.untold == 0).then_some(self.told)
    }

    /// `12,345`, or `at least 12,345`; `None` where no row tells anything.
    fn words(self) -> Option<String> {
        let whole = crate::progress::grouped(self.told.round() as u64);
        match (self.rows, self.untold) {
            (0, _) => None,
            (_, 0) => Some(whole),
            _ => Some(format!("at least {whole}")),
        }
    }
}

/// The mean cost of a case: all that was spent on answers, over the cases that it was spent on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanCost {
    pub cases: usize,
    pub rows: usize,
    pub tokens_computed: Amount,
    pub tokens_reused: Amount,
    pub tokens_generated: Amount,
    /// Seconds of prefill a case; `None` where a row does not tell it apart.
    pub prefill_seconds: Option<f64>,
    /// Seconds of decoding a case, and of calls that do not tell prefill and decoding apart.
    pub decode_seconds: f64,
}

impl MeanCost {
    /// The mean over what was spent on answers; `None` where nothing was.
    pub fn of_answers(rows: &[CostRow]) -> Option<Self> {
        MeanCost::of(rows.iter().filter(|row| row.judge.is_none()))
    }

    /// The mean over what was spent on judges; `None` where nothing was.
    pub fn of_judges(rows: &[CostRow]) -> Option<Self> {
        MeanCost::of(rows.iter().filter(|row| row.judge.is_some()))
    }

    fn of<'a>(rows: impl Iterator<Item = &'a CostRow>) -> Option<Self> {
        let rows: Vec<&CostRow> = rows.collect();
        let cases = rows.iter().map(|row| row.case.as_str()).collect::<BTreeSet<_>>().len();
        let amount = |of: fn(&Cost) -> Option<f64>| Amount::of(rows.iter().map(|row| of(&row.cost)), cases);
        let prefill = amount(|cost| cost.prefill_seconds);
        let decode = amount(|cost| Some(cost.decode_seconds));
        (cases > 0).then(|| MeanCost {
            cases,
            rows: rows.len(),
            tokens_computed: amount(|cost| Some(cost.tokens_computed? as f64)),
            tokens_reused: amount(|cost| Some(cost.tokens_reused? as f64)),
            tokens_generated: amount(|cost| Some(cost.tokens_generated? as f64)),
            prefill_seconds: prefill.known(),
            decode_seconds: if prefill.untold > 0 { decode.told + prefill.told } else { decode.told },
        })
    }
}

impl fmt::Display for MeanCost {
    /// `12,345 tokens prefilled (and 24,000 reused), 210 generated, 83.2 s (prefill 71.0, decode 12.2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reused = self.tokens_reused.words().map_or(String::new(), |n| format!(" (and {n} reused)"));
        match (self.tokens_computed.words(), self.tokens_generated.words()) {
            (None, None) => f.write_str("tokens not told")?,
            (Some(computed), Some(generated)) => {
                write!(f, "{computed} tokens prefilled{reused}, {generated} generated")?;
            }
            (Some(computed), None) => {
                write!(f, "{computed} tokens prefilled{reused}, those generated not told")?;
            }
            (None, Some(generated)) => write!(f, "{generated} tokens generated, those prefilled not told")?,
        }
        let decode = self.decode_seconds;
        match self.prefill_seconds {
            Some(prefill) => {
                write!(f, ", {:.1} s (prefill {prefill:.1}, decode {decode:.1})", prefill + decode)
            }
            None => write!(f, ", {decode:.1} s"),
        }
    }
}
