//! Builds a tokeniser from GGUF metadata. GGUF stores the vocabulary, the merges or scores, and the *name* of the pre-tokeniser:
//! `byte_level` maps names to the published `tokenizer.json` rules; `sentence_piece` derives merges from scores.

mod byte_level;
mod fields;
mod sentence_piece;

use tokenizers::{AddedToken, Tokenizer};

use super::TextError;

pub use byte_level::KNOWN_PRE_TOKENIZERS;
pub use fields::GgufTokenizer;
use fields::{CONTROL, MERGED_PIECES, SENTENCE_PIECE, USER_DEFINED, unusable};

impl GgufTokenizer {
    pub(super) fn to_inner(&self) -> Result<Tokenizer, TextError> {
        self.check()?;
        let mut tokenizer = match self.model.as_str() {
            "gpt2" => byte_level::build(self)?,
            SENTENCE_PIECE | MERGED_PIECES => sentence_piece::build(self)?,
            other => {
                return Err(unusable(format!(
                    "model {other:?} is not known (known: gpt2, llama, gemma4); use a model folder with tokenizer.json instead"
                )));
            }
        };
        let of_type = |wanted: i32| {
            let special = wanted == CONTROL;
            (self.tokens.iter().enumerate()).filter(move |&(id, _)| self.kind(id) == wanted).map(
                move |(id, token)| {
                    AddedToken::from(self.text(id, token), special).normalized(false).special(special)
                },
            )
        };
        tokenizer.add_special_tokens(of_type(CONTROL)).map_err(|error| unusable(error.to_string()))?;
        tokenizer.add_tokens(of_type(USER_DEFINED)).map_err(|error| unusable(error.to_string()))?;
        Ok(tokenizer)
    }

    fn check(&self) -> Result<(), TextError> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(unusable("the file holds no tokens".to_owned()));
        }
        if !self.token_types.is_empty() && self.token_types.len() != count {
            let types = self.token_types.len();
            return Err(unusable(format!("{count} tokens but {types} token types")));
        }
        match &self.scores {
            Some(scores) if scores.len() != count => {
                Err(unusable(format!("{count} tokens but {} scores", scores.len())))
            }
            _ => Ok(()),
        }
    }
}
