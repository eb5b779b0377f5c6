//! The page over run folders: its numbers match the files, it follows a growing folder, and it is served to this machine only.

mod access;
mod ask;
#[cfg(unix)]
mod socket;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use palimpsest::api::listen::MOST_STRANGERS;
use palimpsest::lens::Options;
use palimpsest::view::Server;
use palimpsest::view::access::Token;
use palimpsest::view::ask::Asker;
use palimpsest::view::file::{self, Filter};
use palimpsest::view::overview::{MakeOverview, Overviews, Screen};
use palimpsest::view::page::Parts;
use palimpsest::view::replies::{Query, reply};
use palimpsest::view::state::{Runs, Shared};
use palimpsest::view::table::Table;
use serde_json::Value;

use crate::cli::palimpsest;
use crate::serve::attacks::{MANY, held, only_the_oldest_is_closed};
use crate::synthetic_run::{self, HOSTILE, Plan};

fn runs(dir: &Path) -> Runs {
    Runs::open(&[dir.to_owned()], None).unwrap()
}

/// Says which folder it is of.
fn overview() -> MakeOverview {
    Arc::new(|dir, _| Ok(format!("<p>overview of {}</p>", dir.display())))
}

fn get(runs: &Runs, path: &str, query: &str) -> Value {
    let reply = reply(runs, path, &Query::of(query)).unwrap().unwrap();
    serde_json::from_str(&reply).unwrap()
}

/// A column of the table as text; empty where a row has no value.
fn column(table: &Table, name: &str) -> Vec<String> {
    let column = table.column(name).unwrap_or_else(|| panic!("no column {name}"));
    (0..table.n).map(|row| column.values.cell(row)).collect()
}

fn csv(path: &Path) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_path(path).unwrap().deserialize().map(Result::unwrap).collect()
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-6 * expected.abs().max(1.0)
}

#[test]
fn curves_and_maps_of_the_page_are_those_of_the_lens_tables() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan::hybrid());
    let lens = synthetic_run::lens(&dir, &Options::default()).unwrap();
    palimpsest::lens::table::write("", &lens, &root.path().join("tables")).unwrap();
    let runs = runs(&dir);

    // A row of the table is a mean over cases.
    let mut by_case: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in 0..runs.count() {
        let case = get(&runs, "/api/case", &format!("row={row}"));
        if case.get("curves").is_some() {
            by_case.entry(case["case"].as_str().unwrap().to_owned()).or_default().push(case);
        }
    }
    let of = |cases: &[Value], probe: &str, curve: &str, number: &str, layer: usize| {
        let case = cases.iter().find(|case| case["probe"] == probe)?;
        let at = case["layers"].as_array().unwrap().iter().position(|one| one["index"] == layer)?;
        let curves = case["curves"].as_array().unwrap();
        curves.iter().find(|one| one["key"] == curve)?.get(number)?.get(at)?.as_f64()
    };
    let mut compared = 0;
    for row in csv(&root.path().join("tables/curves.csv")) {
        let single = synthetic_run::PROBES.contains(&row["probe"].as_str());
        if !single || row["type"] != "all" || row["correctness"] != "all" || row["mean"].is_empty() {
            continue;
        }
        let (statistic, layer) = (row["statistic"].as_str(), row["layer"].parse::<usize>().unwrap());
        let (curve, noise) = match statistic.strip_suffix("_noise") {
            Some(curve) => (curve, "noise_"),
            None => (statistic, ""),
        };
        let number = format!("{noise}{}", row["scale"]);
        let cases = by_case.values().filter_map(|cases| of(cases, &row["probe"], curve, &number, layer));
        let values: Vec<f64> = cases.collect();
        let found = values.iter().sum::<f64>() / values.len() as f64;
        let expected: f64 = row["mean"].parse().unwrap();
        assert!(near(found, expected), "{statistic} {number} at {layer}: {found}, not {expected}");
        assert_eq!(values.len().to_string(), row["n"]);
        compared += 1;
    }
    assert!(compared >= 64, "{compared} numbers were compared");
}

#[test]
#[cfg(feature = "figures")]
fn sessions_of_a_map_are_those_of_the_table_of_the_first_case() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan::small());
    let done = palimpsest(["figures".as_ref(), dir.as_os_str()]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let runs = runs(&dir);
    let table = Table::of(&runs);
    let (cases, probes) = (column(&table, "case"), column(&table, "probe"));
    let mut compared = 0;
    for scale in ["mass", "density"] {
        for line in csv(&dir.join(format!("figures/strip-case-{scale}.csv"))) {
            let row = (0..table.n)
                .find(|row| cases[*row] == line["case"] && probes[*row] == line["probe"])
                .unwrap();
            let layers = get(&runs, "/api/layers", &format!("row={row}"));
            let case = get(&runs, "/api/case", &format!("row={row}"));
            let viewer = case["viewer"].as_u64().unwrap() as usize;
            let label = format!("session[{}]", line["session"]);
            let spans = layers["spans"].as_array().unwrap();
            let span = spans.iter().position(|one| *one == *label).unwrap();
            let layer = line["layer"].parse::<usize>().unwrap();
            let number = |of: &str| layers[of][viewer][layer][span].as_f64().unwrap();
            let found = if scale == "mass" { number("mass") } else { number("mass") / number("share") };
            assert!(
                near(found, line["value"].parse().unwrap()),
                "{label} at {layer}: {found}, not {}",
                line["value"]
            );
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn ten_thousand_rows_are_one_reply_below_three_megabytes() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan { cases: 1, ..Plan::small() });
    for file in ["plan.jsonl", "answers.jsonl", "verdicts.jsonl"] {
        let own = std::fs::read_to_string(dir.join(file)).unwrap();
        let all: Vec<String> =
            (0..3334).map(|at| own.replace("case-000", &format!("case-{at:05}"))).collect();
        std::fs::write(dir.join(file), all.concat()).unwrap();
    }
    let runs = runs(&dir);
    let table = reply(&runs, "/api/table", &Query::default()).unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&table).unwrap()["n"], 10_002);
    assert!(table.len() < 3_000_000, "{} bytes", table.len());
    let found = get(&runs, "/api/search", "q=CASE-01234 sr");
    assert_eq!(found["rows"], serde_json::json!([1234 * 3]));
}

#[test]
fn a_folder_that_grows_is_followed_and_keeps_its_row_numbers() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan::small());
    let whole = std::fs::read_to_string(dir.join("answers.jsonl")).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let torn = lines[5].split_at(lines[5].len() / 2).0;
    std::fs::write(dir.join("answers.jsonl"), lines[..5].concat() + torn).unwrap();
    let mut runs = runs(&dir);
    let before = Table::of(&runs);
    let count =
        |table: &Table, word: &str| column(table, "state").iter().filter(|state| *state == word).count();
    assert_eq!((count(&before, "answered") + count(&before, "error"), count(&before, "not yet")), (5, 13));
    let stamp = runs.stamp();
    std::fs::write(dir.join("answers.jsonl"), &whole).unwrap();
    std::thread::sleep(Duration::from_millis(450));
    runs.refresh();
    assert_ne!(runs.stamp(), stamp);
    let after = Table::of(&runs);
    assert_eq!((count(&after, "answered"), count(&after, "error"), count(&after, "not yet")), (17, 1, 0));
    assert_eq!(column(&before, "case"), column(&after, "case"));
    // Rewritten by rename, as a run does at its end: nothing is counted twice.
    palimpsest_core::files::write_atomically(&dir.join("answers.jsonl"), whole.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(450));
    runs.refresh();
    assert_eq!(Table::of(&runs).columns, after.columns);
}

#[test]
fn ranks_come_in_beside_the_page_and_are_those_of_the_stores() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan::small());
    let shared = Shared::new(runs(&dir));
    assert_eq!(shared.held().ranked(), (0, 17));
    let stamp = shared.held().stamp();
    shared.read_ranks(&AtomicBool::new(false), true);
    let runs = shared.held();
    assert_eq!(runs.ranked(), (17, 17));
    assert_ne!(runs.stamp(), stamp);
    let table = Table::of(&runs);
    for row in 0..table.n {
        let case = get(&runs, "/api/case", &format!("row={row}"));
        for role in ["old", "new"] {
            let found = column(&table, &format!("rank_mass.{role}"))[row].clone();
            let Some(strip) = case["strip"].as_array().unwrap().iter().find(|one| one["key"] == "mass.query")
            else {
                assert_eq!(found, "", "an answer without attention has no rank");
                continue;
            };
            let values: Vec<f64> =
                strip["values"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            let sessions = case["sessions"].as_array().unwrap();
            let own = sessions.iter().position(|session| session["role"] == role).unwrap();
            let own = strip["values"][own].as_f64().unwrap();
            let rank = 1 + values.iter().filter(|value| **value > own).count();
            assert_eq!(found, rank.to_string(), "row {row}, {role}");
        }
    }
}

#[test]
fn a_folder_of_the_first_version_is_shown_with_a_word_about_its_age() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run-0.1.0/run");
    let runs = runs(&dir);
    let known = get(&runs, "/api/runs", "");
    let run = &known["runs"][0];
    assert_eq!((run["made_by"].as_str(), run["benchmark"].as_str()), (Some("0.1.0"), Some("stale")));
    assert!(run["warnings"].to_string().contains("made by palimpsest 0.1.0"), "{}", run["warnings"]);
    assert_eq!(run["counts"]["answered"], 6);
    let case = get(&runs, "/api/case", "row=0");
    assert!(
        case["strip"].as_array().unwrap().iter().any(|strip| strip["key"] == "density.query"),
        "{}",
        case["strip"]
    );
    assert!(case["sessions"].as_array().unwrap().iter().any(|session| session["turns"].is_array()));
    let layers = get(&runs, "/api/layers", "row=0");
    assert_eq!(layers["mass"].as_array().unwrap().len(), case["rows"].as_array().unwrap().len());
}

#[test]
fn a_run_of_each_benchmark_has_its_cases_roles_and_maps() {
    let root = tempfile::tempdir().unwrap();
    let model = model();
    for data in ["sample", "sample:subtlememory", "sample:knowme", "sample:memrewardbench", "sample:dose"] {
        let dir = root.path().join(data.replace(':', "-"));
        let (model, out) = (model.to_str().unwrap(), dir.to_str().unwrap());
        let arguments = format!(
            "run --data {data} --limit 1 --limit-probes 2 --max-new-tokens 4 --context 8192 --allow-longer --model {model} --out {out}"
        );
        let done = palimpsest(arguments.split(' '));
        assert!([Some(0), Some(3)].contains(&done.code), "{data}: {}", done.err);
    }
    // All of them on one page.
    let runs = runs(root.path());
    let known = get(&runs, "/api/runs", "");
    assert_eq!(known["runs"].as_array().unwrap().len(), 5, "{known}");
    let shared = Shared::new(runs);
    shared.read_ranks(&AtomicBool::new(false), true);
    let runs = shared.held();
    let table = Table::of(&runs);
    for run in known["runs"].as_array().unwrap() {
        let id = run["id"].as_str().unwrap();
        let row = (0..table.n).find(|row| column(&table, "run")[*row] == id).unwrap();
        let case = get(&runs, "/api/case", &format!("row={row}"));
        assert!(!case["query"].as_str().unwrap().is_empty(), "{id}");
        let sessions = case["sessions"].as_array().unwrap();
        let parts = |session: &&Value| session.get("role").is_some() || session.get("holds").is_some();
        assert!(sessions.iter().any(|session| parts(&session)), "{id}: {}", case["sessions"]);
        assert!(
            sessions.iter().filter(|one| one["shown"] == true).all(|one| one["turns"].is_array()),
            "{id}"
        );
        let strip = case["strip"].as_array().unwrap();
        assert!(strip.first().is_some_and(|one| one["key"].as_str().unwrap().starts_with("mass.")), "{id}");
        get(&runs, "/api/heads", &format!("row={row}&layer=1"));
    }
}

/// A served page; stops when dropped.
struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Token of pages that are served here.
const TOKEN: &str = "token-of-the-tests";

fn served(dir: &Path, asker: Option<Asker>) -> Served {
    served_by(dir, asker, Token::chosen(TOKEN).as_ref())
}

fn served_by(dir: &Path, asker: Option<Asker>, token: Option<&Token>) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let model = asker.map(|asker| ("at hand".to_owned(), Arc::new(OnceLock::from(asker))));
    let (runs, overviews) = (Shared::new(runs(dir)), Overviews::new(overview()));
    let server = Server::new(listener, runs, Parts::default(), overviews, model, token).unwrap();
    let (address, stop) = (server.address().unwrap(), Arc::<AtomicBool>::default());
    let own = Arc::clone(&stop);
    std::thread::spawn(move || server.run(&own).unwrap());
    Served { address, stop }
}

/// Status, head and body of a reply to a request with the token.
fn ask(served: &Served, request: &str, host: &str, body: &str) -> (u16, String, String) {
    let bearer = format!("Bearer {TOKEN}");
    exchange(served.address, request, &[("host", host), ("authorization", &bearer)], body)
}

fn exchange(
    address: SocketAddr,
    request: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let reply = String::from_utf8(reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
}

#[test]
fn the_page_is_served_to_this_machine_alone_under_a_strict_policy() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    let served = served(&dir, None);
    let own = served.address.to_string();
    let (status, head, page) = ask(&served, "GET /", &own, "");
    assert_eq!(status, 200);
    let policy = head.lines().find(|line| line.starts_with("content-security-policy:")).unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for outside in ["http://", "https://", "src=\"", "href=\"/"] {
        let loads = page.matches(outside).filter(|_| !outside.starts_with("http")).count();
        assert_eq!(loads, 0, "{outside}");
    }
    for (request, host, status) in [
        ("GET /api/table", own.as_str(), 200),
        ("GET /api/table", "evil.example", 403),
        ("GET /", "evil.example", 403),
        ("POST /api/table", own.as_str(), 405),
        ("POST /api/ask", own.as_str(), 404),
        ("GET /api/case?row=99", own.as_str(), 404),
        ("GET /api/case?row=x", own.as_str(), 400),
        ("GET /api/../run.json", own.as_str(), 404),
        ("GET /nothing", own.as_str(), 404),
    ] {
        let (found, _, body) = ask(&served, request, host, "");
        assert_eq!(found, status, "{request} of {host}: {body}");
    }
    let (listener, runs) = (TcpListener::bind("0.0.0.0:0").unwrap(), Shared::new(runs(&dir)));
    let outside = Server::new(listener, runs, Parts::default(), Overviews::new(overview()), None, None);
    assert!(outside.err().unwrap().to_string().contains("can be reached from other machines"));
}

#[test]
fn half_requests_keep_nobody_from_the_page_and_end_by_themselves() {
    let _alone = MANY.lock();
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    let served = served(&dir, None);
    let own = served.address.to_string();
    let body = format!(
        "POST /api/ask HTTP/1.1\r\nhost: {own}\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 500\r\n\r\n{{"
    );
    let mut silent = TcpStream::connect(served.address).unwrap();
    silent.write_all(body.as_bytes()).unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: {own}\r\n");
    let mut heads = held(&own, &head, MOST_STRANGERS);
    assert_eq!(ask(&served, "GET /api/table", &own, "").0, 200);
    only_the_oldest_is_closed(&mut heads);
    for request in [format!("GET http://{own}/"), format!("GET / HTTP/1.1\r\nhost: {own}\r\nx:")] {
        let (status, _, reply) = ask(&served, &request, &own, "");
        assert_eq!(status, 400, "{request}: {reply}");
    }
    // The rest of the body never comes.
    let mut reply = String::new();
    silent.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains("body_timeout"), "{reply}");
}

#[test]
fn an_overview_is_made_once_a_state_of_its_run_and_tells_why_there_is_none() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    let runs = runs(&dir);
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let overviews = Overviews::new(Arc::new(move |_, screen| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(if screen == Screen::Phone { "<p>narrow</p>" } else { "<p>made</p>" }.to_owned())
    }));
    let of = |overviews: &Overviews, query: &str| loop {
        let reply = overviews.reply(&runs, &Query::of(query)).unwrap();
        if reply.get("reading").is_none() {
            return reply;
        }
        assert_eq!(reply["reading"], 5, "files of two cases, of whose questions one was not measured");
        std::thread::sleep(Duration::from_millis(5));
    };
    let last = |overviews: &Overviews| of(overviews, "run=run");
    assert_eq!(last(&overviews)["html"], "<p>made</p>");
    assert_eq!((last(&overviews)["html"].as_str(), made.load(Ordering::SeqCst)), (Some("<p>made</p>"), 1));
    assert_eq!(of(&overviews, "run=run&screen=phone")["html"], "<p>narrow</p>");
    assert_eq!((last(&overviews)["html"].as_str(), made.load(Ordering::SeqCst)), (Some("<p>made</p>"), 2));
    let refused = last(&Overviews::new(Arc::new(|_, _| anyhow::bail!("nothing to see"))));
    assert_eq!(refused["error"], "nothing to see");
    assert!(overviews.reply(&runs, &Query::of("run=other")).is_err());
}

#[test]
fn verdicts_of_a_judge_that_cannot_judge_are_withheld_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    let path = dir.join("verdicts.jsonl");
    let missing = |dir: &Path| get(&runs(dir), "/api/case", "row=0")["missing"].to_string();
    assert!(missing(&dir).contains("palimpsest why"), "a label would count");
    let rows = std::fs::read_to_string(&path).unwrap().replace(synthetic_run::JUDGE, "local:smollm2-135m");
    std::fs::write(&path, rows).unwrap();
    let runs = runs(&dir);
    let table = Table::of(&runs);
    for name in ["verdict", "correct", "worth", "note"] {
        assert!(table.column(name).is_none(), "{name}");
    }
    assert!(column(&table, "question").iter().all(|text| !text.is_empty()));
    let case = get(&runs, "/api/case", "row=0");
    assert_eq!(case["verdicts"], serde_json::json!([]));
    assert!(!missing(&dir).contains("a verdict"), "there is one");
    assert!(!missing(&dir).contains("palimpsest why"), "its labels would be withheld");
    let run = &get(&runs, "/api/runs", "")["runs"][0];
    assert!(run["no_result"].as_str().unwrap().contains("about 135 million parameters"));
}

/// Replies that a file holds.
fn embedded(html: &str) -> &str {
    html.split("id=\"embedded\">").nth(1).unwrap().split("</script>").next().unwrap()
}

#[test]
fn a_file_holds_the_answers_that_are_asked_for_and_hostile_text_stays_text() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    synthetic_run::write(&dir, &Plan::small());
    let shared = Shared::new(runs(&dir));
    let mut filter = Filter::default();
    filter.push(&["correct", "verdict"], &["right".to_owned()]);
    filter.push(&["case"], &["case-000".to_owned(), "case-001".to_owned(), "case-002".to_owned()]);
    let mut contents = file::contents(&shared, &Parts::default(), &filter, &overview()).unwrap();
    let html = file::file(&shared, &Parts::default(), &contents).unwrap();
    let told = contents.bytes as f64 / html.len() as f64;
    assert!((0.7..1.4).contains(&told), "{} bytes were told, {} written", contents.bytes, html.len());
    let data = embedded(&html);
    let replies = &serde_json::from_str::<Value>(data).unwrap()["replies"];
    let right: Vec<usize> = (0..3)
        .flat_map(|case| synthetic_run::PROBES.map(|probe| (case, probe)))
        .enumerate()
        .filter(|(_, (case, probe))| (*case, *probe) != (1, "PR") && synthetic_run::correct(*case, probe))
        .map(|(row, _)| row)
        .collect();
    assert_eq!(contents.rows, right);
    assert_eq!(replies["/api/table"]["n"], right.len());
    let mut hostile = 0;
    for (number, row) in right.iter().enumerate() {
        let case = &replies[&format!("/api/case?row={number}")];
        assert_eq!(case["row"], number);
        hostile += usize::from(case["sessions"].to_string().contains("<script>alert"));
        let whole = get(&shared.held(), "/api/layers", &format!("row={row}"));
        let bytes = &replies[&format!("/api/layers?row={number}")]["mass8"];
        for (at, of_row) in whole["mass"].as_array().unwrap().iter().enumerate() {
            use base64::Engine as _;
            let packed = bytes["data"][at].as_str().unwrap();
            let packed = base64::engine::general_purpose::STANDARD.decode(packed).unwrap();
            let spans = of_row[0].as_array().unwrap().len();
            for (layer, of_layer) in of_row.as_array().unwrap().iter().enumerate() {
                let scale = bytes["scale"][at][layer].as_f64().unwrap();
                for (span, value) in of_layer.as_array().unwrap().iter().enumerate() {
                    let found = f64::from(packed[layer * spans + span]) / 255.0 * scale;
                    let value = value.as_f64().unwrap();
                    assert!((found - value).abs() <= scale * 0.5 / 255.0 + 1e-7, "{found} for {value}");
                }
            }
        }
    }
    assert!(hostile > 0, "case 0 holds {HOSTILE}");
    assert!(!data.contains('<') && !html.contains("<script>alert"));
    assert!(html.contains("connect-src 'none'"));
    assert!(html.contains("aria-label=\"Overview\"><p>overview of "), "shown without a script");
    // A smaller file has all rows in the table, and the first ones with their texts.
    contents.limit(contents.bytes / 2);
    let half = file::file(&shared, &Parts::default(), &contents).unwrap();
    let replies = &serde_json::from_str::<Value>(embedded(&half)).unwrap()["replies"];
    let held = (0..right.len()).filter(|row| replies.get(format!("/api/case?row={row}")).is_some()).count();
    assert!(half.len() < html.len() && held == contents.whole && held < right.len(), "{held}");
    assert_eq!(replies["/api/table"]["n"], right.len());
}

#[test]
fn a_command_writes_the_file_and_refuses_what_nobody_meant() {
    let root = tempfile::tempdir().unwrap();
    let (dir, out) = (root.path().join("run"), root.path().join("page.html"));
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    let names = ["view", dir.to_str().unwrap(), "--html", out.to_str().unwrap()];
    let done = palimpsest(names.iter().chain(&["--probe", "SR"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.err.contains("will hold 2 of 6 answers, about"), "{}", done.err);
    assert!(std::fs::read_to_string(&out).unwrap().contains("id=\"embedded\""));
    let done = palimpsest(names.iter().chain(&["--label", "carried"]));
    assert_eq!(done.code, Some(1));
    assert!(done.err.contains("none of 6 answers matches"), "{}", done.err);
    let done = palimpsest(["view", root.path().join("nowhere").to_str().unwrap()]);
    assert!(done.code == Some(1) && done.err.contains("holds no run"), "{}", done.err);
}

/// The tiny model.
fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny")
}

#[test]
fn stages_of_facts_in_memory_systems_are_those_of_the_losses() {
    use palimpsest::losses::Losses;
    use palimpsest::losses::fact::Level;
    use palimpsest::runs::judge_name::JudgeChoice;
    use palimpsest::runs::store::RunFolder;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    crate::losses::stores::write(dir);
    let shared = Shared::new(runs(dir));
    shared.read_ranks(&AtomicBool::new(false), true);
    let runs = shared.held();
    let table = Table::of(&runs);
    let names = ["case", "probe", "condition"].map(|name| column(&table, name));
    let stages =
        ["written", "kept", "retrieved", "shown"].map(|stage| column(&table, &format!("memory.{stage}")));
    let lost = column(&table, "lost");
    let folder = RunFolder::read(dir).unwrap();
    let losses = Losses::open(&folder, folder.benchmark().unwrap(), JudgeChoice::default()).unwrap().unwrap();
    let mut compared = 0;
    for condition in losses.systems.iter().flat_map(|system| &system.conditions) {
        for trace in &condition.traces[&Level::Source] {
            let is = |row: &usize| {
                (&names[0][*row], &names[1][*row], &names[2][*row])
                    == (&trace.case, &trace.probe, &condition.name)
            };
            let row = (0..table.n).find(is).unwrap();
            let fact = trace
                .facts
                .iter()
                .find(|fact| fact.side == Some(palimpsest::benchmarks::Side::Newer))
                .unwrap();
            let expected = fact.stages.map(|known| format!("{known:?}").to_lowercase());
            if stages[0][row].is_empty() {
                // Without an answer nothing was measured.
                assert_ne!(column(&table, "state")[row], "answered");
                continue;
            }
            for (stage, expected) in stages.iter().zip(&expected) {
                assert_eq!(stage[row], *expected, "{} {} {}", trace.case, trace.probe, condition.name);
            }
            assert_eq!(lost[row] == "not lost", expected[..4].iter().all(|stage| stage == "yes"));
            let case = get(&runs, "/api/case", &format!("row={row}"));
            assert_eq!(case["memory"]["show"], serde_json::to_value(condition.shown.show).unwrap());
            assert!(case["sessions"].as_array().unwrap().iter().any(|session| session["kind"] == "session"));
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}
