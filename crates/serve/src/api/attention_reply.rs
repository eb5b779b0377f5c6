//! Attention masses in `choices[i].palimpsest`.
//!
//! Masses are summed over prompt spans. The span `generated` is 1 minus the row's other masses minus the attention sink.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ndarray::ArrayView4;
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use super::app::App;
use super::attention_request::{AttentionRequest, Encoding};
use super::causes::Causes;
use super::cite::{Answered, Cite, control_label};
use super::error::ApiError;
use super::heads::Heads;
use super::nested::{Elements, Nested};
use super::prompt::TokenPrompt;
use super::score::Scoring;
use super::writer::Piece;
use palimpsest_core::attention::{Attributions, EachMasses, LargestKeys, LayerHoles, Masses, uniform_share};
use palimpsest_core::engine::Measured;
use palimpsest_core::engine::Rows;
use palimpsest_core::model::DecoderSpec;
use palimpsest_core::span::Span;
use palimpsest_run::observe::Measure;

#[derive(Debug, Clone)]
pub struct Asked {
    pub attention: AttentionRequest,
    pub prompt: TokenPrompt,
    scoring: Option<Scoring>,
    causes: Option<Causes>,
    cite: Option<Cite>,
    /// Token texts of prompt and answer, if requested.
    texts: Vec<String>,
    /// Ascending indices of softmax-attention layers.
    softmax_layers: Vec<usize>,
}

/// Reply fields, and tensors serialised from flat arrays.
#[derive(Debug, Default)]
pub struct Reply {
    fields: Map<String, Value>,
    tensors: Vec<NamedTensor>,
    ranked: Option<Ranked>,
    texts: Vec<String>,
}

/// Label of keys outside all spans, as in the metadata of `palimpsest trace`.
const NO_SPAN: &str = "(none)";

/// Name, shape and row-major elements.
#[derive(Debug)]
struct NamedTensor(&'static str, Vec<usize>, Vec<f32>);

/// Top keys and weights: [layers, positions, k], [layers, heads, positions, k] or [heads, positions, k].
#[derive(Debug)]
struct Ranked {
    shape: Vec<usize>,
    keys: Vec<u32>,
    weights: Vec<f32>,
}

impl Asked {
    /// Adds the rows that a score needs.
    pub fn new(
        mut attention: AttentionRequest,
        prompt: TokenPrompt,
        scoring: Option<Scoring>,
        spec: &DecoderSpec,
    ) -> Result<Self, ApiError> {
        let cite = attention.cite.then(Cite::default);
        let layers = spec.layers.iter().enumerate().filter(|(_, layer)| layer.attention().is_some());
        let softmax_layers = layers.map(|(layer, _)| layer).collect();
        for row in scoring.iter().flat_map(|scoring| [scoring.question.as_str(), "answer"]) {
            if !attention.rows.iter().any(|named| named == row) {
                attention.rows.push(row.to_owned());
            }
        }
        let field = if attention.tells_causes { "causes" } else { "cite" };
        let options = attention.causes.clone();
        let mut asked =
            Asked { attention, prompt, scoring, causes: None, cite, texts: Vec::new(), softmax_layers };
        if let Some(options) = options {
            asked.causes = Some(Causes::new(&options, &asked.prompt, asked.holes(spec)?, field)?);
        }
        Ok(asked)
    }

    pub fn hear(&mut self, piece: &Piece, is_token: bool) {
        if let Some(cite) = &mut self.cite {
            cite.hear(piece, is_token);
        }
    }

    /// Citations of the last settled answer in OpenAI's shape, if requested.
    pub fn annotations(&self) -> Option<&[Value]> {
        self.cite.as_ref().map(Cite::annotations)
    }

    /// Awaits the neutral request of a score and the effects on the answer, if requested.
    pub async fn settle(&mut self, app: &App, measured: &Measured) -> Result<(), ApiError> {
        if let Some(scoring) = &mut self.scoring {
            scoring.settle(&app.neutral, &app.engine, app.cancelled()).await?;
        }
        if let Some(causes) = &mut self.causes {
            let kinds = app.model.spec.layer_kinds();
            let answer = (self.prompt.tokens.as_slice(), &measured.generated, kinds.as_slice());
            causes.settle(&app.engine, app.cancelled(), answer).await?;
        }
        if self.attention.tokens {
            self.texts =
                app.model.token_texts(&[&self.prompt.tokens[..], &measured.generated.tokens].concat());
        }
        if let (Some(causes), true) = (&self.causes, self.cite.is_some()) {
            let keys = self.measured_keys();
            let answered = Answered { prompt: self.prompt.tokens.len(), measured, keys: &keys };
            if let Some(cite) = &mut self.cite {
                cite.settle(causes, &answered);
            }
        }
        Ok(())
    }

    pub fn readings(&self) -> usize {
        self.causes.as_ref().map_or(0, Causes::readings)
    }

    pub fn keys(&self) -> Vec<Span> {
        self.prompt.tiles.iter().chain(&self.prompt.overlays).cloned().collect()
    }

    /// Measured spans: reported ones, then the controls of citations.
    pub fn measured_keys(&self) -> Vec<Span> {
        let controls = self.causes.iter().filter(|_| self.cite.is_some()).flat_map(|causes| &causes.controls);
        let control = |(nth, stretch): (usize, &std::ops::Range<usize>)| {
            Span::new(control_label(nth), stretch.clone()).as_overlay()
        };
        self.keys().into_iter().chain(controls.enumerate().map(control)).collect()
    }

    pub fn rows(&self) -> Result<Rows, ApiError> {
        let failed = |error: palimpsest_core::attention::SpanError| {
            ApiError::field("palimpsest.rows", error.to_string())
        };
        let mut rows =
            Rows::named(&self.attention.rows, &self.keys(), self.prompt.tokens.len()).map_err(failed)?;
        rows.answer.each |= self.attention.keeps_each();
        match rows.spans.iter().find(|row| row.is_empty()) {
            None => Ok(rows),
            Some(row) => {
                let message = format!("row {:?} holds no token, so that it attends to nothing", row.label);
                Err(ApiError::field("palimpsest.rows", message))
            }
        }
    }

    pub fn holes(&self, spec: &DecoderSpec) -> Result<LayerHoles, ApiError> {
        let (keys, tokens) = (self.keys(), self.prompt.tokens.len());
        let holes = LayerHoles::new(&self.attention.knockouts, &keys, tokens, &spec.layer_kinds());
        holes.map_err(|error| ApiError::field("palimpsest.knockouts", error.to_string()))
    }

    fn tells(&self, layer: usize) -> bool {
        self.attention.layers.as_ref().is_none_or(|layers| layers.contains(&layer))
    }

    /// The full reply of an answer; the thought is in no row. Omits per-token rows if already `told`.
    pub fn reply(&self, measured: &Measured, told: bool) -> Result<Reply, ApiError> {
        let mut reply = self.measured(measured, told)?;
        if self.attention.token_ids {
            reply.fields.insert("prompt_token_ids".to_owned(), json!(self.prompt.tokens));
            reply.fields.insert("token_ids".to_owned(), json!(measured.generated.tokens));
        }
        Ok(reply)
    }

    fn measured(&self, measured: &Measured, told: bool) -> Result<Reply, ApiError> {
        let masses = &measured.masses;
        let (generated, thought) = (measured.generated.tokens.len(), measured.generated.thought);
        let n = self.prompt.tokens.len();
        let after = n..n + generated;
        let generated = self.attention.answers().then(|| Span::new("generated", after.clone()));
        let spans: Vec<&Span> =
            self.prompt.tiles.iter().chain(&generated).chain(&self.prompt.overlays).collect();
        let rows: Vec<&str> = masses.rows.iter().map(|row| row.label.as_str()).collect();
        let layers: Vec<usize> = masses.layers.iter().copied().filter(|&layer| self.tells(layer)).collect();
        let mut reply = Map::new();
        reply.insert("spans".to_owned(), json!(spans));
        if let Some(scoring) = &self.scoring {
            reply.insert("score".to_owned(), scoring.json(masses, &self.keys()));
        }
        if let Some(causes) = self.causes.as_ref().filter(|_| self.attention.tells_causes) {
            reply.insert("causes".to_owned(), causes.json());
        }
        if let Some(cite) = &self.cite {
            reply.insert("cite".to_owned(), cite.json().clone());
        }
        if self.attention.tokens {
            reply.insert("tokens".to_owned(), json!(self.texts));
        }
        let mut tensors = Vec::new();
        if let Some(found) = &measured.attributions {
            tensors.extend(self.attributed(found, &mut reply));
        }
        if self.attention.rows.is_empty() {
            return self.put(reply, tensors, None);
        }
        reply.insert("rows".to_owned(), json!(rows));
        match &self.attention.heads {
            Heads::These { pairs, .. } => reply.insert("heads".to_owned(), json!(pairs[..])),
            Heads::Mean | Heads::All => reply.insert("layers".to_owned(), json!(layers)),
        };
        if thought > 0 {
            reply.insert("thought_tokens".to_owned(), thought.into());
        }

        let is_answer: Vec<bool> =
            masses.rows.iter().map(|row| row.end > n || row.label == "answer").collect();
        let sink = masses.sink.as_ref().map(|sink| sink.view());
        let paid = |l: usize, h: usize, r: usize| sink.as_ref().map_or(0.0, |sink| sink[[l, h, r]]);
        let mass = self.masses(("mass", masses.mass.view()), &masses.layers, &paid, &is_answer);
        let share = self.share(masses, &is_answer, after);
        if self.attention.tells(Measure::Density) {
            tensors.push(density(&mass, &share));
        }
        let of_rows = [(Measure::Mass, mass), (Measure::Share, share)];
        tensors.extend(
            of_rows.into_iter().filter(|(name, _)| self.attention.tells(*name)).map(|(_, tensor)| tensor),
        );
        if let Some(norms) = &measured.norms {
            for (measure, name, values) in [
                (Measure::ValueNorm, "value_norm", &norms.value_norm),
                (Measure::OutputNorm, "output_norm", &norms.output_norm),
            ] {
                if self.attention.tells(measure) {
                    tensors.push(self.masses((name, values.view()), &norms.layers, &|_, _, _| 0.0, &[]));
                }
            }
        }
        if let Some(sink) = &masses.sink {
            let (_, heads, rows) = sink.dim();
            let (mut shape, groups) = self.groups(&masses.layers, heads);
            shape.push(rows);
            let values = means(&groups, |l, h| sink.slice(ndarray::s![l, h, ..]).to_vec());
            tensors.push(NamedTensor("sink", shape, values));
        }
        // Heads of linear-attention layers cannot be requested singly.
        let delta = masses.delta.as_ref().filter(|_| !matches!(self.attention.heads, Heads::These { .. }));
        if let Some(delta) = delta {
            let layers: Vec<usize> =
                delta.layers.iter().copied().filter(|&layer| self.tells(layer)).collect();
            reply.insert("delta_layers".to_owned(), json!(layers));
            let share = ("delta_share", delta.share.view());
            tensors.push(self.masses(share, &delta.layers, &|_, _, _| 0.0, &is_answer));
        }
        if let Some(each) = masses.each.as_ref().filter(|_| !told && self.attention.each()) {
            tensors.push(self.each(each));
        }
        let ranked = measured.top_keys.as_ref().map(|top_keys| {
            reply.insert("top_positions".to_owned(), json!(top_keys.rows));
            self.ranked(top_keys)
        });
        self.put(reply, tensors, ranked)
    }

    /// Attributions of the target logits, always of all heads.
    fn attributed(&self, found: &Attributions, reply: &mut Map<String, Value>) -> [NamedTensor; 2] {
        let mut labels: Vec<String> = self.keys().into_iter().map(|key| key.label).collect();
        labels.push(NO_SPAN.to_owned());
        reply.insert("attribution_layers".to_owned(), json!(found.layers));
        reply.insert("attribution_spans".to_owned(), json!(labels));
        reply.insert("parts".to_owned(), json!(found.parts));
        let heads = found.heads.iter().copied().collect();
        let other = found.other.iter().copied().collect();
        [
            NamedTensor("attribution", found.heads.shape().to_vec(), heads),
            NamedTensor("attribution_other", found.other.shape().to_vec(), other),
        ]
    }

    /// Rows of one streamed token.
    pub fn reply_rows(&self, rows: &[EachMasses]) -> Result<Reply, ApiError> {
        let mut named: Option<NamedTensor> = None;
        for row in rows {
            let NamedTensor(_, shape, values) = self.each(row);
            match &mut named {
                None => named = Some(NamedTensor("each", shape, values)),
                Some(NamedTensor(_, all, before)) => {
                    if let (Some(first), Some(more)) = (all.first_mut(), shape.first()) {
                        *first += more;
                    }
                    before.extend(values);
                }
            }
        }
        self.put(Map::new(), named.into_iter().collect(), None)
    }

    /// Masses [layers, heads, rows, spans] of the reported heads, including the span `generated`.
    fn masses(
        &self,
        (name, masses): (&'static str, ArrayView4<'_, f32>),
        layers: &[usize],
        sink: &dyn Fn(usize, usize, usize) -> f32,
        is_answer: &[bool],
    ) -> NamedTensor {
        let (_, heads, rows, _) = masses.dim();
        let of = |l: usize, h: usize| -> Vec<f32> {
            let row = |r: usize| {
                let paid = masses.slice(ndarray::s![l, h, r, ..]).to_vec();
                self.with_generated(&paid, sink(l, h, r), is_answer.get(r) == Some(&true))
            };
            (0..rows).flat_map(row).collect()
        };
        let (mut shape, groups) = self.groups(layers, heads);
        shape.extend([rows, self.columns()]);
        NamedTensor(name, shape, means(&groups, of))
    }

    /// Mass under uniform attention, [layers, rows, spans]; [heads, rows, spans] by each head's layer.
    fn share(&self, masses: &Masses, is_answer: &[bool], after: std::ops::Range<usize>) -> NamedTensor {
        let share = &masses.uniform.share;
        let mut values = Vec::new();
        let told: Vec<usize> = match &self.attention.heads {
            Heads::These { pairs, .. } => {
                let place = |layer: &usize| masses.layers.iter().position(|of| of == layer);
                pairs.iter().filter_map(|(layer, _)| place(layer)).collect()
            }
            Heads::Mean | Heads::All => self.told(&masses.layers),
        };
        for &l in &told {
            for (r, row) in masses.rows.iter().enumerate() {
                let paid = share.slice(ndarray::s![l, r, ..]).to_vec();
                values.extend(self.row(&paid, |_| match is_answer.get(r) {
                    Some(true) => {
                        let window = masses.uniform.windows.get(l).copied().flatten();
                        uniform_share(row.range(), after.clone(), window) as f32
                    }
                    _ => 0.0,
                }));
            }
        }
        NamedTensor("share", vec![told.len(), masses.rows.len(), self.columns()], values)
    }

    /// Per-token rows: [tokens, layers, spans], [tokens, layers, heads, spans] or [tokens, heads, spans].
    fn each(&self, each: &EachMasses) -> NamedTensor {
        let (_, heads, tokens, _) = each.mass.dim();
        let (axes, groups) = self.groups(&self.softmax_layers, heads);
        let of_token = |t: usize| {
            means(&groups, |l, h| {
                let paid = each.mass.slice(ndarray::s![l, h, t, ..]).to_vec();
                let sink = each.sink.as_ref().map_or(0.0, |sink| sink[[l, h, t]]);
                self.with_generated(&paid, sink, true)
            })
        };
        let shape = [&[tokens][..], &axes, &[self.columns()]].concat();
        NamedTensor("each", shape, (0..tokens).flat_map(of_token).collect())
    }

    fn ranked(&self, top_keys: &LargestKeys) -> Ranked {
        let LargestKeys { layers, shape: [_, heads, positions, k], keys, weights, .. } = top_keys;
        let (mut shape, groups) = self.groups(layers, *heads);
        shape.extend([*positions, *k]);
        let (mut of_keys, mut of_weights) = (Vec::new(), Vec::new());
        // Keys are ranked after averaging over heads, which leaves one head.
        for (l, head) in groups.into_iter().flatten() {
            let at = (l * heads + head) * positions * k;
            of_keys.extend_from_slice(&keys[at..at + positions * k]);
            of_weights.extend_from_slice(&weights[at..at + positions * k]);
        }
        Ranked { shape, keys: of_keys, weights: of_weights }
    }

    /// Indices into `layers` of the reported ones.
    fn told(&self, layers: &[usize]) -> Vec<usize> {
        (0..layers.len()).filter(|&l| self.tells(layers[l])).collect()
    }

    /// Groups of (layer index, head) that are averaged: all heads of a layer, or single heads. Also returns the group axes.
    fn groups(&self, layers: &[usize], heads: usize) -> (Vec<usize>, Vec<Vec<(usize, usize)>>) {
        let told = self.told(layers);
        let of_layer = |l: usize| (0..heads).map(move |h| (l, h));
        match &self.attention.heads {
            Heads::These { pairs, .. } => {
                let place = |layer: usize| layers.iter().position(|&of| of == layer);
                let groups = pairs.iter().filter_map(|&(layer, head)| Some(vec![(place(layer)?, head)]));
                (vec![pairs.len()], groups.collect())
            }
            Heads::All => {
                let groups = told.iter().flat_map(|&l| of_layer(l)).map(|one| vec![one]).collect();
                (vec![told.len(), heads], groups)
            }
            Heads::Mean => (vec![told.len()], told.iter().map(|&l| of_layer(l).collect()).collect()),
        }
    }

    fn with_generated(&self, paid: &[f32], sink: f32, is_answer: bool) -> Vec<f32> {
        self.row(paid, |tiles| {
            let of_prompt: f64 = tiles.iter().map(|&x| f64::from(x)).sum();
            let rest = (1.0 - of_prompt - f64::from(sink)).max(0.0) as f32;
            if is_answer { rest } else { 0.0 }
        })
    }

    /// Inserts the value of `generated` between tiles and ranges, if rows of generated tokens are reported.
    fn row(&self, paid: &[f32], generated: impl FnOnce(&[f32]) -> f32) -> Vec<f32> {
        let (tiles, overlays) = paid.split_at(self.prompt.tiles.len().min(paid.len()));
        let mut row = tiles.to_vec();
        if self.attention.answers() {
            row.push(generated(tiles));
        }
        // The remaining columns are the controls of citations.
        row.extend(overlays.iter().take(self.prompt.overlays.len()));
        row
    }

    fn columns(&self) -> usize {
        self.prompt.tiles.len() + usize::from(self.attention.answers()) + self.prompt.overlays.len()
    }

    fn put(
        &self,
        mut fields: Map<String, Value>,
        tensors: Vec<NamedTensor>,
        ranked: Option<Ranked>,
    ) -> Result<Reply, ApiError> {
        if self.attention.encoding == Encoding::Json {
            let texts = if ranked.is_some() { self.texts.clone() } else { Vec::new() };
            return Ok(Reply { fields, tensors, ranked, texts });
        }
        if tensors.is_empty() && ranked.is_none() {
            return Ok(Reply { fields, ..Reply::default() });
        }
        let of_f32 = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut bytes: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)> = (tensors.into_iter())
            .map(|NamedTensor(name, shape, values)| (name, Dtype::F32, shape, of_f32(&values)))
            .collect();
        if let Some(Ranked { shape, keys, weights }) = ranked {
            let keys = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            bytes.push(("top_keys", Dtype::U32, shape.clone(), keys));
            bytes.push(("top_weights", Dtype::F32, shape, of_f32(&weights)));
        }
        let failed =
            |error: safetensors::SafeTensorError| ApiError::internal(format!("safetensors: {error}"));
        let views = (bytes.iter())
            .map(|(name, dtype, shape, bytes)| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        let file = safetensors::serialize(views, None).map_err(failed)?;
        drop(bytes);
        fields.insert("data".to_owned(), STANDARD.encode(file).into());
        Ok(Reply { fields, ..Reply::default() })
    }
}

impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in &self.fields {
            map.serialize_entry(key, value)?;
        }
        for NamedTensor(name, shape, values) in &self.tensors {
            map.serialize_entry(name, &Nested { elements: Elements::Numbers(values), shape })?;
        }
        if let Some(Ranked { shape, keys, weights }) = &self.ranked {
            let elements = match self.texts.as_slice() {
                [] => Elements::Pairs(keys, weights),
                texts => Elements::Named(keys, weights, texts),
            };
            map.serialize_entry("top_keys", &Nested { elements, shape })?;
        }
        map.end()
    }
}

/// Masses [.., rows, spans] divided by shares [.., rows, spans]; NaN where a row sees nothing of a span. Heads of a layer share a share.
fn density(mass: &NamedTensor, share: &NamedTensor) -> NamedTensor {
    let (NamedTensor(_, shape, masses), NamedTensor(_, of_share, shares)) = (mass, share);
    let block: usize = of_share.iter().skip(1).product::<usize>().max(1);
    let heads = if shape.len() > of_share.len() { shape[1] } else { 1 };
    let at = |i: usize| shares.get(i / block / heads * block + i % block).copied().unwrap_or(0.0);
    let values = masses.iter().enumerate().map(|(i, mass)| match at(i) {
        share if share > 0.0 => mass / share,
        _ => f32::NAN,
    });
    NamedTensor("density", shape.clone(), values.collect())
}

/// Mean over each group of heads, concatenated.
fn means(groups: &[Vec<(usize, usize)>], of: impl Fn(usize, usize) -> Vec<f32>) -> Vec<f32> {
    let of_group = |group: &Vec<(usize, usize)>| mean(group.iter().map(|&(l, h)| of(l, h)).collect());
    groups.iter().flat_map(of_group).collect()
}

fn mean(rows: Vec<Vec<f32>>) -> Vec<f32> {
    let n = rows.len().max(1) as f64;
    let width = rows.first().map_or(0, Vec::len);
    let at = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / n;
    (0..width).map(|i| at(i) as f32).collect()
}
