//! A small HTTP/1.1 server on this machine's loopback: whole requests in, whole responses out, one thread a connection.
//!
//! Serves the proxy of language models and the scripted model of the conformance test, in builds without `palimpsest serve` too. Knows no
//! request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Most bytes of a request's head, and of its body.
const LONGEST_HEAD: u64 = 64 << 10;
const LONGEST_BODY: u64 = 256 << 20;

/// Time that a connection may be idle.
const IDLE: Duration = Duration::from_secs(120);

/// A request.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// `POST`.
    pub method: String,
    pub path: String,
    /// The value of `Authorization`.
    pub authorization: Option<String>,
    pub body: Vec<u8>,
}

/// A response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    /// `application/json`.
    pub content_type: String,
    pub body: Vec<u8>,
}

impl Response {
    /// JSON.
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Response { status, content_type: "application/json".to_owned(), body: value.to_string().into_bytes() }
    }

    /// An error in the words of OpenAI's API.
    pub fn error(status: u16, message: &str) -> Self {
        Response::json(status, &serde_json::json!({ "error": { "message": message, "type": "palimpsest" } }))
    }
}

/// Answers requests, from several threads at once.
pub type Handler = Arc<dyn Fn(Request) -> Response + Send + Sync>;

/// A server, which ends when it is dropped.
pub struct HttpServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl HttpServer {
    /// Listens at a free port of the loopback.
    pub fn start(handler: Handler) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::Builder::new().name("memory-http".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (handler, stopped) = (Arc::clone(&handler), Arc::clone(&stopped));
                // A connection that gets no thread is closed, and its client told so by that.
                let _ = thread::Builder::new().spawn(move || serve(&stream, &handler, &stopped));
            }
        })?;
        Ok(HttpServer { address, stop })
    }

    /// `http://127.0.0.1:41234`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }
}

/// Serves a connection until its client ends it or breaks the rules of HTTP, or the server is dropped.
fn serve(stream: &TcpStream, handler: &Handler, stopped: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(IDLE));
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    loop {
        let (response, goes_on) = match read(&mut reader, stream) {
            Ok(Some(_)) if stopped.load(Ordering::Relaxed) => return,
            Ok(Some((request, goes_on))) => (handler(request), goes_on),
            Ok(None) => return,
            Err(why) => (Response::error(400, &why), false),
        };
        if write(stream, &response, goes_on).is_err() || !goes_on {
            return;
        }
    }
}

fn write(mut stream: &TcpStream, response: &Response, goes_on: bool) -> std::io::Result<()> {
    let Response { status, content_type, body } = response;
    let connection = if goes_on { "keep-alive" } else { "close" };
    let length = body.len();
    // The reason is read by nobody.
    let head = format!(
        "HTTP/1.1 {status} -\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: {connection}\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    bytes.extend(body);
    stream.write_all(&bytes)?;
    stream.flush()
}

/// A request, and whether its client wants to send more; `None` at the end of the connection.
fn read(reader: &mut impl BufRead, mut stream: &TcpStream) -> Result<Option<(Request, bool)>, String> {
    let mut head = reader.by_ref().take(LONGEST_HEAD);
    let Some(first) = line(&mut head)? else { return Ok(None) };
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0")) =
        (words.next(), words.next(), words.next())
    else {
        return Err(format!("`{first}` is no request of HTTP/1.1"));
    };
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let mut request = Request { method: method.to_owned(), path, authorization: None, body: Vec::new() };
    let (mut length, mut chunked, mut goes_on) = (0, false, first.ends_with("1.1"));
    loop {
        let Some(header) = line(&mut head)? else { return Err("the head ends in the middle".to_owned()) };
        if header.is_empty() {
            break;
        }
        let Some((name, value)) = header.split_once(':') else {
            return Err(format!("`{header}` is no header"));
        };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                length = value.parse().map_err(|_| format!("Content-Length `{value}` is no number"))?;
            }
            "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" => goes_on = goes_on && !value.eq_ignore_ascii_case("close"),
            "authorization" => request.authorization = Some(value.to_owned()),
            "expect" => {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(|e| e.to_string())?;
            }
            _ => {}
        }
    }
    match chunked {
        true => request.body = chunks(reader)?,
        false => body(reader, length, &mut request.body)?,
    }
    Ok(Some((request, goes_on)))
}

fn line(reader: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    reader.read_until(b'\n', &mut bytes).map_err(|e| e.to_string())?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let Some(line) = bytes.strip_suffix(b"\n") else { return Err("a line without an end".to_owned()) };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    String::from_utf8(line.to_vec()).map(Some).map_err(|_| "a head that is no UTF-8".to_owned())
}

fn body(reader: &mut impl BufRead, length: u64, into: &mut Vec<u8>) -> Result<(), String> {
    if into.len() as u64 + length > LONGEST_BODY {
        return Err(format!("the body is longer than {} MiB", LONGEST_BODY >> 20));
    }
    let read = reader.by_ref().take(length).read_to_end(into).map_err(|e| e.to_string())?;
    if (read as u64) < length { Err("the body ends in the middle".to_owned()) } else { Ok(()) }
}

fn chunks(reader: &mut impl BufRead) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    loop {
        let size = line(reader)?.ok_or("the body ends in the middle")?;
        let digits = size.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(digits, 16).map_err(|_| format!("`{size}` is no chunk's size"))?;
        body(reader, length, &mut all)?;
        // After a chunk its line's end; after the last one trailers and an empty line.
        while !line(reader)?.ok_or("the body ends in the middle")?.is_empty() {}
        if length == 0 {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> HttpServer {
        let handler: Handler = Arc::new(|request: Request| Response {
            status: 200,
            content_type: "text/plain".to_owned(),
            body: [request.path.as_bytes(), b" ", &request.body].concat(),
        });
        HttpServer::start(handler).unwrap()
    }

    fn exchange(server: &HttpServer, sent: &str) -> String {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        got
    }

    #[test]
    fn requests_follow_each_other_on_a_connection_whole_or_in_chunks() {
        let server = echo();
        let got = exchange(
            &server,
            "POST /one?x=1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcPOST /two HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: \
             close\r\n\r\n2\r\nde\r\n1;x=y\r\nf\r\n0\r\n\r\n",
        );
        let bodies: Vec<&str> = got.split("\r\n\r\n").skip(1).collect();
        assert!(bodies[0].starts_with("/one abc") && bodies[1] == "/two def", "{got}");
    }

    #[test]
    fn a_broken_request_is_refused_and_the_server_goes_on() {
        let server = echo();
        assert!(exchange(&server, "hello\r\n\r\n").starts_with("HTTP/1.1 400"));
        assert!(exchange(&server, "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n").contains("is no number"));
        assert!(exchange(&server, "GET /three HTTP/1.0\r\n\r\n").ends_with("/three "));
    }
}
