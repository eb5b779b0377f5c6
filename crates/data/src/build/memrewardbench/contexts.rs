//! Contexts become chunks, and chunks become parts that are read side by side.

use serde_json::{Value, json};

use super::noise::tokens;
use super::trace::rejected;
use crate::build::row::object;
use crate::build::{Row, RowError, Rows, Setting};

/// Chunks of about `chunk_tokens` tokens of the field `text`, or those of the field `chunks`. Each key stands inside one of them.
pub fn chunks(setting: &Setting<'_>, row: &Row) -> Rows {
    let keys: Vec<String> = row.read("keys")?;
    let chunks: Vec<String> = match row.given("chunks")? {
        Some(chunks) => chunks,
        None => cut(setting, row.text("text")?, &keys)?,
    };
    if !keys.iter().all(|key| chunks.iter().any(|chunk| chunk.contains(key.as_str()))) {
        return rejected("a key is in no chunk");
    }
    Ok(vec![row.copy().with(json!({"chunks": chunks, "case": row.id})).without(&["text"])])
}

/// Cuts behind lines and sentences, never inside a key.
fn cut(setting: &Setting<'_>, text: &str, keys: &[String]) -> Result<Vec<String>, RowError> {
    let most: usize = setting.needed("chunk_tokens")?;
    let found = keys.iter().flat_map(|key| text.match_indices(key.as_str()));
    let spans: Vec<_> = found.map(|(at, key)| at..at + key.len()).collect();
    let (mut chunks, mut chunk, mut size, mut from) = (Vec::new(), String::new(), 0, 0);
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        let rest = text.get(end..).unwrap_or_default();
        let ends = c == '\n' || ".?!".contains(c) && rest.starts_with(char::is_whitespace) || rest.is_empty();
        if !ends || spans.iter().any(|span| span.start < end && end < span.end) {
            continue;
        }
        let piece = text.get(from..end).unwrap_or_default();
        let cost = tokens(setting, piece)?;
        if size + cost > most && !chunk.trim().is_empty() {
            chunks.push(std::mem::take(&mut chunk).trim().to_owned());
            size = 0;
        }
        chunk.push_str(piece);
        size += cost;
        from = end;
    }
    chunks.extend(Some(chunk.trim().to_owned()).filter(|chunk| !chunk.is_empty()));
    Ok(chunks)
}

/// The mixed pattern (figure 2): p chunks groups, p of the setting `parts`, are read side by side, the last group after they are merged.
/// One row for each of the p, with what comes after in `tail`; `case` names what they are parts of.
pub fn parts(setting: &Setting<'_>, row: &Row) -> Rows {
    let (chunks, sizes): (Vec<String>, Vec<usize>) = (row.read("chunks")?, setting.needed("parts")?);
    let case = row.text("case")?;
    // By the case, so that the context without keys has as many parts.
    let p = sizes.get(setting.draws(case, 0).index(sizes.len())).copied().unwrap_or(1);
    if chunks.len() <= p {
        return rejected("the context has too few chunks for its parts");
    }
    let group = |nth: usize| &chunks[chunks.len() * nth / (p + 1)..chunks.len() * (nth + 1) / (p + 1)];
    let part = |nth: usize| {
        let [of, case] = [&row.id, case].map(|name| json!(format!("{name}.mixed")));
        let [own, tail] = [nth, p].map(|nth| json!(group(nth)));
        let fields = json!({"case": case, "of": of, "chunks": own, "tail": tail, "parallel": p});
        row.part(nth, row.fields.clone()).with(fields)
    };
    Ok((0..p).map(part).collect())
}

/// Parts that were read, the list `rows`, become the list `parts` of one row whose `chunks` come after them.
pub fn join(_: &Setting<'_>, row: &Row) -> Rows {
    let rows = row.list("rows")?;
    let mut made = Row { fields: object(rows.first().cloned().unwrap_or_default()), ..row.clone() };
    if made.number("parallel")? != rows.len() {
        return rejected("a part is missing");
    }
    let part = |part: &Value| json!({"chunks": part["chunks"], "trace": part["trace"], "wrong": part.get("wrong").unwrap_or(&json!([]))});
    made.fields.insert("parts".to_owned(), rows.iter().map(part).collect());
    made = made.without(&["trace", "wrong"]);
    let tail = made.fields.shift_remove("tail").unwrap_or_default();
    Ok(vec![made.with(json!({"chunks": tail}))])
}
