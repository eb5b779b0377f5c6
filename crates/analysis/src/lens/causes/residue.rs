//! Residues: the part of a session's effect that is not in its own position, and the later sessions that carry it.
//!
//! Direct effect: the session's keys are hidden from the question on, as by cache eviction. Total effect: the session is never read.
//! Residue = total - direct. Units are nats: per token for answers, in total for contrasts. Effects are averaged over a role's sessions and
//! a case's answers; intervals are over cases.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::Array2;

use super::mean;
use crate::lens::band::{Estimate, LEAST, Numbers, of_means};
use palimpsest_data::ground::order::sorted_unique;
use palimpsest_data::statistics::means;
use palimpsest_run::runs::causes::carriers::{ALL, BETWEEN};
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use palimpsest_run::runs::causes::rows::{CauseLine, read_lines};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::rows::AnswerKey;

pub const DISTANCES: [(usize, usize); 5] = [(1, 1), (2, 2), (3, 4), (5, 8), (9, usize::MAX)];

/// The total effect that a residue is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    Removed,
    Replaced,
    /// Session hidden from all later rows.
    Hidden,
}

impl Whole {
    pub const EACH: [Whole; 3] = [Whole::Removed, Whole::Replaced, Whole::Hidden];

    pub fn label(self) -> &'static str {
        match self {
            Whole::Removed => "removed",
            Whole::Replaced => "replaced",
            Whole::Hidden => "hidden from all later rows",
        }
    }
}

/// A later session and the effect that it carries.
#[derive(Debug, Clone, PartialEq)]
pub struct Carrier {
    /// Span name, or [`BETWEEN`].
    pub name: String,
    /// Distance in sessions; `None` for [`BETWEEN`].
    pub distance: Option<usize>,
    /// Loss from hiding the session from it, beyond hiding it from the question on.
    pub carried: f64,
}

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
    pub carriers: Vec<Carrier>,
    /// Hidden from the question on, by layer window.
    pub windows: BTreeMap<[usize; 2], f64>,
}

impl SessionEffects {
    /// Total effect, by one ablation.
    pub fn whole(&self, whole: Whole) -> Option<f64> {
        match whole {
            Whole::Removed => self.removed,
            Whole::Replaced => self.replaced,
            Whole::Hidden => self.hidden,
        }
    }

    /// Total minus direct effect.
    pub fn residue(&self, whole: Whole) -> Option<f64> {
        Some(self.whole(whole)? - self.direct?)
    }

    /// Sum over carriers in a distance group; `None` without any or if not measured.
    fn carried(&self, (nearest, farthest): (usize, usize)) -> Option<f64> {
        let within = |carrier: &&Carrier| carrier.distance.is_some_and(|d| (nearest..=farthest).contains(&d));
        let of_group: Vec<f64> = self.carriers.iter().filter(within).map(|carrier| carrier.carried).collect();
        (!of_group.is_empty()).then(|| of_group.iter().sum())
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Residues {
    pub sessions: Vec<SessionEffects>,
    pub of_contrasts: bool,
}

enum Measured {
    Direct,
    Window([usize; 2]),
    Removed,
    Replaced,
    /// Hidden from a later session too, with the loss by the direct path alone.
    Carrier(String, f64),
}

type Found = (AnswerKey, String, Option<String>, Measured, f64);

impl Residues {
    pub fn of_answers(dir: &Path) -> Result<Self, RunError> {
        let direct = |layers: Option<[usize; 2]>| layers.map_or(Measured::Direct, Measured::Window);
        let found = read_lines(dir)?.into_iter().filter_map(|line| match line {
            CauseLine::Blocked(row) => {
                Some((row.answer, row.span, row.role, direct(row.layers), row.effect.log_p_drop))
            }
            CauseLine::Total(row) => {
                Some((row.answer, row.span, row.role, Measured::Removed, row.effect.log_p_drop))
            }
            CauseLine::Replaced(row) => {
                Some((row.answer, row.span, row.role, Measured::Replaced, row.effect.log_p_drop))
            }
            CauseLine::Carrier(row) => {
                let carrier =
                    Measured::Carrier(row.carrier.unwrap_or_default(), row.direct.unwrap_or_default());
                Some((row.answer, row.span, row.role, carrier, row.effect.log_p_drop))
            }
            CauseLine::Control(_) | CauseLine::Subset(_) | CauseLine::Surrogate(_) => None,
        });
        Ok(Residues::of(found, false))
    }

    pub fn of_contrasts(dir: &Path) -> Result<Self, RunError> {
        Ok(Residues::of_contrast_rows(read_contrast_causes(dir)?))
    }

    fn of_contrast_rows(rows: Vec<ContrastCauseRow>) -> Self {
        let found = rows.into_iter().filter_map(|row| {
            let measured = match (row.ablation, row.layers) {
                (AblationKind::Control, _) => return None,
                (AblationKind::Carried, _) => Measured::Carrier(row.carrier?, row.direct?),
                (AblationKind::Removed, _) => Measured::Removed,
                (AblationKind::Replaced, _) => Measured::Replaced,
                (AblationKind::Blocked, None) => Measured::Direct,
                (AblationKind::Blocked, Some(layers)) => Measured::Window(layers),
            };
            Some((row.answer, row.span, row.role, measured, row.drop))
        });
        Residues::of(found, true)
    }

    fn of(found: impl Iterator<Item = Found>, of_contrasts: bool) -> Self {
        let mut sessions: BTreeMap<(AnswerKey, String), SessionEffects> = BTreeMap::new();
        // A separately measured direct effect takes precedence over a carrier row's.
        let mut carried = BTreeMap::new();
        for (answer, span, role, measured, lost) in found {
            let distance =
                |carrier: &str| number(carrier).zip(number(&span)).and_then(|(a, b)| a.checked_sub(b));
            let key = (answer, span.clone());
            let own = sessions.entry(key.clone()).or_default();
            own.role = role;
            match measured {
                Measured::Direct => own.direct = Some(lost),
                Measured::Window(layers) => drop(own.windows.insert(layers, lost)),
                Measured::Removed => own.removed = Some(lost),
                Measured::Replaced => own.replaced = Some(lost),
                Measured::Carrier(name, direct) => {
                    carried.entry(key).or_insert(direct);
                    match name.as_str() {
                        ALL => own.hidden = Some(lost),
                        _ => {
                            let (distance, carried) = (distance(&name), lost - direct);
                            own.carriers.push(Carrier { name, distance, carried });
                        }
                    }
                }
            }
        }
        let named = sessions.into_iter().map(|(key, mut effects)| {
            effects.direct = effects.direct.or(carried.get(&key).copied());
            let (AnswerKey { case, condition, .. }, span) = key;
            effects.carriers.sort_by_key(|carrier| carrier.distance.unwrap_or(usize::MAX));
            SessionEffects { case, condition, span, ..effects }
        });
        Residues { sessions: named.filter(|effects| effects.role.is_some()).collect(), of_contrasts }
    }

    pub fn is_measured(&self) -> bool {
        self.sessions.iter().any(|one| Whole::EACH.iter().any(|whole| one.residue(*whole).is_some()))
    }

    pub fn roles(&self) -> Vec<&str> {
        sorted_unique(self.sessions.iter().filter_map(|one| one.role.as_deref()))
    }

    fn by_case(&self, role: &str, of: impl Fn(&SessionEffects) -> Option<f64>) -> Vec<f64> {
        let mut cases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for one in self.sessions.iter().filter(|one| one.role.as_deref() == Some(role)) {
            cases.entry(&one.case).or_default().extend(of(one));
        }
        cases.into_values().filter_map(|values| mean(values.into_iter())).collect()
    }

    /// Mean over cases of one number of a role's sessions; `None` without any.
    pub fn mean(&self, role: &str, of: impl Fn(&SessionEffects) -> Option<f64>) -> Option<Estimate> {
        let values = self.by_case(role, of);
        let column = Array2::from_shape_fn((values.len(), 1), |(row, _)| values[row]);
        of_means(&column, Numbers::Signed).into_iter().next().filter(|estimate| estimate.value.is_some())
    }

    /// Ratio of two means over cases, of a role's sessions that have both numbers. No interval with fewer than [`LEAST`] cases or if the
    /// denominator may be 0.
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

    /// Fraction of the role's total effect that remains when its sessions are hidden from the question on.
    pub fn left(&self, role: &str, whole: Whole) -> Option<Estimate> {
        self.ratio(role, |one| one.residue(whole), |one| one.whole(whole).filter(|_| one.direct.is_some()))
    }

    /// Fraction of it that is lost when they are hidden from the question on at a layer window.
    pub fn by_window(&self, role: &str, window: [usize; 2], whole: Whole) -> Option<Estimate> {
        self.ratio(role, |one| one.windows.get(&window).copied(), |one| one.whole(whole))
    }

    pub fn windows(&self) -> Vec<[usize; 2]> {
        sorted_unique(self.sessions.iter().flat_map(|one| one.windows.keys().copied()))
    }

    /// Effect of a role's sessions carried by later sessions at these distances, in nats.
    pub fn carried(&self, role: &str, distances: (usize, usize)) -> Option<Estimate> {
        self.mean(role, |one| one.carried(distances))
    }

    /// The same for the positions between the last session and the question.
    pub fn carried_between(&self, role: &str) -> Option<Estimate> {
        self.mean(role, |one| one.carriers.iter().find(|c| c.name == BETWEEN).map(|c| c.carried))
    }

    /// Largest single carriers of a role's sessions, by absolute value.
    pub fn largest(&self, role: &str, most: usize) -> Vec<(&SessionEffects, &Carrier)> {
        let own = self.sessions.iter().filter(|one| one.role.as_deref() == Some(role));
        let mut all: Vec<_> =
            own.flat_map(|one| one.carriers.iter().map(move |carrier| (one, carrier))).collect();
        all.sort_by(|(_, a), (_, b)| b.carried.abs().total_cmp(&a.carried.abs()));
        all.truncate(most);
        all
    }
}

/// Index of a span: 3 for `session[3]`.
fn number(span: &str) -> Option<usize> {
    span.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

const NAMED: usize = 2;

/// Mean effects of a role's sessions by name, and whether each is part of the residue.
pub fn numbers(residues: &Residues, role: &str) -> Vec<(String, Estimate, bool)> {
    let direct = residues.mean(role, |one| one.direct);
    let wholes = Whole::EACH.into_iter().flat_map(|whole| {
        [
            (whole.label().to_owned(), residues.mean(role, |one| one.whole(whole)), false),
            (format!("left of it ({})", whole.label()), residues.mean(role, |one| one.residue(whole)), true),
        ]
    });
    let by_distance = DISTANCES.into_iter().map(|distances| {
        (format!("carried {}", distance_of(distances)), residues.carried(role, distances), true)
    });
    let between = ("carried behind the last session".to_owned(), residues.carried_between(role), true);
    let all = std::iter::once(("direct".to_owned(), direct, false)).chain(wholes).chain(by_distance);
    all.chain([between]).filter_map(|(name, estimate, is_left)| Some((name, estimate?, is_left))).collect()
}

fn distance_of((nearest, farthest): (usize, usize)) -> String {
    match (nearest, farthest) {
        (1, 1) => "by the next session".to_owned(),
        (n, f) if n == f => format!("{n} sessions later"),
        (n, usize::MAX) => format!("{n} or more sessions later"),
        (n, f) => format!("{n} to {f} sessions later"),
    }
}

pub fn in_words(residues: &Residues, segment: &str) -> Vec<String> {
    let of_role = |role: &str| {
        let wholes = Whole::EACH.into_iter().filter_map(|whole| left(residues, (role, segment), whole));
        wholes.chain(carriers(residues, (role, segment))).chain(windows(residues, role)).collect::<Vec<_>>()
    };
    residues.roles().into_iter().flat_map(of_role).collect()
}

fn left(residues: &Residues, (role, segment): (&str, &str), whole: Whole) -> Option<String> {
    let left = residues.left(role, whole)?;
    let nats = |of: &dyn Fn(&SessionEffects) -> Option<f64>| {
        residues.mean(role, of).and_then(|estimate| estimate.value).map_or("none".to_owned(), thousandths)
    };
    let unit = if residues.of_contrasts { "nats" } else { "nats a token" };
    let both = |one: &SessionEffects| one.residue(whole).is_some();
    Some(format!(
        "Deleting the {role} {segment} from the cache leaves {} of what it did: its direct effect is {}, {} it is {} {unit}.",
        percent(&left),
        nats(&|one| one.direct.filter(|_| both(one))),
        whole.label(),
        nats(&|one| one.whole(whole).filter(|_| both(one))),
    ))
}

fn percent(share: &Estimate) -> String {
    let write = |x: f64| format!("{:.0}%", 100.0 * x);
    match (share.value, share.band) {
        (Some(value), Some((low, high))) => {
            format!("{} [{}, {}] (n = {})", write(value), write(low), write(high), share.n)
        }
        (Some(value), None) if share.n < LEAST => {
            format!("{} (n = {}; no interval below {LEAST})", write(value), share.n)
        }
        (Some(value), None) => format!(
            "{} (n = {}; any share is possible, since its effect altogether was not told from 0)",
            write(value),
            share.n
        ),
        (None, _) => "an undefined share".to_owned(),
    }
}

fn carriers(residues: &Residues, (role, segment): (&str, &str)) -> Option<String> {
    let largest = residues.largest(role, NAMED);
    let one = |(session, carrier): &(&SessionEffects, &Carrier)| {
        format!(
            "{} of case {} ({} of {})",
            carrier.name,
            session.case,
            thousandths(carrier.carried),
            session.span
        )
    };
    let named: Vec<String> = largest.iter().map(one).collect();
    (!named.is_empty()).then(|| {
        format!("What is left of the {role} {segment} is held most by {}, in nats.", named.join(" and by "))
    })
}

fn windows(residues: &Residues, role: &str) -> Option<String> {
    let share = |[start, end]: [usize; 2], whole| {
        let share = residues.by_window(role, [start, end], whole)?;
        Some(format!("layers {start}–{} {}", end - 1, percent(&share)))
    };
    let of = |whole: Whole| -> Vec<String> {
        residues.windows().into_iter().filter_map(|window| share(window, whole)).collect()
    };
    let (whole, shares) =
        Whole::EACH.into_iter().map(|whole| (whole, of(whole))).find(|(_, shares)| !shares.is_empty())?;
    Some(format!(
        "Of its effect {}, hiding it from the question on at a window of layers takes: {}.",
        whole.label(),
        shares.join("; ")
    ))
}

fn thousandths(x: f64) -> String {
    format!("{:.3}", if x.abs() < 0.0005 { 0.0 } else { x })
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
