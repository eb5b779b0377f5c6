//! The events of a life, and exact searches in them.

use std::cell::RefCell;
use std::collections::HashMap;

use jiff::civil::DateTime;
use serde_json::{Map, Value};

use super::fields::texts;
use super::segments::{ABBREVIATIONS, sentences};
use super::timeline::FORMAT;
use crate::build::{Row, RowError};
use crate::ground::order::sorted_unique;
use crate::ground::words::{phrase, units};

/// Fields of an event beside its id, timestamp and location.
pub(super) const FIELDS: [&str; 5] = ["action", "dialogue", "environment", "background", "inner_thought"];
const FORMATS: [&str; 2] = [FORMAT, "%Y-%m-%d %H:%M"];
/// Words of an excerpt.
const FEWEST: usize = 4;
const MOST: usize = 30;
/// Capitalised, and names of nothing.
const NO_NAMES: &str = "i monday tuesday wednesday thursday friday saturday sunday january february march april may june july \
                        august september october november december";

pub(super) struct Event {
    pub id: Value,
    pub time: Option<DateTime>,
    pub place: String,
    pub texts: Vec<String>,
    /// Of time, place and texts, for searches.
    said: String,
}

pub(super) struct Life {
    pub events: Vec<Event>,
    excerpts: RefCell<HashMap<usize, Option<String>>>,
}

/// `August 15, 1969`.
pub(super) fn day(time: DateTime) -> String {
    time.strftime("%B %-d, %Y").to_string()
}

impl Event {
    fn of(fields: &Map<String, Value>) -> Self {
        let of = |name: &str| texts(fields.get(name)).join(" ");
        let time = of("timestamp");
        let time = FORMATS.iter().find_map(|format| DateTime::strptime(format, time.trim()).ok());
        let place = of("location");
        let texts: Vec<String> = FIELDS.iter().map(|name| of(name)).filter(|text| !text.is_empty()).collect();
        // A line that no phrase crosses lies between the parts.
        let parts = time.map(day).into_iter().chain([place.clone()]).chain(texts.iter().cloned());
        let said: Vec<String> = parts.map(|part| phrase(&part)).collect();
        let id = fields.get("id").cloned().unwrap_or_default();
        Event { id, time, place, texts, said: said.join("\n") }
    }

    pub(super) fn sentences(&self) -> impl Iterator<Item = &str> {
        self.texts
            .iter()
            .flat_map(|text| sentences(text).into_iter().filter_map(move |range| text.get(range)))
    }

    pub(super) fn says(&self, text: &str) -> bool {
        self.said.contains(&phrase(text))
    }

    /// Names within sentences: runs of capitalised words that do not begin one.
    pub(super) fn names(&self) -> Vec<String> {
        sorted_unique(self.texts.iter().flat_map(|text| names(text)))
    }
}

/// `Mr`, behind which no sentence ends.
fn is_title(word: &str) -> bool {
    word.starts_with(char::is_uppercase) && ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

pub(super) fn names(text: &str) -> Vec<String> {
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
    let (mut found, mut run, mut begins) = (Vec::new(), Vec::<String>::new(), true);
    for word in text.split_whitespace().chain(["."]) {
        let name = bare(word);
        let name = name.strip_suffix("'s").or(name.strip_suffix("’s")).unwrap_or(&name).to_owned();
        let short = is_title(&name);
        let is_name = name.chars().next().is_some_and(char::is_uppercase)
            && name.chars().any(char::is_lowercase)
            && units(&name).first().is_some_and(|first| !NO_NAMES.split(' ').any(|no| no == first));
        let opens = word.starts_with(|c: char| !c.is_alphanumeric());
        let goes_on = is_name && !opens && (!begins || !run.is_empty());
        let ends = !word.ends_with(|c: char| c.is_alphanumeric()) && !short;
        if goes_on {
            run.push(if short { format!("{name}.") } else { name });
        }
        if !goes_on || ends {
            let whole = std::mem::take(&mut run);
            let titles = whole.iter().all(|word| is_title(word.trim_end_matches('.')));
            found.extend((!titles).then(|| whole.join(" ")));
        }
        begins = word.ends_with(['.', '!', '?', '"', '”', '’', ':', '…']) && !short;
    }
    found
}

impl Life {
    pub(super) fn new<'a>(events: impl Iterator<Item = &'a Map<String, Value>>) -> Self {
        Life { events: events.map(Event::of).collect(), excerpts: RefCell::default() }
    }

    /// Of the list `rows`.
    pub(super) fn of(row: &Row) -> Result<Self, RowError> {
        Ok(Life::new(row.list("rows")?.iter().filter_map(Value::as_object)))
    }

    /// Events that say all of these: texts, places, days.
    pub(super) fn holders(&self, given: &[String]) -> Vec<usize> {
        let holds = |event: &Event| given.iter().all(|text| event.says(text));
        self.events.iter().enumerate().filter(|(_, event)| holds(event)).map(|(at, _)| at).collect()
    }

    /// The first sentence of an event that no other event says, of 4 to 30 words, and that tells no number.
    pub(super) fn excerpt(&self, at: usize) -> Option<String> {
        if let Some(known) = self.excerpts.borrow().get(&at) {
            return known.clone();
        }
        let fits = |text: &&str| {
            (FEWEST..=MOST).contains(&units(text).len())
                && text.starts_with(char::is_alphanumeric)
                && !text.contains(|c: char| c.is_ascii_digit() || "“”\"".contains(c))
                && self.holders(&[(*text).to_owned()]) == [at]
        };
        let found = self.events.get(at).and_then(|event| event.sentences().find(fits));
        let found = found.map(|text| text.trim_end_matches('.').to_owned());
        self.excerpts.borrow_mut().insert(at, found.clone());
        found
    }
}
