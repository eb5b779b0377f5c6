//! Observers read a forward pass; they never change it.
//!
//! They are handed down through the decoder's forward pass as `&mut dyn Observer`, so that nothing is left behind when
//! the call ends. Of a prompt they get the rotated queries and keys rather than the weights, because no fast kernel ever forms
//! the weights of many rows: an observer recomputes just the rows that it wants. Of a token that is generated the kernel holds
//! the weights of the one row in any case, and sums them by segment as it goes: an observer says over which segments, and
//! gets the sums.
//!
//! All that is shown is an [`Event`], and all that is asked beforehand is about a [`Point`]: an observer that hands on what it is
//! shown has one method for each, and no event can be lost by it.

use candle_core::{Result, Tensor};

use super::{Holes, Site};

/// Something that reads attention.
pub trait Observer: Send {
    /// The wishes at a point of the pass. They are asked before the work there is done, which depends on them.
    fn wants(&self, point: Point<'_>) -> Wanted<'_>;

    /// Reads an event. Observers share a pass: one that was wanted by another observer, or by none, is left alone.
    ///
    /// # Errors
    /// A tensor operation failed.
    fn observe(&mut self, event: Event<'_>) -> Result<()>;
}

/// A point of a forward pass at which observers are asked.
#[derive(Debug, Clone, Copy)]
pub enum Point<'a> {
    /// Softmax attention of a chunk: [`Event::Attention`] and [`Event::Weights`] may follow.
    Attention(&'a Site),
    /// Linear attention of a chunk: [`Event::LinearAttention`] may follow.
    LinearAttention(&'a DeltaSite),
    /// The residual stream of the `l` positions from `offset` on: an [`Event::Term`] of each term may follow.
    Residual {
        /// The first position.
        offset: usize,
        /// Positions.
        l: usize,
    },
}

/// The wishes of an observer at a point.
#[derive(Debug, Clone, Default)]
pub struct Wanted<'a> {
    /// The point's inputs are to be shown: [`Event::Attention`] or [`Event::LinearAttention`].
    pub inputs: bool,
    /// The ascending borders of the segments, as positions, over which the kernel is to sum the softmax weights of the one row
    /// of the chunk: segment s is `borders[s]..borders[s + 1]`. The output of attention is the same, to the last bit, with and
    /// without.
    pub segments: Option<&'a [usize]>,
    /// The rows of the chunk whose terms are to be shown ([`Event::Term`]), as distances from its first.
    pub targets: Vec<usize>,
}

impl<'a> Wanted<'a> {
    /// The point's inputs, or nothing.
    pub fn inputs(inputs: bool) -> Self {
        Wanted { inputs, ..Wanted::default() }
    }

    /// All that two observers want; of two wishes for segments the first, whose sums serve both ([`super::MassObserver::joined`]).
    #[must_use]
    pub fn and(mut self, other: Wanted<'a>) -> Self {
        self.inputs |= other.inputs;
        self.segments = self.segments.or(other.segments);
        self.targets.extend(other.targets);
        self
    }
}

/// An event of a forward pass.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// The inputs of a softmax layer's chunk.
    Attention {
        /// Its settings.
        site: &'a Site,
        /// (l, heads, head_dim), rotated.
        q: &'a Tensor,
        /// (kv_heads, offset + l - first_key, head_dim), rotated.
        k: &'a Tensor,
        /// As `k`.
        v: &'a Tensor,
    },
    /// The sums that [`Wanted::segments`] asked for.
    Weights {
        /// The row's settings: `site.offset` is its position.
        site: &'a Site,
        /// The weight that each head pays to the sinks and to each segment: (heads, 1 + segments), f64 on the CPU and f32 elsewhere.
        sums: &'a Tensor,
    },
    /// The gates of a layer whose heads have some: what their outputs at the layer's next [`Event::Attention`] are multiplied by,
    /// (l, heads * head_dim).
    Gate(&'a Tensor),
    /// The inputs of a linear-attention layer's chunk, as they leave the convolution: neither normalised nor scaled yet. Keys of
    /// earlier chunks are in no cache: an observer that needs them keeps them.
    LinearAttention {
        /// Its settings.
        site: &'a DeltaSite,
        /// (l, key_heads, key_dim), in the model's dtype.
        q: &'a Tensor,
        /// As `q`.
        k: &'a Tensor,
        /// The log decays, (l, value_heads) f32.
        g: &'a Tensor,
        /// The strengths of writing, (l, value_heads) f32.
        beta: &'a Tensor,
    },
    /// A term of the residual stream at the targets of the chunk that begins at a position.
    Term(usize, Term<'a>),
    /// So many tokens generated so far are a thought before the answer, whose rows are not wanted. Comes before the row that
    /// predicts the next token.
    Thought(usize),
}

/// Where a chunk of a linear-attention layer is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaSite {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the chunk's first token.
    pub offset: usize,
    /// Keys that rows were to be kept from seeing. The layer has no keys to hide, and refuses any.
    pub holes: Holes,
}

/// A part of what the decoder adds up at a position, f32 and a row a target.
#[derive(Debug, Clone, Copy)]
pub enum Term<'a> {
    /// The token's embedding, (targets, hidden).
    Embedding(&'a Tensor),
    /// The output of a linear-attention layer, after a norm behind it if there is one, (targets, hidden).
    LinearAttention(usize, &'a Tensor),
    /// The output of a feed-forward, likewise.
    FeedForward(usize, &'a Tensor),
    /// The factors of a softmax layer's heads behind its output projection, (targets, hidden), where there is a norm behind it; and
    /// the projection's bias, (hidden), if any.
    Attention(usize, Option<&'a Tensor>, Option<&'a Tensor>),
    /// The factors of the sum of all of it before the output head: the final norm's scales, (targets, hidden).
    Final(&'a Tensor),
}

/// Wants nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn wants(&self, _point: Point<'_>) -> Wanted<'_> {
        Wanted::default()
    }

    fn observe(&mut self, _event: Event<'_>) -> Result<()> {
        Ok(())
    }
}
