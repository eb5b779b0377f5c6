//! The tokeniser that a GGUF file carries in its metadata (`tokenizer.ggml.*`), as plain fields.
//!
//! Called by the prompt room, which builds a tokeniser from the fields. Only extracts and checks that the lists agree in
//! length and that the special ids are in the vocabulary; it knows nothing of merging or of templates.

use super::gguf::{GgufError, GgufFile};

/// The tokeniser fields of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTokenizer {
    /// `tokenizer.ggml.model`: the algorithm (`gpt2` is byte-level BPE, `llama` is SentencePiece, ...).
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokeniser's splitting rule.
    pub pre: Option<String>,
    /// The vocabulary; the place in the list is the token id.
    pub tokens: Vec<String>,
    /// The kind of each token (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); empty where absent.
    pub token_types: Vec<i32>,
    /// BPE merges, best first, as `left right`; empty where absent.
    pub merges: Vec<String>,
    /// SentencePiece scores, one a token; empty where absent.
    pub scores: Vec<f32>,
    /// The token that opens a text.
    pub bos: Option<u32>,
    /// The token that ends a text.
    pub eos: Option<u32>,
    /// The token that ends a turn, where it is another one than `eos`.
    pub eot: Option<u32>,
    /// The token for what the vocabulary lacks.
    pub unk: Option<u32>,
    /// The padding token.
    pub pad: Option<u32>,
    /// Whether `bos` is put before every text; `None` where the file does not say.
    pub add_bos: Option<bool>,
    /// Whether a space is put before every text; `None` where the file does not say.
    pub add_space_prefix: Option<bool>,
    /// The chat template (Jinja), where there is one.
    pub chat_template: Option<String>,
}

/// The tokeniser fields of a GGUF file.
///
/// # Errors
/// A missing vocabulary, a value of the wrong type, lists of different lengths, or a special id outside the vocabulary.
pub fn tokenizer_fields(file: &GgufFile) -> Result<GgufTokenizer, GgufError> {
    let text = |key: &str| Ok::<_, GgufError>(file.get::<&str>(key)?.map(str::to_string));
    let tokens: &[String] = file.require("tokenizer.ggml.tokens")?;
    let id = |name: &str| -> Result<Option<u32>, GgufError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match file.get::<u32>(&key)? {
            Some(id) if id as usize >= tokens.len() => {
                let fault = format!("is {id}, outside the vocabulary of {} tokens", tokens.len());
                Err(fault_of(file, &key, fault))
            }
            found => Ok(found),
        }
    };
    let token_types: Vec<i32> = file.get("tokenizer.ggml.token_type")?.unwrap_or_default();
    let scores: Vec<f32> = file.get("tokenizer.ggml.scores")?.unwrap_or_default();
    for (name, length) in [("token_type", token_types.len()), ("scores", scores.len())] {
        if length != 0 && length != tokens.len() {
            let fault = format!("has {length} entries for {} tokens", tokens.len());
            return Err(fault_of(file, &format!("tokenizer.ggml.{name}"), fault));
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
        unk: id("unknown")?,
        pad: id("padding")?,
        add_bos: file.get("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: file.get("tokenizer.ggml.add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
    })
}

fn fault_of(file: &GgufFile, key: &str, fault: String) -> GgufError {
    GgufError::Metadata { file: file.path().to_path_buf(), key: key.to_string(), fault }
}
