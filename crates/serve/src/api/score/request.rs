//! Resolves documents, question and heads of a score, and builds its neutral prompt.

use super::super::attention_request::{AttentionRequest, RangeRequest, ScoreRequest};
use super::super::error::ApiError;
use super::super::heads::Heads;
use super::super::json::shown;
use super::super::model::ServedModel;
use super::super::prompt::TokenPrompt;
use super::super::sent::Sent;
use super::Scoring;
use super::neutral;
use palimpsest_core::text::Speaker;

const QUESTION: &str = "question";

type MakePrompt<'a, T> = dyn Fn(&T, &AttentionRequest) -> Result<TokenPrompt, ApiError> + 'a;

/// Heads of the score, else of the request, else retrieval heads, else all.
fn heads_of(score: &ScoreRequest, asked: &AttentionRequest, model: &ServedModel) -> Heads {
    let named = match &asked.heads {
        Heads::These { .. } => Some(asked.heads.clone()),
        Heads::Mean | Heads::All => None,
    };
    score.heads.clone().or(named).or_else(|| Heads::retrieval(model)).unwrap_or(Heads::All)
}

/// Score of a conversation, if requested. `make` builds the neutral prompt.
pub fn of_chat(
    asked: &AttentionRequest,
    (model, sent, prompt): (&ServedModel, &[Sent], &TokenPrompt),
    make: &MakePrompt<'_, [Sent]>,
) -> Result<Option<Scoring>, ApiError> {
    let Some(score) = &asked.score else { return Ok(None) };
    // 1. Question: by name, else the last part of the last user message.
    let labels = labels_of(sent);
    let wanted = score.question.as_deref().unwrap_or(QUESTION);
    let by_name = labels.iter().find(|part| part.label == wanted);
    let last = || labels.iter().rev().find(|part| part.role == Speaker::User);
    let question = match (by_name, &score.question) {
        (Some(part), _) => part,
        (None, None) => last().ok_or_else(|| {
            ApiError::at("palimpsest.score", "needs a question, and there is no message of the user's")
        })?,
        (None, Some(_)) => return Err(no_question(wanted, "part of a message")),
    };

    // 2. Documents: other user parts, and named parts of other roles except the assistant.
    let documents = match score.documents.as_slice() {
        named @ [_, ..] => named.to_vec(),
        [] => {
            let is_document = |part: &&Labelled| {
                let by_name = part.named && part.role != Speaker::Assistant;
                part.label != question.label && (part.role == Speaker::User || by_name)
            };
            let holds = |part: &&Labelled| {
                prompt.tiles.iter().any(|span| span.label == part.label && !span.is_empty())
            };
            let own = labels.iter().filter(is_document).filter(holds).map(|part| part.label.clone());
            prompt.documents.iter().cloned().chain(own).collect()
        }
    };
    check_documents(&documents, &question.label)?;

    // 3. The neutral prompt.
    let (at, nth) = (question.message, question.part);
    let mut neutral_sent = sent.to_vec();
    if let Some(part) = neutral_sent.get_mut(at).and_then(|one| one.parts.get_mut(nth)) {
        part.text = neutral_of(&part.text);
    }
    let elsewhere = |range: &&RangeRequest| (range.message, range.part.unwrap_or(0)) != (Some(at), nth);
    let ranges = asked.ranges.iter().filter(elsewhere).cloned().collect();
    let mut neutral_asked = asked.clone();
    neutral_asked.ranges = ranges;
    let neutral = make(&neutral_sent, &neutral_asked)?;
    let heads = heads_of(score, asked, model);
    Scoring::new((&documents, &question.label), &heads, prompt, neutral, &model.spec).map(Some)
}

/// Score of a text, if requested; documents and question are ranges. `make` builds the neutral prompt.
pub fn of_text(
    asked: &AttentionRequest,
    (model, text, prompt): (&ServedModel, &str, &TokenPrompt),
    make: &MakePrompt<'_, str>,
) -> Result<Option<Scoring>, ApiError> {
    let Some(score) = &asked.score else { return Ok(None) };
    let wanted = score.question.as_deref().unwrap_or(QUESTION);
    let question = asked.ranges.iter().find(|range| range.label == wanted);
    let question = question.ok_or_else(|| no_question(wanted, "range of `palimpsest.spans`"))?;
    let documents = match score.documents.as_slice() {
        named @ [_, ..] => named.to_vec(),
        [] => {
            let others = asked.ranges.iter().filter(|range| range.label != wanted);
            others.map(|range| range.label.clone()).collect()
        }
    };
    check_documents(&documents, wanted)?;
    let old: String = text.chars().skip(question.start).take(question.end - question.start).collect();
    let new = neutral_of(&old);
    let before: String = text.chars().take(question.start).collect();
    let after: String = text.chars().skip(question.end).collect();
    let (end, longer) = (question.end, new.chars().count());
    let moved = |at: usize| if at >= end { at - end + question.start + longer } else { at };
    let outside = |range: &&RangeRequest| {
        range.label == wanted || range.end <= question.start || range.start >= question.end
    };
    let ranges = asked.ranges.iter().filter(outside).map(|range| RangeRequest {
        start: moved(range.start),
        end: moved(range.end),
        ..range.clone()
    });
    let mut neutral_asked = asked.clone();
    neutral_asked.ranges = ranges.collect();
    let neutral = make(&format!("{before}{new}{after}"), &neutral_asked)?;
    let heads = heads_of(score, asked, model);
    Scoring::new((&documents, wanted), &heads, prompt, neutral, &model.spec).map(Some)
}

struct Labelled {
    label: String,
    named: bool,
    role: Speaker,
    message: usize,
    part: usize,
}

fn labels_of(sent: &[Sent]) -> Vec<Labelled> {
    let of_message = |(message, one): (usize, &Sent)| {
        let (role, has_parts) = (one.role, one.has_parts);
        let label = |(part, of): (usize, &super::super::sent::ContentPart)| {
            let by_place = match has_parts {
                true => format!("messages[{message}].content[{part}]"),
                false => format!("messages[{message}]"),
            };
            let label = of.span.clone().unwrap_or(by_place);
            Labelled { label, named: of.span.is_some(), role, message, part }
        };
        one.parts.iter().enumerate().map(label).collect::<Vec<_>>()
    };
    sent.iter().enumerate().flat_map(of_message).collect()
}

fn neutral_of(text: &str) -> String {
    let body = text.trim();
    let start = text.len() - text.trim_start().len();
    let (before, after) = (text.get(..start), text.get(start + body.len()..));
    format!("{}{}{}", before.unwrap_or_default(), neutral::TEXT, after.unwrap_or_default())
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
    if documents.iter().any(|label| label == question) {
        return Err(ApiError::at(field, "names the question itself; leave it out"));
    }
    Ok(())
}
