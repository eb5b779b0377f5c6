//! Access control: API keys, and Host and Origin checks.
//!
//! Web pages can send requests to loopback addresses, and by DNS rebinding even read replies. So the Host header must name this machine,
//! and an Origin must be this server's own, unless the operator allows others.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use axum::response::IntoResponse;

use super::error::ApiError;
use super::keys::{Key, Keys};
use super::listen::Address;

/// An origin as browsers send it, such as `http://localhost:3000`.
pub fn allowed_origin(text: &str) -> Result<String, String> {
    let uri: Option<Uri> = text.parse().ok();
    let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?.as_str())));
    // URIs without a path parse with the path `/`.
    let whole = |scheme: &str, host: &str| text.len() == scheme.len() + "://".len() + host.len();
    match parts {
        Some((scheme @ ("http" | "https"), host)) if !host.contains('@') && whole(scheme, host) => {
            Ok(text.to_ascii_lowercase())
        }
        _ => Err(format!(
            "{text:?} is no origin; give one as browsers send it, such as http://localhost:3000, without a path"
        )),
    }
}

/// Name of this machine on any port, such as `host.docker.internal`.
pub fn allowed_host(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_ascii_lowercase()),
        false => {
            Err(format!("{text:?} is no name of a host; give it alone, without http:// and without a port"))
        }
    }
}

/// Key of `Authorization: Bearer KEY`.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[derive(Debug)]
pub struct Guard {
    keys: Keys,
    /// A TCP address of this machine alone: Host is checked.
    loopback: bool,
    origins: Vec<String>,
    hosts: Vec<String>,
}

impl Guard {
    /// `None` if `address` is reachable from other machines and there is no key.
    pub fn new(address: &Address, keys: Keys, origins: Vec<String>, hosts: Vec<String>) -> Option<Self> {
        // No browser reaches a Unix socket, and its clients send any host.
        let loopback = address.is_local() && matches!(address, Address::Tcp(_));
        (address.is_local() || !keys.is_empty()).then_some(Guard { keys, loopback, origins, hosts })
    }

    pub fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.origins.iter().any(|one| text.eq_ignore_ascii_case(one)).then(|| origin.clone())
    }

    /// Response to a CORS preflight, which carries no key; `None` for other requests.
    pub fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let headers = request.headers();
        headers.get(ACCESS_CONTROL_REQUEST_METHOD).filter(|_| request.method() == Method::OPTIONS)?;
        self.allowed_origin(headers).filter(|_| self.check_host(headers).is_ok())?;
        let allowed = [(ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST"), (ACCESS_CONTROL_MAX_AGE, "600")];
        // OpenAI clients send a dozen headers of their own; all are ignored.
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let wanted = wanted.map(|wanted| [(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone())]);
        Some((StatusCode::NO_CONTENT, allowed, wanted, Body::empty()).into_response())
    }

    /// Adds CORS headers for an allowed origin.
    pub fn share(origin: HeaderValue, response: &mut Response<Body>) {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }

    /// Checked on loopback only: servers reachable from other machines rely on the key.
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let name = headers.get(HOST).and_then(|host| name_of(host.to_str().ok()?));
        let named = |name: &str| self.hosts.iter().any(|one| name.eq_ignore_ascii_case(one));
        if self.loopback && !name.is_some_and(|name| is_this_machine(&name) || named(&name)) {
            let message = "the Host header does not name this machine; ask for 127.0.0.1, [::1] or localhost, or have the \
                           server's operator allow the name";
            return Err(ApiError::new(StatusCode::FORBIDDEN, Some("host_not_allowed"), message));
        }
        Ok(())
    }

    pub fn needs_key(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The key that was sent, if one is needed. Refuses with 401 or 403; `open` paths need no key.
    pub fn check(&self, headers: &HeaderMap, open: bool) -> Result<Option<Arc<Key>>, ApiError> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\u{FFFD}"));
        self.check_host(headers)?;
        let host = text(HOST).unwrap_or_default();
        let own = |origin: &str| {
            let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
        };
        let fetched_by_page = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
        let foreign = text(ORIGIN).is_some_and(|origin| !own(origin)) || fetched_by_page;
        if foreign && self.allowed_origin(headers).is_none() {
            let message = "the request comes from a web page of another origin, which this server's operator has not allowed";
            return Err(ApiError::new(StatusCode::FORBIDDEN, Some("origin_not_allowed"), message));
        }
        if open || self.keys.is_empty() {
            return Ok(None);
        }
        let message = match bearer(headers).map(|sent| self.keys.find(sent)) {
            Some(Some(key)) => return Ok(Some(Arc::clone(key))),
            Some(None) => "the key is not this server's; send one that it was started with",
            None => "this server needs a key; send it as `Authorization: Bearer KEY`",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message))
    }
}

/// Host name without port and brackets.
fn name_of(host: &str) -> Option<String> {
    let authority: Authority = host.parse().ok()?;
    let name = authority.host();
    let port = host.strip_prefix(name)?;
    let is_port = ["", ":"].contains(&port) || authority.port_u16().is_some();
    is_port.then(|| name.trim_matches(['[', ']']).to_ascii_lowercase())
}

fn is_this_machine(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_this_machine_by_address_or_as_localhost() {
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "127.8.8.8:80", "[::1]", "[::1]:99"]
        {
            assert!(name_of(host).is_some_and(|name| is_this_machine(&name)), "{host}");
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
            assert!(name_of(host).is_none_or(|name| !is_this_machine(&name)), "{host}");
        }
    }

    #[test]
    fn origins_and_hosts_are_taken_as_browsers_send_them() {
        for origin in ["http://localhost:3000", "https://ui.example", "http://[::1]:80", "HTTP://LOCALHOST"] {
            assert!(allowed_origin(origin).is_ok(), "{origin}");
        }
        for origin in
            ["*", "null", "", "localhost:3000", "http://a/", "http://a/b", "ftp://a", "http://u@a", "http://"]
        {
            assert!(allowed_origin(origin).is_err(), "{origin}");
        }
        assert!(allowed_host("host.docker.internal").is_ok());
        for host in ["", "http://a", "a:80", "a b", "*"] {
            assert!(allowed_host(host).is_err(), "{host}");
        }
    }
}
