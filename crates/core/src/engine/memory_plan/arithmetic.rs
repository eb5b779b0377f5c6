//! Bytes of a layer's weights, activations and observer state.

use candle_core::DType;

use super::{DeviceName, MemoryRequest};
use crate::attention::{AttentionKernel, SPLIT_K};
use crate::model::{
    Activation, AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, IndexerSpec, LayerSpec,
    Mamba2Spec, MixerSpec, MlpSpec, OutputGate, Routing, ShortConvSpec,
};

/// Queries kept until their span ends, in linear-attention layers.
pub const WAITING: u64 = 4096;
/// Rows and keys per block in the observer of a linear-attention layer.
const ROWS_TOGETHER: u64 = 512;
const KEYS_TOGETHER: u64 = 1024;
/// Per-tensor overhead in bytes: shape, storage header, allocator. Measured, rounded up; also the minimum CUDA allocation.
pub const TENSOR: u64 = 512;
/// Scores and rows per block of the matrix-product kernel.
const SCORES: u64 = 64 << 20;
const BLOCK_ROWS: u64 = 512;
/// Keys per block of its segment sums.
const BLOCK_KEYS: u64 = 1 << 14;
/// Keys per partial sum of our kernels, for generated rows and for selected prompt rows.
const PIECE_DECODED: u64 = 32;
const PIECE: u64 = 1024;
/// Rows, keys and scores per block of the observer of norms.
const NORM_ROWS: u64 = 64;
const NORM_KEYS: u64 = 4096;
const NORM_SCORES: u64 = 16 << 20;
/// Products of an indexer's block of rows.
const INDEX_PRODUCTS: u64 = 16 << 20;
/// Row padding and keys per thread block of the half-precision kernels.
const PASSING: u64 = 64;
const KEYS_OF_BLOCK: u64 = 128;
/// Tokens per block of the gated delta rule.
const RULE_BLOCK: u64 = 64;

pub fn n(x: usize) -> u64 {
    x as u64
}

/// Bytes of a layer's weights at `size` bytes each; routers, sinks, convolutions, decays and norms are always f32.
pub fn layer_weights(spec: &DecoderSpec, layer: &LayerSpec, size: u64) -> u64 {
    let hidden = n(spec.hidden);
    let mut f32s = match &layer.mixer {
        MixerSpec::Attention(a) if a.sinks => n(a.heads),
        MixerSpec::Attention(_) | MixerSpec::None => 0,
        MixerSpec::Mamba2(Mamba2Spec { heads: d, conv_bias, .. }) => {
            let conv = n(d.channels()) * (n(d.conv) + u64::from(*conv_bias));
            conv + 4 * n(d.value_heads) + n(d.values()) + n(d.values() / d.key_heads.max(1))
        }
        MixerSpec::DeltaNet(d) => n(d.channels()) * n(d.conv) + 2 * n(d.value_heads) + n(d.value_dim),
        MixerSpec::ShortConv(c) => n(c.channels) * (n(c.taps) + u64::from(c.bias)),
    };
    if let FeedForwardSpec::Experts(e) = &layer.feed_forward {
        let correction = matches!(e.routing, Routing::Sigmoid { .. });
        f32s += n(e.experts) * (hidden + u64::from(correction) + u64::from(e.router_bias));
        f32s += if e.shared_gate { hidden } else { 0 };
        f32s += if e.own_norms { n(e.experts) } else { 0 };
    }
    f32s += hidden * n(layer.norms());
    // Sizes that overflow are refused with the config.
    let parameters = layer.parameters(spec.hidden) + spec.beside_layer();
    let parameters = u64::try_from(parameters).unwrap_or(u64::MAX >> 16);
    parameters * size + f32s * (4 - size.min(4))
}

/// True for the CPU's streaming attention kernel, which needs almost no scratch.
fn streams(request: &MemoryRequest, device: DeviceName) -> bool {
    device == DeviceName::Cpu && request.formats().activations == DType::F32
}

/// True if the device has fused kernels ([`crate::fused`]).
fn fuses(device: DeviceName) -> bool {
    matches!(device, DeviceName::Cuda(_))
}

/// Peak activation bytes of a layer for a chunk of `l` tokens.
pub fn layer_activations(
    spec: &DecoderSpec,
    layer: &LayerSpec,
    request: &MemoryRequest,
    l: u64,
    device: DeviceName,
) -> u64 {
    let size = request.formats().activations.size_in_bytes() as u64;
    let hidden = n(spec.hidden);
    let mixer = match &layer.mixer {
        MixerSpec::Attention(a) => {
            let scratch = attending(a, request, l, device) + choosing(a, request, l, device);
            l * attention_width(a, request, device) + scratch
        }
        MixerSpec::DeltaNet(d) => delta_net(d, l, size, device),
        // Besides, x times its skip, and the gated and normed output, in f32.
        MixerSpec::Mamba2(m) => delta_net(&m.heads, l, size, device) + l * n(m.heads.values()) * 4 * 4,
        MixerSpec::None => 0,
        MixerSpec::ShortConv(c) => l * short_conv(c, size),
    };
    let feed_forward = match &layer.feed_forward {
        FeedForwardSpec::None => 0,
        FeedForwardSpec::Dense(mlp) => l * mlp_width(mlp, size, device),
        FeedForwardSpec::Experts(e) => {
            // Worst case: one expert gets every token. Picks' inputs, outputs before and after f32 weighting, the sum, router logits.
            let shared = e.shared.map_or(0, |mlp| mlp_width(&mlp, size, device));
            let picks = n(e.per_token) * hidden * (2 * size).max(8);
            let routed = mlp_width(&e.expert, size, device) + picks;
            l * (routed.max(shared) + hidden * size + hidden * 4 + 2 * n(e.experts) * 4)
        }
    };
    // Residual stream, normed input and a sum; half-precision norms may go through f32.
    let stream = 3 * hidden * size + if size < 4 && !fuses(device) { hidden * 4 } else { 0 };
    mixer.max(feed_forward) + l * stream
}

/// A layer's attention kernel on CUDA; matrix products elsewhere.
fn kernel(a: &AttentionSpec, request: &MemoryRequest, device: DeviceName) -> AttentionKernel {
    if fuses(device) { request.kernel.of_layer(&a.shape(request.dtype)) } else { AttentionKernel::Products }
}

/// Bytes per token: q, k and v before and after rotation, the gathered output (f32 with matrix products) and the final output.
fn attention_width(a: &AttentionSpec, request: &MemoryRequest, device: DeviceName) -> u64 {
    let size = request.formats().activations.size_in_bytes() as u64;
    let (q, kv) = (n(a.heads) * n(a.head_dim), n(a.kv_heads) * n(a.head_dim));
    let gate = match a.gate {
        OutputGate::None => 0,
        OutputGate::Elementwise => 3 * q,
        OutputGate::PerHead => q + 2 * n(a.heads),
    };
    // Queries of their own width, what they are made of, and values.
    let latent = a.latent.map_or(0, |latent| {
        n(a.heads) * n(a.score_width() + latent.value) + n(latent.query_rank.unwrap_or(0))
    });
    let out = if kernel(a, request, device) == AttentionKernel::Products { 4 } else { size };
    (2 * q + gate + latent + 4 * kv) * size + 2 * q * out
}

/// Scratch of attention besides inputs and output, for a prefill chunk of `l` tokens and for decode.
fn attending(a: &AttentionSpec, request: &MemoryRequest, l: u64, device: DeviceName) -> u64 {
    if streams(request, device) {
        return 0;
    }
    let branches = n(request.branches.count);
    match kernel(a, request, device) {
        AttentionKernel::Fused | AttentionKernel::Hopper => split_keys(a, request, branches.max(1)),
        // Branches use another kernel; a single sequence needs no scratch.
        AttentionKernel::Flash if branches == 0 => 0,
        AttentionKernel::Flash => match request.kernel.of_branches(&a.shape(request.dtype)) {
            AttentionKernel::Fused => split_keys(a, request, branches),
            _ => score_block(a, request, branches, device),
        },
        _ => score_block(a, request, BLOCK_ROWS.min(l), device),
    }
}

/// What an indexer needs for `l` rows: queries, its keys joined and in f32, products of a block of rows twice, and on the host the ranges
/// that the rows do not choose.
fn choosing(a: &AttentionSpec, request: &MemoryRequest, l: u64, device: DeviceName) -> u64 {
    let Some(IndexerSpec { heads, width, keys, .. }) = a.indexer() else { return 0 };
    let (heads, width, context) = (n(heads), n(width), n(request.context));
    let formats = request.formats();
    let sizes = [formats.activations, formats.cache].map(|dtype| dtype.size_in_bytes() as u64);
    let rows =
        if device == DeviceName::Cpu { 1 } else { l.min((INDEX_PRODUCTS / (heads * context).max(1)).max(1)) };
    let ranges = if device == DeviceName::Cpu { l * n(keys).min(context) * 16 } else { 0 };
    l * heads * width * (2 * sizes[0] + 8)
        + context * width * (sizes[1] + 4)
        + 2 * rows * heads * context * 4
        + ranges
}

/// Split-K scratch of `rows` queries: sum, max and weight per part of [`SPLIT_K`] keys and head, in f32; max and weight per piece.
fn split_keys(a: &AttentionSpec, request: &MemoryRequest, rows: u64) -> u64 {
    let keys = seen(a, request, 1);
    // A window may start and end inside a part; each branch has its own parts.
    let parts = keys / n(SPLIT_K) + 2;
    let pieces = keys / PIECE_DECODED + 2 + n(request.observed.keys);
    rows * n(a.heads) * (parts * (n(a.head_dim) + 2) + pieces * 2) * 4
}

/// Bytes per token: gate, up, activation and product.
fn mlp_width(mlp: &MlpSpec, size: u64, device: DeviceName) -> u64 {
    let copies = match mlp.activation {
        Activation::SquaredRelu => 3,
        _ if fuses(device) => 3,
        Activation::Silu | Activation::GeluTanh => 4,
        Activation::Clamped { .. } => 6,
    };
    copies * n(mlp.intermediate) * size
}

/// Convolution inputs and sums in f32, the rule's inputs and outputs, and block matrices per panel (in cache on the CPU).
fn delta_net(d: &DeltaNetSpec, l: u64, size: u64, device: DeviceName) -> u64 {
    let (channels, values, heads) = (n(d.channels()), n(d.values()), n(d.value_heads));
    let token = (2 * channels + 2 * values) * size + (4 * channels + 3 * values) * 4;
    let panel = if device == DeviceName::Cpu { 0 } else { l.min(KEYS_TOGETHER) };
    // At most 6 triangles, decays and inverses; reads and writes of the state.
    let blocks = panel * heads * (6 * RULE_BLOCK + 4 * n(d.key_dim) + 3 * n(d.value_dim)) * 4;
    l * token + blocks
}

/// Bytes per token: projections, products with either gate and the convolution's output; its inputs and two sums in f32.
fn short_conv(c: &ShortConvSpec, size: u64) -> u64 {
    n(c.channels) * (7 * size + 3 * 4)
}

/// Bytes per score of the matrix-product kernel: f32 score plus weight; unfused, score, exponential and an intermediate in f32.
fn score_bytes(size: u64, device: DeviceName) -> u64 {
    if fuses(device) { 4 + size } else { 3 * 4 }
}

/// Keys visible to a block of `rows` rows.
fn seen(a: &AttentionSpec, request: &MemoryRequest, rows: u64) -> u64 {
    a.window.map_or(n(request.context), |window| (n(window) + rows).min(n(request.context)))
}

/// Bytes of a score block of `rows` rows. Keys and values are not copied.
fn score_block(a: &AttentionSpec, request: &MemoryRequest, rows: u64, device: DeviceName) -> u64 {
    let heads = n(a.heads);
    let keys = (SCORES / (heads * rows.max(1))).clamp(1, seen(a, request, rows).max(1));
    heads * rows * keys * score_bytes(request.dtype.size_in_bytes() as u64, device)
}

/// Observer sums of a layer, held until the end.
pub fn observer_sums(layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let sums = n(request.observed.rows) * n(request.observed.keys) * 8;
    match &layer.mixer {
        MixerSpec::Attention(a) => n(a.heads) * sums,
        MixerSpec::DeltaNet(d) | MixerSpec::Mamba2(Mamba2Spec { heads: d, .. }) => {
            2 * n(d.value_heads) * sums
        }
        MixerSpec::ShortConv(_) | MixerSpec::None => 0,
    }
}

/// Bytes that the observer of choices keeps of a layer that chooses: a windowed layer's keys, each branch's own, and sums by row and span.
pub fn observer_selected(layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let chooses = |a: &&AttentionSpec| request.observed.selected && (a.window.is_some() || a.is_indexed());
    let Some(a) = layer.attention().filter(chooses) else { return 0 };
    let (observed, branches) = (request.observed, request.branches);
    let context = n(request.context);
    let key = n(a.kv_heads) * n(a.head_dim) * request.formats().cache.size_in_bytes() as u64;
    let kept =
        if a.window.is_some() { context + n(branches.count) * n(branches.tokens).min(context) } else { 0 };
    let generated = n(observed.generated).min(context) * n(branches.count.max(1));
    kept * key + generated * TENSOR + (n(observed.rows) + generated) * n(observed.keys) * 24
}

/// Gram matrices of a layer's output weights, one per head in f32, which the observer of norms keeps.
pub fn observer_grams(layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let measured = layer.attention().filter(|_| request.observed.norms);
    measured.map_or(0, |a| n(a.heads) * n(a.head_dim) * n(a.head_dim) * 4)
}

/// A layer's output weights by head in f32, which norms, attributions and routes take. Those of latent attention are a product with the
/// values' weights, padded to the key's width.
fn outputs(spec: &DecoderSpec, layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let taken = request.observed.norms || request.observed.attributed;
    layer.attention().filter(|_| taken).map_or(0, |a| {
        let widths = a.latent.map_or(n(a.head_dim), |latent| 2 * n(a.head_dim) + n(latent.value));
        n(a.heads) * widths * n(spec.hidden) * 4
    })
}

/// Scratch of norms: each head's norm of each value, and but for the streaming kernel products of a block of values and scores of a block of
/// rows.
fn norms(layer: &LayerSpec, request: &MemoryRequest, device: DeviceName) -> u64 {
    layer.attention().filter(|_| request.observed.norms).map_or(0, |a| {
        let (heads, keys) = (n(a.heads), seen(a, request, n(request.chunk)));
        let blocks = match streams(request, device) {
            true => 0,
            false => {
                2 * heads * NORM_KEYS.min(keys) * n(a.head_dim) * 4
                    + NORM_SCORES.min(heads * NORM_ROWS * keys) * score_bytes(4, device)
            }
        };
        heads * keys * 4 + blocks
    })
}

/// Observer state of a linear-attention layer while rows are pending: keys of the context in the model's dtype, decays and strengths in
/// f32, and waiting queries. Each branch keeps the same for its own tokens. Each generated token has its own tensors.
pub fn observer_history(layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let Some(d) = layer.linear() else { return 0 };
    let size = request.formats().activations.size_in_bytes() as u64;
    let (context, keys) = (n(request.context), n(d.keys()));
    let token = keys * size + n(d.value_heads) * 8;
    let generated = n(request.observed.generated).min(context) * (keys * size + 4 * TENSOR);
    let branches = n(request.branches.count);
    let own = branches * n(request.branches.tokens).min(context) * token + branches.max(1) * generated;
    context * token + WAITING.min(context) * keys * size + own
}

/// Peak observer scratch for one layer's chunk, beyond attention itself.
pub fn observer_moment(
    spec: &DecoderSpec,
    layer: &LayerSpec,
    request: &MemoryRequest,
    device: DeviceName,
) -> u64 {
    let spans = n(request.observed.keys);
    let dense = layer.attention().filter(|_| request.observed.selected).map_or(0, |a| {
        // One row's scores, weights and their copies, and the layer's keys joined and in f32.
        let key = n(a.kv_heads) * n(a.head_dim);
        n(request.context) * (n(a.heads) * 6 * 4 + key * (4 + request.formats().cache.size_in_bytes() as u64))
    });
    let sums = match &layer.mixer {
        // Per-thread scratch stays in cache.
        MixerSpec::Attention(_) if streams(request, device) => 0,
        MixerSpec::ShortConv(_) | MixerSpec::None => 0,
        MixerSpec::Attention(a) => {
            let rows = BLOCK_ROWS.min(n(request.context)).min(n(request.chunk));
            let fused =
                fuses(device) && request.kernel.of_sums(&a.shape(request.dtype)) == AttentionKernel::Fused;
            let sums = if fused && request.dtype != DType::F32 {
                // Maximum and sum per row and piece of keys and overall, and each key's sum over rows.
                let rows = n(request.context).min(n(request.chunk)).next_multiple_of(PASSING);
                let keys = seen(a, request, rows);
                n(a.heads) * (rows * (keys / PIECE + 3) * 2 + keys + 2 * KEYS_OF_BLOCK + spans + 1) * 4
            } else if fused {
                // Maximum and sum per row and piece; span borders also split pieces.
                let pieces = seen(a, request, rows) / PIECE + 2 + spans;
                n(a.heads) * (rows * (pieces + 1) * 2 + spans + 1) * 4
            } else {
                // A block of keys in f32, its scores, and a key-to-span table from two comparisons.
                let keys = BLOCK_KEYS.min(seen(a, request, rows));
                let scores = SCORES.min(n(a.heads) * rows * keys) * score_bytes(4, device);
                scores + keys * (n(a.kv_heads) * n(a.head_dim) * 4 + spans * 8)
            };
            sums.saturating_sub(attending(a, request, rows, device))
        }
        MixerSpec::DeltaNet(d) | MixerSpec::Mamba2(Mamba2Spec { heads: d, .. }) => {
            let (heads, keys) = (n(d.value_heads), n(d.keys()));
            let panel = KEYS_TOGETHER.min(n(request.context));
            match device {
                // Weights of each row over earlier keys, and row sums by span.
                DeviceName::Cpu => {
                    heads * ROWS_TOGETHER * (n(d.key_dim) * 4 + (spans + 1) * 8) + panel * 3 * keys * 4
                }
                // Rows, weights and block matrices; row sums by span, and their concatenation.
                _ => {
                    let rows = heads * ROWS_TOGETHER * (4 * n(d.key_dim) + 4 * RULE_BLOCK + 3 * spans) * 4;
                    rows + panel * (heads * 6 * RULE_BLOCK + 3 * keys) * 4
                }
            }
        }
    };
    sums.max(dense).max(norms(layer, request, device)).max(outputs(spec, layer, request))
}
