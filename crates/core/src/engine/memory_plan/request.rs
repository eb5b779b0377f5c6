//! Parameters of a memory plan.

use std::cmp::Reverse;

use candle_core::DType;

use crate::attention::{AttentionKernel, SPLIT_K};
use crate::engine::DEFAULT_CHUNK;
use crate::engine::device::DeviceName;
use crate::evict::Keep;
use crate::model::{CacheFormat, Formats, Kept};

/// Parameters of a memory plan.
#[derive(Debug, Clone)]
pub struct MemoryRequest {
    /// Cache length in tokens.
    pub context: usize,
    /// Tokens of a prefill chunk.
    pub chunk: usize,
    /// Maximum positions whose logits are requested at once; at least one.
    pub logits: usize,
    /// Dtype of weights and of matrix products.
    pub dtype: DType,
    /// KV cache dtype; `None` is the model's.
    pub cache: Option<DType>,
    /// Caches keep all keys of windowed layers ([`crate::model::Decoder::whole_cache`]).
    pub whole_windows: bool,
    /// Attention kernel on CUDA; matrix products if keys may be masked, which other kernels do not support.
    pub kernel: AttentionKernel,
    /// One device, or several that split the layers.
    pub devices: Vec<DeviceName>,
    /// Branches besides the main cache.
    pub branches: Branches,
    /// Spans the attention observer sums over.
    pub observed: ObservedSpans,
    /// Storage of quantised weights on the CPU in f32 or bf16; `None` also keeps them dequantised if that fits.
    pub kept: Option<Kept>,
    /// Budgets of evictions, which hold copies of the keys and values that they keep.
    pub keeps: Vec<Keep>,
    /// CPU bytes of a server besides the model; 0 elsewhere.
    pub beside: u64,
}

impl MemoryRequest {
    /// One sequence of up to `context` tokens, defaults otherwise.
    pub fn new(context: usize, dtype: DType, devices: Vec<DeviceName>) -> Self {
        MemoryRequest {
            context,
            chunk: DEFAULT_CHUNK,
            logits: 1,
            dtype,
            cache: None,
            whole_windows: false,
            kernel: AttentionKernel::Auto,
            devices,
            branches: Branches::default(),
            observed: ObservedSpans::default(),
            kept: None,
            keeps: Vec::new(),
            beside: 0,
        }
    }

    /// Fails if the devices do not support the cache dtype.
    pub fn check_formats(&self) -> Result<Formats, CacheFormat> {
        Formats::on(self.dtype, self.cache, self.on_cpu())
    }

    /// Most keys that evictions keep at once, for each key/value head: of one, or of as many as branches decode together.
    pub fn kept_keys(&self) -> usize {
        let keys = |keep: &Keep| match *keep {
            Keep::Share(share) => (share * self.context as f64) as usize,
            Keep::Tokens(tokens) => tokens.min(self.context),
        };
        let mut kept: Vec<usize> = self.keeps.iter().map(keys).collect();
        kept.sort_unstable_by_key(|&keys| Reverse(keys));
        kept.iter().take(self.branches.count.max(1)).sum()
    }

    /// True if all devices are the CPU.
    pub fn on_cpu(&self) -> bool {
        self.devices.iter().all(|device| *device == DeviceName::Cpu)
    }

    /// Number formats on the devices. An unsupported cache dtype is refused at load and counted here as the compute dtype.
    pub fn formats(&self) -> Formats {
        self.check_formats().unwrap_or(Formats::throughout(self.dtype))
    }
}

/// Sizes of the attention observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedSpans {
    /// Row spans.
    pub rows: usize,
    /// Key spans.
    pub keys: usize,
    /// Generated tokens, thoughts included: the observer of linear-attention layers keeps their queries until the answer is known.
    pub generated: usize,
    /// Choices of keys are measured ([`crate::attention::Selected`]): the observer keeps the keys of windowed layers.
    pub selected: bool,
    /// Norms are measured ([`crate::attention::Norms`]), of one prompt at a time: the observer keeps Gram matrices of output weights.
    pub norms: bool,
    /// Logits are attributed, or routes followed: a layer's output weights are taken in f32, one layer at a time.
    pub attributed: bool,
}

impl Default for ObservedSpans {
    /// Two rows (question and evidence), twice the sessions of the longest published histories, an answer of usual length.
    fn default() -> Self {
        ObservedSpans {
            rows: 2,
            keys: 512,
            generated: USUAL_ANSWER,
            selected: false,
            norms: false,
            attributed: false,
        }
    }
}

/// Continuations of one prefix, decoded as a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Branches {
    /// Maximum number of branches.
    pub count: usize,
    /// Own tokens of each branch (see [`crate::model::branch_rows`]).
    pub tokens: usize,
}

/// Default answer length in tokens: STALE's, the default benchmark.
pub const USUAL_ANSWER: usize = 1024;

/// Planned tokens of a question and what follows it. A longer one is answered alone, in the main cache.
const OWN_TOKENS: usize = 512;

impl Branches {
    /// Default: three probes per case with answers of up to [`USUAL_ANSWER`] tokens.
    pub const USUAL: Branches = Branches::for_answers(3, USUAL_ANSWER);

    /// Branches for `count` probes with answers of up to `max_new_tokens`; a single probe needs none.
    pub const fn for_answers(count: usize, max_new_tokens: usize) -> Self {
        match count {
            0 | 1 => Branches { count: 0, tokens: 0 },
            _ => Branches { count, tokens: (SPLIT_K + OWN_TOKENS).saturating_add(max_new_tokens) },
        }
    }
}
