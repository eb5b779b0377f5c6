//! Runs a local model as a `ChatModel` and a `ScoringModel`.

use std::sync::Arc;

use palimpsest_core::engine::{
    Branch, Event, Generate, LocalError, LocalModel, Measured, Observe, Request, RequestError, Reuse, Task,
    TokenRules,
};
use palimpsest_core::text::{Split, StreamDecoder};
use serde_json::Value;

use super::{CallTokens, ChatError, ChatModel, Message, Reply, Sampling, ScoringModel};

fn check_room(model: &LocalModel, needed: usize) -> Result<(), LocalError> {
    let context = model.context();
    if needed > context { Err(LocalError::DoesNotFit { needed, context }) } else { Ok(()) }
}

fn reply(model: &mut LocalModel, messages: &[Message], sampling: &Sampling) -> Result<Reply, LocalError> {
    let text = model.template().render(messages, true)?;
    let tokens = model.tokenizer().encode(&text)?;
    let prompt_tokens = tokens.len();
    check_room(model, prompt_tokens + model.max_thinking() + sampling.max_new_tokens)?;
    let generate = Generate {
        thinker: model.text().thinker(),
        rules: TokenRules { constraint: model.reply_constraint(), ..TokenRules::default() },
        ..Generate::new(*sampling, model.stop_tokens().to_vec())
    };
    let request = Request {
        reuse: Reuse::Prefix,
        ..Request::of(tokens, Observe::default(), Task::Generate(Box::new(generate)))
    };
    let Measured { generated, .. } = model.session().answer(request, &mut |_| true)?;
    let (Split { thought, answer }, stop) = model.text().split(&generated)?;
    Ok(Reply {
        text: answer.unwrap_or_default(),
        thought,
        stop,
        prompt_tokens: Some(prompt_tokens),
        completion_tokens: Some(generated.tokens.len()),
    })
}

fn alike<'t>(texts: impl Iterator<Item = &'t [u32]>, first: &[u32]) -> usize {
    texts.map(|text| text.iter().zip(first).take_while(|(a, b)| a == b).count()).min().unwrap_or(0)
}

/// The tokens of `text`, a continuation of the conversation, reusing the conversation's tokens for later requests.
fn of_conversation(
    model: &LocalModel,
    text: &str,
    tokens: &[u32],
    task: Task,
) -> Result<Request, LocalError> {
    let whole = model.tokenizer().encode(text)?;
    // Keep at least two tokens: a single row is summed in a different order.
    let shared = alike([tokens].into_iter(), &whole).min(tokens.len().saturating_sub(2));
    let (prefix, own) = tokens.split_at(shared);
    let branch = Branch { tokens: own.to_vec(), tasks: vec![task], ..Branch::default() };
    Ok(Request { prefix: prefix.into(), reuse: Reuse::Prefix, branches: vec![branch] })
}

fn score(
    model: &mut LocalModel,
    messages: &[Message],
    prefix: &str,
    choices: &[&str],
) -> Result<Vec<f64>, LocalError> {
    // Up to the answer, with thinking off: scored decisions are immediate.
    let text = model.template().render_past_thought(messages)?;
    // Tokens may merge across the prefix border, so each choice is tokenised with the prefix; the common tokens are read once.
    let texts = choices
        .iter()
        .map(|choice| model.tokenizer().encode(&format!("{text}{prefix}{choice}")))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(first) = texts.first() else { return Ok(Vec::new()) };
    let shortest = texts.iter().map(Vec::len).min().unwrap_or(0);
    let shared = alike(texts.iter().map(Vec::as_slice), first).min(shortest.saturating_sub(1)).max(1);
    check_room(model, texts.iter().map(Vec::len).max().unwrap_or(0))?;
    let rest = texts.iter().map(|tokens| tokens.get(shared..).unwrap_or_default().to_vec());
    let request =
        of_conversation(model, &text, &first[..shared.min(first.len())], Task::Score(rest.collect()))?;
    let measured = model.session().answer(request, &mut |_| true)?;
    Ok(measured.scores.into_iter().map(|score| score.unwrap_or(f64::NEG_INFINITY)).collect())
}

fn continue_from(
    model: &mut LocalModel,
    messages: &[Message],
    prefix: &str,
    until: &str,
    max_new_tokens: usize,
) -> Result<String, LocalError> {
    let conversation = model.template().render_past_thought(messages)?;
    let tokens = model.tokenizer().encode(&format!("{conversation}{prefix}"))?;
    check_room(model, tokens.len() + max_new_tokens)?;
    let generate = Generate::new(Sampling::greedy(max_new_tokens), model.stop_tokens().to_vec());
    let request = of_conversation(model, &conversation, &tokens, Task::Generate(Box::new(generate)))?;
    let tokenizer = Arc::clone(model.tokenizer());
    let mut stream = StreamDecoder::new(&*tokenizer);
    let mut text = String::new();
    let mut failed = None;
    let done = model.session().answer(request, &mut |event| {
        if let Event::Token(chosen) = event {
            match stream.push(chosen.token) {
                Ok(piece) => text.push_str(&piece.text),
                Err(error) => failed = Some(error),
            }
        }
        failed.is_none() && !text.contains(until)
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    match done {
        Ok(_) | Err(RequestError::Engine(palimpsest_core::engine::EngineError::Interrupted)) => {}
        Err(error) => return Err(error.into()),
    }
    text.push_str(&stream.finish());
    if let Some(end) = text.find(until) {
        text.truncate(end);
    }
    Ok(text)
}

fn chat_error(model: &LocalModel, error: LocalError) -> ChatError {
    ChatError::from(format!("local:{}: {:#}", model.model_name(), anyhow::Error::from(error)))
}

impl ChatModel for LocalModel {
    fn name(&self) -> String {
        format!("local:{}", self.model_name())
    }

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError> {
        reply(self, messages, sampling).map_err(|e| chat_error(self, e))
    }

    fn hold_to(&mut self, schema: Option<(&str, &Value)>) -> Result<(), ChatError> {
        let held = self.hold_to_schema(schema.map(|(_, schema)| schema));
        held.map_err(|error| ChatError::from(format!("local:{}: {error}", self.model_name())))
    }

    fn scoring(&mut self) -> Option<&mut dyn ScoringModel> {
        Some(self)
    }

    fn take_tokens(&mut self) -> CallTokens {
        let (computed, generated) = self.session().take_usage();
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
