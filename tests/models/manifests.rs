//! Manifests: the built-in ones are valid, and an invalid one is rejected by field.

use std::collections::BTreeSet;
use std::path::Path;

use palimpsest::models::ModelStore;
use palimpsest::models::manifest::{DEFAULT_MODEL, Manifest, Source, built_in};
use palimpsest_core::model::ModelKind;

const GOOD: &str = r#"
name = "mine"
title = "Mine"
architecture = "llama"
context_length = 64
licence = "MIT"
dtype = "f32"
[[sources]]
kind = "path"
path = "mine.gguf"
"#;

fn refusal(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    let error = Manifest::parse(&GOOD.replace(from, to), Path::new("mine.toml")).unwrap_err();
    format!("{error:#}")
}

#[test]
fn every_built_in_manifest_parses_and_no_two_share_a_name() {
    let manifests = built_in().unwrap();
    let names: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    assert_eq!(names.len(), manifests.len());
    assert!(names.contains(DEFAULT_MODEL));
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models")).unwrap();
    let files: BTreeSet<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["configs", "embedders"].contains(&name.as_str()))
        .collect();
    let expected: BTreeSet<String> = names.iter().map(|name| format!("{name}.toml")).collect();
    assert_eq!(files, expected, "every file in models/ is compiled in and named after its model");
}

#[test]
fn every_file_from_a_wheel_has_a_checksum_and_every_gated_model_comes_from_the_hub() {
    for manifest in built_in().unwrap() {
        for source in &manifest.sources {
            assert!(
                !matches!(source, Source::Path(_)),
                "{}: a built-in model cannot have a path",
                manifest.name
            );
            assert!(!manifest.gated || matches!(source, Source::Hub(_)));
        }
    }
}

#[test]
fn a_wrong_manifest_is_refused_with_file_and_field() {
    for (from, to, part) in [
        ("\"mine\"", "\"../mine\"", "name is \"../mine\""),
        ("\"mine\"", "\"Mine\"", "name is \"Mine\""),
        ("context_length = 64", "context_length = 0", "context_length is"),
        ("\"f32\"", "\"f8\"", "f8"),
        ("licence = \"MIT\"", "license = \"MIT\"", "license"),
        ("kind = \"path\"", "kind = \"ftp\"", "ftp"),
        ("path = \"mine.gguf\"", "path = \"mine.gguf\"\nsha256 = \"ABC\"", "sha256 is \"ABC\""),
    ] {
        let message = refusal(from, to);
        assert!(message.contains("mine.toml") && message.contains(part), "{to}: {message}");
    }
}

#[test]
fn a_users_manifest_is_listed_replaces_a_built_in_one_and_must_be_right() {
    let home = tempfile::tempdir().unwrap();
    let store = ModelStore::at(home.path().to_path_buf());
    let own = home.path().join("models.d");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("a.toml"), GOOD).unwrap();
    std::fs::write(own.join("b.toml"), GOOD.replace("\"mine\"", &format!("{DEFAULT_MODEL:?}"))).unwrap();
    let manifests = store.manifests().unwrap();
    assert_eq!(manifests[0].name, DEFAULT_MODEL);
    assert_eq!(manifests[0].title, "Mine");
    assert_eq!(manifests.iter().filter(|manifest| manifest.name == DEFAULT_MODEL).count(), 1);
    assert!(manifests.iter().any(|manifest| manifest.name == "mine"));

    std::fs::write(own.join("c.toml"), GOOD).unwrap();
    let twice = store.manifests().unwrap_err().to_string();
    assert!(twice.contains("a.toml") && twice.contains("c.toml"), "{twice}");
    std::fs::write(own.join("c.toml"), "name = 3").unwrap();
    assert!(store.manifests().unwrap_err().to_string().contains("c.toml"));
}

#[test]
fn a_path_source_is_used_in_place_and_verified() {
    let home = tempfile::tempdir().unwrap();
    let store = ModelStore::at(home.path().to_path_buf());
    let own = home.path().join("models.d");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("mine.toml"), GOOD).unwrap();
    assert!(store.resolve("mine").unwrap_err().to_string().contains("mine.gguf"));
    std::fs::write(own.join("mine.gguf"), "abc").unwrap();
    assert_eq!(store.resolve("mine").unwrap().kind, ModelKind::Gguf(vec![own.join("mine.gguf")]));

    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    std::fs::write(own.join("mine.toml"), format!("{GOOD}sha256 = \"{abc}\"\n")).unwrap();
    assert!(store.resolve("mine").is_ok());
    std::fs::write(own.join("mine.gguf"), "abcd").unwrap();
    assert!(store.resolve("mine").unwrap_err().to_string().contains("wrong checksum"));
}

#[test]
fn an_unknown_name_is_refused_with_the_known_ones_and_the_closest() {
    let home = tempfile::tempdir().unwrap();
    let store = ModelStore::at(home.path().to_path_buf());
    let message = store.resolve("smolm2-135").unwrap_err().to_string();
    assert!(
        message.contains("did you mean \"smollm2-135m\"?") && message.contains("gemma3-270m"),
        "{message}"
    );
    assert!(!store.resolve("something-else").unwrap_err().to_string().contains("did you mean"));
}

#[test]
fn a_path_must_be_a_gguf_file_or_a_model_folder() {
    let home = tempfile::tempdir().unwrap();
    let store = ModelStore::at(home.path().join("home"));
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_string();
    assert!(store.resolve(&path("absent.gguf")).unwrap_err().to_string().contains("no file or folder"));
    std::fs::write(path("weights.bin"), "x").unwrap();
    assert!(store.resolve(&path("weights.bin")).unwrap_err().to_string().contains("expected a .gguf file"));
    std::fs::create_dir(path("folder")).unwrap();
    assert!(store.resolve(&path("folder")).unwrap_err().to_string().contains("no config.json"));
    std::fs::write(path("folder/config.json"), "{}").unwrap();
    let files = store.resolve(&path("folder")).unwrap();
    assert_eq!((files.name.as_str(), files.kind), ("folder", ModelKind::Folder(path("folder").into())));
    std::fs::write(path("model.gguf"), "x").unwrap();
    assert_eq!(store.resolve(&path("model.gguf")).unwrap().name, "model");
}

#[test]
fn a_models_digest_follows_its_weights_config_and_tokenizer_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let store = ModelStore::at(home.path().join("home"));
    let folder = home.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let digest = || store.digest(&store.resolve(folder.to_str().unwrap()).unwrap()).unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    std::fs::write(folder.join("model.safetensors"), "weights").unwrap();
    let mut seen = vec![digest()];
    std::fs::write(folder.join("README.md"), "about").unwrap();
    assert_eq!(digest(), seen[0]);
    for (name, text) in
        [("model.safetensors", "other weights"), ("config.json", "{ }"), ("tokenizer.json", "{}")]
    {
        std::fs::write(folder.join(name), text).unwrap();
        let now = digest();
        assert!(!seen.contains(&now), "a change of {name} changes the digest");
        seen.push(now);
    }

    let gguf = home.path().join("abc.gguf");
    std::fs::write(&gguf, "abc").unwrap();
    let files = store.resolve(gguf.to_str().unwrap()).unwrap();
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(store.digest(&files).unwrap(), abc);
    assert_eq!(store.digest(&files).unwrap(), abc, "the remembered digest is the same");
}
