//! Build specs: TOML parsing with errors per field, and the presets. Knows no tokenizer.

use serde_json::{Map, Value, json};

use super::error::BuildError;
use super::factors::{self, Explicitness, Factors, Fillers, Overlap, is_length};
use super::texts::{FAMILIES, STREAMS_FAMILY, Texts};
use crate::benchmarks::dose::terms::{BLIND, NO_OLD, NO_UPDATE, OTHER, PARAPHRASE, UPDATE};

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

const FIELDS: [&str; 13] = [
    "family",
    "items",
    "seed",
    "templates",
    "session_tokens",
    "absent",
    "keys",
    "orders",
    "twins",
    "gate",
    "base",
    "sweeps",
    "grids",
];

#[derive(Debug, Clone, PartialEq)]
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
    pub sweeps: Vec<(String, Vec<Value>)>,
    pub grids: Vec<Grid>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    pub names: [String; 2],
    pub levels: [Vec<Value>; 2],
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
        let toml =
            |error: toml::de::Error| BuildError::Toml { name: name.to_owned(), message: error.to_string() };
        let all: Map<String, Value> = toml::from_str(text).map_err(toml)?;
        Fields(all).spec()
    }

    /// The base, then all sweeps and grids, without duplicates.
    pub fn levels(&self) -> Result<Vec<Level>, BuildError> {
        let mut levels =
            vec![Level { sweep: BASE.to_owned(), label: BASE.to_owned(), factors: self.base.clone() }];
        let mut add = |level: Level| {
            if levels.iter().all(|other| other.factors != level.factors) {
                levels.push(level);
            }
        };
        for (name, values) in &self.sweeps {
            for (at, value) in values.iter().enumerate() {
                let factors = self.base.with(name, value, &format!("sweeps.{name}[{at}]"))?;
                add(Level { sweep: name.clone(), label: label(name, value), factors });
            }
        }
        for Grid { names: [a, b], levels: [of_a, of_b] } in &self.grids {
            for (i, x) in of_a.iter().enumerate() {
                for (j, y) in of_b.iter().enumerate() {
                    let field = format!("grids.\"{a}*{b}\"");
                    let factors = self.base.with(a, x, &format!("{field}[0][{i}]"))?;
                    let factors = factors.with(b, y, &format!("{field}[1][{j}]"))?;
                    let label = format!("{}-{}", label(a, x), label(b, y));
                    add(Level { sweep: format!("{a}*{b}"), label, factors });
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

    pub fn as_json(&self) -> Value {
        let Spec {
            family,
            items,
            seed,
            templates,
            session_tokens,
            absent,
            keys,
            orders,
            twins,
            gate,
            base,
            ..
        } = self;
        let sweeps: Map<String, Value> =
            self.sweeps.iter().map(|(name, levels)| (name.clone(), json!(levels))).collect();
        let grids: Map<String, Value> = (self.grids.iter())
            .map(|Grid { names: [a, b], levels }| (format!("{a}*{b}"), json!(levels)))
            .collect();
        json!({
            "family": family, "items": items, "seed": seed, "templates": templates, "session_tokens": session_tokens,
            "absent": absent, "keys": keys, "orders": orders, "twins": twins, "gate": gate, "base": base, "sweeps": sweeps,
            "grids": grids,
        })
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
        let places = self.sweeps.iter().map(|(name, _)| name);
        let places = places.chain(self.grids.iter().flat_map(|grid| &grid.names)).collect::<Vec<_>>();
        if self.base.fillers == Fillers::None && !places.iter().any(|name| *name == "fillers") {
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
            if let Some(name) = places.iter().find(|name| is_length(name)) {
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

struct Fields(Map<String, Value>);

impl Fields {
    fn spec(mut self) -> Result<Spec, BuildError> {
        if let Some(name) = self.0.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            let remedy = format!("remove it: the fields here are {}", FIELDS.join(", "));
            return Err(BuildError::field(name, "no such field".to_owned(), remedy));
        }
        let remedy = format!("write one of {}", FAMILIES.join(", "));
        let known = |value: &Value| value.as_str().filter(|name| FAMILIES.contains(name)).map(str::to_owned);
        let family = self.take("family", &remedy, known)?;
        let family = family.ok_or_else(|| BuildError::field("family", "no such field".to_owned(), remedy))?;
        let is_log = family == STREAMS_FAMILY;
        let number = |fields: &mut Self, name, least, most: usize, usual| {
            Ok::<_, BuildError>(fields.number(name, least, most as u64)?.unwrap_or(usual) as usize)
        };
        let spec = Spec {
            items: number(&mut self, "items", 1, MOST_ITEMS, 32)?,
            seed: self.number("seed", 0, i64::MAX as u64)?.unwrap_or(0),
            templates: self.words("templates", None)?.unwrap_or_default(),
            session_tokens: number(&mut self, "session_tokens", 32, 400, if is_log { 112 } else { 80 })?,
            absent: number(&mut self, "absent", 1, 8, 2)?,
            keys: number(&mut self, "keys", 1, 6, if is_log { 4 } else { 1 })?,
            orders: self
                .words("orders", Some(&ORDERS))?
                .unwrap_or_else(|| ORDERS.map(str::to_owned).to_vec()),
            twins: self.words("twins", Some(&TWINS))?.unwrap_or_else(|| vec![UPDATE.to_owned()]),
            gate: self.take("gate", "write true or false", Value::as_bool)?.unwrap_or(false),
            base: self.base()?,
            sweeps: self.sweeps()?,
            grids: self.grids()?,
            family,
        };
        if !is_log && spec.keys != 1 {
            let remedy = "leave it out: only the family streams has several keys";
            return Err(BuildError::field("keys", spec.keys.to_string(), remedy));
        }
        for (name, list) in [("orders", &spec.orders), ("twins", &spec.twins)] {
            if list.is_empty() {
                return Err(BuildError::field(name, "[]".to_owned(), "name at least one, or leave it out"));
            }
        }
        spec.check()?;
        Ok(spec)
    }

    /// Parses an optional field with `read`.
    fn take<T>(
        &mut self,
        name: &str,
        remedy: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, BuildError> {
        let Some(value) = self.0.shift_remove(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| BuildError::field(name, value.to_string(), remedy))
    }

    fn number(&mut self, name: &str, least: u64, most: u64) -> Result<Option<u64>, BuildError> {
        let remedy = format!("write a whole number from {least} to {most}");
        self.take(name, &remedy, |value| value.as_u64().filter(|number| (least..=most).contains(number)))
    }

    /// A list of words, from `known` if given.
    fn words(&mut self, name: &str, known: Option<&[&str]>) -> Result<Option<Vec<String>>, BuildError> {
        let remedy = match known {
            Some(known) => format!("write a list of some of {}", known.join(", ")),
            None => "write a list of names".to_owned(),
        };
        let Some(items) = self.take(name, &remedy, |value| value.as_array().cloned())? else {
            return Ok(None);
        };
        let mut words = Vec::new();
        for (at, item) in items.iter().enumerate() {
            match item.as_str().filter(|word| known.is_none_or(|known| known.contains(word))) {
                Some(word) => words.push(word.to_owned()),
                None => return Err(BuildError::field(&format!("{name}[{at}]"), item.to_string(), remedy)),
            }
        }
        Ok(Some(words))
    }

    fn table(&mut self, name: &str) -> Result<Map<String, Value>, BuildError> {
        let fields =
            self.take(name, &format!("write a table [{name}]"), |value| value.as_object().cloned())?;
        Ok(fields.unwrap_or_default())
    }

    fn base(&mut self) -> Result<Factors, BuildError> {
        let given = self.table(BASE)?;
        if let (Some(_), Some(distance)) = (given.get("depth_new"), given.get("distance")) {
            let remedy = "give either depth_new or distance: each follows from the other";
            return Err(BuildError::field("base.distance", format!("{distance} beside depth_new"), remedy));
        }
        let mut factors = Factors::default();
        for (name, level) in &given {
            factors = factors.with(name, level, &format!("base.{name}"))?;
        }
        Ok(factors)
    }

    fn sweeps(&mut self) -> Result<Vec<(String, Vec<Value>)>, BuildError> {
        let sweep = |(name, levels): (String, Value)| {
            let levels = Self::levels(&format!("sweeps.{name}"), &name, levels)?;
            Ok((name, levels))
        };
        self.table("sweeps")?.into_iter().map(sweep).collect()
    }

    fn levels(field: &str, name: &str, levels: Value) -> Result<Vec<Value>, BuildError> {
        factors::check_name(name, field)?;
        match levels {
            Value::Array(levels) if !levels.is_empty() => {
                for (at, level) in levels.iter().enumerate() {
                    Factors::default().with(name, level, &format!("{field}[{at}]"))?;
                }
                Ok(levels)
            }
            other => Err(BuildError::field(field, other.to_string(), "write a list of levels")),
        }
    }

    fn grids(&mut self) -> Result<Vec<Grid>, BuildError> {
        let mut grids = Vec::new();
        for (name, levels) in self.table("grids")? {
            let field = format!("grids.\"{name}\"");
            let wrong = |found: String| {
                let remedy = "write \"factor*factor\" = [[levels], [levels]]";
                BuildError::field(&field, found, remedy)
            };
            let Some((a, b)) = name.split_once('*').filter(|(a, b)| a != b) else {
                return Err(wrong(format!("`{name}`")));
            };
            let Value::Array(both) = levels else { return Err(wrong(levels.to_string())) };
            let Ok([of_a, of_b]) = <[Value; 2]>::try_from(both) else {
                return Err(wrong("not two lists".to_owned()));
            };
            let levels = [
                Self::levels(&format!("{field}[0]"), a, of_a)?,
                Self::levels(&format!("{field}[1]"), b, of_b)?,
            ];
            grids.push(Grid { names: [a.to_owned(), b.to_owned()], levels });
        }
        Ok(grids)
    }
}
