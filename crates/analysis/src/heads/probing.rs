//! Runs all needles of a probing set and averages their scores.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{anyhow, ensure};
use ndarray::Array2;

use super::file::{FORMAT, HeadScores, NeedleRow};
use super::plant::{self, Needle, Planter};
use super::score::{Answering, NeedleScores, read};
use palimpsest_core::attention::LayerKind;
use palimpsest_core::engine::{EngineError, LocalModel, RequestError};
use palimpsest_data::prompt::{PromptBuilder, Templates};
use palimpsest_run::progress::{Steps, grouped, note};

/// A needle's forward passes: the null question, the question, and the question with the answer given.
const PASSES: usize = 3;

/// A needle counts as answered above this recall (Wu et al.).
pub const ANSWERED: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbingOptions {
    pub context: usize,
    pub max_new_tokens: usize,
    pub seed: u64,
}

/// Returns `None` if `stop` was set before the end.
pub fn probe(
    (model, digest): (&mut LocalModel, &str),
    needles: &[Needle],
    options: ProbingOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> anyhow::Result<Option<HeadScores>> {
    let ProbingOptions { context, max_new_tokens, seed } = options;
    let kinds = model.engine().decoder().spec().layer_kinds();
    let linear_layers: Vec<usize> =
        (0..kinds.len()).filter(|&layer| kinds[layer] == LayerKind::Linear).collect();
    ensure!(
        linear_layers.len() < kinds.len(),
        "all {} layers of {} are linear-attention layers, which keep no weights of single keys: no head of it has a retrieval score; give \
         a model with softmax attention",
        kinds.len(),
        model.model_name()
    );
    let budget = context.saturating_sub(max_new_tokens);
    ensure!(
        budget > 0,
        "a context of {context} tokens leaves none for a prompt beside {max_new_tokens} of an answer; raise --context"
    );
    let sample = plant::sample(budget, seed)?;
    let templates = Templates::load(sample.benchmark(), None)?;
    let builder = PromptBuilder::new(templates, model.template().clone());
    let tokenizer = std::sync::Arc::clone(model.tokenizer());
    let planter = Planter::new((&builder, &tokenizer), &sample, (budget, seed))?;
    if show_progress {
        let count = needles.len();
        let [prompts, answers] = [budget, max_new_tokens].map(|tokens| grouped((count * tokens) as u64));
        note(format_args!(
            "{count} needles: {} forward passes, up to {prompts} tokens of prompts and {answers} of answers; the first needle tells the \
             time left",
            PASSES * count
        ));
    }
    let mut steps = Steps::new("needles", needles.len(), show_progress).brief(true);
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for (nth, needle) in needles.iter().enumerate() {
        let site = planter.plant(needle, nth, needles.len())?;
        let name = format!("needle {}", nth + 1);
        let status = steps.status();
        status.begin(&name, "prefill");
        let (length, mut done) = (site.planted.tokens.len(), 0);
        let mut go_on = |tokens: usize| {
            done += tokens;
            status.prefill(done.min(length), length);
            !stop.load(Ordering::Relaxed)
        };
        let (session, text) = model.parts();
        let answering = Answering { max_new_tokens, stop: &text.stop };
        let scores = match read(session, &site.planted, answering, &mut go_on) {
            Err(RequestError::Engine(EngineError::Interrupted)) => return Ok(None),
            other => other.map_err(|error| anyhow!("needle {nth}: {error}"))?,
        };
        // A stopped decode returns no error.
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        rows.push(NeedleRow {
            sentence: needle.sentence.clone(),
            case: site.case,
            session: site.session,
            prompt_tokens: length,
            depth: site.planted.answer.start as f64 / length.max(1) as f64,
            answer: tokenizer.decode(&scores.generated, true)?.trim().to_owned(),
            recall: scores.recall,
        });
        all.push(scores);
        steps.step(&name, None);
    }
    let answered: Vec<&NeedleScores> = all.iter().filter(|scores| scores.recall > ANSWERED).collect();
    let retrieval = mean(answered.iter().map(|scores| &scores.copied));
    let qr = mean(all.iter().map(|scores| &scores.qr)).unwrap_or_default();
    Ok(Some(HeadScores {
        format: FORMAT.to_owned(),
        model: model.model_name().to_owned(),
        digest: digest.to_owned(),
        dtype: model.engine().decoder().formats().to_string(),
        context,
        seed,
        max_new_tokens,
        layers: all.last().map(|scores| scores.layers.clone()).unwrap_or_default(),
        linear_layers,
        heads: qr.ncols(),
        answered: answered.len(),
        retrieval: retrieval.as_ref().map(rows_of),
        qr: rows_of(&qr),
        needles: rows,
    }))
}

fn mean<'a>(maps: impl ExactSizeIterator<Item = &'a Array2<f64>>) -> Option<Array2<f64>> {
    let count = maps.len() as f64;
    maps.cloned().reduce(|sum, map| sum + map).map(|sum| sum / count)
}

fn rows_of(scores: &Array2<f64>) -> Vec<Vec<f64>> {
    scores.rows().into_iter().map(|row| row.to_vec()).collect()
}
