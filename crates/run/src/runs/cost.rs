//! Costs of answers and verdicts: tokens and seconds (STALE, appendix C).
//!
//! Owns `costs.jsonl`, the only file that differs between runs of one identity; append-only. Energy in rows of older versions is ignored.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One line of `costs.jsonl`: cost of one answer or judge call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CostRow {
    pub case: String,
    /// Ids of the covered probes: one for an answer, several for a judge call.
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
    /// Prefilled prompt tokens; for an endpoint all prompt tokens, if reported.
    pub tokens_computed: Option<usize>,
    /// Prompt tokens reused from the KV cache; null if unknown.
    pub tokens_reused: Option<usize>,
    pub tokens_generated: Option<usize>,
    /// Prefill seconds, including recording of attention; null if not measured separately (`decode_seconds` is then the whole call).
    pub prefill_seconds: Option<f64>,
    /// Decode seconds; a batch is split by generated tokens.
    pub decode_seconds: f64,
}

impl Cost {
    pub fn of(prefill_seconds: f64, decode_seconds: f64) -> Self {
        Cost { prefill_seconds: Some(prefill_seconds), ..Cost::of_call(decode_seconds) }
    }

    /// Cost of a call without separate prefill time.
    pub fn of_call(seconds: f64) -> Self {
        Cost { decode_seconds: seconds, ..Cost::default() }
    }
}

/// Mean per case of a value that rows may lack: a lower bound unless all rows have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    /// Sum over the rows that have it, divided by the number of cases.
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

    /// `12,345`, or `at least 12,345`; `None` if no row has a value.
    fn words(self) -> Option<String> {
        let whole = crate::progress::grouped(self.told.round() as u64);
        match (self.rows, self.untold) {
            (0, _) => None,
            (_, 0) => Some(whole),
            _ => Some(format!("at least {whole}")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanCost {
    pub cases: usize,
    pub rows: usize,
    pub tokens_computed: Amount,
    pub tokens_reused: Amount,
    pub tokens_generated: Amount,
    /// Prefill seconds per case; `None` if a row lacks it.
    pub prefill_seconds: Option<f64>,
    /// Decode seconds per case, including calls without separate prefill time.
    pub decode_seconds: f64,
}

impl MeanCost {
    pub fn of_answers(rows: &[CostRow]) -> Option<Self> {
        MeanCost::of(rows.iter().filter(|row| row.judge.is_none()))
    }

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
