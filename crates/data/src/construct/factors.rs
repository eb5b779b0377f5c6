//! Factors: the properties of a history that a build varies, their names, levels and invalid combinations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::BuildError;

pub const LONGEST_CHAIN: usize = 16;
pub const MOST_REPEATS: usize = 8;
pub const MOST_LURES: usize = 16;
pub const MOST_OTHERS: usize = 32;
pub const MOST_TOKENS: usize = 150_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fillers {
    None,
    Unrelated,
    Topic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Explicitness {
    E0,
    E1,
    /// The update also denies the old value.
    E2,
    E3,
    /// The new value follows by one step of world knowledge.
    E4,
    E5,
    /// The old value is denied without replacement.
    EN,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    Place,
    /// The old and new sessions swap positions but keep their dates.
    Crossed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    User,
    Assistant,
}

/// The speaker who brings an old value up again after the update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EchoBy {
    /// The speaker of the values, who tells the old one as something past.
    #[default]
    Speaker,
    /// Other people, of whom the user tells.
    Others,
    /// The assistant, who quotes an early note.
    Assistant,
}

/// Lexical overlap of a session with the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Value", try_from = "Value")]
pub enum Overlap {
    None,
    Part,
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Factors {
    pub depth_old: usize,
    /// Tokens before the second; if set, it determines `distance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth_new: Option<usize>,
    pub distance: usize,
    pub tail: usize,
    pub fillers: Fillers,
    /// Sessions about another person's attribute, alternately between the pair and after it.
    pub lures: usize,
    pub restated_old: usize,
    pub restated_new: usize,
    pub echoes: usize,
    #[serde(skip_serializing_if = "is_default")]
    pub echo_by: EchoBy,
    /// A -> B is 1, A -> B -> C is 2.
    pub chain: usize,
    pub returns: bool,
    /// The last update returns to the first value without naming it.
    #[serde(skip_serializing_if = "is_default")]
    pub revert: bool,
    pub others: usize,
    pub explicitness: Explicitness,
    pub order: Order,
    pub speaker: Speaker,
    pub overlap_old: Overlap,
    pub overlap_new: Overlap,
    pub premise: bool,
}

impl Default for Factors {
    fn default() -> Self {
        Factors {
            depth_old: 0,
            depth_new: None,
            distance: 0,
            tail: 0,
            fillers: Fillers::Unrelated,
            lures: 0,
            restated_old: 0,
            restated_new: 0,
            echoes: 0,
            echo_by: EchoBy::Speaker,
            chain: 1,
            returns: false,
            revert: false,
            others: 0,
            explicitness: Explicitness::E1,
            order: Order::Place,
            speaker: Speaker::User,
            overlap_old: Overlap::Full,
            overlap_new: Overlap::Full,
            premise: false,
        }
    }
}

/// Later factors, which rows of specs that leave them alone do not have.
const LATER: [&str; 2] = ["echo_by", "revert"];

fn is_default<T: Default + PartialEq>(level: &T) -> bool {
    *level == T::default()
}

const LENGTHS: [&str; 4] = ["depth_old", "depth_new", "distance", "tail"];

impl Factors {
    /// A copy with one factor changed. `field` is its path in the spec.
    pub fn with(&self, name: &str, level: &Value, field: &str) -> Result<Factors, BuildError> {
        let Value::Object(mut all) = json!(self) else { return Ok(self.clone()) };
        check_name(name, field)?;
        all.insert(name.to_owned(), level.clone());
        // An explicit distance overrides `depth_new`.
        if name == "distance" {
            all.shift_remove("depth_new");
        }
        serde_json::from_value(Value::Object(all))
            .map_err(|_| BuildError::field(field, level.to_string(), format!("write {}", wanted(name))))
    }

    /// Sessions between the pair, without fillers.
    pub fn between(&self) -> usize {
        self.restated_old + (self.chain - 1) + self.lures.div_ceil(2) + self.others
    }

    /// Sessions after the pair, without fillers.
    pub fn behind(&self) -> usize {
        self.restated_new + self.echoes + self.lures / 2
    }

    /// Names of later factors that are not at their usual level.
    pub fn later(&self) -> impl Iterator<Item = &'static str> {
        let all = json!(self);
        LATER.into_iter().filter(move |name| all.get(name).is_some())
    }

    /// Factors as row labels. `session`: tokens per evidence session; `later`: the later factors that the spec varies.
    pub fn as_levels(&self, family: &str, session: usize, later: &[&str]) -> BTreeMap<String, Value> {
        let mut levels = BTreeMap::from([("family".to_owned(), json!(family))]);
        if let Value::Object(all) = json!(self) {
            levels.extend(all);
        }
        for (name, level) in [("echo_by", json!(self.echo_by)), ("revert", json!(self.revert))] {
            if later.contains(&name) {
                levels.insert(name.to_owned(), level);
            }
        }
        let depth_new = self.depth_new.unwrap_or(self.depth_old + session + self.distance);
        levels.insert("depth_new".to_owned(), json!(depth_new));
        levels
    }

    /// Derives lengths: zero without fillers, and the distance from the depths.
    pub fn resolved(&self, session: usize, field: &str) -> Result<Factors, BuildError> {
        let mut all = self.clone();
        if self.fillers == Fillers::None {
            all.depth_old = 0;
            all.depth_new = None;
            all.distance = self.between() * session;
            all.tail = self.behind() * session;
            return Ok(all);
        }
        if let Some(depth_new) = self.depth_new {
            let Some(distance) = depth_new.checked_sub(self.depth_old + session) else {
                return Err(BuildError::field(
                    &format!("{field}.depth_new"),
                    format!(
                        "{depth_new} with depth_old = {} and a session of {session} tokens",
                        self.depth_old
                    ),
                    format!("write at least {}", self.depth_old + session),
                ));
            };
            all.distance = distance;
        }
        Ok(all)
    }

    /// Rejects impossible combinations. `field` is the path in the spec, `session` the tokens per evidence session.
    pub fn check(&self, session: usize, field: &str) -> Result<(), BuildError> {
        let wrong = |name: &str, found: String, remedy: &str| {
            Err(BuildError::field(&format!("{field}.{name}"), found, remedy))
        };
        for (name, value, most) in [
            ("depth_old", self.depth_old, MOST_TOKENS),
            ("depth_new", self.depth_new.unwrap_or(0), MOST_TOKENS),
            ("distance", self.distance, MOST_TOKENS),
            ("tail", self.tail, MOST_TOKENS),
            ("lures", self.lures, MOST_LURES),
            ("restated_old", self.restated_old, MOST_REPEATS),
            ("restated_new", self.restated_new, MOST_REPEATS),
            ("echoes", self.echoes, MOST_REPEATS),
            ("others", self.others, MOST_OTHERS),
        ] {
            if value > most {
                return wrong(name, value.to_string(), &format!("write at most {most}"));
            }
        }
        if !(1..=LONGEST_CHAIN).contains(&self.chain) {
            let remedy = format!("write a number of updates from 1 to {LONGEST_CHAIN}");
            return wrong("chain", self.chain.to_string(), &remedy);
        }
        if self.returns && self.chain < 2 {
            let remedy = "set chain to 2 or more, or returns to false";
            return wrong("returns", "true with chain = 1".to_owned(), remedy);
        }
        if self.returns && self.explicitness == Explicitness::EN {
            let remedy = "set returns to false: with EN the last update gives no value to go back to";
            return wrong("returns", "true with explicitness = \"EN\"".to_owned(), remedy);
        }
        if self.revert {
            if !self.returns {
                let remedy = "set returns to true and chain to 2 or more, or revert to false";
                return wrong("revert", "true with returns = false".to_owned(), remedy);
            }
            if self.explicitness > Explicitness::E2 {
                let remedy =
                    "set explicitness to \"E0\", \"E1\" or \"E2\": the last update has no value to imply";
                let found = format!("true with explicitness = \"{:?}\"", self.explicitness);
                return wrong("revert", found, remedy);
            }
            if self.overlap_new != Overlap::Full {
                let remedy = "set overlap_new to \"full\": the last update has one wording";
                let found = format!("true with overlap_new = {}", json!(self.overlap_new));
                return wrong("revert", found, remedy);
            }
        }
        if self.echo_by != EchoBy::Speaker && self.echoes == 0 {
            let found = format!("{} with echoes = 0", json!(self.echo_by));
            return wrong("echo_by", found, "set echoes to 1 or more, or leave echo_by out");
        }
        if self.order == Order::Crossed {
            let wanted = [
                ("chain", self.chain, 1),
                ("restated_old", self.restated_old, 0),
                ("restated_new", self.restated_new, 0),
                ("echoes", self.echoes, 0),
            ];
            if let Some((name, value, _)) = wanted.into_iter().find(|(_, value, most)| value > most) {
                let remedy = "crossed histories have one old session and one new one: set chain to 1, and restated_old, \
                              restated_new and echoes to 0";
                return wrong("order", format!("\"crossed\" with {name} = {value}"), remedy);
            }
        }
        let all = self.resolved(session, field)?;
        if all.fillers != Fillers::None {
            let named = if self.depth_new.is_some() { "depth_new" } else { "distance" };
            let of_gap = "restated_old, chain - 1, others, every other one of lures";
            let of_tail = "restated_new, echoes, every other one of lures";
            for (name, tokens, sessions, of) in
                [(named, all.distance, self.between(), of_gap), ("tail", all.tail, self.behind(), of_tail)]
            {
                let need = sessions * session;
                if tokens < need {
                    let found = format!(
                        "{tokens} tokens, less than the {sessions} sessions of {session} tokens that stand there ({of})"
                    );
                    return wrong(name, found, &format!("write at least {need}, or fewer of these sessions"));
                }
            }
        }
        let whole = all.depth_old + all.distance + all.tail + 2 * session;
        if whole > MOST_TOKENS {
            let remedy =
                format!("lower depth_old, distance or tail: a history has at most {MOST_TOKENS} tokens");
            return Err(BuildError::field(field, format!("{whole} tokens in all"), remedy));
        }
        Ok(())
    }
}

pub fn check_name(name: &str, field: &str) -> Result<(), BuildError> {
    let shown = Factors { depth_new: Some(0), echo_by: EchoBy::Others, revert: true, ..Factors::default() };
    let all = json!(shown);
    let names: Vec<&str> =
        all.as_object().into_iter().flat_map(|all| all.keys().map(String::as_str)).collect();
    let remedy = || format!("write one of {}", names.join(", "));
    let wrong = || BuildError::field(field, format!("`{name}`, which is no factor"), remedy());
    names.contains(&name).then_some(()).ok_or_else(wrong)
}

pub fn is_length(name: &str) -> bool {
    LENGTHS.contains(&name)
}

fn wanted(name: &str) -> &'static str {
    match name {
        "fillers" => "\"none\", \"unrelated\" or \"topic\"",
        "explicitness" => "\"E0\", \"E1\", \"E2\", \"E3\", \"E4\", \"E5\" or \"EN\"",
        "order" => "\"place\" or \"crossed\"",
        "speaker" => "\"user\" or \"assistant\"",
        "overlap_old" | "overlap_new" => "0, \"part\" or \"full\"",
        "echo_by" => "\"speaker\", \"others\" or \"assistant\"",
        "returns" | "revert" | "premise" => "true or false",
        _ => "a whole number, 0 or more",
    }
}

impl From<Overlap> for Value {
    fn from(overlap: Overlap) -> Self {
        match overlap {
            Overlap::None => 0.into(),
            Overlap::Part => "part".into(),
            Overlap::Full => "full".into(),
        }
    }
}

impl TryFrom<Value> for Overlap {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let known = [Overlap::None, Overlap::Part, Overlap::Full];
        let found = known.into_iter().find(|overlap| Value::from(*overlap) == value);
        found.ok_or_else(|| format!("{value} is not 0, \"part\" or \"full\""))
    }
}
