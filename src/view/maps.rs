//! Layers by sessions, heads by sessions: numbers of one answer's attention store.

use ndarray::{Array3, Axis};
use serde_json::{Map, Value, json};

use super::case::Attention;
use super::runs::Shape;
use crate::run::causes::session_measures::SessionMeasures;
use palimpsest_core::span::Span;

fn labels(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.label.as_str()).collect()
}

/// (layers, rows, spans) as lists by row, layer, span.
fn by_row(values: &Array3<f64>) -> Value {
    // A store holds f32: more digits say nothing.
    let numbers = |layer: ndarray::ArrayView1<'_, f64>| -> Value {
        layer.iter().map(|value| json!(*value as f32)).collect()
    };
    let rows = values.axis_iter(Axis(1)).map(|row| row.outer_iter().map(numbers).collect::<Value>());
    rows.collect()
}

/// Means over heads: `/api/layers`.
pub fn layers(attention: &Attention) -> Value {
    let Attention { store, by_layer, .. } = attention;
    json!({
        "layers": Shape::layers_json(&by_layer.layers),
        "rows": labels(&store.rows),
        "spans": labels(&store.keys),
        "mass": by_row(&by_layer.mass),
        "share": by_row(&by_layer.share),
    })
}

/// The same with a byte a number, for files: a number is byte / 255 times the scale of its row and layer.
pub fn layers_in_bytes(attention: &Attention) -> Value {
    let Attention { store, by_layer, .. } = attention;
    json!({
        "layers": Shape::layers_json(&by_layer.layers),
        "rows": labels(&store.rows),
        "spans": labels(&store.keys),
        "mass8": in_bytes(&by_layer.mass),
        "share8": in_bytes(&by_layer.share),
    })
}

fn in_bytes(values: &Array3<f64>) -> Value {
    use base64::Engine as _;
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
        data.push(base64::engine::general_purpose::STANDARD.encode(bytes));
    }
    json!({"scale": scales, "data": data})
}

/// All heads of a layer: `/api/heads`.
pub fn heads(attention: &Attention, layer: usize) -> Result<Value, String> {
    let store = &attention.store;
    let at = store.layers.iter().position(|index| *index == layer).ok_or_else(|| {
        format!("layer {layer} has no softmax attention in this file; it holds {:?}", store.layers)
    })?;
    let of_layer = store.mass.index_axis(Axis(0), at); // (heads, rows, spans)
    let numbers =
        |head: ndarray::ArrayView1<'_, f32>| -> Value { head.iter().map(|value| json!(value)).collect() };
    let rows = of_layer.axis_iter(Axis(1)).map(|row| row.outer_iter().map(numbers).collect::<Value>());
    Ok(json!({
        "layer": layer,
        "heads": store.mass.dim().1,
        "rows": labels(&store.rows),
        "spans": labels(&store.keys),
        "mass": rows.collect::<Value>(),
    }))
}

/// Value norms, output norms and attributions by layer, of one layer by head as well: `/api/measures`.
pub fn measures(measures: &SessionMeasures, layer: Option<usize>) -> Result<Value, String> {
    let mean = |values: &ndarray::Array4<f32>| -> Value {
        let (_, heads, rows, _) = values.dim();
        let sums = values.mapv(f64::from).sum_axis(Axis(1)); // (layers, rows, spans)
        let of_row = |row: usize| -> Value {
            let by_layer = sums.index_axis(Axis(1), row);
            let numbers = |layer: ndarray::ArrayView1<'_, f64>| -> Value {
                layer.iter().map(|sum| json!((sum / heads.max(1) as f64) as f32)).collect()
            };
            by_layer.outer_iter().map(numbers).collect()
        };
        (0..rows).map(of_row).collect()
    };
    let attribution = measures.attribution.mapv(f64::from).sum_axis(Axis(1)); // (layers, spans)
    let attribution: Value = (attribution.outer_iter())
        .map(|layer| layer.iter().map(|sum| json!(*sum as f32)).collect::<Value>())
        .collect();
    let mut found = Map::new();
    found.insert("layers".to_owned(), json!(measures.layers));
    found.insert("rows".to_owned(), json!(measures.rows));
    found.insert("spans".to_owned(), json!(measures.spans));
    found.insert("value_norm".to_owned(), mean(&measures.value_norm));
    found.insert("output_norm".to_owned(), mean(&measures.output_norm));
    found.insert("attribution".to_owned(), attribution);
    if let Some(layer) = layer {
        let at = measures.layers.iter().position(|index| *index == layer);
        let at =
            at.ok_or_else(|| format!("layer {layer} is not in this file; it holds {:?}", measures.layers))?;
        let by_head = |values: &ndarray::Array4<f32>| -> Value {
            let of_layer = values.index_axis(Axis(0), at); // (heads, rows, spans)
            let rows = of_layer.axis_iter(Axis(1)).map(|row| {
                let heads =
                    row.outer_iter().map(|head| head.iter().map(|value| json!(value)).collect::<Value>());
                heads.collect::<Value>()
            });
            rows.collect()
        };
        let of_layer = measures.attribution.index_axis(Axis(0), at); // (heads, spans)
        let attribution: Value = of_layer
            .outer_iter()
            .map(|head| head.iter().map(|value| json!(value)).collect::<Value>())
            .collect();
        found.insert(
            "heads".to_owned(),
            json!({
                "layer": layer, "value_norm": by_head(&measures.value_norm), "output_norm": by_head(&measures.output_norm),
                "attribution": attribution,
            }),
        );
    }
    Ok(Value::Object(found))
}
