//! What must hold for MemoryRewardBench: its files, its orders, its readings, its tables and its verdicts by scoring.

mod arranged;
mod commands;
mod densities;
mod measures;
mod reader;
mod readings;
mod scores;
mod tables;

use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::memrewardbench::{MemRewardBench, Row};
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::benchmarks::{Benchmark, SampleSpec};
use palimpsest::data::Case;

static BENCHMARK: MemRewardBench = MemRewardBench;

/// The cases of one file, sound or not.
fn read(name: &str, bytes: impl Into<Vec<u8>>) -> Vec<Result<Case, ReadError>> {
    cases_in_memory(&BENCHMARK, vec![(name.to_owned(), bytes.into())])
}

fn sample_file() -> (String, Vec<u8>) {
    let mut files = BENCHMARK.sample(SampleSpec::default()).unwrap();
    assert_eq!(files.len(), 1);
    files.remove(0)
}

fn sample() -> Vec<Case> {
    let (name, bytes) = sample_file();
    read(&name, bytes).into_iter().map(Result::unwrap).collect()
}

/// A sound row.
fn row(index: i64) -> Row {
    Row {
        index,
        task: "Long-context_Reasoning".to_owned(),
        subtask: "Sequential-Drop".to_owned(),
        ctx_length: "8k".to_owned(),
        question: format!("The lamp {index} is in the hall.\nWhere is the lamp?"),
        chosen: "step 1: hall\nanswer: hall".to_owned(),
        rejected: "step 1: nothing\nanswer: hall".to_owned(),
    }
}

fn lines(rows: &[Row]) -> String {
    rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect()
}

/// The case of a row.
fn case(row: &Row) -> Case {
    read("rows.jsonl", lines(std::slice::from_ref(row))).remove(0).unwrap()
}
