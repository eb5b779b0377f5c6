//! Evidence-preserving truncation (STALE, section 4.1): whole distractor segments go until the history fits.
//!
//! Called by the runner, which knows what a segment costs in tokens; pure, and knows no tokeniser. The evidence segments
//! always stay, and nothing else is required to: a case is refused only where its evidence alone does not fit.
//!
//! **Which segments stay.** All others are put in an order of keeping. Each is kept if it still fits when its turn comes, and
//! passed over otherwise, so that one long segment does not end the filling. The order:
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
//! **Budgets are nested only where segments cost the same.** Then a larger budget keeps all that a smaller one keeps. In general
//! it need not: a long segment that fits only the larger budget can take the room of later, shorter ones.

use std::collections::BTreeSet;

use super::History;
use super::draw::Draws;

/// A history that fits its budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Truncated {
    /// The segments kept, in order, each with its original index.
    pub history: History,
    /// Original indices of the segments dropped, ascending.
    pub dropped: Vec<usize>,
    /// Those of them that are immediate neighbours of evidence.
    pub dropped_neighbours: Vec<usize>,
    /// Tokens of what is kept, the fixed part included.
    pub tokens: usize,
}

/// Why a history could not be truncated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TruncateError {
    /// The evidence is larger than the budget.
    #[error(
        "the evidence (segments {}) needs {evidence} tokens and the rest of the prompt {fixed}, \
         together {} more than the budget of {budget}; raise --context by at least that many",
        list(.segments), .evidence.saturating_add(*.fixed) - .budget
    )]
    DoesNotFit {
        /// Original indices of the evidence segments.
        segments: Vec<usize>,
        /// Their tokens.
        evidence: usize,
        /// Tokens of everything that is no segment.
        fixed: usize,
        /// Tokens that there is room for.
        budget: usize,
    },
    /// An evidence segment is not in the history.
    #[error("evidence segment {0} is not in the history; truncate the whole history of the case")]
    NoSuchSegment(usize),
    /// Costs and segments are not parallel.
    #[error("{costs} costs were given for {segments} segments")]
    Costs {
        /// How many costs.
        costs: usize,
        /// How many segments.
        segments: usize,
    },
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
    if cost.len() != segments.len() {
        return Err(TruncateError::Costs { costs: cost.len(), segments: segments.len() });
    }
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
        let (dropped, dropped_neighbours) = (Vec::new(), Vec::new());
        return Ok(Truncated { history: history.clone(), dropped, dropped_neighbours, tokens: whole });
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
    let (kept, dropped): (Vec<usize>, Vec<usize>) =
        (0..segments.len()).partition(|place| stays.contains(place));
    Ok(Truncated {
        history: History {
            segments: kept.iter().map(|&place| segments[place].clone()).collect(),
            query_time: history.query_time,
        },
        dropped_neighbours: dropped.iter().copied().filter(|&place| beside(place)).map(index).collect(),
        dropped: dropped.into_iter().map(index).collect(),
        tokens: used,
    })
}

/// The same for a retrieved history, whose evidence nobody is to know of: the segments of `order`, original indices, are kept one
/// after the other if they still fit when their turn comes. Segments that are not in `order` go.
///
/// # Errors
/// [`TruncateError::Costs`]; [`TruncateError::DoesNotFit`] where there is not even room for what is no segment.
pub fn truncate_ranked(
    history: &History,
    order: &[usize],
    cost: &[usize],
    fixed: usize,
    budget: usize,
) -> Result<Truncated, TruncateError> {
    let segments = &history.segments;
    if cost.len() != segments.len() {
        return Err(TruncateError::Costs { costs: cost.len(), segments: segments.len() });
    }
    if fixed > budget {
        return Err(TruncateError::DoesNotFit { segments: Vec::new(), evidence: 0, fixed, budget });
    }
    let (mut used, mut stays) = (fixed, BTreeSet::new());
    for index in order {
        let Some(place) = segments.iter().position(|segment| segment.index == *index) else { continue };
        let with = used.saturating_add(cost[place]);
        if with <= budget && stays.insert(place) {
            used = with;
        }
    }
    let dropped = segments.iter().enumerate().filter(|(place, _)| !stays.contains(place));
    let dropped = dropped.map(|(_, segment)| segment.index).collect();
    let history = history.select(|place, _| stays.contains(&place));
    Ok(Truncated { history, dropped, dropped_neighbours: Vec::new(), tokens: used })
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
