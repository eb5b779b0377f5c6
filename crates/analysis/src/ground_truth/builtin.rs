//! Scores that a run folder holds already: measures of one forward pass, routes through thoughts, learnt readings, ContextCite's weights,
//! another model's effects.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::exact::{Effects, Folder, Source, read};
use super::scores::Scored;
use crate::heads::file::{HeadScores, HeadWeights, HeadsFileError, Score};
use crate::lens::causes::answer::Measured;
use crate::lens::causes::{CausedAnswer, Causes, Intervention, Predictor};
use palimpsest_data::ground::folder::is_file;
use palimpsest_data::ground::jsonl::read_rows;
use palimpsest_run::runs::causes::control_pool::Pools;
use palimpsest_run::runs::causes::flash_trace::{FLASH_TRACE, PASSES};
use palimpsest_run::runs::causes::rows::SurrogateRow;
use palimpsest_run::runs::causes::session_measures::{SessionMeasures, measures_file};
use palimpsest_run::runs::causes::two_hop::{ScoreRow, THOUGHT_SCORES};
use palimpsest_run::runs::rows::AnswerKey;

/// One forward pass over question and answer gives every measure of attention.
const MEASURED: Option<f64> = Some(1.0);

/// Measures of a run's answers, with predictions of the ridge regression fitted on the other half. Remarks say what was fitted.
pub(super) struct OfRun {
    causes: Causes,
    pub scored: Vec<Scored>,
    pub remarks: Vec<String>,
}

impl OfRun {
    pub fn of(source: &Source, effects: Effects, heads: &[PathBuf], seed: u64) -> anyhow::Result<Self> {
        let Some(folder) = &source.folder else {
            return Ok(OfRun { causes: Causes::default(), scored: Vec::new(), remarks: Vec::new() });
        };
        let weighted = weighted(folder, heads)?;
        let mut answers = Vec::new();
        for answer in &source.answers {
            answers.extend(caused(folder, &answer.key, effects, &weighted)?);
        }
        let causes = Causes::fitted(answers, folder.unit, seed);
        let mut scored: Vec<Scored> = causes.answers.iter().flat_map(measures).collect();
        if effects != Effects::Contrast {
            scored.extend(recorded(folder, source)?);
            scored.extend(surrogates(&folder.surrogates));
        }
        let run = &source.run;
        let remarks = match causes.penalties[..] {
            [one, other] => vec![format!(
                "{run}, ridge: fitted to the exact effects of one half of its cases, tested on the other half, both ways (halves by seed \
                 {seed}, penalties {one} and {other} by cross-validation within the half); it takes exact effects of other answers"
            )],
            _ => vec![format!("{run}, ridge: too few cases to fit on one half and test on the other")],
        };
        Ok(OfRun { causes, scored, remarks })
    }

    /// Readings learnt from this run, applied to `target`'s answers.
    pub fn taught(&self, own: &Source, target: &OfRun, to: &Source) -> anyhow::Result<(Vec<Scored>, String)> {
        let shapes = |of: &OfRun| of.causes.answers.first().map(CausedAnswer::shape);
        let (Some(from), Some(wanted)) = (shapes(self), shapes(target)) else {
            bail!("{} or {} has no measures to learn from; run palimpsest causes on both", own.run, to.run)
        };
        ensure!(
            from == wanted,
            "readings of {} have {} layers of {} heads, those of {} {} of {}: weights of heads cannot be carried over",
            own.run,
            from.0,
            from.1,
            to.run,
            wanted.0,
            wanted.1
        );
        let found = self.causes.predict(&target.causes.answers);
        let (penalty, found) = found
            .with_context(|| format!("{} has too few cases with exact effects to learn from", own.run))?;
        let method = format!("ridge from {}", own.run);
        let of_answer = |(at, values): (usize, Vec<f64>)| Scored {
            method: method.clone(),
            readings: MEASURED,
            ..scored(&target.causes.answers[at], &values)
        };
        let scores = found.into_iter().map(of_answer).collect();
        let digests = |source: &Source| source.folder.as_ref().map(|folder| folder.data.clone());
        let same = match digests(own) == digests(to) {
            true => "; both runs are over the same data, so the cases it is tested on were trained on too",
            false => "",
        };
        let said = format!(
            "{}, {method}: fitted to the exact effects of {} answers of {} over {} (penalty {penalty}), tested on {} over {}{same}",
            to.run,
            self.causes.answers.len(),
            own.model,
            own.data,
            to.model,
            to.data
        );
        Ok((scores, said))
    }
}

fn caused(
    folder: &Folder,
    key: &AnswerKey,
    effects: Effects,
    weighted: &[(Predictor, HeadWeights)],
) -> anyhow::Result<Option<CausedAnswer>> {
    let name = measures_file(effects.measure(), key.by_ref());
    let Some(rows) = folder.rows.get(key).filter(|_| is_file(&folder.dir, &name)) else { return Ok(None) };
    let measures = SessionMeasures::open(&folder.dir, &name)?;
    let heads = measures.mass.dim().1;
    for (_, weights) in weighted {
        ensure!(
            weights.layers == measures.layers && weights.weights.ncols() == heads,
            "head scores are of {} heads at layers {:?}, and {} has {heads} at layers {:?}; make them anew with `palimpsest heads`",
            weights.weights.ncols(),
            weights.layers,
            folder.dir.join(&name).display(),
            measures.layers
        );
    }
    let measured = Measured { measures: &measures, weighted, layers: &folder.layers };
    Ok(CausedAnswer::new(key.clone(), None, (rows, &Pools::default()), measured))
}

/// Scores of the one file that is of the run's model, if any.
fn weighted(folder: &Folder, files: &[PathBuf]) -> anyhow::Result<Vec<(Predictor, HeadWeights)>> {
    let mut found = Vec::new();
    for path in files {
        let scores = HeadScores::load(path)?;
        if scores.digest != folder.model {
            continue;
        }
        for (predictor, score) in
            [(Predictor::RetrievalHeads, Score::Retrieval), (Predictor::QrHeads, Score::Qr)]
        {
            match scores.weights(score, path) {
                Ok(weights) => found.push((predictor, weights)),
                Err(HeadsFileError::NoRetrieval { .. } | HeadsFileError::NoWeight { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    ensure!(
        files.is_empty() || !found.is_empty(),
        "no file of --heads has scores of the model of {}; make one: palimpsest heads MODEL",
        folder.dir.display()
    );
    Ok(found)
}

fn scored(answer: &CausedAnswer, values: &[f64]) -> Scored {
    let key = AnswerKey::of(&answer.case, &answer.probe, &answer.condition).owned();
    let spans = answer.sessions.iter().map(|session| session.span.clone());
    Scored { key, scores: spans.zip(values.iter().copied()).collect(), ..Scored::default() }
}

fn measures(answer: &CausedAnswer) -> Vec<Scored> {
    let of = |(predictor, values): (&Predictor, &Vec<f64>)| Scored {
        method: predictor.key(),
        readings: MEASURED,
        ..scored(answer, values)
    };
    answer.overall.iter().map(of).collect()
}

/// Scores by way of thoughts: FlashTrace, and attention in one and two hops.
fn recorded(folder: &Folder, source: &Source) -> anyhow::Result<Vec<Scored>> {
    let rows = read_rows::<ScoreRow>(&folder.dir, THOUGHT_SCORES)?.into_iter();
    let has_effects = |row: &ScoreRow| source.answers.iter().any(|answer| answer.key == row.answer);
    let of = |ScoreRow { answer, method, scores }: ScoreRow| {
        let readings = if method == FLASH_TRACE { Some(PASSES as f64) } else { MEASURED };
        Scored { method, key: answer, readings, scores, fitted: None }
    };
    Ok(rows.filter(|row| !row.scores.is_empty() && has_effects(row)).map(of).collect())
}

/// ContextCite's weights; of several seeds of one number of subsets, those fitted last.
fn surrogates(rows: &[SurrogateRow]) -> Vec<Scored> {
    let mut found: Vec<Scored> = Vec::new();
    for row in rows.iter().rev() {
        let SurrogateRow { ablation, subsets, .. } = *row;
        let method = Predictor::Intervention(Intervention::ContextCite { ablation, subsets }).key();
        if found.iter().any(|scored| scored.method == method && scored.key == row.answer) {
            continue;
        }
        found.push(Scored {
            method,
            key: row.answer.clone(),
            readings: Some(subsets as f64),
            scores: row.weights.iter().map(|weight| (weight.span.clone(), weight.weight + 0.0)).collect(),
            fitted: Some((ablation, row.seed, subsets)),
        });
    }
    found
}

/// Effects on another run's own answers to the same questions, as scores.
pub(super) fn proxy(path: &Path, source: &Source, effects: Effects) -> anyhow::Result<(Vec<Scored>, String)> {
    let mut others = read(path, effects)?;
    let other = others.remove(0);
    ensure!(others.is_empty(), "{} holds several runs; give one as --proxy", path.display());
    let digests = |source: &Source| source.folder.as_ref().map(|folder| folder.data.clone());
    if let (Some(own), Some(of)) = (digests(source), digests(&other)) {
        ensure!(own == of, "{} and {} are not over the same data", source.run, other.run);
    }
    let method = format!("proxy {}", other.run);
    let of_answer = |answer: &super::ExactAnswer| Scored {
        method: method.clone(),
        key: answer.key.clone(),
        readings: Some((answer.sessions.len() + 1) as f64),
        scores: answer.sessions.iter().map(|session| (session.span.clone(), session.effect)).collect(),
        fitted: None,
    };
    let said = format!(
        "{}, {method}: effects of {} on its own answers; its readings are of that model. AttriBoT's proxy scores the answers of {} \
         instead",
        source.run, other.model, source.model
    );
    Ok((other.answers.iter().map(of_answer).collect(), said))
}
