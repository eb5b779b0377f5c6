//! Residues of effects: the part of a session's effect that is not in its own place, and which later sessions hold it.
//!
//! The direct effect is lost where a session's keys are hidden from the question on, as an eviction from a cache does; the total effect where
//! it was never read. The residue is the total less the direct effect. All effects are in nats: of an answer a token, of a contrast whole.
//! Effects are averaged over the sessions in a role and the answers of a case; intervals are over cases. Called by the command that measures
//! them, the figures and the report.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Array2;

use super::mean;
use crate::ground::order::sorted_unique;
use crate::lens::band::{Estimate, LEAST, Numbers, of_means};
use crate::run::causes::carriers::{ALL, BETWEEN};
use crate::run::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use crate::run::causes::rows::{CauseLine, read_lines};
use crate::run::error::RunError;
use crate::run::rows::AnswerKey;
use crate::statistics::means;

/// A later session that holds some of an effect, by its distance to the session: the first and the last of a group.
pub const DISTANCES: [(usize, usize); 5] = [(1, 1), (2, 2), (3, 4), (5, 8), (9, usize::MAX)];

/// The whole that a residue is the rest of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    Removed,
    Replaced,
    /// The session hidden from all later rows.
    Hidden,
}

impl Whole {
    /// All, in the order of tables.
    pub const EACH: [Whole; 3] = [Whole::Removed, Whole::Replaced, Whole::Hidden];

    /// As tables write it.
    pub fn label(self) -> &'static str {
        match self {
            Whole::Removed => "removed",
            Whole::Replaced => "replaced",
            Whole::Hidden => "hidden from all later rows",
        }
    }
}

/// A later session, and what it carried of an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Carrier {
    /// Its span, or [`BETWEEN`].
    pub name: String,
    /// Number of sessions that it is later; `None` of [`BETWEEN`].
    pub distance: Option<usize>,
    /// The loss by hiding the session from it, beyond hiding it from the question on.
    pub carried: f64,
}

/// The effects of one session on one answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionEffects {
    pub case: String,
    pub condition: String,
    pub span: String,
    pub role: Option<String>,
    pub direct: Option<f64>,
    pub removed: Option<f64>,
    pub replaced: Option<f64>,
    pub hidden: Option<f64>,
    /// Later sessions, in their order.
    pub carriers: Vec<Carrier>,
    /// Hidden from the question on at a window of layers.
    pub windows: BTreeMap<[usize; 2], f64>,
}

impl SessionEffects {
    /// The effect of the session altogether, by one way of leaving it out.
    pub fn whole(&self, whole: Whole) -> Option<f64> {
        match whole {
            Whole::Removed => self.removed,
            Whole::Replaced => self.replaced,
            Whole::Hidden => self.hidden,
        }
    }

    /// The part of it that the direct effect leaves.
    pub fn residue(&self, whole: Whole) -> Option<f64> {
        Some(self.whole(whole)? - self.direct?)
    }

    /// The sum of what the carriers of a group of distances hold; `None` where there are none, or were not read.
    fn carried(&self, (nearest, farthest): (usize, usize)) -> Option<f64> {
        let within = |carrier: &&Carrier| carrier.distance.is_some_and(|d| (nearest..=farthest).contains(&d));
        let of_group: Vec<f64> = self.carriers.iter().filter(within).map(|carrier| carrier.carried).collect();
        (!of_group.is_empty()).then(|| of_group.iter().sum())
    }
}

/// The effects of a run's evidence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Residues {
    pub sessions: Vec<SessionEffects>,
    /// True if effects are on contrasts, not on answers.
    pub of_contrasts: bool,
}

/// An answer and a session.
type Key = (AnswerKey, String);

impl Residues {
    /// Of the answers of a run's folder.
    pub fn of_answers(dir: &Path) -> Result<Self, RunError> {
        let mut found: BTreeMap<Key, SessionEffects> = BTreeMap::new();
        let mut carried = Vec::new();
        for line in read_lines(dir)? {
            match line {
                CauseLine::Blocked(row) => {
                    let own = found.entry((row.answer, row.span)).or_default();
                    own.role = row.role;
                    match row.layers {
                        None => own.direct = Some(row.effect.log_p_drop),
                        Some(layers) => drop(own.windows.insert(layers, row.effect.log_p_drop)),
                    }
                }
                CauseLine::Total(row) => {
                    let own = found.entry((row.answer, row.span)).or_default();
                    (own.role, own.removed) = (row.role, Some(row.effect.log_p_drop));
                }
                CauseLine::Replaced(row) => {
                    let own = found.entry((row.answer, row.span)).or_default();
                    (own.role, own.replaced) = (row.role, Some(row.effect.log_p_drop));
                }
                CauseLine::Carrier(row) => {
                    carried.push((
                        (row.answer, row.span),
                        row.role,
                        row.carrier.unwrap_or_default(),
                        row.effect.log_p_drop,
                        row.direct.unwrap_or_default(),
                    ));
                }
                CauseLine::Control(_) | CauseLine::Subset(_) | CauseLine::Surrogate(_) => {}
            }
        }
        Ok(Residues::of(found, carried, false))
    }

    /// Of the contrasts of a run's folder.
    pub fn of_contrasts(dir: &Path) -> Result<Self, RunError> {
        Ok(Residues::of_contrast_rows(read_contrast_causes(dir)?))
    }

    fn of_contrast_rows(rows: Vec<ContrastCauseRow>) -> Self {
        let mut found: BTreeMap<Key, SessionEffects> = BTreeMap::new();
        let mut carried = Vec::new();
        for row in rows {
            let key = (row.answer, row.span);
            match row.ablation {
                AblationKind::Control => continue,
                AblationKind::Carried => {
                    let (Some(carrier), Some(direct)) = (row.carrier, row.direct) else { continue };
                    carried.push((key, row.role, carrier, row.drop, direct));
                    continue;
                }
                AblationKind::Blocked | AblationKind::Removed | AblationKind::Replaced => {}
            }
            let own = found.entry(key).or_default();
            own.role = row.role;
            match (row.ablation, row.layers) {
                (AblationKind::Removed, _) => own.removed = Some(row.drop),
                (AblationKind::Replaced, _) => own.replaced = Some(row.drop),
                (_, None) => own.direct = Some(row.drop),
                (_, Some(layers)) => drop(own.windows.insert(layers, row.drop)),
            }
        }
        Residues::of(found, carried, true)
    }

    /// Of effects, and of carriers: the answer and session, its role, the carrier, the loss, and that by the direct path alone.
    fn of(
        mut found: BTreeMap<Key, SessionEffects>,
        carried: Vec<(Key, Option<String>, String, f64, f64)>,
        of_contrasts: bool,
    ) -> Self {
        for (key, role, carrier, lost, direct) in carried {
            let distance = number(&carrier).zip(number(&key.1)).and_then(|(to, from)| to.checked_sub(from));
            let own = found.entry(key).or_default();
            own.role = role;
            own.direct.get_or_insert(direct);
            match carrier.as_str() {
                ALL => own.hidden = Some(lost),
                _ => own.carriers.push(Carrier { name: carrier, distance, carried: lost - direct }),
            }
        }
        let named = found.into_iter().map(|((answer, span), effects)| {
            let AnswerKey { case, condition, .. } = answer;
            let mut effects = SessionEffects { case, condition, span, ..effects };
            effects.carriers.sort_by_key(|carrier| carrier.distance.unwrap_or(usize::MAX));
            effects
        });
        Residues { sessions: named.filter(|effects| effects.role.is_some()).collect(), of_contrasts }
    }

    /// True if some session was left out altogether, or its carriers were looked for.
    pub fn is_measured(&self) -> bool {
        self.sessions.iter().any(|one| Whole::EACH.iter().any(|whole| one.residue(*whole).is_some()))
    }

    /// The roles of the evidence, in the order of their names.
    pub fn roles(&self) -> Vec<&str> {
        sorted_unique(self.sessions.iter().filter_map(|one| one.role.as_deref()))
    }

    /// One number of the sessions in a role, averaged over each case's.
    fn by_case(&self, role: &str, of: impl Fn(&SessionEffects) -> Option<f64>) -> Vec<f64> {
        let mut cases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for one in self.sessions.iter().filter(|one| one.role.as_deref() == Some(role)) {
            cases.entry(&one.case).or_default().extend(of(one));
        }
        cases.into_values().filter_map(|values| mean(values.into_iter())).collect()
    }

    /// The mean over cases of one number of the sessions in a role; `None` where none has it.
    pub fn mean(&self, role: &str, of: impl Fn(&SessionEffects) -> Option<f64>) -> Option<Estimate> {
        let values = self.by_case(role, of);
        let column = Array2::from_shape_fn((values.len(), 1), |(row, _)| values[row]);
        of_means(&column, Numbers::Signed).into_iter().next().filter(|estimate| estimate.value.is_some())
    }

    /// The ratio of the means over cases of two numbers of the sessions in a role that have both. Without an interval of fewer than
    /// [`LEAST`] cases, and where the second mean may be 0: then the ratio may be anything.
    fn ratio(
        &self,
        role: &str,
        over: impl Fn(&SessionEffects) -> Option<f64>,
        under: impl Fn(&SessionEffects) -> Option<f64>,
    ) -> Option<Estimate> {
        let above = self.by_case(role, |one| over(one).filter(|_| under(one).is_some()));
        let below = self.by_case(role, |one| under(one).filter(|_| over(one).is_some()));
        let n = above.len();
        let value = above.iter().sum::<f64>() / below.iter().sum::<f64>();
        let band = (n >= LEAST).then(|| means::signed_ratio(&above, &below)).flatten();
        let estimate = Estimate {
            n,
            value: Some(value).filter(|value| value.is_finite()),
            band: band.map(|interval| (interval.low, interval.high)),
            each: Vec::new(),
        };
        (n > 0).then_some(estimate)
    }

    /// The share of what the sessions in a role did that is left where they are hidden from the question on.
    pub fn left(&self, role: &str, whole: Whole) -> Option<Estimate> {
        self.ratio(role, |one| one.residue(whole), |one| one.whole(whole).filter(|_| one.direct.is_some()))
    }

    /// The share of it that is lost where they are hidden from the question on at a window of layers.
    pub fn by_window(&self, role: &str, window: [usize; 2], whole: Whole) -> Option<Estimate> {
        self.ratio(role, |one| one.windows.get(&window).copied(), |one| one.whole(whole))
    }

    /// The windows of layers, ascending.
    pub fn windows(&self) -> Vec<[usize; 2]> {
        sorted_unique(self.sessions.iter().flat_map(|one| one.windows.keys().copied()))
    }

    /// The part that later sessions at such distances hold of the effect of the sessions in a role, in nats.
    pub fn carried(&self, role: &str, distances: (usize, usize)) -> Option<Estimate> {
        self.mean(role, |one| one.carried(distances))
    }

    /// The same of the positions between the last session and the question.
    pub fn carried_between(&self, role: &str) -> Option<Estimate> {
        self.mean(role, |one| one.carriers.iter().find(|c| c.name == BETWEEN).map(|c| c.carried))
    }

    /// Single carriers with the largest parts, by size, of sessions in a role.
    pub fn largest(&self, role: &str, most: usize) -> Vec<(&SessionEffects, &Carrier)> {
        let own = self.sessions.iter().filter(|one| one.role.as_deref() == Some(role));
        let mut all: Vec<_> =
            own.flat_map(|one| one.carriers.iter().map(move |carrier| (one, carrier))).collect();
        all.sort_by(|(_, a), (_, b)| b.carried.abs().total_cmp(&a.carried.abs()));
        all.truncate(most);
        all
    }
}

/// The number of a span: 3 of `session[3]`.
fn number(span: &str) -> Option<usize> {
    span.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: usize, ablation: AblationKind, carrier: Option<&str>, drop: f64) -> ContrastCauseRow {
        ContrastCauseRow {
            answer: AnswerKey::of(&case.to_string(), "P", "").owned(),
            span: "session[2]".to_owned(),
            role: Some("old".to_owned()),
            stretch: None,
            carrier: carrier.map(str::to_owned),
            neutral: None,
            tokens: [3, 9],
            layers: None,
            seed: 0,
            ablation,
            contrast: 1.0,
            drop,
            direct: carrier.map(|_| 0.5),
            current: 0.0,
            stale: 0.0,
        }
    }

    #[test]
    fn a_residue_is_the_total_less_the_direct_effect_and_its_share_that_of_the_means() {
        let mut rows = Vec::new();
        for case in 0..6 {
            let total = 2.0 + case as f64 / 10.0;
            rows.push(row(case, AblationKind::Blocked, None, 0.5));
            rows.push(row(case, AblationKind::Removed, None, total));
            rows.push(row(case, AblationKind::Carried, Some(ALL), 1.5));
            rows.push(row(case, AblationKind::Carried, Some("session[3]"), 0.75));
            rows.push(row(case, AblationKind::Carried, Some("session[6]"), 1.25));
            rows.push(row(case, AblationKind::Carried, Some(BETWEEN), 0.5));
        }
        let found = Residues::of_contrast_rows(rows);
        assert!(found.is_measured() && found.roles() == ["old"]);
        let left = found.left("old", Whole::Removed).unwrap();
        assert!((left.value.unwrap() - 1.75 / 2.25).abs() < 1e-12);
        let (low, high) = left.band.unwrap();
        assert!(low < 1.75 / 2.25 && 1.75 / 2.25 < high && high - low < 0.1);
        assert_eq!(found.left("old", Whole::Replaced), None);
        assert!((found.left("old", Whole::Hidden).unwrap().value.unwrap() - 1.0 / 1.5).abs() < 1e-12);
        let carried = |distances| found.carried("old", distances).map(|estimate| estimate.value.unwrap());
        assert_eq!(DISTANCES.map(carried), [Some(0.25), None, Some(0.75), None, None]);
        assert_eq!(found.carried_between("old").unwrap().value, Some(0.0));
        let (session, carrier) = found.largest("old", 1)[0];
        assert_eq!((session.span.as_str(), carrier.name.as_str()), ("session[2]", "session[6]"));
    }
}
