//! A case's strip and map as rendered figures: `/api/figure.svg`.

use ndarray::{Array2, Axis};

use super::case::Case;
use super::strip::Strip;
use palimpsest_analysis::lens::Scale;
use palimpsest_figures::one_answer::{self, Column, SessionNumber};

#[derive(Debug, Clone)]
pub struct Caption {
    pub title: String,
    pub origin: String,
    pub segment: String,
}

/// Session values of the given strips; the first strip without `keys`.
pub fn strip_svg(case: &Case<'_>, caption: Caption, keys: &[&str]) -> Result<String, String> {
    let all = case.strips();
    let known = || all.iter().map(|one| one.key.as_str()).collect::<Vec<_>>().join(", ");
    let named = |key: &&str| {
        let found = all.iter().find(|one| one.key == *key);
        found.ok_or_else(|| format!("this answer has no `{key}`; it has {}", known()))
    };
    let chosen: Vec<&Strip> = match keys {
        [] => all.iter().take(1).collect(),
        keys => keys.iter().map(named).collect::<Result<_, _>>()?,
    };
    let first = chosen.first().ok_or("there is no number of this answer's sessions")?;
    if let Some(other) = chosen.iter().find(|one| one.unit != first.unit) {
        return Err(format!(
            "`{}` is in {} and `{}` in {}, which have no axis in common; give them one picture each",
            first.key, first.unit, other.key, other.unit
        ));
    }
    let numbers = chosen.iter().flat_map(|one| {
        let values = case.sessions.iter().zip(&one.values).enumerate();
        values.filter_map(|(at, (session, value))| {
            let baseline = one.baseline.as_ref();
            let of_session = |baseline: &serde_json::Value| {
                baseline.get(at).and_then(serde_json::Value::as_f64).or_else(|| baseline.as_f64())
            };
            Some(SessionNumber {
                measure: one.label.clone(),
                label: session.label.clone(),
                role: session.role.clone().or_else(|| session.holds.clone()),
                value: (*value)?,
                baseline: baseline.and_then(of_session).filter(|_| one.unit == "nats"),
            })
        })
    });
    let axis = match first.unit {
        "nats" => "nats: above 0 the answer needs the session",
        "share" => "share of attention",
        "ratio" => "times what uniform attention would pay",
        _ => first.unit,
    };
    Ok(one_answer::strip_svg((caption.title, caption.origin), axis.to_owned(), numbers.collect()))
}

/// Layers by sessions, averaged over rows weighted by tokens; the viewer's row without `rows`.
pub fn map_svg(case: &Case<'_>, caption: Caption, scale: Scale, rows: &[usize]) -> Result<String, String> {
    let attention = case.attention.as_ref().ok_or("no attention was recorded for this answer")?;
    let (store, by_layer) = (&attention.store, &attention.by_layer);
    let viewer = [attention.viewer.unwrap_or(0)];
    let rows = if rows.is_empty() { &viewer } else { rows };
    if let Some(row) = rows.iter().find(|row| **row >= store.rows.len()) {
        return Err(format!("there is no row {row}; there are {} rows, from 0", store.rows.len()));
    }
    let tokens: usize = rows.iter().map(|row| store.rows[*row].len()).sum();
    let sum = |values: &ndarray::Array3<f64>| {
        let mut sum: Array2<f64> = Array2::zeros((by_layer.layers.len(), store.keys.len()));
        for row in rows {
            let weight = store.rows[*row].len() as f64 / tokens.max(1) as f64;
            sum.scaled_add(weight, &values.index_axis(Axis(1), *row));
        }
        sum
    };
    let (mass, share) = (sum(&by_layer.mass), sum(&by_layer.share));
    let value = |layer: usize, key: usize| match scale {
        Scale::Mass => mass[[layer, key]],
        Scale::Density if share[[layer, key]] > 0.0 => mass[[layer, key]] / share[[layer, key]],
        Scale::Density => f64::NAN,
    };
    let sessions = case.sessions.iter().filter_map(|session| {
        let key = session.span?;
        Some(Column {
            label: session.index.to_string(),
            n: None,
            role: session.role.clone().or_else(|| session.holds.clone()),
            cells: Some((0..by_layer.layers.len()).map(|layer| value(layer, key)).collect()),
        })
    });
    let names: Vec<&str> = rows.iter().map(|row| store.rows[*row].label.as_str()).collect();
    let (head, names) =
        ((caption.title, caption.origin), format!("{} from {}", scale.key(), names.join(" and ")));
    let sessions = sessions.collect();
    Ok(one_answer::map_svg(head, names, &caption.segment, sessions, (&by_layer.layers, scale)))
}
