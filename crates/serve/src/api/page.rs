//! The page at `/`: one HTML file that queries this server and shows each answer token's attention.
//!
//! Contains no model or user data, so it needs no key; it asks for one if the API does. Its Content-Security-Policy allows its own script
//! and style (by digest) and this server.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Shared with the page of `view`.
pub const BASE_STYLE: &str = include_str!("page/base.css");
const STYLE: &str = concat!(include_str!("page/base.css"), include_str!("page/page.css"));
const SCRIPT: &str = include_str!("page/page.js");
const BODY: &str = include_str!("page/page.html");

/// The page and its policy. Digests in the policy cover the text between the tags, byte for byte.
static PAGE: LazyLock<(Bytes, String)> = LazyLock::new(|| {
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>palimpsest: where the model looked</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{BODY}\
         <script>{SCRIPT}</script>\n</body>\n</html>\n"
    );
    let [script, style] = [SCRIPT, STYLE].map(|text| STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    (page.into(), policy)
});

pub fn page() -> Response<Body> {
    let (page, policy) = &*PAGE;
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
    ];
    (headers, page.clone()).into_response()
}
