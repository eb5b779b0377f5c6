//! Operations and bytes of a decoder layer's work, counted from its description.
//!
//! Counted are products, the traffic of score blocks and the recurrence of delta nets. Left out are norms, activations, gates
//! and convolutions, and the reading of weights in a prefill, which its products hide.

use std::iter::Sum;
use std::ops::Add;

use palimpsest_core::model::{AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, MixerSpec};

/// Rows of a block of the attention that is made of matrix products.
const BLOCK_ROWS: usize = 512;
/// Bytes read and written for a score of it in half precision, on a CUDA card: the product, in f32, 4, maximum and sum 4, the
/// weight 4 and, in half precision, 2, the product with values 2.
const SCORE_BYTES: f64 = 16.0;
/// The same in f32, as the observer's scores always are: product 4, maximum and sum 4, weight 8, product 4.
const SCORE_BYTES_F32: f64 = 20.0;
/// Tokens of a block of the delta rule, and operations a token and head of its triangle's inverse: of a block 2 products of 32
/// by 32, twice 2 of 16 by 16, and four times 6 of 16 by 16 under masks.
const RULE_BLOCK: f64 = 64.0;
const INVERSE: f64 = (2.0 * 65_536.0 + 28.0 * 8_192.0) / RULE_BLOCK;
/// Bytes of a number of a delta net's state that a token takes: decayed 8, read by the key 4, added to 8, read by the query 4.
const STATE_BYTES: f64 = 24.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// As matrix products over blocks of 512 rows, whose scores go through memory.
    Blocks,
    /// In one kernel that keeps scores on the chip: the CPU's, our own on CUDA, or FlashAttention.
    Fused,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct Work {
    /// Operations of products in the model's dtype.
    pub products: f64,
    /// Operations of products that are in f32 whatever the dtype.
    pub products_f32: f64,
    /// Bytes read and written beside those products.
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
            products_f32: self.products_f32 + other.products_f32,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Work>>(works: I) -> Work {
        works.fold(Work::default(), Add::add)
    }
}

/// Rows that an observer reads, and the spans that it sums them into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording {
    /// Rows at the end of the prompt, so that each sees all of it.
    pub rows: usize,
    pub spans: usize,
}

impl Recording {
    /// As much of it as a prompt of `tokens` has, and at least one row and span.
    #[must_use]
    pub fn within(self, tokens: usize) -> Self {
        let within = |number: usize| number.clamp(1, tokens.max(1));
        Recording { rows: within(self.rows), spans: within(self.spans) }
    }
}

/// One layer of a decoder, in a dtype of so many bytes.
#[derive(Debug, Clone, Copy)]
pub struct LayerWork<'a> {
    layer: &'a LayerSpec,
    hidden: usize,
    size: f64,
}

impl<'a> LayerWork<'a> {
    /// All layers of a decoder, in a dtype of `size` bytes.
    pub fn all(spec: &'a DecoderSpec, size: usize) -> impl Iterator<Item = Self> {
        spec.layers.iter().map(move |layer| LayerWork { layer, hidden: spec.hidden, size: size as f64 })
    }

    /// Weights that `tokens` go through in one step: of experts, those that they are sent to, where no two are sent to the same
    /// one while there are others.
    pub fn weights(&self, tokens: usize) -> f64 {
        let idle = match &self.layer.feed_forward {
            FeedForwardSpec::Dense(_) => 0,
            FeedForwardSpec::Experts(e) => {
                let busy = e.per_token.saturating_mul(tokens);
                e.experts.saturating_sub(busy) as u128 * e.expert.parameters(self.hidden)
            }
        };
        (self.layer.parameters(self.hidden) - idle) as f64
    }

    /// A prefill of `tokens` from the beginning.
    pub fn prefill(&self, tokens: usize, kernel: Kernel) -> Work {
        let linear = 2.0 * self.weights(1) * tokens as f64;
        match &self.layer.mixer {
            MixerSpec::Attention(a) => {
                let pairs = pairs(tokens, a.window, kernel);
                let products = linear + 4.0 * (a.head_dim * a.heads) as f64 * pairs;
                let bytes = match kernel {
                    // The scores, and the cache once for every block of rows.
                    Kernel::Blocks => {
                        self.score_bytes() * a.heads as f64 * pairs
                            + self.cached(a) * pairs / BLOCK_ROWS as f64
                    }
                    Kernel::Fused => 0.0,
                };
                Work { products, products_f32: 0.0, bytes }
            }
            MixerSpec::DeltaNet(d) => {
                let (dk, dv, c) = (d.key_dim as f64, d.value_dim as f64, RULE_BLOCK);
                let group = (d.value_heads / d.key_heads.max(1)) as f64;
                let head =
                    6.0 * dk * dv + 2.0 * c * (dk + 2.0 * dv) + 4.0 * c * dk / group + 2.0 * c * c + INVERSE;
                let products_f32 = d.value_heads as f64 * head * tokens as f64;
                Work { products: linear, products_f32, bytes: 0.0 }
            }
        }
    }

    /// An observer's work in a prefill of `tokens`. Products sum weights into spans by a product with a table of which key is in
    /// which span; a fused kernel adds them up where they are. A delta rule takes the rows back through all tokens.
    pub fn recorded(&self, tokens: usize, Recording { rows, spans }: Recording, kernel: Kernel) -> Work {
        match &self.layer.mixer {
            MixerSpec::Attention(a) => {
                let seen = a.window.map_or(tokens, |window| window.min(tokens));
                let scores = (rows * seen) as f64 * a.heads as f64;
                let (columns, bytes) = match kernel {
                    Kernel::Blocks => (a.head_dim + spans, SCORE_BYTES_F32),
                    // On tensor cores, and twice: for each row's whole, and for what is paid to each key.
                    Kernel::Fused if self.size < 4.0 => {
                        return Work { products: 4.0 * a.head_dim as f64 * scores, ..Work::default() };
                    }
                    Kernel::Fused => (a.head_dim, 0.0),
                };
                let products_f32 = 2.0 * columns as f64 * scores;
                Work { products_f32, bytes: bytes * scores, ..Work::default() }
            }
            MixerSpec::DeltaNet(d) => {
                let pair = d.value_heads as f64 * 2.0 * (2.0 * d.key_dim as f64 + RULE_BLOCK);
                Work { products_f32: pair * (rows * tokens) as f64, ..Work::default() }
            }
        }
    }

    /// One step of `answers` that are decoded together, each after `own` tokens beyond the `shared` ones, whose keys and values are
    /// read once for all.
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
                    // Every answer has a window of its own.
                    Some(window) => each * read(window.min(shared + own)),
                    None => read(shared) + each * read(own),
                }
            }
            MixerSpec::DeltaNet(d) => each * (STATE_BYTES * (d.value_heads * d.key_dim * d.value_dim) as f64),
        };
        Work { bytes: self.weights(answers) * self.size + mixed, ..Work::default() }
    }

    /// Kernels that one more token launches: about as many as the pretend device counts (docs/gpu.md).
    pub fn launches(&self) -> f64 {
        match (&self.layer.feed_forward, self.layer.delta_net()) {
            (_, Some(_)) => 31.0,
            (FeedForwardSpec::Experts(_), None) => 33.0,
            (FeedForwardSpec::Dense(_), None) => 20.0,
        }
    }

    /// Bytes a token of keys and values.
    fn cached(&self, a: &AttentionSpec) -> f64 {
        2.0 * self.size * (a.kv_heads * a.head_dim) as f64
    }

    fn score_bytes(&self) -> f64 {
        if self.size < 4.0 { SCORE_BYTES } else { SCORE_BYTES_F32 }
    }
}

/// The output head for one position of a decoder.
pub fn head(spec: &DecoderSpec) -> Work {
    Work { products: 2.0 * (spec.hidden * spec.vocab) as f64, ..Work::default() }
}

/// Reading the output head for one more token, in a dtype of `size` bytes.
pub fn token_head(spec: &DecoderSpec, size: usize) -> Work {
    Work { bytes: (spec.hidden * spec.vocab * size) as f64, ..Work::default() }
}

/// Queries times the keys that they are multiplied with: by blocks, those that the block of rows sees; else half the square of
/// both, less what a window hides.
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
            // Half a row more or less for every query.
            assert!((visible - rows as f64).abs() <= tokens as f64 / 2.0, "{tokens} {window:?}: {visible}");
        }
    }
}
