//! The extension: what `"palimpsest"` of a request asks about attention.

use serde_json::Value;

use super::error::ApiError;
use super::fields::read_tokens;
use super::fields::{Fields, wrong};
use super::heads::Heads;
use super::model::ServedModel;
use super::score::ScoreRequest;
use palimpsest_core::engine::{Rows, TopRequest};

/// Fields of `palimpsest`.
pub const FIELDS: [&str; 10] =
    ["rows", "heads", "layers", "top_keys", "encoding", "spans", "token_ids", "score", "answer", "progress"];

/// Fields of an entry of its `spans`.
pub const RANGE_FIELDS: [&str; 5] = ["label", "message", "part", "start", "end"];

/// Most spans that a request may name.
const MOST_SPANS: usize = 4096;

/// Most numbers that are kept for a request's rows: half a gigabyte of them.
const MOST_NUMBERS: usize = 1 << 26;

/// Most keys of a row that are told one by one.
const MOST_TOP_KEYS: usize = 1024;

/// What is asked about attention.
#[derive(Debug, Clone)]
pub struct AttentionRequest {
    /// Names of spans, `last`, `answer` and `each`; those of the score are added when the prompt's spans are known.
    pub rows: Vec<String>,
    /// Which heads are told.
    pub heads: Heads,
    /// The decoder layers that are told; `None` for all.
    pub layers: Option<Vec<usize>>,
    /// How many keys of each row are told one by one.
    pub top_keys: Option<usize>,
    /// Whether tensors come as base64 of a safetensors file.
    pub safetensors: bool,
    /// Further spans.
    pub ranges: Vec<RangeRequest>,
    /// Whether the tokens of prompt and answer are told.
    pub token_ids: bool,
    /// Which documents are to be ranked.
    pub score: Option<ScoreRequest>,
    /// The answer, where it is not to be generated.
    pub answer: Option<GivenAnswer>,
}

/// An answer that is measured in the place of a generated one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GivenAnswer {
    /// The last message.
    LastMessage,
    /// This text.
    Text(String),
    /// These tokens.
    Tokens(Vec<u32>),
}

/// Characters of a part of the prompt as a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    /// The field that says so, for errors.
    pub field: String,
    /// Its name.
    pub label: String,
    /// The message, where the prompt has messages.
    pub message: Option<usize>,
    /// The part of it, where it has parts.
    pub part: Option<usize>,
    /// First character.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

impl AttentionRequest {
    /// What `"palimpsest"` of a request asks about attention: nothing where it asks for `progress` alone.
    ///
    /// # Errors
    /// What cannot be served, with its field.
    pub fn of(fields: &Fields<'_>, model: &ServedModel) -> Result<Option<Self>, ApiError> {
        let Some(value) = fields.get("palimpsest") else { return Ok(None) };
        let own = Fields::of(value, "palimpsest")?;
        let rest = FIELDS.iter().any(|key| *key != "progress" && own.get(key).is_some());
        if own.get("progress").is_some() && !rest {
            return own.only(&FIELDS).map(|()| None);
        }
        Self::read(value, model).map(Some)
    }

    /// The value of `"palimpsest"`.
    ///
    /// # Errors
    /// What cannot be served, with its field.
    pub fn read(value: &Value, model: &ServedModel) -> Result<Self, ApiError> {
        let fields = Fields::of(value, "palimpsest")?;
        fields.only(&FIELDS)?;
        let score = fields.get("score").map(|value| ScoreRequest::read(value, model)).transpose()?.flatten();
        let answer = fields.get("answer").map(|value| GivenAnswer::read(value, model)).transpose()?.flatten();
        let needs_rows = score.is_none() && answer.is_none();
        if needs_rows {
            fields.required("rows")?;
        }
        let rows = fields.list("rows")?.unwrap_or_default();
        let rows = rows.iter().enumerate().map(|(i, row)| match row {
            Value::String(row) => Ok(row.clone()),
            row => Err(wrong(&format!("palimpsest.rows[{i}]"), row, "a string")),
        });
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        if (rows.is_empty() && needs_rows) || rows.len() > MOST_SPANS {
            let message = format!(
                "`palimpsest.rows` names {} rows; give 1 to {MOST_SPANS}: names of spans, last, answer or each",
                rows.len()
            );
            return Err(ApiError::field("palimpsest.rows", message));
        }
        let safetensors = match fields.text("encoding")? {
            None | Some("json") => false,
            Some("safetensors") => true,
            Some(word) => {
                let word: String = word.chars().take(40).collect();
                let message = format!("`palimpsest.encoding` is {word:?}; give \"json\" or \"safetensors\"");
                return Err(ApiError::field("palimpsest.encoding", message));
            }
        };
        let heads = match fields.get("heads") {
            None => Heads::Mean,
            Some(value) => Heads::read(value, "palimpsest.heads", true, model)?,
        };
        let layers = match fields.list("layers")? {
            None => None,
            Some(_) if matches!(heads, Heads::These { .. }) => {
                let message = "`palimpsest.layers` is for the mean and for all heads; single heads are named with their layers, \
                               so leave it out";
                return Err(ApiError::field("palimpsest.layers", message));
            }
            Some(layers) => Some(read_layers(layers, model.spec.layers.len())?),
        };
        let ranges = fields.list("spans")?.unwrap_or_default();
        if ranges.len() > MOST_SPANS {
            let message =
                format!("`palimpsest.spans` has {} entries; give at most {MOST_SPANS}", ranges.len());
            return Err(ApiError::field("palimpsest.spans", message));
        }
        let ranges = ranges.iter().enumerate().map(|(i, range)| RangeRequest::read(i, range));
        Ok(AttentionRequest {
            rows,
            heads,
            layers,
            top_keys: fields.count("top_keys", 1..=MOST_TOP_KEYS)?,
            safetensors,
            ranges: ranges.collect::<Result<_, _>>()?,
            token_ids: fields.flag("token_ids")?.unwrap_or(false),
            score,
            answer,
        })
    }

    /// Whether each generated token is a row.
    pub fn each(&self) -> bool {
        self.rows.iter().any(|row| row == "each")
    }

    /// Which keys are told one by one, of rows of a prompt and of up to `most` generated tokens.
    ///
    /// # Errors
    /// More of them than are kept.
    pub fn top_keys(
        &self,
        model: &ServedModel,
        rows: &Rows,
        most: usize,
    ) -> Result<Option<TopRequest>, ApiError> {
        let Some(k) = self.top_keys else { return Ok(None) };
        let mean = self.heads == Heads::Mean;
        let of_layer = |layer: &palimpsest_core::model::LayerSpec| {
            layer.attention().map_or(0, |spec| if mean { 1 } else { spec.heads })
        };
        let a_position = 2 * k * model.spec.layers.iter().map(of_layer).sum::<usize>().max(1);
        let generated = if rows.answer.any() { most } else { 0 };
        let positions = rows.spans.iter().map(|row| row.len()).sum::<usize>().saturating_add(generated);
        let fit = MOST_NUMBERS / a_position;
        if positions > fit {
            let message = format!(
                "`palimpsest.top_keys` of {k} keys is kept for at most {fit} positions, and the rows have {positions}; give fewer keys, \
                 shorter rows, or fewer tokens to be generated"
            );
            return Err(ApiError::field("palimpsest.top_keys", message));
        }
        Ok(Some(TopRequest { k, mean }))
    }

    /// Refuses what would take too much memory: rows of `spans` spans, and of up to `most` generated tokens where each is one.
    ///
    /// # Errors
    /// Which field to make smaller.
    pub fn check_size(&self, model: &ServedModel, spans: usize, most: usize) -> Result<(), ApiError> {
        let heads = |layer: &palimpsest_core::model::LayerSpec| {
            layer.attention().map_or(0, |spec| spec.heads)
                + layer.delta_net().map_or(0, |spec| spec.value_heads)
        };
        let heads: usize = model.spec.layers.iter().map(heads).sum();
        let a_row = heads.saturating_mul(spans + 1).max(1);
        let fit = MOST_NUMBERS / a_row;
        if self.rows.len() > fit {
            let message = format!(
                "{} rows over {spans} spans are more than the {fit} rows that are kept at most; name fewer rows or spans",
                self.rows.len()
            );
            return Err(ApiError::field("palimpsest.rows", message));
        }
        let fit = fit - self.rows.len();
        if self.each() && most > fit {
            let message = format!(
                "`each` over {spans} spans is kept for at most {fit} generated tokens, and {most} may be generated; give \
                 max_completion_tokens (max_tokens for /v1/completions) of at most {fit}"
            );
            return Err(ApiError::field("palimpsest.rows", message));
        }
        Ok(())
    }
}

impl GivenAnswer {
    /// The value of `answer`: a text, token ids, or `true` for the last message.
    fn read(value: &Value, model: &ServedModel) -> Result<Option<Self>, ApiError> {
        let name = "palimpsest.answer";
        match value {
            Value::Bool(false) => Ok(None),
            Value::Bool(true) => Ok(Some(GivenAnswer::LastMessage)),
            Value::String(text) => Ok(Some(GivenAnswer::Text(text.clone()))),
            Value::Array(tokens) => {
                Ok(Some(GivenAnswer::Tokens(read_tokens(name, tokens, model.spec.vocab)?)))
            }
            value => Err(wrong(name, value, "a text, an array of token ids, or true for the last message")),
        }
    }
}

fn read_layers(layers: &[Value], all: usize) -> Result<Vec<usize>, ApiError> {
    let mut read = Vec::with_capacity(layers.len().min(all));
    for (i, value) in layers.iter().enumerate() {
        let name = format!("palimpsest.layers[{i}]");
        let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok()).filter(|layer| *layer < all);
        let Some(layer) = layer else {
            return Err(match value {
                Value::Number(found) => {
                    let message =
                        format!("`{name}` is {found}; the model's layers are 0 to {}", all.saturating_sub(1));
                    ApiError::field(name, message)
                }
                value => wrong(&name, value, "a layer's number"),
            });
        };
        if read.contains(&layer) {
            let message = format!("`{name}` names layer {layer} again; name it once");
            return Err(ApiError::field(name, message));
        }
        read.push(layer);
    }
    read.sort_unstable();
    Ok(read)
}

impl RangeRequest {
    fn read(i: usize, value: &Value) -> Result<Self, ApiError> {
        let field = format!("palimpsest.spans[{i}]");
        let fields = Fields::of(value, &field)?;
        fields.only(&RANGE_FIELDS)?;
        for key in ["label", "start", "end"] {
            fields.required(key)?;
        }
        let label = fields.text("label")?.unwrap_or_default().to_owned();
        check_label(&label, &fields.name("label"))?;
        let count = |key| fields.count(key, 0..=usize::MAX);
        let (start, end) = (count("start")?.unwrap_or_default(), count("end")?.unwrap_or_default());
        if start >= end {
            let message = format!("`{field}` goes from {start} to {end}; give at least one character");
            return Err(ApiError::field(fields.name("end"), message));
        }
        Ok(RangeRequest { label, message: count("message")?, part: count("part")?, start, end, field })
    }
}

/// Longest name of a span in bytes.
const LONGEST_LABEL: usize = 256;

/// Refuses names that mean something else.
///
/// # Errors
/// Why, with the field.
pub fn check_label(label: &str, field: &str) -> Result<(), ApiError> {
    let own = ["template[", "messages["].iter().any(|own| label.starts_with(own));
    let taken = own || ["last", "answer", "each", "generated", "prompt"].contains(&label);
    if label.is_empty() || label.len() > LONGEST_LABEL || taken {
        let shown: String = label.chars().take(40).collect();
        let message = format!(
            "`{field}` is {shown:?}; give 1 to {LONGEST_LABEL} bytes other than last, answer, each, generated, prompt, \
             template[...] and messages[...], which have a meaning of their own"
        );
        return Err(ApiError::field(field, message));
    }
    Ok(())
}
