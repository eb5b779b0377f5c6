//! A case restricted to one context and the probes that share it.

use std::collections::BTreeSet;

use palimpsest_data::case::{Case, History, JudgeOnly, Keep, Probe};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// Contains only the shown history, its evidence, and these probes.
    pub case: Case,
    /// Original indices of the shown segments, in order; `None` for the whole history.
    pub segments: Option<Vec<usize>>,
    /// Ids of the shown memories by rank, with a memory system.
    pub memories: Option<Vec<String>>,
    /// The memory system's own answer; the model is not asked.
    pub answered: Option<String>,
    /// Why no context is available.
    pub refused: Option<String>,
}

/// Indices of segments, or why there are none.
pub(super) type Places = Result<Vec<usize>, String>;

pub(super) fn part(arranged: &Case, history: History, probes: Vec<Probe>, keep: Keep) -> Case {
    // Drop judge data of other probes: with one view per probe it would grow quadratically.
    let of_probe = |probe: &Probe| Some((probe.id.clone(), arranged.judge.of_probes.get(&probe.id)?.clone()));
    let judge = JudgeOnly {
        notes: arranged.judge.notes.clone(),
        of_probes: probes.iter().filter_map(of_probe).collect(),
    };
    let mut case = Case {
        id: arranged.id.clone(),
        labels: arranged.labels.clone(),
        history,
        evidence: arranged.evidence.clone(),
        stretches: arranged.stretches.clone(),
        probes,
        judge,
        keep,
        flags: Vec::new(),
    };
    case.forget_hidden_evidence();
    case
}

pub(super) fn view(arranged: &Case, places: Places, probes: Vec<Probe>, ranked: bool) -> View {
    let (places, refused) = match places {
        Ok(places) => (places, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let index = |place: usize| arranged.history.segments[place].index;
    let keep = match ranked {
        true => Keep::Ranked(places.iter().map(|&place| index(place)).collect()),
        false => Keep::Evidence,
    };
    let shown: BTreeSet<usize> = places.into_iter().collect();
    let case = part(arranged, arranged.history.select(|place, _| shown.contains(&place)), probes, keep);
    let segments = case.history.segments.iter().map(|segment| segment.index).collect();
    View { case, segments: Some(segments), refused, ..View::default() }
}
