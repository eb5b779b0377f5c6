//! Benchmark shapes: the layers of two small public models.

pub struct LinearShapes {
    pub model: &'static str,
    /// Name, inputs, outputs, count per decoder layer.
    pub products: &'static [(&'static str, usize, usize, usize)],
}

pub const LINEAR: [LinearShapes; 2] = [
    LinearShapes {
        model: "smollm2",
        products: &[
            ("q, o", 576, 576, 2),
            ("k, v", 576, 192, 2),
            ("gate, up", 576, 1536, 2),
            ("down", 1536, 576, 1),
        ],
    },
    LinearShapes {
        model: "gemma3",
        products: &[
            ("q", 640, 1024, 1),
            ("k, v", 640, 256, 2),
            ("o", 1024, 640, 1),
            ("gate, up", 640, 2048, 2),
            ("down", 2048, 640, 1),
        ],
    },
];

/// Tokens per call: a prefill chunk, a decode step.
pub const LINEAR_TOKENS: [usize; 2] = [1024, 1];

pub struct AttentionShape {
    pub model: &'static str,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub window: Option<usize>,
}

pub const ATTENTION: [AttentionShape; 3] = [
    AttentionShape { model: "smollm2", heads: 9, kv_heads: 3, head_dim: 64, window: None },
    AttentionShape { model: "gemma3", heads: 4, kv_heads: 1, head_dim: 256, window: None },
    AttentionShape { model: "gemma3 window", heads: 4, kv_heads: 1, head_dim: 256, window: Some(512) },
];

/// Keys visible to the last query without a window.
pub const KEYS: [usize; 3] = [2048, 8192, 32_768];

/// Queries per call: a prefill chunk, a decode step.
pub const QUERIES: [usize; 2] = [1024, 1];

/// Observed rows: the last tokens of a chunk, like a question.
pub const OBSERVED_ROWS: usize = 40;

/// Observed key spans: the sessions of a history.
pub const OBSERVED_SPANS: usize = 64;

/// Size of the square matrix product that measures the machine's peak.
pub const PEAK: usize = 2048;

impl AttentionShape {
    /// Operations for the last `queries` of `keys` positions: two products, 2 flop per element, over visible pairs; no exponentials.
    pub fn flop(&self, queries: usize, keys: usize) -> u64 {
        let seen = |position: usize| self.window.map_or(position + 1, |w| w.min(position + 1));
        let pairs: usize = (keys - queries..keys).map(seen).sum();
        (4 * self.head_dim * self.heads * pairs) as u64
    }

    /// First cached key for the last `queries` of `keys` positions.
    pub fn first_key(&self, queries: usize, keys: usize) -> usize {
        self.window.map_or(0, |w| (keys - queries + 1).saturating_sub(w))
    }
}
