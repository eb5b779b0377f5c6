//! A segment's text: turns or fields, highlighted evidence, cuts.

use std::ops::Range;

use serde::Serialize;

use palimpsest_run::runs::plan::PlannedEvidence;
use palimpsest_run::runs::store::ShownSegment;

/// A turn, or a field of an event.
#[derive(Debug, Serialize)]
pub(super) struct TurnPart {
    who: String,
    field: bool,
    marked: bool,
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Piece {
    marked: bool,
    text: String,
}

/// Chat roles; turns of other roles are fields.
const SPEAKERS: [&str; 5] = ["user", "assistant", "system", "tool", ""];

/// Turns of a segment up to a number of characters, and the number omitted.
pub(super) fn turns(
    segment: &ShownSegment,
    evidence: &[&PlannedEvidence],
    limit: Option<usize>,
) -> (Vec<TurnPart>, usize) {
    let mut left = limit.unwrap_or(usize::MAX);
    let (mut turns, mut cut) = (Vec::new(), 0);
    for (at, turn) in segment.turns.iter().enumerate() {
        let here = || evidence.iter().filter(|one| one.turn == Some(at));
        let count = turn.content.chars().count();
        let kept = count.min(left);
        cut += count - kept;
        left -= kept;
        if kept == 0 {
            continue;
        }
        let end = turn.content.char_indices().nth(kept).map_or(turn.content.len(), |(end, _)| end);
        let text = &turn.content[..end];
        let marks = here().filter_map(|one| one.bytes.clone());
        turns.push(TurnPart {
            who: turn.role.clone(),
            field: !SPEAKERS.contains(&turn.role.as_str()),
            marked: here().any(|one| one.bytes.is_none()),
            pieces: pieces(text, marks.collect()),
        });
    }
    (turns, cut)
}

/// Splits a text at marked byte ranges; ranges off character boundaries or out of bounds are ignored.
fn pieces(text: &str, mut marks: Vec<Range<usize>>) -> Vec<Piece> {
    marks.sort_by_key(|mark| (mark.start, mark.end));
    let (mut pieces, mut at) = (Vec::new(), 0);
    let mut push = |marked: bool, text: &str| {
        if !text.is_empty() {
            pieces.push(Piece { marked, text: text.to_owned() });
        }
    };
    for mark in marks {
        let (start, end) = (mark.start.max(at), mark.end.min(text.len()));
        if let (Some(before), Some(marked)) = (text.get(at..start), text.get(start..end))
            && start < end
        {
            push(false, before);
            push(true, marked);
            at = end;
        }
    }
    push(false, &text[at..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_data::case::Turn;

    fn segment(turns: Vec<Turn>) -> ShownSegment {
        ShownSegment { kind: "session".to_owned(), index: 0, number: None, time: None, turns }
    }

    fn text(turn: &TurnPart) -> String {
        turn.pieces.iter().map(|piece| piece.text.as_str()).collect()
    }

    #[test]
    fn a_cut_segment_says_how_much_is_missing_and_splits_no_character() {
        let turn = |content: &str| Turn::new("user", content);
        let segment = segment(vec![turn("äöü"), turn("éè"), turn("last")]);
        let (kept, cut) = turns(&segment, &[], Some(4));
        assert_eq!(kept.iter().map(text).collect::<Vec<_>>(), ["äöü", "é"]);
        assert_eq!(cut, 5);
        assert_eq!(turns(&segment, &[], None).1, 0);
    }

    #[test]
    fn evidence_within_a_segment_is_marked_by_field_and_by_bytes() {
        let segment = segment(vec![Turn::new("where", "Java Head"), Turn::new("what", "A gale, then calm.")]);
        let evidence = |turn, bytes| PlannedEvidence { role: "fact".to_owned(), segment: 0, turn, bytes };
        let (whole, gale, calm, beyond) = (
            evidence(Some(0), None),
            evidence(Some(1), Some(2..6)),
            evidence(Some(1), Some(4..17)),
            evidence(Some(1), Some(30..40)),
        );
        let (found, _) = turns(&segment, &[&calm, &whole, &beyond, &gale], None);
        assert!(found[0].marked && found[0].field && !found[1].marked);
        let piece = |marked, text: &str| Piece { marked, text: text.to_owned() };
        let expected =
            [piece(false, "A "), piece(true, "gale"), piece(true, ", then calm"), piece(false, ".")];
        assert_eq!(found[1].pieces, expected);
        assert_eq!(turns(&segment, &[], None).0[1].pieces.len(), 1);
    }
}
