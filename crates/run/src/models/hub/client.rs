//! Requests to the hub or a mirror of it (`HF_ENDPOINT`): what a repository holds, and its files. The token goes to the hub alone, not where
//! it redirects to, and appears in no message.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use indicatif::ProgressBar;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, ETAG, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderValue, Response};
use ureq::{Agent, Body};

use super::layout::{Layout, blob_name, is_commit, is_commit_name, is_file_name};
use crate::http::{Origin, is_loopback, retry_after};
use crate::progress;

/// Tries after a failed first one.
const RETRIES: u32 = 3;
/// For one answer about a repository, for the beginning of a file, between two reads of it, and for a wait that a server asks for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a file whose size no one tells.
const LONGEST_UNTOLD: u64 = 1 << 30;
/// Longest token in a file.
const LONGEST_TOKEN: u64 = 4096;
/// Characters of a file's name that stand in an address as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const REDIRECTS: usize = 10;
/// An answer about a repository.
const LONGEST_LISTING: u64 = 64 << 20;
/// The hub's header for a file in its large storage.
const LINKED_ETAG: &str = "x-linked-etag";

#[derive(Debug, Clone)]
pub(super) struct Client {
    /// Address of the hub in messages: without the user's name and password.
    pub endpoint: String,
    /// The same for requests.
    base: String,
    /// Its server; `None` for an address that does not parse.
    server: Option<Origin>,
    token: Option<HeaderValue>,
    /// There is a token, and it is not sent over http.
    withheld: bool,
    agent: Agent,
}

/// Files of a repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub commit: String,
    pub files: BTreeMap<String, Listed>,
    /// Architecture of its GGUF files.
    pub gguf: Option<String>,
}

/// A file of a repository; a mirror may not state all.
#[derive(Debug, Clone, Default)]
pub(super) struct Listed {
    pub size: Option<u64>,
    pub sha256: Option<String>,
    /// Its name in a cache.
    pub blob: Option<String>,
}

impl Listed {
    /// Git's name of the content, which a file has that is not in the large storage.
    pub(super) fn git_sha1(&self) -> Option<&str> {
        self.blob.as_deref().filter(|blob| self.sha256.is_none() && is_commit(blob))
    }
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
    gguf: Option<Gguf>,
}

#[derive(Deserialize)]
struct Gguf {
    architecture: Option<String>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

/// Why a file did not come.
enum Failed {
    Status(u16),
    /// The server has no time for now, and may say for how long.
    Busy {
        status: u16,
        wait: Option<Duration>,
    },
    /// Another try may do.
    Broken(String),
    /// The server's answer is refused.
    Refused(String),
}

impl From<ureq::Error> for Failed {
    fn from(error: ureq::Error) -> Self {
        Failed::Broken(error.to_string())
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Broken(error.to_string())
    }
}

impl Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failed::Status(status) | Failed::Busy { status, .. } => write!(f, "status {status}"),
            Failed::Broken(why) | Failed::Refused(why) => f.write_str(why),
        }
    }
}

/// A reply, and the name that the hub itself gave the file.
struct Got {
    response: Response<Body>,
    etag: Option<String>,
}

impl Client {
    /// `HF_ENDPOINT`; `HF_TOKEN`, else the file that `hf auth login` writes.
    pub(super) fn from_env(home: &Path) -> anyhow::Result<Self> {
        let kept = || {
            let file = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
            let mut text = String::new();
            std::fs::File::open(file).ok()?.take(LONGEST_TOKEN).read_to_string(&mut text).ok()?;
            Some(text.trim().to_owned()).filter(|token| !token.is_empty())
        };
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Client::new(endpoint.trim_end_matches('/').to_owned(), variable("HF_TOKEN").or_else(kept))
    }

    fn new(base: String, token: Option<String>) -> anyhow::Result<Self> {
        let server = Origin::of(&base);
        let bearer = |token: String| {
            let mut header = HeaderValue::from_str(&format!("Bearer {token}"));
            header.iter_mut().for_each(|header| header.set_sensitive(true));
            header
                .ok()
                .context(
                    "HF_TOKEN or the token's file (HF_TOKEN_PATH) holds characters that no HTTP header can carry; it must be the bare token",
                )
        };
        let token = token.map(bearer).transpose()?;
        let is_private = server.as_ref().is_some_and(Origin::is_private);
        Ok(Client {
            endpoint: without_password(&base),
            base,
            server,
            withheld: token.is_some() && !is_private,
            token: token.filter(|_| is_private),
            agent: agent(PATIENCE),
        })
    }

    /// Follows redirects. The token is sent to the hub's own server only: large files are at servers of others.
    fn get(&self, url: &str, first: u64, limit: Option<Duration>) -> Result<Got, Failed> {
        let (mut url, mut linked, mut etag) = (url.to_owned(), None, None);
        for _ in 0..=REDIRECTS {
            let server = Origin::of(&url)
                .ok_or_else(|| Failed::Refused(format!("{} is no address", without_password(&url))))?;
            let is_hub = self.server.as_ref() == Some(&server);
            // The bytes of the file itself are counted and kept.
            let mut request = self.agent.get(&url).header(ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                request = request.header(AUTHORIZATION, token.clone());
            }
            if first > 0 {
                request = request.header(RANGE, format!("bytes={first}-"));
            }
            let config = request.config().timeout_global(limit);
            let config = if is_loopback(&server.host) { config.proxy(None) } else { config };
            let response = config.build().call()?;
            let header =
                |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
            if is_hub {
                linked = linked.or_else(|| header(LINKED_ETAG));
                etag = header(ETAG.as_str()).or(etag);
            }
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(to) = header(LOCATION.as_str()).filter(|_| is_redirect) else {
                return match response.status().as_u16() {
                    status @ (408 | 429 | 500..=599) => {
                        let wait = header(RETRY_AFTER.as_str()).as_deref().and_then(retry_after);
                        Err(Failed::Busy { status, wait })
                    }
                    _ => Ok(Got { response, etag: linked.or(etag) }),
                };
            };
            let scheme = if server.is_https { "https" } else { "http" };
            url = match to.strip_prefix('/') {
                Some(rest) if rest.starts_with('/') => format!("{scheme}:{to}"),
                Some(_) => format!("{scheme}://{server}{to}"),
                None => to,
            };
            if server.is_https && !url.to_ascii_lowercase().starts_with("https://") {
                return Err(Failed::Refused(format!("{server} redirects to {url}, which is not https")));
            }
        }
        Err(Failed::Refused(format!("more than {REDIRECTS} redirects")))
    }

    /// Asks for the commit of a revision and its files.
    pub(super) fn look_up(&self, repo: &str, revision: &str) -> anyhow::Result<Listing> {
        let spinner = progress::spinner(&format!("looking up {repo}@{revision}"));
        let at = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{repo}/revision/{at}?blobs=true", self.base);
        let begun = Instant::now();
        let got = patiently(|| {
            self.get(&url, 0, Some(PATIENCE)).map_err(|error| match error {
                Failed::Broken(why) if begun.elapsed() >= PATIENCE => Failed::Refused(why),
                error => error,
            })
        });
        spinner.finish_and_clear();
        let Got { mut response, .. } = got.map_err(|error| self.unreachable(repo, &error))?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
            return Err(match (status, code) {
                (_, Some("RevisionNotFound")) => anyhow!(
                    "{repo} has no revision {revision:?}; give a branch, a tag or a whole commit of {}/{repo}",
                    self.endpoint
                ),
                (_, Some("GatedRepo")) | (403, _) => self.closed(repo),
                (401 | 404, _) => {
                    let with = if self.token.is_some() { "with this token" } else { "without a token" };
                    let set = "set HF_TOKEN to a token that may read it";
                    anyhow!(
                        "{} shows no repository {repo} {with}; check the spelling, and for a private one {}",
                        self.endpoint,
                        self.withheld().unwrap_or_else(|| set.to_owned())
                    )
                }
                _ => self.unreachable(repo, &format_args!("status {status}")),
            });
        }
        let text = response.body_mut().with_config().limit(LONGEST_LISTING).read_to_vec();
        let text = text.map_err(|error| self.unreachable(repo, &error))?;
        let info: Info = serde_json::from_slice(&text)
            .with_context(|| format!("{} says of {repo} what is no answer of a hub", self.endpoint))?;
        // If a mirror does not report the commit, the revision itself is pinned.
        let commit = info.sha.unwrap_or_else(|| revision.to_owned());
        ensure!(
            is_commit_name(&commit),
            "{} gives {commit:?} as the commit of {repo}@{revision}, which is none",
            self.endpoint
        );
        ensure!(
            !is_commit(revision) || commit.eq_ignore_ascii_case(revision),
            "{} gives another commit, {commit}, for {repo}@{revision}; nothing was fetched",
            self.endpoint
        );
        let listed = |sibling: Sibling| {
            let file = sibling.rfilename;
            ensure!(
                is_file_name(&file),
                "{} lists the file {file:?} of {repo}, which is no name below a folder",
                self.endpoint
            );
            let sha256 = sibling.lfs.map(|lfs| lfs.sha256);
            let blob = sha256.clone().or(sibling.blob_id);
            if let Some(named) = blob.as_deref().filter(|named| blob_name(named) != Some(*named)) {
                return Err(self.no_blob_name(repo, &file, named));
            }
            Ok((file, Listed { size: sibling.size, sha256, blob }))
        };
        let files: BTreeMap<_, _> = info.siblings.into_iter().map(listed).collect::<anyhow::Result<_>>()?;
        let mut sizes = BTreeMap::new();
        for (file, listed) in &files {
            if let (Some(blob), Some(size)) = (&listed.blob, listed.size) {
                ensure!(
                    *sizes.entry(blob).or_insert(size) == size,
                    "{} lists two sizes of one content, {blob} ({file} of {repo}); nothing was fetched",
                    self.endpoint
                );
            }
        }
        Ok(Listing { commit, files, gguf: info.gguf.and_then(|gguf| gguf.architecture) })
    }

    /// Fetches one file into a cache, as a blob; resumes an earlier try.
    pub(super) fn download(
        &self,
        to: &Layout,
        (repo, commit, file): (&str, &str, &str),
        listed: &Listed,
        bar: &Bar,
    ) -> anyhow::Result<PathBuf> {
        let url = format!("{}/{repo}/resolve/{commit}/{}", self.base, utf8_percent_encode(file, PLAIN));
        let blob = patiently(|| self.blob(to, &url, listed, bar));
        blob.map_err(|error| self.failure(repo, file, &error))
    }

    fn blob(&self, to: &Layout, url: &str, listed: &Listed, bar: &Bar) -> Result<PathBuf, Failed> {
        // A file that the listing does not name is known by the reply's headers, too late to resume it.
        let mut here = listed.blob.as_deref().map_or(0, |blob| to.begun(blob));
        if let (Some(blob), Some(size)) = (&listed.blob, listed.size) {
            if here == size && size > 0 {
                std::fs::rename(to.part(blob), to.blob(blob))?;
                return Ok(to.blob(blob));
            }
            here = if here > size { 0 } else { here };
        }
        let Got { mut response, etag } = self.get(url, here, None)?;
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
        let range = header(CONTENT_RANGE.as_str()).map(str::to_owned);
        here = match response.status().as_u16() {
            // The server knows no ranges.
            200 => 0,
            206 if range.as_ref().is_some_and(|range| range.starts_with(&format!("bytes {here}-"))) => here,
            206 | 416 => {
                listed.blob.iter().try_for_each(|blob| to.open_part(blob, 0).map(drop))?;
                return Err(Failed::Broken(format!("other bytes than those from {here} on")));
            }
            status => return Err(Failed::Status(status)),
        };
        let blob = match (&listed.blob, &etag) {
            (Some(blob), _) => blob.clone(),
            (None, Some(etag)) => blob_name(etag).map(str::to_owned).ok_or_else(|| {
                Failed::Refused(format!(
                    "the server names its content {etag:?}, which cannot be a file's name"
                ))
            })?,
            (None, None) => return Err(Failed::Refused("the server gives it no ETag".to_owned())),
        };
        let mut part = to.open_part(&blob, here)?;
        let rest = response.body().content_length().map(|rest| here + rest);
        bar.begin(listed.size.or(rest).unwrap_or(0), here);
        let longest = listed.size.or(rest).unwrap_or(LONGEST_UNTOLD);
        let body = response.body_mut().as_reader().take(longest.saturating_sub(here) + 1);
        let copied = io::copy(&mut bar.all.wrap_read(body), &mut part)?;
        if here + copied > longest {
            std::fs::remove_file(to.part(&blob))?;
            return Err(Failed::Refused(format!(
                "it has more than {longest} bytes, and nothing of it was kept"
            )));
        }
        std::fs::rename(to.part(&blob), to.blob(&blob))?;
        Ok(to.blob(&blob))
    }

    fn no_blob_name(&self, repo: &str, file: &str, named: &str) -> anyhow::Error {
        anyhow!(
            "{} names the content of {file} of {repo} {named:?}, which cannot be a file's name; nothing was fetched",
            self.endpoint
        )
    }

    /// The remedy if the token stays here.
    fn withheld(&self) -> Option<String> {
        self.withheld.then(|| {
            "name an https:// address in HF_ENDPOINT, since your token is not sent over http to another machine".to_owned()
        })
    }

    fn failure(&self, repo: &str, file: &str, error: &Failed) -> anyhow::Error {
        match error {
            Failed::Status(401 | 403) => self.closed(repo),
            Failed::Refused(why) => {
                anyhow!("{file} of {repo} could not be fetched from {}: {why}", self.endpoint)
            }
            _ => anyhow!(
                "{file} of {repo} could not be fetched from {}; the same command goes on from here: {error}",
                self.endpoint
            ),
        }
    }

    fn closed(&self, repo: &str) -> anyhow::Error {
        let page = format!("{}/{repo}", self.endpoint);
        match self.token {
            None if self.withheld => {
                anyhow!("{repo} is gated or private; {}", self.withheld().unwrap_or_default())
            }
            Some(_) => anyhow!(
                "{repo} is gated or private, and the token in use may not read it; accept its licence at {page} with the token's account, or \
                 set HF_TOKEN to another token"
            ),
            None => anyhow!(
                "{repo} is gated or private; accept its licence at {page}, then set HF_TOKEN to a token of that account"
            ),
        }
    }

    fn unreachable(&self, repo: &str, error: &dyn Display) -> anyhow::Error {
        anyhow!(
            "{repo} could not be looked up at {}; check the network, or name a mirror in HF_ENDPOINT: {error}",
            self.endpoint
        )
    }
}

fn agent(idle: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("palimpsest/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(Duration::from_secs(30)))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(idle))
        .build()
        .new_agent()
}

/// Repeats what may succeed another time, after the wait that the server asks for.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Failed>) -> Result<T, Failed> {
    let mut tries = 0;
    loop {
        let result = attempt();
        let wait = match &result {
            Err(Failed::Broken(_)) => None,
            Err(Failed::Busy { wait, .. }) => *wait,
            _ => return result,
        };
        if tries == RETRIES {
            return result;
        }
        let least = Duration::from_millis(300) * 2_u32.pow(tries);
        std::thread::sleep(wait.unwrap_or_default().clamp(least, PATIENCE));
        tries += 1;
    }
}

/// An address without the user's name and password.
fn without_password(address: &str) -> String {
    let scheme = address.find("://").map_or("", |end| &address[..end + 3]);
    // The last one: a password may have an @ or a slash itself.
    let server = address[scheme.len()..].rsplit('@').next().unwrap_or_default();
    format!("{scheme}{server}")
}

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Progress of a file on a bar over all files of a fetch.
pub(super) struct Bar {
    all: ProgressBar,
    /// Bytes of the files before.
    before: u64,
}

impl Bar {
    pub(super) fn new(all: &ProgressBar, file: &str) -> Self {
        all.set_message(file.to_owned());
        Bar { all: all.clone(), before: all.position() }
    }

    /// Called before each try: `here` bytes of earlier tries count, and not for the speed.
    fn begin(&self, size: u64, here: u64) {
        self.all.set_length(self.all.length().unwrap_or(0).max(self.before + size));
        self.all.set_position(self.before + here);
        self.all.reset_eta();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_token_goes_over_http_to_this_machine_alone() {
        for (endpoint, is_sent) in [
            ("https://huggingface.co", true),
            ("http://127.0.0.1:9", true),
            ("http://mirror.example", false),
            ("mirror.example", false),
        ] {
            let client = Client::new(endpoint.to_owned(), Some("hf_secret".to_owned())).unwrap();
            assert_eq!((client.token.is_some(), client.withheld), (is_sent, !is_sent), "{endpoint}");
            assert!(!format!("{client:?}").contains("hf_secret"));
            let closed = client.closed("owner/name").to_string();
            assert_eq!(closed.contains("not sent over http"), !is_sent, "{closed}");
        }
        let none = Client::new("http://mirror.example".to_owned(), None).unwrap();
        assert!(none.closed("owner/name").to_string().contains("set HF_TOKEN"));
        let bad = Client::new("https://huggingface.co".to_owned(), Some("two\nlines".to_owned()));
        assert!(bad.unwrap_err().to_string().contains("HF_TOKEN"));
    }

    #[test]
    fn a_connection_that_falls_silent_is_given_up_and_the_file_resumed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let answer = |reply: &str| {
                let mut stream = listener.accept().unwrap().0;
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                    head.push(byte[0]);
                }
                stream.write_all(reply.as_bytes()).unwrap();
                (stream, String::from_utf8(head).unwrap())
            };
            // Open until the second has ended.
            let _silent = answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123");
            answer("HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\nContent-Range: bytes 4-9/10\r\n\r\n456789").1
        });
        let client = Client { agent: agent(Duration::from_secs(1)), ..Client::new(endpoint, None).unwrap() };
        let cache = tempfile::tempdir().unwrap();
        let layout = Layout::new(cache.path(), "o/n");
        let listed = Listed { size: Some(10), sha256: None, blob: Some("b10b".to_owned()) };
        let bar = Bar::new(&ProgressBar::hidden(), "x");
        let blob = client.download(&layout, ("o/n", "c0ffee", "x"), &listed, &bar).unwrap();
        assert_eq!(std::fs::read_to_string(blob).unwrap(), "0123456789");
        assert!(server.join().unwrap().to_lowercase().contains("range: bytes=4-"));
    }

    #[test]
    fn an_address_is_told_without_its_password() {
        for (address, told) in [
            ("https://huggingface.co", "https://huggingface.co"),
            ("https://user:p@ss/w#rd@mirror:8/hf", "https://mirror:8/hf"),
            ("user:pass@mirror", "mirror"),
        ] {
            assert_eq!(without_password(address), told);
        }
    }
}
