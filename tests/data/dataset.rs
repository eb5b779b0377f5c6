//! Opening files and the sample.

use std::io::Write;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::{Dataset, DatasetError, SAMPLE};
use palimpsest::benchmarks::stale::sample;
use palimpsest::benchmarks::stale::write_stale;
use serde_json::json;

use super::row;

#[test]
fn the_digest_is_that_of_the_bytes_and_the_name_that_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abc.json");
    std::fs::write(&path, "abc").unwrap();
    let mut heard = 0;
    let dataset = Dataset::open(&path, SampleSpec::default(), |piece| heard += piece.len()).unwrap();
    // The first test vector of FIPS 180.
    assert_eq!(dataset.digest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!((dataset.name(), dataset.bytes(), heard), ("abc.json", 3, 3));
}

#[test]
fn the_sample_and_a_file_written_from_it_are_the_same_data_set() {
    let spec = SampleSpec { segments: Some(6), seed: 5 };
    let built_in = Dataset::open(SAMPLE, spec, |_| {}).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write_stale(&mut file, &sample::cases(spec).unwrap()).unwrap();
    let from_file = Dataset::open(file.path(), SampleSpec::default(), |_| {}).unwrap();
    assert_eq!((built_in.digest(), built_in.bytes()), (from_file.digest(), from_file.bytes()));
    let cases = |dataset: &Dataset| dataset.cases().unwrap().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(cases(&built_in), sample::cases(spec).unwrap());
    assert_eq!(cases(&built_in), cases(&from_file));
    assert_eq!(cases(&built_in), cases(&built_in), "it can be read again");
    let other = Dataset::open(SAMPLE, SampleSpec { seed: 6, ..spec }, |_| {}).unwrap();
    assert_ne!(other.digest(), built_in.digest());
}

#[test]
fn every_byte_of_a_file_is_heard_of_once_while_it_is_read() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = json!([row("a"), row("b")]).to_string();
    file.write_all(text.as_bytes()).unwrap();
    let dataset = Dataset::open(file.path(), SampleSpec::default(), |_| {}).unwrap();
    let mut heard = Vec::new();
    assert_eq!(dataset.cases_observed(|piece| heard.extend_from_slice(piece)).unwrap().count(), 2);
    assert_eq!(heard, text.as_bytes());
    heard.clear();
    let report = dataset.check(|piece| heard.extend_from_slice(piece), &mut |_| {}).unwrap();
    assert!(report.is_sound());
    assert_eq!(heard, text.as_bytes());
}

#[test]
fn a_path_that_is_no_file_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.json");
    let error = Dataset::open(&missing, SampleSpec::default(), |_| {}).unwrap_err();
    assert!(matches!(error, DatasetError::File { .. }));
    assert!(error.to_string().contains("missing.json") && error.to_string().contains("`sample`"), "{error}");
    let error = Dataset::open(folder.path(), SampleSpec::default(), |_| {}).unwrap_err();
    assert!(matches!(error, DatasetError::UnknownFolder { .. }), "{error}");
    assert!(error.to_string().contains("STALE"), "{error}");
    assert!(Dataset::open(SAMPLE, SampleSpec { segments: Some(1), seed: 0 }, |_| {}).is_err());
    let error = Dataset::open("sample:nothing", SampleSpec::default(), |_| {}).unwrap_err();
    assert!(error.to_string().contains("`nothing`") && error.to_string().contains("stale"), "{error}");
}
