//! Causes of an answer to a prompt of one's own: each span is hidden, removed or replaced, and the answer read again.
//!
//! The measures are those of `palimpsest causes`; here a prompt with named spans stands in the place of a run's case.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use palimpsest_core::attention::{Hole, LayerHoles, LayerKind};
use palimpsest_core::engine::{Backend, DEFAULT_CHUNK, EngineError, LocalModel, RequestError, Session};
use palimpsest_core::span::Span;

use crate::data::draw::Draws;
use crate::run::causes::context_cite::{ALPHA, logit};
use crate::run::causes::metric::{Answer, History, Said};
use crate::run::causes::replacement::{neutral, put};
use crate::run::causes::rows::Effect;
use crate::run::causes::windows;
use crate::statistics::control::{STRETCHES, control_of, stretches_of_prompt};
use crate::statistics::lasso::{lasso, r2};

/// Subsets of spans that a surrogate is fitted to.
pub const SUBSETS: usize = 32;

/// Names the draws of subsets.
const DRAWN_FOR: &str = "prompt";

/// The way in which spans are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Their keys are hidden from the question on.
    Block,
    /// They are cut out of the prompt.
    Remove,
    /// Neutral text of equal length stands in their place.
    Replace,
    /// Random subsets of them are cut out, and a sparse linear function of what is left is fitted.
    ContextCite,
}

/// The stretches that are blocked as controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controls {
    None,
    Evidence(usize),
    /// So many anywhere before the question; a span's control is of those that do not touch it.
    Anywhere(usize),
}

impl std::str::FromStr for Way {
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

impl std::str::FromStr for Controls {
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

/// The settings of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanCauseOptions {
    /// The way in which spans are left out.
    pub way: Way,
    /// Layers of a window, of which each is blocked by itself; all layers at once where absent. Of [`Way::Block`].
    pub windows: Option<usize>,
    /// Of [`Way::Block`].
    pub controls: Controls,
    pub seed: u64,
}

/// The effect of leaving a span out on the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanEffect {
    pub span: Span,
    /// The layers at which it was blocked; all where absent.
    pub layers: Option<Range<usize>>,
    /// Of the log-probability, mean per token; in its place the span's weight in the surrogate's logit.
    pub drop: f64,
    /// Divergences and the change of the likeliest token; absent of a surrogate.
    pub effect: Option<Effect>,
    /// The median drop of stretches of about the span's length, in the same layers.
    pub control: Option<f64>,
}

/// The effects of the spans of a prompt on an answer to it.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanCauses {
    pub effects: Vec<SpanEffect>,
    /// The answer's natural-log probability, mean per token, with nothing left out.
    pub log_p: f64,
    /// Tokens of the answer behind its thought.
    pub answer_tokens: usize,
    /// The position from which on spans are hidden, and at which the question begins.
    pub from: usize,
    /// Share of the variance that a surrogate explains.
    pub r2: Option<f64>,
    /// A surrogate's logit with no span there.
    pub intercept: Option<f64>,
}

/// A prompt, its spans before the question, and an answer.
struct Case<'a> {
    tokens: &'a [u32],
    spans: Vec<Span>,
    from: usize,
    /// The position up to which the prompt is read in chunks. What is behind it is read at once, with the answer.
    cut: usize,
}

impl Case<'_> {
    fn history(&self, tokens: impl Into<Arc<[u32]>>) -> History<'_> {
        History { tokens: tokens.into(), rest: &self.tokens[self.cut..] }
    }

    /// The tokens that are read in chunks, without the spans that are not included, or with neutral text in their place.
    fn without(&self, included: &[bool], neutral: Option<&[u32]>) -> Vec<u32> {
        let mut tokens = self.tokens[..self.cut].to_vec();
        let out = self.spans.iter().zip(included).filter(|(_, included)| !**included);
        let ranges: Vec<Range<usize>> = out.map(|(span, _)| span.range()).collect();
        if let Some(neutral) = neutral {
            ranges.iter().for_each(|range| put(neutral, range, &mut tokens));
            return tokens;
        }
        let mut at = 0;
        tokens.retain(|_| {
            at += 1;
            !ranges.iter().any(|range| range.contains(&(at - 1)))
        });
        tokens
    }
}

/// Measures what the answer in `said` owes to the key spans of a prompt that end before its question. The question is the span of this
/// label, else it begins where the last span ends. `go_on` hears of tokens that are read, and of 0 tokens after each reading of the answer
/// with something left out, and at no other time; it says whether to go on.
pub fn measure(
    model: &mut LocalModel,
    (tokens, keys, question): (&[u32], &[Span], &str),
    said: Said<'_>,
    options: SpanCauseOptions,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> anyhow::Result<SpanCauses> {
    let SpanCauseOptions { way, seed, .. } = options;
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
    let neutral = if way == Way::Replace { Some(neutral(model.text())?) } else { None };
    let session = model.session();
    let cut = from.max(session.border(tokens.len().saturating_sub(DEFAULT_CHUNK)));
    let case = Case { tokens, spans, from, cut };
    let whole = case.history(&tokens[..cut]);
    let answer = Answer::read(session, &whole, said, &mut |tokens| tokens == 0 || go_on(tokens))
        .context("the answer as it was")?;
    let measured = SpanCauses {
        effects: Vec::new(),
        log_p: answer.log_p(),
        answer_tokens: answer.answer_tokens(),
        from,
        r2: None,
        intercept: None,
    };
    match way {
        Way::Block => {
            let effects = block(session, (&case, &answer), options, go_on)?;
            Ok(SpanCauses { effects, ..measured })
        }
        Way::Remove | Way::Replace => {
            let mut effects = Vec::new();
            for (nth, span) in case.spans.iter().enumerate() {
                let included: Vec<bool> = (0..case.spans.len()).map(|other| other != nth).collect();
                let tokens = case.without(&included, neutral.as_deref());
                let effect = again(session, (&case, &answer), tokens, go_on)?;
                let span = span.clone();
                let drop = effect.log_p_drop;
                effects.push(SpanEffect { span, layers: None, drop, effect: Some(effect), control: None });
            }
            Ok(SpanCauses { effects, ..measured })
        }
        Way::ContextCite => surrogate(session, (&case, &answer), seed, measured, go_on),
    }
}

fn block(
    session: &mut Session,
    (case, answer): (&Case<'_>, &Answer),
    options: SpanCauseOptions,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> anyhow::Result<Vec<SpanEffect>> {
    let kinds = session.layer_kinds();
    let softmax_only = kinds.contains(&LayerKind::Linear);
    let windows = windows(&kinds, (options.windows, softmax_only))?;
    let ranges: Vec<Range<usize>> = case.spans.iter().map(Span::range).collect();
    let (count, taken) = match options.controls {
        Controls::None => (0, &ranges[..]),
        Controls::Evidence(count) => (count, &ranges[..]),
        Controls::Anywhere(count) => (count, &[][..]),
    };
    let pool = stretches_of_prompt((count, options.seed), &ranges, case.from, taken);
    let keys: Vec<&Range<usize>> = ranges.iter().chain(&pool).collect();
    let paths = windows.iter().flat_map(|layers| keys.iter().map(move |keys| (layers, *keys)));
    let holes: Vec<LayerHoles> = paths
        .map(|(layers, keys)| {
            let hole = Hole { rows: case.from..usize::MAX, keys: keys.clone() };
            LayerHoles::at_softmax(&layers.clone().unwrap_or(0..kinds.len()), &kinds, vec![hole])
        })
        .collect();
    let mut found: Vec<Option<Effect>> = vec![None; holes.len()];
    let whole = case.history(&case.tokens[..case.cut]);
    let stopped = std::cell::Cell::new(false);
    let mut heard = |tokens: usize| {
        let more = !stopped.get() && go_on(tokens);
        stopped.set(!more);
        more
    };
    let heard = std::cell::RefCell::new(&mut heard);
    answer.effects(
        session,
        &whole,
        &holes,
        &mut |tokens| tokens == 0 || (heard.borrow_mut())(tokens),
        &mut |nth, effect| {
            if let Some(found) = found.get_mut(nth) {
                *found = Some(effect);
            }
            (heard.borrow_mut())(0)
        },
    )?;
    let found: Option<Vec<Effect>> = found.into_iter().collect();
    let found = found.ok_or(RequestError::Engine(EngineError::Interrupted))?;
    let mut effects = Vec::new();
    for (layers, found) in windows.iter().zip(found.chunks(keys.len())) {
        let (of_spans, of_pool) = found.split_at(ranges.len());
        for (span, effect) in case.spans.iter().zip(of_spans) {
            let drops = of_pool.iter().map(|effect| effect.log_p_drop);
            effects.push(SpanEffect {
                span: span.clone(),
                layers: layers.clone(),
                drop: effect.log_p_drop,
                effect: Some(*effect),
                control: control_of(&span.range(), pool.iter().zip(drops)),
            });
        }
    }
    Ok(effects)
}

/// The effect on the answer of another history.
fn again(
    session: &mut Session,
    (case, answer): (&Case<'_>, &Answer),
    tokens: Vec<u32>,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> anyhow::Result<Effect> {
    let mut found = None;
    let history = case.history(tokens);
    let mut of_history = |tokens| tokens == 0 || go_on(tokens);
    answer.effects(session, &history, &[LayerHoles::default()], &mut of_history, &mut |_, effect| {
        found = Some(effect);
        true
    })?;
    ensure!(go_on(0), RequestError::Engine(EngineError::Interrupted));
    found.context("This is a bug: a reading without an effect")
}

fn surrogate(
    session: &mut Session,
    (case, answer): (&Case<'_>, &Answer),
    seed: u64,
    measured: SpanCauses,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> anyhow::Result<SpanCauses> {
    let tokens = answer.answer_tokens() as f64;
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for subset in 0..SUBSETS {
        let drawn = |span: &Span| {
            Draws::new("contextcite subset", seed, &format!("{DRAWN_FOR} {subset} {}", span.label)).below(2)
                == 1
        };
        let included: Vec<bool> = case.spans.iter().map(drawn).collect();
        let effect = again(session, (case, answer), case.without(&included, None), go_on)?;
        let log_p = (answer.log_p() - effect.log_p_drop) * tokens;
        x.push(included.into_iter().map(|bit| f64::from(u8::from(bit))).collect::<Vec<f64>>());
        y.push(logit(log_p) / tokens);
    }
    let fit = lasso(&x, &y, ALPHA);
    let effects = case.spans.iter().zip(&fit.weights).map(|(span, weight)| SpanEffect {
        span: span.clone(),
        layers: None,
        drop: weight * tokens,
        effect: None,
        control: None,
    });
    let effects = effects.collect();
    Ok(SpanCauses { effects, r2: r2(&fit, &x, &y), intercept: Some(fit.intercept * tokens), ..measured })
}
