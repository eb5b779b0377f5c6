//! Operations and bytes of a decoder layer's work, counted from its description, and the seconds that they should take.
//!
//! What [`super::trial`] measures is held against these numbers, and the table of `benches/README.md` is made of them. Counted
//! is what the kernels are known to do: products, the traffic of score blocks, the recurrence of delta nets. Left out are
//! norms, activations, gates and convolutions, and the reading of weights in a prefill, which its products hide.

use std::iter::Sum;
use std::ops::Add;

use palimpsest_core::model::{AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, LayerSpec};

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

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// As matrix products over blocks of 512 rows, whose scores go through memory.
    Blocks,
    /// In one kernel that keeps scores on the chip: the CPU's, our own on CUDA, or FlashAttention.
    Fused,
}

/// A piece of work.
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
    /// All operations.
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
    /// Key spans.
    pub spans: usize,
}

/// One layer of a decoder, in a dtype of so many bytes.
#[derive(Debug, Clone, Copy)]
pub struct LayerWork<'a> {
    layer: &'a LayerSpec,
    hidden: usize,
    size: f64,
}

impl<'a> LayerWork<'a> {
    /// Of `layer` beside a residual stream of width `hidden`, in a dtype of `size` bytes.
    pub fn new(layer: &'a LayerSpec, hidden: usize, size: usize) -> Self {
        LayerWork { layer, hidden, size: size as f64 }
    }

    /// All layers of a decoder.
    pub fn all(spec: &'a DecoderSpec, size: usize) -> impl Iterator<Item = Self> {
        spec.layers.iter().map(move |layer| LayerWork::new(layer, spec.hidden, size))
    }

    /// Weights that a token goes through: of experts, those that it is sent to.
    pub fn weights(&self) -> f64 {
        self.weights_of(1)
    }

    /// Weights that `tokens` go through in one step, where no two are sent to the same expert while there are others.
    pub fn weights_of(&self, tokens: usize) -> f64 {
        let idle = match &self.layer.feed_forward {
            FeedForwardSpec::Dense(_) => 0,
            FeedForwardSpec::Experts(e) => {
                let busy = e.per_token.saturating_mul(tokens);
                e.experts.saturating_sub(busy) as u128 * e.expert.parameters(self.hidden)
            }
        };
        (self.layer.parameters(self.hidden) - idle) as f64
    }

    /// One step of `answers` that are decoded together, each after `own` tokens beyond the `shared` ones, whose keys and values are
    /// read once for all.
    pub fn step(&self, shared: usize, own: usize, answers: usize, kernel: Kernel) -> Work {
        let (each, cache) = (answers as f64, |tokens| self.token_cache(tokens, kernel).bytes);
        let cached = match self.layer.attention().and_then(|attention| attention.window) {
            // Every answer has a window of its own.
            Some(_) => each * cache(shared + own),
            None => cache(shared) + each * cache(own),
        };
        let bytes = self.weights_of(answers) * self.size + cached + each * self.token_state().bytes;
        Work { bytes, ..Work::default() }
    }

    /// Kernels that one more token launches: about as many as the table of `benches/README.md` counts.
    pub fn launches(&self) -> f64 {
        match (&self.layer.feed_forward, self.layer.delta_net()) {
            (_, Some(_)) => 31.0,
            (FeedForwardSpec::Experts(_), None) => 33.0,
            (FeedForwardSpec::Dense(_), None) => 20.0,
        }
    }

    /// The linear maps of a prefill of `tokens`.
    pub fn linear(&self, tokens: usize) -> Work {
        Work { products: 2.0 * self.weights() * tokens as f64, ..Work::default() }
    }

    /// Attention's products of a prefill of `tokens`.
    pub fn attention(&self, tokens: usize, kernel: Kernel) -> Work {
        let Some(a) = self.layer.attention() else { return Work::default() };
        let pairs = match kernel {
            Kernel::Blocks => block_pairs(tokens, a.window),
            Kernel::Fused => visible_pairs(tokens, a.window),
        };
        Work { products: 4.0 * (a.head_dim * a.heads) as f64 * pairs, ..Work::default() }
    }

    /// The traffic of attention's score blocks in a prefill of `tokens`, and the cache once for every block of rows.
    pub fn score_blocks(&self, tokens: usize, kernel: Kernel) -> Work {
        match (self.layer.attention(), kernel) {
            (Some(a), Kernel::Blocks) => {
                let pairs = block_pairs(tokens, a.window);
                let scores = self.score_bytes() * a.heads as f64 * pairs;
                Work { bytes: scores + self.cached(a) * pairs / BLOCK_ROWS as f64, ..Work::default() }
            }
            _ => Work::default(),
        }
    }

    /// The delta rule over `tokens`, in blocks of 64.
    pub fn rule(&self, tokens: usize) -> Work {
        let Some(d) = self.layer.delta_net() else { return Work::default() };
        let (dk, dv, c) = (d.key_dim as f64, d.value_dim as f64, RULE_BLOCK);
        let group = (d.value_heads / d.key_heads.max(1)) as f64;
        let head = 6.0 * dk * dv + 2.0 * c * (dk + 2.0 * dv) + 4.0 * c * dk / group + 2.0 * c * c + INVERSE;
        Work { products_f32: d.value_heads as f64 * head * tokens as f64, ..Work::default() }
    }

    /// A prefill of `tokens`.
    pub fn prefill(&self, tokens: usize, kernel: Kernel) -> Work {
        self.linear(tokens)
            + self.attention(tokens, kernel)
            + self.score_blocks(tokens, kernel)
            + self.rule(tokens)
    }

    /// An observer of a layer with softmax, after `tokens`. Products sum weights into spans by a product with a table of which key
    /// is in which span; a fused kernel adds them up where they are.
    pub fn observed_scores(
        &self,
        tokens: usize,
        Recording { rows, spans }: Recording,
        kernel: Kernel,
    ) -> Work {
        let Some(a) = self.layer.attention() else { return Work::default() };
        let seen = a.window.map_or(tokens, |window| window.min(tokens));
        let scores = (rows * seen) as f64 * a.heads as f64;
        let (columns, bytes) = match kernel {
            Kernel::Blocks => (a.head_dim + spans, SCORE_BYTES_F32),
            Kernel::Fused => (a.head_dim, 0.0),
        };
        Work { products_f32: 2.0 * columns as f64 * scores, bytes: bytes * scores, ..Work::default() }
    }

    /// An observer of a layer with a delta rule, which takes the rows back through all `tokens`.
    pub fn observed_rule(&self, tokens: usize, Recording { rows, .. }: Recording) -> Work {
        let Some(d) = self.layer.delta_net() else { return Work::default() };
        let pair = d.value_heads as f64 * 2.0 * (2.0 * d.key_dim as f64 + RULE_BLOCK);
        Work { products_f32: pair * (rows * tokens) as f64, ..Work::default() }
    }

    /// An observer of a prefill of `tokens`.
    pub fn recorded(&self, tokens: usize, recording: Recording, kernel: Kernel) -> Work {
        self.observed_scores(tokens, recording, kernel) + self.observed_rule(tokens, recording)
    }

    /// Reading the weights for one more token.
    pub fn token_weights(&self) -> Work {
        Work { bytes: self.weights() * self.size, ..Work::default() }
    }

    /// Reading the cache of `context` tokens for one more, and its scores.
    pub fn token_cache(&self, context: usize, kernel: Kernel) -> Work {
        let Some(a) = self.layer.attention() else { return Work::default() };
        let seen = a.window.map_or(context, |window| window.min(context)) as f64;
        let scores = match kernel {
            Kernel::Blocks => self.score_bytes() * a.heads as f64,
            Kernel::Fused => 0.0,
        };
        Work { bytes: (self.cached(a) + scores) * seen, ..Work::default() }
    }

    /// Reading and writing the states for one more token.
    pub fn token_state(&self) -> Work {
        let Some(&DeltaNetSpec { value_heads, key_dim, value_dim, .. }) = self.layer.delta_net() else {
            return Work::default();
        };
        Work { bytes: STATE_BYTES * (value_heads * key_dim * value_dim) as f64, ..Work::default() }
    }

    /// One more token after `context` others.
    pub fn token(&self, context: usize, kernel: Kernel) -> Work {
        self.token_weights() + self.token_cache(context, kernel) + self.token_state()
    }

    /// Bytes a token of keys and values.
    fn cached(&self, a: &AttentionSpec) -> f64 {
        2.0 * self.size * (a.kv_heads * a.head_dim) as f64
    }

    fn score_bytes(&self) -> f64 {
        if self.size < 4.0 { SCORE_BYTES } else { SCORE_BYTES_F32 }
    }
}

/// The output head for `positions` of a decoder.
pub fn head(spec: &DecoderSpec, positions: usize) -> Work {
    Work { products: 2.0 * (spec.hidden * spec.vocab) as f64 * positions as f64, ..Work::default() }
}

/// Reading the output head for one more token, in a dtype of `size` bytes.
pub fn token_head(spec: &DecoderSpec, size: usize) -> Work {
    Work { bytes: (spec.hidden * spec.vocab * size) as f64, ..Work::default() }
}

/// Queries times the keys that their block of rows is multiplied with.
fn block_pairs(tokens: usize, window: Option<usize>) -> f64 {
    let blocks = (0..tokens).step_by(BLOCK_ROWS).map(|start| {
        let end = (start + BLOCK_ROWS).min(tokens);
        let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
        ((end - start) * (end - first)) as f64
    });
    blocks.sum()
}

/// Half the square of queries and keys, less what a window hides.
fn visible_pairs(tokens: usize, window: Option<usize>) -> f64 {
    let square = |n: usize| (n as f64).powi(2) / 2.0;
    match window {
        Some(window) if window < tokens => square(tokens) - square(tokens - window),
        _ => square(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_core::model::ModelDescription;

    fn spec(name: &str) -> DecoderSpec {
        match ModelDescription::released(name) {
            Some(Ok(description)) => description.spec,
            other => panic!("{name}: {other:?}"),
        }
    }

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
            assert_eq!(block_pairs(tokens, window), blocks as f64, "{tokens} {window:?}");
            let visible = visible_pairs(tokens, window);
            // Half a row more or less for every query.
            assert!((visible - rows as f64).abs() <= tokens as f64 / 2.0, "{tokens} {window:?}: {visible}");
        }
    }

    #[test]
    fn experts_cost_what_a_token_is_sent_to_and_windows_bound_what_decoding_reads() {
        let moe = spec("gpt-oss-20b");
        let [windowed, full] = [0, 1].map(|i| LayerWork::new(&moe.layers[i], moe.hidden, 2));
        let expert = 3 * 2880 * 2880 + 2 * 2880 + 2880;
        let all = moe.layers[0].parameters(moe.hidden) as f64;
        assert_eq!(windowed.weights(), all - 28.0 * f64::from(expert));
        // Keys and values, and 16 bytes a score.
        let a_token = 2.0 * 2.0 * 8.0 * 64.0 + 16.0 * 64.0;
        assert_eq!(windowed.token_cache(10_000, Kernel::Blocks).bytes, 128.0 * a_token);
        assert_eq!(full.token_cache(10_000, Kernel::Blocks).bytes, 10_000.0 * a_token);
        assert_eq!(full.token_cache(10_000, Kernel::Fused).bytes, 10_000.0 * 2.0 * 2.0 * 8.0 * 64.0);
        let llama = spec("llama-3.1-8b-instruct");
        let layer = LayerWork::new(&llama.layers[0], llama.hidden, 4);
        assert_eq!(layer.token_cache(1, Kernel::Blocks).bytes, 4.0 * 2.0 * 8.0 * 128.0 + 20.0 * 32.0);
    }

    #[test]
    fn rows_cost_their_products_with_keys_and_by_products_a_table_of_spans_and_scores_in_memory() {
        let llama = spec("llama-3.1-8b-instruct");
        let layer = LayerWork::new(&llama.layers[0], llama.hidden, 2);
        let recording = Recording { rows: 3, spans: 7 };
        let scores = 3.0 * 1000.0 * 32.0;
        let fused = layer.recorded(1000, recording, Kernel::Fused);
        assert_eq!((fused.products_f32, fused.products, fused.bytes), (2.0 * 128.0 * scores, 0.0, 0.0));
        let blocks = layer.recorded(1000, recording, Kernel::Blocks);
        assert_eq!((blocks.products_f32, blocks.bytes), (2.0 * 135.0 * scores, 20.0 * scores));
    }

    #[test]
    fn a_step_reads_weights_and_shared_keys_once_and_the_rest_for_each_answer() {
        let llama = spec("llama-3.1-8b-instruct");
        let layer = LayerWork::new(&llama.layers[0], llama.hidden, 2);
        assert_eq!(layer.step(900, 100, 1, Kernel::Fused), layer.token(1000, Kernel::Fused));
        let a_token = 2.0 * 2.0 * 8.0 * 128.0;
        let weights = layer.token_weights().bytes;
        assert_eq!(layer.step(900, 100, 3, Kernel::Fused).bytes, weights + (900.0 + 300.0) * a_token);
        // 128 of a window for each answer, and 4 experts each.
        let moe = spec("gpt-oss-20b");
        let windowed = LayerWork::new(&moe.layers[0], moe.hidden, 2);
        let expert = f64::from(3 * 2880 * 2880 + 2 * 2880 + 2880);
        let all = moe.layers[0].parameters(moe.hidden) as f64;
        let read = 2.0 * (all - 20.0 * expert) + 3.0 * 128.0 * 2.0 * 2.0 * 8.0 * 64.0;
        assert_eq!(windowed.step(900, 100, 3, Kernel::Fused).bytes, read);
        assert_eq!(windowed.weights_of(100), all, "no more experts than there are");
    }

    #[test]
    fn a_model_s_prefill_is_near_twice_its_weights_for_each_token_where_prompts_are_short() {
        for name in ["llama-3.1-8b-instruct", "qwen3.5-9b"] {
            let spec = spec(name);
            let work: Work = LayerWork::all(&spec, 2).map(|layer| layer.prefill(512, Kernel::Fused)).sum();
            let weights = spec.parameters() as f64 - 2.0 * (spec.vocab * spec.hidden) as f64;
            let ratio = work.operations() / (2.0 * weights * 512.0);
            assert!((1.0..1.06).contains(&ratio), "{name}: {ratio}");
            assert_eq!(work.bytes, 0.0, "{name}");
        }
    }
}
