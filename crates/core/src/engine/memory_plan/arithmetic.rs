//! Bytes of a layer's weights, of its widest moment, and of what observes it.

use candle_core::DType;

use super::{DeviceName, MemoryRequest};
use crate::attention::{AttentionKernel, SPLIT_K};
use crate::model::{
    Activation, AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, LayerSpec, MixerSpec, MlpSpec,
    Routing,
};

/// Rows of those spans whose queries wait for their span to end, in linear-attention layers.
pub const WAITING: u64 = 4096;
/// Rows that the observer of a linear-attention layer takes back through the keys together, and keys that it prepares together.
const ROWS_TOGETHER: u64 = 512;
const KEYS_TOGETHER: u64 = 1024;
/// Bytes around the values of a tensor: its shape, its place, what the allocator adds. Measured, rounded up; of a card, the least that
/// its memory comes in.
pub const TENSOR: u64 = 512;
/// Scores and rows of a block of the kernel that is made of matrix products.
const SCORES: u64 = 64 << 20;
const BLOCK_ROWS: u64 = 512;
/// Keys of a block of its sums over segments.
const BLOCK_KEYS: u64 = 1 << 14;
/// Keys of a piece of our own kernels: the fewest that a generated row's weights are summed by, and those of chosen rows.
const PIECE_DECODED: u64 = 32;
const PIECE: u64 = 1024;
/// Rows that the kernels of half precision pad to, and keys of their thread blocks.
const PASSING: u64 = 64;
const KEYS_OF_BLOCK: u64 = 128;
/// Tokens of a block of the gated delta rule.
const RULE_BLOCK: u64 = 64;

pub fn n(x: usize) -> u64 {
    x as u64
}

/// Weights of a layer in a dtype of `size` bytes: what is always f32 (routers, sinks, convolutions, decays, and the norms
/// whose factor is 1 + weight) is counted so.
pub fn layer_weights(spec: &DecoderSpec, layer: &LayerSpec, size: u64) -> u64 {
    let hidden = n(spec.hidden);
    let mut f32s = match &layer.mixer {
        MixerSpec::Attention(a) if a.sinks => n(a.heads),
        MixerSpec::Attention(_) => 0,
        MixerSpec::DeltaNet(d) => n(d.channels()) * n(d.conv) + 2 * n(d.value_heads) + n(d.value_dim),
    };
    if let FeedForwardSpec::Experts(e) = &layer.feed_forward {
        let correction = matches!(e.routing, Routing::Sigmoid { .. });
        f32s += n(e.experts) * (hidden + u64::from(correction) + u64::from(e.router_bias));
    }
    if spec.norm.plus_one {
        f32s += hidden * if layer.sandwich { 4 } else { 2 };
    }
    // Sizes that would not fit are refused with the config.
    let parameters = u64::try_from(layer.parameters(spec.hidden)).unwrap_or(u64::MAX >> 16);
    parameters * size + f32s * (4 - size.min(4))
}

/// True if attention is the CPU's own kernel, which holds next to nothing but its outputs.
fn streams(request: &MemoryRequest, device: DeviceName) -> bool {
    device == DeviceName::Cpu && request.formats().activations == DType::F32
}

/// True if a device has kernels of our own for what takes others several operations ([`crate::fused`]).
fn fuses(device: DeviceName) -> bool {
    matches!(device, DeviceName::Cuda(_))
}

/// Bytes of a layer's widest moment, for a chunk of `l` tokens.
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
        MixerSpec::Attention(a) => l * attention_width(a, request, device) + attending(a, request, l, device),
        MixerSpec::DeltaNet(d) => delta_net(d, l, size, device),
    };
    let feed_forward = match &layer.feed_forward {
        FeedForwardSpec::Dense(mlp) => l * mlp_width(mlp, size, device),
        FeedForwardSpec::Experts(e) => {
            // At worst every token goes to one expert, and its picks' inputs and outputs lie beside it, then their outputs
            // before and after they are weighed in f32; the sum and the router's logits, too.
            let shared = e.shared.map_or(0, |mlp| mlp_width(&mlp, size, device));
            let picks = n(e.per_token) * hidden * (2 * size).max(8);
            let routed = mlp_width(&e.expert, size, device) + picks;
            l * (routed.max(shared) + hidden * size + hidden * 4 + 2 * n(e.experts) * 4)
        }
    };
    // The residual stream, what was normed of it, and a sum; norms of half precision may go through f32.
    let stream = 3 * hidden * size + if size < 4 && !fuses(device) { hidden * 4 } else { 0 };
    mixer.max(feed_forward) + l * stream
}

/// The attention kernel of a layer on a card; products on other devices.
fn kernel(a: &AttentionSpec, request: &MemoryRequest, device: DeviceName) -> AttentionKernel {
    if fuses(device) { request.kernel.of_layer(&a.shape(request.dtype)) } else { AttentionKernel::Products }
}

/// Bytes a token: queries, keys and values before and after their rotation, the output as it is gathered, by products in f32, and as
/// it is handed on.
fn attention_width(a: &AttentionSpec, request: &MemoryRequest, device: DeviceName) -> u64 {
    let size = request.formats().activations.size_in_bytes() as u64;
    let (q, kv) = (n(a.heads) * n(a.head_dim), n(a.kv_heads) * n(a.head_dim));
    let gate = if a.gated { 3 * q } else { 0 };
    let out = if kernel(a, request, device) == AttentionKernel::Products { 4 } else { size };
    (2 * q + gate + 4 * kv) * size + 2 * q * out
}

/// Bytes that attention takes beside its inputs and its output, for a chunk of `l` tokens and for the tokens generated after it.
fn attending(a: &AttentionSpec, request: &MemoryRequest, l: u64, device: DeviceName) -> u64 {
    if streams(request, device) {
        return 0;
    }
    let branches = n(request.branches.count);
    match kernel(a, request, device) {
        AttentionKernel::Fused => split_keys(a, request, branches.max(1)),
        // Branches are by another kernel; one sequence takes no more than its output.
        AttentionKernel::Flash if branches == 0 => 0,
        AttentionKernel::Flash => match request.kernel.of_branches(&a.shape(request.dtype)) {
            AttentionKernel::Fused => split_keys(a, request, branches),
            _ => score_block(a, request, branches, device),
        },
        _ => score_block(a, request, BLOCK_ROWS.min(l), device),
    }
}

/// Bytes of the parts of one query each of `rows` sequences: of every part of [`SPLIT_K`] keys a head's sum, its maximum and its
/// weight, in f32; and, where weights are recorded, maximum and weight of every piece.
fn split_keys(a: &AttentionSpec, request: &MemoryRequest, rows: u64) -> u64 {
    let keys = seen(a, request, 1);
    // A window may begin and end within a part, and each branch has parts of its own.
    let parts = keys / n(SPLIT_K) + 2;
    let pieces = keys / PIECE_DECODED + 2 + n(request.observed.keys);
    rows * n(a.heads) * (parts * (n(a.head_dim) + 2) + pieces * 2) * 4
}

/// Bytes a token: gate, up, the activation and the product.
fn mlp_width(mlp: &MlpSpec, size: u64, device: DeviceName) -> u64 {
    let copies = match mlp.activation {
        _ if fuses(device) => 3,
        Activation::Silu | Activation::GeluTanh => 4,
        Activation::Clamped { .. } => 6,
    };
    copies * n(mlp.intermediate) * size
}

/// The convolution's inputs and sums in f32, the rule's inputs and outputs, and for a panel of tokens the blocks' matrices,
/// which on the CPU stay within its cache.
fn delta_net(d: &DeltaNetSpec, l: u64, size: u64, device: DeviceName) -> u64 {
    let (channels, values, heads) = (n(d.channels()), n(d.values()), n(d.value_heads));
    let token = (2 * channels + 2 * values) * size + (4 * channels + 3 * values) * 4;
    let panel = if device == DeviceName::Cpu { 0 } else { l.min(KEYS_TOGETHER) };
    // Triangles, decays and their inverses, 6 of them at the widest; what reads the state and what writes it.
    let blocks = panel * heads * (6 * RULE_BLOCK + 4 * n(d.key_dim) + 3 * n(d.value_dim)) * 4;
    l * token + blocks
}

/// Bytes of a score in the kernel of matrix products, whose weights are of `size` bytes: the score in f32 and its weight; without
/// kernels of our own the score, its exponential and one intermediate, all in f32.
fn score_bytes(size: u64, device: DeviceName) -> u64 {
    if fuses(device) { 4 + size } else { 3 * 4 }
}

/// Keys that `rows` rows see together.
fn seen(a: &AttentionSpec, request: &MemoryRequest, rows: u64) -> u64 {
    a.window.map_or(n(request.context), |window| (n(window) + rows).min(n(request.context)))
}

/// Bytes of a block of scores of `rows` rows. Keys and values are read where they lie.
fn score_block(a: &AttentionSpec, request: &MemoryRequest, rows: u64, device: DeviceName) -> u64 {
    let heads = n(a.heads);
    let keys = (SCORES / (heads * rows.max(1))).clamp(1, seen(a, request, rows).max(1));
    heads * rows * keys * score_bytes(request.dtype.size_in_bytes() as u64, device)
}

/// Sums that the observer holds for a layer until the end.
pub fn observer_sums(layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let sums = n(request.observed.rows) * n(request.observed.keys) * 8;
    match &layer.mixer {
        MixerSpec::Attention(a) => n(a.heads) * sums,
        MixerSpec::DeltaNet(d) => 2 * n(d.value_heads) * sums,
    }
}

/// Bytes that the observer keeps of a linear-attention layer while rows are still to come: the keys of the whole context in the
/// model's dtype, their decays and strengths in f32, and the queries that wait. Each branch keeps the same of its own tokens. Generated
/// tokens come one by one, so that keys, decays, strengths and query of each are tensors of their own.
pub fn observer_history(layer: &LayerSpec, request: &MemoryRequest) -> u64 {
    let Some(d) = layer.delta_net() else { return 0 };
    let size = request.formats().activations.size_in_bytes() as u64;
    let (context, keys) = (n(request.context), n(d.keys()));
    let token = keys * size + n(d.value_heads) * 8;
    let generated = n(request.observed.generated).min(context) * (keys * size + 4 * TENSOR);
    let branches = n(request.branches.count);
    let own = branches * n(request.branches.tokens).min(context) * token + branches.max(1) * generated;
    context * token + WAITING.min(context) * keys * size + own
}

/// Bytes that the observer holds while it measures one layer's chunk, beyond those of attention itself after it.
pub fn observer_moment(layer: &LayerSpec, request: &MemoryRequest, device: DeviceName) -> u64 {
    let spans = n(request.observed.keys);
    match &layer.mixer {
        // Each thread's share is within its cache.
        MixerSpec::Attention(_) if streams(request, device) => 0,
        MixerSpec::Attention(a) => {
            let rows = BLOCK_ROWS.min(n(request.context)).min(n(request.chunk));
            let fused =
                fuses(device) && request.kernel.of_sums(&a.shape(request.dtype)) == AttentionKernel::Fused;
            let sums = if fused && request.dtype != DType::F32 {
                // Maximum and sum of each row over each piece of keys and over all of them, and each key's sum over the rows.
                let rows = n(request.context).min(n(request.chunk)).next_multiple_of(PASSING);
                let keys = seen(a, request, rows);
                n(a.heads) * (rows * (keys / PIECE + 3) * 2 + keys + 2 * KEYS_OF_BLOCK + spans + 1) * 4
            } else if fused {
                // Maximum and sum of each row over each piece of keys; borders of spans cut pieces too.
                let pieces = seen(a, request, rows) / PIECE + 2 + spans;
                n(a.heads) * (rows * (pieces + 1) * 2 + spans + 1) * 4
            } else {
                // A block of keys in f32, its scores, and a table of who belongs to which span, from two comparisons.
                let keys = BLOCK_KEYS.min(seen(a, request, rows));
                let scores = SCORES.min(n(a.heads) * rows * keys) * score_bytes(4, device);
                scores + keys * (n(a.kv_heads) * n(a.head_dim) * 4 + spans * 8)
            };
            sums.saturating_sub(attending(a, request, rows, device))
        }
        MixerSpec::DeltaNet(d) => {
            let (heads, keys) = (n(d.value_heads), n(d.keys()));
            let panel = KEYS_TOGETHER.min(n(request.context));
            match device {
                // Weights of every row over earlier keys, and each row's sums by span.
                DeviceName::Cpu => {
                    heads * ROWS_TOGETHER * (n(d.key_dim) * 4 + (spans + 1) * 8) + panel * 3 * keys * 4
                }
                // The rows again, their weights, and the blocks' matrices; each row's sums by span, and those beside each other.
                _ => {
                    let rows = heads * ROWS_TOGETHER * (4 * n(d.key_dim) + 4 * RULE_BLOCK + 3 * spans) * 4;
                    rows + panel * (heads * 6 * RULE_BLOCK + 3 * keys) * 4
                }
            }
        }
    }
}
