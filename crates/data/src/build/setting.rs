//! The surroundings of makers and checks: settings, pool, tokenizer, embedder, reviews.

use palimpsest_core::text::CountTokens;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{BuildError, RowError};
use super::pool::Pool;
use super::rating::Review;
use super::spec::Spec;
use crate::case::draw::Draws;

/// Unit vectors of texts, in their order.
pub type Embed<'a> = &'a (dyn Fn(&[&str]) -> Result<Vec<Vec<f32>>, String> + Sync);

pub struct Setting<'a> {
    pub spec: &'a Spec,
    /// The stage's name.
    pub stage: &'a str,
    /// Parameters: the spec's settings, and the stage's `with` over them.
    pub with: Map<String, Value>,
    pub pool: &'a Pool,
    pub count: &'a dyn CountTokens,
    pub embed: Embed<'a>,
    /// Of the build's folder, in the order given.
    pub reviews: &'a [Review],
}

impl Setting<'_> {
    /// Draws of a row's attempt. They depend on the seed of the build, the stage, the row's id and the attempt alone, so that another row
    /// changes none of them.
    pub fn draws(&self, row: &str, attempt: usize) -> Draws {
        draws(self.spec.seed, self.stage, row, attempt)
    }

    /// A parameter as a type; `None` if it is not given, a fault if it is of another type.
    pub fn given<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RowError> {
        parameter(&self.with, "setting", name, REMEDY)
    }

    /// A parameter that the maker needs.
    pub fn needed<T: DeserializeOwned>(&self, name: &str) -> Result<T, RowError> {
        self.given(name)?.ok_or_else(|| RowError::Fault(format!("the setting `{name}` is missing; {REMEDY}")))
    }

    /// The error that ends the build.
    pub fn broken(&self, error: RowError) -> BuildError {
        let (RowError::Rejected(what) | RowError::Fault(what)) = error;
        BuildError::stage(self.stage, what)
    }
}

const REMEDY: &str = "write it under [settings] or into the stage's `with`";

/// A parameter as a type; a fault with the remedy if it is of another type.
pub fn parameter<T: DeserializeOwned>(
    with: &Map<String, Value>,
    kind: &str,
    name: &str,
    remedy: &str,
) -> Result<Option<T>, RowError> {
    let Some(value) = with.get(name) else { return Ok(None) };
    let fault = |error| RowError::Fault(format!("the {kind} `{name}` is {value}: {error}; {remedy}"));
    T::deserialize(value).map(Some).map_err(fault)
}

/// See [`Setting::draws`].
pub fn draws(seed: u64, stage: &str, row: &str, attempt: usize) -> Draws {
    Draws::new("palimpsest build 1", seed, &format!("{stage}/{row}/{attempt}"))
}
