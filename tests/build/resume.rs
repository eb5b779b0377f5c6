//! Starts that are refused before a folder changes, and resumed builds in folders that were changed.

use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use super::endpoint::Erring;
use super::engine::{build, lines, named, outcomes_of, spec, write_spec};
use crate::cli::{Ended, assert_same_files, command, done, ended, files, palimpsest, shown};

fn fails(told: &Ended, code: i32, said: &str) {
    assert!(told.code == Some(code) && told.err.contains(said), "{:?}: {}", told.code, told.err);
}

/// An address at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://127.0.0.1:{}/v1#nobody", listener.local_addr().unwrap().port())
}

#[test]
fn a_start_that_fails_records_nothing_and_binds_no_folder() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let path = write_spec(root.path(), &spec(&named(&[("fine", ""), ("prose", "")])));
    let out = root.path().join("built");
    let with = |model: &str| {
        let mut start = command(["build", "stale", shown(&path), "--out", shown(&out), "--model", model]);
        start.args(["--one-model", "--until", "even"]);
        ended(start)
    };
    fails(&with("http://me:secret@127.0.0.1:1/v1#judge"), 1, "a password or a query");
    fails(&with("http://127.0.0.1:1/v1?key=secret#judge"), 1, "a password or a query");
    assert!(!out.exists(), "an address is parsed before the folder is made");
    assert_eq!(with(&nobody()).code, Some(1));
    assert!(files(&out).is_empty(), "{:?}", files(&out).keys());
    done(ended(build(&path, &out, &server, &["--seed", "4"])));
}

#[test]
fn from_discards_nothing_before_the_models_are_there_and_are_those_of_the_folder() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let path = write_spec(root.path(), &spec(&named(&[("fine", ""), ("prose", "")])));
    let out = root.path().join("built");
    done(ended(build(&path, &out, &server, &[])));
    let before = files(&out);
    let another = Erring::start(Duration::ZERO);
    fails(&ended(build(&path, &out, &another, &["--from", "facts"])), 1, "generator.name");
    // The stages that are asked again need a model, though the folder's are whole.
    let none = ["build", "stale", shown(&path), "--out", shown(&out), "--until", "even", "--from", "lines"];
    fails(&palimpsest(none), 2, "--model is missing");
    assert!(files(&out) == before, "a refused command changes nothing");
}

#[test]
fn another_tokenizer_is_refused_before_a_row_is_counted_with_it() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("built");
    let start = |tokenizer: &str, more: &[&str]| {
        let haystack =
            ["build", "stale", "haystack", "--out", shown(&out), "--sessions", "8", "--limit", "3"];
        palimpsest(haystack.iter().chain(&["--tokenizer", tokenizer]).chain(more))
    };
    done(start("o200k_base", &[]));
    let whole = files(&out);
    let header: Value = serde_json::from_slice(&whole[Path::new("build.json")]).unwrap();
    assert!(header["models"]["tokenizer"]["name"].is_string(), "{header}");
    fails(&start("cl100k_base", &["--from", "candidates"]), 1, "tokenizer.");
    assert!(files(&out) == whole, "a refused command changes nothing");
    std::fs::write(out.join("stages/04-haystack.jsonl"), "").unwrap();
    fails(&start("cl100k_base", &[]), 1, "tokenizer.");
    assert!(lines(&out, "04-haystack").is_empty());
    done(start("o200k_base", &[]));
    assert!(files(&out) == whole);
}

#[test]
fn outcomes_that_are_not_those_of_the_rows_are_refused_by_file_and_row() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let rows = named(&[("fine", ""), ("prose", ""), ("fine", ""), ("fine", "")]);
    let path = write_spec(root.path(), &spec(&rows));
    let (whole, out) = (root.path().join("whole"), root.path().join("built"));
    done(ended(build(&path, &whole, &server, &[])));
    done(ended(build(&path, &out, &server, &[])));
    let file = out.join("stages/01-facts.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let all: Vec<&str> = text.lines().collect();
    let outcome = |id: &str| {
        let begins = |line: &&str| line.starts_with("{\"row\"") && line.contains(&format!("\"id\":\"{id}\""));
        all.iter().position(begins).unwrap()
    };
    let [first, second] = [outcome("r0"), outcome("r1")];
    let (mut deleted, mut doubled, mut swapped, mut short) =
        (all.clone(), all.clone(), all.clone(), all.clone());
    deleted.remove(first);
    doubled.insert(first, all[first]);
    swapped.swap(first, second);
    *short.last_mut().unwrap() = "{\"end\":{\"rows\":3}}";
    for (changed, said) in [
        (&deleted, "outcome 1 is of row \"r1\", and of row \"r0\""),
        (&doubled, "outcome 2 is of row \"r0\", and of row \"r1\""),
        (&swapped, "outcome 1 is of row \"r1\", and of row \"r0\""),
        (&short, "the stage took 3 rows, and it takes 4"),
    ] {
        // Whole, and as a kill before the stage's end leaves it, where the wrong count is gone with the end.
        let cuts = if changed.last() == all.last() { 2 } else { 1 };
        for cut in 0..cuts {
            std::fs::write(&file, changed[..changed.len() - cut].join("\n") + "\n").unwrap();
            let told = ended(build(&path, &out, &server, &[]));
            fails(&told, 1, said);
            fails(&told, 1, "stages/01-facts.jsonl");
            fails(&told, 1, "--from facts");
        }
        done(ended(build(&path, &out, &server, &["--from", "facts"])));
        assert_same_files(&whole, &out);
    }
}

#[test]
fn an_outcome_that_a_maker_of_all_rows_made_is_missed_too() {
    let root = tempfile::tempdir().unwrap();
    let text = "kind = \"stale\"\nlicence = \"CC0-1.0\"\n[[tables.things]]\nname = \"tea\"\n[[tables.things]]\nname = \"milk\"\n\
                [[stage]]\nname = \"apart\"\nrows = [\"things\"]\nmake = \"distinct\"\nwith = { fields = [\"name\"] }\n\
                [[stage]]\nname = \"rest\"\nrows = [\"apart\"]\n";
    let (path, out) = (write_spec(root.path(), text), root.path().join("built"));
    let start = || palimpsest(["build", "stale", shown(&path), "--out", shown(&out), "--until", "apart"]);
    done(start());
    let file = out.join("stages/01-apart.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let (_, after) = text.split_once('\n').unwrap();
    std::fs::write(&file, after).unwrap();
    fails(&start(), 1, "1 of 2 outcomes are there; build it again by --from apart");
}

#[test]
fn a_shard_is_refused_at_the_stage_whose_maker_needs_the_rows_of_all() {
    let root = tempfile::tempdir().unwrap();
    let text = r#"
kind = "stale"
licence = "CC0-1.0"
tables.things = [{ name = "tea" }, { name = "milk" }]
tables.others = [{ name = "salt" }]
stage = [
  { name = "first", rows = ["things"] },
  { name = "salty", rows = ["others"], make = "distinct", with = { fields = ["name"] } },
  { name = "read", rows = ["first"], make = "review", with = { edit = ["name"], keep = ["good"] } },
  { name = "apart", rows = ["salty", "read"], make = "distinct", with = { fields = ["name"] } },
  { name = "rest", rows = ["apart"] },
]
"#;
    let (path, out) = (write_spec(root.path(), text), root.path().join("built"));
    let start = |until: &str, shard: &str| {
        palimpsest(["build", "stale", shown(&path), "--out", shown(&out), "--until", until, "--shard", shard])
    };
    let told = start("apart", "1/2");
    fails(&told, 1, "stage apart: its maker distinct looks at all rows at once");
    fails(&told, 1, "leave out --shard, or end before it by --until read");
    assert!(!out.exists(), "a refused command changes nothing");
    done(start("read", "1/2"));
    assert_eq!(outcomes_of(&out, "03-read").keys().collect::<Vec<_>>(), ["milk"]);
    assert_eq!(outcomes_of(&out, "02-salty").len(), 1);
    std::fs::remove_dir_all(&out).unwrap();
    done(start("apart", "0/1"));
    assert_eq!(outcomes_of(&out, "04-apart").len(), 3);
}

#[test]
fn rows_that_a_maker_of_all_rows_took_or_made_are_missed_if_they_change_or_are_swapped() {
    let root = tempfile::tempdir().unwrap();
    let text = "kind = \"stale\"\nlicence = \"CC0-1.0\"\n[[tables.things]]\nname = \"tea\"\nof = \"a leaf\"\n\
                [[tables.things]]\nname = \"milk\"\nof = \"a cow\"\n[[stage]]\nname = \"first\"\nrows = [\"things\"]\n\
                [[stage]]\nname = \"apart\"\nrows = [\"first\"]\nmake = \"distinct\"\nwith = { fields = [\"name\"] }\n\
                [[stage]]\nname = \"rest\"\nrows = [\"apart\"]\n";
    let (path, out) = (write_spec(root.path(), text), root.path().join("built"));
    let start = |more: &[&str]| {
        let build = ["build", "stale", shown(&path), "--out", shown(&out), "--until", "apart"];
        palimpsest(build.iter().chain(more))
    };
    done(start(&[]));
    let whole = files(&out);
    let change = |file: &str, change: &dyn Fn(&str) -> String| {
        let path = out.join("stages").join(file);
        std::fs::write(&path, change(&std::fs::read_to_string(&path).unwrap())).unwrap();
    };
    let swap = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.swap(0, 1);
        lines.join("\n") + "\n"
    };
    let said = "stages/02-apart.jsonl: the rows that the maker took, or its outcomes, are other ones or stand in another order";
    change("02-apart.jsonl", &swap);
    fails(&start(&[]), 1, said);
    change("02-apart.jsonl", &swap);
    done(start(&[]));
    assert!(files(&out) == whole);
    change("01-first.jsonl", &|text| text.replace("a cow", "a goat"));
    fails(&start(&[]), 1, said);
    change("01-first.jsonl", &|text| text.replace("a goat", "a cow"));
    done(start(&["--from", "apart"]));
    assert!(files(&out) == whole);
}

#[test]
fn stages_after_one_that_is_not_whole_are_built_again_and_unfinished_files_removed() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let path = write_spec(root.path(), &spec(&named(&[("fine", ""), ("prose", "")])));
    let (whole, out) = (root.path().join("whole"), root.path().join("built"));
    done(ended(build(&path, &whole, &server, &[])));
    done(ended(build(&path, &out, &server, &[])));
    std::fs::remove_file(out.join("stages/01-facts.jsonl")).unwrap();
    let later = out.join("stages/02-lines.jsonl");
    let text = std::fs::read_to_string(&later).unwrap();
    assert!(text.contains(" says "));
    std::fs::write(&later, text.replace(" says ", " said ")).unwrap();
    std::fs::write(out.join(".tmp0"), "half").unwrap();
    std::fs::write(out.join("stages/.tmp0"), "half").unwrap();
    done(ended(build(&path, &out, &server, &[])));
    assert_same_files(&whole, &out);
}

#[test]
fn rows_that_end_in_errors_at_the_end_of_a_stage_are_held_and_asked_again() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    let (two, mixed) = (root.path().join("two"), root.path().join("mixed"));
    let path = write_spec(root.path(), &spec(&named(&[("refuse", ""), ("refuse", "")])));
    fails(&ended(build(&path, &two, &server, &[])), 1, "this server refuses");
    assert!(outcomes_of(&two, "01-facts").is_empty());
    server.healed.store(true, Ordering::Relaxed);
    done(ended(build(&path, &two, &server, &[])));
    assert!(outcomes_of(&two, "01-facts").values().all(|outcome| outcome.made.len() == 1));
    server.healed.store(false, Ordering::Relaxed);
    // The last attempt decides; a row after which another one is answered is rejected.
    let path = write_spec(root.path(), &spec(&named(&[("refuse", ""), ("fine", ""), ("wrong refuse", "")])));
    fails(&ended(build(&path, &mixed, &server, &[])), 1, "1 row in a row");
    let rows = outcomes_of(&mixed, "01-facts");
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["r0", "r1"]);
    assert_eq!((rows["r0"].rejected[0].reason.as_str(), rows["r1"].made.len()), ("error", 1));
    server.healed.store(true, Ordering::Relaxed);
    done(ended(build(&path, &mixed, &server, &[])));
    assert_eq!(outcomes_of(&mixed, "01-facts")["r2"].made.len(), 1);
}

#[test]
fn a_misspelt_field_of_a_source_ends_the_build_and_rejects_no_row() {
    let (root, server) = (tempfile::tempdir().unwrap(), Erring::start(Duration::ZERO));
    std::fs::write(root.path().join("more.jsonl"), "{\"name\": \"r0\", \"does\": \"fine\"}\n").unwrap();
    let text = spec(&named(&[("fine", "")]))
        .replace("[[tables", "sources.more = { file = \"more.jsonl\", licence = \"CC0-1.0\" }\n[[tables")
        .replace("rows = [\"things\"]", "rows = [\"more\"]")
        .replace("\"distinct\", fields = [\"fact\", \"value\"]", "\"holds\", expression = \"nmae != fact\"");
    let (path, out) = (write_spec(root.path(), &text), root.path().join("built"));
    fails(&ended(build(&path, &out, &server, &[])), 1, "stage facts: check holds: row r0: ");
    let (path, out) = (write_spec(root.path(), &text.replace("nmae", "name")), root.path().join("right"));
    done(ended(build(&path, &out, &server, &[])));
}

#[test]
fn a_build_without_an_accepted_row_says_so_and_a_check_that_cannot_be_evaluated_ends_it() {
    let root = tempfile::tempdir().unwrap();
    let start = |expression: &str, name: &str| {
        let text = format!(
            "kind = \"stale\"\nlicence = \"CC0-1.0\"\n[[tables.things]]\nname = \"tea\"\n[[stage]]\nname = \"some\"\nrows = \
             [\"things\"]\nchecks = [{{ check = \"holds\", expression = \"{expression}\" }}]\n"
        );
        let (path, out) = (write_spec(root.path(), &text), root.path().join(name));
        palimpsest(["build", "stale", shown(&path), "--out", shown(&out)])
    };
    fails(&start("name == 'milk'", "none"), 1, "no row was accepted");
    fails(&start("nmae == 'tea'", "missing"), 1, "stage some: checks[0].expression: it reads `nmae`");
    fails(&start("name.first.second == 'tea'", "missing"), 1, "stage some: check holds: row tea: ");
    fails(&start("name", "text"), 1, "true or false belongs there");
}
