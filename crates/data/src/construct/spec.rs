//! Build specs: TOML parsing with errors per field, and the presets. Knows no tokenizer.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::BuildError;
use super::factors::{self, Explicitness, Factors, Fillers, Overlap, is_length};
use super::texts::{FAMILIES, STREAMS_FAMILY, Texts};
use crate::benchmarks::dose::terms::{BLIND, NO_OLD, NO_UPDATE, OTHER, PARAPHRASE, UPDATE};
use crate::benchmarks::reading::Problem;
use crate::benchmarks::shape::{Checker, Node, Others, Shape, WHOLE_ROW, needed, optional};

pub const PRESETS: [(&str, &str); 5] = [
    ("slots", include_str!("presets/slots.toml")),
    ("chains", include_str!("presets/chains.toml")),
    ("boxes", include_str!("presets/boxes.toml")),
    ("streams", include_str!("presets/streams.toml")),
    ("implied", include_str!("presets/implied.toml")),
];

const TWINS: [&str; 6] = [UPDATE, NO_UPDATE, NO_OLD, OTHER, PARAPHRASE, BLIND];
/// Twins of the gate at the base level: one of the two sessions, or neither.
const GATE: [&str; 3] = [NO_UPDATE, NO_OLD, BLIND];
const ORDERS: [&str; 2] = ["ab", "ba"];
pub const BASE: &str = "base";

pub const MOST_ITEMS: usize = 10_000;

const SPEC: Shape = Shape::Fields(
    &[
        needed("family", Shape::OneOf(&FAMILIES, "write one of slots, chains, boxes, streams, implied")),
        optional(
            "items",
            Shape::Where(|n| whole(n, 1..=MOST_ITEMS as u64), "write a whole number from 1 to 10000"),
        ),
        optional("seed", Shape::Where(|n| whole(n, 0..=i64::MAX as u64), "write a whole number, 0 or more")),
        optional("templates", Shape::List("name", 0, &Shape::Text)),
        optional(
            "session_tokens",
            Shape::Where(|n| whole(n, 32..=400), "write a whole number from 32 to 400"),
        ),
        optional("absent", Shape::Where(|n| whole(n, 1..=8), "write a whole number from 1 to 8")),
        optional("keys", Shape::Where(|n| whole(n, 1..=6), "write a whole number from 1 to 6")),
        optional("orders", Shape::List("order", 1, &Shape::OneOf(&ORDERS, "write ab or ba"))),
        optional(
            "twins",
            Shape::List(
                "twin",
                1,
                &Shape::OneOf(&TWINS, "write some of update, no-update, no-old, other, paraphrase, blind"),
            ),
        ),
        optional("gate", Shape::Where(|node| matches!(node, Node::Bool(_)), "write true or false")),
        optional(BASE, TABLE),
        optional("sweeps", TABLE),
        optional("grids", TABLE),
    ],
    Others::Refused,
);
const TABLE: Shape = Shape::Fields(&[], Others::Ignored);

fn whole(node: &Node, within: RangeInclusive<u64>) -> bool {
    matches!(node, Node::Number(number) if number.as_u64().is_some_and(|number| within.contains(&number)))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub family: String,
    pub items: usize,
    pub seed: u64,
    pub templates: Vec<String>,
    /// Per evidence session, with a two-digit number.
    pub session_tokens: usize,
    /// Unused values beside the pair.
    pub absent: usize,
    pub keys: usize,
    pub orders: Vec<String>,
    pub twins: Vec<String>,
    /// Adds the gate's twins.
    pub gate: bool,
    pub base: Factors,
    /// Lists of levels by factor.
    pub sweeps: Map<String, Value>,
    /// Two lists of levels by `factor*factor`.
    pub grids: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Varied factor, [`BASE`], or two factors joined by `*`.
    pub sweep: String,
    pub label: String,
    pub factors: Factors,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Twin {
    pub kind: &'static str,
    pub order: &'static str,
}

impl Twin {
    pub fn name(&self) -> String {
        match (self.kind, self.order) {
            (UPDATE, order) => order.to_owned(),
            (kind, "") => kind.to_owned(),
            (kind, order) => format!("{kind}-{order}"),
        }
    }

    pub fn swapped(&self) -> bool {
        self.order == ORDERS[1]
    }
}

impl Spec {
    pub fn preset(name: &str) -> Option<Result<Spec, BuildError>> {
        let (_, text) = PRESETS.iter().find(|(known, _)| *known == name)?;
        Some(Spec::parse(name, text))
    }

    pub fn parse(name: &str, text: &str) -> Result<Spec, BuildError> {
        let unread = |message: String| BuildError::Toml { name: name.to_owned(), message };
        let mut all: Map<String, Value> = toml::from_str(text).map_err(|error| unread(error.to_string()))?;
        let node: Node = toml::from_str(text).map_err(|error| unread(error.to_string()))?;
        let mut checker = Checker::new(None, 0, None);
        checker.fits(WHOLE_ROW, &node, &SPEC);
        if let Some(Problem { field, found, remedy, .. }) = checker.problems.into_iter().next() {
            return Err(BuildError::Field { field, found, remedy });
        }
        let is_log = all.get("family").is_some_and(|family| family == STREAMS_FAMILY);
        let (tokens, keys) = if is_log { (112, 4) } else { (80, 1) };
        let usual = json!({
            "items": 32, "seed": 0, "templates": [], "session_tokens": tokens, "absent": 2, "keys": keys, "orders": ORDERS,
            "twins": [UPDATE], "gate": false, "sweeps": {}, "grids": {},
        });
        let base = base(all.remove(BASE).as_ref().and_then(Value::as_object))?;
        all.insert(BASE.to_owned(), json!(base));
        for (name, value) in usual.as_object().into_iter().flatten() {
            all.entry(name).or_insert_with(|| value.clone());
        }
        let spec: Spec =
            serde_json::from_value(Value::Object(all)).map_err(|error| unread(error.to_string()))?;
        if !is_log && spec.keys != 1 {
            let remedy = "leave it out: only the family streams has several keys";
            return Err(BuildError::field("keys", spec.keys.to_string(), remedy));
        }
        spec.check()?;
        Ok(spec)
    }

    /// The base, then all sweeps and grids, without duplicates.
    pub fn levels(&self) -> Result<Vec<Level>, BuildError> {
        let level = |sweep: &str, label: String, factors| Level { sweep: sweep.to_owned(), label, factors };
        let mut levels = vec![level(BASE, BASE.to_owned(), self.base.clone())];
        let mut add = |level: Level| {
            if levels.iter().all(|other| other.factors != level.factors) {
                levels.push(level);
            }
        };
        for (name, values) in &self.sweeps {
            for (value, field) in listed(&format!("sweeps.{name}"), name, values)? {
                add(level(name, label(name, value), self.base.with(name, value, &field)?));
            }
        }
        for (name, lists) in &self.grids {
            let field = format!("grids.\"{name}\"");
            let wrong = |found: String| {
                let remedy = "write \"factor*factor\" = [[levels], [levels]]";
                BuildError::field(&field, found, remedy)
            };
            let factors = name.split_once('*').filter(|(a, b)| a != b);
            let (a, b) = factors.ok_or_else(|| wrong(format!("`{name}`")))?;
            let lists = lists.as_array().ok_or_else(|| wrong(lists.to_string()))?;
            let [of_a, of_b] = lists.as_slice() else { return Err(wrong("not two lists".to_owned())) };
            let of_a = listed(&format!("{field}[0]"), a, of_a)?;
            let of_b = listed(&format!("{field}[1]"), b, of_b)?;
            for (x, field) in of_a {
                let first = self.base.with(a, x, &field)?;
                for (y, field) in &of_b {
                    let label = format!("{}-{}", label(a, x), label(b, y));
                    add(level(name, label, first.with(b, y, field)?));
                }
            }
        }
        Ok(levels)
    }

    pub fn twins_at(&self, level: &Level) -> Vec<Twin> {
        let is_base = level.sweep == BASE;
        let kinds = TWINS.into_iter().filter(|kind| {
            self.twins.iter().any(|twin| twin == kind) || (self.gate && is_base && GATE.contains(kind))
        });
        let mut twins = Vec::new();
        for kind in kinds {
            if kind == BLIND {
                twins.push(Twin { kind, order: "" });
                continue;
            }
            let orders = ORDERS.into_iter().filter(|order| self.orders.iter().any(|wanted| wanted == order));
            twins.extend(orders.map(|order| Twin { kind, order }));
        }
        twins
    }

    pub fn longest_chain(&self) -> Result<usize, BuildError> {
        Ok(self.levels()?.iter().map(|level| level.factors.chain).max().unwrap_or(1))
    }

    /// Checks that need no tokenizer.
    pub fn check(&self) -> Result<(), BuildError> {
        let texts = Texts::get()?;
        for name in &self.templates {
            let names: Vec<&str> = match self.family.as_str() {
                STREAMS_FAMILY => texts.streams.log.iter().map(|log| log.name.as_str()).collect(),
                family => texts.of_family(family).map(|template| template.name.as_str()).collect(),
            };
            if !names.contains(&name.as_str()) {
                let remedy = format!("write some of {}, or none for all", names.join(", "));
                return Err(BuildError::field("templates", format!("\"{name}\""), remedy));
            }
        }
        let of_grids = self.grids.keys().flat_map(|names| names.split('*'));
        let varied: Vec<&str> = self.sweeps.keys().map(String::as_str).chain(of_grids).collect();
        if self.base.fillers == Fillers::None && !varied.contains(&"fillers") {
            let given = [
                ("depth_old", self.base.depth_old),
                ("depth_new", self.base.depth_new.unwrap_or(0)),
                ("distance", self.base.distance),
                ("tail", self.base.tail),
            ];
            let remedy = "write 0 or leave it out: with fillers = \"none\" nothing could fill it";
            if let Some((name, tokens)) = given.into_iter().find(|(_, tokens)| *tokens > 0) {
                return Err(BuildError::field(&format!("base.{name}"), tokens.to_string(), remedy));
            }
            if let Some(name) = varied.iter().find(|name| is_length(name)) {
                let remedy = "leave it out, or set base.fillers to \"unrelated\" or \"topic\"";
                return Err(BuildError::field(
                    &format!("sweeps.{name}"),
                    "levels where base.fillers is \"none\"".to_owned(),
                    remedy,
                ));
            }
        }
        for level in self.levels()? {
            let field =
                if level.sweep == BASE { BASE.to_owned() } else { format!("{} ({})", BASE, level.label) };
            level.factors.check(self.session_tokens, &field)?;
            let Factors { explicitness: told, overlap_old, overlap_new, .. } = level.factors;
            let family = &self.family;
            let wrong = |name: &str, found: String, remedy: &str| {
                let found = format!("{found} in the family {family}");
                Err(BuildError::field(&format!("{field}.{name}"), found, remedy))
            };
            if family != STREAMS_FAMILY {
                if !texts.of_family(family).any(|template| template.tells(told)) {
                    let remedy = "take the family implied, whose templates imply values by world knowledge";
                    return wrong("explicitness", format!("\"{told:?}\""), remedy);
                }
                continue;
            }
            if !matches!(told, Explicitness::E0 | Explicitness::E1) {
                let remedy = "write \"E0\" or \"E1\", or take another family";
                return wrong("explicitness", format!("{told:?}"), remedy);
            }
            for (name, overlap) in [("overlap_old", overlap_old), ("overlap_new", overlap_new)] {
                if overlap != Overlap::Full {
                    let remedy = "write \"full\", or take another family";
                    return wrong(name, json!(overlap).to_string(), remedy);
                }
            }
        }
        Ok(())
    }
}

/// For ids: letters, digits and hyphens.
fn label(name: &str, value: &Value) -> String {
    let value = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("{}-{value}", name.replace('_', "-"))
}

fn base(given: Option<&Map<String, Value>>) -> Result<Factors, BuildError> {
    let get = |name: &str| given.and_then(|given| given.get(name));
    if let (Some(_), Some(distance)) = (get("depth_new"), get("distance")) {
        let remedy = "give either depth_new or distance: each follows from the other";
        return Err(BuildError::field("base.distance", format!("{distance} beside depth_new"), remedy));
    }
    given.into_iter().flatten().try_fold(Factors::default(), |factors, (name, level)| {
        factors.with(name, level, &format!("base.{name}"))
    })
}

/// The levels of a factor with the place of each.
fn listed<'a>(field: &str, name: &str, levels: &'a Value) -> Result<Vec<(&'a Value, String)>, BuildError> {
    factors::check_name(name, field)?;
    let wrong = || BuildError::field(field, levels.to_string(), "write a list of levels");
    let levels = levels.as_array().filter(|levels| !levels.is_empty()).ok_or_else(wrong)?;
    Ok(levels.iter().enumerate().map(|(at, level)| (level, format!("{field}[{at}]"))).collect())
}
