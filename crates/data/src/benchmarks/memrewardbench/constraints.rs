//! Constraints of long-form questions, and questions with a share of them (MemoryRewardBench, appendix D.4). Sources by form:
//!
//! - **LongProc**: known routes of the problem, after `[PROBLEM]` if present. Notes, format, example and reminders always stay.
//! - **LongEval**: the plan for a `Title:`: list items, JSON entries, else lines; without them nothing is removed.
//! - **LongGenBench** and others: items `1)`, `2)`, ..., bullets and `1.` lines, or their sub-items; a parent goes with the last of them.
//!
//! The first constraints are kept (figure 21), so densities are nested and deterministic.

use super::outlines::{Piece, items, plan};
use super::terms::Source;

const PROBLEM: &str = "[PROBLEM]";
const ROUTE: &str = "You can travel from ";
const TITLE: &str = "title:";

/// `None` for unknown forms.
pub(super) fn source(question: &str) -> Option<Source> {
    let begins = question.trim_start().get(..TITLE.len()).map(str::to_ascii_lowercase);
    if problem(question).1.contains(ROUTE) {
        Some(Source::LongProc)
    } else if begins.as_deref() == Some(TITLE) {
        Some(Source::LongEval)
    } else {
        (Piece::count(&items(question)) > 1).then_some(Source::LongGenBench)
    }
}

fn constraints(question: &str) -> Vec<Piece> {
    match source(question) {
        Some(Source::LongProc) => routes(question),
        Some(Source::LongEval) => plan(question),
        Some(Source::LongGenBench) | None => items(question),
    }
}

/// Offset and text of a path puzzle's problem.
fn problem(question: &str) -> (usize, &str) {
    let start = question.rfind(PROBLEM).map_or(0, |at| at + PROBLEM.len());
    (start, question.get(start..).unwrap_or_default())
}

/// Known routes, with the preceding sentence if it is about the same city.
fn routes(question: &str) -> Vec<Piece> {
    let mut found = Vec::new();
    let (mut start, text) = problem(question);
    for line in text.split_inclusive('\n') {
        let shown = line.trim_end();
        let mut reached = 0;
        for (at, _) in shown.match_indices(ROUTE) {
            let rest = shown.get(at..).unwrap_or_default();
            let city = rest.get(ROUTE.len()..).and_then(|rest| rest.split(" to ").next()).unwrap_or_default();
            let before = shown.get(reached..at).unwrap_or_default();
            let begins = |own: usize| {
                let before = before.get(..own).unwrap_or_default().trim_end();
                before.is_empty() || before.ends_with(['.', ':'])
            };
            let mut names = before.rmatch_indices(city).map(|(own, _)| own);
            let own = names.find(|own| !city.is_empty() && begins(*own));
            let from = own.map_or(at, |own| reached + own);
            // Names contain full stops: search after the means of transport.
            let by = rest.find(" by ").unwrap_or(0);
            let end = rest.get(by..).and_then(|rest| rest.find('.'));
            reached = at + end.map_or(rest.len(), |end| by + end + 1);
            found.push(Piece::plain(start + from..start + reached));
        }
        start += line.len();
    }
    found
}

pub(super) fn thinned(question: &str, percent: u32) -> String {
    let all = constraints(question);
    let count = Piece::count(&all);
    let keep = (count * percent.min(100) as usize + 50) / 100;
    if keep >= count {
        return question.to_owned();
    }
    let mut gone = Vec::new();
    add_gone(&all, keep, &mut 0, &mut gone);
    // Outer pieces first.
    gone.sort_by_key(|piece| (piece.bytes.start, std::cmp::Reverse(piece.bytes.end)));
    without(question, &gone)
}

/// Adds the pieces from constraint number `keep` on, and parents of which none is kept.
fn add_gone<'a>(pieces: &'a [Piece], keep: usize, seen: &mut usize, gone: &mut Vec<&'a Piece>) {
    for piece in pieces {
        gone.extend((*seen >= keep).then_some(piece));
        match piece.members.as_slice() {
            [] => *seen += 1,
            members => add_gone(members, keep, seen, gone),
        }
    }
}

/// Removes pieces with their commas and empty lines.
fn without(text: &str, gone: &[&Piece]) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut reached = 0;
    for Piece { bytes, listed, .. } in gone {
        if bytes.end <= reached {
            continue;
        }
        kept.push_str(text.get(reached..bytes.start.max(reached)).unwrap_or_default());
        reached = bytes.end;
        let rest = text.get(reached..).unwrap_or_default();
        if *listed {
            if let Some(after) = rest.trim_start().strip_prefix(',') {
                reached = text.len() - after.trim_start().len();
                continue;
            }
            // Last in its list: drop the preceding comma.
            if kept.trim_end().ends_with(',') {
                kept.truncate(kept.trim_end().len() - 1);
            }
        }
        // Drop an emptied line, and one of two spaces.
        let line_is_gone = (kept.is_empty() || kept.ends_with('\n')) && rest.starts_with('\n');
        if line_is_gone || kept.ends_with(' ') && rest.starts_with(' ') {
            reached += 1;
        }
    }
    kept.push_str(text.get(reached..).unwrap_or_default());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::draw::Draws;

    /// Fuzz over list fragments: the result is a subsequence of the text.
    #[test]
    fn no_text_is_too_odd_and_what_is_left_of_it_stood_there_before() {
        let parts: Vec<&str> =
            "1) |2) |3) |- |* |  |\n|\\n|(e.g. |(|)|), |: |, |; |[|]|{\"k\": |}|\"v\"|['|', '|```json\n|bullet points: |é|\
             You can travel from A to B by bus."
                .split('|')
                .collect();
        for seed in 0..4000 {
            let mut draws = Draws::new("odd texts", seed, "c");
            let begins = ["", "Title: t\n", "[PROBLEM]"][draws.index(3)];
            let count = 1 + draws.index(14);
            let text: String = (0..count).map(|_| parts[draws.index(parts.len())]).collect();
            let text = format!("{begins}{text}");
            for percent in [0, 50, 100] {
                let left = thinned(&text, percent);
                let mut rest = text.chars();
                assert!(
                    left.chars().all(|c| rest.any(|other| other == c)),
                    "{text:?} at {percent}: {left:?}"
                );
            }
        }
    }
}
