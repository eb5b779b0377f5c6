//! `--model owner/name`: models of the hub, through a local server that speaks its protocol.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use palimpsest::runs::store::RunFolder;
use palimpsest_core::digest::sha256;
use serde_json::{Value, json};

use super::hub_server::{HubServer, Repository, TOKEN, fixture_files, small_name};
use crate::cli::{Ended, command, done, ended, shown};

/// A folder for the model home, the hub's cache and results.
pub(super) struct Desk {
    pub(super) dir: tempfile::TempDir,
    pub(super) endpoint: String,
}

impl Desk {
    pub(super) fn new(hub: &HubServer) -> Self {
        Desk { dir: tempfile::tempdir().unwrap(), endpoint: hub.address.clone() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", &self.endpoint).env("HF_HOME", self.path("hf"));
        command.env("PALIMPSEST_HOME", self.path("home")).env("NO_PROXY", "127.0.0.1");
        command.current_dir(self.dir.path());
        command
    }

    pub(super) fn ended(&self, args: &[&str]) -> Ended {
        ended(self.command(args))
    }

    /// Message of a command that must fail.
    pub(super) fn failure(&self, args: &[&str]) -> String {
        let ended = self.ended(args);
        assert_eq!(ended.code, Some(1), "{}\n{}", ended.out, ended.err);
        ended.err
    }

    /// Traces the fixture's tokens with a model; returns the file's bytes and the messages.
    fn trace(&self, model: &str, more: &[(&str, &str)]) -> (Vec<u8>, String) {
        let tokens = fixture("qwen2-sharded-tiny").join("tokens.json");
        let mut command =
            self.command(&["trace", "--model", model, "--tokens", shown(&tokens), "--out", "out"]);
        command.envs(more.iter().copied());
        let err = done(ended(command)).err;
        (fs::read(self.path("out")).unwrap(), err)
    }

    pub(super) fn cache(&self, id: &str) -> PathBuf {
        self.path("hf/hub").join(format!("models--{}", id.replace('/', "--")))
    }

    pub(super) fn blob(&self, id: &str, bytes: &[u8]) -> PathBuf {
        self.cache(id).join("blobs").join(sha256(bytes))
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Files that the requests fetched or looked at.
pub(super) fn asked_for(requests: &[String]) -> Vec<String> {
    let file = |request: &String| {
        let path = request.split(' ').nth(1)?;
        let (_, file) = path.split_once("/resolve/")?;
        Some(file.split_once('/')?.1.to_owned())
    };
    let mut files: Vec<String> = requests.iter().filter_map(file).collect();
    files.dedup();
    files
}

pub(super) fn commit(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// A sharded model beside the same weights for other programs.
fn sharded() -> Repository {
    let more = [
        ("pytorch_model.bin", "pickle"),
        ("onnx/model.onnx", "graph"),
        ("consolidated.safetensors", "copy"),
        ("original/x.pth", "x"),
        ("README.md", "about"),
        ("LICENSE", "terms"),
    ];
    Repository::of('a', fixture_files("qwen2-sharded-tiny", &more))
}

const NEEDED: [&str; 8] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

#[test]
fn a_model_is_fetched_by_its_id_and_then_found_without_any_request() {
    let hub = HubServer::new([("tiny/sharded", sharded())]);
    let desk = Desk::new(&hub);
    let (of_folder, _) = desk.trace(shown(&fixture("qwen2-sharded-tiny")), &[]);
    assert!(hub.requests().is_empty());
    let (fetched, said) = desk.trace("tiny/sharded", &[]);
    assert!(fetched == of_folder, "the same bytes as from the folder");

    // The announcement comes first: repository, commit, files, bytes and the folder.
    let bytes: usize =
        NEEDED.iter().map(|name| fs::read(fixture("qwen2-sharded-tiny").join(name)).unwrap().len()).sum();
    assert!((100_000..1_000_000).contains(&bytes));
    let snapshot = desk.cache("tiny/sharded").join("snapshots").join(commit('a'));
    let line = format!(
        "fetching tiny/sharded (main = commit {}) from {}: 8 files, {:.2} kB, into {}",
        commit('a'),
        hub.address,
        bytes as f64 / 1e3,
        snapshot.display()
    );
    assert!(said.contains(&line), "{line}\n{said}");
    let asked = asked_for(&hub.requests());
    assert_eq!(asked.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(NEEDED));
    assert_eq!(asked[0], "config.json");
    assert_eq!(asked.iter().position(|file| file.ends_with("of-00002.safetensors")), Some(6), "weights last");

    // The layout is that of huggingface_hub.
    let at = desk.cache("tiny/sharded");
    assert_eq!(fs::read_to_string(at.join("refs/main")).unwrap(), commit('a'));
    assert_eq!(fs::read_dir(at.join("refs")).unwrap().count(), 1);
    for name in NEEDED {
        let link = fs::read_link(snapshot.join(name)).unwrap();
        assert!(link.starts_with("../../blobs"), "{}", link.display());
    }
    assert_eq!(fs::read_dir(at.join("blobs")).unwrap().count(), NEEDED.len());

    for offline in ["0", "1"] {
        let (again, said) = desk.trace("tiny/sharded", &[("HF_HUB_OFFLINE", offline)]);
        assert!(again == of_folder && !said.contains("fetching"), "{said}");
    }
    assert!(hub.requests().is_empty());
}

#[test]
fn a_cache_that_another_program_filled_is_used_as_it_is() {
    let hub = HubServer::new([]);
    let desk = Desk::new(&hub);
    // As `hf download tiny/other --revision v1` leaves it.
    let at = desk.path("cache/models--tiny--other");
    let snapshot = at.join("snapshots").join(commit('b'));
    for folder in [&snapshot, &at.join("blobs"), &at.join("refs")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(at.join("refs/v1"), commit('b')).unwrap();
    for (name, bytes) in fixture_files("qwen2-sharded-tiny", &[]) {
        let blob = if name.ends_with(".safetensors") { sha256(&bytes) } else { format!("git-{name}") };
        fs::write(at.join("blobs").join(&blob), bytes).unwrap();
        symlink(Path::new("../../blobs").join(blob), snapshot.join(name)).unwrap();
    }
    let cache = desk.path("cache");
    let cache = [("HF_HUB_CACHE", shown(&cache))];
    let (of_folder, _) = desk.trace(shown(&fixture("qwen2-sharded-tiny")), &[]);
    for id in ["tiny/other@v1".to_owned(), format!("tiny/other@{}", commit('b'))] {
        assert!(desk.trace(&id, &cache).0 == of_folder);
    }
    assert!(hub.requests().is_empty());
    // No such ref is there.
    let mut other = desk.command(&["model", "pull", "tiny/other"]);
    other.envs(cache).env("HF_HUB_OFFLINE", "1");
    let other = ended(other);
    assert!(other.code == Some(1) && other.err.contains("refs/main is not there"), "{}", other.err);
    assert!(other.err.contains("HF_HUB_OFFLINE"), "{}", other.err);
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_ended() {
    let files = fixture_files("llama-tiny", &[]);
    let weights = files["model.safetensors"].clone();
    let hub = HubServer::new([("tiny/llama", Repository::of('a', files))]);
    let desk = Desk::new(&hub);
    hub.stall(Some(("model.safetensors", 300_000)));
    let mut child = desk.command(&["model", "pull", "tiny/llama"]).spawn().unwrap();
    hub.wait_until_stalled();
    let part = desk.blob("tiny/llama", &weights).with_extension("part");
    while fs::metadata(&part).map_or(0, |part| part.len()) < 200_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    hub.stall(None);
    hub.requests();

    let here = fs::metadata(&part).unwrap().len();
    let resumed = done(desk.ended(&["model", "pull", "tiny/llama"]));
    assert!(resumed.err.contains(": 1 file, ") && resumed.err.contains(" are here)"), "{}", resumed.err);
    let requests = hub.requests();
    assert_eq!(asked_for(&requests), ["model.safetensors"]);
    assert!(requests.iter().any(|request| request.ends_with(&format!("bytes={here}-"))), "{requests:?}");
    assert!(fs::read(desk.blob("tiny/llama", &weights)).unwrap() == weights);

    // Killed between the last byte and the rename: the part is whole.
    fs::rename(desk.blob("tiny/llama", &weights), &part).unwrap();
    done(desk.ended(&["model", "pull", "tiny/llama"]));
    assert!(fs::read(desk.blob("tiny/llama", &weights)).unwrap() == weights);
    assert!(!part.exists());
}

#[test]
fn a_run_records_id_and_commit_and_later_commands_open_that_commit() {
    let renamed = |text: &str| fixture_files("llama-tiny", &[("README.md", text)]);
    let hub = HubServer::new([(
        "tiny/llama",
        Repository::of('b', renamed("second")).revision("v1.0", 'a', renamed("first")),
    )]);
    let desk = Desk::new(&hub);
    let run = |model: &str, out: &str| {
        done(desk.ended(&[
            "run",
            "--data",
            "sample",
            "--only",
            "t1/sr",
            "--limit",
            "1",
            "--sessions",
            "3",
            "--max-new-tokens",
            "4",
            "--model",
            model,
            "--out",
            out,
        ]));
        RunFolder::read(&desk.path(out)).unwrap().header.identity
    };
    let tagged = run("tiny/llama@v1.0", "tagged");
    assert_eq!((tagged.model.name.as_str(), tagged.model_commit), ("tiny/llama", Some(commit('a'))));
    let fetched = hub.requests();
    // The weights of the other commit are the same: a link makes them its own.
    let newest = run("tiny/llama", "newest");
    assert_eq!((newest.model.name.as_str(), newest.model_commit), ("tiny/llama", Some(commit('b'))));
    assert_eq!(newest.model.digest, tagged.model.digest);
    assert!(fetched.iter().any(|request| request.contains("/cdn/")));
    assert!(asked_for(&hub.requests()).is_empty(), "every blob was here");

    // `main` moves on; the run's model does not.
    hub.set("tiny/llama", Repository::of('c', fixture_files("qwen3-tiny", &[])));
    done(desk.ended(&["model", "pull", "tiny/llama"]));
    done(desk.ended(&["causes", "newest", "--controls", "0"]));
    let moved = desk.failure(&["causes", "newest", "--model", "tiny/llama"]);
    assert!(moved.contains("its digest is"), "{moved}");
    let absent = desk.failure(&["model", "pull", "tiny/llama@v2"]);
    assert!(absent.contains("tiny/llama has no revision \"v2\"") && absent.contains("tag"), "{absent}");
}

#[test]
fn a_gated_repository_is_refused_with_its_page_and_opens_with_a_token() {
    let gated = Repository { gated: true, ..Repository::of('a', fixture_files("llama-tiny", &[])) };
    let private = Repository { private: true, ..gated.clone() };
    let hub = HubServer::new([("meta/gated", gated), ("meta/private", private)]);
    let desk = Desk::new(&hub);
    let page = format!("{}/meta/gated", hub.address);
    let pull = |id: &str, token: Option<&str>| {
        let mut command = desk.command(&["model", "pull", id]);
        token.map(|token| command.env("HF_TOKEN", token));
        ended(command)
    };
    let bare = pull("meta/gated", None).err;
    assert!(
        bare.contains("meta/gated is gated") && bare.contains(&page) && bare.contains("set HF_TOKEN"),
        "{bare}"
    );
    let wrong = pull("meta/gated", Some("hf_secret")).err;
    assert!(wrong.contains("the token in use may not read it") && wrong.contains(&page), "{wrong}");
    assert!(!wrong.contains("hf_secret"));
    let hidden = pull("meta/private", None).err;
    assert!(
        hidden.contains("no repository meta/private without a token") && hidden.contains("HF_TOKEN"),
        "{hidden}"
    );
    done(pull("meta/private", Some(TOKEN)));
    // The file that `hf auth login` writes.
    fs::write(desk.path("hf/token"), format!("{TOKEN}\n")).unwrap();
    done(pull("meta/gated", None));
}

#[test]
fn a_model_that_cannot_run_is_refused_before_its_weights_are_fetched() {
    let config = fs::read_to_string(fixture("llama-tiny/config.json")).unwrap();
    let other = config.replace("\"model_type\": \"llama\"", "\"model_type\": \"mamba2\"");
    assert_ne!(config, other);
    let awq = config.replacen('{', "{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4},", 1);
    let without = |name: &str| {
        let mut files = fixture_files("llama-tiny", &[("pytorch_model.bin", "pickle")]);
        files.remove(name);
        files.remove("reference.safetensors");
        Repository::of('a', files)
    };
    let gguf = Repository {
        gguf: Some("rwkv7".to_owned()),
        ..Repository::of('a', fixture_files("gguf-llama", &[]))
    };
    let hub = HubServer::new([
        ("o/mamba", Repository::of('a', fixture_files("llama-tiny", &[("config.json", &other)]))),
        ("o/awq", Repository::of('a', fixture_files("llama-tiny", &[("config.json", &awq)]))),
        ("o/bin", without("model.safetensors")),
        ("o/spiece", without("tokenizer.json")),
        ("o/rwkv", gguf),
    ]);
    let desk = Desk::new(&hub);
    for (id, part) in [("o/mamba", "mamba2"), ("o/awq", "awq")] {
        for args in [&["model", "pull", id][..], &["heads", id], &["model", "plan", id]] {
            let message = desk.failure(args);
            assert!(message.contains(part), "{message}");
            assert!(asked_for(&hub.requests()).iter().all(|file| file == "config.json"));
        }
        assert!(desk.failure(&["model", "pull", id]).contains("its weights were not fetched"));
        hub.requests();
    }
    for (id, part) in
        [("o/bin", "it has config.json"), ("o/spiece", "no tokenizer.json"), ("o/rwkv", "rwkv7")]
    {
        let message = desk.failure(&["model", "pull", id]);
        assert!(message.contains(part) && message.contains("othing was fetched"), "{message}");
        assert!(asked_for(&hub.requests()).is_empty());
    }
}

#[test]
fn a_broken_cache_is_told_and_mended() {
    let files = fixture_files("llama-tiny", &[]);
    let weights = files["model.safetensors"].clone();
    let hub = HubServer::new([("tiny/llama", Repository::of('a', files))]);
    let desk = Desk::new(&hub);
    let blob = desk.blob("tiny/llama", &weights);
    let pull = || done(desk.ended(&["model", "pull", "tiny/llama"]));
    pull();
    // Other bytes of the same length.
    let mut other = weights.clone();
    other[300_000] ^= 1;
    fs::write(&blob, &other).unwrap();
    fs::File::open(&blob)
        .unwrap()
        .set_modified(std::time::SystemTime::now() + Duration::from_secs(9))
        .unwrap();
    let damaged = desk.failure(&["heads", "tiny/llama"]);
    assert!(
        damaged.contains("damaged") && damaged.contains("`palimpsest model pull tiny/llama@main`"),
        "{damaged}"
    );
    hub.requests();
    done(desk.ended(&["model", "pull", "tiny/llama@main"]));
    assert_eq!(asked_for(&hub.requests()), ["model.safetensors"]);
    assert!(fs::read(&blob).unwrap() == weights);

    // A blob that is gone, and one that was cut.
    fs::remove_file(&blob).unwrap();
    done(desk.ended(&["model", "info", "tiny/llama"]).err.contains("not here yet").then(pull).unwrap());
    fs::write(&blob, &weights[..9]).unwrap();
    pull();
    assert!(fs::read(&blob).unwrap() == weights);
    hub.requests();
    done(desk.ended(&["model", "pull", "tiny/llama", "--force"]));
    assert_eq!(asked_for(&hub.requests()).len(), 5, "all of it again");
}

#[test]
fn a_gguf_repository_gives_its_only_file_or_lists_them() {
    let one = fixture_files("gguf-llama", &[("mmproj-F16.gguf", "eye"), ("README.md", "")]);
    let bytes = one["model.gguf"].clone();
    let named = |name: &str| (name.to_owned(), bytes.clone());
    let hub = HubServer::new([
        ("o/one", Repository { gguf: Some("llama".to_owned()), ..Repository::of('a', one) }),
        ("o/many", Repository::of('b', [named("m-Q4_K_M.gguf"), named("m-Q8_0.gguf")])),
    ]);
    let desk = Desk::new(&hub);
    let info = |id: &str| done(desk.ended(&["model", "info", id])).out;
    done(desk.ended(&["model", "pull", "o/one"]));
    assert_eq!(asked_for(&hub.requests()), ["model.gguf"]);
    assert!(info("o/one").contains("o/one:model.gguf"));
    let none = desk.failure(&["heads", "o/many:m-Q5.gguf"]);
    assert!(none.contains("o/many has no file m-Q5.gguf"), "{none}");
    let many = desk.failure(&["model", "pull", "o/many"]);
    let size = format!("{:.2} kB", bytes.len() as f64 / 1e3);
    assert!(many.contains("o/many has 2 GGUF files; choose one as o/many:FILE"), "{many}");
    assert!(many.contains(&format!("m-Q4_K_M.gguf  {size}\n  m-Q8_0.gguf  {size}")), "{many}");
    assert!(asked_for(&hub.requests()).is_empty());
    done(desk.ended(&["model", "pull", "o/many@main:m-Q8_0.gguf"]));
    assert!(info("o/many:m-Q8_0.gguf").contains("llama"));
    assert!(
        desk.failure(&["model", "plan", "o/many:m-Q4_K_M.gguf"]).contains("model pull o/many:m-Q4_K_M.gguf")
    );
}

#[test]
fn a_name_with_a_slash_is_a_path_if_one_is_there_and_else_both_readings_are_told() {
    let hub = HubServer::new([("tiny/sharded", sharded())]);
    let desk = Desk::new(&hub);
    let missing = desk.failure(&["heads", "runs/model"]);
    assert!(
        missing.contains("runs/model is no file or folder here")
            && missing.contains("no repository runs/model"),
        "{missing}"
    );
    let elsewhere = Desk { endpoint: "http://127.0.0.1:9".to_owned(), ..Desk::new(&hub) };
    let unreachable = elsewhere.failure(&["heads", "runs/model"]);
    assert!(
        unreachable.contains("no file or folder here")
            && unreachable.contains("could not be looked up at http://127.0.0.1:9"),
        "{unreachable}"
    );
    let path = desk.failure(&["heads", "./runs/model"]);
    assert!(path.contains("there is no file or folder ./runs/model"), "{path}");
    hub.requests();

    fs::create_dir_all(desk.path("tiny")).unwrap();
    symlink(fixture("qwen2-sharded-tiny"), desk.path("tiny/sharded")).unwrap();
    let info = done(desk.ended(&["model", "info", "tiny/sharded"])).out;
    assert!(info.contains("qwen2"), "{info}");
    assert!(hub.requests().is_empty());
}

#[test]
fn a_plan_fetches_the_config_alone_and_a_tokeniser_comes_without_weights() {
    let hub = HubServer::new([("tiny/sharded", sharded())]);
    let desk = Desk::new(&hub);
    let plan = done(desk.ended(&["model", "plan", "tiny/sharded", "--context", "512", "--memory", "8"])).out;
    assert!(plan.contains("tiny/sharded"), "{plan}");
    assert_eq!(asked_for(&hub.requests()), ["config.json"]);
    done(desk.ended(&["data", "stats", "sample", "--model", "tiny/sharded"]));
    let asked = asked_for(&hub.requests());
    assert!(
        asked.contains(&"tokenizer.json".to_owned())
            && !asked.iter().any(|file| file.ends_with(".safetensors")),
        "{asked:?}"
    );
    done(desk.ended(&["data", "stats", "sample", "--model", "tiny/sharded"]));
    assert!(hub.requests().is_empty());
}

#[test]
fn the_token_goes_to_the_hub_and_not_where_it_redirects_to() {
    let files = fixture_files("llama-tiny", &[]);
    let weights = files["model.safetensors"].clone();
    let repository = Repository { gated: true, ..Repository::of('a', files) };
    let pull = |desk: &Desk| {
        let mut command = desk.command(&["model", "pull", "tiny/llama"]);
        command.env("HF_TOKEN", TOKEN);
        done(ended(command));
        assert!(fs::read(desk.blob("tiny/llama", &weights)).unwrap() == weights);
    };
    let bearer = Some(format!("Bearer {TOKEN}"));

    // Another port is another server.
    let far = HubServer::new([("tiny/llama", repository.clone())]);
    let hub = HubServer::new([("tiny/llama", repository.clone())]);
    hub.redirect_to(&far.address);
    pull(&Desk::new(&hub));
    let (own, others) = (hub.tokens(), far.tokens());
    assert!(own.len() > 2 && own.iter().all(|token| *token == bearer), "{own:?}");
    assert!(!others.is_empty() && others.iter().all(Option::is_none), "{others:?}");

    // A private repository gives nothing without the token, at any of its addresses.
    let hub = HubServer::new([("tiny/llama", Repository { private: true, ..repository })]);
    hub.redirect_to("");
    pull(&Desk::new(&hub));
    let own = hub.tokens();
    assert!(own.iter().all(|token| *token == bearer), "{own:?}");
}

/// A mirror that names neither blobs nor sizes.
pub(super) fn without_blobs(listing: &mut Value) {
    for sibling in listing["siblings"].as_array_mut().unwrap() {
        *sibling = json!({"rfilename": sibling["rfilename"]});
    }
}

#[test]
fn a_mirror_without_blobs_in_its_listing_names_them_by_its_headers() {
    let files = fixture_files("llama-tiny", &[]);
    let (weights, config) = (files["model.safetensors"].clone(), files["config.json"].clone());
    let repository = Repository { listing: Some(without_blobs), ..Repository::of('a', files) };
    let hub = HubServer::new([("tiny/llama", repository)]);
    let desk = Desk::new(&hub);
    done(desk.ended(&["model", "pull", "tiny/llama"]));
    assert!(fs::read(desk.blob("tiny/llama", &weights)).unwrap() == weights);
    let small = desk.cache("tiny/llama").join("blobs").join(small_name(&config));
    assert!(fs::read(small).unwrap() == config);
    assert!(done(desk.ended(&["model", "info", "tiny/llama"])).out.contains("llama"));
}
