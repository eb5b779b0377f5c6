//! One part per case: history shaded by the query's attention, answers, verdicts.
//!
//! Size limits: long texts are cut, many probes are folded, and shade columns are limited to probes with evidence in the segment. Cuts are
//! marked.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::text::turns;
use crate::captions::{plural, ranges};
use palimpsest_analysis::lens::{AnalysedRun, Example, LayerKind, Lens, LensError, Study};
use palimpsest_analysis::records::{Record, join};
use palimpsest_core::engine::StopReason;
use palimpsest_core::text::known_special_tokens;
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::ground::order::entry;
use palimpsest_run::runs::judged::Judged;
use palimpsest_run::runs::plan::{PlannedCase, PlannedEvidence, PlannedProbe};
use palimpsest_run::runs::rows::{AnswerRow, VerdictRow};
use palimpsest_run::runs::store::{ShownCase, ShownSegment};

/// Above this size, segments without evidence are cut to [`EXCERPT`] characters; 400 histories of 150,000 tokens would make a page of a
/// quarter of a gigabyte.
const MOST_BYTES: u64 = 8 << 20;
/// Characters per segment without evidence on an oversized page.
const EXCERPT: usize = 400;
/// Total characters of evidence on an oversized page.
const EVIDENCE: usize = 32 << 20;
/// Maximum shade columns (probe and condition) per segment.
const COLUMNS: usize = 6;
/// Maximum unfolded probes per case.
const OPEN: usize = 12;
/// Maximum answers (probe and condition) with uncut texts; above, each text is cut to [`TEXT`] characters.
const WHOLE_TEXTS: usize = 1500;
/// Characters per query, answer or reason on a large page.
const TEXT: usize = 600;

/// A run under one condition.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// Display name; empty if the run has only the plain condition.
    pub condition: &'a str,
    /// What it does.
    pub about: String,
    /// Why no attention is shown, if so.
    pub without: Option<&'a str>,
    pub shades: bool,
    pub run: &'a AnalysedRun,
    pub verdicts: Option<&'a Judged<'a>>,
    pub lens: Option<&'a Lens>,
}

/// Maximum characters of a text, if limited.
#[derive(Default)]
struct Room {
    /// Per segment without evidence.
    plain: Option<usize>,
    /// Per segment with evidence.
    evidence: Option<usize>,
    /// Per query, answer or reason.
    text: Option<usize>,
}

impl Room {
    fn of(views: &[View<'_>]) -> Self {
        let run = views[0].run;
        let folder = std::fs::read_dir(run.path().join("cases")).into_iter().flatten();
        let bytes: u64 = folder.filter_map(|entry| entry.ok()?.metadata().ok()).map(|meta| meta.len()).sum();
        let large = bytes > MOST_BYTES;
        let segments = |case| all_evidence(case).map(|(_, one)| one.segment).collect::<BTreeSet<_>>().len();
        let pieces: usize = run.cases().iter().map(segments).sum();
        let probes: usize = run.cases().iter().map(|case| case.probes.len()).sum();
        Room {
            plain: large.then_some(EXCERPT),
            evidence: large.then_some((EVIDENCE / pieces.max(1)).max(EXCERPT)),
            text: (probes * views.len() > WHOLE_TEXTS).then_some(TEXT),
        }
    }

    fn cut(&self, text: &str) -> String {
        match self.text {
            Some(most) if text.chars().nth(most).is_some() => text.chars().take(most).chain(['…']).collect(),
            _ => text.to_owned(),
        }
    }
}

/// Evidence of a case and of its probes, with the probe's name.
fn all_evidence(case: &PlannedCase) -> impl Iterator<Item = (&str, &PlannedEvidence)> {
    let of_probes =
        case.probes.iter().flat_map(|probe| probe.evidence.iter().map(move |one| (probe.id.as_str(), one)));
    case.evidence.iter().map(|one| ("", one)).chain(of_probes)
}

/// A case under one condition.
struct OfCase<'a> {
    view: &'a View<'a>,
    records: Vec<&'a Record<'a>>,
    examples: Vec<&'a Example>,
}

/// Template values of all cases, in data order.
pub(super) fn parts(views: &[View<'_>]) -> Result<Vec<Value>, LensError> {
    let (run, room) = (views[0].run, Room::of(views));
    let benchmark = run.benchmark();
    let records = views.iter().map(|view| {
        let (one, verdicts) = (view.run, view.verdicts.into_iter().flat_map(Judged::rows));
        join(one.cases(), one.condition(), one.answers(), verdicts)
    });
    let records: Vec<Vec<Record<'_>>> = records.collect();
    let shaded = views.iter().find_map(|view| shaded_over(view.lens?)).unwrap_or(LayerKind::Softmax);
    let part = |case: &PlannedCase| {
        let of_case = views.iter().zip(&records).map(|(view, records)| OfCase {
            view,
            records: records.iter().filter(|record| record.case.case == case.case).collect(),
            examples: (view.lens.iter().flat_map(|lens| &lens.examples))
                .filter(|example| example.case == case.case)
                .collect(),
        });
        let of_case: Vec<OfCase<'_>> = of_case.collect();
        let shown = run.shown(&case.case)?;
        let segments = shown.as_ref().map(|shown| segments(shown, case, &of_case, shaded, &room, benchmark));
        let missing = "No prompt was made for this case, so there is no history to show.";
        let (mut probes, mut said) = (Vec::new(), Vec::new());
        for probe in &case.probes {
            let answers = of_case.iter().map(|one| {
                let (part, verdict, colour) = answer_part(benchmark, probe, one, &room);
                let name = match one.view.condition {
                    "" => probe.id.clone(),
                    condition if case.probes.len() == 1 => condition.to_owned(),
                    condition => format!("{} {condition}", probe.id),
                };
                said.push((name, verdict, colour));
                part
            });
            let answers: Vec<Value> = answers.collect();
            let (query, evidence) = (room.cut(&probe.query), evidence_of(benchmark, probe));
            probes.push(json!({"id": probe.id, "query": query, "evidence": evidence, "answers": answers}));
        }
        let answers: Vec<&AnswerRow> =
            of_case.iter().flat_map(|one| &one.records).filter_map(|record| record.row).collect();
        Ok(json!({
            "id": case.case,
            "kind": case.labels.get(benchmark.split),
            "pills": pills(said),
            "folded": probes.len() > OPEN,
            "probes": probes,
            "blocks": blocks(segments.unwrap_or_default(), benchmark.beside),
            "segments_missing": shown.is_none().then_some(missing),
            "dropped": dropped(benchmark.segment, &answers),
            "special_tokens": special_tokens(case, shown.as_ref()),
        }))
    };
    run.cases().iter().map(part).collect()
}

/// Special tokens spelled out in the history or in queries.
fn special_tokens(case: &PlannedCase, shown: Option<&ShownCase>) -> Vec<&'static str> {
    let turns = shown.iter().flat_map(|shown| &shown.segments).flat_map(|segment| &segment.turns);
    let texts = turns.map(|turn| turn.content.as_str());
    let texts = texts.chain(case.probes.iter().map(|probe| probe.query.as_str()));
    let found: BTreeSet<&str> = texts.flat_map(known_special_tokens).collect();
    found.into_iter().collect()
}

/// Badges beside a case's name: (name, verdict, colour) per answer, or counts if there are many.
fn pills(all: Vec<(String, String, &'static str)>) -> Vec<Value> {
    if all.len() <= OPEN {
        let pill = |(name, verdict, colour)| json!({"text": format!("{name}: {verdict}"), "colour": colour});
        return all.into_iter().map(pill).collect();
    }
    let mut counts: BTreeMap<(String, &'static str), usize> = BTreeMap::new();
    for (_, verdict, colour) in all {
        *counts.entry((verdict, colour)).or_default() += 1;
    }
    let pill = |((verdict, colour), count)| json!({"text": format!("{count} {verdict}"), "colour": colour});
    counts.into_iter().map(pill).collect()
}

/// Outcome of a probe under one condition, with badge text and colour: `correct`, `wrong`, `failed` or none.
fn answer_part(
    benchmark: &Benchmark,
    probe: &PlannedProbe,
    one: &OfCase<'_>,
    room: &Room,
) -> (Value, String, &'static str) {
    let record = one.records.iter().find(|record| record.probe.id == probe.id);
    let row = record.and_then(|record| record.row);
    let verdict = record.filter(|_| row.is_some()).and_then(|record| record.verdicts.last().copied());
    let error = row.map_or(Some("not answered yet"), |row| row.error.as_deref());
    let said = said(benchmark, verdict);
    let colour = match verdict.and_then(|row| row.correct) {
        Some(true) => "correct",
        Some(false) => "wrong",
        None => "",
    };
    let example = one.examples.iter().find(|example| example.probe == probe.id);
    let attention = example.zip(one.view.lens).map(|(example, lens)| summaries(example, lens));
    let text = |text: &str| room.cut(text);
    let part = json!({
        "condition": one.view.condition,
        "shown": row.and_then(|row| shown_of(benchmark, row)),
        "answer": row.and_then(|row| row.answer.as_deref()).map(text),
        "thought": row.and_then(|row| row.thought.as_deref()).map(text),
        "cut_off": row.is_some_and(|row| row.stop == Some(StopReason::MaxNewTokens)),
        "error": error,
        "verdict": said,
        "colour": colour,
        "reason": verdict.and_then(|row| row.reason.as_deref().or(row.error.as_deref())).map(text),
        "probability": verdict.and_then(|row| row.probability).map(|p| format!("{p:.2}")),
        "attention": attention.unwrap_or_default(),
    });
    match error {
        Some(_) => (part, "error".to_owned(), "failed"),
        None => (part, said, colour),
    }
}

/// Example: `fact in event 3, cause in event 7`.
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

/// Part of the history shown, if the condition selects one.
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

/// Conditions used for shading: all measured, or the first if there are too many.
pub(super) fn shading(study: &Study) -> Vec<&str> {
    let mut names: Vec<&str> = study.measured().map(|(condition, _)| condition.name.as_str()).collect();
    let cases = study.conditions.first().map(|condition| condition.run.cases()).unwrap_or_default();
    let probes = cases.iter().map(|case| case.probes.len()).max().unwrap_or(0);
    if probes <= COLUMNS && probes * names.len() > COLUMNS {
        names.truncate(1);
    }
    names
}

/// Layer kind averaged for shading: softmax if present. Kinds are never mixed.
pub fn shaded_over(lens: &Lens) -> Option<LayerKind> {
    lens.layer_kinds().first().map(|(kind, _)| *kind)
}

/// Attention on each role, on all segments and outside them, by kind of layer.
fn summaries(example: &Example, lens: &Lens) -> Vec<Value> {
    let segments = plural(lens.segment);
    let part = |(kind, count): (LayerKind, usize)| {
        let layers = match lens.has_kinds() {
            false => "layers".to_owned(),
            true => format!("{} layers ({count} of {})", kind.key(), lens.layers.len()),
        };
        let over = |segment| example.mean_over(kind, segment).unwrap_or(0.0);
        let all: f64 = example.segments.iter().map(over).sum();
        let mut masses: Vec<(String, f64)> = Vec::new();
        for segment in &example.segments {
            let Some(role) = &segment.role else { continue };
            entry(&mut masses, |(name, _)| name == role, || (role.clone(), 0.0)).1 += over(segment);
        }
        masses.push((format!("all {segments}"), all));
        masses.push((format!("outside the {segments}"), (1.0 - all).max(0.0)));
        let text: Vec<String> =
            masses.iter().map(|(name, mass)| format!("{name} {}", percent(*mass))).collect();
        json!({"linear": kind == LayerKind::Linear, "layers": layers, "text": text.join(", ")})
    };
    lens.layer_kinds().into_iter().map(part).collect()
}

fn segments(
    shown: &ShownCase,
    case: &PlannedCase,
    of_case: &[OfCase<'_>],
    shaded: LayerKind,
    room: &Room,
    benchmark: &Benchmark,
) -> Vec<Value> {
    let shading: Vec<&OfCase<'_>> = of_case.iter().filter(|one| one.view.shades).collect();
    let examples = || shading.iter().flat_map(|one| &one.examples);
    let masses = examples().flat_map(|e| e.segments.iter().filter_map(|s| e.mean_over(shaded, s)));
    let most = masses.fold(0.0, f64::max);
    let measured = examples().next().is_some();
    let room_for_all = case.probes.len() * shading.len() <= COLUMNS;
    let part = |segment: &ShownSegment| {
        let here = all_evidence(case).filter(|(_, one)| one.segment == segment.index);
        let mut evidence: Vec<(&str, &PlannedEvidence)> = here.collect();
        if benchmark.beside == Some(segment.kind.as_str()) {
            // whole-text evidence: its role by position differs by condition, and is stated beside the name
            evidence.retain(|(_, one)| one.turn.is_none() || one.bytes.is_some());
        }
        let evidence = evidence.as_slice();
        let roles = roles(evidence, case.probes.len());
        // unmeasured probes keep their column, for alignment
        let shade = |probe: &PlannedProbe, one: &OfCase<'_>| {
            let example = one.examples.iter().find(|example| example.probe == probe.id);
            let found = example.and_then(|example| {
                let here = example.segments.iter().find(|one| one.index == segment.index)?;
                example.mean_over(shaded, here)
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
            json!({"probe": name, "percent": percent, "alpha": format!("{alpha:.2}")})
        };
        let beside = |probe: &&PlannedProbe| room_for_all || evidence.iter().any(|(id, _)| *id == probe.id);
        let shades =
            case.probes.iter().filter(beside).flat_map(|probe| shading.iter().map(move |one| (probe, *one)));
        let shades = shades.take(if measured { COLUMNS } else { 0 }).map(|(probe, one)| shade(probe, one));
        let limit = if roles.is_empty() { room.plain } else { room.evidence };
        let marks: Vec<&PlannedEvidence> = evidence.iter().map(|(_, evidence)| *evidence).collect();
        let (turns, cut) = turns(segment, &marks, limit);
        json!({
            "kind": segment.kind,
            "number": segment.index,
            "shown_as": segment.number,
            "stood": stood(shown, segment, of_case, benchmark.beside),
            "time": segment.time.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string()).unwrap_or_default(),
            "shades": shades.collect::<Vec<_>>(),
            "roles": roles,
            "turns": turns,
            "cut": cut,
        })
    };
    shown.segments.iter().map(part).collect()
}

/// Roles of a segment, each with its probes.
fn roles(evidence: &[(&str, &PlannedEvidence)], probes: usize) -> Vec<Value> {
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
        json!({"name": name, "of": of})
    };
    found.iter().map(role).collect()
}

/// Position among side-by-side segments, by condition; empty without recorded attention.
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

/// Groups consecutive segments of the kind `beside`; the others stay single.
fn blocks(segments: Vec<Value>, beside: Option<&str>) -> Vec<Value> {
    let of_kind = |segment: &Value| beside.is_some() && segment["kind"].as_str() == beside;
    let blocks = segments.chunk_by(|one, next| of_kind(one) && of_kind(next));
    blocks.map(|block| json!({"beside": of_kind(&block[0]), "segments": block})).collect()
}

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

/// Truncated segments as ranges numbered from 0, or the amount of text cut; `None` without truncation.
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
