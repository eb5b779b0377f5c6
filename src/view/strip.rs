//! Numbers of one answer, a session each: attention, effects, controls, norms, whichever its files have.
//!
//! Definitions are the lens' own ([`crate::lens::causes`], [`crate::lens::layers`]); nothing is computed here that a table of the lens
//! computes in another way.

use std::collections::BTreeMap;
use std::ops::Range;

use ndarray::Axis;
use serde_json::{Value, json};

use super::fields::Fields;
use super::folder::Way;
use super::ranks::kind_of;
use super::sessions::Session;
use crate::ground::numbers::quantile;
use crate::lens::causes::{Predictor, overall_of};
use crate::lens::{ByLayer, Layer};
use crate::run::causes::contrast_rows::{AblationKind, ContrastCauseRow};
use crate::run::causes::control_pool::Pools;
use crate::run::causes::rows::{CauseLine, CauseRow, ControlRow};
use crate::run::causes::session_measures::SessionMeasures;
use crate::statistics::control::control_of;
use palimpsest_core::attention::AttentionStore;

/// Quantiles of the controls that are drawn as a band.
const BAND: [f64; 2] = [0.025, 0.975];
/// Controls without which there is no band.
const LEAST: usize = 4;

/// One number a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Strip {
    pub key: String,
    pub label: String,
    pub about: String,
    /// `share`, `ratio`, `nats` or `logit`.
    pub unit: &'static str,
    /// `attention`, `effect`, `control` or `value`.
    pub group: &'static str,
    pub from: Option<String>,
    pub values: Vec<Option<f64>>,
    /// The number of no effect at all, by session or for all.
    pub baseline: Option<(Value, String)>,
    pub band: Option<[f64; 2]>,
}

impl Strip {
    /// True if it has signs.
    pub fn is_signed(&self) -> bool {
        matches!(self.unit, "nats" | "logit")
    }

    /// As replies have it.
    pub fn json(&self) -> Value {
        let strip = json!({
            "key": self.key, "label": self.label, "about": self.about, "unit": self.unit, "group": self.group,
            "signed": self.is_signed(),
        });
        let (baseline, about) = self.baseline.as_ref().map(|(baseline, about)| (baseline, about)).unzip();
        let (low, high) = self.band.map(|[low, high]| (low, high)).unzip();
        strip
            .with("from", self.from.as_ref())
            .with("values", Some(&self.values))
            .with("baseline", baseline)
            .with("baseline_about", about)
            .with("baseline_low", low)
            .with("baseline_high", high)
    }
}

/// Makes strips for the sessions of a case.
pub struct Strips<'a> {
    sessions: &'a [Session],
    /// In the order of the page.
    pub made: Vec<Strip>,
}

impl<'a> Strips<'a> {
    /// None yet.
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
            let mean = |values: &mut dyn Iterator<Item = f64>| {
                let known: Vec<f64> = values.filter(|value| value.is_finite()).collect();
                (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
            };
            let of_span = |session: &Session, of: &dyn Fn(usize, usize) -> f64| {
                let span = session.span?;
                mean(&mut counts.iter().map(|&layer| of(layer, span)))
            };
            let masses = self.sessions.iter().map(|one| of_span(one, &|l, s| mass[[l, s]])).collect();
            let density = |l: usize, s: usize| {
                if share[[l, s]] > 0.0 { mass[[l, s]] / share[[l, s]] } else { f64::NAN }
            };
            let densities = self.sessions.iter().map(|one| of_span(one, &density)).collect();
            let layers = kind.key();
            self.push(Strip {
                key: format!("mass.{name}"),
                label: format!("mass from the {name}"),
                about: format!(
                    "attention that a token of `{name}` pays to the whole session, mean over heads and {layers} layers"
                ),
                unit: "share",
                group: "attention",
                from: Some(name.clone()),
                values: masses,
                baseline: None,
                band: None,
            });
            self.push(Strip {
                key: format!("density.{name}"),
                label: format!("density from the {name}"),
                about: format!("that mass over what uniform attention would pay, layer by layer, mean over {layers} layers"),
                unit: "ratio",
                group: "attention",
                from: Some(name.clone()),
                values: densities,
                baseline: Some((json!(1.0), "1: as uniform attention".to_owned())),
                band: None,
            });
        }
    }

    /// Effects on the answer, with controls.
    pub fn effects(&mut self, lines: &[CauseLine], seed: Option<u64>) {
        let controls: Vec<ControlRow> = lines
            .iter()
            .filter_map(|line| if let CauseLine::Control(row) = line { Some(row.clone()) } else { None })
            .collect();
        let pools = Pools::new(&controls);
        let direct: BTreeMap<&str, &CauseRow> = lines
            .iter()
            .filter_map(|line| match line {
                CauseLine::Blocked(row) if row.layers.is_none() && Some(row.seed) == seed => {
                    Some((row.span.as_str(), row))
                }
                _ => None,
            })
            .collect();
        let drops: Vec<f64> = controls
            .iter()
            .filter(|row| row.layers.is_none() && Some(row.seed) == seed)
            .map(|row| row.effect.log_p_drop)
            .collect();
        let control = self.by_label(|label| pools.control(direct.get(label)?, |effect| effect.log_p_drop));
        let baseline = control
            .iter()
            .any(Option::is_some)
            .then(|| (json!(control), "median effect of random text of the session's length".to_owned()));
        let strip = |key: &str, label: &str, about: &str, values: Vec<Option<f64>>| Strip {
            key: key.to_owned(),
            label: label.to_owned(),
            about: about.to_owned(),
            unit: "nats",
            group: "effect",
            from: None,
            values,
            baseline: None,
            band: None,
        };
        self.push(Strip {
            baseline: baseline.clone(),
            band: band(&drops),
            ..strip(
                "direct",
                "direct effect",
                "log-probability a token that the answer loses when the session is hidden from everything from the question on",
                self.by_label(|label| Some(direct.get(label)?.effect.log_p_drop + 0.0)),
            )
        });
        self.push(Strip {
            group: "control",
            band: band(&drops),
            ..strip(
                "control",
                "control effect",
                "median effect of hiding random text without evidence of about the session's length",
                control,
            )
        });
        self.push(strip(
            "direct.kl",
            "direct effect (KL)",
            "divergence of the first answer token's distribution when the session is hidden",
            self.by_label(|label| Some(direct.get(label)?.effect.kl)),
        ));
        let mut total: BTreeMap<&str, f64> = BTreeMap::new();
        let mut replaced: BTreeMap<&str, f64> = BTreeMap::new();
        let mut weights: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
        for line in lines {
            match line {
                CauseLine::Total(row) => _ = total.insert(&row.span, row.total.log_p_drop + 0.0),
                CauseLine::Replaced(row) => _ = replaced.insert(&row.span, row.total.log_p_drop + 0.0),
                CauseLine::Surrogate(row) => {
                    let name = format!("{}_{}", row.ablation.key(), row.subsets);
                    let own = row.weights.iter().map(|one| (one.span.as_str(), one.weight));
                    weights.insert(name, own.collect());
                }
                _ => {}
            }
        }
        self.push(strip(
            "total",
            "total effect",
            "log-probability a token that the answer loses when the session is removed and the rest read again",
            self.by_label(|label| total.get(label).copied()),
        ));
        self.push(strip(
            "replaced",
            "effect of neutral text in its place",
            "log-probability a token that the answer loses when neutral text of equal length stands in the session's place",
            self.by_label(|label| replaced.get(label).copied()),
        ));
        for (name, weights) in weights {
            self.push(Strip {
                unit: "logit",
                ..strip(
                    &format!("contextcite.{name}"),
                    "ContextCite weight",
                    "coefficient of the session in a sparse linear surrogate of the answer's logit",
                    self.by_label(|label| weights.get(label).copied()),
                )
            });
        }
    }

    /// Effects on the contrast of the question's values.
    pub fn contrasts(&mut self, rows: &[ContrastCauseRow]) {
        let tokens = |row: &ContrastCauseRow| row.tokens[0]..row.tokens[1];
        let of_whole = |ablation| {
            rows.iter()
                .filter(move |row| row.ablation == ablation && row.layers.is_none() && row.carrier.is_none())
        };
        let pool: Vec<(Range<usize>, f64)> =
            of_whole(AblationKind::Control).map(|row| (tokens(row), row.drop)).collect();
        let controls: Vec<f64> = pool.iter().map(|(_, drop)| *drop).collect();
        let control = self.by_label(|label| {
            let session = of_whole(AblationKind::Blocked).find(|row| row.span == label)?;
            control_of(&tokens(session), pool.iter().map(|(stretch, drop)| (stretch, *drop)))
        });
        let of = |ablation: AblationKind| -> BTreeMap<&str, f64> {
            of_whole(ablation).map(|row| (row.span.as_str(), row.drop + 0.0)).collect()
        };
        let kinds = [
            (
                AblationKind::Blocked,
                "direct",
                "direct effect on the contrast",
                "is hidden from everything from the question on",
            ),
            (
                AblationKind::Removed,
                "total",
                "total effect on the contrast",
                "is removed and the rest read again",
            ),
            (
                AblationKind::Replaced,
                "replaced",
                "effect on the contrast of neutral text",
                "has neutral text in its place",
            ),
        ];
        for (ablation, key, label, about) in kinds {
            let values = of(ablation);
            let with_controls = ablation == AblationKind::Blocked && !controls.is_empty();
            self.push(Strip {
                key: format!("contrast.{key}"),
                label: label.to_owned(),
                about: format!(
                    "what log p of the current value less log p of the other loses when the session {about}"
                ),
                unit: "nats",
                group: "effect",
                from: None,
                values: self.by_label(|label| values.get(label).copied()),
                baseline: with_controls.then(|| {
                    (json!(control), "median effect of random text of the session's length".to_owned())
                }),
                band: if with_controls { band(&controls) } else { None },
            });
        }
    }

    /// Measures of the question's and the answer's attention that are held against effects.
    pub fn measures(&mut self, measures: &SessionMeasures, layers: &[Layer]) {
        let overall = overall_of(measures, layers);
        let place = |label: &str| measures.spans.iter().position(|span| span == label);
        let kinds = [
            (
                Predictor::ValueNorm,
                "share",
                "value",
                "the question's weights by the length of the values that they take, a share of the layer's sum, mean over layers",
            ),
            (
                Predictor::OutputNorm,
                "share",
                "value",
                "the length of what the heads write from the session, a share of the layer's sum, mean over layers",
            ),
            (
                Predictor::Attribution,
                "logit",
                "value",
                "contribution to the answer's own logits, summed over heads, mean over layers",
            ),
            (
                Predictor::AnswerMass,
                "share",
                "attention",
                "mass from the positions that predict the answer, mean over layers and heads",
            ),
        ];
        for (predictor, unit, group, about) in kinds {
            let Some(values) = overall.get(&predictor) else { continue };
            self.push(Strip {
                key: predictor.key(),
                label: predictor.label(),
                about: about.to_owned(),
                unit,
                group,
                from: None,
                values: self.by_label(|label| values.get(place(label)?).copied()),
                baseline: None,
                band: None,
            });
        }
    }
}

/// The middle of the controls' effects; `None` of too few.
fn band(drops: &[f64]) -> Option<[f64; 2]> {
    let mut sorted: Vec<f64> = drops.iter().copied().filter(|drop| drop.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    (sorted.len() >= LEAST).then(|| BAND.map(|at| quantile(&sorted, at)))
}

/// Names of ways, as replies group rows.
pub const WAYS: [(&str, &[Way]); 7] = [
    ("direct", &[Way::Direct]),
    ("windows", &[Way::Window]),
    ("control", &[Way::Control]),
    ("total", &[Way::Total]),
    ("replaced", &[Way::Replaced]),
    ("carriers", &[Way::Carrier]),
    ("contextcite", &[Way::Surrogate]),
];
