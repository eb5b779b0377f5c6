//! The causes of a run in sentences, for the report.

use super::cause_captions::{has_thoughts, open_in_words};
use super::{captions, cause_effects};
use crate::lens::band::Estimate;
use crate::lens::causes::{
    CausedAnswer, CausedSession, Causes, HeldOut, Intervention, LEAST_UNITS, Predictor, TOP,
};
use crate::lens::{Correctness, Study};
use crate::run::causes::rows::Effect;

/// Effects that are told by name.
const NAMED: usize = 5;

/// The findings, a paragraph each.
pub fn in_words(causes: &Causes, study: &Study) -> Vec<String> {
    let words = Words {
        causes,
        segment: study.segment(),
        many: captions::plural(study.segment()),
        unit: causes.unit.many(),
    };
    if causes.answers.is_empty() {
        let left = crate::lens::causes::residue::in_words(&causes.residues, words.segment).into_iter();
        return left.chain(words.windows()).collect();
    }
    let mut said = vec![words.measured()];
    said.push(words.largest());
    said.extend(words.mass());
    said.extend(words.best());
    said.extend(words.interventions());
    said.extend(causes.roles.iter().filter_map(|role| words.found(role)));
    said.extend(words.effects());
    said.extend(words.divergences());
    said.extend(words.thoughts());
    said.extend(words.totals());
    said.extend(crate::lens::causes::residue::in_words(&causes.residues, words.segment));
    said.extend(words.windows());
    said.push(format!(
        "Only direct paths were blocked: what other {} took over from a hidden one still arrives, so that an effect near 0 does not show that \
         the model did without it.",
        words.many
    ));
    said
}

/// Causes, and the names of things in sentences.
struct Words<'a> {
    causes: &'a Causes,
    /// One of the history's parts: `session`.
    segment: &'static str,
    many: String,
    /// Several units: `cases`.
    unit: &'static str,
}

/// A number with its interval, if it has one.
fn with_band(estimate: &Estimate, write: impl Fn(f64) -> String) -> String {
    match (estimate.value, estimate.band) {
        (Some(value), Some((low, high))) => format!("{} [{}, {}]", write(value), write(low), write(high)),
        (Some(value), None) => write(value),
        (None, _) => "none".to_owned(),
    }
}

fn two(estimate: &Estimate) -> String {
    with_band(estimate, |x| format!("{x:.2}"))
}

fn three(estimate: &Estimate) -> String {
    with_band(estimate, thousandths)
}

/// To a thousandth; a number that rounds to 0 has no sign.
fn thousandths(x: f64) -> String {
    format!("{:.3}", if x.abs() < 0.0005 { 0.0 } else { x })
}

fn share(estimate: &Estimate) -> String {
    with_band(estimate, |x| format!("{:.0}%", 100.0 * x))
}

impl Words<'_> {
    /// `8 cases`.
    fn units(&self) -> String {
        captions::counted(self.causes.units(), self.causes.unit.one())
    }

    fn measured(&self) -> String {
        let Words { causes, segment, .. } = self;
        format!(
            "For {} to {} each {segment} was hidden in turn from the question and the answer, and the model's own answer read again. \
             The effect of a {segment} is how far the answer's log-probability per token falls by that: above 0, the answer needs it.{}",
            captions::counted(causes.answers.len(), "answer"),
            self.units(),
            open_in_words(causes.layers_open(), "the model's")
        )
    }

    fn largest(&self) -> String {
        let one = |(answer, session): (&CausedAnswer, &CausedSession)| {
            let role = session.role.as_ref().map(|role| format!(" ({role})")).unwrap_or_default();
            let control =
                session.control.map(|control| format!(", its control {}", thousandths(control.drop)));
            let Effect { kl, kl_answer, .. } = session.effect;
            format!(
                "{}{role} {}{} (KL of the first token {}, mean over the answer {})",
                cause_effects::named(answer, session),
                thousandths(session.drop()),
                control.unwrap_or_default(),
                thousandths(kl),
                thousandths(kl_answer)
            )
        };
        let largest: Vec<String> = self.causes.largest(NAMED).into_iter().map(one).collect();
        format!("The largest effects: {}.", largest.join("; "))
    }

    fn mass(&self) -> Option<String> {
        let mass = self.causes.rank(Predictor::Mass)?;
        let apart = mass.band.map(|(low, high)| low > 0.0 || high < 0.0);
        let held = match apart {
            None => format!("with {} this says little, and no interval is given below 5", self.units()),
            Some(true) if mass.value.is_some_and(|value| value > 0.0) => {
                "the mass says something of the effect, since the interval leaves 0 out".to_owned()
            }
            Some(true) => "the mass ranks them the wrong way round".to_owned(),
            Some(false) => {
                "the interval holds 0: the mass was not shown to say anything of the effect".to_owned()
            }
        };
        Some(format!(
            "Does the mass tell the cause? The rank correlation of the mass from the question with the effect is {}: {held}.",
            two(&mass)
        ))
    }

    /// The rank correlations of those predictors that `wanted` takes.
    fn ranks(&self, wanted: impl Fn(Predictor) -> bool) -> Vec<String> {
        let predictors = self.causes.predictors().into_iter().filter(|one| wanted(*one));
        let rank = |one: Predictor| Some(format!("{} {}", one.label(), two(&self.causes.rank(one)?)));
        predictors.filter_map(rank).collect()
    }

    /// The measure that ranks best, chosen and measured on different halves.
    fn best(&self) -> Option<String> {
        let Words { causes, many, unit, .. } = self;
        let all = self.ranks(Predictor::is_measure);
        if all.len() < 2 {
            return None;
        }
        let best = match causes.best_measure() {
            None => format!(
                "With {} there are too few to choose the best measure on one half of them and to measure it on the other.",
                self.units()
            ),
            Some(HeldOut { chosen: [one, other], estimate }) if one == other => format!(
                "Of the measures, {} ranks the {many} best: both halves of the {unit} chose it, and measured on the half that did not choose, \
                 both ways, it comes to {}.",
                one.label(),
                two(&estimate)
            ),
            Some(HeldOut { chosen: [one, other], estimate }) => format!(
                "No one measure ranks the {many} best: one half of the {unit} chose {}, the other {}; each measured on the half that did not \
                 choose it, they come to {}.",
                one.label(),
                other.label(),
                two(&estimate)
            ),
        };
        Some(format!("{best} Over all {unit}, without a choice: {}.", all.join(", ")))
    }

    fn interventions(&self) -> Option<String> {
        let others = self.ranks(|one| !one.is_measure());
        let said = || {
            format!(
                "Other interventions, which are no measures of attention, rank the {} by the effect at: {}.",
                self.many,
                others.join(", ")
            )
        };
        (!others.is_empty()).then(said)
    }

    fn found(&self, role: &str) -> Option<String> {
        let causes = self.causes;
        let (mass, chance) = (causes.found(Predictor::Mass, role)?, causes.chance(role)?);
        let by_effect = causes.found(Predictor::Effect, role).map(|estimate| share(&estimate));
        Some(format!(
            "The {role} {} is among the first {TOP} by mass in {} of the answers, by effect in {}, and by drawing blindly in {:.0}%.",
            self.segment,
            share(&mass),
            by_effect.unwrap_or_else(|| "none".to_owned()),
            100.0 * chance
        ))
    }

    /// A role before a word: `the old session`, `a session without a role`.
    fn part(&self, role: Option<&str>) -> String {
        match role {
            Some(role) => format!("the {role} {}", self.segment),
            None => format!("a {} without a role", self.segment),
        }
    }

    fn effects(&self) -> Option<String> {
        let causes = self.causes;
        let mut parts = Vec::new();
        for role in causes.roles.iter().map(|role| Some(role.as_str())).chain([None]) {
            let Some(effect) = causes.effect(role, Correctness::All) else { continue };
            let by = |verdict| causes.effect(role, verdict).map(|estimate| three(&estimate));
            let verdicts = match (by(Correctness::Correct), by(Correctness::Wrong)) {
                (Some(right), Some(wrong)) => {
                    format!(" ({right} where answers are right, {wrong} where they are wrong)")
                }
                _ => String::new(),
            };
            let control = causes.control(role, Correctness::All, |control| control.drop).map(|estimate| {
                format!(" against {} of random text as long (n = {})", three(&estimate), estimate.n)
            });
            parts.push(format!(
                "{} has {}{verdicts}{}",
                self.part(role),
                three(&effect),
                control.unwrap_or_default()
            ));
        }
        let missing = match causes.pools() {
            Some(_) => "",
            None => {
                " No controls were measured, so that nothing says how much of it any text as long would have."
            }
        };
        let said = || format!("Mean effects over {}: {}.{missing}", self.units(), parts.join("; "));
        (!parts.is_empty()).then(said)
    }

    fn divergences(&self) -> Option<String> {
        let causes = self.causes;
        let of = |role: Option<&str>| {
            let first = causes.mean_of(role, Correctness::All, |effect| effect.kl)?;
            let whole = causes.mean_of(role, Correctness::All, |effect| effect.kl_answer)?;
            Some(format!("{} {} and {}", self.part(role), three(&first), three(&whole)))
        };
        let roles = causes.roles.iter().map(|role| Some(role.as_str())).chain([None]);
        let parts: Vec<String> = roles.filter_map(of).collect();
        let said = || {
            format!(
                "KL divergence, in nats, at the answer's first token and over all its tokens (mean): {}.",
                parts.join("; ")
            )
        };
        (!parts.is_empty()).then(said)
    }

    fn thoughts(&self) -> Option<String> {
        let causes = self.causes;
        if !has_thoughts(causes) {
            return None;
        }
        let thought = |effect: &Effect| effect.thought.map_or(f64::NAN, |thought| thought.log_p_drop);
        let of = |role: Option<&str>| {
            let mean = causes.mean_of(role, Correctness::All, thought)?;
            Some(format!("{} {}", self.part(role), three(&mean)))
        };
        let roles = causes.roles.iter().map(|role| Some(role.as_str())).chain([None]);
        let parts: Vec<String> = roles.filter_map(of).collect();
        Some(format!(
            "The model thinks before it answers; everything above is of the answer behind the thought. The thought itself loses a token: {}.",
            parts.join("; ")
        ))
    }

    fn totals(&self) -> Option<String> {
        let causes = self.causes;
        let total = |role: &String| {
            Some(format!("{} {}", self.part(Some(role)), three(&causes.total(Some(role), Correctness::All)?)))
        };
        let totals: Vec<String> = causes.roles.iter().filter_map(total).collect();
        let alike = causes.rank(Predictor::Intervention(Intervention::Total));
        let said = || {
            format!(
                "With a {} removed and all after it read again, an answer loses without {}: the total effect, in which indirect paths count. Over \
                 the {} its rank correlation with the direct effect is {}.",
                self.segment,
                totals.join(", without "),
                self.many,
                alike.map(|estimate| two(&estimate)).unwrap_or_else(|| "none".to_owned())
            )
        };
        (!totals.is_empty()).then(said)
    }

    /// The layers through which most is lost, where windows were blocked.
    fn windows(&self) -> Option<String> {
        let Words { causes, segment, unit, .. } = self;
        if !causes.has_windows() {
            return None;
        }
        let layers = |[start, end]: [usize; 2]| match end - start {
            1 => format!("layer {start}"),
            _ => format!("layers {start}–{}", end - 1),
        };
        let best = |role: &String| {
            let HeldOut { chosen: [one, other], estimate } = causes.best_window(role)?;
            let value = three(&estimate);
            Some(match one == other {
                true => format!(
                    "without the {role} {segment} at {} ({value}; both halves chose them)",
                    layers(one)
                ),
                false => format!(
                    "without the {role} {segment} at {} by one half and at {} by the other ({value})",
                    layers(one),
                    layers(other)
                ),
            })
        };
        let parts: Vec<String> = causes.roles.iter().filter_map(best).collect();
        let open = open_in_words(causes.windows_open(), "the windows'");
        let said = match parts.is_empty() {
            false => format!(
                "By windows of {}, chosen on one half of the {unit} and measured on the other, both ways, an answer loses most {}.",
                captions::counted(causes.window_width(), "layer"),
                parts.join(", ")
            ),
            true if causes.windows.len() > 1 => format!(
                "Windows of {} were blocked for {}: with fewer than {} there is no choosing the layers through which most is lost on \
                 one half and measuring them on the other.",
                captions::counted(causes.window_width(), "layer"),
                captions::counted(causes.windowed_units(), causes.unit.one()),
                2 * LEAST_UNITS
            ),
            true => return None,
        };
        Some(said + &open)
    }
}
