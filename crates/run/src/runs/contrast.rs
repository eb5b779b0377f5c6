//! Contrasts: log-probabilities of competing values directly after a prompt.
//!
//! Each other value is read at its first token that differs from the current value's, given the shared tokens before it.

use anyhow::bail;
use palimpsest_core::ablate::ValuePair;
use palimpsest_core::engine::ModelText;

use super::rows::{Contrast, ValueLogP};
use palimpsest_data::case::Contrasted;
use palimpsest_data::ground::order::sorted_unique;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContrastTokens {
    /// The current value at the token where the compared value differs.
    current: ValueToken,
    stale: Vec<ValueToken>,
    absent: Vec<ValueToken>,
    tokens: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ValueToken {
    text: String,
    /// Number of shared tokens before it.
    at: usize,
    token: u32,
}

impl ContrastTokens {
    /// Tokens of values after `prefix`; `None` if there is nothing to compare the current value with.
    pub fn new(values: &Contrasted, prefix: &str, text: &ModelText) -> anyhow::Result<Option<Self>> {
        let Contrasted { current, stale, absent } = values;
        let all: Vec<String> = [current].into_iter().chain(stale).chain(absent).cloned().collect();
        match text.option_tokens(prefix, &all)? {
            Some(tokens) => Self::of(values, &tokens),
            None => Ok(None),
        }
    }

    /// From tokenised values in the order current, stale, absent.
    pub fn of(values: &Contrasted, tokens: &[Vec<u32>]) -> anyhow::Result<Option<Self>> {
        let Contrasted { current, stale, absent } = values;
        let texts: Vec<&String> = [current].into_iter().chain(stale).chain(absent).collect();
        for (nth, one) in tokens.iter().enumerate() {
            if let Some(other) =
                (0..nth).find(|&other| one.starts_with(&tokens[other]) || tokens[other].starts_with(one))
            {
                bail!(
                    "the values {:?} and {:?} cannot be compared: the tokens of one begin the other's; give values that differ in a token",
                    texts[other],
                    texts[nth]
                );
            }
        }
        let Some((own, others)) = tokens.split_first() else { return Ok(None) };
        let differing = |(text, tokens): (&String, &Vec<u32>)| {
            let at = own.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            tokens.get(at).map(|&token| ValueToken { text: text.clone(), at, token })
        };
        let mut found: Vec<ValueToken> =
            stale.iter().chain(absent).zip(others).filter_map(differing).collect();
        let absent = found.split_off(stale.len().min(found.len()));
        let Some(against) = found.last().or(absent.first()) else { return Ok(None) };
        let Some(&token) = own.get(against.at) else { return Ok(None) };
        let current = ValueToken { text: current.clone(), at: against.at, token };
        Ok(Some(ContrastTokens { current, stale: found, absent, tokens: own.clone() }))
    }

    fn values(&self) -> impl Iterator<Item = &ValueToken> {
        std::iter::once(&self.current).chain(&self.stale).chain(&self.absent)
    }

    pub fn pair(&self) -> Option<ValuePair> {
        let against = self.stale.last().or(self.absent.first())?.token;
        let forced = self.tokens.get(..=self.current.at)?.into();
        Some(ValuePair { forced, against })
    }

    /// Distinct continuations that have to be scored.
    pub fn sequences(&self) -> Vec<Vec<u32>> {
        let of = |value: &ValueToken| {
            let before = self.tokens[..value.at].to_vec();
            let whole = [before.as_slice(), &[value.token]].concat();
            [before, whole]
        };
        sorted_unique(self.values().flat_map(of).filter(|tokens| !tokens.is_empty()))
    }

    /// The contrast from log-probabilities of [`Self::sequences`]; `None` if one is missing.
    pub fn of_scores(&self, scores: &[Option<f64>]) -> Option<Contrast> {
        let sequences = self.sequences();
        let score = |tokens: &[u32]| -> Option<f64> {
            if tokens.is_empty() {
                return Some(0.0);
            }
            let at = sequences.binary_search_by(|other| other.as_slice().cmp(tokens)).ok()?;
            scores.get(at).copied().flatten()
        };
        self.contrast(|value| {
            let before = &self.tokens[..value.at];
            Some(score(&[before, &[value.token]].concat())? - score(before)?)
        })
    }

    fn contrast(&self, log_p: impl Fn(&ValueToken) -> Option<f64>) -> Option<Contrast> {
        let read = |value: &ValueToken| {
            log_p(value).map(|log_p| ValueLogP { text: value.text.clone(), token: value.token, log_p })
        };
        let all = |values: &[ValueToken]| values.iter().map(read).collect::<Option<Vec<_>>>();
        let current = read(&self.current)?;
        let (mut earlier, mut absent) = (all(&self.stale)?, all(&self.absent)?.into_iter());
        let (stale, first) = (earlier.pop(), absent.next());
        let against = stale.as_ref().or(first.as_ref())?.log_p;
        Some(Contrast {
            value: current.log_p - against,
            current,
            stale,
            absent: first,
            earlier,
            others: absent.collect(),
        })
    }
}
