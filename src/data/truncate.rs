//! Evidence-preserving truncation (STALE, section 4.1): whole distractor segments go until the history fits.
//!
//! Called by the runner, which knows what a segment costs in tokens; pure, and knows no tokeniser. The evidence segments
//! and their immediate neighbours always stay: the neighbours are the noise baseline of the attention analysis.
//!
//! **Which segments stay.** The droppable segments are put in an order of keeping: first the one farthest, counted in
//! segments, from everything kept so far, then the one farthest from all of those, and so on; equally far ones in an order
//! drawn from the seed. The longest beginning of that order that fits is kept. Why so:
//!
//! - What stays is spread over the whole time line, so the evidence keeps its relative place in the history. Dropping the
//!   oldest first would move the evidence to the front, where models read differently.
//! - The order does not look at lengths (beyond fitting) or texts, so no kind of segment is favoured.
//! - A larger budget keeps a superset of what a smaller one keeps, so runs at several context lengths are nested.

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
    /// Tokens of what is kept, the fixed part included.
    pub tokens: usize,
}

/// Why a history could not be truncated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TruncateError {
    /// What must stay is larger than the budget.
    #[error(
        "the evidence and its neighbours (segments {}) need {evidence} tokens and the rest of the prompt {fixed}, \
         together {} more than the budget of {budget}; raise --context by at least that many",
        list(.segments), .evidence.saturating_add(*.fixed) - .budget
    )]
    DoesNotFit {
        /// Original indices of the segments that must stay.
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
    let protected = |index: usize| evidence.iter().any(|e| e.abs_diff(index) <= 1);
    let (kept, droppable): (Vec<usize>, Vec<usize>) =
        (0..segments.len()).partition(|&place| protected(segments[place].index));
    let tokens = |places: &[usize]| places.iter().fold(0usize, |sum, &place| sum.saturating_add(cost[place]));

    let whole = tokens(&kept).saturating_add(tokens(&droppable)).saturating_add(fixed);
    if whole <= budget {
        return Ok(Truncated { history: history.clone(), dropped: Vec::new(), tokens: whole });
    }
    let mut used = tokens(&kept).saturating_add(fixed);
    if used > budget {
        return Err(TruncateError::DoesNotFit {
            segments: kept.iter().map(|&place| segments[place].index).collect(),
            evidence: tokens(&kept),
            fixed,
            budget,
        });
    }
    let index = |place: usize| segments[place].index;
    let mut stays: BTreeSet<usize> = kept.iter().copied().collect();
    for place in order_of_keeping(&kept, droppable, index, seed) {
        let with = used.saturating_add(cost[place]);
        if with > budget {
            break;
        }
        used = with;
        stays.insert(place);
    }
    let (kept, dropped): (Vec<usize>, Vec<usize>) =
        (0..segments.len()).partition(|place| stays.contains(place));
    Ok(Truncated {
        history: History {
            segments: kept.iter().map(|&place| segments[place].clone()).collect(),
            query_time: history.query_time,
        },
        dropped: dropped.into_iter().map(index).collect(),
        tokens: used,
    })
}

/// The droppable places, those to keep first in front: always the one farthest from all chosen before.
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
