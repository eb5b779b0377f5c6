//! A local model as a chat model, and as one whose probabilities can be read.

use candle_core::{D, Device, Tensor};

use super::{CallTokens, ChatError, ChatModel, Message, Reply, Sampling, ScoringModel};
use palimpsest_core::engine::{EngineError, Hardware, LocalError, LocalModel, Measurement, Parts};
use palimpsest_core::text::{Split, StreamDecoder};

/// The text of a conversation, up to an answer without a thought: decisions that are read by their probabilities are made at once.
fn conversation(model: &LocalModel, messages: &[Message]) -> Result<String, LocalError> {
    Ok(model.template().render_past_thought(messages)?)
}

fn reply(model: &mut LocalModel, messages: &[Message], sampling: &Sampling) -> Result<Reply, LocalError> {
    let text = model.template().render(messages, true)?;
    let tokens = model.tokenizer().encode(&text)?;
    let room = model.max_thinking() + sampling.max_new_tokens;
    let logits = model.prefill(&text, &tokens, room)?.squeeze(0)?;
    let Parts { engine, cache, stop, thinker, .. } = model.held_parts();
    let how = (sampling, stop, thinker, None);
    let mut measurement = Measurement::nothing(tokens.len());
    let generated = measurement.decode_thinking(engine, cache, &logits, how, &mut |_| true)?;
    let (Split { thought, answer }, stop) = model.split(&generated)?;
    model.count_usage(0, generated.tokens.len());
    Ok(Reply {
        text: answer.unwrap_or_default(),
        thought,
        stop,
        prompt_tokens: Some(tokens.len()),
        completion_tokens: Some(generated.tokens.len()),
    })
}

fn score(
    model: &mut LocalModel,
    messages: &[Message],
    prefix: &str,
    choices: &[&str],
) -> Result<Vec<f64>, LocalError> {
    let mut scores = Vec::with_capacity(choices.len());
    let text = conversation(model, messages)?;
    // Tokens may merge across the border of prefix and choice, so each choice is tokenised with the prefix, and the
    // tokens that all choices share are read once.
    let texts = choices
        .iter()
        .map(|choice| model.tokenizer().encode(&format!("{text}{prefix}{choice}")))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(first) = texts.first() else { return Ok(scores) };
    if texts.iter().any(Vec::is_empty) {
        return Err(EngineError::EmptyPrompt.into());
    }
    let shared = texts
        .iter()
        .map(|t| t.iter().zip(first).take_while(|(a, b)| a == b).count().min(t.len().saturating_sub(1)))
        .min()
        .unwrap_or(0)
        .max(1);
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let after_shared = model.prefill(&text, &first[..shared], longest - shared)?;
    let Parts { engine, cache, .. } = model.held_parts();
    let mark = cache.mark()?;
    for tokens in &texts {
        let rest = &tokens[shared..];
        cache.roll_back(&mark)?;
        let mut logits = vec![after_shared.clone()];
        if let Some((_, read)) = rest.split_last()
            && !read.is_empty()
        {
            let keep = read.len();
            let mut measurement = Measurement::nothing(tokens.len());
            logits.push(measurement.prefill(engine, cache, read, keep, &mut |_| true)?);
        }
        let logits = Tensor::cat(&logits, 0)?;
        let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1)?.to_device(&Device::Cpu)?;
        let mut score = 0.0;
        for (row, &token) in rest.iter().enumerate() {
            score += f64::from(log_p.get(row)?.get(token as usize)?.to_scalar::<f32>()?);
        }
        scores.push(score);
    }
    cache.roll_back(&mark)?;
    let computed = texts.iter().map(|tokens| (tokens.len() - shared).saturating_sub(1)).sum();
    model.count_usage(computed, 0);
    Ok(scores)
}

fn continue_from(
    model: &mut LocalModel,
    messages: &[Message],
    prefix: &str,
    until: &str,
    max_new_tokens: usize,
) -> Result<String, LocalError> {
    let conversation = conversation(model, messages)?;
    let tokens = model.tokenizer().encode(&format!("{conversation}{prefix}"))?;
    let logits = model.prefill(&conversation, &tokens, max_new_tokens)?.squeeze(0)?;
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens };
    let Parts { engine, cache, tokenizer, stop, .. } = model.held_parts();
    let mut stream = StreamDecoder::new(tokenizer, true);
    let mut text = String::new();
    let mut failed = None;
    let (mut measurement, how) = (Measurement::nothing(tokens.len()), (&sampling, stop));
    let mut generated = 0;
    let done = measurement.decode(engine, cache, &logits, how, &mut |token| {
        generated += 1;
        match stream.push(token) {
            Ok(piece) => text.extend(piece),
            Err(error) => failed = Some(error),
        }
        failed.is_none() && !text.contains(until)
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    match done {
        // Stopped at `until`, by the closure above.
        Ok(_) | Err(EngineError::Interrupted) => {}
        Err(error) => return Err(error.into()),
    }
    text.extend(stream.finish()?);
    model.count_usage(0, generated);
    if let Some(end) = text.find(until) {
        text.truncate(end);
    }
    Ok(text)
}

fn chat_error(model: &LocalModel, error: LocalError) -> ChatError {
    ChatError(format!("local:{}: {:#}", model.model_name(), anyhow::Error::from(error)))
}

impl ChatModel for LocalModel {
    fn name(&self) -> String {
        format!("local:{}", self.model_name())
    }

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError> {
        reply(self, messages, sampling).map_err(|e| chat_error(self, e))
    }

    fn hardware(&self) -> Option<Hardware> {
        Some(LocalModel::hardware(self).clone())
    }

    fn take_tokens(&mut self) -> CallTokens {
        let (computed, generated) = LocalModel::take_usage(self);
        CallTokens { computed: Some(computed), generated: Some(generated) }
    }
}

impl ScoringModel for LocalModel {
    fn score(&mut self, messages: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError> {
        score(self, messages, prefix, choices).map_err(|e| chat_error(self, e))
    }

    fn continue_from(
        &mut self,
        messages: &[Message],
        prefix: &str,
        until: &str,
        max_new_tokens: usize,
    ) -> Result<String, ChatError> {
        continue_from(self, messages, prefix, until, max_new_tokens).map_err(|e| chat_error(self, e))
    }
}
