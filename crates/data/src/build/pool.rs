//! Filler sessions from users' files, with their licences.
//!
//! A row is known by its fields: our own `{topic, turns, licence}` (a line of dose's fillers, too), STALE, LongMemEval, SubtleMemory, LoCoMo,
//! ShareGPT. A file is JSON Lines, one object, or an array, alone or under `data`. Sessions that are evidence of their benchmark are left
//! out, and so are system turns, turns before the first of the user, turns without text, and sessions that an earlier one equals but for
//! letter case and punctuation. Of LoCoMo's two speakers the first is the user.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use jiff::civil::date;
use palimpsest_core::digest::sha256;
use palimpsest_core::text::{CountTokens, TextError};
use serde_json::Value;

use super::error::BuildError;
use crate::benchmarks::arrays::RowSplitter;
use crate::case::Turn;
use crate::case::check::calendar::misfits;
use crate::case::check::is_stray;
use crate::case::check::near::Shingles;
use crate::construct::session::{ASSISTANT, USER, tokens};
use crate::ground::{json, text_file};

/// The licence of a session that names none and whose kind has none.
pub const UNKNOWN: &str = "unknown";
/// ShareGPT's terms (lm-sys/FastChat, issues 642 and 1284) and UltraChat's (thunlp/UltraChat, issue 3) are no licence that one may rely on.
const SHAREGPT: &str = "disputed (ShareGPT)";
const ULTRACHAT: &str = "non-commercial (UltraChat)";
/// STALE's fillers are LongMemEval's.
const OF_STALE: &str = "CC-BY-4.0, with disputed parts (ShareGPT, UltraChat)";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolSession {
    /// Unique in the pool: the file's digest (12 digits) and the row's number, with the session's number in rows of several.
    pub id: String,
    /// The file's name without folder and ending.
    pub source: String,
    pub topic: String,
    pub licence: String,
    pub turns: Vec<Turn>,
    tokens: OnceLock<usize>,
    is_timeless: OnceLock<bool>,
}

impl PoolSession {
    pub fn new(id: impl Into<String>, source: &str, licence: &str, turns: Vec<Turn>) -> Self {
        let (source, licence) = (source.to_owned(), licence.to_owned());
        PoolSession { id: id.into(), source, licence, turns, ..PoolSession::default() }
    }

    /// Tokens as a session of STALE's prompt. Counted once: a build has one tokenizer.
    pub fn tokens(&self, count: &dyn CountTokens) -> Result<usize, TextError> {
        if let Some(known) = self.tokens.get() {
            return Ok(*known);
        }
        let counted = tokens(count, &self.turns)?;
        Ok(*self.tokens.get_or_init(|| counted))
    }

    /// True if `data check` finds nothing in its texts at any date: no turn that is no text, no word for a day or a month that a date can
    /// belie.
    pub fn is_timeless(&self) -> bool {
        // Every month with every weekday.
        let days = (1..=12).flat_map(|month| (1..=7).map(move |day| date(2025, month, day).at(12, 0, 0, 0)));
        *self.is_timeless.get_or_init(|| {
            let sound = |turn: &Turn| {
                !is_stray(&turn.content)
                    && days.clone().all(|day| misfits(&turn.content, Some(day)).is_empty())
            };
            self.turns.iter().all(sound)
        })
    }
}

/// Sessions of all files, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    pub sessions: Vec<PoolSession>,
}

impl Pool {
    /// Errors name the file, the row (from 0) and the field.
    pub fn read(files: &[PathBuf]) -> Result<Self, BuildError> {
        let (mut pool, mut known) = (Pool::default(), HashSet::new());
        for path in files {
            let bytes = text_file::bounded(path).map_err(BuildError::io("read", path))?;
            let text = text_file::text(bytes).map_err(|error| BuildError::io("read", path)(error.into()))?;
            let digest = sha256(&text);
            let digest = digest.get(..12).unwrap_or_default();
            let source = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let mut any = false;
            let mut take = |number: usize, row: &Value| {
                for (place, session) in sessions(row).map_err(|why| at(path, number, why))? {
                    any = true;
                    let texts: Vec<&str> = session.turns.iter().map(|turn| turn.content.as_str()).collect();
                    if known.insert(Shingles::of(&texts.join("\n")).digest) {
                        let id = format!("{digest}-{number}{place}");
                        pool.sessions.push(PoolSession { id, source: source.clone(), ..session });
                    }
                }
                Ok(())
            };
            rows(path, &text, &mut take)?;
            if !any {
                let why = fault("(file)", "no session", "give a file of distractors, or leave it out");
                return Err(at(path, 0, why));
            }
        }
        Ok(pool)
    }

    pub fn get(&self, id: &str) -> Option<&PoolSession> {
        self.sessions.iter().find(|session| session.id == id)
    }
}

/// Field, what was found, and the remedy.
type Fault = (String, String, &'static str);

fn fault(field: impl Into<String>, found: impl Into<String>, remedy: &'static str) -> Fault {
    (field.into(), found.into(), remedy)
}

fn at(path: &Path, row: usize, (field, found, remedy): Fault) -> BuildError {
    let (name, field) = (path.display().to_string(), format!("row {row}, {field}"));
    BuildError::Field { name, field, found, remedy: remedy.to_owned() }
}

type Take<'a> = &'a mut dyn FnMut(usize, &Value) -> Result<(), BuildError>;

/// Arrays are read row by row: LongMemEval's have gigabytes.
fn rows(path: &Path, text: &str, take: Take<'_>) -> Result<(), BuildError> {
    const REMEDY: &str = "give JSON Lines, one JSON object, or a JSON array of objects";
    let wrong = |number: usize, what: String| at(path, number, fault("(row)", what, REMEDY));
    if text.trim_start().starts_with('[') {
        let (mut splitter, mut row) = (RowSplitter::new(text.as_bytes(), None, "pool"), Vec::new());
        let mut number = 0;
        while splitter.next_row(&mut row).map_err(|error| wrong(number, error.to_string()))?.is_some() {
            let (value, _) = json::read(&row).map_err(|error| wrong(number, error.to_string()))?;
            take(number, &value)?;
            number += 1;
        }
        return Ok(());
    }
    for (number, value) in serde_json::Deserializer::from_str(text).into_iter::<Value>().enumerate() {
        let value = value.map_err(|error| wrong(number, error.to_string()))?;
        match value.get("data").and_then(Value::as_array) {
            Some(list) => list.iter().enumerate().try_for_each(|(number, row)| take(number, row))?,
            None => take(number, &value)?,
        }
    }
    Ok(())
}

/// Sessions of a row, each with the end of its id.
fn sessions(row: &Value) -> Result<Vec<(String, PoolSession)>, Fault> {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let own = text("licence").or_else(|| text("license"));
    // Each with the end of its id, topic, licence, turns, and what the user is called.
    let mut found: Vec<(String, &str, &str, &Value, &str)> = Vec::new();
    let list = |name: &str| row.get(name).and_then(Value::as_array).map(Vec::as_slice);
    let topic = text("topic").or_else(|| text("id")).unwrap_or_default();
    if let Some(turns) = row.get("turns") {
        found.push((String::new(), topic, UNKNOWN, turns, USER));
    } else if let Some(all) = list("haystack_session") {
        let evidence = list("relevant_session_index").unwrap_or_default();
        for (nth, turns) in all.iter().enumerate().filter(|(nth, _)| !evidence.contains(&(*nth).into())) {
            found.push((format!(".{nth}"), "", OF_STALE, turns, USER));
        }
    } else if let Some(all) = list("haystack_sessions") {
        let (ids, evidence) = (list("haystack_session_ids").unwrap_or_default(), list("answer_session_ids"));
        for (nth, turns) in all.iter().enumerate() {
            let id = ids.get(nth).and_then(Value::as_str).unwrap_or_default();
            let licence = match id.split('_').next() {
                Some("sharegpt") => SHAREGPT,
                Some("ultrachat") => ULTRACHAT,
                _ => "MIT",
            };
            if !evidence.is_some_and(|of| of.iter().any(|one| one.as_str() == Some(id))) {
                found.push((format!(".{nth}"), id, licence, turns, USER));
            }
        }
    } else if let Some(turns) = row.get("history") {
        if text("source").is_none_or(|source| source == "user-unrelated") {
            found.push((String::new(), text("session_id").unwrap_or_default(), UNKNOWN, turns, USER));
        }
    } else if let Some(turns) = row.get("conversations") {
        found.push((String::new(), topic, SHAREGPT, turns, "human"));
    } else if let Some(of) = row.get("conversation").or(Some(row)).filter(|of| of.get("speaker_a").is_some())
    {
        let user = of.get("speaker_a").and_then(Value::as_str).unwrap_or_default();
        let numbered = (1..).map(|nth| (nth, of.get(format!("session_{nth}"))));
        for (nth, turns) in numbered.map_while(|(nth, turns)| Some((nth, turns?))) {
            found.push((format!(".{nth}"), "", "CC-BY-NC-4.0", turns, user));
        }
    } else {
        let remedy = "give a session as {\"topic\", \"turns\": [{\"role\", \"content\"}], \"licence\"}, or a row of STALE, LongMemEval, \
                      LoCoMo, SubtleMemory or ShareGPT";
        return Err(fault("(row)", "none of the known fields", remedy));
    }
    let session = |(place, topic, licence, turns, user): (String, &str, &str, &Value, &str)| {
        let session = PoolSession::new("", "", own.unwrap_or(licence), self::turns(turns, user)?);
        Ok((place, PoolSession { topic: topic.to_owned(), ..session }))
    };
    let sessions = found.into_iter().map(session).collect::<Result<Vec<_>, Fault>>()?;
    Ok(sessions.into_iter().filter(|(_, session)| !session.turns.is_empty()).collect())
}

/// `user`: what the user is called.
fn turns(turns: &Value, user: &str) -> Result<Vec<Turn>, Fault> {
    const NAMES: [(&str, &str); 3] = [("role", "content"), ("from", "value"), ("speaker", "text")];
    let Some(list) = turns.as_array() else {
        return Err(fault("turns", turns.to_string(), "write a list of turns"));
    };
    let mut read: Vec<Turn> = Vec::new();
    for (nth, turn) in list.iter().enumerate() {
        let text = |name: &str| turn.get(name).and_then(Value::as_str);
        let said = NAMES.iter().find_map(|(role, content)| Some((text(role)?, text(content)?.trim())));
        let Some((role, content)) = said else {
            let remedy = "write {\"role\", \"content\"} with texts";
            return Err(fault(format!("turns[{nth}]"), turn.to_string(), remedy));
        };
        let role = match role.to_lowercase().as_str() {
            _ if role == user => USER,
            "user" | "human" => USER,
            "system" => continue,
            "assistant" | "gpt" | "chatgpt" | "bing" | "bard" | "ai" | "bot" => ASSISTANT,
            _ if turn.get("speaker").is_some() => ASSISTANT,
            _ => {
                let remedy = "write \"user\", \"assistant\" or \"system\"";
                return Err(fault(format!("turns[{nth}].role"), format!("{role:?}"), remedy));
            }
        };
        if !content.is_empty() && (role == USER || !read.is_empty()) {
            read.push(Turn::new(role, content));
        }
    }
    Ok(read)
}
