//! Reads [`Causes`] from the rows and files of a run.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{Measured, layer_of};
use super::windowed::{self, WindowedAnswer};
use super::{CausedAnswer, CausedSession, Causes, Intervention, Predictor, Residues};
use crate::heads::file::{HeadWeights, HeadsFileError, Score};
use crate::lens::{ByHeads, Layer, LensError, Study};
use palimpsest_core::ablate::Measure;
use palimpsest_data::ground::folder::is_file;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::rows::{CauseRow, CauseRows, SurrogateRow};
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest_run::runs::rows::AnswerKey;

/// Smaller weights, in logits, are rounding noise around 0: such sessions are tied.
const ROUNDED: f64 = 1e-9;

/// By answer: each intervention's number per span. Of a surrogate, the seed of the last row counts.
fn interventions(
    [removed, forced]: [Vec<CauseRow>; 2],
    surrogates: Vec<SurrogateRow>,
) -> BTreeMap<AnswerKey, BTreeMap<Intervention, BTreeMap<String, f64>>> {
    let mut found: BTreeMap<AnswerKey, BTreeMap<Intervention, BTreeMap<String, f64>>> = BTreeMap::new();
    for (kind, rows) in [(Intervention::Total, removed), (Intervention::Forced, forced)] {
        for row in rows {
            let effects = found.entry(row.answer).or_default().entry(kind).or_default();
            effects.insert(row.span, row.effect.log_p_drop + 0.0);
        }
    }
    let kind =
        |row: &SurrogateRow| Intervention::ContextCite { ablation: row.ablation, subsets: row.subsets };
    let seeds: BTreeMap<Intervention, u64> = surrogates.iter().map(|row| (kind(row), row.seed)).collect();
    for row in surrogates {
        let kind = kind(&row);
        if seeds.get(&kind) == Some(&row.seed) {
            let tidy = |weight: f64| if weight.abs() < ROUNDED { 0.0 } else { weight };
            let weights = row.weights.into_iter().map(|weight| (weight.span, tidy(weight.weight)));
            found.entry(row.answer).or_default().insert(kind, weights.collect());
        }
    }
    found
}

impl Causes {
    /// Returns `None` if no causes were measured under the study's conditions.
    pub fn open(study: &Study) -> Result<Option<Self>, LensError> {
        let Some(first) = study.conditions.first() else { return Ok(None) };
        let dir = first.run.path();
        let CauseRows { blocked: mut rows, controls, removed, forced, surrogates, .. } =
            CauseRows::read(dir)?;
        let seed = rows.last().and_then(|row| row.seed);
        rows.retain(|row| {
            row.seed == seed && study.conditions.iter().any(|c| c.name == row.answer.condition)
        });
        let pools = Pools::new(&controls);
        let (windowed, whole): (Vec<CauseRow>, Vec<CauseRow>) =
            rows.into_iter().partition(|row| row.layers.is_some());
        let mut by_answer: BTreeMap<AnswerKey, Vec<CauseRow>> = BTreeMap::new();
        for row in whole {
            by_answer.entry(row.answer.clone()).or_default().push(row);
        }
        let (windows, windowed) = windowed::answers(windowed, &pools);
        let weighted = weighted(study)?;
        let interventions = interventions([removed, forced], surrogates);
        let judged: BTreeMap<&String, _> =
            study.conditions.iter().filter_map(|known| Some((&known.name, known.verdicts()?))).collect();
        let mut answers = Vec::new();
        let mut indices: BTreeSet<usize> = BTreeSet::new();
        for (answer, rows) in by_answer {
            let name = measures_file(Measure::LogP, answer.by_ref());
            if !is_file(dir, &name) {
                continue;
            }
            let measures = SessionMeasures::open(dir, &name)?;
            indices.extend(&measures.layers);
            let verdict = judged.get(&answer.condition).and_then(|known| known.get(answer.by_ref()));
            let correct = verdict.filter(|_| study.no_result.is_none()).and_then(|row| row.correct);
            if let (Some(by), Some((_, weights))) = (&study.options().heads, weighted.first()) {
                by.check(weights, &dir.join(&name), (&measures.layers, measures.mass.dim().1))?;
            }
            let measured = Measured { measures: &measures, weighted: &weighted, layers: study.layers() };
            let of_pool = controls.iter().filter(|row| row.layers.is_none() && row.seed == seed);
            let stretches = of_pool.filter(|row| row.answer == answer).count();
            let effects = interventions.get(&answer);
            let Some(mut answer) = CausedAnswer::new(answer, correct, (&rows, &pools), measured) else {
                continue;
            };
            answer.stretches = stretches;
            for (kind, effects) in effects.into_iter().flatten() {
                let of = |session: &CausedSession| effects.get(&session.span).copied();
                // Partial results, as of a stopped run, cannot be ranked.
                if let Some(values) = answer.sessions.iter().map(of).collect() {
                    answer.overall.insert(Predictor::Intervention(*kind), values);
                }
            }
            answers.push(answer);
        }
        let mut residues = Residues::of_answers(dir)?;
        residues.sessions.retain(|one| study.conditions.iter().any(|known| known.name == one.condition));
        let is_left = residues.is_measured() || !residues.repairs().is_empty();
        if answers.is_empty() && windowed.is_empty() && !is_left {
            return Ok(None);
        }
        indices.extend(windowed.iter().flat_map(WindowedAnswer::layers));
        let layers = indices.iter().map(|index| layer_of(study.layers(), *index));
        let layers: Vec<Layer> = layers.filter(|layer| !layer.is_linear()).collect();
        let options = study.options();
        let mut causes = Causes {
            unit: study.benchmark.unit,
            layers,
            roles: roles(&answers, &windowed, study.benchmark.lens.anchors),
            answers,
            penalties: Vec::new(),
            windows,
            windowed,
            residues,
            seed: options.halves_seed,
        };
        causes.fit();
        Ok(Some(causes))
    }
}

/// Session roles; anchors come last, in their order.
fn roles(answers: &[CausedAnswer], windowed: &[WindowedAnswer], anchors: &[&str]) -> Vec<String> {
    let whole = answers.iter().flat_map(|answer| &answer.sessions).filter_map(|one| one.role.as_ref());
    let others = windowed.iter().flat_map(|answer| &answer.sessions).filter_map(|one| one.role.as_ref());
    let mut roles = unique(whole.chain(others).cloned());
    roles.sort_by_key(|role| anchors.iter().position(|anchor| anchor == role));
    roles
}

/// Head weights of the study's score file, for each score with a non-zero head.
fn weighted(study: &Study) -> Result<Vec<(Predictor, HeadWeights)>, LensError> {
    let (Some(by), Some(first)) = (&study.options().heads, study.conditions.first()) else {
        return Ok(Vec::new());
    };
    let scores = [(Predictor::RetrievalHeads, Score::Retrieval), (Predictor::QrHeads, Score::Qr)];
    let mut found = Vec::new();
    for (predictor, score) in scores {
        match (ByHeads { path: by.path.clone(), score }).of(&first.run) {
            Ok(weights) => found.push((predictor, weights)),
            Err(LensError::Heads(HeadsFileError::NoRetrieval { .. } | HeadsFileError::NoWeight { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
