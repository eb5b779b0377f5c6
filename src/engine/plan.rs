//! What a model needs in memory before any of it is loaded.
//!
//! From the decoder's description alone: weights, cache, activations of one chunk, observer scratch. The chat model asks
//! here before loading and refuses what cannot fit, with the cheapest changes that would.

use candle_core::{DType, Device};

use super::DEFAULT_CHUNK;
use crate::model::{DecoderSpec, FeedForwardSpec, LayerSpec, MixerSpec, cache_bytes};

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Tokens of the cache.
    pub context: usize,
    /// Tokens that a prefill reads at a time.
    pub chunk: usize,
    /// Dtype of activations, cache and dense weights.
    pub dtype: DType,
    /// Where.
    pub device: Device,
    /// Whether the file's weights are quantised: on the CPU they are then held twice, dense and quantised.
    pub quantised: bool,
}

/// Bytes needed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Weights, in every form that is held.
    pub weights: u64,
    /// Keys and values of the whole context.
    pub cache: u64,
    /// Activations of one chunk.
    pub activations: u64,
    /// Sums of the attention observer, for up to 512 spans and two row spans.
    pub observer: u64,
}

/// Key spans that the observer's scratch is reckoned for: twice the longest published histories.
const SPANS: u64 = 512;

fn n(x: usize) -> u64 {
    x as u64
}

/// Bytes a token of a mixer's widest moment: queries, keys, values and outputs, with the unnormalised outputs in f32; or what a
/// delta net projects, with the rule's inputs and outputs in f32.
fn mixer_width(mixer: &MixerSpec, size: u64) -> u64 {
    match mixer {
        MixerSpec::Attention(a) => {
            let (q, kv) = (n(a.heads) * n(a.head_dim), n(a.kv_heads) * n(a.head_dim));
            let gate = if a.gated { q } else { 0 };
            (2 * q + gate + 4 * kv) * size + 2 * q * 4
        }
        MixerSpec::DeltaNet(d) => {
            let repeated = 2 * n(d.value_heads) * n(d.key_dim);
            (n(d.channels()) + n(d.values())) * size
                + (2 * n(d.channels()) + 3 * repeated + 3 * n(d.values())) * 4
        }
    }
}

/// Bytes a token of a feed-forward part's widest moment: gate, up and their product.
fn feed_forward_width(feed_forward: &FeedForwardSpec, hidden: u64, size: u64) -> u64 {
    match feed_forward {
        FeedForwardSpec::Dense(mlp) => 3 * n(mlp.intermediate) * size,
        FeedForwardSpec::Experts(e) => {
            // At worst every token goes to one expert; the sum so far and the router's logits lie beside it.
            let shared = e.shared.map_or(0, |mlp| 3 * n(mlp.intermediate) * size);
            (3 * n(e.expert.intermediate) * size).max(shared) + 3 * hidden * size + 2 * n(e.experts) * 4
        }
    }
}

impl Plan {
    /// The plan for a decoder and a wish.
    pub fn new(spec: &DecoderSpec, wish: &Wish) -> Self {
        let size = wish.dtype.size_in_bytes() as u64;
        let parameters = spec.parameters() as u64;
        // Repacked blocks: a byte a weight, and a scale and a minimum in f32 for every 32 of them.
        let quantised = if wish.quantised && wish.device.is_cpu() { parameters + parameters / 4 } else { 0 };
        let chunk = wish.chunk.min(wish.context.max(1));
        let cache: u64 = spec
            .layers
            .iter()
            .map(|l| cache_bytes(&l.mixer, wish.context, chunk, wish.dtype).map_or(u64::MAX >> 16, n))
            .sum();
        // The widest moment of a layer, in bytes a token.
        let widest = spec
            .layers
            .iter()
            .map(|l| {
                mixer_width(&l.mixer, size).max(feed_forward_width(&l.feed_forward, n(spec.hidden), size))
            })
            .max()
            .unwrap_or(0)
            + 3 * n(spec.hidden) * size;
        let chunk = n(chunk);
        let observer =
            spec.layers.iter().filter_map(LayerSpec::attention).map(|a| n(a.heads) * 2 * SPANS * 8).sum();
        Plan {
            weights: parameters * size + quantised,
            cache,
            activations: chunk * widest + n(spec.vocab) * 4,
            observer,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.activations + self.observer
    }
}

/// Memory that this process may still take on a device, where that can be told: on Linux for the CPU.
pub fn available_bytes(device: &Device) -> Option<u64> {
    if !device.is_cpu() {
        return None;
    }
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // A container's limit, where there is one (cgroup 2).
    let limit = number("/sys/fs/cgroup/memory.max")
        .map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(limit.map_or(free, |limit| limit.min(free)))
}

/// Why a wish cannot be granted, with what would help.
#[derive(Debug, thiserror::Error)]
#[error(
    "{model} at a context of {context} tokens in {dtype} needs {needed} (weights {weights}, cache {cache}, the rest {rest}), and {available} are free. What would fit: {remedies}"
)]
pub struct DoesNotFit {
    model: String,
    context: usize,
    dtype: String,
    needed: String,
    weights: String,
    cache: String,
    rest: String,
    available: String,
    remedies: String,
}

/// Refuses a wish that does not fit into `available` bytes.
pub fn check(model: &str, spec: &DecoderSpec, wish: &Wish, available: u64) -> Result<Plan, Box<DoesNotFit>> {
    let plan = Plan::new(spec, wish);
    if plan.total() <= available {
        return Ok(plan);
    }
    Err(Box::new(DoesNotFit {
        model: model.to_owned(),
        context: wish.context,
        dtype: format!("{:?}", wish.dtype).to_lowercase(),
        needed: gigabytes(plan.total()),
        weights: gigabytes(plan.weights),
        cache: gigabytes(plan.cache),
        rest: gigabytes(plan.activations + plan.observer),
        available: gigabytes(available),
        remedies: remedies(spec, wish, available, plan.total()),
    }))
}

/// Up to three changes, the cheapest first, each of which fits.
fn remedies(spec: &DecoderSpec, wish: &Wish, available: u64, needed: u64) -> String {
    let fits = |wish: &Wish| Plan::new(spec, wish).total() <= available;
    let with = |change: &dyn Fn(&mut Wish)| {
        let mut other = wish.clone();
        change(&mut other);
        other
    };
    let mut found = Vec::new();
    if wish.chunk > 128 && fits(&with(&|w| w.chunk = 128)) {
        found.push("--chunk 128".to_owned());
    }
    if wish.dtype == DType::F32 && fits(&with(&|w| w.dtype = DType::BF16)) {
        found.push("--dtype bf16".to_owned());
    }
    // The plan grows with the context: find the longest that fits.
    let (mut low, mut high) = (0, wish.context);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(&with(&|w| w.context = middle)) { low = middle } else { high = middle }
    }
    if low >= DEFAULT_CHUNK {
        found.push(format!("--context {low}"));
    }
    found.push(format!("a device with {} free, or a smaller model", gigabytes(needed)));
    found.truncate(3);
    found.join("; or ")
}

/// Bytes for people.
pub fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Activation, AttentionBias, AttentionSpec, MlpSpec, NormSpec, QkNorm, RopeScaling, RopeSpec,
    };

    /// SmolLM2-135M.
    fn spec() -> DecoderSpec {
        let attention = AttentionSpec {
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            scale: 0.125,
            window: None,
            softcap: None,
            sinks: false,
            gated: false,
            qk_norm: QkNorm::None,
            bias: AttentionBias::None,
            rope: RopeSpec { theta: 1e5, dims: 64, scaling: RopeScaling::None },
        };
        let mlp = MlpSpec { intermediate: 1536, bias: false, activation: Activation::Silu };
        let layer = LayerSpec {
            mixer: MixerSpec::Attention(attention),
            feed_forward: FeedForwardSpec::Dense(mlp),
            sandwich: false,
        };
        DecoderSpec {
            architecture: "llama",
            vocab: 49152,
            hidden: 576,
            norm: NormSpec { eps: 1e-5, plus_one: false },
            embedding_scale: None,
            tied: true,
            max_positions: 8192,
            layers: vec![layer; 30],
        }
    }

    fn wish(context: usize) -> Wish {
        Wish { context, chunk: 1024, dtype: DType::F32, device: Device::Cpu, quantised: true }
    }

    #[test]
    fn the_plan_counts_parameters_and_cache_as_the_published_sizes_imply() {
        assert_eq!(spec().parameters(), 134_515_008);
        let plan = Plan::new(&spec(), &wish(8192));
        assert_eq!(plan.cache, 2 * 30 * 3 * 64 * 8192 * 4);
        assert_eq!(plan.weights, 134_515_008 * 5 + 134_515_008 / 4);
    }

    #[test]
    fn a_refusal_names_only_changes_that_fit() {
        let needed = Plan::new(&spec(), &wish(100_000)).total();
        assert!(check("m", &spec(), &wish(100_000), needed).is_ok());
        let available = needed / 2;
        let Err(refusal) = check("m", &spec(), &wish(100_000), available) else { panic!("it was granted") };
        let text = refusal.to_string();
        let context = text.split("--context ").nth(1).and_then(|t| t.split(';').next());
        let Some(context) = context.and_then(|t| t.trim().parse::<usize>().ok()) else { panic!("{text}") };
        assert!(Plan::new(&spec(), &wish(context)).total() <= available, "{text}");
        assert!(Plan::new(&spec(), &wish(context + 1)).total() > available, "{text}");
    }
}
