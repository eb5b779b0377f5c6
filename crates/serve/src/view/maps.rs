//! Attention of one answer by layers or heads and sessions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ndarray::{Array3, Array4, ArrayView2, ArrayView3, Axis};
use serde_json::{Value, json};

use super::attention::Attention;
use super::fields::Fields;
use super::runs::layers_json;
use palimpsest_core::span::Span;
use palimpsest_run::runs::causes::session_measures::SessionMeasures;

fn labels(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.label.as_str()).collect()
}

fn lists(values: ArrayView2<'_, f32>) -> Vec<Vec<f32>> {
    values.outer_iter().map(|row| row.to_vec()).collect()
}

/// (layers or heads, rows, spans) as nested lists: row, layer or head, span.
fn by_row(values: ArrayView3<'_, f32>) -> Vec<Vec<Vec<f32>>> {
    values.axis_iter(Axis(1)).map(lists).collect()
}

fn axes(attention: &Attention) -> Value {
    let Attention { store, by_layer, .. } = attention;
    json!({
        "layers": layers_json(&by_layer.layers), "rows": labels(&store.rows), "spans": labels(&store.keys),
    })
}

/// Means over heads: `/api/layers`.
pub fn layers(attention: &Attention) -> Value {
    // Stores hold f32; more digits are noise.
    let numbers = |values: &Array3<f64>| by_row(values.mapv(|value| value as f32).view());
    let by_layer = &attention.by_layer;
    axes(attention).with("mass", Some(numbers(&by_layer.mass))).with("share", Some(numbers(&by_layer.share)))
}

/// Byte-quantised for files: value = byte / 255 * scale of the row and layer.
pub fn layers_in_bytes(attention: &Attention) -> Value {
    let by_layer = &attention.by_layer;
    axes(attention)
        .with("mass8", Some(in_bytes(&by_layer.mass)))
        .with("share8", Some(in_bytes(&by_layer.share)))
}

fn in_bytes(values: &Array3<f64>) -> Value {
    let (mut scales, mut data) = (Vec::new(), Vec::new());
    for row in values.axis_iter(Axis(1)) {
        let (mut of_row, mut bytes) = (Vec::new(), Vec::new());
        for layer in row.outer_iter() {
            let most = layer.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
            of_row.push(most as f32);
            let byte = |value: f64| {
                if most > 0.0 { (value / most * 255.0).round().clamp(0.0, 255.0) as u8 } else { 0 }
            };
            bytes.extend(layer.iter().map(|value| byte(*value)));
        }
        scales.push(of_row);
        data.push(STANDARD.encode(bytes));
    }
    json!({"scale": scales, "data": data})
}

/// All heads of a layer: `/api/heads`.
pub fn heads(attention: &Attention, layer: usize) -> Result<Value, String> {
    let store = &attention.store;
    let at = store.layers.iter().position(|index| *index == layer).ok_or_else(|| {
        format!("layer {layer} has no softmax attention in this file; it holds {:?}", store.layers)
    })?;
    Ok(json!({
        "layer": layer,
        "heads": store.mass.dim().1,
        "rows": labels(&store.rows),
        "spans": labels(&store.keys),
        "mass": by_row(store.mass.index_axis(Axis(0), at)),
    }))
}

/// Value norms, output norms and attributions by layer, means over heads: `/api/measures`.
pub fn measures(measures: &SessionMeasures) -> Value {
    let mean = |values: &Array4<f32>| {
        let heads = values.dim().1.max(1) as f64;
        let sums = values.mapv(f64::from).sum_axis(Axis(1)); // (layers, rows, spans)
        by_row(sums.mapv(|sum| (sum / heads) as f32).view())
    };
    let attribution = measures.attribution.mapv(f64::from).sum_axis(Axis(1)); // (layers, spans)
    json!({
        "layers": measures.layers, "rows": measures.rows, "spans": measures.spans,
        "value_norm": mean(&measures.value_norm), "output_norm": mean(&measures.output_norm),
        "attribution": lists(attribution.mapv(|sum| sum as f32).view()),
    })
}
