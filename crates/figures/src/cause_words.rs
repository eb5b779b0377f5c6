//! Causes of a run in sentences, for the report.

use super::cause_effects::open_in_words;
use super::{captions, cause_effects};
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_analysis::lens::causes::residue;
use palimpsest_analysis::lens::causes::{
    CausedAnswer, CausedSession, Causes, HeldOut, Intervention, LEAST_UNITS, Predictor, TOP,
};
use palimpsest_analysis::lens::{Correctness, Study};
use palimpsest_run::runs::causes::rows::Effect;

const NAMED: usize = 5;

pub fn in_words(causes: &Causes, study: &Study) -> Vec<String> {
    let words = Words { causes, segment: study.segment(), unit: causes.unit.many() };
    let mut said = Vec::new();
    if !causes.answers.is_empty() {
        said.extend([words.measured(), words.largest()]);
        said.extend([words.mass(), words.best(), words.interventions()].into_iter().flatten());
        said.extend(causes.roles.iter().filter_map(|role| words.found(role)));
        said.extend(words.means());
    }
    said.extend(residue::in_words(&causes.residues, words.segment));
    said.extend(words.windows());
    if !causes.answers.is_empty() {
        said.push(format!(
            "Only direct paths were blocked: what other {} took over from a hidden one still arrives, so that an effect near 0 does not show that \
             the model did without it.",
            captions::plural(words.segment)
        ));
    }
    said
}

struct Words<'a> {
    causes: &'a Causes,
    /// Singular, for example `session`.
    segment: &'static str,
    unit: &'static str,
}

fn with_band(estimate: &Estimate, write: impl Fn(f64) -> String) -> String {
    let band = estimate.band.map(|(low, high)| format!(" [{}, {}]", write(low), write(high)));
    estimate.value.map_or("none".to_owned(), |value| write(value) + &band.unwrap_or_default())
}

fn two(estimate: &Estimate) -> String {
    with_band(estimate, |x| format!("{x:.2}"))
}

fn three(estimate: &Estimate) -> String {
    with_band(estimate, thousandths)
}

/// Three decimals, without the sign of a rounded zero.
fn thousandths(x: f64) -> String {
    format!("{:.3}", if x.abs() < 0.0005 { 0.0 } else { x })
}

fn share(estimate: &Estimate) -> String {
    with_band(estimate, |x| format!("{:.0}%", 100.0 * x))
}

impl Words<'_> {
    fn units(&self) -> String {
        captions::counted(self.causes.units(), self.causes.unit.one())
    }

    fn by_role(&self, head: &str, of: impl Fn(Option<&str>) -> Option<String>) -> Option<String> {
        let roles = self.causes.roles.iter().map(|role| Some(role.as_str())).chain([None]);
        let one = |role: Option<&str>| {
            let name = role.map_or(format!("a {} without a role", self.segment), |role| {
                format!("the {role} {}", self.segment)
            });
            Some(format!("{name} {}", of(role)?))
        };
        let parts: Vec<String> = roles.filter_map(one).collect();
        (!parts.is_empty()).then(|| format!("{head}: {}.", parts.join("; ")))
    }

    fn measured(&self) -> String {
        let Words { causes, segment, .. } = self;
        format!(
            "For {} to {} each {segment} was hidden in turn from the question and the answer, and the model's own answer scored again. \
             The effect of a {segment} is how far the answer's log-probability per token falls by that: above 0, the answer needs it.{}",
            captions::counted(causes.answers.len(), "answer"),
            self.units(),
            open_in_words(causes.layers_open(), "the model's")
        )
    }

    fn largest(&self) -> String {
        let one = |(answer, session): (&CausedAnswer, &CausedSession)| {
            let role = session.role.as_ref().map(|role| format!(" ({role})")).unwrap_or_default();
            let control = session.control.map(|one| format!(", its control {}", thousandths(one.drop)));
            let [drop, kl, kl_answer] =
                [session.drop(), session.effect.kl, session.effect.kl_answer].map(thousandths);
            format!(
                "{}{role} {drop}{} (KL of the first token {kl}, mean over the answer {kl_answer})",
                cause_effects::named(answer, session),
                control.unwrap_or_default(),
            )
        };
        let largest: Vec<String> = self.causes.largest(NAMED).into_iter().map(one).collect();
        format!("The largest effects: {}.", largest.join("; "))
    }

    fn mass(&self) -> Option<String> {
        let mass = self.causes.rank(Predictor::Mass)?;
        let held = match mass.band {
            None => " (no interval below 5)",
            Some((low, high)) if low <= 0.0 && high >= 0.0 => ": the interval holds 0",
            Some(_) => "",
        };
        Some(format!(
            "Does the mass tell the cause? The rank correlation of the mass from the question with the effect over {} is {}{held}.",
            self.units(),
            two(&mass)
        ))
    }

    fn ranks(&self, wanted: impl Fn(Predictor) -> bool) -> Vec<String> {
        let predictors = self.causes.predictors().into_iter().filter(|one| wanted(*one));
        let rank = |one: Predictor| Some(format!("{} {}", one.label(), two(&self.causes.rank(one)?)));
        predictors.filter_map(rank).collect()
    }

    /// The best-ranking measure, chosen and measured on different halves.
    fn best(&self) -> Option<String> {
        let all = self.ranks(Predictor::is_measure);
        let best = match self.causes.best_measure() {
            None => format!("With {} there are too few to choose the best measure.", self.units()),
            Some(HeldOut { chosen, estimate }) => format!(
                "The measure that ranks best is {}: {}, measured on the half that did not choose, both ways.",
                halves(chosen, &Predictor::label),
                two(&estimate)
            ),
        };
        let over = format!("Over all {}, without a choice", self.unit);
        (all.len() > 1).then(|| format!("{best} {over}: {}.", all.join(", ")))
    }

    fn interventions(&self) -> Option<String> {
        let (many, others) = (captions::plural(self.segment), self.ranks(|one| !one.is_measure()));
        let said = format!(
            "Other interventions, which are no measures of attention, rank the {many} by the effect at: {}.",
            others.join(", ")
        );
        (!others.is_empty()).then_some(said)
    }

    fn found(&self, role: &str) -> Option<String> {
        let causes = self.causes;
        let (mass, chance) = (causes.found(Predictor::Mass, role)?, causes.chance(role)?);
        let by_effect = causes.found(Predictor::Effect, role).map(|estimate| share(&estimate));
        Some(format!(
            "The {role} {} is among the first {TOP} by mass in {} of the answers, by effect in {} (chance: {:.0}%).",
            self.segment,
            share(&mass),
            by_effect.unwrap_or_else(|| "none".to_owned()),
            100.0 * chance
        ))
    }

    /// Mean effects and divergences, effects on thoughts, and total effects.
    fn means(&self) -> Vec<String> {
        let causes = self.causes;
        let effect = |role: Option<&str>| {
            let of = |verdict| causes.effect(role, verdict);
            let all = of(Correctness::All)?;
            let mut said = three(&all);
            if all.n != causes.units() {
                said += &format!(" (n = {})", all.n);
            }
            if let (Some(right), Some(wrong)) = (of(Correctness::Correct), of(Correctness::Wrong)) {
                let (right, wrong) = (three(&right), three(&wrong));
                said += &format!(" ({right} where answers are right, {wrong} where they are wrong)");
            }
            if let Some(control) = causes.control(role, Correctness::All, |control| control.drop) {
                said += &format!(" against {} of random text as long (n = {})", three(&control), control.n);
            }
            Some(said)
        };
        let mean = |role: Option<&str>, of: fn(&Effect) -> f64| {
            Some(three(&causes.mean_of(role, Correctness::All, of)?))
        };
        let kl = |role: Option<&str>| {
            let (first, all) = (mean(role, |effect| effect.kl)?, mean(role, |effect| effect.kl_answer)?);
            Some(format!("{first} and {all}"))
        };
        // Thoughts that were not measured have no mean.
        let thought = |role: Option<&str>| {
            mean(role, |effect| effect.thought.map_or(f64::NAN, |thought| thought.log_p_drop))
        };
        let of_kind = |kind| {
            move |role: Option<&str>| Some(three(&causes.intervention(kind, role, Correctness::All)?))
        };
        let without = if causes.pools().is_none() { ", without controls" } else { "" };
        let alike = causes.rank(Predictor::Intervention(Intervention::Total));
        let removed = format!(
            "With a {} removed and all after it computed anew, the total effect, in which indirect paths count (rank correlation with the direct \
             effect {})",
            self.segment,
            alike.map_or("none".to_owned(), |estimate| two(&estimate))
        );
        let forced = format!(
            "Where layers with a sliding window or an indexer see the {} too (below 0, the answer gains)",
            self.segment
        );
        let over_units = format!("Mean effects over {}{without}", self.units());
        let divergence = "KL divergence, in nats, at the answer's first token and over all its tokens (mean)";
        let on_thought = "Effects on the thought before the answer, per token";
        let said = [
            self.by_role(&over_units, effect),
            self.by_role(divergence, kl),
            self.by_role(on_thought, thought),
            self.by_role(&removed, of_kind(Intervention::Total)),
            self.by_role(&forced, of_kind(Intervention::Forced)),
        ];
        said.into_iter().flatten().collect()
    }

    fn windows(&self) -> Option<String> {
        let Words { causes, segment, unit } = self;
        if !causes.has_windows() {
            return None;
        }
        let layers = |[start, end]: [usize; 2]| match end - start {
            1 => format!("layer {start}"),
            _ => format!("layers {start}–{}", end - 1),
        };
        let best = |role: &String| {
            let HeldOut { chosen, estimate } = causes.best_window(role)?;
            let (at, loss) = (halves(chosen, &layers), three(&estimate));
            Some(format!("without the {role} {segment} at {at} ({loss})"))
        };
        let parts: Vec<String> = causes.roles.iter().filter_map(best).collect();
        let width = captions::counted(causes.window_width(), "layer");
        let said = match parts.is_empty() {
            false => format!(
                "By windows of {width}, chosen on one half of the {unit} and measured on the other, both ways, an answer loses most {}.",
                parts.join(", ")
            ),
            true if causes.windows.len() > 1 => format!(
                "Windows of {width} were blocked for {}: with fewer than {} no choice of layers is measured.",
                captions::counted(causes.windowed_units(), causes.unit.one()),
                2 * LEAST_UNITS
            ),
            true => return None,
        };
        Some(said + &open_in_words(causes.windows_open(), "the windows'"))
    }
}

/// Choices of both halves, merged if equal.
fn halves<T: Copy + PartialEq>([one, other]: [T; 2], name: &impl Fn(T) -> String) -> String {
    match one == other {
        true => name(one),
        false => format!("{} by one half and {} by the other", name(one), name(other)),
    }
}
