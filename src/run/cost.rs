//! Costs of answers and verdicts: tokens, seconds, and joules where the machine tells (STALE, appendix C).
//!
//! Owns `costs.jsonl`, whose rows differ from run to run. Everything else in a run folder is the same for the same identity, so
//! costs have a file of their own, which is no part of the identity and is only ever appended to. Written by the runner and
//! the judge through the run store; read by the commands and the report.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::energy::{JoulesFrom, Spent};

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
    /// Energy of the processors and of the run's cards during these seconds, of all processes; null where the machine does not tell.
    pub joules: Option<f64>,
    /// Where the energy was read: `rapl`, `nvml` or `rapl_and_nvml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_from: Option<JoulesFrom>,
}

impl Cost {
    /// A cost of these stretches; tokens are the caller's to fill in.
    pub fn of(prefill: Spent, decode: Spent) -> Self {
        let joules = prefill.joules.zip(decode.joules).filter(|((_, a), (_, b))| a == b);
        Cost {
            prefill_seconds: Some(prefill.seconds),
            decode_seconds: decode.seconds,
            joules: joules.map(|((a, _), (b, _))| a + b),
            joules_from: joules.map(|((_, from), _)| from),
            ..Cost::default()
        }
    }

    /// A cost of a call in which prefill and decoding are not told apart.
    pub fn of_call(spent: Spent) -> Self {
        Cost {
            decode_seconds: spent.seconds,
            joules: spent.joules.map(|(joules, _)| joules),
            joules_from: spent.joules.map(|(_, from)| from),
            ..Cost::default()
        }
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
    /// Joules a case; `None` where a row has none, or where rows have theirs from different sources.
    pub joules: Option<f64>,
    pub joules_from: Option<JoulesFrom>,
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
        let joules_from = rows.first().and_then(|row| row.cost.joules_from);
        let of_one_source = |row: &&CostRow| row.cost.joules.filter(|_| row.cost.joules_from == joules_from);
        let joules: Option<Vec<f64>> = rows.iter().map(of_one_source).collect();
        (cases > 0).then(|| MeanCost {
            cases,
            rows: rows.len(),
            tokens_computed: amount(|cost| Some(cost.tokens_computed? as f64)),
            tokens_reused: amount(|cost| Some(cost.tokens_reused? as f64)),
            tokens_generated: amount(|cost| Some(cost.tokens_generated? as f64)),
            prefill_seconds: prefill.known(),
            decode_seconds: if prefill.untold > 0 { decode.told + prefill.told } else { decode.told },
            joules_from: joules_from.filter(|_| joules.is_some()),
            joules: joules.map(|joules| joules.iter().sum::<f64>() / cases as f64),
        })
    }
}

impl fmt::Display for MeanCost {
    /// `12,345 tokens prefilled (and 24,000 reused), 210 generated, 83.2 s (prefill 71.0, decode 12.2), 5,300 J (RAPL)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |n: f64| crate::progress::grouped(n.round() as u64);
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
                write!(f, ", {:.1} s (prefill {prefill:.1}, decode {decode:.1})", prefill + decode)?;
            }
            None => write!(f, ", {decode:.1} s")?,
        }
        match self.joules.zip(self.joules_from) {
            Some((joules, from)) => write!(f, ", {} J ({from})", whole(joules)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_cases_and_unknown_joules_stay_unknown() {
        let row = |case: &str, judge: Option<&str>, computed, joules| CostRow {
            case: case.to_owned(),
            judge: judge.map(str::to_owned),
            cost: Cost {
                tokens_computed: Some(computed),
                tokens_reused: Some(10),
                tokens_generated: None,
                prefill_seconds: Some(1.5),
                decode_seconds: 0.5,
                joules,
                joules_from: joules.map(|_| JoulesFrom::Rapl),
            },
            ..CostRow::default()
        };
        let rows =
            [row("a", None, 100, Some(4.0)), row("a", None, 20, Some(1.0)), row("b", None, 60, Some(7.0))];
        let mean = MeanCost::of_answers(&rows).unwrap();
        assert_eq!((mean.cases, mean.rows, mean.joules), (2, 3, Some(6.0)));
        let tokens = [mean.tokens_computed, mean.tokens_reused, mean.tokens_generated].map(Amount::known);
        assert_eq!(tokens, [Some(90.0), Some(15.0), None]);
        assert_eq!((mean.prefill_seconds, mean.decode_seconds), (Some(2.25), 0.75));
        assert_eq!(
            mean.to_string(),
            "90 tokens prefilled (and 15 reused), those generated not told, 3.0 s (prefill 2.2, decode 0.8), 6 J (RAPL)"
        );
        let mut others = rows.clone();
        others[2].cost.joules_from = Some(JoulesFrom::Nvml);
        let mixed = MeanCost::of_answers(&others).unwrap();
        assert_eq!((mixed.joules, mixed.joules_from), (None, None), "sums of different things");
        assert_eq!(MeanCost::of_judges(&rows), None);
        let rows = [row("a", None, 1, Some(4.0)), row("a", None, 1, None), row("a", Some("j"), 1, None)];
        assert_eq!(MeanCost::of_answers(&rows).unwrap().joules, None);
        assert_eq!(MeanCost::of_judges(&rows).unwrap().rows, 1);
    }

    /// An endpoint whose replies have `usage: null`, and one that has it in one reply of two.
    #[test]
    fn tokens_that_are_not_told_are_not_zero() {
        let row = |computed, generated| CostRow {
            case: "a".to_owned(),
            cost: Cost {
                tokens_computed: computed,
                tokens_generated: generated,
                ..Cost::of_call(Spent { seconds: 1.25, joules: None })
            },
            ..CostRow::default()
        };
        let words = |rows: &[CostRow]| MeanCost::of_answers(rows).unwrap().to_string();
        assert_eq!(words(&[row(None, None), row(None, None)]), "tokens not told, 2.5 s");
        assert_eq!(
            words(&[row(Some(1200), Some(7)), row(None, None)]),
            "at least 1,200 tokens prefilled, at least 7 generated, 2.5 s"
        );
        assert_eq!(words(&[row(Some(0), Some(7))]), "0 tokens prefilled, 7 generated, 1.2 s");
        assert_eq!(words(&[row(None, Some(7))]), "7 tokens generated, those prefilled not told, 1.2 s");
    }

    #[test]
    fn a_row_is_written_flat_with_null_for_unknown_joules_and_read_back() {
        let cost = Cost { tokens_computed: Some(3), ..Cost::of(Spent::default(), Spent::default()) };
        let row = CostRow { case: "a".to_owned(), probes: vec!["p".to_owned()], cost, ..CostRow::default() };
        let both = Spent { joules: Some((2.0, JoulesFrom::RaplAndNvml)), ..Spent::default() };
        let told = serde_json::to_string(&Cost::of(both, both)).unwrap();
        assert!(told.contains("\"joules\":4.0,\"joules_from\":\"rapl_and_nvml\""), "{told}");
        let text = serde_json::to_string(&row).unwrap();
        for part in ["\"tokens_computed\":3", "\"tokens_reused\":null", "\"joules\":null"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(serde_json::from_str::<CostRow>(&text).unwrap(), row);
    }
}
