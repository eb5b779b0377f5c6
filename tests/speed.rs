//! Speeds shown in benches/speed.md, and the raw runs behind them.

use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folders of `benches/runs`, oldest first: names begin with the date.
fn runs() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root().join("benches/runs")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|folder| folder.join("runs.jsonl").exists());
    folders.sort();
    folders
}

#[test]
fn the_page_of_speeds_shows_the_tables_of_the_latest_runs() {
    let page = std::fs::read_to_string(root().join("benches/speed.md")).unwrap();
    for (name, of_fewer_bits) in [("speed", false), ("fewer bits", true)] {
        let (_, rest) =
            page.split_once(&format!("<!-- begin: {name} -->\n")).expect("benches/speed.md has the marker");
        let (shown, _) =
            rest.split_once(&format!("<!-- end: {name} -->")).expect("benches/speed.md has the marker");
        let mut runs = runs();
        runs.retain(|folder| folder.to_string_lossy().ends_with("-bf16") == of_fewer_bits);
        let expected = runs.last().map_or("No run is committed yet.\n".to_owned(), |folder| {
            std::fs::read_to_string(folder.join("table.md")).unwrap()
        });
        assert_eq!(shown, expected, "out of date; `python3 scripts/peers/table.py` writes it anew");
    }
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
