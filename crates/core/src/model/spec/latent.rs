//! Latent attention.

/// Multi-head latent attention (transformers, `DeepseekV3Attention`).
///
/// The keys and values of all heads are products with one normed vector a token. The cache keeps that vector behind the rotated part of
/// the key, which all heads share, as the only key/value head: `rope.dims` + `rank` wide, and key and value at once. A head's query is
/// its rotated part and, behind it, its other part times the head's key weights; what the head reads is multiplied by its value weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentSpec {
    /// Width of the vector.
    pub rank: usize,
    /// Width of a head's query and key without the rotated part.
    pub plain: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Width between the two projections of the queries, if there are two, with a norm between them.
    pub query_rank: Option<usize>,
    /// The checkpoint pairs neighbouring dimensions for the rotation; the loader puts the pairs apart.
    pub interleaved: bool,
    /// The keys that a row sees of those before it.
    pub sees: Sees,
}

/// Keys that a row of latent attention sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// All.
    All,
    /// Those that an indexer chooses (transformers, `DeepseekV32Indexer`).
    Chosen(IndexerSpec),
    /// Those that the indexer of the last layer before with one chooses (transformers, `GlmMoeDsaAttention`), among the keys that are not
    /// hidden at this layer.
    AsBefore,
}

/// An indexer, which scores keys by heads of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerSpec {
    /// Heads.
    pub heads: usize,
    /// Width of a head, of which the first `rope.dims` dimensions rotate as in the attention.
    pub width: usize,
    /// Keys that a row sees at most.
    pub keys: usize,
    /// As [`LatentSpec::interleaved`], of the indexer.
    pub interleaved: bool,
}

impl LatentSpec {
    /// The indexer, if the layer has one.
    pub fn indexer(&self) -> Option<IndexerSpec> {
        match self.sees {
            Sees::Chosen(indexer) => Some(indexer),
            Sees::All | Sees::AsBefore => None,
        }
    }

    /// Parameter count for `heads` heads with `rotated` rotated dimensions and a residual stream of width `hidden`.
    pub fn parameters(&self, heads: usize, rotated: usize, hidden: usize) -> u128 {
        let wide = |n: usize| n as u128;
        let (heads, rank, hidden) = (wide(heads), wide(self.rank), wide(hidden));
        let q = heads * wide(self.plain + rotated);
        let queries = self.query_rank.map_or(hidden * q, |between| (hidden + q + 1) * wide(between));
        let latent = (hidden + 1) * rank + hidden * wide(rotated);
        let indexer = self.indexer().map_or(0, |indexer| {
            let (n, width) = (wide(indexer.heads), wide(indexer.width));
            wide(self.query_rank.unwrap_or(0)) * n * width + hidden * (width + n) + 2 * width
        });
        queries
            + latent
            + indexer
            + heads * (wide(self.plain + self.value) * rank + wide(self.value) * hidden)
    }
}
