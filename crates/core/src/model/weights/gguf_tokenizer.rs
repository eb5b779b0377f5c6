//! The tokeniser fields in a GGUF file's metadata (`tokenizer.ggml.*`). Extracts them and validates list lengths only.

use super::gguf::{GgufError, GgufFile, Value};
use crate::text::GgufTokenizer;

/// The tokeniser fields of a GGUF file. Returns an error if the vocabulary is missing, a value has the wrong type or lists differ in
/// length.
pub fn tokenizer_fields(file: &GgufFile) -> Result<GgufTokenizer, GgufError> {
    let text = |key: &str| Ok::<_, GgufError>(file.get::<&str>(key)?.map(str::to_string));
    let tokens: &[String] = file.require("tokenizer.ggml.tokens")?;
    // Unset ids are written as -1 or its 32 bits, and some released files have ids beyond the vocabulary: both mean no token.
    let id = |name: &str| -> Result<Option<u32>, GgufError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let stated = match file.value(&key) {
            Some(Value::Int(id)) => u32::try_from(*id).ok(),
            _ => file.get(&key)?,
        };
        Ok(stated.filter(|&id| (id as usize) < tokens.len()))
    };
    let token_types: Vec<i32> = file.get("tokenizer.ggml.token_type")?.unwrap_or_default();
    let scores: Option<Vec<f32>> = file.get("tokenizer.ggml.scores")?;
    for (name, length) in [("token_type", token_types.len()), ("scores", scores.as_ref().map_or(0, Vec::len))]
    {
        if length != 0 && length != tokens.len() {
            return Err(GgufError::invalid(
                file.path(),
                format!(
                    ": metadata \"tokenizer.ggml.{name}\" has {length} entries for {} tokens; the file is corrupt or newer than this \
                     reader",
                    tokens.len()
                ),
            ));
        }
    }
    Ok(GgufTokenizer {
        model: file.require::<&str>("tokenizer.ggml.model")?.to_string(),
        pre: text("tokenizer.ggml.pre")?,
        tokens: tokens.to_vec(),
        token_types,
        merges: file.get::<&[String]>("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
        scores,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        pad: id("padding")?,
        add_bos: file.get("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: file.get("tokenizer.ggml.add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
    })
}
