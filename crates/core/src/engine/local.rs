//! An opened model. Its cache is allocated once for the context length and rolled back between conversations.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device};
use serde_json::Value;

use super::json_schema::{fault, grammar_rule};
use super::local_error::LocalError;
use super::memory_plan::{self, Branches, MemoryRequest, ObservedSpans, ServerMemory, Serving};
use super::stop_strings::{StopStrings, before_stop};
use super::text_side::TextSide;
use super::thread::Limits;
use super::{
    Constraint, ConstraintError, DeviceName, Engine, Generated, GrammarVocabulary, Session, Starts,
    StopReason, Thinker,
};
use crate::attention::AttentionKernel;
use crate::evict::Keep;
use crate::model::{Kept, ModelFiles, OpenModel};
use crate::text::{
    ChatTemplate, Message, MessageRole, ReasoningEffort, Split, StreamDecoder, TextError, ThinkingMode,
    ThoughtReader, Thoughts, Tokenizer,
};

/// Context length to open a model with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextLength {
    /// The model's own length.
    Whole,
    /// The smaller of the model's length and this one.
    AtMost(usize),
    /// Exactly this length.
    Exactly(usize),
}

/// Options of a local model.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// One device, or several of one kind that split the layers.
    pub devices: Vec<Device>,
    /// Compute dtype; `None` is the device default.
    pub dtype: Option<DType>,
    /// KV cache dtype; `None` is the compute dtype.
    pub cache_dtype: Option<DType>,
    /// Keep all keys of windowed layers, so that rows can be shown keys outside their window.
    pub whole_windows: bool,
    /// Maximum tokens of prompt plus answer; sizes the cache.
    pub context: ContextLength,
    /// Allow a context longer than the model's.
    pub allow_longer: bool,
    /// Tokens of a prefill chunk.
    pub chunk: usize,
    /// Maximum positions whose logits are requested at once; at least one.
    pub logits: usize,
    /// Branches that may decode together, in addition to the context.
    pub branches: Branches,
    /// Limits of a server, replacing `branches`; `None` outside a server.
    pub serving: Option<Serving>,
    /// Spans the attention observer sums over.
    pub observed: ObservedSpans,
    /// Storage of quantised weights on the CPU in f32 or bf16; `None` is the fastest that fits.
    pub kept: Option<Kept>,
    /// The attention kernel on CUDA.
    pub kernel: AttentionKernel,
    /// Reserve memory for masked attention, which always uses matrix products.
    pub hides_keys: bool,
    /// Budgets of evictions that requests may ask for, to reserve memory for what they keep.
    pub keeps: Vec<Keep>,
    /// Thinking options.
    pub thinking: ThinkingOptions,
}

/// Default thinking budget in tokens.
pub const DEFAULT_MAX_THINKING: usize = 4096;

/// Thinking options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkingOptions {
    /// On, off, or the template's default.
    pub mode: ThinkingMode,
    /// Reasoning effort passed to the chat template; `None` is its default.
    pub effort: Option<ReasoningEffort>,
    /// Maximum tokens of a thought, markers included.
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
            whole_windows: false,
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
            keeps: Vec::new(),
            thinking: ThinkingOptions::default(),
        }
    }
}

impl LocalOptions {
    /// Attention kernel to plan memory for.
    pub fn planned_kernel(&self) -> AttentionKernel {
        if self.hides_keys { AttentionKernel::Products } else { self.kernel }
    }
}

/// A local model: session and text side.
pub struct LocalModel {
    session: Session,
    text: ModelText,
    branches: Branches,
    limits: Limits,
    server: ServerMemory,
    observed: ObservedSpans,
    schemas: Schemas,
}

/// Schemas of replies, each compiled once.
#[derive(Default)]
struct Schemas {
    vocabulary: Option<Arc<GrammarVocabulary>>,
    compiled: BTreeMap<String, Arc<Constraint>>,
    current: Option<Arc<Constraint>>,
}

/// Text side of an opened model.
#[derive(Debug, Clone)]
pub struct ModelText {
    /// Manifest name, or the name of the file or folder.
    pub name: String,
    /// The tokeniser.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, with thinking on or off.
    pub template: ChatTemplate,
    /// Markers of its thoughts; `None` if the template has none.
    pub thoughts: Option<Thoughts>,
    /// Maximum tokens of a thought.
    pub max_thinking: usize,
    /// End-of-turn token ids.
    pub stop: Vec<u32>,
    /// Maximum tokens of prompt plus answer.
    pub context: usize,
}

impl LocalModel {
    /// Splits the model. `max_thinking` is for conversations that switch thinking on.
    pub fn into_parts(self, max_thinking: usize) -> (Session, ModelText) {
        (self.session, ModelText { max_thinking, ..self.text })
    }

    /// Borrows session and text side.
    pub fn parts(&mut self) -> (&mut Session, &ModelText) {
        (&mut self.session, &self.text)
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The text side.
    pub fn text(&self) -> &ModelText {
        &self.text
    }

    /// Opens local files.
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
        // Reserve rows for thought and answer.
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
            whole_windows: options.whole_windows,
            kernel,
            devices,
            branches,
            observed,
            kept,
            keeps: options.keeps.clone(),
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
        let cache = match options.whole_windows {
            true => engine.decoder().whole_cache(context)?,
            false => engine.decoder().cache(context)?,
        };
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
        let schemas = Schemas::default();
        Ok(LocalModel { session, text, branches, limits, server, observed, schemas })
    }

    /// Constrains further replies to a JSON schema; `None` lifts it. Fails for a schema that cannot be enforced in full.
    pub fn hold_to_schema(&mut self, schema: Option<&Value>) -> Result<(), ConstraintError> {
        let Some(schema) = schema else {
            self.schemas.current = None;
            return Ok(());
        };
        let text = schema.to_string();
        if !self.schemas.compiled.contains_key(&text) {
            if let Some(fault) = fault(schema, true) {
                return Err(ConstraintError::Refused(format!("the schema {fault}")));
            }
            let vocabulary = match &self.schemas.vocabulary {
                Some(vocabulary) => Arc::clone(vocabulary),
                None => {
                    let width = self.engine().decoder().spec().vocab;
                    Arc::new(GrammarVocabulary::new(self.tokenizer(), width, self.stop_tokens())?)
                }
            };
            let grammar = format!("start: reply\n{}", grammar_rule("reply", schema.clone(), true));
            let constraint = vocabulary.compile(grammar, Starts::AtOnce, "schema")?;
            self.schemas.vocabulary = Some(vocabulary);
            self.schemas.compiled.insert(text.clone(), Arc::new(constraint));
        }
        self.schemas.current = self.schemas.compiled.get(&text).cloned();
        Ok(())
    }

    /// The constraint of [`LocalModel::hold_to_schema`].
    pub fn reply_constraint(&self) -> Option<Arc<Constraint>> {
        self.schemas.current.clone()
    }

    /// Manifest name, or the name of the file or folder.
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

    /// The chat template, with thinking on or off.
    pub fn template(&self) -> &ChatTemplate {
        &self.text.template
    }

    /// Maximum tokens of a thought; 0 if thinking is off.
    pub fn max_thinking(&self) -> usize {
        self.text.max_thinking
    }

    /// Maximum tokens of prompt plus answer.
    pub fn context(&self) -> usize {
        self.text.context
    }

    /// Planned number and size of branches.
    pub fn branches(&self) -> Branches {
        self.branches
    }

    /// Planned server limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Planned server memory besides the model; empty outside a server.
    pub fn server_memory(&self) -> ServerMemory {
        self.server
    }

    /// Planned observer spans; thoughts count as generated.
    pub fn observed(&self) -> ObservedSpans {
        self.observed
    }

    /// End-of-turn token ids.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.text.stop
    }
}

impl ModelText {
    /// Separates thoughts from the answer during generation; `None` if thinking is off.
    pub fn thinker(&self) -> Option<Thinker> {
        let thoughts = self.thoughts.filter(|thoughts| thoughts.on)?;
        let reader = ThoughtReader::new(thoughts, Arc::clone(&self.tokenizer));
        Some(Thinker { reader, budget: self.max_thinking })
    }

    /// Splits a reply into thought and answer, with the stop reason.
    pub fn split(&self, generated: &Generated) -> Result<(Split, StopReason), TextError> {
        let Some(thoughts) = self.thoughts else { return self.continuation(generated) };
        let split = thoughts.split(&self.tokenizer, &generated.tokens)?;
        let stop = generated.stop.seen_in(split.answer.is_some());
        Ok((split, stop))
    }

    /// Continuation of an answer that the prompt began; has no thought.
    pub fn continuation(&self, generated: &Generated) -> Result<(Split, StopReason), TextError> {
        let answer = self.tokenizer.decode(&generated.tokens, true)?.trim().to_owned();
        Ok((Split { thought: None, answer: Some(answer) }, generated.stop))
    }

    /// The answer before the first stop string, right-trimmed. Stop strings may match special tokens.
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

    /// Tokens of each option after a prompt whose answer begins with `prefix`, for scoring. If the model would think first, the prefix (or
    /// an option without one) follows an empty thought. `None` without options, or if the template cannot skip a thought.
    pub fn option_tokens(
        &self,
        prefix: &str,
        options: &[String],
    ) -> Result<Option<Vec<Vec<u32>>>, TextError> {
        if options.is_empty() {
            return Ok(None);
        }
        // All prompts end alike, so any message will do.
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
                // A token spans the border: tokenise the option separately.
                None => self.tokenizer.encode(&format!("{closing}{option}")),
            }
        };
        options.iter().map(of).collect::<Result<Vec<_>, _>>().map(Some)
    }
}
