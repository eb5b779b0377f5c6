//! End-of-answer tokens: the union of the ids a model's files state and of well-known names. Files are often stale or incomplete. vLLM adds
//! the tokeniser's end token to generation_config.json; llama.cpp adds known names to a GGUF file's ids (`llama_vocab`, `special_eog_ids`);
//! transformers' `generate` uses generation_config.json only.

use crate::text::Tokenizer;

/// End-of-turn and end-of-text tokens of known formats.
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

/// More names from llama.cpp's list; they count only as special tokens, since some are words in other vocabularies.
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

/// Ends a message, not the answer, if one of the others exists (gpt-oss, Solar Open).
const MESSAGE_END: (&str, [&str; 4]) = ("<|end|>", ["<|return|>", "<|call|>", "<|calls|>", "<|flush|>"]);

/// A token that ends an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndToken {
    /// Token id.
    pub id: u32,
    /// Vocabulary text.
    pub text: String,
    /// Files or keys that state it, in reading order; empty if known by name only.
    pub stated: Vec<String>,
}

/// End tokens for these `stated` ids, ascending. Ids outside the vocabulary are ignored.
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
