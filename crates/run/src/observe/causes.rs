//! Causal effects of a prompt's spans on an answer: each span is blocked, removed or replaced, and the answer rescored. Same measures as
//! `palimpsest causes`, for a user's prompt instead of a run's case.

use std::cell::RefCell;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use palimpsest_core::ablate::{Effect, History, Metric, Prompt, Said, Target, windows};
use palimpsest_core::attention::LayerHoles;
use palimpsest_core::engine::{Backend, DEFAULT_CHUNK, EngineError, LocalModel, RequestError, Session};
use palimpsest_core::span::Span;
use serde::Serialize;

use crate::runs::causes::context_cite::{drawn, fitted};
use crate::runs::causes::neutral;
use palimpsest_data::statistics::control::{STRETCHES, control_of, stretches_of_prompt};

const SUBSETS: usize = 32;

/// Seed label of the subsets.
const DRAWN_FOR: &str = "prompt";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Mask their keys from the question on.
    Block,
    /// Cut them from the prompt.
    Remove,
    /// Replace them with neutral text of equal length.
    Replace,
    /// Ablate random subsets and fit a sparse linear surrogate.
    ContextCite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controls {
    None,
    Evidence(usize),
    /// This many anywhere before the question; a span's controls do not overlap it.
    Anywhere(usize),
}

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "block" => Way::Block,
            "remove" => Way::Remove,
            "replace" => Way::Replace,
            "contextcite" => Way::ContextCite,
            other => bail!("how is `{other}`; give block, remove, replace or contextcite"),
        })
    }
}

impl FromStr for Controls {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "none" => Controls::None,
            "evidence" => Controls::Evidence(STRETCHES),
            "anywhere" => Controls::Anywhere(STRETCHES),
            other => match other.parse() {
                Ok(0) => Controls::None,
                Ok(count) => Controls::Evidence(count),
                Err(_) => {
                    bail!("controls is `{other}`; give evidence, anywhere, none or a number of stretches")
                }
            },
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanCauseOptions {
    pub way: Way,
    /// Block windows of this many layers one at a time; absent: all layers at once. [`Way::Block`] only.
    pub windows: Option<usize>,
    /// [`Way::Block`] only.
    pub controls: Controls,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpanEffect {
    /// Label; first token and one past the last.
    pub span: String,
    pub start: usize,
    pub end: usize,
    /// Blocked layers, half-open; absent: all.
    pub layers: Option<[usize; 2]>,
    /// Drop in log-probability, mean per token; for a surrogate, the span's weight in its logit.
    pub drop: f64,
    /// Divergences and change of the top token, as in [`Effect`]; absent for a surrogate.
    pub kl: Option<f64>,
    pub kl_answer: Option<f64>,
    pub changed: Option<bool>,
    /// Median drop of controls of about the span's length, in the same layers.
    pub control: Option<f64>,
}

impl SpanEffect {
    fn new(span: &Span, drop: f64, effect: Option<&Effect>) -> Self {
        SpanEffect {
            span: span.label.clone(),
            start: span.start,
            end: span.end,
            layers: None,
            drop,
            kl: effect.map(|effect| effect.kl),
            kl_answer: effect.map(|effect| effect.kl_answer),
            changed: effect.map(|effect| effect.changed),
            control: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpanCauses {
    pub effects: Vec<SpanEffect>,
    /// Natural-log probability of the answer, mean per token, without ablation.
    pub log_p: f64,
    /// Tokens of the answer without its thought.
    pub answer_tokens: usize,
    /// First masked row, where the question begins.
    pub from: usize,
    /// Variance explained by the surrogate.
    pub r2: Option<f64>,
    /// The surrogate's logit with all spans ablated.
    pub intercept: Option<f64>,
}

/// Measures how the answer in `said` depends on the key spans before the question. The question is the span with this label, otherwise it
/// begins where the last span ends. `go_on` is called with the tokens read, and with 0 after each ablated reading; it returns whether to
/// continue.
pub fn measure(
    model: &mut LocalModel,
    (tokens, keys, question): (&[u32], &[Span], &str),
    said: Said<'_>,
    options: SpanCauseOptions,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> anyhow::Result<SpanCauses> {
    ensure!(
        said.thought < said.tokens.len(),
        "the answer has no tokens behind its thought, so that nothing could be owed to a span; give another one"
    );
    let named = keys.iter().find(|span| span.label == question).map(|span| span.start);
    let from = named.or_else(|| keys.iter().map(|span| span.end).max()).unwrap_or(0);
    let spans: Vec<Span> = keys.iter().filter(|span| !span.is_empty() && span.end <= from).cloned().collect();
    ensure!(
        !spans.is_empty(),
        "the prompt has no span that ends before its question; name parts of the text that come before it"
    );
    ensure!(
        from < tokens.len(),
        "no token of the prompt is behind its spans; name the question `{question}`, or leave the last part without a name"
    );
    let neutral = if options.way == Way::Replace { Some(neutral(model.text())?) } else { None };
    let session = model.session();
    let kinds = session.layer_kinds();
    // The remainder is read in one pass with the answer.
    let cut = from.max(session.border(tokens.len().saturating_sub(DEFAULT_CHUNK)));
    let prompt = Prompt { tokens, cut, question: from, kinds: &kinds };
    let target = Target::Answer(said);
    let of_history = &mut |tokens| tokens == 0 || go_on(tokens);
    let metric =
        Metric::read(session, &prompt.history(), target, of_history).context("the answer as it was")?;
    let mut measured = SpanCauses {
        effects: Vec::new(),
        log_p: metric.value(),
        answer_tokens: metric.answer_tokens(),
        from,
        r2: None,
        intercept: None,
    };
    let mut reading = Reading { session, metric: &metric, go_on };
    match options.way {
        Way::Block => measured.effects = block(&mut reading, &prompt, &spans, options)?,
        Way::Remove | Way::Replace => {
            for span in spans {
                let history = match &neutral {
                    Some(neutral) => prompt.replaced(&[span.range()], neutral),
                    None => prompt.without(&[span.range()]),
                };
                let effect = reading.again(&history)?;
                measured.effects.push(SpanEffect::new(&span, effect.log_p_drop, Some(&effect)));
            }
        }
        Way::ContextCite => {
            let tokens = metric.answer_tokens() as f64;
            let (mut subsets, mut log_p) = (Vec::new(), Vec::new());
            for subset in 0..SUBSETS {
                let included = drawn(DRAWN_FOR, subset, options.seed, &spans);
                let out = spans.iter().zip(&included).filter(|(_, included)| !**included);
                let out: Vec<Range<usize>> = out.map(|(span, _)| span.range()).collect();
                let effect = reading.again(&prompt.without(&out))?;
                log_p.push((metric.value() - effect.log_p_drop) * tokens);
                subsets.push(included);
            }
            let (fit, r2) = fitted(subsets, &log_p, tokens);
            let weights = spans.iter().zip(fit.weights);
            measured.effects = weights.map(|(span, drop)| SpanEffect::new(span, drop, None)).collect();
            (measured.r2, measured.intercept) = (r2, Some(fit.intercept));
        }
    }
    Ok(measured)
}

struct Reading<'a> {
    session: &'a mut Session,
    metric: &'a Metric,
    go_on: &'a mut dyn FnMut(usize) -> bool,
}

impl Reading<'_> {
    fn effects(&mut self, history: &History<'_>, holes: &[LayerHoles]) -> anyhow::Result<Vec<Effect>> {
        let mut found: Vec<Effect> = Vec::with_capacity(holes.len());
        let (go_on, stopped) = (RefCell::new(&mut *self.go_on), RefCell::new(false));
        let heard = |tokens: usize| {
            let mut stopped = stopped.borrow_mut();
            *stopped = *stopped || !(go_on.borrow_mut())(tokens);
            !*stopped
        };
        let mut of_history = |tokens| tokens == 0 || heard(tokens);
        self.metric.effects(self.session, history, holes, &mut of_history, &mut |_, row| {
            found.extend(row.effect());
            heard(0)
        })?;
        ensure!(
            found.len() == holes.len() && !*stopped.borrow(),
            RequestError::Engine(EngineError::Interrupted)
        );
        Ok(found)
    }

    fn again(&mut self, history: &History<'_>) -> anyhow::Result<Effect> {
        let found = self.effects(history, &[LayerHoles::default()])?;
        found.first().copied().context("This is a bug: a reading without an effect")
    }
}

fn block(
    reading: &mut Reading<'_>,
    prompt: &Prompt<'_>,
    spans: &[Span],
    options: SpanCauseOptions,
) -> anyhow::Result<Vec<SpanEffect>> {
    let ranges: Vec<Range<usize>> = spans.iter().map(Span::range).collect();
    let (count, taken) = match options.controls {
        Controls::None => (0, &ranges[..]),
        Controls::Evidence(count) => (count, &ranges[..]),
        Controls::Anywhere(count) => (count, &[][..]),
    };
    let pool = stretches_of_prompt((count, options.seed), &ranges, prompt.question, taken);
    let keys: Vec<&Range<usize>> = ranges.iter().chain(&pool).collect();
    let windows = windows(prompt.kinds, options.windows);
    let hide = |layers: &Option<Range<usize>>| -> Vec<LayerHoles> {
        keys.iter().map(|keys| prompt.hidden(std::slice::from_ref(*keys), layers.as_ref())).collect()
    };
    let holes: Vec<LayerHoles> = windows.iter().flat_map(hide).collect();
    let found = reading.effects(&prompt.history(), &holes)?;
    let mut effects = Vec::new();
    for (layers, found) in windows.iter().zip(found.chunks(keys.len())) {
        let (of_spans, of_pool) = found.split_at(ranges.len());
        for (span, effect) in spans.iter().zip(of_spans) {
            let drops = of_pool.iter().map(|effect| effect.log_p_drop);
            let control = control_of(&span.range(), pool.iter().zip(drops));
            let layers = layers.as_ref().map(|layers| [layers.start, layers.end]);
            let own = SpanEffect::new(span, effect.log_p_drop, Some(effect));
            effects.push(SpanEffect { layers, control, ..own });
        }
    }
    Ok(effects)
}
