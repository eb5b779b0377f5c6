//! A hub or a cache that is hostile or broken: nothing outside the cache is read, written or removed, nothing hangs, and content that differs
//! from the listing is not kept.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::hub::{Desk, asked_for, commit, without_blobs};
use super::hub_server::{HubServer, Repository, fixture_files};
use crate::cli::{done, ended};

fn plain() -> Repository {
    Repository::of('a', fixture_files("llama-tiny", &[]))
}

fn listed(listing: fn(&mut Value)) -> Repository {
    Repository { listing: Some(listing), ..plain() }
}

/// A file's row of a listing.
fn row<'l>(listing: &'l mut Value, file: &str) -> &'l mut Value {
    let siblings = listing["siblings"].as_array_mut().unwrap();
    siblings.iter_mut().find(|sibling| sibling["rfilename"] == file).unwrap()
}

#[test]
fn names_that_a_hub_gives_cannot_lead_out_of_the_cache() {
    let named = |etag| Repository { etag: Some(etag), ..listed(without_blobs) };
    let hub = HubServer::new([
        ("o/etag", named("../../../x")),
        ("o/absolute-etag", named("/tmp/x")),
        (
            "o/blob",
            listed(|listing| {
                for sibling in listing["siblings"].as_array_mut().unwrap() {
                    sibling["lfs"] = Value::Null;
                    sibling["blobId"] = json!("../../x");
                }
            }),
        ),
        ("o/sha", listed(|listing| listing["siblings"][0]["lfs"] = json!({"sha256": "../../x", "size": 1}))),
        ("o/commit", listed(|listing| listing["sha"] = json!("../../x"))),
        ("o/file", listed(|listing| listing["siblings"][0]["rfilename"] = json!("a/../../../x"))),
        ("o/absolute", listed(|listing| listing["siblings"][0]["rfilename"] = json!("/tmp/x"))),
        ("o/backslash", listed(|listing| listing["siblings"][0]["rfilename"] = json!("..\\x"))),
    ]);
    let desk = Desk::new(&hub);
    for (id, name) in [
        ("o/etag", "../../../x"),
        ("o/absolute-etag", "/tmp/x"),
        ("o/blob", "../../x"),
        ("o/sha", "../../x"),
        ("o/commit", "../../x"),
        ("o/file", "a/../../../x"),
        ("o/absolute", "/tmp/x"),
        ("o/backslash", "..\\\\x"),
    ] {
        let message = desk.failure(&["model", "pull", id]);
        assert!(message.contains(name) && message.contains(id), "{id}: {message}");
    }
    // Nothing but locks was written.
    let mut folders = vec![desk.path("hf")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.is_dir() || path.parent().unwrap().ends_with(".locks"), "{}", path.display());
            folders.extend(path.is_dir().then_some(path));
        }
    }
}

#[test]
fn links_in_the_cache_are_neither_followed_out_of_it_nor_written_through() {
    let files = fixture_files("llama-tiny", &[]);
    let (weights, config) = (files["model.safetensors"].clone(), files["config.json"].clone());
    let hub = HubServer::new([("tiny/llama", Repository::of('a', files))]);
    let desk = Desk::new(&hub);
    let blobs = desk.cache("tiny/llama").join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(desk.path("mine"), "mine").unwrap();
    let part = desk.blob("tiny/llama", &weights).with_extension("part");
    let reference = desk.cache("tiny/llama").join("refs/main");
    symlink(desk.path("mine"), &part).unwrap();
    done(desk.ended(&["model", "pull", "tiny/llama"]));
    fs::hard_link(desk.path("mine"), &part).unwrap();
    fs::remove_file(&reference).unwrap();
    symlink(desk.path("mine"), &reference).unwrap();
    done(desk.ended(&["model", "pull", "tiny/llama", "--force"]));
    assert_eq!(fs::read_to_string(&reference).unwrap(), commit('a'));
    assert_eq!(fs::read_to_string(desk.path("mine")).unwrap(), "mine");
    assert!(fs::read(desk.blob("tiny/llama", &weights)).unwrap() == weights);

    fs::write(desk.path("config.json"), config).unwrap();
    let pointer = desk.cache("tiny/llama").join("snapshots").join(commit('a')).join("config.json");
    fs::remove_file(&pointer).unwrap();
    symlink(desk.path("config.json"), &pointer).unwrap();
    let message = desk.failure(&["heads", "tiny/llama"]);
    assert!(
        message.contains("outside the hub's cache") && message.contains("model pull tiny/llama@main"),
        "{message}"
    );
    done(desk.ended(&["model", "pull", "tiny/llama"]));
    assert!(fs::read_link(&pointer).unwrap().starts_with("../../blobs"));
}

#[test]
fn links_in_place_of_folders_and_locks_are_refused() {
    let hub = HubServer::new([("tiny/llama", plain())]);
    let snapshot = format!("models--tiny--llama/snapshots/{}", commit('a'));
    for link in [
        "models--tiny--llama",
        "models--tiny--llama/blobs",
        "models--tiny--llama/refs",
        "models--tiny--llama/snapshots",
        &snapshot,
        ".locks",
        ".locks/models--tiny--llama.palimpsest.lock",
    ] {
        let desk = Desk::new(&hub);
        let (outside, at) = (desk.path("outside"), desk.path("hf/hub").join(link));
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("config.json"), "mine").unwrap();
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        let is_lock = link.ends_with(".lock");
        symlink(if is_lock { outside.join("new") } else { outside.clone() }, &at).unwrap();
        let message = desk.failure(&["model", "pull", "tiny/llama"]);
        assert!(message.contains("is a symbolic link"), "{link}: {message}");
        if !link.starts_with(".locks") {
            let id = format!("tiny/llama@{}", commit('a'));
            let message = desk.failure(&["model", "info", &id]);
            assert!(
                message.contains("is a symbolic link") && message.contains("HF_HUB_CACHE"),
                "{link}: {message}"
            );
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{link}");
        assert_eq!(fs::read_to_string(outside.join("config.json")).unwrap(), "mine", "{link}");
    }
}

#[test]
fn a_cache_that_is_itself_a_link_is_used() {
    let hub = HubServer::new([("tiny/llama", plain())]);
    for link in ["hf", "hf/hub"] {
        let desk = Desk::new(&hub);
        fs::create_dir_all(desk.path("disk")).unwrap();
        fs::create_dir_all(desk.path(link).parent().unwrap()).unwrap();
        symlink(desk.path("disk"), desk.path(link)).unwrap();
        done(desk.ended(&["model", "pull", "tiny/llama"]));
        assert!(done(desk.ended(&["model", "info", "tiny/llama"])).out.contains("llama"));
    }
}

#[test]
fn fifos_devices_and_circular_links_in_the_cache_hang_no_command() {
    let hub = HubServer::new([("tiny/llama", plain())]);
    let desk = Desk::new(&hub);
    let reference = desk.cache("tiny/llama").join("refs/main");
    fs::create_dir_all(reference.parent().unwrap()).unwrap();
    let makers: [fn(&Path); 4] = [
        |at| symlink("/dev/zero", at).unwrap(),
        |at| assert!(Command::new("mkfifo").arg(at).status().unwrap().success()),
        |at| fs::write(at, "a".repeat(1 << 20)).unwrap(),
        |at| fs::write(at, "../../../outside").unwrap(),
    ];
    for make in makers {
        let _ = fs::remove_file(&reference);
        make(&reference);
        let absent = desk.failure(&["model", "info", "tiny/llama"]);
        assert!(absent.contains("not here yet"), "{absent}");
        done(desk.ended(&["model", "pull", "tiny/llama"]));
        assert_eq!(fs::read_to_string(&reference).unwrap(), commit('a'));
    }
    let snapshot = desk.cache("tiny/llama").join("snapshots").join(commit('a'));
    for (link, to) in [("root", "/"), ("one", "."), ("two", ".")] {
        symlink(to, snapshot.join(link)).unwrap();
    }
    assert!(done(desk.ended(&["model", "info", "tiny/llama"])).out.contains("llama"));
}

#[test]
fn content_that_differs_from_the_listing_is_not_kept() {
    let pinned = format!("o/pinned@{}", commit('b'));
    let files = || fixture_files("llama-tiny", &[]);
    let (length, pin) = (files()["config.json"].len(), commit('a'));
    let hub = HubServer::new([
        ("o/longer", listed(|listing| row(listing, "config.json")["size"] = json!(5))),
        ("o/shorter", listed(|listing| row(listing, "config.json")["size"] = json!(99_999))),
        ("o/other", listed(|listing| row(listing, "config.json")["blobId"] = json!("0".repeat(40)))),
        (
            "o/twice",
            listed(|listing| {
                let blob = row(listing, "config.json")["blobId"].clone();
                row(listing, "generation_config.json")["blobId"] = blob;
            }),
        ),
        (
            "o/same",
            Repository {
                etag: Some("same"),
                ..listed(|listing| {
                    for sibling in listing["siblings"].as_array_mut().unwrap() {
                        *sibling = json!({"rfilename": sibling["rfilename"], "size": sibling["size"]});
                    }
                })
            },
        ),
        (
            "o/pinned",
            Repository {
                listing: Some(|listing| listing["sha"] = json!("a".repeat(40))),
                ..Repository::of('b', files())
            },
        ),
    ]);
    let desk = Desk::new(&hub);
    for (id, part) in [
        ("o/longer", "it has more than 5 bytes".to_owned()),
        ("o/shorter", format!("has {length} bytes, the hub says 99999")),
        ("o/other", format!("expected {}", "0".repeat(40))),
        ("o/twice", "two sizes of one content".to_owned()),
        ("o/same", "has not the size".to_owned()),
        (&*pinned, format!("gives another commit, {pin}, for {pinned}")),
    ] {
        let message = desk.failure(&["model", "pull", id]);
        assert!(message.contains(&part), "{id}: {message}");
        let at = desk.cache(id.split('@').next().unwrap());
        assert!(!at.join("refs/main").exists(), "{id}");
        let blobs = fs::read_dir(at.join("blobs")).map_or(0, Iterator::count);
        assert_eq!(blobs, usize::from(id == "o/same"), "{id}");
    }
}

#[test]
fn a_small_file_that_was_changed_is_fetched_again() {
    let hub = HubServer::new([("tiny/llama", plain())]);
    let desk = Desk::new(&hub);
    let pull = || done(desk.ended(&["model", "pull", "tiny/llama"]));
    pull();
    hub.requests();
    let config = desk.cache("tiny/llama").join("snapshots").join(commit('a')).join("config.json");
    let right = fs::read(&config).unwrap();
    let mut other = right.clone();
    other.reverse();
    fs::write(&config, &other).unwrap();
    pull();
    assert_eq!(asked_for(&hub.requests()), ["config.json"]);
    assert!(fs::read(&config).unwrap() == right);
}

#[test]
fn names_of_files_are_encoded_in_addresses() {
    let bytes = fixture_files("gguf-llama", &[])["model.gguf"].clone();
    let name = "some dir/50% a#b?.gguf";
    let hub = HubServer::new([("o/gguf", Repository::of('a', [(name.to_owned(), bytes)]))]);
    let desk = Desk::new(&hub);
    done(desk.ended(&["model", "pull", "o/gguf"]));
    assert_eq!(asked_for(&hub.requests()), ["some%20dir/50%25%20a%23b%3F.gguf"]);
    assert!(done(desk.ended(&["model", "info", "o/gguf"])).out.contains(name));
}

#[test]
fn a_busy_hub_is_asked_again() {
    let hub = HubServer::new([("tiny/llama", plain())]);
    let desk = Desk::new(&hub);
    for (path, status) in [
        ("/revision/main", "503 Service Unavailable"),
        ("/config.json", "429 Too Many Requests"),
        ("/cdn/", "500 Internal Server Error"),
    ] {
        hub.busy(path, status);
        done(desk.ended(&["model", "pull", "tiny/llama", "--force"]));
        assert!(hub.was_busy(), "{path}");
    }
}

#[test]
fn variables_of_the_hub_neither_leak_a_password_nor_hang() {
    let hub = HubServer::new([("tiny/llama", plain())]);
    let with_password = hub.address.replace("http://", "http://reader:sesame@");
    let desk = Desk { endpoint: with_password, ..Desk::new(&hub) };
    let pulled = done(desk.ended(&["model", "pull", "tiny/llama"])).err;
    assert!(pulled.contains(&hub.address) && !pulled.contains("sesame"), "{pulled}");
    for endpoint in ["http://reader:sesame@127.0.0.1:9", "reader:sesame@mirror"] {
        let desk = Desk { endpoint: endpoint.to_owned(), ..Desk::new(&hub) };
        let message = desk.failure(&["model", "pull", "tiny/llama"]);
        assert!(message.contains("could not be looked up") && !message.contains("sesame"), "{message}");
    }
    hub.requests();
    for (variables, part) in [
        (&[("TRANSFORMERS_OFFLINE", "1")][..], "TRANSFORMERS_OFFLINE forbids"),
        (&[("HF_TOKEN_PATH", "/dev/zero")], "HF_TOKEN_PATH"),
    ] {
        let absent = Desk::new(&hub);
        let mut command = absent.command(&["model", "pull", "tiny/llama"]);
        command.envs(variables.iter().copied());
        let failed = ended(command);
        assert!(failed.code == Some(1) && failed.err.contains(part), "{}", failed.err);
    }
    // The first that is set decides.
    let mut command = desk.command(&["model", "pull", "tiny/llama"]);
    command.env("HF_HUB_OFFLINE", "0").env("TRANSFORMERS_OFFLINE", "1");
    assert!(hub.requests().is_empty());
    done(ended(command));
    assert!(!hub.requests().is_empty());
}
