//! An opened model: files, tokeniser, chat template, decoder and KV cache together.
//!
//! Opened by the commands; used by the runner's local subject and, as a chat model, by judges. The cache lives here and is
//! reused: allocated once for the context length and rolled back between conversations.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::local_error::LocalError;
use super::memory_plan::{self, Branches, MemoryRequest, ObservedSpans, ServerMemory, Serving};
use super::text_side::TextSide;
use super::thread::Limits;
use super::{DeviceName, Engine, Generated, Hardware, Measurement, StopReason, Thinker};
use crate::attention::AttentionKernel;
use crate::model::{Cache, Kept, ModelFiles, OpenModel};
use crate::text::{
    ChatTemplate, ReasoningEffort, Split, TextError, ThinkingMode, ThoughtReader, Thoughts, Tokenizer,
};

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
    /// Positions whose logits are asked for at once, at least one.
    pub logits: usize,
    /// Continuations of one prompt that may decode together, beside the context; none unless asked for.
    pub branches: Branches,
    /// How many answers a server generates together and how much it keeps, in the place of `branches`; `None` where it is no server's.
    pub serving: Option<Serving>,
    /// What the attention observer sums over.
    pub observed: ObservedSpans,
    /// What to keep of quantised weights on the CPU in f32; `None` is what fits, the faster way first.
    pub kept: Option<Kept>,
    /// Whether keys may be hidden from rows, which takes the memory of matrix products whatever else computes attention.
    pub hides_keys: bool,
    /// Whether it thinks before it answers, and how much.
    pub thinking: ThinkingOptions,
}

/// Most tokens of a thought, unless told otherwise.
pub const DEFAULT_MAX_THINKING: usize = 4096;

/// Whether a model is to think before it answers, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkingOptions {
    /// Whether.
    pub mode: ThinkingMode,
    /// How much, in a word that the chat template reads; `None` is the template's own choice.
    pub effort: Option<ReasoningEffort>,
    /// Most tokens of a thought, its markers included.
    pub max: usize,
}

impl Default for ThinkingOptions {
    fn default() -> Self {
        ThinkingOptions { mode: ThinkingMode::Auto, effort: None, max: DEFAULT_MAX_THINKING }
    }
}

impl Default for LocalOptions {
    fn default() -> Self {
        LocalOptions {
            devices: vec![Device::Cpu],
            dtype: None,
            context: ContextLength::Whole,
            allow_longer: false,
            chunk: super::DEFAULT_CHUNK,
            logits: 1,
            branches: Branches::default(),
            serving: None,
            observed: ObservedSpans::default(),
            kept: None,
            hides_keys: false,
            thinking: ThinkingOptions::default(),
        }
    }
}

impl LocalOptions {
    /// What memory for attention is planned for.
    pub fn kernel(&self) -> AttentionKernel {
        if self.hides_keys { AttentionKernel::Products } else { AttentionKernel::chosen() }
    }
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
    /// For the next generation, where the model thinks before it answers.
    pub thinker: Option<Thinker>,
}

/// A model on this machine.
pub struct LocalModel {
    name: String,
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    /// Set to think or not.
    template: ChatTemplate,
    thoughts: Option<Thoughts>,
    max_thinking: usize,
    /// Tokens that end a turn.
    stop: Vec<u32>,
    context: usize,
    branches: Branches,
    limits: Limits,
    server: ServerMemory,
    observed: ObservedSpans,
    hardware: Hardware,
    cache: Cache,
    /// The text that a conversation's growing prefixes begin with, and the tokens that are at the start of the cache.
    held: Option<(String, Vec<u32>)>,
    /// Tokens that were prefilled and generated since they were asked for last.
    usage: (usize, usize),
}

/// What stands between text and tokens for an opened model: for a server, whose thread owns engine and cache and knows no text.
#[derive(Debug, Clone)]
pub struct ModelText {
    /// The manifest's name, or that of the file or folder.
    pub name: String,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text, set to think or not.
    pub template: ChatTemplate,
    /// How it thinks; `None` where its chat template has no thoughts.
    pub thoughts: Option<Thoughts>,
    /// Most tokens of a thought.
    pub max_thinking: usize,
    /// Tokens that end a turn.
    pub stop: Vec<u32>,
    /// Most tokens of prompt and answer together.
    pub context: usize,
}

impl LocalModel {
    /// The model taken apart: who computes, and who reads and writes text. `max_thinking` is for conversations that switch
    /// thoughts on.
    pub fn into_parts(self, max_thinking: usize) -> (Engine, Cache, ModelText) {
        let LocalModel { name, engine, tokenizer, template, thoughts, stop, context, cache, .. } = self;
        let text = ModelText { name, tokenizer, template, thoughts, max_thinking, stop, context };
        (engine, cache, text)
    }

    /// Opens files that are at hand.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn open(files: &ModelFiles, options: &LocalOptions) -> Result<Self, LocalError> {
        let _span = crate::timing::load();
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
        let ThinkingOptions { mode, effort, max } = options.thinking;
        let (template, thoughts) = template
            .with_thinking(mode, effort)
            .map_err(|source| LocalError::Thinking { model: files.name.clone(), source })?;
        let max_thinking = if thoughts.is_some_and(|thoughts| thoughts.on) { max } else { 0 };
        let dtype = options.dtype.unwrap_or_else(|| super::default_dtype(&options.devices));
        let devices = options.devices.iter().map(DeviceName::of).collect();
        let LocalOptions { chunk, logits, branches, observed, kept, .. } = *options;
        // Room for the thought beside that for the answer.
        let observed =
            ObservedSpans { generated: observed.generated.saturating_add(max_thinking), ..observed };
        let branches = match branches.count {
            0 => branches,
            count => Branches { count, tokens: branches.tokens.saturating_add(max_thinking) },
        };
        let kernel = options.kernel();
        let beside = 0;
        let mut request = MemoryRequest {
            context,
            chunk,
            logits,
            dtype,
            kernel,
            devices,
            branches,
            observed,
            kept,
            beside,
        };
        let mut limits = Limits::of_context(context);
        let mut server = ServerMemory::default();
        let mut free: Vec<_> = options.devices.iter().map(memory_plan::available_bytes).collect();
        if let Some(serving) = options.serving {
            let description = model.description();
            (limits, request.branches, server) =
                serving.fitted(&description, &request, tokenizer.longest(), &free);
            request.beside = server.beside();
            free = serving.bounded(&free);
        }
        let devices = &options.devices;
        let placed = memory_plan::place_within(&files.name, &model.description(), &request, devices, &free);
        let placed = placed.map_err(|e| match options.serving {
            Some(serving) => e.of_server(serving.memory),
            None => e,
        })?;
        let hardware = Hardware::of(&placed.devices);
        let engine =
            Engine::new(model.keeping(placed.kept).load_split(placed.devices, dtype)?, options.chunk);
        let cache = engine.decoder().cache(context)?;
        Ok(LocalModel {
            name: files.name.clone(),
            engine,
            tokenizer: Arc::new(tokenizer),
            template,
            thoughts,
            max_thinking,
            stop,
            context,
            branches,
            limits,
            server,
            observed,
            hardware,
            cache,
            held: None,
            usage: (0, 0),
        })
    }

    /// The manifest's name, or that of the file or folder.
    pub fn model_name(&self) -> &str {
        &self.name
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chat template, set to think or not.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// How it thinks; `None` where its chat template has no thoughts.
    pub fn thoughts(&self) -> Option<Thoughts> {
        self.thoughts
    }

    /// Most tokens of a thought; 0 where it does not think.
    pub fn max_thinking(&self) -> usize {
        self.max_thinking
    }

    /// What tells thoughts from an answer that is generated now.
    pub fn thinker(&self) -> Option<Thinker> {
        let thoughts = self.thoughts.filter(|thoughts| thoughts.on)?;
        let reader = ThoughtReader::new(thoughts, Arc::clone(&self.tokenizer));
        Some(Thinker { reader, budget: self.max_thinking })
    }

    /// A reply, taken apart: the text of its answer and its thought, and why it ended.
    ///
    /// # Errors
    /// Those of decoding.
    pub fn split(&self, generated: &Generated) -> Result<(Split, StopReason), TextError> {
        let Some(thoughts) = self.thoughts else {
            let answer = self.tokenizer.decode(&generated.tokens, true)?.trim().to_owned();
            return Ok((Split { thought: None, answer: Some(answer) }, generated.stop));
        };
        let split = thoughts.split(&self.tokenizer, &generated.tokens)?;
        let stop = generated.stop.seen_in(split.answer.is_some());
        Ok((split, stop))
    }

    /// Most tokens of prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// What may decode together, as planned.
    pub fn branches(&self) -> Branches {
        self.branches
    }

    /// What a server of it does and keeps at once, as planned.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What a server of it plans beside the model; nothing where it was opened for something else.
    pub fn server_memory(&self) -> ServerMemory {
        self.server
    }

    /// What the attention observer was planned to sum over, a thought among what is generated.
    pub fn observed(&self) -> ObservedSpans {
        self.observed
    }

    /// What of this machine it runs on.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
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
        Ok(self.held_parts())
    }

    /// Prefills `tokens`, reusing what the cache holds of the same `conversation`, and returns the logits f32 (1, vocab) after the
    /// last one. `room` more tokens must fit.
    ///
    /// # Errors
    /// [`LocalError::DoesNotFit`], and those of the engine.
    pub fn prefill(&mut self, conversation: &str, tokens: &[u32], room: usize) -> Result<Tensor, LocalError> {
        if tokens.len() + room > self.context {
            return Err(LocalError::DoesNotFit { needed: tokens.len() + room, context: self.context });
        }
        // Only within one conversation, so that results do not depend on what was asked before it.
        let shared = match &self.held {
            Some((held, before)) if held == conversation => {
                // One token by itself would be summed in another order than with others.
                let same = before.iter().zip(tokens).take_while(|(a, b)| a == b).count();
                same.min(tokens.len().saturating_sub(2))
            }
            _ => 0,
        };
        self.held = None;
        let shared = self.cache.truncate(shared)?;
        let logits = Measurement::nothing(tokens.len()).prefill(
            &self.engine,
            &mut self.cache,
            &tokens[shared..],
            1,
            &mut |_| true,
        )?;
        self.held = Some((conversation.to_owned(), tokens.to_vec()));
        self.count_usage(tokens.len() - shared, 0);
        Ok(logits)
    }

    /// Counts tokens of a conversation; [`Self::prefill`] counts its own.
    pub fn count_usage(&mut self, computed: usize, generated: usize) {
        self.usage.0 += computed;
        self.usage.1 += generated;
    }

    /// The tokens that were prefilled and generated in conversations since this was asked last.
    pub fn take_usage(&mut self) -> (usize, usize) {
        std::mem::take(&mut self.usage)
    }

    /// The parts, without a change to what the cache holds.
    pub fn held_parts(&mut self) -> Parts<'_> {
        let thinker = self.thinker();
        Parts {
            engine: &self.engine,
            cache: &mut self.cache,
            tokenizer: &self.tokenizer,
            stop: &self.stop,
            thinker,
        }
    }
}
