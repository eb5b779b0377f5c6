//! Checks of sets and their sessions.

use palimpsest::case::finding::Finding;
use serde_json::json;

use super::*;

fn found(folder: &Folder, check: &str) -> Vec<Finding> {
    let cases = cases_in_memory(&SUBTLEMEMORY, folder.files(""));
    let report = SUBTLEMEMORY.check(Box::new(cases.into_iter()), &mut |_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
    report.findings.into_iter().filter(|finding| finding.check.name == check).collect()
}

#[test]
fn a_set_has_as_many_facts_as_sessions_and_its_sessions_tell_them() {
    let mut folder = sample();
    // The sample paraphrases two facts.
    assert_eq!((found(&folder, "facts-and-sessions").len(), found(&folder, "fact-not-told").len()), (0, 2));
    let set = &mut folder.instances[0];
    let name = set["instance_id"].as_str().unwrap().to_owned();
    let questions = set["qas"].as_array().unwrap().len();
    set["facts"].as_array_mut().unwrap().push(json!("A zeppelin moored above the brewery."));
    let facts = set["facts"].as_array().unwrap().len();
    let [more] = found(&folder, "facts-and-sessions").try_into().unwrap();
    assert!(
        more.message.contains(&format!("{name} has {facts} facts and {} target sessions", facts - 1)),
        "{more}"
    );
    assert_eq!((more.probes.len(), more.segments.len()), (questions, facts - 1));
    let told = found(&folder, "fact-not-told");
    let is_new =
        |finding: &&Finding| finding.message.contains("has 0% of \"A zeppelin moored above the brewery.\"");
    assert_eq!((told.len(), told.iter().filter(is_new).count()), (3, 1), "{told:#?}");
}
