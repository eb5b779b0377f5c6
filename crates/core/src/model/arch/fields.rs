//! Typed access to config.json fields, with errors that name file, field and value.
//!
//! [`Fields::finish`] rejects fields that were neither read nor known to be harmless, since ignoring them could change the model.

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

/// Fields that do not affect the computation of a trained model on text: names, training, vision, caching.
const HARMLESS: [&str; 91] = [
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "audio_config",
    "audio_token_id",
    "auto_map",
    "bf16",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "bos_token",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "cross_attention_hidden_size",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "eos_token",
    "experts_implementation",
    "finetuning_task",
    "fp16",
    "fp32",
    "gradient_checkpointing",
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
    "mask_token_id",
    "max_sequence_length",
    "mm_tokens_per_image",
    "model_max_length",
    "model_type",
    "mtp_num_hidden_layers",
    "mtp_transformer_layers",
    "mtp_use_dedicated_embeddings",
    "multimodal_projector_bias",
    "name_or_path",
    "num_mtp_layers",
    "num_mtp_modules",
    "num_nextn_predict_layers",
    "output_router_logits",
    "pad_token",
    "padding_side",
    "prefix",
    "problem_type",
    "projector_hidden_act",
    "pruned_heads",
    "resid_pdrop",
    "residual_dropout",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "seq_length",
    "spatial_merge_size",
    "task_specific_params",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "tokenizer_model_max_length",
    "tokenizer_padding_side",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_soft_tokens_per_image",
    "vision_start_token_id",
];

/// Fields of transformers' `GenerationConfig` (5.24), which older versions wrote into config.json; they affect sampling only.
const GENERATION: [&str; 71] = [
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "constraints",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "diversity_penalty",
    "do_sample",
    "dola_layers",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "eos_token_id",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_cache_len",
    "max_length",
    "max_matching_ngram_size",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "penalty_alpha",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "return_dict_in_generate",
    "sequence_bias",
    "speculation_type",
    "stop_strings",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "token_healing",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
    "use_cache",
    "use_mtp",
    "watermarking_config",
];

/// The config in `text`; the reader of every config.json. An `Infinity` of Python's, which is no JSON, is read as null.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text)
        .or_else(|error| serde_json::from_slice(&without_infinity(text)).map_err(|_| error))
}

/// `text` with null in place of each `Infinity` outside strings.
fn without_infinity(text: &[u8]) -> Vec<u8> {
    const INFINITY: &[u8] = b"Infinity";
    let mut out = Vec::with_capacity(text.len());
    let (mut rest, mut quoted, mut escaped) = (text, false, false);
    while let Some((&byte, after)) = rest.split_first() {
        if !quoted && rest.starts_with(INFINITY) {
            out.extend_from_slice(b"null");
            rest = &rest[INFINITY.len()..];
            continue;
        }
        quoted ^= byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
        out.push(byte);
        rest = after;
    }
    out
}

impl<'a> Fields<'a> {
    /// The fields of the object `config`; `place` names the file in errors.
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

    /// Value of a field; null counts as absent.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        let (name, value) = self.object.get_key_value(field)?;
        self.read.borrow_mut().insert(name);
        Some(value).filter(|v| !v.is_null())
    }

    /// True if the field is there, even if it is null.
    pub fn states(&self, field: &str) -> bool {
        self.object.contains_key(field)
    }

    /// Names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.object.keys().map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// Rejects the first field that was not read, is not harmless and has a value other than null, false, 0 or empty.
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
                && !GENERATION.contains(&name.as_str())
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

    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ModelError> {
        self.get(field).map(|v| Fields::new(v, &format!("{}: `{field}`", self.place))).transpose()
    }

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

    pub fn text(&self, field: &str) -> Result<&'a str, ModelError> {
        let found = self.typed(field, "a string", Value::as_str)?;
        self.required(field, found)
    }

    pub fn optional_text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub fn optional_list(&self, field: &str) -> Result<Option<&'a Vec<Value>>, ModelError> {
        self.typed(field, "a list", Value::as_array)
    }

    /// Rejects a string field that is none of `wanted`; it may be absent.
    pub fn expect_text(&self, field: &str, wanted: &[&str]) -> Result<(), ModelError> {
        match self.optional_text(field)? {
            Some(found) if !wanted.contains(&found) => {
                let wanted = wanted.join("` or `");
                Err(self.refuse(field, format!("is `{found}`; this architecture is built for `{wanted}`")))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a field other than `wanted`; it may be absent. Numbers are equal by value.
    pub fn expect(&self, field: &str, wanted: impl Into<Value>) -> Result<(), ModelError> {
        let wanted = wanted.into();
        let same = |found: &Value| match (found.as_f64(), wanted.as_f64()) {
            (Some(found), Some(wanted)) => found == wanted,
            _ => *found == wanted,
        };
        match self.get(field) {
            Some(found) if !same(found) => {
                Err(self.refuse(field, format!("is {found}; this architecture is built for {wanted}")))
            }
            _ => Ok(()),
        }
    }

    /// A required positive count of at most 2^24; sizes are multiplied, so larger ones could overflow.
    pub fn count(&self, field: &str) -> Result<usize, ModelError> {
        let found = self.optional_count(field)?;
        self.required(field, found)
    }

    pub fn optional_count(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number from 1 to 16777216", |v| {
            v.as_u64().filter(|n| (1..=1 << 24).contains(n)).map(|n| n as usize)
        })
    }

    pub fn optional_number(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.typed(field, "a whole number from 0 to 16777216", |v| {
            v.as_u64().filter(|n| *n <= 1 << 24).map(|n| n as usize)
        })
    }

    pub fn positive(&self, field: &str) -> Result<f64, ModelError> {
        let found = self.optional_positive(field)?;
        self.required(field, found)
    }

    pub fn optional_positive(&self, field: &str) -> Result<Option<f64>, ModelError> {
        self.typed(field, "a number above 0", |v| v.as_f64().filter(|x| x.is_finite() && *x > 0.0))
    }

    pub fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        Ok(self.typed(field, "true or false", Value::as_bool)?.unwrap_or(default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_infinity_is_read_as_null_and_other_faults_stay_errors() -> serde_json::Result<()> {
        let limits = |text: &str| parse(text.as_bytes()).map(|config| config["limits"].clone());
        for text in ["{\"limits\": [0.0, Infinity]}", "{\"limits\":[0.0,\n\tInfinity]}"] {
            assert_eq!(limits(text)?, serde_json::json!([0.0, null]));
        }
        assert_eq!(limits("{\"limits\": Infinity}")?, Value::Null);
        assert_eq!(limits("{\"other\": Infinity, \"limits\": \"a \\\" to Infinity\"}")?, "a \" to Infinity");
        for text in ["{\"limits\": [0.0, Infinity}", "{\"limits\": -Infinity}", "{\"limits\": NaN}"] {
            assert!(limits(text).is_err(), "{text}");
        }
        Ok(())
    }
}
