//! Counts over traces: STALE's table 3, answers given the evidence, and the waterfall.
//!
//! Shares are ranges over all members, from certain to possible, since known hits with unknown misses would always give 1. Only sampled
//! measurements (attention, effects) use the known members as denominator.

use std::collections::BTreeSet;
use std::ops::AddAssign;

use super::fact::{Known, place};
use super::retrieval::KS;
use super::trace::{FactTrace, Stage, Trace};
use super::writing::Overwriting;
use palimpsest_data::benchmarks::Side;
use palimpsest_data::ground::order::{sorted_unique, unique};
use palimpsest_data::statistics::{Interval, LEVEL, wilson};

/// Number of hits, with known and unknown members.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub count: usize,
    pub of: usize,
    pub unknown: usize,
}

impl Count {
    pub fn of(all: impl IntoIterator<Item = Known>) -> Self {
        let mut count = Count::default();
        for known in all {
            match known {
                Known::Yes => count.count += 1,
                Known::No => {}
                Known::Unknown => count.unknown += 1,
            }
            count.of += usize::from(known != Known::Unknown);
        }
        count
    }

    pub fn all(self) -> usize {
        self.of + self.unknown
    }

    pub fn most(self) -> usize {
        self.count + self.unknown
    }

    /// Drops unknown members, for sampled measurements.
    #[must_use]
    pub fn known(self) -> Self {
        Count { unknown: 0, ..self }
    }

    /// Certain and possible share, 0 to 1; `None` if nothing is known.
    pub fn shares(self) -> Option<[f64; 2]> {
        (self.of > 0).then(|| [self.count, self.most()].map(|count| count as f64 / self.all() as f64))
    }

    /// From the lower end of the certain share's 95% Wilson interval to the upper end of the possible one's.
    pub fn interval(self) -> Option<Interval> {
        if self.of == 0 {
            return None;
        }
        let of = |count: usize| wilson(count, self.all(), LEVEL);
        Some(Interval { low: of(self.count)?.low, high: of(self.most())?.high })
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, Count { count, of, unknown }: Count) {
        self.count += count;
        self.of += of;
        self.unknown += unknown;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Writing,
    Retrieval,
    Answers,
    /// Each stage, relative to the facts that reached it.
    Waterfall,
    Left,
}

impl Part {
    pub fn key(self) -> &'static str {
        match self {
            Part::Writing => "writing",
            Part::Retrieval => "retrieval",
            Part::Answers => "answers",
            Part::Waterfall => "waterfall",
            Part::Left => "left",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Number {
    pub part: Part,
    pub name: String,
    /// Role of the facts; empty for probes.
    pub role: String,
    pub k: Option<usize>,
    pub count: Count,
    /// True if measured on a sample of the answers; then the denominator is the known members.
    pub of_sample: bool,
    pub mean: Option<f64>,
}

impl Number {
    fn new(part: Part, name: impl Into<String>, role: &str, k: Option<usize>, count: Count) -> Self {
        Number { part, name: name.into(), role: role.to_owned(), k, count, of_sample: false, mean: None }
    }

    fn of_stage(part: Part, stage: Stage, role: &str, count: Count) -> Self {
        Number { of_sample: stage.is_of_sample(), ..Number::new(part, stage.key(), role, None, count) }
    }

    pub fn shown(&self) -> Count {
        if self.of_sample { self.count.known() } else { self.count }
    }
}

/// Roles: sides first, then in first-seen order.
pub fn roles(traces: &[&Trace]) -> Vec<String> {
    let mut facts: Vec<&FactTrace> = traces.iter().flat_map(|trace| &trace.facts).collect();
    facts.sort_by_key(|fact| place(fact.side));
    unique(facts.into_iter().map(|fact| fact.role.clone()))
}

fn in_role<'a>(
    traces: &'a [&'a Trace],
    role: &'a str,
) -> impl Iterator<Item = (&'a Trace, usize, &'a FactTrace)> {
    let facts = |trace: &'a Trace| trace.facts.iter().enumerate().map(move |(at, fact)| (trace, at, fact));
    traces.iter().copied().flat_map(facts).filter(move |(_, _, fact)| fact.role == role)
}

const SHARES: [&str; 3] = ["all", "some", "none"];

/// All, some (not all) or none of a probe's facts (three-valued logic).
fn shares(facts: &[Known]) -> [Known; 3] {
    let (any, all) = (Known::any(facts.iter().copied()), Known::all(facts.iter().copied()));
    [all, Known::all([any, all.opposite()]), any.opposite()]
}

fn of_shares(
    numbers: &mut Vec<Number>,
    (part, name, k): (Part, &str, Option<usize>),
    traces: &[&Trace],
    facts: impl Fn(&Trace) -> Vec<Known>,
) {
    let with_facts = traces.iter().filter(|trace| !trace.facts.is_empty());
    let all: Vec<[Known; 3]> = with_facts.map(|trace| shares(&facts(trace))).collect();
    for (at, share) in SHARES.into_iter().enumerate() {
        let count = Count::of(all.iter().map(|known| known[at]));
        numbers.push(Number::new(part, format!("{name} {share}"), "", k, count));
    }
}

/// Life of facts in the store. Facts needed by several probes of a case count once.
pub fn writing(traces: &[&Trace]) -> Vec<Number> {
    let mut numbers = Vec::new();
    for role in roles(traces) {
        let mut seen = BTreeSet::new();
        let once =
            in_role(traces, &role).filter(|(trace, _, fact)| seen.insert((&trace.case, &fact.sessions)));
        let facts: Vec<&FactTrace> = once.map(|(_, _, fact)| fact).collect();
        let mut push = |name: &str, count| numbers.push(Number::new(Part::Writing, name, &role, None, count));
        push("written", Count::of(facts.iter().map(|fact| fact.writing.written)));
        push("kept", Count::of(facts.iter().map(|fact| fact.writing.kept)));
        let written = || facts.iter().filter(|fact| fact.writing.written.is_yes());
        let lost = written().filter_map(|fact| fact.writing.lost.as_ref());
        let words = sorted_unique(lost.map(|lost| lost.word()));
        for word in words {
            let lost = |fact: &&&FactTrace| {
                let is = fact.writing.lost.as_ref().is_some_and(|lost| lost.word() == word);
                if fact.writing.kept == Known::Unknown { Known::Unknown } else { Known::of(is) }
            };
            push(&format!("lost at {word}"), Count::of(written().map(|fact| lost(&fact))));
        }
        let older: Vec<(&FactTrace, Overwriting)> =
            facts.iter().filter_map(|fact| Some((*fact, fact.overwriting?))).collect();
        if !older.is_empty() {
            let of = |get: fn(&Overwriting) -> Known| Count::of(older.iter().map(|(_, one)| get(one)));
            push("looked at", of(|one| one.looked_at));
            let looked = || older.iter().filter(|(_, one)| one.looked_at.is_yes());
            push("gated", Count::of(looked().map(|(_, one)| one.gated)));
            push("marked", of(|one| one.marked));
            push("marked of looked at", Count::of(looked().map(|(_, one)| one.marked)));
            push("removed", of(|one| one.removed));
            push("active", Count::of(older.iter().map(|(fact, _)| fact.writing.kept)));
        }
    }
    let mut seen = BTreeSet::new();
    let sessions = |trace: &Trace| trace.facts.iter().map(|fact| fact.sessions.clone()).collect::<Vec<_>>();
    let once = traces.iter().filter(|trace| seen.insert((&trace.case, sessions(trace)))).copied();
    let traces = &once.collect::<Vec<&Trace>>()[..];
    of_shares(&mut numbers, (Part::Writing, "written", None), traces, |trace| {
        trace.facts.iter().map(|fact| fact.writing.written).collect()
    });
    of_shares(&mut numbers, (Part::Writing, "kept", None), traces, |trace| {
        trace.facts.iter().map(|fact| fact.writing.kept).collect()
    });
    numbers
}

/// Traces with both sides, and the indices of the older and the newer fact.
fn sided<'a>(traces: &'a [&'a Trace]) -> Vec<(&'a Trace, usize, usize)> {
    let both = |trace: &&'a Trace| Some((*trace, trace.side(Side::Older)?, trace.side(Side::Newer)?));
    traces.iter().filter_map(both).collect()
}

/// Ranked lists, at each k that some search requested.
pub fn retrieval(traces: &[&Trace]) -> Vec<Number> {
    let mut numbers = Vec::new();
    let (roles, sided) = (roles(traces), sided(traces));
    for role in &roles {
        let found = in_role(traces, role).filter(|(trace, at, _)| trace.search.hit(*at, usize::MAX).is_yes());
        let found: Vec<Option<usize>> = found.map(|(trace, at, _)| trace.search.rank(at)).collect();
        let ranks: Vec<usize> = found.iter().flatten().copied().collect();
        let count = Count { count: ranks.len(), of: ranks.len(), unknown: found.len() - ranks.len() };
        let mean = (!ranks.is_empty()).then(|| ranks.iter().sum::<usize>() as f64 / ranks.len() as f64);
        numbers.push(Number { mean, ..Number::new(Part::Retrieval, "mean rank", role, None, count) });
    }
    let was_asked = |k: &usize| traces.iter().any(|trace| trace.search.was_asked(*k));
    for k in KS.into_iter().filter(was_asked) {
        let mut push = |name: &str, role: &str, count| {
            numbers.push(Number::new(Part::Retrieval, name, role, Some(k), count));
        };
        for role in &roles {
            let hit = in_role(traces, role).map(|(trace, at, _)| trace.search.hit(at, k));
            push("hit", role, Count::of(hit));
        }
        if !sided.is_empty() {
            let both = |(trace, older, newer): &(&Trace, usize, usize)| {
                Known::all([trace.search.hit(*older, k), trace.search.hit(*newer, k)])
            };
            push("both", "", Count::of(sided.iter().map(both)));
            let with_both = sided.iter().filter(|one| both(one).is_yes());
            let above = with_both.map(|(trace, older, newer)| trace.search.is_above(*newer, *older, k));
            push("newer above older", "", Count::of(above));
        }
        if k == 1 {
            push("distractor", "", Count::of(traces.iter().map(|trace| trace.search.distractor_first())));
            push("nothing", "", Count::of(traces.iter().map(|trace| trace.search.is_empty())));
        }
        of_shares(&mut numbers, (Part::Retrieval, "hit", Some(k)), traces, |trace| {
            (0..trace.facts.len()).map(|at| trace.search.hit(at, k)).collect()
        });
    }
    numbers
}

/// Answers, conditional on the contents of the condition's list.
pub fn answers(traces: &[&Trace]) -> Vec<Number> {
    let mut numbers = Vec::new();
    let mut push =
        |name: &str, role: &str, count| numbers.push(Number::new(Part::Answers, name, role, None, count));
    let right = |traces: &mut dyn Iterator<Item = &Trace>| Count::of(traces.map(|trace| trace.right));
    push("right", "", right(&mut traces.iter().copied()));
    let in_list = |trace: &Trace, at: usize| trace.list.hit(at, usize::MAX);
    let sided = sided(traces);
    if let Some((trace, older, newer)) = sided.first() {
        let name = |at: usize| trace.facts[at].role.clone();
        let (older_role, newer_role) = (name(*older), name(*newer));
        let despite = sided.iter().filter(|(trace, _, newer)| in_list(trace, *newer).is_yes());
        let wrong = despite.map(|(trace, ..)| trace.right.opposite());
        push("failure despite", &newer_role, Count::of(wrong));
        for (name, role, given) in [
            ("right given neither", "", [Known::No, Known::No]),
            ("right given only", &*older_role, [Known::Yes, Known::No]),
            ("right given only", &*newer_role, [Known::No, Known::Yes]),
            ("right given both", "", [Known::Yes, Known::Yes]),
        ] {
            let holds = |(trace, older, newer): &&(&Trace, usize, usize)| {
                [*older, *newer].map(|at| in_list(trace, at)) == given
            };
            push(name, role, right(&mut sided.iter().filter(holds).map(|(trace, ..)| *trace)));
        }
        for (role, newer_first) in [(&older_role, false), (&newer_role, true)] {
            let holds = |(trace, older, newer): &&(&Trace, usize, usize)| {
                let (one, other) = if newer_first { (*newer, *older) } else { (*older, *newer) };
                trace.list.is_above(one, other, usize::MAX).is_yes()
            };
            push("right given first", role, right(&mut sided.iter().filter(holds).map(|(trace, ..)| *trace)));
        }
    }
    for (at, share) in SHARES.into_iter().enumerate() {
        let holds = |trace: &&&Trace| {
            let facts: Vec<Known> = (0..trace.facts.len()).map(|fact| in_list(trace, fact)).collect();
            !facts.is_empty() && shares(&facts)[at].is_yes()
        };
        push(&format!("right given {share}"), "", right(&mut traces.iter().filter(holds).copied()));
    }
    // Conditional numbers exclude questions with unknown list contents.
    let is_known = |trace: &&Trace| (0..trace.facts.len()).all(|fact| in_list(trace, fact) != Known::Unknown);
    push("list known", "", Count::of(traces.iter().map(|trace| Known::of(is_known(trace)))));
    numbers
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub stage: Stage,
    /// Passed, among facts without a known `no` at earlier stages.
    pub arrow: Count,
    /// Remaining, among all facts; unknown if the outcome at this stage is.
    pub left: Count,
}

impl Step {
    pub fn shown(&self) -> (Count, Count) {
        if self.stage.is_of_sample() {
            (self.arrow.known(), self.left.known())
        } else {
            (self.arrow, self.left)
        }
    }
}

/// Waterfall of the facts in a role. Unmeasured stages neither stop nor count a fact; [`Stage::Selected`] is then left out.
pub fn waterfall(traces: &[&Trace], role: &str) -> Vec<Step> {
    let facts: Vec<&FactTrace> = in_role(traces, role).map(|(_, _, fact)| fact).collect();
    let step = |(at, stage): (usize, Stage)| {
        let reached = facts.iter().filter(|fact| fact.stages[..at].iter().all(|known| *known != Known::No));
        let arrow = Count::of(reached.map(|fact| fact.stages[at]));
        let left = Count { of: facts.len() - arrow.unknown, ..arrow };
        // No known value for any remaining fact: the stage was not measured.
        let left = if arrow.of == 0 && arrow.unknown > 0 { Count { of: 0, ..left } } else { left };
        Step { stage, arrow, left }
    };
    let steps = Stage::ALL.into_iter().enumerate().map(step);
    steps.filter(|step| step.stage != Stage::Selected || step.arrow.of > 0).collect()
}

/// All numbers of some traces. Store and search numbers belong to the system, not to the condition.
pub fn numbers(traces: &[&Trace], of_system: bool) -> Vec<Number> {
    let mut all = Vec::new();
    if of_system {
        all.extend(writing(traces));
        all.extend(retrieval(traces));
    }
    all.extend(answers(traces));
    for role in roles(traces) {
        for Step { stage, arrow, left } in waterfall(traces, &role) {
            all.push(Number::of_stage(Part::Waterfall, stage, &role, arrow));
            all.push(Number::of_stage(Part::Left, stage, &role, left));
        }
    }
    all
}
