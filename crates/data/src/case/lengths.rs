//! Context lengths of a dataset (STALE, appendix D.4, table 5), for `palimpsest data stats`. Counts three forms of each history: JSON
//! ([`raw`]), formatted for the model, and contents only ([`content`]).

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use serde::Serialize;

use super::{Case, Evidence, Segment, Turn};
use crate::ground::numbers::quantile;
use crate::ground::order::sorted_unique;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitLengths {
    pub split: String,
    pub instances: usize,
    pub sessions_mean: f64,
    /// A turn is one message of either side.
    pub turns_mean: f64,
    pub formatted: TokenCounts,
    /// Contents of turns only: no roles, dates or numbers.
    pub content_mean: f64,
    pub raw: TokenCounts,
    pub content: TokenCounts,
    /// Of the cases with an old and a new session, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// Where the old and the new session are; means. Tokens are of contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Placement {
    /// Sessions before the old one, and before the new one.
    pub old_at: f64,
    pub new_at: f64,
    /// From old to new: the difference of both.
    pub distance: f64,
    /// Sessions after the new one.
    pub tail: f64,
    /// Before the new session; between both; after it.
    pub new_at_tokens: f64,
    pub distance_tokens: f64,
    pub tail_tokens: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenCounts {
    pub mean: f64,
    pub median: f64,
    pub p95: f64,
    pub max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrintedLengths {
    pub split: &'static str,
    pub instances: usize,
    pub sessions_mean: f64,
    pub turns_mean: f64,
    pub formatted: TokenCounts,
    pub content_mean: f64,
}

const ALL: &str = "all";

struct Measured {
    split: String,
    sessions: usize,
    turns: usize,
    raw: usize,
    formatted: usize,
    content: usize,
    placement: Option<Placement>,
}

/// A total row is added last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy<'a> {
    /// One row per label value, alphabetically; cases without the label are under the empty value.
    Label(&'a str),
    Case,
    All,
}

/// Table 5, empty without cases. `format` renders the model's text, `count` counts tokens. Parallel; stops at the first error.
pub fn measure<E: Send>(
    cases: impl IntoIterator<Item = Result<Case, E>>,
    by: GroupBy<'_>,
    format: impl Fn(&Case) -> Result<String, E> + Sync,
    count: impl Fn(&str) -> Result<usize, E> + Sync,
) -> Result<Vec<SplitLengths>, E> {
    let of = |case: Case| {
        Ok(Measured {
            split: match by {
                GroupBy::Label(label) => case.labels.get(label).cloned().unwrap_or_default(),
                GroupBy::Case => case.id.clone(),
                GroupBy::All => ALL.to_owned(),
            },
            sessions: case.history.segments.len(),
            turns: case.history.segments.iter().map(|segment| segment.turns.len()).sum(),
            raw: count(&raw(&case))?,
            formatted: count(&format(&case)?)?,
            content: count(&content(&case))?,
            placement: placement(&case, &count)?,
        })
    };
    let mut measured = Vec::new();
    let mut cases = cases.into_iter();
    loop {
        let some: Vec<Result<Case, E>> = cases.by_ref().take(rayon::current_num_threads()).collect();
        if some.is_empty() {
            break;
        }
        let some: Vec<Result<Measured, E>> = some.into_par_iter().map(|case| of(case?)).collect();
        for one in some {
            measured.push(one?);
        }
    }
    let splits = measured.iter().map(|case| case.split.as_str());
    let splits: Vec<&str> = match by {
        GroupBy::Label(_) => sorted_unique(splits),
        GroupBy::Case => splits.collect(),
        GroupBy::All => Vec::new(),
    };
    let mut rows: Vec<SplitLengths> = splits
        .into_iter()
        .filter_map(|split| {
            let members: Vec<&Measured> = measured.iter().filter(|case| case.split == split).collect();
            summarise(split, &members)
        })
        .collect();
    rows.extend(summarise(ALL, &measured.iter().collect::<Vec<_>>()));
    Ok(rows)
}

/// Compact JSON with the first probe's query, non-ASCII unescaped: `{"history": [{"time": ..., "turns": [...]}], "query": ...}`.
pub fn raw(case: &Case) -> String {
    #[derive(Serialize)]
    struct Raw<'a> {
        history: Vec<RawSegment<'a>>,
        query: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct RawSegment<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        time: Option<String>,
        turns: &'a [Turn],
    }
    let history = case.history.segments.iter().map(|segment| RawSegment {
        time: segment.time.map(|time| time.strftime("%Y-%m-%d %H:%M:%S").to_string()),
        turns: &segment.turns,
    });
    let query = case.probes.first().map(|probe| probe.query.as_str());
    // Serialising strings cannot fail.
    serde_json::to_string(&Raw { history: history.collect(), query }).unwrap_or_default()
}

pub fn content(case: &Case) -> String {
    content_of(&case.history.segments)
}

fn content_of(segments: &[Segment]) -> String {
    let turns = segments.iter().flat_map(|segment| &segment.turns);
    turns.map(|turn| turn.content.as_str()).collect::<Vec<_>>().join("\n")
}

/// Places from each evidence segment to the next of its set, 1 if they stand side by side. A set is the probes with one value of the facet.
pub fn distances(case: &Case, set: &str) -> Vec<usize> {
    let mut sets: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for probe in &case.probes {
        let Some(of) = probe.facets.get(set) else { continue };
        let cited: BTreeSet<usize> = probe.evidence.iter().map(|evidence| evidence.place.segment).collect();
        let segments = case.history.segments.iter().enumerate();
        let places = segments.filter(|(_, segment)| cited.contains(&segment.index)).map(|(place, _)| place);
        sets.entry(of).or_default().extend(places);
    }
    let of = |places: &BTreeSet<usize>| {
        places.iter().zip(places.iter().skip(1)).map(|(one, next)| next - one).collect::<Vec<_>>()
    };
    sets.values().flat_map(of).collect()
}

/// Of one case; `None` unless its evidence is two sessions of different roles, of which the earlier is the old one.
fn placement<E>(case: &Case, count: impl Fn(&str) -> Result<usize, E>) -> Result<Option<Placement>, E> {
    let segments = &case.history.segments;
    let [one, other] = case.evidence.as_slice() else { return Ok(None) };
    let place = |of: &Evidence| segments.iter().position(|segment| segment.index == of.place.segment);
    let (Some(one_at), Some(other_at)) = (place(one), place(other)) else { return Ok(None) };
    if one.role == other.role {
        return Ok(None);
    }
    let (old, new) = (one_at.min(other_at), one_at.max(other_at));
    let (Some(between), Some(after)) = (segments.get(old + 1..new), segments.get(new + 1..)) else {
        return Ok(None);
    };
    let before = segments.get(..new).unwrap_or_default();
    let tokens =
        |of: &[Segment]| Ok::<f64, E>(if of.is_empty() { 0.0 } else { count(&content_of(of))? as f64 });
    Ok(Some(Placement {
        old_at: old as f64,
        new_at: new as f64,
        distance: (new - old) as f64,
        tail: after.len() as f64,
        new_at_tokens: tokens(before)?,
        distance_tokens: tokens(between)?,
        tail_tokens: tokens(after)?,
    }))
}

fn summarise(split: &str, members: &[&Measured]) -> Option<SplitLengths> {
    let n = members.len() as f64;
    let mean = |of: fn(&Measured) -> usize| members.iter().map(|case| of(case) as f64).sum::<f64>() / n;
    let tokens = |of: fn(&Measured) -> usize| {
        let mut counts: Vec<f64> = members.iter().map(|case| of(case) as f64).collect();
        counts.sort_by(f64::total_cmp);
        Some(TokenCounts {
            mean: mean(of),
            median: quantile(&counts, 0.5),
            p95: quantile(&counts, 0.95),
            max: members.iter().map(|case| of(case)).max()?,
        })
    };
    Some(SplitLengths {
        split: split.to_owned(),
        instances: members.len(),
        sessions_mean: mean(|case| case.sessions),
        turns_mean: mean(|case| case.turns),
        formatted: tokens(|case| case.formatted)?,
        content_mean: mean(|case| case.content),
        raw: tokens(|case| case.raw)?,
        content: tokens(|case| case.content)?,
        placement: mean_of(&members.iter().filter_map(|case| case.placement).collect::<Vec<_>>()),
    })
}

fn mean_of(all: &[Placement]) -> Option<Placement> {
    let mean = |of: fn(&Placement) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    (!all.is_empty()).then(|| Placement {
        old_at: mean(|one| one.old_at),
        new_at: mean(|one| one.new_at),
        distance: mean(|one| one.distance),
        tail: mean(|one| one.tail),
        new_at_tokens: mean(|one| one.new_at_tokens),
        distance_tokens: mean(|one| one.distance_tokens),
        tail_tokens: mean(|one| one.tail_tokens),
    })
}
