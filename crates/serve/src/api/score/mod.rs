//! Document scores: how much an answer rests on each document, with rank and head agreement.
//!
//! [`request`] resolves documents and question; a neutral request over the same documents ([`neutral`]) calibrates the masses
//! ([`definition`]). [`Scoring`] is a request's state until its answer ends.

mod definition;
mod neutral;
mod request;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

pub use neutral::{NeutralCache, SCORE_CACHE_BYTES};
pub use request::{of_chat, of_text};

use definition::{Ranked, ranking};
use neutral::{NeutralMasses, NeutralPrompt};

use super::error::ApiError;
use super::heads::Heads;
use super::json::shown;
use super::model::Pairs;
use super::prompt::TokenPrompt;
use palimpsest_core::attention::Masses;
use palimpsest_core::engine::thread::EngineThread;
use palimpsest_core::model::DecoderSpec;
use palimpsest_core::span::Span;

#[derive(Debug, Clone)]
pub struct Scoring {
    pub question: String,
    documents: Vec<Span>,
    heads: Heads,
    pairs: Pairs,
    neutral: NeutralPrompt,
    masses: Option<Arc<NeutralMasses>>,
}

impl Scoring {
    /// `documents` and `question` must be spans of both prompts.
    pub fn new(
        (documents, question): (&[String], &str),
        heads: &Heads,
        prompt: &TokenPrompt,
        neutral: TokenPrompt,
        spec: &DecoderSpec,
    ) -> Result<Self, ApiError> {
        let mut of_prompt = spans_of(prompt, documents)?;
        of_prompt.sort_by_key(|span| (span.start, span.end));
        let documents: Vec<String> = of_prompt.iter().map(|span| span.label.clone()).collect();
        let n = prompt.tokens.len();
        let first = of_prompt.iter().map(|span| span.start).min().unwrap_or(0);
        let sees = |layer: usize| {
            let window = spec.layers.get(layer).and_then(|layer| layer.attention()).map(|spec| spec.window);
            window.is_some_and(|window| window.is_none_or(|window| window >= n - first))
        };
        let all = || {
            let layers = spec.layers.iter().enumerate();
            layers.flat_map(|(i, layer)| {
                (0..layer.attention().map_or(0, |spec| spec.heads)).map(move |h| (i, h))
            })
        };
        let pairs: Pairs = match heads {
            Heads::These { pairs, .. } => pairs.iter().copied().filter(|&(layer, _)| sees(layer)).collect(),
            Heads::All | Heads::Mean => all().filter(|&(layer, _)| sees(layer)).collect(),
        };
        if pairs.is_empty() {
            let reason = format!(
                "has no head that sees all documents at once, from the first one to the end of the prompt {} tokens later: their \
                 layers have shorter windows or no weights of single keys; name other heads, or shorten the documents",
                n - first
            );
            return Err(ApiError::at("palimpsest.score", reason));
        }
        let of_neutral = spans_of(&neutral, &documents)?;
        let row = spans_of(&neutral, &[question.to_owned()])?;
        spans_of(prompt, &[question.to_owned()])?;
        Ok(Scoring {
            question: question.to_owned(),
            documents: of_prompt,
            heads: heads.clone(),
            pairs,
            neutral: NeutralPrompt::new(neutral.tokens, row, of_neutral),
            masses: None,
        })
    }

    pub async fn settle(
        &mut self,
        cache: &NeutralCache,
        engine: &EngineThread,
        cancelled: Arc<AtomicBool>,
    ) -> Result<(), ApiError> {
        if self.masses.is_none() {
            self.masses = Some(cache.masses(engine, cancelled, &self.neutral).await?);
        }
        Ok(())
    }

    pub fn json(&self, masses: &Masses, keys: &[Span]) -> Value {
        let of_row = |label: &str| -> Value {
            let row = masses.rows.iter().position(|row| row.label == label);
            let (Some(row), Some(neutral)) = (row, &self.masses) else { return json!([]) };
            let column = |document: &Span| keys.iter().position(|key| key.label == document.label);
            let columns: Vec<usize> = self.documents.iter().filter_map(column).collect();
            let place = |layer: usize| masses.layers.iter().position(|&of| of == layer);
            let asked = |&(layer, head): &(usize, usize)| -> Option<Vec<f64>> {
                let at = |&k: &usize| masses.mass.get([place(layer)?, head, row, k]).map(|&x| f64::from(x));
                columns.iter().map(at).collect()
            };
            let heads = self.pairs.iter().filter_map(|pair| Some((asked(pair)?, neutral.of(*pair)?)));
            let heads: Vec<_> = heads.collect();
            let ranked = ranking(&heads, self.documents.len());
            let entries = self.documents.iter().zip(ranked).map(|(document, Ranked { score, rank, sure })| {
                json!({"label": document.label, "score": score, "rank": rank, "sure": sure})
            });
            entries.collect()
        };
        json!({"heads": self.heads.json(), "question": of_row(&self.question), "answer": of_row("answer")})
    }
}

/// Spans by name; refuses empty ones.
fn spans_of(prompt: &TokenPrompt, labels: &[String]) -> Result<Vec<Span>, ApiError> {
    let find = |label: &String| {
        let found = prompt.tiles.iter().chain(&prompt.overlays).find(|span| span.label == *label);
        match found {
            Some(span) if !span.is_empty() => Ok(span.clone()),
            Some(_) => {
                let reason = format!("names the span {label:?}, which holds no token; leave it out");
                Err(ApiError::at("palimpsest.score", reason))
            }
            None => {
                let reason = format!("names the span {}, and the prompt has none of that name", shown(label));
                Err(ApiError::at("palimpsest.score", reason))
            }
        }
    };
    labels.iter().map(find).collect()
}
