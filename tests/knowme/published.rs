//! The released data set 1, if available: `PALIMPSEST_KNOWME_DATASET1` names its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use palimpsest::benchmarks::dataset::Dataset;
use palimpsest::case::finding::Finding;

use super::*;

/// The folder; the project ships none of this data.
fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("PALIMPSEST_KNOWME_DATASET1").map(PathBuf::from);
    let folder = named.filter(|folder| folder.is_dir());
    if folder.is_none() {
        eprintln!("skipped: PALIMPSEST_KNOWME_DATASET1 names no folder of data set 1");
    }
    folder
}

#[test]
fn dataset_1_loads_whole_with_what_is_odd_in_it_flagged() {
    let Some(folder) = folder() else { return };
    let dataset = Dataset::open(&folder, SampleSpec::default(), |_| {}).unwrap();
    assert_eq!(dataset.benchmark().name, "knowme");
    let cases: Vec<Case> = dataset.cases().unwrap().collect::<Result<_, _>>().unwrap();
    let [case] = cases.as_slice() else { panic!("{} cases", cases.len()) };
    assert_eq!((case.id.as_str(), case.history.segments.len(), case.probes.len()), ("dataset1", 6644, 1010));
    let mut tasks: BTreeMap<&str, usize> = BTreeMap::new();
    for probe in &case.probes {
        *tasks.entry(&probe.facets["task"]).or_default() += 1;
    }
    assert_eq!(tasks.into_values().collect::<Vec<_>>(), [130, 100, 131, 52, 240, 295, 62]);
    assert_eq!(case.probes.iter().filter(|probe| probe.query == "A, B, C").count(), 71);
    // 60 durations have two events; four name a missing one.
    let with = |role: &str| case.probes.iter().filter(|probe| !segments(probe, role).is_empty()).count();
    assert_eq!((with("anchor_start"), with("anchor_end")), (56, 56));
    let fields = |probe: &&Probe| probe.evidence.iter().any(|e| e.role == "inner");
    let insights = case.probes.iter().filter(fields).count();
    assert!((200..=292).contains(&insights), "{insights}");
}

/// Number of findings of a check, and of the task's probes that they concern.
fn concerned(findings: &[Finding], check: &str, task: &str) -> (usize, usize) {
    let of = |finding: &&Finding| {
        finding.check.name == check && finding.probes.iter().any(|probe| probe.starts_with(task))
    };
    let found: Vec<&Finding> = findings.iter().filter(of).collect();
    let probes: BTreeSet<&String> = found.iter().flat_map(|finding| &finding.probes).collect();
    (found.len(), probes.len())
}

/// Independent counts of the released file.
#[test]
fn the_checks_count_in_dataset_1_what_others_counted() {
    let Some(folder) = folder() else { return };
    let dataset = Dataset::open(&folder, SampleSpec::default(), |_| {}).unwrap();
    let report = dataset.check(|_| {}, &mut |_| {}).unwrap();
    assert!(report.is_sound());
    let found = &report.findings;
    let count = |check: &str| found.iter().filter(|finding| finding.check.name == check).count();
    // 172 of the 176 inversions are events without a timestamp; four are by date.
    let by_date = |f: &&Finding| f.check.name == "time-order" && f.message.starts_with("event of ");
    assert_eq!((count("time-order"), found.iter().filter(by_date).count(), count("no-time")), (176, 4, 173));
    let dangling = ["T1", "T2", "T3", "T5", "T6"].map(|task| concerned(found, "dangling-evidence", task).0);
    assert_eq!(dangling, [3, 0, 23, 22, 3]);
    // 46 of 60 durations equal the distance of their events.
    assert_eq!((count("gold-recomputed"), count("no-anchor")), (10, 4));
    assert_eq!(concerned(found, "no-options", "T3"), (71, 71));
    assert_eq!(count("no-options"), 71);
    assert_eq!(concerned(found, "same-question", "T2"), (30, 62));
    let [two] = found.iter().filter(|f| f.check.name == "two-golds").collect::<Vec<_>>()[..] else {
        panic!("one text has several golds")
    };
    assert!(two.probes.len() == 71 && two.message.contains("6 golds for \"A, B, C\""), "{two}");
    assert_eq!((count("empty-gold"), count("gold-form"), count("stray-text")), (0, 0, 0));
}
