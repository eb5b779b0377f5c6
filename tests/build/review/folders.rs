//! Specs and folders of strangers cannot lead files elsewhere or make a command wait.

use std::os::unix::fs::symlink;
use std::path::Path;

use palimpsest::build::kind::Kind;
use palimpsest::build::pool::Pool;
use palimpsest::build::{Row, Setting, Spec, knowme, subtlememory};
use palimpsest::builds::rows::{self, Part};
use palimpsest_core::text::CharsPerToken;
use serde_json::{Map, Value, json};

use super::{SPEC, allowed, build, chats};
use crate::cli::{done, palimpsest, shown};

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn fields(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { panic!("{value}") };
    fields
}

/// Writes the data of a kind; gives the error's text.
fn written(kind: &Kind, with: Value, rows: &[Row], folder: &Path) -> Result<(), String> {
    let spec: Spec = toml::from_str("kind = \"knowme\"\nlicence = \"MIT\"\nstage = []").unwrap();
    let (pool, count) = (Pool::default(), CharsPerToken::new(4.0).unwrap());
    let embed = |_: &[&str]| Err("there is no embedder".to_owned());
    let with = fields(with);
    let setting =
        Setting { spec: &spec, stage: "last", with, pool: &pool, count: &count, embed: &embed, reviews: &[] };
    (kind.write)(&setting, rows, folder).map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_spec_or_row_names_no_file_outside_the_data() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("built/data");
    std::fs::create_dir_all(&data).unwrap();
    let absolute = shown(&root.path().join("x")).to_owned();
    let long = "n".repeat(101);
    for name in ["../../x", &absolute, "..", ".", "", "a/b", "a\\b", "a\nb", "a/", &long] {
        let refused = written(&knowme::KIND, json!({ "name": name }), &[], &data).unwrap_err();
        assert!(refused.contains("the setting `name`: "), "{name}: {refused}");
        let row = Row { id: "s".to_owned(), parents: Vec::new(), fields: fields(json!({ "persona": name })) };
        let refused = written(&subtlememory::KIND, json!({}), &[row], &data).unwrap_err();
        assert!(refused.contains("row s: the field `persona`: "), "{name}: {refused}");
    }
    let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!((names(root.path()), names(&data)), (1, 0));
    written(&knowme::KIND, json!({"name": "a life"}), &[], &data).unwrap();
    assert!(data.join("input/a life.json").is_file());
}

#[test]
fn review_follows_no_link() {
    let root = tempfile::tempdir().unwrap();
    let (spec, out, outside) =
        (root.path().join("spec.toml"), root.path().join("built"), root.path().join("outside"));
    std::fs::write(&spec, SPEC).unwrap();
    std::fs::create_dir(&outside).unwrap();
    done(build(&spec, &out, &[]));
    symlink(&outside, out.join("review")).unwrap();
    let ended = palimpsest(["build", "review", shown(&out)]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("symbolic link"), "{}", ended.err);
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn publish_gives_what_was_built_and_nothing_from_outside() {
    let root = tempfile::tempdir().unwrap();
    let built = allowed(root.path(), &chats(root.path()));
    let public = root.path().join("public");
    let refused = |out: &Path, what: &str| {
        let ended = palimpsest(["build", "publish", shown(&built), "--out", shown(out)]);
        assert_eq!(ended.code, Some(1), "{what}");
        assert!(ended.err.contains(what), "{what}: {}", ended.err);
        assert!(!out.join("stale.json").exists() && !out.join("README.md").exists(), "{what}");
    };
    // Into itself, by its own path and by another.
    refused(&built.join("data/public"), "is inside the folder of the build");
    symlink(&built, root.path().join("alias")).unwrap();
    refused(&root.path().join("alias/new/public"), "is inside the folder of the build");
    assert!(!built.join("new").exists());

    let (data, secret) = (built.join("data"), root.path().join("secret"));
    std::fs::write(&secret, "secret").unwrap();
    symlink(&secret, data.join("more.csv")).unwrap();
    refused(&public, "`data/more.csv` is a link");
    std::fs::remove_file(data.join("more.csv")).unwrap();
    fifo(&data.join("more.csv"));
    refused(&public, "`data/more.csv` is a link, FIFO");
    std::fs::remove_file(data.join("more.csv")).unwrap();

    let yields = built.join("yield.csv");
    let kept = std::fs::read(&yields).unwrap();
    std::fs::remove_file(&yields).unwrap();
    symlink(&secret, &yields).unwrap();
    refused(&public, "symbolic link");
    std::fs::remove_file(&yields).unwrap();
    fifo(&yields);
    refused(&public, "FIFO");
    std::fs::remove_file(&yields).unwrap();
    std::fs::write(&yields, kept).unwrap();

    let file = data.join("stale.json");
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{whole}\n")).unwrap();
    refused(&public, "was changed, added or removed after the build");
    std::fs::write(&file, whole).unwrap();
    done(palimpsest(["build", "publish", shown(&built), "--out", shown(&public)]));
}

fn spec_of(table: &str, group: &str) -> Spec {
    let text = format!(
        "kind = \"stale\"\nlicence = \"MIT\"\n[tables]\nt = {table}\n[[stage]]\nname = \"groups\"\nrows = [\"t\"]\ngroup = {group}\n"
    );
    toml::from_str(&text).unwrap()
}

/// Ids of the groups, each with its number of rows.
fn groups(table: &str, group: &str) -> Result<Vec<(String, usize)>, String> {
    let spec = spec_of(table, group);
    let (known, _) = rows::read(&spec, Path::new(".")).unwrap();
    let found = rows::form(&spec.stages[0], &known, Part::default()).map_err(|error| error.to_string())?;
    Ok(found.into_iter().map(|row| (row.id.clone(), row.list("rows").unwrap().len())).collect())
}

#[test]
fn groups_differ_where_their_values_do() {
    let of = |id: &str, rows| (id.to_owned(), rows);
    let slashes = r#"[{ p = "x/y", q = "z" }, { p = "x", q = "y/z" }, { p = "x/y", q = "z" }]"#;
    assert_eq!(groups(slashes, r#"["p", "q"]"#), Ok(vec![of("x/y/z", 2), of("x/y/z-2", 1)]));
    let types = r#"[{ p = 1 }, { p = "1" }, { p = "1-2" }, { p = 1 }]"#;
    assert_eq!(groups(types, r#"["p"]"#), Ok(vec![of("1", 2), of("1-2", 1), of("1-2-2", 1)]));
    let names = r#"[{ p = { name = "x" }, q = { name = "y" } }]"#;
    let refused = groups(names, r#"["p.name", "q.name"]"#).unwrap_err();
    assert!(refused.contains("two fields have the last name `name`"), "{refused}");
}

#[test]
fn sources_and_distractors_are_regular_files_of_a_bounded_length() {
    let root = tempfile::tempdir().unwrap();
    let [pipe, large] = ["pipe.jsonl", "large.jsonl"].map(|name| root.path().join(name));
    fifo(&pipe);
    std::fs::File::create(&large).unwrap().set_len(4_000_000_001).unwrap();
    for (path, what) in [(&pipe, "FIFO"), (&large, "4000000001 bytes")] {
        let refused = Pool::read(std::slice::from_ref(path)).unwrap_err().to_string();
        assert!(refused.contains(shown(path)) && refused.contains(what), "{refused}");
        let mut spec = spec_of("[]", "[]");
        let source = json!({"file": path, "licence": "MIT"});
        spec.sources = [("s".to_owned(), serde_json::from_value(source).unwrap())].into();
        let refused = format!("{:#}", rows::read(&spec, root.path()).unwrap_err());
        assert!(refused.contains(shown(path)) && refused.contains(what), "{refused}");
    }
}

#[test]
fn show_prints_no_control_character() {
    let root = tempfile::tempdir().unwrap();
    let (spec, out) = (root.path().join("spec.toml"), root.path().join("built"));
    let hostile = SPEC.replace("name = \"a\"", r#"name = "a\u001b[31m""#).replace("bike.", r"bike\u0007.");
    std::fs::write(&spec, hostile).unwrap();
    done(build(&spec, &out, &[]));
    let told = done(palimpsest(["build", "show", shown(&out), "a\u{1b}[31m"])).out;
    assert!(told.contains("a\\u{1b}[31m") && told.contains("bike\\u{7}."), "{told}");
    assert!(!told.contains(|c: char| c.is_control() && c != '\n'), "{told:?}");
}
