//! Sentences on attention, effects and their agreement.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::roles::{Role, kind_of, mean_of, roles};
use super::verdicts::{self, answered};
use crate::lens::band::Estimate;
use crate::lens::causes::{CausedAnswer, Causes};
use crate::lens::layers::mean_over;
use crate::lens::{
    Condition, Correctness, Example, Group, LayerKind, Lens, Scale, Series, Statistic, Study, Target,
};
use palimpsest_data::ground::words::{capitalised, counted, plural};
use palimpsest_run::runs::condition::label;

/// Sentence for a run without attention.
pub(super) fn unmeasured(study: &Study, condition: &Condition) -> String {
    let (answered, asked) = answered(condition);
    let under = under(study, condition);
    let said = format!("{under}no attention was recorded; {answered} of {asked} questions are answered");
    format!("{}; {}.", capitalised(&said), verdicts::answers(study, condition))
}

fn under(study: &Study, condition: &Condition) -> String {
    if study.selection.several { format!("under {}, ", label(&condition.name)) } else { String::new() }
}

pub(super) struct Words<'a> {
    study: &'a Study,
    condition: &'a Condition,
    lens: &'a Lens,
    kind: LayerKind,
    roles: Vec<Role>,
}

impl<'a> Words<'a> {
    pub fn of(study: &'a Study, condition: &'a Condition, lens: &'a Lens) -> Self {
        let (kind, roles) = (kind_of(lens), roles(lens));
        Words { study, condition, lens, kind, roles }
    }

    pub fn sentences(&self, causes: Option<&Causes>) -> Vec<String> {
        let causes = causes.map(|causes| self.under_condition(causes));
        let effects = causes.as_deref().and_then(|causes| self.effects(causes));
        let agreement = causes.as_deref().and_then(|causes| self.agreement(causes));
        let first = if agreement.is_some() { None } else { self.first_by_attention() };
        let said = [Some(self.attention()), Some(self.answers()), first, effects, agreement];
        let under = under(self.study, self.condition);
        said.into_iter().flatten().map(|said| format!("{}.", capitalised(&(under.clone() + &said)))).collect()
    }

    fn answers(&self) -> String {
        verdicts::answers(self.study, self.condition)
    }

    fn under_condition<'c>(&self, causes: &'c Causes) -> Cow<'c, Causes> {
        let own = |answer: &CausedAnswer| answer.condition == self.condition.name;
        if causes.answers.iter().all(own) {
            return Cow::Borrowed(causes);
        }
        let mut causes = causes.clone();
        causes.answers.retain(own);
        Cow::Owned(causes)
    }

    fn attention(&self) -> String {
        let Words { condition, lens, kind, roles, .. } = self;
        let viewer = lens.viewer();
        if roles.is_empty() {
            let (answered, asked) = answered(condition);
            return format!(
                "no prompt has evidence that the attention of the {viewer} could be compared on; {answered} of {asked} questions \
                 are answered"
            );
        }
        let signals: Vec<Series> =
            roles.iter().map(|role| mean_of(lens, role.curve, Target::Signal)).collect();
        let paid: Vec<f64> = signals.iter().filter_map(|series| series.mean_over(*kind)).collect();
        let noise = |role: &Role| mean_of(lens, role.curve, Target::Noise).mean_over(*kind);
        let noise: Option<Vec<f64>> = roles.iter().map(noise).collect();
        let decimals = decimals(paid.iter().chain(noise.iter().flatten()));
        let share = |mass: &f64| format!("{:.decimals$}%", 100.0 * mass);

        let names = roles.iter().enumerate().map(|(at, role)| if at == 0 { &role.name } else { &role.short });
        let pays =
            listed(names.zip(&paid).map(|(name, mass)| format!("{} to the {name}", share(mass))).collect());
        let pays = pays.replacen(" to the", &format!(" of its {} to the", self.what()), 1);
        let mut beside = Vec::new();
        if let Some(noise) = noise {
            let whose = match lens.benchmark.lens.stand_in {
                None => format!("neighbouring {}", plural(lens.segment)),
                Some(role) => format!("an equally long part of the {role}"),
            };
            beside.push(format!("{whose}: {}", listed(noise.iter().map(share).collect())));
        }
        let counts: Vec<usize> = signals.iter().map(|series| series.units_over(*kind)).collect();
        let units = self.units();
        let same = counts.iter().all(|n| *n == counts[0]) && units.iter().all(|[of, _]| *of == units[0][0]);
        beside.extend(self.ratio(Some(counts[0]).filter(|_| same)));
        beside.push(format!("mean over {}, {}{}", self.layers(), self.counts(&counts, same), self.pooled()));
        beside.extend(self.left_out(&units));
        format!("the {viewer} pays {pays} ({})", beside.join("; "))
    }

    /// The units in each role's mean, and those left out of it.
    fn units(&self) -> Vec<[BTreeSet<(&str, &str)>; 2]> {
        self.roles.iter().map(|role| self.lens.units_of(&Group::all(), role.curve)).collect()
    }

    /// `1 question left out: no neighbouring session`.
    fn left_out(&self, units: &[[BTreeSet<(&str, &str)>; 2]]) -> Option<String> {
        let left: BTreeSet<_> = units.iter().flat_map(|[_, left]| left).collect();
        let what = match self.lens.benchmark.lens.stand_in {
            None => format!("neighbouring {}", self.lens.segment),
            Some(role) => role.to_owned(),
        };
        let whose = counted(left.len(), self.lens.unit().one());
        (!left.is_empty()).then(|| format!("{whose} left out: no {what}"))
    }

    fn what(&self) -> &'static str {
        if self.kind == LayerKind::Linear { "implicit |weight|" } else { "attention" }
    }

    fn layers(&self) -> String {
        let count = self.lens.layers.iter().filter(|layer| layer.kind == self.kind).count();
        let heads = self.lens.options().heads.as_ref();
        let heads = heads.map(|by| format!(" with heads weighted by {} scores", by.score.key()));
        let layers = match self.lens.has_kinds() {
            true => format!("the {}", counted(count, &format!("{} layer", self.kind.key()))),
            false => counted(count, "layer"),
        };
        layers + &heads.unwrap_or_default()
    }

    /// Ratio of means by layer, as `palimpsest lens` prints it; with its number of units unless it is `shared`, that of the means.
    fn ratio(&self, shared: Option<usize>) -> Option<String> {
        let (over, under) = self.lens.ratio?;
        let is_compared = self.roles.iter().map(|role| role.curve).eq([over, under]);
        let ratio = self.lens.series(&Group::all(), Statistic::RatioOfMeans, Scale::Mass);
        let n = ratio.units_over(self.kind);
        let ratio = ratio.mean_over(self.kind).filter(|_| is_compared)?;
        let unit = self.lens.unit().one();
        let of = if shared == Some(n) { String::new() } else { format!(" ({} with both)", counted(n, unit)) };
        Some(format!("{}/{} {ratio:.2} by layer{of}", over.to, under.to))
    }

    /// One number where every role has the `same` units.
    fn counts(&self, counts: &[usize], same: bool) -> String {
        let unit = self.lens.unit();
        match counts {
            [first, ..] if same => counted(*first, unit.one()),
            several => format!("{} {}", listed(several.iter().map(usize::to_string).collect()), unit.many()),
        }
    }

    fn pooled(&self) -> String {
        let Lens { pooled, probes, .. } = self.lens;
        if pooled == probes { String::new() } else { format!(", {}", self.lens.pooled_in_words()) }
    }

    /// `18 answers`; with their questions if means are over fewer of them: `18 answers (SR, PR and IPA)`.
    fn answers_to<'p>(&self, n: usize, probes: impl Iterator<Item = &'p str>) -> String {
        let questions = self.questions(probes).map(|names| format!(" ({names})")).unwrap_or_default();
        counted(n, "answer") + &questions
    }

    /// The questions among these, in the run's order; `None` if means are over all.
    fn questions<'p>(&self, probes: impl Iterator<Item = &'p str>) -> Option<String> {
        let Lens { pooled, probes: all, .. } = self.lens;
        let found: HashSet<&str> = probes.collect();
        let named = all.iter().filter(|name| found.contains(name.as_str())).cloned().collect();
        (pooled != all).then(|| listed(named))
    }

    /// Attention of one answer to each role; `None` unless it has all.
    fn masses(&self, example: &Example) -> Option<Vec<f64>> {
        let of = |role: &Role| {
            let values = example.curve(role.curve, Target::Signal, Scale::Mass)?;
            mean_over(&example.layers, self.kind, values).filter(|mass| mass.is_finite())
        };
        self.roles.iter().map(of).collect()
    }

    fn first_by_attention(&self) -> Option<String> {
        let examples = self.lens.examples.iter();
        let known = examples.filter_map(|example| Some((example.dimension.as_str(), self.masses(example)?)));
        let (probes, all): (Vec<&str>, Vec<Vec<f64>>) = known.unzip();
        let (role, times) = self.most_often(&all)?;
        let (of, more) = match self.roles.len() {
            2 => ("two".to_owned(), "more"),
            roles => (roles.to_string(), "most"),
        };
        let gets = role.full(["gets", "get"]);
        let answers = self.answers_to(all.len(), probes.into_iter());
        let partial = if self.roles.len() == 2 { " that show both" } else { " that show all" };
        let shown = if all.len() < self.lens.examples.len() { partial } else { "" };
        Some(format!("of the {of}, {gets} {more} attention in {times} of {answers}{shown}"))
    }

    /// The role that is most often above the others, and in how many answers. `None` for fewer than two roles, or without answers.
    fn most_often(&self, answers: &[Vec<f64>]) -> Option<(&Role, usize)> {
        if self.roles.len() < 2 || answers.is_empty() {
            return None;
        }
        let times = |at: usize| answers.iter().filter(|values| first(values) == Some(at)).count();
        let counts = self.roles.iter().enumerate().map(|(at, role)| (role, times(at)));
        counts.reduce(|best, one| if one.1 > best.1 { one } else { best })
    }

    fn effects(&self, causes: &Causes) -> Option<String> {
        let effect = |role: &'_ Role| causes.effect(Some(role.curve.to), Correctness::All);
        let known: Vec<_> = self.roles.iter().filter_map(|role| Some((role, effect(role)?))).collect();
        let unit = causes.unit;
        // Effects are means over all questions, not over those of the attention.
        let dimensions = self.lens.examples.iter().map(|one| ((&*one.case, &*one.probe), &*one.dimension));
        let dimensions: HashMap<(&str, &str), &str> = dimensions.collect();
        let answers = causes.answers.iter();
        let probes = answers.filter_map(|one| dimensions.get(&(&*one.case, &*one.probe)).copied());
        let questions = self.questions(probes).map(|names| format!(", {names}")).unwrap_or_default();
        let n = |n: usize| format!(" (n = {}{questions})", counted(n, unit.one()));
        let same = known.iter().all(|(_, estimate)| estimate.n == known[0].1.n);
        let at = if causes.layers_open() > 0.0 { " at the softmax layers" } else { "" };
        let one = |(place, (role, estimate)): (usize, &(&Role, Estimate))| {
            let value = signed(estimate.value?);
            let n = if place == 0 || !same { n(estimate.n) } else { String::new() };
            Some(match place {
                0 => format!(
                    "hiding {}{at} costs the answer {value} nats per token{n}",
                    role.hidden(&role.name)
                ),
                _ => format!("hiding {} {value}{n}", role.hidden(&role.short)),
            })
        };
        let parts: Vec<String> = known.iter().enumerate().filter_map(one).collect();
        if parts.is_empty() {
            return None;
        }
        let control = |(role, estimate): &(&Role, Estimate)| {
            let control = causes.control(Some(role.curve.to), Correctness::All, |control| control.drop)?;
            let n = if control.n == estimate.n { String::new() } else { n(control.n) };
            Some((signed(control.value?) + &n, role.hidden(&role.name)))
        };
        let controls: Vec<(String, String)> = known.iter().filter_map(control).collect();
        let shared = controls.len() == known.len() && controls.iter().all(|one| one.0 == controls[0].0);
        let each = controls.iter().map(|(value, whose)| format!("{value} for {whose}"));
        let controls = match controls.first() {
            None => String::new(),
            Some((value, _)) if shared => value.clone(),
            Some(_) => listed(each.collect()),
        };
        let controls = match &*controls {
            "" => controls,
            some => format!("; random text of the same length: {some}"),
        };
        Some(format!("{}{controls}", parts.join(", ")))
    }

    fn agreement(&self, causes: &Causes) -> Option<String> {
        let examples = self.lens.examples.iter().map(|example| ((&*example.case, &*example.probe), example));
        let examples: HashMap<(&str, &str), &Example> = examples.collect();
        let both = |answer: &CausedAnswer| {
            let example = examples.get(&(&*answer.case, &*answer.probe))?;
            let masses = self.masses(example)?;
            let effects: Option<Vec<f64>> = self.roles.iter().map(|role| effect_of(answer, role)).collect();
            Some((example.dimension.as_str(), (masses, effects?)))
        };
        let (probes, both): (Vec<&str>, Vec<_>) = causes.answers.iter().filter_map(both).unzip();
        let (masses, effects): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        let ((looked, more), (used, larger)) = (self.most_often(&masses)?, self.most_often(&effects)?);
        let pairs = masses.iter().zip(&effects);
        let agree = pairs.filter(|(a, b)| first(a).is_some() && first(a) == first(b)).count();
        let answers = self.answers_to(masses.len(), probes.into_iter());
        let [most, largest] = if self.roles.len() == 2 { ["more", "larger"] } else { ["most", "largest"] };
        let gets = looked.full(["gets", "get"]);
        let has = |role: &Role| role.short(["has", "have"]);
        let used_as_well = looked.curve == used.curve;
        if !used_as_well && 2 * agree <= masses.len() {
            return Some(format!(
                "attention and effect disagree: {gets} {most} attention in {more} of {answers}, {} the {largest} effect in {larger}",
                has(used)
            ));
        }
        let has = match (used_as_well, used.many) {
            (false, _) => format!(", {}", has(used)),
            (true, false) => " and has".to_owned(),
            (true, true) => " and have".to_owned(),
        };
        Some(format!(
            "attention and effect agree in {agree} of {answers}: {gets} {most} attention in {more}{has} the {largest} effect in {larger}"
        ))
    }
}

/// Mean effect of a role's sessions on one answer.
fn effect_of(answer: &CausedAnswer, role: &Role) -> Option<f64> {
    let own = answer.sessions.iter().filter(|session| session.role.as_deref() == Some(role.curve.to));
    let drops: Vec<f64> = own.map(|session| session.drop()).filter(|drop| drop.is_finite()).collect();
    (!drops.is_empty()).then(|| drops.iter().sum::<f64>() / drops.len() as f64)
}

/// Index of the largest value; `None` on a tie.
fn first(values: &[f64]) -> Option<usize> {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut largest = values.iter().enumerate().filter(|(_, value)| **value == most).map(|(at, _)| at);
    largest.next().filter(|_| largest.next().is_none())
}

/// Decimals of percentages that keep two digits of the smallest share, from one to three.
fn decimals<'a>(shares: impl Iterator<Item = &'a f64>) -> usize {
    match shares.copied().filter(|share| *share > 0.0).fold(1.0, f64::min) {
        share if share >= 0.0095 => 1,
        share if share >= 0.00095 => 2,
        _ => 3,
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(mut items: Vec<String>) -> String {
    match (items.pop(), items.is_empty()) {
        (Some(last), false) => format!("{} and {last}", items.join(", ")),
        (last, _) => last.unwrap_or_default(),
    }
}

/// Three decimals with a sign, none for a rounded zero.
fn signed(value: f64) -> String {
    if value.abs() < 0.0005 { "0.000".to_owned() } else { format!("{value:+.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_has_no_first_role() {
        assert_eq!(first(&[0.1, 0.3, 0.2]), Some(1));
        assert_eq!((first(&[0.3, 0.3, 0.2]), first(&[])), (None, None));
    }

    #[test]
    fn small_shares_keep_two_digits_and_effects_their_sign() {
        let of = |shares: &[f64]| decimals(shares.iter());
        assert_eq!([of(&[0.033, 0.02]), of(&[0.033, 0.0051]), of(&[0.0006, 0.0]), of(&[])], [1, 2, 3, 1]);
        assert_eq!([0.0012, -0.29, -0.0004, 0.0].map(signed), ["+0.001", "-0.290", "0.000", "0.000"]);
    }
}
