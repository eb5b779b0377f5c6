//! Memory systems as conditions of a run.
use palimpsest::memory::system::http_server::{HttpServer, Request, Response};
use serde_json::{Value, json};

use super::resume::{interrupt, signal};
use super::*;

fn scripted(behaviour: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/memory/scripted.py");
    format!("kept=python3 '{}' {behaviour}", path.display())
}

/// A run of the first sample cases with a memory system.
fn over_sample(out: &Path, cases: &str, system: &str) -> Command {
    let mut command = command(["run", "--max-new-tokens", "4", "--context", "4096", "--allow-longer"]);
    command.args(["--data", "sample", "--sessions", "6", "--limit", cases]).arg("--model").arg(model());
    command.arg("--memory").arg(system).arg("--out").arg(out);
    command
}

/// A run of the first sample case with the scripted system.
pub(super) fn run_command(out: &Path, behaviour: &str, more: &[&str]) -> Command {
    let mut command = over_sample(out, "1", &scripted(behaviour));
    command.args(more);
    command
}

#[test]
fn memories_are_shown_by_rank_with_the_role_of_their_evidence() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let more = ["--memory-k", "4,2", "--memory-show", "ranked,perfect", "--conditions", "none"];
    let run = ended(run_command(&out, "", &more));
    assert_eq!(run.code, Some(0), "{}", run.err);
    let folder = RunFolder::read(&out).unwrap();
    let names: Vec<&str> = folder.header.identity.condition_names();
    assert_eq!(names, ["none", "memory-kept", "memory-kept-k2", "memory-kept-perfect"]);
    assert_eq!(folder.header.identity.memory[0].system.name, "scripted");
    let memories = |condition: &str, probe: &str| {
        let row = folder.answers.iter().find(|row| row.condition == condition && row.probe == probe).unwrap();
        assert_eq!(row.context.as_deref(), Some(&[][..]), "no session of the history was shown");
        row.memories.clone().unwrap_or_default()
    };
    for probe in ["SR", "PR", "IPA"] {
        let four = memories("memory-kept", probe);
        assert_eq!(four.len(), 4, "{probe}");
        assert_eq!(memories("memory-kept-k2", probe), four[..2], "cut from the same search");
        assert!(memories("none", probe).is_empty());
    }
    // The store has one span per memory, with its sources' roles; the query's masses cover all of them.
    let planned = &folder.plan[0];
    let row = folder.answers.iter().find(|row| row.condition == "memory-kept-perfect" && row.probe == "SR");
    let store = folder.attention(row.unwrap()).unwrap().unwrap();
    let roles: Vec<Option<&str>> = (store.keys.iter())
        .filter(|span| span.label.starts_with("memory["))
        .map(|span| span.role.as_deref())
        .collect();
    assert_eq!(roles.len(), memories("memory-kept-perfect", "SR").len());
    assert!(roles.contains(&Some("old")) && roles.contains(&Some("new")), "{roles:?}");
    assert!(roles.iter().all(Option::is_some), "perfect retrieval shows evidence alone: {roles:?}");
    // The history was written once for all conditions.
    let case = out.join("memory/kept").join(&planned.case);
    let events = std::fs::read_to_string(case.join("events.jsonl")).unwrap();
    let ends = events.lines().filter(|line| line.contains("\"events\":")).count();
    assert_eq!(ends, 6 + 1, "six sessions and the end");
    assert_eq!(std::fs::read_to_string(case.join("searches.jsonl")).unwrap().lines().count(), 3);
}

#[test]
fn a_question_whose_memories_lack_the_span_of_a_knock_out_is_left_out_by_name() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    // One memory has one role at most; perfect retrieval shows all evidence.
    let more = ["--memory-k", "1", "--memory-show", "ranked,perfect"];
    let more = [&more[..], &["--knockout", "query->old", "--knockout", "query->new"]].concat();
    let run = ended(run_command(&out, "", &more));
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    let folder = RunFolder::read(&out).unwrap();
    let mut left_out = 0;
    for open in ["memory-kept", "memory-kept-perfect"] {
        for role in ["old", "new"] {
            let name = format!("{open}-knockout-query-{role}");
            assert!(folder.header.identity.condition_names().contains(&name.as_str()), "{name}");
            for probe in &folder.plan[0].probes {
                let row = |condition: &str| {
                    folder.answers.iter().find(|row| row.condition == condition && row.probe == probe.id)
                };
                let store = folder.attention(row(open).unwrap()).unwrap().unwrap();
                let shows = store.keys.iter().any(|span| span.is(role));
                assert_eq!(probe.is_asked_under(&name), shows, "{name} {}", probe.id);
                assert_eq!(row(&name).is_some_and(|row| row.error.is_none()), shows, "{name} {}", probe.id);
                assert!(shows || open == "memory-kept", "{name} {}", probe.id);
                left_out += usize::from(!shows);
            }
        }
    }
    assert!((3..=6).contains(&left_out), "{left_out}");
    let (asked, case) = (18 - left_out, &folder.plan[0].case);
    assert_eq!(folder.answers.len(), asked);
    assert!(run.out.contains(&format!("{asked} of {asked} answers")), "{}", run.out);
    assert!(run.out.contains(&format!("{left_out} more are left out")), "{}", run.out);
    let told = "questions have no span that it names in their prompts and are left out under it";
    assert!(run.err.contains(told) && run.err.contains(&format!("(1 case: {case})")), "{}", run.err);
    // Nothing left to do.
    let again = ended(run_command(&out, "", &more));
    assert!(again.code == Some(0) && again.out.contains("0 new, 0 errors"), "{}{}", again.out, again.err);
    assert!(again.out.contains(&format!("{left_out} more are left out")), "{}", again.out);
}

#[test]
fn a_system_that_misbehaves_costs_its_own_rows_alone() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let run = ended(run_command(&out, "dies=search", &["--conditions", "none"]));
    assert_eq!(run.code, Some(3), "{}", run.err);
    let rows = RunFolder::read(&out).unwrap().answers;
    for row in &rows {
        match row.condition.as_str() {
            "none" => assert!(row.error.is_none(), "{row:?}"),
            _ => assert!(row.error.as_deref().unwrap().contains("memory system kept: search"), "{row:?}"),
        }
    }
    assert_eq!(rows.len(), 6);
}

#[test]
fn wrong_memory_flags_are_refused_before_anything_is_begun() {
    let root = tempfile::tempdir().unwrap();
    let refused = |more: &[&str], part: &str, code: i32| {
        let out = root.path().join("refused");
        let run = ended(run_command(&out, "", more));
        assert_eq!(run.code, Some(code), "{more:?}: {}", run.err);
        assert!(run.err.contains(part), "{more:?}: {}", run.err);
        assert!(!out.join("run.json").exists(), "nothing was begun");
    };
    refused(&["--memory", "kept=true"], "--memory names `kept` twice", 2);
    refused(&["--memory", "no name"], "is not NAME=VALUE", 2);
    refused(&["--memory-config", "other=settings.json"], "which no --memory names; there is kept", 2);
    refused(&["--memory-config", "kept=nowhere.json"], "--memory-config kept=nowhere.json", 1);
    for seconds in ["0", "soon", "search=", "ingest=5", "nan"] {
        refused(&["--memory-timeout", seconds], "--memory-timeout", 2);
    }
    refused(&["--memory-env", "NAME_THAT_IS_NOT_SET"], "NAME_THAT_IS_NOT_SET is not set", 2);
    refused(&["--memory-env", "no name=1"], "is no name of an environment variable", 2);
    refused(&["--memory-show", "answer"], "it gives no answers of its own", 1);
    refused(&["--memory", "gone=/nowhere/at-all"], "is it installed, and the path right?", 1);
}

#[test]
fn e16_a_search_that_takes_longer_is_given_the_time_by_a_flag() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let with = |limit: &str| {
        ended(run_command(
            &out,
            "slow=2",
            &["--limit-probes", "1", "--no-attention", "--memory-timeout", limit],
        ))
    };
    let cut = with("search=0.5");
    assert_eq!(cut.code, Some(1), "all answers failed: {}", cut.err);
    let rows = RunFolder::read(&out).unwrap().answers;
    let error = rows[0].error.as_deref().unwrap();
    assert!(
        error.contains("no reply within 0.5 s") && error.contains("--memory-timeout search=1 "),
        "{error}"
    );
    // The limit is not part of the run's identity: the same folder resumes.
    let whole = with("30");
    assert_eq!(whole.code, Some(0), "{}", whole.err);
    let last = RunFolder::read(&out).unwrap().answers;
    assert!(
        last.iter().all(|row| row.error.is_none() && !row.memories.as_ref().unwrap().is_empty()),
        "{last:?}"
    );
}

#[test]
fn e10_writes_that_are_not_told_are_not_measured() {
    let root = tempfile::tempdir().unwrap();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mapping = root.path().join("mapping.json");
    // A server that reports neither ids nor its store; ending it is known to change nothing.
    let of_server = serde_json::json!({
        "name": "odd", "command": ["{python}", manifest.join("tests/adapters/odd_mcp.py"), "script.json"], "unit": "turn",
        "add": {"tool": "add", "arguments": {"text": "{content}"}},
        "search": {"tool": "search", "arguments": {"query": "{query}"}, "split": "\n\n"},
    });
    std::fs::write(&mapping, of_server.to_string()).unwrap();
    std::fs::write(root.path().join("script.json"), "{}").unwrap();
    let server =
        format!("kept=python3 '{}' '{}'", manifest.join("adapters/mcp.py").display(), mapping.display());
    for (name, system) in [("server", server), ("adapter", scripted("no-sources no-save"))] {
        let out = root.path().join(name);
        let mut run = over_sample(&out, "1", &system);
        run.arg("--no-attention");
        assert_eq!(ended(run).code, Some(0));
        let table = |format: &str| {
            let mut table = command(["table", "--memory", "--format", format]);
            table.arg(&out);
            ended(table).out
        };
        let (text, csv) = (table("text"), table("csv"));
        assert!(text.contains("not measured: written, kept, retrieved"), "{name}: {text}");
        assert!(!text.contains("written 0") && !text.contains("loss"), "{name}: {text}");
        let written: Vec<&str> = csv.lines().filter(|line| line.contains(",writing,written")).collect();
        assert!(!written.is_empty(), "{csv}");
        for line in written {
            let counts: Vec<&str> = line.split(',').collect();
            let unknown =
                |three: &[&str]| three[..2] == ["0", "0"] && three[2].parse().is_ok_and(|n: usize| n > 0);
            assert!(counts.windows(3).any(unknown), "{name}: {line}");
        }
    }
}

#[test]
fn a_system_at_an_address_of_this_machine_is_reached_without_the_proxy_and_redirects_to_nowhere() {
    let root = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let run = |name: &str, address: &str| {
        let mut run = over_sample(&root.path().join(name), "1", &format!("far={address}"));
        run.arg("--no-attention").env_remove("NO_PROXY").env_remove("no_proxy");
        run.env("HTTP_PROXY", format!("http://127.0.0.1:{closed}"));
        ended(run)
    };
    let server = HttpServer::start(std::sync::Arc::new(|request: Request| {
        let message: Value = serde_json::from_slice(&request.body).unwrap();
        let memories = json!([{"id": "a", "text": "tea"}]);
        Response::json(
            200,
            &json!({"id": message["id"], "ok": true, "name": "far", "can": [], "memories": memories}),
        )
    }));
    let server = server.unwrap();
    let reached = run("reached", &server.url());
    assert_eq!(reached.code, Some(0), "{}", reached.err);

    let elsewhere = crate::endpoint::serve(vec![crate::endpoint::ok("caught", "stop")]);
    let to = format!("Location: {}\r\n", elsewhere.address().replace("#some/model", ""));
    let redirect = crate::endpoint::Scripted::Reply("302 Found", to.leak(), String::new());
    let redirecting = crate::endpoint::serve(vec![redirect]);
    let refused = run("refused", &redirecting.address().replace("#some/model", ""));
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("answers 302") && elsewhere.seen().is_empty(), "{}", refused.err);
}

#[test]
fn another_system_is_another_run() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    assert_eq!(ended(run_command(&out, "", &[])).code, Some(0));
    let other = ended(run_command(&out, "no-save", &[]));
    assert_eq!(other.code, Some(1), "{}", other.err);
    assert!(other.err.contains("memory"), "{}", other.err);
    // A rerun starts the system but repeats no question and writes no history.
    let before = std::fs::read(out.join("answers.jsonl")).unwrap();
    let again = ended(run_command(&out, "", &[]));
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert_eq!(std::fs::read(out.join("answers.jsonl")).unwrap(), before);
}

#[test]
#[cfg(unix)]
fn a_run_with_a_system_killed_at_ten_places_ends_with_the_same_files() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("killed"));
    let more = ["--memory-show", "ranked,perfect", "--no-attention"];
    assert_eq!(ended(run_command(&whole, "", &more)).code, Some(0));
    let kept = |dir: &Path| {
        let mut all = Vec::new();
        for file in ["answers.jsonl", "memory/kept"] {
            let path = dir.join(file);
            let Ok(cases) = std::fs::read_dir(&path) else {
                all.push(std::fs::read(&path).unwrap_or_default());
                continue;
            };
            for case in cases.map(|entry| entry.unwrap()).filter(|entry| entry.file_name() != ".system") {
                for name in ["events.jsonl", "dump.jsonl", "searches.jsonl"] {
                    all.push(std::fs::read(case.path().join(name)).unwrap_or_default());
                }
            }
        }
        all
    };
    let length = || kept(&dir).iter().map(Vec::len).sum::<usize>();
    let total: usize = kept(&whole).iter().map(Vec::len).sum();
    let mut killed = 0;
    for tenth in 0..10 {
        let ended =
            interrupt(run_command(&dir, "", &more), || length() * 11 >= total * tenth, signal("-KILL"));
        killed += usize::from(ended.code.is_none());
    }
    assert!(killed >= 3, "{killed} of 10 were killed under way");
    let resumed = ended(run_command(&dir, "", &more));
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_eq!(kept(&dir), kept(&whole));
}

#[test]
fn shards_with_systems_are_merged_with_what_they_kept() {
    let root = tempfile::tempdir().unwrap();
    let shard = |i: &str| {
        let out = root.path().join(i);
        let mut command = over_sample(&out, "2", &scripted(""));
        command.args(["--no-attention", "--shard", &format!("{i}/2")]);
        let run = ended(command);
        assert_eq!(run.code, Some(0), "{}", run.err);
        out
    };
    let (first, second, out) = (shard("0"), shard("1"), root.path().join("merged"));
    let mut merge = command(["merge"]);
    merge.arg(&out).args([&first, &second]);
    let merged = ended(merge);
    assert_eq!(merged.code, Some(0), "{}", merged.err);
    for case in &RunFolder::read(&out).unwrap().plan {
        let searches = out.join("memory/kept").join(&case.case).join("searches.jsonl");
        assert_eq!(std::fs::read_to_string(searches).unwrap().lines().count(), 3);
    }
}

#[test]
fn a_judge_of_memories_is_asked_once_about_each_that_evidence_is_a_source_of() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    assert_eq!(ended(run_command(&out, "", &["--no-attention"])).code, Some(0));
    let judge = |server: &str| {
        let mut command = command(["judge", "--memories", "--retries", "0"]);
        command.arg(&out).arg("--judge").arg(server);
        ended(command)
    };
    let case = RunFolder::read(&out).unwrap().plan[0].case.clone();
    let file = out.join("memory/kept").join(&case).join("stated.jsonl");
    let unread = judge(&super::endpoints::server("no idea"));
    assert_eq!(unread.code, Some(1), "{}", unread.err);
    assert!(!file.exists(), "what was not said is not kept");
    let server = super::endpoints::server(r#"{"note": {"choice": "states", "reason": "it does"}}"#);
    let said = judge(&server);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let rows = std::fs::read_to_string(&file).unwrap();
    let of = |role: &str| rows.lines().filter(|line| line.contains(&format!("\"role\":\"{role}\""))).count();
    assert!(of("old") > 0 && of("new") > 0, "{rows}");
    assert_eq!(of("old") + of("new"), rows.lines().count(), "no memory without evidence among its sources");
    assert!(rows.lines().all(|line| line.contains("\"states\":true")), "{rows}");
    let again = judge(&server);
    assert!(again.out.contains("8 from before, 0 new"), "nothing is asked twice of a judge: {}", again.out);
    let mut table = command(["table", "--memory"]);
    table.arg(&out);
    let table = ended(table).out;
    assert!(table.contains("level 2") && !table.contains("--memories"), "{table}");
}
