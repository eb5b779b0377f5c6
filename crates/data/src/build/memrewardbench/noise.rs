//! Pairs of traces: noise put in, key chunks left out.

use std::collections::HashSet;

use serde_json::json;

use super::trace::{Block, Pair, Strand, Trace, answer, asked, lines, refused, rejected, says, shown};
use crate::build::row::object;
use crate::build::{Made, Row, RowError, Rows, Setting};

/// Lengths of a foreign segment and its model differ by at most this share.
const NEAR: f64 = 0.05;

/// A pair whose chosen trace is the row's, without refused updates.
fn pair(trace: &Trace, how: &'static str, task: &str, worse: &[Block], apart: [Vec<String>; 2]) -> Pair {
    Pair {
        subtask: trace.subtask(task),
        question: asked("Text", &trace.context(), &trace.question),
        chosen: shown(&trace.blocks(false)),
        rejected: shown(worse),
        finals: [trace.last.clone(), trace.last.clone()],
        apart: Some(apart),
        how,
    }
}

/// A trace that noise can be put in: of the whole context, and never refused or refused, as asked.
fn noiseless(row: &Row, was_wrong: bool) -> Result<Trace, RowError> {
    let trace = Trace::of(row)?;
    if trace.dropped {
        return rejected("the trace is of a context without its keys");
    }
    let wrong = trace.strands().any(|strand| strand.wrong.iter().any(|list| !list.is_empty()));
    match (wrong, was_wrong) {
        (true, false) => rejected("an update was wrong"),
        (false, true) => rejected("no update was wrong"),
        _ => Ok(trace),
    }
}

fn steps(blocks: &[Block]) -> Vec<usize> {
    (0..blocks.len()).filter(|at| blocks[*at].step.is_some()).collect()
}

/// Where a copy of the step at `from` is put in. Beside itself nobody could tell which one is the copy.
fn places(steps: &[usize], from: usize) -> Vec<usize> {
    let end = steps.last().map(|last| last + 1);
    steps.iter().copied().chain(end).filter(|at| *at != from && *at != from + 1).collect()
}

/// Noise of a trace that was never wrong: one of its steps again, at a random place (section 3.3, appendix B.1).
pub fn repeat(setting: &Setting<'_>, row: &Row) -> Rows {
    let trace = noiseless(row, false)?;
    let mut blocks = trace.blocks(false);
    let (mut draws, steps) = (setting.draws(&row.id, 0), steps(&blocks));
    if steps.len() < 2 {
        return rejected("the trace has fewer than two steps");
    }
    let from = steps[draws.index(steps.len())];
    let places = places(&steps, from);
    let at = places[draws.index(places.len())];
    let apart = [Vec::new(), vec![blocks[from].text.clone()]];
    blocks.insert(at, blocks[from].clone());
    let told = json!({"step": from, "put_at": at});
    Ok(vec![pair(&trace, "repeat", "Noise", &blocks, apart).row(row, told)])
}

/// Noise that repeats nothing: a step of another row's trace that is as long as one of the row's own, put in where [`repeat`] would put
/// the own one; with `instead` it takes the own one's place, if that has no key, so that the two traces are equally long.
pub fn foreign(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let instead = setting.given("instead")?.unwrap_or(false);
    let traces: Vec<_> = rows.iter().map(|row| noiseless(row, false)).collect();
    let mut pool = Vec::new();
    for (of, trace) in traces.iter().enumerate() {
        for block in trace.iter().flat_map(|trace| trace.blocks(false)).filter(|block| block.step.is_some()) {
            pool.push((of, tokens(setting, &block.text)?, block));
        }
    }
    let made = |nth: usize, row: &Row| -> Result<Row, RowError> {
        let trace = traces[nth].as_ref().map_err(Clone::clone)?;
        let mut blocks = trace.blocks(false);
        let (mut draws, steps) = (setting.draws(&row.id, 0), steps(&blocks));
        let mut tries = steps.clone();
        let has_key = |at: usize| blocks[at].step.as_ref().is_none_or(|(chunk, _)| trace.is_key(chunk));
        tries.retain(|at| !instead || !has_key(*at));
        draws.shuffle(&mut tries);
        for from in tries {
            let own = tokens(setting, &blocks[from].text)?;
            let fits = |(of, tokens, block): &&(usize, usize, Block)| {
                let near = own.abs_diff(*tokens) as f64 <= NEAR * own as f64;
                *of != nth && near && !says(&block.text, &trace.answer)
            };
            let fitting: Vec<_> = pool.iter().filter(fits).collect();
            let places = if instead { vec![from] } else { places(&steps, from) };
            if fitting.is_empty() || places.is_empty() {
                continue;
            }
            let (of, _, block) = fitting[draws.index(fitting.len())];
            let at = places[draws.index(places.len())];
            let mut apart = [Vec::new(), vec![block.text.clone()]];
            if instead {
                // The markup is the same in both.
                let own = blocks.remove(at);
                apart =
                    [&own, block].map(|block| block.step.iter().map(|(a, b)| format!("{a}\n{b}")).collect());
            }
            blocks.insert(at, block.clone());
            let told = json!({"step": from, "put_at": at, "segment_of": rows[*of].id});
            let how = if instead { "instead" } else { "foreign" };
            return Ok(pair(trace, how, "Noise", &blocks, apart).row(row, told));
        }
        rejected("no other trace has a segment of the length")
    };
    let made = |(nth, row): (usize, &Row)| match made(nth, row) {
        Err(RowError::Rejected(why)) => Ok(Err((row.id.clone(), why))),
        made => made.map(Ok),
    };
    rows.iter().enumerate().map(made).collect()
}

/// Tokens of a text. A fault if the tokenizer fails.
pub fn tokens(setting: &Setting<'_>, text: &str) -> Result<usize, RowError> {
    setting.count.count(text).map_err(|error| RowError::Fault(format!("cannot count tokens: {error}")))
}

/// Noise of a trace that was wrong: the refused updates stay in the rejected one, as in figures 14 and 16 (appendix B.1 says the reverse).
pub fn corrected(_: &Setting<'_>, row: &Row) -> Rows {
    let trace = noiseless(row, true)?;
    let wrong = trace.strands().flat_map(|strand| strand.wrong.iter().flatten());
    let wrong: Vec<String> = wrong.map(|update| refused(update)).collect();
    let told = json!({"wrong_updates": wrong.len()});
    Ok(vec![pair(&trace, "corrected", "Noise", &trace.blocks(true), [Vec::new(), wrong]).row(row, told)])
}

/// Drop without a model: the steps of key chunks are left out, and the lines that they brought into the memory with them; the answer is
/// the setting `unknown`.
pub fn drop(setting: &Setting<'_>, row: &Row) -> Rows {
    let whole = noiseless(row, false)?;
    let mut cut = Cut { trace: &whole, forgotten: HashSet::new(), lost: Vec::new() };
    let parts = whole.parts.iter().map(|part| cut.strand(part, "")).collect();
    let start = cut.kept(&whole.start);
    let tail = cut.strand(&whole.tail, &whole.start);
    let mut lost = cut.lost;
    if lost.is_empty() {
        return rejected("no chunk holds a key");
    }
    let rest = Trace { parts, start, tail, last: setting.needed("unknown")?, ..whole.clone() };
    if rest.strands().all(|strand| strand.chunks.is_empty()) {
        return rejected("every chunk holds a key");
    }
    let blocks = rest.blocks(false);
    if blocks.iter().skip(1).any(|block| says(&block.text, &whole.answer)) {
        return rejected("the answer is still in the trace");
    }
    lost.push(answer(&whole.last));
    let apart = [lost, vec![answer(&rest.last)]];
    let mut pair = pair(&whole, "drop", "Drop", &blocks, apart);
    pair.finals[1].clone_from(&rest.last);
    Ok(vec![pair.row(row, json!({}))])
}

struct Cut<'a> {
    trace: &'a Trace,
    /// Lines that steps of key chunks brought into the memory.
    forgotten: HashSet<String>,
    /// Texts that the rest lacks.
    lost: Vec<String>,
}

impl Cut<'_> {
    fn kept(&mut self, memory: &str) -> String {
        let (gone, kept): (Vec<&str>, Vec<&str>) =
            memory.lines().partition(|line| self.forgotten.contains(line.trim()));
        self.lost.extend(gone.into_iter().map(str::to_owned));
        kept.join("\n")
    }

    fn strand(&mut self, strand: &Strand, before: &str) -> Strand {
        let (mut rest, mut before) = (Strand::default(), before);
        for (chunk, memory) in strand.chunks.iter().zip(&strand.trace) {
            if self.trace.is_key(chunk) {
                let known: HashSet<&str> = lines(before).collect();
                self.forgotten.extend(lines(memory).filter(|line| !known.contains(line)).map(str::to_owned));
                self.lost.push(Block::step(chunk, &[], memory).text);
            } else {
                rest.chunks.push(chunk.clone());
                rest.trace.push(self.kept(memory));
            }
            before = memory;
        }
        rest
    }
}

/// Drop with a model: the trace over the whole context against the one over the rest, two rows in the list `rows`.
pub fn against(_: &Setting<'_>, row: &Row) -> Rows {
    let (mut whole, mut rest) = (None, None);
    for fields in row.list("rows")? {
        let row = Row { fields: object(fields.clone()), ..row.clone() };
        let trace = Trace::of(&row)?;
        let slot = if trace.dropped { &mut rest } else { &mut whole };
        *slot = Some((row, trace));
    }
    let (Some((of, whole)), Some((_, rest))) = (whole, rest) else {
        return rejected("one of the two traces is missing");
    };
    let pair = pair(&whole, "drop", "Drop", &rest.blocks(false), <[Vec<String>; 2]>::default());
    let pair = Pair { finals: [whole.last.clone(), rest.last], apart: None, ..pair };
    Ok(vec![pair.row(&of, json!({}))])
}

/// A context without every chunk that holds a key.
pub fn without_keys(_: &Setting<'_>, row: &Row) -> Rows {
    let (chunks, keys): (Vec<String>, Vec<String>) = (row.read("chunks")?, row.read("keys")?);
    let all = chunks.len();
    let rest: Vec<String> =
        chunks.into_iter().filter(|chunk| !keys.iter().any(|key| chunk.contains(key.as_str()))).collect();
    if rest.is_empty() || rest.len() == all {
        return rejected(if rest.is_empty() { "every chunk holds a key" } else { "no chunk holds a key" });
    }
    let made = row.part("rest", row.fields.clone());
    Ok(vec![made.with(json!({"chunks": rest, "dropped": true}))])
}
