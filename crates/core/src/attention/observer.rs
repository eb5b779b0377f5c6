//! Read-only observers of a forward pass.
//!
//! They are passed down as `&mut dyn Observer`, so no hook outlives the call. In prefill they get the rotated queries and keys, because
//! fast kernels never form the weights of many rows; an observer recomputes the rows it needs. In decode the kernel sums the single
//! row's weights over segments that the observer chooses.
//!
//! Everything shown is an [`Event`] and every request concerns a [`Point`], so a forwarding observer has one method for each and loses no
//! events.

use candle_core::{Result, Tensor};

use super::Site;
use super::delta::Rule;

/// Reads attention during a forward pass.
pub trait Observer: Send {
    /// The observer's requests at a point, asked before the computation there.
    fn wants(&self, point: Point<'_>) -> Wanted<'_>;

    /// Reads an event. Observers share a pass, so ignore events that this observer did not request.
    fn observe(&mut self, event: Event<'_>) -> Result<()>;
}

/// A point of a forward pass at which observers are asked.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // said by the names
pub enum Point<'a> {
    /// Softmax attention of a chunk: may emit [`Event::Attention`] and [`Event::Weights`].
    Attention(&'a Site),
    /// Linear attention of a chunk: may emit [`Event::LinearAttention`].
    LinearAttention(&'a DeltaSite),
    /// Residual stream of `l` positions from `offset` on: may emit an [`Event::Term`] per term, and [`Event::Residual`].
    Residual { offset: usize, l: usize },
}

/// An observer's requests at a point.
#[derive(Debug, Clone, Default)]
pub struct Wanted<'a> {
    /// Emit the inputs: [`Event::Attention`] or [`Event::LinearAttention`].
    pub inputs: bool,
    /// Ascending positions that delimit segments over which the kernel sums the softmax weights of the chunk's only row: segment s is
    /// `borders[s]..borders[s + 1]`. The attention output is bit-equal with and without.
    pub segments: Option<&'a [usize]>,
    /// Rows, relative to the chunk, whose terms are emitted ([`Event::Term`]).
    pub targets: Vec<usize>,
    /// Emit [`Event::Residual`] after each softmax layer's attention.
    pub residual: bool,
}

impl<'a> Wanted<'a> {
    /// Requests the inputs if `inputs`.
    pub fn inputs(inputs: bool) -> Self {
        Wanted { inputs, ..Wanted::default() }
    }

    /// Union of both requests; the first one's segments must serve both ([`super::MassObserver::joined`]).
    #[must_use]
    pub fn and(mut self, other: Wanted<'a>) -> Self {
        self.inputs |= other.inputs;
        self.segments = self.segments.or(other.segments);
        self.targets.extend(other.targets);
        self.residual |= other.residual;
        self
    }
}

/// An event of a forward pass.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// Inputs of a softmax layer's chunk.
    Attention {
        /// Settings of the call.
        site: &'a Site,
        /// (l, heads, head_dim), rotated.
        q: &'a Tensor,
        /// (kv_heads, offset + l - first_key, head_dim), rotated.
        k: &'a Tensor,
        /// As `k`.
        v: &'a Tensor,
    },
    /// The sums requested by [`Wanted::segments`].
    Weights {
        /// Settings; `site.offset` is the row's position.
        site: &'a Site,
        /// Each head's weight on the sinks and on each segment: (heads, 1 + segments), f64 on the CPU, f32 elsewhere.
        sums: &'a Tensor,
    },
    /// Output gates of a gated layer, (l, heads * head_dim); they apply to the layer's next [`Event::Attention`].
    Gate(&'a Tensor),
    /// Inputs of a linear-attention chunk after the convolution, neither normalised nor scaled. No cache holds the keys of earlier chunks:
    /// observers keep those they need.
    LinearAttention {
        /// Settings of the call.
        site: &'a DeltaSite,
        /// The rule by which the layer writes to its state.
        rule: Rule,
        /// (l, key_heads, key_dim), in the model's dtype.
        q: &'a Tensor,
        /// As `q`.
        k: &'a Tensor,
        /// Log decays, (l, value_heads) f32.
        g: &'a Tensor,
        /// Write strengths or time steps, (l, value_heads) f32.
        beta: &'a Tensor,
    },
    /// A residual-stream term at the targets of the chunk that begins at this position.
    Term(usize, Term<'a>),
    /// The residual stream around the attention of the softmax layer of the last [`Event::Attention`].
    Residual(Residual<'a>),
    /// The number of generated tokens so far that are reasoning before the answer, whose rows are not measured. Precedes the row that
    /// predicts the next token.
    Thought(usize),
}

/// Position of a linear-attention layer's chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeltaSite {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the chunk's first token.
    pub offset: usize,
}

/// A term of the residual stream as the final norm gets it, scaled by its layer's scalar and later ones' if there are any: f32, one row per
/// target.
#[derive(Debug, Clone, Copy)]
pub enum Term<'a> {
    /// Token embedding, (targets, hidden).
    Embedding(&'a Tensor),
    /// Output of a layer without softmax, after its post-norm if any, (targets, hidden).
    LinearAttention(usize, &'a Tensor),
    /// Output of a feed-forward block, after its post-norm if any, (targets, hidden).
    FeedForward(usize, &'a Tensor),
    /// The term that a layer adds from its per-layer embedding, after the norm, (targets, hidden).
    LayerInput(usize, &'a Tensor),
    /// A softmax layer: scales of the norm after its output projection, (targets, hidden), and bias of the projection, (hidden), if any.
    Attention(usize, Option<&'a Tensor>, Option<&'a Tensor>),
    /// Scales of the final norm and its output, (targets, hidden).
    Final(&'a Tensor, &'a Tensor),
}

/// The residual stream of a chunk around a softmax layer's attention, and how the layer's heads write to it.
#[derive(Debug, Clone, Copy)]
pub struct Residual<'a> {
    /// Before the attention is added, (l, hidden).
    pub before: &'a Tensor,
    /// After it, (l, hidden).
    pub after: &'a Tensor,
    /// Output projection per head, f32 (heads, head_dim, hidden).
    pub outputs: &'a Tensor,
    /// Scales behind the projection, f32 (l, hidden), if any: for each row a positive multiple of one vector.
    pub scales: Option<&'a Tensor>,
}

/// Requests nothing.
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
