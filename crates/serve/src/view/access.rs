//! Access to the page by a token, since every user of the machine can connect to a loopback port.
//!
//! The address that `palimpsest view` prints has the token. Opening it sets a cookie and redirects to the address without the token, which
//! therefore stays out of copied links and of the browser's address bar. Programs send `Authorization: Bearer TOKEN` or `?token=TOKEN`.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, LOCATION, REFRESH, SET_COOKIE,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRng;
use rand::rngs::{SysError, SysRng};
use sha2::{Digest, Sha256};

use crate::api::error::ApiError;
use crate::api::guard::bearer;
use crate::api::keys::Secret;

/// Key in the query of the address.
const NAME: &str = "token";
const SHORTEST: usize = 16;
const RANDOM_BYTES: usize = 32;
const POLICY: &str = "default-src 'none'; img-src data:; frame-ancestors 'none'";

/// Secret part of the page's address.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// 256 bits from the operating system.
    pub fn random() -> Result<Self, SysError> {
        let mut bytes = [0; RANDOM_BYTES];
        SysRng.try_fill_bytes(&mut bytes)?;
        Ok(Token(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// `None` if `text` is short or has characters that a URL would escape.
    pub fn chosen(text: &str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        (text.len() >= SHORTEST && text.chars().all(plain)).then(|| Token(text.to_owned()))
    }

    /// `page`, the address of the page, with this token.
    pub fn address(&self, page: &str) -> String {
        format!("{page}?{NAME}={}", self.0)
    }
}

/// Decides which requests may read runs and ask the model.
pub(super) struct Access {
    token: Secret,
    /// Follows from the token, so that pages stay open when a server restarts with the same one, but does not reveal it.
    cookie: String,
}

impl Access {
    pub fn new(token: &Token) -> Self {
        let cookie = Sha256::digest(format!("palimpsest view cookie {}", token.0));
        Access { token: Secret::of(&token.0), cookie: URL_SAFE_NO_PAD.encode(cookie) }
    }

    /// Response to the printed address: sets the cookie and leads to the address without the token. `None` for other requests.
    pub fn enter(&self, request: &Request) -> Option<Response<Body>> {
        let (uri, headers) = (request.uri(), request.headers());
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        if uri.path() != "/" || !reads || !self.is_in_query(uri) {
            return None;
        }
        let mut rest = form_urlencoded::Serializer::new(String::new());
        let rest = rest.extend_pairs(query(uri).filter(|(name, _)| name != NAME)).finish();
        let to = if rest.is_empty() { "/".to_owned() } else { format!("/?{rest}") };
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", cookie_name(headers), self.cookie);
        let cookie = [(SET_COOKIE, cookie)];
        // Browsers withhold strict cookies from redirects of a navigation that began elsewhere, as in the file of --open. A refresh begins here.
        if headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") {
            let text = "<p>Opening <a href=\"/\">the page</a>.</p>";
            let refresh = [(REFRESH, format!("0; url={to}"))];
            return Some((cookie, refresh, small_page(StatusCode::OK, text)).into_response());
        }
        Some((StatusCode::SEE_OTHER, cookie, [(LOCATION, to)]).into_response())
    }

    /// By cookie, `Authorization` header or query.
    pub fn allows(&self, request: &Request) -> bool {
        let (headers, name) = (request.headers(), cookie_name(request.headers()));
        let cookie = Secret::of(&self.cookie);
        let is_cookie = |pair: &str| {
            pair.trim().split_once('=').is_some_and(|(key, value)| key == name && cookie.is(value))
        };
        // Cookies of other servers on this host may hold any bytes.
        let mut lines = headers.get_all(COOKIE).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
        lines.any(|line| line.split(';').any(is_cookie))
            || bearer(headers).is_some_and(|sent| self.token.is(sent))
            || self.is_in_query(request.uri())
    }

    fn is_in_query(&self, uri: &Uri) -> bool {
        query(uri).any(|(name, value)| name == NAME && self.token.is(&value))
    }
}

fn query(uri: &Uri) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
}

/// Has the port as the browser sees it, since cookies are shared between the ports of a host.
fn cookie_name(headers: &HeaderMap) -> String {
    let port = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok()?.port_u16());
    format!("palimpsest-view-{}", port.unwrap_or(80))
}

/// Status 401: a page for browsers, JSON for programs and for the page's own requests.
pub(super) fn refused(headers: &HeaderMap) -> Result<Response<Body>, ApiError> {
    let accepted = headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
    if accepted.is_some_and(|accepted| accepted.contains("text/html")) {
        let text = "<h1>This page needs its token</h1>\n<p>Open the address that <code>palimpsest view</code> printed when it was started. \
                    It ends with <code>/?token=…</code> and is another one after each start, unless a token was chosen.</p>";
        return Ok(small_page(StatusCode::UNAUTHORIZED, text));
    }
    let message =
        "the server needs its token; open the address that `palimpsest view` printed when it was started";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("invalid_token"), message))
}

fn small_page(status: StatusCode, text: &str) -> Response<Body> {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>palimpsest</title>\n</head>\n<body>\n{text}\n</body>\n</html>\n"
    );
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    (status, headers, html).into_response()
}
