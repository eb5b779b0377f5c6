//! Truncation of histories that do not fit: whole segments go until they do.
//!
//! Called by the runner, which knows what a segment costs in tokens; pure, and knows no tokeniser. A benchmark names the ways that it
//! has ([`Truncation`]); a run takes the first of them or the one it is told. Retrieved histories are cut by their ranking
//! ([`truncate_ranked`]) whatever the run says. [`Middle`] cuts tokens out of a prompt and no segments, which is the prompts' to do.
//!
//! **Evidence-preserving truncation** ([`truncate`]; STALE, section 4.1). The evidence segments always stay, and nothing else is
//! required to: a case is refused only where its evidence alone does not fit. All others are put in an order of keeping. Each is kept
//! if it still fits when its turn comes, and passed over otherwise, so that one long segment does not end the filling. The order:
//!
//! 1. The immediate neighbours of evidence, which are the noise baseline of the attention analysis: one of each piece of
//!    evidence before the second of any, otherwise in an order drawn from the seed.
//! 2. The rest: first the segment farthest, counted in segments, from evidence and neighbours, then the one farthest from all
//!    of those, and so on; equally far ones in an order drawn from the seed.
//!
//! Why so:
//!
//! - What stays is spread over the whole time line, so the evidence keeps its relative place in the history. Dropping the
//!   oldest first would move the evidence to the front, where models read differently.
//! - The order does not look at lengths or texts. Fitting does: where little room is left, short segments are likelier to stay.
//! - Nothing goes without need: no dropped segment would fit beside what stays.
//!
//! Budgets are nested only where segments cost the same. Then a larger budget keeps all that a smaller one keeps. In general
//! it need not: a long segment that fits only the larger budget can take the room of later, shorter ones.

use std::collections::BTreeSet;

use super::History;
use super::draw::Draws;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Truncation {
    /// Evidence stays, and distractors are kept spread over the time line ([`truncate`]).
    #[default]
    Evidence,
    /// Whole segments go from the middle, evidence or not ([`truncate_plain`]).
    Plain,
    /// As a benchmark's authors cut: few segments from either end, then some between two pieces of evidence ([`truncate_phases`]).
    Phases(Phases),
    /// As a benchmark's authors cut: tokens from the middle of the prompt.
    Middle(Middle),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phases {
    /// The role of the piece of evidence that nothing goes beyond from the beginning.
    pub first: &'static str,
    /// The role of the piece of evidence that nothing goes beyond from the end.
    pub last: &'static str,
    pub ends: usize,
    /// Most tokens of prompt and answer together, however long a context the model has.
    pub context: usize,
    /// Tokens that are kept free beside the answer's.
    pub reserved: usize,
}

/// Ends that are kept of a prompt whose middle goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Middle {
    /// Prompts of so many tokens and more are cut, whatever the context.
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

    /// As the identity of a run has it.
    pub fn policy(self) -> &'static str {
        match self {
            Truncation::Evidence => "evidence-preserving truncation",
            Truncation::Plain => "plain truncation: whole segments from the middle",
            Truncation::Phases(_) => "the authors' truncation: ends, then between the evidence",
            Truncation::Middle(_) => "the authors' truncation: the middle of the prompt",
        }
    }

    /// Most tokens of prompt and answer together, of a context of so many.
    pub fn context(self, context: usize) -> usize {
        match self {
            Truncation::Phases(phases) => context.min(phases.context),
            _ => context,
        }
    }

    /// Tokens that it keeps free beside the answer's.
    pub fn reserved(self) -> usize {
        match self {
            Truncation::Phases(phases) => phases.reserved,
            _ => 0,
        }
    }

    /// Most tokens of a prompt beside `generated` tokens of an answer.
    pub fn budget(self, context: usize, generated: usize) -> usize {
        self.context(context).saturating_sub(generated).saturating_sub(self.reserved())
    }
}

impl Middle {
    /// Tokens kept at the beginning and the end of a prompt of `tokens`, where at most `budget` may stay; `None` where all do. A
    /// smaller budget is shared in the same proportion, the odd token going to the beginning.
    pub fn ends(self, tokens: usize, budget: usize) -> Option<(usize, usize)> {
        if tokens <= budget && tokens < self.from {
            return None;
        }
        let both = self.first + self.last;
        let keep = budget.min(both);
        // Rounded down, and at most `keep`.
        let last = (keep as u128 * self.last as u128 / both.max(1) as u128) as usize;
        Some((keep - last, last))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Truncated {
    /// The segments kept, in order, each with its original index.
    pub history: History,
    /// Original indices of the segments dropped, ascending.
    pub dropped: Vec<usize>,
    pub dropped_neighbours: Vec<usize>,
    /// Tokens of what is kept, the fixed part included.
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
        /// Tokens of everything that is no segment.
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
    StillTooLong {
        /// Tokens of what is left, the rest of the prompt included.
        tokens: usize,
        budget: usize,
    },
    #[error("{costs} costs were given for {segments} segments")]
    Costs { costs: usize, segments: usize },
}

fn list(segments: &[usize]) -> String {
    segments.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// Drops whole distractor segments of `history` until it fits.
///
/// `evidence` are original indices of segments; `cost[i]` is the number of tokens of `history.segments[i]`, `fixed` the number of tokens of everything else in the
/// prompt, `budget` the most tokens that the prompt may have. `seed` only breaks ties of the order described above.
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

    let mut used = tokens(&required).saturating_add(fixed);
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
    // The rest is spread over what all neighbours leave, kept or not, so that its order does not depend on what fits.
    let spread_from: Vec<usize> = required.iter().chain(&neighbours).copied().collect();
    let neighbours = order_of_neighbours(evidence, neighbours, index, seed);
    let mut stays: BTreeSet<usize> = required.into_iter().collect();
    for place in neighbours.into_iter().chain(order_of_keeping(&spread_from, rest, index, seed)) {
        let with = used.saturating_add(cost[place]);
        if with <= budget {
            used = with;
            stays.insert(place);
        }
    }
    Ok(kept(history, used, evidence, |place| stays.contains(&place)))
}

/// The same for a retrieved history, whose evidence nobody is to know of: the segments of `order`, original indices, are kept one
/// after the other if they still fit when their turn comes. Segments that are not in `order` go.
pub fn truncate_ranked(
    history: &History,
    order: &[usize],
    cost: &[usize],
    fixed: usize,
    budget: usize,
) -> Result<Truncated, TruncateError> {
    room(history, cost, fixed, budget)?;
    let segments = &history.segments;
    let (mut used, mut stays) = (fixed, BTreeSet::new());
    for index in order {
        let Some(place) = segments.iter().position(|segment| segment.index == *index) else { continue };
        let with = used.saturating_add(cost[place]);
        if with <= budget && stays.insert(place) {
            used = with;
        }
    }
    Ok(kept(history, used, &[], |place| stays.contains(&place)))
}

/// Drops the middle of a history, whole segments, evidence or not.
///
/// Of the room that the rest of the prompt leaves, half goes to the beginning: the longest run of first segments that fits it. What is
/// left goes to the end, and what the end leaves to the beginning again. So the two runs that stay are those that the history begins
/// and ends with, and no segment beside the gap would fit.
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
    // Segments before `head` and from `tail` on stay; something goes, so the two never meet.
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

/// Drops segments in three phases, until the history fits: at most `ends` from the beginning, none at or beyond the segment `first`;
/// then at most `ends` from the end, none at or beyond `last`; then those between the two, in an order drawn from `seed` and `name`.
/// `first` and `last` are original indices; where there are none, the ends stop at the number alone and there is no third phase.
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

/// The history with the segments at the places that `stays` takes, which come to `tokens`.
fn kept(history: &History, tokens: usize, evidence: &[usize], stays: impl Fn(usize) -> bool) -> Truncated {
    let dropped = history.segments.iter().enumerate().filter(|&(place, _)| !stays(place));
    let dropped: Vec<usize> = dropped.map(|(_, segment)| segment.index).collect();
    let beside = |index: &usize| evidence.iter().any(|e| e.abs_diff(*index) == 1);
    let dropped_neighbours = dropped.iter().copied().filter(beside).collect();
    Truncated { history: history.select(|place, _| stays(place)), dropped, dropped_neighbours, tokens }
}

/// The places next to evidence, those to keep first in front: one of each piece of evidence before the second of any.
fn order_of_neighbours(
    evidence: &[usize],
    mut neighbours: Vec<usize>,
    index: impl Fn(usize) -> usize,
    seed: u64,
) -> Vec<usize> {
    Draws::new("palimpsest truncation neighbours 1", seed, "").shuffle(&mut neighbours);
    // How many neighbours of each piece of evidence are in the order already.
    let mut given = vec![0usize; evidence.len()];
    let of = |place: usize| {
        let at = index(place);
        evidence.iter().enumerate().filter(move |(_, e)| e.abs_diff(at) == 1).map(|(nth, _)| nth)
    };
    let mut order = Vec::with_capacity(neighbours.len());
    while !neighbours.is_empty() {
        let fewest = |place: &usize| of(*place).filter_map(|nth| given.get(nth)).min().copied();
        let least = neighbours.iter().map(fewest).min();
        let Some(at) = neighbours.iter().position(|place| Some(fewest(place)) == least) else { break };
        let chosen = neighbours.remove(at);
        for nth in of(chosen) {
            if let Some(given) = given.get_mut(nth) {
                *given += 1;
            }
        }
        order.push(chosen);
    }
    order
}

/// The other places, those to keep first in front: always the one farthest from all chosen before.
fn order_of_keeping(
    kept: &[usize],
    mut droppable: Vec<usize>,
    index: impl Fn(usize) -> usize,
    seed: u64,
) -> Vec<usize> {
    // Drawing an order first and then taking the first of the farthest breaks ties by the draw.
    Draws::new("palimpsest truncation 1", seed, "").shuffle(&mut droppable);
    let mut left: Vec<(usize, usize)> = droppable
        .into_iter()
        .map(|place| {
            let nearest = kept.iter().map(|&other| index(other).abs_diff(index(place))).min();
            (place, nearest.unwrap_or(usize::MAX))
        })
        .collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(&farthest) = left.iter().map(|(_, distance)| distance).max() {
        let Some(at) = left.iter().position(|&(_, distance)| distance == farthest) else { break };
        let (chosen, _) = left.remove(at);
        for (place, distance) in &mut left {
            *distance = (*distance).min(index(chosen).abs_diff(index(*place)));
        }
        order.push(chosen);
    }
    order
}
