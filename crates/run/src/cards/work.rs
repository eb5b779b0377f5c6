//! Counts operations and bytes of a decoder layer from its description: products, score traffic and the delta-net recurrence. Omits norms,
//! activations, gates, convolutions, and weight reads in prefill, which the products hide.

use std::iter::Sum;
use std::ops::Add;

use palimpsest_core::model::{
    AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, LayerSpec, Mamba2Spec, MixerSpec,
};

/// Rows per block of attention by matrix products.
const BLOCK_ROWS: usize = 512;
/// Bytes per score in half precision on CUDA: product in f32 4, maximum and sum 4, weight 4 and 2 (half), product with values 2.
const SCORE_BYTES: f64 = 16.0;
/// The same in f32, which the observer always uses: product 4, maximum and sum 4, weight 8, product 4.
const SCORE_BYTES_F32: f64 = 20.0;
/// Tokens per block of the delta rule; operations per token and head of its triangular inverse: 2 products of 32 by 32, twice 2 of 16 by
/// 16, four times 6 of 16 by 16 under masks per block.
const RULE_BLOCK: f64 = 64.0;
const INVERSE: f64 = (2.0 * 65_536.0 + 28.0 * 8_192.0) / RULE_BLOCK;
/// Bytes per number of a delta net's state and token: decay 8, read by key 4, update 8, read by query 4.
const STATE_BYTES: f64 = 24.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Matrix products over blocks of 512 rows, with scores in memory.
    Blocks,
    /// One kernel with scores on chip: the CPU's, ours on CUDA, or FlashAttention.
    Fused,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct Work {
    /// Product operations in the model's dtype.
    pub products: f64,
    /// Parts of `products`, by the kernels that compute them: linear maps of experts; attention in one kernel; recorded rows.
    #[serde(skip)]
    pub experts: f64,
    #[serde(skip)]
    pub attention: f64,
    #[serde(skip)]
    pub rows: f64,
    /// Product operations that are always f32.
    pub products_f32: f64,
    /// The delta rule's part of `products_f32`.
    #[serde(skip)]
    pub rule: f64,
    pub bytes: f64,
}

impl Work {
    pub fn operations(&self) -> f64 {
        self.products + self.products_f32
    }
}

impl Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work {
            products: self.products + other.products,
            experts: self.experts + other.experts,
            attention: self.attention + other.attention,
            rows: self.rows + other.rows,
            products_f32: self.products_f32 + other.products_f32,
            rule: self.rule + other.rule,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Work>>(works: I) -> Work {
        works.fold(Work::default(), Add::add)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recording {
    /// Rows at the end of the prompt, each attending to all of it.
    pub rows: usize,
    pub spans: usize,
}

impl Recording {
    /// Limited to a prompt of `tokens`, at least one row and span.
    #[must_use]
    pub fn within(self, tokens: usize) -> Self {
        let within = |number: usize| number.clamp(1, tokens.max(1));
        Recording { rows: within(self.rows), spans: within(self.spans) }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct LayerWork<'a> {
    layer: &'a LayerSpec,
    hidden: usize,
    size: f64,
}

impl<'a> LayerWork<'a> {
    /// `size`: bytes of the dtype.
    pub fn all(spec: &'a DecoderSpec, size: usize) -> impl Iterator<Item = Self> {
        spec.layers.iter().map(move |layer| LayerWork { layer, hidden: spec.hidden, size: size as f64 })
    }

    /// Weights used by `tokens` in one step; experts are assumed to be distinct until all are used.
    pub fn weights(&self, tokens: usize) -> f64 {
        let idle = match &self.layer.feed_forward {
            FeedForwardSpec::Dense(_) | FeedForwardSpec::None => 0,
            FeedForwardSpec::Experts(e) => {
                let busy = e.per_token.saturating_mul(tokens);
                e.experts.saturating_sub(busy) as u128 * e.expert.parameters(self.hidden)
            }
        };
        (self.layer.parameters(self.hidden) - idle) as f64
    }

    pub fn prefill(&self, tokens: usize, kernel: Kernel) -> Work {
        let linear = 2.0 * self.weights(1) * tokens as f64;
        let experts = match &self.layer.feed_forward {
            FeedForwardSpec::Dense(_) | FeedForwardSpec::None => 0.0,
            FeedForwardSpec::Experts(e) => {
                2.0 * (e.per_token * tokens) as f64 * e.expert.parameters(self.hidden) as f64
            }
        };
        match &self.layer.mixer {
            MixerSpec::Attention(a) => {
                let pairs = pairs(tokens, a.window, kernel);
                let of_pairs = 4.0 * (a.head_dim * a.heads) as f64 * pairs;
                let (attention, bytes) = match kernel {
                    // Scores, and one read of the cache per block of rows.
                    Kernel::Blocks => (
                        0.0,
                        self.score_bytes() * a.heads as f64 * pairs
                            + self.cached(a) * pairs / BLOCK_ROWS as f64,
                    ),
                    Kernel::Fused => (of_pairs, 0.0),
                };
                Work { products: linear + of_pairs, experts, attention, bytes, ..Work::default() }
            }
            MixerSpec::DeltaNet(d) => {
                let (dk, dv, c) = (d.key_dim as f64, d.value_dim as f64, RULE_BLOCK);
                let group = (d.value_heads / d.key_heads.max(1)) as f64;
                let head =
                    6.0 * dk * dv + 2.0 * c * (dk + 2.0 * dv) + 4.0 * c * dk / group + 2.0 * c * c + INVERSE;
                let rule = d.value_heads as f64 * head * tokens as f64;
                Work { products: linear, experts, products_f32: rule, rule, ..Work::default() }
            }
            // Without the inverse and the reads by keys.
            MixerSpec::Mamba2(Mamba2Spec { heads: d, .. }) => {
                let (dk, dv, c) = (d.key_dim as f64, d.value_dim as f64, RULE_BLOCK);
                let group = (d.value_heads / d.key_heads.max(1)) as f64;
                let head = 4.0 * dk * dv + 2.0 * c * dv + 2.0 * c * dk / group + c;
                let rule = d.value_heads as f64 * head * tokens as f64;
                Work { products: linear, experts, products_f32: rule, rule, ..Work::default() }
            }
            MixerSpec::ShortConv(_) | MixerSpec::None => {
                Work { products: linear, experts, ..Work::default() }
            }
        }
    }

    /// An observer's work in a prefill of `tokens`. Blocks sum weights into spans by a product with a key-span table; a fused kernel
    /// accumulates them directly. The delta rule propagates the rows back through all tokens.
    pub fn recorded(&self, tokens: usize, Recording { rows, spans }: Recording, kernel: Kernel) -> Work {
        match &self.layer.mixer {
            MixerSpec::Attention(a) => {
                let seen = a.window.map_or(tokens, |window| window.min(tokens));
                let scores = (rows * seen) as f64 * a.heads as f64;
                let (columns, bytes) = match kernel {
                    Kernel::Blocks => (a.head_dim + spans, SCORE_BYTES_F32),
                    // On tensor cores, in two passes: row sums, then mass per key.
                    Kernel::Fused if self.size < 4.0 => {
                        let rows = 4.0 * a.head_dim as f64 * scores;
                        return Work { products: rows, rows, ..Work::default() };
                    }
                    Kernel::Fused => (a.head_dim, 0.0),
                };
                let products_f32 = 2.0 * columns as f64 * scores;
                Work { products_f32, bytes: bytes * scores, ..Work::default() }
            }
            MixerSpec::DeltaNet(d) => {
                let pair = d.value_heads as f64 * 2.0 * (2.0 * d.key_dim as f64 + RULE_BLOCK);
                let rule = pair * (rows * tokens) as f64;
                Work { products_f32: rule, rule, ..Work::default() }
            }
            MixerSpec::Mamba2(Mamba2Spec { heads: d, .. }) => {
                let pair = d.value_heads as f64 * 2.0 * d.key_dim as f64;
                let rule = pair * (rows * tokens) as f64;
                Work { products_f32: rule, rule, ..Work::default() }
            }
            MixerSpec::ShortConv(_) | MixerSpec::None => Work::default(),
        }
    }

    /// One decode step of `answers`, each with `own` tokens after `shared` ones whose keys and values are read once.
    pub fn step(&self, shared: usize, own: usize, answers: usize, kernel: Kernel) -> Work {
        let each = answers as f64;
        let mixed = match &self.layer.mixer {
            MixerSpec::Attention(a) => {
                let scores = match kernel {
                    Kernel::Blocks => self.score_bytes() * a.heads as f64,
                    Kernel::Fused => 0.0,
                };
                let read = |tokens| (self.cached(a) + scores) * tokens as f64;
                match a.window {
                    // Each answer has its own window.
                    Some(window) => each * read(window.min(shared + own)),
                    None => read(shared) + each * read(own),
                }
            }
            MixerSpec::DeltaNet(d) | MixerSpec::Mamba2(Mamba2Spec { heads: d, .. }) => {
                each * (STATE_BYTES * state(d))
            }
            MixerSpec::ShortConv(_) | MixerSpec::None => 0.0,
        };
        Work { bytes: self.weights(answers) * self.size + mixed, ..Work::default() }
    }

    /// Kernel launches per decoded token, about as counted by the pretend device (rehearsal/results.md).
    pub fn launches(&self) -> f64 {
        match (&self.layer.feed_forward, self.layer.linear()) {
            (_, Some(_)) => 31.0,
            (FeedForwardSpec::Experts(_), None) => 33.0,
            (FeedForwardSpec::Dense(_) | FeedForwardSpec::None, None) => 20.0,
        }
    }

    fn cached(&self, a: &AttentionSpec) -> f64 {
        self.size * a.cached() as f64
    }

    fn score_bytes(&self) -> f64 {
        if self.size < 4.0 { SCORE_BYTES } else { SCORE_BYTES_F32 }
    }
}

/// Numbers of a layer's state.
fn state(d: &DeltaNetSpec) -> f64 {
    (d.value_heads * d.key_dim * d.value_dim) as f64
}

pub fn head(spec: &DecoderSpec) -> Work {
    Work { products: 2.0 * (spec.hidden * spec.vocab) as f64, ..Work::default() }
}

/// Reading the output head's weights for one token; `size`: bytes of the dtype.
pub fn token_head(spec: &DecoderSpec, size: usize) -> Work {
    Work { bytes: (spec.hidden * spec.vocab * size) as f64, ..Work::default() }
}

/// Query-key pairs: by blocks, all keys visible to the block; fused, half the square less what the window masks.
fn pairs(tokens: usize, window: Option<usize>, kernel: Kernel) -> f64 {
    if kernel == Kernel::Blocks {
        let blocks = (0..tokens).step_by(BLOCK_ROWS).map(|start| {
            let end = (start + BLOCK_ROWS).min(tokens);
            let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
            ((end - start) * (end - first)) as f64
        });
        return blocks.sum();
    }
    let square = |n: usize| (n as f64).powi(2) / 2.0;
    match window {
        Some(window) if window < tokens => square(tokens) - square(tokens - window),
        _ => square(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_that_a_walk_over_blocks_and_rows_meets() {
        for (tokens, window) in [(1, None), (512, None), (1300, None), (1300, Some(128)), (700, Some(900))] {
            let mut blocks = 0;
            let mut rows = 0;
            for row in 0..tokens {
                let start = row / BLOCK_ROWS * BLOCK_ROWS;
                let end = (start + BLOCK_ROWS).min(tokens);
                blocks += (0..end).filter(|key| window.is_none_or(|w| key + w > start)).count();
                rows += (0..=row).filter(|key| window.is_none_or(|w| key + w > row)).count();
            }
            assert_eq!(pairs(tokens, window, Kernel::Blocks), blocks as f64, "{tokens} {window:?}");
            let visible = pairs(tokens, window, Kernel::Fused);
            // Half a row of rounding per query.
            assert!((visible - rows as f64).abs() <= tokens as f64 / 2.0, "{tokens} {window:?}: {visible}");
        }
    }
}
