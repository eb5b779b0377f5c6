//! No process of a memory system outlives a run, its environment holds no keys, and calls that all fail are no success.
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use palimpsest::memory::system::http_server::{HttpServer, Response};
use palimpsest::memory::system::rows::CallRow;
use serde_json::Value;

use super::memory_runs::run_command;
use super::*;

/// Far longer than anything here takes: only a failing test waits for it.
const LONGEST: Duration = Duration::from_secs(120);

fn until(what: &str, reached: impl Fn() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < LONGEST, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// Command lines of the processes that name a path; zombies have none.
fn living(named: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let commands = commands.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
    commands.filter(|command| command.contains(shown(named))).collect()
}

#[test]
fn no_process_of_a_memory_system_is_left_when_a_run_is_stopped_or_killed() {
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(130)), ("-HUP", Some(130)), ("-KILL", None)] {
        let root = tempfile::tempdir().unwrap();
        let (out, ids) = (root.path().join("run"), root.path().join("ids"));
        // It also tries to keep open what tells its supervisor of the end.
        let behaviour = format!("'clings={}' holds hangs=ingest", ids.display());
        let mut child = run_command(&out, &behaviour, &["--no-attention"]).spawn().unwrap();
        until("the system and two sessions below it run", || lines(&ids) == 3);
        // The run, its supervisor, the system, and its children.
        assert!(living(&ids).len() >= 5, "{signal}: {:?}", living(&ids));
        // The first asks the run to stop, which waits for the session under way; the second ends it.
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(ended.code(), code, "{signal}");
        until(&format!("{signal}: {:?}", living(&ids)), || living(&ids).is_empty());
    }
}

#[test]
fn no_process_of_a_memory_system_is_left_by_a_time_out_or_by_the_end() {
    for (hangs, code) in [("", Some(0)), ("hangs=search", Some(1)), ("dies=search", Some(1))] {
        let root = tempfile::tempdir().unwrap();
        let (out, ids) = (root.path().join("run"), root.path().join("ids"));
        let more = ["--no-attention", "--memory-timeout", "search=1"];
        let more = if hangs == "hangs=search" { &more[..] } else { &more[..1] };
        let run = ended(run_command(&out, &format!("'clings={}' {hangs}", ids.display()), more));
        assert_eq!(run.code, code, "{hangs}: {}", run.err);
        assert!(lines(&ids) > 0, "{hangs}");
        until(&format!("{hangs}: {:?}", living(&ids)), || living(&ids).is_empty());
    }
}

#[test]
fn a_system_that_closes_its_output_and_stays_is_noticed_before_its_time_is_up() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let run = ended(run_command(&out, "mute=search", &["--no-attention"]));
    assert_eq!(run.code, Some(1), "{}", run.err);
    for row in RunFolder::read(&out).unwrap().answers {
        let error = row.error.unwrap();
        assert!(error.contains("the process closed its output without a reply"), "{error}");
    }
}

#[test]
fn a_system_that_fails_to_start_after_ctrl_c_was_interrupted() {
    let root = tempfile::tempdir().unwrap();
    let (out, ids) = (root.path().join("run"), root.path().join("ids"));
    let behaviour = format!("'clings={}' hangs=hello", ids.display());
    let mut child = run_command(&out, &behaviour, &["--no-attention"]).spawn().unwrap();
    until("the system runs", || lines(&ids) == 3);
    let kill = |signal: &str, id: &str| {
        // The last ones may have ended with the first.
        Command::new("kill").args([signal, id]).stderr(Stdio::null()).status().unwrap();
    };
    kill("-INT", &child.id().to_string());
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("Ctrl-C again stops at once")));
    std::fs::read_to_string(&ids).unwrap().lines().for_each(|id| kill("-KILL", id));
    assert!(said.any(|line| line.starts_with("error: ")));
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_run_whose_program_is_deleted_starts_its_systems() {
    let root = tempfile::tempdir().unwrap();
    // Beside the program, where it can be linked: a copy that is still open for writing elsewhere does not start.
    let program = Path::new(env!("CARGO_BIN_EXE_palimpsest"));
    let beside = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let linked = beside.path().join("palimpsest");
    std::fs::hard_link(program, &linked).unwrap();
    let mut command = Command::new(&linked);
    command.args(run_command(&root.path().join("run"), "", &["--no-attention"]).get_args());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::fs::remove_file(&linked).unwrap();
    let run = child.wait_with_output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
}

fn calls(out: &Path) -> Vec<CallRow> {
    let cases = std::fs::read_dir(out.join("memory/kept")).into_iter().flatten().flatten();
    let files = cases.filter_map(|case| std::fs::read_to_string(case.path().join("calls.jsonl")).ok());
    files.flat_map(|text| rows(&text)).collect()
}

/// A last line that is being written is left out.
fn rows(text: &str) -> Vec<CallRow> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_local_models_server_has_a_key_of_its_own_and_ends_with_a_killed_run() {
    let root = tempfile::tempdir().unwrap();
    // A path that no other process names.
    let own = root.path().join("model");
    std::os::unix::fs::symlink(model(), &own).unwrap();
    let asking = |out: &Path, behaviour: &str| {
        let mut command = run_command(out, &format!("asks careless {behaviour}"), &["--no-attention"]);
        command.arg("--memory-model").arg(&own).env("PALIMPSEST_API_KEY", "sk-of-another-server");
        command
    };
    let out = root.path().join("run");
    let run = ended(asking(&out, ""));
    assert_eq!(run.code, Some(0), "{}", run.err);
    let statuses: Vec<u16> = calls(&out).iter().map(|row| row.status).collect();
    assert!(statuses.len() >= 6 && statuses.iter().all(|status| *status == 200), "{statuses:?}");

    let out = root.path().join("killed");
    let mut child = asking(&out, "hangs=finish").spawn().unwrap();
    until("the model is asked", || !calls(&out).is_empty());
    let serves = |command: &String| command.contains(" serve ");
    assert_eq!(living(&own).iter().filter(|command| serves(command)).count(), 1, "{:?}", living(&own));
    child.kill().unwrap();
    child.wait().unwrap();
    until("the server ends", || living(&own).is_empty());
}

#[test]
fn a_memory_system_gets_no_key_that_is_not_named() {
    let root = tempfile::tempdir().unwrap();
    let names = root.path().join("names");
    let behaviour = format!("'environment={}'", names.display());
    let with = |out: &str, more: &[&str]| {
        let out = root.path().join(out);
        let mut command = run_command(&out, &behaviour, &["--no-attention", "--limit-probes", "1"]);
        command.args(more).env("OPENAI_API_KEY", "sk-of-this-test").env("PALIMPSEST_API_KEY", "sk-other");
        command.env("HF_TOKEN", "hf-of-this-test").env("LC_TIME", "C").env("MADE_UP", "made-up-value");
        let run = ended(command);
        assert_eq!(run.code, Some(0), "{}", run.err);
        let told = std::fs::read_to_string(&names).unwrap();
        let header: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
        for (name, bytes) in files(&out) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            for value in ["sk-of-this-test", "sk-other", "hf-of-this-test", "made-up-value", "made-up-here"] {
                assert!(!text.contains(value), "{value} in {}", name.display());
            }
        }
        let recorded: Vec<String> = serde_json::from_value(header["memory_env"].clone()).unwrap();
        // The interpreter may set names of its own.
        assert!(recorded.iter().all(|name| told.lines().any(|line| line == name)), "{recorded:?} {told}");
        recorded
    };
    let plain = with("plain", &[]);
    let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
    assert!(has(&plain, "PATH") && has(&plain, "LC_TIME"), "{plain:?}");
    let told = std::fs::read_to_string(&names).unwrap();
    for name in ["OPENAI_API_KEY", "PALIMPSEST_API_KEY", "HF_TOKEN", "MADE_UP"] {
        assert!(!told.lines().any(|line| line == name), "{name}: {told}");
    }
    let named = with("named", &["--memory-env", "OPENAI_API_KEY", "--memory-env", "GIVEN=made-up-here"]);
    assert!(has(&named, "OPENAI_API_KEY") && has(&named, "GIVEN") && !has(&named, "HF_TOKEN"), "{named:?}");
}

#[test]
fn calls_that_all_fail_are_no_success() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let refusing = HttpServer::start(std::sync::Arc::new(|_| Response::error(401, "wrong key"))).unwrap();
    let refusing_model = format!("{}/v1#m", refusing.url());
    // The system reports success for every session.
    let run =
        ended(run_command(&out, "asks careless", &["--no-attention", "--memory-model", &refusing_model]));
    assert_eq!(run.code, Some(1), "{}", run.err);
    let rows = RunFolder::read(&out).unwrap().answers;
    for row in &rows {
        let error = row.error.as_deref().unwrap();
        assert!(error.contains("calls to the language model failed, the last with status 401"), "{error}");
    }
    let mixed = root.path().join("mixed");
    let more = ["--no-attention", "--memory-model", &refusing_model, "--conditions", "none"];
    let run = ended(run_command(&mixed, "asks careless", &more));
    assert_eq!(run.code, Some(3), "{}", run.err);

    // Its sound answers, judged by a model that refuses every call.
    let mut judge = command(["judge", "--retries", "0", "--judge", &refusing_model]);
    judge.arg(&mixed);
    let judged = ended(judge);
    assert_eq!(judged.code, Some(1), "{}", judged.err);
}
