//! Clients that hold connections, end them in unusual ways, or send requests that two readers could understand differently.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use palimpsest::api::listen::{MOST_KNOWN, MOST_STRANGERS};
use serde_json::{Value, json};

use super::operated::Program;
use super::{fixture, serve, user};
use crate::cli::{command, ended};

const HALF_HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";

const KEY: &str = "a-key-of-this-test";

/// Tests with hundreds of connections run one after the other: file descriptors are few on some systems.
pub static MANY: Mutex<()> = Mutex::new(());

/// More connections than `places`, each with this text sent.
pub fn held(address: &str, text: &str, places: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(text.as_bytes()).unwrap();
        client
    };
    (0..places + 20).map(open).collect()
}

/// The oldest was closed and the newest still waits: an answer that came meanwhile did not wait for a timeout.
pub fn only_the_oldest_is_closed(held: &mut [TcpStream]) {
    let newest = held.len() - 1;
    held[newest].set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let waits = held[newest].read(&mut [0; 512]);
    assert!(
        waits.as_ref().is_err_and(|e| [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind())),
        "{waits:?}"
    );
    held[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let closed = held[0].read(&mut [0; 512]);
    assert!(
        matches!(&closed, Ok(0)) || closed.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
        "{closed:?}"
    );
}

fn address(program: &Program) -> &str {
    program.url.trim_start_matches("http://")
}

/// Status of a request on a connection of its own.
fn status(program: &Program, path: &str, headers: &str) -> u16 {
    let mut client = TcpStream::connect(address(program)).unwrap();
    write!(client, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    reply.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn half_heads_keep_nobody_out() {
    let _alone = MANY.lock();
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("key");
    std::fs::write(&file, KEY).unwrap();
    let program = Program::start(&["--api-key-file", file.to_str().unwrap(), "--log", "off"]);
    let bearer = format!("authorization: Bearer {KEY}\r\n");
    // A client with the key keeps its connection although newer ones come.
    let mut kept = BufReader::new(TcpStream::connect(address(&program)).unwrap());
    let mut ask = || {
        write!(kept.get_mut(), "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{bearer}\r\n").unwrap();
        let head: Vec<String> =
            kept.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        kept.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
        head[0].clone()
    };
    assert_eq!(ask(), "HTTP/1.1 200 OK");
    let mut heads = held(address(&program), HALF_HEAD, MOST_STRANGERS);
    assert_eq!(status(&program, "/health", ""), 200);
    assert_eq!(status(&program, "/v1/models", ""), 401);
    assert_eq!(status(&program, "/v1/models", &bearer), 200);
    assert_eq!(ask(), "HTTP/1.1 200 OK");
    only_the_oldest_is_closed(&mut heads);
    program.end();
}

#[test]
fn half_bodies_keep_nobody_out() {
    let _alone = MANY.lock();
    let program = Program::start(&["--log", "off"]);
    let half = format!("{HALF_HEAD}content-length: 500\r\n\r\n{{\"model\": ");
    let mut bodies = held(address(&program), &half, MOST_KNOWN);
    let body = json!({"model": "llama-tiny", "messages": user("Who?"), "max_tokens": 2});
    assert_eq!(program.post("/v1/chat/completions", &body, "honest").status(), 200);
    assert_eq!(status(&program, "/health", ""), 200);
    only_the_oldest_is_closed(&mut bodies);
    program.end();
}

#[cfg(unix)]
#[test]
fn few_files_keep_nobody_out() {
    let _alone = MANY.lock();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_palimpsest"), "serve"]);
    limited.arg(fixture("llama-tiny")).args(["--port", "0", "--log", "off"]);
    let program = Program::spawn(limited);
    let _heads = held(address(&program), HALF_HEAD, 80);
    // Later clients take the places of half heads, and then of clients that wait longer; nobody's timeout is waited for.
    let ask = |_| {
        let mut client = TcpStream::connect(address(&program)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        client.write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut status = [0; 15];
        client.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200 OK");
        client
    };
    let known: Vec<TcpStream> = (0..100).map(ask).collect();
    assert_eq!(known.len(), 100);
    program.end();
}

#[test]
fn an_unread_log_stops_nobody() {
    let program = Program::start(&[]);
    let mut client = TcpStream::connect(address(&program)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // More lines than a pipe and the queue before it hold.
    let (asked, end) = ("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100), "{\"status\":\"ok\"}");
    for _ in 0..40 {
        client.write_all(asked.as_bytes()).unwrap();
        let mut replies = String::new();
        while replies.matches(end).count() < 100 {
            let mut bytes = [0; 4096];
            let count = client.read(&mut bytes).unwrap();
            assert!(count > 0, "{replies}");
            replies.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
    }
    let told = program.end();
    assert!(
        told.contains(" /health ok ") && told.contains(" lines were dropped, since standard error"),
        "{told}"
    );
}

#[test]
fn heads_have_a_longest_size() {
    let served = serve("llama-tiny");
    let ask = |bytes: usize, end: &str| {
        let mut client = TcpStream::connect(served.address).unwrap();
        let head = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: ";
        write!(client, "{head}{}{end}", "y".repeat(bytes - head.len())).unwrap();
        rest(&mut client)
    };
    assert!(ask(60_000, "\r\n\r\n").starts_with("HTTP/1.1 200 "));
    assert!(ask(64 << 10, "").starts_with("HTTP/1.1 431 "));
}

/// What the server sends until it closes the connection, without interim responses.
fn rest(client: &mut impl Read) -> String {
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    let mut reply = reply.as_str();
    while let Some(after) = reply.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n") {
        reply = after;
    }
    reply.to_owned()
}

#[test]
fn a_client_that_ends_its_side_gets_its_answer() {
    let served = serve("llama-tiny");
    let ask = |version: &str, stream: bool, tokens: usize| {
        // Nothing ends the answer early.
        let bias = json!({"264": -100, "265": -100, "266": -100});
        let body = json!({
            "model": "llama-tiny", "messages": user("Go on."), "max_tokens": tokens, "temperature": 0,
            "logit_bias": bias, "stream": stream
        });
        let (body, mut client) = (body.to_string(), TcpStream::connect(served.address).unwrap());
        let length = body.len();
        write!(client, "POST /v1/chat/completions HTTP/{version}\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
            .unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let reply = rest(&mut client);
        assert!(reply.starts_with(&format!("HTTP/{version} 200 ")), "{reply}");
        reply
    };
    for (version, tokens) in [("1.1", 2), ("1.0", 2), ("1.1", 1500)] {
        let reply = ask(version, false, tokens);
        let json: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(json["usage"]["completion_tokens"], tokens);
    }
    assert!(ask("1.1", true, 50).contains("data: [DONE]"));
    // Without a body, too. Half a request is no request.
    let mut client = TcpStream::connect(served.address).unwrap();
    client.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(rest(&mut client).ends_with("{\"status\":\"ready\"}"));
    let mut client = TcpStream::connect(served.address).unwrap();
    client.write_all(format!("{HALF_HEAD}content-length: 500\r\n\r\n{{\"mod").as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let reply = rest(&mut client);
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{reply}");
}

#[test]
fn requests_that_name_two_hosts_or_a_whole_url_are_refused() {
    let served = serve("llama-tiny");
    let own = served.address;
    for (request, code) in [
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n".to_owned(), "repeated_host"),
        ("GET /health HTTP/1.1\r\nhost: localhost\r\nHost: evil.example\r\n".to_owned(), "repeated_host"),
        (format!("GET http://{own}/health HTTP/1.1\r\nhost: {own}\r\n"), "absolute_target"),
        (format!("GET http://evil.example/v1/models HTTP/1.1\r\nhost: {own}\r\n"), "absolute_target"),
    ] {
        let mut client = TcpStream::connect(own).unwrap();
        write!(client, "{request}connection: close\r\n\r\n").unwrap();
        let reply = rest(&mut client);
        assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains(code), "{request}: {reply}");
    }
}

#[test]
fn readiness_is_told_without_a_key() {
    let keyed = super::Setting { key: Some(KEY), ..super::Setting::default() };
    let served = super::serve_path(&fixture("llama-tiny"), keyed);
    assert_eq!(served.get("/ready").ok(), json!({"status": "ready"}));
    assert_eq!(served.get("/health").ok(), json!({"status": "ok"}));
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_the_users_alone_and_goes_with_its_server() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("socket");
    let (model, shown) = (fixture("llama-tiny"), path.to_str().unwrap());
    let start = || command(["serve", model.to_str().unwrap(), "--socket", shown, "--log", "off"]);
    let program = Program::spawn(start());
    assert_eq!(program.url, format!("unix:{shown}"));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    // No browser reaches it, so that the Host header may have any name.
    for end in [false, true] {
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"GET /v1/models HTTP/1.1\r\nhost: anything\r\nconnection: close\r\n\r\n").unwrap();
        if end {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let reply = rest(&mut client);
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.contains("llama-tiny"), "{reply}");
    }
    // During the end newcomers are told of it; a second Ctrl-C leaves no file.
    let program = {
        let bias = json!({"264": -100, "265": -100, "266": -100});
        let body = json!({"model": "llama-tiny", "messages": user("x"), "max_tokens": 7000, "logit_bias": bias, "stream": true});
        let (body, length) = (body.to_string(), body.to_string().len());
        let mut client = UnixStream::connect(&path).unwrap();
        write!(
            client,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
        program.interrupt();
        loop {
            let mut other = UnixStream::connect(&path).unwrap();
            other.write_all(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
            let mut reply = String::new();
            let _ = other.read_to_string(&mut reply);
            if reply.starts_with("HTTP/1.1 503 ") {
                break;
            }
        }
        program.interrupt();
        let (code, told) = program.ended();
        assert!(code == Some(130) && told.ends_with("stopped at once\n") && !path.exists(), "{told}");
        Program::spawn(start())
    };
    let second = ended(start());
    assert!(second.code == Some(1) && second.err.contains("a server answers there"), "{}", second.err);
    for flags in [["--port", "1"], ["--host", "127.0.0.1"]] {
        let mut both = start();
        both.args(flags);
        assert_eq!(ended(both).code, Some(2), "{flags:?}");
    }
    program.end();
    assert!(!path.exists());
    // Files that are no sockets stay.
    std::fs::write(&path, "kept").unwrap();
    let refused = ended(start());
    assert!(refused.code == Some(1) && refused.err.contains("no socket"), "{}", refused.err);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
}
