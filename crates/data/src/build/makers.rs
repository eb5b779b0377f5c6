//! Makers that all kinds have.

use std::collections::BTreeSet;

use super::kind::Maker;
use super::{Made, Row, RowError, Setting, review};
use crate::ground::words::folded;

pub const MAKERS: &[(&str, Maker)] =
    &[("distinct", Maker::All(distinct)), ("review", Maker::All(review::review))];

/// Settings that these makers read.
pub const SETTINGS: &str = "fields show edit keep drop flip instructions share required";

/// Drops a row whose texts at `fields` are those of an earlier row; letter case and white space do not count.
fn distinct(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let fields: Vec<String> = setting.needed("fields")?;
    let mut known = BTreeSet::new();
    let made = rows.iter().map(|row| {
        let texts = fields.iter().map(|field| row.text(field).map(folded));
        Ok(match known.insert(texts.collect::<Result<Vec<_>, _>>()?) {
            true => Ok(row.copy()),
            false => Err((row.id.clone(), "equal to an earlier row".to_owned())),
        })
    });
    made.collect()
}
