//! One question to a model: the template becomes messages, the reply a value that fits the schema.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::stage_file::Ending;
use crate::chat::loose_json::{self, Node};
use crate::chat::{ChatError, ChatModel, Message, MessageRole, Sampling, ScoringModel, StopReason};
use palimpsest_data::build::Ask;
use palimpsest_data::build::expression::render;
use palimpsest_data::ground::schema::fits;

/// Places of a reply that are tried in vain; each may read the reply to its end.
const MOST_FAULTS: usize = 64;

/// A model's reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// JSON if the choices were scored.
    pub text: String,
    pub ending: Ending,
}

/// The messages for these variables. Err with the reason if a template fails.
pub fn messages(ask: &Ask, fields: &Map<String, Value>) -> Result<Vec<Message>, String> {
    let both = [(MessageRole::System, &ask.system), (MessageRole::User, &ask.template)];
    let given = both.into_iter().filter(|(role, text)| *role == MessageRole::User || !text.is_empty());
    given.map(|(role, text)| Ok(Message { role, content: render(text, fields)? })).collect()
}

/// Asks a model, held to the schema where it can be. With it the tokens of prompt and reply, where they are told.
pub fn put(
    model: &mut dyn ChatModel,
    ask: &Ask,
    messages: &[Message],
    seed: u64,
) -> Result<(Said, [Option<usize>; 2]), ChatError> {
    if !ask.choices.is_empty()
        && let Some(scoring) = model.scoring()
    {
        let text = scored(scoring, messages, &ask.choices)?;
        return Ok((Said { text, ending: Ending::Scored }, [None; 2]));
    }
    let schema = schema(ask);
    model.hold_to(schema.as_ref().map(|schema| ("reply", schema)))?;
    let sampling =
        Sampling { temperature: ask.temperature, top_p: 1.0, seed, max_new_tokens: ask.max_tokens };
    let reply = match model.reply(messages, &sampling) {
        // A failed attempt, and no failed endpoint.
        Err(error) if error.is_empty => {
            return Ok((Said { text: String::new(), ending: Ending::Turn }, [None; 2]));
        }
        reply => reply?,
    };
    let ending = match reply.stop {
        StopReason::EndOfTurn => Ending::Turn,
        StopReason::Refused => Ending::Refused,
        StopReason::MaxNewTokens | StopReason::ThoughtCut | StopReason::ThoughtOnly => Ending::Cut,
    };
    Ok((Said { text: reply.text, ending }, [reply.prompt_tokens, reply.completion_tokens]))
}

fn schema(ask: &Ask) -> Option<Value> {
    if ask.choices.is_empty() {
        return ask.schema.clone();
    }
    Some(json!({
        "type": "object", "properties": {"choice": {"type": "string", "enum": ask.choices}},
        "required": ["choice"], "additionalProperties": false
    }))
}

/// `{"choice": ..., "p": {...}}`: the likeliest word, and the probability of each among them.
fn scored(
    model: &mut dyn ScoringModel,
    messages: &[Message],
    choices: &[String],
) -> Result<String, ChatError> {
    let words = choices.iter().map(|choice| format!(" {}", Value::from(choice.as_str())));
    let words: Vec<String> = words.collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let scores = model.score(messages, "{\"choice\":", &words)?;
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    if !sum.is_finite() {
        return Err(ChatError::from(format!("{}: no choice has a probability: {scores:?}", model.name())));
    }
    let best = choices.iter().zip(&scores).find(|(_, score)| **score == largest).map(|(choice, _)| choice);
    let p = |(choice, score): (&String, &f64)| (choice.clone(), ((score - largest).exp() / sum).into());
    let all: Map<String, Value> = choices.iter().zip(&scores).map(p).collect();
    Ok(json!({ "choice": best, "p": all }).to_string())
}

/// The value of a reply, or the verdict and what is wrong.
pub type Read = Result<Value, (&'static str, String)>;

pub fn read(ask: &Ask, said: &Said) -> Read {
    let text = said.text.trim();
    match (said.ending, schema(ask)) {
        (Ending::Refused, _) => Err(("refused", format!("the model refused: {text}"))),
        (Ending::Scored, _) => serde_json::from_str(text).map_err(|error| ("schema", error.to_string())),
        (Ending::Turn, _) if text.is_empty() => Err(("empty", "the reply is empty".to_owned())),
        (Ending::Turn, None) => Ok(text.into()),
        (Ending::Turn, Some(schema)) => find(text, &schema).map_err(|fault| ("schema", fault)),
        (Ending::Cut, schema) => schema
            .and_then(|schema| find(text, &schema).ok())
            .ok_or_else(|| ("cut", format!("the reply does not end within {} tokens", ask.max_tokens))),
    }
}

/// The JSON value in a reply, which may be fenced or surrounded by prose. Two that differ contradict each other.
fn find(text: &str, schema: &Value) -> Result<Value, String> {
    let opening = if schema["type"] == "array" { '[' } else { '{' };
    let (mut at, mut faults, mut found, mut fault) = (0, 0, None, None);
    while faults < MOST_FAULTS
        && let Some(start) = text.get(at..).and_then(|rest| rest.find(opening)).map(|more| at + more)
    {
        at = start + 1;
        let value = match loose_json::read(text.get(start..).unwrap_or_default()) {
            Some(read) if read.finished => {
                at = start + read.length;
                let value = single(&read.value).map(|()| Value::from(read.value));
                value.and_then(|value| fits(schema, &value).map(|()| value))
            }
            Some(_) => Err("its JSON does not end".to_owned()),
            None => Err("its JSON does not parse".to_owned()),
        };
        match value {
            Ok(value) if found.as_ref().is_some_and(|found| *found != value) => {
                return Err("it holds two answers that differ".to_owned());
            }
            Ok(value) => found = Some(value),
            Err(wrong) => {
                fault = fault.or(Some(wrong));
                faults += 1;
            }
        }
    }
    found.ok_or_else(|| fault.unwrap_or_else(|| format!("it holds no JSON that begins with {opening}")))
}

/// Err if a key occurs twice in an object with values that differ.
fn single(node: &Node) -> Result<(), String> {
    match node {
        Node::Array(list) => list.iter().try_for_each(single),
        Node::Object(entries) => {
            let mut known = BTreeMap::new();
            entries.iter().try_for_each(|(key, value)| match known.insert(key, value) {
                Some(before) if before != value => Err(format!("the field `{key}` has two values")),
                _ => single(value),
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palimpsest_data::build::Role;

    fn ask(schema: Option<Value>, choices: &[&str]) -> Ask {
        Ask {
            of: Role::Generator,
            system: String::new(),
            template: "{{ a }}".to_owned(),
            schema,
            choices: choices.iter().map(ToString::to_string).collect(),
            temperature: 0.0,
            max_tokens: 9,
            into: None,
        }
    }

    #[test]
    fn a_reply_is_read_or_has_a_verdict() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        let ask = ask(Some(schema), &[]);
        let of = |text: &str, ending| read(&ask, &Said { text: text.to_owned(), ending });
        for text in [
            r#"{"a": "b"}"#,
            "Here it is:\n```json\n{\"a\": \"b\"}\n```\nGood luck {you}!",
            "{'a': 'b',}",
            r#"{"b": 1} is wrong, {"a": "b"} is right, {"a": "b"} again"#,
        ] {
            assert_eq!(of(text, Ending::Turn), Ok(json!({"a": "b"})), "{text}");
        }
        for (text, ending, verdict, said) in [
            ("{\"a\": \"b", Ending::Turn, "schema", "does not end"),
            ("{\"a\": \"b", Ending::Cut, "cut", "within 9 tokens"),
            ("", Ending::Turn, "empty", "empty"),
            ("no", Ending::Refused, "refused", "no"),
            ("none", Ending::Turn, "schema", "no JSON that begins with {"),
            ("{\"a\": 1}", Ending::Turn, "schema", "`a`: a value of type number"),
            ("{\"a\": \"b\"} or {\"a\": \"c\"}", Ending::Turn, "schema", "two answers"),
            ("{\"a\": \"b\", \"a\": \"c\"}", Ending::Turn, "schema", "`a` has two values"),
        ] {
            let (found, why) = of(text, ending).unwrap_err();
            assert!(found == verdict && why.contains(said), "{text}: {found}: {why}");
        }
        // Each of the places would be read to the end: minutes without a limit.
        for (text, said) in [("{'a", "does not end"), ("{\"", "does not")] {
            let (found, why) = of(&text.repeat(50_000), Ending::Turn).unwrap_err();
            assert!(found == "schema" && why.contains(said), "{text}: {found}: {why}");
        }
        let prose = format!("{} {{\"a\": \"b\"}}", r"\frac{x}{y}".repeat(20));
        assert_eq!(of(&prose, Ending::Turn), Ok(json!({"a": "b"})));
    }

    #[test]
    fn a_text_is_trimmed_and_a_choice_is_one_of_its_words() {
        let of = |ask: &Ask, text: &str, ending| read(ask, &Said { text: text.to_owned(), ending });
        assert_eq!(of(&ask(None, &[]), " tea \n", Ending::Turn), Ok(json!("tea")));
        assert_eq!(of(&ask(None, &[]), "tea", Ending::Cut).unwrap_err().0, "cut");
        let choice = ask(None, &["yes", "no"]);
        assert_eq!(of(&choice, "{\"choice\": \"no\"}", Ending::Turn), Ok(json!({"choice": "no"})));
        assert!(of(&choice, "{\"choice\": \"perhaps\"}", Ending::Turn).unwrap_err().1.contains("none of"));
    }

    struct Scores(Vec<f64>);

    impl ChatModel for Scores {
        fn name(&self) -> String {
            "scores".to_owned()
        }

        fn reply(&mut self, _: &[Message], _: &Sampling) -> Result<crate::chat::Reply, ChatError> {
            Err(ChatError::from("it only scores".to_owned()))
        }

        fn scoring(&mut self) -> Option<&mut dyn ScoringModel> {
            Some(self)
        }
    }

    impl ScoringModel for Scores {
        fn score(&mut self, _: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError> {
            assert_eq!((prefix, choices), ("{\"choice\":", &[" \"yes\"", " \"no\""][..]));
            Ok(self.0.clone())
        }

        fn continue_from(&mut self, _: &[Message], _: &str, _: &str, _: usize) -> Result<String, ChatError> {
            Err(ChatError::from("it only scores".to_owned()))
        }
    }

    #[test]
    fn choices_are_scored_where_probabilities_are_readable() {
        let ask = ask(None, &["yes", "no"]);
        let (said, _) = put(&mut Scores(vec![0.1_f64.ln(), 0.3_f64.ln()]), &ask, &[], 0).unwrap();
        let value = read(&ask, &said).unwrap();
        assert_eq!(value["choice"], "no");
        let p = |word: &str| value["p"][word].as_f64().unwrap();
        assert!((p("yes") - 0.25).abs() < 1e-12 && (p("no") - 0.75).abs() < 1e-12);
        assert!(put(&mut Scores(vec![f64::NEG_INFINITY; 2]), &ask, &[], 0).is_err());
    }
}
