//! Whether what a session gets tells what the answer owes to it.
//!
//! The effect of a session is what an answer's mean log-probability a token loses when everything from the question on is kept from
//! seeing the session ([`crate::run::causes`]). Each measure of attention ([`Predictor`]) gives every session a number; how well it
//! tells the effects is the rank correlation (Spearman) over the sessions of one answer, and whether the evidence is among the
//! [`TOP`] sessions with the largest numbers. Both are taken within an answer, so that answers that depend on their history
//! more than others do not make a correlation, and averaged over units of the benchmark with a bootstrap band.
//!
//! The ridge regression predicts a session's effect from the mass that the question pays it by layer and head. It is fitted on half of
//! the units, with the penalty that predicts best in a cross-validation among them, and judged on the other half; then the halves
//! change places, so that every answer is judged by a fit that did not see its case.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ndarray::{Array1, Array2, Array4, ArrayView4, Axis};

use super::band::{Estimate, Point, Resampling};
use super::group::mean_by_layer;
use super::strip::Place;
use super::windowed::{EffectMap, WindowedAnswer, WindowedSession, at_place};
use super::{ByHeads, Correctness, Group, Layer, LayerKind, LensError, Series, Statistic, Study};
use crate::benchmarks::{Scale, Unit};
use crate::data::draw::Draws;
use crate::heads::file::{HeadWeights, HeadsFileError, Score};
use crate::run::cause_rows::{CauseRow, SessionWeight, read_causes, read_surrogates, read_totals};
use crate::run::session_measures::{ROWS, SessionMeasures, measures_path};
use crate::statistics::rank::spearman;
use crate::statistics::ridge::Ridge;

/// Sessions among which the evidence is to be found.
pub const TOP: usize = 3;

/// Something that may tell what an answer owes to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predictor {
    /// What the question's tokens pay to it.
    Mass,
    /// The same over what uniform attention would pay.
    Density,
    /// What the positions pay to it that predict the answer.
    AnswerMass,
    /// The mass with each key weighted by the length of what it writes.
    ValueNorm,
    /// The length of what is read of it.
    OutputNorm,
    /// What is read of it adds to the answer's own logits.
    Attribution,
    /// The question's mass by the retrieval scores of heads in the place of their plain mean.
    RetrievalHeads,
    /// The same by what heads look more at a needle for a question than for none.
    QrHeads,
    /// The mass by layer and head under the weights of a ridge regression on effects.
    Ridge,
    /// What the answer loses when the session is removed and all after it read again: its total effect, indirect paths with it.
    Total,
    /// The weight of the session in ContextCite's surrogate.
    ContextCite,
    /// The effect itself, which measures are held against where the evidence is looked for.
    Effect,
}

impl Predictor {
    /// Those that have a number at every layer, in the order of the figures.
    pub const BY_LAYER: [Predictor; 8] = [
        Predictor::Mass,
        Predictor::Density,
        Predictor::AnswerMass,
        Predictor::ValueNorm,
        Predictor::OutputNorm,
        Predictor::Attribution,
        Predictor::RetrievalHeads,
        Predictor::QrHeads,
    ];

    /// As tables write it.
    pub fn key(self) -> &'static str {
        match self {
            Predictor::Mass => "mass",
            Predictor::Density => "density",
            Predictor::AnswerMass => "answer_mass",
            Predictor::ValueNorm => "value_norm",
            Predictor::OutputNorm => "output_norm",
            Predictor::Attribution => "attribution",
            Predictor::RetrievalHeads => "retrieval_heads",
            Predictor::QrHeads => "qr_heads",
            Predictor::Ridge => "ridge",
            Predictor::Total => "total_effect",
            Predictor::ContextCite => "contextcite",
            Predictor::Effect => "effect",
        }
    }

    /// As figures write it.
    pub fn label(self) -> &'static str {
        match self {
            Predictor::Mass => "mass from the question",
            Predictor::Density => "density from the question",
            Predictor::AnswerMass => "mass from the answer",
            Predictor::ValueNorm => "value norm",
            Predictor::OutputNorm => "output norm",
            Predictor::Attribution => "attribution",
            Predictor::RetrievalHeads => "mass by retrieval heads",
            Predictor::QrHeads => "mass by QR heads",
            Predictor::Ridge => "ridge over heads (held out)",
            Predictor::Total => "total effect (removed)",
            Predictor::ContextCite => "ContextCite",
            Predictor::Effect => "effect itself",
        }
    }
}

/// A session and what the answer owes to it.
#[derive(Debug, Clone, PartialEq)]
pub struct CausedSession {
    /// Its name.
    pub span: String,
    /// The part that it plays, if any.
    pub role: Option<String>,
    /// What the answer's natural-log probability a token loses without it.
    pub effect: f64,
    /// The divergence of the first token's distribution, in nats.
    pub kl: f64,
    /// Whether some choice changes.
    pub changed: bool,
    /// The effect of its control, if it has one.
    pub control: Option<f64>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub struct CausedAnswer {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition; empty for the plain one.
    pub condition: String,
    /// The verdict, where there is one.
    pub correct: Option<bool>,
    /// Its sessions.
    pub sessions: Vec<CausedSession>,
    /// By measure: (layers, sessions).
    by_layer: BTreeMap<Predictor, Array2<f64>>,
    /// By measure: a number a session.
    overall: BTreeMap<Predictor, Vec<f64>>,
    /// The question's mass: (sessions, layers * heads).
    features: Array2<f64>,
}

/// What was found by removing sessions, by case, probe, condition and session.
struct Removals(BTreeMap<Predictor, BTreeMap<[String; 4], f64>>);

impl Removals {
    fn read(dir: &Path) -> Result<Self, LensError> {
        let key = |case: &str, probe: &str, condition: &str, span: &str| {
            [case, probe, condition, span].map(str::to_owned)
        };
        let totals = read_totals(dir)?.into_iter();
        let totals =
            totals.map(|row| (key(&row.case, &row.probe, &row.condition, &row.span), -row.total.log_p));
        // Of several surrogates of an answer the last one counts.
        let surrogates = read_surrogates(dir)?.into_iter().flat_map(|row| {
            let of = move |weight: &SessionWeight| {
                (key(&row.case, &row.probe, &row.condition, &weight.span), weight.weight)
            };
            row.weights.iter().map(of).collect::<Vec<_>>()
        });
        let found = [(Predictor::Total, totals.collect()), (Predictor::ContextCite, surrogates.collect())];
        Ok(Removals(found.into()))
    }

    /// An answer with what was found of it; a session of which nothing was found has no number.
    fn beside(&self, mut answer: CausedAnswer) -> CausedAnswer {
        for (predictor, found) in &self.0 {
            let of = |session: &CausedSession| {
                let key = [&answer.case, &answer.probe, &answer.condition, &session.span].map(String::clone);
                found.get(&key).copied().unwrap_or(f64::NAN)
            };
            let values: Vec<f64> = answer.sessions.iter().map(of).collect();
            if values.iter().any(|value| !value.is_nan()) {
                answer.overall.insert(*predictor, values);
            }
        }
        answer
    }
}

/// The answers of a run whose causes were measured.
#[derive(Debug, Clone)]
pub struct Causes {
    /// What is counted.
    pub unit: Unit,
    /// The softmax layers.
    pub layers: Vec<Layer>,
    /// Those whose sessions were blocked at all layers.
    pub answers: Vec<CausedAnswer>,
    /// Parts that sessions play, in order of first appearance.
    pub roles: Vec<String>,
    /// The penalty of each half's ridge regression; empty where there are too few units for one.
    pub penalties: Vec<f64>,
    /// Those whose sessions were blocked at a window of layers at a time.
    pub windowed: Vec<WindowedAnswer>,
    resamples: usize,
    seed: u64,
}

/// Units of each half that a ridge regression needs at least.
const LEAST_UNITS: usize = 4;

/// What the penalty is chosen from, for features of variance 1.
const PENALTIES: [f64; 6] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5];

/// Parts of a cross-validation.
const FOLDS: usize = 4;

impl Causes {
    /// What was measured of the conditions of a study; `None` where nothing was.
    ///
    /// # Errors
    /// Those of the run's files.
    pub fn open(study: &Study) -> Result<Option<Self>, LensError> {
        let Some(first) = study.conditions.first() else { return Ok(None) };
        let dir = first.run.path();
        let mut rows = read_causes(dir)?;
        // Of several seeds of the controls the last one counts.
        let seed = rows.last().map(|row| row.seed);
        rows.retain(|row| Some(row.seed) == seed && study.conditions.iter().any(|c| c.name == row.condition));
        let unit = study.benchmark.unit();
        let mut by_answer: BTreeMap<(String, String, String), Vec<CauseRow>> = BTreeMap::new();
        let mut windowed = Vec::new();
        for row in rows {
            match row.layers {
                None => {
                    let key = (row.case.clone(), row.probe.clone(), row.condition.clone());
                    by_answer.entry(key).or_default().push(row);
                }
                Some(_) => windowed.push(row),
            }
        }
        let windowed = super::windowed::answers(windowed);
        let weighted = weighted(study)?;
        let removals = Removals::read(dir)?;
        let mut answers = Vec::new();
        let mut indices: Vec<usize> = Vec::new();
        for ((case, probe, condition), rows) in by_answer {
            let path = measures_path(dir, &case, &probe, &condition);
            if !path.is_file() {
                continue;
            }
            let measures = SessionMeasures::open(&path)?;
            indices.extend(&measures.layers);
            let verdicts = study.conditions.iter().find(|known| known.name == condition);
            let correct = verdicts
                .filter(|_| study.no_result.is_none())
                .and_then(|known| known.verdicts.correct(&case, &probe));
            if let (Some(by), Some((_, weights))) = (&study.options().heads, weighted.first()) {
                by.fits(weights, &path, (&measures.layers, measures.mass.dim().1))?;
            }
            let (answer, of) = ((case, probe, condition), (&measures, weighted.as_slice()));
            let answer = CausedAnswer::new(answer, correct, &rows, of, study.layers());
            answers.extend(answer.map(|answer| removals.beside(answer)));
        }
        if answers.is_empty() && windowed.is_empty() {
            return Ok(None);
        }
        indices.extend(windowed.iter().flat_map(WindowedAnswer::layers));
        indices.sort_unstable();
        indices.dedup();
        let layer = |index: &usize| layer_of(study.layers(), *index);
        let layers: Vec<Layer> = indices.iter().map(layer).filter(|layer| !layer.is_linear()).collect();
        let mut roles: Vec<String> = Vec::new();
        let blocked = answers.iter().flat_map(|a| &a.sessions).filter_map(|session| session.role.as_ref());
        let others = windowed.iter().flat_map(|a| &a.sessions).filter_map(|session| session.role.as_ref());
        for role in blocked.chain(others) {
            if !roles.contains(role) {
                roles.push(role.clone());
            }
        }
        roles.sort_by_key(|role| study.benchmark.anchors().iter().position(|anchor| anchor == role));
        let options = study.options();
        let (resamples, seed) = (options.resamples, options.seed);
        let mut causes =
            Causes { unit, layers, answers, roles, penalties: Vec::new(), windowed, resamples, seed };
        causes.fit();
        Ok(Some(causes))
    }

    /// Units with an answer.
    pub fn units(&self) -> usize {
        self.answers.iter().map(|answer| self.unit_of(answer)).collect::<BTreeSet<_>>().len()
    }

    /// The measures that answers have, in the order of the figures.
    pub fn predictors(&self) -> Vec<Predictor> {
        let mut all = Predictor::BY_LAYER.to_vec();
        all.extend([Predictor::Ridge, Predictor::ContextCite, Predictor::Total]);
        all.retain(|one| self.answers.iter().any(|answer| answer.overall.contains_key(one)));
        all
    }

    /// The rank correlation of a measure with the effects at each layer, within answers.
    pub fn rank_by_layer(&self, predictor: Predictor) -> Series {
        let of_answer = |answer: &CausedAnswer| {
            let values = answer.by_layer.get(&predictor)?;
            let effects = answer.effects();
            let of_layer = |layer: &[f64]| spearman(layer, &effects).unwrap_or(f64::NAN);
            Some(values.outer_iter().map(|layer| of_layer(&layer.to_vec())).collect())
        };
        self.series(predictor.key(), self.over_units(of_answer, self.layers.len()))
    }

    /// The rank correlation of a measure with the effects, within answers: of its mean over the layers that see the whole prompt.
    pub fn rank(&self, predictor: Predictor) -> Option<Estimate> {
        self.one(|answer| spearman(answer.overall.get(&predictor)?, &answer.effects()))
    }

    /// How often the session in a role is among the [`TOP`] with the largest numbers; where several play it, the share of them.
    pub fn found(&self, predictor: Predictor, role: &str) -> Option<Estimate> {
        self.one(|answer| {
            let effects = answer.effects();
            let values = match predictor {
                Predictor::Effect => &effects,
                other => answer.overall.get(&other)?,
            };
            let known = |at: &usize| !values[*at].is_nan();
            let mut order: Vec<usize> = (0..values.len()).filter(known).collect();
            order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
            let playing = answer.playing(role);
            let found = playing.iter().filter(|at| order.iter().take(TOP).any(|top| top == *at)).count();
            (!playing.is_empty()).then(|| found as f64 / playing.len() as f64)
        })
    }

    /// [`Causes::found`] by drawing sessions blindly.
    pub fn chance(&self, role: &str) -> Option<f64> {
        let of_answer = |answer: &CausedAnswer| {
            let sessions = answer.sessions.len();
            (!answer.playing(role).is_empty()).then(|| TOP.min(sessions) as f64 / sessions as f64)
        };
        self.one(of_answer)?.value
    }

    /// The mean effect of the sessions in a role, or of all others, of answers with a verdict.
    pub fn effect(&self, role: Option<&str>, correctness: Correctness) -> Option<Estimate> {
        self.one(|answer| {
            correctness.holds(answer.correct).then_some(())?;
            let playing = |session: &&CausedSession| session.role.as_deref() == role;
            mean(answer.sessions.iter().filter(playing).map(|session| session.effect))
        })
    }

    /// The mean total effect of the sessions in a role, or of all others, of answers with a verdict.
    pub fn total(&self, role: Option<&str>, correctness: Correctness) -> Option<Estimate> {
        self.one(|answer| {
            correctness.holds(answer.correct).then_some(())?;
            let totals = answer.overall.get(&Predictor::Total)?;
            let playing =
                answer.sessions.iter().zip(totals).filter(|(session, _)| session.role.as_deref() == role);
            mean(playing.map(|(_, total)| *total))
        })
    }

    /// The mean effect of the controls of the sessions that play a part.
    pub fn control(&self, correctness: Correctness) -> Option<Estimate> {
        self.one(|answer| {
            correctness.holds(answer.correct).then_some(())?;
            let playing = answer.sessions.iter().filter(|session| session.role.is_some());
            mean(playing.filter_map(|session| session.control))
        })
    }

    /// Whether a window of layers was blocked at a time.
    pub fn has_windows(&self) -> bool {
        !self.windowed.is_empty()
    }

    /// The parts that sessions play in windows; [`OTHERS`] is none.
    pub fn windowed_roles(&self) -> Vec<&str> {
        let mut roles: Vec<&str> = self.roles.iter().map(String::as_str).collect();
        roles.push(OTHERS);
        let played = |role: &str| self.windowed_sessions().any(|(_, session)| plays(session, role));
        roles.retain(|role| played(role));
        roles
    }

    fn windowed_sessions(&self) -> impl Iterator<Item = (&WindowedAnswer, &WindowedSession)> {
        self.windowed.iter().flat_map(|answer| answer.sessions.iter().map(move |session| (answer, session)))
    }

    /// The mean effect of the sessions in a role by the layers at which they were blocked, each layer with that of its window. Without
    /// a role, that of the controls of those that play one.
    pub fn by_window(&self, role: Option<&str>) -> Series {
        let layers = self.layer_numbers();
        let mut units: BTreeMap<(String, String), Vec<Vec<f64>>> = BTreeMap::new();
        for (answer, session) in self.windowed_sessions() {
            let values = match role {
                Some(role) => plays(session, role).then(|| session.by_layer(&layers)),
                None => session.role.is_some().then(|| session.control_by_layer(&layers)),
            };
            let unit = unit_key(self.unit, &answer.case, &answer.probe);
            units.entry(unit).or_default().extend(values);
        }
        let rows =
            units.values().filter_map(|all| mean_by_layer(all.iter().map(Vec::as_slice), layers.len()));
        self.series(role.unwrap_or("control"), rows.collect())
    }

    /// The mean over units of the effects by layer at each place of the history, aligned at the evidence: of the answers to a probe, or
    /// to all of them.
    pub fn effect_map(&self, probe: Option<&str>, anchors: &[&str]) -> EffectMap {
        let layers = self.layer_numbers();
        let mut units: BTreeMap<(String, String), Vec<&WindowedAnswer>> = BTreeMap::new();
        for answer in self.windowed.iter().filter(|answer| probe.is_none_or(|probe| answer.probe == probe)) {
            units.entry(unit_key(self.unit, &answer.case, &answer.probe)).or_default().push(answer);
        }
        let mean = |all: &[Vec<f64>]| mean_by_layer(all.iter().map(Vec::as_slice), layers.len());
        let cells = Place::all(anchors.len()).into_iter().map(|place| {
            let of_unit = |answers: &Vec<&WindowedAnswer>| {
                let here = answers.iter().filter_map(|answer| at_place(answer, anchors, place, &layers));
                mean(&here.collect::<Vec<_>>())
            };
            let of_units: Vec<Vec<f64>> = units.values().filter_map(of_unit).collect();
            (place, of_units.len(), mean(&of_units))
        });
        EffectMap { probe: probe.map(str::to_owned), n: units.len(), cells: cells.collect() }
    }

    /// The layers' places in the decoder.
    pub fn layer_numbers(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| layer.index).collect()
    }

    fn unit_of(&self, answer: &CausedAnswer) -> (String, String) {
        unit_key(self.unit, &answer.case, &answer.probe)
    }

    /// A list of numbers an answer, averaged over each unit's.
    fn over_units(&self, of: impl Fn(&CausedAnswer) -> Option<Vec<f64>>, width: usize) -> Vec<Vec<f64>> {
        let mut units: BTreeMap<(String, String), Vec<Vec<f64>>> = BTreeMap::new();
        for answer in &self.answers {
            if let Some(values) = of(answer) {
                units.entry(self.unit_of(answer)).or_default().push(values);
            }
        }
        units.values().filter_map(|rows| mean_by_layer(rows.iter().map(Vec::as_slice), width)).collect()
    }

    /// The mean over units of one number an answer; `None` where no answer has one.
    fn one(&self, of: impl Fn(&CausedAnswer) -> Option<f64>) -> Option<Estimate> {
        let rows = self.over_units(|answer| of(answer).map(|value| vec![value]), 1);
        let found = self.estimates(&rows, 1).into_iter().next();
        found.filter(|estimate| estimate.value.is_some())
    }

    fn estimates(&self, rows: &[Vec<f64>], width: usize) -> Vec<Estimate> {
        let matrix = Array2::from_shape_fn((rows.len(), width), |(row, column)| rows[row][column]);
        Resampling::new(rows.len().max(1), self.resamples, self.seed).means(&if rows.is_empty() {
            Array2::from_elem((1, width), f64::NAN)
        } else {
            matrix
        })
    }

    fn series(&self, what: &str, rows: Vec<Vec<f64>>) -> Series {
        let estimates = self.estimates(&rows, self.layers.len());
        let point = |(estimate, &layer): (Estimate, &Layer)| Point {
            layer,
            n: estimate.n,
            undefined: rows.len().saturating_sub(estimate.n),
            value: estimate.value,
            band: estimate.band,
            cases: estimate.each,
            signed: None,
        };
        let points: Vec<Point> = estimates.into_iter().zip(&self.layers).map(point).collect();
        let n = points.iter().map(|point| point.n).max().unwrap_or(0);
        let (statistic, scale) = (Statistic::Measure("causes"), Scale::Mass);
        Series { group: Group::all(), probes: what.to_owned(), statistic, scale, n, points }
    }

    /// Fits both halves, and keeps what each says of the other.
    fn fit(&mut self) {
        let mut units: Vec<(String, String)> = self.answers.iter().map(|a| self.unit_of(a)).collect();
        units.sort_unstable();
        units.dedup();
        if units.len() < 2 * LEAST_UNITS {
            return;
        }
        Draws::new("ridge halves", self.seed, "").shuffle(&mut units);
        let (one, other) = units.split_at(units.len() / 2);
        let mut said: Vec<(usize, Vec<f64>)> = Vec::new();
        for (train, judged) in [(one, other), (other, one)] {
            let folds: Vec<(usize, &CausedAnswer)> = (self.answers.iter())
                .filter_map(|answer| {
                    let place = train.iter().position(|unit| *unit == self.unit_of(answer))?;
                    Some((place % FOLDS, answer))
                })
                .collect();
            let Some((scaled, ridge, penalty)) = fit_best(&folds) else { return };
            self.penalties.push(penalty);
            for (at, answer) in self.answers.iter().enumerate() {
                if judged.contains(&self.unit_of(answer)) {
                    let features = scaled.of(&answer.features);
                    said.push((at, features.outer_iter().map(|row| ridge.predict(row)).collect()));
                }
            }
        }
        for (at, values) in said {
            self.answers[at].overall.insert(Predictor::Ridge, values);
        }
    }
}

/// What sessions are called that play no part.
pub const OTHERS: &str = "others";

fn unit_key(unit: Unit, case: &str, probe: &str) -> (String, String) {
    match unit {
        Unit::Case => (case.to_owned(), String::new()),
        Unit::Probe => (case.to_owned(), probe.to_owned()),
    }
}

/// Whether a session plays a part; [`OTHERS`] is none.
fn plays(session: &WindowedSession, role: &str) -> bool {
    session.role.as_deref().unwrap_or(OTHERS) == role
}

fn layer_of(known: &[Layer], index: usize) -> Layer {
    let found = known.iter().find(|layer| layer.index == index).copied();
    found.unwrap_or(Layer { index, kind: LayerKind::Softmax })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

/// The heads' weights of a study that has a file of them, of each score that some head has.
fn weighted(study: &Study) -> Result<Vec<(Predictor, HeadWeights)>, LensError> {
    let (Some(by), Some(first)) = (&study.options().heads, study.conditions.first()) else {
        return Ok(Vec::new());
    };
    let scores = [(Predictor::RetrievalHeads, Score::Retrieval), (Predictor::QrHeads, Score::Qr)];
    let mut found = Vec::new();
    for (predictor, score) in scores {
        match (ByHeads { path: by.path.clone(), score }).of(&first.run) {
            Ok(weights) => found.push((predictor, weights)),
            Err(LensError::Heads(HeadsFileError::NoRetrieval { .. } | HeadsFileError::NoWeight { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// (layers, spans) of the question's mass, averaged over heads by their weights; NaN at layers where none has one.
fn by_weight(measures: &SessionMeasures, heads: &HeadWeights) -> Array2<f64> {
    let (layers, count, _, spans) = measures.mass.dim();
    Array2::from_shape_fn((layers, spans), |(l, s)| {
        let of_head = |h: usize| heads.weights[[l, h]] * f64::from(measures.mass[[l, h, 0, s]]);
        let all: f64 = heads.weights.row(l).sum();
        if all > 0.0 { (0..count).map(of_head).sum::<f64>() / all } else { f64::NAN }
    })
}

/// (layers, spans) of one row, averaged over heads.
fn over_heads(values: ArrayView4<'_, f32>, row: usize) -> Array2<f64> {
    let of_row = values.index_axis(Axis(2), row).mapv(f64::from); // (layers, heads, spans)
    let heads = of_row.len_of(Axis(1)).max(1) as f64;
    of_row.sum_axis(Axis(1)) / heads
}

impl CausedAnswer {
    /// Of an answer's rows and measures; `None` where no session is in both.
    fn new(
        (case, probe, condition): (String, String, String),
        correct: Option<bool>,
        rows: &[CauseRow],
        (measures, weighted): (&SessionMeasures, &[(Predictor, HeadWeights)]),
        layers: &[Layer],
    ) -> Option<Self> {
        let place = |row: &CauseRow| measures.spans.iter().position(|span| *span == row.span);
        let placed: Vec<(usize, &CauseRow)> =
            rows.iter().filter_map(|row| Some((place(row)?, row))).collect();
        if placed.is_empty() {
            return None;
        }
        let chosen: Vec<usize> = placed.iter().map(|(at, _)| *at).collect();
        let (query, answer) = (0, ROWS.len() - 1);
        let mass = over_heads(measures.mass.view(), query);
        let share = measures.share.index_axis(Axis(1), query).mapv(f64::from);
        let density = ndarray::Zip::from(&mass).and(&share).map_collect(|mass, share| match *share > 0.0 {
            true => mass / share,
            false => f64::NAN,
        });
        let (of_layers, heads, spans) = measures.attribution.dim();
        let attribution = measures.attribution.mapv(f64::from).sum_axis(Axis(1));
        let by_heads = weighted.iter().map(|(predictor, heads)| (*predictor, by_weight(measures, heads)));
        let by_layer: BTreeMap<Predictor, Array2<f64>> = [
            (Predictor::Mass, mass),
            (Predictor::Density, density),
            (Predictor::AnswerMass, over_heads(measures.mass.view(), answer)),
            (Predictor::ValueNorm, over_heads(measures.value_norm.view(), query)),
            (Predictor::OutputNorm, over_heads(measures.output_norm.view(), query)),
            (Predictor::Attribution, attribution),
        ]
        .into_iter()
        .chain(by_heads)
        .map(|(predictor, values)| (predictor, values.select(Axis(1), &chosen)))
        .collect();
        // What averages over layers averages over one kind: those that see the whole prompt, where there are any.
        let kinds: Vec<LayerKind> =
            measures.layers.iter().map(|&index| layer_of(layers, index).kind).collect();
        let whole = kinds.contains(&LayerKind::Softmax);
        let counts = |layer: &usize| !whole || kinds[*layer] == LayerKind::Softmax;
        let over: Vec<usize> = (0..kinds.len()).filter(counts).collect();
        let overall = (by_layer.iter())
            .map(|(predictor, values)| {
                // A layer weighs as much as its heads do.
                let heads = weighted.iter().find(|(known, _)| known == predictor).map(|(_, heads)| heads);
                let weight = |layer: usize| heads.map_or(1.0, |heads| heads.weights.row(layer).sum());
                let of_session = |session: usize| {
                    let known = over.iter().filter(|&&layer| values[[layer, session]].is_finite());
                    let (sum, all) = known.fold((0.0, 0.0), |(sum, all), &layer| {
                        (sum + weight(layer) * values[[layer, session]], all + weight(layer))
                    });
                    if all > 0.0 { sum / all } else { f64::NAN }
                };
                (*predictor, (0..values.ncols()).map(of_session).collect())
            })
            .collect();
        let features = Array4::from_shape_fn((spans, of_layers, heads, 1), |(s, l, h, _)| {
            f64::from(measures.mass[[l, h, query, s]])
        });
        let features = features.into_shape_with_order((spans, of_layers * heads)).ok()?;
        let sessions = placed.iter().map(|(_, row)| CausedSession {
            span: row.span.clone(),
            role: row.role.clone(),
            effect: -row.effect.log_p,
            kl: row.effect.kl,
            changed: row.effect.changed,
            control: row.control.map(|control| -control.effect.log_p),
        });
        let sessions = sessions.collect();
        let features = features.select(Axis(0), &chosen);
        Some(CausedAnswer { case, probe, condition, correct, sessions, by_layer, overall, features })
    }

    /// The sessions' effects.
    pub fn effects(&self) -> Vec<f64> {
        self.sessions.iter().map(|session| session.effect).collect()
    }

    /// A measure's number of each session, averaged over the layers that see the whole prompt; `None` where it was not measured.
    pub fn overall(&self, predictor: Predictor) -> Option<&[f64]> {
        self.overall.get(&predictor).map(Vec::as_slice)
    }

    /// The sessions in a role.
    fn playing(&self, role: &str) -> Vec<usize> {
        let playing =
            |(at, session): (usize, &CausedSession)| (session.role.as_deref() == Some(role)).then_some(at);
        self.sessions.iter().enumerate().filter_map(playing).collect()
    }
}

/// How features become numbers of mean 0 and variance 1.
struct Scaled {
    mean: Array1<f64>,
    deviation: Array1<f64>,
}

impl Scaled {
    fn by(features: &Array2<f64>) -> Option<Self> {
        let mean = features.mean_axis(Axis(0))?;
        // What never varies says nothing, and is divided by 1.
        let deviation = features.std_axis(Axis(0), 0.0).mapv(|x| if x > 0.0 { x } else { 1.0 });
        Some(Scaled { mean, deviation })
    }

    fn of(&self, features: &Array2<f64>) -> Array2<f64> {
        (features - &self.mean) / &self.deviation
    }
}

/// Features and effects of some answers' sessions.
fn gathered(answers: &[&CausedAnswer]) -> Option<(Array2<f64>, Array1<f64>)> {
    let features: Vec<_> = answers.iter().map(|answer| answer.features.view()).collect();
    let effects: Vec<f64> = answers.iter().flat_map(|answer| answer.effects()).collect();
    Some((ndarray::concatenate(Axis(0), &features).ok()?, Array1::from(effects)))
}

/// A fit to all answers with the penalty that predicts best what its own part of them was left out of. Each answer comes with its part.
fn fit_best(answers: &[(usize, &CausedAnswer)]) -> Option<(Scaled, Ridge, f64)> {
    let mut errors = [0.0; PENALTIES.len()];
    for fold in 0..FOLDS {
        let of = |wanted: &dyn Fn(usize) -> bool| -> Vec<&CausedAnswer> {
            answers.iter().filter(|(part, _)| wanted(*part)).map(|(_, answer)| *answer).collect()
        };
        let (left_out, kept) = (of(&|part| part == fold), of(&|part| part != fold));
        if left_out.is_empty() || kept.is_empty() {
            continue;
        }
        let ((x, y), (held_x, held_y)) = (gathered(&kept)?, gathered(&left_out)?);
        let scaled = Scaled::by(&x)?;
        let (x, held_x) = (scaled.of(&x), scaled.of(&held_x));
        for (penalty, error) in PENALTIES.iter().zip(&mut errors) {
            let ridge = Ridge::fit(&x, &y, *penalty)?;
            let of_row = |(row, y): (ndarray::ArrayView1<'_, f64>, &f64)| (ridge.predict(row) - y).powi(2);
            *error += held_x.outer_iter().zip(&held_y).map(of_row).sum::<f64>();
        }
    }
    let best = (0..PENALTIES.len()).min_by(|&a, &b| errors[a].total_cmp(&errors[b]))?;
    let all: Vec<&CausedAnswer> = answers.iter().map(|(_, answer)| *answer).collect();
    let (x, y) = gathered(&all)?;
    let scaled = Scaled::by(&x)?;
    let ridge = Ridge::fit(&scaled.of(&x), &y, PENALTIES[best])?;
    Some((scaled, ridge, PENALTIES[best]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers to cases of six sessions each, whose effect is the third feature less the first.
    fn planted(cases: usize) -> Causes {
        let mut draws = Draws::new("planted", 0, "");
        let answer = |case: usize| {
            let features = Array2::from_shape_simple_fn((6, 4), || draws.index(1000) as f64 / 1000.0);
            let effect = |row: usize| features[[row, 2]] - features[[row, 0]];
            let session = |row: usize| CausedSession {
                span: format!("session[{row}]"),
                role: (row == 3).then(|| "old".to_owned()),
                effect: effect(row),
                kl: 0.0,
                changed: false,
                control: None,
            };
            let mass: Vec<f64> = features.column(1).to_vec();
            CausedAnswer {
                case: case.to_string(),
                probe: "P".to_owned(),
                condition: String::new(),
                correct: None,
                sessions: (0..6).map(session).collect(),
                by_layer: BTreeMap::new(),
                overall: [(Predictor::Mass, mass)].into(),
                features,
            }
        };
        let answers = (0..cases).map(answer).collect();
        let (roles, penalties, windowed) = (vec!["old".to_owned()], Vec::new(), Vec::new());
        let layers = Vec::new();
        let unit = Unit::Case;
        Causes { unit, layers, answers, roles, penalties, windowed, resamples: 200, seed: 0 }
    }

    #[test]
    fn a_ridge_regression_finds_planted_heads_in_cases_that_it_did_not_see() {
        let mut causes = planted(16);
        causes.fit();
        assert_eq!(causes.penalties.len(), 2);
        let rank = |predictor| causes.rank(predictor).unwrap().value.unwrap();
        assert!(rank(Predictor::Ridge) > 0.95, "{}", rank(Predictor::Ridge));
        assert!(rank(Predictor::Mass).abs() < 0.5, "the second feature says nothing");
        // It finds the evidence where the effect does.
        let found = |predictor| causes.found(predictor, "old").unwrap().value.unwrap();
        assert!((found(Predictor::Ridge) - found(Predictor::Effect)).abs() < 0.2);
        assert_eq!(causes.chance("old"), Some(0.5));
        assert_eq!(causes.chance("new"), None);
    }

    #[test]
    fn what_a_case_is_judged_by_does_not_depend_on_its_own_effects() {
        let mut causes = planted(12);
        causes.fit();
        let said = |causes: &Causes, at: usize| causes.answers[at].overall[&Predictor::Ridge].clone();
        for at in [0, 5, 11] {
            let mut changed = planted(12);
            changed.answers[at].sessions.iter_mut().for_each(|session| session.effect = 100.0);
            changed.fit();
            assert_eq!(said(&causes, at), said(&changed, at), "case {at}");
        }
    }

    #[test]
    fn few_cases_have_no_ridge_regression() {
        let mut causes = planted(7);
        causes.fit();
        assert_eq!((causes.penalties.len(), causes.rank(Predictor::Ridge)), (0, None));
        assert!(!causes.predictors().contains(&Predictor::Ridge));
    }
}
