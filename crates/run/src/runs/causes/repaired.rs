//! Repaired caches: each evidence session is replaced by neutral text, and only some rows of the history are read again.
//!
//! Called by `palimpsest causes --repair`. Read again are the session's own rows and the later ones that attended most to it; the exact
//! replacement ([`super::removed`]) is measured first. A case's history is read once; each repair costs its rows and the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use palimpsest_core::ablate::Metric;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::{LaterRows, Session, check_repairable};
use palimpsest_core::span::Span;
use palimpsest_data::ground::order::sorted_unique;

use super::case::{CaseAnswers, ReadingCost, SessionChoice};
use super::contrast_rows::AblationKind;
use super::log::{Ablation, CauseLog};
use super::removed::{self, RemovalOptions};
use super::repair_rows::{Later, RepairedRows};
use super::{Measured, Task, unless_stopped};
use crate::progress::{Steps, Work};

/// Numbers of later rows to read again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairOptions {
    pub later: Vec<LaterRows>,
}

/// A repair after the replacement of `session`, for some of the answers after one history.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Repair {
    session: Range<usize>,
    later: LaterRows,
    answers: Vec<usize>,
}

fn ablation(span: &Span, k: LaterRows, recomputed: usize) -> Ablation {
    Ablation { rows: Some(RepairedRows { k, recomputed }), ..Ablation::of(AblationKind::Repaired, span) }
}

fn evidence<'a>(case: &'a CaseAnswers<'_>, answer: usize) -> impl Iterator<Item = &'a Span> {
    case.sessions(answer).into_iter().filter(|span| SessionChoice::Evidence.holds(span))
}

/// A history, and its repairs in ascending order of session and later rows.
type OfHistory = (Arc<[u32]>, Vec<Repair>);

/// Repairs without a stored row, and the number already stored.
fn missing(case: &CaseAnswers<'_>, log: &CauseLog, later: &[LaterRows]) -> (Vec<OfHistory>, usize) {
    let mut histories: BTreeMap<Arc<[u32]>, BTreeMap<_, Vec<usize>>> = BTreeMap::new();
    let mut found = 0;
    for (answer, store) in case.answers.iter().enumerate() {
        let history = case.prompt(answer).history().tokens;
        for span in evidence(case, answer) {
            for &later in later {
                if log.drop(store, &ablation(span, later, 0)).is_some() {
                    found += 1;
                    continue;
                }
                let repairs = histories.entry(Arc::clone(&history)).or_default();
                repairs.entry((span.start, span.end, later)).or_default().push(answer);
            }
        }
    }
    let repair = |((start, end, later), answers)| Repair { session: start..end, later, answers };
    let of_history =
        |(tokens, repairs): (Arc<[u32]>, BTreeMap<_, _>)| (tokens, repairs.into_iter().map(repair).collect());
    (histories.into_iter().map(of_history).collect(), found)
}

fn cost_of(case: &CaseAnswers<'_>, missing: &[OfHistory]) -> ReadingCost {
    let mut cost = ReadingCost::default();
    for (history, repairs) in missing {
        cost.histories = cost.histories.max(history.len());
        cost.prefill += history.len();
        let all = || repairs.iter().flat_map(|repair| &repair.answers).copied();
        let plain: BTreeSet<usize> = all().collect();
        cost.readings += all().count();
        cost.answers += plain.into_iter().chain(all()).map(|answer| case.own_tokens(answer)).sum::<usize>();
        for Repair { session, later, .. } in repairs {
            let behind = history.len() - session.end;
            let later = if let LaterRows::Most(most) = later { behind.min(*most) } else { behind };
            cost.prefill += session.len() + later;
        }
    }
    cost
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    RepairOptions { later }: &RepairOptions,
) -> anyhow::Result<Measured> {
    check_repairable(&task.kinds).with_context(|| task.folder.header.identity.model.name.clone())?;
    let exact = RemovalOptions { sessions: SessionChoice::Evidence, replace: true };
    let mut measured = removed::measure(task, session, exact)?;
    if measured.stopped {
        return Ok(measured);
    }
    let later = sorted_unique(later.iter().copied());
    let mut log = CauseLog::open(task)?;
    let mut left = task.announced("repairs", |case| cost_of(case, &missing(case, &log, &later).0))?;
    let mut steps = Steps::new("repairs", left.readings, task.show).brief(true);
    for case in task.cases() {
        let case = case?;
        let (missing, found) = missing(&case, &log, &later);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        let status = steps.status();
        status.begin(case.id(), "prefill");
        let mut go_on = task.hears(steps.status(), &mut left, cost_of(&case, &missing));
        for (history, repairs) in &missing {
            // 1. The plain history, and its answers.
            let answers = sorted_unique(repairs.iter().flat_map(|repair| repair.answers.iter().copied()));
            let edited =
                sorted_unique(repairs.iter().map(|repair| (repair.session.start, repair.session.end)));
            let edited: Vec<Range<usize>> = edited.into_iter().map(|(start, end)| start..end).collect();
            let room = answers.iter().map(|answer| case.own_tokens(*answer)).max().unwrap_or(0);
            let read = session.repairing(history, room, edited.clone(), &mut go_on);
            let Some(mut repairing) = unless_stopped(case.id(), read)? else { return Ok(measured.stopped()) };
            let mut metrics: BTreeMap<usize, Metric> = BTreeMap::new();
            for answer in answers {
                let rest = case.prompt(answer).history().rest;
                let metric = Metric::read_unrepaired(&mut repairing, rest, case.target(answer));
                metrics.insert(answer, metric.with_context(|| format!("case {}", case.id()))?);
                status.did(Work::Answer, case.own_tokens(answer));
            }

            // 2. Each repair, and the same answers.
            for Repair { session, later, answers } in repairs {
                let nth = edited.iter().position(|range| range == session).unwrap_or(0);
                let rows = repairing.rows(nth, *later);
                let tokens = case.history_without(answers[0], std::slice::from_ref(session)).tokens;
                let asked: Vec<(&Metric, &[u32])> = answers
                    .iter()
                    .filter_map(|answer| Some((metrics.get(answer)?, case.prompt(*answer).history().rest)))
                    .collect();
                let read = Metric::repaired(&asked, &mut repairing, (&rows, &tokens), &mut go_on);
                let Some(read) = unless_stopped(case.id(), read)? else { return Ok(measured.stopped()) };
                for ((answer, (metric, _)), row) in answers.iter().zip(&asked).zip(read) {
                    let store: &AttentionStore = &case.answers[*answer];
                    let Some(span) = evidence(&case, *answer).find(|span| span.range() == *session) else {
                        continue;
                    };
                    log.append(store, &ablation(span, *later, rows.len()), metric, row)?;
                    measured.done += 1;
                    status.did(Work::Answer, case.own_tokens(*answer));
                    let repair = format!("{} and {} rows", span.label, Later(*later));
                    steps.step(&format!("{} {} {repair}", store.case, store.probe), None);
                }
                if !task.goes_on() {
                    return Ok(measured.stopped());
                }
            }
        }
    }
    Ok(measured)
}
