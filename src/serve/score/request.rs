//! The field `score`: which spans are documents, which is the question, by which heads.

use serde::{Deserialize, Deserializer};

use super::super::attention_request::{AttentionRequest, RangeRequest};
use super::super::error::ApiError;
use super::super::heads::{Heads, HeadsField};
use super::super::json::{list, shown};
use super::super::model::ServedModel;
use super::super::prompt::TokenPrompt;
use super::super::sent::Sent;
use super::Scoring;
use super::neutral;
use palimpsest_core::text::Speaker;

/// The name that makes a span the question.
const QUESTION: &str = "question";

/// The field.
#[derive(Debug, Deserialize)]
pub enum ScoreField {
    /// `false` for none.
    #[serde(rename = "a boolean (true for all documents)")]
    Is(bool),
    #[serde(rename = "an object of documents, question and heads")]
    Of(ScoreOptions),
}

/// Options of a score; those left out are found.
#[derive(Debug, Default, Deserialize)]
pub struct ScoreOptions {
    #[serde(default, deserialize_with = "documents")]
    documents: Option<Vec<String>>,
    question: Option<String>,
    heads: Option<HeadsField>,
}

fn documents<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    list::<1, 4096, _, _>(from).map(Some)
}

/// A score that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoreRequest {
    documents: Option<Vec<String>>,
    question: Option<String>,
    heads: Option<Heads>,
}

/// Makes a prompt of messages or a text, with what is asked of its spans.
type MakePrompt<'a, T> = dyn Fn(&T, &AttentionRequest) -> Result<TokenPrompt, ApiError> + 'a;

impl ScoreField {
    /// The score that is asked for, of this model; `None` for `false`.
    pub fn request(self, model: &ServedModel) -> Result<Option<ScoreRequest>, ApiError> {
        let ScoreOptions { documents, question, heads } = match self {
            ScoreField::Is(false) => return Ok(None),
            ScoreField::Is(true) => ScoreOptions::default(),
            ScoreField::Of(options) => options,
        };
        let again = |labels: &Vec<String>| (1..labels.len()).find(|&i| labels[..i].contains(&labels[i]));
        if let Some(i) = documents.as_ref().and_then(again) {
            let reason = "names a span again; name it once";
            return Err(ApiError::at(format!("palimpsest.score.documents[{i}]"), reason));
        }
        let name = "palimpsest.score.heads";
        if matches!(heads, Some(HeadsField::Mean)) {
            return Err(ApiError::at(
                name,
                "is \"mean\"; give \"all\", \"retrieval\" or pairs [layer, head]",
            ));
        }
        let heads = heads.map(|heads| heads.of(name, model)).transpose()?;
        Ok(Some(ScoreRequest { documents, question, heads }))
    }
}

impl ScoreRequest {
    /// By which heads: those that it names, those that the request names, the model's that retrieve, or all.
    fn heads(&self, asked: &AttentionRequest, model: &ServedModel) -> Heads {
        let named = match &asked.heads {
            Heads::These { .. } => Some(asked.heads.clone()),
            Heads::Mean | Heads::All => None,
        };
        self.heads.clone().or(named).or_else(|| Heads::retrieval(model)).unwrap_or(Heads::All)
    }

    /// Of a conversation, whose neutral prompt `make` makes of other messages and ranges.
    pub fn of_chat(
        &self,
        asked: &AttentionRequest,
        (model, sent, prompt): (&ServedModel, &[Sent], &TokenPrompt),
        make: &MakePrompt<'_, [Sent]>,
    ) -> Result<Scoring, ApiError> {
        // 1. The question: by name, else the last part of the user's last message.
        let labels = labels_of(sent);
        let wanted = self.question.as_deref().unwrap_or(QUESTION);
        let by_name = labels.iter().find(|part| part.label == wanted);
        let last = || labels.iter().rev().find(|part| part.role == Speaker::User);
        let question = match (by_name, &self.question) {
            (Some(part), _) => part,
            (None, None) => last().ok_or_else(|| {
                ApiError::at("palimpsest.score", "needs a question, and there is no message of the user's")
            })?,
            (None, Some(_)) => return Err(no_question(wanted, "part of a message")),
        };

        // 2. The documents: what else the user wrote, and named parts of others but the assistant.
        let documents = match &self.documents {
            Some(documents) => documents.clone(),
            None => {
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

        // 3. The same with a question that asks nothing.
        let (at, nth) = (question.message, question.part);
        let mut neutral_sent = sent.to_vec();
        if let Some(part) = neutral_sent.get_mut(at).and_then(|one| one.parts.get_mut(nth)) {
            part.text = neutral_of(&part.text);
        }
        let elsewhere = |range: &&RangeRequest| (range.message, range.part.unwrap_or(0)) != (Some(at), nth);
        let ranges = asked.ranges.iter().filter(elsewhere).cloned().collect();
        let neutral = make(&neutral_sent, &AttentionRequest { ranges, ..asked.clone() })?;
        let heads = self.heads(asked, model);
        Scoring::new((&documents, &question.label), &heads, prompt, neutral, &model.spec)
    }

    /// Of a text, whose neutral prompt `make` makes of another text and ranges. Documents and question are ranges of it.
    pub fn of_text(
        &self,
        asked: &AttentionRequest,
        (model, text, prompt): (&ServedModel, &str, &TokenPrompt),
        make: &MakePrompt<'_, str>,
    ) -> Result<Scoring, ApiError> {
        let wanted = self.question.as_deref().unwrap_or(QUESTION);
        let question = asked.ranges.iter().find(|range| range.label == wanted);
        let question = question.ok_or_else(|| no_question(wanted, "range of `palimpsest.spans`"))?;
        let documents = match &self.documents {
            Some(documents) => documents.clone(),
            None => {
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
        let neutral_asked = AttentionRequest { ranges: ranges.collect(), ..asked.clone() };
        let neutral = make(&format!("{before}{new}{after}"), &neutral_asked)?;
        let heads = self.heads(asked, model);
        Scoring::new((&documents, wanted), &heads, prompt, neutral, &model.spec)
    }
}

/// A part of a message by its label.
struct Labelled {
    label: String,
    named: bool,
    role: Speaker,
    message: usize,
    part: usize,
}

/// The spans of messages, in order.
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

/// The neutral question in the place of a text, between the white space of that.
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
