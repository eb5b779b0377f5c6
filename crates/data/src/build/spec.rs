//! Specs: TOML with stages as data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A spec, as `palimpsest build init KIND` writes it and `palimpsest build KIND SPEC.toml` reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// A name of [`KINDS`](super::table::KINDS).
    pub kind: String,
    #[serde(default)]
    pub seed: u64,
    /// Of the data that are made.
    pub licence: String,
    /// Licences of sources that may be published.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Parameters of makers, by name. Flags of the command line set some of them.
    #[serde(default)]
    pub settings: Map<String, Value>,
    /// Rows from files.
    #[serde(default)]
    pub sources: BTreeMap<String, Source>,
    /// Rows from the spec: an ontology, seeds, personas.
    #[serde(default)]
    pub tables: BTreeMap<String, Vec<Map<String, Value>>>,
    #[serde(rename = "stage")]
    pub stages: Vec<Stage>,
}

/// A file of rows: JSON Lines, a JSON list of objects, or a text file, which is one row with the field `text`. Relative paths are relative
/// to the spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub file: PathBuf,
    pub licence: String,
}

/// Takes rows and makes rows. The order within a stage: rows are formed (`rows`, `group`, `each`, `times`, `set`), then a maker runs or a
/// model is asked, then checks and judges decide. A stage with neither maker nor ask is a filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    pub name: String,
    /// Tables, sources or earlier stages; several are taken one after the other.
    pub rows: Vec<String>,
    /// One row for each combination of values of these fields, in order of first occurrence; its rows' fields are the list `rows`.
    #[serde(default)]
    pub group: Vec<String>,
    /// One row for each element of the list in this field. Fields of an element that is an object join the row's; another element becomes
    /// the field `item`.
    pub each: Option<String>,
    /// Copies of each row, with their number from 0 in the field `copy`.
    #[serde(default = "one")]
    pub times: usize,
    /// Fields that every row gets.
    #[serde(default)]
    pub set: Map<String, Value>,
    /// A name of [`makers`](super::table::makers).
    pub make: Option<String>,
    /// Parameters of this stage's maker, over the spec's settings.
    #[serde(default)]
    pub with: Map<String, Value>,
    pub ask: Option<Ask>,
    pub steps: Option<Steps>,
    /// Attempts at each step before the row is rejected.
    #[serde(default = "three")]
    pub tries: usize,
    #[serde(default)]
    pub checks: Vec<CheckCall>,
    #[serde(default, rename = "judge")]
    pub judges: Vec<Judge>,
}

fn one() -> usize {
    1
}

fn three() -> usize {
    3
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Generator,
    Checker,
}

/// A question to a model. Templates are Jinja's, and strict: they see the row's fields, `settings`, `item` and `step` of stages with steps,
/// and `failures`, the list of the step's earlier attempts, each with `reply` and `why`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    pub of: Role,
    #[serde(default)]
    pub system: String,
    pub template: String,
    /// JSON schema of the reply. Without it the reply is text.
    pub schema: Option<Value>,
    /// The reply is one of these words, scored where the model's probabilities are readable: then the fields `choice` and `p`, the
    /// probability of each word among them. Excludes `schema`.
    #[serde(default)]
    pub choices: Vec<String>,
    #[serde(default)]
    pub temperature: f64,
    #[serde(default = "most_tokens")]
    pub max_tokens: usize,
    /// The field that the reply becomes. Without it the fields of the reply join the row's.
    pub into: Option<String>,
}

impl Ask {
    /// Fields that a reply may give the row; `None` if the schema leaves them open.
    pub fn fields(&self) -> Option<BTreeSet<String>> {
        let is_object = self.schema.as_ref().filter(|schema| schema["type"] == "object");
        Some(match (&self.into, is_object) {
            (Some(into), _) => BTreeSet::from([into.clone()]),
            (None, _) if !self.choices.is_empty() => BTreeSet::from(["choice", "p"].map(str::to_owned)),
            (None, None) => BTreeSet::from(["reply".to_owned()]),
            (None, Some(schema)) if schema["additionalProperties"] == true => return None,
            (None, Some(schema)) => schema["properties"].as_object()?.keys().cloned().collect(),
        })
    }
}

fn most_tokens() -> usize {
    1024
}

/// Asks a row several times, each step with checks, judges and tries of its own; what the steps kept becomes a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    /// The field of the list. Templates of later steps see it.
    pub into: String,
    /// One step for each element of the list in this field, which templates see as `item`.
    pub over: Option<String>,
    /// Most steps.
    pub most: Option<usize>,
    /// Keeps the element of `over` instead of the reply.
    #[serde(default)]
    pub keep_item: bool,
    /// An expression over the row that ends the steps when it holds, asked before each step.
    pub until: Option<String>,
    /// A step that fails is left out, and does not reject the row.
    #[serde(default)]
    pub skip: bool,
    /// The field of a list that has, for each element of `into`, the list of replies that its checks and judges refused.
    pub failed: Option<String>,
    /// Fewest elements of the list; a row with fewer is rejected.
    #[serde(default)]
    pub least: usize,
}

/// A check by name, with its parameters beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckCall {
    /// A name of [`checks`](super::table::checks).
    pub check: String,
    #[serde(flatten)]
    pub with: Map<String, Value>,
}

/// A question about a made row. Its template sees the row with the reply, as a check does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judge {
    pub name: String,
    pub ask: Ask,
    /// An expression over the reply's fields: `verdict == "yes"`. What makes it no boolean is a rejection.
    pub accept: String,
}
