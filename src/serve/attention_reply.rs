//! The extension: attention masses as `choices[i].palimpsest` holds them.
//!
//! Masses are summed over the prompt's spans. What generated tokens pay to each other is what a row lacks to 1, less the share
//! of attention sinks: the span `generated`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ndarray::{ArrayView2, ArrayView4, Axis};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};

use super::attention_request::AttentionRequest;
use super::error::ApiError;
use super::prompt::TokenPrompt;
use crate::attention::{EachMasses, LargestKeys, Masses, NO_KEY, uniform_share};
use crate::engine::Rows;
use crate::engine::thread::Measured;
use crate::model::DecoderSpec;
use crate::prompt::Span;

/// What a request asked and over which spans.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What.
    pub attention: AttentionRequest,
    /// Over which.
    pub prompt: TokenPrompt,
    /// Of softmax attention, ascending: those of every mass.
    softmax_layers: Vec<usize>,
}

/// A tensor of the reply: its name, shape, and elements row-major.
struct Named(&'static str, Vec<usize>, Vec<f32>);

/// Keys one by one, and their weights, (positions, layers, k) or (positions, layers, heads, k).
struct Ranked {
    shape: Vec<usize>,
    keys: Vec<u32>,
    weights: Vec<f32>,
}

impl Asked {
    /// A request about this prompt.
    pub fn new(attention: AttentionRequest, prompt: TokenPrompt, spec: &DecoderSpec) -> Self {
        let layers = spec.layers.iter().enumerate().filter(|(_, layer)| layer.attention().is_some());
        let softmax_layers = layers.map(|(layer, _)| layer).collect();
        Asked { attention, prompt, softmax_layers }
    }

    /// The spans that are measured: the tiles, then the ranges.
    pub fn keys(&self) -> Vec<Span> {
        self.prompt.tiles.iter().chain(&self.prompt.overlays).cloned().collect()
    }

    /// The rows that are measured.
    ///
    /// # Errors
    /// A row that is none, with its field.
    pub fn rows(&self) -> Result<Rows, ApiError> {
        let failed =
            |error: crate::attention::SpanError| ApiError::field("palimpsest.rows", error.to_string());
        let rows =
            Rows::named(&self.attention.rows, &self.keys(), self.prompt.tokens.len()).map_err(failed)?;
        match rows.spans.iter().find(|row| row.is_empty()) {
            None => Ok(rows),
            Some(row) => {
                let message = format!("row {:?} holds no token, so that it attends to nothing", row.label);
                Err(ApiError::field("palimpsest.rows", message))
            }
        }
    }

    /// Whether rows of generated tokens are told, which see generated tokens.
    fn answers(&self) -> bool {
        self.attention.rows.iter().any(|row| row == "answer" || row == "each")
    }

    fn tells(&self, layer: usize) -> bool {
        self.attention.layers.as_ref().is_none_or(|layers| layers.contains(&layer))
    }

    /// Everything of an answer whose first `thought` tokens are a thought, in no row. Rows of single tokens are left out
    /// where they were `told` before.
    ///
    /// # Errors
    /// Of a file that cannot be written.
    pub fn reply(&self, measured: &Measured, thought: usize, told: bool) -> Result<Value, ApiError> {
        let (masses, generated) = (&measured.masses, measured.generated.tokens.len());
        let n = self.prompt.tokens.len();
        let after = n..n + generated;
        let mut spans: Vec<Value> = self.prompt.tiles.iter().map(span_json).collect();
        if self.answers() {
            spans.push(json!({"label": "generated", "start": after.start, "end": after.end}));
        }
        spans.extend(self.prompt.overlays.iter().map(span_json));
        let rows: Vec<&str> = masses.rows.iter().map(|row| row.label.as_str()).collect();
        let layers: Vec<usize> = masses.layers.iter().copied().filter(|&layer| self.tells(layer)).collect();
        let mut reply = Map::new();
        reply.insert("spans".to_owned(), spans.into());
        reply.insert("rows".to_owned(), json!(rows));
        reply.insert("layers".to_owned(), json!(layers));
        if thought > 0 {
            reply.insert("thought_tokens".to_owned(), thought.into());
        }

        // Rows of the prompt see nothing that was generated.
        let is_answer: Vec<bool> =
            masses.rows.iter().map(|row| row.end > n || row.label == "answer").collect();
        let mut tensors = Vec::new();
        let sink = masses.sink.as_ref().map(|sink| sink.view());
        let paid = |l: usize, h: usize, r: usize| sink.as_ref().map_or(0.0, |sink| sink[[l, h, r]]);
        let told_of = |layers: &[usize]| -> Vec<usize> {
            (0..layers.len()).filter(|&l| self.tells(layers[l])).collect()
        };
        let of_softmax = told_of(&masses.layers);
        tensors.push(self.masses("mass", masses.mass.view(), &of_softmax, &paid, &is_answer));
        tensors.push(self.share(masses, &of_softmax, &is_answer, after));
        if let Some(sink) = &masses.sink {
            let (_, heads, rows) = sink.dim();
            let mut values = Vec::new();
            for &l in &of_softmax {
                let of_layer = sink.index_axis(Axis(0), l);
                values.extend(self.by_head(of_layer));
            }
            tensors.push(Named("sink", self.shape(&[of_softmax.len()], heads, &[rows]), values));
        }
        if let Some(delta) = &masses.delta {
            let of_delta = told_of(&delta.layers);
            let layers: Vec<usize> = of_delta.iter().map(|&l| delta.layers[l]).collect();
            reply.insert("delta_layers".to_owned(), json!(layers));
            tensors.push(self.masses(
                "delta_share",
                delta.share.view(),
                &of_delta,
                &|_, _, _| 0.0,
                &is_answer,
            ));
        }
        if let Some(each) = masses.each.as_ref().filter(|_| !told) {
            tensors.push(self.each(each));
        }
        let ranked = measured.top_keys.as_ref().map(|top_keys| {
            reply.insert("top_positions".to_owned(), json!(top_keys.rows));
            self.ranked(top_keys)
        });
        self.put(&mut reply, tensors, ranked)?;
        Ok(Value::Object(reply))
    }

    /// A reply with the tokens that it is about, where they were asked for.
    pub fn with_tokens(&self, mut reply: Value, generated: &[u32]) -> Value {
        if self.attention.token_ids {
            reply["prompt_token_ids"] = json!(self.prompt.tokens);
            reply["token_ids"] = json!(generated);
        }
        reply
    }

    /// The rows that come with a token of a stream.
    ///
    /// # Errors
    /// Of a file that cannot be written.
    pub fn reply_rows(&self, rows: &[EachMasses]) -> Result<Value, ApiError> {
        let mut named: Option<Named> = None;
        for row in rows {
            let Named(_, shape, values) = self.each(row);
            match &mut named {
                None => named = Some(Named("each", shape, values)),
                Some(Named(_, all, before)) => {
                    if let (Some(first), Some(more)) = (all.first_mut(), shape.first()) {
                        *first += more;
                    }
                    before.extend(values);
                }
            }
        }
        let mut reply = Map::new();
        self.put(&mut reply, named.into_iter().collect(), None)?;
        Ok(Value::Object(reply))
    }

    /// Masses [layers, heads, rows, spans] with what rows pay to generated tokens, by layer or by layer and head.
    fn masses(
        &self,
        name: &'static str,
        masses: ArrayView4<'_, f32>,
        layers: &[usize],
        sink: &dyn Fn(usize, usize, usize) -> f32,
        is_answer: &[bool],
    ) -> Named {
        let (_, heads, rows, _) = masses.dim();
        let mut values = Vec::new();
        for &l in layers {
            let of_layer: Vec<Vec<f32>> = (0..heads)
                .map(|h| {
                    let row = |r: usize| {
                        let paid = masses.slice(ndarray::s![l, h, r, ..]).to_vec();
                        self.with_generated(&paid, sink(l, h, r), is_answer.get(r) == Some(&true))
                    };
                    (0..rows).flat_map(row).collect()
                })
                .collect();
            values.extend(self.over_heads(of_layer));
        }
        Named(name, self.shape(&[layers.len()], heads, &[rows, self.columns()]), values)
    }

    /// What uniform attention would pay, [layers, rows, spans].
    fn share(
        &self,
        masses: &Masses,
        layers: &[usize],
        is_answer: &[bool],
        after: std::ops::Range<usize>,
    ) -> Named {
        let share = &masses.uniform.share;
        let mut values = Vec::new();
        for &l in layers {
            for (r, row) in masses.rows.iter().enumerate() {
                let paid = share.slice(ndarray::s![l, r, ..]).to_vec();
                let (tiles, overlays) = paid.split_at(self.prompt.tiles.len().min(paid.len()));
                values.extend(tiles);
                if self.answers() {
                    let to_generated = match is_answer.get(r) {
                        Some(true) => {
                            let window = masses.uniform.windows.get(l).copied().flatten();
                            uniform_share(row.range(), after.clone(), window) as f32
                        }
                        _ => 0.0,
                    };
                    values.push(to_generated);
                }
                values.extend(overlays);
            }
        }
        Named("share", vec![layers.len(), masses.rows.len(), self.columns()], values)
    }

    /// Rows of single tokens: [tokens, layers, spans] or [tokens, layers, heads, spans].
    fn each(&self, each: &EachMasses) -> Named {
        let (layers, heads, tokens, _) = each.mass.dim();
        let told: Vec<usize> = (0..layers)
            .filter(|&l| self.softmax_layers.get(l).is_some_and(|&layer| self.tells(layer)))
            .collect();
        let mut values = Vec::new();
        for t in 0..tokens {
            for &l in &told {
                let row = |h: usize| {
                    let paid = each.mass.slice(ndarray::s![l, h, t, ..]).to_vec();
                    let sink = each.sink.as_ref().map_or(0.0, |sink| sink[[l, h, t]]);
                    self.with_generated(&paid, sink, true)
                };
                values.extend(self.over_heads((0..heads).map(row).collect()));
            }
        }
        Named("each", self.shape(&[tokens, told.len()], heads, &[self.columns()]), values)
    }

    /// The keys that each position pays most to, by position first.
    fn ranked(&self, top_keys: &LargestKeys) -> Ranked {
        let LargestKeys { layers, rows, shape: [_, heads, positions, k], keys, weights } = top_keys;
        let told: Vec<usize> = (0..layers.len()).filter(|&l| self.tells(layers[l])).collect();
        let mut shape = vec![rows.len(), told.len()];
        shape.extend(self.attention.all_heads.then_some(*heads));
        shape.push(*k);
        let mut ranked = Ranked { shape, keys: Vec::new(), weights: Vec::new() };
        for position in 0..*positions {
            for &l in &told {
                for head in 0..*heads {
                    let at = ((l * heads + head) * positions + position) * k;
                    ranked.keys.extend_from_slice(&keys[at..at + k]);
                    ranked.weights.extend_from_slice(&weights[at..at + k]);
                }
            }
        }
        ranked
    }

    /// A row's masses with that to generated tokens between tiles and ranges, where rows of generated tokens are told.
    fn with_generated(&self, paid: &[f32], sink: f32, is_answer: bool) -> Vec<f32> {
        let (tiles, overlays) = paid.split_at(self.prompt.tiles.len().min(paid.len()));
        let mut row = tiles.to_vec();
        if self.answers() {
            let of_prompt: f64 = tiles.iter().map(|&x| f64::from(x)).sum();
            let rest = (1.0 - of_prompt - f64::from(sink)).max(0.0) as f32;
            row.push(if is_answer { rest } else { 0.0 });
        }
        row.extend(overlays);
        row
    }

    /// Rows of one layer by head: one after the other, or their mean.
    fn over_heads(&self, by_head: Vec<Vec<f32>>) -> Vec<f32> {
        if self.attention.all_heads {
            return by_head.concat();
        }
        let heads = by_head.len().max(1) as f64;
        let width = by_head.first().map_or(0, Vec::len);
        let mean = |i: usize| by_head.iter().map(|head| f64::from(head[i])).sum::<f64>() / heads;
        (0..width).map(|i| mean(i) as f32).collect()
    }

    /// (heads, rows) likewise.
    fn by_head(&self, values: ArrayView2<'_, f32>) -> Vec<f32> {
        self.over_heads(values.outer_iter().map(|head| head.to_vec()).collect())
    }

    fn shape(&self, before: &[usize], heads: usize, after: &[usize]) -> Vec<usize> {
        let heads = self.attention.all_heads.then_some(heads);
        before.iter().copied().chain(heads).chain(after.iter().copied()).collect()
    }

    /// Spans of a row.
    fn columns(&self) -> usize {
        self.prompt.tiles.len() + usize::from(self.answers()) + self.prompt.overlays.len()
    }

    fn put(
        &self,
        reply: &mut Map<String, Value>,
        tensors: Vec<Named>,
        ranked: Option<Ranked>,
    ) -> Result<(), ApiError> {
        if !self.attention.safetensors {
            for Named(name, shape, values) in tensors {
                reply.insert(name.to_owned(), nested(&values, &shape));
            }
            if let Some(ranked) = ranked {
                reply.insert("top_keys".to_owned(), ranked.pairs());
            }
            return Ok(());
        }
        let of_f32 = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut bytes: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)> = (tensors.into_iter())
            .map(|Named(name, shape, values)| (name, Dtype::F32, shape, of_f32(&values)))
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
        reply.insert("data".to_owned(), STANDARD.encode(file).into());
        Ok(())
    }
}

impl Ranked {
    /// Pairs of a token's index and its weight in arrays of arrays; fewer than k where a position sees fewer tokens.
    fn pairs(&self) -> Value {
        let k = self.shape.last().copied().unwrap_or_default().max(1);
        let rows = self.keys.chunks_exact(k).zip(self.weights.chunks_exact(k)).map(|(keys, weights)| {
            let seen = keys.iter().zip(weights).filter(|(key, _)| **key != NO_KEY);
            seen.map(|(key, weight)| json!([key, short(*weight)])).collect()
        });
        let outer = self.shape.len().saturating_sub(1);
        arrays(rows.collect(), &self.shape[..outer])
    }
}

/// Row-major elements of this shape as arrays of arrays.
fn arrays(values: Vec<Value>, shape: &[usize]) -> Value {
    let inner = shape.iter().skip(1).rev();
    inner.fold(values, |values, &n| values.chunks(n.max(1)).map(Value::from).collect()).into()
}

fn span_json(span: &Span) -> Value {
    let mut json = json!({"label": span.label, "start": span.start, "end": span.end});
    if span.overlay {
        json["overlay"] = true.into();
    }
    json
}

/// Row-major elements as arrays of arrays.
fn nested(values: &[f32], shape: &[usize]) -> Value {
    match shape {
        [] => values.first().map_or(Value::Null, |&x| short(x)),
        [_] => values.iter().map(|&x| short(x)).collect(),
        [n, rest @ ..] => {
            let size = values.len() / (*n).max(1);
            (0..*n).map(|i| nested(values.get(i * size..(i + 1) * size).unwrap_or_default(), rest)).collect()
        }
    }
}

/// A number with the digits that tell its f32 from its neighbours, not those of its f64.
pub fn short(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_of_their_type_and_the_shape_of_their_tensor() {
        let values = [0.1f32, 0.2, 0.3, 0.4, 0.5, 1e-9];
        assert_eq!(nested(&values, &[2, 3]).to_string(), "[[0.1,0.2,0.3],[0.4,0.5,1e-9]]");
        assert_eq!(nested(&[], &[2, 0, 3]).to_string(), "[[],[]]");
    }
}
