//! Attention masses in `choices[i].palimpsest`.
//!
//! Masses are summed over prompt spans. The span `generated` is 1 minus the row's other masses minus the attention sink.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ndarray::{ArrayView4, s};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::app::App;
use super::attention_request::{AttentionRequest, Encoding, Heads};
use super::causes::Causes;
use super::cite::{Answered, Cite, control_label};
use super::error::ApiError;
use super::evict;
use super::prompt::TokenPrompt;
use super::score::Scoring;
use super::writer::Piece;
use palimpsest_core::attention::{
    Attributions, EachMasses, LargestKeys, LayerHoles, Masses, NO_KEY, Selected, Values, tensors_file,
    uniform_share,
};
use palimpsest_core::engine::thread::Scope;
use palimpsest_core::engine::{Measured, RequestError, Rows};
use palimpsest_core::evict::Eviction;
use palimpsest_core::model::DecoderSpec;
use palimpsest_core::span::Span;
use palimpsest_run::observe::Measure;

#[derive(Debug, Clone)]
pub struct Asked {
    pub attention: AttentionRequest,
    pub prompt: TokenPrompt,
    pub eviction: Option<Eviction>,
    scoring: Option<Scoring>,
    causes: Option<Causes>,
    cite: Option<Cite>,
    /// Token texts of prompt and answer, if requested.
    texts: Vec<String>,
    /// Ascending indices of softmax-attention layers.
    softmax_layers: Vec<usize>,
}

/// Reply fields, and tensors serialised from flat arrays.
#[derive(Debug)]
pub struct Reply {
    fields: Value,
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
        let layers = spec.layers.iter().enumerate().filter(|(_, layer)| layer.attention().is_some());
        let softmax_layers = layers.map(|(layer, _)| layer).collect();
        for row in scoring.iter().flat_map(|scoring| [scoring.question.as_str(), "answer"]) {
            if !attention.rows.iter().any(|named| named == row) {
                attention.rows.push(row.to_owned());
            }
        }
        let cite = attention.cite.is_some().then(Cite::default);
        let eviction =
            attention.evict.as_ref().map(|evict| evict::eviction(evict, &prompt, spec)).transpose()?;
        let (causes, texts) = (None, Vec::new());
        let mut asked = Asked { attention, prompt, eviction, scoring, causes, cite, texts, softmax_layers };
        if let Some(options) = asked.attention.causes() {
            let field = if asked.attention.causes.is_some() { "causes" } else { "cite" };
            asked.causes = Some(Causes::new(options, &asked.prompt, asked.holes(spec)?, field)?);
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
    pub async fn settle(&mut self, app: &App, scope: Scope, measured: &Measured) -> Result<(), ApiError> {
        if let Some(scoring) = &mut self.scoring {
            scoring.settle(&app.neutral, &app.engine, scope).await?;
        }
        if let Some(causes) = &mut self.causes {
            let kinds = app.model.spec.layer_kinds();
            let engine = (&app.engine, scope);
            causes.settle(engine, &kinds, &self.prompt.tokens, &measured.generated).await?;
        }
        if self.attention.tokens {
            self.texts =
                app.model.token_texts(&[&self.prompt.tokens[..], &measured.generated.tokens].concat());
        }
        let keys = self.measured_keys();
        if let (Some(causes), Some(cite)) = (&self.causes, &mut self.cite) {
            cite.settle(causes, &Answered { prompt: self.prompt.tokens.len(), measured, keys: &keys });
        }
        Ok(())
    }

    pub fn readings(&self) -> usize {
        self.causes.as_ref().map_or(0, Causes::readings)
    }

    pub fn keys(&self) -> Vec<Span> {
        self.prompt.spans().cloned().collect()
    }

    /// Measured spans: reported ones, then the controls of citations.
    pub fn measured_keys(&self) -> Vec<Span> {
        let controls = self.causes.iter().filter(|_| self.cite.is_some()).flat_map(|causes| &causes.controls);
        let control = |(nth, stretch): (usize, &Range<usize>)| {
            Span::new(control_label(nth), stretch.clone()).as_overlay()
        };
        self.keys().into_iter().chain(controls.enumerate().map(control)).collect()
    }

    pub fn rows(&self) -> Result<Rows, ApiError> {
        let failed = |message: String| ApiError::field("palimpsest.rows", message);
        let rows = Rows::named(&self.attention.rows, &self.keys(), self.prompt.tokens.len());
        let mut rows = rows.map_err(|error| failed(error.to_string()))?;
        rows.answer.each |= self.attention.keeps_each();
        match rows.spans.iter().find(|row| row.is_empty()) {
            None => Ok(rows),
            Some(row) => {
                Err(failed(format!("row {:?} holds no token, so that it attends to nothing", row.label)))
            }
        }
    }

    pub fn holes(&self, spec: &DecoderSpec) -> Result<LayerHoles, ApiError> {
        let (keys, tokens) = (self.keys(), self.prompt.tokens.len());
        let holes = LayerHoles::new(&self.attention.knockouts, &keys, tokens, &spec.layer_kinds());
        holes.map_err(|error| ApiError::field("palimpsest.knockouts", error.to_string()))
    }

    /// The full reply of an answer; the thought is in no row. Omits per-token rows if already `told`.
    pub fn reply(&self, measured: &Measured, told: bool) -> Result<Reply, ApiError> {
        let n = self.prompt.tokens.len();
        let after = n..n + measured.generated.tokens.len();
        let generated = self.attention.answers().then(|| Span::new("generated", after.clone()));
        let spans: Vec<&Span> =
            self.prompt.tiles.iter().chain(&generated).chain(&self.prompt.overlays).collect();
        let mut fields = json!({"spans": spans});
        if let Some(eviction) = &self.eviction {
            fields["evict"] = evict::json(eviction, &self.prompt, measured.kept.as_ref());
        }
        if let Some(scoring) = &self.scoring {
            fields["score"] = scoring.json(&measured.masses, &self.keys());
        }
        if let Some(causes) = self.causes.as_ref().filter(|_| self.attention.causes.is_some()) {
            fields["causes"] = causes.json();
        }
        if let Some(cite) = &self.cite {
            fields["cite"] = cite.json().clone();
        }
        if self.attention.tokens {
            fields["tokens"] = json!(self.texts);
        }
        let mut tensors = Vec::new();
        if let Some(found) = &measured.attributions {
            tensors.extend(self.attributed(found, &mut fields));
        }
        let mut ranked = None;
        if !self.attention.rows.is_empty() {
            tensors.extend(self.of_rows(measured, after, told, &mut fields));
            let selected = measured.measurement.finish_selected(&measured.masses);
            if let Some(Selected { selected, forgone }) = selected.map_err(RequestError::from)? {
                for (name, found) in [("selected", selected), ("forgone", forgone)] {
                    tensors.push(self.by_layer(name, &measured.masses, |l, r| {
                        (found.slice(s![l, r, ..]).to_vec(), f32::NAN)
                    }));
                }
            }
            ranked = measured.top_keys.as_ref().map(|top_keys| {
                fields["top_positions"] = json!(top_keys.rows);
                self.ranked(top_keys)
            });
        }
        let mut reply = self.put(fields, tensors, ranked)?;
        if self.attention.token_ids {
            reply.fields["prompt_token_ids"] = json!(self.prompt.tokens);
            reply.fields["token_ids"] = json!(measured.generated.tokens);
        }
        Ok(reply)
    }

    /// Measures of the rows; `after` are the generated positions.
    fn of_rows(
        &self,
        measured: &Measured,
        after: Range<usize>,
        told: bool,
        fields: &mut Value,
    ) -> Vec<NamedTensor> {
        let (masses, attention) = (&measured.masses, &self.attention);
        let shown = |layers: &[usize]| self.shown(layers).map(|l| layers[l]).collect::<Vec<_>>();
        fields["rows"] = masses.rows.iter().map(|row| row.label.as_str()).collect();
        match &attention.heads {
            Heads::These { pairs, .. } => fields["heads"] = json!(pairs[..]),
            Heads::Mean | Heads::All => fields["layers"] = json!(shown(&masses.layers)),
        }
        if measured.generated.thought > 0 {
            fields["thought_tokens"] = measured.generated.thought.into();
        }

        let is_answer: Vec<bool> =
            masses.rows.iter().map(|row| row.end > after.start || row.label == "answer").collect();
        let sink = |l: usize, h: usize, r: usize| masses.sink.as_ref().map_or(0.0, |sink| sink[[l, h, r]]);
        let paid = |l: usize, h: usize, r: usize| is_answer[r].then(|| sink(l, h, r));
        let mass = self.masses("mass", masses.mass.view(), &masses.layers, &paid);
        let share = self.share(masses, &is_answer, after);
        let mut tensors = Vec::new();
        if attention.tells(Measure::Density) {
            tensors.push(density(&mass, &share));
        }
        let of_rows = [(Measure::Mass, mass), (Measure::Share, share)].into_iter();
        tensors.extend(of_rows.filter(|(name, _)| attention.tells(*name)).map(|(_, tensor)| tensor));
        if let Some(norms) = &measured.norms {
            for (measure, name, values) in [
                (Measure::ValueNorm, "value_norm", &norms.value_norm),
                (Measure::OutputNorm, "output_norm", &norms.output_norm),
            ] {
                if attention.tells(measure) {
                    tensors.push(self.masses(name, values.view(), &norms.layers, &|_, _, _| None));
                }
            }
        }
        if let Some(sink) = &masses.sink {
            let (_, heads, rows) = sink.dim();
            let (mut shape, groups) = self.groups(&masses.layers, heads);
            shape.push(rows);
            let values = means(&groups, |l, h| sink.slice(s![l, h, ..]).to_vec());
            tensors.push(NamedTensor("sink", shape, values));
        }
        // Heads of linear-attention layers cannot be requested singly.
        let delta = masses.delta.as_ref().filter(|_| !matches!(attention.heads, Heads::These { .. }));
        if let Some(delta) = delta {
            fields["delta_layers"] = json!(shown(&delta.layers));
            let paid = |_: usize, _: usize, r: usize| is_answer[r].then_some(0.0);
            tensors.push(self.masses("delta_share", delta.share.view(), &delta.layers, &paid));
        }
        tensors
            .extend(masses.each.as_ref().filter(|_| !told && attention.each()).map(|each| self.each(each)));
        tensors
    }

    /// Attributions of the target logits, always of all heads.
    fn attributed(&self, found: &Attributions, fields: &mut Value) -> [NamedTensor; 2] {
        let mut labels: Vec<&str> = self.prompt.spans().map(|key| key.label.as_str()).collect();
        labels.push(NO_SPAN);
        fields["attribution_layers"] = json!(found.layers);
        fields["attribution_spans"] = json!(labels);
        fields["parts"] = json!(found.parts);
        let heads = found.heads.iter().copied().collect();
        let other = found.other.iter().copied().collect();
        [
            NamedTensor("attribution", found.heads.shape().to_vec(), heads),
            NamedTensor("attribution_other", found.other.shape().to_vec(), other),
        ]
    }

    /// Rows of one streamed token.
    pub fn reply_rows(&self, rows: &[EachMasses]) -> Result<Reply, ApiError> {
        let each = rows.iter().map(|row| self.each(row)).reduce(|mut all, NamedTensor(_, shape, values)| {
            all.1[0] += shape[0];
            all.2.extend(values);
            all
        });
        self.put(json!({}), each.into_iter().collect(), None)
    }

    /// Masses [layers, heads, rows, spans] of the reported heads. Rows with a sink's weight have what is left to 1 on the span `generated`.
    fn masses(
        &self,
        name: &'static str,
        masses: ArrayView4<'_, f32>,
        layers: &[usize],
        sink: &dyn Fn(usize, usize, usize) -> Option<f32>,
    ) -> NamedTensor {
        let (_, heads, rows, _) = masses.dim();
        let row = |l: usize, h: usize, r: usize| {
            let paid = masses.slice(s![l, h, r, ..]).to_vec();
            self.row(&paid, |tiles| {
                let of_prompt: f64 = tiles.iter().map(|&x| f64::from(x)).sum();
                sink(l, h, r).map_or(0.0, |sink| (1.0 - of_prompt - f64::from(sink)).max(0.0) as f32)
            })
        };
        let (mut shape, groups) = self.groups(layers, heads);
        shape.extend([rows, self.columns()]);
        let values = means(&groups, |l, h| (0..rows).flat_map(|r| row(l, h, r)).collect());
        NamedTensor(name, shape, values)
    }

    /// Mass under uniform attention, [layers, rows, spans]; [heads, rows, spans] by each head's layer.
    fn share(&self, masses: &Masses, is_answer: &[bool], after: Range<usize>) -> NamedTensor {
        self.by_layer("share", masses, |l, r| {
            let window = masses.uniform.windows.get(l).copied().flatten();
            let generated = || uniform_share(masses.rows[r].range(), after.clone(), window) as f32;
            let paid = masses.uniform.share.slice(s![l, r, ..]).to_vec();
            (paid, if is_answer[r] { generated() } else { 0.0 })
        })
    }

    /// [layers, rows, spans], or [heads, rows, spans] by each head's layer, from a layer's and row's spans and the span `generated`.
    fn by_layer(
        &self,
        name: &'static str,
        masses: &Masses,
        of: impl Fn(usize, usize) -> (Vec<f32>, f32),
    ) -> NamedTensor {
        let (_, groups) = self.groups(&masses.layers, 1);
        let (mut values, count) = (Vec::new(), groups.len());
        for (l, _) in groups.into_iter().flatten() {
            for r in 0..masses.rows.len() {
                let (of_spans, generated) = of(l, r);
                values.extend(self.row(&of_spans, |_| generated));
            }
        }
        NamedTensor(name, vec![count, masses.rows.len(), self.columns()], values)
    }

    /// Per-token rows: [tokens, layers, spans], [tokens, layers, heads, spans] or [tokens, heads, spans].
    fn each(&self, each: &EachMasses) -> NamedTensor {
        let (_, heads, tokens, _) = each.mass.dim();
        let (axes, _) = self.groups(&self.softmax_layers, heads);
        let of_token = |t: usize| {
            let sink =
                |l: usize, h: usize, _: usize| Some(each.sink.as_ref().map_or(0.0, |sink| sink[[l, h, t]]));
            let mass = each.mass.slice(s![.., .., t..=t, ..]);
            self.masses("each", mass, &self.softmax_layers, &sink).2
        };
        let shape = [&[tokens][..], &axes, &[self.columns()]].concat();
        NamedTensor("each", shape, (0..tokens).flat_map(of_token).collect())
    }

    fn ranked(&self, top_keys: &LargestKeys) -> Ranked {
        let LargestKeys { layers, shape: [_, heads, positions, k], keys, weights, .. } = top_keys;
        let (mut shape, groups) = self.groups(layers, *heads);
        shape.extend([*positions, *k]);
        let size = positions * k;
        // Keys are ranked after averaging over heads, which leaves one head.
        let places = || groups.iter().flatten().map(|(l, head)| (l * heads + head) * size);
        Ranked {
            shape,
            keys: places().flat_map(|at| &keys[at..at + size]).copied().collect(),
            weights: places().flat_map(|at| &weights[at..at + size]).copied().collect(),
        }
    }

    /// Indices into `layers` of the reported ones.
    fn shown(&self, layers: &[usize]) -> impl Iterator<Item = usize> {
        let all = self.attention.layers.as_ref();
        (0..layers.len()).filter(move |&l| all.is_none_or(|all| all.contains(&layers[l])))
    }

    /// Groups of (layer index, head) that are averaged: all heads of a layer, or single heads. Also returns the group axes.
    fn groups(&self, layers: &[usize], heads: usize) -> (Vec<usize>, Vec<Vec<(usize, usize)>>) {
        let of_layers = self.shown(layers).map(|l| (0..heads).map(|h| (l, h)).collect::<Vec<_>>());
        match &self.attention.heads {
            Heads::These { pairs, .. } => {
                let place = |layer: usize| layers.iter().position(|&of| of == layer);
                let groups = pairs.iter().filter_map(|&(layer, head)| Some(vec![(place(layer)?, head)]));
                (vec![pairs.len()], groups.collect())
            }
            Heads::All => {
                (vec![self.shown(layers).count(), heads], of_layers.flatten().map(|one| vec![one]).collect())
            }
            Heads::Mean => (vec![self.shown(layers).count()], of_layers.collect()),
        }
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
        self.prompt.spans().count() + usize::from(self.attention.answers())
    }

    fn put(
        &self,
        mut fields: Value,
        tensors: Vec<NamedTensor>,
        ranked: Option<Ranked>,
    ) -> Result<Reply, ApiError> {
        if self.attention.encoding == Encoding::Json {
            let texts = if ranked.is_some() { self.texts.clone() } else { Vec::new() };
            return Ok(Reply { fields, tensors, ranked, texts });
        }
        let tensors = tensors.into_iter();
        let mut tensors: Vec<_> =
            tensors.map(|NamedTensor(name, shape, values)| (name, Values::F32(values), shape)).collect();
        if let Some(Ranked { shape, keys, weights }) = ranked {
            tensors.push(("top_keys", Values::U32(keys), shape.clone()));
            tensors.push(("top_weights", Values::F32(weights), shape));
        }
        if !tensors.is_empty() {
            let file = tensors_file(&tensors, None);
            let file = file.map_err(|error| ApiError::internal(format_args!("safetensors: {error}")))?;
            fields["data"] = STANDARD.encode(file).into();
        }
        Ok(Reply { fields, tensors: Vec::new(), ranked: None, texts: Vec::new() })
    }
}

impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.fields.as_object().into_iter().flatten() {
            map.serialize_entry(key, value)?;
        }
        for NamedTensor(name, shape, values) in &self.tensors {
            let element = |i: usize| values.get(i).copied().map(Element::Number);
            map.serialize_entry(name, &Nested { shape, at: 0, element: &element })?;
        }
        if let Some(Ranked { shape, keys, weights }) = &self.ranked {
            let element = |i: usize| {
                let (key, weight) = (keys[i], weights[i]);
                let text = self.texts.get(key as usize).map(String::as_str);
                (key != NO_KEY)
                    .then(|| text.map_or(Element::Key(key, weight), |text| Element::Named(key, weight, text)))
            };
            map.serialize_entry("top_keys", &Nested { shape, at: 0, element: &element })?;
        }
        map.end()
    }
}

/// Elements of a tensor from `at` on, as nested arrays.
struct Nested<'a> {
    shape: &'a [usize],
    at: usize,
    /// By row-major index; none for padding.
    element: &'a dyn Fn(usize) -> Option<Element<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Element<'a> {
    Number(f32),
    /// A token's index and weight.
    Key(u32, f32),
    Named(u32, f32, &'a str),
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Nested { shape, at, element } = *self;
        match shape {
            [] => element(at).serialize(serializer),
            [n] => serializer.collect_seq((at..at + n).filter_map(element)),
            [n, shape @ ..] => {
                let size: usize = shape.iter().product();
                serializer.collect_seq((0..*n).map(|i| Nested { shape, at: at + i * size, element }))
            }
        }
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
    let mean = |group: &Vec<(usize, usize)>| {
        let rows: Vec<Vec<f32>> = group.iter().map(|&(l, h)| of(l, h)).collect();
        let n = rows.len().max(1) as f64;
        let width = rows.first().map_or(0, Vec::len);
        let at = move |i: usize| (rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / n) as f32;
        (0..width).map(at)
    };
    groups.iter().flat_map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_of_their_type_and_the_shape_of_their_tensor() {
        let values = [0.1f32, 0.2, 0.3, 0.4, 0.5, 1e-9];
        let written = |values: &[f32], shape: &[usize]| {
            let element = |i: usize| values.get(i).copied().map(Element::Number);
            serde_json::to_string(&Nested { shape, at: 0, element: &element }).ok()
        };
        assert_eq!(written(&values, &[2, 3]).as_deref(), Some("[[0.1,0.2,0.3],[0.4,0.5,1e-9]]"));
        assert_eq!(written(&[], &[2, 0, 3]).as_deref(), Some("[[],[]]"));
        assert_eq!(written(&[f32::NAN], &[]).as_deref(), Some("null"));
    }
}
