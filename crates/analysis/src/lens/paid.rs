//! Attention of rows to key spans and to their stand-ins, by layer. Knows spans, masses and shares, but no benchmark.

use ndarray::{Array2, Array3, Axis};

use super::baseline::Evidence;
use super::layers::mean_by_layer;
use palimpsest_core::span::Span;

pub(super) fn in_role(spans: &[Span], role: &str) -> Vec<usize> {
    let meant =
        |span: &Span| (span.is(role) || span.role.is_none() && span.label == role) && !span.is_empty();
    spans.iter().enumerate().filter(|(_, span)| meant(span)).map(|(i, _)| i).collect()
}

/// Mean over all tokens of the rows: (layers, rows, keys) to (layers, keys).
pub(super) fn of_rows(values: &Array3<f64>, spans: &[Span], rows: &[usize]) -> Array2<f64> {
    if let [row] = rows {
        return values.index_axis(Axis(1), *row).to_owned();
    }
    let tokens: usize = rows.iter().map(|&row| spans[row].len()).sum();
    let mut mean = Array2::zeros((values.dim().0, values.dim().2));
    for &row in rows {
        mean.scaled_add(spans[row].len() as f64 / tokens as f64, &values.index_axis(Axis(1), row));
    }
    mean
}

pub(super) struct Paid<'a> {
    pub masses: &'a Array2<f64>,
    pub shares: &'a Array2<f64>,
    pub signed: Option<&'a Array2<f64>>,
    pub end: usize,
}

pub(super) struct Numbers {
    pub mass: Vec<f64>,
    /// `None` if no layer sees the spans, which lie after the rows.
    pub density: Option<Vec<f64>>,
    pub signed: Option<Vec<f64>>,
}

impl Paid<'_> {
    pub fn to(&self, keys: &[usize]) -> Option<Numbers> {
        let sum = |values: &Array2<f64>| {
            let by_layer = values.rows().into_iter().map(|layer| match keys {
                [key] => layer[*key],
                keys => keys.iter().map(|&key| layer[key]).sum(),
            });
            by_layer.collect::<Vec<f64>>()
        };
        let (mass, share) = (sum(self.masses), sum(self.shares));
        let density = mass.iter().zip(&share).map(|(mass, share)| density(*mass, *share)).collect();
        let seen = share.iter().any(|share| *share > 0.0);
        Some(Numbers { mass, density: seen.then_some(density), signed: self.signed.map(sum) })
    }

    pub fn beside(&self, evidence: &Evidence<'_>, keys: &[usize]) -> Option<Numbers> {
        let of: Vec<Numbers> = keys.iter().filter_map(|&key| self.beside_one(evidence, key)).collect();
        if let ([_], [_]) = (keys, &of[..]) {
            return of.into_iter().next();
        }
        if of.is_empty() {
            return None;
        }
        // Evidence without neighbours counts as the mean of the others.
        let missing = keys.len() as f64 / of.len() as f64;
        let layers = self.masses.nrows();
        let sum = |number: fn(&Numbers) -> Option<&Vec<f64>>| -> Vec<f64> {
            let at = |layer: usize| {
                let values = of.iter().filter_map(number).map(|values| values[layer]);
                values.filter(|value| !value.is_nan()).sum::<f64>() * missing
            };
            (0..layers).map(at).collect()
        };
        Some(Numbers {
            mass: sum(|one| Some(&one.mass)),
            density: mean_by_layer(of.iter().filter_map(|one| one.density.as_ref()), layers),
            signed: self.signed.map(|_| sum(|one| one.signed.as_ref())),
        })
    }

    pub fn beside_one(&self, evidence: &Evidence<'_>, key: usize) -> Option<Numbers> {
        let beside = evidence.neighbours(key, self.end);
        if beside.is_empty() {
            return None;
        }
        let densities = densities_of(self.masses, self.shares);
        let seen = |&span: &usize| self.shares.column(span).iter().any(|share| *share > 0.0);
        let density = match evidence.is_pooled() {
            false => mean_of(&densities, &beside),
            true => self.density_of_union(&beside),
        };
        let signed = self.signed.map(|signed| mean_of(signed, &beside));
        let mass = match evidence.keys[key].overlay || evidence.is_pooled() {
            false => mean_of(self.masses, &beside),
            true => density.iter().zip(self.shares.column(key)).map(|(d, share)| d * share).collect(),
        };
        Some(Numbers { mass, density: beside.iter().all(seen).then_some(density), signed })
    }

    /// Density of the union of spans by layer; NaN where none is visible.
    fn density_of_union(&self, spans: &[usize]) -> Vec<f64> {
        let sum = |values: &Array2<f64>, layer: usize| spans.iter().map(|&span| values[(layer, span)]).sum();
        (0..self.masses.nrows())
            .map(|layer| density(sum(self.masses, layer), sum(self.shares, layer)))
            .collect()
    }
}

/// NaN where the share is 0.
fn density(mass: f64, share: f64) -> f64 {
    if share > 0.0 { mass / share } else { f64::NAN }
}

pub(super) fn densities_of(masses: &Array2<f64>, shares: &Array2<f64>) -> Array2<f64> {
    let mut densities = masses.clone();
    densities.zip_mut_with(shares, |mass, share| *mass = density(*mass, *share));
    densities
}

/// Mean over spans by layer, ignoring NaN; NaN if none is defined.
fn mean_of(values: &Array2<f64>, spans: &[usize]) -> Vec<f64> {
    let columns = spans.iter().map(|&span| values.column(span).to_vec());
    mean_by_layer(columns, values.nrows()).unwrap_or_default()
}
