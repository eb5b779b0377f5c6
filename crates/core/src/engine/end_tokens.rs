//! The tokens that end an answer: the union of those that a model's files state and those of known names.
//!
//! Files are stale or state one of several. vLLM takes the tokeniser's end token beside those of generation_config.json, llama.cpp the ids of
//! a GGUF file and tokens by their names (`llama_vocab`, `special_eog_ids`); transformers' `generate` those of generation_config.json
//! alone.

use crate::text::Tokenizer;

/// Names of tokens that end a turn or a text in the known formats.
const NAMES: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|return|>",
    "<|user|>",
];

/// Further ones of llama.cpp's list, which count where they are special tokens: some of these names are words of other vocabularies.
const SPECIAL_NAMES: [&str; 15] = [
    "<|call|>",
    "<|end|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Ends a message within an answer where one of the others ends the answer (gpt-oss, Solar Open).
const MESSAGE_END: (&str, [&str; 4]) = ("<|end|>", ["<|return|>", "<|call|>", "<|calls|>", "<|flush|>"]);

/// A token that ends an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndToken {
    /// Its id.
    pub id: u32,
    /// Its text in the vocabulary.
    pub text: String,
    /// The files or keys that state it, in the order in which they are read; empty where its name alone is known.
    pub stated: Vec<String>,
}

/// The end tokens of a model with these `stated` ids, ascending. Ids outside the vocabulary are those of no token.
pub(super) fn end_tokens(tokenizer: &Tokenizer, stated: Vec<(String, u32)>) -> Vec<EndToken> {
    let mut ends: Vec<EndToken> = Vec::new();
    let mut add = |id: u32, by: Option<String>| match ends.iter_mut().find(|end| end.id == id) {
        Some(end) => end.stated.extend(by.filter(|by| !end.stated.contains(by))),
        None => {
            let text = tokenizer.token(id).unwrap_or_default();
            ends.push(EndToken { id, text, stated: by.into_iter().collect() });
        }
    };
    stated.into_iter().for_each(|(by, id)| add(id, Some(by)));
    let (message_end, others) = MESSAGE_END;
    let within = others.iter().any(|other| tokenizer.token_id(other).is_some());
    let of_name = |name: &&str| tokenizer.token_id(name);
    let special = SPECIAL_NAMES.iter().filter(|&&name| !(within && name == message_end)).filter_map(of_name);
    let special = special.filter(|&id| tokenizer.is_special(id));
    NAMES.iter().filter_map(of_name).chain(special).for_each(|id| add(id, None));
    ends.sort_by_key(|end| end.id);
    ends
}
