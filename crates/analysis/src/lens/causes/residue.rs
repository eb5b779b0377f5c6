//! Residues: the part of a session's effect that is not in its own position, and the later sessions that carry it.
//!
//! Direct effect: the session's keys are hidden from the question on, as by cache eviction. Total effect: the session is never read.
//! Residue = total - direct. Units are nats: per token for answers, in total for contrasts. Effects are averaged over a role's sessions and
//! a case's answers; intervals are over cases.

use std::collections::BTreeMap;
use std::path::Path;

use super::thoughts::{THIRDS, ThoughtEffects};
use super::{estimate, mean};
use crate::lens::band::{Estimate, LEAST, Numbers};
use palimpsest_data::ground::jsonl::read_rows;
use palimpsest_data::ground::order::sorted_unique;
use palimpsest_data::statistics::means;
use palimpsest_run::runs::causes::carriers::{ALL, BETWEEN};
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use palimpsest_run::runs::causes::repair_rows::{Later, RepairedRows};
use palimpsest_run::runs::causes::rows::{CauseLine, CauseRow, ThoughtRow, read_lines};
use palimpsest_run::runs::causes::two_hop::{ONE_HOP, ScoreRow, THOUGHT_SCORES, TWO_HOPS};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::rows::AnswerKey;

pub const DISTANCES: [(usize, usize); 5] = [(1, 1), (2, 2), (3, 4), (5, 8), (9, usize::MAX)];

/// The total effect that a residue is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whole {
    Removed,
    Replaced,
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
    pub role: String,
    pub direct: Option<f64>,
    pub wholes: BTreeMap<Whole, f64>,
    pub carriers: Vec<Carrier>,
    /// Hidden from the question on, by layer window.
    pub windows: BTreeMap<[usize; 2], f64>,
    pub thought: ThoughtEffects,
    /// By later rows read again after its replacement: all rows read again, and the loss.
    pub repairs: BTreeMap<Later, (usize, f64)>,
}

impl SessionEffects {
    pub(super) fn whole(&self, whole: Whole) -> Option<f64> {
        self.wholes.get(&whole).copied()
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

    /// The same for the positions between the last session and the question.
    fn carried_between(&self) -> Option<f64> {
        self.carriers.iter().find(|carrier| carrier.name == BETWEEN).map(|carrier| carrier.carried)
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Residues {
    /// Sessions with a role.
    pub sessions: Vec<SessionEffects>,
    pub of_contrasts: bool,
}

enum Measured {
    /// Hidden from the question on, at all layers or at a window.
    Direct(Option<[usize; 2]>),
    Whole(Whole),
    Repaired(RepairedRows),
    /// Hidden from a later session too, with the loss by the direct path alone.
    Carrier(String, f64),
    /// By a path through the thought, with one-hop and two-hop attention.
    Thought(Box<ThoughtRow>, Option<[f64; 2]>),
}

struct Found {
    answer: AnswerKey,
    span: String,
    role: Option<String>,
    measured: Measured,
    lost: f64,
}

impl Residues {
    pub fn of_answers(dir: &Path) -> Result<Self, RunError> {
        let mut scores: BTreeMap<(AnswerKey, String), BTreeMap<String, f64>> = BTreeMap::new();
        for row in read_rows::<ScoreRow>(dir, THOUGHT_SCORES)? {
            scores.insert((row.answer, row.method), row.scores);
        }
        let score = |row: &ThoughtRow, method: &str| {
            scores.get(&(row.answer.clone(), method.to_owned()))?.get(&row.span).copied()
        };
        let found = read_lines(dir)?.into_iter().filter_map(|line| {
            let (row, measured) = match line {
                CauseLine::Blocked(row) => {
                    let layers = row.layers;
                    (row, Measured::Direct(layers))
                }
                CauseLine::Total(row) => (row, Measured::Whole(Whole::Removed)),
                CauseLine::Replaced(row) => (row, Measured::Whole(Whole::Replaced)),
                CauseLine::Repaired(row) => {
                    let rows = row.rows?;
                    (row, Measured::Repaired(rows))
                }
                CauseLine::Carrier(mut row) => {
                    let carrier = row.carrier.take().unwrap_or_default();
                    let direct = row.direct.unwrap_or_default();
                    (row, Measured::Carrier(carrier, direct))
                }
                CauseLine::Thought(row) => {
                    let hops = score(&row, ONE_HOP).zip(score(&row, TWO_HOPS)).map(<[f64; 2]>::from);
                    let (answer, span, role) = (row.answer.clone(), row.span.clone(), row.role.clone());
                    let (lost, measured) = (row.effect.log_p_drop, Measured::Thought(row.into(), hops));
                    return Some(Found { answer, span, role, measured, lost });
                }
                CauseLine::Control(_)
                | CauseLine::Forced(_)
                | CauseLine::Subset(_)
                | CauseLine::Surrogate(_) => return None,
            };
            let CauseRow { answer, span, role, effect, .. } = row;
            Some(Found { answer, span, role, measured, lost: effect.log_p_drop })
        });
        Ok(Residues::of(found, false))
    }

    pub fn of_contrasts(dir: &Path) -> Result<Self, RunError> {
        Ok(Residues::of_contrast_rows(read_contrast_causes(dir)?))
    }

    pub(super) fn of_contrast_rows(rows: Vec<ContrastCauseRow>) -> Self {
        let found = rows.into_iter().filter_map(|row| {
            let measured = match row.ablation {
                AblationKind::Control | AblationKind::Forced => return None,
                AblationKind::Carried => Measured::Carrier(row.carrier?, row.direct?),
                AblationKind::Removed => Measured::Whole(Whole::Removed),
                AblationKind::Replaced => Measured::Whole(Whole::Replaced),
                AblationKind::Repaired => Measured::Repaired(row.rows?),
                AblationKind::Blocked => Measured::Direct(row.layers),
            };
            Some(Found { answer: row.answer, span: row.span, role: row.role, measured, lost: row.drop })
        });
        Residues::of(found, true)
    }

    fn of(all: impl Iterator<Item = Found>, of_contrasts: bool) -> Self {
        // Beside each session, the direct effect of its carriers' rows; one measured by itself takes precedence.
        let mut sessions: BTreeMap<(AnswerKey, String), (SessionEffects, Option<f64>)> = BTreeMap::new();
        for Found { answer, span, role, measured, lost } in all {
            let Some(role) = role else { continue };
            let index = number(&span);
            let (own, by_carriers) = sessions.entry((answer, span)).or_default();
            own.role = role;
            match measured {
                Measured::Direct(None) => own.direct = Some(lost),
                Measured::Direct(Some(layers)) => _ = own.windows.insert(layers, lost),
                Measured::Whole(whole) => _ = own.wholes.insert(whole, lost),
                Measured::Thought(row, hops) => own.thought.add(&row, hops),
                Measured::Repaired(rows) => {
                    own.repairs.insert(Later(rows.k), (rows.recomputed, lost));
                }
                Measured::Carrier(name, direct) => {
                    by_carriers.get_or_insert(direct);
                    if name == ALL {
                        own.wholes.insert(Whole::Hidden, lost);
                        continue;
                    }
                    let distance = number(&name).zip(index).and_then(|(a, b)| a.checked_sub(b));
                    own.carriers.push(Carrier { name, distance, carried: lost - direct });
                }
            }
        }
        let named = sessions.into_iter().map(|((key, span), (mut effects, by_carriers))| {
            effects.direct = effects.direct.or(by_carriers);
            effects.carriers.sort_by_key(|carrier| carrier.distance.unwrap_or(usize::MAX));
            SessionEffects { case: key.case, condition: key.condition, span, ..effects }
        });
        Residues { sessions: named.collect(), of_contrasts }
    }

    pub fn is_measured(&self) -> bool {
        let is_whole = |one: &SessionEffects| Whole::EACH.iter().any(|whole| one.residue(*whole).is_some());
        self.sessions.iter().any(|one| is_whole(one) || one.thought.through().is_some())
    }

    pub fn roles(&self) -> Vec<&str> {
        sorted_unique(self.sessions.iter().map(|one| one.role.as_str()))
    }

    fn in_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a SessionEffects> {
        self.sessions.iter().filter(move |one| one.role == role)
    }

    fn by_case(&self, role: &str, of: impl Fn(&SessionEffects) -> Option<f64>) -> Vec<f64> {
        let mut cases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for one in self.in_role(role) {
            cases.entry(&one.case).or_default().extend(of(one));
        }
        cases.into_values().filter_map(|values| mean(values.into_iter())).collect()
    }

    /// Mean over cases of one number of a role's sessions; `None` without any.
    pub fn mean(&self, role: &str, of: impl Fn(&SessionEffects) -> Option<f64>) -> Option<Estimate> {
        estimate(&self.by_case(role, of), Numbers::Signed)
    }

    /// Ratio of two means over cases, of a role's sessions that have both numbers. No interval with fewer than [`LEAST`] cases or if the
    /// denominator may be 0.
    pub(super) fn ratio(
        &self,
        role: &str,
        over: impl Fn(&SessionEffects) -> Option<f64>,
        under: impl Fn(&SessionEffects) -> Option<f64>,
    ) -> Option<Estimate> {
        let above = self.by_case(role, |one| over(one).filter(|_| under(one).is_some()));
        let below = self.by_case(role, |one| under(one).filter(|_| over(one).is_some()));
        let pairs = above.into_iter().zip(below);
        Some(Estimate::ratio(pairs, means::signed_ratio)).filter(|estimate| estimate.n > 0)
    }

    /// Fraction of the role's total effect that remains when its sessions are hidden from the question on.
    pub fn left(&self, role: &str, whole: Whole) -> Option<Estimate> {
        self.ratio(role, |one| one.residue(whole), |one| one.whole(whole).filter(|_| one.direct.is_some()))
    }
}

/// Index of a span: 3 for `session[3]`.
fn number(span: &str) -> Option<usize> {
    span.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

/// Mean effects of a role's sessions by name, and whether each is part of the residue.
pub fn numbers(residues: &Residues, role: &str) -> Vec<(String, Estimate, bool)> {
    let mut all = vec![("direct".to_owned(), residues.mean(role, |one| one.direct), false)];
    for whole in Whole::EACH {
        let label = whole.label();
        all.push((label.to_owned(), residues.mean(role, |one| one.whole(whole)), false));
        all.push((format!("left of it ({label})"), residues.mean(role, |one| one.residue(whole)), true));
    }
    for distances in DISTANCES {
        let far = match distances {
            (1, 1) => "by the next session".to_owned(),
            (n, usize::MAX) => format!("{n} or more sessions later"),
            (n, f) if n == f => format!("{n} sessions later"),
            (n, f) => format!("{n} to {f} sessions later"),
        };
        all.push((format!("carried {far}"), residues.mean(role, |one| one.carried(distances)), true));
    }
    let between = residues.mean(role, SessionEffects::carried_between);
    all.push(("carried behind the last session".to_owned(), between, true));
    let of_thought = |of: fn(&ThoughtEffects) -> Option<f64>| residues.mean(role, |one| of(&one.thought));
    let (whole, direct) = (of_thought(|thought| thought.whole), of_thought(|thought| thought.direct));
    all.push(("hidden from question, thought and answer".to_owned(), whole, false));
    all.push(("hidden from question and answer".to_owned(), direct, false));
    all.push(("through the thought".to_owned(), of_thought(ThoughtEffects::through), true));
    for (nth, third) in THIRDS.iter().enumerate() {
        let carried = residues.mean(role, |one| one.thought.carried(nth));
        all.push((format!("carried by the thought's {third} third"), carried, true));
    }
    all.into_iter().filter_map(|(name, estimate, is_left)| Some((name, estimate?, is_left))).collect()
}

pub fn in_words(residues: &Residues, segment: &str) -> Vec<String> {
    let mut said = Vec::new();
    for role in residues.roles() {
        for whole in Whole::EACH {
            let Some(left) = residues.left(role, whole) else { continue };
            said.push(format!(
                "Evicting the {role} {segment} from the cache leaves {} of its effect when {}.",
                percent(&left),
                whole.label()
            ));
        }
        said.extend(through_thoughts(residues, (role, segment)));
        said.extend(largest(residues, (role, segment)));
        said.extend(windows(residues, (role, segment)));
    }
    said
}

pub(super) fn percent(share: &Estimate) -> String {
    let write = |x: f64| format!("{:.0}%", 100.0 * x);
    let value = share.value.map_or("an undefined share".to_owned(), write);
    let band = share.band.map(|(low, high)| format!(" [{}, {}]", write(low), write(high)));
    let few = if share.n < LEAST { format!("; no interval below {LEAST}") } else { String::new() };
    format!("{value}{} (n = {}{few})", band.unwrap_or_default(), share.n)
}

/// Part of a role's effect that goes through the thought's rows, and its sentences' parts of that.
fn through_thoughts(residues: &Residues, (role, segment): (&str, &str)) -> Option<String> {
    let through = residues.ratio(role, |one| one.thought.through(), |one| one.thought.whole)?;
    let of_third = |(nth, third): (usize, &&str)| {
        let share = residues.ratio(role, |one| one.thought.carried(nth), |one| one.thought.through())?;
        Some(format!("; its {third} third carries {} of this", percent(&share)))
    };
    let thirds: String = THIRDS.iter().enumerate().filter_map(of_third).collect();
    let part = |one: &SessionEffects| one.thought.hops.map(|[one, two]| two - one);
    let hops = residues.ratio(role, part, |one| one.thought.hops.map(|[_, two]| two));
    let hops = hops.map(|hops| format!("; two-hop attention would say {}", percent(&hops)));
    Some(format!(
        "Through the thought's rows goes {} of the effect of the {role} {segment}{thirds}{}.",
        percent(&through),
        hops.unwrap_or_default()
    ))
}

/// The two largest single carriers of a role's sessions, by absolute value.
fn largest(residues: &Residues, (role, segment): (&str, &str)) -> Option<String> {
    let mut all: Vec<_> = residues
        .in_role(role)
        .flat_map(|one| one.carriers.iter().map(move |carrier| (one, carrier)))
        .collect();
    all.sort_by(|(_, a), (_, b)| b.carried.abs().total_cmp(&a.carried.abs()));
    let one = |(session, carrier): &(&SessionEffects, &Carrier)| {
        let Carrier { name, carried, .. } = carrier;
        format!("{name} of case {} ({carried:.3} nats of {})", session.case, session.span)
    };
    let named: Vec<String> = all.iter().take(2).map(one).collect();
    (!named.is_empty())
        .then(|| format!("The largest carriers of the {role} {segment}: {}.", named.join(" and ")))
}

/// Fraction of a role's total effect that is lost when its sessions are hidden from the question on at a layer window.
fn windows(residues: &Residues, (role, segment): (&str, &str)) -> Option<String> {
    let all = sorted_unique(residues.sessions.iter().flat_map(|one| one.windows.keys().copied()));
    let shares = |whole: Whole| -> Vec<String> {
        let share = |window: &[usize; 2]| {
            let share =
                residues.ratio(role, |one| one.windows.get(window).copied(), |one| one.whole(whole))?;
            Some(format!("layers {}–{} {}", window[0], window[1] - 1, percent(&share)))
        };
        all.iter().filter_map(share).collect()
    };
    let (whole, shares) =
        Whole::EACH.into_iter().map(|whole| (whole, shares(whole))).find(|(_, shares)| !shares.is_empty())?;
    Some(format!(
        "Hiding the {role} {segment} from the question on at a window of layers has these shares of its effect when {}: {}.",
        whole.label(),
        shares.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(case: usize, ablation: &str, carrier: Option<&str>, drop: f64) -> ContrastCauseRow {
        let row = json!({
            "case": case.to_string(), "probe": "P", "condition": "", "span": "session[2]", "role": "old", "tokens": [3, 9],
            "carrier": carrier, "direct": carrier.map(|_| 0.5), "seed": 0, "ablation": ablation, "contrast": 1.0,
            "drop": drop, "current": 0.0, "stale": 0.0,
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn a_residue_is_the_total_less_the_direct_effect_and_its_share_that_of_the_means() {
        let mut rows = Vec::new();
        for case in 0..6 {
            let total = 2.0 + case as f64 / 10.0;
            rows.push(row(case, "blocked", None, 0.5));
            rows.push(row(case, "removed", None, total));
            rows.push(row(case, "carried", Some(ALL), 1.5));
            rows.push(row(case, "carried", Some("session[3]"), 0.75));
            rows.push(row(case, "carried", Some("session[6]"), 1.25));
            rows.push(row(case, "carried", Some(BETWEEN), 0.5));
        }
        let found = Residues::of_contrast_rows(rows);
        assert!(found.is_measured() && found.roles() == ["old"]);
        let left = found.left("old", Whole::Removed).unwrap();
        assert!((left.value.unwrap() - 1.75 / 2.25).abs() < 1e-12);
        let (low, high) = left.band.unwrap();
        assert!(low < 1.75 / 2.25 && 1.75 / 2.25 < high && high - low < 0.1);
        assert_eq!(found.left("old", Whole::Replaced), None);
        assert!((found.left("old", Whole::Hidden).unwrap().value.unwrap() - 1.0 / 1.5).abs() < 1e-12);
        let carried = |distances| found.mean("old", |one| one.carried(distances))?.value;
        assert_eq!(DISTANCES.map(carried), [Some(0.25), None, Some(0.75), None, None]);
        assert_eq!(found.mean("old", SessionEffects::carried_between).unwrap().value, Some(0.0));
        let said = largest(&found, ("old", "session")).unwrap();
        assert!(said.contains("session[6] of case 0 (0.750 nats of session[2])"), "{said}");
    }
}
