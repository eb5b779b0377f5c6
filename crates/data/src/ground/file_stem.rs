//! Safe file names from ids.

use palimpsest_core::digest::sha256;

pub fn file_stem(id: &str) -> String {
    let kept: String = id
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' })
        .take(80)
        .collect();
    if kept == id && !id.is_empty() {
        kept
    } else {
        let digest: String = sha256(id).chars().take(16).collect();
        format!("{kept}-{digest}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn hostile_ids_become_distinct_names_inside_the_folder() {
        let ids = ["../../etc/passwd", "..", ".", "", "a/b", "a\\b", "a b", "a_b", "a\0b", "é", "e\u{301}"];
        let stems: BTreeSet<String> = ids.iter().map(|id| file_stem(id)).collect();
        assert_eq!(stems.len(), ids.len());
        for stem in &stems {
            assert!(stem.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{stem}");
        }
        assert_eq!(file_stem("T1_0001"), "T1_0001");
        assert!(file_stem(&"x".repeat(5000)).len() < 120);
    }
}
