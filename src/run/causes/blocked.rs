//! Effect of each session on an answer: its path to the question and the answer is blocked, and the answer read again.
//!
//! Called by `palimpsest causes`. A case's history is computed once; of each reading only the tokens from the question on are, those of many
//! readings together. Beside the sessions a pool of random stretches is blocked as controls ([`crate::statistics::control`]). What the answer as it
//! was reads of each session is measured besides ([`super::session_measures`]).
//!
//! Direct paths alone are blocked: what other sessions took over from a blocked one still arrives.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use palimpsest_core::attention::{AttentionStore, Hole, LayerHoles};
use palimpsest_core::engine::LocalModel;
use palimpsest_core::span::Span;

use super::case::{cases, taken};
use super::log::{Ablation, CauseLog, Keys, Leaving};
use super::metric::{Change, Metric};
use super::session_measures::{SessionMeasures, measures_path, sessions};
use super::{CauseError, Measured, asked, unless_stopped, windows};
use crate::progress::Steps;
use crate::run::causes::metric::Measure;
use crate::run::condition::named;
use crate::run::rows::AnswerKey;
use crate::run::store::RunFolder;
use crate::statistics::control::{extent, stretches};

/// Which paths to block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CauseOptions {
    pub seed: u64,
    /// Layers of a window, of which each is blocked by itself; all layers at once where absent.
    pub windows: Option<usize>,
    /// True if only the softmax layers of a model with linear-attention layers are blocked.
    pub softmax_only: bool,
    /// Stretches of the pool of controls of a case: a reading each of every answer and window.
    pub controls: usize,
}

/// The sessions of an answer's prompt and its controls, at each window of layers.
fn blocks(store: &AttentionStore, windows: &[Option<Range<usize>>], options: CauseOptions) -> Vec<Ablation> {
    let ranges: Vec<Range<usize>> = sessions(store).map(Span::range).collect();
    let (count, history) = ((options.controls, options.seed), extent(&ranges));
    let drawn = stretches(count, &store.case, &history, &ranges, &taken(&store.keys));
    let stretches = drawn.into_iter().enumerate().map(|(nth, range)| Keys::Stretch(nth, range));
    let keys: Vec<Keys> = sessions(store).cloned().map(Keys::Session).chain(stretches).collect();
    let at = |layers: &Option<Range<usize>>| Leaving::Blocked { layers: layers.clone(), seed: options.seed };
    let ablations = windows
        .iter()
        .flat_map(|layers| keys.iter().map(move |keys| Ablation { keys: keys.clone(), leaving: at(layers) }));
    ablations.collect()
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each group of readings.
pub(super) fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    (options, of): (CauseOptions, Measure),
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let kinds = model.engine().decoder().spec().layer_kinds();
    let windows = windows(&kinds, (options.windows, options.softmax_only))?;
    let mut log = CauseLog::open(&folder.dir, of, &kinds)?;
    let text = model.text().clone();
    let unit = if of == Measure::Contrast { "contrasts" } else { "answers" };
    let mut measured = Measured::default();
    let mut steps = Steps::new(unit, asked(folder, of).len(), show_progress);
    for case in cases(folder, of, &text) {
        let case = case?;
        for (answer, store) in case.answers.iter().enumerate() {
            let name = format!("{} {}", store.case, named(&store.probe, &store.condition));
            let (done, missing): (Vec<_>, Vec<_>) = blocks(store, &windows, options)
                .into_iter()
                .partition(|block| log.drop(store, block).is_some());
            measured.skipped += done.len();
            let measures = measures_path(&folder.dir, of, AnswerKey::of_store(store));
            let has_measures = SessionMeasures::is_there(&measures);
            if missing.is_empty() && has_measures {
                steps.step(&name, None);
                continue;
            }
            let status = steps.status();
            status.begin(&name, "prefill");
            let (session, history, target) = (model.session(), case.whole(answer), case.target(answer));
            session.take_usage();
            let (begun, mut read) = (Instant::now(), 0);
            let mut go_on = |tokens: usize| {
                read += tokens;
                status.prefill(read.min(history.tokens.len()), history.tokens.len());
                !stop.load(Ordering::Relaxed)
            };

            // 1. The history, once a case, and what the answer as it was reads of each session.
            if !has_measures {
                let read = SessionMeasures::read(session, store, history.tokens.len(), target, &mut go_on);
                let Some(read) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                read.save(&measures, store, of)?;
            }

            // 2. The metric, then with each path blocked.
            let metric = Metric::read(session, &history, target, &mut go_on);
            let Some(metric) = unless_stopped(&store.case, metric)? else { return Ok(measured.stopped()) };
            measured.histories.0 += begun.elapsed().as_secs_f64();
            measured.histories.1 += session.take_usage().0;
            status.begin(&name, "blocking");
            let question = case.question(answer);
            let hide = |block: &Ablation| {
                let hole = Hole { rows: question..usize::MAX, keys: block.keys.range() };
                let layers = block.leaving.layers().unwrap_or(0..kinds.len());
                LayerHoles::at_softmax(&layers, &kinds, vec![hole])
            };
            let holes: Vec<LayerHoles> = missing.iter().map(hide).collect();
            let begun = Instant::now();
            let (mut stored, mut blocked) = (Ok(()), 0);
            let mut take = |nth: usize, change: Change| {
                if stored.is_ok() {
                    stored = log.append(store, &missing[nth], &metric, change);
                }
                blocked += 1;
                status.prefill(blocked, missing.len());
                stored.is_ok() && !stop.load(Ordering::Relaxed)
            };
            let mut heard = |_: usize| !stop.load(Ordering::Relaxed);
            let read = metric.changes(session, &history, &holes, &mut heard, &mut take);
            measured.readings.0 += begun.elapsed().as_secs_f64();
            measured.readings.1 += session.take_usage().0;
            measured.done += blocked;
            stored?;
            if unless_stopped(&store.case, read)?.is_none() || stop.load(Ordering::Relaxed) {
                return Ok(measured.stopped());
            }
            steps.step(&name, None);
        }
    }
    Ok(measured)
}
