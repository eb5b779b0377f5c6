//! Readings of one answer over its case's KV cache: plain, with sessions blocked, with sessions removed.
//!
//! A reading is the contrast of the question's values, or else the log-probability of the model's own answer. Blocking recomputes from the
//! question on; removal recomputes from the first removed token. An answer flips if its contrast changes sign, or, without a contrast, if a
//! regenerated answer gets the other verdict ([`Anew`]).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_core::ablate::{History, Measure, Metric, Prompt, Target};
use palimpsest_core::attention::{AttentionStore, LayerHoles, LayerKind};
use palimpsest_core::engine::{
    Branch, EngineError, Generate, ModelText, Request, RequestError, Reuse, Sampling, Session, Task,
};

use palimpsest_data::benchmarks::QUERY;
use palimpsest_run::progress::{Status, Work};
use palimpsest_run::runs::why_rows::Plain;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Model(#[from] RequestError),
    #[error("the judge of a new answer: {0}")]
    Judge(anyhow::Error),
}

pub struct Anew<'a> {
    pub text: &'a ModelText,
    /// The run's greedy sampling: without a change, it reproduces the run's answer.
    pub sampling: Sampling,
    pub right: bool,
    pub judge: &'a mut dyn FnMut(&str) -> anyhow::Result<bool>,
}

/// Number after an intervention, and whether the answer flipped.
#[derive(Debug, Clone, PartialEq)]
pub struct Turned {
    pub value: f64,
    pub turned: bool,
    pub answer: Option<String>,
}

/// Prompt of an attention file with its case's shared prefix; `None` without a question span.
pub fn prompt<'a>(store: &'a AttentionStore, shared: usize, kinds: &'a [LayerKind]) -> Option<Prompt<'a>> {
    let question = store.keys.iter().find(|span| span.is(QUERY))?.start;
    Some(Prompt { tokens: &store.tokens, cut: shared.min(question), question, kinds })
}

pub struct Reader<'a> {
    session: &'a mut Session,
    prompt: Prompt<'a>,
    metric: Metric,
    anew: Option<Anew<'a>>,
    stop: &'a AtomicBool,
    status: &'a Status,
    pub readings: usize,
}

impl<'a> Reader<'a> {
    /// Reads a contrast, or the model's own answer, whose flips need `anew`.
    pub fn new(
        session: &'a mut Session,
        prompt: Prompt<'a>,
        (target, anew): (Target<'_>, Option<Anew<'a>>),
        (stop, status): (&'a AtomicBool, &'a Status),
    ) -> Result<Self, ReadError> {
        let (mut read, total) = (0, prompt.cut);
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.did(Work::History, tokens);
            status.prefill(read.min(total), total);
            !stop.load(Ordering::Relaxed)
        };
        let metric = Metric::read(session, &prompt.history(), target, &mut go_on)?;
        Ok(Reader { session, prompt, metric, anew, stop, status, readings: 1 })
    }

    pub fn plain(&self) -> Plain {
        Plain { measure: self.metric.measure(), value: self.metric.value() }
    }

    fn is_contrast(&self) -> bool {
        self.metric.measure() == Measure::Contrast
    }

    pub fn layers(&self) -> usize {
        self.prompt.kinds.len()
    }

    /// True if flips can be detected.
    pub fn can_turn(&self) -> bool {
        self.is_contrast() || self.anew.is_some()
    }

    /// True if the original answer reflects the current state: positive contrast, or a right verdict.
    pub fn holds_current(&self) -> bool {
        match &self.anew {
            Some(anew) => anew.right,
            None => self.metric.value() > 0.0,
        }
    }

    /// True if a contrast changed sign; always false for the model's own answer.
    pub fn flipped(&self, changed: f64) -> bool {
        self.is_contrast() && (self.metric.value() > 0.0) != (changed > 0.0)
    }

    /// One number per set of token ranges, blocked from the question on at all layers.
    pub fn blocked(&mut self, sets: &[Vec<Range<usize>>]) -> Result<Vec<f64>, ReadError> {
        let holes: Vec<LayerHoles> = sets.iter().map(|keys| self.prompt.hidden(keys, None)).collect();
        self.read(&self.prompt.history(), &holes)
    }

    /// Number with token ranges removed and all later tokens recomputed.
    pub fn removed(&mut self, keys: &[Range<usize>]) -> Result<f64, ReadError> {
        let history = self.without(keys);
        Ok(self.read(&history, &[LayerHoles::default()])?.first().copied().unwrap_or(f64::NAN))
    }

    pub fn turn_blocked(
        &mut self,
        keys: &[Range<usize>],
        layers: Option<&Range<usize>>,
    ) -> Result<Turned, ReadError> {
        self.turn(&self.prompt.history(), self.prompt.hidden(keys, layers))
    }

    pub fn turn_removed(&mut self, keys: &[Range<usize>]) -> Result<Turned, ReadError> {
        self.turn(&self.without(keys), LayerHoles::default())
    }

    /// The shared prefix without these ranges; removed sessions may lie after it.
    fn without(&self, keys: &[Range<usize>]) -> History<'a> {
        Prompt { cut: self.prompt.question, ..self.prompt }.without(keys)
    }

    fn turn(&mut self, history: &History<'_>, holes: LayerHoles) -> Result<Turned, ReadError> {
        let value = self.read(history, std::slice::from_ref(&holes))?.first().copied().unwrap_or(f64::NAN);
        let turned = self.flipped(value);
        let Some(anew) = &mut self.anew else { return Ok(Turned { value, turned, answer: None }) };
        let generate =
            Generate { thinker: anew.text.thinker(), ..Generate::new(anew.sampling, anew.text.stop.clone()) };
        let branch = Branch {
            tokens: history.rest.to_vec(),
            knockouts: holes,
            tasks: vec![Task::Generate(Box::new(generate))],
            ..Branch::default()
        };
        let request =
            Request { prefix: history.tokens.clone(), reuse: Reuse::Longest, branches: vec![branch] };
        let stop = self.stop;
        let measured = self.session.answer(request, &mut |_| !stop.load(Ordering::Relaxed))?;
        let (split, _) =
            anew.text.split(&measured.generated).map_err(|error| ReadError::Judge(error.into()))?;
        let answer = split.answer.unwrap_or_default();
        // An answer that ended during reasoning is empty, and wrong.
        let right = !answer.is_empty() && (anew.judge)(&answer).map_err(ReadError::Judge)?;
        Ok(Turned { value, turned: right != anew.right, answer: Some(answer) })
    }

    fn read(&mut self, history: &History<'_>, holes: &[LayerHoles]) -> Result<Vec<f64>, ReadError> {
        let stop = self.stop;
        let mut go_on = |_: usize| !stop.load(Ordering::Relaxed);
        let mut found = Vec::with_capacity(holes.len());
        let metric = &self.metric;
        metric.effects(self.session, history, holes, &mut go_on, &mut |_, row| {
            found.push(metric.value() - metric.lost(&row));
            !stop.load(Ordering::Relaxed)
        })?;
        self.readings += found.len();
        let own = history.rest.len() + self.metric.answer_tokens() + self.metric.thought_tokens();
        self.status.did(Work::Answer, own * found.len());
        self.status.doing(|| format!("forward pass {}", self.readings));
        // A stop between two readings ends the request without an error.
        match found.len() == holes.len() {
            true => Ok(found),
            false => Err(RequestError::from(EngineError::Interrupted).into()),
        }
    }
}
