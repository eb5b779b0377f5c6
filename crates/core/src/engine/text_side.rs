//! The text side of a model: its tokeniser, its chat template, and the tokens that end a turn.

use std::path::Path;

use serde_json::Value;

use super::local_error::LocalError;
use crate::model::weights::GgufFile;
use crate::model::weights::gguf_tokenizer::tokenizer_fields;
use crate::model::{ModelError, ModelFiles, ModelKind};
use crate::text::{ChatTemplate, Tokenizer};

/// Tokens that end a turn in the chat formats of the known models. A file names one or two of them as its end of text;
/// models trained on several formats use the others too.
const TURN_ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|return|>",
    "<|user|>",
];

/// Everything between text and tokens for one model.
pub struct TextSide {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Conversations to text.
    pub template: ChatTemplate,
    /// Tokens that end a turn, ascending.
    pub stop: Vec<u32>,
}

impl TextSide {
    /// Reads the text side of a model's files; weights are not touched.
    pub fn open(files: &ModelFiles) -> Result<Self, LocalError> {
        let (tokenizer, template, mut stop) = match &files.kind {
            ModelKind::Gguf(parts) => {
                let file = GgufFile::open(parts).map_err(ModelError::from)?;
                let fields = tokenizer_fields(&file).map_err(ModelError::from)?;
                let stop = [fields.eos, fields.eot].into_iter().flatten().collect();
                (Tokenizer::from_gguf_metadata(&fields)?, ChatTemplate::from_gguf(&fields)?, stop)
            }
            ModelKind::Folder(folder) => (
                Tokenizer::from_file(&folder.join("tokenizer.json"))?,
                ChatTemplate::from_folder(folder)?,
                folder_stop_tokens(folder)?,
            ),
        };
        template.check_tokens(&tokenizer)?;
        stop.extend(TURN_ENDS.iter().filter_map(|token| tokenizer.token_id(token)));
        stop.sort_unstable();
        stop.dedup();
        Ok(TextSide { tokenizer, template, stop })
    }
}

/// `eos_token_id` of generation_config.json and config.json: a number or a list of them.
fn folder_stop_tokens(folder: &Path) -> Result<Vec<u32>, ModelError> {
    let mut stop: Vec<u32> = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        let place = path.display().to_string();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(ModelError::Io { place, source }),
        };
        let config: Value = serde_json::from_slice(&text)
            .map_err(|source| ModelError::Json { place: place.clone(), source })?;
        // Checkpoints of several parts state it for the language model.
        let stated = match &config["eos_token_id"] {
            Value::Null => &config["text_config"]["eos_token_id"],
            stated => stated,
        };
        let ids = match stated {
            Value::Null => continue,
            Value::Array(ids) => ids.iter().map(Value::as_u64).collect::<Option<Vec<_>>>(),
            id => id.as_u64().map(|id| vec![id]),
        };
        let ids =
            ids.and_then(|ids| ids.into_iter().map(|id| u32::try_from(id).ok()).collect::<Option<Vec<_>>>());
        stop.extend(ids.ok_or_else(|| ModelError::Config {
            place,
            field: "eos_token_id".to_owned(),
            problem: format!("is {stated}, not a token id or a list of them"),
        })?);
    }
    Ok(stop)
}
