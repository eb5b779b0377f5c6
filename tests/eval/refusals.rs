//! Refusals of a run folder: another identity, another writer, foreign files, hostile names.

use super::*;

#[test]
fn a_different_identity_is_refused_with_every_field_and_both_values() {
    let cases = cases(1);
    let (_root, dir) = finished(1);
    let mut other = header(Some(Shard { index: 0, count: 2 }));
    other.identity.model.digest = "m2".to_owned();
    other.identity.sampling.as_mut().unwrap().temperature = 0.7;
    let other = RunHeader::new(other.identity, other.shard, other.machine);
    let error =
        RunStore::open_or_create(&dir, &other, Selection::of_all(&STALE).plan(&cases).unwrap()).unwrap_err();
    let text = error.to_string();
    for part in
        ["model.digest: \"m1\"", "\"m2\"", "sampling.temperature: 0.0", "0.7", "shard: none", "0/2", "--out"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("dataset"), "{text}");
}

#[test]
fn machine_facts_do_not_change_the_identity() {
    let cases = cases(1);
    let (_root, dir) = finished(1);
    let mut elsewhere = header(None);
    elsewhere.machine = Machine::here("cuda:0", 64);
    let plan = Selection::of_all(&STALE).plan(&cases).unwrap();
    assert!(RunStore::open_or_create(&dir, &elsewhere, plan).is_ok());
    assert_eq!(elsewhere.identity_sha256, header(None).identity_sha256);
}

#[test]
fn an_identity_edited_by_hand_and_an_unknown_format_are_refused() {
    let (_root, dir) = finished(1);
    let path = dir.join("run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, said) in [
        ("\"m1\"", "\"m2\"", "hash does not match"),
        ("palimpsest run 1", "palimpsest run 9", "palimpsest run 9"),
        ("{", "", "does not parse"),
    ] {
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let error = RunFolder::read(&dir).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("run.json"), "{error}");
    }
}

#[test]
fn two_writers_of_one_folder_are_refused_and_a_reader_is_not() {
    let cases = cases(1);
    let (_root, dir) = finished(1);
    let held = open(&dir, &cases).unwrap();
    let error = open(&dir, &cases).unwrap_err();
    assert!(matches!(error, RunError::Locked { .. }), "{error}");
    assert!(matches!(RunStore::open(&dir), Err(RunError::Locked { .. })));
    assert_eq!(RunFolder::read(&dir).unwrap().answers.len(), 3);
    drop(held);
    assert!(RunStore::open(&dir).is_ok());
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("thesis.tex"), b"precious").unwrap();
    let error = open(root.path(), &cases(1)).unwrap_err().to_string();
    assert!(error.contains("thesis.tex") && error.contains("--out"), "{error}");
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    let file = root.path().join("thesis.tex");
    let error = open(&file, &cases(1)).unwrap_err().to_string();
    assert!(error.contains("thesis.tex"), "{error}");
    assert!(matches!(RunFolder::read(root.path()), Err(RunError::NotARun { .. })));
}

#[test]
fn hostile_case_ids_stay_inside_the_folder() {
    let mut cases = cases(3);
    cases[0].id = "../../escape".to_owned();
    cases[1].id = "a/b".to_owned();
    cases[2].id = "a\\b".to_owned();
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("deep/run");
    answer(&dir, &cases, &mut Fake::new()).unwrap();
    assert_eq!(std::fs::read_dir(dir.join("attention")).unwrap().count(), 9);
    assert_eq!(std::fs::read_dir(dir.join("cases")).unwrap().count(), 3);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    cases[1].id = "Same".to_owned();
    cases[2].id = "same".to_owned();
    let error = Selection::of_all(&STALE).plan(&cases).unwrap_err().to_string();
    assert!(error.contains("occurs twice"), "{error}");
}

#[test]
#[cfg(unix)]
fn a_folder_that_may_not_be_written_is_one_clear_line() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let mode = |mode| std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    // Root can write anywhere; then this test is moot.
    let refused = std::fs::write(root.path().join("probe"), b"").is_err();
    let outcome = open(&root.path().join("run"), &cases(1)).map(|_| ());
    mode(0o755);
    if refused {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("run") && error.contains("choose a folder that you may write"), "{error}");
    }
}
