//! Request side of the extension: the field `"palimpsest"`.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::error::{ApiError, ensure};
use super::json::{count, found, list, read_at, text};
use super::model::{Pairs, ServedModel};
use super::prompts::check_tokens;
use palimpsest_core::attention::{Knockout, Target};
use palimpsest_core::engine::{Rows, TopRequest};
use palimpsest_core::evict::Evict;
use palimpsest_core::model::DecoderSpec;
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
    /// Keys evicted before the question.
    pub evict: Option<Evict>,
    /// Spans to hide in turn, for effects on the whole answer.
    pub causes: Option<CausesOptions>,
    /// The same, for cited sentences with their supporting spans.
    pub cite: Option<CausesOptions>,
    #[serde(rename = "heads")]
    sent_heads: Option<Value>,
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
    /// Also what the layers' windows left to the rows.
    pub selected: bool,
    pub tokens: bool,
    pub token_ids: bool,
    pub encoding: Encoding,
    #[serde(rename = "spans", deserialize_with = "list::<0, 4096, _, _>")]
    pub ranges: Vec<RangeRequest>,
    pub units: Units,
    pub score: Option<ScoreRequest>,
    /// A given answer: a text, tokens, or true for the last message.
    pub answer: Option<Value>,
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
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a boolean (true for all documents) or an object of documents, question and heads"
)]
pub struct ScoreRequest {
    #[serde(deserialize_with = "list::<1, 4096, _, _>")]
    pub documents: Vec<String>,
    pub question: Option<String>,
    #[serde(rename = "heads")]
    sent_heads: Option<Value>,
    #[serde(skip)]
    pub heads: Option<Heads>,
}

/// Hidden spans, and the first position that does not see them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a boolean (true for all documents and named spans) or an object of spans, from and controls"
)]
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

/// Options may be sent as `true` for the defaults, and as `false` for none.
pub fn drop_flags(asked: &mut Value) {
    let Some(fields) = asked.as_object_mut() else { return };
    for name in ["causes", "cite", "score"] {
        if fields.get(name) == Some(&Value::Bool(true)) {
            fields[name] = json!({});
        }
    }
    fields.retain(|name, value| {
        *value != Value::Bool(false) || !["causes", "cite", "score", "answer"].contains(&name.as_str())
    });
}

impl AttentionRequest {
    /// Validates against the model; `None` if only `progress` is requested.
    pub fn checked(mut self, model: &ServedModel) -> Result<Option<Self>, ApiError> {
        if self.progress.is_some() && (AttentionRequest { progress: None, ..self.clone() }) == Self::default()
        {
            return Ok(None);
        }
        self.score.iter_mut().try_for_each(|score| score.check(model))?;
        match &self.answer {
            Some(tokens @ Value::Array(_)) => {
                let tokens: Vec<u32> = read_at("palimpsest.answer", tokens)?;
                check_tokens("palimpsest.answer", &tokens, model.spec.vocab)?;
            }
            None | Some(Value::Bool(_) | Value::String(_)) => {}
            Some(other) => {
                let wanted = "a boolean (true for the last message), a string or an array of token ids";
                return Err(ApiError::wrong("palimpsest.answer", found(other), wanted));
            }
        }
        self.check_evict()?;
        self.share_causes()?;
        let reason = "is held against a neutral question with nothing blocked; leave out palimpsest.knockouts, or the score";
        ensure(self.score.is_none() || self.knockouts.is_empty(), "palimpsest.score", reason)?;
        self.check_measures()?;
        let reason =
            "is of rows, and none is named beside each; name a span, last or answer in palimpsest.rows";
        ensure(!self.selected || self.rows.iter().any(|row| row != "each"), "palimpsest.selected", reason)?;
        let apart = self.cite.is_none() && self.ranges.is_empty();
        let reason = "take a logit apart by spans that share no token; leave out palimpsest.spans and palimpsest.cite, or the targets";
        ensure(self.targets.is_empty() || apart, "palimpsest.targets", reason)?;
        let asks = self.score.is_some()
            || self.answer.is_some()
            || self.causes().is_some()
            || !self.knockouts.is_empty()
            || self.evict.is_some()
            || !self.targets.is_empty()
            || !self.rows.is_empty()
            || self.tokens;
        if !asks {
            let reason = "is missing or empty; give 1 to 4096 names of spans, last, answer or each";
            return Err(ApiError::at("palimpsest.rows", reason).with_code("missing_required_parameter"));
        }
        if let Some(heads) = &self.sent_heads {
            self.heads = Heads::of(heads, "palimpsest.heads", model)?;
        }
        let of_layers = self.layers.is_none() || !matches!(self.heads, Heads::These { .. });
        let reason =
            "is for the mean and for all heads; single heads are named with their layers, so leave it out";
        ensure(of_layers, "palimpsest.layers", reason)?;
        if let Some(layers) = &mut self.layers {
            check_layers(layers, model.spec.layers.len())?;
        }
        for (i, range) in self.ranges.iter_mut().enumerate() {
            range.field = format!("palimpsest.spans[{i}]");
            let RangeRequest { field, start, end, .. } = range;
            if start >= end {
                let message = format!("`{field}` goes from {start} to {end}; give at least one character");
                return Err(ApiError::field(format!("{field}.end"), message));
            }
        }
        Ok(Some(self))
    }

    /// Options of the readings that `causes` and `cite` share.
    pub fn causes(&self) -> Option<&CausesOptions> {
        self.causes.as_ref().or(self.cite.as_ref())
    }

    /// Refuses measurements that are not taken over evicted keys.
    fn check_evict(&self) -> Result<(), ApiError> {
        let apart = [
            ("palimpsest.knockouts", !self.knockouts.is_empty()),
            ("palimpsest.causes", self.causes.is_some()),
            ("palimpsest.cite", self.cite.is_some()),
            ("palimpsest.score", self.score.is_some()),
            ("palimpsest.targets", !self.targets.is_empty()),
            ("palimpsest.top_keys", self.top_keys.is_some()),
            ("value_norm and output_norm in palimpsest.measures", self.lengths()),
        ];
        match apart.iter().find(|(_, asked)| self.evict.is_some() && *asked) {
            None => Ok(()),
            Some((other, _)) => {
                let reason = format!("cannot be asked together with {other}; leave one of them out");
                Err(ApiError::at("palimpsest.evict", reason))
            }
        }
    }

    /// Gives `causes` the options of `cite`, if only these are sent.
    fn share_causes(&mut self) -> Result<(), ApiError> {
        let (Some(causes), Some(cite)) = (&mut self.causes, &self.cite) else { return Ok(()) };
        if *causes == CausesOptions::default() {
            causes.clone_from(cite);
        }
        let same = *cite == CausesOptions::default() || *cite == *causes;
        let reason = "has other options than palimpsest.causes, and both come from the same readings; give them once, and true for \
                      the other";
        ensure(same, "palimpsest.cite", reason)
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
        self.cite.is_some() || self.each()
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
            let reason = format_args!(
                "is {position}; the prompt has {tokens} tokens, and positions count from 0; leave it out for the last one"
            );
            ensure(position < tokens, field("position"), reason)?;
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
        let layers = model.spec.layers.iter().filter(|layer| layer.attention().is_some()).count();
        let heads = if mean { layers } else { count_heads(&model.spec).0 };
        let a_position = 2 * k * heads.max(1);
        let generated = if rows.answer.any() { most } else { 0 };
        let positions = rows.spans.iter().map(|row| row.len()).sum::<usize>().saturating_add(generated);
        let fit = MOST_NUMBERS / a_position;
        let reason = format_args!(
            "of {k} keys is kept for at most {fit} positions, and the rows have {positions}; give fewer keys, shorter rows, or \
             fewer tokens to be generated"
        );
        ensure(positions <= fit, "palimpsest.top_keys", reason)?;
        Ok(Some(TopRequest { k, mean }))
    }

    /// Refuses requests above the memory limit: `spans` columns, and up to `most` generated rows if each token is one.
    pub fn check_size(&self, model: &ServedModel, spans: usize, most: usize) -> Result<(), ApiError> {
        let (softmax, linear) = count_heads(&model.spec);
        let a_row = (softmax + linear).saturating_mul(spans + 1).max(1);
        let (rows, fit) = (self.rows.len(), MOST_NUMBERS / a_row);
        if rows > fit {
            let message = format!(
                "{rows} rows over {spans} spans are more than the {fit} rows that are kept at most; name fewer rows or spans"
            );
            return Err(ApiError::field("palimpsest.rows", message));
        }
        let fit = fit - rows;
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

impl ScoreRequest {
    fn check(&mut self, model: &ServedModel) -> Result<(), ApiError> {
        let labels = &self.documents;
        if let Some(i) = (1..labels.len()).find(|&i| labels[..i].contains(&labels[i])) {
            let reason = "names a span again; name it once";
            return Err(ApiError::at(format!("palimpsest.score.documents[{i}]"), reason));
        }
        let Some(heads) = &self.sent_heads else { return Ok(()) };
        let name = "palimpsest.score.heads";
        let heads = self.heads.insert(Heads::of(heads, name, model)?);
        ensure(*heads != Heads::Mean, name, "is \"mean\"; give \"all\", \"retrieval\" or pairs [layer, head]")
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

/// Head selection: `heads` of the extension and of its score.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Heads {
    /// Mean over each layer's heads.
    #[default]
    Mean,
    All,
    These {
        pairs: Pairs,
        /// Requested as `retrieval`.
        retrieval: bool,
    },
}

impl Heads {
    /// Reads `mean`, `all`, `retrieval` or pairs [layer, head]. Refuses unknown heads, and `retrieval` if the model's are unknown.
    pub fn of(field: &Value, name: &str, model: &ServedModel) -> Result<Self, ApiError> {
        match field.as_str() {
            Some("mean") => Ok(Heads::Mean),
            Some("all") => Ok(Heads::All),
            Some("retrieval") => Heads::retrieval(model).ok_or_else(|| {
                let reason = format!(
                    "is \"retrieval\", and this server does not know which heads of {} retrieve; give \"all\" or pairs [layer, head], \
                     or ask whoever runs the server to find them (docs/serve.md)",
                    model.name()
                );
                ApiError::at(name, reason).with_code("no_retrieval_heads")
            }),
            None if field.is_array() => {
                let pairs: Vec<(usize, usize)> = read_at(name, field)?;
                check_pairs(&pairs, name, model)?;
                Ok(Heads::These { pairs: pairs.into(), retrieval: false })
            }
            _ => {
                let wanted = "\"mean\", \"all\", \"retrieval\" or an array of pairs [layer, head]";
                Err(ApiError::wrong(name, found(field), wanted))
            }
        }
    }

    pub fn retrieval(model: &ServedModel) -> Option<Self> {
        let pairs = model.retrieval.clone()?;
        Some(Heads::These { pairs, retrieval: true })
    }

    pub fn json(&self) -> Value {
        match self {
            Heads::Mean => "mean".into(),
            Heads::All => "all".into(),
            Heads::These { retrieval: true, .. } => "retrieval".into(),
            Heads::These { pairs, .. } => json!(pairs[..]),
        }
    }
}

/// Heads of softmax and of linear attention in all layers.
pub fn count_heads(spec: &DecoderSpec) -> (usize, usize) {
    let softmax = spec.layers.iter().filter_map(|layer| layer.attention()).map(|spec| spec.heads).sum();
    let linear = spec.layers.iter().filter_map(|layer| layer.linear()).map(|spec| spec.value_heads).sum();
    (softmax, linear)
}

fn check_pairs(pairs: &[(usize, usize)], name: &str, model: &ServedModel) -> Result<(), ApiError> {
    let (layers, (all, _)) = (&model.spec.layers, count_heads(&model.spec));
    if pairs.is_empty() || pairs.len() > all {
        let reason = format!("has {} pairs; give 1 to {all}, which is every head once", pairs.len());
        return Err(ApiError::at(name, reason));
    }
    for (i, &(layer, head)) in pairs.iter().enumerate() {
        let wrong = match layers.get(layer).map(|layer| layer.attention()) {
            None => {
                let last = layers.len().saturating_sub(1);
                format!("is of layer {layer}; the model's layers are 0 to {last}")
            }
            Some(None) => format!(
                "is of layer {layer}, which has linear attention and no weights of single keys; name others"
            ),
            Some(Some(spec)) if head >= spec.heads => {
                let last = spec.heads.saturating_sub(1);
                format!("is head {head}; the heads of layer {layer} are 0 to {last}")
            }
            Some(Some(_)) if pairs[..i].contains(&(layer, head)) => {
                format!("names head {head} of layer {layer} again; name it once")
            }
            Some(Some(_)) => continue,
        };
        return Err(ApiError::at(format!("{name}[{i}]"), wrong));
    }
    Ok(())
}
