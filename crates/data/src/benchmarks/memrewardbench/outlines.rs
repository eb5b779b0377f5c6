//! Parses lists in question texts: numbered items, bullets, sub-items, inline lists, article plans and JSON.

use std::ops::Range;

use serde::de::IgnoredAny;

const EXAMPLES: [&str; 2] = ["(e.g.", "(for example"];
const BULLET_POINT: &str = "bullet point";
const BASED_ON: &str = " based on";
/// Separators of inline lists after a bullet's colon.
const INLINE: [&str; 4] = [" • ", " - ", " * ", "; "];

/// A constraint, or with members a parent that goes with the last of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Removed or kept as a whole; of a parent its own text.
    pub(super) bytes: Range<usize>,
    pub(super) listed: bool,
    pub(super) members: Vec<Piece>,
}

impl Piece {
    pub(super) fn plain(bytes: Range<usize>) -> Self {
        Piece { bytes, listed: false, members: Vec::new() }
    }

    /// Number of constraints.
    pub(super) fn count(pieces: &[Piece]) -> usize {
        pieces.iter().map(|piece| Piece::count(&piece.members).max(1)).sum()
    }
}

struct Item {
    bytes: Range<usize>,
    depth: usize,
    /// Separated from the previous item by other text.
    apart: bool,
}

/// Numbered items anywhere, and list-like lines. An example belongs to its item, however many lines it has.
pub(super) fn items(text: &str) -> Vec<Piece> {
    let text = &without_examples(text);
    let mut found: Vec<Item> = Vec::new();
    let (mut number, mut apart, mut start) = (0, true, 0);
    for line in text.split_inclusive('\n') {
        let (from, shown) = (start, line.trim_end());
        start += line.len();
        if shown.is_empty() {
            continue;
        }
        let marks = marks(shown, &mut number, false).into_iter().map(|at| from + at).collect();
        let before = found.len();
        add_line(&mut found, text, (from..from + shown.len(), marks, apart), false);
        apart = found.len() == before;
    }
    build(text, &found)
}

/// Items at a line's marks, or the line itself if list-like. Text before the marks is their head, if the line is list-like or `planned`.
fn add_line(
    found: &mut Vec<Item>,
    text: &str,
    (line, marks, mut apart): (Range<usize>, Vec<usize>, bool),
    planned: bool,
) {
    let shown = text.get(line.clone()).unwrap_or_default();
    let (depth, indented) = (depth(shown), 1 + leading(shown) / 2 * 2);
    let first = match marks.first() {
        Some(mark) if *mark > line.start + leading(shown) && (planned || depth.is_some()) => {
            let depth = depth.unwrap_or(indented);
            found.push(Item { bytes: line.start..*mark, depth, apart: std::mem::take(&mut apart) });
            depth + 1
        }
        Some(_) => indented,
        None => return found.extend(depth.map(|depth| Item { bytes: line, depth, apart })),
    };
    let ends = marks.iter().skip(1).copied().chain([line.end]);
    for (&from, to) in marks.iter().zip(ends) {
        found.push(Item { bytes: from..to, depth: first, apart: std::mem::take(&mut apart) });
    }
}

/// Items below an item, else inline members, are its members.
fn build(text: &str, items: &[Item]) -> Vec<Piece> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(item) = items.get(at) {
        let below = items.get(at + 1..).unwrap_or_default();
        let count = below.iter().take_while(|other| other.depth > item.depth && !other.apart).count();
        let mut bytes = item.bytes.clone();
        let members = match count {
            0 => members(text, &bytes),
            _ => build(text, below.get(..count).unwrap_or_default()),
        };
        if let (0, Some(first)) = (count, members.first()) {
            bytes.end = first.bytes.start;
        }
        found.push(Piece { members, ..Piece::plain(bytes) });
        at += 1 + count;
    }
    found
}

/// Bracketed members after a colon: `birthdays: wife (21 May), son (2 June)`.
fn members(text: &str, item: &Range<usize>) -> Vec<Piece> {
    let shown = text.get(item.clone()).unwrap_or_default();
    let Some(colon) = shown.find(':') else { return Vec::new() };
    let (mut found, mut depth) = (Vec::new(), 0_usize);
    let mut from = colon + 1 + leading(shown.get(colon + 1..).unwrap_or_default());
    for (at, c) in shown.char_indices().skip_while(|(at, _)| *at <= colon) {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.saturating_sub(1);
                let rest = shown.get(at + 1..).unwrap_or_default();
                let ends = rest.trim().is_empty() || [",", ";", "."].contains(&rest.trim());
                if depth == 0 && (ends || rest.starts_with(", ") || rest.starts_with("; ")) {
                    let bytes = item.start + from..item.start + at + 1;
                    found.push(Piece { listed: true, ..Piece::plain(bytes) });
                    from = at + 2 + leading(rest.get(1..).unwrap_or_default());
                }
            }
            _ => {}
        }
    }
    let all_of_it = from >= shown.trim_end().len();
    if found.len() > 1 && all_of_it { found } else { Vec::new() }
}

/// Depth by indentation; `None` if not list-like. Bullets are below numbers of equal indent.
fn depth(line: &str) -> Option<usize> {
    let shown = line.trim_start();
    let bullet = ["- ", "* ", "+ ", "• "].iter().any(|mark| shown.starts_with(mark));
    let rest = shown.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = (1..=2).contains(&(shown.len() - rest.len())) && rest.starts_with(". ");
    (bullet || numbered).then(|| 1 + leading(line) / 2 * 2 + usize::from(bullet))
}

/// Offsets of `1)`, `2)`, ... in a line, continuing from `number`. New lists start at the line start, or `anywhere`.
fn marks(line: &str, number: &mut usize, anywhere: bool) -> Vec<usize> {
    let mut found = Vec::new();
    for (close, _) in line.match_indices(')') {
        let before = line.get(..close).unwrap_or_default();
        let start = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let Ok(value) = before.get(start..).unwrap_or_default().parse::<usize>() else { continue };
        let before = before.get(..start).unwrap_or_default();
        let apart = !before.ends_with(|c: char| c.is_alphanumeric() || c == '(');
        let begins = value == 1 && (anywhere || *number == 0 || before.trim().is_empty());
        if apart && (value == *number + 1 || begins) {
            found.push(start);
            *number = value;
        }
    }
    found
}

/// The text with bracketed examples crossed out, byte for byte; unclosed ones end with the line.
fn without_examples(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut bytes = text.as_bytes().to_vec();
    for (start, _) in EXAMPLES.iter().flat_map(|opening| lower.match_indices(opening)) {
        let line_end = || text[start..].find('\n').map_or(text.len(), |end| start + end);
        let end = closing(text, start).unwrap_or_else(line_end);
        bytes[start..end].fill(b'x');
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Matching bracket of `start`; the bracket of `1)` is ignored.
fn closing(text: &str, start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in text.get(start..)?.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                let before = text.get(start..start + at)?;
                let bare = before.trim_end_matches(|c: char| c.is_ascii_digit());
                if depth == 1 && bare.len() < before.len() && bare.ends_with(char::is_whitespace) {
                    continue;
                }
                depth -= 1;
                if depth == 0 {
                    return Some(start + at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The plan after its announcement, which goes with the last item; without one, JSON or items.
pub(super) fn plan(text: &str) -> Vec<Piece> {
    let Some((clause, start)) = announced(text) else {
        let json = text.match_indices(['{', '[']).find(|(at, _)| json_end(text, *at).is_some());
        return json.map_or_else(|| items(text), |(at, _)| entries(text, at).0);
    };
    let (mut found, mut lines) = (Vec::new(), Vec::new());
    let mut reached = start;
    let written = text.get(start..).is_some_and(|rest| rest.trim_start().starts_with("['"));
    while let Some(line) = next_line(text, reached, written) {
        reached = line.end;
        let from = skip_space(text, line.start);
        let is_json = from < line.end && text.get(from..).is_some_and(|rest| rest.starts_with(['{', '[']));
        if is_json && json_end(text, from).is_some() {
            found.extend(build(text, &std::mem::take(&mut lines)));
            let (pieces, end) = entries(text, from);
            found.extend(pieces);
            reached = end;
            continue;
        }
        add_planned(&mut lines, text, line, written);
    }
    found.extend(build(text, &lines));
    if found.is_empty() {
        return found;
    }
    vec![Piece { members: found, ..Piece::plain(clause..text.trim_end().len()) }]
}

/// Offsets of the announcing clause and of the plan.
fn announced(text: &str) -> Option<(usize, usize)> {
    let lower = text.to_ascii_lowercase();
    let at = lower.find(BULLET_POINT)?;
    let line = lower.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let clause = lower.get(line..at)?.rfind(BASED_ON).map_or(at, |before| line + before);
    let clause = if text.get(line..at)?.trim().is_empty() { line } else { clause };
    let word = at + BULLET_POINT.len();
    let colon = lower.get(word..)?.split('\n').next()?.find(':');
    Some((clause, colon.map_or(word, |colon| word + colon + 1)))
}

/// Next line; breaks are a newline, a literal `\n`, or separators of a `written` list.
fn next_line(text: &str, start: usize, written: bool) -> Option<Range<usize>> {
    const BREAKS: [&str; 2] = ["\n", "\\n"];
    const OF_LISTS: [&str; 4] = ["', '", "\", \"", "', \"", "\", '"];
    let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
    let breaks = BREAKS.iter().chain(OF_LISTS.iter().filter(|_| written));
    let ends = breaks.filter_map(|mark| Some(start + rest.find(mark)? + mark.len()));
    Some(start..ends.min().unwrap_or(text.len()))
}

/// Items of a plan line; a `written` list is stripped of quotes and brackets.
fn add_planned(found: &mut Vec<Item>, text: &str, line: Range<usize>, written: bool) {
    const AROUND: [char; 5] = ['[', ']', '\'', '"', ','];
    let quoted = |c: char| written && AROUND.contains(&c);
    let shown = text.get(line.clone()).unwrap_or_default();
    let shown = shown.strip_suffix("\\n").unwrap_or(shown);
    let end = line.start + shown.trim_end_matches(|c: char| c.is_whitespace() || quoted(c)).len();
    let blank = leading(shown);
    let opened = shown.trim_start();
    // Indentation counts only without a leading bracket or quote.
    let start = match opened.len() - opened.trim_start_matches(quoted).len() {
        0 => line.start,
        marks => line.start + blank + marks,
    };
    let own = text.get(start..end).unwrap_or_default();
    if own.trim().is_empty() || own.trim().starts_with("```") {
        return;
    }
    let mut starts = marks(own, &mut 0, true);
    if starts.len() < 2 {
        starts = inline(own);
    }
    if starts.len() > 1 {
        let starts = starts.into_iter().map(|at| start + at).collect();
        return add_line(found, text, (start..end, starts, false), true);
    }
    let depth = match depth(own) {
        Some(depth) => depth,
        None if own.trim_start().starts_with('#') || own.ends_with([':', '*']) => 0,
        None => 1 + leading(own) / 2 * 2,
    };
    found.push(Item { bytes: start..end, depth, apart: false });
}

/// Starts of an inline list after a bullet's colon.
fn inline(bullet: &str) -> Vec<usize> {
    let Some(colon) = bullet.find(": ").map(|at| at + 1) else { return Vec::new() };
    let rest = bullet.get(colon..).unwrap_or_default();
    let starts = |mark: &&str| -> Option<Vec<usize>> {
        let marks = rest.match_indices(*mark).map(|(at, _)| colon + at);
        let starts: Vec<usize> = match mark.starts_with(' ') {
            true => marks.collect(),
            false => [colon].into_iter().chain(marks.map(|at| at + 1)).collect(),
        };
        (starts.len() > 1 && starts.first() == Some(&colon)).then_some(starts)
    };
    INLINE.iter().find_map(starts).unwrap_or_default()
}

fn json_end(text: &str, at: usize) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_str(text.get(at..)?).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(at + values.byte_offset())
}

/// Entries of the JSON object or array that begins at `at`, with their keys, and its end.
fn entries(text: &str, at: usize) -> (Vec<Piece>, usize) {
    let (mut found, mut place) = (Vec::new(), skip_space(text, at + 1));
    while let Some(c) = text.get(place..).and_then(|rest| rest.chars().next()) {
        match c {
            '}' | ']' => return (found, place + 1),
            ',' => place = skip_space(text, place + 1),
            _ => {
                let start = place;
                let (mut members, mut end) = value(text, place);
                let after = skip_space(text, end);
                if text.get(after..).is_some_and(|rest| rest.starts_with(':')) {
                    (members, end) = value(text, skip_space(text, after + 1));
                }
                // An empty container is nothing to keep to.
                if members.as_ref().is_none_or(|members| !members.is_empty()) {
                    found.push(Piece {
                        bytes: start..end,
                        listed: true,
                        members: members.unwrap_or_default(),
                    });
                }
                place = skip_space(text, end);
            }
        }
    }
    (found, text.len())
}

/// Entries of a value, unless it is a leaf, and its end.
fn value(text: &str, at: usize) -> (Option<Vec<Piece>>, usize) {
    let rest = text.get(at..).unwrap_or_default();
    match rest.chars().next() {
        Some('{' | '[') => {
            let (entries, end) = entries(text, at);
            (Some(entries), end)
        }
        Some('"') => (None, json_end(text, at).unwrap_or(text.len())),
        _ => (None, at + rest.find([',', '}', ']', '\n', ' ']).unwrap_or(rest.len())),
    }
}

fn skip_space(text: &str, at: usize) -> usize {
    at + leading(text.get(at..).unwrap_or_default())
}

fn leading(text: &str) -> usize {
    text.len() - text.trim_start().len()
}
