//! Judging by scoring: writes the JSON reply up to each verdict and compares the probabilities of the allowed words there, so no verdict is
//! unparsable. Each probe is decided independently after the same prompt, whose KV cache is reused.

use std::collections::BTreeMap;

use super::reply::tidy;
use super::{Exchange, Instructions, JudgeError, Judged, NoVerdict, Reasons, Verdict};
use crate::chat::{Message, ScoringModel};
use palimpsest_data::benchmarks::{Said, VerdictKind};

/// Maximum tokens of a reason after the verdict.
const AFTER_TOKENS: usize = 40;
/// Maximum tokens of a reason before the verdict.
const BEFORE_TOKENS: usize = 120;

/// Words are scored with a leading space, as tokenised in JSON; p is their softmax. A tie of `true` and `false` counts as not correct,
/// other ties go to the first word. Exchanges without an answer are skipped.
pub fn judge_by_scoring(
    model: &mut dyn ScoringModel,
    messages: &[Message],
    exchanges: &[Exchange],
    instructions: &Instructions,
) -> Result<Judged, JudgeError> {
    let mut judged = Judged { verdicts: Vec::with_capacity(exchanges.len()), replies: Vec::new() };
    for exchange in exchanges {
        if exchange.answer.is_none() {
            judged.verdicts.push(Err(NoVerdict::NoAnswer));
            continue;
        }
        let (verdict, reply) = decide(model, messages, exchange, instructions)?;
        judged.verdicts.push(Ok(verdict));
        judged.replies.push(reply);
    }
    Ok(judged)
}

fn decide(
    model: &mut dyn ScoringModel,
    messages: &[Message],
    Exchange { probe, .. }: &Exchange,
    Instructions { verdict: kind, reasons, .. }: &Instructions,
) -> Result<(Verdict, String), JudgeError> {
    // A label has its own object; other verdicts are keyed by probe id.
    let (opening, closing) = match kind {
        VerdictKind::Label { .. } => ("{".to_owned(), "}"),
        _ => (format!("{{{}: {{", json_string(&probe.id)), "}}"),
    };
    let mut text = opening;
    let mut reason = String::new();
    if *reasons == Reasons::First {
        reason = written_reason(model, messages, &mut text, BEFORE_TOKENS)?;
        text.push_str(", ");
    }
    text.push_str(&format!("\"{}\":", kind.key()));
    let words = words(*kind, &probe.facets);
    let asked: Vec<&str> = words.iter().map(|(word, _)| word.as_str()).collect();
    let scores = model.score(messages, &text, &asked)?;
    if scores.len() != words.len() {
        return Err(NoVerdict::Scores { scores: scores.len(), words: words.len() }.into());
    }
    // One over one plus the others' odds against it.
    let against = |at: usize| {
        let others = scores.iter().enumerate().filter(|(other, _)| *other != at);
        others.map(|(_, other)| (other - scores[at]).exp()).sum::<f64>()
    };
    let probabilities: Vec<f64> = (0..scores.len()).map(|at| 1.0 / (1.0 + against(at))).collect();
    if probabilities.iter().any(|p| !p.is_finite()) {
        return Err(NoVerdict::NotFinite(scores).into());
    }
    let (chosen, probability) = match kind {
        // Probability of the first word ("right"), whichever is chosen.
        VerdictKind::Correct | VerdictKind::Label { .. } => {
            (usize::from(probabilities[0] <= 0.5), probabilities[0])
        }
        _ => {
            let at = (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            let at = at.unwrap_or_default();
            (at, probabilities[at])
        }
    };
    let (word, said) = &words[chosen];
    text.push_str(word);
    if *reasons == Reasons::Last {
        text.push_str(", ");
        reason = written_reason(model, messages, &mut text, AFTER_TOKENS)?;
    }
    text.push_str(closing);
    let verdict = Verdict {
        said: said.clone(),
        probability: Some(probability),
        reason: (!reason.is_empty()).then_some(reason),
    };
    Ok((verdict, text))
}

fn written_reason(
    model: &mut dyn ScoringModel,
    messages: &[Message],
    text: &mut String,
    most: usize,
) -> Result<String, JudgeError> {
    text.push_str("\"reason\": \"");
    let reason = clean_reason(&model.continue_from(messages, text, "\"", most)?);
    text.push_str(json_string(&reason).get(1..).unwrap_or("\""));
    Ok(reason)
}

/// Words of a verdict kind as JSON with a leading space, and their meaning.
fn words(kind: VerdictKind, facets: &BTreeMap<String, String>) -> Vec<(String, Said)> {
    let words: Vec<(String, Said)> = match kind {
        VerdictKind::Correct => [true, false].map(|right| (right.to_string(), Said::Correct(right))).into(),
        VerdictKind::Label { right, wrong } => [(right, true), (wrong, false)]
            .map(|(word, is_right)| (json_string(word), Said::Correct(is_right)))
            .into(),
        VerdictKind::Score { .. } => {
            let scores = kind.scores(facets).into_iter();
            scores.map(|score| (score.to_string(), Said::Score(f64::from(score)))).collect()
        }
        VerdictKind::Choice { of } => {
            of.iter().map(|word| (json_string(word), Said::Choice((*word).to_owned()))).collect()
        }
    };
    words.into_iter().map(|(word, said)| (format!(" {word}"), said)).collect()
}

/// One line, without control characters and backslashes that would break the JSON.
fn clean_reason(text: &str) -> String {
    tidy(&text.replace(|c: char| c.is_control() || c == '\\', " "))
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
