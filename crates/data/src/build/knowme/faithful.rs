//! Equation 2, and module D held to its unit.

use std::collections::BTreeSet;

use super::fields::texts;
use super::units::CONTENT;
use crate::build::{Found, Row, Setting, With};
use crate::case::check::words::{content_words, listed_words, stem};

/// True if 0.4 of the share of the source's facts that the output lacks and 0.6 of the share of the output's facts that the source lacks are
/// together more than `most` (equation 2), which counts in millionths. The share of no facts is 0. Whole numbers, so that equal is equal.
pub fn diverges(source: usize, common: usize, output: usize, most: f64) -> bool {
    const ONE: f64 = 1e6;
    let [missed, added, source, output] =
        [source.saturating_sub(common), output.saturating_sub(common), source.max(1), output.max(1)]
            .map(|n| n as u128);
    400_000 * missed * output + 600_000 * added * source > (most * ONE).round() as u128 * source * output
}

/// Holds the fields of an event against its `unit`: each field of content is told and no other, no content word is added, and
/// [`diverges`] over the content words is not true of the setting `divergence`. Parameter `except`: words that count on neither side.
pub(super) fn check(setting: &Setting<'_>, with: &With, row: &Row) -> Found {
    let most = setting.needed("divergence")?;
    let except: BTreeSet<String> = texts(with.get("except")).into_iter().map(stem).collect();
    let mut words = [BTreeSet::new(), BTreeSet::new()];
    for name in CONTENT {
        let own = if name == "mind" { "inner_thought" } else { name };
        let (had, has) = (texts(row.get(&format!("unit.{name}"))), texts(row.get(own)));
        match (had.is_empty(), has.is_empty()) {
            (false, true) => return Ok(Some(format!("`{own}` is left out"))),
            (true, false) => return Ok(Some(format!("the unit has nothing for `{own}`"))),
            _ => {}
        }
        words[0].extend(had.into_iter().flat_map(content_words));
        words[1].extend(has.into_iter().flat_map(content_words));
    }
    let [source, output] = words.map(|words| &words - &except);
    // Narratives may say where and when.
    let frame = ["location", "t_anchor"].into_iter().flat_map(|name| texts(row.get(name)));
    let frame: BTreeSet<String> = frame.flat_map(content_words).collect();
    let added = &(&output - &source) - &frame;
    if !added.is_empty() {
        return Ok(Some(format!("it adds {}", listed_words(&added))));
    }
    let missed = &source - &output;
    let common = source.len() - missed.len();
    let far = diverges(source.len(), common, common, most);
    Ok(far.then(|| format!("it lacks {}", listed_words(&missed))))
}
