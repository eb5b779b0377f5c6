//! A local server that speaks the hub's protocol: repositories with revisions, large files by redirect, ranges, tokens and the hub's error
//! codes. It stands for the hub in tests, by `HF_ENDPOINT`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palimpsest_core::digest::{hex, sha256};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};

pub const TOKEN: &str = "hf_theright";

#[derive(Clone, Default)]
pub struct Repository {
    /// Commit by revision.
    pub revisions: BTreeMap<String, String>,
    /// Files by commit.
    pub commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pub gated: bool,
    pub private: bool,
    /// Architecture of GGUF files, as the hub reads it from them.
    pub gguf: Option<String>,
    /// Changes the answer about the repository.
    pub listing: Option<fn(&mut Value)>,
    /// In place of each file's own.
    pub etag: Option<&'static str>,
}

impl Repository {
    /// `main` is a commit with these files; its name is made of the digit.
    pub fn of(digit: char, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        Repository::default().revision("main", digit, files)
    }

    pub fn revision(
        mut self,
        revision: &str,
        digit: char,
        files: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Self {
        let commit = digit.to_string().repeat(40);
        self.revisions.insert(revision.to_owned(), commit.clone());
        self.commits.insert(commit, files.into_iter().collect());
        self
    }
}

/// The files of a fixture, and others by name.
pub fn fixture_files(name: &str, more: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()));
    let more = more.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()));
    files.chain(more).collect()
}

#[derive(Default)]
struct State {
    repositories: BTreeMap<String, Repository>,
    /// `METHOD PATH RANGE` of each request.
    log: Vec<String>,
    /// Token of each request.
    tokens: Vec<Option<String>>,
    /// Server of large files; empty for a redirect without a host.
    elsewhere: Option<String>,
    /// Answered with 404.
    refused: Option<String>,
    /// Part of a path that is answered once with a status.
    busy: Option<(String, &'static str)>,
    /// A file of which so many bytes are sent, then no more.
    stalled: Option<(String, usize)>,
    /// True once that has happened.
    has_stalled: bool,
}

#[derive(Clone)]
pub struct HubServer {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl HubServer {
    pub fn new(repositories: impl IntoIterator<Item = (&'static str, Repository)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let repositories = repositories.into_iter().map(|(id, of)| (id.to_owned(), of)).collect();
        let state = Arc::new(Mutex::new(State { repositories, ..State::default() }));
        let server = HubServer { address, state };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                std::thread::spawn(move || server.answer(stream));
            }
        });
        server
    }

    pub fn refuse(&self, file: Option<&str>) {
        self.state.lock().unwrap().refused = file.map(str::to_owned);
    }

    pub fn busy(&self, path: &str, status: &'static str) {
        self.state.lock().unwrap().busy = Some((path.to_owned(), status));
    }

    /// True once [`HubServer::busy`] has happened.
    pub fn was_busy(&self) -> bool {
        self.state.lock().unwrap().busy.is_none()
    }

    pub fn stall(&self, at: Option<(&str, usize)>) {
        self.state.lock().unwrap().stalled = at.map(|(file, bytes)| (file.to_owned(), bytes));
    }

    pub fn wait_until_stalled(&self) {
        while !self.state.lock().unwrap().has_stalled {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn set(&self, id: &str, repository: Repository) {
        self.state.lock().unwrap().repositories.insert(id.to_owned(), repository);
    }

    pub fn redirect_to(&self, server: &str) {
        self.state.lock().unwrap().elsewhere = Some(server.to_owned());
    }

    /// The tokens of all requests since the last call.
    pub fn tokens(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.state.lock().unwrap().tokens)
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let header = |name: &str| {
            let named = |line: &str| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            };
            head.lines().find_map(named)
        };
        let (token, range) = (header("authorization"), header("range"));
        let reply = {
            let mut state = self.state.lock().unwrap();
            state.log.push(format!("{method} {path} {}", range.as_deref().unwrap_or_default()));
            state.tokens.push(token.clone());
            let server = state.elsewhere.clone().unwrap_or_else(|| self.address.clone());
            state.reply(&server, path.split('?').next().unwrap_or_default(), token.as_deref())
        };
        let Reply { mut status, headers, body } = reply;
        // `Range: bytes=FIRST-[LAST]`.
        let first_and_last = range.filter(|_| status == "200 OK").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let last = last.parse::<usize>().unwrap_or(usize::MAX).min(body.len().saturating_sub(1));
            Some((first.parse::<usize>().ok()?, last))
        });
        let mut content = &body[..];
        let mut place = String::new();
        if let Some((first, last)) = first_and_last {
            (status, content) = match body.get(first..=last) {
                Some(part) if first < body.len() => ("206 Partial Content", part),
                _ => ("416 Range Not Satisfiable", &[][..]),
            };
            place = format!("Content-Range: bytes {first}-{last}/{}\r\n", body.len());
        }
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{place}{headers}Connection: close\r\n\r\n",
            content.len()
        )?;
        let start = first_and_last.map_or(0, |(first, _)| first);
        let stalls = |state: &State| {
            let (file, bytes) = state.stalled.as_ref()?;
            (path.ends_with(file) && content.len() > 1 && status.starts_with("20"))
                .then(|| bytes.saturating_sub(start))
        };
        let stalls = stalls(&self.state.lock().unwrap());
        if let Some(bytes) = stalls {
            stream.write_all(&content[..bytes.min(content.len())])?;
            stream.flush()?;
            self.state.lock().unwrap().has_stalled = true;
            while self.state.lock().unwrap().stalled.is_some() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Ok(());
        }
        stream.write_all(content)
    }
}

struct Reply {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

impl Reply {
    fn error(status: &'static str, code: &str) -> Self {
        Reply { status, headers: format!("X-Error-Code: {code}\r\n"), body: b"{\"error\":\"no\"}".to_vec() }
    }
}

/// Files that the hub keeps in its large storage, named by their SHA-256.
fn is_large(file: &str) -> bool {
    [".safetensors", ".gguf", ".bin", "tokenizer.json"].iter().any(|ending| file.ends_with(ending))
}

/// Git's SHA-1, the name of a small file.
pub fn small_name(bytes: &[u8]) -> String {
    let header = format!("blob {}\0", bytes.len());
    hex(&Sha1::new_with_prefix(header).chain_update(bytes).finalize())
}

impl State {
    fn reply(&mut self, address: &str, path: &str, token: Option<&str>) -> Reply {
        if let Some((_, status)) = self.busy.take_if(|(part, _)| path.contains(&**part)) {
            return Reply { status, headers: "Retry-After: 0\r\n".to_owned(), body: Vec::new() };
        }
        let right = token == Some(&format!("Bearer {TOKEN}"));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (id, kind, rest) = match parts.as_slice() {
            ["api", "models", owner, name, "revision", revision] => {
                (format!("{owner}/{name}"), "api", vec![revision.replace("%2F", "/")])
            }
            ["cdn", owner, name, commit, file @ ..] => {
                (format!("{owner}/{name}"), "cdn", vec![(*commit).to_owned(), file.join("/")])
            }
            [owner, name, "resolve", commit, file @ ..] => {
                (format!("{owner}/{name}"), "resolve", vec![(*commit).to_owned(), file.join("/")])
            }
            _ => return Reply::error("404 Not Found", "EntryNotFound"),
        };
        let Some(repository) = self.repositories.get(&id).filter(|of| right || !of.private) else {
            let status = if token.is_some() { "404 Not Found" } else { "401 Unauthorized" };
            return Reply::error(status, "RepoNotFound");
        };
        let commit = repository.revisions.get(&rest[0]).unwrap_or(&rest[0]);
        let Some(files) = repository.commits.get(commit) else {
            return Reply::error("404 Not Found", "RevisionNotFound");
        };
        if kind == "api" {
            let sibling = |(name, bytes): (&String, &Vec<u8>)| {
                let large = is_large(name)
                    .then(|| json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134}));
                json!({"rfilename": name, "size": bytes.len(), "blobId": small_name(bytes), "lfs": large})
            };
            let siblings: Vec<_> = files.iter().map(sibling).collect();
            let gguf = repository
                .gguf
                .as_ref()
                .map(|architecture| json!({"architecture": architecture, "total": 1}));
            let gated = if repository.gated { json!("manual") } else { json!(false) };
            let mut info = json!({"_id": "1", "id": id, "sha": commit, "gated": gated, "siblings": siblings, "gguf": gguf});
            if let Some(change) = repository.listing {
                change(&mut info);
            }
            return Reply { status: "200 OK", headers: String::new(), body: info.to_string().into_bytes() };
        }
        if kind == "resolve" && repository.gated && !right {
            let status = if token.is_some() { "403 Forbidden" } else { "401 Unauthorized" };
            return Reply::error(status, "GatedRepo");
        }
        let (file, refused) = (&rest[1], self.refused.as_ref());
        let Some(bytes) =
            files.get(&*percent_decode_str(file).decode_utf8_lossy()).filter(|_| refused != Some(file))
        else {
            return Reply::error("404 Not Found", "EntryNotFound");
        };
        if kind == "resolve" && is_large(file) {
            let (name, size) = (repository.etag.map_or_else(|| sha256(bytes), str::to_owned), bytes.len());
            let headers = format!(
                "Location: {address}/cdn/{id}/{commit}/{file}\r\nX-Repo-Commit: {commit}\r\nX-Linked-Etag: \"{name}\"\r\n\
                 X-Linked-Size: {size}\r\nETag: \"another\"\r\n"
            );
            return Reply { status: "302 Found", headers, body: Vec::new() };
        }
        let name = repository.etag.map_or_else(|| small_name(bytes), str::to_owned);
        let headers = format!("ETag: \"{name}\"\r\nX-Repo-Commit: {commit}\r\n");
        Reply { status: "200 OK", headers, body: bytes.clone() }
    }
}
