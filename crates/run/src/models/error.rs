//! Messages of errors that several files give.

use std::path::Path;

use anyhow::ensure;

/// Context of an I/O error.
pub(super) fn cannot(doing: &str, path: &Path) -> impl Fn() -> String {
    move || format!("cannot {doing} {}", path.display())
}

pub(super) fn check_sha256(file: &str, from: &str, expected: &str, found: &str) -> anyhow::Result<()> {
    ensure!(
        found == expected,
        "{file} from {from} has the wrong checksum: SHA-256 is {found}, expected {expected}; nothing was kept"
    );
    Ok(())
}

pub(super) fn not_created(path: &Path) -> impl Fn() -> String {
    move || {
        format!(
            "cannot create {} in the model home; name a folder that you can write to in PALIMPSEST_HOME",
            path.display()
        )
    }
}
