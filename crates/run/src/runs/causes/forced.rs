//! Effect of showing a session to the layers that had left it out: from the question on, layers with a window or an indexer see the
//! session's keys, as they are in the cache, in addition to their choice.
//!
//! Called by `palimpsest causes --force`. The inverse of [`super::blocked`], with its costs; the model's caches must keep all keys of
//! windowed layers.

use anyhow::ensure;
use palimpsest_core::ablate::{EffectRow, Metric};
use palimpsest_core::attention::{AttentionStore, LayerHoles, LayerKind};
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;

use super::case::{Ablated, CaseAnswers, ReadingCost, SessionChoice};
use super::contrast_rows::AblationKind;
use super::log::{Ablation, CauseLog};
use super::{Measured, Task, all_read, unless_stopped};
use crate::progress::{Steps, Work};

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    sessions: SessionChoice,
) -> anyhow::Result<Measured> {
    ensure!(
        task.kinds.iter().any(LayerKind::chooses),
        "every attention layer of the model sees all keys: there is no sliding window or choice that --force could widen"
    );
    let mut log = CauseLog::open(task)?;
    let ablation = |span: &Span| Ablation::of(AblationKind::Forced, span);
    let missing = |case: &CaseAnswers<'_>, log: &CauseLog| {
        case.missing(sessions, |store: &AttentionStore, span| log.drop(store, &ablation(span)).is_some())
    };
    let cost = |case: &CaseAnswers<'_>, missing: &[Ablated]| {
        let of_answer = |answer: usize| missing.iter().filter(|one| one.answer == answer).count();
        // Beside the readings, one pass for the metric.
        let passes = (0..case.answers.len()).map(of_answer).map(|n| n + usize::from(n > 0));
        ReadingCost { readings: missing.len(), ..case.cost_in_place(&passes.collect::<Vec<_>>()) }
    };
    let what = "forward passes with a session shown to layers that choose keys";
    let mut left = task.announced(what, |case| cost(case, &missing(case, &log).0))?;
    let mut measured = Measured::default();
    let mut steps = Steps::new("sessions shown", left.readings, task.show).brief(true);
    for case in task.cases() {
        let case = case?;
        let (missing, found) = missing(&case, &log);
        measured.skipped += found;
        let mut go_on = task.hears(steps.status(), &mut left, cost(&case, &missing));
        for own in missing.chunk_by(|a, b| a.answer == b.answer) {
            let Some(answer) = own.first().map(|one| one.answer) else { continue };
            let (prompt, store, status) = (case.prompt(answer), &case.answers[answer], steps.status());
            status.begin(case.id(), "prefill");
            let history = prompt.history();
            let metric = Metric::read(session, &history, case.target(answer), &mut go_on);
            let Some(metric) = unless_stopped(&store.case, metric)? else { return Ok(measured.stopped()) };
            let spans: Vec<&Span> = own.iter().map(|one| case.sessions(answer)[one.nth]).collect();
            let shown: Vec<LayerHoles> = spans.iter().map(|span| prompt.forced(&[span.range()])).collect();
            let mut sink = |nth: usize, row: EffectRow| {
                log.append(store, &ablation(spans[nth]), &metric, row)?;
                measured.done += 1;
                status.did(Work::Answer, case.own_tokens(answer));
                steps.step(&format!("{} {} with {}", store.case, store.probe, spans[nth].label), None);
                Ok(task.goes_on())
            };
            let whole = all_read(&store.case, &mut sink, |sink| {
                metric.effects(session, &history, &shown, &mut |_| task.goes_on(), sink)
            })?;
            if !whole || !task.goes_on() {
                return Ok(measured.stopped());
            }
        }
    }
    Ok(measured)
}
