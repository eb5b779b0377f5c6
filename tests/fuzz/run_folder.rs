//! A run folder with one changed file: the page, the tables and the lens read it or refuse it, and no file changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use palimpsest::lens::Options;
use palimpsest::results::TableArgs;
use palimpsest::results::table;
use palimpsest::view::replies::{Query, reply};
use palimpsest::view::state::Runs;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::allocator::largest_of;
use super::config::{Change, change, changes};
use super::{apply, cases, edits};
use crate::synthetic_run::{self, JUDGE, Plan};

/// Far more than the whole folder.
const LARGEST: usize = 8 << 20;

/// A run folder and its files.
struct Run {
    root: tempfile::TempDir,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Run {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("run");
        synthetic_run::write(&dir, &Plan { cases: 2, layers: 2, heads: 2, ..Plan::small() });
        let why = json!({
            "case": "case-000", "probe": "SR", "label": "not read", "why": "no effect", "judge": JUDGE,
            "plain": {"measure": "log_p", "value": -0.5}, "readings": 1,
            "settings": {"seed": 0, "controls": 4, "readings": 32}
        });
        std::fs::write(dir.join("why.jsonl"), format!("{why}\n")).unwrap();
        let runs = Runs::open(std::slice::from_ref(&dir), None).unwrap();
        assert!(reply(&runs, "/api/table", &Query::of("")).unwrap().unwrap().contains("no effect"));
        let files = files(&dir);
        Run { root, files }
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("run")
    }

    fn table(&self) -> TableArgs {
        let flags = clap::Command::new("table").no_binary_name(true);
        let flags = <TableArgs as clap::Args>::augment_args(flags);
        let matches = flags.try_get_matches_from([self.dir()]).unwrap();
        <TableArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap()
    }

    /// Reads the folder with one file replaced; every reader succeeds or gives an error with a text.
    fn check(&self, name: &Path, bytes: &[u8]) -> Result<(), TestCaseError> {
        let (dir, path) = (self.dir(), self.dir().join(name));
        std::fs::write(&path, bytes).unwrap();
        let ((), largest) = largest_of(|| {
            match Runs::open(std::slice::from_ref(&dir), None) {
                Ok(runs) => {
                    for path in ["/api/runs", "/api/table"] {
                        assert!(reply(&runs, path, &Query::of("")).is_ok());
                    }
                    let rows = 0..runs.count().min(8);
                    for (path, rest) in [
                        ("/api/case", ""),
                        ("/api/layers", ""),
                        ("/api/heads", "&layer=1"),
                        ("/api/trials", ""),
                    ] {
                        for row in rows.clone() {
                            let _ = reply(&runs, path, &Query::of(&format!("row={row}{rest}")));
                        }
                    }
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            for error in [
                table::text(&self.table()).err().map(|error| error.to_string()),
                synthetic_run::try_lens(&dir, &Options::default()).err().map(|error| error.to_string()),
            ] {
                assert!(error.is_none_or(|error| !error.is_empty()));
            }
        });
        prop_assert_eq!(std::fs::read(&path).unwrap(), bytes);
        std::fs::write(&path, &self.files[name]).unwrap();
        prop_assert!(largest <= LARGEST, "{} bytes at once", largest);
        prop_assert_eq!(&files(&dir), &self.files);
        Ok(())
    }
}

/// Every file below a folder, by its relative path.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        match path.is_dir() {
            true => all.extend(files(&path).into_iter().map(|(inner, bytes)| (name.join(inner), bytes))),
            false => drop(all.insert(name, std::fs::read(&path).unwrap())),
        }
    }
    all
}

/// Runs a property on the one folder.
fn with_run(check: impl FnOnce(&Run) -> Result<(), TestCaseError>) -> Result<(), TestCaseError> {
    static RUN: OnceLock<Mutex<Run>> = OnceLock::new();
    let run = RUN.get_or_init(|| Mutex::new(Run::new()));
    check(&run.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A name that leads out of the folder, or to a file that is none.
fn escape() -> impl Strategy<Value = Value> {
    let names = [
        "../precious",
        "/etc/passwd",
        "/dev/zero",
        "attention/../../run.json",
        "attention",
        ".",
        "",
        "a\0b",
        "case/0",
        "__proto__",
        "\u{202e}",
        "C:\\x",
    ];
    prop::sample::select(names.map(Value::from).to_vec())
}

fn config() -> ProptestConfig {
    let all = cases();
    // Each case reads a folder several times.
    let cases = if std::env::var_os("PALIMPSEST_FUZZ_CASES").is_some() { all.cases } else { all.cases / 8 };
    ProptestConfig { cases, ..all }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_changed_bytes_of_a_run_folder_panic_or_change_a_file(which in any::<Index>(), edits in edits()) {
        with_run(|run| {
            let (name, bytes) = run.files.iter().nth(which.index(run.files.len())).unwrap();
            let mut bytes = bytes.clone();
            apply(&mut bytes, &edits);
            run.check(name, &bytes)
        })?;
    }

    #[test]
    fn no_changed_values_of_a_run_folder_panic_or_change_a_file(
        which in any::<Index>(), line in any::<Index>(), changes in changes(), escape in escape(), at in any::<Index>(),
    ) {
        with_run(|run| {
            let json = |name: &&PathBuf| name.extension().is_some_and(|kind| kind != "safetensors");
            let names: Vec<&PathBuf> = run.files.keys().filter(json).collect();
            let name = which.get(&names);
            let text = std::str::from_utf8(&run.files[*name]).unwrap();
            // A row of a table, or all of a JSON file.
            let mut rows: Vec<String> = match name.extension().is_some_and(|kind| kind == "jsonl") {
                true => text.lines().map(str::to_owned).collect(),
                false => vec![text.to_owned()],
            };
            let row = line.index(rows.len());
            let mut value: Value = serde_json::from_str(&rows[row]).unwrap();
            change(&mut value, &changes);
            change(&mut value, &[Change::Set(at, escape)]);
            rows[row] = value.to_string();
            run.check(name, (rows.join("\n") + "\n").as_bytes())
        })?;
    }
}
