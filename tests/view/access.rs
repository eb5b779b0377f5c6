//! Only who has the token reads the page and asks its model: by the printed address, a cookie or an Authorization header.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command};

use palimpsest::view::access::Token;

use super::{Served, TOKEN, exchange, served, served_by};
use crate::cli::{command, palimpsest, shown};
use crate::synthetic_run::{self, Plan};

fn folder(root: &Path) -> std::path::PathBuf {
    let dir = root.join("run");
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    dir
}

/// Reply to a request with these headers besides Host.
fn with(served: &Served, request: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
    let host = served.address.to_string();
    exchange(served.address, request, &[&[("host", host.as_str())][..], headers].concat(), "{}")
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The cookie that the printed address sets, as browsers send it back.
fn cookie(served: &Served) -> String {
    let (status, head, _) = with(served, &format!("GET /?token={TOKEN}"), &[]);
    assert_eq!(status, 303, "{head}");
    header(&head, "set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn nothing_is_served_or_asked_without_the_token() {
    let root = tempfile::tempdir().unwrap();
    let served = served(&folder(root.path()), None);
    let (shorter, longer) = (&TOKEN[..TOKEN.len() - 1], format!("{TOKEN}x"));
    let other = TOKEN.replace("tests", "TESTS");
    let by_query = |token: &str| format!("GET /?token={token}");
    let by_bearer = |token: &str| format!("Bearer {token}");
    for request in
        ["GET /", "GET /api/table", "GET /api/runs", "GET /nothing", "POST /api/ask", "POST /api/cancel"]
    {
        let (status, _, body) = with(&served, request, &[]);
        assert_eq!(status, 401, "{request}: {body}");
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&error["error"]["code"], &error["error"]["param"]),
            (&"invalid_token".into(), &().into())
        );
        assert!(body.contains("open the address that `palimpsest view` printed"), "{body}");
    }
    for token in [shorter, &longer, &other, "", "%00"] {
        assert_eq!(with(&served, &by_query(token), &[]).0, 401, "{token}");
        for request in ["GET /api/table", "POST /api/ask"] {
            assert_eq!(with(&served, request, &[("authorization", &by_bearer(token))]).0, 401, "{token}");
        }
    }
    let (status, head, page) = with(&served, "GET /", &[("accept", "text/html,*/*;q=0.8")]);
    assert_eq!((status, header(&head, "content-type")), (401, Some("text/html; charset=utf-8")));
    assert!(page.contains("Open the address that <code>palimpsest view</code> printed"), "{page}");
    assert!(header(&head, "content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(!head.contains("set-cookie") && !page.contains(TOKEN), "{head}");
}

#[test]
fn the_printed_address_sets_a_cookie_and_leads_to_the_page_without_the_token() {
    let root = tempfile::tempdir().unwrap();
    let served = served(&folder(root.path()), None);
    let (status, head, body) = with(&served, &format!("GET /?a=b%26c&token={TOKEN}&d=e"), &[]);
    assert_eq!((status, header(&head, "location")), (303, Some("/?a=b%26c&d=e")));
    assert!(!head.contains(TOKEN) && body.is_empty(), "{head}");
    let set = header(&head, "set-cookie").unwrap();
    let (pair, attributes) = set.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
    let (name, value) = pair.split_once('=').unwrap();
    assert_eq!(name, format!("palimpsest-view-{}", served.address.port()));
    let (_, head, _) = with(&served, &format!("GET /?token={TOKEN}"), &[]);
    assert_eq!(header(&head, "location"), Some("/"));

    let among = format!("other=\u{e9}; {pair}; last=1");
    for cookies in [pair, &among] {
        let (status, head, page) = with(&served, "GET /", &[("cookie", cookies)]);
        assert!(status == 200 && page.contains("<script>") && !head.contains("set-cookie"), "{cookies}");
    }
    assert_eq!(with(&served, "GET /api/table", &[("cookie", pair)]).0, 200);
    // Let in, without a model.
    assert_eq!(with(&served, "POST /api/ask", &[("cookie", pair)]).0, 404);
    // Neither the cookie of another port, nor the token as a cookie, nor the cookie as a token.
    for cookie in [
        format!("palimpsest-view-1={value}"),
        format!("{name}={TOKEN}"),
        format!("{name}={value}x"),
        name.to_owned(),
    ] {
        assert_eq!(with(&served, "GET /api/table", &[("cookie", &cookie)]).0, 401, "{cookie}");
    }
    assert_eq!(with(&served, "GET /api/table", &[("authorization", &format!("Bearer {value}"))]).0, 401);
}

#[test]
fn programs_send_the_token_as_a_header_or_in_the_query() {
    let root = tempfile::tempdir().unwrap();
    let served = served(&folder(root.path()), None);
    let bearer = format!("bearer {TOKEN}");
    for (request, status) in [("GET /", 200), ("GET /api/runs", 200), ("POST /api/ask", 404)] {
        assert_eq!(with(&served, request, &[("authorization", &bearer)]).0, status, "{request}");
    }
    let (status, _, body) = with(&served, &format!("GET /api/case?row=0&token={TOKEN}"), &[]);
    let case: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, case["row"].as_u64()), (200, Some(0)));
}

#[test]
fn pages_of_other_origins_are_refused_even_with_the_cookie() {
    let root = tempfile::tempdir().unwrap();
    let served = served(&folder(root.path()), None);
    let cookie = cookie(&served);
    for foreign in [("origin", "http://127.0.0.1:1"), ("sec-fetch-site", "cross-site")] {
        for request in ["GET /api/table", "POST /api/ask"] {
            assert_eq!(
                with(&served, request, &[("cookie", &cookie), foreign]).0,
                403,
                "{request}, {foreign:?}"
            );
        }
    }
    let enter = format!("GET /?token={TOKEN}");
    let (status, head, _) = exchange(served.address, &enter, &[("host", "evil.example")], "");
    assert!(status == 403 && !head.contains("set-cookie"), "{head}");
    // A file or another page may link to the printed address. Browsers send strict cookies only with a navigation that begins on this site.
    let (status, head, page) = with(&served, &enter, &[("sec-fetch-site", "cross-site")]);
    assert_eq!((status, header(&head, "refresh")), (200, Some("0; url=/")));
    assert!(head.contains(&cookie) && !page.contains(TOKEN), "{head}\n{page}");
    assert_eq!(with(&served, "GET /?token=another", &[("sec-fetch-site", "cross-site")]).0, 403);
}

#[test]
fn a_page_without_a_token_is_open_and_a_cookie_outlives_a_restart_with_the_same_token() {
    let root = tempfile::tempdir().unwrap();
    let dir = folder(root.path());
    let open = served_by(&dir, None, None);
    assert_eq!((with(&open, "GET /", &[]).0, with(&open, "GET /api/table", &[]).0), (200, 200));
    let values = [0, 1].map(|_| cookie(&served(&dir, None)).split_once('=').unwrap().1.to_owned());
    assert_eq!(values[0], values[1]);
    for refused in ["", "fifteen-letters", "sixteen letters!", "sixteen-letters/", "sixteen-letters\u{e9}"] {
        assert!(Token::chosen(refused).is_none(), "{refused}");
    }
}

/// `palimpsest view` at a free port.
struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(mut command: Command) -> Self {
        let mut child = command.args(["--port", "0"]).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let address = said.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
        Program { child, address }
    }

    /// Ends it by Ctrl-C and returns its stderr.
    fn end(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let mut told = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        self.child.wait().unwrap();
        told
    }
}

fn view(dir: &Path, more: &[&str]) -> Command {
    let mut command = command(["view", shown(dir)]);
    command.args(more).env_remove("PALIMPSEST_VIEW_TOKEN");
    command
}

#[test]
fn the_token_is_random_or_chosen_by_a_flag_or_the_environment() {
    let root = tempfile::tempdir().unwrap();
    let dir = folder(root.path());
    let started = |more: &[&str], variable: Option<&str>| {
        let mut command = view(&dir, more);
        variable.map(|token| command.env("PALIMPSEST_VIEW_TOKEN", token));
        let program = Program::start(command);
        let (server, query) = program.address.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let server: std::net::SocketAddr = server.parse().unwrap();
        let token = query.strip_prefix("?token=").map(str::to_owned);
        let named = server.to_string();
        let bare = exchange(server, "GET /api/runs", &[("host", &named)], "").0;
        let bearer = format!("Bearer {}", token.as_deref().unwrap_or_default());
        let allowed =
            exchange(server, "GET /api/runs", &[("host", &named), ("authorization", &bearer)], "").0;
        (token, (bare, allowed), program.end())
    };
    let random = [started(&[], None), started(&[], Some(""))].map(|(token, statuses, told)| {
        let token = token.unwrap();
        assert_eq!((token.len(), statuses), (43, (401, 200)));
        assert!(Token::chosen(&token).is_some() && !told.contains(&token), "{told}");
        token
    });
    assert_ne!(random[0], random[1]);
    let (by_variable, by_flag) = ("chosen-by-variable", "chosen.by~the_flag");
    let (token, statuses, told) = started(&[], Some(by_variable));
    assert_eq!((token.as_deref(), statuses), (Some(by_variable), (401, 200)));
    assert!(!told.contains(by_variable), "{told}");
    let (token, ..) = started(&["--token", by_flag], Some(by_variable));
    assert_eq!(token.as_deref(), Some(by_flag));
    let (token, statuses, told) = started(&["--no-token"], Some(by_variable));
    assert_eq!((token, statuses), (None, (200, 200)));
    assert!(told.contains("every user of this machine can read these runs and ask the model"), "{told}");

    let short = palimpsest(["view", shown(&dir), "--token", "too-short"]);
    assert!(short.code == Some(1) && short.err.contains("at least 16"), "{}", short.err);
    assert!(!short.err.contains("too-short"), "{}", short.err);
    let both = palimpsest(["view", shown(&dir), "--no-token", "--token", by_flag]);
    assert!(both.code == Some(2) && both.err.contains("cannot be used with"), "{}", both.err);
}

#[test]
#[cfg(target_os = "linux")]
fn the_browser_is_sent_to_the_address_by_a_file_that_only_its_user_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let (dir, at) = (folder(root.path()), |name: &str| root.path().join(name));
    let (bin, temporary) = (at("bin"), at("temporary"));
    for folder in [&bin, &temporary] {
        std::fs::create_dir(folder).unwrap();
    }
    // Stands in for the program that opens browsers: notes its argument and copies the file that it names.
    let script = format!(
        "#!/bin/sh\ncp -p \"$1\" {0}/copy\nprintf %s \"$*\" > {0}/begun\nmv {0}/begun {0}/argument\n",
        shown(root.path())
    );
    std::fs::write(at("script"), script).unwrap();
    // By another process: a program that a process still has open for writing cannot be run.
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(at("script")).arg(bin.join("xdg-open"));
    assert!(install.status().unwrap().success());
    let path = format!("{}:{}", shown(&bin), std::env::var("PATH").unwrap());
    let mut command = view(&dir, &["--open"]);
    command.env("PATH", path).env("TMPDIR", &temporary);
    let program = Program::start(command);
    while !at("argument").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let argument = std::fs::read_to_string(at("argument")).unwrap();
    let token = program.address.split_once("token=").unwrap().1.to_owned();
    assert!(argument.starts_with(shown(&temporary)) && argument.ends_with(".html"), "{argument}");
    assert!(!argument.contains(&token));
    let page = std::fs::read_to_string(at("copy")).unwrap();
    assert!(page.contains(&format!("content=\"0; url={}\"", program.address)), "{page}");
    assert_eq!(std::fs::metadata(at("copy")).unwrap().permissions().mode() & 0o777, 0o600);
    program.end();
    assert!(!Path::new(&argument).exists());

    // Without such a program the address is said once more.
    let mut command = view(&dir, &["--open"]);
    command.env("PATH", &temporary);
    let program = Program::start(command);
    let address = program.address.clone();
    let told = program.end();
    assert!(
        told.contains("xdg-open cannot be run") && told.contains(&format!("open {address} yourself")),
        "{told}"
    );
}
