//! Request side of the extension: the field `"palimpsest"`.

use serde::{Deserialize, Deserializer};

use super::error::ApiError;
use super::heads::{Heads, HeadsField};
use super::json::{OneOf, count, list, text};
use super::model::ServedModel;
use super::prompts::check_tokens;
use palimpsest_core::attention::{Knockout, Target};
use palimpsest_core::engine::{Rows, TopRequest};
use palimpsest_core::model::LayerSpec;
use palimpsest_run::observe::{Measure, TokenName, TokenTarget};

/// Maximum numbers stored for a request's rows: 512 MiB as f64.
const MOST_NUMBERS: usize = 1 << 26;

/// The field `palimpsest`. Fields resolved by [`AttentionRequest::checked`] are beside the sent ones.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttentionRequest {
    /// Span names, `last`, `answer` and `each`; score rows are added once the spans are known.
    #[serde(deserialize_with = "list::<0, 4096, _, _>")]
    pub rows: Vec<String>,
    #[serde(deserialize_with = "list::<0, 64, _, _>")]
    pub knockouts: Vec<Knockout>,
    #[serde(rename = "causes")]
    sent_causes: Option<OneOf<CausesOptions>>,
    #[serde(rename = "cite")]
    sent_cite: Option<OneOf<CausesOptions>>,
    /// Spans to hide in turn, for effects on the answer or its sentences.
    #[serde(skip)]
    pub causes: Option<CausesOptions>,
    /// Return effects on the whole answer.
    #[serde(skip)]
    pub tells_causes: bool,
    /// Return cited sentences with their supporting spans.
    #[serde(skip)]
    pub cite: bool,
    #[serde(rename = "heads")]
    sent_heads: Option<HeadsField>,
    #[serde(skip)]
    pub heads: Heads,
    /// Reported decoder layers; all if absent.
    pub layers: Option<Vec<usize>>,
    /// Number of top keys per row.
    #[serde(deserialize_with = "count::<1, 1024, _, _>")]
    pub top_keys: Option<usize>,
    measures: Option<Vec<Measure>>,
    #[serde(deserialize_with = "list::<0, 64, _, _>")]
    targets: Vec<TokenTarget>,
    pub tokens: bool,
    pub token_ids: bool,
    pub encoding: Encoding,
    #[serde(rename = "spans", deserialize_with = "list::<0, 4096, _, _>")]
    pub ranges: Vec<RangeRequest>,
    pub units: Units,
    #[serde(rename = "score")]
    sent_score: Option<OneOf<ScoreRequest>>,
    #[serde(skip)]
    pub score: Option<ScoreRequest>,
    /// A given answer: a text, tokens, or true for the last message.
    pub answer: Option<OneOf<Vec<u32>>>,
    pub progress: Option<bool>,
}

/// JSON arrays, or base64 of a safetensors file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    #[default]
    Json,
    Safetensors,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Units {
    #[default]
    Characters,
    Tokens,
}

/// Document spans, question span and heads; absent fields are inferred.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScoreRequest {
    #[serde(deserialize_with = "list::<1, 4096, _, _>")]
    pub documents: Vec<String>,
    pub question: Option<String>,
    #[serde(rename = "heads")]
    sent_heads: Option<HeadsField>,
    #[serde(skip)]
    pub heads: Option<Heads>,
}

/// Hidden spans, and the first position that does not see them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CausesOptions {
    #[serde(deserialize_with = "list::<1, 256, _, _>")]
    pub spans: Vec<String>,
    pub from: Option<String>,
    #[serde(deserialize_with = "count::<0, 64, _, _>")]
    pub controls: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangeRequest {
    #[serde(skip)]
    pub field: String,
    #[serde(deserialize_with = "label")]
    pub label: String,
    pub message: Option<usize>,
    pub part: Option<usize>,
    pub start: usize,
    pub end: usize,
}

/// `deserialize_with` of a span name that is not reserved.
pub fn label<'de, D: Deserializer<'de>, T: From<String>>(from: D) -> Result<T, D::Error> {
    let wanted = "1 to 256 bytes other than last, answer, each, generated, prompt, template[...] and messages[...], which have a \
                  meaning of their own";
    text(from, wanted, is_label)
}

pub fn is_label(label: &str) -> bool {
    let own = ["template[", "messages["].iter().any(|own| label.starts_with(own))
        || ["last", "answer", "each", "generated", "prompt"].contains(&label);
    (1..=256).contains(&label.len()) && !own
}

impl AttentionRequest {
    /// Validates against the model; `None` if only `progress` is requested.
    pub fn checked(self, model: &ServedModel) -> Result<Option<Self>, ApiError> {
        if self.progress.is_some() && (AttentionRequest { progress: None, ..self.clone() }) == Self::default()
        {
            return Ok(None);
        }
        let mut asked = self;
        let wanted = "a boolean (true for all documents) or an object of documents, question and heads";
        let score = asked.sent_score.take().map(|field| field.options("palimpsest.score", wanted));
        asked.score = score.transpose()?.flatten().map(|score| score.checked(model)).transpose()?;
        match &asked.answer {
            Some(OneOf::Bool(false)) => asked.answer = None,
            Some(OneOf::Other(tokens)) => check_tokens("palimpsest.answer", tokens, model.spec.vocab)?,
            Some(number @ OneOf::Number(_)) => {
                return Err(number.wrong(
                    "palimpsest.answer",
                    "a boolean (true for the last message), a string or an array of token ids",
                ));
            }
            _ => {}
        }
        let options = |field: Option<OneOf<CausesOptions>>, path: &str| {
            let wanted =
                "a boolean (true for all documents and named spans) or an object of spans, from and controls";
            field.map(|field| field.options(path, wanted)).transpose()
        };
        let causes = options(asked.sent_causes.take(), "palimpsest.causes")?.flatten();
        let cite = options(asked.sent_cite.take(), "palimpsest.cite")?.flatten();
        (asked.tells_causes, asked.cite) = (causes.is_some(), cite.is_some());
        asked.causes = CausesOptions::shared(causes, cite)?;
        if asked.score.is_some() && !asked.knockouts.is_empty() {
            let reason = "is held against a neutral question with nothing blocked; leave out palimpsest.knockouts, or the score";
            return Err(ApiError::at("palimpsest.score", reason));
        }
        asked.check_measures()?;
        if !asked.targets.is_empty() && (asked.cite || !asked.ranges.is_empty()) {
            let reason = "take a logit apart by spans that share no token; leave out palimpsest.spans and palimpsest.cite, or the targets";
            return Err(ApiError::at("palimpsest.targets", reason));
        }
        let asks = asked.score.is_some()
            || asked.answer.is_some()
            || asked.causes.is_some()
            || !asked.knockouts.is_empty()
            || !asked.targets.is_empty()
            || !asked.rows.is_empty()
            || asked.tokens;
        if !asks {
            let reason = "is missing or empty; give 1 to 4096 names of spans, last, answer or each";
            return Err(ApiError::at("palimpsest.rows", reason).with_code("missing_required_parameter"));
        }
        if let Some(heads) = &asked.sent_heads {
            asked.heads = Heads::of(heads, "palimpsest.heads", model)?;
        }
        if asked.layers.is_some() && matches!(asked.heads, Heads::These { .. }) {
            let reason = "is for the mean and for all heads; single heads are named with their layers, so leave it out";
            return Err(ApiError::at("palimpsest.layers", reason));
        }
        if let Some(layers) = &mut asked.layers {
            check_layers(layers, model.spec.layers.len())?;
        }
        for (i, range) in asked.ranges.iter_mut().enumerate() {
            range.field = format!("palimpsest.spans[{i}]");
            let RangeRequest { field, start, end, .. } = range;
            if start >= end {
                let message = format!("`{field}` goes from {start} to {end}; give at least one character");
                return Err(ApiError::field(format!("{field}.end"), message));
            }
        }
        Ok(Some(asked))
    }

    pub fn tells(&self, measure: Measure) -> bool {
        self.measures.as_deref().unwrap_or(&Measure::USUAL).contains(&measure)
    }

    pub fn lengths(&self) -> bool {
        self.measures.iter().flatten().any(|measure| measure.is_length())
    }

    pub fn each(&self) -> bool {
        self.rows.iter().any(|row| row == "each")
    }

    /// True if per-token masses are kept until the answer ends.
    pub fn keeps_each(&self) -> bool {
        self.cite || self.each()
    }

    /// True if a reported row sees generated tokens.
    pub fn answers(&self) -> bool {
        self.each() || self.rows.iter().any(|row| row == "answer")
    }

    /// Logits to attribute, for a prompt of `tokens` tokens.
    pub fn targets(&self, model: &ServedModel, tokens: usize) -> Result<Vec<Target>, ApiError> {
        let most = model.spec.vocab.saturating_sub(1);
        let id = |field: String, name: &TokenName| match (name, name.ids(&model.text.tokenizer)?.as_slice()) {
            (_, &[id]) if id as usize <= most => Ok(id),
            (TokenName::Text(text), several) => {
                let reason = format!(
                    "is {text:?}, which is {} tokens of the model; give the text of one, with the space before it where there is one, or \
                     its id",
                    several.len()
                );
                Err(ApiError::at(field, reason))
            }
            (TokenName::Id(id), _) => {
                Err(ApiError::at(field, format!("is {id}; the model's token ids are 0 to {most}")))
            }
        };
        let target = |(i, target): (usize, &TokenTarget)| {
            let field = |name: &str| format!("palimpsest.targets[{i}].{name}");
            let position = target.position.unwrap_or(tokens.saturating_sub(1));
            if position >= tokens {
                let reason = format!(
                    "is {position}; the prompt has {tokens} tokens, and positions count from 0; leave it out for the last one"
                );
                return Err(ApiError::at(field("position"), reason));
            }
            let against = target.against.as_ref().map(|name| id(field("against"), name));
            Ok(Target { position, token: id(field("token"), &target.token)?, against: against.transpose()? })
        };
        self.targets.iter().enumerate().map(target).collect()
    }

    /// Top keys of prompt rows and up to `most` generated rows. Fails above the memory limit.
    pub fn top_keys(
        &self,
        model: &ServedModel,
        rows: &Rows,
        most: usize,
    ) -> Result<Option<TopRequest>, ApiError> {
        let Some(k) = self.top_keys else { return Ok(None) };
        let mean = self.heads == Heads::Mean;
        let of_layer =
            |layer: &LayerSpec| layer.attention().map_or(0, |spec| if mean { 1 } else { spec.heads });
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

    /// Refuses requests above the memory limit: `spans` columns, and up to `most` generated rows if each token is one.
    pub fn check_size(&self, model: &ServedModel, spans: usize, most: usize) -> Result<(), ApiError> {
        let heads = |layer: &LayerSpec| {
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

    /// Refuses duplicate measures, and norms of generated rows.
    fn check_measures(&self) -> Result<(), ApiError> {
        let measures = self.measures.as_deref().unwrap_or_default();
        for (i, measure) in measures.iter().enumerate() {
            let reason = if measures[..i].contains(measure) {
                "names a measure again; name it once"
            } else if measure.is_length() && (self.score.is_some() || self.answers()) {
                "is of the prompt's rows; leave out the rows answer and each, and palimpsest.score, whose row is the answer's"
            } else if measure.is_length() && self.rows.is_empty() {
                "is of rows, and none are named; name some in palimpsest.rows"
            } else {
                continue;
            };
            return Err(ApiError::at(format!("palimpsest.measures[{i}]"), reason));
        }
        Ok(())
    }
}

impl CausesOptions {
    /// Options of `causes` and `cite`, which share readings.
    fn shared(causes: Option<Self>, cite: Option<Self>) -> Result<Option<Self>, ApiError> {
        let none = Self::default();
        match (causes, cite) {
            (Some(causes), Some(cite)) if cite == none || cite == causes => Ok(Some(causes)),
            (Some(causes), Some(cite)) if causes == none => Ok(Some(cite)),
            (Some(_), Some(_)) => {
                let reason = "has other options than palimpsest.causes, and both come from the same readings; give them once, and \
                              true for the other";
                Err(ApiError::at("palimpsest.cite", reason))
            }
            (causes, cite) => Ok(causes.or(cite)),
        }
    }
}

impl ScoreRequest {
    fn checked(mut self, model: &ServedModel) -> Result<Self, ApiError> {
        let labels = &self.documents;
        if let Some(i) = (1..labels.len()).find(|&i| labels[..i].contains(&labels[i])) {
            let reason = "names a span again; name it once";
            return Err(ApiError::at(format!("palimpsest.score.documents[{i}]"), reason));
        }
        let name = "palimpsest.score.heads";
        let heads = self.sent_heads.take().map(|heads| Heads::of(&heads, name, model)).transpose()?;
        if heads == Some(Heads::Mean) {
            return Err(ApiError::at(
                name,
                "is \"mean\"; give \"all\", \"retrieval\" or pairs [layer, head]",
            ));
        }
        self.heads = heads;
        Ok(self)
    }
}

fn check_layers(layers: &mut [usize], all: usize) -> Result<(), ApiError> {
    for (i, layer) in layers.iter().enumerate() {
        let reason = match *layer < all {
            false => format!("is {layer}; the model's layers are 0 to {}", all.saturating_sub(1)),
            true if layers[..i].contains(layer) => format!("names layer {layer} again; name it once"),
            true => continue,
        };
        return Err(ApiError::at(format!("palimpsest.layers[{i}]"), reason));
    }
    layers.sort_unstable();
    Ok(())
}
