//! One example (a probe of a case): masses, noise baselines and densities, averaged over heads.
//!
//! - **Mass** s(X -> Y): mean attention of a token of X to all of Y (STALE, appendix E.4). Linear-attention layers use the share of the
//!   implicit weights' absolute values instead ([`super::layers`]). Spans are found by role
//!   ([`LensSpec::curves`](palimpsest_data::benchmarks::LensSpec::curves)); several spans in one role are summed as keys and averaged by
//!   token as rows.
//! - **Noise baseline**: the mean mass on the neighbours of the evidence Y ([`super::baseline`]); summed over several Y. If Y is part of a
//!   segment, or neighbours are pooled, their density is scaled to the length of Y.
//! - **Density**: mass divided by the share, the mass of uniform attention: the mean over rows i of X of |visible(i) and Y| / |visible(i)|,
//!   within the layer's window ([`palimpsest_core::attention::uniform_share`]). 1 means no preference. NaN where the window hides Y from
//!   all of X. Version 0.1.0 stores have no windows; full attention is assumed, which is wrong at windowed layers. A baseline's density is
//!   the mean of its visible neighbours' densities.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::{Array2, Axis};

use super::baseline::{Baseline, Evidence, StandIn};
use super::layers::{self, ByLayer, Layer, LayerKind};
use super::measured::{self, ByHead, Measured};
use super::paid::{Paid, densities_of, in_role, of_rows};
use crate::heads::file::HeadWeights;
use palimpsest_core::attention::{AttentionStore, StoreError};
use palimpsest_data::benchmarks::{Benchmark, Curve, QUERY, Scale};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Signal,
    Noise,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SegmentMass {
    pub index: usize,
    pub role: Option<String>,
    pub holds: Option<String>,
    pub tokens: usize,
    pub mass: Vec<f64>,
    /// The same as density; NaN where the layer's window hides the segment.
    pub density: Vec<f64>,
    /// Signed sums of the query's implicit weights; `None` at softmax layers.
    pub signed: Vec<Option<f64>>,
}

impl SegmentMass {
    pub fn values(&self, scale: Scale) -> &[f64] {
        match scale {
            Scale::Mass => &self.mass,
            Scale::Density => &self.density,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub dimension: String,
    pub kind: Option<String>,
    pub correct: Option<bool>,
    pub layers: Vec<Layer>,
    pub prompt_tokens: usize,
    /// In prompt order: attention of the query, or of the [viewer](palimpsest_data::benchmarks::LensSpec::viewer) if the store has no query
    /// rows. Empty without either.
    pub segments: Vec<SegmentMass>,
    pub dropped: Vec<usize>,
    curves: BTreeMap<(Curve, Target, Scale), Vec<f64>>,
    stand_ins: BTreeMap<Curve, Vec<StandIn>>,
    signed: BTreeMap<(Curve, Target), Vec<Option<f64>>>,
    measures: Measured,
    by_head: Option<ByHead>,
}

impl Example {
    /// Measures a store with a benchmark's roles and a noise baseline. Optional head weights must match the store's layers and heads.
    pub fn measure(
        path: &Path,
        store: &AttentionStore,
        benchmark: &Benchmark,
        baseline: Baseline,
        heads: Option<&HeadWeights>,
    ) -> Result<Self, StoreError> {
        let broken = |reason: String| StoreError::Broken { path: path.to_owned(), reason };
        let whole = store.tokens.len() + store.generated.len();
        let rows = store.rows.iter().map(|span| (span, whole));
        for (span, tokens) in rows.chain(store.keys.iter().map(|span| (span, store.tokens.len()))) {
            if span.start > span.end || span.end > tokens {
                return Err(broken(format!(
                    "span `{}` is [{}, {}) in a prompt of {} tokens",
                    span.label, span.start, span.end, tokens
                )));
            }
        }
        let ByLayer { layers, mass, share, signed } = ByLayer::of(path, store, heads)?; // (layers, rows, keys)
        let (mut curves, mut sums, mut stand_ins) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let evidence = Evidence { keys: &store.keys, baseline, stand_in: benchmark.lens.stand_in };
        let measures = measured::of(benchmark, &store.rows, (&mass, &share), &evidence);
        let by_head = measured::by_head(benchmark, store, &evidence);
        for curve in benchmark.lens.drawn_curves() {
            let (rows, keys) = (in_role(&store.rows, curve.from), in_role(&store.keys, curve.to));
            if rows.is_empty() || keys.is_empty() {
                continue;
            }
            let masses = of_rows(&mass, &store.rows, &rows); // (layers, keys)
            let shares = of_rows(&share, &store.rows, &rows);
            let of_row = signed.as_ref().map(|signed| of_rows(signed, &store.rows, &rows));
            let end = rows.iter().map(|&row| store.rows[row].end).max().unwrap_or(0);
            let paid = Paid { masses: &masses, shares: &shares, signed: of_row.as_ref(), end };
            stand_ins.insert(curve, evidence.stand_ins(&keys, end));
            for target in [Target::Signal, Target::Noise] {
                let of = match target {
                    Target::Signal => paid.to(&keys),
                    Target::Noise => paid.beside(&evidence, &keys),
                };
                let Some(of) = of else { continue };
                curves.insert((curve, target, Scale::Mass), of.mass);
                if let Some(density) = of.density {
                    curves.insert((curve, target, Scale::Density), density);
                }
                if let Some(signed) = of.signed {
                    sums.insert((curve, target), present(signed));
                }
            }
        }
        let mut segments = Vec::new();
        let mut viewers = in_role(&store.rows, QUERY);
        viewers.extend(in_role(&store.rows, benchmark.lens.viewer()));
        if let [row, ..] = viewers[..] {
            let masses = mass.index_axis(Axis(1), row).to_owned();
            let densities = densities_of(&masses, &share.index_axis(Axis(1), row).to_owned());
            for (key, span) in store.keys.iter().enumerate() {
                let Some(index) = span.segment() else { continue };
                let signed = match &signed {
                    Some(signed) => present(signed.index_axis(Axis(1), row).column(key).to_vec()),
                    None => vec![None; layers.len()],
                };
                segments.push(SegmentMass {
                    index,
                    role: span.role.clone(),
                    holds: evidence.inside(index),
                    tokens: span.len(),
                    mass: masses.column(key).to_vec(),
                    density: densities.column(key).to_vec(),
                    signed,
                });
            }
        }
        Ok(Example {
            case: store.case.clone(),
            probe: store.probe.clone(),
            condition: store.condition.clone(),
            dimension: store.probe.clone(),
            kind: None,
            correct: None,
            layers,
            prompt_tokens: store.tokens.len(),
            segments,
            dropped: Vec::new(),
            curves,
            stand_ins,
            signed: sums,
            measures,
            by_head,
        })
    }

    pub fn curves(&self) -> impl Iterator<Item = Curve> {
        self.curves
            .keys()
            .filter(|(_, target, scale)| (*target, *scale) == (Target::Signal, Scale::Mass))
            .map(|k| k.0)
    }

    /// A curve over layers, NaN where the evidence is not visible; `None` if the store lacks a span (for noise: a neighbour).
    pub fn curve(&self, curve: Curve, target: Target, scale: Scale) -> Option<&[f64]> {
        self.curves.get(&(curve, target, scale)).map(Vec::as_slice)
    }

    /// A curve or its baseline where both are defined, NaN elsewhere; `None` if either is missing.
    pub(super) fn beside_noise(&self, curve: Curve, target: Target, scale: Scale) -> Option<Vec<f64>> {
        let signal = self.curve(curve, Target::Signal, scale)?;
        let noise = self.curve(curve, Target::Noise, scale)?;
        let of = |(signal, noise): (&f64, &f64)| match target {
            _ if signal.is_nan() || noise.is_nan() => f64::NAN,
            Target::Signal => *signal,
            Target::Noise => *noise,
        };
        Some(signal.iter().zip(noise).map(of).collect())
    }

    pub fn stand_ins(&self, curve: Curve) -> &[StandIn] {
        self.stand_ins.get(&curve).map(Vec::as_slice).unwrap_or_default()
    }

    /// Largest distance of a stand-in from its evidence, in segments of the whole history; `None` without baselines.
    pub fn baseline_distance(&self) -> Option<usize> {
        self.stand_ins.values().flatten().map(|one| one.distance()).max()
    }

    /// Signed sums of a curve's implicit weights by layer, `None` at softmax layers. `None` if the store lacks a span or has no linear
    /// layers.
    pub fn signed(&self, curve: Curve, target: Target) -> Option<&[Option<f64>]> {
        self.signed.get(&(curve, target)).map(Vec::as_slice)
    }

    /// A measure over layers, NaN where undefined; `None` if undefined everywhere.
    pub fn measure_of(&self, key: &str, scale: Scale) -> Option<&[f64]> {
        self.measures.get(&(key.to_owned(), scale)).map(Vec::as_slice)
    }

    /// A per-head measure: softmax decoder layers, and values (layers, heads) with NaN where undefined.
    pub fn by_head(&self, key: &str) -> Option<(&[usize], &Array2<f64>)> {
        let by_head = self.by_head.as_ref()?;
        Some((&by_head.layers, by_head.values.get(key)?))
    }

    /// The query's mass on a segment, averaged over layers of one kind; `None` without such layers.
    pub fn mean_over(&self, kind: LayerKind, segment: &SegmentMass) -> Option<f64> {
        layers::mean_over(&self.layers, kind, &segment.mass)
    }

    /// Ratio of two curves by layer; `None` where the denominator is 0 or a curve is undefined.
    pub fn ratio(&self, (over, under): (Curve, Curve), scale: Scale) -> Option<Vec<Option<f64>>> {
        let over = self.curve(over, Target::Signal, scale)?;
        let under = self.curve(under, Target::Signal, scale)?;
        Some(over.iter().zip(under).map(|(n, o)| (*o > 0.0 && !n.is_nan()).then(|| n / o)).collect())
    }
}

fn present(values: Vec<f64>) -> Vec<Option<f64>> {
    values.into_iter().map(|value| Some(value).filter(|value| !value.is_nan())).collect()
}
