//! A benchmark's measures of one example, over layers.
//!
//! Called by [`super::example`]. It arranges what the rows pay as [`LayerSpans`], layer by layer and scale by scale; what is computed
//! from that is the benchmark's business.

use std::collections::{BTreeMap, BTreeSet};

use ndarray::{Array2, Array3, Axis};

use super::baseline::Evidence;
use super::paid::{Numbers, Paid, of_rows};
use crate::benchmarks::Benchmark;
use crate::benchmarks::measure::{Amount, KeySpan, LayerSpans, Measure, RowAt, Scale};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;

/// The key of [`LensSpec::evidence_lift`](crate::benchmarks::LensSpec::evidence_lift), which every example has.
pub const LIFT: &str = "evidence_lift";

/// By measure and scale: the numbers over layers, NaN where one is not defined.
pub(super) type Measured = BTreeMap<(String, Scale), Vec<f64>>;

struct RoleRows<'a> {
    role: &'a str,
    nth: usize,
    start: usize,
    masses: Array2<f64>, // (layers, keys)
    shares: Array2<f64>,
    noise: Vec<(usize, Numbers)>,
}

pub(super) fn of(
    benchmark: &Benchmark,
    rows: &[Span],
    (mass, share): (&Array3<f64>, &Array3<f64>),
    evidence: &Evidence<'_>,
) -> Measured {
    let keys: Vec<KeySpan> = evidence.keys.iter().map(key_span).collect();
    let mut of_roles = Vec::new();
    for (role, nth, places) in sets(rows) {
        let (masses, shares) = (of_rows(mass, rows, &places), of_rows(share, rows, &places));
        let end = places.iter().map(|&row| rows[row].end).max().unwrap_or(0);
        let paid = Paid { masses: &masses, shares: &shares, signed: None, end };
        let parts = (0..evidence.keys.len()).filter(|&key| evidence.keys[key].role.is_some());
        let noise = parts.filter_map(|key| Some((key, paid.beside_one(evidence, key)?))).collect();
        of_roles.push(RoleRows { role, nth, start: start_of(rows, &places), masses, shares, noise });
    }
    let measures = benchmark.lens.measures;
    let mut found = Measured::new();
    let mut put = |key: &str, scale, layer: usize, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let layers = mass.dim().0;
            let all = found.entry((key.to_owned(), scale)).or_insert_with(|| vec![f64::NAN; layers]);
            all[layer] = value;
        }
    };
    for layer in 0..mass.dim().0 {
        let at: Vec<AtLayer> = of_roles.iter().map(|rows| rows.at(layer)).collect();
        let rows = of_roles.iter().zip(&at).map(|(rows, at)| RowAt {
            role: rows.role,
            nth: rows.nth,
            start: rows.start,
            mass: &at.mass,
            share: &at.share,
            noise: &at.noise,
        });
        let rows: Vec<RowAt<'_>> = rows.collect();
        for scale in Scale::ALL {
            let spans = LayerSpans { keys: &keys, rows: &rows, scale };
            put(LIFT, scale, layer, benchmark.lens.evidence_lift(&spans));
            for measure in measures {
                put(measure.key, scale, layer, (measure.of)(&spans));
            }
        }
    }
    found
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ByHead {
    /// The decoder layers, those with softmax attention.
    pub layers: Vec<usize>,
    /// By measure: (layers, heads), NaN where it is not defined.
    pub values: BTreeMap<&'static str, Array2<f64>>,
}

/// The measures that a benchmark wants by head, of masses and without noise baselines; `None` without any.
pub(super) fn by_head(
    benchmark: &Benchmark,
    store: &AttentionStore,
    evidence: &Evidence<'_>,
) -> Option<ByHead> {
    let measures: Vec<&Measure> = benchmark.lens.measures.iter().filter(|measure| measure.heads).collect();
    let (layers, heads) = (store.layers.len(), store.mass.dim().1);
    if measures.is_empty() || layers == 0 || heads == 0 {
        return None;
    }
    let keys: Vec<KeySpan> = evidence.keys.iter().map(key_span).collect();
    let sets = sets(&store.rows);
    let share = vec![0.0; keys.len()];
    let empty = || Array2::from_elem((layers, heads), f64::NAN);
    let mut values: BTreeMap<&'static str, Array2<f64>> =
        measures.iter().map(|measure| (measure.key, empty())).collect();
    for head in 0..heads {
        let of_head = store.mass.index_axis(Axis(1), head).mapv(f64::from); // (layers, rows, keys)
        let masses: Vec<Array2<f64>> =
            sets.iter().map(|(_, _, places)| of_rows(&of_head, &store.rows, places)).collect();
        for layer in 0..layers {
            let of_layer: Vec<Vec<f64>> = masses.iter().map(|masses| masses.row(layer).to_vec()).collect();
            let rows = sets.iter().zip(&of_layer).map(|((role, nth, places), mass)| RowAt {
                role,
                nth: *nth,
                start: start_of(&store.rows, places),
                mass,
                share: &share,
                noise: &[],
            });
            let rows: Vec<RowAt<'_>> = rows.collect();
            let spans = LayerSpans { keys: &keys, rows: &rows, scale: Scale::Mass };
            for measure in &measures {
                let value = (measure.of)(&spans).filter(|value| value.is_finite());
                if let (Some(value), Some(map)) = (value, values.get_mut(measure.key)) {
                    map[(layer, head)] = value;
                }
            }
        }
    }
    Some(ByHead { layers: store.layers.clone(), values })
}

/// The rows of each role: all of them as 0, and where there are several each as 1, 2, ... in the order of the prompt.
fn sets(rows: &[Span]) -> Vec<(&str, usize, Vec<usize>)> {
    let mut sets = Vec::new();
    for role in roles(rows) {
        let mut places: Vec<usize> =
            (0..rows.len()).filter(|&row| name(&rows[row]) == role && !rows[row].is_empty()).collect();
        sets.push((role, 0, places.clone()));
        if places.len() > 1 {
            places.sort_by_key(|&row| rows[row].start);
            sets.extend(places.into_iter().enumerate().map(|(at, row)| (role, at + 1, vec![row])));
        }
    }
    sets
}

fn start_of(rows: &[Span], places: &[usize]) -> usize {
    places.iter().map(|&row| rows[row].start).min().unwrap_or(0)
}

impl RoleRows<'_> {
    fn at(&self, layer: usize) -> AtLayer {
        let noise = self.noise.iter().map(|(key, numbers)| {
            let density = numbers.density.as_ref().map_or(f64::NAN, |density| density[layer]);
            (*key, Amount { mass: numbers.mass[layer], density })
        });
        AtLayer {
            mass: self.masses.row(layer).to_vec(),
            share: self.shares.row(layer).to_vec(),
            noise: noise.collect(),
        }
    }
}

/// The attention of some rows at one layer, by key.
struct AtLayer {
    mass: Vec<f64>,
    share: Vec<f64>,
    noise: Vec<(usize, Amount)>,
}

fn name(span: &Span) -> &str {
    span.role.as_deref().unwrap_or(&span.label)
}

fn roles(rows: &[Span]) -> BTreeSet<&str> {
    rows.iter().filter(|row| !row.is_empty()).map(name).collect()
}

fn key_span(span: &Span) -> KeySpan {
    KeySpan {
        label: span.label.clone(),
        role: span.role.clone(),
        overlay: span.overlay,
        start: span.start,
        tokens: span.len(),
    }
}
