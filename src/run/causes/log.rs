//! The rows of measurements, appended as they come: those of answers to `causes.jsonl`, those of contrasts to `contrast-causes.jsonl`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::span::Span;

use super::contrast_rows::{AblationKey, AblationKind, CONTRAST_CAUSES, ContrastCauseRow};
use super::metric::{Answer, Change, Metric};
use super::replacement::NEUTRAL;
use super::rows::{CarrierRow, CauseLine, CauseRow, ControlRow, Effect, TotalEffect, TotalRow, open_log};
use super::{CauseError, layers_open, unusable};
use crate::ground::jsonl::RowLog;
use crate::run::causes::metric::Measure;
use crate::run::contrast::PairLogP;
use crate::run::rows::AnswerKey;

/// Keys of a history that are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Keys {
    Session(Span),
    /// One of the pool of controls, by its number.
    Stretch(usize, Range<usize>),
}

impl Keys {
    pub(super) fn range(&self) -> Range<usize> {
        match self {
            Keys::Session(span) => span.range(),
            Keys::Stretch(_, range) => range.clone(),
        }
    }
}

/// The way in which keys are left out.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Leaving {
    /// Hidden from the question on, at some layers or all, beside controls of this seed.
    Blocked {
        layers: Option<Range<usize>>,
        seed: u64,
    },
    Removed,
    Replaced,
    /// Hidden from the question on and from these positions of a carrier; `direct` is what the first alone takes.
    Carried {
        carrier: String,
        rows: Range<usize>,
        direct: f64,
    },
}

impl Leaving {
    /// The layers at which keys are hidden, where not at all.
    pub(super) fn layers(&self) -> Option<Range<usize>> {
        if let Leaving::Blocked { layers, .. } = self { layers.clone() } else { None }
    }
}

/// An ablation of an answer's prompt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ablation {
    pub keys: Keys,
    pub leaving: Leaving,
}

fn ends(range: &Range<usize>) -> [usize; 2] {
    [range.start, range.end]
}

impl Ablation {
    fn kind(&self) -> AblationKind {
        match (&self.leaving, &self.keys) {
            (Leaving::Blocked { .. }, Keys::Session(_)) => AblationKind::Blocked,
            (Leaving::Blocked { .. }, Keys::Stretch(..)) => AblationKind::Control,
            (Leaving::Removed, _) => AblationKind::Removed,
            (Leaving::Replaced, _) => AblationKind::Replaced,
            (Leaving::Carried { .. }, _) => AblationKind::Carried,
        }
    }

    fn key(&self, store: &AttentionStore) -> AblationKey {
        let (seed, other) = match &self.leaving {
            Leaving::Blocked { seed, .. } => (*seed, None),
            Leaving::Removed => (0, None),
            Leaving::Replaced => (0, Some(NEUTRAL.to_owned())),
            Leaving::Carried { carrier, .. } => (0, Some(carrier.clone())),
        };
        let layers = self.leaving.layers().as_ref().map(ends);
        (AnswerKey::of_store(store).owned(), self.kind(), ends(&self.keys.range()), layers, seed, other)
    }
}

/// The key of a line, and the drop by it; of a carrier beyond that by the direct path alone.
fn of_line(line: &CauseLine) -> Option<(AblationKey, f64)> {
    use AblationKind::{Blocked, Carried, Control, Removed, Replaced};
    Some(match line {
        CauseLine::Blocked(row) => {
            let answer = row.answer.clone();
            ((answer, Blocked, row.tokens, row.layers, row.seed, None), row.effect.log_p_drop)
        }
        CauseLine::Control(row) => {
            let answer = row.answer.clone();
            ((answer, Control, row.tokens, row.layers, row.seed, None), row.effect.log_p_drop)
        }
        CauseLine::Total(row) | CauseLine::Replaced(row) => {
            let kind = if matches!(line, CauseLine::Total(_)) { Removed } else { Replaced };
            let answer = row.answer.clone();
            ((answer, kind, row.tokens, None, 0, row.neutral.clone()), row.total.log_p_drop)
        }
        CauseLine::Carrier(row) => {
            let answer = row.answer.clone();
            let carrier = Some(row.carrier.clone());
            ((answer, Carried, row.tokens, None, 0, carrier), row.effect.log_p_drop - row.direct)
        }
        CauseLine::Subset(_) | CauseLine::Surrogate(_) => return None,
    })
}

enum File {
    Answers(RowLog<CauseLine>),
    Contrasts(RowLog<ContrastCauseRow>),
}

/// The rows of a run of one metric, open for appending.
pub(super) struct CauseLog {
    file: File,
    there: BTreeMap<AblationKey, f64>,
    kinds: Vec<LayerKind>,
}

impl CauseLog {
    /// Of a run's folder, for a model of such layers.
    pub(super) fn open(dir: &Path, measure: Measure, kinds: &[LayerKind]) -> Result<Self, CauseError> {
        let (file, there) = match measure {
            Measure::LogP => {
                let log = open_log(dir)?;
                let there = log.rows.iter().filter_map(of_line).collect();
                (File::Answers(log), there)
            }
            Measure::Contrast => {
                let log: RowLog<ContrastCauseRow> = RowLog::open(dir.join(CONTRAST_CAUSES))?;
                let of = |row: &ContrastCauseRow| (row.key(), row.drop - row.direct.unwrap_or(0.0));
                let there = log.rows.iter().map(of).collect();
                (File::Contrasts(log), there)
            }
        };
        Ok(CauseLog { file, there, kinds: kinds.to_vec() })
    }

    /// The drop by an ablation of an answer's prompt, where it was measured; of a carrier beyond that by the direct path alone.
    pub(super) fn drop(&self, store: &AttentionStore, ablation: &Ablation) -> Option<f64> {
        self.there.get(&ablation.key(store)).copied()
    }

    /// Adds a row.
    pub(super) fn append(
        &mut self,
        store: &AttentionStore,
        ablation: &Ablation,
        metric: &Metric,
        change: Change,
    ) -> Result<(), CauseError> {
        let key = ablation.key(store);
        let direct = if let Leaving::Carried { direct, .. } = ablation.leaving { direct } else { 0.0 };
        self.there.insert(key.clone(), metric.lost(&change) - direct);
        match (&mut self.file, metric, change) {
            (File::Answers(log), Metric::Answer(answer), Change::Answer(effect)) => {
                Ok(log.append(line(key, ablation, (answer, effect), &self.kinds))?)
            }
            (File::Contrasts(log), Metric::Contrast(_, plain), Change::Contrast(changed)) => {
                Ok(log.append(contrast_row(key, ablation, *plain, changed))?)
            }
            _ => Err(unusable(store, "this is a bug: a row of another metric than the log's")),
        }
    }
}

/// The line of an effect on an answer, of a model of these layers.
fn line(
    key: AblationKey,
    ablation: &Ablation,
    (said, effect): (&Answer, Effect),
    kinds: &[LayerKind],
) -> CauseLine {
    let (answer, _, tokens, layers, seed, other) = key;
    let softmax_only = kinds.contains(&LayerKind::Linear);
    let (answer_tokens, thought_tokens, log_p) = (said.answer_tokens(), said.thought_tokens(), said.log_p());
    let Span { label: span, role, .. } = match &ablation.keys {
        Keys::Session(span) => span.clone(),
        &Keys::Stretch(stretch, _) => {
            return CauseLine::Control(ControlRow {
                answer,
                stretch,
                tokens,
                layers,
                seed,
                softmax_only,
                answer_tokens,
                log_p,
                effect,
            });
        }
    };
    match &ablation.leaving {
        Leaving::Blocked { .. } => CauseLine::Blocked(CauseRow {
            answer,
            span,
            role,
            tokens,
            layers,
            seed,
            softmax_only,
            layers_open: layers_open(kinds, ablation.leaving.layers().as_ref()),
            answer_tokens,
            thought_tokens,
            log_p,
            effect,
        }),
        Leaving::Carried { carrier, rows, direct } => CauseLine::Carrier(CarrierRow {
            answer,
            span,
            role,
            tokens,
            carrier: carrier.clone(),
            carrier_tokens: ends(rows),
            softmax_only,
            layers_open: layers_open(kinds, None),
            answer_tokens,
            thought_tokens,
            log_p,
            direct: *direct,
            effect,
        }),
        Leaving::Removed | Leaving::Replaced => {
            let row = |total| TotalRow {
                answer,
                span,
                role,
                tokens,
                neutral: other,
                answer_tokens,
                thought_tokens,
                log_p,
                total,
            };
            match ablation.leaving {
                Leaving::Removed => CauseLine::Total(row(TotalEffect::Total(effect))),
                _ => CauseLine::Replaced(row(TotalEffect::Replaced(effect))),
            }
        }
    }
}

fn contrast_row(
    key: AblationKey,
    Ablation { keys, leaving }: &Ablation,
    plain: PairLogP,
    changed: PairLogP,
) -> ContrastCauseRow {
    let (answer, ablation, tokens, layers, seed, other) = key;
    let (span, role, stretch) = match keys {
        Keys::Session(span) => (span.label.clone(), span.role.clone(), None),
        Keys::Stretch(stretch, _) => (String::new(), None, Some(*stretch)),
    };
    let (carrier, neutral, direct) = match leaving {
        Leaving::Carried { direct, .. } => (other, None, Some(*direct)),
        _ => (None, other, None),
    };
    ContrastCauseRow {
        answer,
        span,
        role,
        stretch,
        tokens,
        carrier,
        neutral,
        layers,
        seed,
        ablation,
        contrast: plain.contrast(),
        drop: plain.contrast() - changed.contrast(),
        direct,
        current: changed.current,
        stale: changed.against,
    }
}
