//! Carriers of contrasts: the counterpart of [`super::carriers`] for values in the place of answers.
//!
//! Called by `palimpsest causes --contrast --carriers`. Rows go to `contrast-causes.jsonl`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use palimpsest_core::attention::{LayerHoles, LayerKind};
use palimpsest_core::engine::{EngineError, LocalModel, ModelText, RequestError, Session};

use super::carriers::{Carried, CarrierOptions, CarrierPath, PathReader, cost_of_case, missing, read_case};
use super::causes::{CauseError, CauseOptions, Measured, windows};
use super::contrast::{PairLogP, ValuePair};
use super::contrast_causes::{Asked, cases, open_log};
use super::contrast_rows::{ContrastAblation, ContrastCauseRow, read_contrast_causes};
use super::forced::{pairs, pairs_together};
use super::removal::{CaseAnswers, ReadingCost, goes_back};
use super::rows::AnswerKey;
use super::store::RunFolder;
use crate::progress::Steps;

/// Values of a case's answers, with nothing blocked.
struct Values<'a> {
    pairs: &'a [ValuePair],
    plain: Vec<PairLogP>,
}

impl PathReader for Values<'_> {
    type Read = PairLogP;

    fn read(
        &self,
        session: &mut Session,
        history: &Arc<[u32]>,
        readings: &[(usize, &[u32], &LayerHoles)],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, PairLogP) -> bool,
    ) -> Result<(), RequestError> {
        let of_pairs = readings.iter().map(|&(answer, rest, holes)| (&self.pairs[answer], rest, holes));
        let readings: Vec<_> = of_pairs.collect();
        pairs_together(session, history, &readings, go_on, sink)
    }

    fn lost(&self, answer: usize, read: &PairLogP) -> f64 {
        self.plain[answer].contrast() - read.contrast()
    }
}

fn there(rows: &[ContrastCauseRow]) -> Carried {
    let of = |row: &ContrastCauseRow| {
        let answer = AnswerKey::of(&row.case, &row.probe, &row.condition).owned();
        Some(((answer, row.span.clone(), row.carrier.clone()?), row.drop - row.direct?))
    };
    rows.iter().filter(|row| row.ablation == ContrastAblation::Carried).filter_map(of).collect()
}

fn of_case(case: Vec<Asked>) -> (CaseAnswers, Vec<ValuePair>) {
    let (stores, pairs): (Vec<_>, Vec<_>) =
        case.into_iter().map(|Asked { store, pair }| (store, pair)).unzip();
    (CaseAnswers::of(stores), pairs)
}

/// Readings that the carriers of a run's contrasts still take of a model of such layers, at most.
///
/// # Errors
/// [`CauseError`] of the folder's files.
pub fn cost(
    folder: &RunFolder,
    text: &ModelText,
    kinds: &[LayerKind],
    options: CarrierOptions,
) -> Result<ReadingCost, CauseError> {
    let there = there(&read_contrast_causes(&folder.dir)?);
    let mut cost = ReadingCost::default();
    for case in cases(folder, text) {
        cost += cost_of_case(&of_case(case?).0, (&there, options.least), goes_back(kinds));
    }
    Ok(cost)
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each chunk and reading.
///
/// # Errors
/// [`CauseError`], [`CauseError::Linear`] where linear-attention layers are to be blocked; a stop is none.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    options: CarrierOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let kinds = model.engine().decoder().spec().layer_kinds();
    windows(&kinds, CauseOptions { softmax_only: options.softmax_only, ..CauseOptions::default() })?;
    let (mut log, _) = open_log(folder)?;
    let there = there(&log.rows);
    let text = model.text().clone();
    let mut measured = Measured::default();
    let mut todo = 0;
    for case in cases(folder, &text) {
        todo += missing(&of_case(case?).0, &there, options.least).0.len();
    }
    let mut steps = Steps::new("carriers", todo, show_progress);
    for case in cases(folder, &text) {
        let (case, values) = of_case(case?);
        let (missing, found) = missing(&case, &there, options.least);
        measured.skipped += found;
        let Some(name) = case.answers.first().map(|store| store.case.clone()).filter(|_| !missing.is_empty())
        else {
            continue;
        };
        let cost = cost_of_case(&case, (&there, options.least), goes_back(&kinds));
        let failed = |error: RequestError| CauseError::Model { case: name.clone(), source: error.into() };
        let status = steps.status();
        status.begin(&name, "prefill");
        let mut read = 0;
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.prefill(read.min(cost.prefill), cost.prefill);
            !stop.load(Ordering::Relaxed)
        };
        let session = model.session();
        session.take_usage();
        let begun = Instant::now();
        let mut plain = Vec::new();
        for (answer, pair) in values.iter().enumerate() {
            let nothing_blocked = [LayerHoles::default()];
            let mut take = |_: usize, found: PairLogP| {
                plain.push(found);
                true
            };
            match pairs(session, (&case.whole(answer), pair), &nothing_blocked, &mut go_on, &mut take) {
                Err(RequestError::Engine(EngineError::Interrupted)) => {
                    return Ok(Measured { stopped: true, ..measured });
                }
                done => done.map_err(failed)?,
            }
        }
        measured.histories.0 += begun.elapsed().as_secs_f64();
        measured.histories.1 += session.take_usage().0;
        let begun = Instant::now();
        let values = Values { pairs: &values, plain };
        let mut sink = |path: &CarrierPath, direct: f64, changed: PairLogP| {
            let store = &case.answers[path.answer];
            let plain = values.plain[path.answer];
            let row = ContrastCauseRow {
                case: store.case.clone(),
                probe: store.probe.clone(),
                condition: store.condition.clone(),
                span: path.span.label.clone(),
                role: path.span.role.clone(),
                stretch: None,
                carrier: Some(path.carrier.clone()),
                neutral: None,
                tokens: [path.span.start, path.span.end],
                layers: None,
                seed: 0,
                ablation: ContrastAblation::Carried,
                contrast: plain.contrast(),
                drop: plain.contrast() - changed.contrast(),
                direct: Some(direct),
                current: changed.current,
                stale: changed.against,
            };
            let step = format!("{} {} {} by {}", row.case, row.probe, row.span, path.carrier);
            log.append(row)?;
            measured.done += 1;
            steps.step(&step, None);
            Ok(!stop.load(Ordering::Relaxed))
        };
        let whole =
            read_case(&case, (&values, &kinds), (&there, options.least), session, &mut go_on, &mut sink)?;
        measured.readings.0 += begun.elapsed().as_secs_f64();
        measured.readings.1 += session.take_usage().0;
        if !whole {
            return Ok(Measured { stopped: true, ..measured });
        }
    }
    Ok(measured)
}
