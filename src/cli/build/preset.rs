//! Presets of specs by name.

use crate::build::table;
use crate::cli::wrong;

/// The text of a kind's preset; without a name of its first.
pub(super) fn text(kind: &str, name: Option<&str>) -> anyhow::Result<&'static str> {
    let presets = table::kind(kind).map_or(&[][..], |kind| kind.presets);
    let found = match name {
        Some(name) => presets.iter().find(|(known, _)| *known == name),
        None => presets.first(),
    };
    match found {
        Some((_, text)) => Ok(text),
        None => {
            let known: Vec<&str> = presets.iter().map(|(name, _)| *name).collect();
            let name = name.unwrap_or_default();
            wrong(format!(
                "{name:?} is no preset of {kind} and no file; write one of {}, or the path of a spec",
                known.join(", ")
            ))
        }
    }
}
