//! Answers of one case, scored again after their history or after the history without some sessions.
//!
//! A session is removed by its tokens; the rest equals the prompt without it, except that later sessions keep their displayed numbers.
//! Everything after a removed session shifts in position and is recomputed; everything before it is reused. Histories are ordered to share
//! long prefixes.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use palimpsest_core::ablate::{EffectRow, History, Measure, Metric, Prompt, Said, Target, ValuePair};
use palimpsest_core::attention::{AttentionStore, LayerHoles, LayerKind};
use palimpsest_core::engine::{ModelText, Session};
use palimpsest_core::span::{PREFIX, Span};

use super::session_measures::sessions;
use super::{Task, all_read, asked, unless_stopped, unusable};
use crate::progress::{Status, Work, grouped, note};
use crate::runs::contrast::ContrastTokens;
use crate::runs::rows::{AnswerRow, Contrast, ValueLogP};
use palimpsest_data::benchmarks::QUERY;
use palimpsest_data::case::Contrasted;
use palimpsest_data::ground::order::sorted_unique;

const NO_ANSWER: &str = "its attention file has no tokens of the answer; it is of a version that did not record them, so run it again";
const NO_QUERY: &str = "its attention file has no span `query`, from which on sessions could be blocked";
const NO_TOKENS: &str = "the values of its contrast are other tokens for this tokenizer than those in answers.jsonl; run it again";

pub(super) struct CaseAnswers<'a> {
    pub answers: Vec<AttentionStore>,
    values: Option<Vec<ValuePair>>,
    shared: usize,
    kinds: &'a [LayerKind],
    neutral: Option<&'a Arc<[u32]>>,
}

/// The sessions of an answer that are left out, each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SessionChoice {
    /// Sessions with a role in the analysis
    Evidence,
    /// Every session
    All,
}

impl SessionChoice {
    pub fn holds(self, span: &Span) -> bool {
        self == SessionChoice::All || span.role.is_some()
    }
}

/// An answer after a history without some of its sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ablated {
    pub answer: usize,
    /// One flag per session, in prompt order.
    pub included: Vec<bool>,
    pub nth: usize,
}

/// Receives an ablated answer, its unchanged metric and the effect; returns false to stop.
pub(super) type AblatedSink<'a> = &'a mut dyn FnMut(&Ablated, &Metric, EffectRow) -> anyhow::Result<bool>;

#[derive(Debug, Default)]
pub(super) struct ReadingCost {
    pub readings: usize,
    pub prefill: usize,
    pub answers: usize,
    /// Answers with passes after their full history.
    pub asked: usize,
    /// Tokens of the full histories, counted once per case.
    pub histories: usize,
}

/// True if the KV cache can be truncated at any token.
pub(super) fn goes_back(kinds: &[LayerKind]) -> bool {
    kinds.iter().all(|kind| matches!(kind, LayerKind::Softmax { window: None, .. }))
}

/// Tokens of a contrast. The row stores only the differing tokens; their shared prefix is recovered by tokenising the values.
pub fn pair(store: &AttentionStore, contrast: &Contrast, text: &ModelText) -> anyhow::Result<ValuePair> {
    let of_case = || format!("case {}", store.case);
    let texts = |values: &[ValueLogP]| values.iter().map(|value| value.text.clone()).collect::<Vec<_>>();
    let mut values = Contrasted {
        current: contrast.current.text.clone(),
        stale: texts(&contrast.earlier),
        absent: contrast.absent.iter().map(|value| value.text.clone()).collect(),
    };
    values.stale.extend(contrast.stale.iter().map(|value| value.text.clone()));
    values.absent.extend(texts(&contrast.others));
    let prefix = store.keys.iter().find(|span| span.label == PREFIX);
    let prefix = prefix.and_then(|span| store.tokens.get(span.range())).unwrap_or_default();
    let prefix = text.tokenizer.decode(prefix, true).with_context(of_case)?;
    let tokens = ContrastTokens::new(&values, &prefix, text).with_context(of_case)?;
    let pair = tokens.as_ref().and_then(ContrastTokens::pair);
    let against = contrast.against().map(|value| value.token);
    pair.filter(|pair| pair.current() == contrast.current.token && Some(pair.against) == against)
        .ok_or_else(|| unusable(store, NO_TOKENS))
}

pub fn shared(stores: &[impl Borrow<AttentionStore>]) -> usize {
    let stores: Vec<&AttentionStore> = stores.iter().map(Borrow::borrow).collect();
    let Some((first, others)) = stores.split_first() else { return 0 };
    let least = others.iter().map(|other| alike(&first.tokens, &other.tokens)).min();
    let before = |store: &AttentionStore| store.keys.iter().filter(|s| s.is(QUERY)).map(|s| s.start).min();
    let question = stores.iter().copied().filter_map(before).min().unwrap_or(0);
    question.min(least.unwrap_or(first.tokens.len()))
}

/// Ranges that controls must avoid: all spans with a role except the question.
pub fn taken(spans: &[Span]) -> Vec<Range<usize>> {
    spans.iter().filter(|span| span.role.is_some() && !span.is(QUERY)).map(Span::range).collect()
}

impl Task<'_> {
    /// The cost of all cases, printed unless nothing is to be computed.
    pub(super) fn announced(
        &self,
        what: &str,
        cost: impl Fn(&CaseAnswers<'_>) -> ReadingCost,
    ) -> anyhow::Result<ReadingCost> {
        let mut all = ReadingCost::default();
        for case in self.cases() {
            let ReadingCost { readings, prefill, answers, asked, histories } = cost(&case?);
            all.readings += readings;
            all.prefill += prefill;
            all.answers += answers;
            all.asked += asked;
            all.histories += histories;
        }
        if all.readings > 0 {
            let [readings, prefill, answers] =
                [all.readings, all.prefill, all.answers].map(|n| grouped(n as u64));
            let times = all.prefill as f64 / all.histories.max(1) as f64;
            note(format_args!(
                "{readings} {what}: {prefill} tokens of histories ({times:.1} times the cases' whole histories) and {answers} tokens of \
                 questions and answers to compute"
            ));
        }
        Ok(all)
    }

    /// Progress callback over the history tokens of a case of this `cost`, which is taken from what is `left`; returns false to stop.
    pub(super) fn hears(
        &self,
        status: Rc<Status>,
        left: &mut ReadingCost,
        cost: ReadingCost,
    ) -> impl FnMut(usize) -> bool {
        status.expect(left.prefill, left.answers);
        left.prefill = left.prefill.saturating_sub(cost.prefill);
        left.answers = left.answers.saturating_sub(cost.answers);
        let (mut read, total) = (0, cost.prefill);
        move |tokens| {
            read += tokens;
            status.did(Work::History, tokens);
            status.prefill(read.min(total), total);
            self.goes_on()
        }
    }

    /// Cases with answers that can be scored again, in row order, loaded lazily.
    pub(super) fn cases(&self) -> impl Iterator<Item = anyhow::Result<CaseAnswers<'_>>> {
        let rows = asked(self.folder, self.of);
        let groups: Vec<Vec<_>> = rows.chunk_by(|a, b| a.case == b.case).map(<[_]>::to_vec).collect();
        groups.into_iter().map(|rows| self.case(&rows))
    }

    /// Loads attention files. Answers that are empty after the thought are skipped when answers are scored.
    fn case(&self, rows: &[&AnswerRow]) -> anyhow::Result<CaseAnswers<'_>> {
        let (mut answers, mut values) = (Vec::new(), Vec::new());
        for row in rows {
            let Some(store) = self.folder.attention(row)? else { continue };
            if !store.keys.iter().any(|span| span.is(QUERY)) {
                return Err(unusable(&store, NO_QUERY));
            }
            match (self.of, &row.contrast) {
                (Measure::LogP, _) if store.generated.is_empty() => return Err(unusable(&store, NO_ANSWER)),
                (Measure::LogP, _) if store.thought() >= store.generated.len() => continue,
                (Measure::LogP, _) => {}
                (Measure::Contrast, Some(contrast)) => values.push(pair(&store, contrast, &self.text)?),
                (Measure::Contrast, None) => continue,
            }
            answers.push(store);
        }
        let values = (self.of == Measure::Contrast).then_some(values);
        let (shared, kinds, neutral) = (shared(&answers), &self.kinds, self.neutral.as_ref());
        Ok(CaseAnswers { answers, values, shared, kinds, neutral })
    }
}

impl CaseAnswers<'_> {
    pub fn target(&self, answer: usize) -> Target<'_> {
        let store = &self.answers[answer];
        match &self.values {
            Some(values) => Target::Values(&values[answer]),
            None => Target::Answer(Said { tokens: &store.generated, thought: store.thought() }),
        }
    }

    pub fn id(&self) -> &str {
        self.answers.first().map_or("", |store| &store.case)
    }

    /// Ablations of each chosen session of every answer without a stored row, and the number already stored.
    pub fn missing(
        &self,
        chosen: SessionChoice,
        is_there: impl Fn(&AttentionStore, &Span) -> bool,
    ) -> (Vec<Ablated>, usize) {
        let (mut missing, mut found) = (Vec::new(), 0);
        for (answer, store) in self.answers.iter().enumerate() {
            let sessions = self.sessions(answer);
            for (nth, span) in sessions.iter().enumerate().filter(|(_, span)| chosen.holds(span)) {
                if is_there(store, span) {
                    found += 1;
                    continue;
                }
                let included = (0..sessions.len()).map(|other| other != nth).collect();
                missing.push(Ablated { answer, included, nth });
            }
        }
        (missing, found)
    }

    pub fn sessions(&self, answer: usize) -> Vec<&Span> {
        let mut found: Vec<&Span> = sessions(&self.answers[answer]).collect();
        found.sort_by_key(|span| span.start);
        found
    }

    /// An answer's prompt. Its own part begins after the shared prefix if that contains all sessions, else at the question.
    pub fn prompt(&self, answer: usize) -> Prompt<'_> {
        let store = &self.answers[answer];
        let question = store.keys.iter().find(|span| span.is(QUERY));
        let question = question.map_or(store.tokens.len(), |span| span.start);
        let last = self.sessions(answer).last().map_or(0, |span| span.end);
        let cut = if last <= self.shared { self.shared } else { question };
        Prompt { tokens: &store.tokens, cut, question, kinds: self.kinds }
    }

    pub fn left_out(&self, one: &Ablated) -> Vec<Range<usize>> {
        let sessions = self.sessions(one.answer).into_iter().zip(&one.included);
        sessions.filter(|(_, included)| !**included).map(|(span, _)| span.range()).collect()
    }

    fn history(&self, one: &Ablated) -> History<'_> {
        self.history_without(one.answer, &self.left_out(one))
    }

    /// An answer's history without these ranges, or with neutral text in their place.
    pub fn history_without(&self, answer: usize, out: &[Range<usize>]) -> History<'_> {
        match self.neutral {
            Some(neutral) => self.prompt(answer).replaced(out, neutral),
            None => self.prompt(answer).without(out),
        }
    }

    /// Tokens of an answer's own part after its history.
    pub fn own_tokens(&self, answer: usize) -> usize {
        let store = &self.answers[answer];
        store.tokens.len() - self.prompt(answer).cut + store.generated.len().saturating_sub(1)
    }

    pub fn cost(&self, ablated: &[Ablated]) -> ReadingCost {
        let wholes = answers(ablated).into_iter().map(|answer| (answer, 1, self.prompt(answer).history()));
        let parts = sorted(ablated).into_iter().map(|one| (one.answer, 1, self.history(one)));
        ReadingCost { readings: ablated.len(), ..self.cost_of(wholes.chain(parts)) }
    }

    /// Cost of forward passes after the full history, by answer.
    pub fn cost_in_place(&self, passes: &[usize]) -> ReadingCost {
        let all = passes.iter().enumerate().map(|(answer, passes)| (answer, *passes));
        let asked: Vec<(usize, usize)> = all.filter(|(_, passes)| *passes > 0).collect();
        let all = asked.iter().map(|&(answer, passes)| (answer, passes, self.prompt(answer).history()));
        ReadingCost { asked: asked.len(), ..self.cost_of(all) }
    }

    /// Cost of answers, each with forward passes after a history, one after another.
    fn cost_of<'b>(&self, all: impl Iterator<Item = (usize, usize, History<'b>)>) -> ReadingCost {
        let goes_back = goes_back(self.kinds);
        let mut cost = ReadingCost::default();
        let mut held: Arc<[u32]> = Arc::default();
        for (answer, passes, History { tokens, .. }) in all {
            let same = alike(&held, &tokens);
            let kept = if goes_back || same == held.len() { same } else { 0 };
            cost.histories = cost.histories.max(self.prompt(answer).cut);
            cost.prefill += tokens.len() - kept;
            cost.answers += passes * self.own_tokens(answer);
            held = tokens;
        }
        cost
    }

    /// Scores the answers after their full histories, then after each ablated one. `sink` and `go_on` (called with prefilled tokens) return
    /// false to stop; returns true if all were read.
    pub fn read_ablated(
        &self,
        session: &mut Session,
        ablated: &[Ablated],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: AblatedSink<'_>,
    ) -> anyhow::Result<bool> {
        session.forget();
        let mut plain: BTreeMap<usize, Metric> = BTreeMap::new();
        for answer in answers(ablated) {
            let read = Metric::read(session, &self.prompt(answer).history(), self.target(answer), go_on);
            let Some(read) = unless_stopped(self.id(), read)? else { return Ok(false) };
            plain.insert(answer, read);
        }
        for one in sorted(ablated) {
            let Some(metric) = plain.get(&one.answer) else { continue };
            let (history, nothing) = (self.history(one), [LayerHoles::default()]);
            let whole = all_read(self.id(), &mut |_, row| sink(one, metric, row), |sink| {
                metric.effects(session, &history, &nothing, go_on, sink)
            })?;
            if !whole {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn answers(ablated: &[Ablated]) -> Vec<usize> {
    sorted_unique(ablated.iter().map(|one| one.answer))
}

/// Sorted so that neighbours share long prefixes.
fn sorted(ablated: &[Ablated]) -> Vec<&Ablated> {
    let mut sorted: Vec<&Ablated> = ablated.iter().collect();
    sorted.sort_by_key(|one| (Reverse(&one.included), one.answer));
    sorted
}

fn alike(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
