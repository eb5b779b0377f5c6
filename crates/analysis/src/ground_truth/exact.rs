//! Exact effects of sessions: read from a run folder, or from a file of them (`effects.jsonl`, as `--out` writes it).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::metrics::decisive;
use crate::lens::{ByLayer, Layer};
use palimpsest_core::ablate::Measure;
use palimpsest_data::benchmarks::Unit;
use palimpsest_data::ground::text_file;
use palimpsest_run::runs::causes::context_cite::logit;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::rows::{Ablation, CauseRow, CauseRows, Effect, NamedEffect, SurrogateRow};
use palimpsest_run::runs::causes::session_measures::sessions;
use palimpsest_run::runs::plan::attention_file;
use palimpsest_run::runs::rows::AnswerKey;
use palimpsest_run::runs::store::{RunFolder, read_attention};

/// The ablation of a session, and the number that it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    /// Hidden from the question on; the answer's log-probability.
    #[default]
    Hidden,
    /// Removed, and the rest computed again; the answer's log-probability.
    Removed,
    /// Hidden from the question on; the contrast of the values.
    Contrast,
}

impl Effects {
    pub fn in_words(self) -> &'static str {
        match self {
            Effects::Hidden => "nats per answer token lost when the session is hidden from the question on",
            Effects::Removed => "nats per answer token lost when the session is removed",
            Effects::Contrast => "nats of contrast lost when the session is hidden from the question on",
        }
    }

    pub(super) fn measure(self) -> Measure {
        if self == Effects::Contrast { Measure::Contrast } else { Measure::LogP }
    }

    /// Options of `palimpsest causes` that measure it.
    fn option(self) -> &'static str {
        match self {
            Effects::Hidden => "",
            Effects::Removed => " --total",
            Effects::Contrast => " --contrast",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExactSession {
    pub span: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Half-open range in the prompt.
    pub tokens: [usize; 2],
    pub effect: f64,
    /// Effect of random text of its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<f64>,
}

/// The answer's logit with a random subset of the sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subset {
    pub ablation: Ablation,
    pub seed: u64,
    pub subset: usize,
    pub sessions: Vec<String>,
    pub logit: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExactAnswer {
    #[serde(flatten)]
    pub key: AnswerKey,
    /// The unit of intervals: the case, or a question of it.
    pub unit: String,
    pub sessions: Vec<ExactSession>,
    /// Of one ablation: hidden where measured, else removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subsets: Vec<Subset>,
}

impl ExactAnswer {
    pub fn effects(&self) -> Vec<f64> {
        self.sessions.iter().map(|session| session.effect).collect()
    }

    pub fn decisive(&self) -> Option<usize> {
        let controls: Vec<Option<f64>> = self.sessions.iter().map(|session| session.control).collect();
        decisive(&self.effects(), &controls)
    }

    /// End of the last session: about the length of the history.
    pub fn end(&self) -> usize {
        self.sessions.iter().map(|session| session.tokens[1]).max().unwrap_or(0)
    }
}

/// A line of `effects.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EffectsLine {
    pub run: String,
    pub model: String,
    pub data: String,
    pub effects: Effects,
    #[serde(flatten)]
    pub answer: ExactAnswer,
}

/// Exact effects of a run, and what built-in scores are computed from.
#[derive(Debug, Clone, Default)]
pub(super) struct Source {
    pub run: String,
    pub model: String,
    pub data: String,
    pub answers: Vec<ExactAnswer>,
    /// Answers whose sessions are not all measured.
    pub partial: usize,
    pub folder: Option<Folder>,
}

#[derive(Debug, Clone)]
pub(super) struct Folder {
    pub dir: PathBuf,
    /// SHA-256 of the data and of the model.
    pub data: String,
    pub model: String,
    pub unit: Unit,
    pub layers: Vec<Layer>,
    pub rows: BTreeMap<AnswerKey, Vec<CauseRow>>,
    pub surrogates: Vec<SurrogateRow>,
}

/// One source from a run folder, or one for each run in a file.
pub(super) fn read(path: &Path, effects: Effects) -> anyhow::Result<Vec<Source>> {
    if path.is_dir() { Ok(vec![of_folder(path, effects)?]) } else { of_file(path, effects) }
}

fn of_file(path: &Path, effects: Effects) -> anyhow::Result<Vec<Source>> {
    let text = text_file::read(path).with_context(|| path.display().to_string())?;
    let mut sources: Vec<Source> = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{} line {}", path.display(), number + 1);
        let EffectsLine { run, model, data, effects: own, answer } =
            serde_json::from_str(line).with_context(place)?;
        if own != effects {
            continue;
        }
        let mut spans = BTreeSet::new();
        if let Some(session) = answer.sessions.iter().find(|session| !spans.insert(&session.span)) {
            bail!("{}: {} is there twice", place(), session.span);
        }
        ensure!(seen.insert((run.clone(), answer.key.clone())), "{}: this answer was there before", place());
        match sources.iter_mut().find(|source| source.run == run) {
            Some(source) => source.answers.push(answer),
            None => sources.push(Source { run, model, data, answers: vec![answer], ..Source::default() }),
        }
    }
    ensure!(!sources.is_empty(), "{} has no effects that are {}", path.display(), effects.in_words());
    Ok(sources)
}

/// Sessions' and controls' rows, each session at all layers.
fn rows(dir: &Path, effects: Effects) -> anyhow::Result<(Vec<CauseRow>, Vec<CauseRow>, CauseRows)> {
    let (mut own, controls, others) = match effects {
        Effects::Contrast => {
            let all = read_contrast_causes(dir)?;
            let of = |kind: AblationKind| -> Vec<CauseRow> {
                all.iter().filter(|row| row.ablation == kind).map(caused).collect()
            };
            (of(AblationKind::Blocked), of(AblationKind::Control), CauseRows::default())
        }
        _ => {
            let mut all = CauseRows::read(dir)?;
            let removed = std::mem::take(&mut all.removed);
            let (blocked, controls) = (std::mem::take(&mut all.blocked), std::mem::take(&mut all.controls));
            if effects == Effects::Removed { (removed, Vec::new(), all) } else { (blocked, controls, all) }
        }
    };
    own.retain(|row| row.layers.is_none());
    // Of several pools of controls that of the last row, as in the figures.
    let seed = own.last().and_then(|row| row.seed);
    own.retain(|row| row.seed == seed);
    Ok((own, controls, others))
}

fn caused(row: &ContrastCauseRow) -> CauseRow {
    CauseRow {
        answer: row.answer.clone(),
        span: row.span.clone(),
        role: row.role.clone(),
        stretch: row.stretch,
        anywhere: false,
        tokens: row.tokens,
        carrier: None,
        carrier_tokens: None,
        neutral: None,
        layers: row.layers,
        seed: Some(row.seed),
        rows: None,
        softmax_only: false,
        layers_open: None,
        answer_tokens: 1,
        thought_tokens: 0,
        log_p: row.contrast,
        direct: None,
        effect: NamedEffect::Effect(Effect { log_p_drop: row.drop, ..Effect::default() }),
    }
}

fn of_folder(dir: &Path, effects: Effects) -> anyhow::Result<Source> {
    let folder = RunFolder::read(dir)?;
    let (own, controls, CauseRows { subsets, surrogates, .. }) = rows(dir, effects)?;
    let place = dir.display();
    ensure!(
        !own.is_empty(),
        "{place} has no exact effects to hold scores against; measure them: palimpsest causes {place}{}",
        effects.option()
    );
    let pools = Pools::new(&controls);
    let unit = folder.benchmark()?.unit;
    let identity = &folder.header.identity;
    let mut by_answer: BTreeMap<AnswerKey, Vec<CauseRow>> = BTreeMap::new();
    for row in own {
        by_answer.entry(row.answer.clone()).or_default().push(row);
    }
    let mut of_answers: BTreeMap<AnswerKey, Vec<Subset>> = BTreeMap::new();
    for row in subsets {
        let logit = logit(row.answer_log_p);
        let subset = Subset {
            ablation: row.ablation,
            seed: row.seed,
            subset: row.subset,
            sessions: row.sessions,
            logit,
        };
        of_answers.entry(row.answer).or_default().push(subset);
    }
    let (mut answers, mut layers, mut partial) = (Vec::new(), Vec::new(), 0);
    for (key, rows) in &by_answer {
        let name = attention_file(&key.case, &key.probe, &key.condition);
        let store = read_attention(dir, &name)?;
        if layers.is_empty() {
            layers = ByLayer::of(&dir.join(&name), &store, None)?.layers;
        }
        if sessions(&store).any(|span| !rows.iter().any(|row| row.span == span.label)) {
            partial += 1;
            continue;
        }
        let session = |row: &CauseRow| ExactSession {
            span: row.span.clone(),
            role: row.role.clone(),
            tokens: row.tokens,
            // Avoids -0.
            effect: row.effect.log_p_drop + 0.0,
            control: pools.control(row, |effect| effect.log_p_drop),
        };
        let mut subsets = of_answers.remove(key).unwrap_or_default();
        if subsets.iter().any(|subset| subset.ablation == Ablation::Blocked) {
            subsets.retain(|subset| subset.ablation == Ablation::Blocked);
        }
        let unit = match unit {
            Unit::Case => key.case.clone(),
            Unit::Probe => format!("{} {}", key.case, key.probe),
        };
        answers.push(ExactAnswer {
            key: key.clone(),
            unit,
            sessions: rows.iter().map(session).collect(),
            subsets,
        });
    }
    ensure!(
        !answers.is_empty(),
        "{place}: no answer has all its sessions measured; go on with palimpsest causes"
    );
    let name = dir.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Source {
        run: name.unwrap_or_default(),
        model: identity.model.name.clone(),
        data: identity.dataset.name.clone(),
        answers,
        partial,
        folder: Some(Folder {
            dir: dir.to_owned(),
            data: identity.dataset.digest.clone(),
            model: identity.model.digest.clone(),
            unit,
            layers,
            rows: by_answer,
            surrogates,
        }),
    })
}
