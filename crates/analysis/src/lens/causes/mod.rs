//! Does attention to a session predict its causal effect on the answer?
//!
//! A session's effect is the mean log-probability per token that an answer loses when all positions from the question on cannot attend to
//! the session ([`palimpsest_run::runs::causes`]); positive if the answer needs it. Each [`Predictor`] is compared with the effects by
//! Spearman's rank correlation over the sessions of one answer, and by whether the evidence is among the [`TOP`] sessions. Both are
//! computed within an answer and averaged over units, so that differences between answers do not create a correlation.

use std::collections::{BTreeMap, BTreeSet};

use super::band::{Estimate, Numbers};
use super::layers::mean_by_layer;
use super::{Correctness, Group, Layer, Series, Statistic};
use palimpsest_data::benchmarks::{Scale, Unit};
use palimpsest_run::runs::causes::rows::Effect;

pub(crate) mod answer;
pub mod halves;
pub mod predictor;
pub mod ranking;
mod reading;
pub mod repairs;
pub mod residue;
mod ridge;
pub mod texts;
pub mod thoughts;
pub mod windowed;

pub use answer::{CausedAnswer, CausedSession, Control, overall_of};
pub use halves::{HeldOut, LEAST_UNITS};
pub use predictor::{Intervention, Predictor};
pub use ranking::TOP;
pub use residue::Residues;
pub use windowed::{Window, WindowedAnswer};

pub const OTHERS: &str = "others";

/// (case, probe); the probe is empty unless probes are units.
type UnitName = (String, String);

#[derive(Debug, Clone, Default)]
pub struct Causes {
    pub unit: Unit,
    pub layers: Vec<Layer>,
    /// Answers with sessions blocked at all layers.
    pub answers: Vec<CausedAnswer>,
    pub roles: Vec<String>,
    /// Ridge penalty of each half; empty with too few units.
    pub penalties: Vec<f64>,
    pub windows: Vec<Window>,
    /// Answers with sessions blocked at one layer window at a time.
    pub windowed: Vec<WindowedAnswer>,
    pub residues: Residues,
    seed: u64,
}

impl Causes {
    pub fn units(&self) -> usize {
        self.answers.iter().map(|answer| self.unit_of(answer)).collect::<BTreeSet<_>>().len()
    }

    pub fn predictors(&self) -> Vec<Predictor> {
        let known: BTreeSet<Predictor> =
            self.answers.iter().flat_map(|answer| answer.overall.keys().copied()).collect();
        let (mut all, others): (Vec<Predictor>, Vec<Predictor>) =
            known.into_iter().partition(|one| one.is_measure());
        all.extend(others);
        all
    }

    /// Mean over units of one number per session, of answers with the given verdict. Non-finite values are missing.
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

    /// Mean effect of a role's sessions, or of all sessions, over answers with the given verdict.
    pub fn effect(&self, role: Option<&str>, correctness: Correctness) -> Option<Estimate> {
        self.mean_of(role, correctness, |effect| effect.log_p_drop)
    }

    pub fn mean_of(
        &self,
        role: Option<&str>,
        correctness: Correctness,
        of: impl Fn(&Effect) -> f64,
    ) -> Option<Estimate> {
        let number = |answer: &CausedAnswer, at: usize| Some(of(&answer.sessions[at].effect));
        self.mean_over(|session| session.role.as_deref() == role, correctness, number)
    }

    /// [`Causes::effect`] for another intervention.
    pub fn intervention(
        &self,
        kind: Intervention,
        role: Option<&str>,
        correctness: Correctness,
    ) -> Option<Estimate> {
        let kind = Predictor::Intervention(kind);
        let number = |answer: &CausedAnswer, at: usize| answer.overall.get(&kind)?.get(at).copied();
        self.mean_over(|session| session.role.as_deref() == role, correctness, number)
    }

    /// [`Causes::effect`] for one component of the length-matched controls.
    pub fn control(
        &self,
        role: Option<&str>,
        correctness: Correctness,
        of: impl Fn(&Control) -> f64,
    ) -> Option<Estimate> {
        let number = |answer: &CausedAnswer, at: usize| answer.sessions[at].control.as_ref().map(&of);
        self.mean_over(|session| session.role.as_deref() == role, correctness, number)
    }

    /// Mean length-matched control of all sessions with a role.
    pub fn control_of_evidence(&self) -> Option<Estimate> {
        let number = |answer: &CausedAnswer, at: usize| Some(answer.sessions[at].control?.drop);
        self.mean_over(|session| session.role.is_some(), Correctness::All, number)
    }

    pub fn pools(&self) -> Option<(usize, usize)> {
        let counts = || self.answers.iter().map(|answer| answer.stretches);
        Some((counts().min()?, counts().max()?)).filter(|(_, most)| *most > 0)
    }

    /// Sessions with the largest absolute effects; ties keep their order.
    pub fn largest(&self, most: usize) -> Vec<(&CausedAnswer, &CausedSession)> {
        let sessions =
            self.answers.iter().flat_map(|answer| answer.sessions.iter().map(move |s| (answer, s)));
        let mut all: Vec<(&CausedAnswer, &CausedSession)> = sessions.collect();
        all.sort_by(|(_, a), (_, b)| b.drop().abs().total_cmp(&a.drop().abs()));
        all.truncate(most);
        all
    }

    /// Share of decoder layers that still saw a session blocked at all layers; 0 without linear-attention layers.
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

    fn by_unit(
        &self,
        of: impl Fn(&CausedAnswer) -> Option<Vec<f64>>,
        width: usize,
    ) -> BTreeMap<UnitName, Vec<f64>> {
        let rows = self.answers.iter().filter_map(|answer| Some((self.unit_of(answer), of(answer)?)));
        averaged(rows, width)
    }

    fn one(&self, numbers: Numbers, of: impl Fn(&CausedAnswer) -> Option<f64>) -> Option<Estimate> {
        let rows = self.by_unit(|answer| of(answer).map(|value| vec![value]), 1);
        estimate(&rows.into_values().flatten().collect::<Vec<_>>(), numbers)
    }

    fn series(&self, name: String, rows: &[Vec<f64>], numbers: Numbers) -> Series {
        let what = (Statistic::Measure("causes"), Scale::Mass);
        Series::of_rows((Group::all(), name), what, &self.layers, (rows, numbers))
    }
}

fn estimate(values: &[f64], numbers: Numbers) -> Option<Estimate> {
    Some(Estimate::mean(values.iter().copied(), numbers)).filter(|estimate| estimate.value.is_some())
}

fn averaged(rows: impl Iterator<Item = (UnitName, Vec<f64>)>, width: usize) -> BTreeMap<UnitName, Vec<f64>> {
    let mut units: BTreeMap<UnitName, Vec<Vec<f64>>> = BTreeMap::new();
    for (unit, row) in rows {
        units.entry(unit).or_default().push(row);
    }
    let mean = |rows: Vec<Vec<f64>>| mean_by_layer(rows.iter(), width);
    units.into_iter().filter_map(|(unit, rows)| Some((unit, mean(rows)?))).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use palimpsest_data::case::draw::Draws;

    /// Cases of six sessions; the effect is feature 2 minus feature 0.
    fn planted(cases: usize) -> Causes {
        let mut draws = Draws::new("planted", 0, "");
        let answer = |case: usize| {
            let features = Array2::from_shape_simple_fn((6, 4), || draws.index(1000) as f64 / 1000.0);
            let effect = |row: usize| features[[row, 2]] - features[[row, 0]];
            let session = |row: usize| CausedSession {
                span: format!("session[{row}]"),
                role: (row == 3).then(|| "old".to_owned()),
                tokens: 10,
                effect: Effect { log_p_drop: effect(row), ..Effect::default() },
                control: None,
            };
            let mass: Vec<f64> = features.column(1).to_vec();
            CausedAnswer {
                case: case.to_string(),
                probe: "P".to_owned(),
                sessions: (0..6).map(session).collect(),
                overall: [(Predictor::Mass, mass)].into(),
                features,
                ..CausedAnswer::default()
            }
        };
        let answers = (0..cases).map(answer).collect();
        Causes { answers, roles: vec!["old".to_owned()], ..Causes::default() }
    }

    #[test]
    fn a_ridge_regression_finds_planted_heads_in_cases_that_it_did_not_see() {
        let mut causes = planted(16);
        causes.fit();
        assert_eq!(causes.penalties.len(), 2);
        let rank = |predictor| causes.rank(predictor).unwrap().value.unwrap();
        assert!(rank(Predictor::Ridge) > 0.95, "{}", rank(Predictor::Ridge));
        assert!(rank(Predictor::Mass).abs() < 0.5, "the second feature says nothing");
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
            // An intervention that ranks all sessions as the effect does, and a measure with one swapped pair.
            let effects = answer.effects();
            answer.overall.insert(removed, effects.clone());
            let mut near = effects;
            near.swap(0, 1);
            answer.overall.insert(Predictor::OutputNorm, near);
        }
        assert_eq!(causes.rank(removed).unwrap().value, Some(1.0));
        let best = causes.best_measure().unwrap();
        assert_eq!(best.chosen, [Predictor::OutputNorm; 2]);
        assert_eq!(Some(best.estimate), causes.rank(Predictor::OutputNorm));
        // A better ridge regression is chosen, based on its fits within the choosing half.
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
            assert!(causes.rank(Predictor::Ridge).unwrap().value.unwrap() < -0.9);
            assert_eq!(causes.best_measure().unwrap().chosen[1 - changed], chosen[1 - changed]);
        }
    }
}
