//! An opened model: files, tokeniser, chat template, decoder and KV cache together.
//!
//! Opened by the commands; used by the runner's local subject and, as a chat model, by judges. The cache lives here and is
//! reused: allocated once for the context length and rolled back between conversations.

use std::sync::Arc;

use candle_core::{DType, Device};

use super::local_error::LocalError;
use super::memory_plan::{self, Branches, MemoryRequest, ObservedSpans, ServerMemory, Serving};
use super::stop_strings::{StopStrings, before_stop};
use super::text_side::TextSide;
use super::thread::Limits;
use super::{DeviceName, Engine, Generated, Session, StopReason, Thinker};
use crate::attention::AttentionKernel;
use crate::model::{Kept, ModelFiles, OpenModel};
use crate::text::{
    ChatTemplate, Message, MessageRole, ReasoningEffort, Split, StreamDecoder, TextError, ThinkingMode,
    ThoughtReader, Thoughts, Tokenizer,
};

/// The context length that a model is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextLength {
    /// The length that the model was made for.
    Whole,
    /// That length or this one, whichever is less: for jobs whose inputs are short.
    AtMost(usize),
    /// This one.
    Exactly(usize),
}

/// Settings of a local model.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// Where: one device, or several of one kind that share the layers out between them.
    pub devices: Vec<Device>,
    /// In what; `None` is the devices' default.
    pub dtype: Option<DType>,
    /// Keys and values in what; `None` is the same.
    pub cache_dtype: Option<DType>,
    /// Most tokens of prompt and answer together: what the cache is made for.
    pub context: ContextLength,
    /// True if the context may exceed the model's.
    pub allow_longer: bool,
    /// Tokens that a prefill reads at a time.
    pub chunk: usize,
    /// Positions whose logits are asked for at once, at least one.
    pub logits: usize,
    /// Continuations of one prompt that may decode together, beside the context; none unless asked for.
    pub branches: Branches,
    /// A server's limits on answers and cache, in the place of `branches`; `None` where it is no server's.
    pub serving: Option<Serving>,
    /// The spans that the attention observer sums over.
    pub observed: ObservedSpans,
    /// The form in which quantised weights are kept on the CPU in f32 or bf16; `None` is the fastest that fits.
    pub kept: Option<Kept>,
    /// The attention kernel on CUDA.
    pub kernel: AttentionKernel,
    /// True if keys may be hidden from rows, which takes the memory of matrix products whatever else computes attention.
    pub hides_keys: bool,
    /// Thoughts before the answer.
    pub thinking: ThinkingOptions,
}

/// Most tokens of a thought, unless told otherwise.
pub const DEFAULT_MAX_THINKING: usize = 4096;

/// Settings of thoughts before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkingOptions {
    /// On, off, or the template's own choice.
    pub mode: ThinkingMode,
    /// The effort, in a word that the chat template reads; `None` is the template's own choice.
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
            cache_dtype: None,
            context: ContextLength::Whole,
            allow_longer: false,
            chunk: super::DEFAULT_CHUNK,
            logits: 1,
            branches: Branches::default(),
            serving: None,
            observed: ObservedSpans::default(),
            kept: None,
            kernel: AttentionKernel::Auto,
            hides_keys: false,
            thinking: ThinkingOptions::default(),
        }
    }
}

impl LocalOptions {
    /// The attention kernel that memory is planned for.
    pub fn planned_kernel(&self) -> AttentionKernel {
        if self.hides_keys { AttentionKernel::Products } else { self.kernel }
    }
}

/// A model on this machine: what answers requests, and what reads and writes text.
pub struct LocalModel {
    session: Session,
    text: ModelText,
    branches: Branches,
    limits: Limits,
    server: ServerMemory,
    observed: ObservedSpans,
}

/// The text side of an opened model: between conversations and tokens.
#[derive(Debug, Clone)]
pub struct ModelText {
    /// The manifest's name, or that of the file or folder.
    pub name: String,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text, set to think or not.
    pub template: ChatTemplate,
    /// The markers of its thoughts; `None` where its chat template has none.
    pub thoughts: Option<Thoughts>,
    /// Most tokens of a thought.
    pub max_thinking: usize,
    /// Tokens that end a turn.
    pub stop: Vec<u32>,
    /// Most tokens of prompt and answer together.
    pub context: usize,
}

impl LocalModel {
    /// The model taken apart. `max_thinking` is for conversations that switch thoughts on.
    pub fn into_parts(self, max_thinking: usize) -> (Session, ModelText) {
        (self.session, ModelText { max_thinking, ..self.text })
    }

    /// Both sides at once: what answers requests, and what reads and writes text.
    pub fn parts(&mut self) -> (&mut Session, &ModelText) {
        (&mut self.session, &self.text)
    }

    /// The engine with its cache.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Tokeniser, chat template and names.
    pub fn text(&self) -> &ModelText {
        &self.text
    }

    /// Opens files that are at hand.
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
        let TextSide { tokenizer, template, stop, .. } = TextSide::open(files)?;
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
        let kernel = options.planned_kernel();
        let beside = 0;
        let mut request = MemoryRequest {
            context,
            chunk,
            logits,
            dtype,
            cache: options.cache_dtype,
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
        let model = model.keeping(placed.kept).attending_by(options.kernel).caching_in(options.cache_dtype);
        let engine = Engine::new(model.load_split(placed.devices, dtype)?, options.chunk);
        let cache = engine.decoder().cache(context)?;
        let text = ModelText {
            name: files.name.clone(),
            tokenizer: Arc::new(tokenizer),
            template,
            thoughts,
            max_thinking,
            stop,
            context,
        };
        let session = Session::new(engine, cache, Limits::of_branches(context, branches));
        Ok(LocalModel { session, text, branches, limits, server, observed })
    }

    /// The manifest's name, or that of the file or folder.
    pub fn model_name(&self) -> &str {
        &self.text.name
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.session.engine()
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.text.tokenizer
    }

    /// The chat template, set to think or not.
    pub fn template(&self) -> &ChatTemplate {
        &self.text.template
    }

    /// Most tokens of a thought; 0 where it does not think.
    pub fn max_thinking(&self) -> usize {
        self.text.max_thinking
    }

    /// Most tokens of prompt and answer together.
    pub fn context(&self) -> usize {
        self.text.context
    }

    /// Branches that may decode together, as planned.
    pub fn branches(&self) -> Branches {
        self.branches
    }

    /// The limits of a server of it, as planned.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Memory that a server of it plans beside the model; none where it was opened for something else.
    pub fn server_memory(&self) -> ServerMemory {
        self.server
    }

    /// The spans that the attention observer was planned for; a thought counts as generated.
    pub fn observed(&self) -> ObservedSpans {
        self.observed
    }

    /// Tokens that end a turn.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.text.stop
    }
}

impl ModelText {
    /// Separates thoughts from the answer during generation.
    pub fn thinker(&self) -> Option<Thinker> {
        let thoughts = self.thoughts.filter(|thoughts| thoughts.on)?;
        let reader = ThoughtReader::new(thoughts, Arc::clone(&self.tokenizer));
        Some(Thinker { reader, budget: self.max_thinking })
    }

    /// A reply, taken apart: the text of its answer and its thought, and why it ended.
    pub fn split(&self, generated: &Generated) -> Result<(Split, StopReason), TextError> {
        let Some(thoughts) = self.thoughts else { return self.continuation(generated) };
        let split = thoughts.split(&self.tokenizer, &generated.tokens)?;
        let stop = generated.stop.seen_in(split.answer.is_some());
        Ok((split, stop))
    }

    /// The continuation of an answer that the prompt began: all of its text, none of it a thought.
    pub fn continuation(&self, generated: &Generated) -> Result<(Split, StopReason), TextError> {
        let answer = self.tokenizer.decode(&generated.tokens, true)?.trim().to_owned();
        Ok((Split { thought: None, answer: Some(answer) }, generated.stop))
    }

    /// An answer up to the first of some strings, which are looked for in its text with special tokens; no white space ends it.
    pub fn before_stop(
        &self,
        answer: &str,
        generated: &Generated,
        stops: &[String],
    ) -> Result<String, TextError> {
        let (thought, tokens) = generated.tokens.split_at(generated.thought.min(generated.tokens.len()));
        if stops.is_empty() || !tokens.iter().any(|&token| self.tokenizer.is_special(token)) {
            return Ok(before_stop(answer, stops).trim_end().to_owned());
        }
        let mut reader = self.thinker().map(|thinker| thinker.reader);
        thought.iter().for_each(|&token| reader.iter_mut().for_each(|reader| reader.push(token)));
        let begun = reader.and_then(|reader| reader.answer_begun()).unwrap_or_default();
        let (mut decoder, mut strings) =
            (StreamDecoder::new(&*self.tokenizer), StopStrings::new(stops.to_vec()));
        let mut text = strings.push(&begun.into());
        for &token in tokens {
            text.push_str(&strings.push(&decoder.push(token)?));
        }
        text.push_str(&strings.push(&decoder.finish().into()));
        text.push_str(&strings.take_held());
        Ok(text.trim().to_owned())
    }

    /// The tokens of options after a prompt that begins the answer with `prefix`: the beginnings of answers that are scored. Where
    /// the model would think first, the prefix, or an option without one, follows an empty thought. `None` without any option, and
    /// where the chat template has no way past a thought.
    pub fn option_tokens(
        &self,
        prefix: &str,
        options: &[String],
    ) -> Result<Option<Vec<Vec<u32>>>, TextError> {
        if options.is_empty() {
            return Ok(None);
        }
        // All prompts end alike, so that any of them shows how an option's tokens follow.
        let any = [Message { role: MessageRole::User, content: "Hello".to_owned() }];
        let past_thought = self.template.render_past_thought(&any)? + prefix;
        // A prefix is part of the prompt.
        let prompt = if prefix.is_empty() { self.template.render(&any, true)? } else { past_thought.clone() };
        let Some(closing) = past_thought.strip_prefix(&prompt) else { return Ok(None) };
        let before = self.tokenizer.encode(&prompt)?;
        let of = |option: &String| {
            let whole = self.tokenizer.encode(&format!("{past_thought}{option}"))?;
            match whole.strip_prefix(before.as_slice()) {
                Some(rest) => Ok(rest.to_vec()),
                // A token across the border: an answer is generated after the prompt's own tokens.
                None => self.tokenizer.encode(&format!("{closing}{option}")),
            }
        };
        options.iter().map(of).collect::<Result<Vec<_>, _>>().map(Some)
    }
}
