//! Adapters of memory systems: their Python tests that need no package (`python3 tests/adapters/test_adapters.py`), and their list.

use std::path::Path;
use std::process::Command;

use crate::cli::palimpsest;

fn python(script: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adapters").join(script);
    let run = Command::new("python3").arg(&script).output().expect("python3 runs the tests of adapters");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn the_helper_plain_retrieval_and_mcp_servers_keep_the_protocol() {
    python("test_adapters.py");
}

#[test]
fn e02_e03_e14_noise_words_and_refused_batches_of_servers() {
    python("test_servers.py");
}

#[test]
fn adapters_of_hosted_services_send_each_message_once_and_wait_until_all_is_written() {
    python("test_hosted.py");
}

#[test]
fn every_adapter_is_listed_once_with_the_version_that_its_docstring_names_and_what_its_code_offers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("adapters");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let table: toml::Table = toml::from_str(&read("systems.toml")).unwrap();
    let out = palimpsest(["memory", "list"]).out;
    let mut listed = Vec::new();
    for system in table["system"].as_array().unwrap() {
        let of = |key: &str| system[key].as_str().unwrap();
        let (adapter, version) = (of("adapter"), of("version"));
        let code = read(adapter);
        let mut words =
            code.split("\"\"\"").nth(1).unwrap().split(|c: char| !c.is_alphanumeric() && c != '.');
        assert!(words.any(|word| word.trim_matches('.') == version), "{adapter} names no {version}");
        let offered = [("search", "def search("), ("answer", "def answer("), ("native", "\"parts\"")];
        // One adapter is a class over another's.
        let offered = offered.iter().filter(|(what, how)| *what == "search" || code.contains(how));
        assert_eq!(of("offers"), offered.map(|(what, _)| *what).collect::<Vec<_>>().join(", "), "{adapter}");
        let line = out.lines().find(|line| line.split_whitespace().any(|word| word == adapter)).unwrap();
        let shown = ["name", "version", "seen", "offers", "needs"];
        assert!(shown.iter().all(|key| line.contains(of(key))), "{line}");
        listed.push(adapter.to_owned());
    }
    let files =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut adapters: Vec<String> = files
        .filter(|name| {
            let others = ["palimpsest_memory.py", "servers.py", "plain.py", "hosted.py"];
            let other = others.contains(&name.as_str()) || name.starts_with("mcp_");
            name.ends_with(".py") && !other
        })
        .collect();
    adapters.sort();
    listed.sort();
    assert_eq!(listed, adapters);
}
