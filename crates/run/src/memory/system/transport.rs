//! Transports of the wire format to a memory system: [`ChildProcess`] or [`Address`].

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::http::header::CONTENT_TYPE;

use super::environment::Environment;
use super::protocol::{Failure, FailureKind};
use super::supervisor::Supervised;
use crate::http::{Origin, is_loopback};
use palimpsest_data::ground::folder;

/// Maximum reply size, bytes; dumps of large stores take a few million.
const LONGEST_REPLY: u64 = 256 << 20;

const CONNECT: Duration = Duration::from_secs(10);

/// Bytes of the log's tail quoted in errors.
const LOG_TAIL: u64 = 400;

/// Grace period between end of output and exit.
const EXIT: Duration = Duration::from_millis(500);

/// Exchanges messages with a system, one at a time. Fails with [`FailureKind::Dead`], [`FailureKind::TimedOut`] or
/// [`FailureKind::Nonsense`].
pub trait Transport: Send {
    fn start(&mut self) -> Result<(), Failure>;
    /// `message` is one line of JSON without newline.
    fn exchange(&mut self, message: &[u8], limit: Duration) -> Result<Vec<u8>, Failure>;
    fn stop(&mut self);
}

/// A child process: JSON lines on stdin and stdout, stderr to a file. Reads and writes run on two threads, so that a stuck process cannot
/// block the caller. Hang, stop, drop and the end of this process end its own children too ([`super::supervisor`]).
pub struct ChildProcess {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Environment,
    log: PathBuf,
    running: Option<Running>,
}

struct Running {
    supervised: Supervised,
    lines: Sender<Vec<u8>>,
    replies: Receiver<Vec<u8>>,
}

impl ChildProcess {
    /// Splits `command` like a shell, without expansion. `log` receives stderr. The process gets `environment` alone.
    pub fn new(command: &str, log: &Path, environment: Environment) -> Result<Self, String> {
        let words = shlex::split(command);
        let words =
            words.ok_or_else(|| format!("the command `{command}` ends within a quotation; close it"))?;
        let mut words = words.into_iter().map(OsString::from);
        let program =
            words.next().ok_or("the command is empty; give the program that is the memory system")?;
        let arguments = words.collect();
        Ok(ChildProcess { program, arguments, environment, log: log.to_owned(), running: None })
    }

    fn obituary(&mut self) -> String {
        let status = self.running.as_mut().and_then(|running| {
            let start = Instant::now();
            loop {
                match running.supervised.child.try_wait() {
                    Ok(None) if start.elapsed() < EXIT => thread::sleep(Duration::from_millis(5)),
                    Ok(status) => return status,
                    Err(_) => return None,
                }
            }
        });
        let how = match status {
            Some(status) => format!("the process ended without a reply ({status})"),
            None => "the process closed its output without a reply".to_owned(),
        };
        let said = match tail(&self.log) {
            Some(said) => format!("; its log ends with: {said}"),
            None => String::new(),
        };
        format!("{how}{said}; the whole log is {}", self.log.display())
    }
}

fn tail(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join(" | "))
}

/// Opens a log in a run's folder, which a stranger may have made.
pub(super) fn append_to(log: &Path) -> std::io::Result<File> {
    let name = log.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    folder::open_to_append(log.parent().unwrap_or(Path::new(".")), name)
}

impl Transport for ChildProcess {
    fn start(&mut self) -> Result<(), Failure> {
        self.stop();
        let dead = |message: String| Failure { kind: FailureKind::Dead, message };
        let log = append_to(&self.log)
            .map_err(|e| dead(format!("cannot write its log {}: {e}", self.log.display())))?;
        let mut supervised = Supervised::spawn(&self.program, &self.arguments, |command| {
            command.env_clear().envs(self.environment.variables());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        })
        .map_err(dead)?;
        let child = &mut supervised.child;
        let (lines, to_write) = channel();
        // Bounded: an adapter that writes without being asked waits.
        let (read, replies) = sync_channel(1);
        if let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) {
            thread::spawn(move || write_lines(stdin, to_write));
            thread::spawn(move || read_lines(stdout, read));
        }
        self.running = Some(Running { supervised, lines, replies });
        Ok(())
    }

    fn exchange(&mut self, message: &[u8], limit: Duration) -> Result<Vec<u8>, Failure> {
        let mut line = message.to_vec();
        line.push(b'\n');
        let got = match &self.running {
            // If the writer thread has ended, so has the process.
            Some(running) => match running.lines.send(line) {
                Ok(()) => running.replies.recv_timeout(limit),
                Err(_) => Err(RecvTimeoutError::Disconnected),
            },
            None => Err(RecvTimeoutError::Disconnected),
        };
        let (kind, message) = match got {
            Ok(reply) if reply.len() as u64 > LONGEST_REPLY => {
                let message = format!(
                    "the reply is longer than {} MiB; reply with less, or end the line",
                    LONGEST_REPLY >> 20
                );
                (FailureKind::Nonsense, message)
            }
            Ok(reply) => return Ok(reply),
            Err(RecvTimeoutError::Timeout) => {
                let how = format!("no reply within {} s; the process is ended", limit.as_secs_f64());
                (FailureKind::TimedOut, how)
            }
            Err(RecvTimeoutError::Disconnected) => (FailureKind::Dead, self.obituary()),
        };
        Err(Failure { kind, message })
    }

    fn stop(&mut self) {
        self.running = None;
    }
}

fn write_lines(mut stdin: ChildStdin, lines: Receiver<Vec<u8>>) {
    for line in lines {
        if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_lines(stdout: ChildStdout, replies: SyncSender<Vec<u8>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        // One extra byte detects overlong lines.
        let read = stdout.by_ref().take(LONGEST_REPLY + 1).read_until(b'\n', &mut line);
        let ended = !matches!(read, Ok(1..));
        let too_long = line.len() as u64 > LONGEST_REPLY;
        if ended || replies.send(line).is_err() || too_long {
            return;
        }
    }
}

/// A URL. Its server is started and stopped by its owner.
pub struct Address {
    url: String,
    agent: Agent,
}

impl Address {
    pub fn new(url: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            // A redirect would send the history to another server.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let is_here = Origin::of(url).is_some_and(|server| is_loopback(&server.host));
        let config = if is_here { config.proxy(None) } else { config };
        Address { url: url.to_owned(), agent: config.build().into() }
    }
}

impl Transport for Address {
    fn start(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn exchange(&mut self, message: &[u8], limit: Duration) -> Result<Vec<u8>, Failure> {
        let request = self.agent.post(&self.url).header(CONTENT_TYPE, "application/json");
        let request = request.config().timeout_global(Some(limit)).build();
        let fault = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => Failure {
                kind: FailureKind::TimedOut,
                message: format!("{}: no reply within {} s", self.url, limit.as_secs_f64()),
            },
            error => Failure {
                kind: FailureKind::Dead,
                message: format!("{}: {error}; is the memory system running there?", self.url),
            },
        };
        let mut response = request.send(message).map_err(fault)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(LONGEST_REPLY).read_to_vec().map_err(fault)?;
        // A system's error may have any HTTP status; a non-JSON error page comes from a gateway.
        if !status.is_success() && !body.trim_ascii_start().starts_with(b"{") {
            let text = String::from_utf8_lossy(&body);
            let quoted: String = text.chars().take(200).collect();
            let message =
                format!("{} answers {status}: {quoted}; is it the address of a memory system?", self.url);
            return Err(Failure { kind: FailureKind::Nonsense, message });
        }
        Ok(body)
    }

    fn stop(&mut self) {}
}
