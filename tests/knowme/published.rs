//! The released data set 1, where it is at hand: `PALIMPSEST_KNOWME_DATASET1` names its folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use palimpsest::benchmarks::dataset::Dataset;

use super::*;

/// The folder; none of the project's own data is of it.
fn folder() -> Option<PathBuf> {
    std::env::var_os("PALIMPSEST_KNOWME_DATASET1").map(PathBuf::from).filter(|folder| folder.is_dir())
}

#[test]
fn dataset_1_loads_whole_with_what_is_odd_in_it_flagged() {
    let Some(folder) = folder() else { return };
    let dataset = Dataset::open(&folder, SampleSpec::default(), |_| {}).unwrap();
    assert_eq!(dataset.benchmark().name(), "knowme");
    let cases: Vec<Case> = dataset.cases().unwrap().collect::<Result<_, _>>().unwrap();
    let [case] = cases.as_slice() else { panic!("{} cases", cases.len()) };
    assert_eq!((case.id.as_str(), case.history.segments.len(), case.probes.len()), ("dataset1", 6644, 1010));
    let mut tasks: BTreeMap<&str, usize> = BTreeMap::new();
    for probe in &case.probes {
        *tasks.entry(&probe.facets["task"]).or_default() += 1;
    }
    assert_eq!(tasks.into_values().collect::<Vec<_>>(), [130, 100, 131, 52, 240, 295, 62]);
    let dangling = |task: &str| {
        let of = |flag: &&palimpsest::data::Flag| {
            flag.what.contains(&format!("questions of {task} name evidence"))
        };
        case.flags.iter().find(of).map(|flag| flag.count)
    };
    assert_eq!(dangling("Information Extraction"), Some(3));
    assert_eq!(dangling("Temporal Reasoning"), Some(23));
    assert_eq!(dangling("Mnestic Trigger Analysis"), Some(22));
    assert_eq!(dangling("Mind-Body Interaction"), Some(3));
    assert_eq!(dangling("Adversarial Abstention"), None);
    // 172 of the 176 inversions are events without a timestamp; four are by date.
    let inversions = case.flags.iter().find(|flag| flag.what.starts_with("inversions")).unwrap();
    assert_eq!(inversions.count, 176);
    assert!(inversions.what.contains("(4 by date, 172 because it has none)"), "{}", inversions.what);
    assert!(case.flags.iter().any(|flag| flag.count == 173 && flag.what.contains("no timestamp")));
    // These questions name three events by letters that nothing explains.
    let alike =
        |flag: &&palimpsest::data::Flag| flag.what.contains("the text of another one: 71 \"A, B, C\"");
    assert_eq!(case.flags.iter().filter(alike).count(), 1);
    assert_eq!(case.probes.iter().filter(|probe| probe.query == "A, B, C").count(), 71);
    // 60 durations have two events, of which four name one that is not there.
    let with = |role: &str| case.probes.iter().filter(|probe| !segments(probe, role).is_empty()).count();
    assert_eq!((with("anchor_start"), with("anchor_end")), (56, 56));
    let fields = |probe: &&Probe| probe.evidence.iter().any(|e| e.role == "inner");
    let insights = case.probes.iter().filter(fields).count();
    assert!((200..=292).contains(&insights), "{insights}");
}
