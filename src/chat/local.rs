//! The local engine as a chat model: files, tokeniser, chat template and decoder together.
//!
//! Opened by the commands; used by the runner's local subject and, through [`ScoringModel`], by judges. The cache lives
//! here and is reused: allocated once for the context length and rolled back between conversations.

use std::sync::Arc;

use candle_core::{D, DType, Device};

use super::error::LocalError;
use super::text_side::TextSide;
use super::{ChatError, ChatModel, Message, Reply, Sampling, ScoringModel};
use crate::engine::plan::{self, Branches, Wish};
use crate::engine::{self, DeviceName, Engine, EngineError, Measurement};
use crate::model::fetch::{ModelFiles, ModelStore};
use crate::model::{Cache, Kept, OpenModel, arch};
use crate::prompt::{ChatTemplate, StreamDecoder, Tokenizer};

/// How long a context a model is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextLength {
    /// The length that the model was made for.
    Whole,
    /// That length or this one, whichever is less: for jobs whose inputs are short.
    AtMost(usize),
    /// This one.
    Exactly(usize),
}

/// How a local model is to be run.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// Where: one device, or several of one kind that share the layers out between them.
    pub devices: Vec<Device>,
    /// In what; `None` is the devices' default.
    pub dtype: Option<DType>,
    /// Most tokens of prompt and answer together: what the cache is made for.
    pub context: ContextLength,
    /// Whether the context may exceed the model's.
    pub allow_longer: bool,
    /// Tokens that a prefill reads at a time.
    pub chunk: usize,
    /// Continuations of one prompt that may decode together, beside the context; none unless asked for.
    pub branches: Branches,
    /// What to keep of quantised weights on the CPU in f32; `None` is what fits, the faster way first.
    pub kept: Option<Kept>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        LocalOptions {
            devices: vec![Device::Cpu],
            dtype: None,
            context: ContextLength::Whole,
            allow_longer: false,
            chunk: engine::DEFAULT_CHUNK,
            branches: Branches::default(),
            kept: None,
        }
    }
}

/// The files behind a name or path, fetched if need be. A model by name that this build cannot run is refused before it is
/// fetched.
pub fn resolve_to_run(store: &ModelStore, name_or_path: &str) -> Result<ModelFiles, LocalError> {
    if store.locate(name_or_path)?.is_none() {
        arch::check_known(&store.manifest(name_or_path)?.architecture)?;
    }
    Ok(store.resolve(name_or_path)?)
}

/// What [`LocalModel::parts`] lends.
pub struct Parts<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// For [`LocalModel::context`] tokens.
    pub cache: &'a mut Cache,
    /// The tokeniser.
    pub tokenizer: &'a Tokenizer,
    /// Tokens that end a turn.
    pub stop: &'a [u32],
}

/// A model on this machine.
pub struct LocalModel {
    name: String,
    digest: String,
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    /// Tokens that end a turn.
    stop: Vec<u32>,
    context: usize,
    branches: Branches,
    cache: Cache,
    /// The conversation whose tokens are at the start of the cache, kept for [`ScoringModel`]'s growing prefixes.
    held: Option<(Vec<Message>, Vec<u32>)>,
}

impl LocalModel {
    /// Opens a manifest's name, a model folder or a .gguf file, fetching it if need be.
    pub fn open(name_or_path: &str, options: &LocalOptions) -> Result<Self, LocalError> {
        let _span = crate::stats::load();
        let store = ModelStore::open()?;
        let files = resolve_to_run(&store, name_or_path)?;
        let digest = store.digest(&files)?;
        Self::from_files(&files, digest, options)
    }

    /// Opens files that are at hand; `digest` identifies their weights.
    pub fn from_files(
        files: &ModelFiles,
        digest: String,
        options: &LocalOptions,
    ) -> Result<Self, LocalError> {
        let model = OpenModel::open(&files.paths())?;
        let limit = model.spec().max_positions;
        let context = match options.context {
            ContextLength::Whole => limit,
            ContextLength::AtMost(tokens) => limit.min(tokens),
            ContextLength::Exactly(tokens) => tokens,
        };
        if context > limit && !options.allow_longer {
            return Err(LocalError::ContextTooLong { model: files.name.clone(), asked: context, limit });
        }
        let TextSide { tokenizer, template, stop } = TextSide::open(files)?;
        let dtype = options.dtype.unwrap_or_else(|| engine::default_dtype(&options.devices));
        let devices = options.devices.iter().map(DeviceName::of).collect();
        let LocalOptions { chunk, branches, kept, .. } = *options;
        let wish = Wish { context, chunk, logits: 1, dtype, devices, branches, kept };
        let placed = plan::place(&files.name, &model.outline(), &wish, &options.devices)?;
        let engine =
            Engine::new(model.keeping(placed.kept).load_split(placed.devices, dtype)?, options.chunk);
        let cache = engine.decoder().cache(context)?;
        Ok(LocalModel {
            name: files.name.clone(),
            digest,
            engine,
            tokenizer: Arc::new(tokenizer),
            template,
            stop,
            context,
            branches,
            cache,
            held: None,
        })
    }

    /// The manifest's name, or that of the file or folder.
    pub fn model_name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the weights.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Most tokens of prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What may decode together, as planned.
    pub fn branches(&self) -> Branches {
        self.branches
    }

    /// Tokens that end a turn.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop
    }

    /// The model's parts, for a caller that manages prefixes itself, with up to the first `keep` tokens still in the cache:
    /// all of them, or fewer where the model's layers cannot go back to there (see [`Cache::truncate`]).
    pub fn parts(&mut self, keep: usize) -> Result<Parts<'_>, LocalError> {
        self.held = None;
        self.cache.truncate(keep)?;
        Ok(Parts {
            engine: &self.engine,
            cache: &mut self.cache,
            tokenizer: &self.tokenizer,
            stop: &self.stop,
        })
    }

    /// Brings the cache to hold all of `tokens` but the last, reusing what is there of the same conversation, and returns
    /// the logits f32 (1, vocab) after the last one, with a mark before it.
    fn read(
        &mut self,
        messages: &[Message],
        tokens: &[u32],
        room: usize,
    ) -> Result<candle_core::Tensor, LocalError> {
        if tokens.len() + room > self.context {
            return Err(LocalError::DoesNotFit { needed: tokens.len() + room, context: self.context });
        }
        // Only within one conversation, so that results do not depend on what was asked before it.
        let shared = match &self.held {
            Some((held, before)) if held == messages => {
                before.iter().zip(tokens).take_while(|(a, b)| a == b).count().min(tokens.len() - 1)
            }
            _ => 0,
        };
        self.held = None;
        let shared = self.cache.truncate(shared)?;
        let logits = Measurement::nothing(tokens.len()).read(
            &self.engine,
            &mut self.cache,
            &tokens[shared..],
            1,
            &mut |_| true,
        )?;
        self.held = Some((messages.to_vec(), tokens.to_vec()));
        Ok(logits)
    }

    /// The tokens of a conversation with an assistant turn that has begun with `prefix`.
    fn tokens(&self, messages: &[Message], prefix: &str) -> Result<Vec<u32>, LocalError> {
        let text = self.template.render(messages, true)? + prefix;
        Ok(self.tokenizer.encode(&text)?)
    }

    fn try_reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, LocalError> {
        let tokens = self.tokens(messages, "")?;
        let logits = self.read(messages, &tokens, sampling.max_new_tokens)?.squeeze(0)?;
        let (mut measurement, how) = (Measurement::nothing(tokens.len()), (sampling, &self.stop[..]));
        let generated = measurement.answer(&self.engine, &mut self.cache, &logits, how, &mut |_| true)?;
        Ok(Reply {
            text: self.tokenizer.decode(&generated.tokens, true)?,
            stop: generated.stop,
            prompt_tokens: Some(tokens.len()),
            completion_tokens: Some(generated.tokens.len()),
        })
    }

    fn try_score(
        &mut self,
        messages: &[Message],
        prefix: &str,
        choices: &[&str],
    ) -> Result<Vec<f64>, LocalError> {
        let mut scores = Vec::with_capacity(choices.len());
        // Tokens may merge across the border of prefix and choice, so each choice is tokenised with the prefix, and the
        // tokens that all choices share are read once.
        let texts = choices
            .iter()
            .map(|choice| self.tokens(messages, &format!("{prefix}{choice}")))
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
        let after_shared = self.read(messages, &first[..shared], longest - shared)?;
        let mark = self.cache.mark()?;
        for tokens in &texts {
            let rest = &tokens[shared..];
            self.cache.roll_back(&mark)?;
            let mut logits = vec![after_shared.clone()];
            if let Some((_, read)) = rest.split_last()
                && !read.is_empty()
            {
                let keep = read.len();
                let mut measurement = Measurement::nothing(tokens.len());
                logits.push(measurement.read(&self.engine, &mut self.cache, read, keep, &mut |_| true)?);
            }
            let logits = candle_core::Tensor::cat(&logits, 0)?;
            let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1)?.to_device(&Device::Cpu)?;
            let mut score = 0.0;
            for (row, &token) in rest.iter().enumerate() {
                score += f64::from(log_p.get(row)?.get(token as usize)?.to_scalar::<f32>()?);
            }
            scores.push(score);
        }
        self.cache.roll_back(&mark)?;
        Ok(scores)
    }

    fn try_continue(
        &mut self,
        messages: &[Message],
        prefix: &str,
        until: &str,
        max_new_tokens: usize,
    ) -> Result<String, LocalError> {
        let tokens = self.tokens(messages, prefix)?;
        let logits = self.read(messages, &tokens, max_new_tokens)?.squeeze(0)?;
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens };
        let mut stream = StreamDecoder::new(&self.tokenizer, true);
        let mut text = String::new();
        let mut failed = None;
        let (mut measurement, how) = (Measurement::nothing(tokens.len()), (&sampling, &self.stop[..]));
        let done = measurement.answer(&self.engine, &mut self.cache, &logits, how, &mut |token| {
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
        if let Some(end) = text.find(until) {
            text.truncate(end);
        }
        Ok(text)
    }
}

fn chat_error(name: &str, error: LocalError) -> ChatError {
    ChatError(format!("local:{name}: {:#}", anyhow::Error::from(error)))
}

impl ChatModel for LocalModel {
    fn name(&self) -> String {
        format!("local:{}", self.name)
    }

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError> {
        self.try_reply(messages, sampling).map_err(|e| chat_error(&self.name, e))
    }
}

impl ScoringModel for LocalModel {
    fn score(&mut self, messages: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError> {
        self.try_score(messages, prefix, choices).map_err(|e| chat_error(&self.name, e))
    }

    fn continue_from(
        &mut self,
        messages: &[Message],
        prefix: &str,
        until: &str,
        max_new_tokens: usize,
    ) -> Result<String, ChatError> {
        self.try_continue(messages, prefix, until, max_new_tokens).map_err(|e| chat_error(&self.name, e))
    }
}
