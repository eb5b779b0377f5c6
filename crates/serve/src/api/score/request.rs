//! Resolves documents, question and heads of a score, and builds its neutral prompt.

use super::super::attention_request::{AttentionRequest, Heads, RangeRequest, ScoreRequest};
use super::super::error::{ApiError, ensure};
use super::super::json::shown;
use super::super::model::ServedModel;
use super::super::prompt::{TokenPrompt, text_spans};
use super::super::sent::{Part, Sent};
use super::{NEUTRAL, Scoring};
use palimpsest_core::text::Speaker;

const QUESTION: &str = "question";

/// Heads of the score, else of the request, else retrieval heads, else all.
fn heads_of(score: &ScoreRequest, asked: &AttentionRequest, model: &ServedModel) -> Heads {
    let named = Some(&asked.heads).filter(|heads| matches!(heads, Heads::These { .. }));
    score.heads.clone().or(named.cloned()).or_else(|| Heads::retrieval(model)).unwrap_or(Heads::All)
}

/// Score of a conversation, if requested. `make` builds the neutral prompt.
pub fn of_chat(
    asked: &AttentionRequest,
    (model, sent, prompt): (&ServedModel, &[Sent], &TokenPrompt),
    make: &dyn Fn(&[Sent], &AttentionRequest) -> Result<TokenPrompt, ApiError>,
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
    let heads = heads_of(score, asked, model);
    Scoring::new((&documents, &question.label), &heads, prompt, neutral, &model.spec).map(Some)
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
    let heads = heads_of(score, asked, model);
    Scoring::new((&documents, wanted), &heads, prompt, neutral, &model.spec).map(Some)
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
