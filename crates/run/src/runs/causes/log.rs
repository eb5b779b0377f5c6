//! Append-only logs of measurements: `causes.jsonl` for answers, `contrast-causes.jsonl` for contrasts.

use std::collections::BTreeMap;
use std::ops::Range;

use palimpsest_core::ablate::{EffectRow, Measure, Metric, NEUTRAL};
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::span::Span;

use super::contrast_rows::{AblationKey, AblationKind, CONTRAST_CAUSES, ContrastCauseRow};
use super::repair_rows::{RepairedRows, in_place};
use super::rows::{CauseLine, CauseRow, NamedEffect, open_log};
use super::{Task, layers_open, unusable};
use crate::runs::rows::AnswerKey;
use palimpsest_data::ground::jsonl::RowLog;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ablation {
    pub kind: AblationKind,
    /// Session; empty for a control.
    pub span: String,
    pub role: Option<String>,
    pub stretch: Option<usize>,
    /// For controls: drawn without marked evidence to avoid.
    pub anywhere: bool,
    pub tokens: Range<usize>,
    /// Blocked layers; all if absent.
    pub layers: Option<Range<usize>>,
    /// Pool seed of blocked sessions; otherwise 0.
    pub seed: u64,
    pub carrier: Option<(String, Range<usize>)>,
    /// For repairs: the rows that were read again. Their number is no part of the key.
    pub rows: Option<RepairedRows>,
    /// For carriers: drop by the direct path alone.
    pub direct: f64,
}

fn ends(range: &Range<usize>) -> [usize; 2] {
    [range.start, range.end]
}

impl Ablation {
    pub fn of(kind: AblationKind, session: &Span) -> Self {
        let (span, role) = (session.label.clone(), session.role.clone());
        Ablation { span, role, ..Self::of_tokens(kind, session.range()) }
    }

    pub fn of_stretch(nth: usize, tokens: Range<usize>, anywhere: bool) -> Self {
        Ablation { stretch: Some(nth), anywhere, ..Self::of_tokens(AblationKind::Control, tokens) }
    }

    fn of_tokens(kind: AblationKind, tokens: Range<usize>) -> Self {
        let (span, role, stretch, layers, carrier, rows) = (String::new(), None, None, None, None, None);
        let (anywhere, seed, direct) = (false, 0, 0.0);
        Ablation { kind, span, role, stretch, anywhere, tokens, layers, seed, carrier, rows, direct }
    }

    fn neutral(&self) -> Option<String> {
        matches!(self.kind, AblationKind::Replaced | AblationKind::Repaired).then(|| NEUTRAL.to_owned())
    }

    fn key(&self, store: &AttentionStore) -> AblationKey {
        let carrier = self.carrier.as_ref().map(|(carrier, _)| carrier.clone());
        let layers = self.layers.as_ref().map(ends);
        let answer = AnswerKey::of_store(store).owned();
        let other = carrier.or_else(|| in_place(self.neutral().as_ref(), self.rows));
        (answer, self.kind, ends(&self.tokens), layers, self.seed, other)
    }

    fn line(
        &self,
        store: &AttentionStore,
        metric: &Metric,
        row: EffectRow,
        kinds: &[LayerKind],
    ) -> Option<CauseLine> {
        use AblationKind::{Blocked, Carried, Control, Forced, Removed, Repaired, Replaced};
        let kind = self.kind;
        let effect = row.effect()?;
        let (carrier, carrier_tokens) = self.carrier.clone().map(|(name, rows)| (name, ends(&rows))).unzip();
        let hides = matches!(kind, Blocked | Carried | Control);
        let row = CauseRow {
            answer: AnswerKey::of_store(store).owned(),
            span: self.span.clone(),
            role: self.role.clone(),
            stretch: self.stretch,
            anywhere: self.anywhere,
            tokens: ends(&self.tokens),
            carrier,
            carrier_tokens,
            neutral: self.neutral(),
            rows: self.rows,
            layers: self.layers.as_ref().map(ends),
            seed: matches!(kind, Blocked | Control).then_some(self.seed),
            softmax_only: hides && kinds.contains(&LayerKind::Linear),
            layers_open: layers_open(kinds, self.layers.as_ref()).filter(|_| hides && kind != Control),
            answer_tokens: metric.answer_tokens(),
            thought_tokens: if kind == Control { 0 } else { metric.thought_tokens() },
            log_p: metric.value(),
            direct: (kind == Carried).then_some(self.direct),
            effect: match kind {
                Removed => NamedEffect::Total(effect),
                Replaced => NamedEffect::Replaced(effect),
                Repaired => NamedEffect::Repaired(effect),
                Forced => NamedEffect::Forced(effect),
                Blocked | Carried | Control => NamedEffect::Effect(effect),
            },
        };
        Some(match kind {
            Blocked => CauseLine::Blocked(row),
            Control => CauseLine::Control(row),
            Removed => CauseLine::Total(row),
            Replaced => CauseLine::Replaced(row),
            Repaired => CauseLine::Repaired(row),
            Forced => CauseLine::Forced(row),
            Carried => CauseLine::Carrier(row),
        })
    }

    fn contrast_row(
        &self,
        store: &AttentionStore,
        metric: &Metric,
        row: EffectRow,
    ) -> Option<ContrastCauseRow> {
        let changed = row.pair()?;
        Some(ContrastCauseRow {
            answer: AnswerKey::of_store(store).owned(),
            span: self.span.clone(),
            role: self.role.clone(),
            stretch: self.stretch,
            tokens: ends(&self.tokens),
            carrier: self.carrier.as_ref().map(|(carrier, _)| carrier.clone()),
            neutral: self.neutral(),
            rows: self.rows,
            layers: self.layers.as_ref().map(ends),
            seed: self.seed,
            ablation: self.kind,
            contrast: metric.value(),
            drop: metric.lost(&row),
            direct: (self.kind == AblationKind::Carried).then_some(self.direct),
            current: changed.current,
            stale: changed.against,
        })
    }
}

/// Key and drop of a row; for carriers the drop beyond the direct path's.
fn of_line(line: &CauseLine) -> Option<(AblationKey, f64)> {
    let (kind, row) = match line {
        CauseLine::Blocked(row) => (AblationKind::Blocked, row),
        CauseLine::Control(row) => (AblationKind::Control, row),
        CauseLine::Total(row) => (AblationKind::Removed, row),
        CauseLine::Replaced(row) => (AblationKind::Replaced, row),
        CauseLine::Repaired(row) => (AblationKind::Repaired, row),
        CauseLine::Forced(row) => (AblationKind::Forced, row),
        CauseLine::Carrier(row) => (AblationKind::Carried, row),
        CauseLine::Subset(_) | CauseLine::Surrogate(_) | CauseLine::Thought(_) => return None,
    };
    let other = row.carrier.clone().or_else(|| in_place(row.neutral.as_ref(), row.rows));
    let key = (row.answer.clone(), kind, row.tokens, row.layers, row.seed.unwrap_or_default(), other);
    Some((key, row.effect.log_p_drop - row.direct.unwrap_or(0.0)))
}

enum File {
    Answers(RowLog<CauseLine>),
    Contrasts(RowLog<ContrastCauseRow>),
}

pub(super) struct CauseLog {
    file: File,
    there: BTreeMap<AblationKey, f64>,
    kinds: Vec<LayerKind>,
}

impl CauseLog {
    pub fn open(task: &Task<'_>) -> anyhow::Result<Self> {
        let dir = &task.folder.dir;
        let (file, there) = match task.of {
            Measure::LogP => {
                let log = open_log(dir)?;
                let there = log.rows.iter().filter_map(of_line).collect();
                (File::Answers(log), there)
            }
            Measure::Contrast => {
                let log: RowLog<ContrastCauseRow> = RowLog::open(dir, CONTRAST_CAUSES)?;
                let of = |row: &ContrastCauseRow| (row.key(), row.drop - row.direct.unwrap_or(0.0));
                let there = log.rows.iter().map(of).collect();
                (File::Contrasts(log), there)
            }
        };
        Ok(CauseLog { file, there, kinds: task.kinds.clone() })
    }

    /// Stored drop of an ablation; for carriers beyond the direct path's.
    pub fn drop(&self, store: &AttentionStore, ablation: &Ablation) -> Option<f64> {
        self.there.get(&ablation.key(store)).copied()
    }

    pub fn append(
        &mut self,
        store: &AttentionStore,
        ablation: &Ablation,
        metric: &Metric,
        row: EffectRow,
    ) -> anyhow::Result<()> {
        self.there.insert(ablation.key(store), metric.lost(&row) - ablation.direct);
        let wrong = || unusable(store, "this is a bug: a row of another metric than the log's");
        match &mut self.file {
            File::Answers(log) => {
                log.append(ablation.line(store, metric, row, &self.kinds).ok_or_else(wrong)?)?;
            }
            File::Contrasts(log) => {
                log.append(ablation.contrast_row(store, metric, row).ok_or_else(wrong)?)?;
            }
        }
        Ok(())
    }
}
