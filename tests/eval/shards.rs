//! Shards of a run, and `merge`.

use super::*;

#[test]
fn a_shard_is_i_of_n() {
    assert_eq!("1/4".parse::<Shard>().unwrap(), Shard { index: 1, count: 4 });
    for wrong in ["4/4", "0/0", "1", "-1/2", "1/2/3", "a/b", ""] {
        assert!(wrong.parse::<Shard>().unwrap_err().to_string().contains("0/4"), "{wrong}");
    }
}

fn shards(root: &Path, all: &[Case], count: usize) -> Vec<PathBuf> {
    (0..count)
        .map(|index| {
            let shard = Some(Shard { index, count });
            let dir = root.join(format!("shard-{index}"));
            let plan = Selection { shard, ..Selection::of_all(&STALE) }.plan(all).unwrap();
            let mut store = RunStore::open_or_create(&dir, &header(shard), plan).unwrap();
            go(&mut store, all, &mut Fake::new(), &AtomicBool::new(false)).unwrap();
            dir
        })
        .collect()
}

#[test]
fn merged_shards_equal_the_unsplit_run_byte_for_byte() {
    let all = cases(5);
    let (_whole_root, whole) = finished(5);
    let root = tempfile::tempdir().unwrap();
    let mut dirs = shards(root.path(), &all, 3);
    dirs.reverse();
    let out = root.path().join("merged");
    let merged = merge(&out, &dirs).unwrap();
    assert_eq!((merged.cases, merged.answers, merged.errors, merged.verdicts), (5, 15, 0, 0));
    for file in ["answers.jsonl", "plan.jsonl", "run.json", "cases/case-3.json"] {
        assert_eq!(
            std::fs::read(out.join(file)).unwrap(),
            std::fs::read(whole.join(file)).unwrap(),
            "{file}"
        );
    }
    // The merged run is complete.
    let mut subject = Fake::new();
    answer(&out, &all, &mut subject).unwrap();
    assert!(subject.asked.is_empty());
}

#[test]
fn merging_refuses_gaps_doubles_strangers_and_unfinished_shards() {
    let all = cases(4);
    let root = tempfile::tempdir().unwrap();
    let dirs = shards(root.path(), &all, 2);
    let out = root.path().join("merged");
    let error = merge(&out, &dirs[..1]).unwrap_err().to_string();
    assert!(error.contains("1/2 is missing"), "{error}");
    let copy = root.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for file in ["run.json", "plan.jsonl", "answers.jsonl"] {
        std::fs::copy(dirs[0].join(file), copy.join(file)).unwrap();
    }
    let error = merge(&out, &[dirs[0].clone(), copy.clone(), dirs[1].clone()]).unwrap_err().to_string();
    assert!(error.contains("0/2 is given twice"), "{error}");
    let (_whole_root, whole) = finished(4);
    let error = merge(&out, &[whole, dirs[0].clone()]).unwrap_err().to_string();
    assert!(error.contains("is not one shard of several"), "{error}");

    // Another limit gives another identity; the same identity over another file gives other positions.
    let answers = std::fs::read(dirs[1].join("answers.jsonl")).unwrap();
    let cut = answers.split_inclusive(|b| *b == b'\n').take(2).collect::<Vec<_>>().concat();
    std::fs::write(dirs[1].join("answers.jsonl"), cut).unwrap();
    let error = merge(&out, &dirs).unwrap_err().to_string();
    assert!(error.contains("lacks 4"), "{error}");
    assert!(error.contains("case-") && error.contains("start its command again"), "{error}");
    // Differing conditions are named, not printed as JSON.
    let header = std::fs::read(dirs[1].join("run.json")).unwrap();
    let mut other: RunHeader = serde_json::from_slice(&header).unwrap();
    other.identity.conditions = Condition::beside(&[Condition::PLAIN], (&[], &[]), 2);
    let other = RunHeader::new(other.identity, other.shard, other.machine);
    std::fs::write(dirs[1].join("run.json"), serde_json::to_vec(&other).unwrap()).unwrap();
    let error = merge(&out, &dirs).unwrap_err().to_string();
    let said = "differ in conditions (in the first alone: none; in the other alone: repeat-2)";
    assert!(error.contains(said) && !error.contains('{'), "{error}");
    std::fs::write(dirs[1].join("run.json"), header).unwrap();
    let plan = std::fs::read_to_string(dirs[1].join("plan.jsonl")).unwrap();
    std::fs::write(dirs[1].join("plan.jsonl"), plan.replace("\"position\":3", "\"position\":4")).unwrap();
    let error = merge(&out, &dirs).unwrap_err().to_string();
    assert!(error.contains("position 3 is missing"), "{error}");
    assert!(!out.exists());
    assert!(merge(&copy, &dirs).unwrap_err().to_string().contains("exists already"));
}
