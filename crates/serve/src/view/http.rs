//! HTTP server of the page: loopback only, mostly GET.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{io, thread};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{Method, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::FutureExt;
use serde_json::{Value, json};

use super::access::{self, Access, Token};
use super::ask::Asker;
use super::overview::Overviews;
use super::page::{Page, Parts};
use super::replies::{Query, attention, reply, runs_json};
use super::state::Shared;
use crate::api::body::collect;
use crate::api::error::ApiError;
use crate::api::guard::Guard;
use crate::api::keys::Keys;
use crate::api::listen::{self, Address, Listener};
use crate::api::off_thread::{off_thread, panicked};

/// Grace period for running requests after a stop.
const GRACE: Duration = Duration::from_secs(2);
const LONGEST_BODY: usize = 1 << 20;
const POSTED: [&str; 2] = ["/api/ask", "/api/cancel"];

#[derive(Debug, thiserror::Error)]
#[error(
    "{0} can be reached from other machines, and the page is not encrypted; leave --host at 127.0.0.1, and reach it through ssh -L from elsewhere"
)]
pub struct NotLocal(Address);

/// A model by its name, and where it stands once it is loaded.
pub type ModelSlot = (String, Arc<OnceLock<Asker>>);

struct App {
    runs: Shared,
    parts: Parts,
    guard: Guard,
    /// `None` lets every user of the machine in.
    access: Option<Access>,
    overviews: Overviews,
    /// From `--model`.
    model: Option<ModelSlot>,
    /// Cached table by stamp: ten thousand rows take a moment.
    table: Mutex<Option<(String, String)>>,
}

impl App {
    fn asker(&self) -> Option<&Asker> {
        self.model.as_ref()?.1.get()
    }

    fn asker_or_refuse(&self) -> Result<&Asker, ApiError> {
        let message = match self.model {
            None => "no model is at hand; start the page with --model NAME",
            Some(_) => "the model is still being loaded; ask again in a moment",
        };
        let refused = || ApiError::new(StatusCode::NOT_FOUND, Some("no_model"), message);
        self.asker().ok_or_else(refused)
    }

    /// The model as the page knows it.
    fn model_card(&self) -> Option<Value> {
        let (name, slot) = self.model.as_ref()?;
        Some(slot.get().map_or_else(|| json!({"name": name, "ready": false}), Asker::card))
    }
}

pub struct Server {
    listener: Listener,
    app: Arc<App>,
}

impl Server {
    pub fn new(
        listener: impl Into<Listener>,
        runs: Shared,
        parts: Parts,
        overviews: Overviews,
        model: Option<ModelSlot>,
        token: Option<&Token>,
    ) -> anyhow::Result<Self> {
        let listener = listener.into();
        let address = listener.address()?;
        let guard = Guard::new(&address, Keys::default(), Vec::new(), Vec::new()).ok_or(NotLocal(address))?;
        let access = token.map(Access::new);
        let app = App { runs, parts, guard, access, overviews, model, table: Mutex::new(None) };
        Ok(Server { listener, app: Arc::new(app) })
    }

    /// Address of a TCP listener.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn run(self, stop: &Arc<AtomicBool>) -> io::Result<()> {
        let Server { listener, app } = self;
        let (runs, stopped) = (app.runs.clone(), Arc::clone(stop));
        let ranks = thread::Builder::new().name("ranks".to_owned());
        let ranks = ranks.spawn(move || runs.read_ranks(&stopped, false))?;
        let router = Router::new().fallback(framed).with_state(Arc::clone(&app));
        let served = listen::run(listener, router, stop, async {
            app.asker().into_iter().for_each(Asker::end);
            tokio::time::sleep(GRACE).await;
        });
        let _ = ranks.join();
        served
    }
}

/// Middleware: access check and panic handling.
async fn framed(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let served = async {
        listen::well_formed(&request)?;
        let headers = request.headers();
        app.guard.check_host(headers)?;
        // Before the check of the request's origin: a link with the token may stand on any page, such as the file of --open.
        if let Some(entered) = app.access.as_ref().and_then(|access| access.enter(&request)) {
            return Ok(entered);
        }
        app.guard.check(headers, true)?;
        if app.access.as_ref().is_some_and(|access| !access.allows(&request)) {
            return access::refused(headers);
        }
        listen::admit(&request)?;
        answered(&app, request).await
    };
    let served = AssertUnwindSafe(served).catch_unwind().await;
    let headers = [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
    ];
    (headers, served.unwrap_or_else(|_| Err(panicked()))).into_response()
}

async fn answered(app: &Arc<App>, request: Request) -> Result<Response<Body>, ApiError> {
    let app = Arc::clone(app);
    let path = request.uri().path().to_owned();
    if *request.method() == Method::POST && POSTED.contains(&path.as_str()) {
        let body = collect(request, LONGEST_BODY, |_| Ok(())).await?;
        return off_thread(move || posted(&app, &path, &body)).await;
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let code = Some("wrong_method");
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, code, "this path takes GET"));
    }
    if path == "/" {
        return off_thread(move || page(&app)).await;
    }
    let query = Query::of(request.uri().query().unwrap_or_default());
    off_thread(move || Ok(sent(got(&app, &path, &query)?))).await
}

fn posted(app: &App, path: &str, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let asker = app.asker_or_refuse()?;
    let (status, reply) = match path {
        "/api/ask" => (StatusCode::ACCEPTED, asker.ask(&app.runs.now(), body)?),
        _ => (StatusCode::OK, asker.cancel(body)?),
    };
    Ok((status, sent(reply.to_string())).into_response())
}

fn page(app: &App) -> Result<Response<Body>, ApiError> {
    let Page { html, policy } =
        app.parts.page(None).map_err(|error| ApiError::internal(error.to_string()))?;
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, policy.as_str())];
    Ok((headers, html).into_response())
}

fn got(app: &App, path: &str, query: &Query) -> Result<String, ApiError> {
    if path == "/api/ask" {
        return Ok(app.asker_or_refuse()?.status(query.get("id").unwrap_or_default())?.to_string());
    }
    let runs = app.runs.now();
    match (path, app.asker()) {
        ("/api/runs", _) => return Ok(runs_json(&runs, app.model_card()).to_string()),
        ("/api/overview", _) => return Ok(app.overviews.reply(&runs, query)?.to_string()),
        // The page looks again once the model is loaded.
        ("/api/stamp", Some(_)) => return Ok(json!({"stamp": format!("{}-model", runs.stamp())}).to_string()),
        ("/api/tokens", Some(asker)) => return Ok(asker.tokens(&attention(&runs, query)?.store).to_string()),
        _ => {}
    }
    if path == "/api/table" {
        let stamp = runs.stamp();
        let mut kept = app.table.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(known, _)| *known != stamp) {
            *kept = reply(&runs, path, query)?.map(|table| (stamp, table));
        }
        return Ok(kept.as_ref().map(|(_, table)| table.clone()).unwrap_or_default());
    }
    reply(&runs, path, query)?.ok_or_else(|| {
        let message = format!("there is nothing at {path}; the page is at /");
        ApiError::new(StatusCode::NOT_FOUND, Some("unknown_url"), message)
    })
}

fn sent(json: String) -> Response<Body> {
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}
