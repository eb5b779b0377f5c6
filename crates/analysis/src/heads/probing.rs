//! Runs all needles of a probing set and averages their scores.

use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::Array2;

use super::file::{FORMAT, HeadScores, NeedleRow};
use super::plant::{self, Needle, PlantError, Planter};
use super::score::{Answering, NeedleScores, read};
use palimpsest_core::attention::LayerKind;
use palimpsest_core::engine::{EngineError, LocalError, LocalModel, RequestError};
use palimpsest_core::text::TextError;
use palimpsest_data::benchmarks::dataset::DatasetError;
use palimpsest_data::prompt::{PromptBuilder, PromptError, Templates};
use palimpsest_run::progress::Steps;

/// A needle counts as answered above this recall (Wu et al.).
pub const ANSWERED: f64 = 0.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbingOptions {
    pub context: usize,
    pub max_new_tokens: usize,
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ProbingError {
    #[error(
        "all {layers} layers of {model} are linear-attention layers, which keep no weights of single keys: no head of it has a \
         retrieval score; give a model with softmax attention"
    )]
    AllLinear { model: String, layers: usize },
    #[error(
        "a context of {context} tokens leaves none for a prompt beside {max_new_tokens} of an answer; raise --context"
    )]
    NoRoom { context: usize, max_new_tokens: usize },
    #[error(transparent)]
    Sample(#[from] DatasetError),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Plant(#[from] PlantError),
    #[error(transparent)]
    Model(#[from] LocalError),
    #[error("needle {needle}: {source}")]
    Score { needle: usize, source: RequestError },
}

#[derive(Default)]
struct Sums {
    layers: Vec<usize>,
    qr: Option<Array2<f64>>,
    copied: Option<Array2<f64>>,
    answered: usize,
}

impl Sums {
    fn add(&mut self, scores: NeedleScores) {
        let NeedleScores { layers, recall, copied, qr, .. } = scores;
        self.layers = layers;
        self.qr = Some(self.qr.take().map_or(qr.clone(), |sum| sum + qr));
        if recall > ANSWERED {
            self.answered += 1;
            self.copied = Some(self.copied.take().map_or(copied.clone(), |sum| sum + copied));
        }
    }
}

/// Returns `None` if `stop` was set before the end.
pub fn probe(
    (model, digest): (&mut LocalModel, &str),
    needles: &[Needle],
    options: ProbingOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Option<HeadScores>, ProbingError> {
    let ProbingOptions { context, max_new_tokens, seed } = options;
    let kinds = model.engine().decoder().spec().layer_kinds();
    let linear_layers: Vec<usize> =
        (0..kinds.len()).filter(|&layer| kinds[layer] == LayerKind::Linear).collect();
    if linear_layers.len() == kinds.len() {
        let (model, layers) = (model.model_name().to_owned(), kinds.len());
        return Err(ProbingError::AllLinear { model, layers });
    }
    let budget = context.checked_sub(max_new_tokens).filter(|&budget| budget > 0);
    let budget = budget.ok_or(ProbingError::NoRoom { context, max_new_tokens })?;
    let sample = plant::sample(budget, seed)?;
    let templates = Templates::load(sample.benchmark(), None)?;
    let builder = PromptBuilder::new(templates, model.template().clone());
    let tokenizer = std::sync::Arc::clone(model.tokenizer());
    let planter = Planter::new((&builder, &tokenizer), &sample, (budget, seed))?;
    let mut steps = Steps::new("needles", needles.len(), show_progress);
    let (mut sums, mut rows) = (Sums::default(), Vec::new());
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
            other => other.map_err(|source| ProbingError::Score { needle: nth, source })?,
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
        sums.add(scores);
        steps.step(&name, None);
    }
    let answered = sums.answered;
    let retrieval = sums.copied.map(|sum| rows_of(&(sum / answered as f64)));
    let qr = sums.qr.map(|sum| sum / needles.len().max(1) as f64).unwrap_or_default();
    Ok(Some(HeadScores {
        format: FORMAT.to_owned(),
        model: model.model_name().to_owned(),
        digest: digest.to_owned(),
        dtype: model.engine().decoder().formats().to_string(),
        context,
        seed,
        max_new_tokens,
        layers: sums.layers,
        linear_layers,
        heads: qr.ncols(),
        answered,
        retrieval,
        qr: rows_of(&qr),
        needles: rows,
    }))
}

fn rows_of(scores: &Array2<f64>) -> Vec<Vec<f64>> {
    scores.rows().into_iter().map(|row| row.to_vec()).collect()
}
