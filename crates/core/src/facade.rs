//! A small attention API: open a model, name spans, read masses, generate. Built on [`crate::engine::Request`].

use std::path::Path;

use crate::attention::{Knockout, KnockoutError, LayerHoles, Masses, SpanError};
use crate::engine::{
    ContextLength, Generate, LocalError, LocalModel, LocalOptions, Observe, Request, RequestError, Reuse,
    Rows, Sampling, Task,
};
use crate::model::{ModelFiles, PathError};
use crate::span::Span;
use crate::text::{
    ChatTurn, ContentPlace, Message, Placed, Prompt, SpecialTokens, TextError, TokenizedPrompt,
};

/// Default context of [`Model::open`] in tokens, capped by the model's.
pub const CONTEXT: usize = 32_768;

/// A local open-weight model.
pub struct Model(LocalModel);

/// An answer with its attention masses.
#[derive(Debug)]
pub struct Answer {
    /// Text without the thought.
    pub text: String,
    /// Token ids, thought included.
    pub tokens: Vec<u32>,
    /// Masses of the requested rows; row `answer` is the mean over generated tokens.
    pub masses: Masses,
}

/// A model cannot be opened or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // said by the names
pub enum Error {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Model(#[from] LocalError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("span `{label}`: its text occurs {count} times in the prompt; give a text that occurs once")]
    Place { label: String, count: usize },
    #[error(transparent)]
    Span(#[from] SpanError),
    #[error(transparent)]
    Knockout(#[from] KnockoutError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl Model {
    /// Opens a Hugging Face folder or a `.gguf` file on the CPU, with a context of up to [`CONTEXT`] tokens.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(
            path,
            &LocalOptions { context: ContextLength::AtMost(CONTEXT), ..LocalOptions::default() },
        )
    }

    /// [`Model::open`] with custom options.
    pub fn open_with(path: impl AsRef<Path>, options: &LocalOptions) -> Result<Self, Error> {
        Ok(Model(LocalModel::open(&ModelFiles::at(path.as_ref())?, options)?))
    }

    /// The underlying model.
    pub fn local(&mut self) -> &mut LocalModel {
        &mut self.0
    }

    /// Tokenises a text without a template. Each named span is a substring that occurs exactly once.
    pub fn text(&self, text: &str, spans: &[(&str, &str)]) -> Result<TokenizedPrompt, Error> {
        let overlays = spans.iter().map(|&(label, part)| placed(text, label, part));
        self.encode(text, overlays.collect::<Result<_, _>>()?)
    }

    /// Renders and tokenises a conversation up to the answer. Message i is span `messages[i]`; further spans as in [`Model::text`].
    pub fn chat(&self, messages: &[Message], spans: &[(&str, &str)]) -> Result<TokenizedPrompt, Error> {
        let turns: Vec<ChatTurn> = messages.iter().map(ChatTurn::from).collect();
        let Placed { text, contents, .. } = self.0.template().place(&turns, &[], &[])?;
        let content =
            |(nth, place): (usize, ContentPlace)| Span::new(format!("messages[{nth}]"), place.bytes);
        let mut overlays: Vec<Span> = contents.into_iter().enumerate().map(content).collect();
        overlays.retain(|span| !span.is_empty());
        for &(label, part) in spans {
            overlays.push(placed(&text, label, part)?);
        }
        self.encode(&text, overlays)
    }

    fn encode(&self, text: &str, overlays: Vec<Span>) -> Result<TokenizedPrompt, Error> {
        let (spans, messages) = Default::default();
        let special_tokens = SpecialTokens::Control;
        let prompt = Prompt { text: text.to_owned(), spans, overlays, special_tokens, messages };
        Ok(prompt.encode(self.0.tokenizer())?)
    }

    /// Attention of row spans (or `last`, the last token) to all named spans: f32 `[layers, heads, rows, spans]` in [`Masses::mass`], the
    /// post-softmax attention summed over the span and averaged over the row's tokens. Knockouts: `query->old`, or `query->old@8..16` for
    /// layers 8 to 15.
    pub fn masses(
        &mut self,
        prompt: &TokenizedPrompt,
        rows: &[&str],
        knockouts: &[&str],
    ) -> Result<Masses, Error> {
        let request = self.request(prompt, rows, knockouts, Task::Read)?;
        Ok(self.0.session().answer(request, &mut |_| true)?.masses)
    }

    /// Generates up to `max_tokens` tokens greedily and measures the rows, which may include `answer`.
    pub fn answer(
        &mut self,
        prompt: &TokenizedPrompt,
        max_tokens: usize,
        rows: &[&str],
        knockouts: &[&str],
    ) -> Result<Answer, Error> {
        let generate = Generate {
            thinker: self.0.text().thinker(),
            ..Generate::new(Sampling::greedy(max_tokens), self.0.stop_tokens().to_vec())
        };
        let request = self.request(prompt, rows, knockouts, Task::Generate(Box::new(generate)))?;
        let measured = self.0.session().answer(request, &mut |_| true)?;
        let (split, _) = self.0.text().split(&measured.generated)?;
        Ok(Answer {
            text: split.answer.unwrap_or_default(),
            tokens: measured.generated.tokens,
            masses: measured.masses,
        })
    }

    fn request(
        &self,
        prompt: &TokenizedPrompt,
        rows: &[&str],
        knockouts: &[&str],
        task: Task,
    ) -> Result<Request, Error> {
        let tokens = prompt.tokens.len();
        let keys: Vec<Span> = prompt.spans.iter().chain(&prompt.overlays).cloned().collect();
        let knockouts = knockouts.iter().map(|text| text.parse()).collect::<Result<Vec<Knockout>, _>>()?;
        let layers = self.0.engine().decoder().spec().layer_kinds();
        let holes = LayerHoles::new(&knockouts, &keys, tokens, &layers)?;
        let observe = Observe { rows: Rows::named(rows, &keys, tokens)?, keys, ..Observe::default() };
        let mut request =
            Request { reuse: Reuse::Prefix, ..Request::of(prompt.tokens.clone(), observe, task) };
        request.branches.iter_mut().for_each(|branch| branch.knockouts = holes.clone());
        Ok(request)
    }
}

/// The only occurrence of `part` in a text.
fn placed(text: &str, label: &str, part: &str) -> Result<Span, Error> {
    let mut places = text.match_indices(part).map(|(start, _)| start);
    match (places.next().filter(|_| !part.is_empty()), places.next()) {
        (Some(start), None) => Ok(Span::new(label, start..start + part.len())),
        _ => Err(Error::Place { label: label.to_owned(), count: text.matches(part).count() }),
    }
}
