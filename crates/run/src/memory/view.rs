//! A case as some of its probes are shown it.

use std::collections::BTreeSet;

use palimpsest_data::case::{Case, History, JudgeOnly, Keep, Probe};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// With what is shown of its history, and with these probes alone. Evidence that is not shown is not in it.
    pub case: Case,
    /// Original indices of the segments that are shown, in order, where that is not the whole history.
    pub segments: Option<Vec<usize>>,
    /// Ids of the memories that are shown, by rank, where a memory system is.
    pub memories: Option<Vec<String>>,
    /// The memory system's own answer, where that is wanted: the model is then asked nothing.
    pub answered: Option<String>,
    /// Why nothing can be shown, where that is so.
    pub refused: Option<String>,
}

/// The places of segments in a history, or why there are none.
pub(super) type Places = Result<Vec<usize>, String>;

/// The arranged case with a part of its history and of its probes.
pub(super) fn part(arranged: &Case, history: History, probes: Vec<Probe>, keep: Keep) -> Case {
    // A view for each of a thousand probes must not hold what is told of all of them.
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

/// The arranged case with the segments at `places` and with `probes`.
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
