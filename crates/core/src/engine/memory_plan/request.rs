//! The request that memory is planned for.

use candle_core::DType;

use crate::attention::{AttentionKernel, SPLIT_K};
use crate::engine::DEFAULT_CHUNK;
use crate::engine::device::DeviceName;
use crate::model::{CacheFormat, Formats, Kept};

/// A run to plan memory for.
#[derive(Debug, Clone)]
pub struct MemoryRequest {
    /// Tokens of the cache.
    pub context: usize,
    /// Tokens that a prefill reads at a time.
    pub chunk: usize,
    /// Positions whose logits are asked for at once, at least one.
    pub logits: usize,
    /// Dtype of weights and of the factors of products.
    pub dtype: DType,
    /// Dtype of keys and values; `None` is the model's.
    pub cache: Option<DType>,
    /// The attention kernel on CUDA. Products where keys may be hidden from rows, which no other kernel serves.
    pub kernel: AttentionKernel,
    /// Where: one device, or several that share the layers out between them.
    pub devices: Vec<DeviceName>,
    /// Branches of what is in the cache, beside it.
    pub branches: Branches,
    /// The spans that the attention observer sums over.
    pub observed: ObservedSpans,
    /// The form in which quantised weights are kept on the CPU in f32 or bf16; `None` lets the plan decide: dequantised too where they fit.
    pub kept: Option<Kept>,
    /// Bytes of the CPU's memory that a server plans beside the model; 0 for everybody else.
    pub beside: u64,
}

impl MemoryRequest {
    /// Of one sequence of up to `context` tokens, all else as it usually is.
    pub fn new(context: usize, dtype: DType, devices: Vec<DeviceName>) -> Self {
        MemoryRequest {
            context,
            chunk: DEFAULT_CHUNK,
            logits: 1,
            dtype,
            cache: None,
            kernel: AttentionKernel::Auto,
            devices,
            branches: Branches::default(),
            observed: ObservedSpans::default(),
            kept: None,
            beside: 0,
        }
    }

    /// Refuses a cache that the devices do not keep.
    pub fn check_formats(&self) -> Result<Formats, CacheFormat> {
        Formats::on(self.dtype, self.cache, self.on_cpu())
    }

    /// True if no device is another than the CPU.
    pub fn on_cpu(&self) -> bool {
        self.devices.iter().all(|device| *device == DeviceName::Cpu)
    }

    /// The number formats on the devices; a cache that they do not keep is refused by what loads the model, and counted as their own.
    pub fn formats(&self) -> Formats {
        self.check_formats().unwrap_or(Formats::throughout(self.dtype))
    }
}

/// Spans that the attention observer sums over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedSpans {
    /// Row spans.
    pub rows: usize,
    /// Key spans.
    pub keys: usize,
    /// Tokens generated after a prompt, a thought among them: linear-attention layers' observer keeps their queries until it is known
    /// which of them are the answer.
    pub generated: usize,
}

impl Default for ObservedSpans {
    /// The question and one piece of evidence, over twice the sessions of the longest published histories, and an answer of usual
    /// length.
    fn default() -> Self {
        ObservedSpans { rows: 2, keys: 512, generated: USUAL_ANSWER }
    }
}

/// Continuations of the same tokens, decoded as one batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Branches {
    /// Most of them; none where nothing does.
    pub count: usize,
    /// Tokens whose keys each may hold for itself (see [`crate::model::branch_rows`]).
    pub tokens: usize,
}

/// Tokens of an answer that plans are made for unless told otherwise: those of STALE, the default benchmark.
pub const USUAL_ANSWER: usize = 1024;

/// Tokens of a probe's own part of the prompt, the question and what follows it, that are planned for. A longer one is
/// answered by itself, in the cache.
const OWN_TOKENS: usize = 512;

impl Branches {
    /// The default of plans: three probes a case, answers of up to [`USUAL_ANSWER`] tokens.
    pub const USUAL: Branches = Branches::for_answers(3, USUAL_ANSWER);

    /// For answers of up to `max_new_tokens` to `count` probes; one alone needs no branch.
    pub const fn for_answers(count: usize, max_new_tokens: usize) -> Self {
        match count {
            0 | 1 => Branches { count: 0, tokens: 0 },
            _ => Branches { count, tokens: (SPLIT_K + OWN_TOKENS).saturating_add(max_new_tokens) },
        }
    }
}
