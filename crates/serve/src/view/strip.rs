//! Per-session values of one answer: attention, effects, controls, norms.
//!
//! Uses the lens' definitions ([`palimpsest_analysis::lens::causes`], [`palimpsest_analysis::lens::layers`]).

use std::collections::BTreeMap;
use std::ops::Range;

use ndarray::Axis;
use serde::Serialize;
use serde_json::{Value, json};

use super::folder::Way;
use super::ranks::kind_of;
use super::sessions::Session;
use palimpsest_analysis::lens::causes::{Predictor, overall_of};
use palimpsest_analysis::lens::{ByLayer, Layer};
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::ground::numbers::quantile;
use palimpsest_data::statistics::control::control_of;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow};
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::rows::{CauseLine, CauseRow};
use palimpsest_run::runs::causes::session_measures::SessionMeasures;

/// Quantiles of the controls, drawn as a band.
const BAND: [f64; 2] = [0.025, 0.975];
/// Minimum number of controls for a band.
const LEAST: usize = 4;

const OF_CONTROLS: &str = "median effect of random text of the session's length";

/// One value per session.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Strip {
    pub key: String,
    pub label: String,
    about: String,
    /// `share`, `ratio`, `nats` or `logit`.
    pub unit: &'static str,
    /// `attention`, `effect`, `control` or `value`.
    group: &'static str,
    signed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    pub values: Vec<Option<f64>>,
    /// Value without any effect, per session or common.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_about: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_high: Option<f64>,
}

impl Strip {
    fn new(
        [key, label, about]: [&str; 3],
        [unit, group]: [&'static str; 2],
        values: Vec<Option<f64>>,
    ) -> Self {
        let [key, label, about] = [key, label, about].map(str::to_owned);
        Strip {
            key,
            label,
            about,
            unit,
            group,
            signed: matches!(unit, "nats" | "logit"),
            values,
            ..Strip::default()
        }
    }

    fn with_baseline(self, values: Value, about: &'static str) -> Self {
        Strip { baseline: Some(values), baseline_about: Some(about), ..self }
    }

    /// Adds the control band, given at least `LEAST` controls.
    fn with_band(self, drops: &[f64]) -> Self {
        let mut sorted: Vec<f64> = drops.iter().copied().filter(|drop| drop.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let band = (sorted.len() >= LEAST).then(|| BAND.map(|at| quantile(&sorted, at)));
        let [baseline_low, baseline_high] = [0, 1].map(|end| band.map(|band| band[end]));
        Strip { baseline_low, baseline_high, ..self }
    }
}

pub struct Strips<'a> {
    sessions: &'a [Session],
    /// In display order.
    pub made: Vec<Strip>,
}

impl<'a> Strips<'a> {
    pub fn of(sessions: &'a [Session]) -> Self {
        Strips { sessions, made: Vec::new() }
    }

    fn by_label(&self, of: impl Fn(&str) -> Option<f64>) -> Vec<Option<f64>> {
        let value = |session: &Session| of(&session.label).filter(|value| value.is_finite());
        self.sessions.iter().map(value).collect()
    }

    fn push(&mut self, strip: Strip) {
        if strip.values.iter().any(Option::is_some) {
            self.made.push(strip);
        }
    }

    /// Mass and density of each row, the viewer's first.
    pub fn attention(&mut self, store: &AttentionStore, by_layer: &ByLayer, viewer: Option<usize>) {
        let Some(kind) = kind_of(&by_layer.layers) else { return };
        let counts: Vec<usize> =
            (0..by_layer.layers.len()).filter(|at| by_layer.layers[*at].kind == kind).collect();
        let mut rows: Vec<usize> = (0..store.rows.len()).collect();
        rows.sort_by_key(|row| (Some(*row) != viewer, *row));
        for row in rows {
            let name = &store.rows[row].label;
            let (mass, share) =
                (by_layer.mass.index_axis(Axis(1), row), by_layer.share.index_axis(Axis(1), row));
            let mean = |of: &dyn Fn(usize, usize) -> f64, session: &Session| {
                let values = counts.iter().map(|&layer| Some(of(layer, session.span?)));
                let known: Vec<f64> = values.flatten().filter(|value| value.is_finite()).collect();
                (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
            };
            let all = |of: &dyn Fn(usize, usize) -> f64| -> Vec<Option<f64>> {
                self.sessions.iter().map(|session| mean(of, session)).collect()
            };
            let masses = all(&|l, s| mass[[l, s]]);
            let densities =
                all(&|l, s| if share[[l, s]] > 0.0 { mass[[l, s]] / share[[l, s]] } else { f64::NAN });
            let layers = kind.key();
            let about = format!(
                "attention that a token of `{name}` pays to the whole session, mean over heads and {layers} layers"
            );
            let names = [&format!("mass.{name}"), &format!("mass from the {name}"), about.as_str()];
            let from = Some(name.clone());
            self.push(Strip { from: from.clone(), ..Strip::new(names, ["share", "attention"], masses) });
            let about = format!(
                "that mass over what uniform attention would pay, layer by layer, mean over {layers} layers"
            );
            let names = [&format!("density.{name}"), &format!("density from the {name}"), about.as_str()];
            let density = Strip::new(names, ["ratio", "attention"], densities);
            self.push(Strip { from, ..density.with_baseline(json!(1.0), "1: as uniform attention") });
        }
    }

    pub fn effects(&mut self, lines: &[CauseLine], seed: Option<u64>) {
        let mut controls: Vec<&CauseRow> = Vec::new();
        let mut direct: BTreeMap<&str, &CauseRow> = BTreeMap::new();
        let mut total: BTreeMap<&str, f64> = BTreeMap::new();
        let mut replaced: BTreeMap<&str, f64> = BTreeMap::new();
        let mut weights: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
        for line in lines {
            match line {
                CauseLine::Control(row) => controls.push(row),
                CauseLine::Blocked(row) if row.layers.is_none() && row.seed == seed => {
                    direct.insert(&row.span, row);
                }
                CauseLine::Total(row) => _ = total.insert(&row.span, row.effect.log_p_drop + 0.0),
                CauseLine::Replaced(row) => _ = replaced.insert(&row.span, row.effect.log_p_drop + 0.0),
                CauseLine::Surrogate(row) => {
                    let name = format!("contextcite.{}_{}", row.ablation.key(), row.subsets);
                    let own = row.weights.iter().map(|one| (one.span.as_str(), one.weight));
                    weights.insert(name, own.collect());
                }
                _ => {}
            }
        }
        let pools = Pools::new(controls.iter().copied());
        let whole = controls.iter().filter(|row| row.layers.is_none() && row.seed == seed);
        let drops: Vec<f64> = whole.map(|row| row.effect.log_p_drop).collect();
        let control = self.by_label(|label| pools.control(direct.get(label)?, |effect| effect.log_p_drop));
        let effect = ["nats", "effect"];
        let names = [
            "direct",
            "direct effect",
            "log-probability a token that the answer loses when the session is hidden from everything from the question on",
        ];
        let values = self.by_label(|label| Some(direct.get(label)?.effect.log_p_drop + 0.0));
        let strip = Strip::new(names, effect, values).with_band(&drops);
        self.push(match control.iter().any(Option::is_some) {
            true => strip.with_baseline(json!(control), OF_CONTROLS),
            false => strip,
        });
        let names = [
            "control",
            "control effect",
            "median effect of hiding random text without evidence of about the session's length",
        ];
        self.push(Strip::new(names, ["nats", "control"], control).with_band(&drops));
        let names = [
            "direct.kl",
            "direct effect (KL)",
            "divergence of the first answer token's distribution when the session is hidden",
        ];
        self.push(Strip::new(names, effect, self.by_label(|label| Some(direct.get(label)?.effect.kl))));
        let names = [
            "total",
            "total effect",
            "log-probability a token that the answer loses when the session is removed and the rest read again",
        ];
        self.push(Strip::new(names, effect, self.by_label(|label| total.get(label).copied())));
        let names = [
            "replaced",
            "effect of neutral text in its place",
            "log-probability a token that the answer loses when neutral text of equal length stands in the session's place",
        ];
        self.push(Strip::new(names, effect, self.by_label(|label| replaced.get(label).copied())));
        for (name, weights) in weights {
            let about = "coefficient of the session in a sparse linear surrogate of the answer's logit";
            let values = self.by_label(|label| weights.get(label).copied());
            self.push(Strip::new([&name, "ContextCite weight", about], ["logit", "effect"], values));
        }
    }

    pub fn contrasts(&mut self, rows: &[ContrastCauseRow]) {
        let tokens = |row: &ContrastCauseRow| row.tokens[0]..row.tokens[1];
        let of_whole = |ablation| {
            rows.iter()
                .filter(move |row| row.ablation == ablation && row.layers.is_none() && row.carrier.is_none())
        };
        let pool: Vec<(Range<usize>, f64)> =
            of_whole(AblationKind::Control).map(|row| (tokens(row), row.drop)).collect();
        let drops: Vec<f64> = pool.iter().map(|(_, drop)| *drop).collect();
        let control = self.by_label(|label| {
            let session = of_whole(AblationKind::Blocked).find(|row| row.span == label)?;
            control_of(&tokens(session), pool.iter().map(|(stretch, drop)| (stretch, *drop)))
        });
        let kinds = [
            (
                AblationKind::Blocked,
                ["direct", "direct effect on the contrast", "is hidden from everything from the question on"],
            ),
            (
                AblationKind::Removed,
                ["total", "total effect on the contrast", "is removed and the rest read again"],
            ),
            (
                AblationKind::Replaced,
                ["replaced", "effect on the contrast of neutral text", "has neutral text in its place"],
            ),
        ];
        for (ablation, [key, label, change]) in kinds {
            let values: BTreeMap<&str, f64> =
                of_whole(ablation).map(|row| (row.span.as_str(), row.drop + 0.0)).collect();
            let about = format!(
                "what log p of the current value less log p of the other loses when the session {change}"
            );
            let names = [&format!("contrast.{key}"), label, about.as_str()];
            let values = self.by_label(|label| values.get(label).copied());
            let strip = Strip::new(names, ["nats", "effect"], values);
            self.push(match ablation == AblationKind::Blocked && !drops.is_empty() {
                true => strip.with_baseline(json!(control), OF_CONTROLS).with_band(&drops),
                false => strip,
            });
        }
    }

    pub fn measures(&mut self, measures: &SessionMeasures, layers: &[Layer]) {
        let overall = overall_of(measures, layers);
        let place = |label: &str| measures.spans.iter().position(|span| span == label);
        let kinds = [
            (
                Predictor::ValueNorm,
                ["share", "value"],
                "the question's weights by the length of the values that they take, a share of the layer's sum, mean over layers",
            ),
            (
                Predictor::OutputNorm,
                ["share", "value"],
                "the length of what the heads write from the session, a share of the layer's sum, mean over layers",
            ),
            (
                Predictor::Attribution,
                ["logit", "value"],
                "contribution to the answer's own logits, summed over heads, mean over layers",
            ),
            (
                Predictor::AnswerMass,
                ["share", "attention"],
                "mass from the positions that predict the answer, mean over layers and heads",
            ),
        ];
        for (predictor, of, about) in kinds {
            let Some(values) = overall.get(&predictor) else { continue };
            let values = self.by_label(|label| values.get(place(label)?).copied());
            self.push(Strip::new([&predictor.key(), &predictor.label(), about], of, values));
        }
    }
}

/// Names of effect groups in replies.
pub const WAYS: [(&str, &[Way]); 7] = [
    ("direct", &[Way::Direct]),
    ("windows", &[Way::Window]),
    ("control", &[Way::Control]),
    ("total", &[Way::Total]),
    ("replaced", &[Way::Replaced]),
    ("carriers", &[Way::Carrier]),
    ("contextcite", &[Way::Surrogate]),
];
