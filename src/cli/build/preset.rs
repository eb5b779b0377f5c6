//! Presets of specs by name.

use crate::build::table;
use crate::cli::wrong;

/// The text of a kind's preset; without a name of its first.
pub(super) fn text(kind: &str, name: Option<&str>) -> anyhow::Result<&'static str> {
    let presets = table::kind(kind).map_or(&[][..], |kind| kind.presets);
    let is_named = |known: &str| name.is_none_or(|name| name == known);
    if let Some((_, text)) = presets.iter().find(|(known, _)| is_named(known)) {
        return Ok(text);
    }
    let known: Vec<&str> = presets.iter().map(|(name, _)| *name).collect();
    wrong(format!(
        "{:?} is no preset of {kind} and no file; write one of {}, or the path of a spec",
        name.unwrap_or_default(),
        known.join(", ")
    ))
}
