//! Carriers of contrasts: the counterpart of [`super::carriers`] for values in the place of answers.
//!
//! Called by `palimpsest causes --contrast --carriers`. Rows go to `contrast-causes.jsonl`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use palimpsest_core::attention::LayerHoles;
use palimpsest_core::engine::{LocalModel, RequestError, Session};

use super::carriers::{Carried, CarrierMeasurement, CarrierOptions, CarrierPath, PathReader};
use super::causes::{CauseError, Measured};
use super::contrast::{PairLogP, ValuePair};
use super::contrast_causes::{cases, open_log, together};
use super::contrast_rows::{ContrastAblation, ContrastCauseRow};
use super::forced::{pairs_together, read_pair};
use super::rows::AnswerKey;
use super::store::RunFolder;

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
    let (mut log, _) = open_log(folder)?;
    let there = (there(&log.rows), options);
    let text = model.text().clone();
    let answers = cases(folder, &text).map(|case| Ok(together(case?).0));
    let mut all = CarrierMeasurement::new(answers, model, there, stop, show_progress)?;
    for case in cases(folder, &text) {
        let (case, pairs) = together(case?);
        let plain = |session: &mut Session, go_on: &mut dyn FnMut(usize) -> bool| {
            let nothing_blocked = LayerHoles::default();
            let read = |(at, values)| read_pair(session, (&case.whole(at), values), &nothing_blocked, go_on);
            let plain = pairs.iter().enumerate().map(read).collect::<Result<_, _>>()?;
            Ok(Values { pairs: &pairs, plain })
        };
        let append = |values: &Values<'_>, path: &CarrierPath, direct: f64, changed: PairLogP| {
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
            Ok(log.append(row)?)
        };
        if !all.measure(&case, model.session(), plain, append)? {
            return Ok(all.measured.stopped());
        }
    }
    Ok(all.measured)
}
