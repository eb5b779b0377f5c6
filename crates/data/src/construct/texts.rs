//! Built-in texts of `texts/`: values, templates, logs, small talk, fillers.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use palimpsest_core::digest::sha256;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::BuildError;
use super::factors::{Explicitness, Overlap};

const VALUES: &str = include_str!("texts/values.toml");
const TEMPLATES: &str = include_str!("texts/templates.toml");
const STREAMS: &str = include_str!("texts/streams.toml");
const CHAT: &str = include_str!("texts/chat.toml");
const FILLERS: &str = include_str!("texts/fillers.toml");

pub const LICENCE: &str = "MIT OR Apache-2.0";

pub const STREAMS_FAMILY: &str = "streams";
pub const FAMILIES: [&str; 5] = ["slots", "chains", "boxes", STREAMS_FAMILY, "implied"];

#[derive(Debug)]
pub struct Texts {
    pub values: BTreeMap<String, Vec<String>>,
    pub templates: Vec<Template>,
    pub streams: Streams,
    pub chat: Chat,
    pub topics: Vec<Topic>,
    pub digest: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    pub name: String,
    pub families: Vec<String>,
    pub values: String,
    pub topic: String,
    /// Wordings by overlap with the question.
    pub clause: Clause,
    pub paraphrase: String,
    pub deny: String,
    pub none: String,
    pub event: String,
    /// Event from which the value follows in one step.
    pub step1: Option<String>,
    /// Event from which it follows in two steps.
    pub step2: Option<String>,
    pub echo: String,
    pub question: String,
    pub prefix: String,
    pub yesno: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clause {
    /// Shares nearly all words with the question.
    pub full: String,
    pub part: String,
    pub none: String,
}

impl Clause {
    pub fn of(&self, overlap: Overlap) -> &str {
        match overlap {
            Overlap::Full => &self.full,
            Overlap::Part => &self.part,
            Overlap::None => &self.none,
        }
    }
}

impl Template {
    /// True if the template can express an update this way.
    pub fn tells(&self, explicitness: Explicitness) -> bool {
        match explicitness {
            Explicitness::E4 => self.step1.is_some(),
            Explicitness::E5 => self.step2.is_some(),
            _ => true,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    pub keys: BTreeMap<String, String>,
    pub log: Vec<Log>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub name: String,
    pub topic: String,
    pub statement: String,
    pub paraphrase: String,
    /// A remark about the log without an entry.
    pub neutral: String,
    pub echo: String,
    pub question: String,
    pub prefix: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    pub names: Vec<String>,
    pub greetings: Vec<String>,
    pub replies: Vec<String>,
    pub acks: Vec<String>,
    pub news: Vec<String>,
    pub thanks: Vec<String>,
    pub welcomes: Vec<String>,
    pub remarks: Vec<String>,
    pub neutral: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    pub name: String,
    pub things: Vec<String>,
    pub asks: Vec<String>,
    pub tells: Vec<String>,
}

impl Texts {
    pub fn get() -> Result<&'static Texts, BuildError> {
        static TEXTS: OnceLock<Result<Texts, String>> = OnceLock::new();
        let texts = TEXTS.get_or_init(read).as_ref();
        texts.map_err(|message| BuildError::Toml { name: "texts".to_owned(), message: message.clone() })
    }

    pub fn of_family<'a, 'b>(&'a self, family: &'b str) -> impl Iterator<Item = &'a Template> + use<'a, 'b> {
        self.templates.iter().filter(move |template| template.families.iter().any(|of| of == family))
    }
}

fn read() -> Result<Texts, String> {
    fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, String> {
        toml::from_str(text).map_err(|error| format!("{name}: {error}"))
    }
    // TOML with one array of tables.
    fn list<T: DeserializeOwned>(name: &str, text: &str) -> Result<Vec<T>, String> {
        Ok(parse::<BTreeMap<String, Vec<T>>>(name, text)?.into_values().flatten().collect())
    }
    let all = [VALUES, TEMPLATES, STREAMS, CHAT, FILLERS].concat();
    Ok(Texts {
        values: parse("values.toml", VALUES)?,
        templates: list("templates.toml", TEMPLATES)?,
        streams: parse("streams.toml", STREAMS)?,
        chat: parse("chat.toml", CHAT)?,
        topics: list("fillers.toml", FILLERS)?,
        digest: sha256(all),
    })
}

/// Fills a pattern's slots. Names and `The` stay capitalised.
pub fn fill(pattern: &str, slots: &[(&str, &str)]) -> String {
    let mut text = pattern.to_owned();
    for (name, value) in slots {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text
}

pub fn inside(sentence: &str) -> String {
    for word in ["The ", "In ", "On ", "At ", "For ", "An "] {
        if let Some(rest) = sentence.strip_prefix(word) {
            return format!("{}{rest}", word.to_lowercase());
        }
    }
    sentence.to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::benchmarks::dose::implied::{holds, step1, step2};
    use crate::ground::words::words;

    const STOP: &str =
        "the of is a an in on for that by with and to at it has have what which how where who does do as s";

    fn content(text: &str) -> BTreeSet<String> {
        let words = words(&fill(text, &[("name", ""), ("v", "")])).into_iter();
        words.filter(|word| !STOP.split(' ').any(|stop| stop == word)).collect()
    }

    #[test]
    fn every_family_has_five_templates_and_every_set_of_values_exists() {
        let texts = Texts::get().unwrap();
        for family in FAMILIES {
            let count = match family {
                STREAMS_FAMILY => texts.streams.log.len(),
                _ => texts.of_family(family).count(),
            };
            assert!(count >= 5, "{family}: {count}");
        }
        let topics: BTreeSet<&str> = texts.topics.iter().map(|topic| topic.name.as_str()).collect();
        for template in &texts.templates {
            assert!(texts.values.contains_key(&template.values), "{}", template.name);
            assert!(topics.contains(template.topic.as_str()), "{}", template.name);
        }
        assert!(texts.streams.log.iter().all(|log| topics.contains(log.topic.as_str())));
        assert!(texts.streams.keys.values().all(|set| texts.values.contains_key(set)));
    }

    #[test]
    fn every_value_that_is_implied_has_a_word_from_which_it_follows() {
        let texts = Texts::get().unwrap();
        for template in &texts.templates {
            for value in &texts.values[&template.values] {
                assert!(template.step1.is_none() || step1(value).is_some(), "{}: {value}", template.name);
                assert!(template.step2.is_none() || step2(value).is_some(), "{}: {value}", template.name);
            }
        }
    }

    #[test]
    fn no_text_says_what_a_return_says_that_does_not_name_its_value() {
        let all = [VALUES, TEMPLATES, STREAMS, CHAT, FILLERS].concat();
        assert!(!all.contains(crate::benchmarks::dose::terms::AS_AT_FIRST));
    }

    #[test]
    fn wordings_share_the_words_with_the_question_that_they_should() {
        for template in &Texts::get().unwrap().templates {
            let question = content(&template.question);
            let shared = |clause: &str| content(clause).intersection(&question).count();
            let Clause { full, part, none } = &template.clause;
            let (full, part, none) = (shared(full), shared(part), shared(none));
            assert!(full > part && part > none && none == 0, "{}: {full} {part} {none}", template.name);
        }
    }

    #[test]
    fn small_talk_and_fillers_hold_no_value_and_no_name() {
        let texts = Texts::get().unwrap();
        let chat = &texts.chat;
        let lists = [
            &chat.greetings,
            &chat.replies,
            &chat.acks,
            &chat.news,
            &chat.thanks,
            &chat.welcomes,
            &chat.remarks,
            &chat.neutral,
        ];
        let of_topics = texts.topics.iter().flat_map(|topic| [&topic.things, &topic.asks, &topic.tells]);
        let all: Vec<&String> = lists.into_iter().chain(of_topics).flatten().collect();
        let words: Vec<&String> = texts.values.values().flatten().chain(&chat.names).collect();
        for text in all.into_iter().map(|text| fill(text, &[("x", ""), ("name", "")])) {
            for word in &words {
                assert!(!holds(&text, word), "{word:?} in {text:?}");
            }
        }
    }
}
