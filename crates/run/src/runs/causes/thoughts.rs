//! Effects of sessions on answers through the thought before them: answer, thought, session.
//!
//! Called by `palimpsest causes --thoughts`. The thought's text stays as it was; paths between a session, the rows of the thought's
//! sentences and the rows of question and answer are blocked ([`ThoughtPath`]). Whole minus direct effect is what goes through the thought's
//! rows. Words that the thought took from a session stay in its text, so their effect counts as none of the session's. If hiding a session
//! from the thought too adds less than a threshold, single sentences are skipped. Beside the effects, [`super::two_hop`] and
//! [`super::flash_trace`] are recorded.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path as FilePath;
use std::time::Instant;

use anyhow::{Context, ensure};
use palimpsest_core::ablate::{EffectRow, Metric, Prompt, hide};
use palimpsest_core::attention::{AttentionStore, LayerHoles, LayerKind};
use palimpsest_core::engine::{ModelText, Session};
use palimpsest_core::span::Span;
use palimpsest_core::text::{Sentence, StreamDecoder};
use palimpsest_data::ground::jsonl::RowLog;

use super::case::{CaseAnswers, ReadingCost, SessionChoice};
use super::flash_trace;
use super::rows::{CauseLine, ThoughtPath, ThoughtRow, open_log};
use super::session_measures::sessions;
use super::two_hop::{self, Scores, TWO_HOPS};
use super::{Measured, Task, all_read, layers_open, unless_stopped, unusable, windows};
use crate::progress::{Steps, Work};
use crate::runs::condition::named;
use crate::runs::rows::AnswerKey;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThoughtOptions {
    pub sessions: SessionChoice,
    pub softmax_only: bool,
    /// Single sentences are read only if hiding a session from the thought's rows too adds at least this drop, in nats per token.
    pub least: f64,
}

/// An answer with its thought.
struct Thought<'a> {
    store: &'a AttentionStore,
    prompt: Prompt<'a>,
    /// Row of the thought's last token, which predicts the answer's first.
    first: usize,
    text: String,
    /// They tile the rows from the prompt's end to `first`; tokens are counted from the prompt's start.
    sentences: Vec<Sentence>,
}

/// A path to block: of a session, a sentence, or both.
#[derive(Clone, Copy)]
struct Path<'a> {
    path: ThoughtPath,
    session: Option<&'a Span>,
    sentence: Option<usize>,
}

fn ends(range: &Range<usize>) -> [usize; 2] {
    [range.start, range.end]
}

impl<'a> Thought<'a> {
    /// `None` if the answer has no thought.
    fn of(case: &'a CaseAnswers<'_>, answer: usize, text: &ModelText) -> anyhow::Result<Option<Self>> {
        let (store, prompt) = (&case.answers[answer], case.prompt(answer));
        let Some((last, before)) = store.generated[..store.thought()].split_last() else { return Ok(None) };
        let mut decoder = StreamDecoder::new(&*text.tokenizer);
        let (mut decoded, mut starts) = (String::new(), Vec::new());
        for token in before.iter().chain([last]) {
            starts.push(decoded.len());
            let piece = decoder.push(*token).with_context(|| format!("case {}", store.case))?;
            decoded += &piece.text;
        }
        let (prompted, own) = (store.tokens.len(), before.len());
        let mut sentences = Sentence::of(&decoded, &starts[..own], own);
        for sentence in &mut sentences {
            sentence.tokens = prompted + sentence.tokens.start..prompted + sentence.tokens.end;
        }
        Ok(Some(Thought { store, prompt, first: prompted + own, text: decoded, sentences }))
    }

    fn rows(&self, path: Path<'_>) -> Range<usize> {
        path.sentence.map_or(0..0, |nth| self.sentences[nth].tokens.clone())
    }

    fn keys(&self, path: Path<'_>) -> Range<usize> {
        path.session.map_or_else(|| self.rows(path), Span::range)
    }

    fn holes(&self, path: Path<'_>) -> LayerHoles {
        let Prompt { tokens, question, kinds, .. } = self.prompt;
        let (asked, answered) = (question..tokens.len(), self.first..usize::MAX);
        let (sentence, none) = (self.rows(path), 0..0);
        let rows: [Range<usize>; 3] = match path.path {
            ThoughtPath::Whole => [asked, tokens.len()..self.first, answered],
            ThoughtPath::Direct => [asked, none, answered],
            ThoughtPath::Carried => [asked, sentence, answered],
            ThoughtPath::Rows => [none.clone(), sentence, none],
            ThoughtPath::Used => [none.clone(), none, answered],
        };
        let keys = [self.keys(path)];
        let rows = rows.into_iter().filter(|rows| !rows.is_empty());
        let hidden = rows.map(|rows| hide(rows, &keys, None, kinds));
        hidden.reduce(|all, one| all.joined(&one)).unwrap_or_default()
    }

    fn row(&self, one: Path<'_>, metric: &Metric, row: EffectRow, kinds: &[LayerKind]) -> Option<ThoughtRow> {
        let used = one.sentence.filter(|_| one.path == ThoughtPath::Used);
        Some(ThoughtRow {
            answer: AnswerKey::of_store(self.store).owned(),
            path: one.path,
            span: one.session.map_or_else(String::new, |span| span.label.clone()),
            role: one.session.and_then(|span| span.role.clone()),
            tokens: ends(&self.keys(one)),
            sentence: one.sentence,
            sentence_tokens: one.sentence.map(|_| ends(&self.rows(one))),
            text: used
                .map_or_else(String::new, |nth| self.text[self.sentences[nth].bytes.clone()].to_owned()),
            sentences: self.sentences.len(),
            softmax_only: kinds.contains(&LayerKind::Linear),
            layers_open: layers_open(kinds, None),
            answer_tokens: metric.answer_tokens(),
            thought_tokens: metric.thought_tokens(),
            log_p: metric.value(),
            effect: row.effect()?,
        })
    }
}

/// Answer, path, hidden keys, sentence.
type Key = (AnswerKey, ThoughtPath, [usize; 2], Option<[usize; 2]>);

fn of_row(row: &ThoughtRow) -> (Key, f64) {
    let key = (row.answer.clone(), row.path, row.tokens, row.sentence_tokens);
    (key, row.effect.log_p_drop)
}

/// Rows of the folder, with the effects that are there.
struct Log {
    file: RowLog<CauseLine>,
    there: BTreeMap<Key, f64>,
    scores: Scores,
}

impl Log {
    fn open(dir: &FilePath) -> anyhow::Result<Self> {
        let file = open_log(dir)?;
        let of = |line: &CauseLine| if let CauseLine::Thought(row) = line { Some(of_row(row)) } else { None };
        let there = file.rows.iter().filter_map(of).collect();
        Ok(Log { file, there, scores: Scores::open(dir)? })
    }

    fn drop(&self, thought: &Thought<'_>, one: Path<'_>) -> Option<f64> {
        let answer = AnswerKey::of_store(thought.store).owned();
        let sentence = one.sentence.map(|_| ends(&thought.rows(one)));
        self.there.get(&(answer, one.path, ends(&thought.keys(one)), sentence)).copied()
    }

    /// Whole minus direct effect of a session.
    fn through(&self, thought: &Thought<'_>, session: &Span) -> Option<f64> {
        let drop = |path| self.drop(thought, Path { path, session: Some(session), sentence: None });
        Some(drop(ThoughtPath::Whole)? - drop(ThoughtPath::Direct)?)
    }

    /// Scores to measure, and the passes that they take.
    fn unscored(&self, task: &Task<'_>, store: &AttentionStore) -> (bool, bool, usize) {
        let hops = !self.scores.has(store, TWO_HOPS);
        let routes = flash_trace::is_missing(task, store, &self.scores);
        (hops, routes, usize::from(hops) + flash_trace::PASSES * usize::from(routes))
    }

    /// Paths of an answer that are not there yet, as far as known before reading, and the number of those that are.
    fn missing<'a>(&self, thought: &Thought<'a>, options: ThoughtOptions) -> (Vec<Path<'a>>, usize) {
        let each = 0..thought.sentences.len();
        let used = |nth| Path { path: ThoughtPath::Used, session: None, sentence: Some(nth) };
        let mut all: Vec<Path<'a>> = each.clone().map(used).collect();
        for span in sessions(thought.store).filter(|span| options.sessions.holds(span)) {
            let of = |path, sentence| Path { path, session: Some(span), sentence };
            all.extend([ThoughtPath::Whole, ThoughtPath::Direct].map(|path| of(path, None)));
            if self.through(thought, span).is_none_or(|through| through.abs() >= options.least) {
                let both = |nth| [ThoughtPath::Rows, ThoughtPath::Carried].map(|path| of(path, Some(nth)));
                all.extend(each.clone().flat_map(both));
            }
        }
        let (done, left): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| self.drop(thought, *one).is_some());
        (left, done.len())
    }
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    options: ThoughtOptions,
) -> anyhow::Result<Measured> {
    windows(&task.kinds, (None, options.softmax_only))?;
    let mut log = Log::open(&task.folder.dir)?;
    let cost = |case: &CaseAnswers<'_>, log: &Log| {
        let (mut readings, mut more) = (0, 0);
        // Beside the blocked paths, one pass for the metric and those for the scores.
        let passes = (0..case.answers.len()).map(|answer| {
            // A thought that cannot be decoded is reported when its turn comes.
            let Ok(Some(thought)) = Thought::of(case, answer, &task.text) else { return 0 };
            let (_, routes, scores) = log.unscored(task, thought.store);
            let missing = log.missing(&thought, options).0.len();
            readings += missing;
            more += if routes { flash_trace::more_tokens(thought.store, &task.text) } else { 0 };
            if missing + scores == 0 { 0 } else { missing + scores + 1 }
        });
        let passes: Vec<usize> = passes.collect();
        let cost = case.cost_in_place(&passes);
        ReadingCost { readings, answers: cost.answers + more, ..cost }
    };
    let what = "forward passes at most (fewer if hiding a session from a thought changes nothing)";
    let mut left = task.announced(what, |case| cost(case, &log))?;
    let mut steps = Steps::new("answers with a thought", left.asked, task.show).brief(true);
    let status = steps.status();
    let (mut measured, mut thoughts) = (Measured::default(), 0);
    for case in task.cases() {
        let case = case?;
        let mut go_on = task.hears(steps.status(), &mut left, cost(&case, &log));
        for answer in 0..case.answers.len() {
            let Some(thought) = Thought::of(&case, answer, &task.text)? else { continue };
            thoughts += 1;
            let (store, history) = (thought.store, thought.prompt.history());
            let ((missing, found), (hops, routes, scores)) =
                (log.missing(&thought, options), log.unscored(task, store));
            measured.skipped += found;
            if missing.is_empty() && scores == 0 {
                continue;
            }
            let name = format!("{} {}", store.case, named(&store.probe, &store.condition));
            status.begin(&name, "prefill");
            session.take_usage();
            let begun = Instant::now();
            let of = (store, thought.prompt.cut);
            if hops {
                let rows = (thought.first, &*thought.sentences);
                let read = two_hop::read(session, of, rows, &mut go_on);
                let Some(scores) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                log.scores.append(scores)?;
            }
            if routes {
                let read = flash_trace::read(session, of, &task.text, &mut go_on);
                let Some(scores) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                log.scores.append([scores])?;
            }
            let metric = Metric::read(session, &history, case.target(answer), &mut go_on);
            let Some(metric) = unless_stopped(&store.case, metric)? else { return Ok(measured.stopped()) };
            measured.histories.0 += begun.elapsed().as_secs_f64();
            measured.histories.1 += session.take_usage().0;
            status.did(Work::Answer, case.own_tokens(answer) * (1 + scores));

            let begun = Instant::now();
            let is_single = |one: &Path<'_>| one.session.is_some() && one.sentence.is_some();
            let (single, first): (Vec<Path<'_>>, Vec<Path<'_>>) = missing.into_iter().partition(is_single);
            let mut whole = true;
            for paths in [first, single] {
                // The paths before tell which sessions have an effect through the thought.
                let holds = |one: &Path<'_>| {
                    let span = one.session.filter(|_| is_single(one));
                    let through = span.and_then(|span| log.through(&thought, span));
                    span.is_none() || through.is_some_and(|through| through.abs() >= options.least)
                };
                let paths: Vec<Path<'_>> = paths.into_iter().filter(holds).collect();
                let holes: Vec<LayerHoles> = paths.iter().map(|one| thought.holes(*one)).collect();
                let mut sink = |nth: usize, row: EffectRow| {
                    let row = thought.row(paths[nth], &metric, row, &task.kinds);
                    let wrong = || unusable(store, "this is a bug: no effect on an answer");
                    let row = row.ok_or_else(wrong)?;
                    log.there.extend([of_row(&row)]);
                    log.file.append(CauseLine::Thought(row))?;
                    measured.done += 1;
                    status.did(Work::Answer, case.own_tokens(answer));
                    status.doing(|| format!("{} rows", measured.done));
                    Ok(task.goes_on())
                };
                whole = whole
                    && all_read(&store.case, &mut sink, |sink| {
                        metric.effects(session, &history, &holes, &mut |_| task.goes_on(), sink)
                    })?;
            }
            measured.readings.0 += begun.elapsed().as_secs_f64();
            measured.readings.1 += session.take_usage().0;
            if !whole || !task.goes_on() {
                return Ok(measured.stopped());
            }
            steps.step(&name, None);
        }
    }
    ensure!(
        thoughts > 0,
        "no answer of {} has a thought before it; --thoughts needs a model that thinks, with attention recorded",
        task.folder.dir.display()
    );
    Ok(measured)
}
