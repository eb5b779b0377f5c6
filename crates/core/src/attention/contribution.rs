//! Attention contributions: norms of head outputs per span, and direct logit attribution.
//!
//! Head h reads u_i(Y) = sum over the keys j in Y of A_ij v_j and writes W_O^h (g_i * u_i(Y)) into the residual stream, where W_O^h is
//! the head's part of the output projection and g_i the row's gate, if the layer has one.
//!
//! - [`LengthObserver`]: `value_norm` is the mean over the rows i of X of the sum over j in Y of A_ij |W_O^h v_j|, without the gate, which
//!   belongs to the row. `output_norm` is the mean over i of the norm of the written vector, gate included (Kobayashi et al. 2020).
//!   Opposing keys cancel in `output_norm` but not in `value_norm`.
//! - [`Attribution`]: with the scales of the final norm, of post-layer norms and of the logit's soft cap frozen, a logit is a sum over
//!   everything written at its position. Returns the terms of heads and spans and all other terms; they add up to the logit.
//!
//! Computed in f32 for every model dtype. Weights are recomputed for a block of rows at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use ndarray::{Array2, Array4};

use super::backends::{Carried, RowSums, key_lengths, length_sums, value_sums};
use super::{Event, Observer, Point, Site, Term, Wanted, same_heads};
use crate::span::{Span, borders, segments_of};
use crate::timing;
use crate::transfer;

const ROWS: usize = 64;

/// Sums value and output norms of a prompt's rows, by layer and head.
#[derive(Debug, Clone)]
pub struct LengthObserver {
    rows: Vec<Span>,
    keys: Vec<Span>,
    /// Ascending borders of the segments that make up the key spans.
    bounds: Vec<usize>,
    /// Per layer: Gram matrix of each head's output weights, f32 (heads, head_dim, head_dim), on the layer's device.
    grams: Vec<Option<Tensor>>,
    gate: Option<Tensor>,
    layers: BTreeMap<usize, Lengths>,
}

/// Shapes: (heads, row spans, key spans).
#[derive(Debug, Clone)]
struct Lengths {
    heads: usize,
    values: Vec<f64>,
    outputs: Vec<f64>,
}

/// The norms measured by a [`LengthObserver`].
#[derive(Debug, Clone, PartialEq)]
pub struct Norms {
    /// Softmax layers, ascending.
    pub layers: Vec<usize>,
    /// f32 `[layers, heads, row spans, key spans]`.
    pub value_norm: Array4<f32>,
    /// Same shape as `value_norm`.
    pub output_norm: Array4<f32>,
}

impl LengthObserver {
    /// Measures `rows` over `keys`. `head_outputs` returns a layer's output projection, f32 (heads, head_dim, hidden), or `None` for layers
    /// without softmax.
    pub fn new(
        rows: Vec<Span>,
        keys: Vec<Span>,
        layers: usize,
        head_outputs: impl Fn(usize) -> Result<Option<Tensor>>,
    ) -> Result<Self> {
        let gram = |outputs: Tensor| outputs.matmul(&outputs.transpose(1, 2)?);
        let grams = (0..layers).map(|layer| head_outputs(layer)?.map(gram).transpose());
        let (grams, bounds) = (grams.collect::<Result<_>>()?, borders(&keys));
        Ok(LengthObserver { rows, keys, bounds, grams, gate: None, layers: BTreeMap::new() })
    }

    /// Returns the norms, or an error if layers have different numbers of heads.
    pub fn finish(&self) -> Result<Norms> {
        let heads = same_heads(self.layers.iter().map(|(layer, lengths)| (*layer, lengths.heads)), "heads")?;
        let shape = (self.layers.len(), heads, self.rows.len(), self.keys.len());
        let of = |part: fn(&Lengths) -> &[f64]| {
            let all = self.layers.values().flat_map(|lengths| part(lengths).iter().map(|x| *x as f32));
            Array4::from_shape_vec(shape, all.collect()).map_err(candle_core::Error::wrap)
        };
        Ok(Norms {
            layers: self.layers.keys().copied().collect(),
            value_norm: of(|lengths| &lengths.values)?,
            output_norm: of(|lengths| &lengths.outputs)?,
        })
    }
}

impl Observer for LengthObserver {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        match point {
            Point::Attention(site) => Wanted::inputs(self.rows.iter().any(|row| row.end > site.offset)),
            _ => Wanted::default(),
        }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Gate(gate) => self.gate = Some(gate.clone()),
            Event::Attention { site, q, k, v } if self.wants(Point::Attention(site)).inputs => {
                self.add_rows(site, q, k, v)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl LengthObserver {
    fn add_rows(&mut self, site: &Site, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<()> {
        let gate = self.gate.take();
        let (l, heads, d) = q.dims3()?;
        let chunk = site.offset..site.offset + l;
        let parts = |row: &Span| row.start.max(chunk.start)..row.end.min(chunk.end);
        if self.rows.iter().all(|row| parts(row).is_empty()) {
            return Ok(());
        }
        let _span = timing::observer();
        let Some(gram) = self.grams.get(site.layer).and_then(Option::as_ref) else {
            candle_core::bail!("This is a bug: the output projection of layer {} is not known", site.layer)
        };
        // Where a layer reads another's keys, it attends on their device.
        let gram = &transfer::moved(gram, v.device())?;
        let lengths = &key_lengths(v, gram)?;
        let gate = gate.map(|gate| gate.to_dtype(DType::F32)?.reshape((l, heads, d))).transpose()?;
        let (at, bounds) = (site.relative(), site.borders(&self.bounds));
        let (spans, keys) = (self.rows.len(), self.keys.len());
        let size = heads * spans * keys;
        let mut values = vec![0.0; size];
        let mut outputs = vec![0.0; size];
        let segments: Vec<Range<usize>> =
            self.keys.iter().map(|span| segments_of(span, &self.bounds)).collect();
        let carried = Carried { lengths, gram, gate: gate.as_ref() };
        for (nth, row) in self.rows.iter().enumerate() {
            let part = parts(row);
            if part.is_empty() {
                continue;
            }
            let rows = part.start - site.offset..part.end - site.offset;
            let of = RowSums { site: &at, rows, bounds: &bounds };
            let sums = length_sums([q, k, v], &carried, &of, &segments)?;
            for (i, (value, output)) in sums.values.iter().zip(&sums.outputs).enumerate() {
                let place = (i / keys * spans + nth) * keys + i % keys;
                values[place] += value / row.len() as f64;
                outputs[place] += output / row.len() as f64;
            }
        }
        let zeros = || Lengths { heads, values: vec![0.0; size], outputs: vec![0.0; size] };
        let layer = self.layers.entry(site.layer).or_insert_with(zeros);
        layer.values.iter_mut().zip(values).for_each(|(sum, part)| *sum += part);
        layer.outputs.iter_mut().zip(outputs).for_each(|(sum, part)| *sum += part);
        Ok(())
    }
}

/// A logit to attribute, or the difference of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Position of the logits.
    pub position: usize,
    /// Token of the logit.
    pub token: u32,
    /// Token whose logit is subtracted, if any.
    pub against: Option<u32>,
}

/// Attributes the logits of [`Target`]s to heads, spans and other components.
#[derive(Debug, Clone)]
pub struct Attribution {
    targets: Vec<Target>,
    /// Distinct target positions, ascending.
    positions: Vec<usize>,
    spans: Vec<Span>,
    /// Borders of segments that tile the prompt; each is in at most one span.
    bounds: Vec<usize>,
    gate: Option<Tensor>,
    /// By layer and position: each head's gated read from each span and from all other keys, (heads, spans + 1, head_dim).
    read: BTreeMap<(usize, usize), Read>,
    /// By layer and position: scales of the norm after the output projection, if there is one.
    scales: BTreeMap<(usize, usize), Vec<f32>>,
    /// By layer: bias of the output projection.
    biases: BTreeMap<usize, Vec<f32>>,
    /// By component and position: the vector it adds.
    parts: BTreeMap<(Component, usize), Vec<f32>>,
    /// By position: scales of the final norm, and its output.
    ends: BTreeMap<usize, [Vec<f32>; 2]>,
}

#[derive(Debug, Clone)]
struct Read {
    heads: usize,
    head_dim: usize,
    values: Vec<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Component {
    Embedding,
    Bias(usize),
    LinearAttention(usize),
    FeedForward(usize),
    LayerInput(usize),
}

impl Component {
    fn name(self) -> String {
        match self {
            Component::Embedding => "embedding".to_owned(),
            Component::Bias(layer) => format!("attention_bias[{layer}]"),
            Component::LinearAttention(layer) => format!("linear_attention[{layer}]"),
            Component::FeedForward(layer) => format!("feed_forward[{layer}]"),
            Component::LayerInput(layer) => format!("layer_input[{layer}]"),
        }
    }
}

/// Terms of the targets' logits; each target's terms sum to its logit or logit difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Attributions {
    /// Softmax layers, ascending.
    pub layers: Vec<usize>,
    /// f32 `[targets, layers, heads, spans + 1]`; the last is for keys outside all spans.
    pub heads: Array4<f32>,
    /// Names of the other components: `embedding`, `feed_forward[3]`, `linear_attention[2]`, `layer_input[0]`, `attention_bias[1]`.
    pub parts: Vec<String>,
    /// f32 `[targets, parts]`.
    pub other: Array2<f32>,
}

/// A target that cannot be attributed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(String);

impl Attribution {
    /// Attributes `targets` in a prompt of `tokens` tokens to `spans`.
    pub fn new(
        targets: Vec<Target>,
        spans: Vec<Span>,
        tokens: usize,
    ) -> std::result::Result<Self, TargetError> {
        if let Some(target) = targets.iter().find(|target| target.position >= tokens) {
            return Err(TargetError(format!(
                "a target is at position {}, and there are {tokens} tokens; positions count from 0",
                target.position
            )));
        }
        if !targets.is_empty() {
            let mut order: Vec<&Span> = spans.iter().filter(|span| !span.is_empty()).collect();
            order.sort_by_key(|span| span.start);
            if let Some(pair) = order.windows(2).find(|pair| pair[1].start < pair[0].end) {
                return Err(TargetError(format!(
                    "targets need spans without common tokens, and `{}` and `{}` share some; leave one out",
                    pair[0].label, pair[1].label
                )));
            }
        }
        let mut positions: Vec<usize> = targets.iter().map(|target| target.position).collect();
        positions.sort_unstable();
        positions.dedup();
        let mut bounds = borders(&spans);
        bounds.extend([0, tokens]);
        bounds.sort_unstable();
        bounds.dedup();
        let (read, scales, biases) = Default::default();
        let (parts, ends) = Default::default();
        Ok(Attribution { targets, positions, spans, bounds, gate: None, read, scales, biases, parts, ends })
    }

    fn within(&self, offset: usize, l: usize) -> impl Iterator<Item = usize> {
        self.positions.iter().copied().filter(move |position| (offset..offset + l).contains(position))
    }

    /// The span of a segment; one past the last span if it is in none.
    fn span_of(&self, segment: Range<usize>) -> usize {
        let holds = |span: &Span| span.start <= segment.start && segment.end <= span.end && !span.is_empty();
        self.spans.iter().position(holds).unwrap_or(self.spans.len())
    }

    /// Returns the terms of the targets, or an error if layers have different numbers of heads. `head_outputs` returns a layer's output
    /// projection, f32 (heads, head_dim, hidden), and `head_rows` the output head's rows for tokens, f32 (tokens, hidden). `cap`: the logits'
    /// soft cap.
    pub fn finish(
        &self,
        head_outputs: impl Fn(usize) -> Result<Option<Tensor>>,
        head_rows: impl Fn(&[u32]) -> Result<Tensor>,
        cap: Option<f64>,
    ) -> Result<Attributions> {
        let mut layers: Vec<usize> = self.read.keys().map(|(layer, _)| *layer).collect();
        layers.dedup();
        let mut parts: Vec<Component> = self.parts.keys().map(|(part, _)| *part).collect();
        parts.extend(self.biases.keys().map(|layer| Component::Bias(*layer)));
        parts.sort_unstable();
        parts.dedup();
        let spans = self.spans.len() + 1;
        let heads = self.read.values().next().map_or(0, |read| read.heads);
        if self.read.values().any(|read| read.heads != heads) {
            candle_core::bail!("layers with different numbers of heads: one array cannot hold both");
        }
        let mut found = Attributions {
            heads: Array4::zeros((self.targets.len(), layers.len(), heads, spans)),
            parts: parts.iter().map(|part| part.name()).collect(),
            other: Array2::zeros((self.targets.len(), parts.len())),
            layers,
        };
        // Gradient of each target's logit with respect to the residual stream.
        let worth = self.targets.iter().map(|target| {
            let end = self.ends.get(&target.position).ok_or_else(|| missing("the final norm"))?;
            let row = |token: u32| -> Result<Vec<f64>> {
                let row: Vec<f32> = transfer::fetch(&head_rows(&[token])?)?;
                let logit = dot(&row, &end[1]);
                let frozen = match cap {
                    Some(cap) if logit != 0.0 => (logit / cap).tanh() * cap / logit,
                    _ => 1.0,
                };
                Ok(row.into_iter().map(|w| f64::from(w) * frozen).collect())
            };
            let (of, against) = (row(target.token)?, target.against.map(row).transpose()?);
            let of = of.into_iter().enumerate();
            let above = of.map(|(i, w)| w - against.as_ref().map_or(0.0, |other| other[i]));
            Ok(above.zip(&end[0]).map(|(w, scale)| w * f64::from(*scale)).collect::<Vec<f64>>())
        });
        let worth = worth.collect::<Result<Vec<_>>>()?;
        for (l, &layer) in found.layers.iter().enumerate() {
            let outputs = head_outputs(layer)?.ok_or_else(|| missing("an output projection"))?;
            let outputs = transfer::moved(&outputs, &Device::Cpu)?;
            for (t, target) in self.targets.iter().enumerate() {
                let at = (layer, target.position);
                let read = self.read.get(&at).ok_or_else(|| missing("a layer"))?;
                let behind = scaled(&worth[t], self.scales.get(&at));
                let behind: Vec<f32> = behind.into_iter().map(|x| x as f32).collect();
                let hidden = behind.len();
                let behind = transfer::upload(behind, (hidden, 1), &Device::Cpu)?;
                // (heads, head_dim): gradient with respect to each head's read.
                let of_read = outputs.reshape((heads * read.head_dim, hidden))?.matmul(&behind)?;
                let of_read: Vec<f32> = transfer::fetch(&of_read)?;
                for (head, of_head) in of_read.chunks_exact(read.head_dim).enumerate() {
                    for span in 0..spans {
                        let from = (head * spans + span) * read.head_dim;
                        found.heads[[t, l, head, span]] =
                            dot(of_head, &read.values[from..from + read.head_dim]) as f32;
                    }
                }
            }
        }
        for (p, part) in parts.iter().enumerate() {
            for (t, target) in self.targets.iter().enumerate() {
                found.other[[t, p]] = match part {
                    Component::Bias(layer) => {
                        let scales = self.scales.get(&(*layer, target.position));
                        let bias = self.biases.get(layer).ok_or_else(|| missing("a bias"))?;
                        worth_of(&scaled(&worth[t], scales), bias)
                    }
                    part => {
                        let added = self.parts.get(&(*part, target.position));
                        worth_of(&worth[t], added.ok_or_else(|| missing("a term"))?)
                    }
                };
            }
        }
        Ok(found)
    }
}

fn missing(what: &str) -> candle_core::Error {
    candle_core::Error::msg(format!("This is a bug: {what} was not shown at a target"))
}

/// The gradient before a norm that multiplies by `scales`.
fn scaled(worth: &[f64], scales: Option<&Vec<f32>>) -> Vec<f64> {
    match scales {
        Some(scales) => worth.iter().zip(scales).map(|(w, scale)| w * f64::from(*scale)).collect(),
        None => worth.to_vec(),
    }
}

fn worth_of(worth: &[f64], added: &[f32]) -> f32 {
    worth.iter().zip(added).map(|(w, x)| w * f64::from(*x)).sum::<f64>() as f32
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn host_rows(x: &Tensor) -> Result<Vec<Vec<f32>>> {
    let width = x.dim(1)?;
    let all: Vec<f32> = transfer::fetch(x)?;
    Ok(all.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect())
}

impl Observer for Attribution {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        match point {
            Point::Attention(site) => {
                Wanted::inputs(self.positions.last().is_some_and(|last| *last >= site.offset))
            }
            Point::LinearAttention(_) => Wanted::default(),
            Point::Residual { offset, l } => {
                let targets = self.within(offset, l).map(|position| position - offset).collect();
                Wanted { targets, ..Wanted::default() }
            }
        }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Gate(gate) => {
                self.gate = Some(gate.clone());
                Ok(())
            }
            Event::Attention { site, q, k, v } if self.wants(Point::Attention(site)).inputs => {
                self.add_rows(site, q, k, v)
            }
            Event::Term(offset, term) => self.add_term(offset, term),
            _ => Ok(()),
        }
    }
}

impl Attribution {
    fn add_rows(&mut self, site: &Site, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<()> {
        let _span = timing::observer();
        let gate = self.gate.take();
        let (l, heads, head_dim) = q.dims3()?;
        let (at, bounds) = (site.relative(), site.borders(&self.bounds));
        let spans = self.spans.len() + 1;
        let in_span: Vec<usize> = self.bounds.windows(2).map(|ends| self.span_of(ends[0]..ends[1])).collect();
        let positions: Vec<usize> = self.within(site.offset, l).collect();
        // Consecutive positions are read together.
        let runs = positions.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(ROWS));
        let mut found = Vec::new();
        for run in runs {
            let row = run[0] - site.offset;
            let of = RowSums { site: &at, rows: row..row + run.len(), bounds: &bounds };
            let read = value_sums([q, k, v], &of)?;
            let of_run =
                |gate: &Tensor| transfer::fetch(&gate.narrow(0, row, run.len())?.to_dtype(DType::F32)?);
            let gate: Option<Vec<f32>> = gate.as_ref().map(of_run).transpose()?;
            let read: Vec<f32> = transfer::fetch(&read)?;
            for (nth, &position) in run.iter().enumerate() {
                let mut values = vec![0.0; heads * spans * head_dim];
                for head in 0..heads {
                    for (segment, &span) in in_span.iter().enumerate() {
                        let from = ((head * in_span.len() + segment) * run.len() + nth) * head_dim;
                        let to = (head * spans + span) * head_dim;
                        for place in 0..head_dim {
                            let gate = gate
                                .as_ref()
                                .map_or(1.0, |gate| gate[(nth * heads + head) * head_dim + place]);
                            values[to + place] += read[from + place] * gate;
                        }
                    }
                }
                found.push(((site.layer, position), Read { heads, head_dim, values }));
            }
        }
        self.read.extend(found);
        Ok(())
    }

    fn add_term(&mut self, offset: usize, term: Term<'_>) -> Result<()> {
        let (part, x) = match term {
            Term::Embedding(x) => (Component::Embedding, x),
            Term::LinearAttention(layer, x) => (Component::LinearAttention(layer), x),
            Term::FeedForward(layer, x) => (Component::FeedForward(layer), x),
            Term::LayerInput(layer, x) => (Component::LayerInput(layer), x),
            Term::Final(scales, out) => {
                let rows: Vec<[Vec<f32>; 2]> =
                    host_rows(scales)?.into_iter().zip(host_rows(out)?).map(<[_; 2]>::from).collect();
                let positions: Vec<usize> = self.from(offset).take(rows.len()).collect();
                self.ends.extend(positions.into_iter().zip(rows));
                return Ok(());
            }
            Term::Attention(layer, scales, bias) => {
                if let Some(bias) = bias {
                    self.biases.insert(layer, transfer::fetch(bias)?);
                }
                if let Some(scales) = scales {
                    let rows = host_rows(scales)?;
                    let positions: Vec<usize> = self.from(offset).take(rows.len()).collect();
                    self.scales.extend(positions.into_iter().map(|p| (layer, p)).zip(rows));
                }
                return Ok(());
            }
        };
        let rows = host_rows(x)?;
        let positions: Vec<usize> = self.from(offset).take(rows.len()).collect();
        self.parts.extend(positions.into_iter().map(|p| (part, p)).zip(rows));
        Ok(())
    }

    fn from(&self, offset: usize) -> impl Iterator<Item = usize> {
        self.positions.iter().copied().filter(move |position| *position >= offset)
    }
}
