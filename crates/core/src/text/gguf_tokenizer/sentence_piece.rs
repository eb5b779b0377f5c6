//! SentencePiece vocabularies (`tokenizer.ggml.model` = `llama`): BPE with merges derived from scores. Equals the `tokenizer.json` of
//! transformers' converter (`generate_merges`): one merge per split of a piece into two pieces, best score first. Gemma's released
//! `tokenizer.json` is such a file. Files of Gemma 4 (`gemma4`) list their merges.

use std::borrow::Cow;
use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Merges};
use tokenizers::normalizers::{Prepend, Replace, Sequence};
use tokenizers::{DecoderWrapper, NormalizerWrapper, Tokenizer, decoders};

use super::fields::{GgufTokenizer, NORMAL, SENTENCE_PIECE, SPACE, USER_DEFINED, unusable};
use crate::text::TextError;

/// Builds the tokeniser, without added tokens.
pub(super) fn build(metadata: &GgufTokenizer) -> Result<Tokenizer, TextError> {
    let vocab = metadata.vocab()?;
    let scored = metadata.model == SENTENCE_PIECE;
    let merges = if scored { merges(metadata)? } else { metadata.listed_merges(&vocab)? };
    let mut builder = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).fuse_unk(true);
    if let Some(unk) = metadata.token(metadata.unk) {
        builder = builder.unk_token(unk.to_owned());
    }
    let mut tokenizer = Tokenizer::new(builder.build().map_err(|error| unusable(error.to_string()))?);

    let replace = |from: &str, to: &str| Replace::new(from, to).map_err(|error| unusable(error.to_string()));
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    let mut decoders: Vec<DecoderWrapper> =
        vec![replace(SPACE, " ")?.into(), decoders::byte_fallback::ByteFallback::new().into()];
    decoders.push(decoders::fuse::Fuse::new().into());
    if metadata.add_space_prefix.unwrap_or(scored) {
        normalizers.push(Prepend::new(SPACE.to_owned()).into());
        decoders.push(decoders::strip::Strip::new(' ', 1, 0).into());
    }
    normalizers.push(replace(" ", SPACE)?.into());
    tokenizer
        .with_normalizer(Some(Sequence::new(normalizers)))
        .map_err(|error| unusable(error.to_string()))?;
    tokenizer.with_decoder(Some(decoders::sequence::Sequence::new(decoders)));
    Ok(tokenizer)
}

/// All splits of normal and user-defined pieces into two such pieces, sorted by score, then length of left and right in characters (longer
/// first), then id.
fn merges(metadata: &GgufTokenizer) -> Result<Merges, TextError> {
    let scores = metadata
        .scores
        .as_deref()
        .ok_or_else(|| unusable("model \"llama\" without tokenizer.ggml.scores".to_owned()))?;
    let pieces: Vec<(f32, Cow<'_, str>)> = (metadata.tokens.iter().zip(scores).enumerate())
        .filter_map(|(id, (token, &score))| match metadata.kind(id) {
            // Adding 0 turns -0 into 0.
            NORMAL => Some((score + 0.0, token.into())),
            // The original score is 0, the maximum; converters write another number.
            USER_DEFINED => Some((0.0, metadata.text(id, token))),
            _ => None,
        })
        .collect();
    let known: HashSet<&str> = pieces.iter().map(|(_, piece)| piece.as_ref()).collect();
    // (score, characters left, characters right, left, right)
    let mut scored: Vec<(f32, usize, usize, &str, &str)> = Vec::with_capacity(pieces.len());
    for (score, piece) in &pieces {
        let characters = piece.chars().count();
        for (taken, (at, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(at);
            if known.contains(left) && known.contains(right) {
                scored.push((*score, taken, characters - taken, left, right));
            }
        }
    }
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    Ok(scored.into_iter().map(|(.., left, right)| (left.to_owned(), right.to_owned())).collect())
}
