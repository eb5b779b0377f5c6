//! The page's part for each case: what was shown, shaded by the query's attention, what was answered, how it was judged.
//!
//! A page stays readable whatever the run: texts are cut where all of them would be too many, probes are folded where a case has
//! many, and the shades of a segment are those of the probes whose evidence lies in it where there is no room for all. What was cut
//! says so.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use super::text::{TurnPart, turns};
use super::view::View;
use crate::benchmarks::Benchmark;
use crate::figures::captions::{plural, ranges};
use crate::ground::order::entry;
use crate::lens::{Example, LayerKind, Lens, LensError, Study};
use crate::run::plan::{PlannedCase, PlannedEvidence, PlannedProbe};
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::run::store::{ShownCase, ShownSegment};
use palimpsest_core::text::known_special_tokens;

/// Where the shown segments of a run take more than this, segments without evidence are cut to [`EXCERPT`] characters: a
/// run of 400 histories of 150,000 tokens would make a page of a quarter of a gigabyte otherwise.
const MOST_BYTES: u64 = 8 << 20;
/// Characters of a segment without evidence on a page that would be too large.
const EXCERPT: usize = 400;
/// Characters that all evidence of such a page may have together.
const EVIDENCE: usize = 32 << 20;
/// Shades beside a segment: a column a probe and condition.
const COLUMNS: usize = 6;
/// Probes of a case that stand side by side; more are folded.
const OPEN: usize = 12;
/// Probes and conditions of a page whose texts are whole; of more, each text is cut to [`TEXT`] characters.
const WHOLE_TEXTS: usize = 1500;
/// Characters of a query, answer or reason on a page of many.
const TEXT: usize = 600;

#[derive(Debug, Serialize)]
pub struct CasePart {
    id: String,
    kind: Option<String>,
    /// Beside the case's name: a verdict a probe and condition, or counts of them.
    pills: Vec<Pill>,
    probes: Vec<ProbePart>,
    folded: bool,
    /// Segments below each other; those of one block stand side by side.
    blocks: Vec<Block>,
    /// Why there are no segments to show.
    segments_missing: Option<String>,
    dropped: Option<String>,
    /// Special tokens of known models that its text spells.
    special_tokens: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Pill {
    text: String,
    /// `correct`, `wrong`, `failed` or nothing: how it is coloured.
    colour: &'static str,
}

#[derive(Debug, Serialize)]
struct ProbePart {
    id: String,
    query: String,
    /// Its own evidence, in words; empty where all evidence is the case's.
    evidence: String,
    answers: Vec<AnswerPart>,
}

#[derive(Debug, Serialize)]
struct AnswerPart {
    /// Empty where the run has the plain one alone.
    condition: String,
    /// The part of the history that was shown, where it was not all of it.
    shown: Option<String>,
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
struct Block {
    beside: bool,
    segments: Vec<SegmentPart>,
}

#[derive(Debug, Serialize)]
struct SegmentPart {
    kind: String,
    /// Its place in the whole history, from 0, as files and figures number it.
    number: usize,
    /// Its number in the prompt, where that is another one.
    shown_as: Option<usize>,
    /// Where it stood among those beside it, by condition: `first (chosen-first)`.
    stood: Vec<String>,
    /// Empty where it has none.
    time: String,
    /// The parts that it plays, for any probe; empty where it is no evidence.
    roles: Vec<Role>,
    shades: Vec<Shade>,
    turns: Vec<TurnPart>,
    /// Characters that were left out.
    cut: usize,
}

#[derive(Debug, Serialize)]
struct Role {
    name: String,
    /// For which probes; empty where for all.
    of: String,
}

#[derive(Debug, Serialize)]
struct Shade {
    probe: String,
    percent: String,
    /// Opacity of the shade: the segment's mass over the largest of the case.
    alpha: String,
}

struct Room {
    /// Characters of a segment without evidence.
    plain: Option<usize>,
    /// Characters of a segment with evidence.
    evidence: Option<usize>,
    /// Characters of a query, an answer or a reason.
    text: Option<usize>,
}

impl Room {
    fn of(views: &[View<'_>]) -> Self {
        let Some(run) = views.first().map(|view| view.run) else {
            return Room { plain: None, evidence: None, text: None };
        };
        let folder = std::fs::read_dir(run.path().join("cases")).into_iter().flatten();
        let bytes: u64 = folder.filter_map(|entry| entry.ok()?.metadata().ok()).map(|meta| meta.len()).sum();
        let large = bytes > MOST_BYTES;
        let pieces: usize = run.cases().iter().map(|case| all_evidence(case).len()).sum();
        let probes: usize = run.cases().iter().map(|case| case.probes.len()).sum();
        Room {
            plain: large.then_some(EXCERPT),
            evidence: large.then_some((EVIDENCE / pieces.max(1)).max(EXCERPT)),
            text: (probes * views.len() > WHOLE_TEXTS).then_some(TEXT),
        }
    }

    /// A text, cut where there is no room for all of it.
    fn cut(&self, text: &str) -> String {
        match self.text {
            Some(most) if text.chars().nth(most).is_some() => text.chars().take(most).chain(['…']).collect(),
            _ => text.to_owned(),
        }
    }
}

/// The segments of a case that hold evidence of any probe.
fn all_evidence(case: &PlannedCase) -> BTreeSet<usize> {
    let of_probes = case.probes.iter().flat_map(|probe| &probe.evidence);
    case.evidence.iter().chain(of_probes).map(|evidence| evidence.segment).collect()
}

/// The rows of one case under a condition.
struct OfCase<'a> {
    view: &'a View<'a>,
    answers: Vec<&'a AnswerRow>,
    examples: Vec<&'a Example>,
}

impl<'a> OfCase<'a> {
    fn answer(&self, probe: &str) -> Option<&'a AnswerRow> {
        self.answers.iter().find(|row| row.probe == probe).copied()
    }

    fn example(&self, probe: &str) -> Option<&'a Example> {
        self.examples.iter().find(|example| example.probe == probe).copied()
    }
}

/// By case, something of one condition.
fn by_case<'a, T>(
    all: impl Iterator<Item = &'a T>,
    case: impl Fn(&T) -> &str,
) -> HashMap<String, Vec<&'a T>> {
    let mut found: HashMap<String, Vec<&T>> = HashMap::new();
    for one in all {
        found.entry(case(one).to_owned()).or_default().push(one);
    }
    found
}

/// The parts of all cases, in the data's order.
pub(super) fn parts(views: &[View<'_>]) -> Result<Vec<CasePart>, LensError> {
    let Some(first) = views.first() else { return Ok(Vec::new()) };
    let (run, room) = (first.run, Room::of(views));
    let benchmark = run.benchmark();
    let of_views: Vec<_> = views
        .iter()
        .map(|view| {
            let examples = view.lens.iter().flat_map(|lens| &lens.examples);
            (by_case(view.run.answers().iter(), |row| &row.case), by_case(examples, |example| &example.case))
        })
        .collect();
    let shaded = views.iter().find_map(|view| shaded_over(view.lens?)).unwrap_or(LayerKind::Softmax);
    let part = |case: &PlannedCase| {
        let of_case = views.iter().zip(&of_views).map(|(view, (answers, examples))| OfCase {
            view,
            answers: answers.get(&case.case).cloned().unwrap_or_default(),
            examples: examples.get(&case.case).cloned().unwrap_or_default(),
        });
        let of_case: Vec<OfCase<'_>> = of_case.collect();
        let shown = run.shown(&case.case)?;
        let special_tokens = special_tokens(case, shown.as_ref());
        let (segments, segments_missing) = match shown {
            None => (
                Vec::new(),
                Some("No prompt was made for this case, so there is no history to show.".to_owned()),
            ),
            Some(shown) => (segments(&shown, case, &of_case, shaded, &room, benchmark), None),
        };
        let probes: Vec<ProbePart> =
            case.probes.iter().map(|probe| probe_part(benchmark, probe, &of_case, &room)).collect();
        let answers: Vec<&AnswerRow> = of_case.iter().flat_map(|one| one.answers.iter().copied()).collect();
        Ok(CasePart {
            id: case.case.clone(),
            kind: case.labels.get(benchmark.split).cloned(),
            pills: pills(&probes),
            folded: probes.len() > OPEN,
            probes,
            blocks: blocks(segments, benchmark.beside),
            segments_missing,
            dropped: dropped(benchmark.segment, &answers),
            special_tokens,
        })
    };
    run.cases().iter().map(part).collect()
}

/// Those that what was shown and the queries spell.
fn special_tokens(case: &PlannedCase, shown: Option<&ShownCase>) -> Vec<&'static str> {
    let turns = shown.iter().flat_map(|shown| &shown.segments).flat_map(|segment| &segment.turns);
    let texts = turns.map(|turn| turn.content.as_str());
    let texts = texts.chain(case.probes.iter().map(|probe| probe.query.as_str()));
    let found: BTreeSet<&str> = texts.flat_map(known_special_tokens).collect();
    found.into_iter().collect()
}

/// A verdict for each answer, or where there are many how many of each.
fn pills(probes: &[ProbePart]) -> Vec<Pill> {
    let one = |probe: &ProbePart, answer: &AnswerPart| {
        let (verdict, colour) = match answer.error {
            Some(_) => ("error", "failed"),
            None => (answer.verdict.as_str(), answer.colour),
        };
        let name = match answer.condition.as_str() {
            "" => probe.id.clone(),
            condition if probes.len() == 1 => condition.to_owned(),
            condition => format!("{} {condition}", probe.id),
        };
        (name, verdict.to_owned(), colour)
    };
    let all: Vec<(String, String, &'static str)> =
        probes.iter().flat_map(|probe| probe.answers.iter().map(move |answer| one(probe, answer))).collect();
    if all.len() <= OPEN {
        let pill = |(name, verdict, colour)| Pill { text: format!("{name}: {verdict}"), colour };
        return all.into_iter().map(pill).collect();
    }
    let mut counts: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    for (_, verdict, colour) in all {
        *counts.entry((verdict, colour)).or_default() += 1;
    }
    let pill = |((verdict, colour), count)| Pill { text: format!("{count} {verdict}"), colour };
    counts.into_iter().map(pill).collect()
}

fn probe_part(benchmark: &Benchmark, probe: &PlannedProbe, of_case: &[OfCase<'_>], room: &Room) -> ProbePart {
    let part = |one: &OfCase<'_>| {
        let answer = one.answer(&probe.id);
        let verdict = answer.and_then(|row| one.view.verdicts?.get(row.key()));
        AnswerPart {
            condition: one.view.condition.to_owned(),
            shown: answer.and_then(|row| shown_of(benchmark, row)),
            answer: answer.and_then(|row| row.answer.as_deref()).map(|text| room.cut(text)),
            thought: answer.and_then(|row| row.thought.as_deref()).map(|text| room.cut(text)),
            cut_off: answer
                .is_some_and(|row| row.stop == Some(palimpsest_core::engine::StopReason::MaxNewTokens)),
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
            reason: verdict
                .and_then(|row| row.reason.clone().or(row.error.clone()))
                .map(|text| room.cut(&text)),
            probability: verdict.and_then(|row| row.probability).map(|p| format!("{p:.2}")),
            attention: match (one.example(&probe.id), one.view.lens) {
                (Some(example), Some(lens)) => summaries(example, lens),
                _ => Vec::new(),
            },
        }
    };
    ProbePart {
        id: probe.id.clone(),
        query: room.cut(&probe.query),
        evidence: evidence_of(benchmark, probe),
        answers: of_case.iter().map(part).collect(),
    }
}

/// A probe's own evidence by the numbers of its segments: `fact in event 3, cause in event 7`.
fn evidence_of(benchmark: &Benchmark, probe: &PlannedProbe) -> String {
    let mut roles: Vec<(&str, BTreeSet<usize>)> = Vec::new();
    for PlannedEvidence { role, segment, .. } in &probe.evidence {
        entry(&mut roles, |(name, _)| name == role, || (role, BTreeSet::new())).1.insert(*segment);
    }
    let one = |(role, segments): &(&str, BTreeSet<usize>)| {
        let plural = if segments.len() == 1 { "" } else { "s" };
        format!("{role} in {}{plural} {}", benchmark.segment, ranges(segments))
    };
    roles.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The part of the history that an answer was given from, where a condition chose it.
fn shown_of(benchmark: &Benchmark, row: &AnswerRow) -> Option<String> {
    let context = row.context.as_ref()?;
    let numbers: BTreeSet<usize> = context.iter().copied().collect();
    let plural = if numbers.len() == 1 { "" } else { "s" };
    let kind = benchmark.segment;
    Some(match numbers.is_empty() {
        true => format!("no {kind}"),
        false => format!("{} {kind}{plural}: {}", numbers.len(), ranges(&numbers)),
    })
}

fn said(benchmark: &Benchmark, verdict: Option<&VerdictRow>) -> String {
    let Some(row) = verdict else { return "not judged".to_owned() };
    let most = benchmark.rubric().verdict.most().unwrap_or(1);
    let right = row.correct.map(|correct| if correct { "correct" } else { "wrong" });
    match (right, row.score, &row.choice) {
        (Some(right), _, Some(choice)) => format!("{choice}, {right}"),
        (Some(right), ..) => right.to_owned(),
        (None, Some(score), _) => format!("{score} of {most}"),
        (None, None, Some(choice)) => choice.clone(),
        (None, None, None) => "judge failed".to_owned(),
    }
}

/// The conditions that shade the segments of cases: all that were measured, or the first where there is no room for all of them but for one.
pub(super) fn shading(study: &Study) -> Vec<&str> {
    let mut names: Vec<&str> = study.measured().map(|(condition, _)| condition.name.as_str()).collect();
    let cases = study.conditions.first().map(|condition| condition.run.cases()).unwrap_or_default();
    let probes = cases.iter().map(|case| case.probes.len()).max().unwrap_or(0);
    if probes <= COLUMNS && probes * names.len() > COLUMNS {
        names.truncate(1);
    }
    names
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
        text: summary(example, kind, lens.segment),
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
        entry(&mut roles, |(name, _)| *name == role, || (role, 0.0)).1 += over(segment);
    }
    let mut parts: Vec<String> =
        roles.iter().map(|(role, mass)| format!("{role} {}", percent(*mass))).collect();
    let segments = plural(segment);
    parts.push(format!("all {segments} {}", percent(all)));
    parts.push(format!("outside the {segments} {}", percent((1.0 - all).max(0.0))));
    parts.join(", ")
}

fn segments(
    shown: &ShownCase,
    case: &PlannedCase,
    of_case: &[OfCase<'_>],
    shaded: LayerKind,
    room: &Room,
    benchmark: &Benchmark,
) -> Vec<SegmentPart> {
    let shading: Vec<&OfCase<'_>> = of_case.iter().filter(|one| one.view.shades).collect();
    let examples = || shading.iter().flat_map(|one| one.examples.iter().map(move |example| (*one, *example)));
    let masses = examples().flat_map(|(_, e)| e.segments.iter().filter_map(|s| e.mean_over(shaded, s)));
    let most = masses.fold(0.0, f64::max);
    // by example, where a segment lies among its segments
    let places: Vec<(&OfCase<'_>, &Example, HashMap<usize, usize>)> = examples()
        .map(|(one, e)| (one, e, e.segments.iter().enumerate().map(|(at, s)| (s.index, at)).collect()))
        .collect();
    let measured = !places.is_empty();
    let room_for_all = case.probes.len() * shading.len() <= COLUMNS;
    let mut of_segment: HashMap<usize, Vec<(&str, &PlannedEvidence)>> = HashMap::new();
    for evidence in &case.evidence {
        of_segment.entry(evidence.segment).or_default().push(("", evidence));
    }
    for probe in &case.probes {
        for evidence in &probe.evidence {
            of_segment.entry(evidence.segment).or_default().push((&probe.id, evidence));
        }
    }
    let part = |segment: &ShownSegment| {
        let mut evidence = of_segment.get(&segment.index).cloned().unwrap_or_default();
        if benchmark.beside == Some(segment.kind.as_str()) {
            // whole texts: what part they play by their place differs by condition, and is said beside their name
            evidence.retain(|(_, one)| one.turn.is_none() || one.bytes.is_some());
        }
        let evidence = evidence.as_slice();
        let roles = roles(evidence, case.probes.len());
        // a probe without attention keeps its place, so that the columns stay in line
        let shade = |probe: &PlannedProbe, one: &OfCase<'_>| {
            let of_probe = |(other, example, _): &&(&OfCase<'_>, &Example, HashMap<usize, usize>)| {
                std::ptr::eq(*other, one) && example.probe == probe.id
            };
            let found = places.iter().find(of_probe).and_then(|(_, example, places)| {
                example.mean_over(shaded, example.segments.get(*places.get(&segment.index)?)?)
            });
            let (percent, alpha) = match found {
                None => ("–".to_owned(), 0.0),
                // black text must stay readable on the darkest shade
                Some(mass) => (percent(mass), if most > 0.0 { 0.62 * mass / most } else { 0.0 }),
            };
            let name = match (shading.len(), case.probes.len()) {
                (1, _) => probe.id.clone(),
                (_, 1) => one.view.condition.to_owned(),
                _ => format!("{} {}", probe.id, one.view.condition),
            };
            Shade { probe: name, percent, alpha: format!("{alpha:.2}") }
        };
        let beside = |probe: &&PlannedProbe| room_for_all || evidence.iter().any(|(id, _)| *id == probe.id);
        let shades =
            case.probes.iter().filter(beside).flat_map(|probe| shading.iter().map(move |one| (probe, *one)));
        let shades = shades.take(if measured { COLUMNS } else { 0 }).map(|(probe, one)| shade(probe, one));
        let limit = if roles.is_empty() { room.plain } else { room.evidence };
        let marks: Vec<&PlannedEvidence> = evidence.iter().map(|(_, evidence)| *evidence).collect();
        let (turns, cut) = turns(segment, &marks, limit);
        SegmentPart {
            kind: segment.kind.clone(),
            number: segment.index,
            shown_as: segment.number,
            stood: stood(shown, segment, of_case, benchmark.beside),
            time: segment.time.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default(),
            shades: shades.collect(),
            roles,
            turns,
            cut,
        }
    };
    shown.segments.iter().map(part).collect()
}

/// The parts that a segment plays, each with the probes that it plays it for.
fn roles(evidence: &[(&str, &PlannedEvidence)], probes: usize) -> Vec<Role> {
    const NAMED: usize = 4;
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for (probe, evidence) in evidence {
        let (_, of) = entry(&mut found, |(role, _)| *role == evidence.role, || (&evidence.role, Vec::new()));
        entry(of, |known| known == probe, || probe);
    }
    let role = |(name, of): &(&str, Vec<&str>)| {
        let named: Vec<&str> = of.iter().copied().take(NAMED).collect();
        let more = of.len().saturating_sub(NAMED);
        let of = match (probes, of.contains(&""), more) {
            (..=1, ..) | (_, true, _) => String::new(),
            (_, _, 0) => named.join(", "),
            (_, _, more) => format!("{} and {more} more", named.join(", ")),
        };
        Role { name: (*name).to_owned(), of }
    };
    found.iter().map(role).collect()
}

/// Where a segment stood among those that stand beside each other, by condition; nothing where its attention was not recorded.
fn stood(
    shown: &ShownCase,
    segment: &ShownSegment,
    of_case: &[OfCase<'_>],
    beside: Option<&str>,
) -> Vec<String> {
    const PLACES: [&str; 4] = ["first", "second", "third", "fourth"];
    if beside != Some(segment.kind.as_str()) {
        return Vec::new();
    }
    let kind: BTreeSet<usize> =
        shown.segments.iter().filter(|other| other.kind == segment.kind).map(|other| other.index).collect();
    let said = of_case.iter().filter_map(|one| {
        let example = one.examples.first()?;
        let order = example.segments.iter().map(|mass| mass.index).filter(|index| kind.contains(index));
        let place = PLACES.get(order.into_iter().position(|index| index == segment.index)?)?;
        Some(match one.view.condition {
            "" => format!("stood {place}"),
            condition => format!("{place} under {condition}"),
        })
    });
    said.collect()
}

/// Segments of one kind that follow each other side by side, where the benchmark says so; the others by themselves.
fn blocks(segments: Vec<SegmentPart>, beside: Option<&str>) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for segment in segments {
        let of_kind = beside == Some(segment.kind.as_str());
        match blocks.last_mut() {
            Some(block) if of_kind && block.beside => block.segments.push(segment),
            _ => blocks.push(Block { beside: of_kind, segments: vec![segment] }),
        }
    }
    blocks
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

/// The segments that truncation left out, numbered from 0, as ranges, or how much of their text; `None` where it left out none.
fn dropped(segment: &str, answers: &[&AnswerRow]) -> Option<String> {
    let all: BTreeSet<usize> = answers.iter().flat_map(|row| &row.dropped_sessions).copied().collect();
    let beside: BTreeSet<usize> = answers.iter().flat_map(|row| &row.dropped_neighbours).copied().collect();
    let beside = match beside.is_empty() {
        true => String::new(),
        false => format!(" Next to evidence: {}.", ranges(&beside)),
    };
    if let (true, Some(row)) = (all.is_empty(), answers.iter().max_by_key(|row| row.dropped_tokens))
        && row.dropped_tokens > 0
    {
        let (gone, of) = (row.dropped_tokens, row.history_tokens);
        return Some(format!("{gone} of {of} tokens left out of the middle to fit the context."));
    }
    (!all.is_empty()).then(|| {
        let name = if all.len() == 1 { segment.to_owned() } else { plural(segment) };
        format!("{} {name} left out to fit the context: {}.{beside}", all.len(), ranges(&all))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_never_round_a_share_to_nothing() {
        assert_eq!([0.0, 0.00001, 0.0042, 0.123].map(percent), ["0%", "<0.01%", "0.42%", "12.3%"]);
    }
}
