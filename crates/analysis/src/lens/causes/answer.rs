//! One answer: effects of its sessions, and each measure's value per session.
//!
//! A measure has one value per session and layer, averaged over heads (summed for attribution). A session's value is the mean over layers
//! that see the whole prompt. Residual-stream norms grow up to fifty-fold with depth, so each layer of a norm is first divided by its sum
//! over the history's sessions.

use std::collections::BTreeMap;

use ndarray::{Array2, ArrayView4, Axis, Zip};

use super::Predictor;
use crate::heads::file::HeadWeights;
use crate::lens::{Layer, LayerKind};
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::rows::{CauseRow, Effect};
use palimpsest_run::runs::causes::session_measures::{ROWS, SessionMeasures};
use palimpsest_run::runs::rows::AnswerKey;

#[derive(Debug, Clone, PartialEq)]
pub struct CausedSession {
    pub span: String,
    pub role: Option<String>,
    pub tokens: usize,
    pub effect: Effect,
    /// Effect of random text of equal length, from the case's pool; `None` without a pool.
    pub control: Option<Control>,
}

/// Effect of random text of a session's length: medians over the controls nearest in length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Control {
    pub drop: f64,
    pub kl: f64,
    pub kl_answer: f64,
}

impl Control {
    fn of(row: &CauseRow, pools: &Pools) -> Option<Self> {
        Some(Control {
            drop: pools.control(row, |effect| effect.log_p_drop)? + 0.0,
            kl: pools.control(row, |effect| effect.kl)?,
            kl_answer: pools.control(row, |effect| effect.kl_answer)?,
        })
    }
}

impl CausedSession {
    /// Loss of natural-log probability per token; positive if the answer needs the session.
    pub fn drop(&self) -> f64 {
        // Avoids -0.
        self.effect.log_p_drop + 0.0
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CausedAnswer {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub correct: Option<bool>,
    pub sessions: Vec<CausedSession>,
    /// Share of decoder layers that still saw a blocked session: linear-attention layers keep no keys to block.
    pub layers_open: f64,
    /// Control stretches without evidence.
    pub stretches: usize,
    /// (layers, sessions) of each measure.
    pub(super) by_layer: BTreeMap<Predictor, Array2<f64>>,
    pub(crate) overall: BTreeMap<Predictor, Vec<f64>>,
    /// Mass of the question: (sessions, layers * heads).
    pub(super) features: Array2<f64>,
    /// Predictions of a ridge regression on the other cases of its own half.
    pub(super) tried: Option<Vec<f64>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Measured<'a> {
    pub measures: &'a SessionMeasures,
    pub weighted: &'a [(Predictor, HeadWeights)],
    pub layers: &'a [Layer],
}

impl CausedAnswer {
    /// Returns `None` if no session has both an effect and measures.
    pub(crate) fn new(
        AnswerKey { case, probe, condition }: AnswerKey,
        correct: Option<bool>,
        (rows, pools): (&[CauseRow], &Pools),
        measured: Measured<'_>,
    ) -> Option<Self> {
        let measures = measured.measures;
        let place = |row: &CauseRow| measures.spans.iter().position(|span| *span == row.span);
        let placed: Vec<(usize, &CauseRow)> =
            rows.iter().filter_map(|row| Some((place(row)?, row))).collect();
        if placed.is_empty() {
            return None;
        }
        let chosen: Vec<usize> = placed.iter().map(|(at, _)| *at).collect();
        let by_layer = measured.by_layer();
        let of_chosen = |values: Vec<f64>| chosen.iter().map(|&at| values[at]).collect();
        let overall = (by_layer.iter())
            .map(|(predictor, values)| (*predictor, of_chosen(measured.overall(*predictor, values))))
            .collect();
        let by_layer =
            by_layer.iter().map(|(predictor, values)| (*predictor, values.select(Axis(1), &chosen)));
        let by_layer = by_layer.collect();
        let (layers, heads, ..) = measures.mass.dim();
        let features = Array2::from_shape_fn((chosen.len(), layers * heads), |(session, feature)| {
            f64::from(measures.mass[[feature / heads, feature % heads, QUESTION, chosen[session]]])
        });
        let session = |row: &CauseRow| CausedSession {
            span: row.span.clone(),
            role: row.role.clone(),
            tokens: row.tokens[1].saturating_sub(row.tokens[0]),
            effect: *row.effect,
            control: Control::of(row, pools),
        };
        let sessions = placed.iter().map(|(_, row)| session(row)).collect();
        let layers_open = placed.iter().filter_map(|(_, row)| row.layers_open).fold(0.0, f64::max);
        Some(CausedAnswer {
            case,
            probe,
            condition,
            correct,
            sessions,
            layers_open,
            by_layer,
            overall,
            features,
            ..CausedAnswer::default()
        })
    }

    /// Layers and heads of the features.
    pub(crate) fn shape(&self) -> (usize, usize) {
        let layers = self.by_layer.get(&Predictor::Mass).map_or(0, Array2::nrows);
        (layers, self.features.ncols() / layers.max(1))
    }

    pub fn effects(&self) -> Vec<f64> {
        self.sessions.iter().map(CausedSession::drop).collect()
    }

    /// A predictor's value per session; `None` if not measured.
    pub fn overall(&self, predictor: Predictor) -> Option<&[f64]> {
        self.overall.get(&predictor).map(Vec::as_slice)
    }

    pub(super) fn playing(&self, role: &str) -> Vec<usize> {
        let playing =
            |(at, session): (usize, &CausedSession)| (session.role.as_deref() == Some(role)).then_some(at);
        self.sessions.iter().enumerate().filter_map(playing).collect()
    }
}

const QUESTION: usize = 0;
const ANSWER: usize = ROWS.len() - 1;

/// Each measure's value per span of one answer's file. `layers` are the decoder's.
pub fn overall_of(measures: &SessionMeasures, layers: &[Layer]) -> BTreeMap<Predictor, Vec<f64>> {
    let measured = Measured { measures, weighted: &[], layers };
    let by_layer = measured.by_layer();
    by_layer.iter().map(|(predictor, values)| (*predictor, measured.overall(*predictor, values))).collect()
}

impl Measured<'_> {
    /// (layers, spans) of each measure.
    fn by_layer(&self) -> BTreeMap<Predictor, Array2<f64>> {
        let measures = self.measures;
        let mass = over_heads(measures.mass.view(), QUESTION);
        let share = measures.share.index_axis(Axis(1), QUESTION).mapv(f64::from);
        let density = Zip::from(&mass).and(&share).map_collect(|mass, share| match *share > 0.0 {
            true => mass / share,
            false => f64::NAN,
        });
        let by_heads =
            self.weighted.iter().map(|(predictor, heads)| (*predictor, by_weight(measures, heads)));
        [
            (Predictor::Mass, mass),
            (Predictor::Density, density),
            (Predictor::AnswerMass, over_heads(measures.mass.view(), ANSWER)),
            (Predictor::ValueNorm, over_heads(measures.value_norm.view(), QUESTION)),
            (Predictor::OutputNorm, over_heads(measures.output_norm.view(), QUESTION)),
            (Predictor::Attribution, measures.attribution.mapv(f64::from).sum_axis(Axis(1))),
        ]
        .into_iter()
        .chain(by_heads)
        .collect()
    }

    /// One value per span: the mean over layers that see the whole prompt, if any.
    fn overall(&self, predictor: Predictor, values: &Array2<f64>) -> Vec<f64> {
        let kinds: Vec<LayerKind> =
            self.measures.layers.iter().map(|&index| layer_of(self.layers, index).kind).collect();
        let whole = kinds.contains(&LayerKind::Softmax);
        let counts = |layer: &usize| !whole || kinds[*layer] == LayerKind::Softmax;
        let over: Vec<usize> = (0..kinds.len()).filter(counts).collect();
        // Layers are weighted by the sum of their heads' weights.
        let heads = self.weighted.iter().find(|(known, _)| *known == predictor).map(|(_, heads)| heads);
        let weight = |layer: usize| heads.map_or(1.0, |heads| heads.weights.row(layer).sum());
        let shares = predictor.is_norm().then(|| shares_of_layers(values));
        let values = shares.as_ref().unwrap_or(values);
        let of_span = |span: usize| {
            let known = over.iter().filter(|&&layer| values[[layer, span]].is_finite());
            let (sum, all) = known.fold((0.0, 0.0), |(sum, all), &layer| {
                (sum + weight(layer) * values[[layer, span]], all + weight(layer))
            });
            if all > 0.0 { sum / all } else { f64::NAN }
        };
        (0..values.ncols()).map(of_span).collect()
    }
}

/// Divides each row (layer) by its sum; NaN if the sum is 0.
fn shares_of_layers(values: &Array2<f64>) -> Array2<f64> {
    let mut shares = values.clone();
    for mut layer in shares.rows_mut() {
        let all = layer.sum();
        layer.mapv_inplace(|value| if all > 0.0 { value / all } else { f64::NAN });
    }
    shares
}

pub(super) fn layer_of(known: &[Layer], index: usize) -> Layer {
    let found = known.iter().find(|layer| layer.index == index).copied();
    found.unwrap_or(Layer { index, kind: LayerKind::Softmax })
}

/// (layers, spans): the question's mass averaged over heads by weight; NaN for layers without weight.
fn by_weight(measures: &SessionMeasures, heads: &HeadWeights) -> Array2<f64> {
    let (layers, count, _, spans) = measures.mass.dim();
    Array2::from_shape_fn((layers, spans), |(l, s)| {
        let of_head = |h: usize| heads.weights[[l, h]] * f64::from(measures.mass[[l, h, QUESTION, s]]);
        let all: f64 = heads.weights.row(l).sum();
        if all > 0.0 { (0..count).map(of_head).sum::<f64>() / all } else { f64::NAN }
    })
}

/// (layers, spans): one row's mean over heads.
fn over_heads(values: ArrayView4<'_, f32>, row: usize) -> Array2<f64> {
    let of_row = values.index_axis(Axis(2), row).mapv(f64::from); // (layers, heads, spans)
    let heads = of_row.len_of(Axis(1)).max(1) as f64;
    of_row.sum_axis(Axis(1)) / heads
}

#[cfg(test)]
mod tests {
    use ndarray::{Array3, Array4};

    use super::*;

    #[test]
    fn a_late_layer_with_longer_vectors_does_not_rank_the_sessions_by_itself() {
        // Three layers of one head, three sessions. Two layers attend mostly to the first session; the last layer, with norms fifty times
        // larger, to the third.
        let norms = [[0.06f32, 0.03, 0.01], [0.12, 0.06, 0.02], [0.5, 1.5, 3.0]];
        let norm = Array4::from_shape_fn((3, 1, ROWS.len(), 3), |(l, _, _, s)| norms[l][s]);
        let mass = Array4::from_elem((3, 1, ROWS.len(), 3), 0.1);
        let measures = SessionMeasures {
            layers: vec![0, 1, 2],
            spans: (0..3).map(|at| format!("session[{at}]")).collect(),
            rows: ROWS.map(str::to_owned).to_vec(),
            share: Array3::from_elem((3, ROWS.len(), 3), 0.1),
            value_norm: norm.clone(),
            output_norm: norm,
            attribution: Array3::zeros((3, 1, 3)),
            mass,
        };
        let measured = Measured { measures: &measures, weighted: &[], layers: &[] };
        let by_layer = measured.by_layer();
        for predictor in [Predictor::ValueNorm, Predictor::OutputNorm] {
            let found = measured.overall(predictor, &by_layer[&predictor]);
            let expected = [(0.6 + 0.6 + 0.1) / 3.0, (0.3 + 0.3 + 0.3) / 3.0, (0.1 + 0.1 + 0.6) / 3.0];
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{predictor:?}: {found}, not {expected}");
            }
            assert!(found[0] > found[1] && found[1] > found[2], "{predictor:?}: {found:?}");
        }
        let found = measured.overall(Predictor::Mass, &by_layer[&Predictor::Mass]);
        assert!(found.iter().all(|mass| (mass - 0.1).abs() < 1e-6));
    }
}
