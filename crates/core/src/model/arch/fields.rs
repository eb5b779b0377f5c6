//! Typed access to the fields of a config.json, with errors that name file, field and value.
//!
//! What was read is remembered: a field that no one read, and that is not known to leave the maths alone, is refused by
//! name ([`Fields::finish`]), because a model run without it could be another model.

use std::cell::RefCell;
use std::collections::HashSet;

use serde_json::Value;

use super::ModelError;

/// The fields of a config object.
pub struct Fields<'a> {
    object: &'a serde_json::Map<String, Value>,
    place: String,
    read: RefCell<HashSet<&'a str>>,
}

/// Fields that change nothing about what a trained model computes on text: names, training, generation, vision, caching.
const HARMLESS: [&str; 71] = [
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "audio_config",
    "auto_map",
    "boi_token_index",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "embedding_dropout",
    "eoi_token_index",
    "eos_token_id",
    "experts_implementation",
    "finetuning_task",
    "hidden_dropout",
    "id2label",
    "image_token_id",
    "image_token_index",
    "initial_context_length",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "language_model_only",
    "mamba_ssm_dtype",
    "max_length",
    "max_new_tokens",
    "min_length",
    "mm_tokens_per_image",
    "model_type",
    "mtp_num_hidden_layers",
    "mtp_transformer_layers",
    "mtp_use_dedicated_embeddings",
    "num_mtp_layers",
    "num_mtp_modules",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_mtp",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
];

impl<'a> Fields<'a> {
    /// The fields of `config`, which must be an object. `place` is the file's name for errors.
    pub fn new(config: &'a Value, place: &str) -> Result<Self, ModelError> {
        match config {
            Value::Object(object) => Ok(Fields { object, place: place.to_owned(), read: RefCell::default() }),
            other => Err(ModelError::Config {
                place: place.to_owned(),
                field: "config".to_owned(),
                problem: format!("is {other}, not an object of fields"),
            }),
        }
    }

    /// The value of a field; null counts as absent.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        let (name, value) = self.object.get_key_value(field)?;
        self.read.borrow_mut().insert(name);
        Some(value).filter(|v| !v.is_null())
    }

    /// True if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// Refuses the first field that no one has read, that is not known to be harmless and that says something: not null,
    /// false, 0, or empty.
    pub fn finish(&self) -> Result<(), ModelError> {
        let says_nothing = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Number(n) => n.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(true) => false,
        };
        let read = self.read.borrow();
        let unknown = self.object.iter().find(|(name, value)| {
            !read.contains(name.as_str())
                && !HARMLESS.contains(&name.as_str())
                && !name.starts_with('_')
                && !says_nothing(value)
        });
        match unknown {
            None => Ok(()),
            Some((name, value)) => {
                let mut shown = value.to_string();
                if shown.chars().count() > 60 {
                    shown = shown.chars().take(60).collect::<String>() + "...";
                }
                Err(self.refuse(
                    name,
                    format!(
                        "is {shown}, a field that this architecture is not known to have; it may change the maths, so it is not passed over. If it changes nothing, take it out of the file"
                    ),
                ))
            }
        }
    }

    /// An object-valued field.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ModelError> {
        self.get(field).map(|v| Fields::new(v, &format!("{}: `{field}`", self.place))).transpose()
    }

    /// An error about a field.
    pub fn refuse(&self, field: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config { place: self.place.clone(), field: field.to_owned(), problem: problem.into() }
    }

    fn typed<T>(
        &self,
        field: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(found) => Ok(Some(found)),
                None => Err(self.refuse(field, format!("is {value}, not {wanted}"))),
            },
        }
    }

    fn required<T>(&self, field: &str, found: Option<T>) -> Result<T, ModelError> {
        found.ok_or_else(|| self.refuse(field, "is missing"))
    }

    /// A required string.
    pub fn text(&self, field: &str) -> Result<&'a str, ModelError> {
        let found = self.typed(field, "a string", Value::as_str)?;
        self.required(field, found)
    }

    /// An optional string.
    pub fn optional_text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(field, "a string", Value::as_str)
    }

    /// An optional list.
    pub fn optional_list(&self, field: &str) -> Result<Option<&'a Vec<Value>>, ModelError> {
        self.typed(field, "a list", Value::as_array)
    }

    /// Refuses a string field that is there and is none of `wanted`.
    pub fn expect_text(&self, field: &str, wanted: &[&str]) -> Result<(), ModelError> {
        match self.optional_text(field)? {
            Some(found) if !wanted.contains(&found) => {
                let wanted = wanted.join("` or `");
                Err(self.refuse(field, format!("is `{found}`; this architecture is built for `{wanted}`")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a field that is there and is not `wanted`.
    pub fn expect(&self, field: &str, wanted: &Value) -> Result<(), ModelError> {
        match self.get(field) {
            Some(found) if found != wanted => {
                Err(self.refuse(field, format!("is {found}; this architecture is built for {wanted}")))
            }
            _ => Ok(()),
        }
    }

    /// A required positive count of at most 2^24 (2^32 would already be no size of a model, and sizes are multiplied).
    pub fn count(&self, field: &str) -> Result<usize, ModelError> {
        let found = self.optional_count(field)?;
        self.required(field, found)
    }

    /// An optional positive count of at most 2^24.
    pub fn optional_count(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number from 1 to 16777216", |v| {
            v.as_u64().filter(|n| (1..=1 << 24).contains(n)).map(|n| n as usize)
        })
    }

    /// An optional whole number from 0 to 2^24.
    pub fn optional_number(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number from 0 to 16777216", |v| {
            v.as_u64().filter(|n| *n <= 1 << 24).map(|n| n as usize)
        })
    }

    /// Refuses a number that is there and is not `wanted`.
    pub fn expect_number(&self, field: &str, wanted: f64) -> Result<(), ModelError> {
        match self.typed(field, "a number", Value::as_f64)? {
            Some(found) if found != wanted => {
                Err(self.refuse(field, format!("is {found}; this architecture is built for {wanted}")))
            }
            _ => Ok(()),
        }
    }

    /// A required finite number above 0.
    pub fn positive(&self, field: &str) -> Result<f64, ModelError> {
        let found = self.optional_positive(field)?;
        self.required(field, found)
    }

    /// An optional finite number above 0.
    pub fn optional_positive(&self, field: &str) -> Result<Option<f64>, ModelError> {
        self.typed(field, "a number above 0", |v| v.as_f64().filter(|x| x.is_finite() && *x > 0.0))
    }

    /// An optional truth value.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.typed(field, "true or false", Value::as_bool)?.unwrap_or(default))
    }
}
