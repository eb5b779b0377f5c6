//! Makers that all kinds have.

use std::collections::{BTreeMap, BTreeSet};

use super::error::RowError;
use super::kind::{Made, Maker};
use super::review;
use super::row::Row;
use super::setting::Setting;
use crate::ground::words::folded;

pub const MAKERS: &[(&str, Maker)] = &[
    ("distinct", Maker::All(distinct)),
    ("sample", Maker::All(sample)),
    ("review", Maker::All(review::review)),
];

/// Drops a row whose texts at `fields` are those of an earlier row; letter case and white space do not count.
fn distinct(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let fields: Vec<String> = setting.needed("fields")?;
    let mut known = BTreeSet::new();
    let made = rows.iter().map(|row| {
        let texts = fields.iter().map(|field| row.text(field).map(folded));
        Ok(match known.insert(texts.collect::<Result<Vec<_>, _>>()?) {
            true => Ok(copy(row)),
            false => Err((row.id.clone(), "equal to an earlier row".to_owned())),
        })
    });
    made.collect()
}

/// Keeps `n` rows of each value of the field `by`, or of all. Each row has a draw of its own, so that another row moves none but those at
/// the edge.
fn sample(setting: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let (n, by): (usize, Option<String>) = (setting.needed("n")?, setting.given("by")?);
    let mut groups: BTreeMap<String, Vec<(u64, usize)>> = BTreeMap::new();
    for (place, row) in rows.iter().enumerate() {
        let value = by.as_ref().and_then(|by| row.get(by)).map(ToString::to_string);
        let drawn = setting.draws(&row.id, 0).below(u64::MAX);
        groups.entry(value.unwrap_or_default()).or_default().push((drawn, place));
    }
    let kept = groups.into_values().flat_map(|mut group| {
        group.sort_unstable();
        group.into_iter().take(n).map(|(_, place)| place)
    });
    let kept: BTreeSet<usize> = kept.collect();
    let made = rows.iter().enumerate().map(|(place, row)| match kept.contains(&place) {
        true => Ok(copy(row)),
        false => Err((row.id.clone(), "not in the sample".to_owned())),
    });
    Ok(made.collect())
}

/// The row as a row of the next stage.
pub fn copy(row: &Row) -> Row {
    Row { parents: vec![row.id.clone()], ..row.clone() }
}
