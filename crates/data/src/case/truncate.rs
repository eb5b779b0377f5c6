//! Truncation of histories that exceed a token budget. Pure; the runner supplies token costs. Retrieved histories are always cut by rank
//! ([`truncate_ranked`]); [`Middle`] cuts tokens and is applied by the prompt code.
//!
//! **Evidence-preserving truncation** ([`truncate`]; STALE, section 4.1). Evidence always stays; a case is refused only if it alone exceeds
//! the budget. Other segments are tried in this order, and those that do not fit are skipped:
//!
//! 1. Neighbours of evidence, the noise baseline of the attention analysis: one per piece of evidence, then the second, ties by seed.
//! 2. The rest by farthest-point sampling: the segment farthest (in segments) from all chosen ones, ties by seed.
//!
//! So evidence keeps its relative position, the order ignores lengths and texts, and no dropped segment would still fit. Larger budgets
//! keep supersets only if all segments cost the same.

use std::collections::BTreeSet;

use super::History;
use super::draw::Draws;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Truncation {
    /// Keeps evidence and evenly spread distractors ([`truncate`]).
    #[default]
    Evidence,
    /// Drops whole segments from the middle, evidence included ([`truncate_plain`]).
    Plain,
    /// A benchmark's own policy: a few segments from both ends, then between two pieces of evidence ([`truncate_phases`]).
    Phases(Phases),
    /// A benchmark's own policy: drops tokens from the middle of the prompt.
    Middle(Middle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phases {
    /// Role of the evidence that bounds cuts from the beginning.
    pub first: &'static str,
    /// Role of the evidence that bounds cuts from the end.
    pub last: &'static str,
    pub ends: usize,
    /// Cap on prompt and answer tokens, whatever the model's context.
    pub context: usize,
    /// Tokens reserved in addition to the answer.
    pub reserved: usize,
}

/// Tokens kept at the ends of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Middle {
    /// Prompts of at least this many tokens are cut, whatever the context.
    pub from: usize,
    pub first: usize,
    pub last: usize,
}

impl Truncation {
    pub fn name(self) -> &'static str {
        match self {
            Truncation::Evidence => "evidence",
            Truncation::Plain => "plain",
            Truncation::Phases(_) | Truncation::Middle(_) => "authors",
        }
    }

    /// Part of the run's identity.
    pub fn policy(self) -> &'static str {
        match self {
            Truncation::Evidence => "evidence-preserving truncation",
            Truncation::Plain => "plain truncation: whole segments from the middle",
            Truncation::Phases(_) => "the authors' truncation: ends, then between the evidence",
            Truncation::Middle(_) => "the authors' truncation: the middle of the prompt",
        }
    }

    pub fn context(self, context: usize) -> usize {
        match self {
            Truncation::Phases(phases) => context.min(phases.context),
            _ => context,
        }
    }

    pub fn reserved(self) -> usize {
        match self {
            Truncation::Phases(phases) => phases.reserved,
            _ => 0,
        }
    }

    pub fn budget(self, context: usize, generated: usize) -> usize {
        self.context(context).saturating_sub(generated).saturating_sub(self.reserved())
    }
}

impl Middle {
    /// Tokens kept at the beginning and end; `None` if nothing is cut. A smaller budget is split in proportion.
    pub fn ends(self, tokens: usize, budget: usize) -> Option<(usize, usize)> {
        if tokens <= budget && tokens < self.from {
            return None;
        }
        let both = self.first + self.last;
        let keep = budget.min(both);
        let last = (keep as u128 * self.last as u128 / both.max(1) as u128) as usize;
        Some((keep - last, last))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Truncated {
    pub history: History,
    /// Original indices, ascending.
    pub dropped: Vec<usize>,
    pub dropped_neighbours: Vec<usize>,
    /// Including the fixed part.
    pub tokens: usize,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TruncateError {
    #[error(
        "the evidence (segments {}) needs {evidence} tokens and the rest of the prompt {fixed}, \
         together {} more than the budget of {budget}; raise --context by at least that many",
        list(.segments), .evidence.saturating_add(*.fixed) - .budget
    )]
    DoesNotFit {
        segments: Vec<usize>,
        evidence: usize,
        /// Tokens outside the segments.
        fixed: usize,
        budget: usize,
    },
    #[error("evidence segment {0} is not in the history; truncate the whole history of the case")]
    NoSuchSegment(usize),
    #[error(
        "the history does not fit: neither its first segment ({first} tokens) nor its last ({last}) has room in {budget} tokens beside the \
         {fixed} of the rest of the prompt; raise --context"
    )]
    NothingFits { first: usize, last: usize, fixed: usize, budget: usize },
    #[error(
        "the history does not fit: cut as the benchmark's authors do, {tokens} tokens are left, {} more than the budget of {budget}; raise \
         --context by at least that many or give --truncation evidence",
        .tokens.saturating_sub(*.budget)
    )]
    StillTooLong { tokens: usize, budget: usize },
    #[error("{costs} costs were given for {segments} segments")]
    Costs { costs: usize, segments: usize },
}

fn list(segments: &[usize]) -> String {
    segments.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Drops distractors until `history` fits `budget`. `evidence`: original indices; `cost[i]`: tokens of `history.segments[i]`; `fixed`:
/// tokens of the rest of the prompt; `seed` breaks ties.
pub fn truncate(
    history: &History,
    evidence: &[usize],
    cost: &[usize],
    fixed: usize,
    budget: usize,
    seed: u64,
) -> Result<Truncated, TruncateError> {
    let segments = &history.segments;
    count_costs(history, cost)?;
    if let Some(missing) = evidence.iter().find(|index| !segments.iter().any(|s| s.index == **index)) {
        return Err(TruncateError::NoSuchSegment(*missing));
    }
    let index = |place: usize| segments[place].index;
    let (required, others): (Vec<usize>, Vec<usize>) =
        (0..segments.len()).partition(|&place| evidence.contains(&index(place)));
    let beside = |place: usize| evidence.iter().any(|e| e.abs_diff(index(place)) == 1);
    let (neighbours, rest): (Vec<usize>, Vec<usize>) = others.iter().partition(|&&place| beside(place));
    let tokens = |places: &[usize]| places.iter().fold(0usize, |sum, &place| sum.saturating_add(cost[place]));

    let used = tokens(&required).saturating_add(fixed);
    let whole = used.saturating_add(tokens(&others));
    if whole <= budget {
        return Ok(kept(history, whole, evidence, |_| true));
    }
    if used > budget {
        return Err(TruncateError::DoesNotFit {
            segments: required.into_iter().map(index).collect(),
            evidence: used.saturating_sub(fixed),
            fixed,
            budget,
        });
    }
    // Spread from all neighbours, kept or not, so that the order does not depend on what fits.
    let spread_from: Vec<usize> = required.iter().chain(&neighbours).copied().collect();
    let neighbours = order_of_neighbours(evidence, neighbours, index, seed);
    let order = neighbours.into_iter().chain(order_of_keeping(&spread_from, rest, index, seed));
    Ok(filled(history, required, order, cost, (used, budget), evidence))
}

/// Keeps segments in the rank `order` (original indices), skipping those that do not fit. Ignores evidence; unranked segments are dropped.
pub fn truncate_ranked(
    history: &History,
    order: &[usize],
    cost: &[usize],
    fixed: usize,
    budget: usize,
) -> Result<Truncated, TruncateError> {
    room(history, cost, fixed, budget)?;
    let place = |index: &usize| history.segments.iter().position(|segment| segment.index == *index);
    Ok(filled(history, Vec::new(), order.iter().filter_map(place), cost, (fixed, budget), &[]))
}

/// Adds segments by `order` to those `required`, skipping those that do not fit.
fn filled(
    history: &History,
    required: Vec<usize>,
    order: impl Iterator<Item = usize>,
    cost: &[usize],
    (mut used, budget): (usize, usize),
    evidence: &[usize],
) -> Truncated {
    let mut stays: BTreeSet<usize> = required.into_iter().collect();
    for place in order {
        let with = used.saturating_add(cost[place]);
        if with <= budget && stays.insert(place) {
            used = with;
        }
    }
    kept(history, used, evidence, |place| stays.contains(&place))
}

/// Drops whole segments from the middle, evidence included. The beginning gets the longest run that fits half of the room, the end the
/// remainder, and the beginning any room still left. No segment beside the gap would fit.
pub fn truncate_plain(
    history: &History,
    cost: &[usize],
    fixed: usize,
    budget: usize,
) -> Result<Truncated, TruncateError> {
    let room = room(history, cost, fixed, budget)?;
    let count = cost.len();
    let all = cost.iter().fold(0usize, |sum, &tokens| sum.saturating_add(tokens));
    if all <= room {
        return Ok(kept(history, fixed + all, &[], |_| true));
    }
    // Keeps `..head` and `tail..`; they never meet, because something is dropped.
    let (mut head, mut tail, mut used) = (0, count, 0usize);
    let mut fill_head = |tail: usize, used: &mut usize, most: usize| {
        while head < tail && used.saturating_add(cost[head]) <= most {
            *used += cost[head];
            head += 1;
        }
        head
    };
    let begun = fill_head(tail, &mut used, room / 2);
    while tail > begun && used.saturating_add(cost[tail - 1]) <= room {
        tail -= 1;
        used += cost[tail];
    }
    let head = fill_head(tail, &mut used, room);
    if let (0, Some(first), Some(last)) = (head + count - tail, cost.first(), cost.last()) {
        return Err(TruncateError::NothingFits { first: *first, last: *last, fixed, budget });
    }
    Ok(kept(history, fixed + used, &[], |place| place < head || place >= tail))
}

/// Drops segments until the history fits: up to `ends` from the beginning, before `first`; up to `ends` from the end, after `last`; then
/// those between, drawn by `seed` and `name`. `first` and `last` are original indices; without them there is no third phase.
pub fn truncate_phases(
    history: &History,
    (first, last, ends): (Option<usize>, Option<usize>, usize),
    cost: &[usize],
    (fixed, budget): (usize, usize),
    (seed, name): (u64, &str),
) -> Result<Truncated, TruncateError> {
    let segments = &history.segments;
    count_costs(history, cost)?;
    let index = |place: usize| segments[place].index;
    let places = 0..segments.len();
    let head = places.clone().take(ends).take_while(|&place| first.is_none_or(|first| index(place) < first));
    let tail =
        places.clone().rev().take(ends).take_while(|&place| last.is_none_or(|last| index(place) > last));
    let between = |&place: &usize| match (first, last) {
        (Some(first), Some(last)) => first < index(place) && index(place) < last,
        _ => false,
    };
    let mut middle: Vec<usize> = places.filter(between).collect();
    Draws::new("palimpsest truncation phases 1", seed, name).shuffle(&mut middle);
    let mut used = cost.iter().fold(fixed, |sum, &tokens| sum.saturating_add(tokens));
    let mut gone = BTreeSet::new();
    for place in head.chain(tail).chain(middle) {
        if used <= budget {
            break;
        }
        if gone.insert(place) {
            used = used.saturating_sub(cost[place]);
        }
    }
    if used > budget {
        return Err(TruncateError::StillTooLong { tokens: used, budget });
    }
    let evidence: Vec<usize> = first.into_iter().chain(last).collect();
    Ok(kept(history, used, &evidence, |place| !gone.contains(&place)))
}

fn count_costs(history: &History, cost: &[usize]) -> Result<(), TruncateError> {
    let (costs, segments) = (cost.len(), history.segments.len());
    if costs == segments { Ok(()) } else { Err(TruncateError::Costs { costs, segments }) }
}

fn room(history: &History, cost: &[usize], fixed: usize, budget: usize) -> Result<usize, TruncateError> {
    count_costs(history, cost)?;
    let nothing = TruncateError::DoesNotFit { segments: Vec::new(), evidence: 0, fixed, budget };
    budget.checked_sub(fixed).ok_or(nothing)
}

fn kept(history: &History, tokens: usize, evidence: &[usize], stays: impl Fn(usize) -> bool) -> Truncated {
    let dropped = history.segments.iter().enumerate().filter(|&(place, _)| !stays(place));
    let dropped: Vec<usize> = dropped.map(|(_, segment)| segment.index).collect();
    let beside = |index: &usize| evidence.iter().any(|e| e.abs_diff(*index) == 1);
    let dropped_neighbours = dropped.iter().copied().filter(beside).collect();
    Truncated { history: history.select(|place, _| stays(place)), dropped, dropped_neighbours, tokens }
}

/// Neighbours of evidence by priority: one per piece of evidence before the second of any.
fn order_of_neighbours(
    evidence: &[usize],
    mut neighbours: Vec<usize>,
    index: impl Fn(usize) -> usize,
    seed: u64,
) -> Vec<usize> {
    Draws::new("palimpsest truncation neighbours 1", seed, "").shuffle(&mut neighbours);
    // Neighbours already taken, per piece of evidence.
    let mut given = vec![0usize; evidence.len()];
    let of = |place: usize| {
        let at = index(place);
        evidence.iter().enumerate().filter(move |(_, e)| e.abs_diff(at) == 1).map(|(nth, _)| nth)
    };
    let mut order = Vec::with_capacity(neighbours.len());
    let fewest = |place: usize, given: &[usize]| of(place).map(|nth| given[nth]).min();
    // The first of equals.
    while let Some(at) = (0..neighbours.len()).min_by_key(|&at| fewest(neighbours[at], &given)) {
        let chosen = neighbours.remove(at);
        of(chosen).for_each(|nth| given[nth] += 1);
        order.push(chosen);
    }
    order
}

/// The other positions by farthest-point sampling.
fn order_of_keeping(
    kept: &[usize],
    mut droppable: Vec<usize>,
    index: impl Fn(usize) -> usize,
    seed: u64,
) -> Vec<usize> {
    // Shuffle first, so that ties are broken by the draw.
    Draws::new("palimpsest truncation 1", seed, "").shuffle(&mut droppable);
    let mut left: Vec<(usize, usize)> = droppable
        .into_iter()
        .map(|place| {
            let nearest = kept.iter().map(|&other| index(other).abs_diff(index(place))).min();
            (place, nearest.unwrap_or(usize::MAX))
        })
        .collect();
    let mut order = Vec::with_capacity(left.len());
    // The first of equals.
    while let Some(at) = (0..left.len()).rev().max_by_key(|&at| left[at].1) {
        let (chosen, _) = left.remove(at);
        for (place, distance) in &mut left {
            *distance = (*distance).min(index(chosen).abs_diff(index(*place)));
        }
        order.push(chosen);
    }
    order
}
