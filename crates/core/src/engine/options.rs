//! How likely given answers are: the scores of a probe's options.
//!
//! Called by the runner's local subject when a prompt is in the cache and before it is answered; the cache is as before afterwards,
//! so that answers are the same with and without. Nothing is sampled.

use std::collections::BTreeMap;

use candle_core::{D, Tensor};

use super::{LocalError, LocalModel, Measurement, Parts};
use crate::text::{Message, MessageRole};
use crate::transfer;

impl LocalModel {
    /// The natural-log probability of each of `options` as the beginning of the answer to the prompt in the cache, whose last token
    /// gave `logits` f32 (vocab): the sum over the option's tokens, each after those before it. Where the model would think first, the
    /// option follows an empty thought. None at all without options, where the chat template has no way past a thought, and where the
    /// cache has no room left.
    ///
    /// # Errors
    /// Those of the template, the tokeniser and the engine.
    pub fn score_options(
        &mut self,
        logits: &Tensor,
        options: &[String],
    ) -> Result<BTreeMap<String, f64>, LocalError> {
        let mut scores = BTreeMap::new();
        let Some(tokens) = self.option_tokens(options)? else { return Ok(scores) };
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        let Parts { engine, cache, .. } = self.held_parts();
        if longest == 0 || cache.len() + longest > cache.capacity() {
            return Ok(scores);
        }
        let mark = cache.mark()?;
        let prompt = mark.tokens();
        let mut computed = 0;
        for (option, tokens) in options.iter().zip(&tokens) {
            let mut rows = vec![logits.unsqueeze(0)?];
            if let Some((_, read)) = tokens.split_last()
                && !read.is_empty()
            {
                let mut nothing = Measurement::nothing(prompt + read.len());
                rows.push(nothing.prefill(engine, cache, read, read.len(), &mut |_| true)?);
                cache.roll_back(&mark)?;
                computed += read.len();
            }
            // (tokens, vocab)
            let log_p = candle_nn::ops::log_softmax(&Tensor::cat(&rows, 0)?, D::Minus1)?;
            let vocabulary = log_p.dim(D::Minus1)?;
            let log_p = transfer::fetch(&log_p)?;
            let of_token =
                |(row, &token): (usize, &u32)| log_p.get(row * vocabulary + token as usize).copied();
            let parts: Option<Vec<f32>> = tokens.iter().enumerate().map(of_token).collect();
            // A token that the model has no logit for cannot come.
            let Some(parts) = parts else { return Ok(BTreeMap::new()) };
            scores.insert(option.clone(), parts.into_iter().map(f64::from).sum());
        }
        self.count_usage(computed, 0);
        Ok(scores)
    }

    /// The tokens of options after a prompt; `None` without any.
    fn option_tokens(&self, options: &[String]) -> Result<Option<Vec<Vec<u32>>>, LocalError> {
        if options.is_empty() {
            return Ok(None);
        }
        // All prompts end alike, so that any of them shows how an option's tokens follow.
        let any = [Message { role: MessageRole::User, content: "Hello".to_owned() }];
        let prompt = self.template().render(&any, true)?;
        let past_thought = self.template().render_past_thought(&any)?;
        let Some(closing) = past_thought.strip_prefix(&prompt) else { return Ok(None) };
        let before = self.tokenizer().encode(&prompt)?;
        let of = |option: &String| {
            let whole = self.tokenizer().encode(&format!("{past_thought}{option}"))?;
            match whole.strip_prefix(before.as_slice()) {
                Some(rest) => Ok(rest.to_vec()),
                // A token across the border: an answer is generated after the prompt's own tokens.
                None => self.tokenizer().encode(&format!("{closing}{option}")),
            }
        };
        let tokens = options.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(tokens))
    }
}
