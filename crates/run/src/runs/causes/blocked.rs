//! Direct effect of each session on an answer: attention from the question and answer to the session is blocked, and the answer scored
//! again.
//!
//! The history is prefilled once per case; readings are batched from the question on. Random stretches are blocked as controls
//! ([`palimpsest_data::statistics::control`]). Indirect effects through later sessions remain. [`super::session_measures`] and
//! [`super::flash_trace`] record attention for comparison.

use std::ops::Range;
use std::time::Instant;

use palimpsest_core::ablate::{EffectRow, Measure, Metric};
use palimpsest_core::attention::{AttentionStore, LayerHoles};
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;

use super::case::{CaseAnswers, ReadingCost, taken};
use super::contrast_rows::AblationKind;
use super::flash_trace;
use super::log::{Ablation, CauseLog};
use super::session_measures::{SessionMeasures, measures_file, sessions};
use super::two_hop::Scores;
use super::{Measured, Task, all_read, unless_stopped, windows};
use crate::progress::{Steps, Work};
use crate::runs::condition::named;
use crate::runs::rows::AnswerKey;
use palimpsest_data::statistics::control::{extent, stretches};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CauseOptions {
    pub seed: u64,
    /// Layers per window; each window is blocked separately. All layers at once if absent.
    pub windows: Option<usize>,
    pub softmax_only: bool,
    /// Size of a case's control pool; one reading per answer and window each.
    pub controls: usize,
}

fn blocks(store: &AttentionStore, windows: &[Option<Range<usize>>], options: CauseOptions) -> Vec<Ablation> {
    let ranges: Vec<Range<usize>> = sessions(store).map(Span::range).collect();
    let (count, history) = ((options.controls, options.seed), extent(&ranges));
    let taken = taken(&store.keys);
    let drawn = stretches(count, &store.case, &history, &ranges, &taken);
    let of_stretch = |(nth, range)| Ablation::of_stretch(nth, range, taken.is_empty());
    let controls = drawn.into_iter().enumerate().map(of_stretch);
    let blocked = sessions(store).map(|span| Ablation::of(AblationKind::Blocked, span)).chain(controls);
    let blocked: Vec<Ablation> = blocked.collect();
    let at = |layers: &Option<Range<usize>>, one: &Ablation| Ablation {
        layers: layers.clone(),
        seed: options.seed,
        ..one.clone()
    };
    windows.iter().flat_map(|layers| blocked.iter().map(move |one| at(layers, one))).collect()
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    options: CauseOptions,
) -> anyhow::Result<Measured> {
    let windows = windows(&task.kinds, (options.windows, options.softmax_only))?;
    let (mut log, mut scores) = (CauseLog::open(task)?, Scores::open(&task.folder.dir)?);
    let unit = if task.of == Measure::Contrast { "contrasts" } else { "answers" };
    let measures_of = |store: &AttentionStore| measures_file(task.of, AnswerKey::of_store(store));
    let missing = |store: &AttentionStore, log: &CauseLog| -> Vec<Ablation> {
        let all = blocks(store, &windows, options).into_iter();
        all.filter(|block| log.drop(store, block).is_none()).collect()
    };
    // Measures and scores to record, and the passes that they take.
    let unread = |store: &AttentionStore, scores: &Scores| {
        let measures = !SessionMeasures::is_there(&task.folder.dir, &measures_of(store));
        let routes = flash_trace::is_missing(task, store, scores);
        (measures, routes, usize::from(measures) + flash_trace::PASSES * usize::from(routes))
    };
    let cost = |case: &CaseAnswers<'_>, log: &CauseLog, scores: &Scores| {
        let (mut readings, mut more) = (0, 0);
        // Beside the blocked paths, one pass for the metric and those for measures and scores.
        let passes = case.answers.iter().map(|store| {
            let (missing, (_, routes, others)) = (missing(store, log).len(), unread(store, scores));
            readings += missing;
            more += if routes { flash_trace::more_tokens(store, &task.text) } else { 0 };
            if missing + others == 0 { 0 } else { missing + others + 1 }
        });
        let passes: Vec<usize> = passes.collect();
        let cost = case.cost_in_place(&passes);
        ReadingCost { readings, answers: cost.answers + more, ..cost }
    };
    let mut left = task
        .announced("forward passes with a session or a control hidden", |case| cost(case, &log, &scores))?;
    let mut measured = Measured::default();
    let mut steps = Steps::new(unit, left.asked, task.show).brief(true);
    let status = steps.status();
    for case in task.cases() {
        let case = case?;
        let mut go_on = task.hears(steps.status(), &mut left, cost(&case, &log, &scores));
        for (answer, store) in case.answers.iter().enumerate() {
            let name = format!("{} {}", store.case, named(&store.probe, &store.condition));
            let (missing, (measures, routes, others)) = (missing(store, &log), unread(store, &scores));
            measured.skipped += blocks(store, &windows, options).len() - missing.len();
            if missing.is_empty() && others == 0 {
                continue;
            }
            status.begin(&name, "prefill");
            let (prompt, target) = (case.prompt(answer), case.target(answer));
            let history = prompt.history();
            session.take_usage();
            let begun = Instant::now();

            // 1. Prefill the history; measure attention of the unchanged answer.
            if measures {
                let read = SessionMeasures::read(session, store, prompt.cut, target, &mut go_on);
                let Some(read) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                read.save(&task.folder.dir, &measures_of(store), store, task.of)?;
            }
            if routes {
                let read = flash_trace::read(session, (store, prompt.cut), &task.text, &mut go_on);
                let Some(read) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                scores.append([read])?;
            }

            // 2. Score the answer unchanged, then with each path blocked.
            let metric = Metric::read(session, &history, target, &mut go_on);
            let Some(metric) = unless_stopped(&store.case, metric)? else { return Ok(measured.stopped()) };
            measured.histories.0 += begun.elapsed().as_secs_f64();
            measured.histories.1 += session.take_usage().0;
            status.did(Work::Answer, case.own_tokens(answer) * (1 + others));
            let hide =
                |block: &Ablation| prompt.hidden(std::slice::from_ref(&block.tokens), block.layers.as_ref());
            let holes: Vec<LayerHoles> = missing.iter().map(hide).collect();
            let begun = Instant::now();
            let mut blocked = 0;
            let mut sink = |nth: usize, row: EffectRow| {
                log.append(store, &missing[nth], &metric, row)?;
                blocked += 1;
                status.did(Work::Answer, case.own_tokens(answer));
                status.doing(|| format!("forward pass {blocked} of {}", missing.len()));
                Ok(task.goes_on())
            };
            let whole = all_read(&store.case, &mut sink, |sink| {
                metric.effects(session, &history, &holes, &mut |_| task.goes_on(), sink)
            })?;
            measured.readings.0 += begun.elapsed().as_secs_f64();
            measured.readings.1 += session.take_usage().0;
            measured.done += blocked;
            if !whole || !task.goes_on() {
                return Ok(measured.stopped());
            }
            steps.step(&name, None);
        }
    }
    Ok(measured)
}
