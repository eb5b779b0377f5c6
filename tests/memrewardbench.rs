//! MemoryRewardBench: files, orders, readings, tables and verdicts by scoring.

mod arranged;
mod commands;
mod densities;
mod measures;
mod parquet_file;
mod reader;
mod readings;
mod scores;
mod tables;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::memrewardbench::{MEMREWARDBENCH as BENCHMARK, Setting};
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::case::Case;
use parquet_file::Row;

/// Pairs of the published data, by length (table 2).
fn published(setting: Setting) -> [usize; 5] {
    match setting {
        Setting::SequentialNoise => [101, 44, 43, 36, 31],
        Setting::SequentialDrop => [35, 22, 22, 40, 15],
        Setting::MixedNoise => [22, 33, 49, 46, 34],
        Setting::MixedDrop => [19, 65, 72, 43, 28],
        Setting::Mem0Out => [27, 27, 42, 48, 23],
        Setting::Mem0Mem => [25, 25, 41, 47, 21],
        Setting::AMemOut => [42, 42, 48, 50, 47],
        Setting::AMemMem => [48, 45, 49, 53, 50],
        Setting::Sequential => [49, 152, 147, 67, 42],
        Setting::Parallel => [51, 48, 53, 133, 58],
    }
}

/// Cases of one file, valid or not.
fn read(name: &str, bytes: impl Into<Vec<u8>>) -> Vec<Result<Case, ReadError>> {
    cases_in_memory(&BENCHMARK, vec![(name.to_owned(), bytes.into())])
}

fn sample_file() -> (String, Vec<u8>) {
    let mut files = (BENCHMARK.sample)(SampleSpec::default()).unwrap();
    assert_eq!(files.len(), 1);
    files.remove(0)
}

fn sample() -> Vec<Case> {
    let (name, bytes) = sample_file();
    read(&name, bytes).into_iter().map(Result::unwrap).collect()
}

/// A valid row.
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
