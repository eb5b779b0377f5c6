mod checks;
mod commands;
mod counts;
mod judge;
mod labels;
mod reader;
mod settled;
mod systems;
mod tables;
mod texts;

use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::reading::{ReadError, RowProblems};
use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::{SampleSpec, Share};
use palimpsest::case::Case;
use serde_json::Value;

/// As printed in the paper.
fn percent(count: usize, of: usize) -> String {
    Share { count, of }.percent(2)
}

/// A history's two files, as JSON.
#[derive(Clone)]
struct Folder {
    sessions: Value,
    instances: Value,
}

/// The built-in sample.
fn sample() -> Folder {
    let files = (SUBTLEMEMORY.sample)(SampleSpec::default()).unwrap();
    let of = |name: &str| {
        let file = files.iter().find(|(file, _)| *file == format!("persona_0/{name}.json")).unwrap();
        serde_json::from_slice(&file.1).unwrap()
    };
    Folder { sessions: of("history_sessions"), instances: of("bench_instances") }
}

impl Folder {
    fn files(&self, folder: &str) -> Vec<(String, Vec<u8>)> {
        vec![
            (format!("{folder}bench_instances.json"), self.instances.to_string().into_bytes()),
            (format!("{folder}history_sessions.json"), self.sessions.to_string().into_bytes()),
        ]
    }

    fn read(&self) -> Vec<Result<Case, ReadError>> {
        cases_in_memory(&SUBTLEMEMORY, self.files("persona_0/"))
    }

    /// The valid case and the broken parts.
    fn parts(&self) -> (Option<Case>, Vec<RowProblems>) {
        let (mut case, mut broken) = (None, Vec::new());
        for one in self.read() {
            match one {
                Ok(one) => assert!(case.replace(one).is_none(), "one case a history"),
                Err(ReadError::Row(problems)) => broken.push(problems),
                Err(other) => panic!("{other}"),
            }
        }
        (case, broken)
    }
}

fn sample_case() -> Case {
    let (case, broken) = sample().parts();
    assert!(broken.is_empty(), "{broken:?}");
    case.unwrap()
}
