//! The extension: what `"palimpsest"` of a request asks about attention.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::causes::{CausesField, CausesOptions};
use super::error::ApiError;
use super::heads::{Heads, HeadsField};
use super::json::{count, list, text};
use super::measures::{AskedTarget, Measure, TargetField};
use super::model::ServedModel;
use super::prompts::check_tokens;
use super::score::{ScoreField, ScoreRequest};
use palimpsest_core::attention::{Knockout, KnockoutError};
use palimpsest_core::engine::{Rows, TopRequest};

/// Most numbers that are kept for a request's rows: half a gigabyte of them.
const MOST_NUMBERS: usize = 1 << 26;

/// The field `palimpsest`.
#[derive(Debug, Deserialize)]
pub struct AttentionFields {
    score: Option<ScoreField>,
    answer: Option<GivenAnswer>,
    #[serde(default, deserialize_with = "list::<0, 4096, _, _>")]
    rows: Vec<String>,
    #[serde(default, deserialize_with = "list::<0, 64, _, _>")]
    knockouts: Vec<String>,
    causes: Option<CausesField>,
    cite: Option<CausesField>,
    #[serde(default)]
    encoding: Encoding,
    #[serde(default)]
    heads: HeadsField,
    layers: Option<Vec<usize>>,
    #[serde(default, deserialize_with = "list::<0, 4096, _, _>")]
    spans: Vec<RangeRequest>,
    #[serde(default)]
    units: Units,
    #[serde(default, deserialize_with = "count::<1, 1024, _, _>")]
    top_keys: Option<usize>,
    measures: Option<Vec<Measure>>,
    #[serde(default, deserialize_with = "list::<0, 64, _, _>")]
    targets: Vec<TargetField>,
    #[serde(default)]
    tokens: bool,
    #[serde(default)]
    token_ids: bool,
    /// True if a stream reports the progress of reading its prompt.
    pub progress: Option<bool>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Json,
    Safetensors,
}

/// The units of ranges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Units {
    #[default]
    Characters,
    Tokens,
}

/// A request for attention.
#[derive(Debug, Clone)]
pub struct AttentionRequest {
    /// Names of spans, `last`, `answer` and `each`; those of the score are added when the prompt's spans are known.
    pub rows: Vec<String>,
    /// Paths that are blocked for this answer.
    pub knockouts: Vec<Knockout>,
    /// The spans that are hidden in turn, to see what the answer or its sentences owe to them.
    pub causes: Option<CausesOptions>,
    /// True if effects on the whole answer are told.
    pub tells_causes: bool,
    /// True if the answer's sentences are told, each with the spans that it rests on.
    pub cite: bool,
    pub heads: Heads,
    /// The decoder layers that are told; `None` for all.
    pub layers: Option<Vec<usize>>,
    /// Keys of each row that are told one by one.
    pub top_keys: Option<usize>,
    /// Which numbers of the rows are told.
    pub measures: Vec<Measure>,
    /// Logits that are taken apart.
    pub targets: Vec<AskedTarget>,
    /// True if the texts of prompt and answer are told, token by token.
    pub tokens: bool,
    /// True if tensors come as base64 of a safetensors file.
    pub safetensors: bool,
    pub ranges: Vec<RangeRequest>,
    pub units: Units,
    /// True if the tokens of prompt and answer are told.
    pub token_ids: bool,
    pub score: Option<ScoreRequest>,
    /// The answer, where it is not to be generated.
    pub answer: Option<GivenAnswer>,
}

/// An answer that is measured in the place of a generated one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub enum GivenAnswer {
    /// The last message; none where it is `false`.
    #[serde(rename = "a boolean (true for the last message)")]
    LastMessage(bool),
    #[serde(rename = "a string")]
    Text(String),
    #[serde(rename = "an array of token ids")]
    Tokens(Vec<u32>),
}

/// Characters of a part of the prompt as a span: an entry of `spans`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RangeRequest {
    /// The field that says so, for errors.
    #[serde(skip)]
    pub field: String,
    #[serde(deserialize_with = "label")]
    pub label: String,
    /// The message, where the prompt has messages.
    pub message: Option<usize>,
    /// The part of it, where it has parts.
    pub part: Option<usize>,
    pub start: usize,
    pub end: usize,
}

/// `deserialize_with` of a span's name, which means nothing else.
pub fn label<'de, D: Deserializer<'de>, T: From<String>>(from: D) -> Result<T, D::Error> {
    let wanted = "1 to 256 bytes other than last, answer, each, generated, prompt, template[...] and messages[...], which have a \
                  meaning of their own";
    text(from, wanted, is_label)
}

/// May a span be called so?
pub fn is_label(label: &str) -> bool {
    let own = ["template[", "messages["].iter().any(|own| label.starts_with(own))
        || ["last", "answer", "each", "generated", "prompt"].contains(&label);
    (1..=256).contains(&label.len()) && !own
}

impl AttentionRequest {
    /// The request in the field `palimpsest`; `None` where it asks for `progress` alone.
    pub fn new(fields: AttentionFields, body: &Value, model: &ServedModel) -> Result<Option<Self>, ApiError> {
        let asked = |(key, value): (&String, &Value)| key != "progress" && !value.is_null();
        if fields.progress.is_some() && !body["palimpsest"].as_object().into_iter().flatten().any(asked) {
            return Ok(None);
        }
        let AttentionFields { rows, top_keys, token_ids, tokens, units, .. } = fields;
        let parsed = |(i, text): (usize, &String)| {
            text.parse().map_err(|error: KnockoutError| {
                ApiError::field(format!("palimpsest.knockouts[{i}]"), error.to_string())
            })
        };
        let knockouts: Vec<Knockout> =
            fields.knockouts.iter().enumerate().map(parsed).collect::<Result<_, _>>()?;
        let score = fields.score.map(|score| score.request(model)).transpose()?.flatten();
        let answer = fields.answer.filter(|answer| *answer != GivenAnswer::LastMessage(false));
        if let Some(GivenAnswer::Tokens(tokens)) = &answer {
            check_tokens("palimpsest.answer", tokens, model.spec.vocab)?;
        }
        let causes = fields.causes.and_then(CausesField::options);
        let cited = fields.cite.and_then(CausesField::options);
        let (tells_causes, cite) = (causes.is_some(), cited.is_some());
        let causes = CausesOptions::shared(causes, cited)?;
        if score.is_some() && !knockouts.is_empty() {
            let reason = "is held against a neutral question with nothing blocked; leave out palimpsest.knockouts, or the score";
            return Err(ApiError::at("palimpsest.score", reason));
        }
        let target = |(nth, field): (usize, &TargetField)| field.target(nth, model);
        let targets: Vec<AskedTarget> =
            fields.targets.iter().enumerate().map(target).collect::<Result<_, _>>()?;
        let measures = fields.measures.unwrap_or_else(|| Measure::USUAL.to_vec());
        check_measures(&measures, &rows, score.is_some())?;
        if !targets.is_empty() && (cite || !fields.spans.is_empty()) {
            let reason = "take a logit apart by spans that share no token; leave out palimpsest.spans and palimpsest.cite, or the targets";
            return Err(ApiError::at("palimpsest.targets", reason));
        }
        let asks = score.is_some()
            || answer.is_some()
            || causes.is_some()
            || !knockouts.is_empty()
            || !targets.is_empty()
            || tokens;
        if !asks && rows.is_empty() {
            return Err(match body["palimpsest"]["rows"].is_array() {
                false => ApiError::missing("palimpsest.rows"),
                true => ApiError::at(
                    "palimpsest.rows",
                    "names 0 rows; give 1 to 4096: names of spans, last, answer or each",
                ),
            });
        }
        let heads = fields.heads.of("palimpsest.heads", model)?;
        if fields.layers.is_some() && matches!(heads, Heads::These { .. }) {
            let reason = "is for the mean and for all heads; single heads are named with their layers, so leave it out";
            return Err(ApiError::at("palimpsest.layers", reason));
        }
        let layers = fields.layers.map(|layers| check_layers(layers, model.spec.layers.len())).transpose()?;
        let mut ranges = fields.spans;
        for (i, range) in ranges.iter_mut().enumerate() {
            range.field = format!("palimpsest.spans[{i}]");
            let RangeRequest { field, start, end, .. } = range;
            if start >= end {
                let message = format!("`{field}` goes from {start} to {end}; give at least one character");
                return Err(ApiError::field(format!("{field}.end"), message));
            }
        }
        let safetensors = fields.encoding == Encoding::Safetensors;
        Ok(Some(AttentionRequest {
            rows,
            knockouts,
            causes,
            tells_causes,
            cite,
            heads,
            layers,
            top_keys,
            measures,
            targets,
            tokens,
            safetensors,
            ranges,
            units,
            token_ids,
            score,
            answer,
        }))
    }

    /// True if these numbers are told.
    pub fn tells(&self, measure: Measure) -> bool {
        self.measures.contains(&measure)
    }

    /// True if lengths of what is read and written are told.
    pub fn lengths(&self) -> bool {
        self.measures.iter().any(|measure| measure.is_length())
    }

    /// True if each generated token is a row that is told.
    pub fn each(&self) -> bool {
        self.rows.iter().any(|row| row == "each")
    }

    /// True if the masses of each generated token are kept until the answer is whole.
    pub fn keeps_each(&self) -> bool {
        self.cite || self.each()
    }

    /// Which keys are told one by one, of rows of a prompt and of up to `most` generated tokens. Refuses more of them than are kept.
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
            let reason = format!(
                "of {k} keys is kept for at most {fit} positions, and the rows have {positions}; give fewer keys, shorter rows, or \
                 fewer tokens to be generated"
            );
            return Err(ApiError::at("palimpsest.top_keys", reason));
        }
        Ok(Some(TopRequest { k, mean }))
    }

    /// Refuses what would take too much memory: rows of `spans` spans, and of up to `most` generated tokens where each is one.
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
        if self.keeps_each() && most > fit {
            let (name, field) =
                if self.each() { ("each", "palimpsest.rows") } else { ("cite", "palimpsest.cite") };
            let message = format!(
                "`{name}` over {spans} spans is kept for at most {fit} generated tokens, and {most} may be generated; give \
                 max_completion_tokens (max_tokens for /v1/completions) of at most {fit}"
            );
            return Err(ApiError::field(field, message));
        }
        Ok(())
    }
}

/// Refuses a measure twice, and lengths of rows that are not of the prompt.
fn check_measures(measures: &[Measure], rows: &[String], scored: bool) -> Result<(), ApiError> {
    for (i, measure) in measures.iter().enumerate() {
        let field = || format!("palimpsest.measures[{i}]");
        if measures[..i].contains(measure) {
            return Err(ApiError::at(field(), "names a measure again; name it once"));
        }
        if measure.is_length() && (scored || rows.iter().any(|row| row == "answer" || row == "each")) {
            let reason = "is of the prompt's rows; leave out the rows answer and each, and palimpsest.score, whose row is the answer's";
            return Err(ApiError::at(field(), reason));
        }
        if measure.is_length() && rows.is_empty() {
            return Err(ApiError::at(
                field(),
                "is of rows, and none are named; name some in palimpsest.rows",
            ));
        }
    }
    Ok(())
}

fn check_layers(mut layers: Vec<usize>, all: usize) -> Result<Vec<usize>, ApiError> {
    for (i, layer) in layers.iter().enumerate() {
        let reason = match *layer < all {
            false => format!("is {layer}; the model's layers are 0 to {}", all.saturating_sub(1)),
            true if layers[..i].contains(layer) => format!("names layer {layer} again; name it once"),
            true => continue,
        };
        return Err(ApiError::at(format!("palimpsest.layers[{i}]"), reason));
    }
    layers.sort_unstable();
    Ok(layers)
}
