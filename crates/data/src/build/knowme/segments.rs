//! Module A: a text is cut by offsets, so that no character changes.
//!
//! Offsets are bytes of the text in UTF-8.

use std::ops::Range;

use serde_json::{Value, json};

use crate::build::{Found, Row, RowError, Rows, Setting, With};
use crate::ground::order::sorted_unique;

/// Words whose full stop ends no sentence, lower case.
pub(super) const ABBREVIATIONS: [&str; 20] = [
    "mr", "mrs", "ms", "dr", "st", "mme", "mlle", "messrs", "prof", "rev", "capt", "col", "gen", "lt", "sgt",
    "hon", "esq", "no", "vol", "vs",
];
const QUOTES: [(char, char); 5] = [('“', '”'), ('‘', '’'), ('"', '"'), ('«', '»'), ('„', '“')];
const CLOSING: [char; 8] = ['”', '’', '"', '\'', '»', ')', ']', '_'];

/// A place where a sentence begins that is in no quotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Border {
    pub at: usize,
    /// An empty line is above it.
    pub paragraph: bool,
}

/// Places where the text may be cut, without its beginning. Where it is in doubt whether a sentence ends, it may not: behind abbreviations,
/// and behind a quotation that ends in `?` or `!`, which a `he said` may follow.
pub fn borders(text: &str) -> Vec<Border> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !c.is_whitespace() {
            quote(text, at, c, &mut open);
            continue;
        }
        let mut lines = usize::from(c == '\n');
        while let Some((_, c)) = chars.next_if(|(_, c)| c.is_whitespace()) {
            lines += usize::from(c == '\n');
        }
        let Some((next, first)) = chars.peek().copied() else { break };
        let before = text.get(..at).unwrap_or_default();
        if before.trim().is_empty() {
            continue;
        }
        // A speech of several paragraphs opens its quotation again in each.
        let goes_on = open.last().is_some_and(|closing| opens(first) == Some(*closing));
        let paragraph = lines > 1;
        if paragraph && !goes_on {
            open.clear();
        }
        let starts = paragraph || !first.is_lowercase() && ends_sentence(before);
        if open.is_empty() && starts {
            found.push(Border { at: next, paragraph });
        }
    }
    found
}

fn opens(c: char) -> Option<char> {
    QUOTES.iter().find(|(opening, _)| *opening == c).map(|(_, closing)| *closing)
}

/// Follows a quotation mark.
fn quote(text: &str, at: usize, c: char, open: &mut Vec<char>) {
    let next = text.get(at + c.len_utf8()..).and_then(|rest| rest.chars().next());
    let apostrophe = c == '’' && next.is_some_and(char::is_alphanumeric);
    if open.last() == Some(&c) && !apostrophe {
        open.pop();
    } else if let Some(closing) = opens(c).filter(|closing| !open.contains(closing)) {
        open.push(closing);
    }
}

fn ends_sentence(before: &str) -> bool {
    let bare = before.trim_end_matches(CLOSING);
    let quoted = bare.len() < before.len() && before.ends_with(['”', '’', '"', '\'', '»']);
    match bare.chars().next_back() {
        Some('.') => {
            let word = bare.trim_end_matches('.').rsplit(|c: char| !c.is_alphanumeric()).next();
            let word = word.unwrap_or_default();
            let initial = word.chars().count() == 1 && word != "I" && word.chars().all(char::is_uppercase);
            !initial && !ABBREVIATIONS.contains(&word.to_lowercase().as_str())
        }
        Some('!' | '?') => !quoted,
        Some('…') => true,
        _ => false,
    }
}

/// Byte ranges of sentences, each with its quotations; no white space at their ends.
pub(super) fn sentences(text: &str) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(borders(text).into_iter().map(|border| border.at));
    slices(text, &starts.collect::<Vec<_>>())
}

/// Slices that begin at `starts`, in order, trimmed.
fn slices(text: &str, starts: &[usize]) -> Vec<Range<usize>> {
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let trimmed = starts.iter().zip(ends).filter_map(|(start, end)| {
        let slice = text.get(*start..end)?;
        let start = start + slice.len() - slice.trim_start().len();
        (!slice.trim().is_empty()).then(|| start..start + slice.trim().len())
    });
    trimmed.collect()
}

/// Cuts `text` into blocks of at most `block_words` words (more if a quotation is longer), at empty lines where it can: `text`, its offset
/// `start`, and its `sentences`, a list of texts.
pub(super) fn blocks(setting: &Setting<'_>, row: &Row) -> Rows {
    let (text, most): (&str, usize) = (row.text("text")?, setting.needed("block_words")?);
    let words = |range: Range<usize>| text.get(range).unwrap_or_default().split_whitespace().count();
    let (mut starts, mut last, mut paragraph) = (vec![0], 0, None);
    for border in borders(text).into_iter().chain([Border { at: text.len(), paragraph: true }]) {
        while let Some(start) =
            starts.last().copied().filter(|start| words(*start..border.at) > most && last > *start)
        {
            starts.push(paragraph.filter(|at| *at > start).unwrap_or(last));
        }
        last = border.at;
        paragraph = border.paragraph.then_some(last).or(paragraph);
    }
    let block = |(nth, range): (usize, Range<usize>)| {
        let (start, block) = (range.start, text.get(range).unwrap_or_default());
        let said: Vec<&str> = sentences(block).into_iter().filter_map(|range| block.get(range)).collect();
        let fields = json!({"text": block, "start": start, "sentences": said});
        row.part(nth, row.fields.clone()).with(fields)
    };
    Ok(slices(text, &starts).into_iter().enumerate().map(block).collect())
}

/// Rows of the slices of a block: `text`, `start_index` and `end_index` in the whole text. They begin with the sentences whose numbers, from
/// 1 on, are in `starts`, or are the model's own records in `segments`.
pub(super) fn segments(_: &Setting<'_>, row: &Row) -> Rows {
    let (text, offset) = (row.text("text")?, offset(row)?);
    let records = match row.get("segments") {
        Some(_) => row.list("segments")?.to_vec(),
        None => {
            let said = sentences(text);
            let starts: Vec<usize> = row.read("starts")?;
            if let Some(none) = starts.iter().find(|at| **at == 0 || **at > said.len()) {
                return Err(RowError::Rejected(format!("no sentence has the number {none}")));
            }
            let starts = sorted_unique(starts.iter().map(|at| said[at - 1].start).chain([0]));
            let record = |range: Range<usize>| json!({"start_index": range.start + offset, "end_index": range.end + offset, "text": text.get(range)});
            slices(text, &starts).into_iter().map(record).collect()
        }
    };
    if let Some(fault) = fault(text, offset, &records) {
        return Err(RowError::Rejected(fault));
    }
    let made = |(nth, record): (usize, &Value)| {
        let rest = row.clone().without(&["start", "sentences", "starts", "segments"]);
        row.part(nth, rest.fields).with(record.clone())
    };
    Ok(records.iter().enumerate().map(made).collect())
}

fn offset(row: &Row) -> Result<usize, RowError> {
    row.get("start").map_or(Ok(0), |_| row.number("start"))
}

/// Faults of slices `{start_index, end_index, text}` of a text that itself begins at `offset`: they must be its parts to the letter, in
/// order, disjoint, with white space alone between them, and begin at [`borders`].
pub fn fault(text: &str, offset: usize, records: &[Value]) -> Option<String> {
    let allowed = borders(text);
    let is_blank = |range: Range<usize>| text.get(range).is_some_and(|gap| gap.trim().is_empty());
    let mut end = 0;
    for record in records {
        let number = |name: &str| usize::try_from(record.get(name)?.as_u64()?).ok()?.checked_sub(offset);
        let (Some(from), Some(to)) = (number("start_index"), number("end_index")) else {
            return Some("a slice without start_index and end_index".to_owned());
        };
        let said = record.get("text").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        let is_border = is_blank(0..from) || allowed.iter().any(|border| border.at == from);
        let rules = [
            (
                said.is_none() || text.get(from..to) != said,
                "a slice that is not the text between its offsets",
            ),
            (from < end, "slices that overlap or are out of order"),
            (!is_blank(end..from), "text between two slices"),
            (!is_border, "a border inside a sentence or a quotation"),
        ];
        if let Some((_, rule)) = rules.into_iter().find(|(is_broken, _)| *is_broken) {
            return Some(rule.to_owned());
        }
        end = to;
    }
    (!is_blank(end..text.len())).then(|| "text behind the last slice".to_owned())
}

/// Holds a model's `segments` against `text`.
pub(super) fn check(_: &Setting<'_>, _: &With, row: &Row) -> Found {
    Ok(fault(row.text("text")?, offset(row)?, row.list("segments")?))
}
