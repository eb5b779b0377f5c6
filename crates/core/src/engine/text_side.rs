//! Text side of a model: tokeniser, chat template and end tokens.

use std::path::Path;

use serde_json::Value;

use super::end_tokens::{EndToken, end_tokens};
use super::local_error::LocalError;
use crate::model::weights::GgufFile;
use crate::model::weights::gguf_tokenizer::tokenizer_fields;
use crate::model::{ModelError, ModelFiles, ModelKind, arch};
use crate::text::{ChatTemplate, Tokenizer};

/// Tokeniser, chat template and end tokens of a model.
pub struct TextSide {
    /// The tokeniser.
    pub tokenizer: Tokenizer,
    /// The chat template.
    pub template: ChatTemplate,
    /// End-token ids, ascending.
    pub stop: Vec<u32>,
    /// The end tokens with the files that state them.
    pub ends: Vec<EndToken>,
}

impl TextSide {
    /// Reads a model's files, without weights.
    pub fn open(files: &ModelFiles) -> Result<Self, LocalError> {
        let (tokenizer, template, stated) = match &files.kind {
            ModelKind::Gguf(parts) => {
                let file = GgufFile::open(parts).map_err(ModelError::from)?;
                let fields = tokenizer_fields(&file).map_err(ModelError::from)?;
                let keys = [("eos", fields.eos), ("eot", fields.eot), ("eom", fields.eom)];
                let stated = keys.into_iter().filter_map(|(key, id)| Some((format!("GGUF {key}"), id?)));
                (Tokenizer::from_gguf_metadata(&fields)?, ChatTemplate::from_gguf(&fields)?, stated.collect())
            }
            ModelKind::Folder(folder) => {
                let tokenizer = Tokenizer::from_file(&folder.join("tokenizer.json"))?;
                let template = ChatTemplate::from_folder(folder)?;
                let stated = folder_end_tokens(folder, &tokenizer)?;
                (tokenizer, template, stated)
            }
        };
        template.check_tokens(&tokenizer)?;
        let ends = end_tokens(&tokenizer, stated);
        let stop = ends.iter().map(|end| end.id).collect();
        Ok(TextSide { tokenizer, template, stop, ends })
    }
}

/// End tokens stated by a folder: `eos_token` of tokenizer_config.json, and `eos_token_id` (number or list; negative: none) of others.
fn folder_end_tokens(folder: &Path, tokenizer: &Tokenizer) -> Result<Vec<(String, u32)>, ModelError> {
    let mut stated: Vec<(String, u32)> = Vec::new();
    let name = "tokenizer_config.json";
    if let Some(config) = json(&folder.join(name))? {
        let token = &config["eos_token"];
        let text = token.as_str().or_else(|| token["content"].as_str());
        stated.extend(text.and_then(|text| tokenizer.token_id(text)).map(|id| (name.to_owned(), id)));
    }
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        let Some(config) = json(&path)? else { continue };
        // Multi-part checkpoints state it for the language model.
        let field = match &config["eos_token_id"] {
            Value::Null => &config["text_config"]["eos_token_id"],
            field => field,
        };
        let listed = match field {
            Value::Null => &[][..],
            Value::Array(ids) => ids,
            id => std::slice::from_ref(id),
        };
        for id in listed {
            match id.as_i64() {
                Some(..0) => {}
                Some(id) if u32::try_from(id).is_ok() => stated.push((name.to_owned(), id as u32)),
                _ => {
                    return Err(ModelError::Config {
                        place: path.display().to_string(),
                        field: "eos_token_id".to_owned(),
                        problem: format!("is {field}, not a token id or a list of them"),
                    });
                }
            }
        }
    }
    Ok(stated)
}

fn json(path: &Path) -> Result<Option<Value>, ModelError> {
    let place = path.display().to_string();
    match std::fs::read(path) {
        Ok(text) => arch::parse(&text).map(Some).map_err(|source| ModelError::Json { place, source }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelError::Io { place, source }),
    }
}
