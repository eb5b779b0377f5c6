//! What must hold for: the speeds that docs/speed.md shows, and the raw runs that they come from.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of `benches/runs`, oldest first: their names begin with the date.
fn runs() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root().join("benches/runs")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("runs.jsonl").exists());
    folders.sort();
    folders
}

#[test]
fn the_page_of_speeds_shows_the_table_of_the_latest_run() {
    let page = std::fs::read_to_string(root().join("docs/speed.md")).unwrap();
    let (_, rest) = page.split_once("<!-- begin: speed -->\n").expect("docs/speed.md has the marker");
    let (shown, _) = rest.split_once("<!-- end: speed -->").expect("docs/speed.md has the marker");
    let expected = runs().last().map_or("No run is committed yet.\n".to_owned(), |folder| {
        std::fs::read_to_string(folder.join("table.md")).unwrap()
    });
    assert_eq!(shown, expected, "out of date; `python3 scripts/peers/table.py` writes it anew");
}

#[test]
fn raw_runs_are_whole_and_name_no_folder_of_the_machine() {
    for folder in runs() {
        for line in std::fs::read_to_string(folder.join("runs.jsonl")).unwrap().lines() {
            let run: serde_json::Value = serde_json::from_str(line).unwrap();
            for field in ["measurement", "tool", "version"] {
                assert!(run[field].is_string(), "{}: no {field} in {line}", folder.display());
            }
            for field in ["wall_seconds", "peak_bytes"] {
                assert!(
                    run[field].as_f64().is_some_and(|x| x > 0.0),
                    "{}: no {field} in {line}",
                    folder.display()
                );
            }
            assert!(!line.contains("\"/"), "{}: a path in {line}", folder.display());
        }
    }
}
