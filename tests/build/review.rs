//! Reviews of builds and their publication, by the commands.

#[cfg(unix)]
mod folders;
mod labels;

use std::path::{Path, PathBuf};

use palimpsest::builds::stage_file::{Outcome, outcomes, read};
use serde_json::{Value, json};

use crate::cli::{Ended, done, palimpsest, shown};

const SPEC: &str = r#"
kind = "stale"
licence = "CC0-1.0"
[tables]
pairs = [
  { name = "a", type = "T1", old = "I ride a bike.", new = "My car takes an hour." },
  { name = "b", type = "T1", old = "I like tea.", new = "Coffee wakes me." },
  { name = "c", type = "T2", old = "I live in Rome.", new = "The trams of Oslo are blue." },
]
[[stage]]
name = "made"
rows = ["pairs"]
[[stage]]
name = "look"
rows = ["made"]
make = "review"
[stage.with]
show = ["type"]
edit = ["old", "new"]
keep = ["accept", "weak-reject"]
drop = ["reject"]
flip = { label = "wrong-type", field = "type", values = ["T1", "T2"] }
instructions = "Is the old statement untenable now?"
share = 1.0
[[stage]]
name = "rest"
rows = ["look"]
[[stage]]
name = "last"
rows = ["rest"]
"#;

fn build(spec: &Path, out: &Path, more: &[&str]) -> Ended {
    palimpsest([&["build", "stale", shown(spec), "--out", shown(out), "--until", "rest"], more].concat())
}

/// A file as the sheet of a build saves it, with the digests that the sheet has.
fn ratings(dir: &Path, out: &Path, name: &str, mut ratings: Value) -> PathBuf {
    let page = std::fs::read_to_string(out.join("review/sheet.html")).unwrap();
    let data = page.split_once("type=\"application/json\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    for rating in ratings.as_array_mut().unwrap() {
        let of = data["items"].as_array().unwrap().iter().find(|item| item["item"] == rating["item"]);
        rating["of"] = of.map_or("none".into(), |item| item["of"].clone());
    }
    save(dir, name, ratings)
}

fn save(dir: &Path, name: &str, ratings: Value) -> PathBuf {
    let path = dir.join(format!("{name}.json"));
    let file = json!({"format": "palimpsest ratings 1", "sheet": "x", "ratings": ratings});
    std::fs::write(&path, file.to_string()).unwrap();
    path
}

fn looked_at(out: &Path) -> Vec<Outcome> {
    outcomes(&read(out, "stages/02-look.jsonl").unwrap()).cloned().collect()
}

#[test]
fn ratings_of_two_people_come_back_as_labels_edits_and_kappa() {
    let root = tempfile::tempdir().unwrap();
    let (spec, out) = (root.path().join("spec.toml"), root.path().join("built"));
    std::fs::write(&spec, SPEC).unwrap();
    done(build(&spec, &out, &[]));
    assert_eq!(looked_at(&out).iter().map(|outcome| outcome.made.len()).sum::<usize>(), 3);

    let told = done(palimpsest(["build", "review", shown(&out)])).out;
    assert!(told.contains("reviewed 0 of 3 rows"), "{told}");
    for sheet in ["sheet.html", "sheet-2.html"] {
        let page = std::fs::read_to_string(out.join("review").join(sheet)).unwrap();
        for text in ["I ride a bike.", "weak-reject", "Is the old statement untenable now?"] {
            assert!(page.contains(text), "{sheet}: {text}");
        }
    }

    let anna = json!([
        {"item": "a", "rating": "weak-reject", "comment": "", "edits": {"old": "I bike to work."}},
        {"item": "b", "rating": "reject"},
        {"item": "c", "rating": "wrong-type"},
    ]);
    let ben = json!([
        {"item": "a", "rating": "weak-reject"},
        {"item": "b", "rating": "accept"},
        {"item": "c", "rating": "wrong-type"},
    ]);
    let (anna, ben) = (ratings(root.path(), &out, "anna", anna), ratings(root.path(), &out, "ben", ben));
    let review = ["build", "review", shown(&out), "--ratings", shown(&anna), "--ratings", shown(&ben)];
    let told = done(palimpsest(review)).out;
    // Observed 2/3, by chance 1/9 + 0 + 1/9.
    let kappa = (2.0 / 3.0 - 2.0 / 9.0) / (1.0 - 2.0 / 9.0);
    for line in [
        "labels: accept 0, weak-reject 1, wrong-type 1, reject 1",
        "edited: 1 of 3, 33.3%",
        &format!("two raters: 3, the same label 2 (66.7%), kappa {kappa:.3}"),
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    // The same ratings again are the same reviews.
    let before = std::fs::read(out.join("reviews.jsonl")).unwrap();
    done(palimpsest(review));
    assert_eq!(std::fs::read(out.join("reviews.jsonl")).unwrap(), before);

    done(build(&spec, &out, &["--from", "look"]));
    let [a, b, c] = looked_at(&out).try_into().unwrap();
    assert_eq!(a.made[0].text("old"), Ok("I bike to work."));
    assert_eq!(a.made[0].text("review.edits.0.before"), Ok("I ride a bike."));
    assert_eq!(a.made[0].text("review.edits.0.rater"), Ok("anna"));
    assert_eq!((b.made.len(), b.rejected[0].reason.as_str()), (0, "raters disagree"));
    assert_eq!(c.made[0].text("type"), Ok("T1"));

    let chair = ratings(root.path(), &out, "chair", json!([{"item": "b", "rating": "accept"}]));
    done(palimpsest(["build", "review", shown(&out), "--settle", shown(&chair)]));
    done(build(&spec, &out, &["--from", "look"]));
    assert_eq!(looked_at(&out)[1].made[0].text("review.label"), Ok("accept"));
}

#[test]
fn a_review_of_another_text_is_not_applied() {
    let root = tempfile::tempdir().unwrap();
    let (spec, out, changed) =
        (root.path().join("spec.toml"), root.path().join("built"), root.path().join("changed"));
    std::fs::write(&spec, SPEC).unwrap();
    done(build(&spec, &out, &[]));
    done(palimpsest(["build", "review", shown(&out)]));
    let all = json!([
        {"item": "a", "rating": "reject"}, {"item": "b", "rating": "reject"}, {"item": "c", "rating": "wrong-type"},
    ]);
    let anna = ratings(root.path(), &out, "anna", all);
    done(palimpsest(["build", "review", shown(&out), "--ratings", shown(&anna)]));

    std::fs::write(&spec, SPEC.replace("I ride a bike.", "I own a bike.")).unwrap();
    done(build(&spec, &changed, &[]));
    std::fs::copy(out.join("reviews.jsonl"), changed.join("reviews.jsonl")).unwrap();
    let told = done(palimpsest(["build", "review", shown(&changed)])).out;
    assert!(told.contains("reviewed 2 of 3 rows"), "{told}");
    assert!(told.contains("not applied: 1 review of other texts"), "{told}");
    done(build(&spec, &changed, &["--from", "look"]));
    let [a, b, c] = looked_at(&changed).try_into().unwrap();
    assert_eq!((a.made[0].text("old"), a.made[0].number("old_reviews")), (Ok("I own a bike."), Ok(1)));
    assert_eq!(a.made[0].get("review"), None);
    assert_eq!((b.made.len(), b.rejected[0].reason.as_str()), (0, "review: reject"));
    assert_eq!(c.made[0].text("type"), Ok("T1"));
    // A later review by the same rater replaces the earlier one.
    done(palimpsest(["build", "review", shown(&changed)]));
    let anna = ratings(root.path(), &changed, "anna", json!([{"item": "a", "rating": "accept"}]));
    let told = done(palimpsest(["build", "review", shown(&changed), "--ratings", shown(&anna)])).out;
    assert!(told.contains("reviewed 3 of 3 rows") && !told.contains("not applied"), "{told}");
}

#[test]
fn ratings_that_do_not_fit_are_refused_whole_and_by_name() {
    let root = tempfile::tempdir().unwrap();
    let (spec, out) = (root.path().join("spec.toml"), root.path().join("built"));
    std::fs::write(&spec, SPEC).unwrap();
    done(build(&spec, &out, &[]));
    done(palimpsest(["build", "review", shown(&out)]));
    let wrong = json!([
        {"item": "a", "rating": "fine"},
        {"item": "z", "rating": "accept"},
        {"item": "b", "rating": "accept", "edits": {"type": "T2"}},
        {"item": "c", "rating": "", "edits": {"old": "x"}},
    ]);
    let path = ratings(root.path(), &out, "anna", wrong);
    let ended = palimpsest(["build", "review", shown(&out), "--ratings", shown(&path)]);
    assert_eq!(ended.code, Some(1));
    for fault in [
        "row a: `fine` is no label; the labels are accept, weak-reject, wrong-type, reject",
        "row z: no row of the sheet has this id",
        "row b: the field `type` may not be edited",
        "row c: it has edits and no label",
    ] {
        assert!(ended.err.contains(fault), "{fault}\n{}", ended.err);
    }
    let undated = save(root.path(), "ben", json!([{"item": "a", "rating": "accept"}]));
    let ended = palimpsest(["build", "review", shown(&out), "--ratings", shown(&undated)]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("row a: it has no digest of the text that was rated"), "{}", ended.err);
    // Two files with the name of one rater.
    let other = root.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let [one, two] = [root.path(), &other]
        .map(|dir| ratings(dir, &out, "carl", json!([{"item": "a", "rating": "accept"}])));
    let ended =
        palimpsest(["build", "review", shown(&out), "--ratings", shown(&one), "--settle", shown(&two)]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("another file of the command has the same"), "{}", ended.err);
    assert!(!out.join("reviews.jsonl").exists());
    // A build waits for reviews that are required.
    let required = SPEC.replace("share = 1.0", "required = true");
    std::fs::write(&spec, required).unwrap();
    let ended = build(&spec, &root.path().join("waits"), &[]);
    assert!(ended.err.contains("3 of 3 rows wait for a review"), "{}", ended.err);
}

/// Sessions under a licence that the preset does not allow.
fn chats(root: &Path) -> PathBuf {
    let chats = root.join("chats.jsonl");
    // Words of their own, since sessions that resemble each other are left out.
    let word = |nth: usize, at: usize| {
        let syllable = |nth: usize| ["ba", "do", "ki", "ru", "ve", "za", "mo"][nth % 7];
        [nth, nth / 7 + at, at, at / 7 + nth, nth * at].map(syllable).concat()
    };
    let session = |nth: usize| {
        let said = |from: usize| (from..from + 12).map(|at| word(nth, at)).collect::<Vec<_>>().join(" ");
        let turns = json!([{"role": "user", "content": said(0)}, {"role": "assistant", "content": said(12)}]);
        json!({"topic": format!("lamp {nth}"), "licence": "CC-BY-NC-4.0", "turns": turns}).to_string()
    };
    std::fs::write(&chats, (1..40).map(session).collect::<Vec<_>>().join("\n")).unwrap();
    chats
}

/// A build with a spec that allows them.
fn allowed(root: &Path, chats: &Path) -> PathBuf {
    let spec = done(palimpsest(["build", "init", "stale", "haystack"])).out;
    let spec = spec.replace("allow = [", "allow = [\"CC-BY-NC-4.0\", ");
    let (path, allowed) = (root.join("spec.toml"), root.join("allowed"));
    std::fs::write(&path, spec).unwrap();
    let made = ["build", "stale", shown(&path), "--out", shown(&allowed), "--limit", "2", "--sessions", "8"];
    done(palimpsest([&made[..], &["--distractors", shown(chats)]].concat()));
    allowed
}

#[test]
fn what_is_published_has_a_card_and_only_licences_that_the_spec_allows() {
    let root = tempfile::tempdir().unwrap();
    let chats = chats(root.path());
    let out = root.path().join("built");
    let made = ["build", "stale", "haystack", "--out", shown(&out), "--limit", "2", "--sessions", "8"];
    done(palimpsest([&made[..], &["--distractors", shown(&chats)]].concat()));

    let public = root.path().join("public");
    let publish = ["build", "publish", shown(&out), "--out", shown(&public)];
    let ended = palimpsest(publish);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("CC-BY-NC-4.0 ("), "{}", ended.err);
    assert!(!public.join("stale.json").exists());

    let allowed = allowed(root.path(), &chats);
    let told = done(palimpsest(["build", "publish", shown(&allowed), "--out", shown(&public)])).out;
    assert!(told.contains("licence CC-BY-NC-4.0: "), "{told}");
    let card = std::fs::read_to_string(public.join("README.md")).unwrap();
    for text in ["# 2 rows of stale", "- CC-BY-NC-4.0: ", "palimpsest canary ", "no problem"] {
        assert!(card.contains(text), "{text}\n{card}");
    }
    for file in ["stale.json", "provenance.jsonl", "yield.csv", "build.json"] {
        assert!(public.join(file).is_file(), "{file}");
    }
    done(palimpsest(["data", "check", shown(&public.join("stale.json"))]));
    // Nothing is written over.
    assert_eq!(palimpsest(["build", "publish", shown(&allowed), "--out", shown(&public)]).code, Some(1));
}
