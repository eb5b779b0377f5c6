//! A tokeniser without a model, for `palimpsest run --tokenizer`.

use std::path::Path;

use anyhow::Context;
use palimpsest_core::digest::{hex, sha256};
use palimpsest_core::model::ModelKind;
use palimpsest_core::model::weights::GgufFile;
use palimpsest_core::model::weights::gguf_tokenizer::tokenizer_fields;
use palimpsest_core::text::{CountTokens, GgufTokenizer, Tokenizer};
use sha2::{Digest, Sha256};

use super::ModelStore;
use super::error::cannot;
use palimpsest_data::prompt::{BytePairEncoding, ENCODINGS};

pub struct TokenCounter {
    pub name: String,
    /// Lower-case hex SHA-256 of `tokenizer.json`, of a GGUF vocabulary, or of the encoding's name.
    pub digest: String,
    pub tokens: Box<dyn CountTokens>,
}

impl TokenCounter {
    /// Opens an encoding ([`ENCODINGS`]), a `tokenizer.json`, or the tokeniser of a known model or one of the hub (fetched if needed), folder or .gguf file.
    pub fn open(name_or_file: &str) -> anyhow::Result<Self> {
        if ENCODINGS.contains(&name_or_file) {
            let tokens = Box::new(BytePairEncoding::named(name_or_file)?);
            // Encodings are compiled in and identified by name.
            return Ok(TokenCounter { name: name_or_file.to_owned(), digest: sha256(name_or_file), tokens });
        }
        let path = Path::new(name_or_file);
        let name = match path.file_name() {
            Some(name) if path.exists() => name.to_string_lossy().into_owned(),
            _ => name_or_file.to_owned(),
        };
        if path.extension().is_some_and(|ending| ending == "json") {
            return Self::json(name, path);
        }
        if path.join(TOKENIZER).is_file() {
            return Self::json(name, &path.join(TOKENIZER));
        }
        let files = ModelStore::open()?.resolve_text(name_or_file)?;
        match &files.kind {
            ModelKind::Folder(folder) => Self::json(files.name.clone(), &folder.join(TOKENIZER)),
            ModelKind::Gguf(parts) => {
                let file = GgufFile::open(parts)?;
                let fields = tokenizer_fields(&file)?;
                let tokens = Box::new(Tokenizer::from_gguf_metadata(&fields)?);
                Ok(TokenCounter { name: files.name.clone(), digest: vocabulary(&fields), tokens })
            }
        }
    }

    fn json(name: String, path: &Path) -> anyhow::Result<Self> {
        let tokens = Box::new(Tokenizer::from_file(path)?);
        let digest = sha256(std::fs::read(path).with_context(cannot("read", path))?);
        Ok(TokenCounter { name, digest, tokens })
    }
}

const TOKENIZER: &str = "tokenizer.json";

/// SHA-256 over all GGUF fields that determine tokenisation.
fn vocabulary(fields: &GgufTokenizer) -> String {
    let GgufTokenizer { model, pre, tokens, token_types, merges, scores, add_space_prefix, .. } = fields;
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(model.as_bytes());
    part(pre.as_deref().unwrap_or_default().as_bytes());
    for text in tokens.iter().chain(merges) {
        part(text.as_bytes());
    }
    part(&token_types.iter().flat_map(|kind| kind.to_le_bytes()).collect::<Vec<_>>());
    part(&scores.iter().flatten().flat_map(|score| score.to_le_bytes()).collect::<Vec<_>>());
    part(&[u8::from(add_space_prefix.unwrap_or(true))]);
    hex(&hash.finalize())
}
