//! The page at `/`: one HTML file that asks this server and shows what each token of the answer attended to.
//!
//! It holds nothing of the model's or of anybody's, so that it is served without a key, and asks for one where the API needs it.
//! Its policy lets it run its own script and style, which are named by their digests, and speak to this server alone.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Response};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// Colours, type and controls that the page of `view` has too.
pub const BASE_STYLE: &str = include_str!("page/base.css");
const STYLE: &str = concat!(include_str!("page/base.css"), include_str!("page/page.css"));
const SCRIPT: &str = include_str!("page/page.js");

/// All of it. A digest is of what stands between the tags, to the byte.
const PAGE: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
    "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n",
    "<title>palimpsest: where the model looked</title>\n<style>",
    include_str!("page/base.css"),
    include_str!("page/page.css"),
    "</style>\n</head>\n<body>\n",
    include_str!("page/page.html"),
    "<script>",
    include_str!("page/page.js"),
    "</script>\n</body>\n</html>\n"
);

/// The page's Content-Security-Policy.
fn policy() -> String {
    let digest = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(SCRIPT),
        digest(STYLE)
    )
}

/// The page, with its policy.
pub fn page() -> Result<Response<Body>, ApiError> {
    let policy = HeaderValue::from_str(&policy()).map_err(|error| ApiError::internal(error.to_string()))?;
    let text = HeaderValue::from_static;
    let headers: [(HeaderName, HeaderValue); 6] = [
        (CONTENT_TYPE, text("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, policy),
        // A new version of the program has a new page.
        (CACHE_CONTROL, text("no-cache")),
        (X_CONTENT_TYPE_OPTIONS, text("nosniff")),
        (X_FRAME_OPTIONS, text("DENY")),
        (REFERRER_POLICY, text("same-origin")),
    ];
    Ok((headers, PAGE).into_response())
}
