//! Document scores: how much an answer rests on each document, with rank and head agreement.
//!
//! A neutral request over the same documents calibrates the masses. It is read after the scored one, so that the documents' KV cache is
//! reused, and kept for further questions about them. A head pays a_d to document d and A to all; in the neutral request b_d and B. Its
//! contribution is a_d - b_d A / B: mass beyond the neutral distribution scaled to the same total (calibration by a null question, QRHead,
//! arXiv 2506.09944). The score is the mean over heads; scores sum to 0. [`Scoring`] is a request's state until its answer ends.

use std::sync::{Arc, Mutex, PoisonError};

use ndarray::Array4;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::attention_request::{AttentionRequest, Heads, RangeRequest};
use super::engine::ServedEngine;
use super::error::{ApiError, ensure};
use super::json::shown;
use super::model::{Pairs, ServedModel};
use super::prompt::{TokenPrompt, text_spans};
use super::sent::{Part, Sent};
use palimpsest_core::attention::Masses;
use palimpsest_core::engine::thread::Scope;
use palimpsest_core::engine::{Event, Observe, Request, Rows, Task};
use palimpsest_core::span::Span;
use palimpsest_core::text::Speaker;

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
        (model, asked): (&ServedModel, &AttentionRequest),
        (documents, question): (&[String], &str),
        prompt: &TokenPrompt,
        neutral: TokenPrompt,
    ) -> Result<Self, ApiError> {
        // Heads of the score, else of the request, else retrieval heads, else all.
        let named = Some(&asked.heads).filter(|heads| matches!(heads, Heads::These { .. }));
        let heads = asked.score.as_ref().and_then(|score| score.heads.as_ref()).or(named).cloned();
        let heads = heads.or_else(|| Heads::retrieval(model)).unwrap_or(Heads::All);
        let spec = &model.spec;
        let mut of_prompt = spans_of(prompt, documents)?;
        of_prompt.sort_by_key(|span| (span.start, span.end));
        let documents: Vec<String> = of_prompt.iter().map(|span| span.label.clone()).collect();
        let n = prompt.tokens.len();
        let first = of_prompt.iter().map(|span| span.start).min().unwrap_or(0);
        let sees = |&(layer, _): &(usize, usize)| {
            let window = spec.layers.get(layer).and_then(|layer| layer.attention()).map(|spec| spec.window);
            window.is_some_and(|window| window.is_none_or(|window| window >= n - first))
        };
        let pairs: Pairs = match &heads {
            Heads::These { pairs, .. } => pairs.iter().copied().filter(sees).collect(),
            Heads::All | Heads::Mean => {
                let of_layer = |layer: usize| {
                    let heads = spec.layers[layer].attention().map_or(0, |spec| spec.heads);
                    (0..heads).map(move |head| (layer, head))
                };
                (0..spec.layers.len()).flat_map(of_layer).filter(sees).collect()
            }
        };
        let reason = format_args!(
            "has no head that sees all documents at once, from the first one to the end of the prompt {} tokens later: their \
             layers have shorter windows or no weights of single keys; name other heads, or shorten the documents",
            n - first
        );
        ensure(!pairs.is_empty(), "palimpsest.score", reason)?;
        let of_neutral = spans_of(&neutral, &documents)?.into_iter();
        let row = spans_of(&neutral, &[question.to_owned()])?;
        spans_of(prompt, &[question.to_owned()])?;
        Ok(Scoring {
            question: question.to_owned(),
            documents: of_prompt,
            heads,
            pairs,
            neutral: NeutralPrompt {
                tokens: neutral.tokens,
                question: row,
                // Overlays as plain spans.
                documents: of_neutral.map(|span| Span::new(span.label.clone(), span.range())).collect(),
            },
            masses: None,
        })
    }

    pub async fn settle(
        &mut self,
        cache: &NeutralCache,
        engine: &ServedEngine,
        scope: Scope,
    ) -> Result<(), ApiError> {
        if self.masses.is_none() {
            self.masses = Some(cache.masses((engine, scope), &self.neutral).await?);
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
        let reason = match prompt.spans().find(|span| span.label == *label) {
            Some(span) if !span.is_empty() => return Ok(span.clone()),
            Some(_) => format!("names the span {label:?}, which holds no token; leave it out"),
            None => format!("names the span {}, and the prompt has none of that name", shown(label)),
        };
        Err(ApiError::at("palimpsest.score", reason))
    };
    labels.iter().map(find).collect()
}

/// Document masses of one head: request, neutral request.
type HeadMasses = (Vec<f64>, Vec<f64>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Ranked {
    score: f64,
    rank: usize,
    /// Head agreement, 0.5 to 1, that the document outranks the next one: share of positive differences in the sum of absolute differences.
    /// The last document is compared with the previous one, a single one with zero.
    sure: f64,
}

fn ranking(heads: &[HeadMasses], documents: usize) -> Vec<Ranked> {
    let beyond: Vec<Vec<f64>> = heads.iter().map(|(asked, neutral)| beyond(asked, neutral)).collect();
    let n = beyond.len().max(1) as f64;
    let score = |d: usize| beyond.iter().filter_map(|head| head.get(d)).sum::<f64>() / n;
    let scores: Vec<f64> = (0..documents).map(score).collect();
    let mut order: Vec<usize> = (0..documents).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut ranked = vec![Ranked { score: 0.0, rank: 0, sure: 0.5 }; documents];
    for (place, &d) in order.iter().enumerate() {
        let (before, after) = match (order.get(place + 1), place.checked_sub(1).and_then(|p| order.get(p))) {
            (Some(&next), _) => (Some(d), Some(next)),
            (None, Some(&previous)) => (Some(previous), Some(d)),
            (None, None) => (Some(d), None),
        };
        let of = |head: &[f64], d: Option<usize>| d.and_then(|d| head.get(d).copied()).unwrap_or(0.0);
        let differences = beyond.iter().map(|head| of(head, before) - of(head, after));
        ranked[d] = Ranked { score: scores[d], rank: place + 1, sure: agreement(differences) };
    }
    ranked
}

/// a_d - b_d A / B; for a single document the plain difference.
fn beyond(asked: &[f64], neutral: &[f64]) -> Vec<f64> {
    let (all, usual): (f64, f64) = (asked.iter().sum(), neutral.iter().sum());
    let scale = match asked.len() {
        0 | 1 => 1.0,
        _ if usual > 0.0 => all / usual,
        _ => 0.0,
    };
    asked.iter().zip(neutral).map(|(a, b)| a - b * scale).collect()
}

/// Maximum difference of masses between chunkings of a prompt.
const NOISE: f64 = 1e-6;

/// Positive part of the sum of absolute differences; 0.5 if there are none.
fn agreement(differences: impl Iterator<Item = f64>) -> f64 {
    let differences = differences.filter(|d| d.abs() > NOISE);
    let (above, all) = differences.fold((0.0, 0.0), |(above, all), d| (above + d.max(0.0), all + d.abs()));
    if all > 0.0 { above / all } else { 0.5 }
}

pub const SCORE_CACHE_BYTES: usize = 16 << 20;

const NEUTRAL: &str = "N/A";

/// SHA-256 of a scope and of a prompt's tokens and spans.
type Key = [u8; 32];

#[derive(Debug, Clone)]
pub struct NeutralPrompt {
    pub tokens: Vec<u32>,
    pub question: Vec<Span>,
    pub documents: Vec<Span>,
}

impl NeutralPrompt {
    fn digest(&self, scope: Scope) -> Key {
        let spans = self.question.iter().chain(&self.documents);
        let numbers = spans.flat_map(|span| [span.start as u32, span.end as u32]);
        let count = self.documents.len() as u32;
        let numbers = [count].into_iter().chain(numbers).chain(self.tokens.iter().copied());
        let bytes = scope.0.into_iter().chain(numbers.flat_map(u32::to_le_bytes));
        Sha256::digest(bytes.collect::<Vec<u8>>()).into()
    }
}

#[derive(Debug)]
pub struct NeutralMasses {
    layers: Vec<usize>,
    /// [layers, heads, 1, documents]; the row is the question.
    mass: Array4<f32>,
}

impl NeutralMasses {
    pub fn of(&self, (layer, head): (usize, usize)) -> Option<Vec<f64>> {
        let layer = self.layers.iter().position(|&of| of == layer)?;
        let documents = self.mass.len_of(ndarray::Axis(3));
        (0..documents).map(|d| self.mass.get([layer, head, 0, d]).map(|&x| f64::from(x))).collect()
    }

    fn bytes(&self) -> usize {
        self.mass.len() * size_of::<f32>()
    }
}

/// LRU cache; the most recent entry is last. Entries are found in their own scope only: the time of a reply would tell of other clients'
/// documents.
#[derive(Debug, Default)]
pub struct NeutralCache(Mutex<Vec<(Key, Arc<NeutralMasses>)>>);

impl NeutralCache {
    /// Masses of the question row, cached or of a prefill.
    pub async fn masses(
        &self,
        (engine, scope): (&ServedEngine, Scope),
        prompt: &NeutralPrompt,
    ) -> Result<Arc<NeutralMasses>, ApiError> {
        let digest = prompt.digest(scope);
        if let Some(known) = self.get(&digest) {
            return Ok(known);
        }
        let rows = Rows { spans: prompt.question.clone(), ..Rows::default() };
        let observe = Observe { rows, keys: prompt.documents.clone(), ..Observe::default() };
        let request = Request::of(prompt.tokens.clone(), observe, Task::Read);
        let masses = engine.results(scope, request, || {
            |event: Event| match event {
                Event::Done(measured) => Some(Ok(measured.masses)),
                _ => None,
            }
        });
        let Masses { layers, mass, .. } = masses.await?.pop().ok_or_else(ApiError::left)?;
        let masses = Arc::new(NeutralMasses { layers, mass });
        self.put(&digest, Arc::clone(&masses));
        Ok(masses)
    }

    fn get(&self, digest: &Key) -> Option<Arc<NeutralMasses>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(of, _)| of == digest)?;
        let found = kept.remove(at);
        let masses = Arc::clone(&found.1);
        kept.push(found);
        Some(masses)
    }

    fn put(&self, digest: &Key, masses: Arc<NeutralMasses>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(of, _)| of != digest);
        kept.push((*digest, masses));
        let mut bytes: usize = kept.iter().map(|(_, masses)| masses.bytes()).sum();
        while bytes > SCORE_CACHE_BYTES && !kept.is_empty() {
            bytes -= kept.remove(0).1.bytes();
        }
    }
}

const QUESTION: &str = "question";

/// Makes a prompt of messages.
type Make<'a> = dyn Fn(&[Sent], &AttentionRequest) -> Result<TokenPrompt, ApiError> + 'a;

/// Score of a conversation, if requested. `make` builds the neutral prompt.
pub fn of_chat(
    asked: &AttentionRequest,
    (model, sent, prompt): (&ServedModel, &[Sent], &TokenPrompt),
    make: &Make<'_>,
) -> Result<Option<Scoring>, ApiError> {
    let Some(score) = &asked.score else { return Ok(None) };
    // 1. Question: by name, else the last part of the last user message.
    let parts = || {
        sent.iter().enumerate().flat_map(|(message, one)| {
            one.parts.iter().enumerate().map(move |(nth, part)| (message, nth, one.turn.role, part))
        })
    };
    let wanted = score.question.as_deref().unwrap_or(QUESTION);
    let by_name = parts().find(|(.., part)| part.label == wanted);
    let of_user = || parts().rfind(|(_, _, role, _)| *role == Speaker::User);
    let missing = || match &score.question {
        None => ApiError::at("palimpsest.score", "needs a question, and there is no message of the user's"),
        Some(_) => no_question(wanted, "part of a message"),
    };
    let question = by_name.or_else(|| of_user().filter(|_| score.question.is_none()));
    let (at, nth, _, question) = question.ok_or_else(missing)?;

    // 2. Documents: other user parts, and named parts of other roles except the assistant.
    let mut documents = score.documents.clone();
    if documents.is_empty() {
        let holds =
            |part: &Part| prompt.tiles.iter().any(|span| span.label == part.label && !span.is_empty());
        let is_document = |role: Speaker, part: &Part| {
            let by_name = part.named && role != Speaker::Assistant;
            part.label != question.label && (role == Speaker::User || by_name) && holds(part)
        };
        let own = parts().filter(|(_, _, role, part)| is_document(*role, part));
        documents.clone_from(&prompt.documents);
        documents.extend(own.map(|(.., part)| part.label.clone()));
    }
    check_documents(&documents, &question.label)?;

    // 3. The neutral prompt.
    let mut neutral_sent = sent.to_vec();
    let text = &mut neutral_sent[at].parts[nth].text;
    *text = neutral_of(text);
    let mut neutral_asked = asked.clone();
    neutral_asked.ranges.retain(|range| (range.message, range.part.unwrap_or(0)) != (Some(at), nth));
    let neutral = make(&neutral_sent, &neutral_asked)?;
    Scoring::new((model, asked), (&documents, &question.label), prompt, neutral).map(Some)
}

/// Score of a text, if requested; documents and question are ranges.
pub fn of_text(
    asked: &AttentionRequest,
    (model, text, prompt): (&ServedModel, &str, &TokenPrompt),
) -> Result<Option<Scoring>, ApiError> {
    let Some(score) = &asked.score else { return Ok(None) };
    let wanted = score.question.as_deref().unwrap_or(QUESTION);
    let question = asked.ranges.iter().find(|range| range.label == wanted);
    let question = question.ok_or_else(|| no_question(wanted, "range of `palimpsest.spans`"))?;
    let mut documents = score.documents.clone();
    if documents.is_empty() {
        let others = asked.ranges.iter().filter(|range| range.label != wanted);
        documents.extend(others.map(|range| range.label.clone()));
    }
    check_documents(&documents, wanted)?;
    let (start, end) = (question.start, question.end);
    let characters = |from: usize, to: usize| text.chars().skip(from).take(to - from).collect::<String>();
    let new = neutral_of(&characters(start, end));
    let longer = new.chars().count();
    let moved = |at: usize| if at >= end { at - end + start + longer } else { at };
    let outside = |range: &&RangeRequest| range.label == wanted || range.end <= start || range.start >= end;
    let ranges = asked.ranges.iter().filter(outside).map(|range| RangeRequest {
        start: moved(range.start),
        end: moved(range.end),
        ..range.clone()
    });
    let mut neutral_asked = asked.clone();
    neutral_asked.ranges = ranges.collect();
    let neutral_text = format!("{}{new}{}", characters(0, start), characters(end, usize::MAX));
    let neutral = text_spans(&model.text.tokenizer, &neutral_text, &neutral_asked)?;
    Scoring::new((model, asked), (&documents, wanted), prompt, neutral).map(Some)
}

/// The text of a null question, between the white space of the question.
fn neutral_of(text: &str) -> String {
    text.replacen(text.trim(), NEUTRAL, 1)
}

fn no_question(label: &str, of: &str) -> ApiError {
    let reason = format!(": no {of} is called {}; name the one that asks", shown(label));
    ApiError::at("palimpsest.score.question", reason)
}

fn check_documents(documents: &[String], question: &str) -> Result<(), ApiError> {
    let field = "palimpsest.score.documents";
    if documents.is_empty() {
        let message = "`palimpsest.score` finds no documents beside the question; send them as parts of messages of their own, and \
                       name them with `span`, or list spans under documents";
        return Err(ApiError::field(field, message));
    }
    let is_question = documents.iter().any(|label| label == question);
    ensure(!is_question, field, "names the question itself; leave it out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_contradict_each_other_leave_a_rank_unsure() {
        let neutral = vec![0.25, 0.25];
        let heads = [(vec![0.4, 0.1], neutral.clone()), (vec![0.15, 0.35], neutral)];
        let ranked = ranking(&heads, 2);
        // 0.3 against 0.2.
        assert!(ranked.iter().all(|document| (document.sure - 0.6).abs() < 1e-9), "{ranked:?}");
        assert_eq!((ranked[0].rank, ranked[1].rank), (1, 2));
        assert_eq!(ranking(&[], 2)[0].sure, 0.5);
        // Differences below the noise are ignored.
        let alike = ranking(&[(vec![0.3, 0.3 + 1e-8], vec![0.2, 0.2])], 2);
        assert_eq!(alike[0].sure, 0.5);
        let single = ranking(&[(vec![0.3], vec![0.1])], 1);
        assert!((single[0].score - 0.2).abs() < 1e-12 && single[0].sure == 1.0);
    }

    #[test]
    fn kept_masses_are_those_used_last_within_their_bytes() {
        let cache = NeutralCache::default();
        let numbers = SCORE_CACHE_BYTES / size_of::<f32>() / 3;
        let masses = || Arc::new(NeutralMasses { layers: vec![0], mass: Array4::zeros((1, 1, 1, numbers)) });
        for key in [[0; 32], [1; 32], [2; 32]] {
            cache.put(&key, masses());
        }
        assert!(cache.get(&[0; 32]).is_some());
        cache.put(&[3; 32], masses());
        assert!(cache.get(&[1; 32]).is_none());
        assert!([[0; 32], [2; 32], [3; 32]].iter().all(|key| cache.get(key).is_some()));
        let huge = Array4::zeros((1, 1, 1, 4 * numbers));
        cache.put(&[4; 32], Arc::new(NeutralMasses { layers: vec![0], mass: huge }));
        assert!(cache.get(&[4; 32]).is_none(), "one that does not fit is not kept");
    }

    #[test]
    fn masses_are_those_of_one_scope() {
        let [span, question] = [Span::new("a", 0..2), Span::new("question", 2..3)];
        let prompt = NeutralPrompt { tokens: vec![1, 2, 3], question: vec![question], documents: vec![span] };
        let digest = |scope| prompt.digest(Scope([scope; 32]));
        assert!(digest(0) == digest(0) && digest(0) != digest(1));
    }
}
