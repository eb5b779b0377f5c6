//! The page's part for each case: what was shown, shaded by the query's attention, what was answered, how it was judged.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::benchmarks::{Benchmark, VerdictKind};
use crate::lens::{AnalysedRun, Example, LayerKind, Lens, Verdicts};
use crate::prompt::known_special_tokens;
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::run::store::{ShownCase, ShownSegment};

/// Where the shown segments of a run take more than this, segments without evidence are cut to [`EXCERPT`] characters: a
/// run of 400 histories of 150,000 tokens would make a page of a quarter of a gigabyte otherwise.
const MOST_BYTES: u64 = 8 << 20;
/// Characters of a segment without evidence on a page that would be too large.
const EXCERPT: usize = 400;

/// One case.
#[derive(Debug, Serialize)]
pub struct CasePart {
    id: String,
    kind: Option<String>,
    probes: Vec<ProbePart>,
    segments: Vec<SegmentPart>,
    /// Why there are no segments to show.
    segments_missing: Option<String>,
    dropped: Option<String>,
    /// Special tokens of known models that its text spells.
    special_tokens: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct ProbePart {
    id: String,
    query: String,
    answer: Option<String>,
    thought: Option<String>,
    cut_off: bool,
    error: Option<String>,
    /// `correct`, `wrong`, a score as `3 of 5`, `not judged`, `judge failed`.
    verdict: String,
    /// `correct`, `wrong` or nothing: how it is coloured.
    colour: &'static str,
    reason: Option<String>,
    probability: Option<String>,
    attention: Vec<AttentionPart>,
}

/// Where the query's attention goes, averaged over the layers of one kind.
#[derive(Debug, Serialize)]
struct AttentionPart {
    linear: bool,
    /// `layers`, or which of them.
    layers: String,
    text: String,
}

#[derive(Debug, Serialize)]
struct SegmentPart {
    /// Its place in the whole history, from 1, as the figures number it.
    number: usize,
    /// What the prompt called it, where that is another number.
    shown_as: Option<usize>,
    /// Empty where it has none.
    time: String,
    /// The parts that it plays, for any probe; empty where it is no evidence.
    roles: Vec<String>,
    shades: Vec<Shade>,
    turns: Vec<TurnPart>,
    /// Characters that were left out.
    cut: usize,
}

#[derive(Debug, Serialize)]
struct Shade {
    probe: String,
    percent: String,
    /// Opacity of the shade: the segment's mass over the largest of the case.
    alpha: String,
}

#[derive(Debug, Serialize)]
struct TurnPart {
    who: String,
    text: String,
}

/// The parts of all cases, in the data's order.
///
/// # Errors
/// Those of reading the files of `cases/`.
pub fn parts(
    run: &AnalysedRun,
    verdicts: &Verdicts,
    lens: Option<&Lens>,
) -> Result<Vec<CasePart>, crate::lens::LensError> {
    let folder = std::fs::read_dir(run.path().join("cases")).into_iter().flatten();
    let bytes: u64 = folder.filter_map(|entry| entry.ok()?.metadata().ok()).map(|meta| meta.len()).sum();
    let excerpt = (bytes > MOST_BYTES).then_some(EXCERPT);
    let mut answers: HashMap<(&str, &str), &AnswerRow> = HashMap::new();
    for row in run.answers() {
        answers.insert((&row.case, &row.probe), row);
    }
    let mut examples: HashMap<(&str, &str), &Example> = HashMap::new();
    for example in lens.iter().flat_map(|lens| &lens.examples) {
        examples.insert((&example.case, &example.probe), example);
    }
    let shaded = lens.and_then(shaded_over).unwrap_or(LayerKind::Softmax);
    run.cases()
        .iter()
        .map(|case| {
            let measured: Vec<&Example> = case
                .probes
                .iter()
                .filter_map(|p| examples.get(&(case.case.as_str(), p.id.as_str())).copied())
                .collect();
            let of_case: Vec<&AnswerRow> = case
                .probes
                .iter()
                .filter_map(|p| answers.get(&(case.case.as_str(), p.id.as_str())).copied())
                .collect();
            let shown = run.shown(&case.case)?;
            let special_tokens = special_tokens(case, shown.as_ref());
            let (segments, segments_missing) = match shown {
                None => (
                    Vec::new(),
                    Some("No prompt was made for this case, so there is no history to show.".to_owned()),
                ),
                Some(shown) => (segments(&shown, case, &measured, shaded, excerpt), None),
            };
            Ok(CasePart {
                id: case.case.clone(),
                kind: case.labels.get(run.benchmark().split()).cloned(),
                probes: probes(run.benchmark(), case, &of_case, &measured, lens, verdicts),
                segments,
                segments_missing,
                dropped: dropped(run.benchmark().segment(), &of_case),
                special_tokens,
            })
        })
        .collect()
}

/// Those that what was shown and the queries spell.
fn special_tokens(case: &PlannedCase, shown: Option<&ShownCase>) -> Vec<&'static str> {
    let turns = shown.iter().flat_map(|shown| &shown.segments).flat_map(|segment| &segment.turns);
    let texts = turns.map(|turn| turn.content.as_str());
    let texts = texts.chain(case.probes.iter().map(|probe| probe.query.as_str()));
    let found: BTreeSet<&str> = texts.flat_map(known_special_tokens).collect();
    found.into_iter().collect()
}

fn probes(
    benchmark: &dyn Benchmark,
    case: &PlannedCase,
    answers: &[&AnswerRow],
    measured: &[&Example],
    lens: Option<&Lens>,
    verdicts: &Verdicts,
) -> Vec<ProbePart> {
    let part = |probe: &PlannedProbe| {
        let answer = answers.iter().find(|row| row.probe == probe.id);
        let verdict = verdicts.get(&case.case, &probe.id);
        let example = measured.iter().find(|e| e.probe == probe.id);
        ProbePart {
            id: probe.id.clone(),
            query: probe.query.clone(),
            answer: answer.and_then(|row| row.answer.clone()),
            thought: answer.and_then(|row| row.thought.clone()),
            cut_off: answer.is_some_and(|row| row.stop == Some(crate::engine::StopReason::MaxNewTokens)),
            error: match answer {
                Some(row) => row.error.clone(),
                None => Some("not answered yet".to_owned()),
            },
            verdict: said(benchmark, verdict),
            colour: match verdict.and_then(|row| row.correct) {
                Some(true) => "correct",
                Some(false) => "wrong",
                None => "",
            },
            reason: verdict.and_then(|row| row.reason.clone().or(row.error.clone())),
            probability: verdict.and_then(|row| row.probability).map(|p| format!("{p:.2}")),
            attention: match (example, lens) {
                (Some(example), Some(lens)) => summaries(example, lens),
                _ => Vec::new(),
            },
        }
    };
    case.probes.iter().map(part).collect()
}

/// A verdict in a word or two.
fn said(benchmark: &dyn Benchmark, verdict: Option<&VerdictRow>) -> String {
    let Some(row) = verdict else { return "not judged".to_owned() };
    let most = match benchmark.rubric().verdict {
        VerdictKind::Score { most } => most,
        VerdictKind::Correct | VerdictKind::Label { .. } | VerdictKind::Choice { .. } => 1,
    };
    let right = row.correct.map(|correct| if correct { "correct" } else { "wrong" });
    match (right, row.score, &row.choice) {
        (Some(right), _, Some(choice)) => format!("{choice}, {right}"),
        (Some(right), ..) => right.to_owned(),
        (None, Some(score), _) => format!("{score} of {most}"),
        (None, None, Some(choice)) => choice.clone(),
        (None, None, None) => "judge failed".to_owned(),
    }
}

/// The kind of layers whose mean shades the segments: softmax where the model has such layers. Means of the two kinds
/// are never mixed.
pub fn shaded_over(lens: &Lens) -> Option<LayerKind> {
    lens.layer_kinds().first().map(|(kind, _)| *kind)
}

/// Where the query's attention goes, for each kind of layers that the model has.
fn summaries(example: &Example, lens: &Lens) -> Vec<AttentionPart> {
    let part = |(kind, count): (LayerKind, usize)| AttentionPart {
        linear: kind == LayerKind::Linear,
        layers: match lens.has_kinds() {
            false => "layers".to_owned(),
            true => format!("{} layers ({count} of {})", kind.key(), lens.layers.len()),
        },
        text: summary(example, kind, lens.benchmark.segment()),
    };
    lens.layer_kinds().into_iter().map(part).collect()
}

/// Where the query's attention goes, in a sentence, averaged over the layers of one kind.
fn summary(example: &Example, kind: LayerKind, segment: &str) -> String {
    let over = |segment| example.mean_over(kind, segment).unwrap_or(0.0);
    let all: f64 = example.segments.iter().map(over).sum();
    // By role, in the order of the prompt.
    let mut roles: Vec<(&str, f64)> = Vec::new();
    for segment in &example.segments {
        let Some(role) = segment.role.as_deref() else { continue };
        match roles.iter_mut().find(|(name, _)| *name == role) {
            Some((_, mass)) => *mass += over(segment),
            None => roles.push((role, over(segment))),
        }
    }
    let mut parts: Vec<String> =
        roles.iter().map(|(role, mass)| format!("{role} {}", percent(*mass))).collect();
    parts.push(format!("all {segment}s {}", percent(all)));
    parts.push(format!("outside the {segment}s {}", percent((1.0 - all).max(0.0))));
    parts.join(", ")
}

fn segments(
    shown: &ShownCase,
    case: &PlannedCase,
    measured: &[&Example],
    shaded: LayerKind,
    excerpt: Option<usize>,
) -> Vec<SegmentPart> {
    let masses = measured.iter().flat_map(|e| e.segments.iter().filter_map(|s| e.mean_over(shaded, s)));
    let most = masses.fold(0.0, f64::max);
    let part = |segment: &ShownSegment| {
        let evidence = case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence));
        let mut roles: Vec<String> = Vec::new();
        for evidence in evidence.filter(|e| e.segment == segment.index) {
            if !roles.contains(&evidence.role) {
                roles.push(evidence.role.clone());
            }
        }
        // a probe without attention keeps its place, so that the columns stay in line
        let shade = |probe: &PlannedProbe| {
            let example = measured.iter().find(|example| example.probe == probe.id);
            let found = example
                .and_then(|e| e.mean_over(shaded, e.segments.iter().find(|s| s.index == segment.index)?));
            let (percent, alpha) = match found {
                None => ("–".to_owned(), 0.0),
                // black text must stay readable on the darkest shade
                Some(mass) => (percent(mass), if most > 0.0 { 0.62 * mass / most } else { 0.0 }),
            };
            Shade { probe: probe.id.clone(), percent, alpha: format!("{alpha:.2}") }
        };
        let shades = if measured.is_empty() { Vec::new() } else { case.probes.iter().map(shade).collect() };
        let limit = excerpt.filter(|_| roles.is_empty());
        let (turns, cut) = turns(segment, limit);
        SegmentPart {
            number: segment.index + 1,
            shown_as: segment.number,
            time: segment.time.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default(),
            roles,
            shades,
            turns,
            cut,
        }
    };
    shown.segments.iter().map(part).collect()
}

/// The turns of a segment up to a number of characters, and how many were left out.
fn turns(segment: &ShownSegment, limit: Option<usize>) -> (Vec<TurnPart>, usize) {
    let mut left = limit.unwrap_or(usize::MAX);
    let (mut turns, mut cut) = (Vec::new(), 0);
    for turn in &segment.turns {
        let count = turn.content.chars().count();
        let kept = count.min(left);
        cut += count - kept;
        left -= kept;
        if kept > 0 {
            turns.push(TurnPart { who: turn.role.clone(), text: turn.content.chars().take(kept).collect() });
        }
    }
    (turns, cut)
}

/// A share as a percentage that a reader takes in at a glance.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 {
        "0%".to_owned()
    } else if percent < 0.01 {
        "<0.01%".to_owned()
    } else if percent < 1.0 {
        format!("{percent:.2}%")
    } else {
        format!("{percent:.1}%")
    }
}

/// The segments that truncation left out, numbered from 1, as ranges; `None` where it left out none.
fn dropped(segment: &str, answers: &[&AnswerRow]) -> Option<String> {
    let all = distinct(answers.iter().flat_map(|row| row.dropped_sessions.iter().map(|index| index + 1)));
    let beside =
        distinct(answers.iter().flat_map(|row| row.dropped_neighbours.iter().map(|index| index + 1)));
    let ranges = ranges(&all);
    let beside = match beside.as_slice() {
        [] => String::new(),
        some => format!(" Next to evidence: {}.", self::ranges(some)),
    };
    (!all.is_empty()).then(|| {
        let plural = if all.len() == 1 { "" } else { "s" };
        format!("{} {segment}{plural} left out to fit the context: {ranges}.{beside}", all.len())
    })
}

fn distinct(numbers: impl Iterator<Item = usize>) -> Vec<usize> {
    numbers.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// Ascending numbers for people: `1, 4–6`.
fn ranges(all: &[usize]) -> String {
    let ranges = all.chunk_by(|a, b| a + 1 == *b).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}–{last}")),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Turn;

    #[test]
    fn a_cut_segment_says_how_much_is_missing_and_splits_no_character() {
        let turn = |content: &str| Turn::new("user", content);
        let segment = ShownSegment {
            kind: "session".to_owned(),
            index: 0,
            number: None,
            time: None,
            turns: vec![turn("äöü"), turn("éè"), turn("last")],
        };
        let (kept, cut) = turns(&segment, Some(4));
        assert_eq!(kept.iter().map(|t| t.text.as_str()).collect::<Vec<_>>(), ["äöü", "é"]);
        assert_eq!(cut, 5);
        assert_eq!(turns(&segment, None).1, 0);
    }

    #[test]
    fn percentages_never_round_a_share_to_nothing() {
        assert_eq!([0.0, 0.00001, 0.0042, 0.123].map(percent), ["0%", "<0.01%", "0.42%", "12.3%"]);
    }
}
