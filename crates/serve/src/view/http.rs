//! HTTP server of the page: loopback only, mostly GET.

use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::FutureExt;

use super::ask::Asker;
use super::case::Case;
use super::page::Parts;
use super::replies::{self, Content, Query, reply};
use super::state::{Runs, Shared};
use crate::api::error::ApiError;
use crate::api::guard::Guard;
use crate::api::listen;
use crate::api::off_thread::{off_thread, panicked};

const LOOK: Duration = Duration::from_millis(50);
/// Grace period for running requests after a stop.
const GRACE: Duration = Duration::from_secs(2);
const LONGEST_BODY: usize = 1 << 20;
const POSTED: [&str; 2] = ["/api/ask", "/api/cancel"];

#[derive(Debug, thiserror::Error)]
#[error(
    "{0} can be reached from other machines, and the page has no key; leave --host at 127.0.0.1, and reach it through ssh -L from elsewhere"
)]
pub struct NotLocal(std::net::SocketAddr);

struct App {
    runs: Shared,
    parts: Parts,
    guard: Guard,
    /// Model from `--model`.
    asker: Option<Asker>,
    /// Cached table by stamp: ten thousand rows take a moment.
    table: Mutex<Option<(String, Arc<str>)>>,
}

pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    pub fn new(
        listener: TcpListener,
        runs: Runs,
        parts: Parts,
        asker: Option<Asker>,
    ) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let guard = Guard::new(address, None, Vec::new(), Vec::new()).ok_or(NotLocal(address))?;
        let app = App { runs: Shared::new(runs), parts, guard, asker, table: Mutex::new(None) };
        Ok(Server { listener, app: Arc::new(app) })
    }

    pub fn address(&self) -> io::Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    pub fn run(self, stop: &Arc<AtomicBool>) -> io::Result<()> {
        let Server { listener, app } = self;
        let (runs, stopped) = (app.runs.clone(), Arc::clone(stop));
        let ranks = thread::Builder::new().name("ranks".to_owned());
        let ranks = ranks.spawn(move || runs.read_ranks(&stopped, false))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let served = runtime.block_on(async {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let router = Router::new().fallback(framed).with_state(Arc::clone(&app));
            let serving = listen::serve(listener, router, asked(Arc::clone(stop)));
            let ended = async {
                asked(Arc::clone(stop)).await;
                app.asker.iter().for_each(Asker::end);
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                () = serving => Ok(()),
                () = ended => Ok(()),
            }
        });
        runtime.shutdown_background();
        let _ = ranks.join();
        served
    }
}

async fn asked(stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Middleware: access check and panic handling.
async fn framed(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let served = async {
        app.guard.check(request.headers(), true)?;
        answered(&app, request).await
    };
    let served = AssertUnwindSafe(served).catch_unwind().await;
    let reply = served.unwrap_or_else(|_| Err(panicked()));
    let mut response = reply.unwrap_or_else(IntoResponse::into_response);
    let text = HeaderValue::from_static;
    let headers: [(HeaderName, HeaderValue); 4] = [
        (CACHE_CONTROL, text("no-store")),
        (X_CONTENT_TYPE_OPTIONS, text("nosniff")),
        (X_FRAME_OPTIONS, text("DENY")),
        (REFERRER_POLICY, text("same-origin")),
    ];
    response.headers_mut().extend(headers);
    response
}

async fn answered(app: &Arc<App>, request: Request) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path().to_owned();
    let query = Query::of(request.uri().query().unwrap_or_default());
    if *request.method() == Method::POST && POSTED.contains(&path.as_str()) {
        let body = axum::body::to_bytes(request.into_body(), LONGEST_BODY).await;
        let too_long = |_| {
            let message =
                format!("the request's body cannot be received whole; send at most {LONGEST_BODY} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, None, message)
        };
        let body = body.map_err(too_long)?;
        let app = Arc::clone(app);
        return off_thread(move || posted(&app, &path, &body)).await;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return Err(ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Some("wrong_method"),
            "this path takes GET",
        ));
    }
    let app = Arc::clone(app);
    if path == "/" {
        return off_thread(move || page(&app)).await;
    }
    off_thread(move || got(&app, &path, &query)).await
}

fn posted(app: &App, path: &str, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let asker = app.asker.as_ref().ok_or_else(no_model)?;
    match path {
        "/api/ask" => {
            let mut reply = json(asker.ask(&app.runs.now(), body)?.to_string());
            *reply.status_mut() = StatusCode::ACCEPTED;
            Ok(reply)
        }
        _ => Ok(json(asker.cancel(body)?.to_string())),
    }
}

fn no_model() -> ApiError {
    let message = "no model is at hand; start the page with --model NAME";
    ApiError::new(StatusCode::NOT_FOUND, Some("no_model"), message)
}

fn page(app: &App) -> Result<Response<Body>, ApiError> {
    let page = app.parts.page(None).map_err(|error| ApiError::internal(error.to_string()))?;
    let policy =
        HeaderValue::from_str(&page.policy).map_err(|error| ApiError::internal(error.to_string()))?;
    let mut response = sent("text/html; charset=utf-8", page.html);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}

fn got(app: &App, path: &str, query: &Query) -> Result<Response<Body>, ApiError> {
    if path == "/api/ask" {
        let asker = app.asker.as_ref().ok_or_else(no_model)?;
        return Ok(json(asker.status(query.get("id").unwrap_or_default())?.to_string()));
    }
    let runs = app.runs.now();
    if let Some(asker) = &app.asker {
        if path == "/api/runs" {
            return Ok(json(replies::runs_json(&runs, Some(asker.card())).to_string()));
        }
        if path == "/api/tokens" {
            let row = query.parsed("row")?.and_then(|row: usize| runs.located(row));
            let case = row.and_then(|(_, folder, at)| Case::open(folder, at));
            if let Some(tokens) = case.and_then(|case| asker.tokens(&case)) {
                return Ok(json(tokens.to_string()));
            }
        }
    }
    if path == "/api/table" {
        let stamp = runs.stamp();
        let mut kept = app.table.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match &*kept {
            Some((known, text)) if *known == stamp => Arc::clone(text),
            _ => match reply(&runs, path, query)? {
                Some(Content::Json(text)) => Arc::from(text),
                _ => Arc::from(""),
            },
        };
        *kept = Some((stamp, Arc::clone(&text)));
        return Ok(json(text.to_string()));
    }
    match reply(&runs, path, query)? {
        Some(Content::Json(text)) => Ok(json(text)),
        Some(Content::File(name, kind, bytes)) => {
            let mut response = sent(kind, bytes);
            // File names are stems of letters, digits, hyphens and underscores.
            if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
                response.headers_mut().insert(CONTENT_DISPOSITION, value);
            }
            Ok(response)
        }
        None => {
            let message = format!("there is nothing at {path}; the page is at /");
            Err(ApiError::new(StatusCode::NOT_FOUND, Some("unknown_url"), message))
        }
    }
}

fn json(text: String) -> Response<Body> {
    sent("application/json", text)
}

fn sent(kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
