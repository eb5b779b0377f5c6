//! Who may ask: the key, and the checks that keep web pages of strangers out.
//!
//! A page that a browser on this machine shows can send requests to loopback addresses, and by a name of its own that resolves to
//! them (DNS rebinding) even read the answers. So the Host header must name this machine, and an Origin, which browsers send with
//! requests of pages, must be this server's own.

use std::net::SocketAddr;

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// What every request is held against.
pub struct Guard {
    /// The digest of the key: equal lengths for whatever a client sends.
    key: Option<[u8; 32]>,
    loopback: bool,
}

/// The key is in no message.
impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("key", &self.key.is_some()).field("loopback", &self.loopback).finish()
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl Guard {
    /// Of a server at `address`; `None` where it can be reached from other machines and has no key.
    pub fn new(address: SocketAddr, key: Option<&str>) -> Option<Self> {
        let loopback = address.ip().is_loopback();
        (loopback || key.is_some()).then(|| Guard { key: key.map(digest), loopback })
    }

    /// Whether there is a key.
    pub fn needs_key(&self) -> bool {
        self.key.is_some()
    }

    /// Refuses a request; `open` paths need no key.
    ///
    /// # Errors
    /// 401 or 403.
    pub fn check(&self, headers: &HeaderMap, open: bool) -> Result<(), ApiError> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\u{FFFD}"));
        let host = text(HOST).unwrap_or_default();
        // From elsewhere nobody gets far without the key, under whatever name.
        if self.loopback && !is_this_machine(host) {
            let message = "the Host header does not name this machine; ask for 127.0.0.1, [::1] or localhost";
            return Err(ApiError::new(StatusCode::FORBIDDEN, Some("host_not_allowed"), message));
        }
        let own = |origin: &str| {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        let fetched_by_page = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
        if text(ORIGIN).is_some_and(|origin| !own(origin)) || fetched_by_page {
            let message =
                "the request comes from a web page of another origin, which this server does not answer";
            return Err(ApiError::new(StatusCode::FORBIDDEN, Some("origin_not_allowed"), message));
        }
        let Some(key) = self.key.filter(|_| !open) else { return Ok(()) };
        let sent = text(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        let Some(sent) = sent else {
            let message = "this server needs a key; send it as `Authorization: Bearer KEY`";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message));
        };
        match bool::from(digest(sent).ct_eq(&key)) {
            true => Ok(()),
            false => {
                let message = "the key is not this server's; send the one that it was started with";
                Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message))
            }
        }
    }
}

/// Whether a Host header names the machine itself.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if is_port(port) => name,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if is_port(&format!(":{port}")) => name,
            Some(_) => return false,
            None => host,
        },
    };
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_this_machine_by_address_or_as_localhost() {
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "127.8.8.8:80", "[::1]", "[::1]:99"]
        {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:80",
            "127.0.0.1:x",
            "[::1",
            "[::2]:8",
            "a:b:c",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_server_that_others_can_reach_needs_a_key() {
        let address = |text: &str| text.parse::<SocketAddr>().ok();
        let Some((outside, inside)) = address("0.0.0.0:80").zip(address("[::1]:80")) else {
            panic!("these are addresses")
        };
        assert!(Guard::new(outside, None).is_none() && Guard::new(outside, Some("k")).is_some());
        assert!(Guard::new(inside, None).is_some());
    }
}
