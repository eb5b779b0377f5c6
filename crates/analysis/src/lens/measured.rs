//! Evaluates a benchmark's measures for one example, by layer and scale; their formulas belong to the benchmark ([`LayerSpans`]).

use std::collections::{BTreeMap, BTreeSet};

use ndarray::{Array2, Array3, Axis};

use super::baseline::Evidence;
use super::paid::{Numbers, Paid, of_rows};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::benchmarks::measure::{Amount, KeySpan, LayerSpans, Measure, RowAt, Scale};

/// Key of [`LensSpec::evidence_lift`](palimpsest_data::benchmarks::LensSpec::evidence_lift), defined for every example.
pub const LIFT: &str = "evidence_lift";

/// By measure and scale: values over layers, NaN where undefined.
pub(super) type Measured = BTreeMap<(String, Scale), Vec<f64>>;

struct RoleRows<'a> {
    role: &'a str,
    nth: usize,
    start: usize,
    masses: Array2<f64>, // (layers, keys)
    shares: Array2<f64>,
    noise: Vec<(usize, Numbers)>,
}

/// Rows of each role from masses and shares (layers, rows, keys); with noise baselines if evidence is given.
fn of_roles<'a>(
    rows: &'a [Span],
    (mass, share): (&Array3<f64>, &Array3<f64>),
    evidence: Option<&Evidence<'_>>,
) -> Vec<RoleRows<'a>> {
    let of_set = |(role, nth, places): (&'a str, usize, Vec<usize>)| {
        let (masses, shares) = (of_rows(mass, rows, &places), of_rows(share, rows, &places));
        let start = places.iter().map(|&row| rows[row].start).min().unwrap_or(0);
        let end = places.iter().map(|&row| rows[row].end).max().unwrap_or(0);
        let paid = Paid { masses: &masses, shares: &shares, signed: None, end };
        let noise = evidence.into_iter().flat_map(|evidence| {
            let parts = (0..evidence.keys.len()).filter(|&key| evidence.keys[key].role.is_some());
            parts.filter_map(|key| Some((key, paid.beside_one(evidence, key)?))).collect::<Vec<_>>()
        });
        let noise = noise.collect();
        RoleRows { role, nth, start, masses, shares, noise }
    };
    sets(rows).into_iter().map(of_set).collect()
}

fn at_layer(of_roles: &[RoleRows<'_>], layer: usize, mut look: impl FnMut(&[RowAt<'_>])) {
    let at = of_roles.iter().map(|rows| {
        let noise = rows.noise.iter().map(|(key, numbers)| {
            let density = numbers.density.as_ref().map_or(f64::NAN, |density| density[layer]);
            (*key, Amount { mass: numbers.mass[layer], density })
        });
        (rows.masses.row(layer).to_vec(), rows.shares.row(layer).to_vec(), noise.collect::<Vec<_>>())
    });
    let at: Vec<_> = at.collect();
    let rows = of_roles.iter().zip(&at).map(|(rows, (mass, share, noise))| RowAt {
        role: rows.role,
        nth: rows.nth,
        start: rows.start,
        mass,
        share,
        noise,
    });
    look(&rows.collect::<Vec<_>>());
}

pub(super) fn of(
    benchmark: &Benchmark,
    rows: &[Span],
    values: (&Array3<f64>, &Array3<f64>),
    evidence: &Evidence<'_>,
) -> Measured {
    let keys: Vec<KeySpan> = evidence.keys.iter().map(key_span).collect();
    let of_roles = of_roles(rows, values, Some(evidence));
    let layers = values.0.dim().0;
    let mut found = Measured::new();
    let mut put = |key: &str, scale, layer: usize, value: Option<f64>| {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let all = found.entry((key.to_owned(), scale)).or_insert_with(|| vec![f64::NAN; layers]);
            all[layer] = value;
        }
    };
    for layer in 0..layers {
        at_layer(&of_roles, layer, |rows| {
            for scale in Scale::ALL {
                let spans = LayerSpans { keys: &keys, rows, scale };
                put(LIFT, scale, layer, benchmark.lens.evidence_lift(&spans));
                for measure in benchmark.lens.measures {
                    put(measure.key, scale, layer, (measure.of)(&spans));
                }
            }
        });
    }
    found
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ByHead {
    pub layers: Vec<usize>,
    /// By measure: (layers, heads), NaN where undefined.
    pub values: BTreeMap<&'static str, Array2<f64>>,
}

/// Per-head measures, from masses without noise baselines; `None` without any.
pub(super) fn by_head(
    benchmark: &Benchmark,
    store: &AttentionStore,
    evidence: &Evidence<'_>,
) -> Option<ByHead> {
    let measures: Vec<&Measure> = benchmark.lens.measures.iter().filter(|measure| measure.heads).collect();
    let (layers, heads, rows, spans) = store.mass.dim();
    if measures.is_empty() || layers == 0 || heads == 0 {
        return None;
    }
    let keys: Vec<KeySpan> = evidence.keys.iter().map(key_span).collect();
    let empty = || Array2::from_elem((layers, heads), f64::NAN);
    let mut values: BTreeMap<&'static str, Array2<f64>> =
        measures.iter().map(|measure| (measure.key, empty())).collect();
    let no_share = Array3::zeros((layers, rows, spans));
    for head in 0..heads {
        let of_head = store.mass.index_axis(Axis(1), head).mapv(f64::from); // (layers, rows, keys)
        let of_roles = of_roles(&store.rows, (&of_head, &no_share), None);
        for layer in 0..layers {
            at_layer(&of_roles, layer, |rows| {
                let spans = LayerSpans { keys: &keys, rows, scale: Scale::Mass };
                for measure in &measures {
                    let value = (measure.of)(&spans).filter(|value| value.is_finite());
                    if let (Some(value), Some(map)) = (value, values.get_mut(measure.key)) {
                        map[(layer, head)] = value;
                    }
                }
            });
        }
    }
    Some(ByHead { layers: store.layers.clone(), values })
}

/// Row sets of each role: all rows as 0; with several rows, each as 1, 2, ... in prompt order.
fn sets(rows: &[Span]) -> Vec<(&str, usize, Vec<usize>)> {
    let mut sets = Vec::new();
    let roles: BTreeSet<&str> = rows.iter().filter(|row| !row.is_empty()).map(name).collect();
    for role in roles {
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

fn name(span: &Span) -> &str {
    span.role.as_deref().unwrap_or(&span.label)
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
