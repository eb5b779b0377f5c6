//! Residues of effects, as `palimpsest causes` prints it.

use crate::ground::table::aligned;
use crate::lens::band::Estimate;
use crate::lens::causes::{Residues, residue_words};

/// A row for each role and effect, and the findings in sentences; empty where nothing but direct effects was measured.
pub(super) fn left_behind(residues: &Residues) -> String {
    if !residues.is_measured() {
        return String::new();
    }
    let mut lines = vec![["session", "effect", "cases", "nats", "95% interval"].map(str::to_owned).to_vec()];
    for role in residues.roles() {
        for (name, Estimate { n, value, band, .. }, _) in residue_words::numbers(residues, role) {
            let value = value.map_or("-".to_owned(), |value| format!("{value:+.4}"));
            let band = band.map_or("-".to_owned(), |(low, high)| format!("[{low:+.4}, {high:+.4}]"));
            lines.push(vec![role.to_owned(), name, n.to_string(), value, band]);
        }
    }
    let words = residue_words::in_words(residues, "session").join("\n");
    format!("\n{}\n{words}\n", aligned(&lines, |column| column > 1))
}
