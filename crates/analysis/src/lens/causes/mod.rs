//! Does attention to a session predict its causal effect on the answer?
//!
//! The effect of a session is the mean log-probability a token that an answer loses when everything from the question on is kept from
//! seeing the session ([`palimpsest_run::runs::causes`]); above 0, the answer needs it. Each [`Predictor`] gives every session a number. It is held
//! against the effects by the rank correlation (Spearman) over the sessions of one answer, and by whether the evidence is among the
//! [`TOP`] sessions with the largest numbers. Both are taken within an answer, so that answers that depend on their history more than
//! others do not make a correlation, and averaged over units of the benchmark with a band.
//!
//! - [`predictor`]: measures of attention and other interventions.
//! - `answer`: one answer, and each measure's number of its sessions.
//! - [`ranking`]: correlations, places, and which measure ranks best.
//! - [`residue`]: what hiding a session leaves of its total effect, and where, in numbers and in words.
//! - `ridge`: a regression of effects on masses by head.
//! - [`halves`]: choices made on one half of the units and measured on the other.
//! - [`windowed`]: effects by windows of layers.
//! - `reading`: [`Causes::open`].
//! - [`texts`]: tables of effects as text.

use std::collections::{BTreeMap, BTreeSet};

use ndarray::Array2;

use super::band::{Estimate, Numbers, of_means};
use super::group::mean_by_layer;
use super::{Correctness, Group, Layer, Series, Statistic};
use palimpsest_data::benchmarks::{Scale, Unit};
use palimpsest_run::runs::causes::rows::Effect;

mod answer;
pub mod halves;
pub mod predictor;
pub mod ranking;
mod reading;
pub mod residue;
mod ridge;
pub mod texts;
pub mod windowed;

pub use answer::{CausedAnswer, CausedSession, Control, overall_of};
pub use halves::{HeldOut, LEAST_UNITS};
pub use predictor::{Intervention, Predictor};
pub use ranking::TOP;
pub use residue::Residues;
pub use windowed::{Window, WindowedAnswer};

pub const OTHERS: &str = "others";

/// A unit by its case, and its probe where probes are units.
type UnitName = (String, String);

#[derive(Debug, Clone)]
pub struct Causes {
    pub unit: Unit,
    pub layers: Vec<Layer>,
    /// Those whose sessions were blocked at all layers.
    pub answers: Vec<CausedAnswer>,
    pub roles: Vec<String>,
    /// The penalty of each half's ridge regression; empty where there are too few units for one.
    pub penalties: Vec<f64>,
    pub windows: Vec<Window>,
    /// Those whose sessions were blocked at a window of layers at a time.
    pub windowed: Vec<WindowedAnswer>,
    pub residues: Residues,
    seed: u64,
}

impl Causes {
    pub fn units(&self) -> usize {
        self.answers.iter().map(|answer| self.unit_of(answer)).collect::<BTreeSet<_>>().len()
    }

    /// The predictors that answers have, in the order of the figures: measures, then interventions.
    pub fn predictors(&self) -> Vec<Predictor> {
        let known: BTreeSet<Predictor> =
            self.answers.iter().flat_map(|answer| answer.overall.keys().copied()).collect();
        let (mut all, others): (Vec<Predictor>, Vec<Predictor>) =
            known.into_iter().partition(|one| one.is_measure());
        all.extend(others);
        all
    }

    /// The mean over units of a number of sessions, of answers with a verdict. A number that is not finite stands for none.
    fn mean_over(
        &self,
        plays: impl Fn(&CausedSession) -> bool,
        correctness: Correctness,
        of: impl Fn(&CausedAnswer, usize) -> Option<f64>,
    ) -> Option<Estimate> {
        self.one(Numbers::Signed, |answer| {
            correctness.holds(answer.correct).then_some(())?;
            let own = (0..answer.sessions.len()).filter(|at| plays(&answer.sessions[*at]));
            mean(own.filter_map(|at| of(answer, at)))
        })
    }

    /// The mean effect of the sessions in a role, or of all without one, of answers with a verdict.
    pub fn effect(&self, role: Option<&str>, correctness: Correctness) -> Option<Estimate> {
        self.mean_of(role, correctness, |effect| effect.log_p_drop)
    }

    /// [`Causes::effect`] of one of the numbers of an effect.
    pub fn mean_of(
        &self,
        role: Option<&str>,
        correctness: Correctness,
        of: impl Fn(&Effect) -> f64,
    ) -> Option<Estimate> {
        let number = |answer: &CausedAnswer, at: usize| Some(of(&answer.sessions[at].effect));
        self.mean_over(|session| session.role.as_deref() == role, correctness, number)
    }

    /// [`Causes::effect`] of total effects.
    pub fn total(&self, role: Option<&str>, correctness: Correctness) -> Option<Estimate> {
        let total = Predictor::Intervention(Intervention::Total);
        let number = |answer: &CausedAnswer, at: usize| answer.overall.get(&total)?.get(at).copied();
        self.mean_over(|session| session.role.as_deref() == role, correctness, number)
    }

    /// [`Causes::effect`] of one of the numbers of controls, at equal length.
    pub fn control(
        &self,
        role: Option<&str>,
        correctness: Correctness,
        of: impl Fn(&Control) -> f64,
    ) -> Option<Estimate> {
        let number = |answer: &CausedAnswer, at: usize| answer.sessions[at].control.as_ref().map(&of);
        self.mean_over(|session| session.role.as_deref() == role, correctness, number)
    }

    /// The mean control, at equal length, of the evidence: of all sessions with a role.
    pub fn control_of_evidence(&self) -> Option<Estimate> {
        let number = |answer: &CausedAnswer, at: usize| Some(answer.sessions[at].control?.drop);
        self.mean_over(|session| session.role.is_some(), Correctness::All, number)
    }

    /// The fewest and the most control stretches of an answer.
    pub fn pools(&self) -> Option<(usize, usize)> {
        let counts = || self.answers.iter().map(|answer| answer.stretches);
        Some((counts().min()?, counts().max()?)).filter(|(_, most)| *most > 0)
    }

    /// The sessions with the largest effects by size, whatever their sign, with their answers; of equal ones the first.
    pub fn largest(&self, most: usize) -> Vec<(&CausedAnswer, &CausedSession)> {
        let sessions =
            self.answers.iter().flat_map(|answer| answer.sessions.iter().map(move |s| (answer, s)));
        let mut all: Vec<(&CausedAnswer, &CausedSession)> = sessions.collect();
        all.sort_by(|(_, a), (_, b)| b.drop().abs().total_cmp(&a.drop().abs()));
        all.truncate(most);
        all
    }

    /// The share of the decoder's layers that still saw a session blocked at all layers; 0 but for models with linear-attention layers.
    pub fn layers_open(&self) -> f64 {
        self.answers.iter().map(|answer| answer.layers_open).fold(0.0, f64::max)
    }

    pub fn layer_numbers(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| layer.index).collect()
    }

    fn unit_of(&self, answer: &CausedAnswer) -> UnitName {
        self.unit_name(&answer.case, &answer.probe)
    }

    fn unit_name(&self, case: &str, probe: &str) -> UnitName {
        match self.unit {
            Unit::Case => (case.to_owned(), String::new()),
            Unit::Probe => (case.to_owned(), probe.to_owned()),
        }
    }

    /// A list of numbers an answer, averaged over each unit's.
    fn by_unit(
        &self,
        of: impl Fn(&CausedAnswer) -> Option<Vec<f64>>,
        width: usize,
    ) -> BTreeMap<UnitName, Vec<f64>> {
        let rows = self.answers.iter().filter_map(|answer| Some((self.unit_of(answer), of(answer)?)));
        averaged(rows, width)
    }

    /// The mean over units of one number an answer; `None` where no answer has one.
    fn one(&self, numbers: Numbers, of: impl Fn(&CausedAnswer) -> Option<f64>) -> Option<Estimate> {
        let rows = self.by_unit(|answer| of(answer).map(|value| vec![value]), 1);
        estimate(&rows.into_values().flatten().collect::<Vec<_>>(), numbers)
    }

    fn series(&self, name: String, rows: &[Vec<f64>], numbers: Numbers) -> Series {
        let what = (Statistic::Measure("causes"), Scale::Mass);
        Series::of_rows((Group::all(), name), what, &self.layers, (rows, numbers))
    }
}

/// The mean of one number a unit; `None` where none is finite.
fn estimate(values: &[f64], numbers: Numbers) -> Option<Estimate> {
    let found = of_means(&Array2::from_shape_fn((values.len(), 1), |(row, _)| values[row]), numbers);
    let found = found.into_iter().next();
    found.filter(|estimate| estimate.value.is_some())
}

/// Rows of numbers, averaged over those of each unit.
fn averaged(rows: impl Iterator<Item = (UnitName, Vec<f64>)>, width: usize) -> BTreeMap<UnitName, Vec<f64>> {
    let mut units: BTreeMap<UnitName, Vec<Vec<f64>>> = BTreeMap::new();
    for (unit, row) in rows {
        units.entry(unit).or_default().push(row);
    }
    let mean = |rows: Vec<Vec<f64>>| mean_by_layer(rows.iter().map(Vec::as_slice), width);
    units.into_iter().filter_map(|(unit, rows)| Some((unit, mean(rows)?))).collect()
}

/// The mean of those that are finite; `None` where none is.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_data::case::draw::Draws;

    /// Answers to cases of six sessions each, whose effect is the third feature less the first.
    fn planted(cases: usize) -> Causes {
        let mut draws = Draws::new("planted", 0, "");
        let answer = |case: usize| {
            let features = Array2::from_shape_simple_fn((6, 4), || draws.index(1000) as f64 / 1000.0);
            let effect = |row: usize| features[[row, 2]] - features[[row, 0]];
            let session = |row: usize| CausedSession {
                span: format!("session[{row}]"),
                role: (row == 3).then(|| "old".to_owned()),
                tokens: 10,
                effect: Effect {
                    log_p_drop: effect(row),
                    kl: 0.0,
                    kl_answer: 0.0,
                    changed: false,
                    thought: None,
                },
                control: None,
            };
            let mass: Vec<f64> = features.column(1).to_vec();
            CausedAnswer {
                case: case.to_string(),
                probe: "P".to_owned(),
                condition: String::new(),
                correct: None,
                sessions: (0..6).map(session).collect(),
                layers_open: 0.0,
                stretches: 0,
                by_layer: BTreeMap::new(),
                overall: [(Predictor::Mass, mass)].into(),
                features,
                tried: None,
            }
        };
        let answers = (0..cases).map(answer).collect();
        let (roles, penalties) = (vec!["old".to_owned()], Vec::new());
        let (layers, windows, windowed) = (Vec::new(), Vec::new(), Vec::new());
        let residues = Residues::default();
        Causes { unit: Unit::Case, layers, answers, roles, penalties, windows, windowed, residues, seed: 0 }
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
    fn a_case_is_judged_by_a_fit_that_does_not_depend_on_its_own_effects() {
        let mut causes = planted(12);
        causes.fit();
        let said = |causes: &Causes, at: usize| causes.answers[at].overall[&Predictor::Ridge].clone();
        for at in [0, 5, 11] {
            let mut changed = planted(12);
            changed.answers[at].sessions.iter_mut().for_each(|session| session.effect.log_p_drop = 100.0);
            changed.fit();
            assert_eq!(said(&causes, at), said(&changed, at), "case {at}");
        }
    }

    #[test]
    fn few_cases_have_no_ridge_regression_and_no_best_measure() {
        let mut causes = planted(7);
        causes.fit();
        assert_eq!((causes.penalties.len(), causes.rank(Predictor::Ridge)), (0, None));
        assert!(!causes.predictors().contains(&Predictor::Ridge));
        let density = |answer: &mut CausedAnswer| {
            let values = answer.overall[&Predictor::Mass].clone();
            answer.overall.insert(Predictor::Density, values);
        };
        causes.answers.iter_mut().for_each(density);
        assert_eq!(causes.best_measure(), None);
    }

    #[test]
    fn the_best_measure_is_chosen_among_measures_alone_and_measured_on_the_other_half() {
        let mut causes = planted(16);
        let removed = Predictor::Intervention(Intervention::Total);
        for answer in &mut causes.answers {
            // An intervention that ranks all sessions as the effect does, and a measure that has one pair the wrong way round.
            let effects = answer.effects();
            answer.overall.insert(removed, effects.clone());
            let mut near = effects;
            near.swap(0, 1);
            answer.overall.insert(Predictor::OutputNorm, near);
        }
        assert_eq!(causes.rank(removed).unwrap().value, Some(1.0));
        let best = causes.best_measure().unwrap();
        assert_eq!(best.chosen, [Predictor::OutputNorm; 2]);
        // One measure for all: the mean of all units, with the interval of that mean.
        assert_eq!(Some(best.estimate), causes.rank(Predictor::OutputNorm));
        // With a ridge regression that is better than both, it is chosen; its fits to the half that chooses say so.
        causes.fit();
        let best = causes.best_measure().unwrap();
        assert_eq!(best.chosen, [Predictor::Ridge; 2]);
        assert_eq!(Some(best.estimate), causes.rank(Predictor::Ridge));
    }

    #[test]
    fn the_half_that_chooses_a_measure_knows_nothing_of_the_half_that_measures_it() {
        let with_noise = || {
            let mut causes = planted(16);
            for answer in &mut causes.answers {
                let noise = answer.features.column(3).to_vec();
                answer.overall.insert(Predictor::Density, noise);
            }
            causes
        };
        let mut plain = with_noise();
        let names = plain.answers.iter().map(|answer| plain.unit_of(answer)).collect();
        let drawn = halves::halves(names, plain.seed).unwrap();
        plain.fit();
        let chosen = plain.best_measure().unwrap().chosen;
        assert_eq!(chosen, [Predictor::Ridge; 2]);
        for (changed, half) in drawn.iter().enumerate() {
            let mut causes = with_noise();
            for at in 0..16 {
                if half.contains(&causes.unit_of(&causes.answers[at])) {
                    causes.answers[at]
                        .sessions
                        .iter_mut()
                        .for_each(|session| session.effect.log_p_drop *= -1.0);
                }
            }
            causes.fit();
            // Fits to one half now rank the other the wrong way round, and no choice knows it.
            assert!(causes.rank(Predictor::Ridge).unwrap().value.unwrap() < -0.9);
            assert_eq!(causes.best_measure().unwrap().chosen[1 - changed], chosen[1 - changed]);
        }
    }
}
