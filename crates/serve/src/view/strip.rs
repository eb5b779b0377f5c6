//! Per-session values of one answer: attention, effects, controls, norms.
//!
//! Uses the lens' definitions ([`palimpsest_analysis::lens::causes`], [`palimpsest_analysis::lens::layers`]).

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;
use serde_json::{Value, json};

use super::attention::Attention;
use super::ranks::kind_of;
use super::sessions::Session;
use ndarray::s;
use palimpsest_analysis::lens::Layer;
use palimpsest_analysis::lens::causes::{Predictor, overall_of};
use palimpsest_core::attention::{AttentionStore, Selected};
use palimpsest_data::ground::numbers::quantile;
use palimpsest_data::statistics::control::control_of;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow};
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

    /// Adds the controls' band, given at least `LEAST` of them.
    fn with_band(self, pool: &Pool) -> Self {
        let mut drops: Vec<f64> =
            pool.iter().map(|(_, drop)| *drop).filter(|drop| drop.is_finite()).collect();
        drops.sort_by(f64::total_cmp);
        let band = (drops.len() >= LEAST).then(|| BAND.map(|at| quantile(&drops, at)));
        let [baseline_low, baseline_high] = [0, 1].map(|end| band.map(|band| band[end]));
        Strip { baseline_low, baseline_high, ..self }
    }
}

/// Drops in nats by session.
type Drops<'a> = BTreeMap<&'a str, (Range<usize>, f64)>;
/// Drops of random stretches, in nats.
type Pool = [(Range<usize>, f64)];

const EFFECT: [&str; 2] = ["nats", "effect"];

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
    pub fn attention(&mut self, Attention { store, by_layer, viewer, .. }: &Attention) {
        let Some(kind) = kind_of(&by_layer.layers) else { return };
        let layers = by_layer.layers.iter().enumerate().filter(|(_, layer)| layer.kind == kind);
        let layers: Vec<usize> = layers.map(|(at, _)| at).collect();
        let mut rows: Vec<usize> = (0..store.rows.len()).collect();
        rows.sort_by_key(|row| (Some(*row) != *viewer, *row));
        for row in rows {
            let name = &store.rows[row].label;
            let (mass, share) = (&by_layer.mass, &by_layer.share);
            let means = |of: &dyn Fn([usize; 3]) -> f64| -> Vec<Option<f64>> {
                let mean = |session: &Session| {
                    let span = session.span?;
                    let values = layers.iter().map(|&layer| of([layer, row, span]));
                    let known: Vec<f64> = values.filter(|value| value.is_finite()).collect();
                    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
                };
                self.sessions.iter().map(mean).collect()
            };
            let masses = means(&|at| mass[at]);
            let densities = means(&|at| if share[at] > 0.0 { mass[at] / share[at] } else { f64::NAN });
            let kind = kind.key();
            let about = format!(
                "attention that a token of `{name}` pays to the whole session, mean over heads and {kind} layers"
            );
            let names = [&format!("mass.{name}"), &format!("mass from the {name}"), about.as_str()];
            let from = Some(name.clone());
            self.push(Strip { from: from.clone(), ..Strip::new(names, ["share", "attention"], masses) });
            let about = format!(
                "that mass over the mass of uniform attention, layer by layer, mean over {kind} layers"
            );
            let names = [&format!("density.{name}"), &format!("density from the {name}"), about.as_str()];
            let density = Strip::new(names, ["ratio", "attention"], densities);
            self.push(Strip {
                from: from.clone(),
                ..density.with_baseline(json!(1.0), "1: as uniform attention")
            });
            self.selected(store, row, from);
        }
    }

    /// Shares that the layers' choices of keys left to a row, if the file tells.
    fn selected(&mut self, store: &AttentionStore, row: usize, from: Option<String>) {
        let Some(Selected { selected, forgone }) = &store.selected else { return };
        let name = &store.rows[row].label;
        for (key, found, about) in [
            ("selected", selected, "share of the session's tokens that a layer's choice of keys leaves to"),
            (
                "forgone",
                forgone,
                "attention to the session's other tokens, over all keys, that is forgone by",
            ),
        ] {
            let mean = |session: &Session| {
                let of_layers = found.slice(s![.., row, session.span?]);
                let known: Vec<f64> =
                    of_layers.iter().map(|x| f64::from(*x)).filter(|x| x.is_finite()).collect();
                (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
            };
            let values = self.sessions.iter().map(mean).collect();
            let about = format!("{about} a token of `{name}`, mean over softmax layers");
            let names = [&format!("{key}.{name}"), &format!("{key}, {name}"), about.as_str()];
            self.push(Strip { from: from.clone(), ..Strip::new(names, ["share", "attention"], values) });
        }
    }

    fn drops(&self, drops: &Drops<'_>) -> Vec<Option<f64>> {
        self.by_label(|label| Some(drops.get(label)?.1 + 0.0))
    }

    /// Effects of hidden sessions, beside their controls, which are returned.
    fn direct(&mut self, names: [&str; 3], direct: &Drops<'_>, pool: &Pool) -> Vec<Option<f64>> {
        let control = self.by_label(|label| {
            control_of(&direct.get(label)?.0, pool.iter().map(|(stretch, drop)| (stretch, *drop)))
        });
        let strip = Strip::new(names, EFFECT, self.drops(direct)).with_band(pool);
        self.push(match control.iter().any(Option::is_some) {
            true => strip.with_baseline(json!(control), OF_CONTROLS),
            false => strip,
        });
        control
    }

    pub fn effects(&mut self, lines: &[CauseLine], seed: Option<u64>) {
        let (mut direct, mut total, mut replaced) = (Drops::new(), Drops::new(), Drops::new());
        let mut forced = Drops::new();
        let (mut kl, mut pool) = (BTreeMap::new(), Vec::new());
        let mut weights: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
        let is_whole = |row: &CauseRow| row.layers.is_none() && row.seed == seed;
        let drop = |row: &CauseRow| (row.tokens[0]..row.tokens[1], row.effect.log_p_drop);
        for line in lines {
            match line {
                CauseLine::Control(row) if is_whole(row) => pool.push(drop(row)),
                CauseLine::Blocked(row) if is_whole(row) => {
                    direct.insert(&row.span, drop(row));
                    kl.insert(row.span.as_str(), row.effect.kl);
                }
                CauseLine::Total(row) => _ = total.insert(&row.span, drop(row)),
                CauseLine::Replaced(row) => _ = replaced.insert(&row.span, drop(row)),
                CauseLine::Forced(row) => _ = forced.insert(&row.span, drop(row)),
                CauseLine::Surrogate(row) => {
                    let name = format!("contextcite.{}_{}", row.ablation.key(), row.subsets);
                    let own = row.weights.iter().map(|one| (one.span.as_str(), one.weight));
                    weights.insert(name, own.collect());
                }
                _ => {}
            }
        }
        let about = "log-probability per token that the answer loses when the session is hidden from everything from the question on";
        let control = self.direct(["direct", "direct effect", about], &direct, &pool);
        let about =
            "median effect of hiding random text without marked evidence of about the session's length";
        let names = ["control", "control effect", about];
        self.push(Strip::new(names, ["nats", "control"], control).with_band(&pool));
        let about = "divergence of the first answer token's distribution when the session is hidden";
        let values = self.by_label(|label| kl.get(label).copied());
        self.push(Strip::new(["direct.kl", "direct effect (KL)", about], EFFECT, values));
        let about = "log-probability per token that the answer loses when the session is removed and the rest computed anew";
        self.push(Strip::new(["total", "total effect", about], EFFECT, self.drops(&total)));
        let about = "log-probability per token that the answer loses when neutral text of equal length stands in the session's place";
        let names = ["replaced", "effect of neutral text in its place", about];
        self.push(Strip::new(names, EFFECT, self.drops(&replaced)));
        let about = "log-probability per token that the answer loses when layers that choose keys (sliding windows, indexers) also see the session; below 0 it gains";
        self.push(Strip::new(["forced", "effect of forcing it", about], EFFECT, self.drops(&forced)));
        for (name, weights) in weights {
            let about = "coefficient of the session in a sparse linear surrogate of the answer's logit";
            let values = self.by_label(|label| weights.get(label).copied());
            self.push(Strip::new([&name, "ContextCite weight", about], ["logit", "effect"], values));
        }
    }

    pub fn contrasts(&mut self, rows: &[ContrastCauseRow]) {
        let of = |ablation| {
            let whole = rows.iter().filter(|row| row.layers.is_none() && row.carrier.is_none());
            let own = whole.filter(move |row| row.ablation == ablation);
            own.map(|row| (row.span.as_str(), (row.tokens[0]..row.tokens[1], row.drop)))
        };
        let about = |change| {
            format!(
                "loss of the contrast (log p of the current value minus log p of the other) when the session {change}"
            )
        };
        let pool: Vec<_> = of(AblationKind::Control).map(|(_, drop)| drop).collect();
        let direct = about("is hidden from everything from the question on");
        let names = ["contrast.direct", "direct effect on the contrast", &direct];
        self.direct(names, &of(AblationKind::Blocked).collect(), &pool);
        let total = about("is removed and the rest computed anew");
        let names = ["contrast.total", "total effect on the contrast", &total];
        self.push(Strip::new(names, EFFECT, self.drops(&of(AblationKind::Removed).collect())));
        let replaced = about("has neutral text in its place");
        let names = ["contrast.replaced", "effect on the contrast of neutral text", &replaced];
        self.push(Strip::new(names, EFFECT, self.drops(&of(AblationKind::Replaced).collect())));
        let forced = about("is also seen by layers that choose keys (sliding windows, indexers)");
        let names = ["contrast.forced", "effect on the contrast of forcing it", &forced];
        self.push(Strip::new(names, EFFECT, self.drops(&of(AblationKind::Forced).collect())));
    }

    pub fn measures(&mut self, measures: &SessionMeasures, layers: &[Layer]) {
        let overall = overall_of(measures, layers);
        let place = |label: &str| measures.spans.iter().position(|span| span == label);
        let kinds = [
            (
                Predictor::ValueNorm,
                ["share", "value"],
                "the question's attention weights times the length of the values, a share of the layer's sum, mean over layers",
            ),
            (
                Predictor::OutputNorm,
                ["share", "value"],
                "the length of the heads' output from the session, a share of the layer's sum, mean over layers",
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
