//! A few types for programs that want attention and nothing else: a model, a prompt with named spans, what its rows pay, an answer.
//!
//! Everything here is made of [`crate::engine::Request`], which says more.

use std::path::Path;

use crate::attention::{Knockout, KnockoutError, LayerHoles, Masses, SpanError};
use crate::engine::{
    ContextLength, Generate, LocalError, LocalModel, LocalOptions, Observe, Request, RequestError, Reuse,
    Rows, Sampling, Task,
};
use crate::model::{ModelFiles, PathError};
use crate::span::Span;
use crate::text::{
    CharSpan, ChatTurn, ContentPlace, Message, Placed, Prompt, SpecialTokens, TextError, TokenizedPrompt,
};

/// Tokens of prompt and answer that [`Model::open`] makes room for, where the model's context has as many.
pub const CONTEXT: usize = 32_768;

/// An open-weight model on this machine.
pub struct Model(LocalModel);

/// An answer and what was attended to.
#[derive(Debug)]
pub struct Answer {
    /// The text, without a thought.
    pub text: String,
    /// Token ids, a thought among them.
    pub tokens: Vec<u32>,
    /// The masses of the rows that were asked for. The row `answer` is the mean over the generated tokens.
    pub masses: Masses,
}

/// A model could not be opened or asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no model at the path.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It could not be loaded.
    #[error(transparent)]
    Model(#[from] LocalError),
    /// A text could not be tokenized, or a template rendered.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A span's text is not exactly once in the prompt.
    #[error("span `{label}`: its text occurs {count} times in the prompt; give a text that occurs once")]
    Place {
        /// The span.
        label: String,
        /// The number of times its text was found.
        count: usize,
    },
    /// Rows or keys are not spans of the prompt.
    #[error(transparent)]
    Span(#[from] SpanError),
    /// A knock-out is not written as one, or names no span or layer.
    #[error(transparent)]
    Knockout(#[from] KnockoutError),
    /// The request has no output.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl Model {
    /// Opens a folder in Hugging Face layout or a `.gguf` file on the CPU, with a context of up to [`CONTEXT`] tokens.
    ///
    /// # Errors
    /// [`Error::Path`] and [`Error::Model`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(
            path,
            &LocalOptions { context: ContextLength::AtMost(CONTEXT), ..LocalOptions::default() },
        )
    }

    /// The same with devices, dtype, context and more chosen.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(path: impl AsRef<Path>, options: &LocalOptions) -> Result<Self, Error> {
        Ok(Model(LocalModel::open(&ModelFiles::at(path.as_ref())?, options)?))
    }

    /// The model below, for requests of any kind.
    pub fn local(&mut self) -> &mut LocalModel {
        &mut self.0
    }

    /// The tokens of a text, as it is, with the spans of these names: each a part of the text that occurs exactly once.
    ///
    /// # Errors
    /// [`Error::Place`], [`Error::Text`].
    pub fn text(&self, text: &str, spans: &[(&str, &str)]) -> Result<TokenizedPrompt, Error> {
        let overlays = spans.iter().map(|&(label, part)| placed(text, label, part));
        self.encode(text, overlays.collect::<Result<_, _>>()?)
    }

    /// The tokens of a conversation, rendered by the model's chat template up to the answer. The content of message i is the span
    /// `messages[i]`; parts of the text may have names, too, as in [`Model::text`].
    ///
    /// # Errors
    /// As [`Model::text`].
    pub fn chat(&self, messages: &[Message], spans: &[(&str, &str)]) -> Result<TokenizedPrompt, Error> {
        let turns: Vec<ChatTurn> = messages.iter().map(ChatTurn::from).collect();
        let Placed { text, contents, .. } = self.0.template().place(&turns, &[], &[])?;
        let content = |(nth, place): (usize, ContentPlace)| CharSpan {
            label: format!("messages[{nth}]"),
            role: None,
            start: place.bytes.start,
            end: place.bytes.end,
        };
        let mut overlays: Vec<CharSpan> = contents.into_iter().enumerate().map(content).collect();
        overlays.retain(|span| span.start < span.end);
        for &(label, part) in spans {
            overlays.push(placed(&text, label, part)?);
        }
        self.encode(&text, overlays)
    }

    fn encode(&self, text: &str, overlays: Vec<CharSpan>) -> Result<TokenizedPrompt, Error> {
        let (spans, messages) = Default::default();
        let special_tokens = SpecialTokens::Control;
        let prompt = Prompt { text: text.to_owned(), spans, overlays, special_tokens, messages };
        Ok(prompt.encode(self.0.tokenizer())?)
    }

    /// The attention of some spans' tokens (or of the prompt's `last` token) to all named spans: f32 `[layers, heads, rows, spans]` in
    /// [`Masses::mass`], each the mean over the row's tokens of the post-softmax attention summed over the span. Knock-outs are
    /// written as `query->old`, or `query->old@8..16` for layers 8 to 15.
    ///
    /// # Errors
    /// [`Error::Span`], [`Error::Knockout`], [`Error::Request`].
    pub fn masses(
        &mut self,
        prompt: &TokenizedPrompt,
        rows: &[&str],
        knockouts: &[&str],
    ) -> Result<Masses, Error> {
        let request = self.request(prompt, rows, knockouts, Task::Read)?;
        Ok(self.0.session().answer(request, &mut |_| true)?.masses)
    }

    /// Generates an answer of up to `max_tokens` tokens, greedily, and measures the rows, of which `answer` may be one.
    ///
    /// # Errors
    /// As [`Model::masses`].
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

/// The one place of a part in a text.
fn placed(text: &str, label: &str, part: &str) -> Result<CharSpan, Error> {
    let mut places = text.match_indices(part).map(|(start, _)| start);
    match (places.next().filter(|_| !part.is_empty()), places.next()) {
        (Some(start), None) => {
            Ok(CharSpan { label: label.to_owned(), role: None, start, end: start + part.len() })
        }
        _ => Err(Error::Place { label: label.to_owned(), count: text.matches(part).count() }),
    }
}
