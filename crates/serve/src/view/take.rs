//! CSV downloads of a view's numbers.

use serde_json::Value;

use super::case::{Attention, Case};
use palimpsest_data::ground::csv::CsvTable;

/// One line per session and strip: `/api/numbers.csv?of=strip`.
pub fn strip_csv(case: &Case<'_>) -> Vec<u8> {
    let strips = case.strips();
    let rows = strips.iter().flat_map(|strip| {
        case.sessions.iter().zip(&strip.values).map(move |(session, value)| (strip, session, *value))
    });
    CsvTable::of(rows.filter(|(.., value)| value.is_some()))
        .column("measure", |(strip, ..)| &strip.key)
        .column("unit", |(strip, ..)| strip.unit)
        .column("session", |(_, session, _)| &session.label)
        .optional("role", |(_, session, _)| session.role.as_ref().or(session.holds.as_ref()))
        .optional("tokens", |(_, session, _)| session.tokens.map(|[start, end]| end - start))
        .optional("value", |(.., value)| value)
        .bytes()
}

/// One line per row, layer and session: `/api/numbers.csv?of=map`.
pub fn map_csv(attention: &Attention) -> Vec<u8> {
    let Attention { store, by_layer, .. } = attention;
    let cells = (0..store.rows.len()).flat_map(|row| {
        (0..by_layer.layers.len())
            .flat_map(move |layer| (0..store.keys.len()).map(move |span| (row, layer, span)))
    });
    CsvTable::of(cells)
        .column("row", |(row, ..)| &store.rows[row].label)
        .column("layer", |(_, layer, _)| by_layer.layers[layer].index)
        .column("layer_kind", |(_, layer, _)| by_layer.layers[layer].kind.key())
        .column("span", |(.., span)| &store.keys[span].label)
        .optional("role", |(.., span)| store.keys[span].role.as_ref())
        .column("tokens", |(.., span)| store.keys[span].len())
        .column("mass", |(row, layer, span)| by_layer.mass[[layer, row, span]])
        .optional("density", |(row, layer, span)| {
            let share = by_layer.share[[layer, row, span]];
            (share > 0.0).then(|| by_layer.mass[[layer, row, span]] / share)
        })
        .bytes()
}

/// One line per curve and layer: `/api/numbers.csv?of=curves`.
pub fn curves_csv(curves: &Value, layers: &Value) -> Vec<u8> {
    let none = Vec::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let layers = list(layers);
    let curves = curves.as_array().unwrap_or(&none);
    let points = curves.iter().flat_map(|curve| (0..layers.len()).map(move |layer| (curve, layer)));
    let number = |curve: &Value, key: &str, layer: usize| curve.get(key)?.get(layer)?.as_f64();
    CsvTable::of(points)
        .column("curve", |(curve, _)| curve["key"].as_str().unwrap_or_default())
        .column("layer", |(_, layer)| layers[layer]["index"].to_string())
        .column("layer_kind", |(_, layer)| layers[layer]["kind"].as_str().unwrap_or_default().to_owned())
        .optional("mass", |(curve, layer)| number(curve, "mass", layer))
        .optional("noise_mass", |(curve, layer)| number(curve, "noise_mass", layer))
        .optional("density", |(curve, layer)| number(curve, "density", layer))
        .optional("noise_density", |(curve, layer)| number(curve, "noise_density", layer))
        .bytes()
}

/// One line per row of the causes' files: `/api/numbers.csv?of=causes`.
pub fn causes_csv(causes: &Value) -> Vec<u8> {
    let groups = causes.as_object().cloned().unwrap_or_default();
    let rows: Vec<(&String, &Value)> = groups
        .iter()
        .flat_map(|(way, rows)| rows.as_array().into_iter().flatten().map(move |row| (way, row)))
        .collect();
    let text = |row: &Value, key: &str| match row.get(key) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let effect = |row: &Value, key: &str| {
        let of =
            ["effect", "total", "replaced"].into_iter().find_map(|name| row.get(name)?.get(key).cloned());
        of.map(|value| value.to_string())
    };
    CsvTable::of(rows.iter().copied())
        .column("way", |(way, _)| way)
        .column("span", |(_, row)| text(row, "span"))
        .column("role", |(_, row)| text(row, "role"))
        .column("tokens", |(_, row)| text(row, "tokens"))
        .column("layers", |(_, row)| text(row, "layers"))
        .column("carrier", |(_, row)| text(row, "carrier"))
        .column("ablation", |(_, row)| text(row, "ablation"))
        .optional("drop", |(_, row)| {
            row.get("drop").map(Value::to_string).or_else(|| effect(row, "log_p_drop"))
        })
        .optional("kl", |(_, row)| effect(row, "kl"))
        .optional("changed", |(_, row)| effect(row, "changed"))
        .column("seed", |(_, row)| text(row, "seed"))
        .bytes()
}
